//! What `tidepool sim run` writes: distributions, sub-requests, time lines and pages.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

fn sim(sandbox: &Sandbox, line: &str) -> Output {
    let mut command = sandbox.tidepool(&["sim"]);
    command.args(line.split_whitespace()).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

/// With `--json`.
fn json(sandbox: &Sandbox, line: &str) -> Value {
    let output = sim(sandbox, &format!("{line} --json"));
    assert!(output.status.success(), "{line}: {}", text(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Three ranks write a stripe each to one device, which takes 100 us for one after the other; 1 us from link to link, 10 us to
/// look, 1 us to the device and back.
const THREE: &str = "[network]\nlatency = \"1us\"\nheader = 0\neager = \"1MiB\"\n\
    [server]\nrequest = \"10us\"\nbus = \"1us\"\n\
    [[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"100us\"\n[[servers]]\nname = \"s\"\ndevice = \"d\"\n\
    [[workload]]\nname = \"w\"\nkind = \"ior\"\nranks = 3\ntransfer = \"64KiB\"\nopen = false\n";

/// Figure 7's system with less to do.
fn small(sandbox: &Sandbox) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/hpis3/fig7.toml");
    let text = fs::read_to_string(file).unwrap().replace("32MiB", "2MiB");
    fs::write(sandbox.path("small.toml"), text).unwrap();
}

/// Rows of a CSV file by the names of its columns.
fn rows(sandbox: &Sandbox, name: &str) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(sandbox.path(name)).unwrap();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), head.len(), "{line}");
        head.iter().map(|name| name.to_string()).zip(cells.iter().map(|cell| cell.to_string())).collect()
    };
    lines.map(row).collect()
}

fn number(row: &BTreeMap<String, String>, key: &str) -> u64 {
    row[key].parse().unwrap_or_else(|_| panic!("{key} in {row:?}"))
}

#[test]
fn three_requests_by_hand_in_every_output() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("three.toml"), THREE).unwrap();
    let line = "run three.toml --csv r.csv --sub-requests s.csv --timeline t.json";
    let told = json(&sandbox, line);
    let result = &told["result"];
    // They are done at 114,001, 214,001 and 314,001 ns, and began at 1.
    let write = &result["latency"][0];
    assert_eq!(
        (&write["workload"], &write["op"], &write["bytes"]),
        (&"w".into(), &"write".into(), &196_608.into())
    );
    let keys = ["min_ns", "median_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"];
    let expected = [114_000, 214_000, 214_000, 314_000, 314_000, 314_000, 314_000];
    assert_eq!(keys.map(|key| write[key].as_u64().unwrap()), expected);
    let bins = serde_json::json!([[98_304, 114_688, 1], [196_608, 229_376, 1], [262_144, 327_680, 1]]);
    assert_eq!(write["histogram"], bins);
    let over = &result["over_time"];
    assert_eq!(
        (&over["bin_ns"], &over["bins"], &over["end_ns"]),
        (&4_000.into(), &79.into(), &314_001.into())
    );
    // The device works from 12,001 to 312,001; three are there from 32,001 to 112,001.
    for of in [&over["servers"][0], &over["classes"][0]] {
        let (busy, queue) = (&of["device_busy"], &of["device_queue"]);
        assert_eq!([2, 3, 77].map(|bin| busy[bin].as_f64().unwrap()), [0.0, 0.99975, 1.0]);
        assert_eq!([20, 30, 60].map(|bin| queue[bin].as_f64().unwrap()), [3.0, 2.0, 1.0]);
        assert_eq!((&of["bytes_written"][28], &of["bytes_written"][29]), (&65_536.into(), &0.into()));
    }
    assert_eq!(result["servers"][0]["device_queue_most"], 3);
    let mean = result["servers"][0]["device_queue_mean"].as_f64().unwrap();
    assert!((mean - 570_000.0 / 314_001.0).abs() < 1e-12, "{mean}");
    let pieces = rows(&sandbox, "s.csv");
    let of = |key: &str| pieces.iter().map(|row| row[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("rank"), ["0", "1", "2"]);
    assert_eq!(of("file_offset"), ["0", "65536", "131072"]);
    assert_eq!(
        (of("start_ns"), of("end_ns")),
        (vec!["1".to_string(); 3], ["114001", "214001", "314001"].map(String::from).to_vec())
    );
    // The server is process 0, its device 1.
    assert_eq!(
        (of("sender"), of("receiver")),
        (["2", "3", "4"].map(String::from).to_vec(), vec!["0".to_string(); 3])
    );
    assert!(
        pieces
            .iter()
            .all(|row| row["type"] == "write" && row["length"] == "65536" && row["answer"] == "done")
    );
    let trace: Value = serde_json::from_slice(&fs::read(sandbox.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let counters = events.iter().filter(|event| event["ph"] == "C");
    let counts: Vec<_> = counters
        .map(|event| (event["ts"].as_f64().unwrap(), event["args"]["requests"].as_i64().unwrap()))
        .collect();
    assert_eq!(counts, [(12.001, 1), (22.001, 2), (32.001, 3), (112.001, 2), (212.001, 1), (312.001, 0)]);
    let output = sim(&sandbox, "run three.toml");
    for part in ["99.9 %", "0.214", "s at work over time:", "queue"] {
        assert!(text(&output).contains(part), "{part}: {}", text(&output));
    }
}

#[test]
fn a_time_line_has_what_the_lines_of_requests_have() {
    let sandbox = Sandbox::new();
    small(&sandbox);
    json(&sandbox, "run small.toml --csv r.csv --sub-requests s.csv --timeline t.json");
    let trace: Value = serde_json::from_slice(&fs::read(sandbox.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let ns = |event: &Value, key: &str| (event[key].as_f64().unwrap() * 1e3).round() as u64;
    let spans = || events.iter().filter(|event| event["ph"] == "X");
    let clients = spans().filter(|event| event["pid"] == 1);
    let told = |event: &Value| {
        (event["name"].as_str().unwrap().to_string(), ns(event, "ts"), ns(event, "ts") + ns(event, "dur"))
    };
    let mut seen: Vec<_> = clients.map(told).collect();
    let requests = rows(&sandbox, "r.csv");
    let mut expected: Vec<_> = requests
        .iter()
        .map(|row| (row["op"].clone(), number(row, "begin_ns"), number(row, "end_ns")))
        .collect();
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
    // Nothing on a track overlaps.
    let mut tracks: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for event in spans() {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        tracks.entry(track).or_default().push((ns(event, "ts"), ns(event, "ts") + ns(event, "dur")));
    }
    for (track, spans) in &mut tracks {
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{track:?}");
    }
    // Every track and server has a name.
    let named = events.iter().filter(|event| event["ph"] == "M" && event["name"] == "thread_name").count();
    assert_eq!(named, tracks.len());
    // A sub-request for each piece of each request, within it.
    let pieces = rows(&sandbox, "s.csv");
    let mut lengths: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for piece in &pieces {
        *lengths.entry((number(piece, "rank"), number(piece, "number"))).or_default() +=
            number(piece, "length");
    }
    for request in &requests {
        assert_eq!(lengths[&(number(request, "rank"), number(request, "number"))], number(request, "length"));
    }
    // A part of it, and too much for it.
    let line = "run small.toml --timeline part.json --timeline-from 2ms --timeline-to 3ms";
    let part = json(&sandbox, line);
    let within = requests
        .iter()
        .filter(|row| number(row, "begin_ns") < 3_000_000 && number(row, "end_ns") >= 2_000_000);
    assert_eq!(part["timeline"]["requests"], within.count());
    assert_eq!(part["timeline"]["full_at_ns"], Value::Null);
    let output = sim(&sandbox, "run small.toml --timeline part.json --timeline-events 100");
    assert!(
        text(&output).contains("the time line has the first 100 requests and pieces of work"),
        "{}",
        text(&output)
    );
    serde_json::from_slice::<Value>(&fs::read(sandbox.path("part.json")).unwrap()).unwrap();
    let output = sim(&sandbox, "run small.toml --timeline-to 3ms");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn a_page_stands_alone_and_shows_hostile_names_as_text() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("<script>alert(1)<b>'\"&.toml");
    small(&sandbox);
    fs::copy(sandbox.path("small.toml"), &file).unwrap();
    let output = sandbox
        .tidepool(&["sim", "run"])
        .arg(&file)
        .args(["--html", "page.html"])
        .current_dir(sandbox.dir.path())
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let page = fs::read_to_string(sandbox.path("page.html")).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert(1)"), "{page}");
    // Nothing is loaded from anywhere: the only address is the name of SVG's language.
    assert!(
        !page.contains("src=")
            && !page.contains("<link")
            && !page.contains("@import")
            && !page.contains("url(")
    );
    assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
    for part in [
        "Configuration",
        "Response times",
        "Throughput",
        "Devices at work",
        "Requests at a device",
        "Each device at work",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<svg").count(), 6);
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(!page.contains("NaN") && !page.contains("inf,"));
}

#[test]
fn files_that_cannot_be_written_are_told() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("three.toml"), THREE).unwrap();
    for flag in ["--csv", "--sub-requests", "--timeline", "--html"] {
        let output = sim(&sandbox, &format!("run three.toml {flag} none/file"));
        assert_eq!(output.status.code(), Some(1), "{flag}: {}", text(&output));
        assert!(text(&output).contains("none/file"), "{flag}: {}", text(&output));
    }
    // Full when it is closed, and while it is written.
    for line in ["run three.toml --csv /dev/full", "run three.toml --sub-requests /dev/full"] {
        let output = sim(&sandbox, line);
        assert_eq!(output.status.code(), Some(1), "{line}: {}", text(&output));
        assert!(text(&output).contains("/dev/full"), "{line}: {}", text(&output));
    }
}
