//! The scripted Substrate node's hashes, as this crate has them.

use tenure_tx::status::Hash;

pub(crate) fn block_hash(number: usize) -> Hash {
    tenure_testkit::substrate::block_hash(number).parse().expect("a hash")
}
