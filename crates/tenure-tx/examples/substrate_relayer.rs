//! A relayer for a Substrate chain: start it three times for one account, kill any of them.
//!
//! ```sh
//! cargo run -p tenure-tx --features substrate --example substrate_relayer -- \
//!     postgres://localhost/app ws://127.0.0.1:9944 \
//!     5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY ./sign 0x000008676d
//! ```
//!
//! `./sign` is a program of yours that knows the runtime and holds the key: it is given nonce, tip
//! and call as JSON and prints the signed extrinsic in hex (see `CommandSigner`). The last argument
//! is the call, SCALE-encoded. Whichever node leads sends it every ten seconds, named by its time,
//! so a takeover never sends one twice.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::config::{Config, RoleSpec};
use tenure::{Leadership as _, Member, TakeoverPolicy};
use tenure_connect::Connector;
use tenure_connect::Dsn;
use tenure_connect::TlsOptions;
use tenure_tx::chain::substrate::{CommandSigner, SubstrateChain, account_of};
use tenure_tx::leadership::Leadership;
use tenure_tx::service::{Parts, SendError, SendRequest, ServiceOptions, TransactionService};
use tenure_tx::store::{Store, StoreOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dsn, rpc, account, signer, call] = arguments.as_slice() else {
        return Err("give the database, the node, the account, the signer and the call".into());
    };
    relay(dsn, rpc, account, signer, call).await
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
pub(crate) async fn relay(
    dsn: &str,
    rpc: &str,
    account: &str,
    signer: &str,
    call: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let account = account_of(account)?;
    let call = bytes_of(call).ok_or("the call is not hex")?;
    let chain = SubstrateChain::new(rpc, Duration::from_secs(10))?;
    let signer = CommandSigner::new(account.clone(), signer)?;

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
    let service = TransactionService::start(parts, ServiceOptions::default()).await?;

    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        // Both branches are cancel-safe: a timer and a signal.
        tokio::select! {
            _ = seconds.tick() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 10;
        let request = SendRequest::call(call.clone()).with_id(format!("time-{time}"));
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

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.strip_prefix("0x")?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}
