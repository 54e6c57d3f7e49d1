//! A gossip election and a replicated history that cannot diverge, for groups without a database.

pub mod bug;
#[cfg(feature = "cli")]
pub mod cli;
pub mod commit;
pub mod election;
pub mod gossip;
pub mod history;
pub mod identity;
pub mod kv;
pub mod machine;
pub mod message;
pub mod metrics;
pub mod net;
pub mod node;
pub mod sim;
pub mod spray;
pub mod storage;
pub mod time;
