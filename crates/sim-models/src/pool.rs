//! Tidepool's own pools: which daemon has what is computed by the code that clients and daemons use themselves
//! (`tidepool-placement`). Daemon `d` is server `d`, and ranks live on the servers' nodes, in turn.

use crate::striping::Piece;
use crate::system::Application;
use std::fmt;
use tidepool_placement::{Placer, WeightError};
use tidepool_types::{DAEMONS_MAX, Ino, Layout, LayoutError, Placement};

/// Whose files these are: those from a number on, so many of each rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Made {
    file: u32,
    of_each: u32,
    ranks: u32,
    /// The first rank's number among all clients.
    client: u32,
}

/// How a pool lays out files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolLayout {
    placer: Placer,
    layout: Layout,
    made: Vec<Made>,
}

/// Why there is no such pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolError {
    Members(usize),
    Layout(LayoutError),
    Weights(WeightError),
    /// The model has no groups of daemons.
    Groups,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Members(count) => write!(f, "a pool of {count} servers; it has 1 to {DAEMONS_MAX}"),
            PoolError::Layout(error) => error.fmt(f),
            PoolError::Weights(error) => error.fmt(f),
            PoolError::Groups => {
                f.write_str("groups of servers are not simulated; use wide, weighted or local")
            }
        }
    }
}

impl std::error::Error for PoolError {}

impl PoolLayout {
    /// Of servers with these weights, which count for [`Placement::Weighted`] only.
    pub fn new(layout: Layout, weights: &[u32]) -> Result<PoolLayout, PoolError> {
        if !(1..=DAEMONS_MAX).contains(&weights.len()) {
            return Err(PoolError::Members(weights.len()));
        }
        if layout.placement() == Placement::Group {
            return Err(PoolError::Groups);
        }
        let weights_used = if layout.placement() == Placement::Weighted { weights } else { &[] };
        let placer = Placer::new(weights.len(), weights_used).map_err(PoolError::Weights)?;
        Ok(PoolLayout { placer, layout, made: Vec::new() })
    }

    /// Who makes which files, where that is known.
    pub(crate) fn learn(&mut self, applications: &[Application]) {
        let mut client = 0;
        self.made.clear();
        for application in applications {
            let ranks = application.program.ranks();
            if let Some((file, of_each)) = application.program.own_files() {
                self.made.push(Made { file, of_each, ranks, client });
            }
            client += ranks;
        }
    }

    pub fn members(&self) -> u32 {
        self.placer.members() as u32
    }

    /// The node that a client lives on, by its number among all clients.
    pub fn node_of(&self, client: u32) -> u32 {
        client % self.members()
    }

    /// The daemon that made a file, where each rank has its own.
    fn maker(&self, file: u32) -> Option<u32> {
        let mine = self.made.iter().find(|made| {
            file >= made.file && u64::from(file - made.file) < u64::from(made.of_each) * u64::from(made.ranks)
        })?;
        Some(self.node_of(mine.client + (file - mine.file) / mine.of_each))
    }

    /// Files lie in one directory, and are called by their numbers.
    fn ino(&self, file: u32) -> Ino {
        let owner = self.placer.entry_owner(Ino::ROOT, &file.to_le_bytes());
        let home = match self.layout.placement() {
            Placement::Local => self.maker(file).map_or(owner, |maker| maker as _),
            _ => owner,
        };
        // Number 0 of a home is no file's; and 1 of home 0 is the root.
        Ino::new(home, u64::from(file) + 2)
    }

    /// The server that has a file's record.
    pub fn home(&self, file: u32) -> u32 {
        self.ino(file).home().into()
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> u64 {
        self.layout.chunk_size()
    }

    /// Every server that may have a part of a file.
    pub fn servers(&self, file: u32) -> Vec<u32> {
        self.placer.chunk_owners(self.ino(file), self.layout).into_iter().map(u32::from).collect()
    }

    /// Chunks, and what is wanted of each. A chunk's place on its server's device is that in the file.
    pub fn split(&self, file: u32, mut offset: u64, length: u64, mut each: impl FnMut(Piece)) {
        let (ino, end) = (self.ino(file), offset + length);
        while offset < end {
            let until = self.layout.next_chunk(offset).min(end);
            let server = self.placer.chunk_owner(ino, self.layout, self.layout.chunk_at(offset)).into();
            each(Piece { server, offset, local: offset, length: (until - offset) as u32 });
            offset = until;
        }
    }
}
