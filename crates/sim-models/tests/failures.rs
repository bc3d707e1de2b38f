//! Servers that fail and are repaired.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, station, writes};
use tidepool_sim::{Options, Time};
use tidepool_sim_models::outages::{Outage, drawn};
use tidepool_sim_models::workload::{Arrivals, Ior, Program};
use tidepool_sim_models::{Op, Pfs, Results, ServerSpec, Span, run};

const MS: u64 = 1_000_000;

fn outage(server: u32, from: u64, to: u64) -> Outage {
    Outage { server, from: Time(from), to: Time(to) }
}

/// Writes of two stripes on two servers, a millisecond each, one after the other; everything else takes a tick.
fn simulate(outages: Vec<Outage>, timeout: Option<u64>) -> Results {
    let ior = Ior { block: 4 * 131_072, transfer: 131_072, ..writes(1, 1) };
    let classes = vec![class("s", 2, station(1, fixed(MS)))];
    let layout = even(65_536, 2);
    let applications = vec![application(Program::Ior(ior))];
    let mut pfs = Pfs::new(fast_network(1), idle_server(1), classes, layout, applications).unwrap();
    (pfs.keep_requests, pfs.timeout) = (true, timeout.map(Time));
    run(pfs.with_outages(outages).unwrap(), 1, &Options::default()).unwrap().1
}

fn took(results: &Results) -> Vec<u64> {
    results.all.iter().map(|request| request.end - request.begin).collect()
}

#[test]
fn work_stands_still_while_a_server_is_down() {
    let one = MS + 4;
    assert_eq!(took(&simulate(Vec::new(), None)), [one; 4]);
    // In the middle of the second write; twice in the third one; before anything; of the other server at the same time.
    let of_second = simulate(vec![outage(0, MS + MS / 2, 7 * MS)], None);
    assert_eq!(took(&of_second), [one, one + 5 * MS + MS / 2, one, one]);
    assert_eq!(of_second.servers.iter().map(|s| s.down).collect::<Vec<_>>(), [5 * MS + MS / 2, 0]);
    assert_eq!(of_second.servers[0].device_busy, 4 * MS);
    let twice = simulate(vec![outage(1, 2_100_000, 2_200_000), outage(1, 2_300_000, 2_500_000)], None);
    assert_eq!(took(&twice), [one, one, one + 300_000, one]);
    let first = simulate(vec![outage(0, 0, 3 * MS), outage(1, 0, 2 * MS)], None);
    // The request came after a tick of the network; it is looked at when the server is up.
    assert_eq!(took(&first), [3 * MS + one - 2, one, one, one]);
    // An answer that is on its way is not held up; one that has not left the server is.
    assert_eq!(took(&simulate(vec![outage(0, MS + 5, MS + 9)], None))[0], one);
    assert_eq!(took(&simulate(vec![outage(0, MS + 4, MS + 9)], None))[0], one + 5);
}

#[test]
fn clients_give_up_and_go_on() {
    let results = simulate(vec![outage(0, 1_500_000, 7 * MS)], Some(3 * MS));
    // The second one is given up 3 ms after its start; so is the third, which waits for the same server.
    assert_eq!((results.failed, results.requests, results.open), (2, 2, 0));
    // The fourth begins when the server is up again, and waits behind what is left of the other two.
    let last = results.all.last().unwrap();
    assert_eq!((last.number, last.begin), (3, 1 + (MS + 4) + 6 * MS));
    assert!(last.end > 7 * MS + MS / 2 + MS);
    // What servers do that nobody waits for is done all the same.
    assert_eq!(results.servers.iter().map(|s| s.bytes_written).sum::<u64>(), 8 * 65_536);
    let patient = simulate(vec![outage(0, 1_500_000, 7 * MS)], Some(10 * MS));
    assert_eq!((patient.failed, patient.requests), (0, 4));
}

/// Threads stand still, too.
#[test]
fn servers_that_look_at_a_request_go_on_after_a_repair() {
    let ior = Ior { op: Op::Read, ..writes(1, 1) };
    let server = ServerSpec { request: fixed(10 * MS), ..idle_server(1) };
    let classes = vec![class("s", 1, station(1, fixed(1)))];
    let applications = vec![application(Program::Ior(ior))];
    let pfs = Pfs::new(fast_network(1), server, classes, even(65_536, 1), applications).unwrap();
    let pfs = pfs.with_outages(vec![outage(0, 5 * MS, 6 * MS)]).unwrap();
    assert_eq!(run(pfs, 1, &Options::default()).unwrap().1.end.0, 1 + 11 * MS + 5);
}

/// Mean number in an M/M/1 queue whose server breaks down and is repaired, from its balance equations, which are solved by
/// going through them again and again. Rates: arrivals, service, failures, repairs.
fn mean_in_queue(arrivals: f64, service: f64, fails: f64, repairs: f64) -> f64 {
    const STATES: usize = 200;
    // Up and down, by number.
    let mut p = vec![[1.0 / (2.0 * STATES as f64); 2]; STATES];
    for _ in 0..5_000 {
        for n in 0..STATES {
            let comes = |p: &[[f64; 2]], k: usize| if n > 0 { arrivals * p[n - 1][k] } else { 0.0 };
            let last = n + 1 == STATES;
            let served = if last { 0.0 } else { service * p[n + 1][0] };
            let leaves = if last { 0.0 } else { arrivals };
            let busy = if n > 0 { service } else { 0.0 };
            p[n][0] = (comes(&p, 0) + served + repairs * p[n][1]) / (leaves + busy + fails);
            p[n][1] = (comes(&p, 1) + fails * p[n][0]) / (leaves + repairs);
        }
    }
    let all: f64 = p.iter().map(|p| p[0] + p[1]).sum();
    let up: f64 = p.iter().map(|p| p[0]).sum();
    assert!((up / all - repairs / (fails + repairs)).abs() < 1e-6, "{}", up / all);
    (0..).zip(&p).map(|(n, p)| f64::from(n) * (p[0] + p[1])).sum::<f64>() / all
}

#[test]
fn m_m_1_with_breakdowns() {
    // Per ms: 0.5 come, 1 is served; a failure each 20 ms, repaired in 2 ms.
    let (arrivals, fails, repairs) = (0.5, 0.05, 0.5);
    let expected = mean_in_queue(arrivals, 1.0, fails, repairs) / arrivals;
    // The same in closed form, as for customers that a breakdown goes before (White and Christie 1958).
    let sum = fails + repairs;
    let closed = (sum * sum + fails) / (sum * (repairs - arrivals * sum));
    assert!((expected - closed).abs() < 1e-3, "{expected} {closed}");
    // Without failures it would be 2 ms.
    assert!(expected > 2.5 && (mean_in_queue(arrivals, 1.0, 1e-9, repairs) / arrivals - 2.0).abs() < 1e-3);
    let one_run = |seed: u64| {
        let program = Program::Arrivals(Arrivals {
            ranks: 1,
            requests: 30_000,
            between: Span::Exponential(Time(2 * MS)),
            op: Op::Read,
            length: 1,
            span: 1,
            seed,
            file: 0,
        });
        let classes = vec![class("s", 1, station(1, Span::Exponential(Time(MS))))];
        let applications = vec![application(program)];
        let mut pfs = Pfs::new(fast_network(1), idle_server(1), classes, even(1, 1), applications).unwrap();
        pfs.keep_requests = true;
        let mut outages = Vec::new();
        let spans = (Span::Exponential(Time(20 * MS)), Span::Exponential(Time(2 * MS)));
        drawn(seed, 0, spans, Time(70_000 * MS), &mut outages).unwrap();
        let results = run(pfs.with_outages(outages).unwrap(), seed, &Options::default()).unwrap().1;
        let times: Vec<u64> =
            results.all.iter().filter(|r| r.number >= 3_000).map(|r| r.end - r.begin).collect();
        times.iter().sum::<u64>() as f64 / times.len() as f64 / MS as f64
    };
    let seen: Vec<f64> = (1..=20).map(one_run).collect();
    let mean = seen.iter().sum::<f64>() / 20.0;
    let deviation = (seen.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 19.0).sqrt();
    // Student's t for 19 degrees of freedom, 99.9 % two-sided.
    let half = 3.883 * deviation / 20f64.sqrt();
    println!("M/M/1 with breakdowns: seeds 1 to 20: {mean:.4} +- {half:.4}, theory {expected:.4}");
    assert!((mean - expected).abs() <= half && half < 0.06 * expected);
}
