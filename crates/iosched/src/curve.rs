//! Measured bandwidth of a tier against the number of processes that use it at once (S3 Figure 2).

use crate::model::Pattern;
use std::fmt;

/// Points of one curve.
pub const POINTS_MAX: usize = 64;
/// Processes that a point can stand for.
pub const PROCESSES_MAX: u32 = 1 << 24;
/// Largest bandwidth of a point in bytes/s: 1 PB/s. Products with it stay far from the ends of `u128`.
pub const BANDWIDTH_MAX: u64 = 1_000_000_000_000_000;

/// Bandwidth of a tier, piecewise linear between measured points.
///
/// Below the first point each process is taken to bring an equal part of that point's bandwidth. Beyond the last point
/// the bandwidth is the last one's: what was not measured is never taken to be faster than what was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curve {
    /// (processes, bytes/s), by processes.
    points: Vec<(u32, u64)>,
}

/// Why points are no curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CurveError {
    Empty,
    TooMany(usize),
    NoProcesses,
    TooManyProcesses(u32),
    NotRising { after: u32, found: u32 },
    NoBandwidth { processes: u32 },
    TooFast { processes: u32, bytes_per_s: u64 },
}

impl fmt::Display for CurveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CurveError::Empty => f.write_str("a curve needs one measured point at least"),
            CurveError::TooMany(points) => write!(f, "{points} points; a curve has at most {POINTS_MAX}"),
            CurveError::NoProcesses => f.write_str("a point for 0 processes; the first is for 1 or more"),
            CurveError::TooManyProcesses(n) => {
                write!(f, "a point for {n} processes; at most {PROCESSES_MAX}")
            }
            CurveError::NotRising { after, found } => {
                write!(
                    f,
                    "the point for {found} processes follows that for {after}; give each number once, in order"
                )
            }
            CurveError::NoBandwidth { processes } => {
                write!(f, "0 bytes/s for {processes} processes; leave out what could not be measured")
            }
            CurveError::TooFast { processes, bytes_per_s } => {
                write!(f, "{bytes_per_s} bytes/s for {processes} processes; at most {BANDWIDTH_MAX}")
            }
        }
    }
}

impl std::error::Error for CurveError {}

impl Curve {
    /// From (processes, bytes/s), with rising numbers of processes.
    pub fn new(points: &[(u32, u64)]) -> Result<Curve, CurveError> {
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        if points.len() > POINTS_MAX {
            return Err(CurveError::TooMany(points.len()));
        }
        for (processes, bytes_per_s) in points.iter().copied() {
            match (processes, bytes_per_s) {
                (0, _) => return Err(CurveError::NoProcesses),
                (n, _) if n > PROCESSES_MAX => return Err(CurveError::TooManyProcesses(n)),
                (_, 0) => return Err(CurveError::NoBandwidth { processes }),
                (_, rate) if rate > BANDWIDTH_MAX => {
                    return Err(CurveError::TooFast { processes, bytes_per_s });
                }
                _ => (),
            }
        }
        let falls = points.windows(2).find(|pair| pair[1].0 <= pair[0].0);
        match falls {
            Some(pair) => Err(CurveError::NotRising { after: pair[0].0, found: pair[1].0 }),
            None => Ok(Curve { points: points.to_vec() }),
        }
    }

    /// The same bandwidth for any number of processes: what is known of a device that was measured once.
    pub fn flat(bytes_per_s: u64) -> Result<Curve, CurveError> {
        Curve::new(&[(1, bytes_per_s)])
    }

    /// Bandwidth in bytes/s with `processes` at once; 0 for none.
    pub fn at(&self, processes: u32) -> u64 {
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if processes <= first.0 {
            return scale(first.1, processes, first.0);
        }
        if processes >= last.0 {
            return last.1;
        }
        let above = self.points.partition_point(|point| point.0 <= processes);
        let ((n0, b0), (n1, b1)) = (self.points[above - 1], self.points[above]);
        let (part, whole) = (processes - n0, n1 - n0);
        if b1 >= b0 { b0 + scale(b1 - b0, part, whole) } else { b0 - scale(b0 - b1, part, whole) }
    }

    /// (processes, bytes/s), by processes.
    pub fn points(&self) -> &[(u32, u64)] {
        &self.points
    }

    /// The largest bandwidth that was measured, in bytes/s.
    pub fn peak(&self) -> u64 {
        self.points.iter().map(|point| point.1).max().unwrap_or(0)
    }
}

/// `value * part / whole`, rounded down.
fn scale(value: u64, part: u32, whole: u32) -> u64 {
    (u128::from(value) * u128::from(part) / u128::from(whole)) as u64
}

/// The curves of one tier, one for each pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curves {
    pub sequential: Curve,
    pub strided: Curve,
    pub random: Curve,
}

impl Curves {
    /// A tier that makes no difference between patterns.
    pub fn same(curve: Curve) -> Curves {
        Curves { sequential: curve.clone(), strided: curve.clone(), random: curve }
    }

    pub fn of(&self, pattern: Pattern) -> &Curve {
        match pattern {
            Pattern::Sequential => &self.sequential,
            Pattern::Strided => &self.strided,
            Pattern::Random => &self.random,
        }
    }

    /// The largest bandwidth of any pattern, in bytes/s.
    pub fn peak(&self) -> u64 {
        self.sequential.peak().max(self.strided.peak()).max(self.random.peak())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_points_it_is_linear_and_beyond_them_never_more() {
        let curve = Curve::new(&[(4, 400), (8, 600), (16, 200)]).unwrap();
        let by_hand =
            [(0, 0), (1, 100), (3, 300), (4, 400), (5, 450), (8, 600), (10, 500), (16, 200), (1000, 200)];
        for (processes, expected) in by_hand {
            assert_eq!(curve.at(processes), expected, "{processes} processes");
        }
        assert_eq!(curve.peak(), 600);
        let rising = Curve::new(&[(1, 10), (2, 20)]).unwrap();
        assert_eq!(rising.at(3), 20, "a rise is not continued");
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        let refused = [
            (vec![], CurveError::Empty),
            (vec![(0, 5)], CurveError::NoProcesses),
            (vec![(1, 0)], CurveError::NoBandwidth { processes: 1 }),
            (vec![(2, 5), (2, 6)], CurveError::NotRising { after: 2, found: 2 }),
            (vec![(4, 5), (2, 6)], CurveError::NotRising { after: 4, found: 2 }),
            (vec![(PROCESSES_MAX + 1, 5)], CurveError::TooManyProcesses(PROCESSES_MAX + 1)),
            (
                vec![(1, BANDWIDTH_MAX + 1)],
                CurveError::TooFast { processes: 1, bytes_per_s: BANDWIDTH_MAX + 1 },
            ),
        ];
        for (points, error) in refused {
            assert_eq!(Curve::new(&points), Err(error));
            assert!(!error.to_string().is_empty());
        }
        let many: Vec<(u32, u64)> = (1..=POINTS_MAX as u32 + 1).map(|n| (n, 1)).collect();
        assert_eq!(Curve::new(&many), Err(CurveError::TooMany(POINTS_MAX + 1)));
    }
}
