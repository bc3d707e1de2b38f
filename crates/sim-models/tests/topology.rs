//! Networks with leaf and core switches.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, station, two_leaves, writes};
use tidepool_sim::Options;
use tidepool_sim_models::topology::{Description, Topology, TopologyError};
use tidepool_sim_models::workload::{Ior, Program};
use tidepool_sim_models::{Pfs, Results, run};

const LATENCY: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Four servers, which have the four nodes of the first leaf switch, unless ranks are on all nodes.
fn simulate(description: &Description, off: &[String], together: bool, device: u64, ior: Ior) -> Results {
    let classes = vec![class("s", 4, station(1, fixed(device)))];
    let applications = vec![application(Program::Ior(ior))];
    let network = fast_network(LATENCY);
    let mut pfs = Pfs::new(network, idle_server(1), classes, even(65_536, 4), applications).unwrap();
    pfs.keep_requests = true;
    let pfs = pfs.with_topology(Topology::new(description, off).unwrap(), together).unwrap();
    run(pfs, 1, &Options::default()).unwrap().1
}

#[test]
fn a_message_waits_at_each_link_on_its_way() {
    let took = |results: &Results| results.all[0].end - results.all[0].begin;
    // To the leaf, the core, the other leaf, the server; both links between switches at once; the same way back.
    let far = simulate(&two_leaves(1), &[], false, 10, writes(1, 1));
    assert_eq!(took(&far), 4 * LATENCY + 655_360 + 12 + 4 * LATENCY);
    assert_eq!(far.switched, 2 * 65_536);
    // On the same leaf there is no such link.
    let near = simulate(&two_leaves(1), &[], true, 10, writes(1, 1));
    assert_eq!((took(&near), near.switched), (2 * LATENCY + 12 + 2 * LATENCY, 0));
}

/// Four ranks on one leaf write to four servers on the other, each 8 MiB.
fn crossing(cores: usize, off: &[&str], device: u64) -> f64 {
    let off: Vec<String> = off.iter().map(|name| name.to_string()).collect();
    let ior = Ior { depth: 8, ..writes(4, 128) };
    let results = simulate(&two_leaves(cores), &off, false, device, ior);
    assert_eq!((results.bytes_written, results.switched), (4 * 128 * 65_536, 2 * 4 * 128 * 65_536));
    results.end.0 as f64 / MS as f64
}

#[test]
fn core_switches_carry_what_their_links_do() {
    // All of it over one link of 100 MB/s.
    let all = 4.0 * 128.0 * 65_536.0 / 1e5;
    let [one, two, four] = [1, 2, 4].map(|cores| crossing(cores, &[], 1));
    println!("ms with 1, 2 and 4 core switches: {one:.1}, {two:.1}, {four:.1}; one link alone {all:.1}");
    assert!((all..1.01 * all).contains(&one));
    // Ways are drawn, so they are not quite even.
    assert!((all / 2.0..1.2 * all / 2.0).contains(&two) && (all / 4.0..1.4 * all / 4.0).contains(&four));
    assert_eq!(crossing(4, &["core2", "core3", "core4"], 1), one);
}

/// A13 of the inventory in small: with enough core switches devices are the limit, whatever their number.
#[test]
fn fewer_core_switches_are_enough_until_devices_are_faster() {
    // 64 KiB in 1.6 ms, four at once: 164 MB/s.
    let device = 1_600_000;
    let [six, three, one] = [6, 3, 1].map(|cores| crossing(cores, &[], device));
    println!("ms with 6, 3 and 1 core switches: {six:.1}, {three:.1}, {one:.1}");
    assert!(three / six < 1.02 && (204.8..210.0).contains(&six), "{six} {three}");
    assert!((335.5..345.0).contains(&one), "{one}");
}

#[test]
fn what_is_no_network_is_refused() {
    let all = two_leaves(2);
    let wrong = |all: &Description, off: &[&str]| {
        let off: Vec<String> = off.iter().map(|name| name.to_string()).collect();
        Topology::new(all, &off).unwrap_err()
    };
    assert_eq!(wrong(&Description::default(), &[]), TopologyError::NoNodes);
    assert_eq!(wrong(&all, &["core9"]), TopologyError::NoSuchSwitch("core9".into()));
    assert_eq!(wrong(&all, &["leaf1"]), TopologyError::Off("leaf1".into()));
    assert_eq!(wrong(&all, &["core1", "core2"]), TopologyError::NoWay("leaf1".into(), "leaf2".into()));
    let many = Description { switches: (0..5_000).map(|n| n.to_string()).collect(), ..all };
    assert_eq!(wrong(&many, &[]), TopologyError::TooLarge);
}
