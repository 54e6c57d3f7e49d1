//! `--sync-command`: a program that keeps a follower's own data up with the leader's.

use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use tenure_tx::{FollowerSync, Readiness};
use tokio::process::Command;
use tokio::time::timeout;

/// How long one run may take: files may be large, and a run that hangs must not pass for one that works.
const WITHIN: Duration = Duration::from_secs(600);

/// Runs the program again and again while this node follows. Dropping a run kills it.
pub(super) struct SyncCommand {
    program: String,
    arguments: Vec<String>,
}

impl SyncCommand {
    /// The program and its arguments, separated by white space; `None` if nothing is named.
    pub(super) fn new(command: &str) -> Option<Self> {
        let mut words = command.split_whitespace().map(str::to_owned);
        Some(SyncCommand { program: words.next()?, arguments: words.collect() })
    }
}

#[async_trait]
impl FollowerSync for SyncCommand {
    async fn sync(&self) -> Readiness {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.kill_on_drop(true);
        // Its arguments are never quoted: they may hold a secret.
        match timeout(WITHIN, command.status()).await {
            Ok(Ok(status)) if status.success() => Readiness::Ready,
            Ok(Ok(status)) => Readiness::Behind(format!("--sync-command ended with {status}")),
            Ok(Err(error)) => {
                Readiness::Behind(format!("--sync-command cannot be started: {error}"))
            }
            Err(_) => Readiness::Behind(format!("--sync-command took longer than {WITHIN:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn exit_code_0_is_ready_and_everything_else_is_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        let test = format!("test -e {}", file.display());
        let sync = SyncCommand::new(&test).expect("a program");
        assert!(matches!(sync.sync().await, Readiness::Behind(_)));
        std::fs::write(&file, "").expect("written");
        assert_eq!(sync.sync().await, Readiness::Ready);
        let nowhere = SyncCommand::new("/nowhere --secret").expect("a program");
        let Readiness::Behind(why) = nowhere.sync().await else { panic!("ready") };
        assert!(why.contains("cannot be started") && !why.contains("secret"), "{why}");
        assert!(SyncCommand::new(" ").is_none());
    }
}
