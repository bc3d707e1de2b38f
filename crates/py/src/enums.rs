//! Enumerations are numbers between here and Python: those of `docs/formats/11-stager.md`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Debug;
use tidepool_stage_client::{Command, DataspaceKind, Op, PersistOp, Policy, TaskPhase, TaskState, Verify};
use tidepool_wire::{Field, Reader};

pub fn number(value: &impl Field) -> u8 {
    let mut out = Vec::with_capacity(1);
    value.put(&mut out);
    out[0]
}

pub fn known<T: Field>(number: u8) -> PyResult<T> {
    read(number).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{number} is no {}",
            std::any::type_name::<T>().rsplit(':').next().unwrap_or_default()
        ))
    })
}

fn read<T: Field>(number: u8) -> Option<T> {
    T::get(&mut Reader::new(&[number])).ok()
}

/// Each enumeration's members, for the test that Python has the same.
#[pyfunction]
pub fn enums() -> BTreeMap<&'static str, BTreeMap<String, u8>> {
    BTreeMap::from([
        ("Op", members::<Op>()),
        ("TaskState", members::<TaskState>()),
        ("TaskPhase", members::<TaskPhase>()),
        ("Verify", members::<Verify>()),
        ("PersistOp", members::<PersistOp>()),
        ("Command", members::<Command>()),
        ("Policy", members::<Policy>()),
        ("DataspaceKind", members::<DataspaceKind>()),
    ])
}

fn members<T: Field + Debug>() -> BTreeMap<String, u8> {
    (0..=u8::MAX)
        .filter_map(|number| read::<T>(number).map(|member| (format!("{member:?}"), number)))
        .collect()
}
