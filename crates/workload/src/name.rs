//! Names of files and directories, below the application's own directory.

use serde::{Deserialize, Serialize};

/// Which data of an application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Set {
    /// What is there before it starts.
    Input,
    /// What a step writes.
    Step(u64),
    /// One of several files that a process writes at a step.
    Field { step: u64, number: u32 },
    /// What is written at the end.
    Output,
}

/// Whose part of the data a file holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Part {
    Whole,
    /// The whole, as long as it is being put together.
    Unfinished,
    Process(u32),
}

/// A file. Small, so that operations can carry it; the text is made where it is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Name {
    pub set: Set,
    pub part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Directory {
    /// Of a process.
    Process(u32),
    /// Of a process and step.
    Step { process: u32, step: u64 },
}

impl Name {
    pub fn path(&self) -> String {
        let stem = match self.set {
            Set::Input => "input".to_string(),
            Set::Step(step) => format!("step{step:07}"),
            Set::Output => "output".to_string(),
            Set::Field { step, number } => return field(self.part, step, number),
        };
        match self.part {
            Part::Whole => stem,
            Part::Unfinished => format!("{stem}.unfinished"),
            Part::Process(rank) => format!("{stem}.p{rank:05}"),
        }
    }
}

/// As OpenFOAM: a directory for each process, in it one for each time step.
fn field(part: Part, step: u64, number: u32) -> String {
    let directory = match part {
        Part::Process(process) => Directory::Step { process, step }.path(),
        Part::Whole => format!("{step:07}"),
        Part::Unfinished => format!("{step:07}.unfinished"),
    };
    format!("{directory}/field{number:02}")
}

impl Directory {
    pub fn path(&self) -> String {
        match self {
            Directory::Process(process) => format!("processor{process}"),
            Directory::Step { process, step } => format!("processor{process}/{step:07}"),
        }
    }
}
