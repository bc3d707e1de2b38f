//! `tidepool jobs describe` and `convert`, and logs of all formats in the other commands.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::{Output, Stdio};

fn jobs(sandbox: &Sandbox, words: &[&str]) -> Output {
    let mut command = sandbox.tidepool(&["jobs"]);
    command.args(words).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

fn json(sandbox: &Sandbox, words: &[&str]) -> Value {
    let output = jobs(sandbox, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// 300 jobs of three users on 8 processors over three weeks; the third user's run to their limit.
fn log() -> String {
    let mut log = "; Computer: none\n; UnixStartTime: 345600\n; MaxProcs: 8\n".to_string();
    for number in 0..300u64 {
        let user = 1 + number % 3;
        let (submit, run) = (number * 6000, [600, 1200, 3600][number as usize % 3]);
        let _ = writeln!(log, "{number} {submit} 60 {run} 4 -1 -1 4 3600 -1 1 {user} 1 -1 -1 -1 -1 -1");
    }
    log + "300 0 0 -1 -1 -1 -1 8 60 -1 5 1 1 -1 -1 -1 -1 -1\nnot a job\n"
}

#[test]
fn a_log_is_described_in_every_output() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let said = jobs(&sandbox, &["describe", "log.swf"]);
    let said = text(&said);
    for part in [
        "300 jobs on 8 processors, none",
        // 299 x 6000 s, from Monday the 5th of January 1970 on.
        "submitted from 1970-01-05 to 1970-01-25, 3.0 weeks",
        // 100 x 4 x (600 + 1200 + 3600) s.
        "their processor time is 15.1 % of the machine's",
        "3 users, 1 groups",
        "100 of 300 jobs with a limit used it up (33.3 %); 2.00 times as much",
        "median job ran for 33.3 % of its limit",
        "1 lines that cannot be read",
        "1 jobs that never ran",
        "completed  300",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let words = ["describe", "log.swf", "--csv", "all.csv", "--svg", "pictures", "--html", "all.html"];
    let value = json(&sandbox, &words);
    assert_eq!((value["jobs"].as_u64(), value["limits"]["used_up"].as_u64()), (Some(300), Some(100)));
    assert_eq!(value["distributions"]["run_seconds"]["quantiles"]["0.5"], 1200.0);
    assert_eq!(value["distributions"]["wait_seconds"]["mean"], 60.0);
    assert_eq!(value["machine"]["known_from"], "header");
    assert_eq!(value["weeks"].as_array().map(Vec::len), Some(3));
    // The third user has 3600 of 5400 s.
    let largest = &value["largest_users"][0];
    assert!((largest["time_share"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9, "{largest}");
    let used: f64 =
        value["weeks"].as_array().unwrap().iter().map(|week| week["used"].as_f64().unwrap()).sum();
    assert!((used / 3.0 - 0.151).abs() < 0.01, "{used}");
    let csv = fs::read_to_string(sandbox.path("all.csv")).unwrap();
    assert!(csv.starts_with("figure,key,measure,value\ndistribution,run_seconds,count,300\n"), "{csv}");
    assert!(csv.contains("\nuser_rank,1,jobs,100\n") && csv.contains("\nrun_of_request_from,1,jobs,100\n"));
    let hours: f64 = csv
        .lines()
        .filter(|line| line.starts_with("submissions,"))
        .map(|line| line.rsplit(',').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert_eq!(hours, 300.0);
    let page = fs::read_to_string(sandbox.path("all.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 6);
    for name in ["load", "submissions", "times", "processors", "requests", "users"] {
        let picture = fs::read_to_string(sandbox.path("pictures").join(format!("{name}.svg"))).unwrap();
        assert!(
            picture.ends_with("</svg>\n") && !picture.contains("NaN") && !picture.contains("inf"),
            "{name}"
        );
        assert!(page.contains(&picture), "{name}");
    }
    // The field of submissions: 7 x 24 cells, a bar for each hour and each day, and the ground.
    let field = fs::read_to_string(sandbox.path("pictures/submissions.svg")).unwrap();
    assert_eq!(field.matches("<rect").count(), 7 * 24 + 24 + 7 + 1);
    let larger = json(&sandbox, &["describe", "log.swf", "--processors", "16"]);
    let half = value["offered_load"].as_f64().unwrap() / larger["offered_load"].as_f64().unwrap();
    assert!((half - 2.0).abs() < 1e-9 && larger["machine"]["known_from"] == "said", "{half}");
}

#[test]
fn a_log_that_says_little_is_described() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("bare"), "1 0 -1 5 3 -1 -1 -1 -1\n2 9 -1 5 3 -1 -1 -1 -1\n").unwrap();
    let value = json(&sandbox, &["describe", "bare", "--svg", "bare.d", "--html", "bare.html"]);
    assert_eq!(
        (value["users"].as_u64(), &value["distributions"]["request_seconds"]),
        (Some(0), &Value::Null)
    );
    assert_eq!(
        (&value["machine"]["known_from"], &value["weeks"][0]["used"]),
        (&Value::from("peak"), &Value::Null)
    );
    let pictures = fs::read_dir(sandbox.path("bare.d")).unwrap().count();
    assert_eq!(pictures, 4, "requests and users have nothing to show");
    assert!(!fs::read_to_string(sandbox.path("bare.html")).unwrap().contains("NaN"));
}

#[test]
fn a_log_is_the_same_in_every_format() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let wanted = json(&sandbox, &["describe", "log.swf"]);
    let easy = json(&sandbox, &["simulate", "log.swf", "--policy", "easy"])["result"].clone();
    for name in ["log.swf.gz", "log.csv", "log.csv.gz", "log.parquet", "again.swf"] {
        let said = jobs(&sandbox, &["convert", "log.swf", name]);
        assert!(said.status.success(), "{}", text(&said));
        assert!(text(&said).contains("300 jobs") && text(&said).contains("1 jobs that never ran"));
        let mut got = json(&sandbox, &["describe", name]);
        for part in ["command", "log", "time"] {
            got[part] = wanted[part].clone();
        }
        assert_eq!(got, wanted, "{name}");
        assert_eq!(json(&sandbox, &["simulate", name, "--policy", "easy"])["result"], easy, "{name}");
    }
    for words in [
        &["evaluate", "--predictor", "last"][..],
        &["nap", "--lambda", "1"],
        &["pre-stage"],
        &["stage-ahead"],
    ] {
        let said = jobs(&sandbox, &[words, &["log.parquet"]].concat());
        assert!(said.status.success(), "{words:?}: {}", text(&said));
    }
    let taken = jobs(&sandbox, &["convert", "log.swf", "log.csv"]);
    assert_eq!(taken.status.code(), Some(2));
    assert!(text(&taken).contains("--force writes over it"), "{}", text(&taken));
    assert!(
        jobs(&sandbox, &["convert", "log.parquet", "log.csv", "--force", "--jobs", "7"]).status.success()
    );
    assert_eq!(json(&sandbox, &["describe", "log.csv"])["jobs"], 7);
    let left = fs::read_dir(sandbox.dir.path()).unwrap().flatten();
    let left: Vec<String> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(left.iter().all(|name| !name.starts_with(".tmp")), "{left:?}");
}

#[test]
fn slurms_output_is_read_from_a_pipe() {
    let sandbox = Sandbox::new();
    let head = "JobID|User|JobName|Submit|Start|End|State|AllocCPUS|Timelimit|NodeList\n";
    let row = "7|alice|relax|2025-01-01T00:00:00|2025-01-01T00:01:00|2025-01-01T01:01:00|TIMEOUT|4|01:00:00|node[1-2]\n";
    let step =
        "7.batch||batch|2025-01-01T00:01:00|2025-01-01T00:01:00|2025-01-01T01:01:00|CANCELLED|4||node1\n";
    let mut command = sandbox.tidepool(&["jobs", "convert", "-", "log.csv"]);
    command.current_dir(sandbox.dir.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, format!("{head}{row}{step}").as_bytes()).unwrap();
    drop(input);
    let said = child.wait_with_output().unwrap();
    assert!(text(&said).contains("1 steps of jobs, left out"), "{}", text(&said));
    let csv = fs::read_to_string(sandbox.path("log.csv")).unwrap();
    assert!(csv.contains("7,0,60,3600,3600,4,,,,,,1,,,1,,,,,timeout,alice,relax,node[1-2]\n"), "{csv}");
    let said = jobs(&sandbox, &["convert", "log.csv", "log.swf"]);
    assert!(text(&said).contains("not in SWF"), "{}", text(&said));
}

#[test]
fn what_cannot_be_read_or_written_is_said() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    fs::write(sandbox.path("sacct"), "JobID|State\n1|COMPLETED\n").unwrap();
    fs::write(sandbox.path("half.json"), "{\"jobs\": [\n{\"job_id\": 5,").unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["describe", "sacct"], 1, "sacct: line 1: no column says when it was submitted (Submit)"),
        (&["describe", "half.json"], 1, "half.json: this is not what 'sacct --json' writes: EOF"),
        (&["describe", "log.swf", "--format", "parquet"], 1, "Parquet: it is cut off or damaged"),
        (&["describe", "log.swf", "--format", "xml"], 2, "swf, sacct, sacct-json, csv, parquet"),
        (&["convert", "log.swf", "log.txt"], 2, "its ending is none of .swf, .swf.gz, .csv"),
        (&["convert", "log.swf", "missing/log.csv"], 1, "missing/log.csv: No such file"),
        (&["describe", "log.swf", "--html", "missing/log.html"], 1, "missing/log.html: No such file"),
    ];
    for (words, code, part) in cases {
        let said = jobs(&sandbox, words);
        assert_eq!(said.status.code(), Some(code), "{words:?}: {}", text(&said));
        assert!(text(&said).contains(part), "{words:?}: {}", text(&said));
    }
}

/// All words of the standard, in the order in which they are written.
const HEADER: &str = "\
; Version: 2.2
; Computer: IBM SP2
; Installation: Somewhere
; Acknowledge: Somebody
; Information: http://example.org/
; Conversion: by hand
;   in two lines
; MaxJobs: 2
; MaxRecords: 3
; Preemption: Double
; UnixStartTime: 843480031
; TimeZone: 3600
; TimeZoneString: Europe/Stockholm
; StartTime: Mon Sep 23 14:00:31 CEST 1996
; EndTime: Fri Aug 29 10:55:01 CEST 1997
; MaxNodes: 338
; MaxProcs: 400
; MaxRuntime: 64800
; MaxMemory: 131072
; AllowOveruse: No
; MaxQueues: 1
; Queues: classes
; Queue: 1 DSI
; MaxPartitions: 1
; Partitions: one
; Partition: 1 DEFAULT
; Note: no note
; Weather: fine
";

#[test]
fn every_word_of_a_header_is_shown() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), HEADER.to_string() + "1 0 0 5 3 -1 -1 3 9 -1 1 1 1 1 1 1 -1 -1\n")
        .unwrap();
    let said = text(&jobs(&sandbox, &["describe", "log.swf", "--html", "log.html"]));
    let page = fs::read_to_string(sandbox.path("log.html")).unwrap();
    let value = json(&sandbox, &["describe", "log.swf"]);
    let header = value["log"]["header"].as_array().unwrap();
    let mut told = header.iter();
    for line in HEADER.lines().map(|line| line.trim_start_matches([';', ' '])) {
        let Some((name, value)) = line.split_once(": ") else {
            assert!(said.lines().any(|line| line.trim() == "in two lines"), "{said}");
            continue;
        };
        let shown =
            |line: &str| line.split_once(' ').is_some_and(|(is, text)| is == name && text.trim() == value);
        assert!(said.lines().any(shown), "{name}: {said}");
        assert!(page.contains(&format!("<tr><td>{name}</td><td>{value}</td></tr>")), "{name}");
        let told = told.next().unwrap();
        assert_eq!(told["name"], name);
        let words = told["value"].as_str().map(str::to_string).unwrap_or_else(|| told["value"].to_string());
        let wanted = match name {
            "Conversion" => "by hand\nin two lines",
            "AllowOveruse" => "false",
            _ => value,
        };
        assert_eq!(words, wanted);
    }
    let number = |name: &str| header.iter().find(|one| one["name"] == name).map(|one| one["value"].clone());
    assert_eq!((number("MaxProcs"), number("TimeZone")), (Some(400.into()), Some(3600.into())));
    assert!(said.contains("log: 1 header lines that are not in the standard, kept"), "{said}");
}

#[test]
fn a_log_comes_back_from_all_formats_as_it_was() {
    let sandbox = Sandbox::new();
    let jobs_of_all_kinds = "\
1 0 0 5 3 -1 -1 3 9 -1 1 1 1 1 1 1 -1 -1
2 7 -1 50 30 4 1000 -1 -1 2000 0 2 1 -1 -1 -1 1 60
3 7 12 99 64 -1 -1 64 30 -1 5 -1 -1 7 1 1 -1 -1
4 9 0 1 1 -1 -1 1 1 -1 -1 1 1 1 1 1 -1 -1
";
    let whole = HEADER.to_string() + jobs_of_all_kinds;
    fs::write(sandbox.path("log.swf"), &whole).unwrap();
    let way = ["log.swf", "1.parquet", "2.csv", "3.csv.gz", "4.parquet", "5.swf.gz", "6.csv", "7.swf"];
    for pair in way.windows(2) {
        let said = jobs(&sandbox, &["convert", pair[0], pair[1]]);
        assert!(said.status.success(), "{pair:?}: {}", text(&said));
    }
    assert_eq!(fs::read_to_string(sandbox.path("7.swf")).unwrap(), whole);
    assert_eq!(fs::read(sandbox.path("4.parquet")).unwrap(), fs::read(sandbox.path("1.parquet")).unwrap());
}

/// Logs that are none, or hardly: each says what is wrong with it, and its code.
#[test]
fn odd_logs_are_read_or_refused_with_words() {
    let sandbox = Sandbox::new();
    let job = "1 0 0 5 3 -1 -1 3 9 -1 1 1 1 1 1 1 -1 -1\n";
    let sixteen = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let packed = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packer, bytes).unwrap();
        packer.finish().unwrap()
    };
    let long = packed(job.repeat(5000).as_bytes());
    let noise: Vec<u8> = (1..4000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let csv = "submit_seconds,run_seconds,processors\n";
    let read = |what: &str| (0, what.to_string());
    let refused = |what: &str| (1, what.to_string());
    let cases: Vec<(&str, Vec<u8>, (i32, String))> = vec![
        ("empty", vec![], refused("empty: it is empty")),
        ("packed-empty", packed(b""), refused("it is empty")),
        ("header", HEADER.into(), refused("there are no jobs in it")),
        ("noise", noise, refused("is it in the Standard Workload Format?")),
        ("zeros", vec![0; 100_000], refused("line 1 has more than 65536 bytes")),
        ("utf-16", sixteen(&format!("\u{feff}{job}")), refused("it is in UTF-16")),
        ("cut", long[..long.len() / 2].to_vec(), refused("cut off")),
        ("half-parquet", b"PAR1 and no more".to_vec(), refused("Parquet: it is cut off or damaged")),
        ("nobody", b"1 0 0 -1 3 -1 -1 3 9\n".to_vec(), refused("1 left out")),
        ("page", b"<!DOCTYPE html>\n<p>Sign in</p>\n".to_vec(), refused("2 lines are not 18 numbers")),
        ("csv-head", csv.into(), refused("there are no jobs in it")),
        ("csv-other", b"a,b,c\n1,2,3\n".to_vec(), refused("is it in the Standard Workload Format?")),
        ("mark", format!("\u{feff}; MaxProcs: 8\r\n{job}").into(), read("1 jobs on 8 processors")),
        ("mark-json", "\u{feff}{\"jobs\": []}".into(), refused("there are no jobs in it")),
        ("crlf", job.replace('\n', "\r\n").into(), read("1 jobs on 3 processors")),
        ("crlf-csv", format!("{csv}0,5,3\n").replace('\n', "\r\n").into(), read("1 jobs on 3 processors")),
        ("no-end", job.trim_end().into(), read("1 jobs on 3 processors")),
        ("tabs", job.replace(' ', "\t").into(), read("1 jobs on 3 processors")),
        (
            "huge",
            format!("{job}2 1e300 0 5 3 -1 -1 3 9\n3 99999999999999999999 0 5 3 -1 -1 3 9\n").into(),
            read("2 lines that cannot be read"),
        ),
        ("negative", format!("{job}2 -7 0 5 3 -1 -1 3 9\n").into(), read("1 lines that cannot be read")),
        ("nan", format!("{job}2 NaN 0 5 3 -1 -1 3 9\n").into(), read("1 lines that cannot be read")),
        ("few", format!("{job}2 7 0\n").into(), read("1 lines that cannot be read")),
    ];
    for (name, bytes, (code, part)) in cases {
        fs::write(sandbox.path(name), bytes).unwrap();
        let said = jobs(&sandbox, &["describe", name]);
        assert_eq!(said.status.code(), Some(code), "{name}: {}", text(&said));
        assert!(text(&said).contains(&part), "{name}: {}", text(&said));
        assert_eq!(
            jobs(&sandbox, &["convert", name, &format!("{name}.csv")]).status.code(),
            Some(code),
            "{name}"
        );
        assert_eq!(sandbox.path(&format!("{name}.csv")).exists(), code == 0, "{name}");
    }
}
