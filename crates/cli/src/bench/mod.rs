//! `tidepool bench`: a pool beside the file system it is made of. Guide: `docs/guide/bench.md`.
//!
//! The same worker processes do the same work on both in turn (pool, native, pool, native,
//! ...), so that what else happens on the node meets both alike.

mod footprint;
mod harness;
mod io;
mod md;
mod remote;
pub mod report;
mod stager;
mod start;
mod tcp;
mod worker;

use crate::exit::Result;
use crate::flags::BenchCommand;
use crate::flags::BenchShape;
use crate::output::ProgressLine;
use harness::{Harness, Side};
use report::{Report, Sample};
use std::process::ExitCode;
use worker::{Phase, Work};

pub fn dispatch(command: &BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Md(args) => md::bench(args),
        BenchCommand::Io(args) => io::bench(args),
        BenchCommand::Start(args) => start::bench(args),
        BenchCommand::Footprint(args) => footprint::bench(args),
        BenchCommand::Tcp(args) => tcp::bench(args),
        BenchCommand::Stager(args) => stager::bench(args),
        BenchCommand::Worker(args) => worker::run(args),
        BenchCommand::StagerClient(args) => stager::client(args),
        BenchCommand::RemoteClient(args) => remote::client(args),
        BenchCommand::Echo(args) => remote::echo(args),
    }
}

/// One kind of work, with its name for people.
struct Case {
    name: String,
    work: Work,
}

/// Measures all cases and shows the result.
fn run(bench: &'static str, shape: &BenchShape, cases: &[Case], phases: &[Phase]) -> Result<ExitCode> {
    let mut harness = Harness::start(shape)?;
    let mut progress = ProgressLine::new();
    let mut samples = Vec::new();
    for repeat in 0..shape.repeats {
        harness.begin_repeat(repeat)?;
        for case in cases {
            for side in [Side::Pool, Side::Native] {
                progress.draw(&format!(
                    "repeat {} of {}: {}, {side:?}",
                    repeat + 1,
                    shape.repeats,
                    case.name
                ));
                for measured in harness.measure(side, &case.work, phases)? {
                    samples.push(Sample { repeat, case: case.name.clone(), side, measured });
                }
            }
        }
    }
    progress.clear();
    let report = Report::new(bench, shape, &harness, samples);
    harness.stop()?;
    if shape.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text());
    }
    if let Some(dir) = &shape.raw {
        let path = report.write_raw(dir)?;
        eprintln!("raw results: {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
