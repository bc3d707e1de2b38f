//! The one place that removes trees: of pools, of their stores, of runs (`docs/decisions/0045-removal.md`).
//!
//! A record or a mark of ours has said that the tree is this user's to lose; whoever calls has read it. Here is made sure
//! that nothing else goes: all is done by descriptor beneath the root that was checked, no link is followed, no mount
//! entered, and nothing of another user touched. A tree is looked at before the first of it is removed, so that one which
//! is refused stays whole.

#![forbid(unsafe_code)]

mod error;
mod tree;
mod walk;

pub use error::{RemovalError, Why};
pub use tree::{Looked, Tree};

use std::path::Path;

/// Removes a directory of this user and all that is in it.
pub fn remove(tree: &Path, uid: u32) -> Result<(), RemovalError> {
    Tree::open(tree, uid)?.look()?.remove()
}

/// Removes what is in a directory of this user, but for these names in the directory itself.
pub fn contents(tree: &Path, uid: u32, kept: &[&str]) -> Result<(), RemovalError> {
    Tree::open(tree, uid)?.look()?.remove_contents(kept)
}
