//! Units of objects, and ranges of bytes: arithmetic only.

use super::UNIT;

/// The unit that a byte lies in.
pub fn of(at: u64) -> u64 {
    at / UNIT
}

/// Where the unit of a byte ends.
pub fn end(at: u64) -> u64 {
    (of(at) + 1) * UNIT
}

/// The parts of ranges (start, length) that lie between two bytes.
pub fn clip(ranges: Vec<(u64, u64)>, start: u64, end: u64) -> Vec<(u64, u64)> {
    let part = |(at, len): (u64, u64)| {
        let (from, to) = (at.max(start), (at + len).min(end));
        (from < to).then(|| (from, to - from))
    };
    ranges.into_iter().filter_map(part).collect()
}

/// What of some ranges is in none of others. Both ascending.
pub fn without(ranges: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut rest = Vec::new();
    for (start, len) in ranges {
        let (mut at, end) = (*start, start + len);
        for (other, len) in others.iter().filter(|(other, len)| other + len > *start && *other < end) {
            if *other > at {
                rest.push((at, other - at));
            }
            at = at.max(other + len);
        }
        if at < end {
            rest.push((at, end - at));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut() {
        assert_eq!((of(UNIT - 1), of(UNIT), end(0), end(UNIT)), (0, 1, UNIT, 2 * UNIT));
        assert_eq!(clip(vec![(0, 10), (20, 10)], 5, 25), [(5, 5), (20, 5)]);
        assert_eq!(clip(vec![(0, 5), (30, 5)], 5, 25), []);
        assert_eq!(without(&[(0, 10), (20, 10)], &[(5, 3), (25, 100)]), [(0, 5), (8, 2), (20, 5)]);
        assert_eq!(without(&[(0, 10)], &[]), [(0, 10)]);
        assert_eq!(without(&[(5, 10)], &[(0, 20)]), []);
    }
}
