//! Format 29: the example of its page, and what is refused.

use std::time::Duration;
use tidepool_iosched::Pattern;
use tidepool_sim_tiers::read::read;
use tidepool_sim_tiers::{LocalStore, Setup};
use tidepool_workload::{Kind, Pace};

const PAGE: &str = include_str!("../../../docs/formats/29-tier-simulation.md");
const GB: u64 = 1_000_000_000;
const MB: u64 = 1_000_000;

/// The page's example.
fn example() -> &'static str {
    let begin = PAGE.find("```toml\n").unwrap() + "```toml\n".len();
    &PAGE[begin..begin + PAGE[begin..].find("```").unwrap()]
}

fn told(text: &str) -> Vec<String> {
    read(text).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn the_pages_example_is_read_literally() {
    let setup: Setup = read(example()).unwrap();
    assert_eq!((setup.burst.servers, setup.burst.capacity_bytes), (4, 1920 * GB));
    assert_eq!((setup.pfs.servers, setup.pfs.capacity_bytes), (2, 4800 * GB));
    let at = |pattern, n| setup.burst.curves.of(pattern).at(n);
    assert_eq!(
        [at(Pattern::Sequential, 16), at(Pattern::Strided, 16), at(Pattern::Random, 16)],
        [440 * MB, 400 * MB, 395 * MB]
    );
    assert_eq!(setup.pfs.curves.random.at(64), 180 * MB, "as sequential");
    assert_eq!(setup.local, Some(LocalStore { capacity_bytes: 480 * GB, bytes_per_s: 450 * MB }));
    assert_eq!((setup.link_bytes_per_s, setup.latency_ns), (Some(117 * MB), 100_000));
    assert_eq!(
        (setup.news_ns, setup.tell_ns, setup.hints, setup.links_known),
        (50_000_000, 500_000_000, true, true)
    );
    assert_eq!((setup.chunk_bytes, setup.in_flight, setup.flush_streams), (8 * MB, 1, 8));
    assert_eq!(setup.apps.len(), 2);
    let app = &setup.apps[1];
    assert_eq!((app.workload.name.as_str(), app.nodes, app.weight, app.jitter), ("app-2", 4, 3, 0.1));
    assert_eq!((app.workload.processes, app.workload.steps), (32, 5));
    assert_eq!(app.workload.pace, Pace::Ratio { io: 0.5, alone: Some(Duration::from_secs_f64(148.8)) });
    let Kind::Phases(phases) = &app.workload.kind else { panic!("{:?}", app.workload.kind) };
    assert_eq!((phases.bytes, phases.pattern), (GB, tidepool_workload::Pattern::Random));
}

#[test]
fn what_is_not_said_has_the_defaults_of_the_page() {
    let short =
        "[pfs]\ncapacity = \"1TB\"\nsequential = [[1, 5]]\n[[application]]\nkind = \"phases\"\nbytes = 9\n";
    let setup = read(short).unwrap();
    assert_eq!((setup.burst.servers, setup.burst.capacity_bytes, setup.pfs.servers), (0, 0, 4));
    assert_eq!((setup.local, setup.link_bytes_per_s), (None, None));
    assert_eq!((setup.latency_ns, setup.news_ns, setup.tell_ns), (50_000, 30_000_000, GB));
    assert_eq!((setup.hints, setup.links_known), (false, false));
    assert_eq!((setup.chunk_bytes, setup.in_flight, setup.flush_streams), (4 * MB, 2, 4));
    let app = &setup.apps[0];
    assert_eq!((app.workload.name.as_str(), app.nodes, app.weight, app.jitter), ("phases", 1, 1, 0.0));
}

/// Each with the one thing that is told, and its line.
#[test]
fn hostile_files_are_refused_with_their_lines() {
    for (from, to, expected) in [
        ("[network]", "[netwrok]", "line 17: there is no section 'netwrok'; did you mean 'network'?"),
        ("in-flight = 1 ", "inflight = 1 ", "line 29: there is no key 'inflight'; did you mean 'in-flight'?"),
        ("nodes = 4 ", "nods = 4 ", "line 35: there is no key 'nods'; did you mean 'nodes'?"),
        ("processes = 32", "proceses = 32", "line 39: there is no key 'proceses'; did you mean 'processes'?"),
        ("steps = 5", "steps = -5", "line 40: 'steps' is out of range: 1 to 10000000"),
        (
            "[16, \"440MB\"]",
            "[1, \"440MB\"]",
            "line 4: 'sequential': the point for 1 processes follows that for 2; give each number once, in order",
        ),
        ("[16, \"440MB\"]", "[16, \"440MBit\"]", "line 4: 'sequential': "),
        ("\"480GB\"", "\"99999999999999999999GB\"", "line 14: 'capacity': "),
        ("latency-seconds = 0.0001", "latency-seconds = -1", "line 19: 'latency-seconds' takes seconds"),
        ("latency-seconds = 0.0001", "latency-seconds = nan", "line 19: 'latency-seconds' takes seconds"),
        ("news-seconds = 0.05", "news-seconds = 0.000001", "news take as long as the latency at least"),
        ("copies = 2", "copies = 65", "line 34: 'copies' takes a whole number, at most 64"),
        ("jitter = 0.1", "jitter = 1.0", "line 37: 'jitter' is a part: at least 0 and below 1"),
        (
            "capacity = \"4800GB\"",
            "capacity = \"300GB\"",
            "line 10: the applications write 320000000000 bytes",
        ),
        ("chunk = \"8MB\"", "chunk = \"4KiB\"", "chunks in all; at most 20000000"),
        ("servers = 2", "servers = 65", "a tier has at most 64 servers"),
        ("hints = true", "hints = 1", "line 24: 'hints' takes true or false"),
        ("weight = 3", "weight = 0", "application 'app-1': a weight is 1 to 1000"),
    ] {
        assert!(example().contains(from), "{from}");
        let wrong = told(&example().replacen(from, to, 1));
        assert_eq!(wrong.len(), 1, "{to}: {wrong:?}");
        assert!(wrong[0].contains(expected), "{to}: {wrong:?}");
    }
}

#[test]
fn files_that_are_no_files_are_refused() {
    let deep = format!("[pfs]\nsequential = {}", "[".repeat(100_000));
    for (text, expected) in [
        ("", "section [pfs] is missing"),
        ("\0\0", "line 1: "),
        ("[pfs]\ncapacity = \"1TB\"\n[pfs]\n", "line 3: "),
        (deep.as_str(), "brackets within brackets"),
        ("pfs = 3\n[[application]]\nkind = \"phases\"\n", "line 1: 'pfs' is a section"),
        (
            "application = 3\n[pfs]\ncapacity = 1\nsequential = [[1, 5]]\n",
            "line 1: 'application' takes tables",
        ),
    ] {
        let wrong = told(text);
        assert!(wrong.iter().any(|line| line.contains(expected)), "{wrong:?}");
    }
    let whole = example();
    for end in 0..whole.len() {
        if whole.is_char_boundary(end) {
            let _ = read(&whole[..end]);
        }
    }
    let many = format!(
        "[pfs]\ncapacity = \"1TB\"\nsequential = [[1, 5]]\n{}",
        "[[application]]\nkind = \"phases\"\nname = \"a\"\n".repeat(65)
    );
    let wrong = told(&many);
    assert!(wrong.iter().any(|line| line.contains("two applications are called 'a'")), "{}", wrong.len());
}

/// Nothing is kept in memory for what is too much.
#[test]
fn what_would_fill_the_memory_is_refused() {
    let many = example().replace("processes = 32", "processes = 65536").replace("copies = 2", "copies = 64");
    let many = many.replace("in-flight = 1 ", "in-flight = 64 ").replace("bytes = \"1GB\"", "bytes = 1");
    assert_eq!(
        told(&many),
        [
            "268435456 chunks of all processes on their way at once; at most 4194304: fewer processes, or fewer in flight"
        ]
    );
}

/// The test bed of IAS (K18) is a file that can be run.
#[test]
fn the_papers_test_bed_is_read() {
    let setup = read(include_str!("../../../experiments/sim/ias.toml")).unwrap();
    assert_eq!((setup.burst.servers, setup.pfs.servers), (4, 4));
    assert_eq!((setup.burst.capacity_bytes, setup.pfs.capacity_bytes), (4 * 480 * GB, 4 * 1200 * GB));
    let nodes: u32 = setup.apps.iter().map(|app| app.nodes).sum();
    assert_eq!((nodes, setup.apps.len()), (8, 2));
    let alone = setup.apps[0].alone_on_pfs(&setup).as_secs_f64();
    assert!((alone - 148.837).abs() < 0.001, "{alone}");
}
