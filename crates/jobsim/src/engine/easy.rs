//! Only the first of the queue has a place in the plan: EASY, and first come first served without plans.

use super::chances::Waiting;
use super::{Backfill, Engine, News, Policy, Precedence};
use crate::plan::{Ask, Plan};

impl<P: Plan> Engine<'_, P> {
    /// The first of the queue loses its place in the plan.
    pub(super) fn drop_head(&mut self) {
        if let Some(head) = self.head.take() {
            let start = self.done[head].start_s;
            self.plan.give(&self.done[head].list, self.tasks[head].nodes, start, self.limits[head]);
            self.starts.remove(&(start, head));
        }
    }

    /// Starts what may start; jobs from `first` on have been submitted at this moment.
    pub(super) fn backfill(&mut self, now: u64, news: News, first: usize) {
        let due = self.starts.first().is_some_and(|(start, _)| *start <= now);
        let mut changed = news.ended || news.void || due;
        if changed {
            self.drop_head();
        }
        if self.setup.policy == Policy::Easy && self.setup.precedence == Precedence::Expected {
            self.order_by_turns(now);
        }
        if self.head.is_some_and(|head| self.waiting.first() != Some(&head)) {
            self.drop_head();
            changed = true;
        }
        let mut started = 0;
        while self.head.is_none()
            && let Some(index) = self.waiting.get(started).copied()
        {
            if self.place(index, now, now) > now {
                self.head = Some(index);
            } else {
                self.begin(index, now);
                started += 1;
            }
        }
        self.waiting.drain(..started);
        if self.setup.policy == Policy::Easy && self.head.is_some() {
            // When nothing has ended, those that did not fit before do not fit now, unless the first has been delayed.
            let first = if changed || self.setup.backfill == Backfill::Expected { 0 } else { first };
            self.start_beside_the_head(now, first);
        }
    }

    /// Of one rank the one whose turn it is most comes first.
    fn order_by_turns(&mut self, now: u64) {
        let turn = |index: &usize| (self.tasks[*index].rank, self.waits(*index, now).turn(), *index);
        let mut turns: Vec<(i64, f64, usize)> = self.waiting.iter().map(turn).collect();
        turns.sort_by(|(rank, turn, index), (other_rank, other_turn, other)| {
            rank.cmp(other_rank).then(other_turn.total_cmp(turn)).then(index.cmp(other))
        });
        self.waiting = turns.into_iter().map(|(_, _, index)| index).collect();
    }

    fn waits(&self, index: usize, now: u64) -> Waiting<'_> {
        let chances = self.chances[index].as_ref().expect("it has not ended");
        chances.after(now - self.tasks[index].job.submit_s, self.setup.patience_s)
    }

    fn start_beside_the_head(&mut self, now: u64, first: usize) {
        let mut free = self.plan.free_now();
        let may = |index: &usize, free: i64| *index >= first && i64::from(self.tasks[*index].nodes) <= free;
        if free <= 0 {
            return;
        }
        let mut order: Vec<usize> =
            self.waiting[1..].iter().filter(|index| may(index, free)).copied().collect();
        if self.setup.backfill != Backfill::Queue {
            order.sort_by_key(|index| (self.done[*index].estimate_s, *index));
        }
        let mut any = false;
        for index in order {
            if i64::from(self.tasks[index].nodes) > free {
                continue;
            }
            if self.start_if_it_fits(index, now) || self.start_before_the_head(index, now) {
                free = self.plan.free_now();
                any = true;
            }
        }
        if any {
            self.tidy();
        }
    }

    /// True if there is room beside all plans.
    fn start_if_it_fits(&mut self, index: usize, now: u64) -> bool {
        let task = &self.tasks[index];
        let ask = Ask {
            from_s: now,
            before_s: now + 1,
            nodes: task.nodes,
            seconds: self.done[index].estimate_s,
            partition: task.partition,
            own: None,
            keep: None,
            only: None,
        };
        let Some((_, list)) = self.plan.first_fit(&ask) else { return false };
        self.put(index, now, now, list);
        self.begin(index, now);
        true
    }

    /// True if there is room but for the first of the queue, and that one's delay is worth it. Then that one is planned anew.
    fn start_before_the_head(&mut self, index: usize, now: u64) -> bool {
        let Some(head) = self.head.filter(|head| self.is_worth_a_delay(index, *head, now)) else {
            return false;
        };
        self.drop_head();
        let started = self.start_if_it_fits(index, now);
        // Not now: it did not fit with more free than there is now.
        self.place(head, now, now);
        self.head = Some(head);
        started
    }

    fn is_worth_a_delay(&self, index: usize, head: usize, now: u64) -> bool {
        let window_s = self.done[head].start_s - now;
        self.setup.backfill == Backfill::Expected
            && self.waits(index, now).is_worth_a_delay(window_s, &self.waits(head, now))
    }
}
