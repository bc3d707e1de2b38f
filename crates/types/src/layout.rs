//! How the data of a file lie on the daemons: `docs/decisions/0008-placement.md`.

use crate::{CHUNK_SIZE_DEFAULT, CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, Errno, parse_size};
use std::fmt;
use std::str::FromStr;

/// By which rule the chunks of a file get their daemons. The numbers are those of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Placement {
    /// Over all daemons, or over `stripe` of them in turn.
    Wide = 1,
    /// All with the object's record.
    Local = 2,
    /// Over all daemons, to each as its weight says.
    Weighted = 3,
    /// Over the daemons of one group, such as those on one leaf switch.
    Group = 4,
}

impl Placement {
    const ALL: [Placement; 4] = [Placement::Wide, Placement::Local, Placement::Weighted, Placement::Group];

    /// The word that people write and read.
    pub fn word(self) -> &'static str {
        match self {
            Placement::Wide => "wide",
            Placement::Local => "local",
            Placement::Weighted => "weighted",
            Placement::Group => "group",
        }
    }

    pub fn parse(word: &str) -> Option<Placement> {
        Placement::ALL.into_iter().find(|p| p.word() == word)
    }
}

/// Bytes of a chunk, or those that suit most: `docs/decisions/0008-placement.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkSize {
    Auto,
    Bytes(u64),
}

impl ChunkSize {
    pub fn bytes(self) -> u64 {
        match self {
            ChunkSize::Auto => Layout::default().chunk_size(),
            ChunkSize::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for ChunkSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ChunkSize, String> {
        if text == "auto" {
            return Ok(ChunkSize::Auto);
        }
        let bytes = parse_size(text).map_err(|e| format!("{e}, or auto"))?;
        Layout::wide(bytes, 0).map(|_| ChunkSize::Bytes(bytes)).map_err(|e| e.to_string())
    }
}

/// Largest number of a group of daemons.
pub const GROUP_MAX: u16 = u16::MAX - 1;

/// The layout of a file's data. Fixed when the file is made; every party computes from it where a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Layout {
    placement: Placement,
    chunk_log2: u8,
    /// Of "wide": the stripe. Of "group": the group's number and 1, or 0 for the maker's group.
    detail: u16,
}

/// What is wrong with a layout, and what to do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayoutError {
    ChunkSize(u64),
    StripeNeedsWide(Placement),
    LocalIsNotCut,
    GroupNeedsGroup(Placement),
    GroupNumber(u16),
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::ChunkSize(bytes) => {
                write!(f, "{bytes} bytes: a chunk is 4KiB, 8KiB, 16KiB ... (a power of two), at most 16MiB")
            }
            LayoutError::StripeNeedsWide(placement) => write!(
                f,
                "a stripe is for placement 'wide', not '{}'; leave one of the two away",
                placement.word()
            ),
            LayoutError::LocalIsNotCut => {
                f.write_str("files with placement 'local' are not cut into chunks; leave the chunk size away")
            }
            LayoutError::GroupNeedsGroup(placement) => write!(
                f,
                "a group is for placement 'group', not '{}'; leave one of the two away",
                placement.word()
            ),
            LayoutError::GroupNumber(number) => {
                write!(f, "group {number}: the largest number of a group is {GROUP_MAX}")
            }
        }
    }
}

impl std::error::Error for LayoutError {}

impl Default for Layout {
    fn default() -> Layout {
        Layout { placement: Placement::Wide, chunk_log2: CHUNK_SIZE_DEFAULT.ilog2() as u8, detail: 0 }
    }
}

impl Layout {
    /// All data with the record. One request carries at most [`CHUNK_SIZE_MAX`], and that is what such a file is cut at.
    pub const LOCAL: Layout =
        Layout { placement: Placement::Local, chunk_log2: CHUNK_SIZE_MAX.ilog2() as u8, detail: 0 };

    /// Chunks of `chunk_size` bytes over all daemons, or, unless `stripe` is 0, over that many in turn.
    pub fn wide(chunk_size: u64, stripe: u16) -> Result<Layout, LayoutError> {
        Ok(Layout { placement: Placement::Wide, chunk_log2: log2(chunk_size)?, detail: stripe })
    }

    /// Chunks of `chunk_size` bytes over all daemons, as their weights say.
    pub fn weighted(chunk_size: u64) -> Result<Layout, LayoutError> {
        Ok(Layout { placement: Placement::Weighted, chunk_log2: log2(chunk_size)?, detail: 0 })
    }

    /// Chunks of `chunk_size` bytes over the daemons of this group, or, without one, of the group of the node where a
    /// file is made.
    pub fn group(chunk_size: u64, group: Option<u16>) -> Result<Layout, LayoutError> {
        if let Some(number) = group.filter(|number| *number > GROUP_MAX) {
            return Err(LayoutError::GroupNumber(number));
        }
        let detail = group.map_or(0, |number| number + 1);
        Ok(Layout { placement: Placement::Group, chunk_log2: log2(chunk_size)?, detail })
    }

    pub fn placement(self) -> Placement {
        self.placement
    }

    /// Bytes of a chunk.
    pub fn chunk_size(self) -> u64 {
        1 << self.chunk_log2
    }

    /// Bytes of a chunk as a flag takes them: `512KiB`.
    pub fn chunk_words(self) -> String {
        let kib = self.chunk_size() >> 10;
        if kib < 1024 { format!("{kib}KiB") } else { format!("{}MiB", kib >> 10) }
    }

    /// The chunk that holds the byte at `offset`.
    pub fn chunk_at(self, offset: u64) -> u64 {
        offset >> self.chunk_log2
    }

    /// Where the chunk behind the one with the byte at `offset` starts.
    pub fn next_chunk(self, offset: u64) -> u64 {
        (self.chunk_at(offset) + 1) << self.chunk_log2
    }

    /// Daemons that chunks go to in turn; 0 for all of them, by hashing.
    pub fn stripe(self) -> u16 {
        if self.placement == Placement::Wide { self.detail } else { 0 }
    }

    /// The group that placement "group" names. A file lies on its home's group in any case.
    pub fn named_group(self) -> Option<u16> {
        if self.placement == Placement::Group { self.detail.checked_sub(1) } else { None }
    }

    /// What a record holds: a layout's word, or 0 for none.
    pub fn from_record(word: u32) -> Result<Option<Layout>, Errno> {
        match word {
            0 => Ok(None),
            _ => Layout::from_word(word).map(Some).ok_or(Errno::EINVAL),
        }
    }

    /// As four bytes, the number 0 being free for "none".
    pub fn to_word(self) -> u32 {
        u32::from_le_bytes([self.placement as u8, self.chunk_log2, 0, 0]) | u32::from(self.detail) << 16
    }

    /// The reverse of [`Layout::to_word`]; every layout has one word only.
    pub fn from_word(word: u32) -> Option<Layout> {
        let [kind, chunk_log2, ..] = word.to_le_bytes();
        let placement = Placement::ALL.into_iter().find(|p| *p as u8 == kind)?;
        let chunk_size = 1u64.checked_shl(u32::from(chunk_log2))?;
        let layout = match placement {
            Placement::Wide => Layout::wide(chunk_size, (word >> 16) as u16).ok()?,
            Placement::Local => Layout::LOCAL,
            Placement::Weighted => Layout::weighted(chunk_size).ok()?,
            Placement::Group => Layout::group(chunk_size, ((word >> 16) as u16).checked_sub(1)).ok()?,
        };
        (layout.to_word() == word).then_some(layout)
    }
}

fn log2(chunk_size: u64) -> Result<u8, LayoutError> {
    let allowed = u64::from(CHUNK_SIZE_MIN)..=u64::from(CHUNK_SIZE_MAX);
    if chunk_size.is_power_of_two() && allowed.contains(&chunk_size) {
        Ok(chunk_size.ilog2() as u8)
    } else {
        Err(LayoutError::ChunkSize(chunk_size))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.placement.word())?;
        if self.placement != Placement::Local {
            write!(f, ", chunks of {}", self.chunk_words())?;
        }
        if self.stripe() > 0 {
            write!(f, ", over {} daemons in turn", self.stripe())?;
        }
        if let Some(number) = self.named_group() {
            write!(f, ", on group {number}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_read_or_chosen() {
        assert_eq!("auto".parse(), Ok(ChunkSize::Auto));
        assert_eq!("1MiB".parse(), Ok(ChunkSize::Bytes(1 << 20)));
        for bad in ["12KiB", "32MiB", "2KiB", "Auto", ""] {
            assert!(bad.parse::<ChunkSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn words_are_pinned() {
        for (layout, bytes) in [
            (Layout::default(), [1, 19, 0, 0]),
            (Layout::wide(4096, 0x0203).unwrap(), [1, 12, 3, 2]),
            (Layout::LOCAL, [2, 24, 0, 0]),
            (Layout::weighted(16 << 20).unwrap(), [3, 24, 0, 0]),
            (Layout::group(4096, None).unwrap(), [4, 12, 0, 0]),
            (Layout::group(4096, Some(0)).unwrap(), [4, 12, 1, 0]),
            (Layout::group(4096, Some(GROUP_MAX)).unwrap(), [4, 12, 255, 255]),
        ] {
            assert_eq!(layout.to_word().to_le_bytes(), bytes, "{layout}");
            assert_eq!(Layout::from_word(layout.to_word()), Some(layout));
        }
    }

    #[test]
    fn other_words_are_refused() {
        let bad = [0, 524_288, 1, 1 | 11 << 8, 1 | 25 << 8, 1 | 255 << 8, 5 | 19 << 8];
        let never_both = [2 | 19 << 8, 2 | 24 << 8 | 1 << 16, 3 | 19 << 8 | 1 << 16];
        for word in bad.into_iter().chain(never_both) {
            assert_eq!(Layout::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn chunks_are_powers_of_two() {
        for bad in [0, 1, 2048, 12_288, 32 << 20, u64::MAX] {
            assert_eq!(Layout::wide(bad, 0), Err(LayoutError::ChunkSize(bad)));
            assert_eq!(Layout::weighted(bad), Err(LayoutError::ChunkSize(bad)));
            assert_eq!(Layout::group(bad, None), Err(LayoutError::ChunkSize(bad)));
        }
        assert_eq!(Layout::group(4096, Some(u16::MAX)), Err(LayoutError::GroupNumber(u16::MAX)));
        let layout = Layout::wide(65_536, 0).unwrap();
        assert_eq!((layout.chunk_at(65_535), layout.chunk_at(65_536)), (0, 1));
        assert_eq!(
            Layout::wide(1 << 20, 4).unwrap().to_string(),
            "wide, chunks of 1MiB, over 4 daemons in turn"
        );
    }
}
