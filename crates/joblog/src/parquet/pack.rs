//! How pages of Parquet are packed.

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

/// Bytes of a page, unpacked; writers make them of about a megabyte.
pub const PAGE_BYTES_MAX: usize = 256 << 20;

/// Times that Snappy's and LZ4's bytes grow at most.
const PACKED_MOST: usize = 256;

/// Numbers of the ways of packing, as Parquet's `CompressionCodec` has them.
pub const PLAIN: i64 = 0;
pub const SNAPPY: i64 = 1;
pub const GZIP: i64 = 2;
pub const ZSTANDARD: i64 = 6;
pub const LZ4_RAW: i64 = 7;
/// Those that cannot be read.
pub const OTHERS: [(i64, &str); 3] = [(3, "LZO"), (4, "Brotli"), (5, "LZ4 in Hadoop's frames")];

/// Exactly `size` bytes, or none.
pub fn unpack(codec: i64, packed: &[u8], size: usize) -> Option<Vec<u8>> {
    if size > PAGE_BYTES_MAX {
        return None;
    }
    let bytes = match codec {
        PLAIN => packed.to_vec(),
        // These two make room for all at once: not for more than there can be.
        SNAPPY if snap::raw::decompress_len(packed).ok()? != size => return None,
        SNAPPY | LZ4_RAW if size / PACKED_MOST > packed.len() => return None,
        SNAPPY => snap::raw::Decoder::new().decompress_vec(packed).ok()?,
        GZIP => at_most(MultiGzDecoder::new(packed), size)?,
        ZSTANDARD => at_most(StreamingDecoder::new(packed).ok()?, size)?,
        LZ4_RAW => lz4_flex::block::decompress(packed, size).ok()?,
        _ => return None,
    };
    (bytes.len() == size).then_some(bytes)
}

/// One byte more than there may be, so that too many are seen.
fn at_most(from: impl Read, size: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(size as u64 + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Runs of equal numbers and groups of eight packed ones, each of `width` bits, until `count` are there.
pub fn hybrid(bytes: &[u8], width: u32, count: usize, mut each: impl FnMut(u32) -> Option<()>) -> Option<()> {
    if width > 32 {
        return None;
    }
    let (mut at, mut done) = (0, 0);
    let wide = width.div_ceil(8) as usize;
    while done < count {
        let head = super::thrift::varint(bytes, &mut at)?;
        let runs = usize::try_from(head >> 1).ok()?;
        if head & 1 == 0 {
            let value = bytes.get(at..at.checked_add(wide)?)?;
            at += wide;
            let value = value.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)) as u32;
            let here = runs.min(count - done);
            if here == 0 {
                return None;
            }
            for _ in 0..here {
                each(value)?;
            }
            done += here;
        } else {
            let packed = bytes.get(at..at.checked_add(runs.checked_mul(width as usize)?)?)?;
            at += packed.len();
            let here = runs.checked_mul(8)?.min(count - done);
            if here == 0 {
                return None;
            }
            for number in 0..here {
                each(bits(packed, number * width as usize, width))?;
            }
            done += here;
        }
    }
    Some(())
}

/// `width` bits from `from` on, the least first.
fn bits(bytes: &[u8], from: usize, width: u32) -> u32 {
    let mut value = 0u64;
    let first = from / 8;
    for (place, byte) in bytes[first..].iter().take(5).enumerate() {
        value |= u64::from(*byte) << (8 * place);
    }
    let mask = (1u64 << width) - 1;
    (value >> (from % 8) & mask) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hybrid_by_its_description() {
        // The numbers 0 to 7 of 3 bits, as Parquet's description packs them; then five times 4.
        let bytes = [3, 0b1000_1000, 0b1100_0110, 0b1111_1010, 10, 4];
        let mut numbers = Vec::new();
        let add = |number| {
            numbers.push(number);
            Some(())
        };
        assert_eq!(hybrid(&bytes, 3, 13, add), Some(()));
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 4, 4, 4, 4, 4]);
        assert_eq!(hybrid(&bytes, 3, 14, |_| Some(())), None);
        assert_eq!(hybrid(&[0xff, 0xff, 0xff, 0xff, 0x7f], 1, 5, |_| Some(())), None);
        assert_eq!(hybrid(&[0, 0, 0, 0], 8, 1, |_| Some(())), None);
    }

    proptest! {
        #[test]
        fn any_bytes_unpack_or_do_not(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0usize..5000, width in 0u32..40) {
            for codec in 0..9 {
                let _ = unpack(codec, &bytes, size);
            }
            let _ = hybrid(&bytes, width, size, |_| Some(()));
        }
    }
}
