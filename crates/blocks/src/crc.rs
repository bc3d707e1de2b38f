//! CRC32C of data with holes, without reading the holes.

use crc_fast::crc32_iscsi;
use std::cell::Cell;

/// The polynomial of CRC32C, its highest power left out; bit 31 is the constant term.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// The product of two polynomials modulo that of the checksum.
const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, ONE);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
}

/// x to the power of 8 * 2^i: what a checksum is multiplied by when 2^i bytes follow.
const POWERS: [u32; 64] = {
    // x^8
    let mut powers = [ONE >> 8; 64];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = times(powers[i - 1], powers[i - 1]);
        i += 1;
    }
    powers
};

/// `crc` continued over `data`.
pub fn append(crc: u32, data: &[u8]) -> u32 {
    // The crate has no cheap way to go on.
    if crc == 0 { crc32_iscsi(data) } else { join(crc, crc32_iscsi(data), data.len() as u64) }
}

/// `crc` continued over `count` zero bytes.
pub fn append_zeros(crc: u32, count: u64) -> u32 {
    // The checksum proper is the complement of what it is told as, before and after.
    if count == 0 { crc } else { !times(!crc, pushing(count)) }
}

/// The checksum of two neighbours from theirs.
pub fn join(first: u32, second: u32, second_len: u64) -> u32 {
    if second_len == 0 { first } else { times(first, pushing(second_len)) ^ second }
}

thread_local! {
    /// The length that was asked for last, and its power. Most blocks are of one length.
    static LAST: Cell<(u64, u32)> = const { Cell::new((0, ONE)) };
}

/// What a checksum is multiplied by when `len` bytes follow.
fn pushing(len: u64) -> u32 {
    let (last, power) = LAST.get();
    if last == len {
        return power;
    }
    let bits = (0..u64::BITS).filter(|bit| len >> bit & 1 == 1);
    let power = bits.fold(ONE, |power, bit| times(power, POWERS[bit as usize]));
    LAST.set((len, power));
    power
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc32c::{crc32c, crc32c_append, crc32c_combine};

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
        for len in [1u64 << 20, (1 << 32) - 1, 1 << 32, (1 << 40) + 4097] {
            assert_eq!(
                join(head, 0x1234_5678, len),
                crc32c_combine(head, 0x1234_5678, len as usize),
                "{len}"
            );
        }
    }
}
