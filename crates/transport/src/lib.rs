//! Connections between clients and daemons.
//!
//! [`Link`] is what a client needs of a connection. `socket.rs` provides it over stream sockets,
//! `local.rs` over a lane in shared memory beside a Unix socket, `fabric.rs` over libfabric beside a TCP socket.
//! [`remote`] is for connections between stagers, and to them.

#![forbid(unsafe_code)]

mod auth;
mod choice;
mod cipher;
mod connect;
#[cfg(feature = "libfabric")]
mod fabric;
#[cfg(not(feature = "libfabric"))]
#[path = "no_fabric.rs"]
mod fabric;
mod local;
mod patient;
mod pool_greeting;
pub mod remote;
mod sealed;
mod socket;

pub use auth::{ClientAuth, Secret, ServerAuth, digits, hex, random_bytes};
pub use choice::{TRANSPORT_VARIABLE, Transport, UnknownTransport};
pub use connect::{ConnectError, Connected, Identity, LocalNode, connect};
pub use fabric::FABRIC_BUILT;
pub use local::LocalLink;
pub use pool_greeting::{Asked, Greeted, Terms};
pub use sealed::{Half, Sealed, Seals};
pub use socket::{Received, SocketLink, Stream, tune_tcp, watch_tcp, write_all_slices};

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tidepool_shm::Board;
use tidepool_wire::frame::Header;
use tidepool_wire::message::{Reply, Request};

/// How long a dead node may go unnoticed: TCP gives up unacknowledged data after this.
pub const DEAD_PEER_MS_MAX: u64 = 4_000;
/// The same of a connection on which nothing may happen for long, and that is one of many: few probes are enough.
pub const WATCH_MS_MAX: u64 = 30_000;
/// How long connecting to a node may take, and, between stagers, the handshake.
pub const CONNECT_MS_MAX: u64 = 4_000;
/// How long a client waits for the answer of a daemon that says nothing, in milliseconds, unless its pool says otherwise. A slow
/// disk is not a dead node, so this is generous; a daemon that died is noticed at once by its closed socket.
pub const ANSWER_MS_DEFAULT: u64 = 120_000;
/// What a pool may say: less is what disks take that have much to do, more is as good as for ever.
pub const ANSWER_MS: RangeInclusive<u64> = 1_000..=3_600_000;

/// A connection that carries frames, as a client sees it.
pub trait Link: Send {
    /// Sends one frame; the header's lengths are those of `meta` and `bulk`.
    fn send(&mut self, header: &Header, meta: &[u8], bulk: &[u8]) -> io::Result<()>;

    /// Receives one frame. Bulk bytes go to the start of `bulk`; a frame with more bulk
    /// than fits is an error. `NotConnected` means that the peer is gone and has not begun with
    /// the request; after other errors it may have carried it out.
    fn receive(&mut self, bulk: &mut [u8]) -> io::Result<Received<'_>>;

    /// Sends a request whose reply brings descriptors, and receives it. `None` where none can be passed.
    fn ask_for_descriptors(&mut self, request: &Request) -> io::Result<Option<(Reply, Vec<OwnedFd>)>>;

    /// Opens the lane at once, where there can be one: whoever asks for files has much to do.
    fn share_memory(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The daemon's board, where one is shared.
    fn board(&self) -> Option<&Arc<Board>> {
        None
    }

    /// True when the peer has closed the connection or data nobody asked for is there.
    fn is_stale(&self) -> bool;

    /// The socket: readable when the peer has closed it, or when what does not come by a lane may be there.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Sets how long `send` and `receive` wait for a peer that says nothing; then they fail with `WouldBlock`.
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()>;
}
