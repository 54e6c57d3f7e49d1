//! What a database may forget, and what a wrong one would do: for the simulation alone.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Tick;

use super::{Boot, Model, Tables};

/// How long a commit that nobody waits for may stay in memory: three rounds of the WAL writer.
const UNFLUSHED: Duration = Duration::from_millis(600);
/// How many commits a standby may be behind.
const LAG: usize = 24;

/// A mistake to make on purpose; the simulation must catch every one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bug {
    #[default]
    None,
    /// A claim leads at once, whatever the last leader's gate does.
    IgnoreTheDebt,
    /// A claimant that only waits becomes the debtor: if it dies, the wait of its successor is for
    /// the wrong gate.
    DebtMovesWithTheClaim,
    /// Restarts, crashes and failovers go unnoticed: clean releases outlive them.
    OneIncarnation,
    /// A member remembers beats that it saw on an earlier session.
    OldSightings,
    /// Epochs count on after a failover that lost some.
    OneGeneration,
    /// A failover begins the next generation, whichever timeline it leads to.
    NextGeneration,
    /// A term may be taken up again after a failover.
    KeepInAnyIncarnation,
    /// The `acting` write, which opens a gate, does not count as a beat.
    QuietAct,
}

struct Version {
    tables: Tables,
    at: Tick,
    durable: bool,
}

/// The last commits, the newest last.
#[derive(Default)]
pub struct Past {
    pub bug: Bug,
    /// Whether commits are remembered, so that they can be lost.
    pub keeps: bool,
    versions: VecDeque<Version>,
}

impl std::fmt::Debug for Past {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Past").field("bug", &self.bug).finish_non_exhaustive()
    }
}

impl Past {
    pub(super) fn commit(&mut self, tables: &Tables, durable: bool, at: Tick) {
        if !self.keeps {
            return;
        }
        if self.versions.len() > LAG {
            self.versions.pop_front();
        }
        self.versions.push_back(Version { tables: tables.clone(), at, durable });
    }

    /// Forgets up to `lose` commits, as far as `may` allows; at least one is left.
    fn back(&mut self, lose: usize, may: impl Fn(&Version) -> bool) -> Option<Tables> {
        for _ in 0..lose {
            if self.versions.len() > 1 && self.versions.back().is_some_and(&may) {
                self.versions.pop_back();
            }
        }
        self.versions.back().map(|version| version.tables.clone())
    }
}

impl Model {
    /// A crash, which loses up to `lose` commits that nobody waited for. With `postmaster` the
    /// server's start time is new; without it only a backend was killed.
    pub fn crash(&mut self, lose: usize, postmaster: bool, now: Tick) {
        let may =
            |version: &Version| !version.durable && now.saturating_since(version.at) < UNFLUSHED;
        if let Some(tables) = self.past.back(lose, may) {
            self.tables = tables;
        }
        self.boot.start += u64::from(postmaster);
        self.boot.mark += 1;
        self.end_all();
    }

    /// A standby that was up to `lose` commits behind is promoted.
    pub fn fail_over(&mut self, lose: usize) {
        if let Some(tables) = self.past.back(lose, |_| true) {
            self.tables = tables;
        }
        let Boot { timeline, start, mark } = self.boot;
        self.boot = Boot { timeline: timeline + 1, start: start + 1, mark: mark + 1 };
        self.end_all();
    }
}
