use super::*;
use proptest::prelude::*;

fn port(host: &str, switch: &str, count: u32, speed: Option<f64>) -> Port {
    Port { host: host.into(), switch: switch.into(), count, gigabits_per_second: speed }
}

fn link(a: &str, b: &str, count: u32, speed: Option<f64>) -> Link {
    Link { a: a.into(), b: b.into(), count, gigabits_per_second: speed }
}

/// Levels are what records say; here nobody does.
fn fabric(switches: &[&str], hosts: Vec<Port>, links: Vec<Link>) -> Fabric {
    let switches = switches.iter().map(|name| Switch { name: name.to_string(), level: 7 }).collect();
    Fabric { switches, hosts, links, racks: Vec::new() }
}

fn rack(name: &str, hosts: &[&str]) -> Rack {
    Rack { name: name.into(), hosts: hosts.iter().map(|host| host.to_string()).collect() }
}

/// Three leaves with two hosts each below two cores.
fn two_levels() -> Fabric {
    let leaves = ["leaf10", "leaf2", "leaf3"];
    let hosts = (0..6).map(|n| port(&format!("n{n}"), leaves[n / 2], 1, Some(10.0))).collect();
    let cores = ["core1", "core2"];
    let links = cores.iter().flat_map(|core| leaves.map(|leaf| link(core, leaf, 2, Some(2.5)))).collect();
    fabric(&[&leaves[..], &cores[..]].concat(), hosts, links)
}

/// Leaves a1, a2 below a spine, b1, b2 below another, a core above both.
fn three_levels() -> Fabric {
    let leaves = ["a1", "a2", "b1", "b2"];
    let hosts = leaves.iter().map(|leaf| port(&format!("n-{leaf}"), leaf, 1, None)).collect();
    let mut links: Vec<Link> = leaves
        .iter()
        .map(|leaf| link(leaf, if leaf.starts_with('a') { "sa" } else { "sb" }, 1, None))
        .collect();
    links.extend(["sa", "sb"].map(|spine| link("core", spine, 1, None)));
    fabric(&["a1", "a2", "b1", "b2", "sa", "sb", "core"], hosts, links)
}

fn topology(fabric: &Fabric) -> Topology {
    Topology::new(fabric).unwrap()
}

fn why(fabric: &Fabric) -> String {
    Topology::new(fabric).unwrap_err().to_string()
}

#[test]
fn leaves_are_in_the_order_of_their_numbers_with_their_hosts() {
    let net = topology(&two_levels());
    let leaves: Vec<&str> = net.leaves().iter().map(|leaf| leaf.name.as_str()).collect();
    assert_eq!(leaves, ["leaf2", "leaf3", "leaf10"]);
    assert_eq!(net.hosts_of("leaf10"), ["n0", "n1"]);
    assert_eq!(net.hosts_of("core1"), [""; 0]);
    assert_eq!(net.hosts(), ["n0", "n1", "n2", "n3", "n4", "n5"]);
    assert_eq!((net.leaf_of("n3"), net.leaf_of("n9")), (Some("leaf2"), None));
    let levels: Vec<(&str, u32)> = net.switches().iter().map(|s| (s.name.as_str(), s.level)).collect();
    assert_eq!(levels, [("core1", 2), ("core2", 2), ("leaf2", 1), ("leaf3", 1), ("leaf10", 1)]);
}

#[test]
fn widths_of_a_leaf_add_up() {
    let mut net = two_levels();
    let known = topology(&net);
    assert_eq!((known.uplink_gigabits("leaf2"), known.host_gigabits("leaf2")), (Some(10.0), Some(20.0)));
    assert_eq!(known.oversubscription("leaf2"), Some(2.0));
    net.links[0].gigabits_per_second = None;
    let partly = topology(&net);
    assert_eq!((partly.uplink_gigabits("leaf10"), partly.oversubscription("leaf10")), (None, None));
    assert_eq!(partly.oversubscription("leaf2"), Some(2.0));
    let alone = topology(&fabric(&["s"], vec![port("n", "s", 1, Some(1.0))], vec![]));
    assert_eq!((alone.uplink_gigabits("s"), alone.oversubscription("s")), (Some(0.0), None));
}

#[test]
fn hosts_are_found_up_to_the_first_dot_where_that_is_clear() {
    let names = ["n1", "n2.a.org", "n3.a", "n3.b", "10.0.0.1", "10.0.0.2"];
    let ports = names.iter().map(|host| port(host, "s", 1, None)).collect();
    let net = topology(&fabric(&["s"], ports, vec![]));
    for (asked, known) in [
        ("n1", Some("n1")),
        ("n1.cluster", Some("n1")),
        ("n2", Some("n2.a.org")),
        ("n2.b.org", Some("n2.a.org")),
        ("n3.b", Some("n3.b")),
        ("n3", None),
        ("n3.c", None),
        ("10.0.0.2", Some("10.0.0.2")),
        ("10.0.0.3", None),
        ("10", None),
        ("", None),
    ] {
        assert_eq!(net.known_host(asked), known, "{asked}");
        assert_eq!(net.leaf_of(asked), known.map(|_| "s"), "{asked}");
    }
}

#[test]
fn a_host_on_several_leaves_belongs_to_the_first() {
    let ports = vec![port("n", "rail10", 1, None), port("n", "rail9", 1, None), port("m", "rail10", 1, None)];
    let net = topology(&fabric(&["rail9", "rail10"], ports, vec![]));
    assert_eq!(net.leaf_of("n"), Some("rail9"));
    assert_eq!((net.hosts_of("rail9"), net.hosts_of("rail10")), (&["n".into()][..], &["m".into()][..]));
    assert_eq!(net.ports().len(), 3);
    let switches: Vec<&str> = net.ports_of("n").iter().map(|port| port.switch.as_str()).collect();
    assert_eq!((switches, net.ports_of("o").len()), (vec!["rail9", "rail10"], 0));
}

#[test]
fn islands_are_what_is_joined_below_the_highest_level() {
    let net = topology(&three_levels());
    assert_eq!(net.levels(), 3);
    assert_eq!(net.islands(), [["a1", "a2"], ["b1", "b2"]]);
    let islands = ["a2", "b1", "sb", "core", "none"].map(|switch| net.island_of(switch));
    assert_eq!(islands, [Some(0), Some(1), Some(1), None, None]);
    let two = topology(&two_levels());
    assert_eq!(two.islands(), [["leaf2", "leaf3", "leaf10"]]);
    assert_eq!((two.island_of("leaf3"), two.island_of("core1")), (Some(0), None));
}

#[test]
fn networks_that_nothing_joins_are_islands() {
    let ports = vec![port("n1", "s1", 1, None), port("n2", "s2", 1, None)];
    let net = topology(&fabric(&["s1", "s2", "idle"], ports, vec![]));
    assert_eq!(net.islands(), [["s1"], ["s2"]]);
    assert_eq!((net.leaves().len(), net.island_of("idle")), (2, None));
}

#[test]
fn racks_know_hosts_that_hang_on_no_switch_too() {
    let mut net = two_levels();
    net.racks = vec![rack("r10", &["n1", "n0"]), rack("r2", &["n2", "elsewhere"])];
    let net = topology(&net);
    let racks: Vec<&str> = net.racks().iter().map(|rack| rack.name.as_str()).collect();
    assert_eq!((racks, &net.racks()[1].hosts[..]), (vec!["r2", "r10"], &["n0".to_string(), "n1".into()][..]));
    let found = ["n1", "n1.cluster", "elsewhere", "n5"].map(|host| net.rack_of(host));
    assert_eq!(found, [Some("r10"), Some("r10"), Some("r2"), None]);
}

#[test]
fn what_is_no_network_is_said() {
    assert_eq!(Topology::new(&Fabric::default()), Err(TopologyError::Empty));
    assert_eq!(Topology::merged(std::iter::empty()), Err(TopologyError::Empty));
    for (net, words) in [
        (fabric(&["a", "a"], vec![], vec![]), "switch 'a' has no name, or is there twice"),
        (fabric(&[""], vec![], vec![]), "switch ''"),
        (fabric(&["a"], vec![port("n", "b", 1, None)], vec![]), "host 'n' at switch 'b'"),
        (fabric(&["a"], vec![port("n", "a", 0, None)], vec![]), "no name or links"),
        (fabric(&["a"], vec![port("", "a", 1, None)], vec![]), "no name or links"),
        (fabric(&["a"], vec![port("n", "a", 1, Some(f64::INFINITY))], vec![]), "no name or links"),
        (fabric(&["a"], vec![port("n", "a", 1, None), port("n", "a", 1, None)], vec![]), "at a switch twice"),
        (fabric(&["a"], vec![], vec![link("a", "a", 1, None)]), "joins no two switches"),
        (fabric(&["a"], vec![], vec![link("a", "b", 1, None)]), "joins no two switches"),
        (fabric(&["a", "b"], vec![], vec![link("a", "b", 1, Some(-1.0))]), "no width"),
        (
            fabric(&["a", "b"], vec![], vec![link("a", "b", 1, None), link("b", "a", 1, None)]),
            "is there twice",
        ),
        (Fabric { racks: vec![rack("r", &["n", "n"])], ..fabric(&["a"], vec![], vec![]) }, "or in two"),
    ] {
        assert!(why(&net).contains(words), "{}", why(&net));
    }
    let long = why(&fabric(&["a"], vec![port(&"x\n".repeat(500), "b", 1, None)], vec![]));
    assert!(long.len() < 300 && !long.contains('\n'), "{long}");
}

#[test]
fn contradictions_are_named_with_who_says_what() {
    let one = |host: Port, more: Option<Link>| fabric(&["a", "b"], vec![host], Vec::from_iter(more));
    let narrow = || port("n", "a", 2, Some(10.0));
    let racked = |name: &str| Fabric { racks: vec![rack(name, &["n"])], ..one(narrow(), None) };
    let linked = |speed| one(narrow(), Some(link("a", "b", 1, Some(speed))));
    for (two, three, words) in [
        (
            one(narrow(), None),
            one(port("n", "b", 1, None), None),
            "host 'n': one description says switch 'a', another says switch 'b'",
        ),
        (
            one(narrow(), None),
            one(port("n", "a", 3, Some(10.0)), None),
            "host 'n' at switch 'a': one description says 2 link(s) of 10 Gbit/s, another says 3 link(s) of 10 Gbit/s",
        ),
        (linked(1.0), linked(2.5), "switches 'a' and 'b': one description says 1 link(s) of 1 Gbit/s"),
        (racked("r"), racked("s"), "host 'n': one description says rack 'r', another says rack 's'"),
    ] {
        let merged = Topology::merged([one(narrow(), None), two, three].into_iter());
        let error = merged.unwrap_err();
        let TopologyError::Contradiction { other, .. } = &error else { panic!("{error}") };
        assert_eq!(other.record, 2);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn who_knows_no_widths_contradicts_nobody() {
    let mut slurm = two_levels();
    slurm.hosts.iter_mut().for_each(|port| (port.count, port.gigabits_per_second) = (1, None));
    slurm.links.iter_mut().for_each(|link| (link.count, link.gigabits_per_second) = (1, None));
    for order in [[slurm.clone(), two_levels()], [two_levels(), slurm]] {
        assert_eq!(Topology::merged(order.into_iter()).unwrap(), topology(&two_levels()));
    }
}

/// A network of up to three levels, with racks, and for each of its parts the number of a record that tells it.
fn networks() -> impl Strategy<Value = (Fabric, Vec<usize>)> {
    let sizes = (1usize..5, 1usize..6, 0usize..4, 0usize..3);
    (sizes, prop::collection::vec(0usize..4, 200)).prop_map(|((leaves, hosts, spines, cores), picks)| {
        let name = |kind: &str, n: usize| format!("{kind}{n}");
        let mut switches: Vec<String> = (0..leaves).map(|n| name("leaf", n)).collect();
        let mut links = Vec::new();
        for spine in 0..spines {
            links.extend((0..leaves).map(|n| link(&name("leaf", n), &name("spine", spine), 1, Some(5.0))));
            links.extend((0..cores).map(|n| link(&name("core", n), &name("spine", spine), 2, Some(5.0))));
        }
        switches.extend((0..spines).map(|n| name("spine", n)).chain((0..cores).map(|n| name("core", n))));
        let ports = (0..leaves * hosts)
            .map(|n| port(&name("n", n), &name("leaf", n % leaves), 1, Some(1.0)))
            .collect();
        let switches: Vec<&str> = switches.iter().map(String::as_str).collect();
        let mut net = fabric(&switches, ports, links);
        net.racks = vec![rack("r", &["n0"]), rack("q", &["n1", "n2"])];
        (net, picks)
    })
}

/// The part of a network that one of four records tells.
fn part(net: &Fabric, picks: &[usize], record: usize) -> Fabric {
    let mut picks = picks.iter().cycle().map(|pick| *pick == record);
    let mut picked = || picks.next() == Some(true);
    let hosts = net.hosts.iter().filter(|_| picked()).cloned().collect();
    let links = net.links.iter().filter(|_| picked()).cloned().collect();
    let racks = net.racks.iter().filter(|_| picked()).cloned().collect();
    Fabric { switches: net.switches.clone(), hosts, links, racks }
}

/// Whether a leaf reaches another without the switches `without`.
fn reaches(net: &Fabric, from: &str, to: &str, without: &[String]) -> bool {
    let mut seen = vec![from.to_string()];
    let mut at = 0;
    while at < seen.len() {
        for Link { a, b, .. } in &net.links {
            for (one, other) in [(a, b), (b, a)] {
                if *one == seen[at] && !seen.contains(other) && !without.contains(other) {
                    seen.push(other.clone());
                }
            }
        }
        at += 1;
    }
    seen.iter().any(|switch| switch == to)
}

proptest! {
    #[test]
    fn parts_make_the_whole((net, picks) in networks()) {
        let parts = (0..4).map(|record| part(&net, &picks, record));
        prop_assert_eq!(&Topology::merged(parts.clone()).unwrap(), &topology(&net));
        prop_assert_eq!(&Topology::merged(parts.rev().chain([net.clone()])).unwrap(), &topology(&net));
    }

    #[test]
    fn each_host_has_one_leaf_and_each_leaf_one_island((net, _) in networks()) {
        let known = topology(&net);
        let hosts: usize = known.leaves().iter().map(|leaf| leaf.hosts.len()).sum();
        prop_assert_eq!(hosts, net.hosts.len());
        for leaf in known.leaves() {
            prop_assert!(leaf.hosts.iter().all(|host| known.leaf_of(host) == Some(&leaf.name)));
            prop_assert!(known.islands()[leaf.island].contains(&leaf.name));
        }
        prop_assert_eq!(known.islands().iter().map(Vec::len).sum::<usize>(), known.leaves().len());
    }

    #[test]
    fn islands_are_as_their_definition_says((net, _) in networks()) {
        let known = topology(&net);
        let top = known.levels();
        let highest: Vec<String> = known.switches().iter()
            .filter(|switch| switch.level == top && top >= 3).map(|switch| switch.name.clone()).collect();
        for one in known.leaves() {
            for other in known.leaves() {
                let joined = reaches(&net, &one.name, &other.name, &highest);
                prop_assert_eq!(one.island == other.island, joined, "{} {}", one.name, other.name);
            }
        }
    }

    /// Whatever somebody has written into a database.
    #[test]
    fn any_description_ends_in_a_network_or_an_error(
        switches in prop::collection::vec(("[ab]?", 0u32..9), 0..4),
        hosts in prop::collection::vec(("[n.]{0,2}", "[abc]?", 0u32..3, prop::option::of(prop::num::f64::ANY)), 0..4),
        links in prop::collection::vec(("[ab]", "[abc]", 0u32..3), 0..3),
    ) {
        let net = Fabric {
            switches: switches.into_iter().map(|(name, level)| Switch { name, level }).collect(),
            hosts: hosts.into_iter().map(|(host, switch, count, speed)| port(&host, &switch, count, speed)).collect(),
            links: links.iter().map(|(a, b, count)| link(a, b, *count, None)).collect(),
            racks: vec![],
        };
        if let Ok(known) = Topology::new(&net) {
            prop_assert!(net.hosts.iter().all(|port| known.leaf_of(&port.host).is_some()));
        }
    }
}
