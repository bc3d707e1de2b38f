//! Names and objects that daemons of this node have put on their boards.
//!
//! A daemon writes each change on its board in shared memory before it acknowledges the change. What stands there is
//! as fresh as an answer, and looking at it costs no request. What does not stand there is asked for, as
//! everything of daemons on other nodes.

use crate::Client;
use std::sync::atomic::Ordering;
use tidepool_shm::{Board, Listed, part_key};
use tidepool_types::{Attr, DaemonIndex, Ino};
use tidepool_wire::record::DirPart;

/// What is known of an entry.
pub(crate) enum Told {
    Attr(Attr),
    Absent,
}

impl Client {
    /// What stands of an entry, for a caller who has resolved its directory under `generation`;
    /// `daemon` is the entry's owner.
    pub(crate) fn known(
        &self,
        generation: u64,
        daemon: DaemonIndex,
        parent: Ino,
        name: &[u8],
    ) -> Option<Told> {
        let board = self.board(daemon)?;
        let heard = self.epoch_of(daemon);
        // In this order: the generation moves before an epoch counts as heard. With a newer epoch on the
        // board the path has to be resolved again, which the daemon will demand.
        if self.dirs.generation() != generation || board.epoch() != heard {
            return None;
        }
        let found = board.entry(board.tag(parent.0, name))?;
        let told = match found.listed {
            Listed::Absent => Told::Absent,
            Listed::Object(ino) => Told::Attr(self.object_on_board(Ino(ino))?),
        };
        // The entry led to the object at the moment the object was looked at.
        board.still(&found).then(|| {
            self.looks.fetch_add(1, Ordering::Relaxed);
            told
        })
    }

    /// The record of an object, if its home has it on its board.
    pub(crate) fn known_attr(&self, ino: Ino) -> Option<Attr> {
        let attr = self.object_on_board(ino)?;
        self.looks.fetch_add(1, Ordering::Relaxed);
        Some(attr)
    }

    /// A daemon's part of a directory, if it has it on its board.
    pub(crate) fn known_part(&self, daemon: DaemonIndex, dir: Ino) -> Option<DirPart> {
        let board = self.board(daemon).filter(|board| is_serving(board))?;
        Some(DirPart::from_words(&board.object(part_key(dir.0))?))
    }

    fn object_on_board(&self, ino: Ino) -> Option<Attr> {
        let board = self.board(ino.home()).filter(|board| is_serving(board))?;
        Attr::from_words(ino, &board.object(ino.0)?)
    }

    /// Questions answered by a look at a board.
    pub fn known_answers(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }
}

/// What a daemon that is gone has left on its board may be old.
fn is_serving(board: &Board) -> bool {
    board.epoch() != 0
}
