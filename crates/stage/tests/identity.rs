//! Copies with the rights of a user who is not root.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use support::{Place, has_xattrs, memory_dir};
use tidepool_stage::{End, LocalEnd, StageOptions};
use tidepool_testkit::ActAs;
use tidepool_types::Errno;

const NOBODY: u32 = 65534;

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
        let _acting = ActAs::user(NOBODY);
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
    let _acting = ActAs::user(NOBODY);
    assert!(place.copy(&StageOptions::default()).complete);
    drop(_acting);
    if xattrs {
        rustix::fs::setxattr(&file, "user.note", b"new", rustix::fs::XattrFlags::empty()).unwrap();
    }
    set_mode(&file, 0o664);
    let _acting = ActAs::user(NOBODY);
    let report = place.copy(&StageOptions { trust_mtime: true, ..StageOptions::default() });
    assert!(report.complete && report.bytes_copied == 0 && report.warning_count == 0, "{report:#?}");
    let copied = place.dst().join("file");
    assert_eq!(fs::metadata(&copied).unwrap().mode() & 0o777, 0o664);
    let mut value = [0; 8];
    if xattrs {
        assert_eq!(rustix::fs::getxattr(&copied, "user.note", &mut value[..]), Ok(3));
    }
}
