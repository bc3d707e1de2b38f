//! What a disk's DiskSim specification says that the model uses; keys that it does not use are passed over.

use super::{SECTOR_MAX, TraceError, each_line, shown, whole, wrong};
use std::io::BufRead;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Specs {
    pub sectors_per_cylinder: Option<u64>,
    pub segments: Option<u64>,
    pub write_segments: Option<u64>,
    pub segment_sectors: Option<u64>,
}

/// Lines of a specification.
const LINES_MAX: usize = 10_000;
/// Segments of a disk's buffer.
const SEGMENTS_MAX: u64 = 1_000_000;

pub fn read(from: impl BufRead) -> Result<Specs, TraceError> {
    let (mut specs, mut lines) = (Specs::default(), 0);
    each_line(from, |line, text| {
        lines += 1;
        if lines > LINES_MAX {
            return Err(TraceError::TooMany { what: "lines", most: LINES_MAX });
        }
        let Some((key, value)) = text.split_once('=') else { return Ok(()) };
        let (field, name, most) = match key.trim() {
            "Avg sectors per cylinder" => {
                (&mut specs.sectors_per_cylinder, "sectors per cylinder", SECTOR_MAX)
            }
            "Number of buffer segments" => (&mut specs.segments, "segments", SEGMENTS_MAX),
            "Maximum number of write segments" => (&mut specs.write_segments, "write segments", SEGMENTS_MAX),
            "Segment size (in blks)" => (&mut specs.segment_sectors, "sectors of a segment", SECTOR_MAX),
            _ => return Ok(()),
        };
        if field.is_some() {
            return Err(wrong(line, format!("'{}' for the second time", shown(key.trim()))));
        }
        *field = Some(whole(line, name, value.trim().trim_end_matches(',').trim_end(), 1, most)?);
        Ok(())
    })?;
    if specs == Specs::default() {
        return Err(TraceError::Empty {
            what: "keys of a disk's specification, as 'Avg sectors per cylinder = 1786,'",
        });
    }
    Ok(specs)
}
