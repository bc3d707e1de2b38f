//! What is seen of a run over time: sums by hand, and against the records themselves.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, station, writes};
use tidepool_sim::{Options, Scheduler};
use tidepool_sim_models::observe::{BINS_MAX, Observer};
use tidepool_sim_models::workload::{Ior, Program};
use tidepool_sim_models::{Op, Pfs, PieceResult, Place, Record, RequestResult, ServerSpec, Work, run_with};

struct Seen {
    observer: Observer,
    requests: Vec<RequestResult>,
    pieces: Vec<PieceResult>,
    work: Vec<Work>,
    servers: Vec<tidepool_sim_models::ServerResult>,
    nodes: Vec<tidepool_sim_models::NodeResult>,
    failed: u64,
    /// How long each was down until all was quiet: data are moved, and written out, behind the last request.
    down: Vec<u64>,
}

fn seen(mut pfs: Pfs, seed: u64, options: &Options<'_>) -> Seen {
    (pfs.keep_requests, pfs.keep_pieces, pfs.keep_work) = (true, true, true);
    let mut observer = Observer::new(&pfs);
    let (mut requests, mut pieces, mut work) = (Vec::new(), Vec::new(), Vec::new());
    let (simulation, results) = run_with(pfs, seed, options, |emitted| {
        observer.take(&emitted);
        match emitted.record {
            Record::Request(request) => requests.push(request),
            Record::Piece(piece) => pieces.push(piece),
            Record::Work(one) => work.push(one),
            Record::Step(_) | Record::Waits(_) => {}
        }
    })
    .unwrap();
    assert!(results.all.is_empty(), "nothing is kept");
    let pfs = simulation.model();
    let down = results.servers.iter().map(|server| pfs.down(server.number, results.quiet.0)).collect();
    let (servers, nodes, failed) = (results.servers, results.nodes, results.failed);
    Seen { observer, requests, pieces, work, servers, nodes, failed, down }
}

/// Three ranks write a stripe each at once to one device, which takes 100 us for one after the other. A latency of 1 us, 10 us
/// to look with one thread, 1 us to the device and back.
#[test]
fn three_requests_at_one_device_by_hand() {
    let server = ServerSpec { request: fixed(10_000), ..idle_server(1_000) };
    let servers = class("s", 1, station(1, fixed(100_000)));
    let pfs = Pfs::new(
        fast_network(1_000),
        server,
        vec![servers],
        even(65_536, 1),
        vec![application(Program::Ior(writes(3, 1)))],
    )
    .unwrap();
    let seen = seen(pfs, 1, &Options::default());
    // They start at 1 and are at the server at 1,001; looked at until 11,001, 21,001, 31,001; at the device a microsecond later.
    let threads: Vec<_> = seen.work.iter().filter(|work| work.place == Place::Threads).collect();
    let spans: Vec<_> = threads.iter().map(|work| (work.came, work.begin, work.until)).collect();
    assert_eq!(spans, [(1_001, 1_001, 11_001), (1_001, 11_001, 21_001), (1_001, 21_001, 31_001)]);
    let device: Vec<_> = seen.work.iter().filter(|work| work.place == Place::Device).collect();
    let spans: Vec<_> = device.iter().map(|work| (work.came, work.begin, work.until)).collect();
    assert_eq!(spans, [(12_001, 12_001, 112_001), (22_001, 112_001, 212_001), (32_001, 212_001, 312_001)]);
    // A microsecond back to the server and one to the client.
    let ends: Vec<_> = seen.requests.iter().map(|request| (request.begin, request.end)).collect();
    assert_eq!(ends, [(1, 114_001), (1, 214_001), (1, 314_001)]);
    let pieces: Vec<_> =
        seen.pieces.iter().map(|p| (p.start, p.end, p.offset, p.length, p.redirected)).collect();
    assert_eq!(pieces[1], (1, 214_001, 65_536, 65_536, false));
    // 314 us do not fit into 128 bins of a microsecond, but of four.
    let observer = &seen.observer;
    assert_eq!((observer.grid.width, observer.bins(), observer.end()), (4_000, 79, 314_001));
    assert_eq!(observer.widths()[78], 2_001);
    let server = &observer.servers[0];
    let busy = observer.means(&server.device_busy, 1.0);
    // From 12,001 to 312,001.
    assert_eq!((busy[2], busy[3], busy[77]), (0.0, 3_999.0 / 4_000.0, 1.0));
    assert_eq!(busy[78], 1.0 / 2_001.0);
    let queue = observer.means(&server.device_time, 1.0);
    // Until 112,001 there are three, from 212,001 on one.
    assert_eq!((queue[20], queue[30], queue[60], observer.queue_most(0)), (3.0, 2.0, 1.0, 3));
    assert_eq!(server.device_time.sum(), 100_000 + 190_000 + 280_000);
    assert_eq!((server.threads_busy.sum(), server.threads_wait.sum()), (30_000, 30_000));
    let written: Vec<u64> = server.bytes_written.values(79).collect();
    assert_eq!((written[28], written[53], written[78]), (65_536, 65_536, 65_536));
    let latencies = &observer.requests[&(0, Op::Write)].latencies;
    assert_eq!((latencies.count, latencies.mean()), (3, 214_000.0));
    let quantiles = [0.5, 0.9, 0.99, 0.999].map(|share| latencies.quantile(share));
    assert_eq!(quantiles, [214_000, 314_000, 314_000, 314_000]);
    let bins: Vec<_> = latencies.histogram().iter().map(|bin| (bin.from, bin.to, bin.count)).collect();
    assert_eq!(bins, [(98_304, 114_688, 1), (196_608, 229_376, 1), (262_144, 327_680, 1)]);
}

/// Random systems: what was seen is what servers have counted themselves, and the same under every scheduler.
#[test]
fn what_is_seen_is_what_was_counted() {
    for seed in 0..24 {
        let pfs = common::random_system(seed);
        let expected = seen(pfs, seed, &Options::default());
        let observer = &expected.observer;
        assert!(observer.bins() <= BINS_MAX);
        for ((server, counted), down) in observer.servers.iter().zip(&expected.servers).zip(&expected.down) {
            let sums = [&server.device_busy, &server.device_time, &server.threads_busy].map(|all| all.sum());
            let counts = [counted.device_busy, counted.device_time, counted.threads_busy];
            // Servers count the time at work only; from begin to end they may have been down.
            let fits = if *down == 0 { sums == counts } else { (0..3).all(|n| sums[n] >= counts[n]) };
            assert!(fits, "seed {seed}: {sums:?} {counts:?}");
            let bytes = (server.bytes_read.sum(), server.bytes_written.sum());
            assert_eq!(bytes, (counted.bytes_read, counted.bytes_written), "seed {seed}");
            assert!(
                observer.means(&server.device_busy, 1.0).iter().all(|share| *share <= 1.0),
                "seed {seed}"
            );
        }
        for number in 0..expected.servers.len() as u32 {
            let at_device = |work: &&Work| work.place == Place::Device && work.server == number;
            let device: Vec<&Work> = expected.work.iter().filter(at_device).collect();
            let there =
                |time| device.iter().filter(|work| work.came <= time && time < work.until).count() as u32;
            let most = device.iter().map(|work| there(work.came)).max().unwrap_or(0);
            // What takes no time is seen, too, when it comes.
            let instant = u32::from(device.iter().any(|work| work.came == work.until));
            assert!((most..=most + instant).contains(&observer.queue_most(number)), "seed {seed}: {most}");
        }
        let of_op = observer.by_op().into_iter().map(|(_, requests)| requests.latencies.count);
        assert_eq!(of_op.sum::<u64>(), expected.requests.len() as u64, "seed {seed}");
        let bytes: u64 = expected.requests.iter().map(|request| request.length).sum();
        let clients = &observer.clients;
        assert_eq!(clients.bytes_read.sum() + clients.bytes_written.sum(), bytes, "seed {seed}");
        // Every byte of a request is in one sub-request that was not sent on.
        let done = expected.pieces.iter().filter(|piece| !piece.redirected);
        let of_pieces: u64 = done.map(|piece| u64::from(piece.length)).sum();
        let moved: u64 = expected.servers.iter().map(|server| server.moved).sum();
        // What nodes ask servers for is less than their ranks ask for, or more: caches answer and read ahead.
        let asked = match expected.nodes.is_empty() {
            true => bytes,
            false => expected.nodes.iter().map(|node| node.read + node.written).sum(),
        };
        // Parts of a request that was given up may have been done.
        assert!(
            of_pieces == asked + moved || expected.failed > 0,
            "seed {seed}: {of_pieces} {asked} {moved}"
        );
        let optimistic = Options { scheduler: Scheduler::Optimistic, threads: 2, ..Options::default() };
        let other = seen(common::random_system(seed), seed, &optimistic);
        assert_eq!(
            (&other.requests, &other.pieces, &other.work),
            (&expected.requests, &expected.pieces, &expected.work)
        );
    }
}

/// A longer run has no more bins.
#[test]
fn memory_does_not_grow_with_the_run() {
    let system = |transfers| {
        let program = Program::Ior(Ior { depth: 4, ..writes(2, transfers) });
        let servers = class("s", 2, station(1, fixed(100_000)));
        let layout = even(65_536, 2);
        Pfs::new(fast_network(1_000), idle_server(1_000), vec![servers], layout, vec![application(program)])
            .unwrap()
    };
    for transfers in [1, 10, 100, 1_000, 4_000] {
        let observer = seen(system(transfers), 1, &Options::default()).observer;
        assert!(observer.bins() <= BINS_MAX && (transfers < 100 || observer.bins() > BINS_MAX / 2));
        assert_eq!(observer.clients.requests.sum(), 2 * transfers);
    }
}
