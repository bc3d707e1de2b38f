//! `tidepoold`: one pool daemon. Started by `tidepool`; see `docs/formats/05-daemon-start.md`.

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{BufRead, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use tidepool_fsd::{Config, Daemon, Ready};

/// Longest configuration line.
const CONFIG_BYTES_MAX: u64 = 64 * 1024;

const HELP: &str = "\
tidepoold - one daemon of a Tidepool pool

Usage: tidepoold < CONFIG

Reads its configuration as one line of JSON from standard input, prints one line of JSON
when it can be reached, and serves until SIGTERM, SIGINT or `tidepool pool stop`. People
start it with `tidepool run` or `tidepool pool start`.

Exit codes: 0 ended as asked, 1 could not start or clean up, 2 wrong usage or configuration.
";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--help" | "-h") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some("--version" | "-V") => {
            println!("tidepoold {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("tidepoold: unknown argument '{other}'; see tidepoold --help");
            return ExitCode::from(2);
        }
    }
    let config = match read_config() {
        Ok(config) => config,
        Err(error) => {
            report_failure(0, "", &error);
            return ExitCode::from(2);
        }
    };
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_failure(config.index, &config.host, &error);
            ExitCode::FAILURE
        }
    }
}

fn read_config() -> Result<Config, String> {
    let mut line = String::new();
    let mut input = std::io::stdin().lock().take(CONFIG_BYTES_MAX);
    input.read_line(&mut line).map_err(|e| format!("cannot read the configuration: {e}"))?;
    Config::parse(&line).map_err(|e| e.to_string())
}

fn run(config: &Config) -> Result<(), String> {
    // First of all: threads inherit it.
    keep_to(&config.cores)?;
    open_many();
    // The kernel sends it to all of a group in which somebody is stopped when its starter ends, as a run does that leaves its results here.
    signal_hook::flag::register(SIGHUP, Arc::default()).map_err(|e| format!("cannot handle signals: {e}"))?;
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])
        .map_err(|e| format!("cannot handle signals: {e}"))?;
    let daemon = Daemon::start(config).map_err(|e| e.to_string())?;
    let stop = daemon.stopper();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            stop();
        }
    });
    if config.lifeline {
        let stop = daemon.stopper();
        std::thread::spawn(move || {
            // Whoever started this daemon holds the other end; it is gone when reading ends.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            stop();
        });
    }
    print_line(daemon.ready());
    daemon.run().map_err(|e| e.to_string())
}

/// As many descriptors as this process may have: each client takes one for each connection. Where the limit cannot be raised, it stays.
fn open_many() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Keeps this process to some cores; to all when none is named.
fn keep_to(cores: &[u16]) -> Result<(), String> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(usize::from(*core)));
    sched_setaffinity(None, &set).map_err(|e| {
        format!("cannot keep to cores {cores:?}: {e}; see --daemon-cores and what this node has")
    })
}

/// Tells the starter, which reads standard output, and people, who read standard error.
fn report_failure(index: u16, host: &str, error: &str) {
    eprintln!("tidepoold {index}: {error}");
    print_line(&Ready {
        ready: false,
        index,
        pid: std::process::id(),
        host: host.to_string(),
        boot_id: String::new(),
        tcp: String::new(),
        unix: String::new(),
        error: error.to_string(),
    });
}

fn print_line(ready: &Ready) {
    let line = serde_json::to_string(ready).expect("strings and numbers always serialize");
    // A starter that is gone cannot be told; the daemon is found through its pool file.
    let _ = writeln!(std::io::stdout(), "{line}");
}
