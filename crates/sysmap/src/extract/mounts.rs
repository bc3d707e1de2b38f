//! What is mounted where.

use super::{Extractor, Found, Gaps, Source, told};
use crate::record::{Class, Missing};
use crate::system::{System, clip};
use serde::{Deserialize, Serialize};

const MOUNTINFO: &str = "/proc/self/mountinfo";

#[derive(Serialize, Debug, PartialEq, Clone)]
pub(super) struct Mounts {
    /// In the order they were mounted: a later one hides an earlier one at the same place.
    pub mounts: Vec<Mount>,
}

#[derive(Serialize, Debug, PartialEq, Clone)]
pub(super) struct Mount {
    pub target: String,
    /// As the kernel calls it: `ext4`, `lustre`.
    pub kind: String,
    /// A device, a server's path, or a word.
    pub source: String,
    /// `major:minor` of the device.
    pub device: String,
    pub read_only: bool,
}

pub const MOUNTS: Extractor = Extractor {
    name: "mounts",
    about: "mount points with device and type",
    class: Class::Static,
    version: 1,
    sources: &[
        Source { name: "proc", about: MOUNTINFO, read: |system, gaps| told(by_proc(system, gaps)) },
        Source { name: "findmnt", about: "the program findmnt", read: |system, _| told(by_findmnt(system)) },
    ],
};

pub(super) fn by_proc(system: &System, gaps: &mut Gaps) -> Found<Mounts> {
    let text = system.text(MOUNTINFO)?;
    let mut mounts = Vec::new();
    for line in text.lines() {
        match mount(line) {
            Some(mount) => mounts.push(mount),
            None => gaps.push(Missing::new(MOUNTINFO, format!("'{}' is no mount", clip(line)))),
        }
    }
    Ok(Mounts { mounts })
}

/// A line as proc(5) describes it.
fn mount(line: &str) -> Option<Mount> {
    let (own, of_kind) = line.split_once(" - ")?;
    let own: Vec<&str> = own.split(' ').collect();
    let mut of_kind = of_kind.split(' ');
    let (kind, source) = (of_kind.next()?, of_kind.next()?);
    Some(Mount {
        target: plain(own.get(4)?),
        kind: kind.into(),
        source: plain(source),
        device: (*own.get(2)?).into(),
        read_only: own.get(5)?.split(',').any(|option| option == "ro"),
    })
}

/// A path with the kernel's escapes (`\040` is a space) taken back.
fn plain(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\').and_then(octal);
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[derive(Deserialize)]
struct Listing {
    filesystems: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    target: String,
    source: Option<String>,
    fstype: String,
    options: String,
    #[serde(rename = "maj:min")]
    device: String,
}

fn by_findmnt(system: &System) -> Found<Mounts> {
    let args = ["--json", "--list", "--output", "TARGET,SOURCE,FSTYPE,OPTIONS,MAJ:MIN", "--nofsroot"];
    let text = system.output("findmnt", &args)?;
    let listing: Listing = serde_json::from_str(&text).map_err(|error| Missing::new("findmnt", error))?;
    let mount = |listed: Listed| Mount {
        target: listed.target,
        kind: listed.fstype,
        source: listed.source.unwrap_or_default(),
        device: listed.device.trim().into(),
        read_only: listed.options.split(',').any(|option| option == "ro"),
    };
    Ok(Mounts { mounts: listing.filesystems.into_iter().map(mount).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line =
            r"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 - ext3 /dev/ro\134ot rw,errors=continue";
        let mount = mount(line).unwrap();
        assert_eq!((mount.target.as_str(), mount.kind.as_str()), ("/mnt two", "ext3"));
        assert_eq!(
            (mount.source.as_str(), mount.device.as_str(), mount.read_only),
            ("/dev/ro\\ot", "98:0", false)
        );
        for line in ["", " - ", "36 35 98:0 / /m - ext3 x", "a - b"] {
            assert!(super::mount(line).is_none(), "{line}");
        }
        assert_eq!(plain("\\04"), "\\04");
        assert_eq!(plain("\\777x"), "\\777x");
    }
}
