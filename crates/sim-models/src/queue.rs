//! Requests that wait in front of a device, and which of them goes next: what an operating system's I/O scheduler does.
//!
//! Requests that move no data (an open, an fsync) are taken when they are the oldest: what came before an fsync has gone to
//! the device then.

use crate::device::Io;
use crate::kept::{Knows, are_small};
use crate::message::Message;
use std::collections::{BTreeMap, BTreeSet};
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::{Time, saved};

/// Most requests that a device may have at once.
pub const DEPTH_MAX: u32 = 1 << 16;

/// Who goes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Who came first.
    Fifo,
    /// Whose address is nearest to where the last one ended.
    Nearest,
    /// Who begins at or behind where the last one ended, the nearest first; then again from the lowest address.
    Elevator,
    /// The same, unless the oldest has waited for so long.
    Deadline(Time),
}

/// How requests wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSpec {
    pub policy: Policy,
    /// Requests that the device has at once; at least 1.
    pub depth: u32,
    /// Waiting requests that go on where the next one ends go with it, up to so many bytes together; 0: none does.
    pub merge: u32,
}

/// One that waits.
#[derive(Clone, PartialEq, Debug)]
pub struct Waiting {
    pub message: Message,
    /// When it came.
    pub came: u64,
    /// On the device.
    address: u64,
}

impl Waiting {
    pub fn io(&self) -> Io {
        let Message { op, file, local, length, .. } = self.message;
        Io { op, file, at: local, length }
    }

    /// Whether `next` goes on where this one ends.
    fn meets(&self, next: &Waiting) -> bool {
        let (this, next) = (self.io(), next.io());
        this.op == next.op && this.file == next.file && this.at + u64::from(this.length) == next.at
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    /// Of the next that comes.
    next: u64,
    /// Where the last one ended.
    head: u64,
    /// That the device has.
    pub at_work: u32,
    /// Requests that went with the one before them.
    pub merged: u64,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Queue {
    pub numbers: Numbers,
    /// By number, the oldest first.
    all: BTreeMap<u64, Waiting>,
    /// Those that move data: address and number.
    by_address: BTreeSet<(u64, u64)>,
}

saved!(struct Waiting { message, came, address });
saved!(struct Numbers { next, head, at_work, merged });

impl Saved for Queue {
    /// The order of addresses follows from who waits.
    fn save(&self, out: &mut Vec<u8>) {
        let Queue { numbers, all, by_address: _ } = self;
        numbers.save(out);
        all.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Queue, LoadError> {
        let mut queue = Queue { numbers: Saved::load(from)?, ..Queue::default() };
        for (number, waiting) in <BTreeMap<u64, Waiting>>::load(from)? {
            queue.insert(number, waiting);
        }
        Ok(queue)
    }
}

pub enum Change {
    Numbers(Numbers),
    Added(u64),
    Taken(u64, Waiting),
}

impl Queue {
    /// Whether it can have come to this by now: [`kept`](crate::kept).
    pub fn fits(&self, spec: &QueueSpec, now: u64, knows: Knows<'_>) -> bool {
        let Numbers { next, head, at_work, merged } = self.numbers;
        let waits = |(number, waiting): (&u64, &Waiting)| {
            *number < next && waiting.came <= now && are_small(&[waiting.address]) && knows(&waiting.message)
        };
        at_work <= spec.depth && are_small(&[next, head, merged]) && self.all.iter().all(waits)
    }

    pub fn undo(&mut self, change: Change) {
        match change {
            Change::Numbers(was) => self.numbers = was,
            Change::Added(number) => drop(self.remove(number)),
            Change::Taken(number, waiting) => self.insert(number, waiting),
        }
    }

    fn insert(&mut self, number: u64, waiting: Waiting) {
        if waiting.message.op.moves_data() {
            self.by_address.insert((waiting.address, number));
        }
        self.all.insert(number, waiting);
    }

    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.all.remove(&number)?;
        self.by_address.remove(&(waiting.address, number));
        Some(waiting)
    }

    /// Somebody comes. Before anything else of an event: the numbers are kept here and in [`Queue::idle`].
    pub fn add(&mut self, message: Message, address: u64, now: u64, keep: &mut dyn FnMut(Change)) {
        let number = self.numbers.next;
        keep(Change::Numbers(self.numbers));
        keep(Change::Added(number));
        self.numbers.next += 1;
        self.insert(number, Waiting { message, came: now, address });
    }

    /// The device is done with one.
    pub fn idle(&mut self, keep: &mut dyn FnMut(Change)) {
        keep(Change::Numbers(self.numbers));
        self.numbers.at_work = self.numbers.at_work.saturating_sub(1);
    }

    /// Who goes to the device now, with those that go along, if it takes another one.
    pub fn next(&mut self, spec: &QueueSpec, now: u64, keep: &mut dyn FnMut(Change)) -> Option<Vec<Waiting>> {
        if self.numbers.at_work >= spec.depth {
            return None;
        }
        let number = self.choose(spec.policy, now)?;
        let first = self.take(number, keep)?;
        let mut bytes = first.message.length;
        let mut all = vec![first];
        while let Some((number, length)) = all.last().and_then(|last| self.follower(last)) {
            if bytes.saturating_add(length) > spec.merge {
                break;
            }
            bytes += length;
            self.numbers.merged += 1;
            all.extend(self.take(number, keep));
        }
        if let Some(last) = all.last().filter(|last| last.message.op.moves_data()) {
            self.numbers.head = last.address + u64::from(last.message.length);
        }
        self.numbers.at_work += 1;
        Some(all)
    }

    fn take(&mut self, number: u64, keep: &mut dyn FnMut(Change)) -> Option<Waiting> {
        let waiting = self.remove(number)?;
        keep(Change::Taken(number, waiting.clone()));
        Some(waiting)
    }

    fn choose(&self, policy: Policy, now: u64) -> Option<u64> {
        let (oldest, waiting) = self.all.first_key_value()?;
        if !waiting.message.op.moves_data() {
            return Some(*oldest);
        }
        let head = (self.numbers.head, 0);
        let ahead = || self.by_address.range(head..).next();
        let found = match policy {
            Policy::Fifo => return Some(*oldest),
            Policy::Deadline(expire) if now.saturating_sub(waiting.came) >= expire.0 => return Some(*oldest),
            Policy::Elevator | Policy::Deadline(_) => ahead().or_else(|| self.by_address.first()),
            Policy::Nearest => {
                let distance = |at: &(u64, u64)| at.0.abs_diff(head.0);
                // All of one address begin with the oldest.
                let behind = self.by_address.range(..head).next_back();
                let behind = behind.and_then(|last| self.by_address.range((last.0, 0)..).next());
                match (behind, ahead()) {
                    (Some(behind), Some(ahead)) if distance(behind) < distance(ahead) => Some(behind),
                    (behind, ahead) => ahead.or(behind),
                }
            }
        };
        found.map(|(_, number)| *number)
    }

    /// Number and length of one that goes on where another ends.
    fn follower(&self, last: &Waiting) -> Option<(u64, u32)> {
        let end = last.address + u64::from(last.message.length);
        let same = self.by_address.range((end, 0)..=(end, u64::MAX)).map(|(_, number)| *number);
        same.filter_map(|number| Some((number, self.all.get(&number)?)))
            .find(|(_, waiting)| last.meets(waiting))
            .map(|(number, waiting)| (number, waiting.message.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Kind, Op};
    use proptest::prelude::*;

    fn no(_: Change) {}

    fn message(op: Op, local: u64, length: u32) -> Message {
        let (kind, file, request, offset) = (Kind::Submit, 0, 0, local);
        Message { kind, op, file, request, offset, local, length, sender: 0, receiver: 0, start: 0, end: 0 }
    }

    /// Places in the order in which they go, when all wait at once and the head is at 100.
    fn order(policy: Policy, merge: u32, places: &[u64]) -> Vec<Vec<u64>> {
        let (spec, mut queue) = (QueueSpec { policy, depth: 1, merge }, Queue::default());
        queue.numbers.head = 100;
        for place in places {
            queue.add(message(Op::Read, *place, 10), *place, 0, &mut no);
        }
        let mut all = Vec::new();
        while let Some(batch) = queue.next(&spec, 50, &mut no) {
            all.push(batch.iter().map(|waiting| waiting.address).collect());
            queue.idle(&mut no);
        }
        all
    }

    fn singly(all: &[u64]) -> Vec<Vec<u64>> {
        all.iter().map(|place| vec![*place]).collect()
    }

    #[test]
    fn each_policy_has_its_order() {
        let places = [500, 90, 110, 0, 120, 300];
        assert_eq!(order(Policy::Fifo, 0, &places), singly(&places));
        assert_eq!(order(Policy::Nearest, 0, &places), singly(&[110, 120, 90, 0, 300, 500]));
        assert_eq!(order(Policy::Elevator, 0, &places), singly(&[110, 120, 300, 500, 0, 90]));
        assert_eq!(order(Policy::Deadline(Time(51)), 0, &places), singly(&[110, 120, 300, 500, 0, 90]));
        assert_eq!(order(Policy::Deadline(Time(50)), 0, &places), singly(&places));
    }

    #[test]
    fn neighbours_go_together_up_to_a_limit() {
        let places = [200, 120, 110, 130];
        let all = |merge| order(Policy::Elevator, merge, &places);
        assert_eq!(all(100), [vec![110, 120, 130], vec![200]]);
        assert_eq!(all(29), [vec![110, 120], vec![130], vec![200]]);
        assert_eq!(order(Policy::Fifo, 100, &places), [vec![200], vec![120, 130], vec![110]]);
    }

    #[test]
    fn an_fsync_goes_when_all_before_it_have_gone() {
        let spec = QueueSpec { policy: Policy::Elevator, depth: 9, merge: 0 };
        let mut queue = Queue::default();
        for (op, place) in [(Op::Write, 50), (Op::Fsync, 0), (Op::Write, 70), (Op::Write, 20)] {
            let length = if op == Op::Write { 10 } else { 0 };
            queue.add(message(op, place, length), place, 0, &mut no);
        }
        let mut ops = Vec::new();
        while let Some(batch) = queue.next(&spec, 0, &mut no) {
            ops.push((batch[0].message.op, batch[0].address));
        }
        // The 50 is the oldest, but 20 lies on the way.
        assert_eq!(ops, [(Op::Write, 20), (Op::Write, 50), (Op::Fsync, 0), (Op::Write, 70)]);
    }

    proptest! {
        /// Nobody is lost, nobody goes twice, and everything can be taken back.
        #[test]
        fn all_go_once_and_changes_can_be_taken_back(
            steps in proptest::collection::vec((any::<bool>(), 0u64..40, 0usize..3), 1..60),
            policy in 0usize..4,
            depth in 1u32..4,
            merge in 0u32..60,
        ) {
            let policy = [Policy::Fifo, Policy::Nearest, Policy::Elevator, Policy::Deadline(Time(9))][policy];
            let (spec, mut queue) = (QueueSpec { policy, depth, merge }, Queue::default());
            let (mut past, mut came, mut went) = (Vec::new(), 0, 0);
            for (now, (comes, place, op)) in steps.into_iter().enumerate() {
                let (before, mut changes, now) = (queue.clone(), Vec::new(), now as u64);
                let keep = &mut |change| changes.push(change);
                if comes {
                    let op = [Op::Read, Op::Write, Op::Fsync][op];
                    let length = if op == Op::Fsync { 0 } else { 10 };
                    queue.add(message(op, place * 10, length), place * 10, now, keep);
                    came += 1;
                } else {
                    queue.idle(keep);
                }
                while let Some(batch) = queue.next(&spec, now, keep) {
                    went += batch.len();
                    prop_assert!(batch.len() == 1 || batch.len() as u32 * 10 <= merge);
                }
                prop_assert!(queue.numbers.at_work <= depth);
                past.push((before, changes));
            }
            prop_assert_eq!(came, went + queue.all.len());
            for (before, changes) in past.into_iter().rev() {
                changes.into_iter().rev().for_each(|change| queue.undo(change));
                prop_assert_eq!(&queue, &before);
            }
        }
    }
}
