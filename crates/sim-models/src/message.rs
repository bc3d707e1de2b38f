//! What processes tell each other, and the states that a sub-request goes through.

use std::fmt;

/// What an application asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    Open,
    Read,
    Write,
    Fsync,
    Close,
    Create,
    Stat,
    Unlink,
    /// All ranks of an application wait for each other. No server knows of it.
    Barrier,
}

impl Op {
    pub const ALL: [Op; 9] =
        [Op::Open, Op::Read, Op::Write, Op::Fsync, Op::Close, Op::Create, Op::Stat, Op::Unlink, Op::Barrier];

    pub fn name(self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Read => "read",
            Op::Write => "write",
            Op::Fsync => "fsync",
            Op::Close => "close",
            Op::Create => "create",
            Op::Stat => "stat",
            Op::Unlink => "unlink",
            Op::Barrier => "barrier",
        }
    }

    /// Whether it has an offset and a length.
    pub fn moves_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Type of a message: the state that its receiver takes the sub-request to (S1 §III-E, Figure 2). Self-messages are marked *.
///
/// ```text
///  client                      server                              device
///  Wake* ── Request ─────────→ Received* ─ link, queue to the
///                              Processed*    device
///           ←───────────────── Ack          (larger writes only: "positive ack")
///        ── Data ────────────→ Received*
///                              (flow is opened) ── Submit ───────→ next available time
///                              Complete ←─────────────────────────
///  Response ←───────────────── queue to the client
///  Finished* when the last of a request's responses has come in
/// ```
/// A server that buffers may answer a Request with Redirect: the client then asks the server behind it.
/// It moves old data there itself: Submit, Complete, then a Request of its own; Response is the end of it.
/// Where ranks share nodes, a client sends its node a Call instead, and gets a Return; the node then does what a client does
/// above, for its ranks and for its cache (`node.rs`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Client: its application begins.
    Start,
    /// Client: the pause before its next request is over.
    Wake,
    /// Client: all data of a request are there.
    Finished,
    /// Server: the first byte of a sub-request has come.
    Request,
    /// Server: all of a sub-request is there.
    Received,
    /// Server: a thread has looked at it.
    Processed,
    /// Client: the server waits for the data of a write.
    Ack,
    /// Server: the first byte of a write's data has come.
    Data,
    /// Server: all data of a write are there.
    DataReceived,
    /// Device: a sub-request is to be done.
    Submit,
    /// Device: it can take another one of those that wait.
    Idle,
    /// Server: its cache has done it.
    Cached,
    /// Server: what its cache has kept for long is old.
    Old,
    /// Server: the device has done it.
    Complete,
    /// Client: a sub-request is done.
    Response,
    /// Client: another server has to do it.
    Redirect,
    /// Client: a request has taken too long.
    Timeout,
    /// Client: a rank below it in the tree, and all below that one, are at a barrier.
    Arrived,
    /// Client: all ranks are.
    Released,
    /// Node: a request of one of its ranks.
    Call,
    /// Client: its node has done a request.
    Return,
}

/// A sub-request on its way (S1 §III-C: file, length, offset, sender, receiver, start, end, type).
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    pub kind: Kind,
    pub op: Op,
    pub file: u32,
    /// Number of the request in its client's list.
    pub request: u32,
    /// In the file.
    pub offset: u64,
    /// In what the server keeps of the file.
    pub local: u64,
    /// At most a stripe; of a Call all that is asked for.
    pub length: u32,
    /// The process that wants it done: a client, a node, or a server that moves buffered data.
    pub sender: u32,
    /// The server's process.
    pub receiver: u32,
    /// When the sender sent it first.
    pub start: u64,
    /// When the last byte of this message reaches the receiver's link.
    pub end: u64,
}

/// What a process has handled, for golden traces and timelines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub kind: Kind,
    pub op: Op,
    pub offset: u64,
    pub length: u32,
}
