//! Random faults under the command's own doors: each run of a real `tidepool` has something happen to it at a random moment, and
//! is then judged, and made again without the fault.
//!
//! Proven: a success has all of the source at the target, with contents, modes, times and links, nothing of ours, and everything
//! of others as it was. A failure has changed no source, has whole files under final names, says what failed, and going on
//! ends in a success. Nothing hangs.
//!
//! `TIDEPOOL_FAULT_RUNS=N` sets how many runs (each door makes N of them, times a number of its own), `TIDEPOOL_SEED` where they
//! start; `TIDEPOOL_FAULT_SEED=N` replays one. Each door prints a line `DOOR: A fault-injected runs of B, the fault struck in C, D wrong`,
//! and fails when C is too small a part. A fault that strace did not make, or that came when all was over, has not struck.
//!
//! `make test-all` makes more than 10,000 that strike: with `TIDEPOOL_FAULT_RUNS=1000` the lines of this file have 6,000 runs of `cp`
//! (about 4,900 strike), 2,000 whose power fails (all), 2,000 of `run` and `drain` (about 1,600), 2,000 of `cp` with pools (about
//! 1,600) and 1,000 tasks of a stager (about 500). To these come the lines `random fault runs` of the tests `remote` of the crate
//! `stage` and `faults` of the crate `staged` (1,000 each), and the lines `fault-injected copies` of `faults` of `stage` (one for each call
//! of a copy). The cells of the table of events in Slurm (`slurm_events`) come on top and are not needed for the sum.

mod common;
mod fault_runs;

use common::doors;
use fault_runs::inject::{self, Injection};
use fault_runs::place::{Place, clear};
use fault_runs::planted::Planted;
use fault_runs::{Case, Door, Wrong, bounded, copies, place, pools, power, runs, tasks};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;
use tidepool_testkit::trees;

#[test]
fn copies_under_faults() {
    let door = Door { name: "cp", runs_default: 60, times: 6, struck_min: 50 };
    door.open(Place::new, copies::one);
}

#[test]
fn runs_under_faults() {
    let door = Door { name: "run and drain", runs_default: 20, times: 2, struck_min: 50 };
    door.open(Place::new, runs::one);
}

#[test]
fn copies_whose_power_fails() {
    let door = Door { name: "cp and power", runs_default: 40, times: 2, struck_min: 50 };
    door.open(power::Place::new, power::one);
}

#[test]
fn tasks_under_faults() {
    // About half strike: strace counts calls of each thread, and a stager has many. Of 24 a third always does; of a broken injector none would.
    let door = Door { name: "stager", runs_default: 24, times: 1, struck_min: 25 };
    door.open(tasks::Place::new, tasks::one);
}

#[test]
fn copies_to_and_from_pools_under_faults() {
    if !doors().contains(&"fuse") {
        return;
    }
    let door = Door { name: "cp and pools", runs_default: 20, times: 2, struck_min: 50 };
    door.open(pools::Place::new, pools::one);
}

/// Makes something of a copy another thing than it should be.
type Lie = fn(&Path);

/// What a copy may get wrong, done by hand.
const LIES: &[(&str, Lie)] = &[
    ("one byte is another", |to| {
        let mut bytes = fs::read(to.join("large")).unwrap();
        bytes[0] ^= 1;
        fs::write(to.join("large"), bytes).unwrap();
    }),
    ("a file is missing", |to| fs::remove_file(to.join("large too")).unwrap()),
    ("an empty directory is missing", |to| fs::remove_dir_all(to.join("empty")).unwrap()),
    ("a hard link is a file of its own", |to| {
        fs::remove_file(to.join("large too")).unwrap();
        assert!(
            Command::new("cp")
                .arg("-p")
                .args([to.join("large"), to.join("large too")])
                .status()
                .unwrap()
                .success()
        );
    }),
    ("a link leads elsewhere", |to| {
        fs::remove_file(to.join("link")).unwrap();
        std::os::unix::fs::symlink("empty", to.join("link")).unwrap();
    }),
    ("a mode is another", |to| {
        fs::set_permissions(to.join("large"), fs::Permissions::from_mode(0o111)).unwrap()
    }),
    ("a time is another", |to| {
        File::options().write(true).open(to.join("large")).unwrap().set_modified(SystemTime::now()).unwrap();
    }),
    ("something of ours is left", |to| fs::write(to.join(".tidepool-part.0.0"), "").unwrap()),
    ("something is there that nobody has put there", |to| fs::write(to.join("more"), "").unwrap()),
];

/// The tests above can fail: whatever may be wrong with a copy that claims to be one is noticed.
#[test]
fn a_copy_that_is_none_is_noticed() {
    let place = Place::new();
    for (number, (what, lie)) in LIES.iter().enumerate() {
        let dir = place.empty("lie", false);
        let mut case = Case::new(number as u64 + 1);
        let planted = Planted::new(&mut case, dir.join("src"), dir.join("dst"), dir.join("outside"));
        let merge = ["-a", "--remove-destination", "-T"];
        let copied =
            Command::new("cp").args(merge).args([&planted.source, &planted.target]).status().unwrap();
        assert!(copied.success());
        planted.is_whole_at(&planted.target).unwrap_or_else(|Wrong(why)| panic!("{what}: right, and {why}"));
        planted
            .is_partial(&trees::read(&planted.target))
            .unwrap_or_else(|Wrong(why)| panic!("{what}: {why}"));
        lie(&planted.target);
        assert!(planted.is_whole_at(&planted.target).is_err(), "{what}: not noticed");
    }
}

/// Power that fails takes away what nobody has synced.
#[test]
fn a_copy_that_is_not_synced_is_gone() {
    if let Some(forgets) = power::forgets_what_is_not_synced(&power::Place::new()) {
        assert!(forgets, "the disk has all that was written, so nothing is proven by it");
    }
}

/// The journal that knows the names of temporary files is there after a power failure, or they would never be removed.
#[test]
fn no_temporary_file_outlives_its_journal() {
    if inject::is_possible()
        && let Some(left) = power::parts_after_going_on(&power::Place::new())
    {
        assert!(left.is_empty(), "left for good: {left:?}");
    }
}

/// What is of others, under names of the copy or beside them, is no less looked at.
#[test]
fn damage_to_what_is_of_others_is_noticed() {
    let place = Place::new();
    let mut seeds = 1..;
    for what in ["their file", "their dir/below/file"] {
        let dir = place.empty("damage", false);
        let planted = loop {
            let mut case = Case::new(seeds.next().unwrap());
            ["src", "dst", "outside"].iter().for_each(|name| clear(&dir.join(name)));
            let planted = Planted::new(&mut case, dir.join("src"), dir.join("dst"), dir.join("outside"));
            if planted.target.exists() {
                break planted;
            }
        };
        let there = || trees::read(&planted.target);
        assert!(planted.is_partial(&there()).is_ok());
        fs::write(planted.target.join(what), "ours").unwrap();
        assert!(planted.is_partial(&there()).is_err(), "{what} is overwritten");
        fs::remove_file(planted.target.join(what)).unwrap();
        assert!(planted.is_partial(&there()).is_err(), "{what} is removed");
        assert!(planted.nothing_else_changed().is_ok());
        fs::write(planted.source.join("large"), "other").unwrap();
        assert!(planted.nothing_else_changed().is_err(), "a changed source");
    }
}

/// Where a pool's own files cannot be made, nothing of it is left that would have its name.
#[test]
fn a_start_that_cannot_note_itself_leaves_no_pool() {
    if !inject::is_possible() {
        return;
    }
    for (call, at, words) in [("mkdir", 2, "/mnt"), ("write", 1, "starter.json")] {
        let sandbox = place::memory();
        fs::create_dir(sandbox.runtime()).unwrap();
        fs::set_permissions(sandbox.runtime(), fs::Permissions::from_mode(0o700)).unwrap();
        let command = sandbox.tidepool(&["pool", "start", "--local", "--name", "p", "--client", "preload"]);
        let failing = Injection::of(call, "ENOSPC", at).on(&command, &sandbox.path("strace.log"));
        let Ok(ran) = bounded::run(sandbox.dir.path(), "start", failing) else { panic!("it hangs") };
        assert!(ran.code() == Some(110) && ran.said.contains(words), "{call}: {ran}");
        sandbox.assert_nothing_left(call);
        sandbox.ok(&["pool", "start", "--local", "--name", "p", "--client", "preload"]);
        sandbox.ok(&["pool", "stop"]);
    }
}
