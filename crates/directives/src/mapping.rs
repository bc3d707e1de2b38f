//! How data is laid out over nodes: the `mapping` of `#NORNS stage_in origin destination mapping`
//! (Miranda et al. 2019, Section III), as the tasks that bring it about.
//!
//! | text | meaning |
//! |---|---|
//! | `replicate` | every node gets all of it |
//! | `scatter` | its entries go to the nodes in turn, in the order of their names |
//! | `scatter:PATTERN` | as the ranks in their names say: `processor{rank}`; consecutive ranks to one node |
//! | `gather` | what is there on each node goes into one directory; equal names meet there |
//! | `gather:NAME` | each node's goes into a directory of its own, with `{node}` in `NAME` |
//! | `file:PATH` | lines of `ENTRY NODE [TARGET]`; the caller reads the file |
//!
//! Pure: the caller lists the source and knows the nodes. [`MappingText`] is what is said before anybody reads a file.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use tidepool_wire::stager::{Access, Op, Resource, TaskSpec};

/// Nodes of one mapping.
pub const NODES_MAX: usize = 100_000;
/// Lines of a mapping file.
pub const LINES_MAX: usize = 1_000_000;
const RANK: &str = "{rank}";
const NODE: &str = "{node}";

/// A node that takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub name: String,
    /// `host:port` of its stager; none for the node the tasks are submitted on.
    pub address: Option<String>,
}

/// One line of a mapping file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    pub entry: String,
    pub node: String,
    /// Name at the node; the entry's own if not given.
    pub target: Option<String>,
}

/// `F` is what is known of a mapping file: its lines, or, in [`MappingText`], its path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mapping<F = Vec<Line>> {
    Replicate,
    Scatter,
    /// What stands before and after the rank in an entry's name.
    ScatterByRank {
        before: String,
        after: String,
    },
    Gather,
    GatherApart {
        name: String,
    },
    File(F),
}

/// A mapping whose file, if it has one, is not read yet.
pub type MappingText = Mapping<String>;

/// Why a mapping cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MappingError {
    /// The text is none.
    Text {
        text: String,
        why: &'static str,
    },
    Line {
        number: usize,
        why: String,
    },
    NoNodes,
    TooMany(&'static str, usize),
    UnknownNode {
        name: String,
        known: String,
    },
    /// Entries whose names have no rank.
    NoRank {
        entry: String,
        pattern: String,
    },
    /// Two entries would get the same name on one node.
    Twice {
        node: String,
        name: String,
    },
}

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MappingError::Text { text, why } => write!(
                f,
                "'{text}' is no mapping: {why}; there are replicate, scatter, scatter:PATTERN with {RANK}, gather, gather:NAME with {NODE}, file:PATH"
            ),
            MappingError::Line { number, why } => write!(f, "line {number}: {why}"),
            MappingError::NoNodes => f.write_str("a mapping needs at least one node"),
            MappingError::TooMany(what, max) => write!(f, "more than {max} {what}"),
            MappingError::UnknownNode { name, known } => {
                write!(f, "'{name}' is none of the nodes; there are {known}")
            }
            MappingError::NoRank { entry, pattern } => {
                write!(f, "entry '{entry}' does not look like '{pattern}'")
            }
            MappingError::Twice { node, name } => write!(f, "two entries would be called '{name}' on {node}"),
        }
    }
}

impl std::error::Error for MappingError {}

impl FromStr for MappingText {
    type Err = MappingError;

    fn from_str(text: &str) -> Result<MappingText, MappingError> {
        let fail = |why| Err(MappingError::Text { text: text.to_string(), why });
        match text.split_once(':') {
            None if text == "replicate" => Ok(Mapping::Replicate),
            None if text == "scatter" => Ok(Mapping::Scatter),
            None if text == "gather" => Ok(Mapping::Gather),
            Some(("scatter", pattern)) => match pattern.split_once(RANK) {
                Some((_, after)) if after.contains(RANK) => fail("its pattern has two ranks"),
                Some((before, after)) if !pattern.contains('/') => {
                    Ok(Mapping::ScatterByRank { before: before.into(), after: after.into() })
                }
                Some(_) => fail("its pattern is for names, not for paths"),
                None => fail("its pattern has no {rank}"),
            },
            Some(("gather", name)) if name.contains(NODE) && !name.contains('/') => {
                Ok(Mapping::GatherApart { name: name.into() })
            }
            Some(("gather", _)) => fail("its name has no {node}, or a slash"),
            Some(("file", path)) => Ok(Mapping::File(path.into())),
            _ => fail("it is not known"),
        }
    }
}

impl fmt::Display for MappingText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mapping::Replicate => f.write_str("replicate"),
            Mapping::Scatter => f.write_str("scatter"),
            Mapping::ScatterByRank { before, after } => write!(f, "scatter:{before}{RANK}{after}"),
            Mapping::Gather => f.write_str("gather"),
            Mapping::GatherApart { name } => write!(f, "gather:{name}"),
            Mapping::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl MappingText {
    /// With the content of its file, if it has one.
    pub fn read(self, read: impl FnOnce(&str) -> Result<String, String>) -> Result<Mapping, MappingError> {
        Ok(match self {
            Mapping::Replicate => Mapping::Replicate,
            Mapping::Scatter => Mapping::Scatter,
            Mapping::ScatterByRank { before, after } => Mapping::ScatterByRank { before, after },
            Mapping::Gather => Mapping::Gather,
            Mapping::GatherApart { name } => Mapping::GatherApart { name },
            Mapping::File(path) => {
                let text = read(&path).map_err(|why| MappingError::Line { number: 0, why })?;
                Mapping::File(lines(&text)?)
            }
        })
    }
}

impl Mapping {
    /// Reads a mapping's text. For `file:PATH` the caller gives the content of the file.
    pub fn parse(
        text: &str,
        read: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<Mapping, MappingError> {
        text.parse::<MappingText>()?.read(read)
    }

    /// True when the entries of the source have to be known.
    pub fn needs_entries(&self) -> bool {
        matches!(self, Mapping::Scatter | Mapping::ScatterByRank { .. })
    }

    /// The tasks that copy `src` to `dst`. When data goes to the nodes, `dst` is the place on each of them;
    /// when it comes from them, `src` is. `entries` are the names in the source directory.
    pub fn tasks(
        &self,
        src: &Resource,
        dst: &Resource,
        nodes: &[Node],
        entries: &[String],
    ) -> Result<Vec<TaskSpec>, MappingError> {
        check(nodes)?;
        let copy = |from: Resource, to: Resource| TaskSpec::new(Op::Copy, from, Some(to));
        let below = |(entry, node, name): (String, &Node, String)| {
            copy(join(src.clone(), &entry), join(on(dst, node), &name))
        };
        Ok(match self {
            Mapping::Replicate => nodes.iter().map(|node| copy(src.clone(), on(dst, node))).collect(),
            Mapping::Scatter => in_turn(entries, nodes).map(below).collect(),
            Mapping::ScatterByRank { before, after } => {
                by_rank(entries, (before, after), nodes)?.into_iter().map(below).collect()
            }
            Mapping::Gather => nodes.iter().map(|node| copy(on(src, node), dst.clone())).collect(),
            Mapping::GatherApart { name } => nodes
                .iter()
                .map(|node| copy(on(src, node), join(dst.clone(), &name.replace(NODE, &node.name))))
                .collect(),
            Mapping::File(lines) => by_file(lines, nodes)?.into_iter().map(below).collect(),
        })
    }
}

fn check(nodes: &[Node]) -> Result<(), MappingError> {
    match nodes.len() {
        0 => Err(MappingError::NoNodes),
        1..=NODES_MAX => Ok(()),
        _ => Err(MappingError::TooMany("nodes", NODES_MAX)),
    }
}

/// A place as it is on a node.
fn on(place: &Resource, node: &Node) -> Resource {
    match (place, &node.address) {
        (Resource::Path { dataspace, path, .. }, Some(address)) => Resource::Path {
            access: Access::Remote,
            dataspace: dataspace.clone(),
            host: Some(address.clone()),
            path: path.clone(),
        },
        (place, _) => place.clone(),
    }
}

/// A name below a place.
fn join(place: Resource, name: &str) -> Resource {
    match place {
        Resource::Path { access, dataspace, host, path } => {
            let mut below = path.into_vec();
            if !below.is_empty() && !below.ends_with(b"/") {
                below.push(b'/');
            }
            below.extend_from_slice(name.as_bytes());
            Resource::Path { access, dataspace, host, path: below.into() }
        }
        memory => memory,
    }
}

fn in_turn<'a>(entries: &[String], nodes: &'a [Node]) -> impl Iterator<Item = (String, &'a Node, String)> {
    let mut entries = entries.to_vec();
    entries.sort();
    entries.into_iter().zip(nodes.iter().cycle()).map(|(entry, node)| (entry.clone(), node, entry))
}

/// Ranks are handed out in blocks, as batch systems do: the first nodes get the lowest ones.
fn by_rank<'a>(
    entries: &[String],
    (before, after): (&str, &str),
    nodes: &'a [Node],
) -> Result<Vec<(String, &'a Node, String)>, MappingError> {
    let mut ranked = BTreeMap::new();
    for entry in entries {
        let middle = entry.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let rank =
            middle.filter(|m| m.bytes().all(|b| b.is_ascii_digit())).and_then(|m| m.parse::<u64>().ok());
        let Some(rank) = rank else {
            let pattern = format!("{before}{RANK}{after}");
            return Err(MappingError::NoRank { entry: entry.clone(), pattern });
        };
        ranked.insert((rank, entry.clone()), ());
    }
    let ranks = ranked.keys().map(|(rank, _)| rank + 1).max().unwrap_or(0);
    let each = ranks.div_ceil(nodes.len() as u64).max(1);
    Ok(ranked
        .into_keys()
        .map(|(rank, entry)| (entry.clone(), &nodes[(rank / each) as usize], entry))
        .collect())
}

fn by_file<'a>(lines: &[Line], nodes: &'a [Node]) -> Result<Vec<(String, &'a Node, String)>, MappingError> {
    let by_name: BTreeMap<&str, &Node> = nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let mut taken = std::collections::BTreeSet::new();
    let mut tasks = Vec::new();
    for Line { entry, node, target } in lines {
        let found = *by_name.get(node.as_str()).ok_or_else(|| {
            let known: Vec<&str> = by_name.keys().copied().take(8).collect();
            MappingError::UnknownNode { name: node.clone(), known: known.join(", ") }
        })?;
        let name = target.as_ref().unwrap_or(entry).clone();
        if !taken.insert((node.clone(), name.clone())) {
            return Err(MappingError::Twice { node: node.clone(), name });
        }
        tasks.push((entry.clone(), found, name));
    }
    Ok(tasks)
}

/// Lines of a mapping file. `#` starts a comment; names have no blanks.
fn lines(text: &str) -> Result<Vec<Line>, MappingError> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (entry, node, target) = match words[..] {
            [] => continue,
            [entry, node] => (entry, node, None),
            [entry, node, target] => (entry, node, Some(target.to_string())),
            _ => {
                let why = format!("'{}' is not ENTRY NODE [TARGET]", line.trim());
                return Err(MappingError::Line { number: at + 1, why });
            }
        };
        if found.len() >= LINES_MAX {
            return Err(MappingError::TooMany("lines", LINES_MAX));
        }
        found.push(Line { entry: entry.into(), node: node.into(), target });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{parse_place, show_place};

    fn nodes() -> Vec<Node> {
        let node =
            |name: &str, address: Option<&str>| Node { name: name.into(), address: address.map(Into::into) };
        vec![node("n1", None), node("n2", Some("n2:42000"))]
    }

    fn parse(text: &str) -> Result<Mapping, MappingError> {
        Mapping::parse(text, |_| Ok("a n2\nb n1 c # comment\n\n".into()))
    }

    fn tasks(mapping: &str, src: &str, dst: &str, entries: &[&str]) -> Vec<String> {
        let entries: Vec<String> = entries.iter().map(|e| (*e).to_string()).collect();
        let place = |text: &str| parse_place(text.as_bytes()).unwrap();
        assert_eq!(mapping.parse::<MappingText>().unwrap().to_string(), mapping);
        let made = parse(mapping).unwrap().tasks(&place(src), &place(dst), &nodes(), &entries).unwrap();
        made.iter()
            .map(|t| format!("{} > {}", show_place(&t.src), show_place(t.dst.as_ref().unwrap())))
            .collect()
    }

    #[test]
    fn every_node_gets_all_of_what_is_replicated() {
        assert_eq!(
            tasks("replicate", "lustre://in", "nvme0://in", &[]),
            ["lustre://in > nvme0://in", "lustre://in > n2:42000/nvme0://in"]
        );
    }

    #[test]
    fn entries_are_scattered_in_turn_or_by_their_ranks() {
        assert_eq!(
            tasks("scatter", "lustre://in", "nvme0://", &["c", "a", "b"]),
            ["lustre://in/a > nvme0://a", "lustre://in/b > n2:42000/nvme0://b", "lustre://in/c > nvme0://c"]
        );
        assert_eq!(
            tasks("scatter:processor{rank}", "l://", "n://x", &["processor10", "processor2", "processor0"]),
            [
                "l://processor0 > n://x/processor0",
                "l://processor2 > n://x/processor2",
                "l://processor10 > n2:42000/n://x/processor10"
            ]
        );
    }

    #[test]
    fn what_was_scattered_is_gathered_again() {
        assert_eq!(
            tasks("gather", "nvme0://out", "lustre://out", &[]),
            ["nvme0://out > lustre://out", "n2:42000/nvme0://out > lustre://out"]
        );
        assert_eq!(
            tasks("gather:from-{node}", "nvme0://out", "lustre://out", &[]),
            ["nvme0://out > lustre://out/from-n1", "n2:42000/nvme0://out > lustre://out/from-n2"]
        );
    }

    #[test]
    fn a_file_says_what_goes_where() {
        assert_eq!(
            tasks("file:map", "l://in", "n://", &[]),
            ["l://in/a > n2:42000/n://a", "l://in/b > n://c"]
        );
    }

    #[test]
    fn what_makes_no_sense_is_said_with_what_would() {
        for text in [
            "",
            "copy",
            "scatter:p",
            "scatter:{rank}{rank}",
            "scatter:a/{rank}",
            "gather:x",
            "gather:a/{node}",
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains("replicate, scatter"), "{text}: {error}");
        }
        let bad = |text: &str| Mapping::parse("file:x", |_| Ok(text.to_string()));
        assert_eq!(bad("a n1\none two three four").unwrap_err().to_string().find("line 2"), Some(0));
        let place = Resource::local("a://", b"");
        let use_it = |mapping: Mapping, entries: &[String]| mapping.tasks(&place, &place, &nodes(), entries);
        assert!(matches!(
            use_it(bad("a n3").unwrap(), &[]),
            Err(MappingError::UnknownNode { ref name, .. }) if name == "n3"
        ));
        assert!(matches!(use_it(bad("a n1 x\nb n1 x").unwrap(), &[]), Err(MappingError::Twice { .. })));
        let ranked = parse("scatter:p{rank}").unwrap();
        assert!(matches!(use_it(ranked, &["q1".into()]), Err(MappingError::NoRank { .. })));
        assert_eq!(Mapping::Replicate.tasks(&place, &place, &[], &[]), Err(MappingError::NoNodes));
    }

    #[test]
    fn every_entry_goes_to_exactly_one_node() {
        for count in 1..20u32 {
            let entries: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
            for mapping in ["scatter", "scatter:p{rank}"] {
                let place = Resource::local("a://", b"");
                assert_eq!(mapping.parse::<MappingText>().unwrap().to_string(), mapping);
                let made = parse(mapping).unwrap().tasks(&place, &place, &nodes(), &entries).unwrap();
                let mut names: Vec<String> = made.iter().map(|t| show_place(&t.src)).collect();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), count as usize);
            }
        }
    }
}
