//! The Rust of the manual, compiled. `docs.rs` compares both, line for line.
#![allow(dead_code, unused_variables, reason = "it is compiled, not run")]

use std::error::Error;
use std::time::Duration;

use tenure::{Epoch, LeaderGate};

type Outcome = Result<(), Box<dyn Error>>;

async fn schedule(_epoch: Epoch) {}

#[rustfmt::skip]
async fn readme() -> Outcome {
    let (member, lock) = tenure::lead("postgresql://localhost/app", "scheduler").await?;

    // Called when the gate opens, dropped when it shuts, called again in the next term.
    lock.while_leading(|term| async move { schedule(term.epoch).await }).await?;

    // Or act by act, from anywhere in the program:
    let act = lock.begin_act(Duration::from_secs(1))?; // refused unless the lease covers it
    // … what only the leader may do, with act.epoch() as its fencing token …
    act.finish()?;                                     // or: the effect is uncertain
    Ok(())
}

fn configuration() -> Outcome {
    let config = tenure::config::Config::builder()
        .file("/etc/tenure.toml")?
        .env(tenure::connect::dsn::ProcessEnv)
        .role(tenure::config::RoleSpec::named("scheduler"))
        .build()?;
    Ok(())
}

async fn fence(gate: LeaderGate, mut client: tokio_postgres::Client) -> Outcome {
    let token = gate.require_leader()?;
    let transaction = client.transaction().await?;
    tenure::fence(&transaction, "scheduler", token.epoch).await?;
    transaction.execute("insert into job_run (job) values ($1)", &[&"nightly"]).await?;
    transaction.commit().await?;
    Ok(())
}

mod agent {
    use std::io;

    use jiff::Timestamp;
    use tenure::{Epoch, Member, RoleName};
    use tenure_agent::{Schedule, Schedules};

    use super::Outcome;

    async fn backup(_slot: Timestamp, _epoch: Epoch) -> io::Result<()> {
        Ok(())
    }

    #[rustfmt::skip]
    fn guide(member: Member, role: RoleName) -> Outcome {
        let serving = Schedules::new()
            .add(Schedule::new("nightly", role, "0 3 * * *")?.timezone("Europe/Berlin")?, |run| async move {
                backup(run.slot, run.epoch).await
            })
            .start(&member)?;
        Ok(())
    }
}

#[cfg(feature = "tx")]
mod transactions {
    use std::sync::Arc;

    use bytes::Bytes;
    use tenure::LeaderLock;
    use tenure_tx::{Chain, Mode, SendRequest, Signer, Store, TransactionService};

    use super::Outcome;

    #[rustfmt::skip]
    async fn guide(lock: LeaderLock, store: Store, chain: Arc<dyn Chain>, signer: Arc<dyn Signer>, call: Bytes) -> Outcome {
        let service = TransactionService::builder(Mode::group(&lock, store), chain, signer).start().await?;
        let mut handle = service.send(SendRequest::call(call).with_id("invoice-7")).await?;   // stored
        let end = handle.ended().await;                                                       // final
        Ok(())
    }
}

#[cfg(feature = "gossip")]
mod gossip {
    use tenure_gossip::{Host, HostConfig, Kv, Start};

    use super::Outcome;

    #[rustfmt::skip]
    async fn guide() -> Outcome {
        let host = Host::<Kv>::start(HostConfig::new("data", "10.0.0.1:7400".parse()?, Start::Resume)).await?;
        let gate = host.gate("main").unwrap();     // the same LeaderGate as on PostgreSQL
        let token = gate.require_leader()?;        // epoch = the term of consensus
        Ok(())
    }
}
