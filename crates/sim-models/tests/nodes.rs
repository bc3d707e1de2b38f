//! Ranks that share nodes: the node's link, its page cache, and what that owes to the servers.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, listed, station, took, writes};
use tidepool_sim::{Options, Time};
use tidepool_sim_models::workload::{Ior, Listed, Program};
use tidepool_sim_models::{
    Application, CacheSpec, Network, NodeCache, NodesSpec, OnNodes, Op, Pfs, PfsError, Results, ServerSpec,
    run,
};

const KIB: u64 = 1 << 10;
const MS: u64 = 1_000_000;
const CALL: u64 = 5;
/// To a rank's node and back.
const CALLS: u64 = 2 * CALL;
/// From the node: to the server, to the device, the device, and back.
const ASKED: u64 = 4 + MS;

/// A byte takes a nanosecond in memory.
fn figures() -> CacheSpec {
    CacheSpec {
        size: 1 << 30,
        dirty: 1 << 30,
        delay: Time(1_000 * MS),
        rate: 1_000_000_000,
        read_ahead: 0,
        flushes: 1,
        flush_bytes: 1,
    }
}

fn keeping(figures: CacheSpec) -> Option<NodeCache> {
    Some(NodeCache { figures, flush_on_close: false, drop_on_open: false })
}

fn system(network: Network, device: u64, applications: Vec<Application>) -> Pfs {
    let classes = vec![class("s", 1, station(1, fixed(device)))];
    let server = ServerSpec { ..idle_server(1) };
    let mut pfs = Pfs::new(network, server, classes, even(64 * KIB, 1), applications).unwrap();
    pfs.keep_requests = true;
    pfs
}

fn end(pfs: Pfs) -> Results {
    let results = run(pfs, 1, &Options::default()).unwrap().1;
    assert_eq!((results.open, results.failed), (0, 0));
    results
}

/// One server whose device takes a millisecond for whatever it is asked.
fn simulate(cache: Option<NodeCache>, ranks: u32, all: &[(Program, u64, OnNodes)]) -> Results {
    let applications: Vec<_> = all
        .iter()
        .map(|(program, start, _)| Application { start: Time(*start), ..application(program.clone()) })
        .collect();
    let on = all.iter().map(|(_, _, on)| *on).collect();
    let nodes = NodesSpec { ranks, call: Time(CALL), cache, applications: on };
    end(system(fast_network(1), MS, applications).with_nodes(nodes).unwrap())
}

fn alone(cache: Option<NodeCache>, program: Program) -> Results {
    simulate(cache, 1, &[(program, 0, OnNodes::default())])
}

#[test]
fn what_a_node_has_costs_a_call_and_memory() {
    let wanted = [
        (Op::Write, 0, 4 * KIB),
        // Longer than a stripe: two sub-requests, one behind the other at the device.
        (Op::Read, 62 * KIB, 4 * KIB),
        (Op::Read, 62 * KIB, 4 * KIB),
        (Op::Read, 0, 4 * KIB),
        (Op::Read, 3 * KIB, 2 * KIB),
        // Again, before it has gone to the server.
        (Op::Write, 2 * KIB, 2 * KIB),
        (Op::Fsync, 0, 0),
        (Op::Stat, 0, 0),
    ];
    let results = alone(keeping(figures()), listed(&wanted));
    let memory = |bytes| CALLS + bytes;
    let expected = [
        memory(4 * KIB),
        CALLS + ASKED + MS,
        memory(4 * KIB),
        memory(4 * KIB),
        CALLS + ASKED,
        memory(2 * KIB),
        // What was cut by the second write are two extents of their own; then the servers' own fsync.
        CALLS + ASKED + MS + ASKED,
        CALLS + ASKED,
    ];
    assert_eq!(took(&results), expected);
    let node = results.nodes[0];
    let cache = node.cache.unwrap();
    assert_eq!((cache.hits, cache.misses, cache.overwritten), (8 * KIB, 6 * KIB, 2 * KIB));
    assert_eq!((node.written, node.flushed, node.read), (4 * KIB, 4 * KIB, 6 * KIB));
    assert_eq!((node.number, node.ranks, node.requests), (0, 1, 8));
    assert_eq!((results.servers[0].bytes_written, results.servers[0].bytes_read), (4 * KIB, 6 * KIB));
    // Without a cache all goes to the server, and a call is all that there is more.
    let without = alone(None, listed(&wanted));
    assert!(without.nodes[0].cache.is_none());
    let direct = end(system(fast_network(1), MS, vec![application(listed(&wanted))]));
    assert_eq!(took(&without), took(&direct).iter().map(|time| time + CALLS).collect::<Vec<_>>());
    assert_eq!(without.servers[0].bytes_written, direct.servers[0].bytes_written);
}

#[test]
fn a_close_waits_for_what_is_owed_where_it_is_said() {
    let wanted = [(Op::Open, 0, 0), (Op::Write, 0, KIB), (Op::Write, 8 * KIB, KIB), (Op::Close, 0, 0)];
    let close = |cache| took(&alone(cache, listed(&wanted)))[3];
    let cache = NodeCache { figures: figures(), flush_on_close: true, drop_on_open: false };
    // Both go at once, as for an fsync; the device takes them one after the other.
    assert_eq!(close(Some(cache)), CALLS + ASKED + MS + ASKED);
    assert_eq!(close(keeping(figures())), CALLS + ASKED);
    // Nothing is lost, and nobody waits for it.
    let kept = alone(keeping(figures()), listed(&wanted));
    assert_eq!((kept.servers[0].bytes_written, kept.nodes[0].flushed), (2 * KIB, 2 * KIB));
    assert!(kept.quiet.0 > 1_000 * MS && kept.end.0 < 5 * MS, "{} {}", kept.quiet, kept.end);
}

/// Two workloads: one writes a file, the other one reads it later, on the same node or another one.
#[test]
fn ranks_of_a_node_find_what_others_of_it_wrote() {
    let write = listed(&[(Op::Open, 0, 0), (Op::Write, 0, 4 * KIB), (Op::Close, 0, 0)]);
    let read = listed(&[(Op::Open, 0, 0), (Op::Read, 0, 4 * KIB), (Op::Close, 0, 0)]);
    let reader = |cache, node| {
        let on = |first| OnNodes { first, direct: false };
        let results =
            simulate(Some(cache), 2, &[(write.clone(), 0, on(0)), (read.clone(), 100 * MS, on(node))]);
        let read = results.all.iter().find(|request| request.op == Op::Read).unwrap();
        let numbers: Vec<(u32, u32)> = results.nodes.iter().map(|node| (node.number, node.ranks)).collect();
        (read.end - read.begin, numbers)
    };
    let cache = NodeCache { figures: figures(), flush_on_close: true, drop_on_open: false };
    assert_eq!(reader(cache, 0), (CALLS + 4 * KIB, vec![(0, 2)]));
    assert_eq!(reader(cache, 3), (CALLS + ASKED, vec![(0, 1), (3, 1)]));
    // As if somebody else had changed it.
    assert_eq!(reader(NodeCache { drop_on_open: true, ..cache }, 0).0, CALLS + ASKED);
    // What is dirty stays all the same.
    let dirty = NodeCache { drop_on_open: true, flush_on_close: false, ..cache };
    assert_eq!(reader(dirty, 0).0, CALLS + 4 * KIB);
}

#[test]
fn direct_requests_go_past_the_cache() {
    let wanted = [(Op::Write, 0, KIB), (Op::Read, 0, KIB), (Op::Write, 0, KIB), (Op::Read, 0, KIB)];
    let results =
        simulate(keeping(figures()), 1, &[(listed(&wanted), 0, OnNodes { first: 0, direct: true })]);
    assert_eq!(took(&results), [CALLS + ASKED; 4]);
    let cache = results.nodes[0].cache.unwrap();
    assert_eq!((cache.hits, cache.misses, results.servers[0].bytes_written), (0, 0, 2 * KIB));
    // What was in the cache is old then.
    let warm = (listed(&[(Op::Read, 0, 4 * KIB)]), 0, OnNodes::default());
    let direct = (listed(&[(Op::Write, KIB, KIB)]), 10 * MS, OnNodes { first: 0, direct: true });
    let again = (listed(&[(Op::Read, 0, KIB), (Op::Read, KIB, KIB)]), 20 * MS, OnNodes::default());
    let results = simulate(keeping(figures()), 1, &[warm, direct, again]);
    assert_eq!(took(&results), [CALLS + ASKED, CALLS + ASKED, CALLS + KIB, CALLS + ASKED]);
}

#[test]
fn what_is_dirty_of_a_file_that_is_gone_is_never_written() {
    let wanted = [(Op::Create, 0, 0), (Op::Write, 0, 4 * KIB), (Op::Close, 0, 0), (Op::Unlink, 0, 0)];
    let results = alone(keeping(figures()), listed(&wanted));
    let cache = results.nodes[0].cache.unwrap();
    assert_eq!((cache.overwritten, cache.dirty, results.servers[0].bytes_written), (4 * KIB, 0, 0));
}

/// A cache has room for one rank's data, not for those of two.
#[test]
fn ranks_of_a_node_share_its_memory() {
    let passes = |ranks_of_node| {
        let read = |rank: u64| [0, 1, 2, 0, 1, 2].map(|n| (Op::Read, rank * 100 * KIB + n * KIB, KIB));
        let programs = [0, 1].map(|rank| listed(&read(rank)));
        let spec = CacheSpec { size: 4 * KIB, dirty: KIB, ..figures() };
        let on = |rank: u32| OnNodes { first: rank / ranks_of_node, direct: false };
        let all = [0, 1].map(|rank| (programs[rank as usize].clone(), 0, on(rank)));
        let results = simulate(keeping(spec), ranks_of_node, &all);
        results.nodes.iter().map(|node| node.cache.unwrap().hits).collect::<Vec<_>>()
    };
    assert_eq!((passes(1), passes(2)), (vec![3 * KIB; 2], vec![0]));
}

/// Writes cost memory until as much is dirty as may be, then what the servers take.
#[test]
fn writers_are_held_up_when_too_much_is_dirty() {
    let all = 400 * 64 * KIB;
    let end = |dirty| {
        let results = alone(keeping(CacheSpec { dirty, ..figures() }), Program::Ior(writes(1, 400)));
        let cache = results.nodes[0].cache.unwrap();
        assert!(cache.dirty_most <= dirty && cache.dirty == 0, "{cache:?}");
        assert_eq!(results.servers[0].bytes_written, all);
        (results.end.0, cache.throttled)
    };
    let (free, held_up) = (end(2 * all), end(10 * 64 * KIB));
    assert!((all..all + 100_000).contains(&free.0) && free.1 == 0, "{free:?}");
    assert!((389 * MS..401 * MS).contains(&held_up.0) && held_up.1 > 300, "{held_up:?}");
}

/// Eight ranks write 8 MiB each over links of 100 MB/s; nothing else takes time.
#[test]
fn ranks_of_a_node_share_its_link() {
    let network = Network { client_bandwidth: 100_000_000, ..fast_network(1_000) };
    let ms = |ranks| {
        let applications = vec![application(Program::Ior(Ior { depth: 2, ..writes(8, 128) }))];
        let nodes =
            NodesSpec { ranks, call: Time(CALL), cache: None, applications: vec![OnNodes::default()] };
        let results = end(system(network.clone(), 1, applications).with_nodes(nodes).unwrap());
        assert_eq!(results.nodes.len() as u32, 8 / ranks);
        assert!(results.nodes.iter().all(|node| node.written == u64::from(ranks) * 128 * 64 * KIB));
        results.end.0 as f64 / MS as f64
    };
    let one = 128.0 * 65_536.0 / 1e5;
    for ranks in [1, 2, 4, 8] {
        let (seen, expected) = (ms(ranks), one * f64::from(ranks));
        assert!((expected..1.01 * expected + 0.1).contains(&seen), "{ranks} of a node: {seen}, {expected}");
    }
}

/// Up and down the tree of ranks: a message within a node is two calls, one to another node has the network in between.
#[test]
fn ranks_of_a_node_meet_without_the_network() {
    let latency = 1_000;
    let meet = |ranks| {
        let barrier = listed(&[(Op::Barrier, 0, 0)]);
        let Program::Listed(one) = &barrier else { unreachable!("a list") };
        let both = Program::Listed(Listed { ranks: vec![one.ranks[0].clone(); 2] }.into());
        let nodes =
            NodesSpec { ranks, call: Time(CALL), cache: None, applications: vec![OnNodes::default()] };
        end(system(fast_network(latency), 1, vec![application(both)]).with_nodes(nodes).unwrap()).end.0
    };
    // Both begin at 1; the upper one lets go in a tick.
    assert_eq!((meet(2), meet(1)), (1 + 4 * CALL + 1, 1 + 2 * (CALL + latency) + 1));
}

#[test]
fn what_are_no_nodes_is_refused() {
    let refused = |spec: NodesSpec| {
        let pfs = system(fast_network(1), 1, vec![application(Program::Ior(writes(4, 1)))]);
        match pfs.with_nodes(spec) {
            Err(PfsError::Nodes(why)) => why,
            _ => panic!("not refused"),
        }
    };
    let on = vec![OnNodes::default()];
    let spec = NodesSpec { ranks: 2, call: Time(1), cache: None, applications: on };
    assert!(refused(NodesSpec { ranks: 0, ..spec.clone() }).contains("0 ranks of a node"));
    assert!(refused(NodesSpec { call: Time::ZERO, ..spec.clone() }).contains("at least 1ns"));
    assert!(refused(NodesSpec { applications: vec![], ..spec.clone() }).contains("0 workloads"));
    let far = vec![OnNodes { first: (1 << 20) - 1, direct: false }];
    assert!(refused(NodesSpec { applications: far, ..spec.clone() }).contains("1048577"));
    let cache = keeping(CacheSpec { size: 0, ..figures() });
    assert!(refused(NodesSpec { cache, ..spec }).contains("no room"));
}
