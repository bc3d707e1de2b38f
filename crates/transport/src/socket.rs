//! Frames over stream sockets.

use crate::{DEAD_PEER_MS_MAX, Link};
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tidepool_wire::frame::{HEADER_LEN, Header};
use tidepool_wire::message::{Reply, Request};

/// Probes without an answer after which a node is dead.
const PROBES: u32 = 3;

/// A received frame without its bulk data.
#[derive(Debug)]
pub struct Received<'a> {
    pub header: Header,
    pub meta: &'a [u8],
}

/// A stream socket as a [`Link`].
pub struct SocketLink<S> {
    stream: S,
    meta: Vec<u8>,
}

/// What the link needs of a stream besides reading and writing.
pub trait Stream: Read + Write + AsFd + Send {
    /// How long each read waits.
    fn timeout(&self, timeout: Duration) -> io::Result<()>;

    /// How long each read and each write waits for a peer that says, or takes, nothing.
    fn wait_at_most(&mut self, limit: Duration) -> io::Result<()> {
        SockRef::from(&self.as_fd()).set_write_timeout(Some(limit))?;
        self.timeout(limit)
    }

    /// True when bytes have come that are in no buffer of the kernel any more, and not read yet.
    fn has_unread(&self) -> bool {
        false
    }
}

impl Stream for UnixStream {
    fn timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
    }
}

impl Stream for TcpStream {
    fn timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
    }
}

impl<S: Stream> SocketLink<S> {
    pub fn new(stream: S) -> SocketLink<S> {
        SocketLink { stream, meta: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    pub(crate) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    fn read_header(&mut self) -> io::Result<Header> {
        let mut bytes = [0; HEADER_LEN];
        self.stream.read_exact(&mut bytes)?;
        Header::decode(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }
}

impl<S: Stream> Link for SocketLink<S> {
    fn send(&mut self, header: &Header, meta: &[u8], bulk: &[u8]) -> io::Result<()> {
        let head = header.encode();
        write_all_vectored(&mut self.stream, [&head, meta, bulk])
    }

    fn receive(&mut self, bulk: &mut [u8]) -> io::Result<Received<'_>> {
        let header = self.read_header()?;
        let bulk_len = header.bulk_len as usize;
        let Some(target) = bulk.get_mut(..bulk_len) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more data than was asked for"));
        };
        self.meta.resize(header.meta_len as usize, 0);
        read_all_vectored(&mut self.stream, [&mut self.meta, target])?;
        Ok(Received { header, meta: &self.meta })
    }

    fn ask_for_descriptors(&mut self, _request: &Request) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        Ok(None)
    }

    fn is_stale(&self) -> bool {
        let mut byte = [0u8; 1];
        let peek = recv(&self.stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        self.stream.has_unread() || !matches!(peek, Err(rustix::io::Errno::AGAIN))
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.stream.wait_at_most(timeout)
    }
}

/// Writes all parts in as few system calls as the kernel allows.
fn write_all_vectored<const N: usize>(stream: &mut impl Write, parts: [&[u8]; N]) -> io::Result<()> {
    write_all_slices(stream, &mut parts.map(IoSlice::new))
}

/// The same for any number of parts.
pub fn write_all_slices(stream: &mut impl Write, mut rest: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills all parts, in as few system calls as the kernel allows: bulk data go straight to their place.
fn read_all_vectored<const N: usize>(stream: &mut impl Read, parts: [&mut [u8]; N]) -> io::Result<()> {
    let mut slices = parts.map(IoSliceMut::new);
    let mut rest = &mut slices[..];
    IoSliceMut::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match stream.read_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => IoSliceMut::advance_slices(&mut rest, got),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// No delay for small frames, and a dead node is noticed within [`DEAD_PEER_MS_MAX`].
pub fn tune_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    watch_tcp(stream, Duration::from_millis(DEAD_PEER_MS_MAX))
}

/// A dead node is noticed within about `time`: what is sent is acknowledged by then, and of a connection on which
/// nothing happens probes are.
pub fn watch_tcp(stream: &TcpStream, time: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(time))?;
    // The kernel counts whole seconds.
    let step = Duration::from_secs((time / (1 + PROBES)).as_secs().max(1));
    let probes = socket2::TcpKeepalive::new().with_time(step).with_interval(step);
    socket.set_tcp_keepalive(&probes.with_retries(PROBES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_whole_and_staleness_shows() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (SocketLink::new(a), SocketLink::new(b));
        let header = Header { kind: 5, id: 1, meta_len: 3, bulk_len: 200_000, ..Header::default() };
        let bulk: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        assert!(!b.is_stale());
        std::thread::scope(|scope| {
            scope.spawn(|| a.send(&header, b"abc", &bulk).unwrap());
            let mut got = vec![0; 200_000];
            let received = b.receive(&mut got).unwrap();
            assert_eq!((received.header, received.meta), (header, &b"abc"[..]));
            assert!(got == bulk);
        });
        drop(a);
        assert!(b.is_stale());
    }

    #[test]
    fn probes_are_over_within_the_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let probed = |stream: &TcpStream| {
            let socket = socket2::SockRef::from(stream);
            let (idle, step) =
                (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
            let dead = idle + step * socket.tcp_keepalive_retries().unwrap();
            (socket.keepalive().unwrap(), dead, socket.tcp_user_timeout().unwrap())
        };
        let seconds = Duration::from_secs;
        tune_tcp(&stream).unwrap();
        assert_eq!(probed(&stream), (true, seconds(4), Some(seconds(4))));
        watch_tcp(&stream, seconds(30)).unwrap();
        assert_eq!(probed(&stream), (true, seconds(28), Some(seconds(30))));
    }

    #[test]
    fn unasked_bulk_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (SocketLink::new(a), SocketLink::new(b));
        a.send(&Header { kind: 1, bulk_len: 2, ..Header::default() }, &[], b"xy").unwrap();
        let error = b.receive(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
