//! Beside the fluid model, which shares the strategies, the curves and the rule of sharing, and nothing else: no chunks, no queues,
//! no messages; data are flushed in lumps, of which the smallest are taken here.

mod common;

use common::*;
use tidepool_iosched::fluid::paper::PLAIN;
use tidepool_iosched::{fluid, registry::STRATEGIES};
use tidepool_sim::Options;
use tidepool_sim_tiers::{App, Servers, Setup, run};
use tidepool_workload::{Application, Kind, Pace};

/// The fluid model's test bed, a hundredth of its bytes.
fn both(apps: u64, ratio: u64) -> (fluid::Testbed, Vec<fluid::Workload>, Setup) {
    let mut plans = PLAIN.workloads(apps, ratio, 3);
    for plan in &mut plans {
        plan.bytes_per_process /= 100;
        plan.compute_ns /= 100;
    }
    let machine = fluid::Testbed { lump_bytes: MB, ..PLAIN.testbed() };
    let servers = |tier: &fluid::SharedTier| Servers {
        servers: 4,
        capacity_bytes: tier.capacity_bytes,
        curves: tier.curves.clone(),
    };
    let app = |plan: &fluid::Workload| {
        let mut workload = Application {
            name: format!("app-{}", plan.job.0),
            steps: plan.steps.into(),
            processes: plan.processes,
            ..Application::phases()
        };
        workload.pace = Pace::Compute(std::time::Duration::from_nanos(plan.compute_ns));
        let Kind::Phases(phases) = &mut workload.kind else { unreachable!("phases() makes phases") };
        phases.bytes = plan.bytes_per_process;
        App { workload, nodes: 4, weight: 1, jitter: 0.0 }
    };
    let setup = Setup {
        burst: servers(&machine.burst),
        pfs: servers(&machine.pfs),
        link_bytes_per_s: Some(fluid::paper::LINK_BYTES_PER_S),
        chunk_bytes: 100_000,
        tell_ns: 100_000_000,
        ..setup(plans.iter().map(app).collect())
    };
    (machine, plans, setup)
}

/// Where both claim the same they are within 2 %, and come nearer in proportion to the chunk (twice the chunk: -2.2 % instead of -1.1 % with
/// `ia` at a ratio of 0.8). What is left: chunks under way when a phase is sent elsewhere, or when a flush has
/// to stop; streams of a flush, which are not at the source while they write; news, which take 1 us.
#[test]
fn the_fluid_model_comes_to_nearly_the_same() {
    for (apps, ratio) in [(2, 80), (2, 20), (4, 50)] {
        let (machine, plans, setup) = both(apps, ratio);
        for strategy in STRATEGIES {
            let oracle = fluid::run(&machine, *strategy, &plans).unwrap().io_mean_ns() as f64;
            let found = run(&setup, *strategy, 1, &Options::default()).unwrap().io_mean_ns() as f64;
            let off = found / oracle - 1.0;
            println!("{apps} applications, ratio {ratio}, {}: {off:.4}", strategy.name());
            assert!(off.abs() < 0.02, "{apps} applications, ratio {ratio}, {}: {off}", strategy.name());
        }
    }
}
