//! How long the pending tasks will take: sums that are kept up to date, so that asking costs
//! nothing for each task.

use crate::learn::Learned;
use crate::task::place_of;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};
use tidepool_wire::stager::{Resource, TaskSpec};

/// The pending tasks between two places.
struct Pair {
    from: String,
    to: String,
    tasks: u64,
    bytes: u64,
    /// Tasks of which nobody knows how much they move.
    unsized_tasks: u64,
}

#[derive(Default)]
pub(crate) struct Backlog {
    /// By a hash of both places: making their names for each task would cost more than all the rest.
    pairs: FxHashMap<u64, Pair>,
}

fn hash_place(resource: Option<&Resource>, hasher: &mut FxHasher) {
    match resource {
        None => 0u8.hash(hasher),
        Some(Resource::Memory { .. }) => 1u8.hash(hasher),
        Some(Resource::Path { dataspace, host, .. }) => (2u8, dataspace, host).hash(hasher),
    }
}

fn key(spec: &TaskSpec) -> u64 {
    let mut hasher = FxHasher::default();
    hash_place(Some(&spec.src), &mut hasher);
    hash_place(spec.dst.as_ref(), &mut hasher);
    hasher.finish()
}

impl Backlog {
    /// A task becomes pending. `bytes`: what it moves; 0 when unknown.
    pub fn add(&mut self, spec: &TaskSpec, bytes: u64) {
        let pair = self.pairs.entry(key(spec)).or_insert_with(|| Pair {
            from: place_of(Some(&spec.src)),
            to: place_of(spec.dst.as_ref()),
            tasks: 0,
            bytes: 0,
            unsized_tasks: 0,
        });
        pair.tasks += 1;
        pair.bytes = pair.bytes.saturating_add(bytes);
        pair.unsized_tasks += u64::from(bytes == 0);
    }

    /// A task is pending no more; as it was added.
    pub fn take(&mut self, spec: &TaskSpec, bytes: u64) {
        let key = key(spec);
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        pair.tasks = pair.tasks.saturating_sub(1);
        pair.bytes = pair.bytes.saturating_sub(bytes);
        pair.unsized_tasks = pair.unsized_tasks.saturating_sub(u64::from(bytes == 0));
        if pair.tasks == 0 {
            self.pairs.remove(&key);
        }
    }

    /// Seconds that all of it takes one after the other, each task taken for one file. None when that
    /// cannot be told of one of them.
    pub fn seconds(&self, learned: &Learned) -> Option<f64> {
        let mut sum = 0.0;
        for pair in self.pairs.values() {
            let estimate = learned.estimate(&pair.from, &pair.to, pair.bytes, pair.tasks);
            sum += estimate.filter(|_| pair.unsized_tasks == 0)?;
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidepool_wire::stager::Op;

    fn spec(from: u8, to: u8) -> TaskSpec {
        let place = |place: u8| match place % 4 {
            0 => Resource::Memory { address: 1, size: 2 },
            1 => Resource::local("a://", b"x"),
            2 => Resource::local("b://", b"x"),
            _ => Resource::remote("a://", "n2:1", b"x"),
        };
        TaskSpec::new(Op::Copy, place(from), Some(place(to)))
    }

    fn learned() -> Learned {
        let mut learned = Learned::default();
        for from in 0..4 {
            for to in 0..3 {
                let spec = spec(from, to);
                let pair = (place_of(Some(&spec.src)), place_of(spec.dst.as_ref()));
                learned.add(pair.clone(), 1000 + u64::from(from), 1, 1.0 + f64::from(to));
                learned.add(pair, 100, 7, 1.0);
            }
        }
        learned
    }

    proptest! {
        /// Against adding up the tasks one by one.
        #[test]
        fn sums_are_those_of_the_tasks(tasks in proptest::collection::vec((0u8..4, 0u8..3, 0u64..5000, any::<bool>()), 0..60)) {
            let (mut backlog, learned) = (Backlog::default(), learned());
            for (from, to, bytes, _) in &tasks {
                backlog.add(&spec(*from, *to), *bytes);
            }
            let (gone, left): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| task.3);
            for (from, to, bytes, _) in gone {
                backlog.take(&spec(from, to), bytes);
            }
            let one = |(from, to, bytes, _): &(u8, u8, u64, bool)| {
                let spec = spec(*from, *to);
                let seconds = learned.estimate(&place_of(Some(&spec.src)), &place_of(spec.dst.as_ref()), *bytes, 1);
                seconds.filter(|_| *bytes > 0)
            };
            let slow: Option<f64> = left.iter().map(one).sum();
            match (backlog.seconds(&learned), slow) {
                (Some(sum), Some(slow)) => prop_assert!((sum - slow).abs() <= 1e-9 * slow.max(1.0)),
                (sum, slow) => prop_assert_eq!(sum.is_some(), slow.is_some()),
            }
            prop_assert_eq!(backlog.pairs.is_empty(), left.is_empty());
        }
    }

    #[test]
    fn a_place_nobody_has_learned_of_has_no_time() {
        let mut backlog = Backlog::default();
        assert_eq!(backlog.seconds(&learned()), Some(0.0));
        backlog.add(&spec(1, 3), 10);
        assert_eq!(backlog.seconds(&learned()), None);
    }
}
