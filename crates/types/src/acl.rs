//! POSIX access control lists, as Linux keeps them in extended attributes.
//!
//! ```text
//!   u32 version (2), then entries, little-endian:  u16 tag | u16 rights | u32 id
//!   in the order:  owner, users*, owning group, groups*, mask, others
//! ```
//! An object's *access list* decides who may do what, and its mode shows it: owner, mask, others. A directory's *default list*
//! is what is made in it begins with. A list that says no more than a mode is none.

use crate::{Errno, XATTR_BYTES_MAX};

/// Attributes that hold the lists.
pub const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
pub const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// Bits of [`crate::Attr::mode`] above those of `st_mode`: the object has a list of this kind.
pub const HAS_ACCESS_LIST: u32 = 1 << 16;
pub const HAS_DEFAULT_LIST: u32 = 1 << 17;

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about. The order is that of a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Whom {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    /// The most that users, groups and the owning group get.
    Mask,
    Others,
}

impl Whom {
    fn from_record(tag: u16, id: u32) -> Result<Whom, Errno> {
        Ok(match tag {
            0x01 => Whom::Owner,
            0x02 if id != NO_ID => Whom::User(id),
            0x04 => Whom::OwningGroup,
            0x08 if id != NO_ID => Whom::Group(id),
            0x10 => Whom::Mask,
            0x20 => Whom::Others,
            _ => return Err(Errno::EINVAL),
        })
    }

    fn record(self) -> (u16, u32) {
        match self {
            Whom::Owner => (0x01, NO_ID),
            Whom::User(id) => (0x02, id),
            Whom::OwningGroup => (0x04, NO_ID),
            Whom::Group(id) => (0x08, id),
            Whom::Mask => (0x10, NO_ID),
            Whom::Others => (0x20, NO_ID),
        }
    }

    /// Entries of one kind may stand in any order among themselves.
    fn kind(self) -> u16 {
        self.record().0
    }
}

/// A list that keeps the rules: one entry each for owner, owning group and others; with users or groups, a mask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<(Whom, u32)>);

/// Who asks, and for what.
pub struct Asker<'a> {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
}

impl Acl {
    /// The list in an attribute; `None` when it has no entries, which removes a list.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, Errno> {
        let (head, rest) = value.split_at_checked(HEADER_BYTES).ok_or(Errno::EINVAL)?;
        if head != VERSION.to_le_bytes()
            || value.len() > XATTR_BYTES_MAX
            || !rest.len().is_multiple_of(ENTRY_BYTES)
        {
            return Err(Errno::EINVAL);
        }
        let entries = rest.chunks_exact(ENTRY_BYTES).map(|entry| {
            let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let rights = u32::from(half(2));
            if rights > 7 { Err(Errno::EINVAL) } else { Ok((Whom::from_record(half(0), id)?, rights)) }
        });
        let acl = Acl(entries.collect::<Result<_, _>>()?);
        if acl.0.is_empty() {
            return Ok(None);
        }
        acl.check().map(Some)
    }

    fn check(self) -> Result<Acl, Errno> {
        let ordered = self.0.windows(2).all(|pair| {
            let named = matches!(pair[0].0, Whom::User(_) | Whom::Group(_));
            pair[0].0.kind() < pair[1].0.kind() || (named && pair[0].0.kind() == pair[1].0.kind())
        });
        let has = |whom| self.rights(whom).is_some();
        let named = self.0.iter().any(|(whom, _)| matches!(whom, Whom::User(_) | Whom::Group(_)));
        let whole =
            has(Whom::Owner) && has(Whom::OwningGroup) && has(Whom::Others) && (has(Whom::Mask) || !named);
        if ordered && whole { Ok(self) } else { Err(Errno::EINVAL) }
    }

    pub fn to_value(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (whom, rights) in &self.0 {
            let (tag, id) = whom.record();
            value.extend(tag.to_le_bytes());
            value.extend((*rights as u16).to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn rights(&self, whom: Whom) -> Option<u32> {
        self.0.iter().find(|entry| entry.0 == whom).map(|entry| entry.1)
    }

    fn set(&mut self, whom: Whom, rights: u32) {
        self.0.iter_mut().filter(|entry| entry.0 == whom).for_each(|entry| entry.1 = rights & 7);
    }

    /// The entry that the group's bits of the mode show.
    fn group_class(&self) -> Whom {
        if self.rights(Whom::Mask).is_some() { Whom::Mask } else { Whom::OwningGroup }
    }

    /// The permission bits (0777) that show this list.
    pub fn bits(&self) -> u32 {
        let of = |whom| self.rights(whom).unwrap_or(0);
        of(Whom::Owner) << 6 | of(self.group_class()) << 3 | of(Whom::Others)
    }

    /// True when the mode says all of it.
    pub fn is_a_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// The list after a chmod.
    pub fn with_bits(mut self, mode: u32) -> Acl {
        self.set(Whom::Owner, mode >> 6);
        self.set(self.group_class(), mode >> 3);
        self.set(Whom::Others, mode);
        self
    }

    /// The access list of what is made with `mode` in a directory that has this default list.
    pub fn handed_down(mut self, mode: u32) -> Acl {
        let class = self.group_class();
        for (whom, shift) in [(Whom::Owner, 6), (class, 3), (Whom::Others, 0)] {
            let rights = self.rights(whom).unwrap_or(0);
            self.set(whom, rights & (mode >> shift));
        }
        self
    }

    /// The list with other numbers for its users and groups.
    pub fn map_ids(mut self, user: impl Fn(u32) -> u32, group: impl Fn(u32) -> u32) -> Acl {
        for (whom, _) in &mut self.0 {
            match whom {
                Whom::User(id) => *id = user(*id),
                Whom::Group(id) => *id = group(*id),
                _ => {}
            }
        }
        self
    }

    /// Does somebody who is not the owner get all `wanted` rights? As acl(5) says: the first entry of a user's decides; of the groups
    /// he is in, one that has all of them.
    pub fn grants(&self, asker: &Asker<'_>, owning_group: u32, wanted: u32) -> bool {
        let mask = self.rights(Whom::Mask).unwrap_or(7);
        let has = |rights: u32| rights & wanted == wanted;
        if let Some(rights) = self.rights(Whom::User(asker.uid)) {
            return has(rights & mask);
        }
        let is_in = |gid: u32| asker.gid == gid || asker.groups.contains(&gid);
        let mut of_groups = self.0.iter().filter(|(whom, _)| match whom {
            Whom::OwningGroup => is_in(owning_group),
            Whom::Group(gid) => is_in(*gid),
            _ => false,
        });
        match of_groups.next() {
            Some(first) => has(first.1 & mask) || of_groups.any(|entry| has(entry.1 & mask)),
            None => has(self.rights(Whom::Others).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// u::rw-, u:1000:rw-, g::r--, g:50:rwx, m::rw-, o::---
    const VALUE: &[u8] =
        b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
        \x08\0\x07\0\x32\0\0\0\x10\0\x06\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

    fn acl() -> Acl {
        Acl::parse(VALUE).unwrap().unwrap()
    }

    #[test]
    fn lists_are_the_kernels_bytes() {
        let entries = [
            (Whom::Owner, 6),
            (Whom::User(1000), 6),
            (Whom::OwningGroup, 4),
            (Whom::Group(50), 7),
            (Whom::Mask, 6),
            (Whom::Others, 0),
        ];
        assert_eq!(acl(), Acl(entries.to_vec()));
        assert_eq!(acl().to_value(), VALUE);
        assert_eq!((acl().bits(), acl().is_a_mode()), (0o660, false));
        assert_eq!(Acl::parse(&VALUE[..4]), Ok(None));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let entry = |at: usize| 4 + 8 * at..12 + 8 * at;
        let without = |at: usize| [&VALUE[..entry(at).start], &VALUE[entry(at).end..]].concat();
        let changed = |at: usize, byte: u8| {
            let mut value = VALUE.to_vec();
            value[at] = byte;
            value
        };
        for value in [
            b"".to_vec(),
            VALUE[..3].to_vec(),
            VALUE[..11].to_vec(),
            changed(0, 1),
            changed(6, 8),
            changed(4, 0x40),
            without(0),
            without(2),
            without(4),
            without(5),
            [VALUE, &VALUE[entry(5)]].concat(),
            [&VALUE[..4], &VALUE[entry(1)], &VALUE[entry(0)], &VALUE[entry(2).start..]].concat(),
            // A user without a number.
            [&VALUE[..16], &[0xff; 4], &VALUE[20..]].concat(),
        ] {
            assert_eq!(Acl::parse(&value), Err(Errno::EINVAL), "{value:x?}");
        }
    }

    #[test]
    fn any_bytes_are_a_list_or_refused() {
        let mut seed = 1u64;
        for _ in 0..200_000 {
            let mut value = VALUE.to_vec();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (seed >> 33) as usize % value.len();
                value[at] = (seed >> 20) as u8 & 0x3f;
            }
            value.truncate(4 + 8 * ((seed >> 50) as usize % 7) + usize::from(seed >> 60 == 0));
            if let Ok(Some(list)) = Acl::parse(&value) {
                assert_eq!(Acl::parse(&list.to_value()), Ok(Some(list.clone())));
                assert_eq!(list.clone().with_bits(list.bits()), list);
            }
        }
    }

    #[test]
    fn chmod_changes_owner_mask_and_others() {
        let changed = acl().with_bits(0o751);
        assert_eq!((changed.bits(), changed.rights(Whom::OwningGroup)), (0o751, Some(4)));
        let plain = Acl(vec![(Whom::Owner, 6), (Whom::OwningGroup, 4), (Whom::Others, 4)]);
        assert!(plain.is_a_mode() && plain.with_bits(0o700).bits() == 0o700);
    }

    #[test]
    fn what_is_made_gets_what_list_and_mode_both_give() {
        let made = acl().handed_down(0o777);
        assert_eq!((made.bits(), &made), (0o660, &acl()));
        let made = acl().handed_down(0o640);
        assert_eq!((made.bits(), made.rights(Whom::User(1000))), (0o640, Some(6)));
    }

    #[test]
    fn entries_decide_as_acl_5_says() {
        let asks = |uid, groups: &[u32], wanted| acl().grants(&Asker { uid, gid: 1, groups }, 60, wanted);
        assert!(asks(1000, &[], 6) && !asks(1000, &[50], 1), "the user's own entry decides, and the mask");
        assert!(asks(2, &[60], 4) && !asks(2, &[60], 2), "the owning group");
        assert!(asks(2, &[50], 6) && !asks(2, &[50], 7), "a group, by the mask");
        assert!(asks(2, &[60, 50], 6), "one of several groups");
        assert!(!asks(2, &[], 4), "others");
    }

    #[test]
    fn ids_are_translated() {
        let moved = acl().map_ids(|id| id + 1, |id| id + 2);
        assert_eq!((moved.rights(Whom::User(1001)), moved.rights(Whom::Group(52))), (Some(6), Some(7)));
    }
}
