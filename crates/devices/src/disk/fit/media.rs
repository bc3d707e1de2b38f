//! Zones from the times of requests that wait for the platter.
//!
//! What such a request takes beyond its seek is a constant (overhead and the mean of the rotation) and its sectors times
//! what a sector takes where it lies. Least squares give the times of zones for boundaries that are told; boundaries are
//! added one by one, each where it helps the most, as long as it helps more than chance would at any place.

use super::seen::Seen;
use crate::Request;
use crate::disk::{ZONES_MAX, Zone, Zones};

/// Places where a boundary may be: between so many parts of the samples.
const PLACES: usize = 64;
/// Samples that a zone needs, and that a search for zones needs.
const ZONE_MIN: f64 = 30.0;
const SAMPLES_MIN: usize = 100;
/// What a boundary has to take from the sum of squares, by the variance. The square of a normal variable is above that
/// once in 16,000 times; with 63 places, a boundary that is not there is found once in 250 fits at most.
const GAIN_MIN: f64 = 16.0;
/// Part of a time that nobody measures.
const EXACT: f64 = 1e-3;
/// A slope counts when it is so many standard errors above the buffer's, and these are so small a part of it.
const SURE: f64 = 4.0;
const SLOPE_ERROR_MAX: f64 = 0.1;
/// Lengths that differ less than that (standard deviation by mean) do not tell overhead from transfer.
const LENGTHS_APART: f64 = 0.05;
/// Kinds of samples with a constant of their own.
const KINDS: usize = 3;

/// A request that waited for the platter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sample {
    pub sector: u64,
    pub sectors: f64,
    /// Without its seek.
    pub us: f64,
    /// Those of one kind have one overhead; below [`KINDS`]. None where there is none: a stream goes on as the platter does.
    pub kind: Option<usize>,
}

impl Sample {
    pub fn of(one: &Seen, us: f64, kind: Option<usize>) -> Sample {
        let Request { sector, sectors, .. } = one.request;
        Sample { sector, sectors: f64::from(sectors), us, kind }
    }
}

/// Sums over samples of neighbouring addresses, each sample by its weight.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: f64,
    /// Sectors squared, sectors times us, us squared.
    xx: f64,
    xy: f64,
    yy: f64,
    /// By kind: 1, sectors, us.
    of_kind: [[f64; 3]; KINDS],
}

impl Sums {
    fn add(&mut self, sample: &Sample, weight: f64) {
        self.count += 1.0;
        self.xx += weight * sample.sectors * sample.sectors;
        self.xy += weight * sample.sectors * sample.us;
        self.yy += weight * sample.us * sample.us;
        if let Some(kind) = sample.kind {
            let of = &mut self.of_kind[kind];
            *of = [of[0] + weight, of[1] + weight * sample.sectors, of[2] + weight * sample.us];
        }
    }

    fn plus(mut self, other: &Sums) -> Sums {
        self.count += other.count;
        self.xx += other.xx;
        self.xy += other.xy;
        self.yy += other.yy;
        for (of, more) in self.of_kind.iter_mut().zip(&other.of_kind) {
            (0..3).for_each(|at| of[at] += more[at]);
        }
        self
    }
}

/// Least squares for some zones: the time of a sector in each, with its standard error in units of a residual's deviation.
struct Solved {
    sector_us: Vec<f64>,
    error: f64,
    left: f64,
}

/// What the samples say of the platter: None where nothing is sure.
pub(super) struct Media {
    pub zones: Zones,
    /// Whether the lengths told overhead from transfer; else half a revolution is taken for the overhead.
    pub lengths: bool,
}

/// `buffer_us`: what a sector takes from the buffer, which hides what is faster. `wanted`: so many zones, where it is
/// known, whether sure or not; 0 for nothing that is seen.
pub(super) fn media(samples: &[Sample], buffer_us: f64, wanted: Option<usize>) -> Option<Media> {
    if samples.len() < SAMPLES_MIN || wanted == Some(0) {
        return None;
    }
    let mut samples = samples.to_vec();
    samples.sort_by_key(|sample| sample.sector);
    let lengths = lengths_differ(&samples);
    if !lengths {
        samples = without_overhead(&samples);
    }
    let weights = weights(&samples);
    // Times are never better than that, however regular they are.
    let least = |(one, weight): (&Sample, &f64)| weight * (EXACT * one.us).powi(2);
    let least = samples.iter().zip(&weights).map(least).sum::<f64>() / samples.len() as f64;
    let parts = parts(&samples, &weights);
    let mut bounds: Vec<usize> = Vec::new();
    let mut now = solve(&parts, &bounds)?;
    let unit = now.left / samples.len() as f64;
    while wanted.is_none_or(|wanted| bounds.len() + 1 < wanted) && bounds.len() + 1 < ZONES_MAX {
        let tried = (1..parts.len()).filter(|at| !bounds.contains(at)).filter_map(|at| {
            let with = with(&bounds, at);
            let solved = solve(&parts, &with).filter(is_slower_inside)?;
            Some((with, solved))
        });
        let Some((with, solved)) = tried.min_by(|a, b| a.1.left.total_cmp(&b.1.left)) else { break };
        // The variance of what is left with the boundary.
        let variance = (solved.left / samples.len() as f64).min(unit).max(least);
        if wanted.is_none() && (now.left - solved.left) / variance < GAIN_MIN {
            break;
        }
        (bounds, now) = (with, solved);
    }
    let deviation = (now.left / samples.len() as f64).sqrt();
    if bounds.is_empty() && wanted.is_none() {
        let (slope, error) = (now.sector_us[0], now.error * deviation);
        let sure = lengths && error <= SLOPE_ERROR_MAX * slope && slope > buffer_us + SURE * error;
        if !sure {
            return None;
        }
    }
    let starts = std::iter::once(0).chain(bounds.iter().map(|at| parts[*at].0));
    let zone = |(first_sector, us): (u64, &f64)| Zone { first_sector, sector_us: us.max(0.0) };
    let zones = Zones::new(starts.zip(&now.sector_us).map(zone).collect())?;
    Some(Media { zones, lengths })
}

fn with(bounds: &[usize], at: usize) -> Vec<usize> {
    let mut all = [bounds, &[at]].concat();
    all.sort_unstable();
    all
}

/// Tracks get shorter, not longer: what grows the other way is no zone, but something else that goes with the address.
fn is_slower_inside(solved: &Solved) -> bool {
    solved.sector_us.windows(2).all(|pair| pair[0] <= pair[1]) && solved.sector_us.iter().all(|us| *us > 0.0)
}

fn lengths_differ(samples: &[Sample]) -> bool {
    // A stream has no overhead to be told apart.
    let of: Vec<f64> = samples.iter().filter(|one| one.kind.is_some()).map(|one| one.sectors).collect();
    let count = of.len().max(1) as f64;
    let mean = of.iter().sum::<f64>() / count;
    let variance = of.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    of.len() < samples.len() / 2 || variance.sqrt() > LENGTHS_APART * mean
}

/// With half a revolution less, which is twice what the middle half spans, and no constant.
fn without_overhead(samples: &[Sample]) -> Vec<Sample> {
    let mut times: Vec<f64> = samples.iter().filter(|one| one.kind.is_some()).map(|one| one.us).collect();
    times.sort_by(f64::total_cmp);
    let quartile = |p| crate::disk::spread::quantile(&times, p);
    let half = (quartile(0.75) - quartile(0.25)).min(quartile(0.25));
    let less = |one: &Sample| match one.kind {
        Some(_) => Sample { us: one.us - half, kind: None, ..*one },
        None => *one,
    };
    samples.iter().map(less).collect()
}

/// One by the variance of each kind beside its own line.
fn weights(samples: &[Sample]) -> Vec<f64> {
    let mut by_kind = [0.0; KINDS + 1];
    for (at, weight) in by_kind.iter_mut().enumerate() {
        let own: Vec<&Sample> = samples.iter().filter(|one| one.kind.unwrap_or(KINDS) == at).collect();
        if own.is_empty() {
            continue;
        }
        let mut sums = Sums::default();
        own.iter().for_each(|one| sums.add(one, 1.0));
        // Of one length: beside their mean.
        let line = solve(&[(0, sums)], &[]).map(|solved| solved.left);
        let mean = own.iter().map(|one| one.us).sum::<f64>() / own.len() as f64;
        let beside = || own.iter().map(|one| (one.us - mean) * (one.us - mean)).sum::<f64>();
        let variance = line.unwrap_or_else(beside) / own.len() as f64;
        // No noise at all counts as a nanosecond of it.
        *weight = 1.0 / variance.max(1e-6);
    }
    samples.iter().map(|one| by_kind[one.kind.unwrap_or(KINDS)]).collect()
}

/// Parts of about as many samples, of which each begins at a new address.
fn parts(samples: &[Sample], weights: &[f64]) -> Vec<(u64, Sums)> {
    let most = samples.len().div_ceil(PLACES);
    let mut parts: Vec<(u64, Sums)> = Vec::new();
    let mut before = None;
    for (sample, weight) in samples.iter().zip(weights) {
        let is_full = parts.last().is_none_or(|(_, sums)| sums.count >= most as f64);
        if is_full && before != Some(sample.sector) {
            parts.push((sample.sector, Sums::default()));
        }
        before = Some(sample.sector);
        if let Some((_, sums)) = parts.last_mut() {
            sums.add(sample, *weight);
        }
    }
    parts
}

/// None where a zone has too few samples, or where they do not tell constants from slopes.
fn solve(parts: &[(u64, Sums)], bounds: &[usize]) -> Option<Solved> {
    let edges: Vec<usize> = [0].iter().chain(bounds).chain(&[parts.len()]).copied().collect();
    let zones: Vec<Sums> = edges
        .windows(2)
        .map(|pair| parts[pair[0]..pair[1]].iter().fold(Sums::default(), |all, (_, sums)| all.plus(sums)))
        .collect();
    if zones.iter().any(|zone| zone.xx <= 0.0 || (!bounds.is_empty() && zone.count < ZONE_MIN)) {
        return None;
    }
    // For given constants each zone's slope is known; what is left over gives the constants.
    let mut matrix = [[0.0; KINDS]; KINDS];
    let mut right = [0.0; KINDS];
    for zone in &zones {
        for (a, of) in zone.of_kind.iter().enumerate() {
            matrix[a][a] += of[0];
            right[a] += of[2] - of[1] * zone.xy / zone.xx;
            (0..KINDS).for_each(|b| matrix[a][b] -= of[1] * zone.of_kind[b][1] / zone.xx);
        }
    }
    let whole: [f64; KINDS] = std::array::from_fn(|a| zones.iter().map(|zone| zone.of_kind[a][0]).sum());
    let constants = constants(matrix, right, &whole)?;
    let slope = |zone: &Sums| {
        let of: f64 = (0..KINDS).map(|a| constants[a] * zone.of_kind[a][1]).sum();
        (zone.xy - of) / zone.xx
    };
    let sector_us: Vec<f64> = zones.iter().map(slope).collect();
    let squares: f64 = zones.iter().map(|zone| zone.yy - zone.xy * zone.xy / zone.xx).sum();
    let left = squares - (0..KINDS).map(|a| constants[a] * right[a]).sum::<f64>();
    // Of the one zone's slope, beside constants: what sectors vary beyond their means.
    let varied: f64 = zones.iter().map(|zone| zone.xx).sum::<f64>()
        - (0..KINDS)
            .filter(|a| whole[*a] > 0.0)
            .map(|a| zones.iter().map(|zone| zone.of_kind[a][1]).sum::<f64>().powi(2) / whole[a])
            .sum::<f64>();
    Some(Solved { sector_us, error: 1.0 / varied.max(f64::MIN_POSITIVE).sqrt(), left: left.max(0.0) })
}

/// Gauss' elimination; a kind without samples has no constant. None where the matrix tells too little.
fn constants(
    mut matrix: [[f64; KINDS]; KINDS],
    mut right: [f64; KINDS],
    whole: &[f64; KINDS],
) -> Option<[f64; KINDS]> {
    for (at, whole) in whole.iter().enumerate() {
        if *whole == 0.0 {
            (matrix[at], right[at]) = ([0.0; KINDS], 0.0);
            matrix[at][at] = 1.0;
        }
    }
    for at in 0..KINDS {
        // It is symmetric and not negative: the diagonal is the pivot.
        if matrix[at][at] <= 1e-9 * whole[at].max(f64::MIN_POSITIVE) {
            return None;
        }
        for below in at + 1..KINDS {
            let share = matrix[below][at] / matrix[at][at];
            (at..KINDS).for_each(|column| matrix[below][column] -= share * matrix[at][column]);
            right[below] -= share * right[at];
        }
    }
    let mut found = [0.0; KINDS];
    for at in (0..KINDS).rev() {
        let known: f64 = (at + 1..KINDS).map(|column| matrix[at][column] * found[column]).sum();
        found[at] = (right[at] - known) / matrix[at][at];
    }
    Some(found)
}
