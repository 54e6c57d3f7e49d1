//! What the application and clients ask of the driver.

use tokio::sync::oneshot;

use super::{Driver, FromHost, Waiter, now};
use crate::commit::{Commit as _, CommitError, MemberChange};
use crate::engine::SubmitError;
use crate::history::TxId;
use crate::machine::StateMachine;
use crate::message::{MAX_HISTORY_BYTES, MAX_HISTORY_RECORDS};
use crate::net::outbox::Outbox;
use crate::net::wire::{Answer, Ask, MAX_NAMESPACE};
use crate::storage::StoreError;

/// Transactions that are waited for, and watchers, at most.
const MAX_WAITING: usize = 4_096;
/// Callers that wait for one transaction, at most.
const MAX_SAME: usize = 16;

/// Who hears that leadership was given up.
pub(crate) enum Told {
    Local(oneshot::Sender<Result<(), CommitError>>),
    Client(Outbox),
}

impl Told {
    pub(crate) fn tell(self, result: Result<(), CommitError>) {
        // Whoever no longer waits does not need to be told.
        match (self, result) {
            (Self::Local(done), result) => drop(done.send(result)),
            (Self::Client(out), Ok(())) => drop(out.answer(Answer::Done)),
            (Self::Client(out), Err(e)) => drop(out.answer(Answer::Refused(e.to_string()))),
        }
    }
}

impl<M: StateMachine> Driver<M> {
    pub(crate) fn hear_host(&mut self, input: FromHost<M>) -> Result<(), StoreError> {
        // An answer nobody waits for any more is not needed.
        match input {
            FromHost::Submit { namespace, tx, goal, done } => {
                self.submit(&namespace, tx, goal, Waiter::Local(done));
            }
            FromHost::Status(done) => drop(done.send(self.status())),
            FromHost::Machine(name, done) => {
                let machine =
                    self.namespaces.get(&name).map(|ns| ns.engine.chain().machine().clone());
                drop(done.send(machine));
            }
            FromHost::Subscribe(name, done) => {
                drop(done.send(self.namespaces.get(&name).map(|ns| ns.events.subscribe())));
            }
            FromHost::Members(name, change, done) => {
                let _ = done.send(self.change_members(&name, change));
            }
            FromHost::StepDown(name, done) => self.step_down(&name, Told::Local(done)),
            FromHost::History(name, from, upto, done) => {
                drop(done.send(self.store.history(&name, from, upto, MAX_HISTORY_BYTES)?));
            }
            FromHost::Stop(done) => self.stopping = Some(done),
        }
        Ok(())
    }

    pub(crate) fn ask(&mut self, ask: Ask, out: Outbox) -> Result<(), StoreError> {
        let unknown = |name: &str| {
            let shown: String = name.chars().take(MAX_NAMESPACE).collect();
            Answer::Refused(format!("this node carries no namespace {shown:?}"))
        };
        let reply = match ask {
            Ask::Submit { namespace, tx, goal } => {
                self.submit(&namespace, tx, goal, Waiter::Client(out));
                return Ok(());
            }
            Ask::Status => {
                Answer::Status(serde_json::to_string(&self.status()).unwrap_or_default())
            }
            Ask::History { namespace, from, upto } => {
                let upto = upto.min(from.saturating_add(MAX_HISTORY_RECORDS as u64 - 1));
                match self.namespaces.contains_key(&namespace) {
                    true => Answer::Records(self.store.history(
                        &namespace,
                        from,
                        upto,
                        MAX_HISTORY_BYTES,
                    )?),
                    false => unknown(&namespace),
                }
            }
            Ask::Watch { namespace } => match self.namespaces.get_mut(&namespace) {
                Some(ns) => {
                    ns.watchers.retain(|w| !w.is_closed());
                    if ns.watchers.len() < MAX_WAITING {
                        ns.watchers.push(out);
                        return Ok(());
                    }
                    Answer::Refused("too many watch this node already; watch another".to_owned())
                }
                None => unknown(&namespace),
            },
            Ask::Read { namespace, question } => match self.namespaces.get(&namespace) {
                Some(ns) => {
                    let chain = ns.engine.chain();
                    match chain.machine().query(&question) {
                        Ok(bytes) => Answer::State { index: chain.index(), bytes },
                        Err(why) => Answer::Refused(why),
                    }
                }
                None => unknown(&namespace),
            },
            Ask::Members { namespace, change } => match self.change_members(&namespace, change) {
                Ok(()) => Answer::Done,
                Err(e) => Answer::Refused(e.to_string()),
            },
            Ask::StepDown { namespace } => {
                self.step_down(&namespace, Told::Client(out));
                return Ok(());
            }
        };
        if !out.answer(reply) {
            out.answer(Answer::Refused("the answer does not fit; ask for less".to_owned()));
        }
        Ok(())
    }

    fn submit(&mut self, name: &str, tx: TxId, goal: Vec<u8>, waiter: Waiter) {
        let Some(ns) = self.namespaces.get_mut(name) else {
            return waiter.tell(Err(format!("this node carries no namespace {name:?}")));
        };
        let same = ns.waiting.get_mut(&tx).map_or(0, |waiting| {
            waiting.retain(|w| !w.is_gone());
            waiting.len()
        });
        if ns.waiting.len() >= MAX_WAITING || same >= MAX_SAME {
            return waiter.tell(Err(SubmitError::Busy.to_string()));
        }
        match ns.engine.submit(now(), tx, goal) {
            Ok(()) => ns.waiting.entry(tx).or_default().push(waiter),
            Err(e) => waiter.tell(Err(e.to_string())),
        }
    }

    fn change_members(&mut self, name: &str, change: MemberChange) -> Result<(), CommitError> {
        let ns = self.namespaces.get_mut(name).ok_or(CommitError::NotLeader)?;
        ns.engine.change_members(now(), change)
    }

    /// Begins to give leadership up: no new act begins, those in flight end within the lease (a gate
    /// admits none that may take longer), and only then are the voters freed of their promise.
    fn step_down(&mut self, name: &str, told: Told) {
        let at = now();
        let Some(ns) = self.namespaces.get_mut(name) else {
            return told.tell(Err(CommitError::NotLeader));
        };
        if ns.engine.acting(at).is_none() {
            return told.tell(Err(CommitError::NotLeader));
        }
        if ns.engine.commit().status(at).members.deciding().len() < 2 {
            return told.tell(Err(CommitError::Pointless));
        }
        ns.begin_leaving(at).push(told);
    }
}
