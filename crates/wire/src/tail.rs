//! What the end of a log means when no record begins where one should: `docs/formats/02-metadata-log.md` §5, and
//! `docs/formats/12-stager-journal.md`.
//!
//! Records are appended. A kill leaves a part of the last one. A power failure leaves of what was not synced any pages and
//! not others, for the kernel writes them in any order. Anything else is damage: bytes that were there have changed.

/// Bytes of a page, the least that a kernel writes of a file.
const PAGE: u64 = 4096;
/// Bytes of a sector, the least that a disk writes.
const SECTOR: usize = 512;

/// What a reader that has found no record where one should begin may conclude.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// Nothing follows: the last record was cut short, and is cut off.
    Torn,
    /// Pages that were never synced were not written: what begins here is cut off.
    Unwritten,
    /// What was written is not there any more.
    Damaged,
}

/// Judges the place `at`, where no record begins. `follows`: where the next record begins; `synced`: the farthest place of which any
/// record behind `at` says that all before it was synced; `gap`: the bytes from `at` to `follows`.
///
/// A page that was not written reads as zeros from where it ended when it was written last, or from its beginning.
pub fn judge(at: u64, follows: Option<u64>, synced: u64, gap: &[u8]) -> Tail {
    match follows {
        None => Tail::Torn,
        Some(_) if synced > at => Tail::Damaged,
        Some(_) if has_unwritten(at, gap) => Tail::Unwritten,
        Some(_) => Tail::Damaged,
    }
}

/// Whether a page may be missing: one ends within the gap with a zero, or as much as a sector reads as zeros.
fn has_unwritten(at: u64, gap: &[u8]) -> bool {
    let first_end = (PAGE - at % PAGE) as usize;
    let mut page_ends = (first_end..=gap.len()).step_by(PAGE as usize);
    page_ends.any(|end| gap[end - 1] == 0) || zeros_in_a_row(gap) >= SECTOR
}

fn zeros_in_a_row(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte != 0).map(<[u8]>::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_torn_unwritten_or_damaged() {
        let record = [7_u8; 100];
        assert_eq!(judge(16, None, 0, &record), Tail::Torn);
        assert_eq!(judge(16, Some(116), 0, &record), Tail::Damaged, "within a page nothing is unwritten");
        // Over the end of a page: not written from its beginning, or from where it ended before.
        assert_eq!(judge(4000, Some(4100), 0, &record), Tail::Damaged);
        let mut cut = record;
        cut[90..96].fill(0);
        assert_eq!(judge(4000, Some(4100), 0, &cut), Tail::Unwritten);
        assert_eq!(judge(4000, Some(4100), 4000, &cut), Tail::Unwritten, "synced up to there");
        assert_eq!(judge(4000, Some(4100), 4001, &cut), Tail::Damaged, "what was synced must be there");
        assert_eq!(judge(4007, Some(4107), 0, &cut), Tail::Damaged, "zeros that end elsewhere");
        // A sector of a page.
        let mut sector = [7; 2000];
        sector[300..811].fill(0);
        assert_eq!(judge(16, Some(2016), 0, &sector), Tail::Damaged);
        sector[811] = 0;
        assert_eq!(judge(16, Some(2016), 0, &sector), Tail::Unwritten);
    }
}
