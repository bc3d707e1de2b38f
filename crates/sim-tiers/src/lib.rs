//! Applications on storage tiers in virtual time (INVENTORY K12 to K15, K18 to K20), on the event kernel of `crates/sim`.
//!
//! ```text
//!                      news of phases, late by `news_ns`
//!                ┌────────────────────────────────────────┐
//!  application 0 ┴─┐                                      └─▶ every other application
//!   phases          │ chunks, through its nodes' links
//!   scheduler ──────┼──────────────▶ burst buffer server 0..   (curve, capacity, shares)
//!   flusher         └──────────────▶ PFS server 0..
//! ```
//! An application is a process of the kernel, and so is each server. With the application live its scheduler and its flusher, as
//! in a pool's daemon: they know their own application at once, and others by what these told. The verdicts are those of
//! `tidepool_iosched::decide`, the very function that the daemons call.
//!
//! What the model claims, and nothing more: `docs/decisions/0034-simulated-tiers.md`. Files: `docs/formats/29-tier-simulation.md`.

#![forbid(unsafe_code)]

mod app;
mod audit;
mod known;
mod message;
mod model;
mod plan;
mod ranks;
pub mod read;
mod report;
mod run;
mod server;

pub use audit::{AuditError, audit};
pub use model::Tiers;
pub use plan::{
    APPS_MAX, App, CHUNK_MIN, CHUNKS_MAX, FLUSH_STREAMS_MAX, IN_FLIGHT_MAX, LocalStore, NODES_MAX,
    PHASES_MAX, PROCESSES_MAX, PlanError, SERVERS_MAX, Servers, Setup, UNDER_WAY_MAX,
};
pub use ranks::run_over;
pub use report::{AppReport, Report, Stretch, TierReport};
pub use run::{RunError, run, simulation, stretches, stretches_by};
