//! One file for each strategy; [`crate::registry`] lists them.

pub mod baseline;
pub mod fair;
pub mod fcfs;
pub mod hp;
pub mod ia;
pub mod model;
pub mod set10;
