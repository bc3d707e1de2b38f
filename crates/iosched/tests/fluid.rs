//! Runs in the fluid model that were worked by hand, and what each strategy is for.

use std::sync::Arc;
use tidepool_iosched::fluid::{FluidError, Report, SharedTier, Testbed, Workload, run, stretches};
use tidepool_iosched::registry::STRATEGIES;
use tidepool_iosched::{Curve, Curves, JobId, Pattern, Tier, by_name};

const MB: u64 = 1_000_000;
const GB: u64 = 1_000 * MB;
const S: u64 = 1_000_000_000;

fn flat(bytes_per_s: u64) -> SharedTier {
    let curves = Curves::same(Curve::flat(bytes_per_s).unwrap());
    SharedTier { capacity_bytes: 1000 * GB, curves: Arc::new(curves) }
}

/// A burst buffer of 200 MB/s and a PFS of 100 MB/s, whatever the number of processes; a flush counts as four.
fn testbed(lump_bytes: u64) -> Testbed {
    Testbed {
        burst: flat(200 * MB),
        pfs: flat(100 * MB),
        flush_streams: 4,
        lump_bytes,
        schedulers: 1,
        delay_ns: 0,
    }
}

/// Four processes that write 1 GB together, once.
fn one_gb(job: u64) -> Workload {
    Workload {
        job: JobId(job),
        processes: 4,
        weight: 1,
        pattern: Pattern::Sequential,
        bytes_per_process: 250 * MB,
        steps: 1,
        compute_ns: 0,
        start_ns: 0,
        link_bytes_per_s: None,
        local: None,
    }
}

fn under(name: &str, testbed: &Testbed, apps: &[Workload]) -> Report {
    run(testbed, by_name(name).unwrap(), apps).unwrap()
}

/// I/O times of the first step of each application, to the millisecond.
fn first_ms(report: &Report) -> Vec<u64> {
    report.apps.iter().map(|app| app.io_ns[0] / 1_000_000).collect()
}

#[test]
fn alone_on_the_pfs() {
    let app = Workload { steps: 2, compute_ns: 5 * S, start_ns: 3 * S, ..one_gb(1) };
    let report = under("baseline", &testbed(GB), &[app]);
    assert_eq!(report.apps[0].io_ns, [10 * S, 10 * S]);
    assert_eq!((report.end_ns, report.drained_ns), (33 * S, 33 * S));
    assert_eq!(report.apps[0].bytes, [0, 0, 2 * GB]);
    assert_eq!(report.tiers[Tier::Pfs as usize].busy_ns, 20 * S);
}

#[test]
fn two_share_the_pfs() {
    let report = under("baseline", &testbed(GB), &[one_gb(1), one_gb(2)]);
    assert_eq!(first_ms(&report), [20_000, 20_000]);
    assert_eq!(report.fairness(), 1.0);
}

/// 1 GB at 200 MB/s, then its flush at 100 MB/s.
#[test]
fn hp_lets_the_application_go_and_flushes_behind_it() {
    let report = under("hp", &testbed(GB), &[one_gb(1)]);
    assert_eq!(first_ms(&report), [5_000]);
    assert_eq!((report.end_ns, report.drained_ns), (5 * S, 15 * S));
}

/// The first lump of 500 MB takes 2.5 s. Its flush, with four streams against four processes, halves the rest: 5 s at
/// 100 MB/s. The second lump goes at the PFS's 100 MB/s: 5 s.
#[test]
fn a_flush_takes_its_part_of_both_tiers() {
    let report = under("hp", &testbed(GB / 2), &[one_gb(1)]);
    assert_eq!(first_ms(&report), [7_500]);
    assert_eq!(report.drained_ns, 12_500_000_000);
}

/// K11. The second writes 500 MB to the PFS while the first has the burst buffer for 5 s. Then its rest goes there, beside
/// the flush of the first's data, which `ia` starts because the PFS is idle: 5 s at 100 MB/s. After 10 s 500 MB of each are
/// left to flush.
#[test]
fn ia_redirects_the_rest_of_a_phase() {
    let report = under("ia", &testbed(10 * GB), &[one_gb(1), one_gb(2)]);
    assert_eq!(first_ms(&report), [5_000, 10_000]);
    assert_eq!(report.apps[1].bytes, [0, GB / 2, GB / 2]);
    assert_eq!(report.drained_ns / 1_000_000, 20_000);
}

/// The same, but the flush waits: the rest takes 2.5 s, and 1.5 GB are left to flush.
#[test]
fn model_keeps_the_flush_out_of_the_way() {
    let report = under("model", &testbed(10 * GB), &[one_gb(1), one_gb(2)]);
    assert_eq!(first_ms(&report), [5_000, 7_500]);
    assert_eq!(report.drained_ns / 1_000_000, 22_500);
}

/// The first has the burst buffer for 5 s, the second the PFS for 5 s and then the burst buffer for 2.5 s; the third waits for
/// 5 s and writes 250 MB to the PFS in 2.5 s. Its other 750 MB go to the burst buffer beside the flushes of the first two's
/// data, which together have the PFS's 100 MB/s and leave it 100 MB/s: 7.5 s.
#[test]
fn fcfs_serves_in_the_order_of_arrival() {
    let apps: Vec<Workload> = (1..=3).map(one_gb).collect();
    let report = under("fcfs", &testbed(10 * GB), &apps);
    assert_eq!(first_ms(&report), [5_000, 7_500, 15_000]);
}

#[test]
fn set10_lets_one_of_a_set_write_at_a_time() {
    let report = under("set10", &testbed(10 * GB), &[one_gb(1), one_gb(2)]);
    assert_eq!(first_ms(&report), [5_000, 10_000]);
    assert_eq!(report.apps[1].bytes, [0, GB, 0]);
}

/// Node-local memory of 500 MB/s and 600 MB, of which it can take all but what counts as full.
#[test]
fn node_local_memory_takes_what_it_can_and_the_rest_goes_on() {
    let app = Workload { local: Some((600 * MB, 500 * MB)), ..one_gb(1) };
    let report = under("model", &testbed(GB), &[app]);
    let [local, burst, pfs] = report.apps[0].bytes;
    assert!((598 * MB..=600 * MB).contains(&local), "{local}");
    assert!(GB - local - burst <= 2 && pfs == 0, "{burst} and {pfs}");
    let roomy = Workload { local: Some((1100 * MB, 500 * MB)), ..one_gb(1) };
    let report = under("model", &testbed(GB), &[roomy]);
    assert_eq!(report.apps[0].bytes, [GB, 0, 0]);
    assert_eq!(first_ms(&report), [2_000]);
}

#[test]
fn links_bound_what_an_application_gets_and_others_have_the_rest() {
    let slow = Workload { link_bytes_per_s: Some(20 * MB), ..one_gb(1) };
    let report = under("baseline", &testbed(GB), &[slow, one_gb(2)]);
    // The other has 80 MB/s for 12.5 s.
    assert_eq!(first_ms(&report), [50_000, 12_500]);
}

/// 300 MB of burst buffer: what finds it full goes to the PFS, and nothing is lost.
#[test]
fn hp_overflows_to_the_pfs() {
    let mut small = testbed(GB);
    small.burst.capacity_bytes = 300 * MB;
    let report = under("hp", &small, &[one_gb(1)]);
    let [_, burst, pfs] = report.apps[0].bytes;
    assert!(burst >= 298 * MB && pfs >= 298 * MB, "{burst} and {pfs}");
    assert!(GB - (burst + pfs) <= 2, "parts are told in whole bytes");
    assert_eq!(report.refused, 0, "with fresh news nobody is sent to a full tier");
}

#[test]
fn a_full_pfs_is_told() {
    let mut small = testbed(GB);
    small.pfs.capacity_bytes = 500 * MB;
    let error = run(&small, by_name("hp").unwrap(), &[one_gb(1)]).unwrap_err();
    assert!(matches!(error, FluidError::Stuck { full: Some(Tier::Pfs), .. }), "{error}");
}

/// A curve that falls, and an aggressor of 256 processes that never computes beside a victim of 8 that writes 1 GB every
/// minute.
fn beside_an_aggressor() -> (Testbed, Vec<Workload>) {
    let curve = |peak: u64| Curve::new(&[(8, peak), (64, peak * 9 / 10), (256, peak * 6 / 10)]).unwrap();
    let tier = |peak| SharedTier { curves: Arc::new(Curves::same(curve(peak))), ..flat(peak) };
    let machine = Testbed { burst: tier(400 * MB), pfs: tier(200 * MB), ..testbed(GB) };
    let victim =
        Workload { processes: 8, bytes_per_process: 125 * MB, steps: 10, compute_ns: 60 * S, ..one_gb(1) };
    let aggressor = Workload { processes: 256, bytes_per_process: GB / 4, steps: 3, ..one_gb(2) };
    (machine, vec![victim, aggressor])
}

/// Want 19: the victim's I/O is slowed down by less than 1.2, where `hp` slows it down many times.
#[test]
fn fair_protects_the_victim_of_an_aggressor() {
    let (machine, apps) = beside_an_aggressor();
    let slowdown = |name| stretches(&machine, by_name(name).unwrap(), &apps).unwrap()[0].io;
    assert!(slowdown("fair") < 1.2, "{}", slowdown("fair"));
    assert!(slowdown("hp") > 3.0, "{}", slowdown("hp"));
}

/// K19: one that writes at random and one in sequence; `ia` sends who comes first to the burst buffer, `model` who is hurt
/// most by the PFS.
#[test]
fn model_knows_patterns_and_ia_does_not() {
    let tier = |sequential, random| {
        let flat = |rate| Curve::flat(rate).unwrap();
        let curves = Curves { sequential: flat(sequential), strided: flat(random), random: flat(random) };
        SharedTier { capacity_bytes: 1000 * GB, curves: Arc::new(curves) }
    };
    let machine =
        Testbed { burst: tier(200 * MB, 180 * MB), pfs: tier(100 * MB, 10 * MB), ..testbed(10 * GB) };
    let apps = [one_gb(1), Workload { pattern: Pattern::Random, ..one_gb(2) }];
    let (ia, model) = (under("ia", &machine, &apps), under("model", &machine, &apps));
    assert!(model.io_mean_ns() < ia.io_mean_ns(), "{} and {}", model.io_mean_ns(), ia.io_mean_ns());
    assert!(model.io_slowest_ns() <= ia.io_slowest_ns());
}

/// A long phase beside a stream of short ones, which the shortest-first rule of `model` prefers.
#[test]
fn a_long_phase_is_not_starved_by_short_ones() {
    let long = Workload { bytes_per_process: 5 * GB, ..one_gb(1) };
    let short = |job| Workload { bytes_per_process: 100 * MB, steps: 300, compute_ns: S / 2, ..one_gb(job) };
    let apps: Vec<Workload> = [long].into_iter().chain((2..=5).map(short)).collect();
    for strategy in STRATEGIES {
        let report = run(&testbed(GB), *strategy, &apps).unwrap();
        let last_short = report.apps[1..].iter().map(|app| app.end_ns).max().unwrap();
        let long_end = report.apps[0].end_ns;
        assert!(long_end < last_short, "{}: {long_end} after {last_short}", strategy.name());
    }
}

/// Two schedulers that each see the burst buffer free use it together until the news arrive; beyond the limit for late news
/// they go by rank, and nobody waits for anybody.
#[test]
fn late_news_cost_time_but_nothing_else() {
    let apps = [one_gb(1), one_gb(2)];
    let late = |delay_ns| Testbed { schedulers: 2, delay_ns, ..testbed(10 * GB) };
    let ia = |delay_ns| under("ia", &late(delay_ns), &apps);
    assert_eq!(first_ms(&ia(0)), [5_000, 10_000]);
    // Nothing is ever heard in time: both write to the PFS, as if there was no burst buffer.
    assert_eq!(first_ms(&ia(60 * S)), [20_000, 20_000]);
    assert_eq!(ia(60 * S).apps[0].bytes, [0, 0, GB]);
    for strategy in STRATEGIES {
        for delay_ns in [S / 10, S, 7 * S] {
            let report = run(&late(delay_ns), *strategy, &apps).unwrap();
            let written: u64 = report.apps.iter().flat_map(|app| app.bytes).sum();
            assert!(2 * GB - written <= 4, "{}", strategy.name());
        }
    }
}

#[test]
fn nonsense_is_refused() {
    let refused = |testbed: &Testbed, apps: &[Workload]| run(testbed, STRATEGIES[0], apps).unwrap_err();
    let plain = testbed(GB);
    assert_eq!(refused(&plain, &[]), FluidError::NoApps);
    assert_eq!(refused(&plain, &[one_gb(1), one_gb(1)]), FluidError::Twice(JobId(1)));
    let idle = Workload { steps: 0, ..one_gb(3) };
    assert_eq!(refused(&plain, &[idle]).to_string(), "job 3: 1 to 100000 steps");
    let none = Testbed { schedulers: 0, ..plain };
    assert_eq!(refused(&none, &[one_gb(1)]).to_string(), "testbed: one scheduler at least");
    let slow = Workload { link_bytes_per_s: Some(1), bytes_per_process: 10 * GB, ..one_gb(1) };
    assert!(matches!(refused(&testbed(GB), &[slow]), FluidError::TooLong { at_ns: 0 }));
    let huge = Workload { bytes_per_process: u64::MAX, processes: 1 << 20, ..one_gb(1) };
    assert!(matches!(refused(&testbed(GB), &[huge]), FluidError::TooMuch(_)));
}
