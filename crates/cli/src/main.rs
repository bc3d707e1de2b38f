//! The command `tidepool`.

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

mod access;
mod agent;
mod allocation;
mod backend;
mod bench;
mod check;
mod copy;
mod cores;
mod crew;
mod doctor;
mod drain;
mod exec;
mod exit;
mod flags;
mod flush;
mod hints;
mod instance;
mod jobs;
mod jobscript;
mod launch;
mod layout;
mod meters;
mod metrics;
mod mount;
mod node_clean;
mod outfile;
mod output;
mod page;
mod place;
mod plan;
mod plot;
mod pool;
mod process;
mod reach;
mod record;
mod relay;
mod remote;
mod run;
mod side_by_side;
mod signals;
mod sim;
mod slurm;
mod stage;
mod stagers;
mod staging;
mod streams;
mod sysmap;
mod tiers;
mod top;
mod topology;
mod trace;
mod workload;

use clap::{CommandFactory, Parser};
use exit::Context;
use flags::{Cli, Command, TraceCommand};
use std::path::Path;
use std::process::ExitCode;

/// What a shell shows for a program that SIGPIPE ended.
const SIGPIPE_CODE: i32 = 128 + 13;

fn main() -> ExitCode {
    end_when_nothing_can_be_printed();
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("tidepool: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// `tidepool ... | head` shall end like other commands when `head` has enough. Rust ignores
/// SIGPIPE and `println!` panics instead; setting the signal back would need unsafe code. Where there is no room
/// for what a command prints, it is an error like others.
fn end_when_nothing_can_be_printed() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        match text.strip_prefix("failed printing to stdout: ") {
            Some(why) if why.contains("Broken pipe") => std::process::exit(SIGPIPE_CODE),
            Some(why) => {
                eprintln!("tidepool: standard output: {why}");
                std::process::exit(exit::Kind::Other.code().into());
            }
            None => default(info),
        }
    }));
}

fn write_manual(dir: &Path) -> exit::Result<ExitCode> {
    let written = tidepool_man::write_pages(Cli::command(), dir);
    let count = written.context(exit::Kind::Other, || dir.display().to_string())?;
    println!("{count} pages in {}", dir.display());
    Ok(ExitCode::SUCCESS)
}

fn dispatch(cli: Cli) -> exit::Result<ExitCode> {
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Pool(command) => pool::dispatch(&command),
        Command::Plan(args) => plan::plan(&args),
        Command::Exec(args) => exec::exec(&args),
        Command::Mount(args) => mount::mount(&args),
        Command::Ls(args) => access::ls(&args),
        Command::Cat(args) => access::cat(&args),
        Command::Cp(args) => copy::cp(&args),
        Command::Rm(args) => access::rm(&args),
        Command::Mkdir(args) => access::mkdir(&args),
        Command::Layout(command) => layout::dispatch(&command),
        Command::Top(args) => top::top(&args),
        Command::Metrics(args) => metrics::metrics(&args),
        Command::Drain(args) => drain::drain(&args),
        Command::Check(args) => check::check(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Trace(TraceCommand::Posix(args)) => trace::posix(&args),
        Command::Trace(TraceCommand::Io(args)) => trace::io::io(&args),
        Command::Bench(command) => bench::dispatch(&command),
        Command::Workload(command) => workload::dispatch(&command),
        Command::Tiers(command) => tiers::dispatch(&command),
        Command::Sim(command) => sim::dispatch(&command),
        Command::Stage(args) => stage::dispatch(&args),
        Command::Sysmap(command) => sysmap::dispatch(&command),
        Command::Sysquery(args) => sysmap::sysquery(&args),
        Command::Topology(command) => topology::dispatch(&command),
        Command::Jobs(command) => jobs::dispatch(&command),
        Command::NodeCheck(args) => doctor::health::check(&args),
        Command::NodeClean(args) => node_clean::node_clean(&args),
        Command::Slurm(command) => slurm::dispatch(&command),
        Command::Workflow(command) => slurm::workflow(&command),
        Command::Node(args) => agent::node(&args),
        Command::MountGuard { pid } => mount::stand_guard(pid),
        Command::Man { dir } => write_manual(&dir),
    }
}
