//! The published wire format of NORNS 0.9.0 between a client library and its daemon, and the
//! stager's own requests that it stands for: `docs/formats/14-norns.md`.
//!
//! A server reads [`LENGTH_LEN`] bytes, [`body_len`] of them, and the body; turns it into a request with
//! [`Request::read`] and [`Request::to_native`]; and writes [`Response::frame`] of [`Response::answer`]
//! or [`Response::refuse`]. Nothing here does I/O or keeps state.

#![forbid(unsafe_code)]

mod convert;
mod frame;
mod message;
pub mod numbers;
mod paths;

pub use convert::{eta_seconds, kind_of_backend, operation, state_number, task_error};
pub use frame::{BODY_MAX, LENGTH_LEN, body_len};
pub use message::{
    Backend, CtlCommand, GlobalStats, Job, Kind, Limit, MemoryRegion, Namespace, PosixPath, Process, Request,
    Resource, Response, ResponseKind, Task, TaskStats,
};
pub use paths::inside;
