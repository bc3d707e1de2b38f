//! Copying between files of the pool: the daemons move the data, the client only says which.

use crate::calls::{Bulk, Call, expect_reply};
use crate::{Client, FsError};
use tidepool_types::{DaemonIndex, Errno, FILE_SIZE_MAX, FileKind, Ino};
use tidepool_wire::message::{Reply, Request};

/// Bytes asked for at once: more is a partial copy, as copy_file_range(2) allows.
const COPY_MAX: u64 = 1 << 30;
/// Pieces under way at once.
const PIECES: usize = 64;

/// A piece that lies in one chunk of either file.
struct Piece {
    source: DaemonIndex,
    target: DaemonIndex,
    at: u64,
    offset: u64,
    len: u32,
}

impl Client {
    /// copy_file_range(2): copies up to `len` bytes at `at` in `from` to `offset` in `to`, fewer at the end of the source;
    /// how many.
    pub fn copy_range(&self, from: Ino, at: u64, to: Ino, offset: u64, len: u64) -> Result<usize, FsError> {
        let source = self.home_attr(from)?;
        let target = self.home_attr(to)?;
        for attr in [&source, &target] {
            match attr.kind() {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
        }
        let len = len.min(source.size.saturating_sub(at)).min(COPY_MAX);
        offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if from == to && at < offset + len && offset < at + len && len > 0 {
            return Err(Errno::EINVAL.into());
        }
        let Some(recorder) = &self.recorder else { return self.copy_data((from, at), (to, offset), len) };
        let begin = recorder.begin();
        let done = self.copy_data((from, at), (to, offset), len)?;
        recorder.copied(begin, (from, at), (to, offset), done as u64);
        Ok(done)
    }

    fn copy_data(
        &self,
        (from, at): (Ino, u64),
        (to, offset): (Ino, u64),
        len: u64,
    ) -> Result<usize, FsError> {
        let mut done = 0;
        while done < len {
            let pieces = self.copy_pieces(from, to, (at + done, offset + done), len - done)?;
            let (copied, blocks, failure) = self.copy_some(from, to, &pieces)?;
            if copied > 0 || blocks != 0 {
                let end = if copied > 0 { offset + done + copied } else { 0 };
                let reply = self.request(to.home(), &Request::Extend { ino: to, end, blocks })?;
                expect_reply!(self, to.home(), reply, Reply::Attributes { .. } => ())?;
            }
            done += copied;
            match failure {
                Some(error) if done == 0 => return Err(error),
                Some(_) => break,
                None => {}
            }
        }
        Ok(done as usize)
    }

    /// The next pieces of a range, at most [`PIECES`].
    fn copy_pieces(
        &self,
        from: Ino,
        to: Ino,
        (at, offset): (u64, u64),
        len: u64,
    ) -> Result<Vec<Piece>, FsError> {
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len && pieces.len() < PIECES {
            let (source, room) = self.place_of(from, at + done)?;
            let (target, target_room) = self.place_of(to, offset + done)?;
            let len = room.min(target_room).min(len - done);
            pieces.push(Piece { source, target, at: at + done, offset: offset + done, len: len as u32 });
            done += len;
        }
        Ok(pieces)
    }

    /// Copies the pieces: how many bytes without a gap, how many blocks that added, and what failed first.
    fn copy_some(
        &self,
        from: Ino,
        to: Ino,
        pieces: &[Piece],
    ) -> Result<(u64, i64, Option<FsError>), FsError> {
        let mut calls: Vec<Call<'_>> = pieces
            .iter()
            .map(|p| {
                let Piece { source, at, offset, len, .. } = *p;
                let request = Request::Copy { from, at, source, to, offset, len };
                Call::new(p.target, request, Bulk::None)
            })
            .collect();
        let (mut copied, mut blocks, mut failure) = (0, 0, None);
        for (piece, answer) in pieces.iter().zip(self.call_all(&mut calls)) {
            let result = answer.and_then(
                |a| expect_reply!(self, piece.target, a.reply, Reply::Written { blocks, .. } => blocks),
            );
            let result = match result {
                Err(error) if error.errno() == Errno::EAGAIN => self.move_piece(from, to, piece).map(|()| 0),
                other => other,
            };
            match result {
                Ok(delta) => {
                    blocks += delta;
                    if failure.is_none() {
                        copied += u64::from(piece.len);
                    }
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Ok((copied, blocks, failure))
    }

    /// For daemons that are too busy with each other.
    fn move_piece(&self, from: Ino, to: Ino, piece: &Piece) -> Result<(), FsError> {
        let mut data = vec![0; piece.len as usize];
        let count = self.read_data(from, piece.at, &mut data)?;
        data[count..].fill(0);
        let mut done = 0;
        while done < data.len() {
            done += self.write_data(to, piece.offset + done as u64, &data[done..])?;
        }
        Ok(())
    }
}
