//! `tidepool topology`.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fs;

const TWO_LEAVES: &str = r#"
    rack = [{ name = "r1", hosts = "n[1-2]" }]
    switch = [
      { name = "core1", switches = "leaf[1-2]", links = 2, gigabits-per-second = 100 },
      { name = "leaf1", hosts = "n[1-3]", gigabits-per-second = 100 },
      { name = "leaf2", hosts = "n[4-6]", gigabits-per-second = 100 },
    ]"#;

fn put(sandbox: &Sandbox, name: &str, content: &str) -> String {
    let path = sandbox.path(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().into()
}

/// Runs it where no database is, and demands this exit code.
fn ends(sandbox: &Sandbox, code: i32, args: &[&str]) -> String {
    let mut command = sandbox.tidepool(&["topology"]);
    let output =
        command.args(args).env("TIDEPOOL_RESOURCES", sandbox.path("none/resources.db")).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
    text(&output)
}

fn show_json(sandbox: &Sandbox, args: &[&str]) -> Value {
    serde_json::from_str(&sandbox.ok(&[&["topology", "show", "--json"], args].concat())).unwrap()
}

#[test]
fn a_file_is_shown_with_its_widths() {
    let sandbox = Sandbox::new();
    let file = put(&sandbox, "topology.toml", TWO_LEAVES);
    let shown = ends(&sandbox, 0, &["show", "--topology", &file]);
    let expected = "\
LEAF   ISLAND  HOSTS  HOST GBIT/S  UPLINK GBIT/S  OVERSUBSCRIPTION  NAMES
leaf1  1       3      300          200            1.5               n[1-3]
leaf2  1       3      300          200            1.5               n[4-6]

SWITCH  SWITCH  LINKS  GBIT/S OF EACH
core1   leaf1   2      100
core1   leaf2   2      100

RACK  HOSTS
r1    n[1-2]
";
    assert!(shown.contains(expected), "{shown}");
    let told = show_json(&sandbox, &["--topology", &file]);
    assert_eq!(told["leaves"][1]["hosts"], serde_json::json!(["n4", "n5", "n6"]));
    assert_eq!(
        (&told["leaves"][0]["oversubscription"], &told["leaves"][0]["island"]),
        (&1.5.into(), &1.into())
    );
    assert_eq!(told["islands"], serde_json::json!([["leaf1", "leaf2"]]));
    assert_eq!(told["racks"][0]["name"], "r1");
}

#[test]
fn slurms_file_tells_no_speeds() {
    let sandbox = Sandbox::new();
    let file = put(&sandbox, "topology.conf", "SwitchName=s1 Nodes=a[1-2]\nSwitchName=s2 Nodes=b\n");
    let shown = ends(&sandbox, 0, &["show", "--slurm-topology", &file]);
    assert!(
        shown.contains("s1    1       2      ?            0              ?                 a[1-2]"),
        "{shown}"
    );
    assert_eq!(
        show_json(&sandbox, &["--slurm-topology", &file])["islands"],
        serde_json::json!([["s1"], ["s2"]])
    );
}

#[test]
fn what_hosts_have_told_a_database_is_one_network() {
    let sandbox = Sandbox::new();
    let db = sandbox.path("resources.db");
    let db = db.to_str().unwrap();
    let one = put(
        &sandbox,
        "one.toml",
        "switch = [{ name = \"s1\", hosts = \"a[1-2]\", gigabits-per-second = 10 }]",
    );
    let other = put(
        &sandbox,
        "other.toml",
        "switch = [{ name = \"s2\", hosts = \"b[1-2]\", gigabits-per-second = 10 }]",
    );
    let tell = |host: &str, file: &str| {
        sandbox.ok(&[
            "sysmap",
            "collect",
            "--db",
            db,
            "--only",
            "fabric",
            "--host",
            host,
            "--topology",
            file,
        ]);
    };
    for (host, file) in [("a1", &one), ("a2", &one), ("b1", &other)] {
        tell(host, file);
    }
    let leaves = |told: Value| {
        let name = |leaf: &Value| leaf["name"].as_str().unwrap().to_string();
        told["leaves"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(leaves(show_json(&sandbox, &["--db", db])), ["s1", "s2"]);
    // A file goes before the database.
    assert_eq!(leaves(show_json(&sandbox, &["--db", db, "--topology", &one])), ["s1"]);
    let moved = put(&sandbox, "moved.toml", "switch = [{ name = \"s3\", hosts = \"a[1-2]\" }]");
    tell("b2", &moved);
    let said = ends(&sandbox, 1, &["show", "--db", db]);
    let words = "host 'a1': a1, a2 told switch 's1', b2 told switch 's3'; collect `fabric` there again";
    assert!(said.contains(words), "{said}");
}

#[test]
fn what_is_missing_or_wrong_is_said() {
    let sandbox = Sandbox::new();
    let bad = put(&sandbox, "bad.toml", "switch = [{ name = \"s\", switches = \"s\" }]");
    let worse = put(&sandbox, "worse.toml", "switch = 1");
    for (args, code, words) in [
        (&["show"][..], 1, "nothing tells of the network's switches; say --topology FILE"),
        (&["show", "--db", "/nowhere/x.db"], 1, "/nowhere/x.db: there is no resource database"),
        (&["show", "--topology", "/nowhere/x"], 1, "/nowhere/x: No such file"),
        (&["show", "--topology", &bad], 1, "bad.toml: the link between switches 's' and 's' joins no two"),
        (&["show", "--topology", &worse], 1, "worse.toml: "),
        (&["show", "--topology", &bad, "--slurm-topology", &bad], 2, "cannot be used with"),
    ] {
        let said = ends(&sandbox, code, args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
