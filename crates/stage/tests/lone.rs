//! Single small files, copied without the engine: the same copy, or none.

mod support;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{memory_dir, noise};
use tempfile::TempDir;
use tidepool_stage::{
    Charge, Charged, Control, EndError, EndResult, Identity, Lone, PackLimits, StageOptions, StageReport,
};
use tidepool_types::Errno;

/// Two directories in memory, and their descriptors.
struct Place {
    dir: TempDir,
    from: Arc<OwnedFd>,
    to: Arc<OwnedFd>,
}

impl Place {
    /// None, and a word about it, where nothing is in memory.
    fn new() -> Option<Place> {
        let dir = memory_dir();
        if !dir.path().starts_with("/dev/shm") {
            println!("SKIPPED: needs a file system in memory at /dev/shm");
            return None;
        }
        fs::create_dir_all(dir.path().join("from/deep/er")).unwrap();
        fs::create_dir_all(dir.path().join("to/in")).unwrap();
        fs::write(dir.path().join("from/deep/er/file"), noise(5000, 1)).unwrap();
        let open = |name| Arc::new(File::open(dir.path().join(name)).unwrap().into());
        let (from, to) = (open("from"), open("to"));
        Some(Place { dir, from, to })
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn read(&self, from: &str, to: &str) -> Option<Lone> {
        let user = Identity::of_thread().unwrap();
        Lone::read((&self.from, from.as_bytes()), (&self.to, to.as_bytes()), &user)
    }

    fn copy(&self, from: &str, to: &str, options: &StageOptions) -> Option<StageReport> {
        self.read(from, to)?.put(options, &Control::default())
    }

    fn plain(&self, from: &str, to: &str) -> Option<StageReport> {
        self.copy(from, to, &StageOptions::default())
    }

    /// What lies at the destination: the directory `in` lies there always.
    fn made(&self) -> Vec<String> {
        let names = |dir: &str| {
            let entries = fs::read_dir(self.path(dir)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let mut names = [names("to"), names("to/in")].concat();
        names.retain(|name| name != "in");
        names.sort();
        names
    }
}

/// Lets so many bytes through, and counts them.
struct Purse {
    left: AtomicU64,
    asked: AtomicU64,
}

impl Charge for Purse {
    fn charge(&self, bytes: u64) -> EndResult<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        left.map(drop).map_err(|_| EndError::new("write", Errno::EDQUOT))
    }
}

fn purse(bytes: u64) -> (Arc<Purse>, StageOptions) {
    let purse = Arc::new(Purse { left: AtomicU64::new(bytes), asked: AtomicU64::new(0) });
    let charge = Some(Charged(purse.clone()));
    (purse, StageOptions { charge, ..StageOptions::default() })
}

#[test]
fn content_and_attributes_arrive_under_the_name_that_was_asked_for() {
    let Some(place) = Place::new() else { return };
    let source = place.path("from/deep/er/file");
    fs::set_permissions(&source, Permissions::from_mode(0o640)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
    File::open(&source)
        .unwrap()
        .set_times(fs::FileTimes::new().set_modified(time).set_accessed(time))
        .unwrap();
    for (to, name) in
        [("", "to/file"), ("in/", "to/in/file"), ("other", "to/other"), ("in/other", "to/in/other")]
    {
        let report = place.plain("deep/er/file", to).expect("nothing speaks against it");
        assert!(report.complete && report.files == 1, "{report:?}");
        assert_eq!((report.bytes_total, report.bytes_copied), (5000, 5000));
        let made = fs::metadata(place.path(name)).unwrap();
        assert_eq!(fs::read(place.path(name)).unwrap(), noise(5000, 1), "{to}");
        assert_eq!((made.mode() & 0o7777, made.modified().unwrap()), (0o640, time), "{to}");
    }
    assert_eq!(fs::metadata(&source).unwrap().accessed().unwrap(), time, "looking at it leaves no trace");
    assert_eq!(place.made(), ["file", "file", "other", "other"]);
}

#[test]
fn an_empty_file_is_one() {
    let Some(place) = Place::new() else { return };
    fs::write(place.path("from/empty"), b"").unwrap();
    assert_eq!(place.plain("empty", "").expect("nothing speaks against it").bytes_total, 0);
    assert_eq!(fs::metadata(place.path("to/empty")).unwrap().size(), 0);
}

#[test]
fn what_is_not_plain_is_left_to_the_engine() {
    let Some(place) = Place::new() else { return };
    let from = |name: &str| place.path("from").join(name);
    fs::write(from("file"), b"content").unwrap();
    fs::write(from("large"), vec![1; PackLimits::NEAR.file_bytes as usize + 1]).unwrap();
    File::create(from("holes")).unwrap().write_all_at(b"x", 40_000).unwrap();
    symlink("file", from("link")).unwrap();
    mknodat(CWD, from("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::write(from("dressed"), b"content").unwrap();
    let dressed =
        rustix::fs::setxattr(from("dressed"), "user.color", b"red", rustix::fs::XattrFlags::empty()).is_ok();
    if !dressed {
        println!("not tried: this kernel has no attributes of users in memory");
        fs::remove_file(from("dressed")).unwrap();
    }
    let paths = [
        "", ".", "deep", "deep/", "large", "holes", "link", "fifo", "dressed", "file/", "none", "none/x",
        "..",
    ];
    for path in paths {
        assert!(place.plain(path, "made").is_none(), "{path}");
    }
    for to in [".", "..", "none/x", "none/", "file/x"] {
        assert!(place.plain("file", to).is_none(), "to {to}");
    }
    assert!(place.made().is_empty(), "{:?}", place.made());
}

#[test]
fn nothing_leads_out_of_either_root() {
    let Some(place) = Place::new() else { return };
    fs::create_dir(place.path("outside")).unwrap();
    fs::write(place.path("outside/file"), b"secret").unwrap();
    fs::write(place.path("from/file"), b"mine").unwrap();
    for root in ["from", "to"] {
        symlink("../outside", place.path(root).join("out")).unwrap();
        symlink(place.path("outside"), place.path(root).join("far")).unwrap();
    }
    let absolute = place.path("outside/file").display().to_string();
    for path in ["../outside/file", "out/file", "far/file", "deep/../../outside/file", &absolute] {
        assert!(place.plain(path, "made").is_none(), "{path}");
    }
    for to in ["../outside/made", "out/made", "far/made", "out/", "../outside/", &absolute] {
        assert!(place.plain("file", to).is_none(), "to {to}");
    }
    assert!(!place.path("to/made").exists() && !place.path("outside/made").exists());
    assert_eq!(fs::read(place.path("outside/file")).unwrap(), b"secret");
}

#[test]
fn what_has_the_name_already_stays_and_is_charged_for_by_nobody() {
    let Some(place) = Place::new() else { return };
    fs::write(place.path("to/taken"), b"old").unwrap();
    symlink("nowhere", place.path("to/dangling")).unwrap();
    let (purse, options) = purse(10_000);
    for to in ["taken", "dangling", "in"] {
        assert!(place.copy("deep/er/file", to, &options).is_none(), "{to}");
    }
    assert_eq!(purse.asked.load(Ordering::Relaxed), 0);
    assert_eq!(fs::read(place.path("to/taken")).unwrap(), b"old");
}

/// What is looked at by its name is opened later: between the two it may have become something else, and then something else again.
#[test]
fn what_is_replaced_all_the_time_arrives_whole_or_not_at_all() {
    const COPIES: usize = 3000;
    let Some(place) = Place::new() else { return };
    let kinds = place.path("kinds");
    fs::create_dir(&kinds).unwrap();
    let contents: Vec<Vec<u8>> = [100, 5000, 100].iter().zip(1..).map(|(len, n)| vec![n; *len]).collect();
    let done = AtomicBool::new(false);
    let put_there = |round: usize| {
        let next = kinds.join("next");
        match round % 6 {
            3 => symlink("/etc/passwd", &next).unwrap(),
            4 => mknodat(CWD, &next, FileType::Fifo, Mode::RWXU, 0).unwrap(),
            5 => File::create(&next).unwrap().set_len(4000).unwrap(),
            regular => fs::write(&next, &contents[regular]).unwrap(),
        }
        fs::rename(&next, place.path("from/it")).unwrap();
    };
    put_there(0);
    let mut whole = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                round += 1;
                put_there(round);
            }
        });
        for _ in 0..COPIES {
            let Some(report) = place.plain("it", "made") else { continue };
            let made = fs::read(place.path("to/made")).unwrap();
            fs::remove_file(place.path("to/made")).unwrap();
            if !contents.contains(&made) || report.bytes_total != made.len() as u64 {
                done.store(true, Ordering::Relaxed);
                panic!("{} bytes that nobody wrote together", made.len());
            }
            whole += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(whole > 0, "some are quick enough");
}

#[test]
fn limits_hold_to_the_byte() {
    let Some(place) = Place::new() else { return };
    assert!(place.copy("deep/er/file", "one", &purse(4999).1).is_none());
    assert!(place.made().is_empty());
    let (purse, options) = purse(5000);
    assert!(place.copy("deep/er/file", "one", &options).is_some());
    assert_eq!(purse.left.load(Ordering::Relaxed), 0);
}

#[test]
fn a_cancelled_one_makes_nothing() {
    let Some(place) = Place::new() else { return };
    let file = place.read("deep/er/file", "made").expect("nothing speaks against it");
    let control = Control::default();
    control.cancel();
    assert!(file.put(&StageOptions::default(), &control).is_none());
    assert!(place.made().is_empty());
}
