//! Copies between local directories: what arrives, what a rerun does, what is refused.

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::fault::{Fault, FaultEnd};
use support::{LARGE, Place, has_xattrs, memory_dir, noise, set_times, sparse};
use tidepool_stage::{Control, End, LocalEnd, Phase, StageOptions, What, stage};

/// What rsync would still change; `None` without rsync.
fn rsync_changes(src: &Path, dst: &Path, extra: &str) -> Option<String> {
    let mut command = Command::new("rsync");
    command.args(["-nacHi", "--delete"]).args(extra.split_whitespace());
    command.arg(format!("{}/", src.display())).arg(dst);
    let output = match command.output() {
        Ok(output) => output,
        Err(_) => {
            eprintln!("SKIPPED: rsync is not installed");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_torture_tree_arrives_as_it_is() {
    for dir in [tempfile::tempdir().unwrap(), memory_dir()] {
        let place = Place::with_torture(dir);
        let xattrs = has_xattrs(place.dir.path());
        if !xattrs {
            eprintln!("SKIPPED: no user attributes below {}", place.dir.path().display());
        }
        let report = place.copy(&place.options());
        assert!(report.complete, "{report:#?}");
        assert_eq!(report.warning_count, 0, "{:?}", report.warnings);
        place.assert_same();
        if let Some(changes) = rsync_changes(&place.src(), &place.dst(), if xattrs { "-AX" } else { "" }) {
            assert_eq!(changes, "");
        }
        assert_eq!((report.dirs, report.specials), (5, 1));
        assert_eq!(report.links, 4 + 2);
        assert!(report.bytes_copied < 1 << 20, "holes were written: {}", report.bytes_copied);
        assert_eq!(report.bytes_copied + report.holes, report.bytes_total);
        assert_eq!((place.journals(), place.parts_left().len()), (0, 0));
    }
}

#[test]
fn one_worker_without_journal_and_verification_does_the_same() {
    let place = Place::with_torture(memory_dir());
    let options = StageOptions { workers: 1, verify: false, ..StageOptions::default() };
    assert!(place.copy(&options).complete);
    place.assert_same();
}

/// On a disk, as far as the machine's temporary directory lies on one: read back at once, and after the sync.
#[test]
fn a_disk_gets_the_same_however_it_is_read_back() {
    for from_disk in [false, true] {
        let place = Place::with_torture(tempfile::tempdir().unwrap());
        fs::write(place.src().join("dense"), noise(40 << 20, 8)).unwrap();
        let (src, dst) = place.ends();
        let dst = if from_disk { dst.verified_from_disk() } else { dst };
        let report = stage(&src, &dst, &What::Tree, &place.options(), &Control::default());
        assert!(report.complete, "{report:#?}");
        place.assert_same();
        assert_eq!((place.journals(), place.parts_left().len()), (0, 0));
    }
}

#[test]
fn sockets_are_left_out_with_a_warning() {
    let place = Place::new(memory_dir());
    let _socket = std::os::unix::net::UnixListener::bind(place.src().join("s")).unwrap();
    let report = place.copy(&place.options());
    assert!(report.complete && report.warning_count == 1);
    assert_eq!(report.warnings[0].path, "s");
    place.assert_same();
}

/// Enters or makes nested directories one at a time, as a path that long cannot be passed.
fn deep(root: &Path, name: &str, depth: usize, make: bool) -> std::os::fd::OwnedFd {
    use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = open(root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        if make {
            mkdirat(&at, name, Mode::from_raw_mode(0o755)).unwrap();
        }
        at = openat(&at, name, flags, Mode::empty()).unwrap();
    }
    at
}

/// Removes what [`deep`] made; std's and rm's ways take quadratic time.
fn remove_upwards(mut at: std::os::fd::OwnedFd, name: &str, depth: usize) {
    use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
    unlinkat(&at, "f", AtFlags::empty()).unwrap();
    for _ in 0..depth {
        at = openat(&at, "..", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        unlinkat(&at, name, AtFlags::REMOVEDIR).unwrap();
    }
}

#[test]
fn a_path_longer_than_a_megabyte_is_no_problem() {
    use rustix::fs::{Mode, OFlags, openat};
    for (name, depth) in [("d".repeat(255), 4200), ("d".into(), 8_000)] {
        let place = Place::new(memory_dir());
        let bottom = deep(&place.src(), &name, depth, true);
        let file = openat(&bottom, "f", OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o644)).unwrap();
        rustix::io::pwrite(&file, b"deep", 0).unwrap();
        let start = Instant::now();
        let report = place.copy(&place.options());
        // Finding each level from the root again would take longer by far.
        assert!(start.elapsed() < Duration::from_secs(15), "took {:?}", start.elapsed());
        assert!(report.complete, "{report:#?}");
        assert_eq!(report.dirs, depth as u64 + 1);
        let there = deep(&place.dst(), &name, depth, false);
        let mut text = String::new();
        let copied = openat(&there, "f", OFlags::RDONLY, Mode::empty()).unwrap();
        fs::File::from(copied).read_to_string(&mut text).unwrap();
        assert_eq!(text, "deep");
        place.assert_same();
        remove_upwards(bottom, &name, depth);
        remove_upwards(there, &name, depth);
    }
}

#[test]
fn ten_sparse_gigabytes_take_no_time_and_no_space() {
    for dir in [tempfile::tempdir().unwrap(), memory_dir()] {
        let place = Place::new(dir);
        sparse(&place.src().join("big"), 10 << 30, &[0, 5 << 30, (10 << 30) - 4096]);
        let start = Instant::now();
        let report = place.copy(&place.options());
        let took = start.elapsed();
        assert!(report.complete && report.bytes_copied <= 64 << 10, "{report:#?}");
        assert!(took < Duration::from_secs(2), "took {took:?}");
        assert!(fs::metadata(place.dst().join("big")).unwrap().blocks() * 512 <= 64 << 10);
        place.assert_same();
    }
}

#[test]
fn a_rerun_copies_nothing_and_equal_times_prove_nothing() {
    let place = Place::with_torture(memory_dir());
    let total = place.copy(&place.options()).bytes_total;
    let again = place.copy(&place.options());
    assert!(again.complete);
    assert_eq!((again.bytes_copied, again.bytes_skipped), (0, total));
    place.assert_same();
    // Same size and time, other content: as after clock skew.
    let victim = place.dst().join("a/b/odd size");
    let meta = fs::metadata(&victim).unwrap();
    fs::OpenOptions::new().write(true).open(&victim).unwrap().write_all_at(b"X", 500).unwrap();
    set_times(&victim, meta.mtime(), meta.mtime_nsec());
    let trusting = StageOptions { trust_mtime: true, ..place.options() };
    assert_eq!(place.copy(&trusting).bytes_copied, 0);
    assert!(!place.differences().is_empty());
    let careful = place.copy(&place.options());
    assert!(careful.complete);
    assert_eq!(careful.bytes_copied, 70_001);
    place.assert_same();
}

#[test]
fn what_the_destination_has_besides_stays() {
    let place = Place::with_torture(memory_dir());
    fs::create_dir(place.dst()).unwrap();
    fs::write(place.dst().join("mine"), b"keep").unwrap();
    fs::write(place.dst().join(".tidepool-part.0123456789abcdef.fedcba9876543210"), b"another's").unwrap();
    fs::write(place.dst().join("three"), b"old").unwrap();
    assert!(place.copy(&place.options()).complete);
    assert!(place.copy(&place.options()).complete);
    assert_eq!(fs::read(place.dst().join("mine")).unwrap(), b"keep");
    assert_eq!(place.parts_left().len(), 1);
    assert_eq!(place.differences().len(), 2, "{:?}", place.differences());
}

#[test]
fn hard_links_are_joined_and_parted_as_at_the_source() {
    let place = Place::new(memory_dir());
    for name in ["p", "q", "r"] {
        fs::write(place.src().join(name), b"same").unwrap();
        set_times(&place.src().join(name), 5, 5);
    }
    assert!(place.copy(&place.options()).complete);
    fs::remove_file(place.src().join("q")).unwrap();
    fs::hard_link(place.src().join("p"), place.src().join("q")).unwrap();
    assert!(place.copy(&place.options()).complete);
    place.assert_same();
    fs::remove_file(place.src().join("q")).unwrap();
    fs::write(place.src().join("q"), b"same").unwrap();
    set_times(&place.src().join("q"), 5, 5);
    assert!(place.copy(&place.options()).complete);
    place.assert_same();
}

#[test]
fn things_of_another_kind_are_not_replaced_unless_by_a_verified_entry() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("file"), b"f").unwrap();
    fs::create_dir(place.src().join("dir")).unwrap();
    fs::write(place.src().join("was link"), b"w").unwrap();
    fs::create_dir_all(place.dst().join("file")).unwrap();
    fs::write(place.dst().join("file/inside"), b"precious").unwrap();
    fs::write(place.dst().join("dir"), b"precious").unwrap();
    symlink("/etc/passwd", place.dst().join("was link")).unwrap();
    let report = place.copy(&place.options());
    assert!(!report.complete);
    assert_eq!(report.error_count, 2, "{report:#?}");
    for error in &report.errors {
        assert!(error.to_string().contains("another kind"), "{error}");
    }
    assert_eq!(fs::read(place.dst().join("file/inside")).unwrap(), b"precious");
    assert_eq!(fs::read(place.dst().join("dir")).unwrap(), b"precious");
    assert!(fs::symlink_metadata(place.dst().join("was link")).unwrap().is_file());
    assert!(place.parts_left().is_empty());
}

#[test]
fn a_destination_in_its_source_is_refused() {
    let place = Place::with_torture(memory_dir());
    let src = LocalEnd::open(&place.src()).unwrap();
    let inside = LocalEnd::create(&place.src().join("a/b/target")).unwrap();
    let options = StageOptions { workers: 2, ..StageOptions::default() };
    let report = stage(&src, &inside, &What::Tree, &options, &Control::default());
    assert!(!report.complete);
    assert!(report.errors.iter().any(|e| e.cause.contains("inside the source")), "{report:#?}");
    let same = stage(&src, &src, &What::Tree, &options, &Control::default());
    assert!(!same.complete && same.errors[0].cause.contains("the same"));
}

#[test]
fn a_dry_run_counts_and_writes_nothing() {
    let place = Place::with_torture(memory_dir());
    let dry = place.copy(&StageOptions { dry_run: true, ..place.options() });
    assert!(!dry.complete && dry.error_count == 0);
    assert_eq!(fs::read_dir(place.dst()).unwrap().count(), 0);
    let real = place.copy(&place.options());
    assert_eq!((dry.dirs, dry.specials), (real.dirs, real.specials));
    // Names, not objects: the hard-linked file of 9000 bytes has three.
    assert_eq!(dry.files + dry.links, real.files + real.links);
    assert_eq!(dry.bytes_total, real.bytes_total + 2 * 9000);
}

#[test]
fn a_single_entry_may_get_another_name() {
    let place = Place::with_torture(memory_dir());
    let (src, dst) = place.ends();
    let copy = |from: &str, to: &str| {
        let what = What::Entry { from: from.into(), to: to.into() };
        stage(&src, &dst, &what, &place.options(), &Control::default())
    };
    assert!(copy("a", "copy of a").complete);
    assert!(copy("sparse", "thin").complete);
    assert!(copy("absolute", "link").complete);
    assert_eq!(fs::read(place.dst().join("copy of a/b/page")).unwrap(), noise(4096, 1));
    assert_eq!(fs::metadata(place.dst().join("thin")).unwrap().len(), 3 << 20);
    assert!(fs::read_link(place.dst().join("link")).unwrap().ends_with("hostname"));
    let missing = copy("nothing", "n");
    assert!(!missing.complete);
    assert!(missing.errors[0].to_string().contains("no such file"), "{:?}", missing.errors);
    for bad in ["", "..", "a/b"] {
        assert!(!copy(bad, "x").complete);
    }
}

#[test]
fn the_bandwidth_limit_holds() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("f"), noise(8 << 20, 1)).unwrap();
    let start = Instant::now();
    let report = place.copy(&StageOptions { bandwidth: Some(16 << 20), ..place.options() });
    assert!(report.complete);
    assert!(start.elapsed() >= Duration::from_millis(380), "{:?}", start.elapsed());
}

#[test]
fn progress_rises_to_a_hundred_only_at_the_end() {
    let place = Place::with_torture(memory_dir());
    fs::write(place.src().join("dense"), noise(40 << 20, 8)).unwrap();
    let (src, dst) = place.ends();
    let control = Control::default();
    let options = StageOptions { bandwidth: Some(100 << 20), count_ahead: true, ..place.options() };
    let seen = std::thread::scope(|scope| {
        let copy = scope.spawn(|| stage(&src, &dst, &What::Tree, &options, &control));
        let mut seen = Vec::new();
        while !copy.is_finished() {
            seen.push(control.progress());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(copy.join().unwrap().complete);
        seen
    });
    for pair in seen.windows(2) {
        assert!(pair[0].files_done <= pair[1].files_done && pair[0].bytes_done <= pair[1].bytes_done);
        assert!(pair[0].percent.unwrap_or(0.0) <= pair[1].percent.unwrap_or(100.0));
    }
    assert!(seen.iter().all(|p| p.phase == Phase::Complete || p.percent.is_none_or(|p| p < 100.0)));
    let last = control.progress();
    assert_eq!((last.phase, last.percent), (Phase::Complete, Some(100.0)));
    assert_eq!((last.files_done, last.bytes_done), (last.files_seen, last.bytes_seen));
}

/// While one worker gives a file its name the others have nothing left to do on it, and nothing to count.
#[test]
fn a_large_file_counts_once_whether_it_is_verified_or_not() {
    for verify in [false, true] {
        let place = Place::new(memory_dir());
        sparse(&place.src().join("large"), LARGE, &[0, 9 << 20, 17 << 20]);
        let (src, dst) = place.ends();
        let control = Control::default();
        let options = StageOptions { verify, ..place.options() };
        let dst = FaultEnd::new(dst, Fault::SlowNames, 0);
        assert!(stage(&src, &dst, &What::Tree, &options, &control).complete);
        let done = control.progress();
        assert_eq!((done.bytes_done, done.bytes_seen), (LARGE, LARGE), "verify: {verify}");
    }
}

#[test]
fn a_cancelled_copy_stops_soon_and_goes_on_where_it_was() {
    let place = Place::with_torture(memory_dir());
    let total: u64 = 64 << 20;
    fs::write(place.src().join("dense"), noise(total as usize, 8)).unwrap();
    let (src, dst) = place.ends();
    let control = Control::default();
    let options = StageOptions { bandwidth: Some(40 << 20), ..place.options() };
    let first = std::thread::scope(|scope| {
        let copy = scope.spawn(|| stage(&src, &dst, &What::Tree, &options, &control));
        // Three ranges of the large file, however much of the others.
        let has_begun = || {
            let now = control.progress();
            now.walk_complete && now.bytes_done + total >= now.bytes_seen + (24 << 20)
        };
        while !has_begun() {
            std::thread::sleep(Duration::from_millis(1));
        }
        control.cancel();
        let start = Instant::now();
        let report = copy.join().unwrap();
        assert!(start.elapsed() < Duration::from_millis(500), "took {:?}", start.elapsed());
        report
    });
    assert!(first.cancelled && !first.complete);
    assert!(!place.dst().join("dense").exists());
    place.assert_no_partial_file();
    let second = place.copy(&place.options());
    assert!(second.complete, "{second:#?}");
    // Each worker may have been inside one range of 8 MiB.
    let moved = first.bytes_copied + second.bytes_copied;
    assert!(moved <= total + (24 << 20) + (1 << 20), "moved {moved} of {total}");
    assert!(second.bytes_copied < total - (8 << 20), "nothing was resumed: {second:#?}");
    place.assert_same();
    assert_eq!((place.journals(), place.parts_left().len()), (0, 0));
}

#[test]
fn temporaries_go_when_cancelled_if_asked_to() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("dense"), noise(32 << 20, 8)).unwrap();
    let (src, dst) = place.ends();
    let control = Control::default();
    let options = StageOptions { bandwidth: Some(10 << 20), clean_on_cancel: true, ..place.options() };
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| stage(&src, &dst, &What::Tree, &options, &control));
        while control.progress().rate == 0.0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        control.cancel();
        assert!(copy.join().unwrap().cancelled);
    });
    assert!(place.parts_left().is_empty());
    assert!(place.copy(&place.options()).complete);
    place.assert_same();
}

#[test]
fn the_same_copy_twice_at_once_is_refused() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("dense"), noise(8 << 20, 8)).unwrap();
    let (src, dst) = place.ends();
    let options = StageOptions { bandwidth: Some(16 << 20), ..place.options() };
    let control = Control::default();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| stage(&src, &dst, &What::Tree, &options, &control));
        while control.progress().rate == 0.0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let second = stage(&src, &dst, &What::Tree, &options, &Control::default());
        assert!(second.errors[0].cause.contains("already running"), "{second:#?}");
        assert!(first.join().unwrap().complete);
    });
}

#[test]
fn a_directory_of_many_entries_is_listed_in_pages() {
    let place = Place::new(memory_dir());
    for i in 0..12_000 {
        fs::write(place.src().join(format!("f{i}")), i.to_string()).unwrap();
        if i % 40 == 0 {
            fs::create_dir(place.src().join(format!("d{i}"))).unwrap();
        }
    }
    let report = place.copy(&place.options());
    assert!(report.complete);
    assert_eq!((report.files, report.dirs), (12_000, 301));
    place.assert_same();
}

/// The process that [`killed_at_any_moment`] kills.
#[test]
#[ignore = "started by another test"]
fn child_copies() {
    let Some(dir) = std::env::var_os("STAGE_CHILD") else { return };
    let dir = Path::new(&dir);
    let src = LocalEnd::open(&dir.join("src")).unwrap();
    let dst = LocalEnd::create(&dir.join("dst")).unwrap();
    let journal_dir = Some(dir.join("state"));
    let options =
        StageOptions { workers: 2, journal_dir, bandwidth: Some(60 << 20), ..StageOptions::default() };
    stage(&src, &dst, &What::Tree, &options, &Control::default());
    assert!(!src.describe().is_empty());
}

/// Proves that after kill -9 no final name holds a partial file, and that reruns end with
/// the same tree and move little more than the data: the process is killed at twelve moments
/// of one copy, each time going on from what the one before left.
#[test]
fn killed_at_any_moment() {
    survives_kills(Place::with_torture(memory_dir()));
}

/// The same where files wait for a common sync, if the temporary directory lies on a disk.
#[test]
fn killed_at_any_moment_on_a_disk() {
    survives_kills(Place::with_torture(tempfile::tempdir().unwrap()));
}

fn survives_kills(place: Place) {
    fs::write(place.src().join("dense"), noise(48 << 20, 8)).unwrap();
    for i in 0..300 {
        fs::write(place.src().join(format!("f{i}")), noise(20_000, i)).unwrap();
    }
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_copies", "--ignored"])
            .env("STAGE_CHILD", place.dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(30 + 37 * round % 190));
        child.kill().unwrap();
        child.wait().unwrap();
        if place.dst().exists() {
            place.assert_no_partial_file();
        }
    }
    let last = place.copy(&place.options());
    assert!(last.complete, "{last:#?}");
    place.assert_same();
    assert_eq!((place.journals(), place.parts_left().len()), (0, 0));
    assert_eq!(fs::metadata(place.dst().join("large sparse")).unwrap().len(), LARGE);
}

/// Whoever counts ahead lists the same directories at the same time: nobody may miss an entry.
#[test]
fn listings_at_the_same_time_are_all_whole() {
    use tidepool_stage::{Cursor, End};
    let dir = tempfile::tempdir().unwrap();
    for n in 0..300 {
        fs::write(dir.path().join(format!("file{n}")), b"x").unwrap();
    }
    let end = tidepool_stage::LocalEnd::open(dir.path()).unwrap();
    let list = || {
        for _ in 0..300 {
            let (mut count, mut next) = (0, Some(Cursor::Start));
            while let Some(from) = next {
                let (items, more) = end.list(&end.root(), &from).unwrap();
                (count, next) = (count + items.len(), more);
            }
            assert_eq!(count, 300);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(list))));
}

/// Who gives way to others holds a core for a short call at a time, also with large files.
#[test]
fn a_gentle_copy_writes_little_at_a_time() {
    let largest = |gentle: bool| {
        let place = Place::new(memory_dir());
        fs::write(place.src().join("large"), noise(20 << 20, 1)).unwrap();
        fs::write(place.src().join("middle"), noise(3 << 20, 2)).unwrap();
        let (src, dst) = place.ends();
        let dst = FaultEnd::new(dst, Fault::None, 0);
        let report = std::thread::scope(|scope| {
            let copy = scope.spawn(|| {
                if gentle {
                    tidepool_stage::be_gentle().unwrap();
                }
                stage(&src, &dst, &What::Tree, &place.options(), &Control::default())
            });
            copy.join().unwrap()
        });
        assert!(report.complete);
        place.assert_same();
        dst.most_written.load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!([largest(false), largest(true)], [1 << 20, 128 << 10]);
}
