//! Every scheduler comes to the same results, every event can be undone, and bytes are conserved: on machines and applications drawn
//! at random, under every strategy.

mod common;
#[allow(dead_code, reason = "tampering is tested at the kernel")]
#[path = "../../sim/tests/common/ranks.rs"]
mod ranks;

use common::*;
use ranks::{links, on_ranks};
use std::sync::Arc;
use std::time::Duration;
use tidepool_iosched::registry::STRATEGIES;
use tidepool_iosched::{Curve, Curves, Strategy, Tier};
use tidepool_sim::{Options, Over, Scheduler, Stream, Time};
use tidepool_sim_tiers::{App, LocalStore, Report, Servers, Setup, audit, run, run_over, simulation};
use tidepool_workload::{Application, Kind, Layout, Pace, Pattern, Wrf};

/// A draw among some.
fn among<T: Copy>(random: &mut Stream, values: &[T]) -> T {
    values[random.below(values.len() as u64) as usize]
}

fn curves(random: &mut Stream) -> Arc<Curves> {
    let curve = |random: &mut Stream| {
        let points: Vec<(u32, u64)> =
            (0..1 + random.below(4) as u32).map(|n| (1 << (2 * n), MB + random.below(400 * MB))).collect();
        Curve::new(&points).unwrap()
    };
    Arc::new(Curves { sequential: curve(random), strided: curve(random), random: curve(random) })
}

fn app(random: &mut Stream, number: u64) -> App {
    let kind = match random.below(4) {
        0 => Kind::Wrf(Wrf {
            input_bytes: 1 + random.below(MB),
            checkpoint_bytes: 1 + random.below(2 * MB),
            output_bytes: 1 + random.below(MB),
            layout: Layout::Shared,
        }),
        _ => {
            let Kind::Phases(mut phases) = Application::phases().kind else {
                unreachable!("they are phases")
            };
            phases.bytes = 1 + random.below(4 * MB);
            phases.pattern = among(random, &[Pattern::Sequential, Pattern::Strided, Pattern::Random]);
            Kind::Phases(phases)
        }
    };
    let every = 1 + random.below(2);
    let workload = Application {
        name: format!("app-{number}"),
        start: Duration::from_millis(among(random, &[0, 0, 10, 900])),
        processes: among(random, &[1, 2, 7, 16]),
        steps: every * (1 + random.below(3)),
        every,
        pace: match random.below(2) {
            0 => Pace::Compute(Duration::from_millis(among(random, &[0, 1, 50, 400]))),
            _ => Pace::Ratio {
                io: among(random, &[0.2, 0.8]),
                alone: among(random, &[None, Some(Duration::from_millis(90))]),
            },
        },
        kind,
        ..Application::phases()
    };
    let nodes = if workload.processes > 1 { 1 + random.below(2) as u32 } else { 1 };
    App { workload, nodes, weight: among(random, &[1, 1, 5]), jitter: among(random, &[0.0, 0.0, 0.3]) }
}

fn drawn(seed: u64) -> (Setup, &'static dyn Strategy) {
    let random = &mut Stream::new(seed, 0);
    let apps = (0..1 + random.below(4)).map(|number| app(random, number)).collect();
    let latency_ns = among(random, &[1, 1000, 100_000]);
    let local = LocalStore {
        capacity_bytes: among(random, &[4 * MB, GB]),
        bytes_per_s: among(random, &[10 * MB, 400 * MB]),
    };
    let burst = among(random, &[0, 1, 2, 5]);
    let setup = Setup {
        // Now and then it fills.
        burst: Servers {
            servers: burst,
            capacity_bytes: u64::from(burst) * among(random, &[17 * MB, GB]),
            curves: curves(random),
        },
        pfs: Servers { servers: among(random, &[1, 3, 4]), capacity_bytes: 10 * GB, curves: curves(random) },
        local: among(random, &[None, Some(local)]),
        link_bytes_per_s: among(random, &[None, Some(50 * MB)]),
        latency_ns,
        news_ns: latency_ns * among(random, &[1, 300]),
        tell_ns: among(random, &[20_000_000, S]),
        hints: random.chance(0.5),
        links_known: random.chance(0.5),
        chunk_bytes: among(random, &[100_000, MB, 3 * MB]),
        in_flight: among(random, &[1, 2, 3]),
        flush_streams: among(random, &[1, 4]),
        apps,
    };
    (setup, STRATEGIES[seed as usize % STRATEGIES.len()])
}

fn under(setup: &Setup, strategy: &'static dyn Strategy, options: &Options<'_>) -> Report {
    run(setup, strategy, 7, options).unwrap_or_else(|error| panic!("{}: {error}: {setup:?}", strategy.name()))
}

/// Everything that was written is on the PFS, and went there once.
fn assert_conserved(setup: &Setup, report: &Report) {
    for (app, plan) in report.apps.iter().zip(&setup.apps) {
        let written: u64 = app.bytes.iter().sum();
        assert_eq!(u128::from(written), plan.written_bytes(), "{}", app.name);
    }
    let [local, burst, pfs] = report.tiers;
    assert_eq!(local.written_bytes, local.flushed_out_bytes);
    assert_eq!(burst.written_bytes + burst.flushed_in_bytes, burst.flushed_out_bytes);
    let all: u64 = report.tiers.iter().map(|tier| tier.written_bytes).sum();
    assert_eq!(pfs.written_bytes + pfs.flushed_in_bytes, all);
    assert!(
        report.flushed_ns
            >= report.apps.iter().flat_map(|app| app.io_ns.last().map(|_| app.flushed_ns)).max().unwrap_or(0)
    );
}

const SEEDS: std::ops::Range<u64> = 0..42;

#[test]
fn all_schedulers_come_to_the_same() {
    for seed in SEEDS {
        let (setup, strategy) = drawn(seed);
        let expected = under(&setup, strategy, &Options::default());
        assert_conserved(&setup, &expected);
        let others = [
            (Scheduler::RollbackCheck, 1, None),
            (Scheduler::Reference, 1, None),
            (Scheduler::Conservative, 2, None),
            (Scheduler::Optimistic, 1, Some(seed)),
            (Scheduler::Optimistic, 2, None),
            (Scheduler::Optimistic, 2, Some(seed)),
        ];
        for (scheduler, threads, forced_rollbacks) in others {
            // A latency of 1 ns makes a window of each moment.
            let options = Options { scheduler, threads, forced_rollbacks, ..Options::default() };
            let found = under(&setup, strategy, &options);
            assert_eq!(found, expected, "seed {seed}, {}, {scheduler:?}, {threads} threads", strategy.name());
        }
    }
}

#[test]
fn ranks_come_to_the_same() {
    for seed in SEEDS.step_by(2) {
        let (setup, strategy) = drawn(seed);
        let expected = under(&setup, strategy, &Options::default());
        for (count, threads, scheduler, forced_rollbacks) in [
            (1, 1, Scheduler::Optimistic, None),
            (2, 1, Scheduler::Conservative, None),
            (2, 1, Scheduler::Optimistic, Some(seed)),
            (2, 2, Scheduler::Optimistic, None),
            (3, 1, Scheduler::Optimistic, None),
        ] {
            let options = Options { scheduler, threads, forced_rollbacks, ..Options::default() };
            let all = on_ranks(links(count), |link| {
                run_over(&setup, strategy, 7, &options, &mut Over { link, about: "drawn" })
            });
            for (rank, ended) in all.into_iter().enumerate() {
                let found = ended.unwrap().unwrap();
                assert_eq!(
                    found, expected,
                    "seed {seed}, {scheduler:?}, rank {rank} of {count}, {threads} threads"
                );
            }
        }
    }
}

/// At moments drawn at random: nothing acknowledged is on less than its tier, and no server holds more than fits.
#[test]
fn nothing_acknowledged_is_on_less_than_its_tier() {
    for seed in SEEDS {
        let (setup, strategy) = drawn(seed);
        let whole = under(&setup, strategy, &Options::default());
        let mut moments: Vec<u64> =
            (0..12).map(|n| Stream::new(seed, 1 + n).below(whole.flushed_ns + 1)).collect();
        moments.sort_unstable();
        let mut simulation = simulation(&setup, strategy, 7).unwrap();
        for moment in moments {
            simulation.run(Time(moment), &Options::default()).unwrap();
            audit(&simulation)
                .unwrap_or_else(|error| panic!("seed {seed}, {}, {moment} ns: {error}", strategy.name()));
        }
        simulation.run(Time::MAX, &Options::default()).unwrap();
        assert_eq!(simulation.trace(), whole.trace, "a run in parts is the same run");
    }
}

/// Seeds draw compute times only where they vary.
#[test]
fn seeds_matter_where_compute_times_vary() {
    let mut setup = setup(vec![one_gb("a"), one_gb("b")]);
    for app in &mut setup.apps {
        app.workload.pace = Pace::Compute(Duration::from_secs(3));
    }
    let trace =
        |setup: &Setup, seed| run(setup, strategy("ia"), seed, &Options::default()).unwrap().io_mean_ns();
    assert_eq!(trace(&setup, 1), trace(&setup, 2));
    setup.apps[0].jitter = 0.5;
    assert_ne!(trace(&setup, 1), trace(&setup, 2));
}

/// Late news: two schedulers that hear of each other after a minute both use the burst buffer, or go by rank; with news at
/// once `ia` keeps them apart.
#[test]
fn late_news_matter() {
    let with = |news_ns| {
        let mut setup = setup(vec![one_gb("a"), one_gb("b")]);
        setup.news_ns = news_ns;
        common::under("ia", &setup)
    };
    let (soon, late) = (with(1000), with(60 * S));
    assert!(late.io_mean_ns() > soon.io_mean_ns(), "{} and {}", late.io_mean_ns(), soon.io_mean_ns());
    assert_eq!(late.apps[1].bytes[Tier::Pfs as usize], 0, "nobody knew of the other");
}
