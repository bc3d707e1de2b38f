//! Lines of CSV for requests and sub-requests, written while the simulation goes on ([format 28](docs/formats/28-experiments.md)).

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tidepool_sim::checkpoint::checksum;
use tidepool_sim_models::{Pfs, PieceResult, RequestResult, Role};

const REQUESTS: &str = "workload,rank,number,op,file,offset,length,begin_ns,end_ns";
const PIECES: &str =
    "workload,rank,number,type,file_id,file_offset,length,sender,receiver,server,start_ns,end_ns,answer";

/// Bytes that are read at once of a file that is gone on with.
const CHUNK: usize = 1 << 16;
/// That of another run is not written over.
const OTHER: &str = "it is not what the checkpoint's run had written until then; nothing was changed";

/// A file, and the first thing that went wrong with it.
pub struct Rows {
    path: PathBuf,
    out: BufWriter<Counted>,
    wrong: Option<io::Error>,
}

/// How much is in a file, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    pub bytes: u64,
    pub checksum: u32,
}

tidepool_sim::saved!(struct Written { bytes, checksum });

/// A file that knows what was written to it.
struct Counted {
    file: File,
    written: Written,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        let Written { bytes: before, checksum: sum } = self.written;
        self.written = Written { bytes: before + count as u64, checksum: checksum(sum, &bytes[..count]) };
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Counted {
    /// A file that has all that was written to it, and perhaps more, which goes.
    fn go_on(path: &Path, written: Written) -> io::Result<Counted> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let (mut seen, mut chunk) = (Written { bytes: 0, checksum: 0 }, vec![0; CHUNK]);
        while seen.bytes < written.bytes {
            let most = (written.bytes - seen.bytes).min(CHUNK as u64) as usize;
            match file.read(&mut chunk[..most])? {
                0 => break,
                count => {
                    let sum = checksum(seen.checksum, &chunk[..count]);
                    seen = Written { bytes: seen.bytes + count as u64, checksum: sum };
                }
            }
        }
        if seen != written {
            return Err(io::Error::other(OTHER));
        }
        file.set_len(written.bytes)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Counted { file, written })
    }
}

impl Rows {
    /// Goes on behind what was written.
    pub fn go_on(path: &Path, written: Written) -> io::Result<Rows> {
        let out = BufWriter::new(Counted::go_on(path, written)?);
        Ok(Rows { path: path.into(), out, wrong: None })
    }

    /// All lines so far are in the file, also after a power failure: how much that is.
    pub fn keep(&mut self) -> Result<Written, (PathBuf, io::Error)> {
        let mut kept = || {
            if let Some(error) = self.wrong.take() {
                return Err(error);
            }
            self.out.flush()?;
            self.out.get_ref().file.sync_data()?;
            Ok(self.out.get_ref().written)
        };
        kept().map_err(|error| (self.path.clone(), error))
    }

    pub fn requests(path: &Path) -> io::Result<Rows> {
        Rows::begin(path, REQUESTS)
    }

    pub fn pieces(path: &Path) -> io::Result<Rows> {
        Rows::begin(path, PIECES)
    }

    fn begin(path: &Path, head: &str) -> io::Result<Rows> {
        let written = Written { bytes: 0, checksum: 0 };
        let mut out = BufWriter::new(Counted { file: crate::outfile::grow(path)?, written });
        writeln!(out, "{head}")?;
        Ok(Rows { path: path.into(), out, wrong: None })
    }

    fn line(&mut self, line: &str) {
        if self.wrong.is_none() {
            self.wrong = writeln!(self.out, "{line}").err();
        }
    }

    pub fn is_broken(&self) -> bool {
        self.wrong.is_some()
    }

    /// Names need no quotes: they are letters, digits, dashes and underscores.
    pub fn request(&mut self, names: &[String], r: &RequestResult) {
        let name = &names[r.application as usize];
        let numbers = [u64::from(r.file), r.offset, r.length, r.begin, r.end].map(|n| n.to_string());
        self.line(&format!("{name},{},{},{},{}", r.rank, r.number, r.op, numbers.join(",")));
    }

    pub fn piece(&mut self, names: &[String], roles: &[Role], p: &PieceResult) {
        let role = |process: u32| roles.get(process as usize).copied();
        // What servers move among themselves is of no workload; what nodes ask for is of several.
        let who = match role(p.sender) {
            Some(Role::Client(application, rank)) => {
                format!("{},{rank},{}", names[application as usize], p.request)
            }
            _ => ",,".to_string(),
        };
        let server = match role(p.receiver) {
            Some(Role::Server(number)) => number.to_string(),
            _ => String::new(),
        };
        let answer = if p.redirected { "redirect" } else { "done" };
        self.line(&format!(
            "{who},{},{},{},{},{},{},{server},{},{},{answer}",
            p.op, p.file, p.offset, p.length, p.sender, p.receiver, p.start, p.end
        ));
    }

    /// All of it is in the file.
    pub fn end(mut self) -> Result<(), (PathBuf, io::Error)> {
        let done = match self.wrong.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        };
        done.map_err(|error| (self.path, error))
    }
}

pub fn names(pfs: &Pfs) -> Vec<String> {
    pfs.applications.iter().map(|all| all.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_gone_on_with_where_it_was_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.csv");
        let mut rows = Rows::begin(&path, "head").unwrap();
        (0..9_000).for_each(|number| rows.line(&format!("line {number}")));
        let written = rows.keep().unwrap();
        let kept = std::fs::read(&path).unwrap();
        assert_eq!((written.bytes, written.checksum), (kept.len() as u64, checksum(0, &kept)));
        rows.line("lost");
        rows.end().unwrap();
        let mut again = Rows::go_on(&path, written).unwrap();
        again.line("next");
        again.end().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [&kept[..], b"next\n"].concat());
        // Shorter, changed, or away: left as it is.
        let mut other = kept.clone();
        other[70_000] ^= 1;
        for other in [&kept[..kept.len() - 1], &other] {
            std::fs::write(&path, other).unwrap();
            assert!(Rows::go_on(&path, written).err().unwrap().to_string().contains("checkpoint's run"));
            assert_eq!(std::fs::read(&path).unwrap(), other);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Rows::go_on(&path, written).err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
