//! The three sweeps of S3 §IV-B in the fluid model, and what they depend on, as CSV:
//! `cargo run --release -p tidepool-iosched --example sweep`.
//!
//! This is a model with assumed curves; `fluid::paper` says where each number comes from. Settings:
//!
//! - `plain`: two applications on four nodes each; bandwidth beyond 64 processes stays.
//! - `stays`, `falls`: of 2 to 8 applications, with links enough; bandwidth beyond 64 processes stays, or falls on at the pace
//!   that it had until there.
//! - `one link`: as `falls`, and each application has one node with one link, as the paper says ("32 processes running on one
//!   compute node").
//! - `local`: with node-local memory, which the paper's testbed does not have.
//! - sweep `curves`: two applications, ratio 0.5, other curves: x is the PFS's bandwidth and the fall from the peaks, in
//!   percent of what is assumed elsewhere.
//! - sweep `late`: four applications that start 30 s after each other, under two schedulers that learn of each other's
//!   load x seconds late.

use tidepool_iosched::fluid::paper::{PLAIN, Shape};
use tidepool_iosched::fluid::{Report, Testbed, Workload, run};
use tidepool_iosched::registry::STRATEGIES;
use tidepool_iosched::{Strategy, Tier};

const S: u64 = 1_000_000_000;

fn print_point(labels: [&str; 3], testbed: &Testbed, workloads: &[Workload]) {
    let run = |strategy: &&dyn Strategy| {
        (strategy.name(), run(testbed, *strategy, workloads).expect("the sweeps come to their ends"))
    };
    let reports: Vec<(&str, Report)> = STRATEGIES.iter().map(run).collect();
    let mean = |name: &str| {
        let found = reports.iter().find(|(n, _)| *n == name);
        found.expect("the strategy is registered").1.io_mean_ns() as f64
    };
    for (name, report) in &reports {
        let own = report.io_mean_ns() as f64;
        println!(
            "{},{name},{:.1},{:.1},{:.2},{:.2},{:.2},{:.0},{:.0},{:.2},{:.2},{:.3},{}",
            labels.join(","),
            own / 1e9,
            report.io_slowest_ns() as f64 / 1e9,
            mean("baseline") / own,
            mean("hp") / own,
            mean("ia") / own,
            report.end_ns as f64 / 1e9,
            report.drained_ns as f64 / 1e9,
            report.busy(Tier::Burst),
            report.busy(Tier::Pfs),
            report.fairness(),
            report.refused,
        );
    }
}

fn two_applications(name: &str, shape: Shape) {
    for ratio in [80, 70, 60, 50, 40, 30, 20] {
        let x = format!("0.{}", ratio / 10);
        print_point(["ratio", name, &x], &shape.testbed(), &shape.workloads(2, ratio, 5));
    }
    for steps in [4, 8, 16, 32] {
        print_point(["steps", name, &steps.to_string()], &shape.testbed(), &shape.workloads(2, 50, steps));
    }
}

fn many_applications(name: &str, shape: Shape) {
    for apps in 2..=8 {
        print_point(["apps", name, &apps.to_string()], &shape.testbed(), &shape.workloads(apps, 50, 5));
    }
}

fn other_curves() {
    for pfs_percent in [50, 75, 100, 125, 150] {
        for fall_percent in [0, 50, 100, 150, 200] {
            let shape = Shape { pfs_percent, fall_percent, ..PLAIN };
            let x = format!("pfs {pfs_percent} fall {fall_percent}");
            print_point(["curves", "plain", &x], &shape.testbed(), &shape.workloads(2, 50, 5));
        }
    }
}

fn late_news() {
    let mut workloads = PLAIN.workloads(4, 50, 5);
    for (at, workload) in (0..).zip(&mut workloads) {
        workload.start_ns = at * 30 * S;
    }
    for delay_s in [0, 1, 5, 10, 15, 20, 30, 60] {
        let testbed = Testbed { schedulers: 2, delay_ns: delay_s * S, ..PLAIN.testbed() };
        print_point(["late", "plain", &delay_s.to_string()], &testbed, &workloads);
    }
}

fn main() {
    println!(
        "sweep,setting,x,strategy,io_mean_s,io_slowest_app_s,baseline_over_it,hp_over_it,ia_over_it,end_s,drained_s,\
         burst_busy,pfs_busy,fairness,refused"
    );
    two_applications("plain", PLAIN);
    two_applications("local", Shape { local: true, ..PLAIN });
    let stays = Shape { links: false, nodes_per_app: 1, ..PLAIN };
    let falls = Shape { beyond: Some((90, 78)), ..stays };
    let one_link = Shape { links: true, ..falls };
    many_applications("stays", stays);
    many_applications("falls", falls);
    many_applications("one link", one_link);
    many_applications("one link local", Shape { local: true, ..one_link });
    other_curves();
    late_news();
}
