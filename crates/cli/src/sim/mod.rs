//! `tidepool sim`: the event kernel of the simulators. Guide: `docs/guide/simulator.md`.

pub mod convert;
mod disk;
pub mod disk_flags;
mod engine;
mod experiment;
pub mod files;
pub mod flags;
mod group;
mod html;
pub mod inputs_flags;
mod kept;
mod outputs;
mod pfs_flags;
mod phold;
mod pool_options;
mod rows;
mod run;
mod runs;
mod scale;
mod storage;
mod storage_flags;
mod sweep;
mod tiers;
mod timeline;
mod told;
mod tune;

use crate::exit::Result;
use disk_flags::{CalibrateCommand, ValidateCommand};
use flags::SimCommand;
use std::process::ExitCode;

pub fn dispatch(command: &SimCommand) -> Result<ExitCode> {
    match command {
        SimCommand::Phold(args) => phold::phold(args),
        SimCommand::Scale(args) => scale::scale(args),
        SimCommand::Run(args) => run::run(args),
        SimCommand::Tune(args) => tune::tune(args),
        SimCommand::Sweep(args) => sweep::sweep(args),
        SimCommand::Convert(args) => convert::convert(args),
        SimCommand::Experiment(args) => experiment::experiment(args),
        SimCommand::Calibrate(CalibrateCommand::Disk(args)) => disk::calibrate(args),
        SimCommand::Calibrate(CalibrateCommand::Storage(args)) => storage::calibrate(args),
        SimCommand::Validate(ValidateCommand::Disk(args)) => disk::validate(args),
        SimCommand::Validate(ValidateCommand::Storage(args)) => storage::validate(args),
        SimCommand::Tiers(args) => tiers::tiers(args),
    }
}
