//! Real servers, replicas, poolers, a faulty network and separate processes, for Tenure's tests.

mod ca;
mod child;
mod cluster;
mod error;
pub mod history;
mod home;
mod pgbouncer;
mod port;
mod process;
mod proxy;
mod replica;
mod template;

pub use ca::{Ca, ClientCert, ServerCert};
pub use child::Child;
pub use cluster::{Cluster, ClusterOptions, Database, shared_cluster};
pub use error::KitError;
pub use pgbouncer::{PgBouncer, PoolMode};
pub use process::Signal;
pub use proxy::{Direction, Proxy};
pub use replica::ReplicaOptions;
pub use tenure_embedded::Stop;
