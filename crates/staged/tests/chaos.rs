//! Stagers that are killed all the time.
//!
//! Stagers on nodes of their own copy and move random trees between all of them, while a random one
//! of them is killed (`kill -9`) and started again every second. This shows that what is promised of
//! a task holds whatever happens to any of the stagers it needs: it ends done, with a destination that
//! is the same as the source, or failed with a reason, with nothing lost and nothing partial under a
//! final name; that no task is lost, and that none is done a second time.
//!
//! `TIDEPOOL_CHAOS=full` takes a minute each with two, four and eight stagers; otherwise it is a few
//! seconds with two. `TIDEPOOL_SEED` draws the same trees, tasks and victims again.

mod support;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::network::World;

use tidepool_stage_client::{Code, Op, StageError, TaskSpec, TaskState, TaskStatus};
use tidepool_testkit::Rng;
use tidepool_testkit::trees::{self, Tree};

/// Most bytes of the large file of a tree.
const LARGE_MAX: u64 = 4 << 20;
/// Trees of each node that are copied again and again.
const TREES: u64 = 2;
/// Tasks under way for each stager.
const UNDER_WAY: usize = 3;
/// Between two kills.
const KILL_EVERY: Duration = Duration::from_secs(1);

/// There is no such file or directory.
const ENOENT: i32 = 2;

/// A task as it was given to a stager.
struct Given {
    at: usize,
    /// None when the stager died before it said.
    id: Option<u32>,
    op: Op,
    from: (usize, String),
    to: (usize, String),
    /// What the source was.
    source: Tree,
    ended: Option<TaskStatus>,
}

/// How it went.
#[derive(Default, Debug)]
struct Counts {
    finished: u64,
    failed: u64,
    cancelled: u64,
    /// Finished after they had failed or been cancelled.
    resumed: u64,
    /// Failed while they removed what they had moved.
    moved_before: u64,
    /// Given to a stager that died before it answered: taken on, or not.
    unsure_taken: u64,
    unsure_not: u64,
    files: u64,
    bytes: u64,
    looks: u64,
    reasons: BTreeMap<String, u64>,
}

struct Chaos {
    world: Arc<World>,
    rng: Rng,
    trees: HashMap<(usize, u64), Tree>,
    given: Vec<Given>,
    counts: Counts,
}

impl Chaos {
    fn new(nodes: usize, rng: Rng) -> Chaos {
        let world = Arc::new(World::new(nodes, |_| "workers = 3\n".into()));
        let mut chaos =
            Chaos { world, rng, trees: HashMap::new(), given: Vec::new(), counts: Counts::default() };
        for node in 0..nodes {
            for tree in 0..TREES {
                let written = chaos.write_tree(node, &format!("tree{tree}"));
                chaos.trees.insert((node, tree), written);
            }
        }
        chaos
    }

    fn write_tree(&mut self, node: usize, name: &str) -> Tree {
        let at = self.world.path(node, "a").join(name);
        trees::write_random(&mut self.rng, &at, LARGE_MAX);
        trees::read(&at)
    }

    fn any_node(&mut self) -> usize {
        self.rng.below(self.world.stagers.len() as u64) as usize
    }

    /// Gives a random task to a random stager.
    fn give(&mut self) {
        let number = self.given.len();
        let (at, from, to) = (self.any_node(), self.any_node(), self.any_node());
        let op = if self.rng.below(3) == 0 { Op::Move } else { Op::Copy };
        let (name, source) = match op {
            Op::Move => (format!("m{number}"), self.write_tree(from, &format!("m{number}"))),
            _ => {
                let tree = self.rng.below(TREES);
                (format!("tree{tree}"), self.trees[&(from, tree)].clone())
            }
        };
        let (from, to) = ((from, format!("a://{name}")), (to, format!("b://t{number}")));
        let src = self.world.resource(at, (from.0, &from.1));
        let dst = self.world.resource(at, (to.0, &to.1));
        let bandwidth = (4 << 20) << self.rng.below(4);
        let spec = TaskSpec { bandwidth, ..TaskSpec::new(op, src, Some(dst)) };
        let id = match self.world.try_ask(at, |stager| stager.submit(&spec)) {
            Ok(id) => Some(id),
            Err(StageError::Refused(refusal)) => panic!("a good task is refused: {refusal}"),
            Err(_) => None,
        };
        self.given.push(Given { at, id, op, from, to, source, ended: None });
    }

    fn under_way(&self) -> Vec<usize> {
        let open = |at: &usize| self.given[*at].id.is_some() && self.given[*at].ended.is_none();
        (0..self.given.len()).filter(open).collect()
    }

    /// Looks at all tasks that have not ended, and judges those that have now.
    fn look(&mut self) {
        for at in self.under_way() {
            let (node, id) = (self.given[at].at, self.given[at].id.expect("it is under way"));
            let status = self.world.ask(node, |stager| stager.status(id)).expect("no task is lost");
            if matches!(status.state, TaskState::Finished | TaskState::Failed | TaskState::Cancelled) {
                self.judge(at, &status);
                self.given[at].ended = Some(status);
            }
        }
    }

    fn judge(&mut self, at: usize, status: &TaskStatus) {
        let given = &self.given[at];
        let case = format!("task {at} at n{}, {status:?}", given.at);
        let target = self.world.path(given.to.0, &given.to.1.replace("://", "/"));
        let source = self.world.path(given.from.0, &given.from.1.replace("://", "/"));
        let there = trees::read(&target);
        let bytes = |tree: &Tree| {
            let sizes = tree.values().map(|entry| match entry {
                trees::Entry::File { content, .. } => content.bytes(),
                _ => 0,
            });
            sizes.sum::<u64>()
        };
        if status.state == TaskState::Finished {
            assert!(there == given.source, "{case}: {:#?}", trees::difference(&given.source, &there));
            assert!(given.op == Op::Copy || !source.exists(), "{case}: the source is still there");
            self.counts.finished += 1;
            self.counts.files += there.len() as u64;
            self.counts.bytes += bytes(&there);
            // It would be there again if it were done again.
            std::fs::remove_dir_all(&target).unwrap();
            return;
        }
        assert!(status.refusal.code != Code::SUCCESS, "{case}: no reason");
        let partial = trees::unfinished(&given.source, &there);
        assert!(partial.is_empty(), "{case}: {partial:#?}");
        let kept =
            trees::read(&source) == given.source || trees::difference(&given.source, &there).is_empty();
        assert!(kept, "{case}: something is lost");
        match status.state {
            TaskState::Cancelled => self.counts.cancelled += 1,
            _ => {
                assert!(!status.refusal.detail.is_empty(), "{case}: no reason");
                self.counts.failed += 1;
                let reason = format!("errno {}", status.refusal.errno);
                println!("failed: {}", status.refusal.detail);
                *self.counts.reasons.entry(reason).or_default() += 1;
            }
        }
    }

    /// What has a final name is whole, at any moment.
    fn look_at_final_names(&mut self) {
        let under_way = self.under_way();
        if under_way.is_empty() {
            return;
        }
        let given = &self.given[under_way[self.rng.below(under_way.len() as u64) as usize]];
        let there = trees::read(&self.world.path(given.to.0, &given.to.1.replace("://", "/")));
        let partial = trees::unfinished(&given.source, &there);
        assert!(partial.is_empty(), "{}: {partial:#?}", given.to.1);
        self.counts.looks += 1;
    }

    fn cancel_some(&mut self) {
        let under_way = self.under_way();
        if under_way.is_empty() || self.rng.below(100) != 0 {
            return;
        }
        let given = &self.given[under_way[self.rng.below(under_way.len() as u64) as usize]];
        // It may have ended a moment ago.
        let _ = self.world.try_ask(given.at, |stager| stager.cancel(given.id.expect("it is under way")));
    }

    fn run(&mut self, seconds: u64) -> u64 {
        let stop = Arc::new(AtomicBool::new(false));
        let killer = self.start_killer(&stop);
        let _stop = StopAtEnd(stop);
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until && !killer.is_finished() {
            while self.under_way().len() < UNDER_WAY * self.world.stagers.len() {
                self.give();
            }
            self.look();
            self.look_at_final_names();
            self.cancel_some();
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(_stop);
        killer.join().expect("stagers start again")
    }

    fn start_killer(&mut self, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
        let (world, stop) = (Arc::clone(&self.world), Arc::clone(stop));
        let mut victims = Rng::new(self.rng.next_u64());
        std::thread::spawn(move || {
            let (mut kills, mut next) = (0, Instant::now() + KILL_EVERY);
            while !stop.load(Ordering::Acquire) {
                if Instant::now() >= next {
                    next += KILL_EVERY;
                    world.kill_and_restart(victims.below(world.stagers.len() as u64) as usize);
                    kills += 1;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            kills
        })
    }

    /// Tasks of the stagers' lists by the numbers that their destinations have: each once, and all
    /// that a stager has acknowledged.
    fn take_lists(&mut self) {
        let mut known: HashMap<usize, (usize, u32)> = HashMap::new();
        for node in 0..self.world.stagers.len() {
            for status in self.world.ask(node, |stager| stager.list(None, None)).unwrap() {
                // A host comes before it, if it is shown.
                let number = status.dst.split_once("b://t").and_then(|(_, number)| number.parse().ok());
                let number: usize = number.unwrap_or_else(|| panic!("whose task is {status:?}?"));
                let twice = known.insert(number, (node, status.id));
                assert!(twice.is_none(), "task {number} is there twice: {twice:?}, {status:?}");
            }
        }
        for (number, given) in self.given.iter_mut().enumerate() {
            let found = known.get(&number).copied();
            match given.id {
                Some(id) => assert_eq!(found, Some((given.at, id)), "task {number} is lost"),
                None if found.is_some() => {
                    given.id = found.map(|(_, id)| id);
                    self.counts.unsure_taken += 1;
                }
                None => self.counts.unsure_not += 1,
            }
        }
    }

    fn wait_for_all(&mut self) {
        while !self.under_way().is_empty() {
            self.look();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Nobody is killed any more: what failed or was cancelled goes on, to its end.
    fn resume_all(&mut self) {
        for at in 0..self.given.len() {
            let given = &self.given[at];
            let Some(id) = given.id else { continue };
            if given.ended.as_ref().is_some_and(|status| status.state == TaskState::Finished) {
                continue;
            }
            let status = self.world.ask(given.at, |stager| {
                stager.resume(id)?;
                Ok(stager.wait(&[id], false, None)?.remove(0))
            });
            let status = status.unwrap();
            if status.state == TaskState::Finished {
                self.counts.resumed += 1;
                self.judge(at, &status);
                continue;
            }
            // A move that failed while it removed its source has no source any more.
            let given = &self.given[at];
            let there = trees::read(&self.world.path(given.to.0, &given.to.1.replace("://", "/")));
            let moved = given.op == Op::Move && there == given.source && status.refusal.errno == ENOENT;
            assert!(moved, "task {at} cannot be resumed in peace: {status:?}");
            self.counts.moved_before += 1;
            std::fs::remove_dir_all(self.world.path(given.to.0, &given.to.1.replace("://", "/"))).unwrap();
        }
    }

    /// No temporary files, and nothing has come back that was taken away after its task had finished.
    fn look_what_is_left(&self) {
        for node in 0..self.world.stagers.len() {
            let at_sources = trees::parts(&self.world.path(node, "a"));
            assert!(at_sources.is_empty(), "n{node}: {at_sources:?}");
            let left: Vec<_> = trees::read(&self.world.path(node, "b")).into_keys().skip(1).collect();
            assert!(left.is_empty(), "n{node}: {left:?}");
        }
        for ((node, tree), written) in &self.trees {
            let now = trees::read(&self.world.path(*node, &format!("a/tree{tree}")));
            assert!(now == *written, "n{node}: a tree that was only copied has changed");
        }
    }
}

/// Ends the killer when the test ends, however it ends.
struct StopAtEnd(Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn chaos(nodes: usize, seconds: u64) {
    let mut chaos = Chaos::new(nodes, Rng::from_env("chaos"));
    let kills = chaos.run(seconds);
    chaos.take_lists();
    chaos.wait_for_all();
    chaos.resume_all();
    chaos.look_what_is_left();
    println!(
        "{nodes} stagers for {seconds} s: {} tasks, {kills} kills, {:#?}",
        chaos.given.len(),
        chaos.counts
    );
    assert!(kills > 0 && chaos.counts.finished > 0, "nothing happened");
}

#[test]
fn tasks_end_well_or_with_a_reason_whoever_is_killed() {
    if std::env::var("TIDEPOOL_CHAOS").is_ok_and(|what| what == "full") {
        [2, 4, 8].into_iter().for_each(|nodes| chaos(nodes, 60));
    } else {
        chaos(2, 8);
    }
}
