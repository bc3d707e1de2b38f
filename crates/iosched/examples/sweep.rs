//! The three sweeps of S3 §IV-B in the fluid model, as CSV: `cargo run --release -p tidepool-iosched --example sweep`.
//!
//! This is a model. No number here was measured, and none is the paper's:
//!
//! - 4 + 4 I/O nodes, 480 GB and 1.2 TB each, 8 compute nodes, Gigabit Ethernet: S3 §IV-A.
//! - 117 MB/s per link: 1 Gb/s less the headers of Ethernet, IP and TCP at frames of 1,500 bytes. Four links carry 468 MB/s.
//! - The curves: the text of S3 gives no numbers for Figure 2, only that bandwidth rises and then falls over 2 to 64 processes,
//!   that the SSDs' falls less, and that it is much higher. So all points are ASSUMED with that shape: the burst buffer's
//!   peak is 94 % of four links and falls by 14 % until 64 processes; the PFS's is half of four links and falls by 27 %;
//!   random is slower by a tenth on SSDs and to a fifth on disks. Only the ratio of the two at 64 processes, 2.1, has a
//!   source: the paper's `hp` is twice as fast as its baseline, which is that ratio if nothing else matters.
//!   Beyond 64 processes the bandwidth is taken to stay (`stays`) or to fall on at the same pace (`falls`).
//! - I/O ratio: I/O over total time of the application alone on the PFS.
//! - Two applications have 4 nodes each; in the third sweep each has one node, and so one link (`one link`), as the paper says
//!   ("32 processes running on one compute node"), or links enough (`links enough`).
//! - Node-local memory: S3 §IV-A names none. `with local` assumes one SSD of 480 GB and 450 MB/s in each compute node.

use std::sync::Arc;
use tidepool_iosched::fluid::{Report, SharedTier, Testbed, Workload, run};
use tidepool_iosched::registry::STRATEGIES;
use tidepool_iosched::{Curve, Curves, JobId, Pattern, Tier};

const MB: u64 = 1_000_000;
const GB: u64 = 1_000 * MB;
const LINK: u64 = 117 * MB;

/// (processes, MB/s).
type Points = &'static [(u32, u64)];
const BURST: Points = &[(2, 210), (4, 330), (8, 420), (16, 440), (32, 420), (64, 380)];
const BURST_RANDOM: Points = &[(2, 180), (4, 290), (8, 370), (16, 395), (32, 375), (64, 335)];
const PFS: Points = &[(2, 110), (4, 180), (8, 230), (16, 245), (32, 215), (64, 180)];
const PFS_RANDOM: Points = &[(2, 22), (4, 36), (8, 46), (16, 49), (32, 40), (64, 30)];

#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    /// Bandwidth in percent with each doubling of processes beyond 64, for the burst buffer and the PFS.
    beyond: Option<(u64, u64)>,
    nodes_per_app: u64,
    links: bool,
    local: bool,
}

fn curve(points: Points, percent: Option<u64>) -> Curve {
    let mut points: Vec<(u32, u64)> = points.iter().map(|(n, mb)| (*n, mb * MB)).collect();
    for _ in 0..2 {
        let (processes, rate) = points[points.len() - 1];
        points.extend(percent.map(|percent| (processes * 2, rate * percent / 100)));
    }
    Curve::new(&points).expect("the points above make a curve")
}

fn curves(sequential: Points, random: Points, percent: Option<u64>) -> Arc<Curves> {
    let (sequential, random) = (curve(sequential, percent), curve(random, percent));
    Arc::new(Curves { strided: sequential.clone(), sequential, random })
}

fn testbed(setting: Setting) -> Testbed {
    let (burst, pfs) = setting.beyond.unzip();
    Testbed {
        burst: SharedTier { capacity_bytes: 4 * 480 * GB, curves: curves(BURST, BURST_RANDOM, burst) },
        pfs: SharedTier { capacity_bytes: 4 * 1200 * GB, curves: curves(PFS, PFS_RANDOM, pfs) },
        flush_streams: 4,
        lump_bytes: GB,
        schedulers: 1,
        delay_ns: 0,
    }
}

/// `apps` times 32 processes that write 1 GB each and step, with I/O as this part of the time alone on the PFS.
fn workloads(setting: Setting, apps: u64, ratio_percent: u64, steps: u32) -> Vec<Workload> {
    let links = setting.links.then_some(setting.nodes_per_app * LINK);
    let rate = curve(PFS, None).at(32).min(links.unwrap_or(u64::MAX));
    let alone_ns = u128::from(32 * GB) * 1_000_000_000 / u128::from(rate);
    let compute_ns = alone_ns * u128::from(100 - ratio_percent) / u128::from(ratio_percent);
    let workload = |job| Workload {
        job: JobId(job),
        processes: 32,
        weight: 1,
        pattern: Pattern::Sequential,
        bytes_per_process: GB,
        steps,
        compute_ns: compute_ns as u64,
        start_ns: 0,
        link_bytes_per_s: links,
        local: setting.local.then_some((setting.nodes_per_app * 480 * GB, setting.nodes_per_app * 450 * MB)),
    };
    (1..=apps).map(workload).collect()
}

fn print_point(sweep: &str, setting: Setting, x: &str, workloads: &[Workload]) {
    let run = |strategy: &&dyn tidepool_iosched::Strategy| {
        let report = run(&testbed(setting), *strategy, workloads);
        (strategy.name(), report.expect("the sweeps come to their ends"))
    };
    let reports: Vec<(&str, Report)> = STRATEGIES.iter().map(run).collect();
    let mean = |name: &str| {
        let found = reports.iter().find(|(n, _)| *n == name);
        found.expect("the strategy is registered").1.io_mean_ns() as f64
    };
    let seconds = |ns: u64| ns as f64 / 1e9;
    for (name, report) in &reports {
        let own = report.io_mean_ns() as f64;
        println!(
            "{sweep},{},{x},{name},{:.1},{:.1},{:.2},{:.2},{:.2},{:.0},{:.0},{:.2},{:.2},{:.3}",
            setting.name,
            seconds(report.io_mean_ns()),
            seconds(report.io_slowest_ns()),
            mean("baseline") / own,
            mean("hp") / own,
            mean("ia") / own,
            seconds(report.end_ns),
            seconds(report.drained_ns),
            report.busy(Tier::Burst),
            report.busy(Tier::Pfs),
            report.fairness(),
        );
    }
}

const PLAIN: Setting = Setting { name: "stays", beyond: None, nodes_per_app: 4, links: true, local: false };

fn main() {
    println!(
        "sweep,setting,x,strategy,io_mean_s,io_slowest_app_s,baseline_over_it,hp_over_it,ia_over_it,end_s,drained_s,\
         burst_busy,pfs_busy,fairness"
    );
    let local = Setting { name: "with local", local: true, ..PLAIN };
    for setting in [PLAIN, local] {
        for ratio in [80, 70, 60, 50, 40, 30, 20] {
            print_point("ratio", setting, &format!("0.{}", ratio / 10), &workloads(setting, 2, ratio, 5));
        }
        for steps in [4, 8, 16, 32] {
            print_point("steps", setting, &steps.to_string(), &workloads(setting, 2, 50, steps));
        }
    }
    let falls = Some((90, 78));
    let enough = Setting { name: "links enough; stays", links: false, nodes_per_app: 1, ..PLAIN };
    let falling = Setting { name: "links enough; falls", beyond: falls, ..enough };
    let one = Setting { name: "one link; falls", links: true, ..falling };
    let one_local = Setting { name: "one link; falls; with local", local: true, ..one };
    for setting in [enough, falling, one, one_local] {
        for apps in 2..=8 {
            print_point("apps", setting, &apps.to_string(), &workloads(setting, apps, 50, 5));
        }
    }
}
