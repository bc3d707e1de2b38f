//! One process's work on one file, and the operations it is made of.

use crate::name::{Directory, Name};
use crate::order::Order;
use serde::{Deserialize, Serialize};

/// What a process does. Reads and writes are of a file that it has opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operation {
    MakeDirectory {
        directory: Directory,
    },
    Open {
        file: Name,
        access: Access,
    },
    Write {
        file: Name,
        offset: u64,
        len: u64,
        place: Place,
        content: Content,
    },
    Read {
        file: Name,
        offset: u64,
        len: u64,
        place: Place,
    },
    Sync {
        file: Name,
    },
    Close {
        file: Name,
    },
    /// Of a file that is closed.
    Rename {
        from: Name,
        to: Name,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Access {
    /// Of a process's own file: it must not be there.
    Create,
    /// Of a shared file: the first process makes it.
    CreateShared,
    Read,
}

/// Which bytes of which data: see [`crate::data`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    pub key: u64,
    pub at: u64,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Content {
    Made,
    /// By the read just before.
    Read,
}

/// Where a process's transfers lie in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Region {
    /// One after the other, from here.
    From(u64),
    /// In turn with those of the other processes.
    Interleaved { rank: u64, processes: u64 },
}

/// A process's part of a file, in transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub region: Region,
    pub bytes: u64,
    pub transfer: u64,
    pub order: Order,
}

/// A part of one file, opened, written or read, and closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub file: Name,
    pub access: Access,
    pub extent: Extent,
    pub key: u64,
    /// From an offset in the file to that in the data.
    pub shift: u64,
    pub fsync: bool,
}

impl Extent {
    pub fn transfers(&self) -> u64 {
        self.bytes.div_ceil(self.transfer)
    }

    /// Offset and length of the transfer at place `index`.
    fn at(&self, index: u64) -> (u64, u64) {
        let number = self.order.at(index, self.transfers());
        let len = self.transfer.min(self.bytes - number * self.transfer);
        let offset = match self.region {
            Region::From(base) => base + number * self.transfer,
            // Only the last one of each process is shorter, so what is before it is whole rounds.
            Region::Interleaved { rank, processes } => number * processes * self.transfer + rank * len,
        };
        (offset, len)
    }

    pub fn spans(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.transfers()).map(move |index| self.at(index))
    }
}

impl Piece {
    pub fn operations(self) -> impl Iterator<Item = Operation> {
        let Piece { file, access, key, shift, .. } = self;
        let transfers = self.extent.spans().map(move |(offset, len)| {
            let place = Place { key, at: offset + shift };
            match access {
                Access::Read => Operation::Read { file, offset, len, place },
                Access::Create | Access::CreateShared => {
                    Operation::Write { file, offset, len, place, content: Content::Made }
                }
            }
        });
        let sync = self.fsync.then_some(Operation::Sync { file });
        std::iter::once(Operation::Open { file, access })
            .chain(transfers)
            .chain(sync)
            .chain([Operation::Close { file }])
    }

    /// How many they are.
    pub fn count(&self) -> u64 {
        2 + self.extent.transfers() + u64::from(self.fsync)
    }
}
