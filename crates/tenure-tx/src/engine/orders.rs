//! Giving a request up: by order, or because its deadline has passed.

use super::entry::Phase;
use super::{Effect, Engine, NonceError, Permit};
use crate::status::{State, TransactionStatus};

impl Engine {
    /// Gives up the request at `nonce`. If no node can have it, it ends at once; else a no-op takes
    /// its place, and if the original is mined first, that one wins. What is in a block stays as it
    /// is. A gap is filled at once.
    ///
    /// # Errors
    /// [`NonceError`]; nothing changed.
    pub fn cancel(&mut self, nonce: u64) -> Result<Vec<Effect>, NonceError> {
        let leading = self.leading.as_mut().ok_or(NonceError::NotLeading)?;
        let mut effects = Vec::new();
        if let Some(entry) = leading.entries.get_mut(&nonce) {
            let in_block = entry.status.state() == State::InBlock;
            if !in_block && entry.noop.is_none() {
                self.give_up(nonce, Permit::Drop, &mut effects);
                self.close(&[nonce], &mut effects);
            } else if !in_block && entry.owes_noop() && entry.phase != Phase::Submitting {
                // Ordered before, and not stored: it is not waited for its time. The answer to a submission
                // under way still decides whether a no-op is needed.
                entry.rebuild(nonce, entry.bumped(&self.config), &mut effects);
            }
        } else if leading.is_gap(nonce) {
            leading.fill(nonce, &self.config, &mut effects);
        } else {
            return Err(NonceError::NotOpen(nonce));
        }
        Ok(effects)
    }

    /// The only place where a request's nonce is given to a no-op.
    pub(super) fn give_up(&mut self, nonce: u64, permit: Permit, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else { return };
        entry.noop = Some(permit);
        // The account could not pay, so most likely no node takes it now either, nor would one take a no-op: the
        // answer decides, and `submitted` comes back here.
        if entry.phase == Phase::Submitting && entry.unpaid && !entry.may_live {
            return;
        }
        match entry.current() {
            Some(hash) if entry.is_unsent() => {
                let why = match permit {
                    Permit::Drop => "dropped by order before any node had it; its nonce is free",
                    Permit::Deadline => {
                        "its deadline passed before any node had it; its nonce is free"
                    }
                    Permit::Gap => "nothing used the nonce",
                };
                let status = TransactionStatus::Invalid(Some(why.to_owned()));
                self.end(nonce, hash, status, None, out);
            }
            // A build under way still carries the request: when it is stored, a no-op follows it, or its end if no
            // node can have any form of it.
            Some(_) | None => entry.rebuild(nonce, entry.bumped(&config), out),
        }
    }

    /// Gives up what was to be given up while the answer that has come now was on its way.
    pub(super) fn give_up_as_ordered(&mut self, nonce: u64, out: &mut Vec<Effect>) {
        if let Some(entry) = self.entry(nonce)
            && let Some(permit) = entry.noop.filter(|_| entry.owes_noop())
            && matches!(entry.phase, Phase::Waiting { .. } | Phase::Watching)
        {
            self.give_up(nonce, permit, out);
            self.close(&[nonce], out);
        }
    }

    /// Fills nonces that were given up before any node had them, where later ones would wait for them.
    pub(super) fn close(&mut self, given_up: &[u64], out: &mut Vec<Effect>) {
        let Some(leading) = self.leading.as_mut() else { return };
        for &nonce in given_up {
            if leading.is_gap(nonce) {
                leading.fill(nonce, &self.config, out);
            }
        }
    }
}
