//! Real programs under the preload client, on a pool of two daemons that run in this process.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidepool_client::{PoolFile, PoolMode};
use tidepool_fsd::{Config, Daemon};
use tidepool_transport::Secret;
use tidepool_types::InstanceId;
use tidepool_wire::message::Member;

const INSTANCE: &str = "00112233445566778899aabbccddeeff";
const DAEMONS: u16 = 2;

struct Pool {
    root: PathBuf,
    stop: Vec<Box<dyn Fn() + Send + Sync>>,
    running: Vec<std::thread::JoinHandle<()>>,
}

impl Pool {
    fn start(name: &str) -> Pool {
        let root = std::env::temp_dir().join(format!("tidepool-preload-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for dir in ["mnt", "out", "bin"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let mut pool = Pool { root, stop: Vec::new(), running: Vec::new() };
        let members = (0..DAEMONS).map(|index| pool.add(index)).collect();
        let file = PoolFile {
            instance: InstanceId::parse(INSTANCE).unwrap(),
            secret: Secret::from_hex(&"5a".repeat(32)).unwrap(),
            mount: pool.mount(),
            layout: tidepool_types::Layout::wide(64 << 10, 0).unwrap(),
            weights: Vec::new(),
            groups: Vec::new(),
            hints: Vec::new(),
            size_cache: false,
            mode: PoolMode::Posix,
            members,
            fabric: String::new(),
            encryption: tidepool_types::Encryption::Off,
            answer_ms: 120_000,
        };
        file.write(&pool.root.join("pool.json")).unwrap();
        pool
    }

    fn add(&mut self, index: u16) -> Member {
        let root = self.root.display();
        let secret = "5a".repeat(32);
        let text = format!(
            r#"{{"instance":"{INSTANCE}","secret":"{secret}","index":{index},"host":"n{index}","dir":"{root}/d{index}","unix":"{root}/s{index}"}}"#
        );
        let daemon = Daemon::start(&Config::parse(&text).unwrap()).unwrap();
        let ready = daemon.ready();
        let member = Member {
            index,
            host: ready.host.clone(),
            boot_id: ready.boot_id.clone(),
            tcp: ready.tcp.clone(),
            unix: ready.unix.clone(),
        };
        self.stop.push(Box::new(daemon.stopper()));
        self.running.push(std::thread::spawn(move || daemon.run().unwrap()));
        member
    }

    fn mount(&self) -> PathBuf {
        self.root.join("mnt")
    }

    /// A command that sees the pool.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env("LD_PRELOAD", library())
            .env("TIDEPOOL_DIR", self.mount())
            .env("TIDEPOOL_POOL", self.root.join("pool.json"))
            .env("OUT", self.root.join("out"));
        command
    }

    /// Compiles `tests/c/NAME.c` and runs it with its working directory in the pool.
    fn run_c(&self, name: &str) {
        self.run_c_linked(name, &[]);
    }

    /// The same with libraries.
    fn run_c_linked(&self, name: &str, libraries: &[&str]) {
        self.run_c_with(name, libraries, &[]);
    }

    /// The same with variables of the environment.
    fn run_c_with(&self, name: &str, libraries: &[&str], variables: &[(&str, &str)]) {
        let program = self.root.join("bin").join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-pthread", "-Wall", "-Wno-unused-result", "-o"])
            .arg(&program)
            .arg(&source)
            .args(libraries);
        succeeded(&cc.output().unwrap());
        let script = r#"cd "$TIDEPOOL_DIR" && exec timeout 100 "$0" "$TIDEPOOL_DIR""#;
        let mut command = self.command("/bin/bash");
        command.args(["-c", script]).arg(&program).envs(variables.iter().copied());
        succeeded(&command.output().unwrap());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop.iter().for_each(|stop| stop());
        self.running.drain(..).for_each(|thread| thread.join().unwrap());
        // Nothing may ever land in the real directory under the mount path.
        let strays: Vec<_> = std::fs::read_dir(self.mount()).unwrap().collect();
        let _ = std::fs::remove_dir_all(&self.root);
        if !std::thread::panicking() {
            assert!(strays.is_empty(), "{strays:?}");
        }
    }
}

/// The library that this build made, next to the test program.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let found =
        own.ancestors().skip(1).take(2).map(|dir| dir.join("libtidepool_preload.so")).find(|so| so.exists());
    found.expect("cargo builds the library before its tests")
}

#[track_caller]
fn succeeded(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
}

#[test]
fn descriptors() {
    Pool::start("descriptors").run_c("descriptors");
}

/// Writes beside the daemons: nothing a writer does to its memory, or that is done to the writer, damages a file.
#[test]
fn borrowed() {
    Pool::start("borrowed").run_c("borrowed");
}

/// Offsets are shared with whoever shares a file: forked children, programs run by exec and posix_spawn,
/// receivers of messages, threads; also out of 10,000 files, and while other threads read.
#[test]
fn sharing() {
    let pool = Pool::start("sharing");
    pool.run_c("sharing");
    pool.run_c_with("sharing", &[], &[("TIDEPOOL_PRELOAD_RAW", "off")]);
}

#[test]
fn threads_forks_signals_cancellation() {
    Pool::start("threads").run_c("threads");
}

/// Little stack costs nobody the program: threads of the least size, POSIX AIO, contexts (LTP's growfiles died of it).
#[test]
fn small_stacks_are_enough() {
    Pool::start("small").run_c("small");
}

/// A thread that is cancelled or leaves by a handler takes neither the program nor a lock with it, and a signal
/// ends a wait for a lock whenever it comes.
#[test]
fn threads_that_leave_and_signals_that_end_waits() {
    Pool::start("leaving").run_c("leaving");
}

/// Who waits for a lock gets it in the order of arrival, whoever is killed or interrupted in between; a circle is EDEADLK.
#[test]
fn turns_at_locks() {
    Pool::start("turns").run_c("turns");
}

#[test]
fn paths_directories_attributes() {
    Pool::start("trees").run_c("trees");
}

#[test]
fn mappings_and_locks() {
    Pool::start("maps").run_c("maps");
}

/// The loader takes libraries for one that have one name or one inode; copies of pool files are given both.
#[test]
fn libraries_of_the_pool() {
    Pool::start("libraries").run_c("libraries");
}

/// Asynchronous I/O of the kernel is refused where programs fall back, when it is set up.
#[test]
fn asynchronous_io() {
    Pool::start("aio").run_c("aio");
}

/// libaio works on pool files and others in one queue, told by events, event descriptors and the kernel's ring alike.
#[test]
fn libaio_on_pool_files() {
    Pool::start("libaio").run_c_linked("libaio", &["-laio"]);
}

/// System call instructions of the program itself are seen, whatever it does with signals, stacks, threads and children.
#[test]
fn calls_outside_libc() {
    Pool::start("raw").run_c("raw");
}

/// Access control lists decide, follow the mode, and are handed down.
#[test]
fn access_control_lists() {
    Pool::start("lists").run_c("lists");
}

/// `ulimit -f` cuts what the program writes, and never a block of a daemon's file.
#[test]
fn limits_of_file_sizes() {
    Pool::start("limits").run_c("limits");
}

/// Programs that the library does not see fail on what they inherit, and read nothing that is not the file's.
#[test]
fn reads_past_the_library() {
    Pool::start("past").run_c_with("past", &[], &[("TIDEPOOL_PRELOAD_RAW", "off")]);
}

/// What the kernel refuses and allows at the edges: vectors, pointers, long paths, dots, bits, attributes.
#[test]
fn edges_of_calls() {
    Pool::start("edges").run_c("edges");
}

#[test]
fn a_malloc_that_uses_files() {
    Pool::start("allocator").run_c("allocator");
}

#[test]
fn ordinary_programs() {
    let pool = Pool::start("ordinary");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ordinary.sh");
    let output = pool.command("/bin/bash").arg(script).output().unwrap();
    succeeded(&output);
    assert!(
        String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.starts_with("ok ")).count() >= 20
    );
}

#[test]
fn a_program_without_a_pool_is_left_alone() {
    let output =
        Command::new("/bin/cat").arg("/proc/self/maps").env("LD_PRELOAD", library()).output().unwrap();
    succeeded(&output);
    let output = Command::new("/bin/ls")
        .arg("/tmp")
        .env("LD_PRELOAD", library())
        .env("TIDEPOOL_DIR", "/nonexistent/pool")
        .env("TIDEPOOL_POOL", "/nonexistent/pool.json")
        .output()
        .unwrap();
    succeeded(&output);
    assert!(output.stderr.is_empty());
}

/// Libraries are opened also where there is no pool, and by constructors that run before our own.
#[test]
fn dlopen_works_from_the_first_moment() {
    let pool = Pool::start("early");
    let bin = pool.root.join("bin");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/early.c");
    let compile = |arguments: &[&str]| {
        let mut cc = Command::new("cc");
        succeeded(&cc.current_dir(&bin).arg("-Wall").arg(&source).args(arguments).output().unwrap());
    };
    compile(&["-DLIBRARY", "-shared", "-fPIC", "-o", "libearly.so"]);
    compile(&["-o", "early", "-L.", "-learly", "-Wl,-rpath,$ORIGIN"]);
    let program = bin.join("early");
    succeeded(&pool.command(&program).output().unwrap());
    succeeded(&Command::new(&program).env("LD_PRELOAD", library()).output().unwrap());
}

#[test]
fn a_missing_pool_is_told_once_and_plainly() {
    let output = Command::new("/bin/ls")
        .args(["/nonexistent/pool/a", "/nonexistent/pool/b"])
        .env("LD_PRELOAD", library())
        .env("TIDEPOOL_DIR", "/nonexistent/pool")
        .env("TIDEPOOL_POOL", "/nonexistent/pool.json")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("tidepool: ").count(), 1, "{said}");
    assert!(said.contains("/nonexistent/pool.json"), "{said}");
}
