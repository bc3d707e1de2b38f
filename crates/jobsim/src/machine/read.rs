//! A machine from a file: `docs/formats/31-batch-machines.md`. All of it is looked at, and everything that is wrong is told with its line.

use super::{Machine, NODES_MAX, Partition, Window};
use std::fmt;
use std::ops::Range;
use tidepool_joblog::SECONDS_MAX;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Larger files are not read.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// The least likeness of a word that is worth a question, between 0 and 1.
const LIKENESS_MIN: f64 = 0.5;
/// Bytes of a word that can be like another; all that we know are shorter.
const WORD_BYTES_MAX: usize = 80;
/// Depth of brackets: the deepest that has a meaning is 3.
const DEPTH_MAX: usize = 16;

const TOP: [&str; 5] = ["nodes", "processors-per-node", "switch-nodes", "partition", "block"];
const PARTITION: [&str; 5] = ["name", "queues", "partitions", "nodes", "priority"];
const BLOCK: [&str; 6] = ["name", "from-seconds", "seconds", "every-seconds", "nodes", "announced-seconds"];

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// From 1.
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// The machine that a file describes, or all that is wrong with it. What it does not say is 0 or none.
pub fn read(text: &str) -> Result<Machine, Vec<Problem>> {
    let mut reader = Reader { text, problems: Vec::new() };
    if deepest(text) > DEPTH_MAX {
        return Err(vec![Problem {
            line: 1,
            what: format!("brackets within brackets, more than {DEPTH_MAX} deep"),
        }]);
    }
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            reader.wrong(error.span().unwrap_or(0..0), error.message().to_string());
            return Err(reader.problems);
        }
    };
    let machine = reader.machine(table.get_ref());
    reader.problems.sort_by_key(|problem| problem.line);
    if reader.problems.is_empty() { Ok(machine) } else { Err(reader.problems) }
}

/// How deep brackets are nested, those in texts included.
fn deepest(text: &str) -> usize {
    let (mut depth, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

type Value<'a> = Spanned<DeValue<'a>>;

struct Reader<'a> {
    text: &'a str,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn wrong(&mut self, span: Range<usize>, what: impl Into<String>) {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        self.problems.push(Problem { line, what: what.into() });
    }

    fn machine(&mut self, table: &DeTable<'_>) -> Machine {
        self.known(table, &TOP);
        Machine {
            nodes: self.number(table, "nodes", 1, u64::from(NODES_MAX)).unwrap_or(0) as u32,
            processors_per_node: self.number(table, "processors-per-node", 1, 1 << 20).unwrap_or(0) as u32,
            switch: self.number(table, "switch-nodes", 1, u64::from(NODES_MAX)).map(|nodes| nodes as u32),
            partitions: self.tables(table, "partition", Reader::partition),
            windows: self.tables(table, "block", Reader::window),
        }
    }

    fn partition(&mut self, table: &DeTable<'_>, span: Range<usize>) -> Partition {
        self.known(table, &PARTITION);
        let (queues, partitions) = (self.numbers(table, "queues"), self.numbers(table, "partitions"));
        if queues.is_empty() && partitions.is_empty() {
            self.wrong(
                span,
                "a partition has 'queues' or 'partitions', numbers in the log of whose jobs it is",
            );
        }
        Partition {
            name: self.name(table, "partition"),
            queues,
            partitions,
            nodes: self.nodes(table),
            priority: self.whole(table, "priority", -1_000_000, 1_000_000).unwrap_or(0) as i32,
        }
    }

    fn window(&mut self, table: &DeTable<'_>, span: Range<usize>) -> Window {
        self.known(table, &BLOCK);
        for key in ["from-seconds", "seconds"] {
            if table.get(key).is_none() {
                self.wrong(span.clone(), format!("a block has '{key}'"));
            }
        }
        let window = Window {
            name: self.name(table, "block"),
            from_s: self.number(table, "from-seconds", 0, SECONDS_MAX).unwrap_or(0),
            seconds: self.number(table, "seconds", 1, SECONDS_MAX).unwrap_or(1),
            every_s: self.number(table, "every-seconds", 1, SECONDS_MAX),
            nodes: self.nodes(table),
            announced_s: self.number(table, "announced-seconds", 0, SECONDS_MAX),
        };
        if window.every_s.is_some_and(|every| every <= window.seconds) {
            self.wrong(span, "'every-seconds' is longer than 'seconds': else no job ever ran there");
        }
        window
    }

    fn known(&mut self, table: &DeTable<'_>, known: &[&'static str]) {
        for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let what = match like(key.get_ref(), known) {
                Some(meant) => format!("there is no key '{}'; did you mean '{meant}'?", key.get_ref()),
                None => format!("there is no key '{}'; there are {}", key.get_ref(), known.join(", ")),
            };
            self.wrong(key.span(), what);
        }
    }

    fn tables<T>(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        read: fn(&mut Self, &DeTable<'_>, Range<usize>) -> T,
    ) -> Vec<T> {
        let Some(value) = table.get(key) else { return Vec::new() };
        let all = value.get_ref().as_array().map(|all| all.iter().collect::<Vec<_>>());
        let tables =
            all.map(|all| all.into_iter().map(|one| Some((one.get_ref().as_table()?, one.span()))).collect());
        let Some(Some(tables)) = tables.map(|all: Vec<_>| all.into_iter().collect::<Option<Vec<_>>>()) else {
            self.wrong(value.span(), format!("'{key}' takes tables, each as [[{key}]]"));
            return Vec::new();
        };
        tables.into_iter().map(|(table, span)| read(self, table, span)).collect()
    }

    fn name(&mut self, table: &DeTable<'_>, without: &str) -> String {
        let Some(value) = table.get("name") else { return without.to_string() };
        match value.get_ref().as_str() {
            Some(name) => name.to_string(),
            None => {
                self.wrong(value.span(), "'name' is a text");
                String::new()
            }
        }
    }

    fn number(&mut self, table: &DeTable<'_>, key: &str, least: u64, most: u64) -> Option<u64> {
        let number = self.whole(table, key, least as i64, most as i64)?;
        Some(number as u64)
    }

    fn whole(&mut self, table: &DeTable<'_>, key: &str, least: i64, most: i64) -> Option<i64> {
        let value = table.get(key)?;
        let number = whole(value).filter(|number| (least..=most).contains(number));
        if number.is_none() {
            self.wrong(value.span(), format!("'{key}' is a whole number from {least} to {most}"));
        }
        number
    }

    fn numbers(&mut self, table: &DeTable<'_>, key: &str) -> Vec<u32> {
        let Some(value) = table.get(key) else { return Vec::new() };
        let all = value.get_ref().as_array();
        let number = |value: &Value<'_>| u32::try_from(whole(value)?).ok();
        match all.and_then(|all| all.iter().map(number).collect()) {
            Some(numbers) => numbers,
            None => {
                self.wrong(value.span(), format!("'{key}' is a list of numbers in the log, as [1, 2]"));
                Vec::new()
            }
        }
    }

    /// Text as `"0-99,200"`; none is the whole machine.
    fn nodes(&mut self, table: &DeTable<'_>) -> Option<Vec<(u32, u32)>> {
        let value = table.get("nodes")?;
        let ranges =
            value.get_ref().as_str().and_then(|text| text.split(',').map(range).collect::<Option<Vec<_>>>());
        if ranges.is_none() {
            self.wrong(value.span(), "'nodes' is a text as \"0-99,200\", counted from 0");
        }
        ranges
    }
}

fn whole(value: &Value<'_>) -> Option<i64> {
    let number = value.get_ref().as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// First and end of `3` or `3-9`.
fn range(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last && last < NODES_MAX).then_some((first, last + 1))
}

fn like(word: &str, known: &[&'static str]) -> Option<&'static str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('_', "-");
    let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(&word, known);
    let best = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.filter(|known| likeness(known) > LIKENESS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of the format's specification.
    #[test]
    fn the_specifications_example_is_read() {
        let page = include_str!("../../../../docs/formats/31-batch-machines.md");
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let machine = read(example).unwrap();
        assert_eq!((machine.nodes, machine.processors_per_node, machine.switch), (1173, 20, Some(36)));
        let fat = Partition {
            name: "fat".into(),
            queues: vec![3, 4],
            partitions: vec![],
            nodes: Some(vec![(1152, 1173)]),
            priority: 10,
        };
        assert_eq!(machine.partitions[0], fat);
        assert_eq!(
            machine.partitions[1],
            Partition { name: "rest".into(), queues: vec![1], nodes: None, ..Partition::default() }
        );
        let maintenance = Window {
            name: "maintenance".into(),
            from_s: 864_000,
            seconds: 28_800,
            every_s: Some(7_776_000),
            nodes: None,
            announced_s: Some(1_209_600),
        };
        let campaign = Window {
            name: "campaign".into(),
            from_s: 0,
            seconds: 2_592_000,
            every_s: None,
            nodes: Some(vec![(0, 100), (200, 201)]),
            announced_s: None,
        };
        assert_eq!(machine.windows, [maintenance, campaign]);
        assert_eq!(read("").unwrap(), Machine::default());
    }

    #[test]
    fn each_mistake_is_told_with_its_line() {
        let cases = [
            ("nods = 3\n", "line 1: there is no key 'nods'; did you mean 'nodes'?"),
            ("\nnodes = 0\n", "line 2: 'nodes' is a whole number from 1"),
            ("nodes = \"all\"\n", "line 1: 'nodes' is a whole number"),
            ("partition = 3\n", "line 1: 'partition' takes tables, each as [[partition]]"),
            ("block = [3]\n", "line 1: 'block' takes tables"),
            ("[[partition]]\nname = \"a\"\n", "line 1: a partition has 'queues' or 'partitions'"),
            ("[[partition]]\nqueues = [-1]\n", "line 2: 'queues' is a list of numbers"),
            ("[[partition]]\nqueues = [1]\nnodes = \"5-2\"\n", "line 3: 'nodes' is a text as"),
            ("[[block]]\nseconds = 5\n", "line 1: a block has 'from-seconds'"),
            (
                "[[block]]\nseconds = 5\nfrom-seconds = 1\nevery-seconds = 5\n",
                "line 1: 'every-seconds' is longer",
            ),
            ("[[block]]\nseconds = 5\nfrom-seconds = 1\nuntil = 5\n", "line 4: there is no key 'until'"),
            ("nodes = \n", "line 1: "),
        ];
        for (text, wanted) in cases {
            let told: Vec<String> = read(text).unwrap_err().iter().map(Problem::to_string).collect();
            assert!(told.iter().any(|told| told.starts_with(wanted)), "{text}: {told:?}");
        }
        let both = read("nods = 3\n[[block]]\n").unwrap_err();
        assert_eq!(both.len(), 3);
    }

    proptest! {
        #[test]
        fn any_text_is_a_machine_or_problems(text in "[a-z\\[\\]= \"0-9,\n-]{0,80}") {
            let _ = read(&text);
        }
    }
}
