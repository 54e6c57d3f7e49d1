//! The member that `bench.py` measures beside one in Python: the same role, the same words.
#![allow(clippy::print_stdout, reason = "it tells the bench what happens")]

use std::error::Error;
use std::io::BufRead;

use tenure::config::{Config, RoleSpec};
use tenure::{Member, TakeoverPolicy};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

fn main() -> Result<(), Box<dyn Error>> {
    // As many threads as the Python package has.
    Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(take_part())
}

async fn take_part() -> Result<(), Box<dyn Error>> {
    let policy = match std::env::var("POLICY").as_deref() {
        Ok("fenced") => TakeoverPolicy::Fenced,
        Ok(_) | Err(_) => TakeoverPolicy::Exclusive,
    };
    let role = RoleSpec::named("r").policy(policy);
    let config = Config::builder().dsn(std::env::var("DSN")?).role(role).build()?;
    let member = Member::start(config).await?;
    let lock = member.lock("r")?;
    lock.on_acquired(|_| say("acquired"));
    lock.on_released(|_| say("released"));
    lock.start().await?;
    say("started");
    let (line, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for word in std::io::stdin().lock().lines().map_while(Result::ok) {
            // The program ends only after this thread has told it of the end of the input.
            let _ = line.send(word);
        }
    });
    while let Some(word) = lines.recv().await {
        if word == "step_down" {
            say("asked");
            lock.step_down(None).await?;
        }
    }
    member.shutdown(None).await?;
    Ok(())
}

/// One line: the time in nanoseconds, as Python's `time.monotonic` counts, and a word.
fn say(word: &str) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it fills what it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    println!("{} {word}", i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec));
}
