//! Whom a process trusts besides the user himself.

use std::fs;

/// What the kernel shows for users without a number in this user name space, when its setting cannot be read.
const OVERFLOW_UID: u32 = 65534;

/// Users who may own what leads to a directory of `user`, or answer for the system: the user and root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trust {
    pub user: u32,
    /// Who root of the machine seems to be, in a container in which he has no number. Every other user of the machine seems
    /// to be that one, too: such a container has no way to tell them apart.
    unmapped: Option<u32>,
}

impl Trust {
    pub fn of(user: u32) -> Trust {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        let overflow = overflow.trim().parse().unwrap_or(OVERFLOW_UID);
        Trust { user, unmapped: has_no_root(&map).then_some(overflow) }
    }

    /// The user that this process acts as.
    pub fn own() -> Trust {
        Trust::of(rustix::process::geteuid().as_raw())
    }

    pub fn trusts(self, uid: u32) -> bool {
        uid == self.user || uid == 0 || self.unmapped == Some(uid)
    }
}

/// Root of the name space above has no number here: lines are "number here, number there, count".
fn has_no_root(map: &str) -> bool {
    let starts: Vec<Option<u64>> =
        map.lines().map(|line| line.split_whitespace().nth(1).and_then(|word| word.parse().ok())).collect();
    // Without a map nothing can be concluded, so nobody more is trusted.
    !starts.is_empty() && starts.iter().all(|start| start.is_some_and(|start| start > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_user_and_root_are_trusted() {
        let trust = Trust { user: 7, unmapped: None };
        assert!(trust.trusts(7) && trust.trusts(0));
        assert!(!trust.trusts(8) && !trust.trusts(OVERFLOW_UID));
        assert!(Trust { unmapped: Some(OVERFLOW_UID), ..trust }.trusts(OVERFLOW_UID));
    }

    #[test]
    fn a_name_space_without_root_is_known_by_its_map() {
        assert!(!has_no_root("         0          0 4294967295\n"));
        assert!(has_no_root("1000 1000 1\n") && has_no_root("0 1000 1\n1 100000 65536\n"));
        assert!(!has_no_root("") && !has_no_root("what\n"));
    }
}
