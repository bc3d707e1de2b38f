//! What this node's resources have done since it started, for who wants to know what limits a run (INVENTORY A18): the store's
//! device, network interfaces, this process. Two looks tell how busy each was in between.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::Path;

/// Interfaces told of; nodes with many virtual ones have few that matter.
const INTERFACES_MAX: usize = 16;
const NET: &str = "/sys/class/net";
/// The unit of sectors in the kernel's counters, whatever the device's are.
const SECTOR: u64 = 512;
/// Places in a block device's `stat` (kernel: Documentation/block/stat.rst).
const SECTORS_READ: usize = 2;
const SECTORS_WRITTEN: usize = 6;
const BUSY_MS: usize = 9;

/// Names and values, all of which only grow, but for `cores` and speeds. What this node does not tell is not there.
///
/// | name | |
/// |---|---|
/// | `clock_ms` | when this was read, on the node's own clock |
/// | `cpu_ms` | processor time of the daemon |
/// | `cores` | that it may use |
/// | `device_busy_ms`, `device_bytes` | of the device below the store: with a request under way; read and written |
/// | `net:NAME:in`, `net:NAME:out` | bytes of an interface |
/// | `net:NAME:mbit` | its speed |
pub fn read(device: u64) -> Vec<(String, u64)> {
    let mut all = vec![
        ("clock_ms".to_string(), millis(ClockId::Boottime)),
        ("cpu_ms".to_string(), millis(ClockId::ProcessCPUTime)),
    ];
    all.extend(std::thread::available_parallelism().ok().map(|n| ("cores".to_string(), n.get() as u64)));
    all.extend(of_device(device));
    all.extend(of_network());
    all
}

fn millis(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

fn of_device(device: u64) -> Vec<(String, u64)> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // File systems in memory, and those over several devices, have none.
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap_or_default();
    device_counters(&stat).into_iter().flatten().collect()
}

fn device_counters(stat: &str) -> Option<[(String, u64); 2]> {
    let numbers: Vec<u64> = stat.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let sectors = numbers.get(SECTORS_READ)?.checked_add(*numbers.get(SECTORS_WRITTEN)?)?;
    Some([
        ("device_busy_ms".into(), *numbers.get(BUSY_MS)?),
        ("device_bytes".into(), sectors.saturating_mul(SECTOR)),
    ])
}

fn of_network() -> Vec<(String, u64)> {
    let Ok(entries) = fs::read_dir(NET) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name != "lo");
    names.sort_unstable();
    names.iter().take(INTERFACES_MAX).flat_map(|name| of_interface(name)).collect()
}

fn of_interface(name: &str) -> Vec<(String, u64)> {
    let number = |file: &str| {
        let text = fs::read_to_string(Path::new(NET).join(name).join(file)).ok()?;
        // A link that is down has the speed -1, which is none.
        text.trim().parse::<u64>().ok()
    };
    [("in", "statistics/rx_bytes"), ("out", "statistics/tx_bytes"), ("mbit", "speed")]
        .into_iter()
        .filter_map(|(what, file)| Some((format!("net:{name}:{what}"), number(file)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_devices_are_those_of_the_kernel() {
        let stat = " 1 2 300 4 5 6 700 8 0 1234 99 0 0 0 0 0 0\n";
        let told = device_counters(stat).unwrap();
        assert_eq!(told, [("device_busy_ms".into(), 1234), ("device_bytes".into(), 1000 * 512)]);
        for bad in ["", "1 2 3", "1 2 x 4 5 6 7 8 9 10"] {
            assert_eq!(device_counters(bad), None, "{bad}");
        }
    }

    #[test]
    fn time_goes_on_and_work_is_seen() {
        let value = |all: &[(String, u64)], name: &str| all.iter().find(|(n, _)| n == name).unwrap().1;
        let before = read(0);
        while value(&read(0), "cpu_ms") < value(&before, "cpu_ms") + 10 {
            std::hint::black_box((0..10_000u64).sum::<u64>());
        }
        let after = read(0);
        assert!(value(&after, "clock_ms") > value(&before, "clock_ms"));
        assert!(value(&after, "cores") >= 1);
        assert!(!after.iter().any(|(name, _)| name.starts_with("device")), "there is no device 0");
    }
}
