//! `KEY=VALUE`, and what a pool's keys mean.

use crate::model::{CLIENTS, Fs, LIFETIMES, MODES, PoolRequest};
use crate::near::near;
use crate::parse::{Args, Reader};
use crate::script::Spoken;
use crate::tiers;
use crate::told::{At, Problem};
use crate::values::{Refused, count, of_table, refuse};
use std::collections::BTreeMap;
use tidepool_plan::Deploy;
use tidepool_types::{Encryption, LayoutError, Placement, check_pool_name, parse_size, show_bytes};

/// Nodes of a pool.
pub const NODES_MAX: usize = crate::mapping::NODES_MAX;

pub(crate) const KEYS: [&str; 19] = [
    "size",
    "nodes",
    "deploy",
    "mode",
    "chunk-size",
    "placement",
    "stripe",
    "client",
    "encrypt",
    "lifetime",
    "name",
    "fs",
    "burst",
    "pfs",
    "strategy",
    "flush",
    "no-local",
    "phase-bytes",
    "link-bandwidth",
];
const PLACEMENTS: [(&str, Placement); 4] = [
    ("wide", Placement::Wide),
    ("local", Placement::Local),
    ("weighted", Placement::Weighted),
    ("group", Placement::Group),
];

impl Spoken {
    /// What stands before `=`, if that is text.
    pub fn key(&self) -> Option<&str> {
        let (key, _) = self.halves()?;
        std::str::from_utf8(key).ok()
    }

    pub(crate) fn halves(&self) -> Option<(&[u8], &[u8])> {
        let equals = self.text.iter().position(|b| *b == b'=')?;
        Some((&self.text[..equals], &self.text[equals + 1..]))
    }
}

/// The keys of one directive, and where they are.
pub(crate) struct Pairs {
    known: &'static [&'static str],
    seen: BTreeMap<&'static str, At>,
}

impl Pairs {
    pub fn new(known: &'static [&'static str]) -> Pairs {
        Pairs { known, seen: BTreeMap::new() }
    }

    pub fn is_whole(&self) -> bool {
        self.seen.len() == self.known.len()
    }

    /// Keys that are not there.
    pub fn missing(&self) -> String {
        let missing = self.known.iter().filter(|key| !self.seen.contains_key(*key));
        missing.map(|key| format!("{key}=")).collect::<Vec<_>>().join(" and ")
    }
}

impl Reader {
    /// A key that there is, for the first time, and its value.
    pub fn pair(&mut self, pairs: &mut Pairs, word: &Spoken) -> Option<(&'static str, Spoken)> {
        let shown = show_bytes(&word.text);
        let known = || pairs.known.join(", ");
        let Some((key, value)) = word.halves() else {
            let problem =
                Problem::new(&word.at, format!("'{shown}' is not KEY=VALUE; the keys are {}", known()));
            self.fail(problem.meant(without_key(pairs.known, &shown)));
            return None;
        };
        let key = String::from_utf8_lossy(key);
        let Some(key) = pairs.known.iter().find(|known| **known == key) else {
            let meant = near(&key, pairs.known.iter().copied());
            let more = if meant.is_none() { format!("; the keys are {}", known()) } else { String::new() };
            self.fail(Problem::new(&word.at, format!("unknown key '{key}'{more}")).meant(meant));
            return None;
        };
        if let Some(first) = pairs.seen.insert(key, word.at.clone()) {
            self.fail(Problem::new(&word.at, format!("'{key}' is there twice; the first is in {first}")));
            return None;
        }
        if value.is_empty() {
            self.fail(Problem::new(&word.at, format!("'{key}=' has no value")));
            return None;
        }
        Some((key, Spoken { text: value.to_vec(), ..word.clone() }))
    }

    pub fn pool(&mut self, args: &mut Args<'_>) -> PoolRequest {
        let mut pool = PoolRequest::default();
        let mut pairs = Pairs::new(&KEYS);
        for word in args.words.by_ref() {
            if let Some((key, value)) = self.pair(&mut pairs, word) {
                self.pool_key(&mut pool, key, &value);
            }
        }
        let of_tiers = tiers::contradictions(&pool, |key| pairs.seen.contains_key(key));
        for (key, text) in contradictions(&pool).into_iter().chain(of_tiers) {
            if let Some(at) = pairs.seen.get(key) {
                self.fail(Problem::new(at, text));
            }
        }
        pool
    }

    fn pool_key(&mut self, pool: &mut PoolRequest, key: &'static str, word: &Spoken) {
        match key {
            "size" => pool.size = self.value(word, size),
            "name" => pool.name = self.value(word, name),
            "nodes" => pool.nodes = self.bare(word, |text| count(text, NODES_MAX)),
            "deploy" => {
                pool.deploy = self.bare(word, |text| text.parse().map_err(|why| says("deploy", text, why)))
            }
            "mode" => pool.mode = self.bare(word, |text| of_table(&MODES, text)),
            "chunk-size" => pool.chunk_size = self.bare(word, |text| text.parse().map_err(|why| (why, None))),
            "placement" => pool.placement = self.bare(word, |text| of_table(&PLACEMENTS, text)),
            "stripe" => pool.stripe = self.bare(word, stripe),
            "client" => pool.client = self.bare(word, |text| of_table(&CLIENTS, text)),
            "encrypt" => pool.encrypt = self.bare(word, encryption),
            "lifetime" => pool.lifetime = self.bare(word, |text| of_table(&LIFETIMES, text)),
            "fs" => pool.fs = self.bare(word, fs),
            other => self.tier_key(&mut pool.tiers, other, word),
        }
    }

    pub(crate) fn bare<T>(
        &mut self,
        word: &Spoken,
        parse: impl FnOnce(&str) -> Result<T, Refused>,
    ) -> Option<T> {
        self.value(word, parse).map(|said| said.value)
    }
}

/// What a word without `=` was probably meant to be.
fn without_key(known: &[&str], word: &str) -> Option<String> {
    if known.contains(&"size") && parse_size(word).is_ok() {
        return Some(format!("size={word}"));
    }
    near(word, known.iter().copied()).map(|key| format!("{key}=..."))
}

fn says(key: &str, text: &str, why: String) -> Refused {
    (format!("{key} '{text}': {why}"), None)
}

fn size(text: &str) -> Result<u64, Refused> {
    match parse_size(text) {
        Ok(0) => refuse("a pool of 0 bytes holds nothing"),
        Ok(bytes) => Ok(bytes),
        Err(error) => refuse(error.to_string()),
    }
}

fn name(text: &str) -> Result<String, Refused> {
    check_pool_name(text).map(|()| text.to_string()).map_err(|why| (why, None))
}

fn stripe(text: &str) -> Result<u16, Refused> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| (format!("stripe '{text}': write a number from 0 to 65535"), None))
}

fn encryption(text: &str) -> Result<Encryption, Refused> {
    let meant = || near(text, ["off", "full"]).map(String::from);
    Encryption::parse(text).map_err(|why| (why.to_string(), meant()))
}

fn fs(text: &str) -> Result<Fs, Refused> {
    const KINDS: [(&str, Fs); 2] = [("tidepool", Fs::Tidepool), ("local", Fs::Local)];
    if let Some(program) = text.strip_prefix("script:").filter(|program| !program.is_empty()) {
        return Ok(Fs::Script(program.into()));
    }
    let known = KINDS.into_iter().find(|(kind, _)| *kind == text);
    known.map(|(_, fs)| fs).ok_or_else(|| {
        let meant = near(text, ["tidepool", "local", "script:PROGRAM"]).map(String::from);
        (format!("'{text}' is none of tidepool, local, script:PROGRAM"), meant)
    })
}

/// What the keys of a pool say of each other, at the key that is too much.
fn contradictions(pool: &PoolRequest) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    match pool.placement {
        Some(other) if other != Placement::Wide && pool.stripe.is_some() => {
            found.push(("stripe", LayoutError::StripeNeedsWide(other).to_string()));
        }
        _ => {}
    }
    if pool.placement == Some(Placement::Local) && pool.chunk_size.is_some() {
        found.push(("chunk-size", LayoutError::LocalIsNotCut.to_string()));
    }
    match (pool.deploy, pool.nodes) {
        (Some(Deploy::Subset(n)), Some(nodes)) if n > nodes => {
            found.push(("deploy", format!("daemons on {n} nodes are too many for a pool on {nodes}")));
        }
        (Some(Deploy::Dedicated(n)), Some(nodes)) if n >= nodes => {
            found
                .push(("deploy", format!("of {nodes} nodes, {n} for daemons alone leave none for programs")));
        }
        _ => {}
    }
    if let Some(fs) = pool.fs.as_ref().filter(|fs| **fs != Fs::Tidepool) {
        // Nobody would keep to them.
        for key in ["size", "mode", "chunk-size", "placement", "stripe", "encrypt"] {
            found.push((
                key,
                format!("'{key}' is for fs=tidepool, not for fs={fs}; leave one of the two away"),
            ));
        }
    }
    if pool.fs == Some(Fs::Local) && pool.nodes.is_some_and(|nodes| nodes > 1) {
        found.push(("nodes", "fs=local is a directory of one node".into()));
    }
    found
}
