//! What tasks have put where. Only this is given back when it is removed: what users have put into a dataspace themselves was
//! never counted, and removing it makes no room for tasks.

use std::collections::BTreeMap;

/// Places of one dataspace that are told apart. Beyond them, those of each directory become one.
pub(crate) const PLACES_MAX: usize = 65_536;

type Path = Box<[u8]>;

/// Bytes by place and job (0 for none) in one dataspace. A place is a path without empty names, `.` and `..`; the root is empty.
#[derive(Default)]
pub(crate) struct Placed {
    sums: BTreeMap<(Path, u32), u64>,
}

impl Placed {
    pub fn add(&mut self, place: &[u8], job: u32, bytes: u64) {
        let place = normal(place).unwrap_or_default();
        self.put(place, job, bytes);
        if self.sums.len() > PLACES_MAX {
            self.fold();
        }
    }

    fn put(&mut self, place: Path, job: u32, bytes: u64) {
        let sum = self.sums.entry((place, job)).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Until half of the places are left, each level at a time: what is in a directory is given back with the directory then.
    fn fold(&mut self) {
        while self.sums.len() > PLACES_MAX / 2 {
            for ((place, job), bytes) in std::mem::take(&mut self.sums) {
                match place.iter().rposition(|b| *b == b'/') {
                    Some(at) => self.put(place[..at].into(), job, bytes),
                    None if place.is_empty() => self.put(place, 0, bytes),
                    None => self.put(Path::default(), job, bytes),
                }
            }
        }
    }

    /// `place` is gone, with all below it: what was there, by job.
    pub fn take(&mut self, place: &[u8]) -> Vec<(u32, u64)> {
        // Where `..` leads, links decide.
        let Some(place) = normal(place) else { return Vec::new() };
        let keys: Vec<(Path, u32)> = match place.is_empty() {
            true => self.sums.keys().cloned().collect(),
            false => {
                let (start, end) = ([&place[..], b"/"].concat().into(), [&place[..], b"0"].concat().into());
                let own = self.sums.range((place.clone(), 0)..=(place, u32::MAX));
                // '0' is the byte after '/'.
                own.chain(self.sums.range((start, 0)..(end, 0))).map(|(key, _)| key.clone()).collect()
            }
        };
        keys.into_iter().filter_map(|key| self.sums.remove(&key).map(|bytes| (key.1, bytes))).collect()
    }

    /// A job has ended: another one may get its number.
    pub fn forget_job(&mut self, job: u32) {
        let keys: Vec<(Path, u32)> = self.sums.keys().filter(|(_, of)| *of == job).cloned().collect();
        for key in keys {
            let bytes = self.sums.remove(&key).unwrap_or(0);
            self.put(key.0, 0, bytes);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u32, u64)> {
        self.sums.iter().map(|((place, job), bytes)| (&**place, *job, *bytes))
    }
}

/// None where it goes up.
fn normal(path: &[u8]) -> Option<Path> {
    let names = || path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."));
    if names().any(|name| name == b"..") {
        return None;
    }
    Some(names().collect::<Vec<_>>().join(&b'/').into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_gone_takes_all_below_it_along_and_nothing_beside_it() {
        let mut placed = Placed::default();
        for (place, job, bytes) in [
            ("in", 5, 1),
            ("in/a", 5, 2),
            ("/in//./b", 6, 4),
            ("in.x", 5, 8),
            ("in0", 5, 16),
            ("inn/x", 5, 32),
        ] {
            placed.add(place.as_bytes(), job, bytes);
        }
        assert_eq!(placed.take(b"in/a/x"), [], "a part of it gives nothing back");
        assert_eq!(placed.take(b"x/../in"), []);
        assert_eq!(placed.take(b"/in/"), [(5, 1), (5, 2), (6, 4)]);
        assert_eq!(placed.take(b"in"), [], "once");
        placed.forget_job(5);
        assert_eq!(placed.take(b""), [(0, 8), (0, 16), (0, 32)]);
    }

    #[test]
    fn many_places_become_those_of_their_directories_and_lose_nothing() {
        let mut placed = Placed::default();
        for number in 0..=PLACES_MAX {
            placed.add(format!("d{}/e/{number}", number % 2).as_bytes(), 5, 1);
        }
        assert_eq!(placed.sums.len(), 2);
        assert_eq!(placed.take(b"d0/e/0"), []);
        assert_eq!(placed.take(b"d0"), [(5, PLACES_MAX as u64 / 2 + 1)]);
        // However many jobs there are.
        for job in 0..=PLACES_MAX as u32 {
            placed.add(b"", job, 1);
        }
        assert!(placed.sums.len() <= PLACES_MAX / 2);
        let all: u64 = placed.take(b"").iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(all, PLACES_MAX as u64 / 2 + PLACES_MAX as u64 + 1);
    }

    proptest! {
        /// Against a list of everything that was put.
        #[test]
        fn as_a_list_would_say(steps in prop::collection::vec((any::<bool>(), "[ab./0]{0,6}", 0u32..3, 1u64..9), 0..40)) {
            let mut placed = Placed::default();
            let mut list: Vec<(Vec<String>, u32, u64)> = Vec::new();
            for (put, path, job, bytes) in steps {
                let names: Vec<String> =
                    path.split('/').filter(|n| !matches!(*n, "" | ".")).map(str::to_string).collect();
                let up = names.iter().any(|name| name == "..");
                if put {
                    placed.add(path.as_bytes(), job, bytes);
                    list.push((if up { Vec::new() } else { names }, job, bytes));
                } else {
                    let gone = |at: &Vec<String>| !up && at.starts_with(&names);
                    let expected: u64 = list.iter().filter(|(at, _, _)| gone(at)).map(|(_, _, bytes)| bytes).sum();
                    list.retain(|(at, _, _)| !gone(at));
                    prop_assert_eq!(placed.take(path.as_bytes()).iter().map(|(_, bytes)| bytes).sum::<u64>(), expected);
                }
            }
        }
    }
}
