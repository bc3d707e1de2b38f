//! `tidepool._native`: the stager's Rust API for the Python package in `python/`, which gives it its types, its
//! documentation and everything else that can be said in Python. Here values are converted and the
//! interpreter's lock is released; nothing is decided.

#![deny(unsafe_code)]

mod buffer;
mod enums;
mod errors;
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
