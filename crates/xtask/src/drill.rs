//! `drill`: a real Patroni cluster, real members, one fault at a time.
//!
//! Three servers under Patroni, an etcd and three members with a child each run on one machine, every one of
//! them in a network namespace of its own. A fault is one of [`Fault`], by name. While it lasts and heals, each
//! child writes down when it acted, and a probe on each server when it could commit. Then:
//!
//! - the checker of the test kit looks at what the children wrote: never two epochs at once;
//! - *without*: the longest time in which no child acted, which includes what Patroni needs;
//! - *after commit*: how much of that time the database could already commit. Promised are the reconnect and
//!   lease + margin.
//!
//! Every row is written to a file at once, and a fault that has a row is not drilled again: an interrupted
//! drill goes on where it was. Drills of different configurations may run at the same time.

mod children;
mod cluster;
mod fault;
mod network;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tenure_testkit::history::now_ns;
use tokio::time::sleep;

pub(crate) use children::{TickArgs, tick};

use crate::say;
use children::Members;
use cluster::{Cluster, Setup};
use fault::Fault;
use network::Network;
use report::{Results, Row};

/// How long everything runs well before a fault, so that there is something to break.
const CALM: Duration = Duration::from_secs(3);
/// How long a cluster may take until it is whole again.
const HEALING: Duration = Duration::from_secs(400);
const INTERRUPTED: u8 = 130;
/// Refused: what the drill needs is not there.
const REFUSED: u8 = 2;

/// What to drill.
#[derive(Debug, Args)]
pub(crate) struct DrillArgs {
    /// One configuration [default: all]
    #[arg(long = "config")]
    setup: Option<Setup>,
    /// One fault, or several [default: all]
    #[arg(long)]
    fault: Vec<Fault>,
    /// The names of faults and configurations, and what is missing
    #[arg(long)]
    list: bool,
    /// The table of what was drilled so far
    #[arg(long)]
    table: bool,
    /// Drill also what has a row already
    #[arg(long)]
    again: bool,
    /// Where logs and data are kept
    #[arg(long, default_value = "target/drill")]
    folder: PathBuf,
    /// Where the rows are kept: what is drilled is not drilled again
    #[arg(long, default_value = ".drill/rows.jsonl")]
    rows: PathBuf,
    /// Patroni's programs
    #[arg(long, default_value = ".tools/patroni/bin")]
    patroni: PathBuf,
    /// The `tenure` program [default: the one beside this program]
    #[arg(long)]
    program: Option<PathBuf>,
}

pub(crate) async fn run(args: DrillArgs) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.folder)?;
    let folder = args.folder.canonicalize()?;
    if let Some(folder) = args.rows.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut results = Results::open(&args.rows)?;
    network::name(args.setup.map(Setup::name));
    let setups = args.setup.map_or_else(|| Setup::value_variants().to_vec(), |setup| vec![setup]);
    let faults = match args.fault.as_slice() {
        [] => Fault::value_variants().to_vec(),
        named => named.to_vec(),
    };
    if args.list {
        return list(&results, &setups, &faults);
    }
    if args.table {
        say(results.table())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(error) = network::privilege().await {
        say(format!("drill: {error}"))?;
        return Ok(ExitCode::from(REFUSED));
    }
    let patroni = match args.patroni.canonicalize() {
        Ok(folder) if folder.join("patroni").exists() => folder,
        Ok(_) | Err(_) => {
            say(
                "drill: Patroni is not there; run `scripts/setup.sh drill`, or name it with --patroni",
            )?;
            return Ok(ExitCode::from(REFUSED));
        }
    };
    let program = match args.program {
        Some(program) => program.canonicalize()?,
        None => std::env::current_exe()?.with_file_name("tenure"),
    };
    let mut sound = true;
    for setup in setups {
        let missing: Vec<Fault> = faults
            .iter()
            .copied()
            .filter(|fault| args.again || !results.has(setup, *fault))
            .collect();
        if missing.is_empty() {
            continue;
        }
        let folder = folder.join(setup.name());
        let drilled = drill(&folder, &patroni, &program, setup, &missing, &mut results);
        // What a dropped drill started is killed; what it wrote is kept.
        tokio::select! {
            kept = drilled => sound &= kept?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(INTERRUPTED)),
        }
    }
    say(results.table())?;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(results: &Results, setups: &[Setup], faults: &[Fault]) -> anyhow::Result<ExitCode> {
    for setup in setups {
        say(format!("{}: {}", setup.name(), setup.meaning()))?;
        for fault in faults {
            let done = if results.has(*setup, *fault) { "done   " } else { "missing" };
            say(format!("  {done}  {:<28} {}", fault.name(), fault.meaning()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Drills one configuration. Returns whether every promise was kept.
async fn drill(
    folder: &Path,
    patroni: &Path,
    program: &Path,
    setup: Setup,
    faults: &[Fault],
    results: &mut Results,
) -> anyhow::Result<bool> {
    say(format!("{}: {}", setup.name(), setup.meaning()))?;
    let network = Network::build().await?;
    let mut cluster = Cluster::start(folder, patroni, setup).await?;
    cluster.whole(HEALING).await.context("the cluster's first start")?;
    cluster.migrate(program).await?;
    let mut members = Members::start(folder, program)?;
    members.acts(HEALING).await?;
    let mut sound = true;
    for fault in faults {
        sleep(CALM).await;
        let begun = Instant::now();
        let row = one(&network, &mut cluster, &mut members, setup, *fault).await?;
        say(format!("{} ({} s)", row.line(), begun.elapsed().as_secs()))?;
        sound &= row.is_sound();
        results.add(row)?;
    }
    members.end().await;
    cluster.end().await;
    network.remove().await;
    Ok(sound)
}

async fn one(
    network: &Network,
    cluster: &mut Cluster,
    members: &mut Members,
    setup: Setup,
    fault: Fault,
) -> anyhow::Result<Row> {
    members.mark();
    let begun = now_ns();
    fault.strike(network, cluster, members).await?;
    // Whatever the fault left: everything is mended and wanted back.
    network.heal().await?;
    members.mend()?;
    cluster.mend().await?;
    cluster.whole(HEALING).await.with_context(|| format!("after {}", fault.name()))?;
    members.acts(HEALING).await?;
    sleep(Duration::from_secs(1)).await;
    let commits = cluster.commits(begun);
    Row::of(setup, fault, &members.acts_since_mark()?, &commits)
}
