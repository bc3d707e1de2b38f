//! What a run does, whoever asked for it: the flags of the command line, or a job script.

use crate::agent::own_name;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{FsKind, PoolShape, RunArgs};
use crate::instance::OutRecord;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidepool_directives::{Mapping, MappingNode};
use tidepool_wire::stager::Resource;

pub struct Job {
    pub pools: Vec<Wish>,
    pub stage_in: Vec<Copy>,
    pub program: Program,
    pub stage_out: Vec<Copy>,
    /// Results get their names oldest first, when all are copied.
    pub ordered: bool,
    /// Each result has a file, or the run has failed.
    pub require: bool,
    /// How long all copies before the program, and all after it, may take.
    pub stage_in_limit: Option<Duration>,
    pub stage_out_limit: Option<Duration>,
    /// Places on the node's own storage that stay, although this run has put them there.
    pub keep: Vec<PathBuf>,
    /// Such places that are to go when all is staged out.
    pub delete: Vec<PathBuf>,
}

/// A file system that is wanted.
pub struct Wish {
    /// `pool://`; none where there is only one, which needs no name.
    pub dataspace: Option<String>,
    pub fs: FsKind,
    pub shape: PoolShape,
}

/// A copy before the program or after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    In,
    Out,
}

impl Way {
    pub fn phase(self) -> &'static str {
        match self {
            Way::In => "stage-in",
            Way::Out => "stage-out",
        }
    }

    /// What it is when such a copy fails.
    pub fn failed(self) -> Kind {
        match self {
            Way::In => Kind::StageIn,
            Way::Out => Kind::StageOut,
        }
    }
}

pub struct Copy {
    pub route: Route,
    /// As they were named.
    pub from: String,
    pub to: String,
    /// Enough to know it by, for a line of the story.
    pub label: String,
}

/// From where to where. Pools are named by their place among the wishes.
pub enum Route {
    Into {
        pool: usize,
        from: PathBuf,
        to: String,
    },
    OutOf {
        pool: usize,
        from: String,
        to: PathBuf,
    },
    /// Between two directories of this machine.
    Here(Here),
}

pub struct Here {
    pub from: PathBuf,
    pub to: PathBuf,
    pub spread: Spread,
    /// What it copies to is gone when the run is, unless it is kept.
    pub passing: bool,
}

/// What is left of a mapping where there is one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spread {
    Whole,
    /// The entries of a directory: all of them come here, and with a pattern each has to fit it.
    Entries(Option<Mapping>),
    /// Entries by name, and what they are called here.
    Lines(Vec<(String, String)>),
}

/// Or why not, in words.
type Told<T> = std::result::Result<T, String>;

impl Spread {
    /// What is copied where. Entries are looked up now: an earlier copy, or the program, may have made them.
    pub fn pairs(&self, from: &Path, to: &Path) -> Told<Vec<(PathBuf, PathBuf)>> {
        match self {
            Spread::Whole => Ok(vec![(from.into(), to.into())]),
            Spread::Lines(lines) => {
                Ok(lines.iter().map(|(entry, name)| (from.join(entry), to.join(name))).collect())
            }
            Spread::Entries(pattern) => {
                if !from.is_dir() {
                    return Err(format!(
                        "{} is no directory, so there is nothing to scatter",
                        from.display()
                    ));
                }
                if let Some(pattern) = pattern {
                    fits(pattern, from)?;
                }
                Ok(vec![(from.into(), to.into())])
            }
        }
    }
}

/// Whether the names of all entries of a directory fit a pattern, as on many nodes they have to.
fn fits(pattern: &Mapping, dir: &Path) -> Told<()> {
    let fail = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name().into_string();
        names.push(name.map_err(|name| format!("{}: {name:?} is no UTF-8 text", dir.display()))?);
    }
    let node = MappingNode { name: own_name(), address: None };
    let place = Resource::local("here://", b"");
    let tasks = pattern.tasks(&place, &place, &[node], &names);
    tasks.map(|_| ()).map_err(|error| format!("{}: {error}", dir.display()))
}

pub enum Program {
    /// A program and its arguments: it starts in the only pool.
    Words(Vec<OsString>),
    Script(Script),
}

/// A batch script: it starts where the command was given, as `sbatch` starts it where it was submitted.
pub struct Script {
    /// As it was named.
    pub shown: String,
    /// The program that its first line names, and that line's argument.
    pub interpreter: Vec<OsString>,
    pub text: Vec<u8>,
    pub args: Vec<OsString>,
    /// Where dataspaces are.
    pub variables: Vec<(OsString, OsString)>,
    /// What is odd about running it here.
    pub warnings: Vec<String>,
}

impl Job {
    /// Of `--in`, `--out` and a program.
    pub fn of_flags(args: &RunArgs) -> Result<Job> {
        if let Some(word) = args.args.first() {
            let text =
                format!("'{0}': write '--' before the program, as in 'tidepool run -- {0}'", word.display());
            return Err(Failure::new(Kind::Usage, text));
        }
        if args.program.is_empty() {
            let text = "which program? write 'tidepool run -- PROGRAM', or 'tidepool run --job SCRIPT'";
            return Err(Failure::new(Kind::Usage, text));
        }
        let wish = Wish { dataspace: None, fs: args.fs.clone(), shape: args.shape.clone() };
        Ok(Job {
            pools: vec![wish],
            stage_in: args.stage_in.iter().map(|text| parse_in(text)).collect::<Result<_>>()?,
            program: Program::Words(args.program.clone()),
            stage_out: args.stage_out.iter().map(|text| parse_out(text)).collect::<Result<_>>()?,
            ordered: args.ordered,
            require: args.require,
            stage_in_limit: None,
            stage_out_limit: None,
            keep: Vec::new(),
            delete: Vec::new(),
        })
    }

    /// What is to be staged out of a pool, for whoever comes after a run that was killed.
    pub fn outs_of(&self, number: usize) -> Vec<OutRecord> {
        let of = |copy: &Copy| match &copy.route {
            Route::OutOf { pool, from, to } if *pool == number => {
                let ordered = self.ordered;
                Some(OutRecord { source: from.clone(), destination: to.clone(), ordered })
            }
            _ => None,
        };
        self.stage_out.iter().filter_map(of).collect()
    }

    /// Whether anything is staged into a pool.
    pub fn fills(&self, number: usize) -> bool {
        self.stage_in.iter().any(|copy| matches!(&copy.route, Route::Into { pool, .. } if *pool == number))
    }

    /// Places of the node's own storage that this run fills and empties.
    pub fn passing(&self) -> Vec<PathBuf> {
        let of = |copy: &Copy| match &copy.route {
            Route::Here(here) if here.passing => Some(here.to.clone()),
            _ => None,
        };
        self.stage_in.iter().filter_map(of).collect()
    }
}

/// `SRC:/DST`: the last colon before a slash divides, so that SRC may have colons.
fn parse_in(text: &str) -> Result<Copy> {
    let Some((source, destination)) = text.rfind(":/").map(|at| (&text[..at], &text[at + 1..])) else {
        let advice = format!("--in '{text}': write SRC:/DST, with DST an absolute path in the pool");
        return Err(Failure::new(Kind::Usage, advice));
    };
    let source = std::path::absolute(source).context(Kind::Usage, || format!("--in '{text}'"))?;
    if !source.exists() {
        let text = format!("--in '{text}': {} does not exist", source.display());
        return Err(Failure::new(Kind::StageIn, text));
    }
    let from = source.display().to_string();
    Ok(Copy {
        label: from.clone(),
        from,
        to: format!("pool:{destination}"),
        route: Route::Into { pool: 0, from: source, to: destination.into() },
    })
}

/// `/SRC:DST`: the first colon divides.
fn parse_out(text: &str) -> Result<Copy> {
    match text.split_once(':') {
        Some((source, destination)) if source.starts_with('/') && !destination.is_empty() => {
            let destination =
                std::path::absolute(destination).context(Kind::Usage, || format!("--out '{text}'"))?;
            let to = destination.display().to_string();
            Ok(Copy {
                label: to.clone(),
                from: format!("pool:{source}"),
                to,
                route: Route::OutOf { pool: 0, from: source.into(), to: destination },
            })
        }
        _ => {
            let advice = format!("--out '{text}': write /SRC:DST, with SRC an absolute path in the pool");
            Err(Failure::new(Kind::Usage, advice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_specs_divide_at_the_right_colon() {
        let Route::Into { from, to, .. } = parse_in("/:/in").unwrap().route else { panic!("it goes in") };
        assert_eq!((from, to.as_str()), (PathBuf::from("/"), "/in"));
        let Route::OutOf { from, to, .. } = parse_out("/out:/tmp/a:b").unwrap().route else {
            panic!("it goes out")
        };
        assert_eq!((from.as_str(), to), ("/out", PathBuf::from("/tmp/a:b")));
        for bad in ["data", "data:in", ""] {
            assert!(parse_in(bad).is_err(), "{bad}");
        }
        for bad in ["out:results", "/out", "/out:"] {
            assert!(parse_out(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn on_one_node_all_entries_come_here() {
        let dir = tempfile::TempDir::new().unwrap();
        let (from, to) = (dir.path(), Path::new("/node"));
        ["p0", "p1"].iter().for_each(|name| std::fs::write(from.join(name), "").unwrap());
        let whole = vec![(from.to_path_buf(), to.to_path_buf())];
        let ranked = |before: &str| {
            Spread::Entries(Some(Mapping::ScatterByRank { before: before.into(), after: String::new() }))
        };
        assert_eq!(Spread::Whole.pairs(from, to).unwrap(), whole);
        assert_eq!(Spread::Entries(None).pairs(from, to).unwrap(), whole);
        assert_eq!(ranked("p").pairs(from, to).unwrap(), whole);
        let told = ranked("processor").pairs(from, to).unwrap_err();
        assert!(told.contains("does not look like 'processor{rank}'"), "{told}");
        let told = Spread::Entries(None).pairs(&from.join("p0"), to).unwrap_err();
        assert!(told.contains("is no directory"), "{told}");
        let lines = Spread::Lines(vec![("p1".into(), "x".into())]);
        assert_eq!(lines.pairs(from, to).unwrap(), [(from.join("p1"), to.join("x"))]);
    }
}
