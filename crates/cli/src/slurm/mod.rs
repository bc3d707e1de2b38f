//! `tidepool slurm`: what the batch system, and people who write scripts for it, ask of tidepool.

pub mod flags;
pub mod lint;
pub mod site;

use crate::exit::Result;
use flags::SlurmCommand;
use std::process::ExitCode;

pub fn dispatch(command: &SlurmCommand) -> Result<ExitCode> {
    match command {
        SlurmCommand::Lint(args) => lint::lint(args),
    }
}
