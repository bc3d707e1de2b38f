//! How fast the platter passes under the head: outer tracks hold more sectors than inner ones.

/// Zones of a disk: those of the time have 8 to 30.
pub const ZONES_MAX: usize = 64;

/// Sectors from the first one up to the next zone, or to the end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Zone {
    pub first_sector: u64,
    /// How long a sector passes under the head, with its part of what changing tracks takes.
    pub sector_us: f64,
}

/// By rising address, the first one from sector 0 on.
#[derive(Clone, PartialEq, Debug)]
pub struct Zones(Vec<Zone>);

impl Zones {
    /// None where there are none or too many, the first does not begin at 0, they do not rise, or a time is no time.
    pub fn new(zones: Vec<Zone>) -> Option<Zones> {
        let is_time = |zone: &Zone| zone.sector_us.is_finite() && zone.sector_us >= 0.0;
        let fits = (1..=ZONES_MAX).contains(&zones.len()) && zones[0].first_sector == 0;
        let rising = zones.windows(2).all(|pair| pair[0].first_sector < pair[1].first_sector);
        (fits && rising && zones.iter().all(is_time)).then_some(Zones(zones))
    }

    /// A disk that is everywhere as fast; what is no time is none.
    pub fn even(sector_us: f64) -> Zones {
        let sector_us = if sector_us.is_finite() { sector_us.max(0.0) } else { 0.0 };
        Zones(vec![Zone { first_sector: 0, sector_us }])
    }

    pub fn all(&self) -> &[Zone] {
        &self.0
    }

    /// How far apart two sectors are for the arm: sectors of the first zone on as many tracks as lie between them. Where
    /// sectors take longer, there are fewer on a track.
    pub fn distance(&self, a: u64, b: u64) -> u64 {
        let (from, to) = (a.min(b), a.max(b));
        match self.0[..] {
            [Zone { sector_us, .. }, _, ..] if sector_us > 0.0 => {
                (self.time_us(from, to) / sector_us).round() as u64
            }
            _ => to - from,
        }
    }

    /// How long the sectors from one to before another pass under the head.
    pub fn time_us(&self, from: u64, to: u64) -> f64 {
        let first = self.0.partition_point(|zone| zone.first_sector <= from).saturating_sub(1);
        let mut us = 0.0;
        for (at, zone) in self.0.iter().enumerate().skip(first) {
            let begin = from.max(zone.first_sector);
            if begin >= to {
                break;
            }
            let end = self.0.get(at + 1).map_or(to, |next| next.first_sector.min(to));
            us += (end - begin) as f64 * zone.sector_us;
        }
        us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn zones(all: &[(u64, f64)]) -> Option<Zones> {
        Zones::new(all.iter().map(|&(first_sector, sector_us)| Zone { first_sector, sector_us }).collect())
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let nan = f64::NAN;
        for wrong in [&[][..], &[(1, 1.0)], &[(0, 1.0), (0, 2.0)], &[(0, -1.0)], &[(0, nan)]] {
            assert_eq!(zones(wrong), None, "{wrong:?}");
        }
        let many: Vec<(u64, f64)> = (0..=ZONES_MAX as u64).map(|at| (at, 1.0)).collect();
        assert!(zones(&many).is_none() && zones(&many[1..]).is_none() && zones(&many[..ZONES_MAX]).is_some());
    }

    proptest! {
        /// Sector by sector.
        #[test]
        fn times_are_the_sums_of_their_sectors(
            widths in prop::collection::vec((1..30u64, 1..9u32), 1..6), from in 0..200u64, sectors in 0..200u64,
        ) {
            let mut first = 0;
            let mut all = Vec::new();
            for (width, us) in widths {
                all.push((first, f64::from(us)));
                first += width;
            }
            let slow: f64 = (from..from + sectors)
                .map(|sector| all.iter().rev().find(|(first, _)| *first <= sector).unwrap().1)
                .sum();
            prop_assert_eq!(zones(&all).unwrap().time_us(from, from + sectors), slow);
        }
    }
}
