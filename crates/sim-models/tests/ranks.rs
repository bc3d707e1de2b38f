//! Systems run by several ranks come to the results of one thread.

mod common;
#[allow(dead_code, reason = "tampering is tested at the kernel")]
#[path = "../../sim/tests/common/ranks.rs"]
mod ranks;

use common::random_system;
use ranks::{links, on_ranks};
use tidepool_sim::{Options, Over, Scheduler};
use tidepool_sim_models::{Results, run, run_over};

#[test]
fn ranks_come_to_the_results_of_one_thread() {
    let (mut events, mut undone) = (0, 0);
    for seed in 0..24 {
        println!("seed {seed}");
        let reference = Options { scheduler: Scheduler::Reference, ..Options::default() };
        let expected = run(random_system(seed), seed, &reference).unwrap().1;
        for (count, threads, scheduler, forced_rollbacks) in [
            (1, 1, Scheduler::Optimistic, None),
            (2, 1, Scheduler::Conservative, None),
            (2, 1, Scheduler::Optimistic, None),
            (2, 2, Scheduler::Optimistic, Some(seed)),
            (3, 1, Scheduler::Conservative, None),
        ] {
            let name = format!("seed {seed}, {count} ranks of {threads}, {scheduler:?}");
            let options = Options { scheduler, threads, forced_rollbacks, ..Options::default() };
            let all = on_ranks(links(count), |link| {
                run_over(random_system(seed), seed, &options, &mut Over { link, about: "random" })
            });
            for (rank, ended) in all.into_iter().enumerate() {
                let (simulation, seen) = ended.unwrap().unwrap();
                assert_eq!(simulation.pending(), 0, "{name}");
                (events, undone) = (events + seen.report.events, undone + seen.report.undone);
                let mut wanted = Results { report: seen.report, ..expected.clone() };
                if rank > 0 {
                    // Records are rank 0's.
                    wanted = Results { all: Vec::new(), steps: Vec::new(), ..wanted };
                }
                assert_eq!(seen.report.events, expected.report.events, "{name}");
                assert_eq!(seen, wanted, "{name}, rank {rank}");
            }
        }
    }
    println!("{events} events, {undone} undone");
    assert!(events > 20_000 && undone > 5_000, "{events} events, {undone} undone: the systems are too tame");
}

/// A simulation whose states are at several ranks cannot go on, and cannot be kept.
#[test]
fn what_is_spread_over_ranks_is_at_its_end() {
    let options = Options { scheduler: Scheduler::Conservative, ..Options::default() };
    for ended in on_ranks(links(2), |link| {
        run_over(random_system(1), 1, &options, &mut Over { link, about: "random" }).map(
            |(mut simulation, _)| simulation.run(tidepool_sim::Time::MAX, &Options::default()).unwrap_err(),
        )
    }) {
        assert_eq!(ended.unwrap().unwrap(), tidepool_sim::Error::Broken);
    }
}
