//! Carrying out one task, on a worker's thread, in the name of its user.

use crate::made;
use crate::permit;
use crate::places::{Opener, Peers, Place, PlaceError, Whose, look};
use crate::tasks::{News, Teller, Work};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::ffi::CString;
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tidepool_stage::{
    At, Charged, Doomed, End, EndError, Failure, FailureKind, Identity, LARGE_BYTES_MIN, Lone, NO_ID,
    RemoveReport, Side, StageError, StageOptions, StageReport, What, move_tree, remove_but, stage,
};
use tidepool_stage_state::{Ended, Start, put_at, show_resource};
use tidepool_types::{Errno, FileKind};
use tidepool_wire::stager::{Code, Op, Refusal, Resource, TaskState, Verify};

/// Longest wait between two looks at whether the task is cancelled.
const CANCEL_LATENCY: Duration = Duration::from_millis(50);

/// What all tasks share.
pub struct Setup {
    pub node: String,
    /// Threads of one task; 0 for as many as seem good.
    pub threads: usize,
    pub peers: Peers,
    /// What is verified is read back from disks.
    pub verify_disk: bool,
    pub own: ProcessUser,
}

/// Whom this process is. It stays that, so the kernel is asked once, and not eight times for each small copy.
pub struct ProcessUser(Identity);

impl ProcessUser {
    pub fn ask() -> Result<ProcessUser, EndError> {
        Identity::of_thread().map(ProcessUser)
    }

    /// A user with all his groups. Nobody knows the groups of an unknown user but his own one.
    pub(crate) fn identity_of(&self, uid: u32, gid: u32) -> Result<Identity, EndError> {
        if uid == NO_ID {
            let detail = Some(format!("{uid} is no number of a user"));
            return Err(EndError { errno: Errno::EINVAL, operation: "act as the user", detail });
        }
        if uid == self.0.uid {
            // Nobody will become him, and asking the name service costs more than copying a small file.
            let gid = if gid == tidepool_stage_state::Identity::OWN_GROUP { self.0.gid } else { gid };
            return Ok(Identity { gid, ..self.0.clone() });
        }
        Ok(named_identity(uid, gid))
    }

    /// What is done for a user is done by a process of his: this one has to be that. Nobody becomes anybody here.
    pub(crate) fn must_be(&self, identity: &Identity) -> Result<(), EndError> {
        let (own, user) = (self.0.uid, identity.uid);
        if user == own {
            return Ok(());
        }
        let detail = Some(format!("this stager is user {own}'s; it does nothing for user {user}"));
        Err(EndError { errno: Errno::EPERM, operation: "act as another user", detail })
    }
}

/// Why a task failed, before it is told how much it had done.
pub(crate) enum Failed {
    Place(PlaceError),
    Refusal(Refusal),
    Cancelled,
}

impl From<EndError> for Failed {
    fn from(error: EndError) -> Failed {
        Failed::Place(PlaceError::End(error))
    }
}

impl From<PlaceError> for Failed {
    fn from(error: PlaceError) -> Failed {
        Failed::Place(error)
    }
}

/// What was done.
#[derive(Default)]
struct Done {
    bytes: u64,
    files: u64,
    moved: u64,
    /// Of the bytes, those that share their blocks with the source: they cost no time, and take quota.
    cloned: u64,
    /// First of the errors; none when all went well.
    error: Option<StageError>,
    error_count: u64,
    cancelled: bool,
    /// Everything is where it belongs, verified.
    complete: bool,
}

impl Done {
    /// It had been done before.
    fn before() -> Done {
        Done { complete: true, ..Done::default() }
    }
}

/// What is to be copied.
enum Found {
    /// An end, the entry of it that is meant, and whether that is small.
    There(Box<dyn End>, Option<Vec<u8>>, bool),
    /// It was moved before the daemon died, which nobody has counted.
    Moved { bytes: u64 },
}

/// Runs a task to its end, whatever that is.
pub fn run(setup: &Setup, work: &Work, teller: &Teller) -> Ended {
    let begun = Instant::now();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| carry_out(setup, work, teller)));
    let result = result.unwrap_or_else(|_| {
        Err(Failed::Refusal(Refusal::new(Code::INTERNAL, "the worker panicked; its message is in the log")))
    });
    let mut ended = match result {
        Ok(done) => {
            count_clones(work, teller, &done);
            of_done(done, &setup.node)
        }
        // What stopped it is what it was told to stop for.
        Err(_) if work.run.is_cancelled() => Ended::cancelled(),
        Err(failed) => of_failure(failed, &setup.node),
    };
    ended.busy_ms = begun.elapsed().as_millis() as u64;
    ended
}

/// What is cloned is not moved, but lies there and counts as what a peer puts there does.
fn count_clones(work: &Work, teller: &Teller, done: &Done) {
    let (start, bytes) = (&work.start, done.cloned);
    let Some(Resource::Path { dataspace, host: None, .. }) = start.spec.dst.clone() else { return };
    if bytes > 0 {
        let (job, place) = (start.identity.job, put_at(&start.spec, done.files));
        teller.tell(News::Received { task: start.id, job, dataspace, place, bytes });
    }
}

fn of_done(done: Done, node: &str) -> Ended {
    let (state, refusal) = match (done.complete, done.cancelled, &done.error) {
        (true, _, _) => (TaskState::Finished, Refusal::new(Code::SUCCESS, "")),
        (false, true, _) => (TaskState::Cancelled, Refusal::new(Code::CANCELLED, "")),
        (false, false, Some(error)) => (TaskState::Failed, of_error(error, done.error_count, node)),
        (false, false, None) => {
            (TaskState::Failed, Refusal::new(Code::INTERNAL, "not complete, and nobody said why"))
        }
    };
    Ended { state, refusal, bytes: done.bytes, files: done.files, moved: done.moved, busy_ms: 0 }
}

fn of_error(error: &StageError, count: u64, node: &str) -> Refusal {
    let others = if count > 1 { format!(" (and {} more errors)", count - 1) } else { String::new() };
    let (code, errno) = match error.kind {
        FailureKind::System => (Code::SYSTEM_ERROR, error.errno.unwrap_or(Errno::EIO)),
        FailureKind::Changed => (Code::SYSTEM_ERROR, Errno::EBUSY),
        FailureKind::Mismatch => (Code::SYSTEM_ERROR, Errno::EIO),
        FailureKind::Cancelled => (Code::CANCELLED, Errno(0)),
        FailureKind::Refused => (Code::BAD_ARGS, Errno(0)),
    };
    Refusal { code, errno: errno.0, detail: format!("on {node}: {error}{others}") }
}

pub(crate) fn of_failure(failed: Failed, node: &str) -> Ended {
    match failed {
        Failed::Cancelled => Ended::cancelled(),
        Failed::Refusal(refusal) => Ended::badly(refusal),
        Failed::Place(PlaceError::NotSupported(text)) => {
            Ended::badly(Refusal::new(Code::NOT_SUPPORTED, text))
        }
        Failed::Place(PlaceError::End(error)) => {
            let detail = format!("on {node}: {error}");
            Ended::badly(Refusal { code: Code::SYSTEM_ERROR, errno: error.errno.0, detail })
        }
    }
}

fn carry_out(setup: &Setup, work: &Work, teller: &Teller) -> Result<Done, Failed> {
    if work.run.is_cancelled() {
        return Err(Failed::Cancelled);
    }
    let spec = &work.start.spec;
    let identity = setup.own.identity_of(work.start.identity.uid, work.start.identity.gid)?;
    let opener = Opener {
        places: &work.places,
        start: &work.start,
        identity: &identity,
        peers: &setup.peers,
        whose: Whose::Task(work.start.id),
        run: &work.run,
        verify_disk: setup.verify_disk,
    };
    let source = opener.open(&spec.src)?;
    let target = spec.dst.as_ref().map(|dst| opener.open(dst)).transpose()?;
    let options = StageOptions {
        workers: setup.threads,
        verify: spec.verify != Verify::No,
        token: Some(work.token),
        bandwidth: (spec.bandwidth > 0).then_some(spec.bandwidth),
        charge: Some(Charged(Arc::clone(&work.limits))),
        count_ahead: true,
        ..StageOptions::default()
    };
    match (spec.op, target) {
        (Op::Permit, _) => settle_readers(setup, work, &source, &identity),
        (Op::Remove, _) => {
            setup.own.must_be(&identity)?;
            remove_entry(work, &source, &options)
        }
        (_, None) => Err(Failed::Refusal(Refusal::new(Code::BAD_ARGS, "there is no destination"))),
        (op, Some(target)) => {
            setup.own.must_be(&identity)?;
            if let Some(done) = copy_lone(work, teller, (&source, &target), &setup.own, &options)? {
                return Ok(done);
            }
            let found =
                find(work, op, &source, &target).map_err(|error| named("source", &spec.src, error))?;
            let (src, name, small) = match found {
                Found::There(src, name, small) => (src, name, small),
                Found::Moved { bytes } => return Ok(Done { cloned: bytes, ..Done::before() }),
            };
            let options = if small {
                // Nothing of it is worth being resumed, or counted ahead, or shared among threads.
                StageOptions { workers: 1, count_ahead: false, ..options }
            } else {
                StageOptions { journal_file: journal(work, teller)?.map(Arc::new), ..options }
            };
            made::note(work, teller, &target, name.as_deref(), source.name())?;
            let opened = target.target(name.as_deref(), source.name());
            let (dst, what) = opened.map_err(|error| match &spec.dst {
                Some(dst) => named("destination", dst, error),
                None => error,
            })?;
            Ok(transfer(work, (op, &source), (&*src, &*dst, &what), &options))
        }
    }
}

/// A copy of one small file, if it is plain enough to do without the engine. None: nothing was done.
fn copy_lone(
    work: &Work,
    teller: &Teller,
    (source, target): (&Place, &Place),
    own: &ProcessUser,
    options: &StageOptions,
) -> Result<Option<Done>, Failed> {
    let (Op::Copy, Some((from, path)), Some((to, place))) =
        (work.start.spec.op, source.local(), target.local())
    else {
        return Ok(None);
    };
    let Some(file) = Lone::read((from, path), (to, place), &own.0) else { return Ok(None) };
    made::note(work, teller, target, Some(file.name()), source.name())?;
    Ok(file.put(options, &work.run.control()).map(of_copy))
}

/// What a task keeps to be resumed: a file that only the supervisor can make. None when it has to do without.
fn journal(work: &Work, teller: &Teller) -> Result<Option<File>, Failed> {
    let (answer, given) = channel();
    teller.tell(News::Journal { id: work.start.id, answer });
    loop {
        match given.recv_timeout(CANCEL_LATENCY) {
            Ok(file) => return Ok(file),
            Err(RecvTimeoutError::Timeout) if !work.run.is_cancelled() => {}
            Err(_) => return Err(Failed::Cancelled),
        }
    }
}

/// The group that owns nothing, for users that the name service does not know.
const NO_GROUP: u32 = 65_534;

/// As [`ProcessUser::identity_of`], for who asks once.
pub(crate) fn identity_of(uid: u32, gid: u32) -> Result<Identity, EndError> {
    ProcessUser::ask()?.identity_of(uid, gid)
}

/// What the name service knows of somebody.
fn named_identity(uid: u32, gid: u32) -> Identity {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let gid = match gid {
        tidepool_stage_state::Identity::OWN_GROUP => user.as_ref().map_or(NO_GROUP, |user| user.gid.as_raw()),
        gid => gid,
    };
    let name = user.and_then(|user| CString::new(user.name).ok());
    let groups = name.and_then(|name| getgrouplist(&name, Gid::from_raw(gid)).ok());
    let groups = groups.map_or_else(|| vec![gid], |groups| groups.into_iter().map(Gid::as_raw).collect());
    Identity { uid, gid, groups }
}

/// Whether the name service has the user in this group, as his own or as one of his others.
pub(crate) fn has_group(uid: u32, gid: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return false };
    let Ok(name) = CString::new(user.name) else { return false };
    let groups = getgrouplist(&name, user.gid).unwrap_or_default();
    groups.contains(&Gid::from_raw(gid))
}

/// Says which of a task's places an error is about, and what to do.
fn named(side: &str, place: &Resource, error: EndError) -> EndError {
    let more = error.detail.map(|detail| format!(": {detail}")).unwrap_or_default();
    let place = show_resource(place);
    let detail =
        format!("{side} {place}{more}; check that it is there and who may use it, then resume the task");
    EndError { detail: Some(detail), ..error }
}

fn find(work: &Work, op: Op, source: &Place, target: &Place) -> Result<Found, EndError> {
    match source.source(op == Op::Move) {
        Ok((src, name)) => {
            let small = is_small(&*src, name.as_deref())?;
            Ok(Found::There(src, name, small))
        }
        Err(error) if error.errno == Errno::ENOENT => {
            was_moved(work, op, target).map(|bytes| Found::Moved { bytes }).ok_or(error)
        }
        Err(error) => Err(error),
    }
}

fn transfer(
    work: &Work,
    (op, source): (Op, &Place),
    (src, dst, what): (&dyn End, &dyn End, &What),
    options: &StageOptions,
) -> Done {
    let control = work.run.control();
    if op == Op::Copy {
        return of_copy(stage(src, dst, what, options, &control));
    }
    let moved = move_tree(src, dst, what, options, &control);
    let removal = moved.removal.unwrap_or_default();
    let mut done = Done { complete: moved.complete, ..of_copy(moved.copy) };
    if done.error.is_none() && !removal.errors.is_empty() {
        (done.error, done.error_count) = (removal.errors.into_iter().next(), removal.error_count);
    }
    if *what == What::Tree && moved.complete {
        let removed = remove_root(source).err();
        (done.complete, done.error_count) = (removed.is_none(), removed.is_some().into());
        done.error = removed;
    }
    done
}

/// One entry that is no directory and no large file.
fn is_small(src: &dyn End, name: Option<&[u8]>) -> Result<bool, EndError> {
    let Some(name) = name else { return Ok(false) };
    let meta = src.stat(At::Name(&src.root(), name))?;
    Ok(meta.kind != FileKind::Directory && meta.size < LARGE_BYTES_MIN)
}

/// A move of a tree leaves the source's root directory, empty; a task's source goes as a whole.
fn remove_root(source: &Place) -> Result<(), StageError> {
    match source.entry().and_then(|(end, name)| end.remove_dir(&end.root(), &name)) {
        // Not empty means that somebody has put something there meanwhile: it stays.
        Err(error) if ![Errno::ENOENT, Errno::ENOTEMPTY, Errno::EEXIST].contains(&error.errno) => {
            Err(StageError::of_removal(".".into(), &Failure::End { side: Side::Source, error }))
        }
        _ => Ok(()),
    }
}

/// A move whose source is gone is done, if the daemon died in the middle of it. The bytes of a file at its destination.
fn was_moved(work: &Work, op: Op, target: &Place) -> Option<u64> {
    if op != Op::Move || !work.start.again {
        return None;
    }
    let (end, name) = target.entry().ok()?;
    let meta = end.stat(At::Name(&end.root(), &name)).ok()?;
    Some(if meta.kind == FileKind::Regular { meta.size } else { 0 })
}

fn of_copy(report: StageReport) -> Done {
    Done {
        bytes: report.bytes_total,
        files: report.files + report.links + report.specials,
        moved: report.bytes_copied,
        cloned: report.bytes_cloned,
        error: report.errors.into_iter().next(),
        error_count: report.error_count,
        cancelled: report.cancelled,
        complete: report.complete,
    }
}

fn settle_readers(setup: &Setup, work: &Work, source: &Place, owner: &Identity) -> Result<Done, Failed> {
    let Start { spec, permit, .. } = &work.start;
    // A location that is not kept any more has no readers of its own.
    let Some(permit) = permit else { return Ok(Done::before()) };
    let Some((root, path)) = source.local() else {
        let text = format!("{} is not storage of this node", show_resource(&spec.src));
        return Err(Failed::Refusal(Refusal::new(Code::NOT_SUPPORTED, text)));
    };
    let wanted = permit::Wanted { root, path, place: &spec.src, owner, permit, run: &work.run };
    setup.own.must_be(owner)?;
    let files = permit::permit(&wanted, &setup.node)?;
    Ok(Done { files, ..Done::before() })
}

fn remove_entry(work: &Work, source: &Place, options: &StageOptions) -> Result<Done, Failed> {
    work.run.removing();
    let made = work.start.made.as_ref();
    let found = source.entry().and_then(|(end, name)| look(&*end, &name).map(|()| (end, name)));
    let (end, name) = match found {
        Ok(_) if made.map_or(Ok(false), |made| made::is_gone(source, made))? => return Ok(Done::before()),
        Ok(found) => found,
        // Removed before the daemon died, or never made.
        Err(error) if error.errno == Errno::ENOENT && (work.start.again || made.is_some()) => {
            made.map_or(Ok(()), |made| made::tidy(source, made))?;
            return Ok(Done::before());
        }
        Err(error) => return Err(named("path", &work.start.spec.src, error).into()),
    };
    let spared = made.map(|made| made::spared(work.start.identity.uid, made)).unwrap_or_default();
    let report: RemoveReport = remove_but(&*end, &Doomed::Entry(name), &spared, options, &work.run.control());
    if let Some(made) = made.filter(|_| report.complete) {
        made::tidy(source, made)?;
    }
    Ok(Done {
        bytes: report.bytes,
        files: report.files,
        moved: 0,
        cloned: 0,
        error: report.errors.into_iter().next(),
        error_count: report.error_count,
        cancelled: report.cancelled,
        complete: report.complete,
    })
}
