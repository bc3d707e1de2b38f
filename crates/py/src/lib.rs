//! `tidepool._native`: the stager's Rust API and predictors of run times for the Python package in `python/`, which gives
//! them their types, their documentation and everything else that can be said in Python. Here values are converted and the
//! interpreter's lock is released; nothing is decided.

#![deny(unsafe_code)]

mod buffer;
mod enums;
mod errors;
mod jobs;
mod scheduler;
mod specs;
mod stager;
mod values;

use pyo3::prelude::*;
use std::path::PathBuf;
use tidepool_stage_client::Code;

/// Private. Use `tidepool.stage`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::jobs::{Predictor, calibrated, jobs_of_user_min, measures, predictors, read_log};
    #[pymodule_export]
    use crate::scheduler::simulate;
    #[pymodule_export]
    use crate::stager::Stager;
    #[pymodule_export]
    use crate::{codes, control_socket, enums::enums, user_socket};
}

/// Every code: number, name in C, text.
#[pyfunction]
fn codes() -> Vec<(i32, &'static str, &'static str)> {
    Code::ALL.to_vec()
}

#[pyfunction]
fn user_socket() -> PathBuf {
    tidepool_stage_client::user_socket()
}

#[pyfunction]
fn control_socket() -> PathBuf {
    tidepool_stage_client::control_socket()
}
