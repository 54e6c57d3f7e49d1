//! Ends that no block has proved yet.
//!
//! A request ends as one that no node had, or as one whose nonce another transaction used, by what
//! nodes say. A node may be wrong, and bytes that left once never come back. So the forms of such a
//! request are kept until its nonce is final, and compared with what the chain has there: the end is
//! then proved, or corrected.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::clock::Tick;
use tenure_core::retry::ExponentialBackoff;

use super::entry::end_in_block;
use super::{Attempt, Effect, Provisional};
use crate::chain::Located;
use crate::status::{End, Hash, Note, TransactionStatus};

/// How many are kept in memory. The table keeps the rest for the next reading.
pub(crate) const MOST: usize = 10_000;

/// The pauses after answers that prove nothing.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(30), Duration::from_secs(3_600));

#[derive(Debug)]
struct Doubt {
    attempts: Vec<Attempt>,
    end: End,
    /// The chain is being asked.
    asked: bool,
    tries: u32,
    /// Not asked again before.
    until: Tick,
}

/// By nonce and request: one nonce may have been given to several requests in turn.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeMap<(u64, String), Doubt>);

impl Doubts {
    pub(super) fn add(&mut self, one: Provisional) {
        if self.0.len() < MOST {
            let Provisional { request, nonce, attempts, end } = one;
            let doubt = Doubt { attempts, end, asked: false, tries: 0, until: Tick::ZERO };
            self.0.insert((nonce, request), doubt);
        }
    }

    /// Another request's form used the nonce for good: all that ended there did so rightly.
    pub(super) fn settle(&mut self, nonce: u64) {
        self.0.retain(|(at, _), _| *at != nonce);
    }

    /// The request at this nonce that has this form.
    pub(super) fn owner(&self, nonce: u64, form: Hash) -> Option<&str> {
        let mut at = self.0.iter().filter(|((at, _), _)| *at == nonce);
        at.find(|(_, doubt)| doubt.attempts.iter().any(|attempt| attempt.hash == form))
            .map(|((_, request), _)| request.as_str())
    }

    /// Asks about those below the first nonce that is not final, except where a request is `open`: its
    /// own end decides there.
    pub(super) fn ask(
        &mut self,
        below: u64,
        now: Tick,
        open: impl Fn(u64) -> bool,
        out: &mut Vec<Effect>,
    ) {
        for ((nonce, request), doubt) in self.0.range_mut(..(below, String::new())) {
            if doubt.asked || doubt.until > now || open(*nonce) {
                continue;
            }
            doubt.asked = true;
            let hashes = doubt.attempts.iter().map(|attempt| attempt.hash).collect();
            out.push(Effect::Reexamine { nonce: *nonce, request: request.clone(), hashes });
        }
    }

    pub(super) fn answered(
        &mut self,
        nonce: u64,
        request: String,
        located: Located,
        now: Tick,
        out: &mut Vec<Effect>,
    ) {
        let key = (nonce, request);
        let Some(doubt) = self.0.get_mut(&key) else { return };
        doubt.asked = false;
        let knows = |hash: &Hash| doubt.attempts.iter().any(|attempt| attempt.hash == *hash);
        match located {
            Located::InBlock { hash, block, finalized: true, receipt } if knows(&hash) => {
                let end = end_in_block(&doubt.attempts, hash, block, &receipt.unwrap_or_default());
                let corrected = Some(Box::new(doubt.end.clone()));
                let note = Note { end: Some(Box::new(end)), corrected, ..Note::default() };
                self.0.remove(&key);
                let (nonce, request) = key;
                let status = TransactionStatus::Finalized(block);
                out.push(Effect::Correct { nonce, request, hash, status, note });
            }
            Located::InBlock { finalized: true, .. } | Located::Usurped { .. } => {
                self.0.remove(&key);
                let (nonce, request) = key;
                out.push(Effect::Settle { nonce, request });
            }
            // Nothing is proved: a node may show less of the past than it has, and tomorrow more.
            Located::InBlock { finalized: false, .. }
            | Located::Missing
            | Located::Free
            | Located::Unknown => {
                doubt.tries = doubt.tries.saturating_add(1);
                doubt.until = now + PAUSES.bare(doubt.tries);
            }
        }
    }
}
