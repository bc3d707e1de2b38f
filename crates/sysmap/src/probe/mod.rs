//! Measured extractors: what a node's directories take and give, and what comes through to other nodes.
//!
//! Looking at a node costs nothing; these write to disks and fill networks, for seconds. So `collect` never runs them:
//! somebody has to ask, and says where. Each has limits of bytes and time, repeats what it does, and tells the spread.

mod network;
mod noise;
mod storage;

pub use network::{
    COUNT_MAX, LOOPBACK, Listener, PORT, Peer, loopback as measure_loopback, peer as measure_peer,
};
pub use storage::{SIZE_MIN, Store, is_public, measure as measure_store};

use crate::record::{Class, Missing, Record};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_types::format_size;

/// Most bytes of a run, unless somebody says otherwise.
pub const SIZE_DEFAULT: u64 = 256 << 20;
/// Most bytes of a run at all.
pub const SIZE_MAX: u64 = 64 << 30;
/// Fewer repeats tell nothing of the spread.
pub const RUNS_MIN: usize = 5;
pub const RUNS_MAX: usize = 100;
/// How long one directory or peer may take, unless somebody says otherwise.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// Entries of earlier measurements that are kept.
const KEPT_MAX: usize = 1000;

/// What is measured on request only.
pub struct Measured {
    pub name: &'static str,
    pub about: &'static str,
    /// The version of the data's form.
    pub version: u32,
    /// The list in the data, and what tells its elements apart.
    list: &'static str,
    key: &'static str,
}

/// Where measured records are from.
pub const SOURCE: &str = "probe";

pub const STORAGE_RATES: Measured = Measured {
    name: "storage-rates",
    about: "what directories were measured to take and give",
    version: 1,
    list: "stores",
    key: "path",
};

pub const NETWORK_RATES: Measured = Measured {
    name: "network-rates",
    about: "what was measured between this node and others",
    version: 1,
    list: "peers",
    key: "host",
};

/// All measured extractors.
pub const MEASURED: &[Measured] = &[STORAGE_RATES, NETWORK_RATES];

impl Measured {
    /// A record of what was measured now.
    pub fn record(&self, found: &[impl Serialize], missing: Vec<Missing>, taken_ms: u64) -> Record {
        let found: Vec<Value> =
            found.iter().map(|one| serde_json::to_value(one).unwrap_or_default()).collect();
        let data = Value::Object(Map::from_iter([(self.list.to_string(), Value::Array(found))]));
        let (extractor, source) = (self.name.to_string(), Some(SOURCE.to_string()));
        Record { extractor, version: self.version, class: Class::Dynamic, source, taken_ms, data, missing }
    }

    /// The same record with what was measured of other directories or peers before. What is not understood is let go.
    pub fn merged(&self, mut record: Record, before: Option<&Value>) -> Record {
        let Some(new) = record.data[self.list].as_array_mut() else { return record };
        let before = before.and_then(|data| data[self.list].as_array());
        let name = |one: &Value| one[self.key].as_str().map(String::from);
        let others = before.into_iter().flatten();
        let others: Vec<Value> = others
            .filter(|old| name(old).is_some_and(|old| new.iter().all(|new| name(new).as_ref() != Some(&old))))
            .take(KEPT_MAX)
            .cloned()
            .collect();
        new.extend(others);
        new.sort_by_cached_key(name);
        record
    }
}

/// How much and how long is measured.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Bytes of a run; by default [`SIZE_DEFAULT`], or what there is room for.
    pub size: Option<u64>,
    pub runs: usize,
    /// How long all runs of one directory or peer may take.
    pub limit: Duration,
}

impl How {
    fn slice(&self) -> Duration {
        // Each run goes both ways, and small requests take their turn.
        self.limit / u32::try_from(2 * self.runs + 1).unwrap_or(u32::MAX)
    }
}

/// Set when nobody wants to know any more.
#[derive(Clone, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    fn check(&self) -> Result<(), ProbeError> {
        if self.0.load(Ordering::Acquire) { Err(ProbeError::Stopped) } else { Ok(()) }
    }
}

/// A quantity that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// Of a sample.
    pub stdev: f64,
    pub runs: usize,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (runs, (&min, &max)) = (values.len(), values.first().zip(values.last())?);
        let median = f64::midpoint(values[(runs - 1) / 2], values[runs / 2]);
        let mean = values.iter().sum::<f64>() / runs as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let stdev = if runs > 1 { (squares / (runs - 1) as f64).sqrt() } else { 0.0 };
        Some(Spread { median, min, max, stdev, runs })
    }
}

/// Why nothing was measured.
#[derive(Debug)]
pub enum ProbeError {
    /// Somebody has asked for that.
    Stopped,
    Io {
        /// A path or a peer.
        what: String,
        doing: &'static str,
        source: io::Error,
        /// What to do, where that is known.
        advice: &'static str,
    },
    /// The share of what is free that may be taken is less than what is needed.
    NoRoom { path: PathBuf, needed: u64, most: u64, free: u64 },
    /// The other side does not know the secret, or talks of something else.
    Peer { peer: String, why: &'static str },
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Stopped => f.write_str("stopped"),
            ProbeError::Io { what, doing, source, advice: "" } => write!(f, "{what}: {doing}: {source}"),
            ProbeError::Io { what, doing, source, advice } => {
                write!(f, "{what}: {doing}: {source}; {advice}")
            }
            ProbeError::NoRoom { path, needed, most, free } => write!(
                f,
                "{}: {} are free, of which at most {} are taken to measure; {} are wanted: make room, or say a smaller --size (at least {})",
                path.display(),
                format_size(*free),
                format_size(*most),
                format_size(*needed),
                format_size(SIZE_MIN),
            ),
            ProbeError::Peer { peer, why } => write!(f, "{peer}: {why}"),
        }
    }
}

impl std::error::Error for ProbeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spread_has_its_median_between_its_ends() {
        assert_eq!(Spread::of(vec![]), None);
        let one = Spread { median: 3.0, min: 3.0, max: 3.0, stdev: 0.0, runs: 1 };
        assert_eq!(Spread::of(vec![3.0]), Some(one));
        let five = Spread::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((five.median, five.min, five.max, five.runs), (3.0, 1.0, 5.0, 5));
        assert!((five.stdev - 2.5f64.sqrt()).abs() < 1e-12, "{five:?}");
        assert_eq!(Spread::of(vec![4.0, 1.0]).unwrap().median, 2.5);
    }

    #[test]
    fn what_was_measured_elsewhere_stays() {
        let record = |stores: Value| STORAGE_RATES.record(stores.as_array().unwrap(), vec![], 1);
        let before =
            json!({"stores": [{"path": "/tmp", "write": 1}, {"path": "/local", "write": 2}, {"pth": 1}, 7]});
        let new = record(json!([{"path": "/local", "write": 3}]));
        let merged = STORAGE_RATES.merged(new.clone(), Some(&before)).data;
        assert_eq!(merged, json!({"stores": [{"path": "/local", "write": 3}, {"path": "/tmp", "write": 1}]}));
        for strange in [json!(null), json!({"stores": "x"}), json!([1])] {
            assert_eq!(STORAGE_RATES.merged(new.clone(), Some(&strange)), new);
        }
        assert_eq!(STORAGE_RATES.merged(new.clone(), None), new);
    }
}
