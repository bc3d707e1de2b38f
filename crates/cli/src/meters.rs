//! What a pool's nodes did during a phase of a run, and what limited it (INVENTORY A18): the daemons' meters at its beginning
//! and at its end.

use crate::side_by_side::each_daemon;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tidepool_client::Client;
use tidepool_wire::message::{Reply, Request};

/// How busy a resource has to be for it to be what limits.
const BUSY: f64 = 0.7;
/// A phase that is shorter says nothing: counters of devices move in steps of several milliseconds.
const PHASE_MIN_MS: u64 = 100;

/// The meters of all daemons that answered at one time.
pub struct Reading(Vec<Meter>);

/// Those of one daemon.
#[derive(Clone, Debug, Default)]
struct Meter {
    daemon: u16,
    host: String,
    /// Daemons of one machine see the same device and interfaces.
    boot_id: String,
    values: BTreeMap<String, u64>,
}

impl Reading {
    pub fn take(client: &Client) -> Reading {
        let ask = |daemon: u16| match client.request(daemon, &Request::Status {}) {
            Ok(Reply::Report { status }) => Some(Meter {
                daemon,
                host: client.host(daemon).to_string(),
                boot_id: client.pool().members[usize::from(daemon)].boot_id.clone(),
                values: status.counters.into_iter().collect(),
            }),
            _ => None,
        };
        Reading(each_daemon(client, ask).into_iter().flatten().collect())
    }

    /// What happened from this reading to a later one.
    pub fn until(&self, later: &Reading) -> Use {
        let mut usage = Use::default();
        let mut processors: BTreeMap<&str, (f64, &str)> = BTreeMap::new();
        for after in &later.0 {
            let Some(before) = self.0.iter().find(|before| before.daemon == after.daemon) else { continue };
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
            usage.requests += grown(before, after, "requests").unwrap_or(0);
        }
        processors.values().for_each(|(share, host)| usage.daemons.raise(*share, host));
        usage
    }
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
    /// themselves.
    pub daemons: Busiest,
    pub requests: u64,
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

    /// For people; nothing when nothing limits.
    pub fn words(&self) -> Option<String> {
        let (what, share, place) = self.bottleneck()?;
        Some(format!("limited by the {what} of {place}, {:.0} % busy", share.min(1.0) * 100.0))
    }

    pub fn json(&self) -> Value {
        json!({
            "device": self.device.json(), "network": self.network.json(), "daemons": self.daemons.json(),
            "requests": self.requests, "bottleneck": self.bottleneck().map(|(what, ..)| what),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(daemon: u16, host: &str, values: &[(&str, u64)]) -> Meter {
        let values = values.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        Meter { daemon, host: host.into(), boot_id: host.into(), values }
    }

    fn used(before: &[(&str, u64)], after: &[(&str, u64)]) -> Use {
        Reading(vec![meter(0, "n1", before)]).until(&Reading(vec![meter(0, "n1", after)]))
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
        assert_eq!(with(1800, 0, 0).words().unwrap(), "limited by the device of n1, 90 % busy");
        // 200 MB in two seconds are 0.8 of 1 Gbit/s.
        assert_eq!(
            with(100, 200_000_000, 0).words().unwrap(),
            "limited by the network of n1 eth0, 80 % busy"
        );
        // Both cores, for all but 400 ms.
        assert_eq!(with(100, 0, 3600).json()["bottleneck"], "daemons");
        assert_eq!(with(100, 0, 3600).daemons, Busiest(Some((0.9, "n1".into()))));
        let idle = with(100, 0, 10);
        assert_eq!((idle.words(), idle.requests), (None, 20));
        assert_eq!(idle.json()["device"]["share"], 0.05);
    }

    #[test]
    fn daemons_of_one_node_count_together_and_what_is_not_told_is_null() {
        let two = |cpu: u64, clock: u64| {
            let values = [("clock_ms", clock), ("cpu_ms", cpu), ("cores", 4)];
            Reading(vec![meter(0, "n1", &values), meter(1, "n1", &values)])
        };
        let usage = two(0, 0).until(&two(1600, 1000));
        assert_eq!(usage.daemons, Busiest(Some((0.8, "n1".into()))));
        assert_eq!(usage.json()["device"], Value::Null);
        // A daemon that was started again, or that answers only once, tells nothing; nor does a moment.
        assert_eq!(two(500, 0).until(&two(0, 1000)).daemons, Busiest(Some((0.0, "n1".into()))));
        assert_eq!(two(0, 0).until(&Reading(Vec::new())), Use::default());
        assert_eq!(two(0, 0).until(&two(50, 50)), Use::default());
    }
}
