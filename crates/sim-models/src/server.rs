//! Servers: state machines (S1 §III-E) with a queue to the device and one to the clients. See [`Kind`] for the states.
//!
//! Each queue is first come, first served, and kept as the time at which who serves it is free again (§III-C): the links, the
//! threads that look at requests, and the parts of the device.

use crate::buffer::{self, Buffer, BufferSpec};
use crate::cache::{self, Action, At, Cache, CacheSpec};
use crate::device::Lanes;
use crate::kept::are_small;
use crate::message::{Kind, Message, Op};
use crate::network::{Link, per_byte};
use crate::results::Place;
use crate::span::Span;
use crate::system::{Pfs, Undo};
use tidepool_sim::{ProcessId, Time, Turn, saved};

/// What a server needs for a request beside its device.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerSpec {
    /// Threads that look at requests, each at one at a time.
    pub threads: u32,
    /// To look at a read, write or fsync.
    pub request: Span,
    /// To look at anything else.
    pub metadata: Span,
    /// Between server and device each way: driver, bus and controller; at least a tick.
    pub bus: Time,
    /// Of each server that is not in front of others.
    pub cache: Option<CacheSpec>,
}

/// What changes at nearly every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    pub out: Link,
    pub into: Link,
    /// Sub-requests of clients that were answered.
    pub requests: u64,
    /// Sub-requests that are being looked at, or at the device.
    pub inside: u32,
    pub inside_most: u32,
    /// Time of threads.
    pub busy: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Server {
    /// Number among the servers.
    pub number: u32,
    pub numbers: Numbers,
    pub threads: Lanes,
    /// Of a server that holds data for others.
    pub buffer: Option<Box<Buffer>>,
    pub cache: Option<Box<Cache>>,
}

saved!(struct Numbers { out, into, requests, inside, inside_most, busy });
saved!(struct Server { number, numbers, threads, buffer, cache });

pub enum Change {
    Numbers(Numbers),
    Thread(u32, u64),
    Buffer(buffer::Change),
    // They come with a cache only, and are large.
    Cache(Box<cache::Change>),
}

impl Server {
    pub fn new(number: u32, spec: &ServerSpec, buffers: bool) -> Server {
        let buffer = buffers.then(Box::default);
        // A buffer is one already.
        let cache = spec.cache.filter(|_| !buffers).map(|_| Box::default());
        Server { number, numbers: Numbers::default(), threads: Lanes::new(spec.threads), buffer, cache }
    }

    /// Whether this server can have come to it, as far as going on from it needs it: [`kept`](crate::kept).
    pub(crate) fn fits(&self, pfs: &Pfs, number: u32) -> bool {
        let Numbers { out, into, requests, inside, inside_most, busy } = self.numbers;
        let buffers = pfs.buffer_of(number);
        let caches = pfs.server.cache.as_ref().filter(|_| buffers.is_none());
        self.number == number
            && inside.max(inside_most) < u32::MAX
            && are_small(&[out.free, into.free, requests, busy])
            && self.threads.fits(pfs.server.threads)
            && self.buffer.is_some() == buffers.is_some()
            && self.buffer.as_ref().is_none_or(|buffer| buffer.fits())
            && self.cache.is_some() == caches.is_some()
            && self.cache.as_ref().is_none_or(|cache| cache.fits(&|message| pfs.knows(message)))
    }

    pub fn undo(&mut self, change: Change) {
        match change {
            Change::Numbers(was) => self.numbers = was,
            Change::Thread(lane, was) => self.threads.set(lane, was),
            Change::Buffer(change) => {
                if let Some(buffer) = &mut self.buffer {
                    buffer.undo(change);
                }
            }
            Change::Cache(change) => {
                if let Some(cache) = &mut self.cache {
                    cache.undo(*change);
                }
            }
        }
    }

    pub fn handle(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let now = turn.now();
        if let Some(until) = pfs.outages.down_until(self.number, now.0) {
            return turn.send(turn.me(), Time(until - now.0), message.clone());
        }
        let was = self.numbers;
        turn.keep(|| Undo::Server(Change::Numbers(was)));
        match message.kind {
            Kind::Request => {
                let data = if eager(pfs, message) { message.length } else { 0 };
                self.receive(pfs, message, data, Kind::Received, turn);
            }
            Kind::Received => self.look(pfs, message, turn),
            Kind::Processed => self.processed(pfs, message, turn),
            Kind::Data => self.receive(pfs, message, message.length, Kind::DataReceived, turn),
            Kind::DataReceived => self.submit(pfs, message, turn),
            Kind::Complete if message.sender == turn.me().0 => match (&self.cache, message.op) {
                (None, _) => self.forward(pfs, message, turn),
                (Some(_), Op::Write) => {
                    self.with_cache(pfs, turn, |cache, at| cache.flushed(message.request, at))
                }
                (Some(_), _) => self.with_cache(pfs, turn, |cache, at| {
                    cache.arrived(message.file, message.local, message.length, at)
                }),
            },
            Kind::Complete => {
                if message.op == Op::Read {
                    self.with_cache(pfs, turn, |cache, at| cache.filled(message, at));
                }
                self.complete(pfs, message, turn)
            }
            Kind::Cached => self.complete(pfs, message, turn),
            Kind::Old => self.with_cache(pfs, turn, |cache, at| cache.tick(at)),
            Kind::Response => self.moved(pfs, message, turn),
            other => turn.fail(format!("a server has got {other:?}")),
        }
    }

    /// The rest of a message comes in.
    fn receive(&mut self, pfs: &Pfs, message: &Message, data: u32, then: Kind, turn: &mut Turn<'_, Pfs>) {
        let (now, bytes) = (turn.now().0, u64::from(data) + u64::from(pfs.network.header));
        let there = match pfs.near_of(message.sender, message.receiver) {
            Some(_) => now,
            None => self.numbers.into.receive(now, message.end, bytes, pfs.server_per_byte(self.number)),
        };
        let next = Message { kind: then, ..message.clone() };
        if there > now {
            return turn.send(turn.me(), Time(there - now), next);
        }
        match then {
            Kind::Received => self.look(pfs, &next, turn),
            _ => self.submit(pfs, &next, turn),
        }
    }

    /// A thread looks at a sub-request when one is free.
    fn look(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        self.numbers.inside += 1;
        self.numbers.inside_most = self.numbers.inside_most.max(self.numbers.inside);
        let span = match message.op {
            Op::Read | Op::Write | Op::Fsync => pfs.server.request,
            _ => pfs.server.metadata,
        };
        let (now, time) = (turn.now().0, span.draw(turn.random()));
        let clock = pfs.outages.clock(self.number, now);
        let lane = self.threads.next();
        let was = self.threads.free(lane);
        turn.keep(|| Undo::Server(Change::Thread(lane, was)));
        let until = self.threads.take(lane, clock, time);
        let begin = pfs.outages.when(self.number, until - time).max(now);
        let until = pfs.outages.when(self.number, until);
        self.numbers.busy += time;
        pfs.keep_work(self.number, Place::Threads, message, (now, begin, until), turn);
        let next = Message { kind: Kind::Processed, ..message.clone() };
        match until > now {
            true => turn.send(turn.me(), Time(until - now), next),
            false => self.processed(pfs, &next, turn),
        }
    }

    fn processed(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        if message.op.moves_data() && !self.holds(pfs, message, turn) {
            self.numbers.inside = self.numbers.inside.saturating_sub(1);
            return self.answer(pfs, message, Kind::Redirect, 0, turn);
        }
        if message.op == Op::Write && !eager(pfs, message) {
            return self.answer(pfs, message, Kind::Ack, 0, turn);
        }
        self.submit(pfs, message, turn);
    }

    /// Whether this server does what is asked: one that buffers needs room for writes, and has to have what is read.
    fn holds(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) -> bool {
        let Some(spec) = pfs.buffer_of(self.number) else { return true };
        let (key, range) = (block(pfs, message), range(message));
        self.with_buffer(turn, |buffer, keep| match message.op {
            Op::Write => buffer.admit(key, range, spec.capacity, keep),
            _ => buffer.hit(key, range, keep),
        })
        .unwrap_or(true)
    }

    fn with_buffer<T>(
        &mut self,
        turn: &mut Turn<'_, Pfs>,
        act: impl FnOnce(&mut Buffer, &mut dyn FnMut(buffer::Change)) -> T,
    ) -> Option<T> {
        let buffer = self.buffer.as_mut()?;
        let was = buffer.numbers;
        let mut keep = |change| turn.keep(|| Undo::Server(Change::Buffer(change)));
        keep(buffer::Change::Numbers(was));
        Some(act(buffer, &mut keep))
    }

    /// The flow is opened: to the cache, or to the device.
    fn submit(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        if self.cache.is_none() {
            return self.hand_on(pfs, message, turn);
        }
        match message.op {
            Op::Write => self.with_cache(pfs, turn, |cache, at| cache.write(message, at)),
            Op::Read => self.with_cache(pfs, turn, |cache, at| cache.read(message, at)),
            Op::Fsync => self.with_cache(pfs, turn, |cache, at| cache.fsync(message, at)),
            _ => self.hand_on(pfs, message, turn),
        }
    }

    /// Does what the cache says, where there is one.
    fn with_cache(
        &mut self,
        pfs: &Pfs,
        turn: &mut Turn<'_, Pfs>,
        act: impl FnOnce(&mut Cache, &mut At<'_, '_>),
    ) {
        let (Some(cache), Some(spec)) = (&mut self.cache, &pfs.server.cache) else { return };
        let (mut out, now) = (Vec::new(), turn.now().0);
        let mut keep = |change| turn.keep(|| Undo::Server(Change::Cache(Box::new(change))));
        act(cache, &mut At { spec, now, keep: &mut keep, out: &mut out });
        out.into_iter().for_each(|action| self.perform(pfs, spec, action, turn));
    }

    fn perform(&mut self, pfs: &Pfs, spec: &CacheSpec, action: Action, turn: &mut Turn<'_, Pfs>) {
        let (me, now) = (turn.me(), turn.now().0);
        let own = |op, file, local, length, request| Message {
            kind: Kind::Submit,
            op,
            file,
            request,
            offset: local,
            local,
            length,
            sender: me.0,
            receiver: me.0,
            start: now,
            end: now,
        };
        match action {
            Action::Device(message) => self.hand_on(pfs, &message, turn),
            Action::Flush(file, from, length, number) => {
                self.hand_on(pfs, &own(Op::Write, file, from, length, number), turn)
            }
            Action::ReadAhead(file, from, length) => {
                self.hand_on(pfs, &own(Op::Read, file, from, length, 0), turn)
            }
            Action::Timer(after) => {
                turn.send(me, Time(after), Message { kind: Kind::Old, ..own(Op::Write, 0, 0, 0, 0) })
            }
            Action::Memory(message) => {
                let bytes = u64::from(message.length);
                // What the cache keeps of its numbers has kept this, too.
                let until = self
                    .cache
                    .as_mut()
                    .map(|cache| cache.numbers.memory.send(now, bytes, per_byte(spec.rate)).1);
                match until.filter(|until| *until > now) {
                    Some(until) => {
                        turn.send(me, Time(until - now), Message { kind: Kind::Cached, ..message })
                    }
                    None => self.complete(pfs, &message, turn),
                }
            }
        }
    }

    fn hand_on(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let device = ProcessId(turn.me().0 + 1);
        turn.send(device, pfs.server.bus, Message { kind: Kind::Submit, ..message.clone() });
    }

    fn complete(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        self.numbers.inside = self.numbers.inside.saturating_sub(1);
        self.numbers.requests += 1;
        let data = if message.op == Op::Read { message.length } else { 0 };
        self.answer(pfs, message, Kind::Response, data, turn);
        if let Some(spec) = pfs.buffer_of(self.number).filter(|_| message.op == Op::Write) {
            let key = block(pfs, message);
            self.with_buffer(turn, |buffer, keep| buffer.written(key, keep));
            self.make_room(pfs, spec, turn);
        }
    }

    /// Old blocks are read, to be forwarded.
    fn make_room(&mut self, pfs: &Pfs, spec: BufferSpec, turn: &mut Turn<'_, Pfs>) {
        let evict =
            |buffer: &mut Buffer, keep: &mut dyn FnMut(buffer::Change)| buffer.evict(spec.evict_above, keep);
        while let Some(((file, _), block)) = self.with_buffer(turn, evict).flatten() {
            let (me, now, length) = (turn.me().0, turn.now().0, (block.to - block.from) as u32);
            let Some(piece) = pfs.layout.held(file, block.from, length) else {
                return turn.fail("a buffered block that the layout does not know");
            };
            let read = Message {
                kind: Kind::Submit,
                op: Op::Read,
                file,
                request: block.version,
                offset: block.from,
                local: piece.local,
                length,
                sender: me,
                receiver: me,
                start: now,
                end: now,
            };
            self.hand_on(pfs, &read, turn);
        }
    }

    /// An old block has been read: to the server behind.
    fn forward(&mut self, pfs: &Pfs, read: &Message, turn: &mut Turn<'_, Pfs>) {
        let Some(piece) = pfs.layout.behind(read.file, read.offset, read.length) else {
            return turn.fail("a buffer without servers behind it");
        };
        let (now, bytes) = (turn.now().0, u64::from(read.length) + u64::from(pfs.network.header));
        let (begin, tail) = self.numbers.out.send(now, bytes, pfs.server_per_byte(self.number));
        let receiver = pfs.server_process(piece.server);
        let write =
            Message { kind: Kind::Request, op: Op::Write, local: piece.local, receiver, ..read.clone() };
        pfs.carry(receiver, begin - now, tail, write, turn);
    }

    /// The server behind has an old block.
    fn moved(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        pfs.keep_piece(message, message.end, false, turn);
        let (key, bytes) = (block(pfs, message), u64::from(message.length));
        let Some(spec) = pfs.buffer_of(self.number) else {
            return turn.fail("a server without a buffer has got an answer");
        };
        self.with_buffer(turn, |buffer, keep| buffer.moved(key, message.request, bytes, keep));
        // What was written meanwhile may be old by now.
        self.make_room(pfs, spec, turn);
    }

    /// Into the queue to the client.
    fn answer(&mut self, pfs: &Pfs, message: &Message, kind: Kind, data: u32, turn: &mut Turn<'_, Pfs>) {
        if let Some(near) = pfs.near_of(message.sender, turn.me().0) {
            let end = turn.now().plus(near).0;
            return turn.send(ProcessId(message.sender), near, Message { kind, end, ..message.clone() });
        }
        let (now, bytes) = (turn.now().0, u64::from(data) + u64::from(pfs.network.header));
        let (begin, tail) = self.numbers.out.send(now, bytes, pfs.server_per_byte(self.number));
        pfs.carry(message.sender, begin - now, tail, Message { kind, ..message.clone() }, turn);
    }
}

/// Whether a write's data came with the request. Servers send them along in any case.
pub(crate) fn eager(pfs: &Pfs, message: &Message) -> bool {
    message.op == Op::Write && (message.length <= pfs.network.eager || pfs.is_server(message.sender))
}

fn block(pfs: &Pfs, message: &Message) -> buffer::Key {
    (message.file, message.offset / pfs.layout.stripe())
}

/// In the file.
fn range(message: &Message) -> (u64, u64) {
    (message.offset, message.offset + u64::from(message.length))
}
