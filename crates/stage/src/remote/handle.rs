//! Directories and files of a remote end, opened again when the session is another one.

use super::lines::{Closed, Closing, Lease, Trouble};
use super::message::{Answer, Ask, OpenHow, Page, ROOT};
use crate::end::{EndError, Meta};
use crate::sync::lock;
use std::sync::{Arc, Mutex};
use tidepool_types::Errno;

/// The number of something in the session of a generation.
#[derive(Clone, Copy, Default)]
struct Slot {
    generation: u64,
    number: u32,
}

/// A directory below (or at) the root of a [`RemoteEnd`](super::RemoteEnd).
pub struct RemoteDir {
    parent: Option<Arc<RemoteDir>>,
    name: Box<[u8]>,
    key: (u64, u64),
    slot: Mutex<Slot>,
    /// The start of its listing, which came when it was opened.
    first: Mutex<Option<Page>>,
    closing: Closing,
}

/// An open file of a [`RemoteEnd`](super::RemoteEnd).
pub struct RemoteFile {
    dir: Arc<RemoteDir>,
    name: Box<[u8]>,
    key: (u64, u64),
    write: bool,
    slot: Mutex<Slot>,
    closing: Closing,
}

impl Drop for RemoteDir {
    fn drop(&mut self) {
        let slot = *lock(&self.slot);
        if self.parent.is_some() {
            lock(&self.closing).push((slot.generation, Closed::Dir(slot.number)));
        }
        // By hand, because dropping a long chain of parents recursively would overflow the stack.
        let mut next = self.parent.take();
        while let Some(mut dir) = next.and_then(Arc::into_inner) {
            next = dir.parent.take();
            if next.is_some() {
                let slot = *lock(&dir.slot);
                lock(&dir.closing).push((slot.generation, Closed::Dir(slot.number)));
            }
        }
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        let slot = *lock(&self.slot);
        lock(&self.closing).push((slot.generation, Closed::File(slot.number)));
    }
}

fn replaced(operation: &'static str, what: &str) -> Trouble {
    let detail = format!("the {what} was replaced by another one meanwhile");
    Trouble::Said(EndError { errno: Errno::ESTALE, operation, detail: Some(detail) })
}

pub(super) fn unexpected() -> Trouble {
    let detail = "an answer that does not fit the request".to_string();
    Trouble::Said(EndError { errno: Errno::EPROTO, operation: "answer", detail: Some(detail) })
}

impl RemoteDir {
    pub(super) fn root(key: (u64, u64), closing: &Closing) -> RemoteDir {
        RemoteDir {
            parent: None,
            name: Box::default(),
            key,
            slot: Mutex::default(),
            first: Mutex::default(),
            closing: closing.clone(),
        }
    }

    /// A directory that a session of `generation` has just opened.
    pub(super) fn opened(
        parent: &Arc<RemoteDir>,
        name: &[u8],
        meta: &Meta,
        (generation, number): (u64, u32),
        first: Option<Page>,
    ) -> RemoteDir {
        RemoteDir {
            parent: Some(parent.clone()),
            name: name.into(),
            key: meta.key(),
            slot: Mutex::new(Slot { generation, number }),
            first: Mutex::new(first),
            closing: parent.closing.clone(),
        }
    }

    pub(super) fn take_first(&self) -> Option<Page> {
        lock(&self.first).take()
    }

    /// Its number in the session of a connection, if it is open there.
    fn number(&self, generation: u64) -> Option<u32> {
        if self.parent.is_none() {
            return Some(ROOT);
        }
        let slot = *lock(&self.slot);
        (slot.generation == generation).then_some(slot.number)
    }

    /// Its number in the session of a connection, opened there if need be.
    pub(super) fn resolve(&self, lease: &mut Lease<'_>) -> Result<u32, Trouble> {
        let generation = lease.generation();
        let mut closed = Vec::new();
        let mut at = self;
        let mut number = loop {
            if let Some(number) = at.number(generation) {
                break number;
            }
            closed.push(at);
            at = at.parent.as_ref().ok_or_else(unexpected)?;
        };
        for step in closed.into_iter().rev() {
            let ask = Ask::EnterDir { dir: number, name: step.name.clone(), list: false };
            let Answer::Dir { dir, meta, .. } = lease.ask(&ask)? else { return Err(unexpected()) };
            if meta.key() != step.key {
                lock(&step.closing).push((generation, Closed::Dir(dir)));
                return Err(replaced("open directory", "directory"));
            }
            number = keep(&step.slot, &step.closing, generation, dir, Closed::Dir);
        }
        Ok(number)
    }
}

/// Notes a number; if another thread was faster, its number holds and this one is closed.
fn keep(
    slot: &Mutex<Slot>,
    closing: &Closing,
    generation: u64,
    number: u32,
    closed: impl Fn(u32) -> Closed,
) -> u32 {
    let mut slot = lock(slot);
    if slot.generation == generation {
        lock(closing).push((generation, closed(number)));
    } else {
        *slot = Slot { generation, number };
    }
    slot.number
}

impl RemoteFile {
    pub(super) fn opened(
        dir: &Arc<RemoteDir>,
        name: &[u8],
        meta: &Meta,
        write: bool,
        generation: u64,
        number: u32,
    ) -> RemoteFile {
        RemoteFile {
            dir: dir.clone(),
            name: name.into(),
            key: meta.key(),
            write,
            slot: Mutex::new(Slot { generation, number }),
            closing: dir.closing.clone(),
        }
    }

    pub(super) fn resolve(&self, lease: &mut Lease<'_>) -> Result<u32, Trouble> {
        let generation = lease.generation();
        {
            let slot = *lock(&self.slot);
            if slot.generation == generation {
                return Ok(slot.number);
            }
        }
        let dir = self.dir.resolve(lease)?;
        let how = if self.write { OpenHow::Write } else { OpenHow::Read };
        let ask = Ask::OpenFile { dir, name: self.name.clone(), how };
        let Answer::File { file, meta } = lease.ask(&ask)? else { return Err(unexpected()) };
        if meta.key() != self.key {
            lock(&self.closing).push((generation, Closed::File(file)));
            return Err(replaced("open", "file"));
        }
        Ok(keep(&self.slot, &self.closing, generation, file, Closed::File))
    }
}
