//! Messages: `docs/formats/13-remote-ends.md`. Numbers are never reused.

use crate::end::{EndError, EndResult, Item, Meta, PackLimits, Refused, Rights, SetMeta, Written, Xattr};
use tidepool_types::{FileKind, SessionId};
use tidepool_wire::message::Bytes;

/// Number of the root in every table of directories.
pub(crate) const ROOT: u32 = 0;

/// What a client wants to work on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootRequest {
    pub dataspace: String,
    /// A directory below the dataspace.
    pub path: Vec<u8>,
    /// Anything that changes something is refused without this.
    pub write: bool,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub job: Option<u32>,
}

/// Where a listing goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Start,
    /// Means something to the end itself, also after a restart.
    Cookie(u64),
    /// A listing that the server keeps.
    Kept(u32),
}

/// What an operation on attributes is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    File(u32),
    Dir(u32),
    Name(u32, Bytes),
}

/// Entries of a directory, and where the listing goes on.
pub type Page = (Vec<Item>, Option<Place>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    Read,
    Write,
    Create,
}

/// Attributes to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clothes {
    pub set: SetMeta,
    pub xattrs: Vec<Xattr>,
}

/// A small file of `PutFiles`; `len` bytes of the bulk data are its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutHead {
    pub dir: u32,
    pub name: Bytes,
    pub len: u32,
    pub crc: u32,
    pub clothes: Clothes,
}

/// A small file of `Gots`.
#[derive(Clone, Debug)]
pub struct GotHead {
    pub meta: Meta,
    /// Bytes of the bulk data that are its content, and extended attributes.
    pub content: Option<(u32, Told<Vec<Xattr>>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamingHead {
    pub dir: u32,
    pub from: Bytes,
    pub to: Bytes,
    pub key: Option<(u64, u64)>,
}

/// What an operation on one of several things led to.
#[derive(Clone, Debug)]
pub struct Told<T>(pub EndResult<T>);

/// A result that is only that it was done.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

/// What a server tells of a root that it opened.
#[derive(Clone, Debug)]
pub struct RootInfo {
    pub session: SessionId,
    /// Changes when the server's node is started anew: what was not synced may be gone then.
    pub boot: Bytes,
    pub describe: String,
    pub identity: Bytes,
    pub rights: Rights,
    pub reads_touch_atime: bool,
    pub meta: Meta,
}

// Compared by what goes over the wire: errors know no equality.
macro_rules! equal_as_encoded {
    ($($name:ty),*) => { $(
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                let (mut a, mut b) = (Vec::new(), Vec::new());
                tidepool_wire::Field::put(self, &mut a);
                tidepool_wire::Field::put(other, &mut b);
                a == b
            }
        }
        impl Eq for $name {}
    )* };
}
equal_as_encoded!(
    EndError,
    GotHead,
    RootInfo,
    Written,
    Told<Nothing>,
    Told<Meta>,
    Told<GotHead>,
    Told<Written>,
    Told<Vec<Xattr>>
);

tidepool_wire::messages! {
    /// What a client asks of a server. `dir` and `file` are numbers that the server gave.
    Ask {
        16 OpenRoot { root: RootRequest }
        /// A further connection of a session.
        17 JoinRoot { session: SessionId }
        18 Ping {}
        /// Has no answer.
        19 Close { dirs: Vec<u32>, files: Vec<u32> }
        /// With `list`, the answer brings the first page of the listing, if that worked.
        20 EnterDir { dir: u32, name: Bytes, list: bool }
        21 MakeOrEnterDir { dir: u32, name: Bytes }
        22 FinishDir { dir: u32, clothes: Option<Clothes> }
        23 List { dir: u32, from: Place }
        24 Stat { at: Spot }
        /// Attributes and extended attributes.
        25 Look { at: Spot }
        26 ReadLink { dir: u32, name: Bytes }
        27 Dress { at: Spot, clothes: Clothes }
        30 OpenFile { dir: u32, name: Bytes, how: OpenHow }
        31 Read { file: u32, offset: u64, len: u32 }
        /// The bulk data are what is written.
        32 Write { file: u32, offset: u64 }
        33 NextData { file: u32, offset: u64 }
        34 NextHole { file: u32, offset: u64, limit: u64 }
        35 Truncate { file: u32, size: u64 }
        36 Sync { files: Vec<u32> }
        37 SyncDir { dir: u32 }
        38 SyncAll {}
        39 Checksum { file: u32, start: u64, end: u64, dense: bool }
        40 MakeDir { dir: u32, name: Bytes }
        41 MakeSymlink { dir: u32, name: Bytes, target: Bytes }
        42 MakeNode { dir: u32, name: Bytes, kind: FileKind, rdev: u64 }
        43 MakeLink { old_dir: u32, old: Bytes, dir: u32, name: Bytes }
        44 Unlink { dir: u32, name: Bytes }
        /// An empty one.
        45 RemoveDir { dir: u32, name: Bytes }
        /// Whether something is mounted on it: the count is 1 or 0.
        46 IsMount { dir: u32 }
        /// Large bulk data from now on by messages of a fabric, whose tags count from `tag`.
        47 OpenFabric { provider: String, name: Bytes, tag: u64 }
        50 StatFiles { names: Vec<(u32, Bytes)> }
        51 GetFiles { names: Vec<(u32, Bytes)>, limits: PackLimits }
        52 PutFiles { files: Vec<PutHead>, verify: bool }
        53 NameFiles { files: Vec<NamingHead> }
    }
}

tidepool_wire::messages! {
    /// What a server answers.
    Answer {
        100 Failed { error: EndError }
        101 Done {}
        102 Root { info: RootInfo }
        103 Dir { dir: u32, meta: Meta, fresh: bool, first: Option<Page> }
        104 Listed { items: Vec<Item>, next: Option<Place> }
        105 Attributes { meta: Meta }
        106 Looked { meta: Meta, xattrs: Told<Vec<Xattr>> }
        107 Target { target: Bytes }
        /// Extended attributes that could not be set.
        108 Dressed { refused: Vec<Refused> }
        109 File { file: u32, meta: Meta }
        /// The bulk data are what was read there.
        110 Data { offset: u64 }
        111 Count { count: u32 }
        112 Offset { at: Option<u64> }
        113 Sum { crc: Option<u32> }
        114 Results { results: Vec<Told<Nothing>> }
        115 Made { key: (u64, u64) }
        116 Stats { results: Vec<Told<Meta>> }
        117 Gots { results: Vec<Told<GotHead>> }
        118 Puts { results: Vec<Told<Written>> }
        119 Fabric { name: Bytes, tag: u64 }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
