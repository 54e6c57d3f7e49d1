//! One nonce of the account, from reservation to its end.

use std::time::Duration;

use tenure_core::clock::Tick;

use super::{Attempt, Effect, EngineConfig, OpenTransaction, Permit, Request};
use crate::chain::{Head, Receipt};
use crate::status::{End, EndKind, Hash, Note, State, TransactionStatus};

/// What an entry waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The signer and the store.
    Building,
    /// The node's answer.
    Submitting,
    /// What the watch reports next.
    Watching,
    /// A time, after which it is examined.
    Waiting { until: Tick },
    /// The chain's answer: which transaction used the nonce.
    Locating,
}

/// What keeps an entry from the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// The node's last answer says nothing for certain.
    Uncertain,
    /// The account cannot pay.
    Unfunded,
}

/// How long a nonce has been used by a transaction that is none of ours. A look that found nothing and
/// a look that found another are different proofs: one is never counted as the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// When nothing was first found although the head says that the nonce is final, and the final
    /// block then.
    since: Option<(Tick, u64)>,
    /// How many answers said so since.
    answers: u32,
    /// How many answers in a row named another transaction.
    sights: u32,
}

/// The end of a request one of whose forms is in a final block: the form decides, whatever was ordered
/// since.
pub(super) fn end_in_block(
    attempts: &[Attempt],
    hash: Hash,
    block: Hash,
    receipt: &Receipt,
) -> End {
    let form = attempts.iter().find(|attempt| attempt.hash == hash);
    let end = match form.filter(|form| form.noop).map(|form| form.permit) {
        None if receipt.success == Some(false) => {
            End { reason: receipt.reason.clone(), ..End::new(EndKind::Reverted) }
        }
        None if receipt.success.is_none() => {
            End::new(EndKind::Included).because("the node does not say whether the call succeeded")
        }
        None => End::new(EndKind::Executed),
        Some(Some(Permit::Deadline)) => {
            End::new(EndKind::Expired).because("its deadline passed; a no-op has its nonce")
        }
        Some(Some(Permit::Gap)) => End::new(EndKind::Replaced).because("nothing used the nonce"),
        Some(Some(Permit::Drop) | None) => {
            End::new(EndKind::Replaced).because("dropped by order; a no-op has its nonce")
        }
    };
    let (block_number, fee) = (receipt.number, receipt.fee);
    End { hash: Some(hash), block: Some(block), block_number, fee, ..end }
}

#[derive(Debug)]
pub(super) struct Entry {
    /// The request's id; `None` for a no-op that fills a gap.
    pub(super) request: Option<String>,
    /// Signed forms, the current one last; empty until the first is stored.
    pub(super) attempts: Vec<Attempt>,
    pub(super) status: TransactionStatus,
    pub(super) phase: Phase,
    /// A no-op takes the request's place, by this permit. Nothing else permits one.
    pub(super) noop: Option<Permit>,
    /// Its content can be signed anew.
    pub(super) resignable: bool,
    /// When the request is given up.
    pub(super) deadline: Option<Tick>,
    /// Some node may hold some form of it. Once true, true for good.
    pub(super) may_live: bool,
    /// The current bytes will not be taken as they are: sign anew before sending again.
    pub(super) stale: bool,
    pub(super) hold: Option<Hold>,
    /// A node said that the account cannot pay for it, and none has taken it since: only a pool that takes
    /// it, or a block, proves the contrary. That a pool knows it, is full or does not answer proves nothing.
    pub(super) unpaid: bool,
    /// Its newest form offers less than the chain asked for when it was signed: a cap keeps it down.
    capped: bool,
    /// When it was last to be signed anew, it would have cost more than the account pays.
    pub(super) too_dear: bool,
    /// The node called the nonce used when it last was sent the bytes; the chain is being asked.
    pub(super) outdated: bool,
    /// Consecutive waits, for the back-off.
    pub(super) tries: u32,
    pub(super) refusals: u32,
    pub(super) replacements: u32,
    /// When it was last replaced, and the best block then.
    replaced: Option<(Tick, u64)>,
    pub(super) missing: Option<Missing>,
    /// What the status and the note were when they were last recorded.
    note: Note,
    /// The tip of the next build.
    tip: u128,
    /// Last progress.
    since: Tick,
    /// What the last head said of its nonce.
    step: Step,
}

/// What a head says of a nonce that waits: whether it is passed, final, or taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Step {
    passed: bool,
    settled: bool,
    retracted: bool,
}

impl Entry {
    /// Of a caller's request.
    pub(super) fn requested(request: Request) -> Self {
        let Request { id, tip, resignable, deadline, nonce: _ } = request;
        Entry { request: Some(id), resignable, deadline, noop: None, ..Self::filler(tip) }
    }

    /// A no-op at a nonce that nothing uses.
    pub(super) fn filler(tip: u128) -> Self {
        Entry {
            request: None,
            attempts: Vec::new(),
            status: TransactionStatus::Future,
            phase: Phase::Building,
            noop: Some(Permit::Gap),
            deadline: None,
            resignable: true,
            may_live: false,
            stale: false,
            hold: None,
            unpaid: false,
            capped: false,
            too_dear: false,
            outdated: false,
            tries: 0,
            refusals: 0,
            replacements: 0,
            replaced: None,
            missing: None,
            note: Note::default(),
            tip,
            since: Tick::ZERO,
            step: Step::default(),
        }
    }

    /// Of a row: the leader that wrote it may have sent it.
    pub(super) fn recovered(row: OpenTransaction, now: Tick) -> Self {
        let last = row.attempts.last();
        let tip = last.map_or(0, |a| a.tip);
        let stored = last.filter(|a| a.noop).map(|a| a.permit.unwrap_or(Permit::Drop));
        Entry {
            request: Some(row.request),
            noop: stored.or(row.dropped.then_some(Permit::Drop)),
            deadline: row.deadline,
            replacements: u32::try_from(row.attempts.len().saturating_sub(1)).unwrap_or(u32::MAX),
            attempts: row.attempts,
            status: row.status,
            phase: Phase::Waiting { until: now },
            resignable: row.resignable,
            may_live: true,
            since: now,
            ..Self::filler(tip)
        }
    }

    pub(super) fn current(&self) -> Option<Hash> {
        self.attempts.last().map(|a| a.hash)
    }

    pub(super) fn knows(&self, hash: Hash) -> bool {
        self.attempts.iter().any(|a| a.hash == hash)
    }

    /// How it ended, given the status that ends it and the form this is about.
    pub(super) fn end(
        &self,
        hash: Hash,
        status: &TransactionStatus,
        receipt: Option<Receipt>,
    ) -> End {
        let usurped = |hash| End {
            hash,
            ..End::new(EndKind::Usurped).because("a transaction of another program used its nonce")
        };
        match status {
            TransactionStatus::Finalized(block) => {
                end_in_block(&self.attempts, hash, *block, &receipt.unwrap_or_default())
            }
            TransactionStatus::Invalid(reason) => {
                End { reason: reason.clone(), ..End::new(self.end_unsent()) }
            }
            TransactionStatus::Usurped(by) => usurped(*by),
            // Only the three above end a duty; what another transaction did is all that is left.
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::Broadcast(_)
            | TransactionStatus::InBlock(_)
            | TransactionStatus::Retracted(_)
            | TransactionStatus::FinalityTimeout(_)
            | TransactionStatus::Dropped => usurped(None),
        }
    }

    /// Of one that no node ever had.
    fn end_unsent(&self) -> EndKind {
        match self.noop {
            Some(Permit::Deadline) => EndKind::Expired,
            Some(Permit::Drop) => EndKind::Withdrawn,
            Some(Permit::Gap) | None => EndKind::Refused,
        }
    }

    pub(super) fn built(
        &mut self,
        nonce: u64,
        attempt: Attempt,
        head: &Head,
        now: Tick,
        out: &mut Vec<Effect>,
    ) {
        if self.phase != Phase::Building {
            return;
        }
        self.tip = attempt.tip;
        self.capped = attempt.bid.is_some_and(|bid| bid < head.base_fee);
        self.too_dear = false;
        let is_noop = attempt.noop;
        // A signer may be deterministic: the same bytes are the same attempt, and replace nothing.
        if self.knows(attempt.hash) {
            self.replacements = self.replacements.saturating_sub(1);
        }
        self.attempts.retain(|known| known.hash != attempt.hash);
        self.attempts.push(attempt);
        self.status = TransactionStatus::Future;
        self.note = Note::default();
        self.since = now;
        self.stale = false;
        if self.noop.is_some() && !is_noop {
            // Given up while it was being stored: it never left, and must not. If no node can have another form of
            // it, no no-op is needed either: the engine ends it.
            self.phase = Phase::Waiting { until: now };
            if self.may_live {
                self.rebuild(nonce, self.tip, out);
            }
        } else if self.is_overdue(nonce, head, now) {
            // Its deadline passed while it was being stored: it is given up when time is next looked at.
            self.phase = Phase::Waiting { until: now };
        } else {
            self.submit(nonce, out);
        }
    }

    pub(super) fn submit(&mut self, nonce: u64, out: &mut Vec<Effect>) {
        if let Some(hash) = self.current() {
            self.phase = Phase::Submitting;
            out.push(Effect::Submit { nonce, hash });
        }
    }

    pub(super) fn locate(&mut self, nonce: u64, out: &mut Vec<Effect>) {
        self.phase = Phase::Locating;
        let hashes = self.attempts.iter().map(|a| a.hash).collect();
        out.push(Effect::Locate { nonce, hashes });
    }

    /// Signs the content again, as a further attempt. Not while a build is under way.
    pub(super) fn rebuild(&mut self, nonce: u64, tip: u128, out: &mut Vec<Effect>) {
        if self.phase == Phase::Building {
            return;
        }
        // The answer to a submission under way is ignored from now on: the node may have taken it.
        self.may_live |= self.phase == Phase::Submitting;
        self.phase = Phase::Building;
        let attempt = u32::try_from(self.attempts.len() + 1).unwrap_or(u32::MAX);
        out.push(Effect::Build { nonce, attempt, tip, noop: self.noop });
    }

    /// The next higher tip, within the bound.
    pub(super) fn bumped(&self, config: &EngineConfig) -> u128 {
        let step = (self.tip / 100).saturating_mul(config.tip_bump_percent.into());
        self.tip.saturating_add(step.max(config.min_tip_bump)).min(config.max_tip)
    }

    /// No node has it, because it tips too little: the next build tips enough. A node that names no
    /// minimum is followed only as often as any other replacement is paid for: it may say the same of
    /// every tip. A no-op holds up all behind it, and is raised up to the caps.
    pub(super) fn raise(&mut self, needed: Option<u128>, config: &EngineConfig) {
        self.tip = match needed {
            Some(needed) => self.bumped(config).max(needed).min(config.max_tip),
            None if self.replacements < config.max_replacements || self.noop.is_some() => {
                self.bumped(config)
            }
            None => self.tip,
        };
        self.replacements = self.replacements.saturating_add(1);
        self.stale = true;
    }

    /// Whether the chain asks for more than the current form offers in all.
    fn is_outgrown(&self, head: &Head) -> bool {
        self.attempts.last().and_then(|a| a.bid).is_some_and(|bid| bid < head.base_fee)
    }

    /// Whether a cap on fees, or on tips, keeps it from the next block: no pool takes a replacement that
    /// does not tip more.
    pub(super) fn is_capped(&self, head: &Head, config: &EngineConfig) -> bool {
        let capped = self.capped || self.bumped(config) <= self.tip;
        capped && self.is_outgrown(head) && self.status.state() != State::InBlock
    }

    /// Replaces the current attempt by one with a higher tip, if the bounds allow it.
    pub(super) fn replace(
        &mut self,
        nonce: u64,
        head: &Head,
        now: Tick,
        config: &EngineConfig,
        out: &mut Vec<Effect>,
    ) -> bool {
        let tip = self.bumped(config);
        // At most one for each block and for each pause, or a full pool, a foreign transaction or a
        // rising fee would be paid for many times within one block.
        let rested = self
            .replaced
            .is_none_or(|(at, block)| now >= at + config.replace_every && head.best.number > block);
        let few = self.replacements < config.max_replacements
            || self.noop.is_some()
            || self.is_outgrown(head);
        let allowed = (self.resignable || self.noop.is_some()) && few && rested && tip > self.tip;
        if allowed {
            self.replacements = self.replacements.saturating_add(1);
            self.replaced = Some((now, head.best.number));
            self.rebuild(nonce, tip, out);
        }
        allowed
    }

    /// Signs the same content with fresh mortality, same tip.
    pub(super) fn refresh(&mut self, nonce: u64, out: &mut Vec<Effect>) -> bool {
        let allowed = self.resignable || self.noop.is_some();
        if allowed {
            // Should it not be signed now, the dead bytes are not sent again.
            self.stale = true;
            self.rebuild(nonce, self.tip, out);
        }
        allowed
    }

    /// Backs off, then is examined.
    pub(super) fn wait(&mut self, now: Tick, config: &EngineConfig) {
        self.tries = self.tries.saturating_add(1);
        // The bare formula: one engine waits for one node, so there is no herd to spread.
        let pause = config.backoff().pause(self.tries, 0.5);
        self.phase = Phase::Waiting { until: now + pause };
    }

    /// Waits for the chain, not for a time: a new head examines it.
    pub(super) fn rest(&mut self, now: Tick, pause: Duration) {
        self.tries = 0;
        self.phase = Phase::Waiting { until: now + pause };
    }

    /// A pool took it. If none had it for certain until now, its patience begins.
    pub(super) fn pooled(&mut self, now: Tick) {
        if !self.may_live || self.unpaid {
            self.since = now;
        }
        self.may_live = true;
        self.unpaid = false;
        self.tries = 0;
        self.refusals = 0;
        self.phase = Phase::Watching;
    }

    /// A pool knows it. It may know what it has refused: then its last answer stands.
    pub(super) fn known(&mut self, nonce: u64, now: Tick, out: &mut Vec<Effect>) {
        self.may_live = true;
        if !self.unpaid {
            self.answered(nonce, None, now, out);
        }
    }

    /// Notes the node's last answer beside the status.
    pub(super) fn answered(
        &mut self,
        nonce: u64,
        answer: Option<&str>,
        now: Tick,
        out: &mut Vec<Effect>,
    ) {
        if let Some(hash) = self.current() {
            let note = Note { answer: answer.map(str::to_owned), ..self.note.clone() };
            self.put(nonce, hash, self.status.clone(), note, now, out);
        }
    }

    /// Notes a status that is not an end, of any form; the same one is recorded once.
    pub(super) fn record(
        &mut self,
        nonce: u64,
        form: Hash,
        status: TransactionStatus,
        now: Tick,
        out: &mut Vec<Effect>,
    ) {
        // What is in a block is kept from no pool.
        if status.state() == State::InBlock {
            self.hold = None;
            self.unpaid = false;
            self.too_dear = false;
        }
        if let Some(hash) = self.current() {
            let note = Note { form: Some(form).filter(|form| *form != hash), ..Note::default() };
            self.put(nonce, hash, status, note, now, out);
        }
    }

    fn put(
        &mut self,
        nonce: u64,
        hash: Hash,
        status: TransactionStatus,
        note: Note,
        now: Tick,
        out: &mut Vec<Effect>,
    ) {
        if self.status == status && self.note == note {
            return;
        }
        if self.status != status {
            self.since = now;
        }
        (self.status, self.note) = (status.clone(), note.clone());
        out.push(Effect::Record { nonce, hash, status, note });
    }

    /// The older form that the status is about, if it is not about the current one.
    pub(super) fn form(&self) -> Option<Hash> {
        self.note.form
    }

    /// Another answer that none of the attempts is found. Final blocks and time are counted, not
    /// answers alone: a node that is slow to index its past answers quickly, and on some chains blocks
    /// come four times a second. They are counted from where the head has the nonce final: an older
    /// head would count blocks that were there before.
    pub(super) fn is_gone(
        &mut self,
        nonce: u64,
        head: &Head,
        now: Tick,
        config: &EngineConfig,
    ) -> bool {
        let missing = self.missing.get_or_insert_default();
        missing.sights = 0;
        if nonce >= head.finalized_nonce {
            return false;
        }
        let (at, block) = *missing.since.get_or_insert((now, head.finalized.number));
        missing.answers = missing.answers.saturating_add(1);
        missing.answers >= 3
            && head.finalized.number >= block.saturating_add(config.missing_blocks)
            && now >= at + config.missing_for
    }

    /// Whether another transaction was found in its place, three times in a row.
    pub(super) fn is_usurped(&mut self) -> bool {
        let missing = self.missing.get_or_insert_default();
        missing.sights = missing.sights.saturating_add(1);
        missing.sights >= 3
    }

    /// Whether no node can have any form of it, and none is being asked to.
    pub(super) fn is_unsent(&self) -> bool {
        !self.may_live && matches!(self.phase, Phase::Waiting { .. }) && !self.attempts.is_empty()
    }

    /// Whether a no-op was ordered and none is stored: then no form of the request leaves any more.
    pub(super) fn owes_noop(&self) -> bool {
        self.noop.is_some() && self.attempts.last().is_some_and(|last| !last.noop)
    }

    /// Whether it is in a block, and heads tell when it is final or no longer there. A node that knows
    /// no old state says nothing of finality, and is asked.
    fn is_settling(&self, nonce: u64, head: &Head) -> bool {
        self.status.state() == State::InBlock
            && head.finalized_nonce > 0
            && (head.finalized_nonce..head.best_nonce).contains(&nonce)
    }

    /// Whether the node was asked the same before, and it is time to ask again: then when, and whether
    /// the question is where it is.
    pub(super) fn repeats(&self, nonce: u64, head: &Head, now: Tick) -> Option<(Tick, bool)> {
        let Phase::Waiting { until } = self.phase else { return None };
        let look = nonce < head.best_nonce || self.status.state() == State::InBlock;
        (until <= now && (look || self.tries > 0)).then_some((until, look))
    }

    /// Decides what a waiting entry needs: a location if its nonce is used, a signature if its bytes are of
    /// no use any more, else a submission.
    pub(super) fn examine(
        &mut self,
        nonce: u64,
        head: &Head,
        now: Tick,
        config: &EngineConfig,
        out: &mut Vec<Effect>,
    ) {
        if self.is_settling(nonce, head) {
            self.rest(now, config.stuck_after);
        } else if nonce < head.best_nonce || self.status.state() == State::InBlock {
            self.locate(nonce, out);
        } else if self.owes_noop() {
            self.rebuild(nonce, self.bumped(config), out);
        } else if (self.stale || self.expired(nonce, head))
            && (self.resignable || self.noop.is_some())
        {
            self.rebuild(nonce, self.tip, out);
        } else {
            self.submit(nonce, out);
        }
    }

    /// Notes what the head says of the nonce; whether that is new, and calls for a look.
    pub(super) fn step_to(&mut self, nonce: u64, head: &Head) -> bool {
        let in_block = self.status.state() == State::InBlock;
        let step = Step {
            passed: nonce < head.best_nonce && !in_block,
            settled: nonce < head.finalized_nonce,
            retracted: nonce >= head.best_nonce && in_block,
        };
        let before = std::mem::replace(&mut self.step, step);
        step != before && step != Step::default()
    }

    pub(super) fn on_head(
        &mut self,
        nonce: u64,
        head: &Head,
        now: Tick,
        config: &EngineConfig,
        out: &mut Vec<Effect>,
    ) {
        match self.phase {
            // A passed nonce need not wait for its time: but once per step, and not against an
            // answer that was just given (the back-off of a location).
            Phase::Waiting { .. } => {
                let told = self.step_to(nonce, head);
                if told && self.missing.is_none() {
                    self.tries = 0;
                    self.locate(nonce, out);
                }
            }
            // The nonce is final and the watch has not reported it: the watch may be dead.
            Phase::Watching => {
                if nonce < head.finalized_nonce && now >= self.since + config.retry_max {
                    self.locate(nonce, out);
                } else if self.expired(nonce, head) {
                    self.refresh(nonce, out);
                }
            }
            Phase::Building | Phase::Submitting | Phase::Locating => {}
        }
    }

    /// Its last valid block is finalised and the nonce is still unused.
    fn expired(&self, nonce: u64, head: &Head) -> bool {
        let until = self.attempts.last().and_then(|a| a.valid_until);
        nonce >= head.best_nonce && until.is_some_and(|until| until < head.finalized.number)
    }

    /// Whether its deadline has passed and nothing is in a block: then it is to be given up.
    pub(super) fn is_overdue(&self, nonce: u64, head: &Head, now: Tick) -> bool {
        let in_block = self.status.state() == State::InBlock || nonce < head.best_nonce;
        self.noop.is_none() && !in_block && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    pub(super) fn on_time(
        &mut self,
        nonce: u64,
        first: bool,
        head: &Head,
        now: Tick,
        config: &EngineConfig,
        out: &mut Vec<Effect>,
    ) {
        match self.phase {
            Phase::Waiting { until } if until <= now => self.examine(nonce, head, now, config, out),
            // An order that could not be stored is tried again at its time.
            Phase::Waiting { .. } if self.owes_noop() => {}
            Phase::Watching | Phase::Waiting { .. } => {
                if !first || now < self.since + config.stuck_after {
                    return;
                }
                match self.status.state() {
                    State::Future | State::Ready | State::Broadcast | State::Retracted => {
                        // What waits for a time has been answered: only what a pool has is stuck.
                        let pooled = self.may_live && self.hold.is_none();
                        if self.phase == Phase::Watching || pooled {
                            self.since = now;
                            if !self.replace(nonce, head, now, config, out) {
                                self.submit(nonce, out);
                            }
                        }
                    }
                    // The head says that it is not, or no longer, in a block.
                    State::InBlock | State::FinalityTimeout => self.locate(nonce, out),
                    // Being waited out.
                    State::Finalized | State::Usurped | State::Dropped | State::Invalid => {}
                }
            }
            Phase::Building | Phase::Submitting | Phase::Locating => {}
        }
    }
}
