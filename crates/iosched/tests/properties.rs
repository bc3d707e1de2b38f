//! What must hold for every strategy, whatever it is asked.

use proptest::prelude::*;
use std::sync::Arc;
use tidepool_iosched::fluid::{Report, SharedTier, Testbed, Workload, run};
use tidepool_iosched::registry::STRATEGIES;
use tidepool_iosched::{
    App, Curve, Curves, Dirty, JobId, Knowledge, Local, PastPhase, Pattern, Phase, Shared,
    Strategy as IoStrategy, Tier, Verdict, View, decide,
};

const MB: u64 = 1_000_000;
const GB: u64 = 1_000 * MB;
const S: u64 = 1_000_000_000;

fn strategies() -> impl Strategy<Value = &'static dyn IoStrategy> {
    prop::sample::select(STRATEGIES.to_vec())
}

fn patterns() -> impl Strategy<Value = Pattern> {
    prop::sample::select(vec![Pattern::Sequential, Pattern::Strided, Pattern::Random])
}

prop_compose! {
    /// Any shape: rising, falling, both.
    fn curve()(rates in prop::collection::vec(1..2000u64, 1..6)) -> Curve {
        let points: Vec<(u32, u64)> = rates.iter().enumerate().map(|(n, mb)| (1 << (2 * n), mb * MB)).collect();
        Curve::new(&points).unwrap()
    }
}

prop_compose! {
    fn curves()(sequential in curve(), strided in curve(), random in curve()) -> Arc<Curves> {
        Arc::new(Curves { sequential, strided, random })
    }
}

prop_compose! {
    fn testbed()(
        (burst, pfs) in (curves(), curves()),
        capacity_mb in prop_oneof![Just(0u64), 68..500u64, 500..50_000u64],
        flush_streams in 1..9u32,
        lump_mb in 50..2000u64,
        schedulers in 1..4u32,
        delay_ns in prop_oneof![Just(0), 1..S, 1..20 * S],
    ) -> Testbed {
        Testbed {
            burst: SharedTier { capacity_bytes: capacity_mb * MB, curves: burst },
            pfs: SharedTier { capacity_bytes: 1_000_000 * GB, curves: pfs },
            flush_streams,
            lump_bytes: lump_mb * MB,
            schedulers,
            delay_ns,
        }
    }
}

prop_compose! {
    fn workload(job: u64)(
        processes in 1..100u32,
        weight in 1..10u32,
        pattern in patterns(),
        bytes_per_process in 1..40 * MB,
        steps in 1..5u32,
        compute_ns in prop_oneof![Just(0), 0..20 * S],
        start_ns in prop_oneof![Just(0), 0..20 * S],
        link_mb in prop::option::of(1..500u64),
        local in prop::option::of((68..20_000u64, 1..1000u64)),
    ) -> Workload {
        Workload {
            job: JobId(job),
            processes,
            weight,
            pattern,
            bytes_per_process,
            steps,
            compute_ns,
            start_ns,
            link_bytes_per_s: link_mb.map(|mb| mb * MB),
            local: local.map(|(capacity, rate)| (capacity * MB, rate * MB)),
        }
    }
}

fn workloads() -> impl Strategy<Value = Vec<Workload>> {
    (1..6u64).prop_flat_map(|count| (0..count).map(workload).collect::<Vec<_>>())
}

/// Every byte is written once, and arrives on the PFS once; every phase ends.
fn check_conserved(report: &Report, apps: &[Workload]) {
    for (app, plan) in report.apps.iter().zip(apps) {
        assert_eq!(app.io_ns.len() as u32, plan.steps);
        let written: u64 = app.bytes.iter().sum();
        let planned = plan.step_bytes() * u64::from(plan.steps);
        // Parts are told in whole bytes.
        assert!(planned - written <= 2, "job {}: {written} of {planned}", plan.job.0);
    }
    let [local, burst, pfs] = report.tiers;
    assert_eq!(local.written_bytes + local.flushed_in_bytes, local.flushed_out_bytes);
    assert!((burst.written_bytes + burst.flushed_in_bytes).abs_diff(burst.flushed_out_bytes) <= 1);
    let planned: u64 = apps.iter().map(|plan| plan.step_bytes() * u64::from(plan.steps)).sum();
    assert!(planned - (pfs.written_bytes + pfs.flushed_in_bytes) <= 1);
    assert!(report.drained_ns >= report.end_ns);
}

fn shared() -> impl Strategy<Value = Shared> {
    let free = prop_oneof![Just((0, 1000)), (0..=1000u64).prop_map(|part| (part, 1000))];
    let age = prop_oneof![Just(Some(0)), Just(None), (0..20 * S).prop_map(Some)];
    let foreign = prop_oneof![Just(0), 0..5u32];
    (free, age, foreign, prop::option::of(curves()), 0..GB, 0..GB).prop_map(
        |((free, all), age_ns, foreign, curves, flush_in, flush_out)| Shared {
            capacity_bytes: all * GB,
            free_bytes: free * GB,
            foreign_users: foreign,
            foreign_processes: foreign * 16,
            flush_in_bytes_per_s: flush_in,
            flush_out_bytes_per_s: flush_out,
            age_ns,
            curves,
        },
    )
}

const NOW: u64 = 10_000 * S;
/// Decisions in a row that may differ while nothing else happens.
const ROUNDS_MAX: usize = 8;

fn phase() -> impl Strategy<Value = Phase> {
    let tier = prop::option::of(prop::sample::select(Tier::ALL.to_vec()));
    (0..=NOW, 0..100 * GB, prop::option::of(0..200 * GB), patterns(), tier).prop_map(
        |(begin_ns, written_bytes, expected_bytes, pattern, tier)| Phase {
            begin_ns,
            written_bytes,
            expected_bytes,
            pattern,
            tier,
        },
    )
}

fn app(job: u64) -> impl Strategy<Value = App> {
    let past = prop::collection::vec((0..=NOW, 0..100 * GB), 0..4);
    let local = prop::option::of((0..=1000u64, 1..GB));
    let under_way = prop_oneof![Just(0), 0..GB];
    (1..300u32, 1..=1000u32, prop::option::of(phase()), past, prop::option::of(1..GB), under_way, local)
        .prop_map(move |(processes, weight, phase, past, link_bytes_per_s, under_way_bytes, local)| App {
            job: JobId(job),
            processes,
            weight,
            phase,
            past: past
                .into_iter()
                .map(|(begin_ns, bytes)| PastPhase { begin_ns, end_ns: begin_ns.midpoint(NOW), bytes })
                .collect(),
            link_bytes_per_s,
            under_way_bytes,
            local: local.map(|(free, bytes_per_s)| Local {
                capacity_bytes: 1000 * GB,
                free_bytes: free * GB,
                bytes_per_s,
            }),
        })
}

/// Parts of a view, with unflushed data of applications that run and of one that has ended.
fn parts() -> impl Strategy<Value = (Vec<App>, Shared, Shared, Vec<Dirty>)> {
    let apps = (0..7u64).prop_flat_map(|count| (0..count).map(app).collect::<Vec<_>>());
    let lump = |job, tier| {
        prop::option::of(1..50 * GB).prop_map(move |bytes| {
            bytes.map(|bytes| Dirty { job: JobId(job), tier, bytes, since_ns: NOW / 2 })
        })
    };
    let dirty: Vec<_> = (0..8u64).flat_map(|job| [lump(job, Tier::Local), lump(job, Tier::Burst)]).collect();
    (apps, shared(), shared(), dirty.prop_map(|lumps| lumps.into_iter().flatten().collect()))
}

proptest! {
    #[test]
    fn every_phase_ends_and_every_byte_arrives(testbed in testbed(), apps in workloads(), strategy in strategies()) {
        let report = run(&testbed, strategy, &apps);
        let report = report.unwrap_or_else(|error| panic!("{}: {error}", strategy.name()));
        check_conserved(&report, &apps);
    }

    #[test]
    fn the_same_run_gives_the_same_report(testbed in testbed(), apps in workloads(), strategy in strategies()) {
        let turned: Vec<Workload> = apps.iter().rev().cloned().collect();
        prop_assert_eq!(run(&testbed, strategy, &apps), run(&testbed, strategy, &turned));
    }

    /// `decide` itself panics at a verdict that is missing, weighs nothing or sends somebody to a full tier.
    #[test]
    fn verdicts_are_whole_and_do_not_depend_on_the_order(
        (apps, burst, pfs, dirty) in parts(),
        turn in 0..8usize,
        strategy in strategies(),
    ) {
        let view = View::new(NOW, apps.clone(), burst.clone(), pfs.clone(), dirty.clone()).unwrap();
        let decision = decide(strategy, &view);
        let (mut apps, mut dirty) = (apps, dirty);
        let by = turn % apps.len().max(1);
        apps.rotate_left(by);
        dirty.reverse();
        let other = View::new(NOW, apps, burst, pfs, dirty).unwrap();
        prop_assert_eq!(decision, decide(strategy, &other));
    }

    /// While both shared tiers have all their room, at least one phase writes, and with late news every one does.
    #[test]
    fn somebody_always_writes((apps, burst, pfs, _) in parts(), strategy in strategies()) {
        let empty = |shared: Shared| Shared { free_bytes: shared.capacity_bytes, ..shared };
        let (burst, pfs) = (empty(burst), empty(pfs));
        let view = View::new(NOW, apps, burst, pfs, vec![]).unwrap();
        let fresh = [Tier::Burst, Tier::Pfs].map(|tier| view.knowledge(tier)) == [Knowledge::Fresh; 2];
        let phases = decide(strategy, &view).phases;
        let waiting = phases.values().filter(|verdict| **verdict == Verdict::Wait).count();
        prop_assert!(phases.is_empty() || waiting < phases.len(), "all wait under {}", strategy.name());
        prop_assert!(fresh || waiting == 0, "{waiting} wait for what is not known under {}", strategy.name());
    }

    /// Asked again after everybody has done as told, a strategy soon says the same again: nobody is sent to and fro.
    #[test]
    fn verdicts_come_to_rest((apps, burst, pfs, _) in parts(), strategy in strategies()) {
        come_to_rest(strategy, apps, &burst, &pfs);
    }

    #[test]
    fn verdicts_on_phases_of_the_same_size_come_to_rest(
        apps in alike(),
        tiers in (fresh(), fresh()),
        strategy in strategies(),
    ) {
        come_to_rest(strategy, apps, &tiers.0, &tiers.1);
    }
}

/// Copies of a program, of whose first phases nothing is known.
fn alike() -> impl Strategy<Value = Vec<App>> {
    (2..9usize, 1..64u32, 0..30 * MB).prop_flat_map(|(count, processes, under_way_bytes)| {
        let tier = prop::option::of(prop::sample::select(vec![Tier::Burst, Tier::Pfs]));
        prop::collection::vec((patterns(), tier, 0..300 * MB), count).prop_map(move |apps| {
            let app = |(at, (pattern, tier, written_bytes)): (usize, (Pattern, Option<Tier>, u64))| App {
                job: JobId(at as u64 + 1),
                processes,
                weight: 1,
                phase: Some(Phase { begin_ns: NOW - S, written_bytes, expected_bytes: None, pattern, tier }),
                past: vec![],
                link_bytes_per_s: None,
                under_way_bytes,
                local: None,
            };
            apps.into_iter().enumerate().map(app).collect()
        })
    })
}

prop_compose! {
    /// As tiers are: up to a peak and down from it, in sequence faster than at random. A tier that is known, and has room.
    fn fresh()(
        peak_mb in 100..1000u64,
        up in prop::collection::vec(10..100u64, 0..4),
        down in prop::collection::vec(10..100u64, 0..4),
        (strided, random) in (10..=100u64, 5..=100u64),
    ) -> Shared {
        let (mut up, mut down) = (up, down);
        up.sort_unstable();
        down.sort_unstable_by_key(|percent| std::cmp::Reverse(*percent));
        let percents = up.into_iter().chain([100]).chain(down);
        let points: Vec<(u32, u64)> =
            percents.enumerate().map(|(n, percent)| (2 << n, peak_mb * percent * MB / 100)).collect();
        let of = |percent: u64| {
            let points: Vec<(u32, u64)> = points.iter().map(|(n, rate)| (*n, rate * percent / 100)).collect();
            Curve::new(&points).unwrap()
        };
        Shared {
            capacity_bytes: 1000 * GB,
            free_bytes: 1000 * GB,
            foreign_users: 0,
            foreign_processes: 0,
            flush_in_bytes_per_s: 0,
            flush_out_bytes_per_s: 0,
            age_ns: Some(0),
            curves: Some(Arc::new(Curves { sequential: of(100), strided: of(strided), random: of(random) })),
        }
    }
}

fn come_to_rest(strategy: &dyn IoStrategy, mut apps: Vec<App>, burst: &Shared, pfs: &Shared) {
    let mut all = Vec::new();
    loop {
        let view = View::new(NOW, apps.clone(), burst.clone(), pfs.clone(), vec![]).unwrap();
        let verdicts = decide(strategy, &view).phases;
        if all.last() == Some(&verdicts) {
            return;
        }
        for app in &mut apps {
            let Some(phase) = &mut app.phase else { continue };
            phase.tier = match verdicts[&app.job] {
                Verdict::Go { tier, .. } => Some(tier),
                Verdict::Wait => None,
            };
        }
        all.push(verdicts);
        assert!(all.len() <= ROUNDS_MAX, "{}: {all:#?}", strategy.name());
    }
}
