//! What users try against root's stager by way of their own tasks: each user's worker is his to kill, and nobody else's.

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::{Daemon, children, copy, write};
use tidepool_stage_client::{DataspaceSpec, OnBehalf, Stager, TaskSpec, TaskState, TaskStatus};

const ALICE: u32 = 31_001;
const BOB: u32 = 31_002;
/// Bytes per second of a task that lasts as long as a test.
const SLOW: u64 = 128 << 10;

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        println!("SKIPPED: needs root, to have tasks of several users");
    }
    root
}

/// Runs a program as a user.
fn of(uid: u32, words: &[&str]) -> Output {
    let id = uid.to_string();
    let output = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .args(words)
        .output()
        .expect("setpriv is there");
    println!("{words:?} as {uid}: {}{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

fn submit(stager: &Stager, uid: u32, spec: TaskSpec) -> u32 {
    let on_behalf = Some(OnBehalf { uid, gid: uid, job: 0 });
    stager.submit(&TaskSpec { on_behalf, ..spec }).expect("the task is taken")
}

fn wait(stager: &Stager, id: u32) -> TaskStatus {
    stager.wait(&[id], false, Some(Duration::from_secs(60))).expect("it ends").remove(0)
}

/// A large file of a user's, and a copy of it that is under way.
fn slow(daemon: &Daemon, stager: &Stager, uid: u32) -> u32 {
    let name = format!("big{uid}");
    let path = daemon.path(&format!("a/{name}"));
    write(&path, &vec![7; 32 << 20]);
    chown(&path, Some(uid), Some(uid)).unwrap();
    let spec = TaskSpec { bandwidth: SLOW, ..copy(&format!("a://{name}"), &format!("b://{name}")) };
    let target = daemon.path("b");
    let made = || std::fs::read_dir(&target).unwrap().count();
    let before = made();
    let id = submit(stager, uid, spec);
    let until = Instant::now() + Duration::from_secs(20);
    while made() == before {
        assert!(Instant::now() < until, "task {id} has not begun");
        std::thread::sleep(Duration::from_millis(20));
    }
    id
}

fn status_of(pid: u32, what: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{what}:")));
    line.unwrap_or_else(|| panic!("no {what} in {status}")).trim().into()
}

/// The worker of a user.
fn worker(daemon: &Daemon, uid: u32) -> u32 {
    let own = |pid: &u32| status_of(*pid, "Uid").split_whitespace().all(|id| id == uid.to_string());
    children(daemon.pid()).into_iter().find(own).expect("the user has a worker")
}

/// Whether these bytes are in a process's memory.
fn holds(pid: u32, what: &[u8]) -> bool {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let writable =
        maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|how| how.starts_with("rw")));
    let ranges = writable.filter_map(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    let mut found = false;
    for (start, end) in ranges {
        let mut bytes = vec![0; (end - start) as usize];
        // What is not there any more holds nothing.
        let read = memory.read_at(&mut bytes, start).unwrap_or(0);
        found |= bytes[..read].windows(what.len()).any(|window| window == what);
    }
    found
}

#[test]
fn a_worker_is_its_user_for_good_and_has_nothing_else() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    slow(&daemon, &stager, ALICE);
    let pid = worker(&daemon, ALICE);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status_of(pid, set), 16), Ok(0), "{set}");
    }
    assert!(status_of(pid, "Gid").split_whitespace().all(|id| id == ALICE.to_string()));
    assert_eq!((status_of(pid, "NoNewPrivs"), status_of(pid, "Seccomp")), ("1".into(), "2".into()));
    // Nothing of the stager's came along: no socket of its own but the pipe, no journal of the stager.
    let state = daemon.path("run");
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let Ok(to) = std::fs::read_link(fd.unwrap().path()) else { continue };
        let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let known = ["workers.lock"].contains(&&*name)
            || name.ends_with(".journal") && to.parent().unwrap().ends_with("tasks");
        assert!(!to.starts_with(&state) || known, "it has {}", to.display());
    }
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(environment.is_empty(), "{}", String::from_utf8_lossy(&environment));
    // No thread of root's process has ever become the user.
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let ids = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert!(ids.split_whitespace().skip(1).all(|id| id == "0"), "{ids}");
    }
}

/// Whoever starts the stager may have files open that are root's alone, and a user can take what his worker has.
#[test]
fn what_the_starter_had_open_is_no_workers() {
    if !is_root() {
        return;
    }
    let secret = tempfile::NamedTempFile::new().unwrap();
    let script = format!("exec 9< {}; exec \"$@\"", secret.path().display());
    let prefix = ["sh", "-c", &script, "sh"].map(String::from);
    let daemon = Daemon::made(|_| String::new(), &prefix);
    let has = |pid: u32| {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        all.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|to| to == secret.path())
    };
    assert!(has(daemon.pid()), "it was not handed on at all");
    let stager = daemon.control();
    slow(&daemon, &stager, ALICE);
    assert!(!has(worker(&daemon, ALICE)), "the worker has it");
}

/// What goes to another stager is done by the worker as well, which does not have the secret.
#[test]
fn copies_to_other_nodes_are_the_workers_too() {
    if !is_root() {
        return;
    }
    let at = tidepool_testkit::free_address().to_string();
    let far = Daemon::with_peers(&at);
    let near = Daemon::made(|dir| support::listening(dir, "127.0.0.1:0"), &[]);
    let path = near.path("a/big");
    write(&path, &vec![7; 32 << 20]);
    chown(&path, Some(ALICE), Some(ALICE)).unwrap();
    let stager = near.control();
    let dst = Some(support::remote("b://big", &at));
    // As long as the looks take, however busy the machine is; what is resumed goes on at full speed.
    let mut source = stager.dataspaces().unwrap().remove(0).dataspace;
    assert_eq!(source.name, "a://");
    source.bandwidth = SLOW;
    stager.update_dataspace(&source).unwrap();
    let id = submit(&stager, ALICE, TaskSpec { dst, ..copy("a://big", "b://big") });
    // Its first bytes are there as soon as it has connections.
    let until = Instant::now() + Duration::from_secs(20);
    while std::fs::read_dir(far.path("b")).unwrap().count() == 0 {
        assert!(Instant::now() < until, "it has not begun: {:?}", stager.status(id));
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = worker(&near, ALICE);
    for task in std::fs::read_dir(format!("/proc/{}/task", near.pid())).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let ids = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert!(ids.split_whitespace().skip(1).all(|id| id == "0"), "{ids}");
    }
    // It was given connections, and nothing that proves one.
    let secret = [0x5a; 32];
    for (of, pid) in [("copies", pid), ("serves", worker(&far, ALICE))] {
        assert!(!holds(pid, &secret), "the worker that {of} has the secret");
    }
    assert!(holds(near.pid(), &secret), "it is found where it is");
    // And when it is killed, nothing else is.
    assert!(of(ALICE, &["kill", "-9", &pid.to_string()]).status.success());
    assert_eq!(wait(&stager, id).state, TaskState::Failed);
    stager.update_dataspace(&DataspaceSpec { bandwidth: 0, ..source }).unwrap();
    stager.resume(id).unwrap();
    let ended = wait(&stager, id);
    assert_eq!(ended.state, TaskState::Finished, "{ended:?}");
    assert_eq!(std::fs::read(far.path("b/big")).unwrap(), vec![7; 32 << 20]);
    assert_eq!(std::fs::metadata(far.path("b/big")).unwrap().uid(), ALICE);
}

#[test]
fn roots_own_tasks_have_a_worker_with_few_capabilities() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    slow(&daemon, &daemon.control(), 0);
    let pid = worker(&daemon, 0);
    // chown, dac_override, dac_read_search, fowner, fsetid, sys_ptrace, mknod, setfcap: none that changes ids or mounts.
    let wanted = [0, 1, 2, 3, 4, 19, 27, 31].iter().fold(0u64, |set, bit| set | 1 << bit);
    assert_eq!(u64::from_str_radix(&status_of(pid, "CapEff"), 16), Ok(wanted));
    assert_eq!(u64::from_str_radix(&status_of(pid, "CapBnd"), 16), Ok(wanted));
}

/// `kill -9` of every thread and process that a user can reach.
#[test]
fn a_user_kills_his_own_worker_and_nothing_else() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    let (alices, bobs) = (slow(&daemon, &stager, ALICE), slow(&daemon, &stager, BOB));
    let mut threads: Vec<String> = std::fs::read_dir(format!("/proc/{}/task", daemon.pid()))
        .unwrap()
        .map(|task| task.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    threads.push(worker(&daemon, BOB).to_string());
    for thread in &threads {
        assert!(!of(ALICE, &["kill", "-9", thread]).status.success(), "alice killed {thread}");
        assert!(!of(ALICE, &["prlimit", "--pid", thread, "--nofile=8"]).status.success());
    }
    let own = worker(&daemon, ALICE).to_string();
    assert!(of(ALICE, &["kill", "-9", &own]).status.success(), "it is hers");
    let ended = wait(&stager, alices);
    assert_eq!(ended.state, TaskState::Failed);
    assert!(
        ended.refusal.detail.contains("signal 9") && ended.refusal.detail.contains("resume"),
        "{ended:?}"
    );
    assert_eq!(stager.status(bobs).unwrap().state, TaskState::Running);
    // With what had been copied before.
    stager.resume(alices).unwrap();
    assert_ne!(worker(&daemon, BOB).to_string(), own);
    let again = stager.status(alices).unwrap();
    assert!(again.state != TaskState::Failed, "{again:?}");
    for id in [alices, bobs] {
        stager.cancel(id).unwrap();
        assert_eq!(wait(&stager, id).state, TaskState::Cancelled);
    }
}

/// Whoever traces a worker speaks to the supervisor in its place, and reads what it has in its memory.
#[test]
fn a_user_cannot_trace_his_worker() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    slow(&daemon, &daemon.control(), ALICE);
    let pid = worker(&daemon, ALICE).to_string();
    const SEIZE: &str = "import ctypes, sys, os\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        sys.exit(0 if libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0 else 7)";
    assert_eq!(of(ALICE, &["/usr/bin/python3", "-c", SEIZE, &pid]).status.code(), Some(7));
    assert!(!of(ALICE, &["cat", &format!("/proc/{pid}/environ")]).status.success());
    assert!(!of(ALICE, &["head", "-c1", &format!("/proc/{pid}/mem")]).status.success());
    assert!(!of(ALICE, &["ls", &format!("/proc/{pid}/fd/")]).status.success());
}

#[test]
fn nothing_of_roots_state_is_a_users_to_write() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    slow(&daemon, &daemon.control(), ALICE);
    let state = daemon.path("run");
    let mut journals = 0;
    let mut dirs = vec![state.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let meta = std::fs::symlink_metadata(entry.path()).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (0, 0), "{}", entry.path().display());
            let is_socket = !meta.is_file() && !meta.is_dir();
            assert!(is_socket || meta.permissions().mode() & 0o022 == 0, "{}", entry.path().display());
            journals += usize::from(entry.path().to_string_lossy().ends_with(".journal") && dir != state);
            if meta.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    assert_eq!(journals, 1, "the copy has one");
    let tasks = state.join("tasks");
    for script in
        ["ls $0", "mkfifo $0/1.journal", "rm -f $0/1.journal", "ln -sf /dev/zero $0/1.journal", "mkdir $0/d"]
    {
        assert!(!of(ALICE, &["sh", "-c", script, tasks.to_str().unwrap()]).status.success(), "{script}");
    }
}

/// One that its user has stopped is ended after half a minute: it holds what others wait for no longer.
#[test]
fn a_stopped_worker_is_ended() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::with("workers = 1");
    let stager = daemon.control();
    let alices = slow(&daemon, &stager, ALICE);
    let pid = worker(&daemon, ALICE).to_string();
    assert!(of(ALICE, &["kill", "-STOP", &pid]).status.success());
    let ended = wait(&stager, alices);
    assert_eq!(ended.state, TaskState::Failed);
    assert!(ended.refusal.detail.contains("has not answered"), "{ended:?}");
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

/// A task that runs again must find nobody at work for the one before.
#[test]
fn workers_do_not_outlive_their_supervisor() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start();
    let stager = daemon.control();
    let id = slow(&daemon, &stager, ALICE);
    let pid = worker(&daemon, ALICE);
    // Even one that cannot hear that the other side of its pipe is gone.
    assert!(of(ALICE, &["kill", "-STOP", &pid.to_string()]).status.success());
    daemon.kill();
    daemon.launch();
    assert!(!Path::new(&format!("/proc/{pid}/exe")).exists(), "it had ended before the new one began");
    assert_eq!(daemon.control().status(id).unwrap().state, TaskState::Running);
}

/// A user can stop his worker at the moment when it has become his, and has not asked yet to end with its supervisor.
#[test]
fn a_worker_that_was_stopped_too_early_keeps_no_stager_from_starting() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.kill();
    let script = format!(
        "exec 9>>'{}'; flock -s 9; exec setpriv --reuid {ALICE} --regid {ALICE} --clear-groups sleep 600",
        daemon.path("run/workers.lock").display()
    );
    let mut left = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let pid = left.id();
    let until = Instant::now() + Duration::from_secs(20);
    while !status_of(pid, "Uid").starts_with(&ALICE.to_string()) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(of(ALICE, &["kill", "-STOP", &pid.to_string()]).status.success());
    // What has nothing to do with it lives on, also where it is stopped.
    let mut other =
        Command::new("setpriv").args(["--reuid", &ALICE.to_string(), "sleep", "600"]).spawn().unwrap();
    daemon.launch();
    assert!(left.try_wait().unwrap().is_some(), "it has the lock still");
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

/// The same beside somebody who has something open in a file system that never answers.
#[test]
fn a_file_system_that_hangs_keeps_no_stager_from_starting() {
    const HUNG: &str = "import ctypes, os, sys, time
fd = os.open('/dev/fuse', os.O_RDWR)
options = 'fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other' % fd
failed = ctypes.CDLL(None, use_errno=True).mount(b'hung', sys.argv[1].encode(), b'fuse', 0, options.encode())
print(os.strerror(ctypes.get_errno()) if failed else 'mounted', flush=True)
time.sleep(600)";
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.kill();
    let (lock, dir) = (daemon.path("run/workers.lock"), daemon.path("hung"));
    std::fs::create_dir(&dir).unwrap();
    let mut server = Command::new("python3")
        .args(["-c", HUNG, &dir.display().to_string()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let mounted = said == "mounted\n";
    if !mounted {
        println!("SKIPPED: cannot mount FUSE here: {said}");
    }
    // By path alone: nothing is asked of it.
    let open = mounted.then(|| File::options().read(true).custom_flags(libc::O_PATH).open(&dir).unwrap());
    let script = format!("exec 9>>'{}'; flock -s 9; exec sleep 600", lock.display());
    let mut left = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(format!("/proc/{}/comm", left.id())).unwrap().starts_with("sleep") {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.launch();
    assert!(left.try_wait().unwrap().is_some(), "it has the lock still");
    drop(open);
    Command::new("umount").arg("-l").arg(&dir).status().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn workers_with_nothing_to_do_end() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    for uid in [ALICE, BOB, 0] {
        let path = daemon.path(&format!("a/small{uid}"));
        write(&path, b"x");
        chown(&path, Some(uid), Some(uid)).unwrap();
        let id = submit(&stager, uid, copy(&format!("a://small{uid}"), &format!("b://small{uid}")));
        assert_eq!(wait(&stager, id).state, TaskState::Finished);
    }
    assert_eq!(children(daemon.pid()).len(), 3);
    let until = Instant::now() + Duration::from_secs(60);
    while !children(daemon.pid()).is_empty() {
        assert!(Instant::now() < until, "they stay");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Time that passes while the stager is stopped, or that a clock is set by, is nobody's silence.
#[test]
fn a_stager_that_was_stopped_ends_no_worker_for_it() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    let path = daemon.path("a/long");
    write(&path, &vec![7; 64 << 20]);
    chown(&path, Some(ALICE), Some(ALICE)).unwrap();
    // So slow that it is at work all the while.
    let id = submit(&stager, ALICE, TaskSpec { bandwidth: 1 << 20, ..copy("a://long", "b://long") });
    while stager.status(id).unwrap().state != TaskState::Running {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(2));
    let pid = worker(&daemon, ALICE);
    daemon.signal("-STOP");
    std::thread::sleep(Duration::from_secs(35));
    daemon.signal("-CONT");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(stager.status(id).unwrap().state, TaskState::Running);
    assert_eq!(worker(&daemon, ALICE), pid);
}

/// Whoever stops his worker does not keep the stager from ending.
#[test]
fn a_stager_ends_although_a_worker_is_stopped() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start();
    slow(&daemon, &daemon.control(), ALICE);
    let pid = worker(&daemon, ALICE).to_string();
    assert!(of(ALICE, &["kill", "-STOP", &pid]).status.success());
    daemon.signal("-TERM");
    assert!(daemon.wait_gone().success());
    assert!(!Path::new(&format!("/proc/{pid}/exe")).exists());
}
