//! What a run comes to.

use crate::message::Op;
use crate::message::Step;
use crate::system::{Pfs, State};
use tidepool_sim::{Error, Options, ProcessId, Report, Simulation, Time};

/// What processes write out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Record {
    /// With [`Pfs::keep_requests`].
    Request(RequestResult),
    /// With [`Pfs::keep_steps`].
    Step(Step),
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
    pub requests: u64,
    /// That clients have read and written.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Response times of all requests together.
    pub waited: u128,
    /// Requests that were not done when the run ended.
    pub open: u64,
    /// With [`Pfs::keep_requests`], in the order of their ending.
    pub all: Vec<RequestResult>,
    /// With [`Pfs::keep_steps`], in the order of events: when, who, what.
    pub steps: Vec<(Time, ProcessId, Step)>,
    pub servers: Vec<ServerResult>,
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
    let mut simulation = Simulation::new(pfs, seed)?;
    let (mut all, mut steps) = (Vec::new(), Vec::new());
    let report = if simulation.model().keep_requests || simulation.model().keep_steps {
        simulation.run_with(Time::MAX, options, |emitted| match emitted.record {
            Record::Request(request) => all.push(request),
            Record::Step(step) => steps.push((emitted.at.time, emitted.process, step)),
        })?
    } else {
        simulation.run(Time::MAX, options)?
    };
    let results = Results { all, steps, ..gather(&simulation, report) };
    Ok((simulation, results))
}

fn gather(simulation: &Simulation<Pfs>, report: Report) -> Results {
    gather_from(simulation.model(), report, simulation.trace(), simulation.states())
}

/// What some of the processes have come to.
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
        requests: 0,
        bytes_read: 0,
        bytes_written: 0,
        waited: 0,
        open: 0,
        all: Vec::new(),
        steps: Vec::new(),
        servers: Vec::with_capacity(pfs.servers() as usize),
    };
    for state in states {
        results.add(pfs, state);
    }
    results
}

impl Results {
    fn add(&mut self, pfs: &Pfs, state: &State) {
        match state {
            State::Client(client) => {
                let numbers = &client.numbers;
                self.requests += numbers.requests;
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
            }),
            State::Device(disk) => {
                // A device's process is the one behind its server's.
                if let Some(server) = self.servers.last_mut() {
                    server.bytes_read = disk.numbers.bytes_read;
                    server.bytes_written = disk.numbers.bytes_written;
                    server.device_busy = disk.numbers.busy;
                    server.device_time = disk.numbers.time;
                    server.device_requests = disk.numbers.requests;
                }
            }
        }
    }
}
