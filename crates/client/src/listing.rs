//! Listing directories, with the attributes of what is in them or without.

use crate::calls::{Bulk, Call, expect_reply};
use crate::{Client, FsError};
use rustc_hash::FxHashMap;
use tidepool_types::{Attr, DaemonIndex, FileKind, Ino};
use tidepool_wire::message::{Bytes, Reply, Request};

/// Entries, objects or directories asked for in one request; daemons may send fewer entries.
const PAGE: usize = 2_000;

/// One entry of a listing; `.` and `..` are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub ino: Ino,
    pub kind: FileKind,
}

impl Client {
    /// All entries of a directory. Each daemon's share is a consistent snapshot per page;
    /// entries made or removed meanwhile may or may not be among them.
    pub fn read_dir(&self, dir: Ino) -> Result<Vec<DirEntry>, FsError> {
        let mut all = Vec::new();
        let request = |after| Request::List { dir, after, max: PAGE as u32 };
        self.each_page(request, |daemon, reply| {
            let (page, more) =
                expect_reply!(self, daemon, reply, Reply::Entries { entries, more } => (entries, more))?;
            let last = page.last().map(|(name, _)| name.clone()).filter(|_| more);
            all.extend(page.into_iter().map(|(name, dentry)| DirEntry {
                name: name.into_vec(),
                ino: dentry.ino,
                kind: dentry.kind,
            }));
            Ok(last)
        })?;
        Ok(all)
    }

    /// The same with the attributes of the objects, each as it was at some moment of this call. None for an
    /// object that had gone by then.
    pub fn read_dir_plus(&self, dir: Ino) -> Result<Vec<(DirEntry, Option<Attr>)>, FsError> {
        self.settle_all()?;
        let (mut all, mut known) = (Vec::new(), FxHashMap::default());
        let request = |after| Request::ListPlus { dir, after, max: PAGE as u32 };
        self.each_page(request, |daemon, reply| {
            let (page, more) =
                expect_reply!(self, daemon, reply, Reply::EntriesPlus { entries, more } => (entries, more))?;
            let last = page.last().map(|entry| entry.name.clone()).filter(|_| more);
            for entry in page {
                known.extend(entry.attr.map(|attr| (attr.ino, attr)));
                let (ino, kind) = (entry.dentry.ino, entry.dentry.kind);
                all.push(DirEntry { name: entry.name.into_vec(), ino, kind });
            }
            Ok(last)
        })?;
        let inos: Vec<Ino> = all.iter().map(|entry| entry.ino).collect();
        self.complete(&inos, &mut known)?;
        Ok(all
            .into_iter()
            .map(|entry| (known.get(&entry.ino).cloned(), entry))
            .map(|(a, e)| (e, a))
            .collect())
    }

    /// Attributes of many objects, in a few requests to each daemon; of those that there are.
    pub fn get_attrs(&self, inos: &[Ino]) -> Result<FxHashMap<Ino, Attr>, FsError> {
        inos.iter().try_for_each(|ino| self.settle(*ino))?;
        let mut known = FxHashMap::default();
        self.complete(inos, &mut known)?;
        Ok(known)
    }

    /// Asks for what `known` lacks, and puts together the attributes of directories.
    fn complete(&self, inos: &[Ino], known: &mut FxHashMap<Ino, Attr>) -> Result<(), FsError> {
        let mut missing: FxHashMap<DaemonIndex, Vec<Ino>> = FxHashMap::default();
        for ino in inos.iter().filter(|ino| !known.contains_key(ino)).collect::<Vec<_>>() {
            match self.known_attr(*ino) {
                Some(attr) => drop(known.insert(*ino, attr)),
                None => missing.entry(ino.home()).or_default().push(*ino),
            }
        }
        let pages = missing.iter().flat_map(|(home, inos)| inos.chunks(PAGE).map(|page| (*home, page)));
        let calls = pages.map(|(home, page)| call(home, Request::GetAttrs { inos: page.to_vec() }));
        self.each_reply(calls.collect(), |daemon, reply| {
            let attrs = expect_reply!(self, daemon, reply, Reply::AttributesOf { attrs } => attrs)?;
            known.extend(attrs.into_iter().map(|attr| (attr.ino, attr)));
            Ok(())
        })?;
        self.complete_dirs(known)
    }

    /// Adds to directories' own records what each daemon knows of their entries.
    fn complete_dirs(&self, known: &mut FxHashMap<Ino, Attr>) -> Result<(), FsError> {
        let dirs: Vec<Ino> = known.values().filter(|attr| attr.is_dir()).map(|attr| attr.ino).collect();
        for dirs in dirs.chunks(PAGE) {
            let mut parts = vec![Vec::with_capacity(self.members()); dirs.len()];
            let all = 0..self.members() as DaemonIndex;
            let calls = all.map(|daemon| call(daemon, Request::DirStats { dirs: dirs.to_vec() }));
            self.each_reply(calls.collect(), |daemon, reply| {
                let page = expect_reply!(self, daemon, reply, Reply::Parts { parts } => parts)?;
                parts.iter_mut().zip(page).for_each(|(of_dir, part)| of_dir.push(part));
                Ok(())
            })?;
            for (dir, parts) in dirs.iter().zip(parts) {
                if let Some(attr) = known.get_mut(dir) {
                    crate::attrs::put_together(attr, &parts);
                }
            }
        }
        Ok(())
    }

    /// Asks all daemons side by side, page after page. `take` tells what the next page comes after, if there is one.
    fn each_page(
        &self,
        request: impl Fn(Option<Bytes>) -> Request,
        mut take: impl FnMut(DaemonIndex, Reply) -> Result<Option<Bytes>, FsError>,
    ) -> Result<(), FsError> {
        let mut calls: Vec<Call<'_>> =
            (0..self.members() as DaemonIndex).map(|daemon| call(daemon, request(None))).collect();
        while !calls.is_empty() {
            let mut next = Vec::new();
            self.each_reply(calls, |daemon, reply| {
                next.extend(take(daemon, reply)?.map(|after| call(daemon, request(Some(after)))));
                Ok(())
            })?;
            calls = next;
        }
        Ok(())
    }

    fn each_reply(
        &self,
        mut calls: Vec<Call<'_>>,
        mut take: impl FnMut(DaemonIndex, Reply) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let answers = self.call_all(&mut calls);
        calls.iter().zip(answers).try_for_each(|(call, answer)| take(call.daemon, answer?.reply))
    }
}

fn call(daemon: DaemonIndex, request: Request) -> Call<'static> {
    Call::new(daemon, request, Bulk::None)
}
