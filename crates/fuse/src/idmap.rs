//! User and group numbers inside a user name space.
//!
//! A mount made inside `unshare --user --map-root-user` speaks the numbers of that name
//! space, where its user is 0; the pool keeps those of the name space its daemons run in.

use rustix::process::geteuid;
use tidepool_types::Attr;

/// The kernel's number for a user that has none in a name space.
const OVERFLOW_ID: u32 = 65_534;

/// One line of `/proc/self/uid_map`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    inside: u32,
    outside: u32,
    count: u32,
}

/// Numbers of one kind. Empty: they are the same on both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Map(Vec<Range>);

impl Map {
    fn parse(text: &str) -> Map {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(|n| n.parse().ok());
            Some(Range { inside: numbers.next()??, outside: numbers.next()??, count: numbers.next()?? })
        };
        Map(text.lines().filter_map(range).collect())
    }

    fn out(&self, id: u32) -> u32 {
        self.translate(id, |r| (r.inside, r.outside))
    }

    fn inside(&self, id: u32) -> u32 {
        self.translate(id, |r| (r.outside, r.inside))
    }

    fn translate(&self, id: u32, ends: impl Fn(&Range) -> (u32, u32)) -> u32 {
        if self.0.is_empty() {
            return id;
        }
        let found = self.0.iter().find_map(|range| {
            let (from, to) = ends(range);
            let offset = id.checked_sub(from).filter(|o| *o < range.count)?;
            to.checked_add(offset)
        });
        found.unwrap_or(OVERFLOW_ID)
    }
}

/// How a mount's numbers become the pool's and back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    users: Map,
    groups: Map,
}

impl IdMap {
    /// Finds out whether to translate. A pool's root belongs to the user who runs it: if that
    /// is this process's own number the daemons live in the same name space.
    pub fn detect(root: &Attr) -> IdMap {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let (users, groups) = (read("/proc/self/uid_map"), read("/proc/self/gid_map"));
        IdMap::choose(root.uid, geteuid().as_raw(), &users, &groups)
    }

    fn choose(owner: u32, own: u32, users: &str, groups: &str) -> IdMap {
        let translated = IdMap { users: Map::parse(users), groups: Map::parse(groups) };
        let needed = owner != own && translated.users.out(own) == owner;
        if needed { translated } else { IdMap::default() }
    }

    pub fn user_to_pool(&self, id: u32) -> u32 {
        self.users.out(id)
    }

    pub fn group_to_pool(&self, id: u32) -> u32 {
        self.groups.out(id)
    }

    pub fn user_of_pool(&self, id: u32) -> u32 {
        self.users.inside(id)
    }

    pub fn group_of_pool(&self, id: u32) -> u32 {
        self.groups.inside(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT_ONLY: &str = "         0       1234          1\n";
    const ALL: &str = "         0          0 4294967295\n";

    #[test]
    fn a_mapped_root_is_the_user_outside() {
        let ids = IdMap::choose(1234, 0, ROOT_ONLY, ROOT_ONLY);
        assert_eq!((ids.user_to_pool(0), ids.user_of_pool(1234)), (1234, 0));
        assert_eq!((ids.group_to_pool(0), ids.group_of_pool(50)), (1234, OVERFLOW_ID));
    }

    #[test]
    fn the_same_name_space_translates_nothing() {
        for ids in [
            IdMap::choose(0, 0, ROOT_ONLY, ROOT_ONLY),
            IdMap::choose(1234, 0, ALL, ALL),
            IdMap::choose(1234, 1234, ALL, ALL),
            IdMap::choose(77, 0, ROOT_ONLY, ROOT_ONLY),
            IdMap::choose(77, 0, "", ""),
        ] {
            assert_eq!(ids, IdMap::default());
            assert_eq!((ids.user_to_pool(5), ids.group_of_pool(7)), (5, 7));
        }
    }

    #[test]
    fn ranges_have_ends() {
        let map = Map::parse("0 1000 1\n1 100000 65536\n");
        assert_eq!((map.out(0), map.out(1), map.out(65536)), (1000, 100_000, 165_535));
        assert_eq!((map.out(65537), map.inside(999), map.inside(100_000)), (OVERFLOW_ID, OVERFLOW_ID, 1));
    }
}
