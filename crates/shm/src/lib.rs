//! Memory that a daemon shares with the clients of its node.
//!
//! ```text
//! client                                   daemon
//!   lane: slot FREE ─▶ REQUEST ──────────▶ BUSY ─▶ REPLY ─▶ (client) FREE
//!   bell: the lane's bit, a wake-up when no worker is awake
//! ```
//! A [`Board`] tells clients whether what they remember still holds, a [`Loan`] who may write to an object's files.
//! A [`Window`] is shared with nobody but a later process: the end of a log.
//!
//! A [`Segment`] is a sealed memfd: it can be neither cut nor grown, so that no peer can make
//! the other one fault. A lane belongs to one connection; the bell to one daemon and all its clients on
//! the node. Layout: `docs/formats/07-shared-memory.md`.
//!
//! **Trust.** Both sides have proved the pool's secret and run as one user, but neither may be able
//! to crash the other: the daemon copies a request out of the lane before it reads it, checks every
//! length, and never waits for a client. A client that changes data while a daemon stores it harms
//! that data only.

#![deny(unsafe_code)]

mod bell;
mod board;
mod lane;
mod loan;
#[allow(unsafe_code)]
mod segment;
mod spin;
mod window;

pub use bell::{Bell, LANES_MAX};
pub use board::{Board, FACT_WORDS, Facts, Found, Listed, NameTag, part_key};
pub use lane::{
    AREA_BYTES, ClientLane, Fields, FieldsTooLong, META_BYTES, Posted, SLOTS, ServerLane, Turn, Waited,
};
pub use loan::{BORROWERS_MAX, GRAIN, Loan, Recalled};
pub use segment::Segment;
pub use spin::Spin;
pub use window::{WINDOW_ALIGN, Window};
