//! `tidepool sim`: the event kernel of the simulators. Guide: `docs/guide/simulator.md`.

pub mod flags;
mod phold;
mod tiers;

use crate::exit::Result;
use flags::SimCommand;
use std::process::ExitCode;

pub fn dispatch(command: &SimCommand) -> Result<ExitCode> {
    match command {
        SimCommand::Phold(args) => phold::phold(args),
        SimCommand::Tiers(args) => tiers::tiers(args),
    }
}
