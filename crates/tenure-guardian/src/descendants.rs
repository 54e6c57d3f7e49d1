//! The processes that descend from this one: finding, killing and reaping them.
//!
//! The kernel lists a thread's children in `/proc/<pid>/task/<tid>/children` where it was built to
//! do so; elsewhere every process is asked for its parent. Both may miss a process that is
//! being born: a caller that must reach all of them looks again until none is left.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group,
    waitid, waitpid,
};

/// So many looks are taken without a pause, for processes that fork faster than one look takes.
const BURST: u32 = 50;
/// What is left after so many looks cannot be killed, and is no reason to use up a processor.
const BURSTS_END: u32 = 10_000;

/// The guardians of this program that are at their posts.
static GUARDIANS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Held while one is started, so that it is known before anything else can find it.
pub(crate) fn guardians() -> MutexGuard<'static, Vec<Pid>> {
    GUARDIANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every process below this one, in no order, but for those in `spared` and below them.
pub(crate) fn descendants(spared: &[Pid]) -> Vec<Pid> {
    let mut found = Vec::new();
    walk(spared, |pid| found.push(pid));
    found
}

/// SIGKILL to every process below this one that one look finds, but for those in `spared` and below
/// them.
///
/// To whole process groups: the kernel kills a group in one stroke that no fork slips through, where
/// a process that forks and exits at once is gone before its number was read.
pub(crate) fn kill_all(spared: &[Pid]) {
    walk(spared, |pid| {
        if let Some(group) = group_of_descendants(pid) {
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

/// Visits every process below this one as soon as it is found, the youngest of each family first:
/// the older a process is, the likelier it has ended.
fn walk(spared: &[Pid], mut visit: impl FnMut(Pid)) {
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
            if !found.contains(&child) && !spared.contains(&child) {
                visit(child);
                found.push(child);
                next.push(child);
            }
        }
    }
}

/// The group of a descendant, if only descendants can be in it.
///
/// Not by rustix: it takes every number for a process, and a group or session that began outside our
/// PID namespace (a container that was entered, a sandbox) is number 0.
fn group_of_descendants(pid: Pid) -> Option<Pid> {
    let pid = Some(unistd::Pid::from_raw(pid.as_raw_pid()));
    let theirs = Band { group: unistd::getpgid(pid).ok()?, session: unistd::getsid(pid).ok()? };
    let ours = Band { group: unistd::getpgrp(), session: unistd::getsid(None).ok()? };
    theirs
        .holds_only_descendants(&ours, unistd::getpid())
        .then(|| Pid::from_raw(theirs.group.as_raw()))?
}

/// The group and the session of a process.
struct Band {
    group: unistd::Pid,
    session: unistd::Pid,
}

impl Band {
    /// A group never spans two sessions, so it is all ours if its session began with process `me` or
    /// below it.
    fn holds_only_descendants(&self, ours: &Band, me: unistd::Pid) -> bool {
        self.group != ours.group && (self.session != ours.session || ours.session == me)
    }
}

/// Children that the program does not wait for. They fall to it because a subreaper inherits the
/// orphans of all its descendants; without this they stay as zombies.
#[derive(Debug, Default)]
pub struct Strays {
    /// Had ended at the last look. A child that the program waits for is gone before the next one.
    seen: Vec<Pid>,
}

impl Strays {
    /// Reaps every child that had ended by the last call and still has not been waited for. To be
    /// called at intervals that are longer than the program takes to reap its own children, such as
    /// every second.
    pub fn reap(&mut self) {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = |pid: &Pid| matches!(waitid(WaitId::Pid(*pid), look), Ok(Some(_)));
        let (strays, fresh): (Vec<Pid>, Vec<Pid>) =
            children(getpid()).into_iter().filter(ended).partition(|pid| self.seen.contains(pid));
        for pid in strays {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        self.seen = fresh;
    }
}

/// Kills and reaps every process below this one that is not below a guardian at its post; false if
/// one was left after `within`.
pub(crate) fn end_all(within: Duration) -> bool {
    let begun = Instant::now();
    for looks in 1_u32.. {
        // Held during the look: a guardian that starts meanwhile must not be taken for an orphan.
        let guardians = guardians();
        kill_all(&guardians);
        let left = descendants(&guardians);
        drop(guardians);
        if left.is_empty() {
            return true;
        }
        for pid in left {
            // By number: the children of others must be reaped by the processes that wait for them.
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
    fn a_group_is_killed_only_if_its_session_began_here() {
        let band = |group, session| Band {
            group: unistd::Pid::from_raw(group),
            session: unistd::Pid::from_raw(session),
        };
        let ours_alone = |theirs: Band, ours: Band| {
            theirs.holds_only_descendants(&ours, unistd::Pid::from_raw(10))
        };
        assert!(ours_alone(band(12, 12), band(10, 5)), "a child's own session");
        assert!(ours_alone(band(12, 10), band(10, 10)), "a group in the session that we lead");
        assert!(!ours_alone(band(12, 5), band(10, 5)), "others of the session may have joined it");
        assert!(!ours_alone(band(10, 10), band(10, 10)), "our own group");
        // In a PID namespace whose session and group began outside.
        assert!(ours_alone(band(12, 12), band(0, 0)), "a child's own session");
        assert!(!ours_alone(band(12, 0), band(0, 0)), "others of the session may have joined it");
        assert!(!ours_alone(band(0, 0), band(0, 0)), "our own group");
    }

    #[test]
    fn both_ways_of_looking_find_a_child() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let pid = Pid::from_child(&child);
        assert!(descendants(&[]).contains(&pid));
        assert!(!descendants(&[pid]).contains(&pid));
        assert!(parents().contains(&(pid, getpid())));
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
