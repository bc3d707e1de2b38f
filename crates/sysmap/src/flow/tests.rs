use super::*;
use crate::extract::{Fabric, Link, Port, Switch};
use crate::hostlist;
use proptest::prelude::*;
use std::time::Instant;

/// Bytes a second of a gigabit.
const G: f64 = BYTES_PER_GIGABIT;
const MB: f64 = 1e6;

/// So many leaves with so many hosts each, and cores with so many links to each leaf.
fn fabric(leaves: usize, hosts: usize, cores: usize, links: u32, gigabits: f64) -> Fabric {
    let name = |kind: &str, n: usize| format!("{kind}{n}");
    let port = |n: usize| Port {
        host: name("n", n),
        switch: name("leaf", n / hosts),
        count: 1,
        gigabits_per_second: Some(gigabits),
    };
    let link = |core: usize, leaf: usize| Link {
        a: name("core", core),
        b: name("leaf", leaf),
        count: links,
        gigabits_per_second: Some(gigabits),
    };
    let names = (0..leaves).map(|n| name("leaf", n)).chain((0..cores).map(|n| name("core", n)));
    Fabric {
        switches: names.map(|name| Switch { name, level: 1 }).collect(),
        hosts: (0..leaves * hosts).map(port).collect(),
        links: (0..cores).flat_map(|core| (0..leaves).map(move |leaf| link(core, leaf))).collect(),
        racks: Vec::new(),
    }
}

fn net(leaves: usize, hosts: usize, cores: usize, links: u32, gigabits: f64) -> Topology {
    Topology::new(&fabric(leaves, hosts, cores, links, gigabits)).unwrap()
}

fn with(device_write: f64) -> Scenario {
    Scenario { device_write, ..Scenario::default() }
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= other.abs() * 1e-9
}

fn class(outcome: &Outcome, class: Class) -> &ClassUse {
    outcome.classes.iter().find(|found| found.class == class).unwrap()
}

fn list(hosts: &str) -> Vec<String> {
    hostlist::expand(hosts).unwrap()
}

#[test]
fn fast_links_leave_devices_as_the_bottleneck() {
    // 4 nodes, 2 leaves: 3/4 of each writer's data leave the node, 1/2 leave the leaf.
    let found = run(&net(2, 2, 1, 1, 100.0), &with(500.0 * MB)).unwrap();
    assert!(close(found.total, 2000.0 * MB) && close(found.of_devices, 1.0), "{found:?}");
    assert_eq!(
        (found.bottleneck, found.held_back.len(), found.label),
        (Bottleneck::Device, 1, "model, not measured")
    );
    assert!(close(found.written.min, 500.0 * MB) && close(found.kept.max, 500.0 * MB));
    assert!(close(class(&found, Class::NodeUp).used, 1500.0 * MB), "{found:?}");
    assert!(close(class(&found, Class::NodeDown).used, 1500.0 * MB), "{found:?}");
    assert!(close(class(&found, Class::CoreUp).used, 1000.0 * MB), "{found:?}");
    assert!(close(class(&found, Class::CoreUp).utilisation, 1000.0 * MB / (200.0 * G)), "{found:?}");
    assert_eq!((class(&found, Class::CoreDown).links, class(&found, Class::NodeUp).links), (2, 4));
}

#[test]
fn slow_node_links_and_cores_hold_back_as_computed_by_hand() {
    // A node sends 3/4 of its rate r over its link: r = 4/3 Gbit/s.
    let found = run(&net(2, 2, 4, 1, 1.0), &with(500.0 * MB)).unwrap();
    assert_eq!(found.bottleneck, Bottleneck::NodeLink);
    assert!(close(found.written.min, 4.0 / 3.0 * G) && close(found.written.max, 4.0 / 3.0 * G), "{found:?}");
    // A leaf of 8 sends half of its rate, 4 r, over one link: r = 1/4 Gbit/s.
    let found = run(&net(2, 8, 1, 1, 1.0), &with(500.0 * MB)).unwrap();
    assert_eq!(found.bottleneck, Bottleneck::Core);
    assert!(close(found.total, 16.0 / 4.0 * G), "{found:?}");
    assert!(close(class(&found, Class::CoreUp).utilisation_max, 1.0), "{found:?}");
}

#[test]
fn one_writer_is_as_fast_as_its_link() {
    let one = Scenario { writers: list("n0"), ..with(500.0 * MB) };
    let found = run(&net(2, 2, 1, 1, 1.0), &one).unwrap();
    assert_eq!((found.writers, found.nodes, found.bottleneck), (1, 4, Bottleneck::NodeLink));
    assert!(close(found.total, 4.0 / 3.0 * G) && close(found.kept.max, G / 3.0), "{found:?}");
    // Who keeps no data sends all of it.
    let outside = Scenario { writers: list("n3"), nodes: list("n[0-1]"), ..with(500.0 * MB) };
    let found = run(&net(2, 2, 1, 1, 1.0), &outside).unwrap();
    assert!(close(found.total, G) && found.nodes == 2, "{found:?}");
}

#[test]
fn a_stripe_goes_to_nodes_in_turn() {
    let narrow = Scenario { stripe: Some(1), writers: list("n[0-1]"), ..with(100.0 * MB) };
    // n0 writes to itself, n1 to itself: nothing goes over the network.
    let found = run(&net(2, 2, 1, 1, 1.0), &narrow).unwrap();
    assert!(close(found.total, 200.0 * MB) && class(&found, Class::NodeUp).used == 0.0, "{found:?}");
    assert_eq!((found.kept.min, close(found.kept.max, 100.0 * MB)), (0.0, true));
    // All to all in turn loads all devices alike.
    for stripe in [1, 2, 3, 4, 9] {
        let found = run(&net(2, 2, 1, 8, 100.0), &Scenario { stripe: Some(stripe), ..with(MB) }).unwrap();
        assert!(close(found.total, 4.0 * MB) && close(found.kept.min, found.kept.max), "{stripe}: {found:?}");
    }
}

#[test]
fn pools_of_leaves_keep_data_off_the_cores() {
    let pools = Scenario { pools: Pools::Leaf, ..with(500.0 * MB) };
    let found = run(&net(3, 4, 1, 1, 10.0), &pools).unwrap();
    assert_eq!((class(&found, Class::CoreUp).used, class(&found, Class::CoreDown).used), (0.0, 0.0));
    assert!(close(found.total, 6000.0 * MB), "{found:?}");
    // Without any core, too.
    let off = Scenario { off: vec!["core0".into()], ..pools.clone() };
    assert!(close(run(&net(3, 4, 1, 1, 10.0), &off).unwrap().total, 6000.0 * MB));
    let nobody = Scenario { nodes: list("n[0-3]"), writers: list("n4"), ..pools };
    assert_eq!(run(&net(3, 4, 1, 1, 10.0), &nobody), Err(FlowError::NoPool("leaf1".into())));
}

/// INVENTORY A13: ForHLR's island in small figures: 12 leaves with 20 nodes, 6 cores.
#[test]
fn r_a13_fewer_cores_cost_what_they_carry_and_pools_nothing() {
    let net = net(12, 20, 6, 1, 56.0);
    let run = |off: &[&str], pools: Pools| {
        let off = off.iter().map(|name| name.to_string()).collect();
        run(&net, &Scenario { off, pools, ..with(2000.0 * MB) }).unwrap()
    };
    let (three, five) = (["core0", "core1", "core2"], ["core0", "core1", "core2", "core3", "core4"]);
    let full = run(&[], Pools::None);
    assert!(close(full.total, 240.0 * 2000.0 * MB) && full.bottleneck == Bottleneck::Device, "{full:?}");
    // 20 nodes of a leaf send 11/12 of their data over the cores that are left.
    for (off, cores) in [(&three[..], 3.0), (&five[..], 1.0)] {
        let fewer = run(off, Pools::None);
        assert!(close(fewer.total, 12.0 * cores * 56.0 * G * 12.0 / 11.0), "{fewer:?}");
        assert_eq!(fewer.bottleneck, Bottleneck::Core);
        let pooled = run(off, Pools::Leaf);
        assert!(pooled.total >= 0.95 * full.total, "{pooled:?}");
        assert_eq!(class(&pooled, Class::CoreUp).used, 0.0);
    }
}

#[test]
fn hashed_ways_are_no_faster_and_take_all_cores() {
    let net = net(12, 20, 6, 1, 56.0);
    let even = run(&net, &with(2000.0 * MB)).unwrap();
    let hashed = run(&net, &Scenario { routing: Routing::Hashed, ..with(2000.0 * MB) }).unwrap();
    assert!(hashed.total <= even.total * (1.0 + 1e-9) && hashed.total > 0.5 * even.total, "{hashed:?}");
    assert!(class(&hashed, Class::CoreUp).utilisation_max > class(&even, Class::CoreUp).utilisation_max);
}

#[test]
fn a_machine_of_512_nodes_is_modelled() {
    let net = net(16, 32, 8, 2, 100.0);
    for routing in [Routing::Even, Routing::Hashed] {
        let began = Instant::now();
        let found = run(&net, &Scenario { routing, ..with(500.0 * MB) }).unwrap();
        println!("{routing:?}: {:?}", began.elapsed());
        assert!(found.nodes == 512 && close(found.total, 512.0 * 500.0 * MB), "{found:?}");
    }
}

#[test]
fn a_node_hangs_on_the_first_of_its_switches_that_is_on() {
    let mut two_rails = fabric(2, 2, 1, 1, 10.0);
    let second = Port { switch: "leaf1".into(), ..two_rails.hosts[0].clone() };
    two_rails.hosts.push(second);
    let net = Topology::new(&two_rails).unwrap();
    let one_leaf = Scenario { off: list("leaf0"), nodes: list("n0,n2,n3"), ..with(MB) };
    assert_eq!(class(&run(&net, &one_leaf).unwrap(), Class::NodeUp).links, 3);
    let off = Scenario { off: list("leaf0"), ..with(MB) };
    assert_eq!(run(&net, &off), Err(FlowError::Off("n1".into())));
}

#[test]
fn what_cannot_be_modelled_is_said() {
    let mut unknown = fabric(2, 2, 1, 1, 10.0);
    unknown.hosts[0].gigabits_per_second = None;
    let vague = Topology::new(&unknown).unwrap();
    let clear = net(2, 2, 1, 1, 10.0);
    let scenario = || with(MB);
    for (net, scenario, words) in [
        (&vague, scenario(), "the speed of the link of host 'n0' is not known"),
        (
            &clear,
            Scenario { off: list("core0"), ..scenario() },
            "no way leads from switch 'leaf0' to switch 'leaf1'",
        ),
        (&clear, Scenario { off: list("core9"), ..scenario() }, "there is no switch 'core9'"),
        (&clear, Scenario { nodes: list("x"), ..scenario() }, "no switch has a host 'x'"),
        (&clear, Scenario { writers: list("x"), ..scenario() }, "no switch has a host 'x'"),
        (&clear, Scenario { stripe: Some(0), ..scenario() }, "the stripe has to be more than 0"),
        (&clear, with(0.0), "what a device takes has to be"),
        (&clear, with(f64::NAN), "what a device takes has to be"),
        (&clear, Scenario { gigabits_per_second: Some(0.0), ..scenario() }, "the speed of links has to be"),
        (&net(1, 2100, 0, 1, 1.0), scenario(), "say --stripe"),
    ] {
        let error = run(net, &scenario).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let told = Scenario { gigabits_per_second: Some(10.0), ..scenario() };
    assert_eq!(run(&vague, &told), run(&clear, &told));
    let empty = Topology::new(&fabric(0, 1, 1, 1, 1.0)).unwrap();
    assert_eq!(run(&empty, &with(MB)), Err(FlowError::NoNodes));
}

proptest! {
    /// Whatever is asked of whatever network: no link is over-full, and what is written is kept.
    #[test]
    fn nothing_is_over_full_and_nothing_is_lost(
        (leaves, hosts, cores, links) in (1usize..5, 1usize..6, 1usize..4, 1u32..4),
        (gigabits, device) in (1u32..100, 1u32..4000),
        (stripe, few, leaf, hashed) in (prop::option::of(1usize..9), 1usize..9, any::<bool>(), any::<bool>()),
    ) {
        let net = net(leaves, hosts, cores, links, gigabits.into());
        let writers = net.hosts().into_iter().take(few).map(String::from).collect();
        let scenario = Scenario {
            stripe,
            writers,
            pools: if leaf { Pools::Leaf } else { Pools::None },
            routing: if hashed { Routing::Hashed } else { Routing::Even },
            ..with(f64::from(device) * MB)
        };
        let found = run(&net, &scenario).unwrap();
        prop_assert!(found.classes.iter().all(|class| class.utilisation_max <= 1.0 + 1e-9), "{:?}", found);
        prop_assert!((class(&found, Class::Device).used - found.total).abs() <= found.total * 1e-9);
        prop_assert!(found.classes.iter().any(|class| class.utilisation_max > 1.0 - 1e-9));
        prop_assert_eq!(found.held_back.values().sum::<usize>(), found.writers);
    }
}
