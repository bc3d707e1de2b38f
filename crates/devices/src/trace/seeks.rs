//! Seek times that were measured: a line `Seek distances measured: N`, then `CYLINDERS, MILLISECONDS` by rising distance.

use super::{TraceError, each_line, real, shown, whole, wrong};
use std::io::BufRead;

/// Distances of a file.
pub const DISTANCES_MAX: usize = 100_000;
/// Cylinders of a disk.
pub const CYLINDERS_MAX: u64 = 100_000_000;
/// Milliseconds of a seek.
pub const SEEK_MS_MAX: f64 = 10_000.0;

/// Cylinders and microseconds, by rising distance.
pub fn read(from: impl BufRead) -> Result<Vec<(u64, f64)>, TraceError> {
    let mut all: Vec<(u64, f64)> = Vec::new();
    let mut told = None;
    each_line(from, |line, text| {
        if let Some(count) = text.strip_prefix("Seek distances measured:") {
            told = Some((line, whole(line, "distances", count.trim(), 1, DISTANCES_MAX as u64)?));
            return Ok(());
        }
        let Some((cylinders, ms)) = text.split_once(',') else {
            return Err(wrong(line, format!("'{}': 'CYLINDERS, MILLISECONDS' is expected", shown(text))));
        };
        let cylinders = whole(line, "cylinders", cylinders.trim(), 1, CYLINDERS_MAX)?;
        let ms = real(line, "milliseconds", ms.trim(), 0.0, SEEK_MS_MAX)?;
        if let Some((before, _)) = all.last().filter(|(before, _)| *before >= cylinders) {
            return Err(wrong(line, format!("{cylinders} cylinders after {before}: distances rise")));
        }
        if all.len() == DISTANCES_MAX {
            return Err(TraceError::TooMany { what: "distances", most: DISTANCES_MAX });
        }
        all.push((cylinders, ms * 1e3));
        Ok(())
    })?;
    match told {
        _ if all.is_empty() => Err(TraceError::Empty { what: "seek times" }),
        Some((line, count)) if count != all.len() as u64 => Err(wrong(
            line,
            format!("{count} distances are announced and {} follow: is it whole?", all.len()),
        )),
        _ => Ok(all),
    }
}
