//! Golden traces with virtual time stamps: what happens to a request, and when.

mod common;

use common::{application, class, even, fixed, idle_server, station, writes};
use tidepool_sim::{Options, ProcessId, Time};
use tidepool_sim_models::workload::Program;
use tidepool_sim_models::{Network, Op, Pfs, Role, Span, Step, run};

/// Steps of all processes in the order of time, as `time who: what`.
fn steps(mut pfs: Pfs) -> Vec<String> {
    (pfs.keep_steps, pfs.keep_requests) = (true, true);
    let (simulation, results) = run(pfs, 1, &Options::default()).unwrap();
    let told = |(time, process, step): &(Time, ProcessId, Step)| {
        let who = match simulation.model().roles()[process.0 as usize] {
            Role::Client(_, rank) => format!("client {rank}"),
            Role::Server(number) => format!("server {number}"),
            Role::Device(number) => format!("device {number}"),
            Role::Switch(number) => format!("switch {number}"),
            Role::Node(number) => format!("node {number}"),
        };
        format!("{} {who}: {:?} {} {}+{}", time.0, step.kind, step.op, step.offset, step.length)
    };
    results.steps.iter().map(told).collect()
}

/// One server; 1 us latency, a byte takes a nanosecond on links, 10 us to look, 100 us to write, 500 ns to the device.
fn system(eager: u32, op: Op) -> Pfs {
    let network = Network { latency: Time(1_000), client_bandwidth: 1_000_000_000, header: 100, eager };
    let server = tidepool_sim_models::ServerSpec { request: fixed(10_000), ..idle_server(500) };
    let mut servers = class("s", 1, station(1, fixed(100_000)));
    servers.bandwidth = 1_000_000_000;
    let program = Program::Ior(tidepool_sim_models::workload::Ior { op, ..writes(1, 1) });
    Pfs::new(network, server, vec![servers], even(65_536, 1), vec![application(program)]).unwrap()
}

/// The chart of S1's Figure 2: request, positive ack, flow, the device, completion, response.
#[test]
fn a_large_write_goes_the_way_of_figure_2() {
    assert_eq!(
        steps(system(4096, Op::Write)),
        [
            "1 client 0: Start open 0+0",
            // Latency; then the header's 100 bytes, which are on both links at once.
            "1001 server 0: Request write 0+65536",
            "1101 server 0: Received write 0+65536",
            "11101 server 0: Processed write 0+65536",
            // The positive ack is handled when its first byte is there: data may go.
            "12101 client 0: Ack write 0+65536",
            "13101 server 0: Data write 0+65536",
            // 65,536 and the header.
            "78737 server 0: DataReceived write 0+65536",
            "79237 device 0: Submit write 0+65536",
            "179737 server 0: Complete write 0+65536",
            "180737 client 0: Response write 0+65536",
            "180837 client 0: Finished write 0+65536",
        ]
    );
}

#[test]
fn a_small_write_takes_its_data_along() {
    assert_eq!(
        steps(system(65_536, Op::Write)),
        [
            "1 client 0: Start open 0+0",
            "1001 server 0: Request write 0+65536",
            "66637 server 0: Received write 0+65536",
            "76637 server 0: Processed write 0+65536",
            "77137 device 0: Submit write 0+65536",
            "177637 server 0: Complete write 0+65536",
            "178637 client 0: Response write 0+65536",
            "178737 client 0: Finished write 0+65536",
        ]
    );
}

#[test]
fn a_reads_data_come_with_the_response() {
    assert_eq!(
        steps(system(4096, Op::Read)),
        [
            "1 client 0: Start open 0+0",
            "1001 server 0: Request read 0+65536",
            "1101 server 0: Received read 0+65536",
            "11101 server 0: Processed read 0+65536",
            "11601 device 0: Submit read 0+65536",
            "112101 server 0: Complete read 0+65536",
            "113101 client 0: Response read 0+65536",
            "178737 client 0: Finished read 0+65536",
        ]
    );
}

/// S1 §III-D: the slowest sub-request decides.
#[test]
fn a_request_is_done_when_its_slowest_sub_request_is() {
    let slow = |ticks| station(1, fixed(ticks));
    let classes = vec![class("fast", 3, slow(1_000)), class("slow", 1, slow(70_000))];
    let program = |transfer| {
        let ior = tidepool_sim_models::workload::Ior { transfer, block: transfer, ..writes(1, 1) };
        vec![application(Program::Ior(ior))]
    };
    let took = |transfer| {
        let network = common::fast_network(10);
        let mut pfs =
            Pfs::new(network, idle_server(1), classes.clone(), even(100, 4), program(transfer)).unwrap();
        pfs.keep_requests = true;
        let (_, results) = run(pfs, 1, &Options::default()).unwrap();
        assert_eq!(results.requests, 1);
        results.all[0].end - results.all[0].begin
    };
    // Two latencies, two ways between server and device.
    assert_eq!(took(300), 22 + 1_000);
    assert_eq!(took(400), 22 + 70_000);
    // The fifth sub-request is the first server's second.
    assert_eq!(took(500), 22 + 70_000);
}

#[test]
fn requests_wait_for_those_they_depend_on() {
    let began = |depth, think| {
        let ior = tidepool_sim_models::workload::Ior { depth, think, open: true, ..writes(1, 4) };
        let class = vec![class("s", 1, station(9, fixed(1_000)))];
        let network = common::fast_network(10);
        let applications = vec![application(Program::Ior(ior))];
        let mut pfs = Pfs::new(network, idle_server(1), class, even(65_536, 1), applications).unwrap();
        pfs.keep_requests = true;
        let (_, results) = run(pfs, 1, &Options::default()).unwrap();
        let mut began: Vec<_> = results.all.iter().map(|r| (r.number, r.begin)).collect();
        began.sort_unstable();
        began.into_iter().map(|(_, begin)| begin).collect::<Vec<_>>()
    };
    // Each takes 1022; the close waits for all.
    let long = 1_022;
    assert_eq!(began(1, Span::NONE), [1, 1 + long, 1 + 2 * long, 1 + 3 * long, 1 + 4 * long, 1 + 5 * long]);
    assert_eq!(began(2, Span::NONE), [1, 1 + long, 1 + long, 1 + 2 * long, 1 + 2 * long, 1 + 3 * long]);
    assert_eq!(began(1, fixed(7))[1..3], [8 + long, 15 + 2 * long]);
}
