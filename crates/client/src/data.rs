//! File contents: cutting ranges into chunks and moving them in parallel.

use crate::calls::{Access, Bulk, Call, expect_reply};
use crate::loan::BYTES_BEFORE;
use crate::{Client, FsError};
use tidepool_io_traces::Op;
use tidepool_types::{Attr, DaemonIndex, Errno, FILE_SIZE_MAX, Ino, Layout};
use tidepool_wire::message::{Reply, Request};

/// The part of a range that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    daemon: DaemonIndex,
    offset: u64,
    len: usize,
}

impl Client {
    /// The daemon that keeps a byte of an object, and how many bytes from there on lie in the same chunk.
    pub(crate) fn place_of(&self, ino: Ino, at: u64) -> Result<(DaemonIndex, u64), FsError> {
        let layout = self.layout(ino)?;
        Ok((self.chunk_owner(ino, layout, at), layout.next_chunk(at) - at))
    }

    fn pieces(&self, ino: Ino, layout: Layout, offset: u64, len: usize) -> Vec<Piece> {
        cut(offset, len, layout)
            .map(|(offset, len)| Piece { daemon: self.chunk_owner(ino, layout, offset), offset, len })
            .collect()
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of file. Holes read as zeros.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, FsError> {
        match &self.recorder {
            None => self.read_data(ino, offset, buf),
            Some(recorder) => recorder.data(Op::Read, (ino, offset), || self.read_data(ino, offset, buf)),
        }
    }

    pub(crate) fn read_data(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, FsError> {
        if buf.is_empty() || offset >= FILE_SIZE_MAX {
            return Ok(0);
        }
        // Most reads lie in one chunk, and most of those are answered by a file of this node.
        let layout = self.layout(ino)?;
        let asked = buf.len();
        let whole = layout.chunk_at(offset) == layout.chunk_at(offset + (asked as u64 - 1));
        let owner = self.chunk_owner(ino, layout, offset);
        if whole && self.read_open(owner, ino, offset, buf) {
            return Ok(buf.len());
        }
        let buf = match self.known_rest(ino, offset) {
            Some(0) => return Ok(0),
            Some(rest) => &mut buf[..usize::try_from(rest).unwrap_or(usize::MAX).min(asked)],
            None => buf,
        };
        let whole = layout.chunk_at(offset) == layout.chunk_at(offset + (buf.len() as u64 - 1));
        if whole && self.read_direct(owner, ino, offset, buf) {
            return Ok(buf.len());
        }
        let mut pieces = self.pieces(ino, layout, offset, buf.len());
        let mut rest = &mut buf[..];
        let mut calls = Vec::with_capacity(pieces.len());
        pieces.retain(|piece| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(piece.len);
            rest = tail;
            if !whole && self.read_direct(piece.daemon, ino, piece.offset, part) {
                return false;
            }
            let request = Request::Read { ino, offset: piece.offset, len: piece.len as u32 };
            calls.push(Call::new(piece.daemon, request, Bulk::In(part)));
            true
        });
        if calls.is_empty() {
            return Ok(buf.len());
        }
        let answers = self.call_all(&mut calls);
        let mut short = Vec::new();
        let mut size = None;
        for (piece, answer) in pieces.iter().zip(answers) {
            let answer = answer?;
            let told = expect_reply!(self, piece.daemon, answer.reply, Reply::Data { size } => size)?;
            size = size.or(told);
            if answer.bulk_len < piece.len {
                short.push((piece.offset - offset, answer.bulk_len, piece.len));
            }
        }
        if short.is_empty() {
            return Ok(buf.len());
        }
        let size = match size {
            Some(size) if !self.is_unsettled(ino) => size,
            _ => self.home_attr(ino)?.size,
        };
        for (start, got, len) in short {
            let start = start as usize;
            buf[start + got..start + len].fill(0);
        }
        Ok(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len()))
    }

    /// How much of a file follows `offset`, where its home's board tells: what is not there need not be asked for.
    fn known_rest(&self, ino: Ino, offset: u64) -> Option<u64> {
        if self.is_unsettled(ino) {
            return None;
        }
        self.known_attr(ino).map(|attr| attr.size.saturating_sub(offset))
    }

    /// Writes all of `buf`, or the part before the first failure when there is one.
    pub fn write(&self, ino: Ino, offset: u64, buf: &[u8]) -> Result<usize, FsError> {
        match &self.recorder {
            None => self.write_data(ino, offset, buf),
            Some(recorder) => recorder.data(Op::Write, (ino, offset), || self.write_data(ino, offset, buf)),
        }
    }

    pub(crate) fn write_data(&self, ino: Ino, offset: u64, buf: &[u8]) -> Result<usize, FsError> {
        if buf.is_empty() {
            return Ok(0);
        }
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        end.ok_or(Errno::EFBIG)?;
        let pieces = self.pieces(ino, self.layout(ino)?, offset, buf.len());
        if pieces.iter().all(|piece| piece.daemon == ino.home()) {
            return self.write_at_home(ino, buf, &pieces);
        }
        self.write_pieces(ino, offset, buf, &pieces)
    }

    /// All pieces belong to the object's home, which looks after its size as well.
    fn write_at_home(&self, ino: Ino, buf: &[u8], pieces: &[Piece]) -> Result<usize, FsError> {
        let mut done = 0;
        let mut left = pieces.iter();
        while let Some(piece) = left.next() {
            let part = &buf[done..done + piece.len];
            if self.write_direct(piece.daemon, ino, piece.offset, part).is_some() {
                done += piece.len;
                continue;
            }
            // A long write by request only until the files are worth asking for.
            let mut some = vec![*piece];
            let few = if self.hands_out(piece.daemon, Access::Write) { BYTES_BEFORE } else { u64::MAX };
            while some.iter().map(|p| p.len as u64).sum::<u64>() < few
                && let Some(next) = left.next()
            {
                some.push(*next);
            }
            let len: usize = some.iter().map(|p| p.len).sum();
            match self.write_by_request(ino, piece.offset, &buf[done..done + len], &some) {
                Ok(count) if count == len => done += count,
                Ok(count) => return Ok(done + count),
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        Ok(done)
    }

    fn write_by_request(
        &self,
        ino: Ino,
        offset: u64,
        buf: &[u8],
        pieces: &[Piece],
    ) -> Result<usize, FsError> {
        if let [piece] = pieces {
            let request = Request::Write { ino, offset, extend: true };
            let answer = self.call(piece.daemon, &request, 0, Bulk::Out(buf))?;
            self.count_write(piece.daemon, ino, piece.len);
            return expect_reply!(self, piece.daemon, answer.reply, Reply::Written { .. } => buf.len());
        }
        self.write_pieces(ino, offset, buf, pieces)
    }

    /// What goes into files that the home has lent comes last, and only up to the first piece that was refused: how long such
    /// files are is how long the object is.
    fn write_pieces(&self, ino: Ino, offset: u64, buf: &[u8], pieces: &[Piece]) -> Result<usize, FsError> {
        let part = |n: usize| {
            let start = (pieces[n].offset - offset) as usize;
            &buf[start..start + pieces[n].len]
        };
        let direct = |n: usize| self.write_direct(pieces[n].daemon, ino, pieces[n].offset, part(n)).map(Ok);
        let mut written: Vec<Option<Result<i64, FsError>>> = pieces.iter().map(|_| None).collect();
        let lends = self.hands_out(ino.home(), Access::Write);
        let (last, first): (Vec<usize>, Vec<usize>) =
            (0..pieces.len()).partition(|n| lends && pieces[*n].daemon == ino.home());
        first.iter().for_each(|n| written[*n] = direct(*n));
        let asked: Vec<usize> = first.into_iter().filter(|n| written[*n].is_none()).collect();
        self.ask_to_write(ino, &asked, pieces, part, &mut written);
        let refused = written.iter().position(|w| matches!(w, Some(Err(_)))).unwrap_or(pieces.len());
        let mut last = last.into_iter().take_while(|n| *n < refused).peekable();
        // Blocks that the home has got beside its daemon it counts itself.
        while let Some(blocks) = last.peek().and_then(|n| direct(*n)) {
            written[last.next().expect("it was looked at")] = Some(blocks.map(|_| 0));
        }
        self.ask_to_write(ino, &last.collect::<Vec<_>>(), pieces, part, &mut written);
        self.note_pieces(ino, offset, pieces, written)
    }

    fn ask_to_write<'b>(
        &self,
        ino: Ino,
        asked: &[usize],
        pieces: &[Piece],
        part: impl Fn(usize) -> &'b [u8],
        written: &mut [Option<Result<i64, FsError>>],
    ) {
        let call = |n: &usize| {
            let piece = &pieces[*n];
            self.count_write(piece.daemon, ino, piece.len);
            let request = Request::Write { ino, offset: piece.offset, extend: false };
            Call::new(piece.daemon, request, Bulk::Out(part(*n)))
        };
        let mut calls: Vec<Call<'_>> = asked.iter().map(call).collect();
        for (n, answer) in asked.iter().zip(self.call_all(&mut calls)) {
            written[*n] = Some(answer.and_then(
                |a| expect_reply!(self, pieces[*n].daemon, a.reply, Reply::Written { blocks, .. } => blocks),
            ));
        }
    }

    /// Tells the home of what was stored: how much of it lies before the first piece that was not.
    fn note_pieces(
        &self,
        ino: Ino,
        offset: u64,
        pieces: &[Piece],
        written: Vec<Option<Result<i64, FsError>>>,
    ) -> Result<usize, FsError> {
        let (mut stored, mut blocks, mut failure) = (0, 0, None);
        for (piece, result) in pieces.iter().zip(written) {
            match result {
                Some(Ok(delta)) => {
                    blocks += delta;
                    if failure.is_none() {
                        stored += piece.len;
                    }
                }
                Some(Err(error)) => failure = failure.or(Some(error)),
                // Behind one that failed.
                None => {}
            }
        }
        if stored > 0 || blocks != 0 {
            let end = offset + stored as u64;
            self.grew(ino, if stored > 0 { end } else { 0 }, blocks)?;
        }
        match failure {
            Some(error) if stored == 0 => Err(error),
            _ => Ok(stored),
        }
    }

    /// Writes at the end of file, wherever other appends have moved it: the offset where the
    /// data went and how much of it was stored. Appends of all clients are put one after the
    /// other by the object's home.
    pub fn append(&self, ino: Ino, buf: &[u8]) -> Result<(u64, usize), FsError> {
        self.settle(ino)?;
        let len = buf.len() as u64;
        let reply = self.request(ino.home(), &Request::Reserve { ino, len })?;
        let offset = expect_reply!(self, ino.home(), reply, Reply::Offset { offset, .. } => offset)?;
        let mut done = 0;
        while done < buf.len() {
            match self.write(ino, offset + done as u64, &buf[done..]) {
                Ok(count) => done += count,
                Err(error) => {
                    self.give_place_back(ino, offset + done as u64, len - done as u64, &error);
                    if done == 0 {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        Ok((offset, done))
    }

    /// When this fails as well, what is there stays; the error of the write tells more.
    fn give_place_back(&self, ino: Ino, offset: u64, len: u64, why: &FsError) {
        // Other daemons have stored their pieces: they would show where the file grows by other means. One that is away keeps
        // nobody waiting twice.
        if [Errno::ENOSPC, Errno::EDQUOT].contains(&why.errno()) {
            let _ = self.home_attr(ino).and_then(|attr| self.punch(&attr, offset, offset + len, 0));
        }
        let _ = self.request(ino.home(), &Request::Unreserve { ino, offset, len });
    }

    /// Drops the chunks beyond `size`; the blocks to add to the record, which may be fewer than none: somebody else has
    /// taken the recorded ones then, and adds them again. Chunks go before the size does, so that no later growth can
    /// bring old data back. The recorded blocks go before the chunks do: when this is interrupted, fewer blocks are
    /// recorded than stored, never more, which would look like lost data.
    pub(crate) fn trim_for(&self, old: &Attr, size: u64) -> Result<i64, FsError> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        // That no blocks are recorded proves nothing: somebody else may be in the middle of this.
        if size >= old.size {
            return Ok(0);
        }
        let ino = old.ino;
        let mut left = self.take_blocks(ino, u64::MAX)?;
        for (daemon, answer) in self.ask_holders(old, || Request::Trim { ino, size }) {
            let change = expect_reply!(self, daemon, answer?, Reply::Written { blocks, .. } => blocks)?;
            left = left.saturating_add(change);
        }
        Ok(left)
    }

    /// Has the home take up to `max` recorded blocks off the record, before data are dropped; how many.
    pub(crate) fn take_blocks(&self, ino: Ino, max: u64) -> Result<i64, FsError> {
        let reply = self.request(ino.home(), &Request::TakeBlocks { ino, max })?;
        expect_reply!(self, ino.home(), reply, Reply::Written { blocks, .. } => blocks)
    }

    /// Asks all daemons that may keep chunks of an object: its home, and the others of its layout
    /// when it has more than one chunk.
    pub(crate) fn ask_holders(
        &self,
        attr: &Attr,
        request: impl Fn() -> Request,
    ) -> Vec<(DaemonIndex, Result<Reply, FsError>)> {
        let holders = match attr.layout {
            Some(layout) if attr.size > layout.chunk_size() => self.placer.chunk_owners(attr.ino, layout),
            _ => vec![attr.ino.home()],
        };
        self.ask_each(holders, request).collect()
    }

    /// Data and attributes of the object survive a power failure of any node after this.
    pub fn fsync(&self, ino: Ino) -> Result<(), FsError> {
        match &self.recorder {
            None => self.sync_data(ino),
            Some(recorder) => recorder.plain(Op::Fsync, ino, || self.sync_data(ino)),
        }
    }

    fn sync_data(&self, ino: Ino) -> Result<(), FsError> {
        let attr = self.home_attr(ino)?;
        for (daemon, answer) in self.ask_holders(&attr, || Request::Sync { ino }) {
            expect_reply!(self, daemon, answer?, Reply::Done {} => ())?;
        }
        // Behind what may fail: a daemon that says nothing is waited for once.
        self.tell_all_used();
        Ok(())
    }

    /// Everything in the pool survives a power failure of any node after this.
    pub fn sync_all(&self) -> Result<(), FsError> {
        self.settle_all()?;
        self.tell_all(|| Request::SyncAll {})
    }

    /// First stored byte at or after `offset`; `None` when only a hole follows.
    pub fn next_data(&self, ino: Ino, offset: u64) -> Result<Option<u64>, FsError> {
        let attr = self.home_attr(ino)?;
        if offset >= attr.size {
            return Err(Errno::ENXIO.into());
        }
        let mut next: Option<u64> = None;
        for (daemon, answer) in self.ask_holders(&attr, || Request::Extents { ino, from: offset, max: 1 }) {
            let ranges = expect_reply!(self, daemon, answer?, Reply::Ranges { ranges } => ranges)?;
            let start = ranges.first().map(|(start, _)| (*start).max(offset));
            next = next.into_iter().chain(start).min();
        }
        Ok(next.filter(|start| *start < attr.size))
    }

    /// First byte at or after `offset` that is in a hole, or the end of file.
    pub fn next_hole(&self, ino: Ino, offset: u64) -> Result<u64, FsError> {
        let size = self.home_attr(ino)?.size;
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        let layout = self.layout(ino)?;
        let mut at = offset;
        while at < size {
            let daemon = self.chunk_owner(ino, layout, at);
            let reply = self.request(daemon, &Request::Extents { ino, from: at, max: 1 })?;
            let ranges = expect_reply!(self, daemon, reply, Reply::Ranges { ranges } => ranges)?;
            match ranges.first() {
                Some((start, len)) if *start <= at => {
                    // One daemon's neighbouring ranges may belong to chunks far apart.
                    at = (start + len).min(layout.next_chunk(at));
                }
                _ => return Ok(at),
            }
        }
        Ok(size)
    }
}

/// Cuts a range where chunks end.
fn cut(offset: u64, len: usize, layout: Layout) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at;
        at = end.min(layout.next_chunk(start));
        (start < end).then(|| (start, (at - start) as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_chunk_borders() {
        let cut = |offset, len| cut(offset, len, Layout::wide(4096, 0).unwrap()).collect::<Vec<_>>();
        assert_eq!(cut(0, 10_000), [(0, 4096), (4096, 4096), (8192, 1808)]);
        assert_eq!(cut(4095, 4097), [(4095, 1), (4096, 4096)]);
        assert_eq!(cut(4096, 4096), [(4096, 4096)]);
    }
}
