//! What would be done, without doing it.

use crate::output::table;
use serde_json::{Value, json};
use std::fmt::Write;
use tidepool_types::format_size;
use tidepool_workload::{Application, Pace, Phase, Stage, Tally};

pub fn show(applications: &[Application], as_json: bool) -> String {
    if as_json {
        let all: Vec<Value> = applications.iter().map(value).collect();
        return format!("{}\n", json!({ "applications": all }));
    }
    applications.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// What an application is, for people.
pub fn headline(all: &Application) -> String {
    let mut line =
        format!("{}: {}, {} process(es), {} step(s)", all.name, all.kind.name(), all.processes, all.steps);
    if all.every > 1 {
        let _ = write!(line, ", I/O at every {}th", all.every);
    }
    let _ = match all.pace {
        Pace::Compute(each) => write!(line, ", each computes {} s", each.as_secs_f64()),
        Pace::Ratio { io, alone: Some(alone) } => {
            write!(line, ", I/O is {io} of the time when it takes {} s alone", alone.as_secs_f64())
        }
        Pace::Ratio { io, alone: None } => {
            write!(line, ", I/O is {io} of the time when it takes as long as that of the first step with any")
        }
    };
    if !all.start.is_zero() {
        let _ = write!(line, ", starts after {} s", all.start.as_secs_f64());
    }
    line
}

fn what(phase: &Phase) -> String {
    match (phase.stage, phase.does_io) {
        (Stage::Step, true) => "step with I/O".to_string(),
        (Stage::Step, false) => "step without".to_string(),
        (stage, _) => stage.name().to_string(),
    }
}

fn text(all: &Application) -> String {
    let mut rows =
        vec![["EACH", "TIMES", "FILES", "WRITTEN", "READ", "OPERATIONS"].map(String::from).to_vec()];
    let row = |what: String, times: String, tally: Tally| {
        let Tally { files_made, bytes_written, bytes_read, operations } = tally;
        let sizes = [bytes_written, bytes_read].map(format_size);
        [vec![what, times, files_made.to_string()], sizes.to_vec(), vec![operations.to_string()]].concat()
    };
    for (phase, count) in all.kinds_of_phases() {
        rows.push(row(what(&phase), count.to_string(), all.tally(&phase)));
    }
    rows.push(row("all together".into(), String::new(), all.tally_of_all()));
    format!("{}\n{}", headline(all), table(&rows))
}

fn value(all: &Application) -> Value {
    let phase = |(phase, count): (Phase, u64)| json!({ "stage": phase.stage, "does_io": phase.does_io, "times": count, "each": all.tally(&phase) });
    let phases: Vec<Value> = all.kinds_of_phases().into_iter().map(phase).collect();
    json!({
        "name": all.name,
        "kind": all.kind.name(),
        "processes": all.processes,
        "steps": all.steps,
        "every": all.every,
        "phases": phases,
        "all": all.tally_of_all(),
    })
}
