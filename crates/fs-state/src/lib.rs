//! The metadata state machine of one pool daemon.
//!
//! Pure: a request and the time come in, a reply, the mutations to log and the effects to
//! carry out come out. `docs/consistency.md` says what it promises.

#![forbid(unsafe_code)]

mod tables;

pub use tables::{MetaStore, MetaView};
