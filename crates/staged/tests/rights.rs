//! Who may do what, with real users: uid 65534 against a stager that runs as root, processes of
//! jobs, memory of processes. Needs root; says so and passes otherwise.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use support::{Daemon, copy, local, write};
use tidepool_stage_client::{
    Code, DataspaceSpec, JobLimit, JobSpec, OnBehalf, Op, PersistOp, ProcessSpec, Resource, Stager, TaskSpec,
    TaskState, parse_place,
};

const NOBODY: u32 = 65534;
/// Says which helper this program is when it starts itself.
const HELPER: &str = "STAGER_TEST_HELPER";

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        println!("SKIPPED: needs root, to have another user's processes");
    }
    root
}

/// Starts this program again as another user, as one of the helpers below. It waits for a line.
fn helper(name: &str, uid: u32, args: &[&str]) -> Child {
    helper_in(name, (uid, uid), args)
}

fn helper_in(name: &str, (uid, gid): (u32, u32), args: &[&str]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "as_another_user", "--nocapture"])
        .env(HELPER, format!("{name} {}", args.join(" ")));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.uid(uid).gid(gid);
    command.spawn().expect("this program can start itself")
}

/// Lets a helper go on; what it said. It must end well.
fn go(mut child: Child) -> String {
    drop(child.stdin.take());
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}");
    text
}

/// Not a test but what the tests start as another user.
#[test]
fn as_another_user() {
    let Ok(what) = std::env::var(HELPER) else { return };
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let words: Vec<&str> = what.split(' ').collect();
    match words[..] {
        ["administer", socket] => administer(socket),
        ["submit", socket, from, to, expected] => submit(socket, from, to, expected),
        ["both", socket, from, to] => {
            // The number of this request lies behind those of administration, and it is none.
            let stager = Stager::connect(socket).unwrap();
            let status = stager.submit_and_wait(&copy(from, to)).expect("it is for everybody");
            assert_eq!((status.state, status.uid), (TaskState::Finished, NOBODY), "{status:?}");
            let missing = stager.submit_and_wait(&copy("a://is-not-there", to)).expect("it is taken");
            assert_eq!((missing.state, missing.refusal.errno), (TaskState::Failed, 2), "{missing:?}");
            let other = stager.submit_and_wait(&copy("other://x", to)).expect_err("it is not taken");
            assert_eq!(other.code(), Code::NO_SUCH_DATASPACE, "{other}");
            let at_once =
                stager.submit_and_wait_for(&copy(from, to), std::time::Duration::ZERO).expect("it is taken");
            assert!(!at_once.state.is_ended(), "{at_once:?}");
            let ended = stager.wait(&[at_once.id], false, None).expect("it has a number");
            assert_eq!(ended[0].state, TaskState::Finished, "{ended:?}");
        }
        ["memory", socket, to] => memory(socket, to),
        ["connect", socket] => assert!(Stager::connect(socket).is_err(), "{socket} let me in"),
        ["enter", socket] => Stager::connect(socket).and_then(|s| s.ping()).expect("the group may enter"),
        ["locked-out", socket] => {
            let error = Stager::connect(socket).map(drop).expect_err("the wrong group got in").to_string();
            assert!(error.contains("ermission denied"), "{error}");
        }
        ["crowd", socket, expected] => crowd(socket, expected.parse().unwrap()),
        _ => panic!("no helper is called {what}"),
    }
}

/// Connects until it is not let in any more, and says so while it still has all its connections.
fn crowd(socket: &str, expected: usize) {
    let connected = (0..2 * expected).map_while(|_| Stager::connect(socket).ok()).collect::<Vec<_>>();
    assert_eq!(connected.len(), expected);
    println!("crowded");
    std::io::stdout().flush().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3600));
}

#[test]
fn the_connections_of_one_user_leave_others_theirs() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::made(|_| String::new(), &["prlimit".into(), "--nofile=80:80".into()]);
    let socket = daemon.user_socket();
    let mut greedy = helper("crowd", NOBODY, &[socket.to_str().unwrap(), "20"]);
    drop(greedy.stdin.take());
    let mut said = BufReader::new(greedy.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().ends_with("crowded")));
    // Somebody else, and root.
    go(helper("enter", NOBODY - 1, &[socket.to_str().unwrap()]));
    Stager::connect(&socket).unwrap().ping().unwrap();
    greedy.kill().unwrap();
    greedy.wait().unwrap();
    go(helper("enter", NOBODY, &[socket.to_str().unwrap()]));
}

fn administer(socket: &str) {
    let stager = Stager::connect(socket).expect("the user socket is for everybody");
    let refused = [
        stager.register_dataspace(&local("etc://", "/etc".as_ref())),
        stager.register_dataspace(&local("x://", "/root/is-there-such-a-file".as_ref())),
        stager.update_dataspace(&local("a://", "/etc".as_ref())),
        stager.unregister_dataspace("a://"),
        stager.register_job(&JobSpec { id: 9, hosts: vec![], limits: vec![], bandwidth: 0 }),
        stager.unregister_job(5).map(drop),
        stager.add_process(5, ProcessSpec { pid: std::process::id() as i32, uid: NOBODY, gid: NOBODY }),
        stager.command(tidepool_stage_client::Command::Shutdown),
        stager.command(tidepool_stage_client::Command::Pause),
        stager.leftovers("a://", 10).map(drop),
        stager.jobs().map(drop),
    ];
    for (at, result) in refused.into_iter().enumerate() {
        assert_eq!(result.expect_err("it should be refused").code(), Code::NOT_PERMITTED, "request {at}");
    }
}

fn submit(socket: &str, from: &str, to: &str, expected: &str) {
    let stager = Stager::connect(socket).unwrap();
    let status = match stager.submit(&copy(from, to)) {
        Err(error) => {
            assert_eq!(error.code().0.to_string(), expected, "{error}");
            return;
        }
        Ok(id) => stager.wait(&[id], false, None).unwrap().remove(0),
    };
    let got = match status.state {
        TaskState::Finished => "finished".to_string(),
        _ => format!("errno{}", status.refusal.errno),
    };
    assert_eq!(got, expected, "{status:?}");
}

fn memory(socket: &str, to: &str) {
    let stager = Stager::connect(socket).unwrap();
    stager.allow_memory_access();
    let data: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let source = Resource::Memory { address: data.as_ptr() as u64, size: data.len() as u64 };
    let id = stager.submit(&TaskSpec::new(Op::Copy, source, Some(support::resource(to)))).unwrap();
    let status = stager.wait(&[id], false, None).unwrap().remove(0);
    assert_eq!((status.state, status.bytes_total), (TaskState::Finished, 5_000_000), "{status:?}");
    // And back, to other memory.
    let back = vec![0u8; data.len()];
    let target = Resource::Memory { address: back.as_ptr() as u64, size: back.len() as u64 };
    let id = stager.submit(&TaskSpec::new(Op::Copy, support::resource(to), Some(target))).unwrap();
    let status = stager.wait(&[id], false, None).unwrap().remove(0);
    assert_eq!(status.state, TaskState::Finished, "{status:?}");
    // The stager wrote there, which the compiler knows nothing of.
    assert!(std::hint::black_box(&back) == &data);
    // A region that is not mapped, and one that is too small.
    let nowhere = Resource::Memory { address: 4096, size: 100 };
    let small = Resource::Memory { address: back.as_ptr() as u64, size: 1000 };
    for (src, dst, errno) in [(nowhere, support::resource(to), 14), (support::resource(to), small, 27)] {
        let id = stager.submit(&TaskSpec::new(Op::Copy, src, Some(dst))).unwrap();
        let status = stager.wait(&[id], false, None).unwrap().remove(0);
        assert_eq!((status.state, status.refusal.errno), (TaskState::Failed, errno), "{status:?}");
    }
}

fn job(daemon: &Daemon, id: u32, quota: u64) {
    let limits =
        vec![JobLimit { dataspace: "a://".into(), quota }, JobLimit { dataspace: "b://".into(), quota }];
    daemon.control().register_job(&JobSpec { id, hosts: vec![], limits, bandwidth: 0 }).unwrap();
}

fn add(daemon: &Daemon, job: u32, child: &Child, uid: u32) {
    let process = ProcessSpec { pid: child.id() as i32, uid, gid: uid };
    daemon.control().add_process(job, process).unwrap();
}

fn as_user(daemon: &Daemon, from: &str, to: &str, expected: &str) {
    let socket = daemon.user_socket().display().to_string();
    let child = helper("submit", NOBODY, &[&socket, from, to, expected]);
    add(daemon, 5, &child, NOBODY);
    go(child);
}

#[test]
fn nobody_can_neither_administer_nor_reach_the_control_socket() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    job(&daemon, 5, 0);
    go(helper("administer", NOBODY, &[&daemon.user_socket().display().to_string()]));
    go(helper("connect", NOBODY, &[&daemon.control_socket().display().to_string()]));
}

/// The sockets' groups are what the paper calls `norns` and `norns-user` (section IV-B).
#[test]
fn each_socket_is_for_its_own_group() {
    if !is_root() {
        return;
    }
    // Groups that every Debian has, by the numbers that it gives them.
    let (administrators, users) = (("adm", 4), ("daemon", 1));
    let daemon = Daemon::with(&format!(
        "control-mode = \"0660\"\ncontrol-group = \"{}\"\nuser-mode = \"0660\"\nuser-group = \"{}\"\n",
        administrators.0, users.0
    ));
    let (control, user) = (daemon.control_socket(), daemon.user_socket());
    let (control, user) = (control.display().to_string(), user.display().to_string());
    for (gid, socket, expected) in [
        (administrators.1, &control, "enter"),
        (users.1, &user, "enter"),
        (users.1, &control, "locked-out"),
        (administrators.1, &user, "locked-out"),
        (NOBODY, &control, "locked-out"),
        (NOBODY, &user, "locked-out"),
    ] {
        go(helper_in(expected, (NOBODY, gid), &[socket]));
    }
}

#[test]
fn a_task_can_read_and_write_what_its_user_can_and_nothing_else() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    job(&daemon, 5, 0);
    write(&daemon.path("a/open"), b"for all");
    write(&daemon.path("a/secret"), b"for root");
    std::fs::set_permissions(daemon.path("a/secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    write(&daemon.path("a/closed/x"), b"x");
    std::fs::set_permissions(daemon.path("a/closed"), std::fs::Permissions::from_mode(0o700)).unwrap();
    symlink("/etc/shadow", daemon.path("a/shadow")).unwrap();
    as_user(&daemon, "a://open", "b://mine", "finished");
    assert_eq!(std::fs::metadata(daemon.path("b/mine")).unwrap().uid(), NOBODY);
    as_user(&daemon, "a://secret", "b://stolen", "errno13");
    as_user(&daemon, "a://closed/x", "b://stolen", "errno13");
    as_user(&daemon, "a://closed", "b://stolen", "errno13");
    as_user(&daemon, "a://open", "a://closed/mine", "errno13");
    as_user(&daemon, "a://../run/stager.journal", "b://stolen", "errno18");
    assert!(!daemon.path("b/stolen").exists());
    // Of a link that leads out, the link is copied, not what it leads to.
    as_user(&daemon, "a://shadow", "b://link", "finished");
    assert!(std::fs::symlink_metadata(daemon.path("b/link")).unwrap().is_symlink());
}

/// Small files in memory are copied in a shorter way than all others. What a task finds and may do there is a matter of its
/// own moment and user, whatever was copied before it.
#[test]
fn small_files_in_memory_are_looked_for_anew_by_each_task() {
    if !is_root() || !std::path::Path::new("/dev/shm").is_dir() {
        return;
    }
    let daemon = Daemon::start();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = |below: &str| memory.path().join(below);
    let allow =
        |path: &str, mode| std::fs::set_permissions(at(path), PermissionsExt::from_mode(mode)).unwrap();
    allow("", 0o755);
    write(&at("in/x"), b"old");
    write(&at("in/secret"), b"for root");
    allow("in/secret", 0o600);
    std::fs::create_dir(at("out")).unwrap();
    allow("out", 0o777);
    let control = daemon.control();
    let mut limits = Vec::new();
    for name in ["in", "out"] {
        control.register_dataspace(&local(&format!("{name}://"), &at(name))).unwrap();
        limits.push(JobLimit { dataspace: format!("{name}://"), quota: 0 });
    }
    control.register_job(&JobSpec { id: 5, hosts: vec![], limits, bandwidth: 0 }).unwrap();
    let as_root = |from: &str, to: &str| drop(support::well(&control, &copy(from, to)));
    // Root's own tasks come first each time: nothing of theirs is left to anybody else.
    as_root("in://secret", "out://secret");
    as_user(&daemon, "in://secret", "out://stolen", "errno13");
    as_root("in://x", "out://root");
    as_user(&daemon, "in://x", "out://mine", "finished");
    let made = std::fs::metadata(at("out/mine")).unwrap();
    assert_eq!((made.uid(), made.gid()), (NOBODY, NOBODY));
    // The roots' own rights.
    allow("in", 0o700);
    as_root("in://x", "out://root2");
    as_user(&daemon, "in://x", "out://closed", "errno13");
    allow("in", 0o755);
    allow("out", 0o755);
    as_root("in://x", "out://root3");
    as_user(&daemon, "in://x", "out://closed", "errno13");
    allow("out", 0o777);
    as_user(&daemon, "in://x", "out://open", "finished");
    assert!(!at("out/closed").exists() && !at("out/stolen").exists());
    // Another directory in the root's place.
    std::fs::rename(at("in"), at("was-in")).unwrap();
    write(&at("in/x"), b"new");
    as_root("in://x", "out://again");
    assert_eq!(std::fs::read(at("out/again")).unwrap(), b"new");
    // And another dataspace of the same name.
    control.unregister_dataspace("in://").unwrap();
    control.register_dataspace(&local("in://", &at("was-in"))).unwrap();
    as_root("in://x", "out://last");
    assert_eq!(std::fs::read(at("out/last")).unwrap(), b"old");
}

#[test]
fn everybody_may_submit_and_wait_with_one_request() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    job(&daemon, 5, 0);
    write(&daemon.path("a/x"), b"x");
    let child = helper("both", NOBODY, &[&daemon.user_socket().display().to_string(), "a://x", "b://y"]);
    add(&daemon, 5, &child, NOBODY);
    go(child);
    assert_eq!(std::fs::metadata(daemon.path("b/y")).unwrap().uid(), NOBODY);
}

#[test]
fn processes_of_no_job_and_dataspaces_of_others_are_refused() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    write(&daemon.path("a/x"), b"x");
    let socket = daemon.user_socket().display().to_string();
    let not_permitted = Code::NOT_PERMITTED.0.to_string();
    go(helper("submit", NOBODY, &[&socket, "a://x", "b://x", &not_permitted]));
    let limits = vec![JobLimit { dataspace: "a://".into(), quota: 0 }];
    daemon.control().register_job(&JobSpec { id: 5, hosts: vec![], limits, bandwidth: 0 }).unwrap();
    as_user(&daemon, "a://x", "b://x", &not_permitted);
    std::fs::set_permissions(daemon.path("a"), std::fs::Permissions::from_mode(0o777)).unwrap();
    as_user(&daemon, "a://x", "a://y", "finished");
}

#[test]
fn quotas_hold_to_the_byte() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    job(&daemon, 5, 1000);
    write(&daemon.path("a/x"), &[1; 600]);
    as_user(&daemon, "a://x", "b://one", "finished");
    as_user(&daemon, "a://x", "b://two", "errno122");
    assert!(!daemon.path("b/two").exists());
    write(&daemon.path("a/y"), &[1; 400]);
    as_user(&daemon, "a://y", "b://three", "finished");
    as_user(&daemon, "a://y", "b://four", "errno122");
    let report = daemon.control().job_report(5).unwrap();
    assert_eq!((report.bytes, report.tasks, report.failed), (1000, 4, 2), "{report:?}");
    // What no task has put there makes no room, however large it is; nor does another name.
    let stager = daemon.control();
    let done = |op, from: &str, to: Option<&str>| {
        let place = |text: &str| parse_place(text.as_bytes()).unwrap();
        let on_behalf = Some(OnBehalf { uid: 0, gid: 0, job: 5 });
        let task = TaskSpec { on_behalf, ..TaskSpec::new(op, place(from), to.map(place)) };
        let status = stager.submit_and_wait(&task).unwrap();
        assert_eq!(status.state, TaskState::Finished, "{status:?}");
    };
    std::fs::File::create(daemon.path("b/own")).unwrap().set_len(1 << 40).unwrap();
    done(Op::Remove, "b://own", None);
    done(Op::Move, "b://one", Some("b://uno"));
    as_user(&daemon, "a://y", "b://four", "errno122");
    let used =
        || stager.dataspaces().unwrap().into_iter().find(|info| info.dataspace.name == "b://").unwrap().used;
    assert_eq!(used(), 1000);
    // And what a user has moved there counts.
    write(&daemon.path("a/z"), &[1; 50]);
    done(Op::Move, "a://z", Some("b://z"));
    assert_eq!(used(), 1050);
    done(Op::Remove, "b://uno", None);
    assert_eq!(used(), 450);
    as_user(&daemon, "a://y", "b://four", "finished");
    as_user(&daemon, "a://y", "b://five", "errno122");
}

#[test]
fn memory_goes_to_files_and_back_in_the_name_of_its_user() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    job(&daemon, 5, 0);
    for uid in [0, NOBODY] {
        let socket = daemon.user_socket().display().to_string();
        let child = helper("memory", uid, &[&socket, &format!("b://memory{uid}")]);
        add(&daemon, 5, &child, uid);
        go(child);
        let meta = std::fs::metadata(daemon.path(&format!("b/memory{uid}"))).unwrap();
        assert_eq!((meta.uid(), meta.len()), (uid, 5_000_000));
    }
}

#[test]
fn what_is_left_in_tracked_dataspaces_is_told_and_kept() {
    let daemon = Daemon::start();
    let control = daemon.control();
    let tracked = DataspaceSpec { tracked: true, ..local("t://", &daemon.path("b")) };
    control.register_dataspace(&tracked).unwrap();
    let limits = vec![JobLimit { dataspace: "t://".into(), quota: 0 }];
    control.register_job(&JobSpec { id: 7, hosts: vec![], limits, bandwidth: 0 }).unwrap();
    write(&daemon.path("b/left/behind"), b"12345");
    write(&daemon.path("b/kept/on"), b"purpose");
    let closes = control.persist(PersistOp::Store, "t://", b"kept", 1000, 0).unwrap().unwrap();
    control.wait(&[closes], false, None).unwrap();
    let (left, more) = control.unregister_job(7).unwrap();
    let told: Vec<(&[u8], u64)> = left.iter().map(|l| (&*l.path, l.size)).collect();
    assert_eq!((told, more), (vec![(&b"left/behind"[..], 5)], false));
    assert!(daemon.path("b/left/behind").exists());
    let error = control.unregister_dataspace("t://").expect_err("something lies there");
    assert_eq!(error.code(), Code::DATASPACE_NOT_EMPTY);
    std::fs::remove_dir_all(daemon.path("b/left")).unwrap();
    control.unregister_dataspace("t://").unwrap();
}

#[test]
fn a_fuzzed_socket_does_no_harm() {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    let norns = tempfile::tempdir().unwrap();
    let path = norns.path().join("norns.socket");
    let daemon = Daemon::with(&format!("norns-socket = \"{}\"", path.display()));
    let seed = std::env::var("TIDEPOOL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
    });
    println!("TIDEPOOL_SEED={seed} replays this");
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..2000 {
        let socket = [daemon.user_socket(), daemon.control_socket(), path.clone()][round % 3].clone();
        let mut stream = UnixStream::connect(&socket).unwrap();
        let mut bytes: Vec<u8> = (0..random() % 200).map(|_| random() as u8).collect();
        if random() % 2 == 0 {
            // A head that makes sense, so that the body is looked at.
            let len = (bytes.len() as u32).to_le_bytes();
            let kind = (random() % 60) as u16;
            let mut frame = [&len[..], &kind.to_le_bytes(), &[0; 10]].concat();
            if random() % 2 == 0 {
                frame = greeting().into_iter().chain(frame).collect();
            }
            frame.append(&mut bytes);
            bytes = frame;
        }
        // It may have closed the connection already.
        let _ = stream.write_all(&bytes);
    }
    assert!(daemon.control().ping().is_ok());
}

fn greeting() -> Vec<u8> {
    let body = [&b"TPSTAGER"[..], &1u16.to_le_bytes(), &4u32.to_le_bytes(), b"fuzz"].concat();
    let head = [&(body.len() as u32).to_le_bytes()[..], &1u16.to_le_bytes(), &[0; 10]].concat();
    [head, body].concat()
}

#[test]
fn another_user_owns_what_is_copied_in_his_name() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    write(&daemon.path("a/x"), b"x");
    chown(daemon.path("a/x"), Some(NOBODY), Some(NOBODY)).unwrap();
    let spec = TaskSpec {
        on_behalf: Some(tidepool_stage_client::OnBehalf { uid: NOBODY, gid: NOBODY, job: 0 }),
        ..copy("a://x", "b://y")
    };
    support::well(&daemon.control(), &spec);
    assert_eq!(std::fs::metadata(daemon.path("b/y")).unwrap().uid(), NOBODY);
}

/// All is copied and all in the tree is gone, but its own name stays: a directory that its user may not write has it.
#[test]
fn a_move_whose_source_cannot_go_is_not_said_to_be_done() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    write(&daemon.path("a/shelf/tree/x"), b"x");
    for path in ["a/shelf/tree", "a/shelf/tree/x"] {
        chown(daemon.path(path), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let spec = TaskSpec {
        on_behalf: Some(OnBehalf { uid: NOBODY, gid: NOBODY, job: 0 }),
        op: Op::Move,
        ..copy("a://shelf/tree", "b://moved")
    };
    let stager = daemon.control();
    let status = support::done(&stager, &spec);
    assert_eq!((status.state, status.refusal.errno), (TaskState::Failed, 13), "{status:?}");
    assert!(status.refusal.detail.contains("remove"), "{status:?}");
    assert_eq!(std::fs::read(daemon.path("b/moved/x")).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(daemon.path("a/shelf/tree")).unwrap().count(), 0);
    std::fs::set_permissions(daemon.path("a/shelf"), std::fs::Permissions::from_mode(0o777)).unwrap();
    stager.resume(status.id).unwrap();
    let again = stager.wait(&[status.id], false, None).unwrap().remove(0);
    assert_eq!(again.state, TaskState::Finished, "{again:?}");
    assert!(!daemon.path("a/shelf/tree").exists() && daemon.path("b/moved/x").exists());
}

/// A user's number may also be that of a group he is not in.
#[test]
fn what_expires_is_removed_with_its_owners_groups_only() {
    if !is_root() {
        return;
    }
    const UNKNOWN: u32 = 54_321;
    let daemon = Daemon::start();
    for (dir, owner) in [("b/theirs", 0), ("b/own", UNKNOWN)] {
        write(&daemon.path(dir).join("x"), b"x");
        chown(daemon.path(dir), Some(owner), Some(UNKNOWN)).unwrap();
        std::fs::set_permissions(daemon.path(dir), std::fs::Permissions::from_mode(0o770)).unwrap();
    }
    let control = daemon.control();
    for path in ["theirs/x", "own/x"] {
        control.persist(PersistOp::Store, "b://", path.as_bytes(), UNKNOWN, 1).unwrap();
    }
    let removals = || -> Vec<u32> {
        let all = control.list(None, None).unwrap();
        all.iter().filter(|task| task.op == Op::Remove).map(|task| task.id).collect()
    };
    while removals().len() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let ids = removals();
    for task in control.wait(&ids, false, None).unwrap() {
        let theirs = task.src.contains("theirs");
        assert_eq!(task.refusal.errno, if theirs { 13 } else { 0 }, "{task:?}");
    }
    assert!(daemon.path("b/theirs/x").exists() && !daemon.path("b/own/x").exists());
    // Nor does an administrator lend his group to the owner whose location he deletes.
    chown(daemon.path("b/theirs"), Some(0), Some(0)).unwrap();
    control.persist(PersistOp::Store, "b://", b"theirs/x", UNKNOWN, 0).unwrap();
    let id = control.persist(PersistOp::Delete, "b://", b"theirs/x", 0, 0).unwrap().expect("a task");
    let task = control.wait(&[id], false, None).unwrap().remove(0);
    assert_eq!((task.state, task.refusal.errno), (TaskState::Failed, 13), "{task:?}");
    assert!(daemon.path("b/theirs/x").exists());
}
