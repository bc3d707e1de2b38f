//! What other stagers ask of root's: workers of the users in whose names they ask do it, and users are the enemies again. Each may kill
//! and stop his own worker; that costs him a new connection, and nobody else anything.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Daemon, admin_secret, children, copy, remote, write};
use tidepool_stage::remote::{Answer, Ask, RootRequest};
use tidepool_stage_client::{OnBehalf, Stager, TaskSpec, TaskState};
use tidepool_testkit::free_address;
use tidepool_transport::remote::{Channel, Meant, Sealed, connect};
use tidepool_types::Errno;

const ALICE: u32 = 31_001;
const BOB: u32 = 31_002;
/// Bytes per second of a copy that lasts as long as a test looks at it.
const SLOW: u64 = 8 << 20;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: needs root, whose stager acts for others");
    }
    root
}

/// A stager that others can reach, where, and one that copies there.
fn scene() -> Option<(Daemon, String, Daemon)> {
    if !is_root() {
        return None;
    }
    let at = free_address().to_string();
    let far = Daemon::with_peers(&at);
    let near = Daemon::made(|dir| support::listening(dir, "127.0.0.1:0"), &[]);
    Some((far, at, near))
}

fn content(uid: u32) -> Vec<u8> {
    (0..24 << 20).map(|at: u32| (at / 7 + uid) as u8).collect()
}

/// A copy of a user's large file to the other stager, under way.
fn slow(far: &Daemon, at: &str, near: &Daemon, uid: u32) -> (Stager, u32) {
    let name = format!("big{uid}");
    let path = near.path(&format!("a/{name}"));
    write(&path, &content(uid));
    chown(&path, Some(uid), Some(uid)).unwrap();
    let stager = near.control();
    let dst = Some(remote(&format!("b://{name}"), at));
    let on_behalf = Some(OnBehalf { uid, gid: uid, job: 0 });
    let here = format!("a://{name}");
    let id = stager.submit(&TaskSpec { bandwidth: SLOW, dst, on_behalf, ..copy(&here, &here) }).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let is_there =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().metadata().is_ok_and(|meta| meta.uid() == uid);
    // Something of his has been made there.
    while !fs::read_dir(far.path("b")).unwrap().any(is_there) {
        assert!(Instant::now() < until, "it has not begun: {:?}", stager.status(id));
        std::thread::sleep(Duration::from_millis(10));
    }
    (stager, id)
}

fn status_of(path: &Path, what: &str) -> Option<String> {
    let status = fs::read_to_string(path.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{what}:")))?;
    Some(line.trim().into())
}

fn is_of(path: &Path, uid: u32) -> bool {
    status_of(path, "Uid").is_some_and(|ids| ids.split_whitespace().any(|id| id == uid.to_string()))
}

/// The worker of a user that has become him.
fn worker(daemon: &Daemon, uid: u32) -> Option<u32> {
    children(daemon.pid()).into_iter().find(|pid| is_of(Path::new(&format!("/proc/{pid}")), uid))
}

fn kill(uid: u32, signal: &str, pid: u32) -> bool {
    let id = uid.to_string();
    let words = ["--reuid", &id, "--regid", &id, "--clear-groups", "kill", signal, &pid.to_string()]
        .map(String::from);
    Command::new("setpriv").args(words).output().unwrap().status.success()
}

/// Ends well, and what has come is what was there.
fn ends_well(far: &Daemon, (stager, id): &(Stager, u32), uid: u32) {
    let ended = stager.wait(&[*id], false, Some(Duration::from_secs(120))).unwrap().remove(0);
    assert_eq!(ended.state, TaskState::Finished, "{ended:?}");
    let path = far.path(&format!("b/big{uid}"));
    assert!(fs::read(&path).unwrap() == content(uid), "it has other bytes");
    assert_eq!(fs::metadata(&path).unwrap().uid(), uid);
}

/// Numbers of the established TCP connections that a process has.
fn connections(pid: u32) -> BTreeSet<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    // The fourth field is the state, the tenth the socket's number.
    let fields = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    let rows = table.lines().map(fields).filter(|row| row.len() > 9 && row[3] == "01");
    let known: BTreeSet<String> = rows.map(|row| row[9].clone()).collect();
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let names = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let numbers = names
        .filter_map(|name| Some(name.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()));
    numbers.filter(|number| known.contains(number)).collect()
}

#[test]
fn what_a_peer_opens_is_a_workers_and_no_thread_of_roots_becomes_its_user() {
    let Some((far, at, near)) = scene() else { return };
    let task = slow(&far, &at, &near, ALICE);
    let serving = worker(&far, ALICE).unwrap();
    let of_worker = connections(serving);
    assert!(!of_worker.is_empty(), "it speaks with the other stager itself");
    assert!(of_worker.is_subset(&connections(far.pid())), "root can end each of them");
    while task.0.status(task.1).unwrap().state == TaskState::Running {
        for thread in fs::read_dir(format!("/proc/{}/task", far.pid())).unwrap() {
            let thread = thread.unwrap().path();
            assert!(!is_of(&thread, ALICE), "{} is Alice's", thread.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ends_well(&far, &task, ALICE);
    // The threads that greeted have ended: a connection that is served costs root none.
    let greeting = || {
        let threads = fs::read_dir(format!("/proc/{}/task", far.pid())).unwrap();
        let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("remote-serve")).count()
    };
    assert_eq!(greeting(), 0);
}

/// Whoever copies connects again, and nobody else's copy notices.
#[test]
fn a_user_kills_his_worker_and_his_copy_goes_on() {
    let Some((far, at, near)) = scene() else { return };
    let (alices, bobs) = (slow(&far, &at, &near, ALICE), slow(&far, &at, &near, BOB));
    let (root, of_bob) = (far.pid(), worker(&far, BOB).unwrap());
    for _ in 0..3 {
        let until = Instant::now() + Duration::from_secs(20);
        let pid = loop {
            match worker(&far, ALICE) {
                Some(pid) => break pid,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
            assert!(Instant::now() < until, "she has no worker again");
        };
        assert!(!kill(BOB, "-9", pid), "another user's");
        assert!(kill(ALICE, "-9", pid));
        while Path::new(&format!("/proc/{pid}/exe")).exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(worker(&far, BOB), Some(of_bob), "his is the one it was");
    ends_well(&far, &bobs, BOB);
    ends_well(&far, &alices, ALICE);
    assert_eq!(far.pid(), root);
}

#[test]
fn a_worker_that_its_user_has_stopped_is_ended_and_his_copy_goes_on() {
    let Some((far, at, near)) = scene() else { return };
    let alices = slow(&far, &at, &near, ALICE);
    let pid = worker(&far, ALICE).unwrap();
    assert!(kill(ALICE, "-STOP", pid));
    // Others are served meanwhile.
    let bobs = slow(&far, &at, &near, BOB);
    ends_well(&far, &bobs, BOB);
    ends_well(&far, &alices, ALICE);
    assert_ne!(worker(&far, ALICE), Some(pid));
}

fn open(path: &[u8], uid: u32) -> Ask {
    let (dataspace, path) = ("a://".to_string(), path.to_vec());
    Ask::OpenRoot {
        root: RootRequest { dataspace, path, write: false, uid, gid: uid, groups: vec![uid], job: None },
    }
}

fn send<S: std::io::Read + std::io::Write>(channel: &mut Channel<S>, id: u32, ask: &Ask) {
    channel.send(ask.kind(), id, |out| ask.encode(out), &[]).unwrap();
}

fn answer(channel: &mut Channel<Sealed<std::net::TcpStream>>) -> (u32, Answer) {
    let head = channel.receive().unwrap();
    channel.bulk(&head).unwrap();
    (head.id, Answer::decode(head.kind, channel.meta()).unwrap())
}

/// Whoever does not wait for the first answer is answered all the same: what had come already when the connection was handed over is the
/// worker's as well.
#[test]
fn what_is_said_before_the_first_answer_is_answered_too() {
    let Some((far, at, _near)) = scene() else { return };
    fs::set_permissions(far.path("a"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for _ in 0..20 {
        let mut channel = connect(&at, &admin_secret(), ("", &Meant::anybody())).unwrap();
        let asks = [open(b"", ALICE), Ask::Ping {}, Ask::Ping {}, Ask::Ping {}];
        for (id, ask) in (1..).zip(&asks[..3]) {
            channel.queue(ask.kind(), id, |out| ask.encode(out), &[]);
        }
        send(&mut channel, 4, &asks[3]);
        let answers: Vec<(u32, Answer)> = (0..4).map(|_| answer(&mut channel)).collect();
        assert!(matches!(answers[0], (1, Answer::Root { .. })), "{answers:?}");
        assert_eq!(answers[1..], [2, 3, 4].map(|id| (id, Answer::Done {})));
    }
}

/// The worker is its user, so what he does not get to it cannot open; the peer is told that, and what is wrong.
#[test]
fn what_the_user_does_not_get_to_is_not_opened_for_him() {
    let Some((far, at, _near)) = scene() else { return };
    fs::create_dir(far.path("a/bobs")).unwrap();
    chown(far.path("a/bobs"), Some(BOB), Some(BOB)).unwrap();
    fs::set_permissions(far.path("a/bobs"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink("/etc", far.path("a/link")).unwrap();
    for (path, why) in
        [("bobs", Errno::EACCES), ("missing", Errno::ENOENT), ("link", Errno::EXDEV), ("../b", Errno::EXDEV)]
    {
        let mut channel = connect(&at, &admin_secret(), ("", &Meant::anybody())).unwrap();
        send(&mut channel, 1, &open(path.as_bytes(), ALICE));
        let (_, answer) = answer(&mut channel);
        let Answer::Failed { error } = answer else { panic!("{path}: {answer:?}") };
        assert_eq!(error.errno, why, "{path}: {error}");
    }
    let mut channel = connect(&at, &admin_secret(), ("", &Meant::anybody())).unwrap();
    send(&mut channel, 1, &open(b"bobs", BOB));
    assert!(matches!(answer(&mut channel).1, Answer::Root { .. }));
}
