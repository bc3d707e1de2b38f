//! What is free when, as far as is planned: by numbers ([`counts`]) or node by node ([`nodes`]).

pub mod counts;
pub mod nodes;
pub mod parts;
pub mod set;

pub use counts::Counts;
pub use nodes::{Allocation, Nodes};
pub use parts::Share;
pub use set::NodeSet;

use std::fmt::Debug;

/// For what a place is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a, L> {
    /// It may start then at the earliest,
    pub from_s: u64,
    /// and must start before that.
    pub before_s: u64,
    pub nodes: u32,
    pub seconds: u64,
    /// Number of the partition; 0 where there are none.
    pub partition: usize,
    /// The place that the job has in the plan: its start and its list. It counts as free; `before_s` is not after it.
    pub own: Option<(u64, &'a L)>,
    /// A list that is kept if it can be.
    pub keep: Option<&'a L>,
    /// A list that it must have.
    pub only: Option<&'a L>,
}

impl<'a, L> Ask<'a, L> {
    /// The first place from a time on, of a job that has none.
    pub fn at(from_s: u64, nodes: u32, seconds: u64, partition: usize) -> Ask<'a, L> {
        Ask { from_s, before_s: u64::MAX, nodes, seconds, partition, own: None, keep: None, only: None }
    }
}

/// A part of the machine that is kept free of jobs for a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    pub from_s: u64,
    pub until_s: u64,
    /// The first so many in a plan by numbers.
    pub nodes: u32,
    /// Those in a plan by nodes.
    pub set: NodeSet,
}

/// Steps in the order of time; the last one lasts for ever.
pub trait Plan {
    /// What a job gets.
    type List: Clone + PartialEq + Debug + Default;
    /// Whether lists say which nodes.
    const NAMED: bool;

    /// Forgets all but the jobs that run: until when, in the order of time, and where.
    fn restart<'a>(&mut self, now_s: u64, ends: impl Iterator<Item = (u64, u32, &'a Self::List)>)
    where
        Self::List: 'a;

    /// The first start at which a job fits, and where.
    fn first_fit(&self, ask: &Ask<'_, Self::List>) -> Option<(u64, Self::List)>;

    /// Takes nodes for a time; they are free then.
    fn take(&mut self, list: &Self::List, nodes: u32, from_s: u64, until_s: u64);

    /// Gives back what was taken, or the end of it.
    fn give(&mut self, list: &Self::List, nodes: u32, from_s: u64, until_s: u64);

    /// Jobs that run there go on; nobody is placed there.
    fn block(&mut self, block: &Block);

    /// Whether a job would start at the first step if it were placed now.
    fn fits_now(&self, nodes: u32, seconds: u64, partition: usize) -> bool;

    /// How many are free at the first step.
    fn free_now(&self) -> i64;

    /// Takes over what another plan of the same machine says.
    fn copy(&mut self, other: &Self);

    /// Whether the first place of a job stays its first place when others take something that is not in it.
    fn is_steady(&self) -> bool;

    /// Drops what is over.
    fn forget_before(&mut self, now_s: u64);
}

#[cfg(test)]
mod tests;
