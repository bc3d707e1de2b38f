//! A device with `kind = "measured"`, read and written.

use super::Calibration;
use super::fields::Fields;
use super::read::RATE_MAX;
use crate::device::{Cost, LANES_MAX, MeasuredSpec};
use crate::span::Span;
use std::fmt::Write;
use tidepool_sim::Time;

/// Keys of the costs, in the order of [`crate::device::class`].
pub const COSTS: [&str; 4] = ["sequential-read", "random-read", "sequential-write", "random-write"];

pub(super) fn read(fields: &mut Fields<'_, '_>) -> MeasuredSpec {
    let found = COSTS.map(|key| cost(fields, key));
    if found == [None; 4] {
        let what = format!("a measured device has a cost at least: {}", COSTS.join(", "));
        fields.source.wrong(fields.at, what);
    }
    MeasuredSpec {
        lanes: fields.number("lanes", 1, 1, LANES_MAX.into()) as u32,
        joined: fields.flag("joined", false),
        costs: filled(found),
        open: fields.span("open", Span::NONE),
        flush: fields.span("flush", Span::NONE),
    }
}

/// Most intervals and notes of a calibration.
const INTERVALS_MAX: usize = 1_000;

pub(super) fn calibration(fields: &mut Fields<'_, '_>) -> Option<Calibration> {
    let mut fields = fields.table("calibration", "[calibration]")?;
    let source = fields.text("source").map(|(_, text)| text.to_string()).unwrap_or_default();
    let runs = fields.number("runs", 0, 0, 1 << 40);
    let error_90 = fields.real("error-90");
    let noise = fields.real("noise");
    let notes = fields.words("notes").unwrap_or_default();
    for mut fields in fields.tables("interval", "interval of [calibration]", INTERVALS_MAX) {
        if fields.text("name").is_none() {
            fields.missing("name");
        }
        let _ = (fields.real("low"), fields.real("high"));
        fields.end();
    }
    fields.end();
    let notes = notes.into_iter().take(INTERVALS_MAX).map(|(_, note)| note.to_string()).collect();
    Some(Calibration { source, runs, error_90, noise, notes })
}

fn cost(fields: &mut Fields<'_, '_>, key: &'static str) -> Option<Cost> {
    let mut fields = fields.table(key, key)?;
    let cost = Cost {
        operation: fields.span("operation", Span::NONE),
        batch: fields.span("batch", Span::NONE),
        rate: fields.size("rate", 0, RATE_MAX).unwrap_or(0),
        crowding: fields.time("crowding", Time::ZERO),
        setup: fields.span("setup", Span::NONE),
        lane_rate: fields.size("lane-rate", 0, RATE_MAX).unwrap_or(0),
    };
    fields.end();
    Some(cost)
}

/// What was not measured costs what is most like it: the other order, then the other direction.
pub fn filled(found: [Option<Cost>; 4]) -> [Cost; 4] {
    [0, 1, 2, 3].map(|at| {
        let like = [at, at ^ 1, at ^ 2, at ^ 3];
        like.into_iter().find_map(|at: usize| found[at]).unwrap_or(Cost::NONE)
    })
}

fn span(span: Span) -> String {
    match span {
        Span::Fixed(time) => format!("{}ns", time.0),
        Span::Exponential(mean) => format!("exponential {}ns", mean.0),
        Span::Uniform(from, to) => format!("uniform {}ns {}ns", from.0, to.0),
    }
}

/// The table of a device, as [`read`] reads it.
pub fn write(name: &str, spec: &MeasuredSpec, costs: [bool; 4]) -> String {
    let mut text = format!("[[device]]\nname = \"{name}\"\nkind = \"measured\"\nlanes = {}\n", spec.lanes);
    if spec.joined {
        text += "joined = true\n";
    }
    for ((key, cost), _) in COSTS.into_iter().zip(spec.costs).zip(costs).filter(|(_, there)| *there) {
        let (operation, setup) = (span(cost.operation), span(cost.setup));
        let batch = match cost.batch {
            Span::NONE => String::new(),
            batch => format!(", batch = \"{}\"", span(batch)),
        };
        let crowding = match cost.crowding {
            Time::ZERO => String::new(),
            Time(crowding) => format!(", crowding = \"{crowding}ns\""),
        };
        let _ = writeln!(
            text,
            "{key} = {{ operation = \"{operation}\"{batch}, rate = {}{crowding}, setup = \"{setup}\", lane-rate = {} }}",
            cost.rate, cost.lane_rate
        );
    }
    for (key, time) in [("open", spec.open), ("flush", spec.flush)] {
        if time != Span::NONE {
            let _ = writeln!(text, "{key} = \"{}\"", span(time));
        }
    }
    text
}
