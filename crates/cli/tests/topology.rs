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
    // As releases before racks wrote it.
    let before = r#"{"host":"c1","extractor":"fabric","version":1,"class":"static","source":"file","taken_ms":1,"data":{"switches":[{"name":"s0","level":1}],"hosts":[{"host":"c1","switch":"s0","count":1,"gigabits_per_second":null}],"links":[]}}"#;
    let before = put(&sandbox, "before.jsonl", before);
    sandbox.ok(&["sysmap", "import", "--db", db, &before]);
    assert_eq!(leaves(show_json(&sandbox, &["--db", db])), ["s0", "s1", "s2"]);
    let moved = put(&sandbox, "moved.toml", "switch = [{ name = \"s3\", hosts = \"a[1-2]\" }]");
    tell("b2", &moved);
    let said = ends(&sandbox, 1, &["show", "--db", db]);
    let words = "host 'a1': a1, a2 told switch 's1', b2 told switch 's3'; collect `fabric` there again";
    assert!(said.contains(words), "{said}");
}

/// 12 leaves with 20 nodes each, 6 cores.
fn island() -> String {
    let mut text = String::new();
    for leaf in 0..12 {
        let hosts = format!("n[{}-{}]", leaf * 20 + 1, leaf * 20 + 20);
        text +=
            &format!("[[switch]]\nname = \"leaf{leaf}\"\nhosts = \"{hosts}\"\ngigabits-per-second = 56\n");
    }
    for core in 1..=6 {
        text += &format!(
            "[[switch]]\nname = \"core{core}\"\nswitches = \"leaf[0-11]\"\ngigabits-per-second = 56\n"
        );
    }
    text
}

/// INVENTORY A13 and A18.
#[test]
fn r_a13_throughput_with_fewer_cores_is_told_with_its_bottleneck() {
    let sandbox = Sandbox::new();
    let file = put(&sandbox, "island.toml", &island());
    let flow = |more: &[&str]| {
        let args = ["topology", "flow", "--topology", &file, "--device-write", "2GB", "--json"];
        serde_json::from_str::<Value>(&sandbox.ok(&[&args[..], more].concat())).unwrap()
    };
    let total = |told: &Value| told["total_bytes_per_second"].as_f64().unwrap();
    let full = flow(&[]);
    assert_eq!((&full["label"], &full["bottleneck"]), (&"model, not measured".into(), &"device".into()));
    let (three, one) = (flow(&["--off", "core[1-3]"]), flow(&["--off", "core[2-6]"]));
    assert_eq!((&three["bottleneck"], &one["bottleneck"]), (&"core".into(), &"core".into()));
    assert!(
        (total(&three) / total(&one) - 3.0).abs() < 1e-6 && total(&three) < 0.6 * total(&full),
        "{three}"
    );
    for off in ["core[1-3]", "core[2-6]"] {
        assert!(total(&flow(&["--off", off, "--pools", "leaf"])) >= 0.95 * total(&full));
    }
}

#[test]
fn all_forms_of_a_model_say_that_it_is_one() {
    let sandbox = Sandbox::new();
    let file = put(&sandbox, "topology.toml", TWO_LEAVES);
    let flow = |more: &[&str]| sandbox.ok(&[&["topology", "flow", "--topology", &file][..], more].concat());
    let shown = flow(&["--writers", "n1", "--stripe", "2", "--routing", "hashed"]);
    assert!(shown.starts_with("model, not measured: 1 writers, 6 nodes keep data\n"), "{shown}");
    assert!(shown.contains("total       1.0 GB/s (33.3 % of what the devices take)\n"), "{shown}");
    assert!(shown.contains("bottleneck  device (holds 1 of 1 writers back)\n"), "{shown}");
    let csv = flow(&["--csv", "--pools", "leaf", "--off", "core1"]);
    let (names, values) = csv.trim_end().split_once('\n').unwrap();
    assert!(
        names.starts_with("label,nodes,writers,off,pools,stripe,device_write_bytes_per_second,total_"),
        "{csv}"
    );
    let expected = "\"model, not measured\",6,6,\"core1\",leaf,,500000000,3000000000,1.0000,500000000,";
    assert!(values.starts_with(expected) && values.ends_with(",0.0000,0.0000"), "{csv}");
    for (args, code, words) in [
        (&["--off", "core1"][..], 1, "no way leads from switch 'leaf1' to switch 'leaf2'"),
        (&["--off", "core["], 2, "--off: 'core['"),
        (&["--stripe", "0"], 2, "zero"),
        (&["--device-write", "x"], 2, "does not start with a digit"),
    ] {
        let said = ends(&sandbox, code, &[&["flow", "--topology", &file][..], args].concat());
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

/// INVENTORY A14: from what hosts have told the database.
#[test]
fn r_a14_an_island_is_drawn_from_the_database() {
    let sandbox = Sandbox::new();
    let (file, db, svg) =
        (put(&sandbox, "island.toml", &island()), sandbox.path("r.db"), sandbox.path("i.svg"));
    let (db, svg) = (db.to_str().unwrap(), svg.to_str().unwrap());
    sandbox.ok(&["sysmap", "collect", "--db", db, "--only", "fabric", "--host", "n1", "--topology", &file]);
    sandbox.ok(&["topology", "draw", "--db", db, "-o", svg]);
    let drawn = fs::read_to_string(svg).unwrap();
    assert_eq!((drawn.matches("<path ").count(), drawn.matches("<g><title>n").count()), (72, 240));
    assert_eq!(sandbox.ok(&["topology", "draw", "--topology", &file, "-o", "-"]), drawn);
    let said = ends(&sandbox, 1, &["draw", "--topology", &file, "-o", "/nowhere/i.svg"]);
    assert!(said.contains("/nowhere/i.svg: No such file"), "{said}");
}

#[test]
fn a_pool_and_a_files_chunks_are_drawn() {
    let sandbox = Sandbox::new();
    let start =
        ["pool", "start", "--name", "drawn", "--nodes", "2", "--client", "preload", "--placement", "wide"];
    sandbox.ok(&start);
    let status: Value =
        serde_json::from_str(&sandbox.ok(&["pool", "status", "--pool", "drawn", "--json"])).unwrap();
    let host = status["daemons"][0]["host"].as_str().unwrap();
    // This node and another one, which has no daemons.
    let network = format!("switch = [{{ name = \"leaf\", hosts = \"{host},{host}-too\" }}]");
    let file = put(&sandbox, "topology.toml", &network);
    let draw =
        |more: &[&str]| sandbox.ok(&[&["topology", "draw", "--topology", &file, "-o", "-"], more].concat());
    let daemons = format!("<title>{host}, leaf, daemons: 2</title>");
    let drawn = draw(&["--pool", "drawn"]);
    assert!(
        drawn.contains(&daemons) && drawn.contains(&format!("<title>{host}-too, leaf</title>")),
        "{drawn}"
    );
    assert!(drawn.contains("<title>pool &#39;drawn&#39;</title>") && drawn.contains(">x2</text>"), "{drawn}");
    let big = sandbox.path("big");
    fs::File::create(&big).unwrap().set_len((4 << 20) + 1).unwrap();
    sandbox.ok(&["cp", "--pool", "drawn", big.to_str().unwrap(), "pool:/big"]);
    // The only pool is meant.
    let drawn = draw(&["--path", "/big"]);
    assert!(drawn.contains("daemons: 2, chunks: 9</title>") && drawn.contains(">9</text>"), "{drawn}");
    assert!(drawn.contains("Numbers: 9 chunks of /big (4.0 MiB; "), "{drawn}");
    for (args, code, words) in [
        (&["--path", "/"][..], 1, "/: it is no file, and has no chunks"),
        (&["--path", "/none"], 1, "/none: "),
        (&["--pool", "other"], 116, "no pool 'other'"),
    ] {
        let said = ends(&sandbox, code, &[&["draw", "--topology", &file, "-o", "-"], args].concat());
        assert!(said.contains(words), "{said}");
    }
    sandbox.ok(&["pool", "stop", "--pool", "drawn"]);
    sandbox.assert_nothing_left("after the pool");
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
