//! An end of a copy at another node.
//!
//! ```text
//! stage ── RemoteEnd ── Lines (TCP connections of one session) ══▶ EndServer ── Session ── an end of that node
//! ```
//! [`RemoteEnd`] is an [`End`](crate::End) by messages to an [`EndServer`], so that the engine
//! is the same for all copies. `docs/formats/13-remote-ends.md` specifies the messages.
//!
//! - Both sides prove that they know a secret; nothing else is read from a connection before (`tidepool_transport::remote`).
//! - A **session** is one root opened at the server, with a table of open directories and files.
//!   All connections of a [`RemoteEnd`] share it. It ends with its last connection.
//! - When connections break, the end connects again for a bounded time and asks again. If the
//!   session is gone (the server was restarted), it opens another one, and directories and files
//!   again from the root down, each checked to be the same object as before.
//! - Large data may go over libfabric instead of the connection (`fabric.rs`, decision 15), where both sides have it.
//! - Every frame has checksums, so what is damaged on the way is a broken connection.

mod client;
mod dial;
mod end;
#[cfg(feature = "libfabric")]
mod fabric;
#[cfg(not(feature = "libfabric"))]
#[path = "no_fabric.rs"]
mod fabric;
mod fields;
mod handle;
mod lines;
mod message;
mod serve;
mod server;
mod session;
mod stream;
mod table;

pub use client::{Abandoner, RemoteEnd, RemoteOptions, STREAMS_DEFAULT, STREAMS_MAX};
pub use dial::{Dial, Dialed, FIRST_ID, Reach};
pub use fabric::Fabric;
pub use handle::{RemoteDir, RemoteFile};
pub use message::{Answer, Ask, Place, RootRequest};
pub use server::{CONNECTIONS_MAX, EndServer, Handed, Host, Kept, OF_ONE_MAX, OpenedRoot, Roots, ServedBy};
pub use session::{Greeted, Serving, Session};
pub use table::{DIRS_MAX, FILES_MAX};
