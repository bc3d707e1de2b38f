//! A server of a shared tier: a queue for each application and each flush, one request served at a time.
//!
//! ```text
//!  Ask ──▶ room? ──no──▶ Part(refused)
//!            │yes
//!            ▼
//!          queue of its flow ──▶ served, least time by weight first ──▶ Served ──▶ Part
//! ```
//! The bandwidth is the tier's curve at the number of processes that have said they use it, divided among the servers; each
//! request has its own pattern's. Time is shared by weights: start-time fair queueing (Goyal, Vin, Cheng 1996), with the tags
//! in time instead of bytes. Requests are not interrupted: who comes changes the rate of those after the present one.

use crate::message::{Access, FlowId, Message, Request};
use crate::model::{Tiers, Undo};
use std::collections::VecDeque;
use tidepool_iosched::Tier;
use tidepool_sim::{ProcessId, Time, Turn};

/// Tags are in ns by weight, and weights are up to 2^32.
const TAG_SCALE: u128 = 1 << 32;
/// Others are told of room in steps of this part of the capacity.
const ROOM_STEPS: u64 = 256;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ServerCore {
    pub tier: Tier,
    /// Held or promised.
    pub used: u64,
    pub serving: Option<Request>,
    /// Tag of the request that is served.
    clock: u128,
    pub busy_ns: u64,
    pub written: u64,
    pub read: u64,
    /// Processes that use it.
    users: u32,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FlowCore {
    open: bool,
    processes: u32,
    weight: u32,
    tag: u128,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Server {
    pub core: ServerCore,
    flows: Vec<FlowCore>,
    queues: Vec<VecDeque<Request>>,
    /// Of each application.
    pub held: Vec<u64>,
}

pub enum ServerUndo {
    Core(Box<ServerCore>),
    Flow(usize, FlowCore),
    Queued(usize),
    Dequeued(usize, Request),
    Held(usize, u64),
}

impl Server {
    pub fn new(tier: Tier, apps: usize) -> Server {
        let core =
            ServerCore { tier, used: 0, serving: None, clock: 0, busy_ns: 0, written: 0, read: 0, users: 0 };
        Server {
            core,
            flows: vec![FlowCore::default(); 2 * apps],
            queues: vec![VecDeque::new(); 2 * apps],
            held: vec![0; apps],
        }
    }

    pub fn undo(&mut self, change: ServerUndo) {
        match change {
            ServerUndo::Core(core) => self.core = *core,
            ServerUndo::Flow(at, flow) => self.flows[at] = flow,
            ServerUndo::Queued(at) => drop(self.queues[at].pop_back()),
            ServerUndo::Dequeued(at, request) => self.queues[at].push_front(request),
            ServerUndo::Held(at, held) => self.held[at] = held,
        }
    }

    pub fn handle(&mut self, model: &Tiers, message: &Message, turn: &mut Turn<'_, Tiers>) {
        let core = self.core;
        turn.keep(|| Undo::Server(ServerUndo::Core(Box::new(core))));
        match message {
            Message::Open { flow, processes, weight } => {
                let of = FlowCore {
                    open: true,
                    processes: *processes,
                    weight: *weight,
                    ..self.flows[flow.index()]
                };
                self.set_flow(*flow, of, turn);
            }
            Message::Close { flow } => {
                let of = FlowCore { open: false, ..self.flows[flow.index()] };
                self.set_flow(*flow, of, turn);
            }
            Message::Ask(request) => self.ask(model, *request, turn),
            Message::Free { app, bytes } => self.free(model, *app, *bytes, turn),
            Message::Served => self.served(model, turn),
            _ => turn.fail("a server was told what is for applications"),
        }
    }

    fn set_flow(&mut self, id: FlowId, flow: FlowCore, turn: &mut Turn<'_, Tiers>) {
        let old = self.flows[id.index()];
        turn.keep(|| Undo::Server(ServerUndo::Flow(id.index(), old)));
        self.flows[id.index()] = flow;
        let counts = |flow: FlowCore| if flow.open { flow.processes } else { 0 };
        self.core.users = self.core.users.saturating_sub(counts(old)).saturating_add(counts(flow));
    }

    fn ask(&mut self, model: &Tiers, request: Request, turn: &mut Turn<'_, Tiers>) {
        if request.access == Access::Write {
            if request.bytes > self.free_bytes(model) {
                return self.answer(model, request, false, turn);
            }
            self.set_used(model, self.core.used + request.bytes, turn);
        }
        let at = request.flow.index();
        let is_new =
            self.queues[at].is_empty() && self.core.serving.is_none_or(|now| now.flow != request.flow);
        if is_new && self.flows[at].tag < self.core.clock {
            let old = self.flows[at];
            turn.keep(|| Undo::Server(ServerUndo::Flow(at, old)));
            self.flows[at].tag = self.core.clock;
        }
        turn.keep(|| Undo::Server(ServerUndo::Queued(at)));
        self.queues[at].push_back(request);
        if self.core.serving.is_none() {
            self.serve_next(model, turn);
        }
    }

    fn serve_next(&mut self, model: &Tiers, turn: &mut Turn<'_, Tiers>) {
        let waiting = (0..self.flows.len()).filter(|at| !self.queues[*at].is_empty());
        let Some(at) = waiting.min_by_key(|at| self.flows[*at].tag) else { return };
        let Some(request) = self.queues[at].pop_front() else { return };
        turn.keep(|| Undo::Server(ServerUndo::Dequeued(at, request)));
        let ns = self.service_ns(model, &request);
        let old = self.flows[at];
        turn.keep(|| Undo::Server(ServerUndo::Flow(at, old)));
        self.core.clock = old.tag;
        self.flows[at].tag =
            old.tag.saturating_add(u128::from(ns) * TAG_SCALE / u128::from(old.weight.max(1)));
        self.core.serving = Some(request);
        self.core.busy_ns += ns;
        turn.send(turn.me(), Time(ns), Message::Served);
    }

    fn service_ns(&self, model: &Tiers, request: &Request) -> u64 {
        let tier = model.setup.tier(self.core.tier);
        let rate = tier.curves.of(request.pattern).at(self.core.users.max(1)).max(1);
        let ns = u128::from(request.bytes) * u128::from(tier.servers) * 1_000_000_000 / u128::from(rate);
        (ns as u64).clamp(1, Time::MAX.0)
    }

    fn served(&mut self, model: &Tiers, turn: &mut Turn<'_, Tiers>) {
        let Some(request) = self.core.serving.take() else {
            return turn.fail("a server has served nothing");
        };
        match request.access {
            Access::Write => {
                self.core.written += request.bytes;
                let app = request.flow.app as usize;
                self.set_held(app, self.held[app].saturating_add(request.bytes), turn);
            }
            Access::Read => self.core.read += request.bytes,
        }
        self.answer(model, request, true, turn);
        self.serve_next(model, turn);
    }

    fn answer(&mut self, model: &Tiers, request: Request, served: bool, turn: &mut Turn<'_, Tiers>) {
        let server = turn.me().0;
        let free = self.free_bytes(model);
        let message = Message::Part { slot: request.slot, part: request.part, served, server, free };
        turn.send(ProcessId(request.flow.app), Time(model.setup.latency_ns), message);
    }

    fn free(&mut self, model: &Tiers, app: u32, bytes: u64, turn: &mut Turn<'_, Tiers>) {
        let held = self.held[app as usize];
        if held < bytes {
            return turn
                .fail(format!("{bytes} bytes of application {app} go from a server that holds {held}"));
        }
        self.set_held(app as usize, held - bytes, turn);
        self.set_used(model, self.core.used.saturating_sub(bytes), turn);
    }

    fn set_held(&mut self, app: usize, held: u64, turn: &mut Turn<'_, Tiers>) {
        let old = self.held[app];
        turn.keep(|| Undo::Server(ServerUndo::Held(app, old)));
        self.held[app] = held;
    }

    fn capacity(&self, model: &Tiers) -> u64 {
        let tier = model.setup.tier(self.core.tier);
        tier.capacity_bytes / u64::from(tier.servers.max(1))
    }

    pub fn free_bytes(&self, model: &Tiers) -> u64 {
        self.capacity(model).saturating_sub(self.core.used)
    }

    /// Tells all when what is free has changed by much.
    fn set_used(&mut self, model: &Tiers, used: u64, turn: &mut Turn<'_, Tiers>) {
        let step = (self.capacity(model) / ROOM_STEPS).max(1);
        let crossed = self.core.used / step != used / step;
        self.core.used = used;
        if !crossed {
            return;
        }
        let (server, free) = (turn.me().0, self.free_bytes(model));
        for app in 0..model.setup.apps.len() as u32 {
            turn.send(ProcessId(app), Time(model.setup.news_ns), Message::Room { server, free });
        }
    }
}
