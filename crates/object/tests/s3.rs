//! Copies into and out of a bucket, through the real protocol.

mod support;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{Case, SECRET};
use tidepool_object::{ObjectEnd, ObjectUrl};
use tidepool_stage::{
    CompareOptions, Control, Doomed, End, LocalEnd, StageOptions, StageReport, What, compare, remove, stage,
};
use tidepool_types::Errno;

fn options(dir: &Path) -> StageOptions {
    StageOptions { workers: 4, journal_dir: Some(dir.join("state")), ..StageOptions::default() }
}

fn copy(src: &dyn End, dst: &dyn End, options: &StageOptions) -> StageReport {
    stage(src, dst, &What::Tree, options, &Control::default())
}

/// Bytes without a pattern.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn set_time(path: &Path, sec: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(sec, 123_456_789);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Everything that a bucket can hold.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("empty dir")).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("a/small"), b"hello").unwrap();
    fs::write(root.join("a/b/odd size"), noise(70_001, 2)).unwrap();
    for name in
        ["-rf", " lead and trail ", "50%41+&?#=;", "..dots", ".hidden", "\u{e9}t\u{e9} \u{1f30a}", "'\"<>\\"]
    {
        fs::write(root.join(name), name).unwrap();
    }
    fs::create_dir(root.join(" dir ")).unwrap();
    fs::write(root.join(" dir /x "), b"spaces").unwrap();
    fs::write(root.join("a/large"), noise((20 << 20) + 12_345, 5)).unwrap();
    fs::File::create(root.join("sparse")).unwrap().set_len(17 << 20).unwrap();
    for n in 0..20 {
        fs::write(root.join(format!("a/b/c/{n}")), noise(100 + n, n as u64)).unwrap();
    }
    symlink("small", root.join("a/link")).unwrap();
    symlink("/nonexistent/\u{e9}", root.join("dangling")).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    // Not every file system has them; the comparison below then compares none.
    for (name, attribute) in [("a/small", "user.note"), ("a/b", "user.dir")] {
        let _ = rustix::fs::setxattr(root.join(name), attribute, b"\0v\xff=&", XattrFlags::empty());
    }
    set_mode(&root.join("a/small"), 0o4755);
    set_mode(&root.join("empty dir"), 0o1777);
    set_mode(&root.join("a/b/c"), 0o555);
    for (sec, name) in ["a/small", "a/large", "sparse", "empty dir", "a/b/c", "a/b"].iter().enumerate() {
        set_time(&root.join(name), 1_000_000_000 + sec as u64);
    }
}

impl Case {
    fn src(&self) -> std::path::PathBuf {
        self.dir.path().join("src")
    }

    fn local(&self) -> LocalEnd {
        LocalEnd::open(&self.src()).unwrap()
    }

    fn object(&self, path: &str) -> ObjectEnd {
        ObjectEnd::open(&self.server.url(self.dir.path(), "top"), path.as_bytes(), true).unwrap()
    }

    fn up(&self) -> StageReport {
        copy(&self.local(), &self.object("t"), &options(self.dir.path()))
    }

    fn no_part_is_left(&self) {
        let objects = self.server.bucket.objects();
        let parts: Vec<&String> = objects.keys().filter(|key| key.contains(".tidepool-part.")).collect();
        assert!(parts.is_empty(), "{parts:?}");
        assert_eq!(self.server.bucket.uploads_left(), 0);
    }
}

#[test]
fn a_tree_goes_into_a_bucket_and_comes_back_with_its_attributes() {
    let case = Case::new();
    tree(&case.src());
    let up = case.up();
    assert!(up.complete && up.warnings.is_empty(), "{:?} {:?}", up.errors, up.warnings);
    case.no_part_is_left();
    assert!(case.server.bucket.parts_sent.load(Ordering::Relaxed) >= 6);
    let objects = case.server.bucket.objects();
    assert_eq!(objects["top/t/a/small"].data, b"hello");
    assert_eq!(objects["top/t/a/small"].metadata["mode"], (0o104_755).to_string());
    assert_eq!(objects["top/t/a/small"].metadata["mtime"], "1000000000.123456789");
    assert!(objects.contains_key("top/t/ dir /x ") && objects.contains_key("top/t/empty dir/"));
    let back = case.dir.path().join("back");
    let down = copy(&case.object("t"), &LocalEnd::create(&back).unwrap(), &options(case.dir.path()));
    assert!(down.complete && down.warnings.is_empty(), "{:?} {:?}", down.errors, down.warnings);
    let how = CompareOptions { owners: true, holes_slack: None, ignore_sockets: false };
    let differences = compare(&case.local(), &LocalEnd::open(&back).unwrap(), how).unwrap();
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn a_second_run_moves_nothing_and_a_changed_file_is_replaced() {
    let case = Case::new();
    tree(&case.src());
    assert!(case.up().complete);
    let before = case.server.bucket.objects();
    let again = case.up();
    assert!(again.complete && again.bytes_copied == 0, "{again:?}");
    fs::write(case.src().join("a/small"), b"other").unwrap();
    assert!(case.up().complete);
    let after = case.server.bucket.objects();
    assert_eq!(after["top/t/a/small"].data, b"other");
    assert_eq!(before.len(), after.len());
    set_mode(&case.src().join("a/b/odd size"), 0o600);
    assert!(case.up().complete);
    let after = case.server.bucket.objects();
    assert_eq!(after["top/t/a/b/odd size"].metadata["mode"], (0o100_600).to_string());
    assert_eq!(after["top/t/a/b/odd size"].data, noise(70_001, 2));
}

#[test]
fn what_a_bucket_cannot_hold_is_said() {
    let case = Case::new();
    fs::write(case.src().join("one"), b"1").unwrap();
    fs::hard_link(case.src().join("one"), case.src().join("two")).unwrap();
    let linked = case.up();
    assert!(linked.complete && linked.warnings.len() == 1, "{linked:?}");
    assert_eq!(case.server.bucket.objects()["top/t/two"].data, b"1");
    fs::write(case.src().join("new\nline"), b"n").unwrap();
    let odd = case.up();
    assert!(!odd.complete && odd.errors[0].to_string().contains("control characters"), "{odd:?}");
}

#[test]
fn keys_that_are_no_paths_are_errors() {
    for keys in [&["top/t/a", "top/t/a/b"][..], &["top/t/../x"], &["top/t//x"]] {
        let case = Case::new();
        keys.iter().for_each(|key| case.server.bucket.insert(key, b"x"));
        let back = case.dir.path().join("back");
        let down = copy(&case.object("t"), &LocalEnd::create(&back).unwrap(), &options(case.dir.path()));
        assert!(!down.complete, "{keys:?}: {down:?}");
        assert!(!case.dir.path().join("x").exists());
    }
}

#[test]
fn objects_of_others_and_of_a_single_key_are_copied() {
    let case = Case::new();
    case.server.bucket.insert("top/t/x/y", b"other people's");
    case.server.bucket.insert("top/t/z", &noise(17 << 20, 3));
    let back = case.dir.path().join("back");
    let down = copy(&case.object("t"), &LocalEnd::create(&back).unwrap(), &options(case.dir.path()));
    assert!(down.complete, "{down:?}");
    assert_eq!(fs::read(back.join("x/y")).unwrap(), b"other people's");
    assert!(fs::read(back.join("z")).unwrap() == noise(17 << 20, 3));
    assert_eq!(fs::metadata(back.join("z")).unwrap().mode() & 0o777, 0o644);
    let one = LocalEnd::create(&case.dir.path().join("one")).unwrap();
    let what = What::Entry { from: b"y".to_vec(), to: b"why".to_vec() };
    let report = stage(&case.object("t/x"), &one, &what, &options(case.dir.path()), &Control::default());
    assert!(report.complete && case.dir.path().join("one/why").exists(), "{report:?}");
}

#[test]
fn what_is_removed_is_gone() {
    let case = Case::new();
    tree(&case.src());
    assert!(case.up().complete);
    let report = remove(
        &case.object(""),
        &Doomed::Entry(b"t".to_vec()),
        &StageOptions::default(),
        &Control::default(),
    );
    assert!(report.complete, "{:?}", report.errors);
    assert_eq!(case.server.bucket.objects().keys().collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn wrong_keys_and_missing_buckets_are_errors_at_once() {
    let case = Case::new();
    let open = |bucket, secret| {
        let url = case.server.url_of(case.dir.path(), bucket, "", secret);
        ObjectEnd::open(&url, b"", true).err().expect("it cannot be opened")
    };
    let wrong = open("data", "wrong");
    assert!(wrong.errno == Errno::EACCES && wrong.to_string().contains("SignatureDoesNotMatch"), "{wrong}");
    let missing = open("other", SECRET);
    assert!(missing.errno == Errno::ENODEV && missing.to_string().contains("NoSuchBucket"), "{missing}");
    let absent = ObjectEnd::open(&case.server.url(case.dir.path(), "top"), b"none", false);
    assert_eq!(absent.err().map(|error| error.errno), Some(Errno::ENOENT));
    case.server.bucket.insert("top/file", b"x");
    let file = ObjectEnd::open(&case.server.url(case.dir.path(), "top"), b"file", true);
    assert_eq!(file.err().map(|error| error.errno), Some(Errno::ENOTDIR));
}

#[test]
fn a_full_service_is_a_failure_and_a_rerun_finishes() {
    let case = Case::new();
    tree(&case.src());
    let dst = case.object("t");
    *case.server.bucket.faults.refuse.lock().unwrap() = Some((507, "StorageFull"));
    let full = copy(&case.local(), &dst, &options(case.dir.path()));
    // A long name may leave no room for the service's own words, and any file may be the first.
    let says_why = full.errors.iter().any(|error| error.to_string().contains("no space left"));
    assert!(!full.complete && says_why, "{full:?}");
    assert!(case.server.bucket.objects().is_empty());
    *case.server.bucket.faults.refuse.lock().unwrap() = None;
    let rest = copy(&case.local(), &dst, &options(case.dir.path()));
    assert!(rest.complete, "{:?}", rest.errors);
    case.no_part_is_left();
}

#[test]
fn a_busy_service_is_asked_again() {
    let case = Case::new();
    fs::write(case.src().join("x"), b"x").unwrap();
    let dst = case.object("t");
    case.server.bucket.faults.busy.store(3, Ordering::Relaxed);
    let report = copy(&case.local(), &dst, &options(case.dir.path()));
    assert!(report.complete, "{report:?}");
}

#[test]
fn bytes_that_come_back_changed_are_found_and_never_get_a_final_name() {
    let case = Case::new();
    fs::write(case.src().join("small"), noise(1000, 1)).unwrap();
    fs::write(case.src().join("large"), noise(17 << 20, 2)).unwrap();
    let dst = case.object("t");
    case.server.bucket.faults.corrupt.store(true, Ordering::Relaxed);
    let report = copy(&case.local(), &dst, &options(case.dir.path()));
    assert!(!report.complete && report.error_count == 2, "{report:?}");
    let objects = case.server.bucket.objects();
    assert!(
        objects.keys().all(|key| key.ends_with('/') || key.contains(".tidepool-part.")),
        "{:?}",
        objects.keys()
    );
}

#[test]
fn a_server_killed_in_the_middle_is_never_success() {
    let mut case = Case::new();
    for n in 0..4 {
        fs::write(case.src().join(format!("{n}")), noise(24 << 20, n)).unwrap();
    }
    let url = ObjectUrl { patience: Duration::from_secs(1), ..case.server.url(case.dir.path(), "top") };
    let (src, dst) = (case.local(), ObjectEnd::open(&url, b"t", true).unwrap());
    let (bucket, how) = (case.server.bucket.clone(), options(case.dir.path()));
    let report = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&src, &dst, &how));
        while bucket.parts_sent.load(Ordering::Relaxed) < 3 && !copying.is_finished() {
            std::thread::yield_now();
        }
        case.server.kill();
        copying.join().unwrap()
    });
    assert!(!report.complete && report.error_count > 0, "{report:?}");
    for (key, stored) in bucket.objects().iter().filter(|(key, _)| !key.contains(".tidepool-part.")) {
        let name = key.rsplit('/').next().unwrap();
        assert!(name.is_empty() || stored.data == fs::read(case.src().join(name)).unwrap(), "{key}");
    }
}
