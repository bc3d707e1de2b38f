//! CRC32C of data with holes, without reading the holes.

use crc_fast::crc32_iscsi;
use crc32c::{crc32c, crc32c_combine};
use std::cell::Cell;
use std::sync::OnceLock;

/// Checksums of 2^i zero bytes.
static ZEROS: OnceLock<[u32; 63]> = OnceLock::new();

fn zero_powers() -> &'static [u32; 63] {
    ZEROS.get_or_init(|| {
        let mut powers = [crc32c(&[0]); 63];
        for i in 1..powers.len() {
            powers[i] = crc32c_combine(powers[i - 1], powers[i - 1], 1 << (i - 1));
        }
        powers
    })
}

/// `crc` continued over `data`.
pub(crate) fn append(crc: u32, data: &[u8]) -> u32 {
    // The faster crate has no cheap way to go on.
    if crc == 0 { crc32_iscsi(data) } else { join(crc, crc32_iscsi(data), data.len() as u64) }
}

/// `crc` continued over `count` zero bytes.
pub(crate) fn append_zeros(mut crc: u32, count: u64) -> u32 {
    for (power, zeros) in zero_powers().iter().enumerate() {
        if count >> power & 1 == 1 {
            crc = crc32c_combine(crc, *zeros, 1 << power);
        }
    }
    crc
}

/// The checksum of two neighbours from theirs.
pub(crate) fn join(first: u32, second: u32, second_len: u64) -> u32 {
    if second_len == 0 { first } else { pushed(first, second_len) ^ second }
}

/// What becomes of each bit of a checksum when so many bytes follow: it is the exclusive or of its bits' results.
#[derive(Clone, Copy)]
struct Pushed {
    len: u64,
    /// Made when a length comes for the second time: 32 times the work of a single one.
    bits: Option<[u32; 32]>,
}

thread_local! {
    /// Of the length that was asked for last. Most blocks are of one length.
    static LAST: Cell<Pushed> = const { Cell::new(Pushed { len: 0, bits: None }) };
}

/// A checksum's part in that of `len` more bytes.
fn pushed(crc: u32, len: u64) -> u32 {
    let one = |crc| crc32c_combine(crc, 0, len as usize);
    let last = LAST.get();
    if last.len != len {
        LAST.set(Pushed { len, bits: None });
        return one(crc);
    }
    let bits = last.bits.unwrap_or_else(|| std::array::from_fn(|bit| one(1 << bit)));
    LAST.set(Pushed { len, bits: Some(bits) });
    (0..32).filter(|bit| crc >> bit & 1 == 1).fold(0, |sum, bit| sum ^ bits[bit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc32c::crc32c_append;

    #[test]
    fn blocks_of_one_length_and_of_others_join_as_if_read_at_once() {
        let data: Vec<u8> = (0..40_000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for lengths in [[4096, 4096, 4096, 4096], [1, 4096, 1, 4096], [7, 7, 9, 9], [10_000, 1, 1, 1]] {
            let (mut sum, mut at) = (0, 0);
            for len in lengths {
                sum = append(sum, &data[at..at + len]);
                at += len;
                assert_eq!(sum, crc32c(&data[..at]), "{lengths:?} up to {at}");
            }
        }
    }

    #[test]
    fn zeros_count_as_if_they_were_read() {
        let head = crc32c(b"head");
        for count in [0, 1, 2, 3, 511, 4096, 70_001] {
            assert_eq!(append_zeros(head, count), crc32c_append(head, &vec![0; count as usize]), "{count}");
        }
        assert_eq!(join(head, crc32c(b"tail"), 4), crc32c(b"headtail"));
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        for len in [0, 1, 7, 255, 4096, 70_001] {
            let data: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            assert_eq!(append(0, &data), crc32c(&data), "{len}");
            assert_eq!(append(head, &data), crc32c_append(head, &data), "{len}");
        }
    }
}
