//! Pools on several tiers, as users start them.

mod common;

use common::{Sandbox, doors, text};
use std::fs;
use std::path::Path;

/// All that is below a directory.
fn below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        found.push(entry.path().display().to_string());
        if entry.path().is_dir() {
            found.extend(below(&entry.path()));
        }
    }
    found
}

struct Tiers {
    sandbox: Sandbox,
    burst: String,
    pfs: String,
}

impl Tiers {
    fn new() -> Tiers {
        let sandbox = Sandbox::new();
        let dir = |name: &str| {
            fs::create_dir(sandbox.path(name)).unwrap();
            sandbox.path(name).display().to_string()
        };
        let (burst, pfs) = (dir("burst"), dir("pfs"));
        Tiers { sandbox, burst, pfs }
    }

    fn assert_empty(&self, when: &str) {
        for dir in [&self.burst, &self.pfs] {
            assert_eq!(below(Path::new(dir)), Vec::<String>::new(), "{when}");
        }
        self.sandbox.assert_nothing_left(when);
    }
}

/// A program's data go to the burst buffer, are flushed, read back whole, and leave nothing when the pool ends.
#[test]
fn a_pool_on_three_tiers() {
    let tiers = Tiers::new();
    let Tiers { sandbox, burst, pfs } = &tiers;
    let words = ["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload"];
    sandbox.ok(&[&words[..], &["--burst", burst, "--pfs", pfs, "--strategy", "hp"]].concat());
    fs::write(sandbox.path("in"), (0..3_000_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let input = sandbox.path("in").display().to_string();
    sandbox.ok(&["cp", "--pool", "p", &input, "pool:/f"]);
    let status = || sandbox.ok(&["pool", "status", "--pool", "p"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !status().contains("local 0 B, burst 0 B, pfs 11.4 MiB") {
        assert!(std::time::Instant::now() < deadline, "{}", status());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(status().contains("flushed"), "{}", status());
    let output = sandbox.path("out").display().to_string();
    sandbox.ok(&["cp", "--pool", "p", "pool:/f", &output]);
    assert!(fs::read(&input).unwrap() == fs::read(&output).unwrap());
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    tiers.assert_empty("after the pool");
}

/// A pool that is kept needs the storage that it had.
#[test]
fn a_kept_pool_finds_its_tiers_again() {
    let tiers = Tiers::new();
    let Tiers { sandbox, pfs, .. } = &tiers;
    let start = ["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload", "--keep"];
    let with = ["--pfs", pfs, "--strategy", "baseline"];
    let input = sandbox.path("in").display().to_string();
    fs::write(&input, vec![b'x'; 3_000_000]).unwrap();
    sandbox.ok(&[&start[..], &with].concat());
    sandbox.ok(&["cp", "--pool", "p", &input, "pool:/f"]);
    sandbox.ok(&["pool", "stop", "--pool", "p", "--keep"]);
    let done = sandbox.tidepool(&start).output().unwrap();
    assert!(
        text(&done).contains("data of this pool lie there, too: name it with --burst or --pfs"),
        "{}",
        text(&done)
    );
    let stores = Path::new(pfs).join("tidepool-stores");
    let away = sandbox.path("away");
    fs::rename(&stores, &away).unwrap();
    let done = sandbox.tidepool(&[&start[..], &with].concat()).output().unwrap();
    assert!(text(&done).contains("is gone, and what data of this pool lay there"), "{}", text(&done));
    let _ = fs::remove_dir(&stores);
    fs::rename(&away, &stores).unwrap();
    sandbox.ok(&[&start[..], &with].concat());
    let output = sandbox.path("out").display().to_string();
    sandbox.ok(&["cp", "--pool", "p", "pool:/f", &output]);
    assert!(fs::read(&input).unwrap() == fs::read(&output).unwrap());
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    tiers.assert_empty("after the kept pool");
}

/// Without a parallel file system, `hp` leaves what a kept pool has on its nodes there; `ia` flushes it to the burst buffer.
#[test]
fn a_kept_pool_gets_a_burst_buffer() {
    for strategy in ["hp", "ia"] {
        let tiers = Tiers::new();
        let Tiers { sandbox, burst, .. } = &tiers;
        let start = ["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload", "--keep"];
        let input = sandbox.path("in").display().to_string();
        fs::write(&input, vec![b'x'; 3_000_000]).unwrap();
        sandbox.ok(&start);
        sandbox.ok(&["cp", "--pool", "p", &input, "pool:/f"]);
        sandbox.ok(&["pool", "stop", "--pool", "p", "--keep"]);
        sandbox.ok(&[&start[..], &["--burst", burst, "--strategy", strategy]].concat());
        sandbox.ok(&["cp", "--pool", "p", &input, "pool:/g"]);
        let status = sandbox.ok(&["pool", "status", "--pool", "p"]);
        if strategy == "hp" {
            assert!(status.contains("local 2.9 MiB, burst 2.9 MiB; 0 B flushed"), "{status}");
        }
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while strategy == "ia"
            && !sandbox.ok(&["pool", "status", "--pool", "p"]).contains("local 0 B, burst 5.7 MiB")
        {
            assert!(std::time::Instant::now() < deadline, "nothing is flushed");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let output = sandbox.path("out").display().to_string();
        sandbox.ok(&["cp", "--pool", "p", "pool:/f", &output]);
        assert!(fs::read(&input).unwrap() == fs::read(&output).unwrap());
        sandbox.ok(&["pool", "stop", "--pool", "p"]);
        tiers.assert_empty("after the kept pool");
    }
}

/// Writes on until the pool's news are as expected: bytes that are said of the phase, and a pattern.
const HINTING: &str = r#"
import glob, json, os, sys, time
pool, pfs = os.environ["TIDEPOOL_DIR"], sys.argv[1]
NAME = "user.tidepool.phase"

def write_until(expected, pattern):
    deadline = time.monotonic() + 120
    with open(pool + "/f", "wb", buffering=0) as file:
        while time.monotonic() < deadline:
            file.write(b"x" * 5000)
            for name in glob.glob(pfs + "/tidepool-load/*.json"):
                try:
                    phase = json.load(open(name))["phase"]
                except (OSError, ValueError):
                    continue
                if phase and (phase["expected"], phase["pattern"]) == (expected, pattern):
                    return
    sys.exit(f"in vain: {expected} {pattern}")

each = os.environ.get("TIDEPOOL_PHASE_BYTES")
write_until(int(each) if each else None, "sequential")
os.setxattr(pool, NAME, b"begin bytes=3GB pattern=random")
write_until(3000000000, "random")
os.setxattr(pool + "/f", NAME, b"end")
write_until(int(each) if each else None, "sequential")
try:
    os.setxattr(pool, NAME, b"start")
    sys.exit("nonsense was taken")
except OSError as error:
    print(error)
"#;

/// K2: a program says what its phases are, and who starts it says what each process writes.
#[test]
fn k2_programs_give_hints() {
    for door in doors() {
        let tiers = Tiers::new();
        let Tiers { sandbox, burst, pfs } = &tiers;
        let run = ["run", "--nodes", "1", "--client", door, "--burst", burst, "--pfs", pfs, "--"];
        let program = ["python3", "-c", HINTING, pfs];
        let done = sandbox.tidepool(&[&run[..], &program].concat()).output().unwrap();
        assert!(done.status.success() && text(&done).contains("Invalid argument"), "{door}: {}", text(&done));
        if door == "preload" {
            assert!(text(&done).contains("'start' is neither; write 'begin'"), "{}", text(&done));
            let with = |bytes: &str| {
                let mut command = sandbox.tidepool(&[&run[..], &program].concat());
                command.env("TIDEPOOL_PHASE_BYTES", bytes).output().unwrap()
            };
            let done = with("2000000");
            assert!(done.status.success(), "{}", text(&done));
            // Who says nothing writes what was said of the pool.
            let pool = ["run", "--phase-bytes", "7MB", "--nodes", "1", "--burst", burst, "--pfs", pfs, "--"];
            let program = ["python3", "-c", &HINTING.replace("else None", "else 7000000"), pfs];
            let done = sandbox.tidepool(&[&pool[..], &program].concat()).output().unwrap();
            assert!(done.status.success(), "{}", text(&done));
            let refused = with("many");
            assert!(!refused.status.success(), "{}", text(&refused));
            assert!(
                text(&refused).contains("TIDEPOOL_PHASE_BYTES: 'many' is not a size"),
                "{}",
                text(&refused)
            );
        }
        tiers.assert_empty(door);
    }
}

/// The same with `run`, whose results are staged out of whatever tier they are on.
#[test]
fn a_run_on_a_parallel_file_system() {
    let tiers = Tiers::new();
    let Tiers { sandbox, pfs, .. } = &tiers;
    let out = sandbox.path("results").display().to_string();
    let stage = format!("/out:{out}");
    let script = "mkdir $TIDEPOOL_DIR/out && head -c 5000000 /dev/zero | tr '\\0' x > $TIDEPOOL_DIR/out/f";
    let words = ["run", "--nodes", "2", "--pfs", pfs, "--strategy", "baseline", "--client", "preload"];
    sandbox.ok(&[&words[..], &["--out", &stage, "--", "sh", "-c", script]].concat());
    assert!(fs::read(sandbox.path("results/f")).unwrap() == vec![b'x'; 5_000_000]);
    tiers.assert_empty("after the run");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let tiers = Tiers::new();
    let Tiers { sandbox, pfs, burst } = &tiers;
    let missing = sandbox.path("missing").display().to_string();
    for (words, said) in [
        (&["--strategy", "hp"][..], "--strategy is for pools with shared storage; name it with --pfs"),
        (&["--phase-bytes", "1MB"], "--phase-bytes is for pools with shared storage"),
        (&["--link-bandwidth", "1MB"], "--link-bandwidth is for pools with shared storage"),
        (&["--pfs", pfs, "--link-bandwidth", "0"], "a link of 0 bytes a second carries nothing"),
        (&["--pfs", pfs, "--phase-bytes", "0"], "a phase of 0 bytes is none"),
        (&["--flush-bandwidth", "1MB"], "--flush-bandwidth is for pools with shared storage"),
        (&["--pfs", pfs, "--strategy", "hpp"], "did you mean hp?"),
        (&["--pfs", pfs, "--strategy", "fair"], "was not measured"),
        (&["--burst", burst, "--strategy", "baseline"], "name it with --pfs"),
        (&["--pfs", &missing], "No such file or directory"),
    ] {
        let start = ["pool", "start", "--name", "p", "--nodes", "1"];
        let done = sandbox.tidepool(&[&start[..], words].concat()).output().unwrap();
        assert!(!done.status.success(), "{words:?}");
        assert!(text(&done).contains(said), "{words:?}: {}", text(&done));
        tiers.assert_empty("after a refusal");
    }
    let done = sandbox.tidepool(&["run", "--fs", "local", "--pfs", pfs, "--", "true"]).output().unwrap();
    assert!(text(&done).contains("one storage only"), "{}", text(&done));
}
