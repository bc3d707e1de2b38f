//! An application with its scheduler and its flusher.
//!
//! ```text
//!  Waiting ──Start──▶ Computing ──Computed──▶ Io ──last byte acknowledged──▶ Computing ... ──▶ Done
//! ```
//! In `Io` each process has up to `in_flight` chunks on their way. A chunk goes where the phase writes when it sets out; who is
//! sent elsewhere, or has to wait, finishes the chunks that are under way. A chunk is acknowledged when all its parts are. Acknowledged data above the PFS are
//! flushed in the order in which they were written.

use crate::message::{Access, FlowId, Message, Request, Told};
use crate::model::{Tiers, Undo, server};
use crate::plan::{IoPhase, LocalStore};
use std::collections::VecDeque;
use std::sync::Arc;
use tidepool_iosched::model::PAST_MAX;
use tidepool_iosched::{FlushVerdict, JobId, PastPhase, Phase, Tier, Verdict, decide};
use tidepool_sim::{ProcessId, Time, Turn};

/// Tiers that data are flushed from.
const ABOVE: [Tier; 2] = [Tier::Local, Tier::Burst];
const SHARED: [Tier; 2] = [Tier::Burst, Tier::Pfs];
/// When nothing has moved for 30 days although there is something to move, nothing ever will.
const STUCK_NS: u64 = 30 * 86_400_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Waiting,
    Computing,
    Io { begin_ns: u64 },
    Done,
}

/// Parts of a chunk on the servers of a tier: the first on server `first`, and so on around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub first: u32,
    pub bytes: u64,
}

/// A chunk on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    Idle,
    /// Of a phase, from where it is read or to where it is written.
    Phase {
        access: Access,
        tier: Tier,
        on: Under,
    },
    /// Of a flush: read where it lies.
    Fetch {
        from: Tier,
        lies: Piece,
        to: Tier,
        on: Under,
    },
    /// Of a flush: written where it goes.
    Store {
        from: Tier,
        lies: Piece,
        to: Tier,
        on: Under,
    },
}

/// What is under way of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Under {
    pub piece: Piece,
    /// Parts that have not been answered.
    pub left: u32,
    /// Parts that were refused, a bit for each.
    pub refused: u64,
}

/// All that is as long as a few words.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Core {
    pub stage: Stage,
    pub phase: u32,
    /// The phase reads; it writes afterwards.
    pub reading: bool,
    /// Where the phase writes, and its weight there.
    pub place: Option<(Tier, u32)>,
    /// When it began to write.
    write_ns: u64,
    /// Of the phase, not acknowledged.
    pub left: u64,
    /// Of the phase, acknowledged.
    pub written: u64,
    /// Acknowledged on each tier, of all phases.
    pub acked: [u64; 3],
    pub flushed_in: [u64; 3],
    pub flushed_out: [u64; 3],
    /// Where data from each tier above the PFS are flushed to.
    pub flush: [Option<(Tier, u32)>; 2],
    /// Not flushed yet.
    pub dirty: [u64; 2],
    since_ns: [u64; 2],
    pub local_used: u64,
    local_ready: Time,
    pub local_busy_ns: u64,
    /// What servers were told of: the weight of the phase and of the flush, on each shared tier.
    opened: [[Option<u32>; 2]; 2],
    /// Chunks on their way to or from each shared tier.
    under_way: [[u32; 2]; 2],
    next_server: [u32; 2],
    next_node: u32,
    measured_ns: Option<u64>,
    ticking: bool,
    moved_ns: u64,
    pub refused: u64,
    pub moves: u64,
    pub decisions: u64,
    pub late: u64,
    pub waited_ns: u64,
    waiting_since: Option<u64>,
    pub end_ns: u64,
    pub flushed_ns: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct AppState {
    pub core: Core,
    /// Writers' slots, `in_flight` of each process; then those of the flushes from node-local storage, from the burst buffer.
    slots: Vec<Slot>,
    /// What each process has still to send out in this phase.
    todo: Vec<u64>,
    /// When the link of each node is free.
    links: Vec<Time>,
    past: Arc<Vec<PastPhase>>,
    pub io_ns: Vec<u64>,
    /// What others told last.
    pub heard: Vec<Option<Arc<Told>>>,
    /// What it told last itself.
    pub told: Arc<Told>,
    /// What is known to be free at each server of the burst buffer, and of the PFS.
    pub room: Vec<u64>,
    /// Chunks to be flushed, oldest first.
    lying: [VecDeque<Piece>; 2],
}

pub enum AppUndo {
    Core(Box<Core>),
    Slot(usize, Slot),
    Todo(usize, u64),
    Todos(Vec<u64>),
    Link(usize, Time),
    Past(Arc<Vec<PastPhase>>),
    Io,
    Heard(usize, Option<Arc<Told>>),
    Told(Arc<Told>),
    Room(usize, u64),
    Laid(usize),
    Taken(usize, Piece),
}

impl AppState {
    pub fn start(model: &Tiers, turn: &mut Turn<'_, Tiers>) -> AppState {
        let setup = &model.setup;
        let app = &setup.apps[turn.me().0 as usize];
        let processes = app.workload.processes as usize;
        let after = nanoseconds(app.workload.start.as_secs_f64()).max(1);
        turn.send(turn.me(), Time(after), Message::Start);
        let share = |tier: Tier| {
            let (_, count) = model.servers(tier);
            let each = setup.tier(tier).capacity_bytes / u64::from(count.max(1));
            (0..count).map(move |_| each)
        };
        let past = Arc::new(Vec::new());
        AppState {
            core: Core::new(),
            slots: vec![Slot::Idle; processes * setup.in_flight as usize + 2 * setup.flush_streams as usize],
            todo: vec![0; processes],
            links: vec![Time::ZERO; app.nodes as usize],
            past: past.clone(),
            io_ns: Vec::new(),
            heard: vec![None; setup.apps.len()],
            told: Arc::new(Told { at_ns: 0, running: false, phase: None, past }),
            room: share(Tier::Burst).chain(share(Tier::Pfs)).collect(),
            lying: [VecDeque::new(), VecDeque::new()],
        }
    }

    pub fn undo(&mut self, change: AppUndo) {
        match change {
            AppUndo::Core(core) => self.core = *core,
            AppUndo::Slot(at, slot) => self.slots[at] = slot,
            AppUndo::Todo(at, bytes) => self.todo[at] = bytes,
            AppUndo::Todos(all) => self.todo = all,
            AppUndo::Link(at, time) => self.links[at] = time,
            AppUndo::Past(past) => self.past = past,
            AppUndo::Io => drop(self.io_ns.pop()),
            AppUndo::Heard(at, told) => self.heard[at] = told,
            AppUndo::Told(told) => self.told = told,
            AppUndo::Room(at, free) => self.room[at] = free,
            AppUndo::Laid(tier) => drop(self.lying[tier].pop_back()),
            AppUndo::Taken(tier, piece) => self.lying[tier].push_front(piece),
        }
    }

    pub fn handle(&mut self, model: &Tiers, message: &Message, turn: &mut Turn<'_, Tiers>) {
        let core = self.core;
        turn.keep(|| Undo::App(AppUndo::Core(Box::new(core))));
        let mut actor = Actor { model, me: turn.me().0 as usize, state: self, turn };
        actor.handle(message);
        actor.close_unused();
    }
}

impl Core {
    fn new() -> Core {
        Core {
            stage: Stage::Waiting,
            phase: 0,
            reading: false,
            place: None,
            write_ns: 0,
            left: 0,
            written: 0,
            acked: [0; 3],
            flushed_in: [0; 3],
            flushed_out: [0; 3],
            flush: [None; 2],
            dirty: [0; 2],
            since_ns: [0; 2],
            local_used: 0,
            local_ready: Time::ZERO,
            local_busy_ns: 0,
            opened: [[None; 2]; 2],
            under_way: [[0; 2]; 2],
            next_server: [0; 2],
            next_node: 0,
            measured_ns: None,
            ticking: false,
            moved_ns: 0,
            refused: 0,
            moves: 0,
            decisions: 0,
            late: 0,
            waited_ns: 0,
            waiting_since: None,
            end_ns: 0,
            flushed_ns: 0,
        }
    }

    pub fn since_ns(&self, tier: Tier) -> u64 {
        self.since_ns[tier as usize]
    }

    fn is_writing(&self) -> bool {
        matches!(self.stage, Stage::Io { .. }) && !self.reading
    }
}

/// Of a shared tier, among the shared ones.
fn shared(tier: Tier) -> Option<usize> {
    match tier {
        Tier::Local => None,
        Tier::Burst => Some(0),
        Tier::Pfs => Some(1),
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// How long so many bytes take, in ns.
fn lasts(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX).clamp(1, Time::MAX.0 / 4)
}

/// An application in its turn.
struct Actor<'a, 'b> {
    model: &'a Tiers,
    me: usize,
    state: &'a mut AppState,
    turn: &'a mut Turn<'b, Tiers>,
}

impl Actor<'_, '_> {
    fn handle(&mut self, message: &Message) {
        match message {
            Message::Start => self.start(),
            Message::Computed => self.begin(),
            Message::Tick => self.tick(),
            Message::Local { slot } => self.answered(*slot as usize, 0, true),
            Message::News { from, told } => self.hear(*from as usize, told),
            Message::Part { slot, part, served, server, free } => {
                self.know_room(*server, *free);
                self.answered(*slot as usize, u32::from(*part), *served);
            }
            Message::Room { server, free } => self.know_room(*server, *free),
            _ => self.turn.fail("an application was told what is for servers"),
        }
    }

    fn now_ns(&self) -> u64 {
        self.turn.now().0
    }

    fn plan(&self) -> &crate::plan::App {
        &self.model.setup.apps[self.me]
    }

    fn processes(&self) -> usize {
        self.plan().workload.processes as usize
    }

    fn io_phase(&self) -> Option<IoPhase> {
        self.model.phases[self.me].0.get(self.state.core.phase as usize).copied()
    }

    // Phases.

    fn start(&mut self) {
        self.compute();
        self.tell();
    }

    fn compute(&mut self) {
        let (phases, after) = &self.model.phases[self.me];
        let steps = phases.get(self.state.core.phase as usize).map_or(*after, |phase| phase.steps);
        let measured = self.state.core.measured_ns.map(std::time::Duration::from_nanos);
        let each = self.plan().workload.compute(measured).as_secs_f64();
        let jitter = self.plan().jitter;
        let unit = if jitter > 0.0 { self.turn.random().unit() } else { 0.5 };
        let ns = nanoseconds(each * steps as f64 * (1.0 + jitter * (2.0 * unit - 1.0)));
        self.state.core.stage = Stage::Computing;
        self.turn.send(self.turn.me(), Time(ns.max(1)), Message::Computed);
    }

    fn begin(&mut self) {
        let Some(phase) = self.io_phase() else { return self.end() };
        let now = self.now_ns();
        self.state.core.stage = Stage::Io { begin_ns: now };
        self.state.core.moved_ns = now;
        self.state.core.reading = phase.read_each > 0;
        let each = if phase.read_each > 0 { phase.read_each } else { phase.write_each };
        self.begin_part(each);
    }

    /// Reading, or writing.
    fn begin_part(&mut self, each: u64) {
        let processes = self.processes();
        let old = std::mem::replace(&mut self.state.todo, vec![each; processes]);
        self.turn.keep(|| Undo::App(AppUndo::Todos(old)));
        self.state.core.left = each.saturating_mul(processes as u64);
        self.state.core.written = 0;
        if self.state.core.reading {
            return self.send_out();
        }
        self.state.core.write_ns = self.now_ns();
        self.note();
        self.decide();
        self.tell();
        self.keep_ticking();
    }

    fn end(&mut self) {
        self.state.core.stage = Stage::Done;
        self.state.core.end_ns = self.now_ns();
        self.state.core.flushed_ns = self.state.core.flushed_ns.max(self.now_ns());
        self.tell();
        self.decide();
        self.keep_ticking();
    }

    /// All of a part is acknowledged.
    fn part_done(&mut self) {
        let Stage::Io { begin_ns } = self.state.core.stage else { return };
        let write_each = self.io_phase().map_or(0, |phase| phase.write_each);
        if std::mem::take(&mut self.state.core.reading) {
            if write_each > 0 {
                return self.begin_part(write_each);
            }
        } else {
            self.remember(self.state.core.write_ns);
        }
        let now = self.now_ns();
        self.place(None);
        self.state.core.waiting_since = None;
        self.turn.keep(|| Undo::App(AppUndo::Io));
        self.state.io_ns.push(now - begin_ns);
        self.state.core.measured_ns.get_or_insert(now - begin_ns);
        self.state.core.phase += 1;
        let (phases, after) = &self.model.phases[self.me];
        if self.state.core.phase as usize == phases.len() && *after == 0 {
            return self.end();
        }
        self.compute();
        self.tell();
        self.decide();
        self.keep_ticking();
    }

    fn remember(&mut self, begin_ns: u64) {
        let past = PastPhase { begin_ns, end_ns: self.now_ns(), bytes: self.state.core.written };
        let mut all: Vec<PastPhase> = self.state.past.iter().copied().collect();
        if all.len() == PAST_MAX {
            all.remove(0);
        }
        all.push(past);
        let old = std::mem::replace(&mut self.state.past, Arc::new(all));
        self.turn.keep(|| Undo::App(AppUndo::Past(old)));
    }

    // News.

    fn is_busy(&self) -> bool {
        self.state.core.is_writing() || self.state.core.dirty != [0; 2]
    }

    fn keep_ticking(&mut self) {
        if !self.state.core.ticking && self.is_busy() {
            self.state.core.ticking = true;
            self.turn.send(self.turn.me(), Time(self.model.setup.tell_ns), Message::Tick);
        }
    }

    fn tick(&mut self) {
        self.state.core.ticking = false;
        if !self.is_busy() {
            return;
        }
        let idle = self.now_ns() - self.state.core.moved_ns.min(self.now_ns());
        if idle > STUCK_NS {
            return self.turn.fail("an application has moved nothing for 30 days; its strategy lets it wait");
        }
        if self.state.core.is_writing() {
            self.tell();
        }
        self.decide();
        self.keep_ticking();
    }

    /// What there is to be told.
    fn note(&mut self) {
        let core = &self.state.core;
        let begin_ns = core.is_writing().then_some(core.write_ns);
        let phase = self.io_phase().zip(begin_ns).map(|(phase, begin_ns)| Phase {
            begin_ns,
            written_bytes: core.written,
            expected_bytes: self
                .model
                .setup
                .hints
                .then(|| phase.write_each.saturating_mul(self.processes() as u64)),
            pattern: self.plan().pattern(),
            tier: core.place.map(|(tier, _)| tier),
        });
        let running = !matches!(core.stage, Stage::Waiting | Stage::Done);
        let told = Told { at_ns: self.now_ns(), running, phase, past: self.state.past.clone() };
        let old = std::mem::replace(&mut self.state.told, Arc::new(told));
        self.turn.keep(|| Undo::App(AppUndo::Told(old)));
    }

    fn tell(&mut self) {
        self.note();
        let message = Message::News { from: self.me as u32, told: self.state.told.clone() };
        for other in (0..self.model.setup.apps.len()).filter(|other| *other != self.me) {
            self.turn.send(ProcessId(other as u32), Time(self.model.setup.news_ns), message.clone());
        }
    }

    fn hear(&mut self, from: usize, told: &Arc<Told>) {
        let essence = |told: &Told| {
            (told.running, told.phase.map(|phase| (phase.begin_ns, phase.tier)), told.past.len())
        };
        let old = self.state.heard[from].replace(told.clone());
        let is_new = old.as_ref().is_none_or(|old| essence(old) != essence(told));
        self.turn.keep(|| Undo::App(AppUndo::Heard(from, old)));
        if is_new && self.is_busy() {
            self.decide();
        }
    }

    fn know_room(&mut self, server: u32, free: u64) {
        let at = (server as usize).saturating_sub(self.model.setup.apps.len());
        let Some(known) = self.state.room.get_mut(at) else { return };
        let old = std::mem::replace(known, free);
        self.turn.keep(|| Undo::App(AppUndo::Room(at, old)));
    }

    // Decisions.

    fn decide(&mut self) {
        if !self.is_busy() {
            self.state.core.flush = [None; 2];
            return;
        }
        let view = match crate::known::view(self.model, self.me, self.state, self.now_ns()) {
            Ok(view) => view,
            Err(error) => return self.turn.fail(format!("a scheduler knows what cannot be: {error}")),
        };
        let decision = decide(self.model.strategy, &view);
        let is_late = SHARED.iter().any(|tier| view.knowledge(*tier) != tidepool_iosched::Knowledge::Fresh);
        self.state.core.decisions += 1;
        self.state.core.late += u64::from(is_late);
        let job = JobId(self.me as u64 + 1);
        if self.state.core.is_writing() {
            let place = match decision.phases.get(&job) {
                Some(Verdict::Go { tier, weight }) => Some((*tier, *weight)),
                _ => None,
            };
            let before = self.state.core.place.map(|(tier, _)| tier);
            self.place(place);
            if place.map(|(tier, _)| tier) != before && self.state.core.written > 0 {
                self.tell();
            }
        }
        for from in ABOVE {
            let verdict = decision.flushes.get(&(job, from));
            self.state.core.flush[from as usize] = match verdict {
                Some(FlushVerdict::Go { to, weight }) => Some((*to, *weight)),
                _ => None,
            };
            self.flush_out(from);
        }
    }

    /// Sends what the phase writes from now on elsewhere, or lets it wait.
    fn place(&mut self, place: Option<(Tier, u32)>) {
        let now = self.now_ns();
        let core = &mut self.state.core;
        if let (Some((before, _)), Some((tier, _))) = (core.place, place) {
            core.moves += u64::from(before != tier);
        }
        if let Some(since) = core.waiting_since.take() {
            core.waited_ns += now - since.min(now);
        }
        core.waiting_since = (place.is_none() && core.is_writing()).then_some(now);
        core.place = place;
        if let Some((tier, weight)) = place {
            self.open(tier, false, weight);
            self.send_out();
        }
    }

    /// Tells the servers that it comes, or with which weight.
    fn open(&mut self, tier: Tier, flush: bool, weight: u32) {
        let Some(at) = shared(tier) else { return };
        let opened = &mut self.state.core.opened[at][usize::from(flush)];
        if opened.replace(weight) == Some(weight) {
            return;
        }
        let processes = if flush { self.model.setup.flush_streams } else { self.plan().workload.processes };
        let flow = FlowId { app: self.me as u32, flush };
        self.tell_servers(tier, Message::Open { flow, processes, weight });
    }

    fn tell_servers(&mut self, tier: Tier, message: Message) {
        let (first, count) = self.model.servers(tier);
        for at in 0..count {
            self.turn.send(server(first, count, at), Time(self.model.setup.latency_ns), message.clone());
        }
    }

    /// Says good-bye where nothing of it is any more, and nothing will come.
    fn close_unused(&mut self) {
        for (at, tier) in SHARED.into_iter().enumerate() {
            for flush in [false, true] {
                let core = &self.state.core;
                let here = core.place.is_some_and(|(place, _)| place == tier) && !flush;
                let reads = core.reading && tier == Tier::Pfs && !flush;
                let used = here || reads || core.under_way[at][usize::from(flush)] > 0;
                if !used && core.opened[at][usize::from(flush)].is_some() {
                    self.state.core.opened[at][usize::from(flush)] = None;
                    let flow = FlowId { app: self.me as u32, flush };
                    self.tell_servers(tier, Message::Close { flow });
                }
            }
        }
    }

    // Chunks of a phase.

    /// Every process sends what it may.
    fn send_out(&mut self) {
        if self.state.core.reading {
            let weight = self.plan().workload.processes;
            self.open(Tier::Pfs, false, weight);
        }
        for slot in 0..self.processes() * self.model.setup.in_flight as usize {
            if self.state.slots[slot] == Slot::Idle {
                self.send_next(slot);
            }
        }
    }

    fn send_next(&mut self, slot: usize) {
        let process = slot / self.model.setup.in_flight as usize;
        let bytes = self.state.todo[process].min(self.model.setup.chunk_bytes);
        let to = match (self.state.core.reading, self.state.core.place) {
            (true, _) => Some(Tier::Pfs),
            (false, place) => place.map(|(tier, _)| tier),
        };
        let Some(tier) = to.filter(|_| bytes > 0) else { return };
        let left = self.state.todo[process];
        self.turn.keep(|| Undo::App(AppUndo::Todo(process, left)));
        self.state.todo[process] = left - bytes;
        self.send_chunk(slot, tier, bytes);
    }

    /// What has no room goes where everything ends.
    fn send_chunk(&mut self, slot: usize, tier: Tier, bytes: u64) {
        let access = if self.state.core.reading { Access::Read } else { Access::Write };
        if tier == Tier::Local {
            let Some(local) = self
                .local()
                .filter(|local| self.state.core.local_used.saturating_add(bytes) <= local.capacity_bytes)
            else {
                self.state.core.refused += 1;
                let weight = self.state.core.place.map_or(1, |(_, weight)| weight);
                self.open(Tier::Pfs, false, weight);
                return self.send_chunk(slot, Tier::Pfs, bytes);
            };
            self.state.core.local_used += bytes;
            let on = Under { piece: Piece { first: 0, bytes }, left: 1, refused: 0 };
            self.set_slot(slot, Slot::Phase { access, tier, on });
            return self.use_local(slot, bytes, local);
        }
        let node = (slot / self.model.setup.in_flight as usize) % self.state.links.len();
        let on = self.ask(slot, tier, access, bytes, Some(node), false);
        self.set_slot(slot, Slot::Phase { access, tier, on });
    }

    /// Of all its nodes.
    fn local(&self) -> Option<LocalStore> {
        let nodes = u64::from(self.plan().nodes);
        self.model.setup.local.map(|local| LocalStore {
            capacity_bytes: local.capacity_bytes.saturating_mul(nodes),
            bytes_per_s: local.bytes_per_s.saturating_mul(nodes),
        })
    }

    fn use_local(&mut self, slot: usize, bytes: u64, local: LocalStore) {
        let ns = lasts(bytes, local.bytes_per_s);
        let end = self.state.core.local_ready.max(self.turn.now()).plus(Time(ns));
        self.state.core.local_ready = end;
        self.state.core.local_busy_ns += ns;
        let after = Time(end.0 - self.now_ns());
        self.turn.send(self.turn.me(), after, Message::Local { slot: slot as u32 });
    }

    fn set_slot(&mut self, at: usize, slot: Slot) {
        let old = std::mem::replace(&mut self.state.slots[at], slot);
        self.turn.keep(|| Undo::App(AppUndo::Slot(at, old)));
    }

    /// Asks the servers of a tier for a new chunk.
    fn ask(
        &mut self,
        slot: usize,
        tier: Tier,
        access: Access,
        bytes: u64,
        node: Option<usize>,
        flush: bool,
    ) -> Under {
        let at = shared(tier).unwrap_or(1);
        let (_, count) = self.model.servers(tier);
        let first = self.state.core.next_server[at];
        self.state.core.next_server[at] = (first + 1) % count.max(1);
        self.ask_for(slot, tier, access, Piece { first, bytes }, node, flush)
    }

    /// Asks for a chunk whose parts begin at a server.
    fn ask_for(
        &mut self,
        slot: usize,
        tier: Tier,
        access: Access,
        piece: Piece,
        node: Option<usize>,
        flush: bool,
    ) -> Under {
        let at = shared(tier).unwrap_or(1);
        let (first, count) = self.model.servers(tier);
        self.state.core.under_way[at][usize::from(flush)] += 1;
        let after = Time(self.through_link(node, piece.bytes).0 + self.model.setup.latency_ns);
        let parts = piece.parts(count);
        let pattern = if flush { tidepool_iosched::Pattern::Sequential } else { self.plan().pattern() };
        for part in 0..parts {
            let request = Request {
                flow: FlowId { app: self.me as u32, flush },
                slot: slot as u32,
                part: part as u8,
                access,
                bytes: piece.part(part, parts),
                pattern,
            };
            self.turn.send(server(first, count, piece.first + part), after, Message::Ask(request));
        }
        Under { piece, left: parts, refused: 0 }
    }

    /// When the link of a node has carried so much, from now.
    fn through_link(&mut self, node: Option<usize>, bytes: u64) -> Time {
        let (Some(node), Some(rate)) = (node, self.model.setup.link_bytes_per_s) else { return Time::ZERO };
        let old = self.state.links[node];
        self.turn.keep(|| Undo::App(AppUndo::Link(node, old)));
        let end = old.max(self.turn.now()).plus(Time(lasts(bytes, rate)));
        self.state.links[node] = end;
        Time(end.0 - self.now_ns())
    }

    // Answers.

    fn answered(&mut self, slot: usize, part: u32, served: bool) {
        let Some(of) = self.state.slots.get(slot).copied() else {
            return self.turn.fail("an answer for a chunk that is not there");
        };
        let (Slot::Phase { on, .. } | Slot::Fetch { on, .. } | Slot::Store { on, .. }) = of else {
            return self.turn.fail("an answer for a chunk that is not under way");
        };
        let refused = on.refused | if served { 0 } else { 1 << part };
        let on = Under { left: on.left.saturating_sub(1), refused, ..on };
        let of = match of {
            Slot::Phase { access, tier, .. } => Slot::Phase { access, tier, on },
            Slot::Fetch { from, lies, to, .. } => Slot::Fetch { from, lies, to, on },
            Slot::Store { from, lies, to, .. } => Slot::Store { from, lies, to, on },
            Slot::Idle => Slot::Idle,
        };
        self.set_slot(slot, of);
        if on.left > 0 {
            return;
        }
        match of {
            Slot::Phase { access, tier, on } => self.chunk_done(slot, access, tier, on),
            Slot::Fetch { from, lies, to, .. } => self.fetched(slot, from, lies, to),
            Slot::Store { from, lies, to, on } => self.stored(slot, from, lies, to, on),
            Slot::Idle => (),
        }
    }

    fn leave(&mut self, tier: Tier, flush: bool) {
        if let Some(at) = shared(tier) {
            let count = &mut self.state.core.under_way[at][usize::from(flush)];
            *count = count.saturating_sub(1);
        }
    }

    /// True when the whole chunk was taken; what was taken of one that was not is given back.
    fn is_taken(&mut self, tier: Tier, on: Under) -> bool {
        if on.refused == 0 {
            return true;
        }
        self.state.core.refused += 1;
        if tier == Tier::Pfs {
            self.turn.fail("the PFS is full; give it more room");
        }
        let (_, count) = self.model.servers(tier);
        let taken = (0..on.piece.parts(count)).filter(|part| on.refused & (1 << part) == 0);
        taken.collect::<Vec<_>>().into_iter().for_each(|part| self.give_back(tier, on.piece, part));
        false
    }

    fn give_back(&mut self, tier: Tier, piece: Piece, part: u32) {
        let (first, count) = self.model.servers(tier);
        let bytes = piece.part(part, piece.parts(count));
        let message = Message::Free { app: self.me as u32, bytes };
        self.turn.send(server(first, count, piece.first + part), Time(self.model.setup.latency_ns), message);
    }

    fn chunk_done(&mut self, slot: usize, access: Access, tier: Tier, on: Under) {
        self.leave(tier, false);
        if !self.is_taken(tier, on) {
            if tier != Tier::Pfs {
                let weight = self.state.core.place.map_or(1, |(_, weight)| weight);
                self.open(Tier::Pfs, false, weight);
                self.send_chunk(slot, Tier::Pfs, on.piece.bytes);
            }
            return;
        }
        let now = self.now_ns();
        let bytes = on.piece.bytes;
        let core = &mut self.state.core;
        core.moved_ns = now;
        core.left = core.left.saturating_sub(bytes);
        let was_clean = core.dirty == [0; 2];
        if access == Access::Write {
            core.written += bytes;
            core.acked[tier as usize] += bytes;
            self.lay(tier, on.piece);
        }
        self.set_slot(slot, Slot::Idle);
        if self.state.core.left == 0 {
            return self.part_done();
        }
        self.send_next(slot);
        if was_clean && self.state.core.dirty != [0; 2] {
            self.decide();
        } else if tier != Tier::Pfs {
            self.flush_out(tier);
        }
    }

    /// What lies above the PFS is to be flushed.
    fn lay(&mut self, tier: Tier, piece: Piece) {
        let now = self.now_ns();
        if tier == Tier::Pfs {
            self.state.core.flushed_ns = now;
            return;
        }
        let at = tier as usize;
        if self.state.core.dirty[at] == 0 {
            self.state.core.since_ns[at] = now;
        }
        self.state.core.dirty[at] += piece.bytes;
        self.turn.keep(|| Undo::App(AppUndo::Laid(at)));
        self.state.lying[at].push_back(piece);
    }

    // Flushing.

    fn flush_slots(&self, from: Tier) -> std::ops::Range<usize> {
        let streams = self.model.setup.flush_streams as usize;
        let first = self.state.slots.len() - 2 * streams + from as usize * streams;
        first..first + streams
    }

    /// Each stream takes the next chunk, while flushing is allowed.
    fn flush_out(&mut self, from: Tier) {
        let at = from as usize;
        let Some((to, weight)) = self.state.core.flush[at] else { return };
        for slot in self.flush_slots(from) {
            if self.state.lying[at].is_empty() {
                return;
            }
            if self.state.slots[slot] != Slot::Idle {
                continue;
            }
            let Some(lies) = self.state.lying[at].pop_front() else { return };
            self.turn.keep(|| Undo::App(AppUndo::Taken(at, lies)));
            self.open(to, true, weight);
            self.fetch(slot, from, lies, to, weight);
        }
    }

    fn fetch(&mut self, slot: usize, from: Tier, lies: Piece, to: Tier, weight: u32) {
        // The target counts it from the beginning, so that a stream is one stream all the time.
        if let Some(target) = shared(to) {
            self.state.core.under_way[target][1] += 1;
        }
        match (from, self.local()) {
            (Tier::Local, Some(local)) => {
                let on = Under { piece: lies, left: 1, refused: 0 };
                self.set_slot(slot, Slot::Fetch { from, lies, to, on });
                self.use_local(slot, lies.bytes, local);
            }
            _ => {
                self.open(from, true, weight);
                let on = self.ask_for(slot, from, Access::Read, lies, None, true);
                self.set_slot(slot, Slot::Fetch { from, lies, to, on });
            }
        }
    }

    fn fetched(&mut self, slot: usize, from: Tier, lies: Piece, to: Tier) {
        // From node-local storage through the links, node by node in turn; servers of the burst buffer have links of their own.
        let node = (from == Tier::Local).then(|| {
            let node = self.state.core.next_node as usize % self.state.links.len();
            self.state.core.next_node = (node + 1) as u32;
            node
        });
        let on = self.ask(slot, to, Access::Write, lies.bytes, node, true);
        self.leave(to, true);
        self.set_slot(slot, Slot::Store { from, lies, to, on });
    }

    fn stored(&mut self, slot: usize, from: Tier, lies: Piece, to: Tier, on: Under) {
        self.leave(to, true);
        if !self.is_taken(to, on) {
            if to != Tier::Pfs {
                self.open(Tier::Pfs, true, 1);
                let on = self.ask(slot, Tier::Pfs, Access::Write, lies.bytes, None, true);
                self.set_slot(slot, Slot::Store { from, lies, to: Tier::Pfs, on });
            }
            return;
        }
        self.leave(from, true);
        let now = self.now_ns();
        let core = &mut self.state.core;
        core.moved_ns = now;
        core.flushed_ns = now;
        core.flushed_in[to as usize] += lies.bytes;
        core.flushed_out[from as usize] += lies.bytes;
        core.dirty[from as usize] = core.dirty[from as usize].saturating_sub(lies.bytes);
        if from == Tier::Local {
            core.local_used = core.local_used.saturating_sub(lies.bytes);
        } else {
            let (_, count) = self.model.servers(from);
            (0..lies.parts(count)).for_each(|part| self.give_back(from, lies, part));
        }
        self.lay_flushed(to, on.piece);
        self.set_slot(slot, Slot::Idle);
        self.flush_out(from);
        if to != Tier::Pfs {
            self.flush_out(to);
        }
    }

    fn lay_flushed(&mut self, to: Tier, piece: Piece) {
        if to != Tier::Pfs {
            self.lay(to, piece);
        }
    }
}

impl Piece {
    /// In how many parts it lies on so many servers; each has a byte at least.
    pub fn parts(self, servers: u32) -> u32 {
        u64::from(servers.max(1)).min(self.bytes.max(1)) as u32
    }

    /// Bytes of a part; the first ones have one more where it does not come out even.
    pub fn part(self, part: u32, parts: u32) -> u64 {
        let parts = u64::from(parts.max(1));
        self.bytes / parts + u64::from(u64::from(part) < self.bytes % parts)
    }
}

#[cfg(test)]
mod tests {
    use super::Piece;

    #[test]
    fn parts_are_the_whole() {
        for (bytes, servers, parts) in [(10, 4, vec![3, 3, 2, 2]), (3, 4, vec![1, 1, 1]), (8, 1, vec![8])] {
            let piece = Piece { first: 0, bytes };
            let count = piece.parts(servers);
            let found: Vec<u64> = (0..count).map(|part| piece.part(part, count)).collect();
            assert_eq!(found, parts, "{bytes} bytes on {servers} servers");
        }
    }
}
