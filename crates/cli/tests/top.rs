//! Who hurts whom on shared storage: `tidepool top`, and what `tidepool run` tells of its tiers.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use tidepool_shape::{Measured, Point};
use tidepool_testkit::eventually;

/// A test that hangs fails some time.
const HUNG: Duration = Duration::from_secs(300);

/// Processes that write a megabyte each, 50 times a second at most, until they are ended.
const WRITE: &str = "
import os, signal, sys, time
children = []
for _ in range(int(sys.argv[1]) - 1):
    child = os.fork()
    if child == 0:
        children = []
        break
    children.append(child)
signal.signal(signal.SIGTERM, lambda *_: ([os.kill(child, 9) for child in children], os._exit(0)))
file = os.open('%s/%d' % (os.environ['TIDEPOOL_DIR'], os.getpid()), os.O_CREAT | os.O_WRONLY)
while True:
    os.pwrite(file, bytes(1000000), 0)
    time.sleep(0.02)
";

struct Shared {
    sandbox: Sandbox,
    pfs: PathBuf,
}

impl Shared {
    fn new() -> Shared {
        let sandbox = Sandbox::new();
        let pfs = sandbox.path("pfs");
        fs::create_dir(&pfs).unwrap();
        Shared { sandbox, pfs }
    }

    fn dir(&self) -> &str {
        self.pfs.to_str().unwrap()
    }

    /// Storage that serves one process well, and several so badly that they are in each other's way whatever this machine does.
    fn measure(&self) {
        let point = |processes, rate| Point::of(processes, &[rate]).unwrap();
        let sequential = vec![point(1, 1_000_000_000_000), point(2, 1_000)];
        let measured =
            Measured { sequential, shaped: Some("steep".into()), ..Measured::new("a test", "n1", 1) };
        measured.write(&self.pfs).unwrap();
    }

    fn start(&self, name: &str) {
        let words = ["pool", "start", "--name", name, "--nodes", "1", "--client", "preload"];
        self.sandbox.ok(&[&words[..], &["--pfs", self.dir(), "--strategy", "baseline"]].concat());
    }

    /// Writes and writes, to a few bytes of a file of each process.
    fn write(&self, pool: &str, processes: &str) -> Writer {
        let words = ["exec", "--pool", pool, "--client", "preload", "--", "python3", "-c", WRITE, processes];
        Writer(self.sandbox.tidepool(&words).spawn().unwrap())
    }

    /// Looks until what is looked for is seen.
    fn until(&self, words: &[&str], seen: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let told: Value = serde_json::from_str(&self.sandbox.ok(words)).unwrap();
            if seen(&told) {
                return told;
            }
            assert!(began.elapsed() < HUNG, "{told:#}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Bytes of the phases that are over, as daemons tell.
    fn past_bytes(&self) -> u64 {
        let told =
            fs::read_dir(self.pfs.join("tidepool-load")).unwrap().map(|file| fs::read(file.unwrap().path()));
        let told = told.filter_map(|bytes| serde_json::from_slice::<Value>(&bytes.ok()?).ok());
        let past = told.flat_map(|load| load["past"].as_array().cloned().unwrap_or_default());
        past.map(|part| part["bytes"].as_u64().unwrap()).sum()
    }

    fn assert_empty(&self, when: &str) {
        let left: Vec<PathBuf> =
            fs::read_dir(&self.pfs).unwrap().map(|entry| entry.unwrap().path()).collect();
        let measured = |path: &Path| path.ends_with(tidepool_shape::FILE_NAME);
        assert!(left.iter().all(|path| measured(path)), "{when}: {left:?}");
        self.sandbox.assert_nothing_left(when);
    }
}

/// A program that is ended, with all it has made.
struct Writer(Child);

impl Writer {
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap();
    }
}

/// The pool of this name on the parallel file system.
fn judged<'a>(told: &'a Value, name: &str) -> Option<&'a Value> {
    let tiers = told["dirs"][0]["tiers"].as_array()?;
    let pfs = tiers.iter().find(|tier| tier["tier"] == "pfs")?;
    pfs["pools"].as_array()?.iter().find(|pool| pool["pool"] == name)
}

fn suffers(told: &Value) -> bool {
    judged(told, "victim")
        .is_some_and(|victim| victim["slowdown"].as_f64().is_some_and(|slowdown| slowdown > 2.0))
}

#[test]
fn a_victim_names_its_aggressor() {
    let shared = Shared::new();
    shared.measure();
    shared.start("victim");
    shared.start("aggressor");
    let writers = [shared.write("victim", "1"), shared.write("aggressor", "3")];
    // The first news of a phase come with its first process.
    let all_write = |told: &Value| judged(told, "aggressor").is_some_and(|pool| pool["processes"] == 3);
    let told = shared.until(&["top", "--once", "--json"], |told| suffers(told) && all_write(told));
    let victim = judged(&told, "victim").unwrap();
    let blame = &victim["blame"][0];
    assert_eq!((&blame["pool"], victim["held_back"].as_f64()), (&"aggressor".into(), Some(0.0)), "{told:#}");
    assert!((blame["write"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{told:#}");
    assert_eq!(victim["alone_by"], "curve");
    let pfs = &told["dirs"][0]["tiers"][0];
    assert_eq!(pfs["label"], "shaped: steep, not real storage");
    assert!(pfs["slowdown"]["fairness"].as_f64().unwrap() < 1.0 && pfs["utilisation"].as_f64().is_some());
    assert_eq!(told["dirs"][0]["pools"].as_array().unwrap().len(), 2);
    // The same for people, of a directory that is named, and of a pool.
    let began = Instant::now();
    let mut people = String::new();
    while !people.contains("aggressor 100 %") {
        people = shared.sandbox.ok(&["top", shared.dir()]);
        assert!(began.elapsed() < HUNG, "{people}");
    }
    assert!(
        people.starts_with(shared.dir()) && people.contains("shaped: steep, not real storage"),
        "{people}"
    );
    assert!(shared.sandbox.ok(&["top", "--pool", "victim"]).starts_with(shared.dir()));
    writers.into_iter().for_each(Writer::end);
    for pool in ["victim", "aggressor"] {
        shared.sandbox.ok(&["pool", "stop", "--pool", pool]);
    }
    shared.assert_empty("after both pools");
}

#[test]
fn where_nothing_is_told_it_says_so() {
    let shared = Shared::new();
    let Shared { sandbox, .. } = &shared;
    let fails = |words: &[&str], code: i32, said: &str| {
        let done = sandbox.tidepool(words).output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{words:?}: {}", text(&done));
        assert!(text(&done).contains(said), "{words:?}: {}", text(&done));
    };
    fails(&["top"], 116, "name its directory");
    fails(&["top", "--once", shared.dir()], 116, "no pool tells its load there; name the slowest directory");
    let missing = sandbox.path("missing").display().to_string();
    fails(&["top", &missing], 1, "missing: No such file or directory");
    fs::write(shared.pfs.join("file"), "").unwrap();
    let file = shared.pfs.join("file").display().to_string();
    fails(&["top", &file], 2, "is no directory; name one");
    fails(&["top", "--interval", "0", shared.dir()], 2, "seconds from 0.1");
    sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "1", "--client", "preload"]);
    fails(&["top", "--pool", "p"], 116, "pool 'p' has its own storage only");
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    sandbox.assert_nothing_left("after the pool");
}

/// The program ends when all it has written is told: two looks of a run are a second apart.
#[test]
fn a_run_tells_what_went_to_its_tiers() {
    let shared = Shared::new();
    let script = format!(
        "for i in $(seq 25); do head -c 200000 /dev/zero; sleep 0.1; done > $TIDEPOOL_DIR/f; \
         until cat {}/tidepool-load/*.json | sed 's/.*\"past\"//; s/\"write_per_s.*//' | grep -o '\"bytes\":[0-9]*' | \
         awk -F: '{{ sum += $2 }} END {{ exit sum < 5000000 }}'; do sleep 0.1; done",
        shared.dir()
    );
    let words = ["run", "--json", "--nodes", "1", "--client", "preload", "--pfs", shared.dir()];
    let with = ["--strategy", "baseline", "--", "sh", "-c", &script];
    let done = shared.sandbox.tidepool(&[&words[..], &with].concat()).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    let tiers = &told["tiers"][0];
    assert_eq!(tiers["written"][0]["tier"], "pfs", "{told:#}");
    assert_eq!(tiers["written"][0]["bytes"], 5_000_000, "{told:#}");
    assert!(tiers["pool"].as_str().unwrap().starts_with("run-") && tiers["worst"].is_null(), "{told:#}");
    assert!(text(&done).contains("tidepool: tiers     4.8 MiB to pfs in "), "{}", text(&done));
    shared.assert_empty("after the run");
}

/// Writes 20 MB each way that leads into a file: in pieces, as mapped memory, as a copy of another file.
const WAYS: &str = "
import mmap, os
SIZE = 20480000
def new(name):
    return os.open('%s/%s' % (os.environ['TIDEPOOL_DIR'], name), os.O_CREAT | os.O_RDWR)
piece = os.urandom(4096)
pieces, mapped, copied = new('pieces'), new('mapped'), new('copied')
for at in range(0, SIZE, len(piece)):
    assert os.pwrite(pieces, piece, at) == len(piece)
os.ftruncate(mapped, SIZE)
memory = mmap.mmap(mapped, SIZE)
memory[:] = piece * (SIZE // len(piece))
memory.flush()
memory.close()
done = 0
while done < SIZE:
    done += os.copy_file_range(pieces, copied, SIZE - done, done, done)
";

/// Files of pools on several tiers are not lent, and their data are not read directly: every way is a request.
#[test]
fn a_run_tells_of_its_tiers_whichever_way_was_written() {
    let shared = Shared::new();
    let script = format!(
        "python3 -c \"$0\" || exit 9; tries=0; \
         until cat {}/tidepool-load/*.json | sed 's/.*\"past\"//; s/\"write_per_s.*//' | grep -o '\"bytes\":[0-9]*' | \
         awk -F: '{{ sum += $2 }} END {{ exit sum < 61440000 }}'; do sleep 0.1; \
         tries=$((tries + 1)); if [ $tries = 300 ]; then cat {0}/tidepool-load/*.json >&2; exit 8; fi; done",
        shared.dir()
    );
    let words = ["run", "--json", "--nodes", "1", "--client", "preload", "--pfs", shared.dir()];
    let with = ["--strategy", "baseline", "--", "sh", "-c", &script, WAYS];
    let done = shared.sandbox.tidepool(&[&words[..], &with].concat()).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    let written = told["tiers"][0]["written"].as_array().unwrap();
    let bytes: u64 = written.iter().map(|part| part["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 3 * 20_480_000, "{told:#}");
    shared.assert_empty("after the run");
}

/// Does one thing over and over, in a file of its own, until it is ended.
const AGAIN: &str = "
import mmap, os, sys, time
SIZE = 4096000
pool = os.environ['TIDEPOOL_DIR']
source = os.open(pool + '/source', os.O_RDONLY)
file = os.open('%s/%d' % (pool, os.getpid()), os.O_CREAT | os.O_RDWR)
os.ftruncate(file, SIZE)
memory = mmap.mmap(file, SIZE)
def pieces():
    for at in range(0, SIZE, 4096):
        os.pwrite(file, os.urandom(4096), at)
def mapped():
    memory[:] = os.urandom(4096) * (SIZE // 4096)
    memory.flush()
def copied():
    os.copy_file_range(source, file, SIZE, 0, 0)
def read():
    for at in range(0, SIZE, 4096):
        os.pread(source, 4096, at)
def idle():
    open(sys.argv[2], 'w').close()
    time.sleep(1)
while True:
    globals()[sys.argv[1]]()
";

#[test]
fn whichever_way_is_written_and_read_is_seen() {
    let shared = Shared::new();
    shared.start("p");
    fs::write(shared.sandbox.path("source"), vec![1; 4_096_000]).unwrap();
    shared.sandbox.ok(&[
        "cp",
        "--pool",
        "p",
        shared.sandbox.path("source").to_str().unwrap(),
        "pool:/source",
    ]);
    // What is told is a second old, and whoever wrote in a phase is one of it: the copy's has to be over.
    eventually("the end of the copy", || shared.past_bytes() >= 4_096_000);
    let idles = shared.sandbox.path("idles");
    let does = |way| {
        let words = ["exec", "--pool", "p", "--client", "preload", "--", "python3", "-c", AGAIN, way];
        Writer(shared.sandbox.tidepool(&[&words[..], &[idles.to_str().unwrap()]].concat()).spawn().unwrap())
    };
    // It has the pool open, and is none of those that write: it has set its file's size before they begin.
    let idle = does("idle");
    eventually("the idle one", || idles.exists());
    for way in ["pieces", "mapped", "copied", "read"] {
        let rate = |told: &Value, of: &str| told["dirs"][0]["pools"][0][of].as_u64().unwrap();
        // What is told is a second old.
        shared.until(&["top", "--once", "--json"], |told| {
            judged(told, "p").is_none() && rate(told, "write_per_s") == 0 && rate(told, "read_per_s") == 0
        });
        let programs = [does(way), does(way)];
        let told = shared.until(&["top", "--once", "--json"], |told| match way {
            "read" => rate(told, "read_per_s") > 0 && rate(told, "write_per_s") == 0,
            _ => judged(told, "p").is_some_and(|pool| {
                let on_tier = pool["write_per_s"].as_u64().unwrap();
                pool["processes"] == 2 && on_tier > 0 && rate(told, "write_per_s") > 0
            }),
        });
        println!("{way}: {}", told["dirs"][0]["pools"][0]);
        programs.into_iter().for_each(Writer::end);
    }
    idle.end();
    shared.sandbox.ok(&["pool", "stop", "--pool", "p"]);
    shared.assert_empty("after the pool");
}

/// Somebody else writes all the time.
#[test]
fn a_run_names_who_was_in_its_way() {
    let shared = Shared::new();
    shared.measure();
    shared.start("aggressor");
    let writer = shared.write("aggressor", "3");
    // What another command has seen some times, half a second apart, the run has seen as well.
    let script = format!(
        "python3 -c \"$0\" 1 & seen=0; while [ $seen -lt 5 ]; do sleep 0.5; \
         if env -u LD_PRELOAD {} top --once --json {} | grep -q '\"blame\":\\[{{[^]]*aggressor'; then seen=$((seen + 1)); fi; done; kill $!",
        env!("CARGO_BIN_EXE_tidepool"),
        shared.dir()
    );
    let words = ["run", "--json", "--nodes", "1", "--client", "preload", "--pfs", shared.dir()];
    let with = ["--strategy", "baseline", "--", "sh", "-c", &script, WRITE];
    let done = shared.sandbox.tidepool(&[&words[..], &with].concat()).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    let worst = &told["tiers"][0]["worst"];
    assert_eq!(
        (&worst["tier"], &worst["blame"][0]["pool"]),
        (&"pfs".into(), &"aggressor".into()),
        "{told:#}"
    );
    assert!(text(&done).contains("times on pfs at worst, by aggressor 100 %"), "{}", text(&done));
    writer.end();
    shared.sandbox.ok(&["pool", "stop", "--pool", "aggressor"]);
    shared.assert_empty("after the run");
}
