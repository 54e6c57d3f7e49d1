//! What keeps the account waiting is said aloud: once in the log when it begins and when it ends, and
//! in gauges as long as it lasts.

use std::time::Duration;

use super::Driver;
use super::effect::outcome_name;
use crate::chain::Outcome;
use crate::metrics;

impl Driver {
    /// Logs an answer that is not a yes, once for each nonce and wording.
    pub(super) fn tell(&mut self, nonce: u64, outcome: &Outcome) {
        let Some(content) = self.contents.get_mut(&nonce) else { return };
        let Some(answer) = outcome.answer() else {
            // That a pool knows it takes back nothing: it may know what the account cannot pay for.
            let refused = self.holds.lowest_unfunded == Some(nonce);
            if *outcome != Outcome::AlreadyKnown || !refused {
                content.said = None;
            }
            return;
        };
        if content.said.as_deref() == Some(answer) {
            return;
        }
        let (request_id, meaning) = (&content.request_id, outcome_name(outcome));
        let event = "tx_not_taken";
        match outcome {
            Outcome::Uncertain(_) | Outcome::Refused(_) | Outcome::Unfunded(_) => {
                tracing::warn!(event, nonce, request_id, meaning, answer, "not taken by the node");
            }
            Outcome::Pooled
            | Outcome::AlreadyKnown
            | Outcome::Outdated
            | Outcome::Underpriced(..)
            | Outcome::Expired
            | Outcome::Busy(_)
            | Outcome::NotSent(_)
            | Outcome::Unwanted(_) => {
                tracing::info!(event, nonce, request_id, meaning, answer, "not taken now");
            }
        }
        content.said = Some(answer.to_owned());
    }

    /// Sets the gauges; logs what began and what ended.
    pub(super) fn tell_holds(&mut self) {
        let (was, is) = (self.holds, self.engine.holds());
        metrics::set(metrics::UNCERTAIN_NONCES, is.uncertain);
        metrics::set(metrics::UNFUNDED_NONCES, is.unfunded);
        metrics::set(metrics::FEE_ABOVE_CAP, usize::from(is.above_cap));
        self.tell_stuck();
        let request_at = |nonce: Option<u64>| {
            nonce.and_then(|nonce| self.contents.get(&nonce)).map(|content| &content.request_id)
        };
        let (nonces, balance) = (is.uncertain, self.head.balance);
        let (nonce, request_id) = (is.lowest_uncertain, request_at(is.lowest_uncertain));
        match (was.uncertain > 0, nonces > 0) {
            (false, true) => tracing::error!(
                event = "tx_uncertain",
                nonces,
                nonce,
                request_id,
                "THE NODE'S ANSWERS SAY NOTHING FOR CERTAIN: the account waits behind them; `tx show` \
                 has the last answer, `tx drop` gives a request up"
            ),
            (true, false) => tracing::warn!(event = "tx_certain", "the answers are certain again"),
            (false, false) | (true, true) => {}
        }
        let (nonces, account) = (is.unfunded, self.signer.account());
        // Perhaps only the first asks for more than the account has, and all others wait behind it.
        let (nonce, request_id) = (is.lowest_unfunded, request_at(is.lowest_unfunded));
        match (was.unfunded > 0, nonces > 0) {
            (false, true) => tracing::error!(
                event = "tx_unfunded",
                nonces,
                nonce,
                request_id,
                ?balance,
                %account,
                "THE ACCOUNT CANNOT PAY for the request at this nonce, and all others wait behind it: \
                 nothing is lost; fund the account, or `tx drop` that request"
            ),
            (true, false) => tracing::warn!(event = "tx_funded", ?balance, "the account can pay"),
            (false, false) | (true, true) => {}
        }
        let (base_fee, cap) = (self.head.base_fee, self.head.fee_cap);
        let (nonce, request_id) = (is.lowest_capped, request_at(is.lowest_capped));
        match (was.above_cap, is.above_cap) {
            (false, true) => tracing::warn!(
                event = "tx_fee_above_cap",
                base_fee,
                ?cap,
                nonce,
                request_id,
                "the chain asks for more than the caps on fees allow; the account waits"
            ),
            (true, false) => {
                tracing::warn!(event = "tx_fee_within_cap", base_fee, ?cap, "within the cap")
            }
            (false, false) | (true, true) => {}
        }
        if let (None, Some(nonce)) = (was.wide_gap, is.wide_gap) {
            tracing::error!(
                event = "tx_wide_gap",
                nonce,
                "NOTHING USES THE NONCES FROM HERE ON, and more than are filled unasked: requests take \
                 them first, and `tx drop` fills one; `tx gaps` lists them"
            );
        }
        self.holds = is;
    }

    /// Whatever holds up the lowest nonce, and all others with it, is told after twice the time in which
    /// a higher tip should have moved it.
    fn tell_stuck(&mut self) {
        let lowest = self.engine.lowest_open(self.now());
        let age = lowest.map_or(Duration::ZERO, |(_, age)| age);
        metrics::set_seconds(metrics::LOWEST_OPEN, age);
        let patience = 2 * self.options.engine.stuck_after;
        let is = lowest.filter(|(_, age)| *age >= patience).map(|(nonce, _)| nonce);
        if let Some((nonce, content)) =
            is.and_then(|nonce| Some((nonce, self.contents.get(&nonce)?)))
            && self.stuck != is
        {
            let answer = content.unbuilt.as_ref().or(content.said.as_ref());
            let request_id = &content.request_id;
            let (seconds, next) = (age.as_secs(), self.head.best_nonce);
            tracing::warn!(
                event = "tx_stuck",
                nonce,
                request_id,
                answer,
                seconds,
                next,
                "the lowest open nonce does not get into a block, and all others wait for it; `tx drop` \
                 gives its request up"
            );
        }
        self.stuck = is;
    }
}
