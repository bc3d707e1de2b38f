//! Networks with leaf and core switches.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, station, two_leaves, writes};
use tidepool_sim::{Options, Time};
use tidepool_sim_models::topology::{Description, Topology, TopologyError};
use tidepool_sim_models::workload::{Ior, Program, Sharing};
use tidepool_sim_models::{Network, NodesSpec, OnNodes, Pfs, Results, run};

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

/// Hosts of 1 MB/s and 2 MB/s: a message takes as long as the slower of its two links needs, and the experiment's own figures go
/// before those of the topology.
#[test]
fn links_of_hosts_are_those_of_the_topology() {
    let mut hosts = two_leaves(1);
    (hosts.nodes[0].2, hosts.nodes[4].2, hosts.nodes[5].2) = (2_000_000, 1_000_000, 4_000_000);
    hosts.links.iter_mut().for_each(|link| link.2 = 0);
    let took = |own: (u64, u64), ranks: u32| {
        let mut classes = vec![class("s", 4, station(1, fixed(10)))];
        (classes[0].bandwidth, classes[0].count) = (own.0, 4);
        let network = Network { client_bandwidth: own.1, ..fast_network(LATENCY) };
        let ior = Ior { sharing: Sharing::PerProcess, ..writes(2, 1) };
        let applications = vec![application(Program::Ior(ior))];
        let mut pfs = Pfs::new(network, idle_server(1), classes, even(65_536, 4), applications).unwrap();
        pfs.keep_requests = true;
        if ranks > 0 {
            let applications = vec![OnNodes::default()];
            pfs = pfs.with_nodes(NodesSpec { ranks, call: Time(5), cache: None, applications }).unwrap();
        }
        let pfs = pfs.with_topology(Topology::new(&hosts, &[]).unwrap(), false).unwrap();
        let mut all = run(pfs, 1, &Options::default()).unwrap().1.all;
        all.sort_by_key(|request| request.rank);
        [0, 1].map(|rank| (all[rank].end - all[rank].begin - 8 * LATENCY - 12) as f64 / 65_536e3)
    };
    let is = |seen: [f64; 2], expected: [f64; 2]| {
        let near = seen.iter().zip(expected).all(|(seen, expected)| (seen - expected).abs() < 0.001);
        assert!(near, "{seen:?}, not {expected:?}");
    };
    // Rank 0 is on host 4, and writes to server 0 on host 0; rank 1 on host 5, and server 1's host tells nothing.
    is(took((0, 0), 0), [1.0, 0.25]);
    is(took((0, 8_000_000), 0), [0.5, 0.125]);
    is(took((500_000, 0), 0), [2.0, 2.0]);
    is(took((0, 0), 1), [1.0, 0.25]);
    // Both on host 4: one behind the other.
    is(took((0, 0), 2), [1.0, 2.0]);
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
