//! Nodes: their names, processors, states, partitions and features. From `sinfo -N -o "..."` (docs/formats/33-queues.md), or so many
//! alike ones.

use crate::rows::{Entry, Wrong, cut};
use crate::words::is_none;
use std::collections::{BTreeMap, BTreeSet};

/// What is asked of sinfo.
pub const FORMAT: &str = "%N|%P|%T|%c|%f|%h";
/// Nodes that are told from each other.
pub const NODES_MAX: usize = 100_000;
/// Processors of a node.
const PROCESSORS_MAX: u32 = 1 << 16;

/// First letters of the states in which nodes take jobs, or will when those there have ended.
const UP: [&str; 7] = ["idle", "alloc", "mix", "comp", "plan", "plnd", "power"];
/// Nodes that are being switched off for good take none.
const NOT_UP: [&str; 1] = ["powering_down"];

/// See the module. All lists are in the order of the nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cluster {
    pub names: Vec<String>,
    /// 1 where that is not known.
    pub processors: Vec<u32>,
    /// Whether it takes jobs.
    pub is_up: Vec<bool>,
    pub features: Vec<BTreeSet<String>>,
    /// Places of their nodes.
    pub partitions: BTreeMap<String, BTreeSet<usize>>,
    /// Whose jobs that name no partition are.
    pub default: Option<String>,
    /// Those whose jobs have their nodes for themselves.
    pub exclusive: BTreeSet<String>,
}

/// Numbers in names count as numbers: `n9` is before `n10`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0u64)];
    for c in name.chars() {
        let last = parts.last_mut().expect("there is one");
        match c.to_digit(10) {
            Some(digit) => last.1 = last.1.saturating_mul(10).saturating_add(digit.into()),
            None if last.1 > 0 => parts.push((c.to_string(), 0)),
            None => last.0.push(c),
        }
    }
    parts
}

/// Reads what sinfo printed.
pub fn read(text: &str) -> Result<Cluster, Wrong> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((at, head)) = lines.next() else {
        return Err(Wrong::all("it is empty: not even the line with the names of the columns is there"));
    };
    let names: Vec<&str> = head.split('|').map(str::trim).collect();
    let place = |wanted: &[&str]| names.iter().position(|name| wanted.contains(name));
    let (Some(list), Some(partition), Some(state)) =
        (place(&["NODELIST"]), place(&["PARTITION"]), place(&["STATE"]))
    else {
        let what = format!(
            "the columns NODELIST, PARTITION and STATE are needed; they are printed by: sinfo --all -N -o \"{FORMAT}\""
        );
        return Err(Wrong::at(at, what));
    };
    let shared = place(&["OVERSUBSCRIBE"]);
    let (mut default, mut exclusive) = (None, BTreeSet::new());
    let (processors, features) = (place(&["CPUS"]), place(&["AVAIL_FEATURES", "ACTIVE_FEATURES"]));
    let mut nodes: BTreeMap<(Vec<(String, u64)>, String), Row> = BTreeMap::new();
    for (number, line) in lines {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        if fields.len() != names.len() {
            let what = format!("{} fields, where the first line names {}", fields.len(), names.len());
            return Err(Wrong::at(number, what));
        }
        let count = match processors.map(|at| fields[at]) {
            None => 1,
            // Of nodes with different numbers together the fewest: `4+`.
            Some(text) => text
                .trim_end_matches('+')
                .parse()
                .ok()
                .filter(|count| (1..=PROCESSORS_MAX).contains(count))
                .ok_or_else(|| {
                    Wrong::at(number, format!("CPUS: '{}' is no number of processors", cut(text)))
                })?,
        };
        // The default partition has a mark.
        let part = fields[partition].trim_end_matches('*');
        if part.len() < fields[partition].len() {
            default = Some(part.to_string());
        }
        if shared.is_some_and(|at| fields[at] == "EXCLUSIVE") {
            exclusive.insert(part.to_string());
        }
        let expanded = tidepool_batch::nodes::expand(fields[list]);
        for name in expanded.map_err(|why| Wrong::at(number, format!("NODELIST: {why}")))? {
            let row = nodes.entry((natural(&name), name)).or_default();
            row.processors = count;
            row.is_up = is_up(fields[state]);
            row.partitions.insert(part.to_string());
            if let Some(words) = features.map(|at| fields[at]).filter(|words| !is_none(words)) {
                row.features.extend(words.split(',').map(str::to_string));
            }
        }
        if nodes.len() > NODES_MAX {
            return Err(Wrong::at(number, format!("more than {NODES_MAX} nodes")));
        }
    }
    if nodes.is_empty() {
        return Err(Wrong::all("it has no nodes"));
    }
    let mut cluster = Cluster { default, exclusive, ..Cluster::default() };
    for (place, ((_, name), row)) in nodes.into_iter().enumerate() {
        cluster.names.push(name);
        cluster.processors.push(row.processors);
        cluster.is_up.push(row.is_up);
        cluster.features.push(row.features);
        for partition in row.partitions {
            cluster.partitions.entry(partition).or_default().insert(place);
        }
    }
    Ok(cluster)
}

#[derive(Default)]
struct Row {
    processors: u32,
    is_up: bool,
    features: BTreeSet<String>,
    partitions: BTreeSet<String>,
}

/// Letters behind the word say more of a node: `*` that it does not answer.
fn is_up(state: &str) -> bool {
    let lower = state.to_ascii_lowercase();
    !lower.contains('*')
        && UP.iter().any(|word| lower.starts_with(word))
        && !NOT_UP.iter().any(|word| lower.starts_with(word))
        && !["drain", "maint", "resv", "reserved", "down", "fail"].iter().any(|word| lower.contains(word))
}

/// A name up to the number at its end, and that with its digits.
fn numbered(name: &str) -> Option<(&str, &str)> {
    let at = name
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
    Some(name.split_at(at)).filter(|(_, digits)| !digits.is_empty() && digits.len() <= 9)
}

impl Cluster {
    /// So many nodes, named as those where jobs run are: by their numbers from 0 on, or from 1 on where one has the number `nodes`.
    pub fn alike(nodes: u32, processors: u32, entries: &[Entry]) -> Result<Cluster, Wrong> {
        let used = || entries.iter().flat_map(|entry| &entry.list);
        let mut prefix: Option<(&str, usize)> = None;
        let mut highest = 0u64;
        for name in used() {
            let (before, digits) = numbered(name).ok_or_else(|| {
                Wrong::all(format!(
                    "node '{}' has no number at its end: say which nodes there are, as sinfo does",
                    cut(name)
                ))
            })?;
            if prefix.is_some_and(|(known, _)| known != before) {
                return Err(Wrong::all(format!(
                    "nodes have different names, as '{}': say which there are, as sinfo does",
                    cut(name)
                )));
            }
            let width = prefix.map_or(usize::MAX, |(_, width)| width).min(digits.len());
            prefix = Some((before, width));
            highest = highest.max(digits.parse().unwrap_or(u64::MAX));
        }
        let first = u64::from(highest == u64::from(nodes));
        if used().next().is_some() && highest >= first + u64::from(nodes) {
            return Err(Wrong::all(format!(
                "a job runs on a node with the number {highest}, but there are only {nodes}"
            )));
        }
        let (before, width) = prefix.unwrap_or(("node", 1));
        let names = (first..first + u64::from(nodes)).map(|number| format!("{before}{number:0width$}"));
        Ok(Cluster {
            names: names.collect(),
            processors: vec![processors.max(1); nodes as usize],
            is_up: vec![true; nodes as usize],
            features: vec![BTreeSet::new(); nodes as usize],
            ..Cluster::default()
        })
    }

    /// Names of nodes in the order of their places, as Slurm writes them together: `node[1-3,7]`.
    pub fn fold(&self, places: impl Iterator<Item = usize>) -> String {
        let mut out: Vec<String> = Vec::new();
        let mut open: Option<Open<'_>> = None;
        for place in places {
            let name = &self.names[place];
            let Some((before, digits)) = numbered(name) else {
                out.extend(open.take().map(close));
                out.push(name.clone());
                continue;
            };
            let number: u64 = digits.parse().unwrap_or(0);
            // With leading zeros they all have as many digits; without, as many as they need.
            let width = if digits.starts_with('0') { digits.len() } else { 0 };
            let fits = open.as_ref().is_some_and(|(known, all, _)| {
                *known == before && (*all == width || *all == digits.len() && width == 0)
            });
            if !fits {
                out.extend(open.take().map(close));
                open = Some((before, width, Vec::new()));
            }
            let Some((_, _, ranges)) = &mut open else { continue };
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        out.extend(open.map(close));
        out.join(",")
    }
}

/// What names begin with, how many digits they have, and their numbers.
type Open<'a> = (&'a str, usize, Vec<(u64, u64)>);

fn close((before, width, ranges): Open<'_>) -> String {
    let one = |(first, last): &(u64, u64)| match first == last {
        true => format!("{first:0width$}"),
        false => format!("{first:0width$}-{last:0width$}"),
    };
    let words: Vec<String> = ranges.iter().map(one).collect();
    match ranges[..] {
        [(first, last)] if first == last => format!("{before}{}", words[0]),
        _ => format!("{before}[{}]", words.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRINTED: &str = "\
NODELIST|PARTITION|STATE|CPUS|AVAIL_FEATURES|OVERSUBSCRIBE
node1|test|allocated|4|(null)|EXCLUSIVE
node10|test|idle|4|ib,ssd|EXCLUSIVE
node2|test|planned|8|ib|EXCLUSIVE
node2|fat*|planned|8|ib|NO
node3|test|drained*|4|(null)|EXCLUSIVE
node4|test|idle*|4|(null)|EXCLUSIVE
node5|fat*|mixed+drain|4|(null)|NO
";

    #[test]
    fn what_sinfo_prints_is_read() {
        let cluster = read(PRINTED).unwrap();
        assert_eq!(cluster.names, ["node1", "node2", "node3", "node4", "node5", "node10"]);
        assert_eq!(cluster.processors, [4, 8, 4, 4, 4, 4]);
        assert_eq!(cluster.is_up, [true, true, false, false, false, true]);
        assert_eq!(cluster.partitions["fat"], BTreeSet::from([1, 4]));
        assert_eq!(
            (cluster.default.as_deref(), &cluster.exclusive),
            (Some("fat"), &BTreeSet::from(["test".to_string()]))
        );
        assert_eq!(cluster.features[5], BTreeSet::from(["ib".to_string(), "ssd".into()]));
        assert_eq!(cluster.fold([0, 1, 2, 4, 5].into_iter()), "node[1-3,5,10]");
        for (text, wanted) in [
            ("", "it is empty"),
            ("NODELIST|STATE\n", "line 1: the columns NODELIST, PARTITION and STATE are needed"),
            ("NODELIST|PARTITION|STATE\n", "it has no nodes"),
            ("NODELIST|PARTITION|STATE\nn1|p\n", "line 2: 2 fields, where the first line names 3"),
            ("NODELIST|PARTITION|STATE\nn[1|p|idle\n", "line 2: NODELIST: 'n[1': a bracket is not closed"),
            ("NODELIST|PARTITION|STATE|CPUS\nn1|p|idle|0\n", "line 2: CPUS: '0' is no number of processors"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.starts_with(wanted), "{said}");
        }
    }

    #[test]
    fn alike_nodes_are_named_as_those_that_are_used() {
        let entry = |list: &[&str]| Entry {
            list: list.iter().map(|name| name.to_string()).collect(),
            ..Entry::default()
        };
        let names =
            |nodes, list: &[&str]| Cluster::alike(nodes, 4, &[entry(list)]).map(|cluster| cluster.names);
        assert_eq!(names(3, &["n1", "n3"]).unwrap(), ["n1", "n2", "n3"]);
        assert_eq!(names(3, &["n002", "n000"]).unwrap(), ["n000", "n001", "n002"]);
        assert_eq!(names(2, &[]).unwrap(), ["node0", "node1"]);
        assert!(names(3, &["n4"]).unwrap_err().to_string().contains("only 3"));
        assert!(names(3, &["n1", "m1"]).is_err() && names(3, &["login"]).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_cluster_or_an_error(text in "(.|\n){0,200}") {
            let _ = read(&text);
            let _ = read(&format!("NODELIST|PARTITION|STATE|CPUS\n{text}"));
        }

        /// What is folded is expanded again by the reader of Slurm's lists.
        #[test]
        fn folded_names_are_those_names(numbers in prop::collection::btree_set(0u32..1200, 0..30), width in 0usize..5, others: bool) {
            let mut names: Vec<String> = numbers.iter().map(|number| format!("n{number:0width$}")).collect();
            if others {
                names.extend(["login".to_string(), "gpu7".into(), "gpu8".into()]);
            }
            let cluster = Cluster { names: names.clone(), ..Cluster::default() };
            let folded = cluster.fold(0..names.len());
            prop_assert_eq!(tidepool_batch::nodes::expand(&folded).unwrap(), names, "{}", folded);
        }
    }
}
