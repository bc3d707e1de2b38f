//! `tidepool sysmap probe`: what directories take and give, and what comes through to other nodes.

use super::flags::ProbeArgs;
use super::{failed, now_ms, open, print, usage};
use crate::exit::{Failure, Kind, Result};
use crate::output::duration;
use crate::signals::Signals;
use serde::Serialize;
use std::process::ExitCode;
use tidepool_sysmap::db::HostRecord;
use tidepool_sysmap::probe::{
    How, LOOPBACK, Listener, Measured, NETWORK_RATES, ProbeError, STORAGE_RATES, Stop, measure_loopback,
    measure_peer, measure_store,
};
use tidepool_sysmap::{Missing, Record};
use tidepool_transport::Secret;

/// Has the secret where no file is named.
const SECRET_VARIABLE: &str = "TIDEPOOL_PROBE_SECRET";

pub fn run(args: &ProbeArgs) -> Result<ExitCode> {
    // Before anything is measured.
    let secret = match args.listen.is_some() || !args.peer.is_empty() {
        true => Some(secret(args)?),
        false => None,
    };
    let signals = Signals::watch()?;
    let stop = Stop(signals.cancelled.clone());
    let done = match (&args.listen, &secret) {
        (Some(address), Some(secret)) => listen(address, args, secret, &stop),
        _ => measure(args, secret.as_ref(), &stop),
    };
    // Whatever else went wrong: it was stopped.
    signals.check()?;
    done
}

fn wrong(error: &ProbeError) -> Failure {
    Failure::new(Kind::Other, error.to_string())
}

fn listen(address: &str, args: &ProbeArgs, secret: &Secret, stop: &Stop) -> Result<ExitCode> {
    let listener = Listener::bind(address).map_err(|error| wrong(&error))?;
    let wait = duration(args.wait.as_secs_f64());
    println!("listening at {} for one node, {wait}", listener.address());
    let refused = &mut |error| eprintln!("tidepool: refused: {error}");
    let from = listener.serve(secret, args.wait, stop, refused).map_err(|error| wrong(&error))?;
    println!("{from} has measured");
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &ProbeArgs, secret: Option<&Secret>, stop: &Stop) -> Result<ExitCode> {
    // Not after minutes: what is no database is said now. One that is not there is made when there is something to keep.
    if let Some(path) = args.goal.db.as_ref().filter(|path| path.exists()) {
        open(path)?;
    }
    let how = How { size: args.size, runs: args.runs.into(), limit: args.limit };
    let mut stores = Findings::new(&STORAGE_RATES);
    for dir in &args.path {
        stores.note(dir.display().to_string(), measure_store(dir, &how, now_ms(), stop))?;
    }
    let mut peers = Findings::new(&NETWORK_RATES);
    if args.loopback {
        peers.note(LOOPBACK.into(), measure_loopback(&how, now_ms(), stop))?;
    }
    for (address, secret) in args.peer.iter().zip(secret.into_iter().cycle()) {
        let found = measure_peer(address, secret, &how, now_ms(), stop);
        if found.as_ref().is_ok_and(|peer| peer.host == LOOPBACK) {
            eprintln!(
                "tidepool: {address} is this node itself, which is no network: recorded as '{LOOPBACK}'"
            );
        }
        peers.note(address.clone(), found)?;
    }
    let all_well = stores.missing.is_empty() && peers.missing.is_empty();
    let records = [stores.record(), peers.record()].into_iter().flatten().collect();
    keep(args, records)?;
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::from(Kind::Other.code()) })
}

/// What was found of several, and why the others told nothing.
struct Findings<T> {
    of: &'static Measured,
    found: Vec<T>,
    missing: Vec<Missing>,
}

impl<T: Serialize> Findings<T> {
    fn new(of: &'static Measured) -> Findings<T> {
        Findings { of, found: Vec::new(), missing: Vec::new() }
    }

    /// One that fails does not keep the others from being measured.
    fn note(&mut self, what: String, found: std::result::Result<T, ProbeError>) -> Result<()> {
        match found {
            Ok(found) => self.found.push(found),
            Err(ProbeError::Stopped) => return Err(wrong(&ProbeError::Stopped)),
            Err(error) => {
                eprintln!("tidepool: {error}");
                self.missing.push(Missing::new(what, error));
            }
        }
        Ok(())
    }

    /// None when nothing was found.
    fn record(self) -> Option<(&'static Measured, Record)> {
        let Findings { of, found, missing } = self;
        (!found.is_empty()).then(|| (of, of.record(&found, missing, now_ms())))
    }
}

fn keep(args: &ProbeArgs, records: Vec<(&'static Measured, Record)>) -> Result<()> {
    let host = args.goal.host();
    let Some(path) = &args.goal.db else {
        let records: Vec<HostRecord> =
            records.into_iter().map(|(_, record)| HostRecord { host: host.clone(), record }).collect();
        return if records.is_empty() { Ok(()) } else { print(&records, args.form.format()).map(drop) };
    };
    let keep = args.goal.keep();
    for (of, record) in records {
        let merge = |before: Option<&_>| of.merged(record, before);
        open(path)?.revise(&host, of.name, keep, merge).map_err(failed)?;
    }
    Ok(())
}

/// From a file or the environment: arguments are seen by everybody on the node.
fn secret(args: &ProbeArgs) -> Result<Secret> {
    const FORM: &str = "64 hexadecimal digits, as `openssl rand -hex 32` prints them";
    if let Some(file) = &args.secret_file {
        return Secret::read(file).map_err(|why| usage(format!("{}: {why}", file.display())));
    }
    let text = std::env::var(SECRET_VARIABLE).map_err(|_| {
        usage(format!("both nodes need a secret: --secret-file FILE or ${SECRET_VARIABLE}, {FORM}"))
    })?;
    Secret::from_hex(text.trim())
        .ok_or_else(|| usage(format!("${SECRET_VARIABLE}: this is no secret: it holds {FORM}")))
}
