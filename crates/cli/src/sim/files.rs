//! Files of measurements and traces.

use crate::exit::{Context, Kind, Result};
use crate::outfile::{How, write};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

/// A file's bytes, compressed with gzip or not.
pub fn lines(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    let is_compressed = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_compressed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) })
}

/// Writes a file that the user has named.
pub fn keep(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    write(path, How::default(), content).context(Kind::Other, || path.display().to_string())
}
