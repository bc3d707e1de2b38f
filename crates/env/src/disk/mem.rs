//! File systems in memory: one that keeps everything, one that a crash robs of all that was not synced.

use super::{DirEntry, Disk, DiskFile, OpenMode, Space, os_error, parts};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const PAGE: usize = 4096;
/// What a memory disk without a limit says it could hold.
const TOTAL_DEFAULT: u64 = 1 << 40;

/// Pages behind `Arc`, so that keeping the synced version of a file costs no copy.
type Page = Arc<[u8; PAGE]>;

/// Sparse bytes.
#[derive(Clone, Debug, Default)]
struct Bytes {
    pages: BTreeMap<u64, Page>,
    len: u64,
}

impl Bytes {
    fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let end = self.len.min(offset.saturating_add(buf.len() as u64));
        let count = end.saturating_sub(offset) as usize;
        for (at, index, within, len) in pieces(offset, count) {
            let target = &mut buf[at..at + len];
            match self.pages.get(&index) {
                Some(page) => target.copy_from_slice(&page[within..within + len]),
                None => target.fill(0),
            }
        }
        count
    }

    fn write(&mut self, buf: &[u8], offset: u64) {
        for (at, index, within, len) in pieces(offset, buf.len()) {
            let page = self.pages.entry(index).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + len].copy_from_slice(&buf[at..at + len]);
        }
        self.len = self.len.max(offset + buf.len() as u64);
    }

    /// Pages that a write would add.
    fn pages_new(&self, len: usize, offset: u64) -> u64 {
        pieces(offset, len).filter(|(_, index, ..)| !self.pages.contains_key(index)).count() as u64
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.pages.split_off(&len.div_ceil(PAGE as u64));
            let within = (len % PAGE as u64) as usize;
            if within != 0
                && let Some(page) = self.pages.get_mut(&(len / PAGE as u64))
            {
                Arc::make_mut(page)[within..].fill(0);
            }
        }
        self.len = len;
    }

    fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<u64> = self
            .pages
            .range(offset / PAGE as u64..end.div_ceil(PAGE as u64))
            .map(|(index, _)| *index)
            .collect();
        for index in touched {
            let start = index * PAGE as u64;
            let (from, to) = (offset.max(start) - start, end.min(start + PAGE as u64) - start);
            if to - from == PAGE as u64 {
                self.pages.remove(&index);
            } else if let Some(page) = self.pages.get_mut(&index) {
                Arc::make_mut(page)[from as usize..to as usize].fill(0);
            }
        }
    }

    fn next_data(&self, from: u64) -> Option<u64> {
        let (index, _) = self.pages.range(from / PAGE as u64..).next()?;
        let at = from.max(index * PAGE as u64);
        (at < self.len).then_some(at)
    }
}

/// Cuts a range at page borders: (position in the range, page, position in the page, length).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, u64, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let here = offset + at as u64;
        let within = (here % PAGE as u64) as usize;
        let piece = (at, here / PAGE as u64, within, (PAGE - within).min(len - at));
        at += piece.3;
        Some(piece)
    })
}

#[derive(Debug, Default)]
struct Node {
    live: RwLock<Bytes>,
    synced: Mutex<Bytes>,
}

/// `None` is a directory.
type Names = BTreeMap<String, Option<Arc<Node>>>;

#[derive(Debug, Default)]
struct Tree {
    live: Names,
    synced: Names,
}

#[derive(Debug)]
struct Shared {
    tree: Mutex<Tree>,
    /// Most pages in use; files removed while open are not counted any more.
    pages_max: u64,
    /// Keep the synced versions, for a crash.
    forgetful: bool,
}

/// A file system in memory. Clones share it, so a store can be dropped and opened again.
#[derive(Clone, Debug)]
pub struct MemDisk {
    shared: Arc<Shared>,
}

impl Default for MemDisk {
    fn default() -> MemDisk {
        MemDisk::new()
    }
}

impl MemDisk {
    pub fn new() -> MemDisk {
        MemDisk::with_capacity(TOTAL_DEFAULT)
    }

    /// A disk that is full (`ENOSPC`) when `bytes` are in use.
    pub fn with_capacity(bytes: u64) -> MemDisk {
        MemDisk::build(bytes, false)
    }

    fn build(bytes: u64, forgetful: bool) -> MemDisk {
        let shared = Shared { tree: Mutex::default(), pages_max: bytes / PAGE as u64, forgetful };
        MemDisk { shared: Arc::new(shared) }
    }

    /// A disk of its own with the same content, for trying something out on a copy.
    pub fn deep_copy(&self) -> MemDisk {
        let copy = MemDisk::build(self.shared.pages_max * PAGE as u64, false);
        let live = self.tree().live.iter().map(|(name, node)| (name.clone(), copy_node(node))).collect();
        copy.tree().live = live;
        copy
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.shared.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pages_used(&self) -> u64 {
        self.tree().live.values().flatten().map(|node| read(&node.live).pages.len() as u64).sum()
    }
}

fn copy_node(node: &Option<Arc<Node>>) -> Option<Arc<Node>> {
    node.as_ref().map(|node| node_of(read(&node.live).clone()))
}

fn node_of(bytes: Bytes) -> Arc<Node> {
    Arc::new(Node { live: RwLock::new(bytes.clone()), synced: Mutex::new(bytes) })
}

fn read(bytes: &RwLock<Bytes>) -> std::sync::RwLockReadGuard<'_, Bytes> {
    bytes.read().unwrap_or_else(PoisonError::into_inner)
}

fn normal(path: &str) -> io::Result<String> {
    Ok(parts(path)?.collect::<Vec<_>>().join("/"))
}

fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The root has no name of its own.
fn demand_dir(names: &Names, dir: &str) -> io::Result<()> {
    match names.get(dir) {
        _ if dir.is_empty() => Ok(()),
        Some(None) => Ok(()),
        Some(Some(_)) => Err(os_error(libc::ENOTDIR)),
        None => Err(os_error(libc::ENOENT)),
    }
}

/// Full paths of what a directory holds.
fn children<'a>(names: &'a Names, dir: &'a str) -> impl Iterator<Item = (&'a String, &'a Option<Arc<Node>>)> {
    let from = if dir.is_empty() { String::new() } else { format!("{dir}/") };
    names
        .range(from.clone()..)
        .take_while(move |(path, _)| path.starts_with(&from))
        .filter(move |(path, _)| parent_of(path) == dir)
}

impl Disk for MemDisk {
    type File = MemFile;

    fn open(&self, path: &str, mode: OpenMode) -> io::Result<MemFile> {
        let path = normal(path)?;
        let mut tree = self.tree();
        demand_dir(&tree.live, parent_of(&path))?;
        let node = match (tree.live.get(&path), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(os_error(libc::EEXIST)),
            (Some(None), _) => return Err(os_error(libc::EISDIR)),
            (Some(Some(node)), _) => node.clone(),
            (None, OpenMode::Existing) => return Err(os_error(libc::ENOENT)),
            (None, _) => {
                tree.live.entry(path).or_insert(Some(Arc::default())).clone().expect("just inserted")
            }
        };
        drop(tree);
        Ok(MemFile { node, disk: self.clone() })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (normal(from)?, normal(to)?);
        let mut tree = self.tree();
        demand_dir(&tree.live, parent_of(&to))?;
        match (tree.live.get(&from), tree.live.get(&to)) {
            (None, _) => Err(os_error(libc::ENOENT)),
            // No store renames a directory, so the tests' file system does not either.
            (Some(None), _) | (_, Some(None)) => Err(os_error(libc::EISDIR)),
            (Some(Some(_)), _) => {
                let node = tree.live.remove(&from).expect("just seen");
                tree.live.insert(to, node);
                Ok(())
            }
        }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = normal(path)?;
        let mut tree = self.tree();
        match tree.live.get(&path) {
            None => Err(os_error(libc::ENOENT)),
            Some(None) => Err(os_error(libc::EISDIR)),
            Some(Some(_)) => {
                tree.live.remove(&path);
                Ok(())
            }
        }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>> {
        let dir = normal(dir)?;
        let tree = self.tree();
        demand_dir(&tree.live, &dir)?;
        let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_string();
        let entries = children(&tree.live, &dir)
            .map(|(path, node)| DirEntry { name: name(path), is_dir: node.is_none() });
        Ok(entries.collect())
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        let dir = normal(dir)?;
        let mut tree = self.tree();
        let mut path = String::new();
        for part in dir.split('/').filter(|part| !part.is_empty()) {
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(part);
            match tree.live.get(&path) {
                Some(None) => {}
                Some(Some(_)) => return Err(os_error(libc::ENOTDIR)),
                None => {
                    tree.live.insert(path.clone(), None);
                }
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let dir = normal(dir)?;
        let mut tree = self.tree();
        demand_dir(&tree.live, &dir)?;
        if self.shared.forgetful {
            let gone: Vec<String> = children(&tree.synced, &dir).map(|(path, _)| path.clone()).collect();
            let now: Vec<_> =
                children(&tree.live, &dir).map(|(path, node)| (path.clone(), node.clone())).collect();
            gone.iter().for_each(|path| drop(tree.synced.remove(path)));
            tree.synced.extend(now);
        }
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let free = self.shared.pages_max.saturating_sub(self.pages_used());
        Ok(Space { free: free * PAGE as u64, total: self.shared.pages_max * PAGE as u64 })
    }
}

/// An open file of a [`MemDisk`] or [`ForgetfulDisk`].
#[derive(Debug)]
pub struct MemFile {
    node: Arc<Node>,
    disk: MemDisk,
}

impl MemFile {
    /// Counting the pages of all files is slow, so only a disk with a limit does it.
    fn check_room(&self, len: usize, offset: u64) -> io::Result<()> {
        let limit = self.disk.shared.pages_max;
        if limit * PAGE as u64 == TOTAL_DEFAULT {
            return Ok(());
        }
        let new = read(&self.node.live).pages_new(len, offset);
        if new > 0 && self.disk.pages_used() + new > limit { Err(os_error(libc::ENOSPC)) } else { Ok(()) }
    }

    fn live(&self) -> std::sync::RwLockWriteGuard<'_, Bytes> {
        self.node.live.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFile for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(read(&self.node.live).read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check_room(buf.len(), offset)?;
        self.live().write(buf, offset);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(read(&self.node.live).len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.live().set_len(len);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.live().punch(offset, len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.disk.shared.forgetful {
            *self.node.synced.lock().unwrap_or_else(PoisonError::into_inner) = read(&self.node.live).clone();
        }
        Ok(())
    }

    fn next_data(&self, from: u64) -> io::Result<Option<u64>> {
        Ok(read(&self.node.live).next_data(from))
    }
}

/// A file system in memory that loses everything not synced when [`ForgetfulDisk::crash`] is called.
///
/// Contents are kept by [`DiskFile::sync`], names by [`Disk::sync_dir`] of the directory
/// that holds them: one without the other is lost, as POSIX allows.
#[derive(Clone, Debug)]
pub struct ForgetfulDisk {
    disk: MemDisk,
}

impl Default for ForgetfulDisk {
    fn default() -> ForgetfulDisk {
        ForgetfulDisk::new()
    }
}

impl ForgetfulDisk {
    pub fn new() -> ForgetfulDisk {
        ForgetfulDisk { disk: MemDisk::build(TOTAL_DEFAULT, true) }
    }

    /// The power fails: names and contents go back to what was synced. Handles opened
    /// before lead nowhere from now on.
    pub fn crash(&self) {
        let mut tree = self.disk.tree();
        let synced = std::mem::take(&mut tree.synced);
        let mut names = Names::new();
        // Ascending order puts a directory before what it holds.
        for (path, node) in synced {
            if demand_dir(&names, parent_of(&path)).is_ok() {
                names.insert(path, node.as_ref().map(synced_only));
            }
        }
        *tree = Tree { live: names.clone(), synced: names };
    }

    /// The power fails while the kernel writes: of what was not synced, `reached` says of each page, of the length of each file and of the
    /// names, whether it had reached the disk.
    pub fn crash_amid_writes(&self, mut reached: impl FnMut() -> bool) {
        let mut tree = self.disk.tree();
        let names = if reached() { tree.live.clone() } else { std::mem::take(&mut tree.synced) };
        let mut left = Names::new();
        for (path, node) in names {
            if demand_dir(&left, parent_of(&path)).is_ok() {
                left.insert(path, node.as_ref().map(|node| partly_synced(node, &mut reached)));
            }
        }
        *tree = Tree { live: left.clone(), synced: left };
    }

    /// The power fails after the names had reached the disk by themselves: only contents
    /// go back. Journalling file systems do this to a file renamed without a sync.
    pub fn crash_keeping_names(&self) {
        let mut tree = self.disk.tree();
        let names: Names =
            tree.live.iter().map(|(path, node)| (path.clone(), node.as_ref().map(synced_only))).collect();
        *tree = Tree { live: names.clone(), synced: names };
    }
}

fn synced_only(node: &Arc<Node>) -> Arc<Node> {
    node_of(node.synced.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

fn partly_synced(node: &Arc<Node>, reached: &mut impl FnMut() -> bool) -> Arc<Node> {
    let live = read(&node.live).clone();
    let mut left = node.synced.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let indices: std::collections::BTreeSet<u64> =
        live.pages.keys().chain(left.pages.keys()).copied().collect();
    for index in indices {
        match live.pages.get(&index) {
            page if page == left.pages.get(&index) || !reached() => {}
            Some(page) => drop(left.pages.insert(index, Arc::clone(page))),
            None => drop(left.pages.remove(&index)),
        }
    }
    let len = if left.len != live.len && reached() { live.len } else { left.len };
    // Also where nothing of a longer file is to show.
    left.len = left.len.max(live.len);
    left.set_len(len);
    node_of(left)
}

impl Disk for ForgetfulDisk {
    type File = MemFile;

    fn open(&self, path: &str, mode: OpenMode) -> io::Result<MemFile> {
        self.disk.open(path, mode)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }
    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }
}
