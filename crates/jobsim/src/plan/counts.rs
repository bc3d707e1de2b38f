//! How many nodes are free when. Only their number counts: each job may have any.

use super::{Ask, Block, Plan};

/// From a time on, until the next step, so many are free: below none where a block begins while jobs still run there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    at: u64,
    free: i64,
}

/// The last step lasts for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    nodes: u32,
    steps: Vec<Step>,
}

impl Counts {
    /// All of a machine is free from 0 on.
    pub fn new(nodes: u32) -> Counts {
        Counts { nodes, steps: vec![Step { at: 0, free: i64::from(nodes) }] }
    }

    fn add(&mut self, nodes: i64, from: u64, until: u64) {
        if from >= until {
            return;
        }
        let first = self.split(from);
        let last = self.split(until);
        self.steps[first..last].iter_mut().for_each(|step| step.free += nodes);
        self.join(last);
        self.join(first);
    }

    /// The step that begins at `at`, made where there is none.
    fn split(&mut self, at: u64) -> usize {
        let next = self.steps.partition_point(|step| step.at < at);
        if self.steps.get(next).is_none_or(|step| step.at != at) {
            let free = self.steps[next - 1].free;
            self.steps.insert(next, Step { at, free });
        }
        next
    }

    /// Removes a step that changes nothing.
    fn join(&mut self, at: usize) {
        if at > 0 && self.steps[at].free == self.steps[at - 1].free {
            self.steps.remove(at);
        }
    }

    /// The step of a time.
    fn at(&self, time: u64) -> usize {
        self.steps.partition_point(|step| step.at <= time).saturating_sub(1)
    }
}

impl Plan for Counts {
    type List = ();
    const NAMED: bool = false;

    fn restart<'a>(&mut self, now_s: u64, ends: impl Iterator<Item = (u64, u32, &'a ())>) {
        self.steps.clear();
        self.steps.push(Step { at: now_s, free: i64::from(self.nodes) });
        let mut used = 0;
        for (end, nodes, ()) in ends {
            let nodes = i64::from(nodes);
            used += nodes;
            match self.steps.last_mut() {
                Some(last) if last.at == end => last.free += nodes,
                _ => self.steps.push(Step { at: end, free: nodes }),
            }
        }
        // So far each step after the first has what becomes free at it.
        self.steps[0].free -= used;
        for at in 1..self.steps.len() {
            self.steps[at].free += self.steps[at - 1].free;
        }
    }

    fn first_fit(&self, ask: &Ask<'_, ()>) -> Option<(u64, ())> {
        let nodes = i64::from(ask.nodes);
        // From its own start on there is room for it already.
        let own = ask.own.map_or(u64::MAX, |(start, ())| start);
        let mut at = self.at(ask.from_s);
        while at < self.steps.len() {
            let start = self.steps[at].at.max(ask.from_s);
            if start >= ask.before_s {
                return None;
            }
            let end = start.saturating_add(ask.seconds).min(own);
            let mut during = self.steps[at..].iter().take_while(|step| step.at < end);
            match during.position(|step| step.free < nodes) {
                None => return Some((start, ())),
                Some(full) => at += full + 1,
            }
        }
        None
    }

    fn take(&mut self, (): &(), nodes: u32, from_s: u64, until_s: u64) {
        self.add(-i64::from(nodes), from_s, until_s);
    }

    fn give(&mut self, (): &(), nodes: u32, from_s: u64, until_s: u64) {
        self.add(i64::from(nodes), from_s, until_s);
    }

    fn block(&mut self, block: &Block) {
        let from = block.from_s.max(self.steps[0].at);
        self.add(-i64::from(block.nodes), from, block.until_s);
    }

    fn fits_now(&self, nodes: u32, seconds: u64, _partition: usize) -> bool {
        let end = self.steps[0].at.saturating_add(seconds);
        self.steps.iter().take_while(|step| step.at < end).all(|step| step.free >= i64::from(nodes))
    }

    fn free_now(&self) -> i64 {
        self.steps[0].free
    }

    fn copy(&mut self, other: &Counts) {
        self.steps.clone_from(&other.steps);
    }

    fn is_steady(&self) -> bool {
        true
    }

    fn forget_before(&mut self, now_s: u64) {
        let over = self.at(now_s);
        if over > 0 {
            self.steps.drain(..over);
        }
        self.steps[0].at = self.steps[0].at.max(now_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask<'a>(from_s: u64, nodes: u32, seconds: u64) -> Ask<'a, ()> {
        Ask { from_s, before_s: u64::MAX, nodes, seconds, partition: 0, own: None, keep: None, only: None }
    }

    #[test]
    fn jobs_that_run_become_free_at_their_ends() {
        let mut plan = Counts::new(8);
        plan.restart(10, [(20, 1, &()), (20, 2, &()), (30, 3, &())].into_iter());
        let fits = [
            (2, 1, Some(10)),
            (2, 1000, Some(10)),
            (3, 1, Some(20)),
            (5, 1, Some(20)),
            (6, 1, Some(30)),
            (8, 1000, Some(30)),
            (9, 1, None),
        ];
        for (nodes, seconds, at) in fits {
            let got = plan.first_fit(&ask(0, nodes, seconds)).map(|fit| fit.0);
            assert_eq!(got, at, "{nodes} for {seconds} s");
        }
        assert_eq!(plan.first_fit(&ask(25, 5, 1)), Some((25, ())));
    }
}
