//! `tidepool-staged`: the stager of one node, after the `urd` daemon of Miranda et al. 2019 (NORNS),
//! Section IV-B, Figure 3.
//!
//! ```text
//!  control socket ─┐                                  ┌─▶ worker ─▶ copy engine (crate stage)
//!  user socket    ─┼─▶ event loop ─▶ stage-state ─────┼─▶ worker
//!  NORNS socket   ─┘       │             │            └─▶ errands: plans, what is left behind
//!                      journal ◀─────────┘
//!  other stagers ──▶ threads: directories (`peers.rs`, served by workers: `visits.rs`), the control socket from afar (`doors.rs`), agents (`agents.rs`)
//! ```
//! One thread, the event loop (`server.rs`), owns the state machine and all connections. In each
//! turn it reads requests, applies them, appends what changed to the journal with one write, and
//! only then sends the replies and starts tasks.

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

mod acl;
mod agents;
mod apart;
mod audit;
mod config;
mod conn;
mod crowd;
mod doors;
mod errands;
mod execute;
mod journal;
mod journals;
mod keys;
mod limits;
mod lines;
mod made;
mod marks;
mod memory;
mod objects;
mod peer;
mod peers;
mod permit;
mod places;
mod pools;
mod serve;
mod server;
mod start;
mod tasks;
mod visits;
mod wake;
mod worker;

pub use agents::AgentOf;
pub use config::{Args, Config, ConfigError};
pub use server::{Daemon, Stopper};
pub use start::StartError;
pub use worker::run as run_worker;
