//! POSIX access control lists as the kernel keeps them in extended attributes (`linux/posix_acl_xattr.h`), and what sharing
//! changes in them. Pure; the known libraries link `libacl`, for eight bytes per entry.
//!
//! | bytes | |
//! |---|---|
//! | 4 | version, 2 |
//! | 8 for each entry | tag (2), permissions (2), number of user or group (4), little-endian |
//!
//! Whatever a mask keeps from an entry stays kept from it: letting one user in lets nobody else in.

use std::collections::BTreeMap;

/// Of a file or directory.
pub const ACCESS: &str = "system.posix_acl_access";
/// Of a directory: what is made in it begins with this.
pub const DEFAULT: &str = "system.posix_acl_default";

pub const READ: u8 = 4;
pub const EXECUTE: u8 = 1;
const ALL: u8 = 7;

const VERSION: u32 = 2;
const HEAD_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Number of entries that are for no certain user or group.
const NO_ID: u32 = u32::MAX;

/// A list that the kernel accepts: with a mask where a user or group is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    owner: u8,
    users: BTreeMap<u32, u8>,
    group: u8,
    groups: BTreeMap<u32, u8>,
    /// What users and groups have at most, but for the owner.
    mask: Option<u8>,
    other: u8,
}

/// Bytes that are no list, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl Acl {
    /// What the permissions of a file without a list say.
    pub fn of_mode(mode: u32) -> Acl {
        let part = |shift: u32| (mode >> shift) as u8 & ALL;
        let (users, groups) = (BTreeMap::new(), BTreeMap::new());
        Acl { owner: part(6), users, group: part(3), groups, mask: None, other: part(0) }
    }

    pub fn decode(bytes: &[u8]) -> Result<Acl, Malformed> {
        let (head, entries) = bytes.split_at_checked(HEAD_LEN).ok_or(Malformed("too short"))?;
        if head != VERSION.to_le_bytes() {
            return Err(Malformed("of another version"));
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() {
            return Err(Malformed("its last entry is cut off"));
        }
        let mut found = Found::default();
        entries.iter().try_for_each(|entry| found.add(entry))?;
        found.list()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        let mut put = |tag: u16, permissions: u8, id: u32| {
            out.extend(tag.to_le_bytes());
            out.extend(u16::from(permissions).to_le_bytes());
            out.extend(id.to_le_bytes());
        };
        // The kernel wants them in the order of their tags.
        put(OWNER, self.owner, NO_ID);
        self.users.iter().for_each(|(id, permissions)| put(USER, *permissions, *id));
        put(OWNING_GROUP, self.group, NO_ID);
        self.groups.iter().for_each(|(id, permissions)| put(GROUP, *permissions, *id));
        if let Some(mask) = self.mask {
            put(MASK, mask, NO_ID);
        }
        put(OTHER, self.other, NO_ID);
        out
    }

    /// Says no more than permissions do.
    pub fn is_plain(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// The list without named users and groups, in which everybody else has what he has here.
    pub fn base(&self) -> Acl {
        let (users, groups) = (BTreeMap::new(), BTreeMap::new());
        Acl { users, groups, group: self.group & self.masked(), mask: None, ..*self }
    }

    fn masked(&self) -> u8 {
        self.mask.unwrap_or(ALL)
    }

    /// What a reader gets: reading, and executing what its owner executes.
    fn for_readers(&self) -> u8 {
        self.owner & (READ | EXECUTE)
    }

    /// Whether the list lets this user read, whatever groups he is in.
    pub fn lets_read(&self, user: u32) -> bool {
        let (wanted, mask) = (self.for_readers(), self.masked());
        let has = |permissions: u8| permissions & wanted == wanted;
        match self.users.get(&user) {
            Some(permissions) => has(permissions & mask),
            None => {
                let groups = std::iter::once(&self.group).chain(self.groups.values());
                has(self.other) && groups.into_iter().all(|permissions| has(permissions & mask))
            }
        }
    }

    pub fn names(&self, user: u32) -> bool {
        self.users.contains_key(&user)
    }

    /// Lets a user read. Nobody else gets or loses anything.
    pub fn allow(&mut self, user: u32) {
        let (wanted, old) = (self.for_readers(), self.masked());
        let all = self.users.values_mut().chain(self.groups.values_mut());
        all.chain([&mut self.group]).for_each(|permissions| *permissions &= old);
        *self.users.entry(user).or_default() |= wanted;
        self.tighten();
    }

    /// Takes a user's entry away. Nobody else gets or loses anything.
    pub fn deny(&mut self, user: u32) {
        let old = self.masked();
        self.users.remove(&user);
        let all = self.users.values_mut().chain(self.groups.values_mut());
        all.chain([&mut self.group]).for_each(|permissions| *permissions &= old);
        self.tighten();
    }

    /// The mask is what the entries below it have.
    fn tighten(&mut self) {
        let all = self.users.values().chain(self.groups.values());
        let sum = all.fold(self.group, |sum, permissions| sum | permissions);
        self.mask = (!self.is_plain()).then_some(sum);
    }

    /// The list for what is its owner's and these readers' only.
    pub fn closed(&self, readers: &[u32]) -> Acl {
        let users = readers.iter().map(|user| (*user, self.for_readers())).collect();
        let groups = BTreeMap::new();
        let mut closed = Acl { owner: self.owner, users, group: 0, groups, mask: None, other: 0 };
        closed.tighten();
        closed
    }
}

/// Entries on the way to a list.
#[derive(Default)]
struct Found {
    owner: Option<u8>,
    users: BTreeMap<u32, u8>,
    group: Option<u8>,
    groups: BTreeMap<u32, u8>,
    mask: Option<u8>,
    other: Option<u8>,
}

impl Found {
    fn add(&mut self, entry: &[u8; ENTRY_LEN]) -> Result<(), Malformed> {
        let [t0, t1, p0, p1, id @ ..] = *entry;
        let permissions = u8::try_from(u16::from_le_bytes([p0, p1])).ok().filter(|bits| *bits <= ALL);
        let permissions = permissions.ok_or(Malformed("an entry with unknown permissions"))?;
        let id = u32::from_le_bytes(id);
        let before = match u16::from_le_bytes([t0, t1]) {
            OWNER => self.owner.replace(permissions),
            USER => self.users.insert(id, permissions),
            OWNING_GROUP => self.group.replace(permissions),
            GROUP => self.groups.insert(id, permissions),
            MASK => self.mask.replace(permissions),
            OTHER => self.other.replace(permissions),
            _ => return Err(Malformed("an entry of an unknown kind")),
        };
        before.map_or(Ok(()), |_| Err(Malformed("two entries for the same")))
    }

    fn list(self) -> Result<Acl, Malformed> {
        let Found { owner: Some(owner), users, group: Some(group), groups, mask, other: Some(other) } = self
        else {
            return Err(Malformed("an entry for owner, group or others is missing"));
        };
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(Malformed("users or groups without a mask"));
        }
        Ok(Acl { owner, users, group, groups, mask, other })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOB: u32 = 20_002;
    /// `setfacl -m u:20002:r` on a file of mode 0640.
    const SHARED: &[u8] = b"\x02\0\0\0\
        \x01\0\x06\0\xff\xff\xff\xff\
        \x02\0\x04\0\x22\x4e\0\0\
        \x04\0\x04\0\xff\xff\xff\xff\
        \x10\0\x04\0\xff\xff\xff\xff\
        \x20\0\0\0\xff\xff\xff\xff";

    #[test]
    fn bytes_are_those_of_the_kernel() {
        let mut acl = Acl::of_mode(0o100_640);
        acl.allow(BOB);
        assert_eq!(acl.encode(), SHARED);
        assert_eq!(Acl::decode(SHARED), Ok(acl));
        let plain =
            b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x01\0\xff\xff\xff\xff";
        assert_eq!(Acl::of_mode(0o751).encode(), plain);
    }

    #[test]
    fn what_is_no_list_is_said_so() {
        let wrong = |bytes: &[u8]| Acl::decode(bytes).unwrap_err().0;
        assert_eq!(wrong(b"\x02\0"), "too short");
        assert_eq!(wrong(b"\x03\0\0\0"), "of another version");
        assert_eq!(wrong(&SHARED[..43]), "its last entry is cut off");
        assert_eq!(wrong(&SHARED[..36]), "an entry for owner, group or others is missing");
        assert_eq!(wrong(&[SHARED, &SHARED[4..12]].concat()), "two entries for the same");
        assert_eq!(wrong(&[&SHARED[..28], &SHARED[36..]].concat()), "users or groups without a mask");
        let mut bytes = SHARED.to_vec();
        bytes[6] = 8;
        assert_eq!(wrong(&bytes), "an entry with unknown permissions");
        bytes[4] = 3;
        bytes[6] = 6;
        assert_eq!(wrong(&bytes), "an entry of an unknown kind");
    }

    #[test]
    fn readers_read_and_execute_what_the_owner_does() {
        for (mode, expected) in [(0o600, 4), (0o755, 5), (0o644, 4), (0o711, 5), (0o100, 1), (0o200, 0)] {
            let mut acl = Acl::of_mode(mode);
            acl.allow(BOB);
            assert_eq!((acl.users[&BOB], acl.lets_read(BOB)), (expected, true), "{mode:o}");
        }
        let closed = Acl::of_mode(0o755).closed(&[BOB, 7]);
        assert!(closed.lets_read(BOB) && closed.lets_read(7) && !closed.lets_read(8));
        assert_eq!(closed.base(), Acl::of_mode(0o700));
        assert_eq!(Acl::of_mode(0o4755).closed(&[]), Acl::of_mode(0o700));
    }

    #[test]
    fn a_mask_goes_on_to_hold_back_whom_it_held_back() {
        // user 7 has rwx and the group rw, but the mask is r.
        let held = Acl { users: BTreeMap::from([(7, 7)]), mask: Some(READ), ..Acl::of_mode(0o760) };
        let mut shared = held.clone();
        shared.allow(BOB);
        assert_eq!((shared.users[&7], shared.group, shared.mask), (READ, READ, Some(READ | EXECUTE)));
        shared.deny(BOB);
        assert_eq!((shared.users[&7], shared.group, shared.mask), (READ, READ, Some(READ)));
    }

    fn acls() -> impl Strategy<Value = Acl> {
        let ids = || prop::collection::btree_map(0u32..6, 0u8..8, 0..4);
        (0u32..0o1000, ids(), ids(), 0u8..8).prop_map(|(mode, users, groups, mask)| {
            let mut acl = Acl { users, groups, ..Acl::of_mode(mode) };
            acl.mask = (!acl.is_plain()).then_some(mask);
            acl
        })
    }

    /// What a user has who is in these groups; 9 stands for the owning one. As `acl(5)` says.
    fn effective(acl: &Acl, user: u32, groups: &[u32]) -> Vec<u8> {
        let mask = acl.masked();
        if let Some(own) = acl.users.get(&user) {
            return vec![own & mask];
        }
        let own = acl.groups.iter().filter(|(id, _)| groups.contains(id)).map(|(_, bits)| bits & mask);
        let owning = groups.contains(&9).then_some(acl.group & mask);
        let mut all: Vec<u8> = own.chain(owning).collect();
        if all.is_empty() {
            all.push(acl.other);
        }
        all
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(acl in acls()) {
            prop_assert_eq!(Acl::decode(&acl.encode()), Ok(acl));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Acl::decode(&bytes);
        }

        #[test]
        fn only_the_one_who_is_let_in_gets_something(acl in acls(), user in 0u32..6, groups in prop::collection::vec(0u32..10, 0..4)) {
            let mut changed = acl.clone();
            changed.allow(user);
            prop_assert!(changed.lets_read(user));
            // Twice is once.
            let mut again = changed.clone();
            again.allow(user);
            prop_assert_eq!(&again, &changed);
            for other in (0..7).filter(|other| *other != user) {
                prop_assert_eq!(effective(&changed, other, &groups), effective(&acl, other, &groups));
            }
            changed.deny(user);
            prop_assert!(!changed.names(user));
            for other in (0..7).filter(|other| *other != user) {
                prop_assert_eq!(effective(&changed, other, &groups), effective(&acl, other, &groups));
            }
        }

        #[test]
        fn sharing_and_no_more_sharing_leave_nothing(mode in 0u32..0o1000, users in prop::collection::vec(any::<u32>(), 0..5)) {
            let plain = Acl::of_mode(mode);
            let mut acl = plain.clone();
            users.iter().for_each(|user| acl.allow(*user));
            users.iter().for_each(|user| acl.deny(*user));
            prop_assert_eq!(acl, plain);
        }
    }
}
