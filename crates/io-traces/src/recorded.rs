//! I/O that Tidepool's client has recorded: `docs/formats/30-recorded-io.md`. One file for each process; any number of them
//! after another are read as one.

use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, escaped, shown, whole, wrong};
use crate::{LENGTH_READ_MAX, NAMES_BYTES_MAX, OFFSET_MAX, Op, RANKS_MAX};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};

/// What a file begins with: name and version of the format.
pub const MAGIC: &str = "tidepool-io 1";
/// Latest time of either clock, in nanoseconds.
const TIME_MAX: u64 = i64::MAX as u64;
/// Bytes of the names of pools, nodes and boots.
const WORD_MAX: usize = 256;

/// Who recorded, and what its clock shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// Of the pool: files of several pools have numbers of their own.
    pub pool: &'a str,
    pub host: &'a str,
    pub process: u32,
    /// Of an MPI program or a job step.
    pub rank: Option<u32>,
    /// Processes with the same one share their monotonic clock.
    pub boot: &'a str,
    /// Both clocks at the same moment, in nanoseconds.
    pub monotonic: u64,
    pub real: u64,
}

impl Header<'_> {
    pub fn put(&self, out: &mut Vec<u8>) {
        let word = |text: &str| if text.is_empty() { "-".to_string() } else { escaped(text.as_bytes()) };
        let rank = self.rank.map_or("-".to_string(), |rank| rank.to_string());
        let (pool, host, boot) = (word(self.pool), word(self.host), word(self.boot));
        let (process, monotonic, real) = (self.process, self.monotonic, self.real);
        put(out, format_args!("{MAGIC} {pool} {host} {process} {rank} {boot} {monotonic} {real}\n"));
    }
}

/// The name of a file, before its first request.
pub fn put_file(out: &mut Vec<u8>, file: u64, name: &[u8]) {
    put(out, format_args!("file {file} {}\n", escaped(name)));
}

/// A request, with the times of the monotonic clock.
pub fn put_request(
    out: &mut Vec<u8>,
    op: Op,
    file: u64,
    (begin, took): (u64, u64),
    (offset, length): (u64, u64),
) {
    match op.moves_data() {
        true => put(out, format_args!("{op} {file} {begin} {took} {offset} {length}\n")),
        false => put(out, format_args!("{op} {file} {begin} {took}\n")),
    }
}

/// Nothing was kept back, and nothing more is expected.
pub fn put_end(out: &mut Vec<u8>) {
    put(out, format_args!("end\n"));
}

fn put(out: &mut Vec<u8>, line: std::fmt::Arguments<'_>) {
    out.write_fmt(line).expect("writing to memory never fails");
}

/// Processes of a job step have its ranks; others are ranks of their own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Who {
    Rank(u32),
    Process(String, u32),
}

/// What stands for a file that nobody has named.
fn object(pool: &str, file: u64) -> String {
    format!("{pool}-{file}")
}

/// Where a file's lines belong.
struct Part {
    /// Number of the collector.
    rank: u32,
    pool: String,
    /// From the monotonic clock to that of all.
    shift: i64,
}

/// Puts recordings together.
pub struct Recordings {
    all: Collector<Who>,
    /// By the collector's number.
    who: Vec<Who>,
    /// By boot: the real time when its monotonic clock was 0.
    boots: HashMap<String, i64>,
    /// Of objects.
    names: HashMap<String, String>,
    names_bytes: usize,
    /// Objects that have had a name: the same name again is another object.
    taken: HashMap<String, u32>,
    cut: bool,
}

impl Default for Recordings {
    fn default() -> Recordings {
        let (all, who) = (Collector::new(), Vec::new());
        Recordings {
            all,
            who,
            boots: HashMap::new(),
            names: HashMap::new(),
            names_bytes: 0,
            taken: HashMap::new(),
            cut: false,
        }
    }
}

pub fn read(from: impl BufRead) -> Result<Trace> {
    let mut all = Recordings::default();
    all.add(from)?;
    all.end()
}

impl Recordings {
    /// Reads one file, or several one behind the other.
    pub fn add(&mut self, from: impl BufRead) -> Result<()> {
        let mut lines = Lines::new(from);
        let mut part: Option<Part> = None;
        let mut ended = true;
        loop {
            let next = lines.next()?.map(|(line, text)| (line, text.to_string()));
            let Some((line, text)) = next else { break };
            if lines.cut {
                // What a process that is killed has written last.
                self.cut = true;
                break;
            }
            if text.starts_with("tidepool-io") {
                self.count_end(ended);
                part = Some(self.begin(line, &text)?);
                ended = false;
                continue;
            }
            let Some(part) = &part else {
                return Err(wrong(line, format!("'{}': '{MAGIC} ...' is expected first", shown(&text))));
            };
            // A process that wanted to run another program, and could not, goes on behind its end.
            ended = text == "end";
            if !ended {
                self.one(line, &text, part)?;
            }
        }
        self.count_end(ended);
        Ok(())
    }

    fn count_end(&mut self, ended: bool) {
        if !ended {
            self.all.note("recordings without an end: what the process did last is missing");
        }
    }

    fn begin(&mut self, line: u64, text: &str) -> Result<Part> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let ["tidepool-io", version, pool, host, process, rank, boot, monotonic, real] = words[..] else {
            let what =
                "a recording begins with 'tidepool-io 1 POOL HOST PROCESS RANK BOOT MONOTONIC_NS REAL_NS'";
            return Err(wrong(line, what));
        };
        if version != "1" {
            return Err(wrong(line, format!("version '{}'; this program reads version 1", shown(version))));
        }
        if let Some(long) = [pool, host, boot].iter().find(|word| word.len() > WORD_MAX) {
            return Err(wrong(line, format!("'{}': at most {WORD_MAX} bytes", shown(long))));
        }
        let process = whole(line, "process", process, 0, u32::MAX)?;
        let monotonic = whole(line, "monotonic time", monotonic, 0, TIME_MAX)? as i64;
        let real = whole(line, "real time", real, 0, TIME_MAX)? as i64;
        // The first process of a node sets the clock of all that share it: real time may be set while they run.
        let key = if boot == "-" { format!("{host} {process}") } else { boot.to_string() };
        let shift = *self.boots.entry(key.clone()).or_insert(real - monotonic);
        let who = match rank {
            "-" => Who::Process(key, process),
            rank => Who::Rank(whole(line, "rank", rank, 0, RANKS_MAX - 1)?),
        };
        let number = self.all.rank(line, who.clone())?;
        if number as usize == self.who.len() {
            self.who.push(who);
        }
        Ok(Part { rank: number, pool: pool.to_string(), shift })
    }

    fn one(&mut self, line: u64, text: &str, part: &Part) -> Result<()> {
        let words: Vec<&str> = text.split_ascii_whitespace().take(7).collect();
        let unclear = || {
            let what = "'file NUMBER NAME', 'open|fsync|close NUMBER BEGIN TOOK' or 'read|write NUMBER BEGIN TOOK OFFSET LENGTH'";
            wrong(line, format!("'{}': {what} is expected", shown(text)))
        };
        let file = whole(line, "file", words.get(1).ok_or_else(unclear)?, 0, u64::MAX)?;
        if let ["file", _, name] = words[..] {
            return self.name(line, part, file, name);
        }
        let op = Op::ALL.into_iter().find(|op| op.name() == words[0]).ok_or_else(unclear)?;
        let (begin, took, place) = match (words[2..].iter().as_slice(), op.moves_data()) {
            ([begin, took], false) => (begin, took, None),
            ([begin, took, offset, length], true) => (begin, took, Some((offset, length))),
            _ => return Err(unclear()),
        };
        let begin = whole(line, "begin", begin, 0, TIME_MAX)? as i64;
        whole(line, "time taken", took, 0, TIME_MAX)?;
        let (offset, length) = match place {
            Some((offset, length)) => (
                whole(line, "offset", offset, 0, OFFSET_MAX)?,
                whole(line, "length", length, 0, LENGTH_READ_MAX)?,
            ),
            None => (0, 0),
        };
        let at = begin.checked_add(part.shift).and_then(|at| u64::try_from(at).ok());
        let at = at.ok_or_else(|| wrong(line, "its time is before 1970, or too late"))?;
        // Its name may be told later, or by another process, which has opened it.
        let number = self.all.file_of_word(line, &object(&part.pool, file))?;
        self.all.add(Raw { line, rank: part.rank, at, op, file: number, offset, length, level: 0 })
    }

    fn name(&mut self, line: u64, part: &Part, file: u64, name: &str) -> Result<()> {
        let key = object(&part.pool, file);
        if self.names.contains_key(&key) {
            return Ok(());
        }
        let count = self.taken.entry(name.to_string()).or_insert(0);
        *count += 1;
        let name = if *count == 1 { name.to_string() } else { format!("{name}~{count}") };
        self.names_bytes += name.len();
        if self.names_bytes > NAMES_BYTES_MAX {
            let what =
                format!("names of files take more than {NAMES_BYTES_MAX} bytes; take some of the recordings");
            return Err(wrong(line, what));
        }
        self.names.insert(key, name);
        Ok(())
    }

    /// Ranks of a job step first, then other processes in the order of their first requests.
    pub fn end(mut self) -> Result<Trace> {
        let mut first: BTreeMap<u32, u64> = BTreeMap::new();
        for raw in self.all.requests_mut().iter() {
            let at = first.entry(raw.rank).or_insert(raw.at);
            *at = raw.at.min(*at);
        }
        let ranks =
            self.who.iter().filter_map(|who| if let Who::Rank(rank) = who { Some(*rank) } else { None });
        let mut next = ranks.max().map_or(0, |rank| rank + 1);
        let mut others: Vec<(u64, u32)> = Vec::new();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for (number, at) in first {
            match &self.who[number as usize] {
                Who::Rank(rank) => drop(numbers.insert(number, *rank)),
                Who::Process(..) => others.push((at, number)),
            }
        }
        others.sort_unstable();
        for (_, number) in others {
            numbers.insert(number, next);
            next += 1;
        }
        if next > RANKS_MAX {
            return Err(wrong(1, format!("more than {RANKS_MAX} ranks")));
        }
        for raw in self.all.requests_mut() {
            raw.rank = numbers[&raw.rank];
        }
        self.all.keep_ranks();
        self.all.rename(&self.names);
        // Processes follow each other in the files, not in time.
        self.all.requests_mut().sort_by_key(|raw| raw.at);
        let cut = self.cut;
        self.all.end(cut)
    }
}
