//! Experiment files: the specification's example, and what is refused.

mod common;

use tidepool_devices::disk::file::DiskFile;
use tidepool_sim::{Options, Time};
use tidepool_sim_models::experiment::{Experiment, Problem};
use tidepool_sim_models::{NodeResult, run};

const SPEC: &str = include_str!("../../../docs/formats/28-experiments.md");

fn load(path: &str) -> Result<String, String> {
    match path {
        "requests.txt" => Ok(block("text", 0)),
        "disk.toml" => Ok(disk_file()),
        "applications.toml" => Ok(APPLICATIONS.into()),
        _ => Err("No such file".into()),
    }
}

/// Two ranks: a barrier, then create, write, close.
const APPLICATIONS: &str =
    "[[application]]\nkind = \"phases\"\nprocesses = 2\nsteps = 1\nbytes = 1000\ncompute-seconds = 0.1\n";

fn disk_file() -> String {
    let (model, source) = (common::disk_model(), "nothing".into());
    DiskFile { model, source, notes: Vec::new(), uncertainty: Vec::new() }.write()
}

/// A code block of the specification.
fn block(language: &str, number: usize) -> String {
    let start = format!("```{language}\n");
    let (block, _) = SPEC.split(&start).nth(number + 1).unwrap().split_once("```").unwrap();
    block.to_string()
}

fn read(text: &str) -> Result<Experiment, Vec<Problem>> {
    Experiment::read_with(text, &load, &|path| match path {
        "switches.toml" => Ok(common::two_leaves(2)),
        _ => Err("No such file".into()),
    })
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
    assert_eq!(names, ["checkpoint", "small", "others", "recorded", "metadata", "applications.phases"]);
    assert_eq!((whole.network.latency, whole.network.client_bandwidth), (Time(50_000), 125_000_000));
    assert_eq!((whole.servers[1].weight, whole.price()), (3, 20.0));
    let results = runs(&whole);
    // 16 ranks: 32 transfers, open, close; 4 of 10 files; 2 of 100; the trace's 4; 4 times 4 of each of 10 and 4 barriers; 2 of 4.
    assert_eq!(results.requests, 16 * 34 + 4 * 10 * 3 + 200 + 4 + 4 * (4 * 10 + 4) + 2 * 4);
    assert_eq!(results.bytes_written, (16 * 32 * 65_536) + 40 * 4096 + 2 * 65_536 + 2_000);
    // The same on the other devices of the file.
    let text = block("toml", 0).replace("device = \"disk\"", "device = \"measured\"");
    let other = runs(&read(&text.replace("device = \"flash\"", "device = \"nand\"")).unwrap());
    assert_eq!((other.requests, other.bytes_written), (results.requests, results.bytes_written));
    assert!(other.servers[7].flash.is_some_and(|counts| counts.host_pages > 0));
    // Nodes by the ranks of each workload, four each; those of the next workload are behind them.
    let nodes: Vec<(u32, u32)> = results.nodes.iter().map(|node| (node.number, node.ranks)).collect();
    assert_eq!(nodes, [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4), (5, 2), (6, 2), (7, 4), (8, 2)]);
    // All that was written is flushed, or was of a file that is gone.
    let owed = |node: &NodeResult| node.cache.unwrap().overwritten + node.flushed;
    assert_eq!(results.nodes.iter().map(owed).sum::<u64>(), results.bytes_written);
    for number in [1, 2, 3, 4] {
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
    ("kind = \"station\"\ntime = \"1ms\"", "kind = \"disk\"", Some(2), "has no 'model'"),
    (
        "kind = \"station\"\ntime = \"1ms\"",
        "kind = \"disk\"\nmodel = \"gone\"",
        Some(5),
        "gone: No such file",
    ),
    (
        "kind = \"station\"\ntime = \"1ms\"",
        "kind = \"disk\"\nmodel = \"requests.txt\"",
        Some(5),
        "requests.txt: TOML parse error",
    ),
    ("kind = \"station\"\ntime = \"1ms\"", "kind = \"flash\"", Some(2), "has no 'erase'"),
    ("kind = \"station\"\ntime = \"1ms\"", "kind = \"flash\"\nblocks = 2", Some(2), "blocks per die: 3 to"),
    ("kind = \"station\"\ntime = \"1ms\"", "kind = \"flash\"\npage = 1000", Some(2), "a multiple of 512"),
    ("kind = \"station\"\ntime = \"1ms\"", "kind = \"flash\"\nfilled = 101", Some(5), "from 0 to 100"),
    ("kind = \"station\"\ntime = \"1ms\"", "kind = \"flash\"\nblock = 1", Some(5), "did you mean 'blocks'?"),
    ("\"1ms\"", "\"1ms\"\nscheduler = \"elevatr\"", Some(6), "did you mean 'elevator'?"),
    ("\"1ms\"", "\"1ms\"\nscheduler = \"fifo\"\ndepth = 0", Some(7), "from 1 to 65536"),
    ("\"1ms\"", "\"1ms\"\nmerge = 5", Some(2), "with 'scheduler' only"),
    ("\"1ms\"", "\"1ms\"\nscheduler = \"sstf\"\nexpire = \"1s\"", Some(7), "no key in [[device]] 'expire'"),
    ("device = \"d\"", "device = \"d\"\n[server.cache]", Some(9), "has no 'size'"),
    (
        "device = \"d\"",
        "device = \"d\"\n[server.cache]\nsize = 9\ndirty = 10",
        Some(9),
        "10 bytes may be dirty",
    ),
    ("device = \"d\"", "device = \"d\"\n[server.cache]\nsize = 9\ndelay = \"0s\"", Some(9), "delay is 0"),
    (
        "device = \"d\"",
        "device = \"d\"\n[server.cache]\nsize = 9\nreadahead = 1",
        Some(11),
        "did you mean 'read-ahead'?",
    ),
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
    ("kind = \"ior\"", "kind = \"workload\"\npath = \"gone\"", Some(12), "gone: No such file"),
    ("kind = \"ior\"", "kind = \"workload\"", Some(9), "has no 'path'"),
    ("kind = \"ior\"", "kind = \"workload\"\npath = \"requests.txt\"", Some(12), "requests.txt: "),
    (
        "kind = \"ior\"",
        "kind = \"workload\"\npath = \"applications.toml\"\nranks = 2",
        Some(13),
        "no key in [[workload]] 'ranks'",
    ),
    ("kind = \"ior\"", "kind = \"mdtest\"\nfiles = \"many\"", Some(12), "whole number"),
    ("kind = \"ior\"", "kind = \"mdtest\"\ndirectory = \"shared\"", Some(12), "did you mean 'directories'?"),
    ("kind = \"ior\"", "kind = \"ior\"\nbarrier = 1", Some(12), "true or false"),
    ("[[workload]]", "[client]\ntimeout = \"0s\"\n[[workload]]", None, "give up at once"),
    ("[[workload]]", "[client]\ntimeuot = \"1s\"\n[[workload]]", Some(10), "did you mean 'timeout'?"),
    ("[[workload]]", "[client]\nranks-per-node = 0\n[[workload]]", Some(10), "from 1 to 65536"),
    ("[[workload]]", "[client]\ncall = \"1us\"\n[[workload]]", Some(9), "with 'ranks-per-node' or"),
    (
        "[[workload]]",
        "[client]\ncall = \"0s\"\nranks-per-node = 2\n[[workload]]",
        None,
        "a system call takes no time",
    ),
    ("[[workload]]", "[client.cache]\n[[workload]]", Some(9), "[client.cache] has no 'size'"),
    ("[[workload]]", "[client.cache]\nsize = 9\ndirty = 10\n[[workload]]", Some(9), "10 bytes may be dirty"),
    (
        "[[workload]]",
        "[client.cache]\nsize = 9\non-close = \"flsh\"\n[[workload]]",
        Some(11),
        "did you mean 'flush'?",
    ),
    (
        "[[workload]]",
        "[client.cache]\nsize = 9\nonclose = \"keep\"\n[[workload]]",
        Some(11),
        "did you mean 'on-close'?",
    ),
    (
        "[[workload]]",
        "[client.cache]\nsize = 9\nread-ahead = \"1GiB\"\n[layout]\nstripe = 1024\n[[workload]]",
        Some(9),
        "1048577 stripes; at most 65536",
    ),
    ("kind = \"ior\"", "kind = \"ior\"\nnode = 1", Some(9), "'node' is of use with 'ranks-per-node'"),
    ("kind = \"ior\"", "kind = \"ior\"\ndirect = true", Some(9), "'direct' is of use with [client.cache]"),
    (
        "kind = \"ior\"",
        "kind = \"ior\"\nranks = 5000000\n[client]\nranks-per-node = 4",
        None,
        "has nodes up to 1250000; at most 1048576",
    ),
    (
        "[[workload]]",
        "[[failure]]\nserver = 1\nat = \"1s\"\nrepair = \"1s\"\n[[workload]]",
        Some(10),
        "from 0 to 0",
    ),
    (
        "[[workload]]",
        "[[failure]]\nserver = 0\nat = \"1s\"\nrepair = \"0s\"\n[[workload]]",
        None,
        "up again at once",
    ),
    ("[[workload]]", "[[failure]]\nat = \"1s\"\nrepair = \"1s\"\n[[workload]]", Some(9), "either 'server'"),
    (
        "[[workload]]",
        "[[failure]]\nservers = \"t\"\nat = \"1s\"\nrepair = \"1s\"\n[[workload]]",
        Some(10),
        "class of servers 't'",
    ),
    (
        "[[workload]]",
        "[[failure]]\nserver = 0\nbetween = \"1s\"\nrepair = \"1s\"\n[[workload]]",
        Some(9),
        "either 'at'",
    ),
    (
        "[[workload]]",
        "[[failure]]\nserver = 0\nbetween = \"1ns\"\nrepair = \"1ns\"\nuntil = \"1s\"\n[[workload]]",
        None,
        "more than 1048576 times",
    ),
    ("\"1ms\"", "\"1ms\"\nidle-power = 5", Some(6), "text in quotes"),
    ("\"1ms\"", "\"1ms\"\nidle-power = \"5kW\"", Some(6), "whole number and W or mW"),
    ("\"1ms\"", "\"1ms\"\nidle-power = \"5W\"\nbusy-power = \"4W\"", Some(2), "below 'idle-power'"),
    ("device = \"d\"", "device = \"d\"\nbusy-powr = \"4W\"", Some(9), "did you mean 'busy-power'?"),
    ("[[workload]]", "[layout]\nkind = \"pool\"\nstripe = 5000\n[[workload]]", None, "a chunk is 4KiB"),
    (
        "[[workload]]",
        "[layout]\nkind = \"pool\"\nnear = \"0ns\"\n[[workload]]",
        None,
        "way within a node is 0",
    ),
    (
        "[[workload]]",
        "[layout]\nkind = \"pool\"\nplacement = \"locl\"\n[[workload]]",
        Some(11),
        "did you mean 'local'?",
    ),
    (
        "[[workload]]",
        "[layout]\nkind = \"pool\"\nplacement = \"local\"\nin-turn = 2\n[[workload]]",
        Some(9),
        "\"wide\" only",
    ),
    ("[[workload]]", "[layout]\nkind = \"pool\"\nplacement = \"group\"\n[[workload]]", None, "have none"),
    (
        "[[workload]]",
        "[layout]\nkind = \"pool\"\ngroups = [\"a\"]\n[[workload]]",
        Some(9),
        "'groups' is of use with placement \"group\" only",
    ),
    (
        "[[workload]]",
        "[layout]\nkind = \"pool\"\nplacement = \"group\"\ngroups = [\"a\", \"b\"]\n[[workload]]",
        None,
        "2 groups for 1 daemons",
    ),
    (
        "[[workload]]",
        "[layout]\nkind = \"pool\"\nplacement = \"group\"\ngroups = [\"leaf1\"]\ngroup = \"laef1\"\n[[workload]]",
        Some(13),
        "there is no group 'laef1'; did you mean 'leaf1'?",
    ),
    (
        "[[workload]]",
        "[layout]\nkind = \"pool\"\nservers = [\"s\"]\n[[workload]]",
        Some(11),
        "no key in [layout] 'servers'",
    ),
    ("[[workload]]", "[network]\ntopology = \"gone\"\n[[workload]]", Some(10), "gone: No such file"),
    ("[[workload]]", "[network]\nnodes = \"together\"\n[[workload]]", Some(9), "with 'topology' only"),
    (
        "[[workload]]",
        "[network]\ntopology = \"switches.toml\"\noff = [\"core3\"]\n[[workload]]",
        Some(10),
        "no switch 'core3'",
    ),
    (
        "[[workload]]",
        "[network]\ntopology = \"switches.toml\"\noff = [\"leaf1\"]\n[[workload]]",
        Some(10),
        "cannot be off",
    ),
    (
        "[[workload]]",
        "[network]\ntopology = \"switches.toml\"\noff = [\"core1\", \"core2\"]\n[[workload]]",
        Some(10),
        "no way leads from switch 'leaf1' to 'leaf2'",
    ),
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
