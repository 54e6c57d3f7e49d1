//! The chain and the signer of a test, on a real Ethereum node.

use std::time::Duration;

use serde_json::json;
use tenure_testkit::anvil::{Anvil, KEY};
use tenure_tx::chain::ethereum::{
    EthereumCall, EthereumChain, EthereumOptions, EthereumSigner, Finality,
};

fn quick() -> EthereumOptions {
    EthereumOptions {
        poll: Duration::from_millis(50),
        lookup_every: 2,
        finality: Finality::Tag,
        ..EthereumOptions::default()
    }
}

pub(crate) fn chain(anvil: &Anvil) -> EthereumChain {
    chain_at(&[&anvil.url])
}

/// Through these addresses, the first that answers.
pub(crate) fn chain_at(urls: &[&str]) -> EthereumChain {
    EthereumChain::with_endpoints(urls.iter().copied(), quick()).expect("URLs")
}

/// That never bids more for a unit of gas.
pub(crate) fn capped(url: &str, cap: u128) -> EthereumChain {
    let options = EthereumOptions { max_fee_per_gas: Some(cap), ..quick() };
    EthereumChain::new(url, options).expect("a URL")
}

/// At the pace of the defaults.
pub(crate) fn paced(url: &str) -> EthereumChain {
    polled(url, EthereumOptions::default().poll)
}

/// As the defaults are, but for the pace.
pub(crate) fn polled(url: &str, poll: Duration) -> EthereumChain {
    let options = EthereumOptions { poll, ..EthereumOptions::default() };
    EthereumChain::new(url, options).expect("a URL")
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
