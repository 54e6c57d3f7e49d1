//! Who descends from this process.
//!
//! The kernel lists a thread's children in `/proc/<pid>/task/<tid>/children` where it was built to
//! do so; elsewhere every process is asked for its parent. Both may miss somebody who is being born:
//! callers that must reach everybody look again until nobody is left.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Everybody below this process, in no order.
pub(crate) fn descendants() -> Vec<Pid> {
    let me = getpid();
    let listed = fs::metadata(format!("/proc/{me}/task/{me}/children", me = me.as_raw_pid()));
    let parents = if listed.is_ok() { None } else { Some(parents()) };
    let mut found: Vec<Pid> = Vec::new();
    let mut next = vec![me];
    while let Some(pid) = next.pop() {
        let children = match &parents {
            None => children(pid),
            Some(all) => all.iter().filter(|(_, p)| *p == pid).map(|(child, _)| *child).collect(),
        };
        for child in children {
            if !found.contains(&child) {
                found.push(child);
                next.push(child);
            }
        }
    }
    found
}

/// Kills and reaps everybody below this process; false if somebody was left after `within`.
pub(crate) fn end_all(within: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let left = descendants();
        if left.is_empty() {
            return true;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
            // By name: others' children must be reaped by those who wait for them.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        if begun.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
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
