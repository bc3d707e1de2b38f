//! The header of a log: what the Standard Workload Format has there, typed. Other formats carry the same words.

use crate::repairs::Repairs;
use crate::table::{KIB_MAX, Names, Numbered, PROCESSORS_MAX, SECONDS_MAX};
use std::fmt::Write;

/// Lines of text that are kept; numbers are read on.
pub const LINES_MAX: usize = 10_000;
/// Characters of a word before a colon that can be a header's name.
const NAME_MAX: usize = 32;
const HOUR_S: i64 = 3600;
const DAY_S: i64 = 24 * HOUR_S;
/// Time zones are whole quarters of an hour.
const ZONE_STEP_S: i64 = 900;
/// The easternmost time zone.
const ZONE_MAX_S: i64 = 14 * HOUR_S;

/// How jobs are interrupted for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preemption {
    No,
    Yes,
    /// Jobs may be in the log twice: in parts and as a whole.
    Double,
    /// Time slices, of which the log says nothing.
    TimeSlices,
}

impl Preemption {
    const ALL: [(&'static str, Preemption); 4] = [
        ("No", Preemption::No),
        ("Yes", Preemption::Yes),
        ("Double", Preemption::Double),
        ("TS", Preemption::TimeSlices),
    ];
}

/// What a header does not say is none. Times are seconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    pub version: Option<String>,
    pub computer: Option<String>,
    pub installation: Option<String>,
    pub acknowledge: Vec<String>,
    pub information: Vec<String>,
    pub conversion: Vec<String>,
    pub max_jobs: Option<u64>,
    pub max_records: Option<u64>,
    pub preemption: Option<Preemption>,
    /// To which the times of jobs are added: since 1970, UTC. Where a log knows only local times, since 1970 there.
    pub unix_start_s: Option<u64>,
    /// East of UTC.
    pub time_zone_s: Option<i32>,
    pub time_zone: Option<String>,
    /// Local time, in words.
    pub start_time: Option<String>,
    pub end_time: Option<String>,
    pub max_nodes: Option<u32>,
    pub max_procs: Option<u32>,
    pub max_runtime_s: Option<u64>,
    pub max_memory_kib: Option<u64>,
    /// Whether jobs may use more than they requested.
    pub allow_overuse: Option<bool>,
    pub max_queues: Option<u32>,
    pub queues: Option<String>,
    pub max_partitions: Option<u32>,
    pub partitions: Option<String>,
    /// Also what stands behind numbers, and lines without a name.
    pub notes: Vec<String>,
    /// Names that the standard does not have.
    pub unknown: Vec<(String, String)>,
}

/// What follows a name.
enum Place<'a> {
    /// The first counts.
    Text(&'a mut Option<String>),
    Texts(&'a mut Vec<String>),
    Count(&'a mut Option<u32>, u32),
    Number(&'a mut Option<u64>, u64),
    Zone(&'a mut Option<i32>),
    Preemption(&'a mut Option<Preemption>),
    Bool(&'a mut Option<bool>),
    /// A number, and what it stands for.
    Named(&'a mut Numbered),
}

/// Reads a header line by line, since some go on in the next one.
#[derive(Default)]
pub(crate) struct Reader {
    pub header: Header,
    pub names: Names,
    /// The name whose text the next line may go on with.
    open: Option<String>,
    kept: usize,
}

impl Reader {
    /// The line without its semicolon.
    pub fn line(&mut self, comment: &str, repairs: &mut Repairs) {
        let text = comment.trim();
        if text.is_empty() {
            self.open = None;
            return;
        }
        if let Some((name, value)) = split(text)
            && self.place(name).is_some()
        {
            self.open = None;
            self.known(name, value.trim(), repairs);
            return;
        }
        self.kept += 1;
        if self.kept > LINES_MAX {
            return;
        }
        let inside = comment.starts_with("  ") || comment.starts_with('\t');
        if inside && self.go_on(text) {
            return;
        }
        self.open = None;
        match split(text) {
            Some((name, value)) => {
                repairs.header_unknown += 1;
                self.header.unknown.push((name.to_string(), value.trim().to_string()));
            }
            None => self.header.notes.push(text.to_string()),
        }
    }

    /// Adds a line to the text before it.
    fn go_on(&mut self, text: &str) -> bool {
        let Some(name) = self.open.clone() else { return false };
        let before = match self.place(&name) {
            Some(Place::Text(Some(place))) => place,
            Some(Place::Texts(places)) if !places.is_empty() => places.last_mut().expect("it is not empty"),
            _ => return false,
        };
        before.push('\n');
        before.push_str(text);
        true
    }

    fn place(&mut self, name: &str) -> Option<Place<'_>> {
        let header = &mut self.header;
        Some(match name.to_ascii_lowercase().as_str() {
            "version" => Place::Text(&mut header.version),
            "computer" => Place::Text(&mut header.computer),
            "installation" => Place::Text(&mut header.installation),
            "acknowledge" => Place::Texts(&mut header.acknowledge),
            "information" => Place::Texts(&mut header.information),
            "conversion" => Place::Texts(&mut header.conversion),
            "maxjobs" => Place::Number(&mut header.max_jobs, u64::MAX),
            "maxrecords" => Place::Number(&mut header.max_records, u64::MAX),
            "preemption" => Place::Preemption(&mut header.preemption),
            "unixstarttime" => Place::Number(&mut header.unix_start_s, SECONDS_MAX),
            "timezone" => Place::Zone(&mut header.time_zone_s),
            "timezonestring" => Place::Text(&mut header.time_zone),
            "starttime" => Place::Text(&mut header.start_time),
            "endtime" => Place::Text(&mut header.end_time),
            "maxnodes" => Place::Count(&mut header.max_nodes, PROCESSORS_MAX),
            "maxprocs" => Place::Count(&mut header.max_procs, PROCESSORS_MAX),
            "maxruntime" => Place::Number(&mut header.max_runtime_s, SECONDS_MAX),
            "maxmemory" => Place::Number(&mut header.max_memory_kib, KIB_MAX),
            "allowoveruse" => Place::Bool(&mut header.allow_overuse),
            "maxqueues" => Place::Count(&mut header.max_queues, u32::MAX),
            "queues" => Place::Text(&mut header.queues),
            "queue" => Place::Named(&mut self.names.queues),
            "maxpartitions" => Place::Count(&mut header.max_partitions, u32::MAX),
            "partitions" => Place::Text(&mut header.partitions),
            "partition" => Place::Named(&mut self.names.partitions),
            "note" => Place::Texts(&mut header.notes),
            _ => return None,
        })
    }

    fn known(&mut self, name: &str, value: &str, repairs: &mut Repairs) {
        self.kept += 1;
        let room = self.kept <= LINES_MAX;
        let Some(place) = self.place(name) else { return };
        let mut remark = None;
        let good = match place {
            Place::Text(place) => {
                place.get_or_insert_with(|| value.to_string());
                self.open = Some(name.to_string());
                true
            }
            Place::Texts(places) => {
                if room {
                    places.push(value.to_string());
                }
                self.open = room.then(|| name.to_string());
                true
            }
            Place::Count(place, most) => {
                let (number, rest) = number(value);
                remark = rest;
                let number = number.and_then(|number| u32::try_from(number).ok());
                let number = number.filter(|number| (1..=most).contains(number));
                *place = place.or(number);
                number.is_some()
            }
            Place::Number(place, most) => {
                let (number, rest) = number(value);
                remark = rest;
                let number = number.filter(|number| *number <= most);
                *place = place.or(number);
                number.is_some()
            }
            Place::Zone(place) => {
                let zone = value.split_ascii_whitespace().next().and_then(|word| word.parse::<i32>().ok());
                let zone = zone.filter(|zone| i64::from(*zone).abs() <= ZONE_MAX_S);
                *place = place.or(zone);
                zone.is_some()
            }
            Place::Preemption(place) => {
                let is = |(word, _): &&(&str, Preemption)| value.eq_ignore_ascii_case(word);
                let found = Preemption::ALL.iter().find(is).map(|(_, preemption)| *preemption);
                *place = place.or(found);
                found.is_some()
            }
            Place::Bool(place) => {
                let found = match value.to_ascii_lowercase().as_str() {
                    "yes" | "true" => Some(true),
                    "no" | "false" => Some(false),
                    _ => None,
                };
                *place = place.or(found);
                found.is_some()
            }
            Place::Named(names) => {
                let (number, rest) = number(value);
                let number = number.and_then(|number| u32::try_from(number).ok());
                if let (Some(number), Some(rest), true) = (number, rest, room) {
                    names.entry(number).or_insert(rest);
                }
                number.is_some()
            }
        };
        repairs.header_unreadable += u64::from(!good);
        if let (Some(_), true) = (remark, room) {
            self.header.notes.push(format!("{name}: {value}"));
        }
    }
}

/// A name, a colon, and what follows.
fn split(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(':')?;
    let name = name.trim_end();
    let word =
        !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (word && !value.starts_with("//")).then_some((name, value))
}

/// The number at the beginning, and what follows.
fn number(value: &str) -> (Option<u64>, Option<String>) {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let rest = value[digits..].trim();
    (value[..digits].parse().ok(), (!rest.is_empty()).then(|| rest.to_string()))
}

impl Header {
    /// What local clocks were ahead of UTC by, in winter or at the log's beginning: hours of the day are told by it. Where the
    /// header says no zone, its beginning in local time tells.
    pub fn local_offset_s(&self) -> Option<i64> {
        if let Some(zone) = self.time_zone_s {
            return Some(zone.into());
        }
        let words = self.start_time.as_ref()?.split_ascii_whitespace();
        let clock = words.filter_map(clock).next()?;
        let utc = (self.unix_start_s? % DAY_S as u64) as i64;
        let ahead = (clock - utc + DAY_S + ZONE_STEP_S / 2).rem_euclid(DAY_S) / ZONE_STEP_S * ZONE_STEP_S;
        Some(if ahead > ZONE_MAX_S { ahead - DAY_S } else { ahead })
    }

    /// As names and values, in the standard's order; what spans lines has them.
    pub fn lines(&self, names: &Names) -> Vec<(String, String)> {
        let mut lines: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            lines.extend(value.map(|value| (name.to_string(), value)));
        };
        fn shown<T: ToString>(value: Option<T>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        add("Version", self.version.clone());
        add("Computer", self.computer.clone());
        add("Installation", self.installation.clone());
        self.acknowledge.iter().for_each(|text| add("Acknowledge", Some(text.clone())));
        self.information.iter().for_each(|text| add("Information", Some(text.clone())));
        self.conversion.iter().for_each(|text| add("Conversion", Some(text.clone())));
        add("MaxJobs", shown(self.max_jobs));
        add("MaxRecords", shown(self.max_records));
        let preemption = |one| Preemption::ALL.iter().find(|(_, other)| *other == one);
        add("Preemption", self.preemption.and_then(preemption).map(|(word, _)| word.to_string()));
        add("UnixStartTime", shown(self.unix_start_s));
        add("TimeZone", shown(self.time_zone_s));
        add("TimeZoneString", self.time_zone.clone());
        add("StartTime", self.start_time.clone());
        add("EndTime", self.end_time.clone());
        add("MaxNodes", shown(self.max_nodes));
        add("MaxProcs", shown(self.max_procs));
        add("MaxRuntime", shown(self.max_runtime_s));
        add("MaxMemory", shown(self.max_memory_kib));
        add("AllowOveruse", self.allow_overuse.map(|yes| if yes { "Yes" } else { "No" }.to_string()));
        add("MaxQueues", shown(self.max_queues));
        add("Queues", self.queues.clone());
        names.queues.iter().for_each(|(number, name)| add("Queue", Some(format!("{number} {name}"))));
        add("MaxPartitions", shown(self.max_partitions));
        add("Partitions", self.partitions.clone());
        names.partitions.iter().for_each(|(number, name)| add("Partition", Some(format!("{number} {name}"))));
        self.notes.iter().for_each(|text| add("Note", Some(text.clone())));
        self.unknown.iter().for_each(|(name, text)| add(name, Some(text.clone())));
        lines
    }

    /// As comments; further lines of a text stand further in.
    pub(crate) fn comments(&self, names: &Names, mark: char) -> String {
        let mut out = String::new();
        for (name, value) in self.lines(names) {
            let _ = writeln!(out, "{mark} {name}: {}", value.replace('\n', &format!("\n{mark}   ")));
        }
        out
    }
}

/// `14:00:31` as seconds of the day.
fn clock(word: &str) -> Option<i64> {
    let mut parts = word.split(':').map(|part| part.parse::<i64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let good = parts.next().is_none()
        && (0..24).contains(&hours)
        && (0..60).contains(&minutes)
        && (0..=60).contains(&seconds);
    good.then_some(hours * HOUR_S + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (Reader, Repairs) {
        let (mut reader, mut repairs) = (Reader::default(), Repairs::default());
        text.lines().for_each(|line| reader.line(line.trim_start_matches(';'), &mut repairs));
        (reader, repairs)
    }

    const WHOLE: &str = "\
; Version: 2.2
; Computer: IBM SP2
; Installation: Somewhere
; Acknowledge: Somebody
; Information: http://example.org/
;              http://example.org/more
; Conversion: by hand
; MaxJobs: 100
; MaxRecords: 90
; Preemption: TS
; UnixStartTime: 843480031
; TimeZone: 3600
; TimeZoneString: Europe/Stockholm
; StartTime: Mon Sep 23 14:00:31 CEST 1996
; EndTime:   Fri Aug 29 10:55:01 CEST 1997
; MaxNodes: 338 (batch partition; 512 total)
; MaxProcs: 400
; MaxRuntime: 64800
; MaxMemory: 131072
; AllowOveruse: Yes
; MaxQueues: 2
; Queues: classes
; Queue:  1 DSI
; Queue:  2 astro
; MaxPartitions: 1
; Partitions: one
; Partition:  1  DEFAULT
; Note: a filter
;         user=135
; Weather: fine
";

    #[test]
    fn every_word_of_the_standard_is_read_and_written() {
        let (reader, repairs) = of(WHOLE);
        let header = &reader.header;
        assert_eq!(repairs, Repairs { header_unknown: 1, ..Repairs::default() });
        assert_eq!((header.max_nodes, header.max_procs), (Some(338), Some(400)));
        assert_eq!(header.information, ["http://example.org/\nhttp://example.org/more"]);
        assert_eq!(header.preemption, Some(Preemption::TimeSlices));
        assert_eq!((header.max_runtime_s, header.max_memory_kib), (Some(64_800), Some(131_072)));
        assert_eq!((header.allow_overuse, header.time_zone_s), (Some(true), Some(3600)));
        assert_eq!((header.max_jobs, header.max_records), (Some(100), Some(90)));
        assert_eq!(header.notes, ["MaxNodes: 338 (batch partition; 512 total)", "a filter\nuser=135"]);
        assert_eq!(header.unknown, [("Weather".to_string(), "fine".to_string())]);
        assert_eq!(reader.names.queues[&2], "astro");
        // 25 words of the standard, Note and Queue twice, and what is unknown.
        assert_eq!(header.lines(&reader.names).len(), 29);
        let (again, _) = of(&header.comments(&reader.names, ';'));
        assert_eq!((&again.header, &again.names), (header, &reader.names));
    }

    #[test]
    fn odd_values_are_counted_and_odd_lines_kept() {
        let text = ";\n;   --- converted ---\n; MaxProcs: many\n; maxprocs : 7\n; MaxNodes: 0\n; Preemption: perhaps\n\
                    ; TimeZone: UTC\n; UnixStartTime: 99999999999999999999\n; Queue: x\n; Queue: 5\n; see http://a.b/\n; MaxProcs: 9\n";
        let (reader, repairs) = of(text);
        assert_eq!(repairs, Repairs { header_unreadable: 6, ..Repairs::default() });
        assert_eq!(reader.header.max_procs, Some(7));
        assert_eq!(reader.header.notes, ["--- converted ---", "MaxProcs: many", "see http://a.b/"]);
        assert!(reader.names.queues.is_empty());
        let (long, _) = of(&"; Note: x\n; free\n".repeat(LINES_MAX));
        assert_eq!(long.header.notes.len(), LINES_MAX);
    }

    #[test]
    fn hours_are_those_of_the_place() {
        let zone = |text: &str| of(text).0.header.local_offset_s();
        assert_eq!(zone("; TimeZone: -18000\n"), Some(-18_000));
        let start = "; UnixStartTime: 843480031\n; StartTime: Mon Sep 23 14:00:31 CEST 1996\n";
        assert_eq!(zone(start), Some(7200));
        assert_eq!(
            zone("; UnixStartTime: 835823160\n; StartTime: Wed Jun 26 17:06:00 EDT 1996\n"),
            Some(-4 * 3600)
        );
        assert_eq!(
            (zone("; UnixStartTime: 5\n"), zone("; StartTime: 25:00:00\n; UnixStartTime: 5\n")),
            (None, None)
        );
    }
}
