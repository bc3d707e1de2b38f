//! Directories of ours on a node that others use, too: which can be trusted, and where they are
//! (`docs/decisions/0041-shared-directories.md`).
//!
//! A directory is opened component by component, each one beneath the one before, and nothing is followed that another
//! user could have put there. What holds afterwards: only root and the owner can move, replace or fill anything on the
//! way to it. So its path stays true for whoever cannot work with descriptors (sockets, mounts, programs).

#![forbid(unsafe_code)]

mod file;
mod places;
mod remote;
mod trust;
mod unusable;
mod walk;

pub use file::{FileWant, is_socket_of, read_file};
pub use places::{Chosen, NoPlace, Places, SLOTS};
pub use trust::Trust;
pub use unusable::{Unusable, Why};
pub use walk::{Dir, ENTRIES_MAX, PRIVATE, UNWRITABLE, Want};
