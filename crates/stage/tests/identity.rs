//! Acting as another user, for a copy or for a single call.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use support::{Place, has_xattrs, memory_dir};
use tidepool_stage::{ActAs, End, Identity, LocalEnd, StageOptions};
use tidepool_types::Errno;

const NOBODY: u32 = 65534;

fn nobody() -> Identity {
    Identity { uid: NOBODY, gid: NOBODY, groups: vec![] }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can act as others");
    }
    root
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A place where nobody may read the source and write the target.
fn open_place() -> Place {
    let place = Place::new(memory_dir());
    set_mode(place.dir.path(), 0o755);
    fs::create_dir(place.dst()).unwrap();
    chown(place.dst(), Some(NOBODY), Some(NOBODY)).unwrap();
    place
}

#[test]
fn oneself_is_no_other() {
    let own = Identity::of_thread().unwrap();
    let same = Identity { groups: own.groups.iter().rev().copied().collect(), ..own.clone() };
    let acting = ActAs::new(&same).unwrap();
    assert_eq!(Identity::of_thread().unwrap(), own);
    drop(acting);
    assert_eq!(Identity::of_thread().unwrap(), own);
}

#[test]
fn one_thread_acts_and_comes_back() {
    if !is_root() {
        let error = ActAs::new(&nobody()).err().expect("without root nobody acts as others");
        assert!(error.errno == Errno::EPERM && error.to_string().contains("root"), "{error}");
        return;
    }
    let own = Identity::of_thread().unwrap();
    let other = Identity { uid: 1234, gid: 2345, groups: vec![7, 8] };
    {
        let _acting = ActAs::new(&other).unwrap();
        assert_eq!(Identity::of_thread().unwrap(), other);
        let child = std::thread::spawn(|| Identity::of_thread().unwrap());
        assert_eq!(child.join().unwrap(), other);
        // Root is left behind, so there is no way to a third user.
        let error = ActAs::new(&nobody()).err().expect("a user acts as nobody else");
        assert_eq!(error.errno, Errno::EPERM);
        assert_eq!(Identity::of_thread().unwrap(), other);
        // The real user stays root, which the other may not signal.
        assert!(rustix::process::getuid().is_root());
    }
    assert_eq!(Identity::of_thread().unwrap(), own);
}

#[test]
fn other_threads_stay_who_they_are() {
    if !is_root() {
        return;
    }
    let (tell, told) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let before = std::thread::spawn(move || {
        gone.recv().unwrap();
        tell.send(Identity::of_thread().unwrap()).unwrap();
    });
    let own = Identity::of_thread().unwrap();
    let _acting = ActAs::new(&nobody()).unwrap();
    go.send(()).unwrap();
    assert_eq!(told.recv().unwrap(), own);
    before.join().unwrap();
}

#[test]
fn a_copy_has_the_rights_of_whom_it_acts_for() {
    if !is_root() {
        return;
    }
    let place = open_place();
    fs::write(place.src().join("public"), b"all may read this").unwrap();
    fs::write(place.src().join("secret"), b"only root may").unwrap();
    set_mode(&place.src().join("secret"), 0o600);
    fs::create_dir(place.src().join("closed")).unwrap();
    set_mode(&place.src().join("closed"), 0o700);
    let report = {
        let _acting = ActAs::new(&nobody()).unwrap();
        let rights = LocalEnd::open(&place.src()).unwrap().rights();
        assert_eq!((rights.root, rights.uid, rights.gid), (false, NOBODY, NOBODY));
        place.copy(&StageOptions { workers: 4, ..StageOptions::default() })
    };
    assert!(!report.complete);
    let mut refused: Vec<_> = report.errors.iter().map(|e| (e.path.as_str(), e.errno)).collect();
    refused.sort_by_key(|(path, _)| *path);
    assert_eq!(refused, [("closed", Some(Errno::EACCES)), ("secret", Some(Errno::EACCES))]);
    let copied = fs::metadata(place.dst().join("public")).unwrap();
    assert_eq!((copied.uid(), copied.gid()), (NOBODY, NOBODY));
    assert!(!place.dst().join("secret").exists() && !place.dst().join("closed").exists());
    assert!(place.parts_left().is_empty());
}

/// Attributes of names go through /proc, which shows a process that changed users less.
#[test]
fn attributes_reach_a_copy_made_for_another() {
    if !is_root() {
        return;
    }
    let place = open_place();
    let file = place.src().join("file");
    fs::write(&file, b"x").unwrap();
    let xattrs = has_xattrs(place.dir.path());
    let _acting = ActAs::new(&nobody()).unwrap();
    assert!(place.copy(&StageOptions::default()).complete);
    drop(_acting);
    if xattrs {
        rustix::fs::setxattr(&file, "user.note", b"new", rustix::fs::XattrFlags::empty()).unwrap();
    }
    set_mode(&file, 0o664);
    let _acting = ActAs::new(&nobody()).unwrap();
    let report = place.copy(&StageOptions { trust_mtime: true, ..StageOptions::default() });
    assert!(report.complete && report.bytes_copied == 0 && report.warning_count == 0, "{report:#?}");
    let copied = place.dst().join("file");
    assert_eq!(fs::metadata(&copied).unwrap().mode() & 0o777, 0o664);
    let mut value = [0; 8];
    if xattrs {
        assert_eq!(rustix::fs::getxattr(&copied, "user.note", &mut value[..]), Ok(3));
    }
}
