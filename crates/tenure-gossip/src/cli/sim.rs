//! `sim`.
use clap::Args;
use std::process::ExitCode;
/// x
#[derive(Debug, Args)]
pub struct SimArgs {}
pub(super) fn run(_args: &SimArgs) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
