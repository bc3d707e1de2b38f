//! Identities: objects, daemons, pool instances, client sessions, transactions.

use std::fmt;

/// Position of a daemon in the pool's member list; 0-based.
pub type DaemonIndex = u16;

/// Stable id of one object (file, directory, link, ...) of a pool.
///
/// The upper 16 bits name the *home* daemon, which keeps the object's record and its
/// first chunk; the lower 48 bits count up there. An object keeps its id when it is
/// renamed, so a rename never moves data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory: home 0, count 1. FUSE demands the value 1 as well.
    pub const ROOT: Ino = Ino(1);
    const COUNT_BITS: u32 = 48;
    /// Largest count a home may hand out.
    pub const COUNT_MAX: u64 = (1 << Self::COUNT_BITS) - 1;

    /// Builds the id of the object number `count` of daemon `home`.
    pub fn new(home: DaemonIndex, count: u64) -> Ino {
        assert!(count <= Self::COUNT_MAX, "object count {count} overflows its field");
        Ino((u64::from(home) << Self::COUNT_BITS) | count)
    }

    /// Daemon that keeps the object's record.
    pub fn home(self) -> DaemonIndex {
        (self.0 >> Self::COUNT_BITS) as DaemonIndex
    }

    /// Running number of the object at its home.
    pub fn count(self) -> u64 {
        self.0 & Self::COUNT_MAX
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.home(), self.count())
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The inode numbers that programs see of a pool's objects.
///
/// Programs of 32 bits that know no larger files get EOVERFLOW for a number beyond 32 bits, from `stat` and `readdir`. So the
/// home takes only as many bits as the pool has daemons for, as long as the count leaves room:
///
/// ```text
///   0                      | home | count    32 bits in all
///   home | count                             as the id is, where the count is too large for that
///   0    | 1 | count                         the same of home 0, told from the first form by its highest bit
/// ```
/// Every client of a pool makes the same number of an id, and no two ids have one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeNumbers {
    count_bits: u32,
}

impl InodeNumbers {
    const BITS: u32 = 32;
    /// Counts do not get that far: a million objects a second would take four years.
    const APART: u64 = 1 << (Ino::COUNT_BITS - 1);

    /// Those of a pool with so many daemons.
    pub fn of(daemons: usize) -> InodeNumbers {
        let home_bits = usize::BITS - daemons.saturating_sub(1).leading_zeros();
        InodeNumbers { count_bits: Self::BITS.saturating_sub(home_bits) }
    }

    pub fn number(self, ino: Ino) -> u64 {
        let (home, count) = (u64::from(ino.home()), ino.count());
        match () {
            () if count >> self.count_bits == 0 => (home << self.count_bits) | count,
            () if home == 0 => ino.0 | Self::APART,
            () => ino.0,
        }
    }

    /// The object that a number is of.
    pub fn ino(self, number: u64) -> Ino {
        if number >> Self::BITS == 0 {
            let count = number & ((1 << self.count_bits) - 1);
            return Ino::new((number >> self.count_bits) as DaemonIndex, count);
        }
        let ino = Ino(number);
        if ino.home() == 0 { Ino(number & !Self::APART) } else { ino }
    }
}

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl $name {
            /// Reads the 32 hexadecimal digits that `Display` writes.
            pub fn parse(text: &str) -> Option<$name> {
                if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return None;
                }
                let mut id = [0u8; 16];
                for (i, byte) in id.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
                }
                Some($name(id))
            }
        }
    };
}

id128!(
    /// One pool, from its start to its end (and over `--keep` restarts).
    InstanceId
);
id128!(
    /// One client process. Its open handles and locks end with its last connection.
    SessionId
);
id128!(
    /// One multi-daemon change (rename, rmdir); see `docs/consistency.md`.
    TxnId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ino_packs_home_and_count() {
        let ino = Ino::new(0xffff, Ino::COUNT_MAX);
        assert_eq!(ino.0, u64::MAX);
        assert_eq!((ino.home(), ino.count()), (0xffff, Ino::COUNT_MAX));
        assert_eq!(Ino::ROOT.home(), 0);
    }

    #[test]
    fn numbers_fit_into_32_bits_as_long_as_counts_leave_room() {
        let of = |daemons, home, count| InodeNumbers::of(daemons).number(Ino::new(home, count));
        for daemons in [1, 2, 3, 1024, crate::DAEMONS_MAX] {
            assert_eq!(InodeNumbers::of(daemons).number(Ino::ROOT), 1, "{daemons}");
        }
        assert_eq!(of(1, 0, 0xffff_ffff), 0xffff_ffff);
        assert_eq!(of(3, 2, 5), 0x8000_0005);
        assert_eq!(of(crate::DAEMONS_MAX, 0xffff, 0xffff), 0xffff_ffff);
        assert_eq!(of(3, 2, 1 << 30), 0x0002_0000_4000_0000);
        assert_eq!(of(3, 0, 1 << 30), 0x0000_8000_4000_0000);
    }

    #[test]
    fn no_two_ids_have_one_number() {
        let edges = |bits: u32| [0, 1, (1 << bits) - 1, 1 << bits, (1 << bits) + 1];
        let counts: Vec<u64> = (0..47).flat_map(edges).filter(|count| *count < InodeNumbers::APART).collect();
        for daemons in [1, 2, 3, 4, 5, 200, 65_536usize] {
            let numbers = InodeNumbers::of(daemons);
            let mut seen = std::collections::HashMap::new();
            for home in [0, 1, 2, daemons / 2, daemons - 1] {
                for &count in counts.iter().filter(|_| home < daemons) {
                    let ino = Ino::new(home as DaemonIndex, count);
                    let number = numbers.number(ino);
                    assert_eq!(numbers.ino(number), ino, "{daemons} {number:x}");
                    assert_eq!(*seen.entry(number).or_insert(ino), ino, "{daemons} {number:x}");
                }
            }
        }
    }

    #[test]
    fn ids_print_and_parse() {
        let id = InstanceId(*b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff");
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(InstanceId::parse(&id.to_string()), Some(id));
        assert_eq!(InstanceId::parse("zz"), None);
        assert_eq!(InstanceId::parse(&"+1".repeat(16)), None);
    }
}
