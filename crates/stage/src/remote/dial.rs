//! How a [`RemoteEnd`](super::RemoteEnd) gets its connections: by the secret, or, where that is not for its process to have, by
//! somebody who proves them for it.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tidepool_transport::remote::GreetError;
use tidepool_transport::{Secret, Stream};

/// Makes connections to one node, on which it has proved itself and been proved to already.
pub trait Dial: Send + Sync {
    /// A local socket that leads there.
    fn dial(&self) -> Result<UnixStream, GreetError>;
}

/// What proves a connection.
#[derive(Clone)]
pub enum Reach {
    Secret(Secret),
    By(Arc<dyn Dial>),
}

impl From<Secret> for Reach {
    fn from(secret: Secret) -> Reach {
        Reach::Secret(secret)
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::Secret(_) => "Secret(..)",
            Reach::By(_) => "By(..)",
        })
    }
}

/// A connection's stream.
#[derive(Debug)]
pub(super) enum Wire {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Wire {
    pub fn try_clone(&self) -> io::Result<Wire> {
        Ok(match self {
            Wire::Tcp(stream) => Wire::Tcp(stream.try_clone()?),
            Wire::Local(stream) => Wire::Local(stream.try_clone()?),
        })
    }

    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Wire::Local(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    pub fn wait_at_most(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
            Wire::Local(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.read(into),
            Wire::Local(stream) => stream.read(into),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.write(bytes),
            Wire::Local(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.write_vectored(parts),
            Wire::Local(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Wire::Tcp(stream) => stream.as_fd(),
            Wire::Local(stream) => stream.as_fd(),
        }
    }
}

impl Stream for Wire {
    fn timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Wire::Local(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }
}
