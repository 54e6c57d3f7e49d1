//! A relayer: start it three times for one account, kill any of them.
//!
//! On Ethereum, with the key in the environment:
//!
//! ```sh
//! anvil &
//! export RELAYER_KEY=ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80
//! cargo run -p tenure-tx --features ethereum,substrate --example relayer -- \
//!     postgres://localhost/app ethereum http://127.0.0.1:8545
//! ```
//!
//! On a Substrate chain, with a program of yours that knows the runtime and holds the key (it is
//! given nonce, tip and call as JSON and prints the signed extrinsic in hex, see `CommandSigner`),
//! and with the call, SCALE-encoded:
//!
//! ```sh
//! cargo run -p tenure-tx --features ethereum,substrate --example relayer -- \
//!     postgres://localhost/app substrate ws://127.0.0.1:9944 \
//!     5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY ./sign 0x000008676d
//! ```
//!
//! The node that leads sends the call every second; the others say that they follow. A call is named
//! by its second, so a takeover never sends one twice.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tenure::config::{Config, RoleSpec};
use tenure::{Member, TakeoverPolicy};
use tenure_connect::{Connector, Dsn, TlsOptions};
#[cfg(feature = "ethereum")]
use tenure_tx::chain::ethereum::{EthereumCall, EthereumChain, EthereumOptions, EthereumSigner};
#[cfg(feature = "substrate")]
use tenure_tx::chain::substrate::{CommandSigner, SubstrateChain, account_of};
use tenure_tx::{
    Chain, Mode, SendError, SendRequest, ServiceOptions, Signer, Store, StoreOptions,
    TransactionService,
};

type Failure = Box<dyn std::error::Error>;

/// A chain, a key, what to send, and what to tip.
pub(crate) struct Work {
    chain: Arc<dyn Chain>,
    signer: Arc<dyn Signer>,
    call: Bytes,
    tip: u128,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (dsn, work) = match words[..] {
        #[cfg(feature = "ethereum")]
        [dsn, "ethereum", rpc] => {
            let key = std::env::var("RELAYER_KEY");
            (dsn, ethereum(rpc, &key.map_err(|_| "set RELAYER_KEY to the private key")?).await?)
        }
        #[cfg(feature = "substrate")]
        [dsn, "substrate", rpc, account, signer, call] => {
            (dsn, substrate(rpc, account, signer, call)?)
        }
        _ => return Err("give the database, the kind of chain, and what it needs".into()),
    };
    relay(dsn, work).await
}

/// Pays one wei.
#[cfg(feature = "ethereum")]
pub(crate) async fn ethereum(rpc: &str, key: &str) -> Result<Work, Failure> {
    let chain = EthereumChain::new(rpc, EthereumOptions::default())?;
    let signer = EthereumSigner::from_hex(key, chain.chain_id().await?, chain.fees())?;
    let to = Some("0x00000000000000000000000000000000000000aa".parse()?);
    let pay = EthereumCall { to, value: "1".parse()?, data: Default::default(), gas: 21_000 };
    let (chain, signer) = (Arc::new(chain), Arc::new(signer));
    Ok(Work { chain, signer, call: pay.encode(), tip: 1_000_000_000 })
}

/// Makes the call.
#[cfg(feature = "substrate")]
pub(crate) fn substrate(
    rpc: &str,
    account: &str,
    signer: &str,
    call: &str,
) -> Result<Work, Failure> {
    let chain = SubstrateChain::new(rpc, Duration::from_secs(10))?;
    let signer = CommandSigner::new(account_of(account)?, signer)?.encoding_for(&chain);
    let call = hex::decode(call.strip_prefix("0x").unwrap_or(call))?.into();
    Ok(Work { chain: Arc::new(chain), signer: Arc::new(signer), call, tip: 0 })
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
pub(crate) async fn relay(dsn: &str, work: Work) -> Result<(), Failure> {
    let Work { chain, signer, call, tip } = work;
    let account = signer.account().clone();

    // The election: one role per account. Every effect carries the epoch or a nonce, so a new
    // leader need not wait for the old one's lease.
    let role = format!("tx:{account}");
    let member = Member::start(
        Config::builder()
            .dsn(dsn.to_owned())
            .role(RoleSpec::named(&role).policy(TakeoverPolicy::Fenced))
            .build()?,
    )
    .await?;
    let lock = member.lock(&role)?;
    lock.start().await?;

    let creator = member.identity().as_str().to_owned();
    let store = Store::new(
        Connector::new(&Dsn::parse(dsn)?, TlsOptions::new())?,
        StoreOptions::new(lock.role().clone(), account, creator),
    );
    let options = ServiceOptions { tip, ..ServiceOptions::default() };
    let service = TransactionService::builder(Mode::group(&lock, store), chain, signer);
    let service = service.options(options).start().await?;

    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        // Both branches are cancel-safe: a timer and a signal.
        tokio::select! {
            _ = seconds.tick() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        let second = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let request = SendRequest::call(call.clone()).with_id(format!("second-{second}"));
        match service.send(request).await {
            Ok(handle) => {
                let state = handle.state();
                println!("nonce {} is {}, {}", handle.nonce, state.hash, state.status.state());
            }
            Err(SendError::NotLeader) => println!("following"),
            Err(error) => println!("not sent: {error}"),
        }
    }
    let drained = service.shutdown(Duration::from_secs(5)).await;
    println!("left {} to the next leader", drained.handed_over);
    member.shutdown(Some(Duration::from_secs(5))).await?;
    Ok(())
}
