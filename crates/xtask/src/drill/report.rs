//! What a fault did, a row each, and the table of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};
use tenure_testkit::history::{self, Event};

use super::cluster::Setup;
use super::fault::Fault;

/// Two acts of one child lie closer together, also on a busy machine.
const GAP: Duration = Duration::from_millis(250);
/// Commits of a server that can commit lie closer together.
const STREAK: Duration = Duration::from_secs(3);
/// Lease and margin (3.55 s), a reconnect, and what a busy machine adds.
const BOUND: Duration = Duration::from_millis(5300);

pub(super) struct Row {
    setup: String,
    fault: String,
    promises: bool,
    /// Two epochs acted at once: what the checker of the test kit says.
    overlap: Option<String>,
    epochs: usize,
    without: Duration,
    after_commit: Duration,
}

impl Row {
    pub(super) fn of(
        setup: Setup,
        fault: Fault,
        acts: &[Event],
        commits: &BTreeMap<&str, Vec<u64>>,
    ) -> anyhow::Result<Self> {
        let checked = history::check(acts);
        let mut instants: Vec<u64> = acts.iter().map(|event| event.instant().at_ns).collect();
        instants.sort_unstable();
        let gaps = instants.windows(2).map(|two| (two[0], two[1]));
        let gaps: Vec<(u64, u64)> =
            gaps.filter(|(from, to)| to - from > GAP.as_nanos() as u64).collect();
        let epochs: std::collections::BTreeSet<u64> =
            acts.iter().map(|event| event.instant().epoch).collect();
        let longest = gaps.iter().map(|(from, to)| to - from).max().unwrap_or(0);
        let late = gaps.iter().map(|gap| after_commit(*gap, commits)).max().unwrap_or(0);
        Ok(Row {
            setup: setup.name().to_owned(),
            fault: fault.name(),
            promises: setup.promises(),
            overlap: checked.err().map(|violation| violation.to_string()),
            epochs: epochs.len(),
            without: Duration::from_nanos(longest),
            after_commit: Duration::from_nanos(late),
        })
    }

    /// Every promise was kept.
    pub(super) fn is_sound(&self) -> bool {
        self.overlap.is_none() && self.after_commit <= BOUND || !self.promises
    }

    pub(super) fn line(&self) -> String {
        let overlap = self.overlap.as_deref().unwrap_or("no overlap");
        format!(
            "  {:<32} {} epochs, without {:.1} s, after commit {:.2} s, {overlap}",
            self.fault,
            self.epochs,
            self.without.as_secs_f64(),
            self.after_commit.as_secs_f64()
        )
    }
}

/// How much of a time without acts a server could commit, without a break until its end.
fn after_commit((from, to): (u64, u64), commits: &BTreeMap<&str, Vec<u64>>) -> u64 {
    let streak = STREAK.as_nanos() as u64;
    let of_server = |all: &Vec<u64>| {
        let mut begun = None;
        let mut last: Option<u64> = None;
        for at in all.iter().copied().filter(|at| *at <= to) {
            if last.is_none_or(|last| at - last > streak) {
                begun = Some(at);
            }
            last = Some(at);
        }
        let goes_on = last.is_some_and(|last| to - last <= streak);
        begun.filter(|_| goes_on).map(|begun| to - begun.max(from))
    };
    commits.values().filter_map(of_server).max().unwrap_or(0)
}

/// The rows on file.
pub(super) struct Results {
    file: PathBuf,
    rows: Vec<Value>,
}

impl Results {
    pub(super) fn open(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let rows = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Results { file: file.to_owned(), rows })
    }

    pub(super) fn has(&self, setup: Setup, fault: Fault) -> bool {
        self.find(setup, fault).is_some()
    }

    /// The last one counts.
    fn find(&self, setup: Setup, fault: Fault) -> Option<&Value> {
        let fits = |row: &&Value| row["setup"] == setup.name() && row["fault"] == fault.name();
        self.rows.iter().rev().find(fits)
    }

    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let value = json!({
            "setup": row.setup, "fault": row.fault, "overlap": row.overlap, "epochs": row.epochs,
            "without_ms": row.without.as_millis() as u64,
            "after_commit_ms": row.after_commit.as_millis() as u64,
        });
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.file)?;
        writeln!(file, "{value}")?;
        self.rows.push(value);
        Ok(())
    }

    /// In Markdown: for each configuration overlap, seconds without an act, seconds after a commit.
    pub(super) fn table(&self) -> String {
        let seconds = |value: &Value| value.as_f64().unwrap_or(0.0) / 1000.0;
        let mut text = "| fault |".to_owned();
        for setup in Setup::value_variants() {
            let _ = write!(text, " {} |", setup.name());
        }
        text.push_str("\n|---|---|---|---|---|\n");
        for fault in Fault::value_variants() {
            let _ = write!(text, "| {} |", fault.name());
            for setup in Setup::value_variants() {
                let _ = match self.find(*setup, *fault) {
                    None => write!(text, " – |"),
                    Some(row) => write!(
                        text,
                        " {}{:.1} / {:.2} |",
                        if row["overlap"].is_null() { "" } else { "**overlap** " },
                        seconds(&row["without_ms"]),
                        seconds(&row["after_commit_ms"])
                    ),
                };
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn every_tenth(from: u64, to: u64) -> Vec<u64> {
        (from * 10..to * 10).map(|n| n * SECOND / 10).collect()
    }

    #[test]
    fn only_the_time_in_which_a_server_could_commit_counts() {
        let gap = (10 * SECOND, 30 * SECOND);
        let old = every_tenth(0, 11);
        let new = every_tenth(26, 40);
        let commits = BTreeMap::from([("n1", old.clone()), ("n2", new)]);
        assert_eq!(after_commit(gap, &commits), 4 * SECOND);
        assert_eq!(after_commit(gap, &BTreeMap::from([("n1", old)])), 0);
        let always = every_tenth(0, 40);
        assert_eq!(after_commit(gap, &BTreeMap::from([("n1", always)])), 20 * SECOND);
    }
}
