//! Frames between supervisor and worker, over a pair of Unix sockets. Descriptors come with the first byte of their frame.

use super::message::{FromWorker, ToWorker};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tidepool_wire::DecodeError;
use tidepool_wire::stager::BODY_MAX;

/// Length of the body (4), kind (2), number of descriptors (1), zero (1).
pub const HEAD_LEN: usize = 8;
/// Longest body: that of a reply to a client, and what is around it.
pub const FRAME_MAX: usize = BODY_MAX + 64;
/// Most descriptors of one frame: a task has two ends.
pub const FDS_MAX: usize = 4;
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// What a frame starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub len: u32,
    pub kind: u16,
    pub fds: u8,
}

impl Head {
    fn encode(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[6] = self.fds;
        bytes
    }

    fn decode(bytes: [u8; HEAD_LEN]) -> Result<Head, DecodeError> {
        let [a, b, c, d, e, f, fds, zero] = bytes;
        let len = u32::from_le_bytes([a, b, c, d]);
        if len as usize > FRAME_MAX {
            return Err(DecodeError::Invalid("length of a frame"));
        }
        if usize::from(fds) > FDS_MAX || zero != 0 {
            return Err(DecodeError::Invalid("descriptors of a frame"));
        }
        Ok(Head { len, kind: u16::from_le_bytes([e, f]), fds })
    }
}

fn frame(kind: u16, fds: usize, fields: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_LEN];
    fields(&mut bytes);
    let len = (bytes.len() - HEAD_LEN) as u32;
    bytes[..HEAD_LEN].copy_from_slice(&Head { len, kind, fds: fds as u8 }.encode());
    bytes
}

impl ToWorker {
    pub fn frame(&self, fds: usize) -> Vec<u8> {
        frame(self.kind(), fds, |out| self.encode(out))
    }
}

impl FromWorker {
    pub fn frame(&self) -> Vec<u8> {
        frame(self.kind(), 0, |out| self.encode(out))
    }
}

/// Sends the start of a frame, with its descriptors; how many bytes.
pub fn send(socket: &UnixStream, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one frame"));
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Bytes of which frames are taken.
#[derive(Default)]
pub struct Frames {
    bytes: Vec<u8>,
    used: usize,
}

impl Frames {
    pub fn put(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.bytes.drain(..std::mem::take(&mut self.used));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, of at most `max` bytes.
    pub fn next(&mut self) -> Result<Option<(Head, &[u8])>, DecodeError> {
        let rest = &self.bytes[self.used..];
        let Some(head) = rest.first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let head = Head::decode(*head)?;
        let end = HEAD_LEN + head.len as usize;
        let Some(body) = rest.get(HEAD_LEN..end) else { return Ok(None) };
        self.used += end;
        Ok(Some((head, body)))
    }
}

/// A worker's side of the pipe.
pub struct Inbox {
    socket: UnixStream,
    frames: Frames,
    fds: VecDeque<OwnedFd>,
    /// What has just been read.
    bytes: Box<[u8]>,
}

impl Inbox {
    pub fn new(socket: UnixStream) -> Inbox {
        let bytes = vec![0; READ_BYTES].into();
        Inbox { socket, frames: Frames::default(), fds: VecDeque::new(), bytes }
    }

    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// A message that has come already.
    pub fn take(&mut self) -> io::Result<Option<(ToWorker, Vec<OwnedFd>)>> {
        let bad = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let Some((head, body)) = self.frames.next().map_err(bad)? else { return Ok(None) };
        let message = ToWorker::decode(head.kind, body).map_err(bad)?;
        let count = usize::from(head.fds);
        if count > self.fds.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a descriptor got lost"));
        }
        Ok(Some((message, self.fds.drain(..count).collect())))
    }

    /// Waits for more bytes; false when the supervisor is gone.
    pub fn fill(&mut self) -> io::Result<bool> {
        self.receive(RecvFlags::empty())
    }

    /// The same without waiting; nothing when there are none yet.
    pub fn fill_at_once(&mut self) -> io::Result<Option<bool>> {
        match self.receive(RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    fn receive(&mut self, flags: RecvFlags) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut into = [IoSliceMut::new(&mut self.bytes)];
            match recvmsg(&self.socket, &mut into, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        self.frames.put(&self.bytes[..received.bytes]);
        Ok(received.bytes > 0)
    }

    /// The next message; none when the supervisor is gone.
    pub fn next(&mut self) -> io::Result<Option<(ToWorker, Vec<OwnedFd>)>> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Made, Opening};
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use tidepool_transport::{Half, Seals};
    use tidepool_types::SessionId;

    #[test]
    fn frames_have_the_bytes_of_the_specification() {
        assert_eq!(ToWorker::Cancel { id: 7 }.frame(0), b"\x04\0\0\0\x03\0\0\0\x07\0\0\0");
        assert_eq!(
            ToWorker::Journal { id: 7, given: true }.frame(1),
            b"\x05\0\0\0\x06\0\x01\0\x07\0\0\0\x01"
        );
        let charge = FromWorker::Charge { call: 1, id: 2, bytes: 3 };
        assert_eq!(
            charge.frame(),
            b"\x14\0\0\0\x06\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0".to_vec()
        );
        assert_eq!(FromWorker::Ready {}.frame(), b"\0\0\0\0\x01\0\0\0");
        assert_eq!(FromWorker::decode(6, &charge.frame()[HEAD_LEN..]), Ok(charge));
    }

    #[test]
    fn a_task_has_the_bytes_of_the_specification() {
        use super::super::message::Order;
        use tidepool_stage_state::{Identity, Origin, Quota, Start};
        use tidepool_wire::stager::{Op, Resource, TaskSpec};
        let spec = TaskSpec::new(Op::Remove, Resource::local("a://", b"x"), None);
        let mut spec_bytes = Vec::new();
        tidepool_wire::Field::put(&spec, &mut spec_bytes);
        let start = Start {
            id: 7,
            spec,
            identity: Identity { uid: 1, gid: 2, job: 3 },
            origin: Origin { pid: 4, started: 5 },
            again: true,
            quotas: vec![Quota { dataspace: "a".into(), job: 3, limit: 9, used: 8 }],
            made: None,
            permit: None,
        };
        let order = Order { start, token: *b"12345678", charged: true, spaces: Vec::new() };
        let expected = [
            b"\x07\0\0\0".to_vec(),
            // As in format 11.
            spec_bytes,
            b"\x01\0\0\0\x02\0\0\0\x03\0\0\0".to_vec(),
            b"\x04\0\0\0\x05\0\0\0\0\0\0\0\x01".to_vec(),
            b"\x01\0\0\0\x01\0\0\0a\x03\0\0\0\x09\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0".to_vec(),
            b"\0\0".to_vec(),
            b"12345678\x01\0\0\0\0".to_vec(),
        ]
        .concat();
        let frame = ToWorker::Task { order: order.clone() }.frame(0);
        assert_eq!(frame[..HEAD_LEN], [&(expected.len() as u32).to_le_bytes()[..], &[2, 0, 0, 0]].concat());
        assert_eq!(frame[HEAD_LEN..], expected);
        assert_eq!(ToWorker::decode(2, &expected), Ok(ToWorker::Task { order }));
    }

    fn half(key: u8, next: u64) -> Half {
        Half { key: [key; 32], next }
    }

    const SEALS: &[&[u8]] = &[
        &[1; 32],
        b"\x02\0\0\0\0\0\0\0",
        &[3; 32],
        b"\x04\0\0\0\0\0\0\0",
        b"\0\0\0\0",
        b"\x01\0\0\0i",
        b"\0",
    ];

    fn seals() -> Seals {
        let (plain, input) = (Box::default(), b"i".as_slice().into());
        Seals { outgoing: half(1, 2), incoming: half(3, 4), plain, input, ended: false }
    }

    #[test]
    fn connections_have_the_bytes_of_the_specification() {
        let opening = Opening { path: b"p".as_slice().into(), write: true, charged: false };
        let serve = ToWorker::Serve {
            connection: 5,
            visit: 6,
            session: SessionId([7; 16]),
            request: 8,
            seals: seals(),
            opening: Some(opening),
        };
        let expected = [
            b"\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0".to_vec(),
            vec![7; 16],
            b"\x08\0\0\0".to_vec(),
            SEALS.concat(),
            b"\x01\x01\0\0\0p\x01\0".to_vec(),
        ]
        .concat();
        let frame = serve.frame(2);
        assert_eq!(frame[..HEAD_LEN], [&(expected.len() as u32).to_le_bytes()[..], &[13, 0, 2, 0]].concat());
        assert_eq!(frame[HEAD_LEN..], expected);
        assert_eq!(ToWorker::decode(13, &expected), Ok(serve));
        let made = Made { kind: 102, body: b"b".as_slice().into(), seals: Some(seals()) };
        let line = ToWorker::Line { line: 9, made: Some(made), failed: None };
        let expected =
            [b"\x09\0\0\0\0\0\0\0\x01\x66\0\x01\0\0\0b\x01".to_vec(), SEALS.concat(), b"\0".to_vec()]
                .concat();
        assert_eq!(line.frame(1)[HEAD_LEN..], expected);
        assert_eq!(ToWorker::decode(12, &expected), Ok(line));
        for (message, expected) in [
            (
                FromWorker::NeedLine {
                    line: 1,
                    task: 2,
                    call: 0,
                    host: "h".into(),
                    kind: 17,
                    body: [9].into(),
                },
                &b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0h\x11\0\x01\0\0\0\x09"[..],
            ),
            (
                FromWorker::Puts { call: 1, visit: 2, bytes: 3 },
                b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0",
            ),
            (
                FromWorker::Names { visit: 2, name: Some(b"n".as_slice().into()) },
                b"\x02\0\0\0\0\0\0\0\x01\x01\0\0\0n",
            ),
            (FromWorker::Left { connection: 5 }, b"\x05\0\0\0\0\0\0\0"),
        ] {
            assert_eq!(message.frame()[HEAD_LEN..], *expected, "{}", message.name());
            assert_eq!(FromWorker::decode(message.kind(), expected), Ok(message));
        }
    }

    #[test]
    fn descriptors_come_with_their_own_frames() {
        let (here, there) = UnixStream::pair().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, name).unwrap();
            std::fs::File::open(path).unwrap()
        };
        let (one, two) = (file("one"), file("two"));
        let send =
            |frame: &[u8], fds: &[BorrowedFd<'_>]| assert_eq!(send(&here, frame, fds).unwrap(), frame.len());
        send(&ToWorker::Cancel { id: 1 }.frame(0), &[]);
        send(&ToWorker::Journal { id: 2, given: true }.frame(1), &[one.as_fd()]);
        send(&ToWorker::Noted { id: 3 }.frame(0), &[]);
        send(&ToWorker::Journal { id: 4, given: true }.frame(1), &[two.as_fd()]);
        drop(here);
        let mut inbox = Inbox::new(there);
        let mut seen = Vec::new();
        while let Some((message, fds)) = inbox.next().unwrap() {
            let text = fds.into_iter().map(|fd| {
                let mut text = String::new();
                std::fs::File::from(fd).read_to_string(&mut text).unwrap();
                text
            });
            seen.push((message.name(), text.collect::<Vec<_>>().concat()));
        }
        let seen: Vec<(&str, &str)> = seen.iter().map(|(name, text)| (*name, &**text)).collect();
        assert_eq!(seen, [("Cancel", ""), ("Journal", "one"), ("Noted", ""), ("Journal", "two")]);
    }

    #[test]
    fn what_is_too_long_or_strange_is_refused_before_it_has_come() {
        for head in [
            Head { len: FRAME_MAX as u32 + 1, kind: 1, fds: 0 }.encode(),
            Head { len: 0, kind: 1, fds: FDS_MAX as u8 + 1 }.encode(),
            [0, 0, 0, 0, 1, 0, 0, 1],
        ] {
            let mut frames = Frames::default();
            frames.put(&head);
            assert!(frames.next().is_err(), "{head:?}");
        }
    }

    proptest::proptest! {
        /// In whatever pieces they come.
        #[test]
        fn frames_come_out_as_they_went_in(bodies in proptest::collection::vec(0u64..1000, 1..20), step in 1usize..50) {
            let sent: Vec<u8> = bodies.iter().flat_map(|n| FromWorker::Pong { number: *n }.frame()).collect();
            let (mut frames, mut seen) = (Frames::default(), Vec::new());
            for piece in sent.chunks(step) {
                frames.put(piece);
                while let Some((head, body)) = frames.next().unwrap() {
                    let FromWorker::Pong { number } = FromWorker::decode(head.kind, body).unwrap() else { panic!() };
                    seen.push(number);
                }
            }
            proptest::prop_assert_eq!(seen, bodies);
        }

        #[test]
        fn garbage_is_an_error_at_worst(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let mut frames = Frames::default();
            frames.put(&bytes);
            while let Ok(Some((head, body))) = frames.next() {
                let _ = FromWorker::decode(head.kind, body);
                let _ = ToWorker::decode(head.kind, body);
            }
        }
    }
}
