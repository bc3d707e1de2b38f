//! What is written: bytes that tell which place of which data they are, so that wrong ones are found.
//!
//! A block of [`STAMP_STEP`] bytes begins with what only this place of these data holds; the rest is the same in all.

/// Bytes between two stamps.
pub const STAMP_STEP: usize = 4096;
/// Bytes of a stamp.
const STAMP_BYTES: usize = 8;

/// The finalizer of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The bytes between stamps: the same in every block.
pub fn fill(buf: &mut [u8]) {
    for (at, byte) in buf.iter_mut().enumerate() {
        *byte = ((at % STAMP_STEP) * 31 + 7) as u8;
    }
}

/// Puts the stamps into a filled buffer that begins where a block does.
pub fn stamp(buf: &mut [u8], key: u64, offset: u64) {
    for (block, at) in buf.chunks_mut(STAMP_STEP).zip((offset..).step_by(STAMP_STEP)) {
        let len = block.len().min(STAMP_BYTES);
        block[..len].copy_from_slice(&mix(key ^ at).to_le_bytes()[..len]);
    }
}

/// Offset of the first whole stamp that is another one; what is between them is not looked at, so this costs next to
/// nothing.
pub fn wrong_stamp(buf: &[u8], key: u64, offset: u64) -> Option<u64> {
    let step = STAMP_STEP as u64;
    let first = offset.next_multiple_of(step);
    let skipped = usize::try_from(first - offset).ok()?;
    let mut blocks = buf.get(skipped..)?.chunks(STAMP_STEP).zip((first..).step_by(STAMP_STEP));
    blocks
        .find(|(block, at)| block.len() >= STAMP_BYTES && block[..STAMP_BYTES] != mix(key ^ at).to_le_bytes())
        .map(|(_, at)| at)
}

/// Makes any piece of any data, in one buffer that is filled once.
pub struct Maker {
    /// Begins where a block does.
    window: Vec<u8>,
}

impl Maker {
    /// For pieces of at most `len` bytes.
    pub fn new(len: usize) -> Maker {
        // A piece may begin and end within blocks.
        let mut window = vec![0; len.next_multiple_of(STAMP_STEP) + STAMP_STEP];
        fill(&mut window);
        Maker { window }
    }

    /// The bytes from `offset` of the data `key`.
    ///
    /// # Panics
    /// When `len` is more than the buffer was made for.
    pub fn piece(&mut self, key: u64, offset: u64, len: usize) -> &[u8] {
        let within = (offset % STAMP_STEP as u64) as usize;
        let window = &mut self.window[..(within + len).next_multiple_of(STAMP_STEP)];
        stamp(window, key, offset - within as u64);
        &window[within..within + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_bytes_are_pinned() {
        let mut maker = Maker::new(16);
        assert_eq!(
            maker.piece(1, 0, 12),
            [0xc1, 0x5c, 0x02, 0x89, 0xec, 0x2d, 0x0a, 0x91, 0xff, 0x1e, 0x3d, 0x5c]
        );
    }

    proptest! {
        /// A byte depends on its place only, not on the piece it is made with.
        #[test]
        fn pieces_are_parts_of_one_whole(key: u64, from in 0_u64..20_000, len in 0_usize..9_000, cut in 0_usize..9_000) {
            let mut maker = Maker::new(9_000);
            let whole = maker.piece(key, from, len).to_vec();
            let cut = cut.min(len);
            let first = maker.piece(key, from, cut).to_vec();
            let second = maker.piece(key, from + cut as u64, len - cut).to_vec();
            prop_assert_eq!([first, second].concat(), whole.clone());
            prop_assert_eq!(wrong_stamp(&whole, key, from), None);
        }

        /// Data of another place, or of other data, are told by a stamp where the piece has one.
        #[test]
        fn other_places_differ(key: u64, block in 0_u64..1_000, other in 1_u64..1_000) {
            let (from, wrong) = (block * 4096, (block + other) * 4096);
            let mut maker = Maker::new(5_000);
            let piece = maker.piece(key, from, 5_000).to_vec();
            prop_assert_eq!(wrong_stamp(&piece, key, wrong), Some(wrong));
            prop_assert_eq!(wrong_stamp(&piece, key ^ 1 << 40, from), Some(from));
        }
    }
}
