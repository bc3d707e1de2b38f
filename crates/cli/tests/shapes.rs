//! Shaped tiers, and storage that is measured, as users have them (INVENTORY K12).

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fs;
use std::path::Path;

const SLOW: &str = "name = \"slow\"\nburst-bytes = \"64kB\"\nsequential = [[1, \"8MB\"], [2, \"12MB\"], [4, \"6MB\"]]\nrandom = [[1, \"4MB\"]]\n";

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
