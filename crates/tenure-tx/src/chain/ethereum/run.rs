//! The blocks that were seen last, each the parent of the next.

use std::collections::VecDeque;

use alloy_primitives::U64;
use serde_json::json;

use super::TransportError;
use super::rpc::{Rpc, RpcBlock, read};
use crate::status::Hash;

/// How many blocks are remembered: more than any reorganisation of a chain with finality.
const DEPTH: usize = 256;

/// How many blocks are asked for at once on the way back.
const STEP: u64 = 16;

/// After how many polls in a row a latest block below the one known is believed: an endpoint that
/// lags has not lost its blocks.
const LAGS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Run {
    blocks: VecDeque<(u64, Hash)>,
    lags: u32,
}

/// What a step brought.
#[derive(Debug)]
pub(super) struct Moved {
    /// New blocks, the oldest first.
    pub(super) news: Vec<RpcBlock>,
    pub(super) left: Left,
}

/// Which blocks left the chain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// These; none, most of the time.
    These(Vec<Hash>),
    /// The whole run, and perhaps blocks below it.
    All,
}

impl Moved {
    fn nothing() -> Self {
        Moved { news: Vec::new(), left: Left::These(Vec::new()) }
    }
}

impl Run {
    fn at(&self, number: u64) -> Option<Hash> {
        let (first, _) = self.blocks.front()?;
        let index = usize::try_from(number.checked_sub(*first)?).ok()?;
        self.blocks.get(index).map(|(_, hash)| *hash)
    }

    /// Whether a block can be of this chain: it is in the run, or below it.
    pub(super) fn allows(&self, number: u64, block: Hash) -> bool {
        match self.blocks.front() {
            Some((first, _)) if number >= *first => self.at(number) == Some(block),
            Some(_) | None => true,
        }
    }

    /// Goes on to the new latest block: asks for what is between, and further back until a block of
    /// the run is met.
    pub(super) async fn advance(
        &mut self,
        rpc: &Rpc,
        latest: RpcBlock,
    ) -> Result<Moved, TransportError> {
        let (number, hash) = (latest.number.to::<u64>(), Hash(latest.hash.0));
        let Some(&(top, _)) = self.blocks.back() else {
            self.blocks.push_back((number, hash));
            return Ok(Moved { news: vec![latest], ..Moved::nothing() });
        };
        if self.at(number) == Some(hash) && (number == top || self.lags < LAGS) {
            self.lags = if number == top { 0 } else { self.lags + 1 };
            return Ok(Moved::nothing());
        }
        self.lags = 0;
        let bottom = self.blocks.front().map_or(0, |(first, _)| *first);
        let mut news = VecDeque::from([latest]);
        loop {
            let oldest = &news[0];
            let below = oldest.number.to::<u64>().checked_sub(1);
            let Some(below) = below.filter(|below| *below >= bottom && news.len() < DEPTH) else {
                break;
            };
            if self.at(below) == Some(Hash(oldest.parent_hash.0)) {
                break;
            }
            // What is missing above the run in one go, then in steps.
            let from = match below > top {
                true => (top + 1).max(below.saturating_sub(DEPTH as u64)),
                false => bottom.max(below.saturating_sub(STEP - 1)),
            };
            let call = |at| ("eth_getBlockByNumber", json!([U64::from(at), false]));
            let calls: Vec<_> = (from..=below).map(call).collect();
            for answer in rpc.many(&calls).await?.into_iter().rev() {
                let block: RpcBlock = read(answer)?;
                let follows = block.hash == news[0].parent_hash;
                if !follows {
                    // Reorganised while it was read: the next poll begins anew.
                    return Ok(Moved::nothing());
                }
                if self.at(block.number.to()) == Some(Hash(block.hash.0)) {
                    break;
                }
                news.push_front(block);
            }
        }
        let parent = Hash(news[0].parent_hash.0);
        let first = news[0].number.to::<u64>();
        let joined = first > 0 && self.at(first - 1) == Some(parent);
        let mut left = Vec::new();
        while let Some(&(number, hash)) = self.blocks.back()
            && (!joined || number >= first)
        {
            self.blocks.pop_back();
            left.push(hash);
        }
        self.blocks.extend(news.iter().map(|b| (b.number.to::<u64>(), Hash(b.hash.0))));
        while self.blocks.len() > DEPTH {
            self.blocks.pop_front();
        }
        let left = if joined { Left::These(left) } else { Left::All };
        Ok(Moved { news: news.into(), left })
    }
}
