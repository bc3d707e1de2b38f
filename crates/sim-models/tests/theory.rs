//! Against queueing theory: means of several runs lie within their confidence intervals.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, station, writes};
use tidepool_sim::{Options, Time};
use tidepool_sim_models::workload::{Arrivals, Ior, Program};
use tidepool_sim_models::{Op, Pfs, ServerSpec, Span, run};

/// Independent runs of each case.
const RUNS: u64 = 20;
/// Student's t for 19 degrees of freedom, 99.9 % two-sided: of a thousand right tests one fails, and seeds are fixed.
const T: f64 = 3.883;
const MS: u64 = 1_000_000;

/// Tells whether the mean of the runs fits what theory says.
fn fits(name: &str, expected: f64, one_run: impl Fn(u64) -> f64) {
    let seen: Vec<f64> = (1..=RUNS).map(one_run).collect();
    let n = seen.len() as f64;
    let mean = seen.iter().sum::<f64>() / n;
    let deviation = (seen.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let half = T * deviation / n.sqrt();
    println!("{name}: seeds 1 to {RUNS}: {mean:.4} +- {half:.4}, theory {expected:.4}");
    assert!((mean - expected).abs() <= half, "{name}: {mean} +- {half}, theory says {expected}");
    // An interval that holds everything proves nothing.
    assert!(half < 0.06 * expected, "{name}: the interval is too wide: {half} of {expected}");
}

/// Mean response time in ms of Poisson arrivals at a server, without the ways there and back.
fn open_queue(lanes: u32, service: Span, between: u64, seed: u64) -> f64 {
    let program = Program::Arrivals(Arrivals {
        ranks: 1,
        requests: 40_000,
        between: Span::Exponential(Time(between)),
        op: Op::Read,
        length: 1,
        span: 1,
        seed,
        file: 0,
    });
    let classes = vec![class("s", 1, station(lanes, service))];
    let applications = vec![application(program)];
    let mut pfs = Pfs::new(fast_network(1), idle_server(1), classes, even(1, 1), applications).unwrap();
    pfs.keep_requests = true;
    let (_, results) = run(pfs, seed, &Options::default()).unwrap();
    // It begins empty: the first part is left out.
    let times: Vec<u64> =
        results.all.iter().filter(|r| r.number >= 4_000).map(|r| r.end - r.begin - 4).collect();
    assert_eq!(times.len(), 36_000);
    times.iter().sum::<u64>() as f64 / times.len() as f64 / MS as f64
}

#[test]
fn m_m_1() {
    // Load 0.7: 1 / (1 - 0.7).
    fits("M/M/1", 1.0 / 0.3, |seed| open_queue(1, Span::Exponential(Time(MS)), MS * 10 / 7, seed));
}

#[test]
fn m_d_1() {
    // Pollaczek and Khinchine: 1 + 0.7 / (2 (1 - 0.7)).
    fits("M/D/1", 1.0 + 0.7 / 0.6, |seed| open_queue(1, fixed(MS), MS * 10 / 7, seed));
}

#[test]
fn m_m_c() {
    // Erlang C of 3 lanes at load 2.1.
    let (a, c) = (2.1f64, 3.0);
    let last = a.powi(3) / 6.0 * c / (c - a);
    let waits = last / (1.0 + a + a * a / 2.0 + last);
    fits("M/M/3", 1.0 + waits / (c - a), |seed| {
        open_queue(3, Span::Exponential(Time(MS)), (MS as f64 / a) as u64, seed)
    });
}

/// Requests per ms of `ranks` that think, ask, and wait.
fn closed(ranks: u32, think: u64, threads: ServerSpec, device: u64, seed: u64) -> f64 {
    let ior = Ior { think: Span::Exponential(Time(think)), op: Op::Read, ..writes(ranks, 4_000) };
    let classes = vec![class("s", 1, station(1, Span::Exponential(Time(device))))];
    let applications = vec![application(Program::Ior(ior))];
    let mut pfs = Pfs::new(fast_network(1), threads, classes, even(65_536, 1), applications).unwrap();
    pfs.keep_requests = true;
    let (_, results) = run(pfs, seed, &Options::default()).unwrap();
    // From when it has settled until the first rank has done all it had.
    let from = results.end.0 / 10;
    let last_of = |rank| results.all.iter().filter(move |r| r.rank == rank).map(|r| r.end).max().unwrap();
    let until = (0..ranks).map(last_of).min().unwrap();
    let done = results.all.iter().filter(|r| (from..until).contains(&r.end)).count();
    done as f64 / ((until - from) as f64 / MS as f64)
}

#[test]
fn machine_repair() {
    // Six ranks that think 5 ms in the mean, one server of 1 ms: its states' probabilities.
    let (n, ratio) = (6u32, 1.0 / 5.0f64);
    let mut weights = vec![1.0];
    (0..n).for_each(|k| weights.push(weights[k as usize] * f64::from(n - k) * ratio));
    let idle = 1.0 / weights.iter().sum::<f64>();
    fits("machine repair", 1.0 - idle, |seed| closed(n, 5 * MS, idle_server(1), MS, seed));
}

#[test]
fn mean_value_analysis_of_a_network() {
    // Thinking 3 ms, a server's thread 0.5 ms, its device 1 ms, all exponential: exact mean value analysis.
    let (think, service) = (3.0, [0.5, 1.0]);
    let (mut queue, mut throughput) = ([0.0; 2], 0.0);
    for n in 1..=5 {
        let times = [0, 1].map(|k| service[k] * (1.0 + queue[k]));
        throughput = f64::from(n) / (think + times[0] + times[1]);
        queue = times.map(|time| throughput * time);
    }
    let server = ServerSpec { request: Span::Exponential(Time(MS / 2)), ..idle_server(1) };
    fits("closed network", throughput, |seed| closed(5, 3 * MS, server.clone(), MS, seed));
}
