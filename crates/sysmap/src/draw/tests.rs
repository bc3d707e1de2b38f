use super::*;
use crate::extract::{Fabric, Port, Switch};
use proptest::prelude::*;
use roxmltree::Document;

fn fabric(switches: &[&str], hosts: &[(&str, &str)], links: &[(&str, &str, u32)]) -> Fabric {
    let port = |(host, switch): &(&str, &str)| Port {
        host: host.to_string(),
        switch: switch.to_string(),
        count: 1,
        gigabits_per_second: Some(100.0),
    };
    let link = |(a, b, count): &(&str, &str, u32)| Link {
        a: a.to_string(),
        b: b.to_string(),
        count: *count,
        gigabits_per_second: Some(100.0),
    };
    Fabric {
        switches: switches.iter().map(|name| Switch { name: name.to_string(), level: 1 }).collect(),
        hosts: hosts.iter().map(port).collect(),
        links: links.iter().map(link).collect(),
        racks: Vec::new(),
    }
}

fn small() -> Topology {
    let hosts = [("n1", "leaf1"), ("n2", "leaf1"), ("n3", "leaf2")];
    let links = [("core", "leaf1", 2), ("core", "leaf2", 20)];
    Topology::new(&fabric(&["core", "leaf1", "leaf2"], &hosts, &links)).unwrap()
}

/// 12 leaves with 20 nodes, 6 cores.
fn island() -> Topology {
    let names = |kind: &str, count: usize| (1..=count).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
    let (leaves, cores, hosts) = (names("leaf", 12), names("core", 6), names("n", 240));
    let hosts: Vec<(&str, &str)> =
        hosts.iter().enumerate().map(|(n, host)| (host.as_str(), leaves[n / 20].as_str())).collect();
    let links: Vec<(&str, &str, u32)> =
        cores.iter().flat_map(|core| leaves.iter().map(|leaf| (core.as_str(), leaf.as_str(), 1))).collect();
    let switches: Vec<&str> = leaves.iter().chain(&cores).map(String::as_str).collect();
    Topology::new(&fabric(&switches, &hosts, &links)).unwrap()
}

fn marks(nodes: &[(&str, u64, Option<u64>)]) -> Marks {
    let mark = |(host, daemons, chunks): &(&str, u64, Option<u64>)| {
        (host.to_string(), Mark { daemons: *daemons, chunks: *chunks })
    };
    Marks { title: "pool 'p'".into(), nodes: nodes.iter().map(mark).collect(), notes: vec!["a note".into()] }
}

/// All texts that are drawn.
fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).unwrap();
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.map(|node| node.text().unwrap_or("").to_string()).collect()
}

/// Rectangles with a frame that is not dashed: switches and nodes.
fn boxes(svg: &str) -> Vec<Rect> {
    let document = Document::parse(svg).unwrap();
    let number = |node: &roxmltree::Node<'_, '_>, name: &str| node.attribute(name).unwrap().parse().unwrap();
    let drawn = document.descendants().filter(|node| {
        node.has_tag_name("rect") && node.has_attribute("stroke") && !node.has_attribute("stroke-dasharray")
    });
    let rect = |node: roxmltree::Node<'_, '_>| Rect {
        x: number(&node, "x"),
        y: number(&node, "y"),
        width: number(&node, "width"),
        height: number(&node, "height"),
    };
    drawn.map(rect).collect()
}

fn overlap(one: &Rect, other: &Rect) -> bool {
    one.x < other.x + other.width
        && other.x < one.x + one.width
        && one.y < other.bottom()
        && other.y < one.bottom()
}

#[test]
fn a_small_network_is_drawn_as_it_is() {
    let svg = svg(&small(), &Marks { title: "net".into(), ..Marks::default() });
    for part in [
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
        "<title>net</title>",
        "stroke-dasharray=\"6 4\"/>\n<text x=\"",
        ">island 1</text>",
        "stroke-width=\"1.6\"><title>core - leaf1: 2 links of 100 Gbit/s</title></path>",
        // The widest line there is.
        "stroke-width=\"9.6\"><title>core - leaf2: 20 links of 100 Gbit/s</title></path>",
        "<title>leaf1: 2 hosts, 200 Gbit/s to other switches</title>",
        "<g><title>n3, leaf2</title>\n<rect x=\"",
        "fill=\"#b36b00\" fill-opacity=\"0.15\" stroke=\"#b36b00\"/>",
    ] {
        assert!(svg.contains(part), "{part}\n{svg}");
    }
    assert_eq!((svg.matches("<path ").count(), boxes(&svg).len()), (2, 6));
}

#[test]
fn a_pools_nodes_are_marked_with_their_chunks() {
    let marked =
        svg(&small(), &marks(&[("n1.cluster", 2, Some(7)), ("n3", 1, Some(0)), ("stranger", 1, Some(3))]));
    for part in [
        "<title>n1, leaf1, daemons: 2, chunks: 7</title>\n<rect x=\"",
        "fill=\"#0072b2\" fill-opacity=\"0.6\" stroke=\"black\"/>",
        "fill=\"white\" stroke=\"#cccccc\"/>",
        "<title>stranger, daemons: 1, chunks: 3</title>",
        "fill=\"#888888\" fill-opacity=\"0.6\"",
    ] {
        assert!(marked.contains(part), "{part}\n{marked}");
    }
    let drawn = texts(&marked);
    for word in ["pool 'p'", "7", "0", "3", "at no known switch", "a note"] {
        assert_eq!(drawn.iter().filter(|text| *text == word).count(), 1, "{word}: {drawn:?}");
    }
    let several = texts(&svg(&small(), &marks(&[("n1", 2, None), ("n2", 1, None)])));
    assert!(several.contains(&"x2".to_string()) && !several.contains(&"x1".to_string()), "{several:?}");
}

#[test]
fn islands_of_three_levels_have_frames_with_their_switches() {
    let switches = ["a1", "b1", "sa", "sb", "core", "idle"];
    let links = [("a1", "sa", 1), ("b1", "sb", 1), ("core", "sa", 1), ("core", "sb", 1)];
    let net = Topology::new(&fabric(&switches, &[("n1", "a1"), ("n2", "b1")], &links)).unwrap();
    let plan = Plan::new(&net, &Marks::default());
    let titles: Vec<&str> = plan.islands.iter().map(|island| island.title.as_str()).collect();
    assert_eq!(titles, ["island 1", "island 2"]);
    let inside = |island: usize, at: &Rect| {
        let frame = &plan.islands[island].frame;
        frame.x <= at.x
            && at.x + at.width <= frame.x + frame.width
            && frame.y <= at.y
            && at.bottom() <= frame.bottom()
    };
    let place = |name: &str| [0, 1].map(|island| inside(island, &plan.switches[name]));
    assert_eq!(["a1", "sa"].map(place), [[true, false]; 2]);
    assert_eq!(["b1", "sb"].map(place), [[false, true]; 2]);
    assert_eq!(["core", "idle"].map(place), [[false, false]; 2]);
    let heights = ["core", "sa", "a1"].map(|name| plan.switches[name].y);
    assert!(heights.is_sorted_by(|above, below| above < below), "{heights:?}");
}

/// INVENTORY A14: the paper's small island, and the largest that has to be readable.
#[test]
fn r_a14_an_island_of_240_nodes_is_drawn_without_overlap() {
    let net = island();
    let drawn = svg(&net, &marks(&[("n1", 1, Some(5)), ("n240", 1, Some(6))]));
    assert_eq!(drawn, svg(&net, &marks(&[("n1", 1, Some(5)), ("n240", 1, Some(6))])));
    let (boxes, texts) = (boxes(&drawn), texts(&drawn));
    assert_eq!((boxes.len(), drawn.matches("<path ").count()), (240 + 18, 72));
    for n in 1..=240 {
        assert!(texts.contains(&format!("n{n}")), "n{n}");
    }
    for (at, one) in boxes.iter().enumerate() {
        assert!(boxes[at + 1..].iter().all(|other| !overlap(one, other)), "{one:?}");
    }
}

#[test]
fn names_that_want_to_be_markup_are_text() {
    let host = "</text><script>alert('&\"')</script>\u{1}\u{ffff}]]>";
    let switch = "\"/><x y='";
    let hosts = [(host, switch)];
    let net = Topology::new(&fabric(&[switch], &hosts, &[])).unwrap();
    let marks = Marks { title: "<b>&amp;\n".into(), ..marks(&[("<&>", 1, Some(1))]) };
    let drawn = svg(&net, &marks);
    let document = Document::parse(&drawn).unwrap();
    let known = ["svg", "title", "rect", "text", "path", "g"];
    assert!(document.descendants().filter(|n| n.is_element()).all(|n| known.contains(&n.tag_name().name())));
    assert!(drawn.contains("&lt;/text&gt;&lt;script&gt;alert(&#39;&amp;&quot;&#39;)"), "{drawn}");
    assert!(texts(&drawn).contains(&"<b>&amp;\u{fffd}".to_string()));
}

#[test]
fn long_names_keep_their_ends() {
    let hosts = ["n1.a.org", "n1.b.org", "node-of-the-cluster-7.a.org"].map(|host| (host, "s"));
    let drawn = texts(&svg(&Topology::new(&fabric(&["s"], &hosts, &[])).unwrap(), &Marks::default()));
    for label in ["n1.a.org", "n1.b.org", "\u{2026}f-the-cluster-7"] {
        assert!(drawn.contains(&label.to_string()), "{drawn:?}");
    }
    assert_eq!(cut("a-very-long-name-of-node0123"), "\u{2026}ame-of-node0123");
    assert_eq!(cut("a-very-long-name-of-node0123").chars().count(), NAME_MAX);
    assert_eq!(cut("sixteen-letters1"), "sixteen-letters1");
}

proptest! {
    /// Whatever names, and networks of any size that has to be readable.
    #[test]
    fn all_is_well_formed_and_nothing_overlaps(
        names in prop::collection::vec("\\PC{1,20}|[<&\"'>\u{0}-\u{1f}]{1,5}", 3),
        (leaves, hosts, cores, spines) in (1usize..20, 0usize..26, 0usize..5, 0usize..4),
    ) {
        let name = |kind: usize, n: usize| format!("{}{kind}-{n}", names[kind % names.len()]);
        let leaf: Vec<String> = (0..leaves).map(|n| name(0, n)).collect();
        let above: Vec<String> = (0..cores).map(|n| name(1, n)).collect();
        let top: Vec<String> = (0..spines).map(|n| name(2, n)).collect();
        let host: Vec<String> = (0..leaves * hosts).map(|n| name(3, n)).collect();
        let switches: Vec<&str> = leaf.iter().chain(&above).chain(&top).map(String::as_str).collect();
        let ports: Vec<(&str, &str)> = host.iter().enumerate().map(|(n, h)| (&**h, &*leaf[n % leaves])).collect();
        let mut links: Vec<(&str, &str, u32)> = Vec::new();
        for (n, high) in above.iter().enumerate() {
            links.extend(leaf.iter().map(|low| (&**high, &**low, n as u32 + 1)));
            links.extend(top.iter().map(|spine| (&**spine, &**high, 1)));
        }
        let net = Topology::new(&fabric(&switches, &ports, &links)).unwrap();
        let drawn = svg(&net, &marks(&[(&names[2], 1, None)]));
        let boxes = boxes(&drawn);
        prop_assert_eq!(boxes.len(), switches.len() + host.len() + 1);
        let width: usize = Document::parse(&drawn).unwrap().root_element().attribute("width").unwrap().parse().unwrap();
        for (at, one) in boxes.iter().enumerate() {
            prop_assert!(one.x + one.width <= width);
            prop_assert!(boxes[at + 1..].iter().all(|other| !overlap(one, other)), "{:?} of {:?}", one, boxes);
        }
    }
}
