//! Real servers, replicas, poolers, a faulty network and separate processes, for Tenure's tests.

mod ca;
mod cluster;
mod error;
mod home;
mod port;
mod process;
mod template;

pub use ca::{Ca, ClientCert, ServerCert};
pub use cluster::{Cluster, ClusterOptions, Database, shared_cluster};
pub use error::KitError;
pub use process::Signal;
pub use tenure_embedded::Stop;
