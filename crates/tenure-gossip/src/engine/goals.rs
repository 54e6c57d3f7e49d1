//! Goals: from the caller to the leader, again and again, until the history has them.

use std::collections::BTreeMap;

use super::{Command, Engine, Event, Output, SubmitError};
use crate::commit::Commit;
use crate::history::TxId;
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::message::{MAX_GOAL, Message};
use tenure_core::Tick;

/// How many nodes may pass a goal on.
const HOPS: u8 = 3;

/// Bytes of goals that are parked, at most; their origins send what does not fit again.
const MAX_PARKED: usize = 4 << 20;

/// Goals of other nodes that arrived while no leader was known here.
#[derive(Debug, Default)]
pub(super) struct Parked {
    goals: BTreeMap<TxId, (Tick, Vec<u8>, u8)>,
    bytes: usize,
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.goals.is_empty()
    }

    /// Keeps a goal until `until`: by then its origin has sent it again.
    fn put(&mut self, until: Tick, tx: TxId, goal: Vec<u8>, hops: u8) {
        if self.bytes + goal.len() <= MAX_PARKED && !self.goals.contains_key(&tx) {
            self.bytes += goal.len() + 64;
            self.goals.insert(tx, (until, goal, hops));
        }
    }

    /// Everything that is not too old.
    fn take(&mut self, now: Tick) -> Vec<(TxId, Vec<u8>, u8)> {
        self.bytes = 0;
        let fresh = std::mem::take(&mut self.goals).into_iter();
        fresh.filter(|(_, (until, ..))| now < *until).map(|(tx, (_, g, h))| (tx, g, h)).collect()
    }
}

/// A goal that waits here for its record.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) goal: Vec<u8>,
    /// When the goal timeout runs out.
    pub(super) deadline: Tick,
    /// When it is sent again.
    pub(super) retry: Tick,
}

impl<M: StateMachine, C: Commit> Engine<M, C> {
    /// Takes a goal from a caller. Its record will come as [`Output::Processed`], or has been
    /// decided before: [`Output::Known`]. A retry with the same `tx` is safe at any time, on any node.
    ///
    /// # Errors
    /// See [`SubmitError`]; the goal was not taken.
    pub fn submit(&mut self, now: Tick, tx: TxId, goal: Vec<u8>) -> Result<(), SubmitError> {
        if self.halted.is_some() {
            return Err(SubmitError::Halted);
        }
        if goal.len() > MAX_GOAL {
            return Err(SubmitError::TooLarge);
        }
        let same = match self.pending.get(&tx) {
            Some(waiting) => Some(waiting.goal == goal),
            None => self.chain.is_goal_of(&tx, &goal),
        };
        if same == Some(false) {
            return Err(SubmitError::OtherGoal);
        }
        if let Some(index) = self.chain.find(&tx) {
            self.out.push_back(Output::Known(tx, index));
            return Ok(());
        }
        if self.pending.len() >= self.config.max_pending && !self.pending.contains_key(&tx) {
            return Err(SubmitError::Busy);
        }
        let deadline = now + self.config.goal_timeout;
        let retry = now + self.config.goal_retry;
        self.pending.insert(tx, Pending { goal: goal.clone(), deadline, retry });
        self.route(now, tx, goal, HOPS);
        self.settle(now);
        Ok(())
    }

    pub(super) fn goal_arrived(
        &mut self,
        now: Tick,
        from: PeerId,
        tx: TxId,
        goal: Vec<u8>,
        hops: u8,
    ) {
        if let Some(index) = self.chain.find(&tx) {
            // The node that asks has not heard of the record yet.
            self.out.push_back(Output::ReadHistory { to: from, from: index, upto: index });
        } else {
            self.route(now, tx, goal, hops.min(HOPS));
        }
    }

    /// Executes the goal if this node leads, sends it towards the leader otherwise.
    fn route(&mut self, now: Tick, tx: TxId, goal: Vec<u8>, hops: u8) {
        if self.commit.status(now).acting_until.is_some() {
            self.execute(now, tx, goal);
        } else if let Some(leader) = self.leader.filter(|l| *l != self.me)
            && hops > 0
        {
            self.out.push_back(Output::Send(leader, Message::Goal { tx, goal, hops: hops - 1 }));
        } else if !self.pending.contains_key(&tx) {
            // A goal may be faster than the news of the election that sent it here.
            self.parked.put(now + self.config.goal_retry, tx, goal, hops);
        }
    }

    /// Sends on what arrived here before this node or another one acted.
    pub(super) fn unpark(&mut self, now: Tick) {
        for (tx, goal, hops) in self.parked.take(now) {
            if self.chain.find(&tx).is_none() {
                self.route(now, tx, goal, hops);
            }
        }
    }

    fn execute(&mut self, now: Tick, tx: TxId, goal: Vec<u8>) {
        let Some(lead) = &mut self.lead else { return };
        if lead.ahead.find(&tx).is_some() || lead.in_flight >= self.config.max_in_flight {
            return;
        }
        let record = lead.ahead.execute(lead.term, self.me, tx, goal);
        if lead.ahead.apply(&record).is_err() {
            // The machine refused its own diff: it is broken, and no goal of it can be trusted.
            let why = format!("the state machine refused the diff it made for {tx}");
            self.halt(why);
            return;
        }
        lead.in_flight += 1;
        if self.commit.propose(now, Command::Record(record).to_bytes()).is_err() {
            self.lead = None;
        }
    }

    /// The leader changed: what waits here goes to the new one, with its time-out set anew.
    pub(super) fn reroute_all(&mut self, now: Tick) {
        let all: Vec<_> = self.pending.iter().map(|(t, p)| (*t, p.goal.clone())).collect();
        if !all.is_empty() {
            tracing::warn!(node = %self.me, leader = ?self.leader, goals = all.len(), "leader changed during transactions");
        }
        for (tx, goal) in all {
            if let Some(p) = self.pending.get_mut(&tx) {
                p.deadline = now + self.config.goal_timeout;
                p.retry = now + self.config.goal_retry;
            }
            self.route(now, tx, goal, HOPS);
        }
    }

    pub(super) fn tick_goals(&mut self, now: Tick) {
        let mut late = Vec::new();
        let mut again = Vec::new();
        for (tx, p) in &mut self.pending {
            if p.deadline <= now {
                p.deadline = now + self.config.goal_timeout;
                late.push(*tx);
            }
            if p.retry <= now {
                p.retry = now + self.config.goal_retry;
                again.push((*tx, p.goal.clone()));
            }
        }
        for tx in &late {
            self.out.push_back(Output::Event(Event::GoalTimedOut(*tx)));
        }
        if !late.is_empty() {
            // The index stays where it is: what is missing is fetched, never skipped.
            self.request_history(now, 3);
        }
        for (tx, goal) in again {
            // Perhaps only the line to the leader is cut: a neighbour passes it on. It commits once.
            let relay = self.gossip.sample(1).first().copied().filter(|p| Some(*p) != self.leader);
            if let Some(relay) = relay.filter(|_| self.leader != Some(self.me)) {
                let goal = goal.clone();
                self.out.push_back(Output::Send(relay, Message::Goal { tx, goal, hops: HOPS - 1 }));
            }
            self.route(now, tx, goal, HOPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::commit::{ConsensusMessage, EntryKind};
    use crate::engine::{EngineConfig, Found};
    use crate::identity::{Ed25519Keys, Keys as _};
    use crate::kv::{Kv, KvGoal};

    /// Everything that goes to `to`, in order.
    fn sent(engine: &mut Engine<Kv>, to: PeerId) -> Vec<ConsensusMessage> {
        let outputs = std::iter::from_fn(|| engine.poll_output());
        let of = |output| {
            let Output::Send(peer, Message::Consensus(message)) = output else { return None };
            (peer == to).then_some(message)
        };
        outputs.filter_map(of).collect()
    }

    #[test]
    fn a_goal_that_reaches_the_leader_before_it_acts_is_proposed_as_soon_as_it_acts() {
        let (voter, origin) = (PeerId([1; 32]), PeerId([2; 32]));
        let keys = Ed25519Keys::generate();
        let voters = BTreeSet::from([keys.id(), voter, origin]);
        let (config, found) = (EngineConfig::default(), Found::default());
        let start = Tick::ZERO;
        let mut engine =
            Engine::<Kv>::open(Box::new(keys), "main", config, found, start, 1).unwrap();
        engine.bootstrap(start, &voters).unwrap();
        let asked = sent(&mut engine, voter);
        let Some(ConsensusMessage::RequestVote { term, .. }) = asked.first().cloned() else {
            panic!("{asked:?}");
        };
        let now = start + Duration::from_millis(10);
        let yes = ConsensusMessage::Voted { term, granted: true };
        engine.handle_message(now, voter, Message::Consensus(yes));
        let appends = sent(&mut engine, voter);
        assert!(engine.acting(now).is_none(), "its first entry is not committed");

        let goal = KvGoal::Increment { key: "n".into(), by: 1 }.to_bytes();
        let (tx, hops) = (TxId([7; 16]), 2);
        engine.handle_message(now, origin, Message::Goal { tx, goal, hops });
        assert!(sent(&mut engine, voter).is_empty(), "it may not decide yet");

        let Some(ConsensusMessage::Append { after, entries, beat, number, .. }) =
            appends.last().cloned()
        else {
            panic!("{appends:?}");
        };
        let last = entries.last().map_or(after, |entry| entry.position);
        let echo = ConsensusMessage::Appended { term, last, beat, number };
        engine.handle_message(now, voter, Message::Consensus(echo));
        assert!(engine.acting(now).is_some());
        let proposed = sent(&mut engine, voter).into_iter().any(|message| {
            let ConsensusMessage::Append { entries, .. } = message else { return false };
            entries.iter().any(|entry| matches!(entry.kind, EntryKind::Command(_)))
        });
        assert!(proposed, "the goal was dropped, and comes back with the next retry of its origin");
    }
}
