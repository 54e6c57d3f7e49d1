//! The chain and the signer of a test, on a real Ethereum node.

use std::time::Duration;

use serde_json::json;
use tenure_testkit::anvil::{Anvil, KEY};
use tenure_tx::chain::ethereum::{
    EthereumCall, EthereumChain, EthereumOptions, EthereumSigner, Finality,
};

pub(crate) fn chain(anvil: &Anvil) -> EthereumChain {
    let options = EthereumOptions {
        poll: Duration::from_millis(50),
        lookup_every: 2,
        finality: Finality::Tag,
        ..EthereumOptions::default()
    };
    EthereumChain::new(&anvil.url, options).expect("a URL")
}

pub(crate) async fn signer(chain: &EthereumChain) -> EthereumSigner {
    let id = chain.chain_id().await.expect("the node answers");
    EthereumSigner::from_hex(KEY, id, chain.fees()).expect("a key")
}

/// Sends `wei` to the address that ends in `tag`.
pub(crate) fn pay(tag: u64, wei: u64) -> bytes::Bytes {
    let to = format!("0x1000000000000000000000000000{tag:012x}");
    let call: EthereumCall = serde_json::from_value(json!({
        "to": to, "value": format!("{wei:#x}"), "gas": 21_000
    }))
    .expect("a call");
    call.encode()
}
