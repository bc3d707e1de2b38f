//! The model comes to the same end under every scheduler, undoes what it did, and loses no byte.

mod common;

use common::random_system;
use tidepool_sim::{Options, Scheduler};
use tidepool_sim_models::workload::Program;
use tidepool_sim_models::{Op, Pfs, Results, State, run};

fn end(seed: u64, options: &Options<'_>) -> (Results, Vec<State>) {
    let (simulation, results) = run(random_system(seed), seed, options).unwrap();
    assert_eq!(simulation.pending(), 0);
    (results, simulation.states().cloned().collect())
}

#[test]
fn all_schedulers_agree_on_random_systems() {
    let (mut events, mut undone) = (0, 0);
    for seed in 0..80 {
        println!("seed {seed}");
        let (expected, states) =
            end(seed, &Options { scheduler: Scheduler::Reference, ..Options::default() });
        events += expected.report.events;
        let mut lives =
            vec![Options::default(), Options { scheduler: Scheduler::RollbackCheck, ..Options::default() }];
        for threads in [1, 2] {
            lives.push(Options { scheduler: Scheduler::Conservative, threads, ..Options::default() });
            for forced_rollbacks in [None, Some(seed)] {
                let scheduler = Scheduler::Optimistic;
                lives.push(Options { scheduler, threads, forced_rollbacks, ..Options::default() });
            }
        }
        for options in lives {
            let name = format!("seed {seed}, {:?}, {} threads", options.scheduler, options.threads);
            let (seen, seen_states) = end(seed, &options);
            undone += seen.report.undone;
            assert_eq!(seen_states, states, "{name}");
            assert_eq!(
                (seen.trace, &seen.all, &seen.steps, &seen.servers, &seen.nodes),
                (expected.trace, &expected.all, &expected.steps, &expected.servers, &expected.nodes),
                "{name}"
            );
        }
    }
    println!("{events} events, {undone} undone");
    assert!(events > 20_000 && undone > 50_000, "{events} events, {undone} undone: the systems are too tame");
}

/// What the programs want, from the lists themselves.
fn wanted(pfs: &Pfs) -> (u64, u64, u64) {
    let (mut requests, mut read, mut written) = (0, 0, 0);
    for application in &pfs.applications {
        let program: &Program = &application.program;
        for rank in 0..program.ranks() {
            for request in (0..).map_while(|number| program.request(rank, number)) {
                requests += 1;
                match request.op {
                    Op::Read => read += request.length,
                    Op::Write => written += request.length,
                    _ => {}
                }
            }
        }
    }
    (requests, read, written)
}

#[test]
fn bytes_in_are_bytes_out() {
    let mut failed = 0;
    let (mut all_moved, mut all_hits, mut all_overwritten) = (0, 0, 0);
    let (mut node_hits, mut node_overwritten, mut node_ahead) = (0, 0, 0);
    for seed in 0..200 {
        let expected = wanted(&random_system(seed));
        let (results, _) = end(seed, &Options::default());
        // What was given up is done by servers, and counted by nobody.
        failed += results.failed;
        if results.failed > 0 {
            assert_eq!((results.requests + results.failed, results.open), (expected.0, 0), "seed {seed}");
            continue;
        }
        assert_eq!((results.requests, results.bytes_read, results.bytes_written), expected, "seed {seed}");
        assert_eq!(results.open, 0, "seed {seed}");
        // What a node's cache has is not asked of servers, and what was written again, or to a file that is gone, they never get.
        let (mut wanted_of_servers, mut from_nodes) = ((expected.1, expected.2), (0, 0));
        for node in &results.nodes {
            from_nodes = (from_nodes.0 + node.read, from_nodes.1 + node.written);
            if let Some(cache) = node.cache {
                assert_eq!(cache.dirty, 0, "seed {seed}");
                wanted_of_servers.0 = wanted_of_servers.0 + cache.read_ahead - cache.hits;
                wanted_of_servers.1 -= cache.overwritten;
                (node_hits, node_overwritten) =
                    (node_hits + cache.hits, node_overwritten + cache.overwritten);
                node_ahead += cache.read_ahead;
            }
        }
        if !results.nodes.is_empty() {
            assert_eq!(from_nodes, wanted_of_servers, "seed {seed}");
            let requests: u64 = results.nodes.iter().map(|node| node.requests).sum();
            let barriers = results.all.iter().filter(|r| r.op == Op::Barrier).count() as u64;
            assert_eq!(requests + barriers, expected.0, "seed {seed}");
        }
        let devices = results
            .servers
            .iter()
            .fold((0, 0), |sum, server| (sum.0 + server.bytes_read, sum.1 + server.bytes_written));
        // What servers move they read and write once more. What a cache has it does not read, and what was written again
        // before it went to the device is written once.
        let moved: u64 = results.servers.iter().map(|server| server.moved).sum();
        all_moved += moved;
        let caches = results.servers.iter().filter_map(|server| server.cache);
        let (mut hits, mut ahead, mut overwritten) = (0, 0, 0);
        for cache in caches {
            // All is flushed when it is old.
            assert_eq!(cache.dirty, 0, "seed {seed}");
            (hits, ahead, overwritten) =
                (hits + cache.hits, ahead + cache.read_ahead, overwritten + cache.overwritten);
        }
        (all_hits, all_overwritten) = (all_hits + hits, all_overwritten + overwritten);
        let read = wanted_of_servers.0 + moved + ahead - hits;
        assert_eq!(devices, (read, wanted_of_servers.1 + moved - overwritten), "seed {seed}");
    }
    assert!(failed > 0, "nothing was given up");
    assert!(
        node_hits > 0 && node_overwritten > 0 && node_ahead > 0,
        "{node_hits} {node_overwritten} {node_ahead}"
    );
    assert!(all_moved > 0 && all_hits > 0 && all_overwritten > 0, "{all_moved} {all_hits} {all_overwritten}");
}
