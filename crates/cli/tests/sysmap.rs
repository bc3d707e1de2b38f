//! `tidepool sysmap` and `tidepool sysquery`.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tidepool_testkit::{copy_program, put_program};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_node_is_collected_kept_and_asked_for() {
    let sandbox = Sandbox::new();
    let db = sandbox.path("deep/resources.db");
    let db = db.to_str().unwrap();
    assert_eq!(sandbox.ok(&["sysmap", "collect", "--db", db, "--host", "n1"]), "");
    let records = json(&sandbox.ok(&["sysquery", "--db", db, "--host", "n1", "--extractor", "disks,cpu"]));
    let names: Vec<&str> =
        records.as_array().unwrap().iter().map(|r| r["extractor"].as_str().unwrap()).collect();
    assert_eq!(names, ["cpu", "disks"]);
    assert!(
        records[0]["data"]["threads"].as_u64().unwrap() > 0 && records[0]["taken_ms"].as_u64().unwrap() > 0
    );
    assert_eq!(
        json(&sandbox.ok(&["sysquery", "--db", db, "1 threads and 1KiB memory"])),
        serde_json::json!(["n1"])
    );
    assert_eq!(json(&sandbox.ok(&["sysquery", "--db", db, "not 1 threads"])), serde_json::json!([]));
    assert_eq!(json(&sandbox.ok(&["sysquery", "--db", db, "--host", "n2"])), serde_json::json!([]));
    assert_eq!(sandbox.ok(&["sysmap", "forget", "--db", db, "--dry-run", "n1"]), "n1 would be forgotten\n");
    assert_eq!(sandbox.ok(&["sysmap", "forget", "--db", db, "n1"]), "n1 is forgotten\n");
    let again = sandbox.tidepool(&["sysmap", "forget", "--db", db, "n1"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{}", text(&again));
}

#[test]
fn what_is_exported_can_be_imported() {
    let sandbox = Sandbox::new();
    let (one, other) = (sandbox.path("one.db"), sandbox.path("other.db"));
    let (one, other) = (one.to_str().unwrap(), other.to_str().unwrap());
    for _ in 0..2 {
        sandbox.ok(&["sysmap", "collect", "--db", one, "--only", "memory-use,load", "--history"]);
    }
    let exported = sandbox.ok(&["sysmap", "export", "--db", one, "--history"]);
    assert_eq!(exported.lines().count(), 4);
    let file = sandbox.path("records");
    fs::write(&file, &exported).unwrap();
    let said = sandbox.ok(&["sysmap", "import", "--db", other, "--history", file.to_str().unwrap()]);
    assert_eq!(said, "4 records of 1 hosts\n");
    assert_eq!(sandbox.ok(&["sysmap", "export", "--db", other, "--history"]), exported);
    assert_eq!(sandbox.ok(&["sysmap", "export", "--db", other]).lines().count(), 2);
    fs::write(&file, format!("{exported}{{\"host\": 1}}\n")).unwrap();
    let bad =
        sandbox.tidepool(&["sysmap", "import", "--db", other, file.to_str().unwrap()]).output().unwrap();
    assert!(bad.status.code() == Some(1) && text(&bad).contains("line 5"), "{}", text(&bad));
}

#[test]
fn all_forms_tell_the_same() {
    let sandbox = Sandbox::new();
    let collect = |form: &str| sandbox.ok(&["sysmap", "collect", "--only", "memory", "--format", form]);
    let total = json(&collect("json"))[0]["data"]["total_bytes"].to_string();
    for form in ["jsonl", "yaml", "csv", "table"] {
        assert!(collect(form).contains(&total), "{form}: {}", collect(form));
    }
    assert!(collect("csv").starts_with("host,extractor,taken_ms,place,value\n"));
}

#[test]
fn what_is_wrong_is_said_before_anything_is_done() {
    let sandbox = Sandbox::new();
    let db = sandbox.path("resources.db");
    let db = db.to_str().unwrap();
    for (args, code, words) in [
        (&["sysmap", "collect", "--db", db, "--only", "disk"][..], 2, "did you mean 'disks'?"),
        (&["sysmap", "collect", "--db", db, "--source", "disks=lsblc"], 2, "did you mean 'lsblk'?"),
        (&["sysmap", "collect", "--db", db, "--source", "disks"], 2, "EXTRACTOR=SOURCE"),
        (&["sysquery", "--db", db], 1, "there is no resource database"),
        (&["sysmap", "forget", "--db", db, "--dry-run", "n1"], 1, "there is no resource database"),
        (&["sysquery", "--db", db, ">= 5 apples"], 2, "at byte 5: free, memory, cores"),
        (&["sysquery", "--db", db, "--host", "n[1"], 2, "no list of hosts"),
    ] {
        let output = sandbox.tidepool(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
    assert!(!sandbox.path("resources.db").exists());
    sandbox.ok(&["sysmap", "collect", "--db", db, "--only", "memory"]);
    for args in [&["--extractor", "disk"][..], &["disk.bytes > 1"]] {
        let output = sandbox.tidepool(&[&["sysquery", "--db", db], args].concat()).output().unwrap();
        assert!(output.status.code() == Some(2) && text(&output).contains("'disks'?"), "{}", text(&output));
    }
}

/// A directory of programs, each with this script.
fn extractors(sandbox: &Sandbox, programs: &[(&str, &str)]) -> String {
    let dir = sandbox.path("extractors.d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, script) in programs {
        put_program(&dir.join(name), &format!("#!/bin/sh\n{script}\n"));
    }
    dir.to_str().unwrap().to_string()
}

/// INVENTORY G5: a new extractor is a file in a directory.
#[test]
fn g5_a_site_adds_extractors() {
    let sandbox = Sandbox::new();
    let coolant =
        r#"echo '{"version": 3, "class": "dynamic", "data": {"loops": [{"litres": 40}, {"litres": 7}]}}'"#;
    let same = r#"printf '{"version":3,"class":"dynamic","data":{"loops":[]}}'"#;
    let programs = [
        ("coolant", "exit 1"),
        ("coolant.redfish", coolant),
        ("coolant.serial", same),
        ("broken", "echo ?"),
        ("README", ""),
    ];
    let dir = extractors(&sandbox, &programs);
    let db = sandbox.path("r.db");
    let db = db.to_str().unwrap();
    sandbox.ok(&["sysmap", "collect", "--extractors", &dir, "--db", db, "--host", "n1"]);
    assert_eq!(
        json(&sandbox.ok(&["sysquery", "--db", db, "coolant.loops[litres >= 10] >= 1 and 1 cores"])),
        serde_json::json!(["n1"])
    );
    let records = json(&sandbox.ok(&["sysquery", "--db", db, "--extractor", "coolant,broken,cpu"]));
    let of = |name: &str| records.as_array().unwrap().iter().find(|r| r["extractor"] == name).unwrap();
    assert_eq!((&of("coolant")["version"], &of("coolant")["source"]), (&3.into(), &"redfish".into()));
    assert_eq!(of("coolant")["class"], "dynamic");
    assert!(of("coolant")["missing"][0]["why"].as_str().unwrap().contains("exit status: 1"), "{records}");
    assert_eq!((&of("broken")["version"], &of("broken")["data"]), (&0.into(), &Value::Null));
    assert!(of("broken")["missing"][0]["why"].as_str().unwrap().contains("no record"), "{records}");

    // A program that changes its class and not its version is refused; what else is found is kept.
    let elsewhere = Sandbox::new();
    let changed = extractors(&elsewhere, &[("coolant", &coolant.replace("dynamic", "static"))]);
    let args = ["sysmap", "collect", "--extractors", &changed, "--db", db, "--host", "n2"];
    let output = sandbox.tidepool(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("'coolant': version 3 has the other class"), "{}", text(&output));
    assert_eq!(json(&sandbox.ok(&["sysquery", "--db", db, "1 cores"])), serde_json::json!(["n1", "n2"]));

    let collect = |args: &[&str]| {
        let args = [&["sysmap", "collect", "--extractors", &dir], args].concat();
        sandbox.tidepool(&args).output().unwrap()
    };
    for form in ["json", "yaml", "csv", "table", "jsonl"] {
        let output = collect(&["--only", "coolant", "--format", form]);
        assert!(output.status.success() && text(&output).contains("loops"), "{form}: {}", text(&output));
    }
    let other = collect(&["--only", "coolant", "--source", "coolant=serial", "--json"]);
    let other = json(std::str::from_utf8(&other.stdout).unwrap());
    assert_eq!((&other[0]["source"], &other[0]["data"]["loops"]), (&"serial".into(), &serde_json::json!([])));
    for (args, words) in [
        (&["--only", "colant"][..], "'coolant'?"),
        (&["--source", "coolant=refdish"], "did you mean 'redfish'?"),
    ] {
        let output = collect(args);
        assert!(output.status.code() == Some(2) && text(&output).contains(words), "{}", text(&output));
        assert!(
            text(&output).contains("not taken: ") && text(&output).contains("README"),
            "{}",
            text(&output)
        );
    }
    let listed = sandbox.ok(&["sysmap", "extractors", "--extractors", &dir]);
    assert!(listed.contains("redfish: ") && listed.contains("an extractor of this site"), "{listed}");
    let listed = json(&sandbox.ok(&["sysmap", "extractors", "--json", "--extractors", &dir]));
    let listed = listed.as_array().unwrap().iter().find(|one| one["name"] == "coolant").unwrap();
    assert_eq!((&listed["site"], listed["sources"].as_array().unwrap().len()), (&true.into(), 3));
}

#[test]
fn a_sites_directory_has_to_be_its_own() {
    let sandbox = Sandbox::new();
    let dir = extractors(&sandbox, &[("mine", "exit 0")]);
    fs::set_permissions(Path::new(&dir).join("mine"), fs::Permissions::from_mode(0o757)).unwrap();
    let collect = |dir: &str| {
        let args = ["sysmap", "collect", "--json", "--only", "mine", "--extractors", dir];
        sandbox.tidepool(&args).output().unwrap()
    };
    let record = json(std::str::from_utf8(&collect(&dir).stdout).unwrap())[0].clone();
    assert!(record["missing"][0]["what"].as_str().unwrap().ends_with("extractors.d/mine"), "{record}");
    assert_eq!(record["missing"][0]["why"], "others may write to it; chmod go-w");
    let listed = sandbox.ok(&["sysmap", "extractors", "--extractors", &dir]);
    assert!(listed.contains("(not run: others may write to it"), "{listed}");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    for (dir, words) in [(dir.as_str(), "chmod go-w"), ("/no/such", "there is no such directory")] {
        let output = collect(dir);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(dir) && text(&output).contains(words), "{}", text(&output));
    }
}

/// A user who may do nothing: most is told all the same, and the rest is said to be missing.
#[test]
fn nobody_can_collect_and_ask() {
    let sandbox = Sandbox::new();
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to become somebody else");
        return;
    }
    sandbox.let_others_in();
    let open = sandbox.path("open");
    fs::create_dir(&open).unwrap();
    std::os::unix::fs::chown(&open, Some(65534), Some(65534)).unwrap();
    let program = open.join("tidepool");
    copy_program(env!("CARGO_BIN_EXE_tidepool").as_ref(), &program);
    let nobody = |args: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&program);
        command.args(args).uid(65534).gid(65534).env("HOME", &open).current_dir("/");
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let db = open.join("resources.db");
    nobody(&["sysmap", "collect", "--db", db.to_str().unwrap(), "--host", "n1"]);
    assert_eq!(
        json(&nobody(&["sysquery", "--db", db.to_str().unwrap(), "1 cores"])),
        serde_json::json!(["n1"])
    );
}

/// The real `ibnetdiscover` on a simulated network of InfiniBand.
#[test]
fn a_simulated_network_is_discovered() {
    let sandbox = Sandbox::new();
    let net = sandbox.path("net");
    fs::write(
        &net,
        "Switch\t8 \"leaf1\"\n[1]\t\"n1\"[1]\n[2]\t\"n2\"[1]\n[8]\t\"core\"[1]\n\n\
         Switch\t8 \"leaf2\"\n[1]\t\"n3\"[1]\n[8]\t\"core\"[2]\n\nSwitch\t8 \"core\"\n[1]\t\"leaf1\"[8]\n[2]\t\"leaf2\"[8]\n\n\
         Hca\t1 \"n1\"\n[1]\t\"leaf1\"[1]\n\nHca\t1 \"n2\"\n[1]\t\"leaf1\"[2]\n\nHca\t1 \"n3\"\n[1]\t\"leaf2\"[1]\n",
    )
    .unwrap();
    let socket = format!("sysmap-test-{}", std::process::id());
    let mut simulator = Command::new("ibsim");
    simulator.args(["-s", "-n", net.to_str().unwrap()]).env("IBSIM_SOCKNAME", &socket);
    let simulator = simulator.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let discovers = Path::new("/usr/sbin/ibnetdiscover").exists();
    let (Ok(mut simulator), true) = (simulator, discovers) else {
        println!("SKIPPED: needs ibsim-utils and infiniband-diags");
        return;
    };
    // What is asked gets no environment of others: the simulation has to be entered by the program itself.
    let bin = sandbox.path("bin");
    fs::create_dir(&bin).unwrap();
    let program = bin.join("ibnetdiscover");
    let script =
        format!("#!/bin/sh\nIBSIM_SOCKNAME={socket} exec ibsim-run /usr/sbin/ibnetdiscover \"$@\"\n");
    put_program(&program, &script);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let collect = || {
        let args = ["sysmap", "collect", "--json", "--only", "fabric", "--source", "fabric=ibnetdiscover"];
        let output = sandbox.tidepool(&args).env("PATH", &path).output().unwrap();
        json(&String::from_utf8(output.stdout).unwrap())[0].clone()
    };
    // Asked until it listens.
    let mut tries = 0;
    let mut record = collect();
    while record["data"].is_null() && tries < 100 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        record = collect();
        tries += 1;
    }
    simulator.kill().unwrap();
    simulator.wait().unwrap();
    let hosts: Vec<(&str, &str)> = record["data"]["hosts"]
        .as_array()
        .unwrap_or_else(|| panic!("{record}"))
        .iter()
        .map(|port| (port["host"].as_str().unwrap(), port["switch"].as_str().unwrap()))
        .collect();
    assert_eq!(hosts, [("n1", "leaf1"), ("n2", "leaf1"), ("n3", "leaf2")]);
    assert_eq!(record["data"]["links"].as_array().unwrap().len(), 2);
}

/// A program that is asked hangs, and the user presses Ctrl-C: nothing goes on, and nothing is stored.
#[test]
fn a_stopped_collection_leaves_nothing_running() {
    let sandbox = Sandbox::new();
    let bin = sandbox.path("bin");
    fs::create_dir(&bin).unwrap();
    let (program, begun) = (bin.join("ibnetdiscover"), sandbox.path("begun"));
    put_program(&program, &format!("#!/bin/sh\necho $$ > {}\nsleep 1000\n", begun.display()));
    let db = sandbox.path("resources.db");
    let mut command =
        sandbox.tidepool(&["sysmap", "collect", "--only", "fabric", "--db", db.to_str().unwrap()]);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let pid = loop {
        match fs::read_to_string(&begun).ok().and_then(|text| text.trim().parse::<i32>().ok()) {
            Some(pid) => break pid,
            None => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    let signal = |pid: u32| rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(signal(child.id()), rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the program still runs");
    assert!(!db.exists());
}
