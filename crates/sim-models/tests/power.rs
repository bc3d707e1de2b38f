//! Energy, by hand.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, station, writes};
use tidepool_sim::{Options, Time};
use tidepool_sim_models::outages::Outage;
use tidepool_sim_models::workload::{Ior, Program};
use tidepool_sim_models::{Class, Pfs, Power, PowerSpec, Results, ServerSpec, run};

const MS: u64 = 1_000_000;
/// 10 and 30 W of a server with two threads, 1 and 5 W of its device; in mW.
const POWER: PowerSpec =
    PowerSpec { server: Power { idle: 10_000, busy: 30_000 }, device: Power { idle: 1_000, busy: 5_000 } };

/// Two writes one after the other on the first of two servers: 3 ms of a thread, 7 ms of the device, 4 ticks of ways.
fn simulate(power: PowerSpec, outages: Vec<Outage>) -> Results {
    let server = ServerSpec { threads: 2, request: fixed(3 * MS), ..idle_server(1) };
    let classes = vec![Class { power, ..class("s", 2, station(1, fixed(7 * MS))) }];
    let program = Program::Ior(Ior { block: 2 * 4096, transfer: 4096, ..writes(1, 1) });
    let layout = even(65_536, 2);
    let pfs = Pfs::new(fast_network(1), server, classes, layout, vec![application(program)]).unwrap();
    run(pfs.with_outages(outages).unwrap(), 1, &Options::default()).unwrap().1
}

#[test]
fn energy_is_that_of_idle_and_busy_times() {
    let results = simulate(POWER, Vec::new());
    let end = u128::from(1 + 2 * (10 * MS + 4));
    assert_eq!((u128::from(results.end.0), results.quiet), (end, results.end));
    // mW times ns. One thread of two at work is half of what the server draws more.
    let idle = 11_000 * end;
    let busy = u128::from(6 * MS) * 20_000 / 2 + u128::from(14 * MS) * 4_000;
    let each: Vec<u128> = results.servers.iter().map(|server| server.energy.unwrap().0).collect();
    assert_eq!(each, [idle + busy, idle]);
    assert_eq!(results.energy().unwrap().0, 2 * idle + busy);
    println!("{}", results.energy().unwrap());
    let none = simulate(PowerSpec::default(), Vec::new());
    assert!(none.energy().is_none() && none.servers.iter().all(|server| server.energy.is_none()));
}

#[test]
fn a_server_that_is_down_draws_nothing() {
    let down = |from: u64, to: u64| vec![Outage { server: 1, from: Time(from), to: Time(to) }];
    let (up, half) = (simulate(POWER, Vec::new()), simulate(POWER, down(MS, 11 * MS)));
    assert_eq!(up.end, half.end);
    let saved = up.energy().unwrap().0 - half.energy().unwrap().0;
    assert_eq!(saved, u128::from(10 * MS) * 11_000);
}
