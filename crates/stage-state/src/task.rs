//! One task.

use crate::Millis;
use crate::arbiter::Queued;
use crate::turn::Turn;
use tidepool_types::show_bytes;
use tidepool_wire::field_struct;
use tidepool_wire::stager::{Access, Code, Refusal, Resource, TaskPhase, TaskSpec, TaskState, TaskStatus};

/// In whose name a task runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// 0 for none.
    pub job: u32,
}

impl Identity {
    /// Stands for the user's own group, as the name service knows it: for what is done in the name of a user who
    /// does not ask for it just then. No group has this number.
    pub const OWN_GROUP: u32 = u32::MAX;

    /// Root, or somebody with root's group.
    pub fn is_root(self) -> bool {
        self.uid == 0 || self.gid == 0
    }
}

/// The process that submitted a task, for the sake of its memory: its number and when it started,
/// because numbers are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    pub pid: i32,
    pub started: u64,
}

/// How a task ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    pub state: TaskState,
    /// `Code::SUCCESS` when it finished.
    pub refusal: Refusal,
    pub bytes: u64,
    pub files: u64,
    /// Of the bytes, those that were put there now; the others were there already.
    pub moved: u64,
    pub busy_ms: u64,
}

impl Ended {
    pub fn well(bytes: u64, files: u64, moved: u64, busy_ms: u64) -> Ended {
        let refusal = Refusal::new(Code::SUCCESS, "");
        Ended { state: TaskState::Finished, refusal, bytes, files, moved, busy_ms }
    }

    pub fn badly(refusal: Refusal) -> Ended {
        Ended { state: TaskState::Failed, refusal, bytes: 0, files: 0, moved: 0, busy_ms: 0 }
    }

    pub fn cancelled() -> Ended {
        let refusal = Refusal::new(Code::CANCELLED, "");
        Ended { state: TaskState::Cancelled, refusal, bytes: 0, files: 0, moved: 0, busy_ms: 0 }
    }
}

/// What a copy makes at its destination, so that it can be taken back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// Path of what is copied there, without empty and `.` components.
    pub place: Box<[u8]>,
    /// What of `place` was missing before, from its start on: `in` of `in/mesh` when there was not even `in`.
    /// Empty when all of it was there.
    pub top: Box<[u8]>,
    /// Of a removal: the copy it cleans up after. 0 for a copy itself.
    pub of: u32,
    /// Of a removal that begins: paths that stay with all below them, whoever owns them. Not in the journal.
    pub spared: Vec<Box<[u8]>>,
}

/// What a worker is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    pub id: u32,
    pub spec: TaskSpec,
    pub identity: Identity,
    pub origin: Origin,
    /// It was running when the daemon died, so what it takes away may be gone already.
    pub again: bool,
    /// Limits on what it puts at its destination.
    pub quotas: Vec<Quota>,
    /// As it was noted.
    pub made: Option<Made>,
    /// For [`Op::Permit`](tidepool_wire::stager::Op::Permit); none when there is nothing to be done any more.
    pub permit: Option<Permit>,
}

/// Who may read a kept location, as a task finds it when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permit {
    /// All that the location is shared with.
    pub readers: Vec<u32>,
    /// Who has become one of them, or is none any more; none when only the top is to be made as it should be.
    pub user: Option<u32>,
}

/// A limit on the bytes that lie somewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quota {
    pub dataspace: String,
    /// Whose tasks count; 0 for everybody's.
    pub job: u32,
    pub limit: u64,
    /// What ended tasks have put there.
    pub used: u64,
}

/// What a running task has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    pub phase: TaskPhase,
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub files_done: u64,
    pub files_total: u64,
    pub total_known: bool,
    pub rate: u64,
    pub eta_ms: Option<u64>,
    /// Share of the whole, when that is known.
    pub percent: Option<u8>,
}

// What goes to the processes that do tasks, and comes back: docs/formats/37-worker-pipe.md.
field_struct!(Made { place, top, of, spared });
field_struct!(Permit { readers, user });
field_struct!(Quota { dataspace, job, limit, used });
field_struct!(Start { id, spec, identity, origin, again, quotas, made, permit });
field_struct!(Live {
    phase,
    bytes_done,
    bytes_total,
    files_done,
    files_total,
    total_known,
    rate,
    eta_ms,
    percent
});

/// A task as the state keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub spec: TaskSpec,
    pub identity: Identity,
    pub origin: Origin,
    pub submitted: Millis,
    pub queued: Queued,
    pub again: bool,
    /// It waits for the release of its job, or did when it was cancelled.
    pub held: bool,
    pub running: bool,
    pub turn: Turn,
    /// Somebody wants it to stop.
    pub cancelling: bool,
    pub made: Option<Box<Made>>,
    /// Whose right to read a permit is about.
    pub permit_for: Option<u32>,
    pub ended: Option<Box<(Millis, Ended)>>,
    pub ended_seq: u64,
}

impl Task {
    pub fn state(&self) -> TaskState {
        match (&self.ended, self.running) {
            (Some(ended), _) => ended.1.state,
            (None, true) => TaskState::Running,
            (None, false) => TaskState::Pending,
        }
    }

    pub fn status(&self, id: u32, now: Millis, live: Option<Live>) -> TaskStatus {
        let ended = self.ended.as_deref();
        let live = live.unwrap_or_else(|| self.at_rest());
        TaskStatus {
            id,
            op: self.spec.op,
            state: self.state(),
            phase: live.phase,
            refusal: ended.map_or_else(|| Refusal::new(Code::SUCCESS, ""), |e| e.1.refusal.clone()),
            job: self.identity.job,
            uid: self.identity.uid,
            src: show_resource(&self.spec.src),
            dst: self.spec.dst.as_ref().map(show_resource).unwrap_or_default(),
            bytes_done: live.bytes_done,
            bytes_total: live.bytes_total,
            files_done: live.files_done,
            files_total: live.files_total,
            total_known: live.total_known,
            rate: live.rate,
            eta_ms: live.eta_ms,
            age_ms: ended.map_or(now, |e| e.0).saturating_sub(self.submitted),
            percent: live.percent,
        }
    }

    /// What is shown of a task that no worker is at.
    fn at_rest(&self) -> Live {
        let done = self.ended.as_deref().map(|e| &e.1);
        let phase = match (done, self.held) {
            (Some(_), _) => TaskPhase::Ended,
            (None, true) => TaskPhase::Held,
            (None, false) => TaskPhase::Queued,
        };
        let (bytes, files) = done.map_or((0, 0), |e| (e.bytes, e.files));
        let whole = done.is_some_and(|e| e.state == TaskState::Finished);
        Live {
            phase,
            bytes_done: bytes,
            bytes_total: bytes.max(if whole { 0 } else { self.spec.size_hint }),
            files_done: files,
            files_total: files,
            total_known: whole,
            rate: 0,
            eta_ms: whole.then_some(0),
            percent: None,
        }
    }
}

/// Names of the dataspaces of both ends, for limits and for learning; empty for memory and where
/// there is no end, and not those of other nodes.
pub(crate) fn space_of(resource: Option<&Resource>) -> Option<&str> {
    match resource? {
        Resource::Path { dataspace, access, .. } if *access != Access::Remote => Some(dataspace),
        _ => None,
    }
}

/// Path of what a task has put at its destination, which is a path. As it ends in `/` or not, the source's last name comes after
/// it; but what has gone into the root itself is one file, or the content of a tree.
pub fn put_at(spec: &TaskSpec, files: u64) -> Vec<u8> {
    let Some(Resource::Path { path, .. }) = &spec.dst else { return Vec::new() };
    let is_root = path.iter().all(|b| *b == b'/');
    if !is_root && !path.ends_with(b"/") {
        return path.to_vec();
    }
    let name = match &spec.src {
        Resource::Path { path, .. } => path.split(|b| *b == b'/').rfind(|name| !name.is_empty()),
        Resource::Memory { .. } => None,
    };
    match name {
        Some(name) if !is_root || files == 1 => [path, name].concat(),
        _ => path.to_vec(),
    }
}

/// What transfers are learned by: dataspace and node, `memory`, or nothing for a removal.
pub(crate) fn place_of(resource: Option<&Resource>) -> String {
    match resource {
        None => String::new(),
        Some(Resource::Memory { .. }) => "memory".into(),
        Some(Resource::Path { dataspace, host, .. }) => match host {
            Some(host) => format!("{host}/{dataspace}"),
            None => dataspace.clone(),
        },
    }
}

/// A resource for people, as commands read it: `n1:42000/nvme0://in`.
pub fn show_resource(resource: &Resource) -> String {
    match resource {
        Resource::Memory { address, size } => format!("memory {address:#x}, {size} bytes"),
        Resource::Path { dataspace, host, path, .. } => {
            let host = host.as_ref().map(|host| format!("{host}/")).unwrap_or_default();
            format!("{host}{dataspace}{}", show_bytes(path))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_shown_as_commands_read_them() {
        let remote = Resource::remote("b://", "n1:42000", b"in\n");
        assert_eq!(show_resource(&remote), "n1:42000/b://in\\n");
        assert_eq!(show_resource(&Resource::local("b://", b"in")), "b://in");
        assert_eq!(place_of(Some(&remote)), "n1:42000/b://");
    }
}
