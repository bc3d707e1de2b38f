//! A stager asked from another node: its own protocol over TCP, for who knows the secret.

mod support;

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use support::{Daemon, copy, resource, well, write};
use tidepool_stage_client::{
    Code, Command, OnBehalf, Op, Resource, Secret, StageError, Stager, TaskSpec, TaskState,
};

fn start() -> (Daemon, String) {
    let at = tidepool_testkit::free_address().to_string();
    (Daemon::with_peers(&at), at)
}

fn secret() -> Secret {
    support::admin_secret()
}

fn connect(at: &str) -> Stager {
    Stager::connect_at(at, &secret()).unwrap()
}

#[test]
fn who_knows_the_secret_administers_and_submits() {
    let (daemon, at) = start();
    write(&daemon.path("a/x"), b"12345");
    let stager = connect(&at);
    assert!(stager.is_control());
    assert_eq!((stager.pid(), stager.at().to_string()), (daemon.pid(), at.clone()));
    well(&stager, &copy("a://x", "b://y"));
    assert_eq!(std::fs::read(daemon.path("b/y")).unwrap(), b"12345");
    // Only root may work in the name of others.
    let own = rustix::process::getuid().as_raw();
    let user = if own == 0 { 7 } else { own };
    let behalf = Some(OnBehalf { uid: user, gid: user, job: 0 });
    let task = TaskSpec { on_behalf: behalf, ..copy("a://x", "b://z") };
    assert_eq!(well(&stager, &task).uid, user);
    assert_eq!(stager.list(None, None).unwrap().len(), 2);
    // What is said here is known on the node, and the other way round.
    stager.command(Command::Pause).unwrap();
    assert!(daemon.control().daemon_status().unwrap().paused);
}

#[test]
fn strangers_learn_nothing_and_errors_name_the_address() {
    let (daemon, at) = start();
    let error = Stager::connect_at(&at, &Secret::random()).err().unwrap();
    let text = error.to_string();
    assert!(text.contains(&at) && text.contains("secret"), "{text}");
    assert!(
        matches!(&error, StageError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied),
        "{error:?}"
    );
    drop(daemon);
    let error = Stager::connect_at(&at, &secret()).err().unwrap();
    assert_eq!(error.code(), Code::CONNECTION_FAILED);
    let text = error.to_string();
    assert!(text.contains(&at) && text.contains("'listen'"), "{text}");
}

#[test]
fn a_wait_outlives_the_stager() {
    let (mut daemon, at) = start();
    write(&daemon.path("a/x"), &vec![1; 32 << 20]);
    let stager = connect(&at);
    let id = stager.submit(&TaskSpec { bandwidth: 16 << 20, ..copy("a://x", "b://x") }).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| stager.wait(&[id], false, None));
        while daemon.control().status(id).unwrap().bytes_done == 0 {
            std::thread::yield_now();
        }
        daemon.restart();
        let ended = waits.join().unwrap().unwrap();
        assert_eq!(ended[0].state, TaskState::Finished, "{ended:?}");
    });
    assert_eq!(stager.pid(), daemon.pid());
}

#[test]
fn memory_of_another_node_is_refused() {
    let (daemon, at) = start();
    let stager = connect(&at);
    // Addresses of the stager itself, were it taken for who asks.
    let memory = Resource::Memory { address: 4096, size: 4096 };
    for task in [
        TaskSpec::new(Op::Copy, memory.clone(), Some(resource("a://x"))),
        TaskSpec::new(Op::Copy, resource("a://x"), Some(memory)),
    ] {
        for refused in [stager.submit(&task).map(drop), stager.plan(&task).map(drop)] {
            let error = refused.unwrap_err();
            assert!(error.code() == Code::BAD_ARGS && error.to_string().contains("another node"), "{error}");
        }
    }
    assert_eq!(daemon.control().list(None, None).unwrap().len(), 0);
}

#[test]
fn many_requests_and_long_answers_pass() {
    let (daemon, at) = start();
    let stager = connect(&at);
    let long = "x".repeat(900);
    let tasks: Vec<TaskSpec> =
        (0..3000).map(|n| TaskSpec::new(Op::Remove, resource(&format!("a://{n}{long}")), None)).collect();
    let submitted = stager.submit_many(tasks).unwrap();
    assert!(submitted.ids.len() == 3000 && submitted.refused.is_empty());
    std::thread::scope(|scope| {
        for chunk in submitted.ids.chunks(750) {
            let stager = &stager;
            scope.spawn(move || {
                let ended = stager.wait(chunk, false, None).unwrap();
                assert!(ended.iter().all(|task| task.state == TaskState::Failed));
                chunk.iter().take(100).for_each(|id| assert_eq!(stager.status(*id).unwrap().id, *id));
            });
        }
    });
    assert_eq!(stager.list(None, None).unwrap().len(), 3000);
    assert_eq!(daemon.control().list(None, None).unwrap().len(), 3000);
}

#[test]
fn a_shutdown_is_answered() {
    let (mut daemon, at) = start();
    for _ in 0..20 {
        connect(&at).command(Command::Shutdown).unwrap();
        assert!(daemon.wait_gone().success());
        daemon.launch();
    }
}

/// Who goes away leaves no connection behind at the stager.
#[test]
fn the_end_of_one_side_is_the_end_of_the_other() {
    let (daemon, at) = start();
    let own = daemon.control();
    let connections = || {
        let counters = own.daemon_status().unwrap().counters;
        counters.into_iter().find(|(name, _)| name == "connections").unwrap().1
    };
    let before = connections();
    let guests: Vec<Stager> = (0..10).map(|_| connect(&at)).collect();
    assert_eq!(connections(), before + 10);
    drop(guests);
    while connections() > before {
        std::thread::yield_now();
    }
}

/// Passes bytes on, and tells of the connection it has to the stager.
fn relay(to: &str) -> (String, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let to: SocketAddr = to.parse().unwrap();
    let (tell, heard) = channel();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(to) else { continue };
            if tell.send(server.try_clone().unwrap()).is_err() {
                return;
            }
            let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut into));
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &server, &mut &client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    (address, heard)
}

#[test]
fn a_request_whose_connection_breaks_is_asked_again_where_that_is_safe() {
    let (daemon, at) = start();
    let (through, connections) = relay(&at);
    let stager = connect(&through);
    connections.recv().unwrap().shutdown(Shutdown::Both).unwrap();
    assert_eq!(stager.daemon_status().unwrap().node, daemon.control().node());
    drop(connections.recv().unwrap());
}
