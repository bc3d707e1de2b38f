//! What a copy leaves in the kernel's cache: not the files it read and wrote, unless they were there before.

mod support;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, preadv2};
use std::fs::{self, File};
use std::path::Path;
use support::{Place, noise};

/// Magic numbers of ext4, XFS and Btrfs.
const DISKS: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
const MIB: usize = 1 << 20;
/// Copied by one worker, and in ranges by several.
const SIZES: [usize; 2] = [6 * MIB, 40 * MIB];

/// Whether the kernel can read this file without keeping it; and says why not.
fn can_pass(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    let disk = DISKS.contains(&(rustix::fs::fstatfs(&file).unwrap().f_type as i64));
    let uncached = ReadWriteFlags::from_bits_retain(0x80);
    let passed = preadv2(&file, &mut [IoSliceMut::new(&mut [0])], 0, uncached);
    if !disk || passed == Err(Errno::OPNOTSUPP) {
        eprintln!("SKIPPED: no RWF_DONTCACHE below {}", path.display());
        return false;
    }
    true
}

/// The share of a file that is in the kernel's memory.
fn cached(path: &Path) -> f64 {
    let file = File::open(path).unwrap();
    // Otherwise looking brings in what comes next.
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let places: Vec<u64> = (0..file.metadata().unwrap().len()).step_by(MIB).collect();
    let is_there =
        |at: &&u64| preadv2(&file, &mut [IoSliceMut::new(&mut [0])], **at, ReadWriteFlags::NOWAIT).is_ok();
    places.iter().filter(is_there).count() as f64 / places.len() as f64
}

fn place() -> Place {
    let place = Place::new(tempfile::tempdir().unwrap());
    for (i, size) in SIZES.into_iter().enumerate() {
        fs::write(place.src().join(i.to_string()), noise(size, i as u64)).unwrap();
    }
    place
}

fn forget(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
}

#[test]
fn what_a_copy_reads_and_writes_does_not_stay_in_memory() {
    let place = place();
    if !can_pass(&place.src().join("0")) {
        return;
    }
    forget(&place.src());
    assert!(place.copy(&place.options()).complete);
    for path in [place.src(), place.dst()].iter().flat_map(|dir| ["0", "1"].map(|name| dir.join(name))) {
        let share = cached(&path);
        assert!(share < 0.5, "{}: {share} is in memory", path.display());
    }
    place.assert_same();
}

#[test]
fn what_was_in_memory_stays_there() {
    let place = place();
    if !can_pass(&place.src().join("0")) {
        return;
    }
    assert!(place.copy(&place.options()).complete);
    for name in ["0", "1"] {
        let share = cached(&place.src().join(name));
        assert!(share > 0.5, "{name}: {share} of the source is left");
    }
}
