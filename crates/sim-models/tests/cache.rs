//! Page caches of servers: what they save, what they owe, and that nothing is lost.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, listed, station, took, writes};
use tidepool_sim::{Options, Time};
use tidepool_sim_models::workload::{Ior, Listed, Pace, Program, Request};
use tidepool_sim_models::{CacheResult, CacheSpec, Op, Pfs, Results, ServerSpec, run};

const KIB: u64 = 1 << 10;
const MS: u64 = 1_000_000;

/// A byte takes a nanosecond in memory.
fn spec() -> CacheSpec {
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

/// One server whose device takes a millisecond for whatever it is asked; a tick to the server, one to the device, and back.
fn simulate(cache: Option<CacheSpec>, program: Program) -> Results {
    let server = ServerSpec { cache, ..idle_server(1) };
    let classes = vec![class("s", 1, station(1, fixed(MS)))];
    let mut pfs =
        Pfs::new(fast_network(1), server, classes, even(64 * KIB, 1), vec![application(program)]).unwrap();
    pfs.keep_requests = true;
    run(pfs, 1, &Options::default()).unwrap().1
}

fn of_cache(results: &Results) -> CacheResult {
    results.servers[0].cache.unwrap()
}

#[test]
fn writes_cost_memory_and_an_fsync_what_is_owed() {
    let wanted = [
        (Op::Write, 0, 4 * KIB),
        (Op::Write, 8 * KIB, 4 * KIB),
        // Again, before it has gone to the device.
        (Op::Write, 2 * KIB, 2 * KIB),
        (Op::Fsync, 0, 0),
        (Op::Read, 0, 4 * KIB),
        (Op::Read, 4 * KIB, 4 * KIB),
        (Op::Read, 4 * KIB, 8 * KIB),
    ];
    let results = simulate(Some(spec()), listed(&wanted));
    // What was cut by the second write are two extents of their own: three flushes, then the device's own fsync.
    let expected = [2 + 4 * KIB, 2 + 4 * KIB, 2 + 2 * KIB, 4 + 4 * MS, 2 + 4 * KIB, 4 + MS, 2 + 8 * KIB];
    // The fsync goes to the device when the answer to the last flush is there: two ticks more.
    assert_eq!(
        took(&results),
        expected.iter().zip([0, 0, 0, 2, 0, 0, 0]).map(|(a, b)| a + b).collect::<Vec<_>>()
    );
    let cache = of_cache(&results);
    assert_eq!((cache.hits, cache.misses, cache.overwritten), (12 * KIB, 4 * KIB, 2 * KIB));
    assert_eq!((results.servers[0].bytes_written, results.servers[0].bytes_read), (8 * KIB, 4 * KIB));
    // Neighbours that go together are one request of the device less.
    let together = simulate(Some(CacheSpec { flush_bytes: 1 << 20, ..spec() }), listed(&wanted));
    assert_eq!(took(&together)[3], took(&results)[3] - MS);
}

/// Who writes more than may be dirty goes as fast as the device in the end, and no faster.
#[test]
fn writers_are_held_up_when_too_much_is_dirty() {
    let program = || Program::Ior(Ior { depth: 4, ..writes(2, 200) });
    let end = |dirty| {
        let results = simulate(Some(CacheSpec { dirty, ..spec() }), program());
        let cache = of_cache(&results);
        assert!(cache.dirty_most <= dirty && cache.dirty == 0, "{cache:?}");
        assert_eq!(results.servers[0].bytes_written, 400 * 64 * KIB);
        (results.end.0, cache.throttled)
    };
    let all = 400 * 64 * KIB;
    let (free, held_up) = (end(2 * all), end(10 * 64 * KIB));
    // Memory only; and the device for all but what fits.
    assert!((all..all + 100_000).contains(&free.0) && free.1 == 0, "{free:?}");
    assert!((389 * MS..401 * MS).contains(&held_up.0) && held_up.1 > 300, "{held_up:?}");
    // Through it, when not one write fits.
    let through = simulate(Some(CacheSpec { dirty: 64 * KIB - 1, ..spec() }), program());
    assert_eq!(took(&through), took(&simulate(None, program())));
}

#[test]
fn old_data_are_written_without_anybody_asking() {
    let busy = |delay| {
        let wanted = [(Op::Write, 0, KIB), (Op::Write, 10 * KIB, KIB)];
        let mut program = listed(&wanted);
        if let Program::Listed(all) = &mut program {
            let mut ranks = all.ranks.clone();
            let first = ranks[0][0];
            ranks[0].push(Request {
                pace: Pace::At(Time(50 * MS)),
                op: Op::Fsync,
                offset: 0,
                length: 0,
                ..first
            });
            *all = Listed { ranks }.into();
        }
        took(&simulate(Some(CacheSpec { delay: Time(delay), ..spec() }), program))[2]
    };
    // Nothing is owed any more at 50 ms; or both.
    assert_eq!((busy(10 * MS), busy(60 * MS)), (4 + MS, 6 + 3 * MS));
}

#[test]
fn the_least_recently_used_makes_room() {
    let read = |n: u64| (Op::Read, n * KIB, KIB);
    let wanted = [read(0), read(1), read(2), read(3), read(0), read(4), read(0), read(2), read(1)];
    let results = simulate(Some(CacheSpec { size: 4 * KIB, dirty: 4 * KIB, ..spec() }), listed(&wanted));
    let miss: Vec<bool> = took(&results).into_iter().map(|time| time >= MS).collect();
    // 1 is the oldest when 4 comes.
    assert_eq!(miss, [true, true, true, true, false, true, false, false, true]);
}

/// Sequential readers wait for the first piece, and then find what they ask for.
#[test]
fn reading_ahead_hides_the_device() {
    let program = |think| {
        let ior = Ior {
            op: Op::Read,
            think: fixed(think),
            block: 64 * 16 * KIB,
            transfer: 16 * KIB,
            ..writes(1, 1)
        };
        Program::Ior(ior)
    };
    let with = |read_ahead, think| simulate(Some(CacheSpec { read_ahead, ..spec() }), program(think));
    let (without, ahead) = (with(0, 2 * MS), with(128 * 1024, 2 * MS));
    assert_eq!(took(&without).iter().filter(|time| **time >= MS).count(), 64);
    // The first is read by itself; what follows was asked for together with it, and is there 2 ms later.
    assert_eq!(took(&ahead).iter().filter(|time| **time >= MS).count(), 1);
    let cache = of_cache(&ahead);
    assert_eq!((cache.misses, cache.hits), (16 * KIB, 63 * 16 * KIB));
    // It does not know where a file ends.
    assert_eq!(ahead.servers[0].bytes_read, cache.misses + cache.read_ahead);
    assert!((63 * 16 * KIB..63 * 16 * KIB + 128 * KIB).contains(&cache.read_ahead), "{cache:?}");
    // Without a pause the device is the limit: half of what is read ahead each time.
    let fast = with(128 * 1024, 0);
    assert!(fast.end.0 < without.end.0 / 4, "{} {}", fast.end, without.end);
}
