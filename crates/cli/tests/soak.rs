//! Every byte is known: four programs, two on mounts and two through the preload library, of two nodes, work on the same
//! files, while programs, mounts and daemons are killed and stopped.
//!
//! Proven: what is read is always what was written, by whomever and through whichever door; what was acknowledged survives
//! each kill; what was under way is there, or not, or in part where the page of promises says so; nothing else changes; no
//! operation fails that no kill explains; and the pool is whole at the end.
//!
//! `TIDEPOOL_DATA_SOAK_SECONDS` sets how long, `TIDEPOOL_SEED` repeats the choices (not the moments at which they meet).

mod common;
mod known_bytes;

use common::{Sandbox, doors, text};
use known_bytes::clients::{Answer, Answers, Asked, Seat, SeatPlan};
use known_bytes::{Change, File, SIZE_MAX, Wrong};
use rustix::process::Signal;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tidepool_client::PoolFile;
use tidepool_testkit::{Cluster, Options, Rng};

const SECONDS_DEFAULT: u64 = 20;
const FILES: usize = 6;
/// Most bytes of one operation.
const PART_MAX: u64 = 48 << 10;
/// Files that a daemon keeps within its log, or just does not.
const SMALL_MAX: u64 = 5_000;
/// Lines of what happened last that are kept.
const STORY_MAX: usize = 400;
/// How long what died may still be at work: a program's last request is served by its mount after the program is gone.
const REST: Duration = Duration::from_secs(1);
/// An operation that takes longer hangs.
const HANGS: Duration = Duration::from_secs(100);
/// Pauses between faults, and between two looks of all at everything, at most.
const FAULT_MS_MAX: u64 = 1_500;
const LOOK: Duration = Duration::from_secs(4);

/// What an operation under way is for.
#[derive(Debug)]
enum Aim {
    Read,
    Write,
    Change,
    /// By which what is so is found out after a doubt.
    Look,
    /// Empty again after a look that found no name.
    Remade,
    /// Everything is quiet, and this must be so.
    Whole,
    Sizes,
    Names,
}

/// What ends the soak.
#[derive(Debug)]
enum Found {
    /// Bytes, sizes or names that are not what was written.
    Shown(String),
    /// A program that failed or hangs, although nothing was killed.
    Failed(String),
}

impl Found {
    fn at(self, place: &str) -> Found {
        match self {
            Found::Shown(what) => Found::Shown(format!("{place}: {what}")),
            Found::Failed(what) => Found::Failed(format!("{place}: {what}")),
        }
    }
}

impl From<Wrong> for Found {
    fn from(Wrong(what): Wrong) -> Found {
        Found::Shown(what)
    }
}

#[derive(Debug)]
struct Pending {
    seat: usize,
    file: usize,
    aim: Aim,
    line: String,
    since: Instant,
    /// Something was killed while it ran that it may have needed.
    excused: bool,
}

/// What is to be undone, and when.
#[derive(Debug)]
enum Undo {
    Restart(usize),
    Continue(usize),
}

#[derive(Debug, Default)]
struct Counts {
    operations: BTreeMap<String, u64>,
    faults: BTreeMap<&'static str, u64>,
    unknown: u64,
    bytes_compared: u64,
    looks: u64,
}

struct Soak<'a> {
    rng: Rng,
    sandbox: &'a Sandbox,
    cluster: Cluster,
    seats: Vec<Seat>,
    busy: Vec<Option<u64>>,
    files: Vec<File>,
    rest_until: Vec<Instant>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    next_key: u64,
    answers: Answers,
    arriving: Receiver<(u64, Answer)>,
    undo: Option<(Instant, Undo)>,
    counts: Counts,
    /// What happened last, for whoever reads of a failure.
    story: VecDeque<String>,
}

/// The pool as the node of daemon `near` sees it: the other one is reached by TCP.
fn view(sandbox: &Sandbox, cluster: &Cluster, near: u16) -> PathBuf {
    let dir = sandbox.path(&format!("node{near}"));
    std::fs::create_dir_all(&dir).unwrap();
    let mut pool: PoolFile = cluster.pool_file();
    pool.mount = sandbox.path("pool");
    for member in pool.members.iter_mut().filter(|member| member.index != near) {
        member.boot_id = format!("node {}", member.index);
    }
    let file = dir.join("pool.json");
    pool.write(&file).unwrap();
    file
}

impl<'a> Soak<'a> {
    fn start(rng: Rng, sandbox: &'a Sandbox) -> Soak<'a> {
        let options = Options { daemons: 2, tcp_too: true, ..Options::default() };
        let cluster = Cluster::with(options);
        let (answers, arriving) = channel();
        let views = [view(sandbox, &cluster, 0), view(sandbox, &cluster, 1)];
        let shown = sandbox.path("pool");
        let seat = |view: &Path, mount: Option<&str>| {
            let plan = SeatPlan { sandbox, view, mount, shown: &shown };
            Seat::take(&plan, &answers)
        };
        let seats = vec![
            seat(&views[0], Some("mount0")),
            seat(&views[1], Some("mount1")),
            seat(&views[0], None),
            seat(&views[1], None),
        ];
        Soak {
            rng,
            sandbox,
            busy: seats.iter().map(|_| None).collect(),
            seats,
            cluster,
            files: (0..FILES).map(|i| File::new(format!("f{i}"), i as u64)).collect(),
            rest_until: vec![Instant::now(); FILES],
            pending: BTreeMap::new(),
            next: 0,
            next_key: FILES as u64,
            answers,
            arriving,
            undo: None,
            counts: Counts::default(),
            story: VecDeque::new(),
        }
    }

    fn run(&mut self, lasts: Duration, faults: bool) -> Result<(), Found> {
        self.make_files()?;
        let end = Instant::now() + lasts;
        let (mut look, mut fault) = (Instant::now() + LOOK, Instant::now());
        while Instant::now() < end {
            self.undo_what_is_due();
            if Instant::now() > look {
                self.look_at_everything()?;
                look = Instant::now() + LOOK;
            }
            if faults && self.undo.is_none() && Instant::now() > fault {
                self.fault();
                fault = Instant::now() + Duration::from_millis(self.rng.below(FAULT_MS_MAX));
            }
            for seat in self.idle_seats() {
                self.begin(seat);
            }
            self.take_answer(Duration::from_millis(5))?;
        }
        self.look_at_everything()
    }

    fn make_files(&mut self) -> Result<(), Found> {
        for file in 0..FILES {
            self.ask(0, file, Aim::Remade, &format!("rewrite {} 0", self.files[file].name), Vec::new());
            self.drain()?;
        }
        Ok(())
    }

    fn idle_seats(&self) -> Vec<usize> {
        (0..self.seats.len()).filter(|seat| self.busy[*seat].is_none()).collect()
    }

    fn tell(&mut self, line: String) {
        self.story.push_back(line);
        if self.story.len() > STORY_MAX {
            self.story.pop_front();
        }
    }

    /// Sends a request; what the model has to know of it has been told already.
    fn ask(&mut self, seat: usize, file: usize, aim: Aim, line: &str, data: Vec<u8>) {
        let number = self.next;
        self.next += 1;
        let word = line.split(' ').next().unwrap_or_default();
        *self.counts.operations.entry(word.to_string()).or_default() += 1;
        let (line, excused) = (line.to_string(), matches!(self.undo, Some((_, Undo::Restart(_)))));
        let since = Instant::now();
        self.tell(format!("{number} by {seat}: {line}"));
        self.pending.insert(number, Pending { seat, file, aim, line: line.clone(), since, excused });
        self.busy[seat] = Some(number);
        let forget = std::mem::take(&mut self.seats[seat].forget);
        self.seats[seat].program.ask(Asked { number, line, data, forget });
    }

    /// Something new for a program that has nothing to do.
    fn begin(&mut self, seat: usize) {
        let file = self.rng.below(FILES as u64) as usize;
        if self.files[file].unsure {
            if self.files[file].is_idle()
                && Instant::now() > self.rest_until[file]
                && self.looker(file).is_none()
            {
                self.ask_whole(seat, file, "fresh", Aim::Look);
            }
            return;
        }
        match self.rng.below(10) {
            0..4 if self.files[file].may_read() => self.begin_read(seat, file),
            4..8 => self.begin_write(seat, file),
            _ if self.files[file].may_change() => self.begin_change(seat, file),
            _ => {}
        }
    }

    fn looker(&self, file: usize) -> Option<u64> {
        self.pending.iter().find(|(_, pending)| pending.file == file).map(|(number, _)| *number)
    }

    fn part(&mut self, size: u64) -> (u64, u64) {
        let at = self.rng.below(size);
        // Mostly small, and often to a block's edge.
        let max = [100, 5_000, PART_MAX][self.rng.below(3) as usize];
        let len = 1 + self.rng.below(max);
        let at = if self.rng.below(3) == 0 { at - at % 4096 } else { at };
        (at, len.min(size - at))
    }

    fn begin_read(&mut self, seat: usize, file: usize) {
        let size = self.files[file].size();
        if size == 0 {
            return;
        }
        let (at, len) = self.part(size);
        let how = ["kept", "kept", "fresh", "map"][self.rng.below(4) as usize];
        let file_is = &mut self.files[file];
        file_is.begin_read(self.next, at, len);
        let line = format!("read {how} {} {} {at} {len}", file_is.key, file_is.name);
        self.ask(seat, file, Aim::Read, &line, Vec::new());
    }

    fn begin_write(&mut self, seat: usize, file: usize) {
        let size = self.files[file].size();
        if size == 0 {
            return;
        }
        let (at, len) = self.part(size);
        if !self.files[file].may_write(&(at..at + len)) {
            return;
        }
        let (number, punch) = (self.next, self.rng.below(12) == 0);
        let data = if punch { vec![0; len as usize] } else { self.rng.bytes(len as usize) };
        let how = ["kept", "kept", "fresh", "both", "synced"][self.rng.below(5) as usize];
        let file_is = &mut self.files[file];
        file_is.begin_write(number, at, data.clone());
        let (key, name) = (file_is.key, &file_is.name);
        let (line, data) = match punch {
            true => (format!("punch {name} {at} {len}"), Vec::new()),
            false => (format!("write {how} {key} {name} {at} {len}"), data),
        };
        self.ask(seat, file, Aim::Write, &line, data);
    }

    /// Something that needs the file for itself.
    fn begin_change(&mut self, seat: usize, file: usize) {
        let before = self.files[file].content.clone();
        let (key, name) = (self.files[file].key, self.files[file].name.clone());
        let max = if file.is_multiple_of(3) { SMALL_MAX } else { SIZE_MAX };
        let some = 1 + self.rng.below(PART_MAX.min(max));
        let data = self.rng.bytes(some as usize);
        let mut after = before.clone();
        let (mut atomic, mut missing, mut emptied) = (false, false, false);
        let (line, data) = match self.rng.below(8) {
            0 | 1 if before.len() as u64 + some <= max => {
                after.extend(&data);
                (format!("append {name} {some}"), data)
            }
            // Past the end, often with a hole before it.
            2 | 3 => {
                let at = self.rng.below(max - some + 1);
                after.resize(after.len().max((at + some) as usize), 0);
                after[at as usize..(at + some) as usize].copy_from_slice(&data);
                let how = ["kept", "fresh", "both", "map"]
                    [self.rng.below(if at + some <= before.len() as u64 { 4 } else { 3 }) as usize];
                (format!("write {how} {key} {name} {at} {some}"), data)
            }
            4 => {
                let size = self.rng.below(max);
                after.resize(size as usize, 0);
                let how = ["path", "kept"][self.rng.below(2) as usize];
                (format!("truncate {how} {key} {name} {size}"), Vec::new())
            }
            5 => {
                (after, emptied) = (data.clone(), true);
                (format!("rewrite {name} {some}"), data)
            }
            6 => {
                (after, atomic) = (data.clone(), true);
                (format!("replace {name} {name}.new {some}"), data)
            }
            _ => {
                (after, missing) = (data.clone(), true);
                (format!("remake {name} {some}"), data)
            }
        };
        if atomic || missing {
            self.another_object(file);
        }
        // Names that are made anew, and rewritten files, are empty in between.
        let floor = if missing || emptied { 0 } else { before.len().min(after.len()) as u64 };
        self.files[file].begin_change(self.next, Change { after, floor, atomic, missing });
        self.ask(seat, file, Aim::Change, &line, data);
    }

    /// The name will be another object: nobody keeps the old one open.
    fn another_object(&mut self, file: usize) {
        let old = std::mem::replace(&mut self.files[file].key, self.next_key);
        self.next_key += 1;
        self.seats.iter_mut().for_each(|seat| seat.forget.push(old));
    }

    fn ask_whole(&mut self, seat: usize, file: usize, how: &str, aim: Aim) {
        let line =
            format!("read {how} {} {} 0 {}", self.files[file].key, self.files[file].name, 2 * SIZE_MAX);
        self.ask(seat, file, aim, &line, Vec::new());
    }

    /// Waits for one answer and compares it.
    fn take_answer(&mut self, max: Duration) -> Result<(), Found> {
        let (number, answer) = match self.arriving.recv_timeout(max) {
            Ok(arrived) => arrived,
            Err(RecvTimeoutError::Timeout) => return self.nothing_hangs(),
            Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept here"),
        };
        let pending = self.pending.remove(&number).expect("each is answered once");
        if self.busy[pending.seat] == Some(number) {
            self.busy[pending.seat] = None;
            if matches!(answer, Answer::Died) && pending.excused {
                // A page of a mapped file that cannot be had is SIGBUS.
                self.seats[pending.seat].kill_program(&self.answers);
            }
        }
        let place = format!("seat {}: {}", pending.seat, pending.line);
        self.tell(match &answer {
            Answer::Done(_) => format!("{number} done"),
            other => format!("{number} {other:?}"),
        });
        match answer {
            Answer::Done(seen) => self.done(number, &pending, &seen),
            _ if pending.excused || finds_no_name(&pending, &answer) => {
                self.ended_badly(number, &pending, &answer)
            }
            Answer::Failed(errno, text) => {
                Err(Found::Failed(format!("error {errno} ({text}) on a healthy pool")))
            }
            Answer::Died => {
                let ended = self.seats[pending.seat].program.child.wait();
                Err(Found::Failed(format!("the program ended by itself: {ended:?}")))
            }
        }
        .map_err(|found| found.at(&place))
    }

    /// What everybody sees when something was wrong: tells what is stored from what one of them has kept.
    fn compare_seats(&mut self) {
        if let Some((_, undo)) = self.undo.take() {
            self.undone(undo);
        }
        for file in 0..self.files.len() {
            let wanted = self.files[file].content.clone();
            for (seat, how) in (0..self.seats.len()).flat_map(|seat| [(seat, "fresh"), (seat, "kept")]) {
                let number = self.next;
                self.ask_whole(seat, file, how, Aim::Whole);
                let seen = match self.answer_of(number) {
                    Some(Answer::Done(seen)) => known_bytes::difference(&seen, &wanted),
                    other => format!("{other:?}"),
                };
                println!("{how} by {seat}, f{file}: {seen}");
            }
        }
    }

    /// Whatever else is answered meanwhile counts no more.
    fn answer_of(&mut self, number: u64) -> Option<Answer> {
        std::iter::from_fn(|| self.arriving.recv_timeout(HANGS).ok())
            .find(|(arrived, _)| *arrived == number)
            .map(|(_, answer)| answer)
    }

    fn nothing_hangs(&self) -> Result<(), Found> {
        let hangs = self.pending.values().find(|pending| pending.since.elapsed() > HANGS);
        hangs.map_or(Ok(()), |pending| Err(Found::Failed(format!("hangs: {pending:?}"))))
    }

    fn done(&mut self, number: u64, pending: &Pending, seen: &[u8]) -> Result<(), Found> {
        self.counts.bytes_compared += seen.len() as u64;
        let file = &mut self.files[pending.file];
        match pending.aim {
            Aim::Read => Ok(file.end_read(number, seen)?),
            Aim::Write => {
                file.end_write(number);
                Ok(())
            }
            Aim::Change => {
                file.end_change();
                Ok(())
            }
            Aim::Look => Ok(file.look(Some(seen))?),
            Aim::Remade => Ok(file.look(Some(&[]))?),
            Aim::Whole => Ok(file.must_be(seen)?),
            Aim::Sizes => {
                let wanted = format!("{0} {0} {0}", file.size());
                let said = String::from_utf8_lossy(seen);
                (said == wanted)
                    .then_some(())
                    .ok_or_else(|| Found::Shown(format!("{said} instead of {wanted}")))
            }
            Aim::Names => self.names_are(seen),
        }
    }

    /// Names that a killed program had not put in their place yet may be there as well.
    fn names_are(&self, seen: &[u8]) -> Result<(), Found> {
        let said = String::from_utf8_lossy(seen).into_owned();
        let shown: Vec<&str> = said.lines().filter(|name| !name.ends_with(".new")).collect();
        let wanted: Vec<&str> = self.files.iter().map(|file| &*file.name).collect();
        (shown == wanted)
            .then_some(())
            .ok_or_else(|| Found::Shown(format!("{shown:?} instead of {wanted:?}")))
    }

    /// It failed, or its program is dead, and something was killed meanwhile.
    fn ended_badly(&mut self, number: u64, pending: &Pending, answer: &Answer) -> Result<(), Found> {
        self.counts.unknown += 1;
        let file = pending.file;
        match (&pending.aim, answer) {
            (Aim::Look, Answer::Failed(libc::ENOENT, _)) => {
                self.files[file].look(None)?;
                self.files[file].content.clear();
                let line = format!("rewrite {} 0", self.files[file].name);
                self.another_object(file);
                self.files[file].begin_remake();
                self.ask(pending.seat, file, Aim::Remade, &line, Vec::new());
            }
            _ => {
                self.files[file].lose(number);
                self.rest_until[file] = Instant::now() + REST;
            }
        }
        Ok(())
    }

    /// Waits until nothing is under way.
    fn drain(&mut self) -> Result<(), Found> {
        while !self.pending.is_empty() {
            self.undo_what_is_due();
            self.take_answer(Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// Everything is healthy and quiet: each program must see each file as it is, by name and by what it has open.
    fn look_at_everything(&mut self) -> Result<(), Found> {
        self.drain()?;
        while self.undo.is_some() {
            std::thread::sleep(Duration::from_millis(10));
            self.undo_what_is_due();
        }
        while let Some(file) = (0..FILES).find(|file| self.files[*file].unsure) {
            std::thread::sleep(self.rest_until[file].saturating_duration_since(Instant::now()));
            let seat = self.rng.below(self.seats.len() as u64) as usize;
            self.ask_whole(seat, file, "fresh", Aim::Look);
            self.drain()?;
        }
        self.counts.looks += 1;
        for file in 0..FILES {
            for how in ["fresh", "kept"] {
                (0..self.seats.len()).for_each(|seat| self.ask_whole(seat, file, how, Aim::Whole));
                self.drain()?;
            }
            let line = format!("sizes {} {}", self.files[file].key, self.files[file].name);
            (0..self.seats.len()).for_each(|seat| self.ask(seat, file, Aim::Sizes, &line, Vec::new()));
            self.drain()?;
        }
        (0..self.seats.len()).for_each(|seat| self.ask(seat, 0, Aim::Names, "names", Vec::new()));
        self.drain()
    }

    fn fault(&mut self) {
        let seat = self.rng.below(self.seats.len() as u64) as usize;
        let daemon = self.rng.below(2) as usize;
        let soon = Duration::from_millis(self.rng.below(1_000));
        let name = match self.rng.below(6) {
            0 | 1 => {
                self.excuse(|pending| pending.seat == seat);
                self.busy[seat] = None;
                self.seats[seat].kill_program(&self.answers);
                "program killed"
            }
            2 if self.seats[seat].is_mounted() => {
                self.excuse(|pending| pending.seat == seat);
                self.busy[seat] = None;
                self.seats[seat].kill_mount(self.sandbox, &self.answers);
                "mount killed"
            }
            3 | 4 => {
                self.excuse(|_| true);
                self.cluster.kill(daemon);
                self.undo = Some((Instant::now() + soon, Undo::Restart(daemon)));
                "daemon killed"
            }
            _ => {
                self.cluster.signal(daemon, Signal::STOP);
                self.undo = Some((Instant::now() + soon, Undo::Continue(daemon)));
                "daemon stopped"
            }
        };
        self.tell(format!("{name}: seat {seat}, or daemon {daemon} for {soon:?}"));
        *self.counts.faults.entry(name).or_default() += 1;
    }

    fn excuse(&mut self, which: impl Fn(&Pending) -> bool) {
        self.pending.values_mut().filter(|pending| which(pending)).for_each(|pending| pending.excused = true);
    }

    fn undo_what_is_due(&mut self) {
        let Some((_, undo)) = self.undo.take_if(|(due, _)| Instant::now() > *due) else { return };
        self.tell(format!("{undo:?}"));
        self.undone(undo);
    }

    fn undone(&mut self, undo: Undo) {
        match undo {
            Undo::Restart(daemon) => self.cluster.restart(daemon),
            Undo::Continue(daemon) => self.cluster.signal(daemon, Signal::CONT),
        }
    }
}

/// A look after a name was to be made anew finds whether it was.
fn finds_no_name(pending: &Pending, answer: &Answer) -> bool {
    matches!((&pending.aim, answer), (Aim::Look, Answer::Failed(libc::ENOENT, _)))
}

/// Both doors, or none of it means anything.
fn possible() -> bool {
    let both = doors().len() == 2;
    if !both {
        println!("SKIPPED: both doors are needed");
    }
    both
}

#[test]
fn every_byte_is_known_while_parts_are_killed() {
    if !possible() {
        return;
    }
    let rng = Rng::from_env("every_byte_is_known_while_parts_are_killed");
    let seconds = std::env::var("TIDEPOOL_DATA_SOAK_SECONDS")
        .map_or(SECONDS_DEFAULT, |text| text.parse().expect("a number of seconds"));
    let sandbox = Sandbox::new();
    let mut soak = Soak::start(rng, &sandbox);
    let ended = soak.run(Duration::from_secs(seconds), true);
    println!("limits: TIDEPOOL_DATA_SOAK_SECONDS={seconds}; {:?}", soak.counts);
    if let Err(found) = ended {
        println!("{:#?}\n{:?}\n{found:?}", soak.story, soak.pending);
        soak.compare_seats();
        panic!("{found:?}");
    }
    soak.seats.clear();
    let checked = sandbox.tidepool(&["check"]).env("TIDEPOOL_POOL", sandbox.path("node0/pool.json")).output();
    let checked = checked.expect("tidepool runs");
    assert!(checked.status.success(), "{}", text(&checked));
}

/// The test above can fail: a program that leaves one write of many out is found out.
#[test]
fn a_write_that_is_left_out_is_noticed() {
    if !possible() {
        return;
    }
    let sandbox = Sandbox::new();
    let rng = Rng::from_env("a_write_that_is_left_out_is_noticed");
    let mut soak = Soak::start(rng, &sandbox);
    soak.seats[2].lie(20, &soak.answers);
    let ended = soak.run(Duration::from_secs(60), false);
    let Err(found) = ended else { panic!("nothing was noticed: {:?}", soak.counts) };
    assert!(matches!(found, Found::Shown(_)), "{found:?}");
}
