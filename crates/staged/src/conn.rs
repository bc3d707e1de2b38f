//! One connection: bytes in, bytes out.

use rustix::io::Errno as Sys;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tidepool_stage_state::Caller;
use tidepool_wire::stager::{HEAD_LEN, Head, Reply};

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes of replies that may wait for a slow reader before its requests do.
const OUT_MAX: usize = 16 << 20;

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
    /// The peer has said hello.
    pub greeted: bool,
    /// Bytes `used..filled` have come and are not served yet.
    input: Vec<u8>,
    used: usize,
    filled: usize,
    out: Vec<u8>,
    sent: usize,
    /// What the event loop looks for.
    pub watched: Watched,
}

/// What a connection is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    pub input: bool,
    pub output: bool,
}

impl Conn {
    pub fn new(stream: UnixStream, caller: Caller) -> Conn {
        Conn {
            stream,
            caller,
            greeted: false,
            input: Vec::new(),
            used: 0,
            filled: 0,
            out: Vec::new(),
            sent: 0,
            watched: Watched { input: true, output: false },
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
        if self.input.len() - self.filled < READ_BYTES {
            self.input.resize((self.filled + READ_BYTES).next_power_of_two(), 0);
        }
    }

    /// The next whole message; its body stays valid until [`Conn::done`].
    pub fn next(&self) -> Result<Option<(Head, &[u8])>, Over> {
        let rest = &self.input[self.used..self.filled];
        let Some(head) = rest.first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let head = Head::decode(head).map_err(|_| Over::Nonsense)?;
        let body = rest.get(HEAD_LEN..HEAD_LEN + head.len as usize);
        Ok(body.map(|body| (head, body)))
    }

    /// The message of [`Conn::next`] is done with.
    pub fn done(&mut self, head: &Head) {
        self.used += HEAD_LEN + head.len as usize;
    }

    /// Requests wait while the peer does not read its replies.
    pub fn is_choked(&self) -> bool {
        self.out.len() - self.sent > OUT_MAX
    }

    /// There is something to be served: a message, or what is none.
    pub fn has_message(&self) -> bool {
        !matches!(self.next(), Ok(None))
    }

    /// What it should be watched for now.
    pub fn wants(&self) -> Watched {
        Watched { input: !self.is_choked(), output: self.sent < self.out.len() }
    }

    pub fn reply(&mut self, id: u64, reply: &Reply) {
        // What is too long to be sent is cut where it is made; this is for what was overlooked.
        if let Err(error) = reply.put_frame(id, &mut self.out) {
            let text = format!("the reply is too long: {error}; ask for less at a time");
            let refusal = tidepool_wire::stager::Refusal::new(tidepool_wire::stager::Code::INTERNAL, text);
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

fn is_temporary(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error().map(Sys::from_raw_os_error), Some(Sys::AGAIN | Sys::INTR))
}
