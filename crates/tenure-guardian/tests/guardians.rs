//! Several guardians in one program. A program of its own, because a guardian is started from the
//! program's own file: `main` must ask first whether it is one.

use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tenure_core::{BootClock, Clock};
use tenure_guardian::{EndedBy, Guarded, News, Times};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);
const TIMES: Times =
    Times { grace: Duration::from_millis(500), reserve: Duration::from_millis(100) };

fn main() -> ExitCode {
    if let Some(code) = tenure_guardian::run_if_guardian() {
        return code;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(the_death_of_one_guardian_ends_its_own_child_and_no_other());
    ExitCode::SUCCESS
}

async fn the_death_of_one_guardian_ends_its_own_child_and_no_other() {
    let (mut first, doomed) = start().await;
    let (mut second, spared) = start().await;
    kill_process(parent_of(doomed), Signal::KILL).expect("the first guardian is killed");
    let news = timeout(PATIENCE, first.next()).await.expect("in time");
    assert_eq!(news, News::GuardianDied { all_ended: true });
    assert!(test_kill_process(doomed).is_err(), "the first child is gone");
    test_kill_process(spared).expect("the second child runs");
    second.stop(Duration::ZERO);
    let news = timeout(PATIENCE, second.next()).await.expect("in time");
    assert!(matches!(news, News::Gone { by: EndedBy::Stopped, .. }), "{news:?}");
    second.reap().await;
}

async fn start() -> (Guarded, Pid) {
    let command = ["sleep".into(), "60".into()];
    let deadline = BootClock.now() + PATIENCE * 2;
    let mut child = Guarded::start(&command, &[], TIMES, deadline).expect("it starts");
    let news = timeout(PATIENCE, child.next()).await.expect("in time");
    let News::Started { pid } = news else { panic!("{news:?}") };
    (child, Pid::from_raw(pid).expect("a number above 0"))
}

fn parent_of(pid: Pid) -> Pid {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()));
    let status = status.expect("it lives");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    parent.trim().parse().ok().and_then(Pid::from_raw).expect("a number above 0")
}
