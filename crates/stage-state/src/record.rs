//! What a stager writes down: `docs/formats/12-stager-journal.md`.

use crate::Millis;
use crate::learn::Model;
use crate::task::{Ended, Identity, Origin};
use std::fmt;
use tidepool_wire::stager::{
    DataspaceSpec, JobReport, JobSpec, Owner, Persisted, Policy, ProcessSpec, TaskSpec,
};
use tidepool_wire::{DecodeError, Field, Reader, field_struct};

field_struct!(Identity { uid, gid, job });
field_struct!(Origin { pid, started });
field_struct!(Ended { state, refusal, bytes, files, moved, busy_ms });

/// Why a journal cannot be replayed.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplayError {
    Decode(DecodeError),
    /// A record speaks of a task that no earlier one has named.
    UnknownTask(u32),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Decode(error) => error.fmt(f),
            ReplayError::UnknownTask(id) => write!(f, "a record names task {id}, which was never submitted"),
        }
    }
}

impl std::error::Error for ReplayError {}

macro_rules! records {
    ($($(#[$doc:meta])* $number:literal $variant:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        /// One fact. Their order is the order in which things happened.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Record { $($(#[$doc])* $variant { $($field: $type),* }),* }

        impl Field for Record {
            fn put(&self, out: &mut Vec<u8>) {
                match self { $(Record::$variant { $($field),* } => {
                    let number: u8 = $number;
                    number.put(out);
                    $($field.put(out);)*
                }),* }
            }
            fn get(from: &mut Reader<'_>) -> Result<Record, DecodeError> {
                match u8::get(from)? {
                    $($number => Ok(Record::$variant { $($field: Field::get(from)?),* }),)*
                    _ => Err(DecodeError::Invalid("record kind")),
                }
            }
        }

        impl Record {
            /// Every (number, name), for the specification's test.
            pub const KINDS: &'static [(u8, &'static str)] = &[$(($number, stringify!($variant))),*];
        }
    };
}

records! {
    1 Submitted { id: u32, at: Millis, identity: Identity, origin: Origin, spec: TaskSpec }
    /// A task that takes something away has begun: its source may be gone already when it runs again.
    2 Begun { id: u32 }
    4 Ended { id: u32, at: Millis, ended: Ended }
    /// A failed or cancelled task is to run again.
    5 Again { id: u32 }
    6 Forgotten { id: u32 }
    /// A running task was told to end: it does not run again after a restart.
    7 Cancelling { id: u32 }
    /// What a job's copy is about to make. Of a removal that cleans up after one: what that had made.
    8 Makes { id: u32, place: Box<[u8]>, top: Box<[u8]>, of: u32 }
    /// What a task has put at a place of a dataspace: one of another stager, a clone; and, in snapshots, all that is known.
    9 Placed { dataspace: String, place: Box<[u8]>, job: u32, bytes: u64 }
    10 Dataspace { spec: DataspaceSpec }
    11 DataspaceGone { name: String }
    12 Job { spec: JobSpec }
    13 JobGone { id: u32 }
    14 Process { job: u32, process: ProcessSpec, started: u64 }
    15 ProcessGone { job: u32, pid: i32 }
    /// What ended tasks have put into a dataspace; job 0 for everybody's.
    16 Used { job: u32, dataspace: String, bytes: u64 }
    /// In snapshots.
    17 Report { report: JobReport }
    18 Persisted { location: Persisted }
    19 PersistedGone { dataspace: String, path: Box<[u8]> }
    20 Settings { policy: Policy, paused: bool }
    /// In snapshots.
    21 Learned { from: String, to: String, model: Model }
    /// The last number given to a task. In snapshots.
    22 LastTask { id: u32 }
    /// What is known to lie in a dataspace is what follows. In snapshots.
    23 Unplaced { dataspace: String }
    /// As Submitted: a task that is not pending before it is released.
    24 Held { id: u32, at: Millis, identity: Identity, origin: Origin, spec: TaskSpec }
    /// A held task is pending from here on.
    25 Released { id: u32 }
    /// The task makes who may read its location what the location says: at its top and, with `user`, for that user in all of it.
    26 Permit { id: u32, user: Option<u32> }
    /// So many failed tasks of a registered job have been forgotten, in all.
    27 FailuresForgotten { job: u32, count: u64 }
    /// Whose a registered job is.
    28 JobOwner { job: u32, owner: Owner }
    /// A task that ran has stopped for others, and waits again: what it has moved in that run.
    29 GaveWay { id: u32, moved: u64, files: u64, busy_ms: u64 }
    /// Of the clock that kept locations age by.
    30 Clock { at: Millis }
}

/// Appends a [`Record::Submitted`], or a [`Record::Held`], without taking the specification.
pub(crate) fn put_submitted(
    out: &mut Vec<u8>,
    (id, at): (u32, Millis),
    (identity, origin): (Identity, Origin),
    spec: &TaskSpec,
    held: bool,
) {
    let number: u8 = if held { 24 } else { 1 };
    number.put(out);
    id.put(out);
    at.put(out);
    identity.put(out);
    origin.put(out);
    spec.put(out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_wire::stager::{Op, Resource};

    fn submitted() -> Record {
        let spec = TaskSpec::new(Op::Remove, Resource::local("n://", b"a"), None);
        let identity = Identity { uid: 1, gid: 2, job: 3 };
        Record::Submitted { id: 4, at: 5, identity, origin: Origin { pid: 6, started: 7 }, spec }
    }

    #[test]
    fn the_bytes_of_a_submission_are_pinned() {
        let mut out = Vec::new();
        submitted().put(&mut out);
        let bytes: &[u8] =
            b"\x01\x04\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\x03\0\0\0\x06\0\0\0\x07\0\0\0\0\0\0\0\
            \x03\x02\x01\x04\0\0\0n://\0\x01\0\0\0a\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(out, bytes);
        let mut by_parts = Vec::new();
        let Record::Submitted { id, at, identity, origin, spec } = submitted() else { unreachable!() };
        put_submitted(&mut by_parts, (id, at), (identity, origin), &spec, false);
        assert_eq!(by_parts, out);
        by_parts.clear();
        put_submitted(&mut by_parts, (id, at), (identity, origin), &spec, true);
        let held = Record::Held { id, at, identity, origin, spec };
        assert_eq!(by_parts, [b"\x18", &out[1..]].concat());
        assert_eq!(Record::get(&mut Reader::new(&by_parts)), Ok(held));
        assert_eq!(Record::get(&mut Reader::new(&out)), Ok(submitted()));
    }

    #[test]
    fn the_bytes_of_what_is_made_are_pinned() {
        let made = Record::Makes { id: 4, place: (*b"in/x").into(), top: (*b"in").into(), of: 5 };
        let mut out = Vec::new();
        made.put(&mut out);
        assert_eq!(out, b"\x08\x04\0\0\0\x04\0\0\0in/x\x02\0\0\0in\x05\0\0\0");
        assert_eq!(Record::get(&mut Reader::new(&out)), Ok(made));
    }

    #[test]
    fn the_bytes_of_what_was_put_somewhere_are_pinned() {
        let placed = Record::Placed { dataspace: "n://".into(), place: (*b"in").into(), job: 5, bytes: 6 };
        let mut out = Vec::new();
        placed.put(&mut out);
        Record::Unplaced { dataspace: "n".into() }.put(&mut out);
        assert_eq!(out, b"\x09\x04\0\0\0n://\x02\0\0\0in\x05\0\0\0\x06\0\0\0\0\0\0\0\x17\x01\0\0\0n");
        assert_eq!(Record::get(&mut Reader::new(&out)), Ok(placed));
    }

    #[test]
    fn the_bytes_of_a_release_are_pinned() {
        let mut out = Vec::new();
        Record::Released { id: 4 }.put(&mut out);
        assert_eq!(out, b"\x19\x04\0\0\0");
    }

    #[test]
    fn the_bytes_of_a_permit_are_pinned() {
        let mut out = Vec::new();
        Record::Permit { id: 4, user: Some(20002) }.put(&mut out);
        Record::Permit { id: 5, user: None }.put(&mut out);
        assert_eq!(out, b"\x1a\x04\0\0\0\x01\x22\x4e\0\0\x1a\x05\0\0\0\0");
    }

    #[test]
    fn the_bytes_of_forgotten_failures_are_pinned() {
        let mut out = Vec::new();
        Record::FailuresForgotten { job: 5, count: 2 }.put(&mut out);
        assert_eq!(out, b"\x1b\x05\0\0\0\x02\0\0\0\0\0\0\0");
    }

    #[test]
    fn the_bytes_of_an_owner_are_pinned() {
        let mut out = Vec::new();
        let owner = Record::JobOwner { job: 5, owner: Owner { uid: 20_002, gid: 6 } };
        owner.put(&mut out);
        assert_eq!(out, b"\x1c\x05\0\0\0\x22\x4e\0\0\x06\0\0\0");
        assert_eq!(Record::get(&mut Reader::new(&out)), Ok(owner));
    }

    #[test]
    fn the_bytes_of_giving_way_are_pinned() {
        let mut out = Vec::new();
        let gave_way = Record::GaveWay { id: 4, moved: 400, files: 3, busy_ms: 10 };
        gave_way.put(&mut out);
        assert_eq!(out, b"\x1d\x04\0\0\0\x90\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0");
        assert_eq!(Record::get(&mut Reader::new(&out)), Ok(gave_way));
    }

    #[test]
    fn numbers_of_records_are_pinned() {
        let numbers: Vec<u8> = Record::KINDS.iter().map(|(number, _)| *number).collect();
        assert_eq!(
            numbers,
            [
                1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
                27, 28, 29, 30
            ]
        );
    }
}
