//! In place of `fabric.rs` in builds without libfabric.

use crate::Link;
use crate::sealed::Sealed;
use crate::socket::SocketLink;
use std::io;
use std::net::TcpStream;

/// Whether this build can use a fabric at all.
pub const FABRIC_BUILT: bool = false;

/// Nothing to share.
#[derive(Clone, Debug, Default)]
pub struct Endpoints(());

pub fn open(_: SocketLink<Sealed<TcpStream>>, provider: &str, _: &Endpoints) -> io::Result<Box<dyn Link>> {
    let text = format!("this program was built without libfabric, which fabric provider '{provider}' needs");
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}
