//! What the application and clients ask of the driver.

use super::caller::Caller;
use super::refusal::Refusal;
use super::{Driver, FromHost, Namespace, now};
use crate::commit::{Commit as _, CommitError, MemberChange};
use crate::engine::{Sealed, SubmitError};
use crate::history::{Hash, Record, TxId};
use crate::machine::StateMachine;
use crate::message::{MAX_HISTORY_BYTES, MAX_HISTORY_RECORDS, SNAPSHOT_PIECE};
use crate::net::link::Asker;
use crate::net::outbox::Outbox;
use crate::net::wire::{Answer, Ask, MAX_NAMESPACE};
use crate::storage::StoreError;

/// Transactions that are waited for, at most.
const MAX_WAITING: usize = 4_096;
/// Callers that wait for one transaction, at most.
const MAX_SAME: usize = 16;

impl<M: StateMachine> Driver<M> {
    pub(crate) fn handle_host(&mut self, input: FromHost<M>) -> Result<(), StoreError> {
        // A caller that no longer waits needs no answer.
        match input {
            FromHost::Submit { namespace, tx, goal, done } => {
                self.submit(&namespace, tx, goal, Caller::Local(done));
            }
            FromHost::Status(done) => drop(done.send(self.status())),
            FromHost::Machine(name, done) => {
                let machine = self.carried(&name).and_then(|ns| {
                    let machine = ns.engine.chain().machine().application().cloned();
                    machine.ok_or(Refusal::NoNamespace(name))
                });
                let _ = done.send(machine);
            }
            FromHost::Subscribe(name, done) => {
                drop(done.send(self.carried(&name).map(|ns| ns.events.subscribe())));
            }
            FromHost::Members(name, change, done) => {
                self.change_members(&name, change, Caller::Local(done));
            }
            FromHost::StepDown(name, done) => self.step_down(&name, Caller::Local(done)),
            FromHost::History(name, from, upto, done) => match self.oldest(&name, from) {
                Ok(()) => {
                    let store = self.store.clone();
                    self.runtime.spawn_blocking(move || {
                        let records = store.history(&name, from, upto, MAX_HISTORY_BYTES);
                        let _ = done.send(records.map_err(Refusal::unreadable));
                    });
                }
                Err(why) => drop(done.send(Err(why))),
            },
            FromHost::Stop(done) => self.stopping = Some(done),
        }
        Ok(())
    }

    pub(crate) fn ask(&mut self, asker: &Asker, ask: Ask, out: Outbox) -> Result<(), StoreError> {
        if let Err(why) = self.may_ask(&asker.id, &ask) {
            out.refuse(&why);
            return Ok(());
        }
        let reply = match ask {
            Ask::Redeem { id, proof } => {
                self.redeem(asker, id, proof, out);
                return Ok(());
            }
            Ask::Nodes => {
                let nodes = self.rights.borrow().nodes();
                Ok(Answer::Nodes(nodes.into_iter().collect()))
            }
            Ask::Submit { namespace, tx, goal } => {
                self.submit(&namespace, tx, goal, Caller::Client(out));
                return Ok(());
            }
            Ask::StepDown { namespace } => {
                self.step_down(&namespace, Caller::Client(out));
                return Ok(());
            }
            Ask::Watch { namespace, from } => match self.watch(&namespace, from, out.clone()) {
                Ok(()) => return Ok(()),
                Err(why) => Err(why),
            },
            Ask::Status => {
                Ok(Answer::Status(serde_json::to_string(&self.status()).unwrap_or_default()))
            }
            Ask::History { namespace, from, upto } => match self.oldest(&namespace, from) {
                Ok(()) => {
                    let upto = upto.min(from.saturating_add(MAX_HISTORY_RECORDS as u64 - 1));
                    let store = self.store.clone();
                    self.read_beside(asker.id, out, move || {
                        let records = store.history(&namespace, from, upto, MAX_HISTORY_BYTES);
                        records.map(Answer::Records).map_err(Refusal::unreadable)
                    });
                    return Ok(());
                }
                Err(why) => Err(why),
            },
            Ask::Read { namespace, question } => match self.carried(&namespace) {
                Ok(ns) => {
                    let chain = ns.engine.chain();
                    let (index, machine) = (chain.index(), chain.machine().clone());
                    self.read_beside(asker.id, out, move || {
                        let bytes = machine.query(&question).map_err(Refusal::Question)?;
                        Ok(Answer::State { index, bytes })
                    });
                    return Ok(());
                }
                Err(why) => Err(why),
            },
            Ask::Snapshot { namespace, offset } => match self.carried(&namespace) {
                Ok(ns) => {
                    let held = ns.engine.held().cloned();
                    self.read_beside(asker.id, out, move || Ok(piece(held, offset)));
                    return Ok(());
                }
                Err(why) => Err(why),
            },
            Ask::Members { namespace, change } => {
                self.change_members(&namespace, change, Caller::Client(out));
                return Ok(());
            }
        };
        let sent = match reply {
            Ok(answer) => out.answer(answer),
            Err(why) => out.refuse(&why),
        };
        if !sent {
            out.refuse(&Refusal::AnswerTooLarge);
        }
        Ok(())
    }

    pub(super) fn carried(&mut self, name: &str) -> Result<&mut Namespace<M>, Refusal> {
        self.namespaces.get_mut(name).ok_or_else(|| {
            // A client may have asked for anything: what is repeated to it is bounded.
            Refusal::NoNamespace(name.chars().take(MAX_NAMESPACE).collect())
        })
    }

    /// Refuses a history that begins before what this node has.
    fn oldest(&mut self, name: &str, from: u64) -> Result<(), Refusal> {
        let oldest = self.carried(name)?.engine.oldest();
        if from.max(1) < oldest { Err(Refusal::Forgotten(oldest)) } else { Ok(()) }
    }

    pub(super) fn submit(&mut self, name: &str, tx: TxId, goal: Vec<u8>, caller: Caller<Record>) {
        let ns = match self.carried(name) {
            Ok(ns) => ns,
            Err(why) => return caller.answer(Err(why)),
        };
        let same = ns.waiting.get_mut(&tx).map_or(0, |waiting| {
            waiting.retain(|w| !w.is_gone());
            waiting.len()
        });
        if ns.waiting.len() >= MAX_WAITING || same >= MAX_SAME {
            return caller.answer(Err(SubmitError::Busy.into()));
        }
        match ns.engine.submit(now(), tx, goal) {
            Ok(()) => ns.waiting.entry(tx).or_default().push(caller),
            Err(error) => caller.answer(Err(error.into())),
        }
    }

    fn change_members(&mut self, name: &str, change: MemberChange, caller: Caller<()>) {
        let at = now();
        let ns = match self.carried(name) {
            Ok(ns) => ns,
            Err(why) => return caller.answer(Err(why)),
        };
        match ns.engine.change_members(at, change) {
            Ok(()) => ns.changing.push((change, ns.engine.commit().status(at).term, caller)),
            Err(error) => caller.answer(Err(error.into())),
        }
    }

    /// Answers the callers whose change of the members is committed, or will not be by this node.
    pub(super) fn answer_changes(&mut self) {
        let at = now();
        for ns in self.namespaces.values_mut() {
            for (change, term, caller) in std::mem::take(&mut ns.changing) {
                match ns.engine.changed_members(at, term, &change) {
                    Some(result) => caller.answer(result.map_err(Refusal::from)),
                    None => ns.changing.push((change, term, caller)),
                }
            }
        }
    }

    /// Begins to give leadership up: no new act begins, acts in flight end within the lease (a gate
    /// admits no act that may take longer), and only then are the voters freed of their promise.
    fn step_down(&mut self, name: &str, caller: Caller<()>) {
        let at = now();
        let ns = match self.carried(name) {
            Ok(ns) => ns,
            Err(why) => return caller.answer(Err(why)),
        };
        if ns.engine.acting(at).is_none() {
            return caller.answer(Err(CommitError::NotLeader.into()));
        }
        if ns.engine.commit().status(at).members.deciding().len() < 2 {
            return caller.answer(Err(CommitError::Alone.into()));
        }
        ns.begin_leaving(at).push(caller);
    }
}

/// What a snapshot has from `offset` on.
fn piece(held: Option<Sealed>, offset: u64) -> Answer {
    let Some(held) = held else {
        let (index, hash, length, bytes) = (0, Hash::default(), 0, Vec::new());
        return Answer::Piece { index, hash, length, bytes };
    };
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(held.bytes.len());
    let bytes = held.bytes[from..(from + SNAPSHOT_PIECE).min(held.bytes.len())].to_vec();
    let length = held.bytes.len() as u64;
    Answer::Piece { index: held.index, hash: held.hash, length, bytes }
}
