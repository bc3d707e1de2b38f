//! Who starts now, where all plans could be made anew at each moment: as much is planned as it takes to see that.
//!
//! With [`Early::Anew`] in the order of the queue, plans that are made anew while all went as planned are what they were: those that
//! have started meanwhile have what they were planned to have, the others ask in the same order, and what was not free for one
//! before is not free now, since those behind it that have started only took more ([`Plan::is_steady`]). A planned start is the end of a
//! job that runs, or of a block. So it is enough to plan at each moment at which anything happens, and only as far as
//! somebody may start: from the front of the queue to the last job that would fit now beside those planned so far. None behind it can, since
//! more plans leave less room. Starts and nodes are those of the engine (a property in `tests.rs`); plans of others nobody can see.

use super::{Early, Engine, Order, Policy};
use crate::plan::{Ask, Plan};
use std::collections::HashMap;

impl<P: Plan + Clone> Engine<'_, P> {
    /// From now on, where that is the same. Nobody has been planned yet.
    pub(super) fn plan_no_further_than_needed(&mut self) {
        let setup = self.setup;
        let is_anew = match setup.policy {
            Policy::Fcfs => matches!(setup.early, Early::Anew(_)),
            Policy::Conservative => setup.early == Early::Anew(Order::Queue),
            Policy::Easy => false,
        };
        let is_same =
            is_anew && !setup.keeps_nodes && !setup.history && setup.pins.is_none() && self.plan.is_steady();
        self.draft = is_same.then(|| self.plan.clone());
    }
}

impl<P: Plan> Engine<'_, P> {
    pub(super) fn start_those_who_may(&mut self, now: u64) {
        if self.waiting.is_empty() || self.plan.free_now() <= 0 {
            return;
        }
        let Some(mut draft) = self.draft.take() else { return };
        draft.copy(&self.plan);
        let any = match self.setup.policy {
            Policy::Fcfs => self.start_in_order(now),
            _ => self.start_from(&mut draft, now),
        };
        self.draft = Some(draft);
        if any {
            self.tidy();
        }
    }

    fn ask(&self, index: usize, from: u64) -> Ask<'_, P::List> {
        let task = &self.tasks[index];
        Ask::at(from, task.nodes, self.done[index].estimate_s, task.partition)
    }

    fn start_in_order(&mut self, now: u64) -> bool {
        let mut started = 0;
        while let Some(index) = self.waiting.get(started).copied() {
            let ask = Ask { before_s: now + 1, ..self.ask(index, now) };
            let Some((_, list)) = self.plan.first_fit(&ask) else { break };
            self.put(index, now, now, list);
            self.begin(index, now);
            started += 1;
        }
        started > 0
    }

    /// The last of the queue from `first` on, before `end`, that would start now.
    fn last_that_fits(&self, draft: &P, first: usize, end: usize) -> Option<usize> {
        let free = draft.free_now();
        let fits = |index: &usize| {
            let task = &self.tasks[*index];
            i64::from(task.nodes) <= free
                && draft.fits_now(task.nodes, self.done[*index].estimate_s, task.partition)
        };
        Some(first + self.waiting.get(first..end)?.iter().rposition(fits)?)
    }

    /// Conservative backfilling. True if anybody has started.
    fn start_from(&mut self, draft: &mut P, now: u64) -> bool {
        let mut any = false;
        // Who asks for as much or more starts no earlier than one that is ahead.
        let mut firsts: HashMap<usize, Vec<(u32, u64, u64)>> = HashMap::new();
        let mut last = self.last_that_fits(draft, 0, self.waiting.len());
        let mut at = 0;
        while let Some(end) = last {
            let index = self.waiting[at];
            let task = &self.tasks[index];
            let seconds = self.done[index].estimate_s;
            let firsts = firsts.entry(task.partition).or_default();
            let is_less = |one: &&(u32, u64, u64)| one.0 <= task.nodes && one.1 <= seconds;
            let first = firsts.iter().filter(is_less).map(|one| one.2).fold(now, u64::max);
            let (start, list) =
                draft.first_fit(&self.ask(index, first)).expect("each task fits into its partition");
            match firsts.iter_mut().find(|one| (one.0, one.1) == (task.nodes, seconds)) {
                Some(one) => one.2 = start,
                None => firsts.push((task.nodes, seconds, start)),
            }
            draft.take(&list, task.nodes, start, start.saturating_add(seconds));
            if start == now {
                self.put(index, now, now, list);
                self.begin(index, now);
                any = true;
            }
            at += 1;
            last = self.last_that_fits(draft, at, end + 1);
        }
        any
    }
}
