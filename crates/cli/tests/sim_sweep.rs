//! `tidepool sim sweep`: the same points whoever runs them and however often they are killed.

mod common;

use common::{Sandbox, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

fn sim(sandbox: &Sandbox, line: &str) -> Output {
    let mut command = sandbox.tidepool(&["sim"]);
    command.args(line.split_whitespace()).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

fn ok(sandbox: &Sandbox, line: &str) -> String {
    let output = sim(sandbox, line);
    assert!(output.status.success(), "{line}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A system whose points take as long as `block` says.
fn experiment(sandbox: &Sandbox, block: &str) {
    let text = format!(
        "[[device]]\nname = \"disk\"\nkind = \"hdd\"\nrandom = \"uniform 5ms 15ms\"\nwrite-rate = \"100MB\"\n\
         [[device]]\nname = \"flash\"\nkind = \"ssd\"\nchannels = 4\nread = \"50us\"\nprogram = \"200us\"\n\
         [[servers]]\nname = \"hdd\"\ncount = 2\ndevice = \"disk\"\n\
         [[servers]]\nname = \"ssd\"\ncount = 2\ndevice = \"flash\"\nprice = 4\n\
         [layout]\nstripe = \"16KiB\"\n\
         [[workload]]\nname = \"w\"\nkind = \"ior\"\nranks = 2\nblock = \"{block}\"\ntransfer = \"64KiB\"\norder = \"random\"\n"
    );
    fs::write(sandbox.path("e.toml"), text).unwrap();
}

const KNOBS: &str = "sweep e.toml --vary weight.ssd=1..3 --vary count.ssd=1,2 --seeds 2";

fn file(sandbox: &Sandbox, name: &str) -> String {
    fs::read_to_string(sandbox.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn points_are_the_same_on_one_thread_and_on_several_alone_and_together() {
    let sandbox = Sandbox::new();
    experiment(&sandbox, "256KiB");
    let told = ok(&sandbox, &format!("{KNOBS} --jobs 1 --out one"));
    assert!(told.contains("weight.ssd") && told.contains("one/points.csv"), "{told}");
    let told: Value =
        serde_json::from_str(&ok(&sandbox, &format!("{KNOBS} --jobs 3 --out many --json"))).unwrap();
    let csv = file(&sandbox, "one/points.csv");
    assert_eq!(file(&sandbox, "many/points.csv"), csv);
    assert_eq!((csv.lines().count(), told["points"].as_array().unwrap().len()), (13, 12));
    assert!(csv.starts_with("point,weight.ssd,count.ssd,seed,virtual_ns,requests,"), "{csv}");
    let last: Vec<&str> = csv.lines().last().unwrap().split(',').collect();
    assert_eq!(last[..4], ["11", "3", "2", "2"]);
    // A point is what run and tune tell of its configuration.
    let run: Value = {
        let text = file(&sandbox, "e.toml")
            .replace("name = \"ssd\"\ncount = 2", "name = \"ssd\"\nweight = 3\ncount = 2");
        fs::write(sandbox.path("last.toml"), text).unwrap();
        serde_json::from_str(&ok(&sandbox, "run last.toml --seed 2 --json")).unwrap()
    };
    let point = &told["points"][11]["result"];
    assert_eq!(point["trace"], run["run"]["trace"]);
    assert_eq!(point["bytes_per_second"], run["result"]["bytes_per_second"]);
    assert_eq!(point["response_mean_ns"], run["result"]["response_mean_ns"]);
    // As an array's tasks do it.
    for number in [3, 0, 11] {
        assert_eq!(
            ok(&sandbox, &format!("{KNOBS} --out array --point {number}")),
            format!("point {number} is done\n")
        );
    }
    assert_eq!(ok(&sandbox, &format!("{KNOBS} --out array --point 3")), "point 3 was done before\n");
    let output = sim(&sandbox, &format!("{KNOBS} --out array --collect"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("9 of 12 points are missing: 1, 2, 4, 5, 6, 7, 8, 9, 10;"),
        "{}",
        text(&output)
    );
    assert_eq!(file(&sandbox, "array/points.csv").lines().count(), 4);
    ok(&sandbox, &format!("{KNOBS} --out array"));
    assert_eq!(file(&sandbox, "array/points.csv"), csv);
    let page = file(&sandbox, "array/sweep.html");
    assert_eq!((page.matches("<svg").count(), page.matches("<circle").count()), (4, 12));
    assert!(
        page.contains("count.ssd=2") && page.contains("12 of 12 points") && !page.contains("NaN"),
        "{page}"
    );
}

/// Killed again and again: what is there is whole, and what comes out is what an undisturbed sweep says.
#[test]
fn a_killed_sweep_goes_on_and_says_the_same() {
    let sandbox = Sandbox::new();
    experiment(&sandbox, "512KiB");
    let line = "sweep e.toml --vary weight.ssd=1..5 --vary weight.hdd=1,2 --seeds 4 --jobs 2 --out";
    ok(&sandbox, &format!("{line} whole"));
    let points = |dir: &str| fs::read_dir(sandbox.path(dir).join("points")).map_or(0, Iterator::count);
    let mut killed = 0;
    for kills in 1..=3 {
        let mut command = sandbox.tidepool(&["sim"]);
        command.args(format!("{line} cut").split_whitespace()).current_dir(sandbox.dir.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while points("cut") < 8 * kills && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        killed += usize::from(!child.wait().unwrap().success());
        for entry in fs::read_dir(sandbox.path("cut/points")).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with(".json") {
                let same = fs::read(sandbox.path("whole/points").join(&name)).unwrap();
                assert_eq!(fs::read(entry.path()).unwrap(), same, "{name}");
            }
        }
    }
    assert!(killed > 0, "it was always done before it was killed");
    // Damage is no result either.
    fs::write(sandbox.path("cut/points/0000000.json"), "{\"point\": 0, \"kno").unwrap();
    fs::copy(sandbox.path("cut/points/0000001.json"), sandbox.path("cut/points/0000002.json")).unwrap();
    ok(&sandbox, &format!("{line} cut"));
    assert_eq!(file(&sandbox, "cut/points.csv"), file(&sandbox, "whole/points.csv"));
}

#[test]
fn a_directory_is_of_one_sweep() {
    let sandbox = Sandbox::new();
    experiment(&sandbox, "64KiB");
    ok(&sandbox, &format!("{KNOBS} --out d"));
    // What means the same is the same.
    fs::write(sandbox.path("e.toml"), format!("# the same\n{}", file(&sandbox, "e.toml"))).unwrap();
    ok(&sandbox, &format!("{KNOBS} --out d"));
    for (line, code, why) in [
        (format!("{KNOBS} --seed 9 --out d"), 2, "another sweep"),
        (format!("{KNOBS} --vary stripe-size=4KiB --out d"), 2, "another sweep"),
        (format!("{KNOBS} --vary weight.ssd=1 --out e"), 2, "'weight.ssd' is there twice"),
        (format!("{KNOBS} --vary weight.sdd=1 --out e"), 2, "no class of servers 'sdd'"),
        (format!("{KNOBS} --point 12 --out e"), 2, "12 points, from 0 to 11"),
        (format!("{KNOBS} --vary eager=1..9999 --seeds 99999 --out e"), 2, "cannot be used multiple times"),
        ("sweep e.toml --vary eager=1..9999 --seeds 99999 --out e".to_string(), 2, "at most 1000000"),
        (format!("{KNOBS} --out e.toml"), 1, "e.toml"),
    ] {
        let output = sim(&sandbox, &line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output));
        assert!(text(&output).contains(why), "{line}: {}", text(&output));
    }
    experiment(&sandbox, "128KiB");
    assert!(text(&sim(&sandbox, &format!("{KNOBS} --out d"))).contains("another sweep"));
    // What is no system is told as such.
    ok(&sandbox, "sweep e.toml --vary count.ssd=0,1 --vary count.hdd=0,1 --out n");
    let csv = file(&sandbox, "n/points.csv");
    assert_eq!(csv.lines().nth(1), Some("0,0,0,1,,,,,,,,,,,,,,,,"), "{csv}");
    assert!(file(&sandbox, "n/sweep.html").contains("not possible: "), "{csv}");
}

/// The script that Slurm gets, run as Slurm does: each task with its number, from any directory.
#[test]
fn tasks_of_an_array_run_all_points() {
    let sandbox = Sandbox::new();
    experiment(&sandbox, "64KiB");
    let dir = sandbox.path("it's $(here)");
    fs::create_dir(&dir).unwrap();
    fs::copy(sandbox.path("e.toml"), dir.join("e.toml")).unwrap();
    let here = |line: &str| {
        let mut command = sandbox.tidepool(&["sim"]);
        let output = command.args(line.split_whitespace()).current_dir(&dir).output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output));
    };
    here(&format!("{KNOBS} --out array --slurm-array sweep.sh --tasks 5"));
    let script = fs::read_to_string(dir.join("sweep.sh")).unwrap();
    assert!(script.contains("#SBATCH --array=0-4\n"), "{script}");
    for task in 0..5 {
        let output = std::process::Command::new(dir.join("sweep.sh"))
            .env("SLURM_ARRAY_TASK_ID", task.to_string())
            .current_dir("/")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        // 12 points on 5 tasks.
        assert_eq!(
            text(&output).matches("is done").count(),
            if task < 2 { 3 } else { 2 },
            "{}",
            text(&output)
        );
    }
    here(&format!("{KNOBS} --out array --collect"));
    here(&format!("{KNOBS} --out whole"));
    assert_eq!(
        fs::read(dir.join("array/points.csv")).unwrap(),
        fs::read(dir.join("whole/points.csv")).unwrap()
    );
}
