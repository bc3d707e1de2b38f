//! Each job that waits has a place in the plan: conservative backfilling, and first come first served with plans.

use super::{Early, Engine, News, Order, Policy};
use crate::plan::{Ask, Plan};

impl<P: Plan> Engine<'_, P> {
    pub(super) fn replan(&mut self, now: u64, news: News) {
        let in_queue = self.setup.policy == Policy::Fcfs;
        let order = |order| if in_queue { Order::Queue } else { order };
        match self.setup.early {
            Early::Anew(by) if news.void || news.freed => self.plan_anew(now, order(by)),
            _ if news.void => self.plan_anew(now, order(Order::Start)),
            Early::Nearer(by) if news.freed => self.bring_nearer(now, order(by)),
            _ => {}
        }
    }

    /// Those that wait; those that are planned for now too.
    fn ordered(&self, order: Order) -> Vec<usize> {
        match order {
            Order::Queue => self.waiting.clone(),
            Order::Start => self.starts.iter().map(|(_, index)| *index).collect(),
        }
    }

    /// When the job before it starts, where that counts.
    fn earliest(&self, now: u64, before: Option<usize>) -> u64 {
        let before = before.filter(|_| self.setup.policy == Policy::Fcfs);
        before.map_or(now, |before| self.done[before].start_s.max(now))
    }

    pub(super) fn plan_anew(&mut self, now: u64, order: Order) {
        let all = self.ordered(order);
        let runs =
            |(limit, index): &(u64, usize)| (*limit, self.tasks[*index].nodes, &self.done[*index].list);
        self.plan.restart(now, self.running.iter().map(runs));
        for (_, block) in &self.setup.blocks[..self.known] {
            if block.until_s > now {
                self.plan.block(block);
            }
        }
        self.starts.clear();
        // Reserved nodes come before all plans.
        let (pinned, others): (Vec<usize>, Vec<usize>) =
            all.into_iter().partition(|index| self.done[*index].pinned_s.is_some());
        let mut before = None;
        for index in pinned.into_iter().chain(others) {
            let from = self.earliest(now, before);
            self.place(index, now, from);
            before = Some(index);
        }
    }

    fn bring_nearer(&mut self, now: u64, order: Order) {
        let mut before = None;
        for index in self.ordered(order) {
            let from = self.earliest(now, before);
            self.bring_one_nearer(index, now, from);
            before = Some(index);
        }
    }

    fn bring_one_nearer(&mut self, index: usize, now: u64, from: u64) {
        let (task, done) = (&self.tasks[index], &self.done[index]);
        let start = done.start_s;
        let from = from.max(self.ready(index));
        if start <= from {
            return;
        }
        let ask = Ask {
            from_s: from,
            before_s: start,
            nodes: task.nodes,
            seconds: done.estimate_s,
            partition: task.partition,
            own: Some((start, &done.list)),
            keep: Some(&done.list).filter(|_| self.setup.keeps_nodes),
            only: Some(&done.list).filter(|_| done.pinned_s.is_some()),
        };
        let Some((nearer, list)) = self.plan.first_fit(&ask) else { return };
        self.plan.give(&done.list, task.nodes, start, self.limits[index]);
        self.starts.remove(&(start, index));
        self.put(index, now, nearer, list);
    }

    /// The last job of its rank, which has just come into the queue, gets its place.
    pub(super) fn reserve(&mut self, index: usize, now: u64) {
        let rank = self.tasks[index].rank;
        let place = self.waiting.partition_point(|other| self.tasks[*other].rank <= rank) - 1;
        let from = self.earliest(now, place.checked_sub(1).map(|before| self.waiting[before]));
        self.place(index, now, from);
        // Those behind it in the queue make way, where the queue rules.
        let rules = self.setup.policy == Policy::Fcfs || self.setup.early == Early::Anew(Order::Queue);
        if rules && place + 1 < self.waiting.len() {
            self.plan_anew(now, Order::Queue);
        }
    }

    /// When the data of a job are there that has its nodes reserved.
    pub(super) fn ready(&self, index: usize) -> u64 {
        let pins = self.setup.pins.as_ref().zip(self.done[index].pinned_s);
        pins.map_or(0, |(pins, at)| at.saturating_add(pins.takes_s[index]))
    }

    /// Reserves the nodes of those that start soon, but late enough for their data.
    pub(super) fn pin_those_of(&mut self, now: u64) {
        let Some(pins) = &self.setup.pins else { return };
        self.pin_next = None;
        for index in &self.waiting {
            let done = &mut self.done[*index];
            let lead = pins.leads_s[*index].max(pins.takes_s[*index]);
            if done.pinned_s.is_some() || done.start_s - now < pins.takes_s[*index] {
                continue;
            }
            if done.start_s - now <= lead {
                done.pinned_s = Some(now);
            } else {
                let at = done.start_s - lead;
                self.pin_next = Some(self.pin_next.map_or(at, |next| next.min(at)));
            }
        }
    }

    pub(super) fn start_those_of(&mut self, now: u64) {
        let mut any = false;
        while let Some((_, index)) = self.starts.first().copied().filter(|(start, _)| *start <= now) {
            self.begin(index, now);
            any = true;
        }
        if any {
            self.tidy();
        }
    }
}
