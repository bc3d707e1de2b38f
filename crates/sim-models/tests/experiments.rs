//! Experiment files: the specification's example, and what is refused.

use tidepool_sim::{Options, Time};
use tidepool_sim_models::experiment::{Experiment, Problem};
use tidepool_sim_models::run;

const SPEC: &str = include_str!("../../../docs/formats/28-experiments.md");

fn load(path: &str) -> Result<String, String> {
    match path {
        "requests.txt" => Ok(block("text", 0)),
        _ => Err("No such file".into()),
    }
}

/// A code block of the specification.
fn block(language: &str, number: usize) -> String {
    let start = format!("```{language}\n");
    let (block, _) = SPEC.split(&start).nth(number + 1).unwrap().split_once("```").unwrap();
    block.to_string()
}

fn read(text: &str) -> Result<Experiment, Vec<Problem>> {
    Experiment::read(text, &load)
}

fn runs(experiment: &Experiment) -> tidepool_sim_models::Results {
    let mut system = experiment.system().unwrap();
    system.keep_requests = true;
    run(system, experiment.seed, &Options::default()).unwrap().1
}

#[test]
fn the_specifications_examples_are_read_and_run() {
    let whole = read(&block("toml", 0)).unwrap();
    let names: Vec<&str> = whole.applications.iter().map(|all| all.name.as_str()).collect();
    assert_eq!(names, ["checkpoint", "small", "others", "recorded"]);
    assert_eq!((whole.network.latency, whole.network.client_bandwidth), (Time(50_000), 125_000_000));
    assert_eq!((whole.servers[1].weight, whole.price()), (3, 20.0));
    let results = runs(&whole);
    // 16 ranks: 32 transfers, open, close; 4 of 10 files; 2 of 100; the trace's 4.
    assert_eq!(results.requests, 16 * 34 + 4 * 10 * 3 + 200 + 4);
    assert_eq!(results.bytes_written, (16 * 32 * 65_536) + 40 * 4096 + 2 * 65_536);
    for number in [1, 2] {
        let start = block("toml", 0).replace("[layout]\nkind = \"striped\"", "[old]");
        let text = start.replace("[old]", &format!("{}\n[old]", block("toml", number)));
        // Its own table of the first layout goes.
        let (before, after) = text.split_once("[old]").unwrap();
        let rest = &after[after.find("[[workload]]").unwrap()..];
        let other = read(&format!("{before}{rest}")).unwrap();
        assert_eq!(runs(&other).requests, results.requests);
    }
}

const SMALL: &str = "
[[device]]
name = \"d\"
kind = \"station\"
time = \"1ms\"
[[servers]]
name = \"s\"
device = \"d\"
[[workload]]
name = \"w\"
kind = \"ior\"
";

#[test]
fn little_is_enough() {
    let results = runs(&read(SMALL).unwrap());
    assert_eq!((results.requests, results.bytes_written), (3, 256 << 10));
}

/// Part of the small one, what stands there instead, the line that is told, and a part of what is.
const HOSTILE: &[(&str, &str, Option<usize>, &str)] = &[
    ("[[device]]", "[[device]", Some(2), "not TOML"),
    ("\"1ms\"", "\"1ms", Some(5), "not TOML"),
    ("[[device]]", "stirpe = 1\n[[device]]", Some(2), "there is no key in the file 'stirpe'"),
    ("time =", "tmie =", Some(5), "did you mean 'time'?"),
    ("time = \"1ms\"", "", Some(2), "has no 'time'"),
    ("\"1ms\"", "\"-1ms\"", Some(5), "no time"),
    ("\"1ms\"", "\"99999999999999999999s\"", Some(5), "no time"),
    ("\"1ms\"", "-1", Some(5), "text in quotes"),
    ("\"station\"", "\"hdx\"", Some(4), "did you mean 'hdd'?"),
    ("device = \"d\"", "device = \"e\"", Some(8), "there is no device 'e'"),
    ("device = \"d\"", "device = \"d\"\ncount = 4294967297", Some(9), "0 to 100000"),
    ("device = \"d\"", "device = \"d\"\ncount = -1", Some(9), "0 to 100000"),
    (
        "device = \"d\"",
        "device = \"d\"\ncount = 100000\n[server]\nthreads = 65536",
        None,
        "threads and parts",
    ),
    (
        "kind = \"ior\"",
        "kind = \"ior\"\nfsync = true\nranks = 100000\n[[servers]]\nname = \"t\"\ndevice = \"d\"\ncount = 1000",
        Some(9),
        "under way at once",
    ),
    ("device = \"d\"", "device = \"d\"\nweight = 0", None, "no server has a weight above 0"),
    ("device = \"d\"", "device = \"d\"\nbandwidth = \"1.5GB\"", Some(9), "fractions"),
    ("device = \"d\"", "device = \"d\"\n[network]\nlatency = \"0ns\"", None, "latency is 0"),
    ("device = \"d\"", "device = \"d\"\n[layout]\nstripe = 0", Some(10), "1 to 1073741824"),
    ("device = \"d\"", "device = \"d\"\n[layout]\nkind = \"buffered\"", Some(9), "has no 'buffer'"),
    (
        "device = \"d\"",
        "device = \"d\"\n[layout]\nkind = \"buffered\"\nbuffer = \"s\"\nstore = \"s\"",
        None,
        "no capacity",
    ),
    (
        "kind = \"ior\"",
        "kind = \"ior\"\nranks = 10000000\nsegments = 1048576",
        Some(9),
        "requests up to here; at most",
    ),
    ("kind = \"ior\"", "kind = \"ior\"\ntransfer = \"64KiB\"\nblock = \"100KiB\"", Some(9), "no multiple"),
    (
        "kind = \"ior\"",
        "kind = \"ior\"\ntransfer = \"1GiB\"\n[layout]\nstripe = 1",
        Some(9),
        "stripes; at most 65536",
    ),
    ("kind = \"ior\"", "kind = \"ior\"\nranks = 1e9", Some(12), "whole number"),
    ("kind = \"ior\"", "kind = \"trace\"\npath = \"gone\"", Some(12), "gone: No such file"),
    ("name = \"w\"", "name = \"w\"\nname = \"w\"", Some(11), "not TOML"),
    ("name = \"w\"", "name = \"../w\"", Some(10), "letters, digits"),
    ("[[workload]]", "[workload]", Some(9), "tables, each as [[workload]]"),
];

#[test]
fn hostile_files_are_refused_with_their_lines() {
    for (part, instead, line, why) in HOSTILE {
        assert!(SMALL.contains(part), "{part}");
        let text = SMALL.replacen(part, instead, 1);
        let problems = read(&text).expect_err(&text);
        let found = problems.iter().any(|problem| problem.line == *line && problem.what.contains(why));
        assert!(found, "{text}\n{problems:?}");
    }
    assert!(read("").unwrap_err()[0].what.contains("no [[workload]]"));
    assert!(read(&"#".repeat(2 << 20)).unwrap_err()[0].what.contains("at most"));
    assert!(read(&format!("a = {}", "[".repeat(100_000))).is_err());
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = SMALL.replace("time", "tmie").replace("device =", "devcie =").replace("ior", "iro");
    let problems = read(&text).unwrap_err();
    let lines: Vec<usize> = problems.iter().filter_map(|problem| problem.line).collect();
    assert!(problems.len() >= 4 && lines.is_sorted(), "{problems:?}");
    assert!([5, 8, 11].iter().all(|line| lines.contains(line)), "{problems:?}");
}

#[test]
fn traces_of_other_tools_are_read() {
    let text = |format: &str| {
        format!("{SMALL}\n[[workload]]\nname = \"other\"\nkind = \"trace\"\npath = \"t\"\n{format}")
    };
    let strace =
        "7 1700000000.5 openat(AT_FDCWD, \"/d/x\", O_RDWR) = 3\n7 1700000001.5 write(3, \"\", 9) = 9\n";
    let give = |_: &str| Ok(strace.to_string());
    let before = runs(&Experiment::read(&text("").replace("\"t\"", "\"requests.txt\""), &load).unwrap());
    let whole = Experiment::read(&text("format = \"strace\""), &give).unwrap();
    let results = runs(&whole);
    assert_eq!(results.requests + 2, before.requests);
    assert!(results.end > Time(1_000_000_000), "nothing is sent before its time: {:?}", results.end);
    for (format, why) in [
        ("format = \"strac\"", "there is no format 'strac'; did you mean 'strace'?"),
        ("format = \"mqsim\"", "t: line 1: "),
        ("", "t: line 1: 7 words"),
    ] {
        let problems = Experiment::read(&text(format), &give).unwrap_err();
        let told = problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n");
        assert!(told.contains(why), "{format}: {told}");
    }
}
