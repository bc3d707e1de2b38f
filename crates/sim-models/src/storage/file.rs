//! A fitted device as a file: an experiment (`docs/formats/28-experiments.md`) that lacks nothing but workloads.

use super::fit::{Fitted, Interval};
use crate::experiment::measured;
use crate::experiment::{Calibration, Experiment, Problem};

/// Most bytes of a file.
pub const TEXT_MAX: u64 = crate::experiment::TEXT_MAX as u64 / 2;

/// The text of an experiment without workloads, and what it says of its calibration.
#[derive(Clone, PartialEq, Debug)]
pub struct StorageFile {
    text: String,
    pub calibration: Calibration,
}

/// One of everything, and no time for anything but the device.
const AROUND: &str = "\
[network]
latency = \"1ns\"
header = 0
eager = \"1GiB\"

[server]
request = \"0ns\"
metadata = \"0ns\"
bus = \"1ns\"

[[servers]]
name = \"storage\"
device = \"storage\"

[layout]
stripe = \"1GiB\"
";
/// A workload that stands in when a file is read for itself.
const STAND_IN: &str = "\n[[workload]]\nname = \"none\"\nkind = \"files\"\n";

fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

impl StorageFile {
    pub fn new(fitted: &Fitted, intervals: &[Interval], calibration: Calibration) -> StorageFile {
        let device = measured::write("storage", &fitted.spec, fitted.seen);
        let mut text = format!(
            "# Workloads come behind this: docs/formats/28-experiments.md.\n{AROUND}\n{device}\n[calibration]\n"
        );
        text += &format!("source = {}\nruns = {}\n", quoted(&calibration.source), calibration.runs);
        for (key, value) in [("error-90", calibration.error_90), ("noise", calibration.noise)] {
            if let Some(value) = value {
                text += &format!("{key} = {value:.6}\n");
            }
        }
        let notes: Vec<String> = calibration.notes.iter().map(|note| quoted(note)).collect();
        text += &format!("notes = [{}]\n", notes.join(", "));
        if !intervals.is_empty() {
            text += "interval = [\n";
            for Interval { name, low, high } in intervals {
                text += &format!("  {{ name = \"{name}\", low = {low:.3}, high = {high:.3} }},\n");
            }
            text += "]\n";
        }
        StorageFile { text, calibration }
    }

    pub fn read(text: &str) -> Result<StorageFile, Vec<Problem>> {
        let whole = |what: &str| vec![Problem { line: None, what: what.into() }];
        if text.len() as u64 > TEXT_MAX {
            return Err(whole(&format!("it has {} bytes; at most {TEXT_MAX}", text.len())));
        }
        let experiment = with(text, STAND_IN)?;
        let calibration = experiment.calibration;
        let calibration = calibration
            .ok_or_else(|| whole("it has no [calibration]; 'tidepool sim calibrate storage' writes one"))?;
        Ok(StorageFile { text: text.into(), calibration })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// With workloads behind it.
    pub fn experiment(&self, workloads: &str) -> Result<Experiment, Vec<Problem>> {
        with(&self.text, workloads)
    }
}

fn with(text: &str, workloads: &str) -> Result<Experiment, Vec<Problem>> {
    let no_files = |_: &str| Err("a calibrated device has no traces".to_string());
    Experiment::read(&format!("{text}\n{workloads}"), &no_files)
}
