//! Attributes of files as user metadata of objects: `docs/formats/16-objects.md`.

use crate::METADATA_BYTES_MAX;
use std::collections::HashMap;
use std::fmt::Write;
use tidepool_stage::{SetMeta, Xattr};
use tidepool_types::{FileKind, TimeSpec};

const MODE: &str = "mode";
const UID: &str = "uid";
const GID: &str = "gid";
const MTIME: &str = "mtime";
const RDEV: &str = "tidepool-rdev";
const XATTRS: &str = "tidepool-xattrs";
/// What S3 counts besides a value: its name with what stands before it.
const NAME_PREFIX: usize = "x-amz-meta-".len();

/// Types of files in a mode, as in inode(7).
const TYPES: [(u32, FileKind); 6] = [
    (0o100_000, FileKind::Regular),
    (0o040_000, FileKind::Directory),
    (0o120_000, FileKind::Symlink),
    (0o010_000, FileKind::Fifo),
    (0o020_000, FileKind::CharDevice),
    (0o060_000, FileKind::BlockDevice),
];
const TYPE_BITS: u32 = 0o170_000;

/// What an object says about the file it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attrs {
    pub kind: Option<FileKind>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<TimeSpec>,
    pub rdev: u64,
    pub xattrs: Vec<Xattr>,
}

impl Attrs {
    pub fn of_kind(kind: FileKind) -> Attrs {
        Attrs { kind: Some(kind), ..Attrs::default() }
    }

    pub fn apply(&mut self, set: &SetMeta) {
        if let Some((uid, gid)) = set.owner {
            (self.uid, self.gid) = (Some(uid), Some(gid));
        }
        self.mode = set.mode.or(self.mode);
        self.mtime = set.times.map(|(_, mtime)| mtime).or(self.mtime);
    }

    /// Notes an extended attribute; false when there is no room for it.
    pub fn add_xattr(&mut self, name: &[u8], value: &[u8]) -> bool {
        let before = self.xattrs.clone();
        self.xattrs.retain(|(there, _)| there != name);
        self.xattrs.push((name.to_vec(), value.to_vec()));
        self.xattrs.sort();
        let fits = bytes(&self.encode()) <= METADATA_BYTES_MAX;
        if !fits {
            self.xattrs = before;
        }
        fits
    }

    pub fn encode(&self) -> HashMap<String, String> {
        let kind = self.kind.unwrap_or(FileKind::Regular);
        let bits = TYPES.iter().find(|(_, k)| *k == kind).map_or(0, |(bits, _)| *bits);
        let default = match kind {
            FileKind::Directory => 0o755,
            FileKind::Symlink => 0o777,
            _ => 0o644,
        };
        let mut map = HashMap::from([(MODE.into(), (bits | self.mode.unwrap_or(default)).to_string())]);
        let mut put = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                map.insert(key.into(), value);
            }
        };
        put(UID, self.uid.map(|uid| uid.to_string()));
        put(GID, self.gid.map(|gid| gid.to_string()));
        put(MTIME, self.mtime.map(|t| format!("{}.{:09}", t.sec, t.nsec)));
        put(RDEV, (self.rdev != 0).then(|| self.rdev.to_string()));
        put(XATTRS, (!self.xattrs.is_empty()).then(|| encode_xattrs(&self.xattrs)));
        map
    }

    /// Whatever somebody else has written there; what is not understood is not there.
    pub fn decode(map: &HashMap<String, String>) -> Attrs {
        let number = |key: &str| map.get(key).and_then(|value| value.parse::<u64>().ok());
        let small = |key: &str| number(key).and_then(|value| u32::try_from(value).ok());
        let mode = small(MODE);
        let kind = mode.and_then(|m| TYPES.iter().find(|(bits, _)| *bits == m & TYPE_BITS));
        Attrs {
            kind: kind.map(|(_, kind)| *kind),
            mode: mode.map(|mode| mode & 0o7777),
            uid: small(UID),
            gid: small(GID),
            mtime: map.get(MTIME).and_then(|text| parse_time(text)),
            rdev: number(RDEV).unwrap_or(0),
            xattrs: map.get(XATTRS).and_then(|text| decode_xattrs(text)).unwrap_or_default(),
        }
    }
}

fn bytes(map: &HashMap<String, String>) -> usize {
    map.iter().map(|(name, value)| NAME_PREFIX + name.len() + value.len()).sum()
}

/// Seconds, perhaps with a fraction of up to nine digits.
fn parse_time(text: &str) -> Option<TimeSpec> {
    let (sec, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nsec: u32 = format!("{fraction:0<9}").parse().ok()?;
    Some(TimeSpec { sec: sec.parse().ok()?, nsec })
}

fn encode_xattrs(xattrs: &[Xattr]) -> String {
    let pairs: Vec<String> =
        xattrs.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
    pairs.join("&")
}

fn decode_xattrs(text: &str) -> Option<Vec<Xattr>> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((unescape(name)?, unescape(value)?))
    };
    text.split('&').map(pair).collect()
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Bytes of a text with %XX in it.
pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = after else { return None };
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect()
    }

    #[test]
    fn the_metadata_is_what_the_format_says() {
        let attrs = Attrs {
            kind: Some(FileKind::Regular),
            mode: Some(0o4755),
            uid: Some(1000),
            gid: Some(100),
            mtime: Some(TimeSpec { sec: 1_000_000_000, nsec: 5 }),
            rdev: 0,
            xattrs: vec![(b"user.a b".to_vec(), b"\0=%".to_vec())],
        };
        let written = map(&[
            ("mode", "35309"),
            ("uid", "1000"),
            ("gid", "100"),
            ("mtime", "1000000000.000000005"),
            ("tidepool-xattrs", "user.a%20b=%00%3D%25"),
        ]);
        assert_eq!(attrs.encode(), written);
        assert_eq!(Attrs::decode(&written), attrs);
        assert_eq!(Attrs::of_kind(FileKind::Symlink).encode(), map(&[("mode", "41471")]));
    }

    #[test]
    fn what_others_write_is_read_as_far_as_it_makes_sense() {
        let odd = map(&[("mode", "x"), ("uid", "-1"), ("mtime", "12.5"), ("tidepool-xattrs", "%%")]);
        let read = Attrs::decode(&odd);
        assert_eq!(read.mtime, Some(TimeSpec { sec: 12, nsec: 500_000_000 }));
        assert_eq!(Attrs { mtime: None, ..read }, Attrs::default());
    }

    #[test]
    fn what_has_no_room_is_refused_and_the_rest_stays() {
        let mut attrs = Attrs::of_kind(FileKind::Regular);
        assert!(attrs.add_xattr(b"user.a", b"1"));
        assert!(!attrs.add_xattr(b"user.b", &[0; 1000]));
        assert_eq!(attrs.xattrs, vec![(b"user.a".to_vec(), b"1".to_vec())]);
    }

    proptest! {
        #[test]
        fn any_metadata_is_read_without_harm(pairs in proptest::collection::hash_map("mode|uid|mtime|tidepool-xattrs", ".{0,40}", 0..4)) {
            let _ = Attrs::decode(&pairs);
        }

        #[test]
        fn any_bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = escape(&bytes);
            prop_assert!(text.is_ascii());
            prop_assert_eq!(unescape(&text), Some(bytes));
        }
    }
}
