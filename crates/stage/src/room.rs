//! Whether what is still to be copied has room at the destination. A copy that cannot end well is given up as soon as that is
//! known, and not when the last free byte is used up.
//!
//! Only what is sure counts: of each file its data at the source, less what is at the destination already. Nothing is refused
//! that might fit.

use crate::end::{At, Cursor, DirRef, EndError, Item, Meta, PackLimits};
use crate::job::{Job, is_leftover};
use crate::options::What;
use crate::report::{Failure, StageError};
use crate::tree::PathHash;
use std::collections::HashMap;
use tidepool_types::{Errno, FileKind, format_size};

/// Of a file with holes no more pieces are asked for; what they have counts.
const PIECES_MAX: usize = 1000;

/// What is to come takes more than there is.
struct Lack {
    need: u64,
    free: u64,
}

impl Lack {
    fn failure(&self) -> Failure {
        let detail = format!(
            "at least {} are to come, and {} are free",
            format_size(self.need),
            format_size(self.free)
        );
        Failure::target(EndError { detail: Some(detail), ..EndError::new("make room", Errno::ENOSPC) })
    }
}

impl Job<'_> {
    /// Gives the copy up when what is to come cannot have room. `seen`: bytes of all files of the source.
    pub fn check_room(&self, what: &What, seen: u64) {
        if let Some(lack) = self.lack(what, seen)
            && self.give_up_all()
        {
            self.findings.error(StageError::new(".".into(), &lack.failure()));
        }
    }

    fn lack(&self, what: &What, seen: u64) -> Option<Lack> {
        // On one file system files may share what they store.
        if self.is_given_up() || self.src_root.dev == self.dst_root.0 {
            return None;
        }
        // Before it is counted: what is copied meanwhile is not counted, and had room.
        let free = self.dst.room()?;
        let to_come = seen.saturating_sub(self.control.progress().bytes_done);
        if to_come <= free {
            return None;
        }
        let need = Need::of(self, what)?;
        (need > free).then_some(Lack { need, free })
    }
}

/// Where an entry goes; none where its directory is not there yet.
struct To {
    dir: DirRef,
    hash: PathHash,
}

enum Step {
    Enter { from: DirRef, name: Vec<u8>, to: Option<To>, at: Vec<u8> },
    List { from: DirRef, to: Option<To>, cursor: Cursor },
}

/// Walks the source depth first, with one page per level in memory.
struct Need<'a, 'b> {
    job: &'a Job<'b>,
    bytes: u64,
    /// What objects with several names count: they come once, and are there when one of the names is.
    met: HashMap<(u64, u64), u64>,
    stack: Vec<Step>,
}

impl Need<'_, '_> {
    /// None when the copy ends before it is known.
    fn of(job: &Job<'_>, what: &What) -> Option<u64> {
        let mut need = Need { job, bytes: 0, met: HashMap::new(), stack: Vec::new() };
        let from = job.src.root();
        let to = To { dir: job.dst.root(), hash: PathHash::default() };
        match what {
            What::Tree => need.stack.push(Step::List { from, to: Some(to), cursor: Cursor::Start }),
            What::Entry { from: name, to: at } => need.item(&from, Some(&to), (name, at), None),
        }
        while let Some(step) = need.stack.pop() {
            if job.is_cancelled() || job.is_given_up() || job.sched.is_done() {
                return None;
            }
            need.step(step);
        }
        // What each worker has in a file without a name is there, and nobody finds it.
        Some(need.bytes.saturating_sub(job.sched.workers() as u64 * PackLimits::NEAR.file_bytes))
    }

    /// What cannot be looked at does not count; the copy tells of it.
    fn step(&mut self, step: Step) {
        let (from, to, cursor) = match step {
            Step::List { from, to, cursor } => (from, to, cursor),
            Step::Enter { from, name, to, at } => {
                let Ok(dir) = self.job.src.open_dir(&from, &name) else { return };
                let Ok(below) = self.below(to, &at) else { return };
                (dir, below, Cursor::Start)
            }
        };
        let Ok((items, next)) = self.job.src.list(&from, &cursor) else { return };
        for item in items.into_iter().filter(|item| !is_leftover(&item.name)) {
            let Item { name, kind, .. } = item;
            self.item(&from, to.as_ref(), (&name, &name), kind);
        }
        self.stack.extend(next.map(|cursor| Step::List { from, to, cursor }));
    }

    /// The directory at the destination; an error where another file system is mounted on it, which has room of its own.
    fn below(&self, to: Option<To>, name: &[u8]) -> Result<Option<To>, ()> {
        let Some(to) = to else { return Ok(None) };
        let Ok(dir) = self.job.dst.open_dir(&to.dir, name) else { return Ok(None) };
        match self.job.dst.stat(At::Dir(&dir)) {
            Ok(meta) if meta.dev == self.job.dst_root.0 => Ok(Some(To { dir, hash: to.hash.child(name) })),
            _ => Err(()),
        }
    }

    fn item(&mut self, from: &DirRef, to: Option<&To>, (name, at): (&[u8], &[u8]), kind: Option<FileKind>) {
        if kind.is_none_or(|kind| kind == FileKind::Regular)
            && let Ok(meta) = self.job.src.stat(At::Name(from, name))
        {
            match meta.kind {
                FileKind::Directory => self.enter(from, to, (name, at)),
                FileKind::Regular => self.file((from, name), &meta, to, at),
                _ => {}
            }
        } else if kind == Some(FileKind::Directory) {
            self.enter(from, to, (name, at));
        }
    }

    fn enter(&mut self, from: &DirRef, to: Option<&To>, (name, at): (&[u8], &[u8])) {
        let to = to.map(|to| To { dir: to.dir.clone(), hash: to.hash });
        self.stack.push(Step::Enter { from: from.clone(), name: name.into(), to, at: at.into() });
    }

    fn file(&mut self, place: (&DirRef, &[u8]), meta: &Meta, to: Option<&To>, at: &[u8]) {
        let there = to.map_or(0, |to| {
            let part = self.job.part_name_of(to.hash.child(at));
            self.stored(to, at) + self.stored(to, &part)
        });
        let to_come = self.data(place, meta).saturating_sub(there);
        if meta.nlink < 2 {
            self.bytes += to_come;
            return;
        }
        let counted = self.met.entry(meta.key()).or_insert_with(|| {
            self.bytes += to_come;
            to_come
        });
        self.bytes -= *counted - to_come.min(*counted);
        *counted = to_come.min(*counted);
    }

    /// Bytes of the file that are no holes. What is allocated and not written is one, so what it stores does not tell.
    fn data(&self, (from, name): (&DirRef, &[u8]), meta: &Meta) -> u64 {
        if meta.is_dense() {
            return meta.size;
        }
        let Ok(file) = self.job.src.open_read(from, name) else { return 0 };
        let (mut bytes, mut at) = (0, 0);
        for _ in 0..PIECES_MAX {
            let Ok(Some(start)) = self.job.src.next_data(&file, at) else { break };
            let Ok(end) = self.job.src.next_hole(&file, start, meta.size) else { break };
            if start >= meta.size || end <= start {
                break;
            }
            (bytes, at) = (bytes + (end - start), end);
        }
        bytes
    }

    /// Bytes that a name has at the destination: they are of this file, or are free when it has its name.
    fn stored(&self, to: &To, name: &[u8]) -> u64 {
        let meta = self.job.dst.stat(At::Name(&to.dir, name));
        meta.ok().filter(|meta| meta.kind == FileKind::Regular).map_or(0, |meta| meta.stored)
    }
}
