//! `bench`.
use clap::Args;
use std::process::ExitCode;
/// x
#[derive(Debug, Args)]
pub struct BenchArgs {}
pub(super) async fn run(_args: BenchArgs) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
