//! Root's process does no user's work: each user's tasks are done by a **worker**, a process of its own that has become him for
//! good.
//!
//! ```text
//!  event loop ──▶ thread of a worker: starts it, opens roots, sends ══pipe══▶ worker (child.rs, in sandbox.rs)
//!      ▲                                                                            │
//!      └──────────────────────────── pipe (supervise.rs) ◀──────────────────────────┘
//! ```
//! A worker has no rights but its user's, so whatever its user does to it, or to what it works on, costs that user his tasks and
//! nobody else anything. What it says is checked like what a stranger says. Start with `message.rs`; the specification is
//! `docs/formats/37-worker-pipe.md`.

mod child;
mod message;
mod pipe;
mod reading;
mod sandbox;
mod supervise;
mod visits;

pub use child::run;
pub use message::{FromWorker, Made, NoLine, Opening, Order, Refused, ToWorker};
pub use supervise::{About, CALLS_MAX, Key, Looks, Template, Workers};
