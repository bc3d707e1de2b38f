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

impl Name {
    /// The file that has this path, if it is one of ours.
    pub fn parse(path: &str) -> Option<Name> {
        let name = match path.rsplit_once('/') {
            Some((directory, field)) => {
                let Directory::Step { process, step } = Directory::parse(directory)? else { return None };
                let number = field.strip_prefix("field")?.parse().ok()?;
                Name { set: Set::Field { step, number }, part: Part::Process(process) }
            }
            None => {
                let (stem, part) = path.split_once('.').unwrap_or((path, ""));
                let set = match stem {
                    "input" => Set::Input,
                    "output" => Set::Output,
                    _ => Set::Step(stem.strip_prefix("step")?.parse().ok()?),
                };
                let part = match part {
                    "" => Part::Whole,
                    "unfinished" => Part::Unfinished,
                    _ => Part::Process(part.strip_prefix('p')?.parse().ok()?),
                };
                Name { set, part }
            }
        };
        // Numbers can be written in several ways; names are written in one.
        (name.path() == path).then_some(name)
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
    /// The directory that has this path, if it is one of ours.
    pub fn parse(path: &str) -> Option<Directory> {
        let below = path.strip_prefix("processor")?;
        let directory = match below.split_once('/') {
            None => Directory::Process(below.parse().ok()?),
            Some((process, step)) => {
                Directory::Step { process: process.parse().ok()?, step: step.parse().ok()? }
            }
        };
        (directory.path() == path).then_some(directory)
    }

    pub fn path(&self) -> String {
        match self {
            Directory::Process(process) => format!("processor{process}"),
            Directory::Step { process, step } => format!("processor{process}/{step:07}"),
        }
    }
}
