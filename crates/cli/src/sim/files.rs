//! Files of measurements and traces.

use crate::exit::{Context, Kind, Result};
use flate2::bufread::MultiGzDecoder;
use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::Builder;

/// A file's bytes, compressed with gzip or not.
pub fn lines(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    let is_compressed = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_compressed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) })
}

/// Replaces a file as a whole.
pub fn keep(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let whole = || {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As files of programs are, not for the owner alone as temporary ones.
        let for_all = Permissions::from_mode(0o666);
        let mut new = Builder::new().permissions(for_all).tempfile_in(dir)?;
        let mut out = BufWriter::new(new.as_file_mut());
        write(&mut out)?;
        out.flush()?;
        drop(out);
        new.persist(path)?;
        Ok::<(), io::Error>(())
    };
    whole().context(Kind::Other, || path.display().to_string())
}
