//! Which messages count. A link proves only that the sender is a node of the cluster; here it is decided
//! whether that node may say such a thing to this namespace, and whether it was asked.
//!
//! | message | counts if |
//! |---|---|
//! | answer of consensus | its sender is a member; for a vote, a voter that was asked for one |
//! | request of consensus | its term can follow from the term known here; and its sender is a voter, or no leader is heard here |
//! | append | also: no other node was heard to lead the same term |
//! | `transaction_processed` | this node does not get the log: a member learns what is committed from consensus alone |
//! | `ontology_history` | this node asked its sender (for history, or to decide a goal); and if this node is a member, so is its sender |
//! | offer of a snapshot | its sender leads or is a member; or it was asked for history by a node that is no member |
//!
//! A request of consensus may come from a node that is unknown here: a voter that was away for a change of
//! the members does not know the new leader, and must follow it. A node that hears its leader was not away:
//! there a stranger can neither lead, nor release, nor have the voters keep still for a lease that it made up.

use std::collections::BTreeMap;

use super::{Engine, Output};
use crate::commit::{Commit, CommitStatus, ConsensusMessage};
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::message::Message;
use tenure_core::Tick;

/// How far a term may be ahead of the one known here: an election a second for 136 years. A single message
/// must not use up the numbers.
const MAX_TERMS_AHEAD: u64 = 1 << 32;
/// Unanswered questions that are remembered for each peer.
const MAX_ASKED: u8 = 32;

/// The questions that may still be answered, by the peer that was asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked(BTreeMap<PeerId, u8>);

impl Asked {
    /// Notes what leaves this node.
    pub(super) fn note(&mut self, output: &Output) {
        if let Output::Send(to, Message::HistoryRequest { .. } | Message::Goal { .. }) = output {
            let open = self.0.entry(*to).or_default();
            *open = open.saturating_add(1).min(MAX_ASKED);
        }
    }

    fn has(&self, peer: &PeerId) -> bool {
        self.0.contains_key(peer)
    }

    /// Whether `peer` owes an answer; one less from now on.
    fn take(&mut self, peer: &PeerId) -> bool {
        let Some(open) = self.0.get_mut(peer) else { return false };
        *open -= 1;
        if *open == 0 {
            self.0.remove(peer);
        }
        true
    }
}

impl<M: StateMachine, C: Commit> Engine<M, C> {
    /// Whether `message` of `from` may change anything here.
    pub(super) fn counts(&mut self, now: Tick, from: PeerId, message: &Message) -> bool {
        let status = || self.commit.status(now);
        match message {
            Message::Consensus(message) => consensus_counts(&status(), &from, message),
            Message::Processed(_) => !self.attached(&status()),
            // A member has others to ask; a node that is none has to believe the nodes that it asks.
            Message::History { .. } => {
                let members = status().members;
                self.asked.take(&from) && (!members.contains(&self.me) || members.contains(&from))
            }
            Message::SnapshotOffer { .. } => {
                let status = status();
                let members = &status.members;
                members.voters.is_empty()
                    || members.contains(&from)
                    || status.leader == Some(from)
                    || (!members.contains(&self.me) && self.asked.has(&from))
            }
            // Their handlers ask for the rest: a vote is signed, a piece belongs to a fetch.
            Message::Spray(_)
            | Message::Vote(_)
            | Message::Goal { .. }
            | Message::HistoryRequest { .. }
            | Message::SnapshotRequest { .. }
            | Message::SnapshotPiece { .. }
            | Message::Enlist
            | Message::Expelled => true,
        }
    }
}

fn consensus_counts(status: &CommitStatus, from: &PeerId, message: &ConsensusMessage) -> bool {
    let members = &status.members;
    let (term, may) = match message {
        ConsensusMessage::Appended { term, .. } => (*term, members.contains(from)),
        ConsensusMessage::PreVoted { term, .. } | ConsensusMessage::Voted { term, .. } => {
            (*term, members.is_voter(from))
        }
        ConsensusMessage::Append { term, .. } | ConsensusMessage::Release { term, .. } => {
            let leads = status.leader == Some(*from);
            // One term has one leader.
            let other = status.leader.is_some() && !leads && *term == status.term;
            (*term, (leads || status.leader.is_none() || members.is_voter(from)) && !other)
        }
        ConsensusMessage::PreVote { term, .. } | ConsensusMessage::RequestVote { term, .. } => {
            (*term, status.leader.is_none() || members.is_voter(from))
        }
    };
    may && term <= status.term.saturating_add(MAX_TERMS_AHEAD)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::engine::{EngineConfig, Event, Found};
    use crate::history::{Chain, TxId};
    use crate::identity::{Ed25519Keys, Keys as _};
    use crate::kv::{Kv, KvGoal};

    const START: Tick = Tick::ZERO;

    /// A node that founded its namespace with `others`.
    fn founder(others: &[PeerId]) -> Engine<Kv> {
        let keys = Ed25519Keys::generate();
        let voters: BTreeSet<_> = others.iter().copied().chain([keys.id()]).collect();
        let config = EngineConfig::default();
        let found = Found { incarnation: 1, ..Found::default() };
        let mut engine = Engine::open(Box::new(keys), "main", config, found, START, 1).unwrap();
        engine.bootstrap(START, &voters).unwrap();
        engine
    }

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn append(term: u64, lease: u32) -> Message {
        let after = crate::commit::Position { term: 0, index: 1 };
        let (commit, entries, beat, number) = (0, Vec::new(), 1, 1);
        let append = ConsensusMessage::Append { term, commit, after, entries, beat, number, lease };
        Message::Consensus(append)
    }

    fn record() -> crate::history::Record {
        let goal = KvGoal::Put { key: "forged".into(), value: 1.into() }.to_bytes();
        Chain::<Kv>::default().execute(1, peer(9), TxId([1; 16]), goal)
    }

    #[test]
    fn no_answer_uses_up_the_terms_and_none_of_a_stranger_or_that_was_not_asked_for_counts() {
        let (voter, leader) = (peer(1), peer(2));
        let mut engine = founder(&[voter, leader]);
        // Another leads the next term: this node has asked for nothing in it.
        let term = engine.commit().status(START).term + 1;
        engine.handle_message(START, leader, append(term, 1_000));
        let before = engine.commit().status(START).term;
        assert_eq!(before, term);
        for (from, term) in
            [(voter, 1 << 60), (voter, before + 1 + (1 << 32)), (peer(7), 50), (voter, before + 9)]
        {
            for message in [
                ConsensusMessage::PreVoted { term, granted: false },
                ConsensusMessage::Voted { term, granted: false },
            ] {
                engine.handle_message(START, from, Message::Consensus(message));
            }
            assert_eq!(engine.commit().status(START).term, before, "{from} {term}");
        }
        // It hears no leader any more, and asks: now an answer counts.
        let later = START + Duration::from_secs(10);
        engine.handle_timeout(later);
        let honest = ConsensusMessage::PreVoted { term: before + 9, granted: false };
        engine.handle_message(later, voter, Message::Consensus(honest));
        assert_eq!(engine.commit().status(later).term, before + 9, "a voter is believed");
    }

    #[test]
    fn a_stranger_and_a_second_leader_of_a_term_cannot_make_a_voter_keep_still() {
        let (leader, voter) = (peer(1), peer(2));
        let mut engine = founder(&[leader, voter]);
        let term = engine.commit().status(START).term + 5;
        engine.handle_message(START, leader, append(term, 1_000));
        assert_eq!(engine.commit().status(START).leader, Some(leader));
        // Neither a node that is no voter, in a later term, nor a voter that did not win this one.
        engine.handle_message(START, peer(7), append(term + 1, u32::MAX));
        engine.handle_message(START, voter, append(term, u32::MAX));
        assert_eq!(engine.commit().status(START).leader, Some(leader));
        assert_eq!(engine.commit().status(START).term, term);
        // The promise is that of the leader: two seconds later this voter gives its vote away.
        let later = START + Duration::from_secs(2);
        while engine.poll_output().is_some() {}
        let last = crate::commit::Position { term, index: 9 };
        let ask = ConsensusMessage::RequestVote { term: term + 1, last };
        engine.handle_message(later, voter, Message::Consensus(ask));
        let voted = std::iter::from_fn(|| engine.poll_output()).any(|output| {
            let yes = ConsensusMessage::Voted { term: term + 1, granted: true };
            output == Output::Send(voter, Message::Consensus(yes))
        });
        assert!(voted);
    }

    #[test]
    fn a_candidate_names_no_leader_and_follows_the_winner_of_its_term_at_once() {
        let (former, winner) = (peer(1), peer(2));
        let mut engine = founder(&[former, winner]);
        let term = engine.commit().status(START).term + 5;
        engine.handle_message(START, former, append(term, 1_000));
        assert_eq!(engine.leader(), Some(former));
        // Its turn comes while the word of the former leader is not old yet, and one voter would vote for it.
        let mut now = START;
        while !std::iter::from_fn(|| engine.poll_output()).any(|output| {
            matches!(output, Output::Send(_, Message::Consensus(ConsensusMessage::PreVote { .. })))
        }) {
            now = engine.poll_timeout();
            engine.handle_timeout(now);
        }
        assert!(now < START + Duration::from_millis(1_800), "its turn is soon after the promise");
        let yes = ConsensusMessage::PreVoted { term: term + 1, granted: true };
        engine.handle_message(now, winner, Message::Consensus(yes));
        let status = engine.commit().status(now);
        assert_eq!((status.term, status.leader), (term + 1, None), "it stands, and leads nothing");
        engine.handle_message(now, winner, append(term + 1, 1_000));
        assert_eq!(engine.commit().status(now).leader, Some(winner));
    }

    #[test]
    fn a_member_takes_records_from_members_alone_and_no_history_that_it_did_not_ask_for() {
        let (member, other) = (peer(1), peer(7));
        let mut engine = founder(&[member, peer(2)]);
        let now = START + Duration::from_secs(3);
        engine.handle_message(now, peer(2), append(5, 1_000));
        engine.handle_message(now, other, Message::Processed(record()));
        assert_eq!(engine.chain().index(), 0);
        let history = || Message::History { records: vec![record()], last: 1 };
        engine.handle_message(now, member, history());
        assert_eq!(engine.chain().index(), 0, "it was not asked");
        for peer in [other, member] {
            let ask = Message::HistoryRequest { from: 1, upto: 1 };
            engine.asked.note(&Output::Send(peer, ask));
        }
        let hash = crate::history::Hash::default();
        let offer = Message::SnapshotOffer { index: 9, log: 9, length: 9, hash };
        assert!(!engine.counts(now, other, &offer) && engine.counts(now, member, &offer));
        engine.handle_message(now, other, history());
        assert_eq!(engine.chain().index(), 0, "an observer may lie");
        engine.handle_message(now, member, history());
        assert_eq!(engine.chain().index(), 1, "a member that was asked counts");
        assert!(!engine.asked.has(&member), "once");
    }

    #[test]
    fn a_member_asks_members_alone_for_history() {
        // Fewer than it would ask: what others answer is thrown away.
        let others = [peer(1), peer(2)];
        let mut engine = founder(&others);
        (10..40).for_each(|n| engine.learn(peer(n)));
        while engine.poll_output().is_some() {}
        engine.request_history(START, 3);
        let asked = std::iter::from_fn(|| engine.poll_output()).filter_map(|output| match output {
            Output::Send(to, Message::HistoryRequest { .. }) => Some(to),
            _ => None,
        });
        assert_eq!(asked.collect::<BTreeSet<_>>(), BTreeSet::from(others));
    }

    #[test]
    fn a_node_whose_members_are_all_gone_says_that_it_is_stranded_until_one_answers() {
        let member = peer(1);
        let mut engine = founder(&[member, peer(2)]);
        (10..20).for_each(|n| engine.learn(peer(n)));
        let (mut now, mut told) = (START, 0);
        let mut wait = |engine: &mut Engine<Kv>, seconds: u64| {
            let until = now + Duration::from_secs(seconds);
            while now < until {
                now = now + Duration::from_millis(100);
                engine.handle_timeout(now);
                // What a node that is no member says is no answer.
                engine.handle_message(
                    now,
                    peer(10),
                    Message::History { records: Vec::new(), last: 9 },
                );
                let outputs = std::iter::from_fn(|| engine.poll_output());
                told += outputs.filter(|one| *one == Output::Event(Event::Stranded)).count();
            }
            (now, told)
        };
        let (_, told) = wait(&mut engine, 29);
        assert!(!engine.is_stranded() && told == 0, "a while is nothing");
        let (now, told) = wait(&mut engine, 10);
        assert!(engine.is_stranded() && told == 1, "told once");
        engine.asked.note(&Output::Send(member, Message::HistoryRequest { from: 1, upto: 1 }));
        engine.handle_message(now, member, Message::History { records: Vec::new(), last: 0 });
        wait(&mut engine, 1);
        assert!(!engine.is_stranded());
    }

    #[test]
    fn a_node_that_was_suspended_is_not_stranded_before_a_member_could_answer() {
        let mut engine = founder(&[peer(1), peer(2)]);
        let at = |second: u64| START + Duration::from_secs(second);
        let run = |engine: &mut Engine<Kv>, from: u64, to: u64| {
            let mut now = at(from);
            while now < at(to) {
                now = engine.poll_timeout().min(at(to));
                engine.handle_timeout(now);
                while engine.poll_output().is_some() {}
            }
        };
        run(&mut engine, 0, 1);
        engine.handle_timeout(at(3601));
        assert!(!engine.is_stranded(), "it woke up just now");
        run(&mut engine, 3601, 3629);
        assert!(!engine.is_stranded(), "a while is nothing");
        run(&mut engine, 3629, 3632);
        assert!(engine.is_stranded());
        engine.handle_timeout(at(7200));
        assert!(engine.is_stranded(), "it was before it was suspended");
    }

    #[test]
    fn the_longest_lease_is_forgotten_when_its_last_promise_has_ended() {
        let leader = peer(1);
        let mut engine = founder(&[leader, peer(2)]);
        let mut lease = None;
        let mut hear = |at: u64, term: u64, ms: u32| {
            let now = START + Duration::from_secs(at);
            engine.handle_message(now, leader, append(term, ms));
            for output in std::iter::from_fn(|| engine.poll_output()) {
                if let Output::Persist(crate::engine::Write::Commit(
                    crate::commit::CommitWrite::Hard(hard),
                )) = output
                {
                    lease = Some(hard.lease);
                }
            }
            lease
        };
        assert_eq!(hear(1, 5, 20_000), Some(Duration::from_secs(20)));
        // A shorter one of the next leader: the promise of the longer one may still be relied on.
        assert_eq!(hear(10, 6, 1_000), Some(Duration::from_secs(20)));
        assert_eq!(hear(30, 6, 1_000), Some(Duration::from_secs(1)), "21.2 s are over");
    }
}
