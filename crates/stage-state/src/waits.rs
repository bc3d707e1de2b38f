//! Who waits for the end of which tasks.

use crate::Millis;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// One `Wait` request: which connection, which request of it, for what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    pub conn: u64,
    pub request: u64,
    pub ids: Vec<u32>,
    /// The first end is enough.
    pub any: bool,
    /// By a clock that nobody sets.
    pub deadline: Option<Millis>,
    pub late: Late,
}

/// What is answered at the deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// That it was too long.
    Refuse,
    /// How the tasks are then: who asks does not know their numbers yet.
    Tell,
}

struct Waiting {
    wait: Wait,
    left: usize,
}

#[derive(Default)]
pub struct Waits {
    waiting: FxHashMap<u64, Waiting>,
    by_task: FxHashMap<u32, Vec<u64>>,
    by_conn: FxHashMap<u64, Vec<u64>>,
    deadlines: BTreeSet<(Millis, u64)>,
    last: u64,
}

impl Waits {
    /// Notes a wait for tasks of which none (with `any`) or not all have ended. `unended` are the
    /// others, without repetitions.
    pub fn add(&mut self, wait: Wait, unended: &[u32]) {
        self.last += 1;
        let number = self.last;
        for id in unended {
            self.by_task.entry(*id).or_default().push(number);
        }
        self.by_conn.entry(wait.conn).or_default().push(number);
        self.deadlines.extend(wait.deadline.map(|at| (at, number)));
        let left = if wait.any { 1 } else { unended.len() };
        self.waiting.insert(number, Waiting { wait, left });
    }

    /// A task has ended: the waits that are over by this.
    pub fn ended(&mut self, id: u32) -> Vec<Wait> {
        let numbers = self.by_task.remove(&id).unwrap_or_default();
        numbers.into_iter().filter_map(|number| self.one_less(number)).collect()
    }

    fn one_less(&mut self, number: u64) -> Option<Wait> {
        let waiting = self.waiting.get_mut(&number)?;
        waiting.left -= 1;
        (waiting.left == 0).then(|| self.take(number)).flatten()
    }

    /// Waits whose time is over.
    pub fn due(&mut self, now: Millis) -> Vec<Wait> {
        let mut due = Vec::new();
        while let Some((at, number)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, number));
            due.extend(self.take(number));
        }
        due
    }

    pub fn next_deadline(&self) -> Option<Millis> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Nobody is there any more to be told.
    pub fn closed(&mut self, conn: u64) {
        for number in self.by_conn.remove(&conn).unwrap_or_default() {
            self.take(number);
        }
    }

    fn take(&mut self, number: u64) -> Option<Wait> {
        let wait = self.waiting.remove(&number)?.wait;
        self.deadlines.remove(&(wait.deadline.unwrap_or(0), number));
        for id in &wait.ids {
            remove_from(&mut self.by_task, *id, number);
        }
        remove_from(&mut self.by_conn, wait.conn, number);
        Some(wait)
    }
}

fn remove_from<K: std::hash::Hash + Eq>(map: &mut FxHashMap<K, Vec<u64>>, key: K, number: u64) {
    if let Some(numbers) = map.get_mut(&key) {
        numbers.retain(|n| *n != number);
        if numbers.is_empty() {
            map.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(request: u64, ids: &[u32], any: bool, deadline: Option<Millis>) -> Wait {
        Wait { conn: 7, request, ids: ids.to_vec(), any, deadline, late: Late::Refuse }
    }

    fn requests(waits: Vec<Wait>) -> Vec<u64> {
        waits.into_iter().map(|w| w.request).collect()
    }

    #[test]
    fn all_or_any_end_a_wait_once() {
        let mut waits = Waits::default();
        waits.add(wait(1, &[1, 2], false, None), &[1, 2]);
        waits.add(wait(2, &[1, 2], true, None), &[1, 2]);
        assert_eq!(requests(waits.ended(1)), [2]);
        assert_eq!(requests(waits.ended(2)), [1]);
        assert!(waits.waiting.is_empty() && waits.by_task.is_empty() && waits.by_conn.is_empty());
    }

    #[test]
    fn a_wait_is_over_at_its_deadline_and_not_before() {
        let mut waits = Waits::default();
        waits.add(wait(1, &[1], false, Some(100)), &[1]);
        assert_eq!(waits.next_deadline(), Some(100));
        assert!(waits.due(99).is_empty());
        assert_eq!(requests(waits.due(100)), [1]);
        assert!(waits.ended(1).is_empty() && waits.next_deadline().is_none());
    }

    #[test]
    fn nobody_is_told_after_he_left() {
        let mut waits = Waits::default();
        waits.add(wait(1, &[1], false, Some(100)), &[1]);
        waits.closed(7);
        assert!(waits.ended(1).is_empty() && waits.due(1000).is_empty());
    }
}
