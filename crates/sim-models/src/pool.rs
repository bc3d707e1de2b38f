//! Tidepool's own pools: which daemon has what is computed by the code that clients and daemons use themselves
//! (`tidepool-placement`). Daemon `d` is server `d`, and ranks live on the servers' nodes, in turn.

use crate::node::NodesSpec;
use crate::striping::Piece;
use crate::system::Application;
use std::fmt;
use tidepool_placement::{GroupError, Placer, WeightError};
use tidepool_types::{DAEMONS_MAX, DaemonIndex, Ino, Layout, LayoutError, Placement};

/// Whose files these are: those from a number on, so many of each rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Made {
    file: u32,
    of_each: u32,
    ranks: u32,
    /// The place in turn of the first rank's node: without nodes, its number among all clients.
    node: u32,
    /// Ranks of a node.
    of_node: u32,
}

/// Files that the ranks of a workload share, and the place in turn of the first one's node, which makes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Common {
    file: u32,
    files: u64,
    node: u32,
}

/// How a pool lays out files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolLayout {
    placer: Placer,
    layout: Layout,
    made: Vec<Made>,
    common: Vec<Common>,
}

/// Why there is no such pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolError {
    Members(usize),
    Layout(LayoutError),
    Weights(WeightError),
    Groups(GroupError),
    /// A placement on groups, and servers that have none.
    NoGroups,
    /// Data are to lie on a group of this number.
    NoSuchGroup(u16),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Members(count) => write!(f, "a pool of {count} servers; it has 1 to {DAEMONS_MAX}"),
            PoolError::Layout(error) => error.fmt(f),
            PoolError::Weights(error) => error.fmt(f),
            PoolError::Groups(error) => error.fmt(f),
            PoolError::NoGroups => f.write_str(
                "the placement is 'group', but the servers have none: name one for each, 'groups'",
            ),
            PoolError::NoSuchGroup(number) => write!(f, "no server is in group {number}"),
        }
    }
}

impl std::error::Error for PoolError {}

impl PoolLayout {
    /// Of servers with these weights, which count for [`Placement::Weighted`] only.
    pub fn new(layout: Layout, weights: &[u32]) -> Result<PoolLayout, PoolError> {
        PoolLayout::grouped(layout, weights, &[])
    }

    /// The same, with the group of each server, as [`Placer::grouped`] has them; none: no groups.
    pub fn grouped(layout: Layout, weights: &[u32], groups: &[u16]) -> Result<PoolLayout, PoolError> {
        if !(1..=DAEMONS_MAX).contains(&weights.len()) {
            return Err(PoolError::Members(weights.len()));
        }
        let weights_used = if layout.placement() == Placement::Weighted { weights } else { &[] };
        let placer = Placer::new(weights.len(), weights_used).map_err(PoolError::Weights)?;
        let placer = placer.grouped(groups).map_err(PoolError::Groups)?;
        if layout.placement() == Placement::Group && !placer.is_grouped() {
            return Err(PoolError::NoGroups);
        }
        if let Some(number) = layout.named_group().filter(|number| placer.group(*number).is_empty()) {
            return Err(PoolError::NoSuchGroup(number));
        }
        Ok(PoolLayout { placer, layout, made: Vec::new(), common: Vec::new() })
    }

    /// Who makes which files, where that is known. Without nodes each rank is alone on one.
    pub(crate) fn learn(&mut self, applications: &[Application], nodes: Option<&NodesSpec>) {
        let mut client = 0;
        (self.made, self.common) = (Vec::new(), Vec::new());
        for (number, application) in (0..).zip(applications) {
            let ranks = application.program.ranks();
            if let Some((file, of_each)) = application.program.own_files() {
                let (node, of_node) = nodes.map_or((client, 1), |nodes| (nodes.node(number, 0), nodes.ranks));
                self.made.push(Made { file, of_each, ranks, node, of_node });
            }
            client += ranks;
        }
    }

    pub fn members(&self) -> u32 {
        self.placer.members() as u32
    }

    /// The server that a node is one with; without nodes, of a client by its number among all clients.
    pub fn node_of(&self, node: u32) -> u32 {
        node % self.members()
    }

    /// The daemon that made a file, where each rank has its own.
    fn maker(&self, file: u32) -> Option<u32> {
        let mine = self.made.iter().find(|made| {
            file >= made.file && u64::from(file - made.file) < u64::from(made.of_each) * u64::from(made.ranks)
        })?;
        Some(self.node_of(mine.node + (file - mine.file) / mine.of_each / mine.of_node))
    }

    /// The daemon of the first rank of those that share a file.
    fn first(&self, file: u32) -> Option<u32> {
        let has = |all: &&Common| file.checked_sub(all.file).is_some_and(|at| u64::from(at) < all.files);
        self.common.iter().find(has).map(|all| self.node_of(all.node))
    }

    /// Files lie in one directory, and are called by their numbers.
    fn ino(&self, file: u32) -> Ino {
        let name = (Ino::ROOT, &file.to_le_bytes()[..]);
        let owner = self.placer.entry_owner(name.0, name.1);
        let home = match self.layout.placement() {
            Placement::Local => self.maker(file).map_or(owner, |maker| maker as _),
            Placement::Group => {
                let near = self.maker(file).or_else(|| self.first(file)).map(|maker| maker as DaemonIndex);
                self.placer.home_in_group(self.layout, owner, near.as_slice(), name)
            }
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
