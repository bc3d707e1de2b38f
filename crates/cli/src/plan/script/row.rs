//! One line of what a job script would do, for people and for programs.

use crate::jobscript::{Spot, Step, Storage};
use crate::output::duration;
use crate::slurm::lint::mapping_words;
use serde_json::{Value, json};
use tidepool_directives::{Mapping, MappingText, Said};
use tidepool_plan::Cost;
use tidepool_types::format_size;

/// What kind of thing happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Pool,
    StageIn,
    Program,
    StageOut,
    Stays,
    Goes,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            What::Pool => "pool",
            What::StageIn => "stage in",
            What::Program => "program",
            What::StageOut => "stage out",
            What::Stays => "stays",
            What::Goes => "goes",
        }
    }

    fn is_copy(self) -> bool {
        matches!(self, What::StageIn | What::StageOut)
    }

    /// Whether the program has to wait for it, or the end of the job has.
    pub fn takes_time(self) -> bool {
        self == What::Pool || self.is_copy()
    }
}

/// What happens at one point of the job.
pub struct Row {
    pub what: What,
    pub from: String,
    pub to: String,
    pub how: String,
    pub files: Option<u64>,
    pub bytes: Option<u64>,
    /// On each node.
    pub bytes_each: Option<u64>,
    pub cost: Option<Cost>,
}

impl Row {
    pub fn new(what: What, from: &str, to: &str, how: &str) -> Row {
        let [from, to, how] = [from, to, how].map(String::from);
        Row { what, from, to, how, files: None, bytes: None, bytes_each: None, cost: None }
    }

    pub fn cells(&self) -> Vec<String> {
        let is_copy = self.what.is_copy();
        let size = match (self.bytes, self.bytes_each) {
            (Some(bytes), Some(each)) if each != bytes => {
                format!("{}, {} on a node", format_size(bytes), format_size(each))
            }
            (Some(bytes), _) => format_size(bytes),
            (None, _) if is_copy => "not known".into(),
            (None, _) => String::new(),
        };
        let files = self.files.map(|files| format!(", {files} files")).unwrap_or_default();
        let time = match self.cost.as_ref().map(|cost| (cost.seconds, cost.basis)) {
            Some((Some(seconds), basis)) => {
                format!("{} ({})", duration(seconds), format!("{basis:?}").to_lowercase())
            }
            _ if is_copy => "not known".into(),
            _ => String::new(),
        };
        vec![
            self.what.word().into(),
            self.from.clone(),
            self.to.clone(),
            self.how.clone(),
            size + &files,
            time,
        ]
    }

    pub fn json(&self) -> Value {
        let cost = self.cost.as_ref();
        let text = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
        json!({
            "step": self.what.word(), "from": text(&self.from), "to": text(&self.to), "how": text(&self.how),
            "files": self.files, "bytes": self.bytes, "bytes_each": self.bytes_each,
            "seconds": cost.and_then(|cost| cost.seconds), "basis": cost.map(|cost| cost.basis),
            "why": cost.map(|cost| &cost.why),
        })
    }
}

/// What comes to each node.
pub fn each(bytes: u64, mapping: Option<&Said<MappingText>>, nodes: usize) -> Option<u64> {
    match mapping.map(|mapping| &mapping.value) {
        None | Some(Mapping::Replicate | Mapping::Gather | Mapping::GatherApart { .. }) => Some(bytes),
        Some(Mapping::Scatter | Mapping::ScatterByRank { .. }) => Some(bytes.div_ceil(nodes as u64)),
        Some(Mapping::File(_)) => (nodes == 1).then_some(bytes),
    }
}

/// The mapping in words, also the one that is meant where none is given.
pub fn how(step: &Step<'_>) -> String {
    let is_own = |spot: &Spot| matches!(spot, Spot::Dir { storage: Storage::OfNode, .. });
    match &step.stage.mapping {
        Some(mapping) => mapping_words(mapping),
        None if is_own(&step.to) && is_own(&step.from) => "what a node has stays on it".into(),
        None if is_own(&step.to) => mapping_words(&Mapping::Replicate),
        None if is_own(&step.from) => mapping_words(&Mapping::Gather),
        None => String::new(),
    }
}
