//! Facts of this machine, also kept with benchmark results.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Numbers of the cores this process may use; none when the kernel does not tell.
pub fn own_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or(Vec::new(), |set| {
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
    })
}

/// Name of the processor, as the kernel tells it.
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name"));
    name.and_then(|n| n.split_once(':')).map_or(String::new(), |(_, n)| n.trim().to_string())
}

/// Bytes of memory in all, and those that programs can still get.
pub fn memory() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (meminfo(&text, "MemTotal:"), meminfo(&text, "MemAvailable:"))
}

fn meminfo(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default();
    let kib = line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Type of the file system that holds `path`, and where it is mounted.
pub fn file_system_of(path: &Path) -> Option<(String, PathBuf)> {
    let path = fs::canonicalize(path).ok()?;
    let table = fs::read("/proc/self/mountinfo").ok()?;
    nearest_mount(&String::from_utf8_lossy(&table), &path)
}

/// Of mounts at the same place the last one hides the others.
fn nearest_mount(mountinfo: &str, path: &Path) -> Option<(String, PathBuf)> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let at = PathBuf::from(unescape(left.split(' ').nth(4)?));
            path.starts_with(&at).then(|| (right.split(' ').next().unwrap_or_default().to_string(), at))
        })
        .max_by_key(|(_, at)| at.as_os_str().as_bytes().len())
}

/// The kernel writes space, tab, newline and backslash as octal numbers.
fn unescape(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_string(), |text, (code, plain)| text.replace(code, plain))
}

/// A program in one of the directories of `$PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// User and system time of a process, in seconds; `None` when it is gone.
pub fn process_cpu(pid: u32) -> Option<f64> {
    cpu_of_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Ticks per second of `/proc/PID/stat`: the same on every Linux that Rust supports.
const TICKS: f64 = 100.0;

fn cpu_of_stat(stat: &str) -> Option<f64> {
    // The name of the program is in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:20 / /dev/shm rw - tmpfs tmpfs rw
24 22 0:21 / /mnt/with\\040space rw shared:1 - xfs /dev/vdb rw
25 22 0:22 / /dev/shm rw - ramfs none rw
";

    #[test]
    fn the_nearest_mount_counts() {
        let of = |path: &str| nearest_mount(MOUNTS, Path::new(path)).unwrap().0;
        assert_eq!(of("/tmp/x"), "ext4");
        assert_eq!(of("/dev/shm/x"), "ramfs");
        assert_eq!(of("/dev/shmx"), "ext4");
        assert_eq!(of("/mnt/with space/x"), "xfs");
    }

    #[test]
    fn numbers_are_found_in_proc() {
        assert_eq!(meminfo("MemTotal:   10 kB\nMemAvailable: 7 kB\n", "MemAvailable:"), 7168);
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(cpu_of_stat(stat), Some(3.0));
        assert!(process_cpu(std::process::id()).is_some());
    }
}
