//! From lines to a trace: ranks, names, order, and what was left out.

use crate::text::{Result, TraceError, escaped, escaped_word, wrong};
use crate::{
    LENGTH_MAX, LENGTH_READ_MAX, NAMES_BYTES_MAX, OFFSET_MAX, Op, RANKS_MAX, REQUESTS_MAX, SPAN_MAX,
};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io::{self, Write};

/// Reasons for which something was left out, by name; more are counted together.
const REASONS_MAX: usize = 64;

/// One request of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub rank: u32,
    /// Nanoseconds since the first request of all.
    pub at: u64,
    pub op: Op,
    /// Number of the file in [`Trace::files`].
    pub file: u32,
    /// In bytes; 0 where no data are moved.
    pub offset: u64,
    /// In bytes, at most [`LENGTH_MAX`].
    pub length: u64,
}

/// All requests in the order of time, and what there was beside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    pub requests: Vec<Request>,
    /// Names of files, as words: escaped as a URL's.
    pub files: Vec<String>,
    pub ranks: u32,
    /// What was left out, why, and how often.
    pub ignored: BTreeMap<String, u64>,
    /// What is not exactly as in the file, and how often.
    pub notes: BTreeMap<String, u64>,
}

impl Trace {
    /// Nanoseconds from the first request to the last.
    pub fn span(&self) -> u64 {
        self.requests.last().map_or(0, |request| request.at)
    }

    /// As `docs/formats/28-experiments.md` has it.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "# rank time op file offset length")?;
        for r in &self.requests {
            let (seconds, ns) = (r.at / 1_000_000_000, r.at % 1_000_000_000);
            let name = &self.files[r.file as usize];
            writeln!(out, "{} {seconds}.{ns:09} {} {name} {} {}", r.rank, r.op, r.offset, r.length)?;
        }
        Ok(())
    }
}

/// Something read from a line, before order and ranks are settled.
#[derive(Clone, Copy)]
pub struct Raw {
    pub line: u64,
    pub rank: u32,
    pub at: u64,
    pub op: Op,
    pub file: u32,
    pub offset: u64,
    pub length: u64,
    /// Only the lowest number that occurs is kept: the same data may be told at several levels.
    pub level: u8,
}

/// What is read is put in here.
pub struct Collector<K> {
    requests: Vec<Raw>,
    files: Vec<String>,
    numbers: HashMap<String, u32>,
    names_bytes: usize,
    ranks: HashMap<K, u32>,
    /// Ranks have the numbers that the trace gives them.
    numbered: bool,
    ignored: BTreeMap<String, u64>,
    notes: BTreeMap<String, u64>,
}

impl<K: Hash + Eq> Collector<K> {
    pub fn new() -> Collector<K> {
        Collector {
            requests: Vec::new(),
            files: Vec::new(),
            numbers: HashMap::new(),
            names_bytes: 0,
            ranks: HashMap::new(),
            numbered: false,
            ignored: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Number of a file.
    pub fn file(&mut self, line: u64, name: &str) -> Result<u32> {
        self.file_as(line, name, |name| escaped(name.as_bytes()))
    }

    /// Number of a file whose name is escaped already.
    pub fn file_of_word(&mut self, line: u64, name: &str) -> Result<u32> {
        self.file_as(line, name, escaped_word)
    }

    fn file_as(&mut self, line: u64, name: &str, escape: impl Fn(&str) -> String) -> Result<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let word = escape(name);
        self.names_bytes += name.len() + word.len();
        if self.names_bytes > NAMES_BYTES_MAX {
            let what =
                format!("names of files take more than {NAMES_BYTES_MAX} bytes; take a part of the trace");
            return Err(wrong(line, what));
        }
        let number = self.files.len() as u32;
        self.numbers.insert(name.to_string(), number);
        self.files.push(word);
        Ok(number)
    }

    /// Numbers ranks as they come up.
    pub fn rank(&mut self, line: u64, who: K) -> Result<u32> {
        let next = self.ranks.len() as u32;
        let rank = *self.ranks.entry(who).or_insert(next);
        match rank < RANKS_MAX {
            true => Ok(rank),
            false => Err(wrong(line, format!("more than {RANKS_MAX} ranks; take a part of the trace"))),
        }
    }

    pub fn ignore(&mut self, why: &str) {
        count(&mut self.ignored, why, 1);
    }

    pub fn note(&mut self, what: &str) {
        count(&mut self.notes, what, 1);
    }

    /// Takes a request; those of no bytes count as left out.
    pub fn add(&mut self, raw: Raw) -> Result<()> {
        let raw = if raw.op.moves_data() { raw } else { Raw { offset: 0, length: 0, ..raw } };
        if raw.op.moves_data() && raw.length == 0 {
            self.ignore("reads and writes of no bytes");
            return Ok(());
        }
        if raw.length > LENGTH_READ_MAX {
            return Err(wrong(
                raw.line,
                format!("a {} of {} bytes; at most {LENGTH_READ_MAX}", raw.op, raw.length),
            ));
        }
        if raw.offset > OFFSET_MAX || raw.offset + raw.length > OFFSET_MAX {
            let what = format!(
                "a {} up to byte {}; at most {OFFSET_MAX}",
                raw.op,
                raw.offset.saturating_add(raw.length)
            );
            return Err(wrong(raw.line, what));
        }
        if raw.length > LENGTH_MAX {
            self.note("requests cut, being longer than 1 GiB");
        }
        let (mut offset, mut left) = (raw.offset, raw.length);
        loop {
            if self.requests.len() == REQUESTS_MAX {
                let what = format!("more than {REQUESTS_MAX} requests; take a part of the trace");
                return Err(wrong(raw.line, what));
            }
            let length = left.min(LENGTH_MAX);
            self.requests.push(Raw { offset, length, ..raw });
            (offset, left) = (offset + length, left - length);
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Other names for files, by the names that they have.
    pub fn rename(&mut self, names: &HashMap<String, String>) {
        for (old, number) in &self.numbers {
            if let Some(new) = names.get(old) {
                self.files[*number as usize] = escaped_word(new);
            }
        }
    }

    /// Ranks are not to be numbered anew.
    pub fn keep_ranks(&mut self) {
        self.numbered = true;
    }

    /// The requests so far, to put them in order.
    pub fn requests_mut(&mut self) -> &mut Vec<Raw> {
        &mut self.requests
    }

    /// Everything in the order of time. `cut`: the last line had no end.
    pub fn end(mut self, cut: bool) -> Result<Trace> {
        if let Some(level) = self.requests.iter().map(|raw| raw.level).min() {
            let before = self.requests.len();
            self.requests.retain(|raw| raw.level == level);
            let more = (before - self.requests.len()) as u64;
            if more > 0 {
                count(&mut self.ignored, "requests told again at another level", more);
            }
        }
        // Ranks of which nothing is left have no number.
        if !self.numbered {
            let mut numbers = HashMap::new();
            for raw in &mut self.requests {
                let next = numbers.len() as u32;
                raw.rank = *numbers.entry(raw.rank).or_insert(next);
            }
        }
        let Some(first) = self.requests.iter().map(|raw| raw.at).min() else {
            let why: Vec<String> = self.ignored.iter().map(|(why, n)| format!("{n} {why}")).collect();
            let what = match why.is_empty() {
                true => "it has no request".to_string(),
                false => format!("it has no request that counts; left out: {}", why.join(", ")),
            };
            return Err(TraceError { line: None, what });
        };
        if let Some(late) = self.requests.iter().find(|raw| raw.at - first > SPAN_MAX) {
            let what = format!(
                "it is {} s after the first request; at most {} s",
                (late.at - first) / 1_000_000_000,
                SPAN_MAX / 1_000_000_000
            );
            return Err(wrong(late.line, what));
        }
        let back = self.requests.windows(2).filter(|pair| pair[1].at < pair[0].at).count() as u64;
        if back > 0 {
            count(&mut self.notes, "lines put in the order of time", back);
        }
        if cut {
            count(&mut self.notes, "last line without an end: it may be cut", 1);
        }
        self.requests.sort_by_key(|raw| raw.at);
        let ranks = self.requests.iter().map(|raw| raw.rank).max().unwrap_or(0) + 1;
        // Files that only what was left out has used keep no number.
        let mut numbers = HashMap::new();
        let mut files = Vec::new();
        let mut requests = Vec::with_capacity(self.requests.len());
        for raw in self.requests {
            let file = *numbers.entry(raw.file).or_insert_with(|| {
                files.push(std::mem::take(&mut self.files[raw.file as usize]));
                files.len() as u32 - 1
            });
            let Raw { rank, at, op, offset, length, .. } = raw;
            requests.push(Request { rank, at: at - first, op, file, offset, length });
        }
        Ok(Trace { requests, files, ranks, ignored: self.ignored, notes: self.notes })
    }
}

fn count(all: &mut BTreeMap<String, u64>, why: &str, n: u64) {
    let key = if all.len() < REASONS_MAX || all.contains_key(why) { why } else { "other things" };
    *all.entry(key.to_string()).or_default() += n;
}
