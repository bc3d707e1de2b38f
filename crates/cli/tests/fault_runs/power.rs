//! Power that fails under `tidepool cp`: what a disk has at a moment is all that there is afterwards. The disk is an ext4 in a file, and
//! what its kernel has not written to that file is forgotten, as it would be.

use super::bounded::{self, Going};
use super::inject::Injection;
use super::place::{Mounted, clear, make_image, memory};
use super::planted::Planted;
use super::{Case, Ended, Judged, holds};
use crate::common::Sandbox;
use rustix::process::Signal;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidepool_testkit::trees;

/// Nothing is written but what somebody syncs, and neither data nor names wait for each other.
const LAZY: &str = ",commit=600,data=writeback,noauto_da_alloc";
const USUAL: &str = ",commit=600";

/// Where it is done: in memory, with a disk that is new each time.
pub struct Place {
    sandbox: Sandbox,
    has_disk: bool,
}

impl Place {
    pub fn new() -> Place {
        let sandbox = memory();
        let has_disk = make_image(&sandbox.path("new")) && {
            let probe = Mounted::image(&sandbox.path("new"), &sandbox.path("disk"), "");
            probe.is_some()
        };
        if !has_disk {
            println!("SKIPPED: no file system can be mounted here, so no power fails");
        }
        Place { sandbox, has_disk }
    }

    /// A copy of a disk, holes and all; its kernel writes nothing meanwhile.
    fn copy(&self, from: &str, to: &str) -> PathBuf {
        let to = self.sandbox.path(to);
        let mut copy = Command::new("cp");
        copy.arg("--sparse=always").arg(self.sandbox.path(from)).arg(&to);
        assert!(copy.status().expect("cp(1) runs").success(), "a disk is copied");
        to
    }

    fn mount(&self, image: &Path, options: &str) -> Mounted {
        Mounted::image(image, &self.sandbox.path("disk"), options).expect("a disk can be mounted")
    }
}

/// A node that keeps journal and copy loses its power when the copy has a temporary file: what is left there after going on. None
/// without a disk.
pub fn parts_after_going_on(place: &Place) -> Option<Vec<PathBuf>> {
    place.has_disk.then_some(())?;
    let disk = place.mount(&place.copy("new", "before"), USUAL);
    let (root, at) = (place.sandbox.path("root"), place.sandbox.path("disk"));
    fs::create_dir_all(root.join("src")).expect("a directory can be made");
    fs::write(root.join("src/f"), vec![7; 200_000]).expect("a file can be written");
    let command = || {
        let mut command = place.sandbox.tidepool(&["cp", "-T", "--threads", "1"]);
        command.args([root.join("src"), at.join("dst")]).env("TIDEPOOL_RUNTIME", at.join("rt"));
        command
    };
    let kill = Injection::kill("/^renameat2?$", 1);
    let (Ok(killed), struck) = (
        bounded::run(&root, "first", kill.on(&command(), &root.join("strace.log"))),
        kill.has_struck(&root.join("strace.log")),
    ) else {
        panic!("it hangs")
    };
    assert!(struck, "{killed}");
    let left = place.copy("before", "after");
    drop(disk);
    let _disk = place.mount(&left, USUAL);
    assert_eq!(trees::parts(&at.join("dst")).len(), 1, "it had a temporary file");
    assert!(command().status().expect("tidepool runs").success());
    Some(trees::parts(&at.join("dst")))
}

/// Copies by a program that syncs nothing, and says success: false when all of the copy is there after the power failed. None without
/// a disk.
pub fn forgets_what_is_not_synced(place: &Place) -> Option<bool> {
    place.has_disk.then_some(())?;
    let disk = place.mount(&place.copy("new", "before"), LAZY);
    let (root, at) = (place.sandbox.path("root"), place.sandbox.path("disk"));
    let mut case = Case::new(1);
    let planted = Planted::new(&mut case, root.join("src"), at.join("dst"), root.join("outside"));
    let copied = Command::new("cp")
        .args(["-a", "-T", "--remove-destination"])
        .args([&planted.source, &planted.target])
        .status();
    assert!(copied.expect("cp(1) runs").success() && planted.is_whole_at(&planted.target).is_ok());
    let left = place.copy("before", "after");
    drop(disk);
    let _disk = place.mount(&left, LAZY);
    Some(planted.is_whole_at(&planted.target).is_err())
}

pub fn one(place: &mut Place, case: &mut Case) -> Judged<Ended> {
    let name = "the power fails";
    if !place.has_disk {
        return Ok(Ended { fault: name.into(), struck: false, success: false });
    }
    let options = case.pick(&[LAZY, LAZY, USUAL]);
    let disk = place.mount(&place.copy("new", "before"), options);
    let (at, root) = (place.sandbox.path("disk"), place.sandbox.path("root"));
    clear(&root);
    fs::create_dir(&root).expect("a directory can be made");
    let planted = Planted::new(case, root.join("src"), at.join("dst"), root.join("outside"));
    // What was there before is there for long.
    rustix::fs::syncfs(File::open(&at).expect("it is there")).expect("it can be synced");
    // Either all of the node is gone, or what keeps its data.
    let journals = if case.chance(2) { at.join("rt") } else { root.join("rt") };
    let flags: &[&str] =
        case.pick(&[&[][..], &["--threads", "1"], &["--ordered"], &["--verify-disk"], &["--threads", "3"]]);
    case.plan(format!("{flags:?}, disk{options}, journals in {}", journals.display()));
    let command = || {
        let mut command = place.sandbox.tidepool(&["cp", "-T"]);
        command.args(flags).arg(&planted.source).arg(&planted.target).env("TIDEPOOL_RUNTIME", &journals);
        command
    };
    let mut going = Going::start(&root, "first", command());
    let early = !case.chance(3);
    if early {
        let after = Duration::from_micros(case.rng.below(25_000));
        case.plan(format!("after {after:?}"));
        std::thread::sleep(after);
        if !going.has_ended() {
            bounded::send(going.id(), Signal::KILL);
        }
    }
    let ran = going.wait()?;
    case.plan(format!("first: {ran}"));
    let success = ran.is_success();
    let left = place.copy("before", "after");
    drop(disk);
    let disk = place.mount(&left, options);
    if success {
        planted.is_whole_at(&planted.target)?;
    } else {
        planted.is_partial(&trees::read(&planted.target))?;
        let again = bounded::run(&root, "again", command())?;
        holds(again.is_success(), || format!("going on after the power is back fails: {again}"))?;
        planted.is_whole_at(&planted.target)?;
    }
    planted.nothing_else_changed()?;
    drop(disk);
    let moment = if success { "after a success" } else { "in the midst of a copy" };
    Ok(Ended { fault: format!("{name} {moment}"), struck: true, success })
}
