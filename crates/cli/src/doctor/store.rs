//! The directory that a pool would keep its data in.

use super::{Line, facts};
use crate::instance::own_uid;
use rustix::fs::{FallocateFlags, OFlags, XattrFlags, fallocate, setxattr, statvfs};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidepool_types::format_size;

/// Free space below which a pool is of little use.
const FREE_WANTED: u64 = 1 << 30;
const FREE_MIN: u64 = 64 << 20;
/// Bytes of the speed test; short, because this is a look, not a measurement.
const SPEED_BYTES: usize = 32 << 20;
const SPEED_STEP: usize = 1 << 20;
/// Below this the disk, not the network, will be what programs wait for.
const SPEED_WANTED: f64 = 50.0;
/// File systems that all nodes share: a pool on them gains nothing.
const SHARED: [&str; 12] = [
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "beegfs_nodev",
    "ceph",
    "cifs",
    "smb3",
    "afs",
    "panfs",
    "orangefs",
];

const ELSEWHERE: &str = "name another directory with --store, or set TIDEPOOL_STORE";

pub fn examine(store: &Path) -> Vec<Line> {
    if !store.is_dir() {
        let text = format!("{} is no directory", store.display());
        return vec![Line::problem("store", text, ELSEWHERE)];
    }
    let scratch = match Scratch::create(store) {
        Ok(scratch) => scratch,
        Err(error) => {
            let text = format!("{} cannot be written: {error}", store.display());
            return vec![Line::problem("store", text, ELSEWHERE)];
        }
    };
    let mut lines = vec![Line::ok("store", format!("{} can be written", store.display())), kind(store)];
    let space = space(store);
    let room = space.level != super::Level::Problem;
    lines.extend([space, attributes(&scratch), direct(&scratch), holes(&scratch)]);
    if room {
        lines.push(speed(&scratch));
    }
    lines
}

/// A directory for tries, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn create(store: &Path) -> io::Result<Scratch> {
        let dir = store.join(format!("tidepool-doctor-{}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(Scratch(dir))
    }

    fn file(&self, name: &str) -> io::Result<(PathBuf, File)> {
        let path = self.0.join(name);
        let file = File::create(&path)?;
        Ok((path, file))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = tidepool_removal::remove(&self.0, own_uid()) {
            eprintln!("tidepool: cannot remove {error}");
        }
    }
}

fn kind(store: &Path) -> Line {
    let Some((kind, mount)) = facts::file_system_of(store) else {
        return Line::ok("store type", "unknown");
    };
    let text = format!("{kind}, mounted at {}", mount.display());
    if SHARED.contains(&kind.as_str()) {
        let advice = "a pool is made of node-local storage: name a local disk with --store";
        return Line::warning("store type", format!("{text}: shared by nodes"), advice);
    }
    if matches!(kind.as_str(), "tmpfs" | "ramfs") {
        return Line::ok("store type", format!("{text}: the pool's data takes memory"));
    }
    Line::ok("store type", text)
}

fn space(store: &Path) -> Line {
    let stat = match statvfs(store) {
        Ok(stat) => stat,
        Err(error) => return Line::warning("store space", format!("unknown: {error}"), ELSEWHERE),
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let total = stat.f_blocks.saturating_mul(stat.f_frsize);
    let text = format!("{} free of {}", format_size(free), format_size(total));
    match (free, stat.f_favail, stat.f_files) {
        (free, ..) if free < FREE_MIN => Line::problem("store space", text, ELSEWHERE),
        (_, 0, 1..) => Line::problem("store space", format!("{text}, but no file can be made"), ELSEWHERE),
        (free, ..) if free < FREE_WANTED => Line::warning("store space", text, ELSEWHERE),
        _ => Line::ok("store space", text),
    }
}

fn attributes(scratch: &Scratch) -> Line {
    let tried = scratch
        .file("attributes")
        .and_then(|(path, _)| Ok(setxattr(&path, "user.tidepool.doctor", b"1", XattrFlags::empty())?));
    // Pools keep attributes in their own tables.
    Line::ok("store attributes", or_reason(tried, "not needed"))
}

fn direct(scratch: &Scratch) -> Line {
    let flags = OFlags::DIRECT.bits() as i32;
    let tried = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(scratch.0.join("direct"))
        .map(|_| ());
    Line::ok("store O_DIRECT", or_reason(tried, "not needed"))
}

fn or_reason(tried: io::Result<()>, need: &str) -> String {
    match tried {
        Ok(()) => "works".to_string(),
        Err(error) => format!("does not work ({error}); {need}"),
    }
}

fn holes(scratch: &Scratch) -> Line {
    let tried = scratch.file("holes").and_then(|(_, mut file)| {
        file.write_all(&[1u8; 8192])?;
        Ok(fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)?)
    });
    match tried {
        Ok(()) => Line::ok("store holes", "punching works"),
        Err(error) => Line::warning(
            "store holes",
            format!("punching does not work ({error})"),
            "space of truncated files may come back only when they are removed; prefer ext4, xfs or tmpfs",
        ),
    }
}

fn speed(scratch: &Scratch) -> Line {
    match write_some(scratch) {
        Err(error) => Line::problem("store speed", format!("writing failed: {error}"), ELSEWHERE),
        Ok(speed) if speed < SPEED_WANTED => {
            Line::warning("store speed", format!("{speed:.0} MiB/s written and synced"), ELSEWHERE)
        }
        Ok(speed) => Line::ok("store speed", format!("{speed:.0} MiB/s written and synced")),
    }
}

/// MiB/s of a short write with its fsync.
fn write_some(scratch: &Scratch) -> io::Result<f64> {
    let (_, mut file) = scratch.file("speed")?;
    let block = vec![0x5au8; SPEED_STEP];
    let began = Instant::now();
    for _ in 0..SPEED_BYTES / SPEED_STEP {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(SPEED_BYTES as f64 / f64::from(1 << 20) / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_missing_store_is_a_problem_that_says_what_to_do() {
        let lines = examine(Path::new("/no/such/store"));
        assert_eq!((lines.len(), lines[0].level), (1, Level::Problem));
        assert!(lines[0].advice.contains("--store"));
    }

    #[test]
    fn a_usable_store_is_left_as_it_was() {
        let dir = std::env::temp_dir().join(format!("tidepool-doctor-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let lines = examine(&dir);
        assert!(lines.iter().all(|l| l.level != Level::Problem), "{lines:?}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
    }
}
