//! Which daemon owns a directory entry or a chunk.
//!
//! There is no central server: every party computes owners from the number of members
//! (S2 §2.2.3). Jump consistent hashing (Lamping & Veach 2014) spreads evenly and moves
//! 1/n of the keys when a member joins. The functions are part of the protocol: all
//! clients of a pool must agree, so their results are pinned by tests.

#![forbid(unsafe_code)]

use tidepool_types::{DaemonIndex, Ino};

/// Owner of entry `name` of directory `parent` in a pool of `members` daemons (at least 1).
pub fn entry_owner(parent: Ino, name: &[u8], members: usize) -> DaemonIndex {
    let key = name.chunks(8).fold(mix(parent.0 ^ 0x7469_6465), |hash, part| {
        let mut word = [0u8; 8];
        word[..part.len()].copy_from_slice(part);
        mix(hash ^ u64::from_le_bytes(word)).wrapping_add(part.len() as u64)
    });
    jump(mix(key), members)
}

/// Owner of chunk `index` of object `ino`. The first chunk lies with the object's record,
/// so that a small file needs one daemon only.
pub fn chunk_owner(ino: Ino, index: u64, members: usize) -> DaemonIndex {
    if index == 0 {
        return ino.home();
    }
    jump(mix(mix(ino.0) ^ index), members)
}

/// The finalizer of SplitMix64: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn jump(mut key: u64, buckets: usize) -> DaemonIndex {
    assert!((1..=tidepool_types::DAEMONS_MAX).contains(&buckets), "a pool has 1 to 65536 daemons");
    let (mut bucket, mut next) = (0i64, 0i64);
    while next < buckets as i64 {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let unit = ((key >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / unit)) as i64;
    }
    bucket as DaemonIndex
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 99.9 % quantile of chi-square by Wilson and Hilferty; fine for the sizes used here.
    fn chi_square_limit(freedom: f64) -> f64 {
        let z = 3.09;
        let t = 2.0 / (9.0 * freedom);
        freedom * (1.0 - t + z * t.sqrt()).powi(3)
    }

    fn chi_square(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts.iter().map(|c| (*c as f64 - expected).powi(2) / expected).sum()
    }

    /// F14: chunks and entries spread evenly.
    #[test]
    fn spread_passes_chi_square() {
        for members in [2usize, 3, 4, 7, 16, 512] {
            let mut chunks = vec![0u64; members];
            let mut entries = vec![0u64; members];
            for object in 0..200u64 {
                for index in 1..1001 {
                    chunks[usize::from(chunk_owner(Ino::new(1, object + 2), index, members))] += 1;
                }
            }
            for file in 0..200_000u32 {
                let name = format!("file.mdtest.{}.{file}", file % 16);
                entries[usize::from(entry_owner(Ino::ROOT, name.as_bytes(), members))] += 1;
            }
            let limit = chi_square_limit(members as f64 - 1.0);
            assert!(chi_square(&chunks) < limit, "chunks over {members}: {}", chi_square(&chunks));
            assert!(chi_square(&entries) < limit, "entries over {members}: {}", chi_square(&entries));
        }
    }

    #[test]
    fn a_new_member_takes_its_share_only() {
        let moved = (1..100_000u64)
            .filter(|i| chunk_owner(Ino(7), *i, 8) != chunk_owner(Ino(7), *i, 9))
            .inspect(|i| assert_eq!(chunk_owner(Ino(7), *i, 9), 8))
            .count();
        assert!((10_000..12_300).contains(&moved), "{moved}");
    }

    /// Clients of different builds must agree: these values are part of the protocol.
    #[test]
    fn owners_are_pinned() {
        let entries: Vec<_> = ["a", "data.bin", "processor0", "a-name-longer-than-two-words"]
            .map(|n| entry_owner(Ino::ROOT, n.as_bytes(), 1000))
            .into();
        let chunks: Vec<_> = [0, 1, 2, u64::MAX].map(|i| chunk_owner(Ino::new(3, 9), i, 1000)).into();
        assert_eq!((entries, chunks), (vec![926, 345, 553, 204], vec![3, 885, 490, 886]));
    }
}
