//! A place in a bucket as an end of a copy.

use crate::attrs::Attrs;
use crate::store::{Download, Head, Store};
use crate::upload::Upload;
use crate::url::ObjectUrl;
use crate::{REWRITE_BYTES_MAX, keys};
use opendal::Builder;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidepool_stage::{
    At, Control, Cursor, DirRef, End, EndError, EndResult, FileRef, Item, Meta, Nature, ReadRange, Refused,
    Rights, SetMeta, Xattr,
};
use tidepool_types::{Errno, FileKind};

/// Requests wait for the service most of the time.
const WORKERS: usize = 16;
/// Objects up to this size may be symbolic links, which only a request for each can tell.
const LINK_BYTES_MAX: u64 = 4096;
/// Entries handed out at a time.
const PAGE: usize = 1000;
/// Above this, a copy within the service loses the metadata.
const COPY_ONCE_BYTES_MAX: u64 = 5 << 30;
/// Names a refusal of everything but extended attributes.
const PLAIN_ATTRIBUTES: &[u8] = b"mode, owner and times";

/// A prefix.
struct Dir {
    /// Empty, or ending in '/'.
    key: String,
    /// There was nothing below it when it was opened, and nothing but this copy writes there.
    fresh: bool,
    marked: AtomicBool,
}

/// An object open for reading.
struct Reading {
    key: String,
    size: u64,
    /// As it was when it was opened, until somebody looks.
    first: Mutex<Option<Meta>>,
}

enum File {
    Reading(Reading),
    Writing(Arc<Upload>),
}

/// A directory in a bucket, with the rights of whoever opened it.
pub struct ObjectEnd {
    store: Arc<Store>,
    root: Arc<Dir>,
    rights: Rights,
    /// Being written, by temporary key.
    uploads: Mutex<HashMap<String, Arc<Upload>>>,
}

fn fail(operation: &'static str, errno: Errno, why: impl Into<String>) -> EndError {
    EndError { errno, operation, detail: Some(why.into()) }
}

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

fn dir_of(dir: &DirRef) -> EndResult<&Dir> {
    let held = match dir {
        DirRef::Held(held) => held.downcast_ref::<Dir>(),
        _ => None,
    };
    held.ok_or_else(|| EndError::new("use directory", Errno::EBADF))
}

fn file_of(file: &FileRef) -> EndResult<&File> {
    let held = match file {
        FileRef::Held(held) => held.downcast_ref::<File>(),
        _ => None,
    };
    held.ok_or_else(|| EndError::new("use file", Errno::EBADF))
}

fn hold_dir(key: String, fresh: bool) -> DirRef {
    DirRef::Held(Arc::new(Dir { key, fresh, marked: AtomicBool::new(false) }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ObjectEnd {
    /// The directory `path` below the URL's prefix. Without `create` it has to be there.
    pub fn open(url: &ObjectUrl, path: &[u8], create: bool) -> EndResult<ObjectEnd> {
        ObjectEnd::below(Store::connect(url)?, &url.prefix, path, create)
    }

    /// A directory of any service that `opendal` knows, whose failures are final. `name` is for people
    /// and tells services apart.
    pub fn of_service(service: impl Builder, name: &str, path: &[u8], create: bool) -> EndResult<ObjectEnd> {
        ObjectEnd::below(Store::of_service(service, name)?, "", path, create)
    }

    fn below(store: Store, prefix: &str, path: &[u8], create: bool) -> EndResult<ObjectEnd> {
        let mut key = prefix.to_string();
        for name in path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            key = keys::join("open", &key, name)? + "/";
        }
        // Also tells whether the bucket is there and may be used.
        let fresh = store.list(&key, Some(1))?.is_empty() && store.head_dir(&key)?.is_none();
        if fresh && key != *prefix {
            match store.head(key.trim_end_matches('/'))? {
                Some(_) => return Err(fail("open", Errno::ENOTDIR, format!("'{key}' is an object"))),
                None if !create => return Err(fail("open", Errno::ENOENT, format!("nothing below '{key}'"))),
                None => {}
            }
        }
        let rights = Rights {
            root: rustix::process::geteuid().is_root(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let root = Arc::new(Dir { key, fresh, marked: AtomicBool::new(false) });
        Ok(ObjectEnd { store: Arc::new(store), root, rights, uploads: Mutex::default() })
    }

    fn meta(&self, key: &str, kind: FileKind, head: &Head) -> Meta {
        let attrs = &head.attrs;
        let modified = head.modified.unwrap_or(self.store.opened);
        let mtime =
            attrs.mtime.unwrap_or(if kind == FileKind::Directory { self.store.opened } else { modified });
        let regular = kind == FileKind::Regular;
        let size = if regular || kind == FileKind::Symlink { head.size } else { 0 };
        Meta {
            dev: hash(("object store", &self.store.name)),
            // Another object after each change, because times of services are coarse.
            ino: if kind == FileKind::Directory { hash(key) } else { hash((key, &head.etag)) },
            kind,
            mode: attrs.mode.unwrap_or(if kind == FileKind::Directory { 0o755 } else { 0o644 }),
            nlink: 1,
            uid: attrs.uid.unwrap_or(self.rights.uid),
            gid: attrs.gid.unwrap_or(self.rights.gid),
            size,
            stored: size,
            rdev: attrs.rdev,
            atime: mtime,
            mtime,
            ctime: if kind == FileKind::Directory { mtime } else { modified },
        }
    }

    fn object(&self, key: &str, head: &Head) -> Meta {
        let kind = head.attrs.kind.filter(|kind| *kind != FileKind::Directory);
        self.meta(key, kind.unwrap_or(FileKind::Regular), head)
    }

    fn directory(&self, key: &str) -> EndResult<(Meta, Attrs)> {
        let none = Head { size: 0, etag: String::new(), modified: None, attrs: Attrs::default() };
        let head = self.store.head_dir(key)?.unwrap_or(none);
        Ok((self.meta(key, FileKind::Directory, &head), head.attrs))
    }

    /// What a name stands for.
    fn find(&self, operation: &'static str, dir: &Dir, name: &[u8]) -> EndResult<(Meta, Attrs)> {
        let key = keys::join(operation, &dir.key, name)?;
        if let Some(head) = self.store.head(&key)? {
            return Ok((self.object(&key, &head), head.attrs));
        }
        let below = key + "/";
        if self.store.head_dir(&below)?.is_none() && self.store.list(&below, Some(1))?.is_empty() {
            return Err(fail(operation, Errno::ENOENT, format!("'{}'", below.trim_end_matches('/'))));
        }
        self.directory(&below)
    }

    fn seen(&self, at: At<'_>) -> EndResult<(Meta, Attrs)> {
        match at {
            At::Dir(dir) => self.directory(&dir_of(dir)?.key),
            At::Name(dir, name) => self.find("stat", dir_of(dir)?, name),
            At::File(file) => match file_of(file)? {
                File::Reading(reading) => {
                    let head = self.store.head(&reading.key)?;
                    let gone = || fail("stat", Errno::ENOENT, format!("'{}'", reading.key));
                    let head = head.ok_or_else(gone)?;
                    Ok((self.object(&reading.key, &head), head.attrs))
                }
                File::Writing(upload) => {
                    let (size, attrs) = (upload.size(), upload.attrs());
                    let head = Head { size, etag: String::new(), modified: None, attrs };
                    Ok((self.object(&upload.key, &head), head.attrs))
                }
            },
        }
    }

    /// Key and size of what can be read.
    fn readable<'a>(&self, file: &'a FileRef) -> EndResult<(&'a str, u64)> {
        match file_of(file)? {
            File::Reading(reading) => Ok((&reading.key, reading.size)),
            File::Writing(upload) => {
                let size = upload.done().ok_or_else(|| {
                    fail("read", Errno::EBUSY, "an object can be read when its upload is complete")
                })?;
                Ok((&upload.key, size))
            }
        }
    }

    fn stream<'a>(&'a self, file: &'a FileRef, range: Range<u64>) -> EndResult<Incoming<'a>> {
        let (key, size) = self.readable(file)?;
        let range = range.start.min(size)..range.end.min(size);
        let from = if range.is_empty() { None } else { Some(self.store.download(key, range)?) };
        Ok(Incoming { store: &self.store, key, from })
    }

    /// Writes a small object again with other attributes.
    fn rewrite(&self, dir: &Dir, name: &[u8], change: impl FnOnce(&mut Attrs)) -> EndResult<()> {
        let key = keys::join("set attributes", &dir.key, name)?;
        let Some(head) = self.store.head(&key)? else {
            let (_, mut attrs) = self.find("set attributes", dir, name)?;
            change(&mut attrs);
            return self.mark(&Dir { key: key + "/", fresh: false, marked: AtomicBool::new(false) }, attrs);
        };
        let mut attrs = head.attrs.clone();
        attrs.kind.get_or_insert(FileKind::Regular);
        change(&mut attrs);
        if attrs == head.attrs {
            return Ok(());
        }
        if head.size > REWRITE_BYTES_MAX {
            let why = "other attributes would mean writing the whole object again";
            return Err(fail("set attributes", Errno::EOPNOTSUPP, why));
        }
        let data = self.whole("set attributes", &key, head.size)?;
        self.store.put(&key, data, &attrs)
    }

    /// A small object.
    fn whole(&self, operation: &'static str, key: &str, size: u64) -> EndResult<Vec<u8>> {
        let mut data = vec![0; size as usize];
        let from = (size > 0).then(|| self.store.download(key, 0..size)).transpose()?;
        let mut from = Incoming { store: &self.store, key, from };
        let mut filled = 0;
        while filled < data.len() {
            match from.read(&mut data[filled..])? {
                0 => return Err(fail(operation, Errno::ESTALE, "the object changes meanwhile")),
                count => filled += count,
            }
        }
        Ok(data)
    }

    /// Writes the object that stands for a directory.
    fn mark(&self, dir: &Dir, attrs: Attrs) -> EndResult<()> {
        if !dir.key.is_empty() {
            let attrs = Attrs { kind: Some(FileKind::Directory), ..attrs };
            self.store.put_dir(&dir.key, &attrs)?;
        }
        dir.marked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Attributes as they are to be, and those that have no room.
    fn add(attrs: &mut Attrs, set: &SetMeta, xattrs: &[Xattr]) -> Vec<Refused> {
        attrs.apply(set);
        let mut refused = Vec::new();
        for (name, value) in xattrs {
            if !attrs.add_xattr(name, value) {
                let why = "an object keeps 2 KiB of metadata";
                refused.push((name.clone(), fail("set attribute", Errno::E2BIG, why)));
            }
        }
        refused
    }

    fn set(&self, at: At<'_>, set: &SetMeta, xattrs: &[Xattr]) -> EndResult<Vec<Refused>> {
        let mut refused = Vec::new();
        let change = |attrs: &mut Attrs| refused = ObjectEnd::add(attrs, set, xattrs);
        match at {
            At::File(file) => match file_of(file)? {
                File::Writing(upload) if upload.set(change) => {}
                _ => return Err(fail("set attributes", Errno::EBUSY, "the object is on its way already")),
            },
            At::Dir(dir) => {
                let mut attrs = Attrs::default();
                refused = ObjectEnd::add(&mut attrs, set, xattrs);
                self.mark(dir_of(dir)?, attrs)?;
            }
            At::Name(dir, name) => self.rewrite(dir_of(dir)?, name, change)?,
        }
        Ok(refused)
    }

    /// Why a service cannot keep the attributes of something.
    fn forgets(&self, at: At<'_>) -> EndResult<Option<&'static str>> {
        let large = match at {
            At::File(file) => match file_of(file)? {
                File::Writing(upload) => upload.size() > COPY_ONCE_BYTES_MAX,
                File::Reading(_) => false,
            },
            At::Dir(dir) if dir_of(dir)?.key.is_empty() => return Ok(Some("a bucket has no attributes")),
            At::Dir(_) if !self.store.marks_directories => {
                return Ok(Some("the service keeps no metadata of directories"));
            }
            _ => false,
        };
        let plain = (!self.store.keeps_metadata).then_some("the service keeps no metadata");
        Ok(plain.or(large.then_some("objects over 5 GiB lose their metadata when they get their names")))
    }

    fn is_empty(&self, dir: &str) -> EndResult<bool> {
        Ok(self.store.list(dir, Some(1))?.is_empty())
    }

    /// An object that is neither a file nor a directory.
    fn make_other(&self, dir: &DirRef, name: &[u8], body: &[u8], attrs: &Attrs) -> EndResult<()> {
        if !self.store.keeps_metadata {
            let why = "the service keeps no metadata, which is needed to tell this from a file";
            return Err(fail("make", Errno::EOPNOTSUPP, why));
        }
        let key = keys::join("make", &dir_of(dir)?.key, name)?;
        self.store.put(&key, body.to_vec(), attrs)
    }

    /// Name and kind of a listed key.
    fn item(&self, dir: &Dir, key: &str, size: u64) -> EndResult<Item> {
        let strange = || {
            fail(
                "list",
                Errno::EINVAL,
                format!("key '{}' is no path", tidepool_stage::show_bytes(key.as_bytes())),
            )
        };
        let rest = key.strip_prefix(&dir.key).ok_or_else(strange)?;
        let below = rest.strip_suffix('/');
        let name = keys::check_name(below.unwrap_or(rest).as_bytes()).map_err(|_| strange())?;
        let kind = match below {
            Some(_) => Some(FileKind::Directory),
            None => (size > LINK_BYTES_MAX || !self.store.keeps_metadata).then_some(FileKind::Regular),
        };
        Ok(Item { name: name.into(), kind, size: below.is_none().then_some(size) })
    }
}

impl Store {
    fn head_dir(&self, key: &str) -> EndResult<Option<Head>> {
        if key.is_empty() { Ok(None) } else { self.head(key) }
    }
}

struct Incoming<'a> {
    store: &'a Store,
    key: &'a str,
    from: Option<Download>,
}

impl ReadRange for Incoming<'_> {
    fn read(&mut self, buf: &mut [u8]) -> EndResult<usize> {
        match &mut self.from {
            Some(from) if !buf.is_empty() => self.store.receive(self.key, from, buf),
            _ => Ok(0),
        }
    }
}

/// Says again why reading could not begin.
struct Broken(EndError);

impl ReadRange for Broken {
    fn read(&mut self, _: &mut [u8]) -> EndResult<usize> {
        Err(self.0.clone())
    }
}

impl End for ObjectEnd {
    fn describe(&self) -> String {
        format!("{} /{}", self.store.name, self.root.key)
    }

    fn identity(&self) -> Vec<u8> {
        format!("object:{}:{}", self.store.name, self.root.key).into_bytes()
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn heed(&self, control: &Control) {
        self.store.heed(control);
    }

    fn nature(&self) -> Nature {
        Nature { attributes_first: true, links_are_copies: true, no_holes: true }
    }

    fn knows_sizes(&self, _meta: &Meta) -> bool {
        true
    }

    fn reads_touch_atime(&self) -> bool {
        false
    }

    fn root(&self) -> DirRef {
        DirRef::Held(self.root.clone())
    }

    fn open_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<DirRef> {
        let dir = dir_of(dir)?;
        let (meta, _) = self.find("open directory", dir, name)?;
        if meta.kind != FileKind::Directory {
            return Err(EndError::new("open directory", Errno::ENOTDIR));
        }
        Ok(hold_dir(keys::join("open directory", &dir.key, name)? + "/", false))
    }

    fn leave_dir(&self, _: &DirRef) {}

    fn list(&self, dir: &DirRef, from: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)> {
        let (entries, at) = match from {
            Cursor::Pool { entries, at } => (entries.clone(), *at),
            _ => (self.items(dir_of(dir)?)?, 0),
        };
        let end = entries.len().min(at + PAGE);
        let page = entries[at..end].to_vec();
        let next = (end < entries.len()).then_some(Cursor::Pool { entries, at: end });
        Ok((page, next))
    }

    fn stat(&self, at: At<'_>) -> EndResult<Meta> {
        if let At::File(file) = at
            && let File::Reading(reading) = file_of(file)?
            && let Some(first) = lock(&reading.first).take()
        {
            return Ok(first);
        }
        self.seen(at).map(|(meta, _)| meta)
    }

    fn read_link(&self, dir: &DirRef, name: &[u8]) -> EndResult<Vec<u8>> {
        let key = keys::join("read link", &dir_of(dir)?.key, name)?;
        match self.store.head(&key)? {
            Some(head) if head.size <= LINK_BYTES_MAX => self.whole("read link", &key, head.size),
            Some(_) => Err(EndError::new("read link", Errno::EINVAL)),
            None => Err(EndError::new("read link", Errno::ENOENT)),
        }
    }

    fn xattrs(&self, at: At<'_>) -> EndResult<Vec<Xattr>> {
        self.seen(at).map(|(_, attrs)| attrs.xattrs)
    }

    fn look(&self, at: At<'_>) -> EndResult<(Meta, EndResult<Vec<Xattr>>)> {
        self.seen(at).map(|(meta, attrs)| (meta, Ok(attrs.xattrs)))
    }

    fn open_read(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        let dir = dir_of(dir)?;
        let (meta, _) = self.find("open", dir, name)?;
        if meta.kind == FileKind::Directory {
            return Err(EndError::new("open", Errno::EISDIR));
        }
        let key = keys::join("open", &dir.key, name)?;
        let reading = Reading { key, size: meta.size, first: Mutex::new(Some(meta)) };
        Ok(FileRef::Held(Arc::new(File::Reading(reading))))
    }

    fn read(&self, file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        self.stream(file, offset..offset.saturating_add(buf.len() as u64))?.read(buf)
    }

    fn reader<'a>(&'a self, file: &'a FileRef, range: Range<u64>) -> Box<dyn ReadRange + 'a> {
        match self.stream(file, range) {
            Ok(incoming) => Box::new(incoming),
            Err(error) => Box::new(Broken(error)),
        }
    }

    fn checksum(&self, file: &FileRef, range: Range<u64>, _: bool, buf: &mut [u8]) -> EndResult<Option<u32>> {
        let mut left = range.end - range.start;
        let mut from = self.stream(file, range)?;
        let mut crc = 0;
        while left > 0 {
            let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match from.read(&mut buf[..want])? {
                0 => return Ok(None),
                count => {
                    crc = crc32c::crc32c_append(crc, &buf[..count]);
                    left -= count as u64;
                }
            }
        }
        Ok(Some(crc))
    }

    fn next_data(&self, file: &FileRef, offset: u64) -> EndResult<Option<u64>> {
        let (_, size) = self.readable(file)?;
        Ok((offset < size).then_some(offset))
    }

    fn next_hole(&self, _: &FileRef, _: u64, limit: u64) -> EndResult<u64> {
        Ok(limit)
    }

    fn drop_cache(&self, _: &FileRef, _: u64, _: u64) {}

    /// Nothing is there before the upload is complete, which then replaces what a killed run left.
    fn create(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        let key = keys::join("create", &dir_of(dir)?.key, name)?;
        let attrs = Attrs { mode: Some(0o600), ..Attrs::of_kind(FileKind::Regular) };
        let upload = Arc::new(Upload::new(self.store.clone(), key.clone(), attrs));
        lock(&self.uploads).insert(key, upload.clone());
        Ok(FileRef::Held(Arc::new(File::Writing(upload))))
    }

    /// Which parts of an upload are there already, the upload finds out itself.
    fn open_write(&self, _: &DirRef, _: &[u8]) -> EndResult<FileRef> {
        Err(fail("open for writing", Errno::EOPNOTSUPP, "objects cannot be changed, only replaced"))
    }

    fn write(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize> {
        match file_of(file)? {
            File::Writing(upload) => upload.write(offset, data),
            File::Reading(_) => Err(EndError::new("write", Errno::EBADF)),
        }
    }

    fn truncate(&self, file: &FileRef, size: u64) -> EndResult<()> {
        match file_of(file)? {
            File::Writing(upload) => upload.truncate(size),
            File::Reading(_) => Err(EndError::new("truncate", Errno::EBADF)),
        }
    }

    fn fsync(&self, file: &FileRef) -> EndResult<()> {
        match file_of(file)? {
            File::Writing(upload) => upload.complete(),
            File::Reading(_) => Ok(()),
        }
    }

    fn fsync_dir(&self, dir: &DirRef) -> EndResult<()> {
        let dir = dir_of(dir)?;
        let needed = dir.fresh && !dir.marked.load(Ordering::Relaxed);
        if needed { self.mark(dir, Attrs::default()) } else { Ok(()) }
    }

    fn fsync_all(&self) -> EndResult<()> {
        Ok(())
    }

    fn make_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let dir = dir_of(dir)?;
        match self.find("make directory", dir, name) {
            Ok(_) => return Err(EndError::new("make directory", Errno::EEXIST)),
            Err(error) if error.errno == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        let key = keys::join("make directory", &dir.key, name)? + "/";
        self.store.put_dir(&key, &Attrs { mode: Some(0o700), ..Attrs::of_kind(FileKind::Directory) })
    }

    /// A directory appears with its first object, or with its attributes when it is finished.
    fn make_or_enter_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<(DirRef, bool)> {
        let dir = dir_of(dir)?;
        let key = keys::join("make directory", &dir.key, name)? + "/";
        if dir.fresh {
            return Ok((hold_dir(key, true), true));
        }
        match self.find("make directory", dir, name) {
            Ok((meta, _)) if meta.kind == FileKind::Directory => Ok((hold_dir(key, false), false)),
            Ok(_) => Err(EndError::new("make directory", Errno::ENOTDIR)),
            Err(error) if error.errno == Errno::ENOENT => Ok((hold_dir(key, true), true)),
            Err(error) => Err(error),
        }
    }

    fn make_symlink(&self, dir: &DirRef, name: &[u8], target: &[u8]) -> EndResult<()> {
        self.make_other(dir, name, target, &Attrs::of_kind(FileKind::Symlink))
    }

    fn make_node(&self, dir: &DirRef, name: &[u8], kind: FileKind, rdev: u64) -> EndResult<()> {
        self.make_other(dir, name, b"", &Attrs { rdev, mode: Some(0o600), ..Attrs::of_kind(kind) })
    }

    fn make_link(&self, old: (&DirRef, &[u8]), new: (&DirRef, &[u8])) -> EndResult<()> {
        let from = keys::join("copy object", &dir_of(old.0)?.key, old.1)?;
        let to = keys::join("copy object", &dir_of(new.0)?.key, new.1)?;
        self.store.copy(&from, &to, None)
    }

    /// A copy by the service, which replaces the final name at once, and a removal.
    fn rename(&self, dir: &DirRef, from: &[u8], to: &[u8]) -> EndResult<()> {
        let dir = dir_of(dir)?;
        let (from, to) = (keys::join("rename", &dir.key, from)?, keys::join("rename", &dir.key, to)?);
        if !dir.fresh && !self.is_empty(&format!("{to}/"))? {
            return Err(fail("rename", Errno::EISDIR, format!("there are objects below '{to}/'")));
        }
        let sent = lock(&self.uploads).get(&from).cloned();
        let sent = sent.and_then(|upload| Some((upload.done()?, upload.attrs())));
        match sent {
            // Uploads in parts are begun without attributes: those of an earlier run may be others.
            Some((size, attrs)) if size <= COPY_ONCE_BYTES_MAX => {
                self.store.copy_with(&from, &to, &attrs)?;
            }
            sent => self.store.copy(&from, &to, sent.map(|(size, _)| size))?,
        }
        lock(&self.uploads).remove(&from);
        self.store.delete(&from)
    }

    fn unlink(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let key = keys::join("remove", &dir_of(dir)?.key, name)?;
        let upload = lock(&self.uploads).remove(&key);
        let abandoned = upload.map_or(Ok(()), |upload| upload.abandon());
        // Whether a failed request was carried out nobody knows.
        self.store.delete(&key).and(abandoned)
    }

    fn remove_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let key = keys::join("remove directory", &dir_of(dir)?.key, name)? + "/";
        if !self.is_empty(&key)? {
            return Err(EndError::new("remove directory", Errno::ENOTEMPTY));
        }
        self.store.abort_below(&key)?;
        self.store.delete(&key)
    }

    fn set_meta(&self, at: At<'_>, set: &SetMeta) -> EndResult<()> {
        match self.forgets(at)? {
            Some(why) => Err(fail("set attributes", Errno::EOPNOTSUPP, why)),
            None => self.set(at, set, &[]).map(drop),
        }
    }

    fn set_xattr(&self, at: At<'_>, name: &[u8], value: &[u8]) -> EndResult<()> {
        let xattr = (name.to_vec(), value.to_vec());
        let refused = self.dress(at, &SetMeta::default(), &[xattr])?;
        refused.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    fn dress(&self, at: At<'_>, set: &SetMeta, xattrs: &[Xattr]) -> EndResult<Vec<Refused>> {
        let Some(why) = self.forgets(at)? else { return self.set(at, set, xattrs) };
        let error = fail("set attributes", Errno::EOPNOTSUPP, why);
        let names = xattrs.iter().map(|(name, _)| name.clone());
        Ok(names.chain([PLAIN_ATTRIBUTES.to_vec()]).map(|name| (name, error.clone())).collect())
    }

    fn workers_wanted(&self) -> usize {
        WORKERS
    }
}

impl ObjectEnd {
    /// All entries of a directory; an error where a file system could not have them.
    fn items(&self, dir: &Dir) -> EndResult<Arc<[Item]>> {
        let mut items = Vec::new();
        for found in self.store.list(&dir.key, None)? {
            items.push(self.item(dir, &found.key, found.size)?);
        }
        items.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(twice) = items.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let name = tidepool_stage::show_bytes(&twice[0].name);
            let why = format!("'{name}' is an object and has others below it; no directory can hold both");
            return Err(fail("list", Errno::EEXIST, why));
        }
        Ok(items.into())
    }
}
