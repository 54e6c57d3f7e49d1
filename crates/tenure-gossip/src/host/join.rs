//! A new node before it has anything: which cluster it is about to join, and whether it is let in.

use std::time::Duration;

use super::HostError;
use crate::config::{HostConfig, Start};
use crate::identity::Ed25519Keys;
use crate::net::client::{Client, ClientError};
use crate::storage::Store;

/// How long a new node tries to be let in.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks the nodes to join through whether they let this node in, before anything is made on disk. A node that
/// does not answer is called again later; a node with state has been let in already.
pub(super) async fn probe(config: &HostConfig) -> Result<(), HostError> {
    let Start::Join(seeds) = &config.start else { return Ok(()) };
    if config.invitation.is_some() || config.folder.join("node.redb").exists() {
        return Ok(());
    }
    for seed in seeds {
        let asked =
            Client::connect_to_any(seed, Ed25519Keys::generate(), config.tls.as_ref()).await;
        let Ok(node) = asked else { continue };
        if node.cluster().is_some() && !node.is_open() {
            return Err(HostError::Uninvited(seed.clone()));
        }
        if node.cluster().is_some() && !config.open {
            return Err(HostError::OpenCluster(config.listen.to_string()));
        }
    }
    Ok(())
}

/// Redeems the invitation, if this node has one and belongs to no cluster yet.
pub(super) async fn redeem(
    config: &HostConfig,
    store: &Store,
    keys: &Ed25519Keys,
) -> Result<(), HostError> {
    let (Start::Join(seeds), Some(invitation)) = (&config.start, &config.invitation) else {
        return Ok(());
    };
    if store.get::<[u8; 16]>("cluster")?.is_some() {
        return Ok(());
    }
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut failed = None;
        for seed in seeds {
            let files = config.tls.as_ref();
            match Client::redeem(seed, keys.clone(), invitation, files, PATIENCE / 2).await {
                Ok(nodes) => {
                    store.put("pinned", &nodes)?;
                    return Ok(store.put("cluster", &invitation.cluster)?);
                }
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.unwrap_or(ClientError::Confused);
        let hopeless = matches!(error, ClientError::Refused(_) | ClientError::Impostor(_));
        if hopeless || tokio::time::Instant::now() >= until {
            return Err(HostError::NotLetIn(error));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
