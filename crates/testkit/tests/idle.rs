//! F19: an idle daemon takes less than 1 % of a core and less than 100 MB.

use std::time::Duration;
use tidepool_testkit::Cluster;

/// Clock ticks a second, in which /proc counts; the same on every Linux that people use.
const TICKS_PER_SECOND: u64 = 100;
const SECONDS: u64 = 5;

fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn f19_an_idle_daemon_is_quiet() {
    let cluster = Cluster::start(1);
    let pid = cluster.pid(0);
    let before = cpu_ticks(pid);
    std::thread::sleep(Duration::from_secs(SECONDS));
    let (used, rss) = (cpu_ticks(pid) - before, rss_kib(pid));
    println!("idle daemon: {used} ticks of {} in {SECONDS} s, {rss} KiB", SECONDS * TICKS_PER_SECOND);
    assert!(used * 100 < SECONDS * TICKS_PER_SECOND, "{used} ticks in {SECONDS} s are 1 % or more");
    assert!(rss < 100_000, "{rss} KiB");
}
