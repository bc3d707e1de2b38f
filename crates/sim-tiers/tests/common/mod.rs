//! Small setups.
#![allow(dead_code)] // each test uses some of it

pub mod bed;

use std::sync::Arc;
use std::time::Duration;
use tidepool_iosched::{Curve, Curves, Strategy, by_name};
use tidepool_sim::Options;
use tidepool_sim_tiers::{App, Report, Servers, Setup, run};
use tidepool_workload::{Application, Kind, Pace, Pattern};

pub const MB: u64 = 1_000_000;
pub const GB: u64 = 1_000 * MB;
pub const S: u64 = 1_000_000_000;

pub fn flat(bytes_per_s: u64) -> Arc<Curves> {
    Arc::new(Curves::same(Curve::flat(bytes_per_s).unwrap()))
}

/// A burst buffer of 200 MB/s and a PFS of 100 MB/s, whatever the number of processes; news at once.
pub fn setup(apps: Vec<App>) -> Setup {
    Setup {
        burst: Servers { servers: 4, capacity_bytes: 1000 * GB, curves: flat(200 * MB) },
        pfs: Servers { servers: 4, capacity_bytes: 2000 * GB, curves: flat(100 * MB) },
        local: None,
        link_bytes_per_s: None,
        latency_ns: 1000,
        news_ns: 1000,
        tell_ns: S,
        hints: true,
        links_known: true,
        chunk_bytes: MB / 4,
        in_flight: 2,
        flush_streams: 4,
        apps,
    }
}

/// Four processes that write 1 GB together, once.
pub fn one_gb(name: &str) -> App {
    let mut workload = Application { name: name.into(), processes: 4, steps: 1, ..Application::phases() };
    workload.pace = Pace::Compute(Duration::ZERO);
    let Kind::Phases(phases) = &mut workload.kind else { unreachable!("phases() makes phases") };
    phases.bytes = 250 * MB;
    App { workload, nodes: 1, weight: 1, jitter: 0.0 }
}

pub fn random(mut app: App) -> App {
    let Kind::Phases(phases) = &mut app.workload.kind else { unreachable!("phases() makes phases") };
    phases.pattern = Pattern::Random;
    app
}

pub fn strategy(name: &str) -> &'static dyn Strategy {
    by_name(name).unwrap()
}

pub fn under(name: &str, setup: &Setup) -> Report {
    run(setup, strategy(name), 1, &Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}
