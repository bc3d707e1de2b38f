//! Ends of files against an oracle: writers of one file store data at three daemons cell by cell, tell its home, give up, or die at
//! any moment between two steps; the home is restarted; the file is cleared step by step, or in vain. After every step each cell
//! of the file shows what was acknowledged, what a writer is writing there, or nothing: never what a dead one left behind the end.

#![forbid(unsafe_code)]

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use tidepool_env::MemDisk;
use tidepool_fs_state::{Context, State, StateConfig};
use tidepool_store::MemLogStore;
use tidepool_types::{FileKind, Ino, Layout, SessionId, SetAttr, TimeSpec};
use tidepool_wire::message::{NewObject, Reply, Request, Told};

/// Bytes that matter; each is a chunk of its own but for the first two, which are at home.
const CELLS: usize = 36;
const WRITERS: usize = 3;
const HOLDERS: usize = 3;
/// Cells in a row that belong to one writer: none disturbs another.
const RUN: usize = 3;
const AT_HOME: u64 = 2;

/// By how much a restart of the home raises its epoch: more than all clearings together.
const RESTART: u64 = 1000;

#[derive(Clone, Debug)]
enum Step {
    /// Writer, run, first and last cell in it.
    Begin(usize, usize, usize, usize),
    Store(usize),
    Tell(usize),
    GiveUp(usize),
    Die(usize),
    Resize(usize, u64),
    Clear,
    FailToClear,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..WRITERS;
    prop_oneof![
        6 => (who(), 0..CELLS / RUN / WRITERS, 0..RUN, 0..RUN)
            .prop_map(|(w, run, a, b)| Step::Begin(w, run, a.min(b), a.max(b))),
        10 => who().prop_map(Step::Store),
        6 => who().prop_map(Step::Tell),
        1 => who().prop_map(Step::GiveUp),
        2 => who().prop_map(Step::Die),
        3 => (who(), 0..=CELLS as u64).prop_map(|(w, size)| Step::Resize(w, size)),
        8 => Just(Step::Clear),
        1 => Just(Step::FailToClear),
        1 => Just(Step::Restart),
    ]
}

/// A write under way.
#[derive(Clone)]
struct Write {
    value: u32,
    start: usize,
    end: usize,
    /// Cells stored so far, the last ones first.
    stored: usize,
    epoch: u64,
}

/// The file being cleared: its size, and how many holders have cut it.
struct Clearing {
    size: u64,
    cut: usize,
}

struct Bench {
    /// The last writer tells late: while he has the file open it is not cleared, and what others leave may show.
    late: bool,
    disk: MemDisk,
    state: State<MemLogStore<MemDisk>>,
    file: Ino,
    sessions: Vec<SessionId>,
    writes: Vec<Option<Write>>,
    clearing: Option<Clearing>,
    cells: [u32; CELLS],
    /// What each cell may show when it is within the file.
    allowed: Vec<BTreeSet<u32>>,
    counter: u32,
    now: u64,
}

fn open(disk: &MemDisk, epoch: u64) -> State<MemLogStore<MemDisk>> {
    let store = MemLogStore::open(disk.clone()).unwrap();
    let config = StateConfig { me: 0, uid: 1, gid: 1, epoch, objects_max: 0 };
    State::open(store, &config, TimeSpec { sec: 0, nsec: 0 }).unwrap()
}

impl Bench {
    fn new(late: bool) -> Bench {
        let disk = MemDisk::new();
        let mut bench = Bench {
            late,
            state: open(&disk, 1),
            disk,
            file: Ino::ROOT,
            sessions: Vec::new(),
            writes: vec![None; WRITERS],
            clearing: None,
            cells: [0; CELLS],
            allowed: vec![BTreeSet::from([0]); CELLS],
            counter: 0,
            now: 0,
        };
        bench.sessions = (0..WRITERS).map(|_| bench.new_session()).collect();
        let object = NewObject {
            mode: FileKind::Regular.mode_bits() | 0o644,
            uid: 1,
            gid: 1,
            rdev: 0,
            layout: Some(Layout::default()),
            target: Box::default(),
        };
        let create =
            Request::Create { parent: Ino::ROOT, name: (*b"f").into(), object, excl: true, open: false };
        let Reply::Entry { ino, .. } = bench.ask(0, 0, &create) else { panic!("a file") };
        bench.file = ino;
        (0..WRITERS).for_each(|writer| bench.register(writer));
        bench
    }

    fn new_session(&mut self) -> SessionId {
        self.counter += 1;
        let mut id = [0; 16];
        id[..4].copy_from_slice(&self.counter.to_le_bytes());
        SessionId(id)
    }

    fn ask(&mut self, writer: usize, epoch: u64, request: &Request) -> Reply {
        self.now += 1;
        let ctx = Context {
            now: TimeSpec { sec: self.now as i64, nsec: 0 },
            session: self.sessions[writer],
            epoch,
            keep: false,
            monotonic: Duration::from_secs(self.now),
        };
        self.state.apply(&ctx, request)
    }

    fn register(&mut self, writer: usize) {
        let reply = self.ask(writer, 0, &Request::Open { ino: self.file });
        assert!(matches!(reply, Reply::Attributes { .. }), "{reply:?}");
    }

    fn size(&self) -> usize {
        self.state.size_of(self.file).unwrap() as usize
    }

    fn is_late(&self, writer: usize) -> bool {
        self.late && writer + 1 == WRITERS
    }

    /// What was stored of a write that nobody will tell of: within the file it may stay, behind its end it is gone for good.
    fn abandon(&mut self, write: &Write) {
        if self.late {
            return;
        }
        for cell in
            (write.start..write.end).filter(|cell| *cell >= self.state.size_of(self.file).unwrap() as usize)
        {
            self.allowed[cell] = BTreeSet::from([0]);
        }
    }

    fn perform(&mut self, step: &Step) {
        match *step {
            Step::Begin(writer, run, first, last) if self.writes[writer].is_none() => {
                if self.is_late(writer)
                    && self.ask(writer, 0, &Request::Settle { ino: self.file }) != (Reply::Done {})
                {
                    return;
                }
                self.counter += 1;
                let base = (run * WRITERS + writer) * RUN;
                let (start, end) = (base + first, base + last + 1);
                let epoch = self.state.epoch();
                self.writes[writer] = Some(Write { value: self.counter, start, end, stored: 0, epoch });
                self.allowed[start..end].iter_mut().for_each(|cell| _ = cell.insert(self.counter));
            }
            Step::Store(writer) => {
                let Some(write) = &mut self.writes[writer] else { return };
                if write.stored < write.end - write.start {
                    write.stored += 1;
                    self.cells[write.end - write.stored] = write.value;
                }
            }
            Step::Tell(writer) => self.tell(writer),
            Step::GiveUp(writer) => self.give_up(writer),
            Step::Die(writer) => {
                let session = self.sessions[writer];
                self.state.session_ended(session, TimeSpec { sec: self.now as i64, nsec: 0 });
                if let Some(write) = self.writes[writer].take() {
                    self.abandon(&write);
                }
                self.sessions[writer] = self.new_session();
                self.register(writer);
            }
            Step::Resize(writer, size) => self.resize(writer, size),
            Step::Clear => self.clear(),
            Step::FailToClear => {
                if self.clearing.take().is_some() {
                    self.now += 10;
                    let now = Duration::from_secs(self.now - 5);
                    self.state.cleared(self.file, Err("not reached".into()), now).unwrap();
                }
            }
            Step::Restart => {
                let epoch = self.state.epoch() + RESTART;
                self.state = open(&self.disk, epoch);
                self.clearing = None;
                (0..WRITERS).for_each(|writer| self.register(writer));
            }
            Step::Begin(..) => {}
        }
    }

    fn tell(&mut self, writer: usize) {
        let Some(write) = self.writes[writer].clone() else { return };
        if write.stored < write.end - write.start {
            return;
        }
        let (start, end) = (write.start as u64, write.end as u64);
        let told = if self.is_late(writer) { Told::Late } else { Told::Now };
        let extend = Request::Extend { ino: self.file, start, end, blocks: 0, told };
        match self.ask(writer, write.epoch, &extend) {
            Reply::Attributes { .. } => {
                // A home that had forgotten who tells late may have died while it cleared.
                if told == Told::Now || self.state.epoch() < write.epoch + 2 * RESTART {
                    self.allowed[write.start..write.end].fill(BTreeSet::from([write.value]));
                }
                self.writes[writer] = None;
            }
            // The home has forgotten that he tells late when it was restarted: then he is told that data are lost.
            Reply::Stale {} if told == Told::Late => {
                assert!(self.state.epoch() >= write.epoch + RESTART);
                self.writes[writer] = None;
            }
            Reply::Stale {} => {
                self.writes[writer] = Some(Write { stored: 0, epoch: self.state.epoch(), ..write });
            }
            Reply::Recalled {} => {}
            other => panic!("{other:?}"),
        }
    }

    fn give_up(&mut self, writer: usize) {
        let Some(write) = self.writes[writer].clone().filter(|_| !self.is_late(writer)) else { return };
        let extend = Request::Extend { ino: self.file, start: 0, end: 0, blocks: 0, told: Told::InPart };
        match self.ask(writer, write.epoch, &extend) {
            Reply::Attributes { .. } => {
                self.abandon(&write);
                self.writes[writer] = None;
            }
            Reply::Stale {} => {
                self.writes[writer] = Some(Write { stored: 0, epoch: self.state.epoch(), ..write });
            }
            other => panic!("{other:?}"),
        }
    }

    /// As the client does it; what happens when others write meanwhile is not what is tested here.
    fn resize(&mut self, writer: usize, size: u64) {
        let old = self.size() as u64;
        if size < old {
            if self.writes.iter().any(Option::is_some)
                || self.clearing.is_some()
                || self.state.has_clearings()
            {
                return;
            }
            let asked = if old > AT_HOME { CELLS as u64 } else { AT_HOME };
            (size..asked).for_each(|cell| self.cells[cell as usize] = 0);
        }
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        match self.ask(writer, 0, &Request::SetAttr { ino: self.file, set, blocks: 0 }) {
            Reply::Attributes { attr } => assert_eq!(attr.size, size),
            Reply::Recalled {} if size >= old => return,
            other => panic!("{other:?}"),
        }
        self.allowed[size as usize..].iter_mut().for_each(|cell| {
            if size < old {
                *cell = BTreeSet::from([0]);
            }
        });
    }

    /// One step of clearing.
    fn clear(&mut self) {
        let Some(clearing) = &mut self.clearing else {
            if let Some(ino) = self.state.take_clearings().pop() {
                assert_eq!(ino, self.file);
                self.clearing = Some(Clearing { size: self.size() as u64, cut: 0 });
            }
            return;
        };
        if clearing.cut < HOLDERS {
            let ours = (clearing.size as usize..CELLS).filter(|cell| cell % HOLDERS == clearing.cut);
            ours.for_each(|cell| self.cells[cell] = 0);
            clearing.cut += 1;
            return;
        }
        self.clearing = None;
        self.state.cleared(self.file, Ok(0), Duration::from_secs(self.now)).unwrap();
    }

    fn check(&self, step: &Step) -> Result<(), TestCaseError> {
        for cell in 0..self.size() {
            let (shown, allowed) = (self.cells[cell], &self.allowed[cell]);
            prop_assert!(
                allowed.contains(&shown),
                "after {step:?} cell {cell} shows {shown}, not one of {allowed:?}"
            );
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_shows_that_a_dead_writer_left(late: bool, steps in proptest::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new(late);
        for step in &steps {
            bench.perform(step);
            bench.check(step)?;
        }
        // Whatever has happened, the file can be made longer in the end.
        for _ in 0..3 * (HOLDERS + 3) {
            bench.perform(&Step::Resize(0, CELLS as u64));
            bench.perform(&Step::Clear);
            bench.check(&Step::Clear)?;
        }
        prop_assert_eq!(bench.size(), CELLS);
    }
}
