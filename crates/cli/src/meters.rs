//! What a pool's nodes did during a phase of a run, and what limited it (INVENTORY A18): the daemons' meters at its beginning
//! and at its end.

use crate::side_by_side::each_daemon;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tidepool_client::Client;
use tidepool_types::format_size;
use tidepool_wire::message::{Reply, Request};

/// How busy a resource has to be for it to be what limits.
const BUSY: f64 = 0.7;
/// A phase that is shorter says nothing: counters of devices move in steps of several milliseconds.
const PHASE_MIN_MS: u64 = 100;

/// The meters of all daemons that answered at one time.
pub struct Reading {
    meters: Vec<Meter>,
    /// How many daemons the pool has.
    daemons: usize,
}

/// Those of one daemon.
#[derive(Clone, Debug, Default)]
struct Meter {
    daemon: u16,
    host: String,
    /// Daemons of one machine see the same device and interfaces.
    boot_id: String,
    pid: u32,
    values: BTreeMap<String, u64>,
}

impl Reading {
    pub fn take(client: &Client) -> Reading {
        let ask = |daemon: u16| match client.request(daemon, &Request::Status {}) {
            Ok(Reply::Report { status }) => Some(Meter {
                daemon,
                host: client.host(daemon).to_string(),
                boot_id: client.pool().members[usize::from(daemon)].boot_id.clone(),
                pid: status.pid,
                values: status.counters.into_iter().collect(),
            }),
            _ => None,
        };
        let meters = each_daemon(client, ask).into_iter().flatten().collect();
        Reading { meters, daemons: client.members() }
    }

    /// What happened from this reading to a later one.
    pub fn until(&self, later: &Reading) -> Use {
        let both: Vec<(&Meter, &Meter)> =
            later.meters.iter().filter_map(|after| Some((self.of_same(after)?, after))).collect();
        let done = |name| -> Option<u64> {
            let all = both.iter().map(|(before, after)| grown(before, after, name));
            if both.len() == later.daemons { all.sum() } else { None }
        };
        Use {
            requests: done("requests"),
            written: done("bytes_written"),
            read: done("bytes_read"),
            ..busy(&both)
        }
    }

    /// That of the same daemon; none of one that has been started again.
    fn of_same(&self, after: &Meter) -> Option<&Meter> {
        let is_same = |before: &&Meter| before.daemon == after.daemon && before.pid == after.pid;
        self.meters.iter().find(is_same)
    }
}

/// How busy things were, of those that can be told.
fn busy(both: &[(&Meter, &Meter)]) -> Use {
    let mut usage = Use::default();
    let mut processors: BTreeMap<&str, (f64, &str)> = BTreeMap::new();
    for (before, after) in both {
        let Some(passed) = grown(before, after, "clock_ms").filter(|ms| *ms >= PHASE_MIN_MS) else {
            continue;
        };
        let passed = passed as f64;
        if let Some(busy) = grown(before, after, "device_busy_ms") {
            usage.device.raise(busy as f64 / passed, &after.host);
        }
        for (name, share) in interfaces(before, after, passed) {
            usage.network.raise(share, &format!("{} {name}", after.host));
        }
        let cores = after.values.get("cores").copied().unwrap_or(1).max(1) as f64;
        let spent = grown(before, after, "cpu_ms").unwrap_or(0) as f64 / passed / cores;
        let of_node = processors.entry(&after.boot_id).or_insert((0.0, &after.host));
        of_node.0 += spent;
    }
    processors.values().for_each(|(share, host)| usage.daemons.raise(*share, host));
    usage
}

fn grown(before: &Meter, after: &Meter, name: &str) -> Option<u64> {
    after.values.get(name)?.checked_sub(*before.values.get(name)?)
}

/// The busier direction of each interface whose speed is known, as a share of it.
fn interfaces<'a>(before: &'a Meter, after: &'a Meter, passed_ms: f64) -> Vec<(&'a str, f64)> {
    let names: BTreeSet<&str> =
        after.values.keys().filter_map(|key| key.strip_prefix("net:")?.strip_suffix(":mbit")).collect();
    let share = |name: &'a str| {
        let moved = |way| grown(before, after, &format!("net:{name}:{way}"));
        let megabits = *after.values.get(&format!("net:{name}:mbit"))? as f64;
        let bytes = moved("in").max(moved("out"))? as f64;
        (megabits > 0.0).then(|| (name, bytes * 8.0 / (megabits * 1e3 * passed_ms)))
    };
    names.into_iter().filter_map(share).collect()
}

/// How busy the busiest of something was, and where that is; none when nobody tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Busiest(Option<(f64, String)>);

impl Busiest {
    fn raise(&mut self, share: f64, place: &str) {
        if self.0.as_ref().is_none_or(|(known, _)| share > *known) {
            self.0 = Some((share, place.to_string()));
        }
    }

    fn json(&self) -> Value {
        self.0.as_ref().map_or(Value::Null, |(share, place)| json!({"share": share, "where": place}))
    }
}

/// Shares of the time in which things were busy, or of what they can do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Use {
    /// The devices below the stores.
    pub device: Busiest,
    pub network: Busiest,
    /// Processor time of a node's daemons, of all its cores: names, attributes, checksums, data that programs do not reach by
    /// themselves. What programs spend in the daemons' files is their own time, which is not told.
    pub daemons: Busiest,
    /// What was done. None unless all daemons told both times: a part of it would pass for all.
    pub requests: Option<u64>,
    /// Bytes, whichever way they went, as the daemons count them (`docs/guide/observing.md`).
    pub written: Option<u64>,
    pub read: Option<u64>,
}

impl Use {
    /// What limits: the busiest, if it is really busy.
    fn bottleneck(&self) -> Option<(&'static str, f64, &str)> {
        let all = [("device", &self.device), ("network", &self.network), ("daemons", &self.daemons)];
        let told = all.into_iter().filter_map(|(what, busiest)| {
            let (share, place) = busiest.0.as_ref()?;
            Some((what, *share, place.as_str()))
        });
        told.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, share, _)| *share >= BUSY)
    }

    /// What limits, for people; nothing when nothing does.
    pub fn limit(&self) -> Option<String> {
        let (what, share, place) = self.bottleneck()?;
        Some(format!("limited by the {what} of {place}, {:.0} % busy", share.min(1.0) * 100.0))
    }

    /// What was moved, for people; nothing when that is nothing, or not known.
    pub fn moved(&self) -> Option<String> {
        let (written, read) = (self.written?, self.read?);
        (written > 0 || read > 0)
            .then(|| format!("{} written, {} read in the pool", format_size(written), format_size(read)))
    }

    pub fn json(&self) -> Value {
        json!({
            "device": self.device.json(), "network": self.network.json(), "daemons": self.daemons.json(),
            "requests": self.requests, "bytes_written": self.written, "bytes_read": self.read,
            "bottleneck": self.bottleneck().map(|(what, ..)| what),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(daemon: u16, host: &str, values: &[(&str, u64)]) -> Meter {
        let values = values.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        Meter { daemon, host: host.into(), boot_id: host.into(), pid: 1, values }
    }

    fn reading(meters: Vec<Meter>) -> Reading {
        Reading { daemons: meters.len(), meters }
    }

    fn used(before: &[(&str, u64)], after: &[(&str, u64)]) -> Use {
        reading(vec![meter(0, "n1", before)]).until(&reading(vec![meter(0, "n1", after)]))
    }

    #[test]
    fn what_was_done_is_told_of_all_daemons_or_not_at_all() {
        let of = |daemon: u16, clock: u64, moved: u64| {
            let done = [("bytes_written", moved), ("bytes_read", 2 * moved), ("requests", moved / 10)];
            meter(daemon, "n1", &[&done[..], &[("clock_ms", clock)]].concat())
        };
        let before = || reading(vec![of(0, 0, 0), of(1, 0, 1000)]);
        // Also of a phase that is too short to say how busy anything was.
        let all = before().until(&reading(vec![of(0, 20, 2048), of(1, 20, 1000)]));
        assert_eq!((all.written, all.read, all.requests), (Some(2048), Some(4096), Some(204)));
        assert_eq!(all.moved().unwrap(), "2.0 KiB written, 4.0 KiB read in the pool");
        assert_eq!((all.limit(), all.json()["bytes_read"].as_u64()), (None, Some(4096)));
        assert_eq!(before().until(&before()).moved(), None, "nothing was moved");

        let again = Meter { pid: 2, ..of(1, 20, 5000) };
        let silent = || Reading { meters: vec![of(0, 20, 2048)], daemons: 2 };
        let parts = [
            before().until(&reading(vec![of(0, 20, 2048), again])),
            before().until(&silent()),
            silent().until(&reading(vec![of(0, 40, 4096), of(1, 40, 1000)])),
        ];
        for part in parts {
            assert_eq!((part.written, part.read, part.requests, part.moved()), (None, None, None, None));
            assert_eq!(part.json()["bytes_written"], Value::Null);
        }
    }

    #[test]
    fn a18_what_is_busiest_limits() {
        let before = [
            ("clock_ms", 1000),
            ("cpu_ms", 10),
            ("cores", 2),
            ("device_busy_ms", 500),
            ("requests", 5),
            ("net:eth0:in", 0),
            ("net:eth0:out", 0),
            ("net:eth0:mbit", 1000),
            ("net:idle:in", 0),
        ];
        let with = |device: u64, bytes_out: u64, cpu: u64| {
            let after = [
                ("clock_ms", 3000),
                ("cpu_ms", 10 + cpu),
                ("cores", 2),
                ("device_busy_ms", 500 + device),
                ("requests", 25),
                ("net:eth0:in", 1000),
                ("net:eth0:out", bytes_out),
                ("net:eth0:mbit", 1000),
                ("net:idle:in", 9),
            ];
            used(&before, &after)
        };
        assert_eq!(with(1800, 0, 0).limit().unwrap(), "limited by the device of n1, 90 % busy");
        // 200 MB in two seconds are 0.8 of 1 Gbit/s.
        assert_eq!(
            with(100, 200_000_000, 0).limit().unwrap(),
            "limited by the network of n1 eth0, 80 % busy"
        );
        // Both cores, for all but 400 ms.
        assert_eq!(with(100, 0, 3600).json()["bottleneck"], "daemons");
        assert_eq!(with(100, 0, 3600).daemons, Busiest(Some((0.9, "n1".into()))));
        let idle = with(100, 0, 10);
        assert_eq!((idle.limit(), idle.requests), (None, Some(20)));
        assert_eq!(idle.json()["device"]["share"], 0.05);
    }

    #[test]
    fn daemons_of_one_node_count_together_and_what_is_not_told_is_null() {
        let two = |cpu: u64, clock: u64| {
            let values = [("clock_ms", clock), ("cpu_ms", cpu), ("cores", 4)];
            reading(vec![meter(0, "n1", &values), meter(1, "n1", &values)])
        };
        let usage = two(0, 0).until(&two(1600, 1000));
        assert_eq!(usage.daemons, Busiest(Some((0.8, "n1".into()))));
        assert_eq!(usage.json()["device"], Value::Null);
        // A daemon that was started again, or that answers only once, tells nothing; nor does a moment.
        assert_eq!(two(500, 0).until(&two(0, 1000)).daemons, Busiest(Some((0.0, "n1".into()))));
        assert_eq!(two(0, 0).until(&Reading { meters: Vec::new(), daemons: 2 }), Use::default());
        assert_eq!(two(0, 0).until(&two(50, 50)), Use::default());
    }
}
