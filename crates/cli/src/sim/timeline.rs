//! A run as a time line that Perfetto (ui.perfetto.dev) and `chrome://tracing` show: the JSON of Chrome's Trace Event Format.
//!
//! Requests and what threads do lie on tracks on which nothing overlaps: viewers want complete events ("X") of a track to be
//! nested. How many requests are at a device is a counter ("C").

use crate::outfile::{self, How};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, Write};
use std::path::Path;
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim_models::{Pfs, Place, Record, RequestResult, Work};

/// Requests and pieces of work in a time line, without `--timeline-events`: about 40 MB of JSON.
pub const EVENTS_DEFAULT: u32 = 200_000;
pub const EVENTS_MAX: u32 = 10_000_000;
/// The viewer's process of all clients; servers follow.
const CLIENTS: u64 = 1;
/// Tracks of a server: its device, then its threads.
const DEVICE: u64 = 1;
const THREADS: u64 = 2;

/// What part of a run is wanted: what overlaps this time, at most so many events.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: u64,
    pub to: u64,
    pub events_max: usize,
}

pub struct Timeline {
    window: Window,
    requests: Vec<RequestResult>,
    work: Vec<Work>,
    /// Since when there is no room.
    full: Option<u64>,
}

impl Timeline {
    pub fn new(window: Window) -> Timeline {
        Timeline { window, requests: Vec::new(), work: Vec::new(), full: None }
    }

    /// For a checkpoint; the window is told elsewhere.
    pub fn save(&self, out: &mut Vec<u8>) {
        let Timeline { window: _, requests, work, full } = self;
        requests.save(out);
        work.save(out);
        full.save(out);
    }

    pub fn load(window: Window, pfs: &Pfs, from: &mut Reader<'_>) -> Result<Timeline, LoadError> {
        let requests: Vec<RequestResult> = Saved::load(from)?;
        let work: Vec<Work> = Saved::load(from)?;
        let timeline = Timeline { window, requests, work, full: Saved::load(from)? };
        let request =
            |one: &RequestResult| (one.application as usize) < pfs.applications.len() && one.begin <= one.end;
        let work = |one: &Work| one.server < pfs.servers() && one.came <= one.begin && one.begin <= one.until;
        let is_sound = timeline.events() <= window.events_max
            && timeline.requests.iter().all(request)
            && timeline.work.iter().all(work);
        match is_sound {
            true => Ok(timeline),
            false => Err(LoadError::Damaged("its time line has what the system has not, or too much")),
        }
    }

    pub fn take(&mut self, record: &Record) {
        let Window { from, to, .. } = self.window;
        let overlaps = |begin: u64, end: u64| begin < to && end >= from;
        match record {
            Record::Request(one) if overlaps(one.begin, one.end) && self.has_room(one.end) => {
                self.requests.push(*one)
            }
            Record::Work(one) if overlaps(one.came, one.until) && self.has_room(one.came) => {
                self.work.push(*one)
            }
            _ => {}
        }
    }

    fn has_room(&mut self, now: u64) -> bool {
        if self.full.is_none() && self.events() == self.window.events_max {
            self.full = Some(now);
        }
        self.full.is_none()
    }

    fn events(&self) -> usize {
        self.requests.len() + self.work.len()
    }

    /// What does not fit, and what can be done about it.
    pub fn note(&self) -> Option<String> {
        self.full.map(|since| {
            format!(
                "the time line has the first {} requests and pieces of work, until {:.6} s; --timeline-from and --timeline-to choose \
                 another part, --timeline-events more",
                self.events(),
                since as f64 / 1e9
            )
        })
    }

    pub fn value(&self) -> Value {
        json!({ "requests": self.requests.len(), "work": self.work.len(), "full_at_ns": self.full })
    }

    pub fn write(&self, path: &Path, pfs: &Pfs) -> io::Result<()> {
        outfile::write(path, How::default(), |out| self.write_to(out, pfs))
    }

    fn write_to(&self, out: &mut dyn Write, pfs: &Pfs) -> io::Result<()> {
        let mut out = Events { out, first: true };
        out.out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        self.clients(&mut out, pfs)?;
        self.servers(&mut out, pfs)?;
        out.out.write_all(b"\n]}\n")?;
        out.out.flush()
    }

    fn clients(&self, out: &mut Events<'_>, pfs: &Pfs) -> io::Result<()> {
        out.name("process_name", CLIENTS, 0, "clients")?;
        let mut by_rank: BTreeMap<(u32, u32), Vec<&RequestResult>> = BTreeMap::new();
        for request in &self.requests {
            by_rank.entry((request.application, request.rank)).or_default().push(request);
        }
        let mut first = 1;
        for ((application, rank), mut requests) in by_rank {
            requests.sort_by_key(|request| (request.begin, request.number));
            let name = format!("{} {rank}", pfs.applications[application as usize].name);
            let mut lanes = Lanes::default();
            for r in requests {
                let lane = lanes.take(r.begin, r.end);
                let about =
                    json!({ "number": r.number, "file": r.file, "offset": r.offset, "length": r.length });
                out.span((CLIENTS, first + lane), r.op.name(), (r.begin, r.end), about)?;
            }
            for lane in 0..lanes.count {
                out.name("thread_name", CLIENTS, first + lane, &name)?;
            }
            first += lanes.count;
        }
        Ok(())
    }

    fn servers(&self, out: &mut Events<'_>, pfs: &Pfs) -> io::Result<()> {
        let mut by_server: BTreeMap<u32, [Vec<&Work>; 2]> = BTreeMap::new();
        for work in &self.work {
            by_server.entry(work.server).or_default()[usize::from(work.place == Place::Device)].push(work);
        }
        for (server, [threads, device]) in by_server {
            let id = CLIENTS + 1 + u64::from(server);
            let class = &pfs.classes[pfs.class_of(server)].name;
            out.name("process_name", id, 0, &format!("server {server} ({class})"))?;
            out.name("thread_name", id, DEVICE, "device at work")?;
            for (begin, end, requests) in stretches(&device) {
                out.span((id, DEVICE), "at work", (begin, end), json!({ "requests": requests }))?;
            }
            for (time, count) in counts(&device) {
                out.event(json!({
                    "ph": "C", "name": "requests at the device", "pid": id, "ts": us(time), "args": { "requests": count },
                }))?;
            }
            self.threads(out, id, threads)?;
        }
        Ok(())
    }

    fn threads(&self, out: &mut Events<'_>, id: u64, mut all: Vec<&Work>) -> io::Result<()> {
        all.sort_by_key(|work| work.begin);
        let mut lanes = Lanes::default();
        for work in all {
            let lane = lanes.take(work.begin, work.until);
            let about = json!({ "file": work.file, "offset": work.offset, "length": work.length });
            out.span((id, THREADS + lane), work.op.name(), (work.begin, work.until), about)?;
        }
        for lane in 0..lanes.count {
            out.name("thread_name", id, THREADS + lane, &format!("thread {}", lane + 1))?;
        }
        Ok(())
    }
}

/// Stretches in which a device had something to do, and how many requests kept it so.
fn stretches(device: &[&Work]) -> Vec<(u64, u64, u64)> {
    let mut all: Vec<(u64, u64, u64)> = Vec::new();
    for work in device.iter().filter(|work| work.begin < work.until) {
        match all.last_mut() {
            Some(last) if last.1 >= work.begin => *last = (last.0, work.until.max(last.1), last.2 + 1),
            _ => all.push((work.begin, work.until, 1)),
        }
    }
    all
}

/// How many requests are at a device, at each moment at which that changes.
fn counts(device: &[&Work]) -> Vec<(u64, i64)> {
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for work in device {
        *changes.entry(work.came).or_default() += 1;
        *changes.entry(work.until).or_default() -= 1;
    }
    let mut count = 0i64;
    let each = changes.into_iter().map(|(time, change)| {
        count += change;
        (time, count)
    });
    each.collect()
}

/// Tracks on which nothing overlaps. What comes has to be in the order of its beginning.
#[derive(Default)]
struct Lanes {
    count: u64,
    /// When a track's last one ends, and its number.
    busy: BinaryHeap<Reverse<(u64, u64)>>,
    free: BinaryHeap<Reverse<u64>>,
}

impl Lanes {
    /// The first track that is free.
    fn take(&mut self, begin: u64, end: u64) -> u64 {
        while let Some(Reverse((until, lane))) = self.busy.peek().copied()
            && until <= begin
        {
            self.busy.pop();
            self.free.push(Reverse(lane));
        }
        let lane = self.free.pop().map_or(self.count, |lane| lane.0);
        self.count = self.count.max(lane + 1);
        self.busy.push(Reverse((end, lane)));
        lane
    }
}

/// The format's unit.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

struct Events<'a> {
    out: &'a mut dyn Write,
    first: bool,
}

impl Events<'_> {
    fn event(&mut self, event: Value) -> io::Result<()> {
        let between = if self.first { "" } else { ",\n" };
        self.first = false;
        write!(self.out, "{between}{event}")
    }

    fn span(
        &mut self,
        (pid, tid): (u64, u64),
        name: &str,
        (from, to): (u64, u64),
        about: Value,
    ) -> io::Result<()> {
        self.event(json!({
            "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(from), "dur": us(to - from), "args": about,
        }))
    }

    fn name(&mut self, what: &str, pid: u64, tid: u64, name: &str) -> io::Result<()> {
        self.event(json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_sim_models::Op;
    use tidepool_sim_models::experiment::Experiment;

    fn work(came: u64, begin: u64, until: u64) -> Work {
        let (place, op) = (Place::Device, Op::Read);
        Work { place, server: 0, op, file: 0, offset: 0, length: 1, came, begin, until }
    }

    #[test]
    fn tracks_are_shared_by_what_does_not_overlap() {
        let mut lanes = Lanes::default();
        let taken = [(0, 10), (2, 5), (5, 9), (6, 7), (10, 11)].map(|(begin, end)| lanes.take(begin, end));
        assert_eq!((taken, lanes.count), ([0, 1, 1, 2, 0], 3));
    }

    #[test]
    fn devices_are_at_work_while_anything_is_there() {
        // Two parts: the second request ends before the first.
        let all = [work(0, 0, 10), work(1, 8, 8), work(5, 10, 15), work(20, 20, 30)];
        let all: Vec<&Work> = all.iter().collect();
        assert_eq!(stretches(&all), [(0, 15, 2), (20, 30, 1)]);
        let expected = [(0, 1), (1, 2), (5, 3), (8, 2), (10, 1), (15, 0), (20, 1), (30, 0)];
        assert_eq!(counts(&all), expected);
    }

    #[test]
    fn a_time_line_keeps_its_window_and_no_more_than_it_may() {
        let mut line = Timeline::new(Window { from: 10, to: 20, events_max: 2 });
        for one in [work(0, 0, 9), work(1, 1, 10), work(20, 20, 21)] {
            line.take(&Record::Work(one));
        }
        assert_eq!((line.events(), line.note()), (1, None));
        for came in [11, 12, 13] {
            line.take(&Record::Work(work(came, came, came + 1)));
        }
        assert_eq!((line.events(), line.full), (2, Some(12)));
        assert!(line.note().unwrap().contains("first 2 requests and pieces of work, until 0.000000 s"));
    }

    #[test]
    fn a_kept_time_line_is_the_same_and_a_forged_one_is_refused() {
        let text = "[[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"1us\"\n[[servers]]\nname = \"s\"\ndevice = \"d\"\n\
            [[workload]]\nname = \"w\"\nkind = \"ior\"\nranks = 1\n";
        let pfs = Experiment::read(text, &|_| Err("no file".into())).unwrap().system().unwrap();
        let window = Window { from: 0, to: 100, events_max: 2 };
        let mut line = Timeline::new(window);
        for came in [1, 2, 3] {
            line.take(&Record::Work(work(came, came, 10)));
        }
        let saved = |line: &Timeline| {
            let mut bytes = Vec::new();
            line.save(&mut bytes);
            bytes
        };
        let bytes = saved(&line);
        let loaded = Timeline::load(window, &pfs, &mut Reader::new(&bytes)).unwrap();
        assert!(saved(&loaded) == bytes && loaded.full == Some(3));
        let small = Window { events_max: 1, ..window };
        assert!(Timeline::load(small, &pfs, &mut Reader::new(&bytes)).is_err());
        for wrong in [Work { server: 1, ..work(1, 1, 2) }, work(2, 1, 3), work(1, 3, 2)] {
            line.work[0] = wrong;
            assert!(Timeline::load(window, &pfs, &mut Reader::new(&saved(&line))).is_err(), "{wrong:?}");
        }
    }
}
