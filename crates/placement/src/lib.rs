//! Which daemon owns a directory entry or a chunk.
//!
//! There is no central server: every party computes owners from the number of members
//! (S2 §2.2.3). Jump consistent hashing (Lamping & Veach 2014) spreads evenly and moves
//! 1/n of the keys when a member joins. The functions are part of the protocol: all
//! clients of a pool must agree, so their results are pinned by tests. Why they are what they are:
//! `docs/decisions/0008-placement.md`.

#![forbid(unsafe_code)]

use std::fmt;
use std::iter;
use tidepool_types::{DAEMONS_MAX, DaemonIndex, GROUP_MAX, Ino, Layout, Placement};

/// Largest weight of a daemon. Keeps the sum of all far below 2^31, which [`jump`] can tell apart.
pub const WEIGHT_MAX: u32 = 1000;

/// Owner of entry `name` of directory `parent` in a pool of `members` daemons (at least 1).
pub fn entry_owner(parent: Ino, name: &[u8], members: usize) -> DaemonIndex {
    let key = name.chunks(8).fold(mix(parent.0 ^ 0x7469_6465), |hash, part| {
        let mut word = [0u8; 8];
        word[..part.len()].copy_from_slice(part);
        mix(hash ^ u64::from_le_bytes(word)).wrapping_add(part.len() as u64)
    });
    jump(mix(key), members)
}

/// The daemons of a pool, as far as placement depends on them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placer {
    members: usize,
    /// Sums of the weights of the daemons up to each one; empty when all count the same.
    sums: Vec<u32>,
    /// The daemons of each group, in order; empty when there are no groups.
    groups: Vec<Vec<DaemonIndex>>,
    /// The group of each daemon.
    group_of: Vec<u16>,
}

/// Why groups cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    Count { groups: usize, members: usize },
    TooLarge(u16),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Count { groups, members } => {
                write!(f, "{groups} groups for {members} daemons; name one for each, in their order")
            }
            GroupError::TooLarge(number) => write!(f, "group {number}: the largest is {GROUP_MAX}"),
        }
    }
}

impl std::error::Error for GroupError {}

/// Why weights cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightError {
    Count { weights: usize, members: usize },
    TooLarge(u32),
    AllZero,
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightError::Count { weights, members } => {
                write!(f, "{weights} weights for {members} daemons; give one for each, in their order")
            }
            WeightError::TooLarge(weight) => write!(f, "weight {weight}: the largest is {WEIGHT_MAX}"),
            WeightError::AllZero => f.write_str("all weights are 0; one daemon at least must take data"),
        }
    }
}

impl std::error::Error for WeightError {}

impl Placer {
    /// For a pool of `members` daemons; without `weights` all count the same.
    ///
    /// # Panics
    /// When no pool has so many daemons.
    pub fn new(members: usize, weights: &[u32]) -> Result<Placer, WeightError> {
        assert!((1..=DAEMONS_MAX).contains(&members), "a pool has 1 to 65536 daemons");
        if weights.is_empty() {
            return Ok(Placer { members, sums: Vec::new(), groups: Vec::new(), group_of: Vec::new() });
        }
        if weights.len() != members {
            return Err(WeightError::Count { weights: weights.len(), members });
        }
        if let Some(weight) = weights.iter().find(|w| **w > WEIGHT_MAX) {
            return Err(WeightError::TooLarge(*weight));
        }
        let running = |sum: &mut u32, weight: &u32| {
            *sum += weight;
            Some(*sum)
        };
        let sums: Vec<u32> = weights.iter().scan(0, running).collect();
        match sums.last() {
            Some(0) => Err(WeightError::AllZero),
            _ => Ok(Placer { members, sums, groups: Vec::new(), group_of: Vec::new() }),
        }
    }

    /// With the group of each daemon; the numbers start at 0. None: no groups.
    pub fn grouped(self, group_of: &[u16]) -> Result<Placer, GroupError> {
        if !group_of.is_empty() && group_of.len() != self.members {
            return Err(GroupError::Count { groups: group_of.len(), members: self.members });
        }
        let largest = group_of.iter().copied().max();
        if let Some(number) = largest.filter(|number| *number > GROUP_MAX) {
            return Err(GroupError::TooLarge(number));
        }
        let mut groups = vec![Vec::new(); largest.map_or(0, |number| usize::from(number) + 1)];
        for (daemon, group) in group_of.iter().enumerate() {
            groups[usize::from(*group)].push(daemon as DaemonIndex);
        }
        Ok(Placer { groups, group_of: group_of.to_vec(), ..self })
    }

    pub fn members(&self) -> usize {
        self.members
    }

    /// True when the daemons have weights, so that the placement "weighted" means something.
    pub fn is_weighted(&self) -> bool {
        !self.sums.is_empty()
    }

    /// True when the daemons have groups, so that the placement "group" means something.
    pub fn is_grouped(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The group of a daemon; none in a pool without groups.
    pub fn group_of(&self, daemon: DaemonIndex) -> Option<u16> {
        self.group_of.get(usize::from(daemon)).copied()
    }

    /// The daemons of a group, in order; none when there is no such group.
    pub fn group(&self, number: u16) -> &[DaemonIndex] {
        self.groups.get(usize::from(number)).map_or(&[], Vec::as_slice)
    }

    /// Where a file with placement "group" gets its home, and so all its data: on the group that the layout names, else on
    /// one of the groups of `near` (the daemons on the maker's node), else on any. `owner` keeps the file's entry, and is
    /// taken where it may be, which saves a request.
    pub fn home_in_group(
        &self,
        layout: Layout,
        owner: DaemonIndex,
        near: &[DaemonIndex],
        (parent, name): (Ino, &[u8]),
    ) -> DaemonIndex {
        let pick = |among: &[DaemonIndex]| match among {
            [] => owner,
            _ if among.contains(&owner) => owner,
            _ => among[usize::from(entry_owner(parent, name, among.len()))],
        };
        match layout.named_group().or_else(|| self.group_of(pick(near))) {
            Some(number) => pick(self.group(number)),
            None => owner,
        }
    }

    /// Owner of entry `name` of directory `parent`.
    pub fn entry_owner(&self, parent: Ino, name: &[u8]) -> DaemonIndex {
        entry_owner(parent, name, self.members)
    }

    /// Owner of chunk `index` of an object. The first chunk lies with the object's record in every layout, so that a
    /// small file needs one daemon only.
    pub fn chunk_owner(&self, ino: Ino, layout: Layout, index: u64) -> DaemonIndex {
        if index == 0 {
            return ino.home();
        }
        match layout.placement() {
            Placement::Local => ino.home(),
            Placement::Weighted => self.weighted(chunk_key(ino, index)),
            Placement::Group => match self.home_group(ino) {
                [] => jump(chunk_key(ino, index), self.members),
                group => group[usize::from(jump(chunk_key(ino, index), group.len()))],
            },
            Placement::Wide => match self.stripe(layout) {
                Some(stripe) => self.in_stripe(ino, index % stripe),
                None => jump(chunk_key(ino, index), self.members),
            },
        }
    }

    /// Every daemon that may own a chunk of the object, its home first.
    pub fn chunk_owners(&self, ino: Ino, layout: Layout) -> Vec<DaemonIndex> {
        let home = ino.home();
        let others = |takes: &dyn Fn(usize) -> bool| {
            let others = (0..self.members).filter(|d| *d != usize::from(home) && takes(*d));
            iter::once(home).chain(others.map(|d| d as DaemonIndex)).collect()
        };
        match layout.placement() {
            Placement::Local => vec![home],
            Placement::Weighted => others(&|daemon| self.weight(daemon) > 0),
            Placement::Group => match self.home_group(ino) {
                [] => others(&|_| true),
                group => iter::once(home).chain(group.iter().copied().filter(|d| *d != home)).collect(),
            },
            Placement::Wide => match self.stripe(layout) {
                Some(stripe) => (0..stripe).map(|slot| self.in_stripe(ino, slot)).collect(),
                None => others(&|_| true),
            },
        }
    }

    /// The daemons of the group that an object's home belongs to.
    fn home_group(&self, ino: Ino) -> &[DaemonIndex] {
        self.group_of(ino.home()).map_or(&[], |number| self.group(number))
    }

    /// Daemons of the layout's stripe; never more than there are.
    fn stripe(&self, layout: Layout) -> Option<u64> {
        (layout.stripe() > 0).then(|| u64::from(layout.stripe()).min(self.members as u64))
    }

    /// The daemon at a place of the object's stripe: steps of an object's own width from its home. A width that shares no
    /// divisor with the number of daemons meets each of them once before it comes back.
    fn in_stripe(&self, ino: Ino, slot: u64) -> DaemonIndex {
        let members = self.members as u64;
        let first = mix(ino.0) % members;
        let width = (first.max(1)..).find(|width| gcd(*width, members) == 1).unwrap_or(1);
        ((u64::from(ino.home()) + slot * width) % members) as DaemonIndex
    }

    fn weight(&self, daemon: usize) -> u32 {
        let before = daemon.checked_sub(1).map_or(0, |d| self.sums.get(d).copied().unwrap_or(0));
        self.sums.get(daemon).map_or(1, |sum| sum - before)
    }

    /// Each daemon stands in a row as often as its weight says, and one place is drawn. With equal weights of 1 this is
    /// what "wide" draws, and a daemon that joins takes its share only.
    fn weighted(&self, key: u64) -> DaemonIndex {
        let Some(total) = self.sums.last() else { return jump(key, self.members) };
        let place = jump_far(key, u64::from(*total));
        self.sums.partition_point(|sum| u64::from(*sum) <= place) as DaemonIndex
    }
}

fn chunk_key(ino: Ino, index: u64) -> u64 {
    mix(mix(ino.0) ^ index)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The finalizer of SplitMix64: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn jump(key: u64, buckets: usize) -> DaemonIndex {
    assert!((1..=DAEMONS_MAX).contains(&buckets), "a pool has 1 to 65536 daemons");
    jump_far(key, buckets as u64) as DaemonIndex
}

fn jump_far(mut key: u64, buckets: u64) -> u64 {
    let (mut bucket, mut next) = (0i64, 0i64);
    while next < buckets as i64 {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let unit = ((key >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / unit)) as i64;
    }
    bucket as u64
}

#[cfg(test)]
mod tests;
