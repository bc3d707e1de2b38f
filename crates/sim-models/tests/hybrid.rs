//! Buffered-SSD and tiered-SSD (S1 §III-G).

mod common;

use common::{application, class, fast_network, fixed, idle_server, station, writes};
use tidepool_sim::{Options, Time};
use tidepool_sim_models::striping::{Layout, Region, Ring};
use tidepool_sim_models::workload::{Ior, Listed, Program, Request};
use tidepool_sim_models::{BufferSpec, Op, Pfs, Results, ServerResult, run};

const STRIPE: u64 = 65_536;

fn ring(servers: std::ops::Range<u32>) -> Ring {
    Ring::new(STRIPE, &servers.map(|server| (server, 1)).collect::<Vec<_>>()).unwrap()
}

/// Two slow servers, 0 and 1, behind two fast ones, 2 and 3.
fn buffered(capacity: u64, evict_above: u64, program: Program) -> Results {
    let mut classes =
        vec![class("slow", 2, station(1, fixed(1_000_000))), class("fast", 2, station(1, fixed(10_000)))];
    classes[1].buffer = Some(BufferSpec { capacity, evict_above });
    let layout = Layout::Buffered { buffer: ring(2..4), store: ring(0..2) };
    let applications = vec![application(program)];
    let mut pfs = Pfs::new(fast_network(1_000), idle_server(1_000), classes, layout, applications).unwrap();
    pfs.keep_requests = true;
    run(pfs, 1, &Options::default()).unwrap().1
}

/// Written bytes of the slow and of the fast servers.
fn written(results: &Results) -> (u64, u64) {
    let sum = |servers: &[ServerResult]| servers.iter().map(|server| server.bytes_written).sum();
    (sum(&results.servers[..2]), sum(&results.servers[2..]))
}

fn moved(results: &Results) -> u64 {
    results.servers.iter().map(|server| server.moved).sum()
}

fn one_rank(transfers: u64) -> Program {
    Program::Ior(writes(1, transfers))
}

#[test]
fn a_writes_go_to_fast_servers_while_they_have_room() {
    let results = buffered(8 * STRIPE, 8 * STRIPE, one_rank(16));
    assert_eq!((written(&results), moved(&results)), ((0, 16 * STRIPE), 0));
}

#[test]
fn b_writes_go_to_slow_servers_when_there_is_none() {
    let results = buffered(4 * STRIPE, 4 * STRIPE, one_rank(16));
    assert_eq!((written(&results), moved(&results)), ((8 * STRIPE, 8 * STRIPE), 0));
    let redirected: u64 = results.servers.iter().map(|server| server.redirected).sum();
    assert_eq!(redirected, 8);
    // What is written already can be written again without more room.
    let again = |n: u64| Request {
        op: Op::Write,
        file: 0,
        offset: n % 8 * STRIPE,
        length: STRIPE,
        after: tidepool_sim_models::workload::After::All,
        pace: tidepool_sim_models::workload::Pace::At(Time::ZERO),
    };
    let program = Program::Listed(Listed { ranks: vec![(0..24).map(again).collect()] }.into());
    assert_eq!(written(&buffered(4 * STRIPE, 4 * STRIPE, program)), (0, 24 * STRIPE));
}

#[test]
fn c_old_data_move_behind_the_clients_backs() {
    let kept = buffered(8 * STRIPE, 8 * STRIPE, one_rank(16));
    let results = buffered(8 * STRIPE, 0, one_rank(16));
    assert_eq!((written(&results), moved(&results)), ((16 * STRIPE, 16 * STRIPE), 16 * STRIPE));
    // Nobody waits for the slow servers; reading what is to be moved costs a little.
    assert!(results.end.0 < kept.end.0 * 3 / 2, "{} {}", results.end, kept.end);
    assert!(results.all.iter().all(|request| request.end - request.begin < 1_000_000));
}

#[test]
fn what_is_here_is_read_here_and_the_rest_behind() {
    let write = Ior { open: false, ..writes(1, 16) };
    let both = |read_op: Op| {
        let list = |op, n: u64| Request {
            op,
            file: 0,
            offset: n * STRIPE,
            length: STRIPE,
            after: tidepool_sim_models::workload::After::All,
            pace: tidepool_sim_models::workload::Pace::At(Time::ZERO),
        };
        let all = (0..16).map(|n| list(write.op, n)).chain((0..16).map(|n| list(read_op, n)));
        Program::Listed(Listed { ranks: vec![all.collect()] }.into())
    };
    let results = buffered(4 * STRIPE, 4 * STRIPE, both(Op::Read));
    let read = |servers: &[ServerResult]| servers.iter().map(|server| server.bytes_read).sum::<u64>();
    assert_eq!((read(&results.servers[..2]), read(&results.servers[2..])), (8 * STRIPE, 8 * STRIPE));
}

#[test]
fn tiered_regions_are_on_their_servers() {
    let classes =
        vec![class("slow", 2, station(1, fixed(1_000_000))), class("fast", 2, station(1, fixed(10_000)))];
    let regions = [(0, vec![Region { end: 100_000, ring: 1 }, Region { end: 700_000, ring: 0 }])];
    let layout = Layout::Tiered { regions: regions.into(), rings: vec![ring(0..2), ring(2..4)] };
    let pfs = Pfs::new(
        fast_network(10),
        idle_server(10),
        classes,
        layout,
        vec![application(Program::Ior(writes(1, 16)))],
    );
    let (_, results) = run(pfs.unwrap(), 1, &Options::default()).unwrap();
    assert_eq!(written(&results), (16 * STRIPE - 100_000, 100_000));
    // Two transfers are cut, at 100,000 and at 700,000: an edge is one also between regions on the same servers.
    let requests: u64 = results.servers.iter().map(|server| server.requests).sum();
    assert_eq!((requests, results.requests), (18, 16));
}
