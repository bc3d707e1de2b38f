//! What is seen of a run while it goes on: latencies by workload and operation, and over time what servers, devices and
//! clients did. Memory is bounded: it depends on servers and workloads, never on the number of requests.

mod kept;
mod latency;
mod series;

use crate::message::Op;
use crate::results::{Place, Record, RequestResult, Work};
use crate::system::Pfs;
pub use latency::{Bin, Latencies};
pub use series::{BINS_MAX, Grid, Series};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tidepool_sim::Emitted;

/// Most servers that are seen over time one by one; of more there are classes only.
pub const SERVERS_MAX: u32 = 1_024;

/// What requests of a kind came to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Requests {
    pub bytes: u64,
    pub latencies: Latencies,
}

/// What servers did, in each stretch of time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Time with anything to do, of devices.
    pub device_busy: Series,
    /// Time that requests were at devices, waiting or not: by the length of a bin this is how many were there in the mean.
    pub device_time: Series,
    /// Time of threads at work.
    pub threads_busy: Series,
    /// Time that requests waited for a thread.
    pub threads_wait: Series,
    /// Of the device, when it has done them.
    pub bytes_read: Series,
    pub bytes_written: Series,
}

impl Activity {
    fn all(&mut self) -> [&mut Series; 6] {
        [
            &mut self.device_busy,
            &mut self.device_time,
            &mut self.threads_busy,
            &mut self.threads_wait,
            &mut self.bytes_read,
            &mut self.bytes_written,
        ]
    }

    fn add(&mut self, grid: Grid, work: &Work) {
        match work.place {
            Place::Threads => {
                self.threads_wait.add_span(grid, work.came, work.begin);
                self.threads_busy.add_span(grid, work.begin, work.until);
            }
            Place::Device => {
                self.device_busy.add_span(grid, work.begin, work.until);
                self.device_time.add_span(grid, work.came, work.until);
                match work.op {
                    Op::Read => self.bytes_read.add(grid, work.until, work.length.into()),
                    Op::Write => self.bytes_written.add(grid, work.until, work.length.into()),
                    _ => {}
                }
            }
        }
    }
}

/// What clients got, in each stretch of time: what was done in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    pub requests: Series,
    pub bytes_read: Series,
    pub bytes_written: Series,
}

/// How many requests are at a device.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// When those that the device has will be done.
    ends: BinaryHeap<Reverse<u64>>,
    /// Those that a scheduler holds back.
    waiting: u32,
    most: u32,
}

impl Queue {
    /// One more is there.
    fn count(&mut self, now: u64) {
        while self.ends.peek().is_some_and(|end| end.0 <= now) {
            self.ends.pop();
        }
        self.most = self.most.max(self.ends.len() as u32 + self.waiting);
    }

    fn waits(&mut self, now: u64) {
        self.waiting += 1;
        self.count(now);
    }

    /// The device gets one: of those that wait, or, where there is no scheduler, one that came just now.
    fn begin(&mut self, work: &Work) {
        self.ends.push(Reverse(work.until));
        match self.waiting.checked_sub(1) {
            Some(fewer) => self.waiting = fewer,
            None => self.count(work.came),
        }
    }
}

/// Takes records in the order of events.
#[derive(Clone, Debug)]
pub struct Observer {
    pub grid: Grid,
    /// By number of the application, and operation.
    pub requests: BTreeMap<(u32, Op), Requests>,
    pub clients: Progress,
    pub classes: Vec<Activity>,
    /// Of each server; none when there are more than [`SERVERS_MAX`].
    pub servers: Vec<Activity>,
    queues: Vec<Queue>,
    class_of: Vec<u16>,
    end: u64,
}

impl Observer {
    pub fn new(pfs: &Pfs) -> Observer {
        let servers = pfs.servers();
        let each = if servers <= SERVERS_MAX { servers as usize } else { 0 };
        Observer {
            grid: Grid::default(),
            requests: BTreeMap::new(),
            clients: Progress::default(),
            classes: vec![Activity::default(); pfs.classes.len()],
            servers: vec![Activity::default(); each],
            queues: vec![Queue::default(); servers as usize],
            class_of: (0..servers).map(|server| pfs.class_of(server) as u16).collect(),
            end: 0,
        }
    }

    /// Of runs with [`Pfs::keep_requests`] and [`Pfs::keep_work`].
    pub fn take(&mut self, emitted: &Emitted<Record>) {
        match &emitted.record {
            Record::Waits(server) => self.queues[*server as usize].waits(emitted.at.time.0),
            Record::Request(request) => self.request(request),
            Record::Work(work) => self.work(work),
            Record::Step(_) | Record::Piece(_) => {}
        }
    }

    fn request(&mut self, request: &RequestResult) {
        self.reach(request.end);
        let of = self.requests.entry((request.application, request.op)).or_default();
        of.latencies.add(request.end - request.begin);
        of.bytes += request.length;
        let (grid, at) = (self.grid, request.end);
        self.clients.requests.add(grid, at, 1);
        match request.op {
            Op::Read => self.clients.bytes_read.add(grid, at, request.length),
            Op::Write => self.clients.bytes_written.add(grid, at, request.length),
            _ => {}
        }
    }

    fn work(&mut self, work: &Work) {
        self.reach(work.until);
        let server = work.server as usize;
        self.classes[usize::from(self.class_of[server])].add(self.grid, work);
        if let Some(activity) = self.servers.get_mut(server) {
            activity.add(self.grid, work);
        }
        if work.place == Place::Device {
            self.queues[server].begin(work);
        }
    }

    /// Makes bins wide enough for this moment.
    fn reach(&mut self, time: u64) {
        self.end = self.end.max(time);
        while self.grid.ends_before(time) {
            self.grid.width *= 2;
            let clients = &mut self.clients;
            let clients = [&mut clients.requests, &mut clients.bytes_read, &mut clients.bytes_written];
            let activities = self.classes.iter_mut().chain(&mut self.servers);
            activities.flat_map(Activity::all).chain(clients).for_each(Series::fold);
        }
    }

    /// The last moment that anything was seen of.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many bins there are.
    pub fn bins(&self) -> usize {
        (self.end / self.grid.width + 1) as usize
    }

    /// Ticks of each bin: the last one ends with the run.
    pub fn widths(&self) -> Vec<u64> {
        let width = |bin: usize| self.grid.width.min(self.end - bin as u64 * self.grid.width);
        (0..self.bins()).map(width).collect()
    }

    /// A series by the length of each bin and by `among` more: shares and means.
    pub fn means(&self, series: &Series, among: f64) -> Vec<f64> {
        let widths = self.widths();
        let each = series.values(widths.len()).zip(&widths);
        each.map(|(sum, width)| if *width == 0 { 0.0 } else { sum as f64 / (*width as f64 * among) })
            .collect()
    }

    /// Most requests that were at a server's device at once.
    pub fn queue_most(&self, server: u32) -> u32 {
        self.queues[server as usize].most
    }

    /// All workloads together.
    pub fn by_op(&self) -> Vec<(Op, Requests)> {
        let mut all: BTreeMap<Op, Requests> = BTreeMap::new();
        for ((_, op), one) in &self.requests {
            let of = all.entry(*op).or_default();
            of.bytes += one.bytes;
            of.latencies.merge(&one.latencies);
        }
        all.into_iter().collect()
    }
}
