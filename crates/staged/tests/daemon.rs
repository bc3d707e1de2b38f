//! The stager as a whole: the real program, real files, real kills.

mod support;

use std::os::unix::fs::symlink;
use support::{Daemon, copy, done, local, resource, well, write};
use tidepool_stage_client::{Code, Command, JobSpec, Op, Stager, TaskSpec, TaskState};

#[test]
fn what_makes_no_sense_is_no_internal_error() {
    let daemon = Daemon::start();
    let stager = daemon.control();
    write(&daemon.path("a/dir/x"), b"x");
    for (from, to) in [("a://dir/x", "a://dir/x"), ("a://dir", "a://dir/in/it"), ("a://dir", "a://dir")] {
        let status = done(&stager, &copy(from, to));
        assert_eq!(status.state, TaskState::Failed, "{from} {to}: {status:?}");
        assert_eq!((status.refusal.code, status.refusal.errno), (Code::BAD_ARGS, 0), "{status:?}");
    }
}

#[test]
fn a_file_and_a_tree_are_copied() {
    let daemon = Daemon::start();
    write(&daemon.path("a/file"), b"hello");
    write(&daemon.path("a/tree/x/y"), &[7; 100_000]);
    symlink("x/y", daemon.path("a/tree/link")).unwrap();
    let stager = daemon.control();
    let status = well(&stager, &copy("a://file", "b://new/name"));
    assert_eq!((status.bytes_done, status.files_done, status.total_known), (5, 1, true));
    assert_eq!(std::fs::read(daemon.path("b/new/name")).unwrap(), b"hello");
    let status = well(&stager, &copy("a://tree", "b://out"));
    assert_eq!((status.bytes_done, status.files_done), (100_000, 2));
    assert_eq!(std::fs::read(daemon.path("b/out/x/y")).unwrap(), vec![7; 100_000]);
    assert_eq!(std::fs::read_link(daemon.path("b/out/link")).unwrap().to_str(), Some("x/y"));
    // The root may be written as such.
    well(&stager, &copy("a:///tree/x", "b:///root/"));
    assert!(daemon.path("b/root/x/y").exists());
    // Into a directory, under its own name.
    well(&stager, &copy("a://tree", "b://into/"));
    assert!(daemon.path("b/into/tree/x/y").exists());
    well(&stager, &copy("a://file", "b://into/"));
    assert!(daemon.path("b/into/file").exists());
    // Nothing is left of finished tasks.
    assert_eq!(std::fs::read_dir(daemon.path("run/tasks")).unwrap().count(), 0);
}

/// Those of /proc say that they are empty; a small one goes without the engine elsewhere.
#[test]
fn files_that_do_not_tell_their_length_are_copied_whole() {
    let space = |name: &str, mount: &str| {
        format!("[[dataspace]]\nname = \"{name}://\"\nkind = \"local\"\nmount = \"{mount}\"\n")
    };
    let daemon = Daemon::with(&(space("proc", "/proc") + &space("sys", "/sys/devices/system/cpu")));
    let stager = daemon.control();
    for (from, path) in [
        ("proc://version", "/proc/version"),
        ("proc://filesystems", "/proc/filesystems"),
        ("sys://online", "/sys/devices/system/cpu/online"),
    ] {
        let status = well(&stager, &copy(from, "b://copy"));
        let (copied, real) = (std::fs::read(daemon.path("b/copy")).unwrap(), std::fs::read(path).unwrap());
        assert!(copied == real && !real.is_empty(), "{from}: {} bytes", copied.len());
        assert_eq!((status.bytes_done, status.files_done), (real.len() as u64, 1), "{from}");
    }
    let status = done(&stager, &copy("proc://sys/kernel/random", "b://dir"));
    assert_eq!(std::fs::read(daemon.path("b/dir/boot_id")).unwrap().len(), 37, "{status:?}");
}

/// Whatever way a task goes: one small file, a large one, a tree, a move.
#[test]
fn no_task_replaces_a_device_a_fifo_or_a_socket() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let daemon = Daemon::start();
    let stager = daemon.control();
    write(&daemon.path("a/small"), b"x");
    write(&daemon.path("a/large"), &vec![7; 17 << 20]);
    write(&daemon.path("a/tree/fifo"), b"x");
    let node = |name: &str, kind, dev| mknodat(CWD, daemon.path(name), kind, Mode::from_raw_mode(0o666), dev);
    node("b/fifo", FileType::Fifo, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(daemon.path("b/socket")).unwrap());
    let mut names = vec!["fifo", "socket"];
    match node("b/null", FileType::CharacterDevice, makedev(1, 3)) {
        Ok(()) => names.push("null"),
        Err(errno) => println!("SKIPPED: devices: {errno}"),
    }
    let is = |name: &str| std::fs::symlink_metadata(daemon.path("b").join(name)).unwrap();
    for name in names {
        let (before, to) = (is(name), format!("b://{name}"));
        for spec in [copy("a://small", &to), copy("a://large", &to), moved("a://small", &to)] {
            let status = done(&stager, &spec);
            assert_eq!(status.state, TaskState::Failed, "{spec:?}: {status:?}");
            assert!(status.refusal.detail.contains("a copy replaces only files and links"), "{status:?}");
            use std::os::unix::fs::MetadataExt;
            assert_eq!((is(name).ino(), is(name).rdev()), (before.ino(), before.rdev()), "{spec:?}");
        }
    }
    let status = done(&stager, &copy("a://tree", "b://"));
    assert!(status.refusal.detail.contains("fifo: replace"), "{status:?}");
    assert_eq!(std::fs::read(daemon.path("a/small")).unwrap(), b"x");
}

fn moved(from: &str, to: &str) -> TaskSpec {
    TaskSpec { op: Op::Move, ..copy(from, to) }
}

/// Threads of tasks have SCHED_IDLE, and with them those they start; who answers has not.
#[test]
fn a_gentle_stager_keeps_its_tasks_back_and_not_its_answers() {
    const IDLE: &str = "5";
    let daemon = Daemon::with("gentle = true\nworkers = 3\n");
    write(&daemon.path("a/file"), b"hello");
    well(&daemon.control(), &copy("a://file", "b://file"));
    assert_eq!(std::fs::read(daemon.path("b/file")).unwrap(), b"hello");
    // Of root's stager it is a worker that has done it.
    let does_tasks = support::children(daemon.pid()).first().copied().unwrap_or(daemon.pid());
    let idle_of = |pid: u32| {
        let mut idle = Vec::new();
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap();
            // Behind the name, which is in brackets, the policy is field 41 of all.
            if stat.rsplit_once(") ").unwrap().1.split(' ').nth(41 - 3).unwrap() == IDLE {
                idle.push(thread.file_name().into_string().unwrap());
            }
        }
        idle
    };
    // The first thread answers; there are others for plans and looks.
    let idle = idle_of(does_tasks);
    assert!(idle.len() == 3 && !idle.contains(&does_tasks.to_string()), "{idle:?}, {does_tasks}");
    assert!(!idle_of(daemon.pid()).contains(&daemon.pid().to_string()));
}

#[test]
fn moves_and_removals_take_away_and_only_that() {
    let daemon = Daemon::start();
    write(&daemon.path("a/tree/x"), b"1");
    write(&daemon.path("a/other"), b"2");
    let stager = daemon.control();
    well(&stager, &TaskSpec::new(Op::Move, resource("a://tree"), Some(resource("b://moved"))));
    assert!(daemon.path("b/moved/x").exists() && !daemon.path("a/tree").exists());
    well(&stager, &TaskSpec::new(Op::Remove, resource("b://moved"), None));
    assert!(!daemon.path("b/moved").exists() && daemon.path("a/other").exists());
    let status = done(&stager, &TaskSpec::new(Op::Remove, resource("b://moved"), None));
    assert_eq!(
        (status.state, status.refusal.code, status.refusal.errno),
        (TaskState::Failed, Code::SYSTEM_ERROR, 2)
    );
}

#[test]
fn nothing_leads_out_of_a_dataspace() {
    let daemon = Daemon::start();
    write(&daemon.path("secret"), b"secret");
    symlink(daemon.path("secret"), daemon.path("a/link")).unwrap();
    symlink("..", daemon.path("a/up")).unwrap();
    let stager = daemon.control();
    for path in ["a://../secret", "a://up/secret", "a://up/"] {
        let status = done(&stager, &copy(path, "b://out"));
        assert_eq!(status.state, TaskState::Failed, "{path}: {status:?}");
    }
    for path in ["b://../out", "a://up/out"] {
        let status = done(&stager, &copy("a://link", path));
        assert_eq!(status.state, TaskState::Failed, "{path}: {status:?}");
    }
    assert!(!daemon.path("out").exists());
    // A link itself is copied as what it is.
    well(&stager, &copy("a://link", "b://link"));
    assert!(std::fs::symlink_metadata(daemon.path("b/link")).unwrap().is_symlink());
}

#[test]
fn failures_say_where_and_why() {
    let daemon = Daemon::start();
    let stager = daemon.control();
    let status = done(&stager, &copy("a://missing", "b://x"));
    assert_eq!(
        (status.state, status.refusal.code, status.refusal.errno),
        (TaskState::Failed, Code::SYSTEM_ERROR, 2)
    );
    for part in ["on ", "source a://missing", "no such file", "resume"] {
        assert!(status.refusal.detail.contains(part), "{}", status.refusal.detail);
    }
    let refused = stager.submit(&copy("z://x", "b://x")).expect_err("there is no z://");
    assert!(refused.to_string().contains("a://"), "{refused}");
}

#[test]
fn tasks_survive_kills_and_are_done_once() {
    let mut daemon = Daemon::with("workers = 1");
    let big = vec![9; 40 << 20];
    write(&daemon.path("a/big"), &big);
    let stager = daemon.control();
    let slow = TaskSpec { bandwidth: 20 << 20, ..copy("a://big", "b://big") };
    let first = stager.submit(&slow).unwrap();
    let others: Vec<u32> =
        (0..5).map(|n| stager.submit(&copy("a://big", &format!("b://copy{n}"))).unwrap()).collect();
    std::thread::sleep(std::time::Duration::from_millis(500));
    drop(stager);
    daemon.restart();
    let stager = daemon.control();
    let ids: Vec<u32> = std::iter::once(first).chain(others).collect();
    let ended = stager.wait(&ids, false, None).unwrap();
    assert!(ended.iter().all(|status| status.state == TaskState::Finished), "{ended:?}");
    for name in ["big", "copy0", "copy1", "copy2", "copy3", "copy4"] {
        assert!(std::fs::read(daemon.path("b").join(name)).unwrap() == big, "{name}");
    }
    let left: Vec<_> =
        std::fs::read_dir(daemon.path("b")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 6, "{left:?}");
    drop(stager);
    // Ended tasks are still known after another restart.
    daemon.restart();
    assert_eq!(daemon.control().status(first).unwrap().state, TaskState::Finished);
}

#[test]
fn a_shared_file_system_is_touched_by_no_more_tasks_at_a_time_than_it_may_be() {
    let mut daemon = Daemon::made(
        |dir| {
            let pfs = dir.join("pfs");
            std::fs::create_dir(&pfs).unwrap();
            let mount = pfs.display();
            format!(
                "workers = 8\n[[dataspace]]\nname = \"pfs://\"\nkind = \"shared\"\nmount = \"{mount}\"\nstreams-max = 2\n"
            )
        },
        &[],
    );
    write(&daemon.path("pfs/in"), &[1; 1 << 20]);
    write(&daemon.path("a/out"), &[2; 1 << 20]);
    let slow = |spec| TaskSpec { bandwidth: 1 << 20, ..spec };
    let mut ids = Vec::new();
    for n in 0..4 {
        // Staged in and out: both count.
        ids.push(daemon.control().submit(&slow(copy("pfs://in", &format!("b://{n}")))).unwrap());
        ids.push(daemon.control().submit(&slow(copy("a://out", &format!("pfs://{n}")))).unwrap());
    }
    // Who leaves the shared file system alone does not wait for those who use it.
    well(&daemon.control(), &copy("a://out", "b://local"));
    let mut most = 0;
    for restarted in [false, true] {
        if restarted {
            daemon.restart();
        }
        let stager = daemon.control();
        let until = if restarted { ids.len() } else { 2 };
        loop {
            // One request: how all of them are at one moment.
            let tasks = stager.list(None, None).unwrap();
            let count =
                |state| tasks.iter().filter(|task| ids.contains(&task.id) && task.state == state).count();
            most = most.max(count(TaskState::Running));
            if count(TaskState::Finished) >= until {
                break;
            }
        }
    }
    assert_eq!(most, 2, "tasks at a time");
}

#[test]
fn a_cancelled_task_stops_and_goes_on_where_it_stopped() {
    let daemon = Daemon::start();
    write(&daemon.path("a/big"), &vec![1; 64 << 20]);
    let stager = daemon.control();
    let id = stager.submit(&TaskSpec { bandwidth: 16 << 20, ..copy("a://big", "b://big") }).unwrap();
    while stager.status(id).unwrap().bytes_total == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    stager.cancel(id).unwrap();
    let status = stager.wait(&[id], false, None).unwrap().remove(0);
    assert_eq!((status.state, status.refusal.code), (TaskState::Cancelled, Code::CANCELLED));
    assert!(!daemon.path("b/big").exists());
    stager.resume(id).unwrap();
    let status = stager.wait(&[id], false, None).unwrap().remove(0);
    assert_eq!(status.state, TaskState::Finished);
    assert!(std::fs::read(daemon.path("b/big")).unwrap() == vec![1; 64 << 20]);
}

#[test]
fn waits_end_at_their_time_and_look_a_second_time() {
    let daemon = Daemon::start();
    write(&daemon.path("a/big"), &vec![1; 32 << 20]);
    let stager = daemon.control();
    let id = stager.submit(&TaskSpec { bandwidth: 16 << 20, ..copy("a://big", "b://big") }).unwrap();
    let soon = std::time::Duration::from_millis(50);
    let error = stager.wait(&[id], false, Some(soon)).expect_err("it takes two seconds");
    assert_eq!(error.code(), Code::TIMEOUT);
    let late = std::time::Duration::from_secs(600);
    assert_eq!(stager.wait(&[id], false, Some(late)).unwrap()[0].state, TaskState::Finished);
}

#[test]
fn a_paused_stager_takes_nothing_and_a_stopped_one_says_goodbye() {
    let mut daemon = Daemon::start();
    write(&daemon.path("a/x"), b"x");
    let stager = daemon.control();
    stager.command(Command::Pause).unwrap();
    assert_eq!(stager.submit(&copy("a://x", "b://x")).expect_err("it is paused").code(), Code::PAUSED);
    stager.command(Command::Resume).unwrap();
    well(&stager, &copy("a://x", "b://x"));
    stager
        .register_dataspace(&tidepool_stage_client::DataspaceSpec {
            tracked: true,
            ..local("t://", &daemon.path("b"))
        })
        .unwrap();
    let error = stager.command(Command::Shutdown).expect_err("x lies in a tracked dataspace");
    assert_eq!(error.code(), Code::DATASPACE_NOT_EMPTY);
    assert!(error.to_string().contains('x'), "{error}");
    well(&stager, &TaskSpec::new(Op::Remove, resource("b://x"), None));
    stager.command(Command::Shutdown).unwrap();
    assert!(daemon.wait_gone().success());
    assert!(!daemon.control_socket().exists());
    assert!(Stager::connect(daemon.user_socket()).is_err());
}

#[test]
fn more_clients_than_the_usual_limit_of_descriptors_are_served() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("sh")
        .args(["-c", "ulimit -Sn 128 && exec \"$0\" --dir \"$1\"", env!("CARGO_BIN_EXE_tidepool-staged")])
        .arg(dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let socket = dir.path().join("user.socket");
    let stagers: Vec<_> = (0..300).map(|_| Stager::connect(&socket)).collect();
    let refused = stagers.iter().filter(|stager| stager.is_err()).count();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(refused, 0, "{line}");
}

/// Hooks look for a job's file instead of asking.
#[test]
fn each_registered_job_has_a_file() {
    let config = |dir: &std::path::Path| format!("jobs-dir = \"{}\"", dir.join("jobs").display());
    let mut daemon = Daemon::made(config, &[]);
    let dir = daemon.path("jobs");
    let names = || {
        let entries = std::fs::read_dir(&dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let job = |id| JobSpec { id, hosts: vec!["n0".into()], limits: Vec::new(), bandwidth: 0 };
    let stager = daemon.control();
    for id in [42, 7] {
        stager.register_job(&job(id)).unwrap();
        assert!(dir.join(id.to_string()).exists());
    }
    assert_eq!(stager.register_job(&job(42)).unwrap_err().code(), Code::JOB_EXISTS);
    assert_eq!(stager.register_job(&job(0)).unwrap_err().code(), Code::BAD_ARGS);
    assert_eq!(names(), ["42", "7"]);
    stager.unregister_job(7).unwrap();
    assert_eq!(names(), ["42"]);
    // What happened to the files while it was away is put in order.
    daemon.kill();
    std::fs::remove_file(dir.join("42")).unwrap();
    std::fs::write(dir.join("9"), "").unwrap();
    daemon.launch();
    assert_eq!(names(), ["42"]);
    // A job without its file would be overlooked: it is not registered.
    std::fs::create_dir(dir.join("8")).unwrap();
    let error = stager.register_job(&job(8)).unwrap_err();
    assert!(error.code() == Code::SYSTEM_ERROR && error.to_string().contains("jobs/8"), "{error}");
    std::fs::remove_dir(dir.join("8")).unwrap();
    stager.register_job(&job(8)).unwrap();
    let ids: Vec<u32> = stager.jobs().unwrap().iter().map(|job| job.id).collect();
    assert_eq!(ids, [8, 42]);
}
