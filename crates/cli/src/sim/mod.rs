//! `tidepool sim`: the event kernel of the simulators. Guide: `docs/guide/simulator.md`.

mod disk;
pub mod disk_flags;
mod engine;
pub mod flags;
mod group;
mod pfs_flags;
mod phold;
mod run;
mod scale;
mod tiers;
mod tune;

use crate::exit::Result;
use flags::SimCommand;
use std::process::ExitCode;

pub fn dispatch(command: &SimCommand) -> Result<ExitCode> {
    match command {
        SimCommand::Phold(args) => phold::phold(args),
        SimCommand::Scale(args) => scale::scale(args),
        SimCommand::Run(args) => run::run(args),
        SimCommand::Tune(args) => tune::tune(args),
        SimCommand::Calibrate(command) => disk::calibrate(command),
        SimCommand::Validate(command) => disk::validate(command),
        SimCommand::Tiers(args) => tiers::tiers(args),
    }
}
