//! A directory at another node as an end of a copy: asking, and asking again.

use super::dial::Reach;
use super::fabric::Fabric;
use super::handle::{RemoteDir, RemoteFile, unexpected};
use super::lines::{Lease, Lines, Trouble};
use super::message::{Answer, Ask, OpenHow, RootInfo, RootRequest, Spot};
use crate::compound;
use crate::end::{At, DirRef, End, EndError, EndResult, FileRef, Name, Naming, SetMeta};
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tidepool_blocks::crc;
use tidepool_transport::remote::Meant;
use tidepool_types::{Errno, FileKind};

/// Parallel streams of data, when nobody says how many.
pub const STREAMS_DEFAULT: usize = 8;
/// Most of them.
pub const STREAMS_MAX: usize = 16;
/// How long a node may be away before requests fail.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a node that has never answered: a stager that starts again takes less, and a wrong address
/// should be told while whoever typed it still looks.
const FIRST_PATIENCE: Duration = Duration::from_secs(4);

/// Where a remote end is and how it is reached.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// `host:port`.
    pub address: String,
    /// The node's name in messages; `:` ends it there.
    pub node: String,
    pub reach: Reach,
    /// What this node is called there.
    pub own_name: String,
    /// The node that it has to be.
    pub meant: Meant,
    pub root: RootRequest,
    /// Parallel streams of data, 1 to [`STREAMS_MAX`]; there is one connection more.
    pub streams: usize,
    /// How long a node may be away before requests fail.
    pub patience: Duration,
    /// At most so long when it has never answered.
    pub first_patience: Duration,
    /// For large data, where the other node has the same.
    pub fabric: Option<Fabric>,
}

impl RemoteOptions {
    pub fn new(address: &str, reach: impl Into<Reach>, root: RootRequest) -> RemoteOptions {
        let node = address.rsplit_once(':').map_or(address, |(host, _)| host).to_string();
        let address = address.to_string();
        RemoteOptions {
            address,
            node,
            reach: reach.into(),
            own_name: String::new(),
            meant: Meant::anybody(),
            root,
            streams: STREAMS_DEFAULT,
            patience: PATIENCE,
            first_patience: FIRST_PATIENCE,
            fabric: None,
        }
    }
}

/// A directory at another node, served there by an [`EndServer`](super::EndServer).
pub struct RemoteEnd {
    pub(super) lines: Arc<Lines>,
    pub(super) info: Arc<RootInfo>,
    root: Arc<RemoteDir>,
    /// What was made here under temporary names and how: tells a rename whose answer was lost
    /// from one that cannot be done.
    made: Mutex<HashMap<Box<[u8]>, Key>>,
}

/// Gives a [`RemoteEnd`] up from another thread.
#[derive(Clone)]
pub struct Abandoner {
    lines: Weak<Lines>,
}

impl Abandoner {
    /// As [`RemoteEnd::abandon`]; nothing when the end is gone.
    pub fn abandon(&self) {
        if let Some(lines) = self.lines.upgrade() {
            lines.abandon();
        }
    }
}

/// Device and number of an object.
type Key = (u64, u64);
/// A name in a directory of a session.
type PlaceOf = (u32, Box<[u8]>);

impl RemoteEnd {
    /// Connects and opens the root.
    pub fn open(options: RemoteOptions) -> EndResult<RemoteEnd> {
        RemoteEnd::open_noting(options, |_| ())
    }

    /// The same; `note` gets a handle that can give it up while it is still opening.
    pub fn open_noting(mut options: RemoteOptions, note: impl FnOnce(Abandoner)) -> EndResult<RemoteEnd> {
        options.streams = options.streams.clamp(1, STREAMS_MAX);
        let lines = Arc::new(Lines::new(options));
        note(Abandoner { lines: Arc::downgrade(&lines) });
        let info = exchange(&lines, |lease, _| {
            lease.ask(&Ask::Ping {})?;
            lines.info().ok_or_else(unexpected)
        })?;
        let root = Arc::new(RemoteDir::root(info.meta.key(), &lines.closing));
        Ok(RemoteEnd { lines, info, root, made: Mutex::default() })
    }

    /// Ends all connections: what is under way and all that follows fails at once. For a copy
    /// that is cancelled while the other node does not answer.
    pub fn abandon(&self) {
        self.lines.abandon();
    }

    /// One request and its answer, for measuring.
    pub fn ping(&self) -> EndResult<()> {
        self.done(|_, _| Ok(Ask::Ping {}))
    }

    pub(super) fn root_dir(&self) -> &Arc<RemoteDir> {
        &self.root
    }

    /// Asks what `ask` makes for a connection and takes what `take` finds in the answer.
    /// `again`: the answer to the same request may have been lost before.
    pub(super) fn ask<T>(
        &self,
        ask: impl Fn(&mut Lease<'_>, bool) -> Result<Ask, Trouble>,
        take: impl Fn(Answer, u64) -> Option<T>,
    ) -> EndResult<T> {
        exchange(&self.lines, |lease, again| {
            let ask = ask(lease, again)?;
            let answer = lease.ask(&ask)?;
            take(answer, lease.generation()).ok_or_else(unexpected)
        })
    }

    /// A request whose answer is only that it was done.
    pub(super) fn done(&self, ask: impl Fn(&mut Lease<'_>, bool) -> Result<Ask, Trouble>) -> EndResult<()> {
        self.ask(ask, |answer, _| matches!(answer, Answer::Done {}).then_some(()))
    }

    /// A removal. When an answer was lost, the first request may have done it.
    pub(super) fn removed(&self, ask: impl Fn(&mut Lease<'_>) -> Result<Ask, Trouble>) -> EndResult<()> {
        let repeated = std::cell::Cell::new(false);
        let removed = self.done(|lease, again| {
            repeated.set(again);
            ask(lease)
        });
        match removed {
            Err(error) if error.errno == Errno::ENOENT && repeated.get() => Ok(()),
            other => other,
        }
    }

    /// Anything that takes a connection and may be done again.
    pub(super) fn exchange<T>(
        &self,
        attempt: impl FnMut(&mut Lease<'_>, bool) -> Result<T, Trouble>,
    ) -> EndResult<T> {
        exchange(&self.lines, attempt)
    }

    /// Asks about several things at once, and about fewer at once after a connection broke over them: where
    /// connections do not last, small messages come through.
    pub(super) fn exchange_many<I, T>(
        &self,
        items: &[I],
        mut attempt: impl FnMut(&[I], &mut Lease<'_>) -> Result<Vec<EndResult<T>>, Trouble>,
    ) -> Vec<EndResult<T>> {
        let mut backoff = self.lines.backoff();
        let mut done = Vec::with_capacity(items.len());
        let mut at_once = items.len();
        while done.len() < items.len() {
            let rest = &items[done.len()..];
            let some = &rest[..at_once.min(rest.len())];
            let mut sent = false;
            let tried = self.lines.lease().and_then(|mut lease| {
                sent = true;
                attempt(some, &mut lease).and_then(|results| one_for_each(some.len(), results))
            });
            match tried {
                Ok(results) => {
                    done.extend(results);
                    backoff = self.lines.backoff();
                }
                Err(Trouble::Said(error)) => done.extend(same_for(some.len(), self.lines.named(error))),
                Err(Trouble::Lost(_)) if self.lines.wait(&mut backoff) => {
                    at_once = if sent { some.len().div_ceil(2) } else { at_once };
                }
                Err(Trouble::Lost(error)) => done.extend(same_for(rest.len(), self.lines.give_up(&error))),
            }
        }
        done
    }

    pub(super) fn open_dir_with(
        &self,
        dir: &DirRef,
        name: &[u8],
        ask: impl Fn(u32, Box<[u8]>) -> Ask,
    ) -> EndResult<(DirRef, crate::Meta, bool)> {
        let parent = remote_dir(dir)?;
        self.ask(
            |lease, _| Ok(ask(parent.resolve(lease)?, name.into())),
            |answer, generation| match answer {
                Answer::Dir { dir, meta, fresh, first } => {
                    let opened = RemoteDir::opened(parent, name, &meta, (generation, dir), first);
                    Some((DirRef::Remote(Arc::new(opened)), meta, fresh))
                }
                _ => None,
            },
        )
    }

    pub(super) fn open_file(&self, dir: &DirRef, name: &[u8], how: OpenHow) -> EndResult<FileRef> {
        let dir = remote_dir(dir)?;
        let (opened, key) = self.ask(
            |lease, _| Ok(Ask::OpenFile { dir: dir.resolve(lease)?, name: name.into(), how }),
            |answer, generation| match answer {
                Answer::File { file, meta } => {
                    let write = how != OpenHow::Read;
                    let opened = RemoteFile::opened(dir, name, &meta, write, generation, file);
                    Some((Arc::new(opened), meta.key()))
                }
                _ => None,
            },
        )?;
        if how != OpenHow::Read {
            self.remember(name, key);
        }
        Ok(FileRef::Remote(opened))
    }

    pub(super) fn remember(&self, name: &[u8], key: (u64, u64)) {
        if name.starts_with(crate::PART_PREFIX) {
            lock(&self.made).insert(name.into(), key);
        }
    }

    pub(super) fn forget(&self, name: &[u8]) {
        lock(&self.made).remove(name);
    }

    /// What was made under a temporary name.
    pub(super) fn known(&self, naming: &Naming<'_>) -> Option<(u64, u64)> {
        naming.key.or_else(|| lock(&self.made).get(naming.at.name).copied())
    }

    /// Writes a whole buffer to a file, under a temporary name until it is durable and verified.
    pub fn write_file(&self, dir: &DirRef, name: &[u8], data: &[u8], mode: u32) -> EndResult<()> {
        let random: [u8; 8] = tidepool_transport::random_bytes();
        let mut part = crate::PART_PREFIX.to_vec();
        part.extend(random.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
        let file = self.create(dir, &part)?;
        let filled = self.fill(&file, data, mode);
        let named = filled.and_then(|()| self.rename(dir, &part, name));
        if named.is_err() {
            // The first error is the one to tell.
            let _ = self.unlink(dir, &part);
        }
        named
    }

    fn fill(&self, file: &FileRef, data: &[u8], mode: u32) -> EndResult<()> {
        let mut tries = 0;
        loop {
            match self.write_range(file, 0, data) {
                Err(error) if error.is_lost() && tries < crate::ATTEMPTS_MAX => tries += 1,
                other => break other?,
            }
        }
        self.set_meta(At::File(file), &SetMeta { mode: Some(mode), ..SetMeta::default() })?;
        self.fsync(file)?;
        let step = crate::RANGE_BYTES as usize;
        for (piece, start) in data.chunks(step).zip((0u64..).step_by(step)) {
            let crc = self.checksum(file, start..start + piece.len() as u64, true, &mut [])?;
            if crc != Some(crc::append(0, piece)) {
                let detail = format!("node {}: gave back other bytes than were written", self.node());
                return Err(EndError { errno: Errno::EIO, operation: "verify", detail: Some(detail) });
            }
        }
        Ok(())
    }

    /// Reads a range of a file; the bytes there are, up to the end of the file.
    pub fn read_file(&self, dir: &DirRef, name: &[u8], offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        let file = self.open_read(dir, name)?;
        let meta = self.stat(At::File(&file))?;
        if meta.kind != FileKind::Regular {
            return Err(EndError::new("read", Errno::EINVAL));
        }
        self.read_range(&file, offset, buf)
    }

    /// The same of an open file.
    pub fn read_range(&self, file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        let mut reader = self.reader(file, offset..offset + buf.len() as u64);
        let mut filled = 0;
        while filled < buf.len() {
            match reader.read(&mut buf[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    /// Writes a range of an open file; durable after [`End::fsync`].
    pub fn write_range(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<()> {
        let mut writer = self.writer(file);
        writer.write(offset, data)?;
        writer.finish()
    }

    /// The node's name, as messages have it.
    pub fn node(&self) -> &str {
        &self.lines.options().node
    }

    /// A plain writer, where no connection can be spared for a stream.
    pub(super) fn write_plainly(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<()> {
        compound::write_all(self, file, offset, data)
    }
}

/// Asks until there is an answer or the node's time is over.
fn exchange<T>(
    lines: &Lines,
    mut attempt: impl FnMut(&mut Lease<'_>, bool) -> Result<T, Trouble>,
) -> EndResult<T> {
    let mut backoff = lines.backoff();
    let mut again = false;
    loop {
        let tried =
            lines.lease().and_then(|mut lease| attempt(&mut lease, std::mem::replace(&mut again, true)));
        match tried {
            Ok(done) => return Ok(done),
            Err(Trouble::Said(error)) => return Err(lines.named(error)),
            Err(Trouble::Lost(error)) => {
                if !lines.wait(&mut backoff) {
                    return Err(lines.give_up(&error));
                }
            }
        }
    }
}

fn one_for_each<T>(count: usize, results: Vec<EndResult<T>>) -> Result<Vec<EndResult<T>>, Trouble> {
    if results.len() == count { Ok(results) } else { Err(unexpected()) }
}

fn same_for<T>(count: usize, error: EndError) -> impl Iterator<Item = EndResult<T>> {
    std::iter::repeat_n(error, count).map(Err)
}

pub(super) fn remote_dir(dir: &DirRef) -> EndResult<&Arc<RemoteDir>> {
    match dir {
        DirRef::Remote(dir) => Ok(dir),
        _ => Err(EndError::new("use a directory of another end", Errno::EBADF)),
    }
}

pub(super) fn remote_file(file: &FileRef) -> EndResult<&Arc<RemoteFile>> {
    match file {
        FileRef::Remote(file) => Ok(file),
        _ => Err(EndError::new("use a file of another end", Errno::EBADF)),
    }
}

/// What `at` is called in the session of a connection.
pub(super) fn spot(at: At<'_>, lease: &mut Lease<'_>) -> Result<Spot, Trouble> {
    Ok(match at {
        At::File(file) => Spot::File(remote_file(file)?.resolve(lease)?),
        At::Dir(dir) => Spot::Dir(remote_dir(dir)?.resolve(lease)?),
        At::Name(dir, name) => Spot::Name(remote_dir(dir)?.resolve(lease)?, name.into()),
    })
}

/// What several names are called in the session of a connection.
pub(super) fn places(names: &[Name<'_>], lease: &mut Lease<'_>) -> Result<Vec<PlaceOf>, Trouble> {
    names.iter().map(|at| Ok((remote_dir(at.dir)?.resolve(lease)?, at.name.into()))).collect()
}
