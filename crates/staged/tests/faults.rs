//! Random faults under copies and moves between stagers.
//!
//! Each run gives one task to one of two stagers on nodes of their own, lets something happen to what
//! the task needs, takes that away again, and looks: a task that has finished has the right content and
//! nothing else, and one that has failed says why, has lost nothing, and has nothing partial under a
//! final name; when the fault is gone it can be resumed to a good end, and leaves no temporary file.
//!
//! `TIDEPOOL_FAULT_RUNS` sets how many runs, `TIDEPOOL_SEED` where they start. Faults that need name
//! spaces, mounts or loop devices are left out, loudly, where those cannot be had. Short writes are made
//! where they can be made, below the engine: `crates/stage/tests/faults.rs`.

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use support::network::{Mount, World, may_administer};

use tidepool_stage_client::{Code, Op, TaskSpec, TaskState, TaskStatus};
use tidepool_testkit::Rng;
use tidepool_testkit::trees::{self, Entry, Tree};

const RUNS_DEFAULT: u64 = 40;
/// Pairs of stagers that are at it at a time.
const WORLDS: usize = 4;
/// Most bytes of the large file of a tree.
const LARGE_MAX: u64 = 2 << 20;
/// Space of a full destination.
const FULL: &str = "size=256k";
const ROOMY: &str = "size=64m";
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    /// The destination has no room.
    Full,
    /// The large file's blocks cannot be read.
    Unreadable,
    PeerKilled,
    StagerKilled,
    BothKilled,
    /// Is there and does not answer for a while.
    PeerStopped,
    LinkDown,
    /// Packets are lost without a word.
    LinkLossy,
    SourceChanged,
    DestinationRemoved,
    Cancelled,
}

const FAULTS: &[Fault] = &[
    Fault::Full,
    Fault::Unreadable,
    Fault::PeerKilled,
    Fault::StagerKilled,
    Fault::BothKilled,
    Fault::PeerStopped,
    Fault::LinkDown,
    Fault::LinkLossy,
    Fault::SourceChanged,
    Fault::DestinationRemoved,
    Fault::Cancelled,
];

/// Two stagers, with a small file system and a bad one at each.
struct Place {
    /// At node 1; none where mounts are not allowed. Mounts go before the directories they are in.
    small: Option<Mount>,
    bad: Option<Bad>,
    world: World,
}

/// A file system on a device that ends too early.
struct Bad {
    _mount: Mount,
    source: Tree,
}

impl Place {
    fn new(rng: &mut Rng) -> Place {
        let config = |dir: &Path| {
            let spaces = ["small", "bad"].map(|name| {
                let mount = dir.join(name);
                std::fs::create_dir(&mount).unwrap();
                let quota = if may_administer() || name == "bad" { "" } else { "capacity = \"256KiB\"\n" };
                let mount = mount.display();
                format!("[[dataspace]]\nname = \"{name}://\"\nkind = \"local\"\nmount = \"{mount}\"\n{quota}")
            });
            spaces.concat()
        };
        let mut place = Place { small: None, bad: None, world: World::new(2, config) };
        if may_administer() {
            let at = place.world.path(1, "small");
            place.small = Mount::new(&["-t", "tmpfs", "-o", FULL, "tmpfs"], &at);
            place.bad = make_bad(rng, &place.world);
            // Programs in name spaces may not see mounts that were made after their start.
            (0..2).for_each(|node| place.world.kill_and_restart(node));
        }
        if place.bad.is_none() {
            println!(
                "NO LOOP DEVICES: reading errors are left out here; crates/stage/tests/faults.rs has some"
            );
        }
        place
    }

    fn can(&self, fault: Fault) -> bool {
        match fault {
            Fault::Full => self.small.is_some() || !may_administer(),
            Fault::Unreadable => self.bad.is_some(),
            Fault::LinkDown | Fault::LinkLossy => self.world.network.is_real(),
            _ => true,
        }
    }
}

/// A tree whose large file lies behind the end of its device.
fn make_bad(rng: &mut Rng, world: &World) -> Option<Bad> {
    // Two at a time may find the same free loop device.
    static ONE: Mutex<()> = Mutex::new(());
    const WHOLE: u64 = 64 << 20;
    const LEFT: u64 = 8 << 20;
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (image, at) = (world.path(0, "image"), world.path(0, "bad"));
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(WHOLE).unwrap();
    let made = std::process::Command::new("mkfs.ext4").arg("-q").arg(&image).status();
    if !made.is_ok_and(|status| status.success()) {
        return None;
    }
    let image = image.to_str()?;
    let mount = Mount::new(&["-o", "loop", image], &at)?;
    // The first blocks fill what stays; the large file comes behind.
    std::fs::write(at.join("filler"), vec![1; 12 << 20]).unwrap();
    std::fs::create_dir(at.join("tree")).unwrap();
    trees::write_random(rng, &at.join("tree/below"), 1);
    std::fs::write(at.join("tree/large"), rng.bytes(8 << 20)).unwrap();
    let source = trees::read(&at.join("tree"));
    drop(mount);
    let mount = Mount::new(&["-o", "loop,ro", image], &at)?;
    file.set_len(LEFT).unwrap();
    if std::fs::read(at.join("tree/large")).is_ok() {
        return None;
    }
    Some(Bad { _mount: mount, source })
}

/// One task and what is done to it.
struct Run<'a> {
    place: &'a Place,
    rng: Rng,
    fault: Fault,
    op: Op,
    /// The stager that has the task.
    at: usize,
    source: PathBuf,
    target: PathBuf,
    tree: Tree,
    /// What the large file has been.
    versions: Vec<Entry>,
}

impl<'a> Run<'a> {
    fn new(place: &'a Place, seed: u64) -> (Run<'a>, TaskSpec) {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let fault = loop {
            let fault = FAULTS[rng.below(FAULTS.len() as u64) as usize];
            if place.can(fault) {
                break fault;
            }
        };
        let may_move = !matches!(fault, Fault::Unreadable | Fault::SourceChanged | Fault::DestinationRemoved);
        let op = if may_move && rng.below(3) == 0 { Op::Move } else { Op::Copy };
        // From node 0 to node 1, by the stager of either.
        let at = rng.below(2) as usize;
        let (from, to) = (format!("in{seed}"), format!("out{seed}"));
        let (from, source) = match fault {
            Fault::Unreadable => ("bad://tree".into(), place.world.path(0, "bad/tree")),
            _ => (format!("a://{from}"), place.world.path(0, "a").join(from)),
        };
        let space = if fault == Fault::Full { "small" } else { "b" };
        let target = place.world.path(1, space).join(&to);
        let tree = match (fault, &place.bad) {
            (Fault::Unreadable, Some(bad)) => bad.source.clone(),
            _ => {
                trees::write_random(&mut rng, &source, LARGE_MAX);
                if fault == Fault::Full {
                    std::fs::write(source.join("too much"), rng.bytes(400_000)).unwrap();
                }
                trees::read(&source)
            }
        };
        let src = place.world.resource(at, (0, &from));
        let dst = place.world.resource(at, (1, &format!("{space}://{to}")));
        let bandwidth = (512 << 10) << rng.below(5);
        let spec = TaskSpec { bandwidth, ..TaskSpec::new(op, src, Some(dst)) };
        (Run { place, rng, fault, op, at, source, target, tree, versions: Vec::new() }, spec)
    }

    fn pause(&mut self, ms_max: u64) {
        std::thread::sleep(Duration::from_millis(self.rng.below(ms_max)));
    }

    /// Lets it happen, and makes it good again.
    fn strike(&mut self, id: u32) {
        self.pause(300);
        let world = &self.place.world;
        let (own, peer) = (self.at, 1 - self.at);
        match self.fault {
            Fault::Full | Fault::Unreadable => {}
            Fault::PeerKilled => world.kill_and_restart(peer),
            Fault::StagerKilled => world.kill_and_restart(own),
            Fault::BothKilled => (0..2).for_each(|node| world.kill_and_restart(node)),
            Fault::PeerStopped => {
                world.stagers[peer].lock().unwrap().signal_all("-STOP");
                self.pause(1000);
                world.stagers[peer].lock().unwrap().signal_all("-CONT");
            }
            Fault::LinkDown => {
                world.network.link(peer, false);
                self.pause(1000);
                world.network.link(peer, true);
            }
            Fault::LinkLossy => {
                world.network.lossy(peer, true);
                self.pause(1000);
                world.network.lossy(peer, false);
            }
            Fault::SourceChanged => self.change_source(),
            Fault::DestinationRemoved => drop(std::fs::remove_dir_all(&self.target)),
            // It may have ended already.
            Fault::Cancelled => drop(world.ask(own, |stager| stager.cancel(id))),
        }
    }

    /// One byte after the other, so that what was read at different times is neither of them.
    fn change_source(&mut self) {
        let large = self.source.join("large");
        let mut content = std::fs::read(&large).unwrap();
        self.note_version(&large);
        for _ in 0..4 {
            let place = self.rng.below(content.len() as u64);
            content[place as usize] ^= 0xff;
            let file = std::fs::OpenOptions::new().write(true).open(&large).unwrap();
            file.write_all_at(&content[place as usize..=place as usize], place).unwrap();
            self.note_version(&large);
            self.pause(100);
        }
    }

    fn note_version(&mut self, large: &Path) {
        self.versions.extend(trees::read(large).into_values());
    }

    /// Its large file may be any that the source has been, but none that it never was.
    fn allowed(&self) -> Vec<Tree> {
        let tree = |version: &Entry| {
            let mut tree = self.tree.clone();
            for name in ["large", "large too"] {
                let place = (tree.get_mut(Path::new(name)), version);
                let (Some(Entry::File { content, mtime, .. }), Entry::File { content: c, mtime: m, .. }) =
                    place
                else {
                    continue;
                };
                (*content, *mtime) = (c.clone(), *m);
            }
            tree
        };
        if self.versions.is_empty() {
            vec![self.tree.clone()]
        } else {
            self.versions.iter().map(tree).collect()
        }
    }

    fn judge(&self, status: &TaskStatus, removed: bool) {
        let there = trees::read(&self.target);
        let allowed = self.allowed();
        // The nearest of what it may be.
        let nearest = allowed.iter().min_by_key(|tree| trees::unfinished(tree, &there).len());
        let nearest = nearest.expect("there is one at least");
        let case = format!("{:?} {:?} at n{}: {status:?}", self.fault, self.op, self.at);
        let wrong = trees::unfinished(nearest, &there);
        assert!(wrong.is_empty(), "{case}: {wrong:#?}");
        if status.state == TaskState::Finished {
            // What somebody else has removed is missing, and nothing else is.
            assert!(removed || there == *nearest, "{case}: {:#?}", trees::difference(nearest, &there));
            assert!(self.op == Op::Copy || !self.source.exists(), "{case}: the source is still there");
            return;
        }
        assert!(status.refusal.code != Code::SUCCESS, "{case}: no reason");
        assert!(
            status.state == TaskState::Cancelled || !status.refusal.detail.is_empty(),
            "{case}: no reason"
        );
        let kept = self.op == Op::Copy || trees::read(&self.source) == self.tree || there == self.tree;
        assert!(kept, "{case}: something is lost");
    }

    /// What the fault has to lead to, where that is known.
    fn check_reason(&self, status: &TaskStatus) {
        let errno = status.refusal.errno;
        let right = match self.fault {
            Fault::Full => status.state == TaskState::Failed && matches!(errno, ENOSPC | EDQUOT),
            Fault::Unreadable => status.state == TaskState::Failed && errno == EIO,
            _ => true,
        };
        assert!(right, "{:?}: {status:?}", self.fault);
    }

    fn go(mut self, spec: &TaskSpec) -> Outcome {
        let world = &self.place.world;
        let id = world.ask(self.at, |stager| stager.submit(spec)).expect("a good task is taken");
        self.strike(id);
        let wait = || world.ask(self.at, |stager| Ok(stager.wait(&[id], false, None)?.remove(0))).unwrap();
        let status = wait();
        self.judge(&status, self.fault == Fault::DestinationRemoved);
        self.check_reason(&status);
        if self.fault == Fault::Unreadable {
            self.clean();
            return Outcome::of(&status);
        }
        if let (Fault::Full, Some(small)) = (self.fault, &self.place.small) {
            small.remount(ROOMY);
        }
        if status.state != TaskState::Finished && !(self.fault == Fault::Full && self.place.small.is_none()) {
            world.ask(self.at, |stager| stager.resume(id)).expect("it can be resumed");
            let again = wait();
            let is_there = || trees::read(&self.target) == self.tree;
            let moved = self.op == Op::Move && again.refusal.errno == ENOENT && is_there();
            assert!(moved || again.state == TaskState::Finished, "{:?}: resumed: {again:?}", self.fault);
            if !moved {
                self.judge(&again, false);
            }
            let parts = trees::parts(self.target.parent().expect("it has one"));
            assert!(parts.is_empty(), "{:?}: {parts:?}", self.fault);
        }
        self.clean();
        Outcome::of(&status)
    }

    fn clean(&self) {
        let _ = std::fs::remove_dir_all(&self.target);
        if self.fault != Fault::Unreadable {
            let _ = std::fs::remove_dir_all(&self.source);
        }
        if let (Fault::Full, Some(small)) = (self.fault, &self.place.small) {
            small.remount(FULL);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    Finished,
    Failed(i32),
    Cancelled,
}

impl Outcome {
    fn of(status: &TaskStatus) -> Outcome {
        match status.state {
            TaskState::Finished => Outcome::Finished,
            TaskState::Cancelled => Outcome::Cancelled,
            _ => Outcome::Failed(status.refusal.errno),
        }
    }
}

#[test]
fn random_faults_give_no_wrong_success_and_nothing_partial() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let start = number("TIDEPOOL_SEED").unwrap_or(1);
    let end = start + number("TIDEPOOL_FAULT_RUNS").unwrap_or(RUNS_DEFAULT);
    let (next, counts) = (AtomicU64::new(start), Mutex::new(BTreeMap::<(Fault, Outcome), u64>::new()));
    let work = || {
        let place = Place::new(&mut Rng::new(start));
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let replay = format!("TIDEPOOL_SEED={seed} TIDEPOOL_FAULT_RUNS=1");
            let (run, spec) = Run::new(&place, seed);
            let fault = run.fault;
            println!("{replay}: {fault:?}, {:?} at n{}", run.op, run.at);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.go(&spec)));
            let outcome = outcome.unwrap_or_else(|_| panic!("{replay} replays this"));
            *counts.lock().unwrap().entry((fault, outcome)).or_default() += 1;
        }
    };
    let worlds = WORLDS.min((end - start) as usize);
    std::thread::scope(|scope| (0..worlds).for_each(|_| drop(scope.spawn(work))));
    for ((fault, outcome), count) in counts.into_inner().unwrap() {
        println!("{count:5} {fault:?}: {outcome:?}");
    }
    println!("{} random fault runs", end - start);
}
