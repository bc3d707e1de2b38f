//! `tidepool sim calibrate disk` and `validate disk`: requests measured on real disks, fitted and replayed by the command.

mod common;

use common::{Sandbox, text};
use flate2::read::GzDecoder;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Output;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../devices/tests/data").join(name)
}

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

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

#[test]
fn a_model_of_half_a_trace_replays_the_other_half() {
    let sandbox = Sandbox::new();
    for disk in ["atlas10k", "cheetah9LP", "ibm18es"] {
        let [trace, seek, specs] =
            ["trace.gz", "seek", "diskspecs"].map(|kind| data(&format!("{disk}.{kind}")));
        let (trace, seek, specs) = (trace.display(), seek.display(), specs.display());
        let fit =
            format!("calibrate disk --trace {trace} --seek {seek} --specs {specs} --out m.toml --repeats 3");
        let fitted = json(&sandbox, &fit);
        let validated = json(&sandbox, &format!("validate disk --model m.toml --trace {trace} --csv m.csv"));
        let result = &validated["result"];
        assert_eq!(result["requests"], 5_000);
        assert!(
            number(result, "mean_error").abs() <= 0.05 && number(result, "demerit") <= 0.20,
            "{validated}"
        );
        // What the fit told of the other half is what the written model does.
        assert_eq!(&fitted["trials"][0]["model"], result, "{disk}");
        assert_eq!(fs::read_to_string(sandbox.path("m.csv")).unwrap().lines().count(), 5_001);
        let of_classes = validated["classes"].as_array().unwrap().iter();
        assert_eq!(of_classes.map(|class| number(class, "requests")).sum::<f64>(), 5_000.0);
        let parameters = fitted["parameters"].as_array().unwrap();
        let rotation = parameters.iter().find(|one| one["name"] == "rotation-us").unwrap();
        assert!((5_000.0..10_000.0).contains(&number(rotation, "value")), "{rotation}");
        assert!(rotation["interval_90"][0].as_f64().unwrap() <= rotation["interval_90"][1].as_f64().unwrap());
    }
}

#[test]
fn people_are_told_and_the_same_seed_says_the_same() {
    let sandbox = Sandbox::new();
    // Not compressed.
    let mut lines = String::new();
    let file = fs::File::open(data("ibm18es.trace.gz")).unwrap();
    GzDecoder::new(file).read_to_string(&mut lines).unwrap();
    fs::write(sandbox.path("trace"), lines).unwrap();
    let fit = "calibrate disk --trace trace --out m.toml --repeats 2 --folds 2";
    let told = sim(&sandbox, fit);
    assert!(told.status.success(), "{}", text(&told));
    for part in
        ["rotation-us", "90 % interval", "the other half", "part 2 of 2", "without a model", "note: segments"]
    {
        assert!(text(&told).contains(part), "{part}: {}", text(&told));
    }
    let model = fs::read(sandbox.path("m.toml")).unwrap();
    assert_eq!(text(&sim(&sandbox, fit)), text(&told));
    assert_eq!(fs::read(sandbox.path("m.toml")).unwrap(), model);
    let told = sim(&sandbox, "validate disk --model m.toml --trace trace");
    for part in [
        "fitted to: 5000 requests of trace, the first half",
        "demerit",
        "read-miss-far-after-read",
        "quantile",
    ] {
        assert!(text(&told).contains(part), "{part}: {}", text(&told));
    }
}

#[test]
fn what_cannot_be_used_is_refused_with_its_place() {
    let sandbox = Sandbox::new();
    let whole = fs::read(data("ibm18es.trace.gz")).unwrap();
    fs::write(sandbox.path("cut.gz"), &whole[..whole.len() / 2]).unwrap();
    fs::write(sandbox.path("bad"), "R Hit 1 4 10 20\nR Hit 1 4 -10 20\n").unwrap();
    fs::write(sandbox.path("few"), "R Hit 1 4 10 20\n").unwrap();
    fs::write(sandbox.path("m.toml"), "verson = 1\n").unwrap();
    for (line, code, why) in [
        ("calibrate disk --trace none --out m", 1, "none: "),
        ("calibrate disk --trace bad --out m", 1, "bad: line 2: service time '-10': 0 to"),
        ("calibrate disk --trace cut.gz --out m", 1, "cut.gz: line "),
        ("calibrate disk --trace few --out m", 1, "few: 0 requests are too few for a fit: at least 500"),
        ("calibrate disk --trace few --seek few --out m", 1, "few: line 1: 'R Hit 1 4 10 20': 'CYLINDERS"),
        (
            "calibrate disk --trace few --specs few --out m",
            1,
            "few: there are no keys of a disk's specification",
        ),
        ("calibrate disk --trace few --out m --folds 1", 2, "2..=100"),
        ("calibrate disk --trace few --out m --repeats 99999", 2, "0 to 10000"),
        ("validate disk --model m.toml --trace few", 1, "m.toml: version: is missing"),
        (
            "validate disk --model m.toml --trace few",
            1,
            "verson: there is no such key; did you mean 'version'?",
        ),
        ("validate disk --model few --trace few", 1, "few: TOML parse error"),
    ] {
        let output = sim(&sandbox, line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output));
        assert!(text(&output).contains(why), "{line}: {}", text(&output));
        assert!(!sandbox.path("m").exists(), "{line}");
    }
}
