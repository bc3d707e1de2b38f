//! What a copy or a move takes the place of: files and links, and nothing that leads somewhere.

mod support;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use support::remote::{open, serve};
use support::{Place, memory_dir, noise};
use tidepool_stage::{
    Control, End, Identity, LocalEnd, Lone, StageOptions, StageReport, What, move_tree, stage,
};
use tidepool_types::Errno;

fn node(path: &Path, kind: FileType, dev: u64) {
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), dev).unwrap();
}

/// Everything that must stay, by name. Devices are root's to make.
fn ways(dir: &Path) -> Vec<&'static str> {
    fs::create_dir_all(dir).unwrap();
    node(&dir.join("fifo"), FileType::Fifo, 0);
    drop(UnixListener::bind(dir.join("socket")).unwrap());
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: devices: only root makes them");
        return vec!["fifo", "socket"];
    }
    node(&dir.join("null"), FileType::CharacterDevice, makedev(1, 3));
    node(&dir.join("loop"), FileType::BlockDevice, makedev(7, 250));
    vec!["fifo", "socket", "null", "loop"]
}

/// Kind, device and number of what has a name.
fn found(dir: &Path, name: &str) -> (bool, u64, u64) {
    let meta = fs::symlink_metadata(dir.join(name)).unwrap();
    let file_type = meta.file_type();
    let is_way = file_type.is_fifo()
        || file_type.is_socket()
        || file_type.is_char_device()
        || file_type.is_block_device();
    (is_way, meta.rdev(), meta.ino())
}

fn assert_refused(report: &StageReport, name: &str) {
    assert!(!report.complete && report.error_count == 1, "{name}: {report:#?}");
    let error = &report.errors[0];
    assert_eq!((error.path.as_str(), error.errno), (name, Some(Errno::EEXIST)), "{error}");
    assert!(error.cause.contains("has this name, and a copy replaces only files and links"), "{error}");
}

/// Copies `from` of the place's source over each of them, to the end that `open` opens.
fn each_stays(place: &Place, from: &str, open: &dyn Fn() -> Box<dyn End>, options: &StageOptions) {
    for name in ways(&place.dst()) {
        let before = found(&place.dst(), name);
        let what = What::Entry { from: from.into(), to: name.into() };
        let src = LocalEnd::open(&place.src()).unwrap();
        let report = stage(&src, &*open(), &what, options, &Control::default());
        assert!(!report.complete, "{from} over {name}: {report:#?}");
        assert!(report.errors[0].cause.contains("replaces only files and links"), "{report:#?}");
        assert_eq!(found(&place.dst(), name), before, "{from} over {name}");
        assert!(before.0 && place.parts_left().is_empty());
    }
}

#[test]
fn no_copy_replaces_a_device_a_fifo_or_a_socket() {
    for from in ["small", "large", "link"] {
        let place = Place::new(memory_dir());
        fs::write(place.src().join("small"), b"x").unwrap();
        fs::write(place.src().join("large"), vec![7; 17 << 20]).unwrap();
        symlink("small", place.src().join("link")).unwrap();
        let local = || -> Box<dyn End> { Box::new(LocalEnd::open(&place.dst()).unwrap()) };
        let ordered = StageOptions { ordered: true, ..StageOptions::default() };
        each_stays(&place, from, &local, &StageOptions::default());
        fs::remove_dir_all(place.dst()).unwrap();
        each_stays(&place, from, &local, &ordered);
        fs::remove_dir_all(place.dst()).unwrap();
        let server = serve(place.dir.path());
        let far = || -> Box<dyn End> { Box::new(open(server.address(), "dst", true)) };
        each_stays(&place, from, &far, &StageOptions::default());
    }
}

#[test]
fn files_of_a_tree_stay_away_from_them_and_the_rest_is_copied() {
    let place = Place::new(memory_dir());
    let names = ways(&place.dst());
    names.iter().for_each(|name| fs::write(place.src().join(name), noise(9000, 1)).unwrap());
    fs::write(place.src().join("other"), b"other").unwrap();
    fs::hard_link(place.src().join("other"), place.src().join("second")).unwrap();
    node(&place.dst().join("second"), FileType::Fifo, 0);
    let before: Vec<_> = names.iter().map(|name| found(&place.dst(), name)).collect();
    let report = place.copy(&place.options());
    assert!(!report.complete && report.error_count == names.len() as u64 + 1, "{report:#?}");
    let after: Vec<_> = names.iter().map(|name| found(&place.dst(), name)).collect();
    assert_eq!(before, after);
    assert!(found(&place.dst(), "second").0);
    assert_eq!(fs::read(place.dst().join("other")).unwrap(), b"other");
}

/// A rename within one file system, and a copy to another node.
#[test]
fn no_move_replaces_them() {
    let place = Place::new(memory_dir());
    let server = serve(place.dir.path());
    for name in ways(&place.dst()) {
        let before = found(&place.dst(), name);
        fs::write(place.src().join("f"), b"x").unwrap();
        let what = What::Entry { from: b"f".to_vec(), to: name.into() };
        let (src, near) = place.ends();
        let far = open(server.address(), "dst", true);
        for dst in [&near as &dyn End, &far] {
            let report = move_tree(&src, dst, &what, &StageOptions::default(), &Control::default());
            assert!(!report.complete && !report.renamed, "{name}: {report:#?}");
            assert_refused(&report.copy, "f");
            assert_eq!(
                (found(&place.dst(), name), fs::read(place.src().join("f")).unwrap()),
                (before, b"x".to_vec())
            );
        }
    }
}

/// One device is not another; the same one, and a FIFO, is what a second copy of a tree meets.
#[test]
fn a_device_is_replaced_by_none_but_the_same() {
    let place = Place::new(memory_dir());
    let names = ways(&place.src());
    fs::remove_file(place.src().join("socket")).unwrap();
    for _ in 0..2 {
        let report = place.copy(&place.options());
        assert!(report.complete && report.specials == names.len() as u64 - 1, "{report:#?}");
    }
    if !names.contains(&"null") {
        return;
    }
    fs::remove_file(place.src().join("null")).unwrap();
    node(&place.src().join("null"), FileType::CharacterDevice, makedev(1, 5));
    let report = place.copy(&place.options());
    assert_refused(&report, "null");
    assert_eq!(found(&place.dst(), "null").1, makedev(1, 3));
}

#[test]
fn a_small_file_that_goes_alone_replaces_nothing() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("f"), b"x").unwrap();
    for name in ways(&place.dst()) {
        let before = found(&place.dst(), name);
        let dir = |path: &Path| -> Arc<OwnedFd> { Arc::new(File::open(path).unwrap().into()) };
        let (from, to) = (dir(&place.src()), dir(&place.dst()));
        let user = Identity::of_thread().unwrap();
        let Some(lone) = Lone::read((&from, b"f"), (&to, name.as_bytes()), &user) else {
            println!("SKIPPED: needs a file system in memory at /dev/shm");
            return;
        };
        assert!(lone.put(&StageOptions::default(), &Control::default()).is_none(), "{name}");
        assert_eq!(found(&place.dst(), name), before, "{name}");
    }
}
