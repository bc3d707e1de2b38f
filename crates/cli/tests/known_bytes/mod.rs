//! What every byte of some files must be, whoever works on them at the same time.
//!
//! A byte is what the last acknowledged write says. While a write is under way, and after one of which nobody knows how it
//! ended, it is that or what the write says. Reads are told what was written while they ran. What changes a file's size
//! or name is alone on the file, and is known as the content before and after.

pub mod clients;

use std::collections::BTreeMap;
use std::ops::Range;

/// Most bytes of a file.
pub const SIZE_MAX: u64 = 400_000;

/// Something written over a range: by a write, or by punching.
#[derive(Clone, Debug)]
struct Over {
    at: u64,
    data: Vec<u8>,
}

impl Over {
    fn range(&self) -> Range<u64> {
        self.at..self.at + self.data.len() as u64
    }

    fn put(&self, content: &mut [u8]) {
        content[self.at as usize..][..self.data.len()].copy_from_slice(&self.data);
    }

    fn byte(&self, place: u64) -> Option<u8> {
        self.range().contains(&place).then(|| self.data[(place - self.at) as usize])
    }
}

/// A read under way, with all that its bytes may be.
#[derive(Debug)]
struct Reading {
    at: u64,
    before: Vec<u8>,
    since: Vec<Over>,
}

/// What a change of a file's size or name makes of it.
#[derive(Debug)]
pub struct Change {
    pub after: Vec<u8>,
    /// What lies behind may be zeros when it ends half-way: it is cut off and added in steps.
    pub floor: u64,
    /// It is one step: the whole content is that before or that after.
    pub atomic: bool,
    /// The name may be missing when it ends half-way.
    pub missing: bool,
}

/// A file that all clients work on.
#[derive(Debug)]
pub struct File {
    pub name: String,
    /// Another one for each object that the name has been.
    pub key: u64,
    pub content: Vec<u8>,
    /// Writes under way, and those whose end nobody knows, by their number.
    writes: BTreeMap<u64, Over>,
    reads: BTreeMap<u64, Reading>,
    alone: Option<(u64, Change)>,
    /// Somebody must look before the next change: an operation's end is not known.
    pub unsure: bool,
    /// What did not end well, for the look.
    doubts: Vec<Change>,
    lost: Vec<Over>,
    /// What may lie behind the end, of writes that went there and did not end well: the page of promises lets it show where
    /// the file grows over it later and nothing is written.
    behind: Vec<Vec<u8>>,
}

/// What a file must not show.
#[derive(Debug)]
pub struct Wrong(pub String);

impl File {
    pub fn new(name: String, key: u64) -> File {
        File {
            name,
            key,
            content: Vec::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            alone: None,
            unsure: false,
            doubts: Vec::new(),
            lost: Vec::new(),
            behind: Vec::new(),
        }
    }

    pub fn size(&self) -> u64 {
        self.content.len() as u64
    }

    /// No operation is under way.
    pub fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.alone.is_none() && self.writes.is_empty()
    }

    /// Whether a write here would meet no other one: which of two is last nobody could say.
    pub fn may_write(&self, range: &Range<u64>) -> bool {
        let apart = |other: Range<u64>| other.end <= range.start || range.end <= other.start;
        !self.unsure && self.alone.is_none() && self.writes.values().all(|write| apart(write.range()))
    }

    pub fn may_read(&self) -> bool {
        !self.unsure && self.alone.is_none()
    }

    pub fn may_change(&self) -> bool {
        !self.unsure && self.is_idle()
    }

    pub fn begin_write(&mut self, number: u64, at: u64, data: Vec<u8>) {
        let over = Over { at, data };
        assert!(self.may_write(&over.range()) && over.range().end <= self.size(), "{over:?} {}", self.size());
        self.reads.values_mut().for_each(|read| read.since.push(over.clone()));
        self.writes.insert(number, over);
    }

    pub fn end_write(&mut self, number: u64) {
        self.writes.remove(&number).expect("it has begun").put(&mut self.content);
    }

    pub fn begin_read(&mut self, number: u64, at: u64, len: u64) {
        let before = self.content[at as usize..(at + len) as usize].to_vec();
        let since = self.writes.values().cloned().collect();
        self.reads.insert(number, Reading { at, before, since });
    }

    /// Compares what was read with all that it may be.
    pub fn end_read(&mut self, number: u64, seen: &[u8]) -> Result<(), Wrong> {
        let read = self.reads.remove(&number).expect("it has begun");
        if seen.len() != read.before.len() {
            let text = format!("{} of {} bytes from {} on", seen.len(), read.before.len(), read.at);
            return Err(Wrong(text));
        }
        let may_be = |place: usize, byte: u8| {
            let at = read.at + place as u64;
            byte == read.before[place]
                || read.since.iter().any(|over| over.byte(at) == Some(byte))
                || self.lay_behind(at, read.before[place], byte)
        };
        let bad: Vec<usize> = (0..seen.len()).filter(|place| !may_be(*place, seen[*place])).collect();
        described(&bad, read.at, seen, &read.before)
    }

    /// Whether a byte that nobody wrote may be that of a write that did not end well.
    fn lay_behind(&self, at: u64, wanted: u8, seen: u8) -> bool {
        wanted == 0 && self.behind.iter().any(|content| content.get(at as usize) == Some(&seen))
    }

    pub fn begin_change(&mut self, number: u64, change: Change) {
        assert!(self.may_change());
        self.alone = Some((number, change));
    }

    pub fn end_change(&mut self) {
        let change = self.alone.take().expect("it has begun").1;
        self.content = change.after;
        if change.atomic || change.missing {
            self.behind.clear();
        }
    }

    /// Nobody knows how an operation ended: it may have happened, or a part of it.
    pub fn lose(&mut self, number: u64) {
        self.reads.remove(&number);
        if let Some(over) = self.writes.remove(&number) {
            self.lost.push(over);
            // Reads that run have been told; those to come wait for the look.
            self.unsure = true;
        }
        if self.alone.as_ref().is_some_and(|(alone, _)| *alone == number) {
            let change = self.alone.take().expect("it is there").1;
            self.behind.push(change.after.clone());
            self.doubts.push(change);
            self.unsure = true;
        }
    }

    /// Takes what somebody has seen after an operation that ended badly for what is so, if it may be.
    pub fn look(&mut self, seen: Option<&[u8]>) -> Result<(), Wrong> {
        assert!(self.is_idle());
        let mut doubts = std::mem::take(&mut self.doubts);
        for over in std::mem::take(&mut self.lost) {
            let mut after = self.content.clone();
            over.put(&mut after);
            doubts.push(Change { floor: after.len() as u64, after, atomic: false, missing: false });
        }
        let Some(seen) = seen else {
            let wrong = || Wrong("the name is gone".into());
            return doubts.iter().any(|doubt| doubt.missing).then_some(()).ok_or_else(wrong);
        };
        if let [doubt] = &doubts[..]
            && doubt.atomic
        {
            if seen != self.content && seen != doubt.after {
                let text = format!("{} bytes, neither those before nor those after", seen.len());
                return Err(Wrong(text));
            }
        } else {
            self.may_have_become(seen, &doubts)?;
        }
        self.content = seen.to_vec();
        self.unsure = false;
        Ok(())
    }

    /// The name was gone, and is made anew, empty.
    pub fn begin_remake(&mut self) {
        self.doubts.push(Change { after: Vec::new(), floor: 0, atomic: false, missing: true });
    }

    /// Each byte is that before or after one of the changes, or nothing where a change was to cut off or to add.
    fn may_have_become(&self, seen: &[u8], doubts: &[Change]) -> Result<(), Wrong> {
        let all: Vec<&[u8]> =
            std::iter::once(&self.content[..]).chain(doubts.iter().map(|doubt| &doubt.after[..])).collect();
        let longest = all.iter().map(|one| one.len()).max().unwrap_or(0);
        let floors = doubts.iter().map(|doubt| doubt.floor as usize);
        let shortest = floors.min().unwrap_or(longest);
        if !(shortest..=longest).contains(&seen.len()) {
            return Err(Wrong(format!("{} bytes, not {shortest} to {longest}", seen.len())));
        }
        let may_be = |place: usize, byte: u8| {
            all.iter().any(|one| one.get(place) == Some(&byte))
                || (place >= shortest && byte == 0)
                || all.iter().any(|one| {
                    one.get(place).is_some_and(|wanted| self.lay_behind(place as u64, *wanted, byte))
                })
        };
        let bad: Vec<usize> = (0..seen.len()).filter(|place| !may_be(*place, seen[*place])).collect();
        let sizes: Vec<_> = all.iter().map(|one| one.len()).collect();
        described(&bad, 0, seen, &self.content)
            .map_err(|Wrong(what)| Wrong(format!("{what}; {} of {sizes:?} bytes", seen.len())))
    }

    /// Demands this content, to the byte.
    pub fn must_be(&self, seen: &[u8]) -> Result<(), Wrong> {
        if seen.len() != self.content.len() {
            return Err(Wrong(format!("{} bytes instead of {}", seen.len(), self.content.len())));
        }
        let may_be = |place: usize| {
            seen[place] == self.content[place]
                || self.lay_behind(place as u64, self.content[place], seen[place])
        };
        let bad: Vec<usize> = (0..seen.len()).filter(|place| !may_be(*place)).collect();
        described(&bad, 0, seen, &self.content)
    }
}

/// Neighbouring bytes of a wrong run that may be right.
const BY_CHANCE: usize = 4;
const RUNS_SHOWN: usize = 20;

fn described(bad: &[usize], at: u64, seen: &[u8], wanted: &[u8]) -> Result<(), Wrong> {
    let (Some(first), Some(last)) = (bad.first(), bad.last()) else { return Ok(()) };
    let some =
        |bytes: &[u8]| bytes.iter().skip(*first).take(16).map(|b| format!("{b:02x}")).collect::<String>();
    let zeros = bad.iter().filter(|place| seen[**place] == 0).count();
    Err(Wrong(format!(
        "{} bytes are wrong ({zeros} of them zero), from {} to {}: {} instead of {}; wrong are{}",
        bad.len(),
        at + *first as u64,
        at + *last as u64,
        some(seen),
        some(wanted),
        runs(bad, at, seen)
    )))
}

/// How what was seen differs from what the model has, in words.
pub fn difference(seen: &[u8], wanted: &[u8]) -> String {
    let bad: Vec<usize> = (0..seen.len().min(wanted.len())).filter(|n| seen[*n] != wanted[*n]).collect();
    let bytes = described(&bad, 0, seen, wanted).err().map_or("no byte is wrong".into(), |Wrong(what)| what);
    format!("{} bytes instead of {}, {bytes}", seen.len(), wanted.len())
}

/// Where the wrong bytes lie: single ones that are right by chance do not end a run.
fn runs(bad: &[usize], at: u64, seen: &[u8]) -> String {
    let is_zero = |place: usize| seen[place] == 0;
    let mut all: Vec<(usize, usize, usize)> = Vec::new();
    for place in bad {
        match all.last_mut() {
            Some((_, end, zeros)) if *place < *end + BY_CHANCE => {
                (*end, *zeros) = (place + 1, *zeros + usize::from(is_zero(*place)));
            }
            _ => all.push((*place, place + 1, is_zero(*place).into())),
        }
    }
    let shown = all.iter().take(RUNS_SHOWN);
    shown
        .map(|(start, end, zeros)| format!(" {}..{} ({zeros} zeros)", at + *start as u64, at + *end as u64))
        .collect()
}
