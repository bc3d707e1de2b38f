//! The machine that a log's jobs run on: its nodes, partitions, priorities, and times at which a part of it is kept free.

mod read;

pub use read::{FILE_BYTES_MAX, Problem, read};

use crate::engine::{self, Done, Planned, Setup, Task};
use crate::plan::{Allocation, Block, Counts, NodeSet, Nodes};
use crate::predict::Predictor;
use tidepool_joblog::{Job, Log};

/// Nodes that can be told from each other: a plan has a bit for each.
pub const NODES_MAX: u32 = 1 << 20;
/// Repeated blocks of a run.
pub const BLOCKS_MAX: usize = 10_000;

/// Jobs that are treated alike.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Partition {
    pub name: String,
    /// Numbers of queues and partitions in the log whose jobs these are.
    pub queues: Vec<u32>,
    pub partitions: Vec<u32>,
    /// As first and end; none is the whole machine.
    pub nodes: Option<Vec<(u32, u32)>>,
    /// Those with more are before those with less in the queue.
    pub priority: i32,
}

/// Maintenance, a campaign, a reservation: nobody of the log is placed there meanwhile. Seconds, from the first submission on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Window {
    pub name: String,
    pub from_s: u64,
    pub seconds: u64,
    /// Again and again, as long as jobs are submitted.
    pub every_s: Option<u64>,
    /// As first and end; none is the whole machine.
    pub nodes: Option<Vec<(u32, u32)>>,
    /// So long before it begins it becomes known; without, at the beginning of the log.
    pub announced_s: Option<u64>,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    pub nodes: u32,
    pub processors_per_node: u32,
    /// Nodes at a leaf switch, with successive numbers.
    pub switch: Option<u32>,
    pub partitions: Vec<Partition>,
    pub windows: Vec<Window>,
}

/// Tasks of a log, and what could not be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Load {
    pub tasks: Vec<Task>,
    /// Jobs left out since they want more than their partition has.
    pub too_large: u64,
}

/// What became of a job. Seconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Fate {
    pub start_s: u64,
    pub end_s: u64,
    /// At its submission.
    pub estimate_s: u64,
    /// How often it outlived it.
    pub corrections: u32,
    /// T_NAP: how long before its start its nodes were known, if nodes are told from each other.
    pub known_ahead_s: Option<u64>,
    pub nodes: Option<NodeSet>,
    /// When its nodes were reserved for it.
    pub pinned_s: Option<u64>,
    /// Each change of its planned start, if that was asked for.
    pub plans: Vec<Planned>,
}

/// Why a log cannot run on a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MachineError {
    /// The log does not say, nor anybody else.
    SizeUnknown,
    TooManyNodes {
        nodes: u32,
    },
    NodesBeyond {
        name: String,
        end: u32,
        nodes: u32,
    },
    TooManyBlocks {
        name: String,
    },
    NoSwitches,
    NothingFits {
        too_large: u64,
        nodes: u32,
    },
}

impl std::fmt::Display for MachineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MachineError::SizeUnknown => f.write_str("the log does not say how large the machine is"),
            MachineError::TooManyNodes { nodes } => {
                write!(f, "{nodes} nodes are more than the {NODES_MAX} that can be told from each other")
            }
            MachineError::NodesBeyond { name, end, nodes } => {
                write!(f, "'{name}' has node {}, but the machine has only 0 to {}", end - 1, nodes - 1)
            }
            MachineError::TooManyBlocks { name } => {
                write!(
                    f,
                    "'{name}' comes more than {BLOCKS_MAX} times within the log; make 'every-seconds' longer"
                )
            }
            MachineError::NoSwitches => f.write_str(
                "how many nodes a switch has is not known: say 'switch-nodes' in the machine's file",
            ),
            MachineError::NothingFits { too_large, nodes } => {
                write!(f, "all {too_large} jobs want more than {nodes}")
            }
        }
    }
}

impl std::error::Error for MachineError {}

impl MachineError {
    /// What would mend it, where that is the size of the machine: a field of [`Machine`], which each door has its own word for.
    pub fn missing(&self) -> Option<Size> {
        match self {
            MachineError::SizeUnknown | MachineError::NothingFits { .. } => Some(Size::Nodes),
            MachineError::TooManyNodes { .. } => Some(Size::PerNode),
            _ => None,
        }
    }
}

/// What a machine's size is told by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    Nodes,
    /// Processors of each.
    PerNode,
}

impl Machine {
    /// Fills in what is 0 from the log: by node with its `MaxNodes`, else each processor by itself.
    pub fn complete(mut self, log: &Log, by_node: bool) -> Result<Machine, MachineError> {
        let processors = log.processors.unwrap_or(0);
        if self.nodes == 0 && self.processors_per_node == 0 && by_node {
            self.nodes = log.nodes.unwrap_or(0).min(processors);
            self.processors_per_node = processors.checked_div(self.nodes).unwrap_or(0);
        }
        self.processors_per_node = self.processors_per_node.max(1);
        if self.nodes == 0 {
            self.nodes = processors.div_ceil(self.processors_per_node);
        }
        if self.nodes == 0 {
            return Err(MachineError::SizeUnknown);
        }
        let parts = self.partitions.iter().map(|one| (&one.name, &one.nodes));
        let parts = parts.chain(self.windows.iter().map(|one| (&one.name, &one.nodes)));
        for (name, ranges) in parts {
            let end = ranges.iter().flatten().map(|(_, end)| *end).max().unwrap_or(0);
            if end > self.nodes {
                return Err(MachineError::NodesBeyond { name: name.clone(), end, nodes: self.nodes });
            }
        }
        Ok(self)
    }

    /// Whether jobs must be placed on certain nodes.
    pub fn is_divided(&self) -> bool {
        self.partitions.iter().any(|partition| partition.nodes.is_some())
    }

    /// Jobs as tasks. `processors` are the log's: a job that has no more fits, even where whole nodes are fewer.
    pub fn load(&self, log: &Log, allocation: Option<Allocation>) -> Result<Load, MachineError> {
        let sets: Vec<NodeSet> = self.partitions.iter().map(|one| self.set(&one.nodes)).collect();
        let room = |set: &NodeSet| match allocation {
            Some(Allocation::Contiguous) => set.longest_run(),
            _ => set.count(),
        };
        let rooms: Vec<u32> = sets.iter().map(room).collect();
        let mut load = Load::default();
        for job in &log.jobs {
            let of = self.partitions.iter().position(|one| {
                job.queue.is_some_and(|queue| one.queues.contains(&queue))
                    || job.partition.is_some_and(|part| one.partitions.contains(&part))
            });
            let wanted = job.processors.div_ceil(self.processors_per_node);
            let whole = log.processors.is_some_and(|all| job.processors <= all && self.fills(all));
            let nodes = if whole { wanted.min(self.nodes) } else { wanted };
            if nodes > of.map_or(self.nodes, |of| rooms[of]) {
                load.too_large += 1;
                continue;
            }
            let rank = -i64::from(of.map_or(0, |of| self.partitions[of].priority));
            load.tasks.push(Task { job: *job, nodes, partition: of.map_or(0, |of| of + 1), rank });
        }
        match load.tasks.is_empty() {
            true => Err(MachineError::NothingFits { too_large: load.too_large, nodes: self.nodes }),
            false => Ok(load),
        }
    }

    /// The log's machine, with nodes of different sizes counted as if all had the same.
    fn fills(&self, processors: u32) -> bool {
        u64::from(processors) < u64::from(self.nodes) * u64::from(self.processors_per_node + 1)
    }

    fn set(&self, ranges: &Option<Vec<(u32, u32)>>) -> NodeSet {
        let Some(ranges) = ranges else { return NodeSet::all(self.nodes) };
        let mut set = NodeSet::none(self.nodes);
        ranges.iter().for_each(|(first, end)| set.add(*first, *end));
        set
    }

    /// The blocks of a log, in the order in which they become known.
    pub fn blocks(&self, jobs: &[Task]) -> Result<Vec<(u64, Block)>, MachineError> {
        let first = jobs.first().map_or(0, |task| task.job.submit_s);
        let last = jobs.last().map_or(0, |task| task.job.submit_s);
        let mut blocks = Vec::new();
        for window in &self.windows {
            let set = self.set(&window.nodes);
            let mut from_s = first.saturating_add(window.from_s);
            for number in 0.. {
                if number > 0 && from_s > last {
                    break;
                }
                if blocks.len() == BLOCKS_MAX {
                    return Err(MachineError::TooManyBlocks { name: window.name.clone() });
                }
                let known = window.announced_s.map_or(first, |ahead| from_s.saturating_sub(ahead).max(first));
                let until_s = from_s.saturating_add(window.seconds);
                blocks.push((known, Block { from_s, until_s, nodes: set.count(), set: set.clone() }));
                let Some(every) = window.every_s else { break };
                from_s = from_s.saturating_add(every.max(1));
            }
        }
        blocks.sort_by_key(|(known, block)| (*known, block.from_s));
        Ok(blocks)
    }

    /// Runs tasks; with an allocation on nodes that are told from each other.
    pub fn run(
        &self,
        load: &Load,
        setup: &Setup,
        allocation: Option<Allocation>,
        predictor: &mut dyn Predictor,
    ) -> Vec<Fate> {
        let allocation = allocation.or_else(|| self.is_divided().then_some(Allocation::Lowest));
        let Some(allocation) = allocation else {
            let done = engine::run(Counts::new(self.nodes), &load.tasks, setup, predictor);
            return done.into_iter().map(|done| fate(done, |_| None)).collect();
        };
        let mut sets = vec![NodeSet::all(self.nodes)];
        sets.extend(self.partitions.iter().map(|one| self.set(&one.nodes)));
        let done = engine::run(Nodes::new(self.nodes, sets, allocation), &load.tasks, setup, predictor);
        done.into_iter().map(|done| fate(done, Some)).collect()
    }

    /// How jobs are placed by switch.
    pub fn by_switch(&self) -> Result<Allocation, MachineError> {
        self.switch.map(Allocation::Switch).ok_or(MachineError::NoSwitches)
    }
}

fn fate<L>(done: Done<L>, nodes: impl Fn(L) -> Option<NodeSet>) -> Fate {
    let known_ahead = done.start_s - done.fixed_s;
    let nodes = nodes(done.list);
    Fate {
        start_s: done.start_s,
        end_s: done.end_s,
        estimate_s: done.estimate_s,
        corrections: done.corrections,
        known_ahead_s: nodes.is_some().then_some(known_ahead),
        nodes,
        pinned_s: done.pinned_s,
        plans: done.plans,
    }
}

/// Jobs of tasks.
pub fn jobs(tasks: &[Task]) -> Vec<Job> {
    tasks.iter().map(|task| task.job).collect()
}
