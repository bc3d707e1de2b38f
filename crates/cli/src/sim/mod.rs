//! `tidepool sim`: the event kernel of the simulators. Guide: `docs/guide/simulator.md`.

mod disk;
pub mod disk_flags;
pub mod flags;
mod phold;

use crate::exit::Result;
use flags::SimCommand;
use std::process::ExitCode;

pub fn dispatch(command: &SimCommand) -> Result<ExitCode> {
    match command {
        SimCommand::Phold(args) => phold::phold(args),
        SimCommand::Calibrate(command) => disk::calibrate(command),
        SimCommand::Validate(command) => disk::validate(command),
    }
}
