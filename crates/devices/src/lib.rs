//! Storage devices as state machines: what a request costs that comes at a time (INVENTORY L12, L13), and how a model is
//! fitted to what was measured (L21). Nothing here does I/O, reads a clock or knows the event kernel; a device is small and
//! can be cloned, so that a simulator can go back to what it was.
//!
//! `docs/decisions/0032-device-models.md` says why the models are as they are.

#![forbid(unsafe_code)]

pub mod disk;
mod request;
pub mod ssd;
pub mod trace;

pub use request::{Direction, Request, SECTOR_BYTES, microseconds};
