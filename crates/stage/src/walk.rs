//! Listing the source and making its directories.

use crate::end::{At, Cursor, EndResult, Item, Meta, Refused, SetMeta, Xattr};
use crate::job::{Job, Worker, bump, is_leftover};
use crate::report::Failure;
use crate::sched::DirTask;
use crate::tree::{DirNode, Entry, NewDir, Spot};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_types::FileKind;

const LEFT_OUT: &str = "the temporary file of a copy that was interrupted is no data; left out";

/// Of a directory in another one: where only it is copied, it is the top.
fn below(parent: &Spot, name: &[u8]) -> Spot {
    match parent {
        Spot::Passage(path) => Spot::Top([path, name].join(&b'/').into()),
        _ => Spot::Below,
    }
}

impl Job<'_> {
    /// One step of the walk: opens a directory, or lists a page of it.
    pub fn walk(&self, task: DirTask) {
        match task {
            DirTask::List(node, cursor) => self.list(node, &cursor),
            DirTask::Enter(entry) => match self.enter(&entry) {
                Ok(node) => self.list(node, &Cursor::Start),
                Err(failure) => self.give_up(entry, None, failure),
            },
        }
    }

    fn enter(&self, entry: &Entry) -> Result<Arc<DirNode>, Failure> {
        let parent = &entry.dir;
        let (src, meta) = self.src.enter_dir(&parent.src, &entry.from).map_err(Failure::source)?;
        if meta.key() == self.dst_root {
            return Err(Failure::Refused("the destination lies inside the source".into()));
        }
        let made = self.dst.make_or_enter_dir(&parent.dst, &entry.to);
        let (dst, fresh) = made.map_err(Failure::target)?;
        let mtime = self.kept_mtime(&dst, fresh).map_err(Failure::target)?;
        bump(&self.totals.dirs, 1);
        self.set_tree();
        let (parent, name) = (Some(parent.clone()), entry.to.clone());
        let spot = below(&entry.dir.spot, &entry.from);
        let node = DirNode::new(NewDir { parent, name, src, dst, meta: Some(meta), fresh, mtime, spot });
        self.note_walked(&node);
        Ok(node)
    }

    fn list(&self, node: Arc<DirNode>, from: &Cursor) {
        let (mut items, next) = match self.src.list(&node.src, from) {
            Ok(page) => page,
            Err(error) => {
                self.report_error(&node, node.path(), &Failure::source(error));
                return self.one_less(node);
            }
        };
        items.retain(|item| {
            let left = is_leftover(&item.name);
            if left {
                self.findings.warn(node.path_of(&item.name), LEFT_OUT.into());
            }
            !left
        });
        node.add(items.len());
        let (mut dirs, mut files) = (Vec::new(), Vec::new());
        let more = next.is_some();
        // Below the subdirectories in the stack: the rest waits until they are walked.
        dirs.extend(next.map(|cursor| DirTask::List(node.clone(), cursor)));
        for item in items {
            let (dir, file) = self.sort_item(&node, item);
            dirs.extend(dir);
            files.extend(file);
        }
        self.sched.add(dirs, files);
        if !more {
            self.one_less(node);
        }
    }

    fn sort_item(&self, node: &Arc<DirNode>, item: Item) -> (Vec<DirTask>, Vec<Entry>) {
        let name: Arc<[u8]> = item.name.into();
        let entry = Entry::new(node.clone(), name.clone(), name, item.kind);
        self.sort_entry(entry, item.size.unwrap_or(0))
    }

    /// The task that an entry found means, counted.
    pub fn sort_entry(&self, mut entry: Entry, size: u64) -> (Vec<DirTask>, Vec<Entry>) {
        if entry.kind == Some(FileKind::Directory) {
            return (vec![DirTask::Enter(entry)], Vec::new());
        }
        bump(&self.control.inner.files_seen, 1);
        self.alive.fetch_add(1, Ordering::AcqRel);
        if entry.kind == Some(FileKind::Regular) {
            self.see(&mut entry, size);
        }
        (Vec::new(), vec![entry])
    }

    /// Copies what is no directory.
    pub fn entry(&self, worker: &mut Worker, mut entry: Entry) {
        let kind = match entry.kind {
            Some(kind) if entry.attempt == 0 => Ok(kind),
            // Unknown, or it changed since.
            _ => self.src.stat(At::Name(&entry.dir.src, &entry.from)).map(|meta| meta.kind),
        };
        match kind {
            Ok(FileKind::Regular) => self.regular(worker, entry),
            Ok(FileKind::Directory) => {
                self.bury(&entry);
                entry.kind = Some(FileKind::Directory);
                bump(&self.control.inner.files_done, 1);
                self.sched.add(vec![DirTask::Enter(entry)], Vec::new());
            }
            Ok(kind) => self.other(entry, kind),
            Err(error) => self.give_up(entry, None, Failure::source(error)),
        }
    }

    /// Everything in a directory is finished: its own attributes come last.
    pub fn finish_dir(&self, node: &DirNode) {
        if node.is_detour() {
            return;
        }
        let attributes = node.meta.as_ref().and_then(|meta| match self.settle_dir(node, meta) {
            Ok(xattrs) => {
                let meta = Meta { mtime: node.mtime.unwrap_or(meta.mtime), ..meta.clone() };
                Some((self.wanted_meta(&meta), xattrs))
            }
            Err(failure) => {
                self.report_error(node, node.path(), &failure);
                None
            }
        });
        let attributes = attributes.as_ref().map(|(set, xattrs)| (set, xattrs.as_slice()));
        match self.end_dir(node, attributes) {
            Ok(refused) => self.warn_refused(&|| node.path(), &refused),
            Err(error) => self.report_error(node, node.path(), &Failure::target(error)),
        }
        self.src.leave_dir(&node.src);
    }

    /// A directory made by this run needs no sync of its own where one at the end makes all durable: nothing
    /// in it was there before that a rerun after a power failure could take for what this run made.
    fn end_dir(&self, node: &DirNode, attributes: Option<(&SetMeta, &[Xattr])>) -> EndResult<Vec<Refused>> {
        if !(node.fresh && self.dst.syncs_together(&node.dst)) {
            return self.dst.finish_dir(&node.dst, attributes);
        }
        self.dirs_left.store(true, Ordering::Release);
        let dressed = attributes.map(|(set, xattrs)| self.dst.dress(At::Dir(&node.dst), set, xattrs));
        self.dst.leave_dir(&node.dst);
        dressed.unwrap_or_else(|| Ok(Vec::new()))
    }

    /// The extended attributes that a finished directory gets.
    fn settle_dir(&self, node: &DirNode, meta: &Meta) -> Result<Vec<Xattr>, Failure> {
        if self.journal.resumed && !node.fresh && !node.failed.load(Ordering::Acquire) {
            self.sweep(node)?;
        }
        let (now, xattrs) = self.src.look(At::Dir(&node.src)).map_err(Failure::source)?;
        if meta.unchanged(&now) {
            self.note_dir(node);
        } else {
            self.report_error(node, node.path(), &Failure::Changed);
        }
        self.wanted_xattrs(&|| node.path(), xattrs)
    }

    /// Removes temporary files that an earlier run of this copy left for entries that the
    /// source no longer has.
    fn sweep(&self, node: &DirNode) -> Result<(), Failure> {
        let mut cursor = Some(Cursor::Start);
        while let Some(from) = cursor {
            let (items, next) = self.dst.list(&node.dst, &from).map_err(Failure::target)?;
            for item in items.iter().filter(|item| self.is_our_part(&item.name)) {
                self.dst.unlink(&node.dst, &item.name).map_err(Failure::target)?;
            }
            cursor = next;
        }
        Ok(())
    }
}
