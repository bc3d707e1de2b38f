//! Clients: send the requests of a rank as their order allows, cut them into sub-requests, and wait for the slowest (S1 §III-D).

use crate::kept::are_small;
use crate::message::{Kind, Message, Op};
use crate::network::Link;
use crate::results::{Record, RequestResult};
use crate::striping::Piece;
use crate::system::{Pfs, Undo};
use crate::workload::{After, Pace, Request};
use tidepool_sim::{ProcessId, Time, Turn, saved};

/// A request that is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flying {
    pub number: u32,
    /// Sub-requests that have not been answered.
    pub left: u32,
    pub begin: u64,
    /// When the slowest answer so far was there.
    pub end: u64,
}

/// What changes at nearly every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    /// Of the next request.
    pub next: u32,
    /// A Wake is on its way.
    pub pausing: bool,
    /// Ranks that have told that they are at a barrier: this one, and those below it.
    pub arrived: u32,
    pub out: Link,
    pub into: Link,
    pub requests: u64,
    /// Given up.
    pub failed: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Response times, all together.
    pub waited: u64,
    /// When the last request was done.
    pub last: u64,
}

/// A rank of an application.
#[derive(Clone, PartialEq, Debug)]
pub struct Client {
    pub application: u32,
    pub rank: u32,
    pub numbers: Numbers,
    pub flying: Vec<Flying>,
}

saved!(struct Flying { number, left, begin, end });
saved!(struct Numbers {
    next, pausing, arrived, out, into, requests, failed, bytes_read, bytes_written, waited, last,
});
saved!(struct Client { application, rank, numbers, flying });

pub enum Change {
    Numbers(Numbers),
    /// One was added at the end.
    Added,
    /// Which one, and what it was.
    Was(u32, Flying),
    /// It was taken out, and the last one took its place.
    Removed(u32, Flying),
}

impl Client {
    pub fn new(application: u32, rank: u32) -> Client {
        Client { application, rank, numbers: Numbers::default(), flying: Vec::new() }
    }

    /// Whether this rank can have come to it, as far as going on from it needs it: [`kept`](crate::kept).
    pub(crate) fn fits(&self, application: u32, rank: u32) -> bool {
        let Numbers {
            next,
            pausing: _,
            arrived,
            out,
            into,
            requests,
            failed,
            bytes_read,
            bytes_written,
            waited,
            last,
        } = self.numbers;
        (self.application, self.rank) == (application, rank)
            && next < u32::MAX
            // Of itself and of the two below it.
            && arrived <= 2
            && are_small(&[out.free, into.free, requests, failed, bytes_read, bytes_written, waited, last])
            && self.flying.iter().all(|one| one.begin <= one.end && are_small(&[one.end]))
    }

    pub fn undo(&mut self, change: Change) {
        match change {
            Change::Numbers(was) => self.numbers = was,
            Change::Added => drop(self.flying.pop()),
            Change::Was(at, was) => self.flying[at as usize] = was,
            Change::Removed(at, was) => {
                self.flying.push(was);
                let last = self.flying.len() - 1;
                self.flying.swap(at as usize, last);
            }
        }
    }

    pub fn handle(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let was = self.numbers;
        turn.keep(|| Undo::Client(Change::Numbers(was)));
        match message.kind {
            Kind::Start => self.advance(pfs, turn),
            Kind::Wake => {
                self.numbers.pausing = false;
                if let Some(request) = self.request(pfs, self.numbers.next) {
                    self.send(pfs, &request, turn);
                }
                self.advance(pfs, turn);
            }
            Kind::Ack => {
                let data = Message { kind: Kind::Data, ..message.clone() };
                post(pfs, &mut self.numbers.out, data, u64::from(message.length), turn);
            }
            Kind::Redirect => match pfs.layout.behind(message.file, message.offset, message.length) {
                Some(piece) => {
                    pfs.keep_piece(message, message.end, true, turn);
                    let about = (message.op, message.file, message.request);
                    ask(pfs, &mut self.numbers.out, about, &piece, turn)
                }
                None => turn.fail("a redirect in a layout without servers behind the buffer"),
            },
            Kind::Response => self.answered(pfs, message, turn),
            Kind::Return => self.returned(pfs, message, turn),
            Kind::Timeout => self.give_up(pfs, message.request, turn),
            Kind::Arrived => self.arrive(pfs, turn),
            Kind::Released => self.release(pfs, turn),
            Kind::Finished => match self.position(message.request) {
                Some(at) => self.finish(pfs, at, turn),
                None => pfs.is_late("a request ends that is not under way", turn),
            },
            other => turn.fail(format!("a client has got {other:?}")),
        }
    }

    fn request(&self, pfs: &Pfs, number: u32) -> Option<Request> {
        pfs.applications[self.application as usize].program.request(self.rank, number)
    }

    fn position(&self, number: u32) -> Option<usize> {
        self.flying.iter().position(|flying| flying.number == number)
    }

    /// Sends what may be sent, or a Wake for when it may.
    fn advance(&mut self, pfs: &Pfs, turn: &mut Turn<'_, Pfs>) {
        while !self.numbers.pausing {
            let Some(request) = self.request(pfs, self.numbers.next) else { return };
            let may = match request.after {
                After::All => self.flying.is_empty(),
                After::Fewer(than) => self.flying.len() < than as usize,
                After::Nothing => true,
            };
            if !may {
                return;
            }
            let pause = match request.pace {
                Pace::Think(span) => span.draw(turn.random()),
                Pace::At(time) => time.0.saturating_sub(turn.now().0),
            };
            if pause > 0 {
                self.numbers.pausing = true;
                let wake = Message::blank(Kind::Wake, request.op, self.numbers.next, turn);
                return turn.send(turn.me(), Time(pause), wake);
            }
            self.send(pfs, &request, turn);
        }
    }

    fn send(&mut self, pfs: &Pfs, request: &Request, turn: &mut Turn<'_, Pfs>) {
        let number = self.numbers.next;
        self.numbers.next += 1;
        turn.keep(|| Undo::Client(Change::Added));
        let now = turn.now().0;
        self.flying.push(Flying { number, left: 0, begin: now, end: now });
        if let Some(timeout) = pfs.timeout.filter(|_| request.op != Op::Barrier) {
            let message = Message::blank(Kind::Timeout, request.op, number, turn);
            turn.send(turn.me(), timeout, message);
        }
        let mut left = 0;
        if request.op == Op::Barrier {
            left = 1;
            self.arrive(pfs, turn);
        } else if let Some((node, call)) = pfs.node_of(self.application, self.rank) {
            left = 1;
            let Request { op, file, offset, .. } = *request;
            let (length, local, receiver) = (request.length as u32, offset, node);
            let blank = Message::blank(Kind::Call, op, number, turn);
            turn.send(ProcessId(node), call, Message { file, offset, local, length, receiver, ..blank });
        } else {
            let Request { op, file, offset, length, .. } = *request;
            pfs.pieces((op, file, offset, length), (self.application, self.rank), |piece| {
                left += 1;
                ask(pfs, &mut self.numbers.out, (op, file, number), &piece, turn);
            });
        }
        if let Some(flying) = self.flying.last_mut() {
            flying.left = left;
        }
    }

    /// Ranks are a tree: each has two below it, and tells the one above when it and all below it are there. The uppermost one
    /// lets all go.
    fn arrive(&mut self, pfs: &Pfs, turn: &mut Turn<'_, Pfs>) {
        self.numbers.arrived += 1;
        if self.numbers.arrived <= self.below(pfs).count() as u32 {
            return;
        }
        self.numbers.arrived = 0;
        match self.rank.checked_sub(1) {
            Some(above) => self.tell(pfs, above / 2, Kind::Arrived, turn),
            // Of its own event: ranks that are alone would go on within this one without an end.
            None => {
                let released = Message::blank(Kind::Released, Op::Barrier, 0, turn);
                turn.send(turn.me(), Time(1), released)
            }
        }
    }

    fn below(&self, pfs: &Pfs) -> impl Iterator<Item = u32> + use<> {
        let ranks = pfs.applications[self.application as usize].program.ranks();
        let first = u64::from(self.rank) * 2 + 1;
        (first..first + 2).filter_map(|rank| u32::try_from(rank).ok()).filter(move |rank| *rank < ranks)
    }

    fn release(&mut self, pfs: &Pfs, turn: &mut Turn<'_, Pfs>) {
        for rank in self.below(pfs) {
            self.tell(pfs, rank, Kind::Released, turn);
        }
        // A barrier waits for all requests before it, and all behind it wait for it.
        match self.flying.first_mut() {
            Some(flying) => {
                let was = *flying;
                turn.keep(|| Undo::Client(Change::Was(0, was)));
                flying.end = turn.now().0;
                self.finish(pfs, 0, turn);
            }
            None => turn.fail("a rank is let go that is at no barrier"),
        }
    }

    /// Another rank of the application.
    fn tell(&mut self, pfs: &Pfs, rank: u32, kind: Kind, turn: &mut Turn<'_, Pfs>) {
        let receiver = pfs.client_process(self.application, rank);
        let message = Message { receiver, ..Message::blank(kind, Op::Barrier, 0, turn) };
        match pfs.node_of(self.application, self.rank) {
            Some((node, call)) => turn.send(ProcessId(node), call, message),
            None => post(pfs, &mut self.numbers.out, message, 0, turn),
        }
    }

    /// The node's client has done a request.
    fn returned(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let Some(at) = self.position(message.request) else {
            return pfs.is_late("a node returns a request that is not under way", turn);
        };
        let was = self.flying[at];
        turn.keep(|| Undo::Client(Change::Was(at as u32, was)));
        self.count(message);
        self.flying[at].end = turn.now().0;
        self.finish(pfs, at, turn);
    }

    fn count(&mut self, done: &Message) {
        match done.op {
            Op::Read => self.numbers.bytes_read += u64::from(done.length),
            Op::Write => self.numbers.bytes_written += u64::from(done.length),
            _ => {}
        }
    }

    fn answered(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let Some(at) = self.position(message.request) else {
            return pfs.is_late("an answer to a request that is not under way", turn);
        };
        let was = self.flying[at];
        turn.keep(|| Undo::Client(Change::Was(at as u32, was)));
        let now = turn.now().0;
        let data = if message.op == Op::Read { message.length } else { 0 };
        let bytes = u64::from(data) + u64::from(pfs.network.header);
        let there = match pfs.near_of(turn.me().0, message.receiver) {
            Some(_) => now,
            None => self.numbers.into.receive(now, message.end, bytes, pfs.client_per_byte(turn.me().0)),
        };
        pfs.keep_piece(message, there, false, turn);
        self.count(message);
        let flying = &mut self.flying[at];
        flying.left = flying.left.saturating_sub(1);
        flying.end = flying.end.max(there);
        if flying.left > 0 {
            return;
        }
        if flying.end > now {
            let after = Time(flying.end - now);
            return turn.send(turn.me(), after, Message { kind: Kind::Finished, ..message.clone() });
        }
        self.finish(pfs, at, turn);
    }

    /// A request that is not done by now has failed. What still comes of it is not looked at.
    fn give_up(&mut self, pfs: &Pfs, number: u32, turn: &mut Turn<'_, Pfs>) {
        let Some(at) = self.position(number) else { return };
        let was = self.flying[at];
        turn.keep(|| Undo::Client(Change::Removed(at as u32, was)));
        self.flying.swap_remove(at);
        self.numbers.failed += 1;
        self.numbers.last = turn.now().0;
        self.advance(pfs, turn);
    }

    /// A request is done at this moment.
    fn finish(&mut self, pfs: &Pfs, at: usize, turn: &mut Turn<'_, Pfs>) {
        let Flying { number, begin, end, .. } = self.flying[at];
        let was = self.flying[at];
        turn.keep(|| Undo::Client(Change::Removed(at as u32, was)));
        self.flying.swap_remove(at);
        self.numbers.requests += 1;
        self.numbers.waited += end - begin;
        self.numbers.last = end;
        if pfs.keep_requests
            && let Some(Request { op, file, offset, length, .. }) = self.request(pfs, number)
        {
            let (application, rank) = (self.application, self.rank);
            let done = RequestResult { application, rank, number, op, file, offset, length, begin, end };
            turn.emit(Record::Request(done));
        }
        self.advance(pfs, turn);
    }
}

/// A sub-request goes to its server: which operation, on which file, of which request.
#[inline]
pub(crate) fn ask(
    pfs: &Pfs,
    out: &mut Link,
    (op, file, request): (Op, u32, u32),
    piece: &Piece,
    turn: &mut Turn<'_, Pfs>,
) {
    let message = Message {
        file,
        offset: piece.offset,
        local: piece.local,
        length: piece.length,
        receiver: pfs.server_process(piece.server),
        ..Message::blank(Kind::Request, op, request, turn)
    };
    let data = if op == Op::Write && piece.length <= pfs.network.eager { piece.length } else { 0 };
    post(pfs, out, message, u64::from(data), turn);
}

/// Over the link of a rank, or of a node.
#[inline]
pub(crate) fn post(pfs: &Pfs, out: &mut Link, mut message: Message, data: u64, turn: &mut Turn<'_, Pfs>) {
    if let Some(near) = pfs.near_of(turn.me().0, message.receiver) {
        message.end = turn.now().plus(near).0;
        return turn.send(ProcessId(message.receiver), near, message);
    }
    let (now, bytes) = (turn.now().0, data + u64::from(pfs.network.header));
    let (begin, tail) = out.send(now, bytes, pfs.client_per_byte(turn.me().0));
    pfs.carry(message.receiver, begin - now, tail, message, turn);
}
