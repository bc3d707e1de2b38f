//! A connection with somebody who may say anything, or nothing (`docs/formats/20-network-probe.md`).

use super::super::{ProbeError, Stop};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tidepool_transport::{ClientAuth, Secret, ServerAuth};
use tidepool_types::InstanceId;
use tidepool_wire::message::{Nonce, Proof};

/// Begins a connection: a name and the version.
const HELLO: [u8; 6] = *b"TPNP\x01\x00";
/// Stands where pools have the number of an instance, so that no proof is good for both.
const INSTANCE: InstanceId = InstanceId(*b"tidepool-probe01");
const PROOF: usize = 32;
/// How often somebody who waits looks whether to stop.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// Nothing moves for so long: the other side is gone.
const STILL_MAX: Duration = Duration::from_secs(10);
/// Most bytes of one request.
pub const COUNT_MAX: u64 = 1 << 30;
/// Bytes of a frame.
const FRAME: usize = 16;

/// What the measuring side asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Sent back as it is.
    Ping = 1,
    /// So many bytes follow; sent back when they have come.
    Take = 2,
    /// Answered with so many bytes.
    Give = 3,
    /// The end.
    End = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub count: u64,
}

impl Frame {
    pub fn encode(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        bytes[0] = self.kind as u8;
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// `None` for what is none, or breaks a limit.
    pub fn decode(bytes: &[u8; FRAME]) -> Option<Frame> {
        let kind =
            [Kind::Ping, Kind::Take, Kind::Give, Kind::End].into_iter().find(|k| *k as u8 == bytes[0])?;
        let count = u64::from_le_bytes(bytes[8..].try_into().ok()?);
        (bytes[1..8] == [0; 7] && count <= COUNT_MAX).then_some(Frame { kind, count })
    }
}

pub struct Line<'a> {
    stream: TcpStream,
    /// For messages.
    pub name: String,
    stop: &'a Stop,
    until: Instant,
}

impl<'a> Line<'a> {
    pub fn new(
        stream: TcpStream,
        name: String,
        until: Instant,
        stop: &'a Stop,
    ) -> Result<Line<'a>, ProbeError> {
        let line = Line { stream, name, stop, until };
        let tune = || {
            line.stream.set_nonblocking(false)?;
            line.stream.set_nodelay(true)?;
            line.stream.set_read_timeout(Some(LOOK_AROUND))?;
            line.stream.set_write_timeout(Some(LOOK_AROUND))
        };
        tune().map_err(|error| line.failed(error))?;
        Ok(line)
    }

    pub fn with_time(self, until: Instant) -> Line<'a> {
        Line { until, ..self }
    }

    pub fn failed(&self, source: io::Error) -> ProbeError {
        let advice = match source.kind() {
            io::ErrorKind::TimedOut => "is the node there, and busy? A longer --limit waits longer",
            _ => "",
        };
        ProbeError::Io { what: self.name.clone(), doing: "measuring with it", source, advice }
    }

    fn wrong(&self, why: &'static str) -> ProbeError {
        ProbeError::Peer { peer: self.name.clone(), why }
    }

    /// Moves bytes until all have moved: the step tells how many it has moved from a place on.
    fn all(
        &mut self,
        len: usize,
        mut step: impl FnMut(&mut TcpStream, usize) -> io::Result<usize>,
    ) -> Result<(), ProbeError> {
        let (mut done, mut moved) = (0, Instant::now());
        while done < len {
            self.stop.check()?;
            if Instant::now() >= self.until || moved.elapsed() >= STILL_MAX {
                return Err(self.failed(io::ErrorKind::TimedOut.into()));
            }
            match step(&mut self.stream, done) {
                Ok(0) => return Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(more) => (done, moved) = (done + more, Instant::now()),
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        self.all(bytes.len(), |stream, done| stream.write(&bytes[done..]))
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<(), ProbeError> {
        self.all(bytes.len(), |stream, done| stream.read(&mut bytes[done..]))
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], ProbeError> {
        let mut bytes = [0; N];
        self.take(&mut bytes).map(|()| bytes)
    }

    pub fn ask(&mut self, kind: Kind, count: u64) -> Result<(), ProbeError> {
        self.put(&Frame { kind, count }.encode())
    }

    pub fn frame(&mut self) -> Result<Frame, ProbeError> {
        let bytes = self.take_array()?;
        Frame::decode(&bytes).ok_or_else(|| self.wrong("it says what is no part of a measurement"))
    }

    /// The answer to a frame: the same again.
    pub fn echoed(&mut self, kind: Kind, count: u64) -> Result<(), ProbeError> {
        match self.frame()? == (Frame { kind, count }) {
            true => Ok(()),
            false => Err(self.wrong("it answers something that it was not asked")),
        }
    }

    /// Sends so many bytes of noise.
    pub fn pour(&mut self, noise: &[u8], count: u64) -> Result<(), ProbeError> {
        let mut left = count;
        while left > 0 {
            let part = noise.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.put(&noise[..part])?;
            left -= part as u64;
        }
        Ok(())
    }

    /// Takes so many bytes.
    pub fn drain(&mut self, room: &mut [u8], count: u64) -> Result<(), ProbeError> {
        let mut left = count;
        while left > 0 {
            let part = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.take(&mut room[..part])?;
            left -= part as u64;
        }
        Ok(())
    }

    /// Proves that this side knows the secret, to who has proved it first.
    pub fn greet(&mut self, secret: &Secret) -> Result<(), ProbeError> {
        let auth = ClientAuth::new(secret, INSTANCE);
        self.put(&HELLO)?;
        self.put(&auth.nonce().0)?;
        if self.take_array()? != HELLO {
            return Err(self.wrong("there is something else at this address, or another release"));
        }
        let (nonce, proof) = (Nonce(self.take_array()?), Proof(self.take_array::<PROOF>()?));
        let Some(own) = auth.answer(&nonce, &proof) else {
            return Err(self.wrong("it has another secret; give both sides the same one"));
        };
        self.put(&own.0)?;
        match self.take_array()? {
            [1] => Ok(()),
            _ => Err(self.wrong("it does not accept this side's secret")),
        }
    }

    /// The same on the other side.
    pub fn be_greeted(&mut self, secret: &Secret) -> Result<(), ProbeError> {
        if self.take_array()? != HELLO {
            return Err(self.wrong("it does not speak the protocol of measurements"));
        }
        let auth = ServerAuth::new(INSTANCE, Nonce(self.take_array()?));
        let (nonce, proof) = auth.challenge(secret);
        self.put(&HELLO)?;
        self.put(&nonce.0)?;
        self.put(&proof.0)?;
        let known = auth.accepts(secret, &Proof(self.take_array::<PROOF>()?));
        self.put(&[u8::from(known)])?;
        if known { Ok(()) } else { Err(self.wrong("it does not know the secret")) }
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_frames_are_pinned() {
        let bytes = [3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0];
        let frame = Frame { kind: Kind::Give, count: 0x201 };
        assert_eq!(frame.encode(), bytes);
        assert_eq!(Frame::decode(&bytes), Some(frame));
        let with = |at: usize, byte: u8| {
            Frame::decode(&std::array::from_fn(|n| if n == at { byte } else { bytes[n] }))
        };
        for (at, byte) in [(0, 0), (0, 5), (1, 1), (7, 1), (11, 0x40), (15, 1)] {
            assert_eq!(with(at, byte), None, "byte {at}: {byte}");
        }
        let most = Frame { kind: Kind::Take, count: COUNT_MAX };
        assert_eq!(Frame::decode(&most.encode()), Some(most));
        assert_eq!(HELLO, [0x54, 0x50, 0x4e, 0x50, 1, 0]);
        assert_eq!(INSTANCE.0.len(), 16);
    }
}
