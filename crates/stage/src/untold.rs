//! Regular files that do not tell how long they are: those of /proc say 0, those of /sys a page, and some FUSE file systems know no
//! better before they are read. The size of such a file is what reading it to its end gives, so one worker does that, from the start.
//!
//! A file that is kept somewhere and ends before it says is another matter: what is missing may be lost. That is an error.

use crate::compare::read_full;
use crate::compound::PlainWriter;
use crate::data::Output;
use crate::end::{At, EndError, FileRef, Meta, WritePieces};
use crate::job::{Job, Worker};
use crate::links::Key;
use crate::report::Failure;
use crate::small::Finished;
use crate::tree::Entry;
use tidepool_blocks::crc;
use tidepool_types::Errno;

impl Job<'_> {
    /// Whether a file has to be read to its end to know how long it is. It is still what it was seen as when this says so.
    pub fn is_untold(&self, src: &FileRef, meta: &Meta) -> Result<bool, Failure> {
        if self.src.knows_sizes(meta) {
            return Ok(false);
        }
        // The last byte, and the first that must not be there.
        let start = meta.size.saturating_sub(1);
        let (mut edge, inside) = ([0; 2], usize::from(meta.size > 0));
        let found = read_full(self.src, src, start, &mut edge[..=inside]).map_err(Failure::source)?;
        if found == inside {
            return Ok(false);
        }
        self.check_source(src, meta)?;
        if found < inside && meta.stored > 0 { Err(ends_early(meta)) } else { Ok(true) }
    }

    /// Copies such a file to its temporary name.
    pub fn write_untold(
        &self,
        worker: &mut Worker,
        entry: &mut Entry,
        key: Option<Key>,
        src: FileRef,
        meta: Meta,
    ) -> Result<Finished, Failure> {
        let part = self.part_name(entry);
        let dst = self.over_leftover(entry, &part, || self.dst.create(&entry.dir.dst, &part))?;
        let to = Output { file: &dst, check: self.checks_at_once(&entry.dir), turn: None };
        let filled = self.copy_to_end(&src, to, worker.buffer());
        let dressed = filled.and_then(|sum| {
            self.copy_attributes(&|| entry.path(), At::File(&src), At::File(&dst), &meta).map(|()| sum)
        });
        match dressed {
            Ok((len, crc)) => {
                self.see(entry, len);
                Ok(Finished { entry: entry.clone(), key, src, dst, part, meta, len, crc })
            }
            Err(failure) => {
                // The first error is the one to tell; a rerun removes the file.
                let _ = self.dst.unlink(&entry.dir.dst, &part);
                Err(failure)
            }
        }
    }

    /// Copies all that reading a file gives; its length and checksum.
    fn copy_to_end(&self, src: &FileRef, to: Output<'_>, buf: &mut [u8]) -> Result<(u64, u32), Failure> {
        let (mut at, mut whole) = (0, 0);
        let (buf, back) = if to.check { buf.split_at_mut(buf.len() / 2) } else { (buf, &mut [][..]) };
        // Piece by piece, each of them asked for until it is there: who cannot say how long it is may not give the same bytes twice.
        let mut writer = PlainWriter::new(self.dst, to.file);
        loop {
            self.check_cancel()?;
            let count = read_full(self.src, src, at, buf).map_err(Failure::source)?;
            if count == 0 {
                return writer.finish().map(|()| (at, whole)).map_err(Failure::target);
            }
            let sum = crc::append(0, &buf[..count]);
            self.put_block(to, &mut writer, (at, &buf[..count], sum), back)?;
            whole = crc::join(whole, sum, count as u64);
            at += count as u64;
        }
    }
}

fn ends_early(meta: &Meta) -> Failure {
    let detail = format!("it says that it has {} bytes, and ends before that", meta.size);
    Failure::source(EndError { errno: Errno::EIO, operation: "read", detail: Some(detail) })
}
