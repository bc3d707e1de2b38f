//! Ranks that wait for each other: barriers, mdtest, and applications of `tidepool workload`.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, station, writes};
use std::collections::BTreeMap;
use tidepool_sim::{Options, Time};
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::workload::{Ior, Mdtest, Program, Sharing};
use tidepool_sim_models::{Op, Pfs, Results, ServerSpec, Span, run};

const MS: u64 = 1_000_000;

fn simulate(server: ServerSpec, servers: u32, program: Program) -> Results {
    let classes = vec![class("s", servers, station(1, fixed(1_000)))];
    let layout = even(65_536, servers);
    let mut pfs = Pfs::new(fast_network(10), server, classes, layout, vec![application(program)]).unwrap();
    pfs.keep_requests = true;
    run(pfs, 5, &Options::default()).unwrap().1
}

#[test]
fn nobody_begins_a_segment_before_all_have_done_the_last_one() {
    let (ranks, segments) = (7, 5);
    let ior = |barrier| {
        let think = Span::Exponential(Time(100_000));
        Program::Ior(Ior { segments, barrier, think, depth: 2, ..writes(ranks, 3) })
    };
    let overlaps = |results: &Results| {
        let mut spans = BTreeMap::new();
        for r in results.all.iter().filter(|r| r.op == Op::Write) {
            let segment = r.offset / (u64::from(ranks) * 3 * 65_536);
            let span = spans.entry(segment).or_insert((u64::MAX, 0));
            *span = (span.0.min(r.begin), span.1.max(r.end));
        }
        let spans: Vec<(u64, u64)> = spans.into_values().collect();
        assert_eq!(spans.len(), 5);
        spans.windows(2).filter(|pair| pair[1].0 < pair[0].1).count()
    };
    let with = simulate(idle_server(10), 2, ior(true));
    assert_eq!(overlaps(&with), 0);
    assert_eq!(with.requests, u64::from(ranks) * segments * 4);
    // Without, they drift apart.
    assert!(overlaps(&simulate(idle_server(10), 2, ior(false))) > 2);
}

/// Ranks 1 and 2 hang below 0, 3 below 1: up and down a path of the tree each way is a latency, and the turn a tick.
#[test]
fn a_barrier_takes_the_ways_up_and_down_the_tree() {
    let ior = Ior { barrier: true, ..writes(4, 1) };
    let results = simulate(idle_server(10), 1, Program::Ior(ior));
    let of_rank = |rank| {
        let mut mine = results.all.iter().filter(|r| r.rank == rank && r.op == Op::Barrier);
        mine.next().map(|r| r.end - r.begin)
    };
    assert_eq!([0, 1, 2, 3].map(of_rank), [Some(21), Some(31), Some(31), Some(41)]);
    let alone = simulate(idle_server(10), 1, Program::Ior(Ior { barrier: true, ..writes(1, 1) }));
    assert_eq!(alone.all[0].end - alone.all[0].begin, 1);
}

/// Who makes a file needs its server, and the one of the directory: one directory is on one server.
#[test]
fn one_directory_is_a_bottleneck_and_many_are_not() {
    let (ranks, files, servers) = (16, 8, 4);
    let made = |directories| {
        let server = ServerSpec { metadata: fixed(MS), ..idle_server(10) };
        let program = Program::Mdtest(Mdtest { ranks, files, bytes: 0, directories, file: 0 });
        let results = simulate(server, servers, program);
        assert_eq!(results.requests, u64::from(ranks * files) * 4 + 4 * u64::from(ranks));
        let of = |op| results.all.iter().filter(move |r| r.op == op);
        let span = |op| of(op).map(|r| r.end).max().unwrap() - of(op).map(|r| r.begin).min().unwrap();
        assert!([Op::Create, Op::Stat, Op::Unlink].iter().all(|op| of(*op).count() as u32 == ranks * files));
        (span(Op::Create), span(Op::Stat))
    };
    let (shared, per_process) = (made(Sharing::Shared), made(Sharing::PerProcess));
    let all = u64::from(ranks * files) * MS;
    println!("ms to make and close: {} in one directory, {} in many", shared.0 / MS, per_process.0 / MS);
    // Every file takes a millisecond of the directory's server; files whose home that is, are looked at once for both.
    assert!(shared.0 > all && shared.0 < all * 2);
    // Otherwise each server has a quarter of at most three times as much: two for making, one for closing.
    assert!(per_process.0 < all, "{per_process:?}");
    // Looking at them needs no directory.
    assert!(shared.1.abs_diff(per_process.1) < all / 20, "{shared:?} {per_process:?}");
}

const APPLICATIONS: &str = "
[[application]]
kind = \"phases\"
processes = 4
steps = 3
bytes = \"300KB\"
compute-seconds = 2
pattern = \"random\"
[[application]]
kind = \"wrf\"
processes = 3
steps = 4
every = 2
input-bytes = 100000
checkpoint-bytes = 200000
output-bytes = 50000
compute-seconds = 1
[[application]]
kind = \"sph\"
processes = 4
steps = 2
bytes = 90000
compute-seconds = 1
[[application]]
kind = \"openfoam\"
processes = 2
steps = 4
every = 2
files = 3
compute-seconds = 1
";

/// The crate that describes them counts what they do in another way.
#[test]
fn applications_do_what_their_description_counts() {
    let text = "[[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"1ms\"\n[[servers]]\nname = \"s\"\ndevice = \"d\"\ncount = 3\n\
                [[workload]]\nname = \"w\"\nkind = \"workload\"\npath = \"apps.toml\"\n";
    let load = |path: &str| if path == "apps.toml" { Ok(APPLICATIONS.into()) } else { Err("gone".into()) };
    let experiment = Experiment::read(text, &load).unwrap();
    let mut pfs = experiment.system().unwrap();
    pfs.keep_requests = true;
    let (_, results) = run(pfs, 1, &Options::default()).unwrap();
    let described = tidepool_workload::read_file(APPLICATIONS).unwrap();
    assert_eq!(experiment.applications.len(), described.len());
    for (number, one) in (0..).zip(&described) {
        assert_eq!(experiment.applications[number as usize].name, format!("w.{}", one.name));
        let phases = one.phases_in_turn().filter(|phase| phase.stage != tidepool_workload::Stage::Prepare);
        let mut expected = tidepool_workload::Tally::default();
        phases.for_each(|phase| expected += one.tally(&phase));
        let bytes = |op| {
            let mine = results.all.iter().filter(|r| r.application == number && r.op == op);
            mine.map(|r| r.length).sum::<u64>()
        };
        assert_eq!(
            (bytes(Op::Read), bytes(Op::Write)),
            (expected.bytes_read, expected.bytes_written),
            "{}",
            one.name
        );
        // Steps compute one after the other, and I/O comes to it.
        let end = results.all.iter().filter(|r| r.application == number).map(|r| r.end).max().unwrap();
        let computed = one.compute(None).as_nanos() as u64 * one.steps;
        assert!(end > computed && end < computed + 2_000 * MS, "{}: {end} {computed}", one.name);
    }
    assert_eq!(results.open, 0);
}
