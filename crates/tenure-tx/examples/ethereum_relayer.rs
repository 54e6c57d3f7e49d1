//! A relayer for Ethereum: start it three times with one key, kill any of them.
//!
//! ```sh
//! anvil &
//! export RELAYER_KEY=ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80
//! cargo run -p tenure-tx --features ethereum --example ethereum_relayer -- \
//!     postgres://localhost/app http://127.0.0.1:8545
//! ```
//!
//! Whichever leads pays one wei every second; the others say that they follow. Payments are named
//! by their second, so a takeover never pays twice for one.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::config::{Config, RoleSpec};
use tenure::{Leadership as _, Member, TakeoverPolicy};
use tenure_connect::Connector;
use tenure_connect::Dsn;
use tenure_connect::TlsOptions;
use tenure_tx::account::Signer as _;
use tenure_tx::chain::ethereum::{EthereumCall, EthereumChain, EthereumOptions, EthereumSigner};
use tenure_tx::leadership::Leadership;
use tenure_tx::service::{Parts, SendError, SendRequest, ServiceOptions, TransactionService};
use tenure_tx::store::{Store, StoreOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dsn, rpc] = arguments.as_slice() else {
        return Err("give the database and the chain's node".into());
    };
    let key = std::env::var("RELAYER_KEY").map_err(|_| "set RELAYER_KEY to the private key")?;
    relay(dsn, rpc, &key).await
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
pub(crate) async fn relay(
    dsn: &str,
    rpc: &str,
    key: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let chain = EthereumChain::new(rpc, EthereumOptions::default())?;
    let signer = EthereumSigner::from_hex(key, chain.chain_id().await?, chain.fees())?;
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
    let deadline = Duration::from_secs(5);
    let store = Store::new(
        Connector::new(&Dsn::parse(dsn)?, TlsOptions::new())?,
        StoreOptions { role, account, creator, deadline },
    );
    let parts = Parts {
        leadership: Leadership::of(&lock),
        store: Some(store),
        chain: Arc::new(chain),
        signer: Arc::new(signer),
        follower_sync: None,
    };
    let options = ServiceOptions { tip: 1_000_000_000, ..ServiceOptions::default() };
    let service = TransactionService::start(parts, options).await?;

    let to = "0x00000000000000000000000000000000000000aa".parse()?;
    let pay =
        EthereumCall { to: Some(to), value: "1".parse()?, data: Default::default(), gas: 21_000 };
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        // Both branches are cancel-safe: a timer and a signal.
        tokio::select! {
            _ = seconds.tick() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        let second = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let request = SendRequest::call(pay.encode()).with_id(format!("second-{second}"));
        match service.send(request).await {
            Ok(handle) => println!("nonce {} is {}", handle.nonce, handle.state().hash),
            Err(SendError::NotLeader) => println!("following"),
            Err(error) => println!("not sent: {error}"),
        }
    }
    let drained = service.shutdown(Duration::from_secs(5)).await;
    println!("left {} to the next leader", drained.handed_over);
    member.shutdown(Some(Duration::from_secs(5))).await?;
    Ok(())
}
