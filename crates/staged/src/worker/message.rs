//! What supervisor and worker say to each other (`docs/formats/37-worker-pipe.md`).

use std::io;
use tidepool_stage_state::{Ended, Live, Start};
use tidepool_transport::Seals;
use tidepool_transport::remote::GreetError;
use tidepool_types::SessionId;
use tidepool_wire::field_struct;
use tidepool_wire::stager::{DataspaceSpec, Leftover};

/// Both are one program, so another version is a mistake in its installation.
pub const VERSION: u16 = 2;

tidepool_wire::messages! {
    /// What the supervisor tells a worker.
    ToWorker {
        /// The first message: whom to become, for good. Brings a descriptor whose lock tells that the worker lives.
        1 Begin { version: u16, setting: Setting }
        /// A task. Brings a descriptor for each directory of `order.spaces`, in their order.
        2 Task { order: Order }
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
        /// How another stager has answered a first request, or why it could not be asked. With seals it brings the connection.
        12 Line { line: u64, made: Option<Made>, failed: Option<NoLine> }
        /// A connection of another stager, which may do as it asks: it opens what `opening` says, or joins the visit. Brings the
        /// connection, and the root of what is opened.
        13 Serve {
            connection: u64,
            visit: u64,
            session: SessionId,
            request: u32,
            seals: Seals,
            opening: Option<Opening>,
        }
    }
}

tidepool_wire::messages! {
    /// What a worker tells its supervisor, who believes nothing of it that is not about the worker's own tasks.
    FromWorker {
        /// It has become whom it should.
        1 Ready {}
        /// It has not, and ends.
        2 Unfit { why: String }
        3 Ended { id: u32, ended: Ended }
        /// A task is about to make something, and waits for `Noted`.
        4 Makes { id: u32, place: Box<[u8]>, top: Box<[u8]> }
        /// A task has cloned something to its destination.
        5 Received { id: u32, place: Box<[u8]>, bytes: u64 }
        /// A task is about to put bytes at its destination, and waits for `Charged`.
        6 Charge { call: u64, id: u32, bytes: u64 }
        7 NeedJournal { id: u32 }
        8 Progress { id: u32, live: Live }
        /// A reply of the stager's protocol, as its kind and fields.
        9 Answer { call: u64, kind: u16, body: Box<[u8]> }
        10 Found { call: u64, entries: Vec<Leftover>, more: bool }
        11 Pong { number: u64 }
        /// A task, or a call where that is 0, needs a connection to the stager of a host that it names, for this first request
        /// (format 13), and waits for `Line`.
        12 NeedLine { line: u64, task: u32, call: u64, host: String, kind: u16, body: Box<[u8]> }
        /// Who visits is about to put bytes there; waits for `Charged`, unless `call` is 0.
        13 Puts { call: u64, visit: u64, bytes: u64 }
        /// Something has got its name where the visit is: an entry of its root, or something else.
        14 Names { visit: u64, name: Option<Box<[u8]>> }
        /// A connection is over.
        15 Left { connection: u64 }
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
    /// Provider of the fabric and this node's address there; nothing for none.
    pub fabric: String,
    pub fabric_at: String,
}
field_struct!(Setting {
    node,
    uid,
    gid,
    groups,
    supervisor,
    workers,
    threads,
    verify_disk,
    gentle,
    memory,
    fabric,
    fabric_at
});

/// A task with all that a worker has to know of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    pub start: Start,
    /// Part of the names of the task's temporary files.
    pub token: [u8; 8],
    /// What it puts at its destination is to be asked for.
    pub charged: bool,
    /// The dataspaces of this node that it uses.
    pub spaces: Vec<DataspaceSpec>,
}
field_struct!(Order { start, token, charged, spaces });

/// What another stager has been allowed to open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Beneath the dataspace.
    pub path: Box<[u8]>,
    pub write: bool,
    /// What is put there is to be asked for.
    pub charged: bool,
}
field_struct!(Opening { path, write, charged });

/// How another stager has answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// The answer (format 13), as its kind and fields.
    pub kind: u16,
    pub body: Box<[u8]>,
    /// With the connection, when the answer is a root.
    pub seals: Option<Seals>,
}
field_struct!(Made { kind, body, seals });

/// Why there is no connection to another stager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoLine {
    /// 0 for a connection that broke, with the system's number where there is one; then as `GreetError` has them.
    pub kind: u8,
    pub errno: i32,
    pub text: String,
}
field_struct!(NoLine { kind, errno, text });

impl From<GreetError> for NoLine {
    fn from(error: GreetError) -> NoLine {
        let (kind, errno, text) = match error {
            GreetError::Lost(error) => (0, error.raw_os_error().unwrap_or(0), error.to_string()),
            GreetError::Later(text) => (1, 0, text),
            GreetError::Refused(text) => (2, 0, text),
            GreetError::Stranger => (3, 0, String::new()),
            GreetError::Other(text) => (4, 0, text),
            GreetError::OtherVersion => (5, 0, String::new()),
            GreetError::Unexpected => (6, 0, String::new()),
        };
        NoLine { kind, errno, text }
    }
}

impl From<NoLine> for GreetError {
    fn from(NoLine { kind, errno, text }: NoLine) -> GreetError {
        match kind {
            0 if errno > 0 => GreetError::Lost(io::Error::from_raw_os_error(errno)),
            0 => GreetError::Lost(io::Error::new(io::ErrorKind::TimedOut, text)),
            1 => GreetError::Later(text),
            2 => GreetError::Refused(text),
            3 => GreetError::Stranger,
            4 => GreetError::Other(text),
            5 => GreetError::OtherVersion,
            _ => GreetError::Unexpected,
        }
    }
}

/// Why bytes may not be put somewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub errno: i32,
    pub detail: String,
}
field_struct!(Refused { errno, detail });
