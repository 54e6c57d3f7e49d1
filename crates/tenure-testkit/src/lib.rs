//! Real servers, replicas, poolers, a faulty network and separate processes, for Tenure's tests.
//!
//! Nothing here imitates: a [`Cluster`] is PostgreSQL, a [`PgBouncer`] is PgBouncer, a [`Child`] is a
//! process, and the [`Proxy`] moves real TCP. The tools come from `scripts/setup.sh`.
//!
//! | to | use |
//! |---|---|
//! | get a database for one test | [`database`] |
//! | get a server to break | [`Cluster::start`], [`Cluster::start_with`]`(`[`ClusterOptions`]`)` |
//! | connect | [`Cluster::dsn`], [`Cluster::dsn_for`], [`Cluster::socket_dsn`]; [`Cluster::client`], [`Cluster::sql`] |
//! | restart, crash, hang it | [`Cluster::restart`], [`Cluster::stop`], [`Cluster::crash`], [`Cluster::start_again`], [`Cluster::freeze`], [`Cluster::thaw`] |
//! | fail over | [`Cluster::replica`]`(`[`ReplicaOptions`]`)`, [`Cluster::wait_caught_up`], [`Cluster::promote`], [`Cluster::pause_receiving`], [`Cluster::pause_replay`] |
//! | change a setting, read the log | [`Cluster::set`], [`Cluster::log`] |
//! | put a pooler in front | [`PgBouncer::start`]`(&cluster, `[`PoolMode`]`, settings)` |
//! | break the network | [`Proxy::start`]`(cluster.addr())`, then [`Proxy::delay`], [`Proxy::blackhole`]`(`[`Direction`]`)`, [`Proxy::reset`], [`Proxy::sever`], [`Proxy::refuse`], [`Proxy::heal`] |
//! | run, freeze, kill a program | [`Child::spawn`], [`Child::wait_line`], [`Child::signal`], [`Child::freeze`], [`Child::thaw`], [`Child::kill`] |
//! | wait for a fact, or for an event of a program | [`until`], [`event`] |
//! | prove that no two members led at the same time | [`history::check`] |
//! | run a chain | [`anvil::Anvil::start`], [`substrate::ScriptedNode::start`], [`substrate::imitation::ImitatedNode::start`], [`substrate::development::DevelopmentNode::start`] |
//! | record a Substrate node, or play it from a recording | [`substrate::gateway::Gateway`] |
//! | let its node misbehave | [`rpc_proxy::RpcProxy::start`]`(&anvil.url)`, then [`rpc_proxy::RpcProxy::rule`]`(`[`rpc_proxy::Fault`]`)` |
//! | read which metrics were emitted | [`Meter::install`], or a [`Meter`] of one thread |
//! | speak TLS | [`Ca::new`], [`Ca::localhost`], [`Ca::server`], [`Ca::client`] |
//!
//! ```
//! use std::time::Duration;
//! use tenure_testkit::{Child, Cluster, Direction, Proxy, history};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let cluster = Cluster::start().await?;
//! let proxy = Proxy::start(cluster.addr()).await?;
//!
//! // A member in a process of its own, which reaches the database through the proxy.
//! let mut member = tokio::process::Command::new("sh");
//! member.args(["-c", r#"
//!     echo ready
//!     echo '{"event":"open","role":"r","epoch":1,"member":"a","at_ns":10}'
//!     echo '{"event":"shut","role":"r","epoch":1,"member":"a","at_ns":20}'
//! "#]);
//! member.env("DSN", proxy.dsn("postgres"));
//! let mut member = Child::spawn(member)?;
//! member.wait_line(|line| line == "ready", Duration::from_secs(10)).await?;
//!
//! proxy.blackhole(Direction::Both);
//! member.wait(Duration::from_secs(10)).await?;
//! proxy.heal();
//! cluster.restart().await?;
//!
//! let report = history::check(&history::Event::parse_all(member.lines()))?;
//! assert_eq!(report.terms("r").len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it guarantees
//!
//! - **Quick.** `initdb` runs once per version and machine; every cluster is a copy of that.
//! - **As root or not.** Root's servers run as `postgres`, else as `nobody`.
//! - **Nothing stays behind**, neither processes nor folders nor shared memory: not after a panic
//!   (`Drop`), not after the end of the process (statics), not after its `kill -9` (a watchdog that
//!   waits at the other end of a pipe).
//! - **A port stays**: a stopped server's port is not given to another server.
//! - **The runtime is never blocked**: what takes time runs on other threads.
//!
//! # What it does not
//!
//! `fsync` is off and all else is PostgreSQL's default, so [`Cluster::crash`] loses what PostgreSQL
//! had not yet handed to the kernel (asynchronous commits), and nothing more. Copies of the template share
//! a system identifier ([`ClusterOptions::own_identity`]). It needs Linux's `/proc`.
//!
//! # Versions
//!
//! `TENURE_TEST_PG=18` has every cluster run that major version: an installed one, or that of
//! `.tools/`. Without it: what [`tenure_embedded::Binaries::find`] finds. The packages in
//! `.tools/` have no `pg_basebackup`, hence no replicas.

pub mod anvil;
mod ca;
mod child;
mod cluster;
mod error;
pub mod history;
mod home;
mod meter;
mod patience;
mod pgbouncer;
mod port;
mod process;
mod proxy;
mod replica;
pub mod rpc_proxy;
pub mod substrate;
mod template;

pub use ca::{Ca, ClientCert, ServerCert};
pub use child::Child;
pub use cluster::{Cluster, ClusterOptions, Database, database, shared_cluster};
pub use error::KitError;
pub use meter::Meter;
pub use patience::{PATIENCE, event, event_of, until};
pub use pgbouncer::{PgBouncer, PoolMode};
pub use port::free_port;
pub use process::Signal;
pub use proxy::{Direction, Proxy};
pub use replica::ReplicaOptions;
pub use tenure_embedded::Stop;
