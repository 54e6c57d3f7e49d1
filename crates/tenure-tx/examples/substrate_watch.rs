//! What a Substrate node says about an account, and what becomes of an extrinsic.
//!
//! ```sh
//! cargo run -p tenure-tx --features substrate --example substrate_watch -- \
//!     ws://127.0.0.1:9944 0xd43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d [0x<signed extrinsic>]
//! ```
//!
//! A service is built as in `ethereum_relayer`, with [`SubstrateChain`] as the chain and a signer
//! of your runtime's: how an extrinsic is encoded depends on its metadata, so you bring it (with
//! subxt, say). The signer below shows its shape.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use tenure_tx::account::{AccountId, SignError, Signed, Signer, Unsigned};
use tenure_tx::chain::Chain as _;
use tenure_tx::chain::substrate::{SubstrateChain, address, extrinsic_hash};

/// Signs by asking somebody who knows the runtime.
struct RuntimeSigner<F> {
    account: AccountId,
    encode: F,
}

#[async_trait]
impl<F> Signer for RuntimeSigner<F>
where
    F: Fn(Unsigned<'_>) -> Result<Vec<u8>, SignError> + Send + Sync + 'static,
{
    fn account(&self) -> &AccountId {
        &self.account
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        // Mortal for 64 blocks from the best one: past that the service signs anew.
        let valid_until = Some(unsigned.head.best.number + 64);
        let raw = (self.encode)(unsigned)?;
        Ok(Signed { hash: extrinsic_hash(&raw), raw: raw.into(), valid_until })
    }
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("the first argument is the node")?;
    let account: AccountId = arguments.next().ok_or("the second is the account")?.parse()?;
    let signer = RuntimeSigner {
        account: account.clone(),
        encode: |_: Unsigned<'_>| Err(SignError::Unavailable("bring your runtime".into())),
    };
    let chain = SubstrateChain::new(&url, Duration::from_secs(10))?;
    let head = chain.head(signer.account()).await?;
    println!("{} {head:#?}", address(&account));
    if let Some(extrinsic) = arguments.next() {
        let digits = extrinsic.trim_start_matches("0x").to_owned();
        let raw = (0..digits.len() / 2)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16))
            .collect::<Result<Vec<u8>, _>>()?;
        let submission = chain.submit(&account, head.pool_nonce, raw.into()).await;
        println!("{:?}", submission.outcome);
        let mut watch = submission.watch.ok_or("not watched")?;
        while let Some(status) = watch.next().await {
            println!("{status:?}");
        }
    }
    Ok(())
}
