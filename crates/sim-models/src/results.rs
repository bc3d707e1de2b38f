//! What a run comes to.

use crate::cache::CacheResult;
use crate::message::Op;
use crate::message::Step;
use crate::node::NodeResult;
use crate::power::{Energy, PowerSpec};
use crate::system::{Pfs, State};
use tidepool_devices::ssd::Counts;
use tidepool_sim::{Emitted, Error, Options, ProcessId, Report, Simulation, Time};

/// What processes write out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Record {
    /// With [`Pfs::keep_requests`].
    Request(RequestResult),
    /// With [`Pfs::keep_steps`].
    Step(Step),
    /// With [`Pfs::keep_pieces`].
    Piece(PieceResult),
    /// With [`Pfs::keep_work`].
    Work(Work),
    /// With [`Pfs::keep_work`]: a request came to this server's device, where a scheduler decides when it gets it; its
    /// [`Work`] follows.
    Waits(u32),
}

/// A sub-request that was answered (S1 §III-C).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceResult {
    pub op: Op,
    pub file: u32,
    /// Number of the request in its client's list; of what servers move among themselves, the version of the block.
    pub request: u32,
    /// In the file.
    pub offset: u64,
    pub length: u32,
    /// Processes: who asked, and the server.
    pub sender: u32,
    pub receiver: u32,
    /// When it was sent first.
    pub start: u64,
    /// When all of the answer was there.
    pub end: u64,
    /// The answer was that another server has to do it.
    pub redirected: bool,
}

/// Which part of a server works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Threads,
    Device,
}

/// What a server's threads or its device have to do. It is written out when it is known how long it will take: when it comes or,
/// where a scheduler decides who goes next, when the device gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    pub place: Place,
    /// Its number.
    pub server: u32,
    pub op: Op,
    pub file: u32,
    pub offset: u64,
    pub length: u32,
    pub came: u64,
    /// Threads: when one takes it. Devices: from when on it keeps the device at work that would have nothing to do otherwise; with
    /// parts that work at once this is not when it begins.
    pub begin: u64,
    /// When it is done. Times in which the server is down are within.
    pub until: u64,
}

/// A request that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestResult {
    pub application: u32,
    pub rank: u32,
    /// In its rank's list.
    pub number: u32,
    pub op: Op,
    pub file: u32,
    pub offset: u64,
    pub length: u64,
    pub begin: u64,
    pub end: u64,
}

/// What a server did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ServerResult {
    pub number: u32,
    pub class: u16,
    /// Sub-requests answered.
    pub requests: u64,
    /// Most that were under way in it at once.
    pub inside_most: u32,
    /// Of the device; what was moved between servers is in it.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Time in which the device had anything to do.
    pub device_busy: u64,
    /// Time of the threads.
    pub threads_busy: u64,
    /// From coming to the device to done, all requests together.
    pub device_time: u64,
    pub device_requests: u64,
    /// Sub-requests that a server that buffers had no room for, or not the data.
    pub redirected: u64,
    /// Bytes that it has moved to the servers behind it.
    pub moved: u64,
    /// Time before the end of the last request in which it was down.
    pub down: u64,
    /// What it and its device drew until all was quiet, where power is given.
    pub energy: Option<Energy>,
    /// Of a server with a cache.
    pub cache: Option<CacheResult>,
    /// Requests that went to the device together with the one before them.
    pub merged: u64,
    /// Of a device of kind `flash`: pages and blocks.
    pub flash: Option<Counts>,
}

/// Of response times, in ticks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spread {
    pub count: u64,
    pub mean: f64,
    pub median: u64,
    /// 99 % are at most so long.
    pub p99: u64,
    pub most: u64,
}

impl Spread {
    /// Of times in any order.
    pub fn of(mut times: Vec<u64>) -> Spread {
        times.sort_unstable();
        let Some(most) = times.last().copied() else { return Spread::default() };
        let at = |share: f64| times[((times.len() as f64 * share).ceil() as usize).max(1) - 1];
        let sum: u128 = times.iter().map(|time| u128::from(*time)).sum();
        let mean = sum as f64 / times.len() as f64;
        Spread { count: times.len() as u64, mean, median: at(0.5), p99: at(0.99), most }
    }
}

/// One kind of operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OpResult {
    pub op: Op,
    pub bytes: u64,
    pub response: Spread,
}

/// Servers of one class.
#[derive(Clone, PartialEq, Debug)]
pub struct ClassResult {
    pub name: String,
    pub servers: u32,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Mean of the devices' time at work, as a share of the run.
    pub utilisation: f64,
    /// Mean time of a request at the device, waiting included.
    pub device_time: f64,
}

/// A run's end.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    pub report: Report,
    pub trace: u64,
    /// When the last request was done.
    pub end: Time,
    /// When devices had nothing to do any more either: what is put off may go on behind the last request.
    pub quiet: Time,
    pub requests: u64,
    /// That clients have read and written.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Response times of all requests together.
    pub waited: u128,
    /// Requests that clients gave up.
    pub failed: u64,
    /// Requests that were not done when the run ended.
    pub open: u64,
    /// Over links between switches, headers included; once for each link.
    pub switched: u64,
    /// Of [`run`] with [`Pfs::keep_requests`], in the order of their ending.
    pub all: Vec<RequestResult>,
    /// Of [`run`] with [`Pfs::keep_steps`], in the order of events: when, who, what.
    pub steps: Vec<(Time, ProcessId, Step)>,
    pub servers: Vec<ServerResult>,
    /// Where ranks share nodes, by number.
    pub nodes: Vec<NodeResult>,
}

impl Results {
    /// Bytes/s of all clients from time 0 to the end of the last request.
    pub fn throughput(&self) -> f64 {
        rate(self.bytes_read + self.bytes_written, self.end)
    }

    /// By operation, those that there were. Needs [`Pfs::keep_requests`].
    pub fn ops(&self) -> Vec<OpResult> {
        let of = |op| {
            let mine = || self.all.iter().filter(|request| request.op == op);
            let times: Vec<u64> = mine().map(|request| request.end - request.begin).collect();
            let bytes = mine().map(|request| request.length).sum();
            (!times.is_empty()).then(|| OpResult { op, bytes, response: Spread::of(times) })
        };
        Op::ALL.into_iter().filter_map(of).collect()
    }

    /// By class, those that have servers.
    pub fn classes(&self, pfs: &Pfs) -> Vec<ClassResult> {
        let of = |(at, name): (usize, &str)| {
            let mine: Vec<_> = self.servers.iter().filter(|server| usize::from(server.class) == at).collect();
            let sum = |what: fn(&ServerResult) -> u64| mine.iter().map(|server| what(server)).sum::<u64>();
            let all_time = self.end.0 as f64 * mine.len() as f64;
            (!mine.is_empty()).then(|| ClassResult {
                name: name.to_string(),
                servers: mine.len() as u32,
                bytes_read: sum(|server| server.bytes_read),
                bytes_written: sum(|server| server.bytes_written),
                utilisation: share(sum(|server| server.device_busy) as f64, all_time),
                device_time: share(
                    sum(|server| server.device_time) as f64,
                    sum(|server| server.device_requests) as f64,
                ),
            })
        };
        let names = pfs.classes.iter().map(|class| class.name.as_str());
        names.enumerate().filter_map(of).collect()
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn rate(bytes: u64, time: Time) -> f64 {
    share(bytes as f64 * 1e9, time.0 as f64)
}

/// Runs a system until nothing is left to be done.
pub fn run(pfs: Pfs, seed: u64, options: &Options<'_>) -> Result<(Simulation<Pfs>, Results), Error> {
    let (mut all, mut steps) = (Vec::new(), Vec::new());
    let (simulation, results) = run_with(pfs, seed, options, |emitted| match emitted.record {
        Record::Request(request) => all.push(request),
        Record::Step(step) => steps.push((emitted.at.time, emitted.process, step)),
        Record::Piece(_) | Record::Work(_) | Record::Waits(_) => {}
    })?;
    let results = Results { all, steps, ..results };
    Ok((simulation, results))
}

/// Like [`run`], but gives records to `sink` as they come, in the order of events, and keeps none of them: memory does not
/// grow with the number of requests.
pub fn run_with(
    pfs: Pfs,
    seed: u64,
    options: &Options<'_>,
    sink: impl FnMut(Emitted<Record>) + Send,
) -> Result<(Simulation<Pfs>, Results), Error> {
    let mut simulation = Simulation::new(pfs, seed)?;
    let report = match simulation.model().writes() {
        true => simulation.run_with(Time::MAX, options, sink)?,
        false => simulation.run(Time::MAX, options)?,
    };
    let results = Results::of(&simulation, report);
    Ok((simulation, results))
}

/// What some of the processes have come to, before [`Results::finish`].
pub(crate) fn gather_from<'a>(
    pfs: &Pfs,
    report: Report,
    trace: u64,
    states: impl Iterator<Item = &'a State>,
) -> Results {
    let mut results = Results {
        report,
        trace,
        end: Time::ZERO,
        quiet: Time::ZERO,
        requests: 0,
        bytes_read: 0,
        bytes_written: 0,
        waited: 0,
        failed: 0,
        open: 0,
        switched: 0,
        all: Vec::new(),
        steps: Vec::new(),
        servers: Vec::with_capacity(pfs.servers() as usize),
        nodes: Vec::new(),
    };
    for state in states {
        results.add(pfs, state);
    }
    results
}

impl Results {
    /// What a simulation has come to, by runs that did what the report says.
    pub fn of(simulation: &Simulation<Pfs>, report: Report) -> Results {
        let model = simulation.model();
        let mut results = gather_from(model, report, simulation.trace(), simulation.states());
        results.finish(model);
        results
    }

    /// What needs to know when it all ended.
    pub(crate) fn finish(&mut self, pfs: &Pfs) {
        self.quiet = self.quiet.max(self.end);
        self.nodes.sort_by_key(|node| node.number);
        let (end, quiet) = (self.end.0, self.quiet.0);
        for server in &mut self.servers {
            server.down = pfs.outages.down(server.number, end);
            let power = pfs.classes[usize::from(server.class)].power;
            let on = quiet - pfs.outages.down(server.number, quiet);
            let energy = power.server.energy(on, server.threads_busy, pfs.server.threads)
                + power.device.energy(on, server.device_busy, 1);
            server.energy = (power != PowerSpec::default()).then_some(energy);
        }
    }

    /// Of all servers and devices that have a power.
    pub fn energy(&self) -> Option<Energy> {
        let all = || self.servers.iter().filter_map(|server| server.energy);
        all().next().map(|_| all().sum())
    }

    fn add(&mut self, pfs: &Pfs, state: &State) {
        match state {
            State::Client(client) => {
                let numbers = &client.numbers;
                self.requests += numbers.requests;
                self.failed += numbers.failed;
                self.bytes_read += numbers.bytes_read;
                self.bytes_written += numbers.bytes_written;
                self.waited += u128::from(numbers.waited);
                self.open += client.flying.len() as u64;
                self.end = self.end.max(Time(numbers.last));
            }
            State::Server(server) => self.servers.push(ServerResult {
                number: server.number,
                class: pfs.class_of(server.number) as u16,
                requests: server.numbers.requests,
                inside_most: server.numbers.inside_most,
                bytes_read: 0,
                bytes_written: 0,
                device_busy: 0,
                threads_busy: server.numbers.busy,
                device_time: 0,
                device_requests: 0,
                redirected: server.buffer.as_ref().map_or(0, |buffer| buffer.numbers.redirected),
                moved: server.buffer.as_ref().map_or(0, |buffer| buffer.numbers.moved),
                cache: server.cache.as_ref().map(|cache| cache.result()),
                down: 0,
                energy: None,
                merged: 0,
                flash: None,
            }),
            State::Switch(switch) => self.switched += switch.bytes,
            State::Node(node) => {
                let ranks = pfs.nodes.as_ref().map_or(0, |nodes| nodes.ranks_of(node.number));
                self.nodes.push(node.result(ranks));
            }
            State::Device(disk) => {
                self.quiet = self.quiet.max(Time(disk.numbers.last));
                // A device's process is the one behind its server's.
                if let Some(server) = self.servers.last_mut() {
                    server.bytes_read = disk.numbers.bytes_read;
                    server.bytes_written = disk.numbers.bytes_written;
                    server.device_busy = disk.numbers.busy;
                    server.device_time = disk.numbers.time;
                    server.device_requests = disk.numbers.requests;
                    server.merged = disk.queue.as_ref().map_or(0, |queue| queue.numbers.merged);
                    server.flash = disk.device.flash_counts();
                }
            }
        }
    }
}
