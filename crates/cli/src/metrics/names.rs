//! Names for Prometheus, and how they come from what daemons count. `docs/guide/observing.md` lists them.

use super::text::{Families, Labels, Name, Type};
use tidepool_wire::message::DaemonStatus;

const fn gauge(name: &'static str, help: &'static str) -> Name {
    Name { name, of: Type::Gauge, help }
}

const fn counter(name: &'static str, help: &'static str) -> Name {
    Name { name, of: Type::Counter, help }
}

pub const UP: Name = gauge("tidepool_daemon_up", "Whether the daemon answers");
const TROUBLE: Name = gauge("tidepool_daemon_trouble", "Whether the daemon is in trouble");
const TOTAL: Name = gauge("tidepool_daemon_space_bytes", "Space of the daemon's store");
const FREE: Name = gauge("tidepool_daemon_free_bytes", "Free space of the daemon's store");
const USED: Name = gauge("tidepool_daemon_used_bytes", "Bytes of data");
const OBJECTS: Name = gauge("tidepool_daemon_objects", "Files, directories and links");
const SESSIONS: Name = gauge("tidepool_daemon_sessions", "Clients");
const HANDLES: Name = gauge("tidepool_daemon_open_handles", "Open files");
const NET: Name = counter("tidepool_daemon_network_bytes_total", "Bytes of a network interface of the node");
const SPEED: Name =
    gauge("tidepool_daemon_network_speed_bytes_per_second", "Speed of a network interface of the node");
const TIER: Name = gauge("tidepool_daemon_tier_bytes", "Bytes that lie on a tier");
const OTHER: Name = Name {
    name: "tidepool_daemon_other",
    of: Type::Untyped,
    help: "What else the daemon counts, by its own name",
};

pub const TIER_WRITE: Name = gauge("tidepool_tier_write_bytes_per_second", "What all pools write to a tier");
pub const TIER_FLUSH: Name =
    gauge("tidepool_tier_flush_bytes_per_second", "What all pools flush from or to a tier");
pub const TIER_USERS: Name = gauge("tidepool_tier_users", "Pools that write to a tier");
pub const TIER_PROCESSES: Name = gauge("tidepool_tier_processes", "Processes that write to a tier");
pub const TIER_USE: Name =
    gauge("tidepool_tier_utilisation_ratio", "What is moved, as a part of the most that was measured");
pub const TIER_FAIR: Name =
    gauge("tidepool_tier_fairness_ratio", "Jain's index of what pools have of what they would have alone");
pub const SLOWDOWN: Name =
    gauge("tidepool_pool_slowdown_ratio", "What a pool would have alone, by what it has");
pub const HELD: Name =
    gauge("tidepool_pool_held_back_ratio", "The part of its slowdown that its own turn or share makes");
pub const BLAME: Name =
    gauge("tidepool_pool_blame_ratio", "The part of its slowdown that another pool makes");
pub const ALONE: Name = gauge(
    "tidepool_pool_alone_bytes_per_second",
    "What a pool would have alone, by a curve or its best phase",
);
pub const WRITE: Name = gauge("tidepool_pool_write_bytes_per_second", "What a pool's programs write");
pub const READ: Name = gauge("tidepool_pool_read_bytes_per_second", "What a pool's programs read");
pub const FLUSH: Name = gauge("tidepool_pool_flush_bytes_per_second", "What a pool flushes");
pub const PROCESSES: Name = gauge("tidepool_pool_processes", "Processes that take part in a pool's phase");
pub const WAITS: Name = gauge("tidepool_pool_waits", "Whether a pool waits for its turn");

/// Counters by the daemons' names: how they are called here, and by what they are divided.
const COUNTERS: &[(&str, Name, f64)] = &[
    ("requests", counter("tidepool_daemon_requests_total", "Requests"), 1.0),
    ("failures", counter("tidepool_daemon_failures_total", "Requests that failed"), 1.0),
    ("bytes_read", counter("tidepool_daemon_read_bytes_total", "Bytes read by programs"), 1.0),
    ("bytes_written", counter("tidepool_daemon_written_bytes_total", "Bytes written by programs"), 1.0),
    ("bytes_copied", counter("tidepool_daemon_copied_bytes_total", "Bytes copied in memory"), 1.0),
    ("connections", counter("tidepool_daemon_connections_total", "Connections"), 1.0),
    ("refused", counter("tidepool_daemon_refused_total", "Connections that were refused"), 1.0),
    ("objects_dropped", counter("tidepool_daemon_objects_dropped_total", "Objects removed"), 1.0),
    ("loans", counter("tidepool_daemon_loans_total", "Borrowers that files were lent to"), 1.0),
    ("fabric_requests", counter("tidepool_daemon_fabric_requests_total", "Requests over a fabric"), 1.0),
    ("flushed_bytes", counter("tidepool_daemon_flushed_bytes_total", "Bytes moved to slower tiers"), 1.0),
    (
        "held_back_ms",
        counter("tidepool_daemon_held_back_seconds_total", "What clients waited for turns and shares"),
        1e3,
    ),
    ("cpu_ms", counter("tidepool_daemon_cpu_seconds_total", "Processor time of the daemon"), 1e3),
    ("clock_ms", counter("tidepool_daemon_clock_seconds_total", "The node's clock"), 1e3),
    ("cores", gauge("tidepool_daemon_cores", "Cores that the daemon may use"), 1.0),
    (
        "device_busy_ms",
        counter("tidepool_daemon_device_busy_seconds_total", "Time in which the store's device was busy"),
        1e3,
    ),
    ("device_bytes", counter("tidepool_daemon_device_bytes_total", "Bytes moved by the store's device"), 1.0),
];

/// All that a daemon tells.
pub fn put_daemon(families: &mut Families, labels: &Labels, status: &DaemonStatus) {
    let space = &status.space;
    for (name, value) in [
        (TOTAL, space.total),
        (FREE, space.free),
        (USED, space.used),
        (OBJECTS, space.objects),
        (SESSIONS, status.sessions),
        (HANDLES, status.open_handles),
        (TROUBLE, u64::from(!status.trouble.is_empty())),
    ] {
        families.put(name, labels, value as f64);
    }
    for (own, value) in &status.counters {
        put_counter(families, labels, own, *value as f64);
    }
}

fn put_counter(families: &mut Families, labels: &Labels, own: &str, value: f64) {
    let with = |more: &[(&'static str, &str)]| -> Labels {
        let more = more.iter().map(|(label, value)| (*label, value.to_string()));
        labels.iter().cloned().chain(more).collect()
    };
    if let Some((_, name, by)) = COUNTERS.iter().find(|(known, ..)| *known == own) {
        return families.put(*name, labels, value / by);
    }
    let interface = own.strip_prefix("net:").and_then(|rest| rest.rsplit_once(':'));
    let tier = own.strip_prefix("tier_").and_then(|rest| rest.strip_suffix("_bytes"));
    match (interface, tier) {
        (Some((interface, "mbit")), _) => {
            families.put(SPEED, &with(&[("interface", interface)]), value * 1e6 / 8.0);
        }
        (Some((interface, way)), _) => {
            families.put(NET, &with(&[("interface", interface), ("direction", way)]), value);
        }
        (None, Some(tier)) => families.put(TIER, &with(&[("tier", tier)]), value),
        (None, None) => families.put(OTHER, &with(&[("counter", own)]), value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_units_and_labels() {
        let mut families = Families::default();
        let labels = vec![("daemon", "0".to_string())];
        for (own, value) in
            [("cpu_ms", 1500), ("net:e:0:in", 7), ("net:e0:mbit", 8), ("tier_pfs_bytes", 9), ("new", 1)]
        {
            put_counter(&mut families, &labels, own, f64::from(value));
        }
        let text = families.text();
        for line in [
            "tidepool_daemon_cpu_seconds_total{daemon=\"0\"} 1.5",
            "tidepool_daemon_network_bytes_total{daemon=\"0\",interface=\"e:0\",direction=\"in\"} 7",
            "tidepool_daemon_network_speed_bytes_per_second{daemon=\"0\",interface=\"e0\"} 1000000",
            "tidepool_daemon_tier_bytes{daemon=\"0\",tier=\"pfs\"} 9",
            "tidepool_daemon_other{daemon=\"0\",counter=\"new\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
