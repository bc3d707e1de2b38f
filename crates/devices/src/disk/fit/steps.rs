//! The fit, step by step.

use super::Evidence;
use super::media::{Media, Sample};
use super::seen::{Seen, ToRead};
use super::streams::{self, Streams};
use crate::Direction;
use crate::disk::spread::quantile;
use crate::disk::{
    CLASSES, CacheModel, Class, Cost, DiskModel, Kind, Place, SEGMENTS_MAX, Seek, Spread, WriteBack, Zones,
};
use crate::trace::specs::Specs;
use std::collections::BTreeMap;

/// Requests that a class needs to have a cost of its own.
pub(super) const CLASS_MIN: usize = 20;
/// Reads of a length that say what the fastest take, and far ones that give a seek curve.
const LENGTH_MIN: usize = 20;
const SEEKS_MIN: usize = 50;
/// Pairs of reads that give the buffer's rules.
const PAIRS_MIN: usize = 30;
/// Where no specification tells how large a cylinder is: of the smallest disks of the time of SCSI.
const NEAR_SECTORS: u64 = 1_024;
/// Of the spread of far reads: what a read from the buffer may take above the fastest ones.
const SLACK: f64 = 0.08;
/// The same, as times the middle half of the hits' spread, and what is left of it where these are all alike.
const SLACK_MIDDLES: f64 = 10.0;
const SLACK_LEAST: f64 = 0.1;
/// Steps of searches over track lengths, bends and cylinders.
const STEPS: usize = 48;
/// No outcome is taken to be impossible.
const CHANCE_MIN: f64 = 0.002;
/// Standard errors that a dependence is above nothing.
const SURE: f64 = 4.0;
/// Rounds of seek curve and platter, each with the other one taken away.
const ROUNDS: usize = 4;
/// What the platter's times have to take from the sum of squares of writes, by the variance, to be what they wait for.
const WRITES_GAIN_MIN: f64 = 16.0;
/// A slope counts when its standard error is so small a part of it.
const SLOPE_ERROR_MAX: f64 = 0.1;

/// All that needs no replay.
pub(super) struct Core {
    pub model: DiskModel,
    pub notes: Vec<String>,
    /// That times show; 0 where they show nothing of the platter.
    pub zones_found: usize,
}

pub(super) fn near_sectors(specs: &Specs) -> u64 {
    specs.sectors_per_cylinder.unwrap_or(NEAR_SECTORS)
}

/// A write that is far away does not wait for the arm.
pub(super) fn writes_are_buffered(model: &DiskModel) -> bool {
    let costs = Class::all().filter(|class| class.kind == Kind::Write && class.place == Place::Far);
    let shares: Vec<f64> =
        costs.filter_map(|class| model.costs[class.index()].as_ref()).map(|cost| cost.seek_share).collect();
    !shares.is_empty() && shares.iter().all(|share| *share < 0.5)
}

/// With so many zones found, where that is told.
pub(super) fn core(seen: &[Seen], evidence: &Evidence, wanted: Option<usize>) -> Core {
    let mut notes = Vec::new();
    let mut reads: Vec<&Seen> = seen.iter().filter(|one| one.request.direction == Direction::Read).collect();
    let only_writes = reads.len() < CLASS_MIN;
    if only_writes {
        notes.push(format!(
            "fewer than {CLASS_MIN} reads: arm and rotation are those of the writes, and reads are taken to be as these"
        ));
        reads = seen.iter().filter(|one| one.request.direction == Direction::Write).collect();
    }
    let fastest = fastest(&reads);
    if fastest.lengths < 2 {
        notes.push("requests are of one length: what a sector takes is not known, and taken as 0".into());
    }
    let slack = slack(&reads, &fastest);
    let streams = streams::streams(&reads, &fastest);
    let is_hit = |one: &Seen| {
        let was_there = one.place != Place::Far
            && (one.to_read.is_some() || one.in_written)
            && one.us < fastest.at(one) + slack;
        one.request.direction == Direction::Read && (was_there || streams.is_in(one, &fastest))
    };
    let cache = cache(&reads, &is_hit, &evidence.specs, &mut notes);
    let far: Vec<&Seen> = reads
        .iter()
        .copied()
        .filter(|one| one.place == Place::Far && one.from != one.request.sector)
        .collect();
    let misses: Vec<&Seen> = reads.iter().copied().filter(|one| !is_hit(one)).collect();
    // Without hits the fastest reads are the platter's.
    let buffer_us = if cache.segments == 0 { 0.0 } else { fastest.sector_us };
    let known = Known { evidence, wanted, only_writes };
    let (seek, media) = platter(&far, &misses, &streams, &fastest, buffer_us, &known, &mut notes);
    let transfer = Transfer { fastest: &fastest, media: media.as_ref(), streams: &streams };
    let costs = costs(seen, &is_hit, &seek, &transfer);
    let rotation_us = rotation(&costs);
    let zones_found = media.as_ref().map_or(0, |media| media.zones.all().len());
    let zones = zones(media, &cache, rotation_us, &fastest, &mut notes);
    let near_sectors = near_sectors(&evidence.specs);
    let write_back = WriteBack { segments: 0, segment_sectors: 0, reads_wait: false };
    let model = DiskModel { rotation_us, zones, near_sectors, seek, cache, write_back, costs };
    Core { model, notes, zones_found }
}

/// What a read takes at least, by its length.
pub(super) struct Fastest {
    base_us: f64,
    sector_us: f64,
    lengths: usize,
}

impl Fastest {
    pub fn at(&self, one: &Seen) -> f64 {
        self.of(one.request.sectors)
    }

    pub fn of(&self, sectors: u32) -> f64 {
        self.base_us + self.sector_us * f64::from(sectors)
    }
}

/// A line through the twentieth part that is fastest, of each length; of neighbouring lengths together where there are few
/// of each.
fn fastest(reads: &[&Seen]) -> Fastest {
    let mut of_length: BTreeMap<u32, Vec<f64>> = Default::default();
    reads.iter().for_each(|one| of_length.entry(one.request.sectors).or_default().push(one.us));
    let lengths = of_length.len();
    let mut groups: Vec<(f64, Vec<f64>)> = Vec::new();
    for (sectors, times) in of_length {
        let sum = f64::from(sectors) * times.len() as f64;
        match groups.last_mut().filter(|(_, group)| group.len() < LENGTH_MIN) {
            Some((sums, group)) => {
                *sums += sum;
                group.extend(times);
            }
            None => groups.push((sum, times)),
        }
    }
    let most = groups.iter().map(|(_, times)| times.len()).max().unwrap_or(0);
    let points: Vec<(f64, f64, f64)> = groups
        .into_iter()
        .filter(|(_, times)| times.len() >= LENGTH_MIN.min(most))
        .map(|(sums, mut times)| {
            times.sort_by(f64::total_cmp);
            (sums / times.len() as f64, quantile(&times, 0.05), times.len() as f64)
        })
        .collect();
    let line = line(&points);
    let sector_us = line.slope.max(0.0);
    let base_us = line.mean_y - sector_us * line.mean_x;
    Fastest { base_us, sector_us, lengths }
}

/// How far above the fastest a read may lie that came from the buffer. Misses that hardly had to turn lie there, too: the
/// closer hits lie together, the less room is left for these.
fn slack(reads: &[&Seen], fastest: &Fastest) -> f64 {
    let above = |of: &dyn Fn(&Seen) -> bool| {
        let mut above: Vec<f64> =
            reads.iter().filter(|one| of(one)).map(|one| one.us - fastest.at(one)).collect();
        above.sort_by(f64::total_cmp);
        above
    };
    let far = above(&|one| one.place == Place::Far);
    let all = if far.len() >= LENGTH_MIN { far } else { above(&|_| true) };
    let most = SLACK * (quantile(&all, 0.9) - quantile(&all, 0.1));
    let quick = above(&|one| one.place != Place::Far && one.us < fastest.at(one) + most);
    let middle = quantile(&quick, 0.75) - quantile(&quick, 0.25);
    most.min(SLACK_MIDDLES * middle + SLACK_LEAST * most)
}

/// What is known before.
struct Known<'a> {
    evidence: &'a Evidence,
    /// So many zones; 0 where times show nothing of the platter.
    wanted: Option<usize>,
    /// The requests are writes, which may go no further than the buffer.
    only_writes: bool,
}

/// What moves the bytes of a request.
struct Transfer<'a> {
    fastest: &'a Fastest,
    media: Option<&'a Media>,
    streams: &'a Streams,
}

/// How likely a read is covered by what the one before left.
fn covered(rule: &CacheModel, to: &ToRead) -> f64 {
    if to.ahead > rule.ahead_sectors || to.behind > rule.behind_sectors {
        return 0.0;
    }
    match rule.track_sectors {
        0 => 1.0,
        // Where in its track the first one lies is not known: all places are as likely.
        sectors => (1.0 - (to.span.saturating_sub(1)) as f64 / sectors as f64).max(0.0),
    }
}

fn cache(
    reads: &[&Seen],
    is_hit: &dyn Fn(&Seen) -> bool,
    specs: &Specs,
    notes: &mut Vec<String>,
) -> CacheModel {
    let near: Vec<(ToRead, bool)> = reads
        .iter()
        .filter(|one| one.place != Place::Far && !one.in_written)
        .filter_map(|one| one.to_read.map(|to| (to, is_hit(one))))
        .collect();
    let (after_write, pairs): (Vec<_>, Vec<_>) = near.into_iter().partition(|(to, _)| to.after_write);
    if pairs.len() < PAIRS_MIN || !pairs.iter().any(|(_, hit)| *hit) {
        notes.push("no reads from the disk's buffer are seen: it is taken to have none".into());
        return CacheModel::NONE;
    }
    let mut alike: BTreeMap<(ToRead, bool), f64> = BTreeMap::new();
    pairs.iter().for_each(|pair| *alike.entry(*pair).or_default() += 1.0);
    let mut rule = best_rule(&alike.into_iter().collect::<Vec<_>>());
    let farthest = pairs.iter().map(|(to, _)| to.ahead).max().unwrap_or(0);
    let is_open = rule.ahead_sectors >= farthest;
    // Farther than that nobody read; or a miss that was quick made it farther than a segment is long.
    if let Some(told) = specs.segment_sectors.filter(|told| is_open || rule.ahead_sectors > *told) {
        rule.ahead_sectors = told;
    }
    rule.segments = specs.segments.map_or(1, |told| told.min(SEGMENTS_MAX as u64) as usize);
    if specs.segments.is_none() {
        notes.push("segments of the buffer: 1 is taken; a specification (--specs) tells them".into());
    }
    let expected: f64 = after_write.iter().map(|(to, _)| covered(&rule, to)).sum();
    let hits = after_write.iter().filter(|(to, hit)| *hit && covered(&rule, to) > 0.0).count() as f64;
    if expected >= LENGTH_MIN as f64 {
        rule.keep_after_write = (hits / expected).min(1.0);
    }
    let written: Vec<bool> = reads.iter().filter(|one| one.in_written).map(|one| is_hit(one)).collect();
    if written.len() >= 5 {
        rule.keep_written = written.iter().filter(|hit| **hit).count() as f64 / written.len() as f64;
    } else {
        notes.push("no reads of what was just written: they are taken to go to the platter".into());
    }
    rule
}

/// The rule under which hits and misses are the most likely: one parameter after the other, from several beginnings.
fn best_rule(pairs: &[((ToRead, bool), f64)]) -> CacheModel {
    let distances = |of: fn(&ToRead) -> u64| {
        let mut all: Vec<u64> =
            pairs.iter().map(|((to, _), _)| of(to)).filter(|distance| *distance > 0).collect();
        all.sort_unstable();
        let mut some: Vec<u64> =
            all.iter().step_by(all.len() / STEPS + 1).chain(all.last()).copied().collect();
        some.insert(0, 0);
        some.dedup();
        some
    };
    let (aheads, behinds) = (distances(|to| to.ahead), distances(|to| to.behind));
    let tracks: Vec<u64> =
        std::iter::once(0).chain((0..STEPS).map(|n| (64.0 * 1.08f64.powi(n as i32)) as u64)).collect();
    let keeps: Vec<f64> = (1..=50).map(|n| f64::from(n) / 50.0).collect();
    let likelihood = |rule: &CacheModel| {
        let of = |((to, hit), count): &((ToRead, bool), f64)| {
            let chance = (rule.keep * covered(rule, to)).clamp(CHANCE_MIN, 1.0 - CHANCE_MIN);
            count * (if *hit { chance } else { 1.0 - chance }).ln()
        };
        pairs.iter().map(of).sum::<f64>()
    };
    let last = |all: &[u64]| all.last().copied().unwrap_or(0);
    let mut best: Option<(f64, CacheModel)> = None;
    for (behind_sectors, track_sectors) in [(0, 0), (0, 300), (last(&behinds), 0), (last(&behinds), 300)] {
        let begin = CacheModel {
            behind_sectors,
            track_sectors,
            ahead_sectors: last(&aheads),
            keep: 0.9,
            ..CacheModel::NONE
        };
        let mut now = (likelihood(&begin), begin);
        loop {
            let before = now.0;
            let better = |now: &mut (f64, CacheModel), rule: CacheModel| {
                let likely = likelihood(&rule);
                if likely > now.0 {
                    *now = (likely, rule);
                }
            };
            keeps.iter().for_each(|keep| {
                let rule = CacheModel { keep: *keep, ..now.1 };
                better(&mut now, rule)
            });
            aheads.iter().for_each(|at| {
                let rule = CacheModel { ahead_sectors: *at, ..now.1 };
                better(&mut now, rule)
            });
            behinds.iter().for_each(|at| {
                let rule = CacheModel { behind_sectors: *at, ..now.1 };
                better(&mut now, rule)
            });
            tracks.iter().for_each(|at| {
                let rule = CacheModel { track_sectors: *at, ..now.1 };
                better(&mut now, rule)
            });
            if now.0 <= before {
                break;
            }
        }
        if best.is_none_or(|(likely, _)| now.0 > likely) {
            best = Some(now);
        }
    }
    best.map_or(CacheModel::NONE, |(_, rule)| rule)
}

/// The seek curve, and what the platter gives: each is found with the other one taken away.
fn platter(
    far: &[&Seen],
    misses: &[&Seen],
    streams: &Streams,
    fastest: &Fastest,
    buffer_us: f64,
    known: &Known,
    notes: &mut Vec<String>,
) -> (Seek, Option<Media>) {
    let seek_of = |media: Option<&Media>| {
        let transfer = |one: &Seen| match media {
            Some(media) => media.zones.time_us(one.request.sector, one.request.end()),
            None => fastest.sector_us * f64::from(one.request.sectors),
        };
        let distance = |one: &Seen| distance(media, one);
        seek(far, &distance, &transfer, known.evidence)
    };
    let media_of = |seek: &Seek, before: Option<&Media>| {
        let sample = |one: &&Seen| {
            let (kind, seek_us) = match one.place {
                Place::Far => (0, seek.time_us(distance(before, one))),
                _ => (1, 0.0),
            };
            Sample::of(one, one.us - seek_us, Some(kind))
        };
        let samples: Vec<Sample> = misses.iter().map(sample).collect();
        streams.media(samples, buffer_us, known.wanted)
    };
    let mut seek = seek_of(None);
    if known.only_writes && !depends_on(&seek, far) {
        notes
            .push("far writes take as long as others: the buffer takes them, and the arm is not seen".into());
        return (Seek::Formula { root_us: 0.0, linear_us: 0.0, bend_sectors: 0.0 }, None);
    }
    let mut media = media_of(&seek, None);
    for _ in 0..ROUNDS {
        if media.is_none() {
            break;
        }
        seek = seek_of(media.as_ref());
        media = media_of(&seek, media.as_ref());
    }
    if far.len() < SEEKS_MIN {
        notes.push("too few far reads for a seek curve: all far requests are taken to be alike".into());
    }
    (seek, media)
}

/// What was found, or else what a track's length says.
fn zones(
    media: Option<Media>,
    cache: &CacheModel,
    rotation_us: f64,
    fastest: &Fastest,
    notes: &mut Vec<String>,
) -> Zones {
    let Some(media) = media else {
        notes
            .push("zones: one is taken, since times do not depend on the address more than by chance".into());
        if cache.track_sectors == 0 {
            let what = "sectors of a track cannot be seen: nothing is taken to wait for the platter to pass";
            notes.push(what.into());
            return Zones::even(0.0);
        }
        return Zones::even((rotation_us / cache.track_sectors as f64).min(fastest.sector_us));
    };
    if media.zones.all().len() == 1 {
        notes
            .push("zones: one is taken, since times do not depend on the address more than by chance".into());
    }
    if !media.lengths {
        let what =
            "reads from the platter are of one length: half a revolution is taken for what is no transfer";
        notes.push(what.into());
    }
    media.zones
}

/// Whether times depend on the distance by more than chance.
fn depends_on(seek: &Seek, far: &[&Seen]) -> bool {
    let points: Vec<_> = far.iter().map(|one| (seek.time_us(distance(None, one)), one.us, 1.0)).collect();
    let line = line(&points);
    line.slope > SURE * line.slope_error
}

/// The arm's way to a request.
fn distance(media: Option<&Media>, one: &Seen) -> u64 {
    match media {
        Some(media) => media.zones.distance(one.from, one.request.sector),
        None => one.request.sector.abs_diff(one.from),
    }
}

fn seek(
    far: &[&Seen],
    distance: &dyn Fn(&Seen) -> u64,
    transfer: &dyn Fn(&Seen) -> f64,
    evidence: &Evidence,
) -> Seek {
    let times: Vec<(u64, f64)> = far.iter().map(|one| (distance(one), one.us - transfer(one))).collect();
    if times.len() < SEEKS_MIN {
        return Seek::Formula { root_us: 0.0, linear_us: 0.0, bend_sectors: 0.0 };
    }
    match &evidence.seeks {
        Some(points) if !points.is_empty() => {
            let points: Vec<(f64, f64)> =
                points.iter().map(|(cylinders, us)| (*cylinders as f64, *us)).collect();
            scaled(points, &times, &evidence.specs)
        }
        _ => formula(&times),
    }
}

/// The measured curve, with the size of a cylinder that is specified or else fits best.
fn scaled(points: Vec<(f64, f64)>, times: &[(u64, f64)], specs: &Specs) -> Seek {
    if let Some(told) = specs.sectors_per_cylinder {
        return Seek::Points { sectors_per_cylinder: told as f64, points };
    }
    let farthest = times.iter().map(|(distance, _)| *distance).max().unwrap_or(1) as f64;
    let last = points.last().map_or(1.0, |(cylinders, _)| *cylinders);
    // The farthest request goes as far as twice the farthest measured seek, or a quarter of it.
    let error = |sectors_per_cylinder: f64| {
        let seek = Seek::Points { sectors_per_cylinder, points: points.clone() };
        let left: Vec<f64> = times.iter().map(|(distance, us)| us - seek.time_us(*distance)).collect();
        let mean = left.iter().sum::<f64>() / left.len() as f64;
        left.iter().map(|us| (us - mean) * (us - mean)).sum::<f64>()
    };
    let tried =
        (0..=STEPS).map(|step| (farthest / last * 0.5 * 8f64.powf(step as f64 / STEPS as f64)).max(1.0));
    let best = tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(1.0);
    Seek::Points { sectors_per_cylinder: best, points }
}

/// Least squares of a constant, a root up to a bend, and a line beyond, for the bend where they fit best. The constant
/// is the wait's.
fn formula(times: &[(u64, f64)]) -> Seek {
    let mut distances: Vec<f64> = times.iter().map(|(distance, _)| *distance as f64).collect();
    distances.sort_by(f64::total_cmp);
    let mut best = (f64::INFINITY, Seek::Formula { root_us: 0.0, linear_us: 0.0, bend_sectors: 0.0 });
    // The last bend is beyond all: no line.
    for step in 1..=20 {
        let bend_sectors = quantile(&distances, f64::from(step) / 20.0);
        let rows = times.iter().map(|(distance, us)| {
            let distance = *distance as f64;
            ([distance.min(bend_sectors).sqrt(), (distance - bend_sectors).max(0.0)], *us)
        });
        let rows: Vec<([f64; 2], f64)> = rows.collect();
        for slopes in [plane(&rows), plane_of_first(&rows)] {
            let [root_us, linear_us] = slopes;
            let left: Vec<f64> = rows.iter().map(|(x, y)| y - root_us * x[0] - linear_us * x[1]).collect();
            let mean = left.iter().sum::<f64>() / left.len() as f64;
            let error = left.iter().map(|us| (us - mean) * (us - mean)).sum::<f64>();
            if root_us >= 0.0 && linear_us >= 0.0 && error < best.0 {
                best = (error, Seek::Formula { root_us, linear_us, bend_sectors });
            }
        }
    }
    best.1
}

/// Slopes of the plane through points in two variables, by least squares.
fn plane(rows: &[([f64; 2], f64)]) -> [f64; 2] {
    let points: Vec<[f64; 3]> = rows.iter().map(|(x, y)| [x[0], x[1], *y]).collect();
    let means = [0, 1, 2].map(|of| points.iter().map(|point| point[of]).sum::<f64>() / points.len() as f64);
    let both = |a: usize, b: usize| {
        points.iter().map(|point| (point[a] - means[a]) * (point[b] - means[b])).sum::<f64>()
    };
    let (a, b, c, e, f) = (both(0, 0), both(0, 1), both(1, 1), both(0, 2), both(1, 2));
    let determinant = a * c - b * b;
    // Columns that are nearly the same, or a column of zeros, tell nothing of the second.
    if determinant <= 1e-9 * a * c {
        return plane_of_first(rows);
    }
    [(e * c - f * b) / determinant, (f * a - e * b) / determinant]
}

fn plane_of_first(rows: &[([f64; 2], f64)]) -> [f64; 2] {
    let points: Vec<(f64, f64, f64)> = rows.iter().map(|(x, y)| (x[0], *y, 1.0)).collect();
    [line(&points).slope.max(0.0), 0.0]
}

fn costs(
    seen: &[Seen],
    is_hit: &dyn Fn(&Seen) -> bool,
    seek: &Seek,
    transfer: &Transfer,
) -> [Option<Cost>; CLASSES] {
    let mut members: [Vec<&Seen>; CLASSES] = std::array::from_fn(|_| Vec::new());
    for one in seen {
        let kind = match one.request.direction {
            Direction::Write => Kind::Write,
            Direction::Read if is_hit(one) => Kind::ReadHit,
            Direction::Read => Kind::ReadMiss,
        };
        members[Class { kind, place: one.place, after: one.after }.index()].push(one);
    }
    let enough = |class: Class| members[class.index()].len() >= CLASS_MIN;
    // A trace of few requests of each class has at least one cost.
    let largest = Class::all().max_by_key(|class| members[class.index()].len());
    std::array::from_fn(|index| {
        let class = Class::all().nth(index).filter(|class| enough(*class) || Some(*class) == largest)?;
        cost(class, &members[index], seek, transfer)
    })
}

fn cost(class: Class, members: &[&Seen], seek: &Seek, transfer: &Transfer) -> Option<Cost> {
    // What a stream takes that waits for the platter is no cost of the buffer's.
    let own: Vec<&Seen> =
        members.iter().copied().filter(|one| !transfer.streams.is_in(one, transfer.fastest)).collect();
    if own.len() < CLASS_MIN && own.len() < members.len() {
        return Some(Cost {
            sector_us: 0.0,
            media_share: 0.0,
            seek_share: 0.0,
            wait: Spread::even(0.0, 0.0),
        });
    }
    let fastest_us = transfer.fastest.sector_us;
    let sloped = || {
        let points: Vec<_> = own.iter().map(|one| (f64::from(one.request.sectors), one.us, 1.0)).collect();
        let line = line(&points);
        let is_sure = line.slope > 0.0 && line.slope_error <= SLOPE_ERROR_MAX * line.slope;
        if is_sure { line.slope } else { fastest_us }
    };
    let of_buffer = |sector_us| Parts { sector_us, media: None };
    let of_platter = || transfer.media.map(|media| Parts { sector_us: 0.0, media: Some(&media.zones) });
    let tried = |parts: Parts| priced(class, &own, seek, transfer, &parts);
    match class.kind {
        // Rotation hides the slope.
        Kind::ReadMiss => tried(of_platter().unwrap_or(of_buffer(fastest_us))),
        Kind::ReadHit => tried(of_buffer(sloped())),
        Kind::Write => {
            // Those that wait for the platter vary less beside its times.
            let (buffer, platter) = (tried(of_buffer(sloped()))?, of_platter().and_then(tried));
            let is_better = |platter: &(Cost, f64)| {
                (buffer.1 - platter.1) * own.len() as f64 > WRITES_GAIN_MIN * platter.1
            };
            Some(platter.filter(is_better).unwrap_or(buffer))
        }
    }
    .map(|(cost, _)| cost)
}

/// What the bytes of a request take: a part for each sector, or what the platter takes.
struct Parts<'a> {
    sector_us: f64,
    media: Option<&'a Zones>,
}

/// With the variance of what is left for the wait.
fn priced(
    class: Class,
    members: &[&Seen],
    seek: &Seek,
    transfer: &Transfer,
    parts: &Parts,
) -> Option<(Cost, f64)> {
    let seek_of = |one: &Seen| match class.place {
        Place::Far => seek.time_us(distance(transfer.media, one)),
        _ => 0.0,
    };
    let left = |one: &Seen| {
        let media = parts.media.map_or(0.0, |zones| zones.time_us(one.request.sector, one.request.end()));
        one.us - parts.sector_us * f64::from(one.request.sectors) - media
    };
    let seek_share = match class.kind {
        Kind::ReadMiss => 1.0,
        Kind::ReadHit => 0.0,
        Kind::Write => {
            let points: Vec<_> = members.iter().map(|one| (seek_of(one), left(one), 1.0)).collect();
            let line = line(&points);
            if line.slope > 2.0 * line.slope_error { line.slope.min(1.5) } else { 0.0 }
        }
    };
    let mut waits: Vec<f64> = members.iter().map(|one| left(one) - seek_share * seek_of(one)).collect();
    let mean = waits.iter().sum::<f64>() / waits.len().max(1) as f64;
    let variance = waits.iter().map(|us| (us - mean) * (us - mean)).sum::<f64>() / waits.len().max(1) as f64;
    let media_share = if parts.media.is_some() { 1.0 } else { 0.0 };
    let wait = Spread::of(&mut waits)?;
    Some((Cost { sector_us: parts.sector_us, media_share, seek_share, wait }, variance))
}

/// A request that comes at any time waits for up to a revolution, each part of it as likely: twice what the middle half
/// of the waits spans.
fn rotation(costs: &[Option<Cost>; CLASSES]) -> f64 {
    let known = |kind: Kind, place: Place| {
        Class::all()
            .filter(move |class| class.kind == kind && class.place == place)
            .find_map(|class| costs[class.index()].as_ref())
    };
    let cost = known(Kind::ReadMiss, Place::Far).or_else(|| known(Kind::ReadMiss, Place::Near));
    // Writes that wait for the arm wait for the rotation, too.
    let cost = cost.or_else(|| known(Kind::Write, Place::Far).filter(|cost| cost.seek_share > 0.5));
    cost.map_or(0.0, |cost| 2.0 * (cost.wait.at(0.75) - cost.wait.at(0.25)))
}

pub(super) struct Line {
    pub slope: f64,
    pub slope_error: f64,
    mean_x: f64,
    mean_y: f64,
}

/// Least squares of (x, y, weight).
pub(super) fn line(points: &[(f64, f64, f64)]) -> Line {
    let weight = points.iter().map(|(_, _, weight)| weight).sum::<f64>().max(f64::MIN_POSITIVE);
    let mean = |of: fn(&(f64, f64, f64)) -> f64| {
        points.iter().map(|point| of(point) * point.2).sum::<f64>() / weight
    };
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let xx: f64 = points.iter().map(|(x, _, w)| w * (x - mean_x) * (x - mean_x)).sum();
    let xy: f64 = points.iter().map(|(x, y, w)| w * (x - mean_x) * (y - mean_y)).sum();
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    let left: f64 = points.iter().map(|(x, y, w)| w * (y - mean_y - slope * (x - mean_x)).powi(2)).sum();
    let freedom = (points.len() as f64 - 2.0).max(1.0);
    let slope_error = if xx > 0.0 { (left / freedom / xx).sqrt() } else { f64::INFINITY };
    Line { slope, slope_error, mean_x, mean_y }
}
