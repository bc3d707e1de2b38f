//! `tidepool tiers`: how storage bears many processes at once. Guide: `docs/guide/tiers.md`.

pub mod flags;
mod measure;
mod picture;
mod report;
mod worker;

use crate::exit::{Context, Failure, Kind, Result};
use flags::{ShowArgs, TiersCommand};
use std::process::ExitCode;
use tidepool_shape::{FILE_NAME, Measured};

pub fn dispatch(command: &TiersCommand) -> Result<ExitCode> {
    match command {
        TiersCommand::Measure(args) => measure::measure(args),
        TiersCommand::Show(args) => show(args),
        TiersCommand::Worker(args) => worker::run(args),
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let dir = std::path::absolute(&args.dir).context(Kind::Usage, || args.dir.display().to_string())?;
    let measured = Measured::read(&dir).map_err(|e| Failure::new(Kind::Other, e.to_string()))?;
    let Some(measured) = measured else {
        let text =
            format!("{} has no {FILE_NAME}; 'tidepool tiers measure {0}' makes it", args.dir.display());
        return Err(Failure::new(Kind::Other, text));
    };
    match args.json {
        true => println!("{}", report::value(&dir, &measured)),
        false => print!("{}", report::text(&dir, &measured)),
    }
    Ok(ExitCode::SUCCESS)
}
