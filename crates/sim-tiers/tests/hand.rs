//! Runs that were worked by hand, those of the fluid model's tests.

mod common;

use common::*;
use tidepool_iosched::Tier;
use tidepool_sim_tiers::{App, Report};

/// I/O times of the first phase of each application, in seconds.
fn first_s(report: &Report) -> Vec<f64> {
    report.apps.iter().map(|app| app.io_ns[0] as f64 / 1e9).collect()
}

/// Within a fiftieth: chunks are not infinitely small, and a stream of a flush is not at the source while it writes.
fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found} instead of {expected}");
    }
}

#[test]
fn alone_on_the_pfs() {
    let mut app = one_gb("a");
    app.workload.steps = 2;
    app.workload.pace = tidepool_workload::Pace::Compute(std::time::Duration::from_secs(5));
    app.workload.start = std::time::Duration::from_secs(3);
    let report = under("baseline", &setup(vec![app]));
    assert_near(&first_s(&report), &[10.0]);
    assert_near(&[report.end_ns as f64 / 1e9, report.flushed_ns as f64 / 1e9], &[33.0, 33.0]);
    assert_eq!(report.apps[0].bytes, [0, 0, 2 * GB]);
    assert_near(&[report.tiers[2].busy_ns as f64 / 4e9], &[20.0]);
}

#[test]
fn two_share_the_pfs() {
    let report = under("baseline", &setup(vec![one_gb("a"), one_gb("b")]));
    assert_near(&first_s(&report), &[20.0, 20.0]);
    assert!(report.fairness() > 0.999);
}

/// 1 GB at 200 MB/s beside its flush, which has four streams against four processes: half of the time each, until the application has
/// written; then the rest at the PFS's 100 MB/s. Here chunks are flushed at once, in the fluid model when a lump is full.
#[test]
fn hp_flushes_while_it_writes() {
    let report = under("hp", &setup(vec![one_gb("a")]));
    assert_near(&first_s(&report), &[10.0]);
    assert_near(&[report.flushed_ns as f64 / 1e9], &[10.0]);
    assert_eq!(report.tiers[Tier::Burst as usize].flushed_out_bytes, GB);
}

/// K11. The second writes 500 MB to the PFS while the first has the burst buffer for 5 s. Then its rest goes there, beside
/// the flush of the first's data, which `ia` starts because the PFS is idle: 5 s at 100 MB/s.
#[test]
fn ia_redirects_the_rest_of_a_phase() {
    let report = under("ia", &setup(vec![one_gb("a"), one_gb("b")]));
    assert_near(&first_s(&report), &[5.0, 10.0]);
    // Both begin at once and do not know of each other for a microsecond: off the burst buffer, and on to it again.
    assert_eq!([report.apps[0].moves, report.apps[1].moves], [0, 2]);
    assert_near(&[report.apps[1].bytes[1] as f64 / 1e9], &[0.5]);
    assert_near(&[report.flushed_ns as f64 / 1e9], &[20.0]);
}

/// The same, but the flush waits: the rest takes 2.5 s, and 1.5 GB are left to flush.
#[test]
fn model_keeps_the_flush_out_of_the_way() {
    let report = under("model", &setup(vec![one_gb("a"), one_gb("b")]));
    let mut times = first_s(&report);
    times.sort_by(f64::total_cmp);
    assert_near(&times, &[5.0, 7.5]);
    assert_near(&[report.flushed_ns as f64 / 1e9], &[22.5]);
}

/// One link of 50 MB/s is less than the PFS has.
#[test]
fn links_are_a_limit() {
    let mut machine = setup(vec![one_gb("a")]);
    machine.link_bytes_per_s = Some(50 * MB);
    assert_near(&first_s(&under("baseline", &machine)), &[20.0]);
    let two: Vec<App> = vec![App { nodes: 2, ..one_gb("a") }];
    assert_near(&first_s(&under("baseline", &tidepool_sim_tiers::Setup { apps: two, ..machine })), &[10.0]);
}

/// A burst buffer that holds half of it: the rest is refused, or goes to the PFS by the strategy's own will.
#[test]
fn what_does_not_fit_goes_to_the_pfs() {
    let mut app = one_gb("a");
    app.workload.processes = 12;
    let mut machine = setup(vec![app]);
    machine.burst.capacity_bytes = 500 * MB;
    let report = under("ia", &machine);
    let [_, burst, pfs] = report.apps[0].bytes;
    assert_eq!(burst + pfs, 3 * GB);
    assert!(burst > 0 && pfs > 0, "{burst} {pfs}");
}
