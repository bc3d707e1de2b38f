//! One connection: bytes in, bytes out.

use crate::worker::Looks;
use rustix::io::Errno as Sys;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tidepool_norns::{Kind, LENGTH_LEN, Response, body_len};
use tidepool_stage_state::Caller;
use tidepool_wire::stager::{Code, HEAD_LEN, Head, Refusal, Reply, Request};

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes of replies that may wait for a slow reader before its requests do.
const OUT_MAX: usize = 16 << 20;

/// Most bytes of a message before the peer has said who it is.
const GREETING_MAX: usize = 4 << 10;

/// What the unanswered requests of one connection may weigh: memory that a peer could take without end otherwise.
pub const WAITING_MAX: usize = 256 << 10;
/// What a request weighs that takes a look or a count first. A wait weighs as much as it has tasks.
pub const ERRAND_WEIGHT: usize = 1024;

/// What it takes to answer a request later; 0 for those that are answered at once.
pub fn weight(request: &Request) -> usize {
    match request {
        Request::Wait { ids, .. } => ids.len(),
        Request::SubmitAndWait { .. } => 1,
        Request::Plan { .. }
        | Request::Entries { .. }
        | Request::Leftovers { .. }
        | Request::UnregisterJob { .. }
        | Request::UnregisterDataspace { .. }
        | Request::Command { .. } => ERRAND_WEIGHT,
        _ => 0,
    }
}

/// What a connection speaks.
pub enum Dialect {
    Native,
    /// The published NORNS protocol. Its requests have no numbers: they get some, and what they asked
    /// is kept until they are answered.
    Norns {
        last: u64,
        waiting: HashMap<u64, Kind>,
    },
}

/// A request as it came.
pub struct Incoming {
    /// What the reply repeats.
    pub id: u64,
    pub request: Result<Request, Refusal>,
    /// The connection cannot go on after the reply.
    pub last: bool,
}

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Over {
    /// The peer has closed it, or it broke.
    Closed,
    /// The peer does not keep to the protocol.
    Nonsense,
}

pub struct Conn {
    stream: UnixStream,
    pub caller: Caller,
    /// The caller's ancestors are known.
    pub traced: bool,
    /// The peer has said hello, or need not.
    pub greeted: bool,
    dialect: Dialect,
    /// Bytes `used..filled` have come and are not served yet.
    input: Vec<u8>,
    used: usize,
    filled: usize,
    out: Vec<u8>,
    sent: usize,
    /// What the event loop looks for.
    pub watched: Watched,
    /// What requests that are answered later weigh.
    pub waiting: usize,
    /// The look of the event loop at which it came.
    pub since: Looks,
    /// Bytes of it that its user is counted for.
    pub counted: usize,
}

/// What a connection is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    pub input: bool,
    pub output: bool,
}

impl Conn {
    pub fn new(stream: UnixStream, caller: Caller, dialect: Dialect, since: Looks) -> Conn {
        Conn {
            stream,
            caller,
            traced: false,
            greeted: matches!(dialect, Dialect::Norns { .. }),
            dialect,
            input: Vec::new(),
            used: 0,
            filled: 0,
            out: Vec::new(),
            sent: 0,
            watched: Watched { input: true, output: false },
            waiting: 0,
            since,
            counted: 0,
        }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Reads what has come, once.
    pub fn fill(&mut self) -> Result<(), Over> {
        self.make_room();
        match (&self.stream).read(&mut self.input[self.filled..]) {
            Ok(0) => Err(Over::Closed),
            Ok(count) => {
                self.filled += count;
                Ok(())
            }
            Err(error) if is_temporary(&error) => Ok(()),
            Err(_) => Err(Over::Closed),
        }
    }

    /// Makes at least [`READ_BYTES`] free. What a message may take is bounded by its head.
    fn make_room(&mut self) {
        if self.used == self.filled {
            (self.used, self.filled) = (0, 0);
        } else if self.used > READ_BYTES {
            self.input.copy_within(self.used..self.filled, 0);
            (self.used, self.filled) = (0, self.filled - self.used);
        }
        let wanted = if self.greeted { READ_BYTES } else { HEAD_LEN + GREETING_MAX };
        if self.input.len() - self.filled < wanted {
            // No more than the message that is coming needs: what a peer only announces takes nothing.
            self.input.resize((self.filled + wanted).max(self.filled + self.filled / 2), 0);
        }
    }

    /// Length of the next whole message with its head; none when it has not all come.
    fn next_len(&self) -> Result<Option<usize>, Over> {
        let rest = &self.input[self.used..self.filled];
        let len = match self.dialect {
            Dialect::Native => {
                let Some(head) = rest.first_chunk::<HEAD_LEN>() else { return Ok(None) };
                let len = Head::decode(head).map_err(|_| Over::Nonsense)?.len as usize;
                if !self.greeted && len > GREETING_MAX {
                    return Err(Over::Nonsense);
                }
                HEAD_LEN + len
            }
            // Its replies have no numbers, so one request is served after the other.
            Dialect::Norns { ref waiting, .. } if !waiting.is_empty() => return Ok(None),
            Dialect::Norns { .. } => {
                let Some(len) = rest.first_chunk::<LENGTH_LEN>() else { return Ok(None) };
                LENGTH_LEN + body_len(*len).map_err(|_| Over::Nonsense)?
            }
        };
        Ok((rest.len() >= len).then_some(len))
    }

    /// Takes the next whole message.
    pub fn take(&mut self) -> Result<Option<Incoming>, Over> {
        let Some(len) = self.next_len()? else { return Ok(None) };
        let message = &self.input[self.used..self.used + len];
        let incoming = match &mut self.dialect {
            Dialect::Native => native(message).ok_or(Over::Nonsense)?,
            Dialect::Norns { last, waiting } => {
                *last += 1;
                norns(*last, &message[LENGTH_LEN..], waiting)
            }
        };
        self.used += len;
        Ok(Some(incoming))
    }

    /// Bytes of memory that it takes.
    pub fn held(&self) -> usize {
        self.input.capacity() + self.out.capacity()
    }

    /// Gives back what large messages have taken.
    pub fn shrink(&mut self) {
        if self.used == self.filled && self.input.len() > READ_BYTES {
            (self.used, self.filled) = (0, 0);
            self.input = Vec::new();
        }
        if self.out.is_empty() && self.out.capacity() > READ_BYTES {
            self.out = Vec::new();
        }
    }

    /// Requests wait while the peer does not read its replies.
    pub fn is_choked(&self) -> bool {
        self.out.len() - self.sent > OUT_MAX
    }

    /// There is something to be served: a message, or what is none.
    pub fn has_message(&self) -> bool {
        !matches!(self.next_len(), Ok(None))
    }

    /// What it should be watched for now.
    pub fn wants(&self) -> Watched {
        Watched { input: !self.is_choked(), output: self.sent < self.out.len() }
    }

    pub fn reply(&mut self, id: u64, reply: &Reply) {
        if let Dialect::Norns { waiting, .. } = &mut self.dialect {
            let response = match (waiting.remove(&id), reply) {
                (Some(kind), reply) => Response::answer(kind, reply),
                (None, Reply::Failed { refusal }) => Response::refuse(None, refusal),
                (None, _) => return,
            };
            return self.out.extend_from_slice(&response.frame());
        }
        // What is too long to be sent is cut where it is made; this is for what was overlooked.
        if let Err(error) = reply.put_frame(id, &mut self.out) {
            let text = format!("the reply is too long: {error}; ask for less at a time");
            let refusal = Refusal::new(Code::INTERNAL, text);
            let _ = Reply::Failed { refusal }.put_frame(id, &mut self.out);
        }
    }

    /// Sends what can be sent.
    pub fn flush(&mut self) -> Result<(), Over> {
        while self.sent < self.out.len() {
            match (&self.stream).write(&self.out[self.sent..]) {
                Ok(0) => return Err(Over::Closed),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if is_temporary(&error) => return Ok(()),
                Err(_) => return Err(Over::Closed),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }
}

fn native(message: &[u8]) -> Option<Incoming> {
    let (head, body) = message.split_first_chunk::<HEAD_LEN>()?;
    let head = Head::decode(head).ok()?;
    let request = Request::decode(head.kind, body);
    let last = request.is_err();
    let refuse = |error| Refusal::new(Code::BAD_REQUEST, format!("this cannot be understood: {error}"));
    Some(Incoming { id: head.id, request: request.map_err(refuse), last })
}

fn norns(id: u64, body: &[u8], waiting: &mut HashMap<u64, Kind>) -> Incoming {
    let request = tidepool_norns::Request::read(body).and_then(|request| {
        waiting.extend(request.kind().map(|kind| (id, kind)));
        request.to_native()
    });
    Incoming { id, request, last: false }
}

fn is_temporary(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error().map(Sys::from_raw_os_error), Some(Sys::AGAIN | Sys::INTR))
}
