//! One nonce of the account, from reservation to its end.

use tenure_core::clock::Tick;

use super::{Attempt, Effect, EngineConfig, OpenTransaction, Order, Request};
use crate::chain::Head;
use crate::status::{End, EndKind, Hash, Note, State, TransactionStatus};

/// What an entry waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The signer and the store.
    Building,
    /// The node's answer.
    Submitting,
    /// The watch.
    Watching,
    /// A time, after which it is examined.
    Waiting { until: Tick },
    /// The chain's answer: which transaction used the nonce.
    Locating,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// The request's id; `None` for a no-op that fills a gap.
    pub(super) request: Option<String>,
    /// Signed forms, the current one last; empty until the first is stored.
    pub(super) attempts: Vec<Attempt>,
    pub(super) status: TransactionStatus,
    pub(super) phase: Phase,
    /// A no-op takes the request's place, by this order.
    pub(super) noop: Option<Order>,
    /// Its content can be signed anew.
    pub(super) resignable: bool,
    /// When the request is given up.
    #[expect(dead_code, reason = "nothing looks at it yet")]
    pub(super) deadline: Option<Tick>,
    /// Some node may hold some form of it. Once true, true for good.
    pub(super) may_live: bool,
    /// The current bytes were refused: sign anew before sending again.
    pub(super) stale: bool,
    /// Consecutive waits, for the back-off.
    pub(super) tries: u32,
    pub(super) refusals: u32,
    pub(super) replacements: u32,
    /// How often in a row the chain answered that the nonce is used and by none of ours.
    pub(super) missing: u32,
    /// The tip of the next build.
    tip: u128,
    /// Last progress.
    since: Tick,
}

impl Entry {
    /// Of a caller's request.
    pub(super) fn requested(request: Request) -> Self {
        let Request { id, tip, resignable, deadline, nonce: _ } = request;
        Entry { request: Some(id), tip, resignable, deadline, noop: None, ..Self::filler() }
    }

    /// A no-op at a nonce that nothing uses.
    pub(super) fn filler() -> Self {
        Entry {
            request: None,
            attempts: Vec::new(),
            status: TransactionStatus::Future,
            phase: Phase::Building,
            noop: Some(Order::Gap),
            deadline: None,
            resignable: true,
            may_live: false,
            stale: false,
            tries: 0,
            refusals: 0,
            replacements: 0,
            missing: 0,
            tip: 0,
            since: Tick::ZERO,
        }
    }

    /// Of a row: the leader that wrote it may have sent it.
    pub(super) fn recovered(row: OpenTransaction, now: Tick) -> Self {
        let last = row.attempts.last();
        Entry {
            request: Some(row.request),
            noop: last.filter(|a| a.noop).map(|a| a.order.unwrap_or(Order::Drop)),
            deadline: row.deadline,
            tip: last.map_or(0, |a| a.tip),
            replacements: u32::try_from(row.attempts.len().saturating_sub(1)).unwrap_or(u32::MAX),
            attempts: row.attempts,
            status: row.status,
            phase: Phase::Waiting { until: now },
            resignable: row.resignable,
            may_live: true,
            stale: false,
            tries: 0,
            refusals: 0,
            missing: 0,
            since: now,
        }
    }

    pub(super) fn current(&self) -> Option<Hash> {
        self.attempts.last().map(|a| a.hash)
    }

    pub(super) fn knows(&self, hash: Hash) -> bool {
        self.attempts.iter().any(|a| a.hash == hash)
    }

    /// How it ended, given the status that ends it and the form this is about.
    pub(super) fn end(&self, hash: Hash, status: &TransactionStatus) -> End {
        let form = self.attempts.iter().find(|a| a.hash == hash);
        let end = match status {
            TransactionStatus::Finalized(_) => match form.filter(|a| a.noop).map(|a| a.order) {
                None => End::new(EndKind::Executed),
                Some(Some(Order::Deadline)) => {
                    End::new(EndKind::Expired).because("its deadline passed")
                }
                Some(Some(Order::Gap)) => {
                    End::new(EndKind::Replaced).because("nothing used the nonce")
                }
                Some(Some(Order::Drop) | None) => {
                    End::new(EndKind::Replaced).because("dropped by order")
                }
            },
            TransactionStatus::Invalid(reason) => {
                let end = End::new(EndKind::Refused);
                End { reason: reason.clone(), ..end }
            }
            // Only these three end a duty; what another transaction did is all that is left.
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::Broadcast(_)
            | TransactionStatus::InBlock(_)
            | TransactionStatus::Retracted(_)
            | TransactionStatus::FinalityTimeout(_)
            | TransactionStatus::Dropped
            | TransactionStatus::Usurped(_) => End::new(EndKind::Usurped),
        };
        let hash = match status {
            TransactionStatus::Usurped(by) => *by,
            TransactionStatus::Finalized(_) => Some(hash),
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::Broadcast(_)
            | TransactionStatus::InBlock(_)
            | TransactionStatus::Retracted(_)
            | TransactionStatus::FinalityTimeout(_)
            | TransactionStatus::Dropped
            | TransactionStatus::Invalid(_) => None,
        };
        End { hash, block: status.block(), ..end }
    }

    pub(super) fn built(&mut self, nonce: u64, attempt: Attempt, now: Tick, out: &mut Vec<Effect>) {
        if self.phase != Phase::Building {
            return;
        }
        self.tip = attempt.tip;
        let is_noop = attempt.noop;
        // A signer may be deterministic: the same bytes are the same attempt.
        self.attempts.retain(|known| known.hash != attempt.hash);
        self.attempts.push(attempt);
        self.status = TransactionStatus::Future;
        self.since = now;
        self.stale = false;
        if self.noop.is_some() && !is_noop {
            // Cancelled while it was being stored: it never left, and must not.
            let tip = self.tip;
            self.phase = Phase::Waiting { until: now };
            self.rebuild(nonce, tip, out);
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

    /// Replaces the current attempt by one with a higher tip, if the bounds allow it.
    pub(super) fn replace(
        &mut self,
        nonce: u64,
        config: &EngineConfig,
        out: &mut Vec<Effect>,
    ) -> bool {
        let tip = self.bumped(config);
        let allowed = (self.resignable || self.noop.is_some())
            && self.replacements < config.max_replacements
            && tip > self.tip;
        if allowed {
            self.replacements += 1;
            self.rebuild(nonce, tip, out);
        }
        allowed
    }

    /// Signs the same content with fresh mortality, same tip.
    pub(super) fn refresh(&mut self, nonce: u64, out: &mut Vec<Effect>) -> bool {
        let allowed = self.resignable || self.noop.is_some();
        if allowed {
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

    /// Notes a status that is not an end; the same one is recorded once.
    pub(super) fn record(
        &mut self,
        nonce: u64,
        hash: Hash,
        status: TransactionStatus,
        now: Tick,
        out: &mut Vec<Effect>,
    ) {
        if self.status == status {
            return;
        }
        self.since = now;
        self.status = status.clone();
        out.push(Effect::Record { nonce, hash, status, note: Note::default() });
    }

    /// Decides what a waiting entry needs: a location if its nonce is used, else a submission.
    pub(super) fn examine(&mut self, nonce: u64, head: &Head, out: &mut Vec<Effect>) {
        if nonce < head.best_nonce || self.status.state() == State::InBlock {
            self.locate(nonce, out);
        } else if self.stale && (self.resignable || self.noop.is_some()) {
            self.rebuild(nonce, self.tip, out);
        } else {
            self.submit(nonce, out);
        }
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
                let passed = nonce < head.best_nonce && self.status.state() != State::InBlock;
                let settled = nonce < head.finalized_nonce;
                if (passed || settled) && self.missing == 0 {
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
            Phase::Waiting { until } if until <= now => self.examine(nonce, head, out),
            Phase::Watching | Phase::Waiting { .. } => {
                if !first || now < self.since + config.stuck_after {
                    return;
                }
                match self.status.state() {
                    State::Future | State::Ready | State::Broadcast | State::Retracted => {
                        self.since = now;
                        if !self.replace(nonce, config, out) {
                            self.submit(nonce, out);
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
