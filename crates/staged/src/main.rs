//! The program `tidepool-staged`.

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

use clap::{CommandFactory, Parser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tidepool_staged::{AgentOf, Args, Config, Daemon};

/// Exit status after a second signal.
const STOPPED_AT_ONCE: i32 = 130;

fn main() -> ExitCode {
    // What whoever starts it has open may be root's alone; workers and agents are processes of users.
    close_fds::set_fds_cloexec(3, &[]);
    let args = Args::parse();
    if let Some(dir) = &args.man {
        return write_manual(dir);
    }
    if let Some(agent) = &args.agent {
        return become_agent(agent);
    }
    if args.worker {
        return tidepool_staged::run_worker();
    }
    let config = match Config::load(&args) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("tidepool-staged: {error}");
            return ExitCode::from(2);
        }
    };
    if args.check {
        println!("the configuration is valid: {} dataspaces", config.dataspaces.len());
        return ExitCode::SUCCESS;
    }
    match run(&args, &config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidepool-staged: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns only when that does not work. Nothing has started a thread yet.
fn become_agent(agent: &AgentOf) -> ExitCode {
    let Err(error) = agent.run();
    eprintln!("tidepool-staged: no agent of user {}: {error}", agent.uid);
    ExitCode::FAILURE
}

fn write_manual(dir: &Path) -> ExitCode {
    match tidepool_man::write_pages(Args::command(), dir) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidepool-staged: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

/// Each connection takes a descriptor, each file being copied two; the usual limit of 1024 is for
/// programs that use select(2).
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Nothing is wrong if it stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Whom to trust, as the configuration says now. One that is wrong anywhere changes nothing.
fn read_anew(args: &Args, trust: impl Fn(&Config)) {
    match Config::load(args) {
        Ok(config) => trust(&config),
        Err(error) => {
            eprintln!("tidepool-staged: goes on as before; the configuration was not read anew: {error}")
        }
    }
}

fn run(args: &Args, config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    raise_descriptors();
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    // Without a file there is nothing to read anew, and a stager of one's own ends with the terminal that it was started in.
    if args.config.is_some() {
        signals.add_signal(SIGHUP)?;
    }
    // A second signal ends it at once, like kill -9: a worker may hang in a file system that does not answer.
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        register_conditional_shutdown(signal, STOPPED_AT_ONCE, Arc::clone(&asked))?;
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
    }
    let daemon = Daemon::start(config)?;
    let (stopper, truster, args) = (daemon.stopper()?, daemon.truster(), args.clone());
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            match signal {
                SIGHUP => read_anew(&args, &truster),
                _ => stopper.stop(),
            }
        }
    })?;
    println!("tidepool-staged: ready on {}", config.control_socket.display());
    daemon.run()?;
    Ok(())
}
