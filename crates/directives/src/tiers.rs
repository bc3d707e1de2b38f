//! Keys of a pool about shared storage below its own: `burst`, `pfs` and what is said of them.

use crate::model::{FLUSHES, Fs, PoolRequest, TierRequest, YES_NO};
use crate::parse::Reader;
use crate::script::Spoken;
use crate::values::{Refused, of_table, refuse};
use tidepool_iosched::by_name;
use tidepool_types::{parse_bandwidth, parse_phase_bytes};

/// Longest path of a directory, in bytes.
const PATH_BYTES_MAX: usize = 4096;

pub(crate) const KEYS: [&str; 7] =
    ["burst", "pfs", "strategy", "flush", "no-local", "phase-bytes", "link-bandwidth"];

impl Reader {
    pub(crate) fn tier_key(&mut self, tiers: &mut TierRequest, key: &'static str, word: &Spoken) {
        match key {
            "burst" => tiers.burst = self.bare(word, directory),
            "pfs" => tiers.pfs = self.bare(word, directory),
            "strategy" => tiers.strategy = self.bare(word, strategy),
            "flush" => tiers.flush = self.bare(word, |text| of_table(&FLUSHES, text)),
            "phase-bytes" => {
                tiers.phase_bytes =
                    self.bare(word, |text| parse_phase_bytes(text).map_err(|why| (why, None)));
            }
            "link-bandwidth" => {
                tiers.link_bandwidth =
                    self.bare(word, |text| parse_bandwidth(text).map_err(|why| (why, None)));
            }
            _ => tiers.no_local = self.bare(word, |text| of_table(&YES_NO, text)),
        }
    }
}

/// All nodes have to find the same directory, whatever theirs is.
fn directory(text: &str) -> Result<String, Refused> {
    if text.len() > PATH_BYTES_MAX {
        return refuse(format!("the path of a directory has at most {PATH_BYTES_MAX} bytes"));
    }
    if text.starts_with('$') || text.starts_with('~') {
        return refuse(format!("'{text}': no variable is expanded here; write the directory's whole path"));
    }
    if text.split('/').any(|name| name == "..") {
        return refuse(format!("'{text}' has '..' in it; write where it leads"));
    }
    match text.starts_with('/') {
        true => Ok(text.into()),
        false => refuse(format!("'{text}' does not start with '/'; write the directory's whole path")),
    }
}

fn strategy(text: &str) -> Result<String, Refused> {
    let meant = |error: tidepool_iosched::UnknownStrategy| {
        let known = tidepool_iosched::names().collect::<Vec<_>>().join(", ");
        (format!("'{text}' is none of {known}"), error.meant.map(String::from))
    };
    by_name(text).map(|strategy| strategy.name().into()).map_err(meant)
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !matches!(*name, "" | "."))
}

/// What the keys say of each other, at the key that is too much. `is_said`: a key is there, whether or not its value could
/// be read.
pub(crate) fn contradictions(
    pool: &PoolRequest,
    is_said: impl Fn(&str) -> bool,
) -> Vec<(&'static str, String)> {
    let tiers = &pool.tiers;
    if let Some(fs) = pool.fs.as_ref().filter(|fs| **fs != Fs::Tidepool) {
        let text = |key| format!("'{key}' is for fs=tidepool, not for fs={fs}; leave one of the two away");
        return KEYS.into_iter().map(|key| (key, text(key))).collect();
    }
    let mut found = Vec::new();
    if !is_said("burst") && !is_said("pfs") {
        let text =
            |key| format!("'{key}' is for pools with shared storage: name it with pfs=, burst= or both");
        let of_shared = KEYS.into_iter().filter(|key| !["burst", "pfs"].contains(key));
        found.extend(of_shared.map(|key| (key, text(key))));
    }
    if tiers.strategy.as_deref() == Some("baseline") && tiers.burst.is_some() && !is_said("pfs") {
        let text = "strategy=baseline uses the parallel file system only; name it with pfs=";
        found.push(("strategy", text.into()));
    }
    if let (Some(burst), Some(pfs)) = (&tiers.burst, &tiers.pfs)
        && names(burst).eq(names(pfs))
    {
        found.push(("pfs", format!("'{pfs}' is the burst buffer, too; leave one of the two away")));
    }
    found
}
