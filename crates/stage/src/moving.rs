//! Moving: a rename where the file system can, else a verified copy and the removal of what
//! was copied.

use crate::end::{At, DirRef, End, EndResult};
use crate::job::{forget, stage, stage_noting};
use crate::ledger::Ledger;
use crate::options::{StageOptions, What};
use crate::other::may_replace;
use crate::progress::{Control, Phase};
use crate::remove::{RemoveReport, remove_checked};
use crate::report::{Failure, StageError, StageReport};
use std::time::Instant;
use tidepool_types::{Errno, FileKind};

/// Refusals of a rename after which a copy may do: another file system, a directory that has
/// to be merged, a call that is not known there; or a copy tells better what is wrong.
const COPIED_INSTEAD: [Errno; 8] = [
    Errno::EXDEV,
    Errno::EEXIST,
    Errno::ENOTEMPTY,
    Errno::EISDIR,
    Errno::ENOTDIR,
    Errno::EINVAL,
    Errno::ENOSYS,
    Errno::EOPNOTSUPP,
];

/// What became of a move.
#[derive(Clone, Debug, Default)]
pub struct MoveReport {
    /// One rename did it; nothing was copied.
    pub renamed: bool,
    pub copy: StageReport,
    /// What was removed of the source; `None` when the copy is not complete, and then nothing was.
    pub removal: Option<RemoveReport>,
    /// All is at the destination, and nothing is left at the source.
    pub complete: bool,
}

/// Moves `what` from `src` to `dst`. What is at the destination already is dealt with as a
/// copy does: files are replaced, directories are merged. With [`What::Tree`] the root
/// directory of the source stays, empty.
///
/// Nothing of the source is removed before the whole copy is complete, and then only what was
/// copied, verified, and has been the same ever since (object, size, mtime, ctime); directories
/// only when empty. The rest stays and is reported.
pub fn move_tree(
    src: &dyn End,
    dst: &dyn End,
    what: &What,
    options: &StageOptions,
    control: &Control,
) -> MoveReport {
    if options.dry_run {
        return MoveReport { copy: stage(src, dst, what, options, control), ..MoveReport::default() };
    }
    match rename(src, dst, what) {
        Ok(Some(report)) => {
            control.inner.set_phase(if report.complete { Phase::Complete } else { Phase::Failed });
            report
        }
        Ok(None) => copy_and_remove(src, dst, what, options, control),
        Err(failure) => {
            let name = match what {
                What::Entry { from, .. } => crate::show_bytes(from),
                What::Tree => ".".into(),
            };
            let errors = vec![StageError::of_removal(name, &failure)];
            control.inner.set_phase(Phase::Failed);
            let copy = StageReport { errors, error_count: 1, ..StageReport::default() };
            MoveReport { copy, ..MoveReport::default() }
        }
    }
}

/// The report of a move by renaming; `None` when this has to be copied.
fn rename(src: &dyn End, dst: &dyn End, what: &What) -> Result<Option<MoveReport>, Failure> {
    let What::Entry { from, to } = what else { return Ok(None) };
    crate::job::check_name(from).and_then(|()| crate::job::check_name(to))?;
    let start = Instant::now();
    let (old, new) = (src.root(), dst.root());
    let same_kind =
        matches!((&old, &new), (DirRef::Local(_), DirRef::Local(_)) | (DirRef::Pool(_), DirRef::Pool(_)));
    let meta = src.stat(At::Name(&old, from)).map_err(Failure::source)?;
    let dev = dst.stat(At::Dir(&new)).map_err(Failure::target)?.dev;
    if !same_kind || meta.dev != dev {
        return Ok(None);
    }
    let is_dir = meta.kind == FileKind::Directory;
    let moved = match src.move_entry((&old, from), (&new, to), false) {
        Err(error) if error.errno == Errno::EEXIST && !is_dir => replace(src, dst, (from, to)),
        other => other,
    };
    match moved {
        Err(error) if COPIED_INSTEAD.contains(&error.errno) => return Ok(None),
        other => other.map_err(Failure::source)?,
    }
    let synced = dst.fsync_dir(&new).and_then(|()| src.fsync_dir(&old)).and_then(|()| dst.fsync_all());
    synced.map_err(Failure::target)?;
    let is_file = meta.kind == FileKind::Regular;
    // As a clone: it lies at the destination now, and no data were moved.
    let bytes = if is_file { meta.size } else { 0 };
    let copy = StageReport {
        files: is_file.into(),
        bytes_total: bytes,
        bytes_cloned: bytes,
        dirs: is_dir.into(),
        seconds_data: start.elapsed().as_secs_f64(),
        complete: true,
        ..StageReport::default()
    };
    Ok(Some(MoveReport { renamed: true, copy, removal: None, complete: true }))
}

/// Renames over what is there, if that is no directory.
fn replace(src: &dyn End, dst: &dyn End, names: (&[u8], &[u8])) -> EndResult<()> {
    let (old, new) = (src.root(), dst.root());
    let ours = src.stat(At::Name(&old, names.0))?;
    let theirs = dst.stat(At::Name(&new, names.1))?;
    may_replace(&theirs, &ours)?;
    if ours.key() == theirs.key() {
        let same_name =
            names.0 == names.1 && src.stat(At::Dir(&old))?.key() == dst.stat(At::Dir(&new))?.key();
        if same_name {
            return Err(crate::EndError::new("move", Errno::EINVAL));
        }
        // rename(2) between two names of one object does nothing, not even remove one.
        return src.unlink(&old, names.0);
    }
    src.move_entry((&old, names.0), (&new, names.1), true)
}

fn copy_and_remove(
    src: &dyn End,
    dst: &dyn End,
    what: &What,
    options: &StageOptions,
    control: &Control,
) -> MoveReport {
    let ledger = Ledger::default();
    // Nothing is removed on the word of a time stamp.
    let options = StageOptions { verify: true, trust_mtime: false, ..options.clone() };
    let (mut copy, journal) = stage_noting(src, dst, what, &options, control, &ledger);
    if !copy.complete {
        control.inner.set_phase(Phase::Failed);
        return MoveReport { copy, ..MoveReport::default() };
    }
    let name = match what {
        What::Tree => None,
        What::Entry { from, to } => Some((from.as_slice(), to.as_slice())),
    };
    let own = Control::with_cancel(control.cancel_flag());
    let removal = remove_checked(src, name, Some(&ledger), &options, &own);
    let complete = removal.complete;
    if let Some(journal) = journal.filter(|_| complete) {
        forget(&journal, &mut copy);
    }
    control.inner.set_phase(if complete { Phase::Complete } else { Phase::Failed });
    MoveReport { renamed: false, copy, removal: Some(removal), complete }
}
