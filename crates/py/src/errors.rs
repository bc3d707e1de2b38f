//! Errors become the exceptions of `tidepool.errors`, which knows the class of each code.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tidepool_stage_client::{PlaceError, StageError, SubmitManyError};

use crate::values::Value;

pub fn raised(py: Python<'_>, error: StageError) -> PyErr {
    made(py, &error).map_or_else(|failed| failed, PyErr::from_value)
}

pub fn bad_place(error: PlaceError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The exception carries what was done before.
pub fn raised_midway(py: Python<'_>, error: SubmitManyError) -> PyErr {
    let with_done = || -> PyResult<PyErr> {
        let exception = made(py, &error.error)?;
        exception.setattr("submitted", error.done.to_python(py)?)?;
        Ok(PyErr::from_value(exception))
    };
    with_done().unwrap_or_else(|failed| failed)
}

fn made<'py>(py: Python<'py>, error: &StageError) -> PyResult<Bound<'py, PyAny>> {
    let arguments = (error.code().0, errno(error), error.to_string(), error.may_be_done());
    py.import("tidepool.errors")?.getattr("error")?.call1(arguments)
}

fn errno(error: &StageError) -> i32 {
    match error {
        StageError::Connect { source, .. } | StageError::Lost { source, .. } => {
            source.raw_os_error().unwrap_or(0)
        }
        StageError::Refused(refusal) => refusal.errno,
        StageError::Version { .. } | StageError::Protocol { .. } | StageError::TooLong { .. } => 0,
    }
}
