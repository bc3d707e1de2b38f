//! Messages through libfabric: one RDM endpoint, its peers and its completions.
//!
//! The provider reads and writes buffers at times of its own choosing, so an operation owns its buffer until it has
//! completed or the endpoint is closed: that is what makes this safe to use. Empty without the feature `libfabric`.

#![deny(unsafe_code)]
#![cfg(feature = "libfabric")]

#[allow(unsafe_code)]
mod sys;

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::{DONE_MAX, Done};

/// Longest endpoint name; providers use 16 to some hundred bytes.
pub const NAME_MAX: usize = 512;
/// Completions that may wait to be read.
const QUEUE: usize = 4096;

/// Smallest buffer, and how many bytes of unused ones an endpoint keeps.
const SIZE_MIN: usize = 4096;
const SPARE_MAX: usize = 16 << 20;

/// Providers that cannot be used, and why.
const UNFIT: &[(&str, &str)] = &[(
    "net",
    "its descriptor stays readable with nothing there, so waiting on it takes a whole core; use tcp;ofi_rxm",
)];

/// What libfabric refused, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FabricError {
    what: String,
    /// The same call may succeed after completions have been read.
    pub again: bool,
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for FabricError {}

impl FabricError {
    fn of(call: &str, code: isize) -> FabricError {
        let error = i32::try_from(-code).unwrap_or(i32::MAX);
        FabricError { what: format!("{call}: {}", sys::describe(error)), again: error == sys::EAGAIN }
    }
}

/// The domain and all that lives as long as any buffer of it.
struct Domain(sys::Handle);

impl Drop for Domain {
    fn drop(&mut self) {
        sys::free(&self.0);
    }
}

/// Bytes that the provider may be given.
pub struct Buffer {
    /// Ends before its memory does.
    registration: Option<sys::Registration>,
    memory: Box<[u8]>,
    len: usize,
    /// Outlives the registration.
    _domain: Arc<Domain>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

/// A peer that messages can be sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer(u64);

/// A completed operation: its label and its buffer are the caller's again.
pub struct Completion<L> {
    pub label: L,
    pub buffer: Buffer,
    /// Bytes received; 0 for sends.
    pub result: Result<usize, FabricError>,
}

/// An operation that did not begin.
pub struct Refused<L> {
    pub label: L,
    pub buffer: Buffer,
    pub error: FabricError,
}

struct Operation<L> {
    /// Memory of the provider while the operation is under way; its address names the operation.
    context: Box<sys::Context>,
    label: L,
    buffer: Buffer,
}

/// One RDM endpoint. Threads share it.
pub struct Endpoint<L> {
    /// Closed before the operations' buffers go; see `Drop`.
    domain: Arc<Domain>,
    under_way: Mutex<HashMap<usize, Operation<L>>>,
    /// Buffers for the next ones who need some.
    spare: Mutex<Vec<Buffer>>,
    /// Names of peers, with how often each was inserted and not removed: providers count that differently.
    peers: Mutex<HashMap<Vec<u8>, (Peer, usize)>>,
    name: Vec<u8>,
}

impl<L> Endpoint<L> {
    /// Opens an endpoint of `provider` (a name of `fi_info -l`), for some providers at the address `at` of this node.
    pub fn open(provider: &str, at: Option<&str>) -> Result<Endpoint<L>, FabricError> {
        if let Some((_, why)) = UNFIT.iter().find(|(name, _)| *name == provider) {
            return Err(FabricError { what: format!("fabric provider '{provider}': {why}"), again: false });
        }
        let text = |text: &str| {
            let what = "a name with a zero byte".to_string();
            CString::new(text).map_err(|_| FabricError { what, again: false })
        };
        let at = at.map(text).transpose()?;
        let handle = sys::open(&text(provider)?, at.as_deref(), QUEUE).map_err(|what| FabricError {
            what: format!("fabric provider '{provider}': {what}"),
            again: false,
        })?;
        let domain = Arc::new(Domain(handle));
        let name = sys::name(&domain.0, NAME_MAX).map_err(|code| FabricError::of("fi_getname", code))?;
        let (under_way, spare, peers) = Default::default();
        Ok(Endpoint { domain, under_way, spare, peers, name })
    }

    /// What peers insert to reach this endpoint.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Becomes readable when there are completions, after [`Endpoint::may_wait`]. `None` when the
    /// provider has no such thing.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        let fd: RawFd = sys::wait_fd(&self.domain.0);
        (fd >= 0).then(|| sys::borrow(fd, self))
    }

    /// Has to be true before the descriptor is waited on; else there are completions to read.
    pub fn may_wait(&self) -> bool {
        sys::try_wait(&self.domain.0)
    }

    /// A peer by its endpoint's name.
    pub fn insert(&self, name: &[u8]) -> Result<Peer, FabricError> {
        // Providers read as many bytes as their own names have, or up to a zero byte.
        let ends = match sys::named_by_text(&self.domain.0) {
            true => name.len() <= NAME_MAX && name.last() == Some(&0),
            false => name.len() == self.name.len(),
        };
        if !ends {
            let what = format!("{} bytes are no endpoint's name, which has {}", name.len(), self.name.len());
            return Err(FabricError { what, again: false });
        }
        let mut peers = locked(&self.peers);
        if let Some((peer, count)) = peers.get_mut(name) {
            *count += 1;
            return Ok(*peer);
        }
        let peer = sys::insert(&self.domain.0, name).map_err(|code| FabricError::of("fi_av_insert", code))?;
        peers.insert(name.to_vec(), (Peer(peer), 1));
        Ok(Peer(peer))
    }

    /// Takes back one [`Endpoint::insert`].
    pub fn remove(&self, peer: Peer) {
        let mut peers = locked(&self.peers);
        let Some((_, count)) = peers.values_mut().find(|(of, _)| *of == peer) else { return };
        *count -= 1;
        if *count == 0 {
            peers.retain(|_, (of, _)| *of != peer);
            sys::remove(&self.domain.0, peer.0);
        }
    }

    /// A buffer whose content is of no meaning.
    pub fn buffer(&self, len: usize) -> Result<Buffer, FabricError> {
        let size = len.max(SIZE_MIN).next_power_of_two();
        let mut spare = locked(&self.spare);
        if let Some(at) = spare.iter().position(|buffer| buffer.memory.len() == size) {
            return Ok(Buffer { len, ..spare.swap_remove(at) });
        }
        drop(spare);
        let mut memory = vec![0; size].into_boxed_slice();
        let registration =
            sys::register(&self.domain.0, &mut memory).map_err(|code| FabricError::of("fi_mr_reg", code))?;
        Ok(Buffer { registration, memory, len, _domain: Arc::clone(&self.domain) })
    }

    /// Takes a buffer that is needed no more: making them anew costs as much as copying what is in them.
    pub fn give_back(&self, buffer: Buffer) {
        let mut spare = locked(&self.spare);
        let kept: usize = spare.iter().map(|buffer| buffer.memory.len()).sum();
        if kept + buffer.memory.len() <= SPARE_MAX {
            spare.push(buffer);
        }
    }

    /// Sends all of `buffer`.
    pub fn send(&self, to: Peer, tag: u64, buffer: Buffer, label: L) -> Result<(), Refused<L>> {
        self.post("fi_tsend", buffer, label, |handle, bytes, registration, context| {
            sys::send(handle, bytes, registration, to.0, tag, context)
        })
    }

    /// Receives one message with this tag into `buffer`.
    pub fn receive(&self, tag: u64, buffer: Buffer, label: L) -> Result<(), Refused<L>> {
        self.post("fi_trecv", buffer, label, |handle, bytes, registration, context| {
            sys::receive(handle, bytes, registration, tag, context)
        })
    }

    fn post(
        &self,
        call: &str,
        buffer: Buffer,
        label: L,
        begin: impl FnOnce(&sys::Handle, &mut [u8], Option<&sys::Registration>, &mut sys::Context) -> isize,
    ) -> Result<(), Refused<L>> {
        let mut operation = Operation { context: Box::default(), label, buffer };
        // Held until the operation is in the table: it may complete before this returns.
        let mut under_way = locked(&self.under_way);
        let code = begin(
            &self.domain.0,
            &mut operation.buffer.memory[..operation.buffer.len],
            operation.buffer.registration.as_ref(),
            &mut operation.context,
        );
        if code != 0 {
            let Operation { label, buffer, .. } = operation;
            return Err(Refused { label, buffer, error: FabricError::of(call, code) });
        }
        under_way.insert(operation.context.address(), operation);
        Ok(())
    }

    /// Asks for the end of operations; each completes, with an error unless it was done already.
    pub fn cancel(&self, chosen: impl Fn(&L) -> bool) {
        for operation in locked(&self.under_way).values_mut().filter(|operation| chosen(&operation.label)) {
            sys::cancel(&self.domain.0, &mut operation.context);
        }
    }

    /// Takes what has completed; also lets the provider do its work.
    pub fn completions(&self, into: &mut Vec<Completion<L>>) -> Result<(), FabricError> {
        let mut done = [Done::default(); DONE_MAX];
        loop {
            // Providers say that threads may call them at any time; with shm of libfabric 1.17 messages are lost when
            // one begins to receive while another looks what has come.
            let mut under_way = locked(&self.under_way);
            let count = sys::completions(&self.domain.0, &mut done);
            let count = count.map_err(|code| FabricError::of("fi_cq_read", code))?;
            for done in &done[..count] {
                let Some(operation) = under_way.remove(&done.address()) else { continue };
                let Operation { label, buffer, .. } = operation;
                into.push(Completion { label, result: outcome(done, buffer.len()), buffer });
            }
            // An error comes alone, whatever is behind it.
            if count < DONE_MAX && done[..count].iter().all(|done| done.error == 0) {
                return Ok(());
            }
        }
    }
}

/// Locks a mutex whose holder never leaves its data half changed when it panics.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn outcome(done: &Done, room: usize) -> Result<usize, FabricError> {
    match done.error {
        0 if done.received == 0 => Ok(0),
        0 => Ok(usize::try_from(done.len).unwrap_or(usize::MAX).min(room)),
        error => Err(FabricError::of("message", -(error as isize))),
    }
}

impl<L> Drop for Endpoint<L> {
    fn drop(&mut self) {
        // The provider may write into the operations' buffers until then.
        sys::close_endpoint(&self.domain.0);
    }
}

#[cfg(test)]
mod tests;
