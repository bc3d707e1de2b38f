//! Streams: reads that go on where the last one ended, so close together that the platter is what they wait for. Such a
//! request ends when its last sector has passed, so its time and the gap before it are together what its sectors take.

use super::media::{Media, Sample, media};
use super::seen::Seen;
use super::steps::{Fastest, line};
use crate::disk::spread::quantile;

/// Requests that tell of a stream.
const REQUESTS_MIN: usize = 50;
/// Above the fastest ones of its length a read has waited for something.
const WAITED: f64 = 1.15;
/// Where all have waited: reads in a row before one that has nothing left of what was read ahead while there was time.
const STREAK_MIN: u32 = 4;
/// Times of sectors that belong together: zones differ by less, and a lost revolution is more.
const ALIKE: std::ops::RangeInclusive<f64> = 0.5..=1.8;
/// A request that waits for the platter is shorter by the gap before it.
const SLOPE: std::ops::RangeInclusive<f64> = -1.3..=-0.7;
const SLOPE_ERROR_MAX: f64 = 0.1;
/// Gaps that are so small a part of the times tell nothing.
const NO_GAPS: f64 = 0.02;

pub(super) struct Streams {
    samples: Vec<Sample>,
    /// They wait for the platter; else the buffer or the bus may be what they take.
    of_platter: bool,
    /// All of them do, as far as is seen.
    always: bool,
    /// What a sector takes about.
    sector_us: f64,
}

/// It went on, and took longer than a read has to.
fn waited(one: &Seen, fastest: &Fastest) -> bool {
    one.streak > 0 && one.us > WAITED * fastest.at(one)
}

pub(super) fn streams(reads: &[&Seen], fastest: &Fastest) -> Streams {
    // Two in a row: the first one's end is when its last sector had passed.
    let in_turn = |one: &&Seen| {
        let before = fastest.of(one.before.0);
        one.streak > 1 && waited(one, fastest) && one.before.1 > WAITED * before
    };
    let mut own: Vec<&Seen> = reads.iter().copied().filter(in_turn).collect();
    let always = own.len() < REQUESTS_MIN;
    if always {
        own = reads.iter().copied().filter(|one| one.streak >= STREAK_MIN).collect();
    }
    let sector = |one: &Seen| (one.us + one.gap_us) / f64::from(one.request.sectors);
    let mut sectors: Vec<f64> = own.iter().map(|one| sector(one)).collect();
    sectors.sort_by(f64::total_cmp);
    let sector_us = quantile(&sectors, 0.5);
    own.retain(|one| ALIKE.contains(&(sector(one) / sector_us)));
    if own.len() < REQUESTS_MIN {
        return Streams { samples: Vec::new(), of_platter: false, always, sector_us };
    }
    let samples: Vec<Sample> = own.iter().map(|one| Sample::of(one, one.us + one.gap_us, None)).collect();
    let gaps: f64 = own.iter().map(|one| one.gap_us).sum();
    let of_platter = if gaps < NO_GAPS * own.iter().map(|one| one.us).sum::<f64>() {
        // Without gaps it is the platter if the address tells, as no bus does.
        media(&samples, 0.0, None).is_some_and(|media| media.zones.all().len() > 1)
    } else {
        let left = |one: &&Seen| (one.gap_us, one.us - sector_us * f64::from(one.request.sectors), 1.0);
        let line = line(&own.iter().map(left).collect::<Vec<_>>());
        SLOPE.contains(&line.slope) && line.slope_error <= SLOPE_ERROR_MAX
    };
    Streams { samples, of_platter, always, sector_us }
}

impl Streams {
    /// Whether a request is one that waited for the platter because of a stream.
    pub fn is_in(&self, one: &Seen, fastest: &Fastest) -> bool {
        let most = ALIKE.end() * self.sector_us * f64::from(one.request.sectors);
        let waits = if self.always { one.streak >= STREAK_MIN } else { waited(one, fastest) };
        self.of_platter && waits && one.us + one.gap_us <= most
    }

    /// What the platter takes, by requests that missed the buffer and by streams.
    pub fn media(&self, misses: Vec<Sample>, buffer_us: f64, wanted: Option<usize>) -> Option<Media> {
        if !self.of_platter {
            return media(&misses, buffer_us, wanted);
        }
        media(&[misses, self.samples.clone()].concat(), buffer_us, wanted)
    }
}
