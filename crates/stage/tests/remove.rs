//! Removing: what goes, what stays, and what is said about it.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::fault::{Fault, FaultEnd};
use support::{Place, memory_dir};
use tidepool_stage::{
    Control, Cursor, Doomed, End, LocalEnd, PoolEnd, RemoveReport, Spared, StageOptions, What, remove,
    remove_but, stage,
};
use tidepool_testkit::{ActAs, Cluster, cred};
use tidepool_types::Errno;

fn remove_entry(end: &dyn End, name: &str) -> RemoveReport {
    let options = StageOptions { workers: 4, ..StageOptions::default() };
    remove(end, &Doomed::Entry(name.into()), &options, &Control::default())
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_tree_goes_and_what_links_point_to_stays() {
    for dir in [tempfile::tempdir().unwrap(), memory_dir()] {
        let place = Place::with_torture(dir);
        let beside = place.dir.path().join("beside");
        fs::create_dir(&beside).unwrap();
        fs::write(beside.join("kept"), b"kept").unwrap();
        symlink(&beside, place.src().join("a/away")).unwrap();
        let end = LocalEnd::open(place.dir.path()).unwrap();
        let control = Control::default();
        let report = remove(&end, &Doomed::Entry(b"src".into()), &StageOptions::default(), &control);
        assert!(report.complete && report.error_count == 0, "{report:#?}");
        assert_eq!((report.dirs, report.files), (5, 20));
        assert!(!place.src().exists());
        assert_eq!(fs::read(beside.join("kept")).unwrap(), b"kept");
        assert_eq!(control.progress().percent, Some(100.0));
    }
}

#[test]
fn single_entries_and_all_content() {
    let place = Place::with_torture(memory_dir());
    let end = LocalEnd::open(&place.src()).unwrap();
    for name in ["absolute", "fifo", "-rf", "empty dir"] {
        assert!(remove_entry(&end, name).complete, "{name}");
        assert!(place.src().join(name).symlink_metadata().is_err(), "{name}");
    }
    let report = remove_entry(&end, "none");
    assert_eq!((report.complete, report.errors[0].errno), (false, Some(Errno::ENOENT)));
    assert_eq!(report.errors[0].path, "none");
    for name in ["", ".", "..", "a/b"] {
        assert!(!remove_entry(&end, name).complete, "{name}");
    }
    let report = remove(&end, &Doomed::Content, &StageOptions::default(), &Control::default());
    assert!(report.complete, "{report:#?}");
    assert_eq!(count(&place.src()), 0);
}

#[test]
fn large_directories_and_deep_trees_go() {
    let place = Place::new(memory_dir());
    for i in 0..5000 {
        fs::write(place.src().join(format!("{i}")), b"").unwrap();
    }
    let mut deep = place.src();
    (0..200).for_each(|_| deep.push("d"));
    fs::create_dir_all(&deep).unwrap();
    let report = remove_entry(&LocalEnd::open(place.dir.path()).unwrap(), "src");
    assert!(report.complete, "{report:#?}");
    assert_eq!((report.files, report.dirs), (5000, 201));
}

#[test]
fn what_cannot_be_removed_stays_and_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can act as others");
        return;
    }
    let place = Place::new(memory_dir());
    let _ = place.dir.path().metadata().unwrap();
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    {
        let _acting = ActAs::user(65534);
        fs::create_dir_all(place.dir.path().join("tree/open")).unwrap();
        fs::create_dir_all(place.dir.path().join("tree/closed")).unwrap();
        fs::write(place.dir.path().join("tree/open/gone"), b"").unwrap();
        fs::write(place.dir.path().join("tree/closed/stays"), b"").unwrap();
        fs::set_permissions(place.dir.path().join("tree/closed"), fs::Permissions::from_mode(0o555)).unwrap();
        let report = remove_entry(&LocalEnd::open(place.dir.path()).unwrap(), "tree");
        assert!(!report.complete && report.error_count == 1, "{report:#?}");
        let error = &report.errors[0];
        assert_eq!((error.path.as_str(), error.errno), ("tree/closed/stays", Some(Errno::EACCES)));
        assert!(error.to_string().contains("make the directory it is in writable"), "{error}");
        assert_eq!((report.files, report.dirs), (1, 1));
    }
    assert!(place.dir.path().join("tree/closed/stays").exists());
    assert!(!place.dir.path().join("tree/open").exists());
}

/// Ends a mount also when the test fails.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn other_file_systems_are_not_entered() {
    let place = Place::new(memory_dir());
    let (other, point) = (place.dir.path().join("other"), place.src().join("dir/point"));
    fs::create_dir_all(&point).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("kept"), b"kept").unwrap();
    fs::write(place.src().join("dir/gone"), b"").unwrap();
    for how in
        [vec!["--bind".as_ref(), other.as_os_str()], vec!["-t".as_ref(), "tmpfs".as_ref(), "none".as_ref()]]
    {
        let mounted = Command::new("mount").args(how).arg(&point).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: mounting needs root");
            return;
        }
        let _mounted = Mounted(&point);
        fs::write(point.join("kept"), b"kept").unwrap();
        let report = remove_entry(&LocalEnd::open(place.dir.path()).unwrap(), "src");
        assert!(!report.complete && report.error_count == 1, "{report:#?}");
        assert_eq!(report.errors[0].path, "src/dir/point");
        assert!(report.errors[0].cause.contains("another file system is mounted"), "{report:#?}");
        assert_eq!(fs::read(point.join("kept")).unwrap(), b"kept");
        assert!(!place.src().join("dir/gone").exists());
    }
}

#[test]
fn a_cancelled_removal_stops_and_a_second_ends_it() {
    let place = Place::new(memory_dir());
    for i in 0..100 {
        fs::create_dir(place.src().join(format!("{i}"))).unwrap();
    }
    let end = LocalEnd::open(place.dir.path()).unwrap();
    let control = Control::default();
    control.cancel();
    let report = remove(&end, &Doomed::Entry(b"src".into()), &StageOptions::default(), &control);
    assert!(report.cancelled && !report.complete, "{report:#?}");
    assert!(place.src().exists());
    assert!(remove_entry(&end, "src").complete);
}

/// Whichever call fails, what is left is reported, and nothing beside the tree is touched.
#[test]
fn every_failure_is_reported() {
    let mut at = 0;
    loop {
        let place = Place::with_torture(memory_dir());
        let mut end = FaultEnd::new(LocalEnd::open(place.dir.path()).unwrap(), Fault::Once, at);
        end.removes = true;
        let report = remove_entry(&end, "src");
        if report.complete {
            assert!(end.log.lock().unwrap().is_empty(), "call {at} failed unseen");
            assert!(!place.src().exists());
            break;
        }
        assert!(report.error_count >= 1 && report.errors[0].errno == Some(Errno::EIO), "{at}: {report:#?}");
        let again = remove_entry(&end, "src");
        assert!(again.complete || !place.src().exists(), "{at}: {again:#?}");
        at += 1;
    }
    println!("{at} places to fail");
    assert!(at > 25);
}

/// Two removals may meet, one of a place in the other: what the other took is gone, which is all that was asked for.
#[test]
fn what_somebody_else_removes_meanwhile_is_no_failure() {
    let options = StageOptions { workers: 1, ..StageOptions::default() };
    let mut at = 0;
    loop {
        let place = Place::with_torture(memory_dir());
        let mut end = FaultEnd::new(LocalEnd::open(place.dir.path()).unwrap(), Fault::Overtaken, at);
        end.removes = true;
        let tree = place.src();
        end.meanwhile = Box::new(move || drop(fs::remove_dir_all(&tree)));
        let doomed = Doomed::Entry(b"src".into());
        let report = remove_but(&end, &doomed, &Spared::default(), &options, &Control::default());
        let overtaken = end.log.lock().unwrap().pop();
        assert!(report.complete && report.error_count == 0, "call {at}, {overtaken:?}: {report:#?}");
        if overtaken.is_none() {
            break;
        }
        at += 1;
    }
    println!("overtaken at {at} places");
    assert!(at > 25);
}

/// As two workers of a stager meet.
#[test]
fn a_removal_and_one_of_a_place_in_it_both_end_well() {
    for round in 0..400 {
        let place = Place::new(memory_dir());
        let inner = place.src().join("in/again");
        fs::create_dir_all(inner.join("deep")).unwrap();
        (0..round % 20).for_each(|at| fs::write(inner.join(format!("deep/{at}")), b"").unwrap());
        let (above, below) = (place.dir.path().to_path_buf(), place.src().join("in"));
        let ends = [(above, "src"), (below, "again")]
            .map(|(dir, name)| (LocalEnd::open(&dir).unwrap(), Doomed::Entry(name.into())));
        std::thread::scope(|scope| {
            for (end, doomed) in &ends {
                scope.spawn(move || {
                    let options = StageOptions { workers: 2, ..StageOptions::default() };
                    let report = remove_but(end, doomed, &Spared::default(), &options, &Control::default());
                    assert!(report.complete, "round {round}: {report:#?}");
                });
            }
        });
        assert!(!place.src().exists());
    }
}

#[test]
fn trees_of_pools_go() {
    let place = Place::with_torture(memory_dir());
    let cluster = Cluster::start(2);
    let client = Arc::new(cluster.client());
    let target = PoolEnd::at_path(client.clone(), b"/in/tree", cred(), true).unwrap();
    let source = LocalEnd::open(&place.src()).unwrap();
    let report = stage(&source, &target, &What::Tree, &StageOptions::default(), &Control::default());
    assert!(report.complete, "{report:#?}");
    let end = PoolEnd::at_path(client, b"/in", cred(), false).unwrap();
    let report = remove_entry(&end, "tree");
    assert!(report.complete, "{report:#?}");
    assert_eq!((report.dirs, report.files), (5, 19));
    assert!(end.list(&end.root(), &Cursor::Start).unwrap().0.is_empty());
}
