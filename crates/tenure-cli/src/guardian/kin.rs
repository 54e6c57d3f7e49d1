//! Who descends from this process.
//!
//! The kernel lists a thread's children in `/proc/<pid>/task/<tid>/children` where it was built to
//! do so; elsewhere every process is asked for its parent. Both may miss somebody who is being born:
//! callers that must reach everybody look again until nobody is left.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpgid, getpgrp, getpid, getsid,
    kill_process, kill_process_group, waitid, waitpid,
};

/// So many looks are taken without a pause, for those who fork faster than anybody looks.
const BURST: u32 = 50;
/// After so many looks who is left cannot be killed, and is no reason to use up a processor.
const BURSTS_END: u32 = 10_000;

/// Everybody below this process, in no order.
pub(crate) fn descendants() -> Vec<Pid> {
    let mut found = Vec::new();
    walk(|pid| found.push(pid));
    found
}

/// SIGKILL to everybody below this process whom one look finds.
///
/// To whole process groups: the kernel kills a group in one stroke that no fork slips through, where
/// a process that forks and exits at once is gone before its number was read.
pub(crate) fn kill_all() {
    walk(|pid| {
        if let Some(group) = group_of_kin(pid) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = kill_process(pid, Signal::KILL);
    });
}

/// How long to wait before look number `looks` after the first.
pub(crate) fn pause_before(looks: u32) -> Duration {
    let at_once = looks < BURSTS_END && !looks.is_multiple_of(BURST);
    if at_once { Duration::ZERO } else { Duration::from_millis(2) }
}

/// Visits everybody below this process as soon as it is found, the youngest of each family first:
/// the older they are, the likelier they have ended.
fn walk(mut visit: impl FnMut(Pid)) {
    let me = getpid();
    let listed = fs::metadata(format!("/proc/{me}/task/{me}/children", me = me.as_raw_pid()));
    let parents = if listed.is_ok() { None } else { Some(parents()) };
    let mut found: Vec<Pid> = Vec::new();
    let mut next = vec![me];
    while let Some(pid) = next.pop() {
        let children: Vec<Pid> = match &parents {
            None => children(pid),
            Some(all) => all.iter().filter(|(_, p)| *p == pid).map(|(child, _)| *child).collect(),
        };
        for child in children.into_iter().rev() {
            if !found.contains(&child) {
                visit(child);
                found.push(child);
                next.push(child);
            }
        }
    }
}

/// The group of a descendant, if nobody else can be in it: a group never spans two sessions, so it
/// is all ours if the session began with this process or below it.
fn group_of_kin(pid: Pid) -> Option<Pid> {
    let (group, session) = (getpgid(Some(pid)).ok()?, getsid(Some(pid)).ok()?);
    let own = getsid(None).ok()?;
    (group != getpgrp() && (session != own || own == getpid())).then_some(group)
}

/// Reaps children that nobody waits for: what a hook left behind falls to a subreaper. `seen` is who
/// had ended at the last look: whoever is waited for is gone long before the next.
pub(crate) fn reap_strays(seen: &mut Vec<Pid>) {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = |pid: &Pid| matches!(waitid(WaitId::Pid(*pid), look), Ok(Some(_)));
    let (strays, fresh): (Vec<Pid>, Vec<Pid>) =
        children(getpid()).into_iter().filter(ended).partition(|pid| seen.contains(pid));
    for pid in strays {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
    *seen = fresh;
}

/// Kills and reaps everybody below this process; false if somebody was left after `within`.
pub(crate) fn end_all(within: Duration) -> bool {
    let begun = Instant::now();
    for looks in 1_u32.. {
        kill_all();
        let left = descendants();
        if left.is_empty() {
            return true;
        }
        for pid in left {
            // By name: others' children must be reaped by those who wait for them.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        if begun.elapsed() > within {
            break;
        }
        std::thread::sleep(pause_before(looks));
    }
    false
}

fn children(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid())) else {
        return Vec::new();
    };
    let lists = tasks.flatten().filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(parse).collect::<Vec<_>>()).collect()
}

/// Every process and its parent.
fn parents() -> Vec<(Pid, Pid)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = parse(entry.file_name().to_str()?)?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in parentheses may itself hold anything, parentheses too.
            let (_, rest) = stat.rsplit_once(')')?;
            Some((pid, parse(rest.split_whitespace().nth(1)?)?))
        })
        .collect()
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_looking_find_a_child() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let pid = Pid::from_child(&child);
        assert!(descendants().contains(&pid));
        assert!(parents().contains(&(pid, getpid())));
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
