//! `tenure gossip backup | restore | force-recover`: a cluster's state in a file, and a new generation of it.

use std::path::{Path, PathBuf};

use clap::Args;
use tenure_gossip::{Backup, BackupError, Generation, Kv, Reach, Survivor};

use super::{ANSWER, NodeAddress};
use crate::exit::{Exit, Failure};
use crate::output::out;

/// Which node, and into which file.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// The file to write. It must not exist.
    file: PathBuf,
}

/// Which file, and into which folder.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The folder of the new cluster's first node. It must not exist
    #[arg(long)]
    data: PathBuf,
    /// The file that `tenure gossip backup` wrote.
    file: PathBuf,
}

/// Which survivor, and into which folder.
#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The folder of a survivor that is stopped: of several, the one whose last entry is largest
    #[arg(long)]
    data: PathBuf,
    /// The folder of the new cluster's first node. It must not exist
    #[arg(long)]
    into: PathBuf,
    /// Yes: what the survivor does not have is lost, and no other node of the former cluster will run again
    #[arg(long)]
    accept_data_loss: bool,
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        match &error {
            BackupError::NotEmpty(_)
            | BackupError::NoState(_)
            | BackupError::Retired(_)
            | BackupError::Unfinished(_)
            | BackupError::Inside(_)
            | BackupError::OtherForm { .. }
            | BackupError::Damaged { .. } => Failure::usage(error.to_string()),
            // `BackupError` may grow; whatever it says, no node was made that starts.
            _ => Failure::failed(error.to_string()),
        }
    }
}

pub(super) async fn backup(args: BackupArgs) -> Result<Exit, Failure> {
    if args.file.exists() {
        let why = "there is such a file already; name another";
        return Err(Failure::usage(format!("{}: {why}", args.file.display())));
    }
    let mut client = args.at.connect().await?;
    let backup = client.backup(ANSWER).await.map_err(|error| args.at.failure(&error))?;
    backup.write(&args.file)?;
    list(&backup.reach());
    Ok(Exit::Clean)
}

pub(super) fn restore(args: &RestoreArgs) -> Result<Exit, Failure> {
    let made = Backup::read(&args.file)?.restore::<Kv>(&args.data)?;
    say(&made, &args.data);
    Ok(Exit::Clean)
}

pub(super) fn force_recover(args: &RecoverArgs) -> Result<Exit, Failure> {
    let survivor = Survivor::open(&args.data, &args.into)?;
    list(&survivor.reach());
    if !args.accept_data_loss {
        return Err(Failure::usage(
            "nothing was done. What the other voters acknowledged and this folder does not have will be lost, \
             and the other nodes of the former cluster must never run again: stop them, remove their folders. \
             Compare the last entries of all survivors, take the largest, and repeat with --accept-data-loss",
        ));
    }
    let made = survivor.recover::<Kv>()?;
    say(&made, &args.into);
    Ok(Exit::Clean)
}

fn list(reach: &[Reach]) {
    for space in reach {
        let (term, entry) = space.last_entry;
        let name = &space.namespace;
        out!("{name}: up to record {}, last entry {term}/{entry}", space.index);
    }
}

fn say(made: &Generation, folder: &Path) {
    out!("cluster {} begins with node {}", made.cluster, made.node);
    out!("start it: tenure gossip node --data {} --listen ADDRESS", folder.display());
    out!("let the others join with fresh folders; clients and operators accept new invitations");
}
