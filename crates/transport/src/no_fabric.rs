//! In place of `fabric.rs` in builds without libfabric.

use crate::Link;
use crate::patient::Patient;
use crate::sealed::Sealed;
use crate::socket::SocketLink;
use std::io;
use std::time::Duration;

/// Whether this build can use a fabric at all.
pub const FABRIC_BUILT: bool = false;

/// Nothing to share.
#[derive(Clone, Debug, Default)]
pub struct Endpoints(());

pub fn open(
    _: SocketLink<Sealed<Patient>>,
    provider: &str,
    _: &Endpoints,
    _: Duration,
) -> io::Result<Box<dyn Link>> {
    let text = format!("this program was built without libfabric, which fabric provider '{provider}' needs");
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}
