//! Which jobs could have their data on their nodes before they start, without reservations and with (INVENTORY D4; WANTS 10).
//!
//! Without, a job's data can be there if its nodes had been known for as long as they take ([`Fate::known_ahead_s`]); somebody would have to
//! know that they were final, so this is a bound. With reservations ([`Pins`]) nodes are made final some time before the
//! planned start. That costs: a job with reserved nodes cannot take others that become free earlier, nor start before its data are there,
//! and nodes stand idle for it.

use crate::engine::{Early, Order, Pins, Policy, Setup};
use crate::machine::{Fate, Load, Machine};
use crate::measure::{Measures, measure};
use crate::plan::Allocation;
use crate::predict::Predictor;

/// When nodes are reserved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lead {
    Never,
    /// So many times what the data take before the planned start.
    Times(f64),
    AtSubmission,
}

/// What a lead comes to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Staged {
    pub lead: Lead,
    /// Jobs whose data were there at the start, or without reservations could have been.
    pub staged: u64,
    /// Jobs that waited for at least as long as their data take.
    pub waited: u64,
    /// Node-hours for which nodes stood idle that were reserved.
    pub held_node_hours: f64,
    /// Node-hours of all jobs that ran.
    pub used_node_hours: f64,
    pub measures: Measures,
}

/// Under conservative backfilling, all plans made anew at early ends; `takes_s` is of each task's data.
pub fn pre_stage(
    machine: &Machine,
    load: &Load,
    takes_s: &[u64],
    lead: Lead,
    allocation: Allocation,
    predictor: &mut dyn Predictor,
) -> Staged {
    let leads = |times: f64| takes_s.iter().map(|takes| (*takes as f64 * times) as u64).collect();
    let leads_s: Option<Vec<u64>> = match lead {
        Lead::Never => None,
        Lead::Times(times) => Some(leads(times)),
        Lead::AtSubmission => Some(vec![u64::MAX; takes_s.len()]),
    };
    let pins = leads_s.map(|leads_s| Pins { takes_s: takes_s.to_vec(), leads_s });
    let setup = Setup { early: Early::Anew(Order::Start), pins, ..Setup::new(Policy::Conservative) };
    let fates = machine.run(load, &setup, Some(allocation), predictor);
    let all = || load.tasks.iter().zip(&fates).zip(takes_s);
    let is_staged = |fate: &Fate, takes: u64| match lead {
        Lead::Never => fate.known_ahead_s.is_some_and(|ahead| ahead >= takes),
        _ => fate.pinned_s.is_some(),
    };
    Staged {
        lead,
        staged: all().filter(|((_, fate), takes)| is_staged(fate, **takes)).count() as u64,
        waited: all().filter(|((task, fate), takes)| fate.start_s - task.job.submit_s >= **takes).count()
            as u64,
        held_node_hours: held_node_hours(&fates, machine.nodes),
        used_node_hours: all()
            .map(|((task, fate), _)| (fate.end_s - fate.start_s) as f64 * f64::from(task.nodes))
            .sum::<f64>()
            / 3600.0,
        measures: measure(&load.tasks, &fates, machine.nodes),
    }
}

/// Of each job with reserved nodes and each of these: from the reservation, or the last end there, until the start.
fn held_node_hours(fates: &[Fate], nodes: u32) -> f64 {
    let mut free_since = vec![0u64; nodes as usize];
    let mut order: Vec<&Fate> = fates.iter().collect();
    order.sort_by_key(|fate| fate.start_s);
    let mut held = 0;
    for fate in order {
        for node in fate.nodes.iter().flat_map(|nodes| nodes.nodes()) {
            let since = &mut free_since[node as usize];
            held += fate.pinned_s.map_or(0, |pinned| fate.start_s - (*since).max(pinned));
            *since = fate.end_s;
        }
    }
    held as f64 / 3600.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Task;
    use crate::predict::Request;
    use crate::random::Random;
    use tidepool_joblog::Job;

    fn task(submit_s: u64, run_s: u64, request_s: u64, nodes: u32) -> Task {
        let job = Job { submit_s, run_s, request_s, processors: nodes, ..Job::default() };
        Task { job, nodes, partition: 0, rank: 0 }
    }

    fn staged(tasks: &[Task], nodes: u32, takes: &[u64], lead: Lead) -> Staged {
        let machine = Machine { nodes, processors_per_node: 1, ..Machine::default() };
        let load = Load { tasks: tasks.to_vec(), too_large: 0 };
        pre_stage(&machine, &load, takes, lead, Allocation::Lowest, &mut Request)
    }

    /// Node 0 is busy until 3600, node 1 until 1800 though it asked for 7200. The third job is planned for 3600 on node 0. Free to
    /// choose it starts at 1800 on node 1; with node 0 reserved it waits there, and nobody is held up.
    #[test]
    fn d4_a_reservation_by_hand() {
        let tasks = [task(0, 3600, 3600, 1), task(0, 1800, 7200, 1), task(100, 50, 50, 1)];
        let never = staged(&tasks, 2, &[500; 3], Lead::Never);
        assert_eq!((never.staged, never.waited, never.held_node_hours), (0, 1, 0.0));
        assert_eq!(never.measures.wait_max_s, 1700.0);
        let early = staged(&tasks, 2, &[500; 3], Lead::AtSubmission);
        assert_eq!((early.staged, early.measures.wait_max_s, early.held_node_hours), (1, 3500.0, 0.0));
        // Three times 500 s before 3600 is 2100: by then it has started on the other node.
        let late = staged(&tasks, 2, &[500; 3], Lead::Times(3.0));
        assert_eq!((late.staged, late.measures.wait_max_s), (0, 1700.0));
        // Four times, at 1600, is in time.
        let middle = staged(&tasks, 2, &[500; 3], Lead::Times(4.0));
        assert_eq!((middle.staged, middle.measures.wait_max_s), (1, 3500.0));
    }

    /// Node 0 is free at 600 already, but the data that were begun at 100 come until 2100: it stands idle for 1500 s.
    #[test]
    fn d4_nodes_stand_idle_until_data_are_there() {
        let tasks = [task(0, 600, 3600, 1), task(100, 50, 50, 1)];
        let early = staged(&tasks, 1, &[2000; 2], Lead::AtSubmission);
        assert_eq!((early.staged, early.measures.wait_max_s), (1, 2000.0));
        assert!((early.held_node_hours - 1500.0 / 3600.0).abs() < 1e-9);
    }

    /// Whoever has nodes reserved starts on them, with data, and no node has two jobs; the earlier, the more are staged.
    #[test]
    fn d4_earlier_reservations_stage_more() {
        for seed in [1, 2] {
            let mut random = Random::of(seed, 0);
            let mut now = 0;
            let tasks: Vec<Task> = (0..400)
                .map(|_| {
                    now += random.below(900);
                    let run = 60 + random.below(3000);
                    task(now, run, run * (1 + random.below(5)), 1 + random.below(8) as u32)
                })
                .collect();
            let takes: Vec<u64> = (0..400).map(|_| 60 + random.below(600)).collect();
            let of = |lead| staged(&tasks, 8, &takes, lead);
            let all = [of(Lead::Times(1.0)), of(Lead::Times(4.0)), of(Lead::AtSubmission)];
            println!("seed {seed}: {:?}", all.map(|one| (one.staged, one.held_node_hours)));
            assert!(all[0].staged < all[1].staged && all[1].staged < all[2].staged, "seed {seed}");
            assert!(all[0].staged > 20 && all[2].held_node_hours > 0.0, "seed {seed}");
        }
    }
}
