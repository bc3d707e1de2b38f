//! Services with less than S3: what they cannot keep is warned of, the data is right.

use opendal::services;
use std::fs;
use std::path::Path;
use tidepool_object::ObjectEnd;
use tidepool_stage::{Control, End, LocalEnd, StageOptions, StageReport, What, stage};

fn copy(src: &dyn End, dst: &dyn End) -> StageReport {
    stage(src, dst, &What::Tree, &StageOptions::default(), &Control::default())
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir(root.join("none")).unwrap();
    fs::write(root.join("a/b/small"), b"hello").unwrap();
    fs::write(root.join("large"), vec![7; 17 << 20]).unwrap();
}

fn check(root: &Path) {
    assert_eq!(fs::read(root.join("a/b/small")).unwrap(), b"hello");
    assert!(fs::read(root.join("large")).unwrap() == vec![7; 17 << 20]);
    assert!(root.join("none").is_dir());
}

#[test]
fn the_file_service_keeps_all_but_attributes_of_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (src, store, back) = (dir.path().join("src"), dir.path().join("store"), dir.path().join("back"));
    tree(&src);
    let open = || {
        let service = services::Fs::default().root(store.to_str().unwrap());
        ObjectEnd::of_service(service, "files", b"top", true).unwrap()
    };
    let up = copy(&LocalEnd::open(&src).unwrap(), &open());
    assert!(up.complete && up.warning_count == 4, "{up:?}");
    assert!(format!("{:?}", up.warnings).contains("metadata of directories"), "{up:?}");
    let down = copy(&open(), &LocalEnd::create(&back).unwrap());
    assert!(down.complete, "{:?}", down.errors);
    check(&back);
}

/// What does not tell its length is sent when it has been read.
#[test]
fn files_that_say_they_are_empty_are_uploaded_whole() {
    let dir = tempfile::tempdir().unwrap();
    let service = services::Fs::default().root(dir.path().join("store").to_str().unwrap());
    let store = ObjectEnd::of_service(service, "files", b"top", true).unwrap();
    let proc = LocalEnd::open(Path::new("/proc")).unwrap();
    for name in ["version", "kallsyms"] {
        let what = What::Entry { from: name.into(), to: name.into() };
        let up = stage(&proc, &store, &what, &StageOptions::default(), &Control::default());
        let real = fs::read(Path::new("/proc").join(name)).unwrap();
        assert!(up.complete && up.bytes_total == real.len() as u64 && !real.is_empty(), "{name}: {up:?}");
    }
    let down = copy(&store, &LocalEnd::create(&dir.path().join("back")).unwrap());
    assert!(down.complete, "{:?}", down.errors);
    for name in ["version", "kallsyms"] {
        let back = fs::read(dir.path().join("back").join(name)).unwrap();
        assert!(back == fs::read(Path::new("/proc").join(name)).unwrap(), "{name}");
    }
}

#[test]
fn a_service_without_copies_of_its_own_is_a_source_but_never_a_destination() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("src"));
    let store = ObjectEnd::of_service(services::Memory::default(), "memory", b"", true).unwrap();
    let up = copy(&LocalEnd::open(&dir.path().join("src")).unwrap(), &store);
    assert!(!up.complete && up.error_count == 2, "{up:?}");
    assert!(format!("{:?}", up.warnings).contains("keeps no metadata"), "{up:?}");
    let down = copy(&store, &LocalEnd::create(&dir.path().join("back")).unwrap());
    assert!(down.complete && down.files == 0, "{down:?}");
}
