//! What a job's copy makes where there was nothing before: noted before it is made, and taken back when the job is
//! cleaned up after.

use crate::execute::Failed;
use crate::places::Place;
use crate::tasks::{News, Teller, Work};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use tidepool_stage::{At, Cursor, DirRef, End, EndError, EndResult, PART_PREFIX, PathHash, Spared};
use tidepool_stage_state::Made;
use tidepool_types::{Errno, FileKind};

/// Longest wait between two looks at whether the task is cancelled.
const CANCEL_LATENCY: Duration = Duration::from_millis(50);

/// Has the journal note what a task is about to make; what it does not note is never removed. Called as the
/// task's user.
pub fn note(
    work: &Work,
    teller: &Teller,
    target: &Place,
    from: Option<&[u8]>,
    own_name: &[u8],
) -> Result<(), Failed> {
    if work.start.identity.job == 0 || work.start.made.is_some() {
        return Ok(());
    }
    let Some(place) = target.place(from, own_name) else { return Ok(()) };
    let names: Vec<&[u8]> = names(&place).collect();
    let Some(missing) = first_missing(target, &names)? else { return Ok(()) };
    let (place, top) = (names.join(&b'/'), names[..missing].join(&b'/'));
    let (noted, heard) = channel();
    teller.tell(News::Makes { id: work.start.id, place, top, noted });
    loop {
        match heard.recv_timeout(CANCEL_LATENCY) {
            Ok(()) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if !work.run.is_cancelled() => {}
            Err(_) => return Err(Failed::Cancelled),
        }
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// How many names there are up to the first that does not exist, itself included; 0 when all exist. None where that
/// cannot be told, which is as if all did: an object store has no directories.
fn first_missing(target: &Place, names: &[&[u8]]) -> EndResult<Option<usize>> {
    let Some(end) = target.root_end()? else { return Ok(None) };
    let mut dir = end.root();
    for (at, name) in names.iter().enumerate() {
        match end.stat(At::Name(&dir, name)) {
            Err(error) if error.errno == Errno::ENOENT => return Ok(Some(at + 1)),
            // `..` and links lead elsewhere: who uses them cleans up himself.
            Ok(meta) if meta.kind == FileKind::Directory && *name != b".." => {
                dir = end.open_dir(&dir, name)?
            }
            Ok(_) | Err(_) => return Ok(Some(0)),
        }
    }
    Ok(Some(0))
}

/// Whether what a copy had made is not there any more: something on the way to it is a link or no directory by now, which
/// leads to what nobody has made.
pub fn is_gone(source: &Place, made: &Made) -> EndResult<bool> {
    let Some(end) = source.root_end()? else { return Ok(false) };
    let names: Vec<&[u8]> = names(&made.place).collect();
    let Some((_, above)) = names.split_last() else { return Ok(true) };
    let mut dir = end.root();
    for name in above {
        match end.open_dir(&dir, name) {
            Ok(below) => dir = below,
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// What stays when what a copy has made is removed, for an end whose root is the directory it lies in.
pub fn spared(uid: u32, made: &Made) -> Spared {
    let place: Vec<&[u8]> = names(&made.place).collect();
    let above = place.len().saturating_sub(1);
    let hash =
        |path: &[u8]| names(path).skip(above).fold(PathHash::default(), |parent, name| parent.child(name));
    Spared { unless_of: Some(uid), places: made.spared.iter().map(|path| hash(path)).collect() }
}

/// What is left when the entry itself is gone: temporary files of a copy that did not end well, and directories that
/// were made on the way to it.
pub fn tidy(source: &Place, made: &Made) -> EndResult<()> {
    let Some(end) = source.root_end()? else { return Ok(()) };
    let names: Vec<&[u8]> = names(&made.place).collect();
    let Some((name, above)) = names.split_last() else { return Ok(()) };
    let mut dirs = vec![end.root()];
    for below in above {
        match end.open_dir(&dirs[dirs.len() - 1], below) {
            Ok(dir) => dirs.push(dir),
            Err(error) if error.errno == Errno::ENOENT => break,
            Err(error) => return Err(error),
        }
    }
    if dirs.len() == names.len() {
        remove_parts(&*end, &dirs[dirs.len() - 1], name)?;
    }
    let kept = self::names(&made.top).count().max(1) - 1;
    for at in (kept..dirs.len() - 1).rev() {
        match gone_is_done(end.remove_dir(&dirs[at], names[at])) {
            Ok(()) => {}
            // Somebody else has put something there.
            Err(error) if matches!(error.errno, Errno::ENOTEMPTY | Errno::EEXIST) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The removal of a place above may take away what this one is about to.
fn gone_is_done(result: EndResult<()>) -> EndResult<()> {
    match result {
        Err(error) if error.errno == Errno::ENOENT => Ok(()),
        other => other,
    }
}

/// Temporary files of an entry are called by its name's hash, whichever task made them.
fn remove_parts(end: &dyn End, dir: &DirRef, name: &[u8]) -> Result<(), EndError> {
    let hash: String = PathHash::default().child(name).0[..8].iter().map(|b| format!("{b:02x}")).collect();
    let start = [PART_PREFIX, hash.as_bytes(), b"."].concat();
    let mut parts = Vec::new();
    let mut cursor = Some(Cursor::Start);
    while let Some(at) = cursor {
        let (items, next) = match end.list(dir, &at) {
            Err(error) if error.errno == Errno::ENOENT => break,
            page => page?,
        };
        parts.extend(items.into_iter().map(|item| item.name).filter(|name| name.starts_with(&start)));
        cursor = next;
    }
    parts.iter().try_for_each(|part| gone_is_done(end.unlink(dir, part)))
}
