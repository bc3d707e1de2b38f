//! What supervisor and worker say to each other (`docs/formats/37-worker-pipe.md`).

use tidepool_stage_state::{Ended, Identity, Live, Made, Origin, Permit, Quota, Start};
use tidepool_wire::field_struct;
use tidepool_wire::stager::{DataspaceSpec, Leftover, Refusal, TaskPhase, TaskSpec, TaskState};

/// Both are one program, so another version is a mistake in its installation.
pub const VERSION: u16 = 1;

tidepool_wire::messages! {
    /// What the supervisor tells a worker.
    ToWorker {
        /// The first message: whom to become, for good. Brings a descriptor whose lock tells that the worker lives.
        1 Begin { version: u16, setting: Setting }
        /// A task. Brings a descriptor for each directory of `order.spaces`, in their order.
        2 Task { id: u32, order: Order }
        3 Cancel { id: u32 }
        /// What `Makes` said is in the journal.
        4 Noted { id: u32 }
        /// Bytes may be put there after a while, or not at all.
        5 Charged { call: u64, wait_us: u64, refused: Option<Refused> }
        /// Brings the journal of a task's copy, if one is `given`.
        6 Journal { id: u32, given: bool }
        /// Answered with `Answer`. Descriptors as with `Task`.
        7 Plan { call: u64, order: Order }
        8 Entries { call: u64, order: Order, after: Box<[u8]>, max: u32 }
        /// What lies in dataspaces; answered with `Found` or `Answer`.
        9 Look { call: u64, spaces: Vec<DataspaceSpec>, max: u32 }
        10 Ping { number: u64 }
        /// Whether the worker's user gets to a location that has been shared with him.
        11 Reach { call: u64, order: Order }
    }
}

tidepool_wire::messages! {
    /// What a worker tells its supervisor, who believes nothing of it that is not about the worker's own tasks.
    FromWorker {
        /// It has become whom it should.
        1 Ready {}
        /// It has not, and ends.
        2 Unfit { why: String }
        3 Ended { id: u32, result: EndedWord }
        /// A task is about to make something, and waits for `Noted`.
        4 Makes { id: u32, place: Box<[u8]>, top: Box<[u8]> }
        /// A task has cloned something to its destination.
        5 Received { id: u32, place: Box<[u8]>, bytes: u64 }
        /// A task is about to put bytes at its destination, and waits for `Charged`.
        6 Charge { call: u64, id: u32, bytes: u64 }
        7 NeedJournal { id: u32 }
        8 Progress { id: u32, live: LiveWord }
        /// A reply of the stager's protocol, as its kind and fields.
        9 Answer { call: u64, kind: u16, body: Box<[u8]> }
        10 Found { call: u64, entries: Vec<Leftover>, more: bool }
        11 Pong { number: u64 }
    }
}

/// Who a worker is to be, and how it works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    pub node: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The process that started it: a worker does not outlive it.
    pub supervisor: i32,
    /// Tasks at a time.
    pub workers: u32,
    /// Threads of one task; 0 for as many as seem good.
    pub threads: u32,
    pub verify_disk: bool,
    pub gentle: bool,
    /// Bytes of memory; 0 for any number.
    pub memory: u64,
}
field_struct!(Setting { node, uid, gid, groups, supervisor, workers, threads, verify_disk, gentle, memory });

/// A task with all that a worker has to know of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    pub spec: TaskSpec,
    pub uid: u32,
    pub gid: u32,
    pub job: u32,
    pub pid: i32,
    pub started: u64,
    pub again: bool,
    pub quotas: Vec<QuotaWord>,
    pub made: Option<MadeWord>,
    pub permit: Option<PermitWord>,
    pub token: u64,
    /// What it puts at its destination is to be asked for.
    pub charged: bool,
    /// The dataspaces of this node that it uses.
    pub spaces: Vec<DataspaceSpec>,
}
field_struct!(Order {
    spec,
    uid,
    gid,
    job,
    pid,
    started,
    again,
    quotas,
    made,
    permit,
    token,
    charged,
    spaces
});

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuotaWord {
    pub dataspace: String,
    pub job: u32,
    pub limit: u64,
    pub used: u64,
}
field_struct!(QuotaWord { dataspace, job, limit, used });

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadeWord {
    pub place: Box<[u8]>,
    pub top: Box<[u8]>,
    pub of: u32,
    pub spared: Vec<Box<[u8]>>,
}
field_struct!(MadeWord { place, top, of, spared });

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PermitWord {
    pub readers: Vec<u32>,
    pub user: Option<u32>,
}
field_struct!(PermitWord { readers, user });

/// Why bytes may not be put somewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub errno: i32,
    pub detail: String,
}
field_struct!(Refused { errno, detail });

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedWord {
    pub state: TaskState,
    pub refusal: Refusal,
    pub bytes: u64,
    pub files: u64,
    pub moved: u64,
    pub busy_ms: u64,
}
field_struct!(EndedWord { state, refusal, bytes, files, moved, busy_ms });

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveWord {
    pub phase: TaskPhase,
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub files_done: u64,
    pub files_total: u64,
    pub total_known: bool,
    pub rate: u64,
    pub eta_ms: Option<u64>,
    pub percent: Option<u8>,
}
field_struct!(LiveWord {
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

impl Order {
    pub fn of(start: &Start, spaces: Vec<DataspaceSpec>, token: [u8; 8], charged: bool) -> Order {
        let Start { identity, origin, .. } = start;
        let quota = |quota: &Quota| QuotaWord {
            dataspace: quota.dataspace.clone(),
            job: quota.job,
            limit: quota.limit,
            used: quota.used,
        };
        let made = |made: &Made| {
            let Made { place, top, of, spared } = made.clone();
            MadeWord { place, top, of, spared }
        };
        let permit = |permit: &Permit| PermitWord { readers: permit.readers.clone(), user: permit.user };
        Order {
            spec: start.spec.clone(),
            uid: identity.uid,
            gid: identity.gid,
            job: identity.job,
            pid: origin.pid,
            started: origin.started,
            again: start.again,
            quotas: start.quotas.iter().map(quota).collect(),
            made: start.made.as_ref().map(made),
            permit: start.permit.as_ref().map(permit),
            token: u64::from_le_bytes(token),
            charged,
            spaces,
        }
    }

    pub fn start(&self, id: u32) -> Start {
        let quota = |quota: &QuotaWord| Quota {
            dataspace: quota.dataspace.clone(),
            job: quota.job,
            limit: quota.limit,
            used: quota.used,
        };
        let made = |made: &MadeWord| {
            let MadeWord { place, top, of, spared } = made.clone();
            Made { place, top, of, spared }
        };
        let permit = |permit: &PermitWord| Permit { readers: permit.readers.clone(), user: permit.user };
        Start {
            id,
            spec: self.spec.clone(),
            identity: Identity { uid: self.uid, gid: self.gid, job: self.job },
            origin: Origin { pid: self.pid, started: self.started },
            again: self.again,
            quotas: self.quotas.iter().map(quota).collect(),
            made: self.made.as_ref().map(made),
            permit: self.permit.as_ref().map(permit),
        }
    }
}

impl From<Ended> for EndedWord {
    fn from(ended: Ended) -> EndedWord {
        let Ended { state, refusal, bytes, files, moved, busy_ms } = ended;
        EndedWord { state, refusal, bytes, files, moved, busy_ms }
    }
}

impl From<EndedWord> for Ended {
    fn from(word: EndedWord) -> Ended {
        let EndedWord { state, refusal, bytes, files, moved, busy_ms } = word;
        Ended { state, refusal, bytes, files, moved, busy_ms }
    }
}

impl From<Live> for LiveWord {
    fn from(live: Live) -> LiveWord {
        let Live { phase, bytes_done, bytes_total, files_done, files_total, .. } = live;
        let Live { total_known, rate, eta_ms, percent, .. } = live;
        LiveWord {
            phase,
            bytes_done,
            bytes_total,
            files_done,
            files_total,
            total_known,
            rate,
            eta_ms,
            percent,
        }
    }
}

impl From<LiveWord> for Live {
    fn from(word: LiveWord) -> Live {
        let LiveWord { phase, bytes_done, bytes_total, files_done, files_total, .. } = word;
        let LiveWord { total_known, rate, eta_ms, percent, .. } = word;
        // 100 is for what has ended.
        let percent = percent.map(|percent| percent.min(99));
        Live { phase, bytes_done, bytes_total, files_done, files_total, total_known, rate, eta_ms, percent }
    }
}
