//! What to copy and how.

use crate::end::End;
use crate::limit::Charged;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// Most workers chosen without being asked for.
pub const WORKERS_DEFAULT_MAX: usize = 8;
/// Most workers at all.
pub const WORKERS_MAX: usize = 256;

/// What is copied from the root of one end to the root of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The content of the root directory, and the attributes of the root itself.
    Tree,
    /// One entry of the root directory, of any kind, under a name of its own.
    Entry { from: Vec<u8>, to: Vec<u8> },
}

/// How to copy.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Threads; 0 for two per processor, at most [`WORKERS_DEFAULT_MAX`].
    pub workers: usize,
    /// Read each file back from the destination and compare checksums before it gets its name.
    pub verify: bool,
    /// Take a file of equal size and modification time for the same without looking inside.
    pub trust_mtime: bool,
    /// Directory of journals, local to the copier and in neither tree. Without one an
    /// interrupted copy finds out by comparing contents what is finished, and large files
    /// start anew.
    pub journal_dir: Option<PathBuf>,
    /// A journal that somebody else has opened, for who may not make one himself; it takes the place of `journal_dir`. It is
    /// emptied when the copy is complete, and anew for another copy.
    pub journal_file: Option<Arc<File>>,
    /// Part of the names of temporary files when there is no journal. Who gives the same one again
    /// after a kill finds, and replaces, what was left; random if not given.
    pub token: Option<[u8; 8]>,
    /// Bytes per second over all workers.
    pub bandwidth: Option<u64>,
    /// Limits shared with other copies.
    pub charge: Option<Charged>,
    /// Remove temporary files when cancelled, instead of keeping them to resume.
    pub clean_on_cancel: bool,
    /// Only count.
    pub dry_run: bool,
    /// Give final names only when everything is copied, oldest first. Takes some hundred bytes of memory per file.
    pub ordered: bool,
    /// Count the source ahead of copying it, on a thread of its own, so that progress and the
    /// time left are known early. Costs a second listing of the source.
    pub count_ahead: bool,
}

impl Default for StageOptions {
    fn default() -> StageOptions {
        StageOptions {
            workers: 0,
            verify: true,
            trust_mtime: false,
            journal_dir: None,
            journal_file: None,
            token: None,
            bandwidth: None,
            charge: None,
            clean_on_cancel: false,
            dry_run: false,
            ordered: false,
            count_ahead: false,
        }
    }
}

impl StageOptions {
    /// What is done is noted, for a later run.
    pub(crate) fn keeps_journal(&self) -> bool {
        self.journal_dir.is_some() || self.journal_file.is_some()
    }

    pub(crate) fn worker_count(&self) -> usize {
        match self.workers {
            0 => {
                let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
                (2 * cores).min(WORKERS_DEFAULT_MAX)
            }
            count => count.min(WORKERS_MAX),
        }
    }

    /// Workers that an end asks for, where nobody else has said how many.
    pub(crate) fn wanted_by(&self, end: &dyn End) -> usize {
        if self.workers == 0 { end.workers_wanted().min(WORKERS_MAX) } else { 0 }
    }
}
