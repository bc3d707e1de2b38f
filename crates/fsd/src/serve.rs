//! From a request's bytes to its reply's bytes.

use crate::config::Config;
use crate::copying::{Copied, PeerLinks};
use crate::counters::Counters;
use crate::fabric::Fabric;
use crate::loans::Loans;
use crate::meters;
use crate::quota::Quota;
use crate::recalls::{Recalling, Recalls};
use crate::storedir::Tether;
use crate::tiering::{Access, Admission, Tiering, pattern_of};
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use tidepool_env::{Clock, RealDisk};
use tidepool_fs_state::{Context, Kept, LIST_MAX, MetaStore, State};
use tidepool_shm::{Board, Listed, part_key};
use tidepool_store::{StoreError, StoreErrorKind, TierIndex, Tiers};
use tidepool_transport::{Identity, Secret, Terms};
use tidepool_types::{
    CHUNK_SIZE_MAX, DaemonIndex, Encryption, Errno, Ino, InstanceId, PHASE_BYTES_MAX, SessionId, TimeSpec,
};
use tidepool_wire::DecodeError;
use tidepool_wire::frame::{FLAG_KEEP, FLAG_KEEP_ATTR, FLAG_ONE_WAY, FLAG_PACED, HEADER_LEN, Header};
use tidepool_wire::message::{DaemonStatus, Handshake, Member, Reply, Request, ScrubResult, SpaceStat};

/// Objects verified in one scrub request.
const SCRUB_OBJECTS_MAX: usize = 64;
/// Ranges in one reply.
const RANGES_MAX: usize = 4096;
/// Most bytes that a client may say to have moved by itself since it said so last: it does after a few MiB.
const USED_MAX: u64 = 1 << 40;
/// Bad blocks named per object.
const BAD_BLOCKS_MAX: usize = 1000;

/// How a daemon was told to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    pub wipe: bool,
}

/// All that serving a request needs, shared by the worker threads.
///
/// Lock order: `state`, then nothing; `sessions`, `members`, `stop` are leaves. No lock is
/// held while the chunk store works.
pub struct Service {
    index: DaemonIndex,
    instance: InstanceId,
    secret: Secret,
    encryption: Encryption,
    clock: Box<dyn Clock>,
    state: Mutex<State<Box<dyn MetaStore>>>,
    chunks: Tiers<RealDisk>,
    /// Device number of the chunk store's file system, and of that of the last tier, which daemons may share.
    device: u64,
    room_device: u64,
    quota: Quota,
    loans: Loans,
    recalls: Recalls,
    peer_links: PeerLinks,
    board: Arc<Board>,
    /// For clients, to look at it only.
    board_fd: OwnedFd,
    /// Set before anything is served, when there is one.
    fabric: OnceLock<Fabric>,
    /// Set before anything is served, where there are several tiers.
    tiering: OnceLock<Arc<Tiering>>,
    sessions: Mutex<HashMap<SessionId, usize>>,
    members: Mutex<Vec<Member>>,
    trouble: Mutex<String>,
    /// The stores of this daemon.
    tethers: OnceLock<Vec<Tether>>,
    /// What became of them, when one was removed under us.
    lost: OnceLock<String>,
    stop: Mutex<Option<Stop>>,
    stop_wanted: Condvar,
    work: (Mutex<bool>, Condvar),
    configured: AtomicBool,
    /// Chunks of removed objects may still be here: at the start, and after a failure.
    undropped: AtomicBool,
    /// The state's directory epoch, for replies; written while the state is locked.
    epoch: AtomicU64,
    pub counters: Counters,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    pub fn new(
        config: &Config,
        clock: Box<dyn Clock>,
        state: State<Box<dyn MetaStore>>,
        chunks: Tiers<RealDisk>,
        (device, room_device): (u64, u64),
        (board, board_fd): (Arc<Board>, OwnedFd),
        lease_note: PathBuf,
    ) -> Service {
        let epoch = AtomicU64::new(state.epoch());
        board.set_epoch(state.epoch());
        Service {
            index: config.index,
            instance: config.instance,
            secret: config.secret.clone(),
            encryption: config.encryption,
            clock,
            epoch,
            state: Mutex::new(state),
            chunks,
            device,
            room_device,
            quota: Quota::new(config.quota_bytes),
            loans: Loans::default(),
            recalls: Recalls::new(lease_note),
            peer_links: PeerLinks::new(config.workers),
            board,
            board_fd,
            fabric: OnceLock::new(),
            tiering: OnceLock::new(),
            sessions: Mutex::default(),
            members: Mutex::default(),
            trouble: Mutex::default(),
            tethers: OnceLock::new(),
            lost: OnceLock::new(),
            stop: Mutex::default(),
            stop_wanted: Condvar::new(),
            work: (Mutex::new(false), Condvar::new()),
            configured: AtomicBool::new(false),
            undropped: AtomicBool::new(true),
            counters: Counters::default(),
        }
    }

    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    pub fn index(&self) -> DaemonIndex {
        self.index
    }

    pub fn fabric(&self) -> Option<&Fabric> {
        self.fabric.get()
    }

    /// To be called once, before requests are served.
    pub fn set_fabric(&self, fabric: Fabric) {
        let _ = self.fabric.set(fabric);
    }

    pub fn tiering(&self) -> Option<&Arc<Tiering>> {
        self.tiering.get()
    }

    /// To be called once, before requests are served.
    pub fn set_tiering(&self, tiering: Arc<Tiering>) {
        let _ = self.tiering.set(tiering);
    }

    fn pace_flag(&self) -> u16 {
        if self.tiering.get().is_some_and(|tiering| tiering.is_paced()) { FLAG_PACED } else { 0 }
    }

    /// When data may come.
    fn admit(&self, ctx: &Context, access: Access) -> Reply {
        let now_ns = u64::try_from(ctx.monotonic.as_nanos()).unwrap_or(u64::MAX);
        let ask = |tiering: &Arc<Tiering>| tiering.admit(&self.chunks, (ctx.session, access), now_ns);
        match self.tiering.get().map_or(Ok(Admission::NOW), ask) {
            Ok(Admission { wait, again }) => {
                Reply::Admitted { wait_ns: u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX), again }
            }
            Err(error) => self.failed(&error),
        }
    }

    /// What is said of I/O phases. Where there is one tier only, nobody needs it.
    fn hint(&self, ctx: &Context, request: &Request) -> Reply {
        let said = match request {
            Request::BeginPhase { bytes, .. } => *bytes,
            Request::PhaseBytes { bytes } => Some(*bytes),
            _ => None,
        };
        if let Some(bytes) = said.filter(|bytes| !(1..=PHASE_BYTES_MAX).contains(bytes)) {
            let detail = format!("a phase has 1 to {PHASE_BYTES_MAX} bytes, not {bytes}");
            return Reply::Failed { errno: Errno::EINVAL, detail };
        }
        match (self.tiering(), request) {
            (Some(tiering), Request::BeginPhase { bytes, pattern }) => {
                let now_ns = u64::try_from(ctx.monotonic.as_nanos()).unwrap_or(u64::MAX);
                tiering.begin_phase(*bytes, pattern.map(pattern_of), now_ns);
            }
            (Some(tiering), Request::PhaseBytes { bytes }) => tiering.note_phase_bytes(ctx.session, *bytes),
            (Some(tiering), _) => tiering.end_phase(),
            (None, _) => {}
        }
        Reply::Done {}
    }

    fn tier_for_new(&self) -> TierIndex {
        self.tiering.get().map_or(0, |tiering| tiering.target())
    }

    /// Clients that are connected.
    pub fn session_count(&self) -> usize {
        lock(&self.sessions).len()
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// What whoever comes over TCP has to agree with.
    pub fn terms(&self) -> Terms<'_> {
        Terms { secret: &self.secret, instance: self.instance(), encryption: self.encryption }
    }

    /// Who this daemon is to others.
    pub fn identity(&self, session: SessionId) -> Identity {
        let (secret, encryption) = (self.secret.clone(), self.encryption);
        Identity { instance: self.instance(), session, secret, encryption }
    }

    pub fn now(&self) -> TimeSpec {
        self.clock.now()
    }

    pub fn state(&self) -> MutexGuard<'_, State<Box<dyn MetaStore>>> {
        lock(&self.state)
    }

    pub fn chunks(&self) -> &Tiers<RealDisk> {
        &self.chunks
    }

    pub fn loans(&self) -> &Loans {
        &self.loans
    }

    pub fn recalls(&self) -> &Recalls {
        &self.recalls
    }

    /// Time since an arbitrary start.
    pub fn monotonic(&self) -> std::time::Duration {
        self.clock.monotonic()
    }

    pub fn peer_links(&self) -> &PeerLinks {
        &self.peer_links
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    pub fn quota_is_unlimited(&self) -> bool {
        self.quota.is_unlimited()
    }

    pub fn members(&self) -> Vec<Member> {
        lock(&self.members).clone()
    }

    pub fn refused(&self) {
        Counters::add(&self.counters.refused, 1);
    }

    pub fn welcome(&self) -> Handshake {
        Handshake::Welcome { index: self.index, configured: self.configured.load(Ordering::Acquire) }
    }

    pub fn session_begins(&self, session: SessionId) {
        *lock(&self.sessions).entry(session).or_default() += 1;
    }

    /// One connection of a session is gone; with the last one the session ends.
    pub fn session_leaves(&self, session: SessionId) {
        let mut sessions = lock(&self.sessions);
        let Some(count) = sessions.get_mut(&session) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        sessions.remove(&session);
        drop(sessions);
        if let Some(tiering) = self.tiering() {
            tiering.session_leaves(session);
        }
        self.borrower_leaves(session, None);
        let now = self.monotonic();
        let mut state = self.state();
        state.session_ended(session, now);
        self.recalls.send(state.leases.take_recalls());
        self.tell_waiters(&mut state.locks);
    }

    /// To be looked after from now on.
    pub fn set_tethers(&self, tethers: Vec<Tether>) {
        let _ = self.tethers.set(tethers);
    }

    /// Notices that a store was removed: what is written from then on would be gone with this process, and is refused. What can
    /// still be read is read.
    pub fn look_after_stores(&self) {
        if self.lost.get().is_some() {
            return;
        }
        let Some(place) = self.tethers.get().into_iter().flatten().find_map(Tether::lost) else { return };
        let text = format!(
            "{} was removed, or replaced, while the pool uses it: nothing can be stored any more, and what is there ends with this daemon. Copy out what can still be read, and stop the pool",
            place.display()
        );
        eprintln!("tidepoold {}: {text}", self.index);
        *lock(&self.trouble) = text.clone();
        let _ = self.lost.set(text);
        // Borrowers write to files that nobody will find again.
        if let Err(error) = self.call_in_all() {
            eprintln!("tidepoold {}: {error}", self.index);
        }
    }

    /// Whether nothing can be stored any more.
    pub fn has_lost_store(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Asks the daemon to end.
    pub fn stop(&self, stop: Stop) {
        lock(&self.stop).get_or_insert(stop);
        self.stop_wanted.notify_all();
        // Or it would sleep until its next tick.
        self.wake_background();
    }

    /// Waits until somebody asks the daemon to end.
    pub fn wait_for_stop(&self) -> Stop {
        let mut stop = lock(&self.stop);
        loop {
            if let Some(stop) = *stop {
                return stop;
            }
            stop = self.stop_wanted.wait(stop).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn stopping(&self) -> bool {
        lock(&self.stop).is_some()
    }

    /// Wakes the background thread: removed objects have chunks to drop.
    fn wake_background(&self) {
        *lock(&self.work.0) = true;
        self.work.1.notify_one();
    }

    /// Waits for background work or `timeout`.
    pub fn wait_for_work(&self, timeout: std::time::Duration) {
        let woken = lock(&self.work.0);
        let (mut woken, _) = self
            .work
            .1
            .wait_timeout_while(woken, timeout, |woken| !*woken)
            .unwrap_or_else(PoisonError::into_inner);
        *woken = false;
    }

    pub fn put_handshake(&self, message: &Handshake, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        message.encode(out);
        let meta_len = out.len() - start - HEADER_LEN;
        let header = Header {
            kind: message.kind(),
            flags: self.pace_flag(),
            epoch: self.epoch.load(Ordering::Acquire),
            meta_len: meta_len as u32,
            ..Header::default()
        };
        out[start..start + HEADER_LEN].copy_from_slice(&header.encode());
    }

    /// Appends a reply that has nothing to do with the state.
    pub fn put_plain(&self, request: &Header, reply: &Reply, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let fields = self.put_reply(reply, out);
        self.end_frame(request, start, &fields, None, out);
    }

    /// Serves one request and appends its reply to `out`.
    pub fn serve(&self, session: SessionId, header: &Header, meta: &[u8], bulk: &[u8], out: &mut Vec<u8>) {
        let request = Request::decode(header.kind, meta);
        let start = begin_frame(out);
        let before = out.len();
        let asks = is_of_program(&request);
        let fields = match request {
            Ok(Request::Read { ino, offset, len }) if !is_one_way(header) => {
                self.read(session, ino, offset, len, out)
            }
            request => self.answer(session, header, request, bulk, out),
        };
        Counters::add(&self.counters.requests, asks.into());
        // Into the socket and out of it.
        Counters::add(&self.counters.bytes_copied, 2 * (bulk.len() + out.len() - before - fields.len) as u64);
        self.end_frame(header, start, &fields, None, out);
    }

    /// Serves one request that came through a lane: its data are at the start of `area`, and data to read are put there.
    /// The reply's header and fields are appended to `out`, which is empty.
    pub fn serve_shared(
        &self,
        session: SessionId,
        header: &Header,
        request: Result<Request, DecodeError>,
        area: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Shared {
        Counters::add(&self.counters.requests, is_of_program(&request).into());
        let start = begin_frame(out);
        let bulk_len = header.bulk_len as usize;
        let (fields, in_area) = match request {
            Ok(Request::Read { ino, offset, len }) if fits(len, area) => {
                self.read_shared(session, ino, offset, &mut area[..len as usize], out)
            }
            Ok(Request::Read { ino, offset, len }) => (self.read(session, ino, offset, len, out), None),
            request => (self.answer(session, header, request, &area[..bulk_len], out), None),
        };
        Counters::add(&self.counters.bytes_copied, (bulk_len + in_area.unwrap_or_default()) as u64);
        let bulk_in_frame = out.len() > start + HEADER_LEN + fields.len;
        self.end_frame(header, start, &fields, in_area, out);
        if is_one_way(header) { Shared::NoReply } else { Shared::Reply { bulk_in_frame } }
    }

    fn answer(
        &self,
        session: SessionId,
        header: &Header,
        request: Result<Request, DecodeError>,
        bulk: &[u8],
        out: &mut Vec<u8>,
    ) -> Encoded {
        let kept = Cell::new(Kept::default());
        let reply = match request {
            Ok(request) => {
                let keep = header.flags & FLAG_KEEP != 0;
                let monotonic = self.clock.monotonic();
                let ctx = Context { now: self.now(), session, epoch: header.epoch, keep, monotonic };
                self.reply_to(&ctx, &request, bulk, &kept)
            }
            Err(error) => {
                let detail = format!("request {}: {error}", header.kind);
                Reply::Failed { errno: Errno::EPROTO, detail }
            }
        };
        Encoded { flags: flags_of(kept.get()), ..self.put_reply(&reply, out) }
    }

    /// Fills in the header of a reply, or takes the reply back when nobody wants it. `in_area`: bytes of data
    /// that are not in `out`.
    fn end_frame(
        &self,
        request: &Header,
        start: usize,
        fields: &Encoded,
        in_area: Option<usize>,
        out: &mut Vec<u8>,
    ) {
        if is_one_way(request) {
            out.truncate(start);
            return;
        }
        let behind = out.len() - start - HEADER_LEN - fields.len;
        let reply = Header {
            kind: fields.kind,
            flags: fields.flags | self.pace_flag(),
            id: request.id,
            epoch: self.epoch.load(Ordering::Acquire),
            meta_len: fields.len as u32,
            bulk_len: in_area.unwrap_or(behind) as u32,
        };
        out[start..start + HEADER_LEN].copy_from_slice(&reply.encode());
    }

    fn put_reply(&self, reply: &Reply, out: &mut Vec<u8>) -> Encoded {
        if let Reply::Failed { .. } = reply {
            Counters::add(&self.counters.failures, 1);
        }
        let before = out.len();
        reply.encode(out);
        Encoded { kind: reply.kind(), len: out.len() - before, flags: 0 }
    }

    fn reply_to(&self, ctx: &Context, request: &Request, bulk: &[u8], kept: &Cell<Kept>) -> Reply {
        use Request as R;
        if let Some(detail) = self.lost.get().filter(|_| !is_for_now(request)) {
            return Reply::Failed { errno: Errno::EIO, detail: detail.clone() };
        }
        match request {
            R::Write { ino, offset, extend } => self.write(ctx, *ino, *offset, *extend, bulk),
            R::Trim { ino, size } => {
                self.blocks_reply(self.owning(ctx.session, *ino, || self.chunks.trim(*ino, *size)))
            }
            R::Punch { ino, offset, len } => {
                self.blocks_reply(self.owning(ctx.session, *ino, || self.chunks.punch(*ino, *offset, *len)))
            }
            R::Copy { from, at, source, to, offset, len } => {
                let piece =
                    Copied { from: *from, at: *at, source: *source, to: *to, offset: *offset, len: *len };
                self.copy(ctx, &piece)
            }
            R::Sync { ino } => self.sync(*ino),
            R::SyncAll {} => self.sync_all(),
            R::Drop { inos } if inos.len() > LIST_MAX => {
                let detail = format!("{} objects at once, at most {LIST_MAX}", inos.len());
                Reply::Failed { errno: Errno::EINVAL, detail }
            }
            R::Drop { inos } => self.done_reply(inos.iter().try_for_each(|ino| self.drop_chunk(*ino))),
            R::Extents { ino, from, max } => self.extents(ctx.session, *ino, *from, *max),
            R::StatFs {} => match self.space() {
                Ok(stat) => Reply::Space { stat },
                Err(error) => self.failed(&error),
            },
            R::Status {} => Reply::Report { status: self.status() },
            R::Admit { ino, offset, len, write } => {
                self.admit(ctx, Access { ino: *ino, offset: *offset, len: *len, write: *write })
            }
            R::Flush { to, bandwidth } => match self.tiering() {
                Some(tiering) => tiering.order(&self.chunks, *to, *bandwidth),
                None => {
                    let detail =
                        "the pool's data lie on its nodes only: there is nowhere to flush them to".into();
                    Reply::Failed { errno: Errno::EOPNOTSUPP, detail }
                }
            },
            R::BeginPhase { .. } | R::EndPhase {} | R::PhaseBytes { .. } => self.hint(ctx, request),
            R::Members { members } => self.set_members(members),
            R::Scrub { after, max } => self.scrub(ctx.session, *after, *max),
            R::Used { read, written } => {
                // A count that cannot be is no count.
                if (*read).max(*written) <= USED_MAX {
                    Counters::add(&self.counters.bytes_read, *read);
                    Counters::add(&self.counters.bytes_written, *written);
                }
                Reply::Done {}
            }
            R::GiveBack { ino } => {
                self.borrower_leaves(ctx.session, Some(*ino));
                Reply::Done {}
            }
            R::OpenLane {} | R::OpenDirect { .. } | R::Borrow { .. } => {
                let detail = "descriptors are passed over Unix sockets only".to_string();
                Reply::Failed { errno: Errno::EOPNOTSUPP, detail }
            }
            R::Watch {} => {
                let detail = "recalls are sent over a socket".to_string();
                Reply::Failed { errno: Errno::EOPNOTSUPP, detail }
            }
            R::WaitLock { .. } | R::LeaveQueue {} => {
                let detail = "locks are waited for on a socket".to_string();
                Reply::Failed { errno: Errno::EOPNOTSUPP, detail }
            }
            R::OpenFabric { .. } => {
                let detail = "a fabric is opened over a socket".to_string();
                Reply::Failed { errno: Errno::EOPNOTSUPP, detail }
            }
            R::Ring {} => {
                if let Some(fabric) = self.fabric() {
                    fabric.ring();
                }
                Reply::Done {}
            }
            R::Shutdown { wipe } => {
                self.stop(Stop { wipe: *wipe });
                Reply::Done {}
            }
            R::Close { ino } => {
                if let Some(tiering) = self.tiering.get() {
                    tiering.note_closed(ctx.session, *ino);
                }
                self.apply(ctx, request, kept)
            }
            metadata => self.apply(ctx, metadata, kept),
        }
    }

    fn apply(&self, ctx: &Context, request: &Request, kept: &Cell<Kept>) -> Reply {
        // Asked before the state is: a loan that ends meanwhile has been recorded by the time it is gone.
        let lent = !self.loans.is_empty();
        let mut reply = match self.before(ctx.session, request) {
            Ok(()) => self.apply_now(ctx, request, kept),
            Err(error) => return self.failed(&error),
        };
        if !lent {
            return reply;
        }
        match self.after(&mut reply) {
            Ok(()) => reply,
            Err(error) => self.failed(&error),
        }
    }

    fn apply_now(&self, ctx: &Context, request: &Request, kept: &Cell<Kept>) -> Reply {
        let mut state = self.state();
        let reply = state.apply(ctx, request);
        kept.set(state.kept());
        self.recalls.send(state.leases.take_recalls());
        self.tell_waiters(&mut state.locks);
        let dropped = state.take_dropped();
        if self.epoch.load(Ordering::Relaxed) != state.epoch() {
            self.epoch.store(state.epoch(), Ordering::Release);
            self.board.set_epoch(state.epoch());
        }
        self.publish(request, &reply);
        drop(state);
        if !dropped.is_empty() {
            self.drop_chunks(&dropped);
            self.wake_background();
        }
        reply
    }

    /// Puts what was asked for on the board, where it may have been missing. The state is locked: it cannot
    /// be old when it gets there.
    fn publish(&self, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Lookup { parent, name, .. }, Reply::Failed { errno: Errno::ENOENT, .. }) => {
                self.board.put_entry(self.board.tag(parent.0, name), Listed::Absent);
            }
            (Request::Lookup { parent, name, .. }, Reply::Entry { ino, attr, .. }) => {
                self.board.put_entry(self.board.tag(parent.0, name), Listed::Object(ino.0));
                if let Some(attr) = attr {
                    self.board.put_object(ino.0, &attr.to_words());
                }
            }
            (Request::DirStat { dir }, Reply::Part { part }) => {
                self.board.put_object(part_key(dir.0), &part.to_words());
            }
            (Request::GetAttr { ino }, Reply::Attributes { attr }) => {
                self.board.put_object(ino.0, &attr.to_words());
            }
            _ => {}
        }
    }

    /// A descriptor by which clients map the board.
    pub fn board_fd(&self) -> io::Result<OwnedFd> {
        self.board_fd.try_clone()
    }

    /// Nobody is to trust what he remembers any more.
    pub fn close_board(&self) {
        self.board.set_epoch(0);
    }

    /// Drops the chunks here at once. The space of large objects is free when somebody needs it, or the
    /// background thread comes by.
    pub fn drop_chunks(&self, objects: &[Ino]) {
        for ino in objects {
            Counters::add(&self.counters.objects_dropped, 1);
            if let Err(error) = self.drop_chunk(*ino) {
                self.note_undropped();
                self.note_trouble(&error);
            }
        }
    }

    pub fn note_undropped(&self) {
        self.undropped.store(true, Ordering::Release);
    }

    /// True when chunks of removed objects may still be here; false from then on.
    pub fn take_undropped(&self) -> bool {
        self.undropped.swap(false, Ordering::AcqRel)
    }

    fn drop_chunk(&self, ino: Ino) -> Result<(), StoreError> {
        self.drop_lent(ino).map(|_| ())
    }

    pub fn note_trouble(&self, error: &StoreError) {
        *lock(&self.trouble) = error.to_string();
    }

    fn failed(&self, error: &StoreError) -> Reply {
        // A full quota is the users' matter, not a trouble of the daemon.
        if error.kind != StoreErrorKind::Quota {
            self.note_trouble(error);
        }
        Reply::Failed { errno: error.errno(), detail: error.to_string() }
    }

    fn done_reply(&self, result: Result<(), StoreError>) -> Reply {
        match result {
            Ok(()) => Reply::Done {},
            Err(error) => self.failed(&error),
        }
    }

    pub fn blocks_reply(&self, result: Result<i64, StoreError>) -> Reply {
        match result {
            Ok(blocks) => Reply::Written { blocks, attr: None },
            Err(error) => self.failed(&error),
        }
    }

    /// Bulk data goes straight from the chunk store behind the reply's fields.
    fn read(&self, session: SessionId, ino: Ino, offset: u64, len: u32, out: &mut Vec<u8>) -> Encoded {
        if len > CHUNK_SIZE_MAX {
            let detail = format!("{len} bytes are more than one request may read");
            return self.put_reply(&Reply::Failed { errno: Errno::EINVAL, detail }, out);
        }
        let start = out.len();
        let read = self.owning(session, ino, || {
            out.truncate(start);
            let fields = self.put_reply(&Reply::Data { size: self.size_here(ino)? }, out);
            self.chunks.read(ino, offset, len as usize, out).map(|()| fields)
        });
        match read {
            Ok(fields) => {
                Counters::add(&self.counters.bytes_read, (out.len() - start - fields.len) as u64);
                fields
            }
            Err(error) => {
                out.truncate(start);
                self.put_reply(&self.failed(&error), out)
            }
        }
    }

    /// Bulk data goes straight from the chunk store into the memory shared with the client; how much did.
    fn read_shared(
        &self,
        session: SessionId,
        ino: Ino,
        offset: u64,
        area: &mut [u8],
        out: &mut Vec<u8>,
    ) -> (Encoded, Option<usize>) {
        let read = self.owning(session, ino, || {
            let size = self.size_here(ino)?;
            Ok((size, self.chunks.read_into(ino, offset, area)?))
        });
        match read {
            Ok((size, count)) => {
                Counters::add(&self.counters.bytes_read, count as u64);
                (self.put_reply(&Reply::Data { size }, out), Some(count))
            }
            Err(error) => (self.put_reply(&self.failed(&error), out), None),
        }
    }

    /// The size of an object at home here. To be asked before its data are read: then bytes that
    /// are missing below it are a hole.
    fn size_here(&self, ino: Ino) -> Result<Option<u64>, StoreError> {
        if ino.home() != self.index {
            return Ok(None);
        }
        // A failure shows when the data are read.
        let _ = self.look(ino);
        self.state().size_of(ino).map_err(|error| StoreError::of_record(ino, error))
    }

    fn write(&self, ctx: &Context, ino: Ino, offset: u64, extend: bool, data: &[u8]) -> Reply {
        let end = offset.checked_add(data.len() as u64);
        let Some(end) = end.filter(|end| *end <= tidepool_types::FILE_SIZE_MAX) else {
            return Reply::Failed { errno: Errno::EFBIG, detail: String::new() };
        };
        let _writing = match extend.then(|| self.begin_write(ctx, ino)).transpose() {
            Ok(writing) => writing,
            Err(Recalling) => return Reply::Recalled {},
        };
        let blocks = match self.owning_quietly(ino, || self.store(ino, offset, data)) {
            Ok(blocks) => blocks,
            Err(error) => return self.failed(&error),
        };
        self.count_written(ctx, ino, offset, data.len());
        if !extend {
            return Reply::Written { blocks, attr: None };
        }
        match self.apply(ctx, &Request::Extend { ino, end, blocks }, &Cell::default()) {
            Reply::Attributes { attr } => Reply::Written { blocks: 0, attr: Some(attr) },
            other => {
                // The object went away meanwhile: its chunks must not stay.
                if let Reply::Failed { errno: Errno::ENOENT, .. } = other {
                    self.drop_chunks(&[ino]);
                }
                other
            }
        }
    }

    /// A process has written, or has had something copied.
    pub fn count_written(&self, ctx: &Context, ino: Ino, offset: u64, len: usize) {
        Counters::add(&self.counters.bytes_written, len as u64);
        if let Some(tiering) = self.tiering.get() {
            let now_ns = u64::try_from(ctx.monotonic.as_nanos()).unwrap_or(u64::MAX);
            tiering.note(ctx.session, ino, offset, len as u64, now_ns);
        }
    }

    /// Stores data if the quota has room for it; the change in stored blocks.
    pub fn store(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<i64, StoreError> {
        if self.quota.is_unlimited() {
            return self.chunks.write(ino, offset, data, self.tier_for_new());
        }
        let missing = self.chunks.missing_blocks(ino, offset, data.len())?;
        let share = self.quota.bytes().unwrap_or_default();
        // The promise ends when the blocks count as stored.
        let Some(_promise) = self.quota.promise(self.chunks.stored_blocks(), missing) else {
            return Err(StoreError::over_quota(ino, offset, share));
        };
        self.chunks.write(ino, offset, data, self.tier_for_new())
    }

    fn sync(&self, ino: Ino) -> Reply {
        if let Err(error) = self.look(ino).and_then(|_| self.chunks.sync(ino)) {
            return self.failed(&error);
        }
        if ino.home() == self.index { self.sync_metadata() } else { Reply::Done {} }
    }

    fn sync_metadata(&self) -> Reply {
        match self.state().sync() {
            Ok(()) => Reply::Done {},
            Err(error) => {
                Reply::Failed { errno: Errno::from(&error), detail: format!("syncing metadata: {error}") }
            }
        }
    }

    fn sync_all(&self) -> Reply {
        match self.look_all().and_then(|()| self.chunks.sync_all()) {
            Ok(()) => self.sync_metadata(),
            Err(error) => self.failed(&error),
        }
    }

    fn extents(&self, session: SessionId, ino: Ino, from: u64, max: u32) -> Reply {
        match self
            .owning(session, ino, || self.chunks.extents(ino, from, (max as usize).clamp(1, RANGES_MAX)))
        {
            Ok(ranges) => Reply::Ranges { ranges },
            Err(error) => self.failed(&error),
        }
    }

    fn space(&self) -> Result<SpaceStat, StoreError> {
        let usage = self.chunks.usage()?;
        let used = usage.blocks * u64::from(tidepool_types::BLOCK_SIZE);
        let objects = self.state().inode_count();
        let (mut total, mut free, mut device) = (usage.total, usage.free, self.room_device);
        if let Some(quota) = self.quota.bytes() {
            total = total.min(quota);
            free = free.min(quota.saturating_sub(used));
            if total == quota {
                // Daemons that share a file system have each a share of the quota of their own.
                device = u64::MAX - u64::from(self.index);
            }
        }
        Ok(SpaceStat { total, free, used, objects, device })
    }

    fn status(&self) -> DaemonStatus {
        // Before the state is locked: it reads files.
        let tiers = self.tiering().map(|tiering| tiering.counters(&self.chunks)).unwrap_or_default();
        let counters = [self.counters.list(), tiers, meters::read(self.device)].concat();
        let space = self.space();
        let state = self.state();
        let mut trouble = lock(&self.trouble).clone();
        if trouble.is_empty() {
            trouble = state.trouble().to_string();
        }
        // Without its store there is no space to be asked for; why says more.
        if let Err(error) = &space
            && !self.has_lost_store()
        {
            trouble = error.to_string();
        }
        DaemonStatus {
            index: self.index,
            pid: std::process::id(),
            backend: state.backend().to_string(),
            space: space.unwrap_or_default(),
            sessions: lock(&self.sessions).len() as u64,
            open_handles: state.handle_count(),
            counters,
            trouble,
        }
    }

    fn set_members(&self, members: &[Member]) -> Reply {
        let mine = members.get(usize::from(self.index));
        if mine.is_none_or(|m| m.index != self.index) {
            let detail = format!("the member list does not have daemon {} at its place", self.index);
            return Reply::Failed { errno: Errno::EINVAL, detail };
        }
        *lock(&self.members) = members.to_vec();
        self.configured.store(true, Ordering::Release);
        Reply::Done {}
    }

    fn scrub(&self, session: SessionId, after: Option<Ino>, max: u32) -> Reply {
        let max = (max as usize).clamp(1, SCRUB_OBJECTS_MAX);
        let page = match self.chunks.objects(after, max) {
            Ok(page) => page,
            Err(error) => return self.failed(&error),
        };
        let more = page.len() == max;
        let mut objects = Vec::with_capacity(page.len());
        for ino in page {
            let verified =
                self.owning(session, ino, || Ok((self.chunks.scrub(ino)?, self.chunks.blocks(ino)?)));
            match verified {
                Ok((bad, blocks)) => {
                    let bad = bad.iter().take(BAD_BLOCKS_MAX).map(|b| b.offset).collect();
                    objects.push(ScrubResult { ino, blocks, bad });
                }
                Err(error) => return self.failed(&error),
            }
        }
        Reply::Scrubbed { objects, more }
    }
}

/// Kind and length of a message's fields that were just appended to a buffer.
struct Encoded {
    kind: u16,
    len: usize,
    flags: u16,
}

fn flags_of(kept: Kept) -> u16 {
    (u16::from(kept.entry) * FLAG_KEEP) | (u16::from(kept.attr) * FLAG_KEEP_ATTR)
}

/// What became of a request that came through a lane.
pub enum Shared {
    NoReply,
    /// Header and fields are in the buffer; data in the area, or, when they had no room there, in the buffer.
    Reply {
        bulk_in_frame: bool,
    },
}

/// What needs no store to keep it: questions, and what a daemon knows only while it runs.
fn is_for_now(request: &Request) -> bool {
    use Request as R;
    matches!(
        request,
        R::Ping {}
            | R::Status {}
            | R::Shutdown { .. }
            | R::Members { .. }
            | R::Lookup { .. }
            | R::GetAttr { .. }
            | R::GetAttrs { .. }
            | R::GetInode { .. }
            | R::DirStat { .. }
            | R::DirStats { .. }
            | R::List { .. }
            | R::ListPlus { .. }
            | R::Open { .. }
            | R::OpenKept { .. }
            | R::Keep { .. }
            | R::Close { .. }
            | R::Released { .. }
            | R::GiveBack { .. }
            | R::Used { .. }
            | R::Read { .. }
            | R::Extents { .. }
            | R::StatFs {}
            | R::Lock { .. }
            | R::TestLock { .. }
            | R::Watch {}
            | R::WaitLock { .. }
            | R::LeaveQueue {}
            | R::ScanInodes { .. }
            | R::ScanDirs { .. }
            | R::Scrub { .. }
    )
}

/// False for what clients tell by themselves of what they have done without asking: no program waits for it, and it would spoil the count.
fn is_of_program(request: &Result<Request, DecodeError>) -> bool {
    !matches!(request, Ok(Request::Used { .. }))
}

fn is_one_way(header: &Header) -> bool {
    header.flags & FLAG_ONE_WAY != 0
}

fn fits(len: u32, area: &[u8]) -> bool {
    len as usize <= area.len()
}

/// Makes room for a frame's header; it is filled in when the lengths are known.
fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.resize(start + HEADER_LEN, 0);
    start
}
