//! A disk model as a file: `docs/formats/27-disk-models.md`. All of it is looked at, and everything that is wrong is told.

mod table;

use super::fit::Interval;
use super::{
    CLASSES, CacheModel, Class, Cost, DiskModel, SEGMENTS_MAX, Seek, Spread, WriteBack, ZONES_MAX, Zone,
    Zones, seek, spread,
};
use crate::trace::{SECTOR_MAX, SPAN_US_MAX};
use std::fmt;
use table::Keys;
use toml::{Table, Value};

/// Bytes of a file.
pub const FILE_MAX: u64 = 16 << 20;
/// Of the format, and the oldest that is read: without zones.
const VERSION: i64 = 2;
const VERSION_OLDEST: i64 = 1;
/// Characters of a text, and texts.
const TEXT_MAX: usize = 1_000;
const NOTES_MAX: usize = 100;
const INTERVALS_MAX: usize = 1_000;

/// A model with where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskFile {
    pub model: DiskModel,
    /// Of what measurements it was fitted to.
    pub source: String,
    /// What these do not show.
    pub notes: Vec<String>,
    pub uncertainty: Vec<Interval>,
}

/// Everything that is wrong with a file, a line each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError(pub Vec<String>);

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for FileError {}

impl DiskFile {
    pub fn read(text: &str) -> Result<DiskFile, FileError> {
        if text.len() as u64 > FILE_MAX {
            return Err(FileError(vec![format!("more than {FILE_MAX} bytes: this is no disk model")]));
        }
        let table: Table =
            text.parse().map_err(|error: toml::de::Error| FileError(vec![error.to_string()]))?;
        let mut problems = Vec::new();
        let file = whole(&table, &mut problems);
        match file {
            Some(file) if problems.is_empty() => Ok(file),
            _ => Err(FileError(problems)),
        }
    }

    pub fn write(&self) -> String {
        let mut table = Table::new();
        table.insert("version".into(), VERSION.into());
        table.insert("kind".into(), "disk".into());
        table.insert("source".into(), self.source.clone().into());
        table.insert("notes".into(), Value::Array(self.notes.iter().cloned().map(Value::from).collect()));
        let model = &self.model;
        let disk = [
            ("rotation-us", model.rotation_us.into()),
            ("near-sectors", count(model.near_sectors)),
            ("zones", zones_value(&model.zones)),
        ];
        table.insert("disk".into(), of(disk));
        table.insert("seek".into(), seek_value(&model.seek));
        let cache = &model.cache;
        let keys = [
            ("segments", count(cache.segments as u64)),
            ("behind-sectors", count(cache.behind_sectors)),
            ("ahead-sectors", count(cache.ahead_sectors)),
            ("track-sectors", count(cache.track_sectors)),
            ("keep", cache.keep.into()),
            ("keep-after-write", cache.keep_after_write.into()),
            ("keep-written", cache.keep_written.into()),
        ];
        table.insert("cache".into(), of(keys));
        let write_back = [
            ("segments", count(model.write_back.segments as u64)),
            ("segment-sectors", count(model.write_back.segment_sectors)),
            ("reads-wait", model.write_back.reads_wait.into()),
        ];
        table.insert("write-back".into(), of(write_back));
        let costs = Class::all().filter_map(|class| {
            let cost = model.costs[class.index()].as_ref()?;
            let waits = cost.wait.knots().iter().map(|us| Value::from(*us)).collect();
            let keys = [
                ("sector-us", cost.sector_us.into()),
                ("media-share", cost.media_share.into()),
                ("seek-share", cost.seek_share.into()),
                ("wait-us", Value::Array(waits)),
            ];
            Some((class.name(), of(keys)))
        });
        table.insert("class".into(), Value::Table(costs.collect()));
        let intervals = self.uncertainty.iter().map(|interval| {
            (interval.name.clone(), Value::Array(vec![interval.low.into(), interval.high.into()]))
        });
        table.insert("uncertainty".into(), Value::Table(intervals.collect()));
        table.to_string()
    }
}

fn of<const N: usize>(keys: [(&str, Value); N]) -> Value {
    Value::Table(keys.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
}

fn count(count: u64) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

fn zones_value(zones: &Zones) -> Value {
    let pair = |zone: &Zone| Value::Array(vec![count(zone.first_sector), zone.sector_us.into()]);
    Value::Array(zones.all().iter().map(pair).collect())
}

fn seek_value(seek: &Seek) -> Value {
    match seek {
        Seek::Formula { root_us, linear_us, bend_sectors } => of([
            ("root-us", (*root_us).into()),
            ("linear-us", (*linear_us).into()),
            ("bend-sectors", (*bend_sectors).into()),
        ]),
        Seek::Points { sectors_per_cylinder, points } => {
            let pair = |(at, us): &(f64, f64)| Value::Array(vec![(*at).into(), (*us).into()]);
            of([
                ("sectors-per-cylinder", (*sectors_per_cylinder).into()),
                ("points", Value::Array(points.iter().map(pair).collect())),
            ])
        }
    }
}

fn whole(table: &Table, problems: &mut Vec<String>) -> Option<DiskFile> {
    let mut keys = Keys::new("", table, problems);
    let version = keys.number("version", f64::MIN, f64::MAX);
    let kind = keys.text("kind", TEXT_MAX);
    let known = [VERSION_OLDEST, VERSION].map(|version| version as f64);
    if version.is_some_and(|version| !known.contains(&version)) {
        keys.wrong("version", "1 and 2 are what this program reads");
    }
    let has_zones = version != Some(VERSION_OLDEST as f64);
    if kind.as_deref().is_some_and(|kind| kind != "disk") {
        keys.wrong("kind", "'disk' is expected");
    }
    let source = keys.text("source", TEXT_MAX);
    let notes = keys.texts("notes", NOTES_MAX, TEXT_MAX);
    let [disk, seek, cache, write_back, class, uncertainty] =
        ["disk", "seek", "cache", "write-back", "class", "uncertainty"].map(|name| keys.table(name));
    keys.end();
    let disk = disk.and_then(|disk| {
        let mut keys = Keys::new("disk", disk, problems);
        let read = (
            keys.number("rotation-us", 0.0, SPAN_US_MAX),
            if has_zones {
                read_zones(&mut keys)
            } else {
                keys.number("media-sector-us", 0.0, SPAN_US_MAX).map(Zones::even)
            },
            keys.count("near-sectors", SECTOR_MAX),
        );
        keys.end();
        Some((read.0?, read.1?, read.2?))
    });
    let seek = seek.and_then(|table| read_seek(table, problems));
    let cache = cache.and_then(|table| read_cache(table, problems));
    let write_back = write_back.and_then(|table| read_write_back(table, problems));
    let costs = class.and_then(|table| read_costs(table, has_zones, problems));
    let uncertainty = uncertainty.and_then(|table| read_intervals(table, problems));
    let (rotation_us, zones, near_sectors) = disk?;
    let (seek, cache, write_back, costs) = (seek?, cache?, write_back?, costs?);
    let model = DiskModel { rotation_us, zones, near_sectors, seek, cache, write_back, costs };
    Some(DiskFile { model, source: source?, notes: notes?, uncertainty: uncertainty? })
}

fn read_zones(keys: &mut Keys) -> Option<Zones> {
    let pairs = keys.pairs("zones", ZONES_MAX)?;
    let of = |(first, us): &(f64, f64)| {
        let is_sector = first.fract() == 0.0 && (0.0..=SECTOR_MAX as f64).contains(first);
        let fits = is_sector && *us <= SPAN_US_MAX;
        fits.then_some(Zone { first_sector: *first as u64, sector_us: *us })
    };
    let zones = pairs.iter().map(of).collect::<Option<_>>().and_then(Zones::new);
    if zones.is_none() {
        keys.wrong("zones", "pairs of a first sector, from 0 on and rising, and microseconds of at least 0");
    }
    zones
}

fn read_seek(table: &Table, problems: &mut Vec<String>) -> Option<Seek> {
    let mut keys = Keys::new("seek", table, problems);
    if !table.contains_key("points") {
        let root_us = keys.number("root-us", 0.0, SPAN_US_MAX);
        let linear_us = keys.number("linear-us", 0.0, SPAN_US_MAX);
        let bend_sectors = keys.number("bend-sectors", 0.0, SECTOR_MAX as f64);
        keys.end();
        return Some(Seek::Formula { root_us: root_us?, linear_us: linear_us?, bend_sectors: bend_sectors? });
    }
    let sectors_per_cylinder = keys.number("sectors-per-cylinder", 1.0, SECTOR_MAX as f64);
    let points = keys.pairs("points", seek::POINTS_MAX);
    let rising = |points: &Vec<(f64, f64)>| {
        let first = points.first().is_some_and(|(at, _)| *at > 0.0);
        let fits = points.iter().all(|(at, us)| *at <= SECTOR_MAX as f64 && (0.0..=SPAN_US_MAX).contains(us));
        first && fits && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
    };
    if points.as_ref().is_some_and(|points| !rising(points)) {
        keys.wrong("points", "pairs of cylinders, above 0 and rising, and microseconds of at least 0");
    }
    keys.end();
    Some(Seek::Points { sectors_per_cylinder: sectors_per_cylinder?, points: points? })
}

fn read_cache(table: &Table, problems: &mut Vec<String>) -> Option<CacheModel> {
    let mut keys = Keys::new("cache", table, problems);
    let segments = keys.count("segments", SEGMENTS_MAX as u64);
    let [behind, ahead, track] =
        ["behind-sectors", "ahead-sectors", "track-sectors"].map(|name| keys.count(name, SECTOR_MAX));
    let [keep, after_write, written] =
        ["keep", "keep-after-write", "keep-written"].map(|name| keys.number(name, 0.0, 1.0));
    keys.end();
    Some(CacheModel {
        segments: segments? as usize,
        behind_sectors: behind?,
        ahead_sectors: ahead?,
        track_sectors: track?,
        keep: keep?,
        keep_after_write: after_write?,
        keep_written: written?,
    })
}

fn read_write_back(table: &Table, problems: &mut Vec<String>) -> Option<WriteBack> {
    let mut keys = Keys::new("write-back", table, problems);
    let segments = keys.count("segments", SEGMENTS_MAX as u64);
    let segment_sectors = keys.count("segment-sectors", SECTOR_MAX);
    let reads_wait = keys.flag("reads-wait");
    keys.end();
    Some(WriteBack {
        segments: segments? as usize,
        segment_sectors: segment_sectors?,
        reads_wait: reads_wait?,
    })
}

fn read_costs(table: &Table, has_zones: bool, problems: &mut Vec<String>) -> Option<[Option<Cost>; CLASSES]> {
    let mut costs = [const { None }; CLASSES];
    let mut names = Keys::new("class", table, problems);
    let found: Vec<(Class, Option<&Table>)> = Class::all()
        .filter(|class| table.contains_key(&class.name()))
        .map(|class| (class, names.table(&class.name())))
        .collect();
    Class::all().for_each(|class| names.known(&class.name()));
    if found.is_empty() {
        names.wrong("class", "the cost of at least one class is needed");
    }
    names.end();
    for (class, of_class) in found {
        let place = format!("class.{}", class.name());
        let mut keys = Keys::new(&place, of_class?, problems);
        let sector_us = keys.number("sector-us", 0.0, SPAN_US_MAX);
        let media_share = if has_zones { keys.number("media-share", 0.0, 10.0) } else { Some(0.0) };
        let seek_share = keys.number("seek-share", 0.0, 10.0);
        let wait = keys.numbers("wait-us", spread::KNOTS_MAX);
        let fits = |knots: &Vec<f64>| knots.iter().all(|us| us.abs() <= SPAN_US_MAX);
        let spread = wait.clone().filter(fits).and_then(Spread::new);
        if wait.is_some() && spread.is_none() {
            keys.wrong("wait-us", "1 to 1001 rising numbers");
        }
        keys.end();
        costs[class.index()] = Some(Cost {
            sector_us: sector_us?,
            media_share: media_share?,
            seek_share: seek_share?,
            wait: spread?,
        });
    }
    Some(costs)
}

fn read_intervals(table: &Table, problems: &mut Vec<String>) -> Option<Vec<Interval>> {
    let mut keys = Keys::new("uncertainty", table, problems);
    if table.len() > INTERVALS_MAX {
        keys.wrong("uncertainty", "at most 1000 parameters");
        return None;
    }
    let mut all = Vec::new();
    for name in table.keys() {
        match keys.numbers(name, 2).as_deref() {
            Some([low, high]) if low <= high => {
                all.push(Interval { name: name.clone(), low: *low, high: *high });
            }
            Some(_) => keys.wrong(name, "two numbers, the smaller one first"),
            None => {}
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests;
