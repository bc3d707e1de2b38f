//! What the stager answers, as dictionaries by the names of the fields. No field can be forgotten: each structure is
//! taken apart whole.

use crate::enums::number;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use tidepool_stage_client::{
    DataspaceInfo, DataspaceKind, DataspaceSpec, JobLimit, JobReport, JobSpec, Leftover, Op, PairReport,
    Persisted, Plan, Policy, Refusal, StagerStatus, Submitted, TaskPhase, TaskState, TaskStatus,
};

pub trait Value {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
}

macro_rules! plain {
    ($($type:ty),*) => { $(
        impl Value for $type {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.clone().into_bound_py_any(py)
            }
        }
    )* };
}
plain!(bool, u8, i32, u32, u64, String);

macro_rules! numbered {
    ($($type:ty),*) => { $(
        impl Value for $type {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                number(self).into_bound_py_any(py)
            }
        }
    )* };
}
numbered!(Op, TaskState, TaskPhase, Policy, DataspaceKind);

/// A path: text, with Python's way to keep bytes that are none.
impl Value for Box<[u8]> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        OsStr::from_bytes(self).into_bound_py_any(py)
    }
}

impl<T: Value> Value for Vec<T> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let items: Vec<_> = self.iter().map(|item| item.to_python(py)).collect::<PyResult<_>>()?;
        Ok(PyList::new(py, items)?.into_any())
    }
}

impl<T: Value> Value for Option<T> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.as_ref().map_or_else(|| Ok(py.None().into_bound(py)), |value| value.to_python(py))
    }
}

impl<A: Value, B: Value> Value for (A, B) {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (self.0.to_python(py)?, self.1.to_python(py)?).into_bound_py_any(py)
    }
}

macro_rules! structures {
    ($($type:ident { $($field:ident),* $(,)? })*) => { $(
        impl Value for $type {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let $type { $($field),* } = self;
                let dict = PyDict::new(py);
                $(dict.set_item(stringify!($field), $field.to_python(py)?)?;)*
                Ok(dict.into_any())
            }
        }
    )* };
}

structures! {
    TaskStatus {
        id, op, state, phase, refusal, job, uid, src, dst, bytes_done, bytes_total, files_done, files_total,
        total_known, rate, eta_ms, age_ms, percent,
    }
    StagerStatus { node, pending, running, ended, eta_ms, bytes_done, rate, paused, policy, workers, counters }
    DataspaceSpec { name, kind, mount, tracked, capacity, streams_max, bandwidth }
    DataspaceInfo { dataspace, quota, used }
    JobLimit { dataspace, quota }
    JobSpec { id, hosts, limits, bandwidth }
    JobReport { job, tasks, failed, bytes, files, busy_ms, pairs }
    PairReport { from, to, bytes, files, busy_ms }
    Leftover { dataspace, path, directory, size, uid }
    Persisted { dataspace, path, owner, shared, expires }
    Plan { files, dirs, bytes, free, quota_left, estimate_ms, lead_ms, problems }
    Submitted { ids, refused }
}

impl Value for Refusal {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Refusal { code, errno, detail: _ } = self;
        let dict = PyDict::new(py);
        dict.set_item("code", code.0)?;
        dict.set_item("errno", errno)?;
        // Never empty: without a detail the code's text.
        dict.set_item("detail", self.to_string())?;
        Ok(dict.into_any())
    }
}
