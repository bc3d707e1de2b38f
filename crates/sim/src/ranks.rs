//! One rank's part of a run over several.
//!
//! ```text
//! greeting   is it the same simulation everywhere?
//! round k    threads post ── barrier ── thread 0: notices, rows and mail to and from all other ranks ── barrier ── ...
//! end        faults, reports, the last rows; then, when there was no fault, what each process has come to
//! ```
//! Rows go to rank 0 alone, mail to whom it is for, everything else to all: every rank ends with the same simulation.
//! What other ranks send is looked at before it is used: bytes that are no message end the run with an error.

use crate::checkpoint::{
    Load, LoadError, Reader, Save, Saved, load_course, load_event, save_course, save_event,
};
use crate::conservative::Ended;
use crate::emitted::{Emitted, Ledger};
use crate::error::{Error, Fault, FaultKind};
use crate::event::{Event, Key, ProcessId, Time};
use crate::exchange::{Far, Lead, Notice};
use crate::link::{Link, LinkError};
use crate::model::{Model, Process, Rules};
use crate::simulation::{Done, Report};
use tidepool_blocks::crc;

/// Most ranks of a run.
pub const RANKS_MAX: usize = 1 << 16;
/// Events that no rank handles in one round.
const COUNT_MAX: u64 = 1 << 48;
/// Bytes of states that are written before they go into a checksum.
const CHUNK: usize = 1 << 16;

/// What the first byte of each frame says, so that ranks that are at different points do not take one for another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frame {
    Greeting = 1,
    Round = 2,
    Summary = 3,
    States = 4,
}

/// How something is written and read.
type Way<T> = (Save<T>, Load<T>);

/// How what a model is made of is written and read.
pub(crate) struct Codec<M: Model> {
    /// None for a model whose states cannot be written: they stay at their ranks.
    pub state: Option<Way<M::State>>,
    pub message: Way<M::Message>,
    pub record: Way<M::Record>,
}

impl<M: Model> Clone for Codec<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Model> Copy for Codec<M> {}

impl<M: Model<Message: Saved, Record: Saved>> Codec<M> {
    pub fn without_states() -> Codec<M> {
        Codec { state: None, message: (Saved::save, Saved::load), record: (Saved::save, Saved::load) }
    }

    pub fn new() -> Codec<M>
    where
        M::State: Saved,
    {
        Codec { state: Some((Saved::save, Saved::load)), ..Codec::without_states() }
    }
}

impl<M: Model> Codec<M> {
    fn save_process(&self, process: &Process<M::State>, out: &mut Vec<u8>) {
        save_course(process, out);
        if let Some((save, _)) = self.state {
            save(&process.state, out);
        }
    }

    fn load_process(&self, process: &mut Process<M::State>, from: &mut Reader<'_>) -> Result<(), LoadError> {
        load_course(process, from)?;
        if let Some((_, load)) = self.state {
            process.state = load(from)?;
        }
        Ok(())
    }
}

/// The other ranks.
pub(crate) struct Ranks<'a, M: Model> {
    pub link: &'a mut dyn Link,
    pub about: &'a str,
    pub codec: Codec<M>,
}

/// Which processes are whose: in blocks by their numbers, one block for each thread, as many threads for each rank.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    processes: u32,
    /// Of a thread.
    size: u32,
    pub rank: usize,
    ranks: usize,
    /// That a rank may have.
    pub threads: usize,
}

impl Part {
    pub fn new(processes: u32, threads: usize, link: Option<&dyn Link>) -> Part {
        let (rank, ranks) = link.map_or((0, 1), |link| (link.rank(), link.ranks()));
        let size = processes.div_ceil(u32::try_from(threads * ranks).unwrap_or(u32::MAX));
        Part { processes, size, rank, ranks, threads }
    }

    /// Number among the threads of all ranks.
    #[inline]
    pub fn thread_of(self, process: ProcessId) -> usize {
        (process.0 / self.size) as usize
    }

    /// This rank's thread, when it is one of this rank's.
    pub fn own_thread_of(self, process: ProcessId) -> Option<usize> {
        let (thread, first) = (self.thread_of(process), self.rank * self.threads);
        (process.0 < self.processes && (first..first + self.threads).contains(&thread))
            .then(|| thread - first)
    }

    /// Threads with processes, on all ranks.
    pub fn threads_of_all(self) -> usize {
        self.processes.div_ceil(self.size) as usize
    }

    /// The first process of one of this rank's threads.
    pub fn first(self, thread: usize) -> u32 {
        let first = (self.rank * self.threads + thread) as u64 * u64::from(self.size);
        first.min(self.processes.into()) as u32
    }

    /// Where other ranks' threads are.
    pub fn far<'a, T>(self, save: &'a (dyn Fn(&T, &mut Vec<u8>) + Sync)) -> Far<'a, T> {
        Far { rank: self.rank, ranks: self.ranks, threads: self.threads, save }
    }

    /// The processes of a rank.
    pub fn of(self, rank: usize) -> std::ops::Range<usize> {
        let at = |rank: usize| Part { rank, ..self }.first(0) as usize;
        at(rank)..at(rank + 1)
    }

    /// This rank's processes, by thread. One thread has none when there are too few.
    pub fn split<T>(self, all: &mut [T]) -> Vec<&mut [T]> {
        let own = &mut all[self.of(self.rank)];
        if own.is_empty() { vec![own] } else { own.chunks_mut(self.size as usize).collect() }
    }
}

fn begin(frame: Frame, number: u64, out: &mut Vec<u8>) {
    out.clear();
    out.push(frame as u8);
    number.save(out);
}

fn expect(frame: Frame, number: u64, from: &mut Reader<'_>) -> Result<(), LoadError> {
    let same = u8::load(from)? == frame as u8 && from.u64()? == number;
    if same { Ok(()) } else { Err(LoadError::Damaged("it is at another point of the run")) }
}

fn ended(from: &Reader<'_>) -> Result<(), LoadError> {
    if from.is_empty() { Ok(()) } else { Err(LoadError::Damaged("something follows its end")) }
}

/// What another rank sent is wrong.
fn wrong(rank: usize, error: LoadError) -> Error {
    let why = match error {
        LoadError::Damaged(what) => what.to_string(),
        other => other.to_string(),
    };
    Error::Ranks(format!("what rank {rank} sent is no part of this run: {why}"))
}

fn lost(error: LinkError) -> Error {
    Error::Ranks(format!("ranks cannot reach each other: {error}"))
}

impl Saved for Notice {
    fn save(&self, out: &mut Vec<u8>) {
        [self.next, self.handled, self.undone, self.until].save(out);
        u8::from(self.fault).save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Notice, LoadError> {
        let [next, handled, undone, until] = <[u64; 4]>::load(from)?;
        let fault = match u8::load(from)? {
            fault @ 0..=1 if handled.max(undone) <= COUNT_MAX => fault == 1,
            _ => return Err(LoadError::Damaged("a notice has counts that cannot be")),
        };
        Ok(Notice { next, handled, undone, until, fault })
    }
}

impl Saved for Key {
    fn save(&self, out: &mut Vec<u8>) {
        self.time.0.save(out);
        self.source.0.save(out);
        self.sequence.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Key, LoadError> {
        Ok(Key { time: Time(from.u64()?), source: ProcessId(from.u32()?), sequence: from.u64()? })
    }
}

impl Saved for Fault {
    fn save(&self, out: &mut Vec<u8>) {
        self.at.save(out);
        self.process.0.save(out);
        match &self.kind {
            FaultKind::NoSuchProcess { to, processes } => {
                out.push(0);
                [to.0, *processes].save(out);
            }
            FaultKind::TooSoon { to, after, least } => {
                out.push(1);
                to.0.save(out);
                [after.0, least.0].save(out);
            }
            FaultKind::TooLate { to, after } => {
                out.push(2);
                to.0.save(out);
                after.0.save(out);
            }
            FaultKind::Model(why) => {
                out.push(3);
                why.save(out);
            }
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Fault, LoadError> {
        let (at, process) = (Key::load(from)?, ProcessId(from.u32()?));
        let kind = match u8::load(from)? {
            0 => FaultKind::NoSuchProcess { to: ProcessId(from.u32()?), processes: from.u32()? },
            1 => FaultKind::TooSoon {
                to: ProcessId(from.u32()?),
                after: Time(from.u64()?),
                least: Time(from.u64()?),
            },
            2 => FaultKind::TooLate { to: ProcessId(from.u32()?), after: Time(from.u64()?) },
            3 => FaultKind::Model(String::load(from)?),
            _ => return Err(LoadError::Damaged("a fault of no known kind")),
        };
        Ok(Fault { at, process, kind })
    }
}

impl Saved for Report {
    fn save(&self, out: &mut Vec<u8>) {
        let Report { events, undone, rollbacks, anti_messages, rounds, ahead, reached } = self;
        [*events, *undone, *rollbacks, *anti_messages, *rounds, *ahead, reached.0].save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Report, LoadError> {
        let all = <[u64; 7]>::load(from)?;
        if all[..6].iter().any(|count| *count > COUNT_MAX) || all[6] > Time::MAX.0 {
            return Err(LoadError::Damaged("a report has counts that cannot be"));
        }
        let [events, undone, rollbacks, anti_messages, rounds, ahead, reached] = all;
        Ok(Report { events, undone, rollbacks, anti_messages, rounds, ahead, reached: Time(reached) })
    }
}

/// Rows with their number before them.
pub(crate) fn save_rows<R>(rows: &[Emitted<R>], record: Save<R>, out: &mut Vec<u8>) {
    (rows.len() as u64).save(out);
    for row in rows {
        row.at.save(out);
        row.process.0.save(out);
        record(&row.record, out);
    }
}

pub(crate) fn load_rows<R>(
    from: &mut Reader<'_>,
    record: Load<R>,
    mut each: impl FnMut(Emitted<R>),
) -> Result<(), LoadError> {
    for _ in 0..from.u64()? {
        let (at, process) = (Key::load(from)?, ProcessId(from.u32()?));
        each(Emitted { at, process, record: record(from)? });
    }
    Ok(())
}

/// What must be the same on all ranks, and its name.
type Same = Vec<(&'static str, u64)>;

impl<M: Model> Ranks<'_, M> {
    /// For a shorter time.
    pub fn again(&mut self) -> Ranks<'_, M> {
        Ranks { link: &mut *self.link, about: self.about, codec: self.codec }
    }

    /// Gives all other ranks the same bytes.
    fn tell_all(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut into = vec![Vec::new(); self.link.ranks()];
        let out = vec![bytes; self.link.ranks()];
        self.link.exchange(&out, &mut into).map_err(lost)?;
        Ok(into)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<M> {
        let me = self.link.rank();
        (0..self.link.ranks()).filter(move |rank| *rank != me)
    }

    /// Whether all ranks are about to do the same with the same simulation.
    pub fn greet(
        &mut self,
        rules: Rules,
        mut same: Same,
        processes: &[Process<M::State>],
        pending: &[Event<M::Message>],
    ) -> Result<(), Error> {
        let (mut sum, mut some) = (0, Vec::new());
        let mut flush = |some: &mut Vec<u8>, least: usize| {
            if some.len() >= least {
                sum = crc::append(sum, some);
                some.clear();
            }
        };
        for process in processes {
            self.codec.save_process(process, &mut some);
            flush(&mut some, CHUNK);
        }
        let mut ordered: Vec<_> = pending.iter().collect();
        ordered.sort_unstable_by_key(|event| event.key);
        for event in ordered {
            save_event(event, self.codec.message.0, &mut some);
            flush(&mut some, CHUNK);
        }
        flush(&mut some, 0);
        same.extend([("ranks", self.link.ranks() as u64), ("processes", rules.processes.into())]);
        same.extend([("lookahead", rules.lookahead.0), ("states and messages (checksum)", sum.into())]);
        let mut mine = Vec::new();
        begin(Frame::Greeting, same.len() as u64, &mut mine);
        same.iter().for_each(|(_, value)| value.save(&mut mine));
        mine.extend_from_slice(self.about.as_bytes());
        let all = self.tell_all(&mine)?;
        for rank in self.others() {
            compare(&same, self.about, &all[rank])
                .map_err(|error| wrong(rank, error))?
                .map_or(Ok(()), |how| Err(Error::Ranks(format!("rank {rank} runs something else: {how}"))))?;
        }
        Ok(())
    }

    /// What each rank has come to becomes what all have come to.
    pub fn gather(
        self,
        part: Part,
        mine: Vec<Ended<Event<M::Message>>>,
        ledger: &Ledger<'_, M::Record>,
        processes: &mut [Process<M::State>],
    ) -> Result<Done<M>, Error> {
        let mut done: Done<M> = Done { pending: Vec::new(), report: Report::default() };
        let mut fault: Option<Fault> = None;
        for (pending, report, wrong) in mine {
            done.pending.extend(pending);
            done.report.beside(&report);
            fault = first(fault, wrong);
        }
        let rank = self.link.rank();
        let (mut summary, mut rows) = (Vec::new(), Vec::new());
        begin(Frame::Summary, 0, &mut summary);
        done.report.save(&mut summary);
        fault.save(&mut summary);
        let mut to_first = summary.clone();
        save_rows::<M::Record>(&[], self.codec.record.0, &mut summary);
        if rank != 0 {
            ledger.take(None, &mut rows);
        }
        save_rows(&rows, self.codec.record.0, &mut to_first);
        let out: Vec<&[u8]> =
            (0..self.link.ranks()).map(|to| if to == 0 { &to_first[..] } else { &summary[..] }).collect();
        let mut into = vec![Vec::new(); self.link.ranks()];
        self.link.exchange(&out, &mut into).map_err(lost)?;
        for rank in self.others() {
            let from = &mut Reader::new(&into[rank]);
            let (report, theirs) = self.summary(from, ledger).map_err(|error| wrong(rank, error))?;
            done.report.beside(&report);
            fault = first(fault, theirs);
        }
        ledger.finish(fault.as_ref().map(|fault| fault.at));
        if let Some(fault) = fault {
            return Err(Error::Fault(fault));
        }
        self.spread(part, done, processes)
    }

    fn summary(
        &self,
        from: &mut Reader<'_>,
        ledger: &Ledger<'_, M::Record>,
    ) -> Result<(Report, Option<Fault>), LoadError> {
        expect(Frame::Summary, 0, from)?;
        let summary = (Report::load(from)?, Option::load(from)?);
        let mut rows = Vec::new();
        load_rows(from, self.codec.record.1, |row| rows.push(row))?;
        ledger.post_far(0, rows);
        ended(from)?;
        Ok(summary)
    }

    fn spread(
        mut self,
        part: Part,
        mut done: Done<M>,
        processes: &mut [Process<M::State>],
    ) -> Result<Done<M>, Error> {
        let mut mine = Vec::new();
        begin(Frame::States, 0, &mut mine);
        let own = part.of(part.rank);
        processes[own].iter().for_each(|process| self.codec.save_process(process, &mut mine));
        (done.pending.len() as u64).save(&mut mine);
        done.pending.iter().for_each(|event| save_event(event, self.codec.message.0, &mut mine));
        let all = self.tell_all(&mine)?;
        drop(mine);
        for rank in self.others() {
            let from = &mut Reader::new(&all[rank]);
            let theirs = &mut processes[part.of(rank)];
            let pending = self.states(from, part, done.report.reached, theirs);
            done.pending.extend(pending.map_err(|error| wrong(rank, error))?);
        }
        Ok(done)
    }

    fn states(
        &self,
        from: &mut Reader<'_>,
        part: Part,
        reached: Time,
        processes: &mut [Process<M::State>],
    ) -> Result<Vec<Event<M::Message>>, LoadError> {
        expect(Frame::States, 0, from)?;
        for process in processes {
            self.codec.load_process(process, from)?;
        }
        let mut pending = Vec::new();
        for _ in 0..from.u64()? {
            let event = load_event(from, self.codec.message.1)?;
            check_event(event.key, event.to, reached.0, part)?;
            pending.push(event);
        }
        ended(from)?;
        Ok(pending)
    }
}

/// The earlier one.
fn first(one: Option<Fault>, other: Option<Fault>) -> Option<Fault> {
    [one, other].into_iter().flatten().min_by_key(|fault| fault.at)
}

/// How another rank's greeting differs.
fn compare(same: &Same, about: &str, bytes: &[u8]) -> Result<Option<String>, LoadError> {
    let from = &mut Reader::new(bytes);
    expect(Frame::Greeting, same.len() as u64, from)?;
    for (name, mine) in same {
        let theirs = from.u64()?;
        if theirs != *mine {
            return Ok(Some(format!("{name}: {theirs} there, {mine} here")));
        }
    }
    let theirs = from.rest();
    Ok((theirs != about.as_bytes())
        .then(|| format!("{} there, {about} here", String::from_utf8_lossy(theirs))))
}

/// Whether a message can be one of this run, from `certain` on.
pub(crate) fn check_event(key: Key, to: ProcessId, certain: u64, part: Part) -> Result<(), LoadError> {
    let fits = (certain..=Time::MAX.0).contains(&key.time.0) && key.source.0.max(to.0) < part.processes;
    if fits { Ok(()) } else { Err(LoadError::Damaged("a message comes too late, or is for nobody")) }
}

/// Reads a piece of mail: its key, whom it is for, itself.
pub(crate) type LoadMail<'a, T> = &'a dyn Fn(&mut Reader<'_>) -> Result<(Key, ProcessId, T), LoadError>;

/// What thread 0 of a rank does in each round for all its threads.
pub(crate) struct Leader<'a, 'r, 's, M: Model, T> {
    ranks: &'a mut Ranks<'r, M>,
    ledger: &'a Ledger<'s, M::Record>,
    part: Part,
    load: LoadMail<'a, T>,
    /// Why there is no next round.
    error: Option<Error>,
    // Kept for their memory.
    out: Vec<Vec<u8>>,
    into: Vec<Vec<u8>>,
    rows: Vec<Emitted<M::Record>>,
}

impl<'a, 'r, 's, M: Model, T> Leader<'a, 'r, 's, M, T> {
    pub fn new(
        ranks: &'a mut Ranks<'r, M>,
        ledger: &'a Ledger<'s, M::Record>,
        part: Part,
        load: LoadMail<'a, T>,
    ) -> Self {
        let empty = || vec![Vec::new(); ranks.link.ranks()];
        let (out, into) = (empty(), empty());
        Leader { ranks, ledger, part, load, error: None, out, into, rows: Vec::new() }
    }

    /// Why the run over ranks ended early, if it did.
    pub fn into_error(self) -> Option<Error> {
        self.error
    }

    fn write(&mut self, round: u64, mine: Notice, mail: &mut [Vec<u8>]) {
        if self.part.rank != 0 {
            self.ledger.take(Some(round), &mut self.rows);
        }
        let record = self.ranks.codec.record.0;
        for (to, (out, mail)) in
            self.out.iter_mut().zip(mail).enumerate().filter(|(to, _)| *to != self.part.rank)
        {
            begin(Frame::Round, round, out);
            mine.save(out);
            save_rows(if to == 0 { &self.rows } else { &[] }, record, out);
            out.append(mail);
        }
        self.rows.clear();
    }

    fn read(
        &self,
        round: u64,
        mine: Notice,
        deliver: &mut dyn FnMut(usize, usize, T),
    ) -> Result<Notice, Error> {
        let (mut all, mut rest) = (mine, Vec::new());
        for rank in self.ranks.others() {
            let mut from = Reader::new(&self.into[rank]);
            let notice = expect(Frame::Round, round, &mut from).and_then(|()| Notice::load(&mut from));
            all = all.and(&notice.map_err(|error| wrong(rank, error))?);
            rest.push((rank, from));
        }
        for (rank, mut from) in rest {
            self.letters(round, all.next, rank, &mut from, deliver).map_err(|error| wrong(rank, error))?;
        }
        Ok(all)
    }

    fn letters(
        &self,
        round: u64,
        certain: u64,
        rank: usize,
        from: &mut Reader<'_>,
        deliver: &mut dyn FnMut(usize, usize, T),
    ) -> Result<(), LoadError> {
        let mut rows = Vec::new();
        load_rows(from, self.ranks.codec.record.1, |row| rows.push(row))?;
        self.ledger.post_far(round, rows);
        while !from.is_empty() {
            let (key, to, item) = (self.load)(from)?;
            check_event(key, to, certain, self.part)?;
            let thread = self.part.own_thread_of(to).ok_or(LoadError::Damaged("mail for another rank"))?;
            deliver(rank, thread, item);
        }
        Ok(())
    }
}

impl<M: Model, T> Lead<T> for Leader<'_, '_, '_, M, T> {
    fn round(
        &mut self,
        round: u64,
        mine: Notice,
        mail: &mut [Vec<u8>],
        deliver: &mut dyn FnMut(usize, usize, T),
    ) -> Option<Notice> {
        self.write(round, mine, mail);
        let out: Vec<&[u8]> = self.out.iter().map(Vec::as_slice).collect();
        let met = self.ranks.link.exchange(&out, &mut self.into).map_err(lost);
        let all = met.and_then(|()| self.read(round, mine, deliver));
        all.map_err(|error| self.error = Some(error)).ok()
    }
}
