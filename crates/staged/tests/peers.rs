//! Two stagers on two nodes (two addresses of this one), and trees between them.

mod support;

use std::os::unix::fs::{MetadataExt, symlink};
use support::{Daemon, done, remote, resource, same, well, write};
use tidepool_stage_client::{
    Code, DataspaceSpec, JobLimit, JobSpec, Mapping, MappingNode, OnBehalf, Op, TaskSpec, TaskState,
};

/// Two stagers that know a common secret, and where they listen.
fn pair() -> [(Daemon, String); 2] {
    ["127.0.0.1", "127.0.0.2"].map(|address| {
        // A port that was free a moment ago; the other tests of this program ask for their own.
        let listener = std::net::TcpListener::bind((address, 0)).unwrap();
        let at = listener.local_addr().unwrap().to_string();
        drop(listener);
        (Daemon::with_peers(&at), at)
    })
}

fn tree(daemon: &Daemon, name: &str) {
    for n in 0..300 {
        write(&daemon.path(&format!("a/{name}/d{}/f{n}", n % 7)), format!("content {n}").as_bytes());
    }
    write(&daemon.path(&format!("a/{name}/big")), &vec![3; 40 << 20]);
    write(&daemon.path(&format!("a/{name}/empty")), b"");
    symlink("d1/f1", daemon.path(&format!("a/{name}/link"))).unwrap();
    std::fs::hard_link(daemon.path(&format!("a/{name}/big")), daemon.path(&format!("a/{name}/same")))
        .unwrap();
}

#[test]
fn trees_go_there_and_back() {
    let [(here, _), (there, at)] = pair();
    tree(&here, "tree");
    let stager = here.control();
    let push = TaskSpec::new(Op::Copy, resource("a://tree"), Some(remote("b://deep/er/tree", &at)));
    let status = well(&stager, &push);
    assert_eq!(status.files_done, 304, "{status:?}");
    same(&here.path("a/tree"), &there.path("b/deep/er/tree"));
    let inode = |name: &str| std::fs::metadata(there.path("b/deep/er/tree").join(name)).unwrap().ino();
    assert_eq!(inode("big"), inode("same"));
    let pull = TaskSpec::new(Op::Copy, remote("b://deep/er/tree", &at), Some(resource("b://back")));
    well(&stager, &pull);
    same(&here.path("a/tree"), &here.path("b/back"));
    // One file each way, under a name of its own.
    well(&stager, &TaskSpec::new(Op::Copy, resource("a://tree/big"), Some(remote("b://one", &at))));
    well(&stager, &TaskSpec::new(Op::Copy, remote("b://one", &at), Some(resource("b://two"))));
    assert!(std::fs::read(here.path("b/two")).unwrap() == vec![3; 40 << 20]);
    // And from there to elsewhere there, through here.
    well(&stager, &TaskSpec::new(Op::Copy, remote("b://deep", &at), Some(remote("a://again", &at))));
    same(&here.path("a/tree"), &there.path("a/again/er/tree"));
}

#[test]
fn a_stager_that_is_not_there_is_told_soon_with_its_address_and_what_to_do() {
    let [(here, _), (there, at)] = pair();
    drop(there);
    write(&here.path("a/x"), b"x");
    let push = TaskSpec::new(Op::Copy, resource("a://x"), Some(remote("b://x", &at)));
    let status = done(&here.control(), &push);
    assert_eq!((status.state, status.refusal.code), (TaskState::Failed, Code::SYSTEM_ERROR));
    assert_eq!(status.refusal.errno, 111, "ECONNREFUSED: {status:?}");
    for part in [&at, "for 4.0 s", "efused", "does a stager listen there", "resume"] {
        assert!(status.refusal.detail.contains(part), "{part}: {}", status.refusal.detail);
    }
}

#[test]
fn what_is_scattered_over_nodes_is_gathered_again() {
    let [(here, _), (there, at)] = pair();
    for rank in 0..12 {
        write(&here.path(&format!("a/case/processor{rank}/U")), format!("velocity of {rank}").as_bytes());
    }
    let entries: Vec<String> = (0..12).map(|rank| format!("processor{rank}")).collect();
    let node = |name: &str, address| MappingNode { name: name.into(), address };
    let nodes = [node("here", None), node("there", Some(at))];
    let stager = here.control();
    let map = |mapping: &str, from: &str, to: &str| {
        let mapping = Mapping::parse(mapping, |_| Err("no file".into())).unwrap();
        for task in mapping.tasks(&resource(from), &resource(to), &nodes, &entries).unwrap() {
            well(&stager, &task);
        }
    };
    map("scatter:processor{rank}", "a://case", "b://case");
    let names = |daemon: &Daemon| std::fs::read_dir(daemon.path("b/case")).unwrap().count();
    assert_eq!((names(&here), names(&there)), (6, 6));
    assert!(there.path("b/case/processor11/U").exists());
    map("gather", "b://case", "a://again");
    same(&here.path("a/case"), &here.path("a/again"));
    map("replicate", "a://case", "b://all");
    same(&here.path("a/case"), &there.path("b/all"));
    map("gather:from-{node}", "b://all", "a://apart");
    same(&here.path("a/case"), &here.path("a/apart/from-there"));
}

#[test]
fn moves_and_removals_reach_over() {
    let [(here, _), (there, at)] = pair();
    tree(&here, "tree");
    let stager = here.control();
    well(&stager, &TaskSpec::new(Op::Move, resource("a://tree"), Some(remote("a://tree", &at))));
    assert!(!here.path("a/tree").exists() && there.path("a/tree/d1/f1").exists());
    well(&stager, &TaskSpec::new(Op::Move, remote("a://tree", &at), Some(resource("b://home"))));
    assert!(!there.path("a/tree").exists() && here.path("b/home/same").exists());
    write(&there.path("a/x/y"), b"y");
    well(&stager, &TaskSpec::new(Op::Remove, remote("a://x", &at), None));
    assert!(!there.path("a/x").exists());
}

#[test]
fn a_missing_dataspace_or_stager_is_no_success() {
    let [(here, _), (there, at)] = pair();
    write(&here.path("a/x"), b"x");
    let stager = here.control();
    let push = |to: &str, at: &str| TaskSpec::new(Op::Copy, resource("a://x"), Some(remote(to, at)));
    let status = done(&stager, &push("nowhere://x", &at));
    assert_eq!((status.state, status.refusal.code), (TaskState::Failed, Code::SYSTEM_ERROR));
    assert!(status.refusal.detail.contains("nowhere://"), "{}", status.refusal.detail);
    let status = done(&stager, &push("b://../../x", &at));
    assert_eq!(status.state, TaskState::Failed);
    assert!(!there.path("x").exists());
    // A stager without the secret is no stager.
    let alone = Daemon::start();
    write(&alone.path("a/x"), b"x");
    let status =
        done(&alone.control(), &TaskSpec::new(Op::Copy, resource("a://x"), Some(remote("b://x", &at))));
    assert_eq!((status.state, status.refusal.code), (TaskState::Failed, Code::NOT_SUPPORTED));
}

#[test]
fn a_peer_keeps_jobs_to_their_dataspaces_and_quotas() {
    let [(here, _), (there, at)] = pair();
    write(&here.path("a/x"), &[1; 100_000]);
    let limits = |quota| vec![JobLimit { dataspace: "a://".into(), quota }];
    let job = |quota| JobSpec { id: 5, hosts: vec![], limits: limits(quota), bandwidth: 0 };
    here.control().register_job(&job(0)).unwrap();
    let push = |to: &str| TaskSpec {
        on_behalf: Some(OnBehalf { uid: 0, gid: 0, job: 5 }),
        ..TaskSpec::new(Op::Copy, resource("a://x"), Some(remote(to, &at)))
    };
    let status = done(&here.control(), &push("a://x"));
    assert!(status.refusal.detail.contains("job 5"), "{status:?}");
    there.control().register_job(&job(150_000)).unwrap();
    let status = done(&here.control(), &push("b://x"));
    assert!(status.refusal.detail.contains("may not use"), "{status:?}");
    well(&here.control(), &push("a://x"));
    let status = done(&here.control(), &push("a://y"));
    assert_eq!((status.state, status.refusal.errno), (TaskState::Failed, 122), "{status:?}");
    assert!(!there.path("a/y").exists());
}

#[test]
fn room_comes_back_when_what_a_peer_has_put_here_is_removed() {
    let [(here, _), (there, at)] = pair();
    write(&here.path("a/x"), &[1; 1000]);
    write(&here.path("a/tree/x"), &[1; 500]);
    let used = || there.control().dataspaces().unwrap()[1].used;
    let push = |from: &str, to: &str| {
        well(&here.control(), &TaskSpec::new(Op::Copy, resource(from), Some(remote(to, &at))));
    };
    let remove = |place: &str| well(&there.control(), &TaskSpec::new(Op::Remove, resource(place), None));
    // It is told when the peer has gone, which this one may not have seen yet.
    let becomes = |bytes: u64| {
        while used() != bytes {
            std::thread::yield_now();
        }
    };
    push("a://x", "b://one");
    push("a://x", "b://dir/two");
    push("a://tree", "b://tree");
    becomes(2500);
    write(&there.path("b/own"), &[1; 2500]);
    remove("b://own");
    assert_eq!(used(), 2500);
    remove("b://one");
    assert_eq!(used(), 1500);
    remove("b://dir/two");
    assert_eq!(used(), 500);
    remove("b://tree");
    assert_eq!(used(), 0);
}

#[test]
fn what_a_peer_fetches_takes_a_stream_of_the_dataspace() {
    let [(here, _), (there, at)] = pair();
    let (puller, owner) = (here.control(), there.control());
    let mut space = owner.dataspaces().unwrap().remove(0).dataspace;
    space.streams_max = 1;
    owner.update_dataspace(&space).unwrap();
    write(&there.path("a/in"), &vec![1; 64 << 20]);
    let slow = |spec| TaskSpec { bandwidth: 16 << 20, ..spec };
    let pull = slow(TaskSpec::new(Op::Copy, remote("a://in", &at), Some(resource("b://out"))));
    let pull = puller.submit(&pull).unwrap();
    let moved = || puller.status(pull).unwrap().bytes_done;
    while moved() == 0 {
        std::thread::yield_now();
    }
    let own = owner.submit(&TaskSpec::new(Op::Copy, resource("a://in"), Some(resource("b://in")))).unwrap();
    let mut looks = 0;
    loop {
        let state = owner.status(own).unwrap().state;
        // Under way after the look, so also at its time.
        if moved() >= 40 << 20 {
            break;
        }
        assert_eq!(state, TaskState::Pending, "after {looks} looks");
        looks += 1;
    }
    assert!(looks > 0, "it was over too soon");
    for (stager, id) in [(&puller, pull), (&owner, own)] {
        let ended = stager.wait(&[id], false, None).unwrap();
        assert_eq!(ended[0].state, TaskState::Finished, "{ended:?}");
    }
}

#[test]
fn a_copy_goes_on_when_the_other_side_dies_and_comes_back() {
    let [(here, _), (mut there, at)] = pair();
    tree(&here, "tree");
    let stager = here.control();
    let push = TaskSpec {
        bandwidth: 16 << 20,
        ..TaskSpec::new(Op::Copy, resource("a://tree"), Some(remote("b://tree", &at)))
    };
    let id = stager.submit(&push).unwrap();
    for _ in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(500));
        there.restart();
    }
    let status = stager.wait(&[id], false, None).unwrap().remove(0);
    assert_eq!(status.state, TaskState::Finished, "{status:?}");
    same(&here.path("a/tree"), &there.path("b/tree"));
}

/// The other stager is stopped, with its workers: it is there, takes connections, and answers nothing.
#[test]
fn a_cancelled_task_does_not_wait_for_a_peer_that_does_not_answer() {
    let [(here, _), (there, at)] = pair();
    tree(&here, "tree");
    let stager = here.control();
    let copy = |to: &str| TaskSpec::new(Op::Copy, resource("a://tree"), Some(remote(to, &at)));
    // As long as the looks take, however busy the machine is; what is resumed goes on at full speed.
    let mut source = stager.dataspaces().unwrap().remove(0).dataspace;
    assert_eq!(source.name, "a://");
    source.bandwidth = 128 << 10;
    stager.update_dataspace(&source).unwrap();
    let under_way = stager.submit(&copy("b://one")).unwrap();
    while !there.path("b/one").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    there.signal_all("-STOP");
    let opening = stager.submit(&copy("b://two")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    for id in [under_way, opening] {
        stager.cancel(id).unwrap();
        let cancelled = std::time::Instant::now();
        let status = stager.wait(&[id], false, None).unwrap().remove(0);
        let took = cancelled.elapsed();
        println!("ended {} ms after it was cancelled", took.as_millis());
        assert_eq!((status.state, status.refusal.code), (TaskState::Cancelled, Code::CANCELLED));
        // The peer would be waited for for 30 s and more.
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    }
    there.signal_all("-CONT");
    stager.update_dataspace(&DataspaceSpec { bandwidth: 0, ..source }).unwrap();
    for (id, name) in [(under_way, "b/one"), (opening, "b/two")] {
        stager.resume(id).unwrap();
        assert_eq!(stager.wait(&[id], false, None).unwrap()[0].state, TaskState::Finished);
        same(&here.path("a/tree"), &there.path(name));
    }
}
