//! A hybrid parallel file system in virtual time (S1): clients with striping, a network, servers as state machines with
//! two queues, hard disks and solid-state disks, as processes of the event kernel `tidepool-sim`.
//!
//! [`Pfs`] is the model; [`run`] takes it to its end under any scheduler and gives [`Results`]. `docs/decisions/0033-storage-models.md`
//! says why it is as it is. Nothing here does I/O or reads a clock.

#![forbid(unsafe_code)]

mod buffer;
mod cache;
pub mod client;
pub mod device;
pub mod experiment;
mod kept;
mod message;
mod network;
mod node;
pub mod observe;
pub mod outages;
pub mod pool;
mod power;
mod queue;
mod ranks;
mod results;
mod server;
mod span;
pub mod storage;
pub mod striping;
mod system;
pub mod topology;
pub mod tune;
pub mod workload;

pub use buffer::BufferSpec;
pub use cache::{CacheResult, CacheSpec};
pub use kept::load;
pub use message::{Kind, Message, Op, Step};
pub use network::{Link, Network};
pub use node::{NODE_RANKS_MAX, NodeCache, NodeResult, NodesSpec, OnNodes};
pub use power::{Energy, Power, PowerSpec, parse_power};
pub use queue::{DEPTH_MAX, Policy, QueueSpec};
pub use ranks::{run_over, run_over_with};
pub use results::{
    ClassResult, OpResult, PieceResult, Place, Record, RequestResult, Results, ServerResult, Spread, Work,
    run, run_with,
};
pub use server::ServerSpec;
pub use span::{Span, parse_span, parse_time};
pub use system::{Application, Class, Disk, PROCESSES_MAX, Pfs, PfsError, Role, State, Undo};
