//! The pool daemon: sockets and threads around the state machine and the stores.
//!
//! ```text
//! epoll ──▶ worker threads ──▶ conn.rs (frames, handshake) ─┬▶ serve.rs ──▶ fs-state + metadata store
//! fabric ─▶ worker threads ──▶ fabric.rs (libfabric) ───────┤
//! bell ───▶ worker threads ──▶ lanes.rs (shared memory) ────┘      └──────▶ chunk store
//! background.rs: drops chunks of removed objects here and on peers, time-outs, compaction
//! ```

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

mod background;
mod config;
mod conn;
mod copying;
mod counters;
#[cfg(feature = "libfabric")]
mod fabric;
#[cfg(not(feature = "libfabric"))]
#[path = "no_fabric.rs"]
mod fabric;
mod flush_config;
mod lanes;
mod loans;
mod meters;
mod quota;
mod recalls;
mod serve;
mod server;
mod storedir;
mod tiering;

use std::time::Duration;

pub use config::{Backend, CORES_MAX, Config, ConfigError, Ready, TierConfig, default_workers, workers_for};
pub use flush_config::{FlushConfig, FlushWhen};
pub use server::{Daemon, StartError};
pub use storedir::{IdleStore, StillStore, StoreDirError, check_stores, is_store};
pub use tiering::{job_of, loads};

/// Connections one daemon serves; further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 1 << 16;
/// Largest frame body before a peer has proved itself.
pub const HANDSHAKE_BODY_MAX: usize = 4096;
/// Connections whose peers have not proved themselves; the oldest ends when another one comes.
pub const UNPROVEN_MAX: usize = 128;
/// How long a peer may take to prove itself.
pub const HANDSHAKE_MS_MAX: u64 = 5_000;
/// How long a daemon waits for a peer that says nothing. Short, for whoever asked the daemon waits, too, and can ask the peer
/// himself; what is to be dropped at a peer is dropped later.
pub const PEER_ANSWER_MAX: Duration = Duration::from_millis(500);
/// Frames one connection gets served before others have their turn.
pub const FRAMES_PER_TURN: usize = 64;
