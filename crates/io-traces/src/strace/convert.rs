//! From calls to requests.

use super::line::{Call, Reader, Stamp, head, leading_number};
use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, wrong};
use crate::{OFFSET_MAX, Op, Options};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::path::Path;
use std::rc::Rc;

/// Most processes and threads of a trace that are alive at once.
pub const PROCESSES_MAX: usize = 65_536;
/// Most descriptors that all of them have open at once.
const DESCRIPTORS_MAX: usize = 1 << 20;
/// Most files whose ends are remembered.
const FILES_MAX: usize = 1 << 20;
const DAY: u64 = 86_400_000_000_000;
/// Time stamps below this are no seconds since 1970 (it is a day in 1973).
const EPOCH_MIN: u64 = 100_000_000_000_000_000;

/// An open file description: what dup and fork share.
struct Description {
    path: Option<String>,
    offset: u64,
    appends: bool,
    /// Its offset was never seen.
    guessed: bool,
}

#[derive(Clone)]
struct Slot {
    open: Rc<RefCell<Description>>,
    cloexec: bool,
}

type Table = Rc<RefCell<BTreeMap<i64, Slot>>>;

struct Follower<'a> {
    options: &'a Options,
    all: Collector<u32>,
    tables: HashMap<u32, Table>,
    /// Of all tables.
    descriptors: usize,
    /// How far files reach, as far as was seen.
    ends: HashMap<String, u64>,
    /// Last time of each process.
    last: HashMap<u32, u64>,
    day: u64,
    clock: u64,
}

pub fn read(from: impl BufRead, options: &Options) -> Result<Trace> {
    let mut lines = Lines::new(from);
    let mut reader = Reader::new(Path::new("/"));
    let mut follower = Follower {
        options,
        all: Collector::new(),
        tables: HashMap::new(),
        descriptors: 0,
        ends: HashMap::new(),
        last: HashMap::new(),
        day: 0,
        clock: 0,
    };
    let mut first_unread = None;
    while let Some((line, text)) = lines.next()? {
        let unread = reader.unread;
        if let Some((pid, _, rest)) = head(text) {
            if rest.starts_with("+++") {
                follower.ended(pid);
            } else {
                follower.appears(line, pid, &reader)?;
            }
        }
        if let Some(call) = reader.line(text) {
            follower.call(line, &call)?;
        } else if reader.unread > unread {
            first_unread = first_unread.or(Some(line));
            follower.all.ignore("lines that are no calls");
        }
    }
    let cut = lines.cut;
    follower.all.end(cut).map_err(|error| match (error.line, first_unread) {
        (None, Some(line)) => wrong(line, format!("this is no call; {}", error.what)),
        _ => error,
    })
}

impl Follower<'_> {
    /// A process that was not seen before begins with what its parent had, if it is known who that is.
    fn appears(&mut self, line: u64, pid: u32, reader: &Reader) -> Result<()> {
        if self.tables.contains_key(&pid) {
            return Ok(());
        }
        // The child may run before its parent's fork is told.
        let is_fork =
            |text: &str| ["clone(", "clone3(", "fork(", "vfork("].iter().any(|name| text.starts_with(name));
        let parents: Vec<(u32, bool)> = reader
            .unfinished()
            .filter(|(parent, text)| *parent != pid && is_fork(text))
            .map(|(parent, text)| (parent, text.contains("CLONE_FILES")))
            .collect();
        match parents[..] {
            [(parent, shares)] => self.inherit(line, parent, pid, shares),
            _ => {
                if parents.len() > 1 {
                    self.all.note("processes whose parent is not clear: what they inherited is not known");
                }
                self.insert_table(line, pid, Table::default())
            }
        }
    }

    fn insert_table(&mut self, line: u64, pid: u32, table: Table) -> Result<()> {
        if self.tables.len() >= PROCESSES_MAX {
            return Err(wrong(
                line,
                format!("more than {PROCESSES_MAX} processes at once; take a part of the trace"),
            ));
        }
        self.tables.insert(pid, table);
        Ok(())
    }

    fn inherit(&mut self, line: u64, parent: u32, child: u32, shares: bool) -> Result<()> {
        let table = self.tables.get(&parent).cloned().unwrap_or_default();
        if shares {
            return self.insert_table(line, child, table);
        }
        let copy = table.borrow().clone();
        self.room(line, copy.len())?;
        self.insert_table(line, child, Rc::new(RefCell::new(copy)))
    }

    fn room(&mut self, line: u64, more: usize) -> Result<()> {
        self.descriptors += more;
        match self.descriptors > DESCRIPTORS_MAX {
            true => Err(wrong(line, format!("more than {DESCRIPTORS_MAX} descriptors open at once"))),
            false => Ok(()),
        }
    }

    fn ended(&mut self, pid: u32) {
        self.last.remove(&pid);
        if let Some(table) = self.tables.remove(&pid)
            && Rc::strong_count(&table) == 1
        {
            self.descriptors = self.descriptors.saturating_sub(table.borrow().len());
        }
    }

    fn call(&mut self, line: u64, call: &Call) -> Result<()> {
        let name = call.name.as_str();
        match name {
            "clone" | "clone3" | "fork" | "vfork" if call.succeeded => {
                let child =
                    call.result.and_then(|child| u32::try_from(child).ok()).filter(|child| *child > 0);
                let Some(child) = child.filter(|child| !self.tables.contains_key(child)) else {
                    return Ok(());
                };
                self.inherit(line, call.pid, child, call.args.contains("CLONE_FILES"))
            }
            "execve" | "execveat" if call.succeeded => {
                self.exec(call.pid);
                Ok(())
            }
            // With -qq nothing else tells that a process has ended.
            "exit" | "exit_group" => {
                self.ended(call.pid);
                Ok(())
            }
            "open" | "openat" | "openat2" | "creat" => self.open(line, call),
            "close" if call.succeeded => self.close(line, call),
            "dup" | "dup2" | "dup3" | "fcntl" if call.succeeded => self.duplicate(line, call),
            "lseek" | "llseek" | "_llseek" if call.succeeded => self.seek(line, call),
            "read" | "readv" | "pread64" | "pread" | "preadv" | "preadv2" => self.moved(line, call, Op::Read),
            "write" | "writev" | "pwrite64" | "pwrite" | "pwritev" | "pwritev2" => {
                self.moved(line, call, Op::Write)
            }
            "fsync" | "fdatasync" if call.succeeded => {
                match self.described(line, call.pid, &call.args, call)? {
                    Some(open) => self.add(line, call, Op::Fsync, &open, (0, 0)),
                    None => Ok(()),
                }
            }
            "copy_file_range" | "sendfile" | "sendfile64" if call.succeeded => self.copied(line, call),
            "mmap" | "splice" | "sync_file_range" | "msync" | "ftruncate" | "fallocate"
            | "io_uring_enter" => {
                if call.paths.iter().any(|path| path.to_str().is_some_and(|path| self.options.wants(path))) {
                    self.all.ignore(name);
                }
                if name == "ftruncate" && call.succeeded {
                    self.truncated(call);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Nanoseconds of a call, never back within a process.
    fn time(&mut self, line: u64, call: &Call) -> Result<u64> {
        let at = match call.at {
            None => {
                return Err(wrong(line, "it has no time stamp; run 'strace -f -ttt -y -o FILE PROGRAM'"));
            }
            Some(Stamp::Seconds(at)) if at < EPOCH_MIN => {
                let what = "its time stamp is no time of day or date (strace -r?); run 'strace -f -ttt -y -o FILE PROGRAM'";
                return Err(wrong(line, what));
            }
            Some(Stamp::Seconds(at)) => at,
            Some(Stamp::Clock(at)) => {
                // Past midnight.
                if at + DAY / 2 < self.clock {
                    self.day += DAY;
                }
                self.clock = at;
                self.day + at
            }
        };
        let last = self.last.entry(call.pid).or_insert(at);
        if at < *last {
            let what = format!(
                "process {} goes back in time; was its clock set, or are lines out of order?",
                call.pid
            );
            return Err(wrong(line, what));
        }
        *last = at;
        Ok(at)
    }

    fn table(&mut self, line: u64, pid: u32) -> Result<Table> {
        if !self.tables.contains_key(&pid) {
            self.insert_table(line, pid, Table::default())?;
        }
        Ok(Rc::clone(&self.tables[&pid]))
    }

    fn put(&mut self, line: u64, pid: u32, fd: i64, slot: Slot) -> Result<()> {
        let table = self.table(line, pid)?;
        if table.borrow_mut().insert(fd, slot).is_none() {
            self.room(line, 1)?;
        }
        Ok(())
    }

    fn exec(&mut self, pid: u32) {
        let Some(table) = self.tables.get(&pid) else { return };
        // Threads are gone, and the table is the program's own.
        let kept: BTreeMap<i64, Slot> = table
            .borrow()
            .iter()
            .filter(|(_, slot)| !slot.cloexec)
            .map(|(fd, slot)| (*fd, slot.clone()))
            .collect();
        let before = if Rc::strong_count(table) == 1 { table.borrow().len() } else { 0 };
        self.descriptors = (self.descriptors + kept.len()).saturating_sub(before);
        self.tables.insert(pid, Rc::new(RefCell::new(kept)));
    }

    fn open(&mut self, line: u64, call: &Call) -> Result<()> {
        let (Some(fd), true) = (call.result, call.succeeded) else { return Ok(()) };
        // Flags stand behind the name.
        let flags = call.args.rsplit_once('"').map_or(call.args.as_str(), |(_, flags)| flags);
        let has = |flag: &str| {
            flags.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == flag)
        };
        let path = call.paths.last().and_then(|path| path.to_str());
        let path = path.filter(|path| self.options.wants(path) && !has("O_DIRECTORY") && !has("O_PATH"));
        let path = path.map(str::to_string);
        if let Some(path) = &path
            && (has("O_TRUNC") || call.name == "creat")
        {
            self.ends.remove(path);
        }
        let open = Description { path, offset: 0, appends: has("O_APPEND"), guessed: false };
        let open = Rc::new(RefCell::new(open));
        self.put(line, call.pid, fd, Slot { open: Rc::clone(&open), cloexec: has("O_CLOEXEC") })?;
        self.add(line, call, Op::Open, &open, (0, 0))
    }

    fn close(&mut self, line: u64, call: &Call) -> Result<()> {
        let Some(fd) = leading_number(&call.args) else { return Ok(()) };
        let removed = self.table(line, call.pid)?.borrow_mut().remove(&fd);
        let Some(slot) = removed else { return Ok(()) };
        self.descriptors = self.descriptors.saturating_sub(1);
        match Rc::strong_count(&slot.open) {
            1 => self.add(line, call, Op::Close, &slot.open, (0, 0)),
            _ => Ok(()),
        }
    }

    fn duplicate(&mut self, line: u64, call: &Call) -> Result<()> {
        let copies = call.name != "fcntl" || call.args.contains("F_DUPFD");
        let (Some(old), Some(new)) = (leading_number(&call.args), call.result) else { return Ok(()) };
        let known = self.table(line, call.pid)?.borrow().get(&old).cloned();
        if !copies {
            if call.args.contains("F_SETFD")
                && let Some(slot) = known
            {
                self.put(line, call.pid, old, Slot { cloexec: call.args.contains("FD_CLOEXEC"), ..slot })?;
            }
            return Ok(());
        }
        if old == new {
            return Ok(());
        }
        let Some(open) = self.described(line, call.pid, &call.args, call)? else {
            // What was there under this number is closed.
            if self.table(line, call.pid)?.borrow_mut().remove(&new).is_some() {
                self.descriptors = self.descriptors.saturating_sub(1);
            }
            return Ok(());
        };
        let cloexec = call.args.contains("CLOEXEC");
        self.put(line, call.pid, new, Slot { open, cloexec })
    }

    fn seek(&mut self, line: u64, call: &Call) -> Result<()> {
        let Some(open) = self.described(line, call.pid, &call.args, call)? else { return Ok(()) };
        if let Some(to) = call.result.and_then(|to| u64::try_from(to).ok()) {
            let mut open = open.borrow_mut();
            open.offset = to;
            open.guessed = false;
        }
        Ok(())
    }

    /// The description behind the descriptor that `arg` begins with; none when it is no file that counts.
    fn described(
        &mut self,
        line: u64,
        pid: u32,
        arg: &str,
        call: &Call,
    ) -> Result<Option<Rc<RefCell<Description>>>> {
        let Some(fd) = leading_number(arg) else { return Ok(None) };
        let shown = arg.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('<');
        if shown.is_some_and(|shown| !shown.starts_with('/')) {
            return Ok(None);
        }
        let table = self.table(line, pid)?;
        if let Some(slot) = table.borrow().get(&fd) {
            let open = &slot.open;
            return Ok(open.borrow().path.is_some().then(|| Rc::clone(open)));
        }
        let Some(shown) = shown else {
            self.all.ignore("calls on descriptors whose opening was not seen (strace -y names them)");
            return Ok(None);
        };
        // Opened before strace began, or inherited unseen.
        let path = shown.split('>').next().unwrap_or_default();
        debug_assert!(!call.name.is_empty());
        let path = Some(path.to_string()).filter(|path| self.options.wants(path));
        let counts = path.is_some();
        let open = Description { path, offset: 0, appends: false, guessed: true };
        let open = Rc::new(RefCell::new(open));
        self.put(line, pid, fd, Slot { open: Rc::clone(&open), cloexec: false })?;
        Ok(counts.then_some(open))
    }

    /// A read or write at the descriptor's offset or at one that it names.
    fn moved(&mut self, line: u64, call: &Call, op: Op) -> Result<()> {
        let Some(open) = self.described(line, call.pid, &call.args, call)? else { return Ok(()) };
        let Some(length) = call.result.filter(|_| call.succeeded).and_then(|n| u64::try_from(n).ok()) else {
            self.all.ignore("calls that failed");
            return Ok(());
        };
        let mut last = call.args.rsplit(", ");
        let place = match call.name.as_str() {
            "pread64" | "pread" | "preadv" | "pwrite64" | "pwrite" | "pwritev" => last.next(),
            "preadv2" | "pwritev2" => last.nth(1).filter(|place| *place != "-1"),
            _ => None,
        };
        let offset = match place {
            Some(place) => {
                let place = place.parse::<u64>().ok().filter(|place| *place <= OFFSET_MAX);
                place.ok_or_else(|| wrong(line, format!("{}: its last numbers are no offset", call.name)))?
            }
            None => self.advance(&open, op, length),
        };
        self.grow(&open, op, offset.saturating_add(length));
        self.add(line, call, op, &open, (offset, length))
    }

    /// Where a read or write at the descriptor's own offset begins; it moves on.
    fn advance(&mut self, open: &Rc<RefCell<Description>>, op: Op, length: u64) -> u64 {
        let mut open = open.borrow_mut();
        if op == Op::Write && open.appends {
            let end = open.path.as_ref().and_then(|path| self.ends.get(path)).copied();
            self.all.note("appends, at the end as far as it was seen");
            open.offset = end.unwrap_or(0);
        } else if open.guessed {
            self.all.note("requests at offsets that were not seen: counted from 0");
        }
        let offset = open.offset;
        open.offset = offset.saturating_add(length);
        offset
    }

    fn grow(&mut self, open: &Rc<RefCell<Description>>, op: Op, end: u64) {
        let open = open.borrow();
        let Some(path) = open.path.as_ref().filter(|_| op == Op::Write) else { return };
        let room = self.ends.len() < FILES_MAX;
        match self.ends.get_mut(path) {
            Some(known) => *known = end.max(*known),
            None if room => drop(self.ends.insert(path.clone(), end)),
            None => {}
        }
    }

    fn truncated(&mut self, call: &Call) {
        let end = call.args.rsplit(", ").next().and_then(|end| end.parse().ok());
        let path = call.paths.first().and_then(|path| path.to_str());
        if let (Some(end), Some(path)) = (end, path)
            && let Some(known) = self.ends.get_mut(path)
        {
            *known = end;
        }
    }

    /// Data that the kernel moves from one file to another: a read and a write.
    fn copied(&mut self, line: u64, call: &Call) -> Result<()> {
        let Some(length) = call.result.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0) else {
            return Ok(());
        };
        let mut args = call.args.split(", ");
        let parts: Option<[&str; 4]> = (|| Some([args.next()?, args.next()?, args.next()?, args.next()?]))();
        let Some([first, second, third, fourth]) = parts else { return Ok(()) };
        let (from, to, at_offset) = match call.name.as_str() {
            "copy_file_range" => (first, third, second == "NULL" && fourth == "NULL"),
            _ => (second, first, third == "NULL"),
        };
        let (from, to) =
            (self.described(line, call.pid, from, call)?, self.described(line, call.pid, to, call)?);
        if !at_offset {
            self.all.ignore("copies at offsets in memory");
            return Ok(());
        }
        for (open, op) in [(from, Op::Read), (to, Op::Write)] {
            if let Some(open) = open {
                let offset = self.advance(&open, op, length);
                self.grow(&open, op, offset.saturating_add(length));
                self.add(line, call, op, &open, (offset, length))?;
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        line: u64,
        call: &Call,
        op: Op,
        open: &Rc<RefCell<Description>>,
        (offset, length): (u64, u64),
    ) -> Result<()> {
        let open = open.borrow();
        let Some(path) = &open.path else { return Ok(()) };
        let at = self.time(line, call)?;
        let rank = self.all.rank(line, call.pid)?;
        let file = self.all.file(line, path)?;
        self.all.add(Raw { line, rank, at, op, file, offset, length, level: 0 })
    }
}
