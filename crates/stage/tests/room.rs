//! A copy that has no room at the destination ends before it has used up what there is; one that has room is never refused.

mod support;

use std::fs::{self, File};
use std::path::Path;
use support::noise;
use tempfile::TempDir;
use tidepool_stage::{Control, LocalEnd, StageOptions, StageReport, What, stage};
use tidepool_testkit::SmallDisk;

const MIB: u64 = 1 << 20;
const ENOSPC: &str = "ENOSPC";

/// A source on one file system, and a destination on a small one.
struct Place {
    dir: TempDir,
    _disk: SmallDisk,
}

impl Place {
    /// None without the rights to mount.
    fn new(room: u64) -> Option<Place> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        let disk = SmallDisk::mount(&dir.path().join("dst"), room)?;
        Some(Place { dir, _disk: disk })
    }

    fn src(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("src").join(name)
    }

    fn dst(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("dst").join(name)
    }

    fn write(&self, name: &str, bytes: u64) {
        fs::write(self.src(name), noise(bytes as usize, 7)).unwrap();
    }

    fn copy(&self, what: &What, more: StageOptions) -> StageReport {
        let end = |name: &str| LocalEnd::open(&self.dir.path().join(name)).unwrap();
        let options = StageOptions { journal_dir: Some(self.dir.path().join("journals")), ..more };
        stage(&end("src"), &end("dst"), what, &options, &Control::default())
    }

    /// As a copy leaves it.
    fn is_there(&self, name: &str) {
        fs::copy(self.src(name), self.dst(name)).unwrap();
        let time = fs::metadata(self.src(name)).unwrap().modified().unwrap();
        File::options().write(true).open(self.dst(name)).unwrap().set_modified(time).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let all = fs::read_dir(self.dst("")).unwrap();
        all.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

/// So slow that it is known what is to come before much is there.
fn slow(count_ahead: bool) -> StageOptions {
    StageOptions { bandwidth: Some(MIB), count_ahead, ..StageOptions::default() }
}

fn refused(report: &StageReport, most: u64) {
    assert!(!report.complete && !report.cancelled, "{report:#?}");
    assert!(report.bytes_copied <= most, "{} bytes before it was known: {report:#?}", report.bytes_copied);
    let error = report.errors[0].to_string();
    assert!(error.contains(ENOSPC) && error.contains("are to come") && error.contains("are free"), "{error}");
    assert_eq!(report.error_count, 1, "{report:#?}");
}

#[test]
fn what_cannot_fit_is_known_before_the_room_is_used_up() {
    for count_ahead in [false, true] {
        let Some(place) = Place::new(20 * MIB) else { return };
        (0..30).for_each(|n| place.write(&format!("f{n}"), MIB));
        refused(&place.copy(&What::Tree, slow(count_ahead)), 10 * MIB);
        // With room it goes on, and nothing is left of the first try.
        (0..20).for_each(|n| fs::remove_file(place.src(&format!("f{n}"))).unwrap());
        let again = place.copy(&What::Tree, StageOptions::default());
        assert!(again.complete, "{again:#?}");
        assert!(place.names().iter().all(|name| name.starts_with('f')), "{:?}", place.names());
    }
}

#[test]
fn one_large_file_as_well() {
    for count_ahead in [false, true] {
        let Some(place) = Place::new(20 * MIB) else { return };
        place.write("large", 30 * MIB);
        let what = What::Entry { from: "large".into(), to: "there".into() };
        refused(&place.copy(&what, slow(count_ahead)), 10 * MIB);
        assert!(place.names().iter().all(|name| name != "there"), "{:?}", place.names());
    }
}

/// Without a journal no rerun would know what is there.
#[test]
fn nothing_stays_that_nobody_knows() {
    let Some(place) = Place::new(20 * MIB) else { return };
    place.write("large", 30 * MIB);
    let end = |name: &str| LocalEnd::open(&place.dir.path().join(name)).unwrap();
    let report = stage(&end("src"), &end("dst"), &What::Tree, &slow(false), &Control::default());
    refused(&report, 10 * MIB);
    assert!(place.names().is_empty(), "{:?}", place.names());
}

/// A name, MiB of the destination, and what makes both sides.
type Case = (&'static str, u64, fn(&Place));

/// What looks like too much, and is not.
#[test]
fn what_fits_is_never_refused() {
    let cases: [Case; 7] = [
        ("holes", 20, |place| {
            File::create(place.src("sparse")).unwrap().set_len(200 * MIB).unwrap();
            place.write("file", 4 * MIB);
        }),
        ("several names", 20, |place| {
            place.write("one", 6 * MIB);
            (0..5).for_each(|n| fs::hard_link(place.src("one"), place.src(&format!("too{n}"))).unwrap());
        }),
        ("one of several names is there", 22, |place| {
            (0..6).for_each(|n| {
                place.write(&format!("z{n}"), 2 * MIB);
                fs::hard_link(place.src(&format!("z{n}")), place.src(&format!("a{n}"))).unwrap();
                place.is_there(&format!("z{n}"));
            });
            place.write("more", 6 * MIB);
        }),
        ("allocated and not written", 20, |place| {
            let file = File::create(place.src("log")).unwrap();
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 60 * MIB).unwrap();
            file.set_len(61 * MIB).unwrap();
            place.write("file", 4 * MIB);
        }),
        ("most is there", 22, |place| {
            (0..8).for_each(|n| place.write(&format!("f{n}"), 2 * MIB));
            (0..6).for_each(|n| place.is_there(&format!("f{n}")));
        }),
        ("it replaces what is there", 58, |place| {
            (0..20).for_each(|n| place.write(&format!("f{n}"), 2 * MIB));
            (0..20).for_each(|n| fs::write(place.dst(&format!("f{n}")), vec![1; 2 * MIB as usize]).unwrap());
        }),
        ("links and empty files", 20, |place| {
            (0..100).for_each(|n| {
                std::os::unix::fs::symlink("x".repeat(4000), place.src(&format!("l{n}"))).unwrap();
                place.write(&format!("e{n}"), 0);
            });
        }),
    ];
    for (case, room, make) in cases {
        for count_ahead in [false, true] {
            let Some(place) = Place::new(room * MIB) else { return };
            make(&place);
            let options = StageOptions { count_ahead, workers: 1, ..StageOptions::default() };
            let report = place.copy(&What::Tree, options);
            assert!(report.complete, "{case}: {report:#?}");
            same(&place.src(""), &place.dst(""), case);
        }
    }
}

fn same(one: &Path, other: &Path, case: &str) {
    let done =
        std::process::Command::new("diff").args(["-r", "--no-dereference"]).arg(one).arg(other).output();
    let done = done.expect("diff is there");
    assert!(done.status.success(), "{case}: {}", String::from_utf8_lossy(&done.stdout));
}

/// Another file system on a directory of the destination has room of its own.
#[test]
fn what_goes_to_another_file_system_does_not_count() {
    let Some(place) = Place::new(8 * MIB) else { return };
    fs::create_dir(place.src("sub")).unwrap();
    place.write("sub/large", 20 * MIB);
    let Some(_more) = SmallDisk::mount(&place.dst("sub"), 30 * MIB) else { return };
    let report = place.copy(&What::Tree, slow(true));
    let said = format!("{:?}", report.errors);
    assert!(!said.contains("are to come"), "{said}");
}
