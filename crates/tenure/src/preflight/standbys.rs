//! What the server's standbys mean for a failover.

use serde::Deserialize;

/// What the server shows of its standbys.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Standbys {
    user: String,
    /// `synchronous_standby_names`.
    pub(super) names: String,
    /// Whether the login role may see what others' sessions do.
    visible: bool,
    timeline: i64,
    /// Physical replication slots that no session uses.
    idle_slots: i64,
    /// Sessions that replicate, of whatever kind.
    senders: i64,
    /// Those of standbys that can be promoted: no backups, archives and logical subscribers.
    standbys: i64,
    /// Those of them that need not acknowledge a commit.
    lagging: i64,
    /// Those of them that acknowledge, and how many a commit waits for.
    acknowledge: i64,
    needed: i64,
}

impl Standbys {
    /// What weakens the promise, with a remedy.
    pub(super) fn danger(&self) -> Option<String> {
        let Standbys { user, names, standbys, lagging, acknowledge, needed, .. } = self;
        if !self.visible && (self.senders > 0 || !names.is_empty()) {
            return Some(format!(
                "whether standbys acknowledge commits cannot be told: the login role {user} may not see \
                 them; grant it pg_read_all_stats"
            ));
        }
        if names.is_empty() && *standbys > 0 {
            return Some(
                "standbys do not acknowledge commits: a promotion is safe only once the old primary is \
                 surely down; set synchronous_standby_names to every promotable standby"
                    .to_owned(),
            );
        }
        if names.is_empty() && (self.idle_slots > 0 || self.timeline > 1) {
            let evidence = if self.idle_slots > 0 {
                match self.idle_slots {
                    1 => "a replication slot waits for one".to_owned(),
                    slots => format!("{slots} replication slots wait for one"),
                }
            } else {
                format!("the server was promoted before (timeline {})", self.timeline)
            };
            return Some(format!(
                "no standby is connected and commits wait for none, but {evidence}: a standby that is \
                 promoted now lacks what was acknowledged; set synchronous_standby_names, or drop what is \
                 left of a cluster that is no more"
            ));
        }
        if !names.is_empty() && acknowledge < needed {
            return Some(format!(
                "no commit can finish: {acknowledge} of {needed} standbys that must acknowledge are \
                 connected; bring them back, or take them out of synchronous_standby_names"
            ));
        }
        (*lagging > 0).then(|| {
            format!(
                "{lagging} of {standbys} standbys need not acknowledge commits and must never be promoted \
                 while the old primary runs"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_whose_standbys_are_down_is_told_from_a_lone_server() {
        let lone = Standbys { visible: true, timeline: 1, ..Standbys::default() };
        assert_eq!(lone.danger(), None);
        let says = |seen: Standbys, words: &str| {
            let danger = seen.danger().unwrap_or_default();
            assert!(danger.contains(words), "{danger:?} does not say {words:?}");
        };
        let alone = || Standbys { visible: true, timeline: 1, ..Standbys::default() };
        says(Standbys { idle_slots: 1, ..alone() }, "a replication slot waits");
        says(Standbys { idle_slots: 2, ..alone() }, "2 replication slots wait");
        says(Standbys { timeline: 3, ..alone() }, "timeline 3");
        says(Standbys { senders: 2, standbys: 2, ..alone() }, "do not acknowledge");
        says(Standbys { senders: 1, visible: false, ..alone() }, "grant it pg_read_all_stats");
        let named = || Standbys { names: "s".to_owned(), needed: 1, ..alone() };
        says(named(), "no commit can finish");
        let one = || Standbys { senders: 1, standbys: 1, acknowledge: 1, ..named() };
        assert_eq!(one().danger(), None);
        // A backup, an archive or a logical subscriber beside it is no standby.
        assert_eq!(Standbys { senders: 3, ..one() }.danger(), None);
        says(Standbys { standbys: 2, lagging: 1, ..one() }, "1 of 2 standbys need not");
    }
}
