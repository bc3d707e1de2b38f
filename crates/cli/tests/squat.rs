//! Two users on one node, one of whom is up to no good: what he puts where the other's directories are to be moves
//! nothing of the other's, through whichever command, root's included.
//!
//! Every command runs in a mount name space of its own in which `/tmp` is the test's directory, so that the real names
//! are used and nothing is left behind.

mod common;

use common::{Sandbox, text};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::fs::{self, Permissions};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_testkit::Leash;

const ROOT: u32 = 0;
const ALICE: u32 = 31001;
const BOB: u32 = 31002;
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER_POOL: &str = "0123456789abcdef0123456789abcdef";
/// Longer than any of these commands takes that is not stuck.
const STUCK: Duration = Duration::from_secs(20);

/// `/tmp` of a node with two users.
struct Node {
    sandbox: Sandbox,
}

impl Node {
    /// None without root, who is needed for two users.
    fn new(test: &str) -> Option<Node> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: {test} needs root, to be two users");
            return None;
        }
        let sandbox = Sandbox::new();
        sandbox.let_others_in();
        let node = Node { sandbox };
        fs::create_dir(node.tmp("")).unwrap();
        fs::set_permissions(node.tmp(""), Permissions::from_mode(0o1777)).unwrap();
        Some(node)
    }

    /// Where something in the node's `/tmp` is for this test.
    fn tmp(&self, name: &str) -> PathBuf {
        self.sandbox.path("tmp").join(name)
    }

    fn program(&self, uid: u32, program: &Path, args: &[&str]) -> Command {
        // What hangs is a failure, not a test that never ends.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60", "unshare"]);
        let script = r#"mount --bind "$1" /tmp && shift && exec setpriv "$@""#;
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(self.tmp(""));
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()];
        command.args(ids).arg(program).args(args);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", "/tmp").env("TIDEPOOL_STORE", "/tmp/store").stdin(Stdio::null());
        command
    }

    fn command(&self, uid: u32, args: &[&str]) -> Command {
        self.program(uid, Path::new(env!("CARGO_BIN_EXE_tidepool")), args)
    }

    fn run(&self, uid: u32, args: &[&str]) -> Output {
        let began = Instant::now();
        let output = self.command(uid, args).output().unwrap();
        assert!(began.elapsed() < STUCK, "{args:?} was stuck: {}", text(&output));
        output
    }

    fn ok(&self, uid: u32, args: &[&str]) -> String {
        let output = self.run(uid, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        text(&output)
    }

    /// A directory for stores, which everybody may make something in.
    fn make_store(&self) {
        fs::create_dir(self.tmp("store")).unwrap();
        fs::set_permissions(self.tmp("store"), Permissions::from_mode(0o1777)).unwrap();
    }

    fn dir_of(&self, name: &str, uid: u32, mode: u32) -> PathBuf {
        let path = self.tmp(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
        path
    }

    fn file_of(&self, name: &str, uid: u32, text: &str) -> PathBuf {
        let path = self.tmp(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
        path
    }

    /// A pool of Alice's, its record on this node; and the record as she would have it changed.
    fn start(&self, name: &str, job: &str) -> Record {
        let mut command =
            self.command(ALICE, &["pool", "start", "--name", name, "--nodes", "1", "--client", "preload"]);
        let output = command.env("SLURM_JOB_ID", job).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let base = (0..9)
            .map(|slot| if slot == 0 { "tidepool-31001".into() } else { format!("tidepool-31001-{slot}") });
        let dirs = base.map(|base| self.tmp(&base).join(name));
        let dir =
            dirs.into_iter().find(|dir| dir.join("node-0.json").is_file()).expect("the pool has a directory");
        Record { path: dir.join("node-0.json") }
    }
}

struct Record {
    path: PathBuf,
}

impl Record {
    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }

    fn number(&self, field: &str) -> u64 {
        let value: serde_json::Value = serde_json::from_str(&self.text()).unwrap();
        let field = &value[field];
        field.as_u64().or_else(|| field[0].as_u64()).unwrap()
    }

    fn daemon(&self) -> u64 {
        self.number("daemons")
    }

    fn change(&self, from: &str, to: &str) {
        let text = self.text();
        assert!(text.contains(from), "{text} has no {from}");
        fs::write(&self.path, text.replace(from, to)).unwrap();
    }
}

fn lives(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A test that has failed leaves none of its pools behind.
impl Drop for Node {
    fn drop(&mut self) {
        let bases = fs::read_dir(self.tmp("")).into_iter().flatten().flatten();
        let pools = bases.flat_map(|base| fs::read_dir(base.path()).into_iter().flatten().flatten());
        for record in pools.map(|pool| Record { path: pool.path().join("node-0.json") }) {
            let is_hers =
                fs::symlink_metadata(&record.path).is_ok_and(|meta| meta.is_file() && meta.uid() == ALICE);
            let known = is_hers && fs::metadata(&record.path).is_ok_and(|meta| meta.len() < 4096);
            let text = if known { record.text() } else { String::new() };
            let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let daemons = value["daemons"].as_array().cloned().unwrap_or_default();
            for pid in daemons.iter().chain([&value["agent"]]).filter_map(|pid| pid.as_i64()) {
                let owner = fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid());
                let pid = rustix::process::Pid::from_raw(pid as i32)
                    .filter(|_| owner.is_ok_and(|uid| uid == ALICE));
                pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
            }
        }
    }
}

/// What root's epilog does when Alice's job ends, with a record of Bob's about her other pool.
#[test]
fn a_planted_record_removes_nothing_and_ends_nobody() {
    let Some(node) = Node::new("a_planted_record_removes_nothing_and_ends_nobody") else { return };
    node.make_store();
    // Bob was there first, so that her pool is elsewhere; in his directory he says what is to be removed.
    node.dir_of("tidepool-31001", BOB, 0o755);
    node.dir_of("tidepool-31001/x", BOB, 0o755);
    let moved = node.start("campaign", "1");
    let store = node.tmp("store/tidepool-campaign/d0");
    let marker = store.join("tidepool-store.json");
    assert!(marker.is_file() && lives(moved.daemon()));
    // The record itself, for another job; and as releases before had it.
    let (boot, daemon) = (fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap(), moved.daemon());
    let old = format!(
        r#"{{"boot_id":"{}","job":"4711","agent":0,"daemons":[{daemon}],"stores":["/tmp/store/tidepool-campaign/d0"]}}"#,
        boot.trim()
    );
    for planted in [moved.text().replace(r#""job":"1""#, r#""job":"4711""#), old] {
        let path = node.file_of("tidepool-31001/x/node-0.json", BOB, &planted);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        for uid in [ROOT, ALICE] {
            let said = node.ok(uid, &["node-clean", "--job", "4711", "--as", "31001:31001"]);
            assert!(said.contains("31002") && !said.contains("removed"), "{said}");
            assert!(marker.is_file(), "the store is gone: {said}");
            assert!(lives(daemon), "the daemon was ended: {said}");
        }
        // Without a job as well: what Bob says is left is not.
        node.ok(ROOT, &["node-clean", "--as", "31001:31001"]);
        assert!(marker.is_file() && lives(daemon));
    }
    node.ok(ALICE, &["pool", "stop", "--pool", "campaign"]);
    assert!(!store.exists() && !lives(daemon));
}

#[test]
fn whoever_takes_the_name_is_named_and_locks_nobody_out() {
    let Some(node) = Node::new("whoever_takes_the_name_is_named_and_locks_nobody_out") else { return };
    node.make_store();
    node.dir_of("tidepool-31001", BOB, 0o700);
    symlink("/etc", node.tmp("tidepool-31001-1")).unwrap();
    lchown(node.tmp("tidepool-31001-1"), Some(BOB), Some(BOB)).unwrap();
    let mut start =
        node.command(ALICE, &["pool", "start", "--name", "p", "--nodes", "1", "--client", "preload"]);
    let output = start.env("SLURM_JOB_ID", "77").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let said = text(&output);
    assert!(
        said.contains("warning") && said.contains("uid 31002") && said.contains("tidepool-31001-2"),
        "{said}"
    );
    let base = fs::metadata(node.tmp("tidepool-31001-2")).unwrap();
    assert_eq!((base.uid(), base.mode() & 0o7777), (ALICE, 0o700));
    // She finds it again, and root's epilog does.
    assert!(node.ok(ALICE, &["pool", "list"]).contains("running"));
    node.file_of("x", ALICE, "precious");
    node.ok(ALICE, &["cp", "--pool", "p", "/tmp/x", "pool:/x"]);
    let daemon = Record { path: node.tmp("tidepool-31001-2/p/node-0.json") }.daemon();
    let said = node.ok(ROOT, &["node-clean", "--job", "77", "--as", "31001:31001"]);
    assert!(said.contains("removed pool 'p'"), "{said}");
    assert!(!lives(daemon) && !node.tmp("store/tidepool-p").exists());
    // All names taken: an error with everybody who has one.
    fs::remove_dir(node.tmp("tidepool-31001-2")).unwrap();
    for slot in 2..=8 {
        node.dir_of(&format!("tidepool-31001-{slot}"), BOB + slot, 0o777);
    }
    let refused = node.run(ALICE, &["pool", "start", "--name", "p", "--nodes", "1", "--client", "preload"]);
    assert_eq!(refused.status.code(), Some(110), "{}", text(&refused));
    let said = text(&refused);
    for uid in [BOB, BOB + 2, BOB + 8] {
        assert!(said.contains(&format!("uid {uid}")), "{said}");
    }
    assert!(said.contains("TIDEPOOL_RUNTIME"), "{said}");
}

/// A pool file of Bob's that leads to a daemon of his: nobody speaks to it.
#[test]
fn a_planted_pool_is_not_joined() {
    let Some(node) = Node::new("a_planted_pool_is_not_joined") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let file = format!(
        r#"{{"version":2,"instance":"{OTHER_POOL}","secret":"{SECRET}","mount":"/tmp/tidepool-31001/p/mnt","layout":{{}},
            "mode":"posix","members":[{{"host":"n","boot_id":"b","tcp":"{at}","unix":""}}]}}"#
    );
    node.dir_of("tidepool-31001", BOB, 0o755);
    node.dir_of("tidepool-31001/p", BOB, 0o755);
    let path = node.file_of("tidepool-31001/p/pool.json", BOB, &file);
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    node.file_of("x", ALICE, "precious");
    for args in [
        &["cp", "--pool", "p", "/tmp/x", "pool:/x"][..],
        &["pool", "status", "--pool", "p"],
        &["pool", "stop", "--pool", "p"],
        &["cp", "/tmp/x", "pool:/x"],
        &["drain", "--pool", "p"],
    ] {
        let output = node.run(ALICE, args);
        assert!(!output.status.success(), "{args:?}: {}", text(&output));
        assert!(text(&output).contains("31002"), "{args:?}: {}", text(&output));
    }
    // By the variable that programs get: his file, a link of his to it, and hers that he can write to.
    node.dir_of("linked", BOB, 0o755);
    node.dir_of("open", ALICE, 0o700);
    node.dir_of("own", ALICE, 0o700);
    let link = node.tmp("linked/pool.json");
    symlink("/tmp/tidepool-31001/p/pool.json", &link).unwrap();
    lchown(&link, Some(BOB), Some(BOB)).unwrap();
    let open = node.file_of("open/pool.json", ALICE, &file);
    fs::set_permissions(&open, Permissions::from_mode(0o666)).unwrap();
    // What would keep every program that is started with it waiting, or fill its memory.
    for name in ["fifo", "large"] {
        node.dir_of(name, ALICE, 0o700);
    }
    assert!(Command::new("mkfifo").arg(node.tmp("fifo/pool.json")).status().unwrap().success());
    chown(node.tmp("fifo/pool.json"), Some(ALICE), Some(ALICE)).unwrap();
    let large = node.file_of("large/pool.json", ALICE, "");
    fs::File::options().write(true).open(&large).unwrap().set_len(10_000_000_000).unwrap();
    for (name, word) in [
        ("tidepool-31001/p/pool.json", "uid 31002"),
        ("linked/pool.json", "uid 31002"),
        ("open/pool.json", "0666"),
        ("fifo/pool.json", "no regular file"),
        ("large/pool.json", "more than"),
    ] {
        let mut command = node.command(ALICE, &["cp", "/tmp/x", "pool:/x"]);
        let output = command.env("TIDEPOOL_POOL", format!("/tmp/{name}")).output().unwrap();
        assert!(!output.status.success() && text(&output).contains(word), "{name}: {}", text(&output));
    }
    let reached = listener.accept();
    assert!(reached.is_err(), "somebody connected: {reached:?}");
    // Such a file of her own does lead there: the test's eyes are open.
    let own = node.file_of("own/pool.json", ALICE, &file);
    let mut command = node.command(ALICE, &["cp", "/tmp/x", "pool:/x"]);
    let mut child = command.env("TIDEPOOL_POOL", "/tmp/own/pool.json").stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + STUCK;
    while listener.accept().is_err() {
        assert!(Instant::now() < deadline, "{} leads nowhere", own.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Numbers of processes and names of directories in a record mean nothing by themselves, even in one of the user's own.
#[test]
fn a_record_is_taken_no_further_than_it_is_true() {
    let Some(node) = Node::new("a_record_is_taken_no_further_than_it_is_true") else { return };
    node.make_store();
    let (mine, other) = (node.start("mine", "1"), node.start("other", "2"));
    let daemon = other.daemon();
    let (own, store) = (mine.daemon(), node.tmp("store/tidepool-other/d0/tidepool-store.json"));
    // The number was given to another process since: one of hers, of a program of ours.
    let start = mine.number("daemon_starts");
    mine.change(&format!("[{own}]"), &format!("[{daemon}]"));
    mine.change("/tmp/store/tidepool-mine/d0", "/tmp/store/tidepool-other/d0");
    assert_ne!(start, 0);
    let agent = other.number("agent");
    mine.change(&format!("\"agent\":{}", mine.number("agent")), &format!("\"agent\":{agent}"));
    let said = node.ok(ROOT, &["node-clean", "--job", "1", "--as", "31001:31001"]);
    assert!(said.contains("removed pool 'mine'"), "{said}");
    assert!(lives(daemon) && lives(agent), "another pool's processes were ended");
    assert!(store.is_file(), "another pool's store is gone");
    // A record of the machine's life before: its numbers are nobody's, however true they look.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = other.text();
    other.change(boot.trim(), "11111111-2222-3333-4444-555555555555");
    other.change("/tmp/store/tidepool-other/d0", "/tmp/store/nowhere");
    fs::create_dir(node.tmp("aside")).unwrap();
    fs::copy(&other.path, node.tmp("aside/node-0.json")).unwrap();
    node.ok(ROOT, &["node-clean", "--job", "2", "--as", "31001:31001"]);
    assert!(lives(daemon) && store.is_file());
    // What was moved away is hers to end, as the record was before.
    node.dir_of("tidepool-31001/other", ALICE, 0o700);
    node.file_of("tidepool-31001/other/node-0.json", ALICE, &text);
    node.ok(ALICE, &["node-clean", "--job", "2"]);
    assert!(!lives(daemon) && !store.exists());
    // Nothing knows of this one any more.
    let orphan = rustix::process::Pid::from_raw(own as i32).unwrap();
    rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();
}

/// Records that would keep a reader waiting or fill its memory, in a directory of the user's own.
#[test]
fn a_record_that_hangs_or_never_ends_stops_nothing_but_its_own_removal() {
    let Some(node) = Node::new("a_record_that_hangs_or_never_ends_stops_nothing_but_its_own_removal") else {
        return;
    };
    node.make_store();
    let well = node.start("well", "5");
    let daemon = well.daemon();
    let base = "tidepool-31001";
    for name in ["fifo", "zero", "large", "old", "bobs"] {
        node.dir_of(&format!("{base}/{name}"), ALICE, 0o700);
    }
    let at = |name: &str| node.tmp(base).join(name).join("node-0.json");
    let made = Command::new("mkfifo").arg(at("fifo")).status().unwrap();
    assert!(made.success());
    symlink("/dev/zero", at("zero")).unwrap();
    fs::File::create(at("large")).unwrap().set_len(10_000_000_000).unwrap();
    fs::write(at("old"), r#"{"boot_id":"b","job":"5","agent":1,"daemons":[],"stores":[]}"#).unwrap();
    for name in ["fifo", "large", "old"] {
        chown(at(name), Some(ALICE), Some(ALICE)).unwrap();
    }
    lchown(at("zero"), Some(ALICE), Some(ALICE)).unwrap();
    node.file_of(&format!("{base}/bobs/node-0.json"), BOB, &well.text());
    let output = node.run(ROOT, &["node-clean", "--job", "5", "--as", "31001:31001"]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(113), "{said}");
    for (name, word) in [
        ("fifo", "no regular file"),
        ("zero", "symbolic link"),
        ("large", "more than"),
        ("old", "version"),
        ("bobs", "uid 31002"),
    ] {
        let line = said.split(';').find(|part| part.contains(&format!("/{name}/node-0.json")));
        assert!(line.is_some_and(|line| line.contains(word)), "{name}: {said}");
        assert!(node.tmp(base).join(name).is_dir(), "{name} was removed");
    }
    assert!(said.contains("removed pool 'well'") && !lives(daemon), "{said}");
    for args in [&["pool", "list"][..], &["doctor"]] {
        node.run(ALICE, args);
    }
    let output = node.run(ALICE, &["pool", "stop", "--pool", "fifo"]);
    assert_eq!(output.status.code(), Some(113), "{}", text(&output));
    // The sparse file is somebody's to remove.
    fs::remove_file(at("large")).unwrap();
}

/// Bob has the name on another node: there the agent says so, and the pool goes elsewhere on all of them.
#[test]
fn a_name_that_is_taken_on_another_node_is_passed_by_on_all() {
    let Some(node) = Node::new("a_name_that_is_taken_on_another_node_is_passed_by_on_all") else { return };
    node.make_store();
    // What the agent says there.
    node.dir_of("tidepool-31001-7", BOB, 0o755);
    let plan = format!(
        r#"{{"name":"p","dir":"/tmp/tidepool-31001-7/p","nodes":[{{"host":"n1","daemons":[],"stores":[],"nic":""}}],
            "tree":{{"fan_out":0,"hosts":[],"ssh":[]}},"alone":"","pool":"{OTHER_POOL}","store":"/tmp/store"}}"#
    );
    let mut agent = node.command(ALICE, &["node", "--node", "0"]);
    let mut agent = agent.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = plan.replace('\n', "") + "\n";
    std::io::Write::write_all(&mut agent.stdin.take().unwrap(), line.as_bytes()).unwrap();
    let said = String::from_utf8(agent.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.contains(r#""taken":true"#) && said.contains("uid 31002"), "{said}");
    // A way to the other node on which it says this of the first two names.
    let ssh = node.file_of("ssh", ALICE, &SSH.replace("SAID", said.trim()));
    fs::set_permissions(&ssh, Permissions::from_mode(0o755)).unwrap();
    let start = ["pool", "start", "--name", "p", "--hosts", "127.0.0.1", "--client", "preload"];
    let output = node.command(ALICE, &start).env("TIDEPOOL_SSH", "/tmp/ssh").output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("warning") && said.contains("uid 31002"), "{said}");
    assert!(node.tmp("tidepool-31001-2/p/pool.json").is_file(), "{said}");
    for left in ["tidepool-31001/p", "tidepool-31001-1/p"] {
        assert!(!node.tmp(left).exists(), "{left} is left");
    }
    node.ok(ALICE, &["pool", "stop", "--pool", "p"]);
    // In a directory that she has named herself she stays.
    let mut command = node.command(ALICE, &start);
    command.env("TIDEPOOL_SSH", "/tmp/ssh").env("TIDEPOOL_RUNTIME", "/tmp/tidepool-31001");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(110), "{}", text(&output));
    assert!(text(&output).contains("uid 31002"), "{}", text(&output));
}

/// In the place of ssh: `ssh WORDS... HOST COMMAND`.
const SSH: &str = r#"#!/bin/sh
while [ "$1" != 127.0.0.1 ]; do shift; done
shift
read -r line
case $line in
    *'"dir":"/tmp/tidepool-31001/'* | *'"dir":"/tmp/tidepool-31001-1/'*) echo 'SAID'; cat >/dev/null; exit ;;
esac
{ echo "$line"; cat; } | sh -c "$*"
"#;

/// The script that Slurm runs as root, whole.
#[test]
fn the_epilog_waits_for_nobody_on_another_users_word() {
    let Some(node) = Node::new("the_epilog_waits_for_nobody_on_another_users_word") else { return };
    node.make_store();
    node.dir_of("tidepool-31001", BOB, 0o755);
    node.dir_of("tidepool-31001/x", BOB, 0o755);
    let daemon = node.start("job-9", "9").daemon();
    let other = node.start("other", "8");
    node.file_of("tidepool-31001/x/node-0.json", BOB, &other.text().replace(r#""job":"8""#, r#""job":"9""#));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/slurm/epilog");
    let mut command = node.program(ROOT, Path::new("sh"), &[&script.display().to_string()]);
    command.env("TIDEPOOL", env!("CARGO_BIN_EXE_tidepool")).env("TIDEPOOL_HOOKS_CONF", "/nowhere");
    command.env("SLURM_JOB_ID", "9").env("SLURM_JOB_UID", "31001").env("SLURM_JOB_GID", "31001");
    command.env("TIDEPOOL_JOBS", "/nowhere");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(!lives(daemon), "the job's own pool is left: {}", text(&output));
    assert!(lives(other.daemon()) && node.tmp("store/tidepool-other/d0").is_dir(), "{}", text(&output));
    node.ok(ALICE, &["pool", "stop", "--pool", "other"]);
}

/// A stager of Alice's own: where Bob has taken the name, and what she finds then.
#[test]
fn a_users_stager_goes_elsewhere_and_is_found_there() {
    let Some(node) = Node::new("a_users_stager_goes_elsewhere_and_is_found_there") else { return };
    let taken = node.dir_of("tidepool-31001", BOB, 0o777);
    node.dir_of("tidepool-31001/.stager", BOB, 0o777);
    node.dir_of("home", ALICE, 0o700);
    let staged = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("tidepool-staged");
    let log = fs::File::create(node.sandbox.path("staged.log")).unwrap();
    let mut command = node.program(ALICE, &staged, &[]);
    let mut stager = command.env("HOME", "/tmp/home").stderr(log).stdout(Stdio::null()).spawn().unwrap();
    let socket = node.tmp("tidepool-31001-1/.stager/user.socket");
    let deadline = Instant::now() + STUCK;
    while !socket.exists() {
        assert!(
            Instant::now() < deadline,
            "{}",
            fs::read_to_string(node.sandbox.path("staged.log")).unwrap()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child_of(stager.id());
    let leash = Leash::on(pid as u32);
    // Bob listens as well, at the name that comes first.
    let bob = Listener::of(&node, BOB, "tidepool-31001/.stager/user.socket");
    let said = node.ok(ALICE, &["stage", "dataspace", "list"]);
    assert!(!said.contains("31002"), "{said}");
    assert!(fs::read_to_string(node.sandbox.path("staged.log")).unwrap().contains("uid 31002"));
    assert_eq!(bob.heard(), 0);
    drop(leash);
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    stager.wait().unwrap();
    assert!(taken.is_dir());
}

/// The last process of a line of wrappers that each start one.
fn child_of(pid: u32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    match children.split_whitespace().next().and_then(|child| child.parse().ok()) {
        Some(child) => child_of(child),
        None => pid as i32,
    }
}

/// Somebody who listens at a socket and notes what he is told.
struct Listener {
    over: Arc<AtomicBool>,
    heard: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn of(node: &Node, uid: u32, name: &str) -> Listener {
        let (over, heard, path) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), node.tmp(name));
        let (told, told_over) = (Arc::clone(&heard), Arc::clone(&over));
        let (ready, is_ready) = channel();
        let thread = std::thread::spawn(move || {
            // The kernel tells clients who this thread was when it began to listen.
            let id = Uid::from_raw(uid);
            set_thread_res_uid(id, id, id).unwrap();
            let listener = UnixListener::bind(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
            listener.set_nonblocking(true).unwrap();
            ready.send(()).unwrap();
            while !told_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                let Ok((mut guest, _)) = listener.accept() else { continue };
                guest.set_nonblocking(false).unwrap();
                guest.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                told.fetch_add(guest.read(&mut [0; 4096]).unwrap_or(0), Ordering::Relaxed);
            }
        });
        is_ready.recv_timeout(STUCK).expect("he listens");
        Listener { over, heard, thread: Some(thread) }
    }

    /// Bytes.
    fn heard(&self) -> usize {
        self.heard.load(Ordering::Relaxed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// In a directory that is nobody's fault: what listens there is looked at before anything is said.
#[test]
fn a_stager_of_another_users_is_asked_nothing() {
    let Some(node) = Node::new("a_stager_of_another_users_is_asked_nothing") else { return };
    let bob = Listener::of(&node, BOB, "node.socket");
    for uid in [ALICE, ROOT] {
        for args in [
            &["stage", "--socket", "/tmp/node.socket", "dataspace", "list"][..],
            &["stage", "--socket", "/tmp/node.socket", "list"],
        ] {
            let output = node.run(uid, args);
            assert_eq!(output.status.code(), Some(121), "{}", text(&output));
            assert!(text(&output).contains("uid 31002"), "{}", text(&output));
        }
    }
    assert_eq!(bob.heard(), 0, "he was told something");
    // He himself speaks to it, so it does listen.
    let mut own = node.command(BOB, &["stage", "--socket", "/tmp/node.socket", "list"]);
    let mut own = own.stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + STUCK;
    while bob.heard() == 0 {
        assert!(Instant::now() < deadline, "nobody was heard");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(bob);
    own.wait().unwrap();
}

/// Directories that root's stager would share with somebody.
#[test]
fn roots_stager_refuses_directories_with_another_hand_in_them() {
    let Some(node) = Node::new("roots_stager_refuses_directories_with_another_hand_in_them") else { return };
    let staged = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("tidepool-staged");
    node.dir_of("good", 0, 0o755);
    node.dir_of("bobs", BOB, 0o755);
    node.dir_of("bobs/run", 0, 0o755);
    node.dir_of("open", 0, 0o777);
    node.dir_of("sticky", 0, 0o1777);
    symlink("/tmp/good", node.tmp("linked")).unwrap();
    lchown(node.tmp("linked"), Some(BOB), Some(BOB)).unwrap();
    node.dir_of("tasks", 0, 0o711);
    node.dir_of("tasks/tasks", BOB, 0o755);
    let (good, bob) = ("/tmp/good", "uid 31002");
    for (state, control, jobs, word) in [
        ("/tmp/bobs", good, good, bob),
        ("/tmp/bobs/run", good, good, bob),
        ("/tmp/linked", good, good, bob),
        ("/tmp/linked/deeper", good, good, bob),
        ("/tmp/open", good, good, "0777"),
        ("/tmp/tasks", good, good, bob),
        (good, "/tmp/bobs", good, bob),
        (good, "/tmp/bobs/run", good, bob),
        (good, "/tmp/bobs/new", good, bob),
        (good, "/tmp/open", good, "0777"),
        (good, "/tmp/sticky", good, "1777"),
        (good, "/tmp/linked", good, bob),
        (good, good, "/tmp/bobs", bob),
        (good, good, "/tmp/sticky", "1777"),
    ] {
        let config = format!(
            "state-dir = \"{state}\"\ncontrol-socket = \"{control}/c.socket\"\nuser-socket = \"{good}/u.socket\"\njobs-dir = \"{jobs}\"\n"
        );
        node.file_of("stager.toml", 0, &config);
        let output = node.program(ROOT, &staged, &["--config", "/tmp/stager.toml"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{config}{}", text(&output));
        assert!(text(&output).contains(word), "{config}{}", text(&output));
    }
    assert!(!node.tmp("bobs/new").exists());
}

/// Whoever mounts FUSE says who owns what there, so nothing on it proves anything: a directory of pools least of all.
#[test]
fn a_directory_that_somebodys_process_shows_is_not_used() {
    let sandbox = Sandbox::new();
    let started = sandbox
        .tidepool(&["pool", "start", "--name", "p", "--nodes", "1", "--client", "fuse"])
        .output()
        .unwrap();
    if !started.status.success() {
        eprintln!(
            "SKIPPED: a_directory_that_somebodys_process_shows_is_not_used needs FUSE: {}",
            text(&started)
        );
        return;
    }
    let shown = sandbox.runtime().join("p/mnt/rt");
    fs::create_dir(&shown).unwrap();
    fs::set_permissions(&shown, Permissions::from_mode(0o700)).unwrap();
    for place in [shown.clone(), shown.join("new")] {
        let mut start =
            sandbox.tidepool(&["pool", "start", "--name", "q", "--nodes", "1", "--client", "preload"]);
        let output = start.env("TIDEPOOL_RUNTIME", &place).output().unwrap();
        assert_eq!(output.status.code(), Some(110), "{}", text(&output));
        assert!(text(&output).contains("type FUSE"), "{}", text(&output));
    }
    fs::create_dir(shown.join("q")).unwrap();
    fs::write(shown.join("q/node-0.json"), "{}").unwrap();
    let mut list = sandbox.tidepool(&["pool", "list"]);
    let said = text(&list.env("TIDEPOOL_RUNTIME", &shown).output().unwrap());
    assert!(said.contains("type FUSE") && !said.contains("incomplete"), "{said}");
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    sandbox.assert_nothing_left("after a pool in a pool");
}
