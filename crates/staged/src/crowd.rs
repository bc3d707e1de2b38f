//! How many connections each user has: one user's do not leave others without.

use rustc_hash::FxHashMap;

/// Most connections of one user, who is neither root nor the stager's own, where descriptors are no scarcer.
const USER_MAX: usize = 2_000;
/// Bytes of memory that all connections of one such user may take together: eight of the longest messages.
const BYTES_MAX: usize = 64 << 20;
/// Of all descriptors that the process may have, one user's connections take at most one in so many.
const SHARE: u64 = 4;

/// Why a connection is not taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Crowded {
    pub most: usize,
    /// The first one since the user had room: worth a line in the log.
    pub first: bool,
}

#[derive(Default)]
struct Own {
    connections: usize,
    bytes: usize,
    refused: bool,
}

/// Users by their connections.
pub struct Crowd {
    most: usize,
    users: FxHashMap<u32, Own>,
}

impl Crowd {
    /// `descriptors`: how many the process may have; `None` for any number.
    pub fn new(descriptors: Option<u64>) -> Crowd {
        let share = descriptors.map_or(usize::MAX, |all| usize::try_from(all / SHARE).unwrap_or(usize::MAX));
        Crowd { most: USER_MAX.min(share).max(1), users: FxHashMap::default() }
    }

    /// A connection comes. Whoever is `free` is counted, and never refused.
    pub fn come(&mut self, uid: u32, free: bool) -> Result<(), Crowded> {
        let own = self.users.entry(uid).or_default();
        if !free && own.connections >= self.most {
            let first = !std::mem::replace(&mut own.refused, true);
            return Err(Crowded { most: self.most, first });
        }
        own.connections += 1;
        Ok(())
    }

    /// A connection takes `now` bytes instead of `before`, which may be more than its user may have.
    pub fn hold(&mut self, uid: u32, before: usize, now: usize, free: bool) -> Result<(), Crowded> {
        let own = self.users.entry(uid).or_default();
        own.bytes = (own.bytes + now).saturating_sub(before);
        if free || now <= before || own.bytes <= BYTES_MAX {
            return Ok(());
        }
        let first = !std::mem::replace(&mut own.refused, true);
        Err(Crowded { most: BYTES_MAX, first })
    }

    /// How many connections a user has.
    pub fn connections(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, |own| own.connections)
    }

    pub fn connections_max(&self) -> usize {
        self.most
    }

    /// One that had come is closed, and its bytes are free again.
    pub fn leave(&mut self, uid: u32, bytes: usize) {
        if let Some(own) = self.users.get_mut(&uid) {
            own.connections = own.connections.saturating_sub(1);
            own.bytes = own.bytes.saturating_sub(bytes);
            own.refused = false;
            if own.connections == 0 {
                self.users.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_and_others_theirs() {
        let mut crowd = Crowd::new(Some(8));
        assert_eq!([crowd.come(7, false), crowd.come(7, false)], [Ok(()), Ok(())]);
        assert_eq!(crowd.come(7, false), Err(Crowded { most: 2, first: true }));
        assert_eq!(crowd.come(7, false), Err(Crowded { most: 2, first: false }));
        assert_eq!(crowd.come(8, false), Ok(()));
        assert!((0..5).all(|_| crowd.come(0, true).is_ok()));
        crowd.leave(7, 0);
        assert_eq!(crowd.come(7, false), Ok(()));
        assert_eq!(crowd.come(7, false), Err(Crowded { most: 2, first: true }));
    }

    #[test]
    fn a_users_connections_take_no_more_memory_than_they_may() {
        let mut crowd = Crowd::new(None);
        (0..3).for_each(|_| crowd.come(7, false).unwrap());
        assert_eq!(crowd.hold(7, 0, BYTES_MAX, false), Ok(()));
        assert_eq!(crowd.hold(7, 0, 1, false), Err(Crowded { most: BYTES_MAX, first: true }));
        assert_eq!(crowd.hold(8, 0, 1, false), Ok(()));
        crowd.leave(7, 1);
        assert_eq!(crowd.hold(7, BYTES_MAX, 10, false), Ok(()));
        assert_eq!(crowd.hold(7, 0, BYTES_MAX - 10, false), Ok(()));
        assert_eq!(crowd.hold(7, 0, BYTES_MAX, true), Ok(()), "root's");
    }

    #[test]
    fn who_has_left_leaves_nothing_behind() {
        let mut crowd = Crowd::new(None);
        crowd.come(7, false).unwrap();
        crowd.leave(7, 0);
        crowd.leave(7, 0);
        assert!(crowd.users.is_empty());
        assert_eq!((crowd.most, Crowd::new(Some(1)).most), (USER_MAX, 1));
    }
}
