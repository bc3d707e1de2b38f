//! `experiments/run` works with this build: a few experiments run as `--quick` does, and what they
//! leave is whole. The numbers prove nothing here.

mod common;

use common::Sandbox;
use std::path::{Path, PathBuf};
use std::process::Command;

const PYTHON: &str = "/usr/bin/python3";
const PNG_MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

/// False, said loudly, when what the experiments need is not here.
fn can_run() -> bool {
    let library = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("libtidepool_preload.so");
    if !library.is_file() {
        println!("SKIPPED: no preload library beside the command; run 'cargo build --workspace' first");
        return false;
    }
    let found = Command::new(PYTHON).args(["-c", "import matplotlib"]).output();
    let there = found.is_ok_and(|output| output.status.success());
    if !there {
        println!("SKIPPED: {PYTHON} has no matplotlib; install python3-matplotlib");
    }
    there
}

/// Runs an experiment and looks at its three files; the report.
fn run(sandbox: &Sandbox, name: &str) -> serde_json::Value {
    let out = sandbox.path(name);
    let (memory, disk) = (sandbox.path("memory"), sandbox.path("disk"));
    for dir in [&memory, &disk] {
        std::fs::create_dir_all(dir).unwrap();
    }
    let mut command = Command::new(folder().join("run"));
    command.args([name, "--quick", "--out"]).arg(&out).arg("--memory").arg(&memory).arg("--disk").arg(&disk);
    command.arg("--tidepool").arg(env!("CARGO_BIN_EXE_tidepool")).env("TMPDIR", sandbox.dir.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{name}: {}", common::text(&output));

    let text = std::fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
    for private in [sandbox.dir.path().to_str().unwrap(), env!("CARGO_MANIFEST_DIR"), "\"host\""] {
        assert!(!text.contains(private), "{name}.json tells {private}");
    }
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["quick"], true);
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        assert!(["measured", "modelled", "published"].contains(&row["kind"].as_str().unwrap()), "{row}");
        assert!(row["n"].as_u64().unwrap() == row["values"].as_array().unwrap().len() as u64, "{row}");
    }
    let table = std::fs::read_to_string(out.join(format!("{name}.csv"))).unwrap();
    assert_eq!(table.lines().count(), rows.len() + 1, "{table}");
    let plot = std::fs::read(out.join(format!("{name}.png"))).unwrap();
    assert!(plot.starts_with(PNG_MAGIC) && plot.len() > 10_000, "{name}.png has {} bytes", plot.len());
    report
}

fn findings(report: &serde_json::Value) -> String {
    report["findings"].as_array().unwrap().iter().filter_map(|f| f.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn k12_shapes_are_measured_as_they_are() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let report = run(&sandbox, "k12");
    let told = findings(&report);
    // Which of both falls less is a measurement: it is wrong where something else takes the processors.
    for words in [
        "contiguous: the shaped burst buffer falls",
        "random: the shaped burst buffer falls",
        "shaped: ssd, not real storage",
        "shaped: hdd, not real storage",
        "real storage",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let left = std::fs::read_dir(sandbox.path("disk")).unwrap().count();
    assert_eq!(left, 0, "files on the disk");
}

/// Real pools on shaped tiers: all strategies end, and everything is on the PFS afterwards.
#[test]
fn k13_strategies_are_compared_on_shaped_tiers() {
    if !can_run() {
        return;
    }
    let told = findings(&run(&Sandbox::new(), "k13"));
    for words in ["baseline takes", "hp takes", "times as long as model", "storage is shaped, not real"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// In the simulator: all strategies, and the paper's factors beside.
#[test]
fn simk13_strategies_are_compared_in_the_simulator() {
    if !can_run() {
        return;
    }
    let told = findings(&run(&Sandbox::new(), "simk13"));
    for words in ["baseline takes", "hp takes", "times as long as model", "the paper: 4"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// False, said loudly, when there is no fio, or this file system has no direct I/O.
fn can_fio(sandbox: &Sandbox) -> bool {
    let file = sandbox.path("direct");
    let words = ["--name=try", "--rw=write", "--bs=4k", "--size=4k", "--direct=1", "--minimal"];
    let tried = Command::new("fio").args(words).arg(format!("--filename={}", file.display())).output();
    let there = tried.is_ok_and(|output| output.status.success());
    let _ = std::fs::remove_file(file);
    if !there {
        println!("SKIPPED: no fio, or no direct I/O below {}", sandbox.dir.path().display());
    }
    there
}

#[test]
fn l16_the_simulator_is_held_against_half_of_fios_runs() {
    let sandbox = Sandbox::new();
    if !can_run() || !can_fio(&sandbox) {
        return;
    }
    let told = findings(&run(&sandbox, "l16"));
    for words in ["mean error of held-out configurations", "the paper: 11.98 %", "random writes of 8 clients"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(std::fs::read_dir(sandbox.path("disk")).unwrap().count(), 0, "files on the disk");
}

#[test]
fn l17_all_schedulers_have_one_trace() {
    if !can_run() {
        return;
    }
    let told = findings(&run(&Sandbox::new(), "l17"));
    assert!(told.contains("all runs have the same trace") && told.contains("10,082 to 65,438"), "{told}");
}

#[test]
fn simf22_a_pool_is_simulated_from_one_node() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "simf22"));
    for words in [
        "simulated: create on 16 nodes",
        "latency: x",
        "the simulation is off by",
        "published on 512: 46 M/s",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    left_behind(&sandbox, "after simf22");
}

/// A victim's slowdown is told for each strategy.
#[test]
fn victims_are_compared_on_shaped_tiers() {
    if !can_run() {
        return;
    }
    let told = findings(&run(&Sandbox::new(), "victim"));
    for strategy in ["baseline", "hp", "ia", "fcfs", "fair"] {
        assert!(told.contains(&format!("{strategy}: the victim's I/O takes")), "{strategy}: {told}");
    }
}

#[test]
fn a7_starts_are_measured_modelled_and_beside_published_ones() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let report = run(&sandbox, "a7");
    let told = findings(&report);
    assert!(told.contains("measured: 1 to 4 daemons") && told.contains("512 nodes: modelled"), "{told}");
    for kind in ["measured", "modelled", "published"] {
        assert!(report["rows"].as_array().unwrap().iter().any(|row| row["kind"] == kind), "no row is {kind}");
    }
    left_behind(&sandbox, "after a7");
}

/// Without root there is less to see, and the findings say so.
#[test]
fn a10_a_nodes_share_is_told() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "a10"));
    let own = told.contains("of the devices' 25.0 MB/s each") || told.contains("need root");
    assert!(own && told.contains("1,792 GB/s"), "{told}");
    left_behind(&sandbox, "after a10");
}

#[test]
fn a13_pools_at_leaf_switches_do_without_the_core() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "a13"));
    let island = "480 GB/s with 6 core switches, of that 1.00 with 3, 1.00 with 1; within 5 %";
    assert!(told.contains(island), "{told}");
    let measured = told.contains("% of the data went between leaves") || told.contains("need root");
    assert!(measured, "{told}");
    left_behind(&sandbox, "after a13");
}

#[test]
fn f19_idle_daemons_stay_within_their_limits() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "f19"));
    assert!(told.contains("below the 1 % of a core") && !told.contains("NOT"), "{told}");
    sandbox.assert_nothing_left("after f19");
}

#[test]
fn f21_sizes_are_right_after_fsync_and_close() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "f21"));
    assert!(told.contains("right in 41 looks") && !told.contains("WRONG"), "{told}");
    sandbox.assert_nothing_left("after f21");
}

#[test]
fn f27_the_protocol_is_carried_out() {
    if !can_run() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "f27"));
    // The experiment itself fails when what it sees is not what the protocol says.
    assert!(told.contains("by the protocol: 12 daemons were seen"), "{told}");
    sandbox.assert_nothing_left("after f27");
}

/// False, said loudly, when the program that others run beside cannot be built.
fn can_compile() -> bool {
    let there = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if !there || cores < 2 {
        println!("SKIPPED: needs cc and two cores (cc is here: {there}, cores: {cores})");
    }
    there && cores >= 2
}

#[test]
fn e7_copies_beside_an_application_tell_their_indexing_apart() {
    if !can_run() || !can_compile() {
        return;
    }
    let sandbox = Sandbox::new();
    let report = run(&sandbox, "e7");
    let told = findings(&report);
    for words in ["all of the source is listed after", "for each daemon, held back:", "listing alone takes"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // What is held back is so by the product's own means.
    let commands = report["commands"].to_string();
    assert!(commands.contains("--gentle") && !commands.contains("chrt"), "{commands}");
    left_behind(&sandbox, "after e7");
}

/// False, said loudly, when there is no stager to measure.
fn can_stage() -> bool {
    let there = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("tidepool-staged").is_file();
    if !there {
        println!("SKIPPED: no tidepool-staged beside the command; run 'cargo build --workspace' first");
    }
    there && can_run()
}

fn left_behind(sandbox: &Sandbox, when: &str) {
    sandbox.assert_nothing_left(when);
    let stores: Vec<_> = std::fs::read_dir(sandbox.path("memory")).unwrap().flatten().collect();
    assert!(stores.is_empty(), "{when}: {stores:?}");
}

#[test]
fn j3_local_requests_are_measured_beside_null_requests() {
    if !can_stage() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "j3"));
    assert!(told.contains("tidepool, Rust, 4 processes") && told.contains("published: 700,000"), "{told}");
    left_behind(&sandbox, "after j3");
}

#[test]
fn j4_requests_to_other_nodes_are_measured_beside_plain_messages() {
    if !can_stage() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "j4"));
    assert!(told.contains("look at a file, 2 node(s)") && told.contains("published: 45,000"), "{told}");
    left_behind(&sandbox, "after j4");
}

#[test]
fn j5_bandwidth_to_another_node_is_measured() {
    if !can_stage() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "j5"));
    assert!(told.contains("reads, all clients, 16 in flight, by clients (1, 2)"), "{told}");
    left_behind(&sandbox, "after j5");
}

#[test]
fn j8_staging_beside_a_solver_is_measured() {
    if !can_stage() || !can_compile() {
        return;
    }
    let sandbox = Sandbox::new();
    let told = findings(&run(&sandbox, "j8"));
    for words in ["beside a stage-out: ", "beside a stage-in, held back", "published: 16 %"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    left_behind(&sandbox, "after j8");
    let left = std::fs::read_dir(sandbox.path("disk")).unwrap().count();
    assert_eq!(left, 0, "files on the disk");
}

#[test]
fn the_parts_without_a_pool_are_right() {
    let output = Command::new(PYTHON).args(["-m", "unittest", "discover"]).arg(folder()).output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", common::text(&output)),
        Err(error) => println!("SKIPPED: {PYTHON}: {error}"),
    }
}
