//! Dispatch, identity, epoch and time.

use crate::MetaStore;
use crate::handles::Handles;
use crate::leases::{Kept, Leases};
use crate::waiting::Locks;
use crate::{ORPHAN_GRACE, ORPHAN_GRACE_RESTART, OUTCOME_KEEP_MS};
use std::io;
use std::time::Duration;
use tidepool_types::{Attr, DaemonIndex, Errno, FileKind, Ino, SessionId, TimeSpec};
use tidepool_wire::message::{Reply, Request};
use tidepool_wire::record::{Hold, Inode, Mutation};

/// Object numbers are leased from the store in strides, so that a create logs one batch only.
const COUNT_STRIDE: u64 = 4096;
/// Records in a page of a check: copying so many keeps others waiting for less than a millisecond.
const SCAN_MAX: usize = 512;
/// Bytes of records from which on a page is full, and how many are looked at between: together half of a frame at most.
const SCAN_BYTES: usize = 256 << 10;
const SCAN_STEP: usize = 4;

/// What is fixed for the life of the daemon.
#[derive(Clone, Debug)]
pub struct StateConfig {
    pub me: DaemonIndex,
    /// Owner of the root directory.
    pub uid: u32,
    pub gid: u32,
    /// Differs between runs of the daemon, so that clients of an earlier run notice.
    pub epoch: u64,
    /// Most objects at home here; 0 for no limit.
    pub objects_max: u64,
}

/// What the state machine knows about a request besides its fields.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub now: TimeSpec,
    pub session: SessionId,
    /// Directory epoch the sender relies on; 0 for none.
    pub epoch: u64,
    /// The asker would keep what it is told.
    pub keep: bool,
    /// For leases: since an arbitrary start.
    pub monotonic: Duration,
}

/// Why a request was not carried out.
pub(crate) enum Fail {
    Errno(Errno),
    Stale,
    Held(Hold),
    /// Others keep what would change.
    Recalled,
    Store(io::Error),
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Fail {
        Fail::Errno(errno)
    }
}

impl From<io::Error> for Fail {
    fn from(error: io::Error) -> Fail {
        Fail::Store(error)
    }
}

pub(crate) type Outcome = Result<Reply, Fail>;

/// The metadata of one daemon.
pub struct State<S> {
    pub(crate) store: S,
    pub(crate) me: DaemonIndex,
    pub(crate) handles: Handles,
    pub locks: Locks,
    pub leases: Leases,
    kept: Kept,
    epoch: u64,
    next_count: u64,
    leased_until: u64,
    objects_max: u64,
    /// Objects removed since [`State::take_dropped`]; their chunks here can go.
    pub(crate) dropped: Vec<Ino>,
    trouble: String,
    /// The request at hand has committed something.
    committed: bool,
    /// When the store was taken over, by the wall clock and by the other.
    opened: (TimeSpec, Duration),
    /// What is made after the latest scan began is not for it: it would not end while objects are made faster.
    scanned_below: u64,
}

impl<S: MetaStore> State<S> {
    /// Takes over a store, makes the root if this daemon is its home and it is missing, and
    /// schedules the removal of objects that lost their last name before a restart.
    ///
    /// `now` is read off the wall clock, `monotonic` off the other at the same moment.
    pub fn open(
        mut store: S,
        config: &StateConfig,
        now: TimeSpec,
        monotonic: Duration,
    ) -> io::Result<State<S>> {
        if config.me == Ino::ROOT.home() && store.inode(Ino::ROOT).is_none() {
            store.commit(&[Mutation::PutInode(root_inode(config, now)), Mutation::NextCount(2)])?;
        }
        let next_count = store.next_count().max(1);
        // Without the root or the count there is no going on; what else cannot be read fails where it is needed.
        if let Some(error) = store.take_failure() {
            return Err(error);
        }
        let mut state = State {
            store,
            me: config.me,
            handles: Handles::default(),
            locks: Locks::default(),
            leases: Leases::new(config.epoch),
            kept: Kept::default(),
            epoch: config.epoch.max(1),
            next_count,
            leased_until: next_count,
            objects_max: config.objects_max,
            dropped: Vec::new(),
            trouble: String::new(),
            committed: false,
            opened: (now, monotonic),
            scanned_below: next_count,
        };
        state.adopt_orphans(monotonic);
        if let Err(error) = state.checked(()) {
            state.note_trouble(&error);
        }
        Ok(state)
    }

    /// What was read, unless something could not be.
    pub(crate) fn checked<T>(&self, read: T) -> io::Result<T> {
        self.store.take_failure().map_or(Ok(read), Err)
    }

    fn note_trouble(&mut self, error: &io::Error) {
        self.trouble = format!("metadata store: {error}");
    }

    fn adopt_orphans(&mut self, now: Duration) {
        let mut after = None;
        loop {
            let page = self.store.inodes_after(after, crate::LIST_MAX);
            let Some(last) = page.last() else { return };
            after = Some(last.attr.ino);
            for inode in page.iter().filter(|i| i.attr.nlink == 0) {
                self.handles.doom(inode.attr.ino, now + ORPHAN_GRACE_RESTART);
            }
        }
    }

    /// Carries out one metadata request. Data requests (40 to 46) are not for here.
    pub fn apply(&mut self, ctx: &Context, request: &Request) -> Reply {
        self.leases.acting(ctx.session, ctx.monotonic);
        self.kept = Kept::default();
        let before = (self.next_count, self.leased_until, self.dropped.len());
        self.committed = false;
        let outcome = self.dispatch(ctx, request);
        let outcome = self.checked(()).map_err(Fail::Store).and(outcome);
        if outcome.is_err() && !self.committed {
            // What was prepared for a batch that was not committed.
            self.next_count = before.0;
            self.leased_until = before.1;
            self.dropped.truncate(before.2);
        }
        match outcome {
            Ok(reply) => {
                self.grant(ctx, request, &reply);
                reply
            }
            Err(Fail::Errno(errno)) if errno == Errno::ENOENT && ctx.keep => {
                self.grant_absence(ctx, request);
                Reply::Failed { errno, detail: String::new() }
            }
            Err(Fail::Recalled) => Reply::Recalled {},
            Err(Fail::Errno(errno)) => Reply::Failed { errno, detail: String::new() },
            Err(Fail::Stale) => Reply::Stale {},
            Err(Fail::Held(hold)) => Reply::Held { hold },
            Err(Fail::Store(error)) => {
                self.note_trouble(&error);
                Reply::Failed { errno: Errno::from(&error), detail: self.trouble.clone() }
            }
        }
    }

    fn dispatch(&mut self, ctx: &Context, request: &Request) -> Outcome {
        use Request as R;
        match request {
            R::Ping {} => Ok(Reply::Done {}),
            R::Lookup { parent, name, open } => self.lookup(ctx, *parent, name, *open),
            R::Create { parent, name, object, excl, open } => {
                self.create(ctx, *parent, name, object, *excl, *open)
            }
            R::PutDentry { parent, name, ino, kind } => self.put_dentry(ctx, *parent, name, *ino, *kind),
            R::Unlink { parent, name } => self.unlink(ctx, *parent, name),
            R::List { dir, after, max } => Ok(self.list(*dir, after.as_deref(), *max)),
            R::ListPlus { dir, after, max } => Ok(self.list_plus(*dir, after.as_deref(), *max)),
            R::DirStat { dir } => Ok(Reply::Part { part: self.part(*dir) }),
            R::DirStats { dirs } => self.parts(dirs),
            R::ResetDirTimes { dir } => self.reset_dir_times(*dir),
            R::Prepare { txn, decider, parent, name } => {
                self.prepare(ctx, Hold { txn: *txn, decider: *decider, since: ctx.now }, *parent, name)
            }
            R::PrepareDir { txn, decider, dir } => {
                self.prepare_dir(Hold { txn: *txn, decider: *decider, since: ctx.now }, *dir)
            }
            R::CommitRename { .. } => self.commit_rename(ctx, request),
            R::CommitRmdir { txn, parent, name, dir } => self.commit_rmdir(ctx, *txn, *parent, name, *dir),
            R::Finish { txn, committed, parent, name } => self.finish(ctx, *txn, *committed, *parent, name),
            R::FinishDir { txn, committed, dir } => self.finish_dir(*txn, *committed, *dir),
            R::Resolve { txn } => self.resolve(ctx, *txn),
            R::Bump {} => {
                self.bump();
                Ok(Reply::Done {})
            }
            R::MakeObject { object, open } => self.make_object(ctx, object, *open),
            R::SetLayout { dir, layout } => self.set_layout(ctx, *dir, *layout),
            R::GetAttr { ino } => self.get_attr(*ino),
            R::GetAttrs { inos } => self.get_attrs(inos),
            R::GetInode { ino } => Ok(Reply::Object { inode: self.inode(*ino)? }),
            R::Open { ino } => self.open_handle(ctx, *ino),
            R::OpenKept { ino } => self.open_kept(ctx, *ino),
            R::Keep { ino } => self.keep(ctx, *ino),
            R::Released { id } => {
                self.leases.released(ctx.session, *id);
                Ok(Reply::Done {})
            }
            R::Close { ino } => self.close_handle(ctx, *ino),
            R::SetAttr { ino, set, blocks } => self.set_attr(ctx, *ino, set, *blocks),
            R::TakeBlocks { ino, max } => self.take_blocks(*ino, *max),
            R::Extend { ino, end, blocks } => self.extend(ctx, *ino, *end, *blocks),
            R::Reserve { ino, len } => self.reserve(ctx, *ino, *len),
            R::Unreserve { ino, offset, len } => self.unreserve(*ino, *offset, *len),
            R::Nlink { ino, delta } => self.nlink(ctx, *ino, *delta),
            R::RemoveDir { dir } => self.remove_dir(*dir),
            R::SetParent { dir, parent } => self.set_parent(ctx, *dir, *parent),
            R::SetXattr { ino, name, value, flags } => self.set_xattr(ctx, *ino, name, value, *flags),
            R::RemoveXattr { ino, name } => self.remove_xattr(ctx, *ino, name),
            R::Lock { ino, lock } => self.lock(ctx, *ino, lock),
            R::TestLock { ino, lock } => {
                Ok(Reply::LockHeld { lock: self.locks.conflict(*ino, ctx.session, lock) })
            }
            R::ScanInodes { after, max } => Ok(self.scan_inodes(*after, *max)),
            R::ScanDirs { after, max } => Ok(self.scan_dirs(*after, *max)),
            _ => Err(Fail::Errno(Errno::ENOSYS)),
        }
    }

    /// Commits a batch, unless others keep what it would change.
    pub(crate) fn commit(&mut self, batch: &[Mutation]) -> Result<(), Fail> {
        if !self.leases.change(batch) {
            return Err(Fail::Recalled);
        }
        self.store.commit(batch)?;
        self.committed = true;
        self.leases.changed(batch);
        Ok(())
    }

    /// What the asker may keep of the last reply.
    pub fn kept(&self) -> Kept {
        self.kept
    }

    fn grant(&mut self, ctx: &Context, request: &Request, reply: &Reply) {
        if !ctx.keep {
            return;
        }
        self.kept = match (request, reply) {
            (Request::Lookup { parent, name, .. }, Reply::Entry { .. }) => {
                Kept { entry: self.leases.grant_entry(*parent, name, ctx.session), attr: false }
            }
            (Request::Create { parent, name, .. }, Reply::Entry { ino, created: true, .. }) => Kept {
                entry: self.leases.grant_entry(*parent, name, ctx.session),
                attr: self.leases.grant_object(*ino, ctx.session, true),
            },
            (Request::GetAttr { ino }, Reply::Attributes { .. }) => {
                Kept { entry: false, attr: self.leases.grant_object(*ino, ctx.session, false) }
            }
            (Request::DirStat { dir }, Reply::Part { .. }) => {
                Kept { entry: false, attr: self.leases.grant_part(*dir, ctx.session) }
            }
            (Request::OpenKept { .. } | Request::Keep { .. }, Reply::Opened { version, .. }) => {
                Kept { entry: false, attr: *version != 0 }
            }
            _ => return,
        };
    }

    fn grant_absence(&mut self, ctx: &Context, request: &Request) {
        if let Request::Lookup { parent, name, .. } = request {
            self.kept.entry = self.leases.grant_absence(*parent, name, ctx.session);
        }
    }

    /// Refuses a request whose sender resolved its path before the last directory change.
    pub(crate) fn check_epoch(&self, ctx: &Context) -> Result<(), Fail> {
        if ctx.epoch == 0 || ctx.epoch == self.epoch { Ok(()) } else { Err(Fail::Stale) }
    }

    pub(crate) fn bump(&mut self) {
        self.epoch += 1;
    }

    /// Directory epoch of this daemon, sent with every reply.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode, Fail> {
        self.store.inode(ino).ok_or(Fail::Errno(Errno::ENOENT))
    }

    /// A fresh object id, and the mutation that leases more numbers when they ran out.
    pub(crate) fn allocate(&mut self) -> Result<(Ino, Option<Mutation>), Fail> {
        if self.next_count > Ino::COUNT_MAX {
            return Err(Fail::Errno(Errno::ENOSPC));
        }
        if self.objects_max > 0 && self.store.inode_count() >= self.objects_max {
            return Err(Fail::Errno(Errno::EDQUOT));
        }
        let ino = Ino::new(self.me, self.next_count);
        self.next_count += 1;
        let lease = (self.next_count > self.leased_until).then(|| {
            self.leased_until = (self.next_count + COUNT_STRIDE).min(Ino::COUNT_MAX + 1);
            Mutation::NextCount(self.leased_until)
        });
        Ok((ino, lease))
    }

    /// A client process is gone: its locks and handles are, too.
    pub fn session_ended(&mut self, session: SessionId, now: Duration) {
        self.locks.release_session(session);
        for ino in self.handles.end_session(session) {
            // It may have been writing to daemons that could not be told about any more.
            self.leases.disturb(ino, session);
            self.doom_if_orphan(ino, now);
        }
        if let Err(error) = self.checked(()) {
            self.note_trouble(&error);
        }
    }

    pub(crate) fn doom_if_orphan(&mut self, ino: Ino, now: Duration) {
        let orphan = self.store.inode(ino).is_some_and(|i| i.attr.nlink == 0);
        if orphan && !self.handles.is_open(ino) {
            self.handles.doom(ino, now + ORPHAN_GRACE);
        }
    }

    /// Removes orphans whose grace is over and outcomes nobody can ask for any more.
    /// `now`: by the clock that nobody sets.
    pub fn tick(&mut self, now: Duration) -> io::Result<()> {
        self.locks.lapse(now);
        let done = self.forget_old(now);
        let done = self.checked(()).and(done);
        if let Err(error) = &done {
            self.note_trouble(error);
        }
        done
    }

    fn forget_old(&mut self, now: Duration) -> io::Result<()> {
        for ino in self.handles.take_doomed(now) {
            let orphan = self.store.inode(ino).is_some_and(|i| i.attr.nlink == 0);
            if orphan && !self.handles.is_open(ino) {
                self.store.commit(&[Mutation::DelInode(ino), Mutation::PutReap(ino)])?;
                self.dropped.push(ino);
            }
        }
        let old: Vec<Mutation> = self
            .store
            .outcomes(crate::LIST_MAX)
            .into_iter()
            .filter(|(_, outcome)| self.outcome_is_old(outcome.at, now))
            .map(|(txn, _)| Mutation::DelOutcome(txn))
            .collect();
        if old.is_empty() { Ok(()) } else { self.store.commit(&old) }
    }

    /// The time by which outcomes age: the wall clock's when the store was taken over, and what has passed since.
    pub(crate) fn steady(&self, now: Duration) -> TimeSpec {
        let passed = now.saturating_sub(self.opened.1).as_millis();
        plus_ms(self.opened.0, u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// What an earlier daemon decided has the time of its clock: it is as old as this one, whatever that says.
    fn outcome_is_old(&self, at: TimeSpec, now: Duration) -> bool {
        let (opened, steady) = (self.opened.0, self.steady(now));
        let at = if (opened..=steady).contains(&at) { at } else { opened };
        plus_ms(at, OUTCOME_KEEP_MS) < steady
    }

    /// Objects removed since the last call, whose chunks on this daemon can go.
    pub fn take_dropped(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.dropped)
    }

    /// Objects whose chunks on peers still have to be dropped. What cannot be read of them waits.
    pub fn reaps(&mut self, max: usize) -> Vec<Ino> {
        let found = self.store.reaps(max);
        if let Err(error) = self.checked(()) {
            self.note_trouble(&error);
        }
        found
    }

    /// Every peer has dropped the chunks of these.
    pub fn reaped(&mut self, inos: &[Ino]) -> io::Result<()> {
        let batch: Vec<Mutation> = inos.iter().map(|ino| Mutation::DelReap(*ino)).collect();
        self.store.commit(&batch)
    }

    /// Size of an object at home here.
    pub fn size_of(&self, ino: Ino) -> io::Result<Option<u64>> {
        self.checked(self.store.inode(ino).map(|i| i.attr.size))
    }

    pub fn sync(&mut self) -> io::Result<()> {
        self.store.sync()
    }

    pub fn compact(&mut self) -> io::Result<()> {
        self.store.compact()
    }

    pub fn backend(&self) -> &'static str {
        self.store.name()
    }

    pub fn inode_count(&mut self) -> u64 {
        let count = self.store.inode_count();
        if let Err(error) = self.checked(()) {
            self.note_trouble(&error);
        }
        count
    }

    pub fn session_count(&self) -> u64 {
        self.handles.sessions() as u64
    }

    pub fn handle_count(&self) -> u64 {
        self.handles.total()
    }

    /// Last trouble of the store in plain words; empty when there was none.
    pub fn trouble(&self) -> &str {
        &self.trouble
    }

    fn scan_inodes(&mut self, after: Option<Ino>, max: u32) -> Reply {
        if after.is_none() {
            self.scanned_below = self.next_count;
        }
        let max = (max as usize).clamp(1, SCAN_MAX);
        let (mut inodes, mut bytes, mut more, mut last) = (Vec::new(), 0, true, after);
        // They can carry 64 KiB of attributes each: pages stay well below the frame limit.
        while more && inodes.len() < max && bytes < SCAN_BYTES {
            let count = (max - inodes.len()).min(SCAN_STEP);
            let mut next = self.store.inodes_after(last, count);
            more = next.len() == count;
            last = next.last().map(|inode| inode.attr.ino);
            if next.iter().any(|inode| self.is_newer(inode)) {
                next.retain(|inode| !self.is_newer(inode));
                // Behind all of ours are those of others, which are here by mistake.
                (more, last) = (true, last.max(Some(Ino::new(self.me, Ino::COUNT_MAX))));
            }
            bytes += next.iter().map(scanned_bytes).sum::<usize>();
            inodes.extend(next);
        }
        Reply::Inodes { inodes, more }
    }

    fn is_newer(&self, inode: &Inode) -> bool {
        let ino = inode.attr.ino;
        ino.home() == self.me && ino.count() >= self.scanned_below
    }

    fn scan_dirs(&self, after: Option<Ino>, max: u32) -> Reply {
        let max = (max as usize).clamp(1, crate::LIST_MAX);
        let dirs = self.store.dir_parts_after(after, max);
        let more = dirs.len() == max;
        Reply::Dirs { dirs, more }
    }
}

/// Of a record in a page, about.
fn scanned_bytes(inode: &Inode) -> usize {
    const FIXED: usize = 128;
    FIXED
        + inode.target.len()
        + inode.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

fn root_inode(config: &StateConfig, now: TimeSpec) -> Inode {
    let attr = Attr {
        ino: Ino::ROOT,
        mode: FileKind::Directory.mode_bits() | 0o755,
        nlink: 2,
        uid: config.uid,
        gid: config.gid,
        size: 0,
        blocks: 0,
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        layout: None,
    };
    Inode { attr, parent: Ino::ROOT, target: Box::default(), xattrs: Vec::new() }
}

pub(crate) fn plus_ms(time: TimeSpec, ms: u64) -> TimeSpec {
    let nanos = u64::from(time.nsec) + (ms % 1000) * 1_000_000;
    TimeSpec {
        sec: time.sec + (ms / 1000) as i64 + (nanos / 1_000_000_000) as i64,
        nsec: (nanos % 1_000_000_000) as u32,
    }
}
