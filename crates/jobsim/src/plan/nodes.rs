//! Which nodes are free when. A job gets nodes that are free for as long as it asks for, from its start to its end.

use super::parts::{self, Share};
use super::set::{self, NodeSet};
use super::{Ask, Block, Plan};

/// Which of the free nodes a job gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// Any: those with the lowest numbers.
    Lowest,
    /// The first that have successive numbers; without such it waits.
    Contiguous,
    /// Those of the switch that has the fewest free ones of those with enough; where none has enough, of the switches with most
    /// free ones. Each switch has so many nodes with successive numbers.
    Switch(u32),
    /// Several bits are a node, so many of them, of which jobs can have a part: those nodes with the lowest numbers that have as many
    /// free as its partition's jobs want of each node ([`Nodes::with_shares`]).
    Parts(u32),
}

/// From a time on, until the next step, those are free.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: u64,
    free: u32,
    /// Place of its words.
    slot: u32,
}

/// The last step lasts for ever.
#[derive(Clone, Debug)]
pub struct Nodes {
    allocation: Allocation,
    /// Words of a set.
    width: usize,
    all: NodeSet,
    partitions: Vec<NodeSet>,
    /// What jobs of each partition want of a node, where nodes are shared.
    shares: Vec<Share>,
    blocks: Vec<Block>,
    steps: Vec<Step>,
    words: Vec<u64>,
    spare: Vec<u32>,
}

impl Nodes {
    /// All of a machine is free from 0 on. Without partitions all of it is one.
    pub fn new(nodes: u32, partitions: Vec<NodeSet>, allocation: Allocation) -> Nodes {
        let all = NodeSet::all(nodes);
        let partitions = if partitions.is_empty() { vec![all.clone()] } else { partitions };
        let width = set::words(nodes);
        let mut plan = Nodes {
            allocation,
            width,
            partitions,
            shares: Vec::new(),
            blocks: Vec::new(),
            steps: Vec::new(),
            words: Vec::new(),
            spare: Vec::new(),
            all,
        };
        let slot = plan.slot();
        plan.words.copy_from_slice(plan.all.words());
        plan.steps.push(Step { at: 0, free: nodes, slot });
        plan
    }

    /// What jobs of each partition want of a node, with [`Allocation::Parts`], and which bits nodes have. Nobody is placed elsewhere.
    pub fn with_shares(mut self, all: NodeSet, shares: Vec<Share>) -> Nodes {
        self.words.copy_from_slice(all.words());
        self.steps[0].free = all.count();
        Nodes { all, shares, ..self }
    }

    /// How many nodes with enough of those bits there are, where nodes are shared.
    fn parts(&self, free: &[u64], size: u32, partition: usize) -> u32 {
        let share = self.shares.get(partition).copied().unwrap_or(Share::Bits(1));
        parts::of(free, self.all.words(), size, share).count() as u32
    }

    /// Where the words of one more step can be.
    fn slot(&mut self) -> u32 {
        self.spare.pop().unwrap_or_else(|| {
            self.words.resize(self.words.len() + self.width, 0);
            (self.words.len() / self.width.max(1)) as u32 - 1
        })
    }

    fn words_of(&self, step: Step) -> &[u64] {
        &self.words[step.slot as usize * self.width..][..self.width]
    }

    /// How many steps there are.
    pub fn steps_len(&self) -> usize {
        self.steps.len()
    }

    fn at(&self, time: u64) -> usize {
        self.steps.partition_point(|step| step.at <= time).saturating_sub(1)
    }

    /// The step that begins at `at`, made where there is none.
    fn split(&mut self, at: u64) -> usize {
        let next = self.steps.partition_point(|step| step.at < at);
        if self.steps.get(next).is_none_or(|step| step.at != at) {
            let before = self.steps[next - 1];
            let slot = self.slot();
            let from = before.slot as usize * self.width;
            self.words.copy_within(from..from + self.width, slot as usize * self.width);
            self.steps.insert(next, Step { at, slot, ..before });
        }
        next
    }

    /// Removes a step that changes nothing.
    fn join(&mut self, at: usize) {
        if at == 0 || self.steps[at].free != self.steps[at - 1].free {
            return;
        }
        if self.words_of(self.steps[at]) == self.words_of(self.steps[at - 1]) {
            self.spare.push(self.steps.remove(at).slot);
        }
    }

    /// Changes the words of all steps of a time.
    fn change(&mut self, list: &NodeSet, from: u64, until: u64, word: impl Fn(u64, u64) -> u64) {
        if from >= until {
            return;
        }
        let first = self.split(from);
        let last = self.split(until);
        let width = self.width;
        // Most lists are of few words.
        let those: Vec<(usize, u64)> =
            list.words().iter().copied().enumerate().filter(|(_, other)| *other != 0).collect();
        for step in &mut self.steps[first..last] {
            let words = &mut self.words[step.slot as usize * width..][..width];
            for (at, other) in &those {
                let own = words[*at];
                words[*at] = word(own, *other);
                step.free = step.free - own.count_ones() + words[*at].count_ones();
            }
        }
        self.join(last);
        self.join(first);
    }

    /// The nodes that a job may have at all.
    fn eligible<'a>(&'a self, ask: &Ask<'a, NodeSet>) -> &'a [u64] {
        ask.only.unwrap_or(&self.partitions[ask.partition]).words()
    }

    /// Keeps those of `left` that are free at a step too, with its own place counted as free. How many those are.
    fn meet(&self, left: &mut [u64], step: Step, own: Option<(u64, &NodeSet)>) -> u32 {
        let words = self.words_of(step);
        let mut count = 0;
        match own.filter(|(start, _)| *start <= step.at) {
            Some((_, own)) => {
                for (left, (free, own)) in left.iter_mut().zip(words.iter().zip(own.words())) {
                    *left &= free | own;
                    count += left.count_ones();
                }
            }
            None => {
                for (left, free) in left.iter_mut().zip(words) {
                    *left &= free;
                    count += left.count_ones();
                }
            }
        }
        count
    }

    /// Whether a job can have so many of those, which are `count`.
    fn suffices(&self, free: &[u64], count: u32, ask: &Ask<'_, NodeSet>) -> bool {
        let enough = || match self.allocation {
            Allocation::Contiguous => set::runs(free).any(|(first, end)| end - first >= ask.nodes),
            Allocation::Parts(size) => self.parts(free, size, ask.partition) >= ask.nodes,
            Allocation::Lowest | Allocation::Switch(_) => true,
        };
        count >= ask.nodes && enough()
    }

    fn choose(&self, free: &[u64], ask: &Ask<'_, NodeSet>) -> NodeSet {
        let kept = |list: &&NodeSet| {
            let whole = match self.allocation {
                Allocation::Parts(_) => list.count() > 0,
                _ => list.count() == ask.nodes,
            };
            list.words().iter().zip(free).all(|(list, free)| list & !free == 0) && whole
        };
        if let Some(list) = ask.keep.filter(kept) {
            return list.clone();
        }
        let mut chosen = vec![0; self.width];
        match self.allocation {
            Allocation::Lowest => lowest(&mut chosen, free, 0, u32::MAX, ask.nodes),
            Allocation::Contiguous => {
                let run = set::runs(free).find(|(first, end)| end - first >= ask.nodes);
                let (first, end) = run.expect("a run was found when the start was");
                lowest(&mut chosen, free, first, end, ask.nodes)
            }
            Allocation::Switch(size) => self.by_switch(&mut chosen, free, size.max(1), ask.nodes),
            Allocation::Parts(size) => {
                let share = self.shares.get(ask.partition).copied().unwrap_or(Share::Bits(1));
                let nodes = parts::of(free, self.all.words(), size, share).take(ask.nodes as usize);
                nodes.map(|(first, bits)| lowest(&mut chosen, free, first, first + size, bits)).sum()
            }
        };
        NodeSet::of_words(&chosen)
    }

    fn by_switch(&self, chosen: &mut [u64], free: &[u64], size: u32, nodes: u32) -> u32 {
        let end = self.width as u32 * 64;
        let mut switches: Vec<(u32, u32)> = Vec::new();
        for first in (0..end).step_by(size as usize) {
            let mut own = vec![0; self.width];
            switches.push((lowest(&mut own, free, first, first + size, u32::MAX), first));
        }
        if let Some((_, first)) = switches.iter().filter(|(free, _)| *free >= nodes).min() {
            return lowest(chosen, free, *first, first + size, nodes);
        }
        switches.sort_by_key(|(free, first)| (std::cmp::Reverse(*free), *first));
        let mut got = 0;
        for (_, first) in switches {
            got += lowest(chosen, free, first, first + size, nodes - got);
        }
        got
    }
}

/// Adds up to `nodes` of the lowest free ones from `first` on, before `end`; how many those were.
fn lowest(chosen: &mut [u64], free: &[u64], first: u32, end: u32, nodes: u32) -> u32 {
    let mut got = 0;
    for at in first as usize / 64..free.len().min((end as usize).div_ceil(64)) {
        let base = at as u32 * 64;
        let mut left = free[at];
        if first > base {
            left &= u64::MAX << (first - base);
        }
        if end - base < 64 {
            left &= (1 << (end - base)) - 1;
        }
        // The lowest so many bits of a word: take away the others from above.
        let over = left.count_ones().saturating_sub(nodes - got);
        for _ in 0..over {
            left &= !(1 << (63 - left.leading_zeros()));
        }
        chosen[at] |= left;
        got += left.count_ones();
        if got == nodes {
            break;
        }
    }
    got
}

impl Plan for Nodes {
    type List = NodeSet;
    const NAMED: bool = true;

    fn restart<'a>(&mut self, now_s: u64, ends: impl Iterator<Item = (u64, u32, &'a NodeSet)>) {
        self.steps.clear();
        self.words.clear();
        self.spare.clear();
        self.blocks.clear();
        let slot = self.slot();
        self.words.copy_from_slice(self.all.words());
        self.steps.push(Step { at: now_s, free: self.all.count(), slot });
        for (end, nodes, list) in ends {
            self.take(list, nodes, now_s, end);
        }
    }

    fn first_fit(&self, ask: &Ask<'_, NodeSet>) -> Option<(u64, NodeSet)> {
        let eligible = self.eligible(ask);
        let mut left = vec![0u64; self.width];
        let few = |step: &Step| step.free < ask.nodes && ask.own.is_none_or(|(start, _)| step.at < start);
        let mut at = self.at(ask.from_s);
        'starts: while at < self.steps.len() {
            let start = self.steps[at].at.max(ask.from_s);
            if start >= ask.before_s {
                return None;
            }
            if few(&self.steps[at]) {
                at += 1;
                continue;
            }
            let end = start.saturating_add(ask.seconds);
            let during = &self.steps[at..][..self.steps[at..].partition_point(|step| step.at < end)];
            if let Some(last) = during.iter().rposition(few) {
                at += last + 1;
                continue;
            }
            left.copy_from_slice(eligible);
            for (later, step) in during.iter().enumerate() {
                let count = self.meet(&mut left, *step, ask.own);
                if !self.suffices(&left, count, ask) {
                    at = self.next_start(at, at + later, ask, &mut left);
                    continue 'starts;
                }
            }
            return Some((start, self.choose(&left, ask)));
        }
        None
    }

    fn take(&mut self, list: &NodeSet, _nodes: u32, from_s: u64, until_s: u64) {
        self.change(list, from_s, until_s, |own, other| own & !other);
    }

    fn give(&mut self, list: &NodeSet, _nodes: u32, from_s: u64, until_s: u64) {
        self.change(list, from_s, until_s, |own, other| own | other);
        for at in 0..self.blocks.len() {
            let (from, until) = (self.blocks[at].from_s.max(from_s), self.blocks[at].until_s.min(until_s));
            if from < until {
                let set = self.blocks[at].set.clone();
                self.take(&set, 0, from, until);
            }
        }
    }

    fn block(&mut self, block: &Block) {
        let from = block.from_s.max(self.steps[0].at);
        self.take(&block.set, 0, from, block.until_s);
        self.blocks.push(block.clone());
    }

    fn fits_now(&self, nodes: u32, seconds: u64, partition: usize) -> bool {
        let ask = Ask::at(self.steps[0].at, nodes, seconds, partition);
        let end = self.steps[0].at.saturating_add(seconds);
        let during = || self.steps.iter().take_while(|step| step.at < end);
        if during().any(|step| step.free < nodes) {
            return false;
        }
        let mut left = self.eligible(&ask).to_vec();
        during().all(|step| {
            let count = self.meet(&mut left, *step, None);
            self.suffices(&left, count, &ask)
        })
    }

    fn free_now(&self) -> i64 {
        i64::from(self.steps[0].free)
    }

    fn copy(&mut self, other: &Nodes) {
        self.steps.clone_from(&other.steps);
        self.words.clone_from(&other.words);
        self.spare.clone_from(&other.spare);
        self.blocks.clone_from(&other.blocks);
    }

    fn is_steady(&self) -> bool {
        // Which switch has the fewest free ones depends on what others have.
        !matches!(self.allocation, Allocation::Switch(_))
    }

    fn forget_before(&mut self, now_s: u64) {
        let over = self.at(now_s);
        self.spare.extend(self.steps.drain(..over).map(|step| step.slot));
        self.steps[0].at = self.steps[0].at.max(now_s);
        self.blocks.retain(|block| block.until_s > now_s);
    }
}

impl Nodes {
    /// The first step after `at` from which on there is enough up to `last`, where from `at` on there is not.
    fn next_start(&self, at: usize, last: usize, ask: &Ask<'_, NodeSet>, left: &mut [u64]) -> usize {
        left.copy_from_slice(self.eligible(ask));
        let mut first = last + 1;
        while first > at + 1 {
            let count = self.meet(left, self.steps[first - 1], ask.own);
            if !self.suffices(left, count, ask) {
                break;
            }
            first -= 1;
        }
        first
    }
}
