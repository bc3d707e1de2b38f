//! `tidepool sim scale`, `run` and `tune`: what they tell, and what they refuse.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

fn sim(sandbox: &Sandbox, line: &str) -> Output {
    sandbox.tidepool(&["sim"]).args(line.split_whitespace()).output().expect("tidepool runs")
}

/// With `--json`.
fn json(sandbox: &Sandbox, line: &str) -> Value {
    let output = sim(sandbox, &format!("{line} --json"));
    assert!(output.status.success(), "{line}: {}", text(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn figure_7() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/hpis3/fig7.toml")
}

/// Figure 7's system with less to do.
fn small(sandbox: &Sandbox) -> PathBuf {
    let file = sandbox.path("small.toml");
    let text = fs::read_to_string(figure_7()).unwrap().replace("32MiB", "2MiB");
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn the_scale_study_is_the_same_under_all_schedulers() {
    let sandbox = Sandbox::new();
    let model = "scale --clients 60 --servers 30 --reads 2";
    let expected = json(&sandbox, model);
    let result = &expected["result"];
    // Open, two reads, close.
    assert_eq!((&result["requests"], &result["bytes_read"]), (&240.into(), &(120u64 << 20).into()));
    assert_eq!((&result["complete"], &result["processes"]), (&true.into(), &120.into()));
    // A start, seven for an open and a close each, one for a read and six for each of its stripes: progress counts on it.
    assert_eq!(result["events"], 60 * (1 + 7 + 7 + 2 * (1 + 6 * 16)));
    for other in
        ["--scheduler conservative --threads 2", "--scheduler optimistic --threads 2", "--check-rollback"]
    {
        let seen = json(&sandbox, &format!("{model} {other}"));
        assert_eq!(seen["result"]["trace"], result["trace"], "{other}");
    }
    for (line, why) in [
        ("scale --threads 2", "--scheduler conservative or optimistic"),
        ("scale --stripe 1 --transfer 1MiB", "at most 65536"),
        ("scale --latency 0ns", "latency is 0"),
        ("scale --clients 0", "1..="),
    ] {
        let output = sim(&sandbox, line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", text(&output));
        assert!(text(&output).contains(why), "{line}: {}", text(&output));
    }
}

#[test]
fn an_experiment_tells_requests_servers_and_a_line_for_each_request() {
    let sandbox = Sandbox::new();
    let (file, csv) = (small(&sandbox), sandbox.path("requests.csv"));
    let line = format!("run {} --csv {}", file.display(), csv.display());
    let told = json(&sandbox, &line);
    let result = &told["result"];
    // 16 ranks: 32 writes, open and close.
    assert_eq!((&result["requests"], &result["bytes_written"]), (&544.into(), &(32u64 << 20).into()));
    assert_eq!(result["ops"]["write"]["count"], 512);
    let servers = result["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 8);
    let busy: Vec<f64> = servers.iter().map(|server| server["utilisation"].as_f64().unwrap()).collect();
    // All have as much to do; only the hard disks are at work all the time.
    assert!(busy[..4].iter().all(|busy| *busy > 0.9) && busy[4..].iter().all(|busy| *busy < 0.9), "{busy:?}");
    let first = fs::read_to_string(&csv).unwrap();
    let lines: Vec<&str> = first.lines().collect();
    assert_eq!(lines[0], "workload,rank,number,op,file,offset,length,begin_ns,end_ns");
    assert_eq!(lines.len(), 545);
    let ends: Vec<u64> = lines[1..].iter().map(|l| l.rsplit(',').next().unwrap().parse().unwrap()).collect();
    assert!(ends.is_sorted());
    json(&sandbox, &format!("{line} --scheduler optimistic --threads 2"));
    assert_eq!(fs::read_to_string(&csv).unwrap(), first);
    let output = sim(&sandbox, &format!("run {}", file.display()));
    let told = text(&output);
    for part in ["544 requests", "write", "99 %", "hdd 0", "at work", "per CPU-second"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn what_is_wrong_in_a_file_is_told_with_its_line() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("wrong.toml");
    let told_of = |part: &str, instead: &str| {
        let whole = fs::read_to_string(small(&sandbox)).unwrap();
        assert!(whole.contains(part), "{part}");
        fs::write(&file, whole.replacen(part, instead, 1)).unwrap();
        let output = sim(&sandbox, &format!("run {}", file.display()));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        text(&output)
    };
    assert!(told_of("stripe =", "stirpe =").contains("did you mean 'stripe'?"));
    let told = told_of("\"exponential 330us\"", "\"fast\"");
    assert!(told.contains("wrong.toml: line 16: 'request'"), "{told}");
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    assert_eq!(sim(&sandbox, &format!("run {}", file.display())).status.code(), Some(2));
    assert_eq!(sim(&sandbox, "run nothing.toml").status.code(), Some(2));
}

#[test]
fn tuning_tells_what_was_tried_the_frontier_and_the_best() {
    let sandbox = Sandbox::new();
    let line = format!("tune {} --vary weight.ssd=1..4 --vary count.ssd=0,4", small(&sandbox).display());
    let told = json(&sandbox, &line);
    assert_eq!(told["tried"].as_array().unwrap().len(), 8);
    let knobs = &told["best"]["knobs"];
    assert!(knobs["weight.ssd"].as_u64().unwrap() > 1 && knobs["count.ssd"] == 4, "{told}");
    // Without solid-state disks it is cheaper, and slower.
    let prices: Vec<f64> =
        told["frontier"].as_array().unwrap().iter().map(|on| on["price"].as_f64().unwrap()).collect();
    assert_eq!(prices, [4.0, 20.0]);
    let dear = json(&sandbox, &format!("{line} --goal per-price --cost ssd=100"));
    assert_eq!(dear["best"]["knobs"]["count.ssd"], 0, "{dear}");
    let output = sim(&sandbox, &line);
    assert!(text(&output).contains("best") && text(&output).contains("frontier"), "{}", text(&output));
    for (vary, why) in [
        ("weight.sdd=1..4", "no class of servers 'sdd'"),
        ("wieght.ssd=1", "there are stripe-size"),
        ("stripe-size=1..99999", "at most 10000"),
        ("stripe-size", "KNOB=VALUE"),
        ("stripe-size=5..4", "no value"),
        ("weight.ssd=-1", "does not start with a digit"),
        ("weight.ssd=1 --mpi", "tidepool sim sweep"),
    ] {
        let output = sim(&sandbox, &format!("tune {} --vary {vary}", figure_7().display()));
        assert_eq!(output.status.code(), Some(2), "{vary}: {}", text(&output));
        assert!(text(&output).contains(why), "{vary}: {}", text(&output));
    }
}

/// Switches from a topology file, caches, failures, power, and an application of a workload file.
#[test]
fn what_is_more_than_links_and_disks_is_told() {
    let sandbox = Sandbox::new();
    let write = |name: &str, text: &str| fs::write(sandbox.path(name), text).unwrap();
    let leaf = |n: u32, hosts: &str| {
        format!("[[switch]]\nname = \"leaf{n}\"\nhosts = \"{hosts}\"\ngigabits-per-second = 10\n")
    };
    let core = "[[switch]]\nname = \"core1\"\nswitches = \"leaf[1-2]\"\ngigabits-per-second = 1\n";
    write("switches.toml", &format!("{}{}{core}", leaf(1, "n[1-2]"), leaf(2, "n[3-4]")));
    write(
        "apps.toml",
        "[[application]]\nkind = \"phases\"\nprocesses = 2\nsteps = 2\nbytes = \"1MiB\"\ncompute-seconds = 0.01\n",
    );
    let whole = "[network]\ntopology = \"switches.toml\"\n[server.cache]\nsize = \"512KiB\"\n\
                [[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"1ms\"\nidle-power = \"5W\"\n\
                [[servers]]\nname = \"s\"\ndevice = \"d\"\ncount = 2\nidle-power = \"100W\"\nbusy-power = \"200W\"\n\
                [[failure]]\nserver = 1\nat = \"12ms\"\nrepair = \"20ms\"\n\
                [[workload]]\nname = \"w\"\nkind = \"workload\"\npath = \"apps.toml\"\n";
    write("all.toml", whole);
    let file = sandbox.path("all.toml").display().to_string();
    let all = json(&sandbox, &format!("run {file}"));
    let result = &all["result"];
    assert_eq!((&result["bytes_written"], &result["requests_failed"]), (&(4u64 << 20).into(), &0.into()));
    // Every byte goes over two links between switches, with headers.
    assert!(result["bytes_between_switches"].as_u64().unwrap() > 8 << 20);
    let servers = result["servers"].as_array().unwrap();
    assert_eq!(servers[0]["availability"], 1.0);
    let down = (1.0 - servers[1]["availability"].as_f64().unwrap()) * result["virtual_ns"].as_f64().unwrap();
    assert!((down - 20e6).abs() < 1.0, "{down}");
    assert!(servers.iter().all(|server| server["cache"]["writes_held_up"].as_u64().unwrap() > 0));
    let joules: f64 = servers.iter().map(|server| server["joules"].as_f64().unwrap()).sum();
    assert!((joules - result["joules"].as_f64().unwrap()).abs() < 1e-6 && joules > 0.0);
    assert!(result["ops"]["barrier"]["count"].as_u64() == Some(4), "{}", result["ops"]);
    let told = text_of(&sandbox, &format!("run {file}"));
    for part in ["energy: ", "servers up ", "over links between switches", "caches: "] {
        assert!(told.contains(part), "{part}: {told}");
    }
    write("switches.toml", "[[switch]]\nname = \"leaf1\"\n");
    let wrong = sim(&sandbox, &format!("run {file}"));
    assert!(wrong.status.code() == Some(2) && text(&wrong).contains("line 2: "), "{}", text(&wrong));
}

/// Ranks that share nodes: links of hosts as the topology has them, caches of nodes, and a pool's groups.
#[test]
fn nodes_share_links_and_caches() {
    let sandbox = Sandbox::new();
    let write = |name: &str, text: &str| fs::write(sandbox.path(name), text).unwrap();
    let leaf = |n: u32, hosts: &str, gigabits: u32| {
        format!(
            "[[switch]]\nname = \"leaf{n}\"\nhosts = \"{hosts}\"\ngigabits-per-second = {gigabits}\nlinks = 2\n"
        )
    };
    let core = "[[switch]]\nname = \"core1\"\nswitches = \"leaf[1-2]\"\n";
    // Servers on the first leaf, with 2 x 8 Gbit/s; ranks on the second, with 2 x 4 Gbit/s: 1 GB/s.
    write("switches.toml", &format!("{}{}{core}", leaf(1, "n[1-2]", 8), leaf(2, "n[3-4]", 4)));
    let system = |more: &str| {
        format!(
            "[network]\ntopology = \"switches.toml\"\nlatency = \"5us\"\neager = \"1MiB\"\n{more}\
             [[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"1us\"\nlanes = 64\n\
             [[servers]]\nname = \"s\"\ndevice = \"d\"\ncount = 2\n"
        )
    };
    let load = |name: &str, op: &str, more: &str| {
        format!(
            "[[workload]]\nname = \"{name}\"\nkind = \"ior\"\nop = \"{op}\"\nranks = 4\nblock = \"8MiB\"\ntransfer = \"1MiB\"\n{more}"
        )
    };
    let run = |text: &str| {
        write("nodes.toml", text);
        json(&sandbox, &format!("run {}", sandbox.path("nodes.toml").display()))["result"].clone()
    };
    // 32 MiB over the links of two hosts, which four ranks share in pairs; over those of four without.
    let seconds = |result: &Value| result["virtual_ns"].as_f64().unwrap() / 1e9;
    let shared = run(&format!("{}{}", system("[client]\nranks-per-node = 2\n"), load("w", "write", "")));
    let least = f64::from(16 << 20) / 1e9;
    assert!((least..1.3 * least).contains(&seconds(&shared)), "{}", seconds(&shared));
    let own = run(&format!("{}{}", system(""), load("w", "write", "")));
    assert!((least / 2.0..0.75 * least).contains(&seconds(&own)), "{}", seconds(&own));
    assert!(own["nodes"].as_array().unwrap().is_empty());
    let nodes = shared["nodes"].as_array().unwrap();
    assert!(
        nodes.iter().all(|n| n["ranks"] == 2 && n["bytes_to_servers"] == 16 << 20 && n["cache"].is_null())
    );

    let cache = "[client]\nranks-per-node = 2\n[client.cache]\nsize = \"64MiB\"\n";
    let both = format!(
        "{}{}",
        load("w", "write", "node = 0\nfile = 0\n"),
        load("r", "read", "node = 0\nfile = 0\nstart = \"1s\"\n")
    );
    let cached = run(&format!("{}{both}", system(cache)));
    for node in cached["nodes"].as_array().unwrap() {
        let told = |key: &str| node["cache"][key].as_u64().unwrap();
        assert_eq!((told("bytes_hit"), told("bytes_missed")), (16 << 20, 0), "{node}");
        assert_eq!(node["bytes_flushed"], 16 << 20);
    }
    let told = text_of(&sandbox, &format!("run {}", sandbox.path("nodes.toml").display()));
    for part in
        ["2 compute nodes: ", "caches of nodes: 32.0 MiB read from memory, 0 B from servers", "never written"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }

    let pool = |placement: &str| {
        let layout = format!("[layout]\nkind = \"pool\"\nnear = \"1us\"\n{placement}");
        let ranks = load("w", "write", "files = \"per-process\"\n");
        run(&format!("{}{layout}{ranks}", system("nodes = \"together\"\n").replace("count = 2", "count = 4")))
    };
    let switched = |result: &Value| result["bytes_between_switches"].as_u64().unwrap();
    let groups = pool("placement = \"group\"\ngroups = [\"a\", \"a\", \"b\", \"b\"]\n");
    // Names of files are looked up anywhere in real pools; here all is at a file's home.
    assert_eq!(switched(&groups), 0);
    assert!(switched(&pool("")) > 16 << 20);
}

fn text_of(sandbox: &Sandbox, line: &str) -> String {
    text(&sim(sandbox, line))
}
