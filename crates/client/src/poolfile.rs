//! The pool file: all that a client needs to reach a pool. Mode 0600, because it holds the
//! secret. Format: `docs/formats/04-pool-file.md`.

use crate::{HINTS_MAX, Hint, Wanted};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tidepool_placement::Placer;
use tidepool_rundir::{FileWant, read_file};
use tidepool_transport::{ANSWER_MS, ANSWER_MS_DEFAULT, Secret};
use tidepool_types::{Encryption, InstanceId, Layout, Placement};
use tidepool_wire::message::Member;

/// Version of the format this release reads and writes.
const VERSION: u32 = 2;
/// Largest pool file read: 65536 members of about 1 KiB.
const BYTES_MAX: u64 = 64 << 20;

/// How strictly the pool follows POSIX.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolMode {
    /// Permissions are checked.
    #[default]
    Posix,
    /// Permissions are not checked (S2 §2.2.1).
    Relaxed,
    /// As GekkoFS (S2 §2.2.1): no permission checks, and rename and links are I/O errors.
    Compat,
}

impl PoolMode {
    /// True when permissions are checked.
    pub fn checks_permissions(self) -> bool {
        self == PoolMode::Posix
    }
}

/// Contents of a pool file, checked.
#[derive(Clone, Debug)]
pub struct PoolFile {
    pub instance: InstanceId,
    pub secret: Secret,
    /// Absolute path under which programs see the pool.
    pub mount: PathBuf,
    /// Of files in directories that say nothing else.
    pub layout: Layout,
    /// Of the daemons, in their order; none when all count the same.
    pub weights: Vec<u32>,
    /// The name of each daemon's group, such as its leaf switch; none without groups.
    pub groups: Vec<String>,
    pub hints: Vec<Hint>,
    /// Clients tell a file's home later and together what they wrote elsewhere.
    pub size_cache: bool,
    pub mode: PoolMode,
    pub members: Vec<Member>,
    /// Provider of libfabric that the daemons offer; none when empty.
    pub fabric: String,
    /// Of what goes over TCP.
    pub encryption: Encryption,
    /// How long clients wait for a daemon that says nothing, in milliseconds; in [`ANSWER_MS`].
    pub answer_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    version: u32,
    instance: String,
    secret: String,
    mount: PathBuf,
    layout: RawWanted,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    weights: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hints: Vec<RawHint>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    size_cache: bool,
    mode: PoolMode,
    members: Vec<RawMember>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    fabric: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encrypt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMember {
    host: String,
    boot_id: String,
    tcp: String,
    unix: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWanted {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chunk_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stripe: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHint {
    pattern: String,
    layout: RawWanted,
}

impl RawWanted {
    fn of(wanted: &Wanted) -> RawWanted {
        RawWanted {
            placement: wanted.placement.map(|p| p.word().into()),
            chunk_size: wanted.chunk_size,
            stripe: wanted.stripe,
            group: wanted.group,
        }
    }

    fn read(self) -> Result<Wanted, String> {
        let placement = match self.placement {
            Some(word) => Some(Placement::parse(&word).ok_or(format!("placement '{word}' is not known"))?),
            None => None,
        };
        Ok(Wanted { placement, chunk_size: self.chunk_size, stripe: self.stripe, group: self.group })
    }
}

/// Why a pool file cannot be used.
#[derive(Debug)]
pub struct PoolFileError {
    path: PathBuf,
    why: String,
}

impl fmt::Display for PoolFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool file {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for PoolFileError {}

impl PoolFile {
    /// Reads a pool file. It names those who get the data, so it is believed only where it is the user's own, or root's, and
    /// nobody else can write to it.
    pub fn read(path: &Path) -> Result<PoolFile, PoolFileError> {
        let fail = |why: String| PoolFileError { path: path.into(), why };
        let uid = rustix::process::geteuid().as_raw();
        let want = FileWant { uid, or_root: true, bytes_max: BYTES_MAX };
        let text = read_file(path, &want).map_err(|error| match error.is_missing() {
            true => fail("is not there; is the pool running?".into()),
            false => fail(error.why.to_string()),
        })?;
        PoolFile::parse(&text).map_err(fail)
    }

    /// Reads the JSON text of a pool file; the error says what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<PoolFile, String> {
        let raw: Raw = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        if raw.version != VERSION {
            return Err(format!("has version {}, this release reads {VERSION}", raw.version));
        }
        let instance = InstanceId::parse(&raw.instance).ok_or("instance is not 32 hexadecimal digits")?;
        let secret = Secret::from_hex(&raw.secret).ok_or("secret is not 64 hexadecimal digits")?;
        if !raw.mount.is_absolute() || raw.mount.parent().is_none() {
            return Err("mount is not an absolute path below /".into());
        }
        let wanted = raw.layout.read()?;
        let layout = wanted.on(Layout::default()).map_err(|e| format!("layout: {e}"))?;
        if raw.hints.len() > HINTS_MAX {
            return Err(format!("more than {HINTS_MAX} hints"));
        }
        let hint = |hint: RawHint| Hint::new(&hint.pattern, hint.layout.read()?);
        let hints: Vec<Hint> = raw.hints.into_iter().map(hint).collect::<Result<_, _>>()?;
        if raw.members.is_empty() || raw.members.len() > tidepool_types::DAEMONS_MAX {
            return Err("members must name 1 to 65536 daemons".into());
        }
        let encryption = raw.encrypt.as_deref().map_or(Ok(Encryption::default()), Encryption::parse);
        let encryption = encryption.map_err(|e| format!("encrypt: {e}"))?;
        if !raw.fabric.is_empty() && !encryption.is_off() {
            return Err("encrypt: nothing encrypts what goes over a fabric".into());
        }
        let answer_ms = raw.answer_ms.unwrap_or(ANSWER_MS_DEFAULT);
        if !ANSWER_MS.contains(&answer_ms) {
            let (least, most) = (ANSWER_MS.start(), ANSWER_MS.end());
            return Err(format!("answer_ms: {answer_ms} is not from {least} to {most}"));
        }
        let placer = placer(raw.members.len(), &raw.weights, &raw.groups)?;
        hints.iter().map(|hint| &hint.wanted).chain([&wanted]).try_for_each(|w| possible(w, &placer))?;
        let members = raw.members.into_iter().enumerate().map(|(index, m)| Member {
            index: index as u16,
            host: m.host,
            boot_id: m.boot_id,
            tcp: m.tcp,
            unix: m.unix,
        });
        Ok(PoolFile {
            instance,
            secret,
            mount: raw.mount,
            layout,
            weights: raw.weights,
            groups: raw.groups,
            hints,
            size_cache: raw.size_cache,
            mode: raw.mode,
            members: members.collect(),
            fabric: raw.fabric,
            encryption,
            answer_ms,
        })
    }

    pub fn to_json(&self) -> String {
        let members = self.members.iter().map(|m| RawMember {
            host: m.host.clone(),
            boot_id: m.boot_id.clone(),
            tcp: m.tcp.clone(),
            unix: m.unix.clone(),
        });
        let hint = |hint: &Hint| RawHint { pattern: hint.pattern(), layout: RawWanted::of(&hint.wanted) };
        let raw = Raw {
            version: VERSION,
            instance: self.instance.to_string(),
            secret: self.secret.to_hex(),
            mount: self.mount.clone(),
            layout: RawWanted::of(&Wanted::from(self.layout)),
            weights: self.weights.clone(),
            groups: self.groups.clone(),
            hints: self.hints.iter().map(hint).collect(),
            size_cache: self.size_cache,
            mode: self.mode,
            members: members.collect(),
            fabric: self.fabric.clone(),
            encrypt: (!self.encryption.is_off()).then(|| self.encryption.word().into()),
            answer_ms: (self.answer_ms != ANSWER_MS_DEFAULT).then_some(self.answer_ms),
        };
        serde_json::to_string_pretty(&raw).expect("strings and numbers always serialize")
    }

    /// Who owns what.
    pub(crate) fn placer(&self) -> Result<Placer, String> {
        placer(self.members.len(), &self.weights, &self.groups)
    }

    /// The number of the group of this name.
    pub fn group_number(&self, name: &str) -> Option<u16> {
        group_names(&self.groups).iter().position(|known| *known == name).map(|at| at as u16)
    }

    /// Writes the file with mode 0600 under a temporary name and renames it.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let temporary = path.with_extension("tmp");
        let _ = std::fs::remove_file(&temporary);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(self.to_json().as_bytes())?;
        std::fs::rename(&temporary, path)
    }
}

/// Longest name of a group, in bytes.
const GROUP_NAME_MAX: usize = 255;

/// The names of groups, each once, in the order of their numbers: that of their first daemons.
pub fn group_names(groups: &[String]) -> Vec<&str> {
    let mut seen = HashSet::new();
    groups.iter().map(String::as_str).filter(|name| seen.insert(*name)).collect()
}

/// Who owns what in a pool of `members` daemons with these weights and names of groups, checked.
pub fn placer(members: usize, weights: &[u32], groups: &[String]) -> Result<Placer, String> {
    let nameless =
        |name: &&String| name.is_empty() || name.len() > GROUP_NAME_MAX || name.contains(char::is_control);
    if let Some(name) = groups.iter().find(nameless) {
        return Err(format!("groups: {name:?} is no name; write 1 to {GROUP_NAME_MAX} printable characters"));
    }
    let numbers: HashMap<&str, usize> =
        group_names(groups).into_iter().enumerate().map(|(number, name)| (name, number)).collect();
    let number = |name: &String| u16::try_from(numbers[name.as_str()]).unwrap_or(u16::MAX);
    let group_of: Vec<u16> = groups.iter().map(number).collect();
    let placer = Placer::new(members, weights).map_err(|e| format!("weights: {e}"))?;
    placer.grouped(&group_of).map_err(|e| format!("groups: {e}"))
}

/// Whether a pool can give what is wanted of its daemons.
pub fn possible(wanted: &Wanted, placer: &Placer) -> Result<(), String> {
    let grouped = wanted.placement == Some(Placement::Group) || wanted.group.is_some();
    match wanted.group {
        _ if wanted.placement == Some(Placement::Weighted) && !placer.is_weighted() => {
            Err("a placement is 'weighted', but the daemons have no weights".into())
        }
        _ if grouped && !placer.is_grouped() => {
            Err("a placement is 'group', but the daemons have no groups".into())
        }
        Some(number) if placer.group(number).is_empty() => {
            Err(format!("there is no group {number}, which a layout names"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PoolFile {
        PoolFile {
            instance: InstanceId([3; 16]),
            secret: Secret::from_hex(&"ab".repeat(32)).unwrap(),
            mount: "/tmp/pool".into(),
            layout: Layout::default(),
            weights: vec![3],
            groups: vec!["leaf1".into()],
            hints: vec![Hint::new("*.h5", Wanted { stripe: Some(2), ..Wanted::default() }).unwrap()],
            size_cache: true,
            mode: PoolMode::Posix,
            members: vec![Member {
                index: 0,
                host: "n1".into(),
                boot_id: "b".into(),
                tcp: String::new(),
                unix: "/s".into(),
            }],
            fabric: String::new(),
            encryption: Encryption::Off,
            answer_ms: 7_000,
        }
    }

    #[test]
    fn a_written_file_reads_back() {
        let again = PoolFile::parse(sample().to_json().as_bytes()).unwrap();
        assert_eq!(
            (again.layout, &again.weights, &again.hints),
            (sample().layout, &sample().weights, &sample().hints)
        );
        assert!(again.size_cache);
        assert_eq!(again.members, sample().members);
        assert_eq!(again.answer_ms, 7_000);
        let usual = PoolFile { answer_ms: ANSWER_MS_DEFAULT, ..sample() }.to_json();
        assert!(!usual.contains("answer"), "releases without it read the file");
        assert_eq!(PoolFile::parse(usual.as_bytes()).unwrap().answer_ms, ANSWER_MS_DEFAULT);
        assert_eq!((again.instance, again.secret), (sample().instance, sample().secret));
        assert!(!sample().to_json().contains("fabric"), "releases without it read the file");
        let with = PoolFile { fabric: "net".into(), ..sample() };
        assert_eq!(PoolFile::parse(with.to_json().as_bytes()).unwrap().fabric, "net");
        let both = PoolFile { encryption: Encryption::Full, ..with };
        assert!(PoolFile::parse(both.to_json().as_bytes()).unwrap_err().contains("fabric"));
        let full = PoolFile { encryption: Encryption::Full, ..sample() };
        assert_eq!(PoolFile::parse(full.to_json().as_bytes()).unwrap().encryption, Encryption::Full);
    }

    #[test]
    fn every_layout_is_written_and_read() {
        let groups = [None, Some(0)].map(|number| Layout::group(1 << 20, number).unwrap());
        let others = [Layout::LOCAL, Layout::weighted(1 << 20).unwrap(), Layout::wide(4096, 9).unwrap()];
        for layout in groups.into_iter().chain(others) {
            let text = PoolFile { layout, ..sample() }.to_json();
            assert_eq!(PoolFile::parse(text.as_bytes()).unwrap().layout, layout);
        }
        let unweighted =
            PoolFile { layout: Layout::weighted(1 << 20).unwrap(), weights: Vec::new(), ..sample() };
        let error = PoolFile::parse(unweighted.to_json().as_bytes()).unwrap_err();
        assert!(error.contains("no weights"), "{error}");
        let ungrouped =
            PoolFile { layout: Layout::group(1 << 20, None).unwrap(), groups: Vec::new(), ..sample() };
        let error = PoolFile::parse(ungrouped.to_json().as_bytes()).unwrap_err();
        assert!(error.contains("no groups"), "{error}");
    }

    #[test]
    fn groups_are_numbered_by_their_first_daemons() {
        let groups = ["b", "a", "b", "c"].map(String::from);
        assert_eq!(group_names(&groups), ["b", "a", "c"]);
        let placer = placer(4, &[], &groups).unwrap();
        assert_eq!((0..4).map(|d| placer.group_of(d)).collect::<Vec<_>>(), [0, 1, 0, 2].map(Some));
        let file = PoolFile { groups: groups.to_vec(), ..sample() };
        assert_eq!((file.group_number("c"), file.group_number("d")), (Some(2), None));
    }

    #[test]
    fn mistakes_are_named() {
        let good = sample().to_json();
        for (from, to, word) in [
            ("\"version\": 2", "\"version\": 9", "version 9"),
            ("\"mount\": \"/tmp/pool\"", "\"mount\": \"pool\"", "absolute"),
            ("524288", "1000", "power of two"),
            ("\"wide\"", "\"wild\"", "'wild'"),
            ("*.h5", "a/b", "not paths"),
            ("3\n  ]", "0\n  ]", "all weights are 0"),
            ("3\n  ]", "3, 3\n  ]", "2 weights for 1 daemons"),
            ("\"leaf1\"", "\"\"", "is no name"),
            ("\"leaf1\"", "\"leaf1\", \"leaf1\"", "2 groups for 1 daemons"),
            (
                "\"wide\",\n    \"chunk_size\": 524288,\n    \"stripe\": 0",
                "\"group\", \"group\": 1",
                "no group 1",
            ),
            ("\"mode\"", "\"modes\"", "modes"),
            ("\"answer_ms\": 7000", "\"answer_ms\": 999", "999 is not from 1000 to 3600000"),
            ("\"answer_ms\": 7000", "\"answer_ms\": 3600001", "3600001 is not from"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good);
            let error = PoolFile::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
