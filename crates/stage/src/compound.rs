//! What the operations of an end that are made of others do where nothing better is known.

use crate::attrs::set_kept;
use crate::end::{
    At, Content, DirRef, End, EndError, EndResult, FileRef, Got, Meta, Name, PackLimits, Put, PutHow,
    ReadRange, Refused, SetMeta, WritePieces, Written, Xattr,
};
use std::ops::Range;
use tidepool_blocks::crc;
use tidepool_types::{Errno, FileKind};

/// Permission bits that a directory needs while we work in it.
const WORKABLE: u32 = 0o700;

/// Refusals of an attribute that do not make a copy incomplete.
const REFUSALS: [Errno; 8] = [
    Errno::EPERM,
    Errno::EACCES,
    Errno::EOPNOTSUPP,
    Errno::ENOSPC,
    Errno::EDQUOT,
    Errno::E2BIG,
    Errno::ERANGE,
    Errno::EINVAL,
];

pub(crate) fn is_refusal(error: &EndError) -> bool {
    REFUSALS.contains(&error.errno)
}

/// The next stored bytes in `range`; empty at its end when there are none.
pub(crate) fn stored<E: End + ?Sized>(end: &E, file: &FileRef, range: Range<u64>) -> EndResult<Range<u64>> {
    match end.next_data(file, range.start)? {
        Some(start) if start < range.end => {
            let hole = end.next_hole(file, start, range.end)?;
            // A hole where data was a moment ago: the file is being changed. Reading there is
            // harmless, not moving on is not.
            Ok(start..hole.clamp(start + 1, range.end))
        }
        _ => Ok(range.end..range.end),
    }
}

pub(crate) struct PlainReader<'a, E: End + ?Sized> {
    end: &'a E,
    file: &'a FileRef,
    rest: Range<u64>,
}

impl<'a, E: End + ?Sized> PlainReader<'a, E> {
    pub fn new(end: &'a E, file: &'a FileRef, range: Range<u64>) -> Self {
        PlainReader { end, file, rest: range }
    }
}

impl<E: End + ?Sized> ReadRange for PlainReader<'_, E> {
    fn read(&mut self, buf: &mut [u8]) -> EndResult<usize> {
        let left = usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX);
        let want = buf.len().min(left);
        let count = self.end.read(self.file, self.rest.start, &mut buf[..want])?;
        self.rest.start += count as u64;
        Ok(count)
    }
}

pub(crate) struct PlainWriter<'a, E: End + ?Sized> {
    end: &'a E,
    file: &'a FileRef,
}

impl<'a, E: End + ?Sized> PlainWriter<'a, E> {
    pub fn new(end: &'a E, file: &'a FileRef) -> Self {
        PlainWriter { end, file }
    }
}

impl<E: End + ?Sized> WritePieces for PlainWriter<'_, E> {
    fn write(&mut self, offset: u64, data: &[u8]) -> EndResult<()> {
        write_all(self.end, self.file, offset, data)
    }

    fn finish(&mut self) -> EndResult<()> {
        Ok(())
    }
}

pub(crate) fn write_all<E: End + ?Sized>(
    end: &E,
    file: &FileRef,
    mut offset: u64,
    mut data: &[u8],
) -> EndResult<()> {
    while !data.is_empty() {
        let count = end.write(file, offset, data)?;
        if count == 0 || count > data.len() {
            return Err(EndError::new("write", Errno::EIO));
        }
        offset += count as u64;
        data = &data[count..];
    }
    Ok(())
}

/// Bytes at the start of a file, up to its end or `len`.
pub(crate) fn read_whole<E: End + ?Sized>(end: &E, file: &FileRef, len: usize) -> EndResult<Vec<u8>> {
    let mut data = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match end.read(file, filled as u64, &mut data[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    data.truncate(filled);
    Ok(data)
}

/// The content of a small file, if it ends where it says.
pub(crate) fn read_told<E: End + ?Sized>(end: &E, file: &FileRef, meta: &Meta) -> EndResult<Option<Vec<u8>>> {
    let len = usize::try_from(meta.size).map_err(|_| EndError::new("read", Errno::EFBIG))?;
    let data = read_whole(end, file, len + usize::from(!end.knows_sizes(meta)))?;
    Ok((data.len() == len).then_some(data))
}

pub(crate) fn checksum<E: End + ?Sized>(
    end: &E,
    file: &FileRef,
    range: Range<u64>,
    dense: bool,
    buf: &mut [u8],
) -> EndResult<Option<u32>> {
    end.drop_cache(file, range.start, range.end - range.start);
    let (mut crc, mut at) = (0, range.start);
    while at < range.end {
        let data = if dense { at..range.end } else { stored(end, file, at..range.end)? };
        crc = crc::append_zeros(crc, data.start - at);
        at = data.start;
        while at < data.end {
            let want = buf.len().min(usize::try_from(data.end - at).unwrap_or(usize::MAX));
            let count = end.read(file, at, &mut buf[..want])?;
            if count == 0 {
                return Ok(None);
            }
            crc = crc::append(crc, &buf[..count]);
            at += count as u64;
        }
    }
    Ok(Some(crc))
}

pub(crate) fn get_files<E: End + ?Sized>(
    end: &E,
    names: &[Name<'_>],
    limits: &PackLimits,
) -> Vec<EndResult<Got>> {
    let mut room = limits.bytes;
    names.iter().map(|at| get_file(end, at, limits.file_bytes.min(room), &mut room)).collect()
}

fn get_file<E: End + ?Sized>(end: &E, at: &Name<'_>, max: u64, room: &mut u64) -> EndResult<Got> {
    let file = end.open_read(at.dir, at.name)?;
    let meta = end.stat(At::File(&file))?;
    if meta.kind != FileKind::Regular || meta.size > max || !meta.is_dense() {
        return Ok(Got { meta, content: None });
    }
    let Some(data) = read_told(end, &file, &meta)? else { return Ok(Got { meta, content: None }) };
    *room -= meta.size;
    let xattrs = end.xattrs(At::File(&file));
    Ok(Got { meta, content: Some(Content { data, xattrs }) })
}

/// Removes a temporary name after a failure.
pub(crate) fn drop_part<E: End + ?Sized>(end: &E, at: &Name<'_>) {
    // The first error is the one to tell; a rerun removes the file.
    let _ = end.unlink(at.dir, at.name);
}

pub(crate) fn put_files<E: End + ?Sized>(end: &E, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
    let made: Vec<_> = files.iter().map(|put| make_part(end, put)).collect();
    let open: Vec<&FileRef> = made.iter().flatten().map(|(file, _)| file).collect();
    let mut synced = end.fsync_many(&open).into_iter();
    let mut buf = vec![0; files.iter().map(|put| put.data.len()).max().unwrap_or(0)];
    let mut settle = |put: &Put<'_>, (file, refused): (FileRef, _)| {
        let synced = synced.next().unwrap_or_else(|| Err(EndError::new("fsync", Errno::EIO)));
        let settled = synced.and_then(|()| settle_part(end, put, &file, how, &mut buf));
        if !matches!(settled, Ok((true, _))) {
            drop_part(end, &put.at);
        }
        settled.map(|(intact, key)| Written { intact, key, refused })
    };
    files.iter().zip(made).map(|(put, made)| made.and_then(|made| settle(put, made))).collect()
}

/// Makes and fills a temporary file.
pub(crate) fn make_part<E: End + ?Sized>(end: &E, put: &Put<'_>) -> EndResult<(FileRef, Vec<Refused>)> {
    let Name { dir, name } = put.at;
    let file = match end.create(dir, name) {
        Err(error) if error.errno == Errno::EEXIST => {
            end.unlink(dir, name)?;
            end.create(dir, name)?
        }
        other => other?,
    };
    let filled = write_all(end, &file, 0, put.data);
    match filled.and_then(|()| end.dress(At::File(&file), &put.set, put.xattrs)) {
        Ok(refused) => Ok((file, refused)),
        Err(error) => {
            drop_part(end, &put.at);
            Err(error)
        }
    }
}

/// Verifies a durable temporary file: whether it is as it was written, and its identity.
fn settle_part<E: End + ?Sized>(
    end: &E,
    put: &Put<'_>,
    file: &FileRef,
    how: PutHow,
    buf: &mut [u8],
) -> EndResult<(bool, Option<(u64, u64)>)> {
    if how.verify {
        let crc = end.checksum(file, 0..put.data.len() as u64, true, buf)?;
        if crc != Some(put.crc) {
            return Ok((false, None));
        }
        if put.set.times.is_some() && end.reads_touch_atime() {
            end.set_meta(At::File(file), &SetMeta { times: put.set.times, ..SetMeta::default() })?;
        }
    }
    let key = if how.keys { Some(end.stat(At::File(file))?.key()) } else { None };
    Ok((true, key))
}

pub(crate) fn make_or_enter_dir<E: End + ?Sized>(
    end: &E,
    dir: &DirRef,
    name: &[u8],
) -> EndResult<(DirRef, bool)> {
    let fresh = match end.make_dir(dir, name) {
        Ok(()) => true,
        Err(error) if error.errno == Errno::EEXIST => false,
        Err(error) => return Err(error),
    };
    if !fresh {
        make_workable(end, dir, name)?;
    }
    Ok((end.open_dir(dir, name)?, fresh))
}

/// A directory that an earlier run finished may be read-only; its mode is set again when it
/// is finished again.
fn make_workable<E: End + ?Sized>(end: &E, dir: &DirRef, name: &[u8]) -> EndResult<()> {
    let at = At::Name(dir, name);
    let there: Meta = end.stat(at)?;
    if there.kind != FileKind::Directory {
        return Err(EndError::new("make directory", Errno::ENOTDIR));
    }
    let rights = end.rights();
    if rights.root || there.mode & WORKABLE == WORKABLE || there.uid != rights.uid {
        return Ok(());
    }
    end.set_meta(at, &SetMeta { mode: Some(there.mode | WORKABLE), ..SetMeta::default() })
}

pub(crate) fn dress<E: End + ?Sized>(
    end: &E,
    at: At<'_>,
    set: &SetMeta,
    xattrs: &[Xattr],
) -> EndResult<Vec<Refused>> {
    let mut set = *set;
    if xattrs.iter().any(|(name, _)| name.starts_with(b"security."))
        && let Some(owner) = set.owner.take()
    {
        // A change of owner drops capabilities, so it cannot wait.
        end.set_meta(at, &SetMeta { owner: Some(owner), ..SetMeta::default() })?;
    }
    let mut refused = Vec::new();
    for (name, value) in xattrs {
        match end.set_xattr(at, name, value) {
            Err(error) if is_refusal(&error) => refused.push((name.clone(), error)),
            other => other?,
        }
    }
    refused.extend(set_kept(end, at, &set)?);
    Ok(refused)
}

pub(crate) fn finish_dir<E: End + ?Sized>(
    end: &E,
    dir: &DirRef,
    attributes: Option<(&SetMeta, &[Xattr])>,
) -> EndResult<Vec<Refused>> {
    let dressed = match attributes {
        Some((set, xattrs)) => end.dress(At::Dir(dir), set, xattrs),
        None => Ok(Vec::new()),
    };
    let synced = end.fsync_dir(dir);
    end.leave_dir(dir);
    dressed.and_then(|refused| synced.map(|()| refused))
}
