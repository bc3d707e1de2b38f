//! Requests, replies and the handshake.
//!
//! One table per direction gives the enum, its numbers and its codec. Numbers are never
//! reused; `docs/formats/01-protocol.md` is the specification.

use crate::record::{Dentry, DirPart, Hold, Inode};
use crate::table::{enum_field, messages};
use crate::{DecodeError, Field, Reader, field_struct};
use tidepool_types::{
    Attr, DaemonIndex, Errno, FileKind, Ino, InstanceId, Layout, SessionId, SetAttr, TxnId,
};

/// Version of the messages; both sides must name the same one.
pub const PROTOCOL_VERSION: u16 = 5;

/// A name or another short byte string.
pub type Bytes = Box<[u8]>;

messages! {
    /// What a client (or a peer's reaper) asks of a daemon.
    Request {
        1 Ping {}
        /// Entry `name` of `parent`; with `open`, also registers a handle when the object is a file at home here.
        2 Lookup { parent: Ino, name: Bytes, open: bool }
        3 GetAttr { ino: Ino }
        /// This daemon's part of a directory.
        4 DirStat { dir: Ino }
        /// Makes an object and its entry. Without `excl` an existing entry is returned instead.
        5 Create { parent: Ino, name: Bytes, object: NewObject, excl: bool, open: bool }
        /// Registers a handle, so that the object outlives its last name.
        6 Open { ino: Ino }
        7 Close { ino: Ino }
        /// `set.size` sets the recorded size only; chunks are trimmed by `Trim`. `blocks` is added.
        8 SetAttr { ino: Ino, set: SetAttr, blocks: i64 }
        /// After a write elsewhere: size becomes at least `end`, `blocks` is added, times move.
        9 Extend { ino: Ino, end: u64, blocks: i64 }
        /// Grows the file by `len` and tells where it ended: the place for an append.
        10 Reserve { ino: Ino, len: u64 }
        /// Changes the link count; at 0 the object goes when its last handle does.
        11 Nlink { ino: Ino, delta: i32 }
        /// A further name for an existing object.
        12 PutDentry { parent: Ino, name: Bytes, ino: Ino, kind: FileKind }
        /// Removes a name that is no directory's; drops the link too when the object is at home here.
        13 Unlink { parent: Ino, name: Bytes }
        /// Entries kept here, in byte order, those after `after`.
        14 List { dir: Ino, after: Option<Bytes>, max: u32 }
        /// Holds the source entry of a rename.
        15 Prepare { txn: TxnId, decider: DaemonIndex, parent: Ino, name: Bytes }
        /// Holds an empty directory part against new entries.
        16 PrepareDir { txn: TxnId, decider: DaemonIndex, dir: Ino }
        /// Decides a rename: puts the entry at its new name. `replaces` must name a directory replaced.
        17 CommitRename { txn: TxnId, parent: Ino, name: Bytes, ino: Ino, kind: FileKind, no_replace: bool, replaces: Option<Ino> }
        /// Decides an rmdir: removes the entry.
        18 CommitRmdir { txn: TxnId, parent: Ino, name: Bytes, dir: Ino }
        /// Ends a hold on an entry; removes the entry when committed.
        19 Finish { txn: TxnId, committed: bool, parent: Ino, name: Bytes }
        /// Ends a hold on a directory part; forgets the part when committed.
        20 FinishDir { txn: TxnId, committed: bool, dir: Ino }
        /// Asks the decider for the outcome; an undecided transaction is aborted by this.
        21 Resolve { txn: TxnId }
        /// A directory was moved, removed or re-permissioned: caches made before are void.
        22 Bump {}
        /// Removes a directory's record after its rmdir.
        23 RemoveDir { dir: Ino }
        /// A directory has moved below another one.
        24 SetParent { dir: Ino, parent: Ino }
        25 GetInode { ino: Ino }
        /// The directory's own times were set: forget later changes seen here.
        26 ResetDirTimes { dir: Ino }
        27 SetXattr { ino: Ino, name: Bytes, value: Bytes, flags: u32 }
        28 RemoveXattr { ino: Ino, name: Bytes }
        /// Takes back the end of a reserved place that could not be filled, if the file still ends there.
        29 Unreserve { ino: Ino, offset: u64, len: u64 }
        /// Makes a file that has no entry yet, with one link counted: `PutDentry` is to follow.
        30 MakeObject { object: NewObject, open: bool }
        /// Sets or takes away what a directory says of the files made in it.
        31 SetLayout { dir: Ino, layout: Option<Layout> }
        /// Before data are dropped: takes up to `max` recorded blocks off the record. `Written` tells how many; those that
        /// stayed are added again by `SetAttr` or `Extend`.
        32 TakeBlocks { ino: Ino, max: u64 }
        /// For who keeps data of an object and goes on to: like `OpenKept`, without a handle. `Recalled`: not right now, ask
        /// again.
        33 Keep { ino: Ino }
        /// Stored bytes of the range, checksums verified; shorter at the local end of data.
        40 Read { ino: Ino, offset: u64, len: u32 }
        /// Stores the bulk data. With `extend` and at home here, also does what `Extend` does.
        41 Write { ino: Ino, offset: u64, extend: bool }
        /// Drops stored data at and beyond `size`.
        42 Trim { ino: Ino, size: u64 }
        /// Data and metadata of the object here survive a power failure after this.
        43 Sync { ino: Ino }
        44 SyncAll {}
        /// Stored ranges at and after `from`.
        46 Extents { ino: Ino, from: u64, max: u32 }
        47 StatFs {}
        48 Lock { ino: Ino, lock: LockRequest }
        49 TestLock { ino: Ino, lock: LockRequest }
        /// Makes stored data of the range zeros, without changing where data end; whole blocks are dropped.
        50 Punch { ino: Ino, offset: u64, len: u64 }
        /// Stores data of another object, which daemon `source` keeps, without the client. `EAGAIN`: the client has to.
        51 Copy { from: Ino, at: u64, source: DaemonIndex, to: Ino, offset: u64, len: u32 }
        60 Status {}
        /// Tells a fresh daemon its peers.
        61 Members { members: Vec<Member> }
        62 ScanInodes { after: Option<Ino>, max: u32 }
        63 ScanDirs { after: Option<Ino>, max: u32 }
        /// Verifies every checksum of the objects after `after`, at most `max` of them.
        64 Scrub { after: Option<Ino>, max: u32 }
        /// Ends the daemon; with `wipe` its stores are removed first.
        65 Shutdown { wipe: bool }
        /// On a Unix socket only: asks for a lane in shared memory, see `docs/formats/07-shared-memory.md`.
        66 OpenLane {}
        /// On a Unix socket only: asks for read-only descriptors of an object's data and checksums.
        67 OpenDirect { ino: Ino }
        /// On a Unix socket only: asks for an object's files, to write to them.
        68 Borrow { ino: Ino }
        /// A borrower has no more use for an object's files.
        69 GiveBack { ino: Ino }
        /// Asks for messages over the fabric beside this connection, see `docs/formats/09-fabric.md`: name of the client's
        /// endpoint and first tag of its replies.
        70 OpenFabric { name: Bytes, replies: u64 }
        /// There is something at the daemon's endpoint: for providers that cannot wake anybody.
        71 Ring {}
        /// On a socket only: recalls of what this session keeps are to be sent here (format 10).
        72 Watch {}
        /// What recall `id` was about is kept no more.
        73 Released { id: u64 }
        /// Like `Open`, for who keeps data: also asks for the version of the object's content.
        74 OpenKept { ino: Ino }
        /// Like `List`; with each entry come the attributes of its object, when it is at home here.
        75 ListPlus { dir: Ino, after: Option<Bytes>, max: u32 }
        /// Attributes of several objects at home here, at most `LIST_MAX` of `fs-state`.
        76 GetAttrs { inos: Vec<Ino> }
        /// This daemon's parts of several directories, as many at most.
        77 DirStats { dirs: Vec<Ino> }
        /// Drops all stored data of objects that have been removed, as many at most.
        78 Drop { inos: Vec<Ino> }
        /// Asks whether data may be written (or read) now. To be asked first where replies say [`FLAG_PACED`](crate::frame::FLAG_PACED).
        79 Admit { ino: Ino, offset: u64, len: u64, write: bool }
        /// Orders everything that lies above a tier to be moved to it, whatever the strategy says, with at most `bandwidth`
        /// bytes in a second (0: the daemon's own limits). Asked again it tells how far that is; an order stands until
        /// nothing is left above and nobody has asked for a while.
        80 Flush { to: FlushTo, bandwidth: u64 }
        /// A hint, which nobody has to give: an I/O phase of the pool begins soon, and all its processes together write so
        /// much in it.
        81 BeginPhase { bytes: Option<u64>, pattern: Option<PhasePattern> }
        /// A hint: the phase is over, when as many say so as have said that it begins.
        82 EndPhase {}
        /// A hint: what this session writes in each phase.
        83 PhaseBytes { bytes: u64 }
        /// What a client has read and written in the daemon's files by itself since it said so last, for the daemon's counters.
        84 Used { read: u64, written: u64 }
        /// On a socket only, that is used for nothing else: waits for a lock. The reply comes when it is this waiter's turn; the lock
        /// is then to be taken by `Lock`. Who closes the connection waits no more.
        85 WaitLock { ino: Ino, lock: LockRequest }
        /// On the connection of a `WaitLock`: the waiter waits no more, nor comes when it is its turn.
        86 LeaveQueue {}
    }
}

messages! {
    /// What a daemon answers.
    Reply {
        1 Failed { errno: Errno, detail: String }
        /// The sender's directory epoch is not the daemon's: resolve paths again.
        2 Stale {}
        /// A rename or rmdir in progress holds the record.
        3 Held { hold: Hold }
        4 Done {}
        5 Entry { ino: Ino, kind: FileKind, attr: Option<Attr>, created: bool }
        6 Attributes { attr: Attr }
        7 Part { part: DirPart }
        8 Offset { offset: u64, attr: Attr }
        /// The object that lost a name; `attr` when its link count was lowered here.
        9 Unlinked { ino: Ino, kind: FileKind, attr: Option<Attr> }
        10 Entries { entries: Vec<(Bytes, Dentry)>, more: bool }
        11 Replaced { ino: Option<Ino>, kind: Option<FileKind> }
        12 Decided { committed: bool, moved: Option<(Ino, Ino)> }
        13 Object { inode: Inode }
        /// Bulk: the bytes. `size` of the object when the data ends early and the object is at home here.
        14 Data { size: Option<u64> }
        /// Bytes stored; `blocks` is the change in stored blocks; `attr` when the write also extended.
        15 Written { blocks: i64, attr: Option<Attr> }
        16 Ranges { ranges: Vec<(u64, u64)> }
        17 Space { stat: SpaceStat }
        18 LockHeld { lock: Option<LockRequest> }
        19 Report { status: DaemonStatus }
        20 Inodes { inodes: Vec<Inode>, more: bool }
        21 Dirs { dirs: Vec<(Ino, DirPart)>, more: bool }
        22 Scrubbed { objects: Vec<ScrubResult>, more: bool }
        /// Descriptors of the lane and of the bell come with it.
        23 Lane { number: u32 }
        /// Descriptors of data and checksums come with it.
        24 Direct {}
        /// Descriptors of data, checksums and the loan come with it.
        25 Borrowed { number: u32 }
        /// Name of the daemon's endpoint, what the client's messages start with, and the first tag of its bodies.
        30 Fabric { name: Bytes, token: FabricToken, bodies: u64 }
        /// Others keep what the request would change; they have been told. Nothing was done: ask again.
        31 Recalled {}
        /// Not a reply: comes to who watches, with id 0.
        32 Recall { id: u64, key: LeaseKey }
        /// `version` is 0 when data must not be kept.
        33 Opened { attr: Attr, version: u64 }
        34 EntriesPlus { entries: Vec<EntryPlus>, more: bool }
        /// Those that there are, in the order of the request.
        35 AttributesOf { attrs: Vec<Attr> }
        /// One for each directory asked for, in that order.
        36 Parts { parts: Vec<DirPart> }
        /// When `wait_ns` are over, the data may come; with `again` it is to be asked once more then.
        37 Admitted { wait_ns: u64, again: bool }
        /// Bytes that lie above the tier now, and those that were moved since the start of the daemon. `failures`: moves that
        /// failed since one did not, the last as `detail` tells.
        38 FlushState { above: u64, moved: u64, failures: u32, detail: String }
    }
}

messages! {
    /// The first frames of a connection. Each side proves that it knows the instance's
    /// secret before anything else is decoded.
    Handshake {
        /// On a Unix socket, as 2 and 3: the kernel says who is there.
        1 Hello { version: u16, instance: InstanceId, session: SessionId, nonce: Nonce }
        2 Challenge { version: u16, nonce: Nonce, proof: Proof }
        3 Answer { proof: Proof }
        4 Welcome { index: DaemonIndex, configured: bool }
        5 Refused { reason: String }
        /// On TCP, as 7 and 8. `encrypted`: whether what follows has to be.
        6 Begin { version: u16, instance: InstanceId, encrypted: bool, noise: Bytes }
        7 Middle { noise: Bytes }
        8 End { noise: Bytes }
    }
}

/// True for the kinds of requests whose replies bring descriptors.
pub fn brings_descriptors(kind: u16) -> bool {
    matches!(kind, 66..=68)
}

/// True for the kind of [`Request::OpenFabric`], which a connection answers for itself.
pub fn opens_fabric(kind: u16) -> bool {
    kind == 70
}

/// True for the kind of [`Request::Watch`], which a connection answers for itself.
pub fn watches(kind: u16) -> bool {
    kind == 72
}

/// True for the kinds of [`Request::WaitLock`] and [`Request::LeaveQueue`], which are about a connection.
pub fn queues_for_lock(kind: u16) -> bool {
    matches!(kind, 85 | 86)
}

/// What may be kept by who asks for it (format 10).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LeaseKey {
    /// An object's attributes and data.
    Object(Ino),
    /// What a name leads to, or that it leads nowhere.
    Entry(Ino, Bytes),
    /// A daemon's part of a directory.
    Part(Ino),
}

impl Field for LeaseKey {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            LeaseKey::Object(ino) => (1u8.put(out), ino.put(out)).1,
            LeaseKey::Entry(dir, name) => (2u8.put(out), dir.put(out), name.put(out)).2,
            LeaseKey::Part(dir) => (3u8.put(out), dir.put(out)).1,
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<LeaseKey, DecodeError> {
        match u8::get(from)? {
            1 => Ok(LeaseKey::Object(Field::get(from)?)),
            2 => Ok(LeaseKey::Entry(Field::get(from)?, Field::get(from)?)),
            3 => Ok(LeaseKey::Part(Field::get(from)?)),
            _ => Err(DecodeError::Invalid("LeaseKey")),
        }
    }
}

/// How long what was told may be kept: by the asker from before he asks, by the daemon from when it answers.
pub const LEASE_TERM_MS: u64 = 2_000;
/// The version of an object's content as it was made.
pub const VERSION_MADE: u64 = 1;

/// What a new object starts with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewObject {
    /// Type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    /// Files always, directories when they do not follow the pool, others never.
    pub layout: Option<Layout>,
    /// Symbolic links only.
    pub target: Bytes,
}
field_struct!(NewObject { mode, uid, gid, rdev, layout, target });

/// An entry of a listing with attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryPlus {
    pub name: Bytes,
    pub dentry: Dentry,
    /// None when the object is at home elsewhere, or gone.
    pub attr: Option<Attr>,
}
field_struct!(EntryPlus { name, dentry, attr });

/// One daemon of the pool, as every party sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub index: DaemonIndex,
    /// Name people know the node by.
    pub host: String,
    /// Boot id of the node: equal to the reader's own when its Unix socket is reachable.
    pub boot_id: String,
    /// `address:port`; empty when the daemon listens on its Unix socket only.
    pub tcp: String,
    /// Path of the Unix socket on the node.
    pub unix: String,
}
field_struct!(Member { index, host, boot_id, tcp, unix });

/// A byte-range or whole-file lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// Unique within the session for POSIX locks, within the pool for open-file locks.
    pub owner: u64,
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` means the end of file.
    pub end: u64,
    pub mode: LockMode,
    pub pid: u32,
}
field_struct!(LockRequest { owner, kind, start, end, mode, pid });

enum_field!(
    /// Families of locks; locks of different families never conflict.
    LockKind { Posix = 1, Flock = 2, Rename = 3 }
);
enum_field!(
    /// The tier that everything above is moved to.
    FlushTo { Last = 1, Burst = 2, Pfs = 3 }
);
enum_field!(
    /// How the processes of a phase go through their files.
    PhasePattern { Sequential = 1, Strided = 2, Random = 3 }
);
enum_field!(LockMode { Read = 1, Write = 2, Unlock = 3 });

/// Space of one daemon's store, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceStat {
    pub total: u64,
    pub free: u64,
    pub used: u64,
    pub objects: u64,
    /// Device number of the store's file system: daemons of one node with the same one share
    /// `total` and `free`.
    pub device: u64,
}
field_struct!(SpaceStat { total, free, used, objects, device });

/// What `tidepool pool status` shows of one daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaemonStatus {
    pub index: DaemonIndex,
    pub pid: u32,
    pub backend: String,
    pub space: SpaceStat,
    pub sessions: u64,
    pub open_handles: u64,
    /// Bytes of the metadata log since the last snapshot are not in here; see the counters.
    pub counters: Vec<(String, u64)>,
    /// Plain words; empty when all is well.
    pub trouble: String,
}
field_struct!(DaemonStatus { index, pid, backend, space, sessions, open_handles, counters, trouble });

/// Result of verifying one object's chunks on one daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubResult {
    pub ino: Ino,
    /// Stored blocks here.
    pub blocks: u64,
    /// Offsets of blocks whose content does not match their checksum.
    pub bad: Vec<u64>,
}
field_struct!(ScrubResult { ino, blocks, bad });

macro_rules! fixed_bytes {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub [u8; 32]);
        impl Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0);
            }
            fn get(from: &mut Reader<'_>) -> Result<$name, DecodeError> {
                Ok($name(from.take(32, stringify!($name))?.try_into().expect("taken with this length")))
            }
        }
    };
}
fixed_bytes!(
    /// Random bytes that make each handshake unique.
    Nonce
);
fixed_bytes!(
    /// HMAC-SHA-256 under the instance's secret.
    Proof
);
fixed_bytes!(
    /// What messages over a fabric start with: it says which connection, whose peer has proved itself, they belong to.
    FabricToken
);
