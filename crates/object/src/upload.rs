//! An object being written under its temporary key.
//!
//! ```text
//! Buffered ──complete──▶ Done      small: one request
//! Streaming ──complete──▶ Done     large: parts, sent in order as they fill
//!     ├── abandon ──▶ aborted: the service forgets the parts
//!     └── drop ──▶ the service keeps the parts for another run
//! ```
//! The engine writes ranges of a large file from several threads; an upload takes parts in
//! order. What comes too early waits in memory, and its writer waits with it when there is much.

use crate::attrs::Attrs;
use crate::store::{Sink, Store};
use crate::{PART_BYTES, PARTS_MAX};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidepool_stage::{EndError, EndResult, LARGE_BYTES_MIN};
use tidepool_types::Errno;

/// Bytes that may wait for earlier ones before their writers have to wait, too.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// Longest such wait. The writer of the earlier bytes may have failed, and the engine tells nobody
/// before all have ended what they hold; so they go on, one piece at a time.
const AHEAD_WAIT_MAX: Duration = Duration::from_secs(5);
/// Most bytes of an object whose size was not told in advance.
const BUFFERED_BYTES_MAX: u64 = 4 * LARGE_BYTES_MIN;

pub(crate) struct Upload {
    store: Arc<Store>,
    pub key: String,
    state: Mutex<State>,
    moved: Condvar,
}

struct State {
    attrs: Attrs,
    body: Body,
    /// Something was lost on the way: never complete it.
    failed: bool,
}

enum Body {
    Buffered(Vec<u8>),
    Streaming(Stream),
    Done { size: u64 },
}

struct Stream {
    size: u64,
    /// Bytes taken in order.
    next: u64,
    part: Vec<u8>,
    part_bytes: u64,
    /// By offset: what came before its turn.
    ahead: BTreeMap<u64, Vec<u8>>,
    ahead_bytes: u64,
    /// None before the first part: until then, the attributes can change.
    writer: Option<Sink>,
}

impl Stream {
    fn new(size: u64) -> Stream {
        Stream {
            size,
            next: 0,
            part: Vec::new(),
            part_bytes: PART_BYTES.max(size.div_ceil(PARTS_MAX)),
            ahead: BTreeMap::new(),
            ahead_bytes: 0,
            writer: None,
        }
    }

    fn take(&mut self, offset: u64, data: &[u8]) {
        self.ahead.insert(offset, data.to_vec());
        self.ahead_bytes += data.len() as u64;
    }

    /// The piece whose turn it is.
    fn turn(&mut self) -> Option<Vec<u8>> {
        let piece = self.ahead.remove(&self.next)?;
        self.ahead_bytes -= piece.len() as u64;
        Some(piece)
    }

    fn send(&mut self, store: &Store, key: &str, attrs: &Attrs, part: Vec<u8>) -> EndResult<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(store.upload(key, attrs)?),
        };
        store.send(key, writer, part)
    }

    /// Sends what is in order and fills parts.
    fn advance(&mut self, store: &Store, key: &str, attrs: &Attrs) -> EndResult<()> {
        while let Some(mut piece) = self.turn() {
            self.next += piece.len() as u64;
            while self.part.len() as u64 + piece.len() as u64 >= self.part_bytes {
                let rest = piece.split_off((self.part_bytes as usize) - self.part.len());
                self.part.append(&mut piece);
                let part = std::mem::take(&mut self.part);
                self.send(store, key, attrs, part)?;
                piece = rest;
            }
            self.part.append(&mut piece);
        }
        Ok(())
    }
}

impl Stream {
    fn complete(&mut self, store: &Store, key: &str, attrs: &Attrs) -> EndResult<u64> {
        if self.next != self.size {
            return Err(refuse("complete upload", Errno::EIO, "not all of the object was written"));
        }
        if !self.part.is_empty() {
            let part = std::mem::take(&mut self.part);
            self.send(store, key, attrs, part)?;
        }
        let writer = self.writer.as_mut().ok_or_else(|| EndError::new("complete upload", Errno::EIO))?;
        store.complete(key, writer, self.size)?;
        Ok(self.size)
    }
}

fn refuse(operation: &'static str, errno: Errno, why: &str) -> EndError {
    EndError { errno, operation, detail: Some(why.to_string()) }
}

impl Upload {
    pub fn new(store: Arc<Store>, key: String, attrs: Attrs) -> Upload {
        let state = State { attrs, body: Body::Buffered(Vec::new()), failed: false };
        Upload { store, key, state: Mutex::new(state), moved: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn attrs(&self) -> Attrs {
        self.lock().attrs.clone()
    }

    /// Size, once it is complete.
    pub fn done(&self) -> Option<u64> {
        match self.lock().body {
            Body::Done { size } => Some(size),
            _ => None,
        }
    }

    /// Size so far, or as told.
    pub fn size(&self) -> u64 {
        match &self.lock().body {
            Body::Buffered(data) => data.len() as u64,
            Body::Streaming(stream) => stream.size,
            Body::Done { size } => *size,
        }
    }

    /// Changes the attributes; false when it is too late for that.
    pub fn set(&self, change: impl FnOnce(&mut Attrs)) -> bool {
        let mut state = self.lock();
        let mut attrs = state.attrs.clone();
        change(&mut attrs);
        let open = match &state.body {
            Body::Buffered(_) => true,
            Body::Streaming(stream) => stream.writer.is_none(),
            Body::Done { .. } => false,
        };
        if open {
            state.attrs = attrs;
            return true;
        }
        state.attrs == attrs
    }

    pub fn truncate(&self, size: u64) -> EndResult<()> {
        let mut state = self.lock();
        match &mut state.body {
            Body::Buffered(data) if data.is_empty() && size >= LARGE_BYTES_MIN => {
                state.body = Body::Streaming(Stream::new(size));
            }
            Body::Buffered(data) if size <= BUFFERED_BYTES_MAX => data.resize(size as usize, 0),
            _ => {
                return Err(refuse(
                    "truncate",
                    Errno::EOPNOTSUPP,
                    "an object cannot change size while it is sent",
                ));
            }
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> EndResult<usize> {
        let mut state = self.wait_for_room(offset);
        let State { attrs, body, failed } = &mut *state;
        check_whole("write", *failed)?;
        match body {
            Body::Buffered(whole) => write_buffered(whole, offset, data)?,
            Body::Streaming(stream) => {
                if offset < stream.next || offset + data.len() as u64 > stream.size {
                    return Err(refuse("write", Errno::EIO, "what was sent cannot be written again"));
                }
                stream.take(offset, data);
                let advanced = stream.advance(&self.store, &self.key, attrs);
                *failed = advanced.is_err();
                self.moved.notify_all();
                advanced?;
            }
            Body::Done { .. } => {
                return Err(refuse(
                    "write",
                    Errno::EIO,
                    "an object cannot be mended; it has to be copied again",
                ));
            }
        }
        Ok(data.len())
    }

    fn wait_for_room(&self, offset: u64) -> MutexGuard<'_, State> {
        let full = |state: &mut State| match &state.body {
            Body::Streaming(stream) => stream.ahead_bytes >= AHEAD_BYTES_MAX && offset > stream.next,
            _ => false,
        };
        let waited = self.moved.wait_timeout_while(self.lock(), AHEAD_WAIT_MAX, full);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sends what is left; from now on the object is there, whole.
    pub fn complete(&self) -> EndResult<()> {
        let mut state = self.lock();
        let State { attrs, body, failed } = &mut *state;
        check_whole("complete upload", *failed)?;
        let sent = match body {
            Body::Done { size } => Ok(*size),
            Body::Buffered(data) => {
                let size = data.len() as u64;
                self.store.put(&self.key, std::mem::take(data), attrs).map(|()| size)
            }
            Body::Streaming(stream) => stream.complete(&self.store, &self.key, attrs),
        };
        *failed = sent.is_err();
        state.body = Body::Done { size: sent? };
        Ok(())
    }
}

fn check_whole(operation: &'static str, failed: bool) -> EndResult<()> {
    if failed { Err(refuse(operation, Errno::EIO, "a part of the object was lost before")) } else { Ok(()) }
}

fn write_buffered(whole: &mut Vec<u8>, offset: u64, data: &[u8]) -> EndResult<()> {
    let end = offset + data.len() as u64;
    if end > BUFFERED_BYTES_MAX {
        return Err(refuse("write", Errno::EFBIG, "the size of a large object has to be known in advance"));
    }
    if whole.len() < end as usize {
        whole.resize(end as usize, 0);
    }
    whole[offset as usize..end as usize].copy_from_slice(data);
    Ok(())
}

impl Upload {
    /// Nobody is going to finish it.
    pub fn abandon(&self) -> EndResult<()> {
        let mut state = self.lock();
        state.failed = true;
        match &mut state.body {
            Body::Streaming(stream) => match stream.writer.take() {
                Some(mut writer) => self.store.abort(&self.key, &mut writer),
                None => Ok(()),
            },
            Body::Buffered(_) | Body::Done { .. } => Ok(()),
        }
    }
}
