//! What would be a stager's end, or that of others' patience, if it were not looked after: descriptors that run out,
//! configurations that change or are wrong, and callers who ask for more than can be answered.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};
use support::network::Mount;
use support::{Daemon, copy, done, local, remote, resource, well, write};
use tidepool_stage_client::{Code, DataspaceSpec, Op, Policy, StageError, Stager, TaskSpec, TaskState};
use tidepool_wire::stager::{HEAD_LEN, Head, Reply, Request, STAGER_MAGIC};

/// Processor time of a process so far, in the kernel's ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_stager_without_descriptors_waits_for_some_without_work() {
    let daemon = Daemon::made(|_| String::new(), &["prlimit".into(), "--nofile=48:48".into()]);
    let known = daemon.control();
    let crowd: Vec<UnixStream> =
        (0..64).map(|_| UnixStream::connect(daemon.user_socket()).unwrap()).collect();
    known.ping().unwrap();
    let (before, begun) = (ticks(daemon.pid()), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (spent, elapsed) = (ticks(daemon.pid()) - before, begun.elapsed().as_millis() / 10);
    // One that looks again and again takes all the time there is, even of a machine with much to do.
    assert!(u128::from(spent) * 10 < elapsed, "{spent} of {elapsed} ticks");
    known.ping().unwrap();
    drop(crowd);
    daemon.control().ping().unwrap();
}

#[test]
fn a_wrong_path_of_a_socket_costs_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("thesis");
    std::fs::write(&precious, "years").unwrap();
    let config = dir.path().join("stager.toml");
    std::fs::write(&config, format!("control-socket = \"{}\"\n", precious.display())).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool-staged"))
        .arg("--config")
        .arg(&config)
        .arg("--dir")
        .arg(dir.path().join("run"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("thesis") && said.contains("no socket"), "{said}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "years");
}

#[test]
fn the_order_in_the_configuration_counts_at_each_start() {
    let mut daemon = Daemon::start();
    daemon.control().set_policy(Policy::FairByJob).unwrap();
    daemon.restart();
    let policy = |daemon: &Daemon| daemon.control().daemon_status().unwrap().policy;
    assert_eq!(policy(&daemon), Policy::FairByJob, "the file says nothing");
    daemon.config = "policy = \"shortest-first\"".into();
    daemon.restart();
    assert_eq!(policy(&daemon), Policy::ShortestFirst);
}

#[test]
fn a_dataspace_that_moves_in_the_configuration_stays_while_tasks_are_about_it() {
    let mut daemon = Daemon::start();
    let space = |daemon: &Daemon, name: &str| {
        let mount = daemon.path(name);
        std::fs::create_dir_all(&mount).unwrap();
        format!("[[dataspace]]\nname = \"c://\"\nkind = \"local\"\nmount = \"{}\"\n", mount.display())
    };
    daemon.config = space(&daemon, "old");
    daemon.restart();
    write(&daemon.path("a/x"), &[1; 4 << 20]);
    let slow = TaskSpec { bandwidth: 2 << 20, ..copy("a://x", "c://x") };
    let id = daemon.control().submit(&slow).unwrap();
    daemon.config = space(&daemon, "new");
    daemon.restart();
    let stager = daemon.control();
    let ended = stager.wait(&[id], false, None).unwrap().remove(0);
    assert_eq!(ended.state, TaskState::Finished, "{ended:?}");
    assert!(daemon.path("old/x").exists() && !daemon.path("new/x").exists());
    daemon.restart();
    well(&daemon.control(), &copy("a://x", "c://y"));
    assert!(daemon.path("new/y").exists());
}

/// Says hello on a connection of its own, to send what the library does not.
fn greet(daemon: &Daemon) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.control_socket()).unwrap();
    send(&mut stream, 1, &Request::Hello { magic: STAGER_MAGIC, version: 1, name: "test".into() });
    assert!(matches!(receive(&mut stream), (1, Reply::Welcome { .. })));
    stream
}

fn send(stream: &mut UnixStream, id: u64, request: &Request) {
    let mut frame = Vec::new();
    request.put_frame(id, &mut frame).unwrap();
    stream.write_all(&frame).unwrap();
}

fn receive(stream: &mut UnixStream) -> (u64, Reply) {
    let mut head = [0; HEAD_LEN];
    stream.read_exact(&mut head).unwrap();
    let head = Head::decode(&head).unwrap();
    let mut body = vec![0; head.len as usize];
    stream.read_exact(&mut body).unwrap();
    (head.id, Reply::decode(head.kind, &body).unwrap())
}

#[test]
fn a_connection_does_not_wait_for_more_than_it_may() {
    let daemon = Daemon::start();
    write(&daemon.path("a/x"), &[1; 1 << 20]);
    let slow = TaskSpec { bandwidth: 1 << 10, ..copy("a://x", "b://x") };
    let id = daemon.control().submit(&slow).unwrap();
    let mut stream = greet(&daemon);
    let wait = Request::Wait { ids: vec![id; 16_384], any: false, timeout_ms: None };
    for number in 100..117 {
        send(&mut stream, number, &wait);
    }
    let (refused, reply) = receive(&mut stream);
    let Reply::Failed { refusal } = reply else { panic!("{reply:?}") };
    assert_eq!((refused, refusal.code), (116, Code::TOO_MANY_TASKS));
    // Everything else is served, and the others are answered.
    send(&mut stream, 200, &Request::Cancel { id });
    let mut answered: Vec<u64> = (0..17).map(|_| receive(&mut stream).0).collect();
    answered.sort_unstable();
    assert_eq!(answered, (100..116).chain([200]).collect::<Vec<_>>());
    send(&mut stream, 300, &wait);
    assert!(matches!(receive(&mut stream), (300, Reply::Tasks { .. })));
}

#[test]
fn plans_that_take_for_ever_hold_up_no_administrator() {
    // Takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut daemon = Daemon::with_peers("127.0.0.1:0");
    let endless = TaskSpec::new(Op::Copy, remote("a://x", &address), Some(resource("b://x")));
    let planning: Vec<_> = (0..4)
        .map(|_| {
            let (stager, task) = (daemon.control(), endless.clone());
            std::thread::spawn(move || stager.plan(&task))
        })
        .collect();
    while silent.accept().is_err() {}
    write(&daemon.path("b/left"), b"x");
    let (left, _) = daemon.control().leftovers("b://", 10).unwrap();
    assert_eq!(left.len(), 1);
    assert!(planning.iter().all(|plan| !plan.is_finished()));
    daemon.kill();
    for plan in planning {
        assert!(matches!(plan.join().unwrap(), Err(StageError::Lost { .. } | StageError::Connect { .. })));
    }
}

#[test]
fn a_second_signal_ends_a_stager_whose_threads_hang() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut daemon = Daemon::with_peers("127.0.0.1:0");
    let endless = TaskSpec::new(Op::Copy, remote("a://x", &address), Some(resource("b://x")));
    let stager = daemon.control();
    let planning = std::thread::spawn(move || stager.plan(&endless));
    while silent.accept().is_err() {}
    // In root's stager it is a worker that hangs, which is ended after a while, unless it can hear that it is to end.
    for worker in support::children(daemon.pid()) {
        assert!(Command::new("kill").args(["-STOP", &worker.to_string()]).status().unwrap().success());
    }
    daemon.signal("-TERM");
    // Signals that nobody has taken yet count once.
    std::thread::sleep(Duration::from_millis(500));
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_gone().code(), Some(130));
    planning.join().unwrap().unwrap_err();
    daemon.launch();
    daemon.control().ping().unwrap();
}

#[test]
fn what_is_cloned_takes_quota_as_what_is_copied_does() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    let made = Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image).status();
    let words = ["-t", "xfs", "-o", "loop", image.to_str().unwrap()];
    let there = dir.path().join("xfs");
    let mount = made.is_ok_and(|made| made.success()).then(|| Mount::new(&words, &there)).flatten();
    let Some(_mount) = mount else {
        println!("SKIPPED: needs root, loop devices and XFS");
        return;
    };
    write(&there.join("in/x"), &[1; 16 << 20]);
    std::fs::create_dir(there.join("out")).unwrap();
    let daemon = Daemon::start();
    let stager = daemon.control();
    stager.register_dataspace(&local("in://", &there.join("in"))).unwrap();
    let out = DataspaceSpec { capacity: 40 << 20, ..local("out://", &there.join("out")) };
    stager.register_dataspace(&out).unwrap();
    let free = || rustix::fs::statvfs(&there).unwrap().f_bfree;
    let before = free();
    well(&stager, &copy("in://x", "out://1"));
    well(&stager, &copy("in://x", "out://2"));
    // Allocated late, what was written before may be given back meanwhile.
    let taken = before.saturating_sub(free()) * rustix::fs::statvfs(&there).unwrap().f_bsize;
    assert!(taken < 8 << 20, "{taken} bytes were written: they were not cloned");
    let used = |info: &tidepool_stage_client::DataspaceInfo| info.dataspace.name == "out://";
    assert_eq!(stager.dataspaces().unwrap().into_iter().find(used).unwrap().used, 32 << 20);
    let third = done(&stager, &copy("in://x", "out://3"));
    assert_eq!((third.state, third.refusal.errno), (TaskState::Failed, 122), "{third:?}");
}

#[test]
fn what_is_shared_and_cannot_be_read_says_what_its_owner_has_to_do() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to act as other users");
        return;
    }
    let daemon = Daemon::start();
    let stager: Stager = daemon.control();
    write(&daemon.path("a/mesh/x"), b"x");
    for name in ["a/mesh", "a/mesh/x"] {
        std::os::unix::fs::chown(daemon.path(name), Some(1000), Some(1000)).unwrap();
    }
    let persist = |op, user| {
        let id = stager.persist(op, "a://", b"mesh", user, 0).unwrap().expect("a task");
        assert_eq!(stager.wait(&[id], false, None).unwrap()[0].state, TaskState::Finished);
    };
    persist(tidepool_stage_client::PersistOp::Store, 1000);
    persist(tidepool_stage_client::PersistOp::Share, 1001);
    // Which its owner undoes afterwards, without knowing.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(daemon.path("a/mesh/x"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let behalf = tidepool_stage_client::OnBehalf { uid: 1001, gid: 1001, job: 0 };
    let read = TaskSpec { on_behalf: Some(behalf), ..copy("a://mesh", "b://mesh") };
    let status = done(&stager, &read);
    assert_eq!((status.state, status.refusal.errno), (TaskState::Failed, 13), "{status:?}");
    let advice = "when user 1000 shares it again, they are set anew";
    assert!(status.refusal.detail.contains(advice), "{}", status.refusal.detail);
    persist(tidepool_stage_client::PersistOp::Share, 1001);
    well(&stager, &read);
}

/// Kilobytes of memory of a process.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Anybody could have the stager keep 16 MiB for each connection, without having said who he is.
#[test]
fn who_has_not_said_hello_takes_no_memory_and_no_time() {
    let daemon = Daemon::start();
    let before = resident(daemon.pid());
    let head = Head { len: 8 << 20, kind: 10, id: 1 }.encode();
    let large = vec![0; (8 << 20) - 1];
    let crowd: Vec<UnixStream> = (0..200)
        .map(|_| {
            let mut stream = UnixStream::connect(daemon.user_socket()).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            // It may be closed already.
            let _ = stream.write_all(&head).and_then(|()| stream.write_all(&large));
            stream
        })
        .collect();
    let grown = resident(daemon.pid()).saturating_sub(before);
    assert!(grown < 20 << 10, "{grown} kB for {} connections", crowd.len());
    drop(crowd);
    // One that says nothing, and one that says it byte by byte.
    let mut quiet = UnixStream::connect(daemon.user_socket()).unwrap();
    let mut slow = UnixStream::connect(daemon.user_socket()).unwrap();
    let begun = Instant::now();
    for stream in [&quiet, &slow] {
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    }
    let mut hello = Vec::new();
    let message = Request::Hello { magic: STAGER_MAGIC, version: 1, name: "x".repeat(100) };
    message.put_frame(0, &mut hello).unwrap();
    for byte in hello {
        if slow.write_all(&[byte]).is_err() || matches!(slow.read(&mut [0]), Ok(0)) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it may go on for ever");
    }
    quiet.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(quiet.read(&mut [0]).unwrap(), 0, "it is closed");
    daemon.control().ping().unwrap();
}

/// What is announced and what is said count for a user, over all of his connections.
#[test]
fn one_users_connections_take_no_more_memory_than_they_may() {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("SKIPPED: needs root, whose connections are not counted, to be another user");
    }
    const SCRIPT: &str = "import socket,struct,sys\n\
        hello=b'TPSTAGER'+struct.pack('<HI',1,1)+b'x'\n\
        f=lambda k,b:struct.pack('<IHHQ',len(b),k,0,1)+b\n\
        ks=[]\n\
        for i in range(40):\n\
        \x20k=socket.socket(socket.AF_UNIX); k.connect(sys.argv[1]); k.settimeout(5)\n\
        \x20try: k.sendall(f(1,hello)); k.recv(100); k.sendall(struct.pack('<IHHQ',8<<20,11,0,1)+bytes((8<<20)-1))\n\
        \x20except OSError: pass\n\
        \x20ks.append(k)\n\
        print(open('/proc/'+sys.argv[2]+'/status').read().split('VmRSS:')[1].split()[0])";
    let daemon = Daemon::start();
    let before = resident(daemon.pid());
    let output = Command::new("setpriv")
        .args(["--reuid", "31001", "--regid", "31001", "--clear-groups", "/usr/bin/python3", "-c", SCRIPT])
        .arg(daemon.user_socket())
        .arg(daemon.pid().to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
    let grown = said.parse::<u64>().unwrap_or_else(|_| panic!("{output:?}")).saturating_sub(before);
    assert!(grown < 120 << 10, "{grown} kB for 40 connections with 8 MiB each");
    daemon.control().ping().unwrap();
}
