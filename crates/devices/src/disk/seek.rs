//! How long the arm takes.

/// Points of a measured curve.
pub const POINTS_MAX: usize = crate::trace::seeks::DISTANCES_MAX;

/// Microseconds by distance. What all seeks have in common may be in here or in a class's wait: only sums are measured.
#[derive(Clone, PartialEq, Debug)]
pub enum Seek {
    /// Grows with the square root up to a distance, as while the arm speeds up and slows down again, and linearly beyond,
    /// where it has reached its speed (Ruemmler, Wilkes 1994).
    Formula { root_us: f64, linear_us: f64, bend_sectors: f64 },
    /// Measured: cylinders and microseconds, by rising distance; linear between, and as the last one beyond.
    Points { sectors_per_cylinder: f64, points: Vec<(f64, f64)> },
}

impl Seek {
    /// From one sector to another one so far away.
    pub fn time_us(&self, sectors: u64) -> f64 {
        let distance = sectors as f64;
        match self {
            Seek::Formula { root_us, linear_us, bend_sectors } => {
                root_us * distance.min(*bend_sectors).sqrt() + linear_us * (distance - bend_sectors).max(0.0)
            }
            Seek::Points { sectors_per_cylinder, points } => along(points, distance / sectors_per_cylinder),
        }
    }
}

fn along(points: &[(f64, f64)], at: f64) -> f64 {
    let above = points.partition_point(|(distance, _)| *distance < at);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 0.0 };
    match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
        // Below the first distance: from no seek at all.
        (None, _) => first.1 * at / first.0,
        (Some(_), None) => last.1,
        (Some((from, low)), Some((to, high))) => low + (high - low) * (at - from) / (to - from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_has_no_step_at_its_bend() {
        let seek = Seek::Formula { root_us: 3.0, linear_us: 0.01, bend_sectors: 1e6 };
        assert_eq!(seek.time_us(0), 0.0);
        assert!((seek.time_us(1_000_000) - 3_000.0).abs() < 1e-9);
        assert!((seek.time_us(2_000_000) - 13_000.0).abs() < 1e-9);
    }

    #[test]
    fn points_are_joined_by_lines() {
        let seek = Seek::Points { sectors_per_cylinder: 100.0, points: vec![(1.0, 800.0), (11.0, 1_800.0)] };
        for (sectors, us) in
            [(0, 0.0), (50, 400.0), (100, 800.0), (600, 1_300.0), (1_100, 1_800.0), (9_999, 1_800.0)]
        {
            assert!((seek.time_us(sectors) - us).abs() < 1e-9, "{sectors}");
        }
        // What a file cannot have, but a program can.
        assert_eq!(Seek::Points { sectors_per_cylinder: 1.0, points: vec![] }.time_us(5), 0.0);
    }
}
