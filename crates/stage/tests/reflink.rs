//! Clones: on a file system that can share blocks, a large file is not copied but shared.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::fault::{Fault, FaultEnd};
use support::{noise, set_times};
use tempfile::TempDir;
use tidepool_stage::{Control, LocalEnd, StageOptions, StageReport, What, compare, move_tree, stage};

const SIZE: usize = 24 << 20;

/// An image with a file system, mounted; ended with the test.
struct Image {
    dir: TempDir,
}

impl Image {
    /// `None`, said loudly, when this machine cannot.
    fn mount(make: &[&str]) -> Option<Image> {
        let image = Image { dir: tempfile::tempdir().unwrap() };
        fs::File::create(image.dir.path().join("image")).unwrap().set_len(512 << 20).unwrap();
        fs::create_dir(image.root()).unwrap();
        let made = Command::new(make[0]).args(&make[1..]).arg(image.dir.path().join("image")).output();
        let made = made.is_ok_and(|output| output.status.success());
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(image.dir.path().join("image")).arg(image.root());
        if made && mount.output().is_ok_and(|output| output.status.success()) {
            return Some(image);
        }
        println!(
            "SKIPPED: {make:?} or mounting it does not work here (root, xfsprogs and btrfs-progs are needed)"
        );
        None
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.root()).output();
    }
}

fn xfs(reflink: &str) -> Option<Image> {
    Image::mount(&["mkfs.xfs", "-q", "-m", reflink])
}

fn fill(root: &Path) {
    fs::create_dir(root.join("src")).unwrap();
    fs::write(root.join("src/large"), noise(SIZE, 3)).unwrap();
    fs::write(root.join("src/odd"), noise(SIZE + 12_345, 4)).unwrap();
    let sparse = fs::File::create(root.join("src/sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 40 << 20).unwrap();
    fs::write(root.join("src/small"), b"copied").unwrap();
    set_times(&root.join("src/large"), 1_000_000_000, 5);
}

fn ends(root: &Path, dst: &Path) -> (LocalEnd, LocalEnd) {
    (LocalEnd::open(&root.join("src")).unwrap(), LocalEnd::create(dst).unwrap())
}

fn copy(src: &LocalEnd, dst: &LocalEnd) -> StageReport {
    stage(src, dst, &What::Tree, &StageOptions::default(), &Control::default())
}

fn assert_same(src: &LocalEnd, dst: &LocalEnd) {
    let differences = compare(src, dst, Default::default()).unwrap();
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn large_files_share_blocks_and_are_apart() {
    let Some(image) = xfs("reflink=1") else { return };
    fill(&image.root());
    let (src, dst) = ends(&image.root(), &image.root().join("dst"));
    let report = copy(&src, &dst);
    assert!(report.complete && report.warning_count == 0, "{report:#?}");
    let large = 2 * SIZE as u64 + 12_345 + (64 << 20);
    assert_eq!((report.bytes_cloned, report.bytes_copied, report.files), (large, 6, 4));
    assert_same(&src, &dst);
    let again = copy(&src, &dst);
    assert!(again.complete && again.bytes_cloned == 0 && again.bytes_skipped == large + 6, "{again:#?}");
    // A change of one does not show in the other.
    let original = image.root().join("src/large");
    fs::OpenOptions::new().write(true).open(&original).unwrap().write_all_at(b"changed", 100).unwrap();
    assert_eq!(fs::read(image.root().join("dst/large")).unwrap(), noise(SIZE, 3));
    let report = copy(&src, &dst);
    assert!(report.complete && report.bytes_cloned == SIZE as u64, "{report:#?}");
    assert_same(&src, &dst);
}

#[test]
fn where_nothing_can_be_shared_bytes_are_copied() {
    let Some(image) = xfs("reflink=0") else { return };
    fill(&image.root());
    let elsewhere = tempfile::tempdir().unwrap();
    for dst in [image.root().join("dst"), elsewhere.path().join("dst")] {
        let (src, dst) = ends(&image.root(), &dst);
        let dst = FaultEnd::new(dst, Fault::None, 0);
        let report = stage(&src, &dst, &What::Tree, &StageOptions::default(), &Control::default());
        assert!(report.complete && report.bytes_cloned == 0, "{report:#?}");
        assert!(report.bytes_copied > 2 * SIZE as u64, "{report:#?}");
        assert_same(&src, &dst.inner);
    }
}

#[test]
fn a_failed_clone_is_copied_or_leaves_nothing() {
    let Some(image) = xfs("reflink=1") else { return };
    fs::create_dir(image.root().join("src")).unwrap();
    fs::write(image.root().join("src/large"), noise(SIZE, 3)).unwrap();
    let mut at = 0;
    loop {
        let dst = image.root().join(format!("dst{at}"));
        let (src, dst_end) = ends(&image.root(), &dst);
        let faulty = FaultEnd::new(dst_end, Fault::Once, at);
        let options = StageOptions { workers: 1, ..StageOptions::default() };
        let report = stage(&src, &faulty, &What::Tree, &options, &Control::default());
        let log = faulty.log.lock().unwrap().clone();
        assert_eq!(report.complete, log.is_empty() || log == ["clone"], "{log:?}: {report:#?}");
        if let Ok(content) = fs::read(dst.join("large")) {
            assert!(content == noise(SIZE, 3), "{log:?}: the final name holds something else");
        }
        let parts =
            fs::read_dir(&dst).unwrap().filter(|e| e.as_ref().unwrap().file_name() != "large").count();
        assert_eq!(parts, 0, "{log:?}");
        if log == ["clone"] {
            assert_eq!(report.bytes_copied, SIZE as u64);
        }
        fs::remove_dir_all(dst).unwrap();
        if log.is_empty() {
            break;
        }
        at += 1;
    }
    println!("{at} places to fail");
}

#[test]
fn a_move_between_subvolumes_shares_blocks() {
    let Some(image) = Image::mount(&["mkfs.btrfs", "-q"]) else { return };
    let made = Command::new("btrfs").args(["subvolume", "create"]).arg(image.root().join("dst")).output();
    assert!(made.unwrap().status.success());
    fill(&image.root());
    let (src, dst) = ends(&image.root(), &image.root().join("dst"));
    let (from, to) = (fs::metadata(image.root().join("src")), fs::metadata(image.root().join("dst")));
    assert_ne!(from.unwrap().dev(), to.unwrap().dev());
    let report = move_tree(&src, &dst, &What::Tree, &StageOptions::default(), &Control::default());
    assert!(report.complete && report.copy.bytes_cloned > 2 * SIZE as u64, "{report:#?}");
    assert_eq!(fs::read(image.root().join("dst/large")).unwrap(), noise(SIZE, 3));
    assert_eq!(fs::read_dir(image.root().join("src")).unwrap().count(), 0);
}
