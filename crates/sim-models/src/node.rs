//! Compute nodes: ranks that share a client of the file system, its link to the network, and a page cache (`cache.rs`).
//!
//! ```text
//!  rank                 node                                      servers
//!       ── Call ──────→ cache: a hit, or a write that has room
//!       ←─ Return ──────  costs memory alone
//!                       else, and for what the cache flushes
//!                       and reads ahead: a transfer          ←──→ Request ... Response, as between client and server
//!       ←─ Return ──────  when its slowest part is there
//! ```
//! What a node's cache has is not known to other nodes: they find what they have read, also when somebody else writes it.

use crate::cache::{self, Action, At, Cache, CacheResult, CacheSpec};
use crate::client::{ask, post};
use crate::kept::are_small;
use crate::message::{Kind, Message, Op};
use crate::network::{Link, per_byte};
use crate::system::{Application, Pfs, Role, Undo};
use crate::topology::NODES_MAX;
use std::collections::BTreeMap;
use tidepool_sim::{ProcessId, Time, Turn, saved};

/// Most ranks of a node.
pub const NODE_RANKS_MAX: u32 = 1 << 16;

/// What ranks share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodesSpec {
    /// Of a node, of each application.
    pub ranks: u32,
    /// From a rank to its node's client, and back: a system call, without what is copied in memory; at least a tick.
    pub call: Time,
    pub cache: Option<NodeCache>,
    /// Of each application.
    pub applications: Vec<OnNodes>,
}

/// Where an application runs, and how it reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OnNodes {
    /// The node of its first rank; the others follow.
    pub first: u32,
    /// Its reads and writes go past the caches.
    pub direct: bool,
}

/// A node's page cache, and when it is at one with the servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeCache {
    pub figures: CacheSpec,
    /// A close waits until all that its node has written to the file is with the servers (not on their devices, as after an
    /// fsync). Else it waits for nothing of it.
    pub flush_on_close: bool,
    /// An open forgets what was read of the file, as when somebody else had changed it.
    pub drop_on_open: bool,
}

impl NodesSpec {
    /// The node of a rank.
    pub fn node(&self, application: u32, rank: u32) -> u32 {
        self.applications[application as usize].first + rank / self.ranks
    }

    /// What makes no sense.
    pub fn check(&self, applications: &[Application]) -> Result<(), String> {
        if !(1..=NODE_RANKS_MAX).contains(&self.ranks) {
            return Err(format!("{} ranks of a node; 1 to {NODE_RANKS_MAX}", self.ranks));
        }
        if self.call == Time::ZERO {
            return Err("a system call takes no time; at least 1ns".into());
        }
        if self.applications.len() != applications.len() {
            let (told, there) = (self.applications.len(), applications.len());
            return Err(format!("the nodes of {told} workloads are told; there are {there}"));
        }
        for (on, all) in self.applications.iter().zip(applications) {
            let end = u64::from(on.first) + u64::from(all.program.ranks().div_ceil(self.ranks));
            if end > NODES_MAX as u64 {
                return Err(format!("workload '{}' has nodes up to {end}; at most {NODES_MAX}", all.name));
            }
        }
        match &self.cache {
            Some(cache) => cache.figures.check().map_err(|what| format!("their cache: {what}")),
            None => Ok(()),
        }
    }
}

/// No process: a node without ranks.
const NOBODY: u32 = u32::MAX;

/// All nodes, and which process each is.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Nodes {
    pub spec: NodesSpec,
    process_of: Vec<u32>,
    /// Of each node.
    ranks: Vec<u32>,
}

impl Nodes {
    /// Ranks in their order, each node before the first of its ranks.
    pub fn new(spec: NodesSpec, applications: &[Application]) -> (Nodes, Vec<Role>) {
        let (mut roles, mut ranks): (Vec<Role>, Vec<u32>) = (Vec::new(), Vec::new());
        for (application, all) in (0..).zip(applications) {
            for rank in 0..all.program.ranks() {
                let node = spec.node(application, rank) as usize;
                ranks.resize(ranks.len().max(node + 1), 0);
                if ranks[node] == 0 {
                    roles.push(Role::Node(node as u32));
                }
                ranks[node] += 1;
                roles.push(Role::Client(application, rank));
            }
        }
        let process_of = vec![NOBODY; ranks.len()];
        (Nodes { spec, process_of, ranks }, roles)
    }

    /// Learns which process is which.
    pub fn find(&mut self, roles: &[Role]) {
        for (process, role) in (0..).zip(roles) {
            if let Role::Node(number) = role {
                self.process_of[*number as usize] = process;
            }
        }
    }

    /// The processes of all that have ranks, by number.
    pub fn processes(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..).zip(&self.process_of).filter(|(_, process)| **process != NOBODY).map(|(n, p)| (n, *p))
    }

    pub fn process(&self, application: u32, rank: u32) -> u32 {
        self.process_of[self.spec.node(application, rank) as usize]
    }

    pub fn ranks_of(&self, node: u32) -> u32 {
        self.ranks[node as usize]
    }
}

/// What servers do for a node: for a request of a rank, or for its cache.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer {
    what: Message,
    /// Sub-requests that have not been answered.
    left: u32,
    /// When the slowest answer so far was there.
    end: u64,
}

/// What changes at nearly every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    out: Link,
    into: Link,
    /// Of the next transfer.
    next: u32,
    requests: u64,
    /// Bytes that servers have taken, and given.
    written: u64,
    read: u64,
    flushed: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub number: u32,
    numbers: Numbers,
    under_way: BTreeMap<u32, Transfer>,
    cache: Option<Box<Cache>>,
}

saved!(struct Transfer { what, left, end });
saved!(struct Numbers { out, into, next, requests, written, read, flushed });
saved!(struct Node { number, numbers, under_way, cache });

pub enum Change {
    Numbers(Numbers),
    Transfer(u32, Option<Box<Transfer>>),
    Cache(Box<cache::Change>),
}

/// What a node came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeResult {
    pub number: u32,
    pub ranks: u32,
    /// Of its ranks, that it has done.
    pub requests: u64,
    /// Bytes that went to servers, and came from them.
    pub written: u64,
    pub read: u64,
    /// Bytes of the cache that went to servers.
    pub flushed: u64,
    pub cache: Option<CacheResult>,
}

impl Node {
    pub fn new(number: u32, spec: Option<&NodesSpec>) -> Node {
        let cache = spec.and_then(|spec| spec.cache).map(|_| Box::default());
        Node { number, numbers: Numbers::default(), under_way: BTreeMap::new(), cache }
    }

    /// Whether this node can have come to it, as far as going on from it needs it: [`kept`](crate::kept).
    pub(crate) fn fits(&self, pfs: &Pfs, number: u32) -> bool {
        let Numbers { out, into, next: _, requests, written, read, flushed } = self.numbers;
        let has_cache = pfs.nodes.as_ref().is_some_and(|nodes| nodes.spec.cache.is_some());
        let knows = |message: &Message| pfs.knows(message);
        let transfer = |one: &Transfer| knows(&one.what) && are_small(&[one.end]);
        self.number == number
            && are_small(&[out.free, into.free, requests, written, read, flushed])
            && self.under_way.values().all(transfer)
            && self.cache.is_some() == has_cache
            && self.cache.as_ref().is_none_or(|cache| cache.fits(&knows))
    }

    pub fn undo(&mut self, change: Change) {
        match change {
            Change::Numbers(was) => self.numbers = was,
            Change::Transfer(number, Some(was)) => drop(self.under_way.insert(number, *was)),
            Change::Transfer(number, None) => drop(self.under_way.remove(&number)),
            Change::Cache(change) => {
                if let Some(cache) = &mut self.cache {
                    cache.undo(*change);
                }
            }
        }
    }

    pub fn result(&self, ranks: u32) -> NodeResult {
        let Numbers { requests, written, read, flushed, .. } = self.numbers;
        let cache = self.cache.as_ref().map(|cache| cache.result());
        NodeResult { number: self.number, ranks, requests, written, read, flushed, cache }
    }

    pub fn handle(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let was = self.numbers;
        turn.keep(|| Undo::Node(Change::Numbers(was)));
        match message.kind {
            Kind::Call => self.called(pfs, message, turn),
            Kind::Arrived | Kind::Released => self.relay(pfs, message, turn),
            Kind::Ack => {
                let data = Message { kind: Kind::Data, ..message.clone() };
                post(pfs, &mut self.numbers.out, data, u64::from(message.length), turn);
            }
            Kind::Redirect => match pfs.layout.behind(message.file, message.offset, message.length) {
                Some(piece) => {
                    pfs.keep_piece(message, message.end, true, turn);
                    let about = (message.op, message.file, message.request);
                    ask(pfs, &mut self.numbers.out, about, &piece, turn);
                }
                None => turn.fail("a redirect in a layout without servers behind the buffer"),
            },
            Kind::Response => self.answered(pfs, message, turn),
            Kind::Finished => self.finish(pfs, message.request, turn),
            Kind::Old => self.with_cache(pfs, turn, |cache, at| cache.tick(at)),
            other => turn.fail(format!("a node has got {other:?}")),
        }
    }

    /// A rank wants something.
    fn called(&mut self, pfs: &Pfs, call: &Message, turn: &mut Turn<'_, Pfs>) {
        let Some(policy) = pfs.nodes.as_ref().and_then(|nodes| nodes.spec.cache) else {
            return self.begin(pfs, call.clone(), turn);
        };
        let file = call.file;
        match call.op {
            Op::Read | Op::Write if pfs.is_direct(call.sender) => {
                self.with_cache(pfs, turn, |cache, at| cache.past(call, at));
            }
            Op::Read => self.with_cache(pfs, turn, |cache, at| cache.read(call, at)),
            Op::Write => self.with_cache(pfs, turn, |cache, at| cache.write(call, at)),
            Op::Fsync => self.with_cache(pfs, turn, |cache, at| cache.fsync(call, at)),
            Op::Close if policy.flush_on_close => {
                self.with_cache(pfs, turn, |cache, at| cache.fsync(call, at));
            }
            Op::Open if policy.drop_on_open => {
                self.with_cache(pfs, turn, |cache, at| cache.forget(file, false, at));
                self.begin(pfs, call.clone(), turn);
            }
            Op::Unlink => {
                self.with_cache(pfs, turn, |cache, at| cache.forget(file, true, at));
                self.begin(pfs, call.clone(), turn);
            }
            _ => self.begin(pfs, call.clone(), turn),
        }
    }

    /// What a rank tells another one.
    fn relay(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        match pfs.door_of(message.receiver) {
            Some((node, call)) if node == turn.me().0 => {
                turn.send(ProcessId(message.receiver), call, message.clone())
            }
            _ => post(pfs, &mut self.numbers.out, message.clone(), 0, turn),
        }
    }

    /// Servers are asked.
    fn begin(&mut self, pfs: &Pfs, what: Message, turn: &mut Turn<'_, Pfs>) {
        let number = self.numbers.next;
        self.numbers.next = number.wrapping_add(1);
        turn.keep(|| Undo::Node(Change::Transfer(number, None)));
        let (mut left, who) = (0, pfs.rank_of(what.sender));
        pfs.pieces((what.op, what.file, what.offset, u64::from(what.length)), who, |piece| {
            left += 1;
            ask(pfs, &mut self.numbers.out, (what.op, what.file, number), &piece, turn);
        });
        self.under_way.insert(number, Transfer { what, left, end: turn.now().0 });
    }

    fn answered(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let now = turn.now().0;
        let data = if message.op == Op::Read { message.length } else { 0 };
        let bytes = u64::from(data) + u64::from(pfs.network.header);
        let there = match pfs.near_of(turn.me().0, message.receiver) {
            Some(_) => now,
            None => self.numbers.into.receive(now, message.end, bytes, pfs.client_per_byte(turn.me().0)),
        };
        pfs.keep_piece(message, there, false, turn);
        match message.op {
            Op::Read => self.numbers.read += u64::from(message.length),
            Op::Write => self.numbers.written += u64::from(message.length),
            _ => {}
        }
        let Some(transfer) = self.under_way.get_mut(&message.request) else {
            return turn.fail("an answer to a transfer that is not under way");
        };
        turn.keep(|| {
            let was = Some(Box::new(transfer.clone()));
            Undo::Node(Change::Transfer(message.request, was))
        });
        transfer.left = transfer.left.saturating_sub(1);
        transfer.end = transfer.end.max(there);
        let (left, end) = (transfer.left, transfer.end);
        if left == 0 && end > now {
            let after = Time(end - now);
            return turn.send(turn.me(), after, Message { kind: Kind::Finished, ..message.clone() });
        }
        if left == 0 {
            self.finish(pfs, message.request, turn);
        }
    }

    /// All of a transfer is there.
    fn finish(&mut self, pfs: &Pfs, number: u32, turn: &mut Turn<'_, Pfs>) {
        let Some(Transfer { what, left, end }) = self.under_way.remove(&number) else {
            return turn.fail("a transfer ends that is not under way");
        };
        let was = || Box::new(Transfer { what: what.clone(), left, end });
        turn.keep(|| Undo::Node(Change::Transfer(number, Some(was()))));
        let bytes = u64::from(what.length);
        match (what.sender == turn.me().0, what.op) {
            (true, Op::Write) => {
                self.numbers.flushed += bytes;
                self.with_cache(pfs, turn, |cache, at| cache.flushed(what.request, at));
            }
            (true, _) => {
                self.with_cache(pfs, turn, |cache, at| cache.arrived(what.file, what.local, what.length, at));
            }
            (false, op) => {
                if op == Op::Read && !pfs.is_direct(what.sender) {
                    self.with_cache(pfs, turn, |cache, at| cache.filled(&what, at));
                }
                self.give_back(pfs, what, 0, turn);
            }
        }
    }

    /// A rank gets its request back in so many ticks.
    fn give_back(&mut self, pfs: &Pfs, what: Message, after: u64, turn: &mut Turn<'_, Pfs>) {
        let Some(nodes) = &pfs.nodes else { return turn.fail("a node in a system without nodes") };
        self.numbers.requests += 1;
        let after = Time(after).plus(nodes.spec.call);
        turn.send(ProcessId(what.sender), after, Message { kind: Kind::Return, ..what });
    }

    /// Does what the cache says, where there is one.
    fn with_cache(
        &mut self,
        pfs: &Pfs,
        turn: &mut Turn<'_, Pfs>,
        act: impl FnOnce(&mut Cache, &mut At<'_, '_>),
    ) {
        let spec = pfs.nodes.as_ref().and_then(|nodes| nodes.spec.cache);
        let (Some(cache), Some(NodeCache { figures, .. })) = (&mut self.cache, spec) else { return };
        let (mut out, now) = (Vec::new(), turn.now().0);
        let mut keep = |change| turn.keep(|| Undo::Node(Change::Cache(Box::new(change))));
        act(cache, &mut At { spec: &figures, now, keep: &mut keep, out: &mut out });
        out.into_iter().for_each(|action| self.perform(pfs, &figures, action, turn));
    }

    fn perform(&mut self, pfs: &Pfs, spec: &CacheSpec, action: Action, turn: &mut Turn<'_, Pfs>) {
        let (me, now) = (turn.me(), turn.now().0);
        let own = |op, file, offset, length, request| {
            let blank = Message::blank(Kind::Call, op, request, turn);
            Message { file, offset, local: offset, length, ..blank }
        };
        match action {
            Action::Device(message) => self.begin(pfs, message, turn),
            Action::Flush(file, from, length, number) => {
                let flush = own(Op::Write, file, from, length, number);
                self.begin(pfs, flush, turn);
            }
            Action::ReadAhead(file, from, length) => {
                let ahead = own(Op::Read, file, from, length, 0);
                self.begin(pfs, ahead, turn);
            }
            Action::Timer(after) => {
                let timer = Message { kind: Kind::Old, ..own(Op::Write, 0, 0, 0, 0) };
                turn.send(me, Time(after), timer);
            }
            Action::Memory(message) => {
                // What the cache keeps of its numbers has kept this, too.
                let bytes = u64::from(message.length);
                let until = self
                    .cache
                    .as_mut()
                    .map_or(now, |cache| cache.numbers.memory.send(now, bytes, per_byte(spec.rate)).1);
                self.give_back(pfs, message, until - now, turn);
            }
        }
    }
}
