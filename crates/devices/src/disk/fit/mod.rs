//! A disk's parameters from measured requests (INVENTORY L21).
//!
//! Whether a read came from the buffer is not told by a trace, but its time tells it: what the buffer serves takes little
//! more than a line through the fastest reads of each length. What was hit and missed so gives the rules of the buffer; the
//! far misses give the seek curve; what is left of each class is its wait.

mod media;
mod seen;
mod steps;
mod streams;

use super::judge::{Score, replay, score};
use super::{DiskModel, SEGMENTS_MAX, WriteBack};
use crate::Direction;
use crate::trace::measured::Measured;
use crate::trace::specs::Specs;
use seen::Seen;
use std::fmt;
use steps::Core;
use tidepool_sim::Stream;

/// Requests that a fit needs.
pub const REQUESTS_MIN: usize = 500;
/// Of a buffered run of writes where no specification tells it: 128 KiB.
const SEGMENT_SECTORS: u64 = 256;
/// Requests that are drawn together for an interval, since neighbours are alike.
const BLOCK: usize = 50;
/// Repeats of an uncertainty.
pub const REPEATS_MAX: usize = 10_000;
/// A mechanism that a trace does not show stays, unless it makes simulated times so much worse.
const WORSE_MAX: f64 = 1.02;
/// And the mean of writes by no more than that part.
const MEAN_APART_MAX: f64 = 0.02;

/// What is known of the disk besides the trace.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evidence {
    /// Cylinders and microseconds of measured seeks.
    pub seeks: Option<Vec<(u64, f64)>>,
    pub specs: Specs,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Fitted {
    pub model: DiskModel,
    /// What the trace does not show, and what was taken instead.
    pub notes: Vec<String>,
}

/// A parameter with the interval that nine of ten repeats lie in.
#[derive(Clone, PartialEq, Debug)]
pub struct Interval {
    pub name: String,
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FitError {
    TooFew { requests: usize },
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FitError::TooFew { requests } => {
                write!(f, "{requests} requests are too few for a fit: at least {REQUESTS_MIN}")
            }
        }
    }
}

impl std::error::Error for FitError {}

pub fn fit(trace: &[Measured], evidence: &Evidence) -> Result<Fitted, FitError> {
    if trace.len() < REQUESTS_MIN {
        return Err(FitError::TooFew { requests: trace.len() });
    }
    let near = steps::near_sectors(&evidence.specs);
    let seen = seen::all(trace, near);
    let Core { mut model, mut notes, .. } = steps::core(&seen, evidence, None);
    model.write_back = write_back(&model, trace, &evidence.specs, &mut notes);
    Ok(Fitted { model, notes })
}

/// Where 90 % of the parameters lie that come of parts drawn from the trace with replacement.
pub fn uncertainty(
    trace: &[Measured],
    evidence: &Evidence,
    repeats: usize,
    seed: u64,
) -> Result<Vec<Interval>, FitError> {
    if trace.len() < REQUESTS_MIN {
        return Err(FitError::TooFew { requests: trace.len() });
    }
    let near = steps::near_sectors(&evidence.specs);
    let seen = seen::all(trace, near);
    // Times and boundaries of as many zones as there are, so that each is one number.
    let wanted = Some(steps::core(&seen, evidence, None).zones_found);
    let blocks: Vec<&[Seen]> = seen.chunks(BLOCK).collect();
    let mut names: Vec<(String, Vec<f64>)> = Vec::new();
    for repeat in 0..repeats.min(REPEATS_MAX) {
        let mut random = Stream::new(seed, repeat as u64);
        let draw = |_| blocks[random.below(blocks.len() as u64) as usize];
        let drawn: Vec<Seen> = (0..blocks.len()).flat_map(draw).copied().collect();
        let core = steps::core(&drawn, evidence, wanted);
        for (name, value) in scalars(&core.model) {
            match names.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => names.push((name, vec![value])),
            }
        }
    }
    let interval = |(name, mut values): (String, Vec<f64>)| {
        values.sort_by(f64::total_cmp);
        let [low, high] = [0.05, 0.95].map(|p| super::spread::quantile(&values, p));
        Interval { name, low, high }
    };
    Ok(names.into_iter().map(interval).collect())
}

/// What can be said with one number each.
pub fn scalars(model: &DiskModel) -> Vec<(String, f64)> {
    let cache = &model.cache;
    let mut all = vec![
        ("rotation-us".to_string(), model.rotation_us),
        ("cache.behind-sectors".to_string(), cache.behind_sectors as f64),
        ("cache.ahead-sectors".to_string(), cache.ahead_sectors as f64),
        ("cache.track-sectors".to_string(), cache.track_sectors as f64),
        ("cache.keep".to_string(), cache.keep),
        ("cache.keep-after-write".to_string(), cache.keep_after_write),
        ("cache.keep-written".to_string(), cache.keep_written),
    ];
    for (at, zone) in model.zones.all().iter().enumerate() {
        // The first one begins at 0.
        if at > 0 {
            all.push((format!("zone.{at}.first-sector"), zone.first_sector as f64));
        }
        all.push((format!("zone.{at}.sector-us"), zone.sector_us));
    }
    match &model.seek {
        super::Seek::Formula { root_us, linear_us, bend_sectors } => all.extend([
            ("seek.root-us".to_string(), *root_us),
            ("seek.linear-us".to_string(), *linear_us),
            ("seek.bend-sectors".to_string(), *bend_sectors),
        ]),
        super::Seek::Points { sectors_per_cylinder, .. } => {
            all.push(("seek.sectors-per-cylinder".to_string(), *sectors_per_cylinder));
        }
    }
    for class in super::Class::all() {
        if let Some(cost) = &model.costs[class.index()] {
            let name = class.name();
            all.push((format!("class.{name}.sector-us"), cost.sector_us));
            all.push((format!("class.{name}.media-share"), cost.media_share));
            all.push((format!("class.{name}.seek-share"), cost.seek_share));
            all.push((format!("class.{name}.wait-mean-us"), cost.wait.mean()));
        }
    }
    all
}

/// How many writes the buffer takes: the number that is specified, or the least that makes no write wait that did not.
fn write_back(model: &DiskModel, trace: &[Measured], specs: &Specs, notes: &mut Vec<String>) -> WriteBack {
    let segment_sectors = specs.segment_sectors.unwrap_or(SEGMENT_SECTORS);
    let with = |segments, reads_wait| WriteBack { segments, segment_sectors, reads_wait };
    if !steps::writes_are_buffered(model) {
        return with(0, false);
    }
    let judged = |write_back: WriteBack, direction: Direction| {
        let tried = DiskModel { write_back, ..model.clone() };
        let pairs = replay(&tried, trace, 0);
        let of_it = trace.iter().zip(pairs).filter(|(one, _)| one.request.direction == direction);
        score(&of_it.map(|(_, pair)| pair).collect::<Vec<_>>())
    };
    let unbounded = judged(with(0, false), Direction::Write);
    // Waits that the costs of writes hold already must not come twice.
    let fits = |score: Score| {
        let apart = (score.mean_error() - unbounded.mean_error()).abs();
        score.per_request <= unbounded.per_request * WORSE_MAX && apart <= MEAN_APART_MAX
    };
    let told = specs.write_segments.map(|told| told.min(SEGMENTS_MAX as u64) as usize);
    let tried = told.into_iter().chain([1, 2, 4, 8, 16, 32, SEGMENTS_MAX]);
    let fitting = tried.into_iter().find(|segments| fits(judged(with(*segments, false), Direction::Write)));
    let Some(segments) = fitting else {
        notes.push("writes take what they take, without a wait for room in the buffer: it is taken to be without end".into());
        return with(0, false);
    };
    if told != Some(segments) {
        notes.push(format!(
            "runs that the write buffer takes: {segments} is the least that fits; the gaps of the trace may hide more"
        ));
    }
    let [waits, goes_on] = [true, false].map(|waits| judged(with(segments, waits), Direction::Read));
    let reads_wait = waits.per_request <= goes_on.per_request * WORSE_MAX;
    with(segments, reads_wait)
}
