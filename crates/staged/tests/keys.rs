//! Nodes that are known by their keys: what a node opens at another one, and what it does not. The enemy is a node that was taken: it
//! has the secret, its own key, and speaks the protocol well.

mod support;

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use support::{Daemon, admin_secret, remote, resource, well, write};
use tidepool_stage::remote::{Answer, Ask, OF_ONE_MAX, RemoteEnd, RemoteOptions, RootRequest};
use tidepool_stage_client::{JobLimit, JobSpec, OnBehalf, Op, Owner, Secret, Stager, TaskSpec, TaskState};
use tidepool_testkit::free_address;
use tidepool_transport::hex;
use tidepool_transport::remote::{Channel, Meant, Sealed, connect};
use tidepool_types::SessionId;

const ALICE: u32 = 31_001;
const BOB: u32 = 31_002;
/// Users have a group of their own, of the same number.
const JOB: u32 = 7;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: needs root, whose stager acts for others");
    }
    root
}

/// The secret, with the key of the node of this number.
fn of_node(number: u8) -> Secret {
    Secret::from_hex(&"5a".repeat(32)).unwrap().with_key([number; 32])
}

fn public(number: u8) -> String {
    hex(&of_node(number).public_key().unwrap())
}

/// Node n1, which knows the nodes n1 to n3 by keys 1 to 3; n2 is at `second`.
fn first(at: &str, second: &str) -> Daemon {
    let peers = format!(
        "node = \"n1\"\npeers = [\"n1={at} {}\", \"n2={second} {}\", \"n3=127.0.0.1:9 {}\"]\n",
        public(1),
        public(2),
        public(3)
    );
    Daemon::keyed(at, 1, &peers)
}

/// A dataspace of n1 in which Alice and Bob have a file each that nobody else reads.
fn with_files(daemon: &Daemon) {
    for (user, id) in [("alice", ALICE), ("bob", BOB)] {
        let file = daemon.path(&format!("a/{user}"));
        write(&file, user.as_bytes());
        chown(&file, Some(id), Some(id)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let of_root = daemon.path("a/root");
    write(&of_root, b"root");
    fs::set_permissions(&of_root, fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(daemon.path("a"), fs::Permissions::from_mode(0o777)).unwrap();
}

/// Node n1 with files, where it listens, and where it takes n2 to be.
fn scene() -> Option<(Daemon, String, String)> {
    if !is_root() {
        return None;
    }
    let (at, second) = (free_address().to_string(), free_address().to_string());
    let daemon = first(&at, &second);
    with_files(&daemon);
    Some((daemon, at, second))
}

fn register(stager: &Stager, hosts: &[&str], owner: Option<Owner>) {
    let limits = vec![JobLimit { dataspace: "a://".into(), quota: 0 }];
    let hosts = hosts.iter().map(|host| host.to_string()).collect();
    let spec = JobSpec { id: JOB, hosts, limits, bandwidth: 0 };
    match owner {
        Some(owner) => stager.register_job_of(&spec, owner).unwrap(),
        None => stager.register_job(&spec).unwrap(),
    }
}

fn want(uid: u32, gid: u32, job: Option<u32>) -> RootRequest {
    RootRequest { dataspace: "a://".into(), path: Vec::new(), write: false, uid, gid, groups: vec![gid], job }
}

/// What a node, or whoever has this secret, gets at n1: the root, or the error.
fn open(at: &str, secret: Secret, called: &str, root: RootRequest) -> Result<RemoteEnd, String> {
    let mut options = RemoteOptions::new(at, secret, root);
    options.own_name = called.into();
    options.meant = Meant::named("n1");
    RemoteEnd::open(options).map_err(|error| format!("{error} {:?}", error.detail))
}

#[test]
fn a_taken_node_opens_data_of_jobs_that_run_on_it_as_their_owners() {
    let Some((daemon, at, _)) = scene() else { return };
    let owner = Owner { uid: ALICE, gid: ALICE };
    register(&daemon.control(), &["n1", "n2"], Some(owner));
    let taken = |root| open(&at, of_node(2), "n2", root);
    assert!(taken(want(ALICE, ALICE, Some(JOB))).is_ok(), "its own job");
    let refused: [(&str, RootRequest, &str); 6] = [
        ("root", want(0, 0, Some(JOB)), "does not act as root"),
        ("another user", want(BOB, BOB, Some(JOB)), "not the owner"),
        ("root's group", want(ALICE, 0, Some(JOB)), "not in group 0"),
        ("no job", want(ALICE, ALICE, None), "for none"),
        ("root without a job", want(0, 0, None), "for none"),
        ("a job that is not registered", want(ALICE, ALICE, Some(8)), "job 8 is not registered"),
    ];
    for (what, root, why) in refused {
        let error = taken(root).err().expect(what);
        assert!(error.contains(why), "{what}: {error}");
    }
    let other_space = RootRequest { dataspace: "b://".into(), ..want(ALICE, ALICE, Some(JOB)) };
    assert!(taken(other_space).err().unwrap().contains("may not use"));
}

#[test]
fn a_node_reaches_no_job_that_runs_elsewhere_whatever_it_calls_itself() {
    let Some((daemon, at, _)) = scene() else { return };
    register(&daemon.control(), &["n1", "n2"], Some(Owner { uid: ALICE, gid: ALICE }));
    let root = || want(ALICE, ALICE, Some(JOB));
    for called in ["n3", "n2", "n1", ""] {
        let error = open(&at, of_node(3), called, root()).err().unwrap();
        assert!(error.contains("does not run on node 'n3'"), "called {called:?}: {error}");
    }
    // The secret alone, and with a key of nobody's.
    for secret in [Secret::from_hex(&"5a".repeat(32)).unwrap(), of_node(9)] {
        let error = open(&at, secret, "n2", root()).err().unwrap();
        assert!(error.contains("no node's that this stager knows"), "{error}");
    }
    // A node does not administer, and an administrator may open everything.
    let error = Stager::connect_at(&at, &of_node(2)).err().unwrap().to_string();
    assert!(error.contains("administrators"), "{error}");
    assert!(open(&at, admin_secret(), "", want(0, 0, None)).is_ok());
    // Nobody is the user whose number says "as it is": he would stay root.
    assert!(open(&at, admin_secret(), "", want(u32::MAX, 0, None)).is_err());
}

#[test]
fn without_an_owner_it_counts_who_has_a_process_in_the_job() {
    let Some((mut daemon, at, _)) = scene() else { return };
    register(&daemon.control(), &["n1", "n2"], None);
    let taken = |uid| open(&at, of_node(2), "n2", want(uid, uid, Some(JOB)));
    assert!(taken(ALICE).err().unwrap().contains("to be registered with its owner"));
    let process =
        tidepool_stage_client::ProcessSpec { pid: std::process::id() as i32, uid: ALICE, gid: ALICE };
    daemon.control().add_process(JOB, process).unwrap();
    assert!(taken(ALICE).is_ok() && taken(BOB).is_err() && taken(0).is_err());
    // It is known after a restart, too.
    daemon.control().unregister_job(JOB).unwrap();
    register(&daemon.control(), &["n1", "n2"], Some(Owner { uid: BOB, gid: BOB }));
    daemon.kill();
    daemon.launch();
    let taken = |uid| open(&at, of_node(2), "n2", want(uid, uid, Some(JOB)));
    assert!(taken(BOB).is_ok() && taken(ALICE).is_err());
}

/// Who has opened something while he might, and keeps it open, has it no longer than his job.
#[test]
fn what_is_open_ends_with_the_job() {
    let Some((daemon, at, _)) = scene() else { return };
    let (control, owner) = (daemon.control(), Owner { uid: ALICE, gid: ALICE });
    let limits = vec![JobLimit { dataspace: "a://".into(), quota: 0 }];
    let spec = |hosts: &[&str]| JobSpec {
        id: JOB,
        hosts: hosts.iter().map(|host| host.to_string()).collect(),
        limits: limits.clone(),
        bandwidth: 0,
    };
    let session = || ask(&at, &of_node(2), &Ask::OpenRoot { root: want(ALICE, ALICE, Some(JOB)) });
    // The answer to a request on a connection that is open.
    let answered = |channel: &mut Channel<Sealed<TcpStream>>| {
        let sent = channel.send(Ask::Ping {}.kind(), 2, |_| (), &[]);
        sent.is_ok() && channel.receive().is_ok_and(|head| channel.bulk(&head).is_ok())
    };
    register(&control, &["n1", "n2"], Some(owner));
    let (answer, mut open) = session();
    let Answer::Root { info } = answer else { panic!("{answer:?}") };
    assert!(answered(&mut open) && joins(&at, &of_node(2), info.session));
    // A change that leaves the node its job ends it as well; a client opens it again by itself.
    let mut end = open_as_client(&at);
    end.ping().unwrap();
    control.update_job(&spec(&["n2", "n1"])).unwrap();
    assert!(!answered(&mut open) && !joins(&at, &of_node(2), info.session));
    end.ping().unwrap();
    control.update_job(&spec(&["n1"])).unwrap();
    let error = end.ping().unwrap_err();
    assert!(error.detail.unwrap().contains("does not run on node 'n2'"));
    control.update_job(&spec(&["n1", "n2"])).unwrap();
    end = open_as_client(&at);
    control.unregister_job(JOB).unwrap();
    let error = end.ping().unwrap_err();
    assert!(error.detail.unwrap().contains("not registered"));
}

fn open_as_client(at: &str) -> RemoteEnd {
    open(at, of_node(2), "n2", want(ALICE, ALICE, Some(JOB))).unwrap()
}

/// Asks by hand, on a connection of its own.
fn ask(at: &str, secret: &Secret, ask: &Ask) -> (Answer, Channel<Sealed<TcpStream>>) {
    let mut channel = connect(at, secret, ("", &Meant::anybody())).unwrap();
    channel.send(ask.kind(), 1, |out| ask.encode(out), &[]).unwrap();
    let head = channel.receive().unwrap();
    channel.bulk(&head).unwrap();
    let answer = Answer::decode(head.kind, channel.meta()).unwrap();
    (answer, channel)
}

fn joins(at: &str, secret: &Secret, session: SessionId) -> bool {
    matches!(ask(at, secret, &Ask::JoinRoot { session }).0, Answer::Root { .. })
}

/// A session's number is what a connection joins it by. Who has overheard it, or was told, is another node all the same.
#[test]
fn another_nodes_session_is_not_joined() {
    let Some((daemon, at, _)) = scene() else { return };
    register(&daemon.control(), &["n1", "n2"], Some(Owner { uid: ALICE, gid: ALICE }));
    let (answer, _kept) = ask(&at, &of_node(2), &Ask::OpenRoot { root: want(ALICE, ALICE, Some(JOB)) });
    let Answer::Root { info } = answer else { panic!("{answer:?}") };
    assert!(joins(&at, &of_node(2), info.session));
    assert!(!joins(&at, &of_node(3), info.session));
    assert!(!joins(&at, &admin_secret(), info.session));
}

/// A node that was taken holds as many connections as it can. Others come all the same.
#[test]
fn one_nodes_connections_keep_no_other_away() {
    let Some((daemon, at, _)) = scene() else { return };
    register(&daemon.control(), &["n1", "n2", "n3"], Some(Owner { uid: ALICE, gid: ALICE }));
    let open = Ask::OpenRoot { root: want(ALICE, ALICE, Some(JOB)) };
    let (answer, first) = ask(&at, &of_node(2), &open);
    let Answer::Root { info } = answer else { panic!("{answer:?}") };
    let mut held = vec![first];
    let join = || ask(&at, &of_node(2), &Ask::JoinRoot { session: info.session });
    let refused = loop {
        match join() {
            (Answer::Root { .. }, channel) => held.push(channel),
            (answer, _) => break format!("{answer:?}"),
        }
        assert!(held.len() <= OF_ONE_MAX, "{} are taken", held.len());
    };
    assert!(refused.contains("try again later"), "{refused}");
    assert_eq!(held.len(), OF_ONE_MAX);
    assert!(matches!(ask(&at, &of_node(3), &open).0, Answer::Root { .. }), "another node is served");
    // Nor does one user keep others of his node away: who has most has one less.
    let limits = vec![JobLimit { dataspace: "a://".into(), quota: 0 }];
    let bobs = JobSpec { id: JOB + 1, hosts: vec!["n1".into(), "n2".into()], limits, bandwidth: 0 };
    daemon.control().register_job_of(&bobs, Owner { uid: BOB, gid: BOB }).unwrap();
    let bobs = Ask::OpenRoot { root: want(BOB, BOB, Some(JOB + 1)) };
    let (answer, _bobs) = ask(&at, &of_node(2), &bobs);
    assert!(matches!(answer, Answer::Root { .. }), "{answer:?}");
    assert!(held.pop().unwrap().receive().is_err(), "one of Alice's has ended");
    assert!(!matches!(join().0, Answer::Root { .. }), "and she gets none for it");
    held.pop();
    // Its end is noticed by and by.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !matches!(join().0, Answer::Root { .. }) {
        assert!(std::time::Instant::now() < until, "its place is not given back");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A node that has another's name and not its key gets nothing of what is meant for that one.
#[test]
fn data_go_to_the_node_whose_key_is_listed() {
    let Some((daemon, at, second)) = scene() else { return };
    let spec = |to: &str| TaskSpec {
        on_behalf: Some(OnBehalf { uid: ALICE, gid: ALICE, job: JOB }),
        ..TaskSpec::new(Op::Copy, resource("a://alice"), Some(remote("a://copy", to)))
    };
    let there = |key: u8| {
        let known =
            format!("node = \"n2\"\npeers = [\"n1={at} {}\", \"n2={second} {}\"]\n", public(1), public(2));
        let there = Daemon::keyed(&second, key, &known);
        fs::set_permissions(there.path("a"), fs::Permissions::from_mode(0o777)).unwrap();
        register(&there.control(), &["n1", "n2"], Some(Owner { uid: ALICE, gid: ALICE }));
        there
    };
    register(&daemon.control(), &["n1", "n2"], Some(Owner { uid: ALICE, gid: ALICE }));
    let impostor = there(3);
    let status = support::done(&daemon.control(), &spec(&second));
    assert_eq!(status.state, TaskState::Failed);
    assert!(status.refusal.detail.contains("is not the node that was meant"), "{}", status.refusal.detail);
    assert!(!impostor.path("a/copy").exists());
    drop(impostor);
    let honest = there(2);
    well(&daemon.control(), &spec(&second));
    assert_eq!(fs::read(honest.path("a/copy")).unwrap(), b"alice");
}
