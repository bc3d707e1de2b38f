//! Servers: state machines (S1 §III-E) with a queue to the device and one to the clients. See [`Kind`] for the states.
//!
//! Each queue is first come, first served, and kept as the time at which who serves it is free again (§III-C): the links, the
//! threads that look at requests, and the parts of the device.

use crate::device::Lanes;
use crate::message::{Kind, Message, Op};
use crate::network::Link;
use crate::span::Span;
use crate::system::{Pfs, Undo};
use tidepool_sim::{ProcessId, Time, Turn};

/// What a server needs for a request beside its device.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerSpec {
    /// Threads that look at requests, each at one at a time.
    pub threads: u32,
    /// To look at a read, write or fsync.
    pub request: Span,
    /// To look at an open or close.
    pub metadata: Span,
    /// Between server and device each way: driver, bus and controller; at least a tick.
    pub bus: Time,
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
    pub bytes_read: u64,
    pub bytes_written: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Server {
    /// Number among the servers.
    pub number: u32,
    pub numbers: Numbers,
    pub threads: Lanes,
}

pub enum Change {
    Numbers(Numbers),
    Thread(u32, u64),
}

impl Server {
    pub fn new(number: u32, threads: u32) -> Server {
        Server { number, numbers: Numbers::default(), threads: Lanes::new(threads) }
    }

    pub fn undo(&mut self, change: Change) {
        match change {
            Change::Numbers(was) => self.numbers = was,
            Change::Thread(lane, was) => self.threads.set(lane, was),
        }
    }

    pub fn handle(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
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
            Kind::Complete => self.complete(pfs, message, turn),
            other => turn.fail(format!("a server has got {other:?}")),
        }
    }

    /// The rest of a message comes in.
    fn receive(&mut self, pfs: &Pfs, message: &Message, data: u32, then: Kind, turn: &mut Turn<'_, Pfs>) {
        let (now, bytes) = (turn.now().0, u64::from(data) + u64::from(pfs.network.header));
        let there = self.numbers.into.receive(now, message.end, bytes, pfs.server_per_byte(self.number));
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
            Op::Open | Op::Close => pfs.server.metadata,
            _ => pfs.server.request,
        };
        let (now, time) = (turn.now().0, span.draw(turn.random()));
        let lane = self.threads.next();
        let was = self.threads.free(lane);
        turn.keep(|| Undo::Server(Change::Thread(lane, was)));
        let until = self.threads.take(lane, now, time);
        self.numbers.busy += time;
        let next = Message { kind: Kind::Processed, ..message.clone() };
        match until > now {
            true => turn.send(turn.me(), Time(until - now), next),
            false => self.processed(pfs, &next, turn),
        }
    }

    fn processed(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        if message.op == Op::Write && !eager(pfs, message) {
            return self.answer(pfs, message, Kind::Ack, 0, turn);
        }
        self.submit(pfs, message, turn);
    }

    /// The flow is opened: to the device.
    fn submit(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let device = ProcessId(turn.me().0 + 1);
        turn.send(device, pfs.server.bus, Message { kind: Kind::Submit, ..message.clone() });
    }

    fn complete(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        self.numbers.inside = self.numbers.inside.saturating_sub(1);
        self.numbers.requests += 1;
        let data = match message.op {
            Op::Read => {
                self.numbers.bytes_read += u64::from(message.length);
                message.length
            }
            Op::Write => {
                self.numbers.bytes_written += u64::from(message.length);
                0
            }
            _ => 0,
        };
        self.answer(pfs, message, Kind::Response, data, turn);
    }

    /// Into the queue to the client.
    fn answer(&mut self, pfs: &Pfs, message: &Message, kind: Kind, data: u32, turn: &mut Turn<'_, Pfs>) {
        let (now, bytes) = (turn.now().0, u64::from(data) + u64::from(pfs.network.header));
        let (begin, tail) = self.numbers.out.send(now, bytes, pfs.server_per_byte(self.number));
        let after = Time(begin - now).plus(pfs.network.latency);
        let end = tail.saturating_add(pfs.network.latency.0);
        turn.send(ProcessId(message.sender), after, Message { kind, end, ..message.clone() });
    }
}

/// Whether a write's data came with the request.
fn eager(pfs: &Pfs, message: &Message) -> bool {
    message.op == Op::Write && message.length <= pfs.network.eager
}
