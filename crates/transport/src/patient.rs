//! A TCP stream that tells a peer that takes nothing from a node that is gone.
//!
//! The kernel ends a connection on which what was sent is not acknowledged for [`DEAD_PEER_MS_MAX`], and does so as well where the peer's
//! kernel answers each time that its program has no room. Such a program is stopped, or busy: it is waited for as long as its pool says.

use crate::DEAD_PEER_MS_MAX;
use crate::socket::Stream;
use socket2::SockRef;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long nothing may happen before a look at the peer: well before the kernel gives up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// In the kernel's table of connections: the timer that runs is the one that asks a peer whether it has room.
const ASKS_FOR_ROOM: &str = "04";

#[derive(Debug)]
pub struct Patient {
    stream: TcpStream,
    /// How long a peer that says nothing, or takes nothing, is waited for.
    limit: Duration,
    /// The kernel waits as long as we do.
    has_kernel_wait: bool,
}

impl Patient {
    pub fn new(stream: TcpStream) -> Patient {
        Patient { stream, limit: Duration::MAX, has_kernel_wait: false }
    }

    #[cfg(feature = "libfabric")]
    pub fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    /// Repeats what ends with `WouldBlock` each time that nothing has happened for [`LOOK_EVERY`].
    fn patiently(&mut self, mut step: impl FnMut(&mut TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        let mut began: Option<Instant> = None;
        loop {
            match step(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => {
                    self.tell_kernel(false)?;
                    return done;
                }
            }
            let first = began.is_none();
            // The first wait is over already.
            let since = *began.get_or_insert_with(|| Instant::now() - self.slice());
            if since.elapsed() >= self.limit {
                return Err(ErrorKind::WouldBlock.into());
            }
            // Whether there is room changes only when more is sent.
            if first {
                self.tell_kernel(has_no_room(&self.stream))?;
            }
        }
    }

    fn slice(&self) -> Duration {
        self.limit.min(LOOK_EVERY)
    }

    fn tell_kernel(&mut self, wait: bool) -> io::Result<()> {
        if wait != std::mem::replace(&mut self.has_kernel_wait, wait) {
            let dead = Duration::from_millis(DEAD_PEER_MS_MAX);
            let time = if wait { self.limit.saturating_add(dead) } else { dead };
            SockRef::from(&self.stream).set_tcp_user_timeout(Some(time))?;
        }
        Ok(())
    }
}

/// Whether the peer's kernel lives and its program takes nothing. False where that cannot be told.
fn has_no_room(stream: &TcpStream) -> bool {
    let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    let table = if own.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    let Ok(text) = std::fs::read_to_string(table) else { return false };
    let (own, peer) = (format!(":{:04X}", own.port()), format!(":{:04X}", peer.port()));
    // Number, own address, peer's, state, queues, timer and when it ends, and more.
    text.lines().any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().take(6).collect();
        let [_, from, to, _, _, timer] = words[..] else { return false };
        from.ends_with(&own) && to.ends_with(&peer) && timer.starts_with(ASKS_FOR_ROOM)
    })
}

impl Read for Patient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.read(into))
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.patiently(|stream| stream.read_vectored(into))
    }
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.patiently(|stream| stream.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Patient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Stream for Patient {
    /// Shorter times than [`Stream::wait_at_most`] has said, for a while.
    fn timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))
    }

    fn wait_at_most(&mut self, limit: Duration) -> io::Result<()> {
        self.limit = limit;
        let slice = Some(self.slice());
        self.stream.set_read_timeout(slice)?;
        self.stream.set_write_timeout(slice)
    }
}
