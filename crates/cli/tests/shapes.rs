//! Shaped tiers, and storage that is measured, as users have them (INVENTORY K12).

mod common;

use common::{Sandbox, processes_of, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const SLOW: &str = "name = \"slow\"\nburst-bytes = \"64kB\"\nsequential = [[1, \"8MB\"], [2, \"12MB\"], [4, \"9MB\"]]\nrandom = [[1, \"4MB\"]]\n";

struct Place {
    sandbox: Sandbox,
    dir: String,
    shape: String,
}

impl Place {
    fn new() -> Place {
        let sandbox = Sandbox::new();
        let name = |name: &str| sandbox.path(name).display().to_string();
        let (dir, shape) = (name("tier"), name("slow.toml"));
        fs::create_dir(&dir).unwrap();
        fs::write(&shape, SLOW).unwrap();
        Place { sandbox, dir, shape }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// A pool says of its shaped tiers that they are, wherever it speaks of them; what is wrong is found before anything starts.
#[test]
fn a_pool_on_a_shaped_tier_says_so() {
    let place = Place::new();
    let Place { sandbox, dir, shape } = &place;
    let label = "shaped: slow, not real storage";
    let start =
        ["pool", "start", "--name", "p", "--client", "preload", "--pfs", dir, "--strategy", "baseline"];
    let said = sandbox.ok(&[&start[..], &["--shape-pfs", shape]].concat());
    assert!(said.contains(&format!("pfs is {label}")), "{said}");
    let said = sandbox.ok(&["pool", "status", "--pool", "p"]);
    assert!(said.contains(&format!("pfs is {label}")), "{said}");
    let status: Value =
        serde_json::from_str(&sandbox.ok(&["pool", "status", "--pool", "p", "--json"])).unwrap();
    assert_eq!(status["shaped"], serde_json::json!({ "pfs": label }));
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    assert_eq!(place.names(), [""; 0], "nothing of the shape is left");
    let run = ["run", "--json", "--pfs", dir, "--strategy", "baseline", "--shape-pfs", shape, "--", "true"];
    let output = sandbox.tidepool(&run).output().unwrap();
    assert!(text(&output).contains(&format!("pfs is {label}")), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["shaped"], serde_json::json!({ "pfs": label }));
    sandbox.assert_nothing_left("after the run");
}

#[test]
fn a_wrong_shape_starts_nothing() {
    let place = Place::new();
    let Place { sandbox, dir, shape } = &place;
    let refused = |words: &[&str], code: i32, wanted: &[&str]| {
        let output = sandbox.tidepool(words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        for word in wanted {
            assert!(text(&output).contains(word), "{word}: {}", text(&output));
        }
    };
    let start = ["pool", "start", "--name", "p"];
    let with = |more: &[&'static str]| [&start[..], &["--pfs", dir, "--shape-pfs", shape], more].concat();
    fs::write(shape, SLOW.replace("burst-bytes", "busrt-bytes").replace("8MB", "0")).unwrap();
    refused(&with(&[]), 2, &["'busrt-bytes'; did you mean 'burst-bytes'?", "0 bytes/s for 1 processes"]);
    fs::write(shape, " ".repeat(70_000)).unwrap();
    refused(&with(&[]), 2, &["larger than"]);
    fs::remove_file(shape).unwrap();
    refused(&with(&[]), 2, &["No such file"]);
    fs::write(shape, SLOW).unwrap();
    refused(&[&start[..], &["--pfs", dir, "--shape-burst", shape]].concat(), 2, &["--burst"]);
    assert_eq!(place.names(), [""; 0]);
    sandbox.assert_nothing_left("after what was refused");
}

#[test]
fn a_damaged_queue_is_told() {
    let place = Place::new();
    let Place { sandbox, dir, shape } = &place;
    let state = Path::new(dir).join("tidepool-shape/state");
    fs::create_dir(Path::new(dir).join("tidepool-shape")).unwrap();
    fs::write(&state, b"TIDESHAP").unwrap();
    let start = ["pool", "start", "--name", "p", "--client", "preload", "--pfs", dir, "--shape-pfs", shape];
    let output = sandbox.tidepool(&start).output().unwrap();
    assert_eq!(output.status.code(), Some(110), "{}", text(&output));
    assert!(text(&output).contains("remove the file"), "{}", text(&output));
    fs::remove_file(&state).unwrap();
    sandbox.ok(&start);
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    sandbox.assert_nothing_left("after the pool");
}

fn measure<'a>(place: &'a Place, more: &[&'a str]) -> Vec<&'a str> {
    [&["tiers", "measure", &place.dir, "--shape", &place.shape], more].concat()
}

/// What is measured of a shape is the shape: never more, and within a tenth of it, by the median of three.
#[test]
fn a_shape_is_measured_as_it_is() {
    let place = Place::new();
    let Place { sandbox, dir, .. } = &place;
    let (csv, html) =
        (sandbox.path("c.csv").display().to_string(), sandbox.path("c.html").display().to_string());
    let words = ["--processes", "4,1,2", "--patterns", "sequential", "--bytes", "4MiB", "--block", "128KiB"];
    let files = ["--csv", &csv, "--html", &html, "--json"];
    let report: Value =
        serde_json::from_str(&sandbox.ok(&measure(&place, &[&words[..], &files].concat()))).unwrap();
    let points = report["curves"]["sequential"].as_array().unwrap();
    let found: Vec<(u64, u64)> = points
        .iter()
        .map(|point| (point["processes"].as_u64().unwrap(), point["bytes_per_s"].as_u64().unwrap()))
        .collect();
    for ((processes, rate), (wanted, of_shape)) in
        found.iter().zip([(1, 8_000_000_u64), (2, 12_000_000), (4, 9_000_000)])
    {
        assert_eq!(*processes, wanted);
        assert!(rate * 10 >= of_shape * 9 && rate * 100 <= of_shape * 103, "{found:?}");
    }
    assert_eq!(found.len(), 3);
    let label = "shaped: slow, not real storage";
    let shown = sandbox.ok(&["tiers", "show", dir]);
    assert!(shown.contains(label), "{shown}");
    let shown: Value = serde_json::from_str(&sandbox.ok(&["tiers", "show", dir, "--json"])).unwrap();
    assert_eq!((&shown["storage"], &shown), (&Value::from(label), &report["curves"]));
    assert!(fs::read_to_string(&html).unwrap().contains(label));
    assert_eq!(fs::read_to_string(&csv).unwrap().matches(label).count(), 9);
    assert_eq!(place.names(), ["tidepool-curves.json"], "nothing else is left");
}

/// Both directions and all patterns of what is really there; of a real disk nothing is known but that it moves.
#[test]
fn real_storage_is_measured_and_said_to_be_real() {
    let place = Place::new();
    let Place { sandbox, dir, .. } = &place;
    let missing = sandbox.tidepool(&["tiers", "show", dir]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing).contains("tiers measure"), "{}", text(&missing));
    for direction in ["write", "read"] {
        let words = [
            "tiers",
            "measure",
            dir,
            "--processes",
            "1,3",
            "--bytes",
            "64KiB",
            "--block",
            "4KiB",
            "--repeats",
            "2",
        ];
        let said = sandbox.ok(&[&words[..], &["--direction", direction]].concat());
        assert!(said.contains(&format!("real storage; {direction}")), "{said}");
        assert!(said.contains("SEQUENTIAL") && said.contains("STRIDED") && said.contains("RANDOM"), "{said}");
        assert_eq!(said.lines().count(), 4, "{said}");
    }
    assert_eq!(place.names(), ["tidepool-curves.json"]);
}

/// However it ends, there are no files of it: they have no names.
#[test]
fn a_measurement_that_is_killed_leaves_nothing() {
    let place = Place::new();
    let slowly = measure(&place, &["--processes", "3", "--bytes", "1GiB", "--patterns", "random"]);
    let root = fs::canonicalize(&place.dir).unwrap();
    let workers = || {
        let is_worker = |process: &String| process.contains("tiers") && process.contains("worker");
        processes_of(&root).into_iter().filter(is_worker).collect::<Vec<_>>()
    };
    let number = |process: &str| process.split(':').next().unwrap().trim().parse().unwrap();
    for (whom, signal, code) in [
        ("the command", Signal::INT, Some(130)),
        ("a process", Signal::KILL, Some(1)),
        ("the command", Signal::KILL, None),
    ] {
        let mut command = place.sandbox.tidepool(&slowly);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // At work when the queue has been begun by all.
        while workers().len() < 3 || !place.names().contains(&"tidepool-shape".to_string()) {
            assert!(child.try_wait().unwrap().is_none(), "it has ended early");
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = if whom == "the command" { child.id() as i32 } else { number(&workers()[1]) };
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), code, "{whom}, {signal:?}: {}", text(&output));
        while !workers().is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Whoever is killed cannot remove the queue; it does no harm to the next.
        let left = if code.is_none() { vec!["tidepool-shape"] } else { vec![] };
        assert_eq!(place.names(), left, "{whom}, {signal:?}");
    }
    place.sandbox.ok(&[
        "tiers",
        "measure",
        &place.dir,
        "--processes",
        "1",
        "--bytes",
        "4KiB",
        "--block",
        "4KiB",
    ]);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Place::new();
    let Place { sandbox, dir, .. } = &place;
    let file = place.shape.as_str();
    for (words, code, said) in [
        (vec![dir.as_str(), "--processes", "0,2"], 2, "--processes: 1 to"),
        (vec![dir, "--processes", "2000"], 2, "--processes: 1 to"),
        (vec![dir, "--block", "1000"], 2, "multiple of 4096"),
        (vec![dir, "--bytes", "5MB"], 2, "times --block"),
        (vec![dir, "--seconds", "0"], 2, "--seconds"),
        (vec![dir, "--patterns", "sequentail"], 2, "sequential"),
        (vec![file], 2, "is no directory"),
        (vec![dir, "--shape", dir], 2, "--shape"),
        (vec![dir, "--block", "64MiB", "--bytes", "64TiB"], 1, "are free"),
    ] {
        let output = sandbox.tidepool(&[&["tiers", "measure"], &words[..]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output));
        assert!(text(&output).contains(said), "{words:?}: {}", text(&output));
    }
    let dry = sandbox.ok(&measure(&place, &["--processes", "2,4", "--dry-run"]));
    assert!(dry.contains("shaped: slow, not real storage") && dry.contains("864.0 MiB are written"), "{dry}");
    let dry = sandbox.ok(&measure(&place, &["--processes", "2,4", "--dry-run", "--json"]));
    let dry: Value = serde_json::from_str(&dry).unwrap();
    assert_eq!(
        (dry["bytes_written"].as_u64(), dry["bytes_at_once"].as_u64()),
        (Some(864 << 20), Some(64 << 20))
    );
    assert_eq!(place.names(), [""; 0]);
}
