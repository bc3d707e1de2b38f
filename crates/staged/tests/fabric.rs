//! Stagers whose large data go over libfabric, and stagers that cannot.

mod support;

use std::process::Command;

fn check(config: &str) -> std::process::Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stager.toml");
    std::fs::write(&file, format!("{config}\n{}", support::listening(dir.path(), "127.0.0.1:0"))).unwrap();
    let program = env!("CARGO_BIN_EXE_tidepool-staged");
    Command::new(program).args(["--check", "--config"]).arg(file).output().unwrap()
}

#[cfg(not(feature = "libfabric"))]
#[test]
fn without_libfabric_a_fabric_is_a_clear_error() {
    let checked = check("fabric = \"tcp;ofi_rxm\"");
    let text = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(2), "{text}");
    assert!(text.contains("built without libfabric") && text.contains("tcp;ofi_rxm"), "{text}");
}

#[cfg(feature = "libfabric")]
mod with_libfabric {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use support::{Daemon, listening, remote, resource, same, well, write};
    use tidepool_stage_client::{Op, TaskSpec, TaskState};

    const PROVIDER: &str = "tcp;ofi_rxm";
    const BIG: usize = 60 << 20;

    /// A stager that others reach, with a fabric or without; where it listens. None where libfabric is not installed.
    fn stager(address: &str, provider: Option<&str>) -> (Daemon, String) {
        let listener = std::net::TcpListener::bind((address, 0)).unwrap();
        let at = listener.local_addr().unwrap().to_string();
        drop(listener);
        let fabric = provider.map_or(String::new(), |provider| format!("fabric = \"{provider}\"\n"));
        (Daemon::made(|dir| fabric + &listening(dir, &at), &[]), at)
    }

    fn has_libfabric() -> bool {
        let there = tidepool_stage::remote::Fabric::open(PROVIDER, Some("127.0.0.1"));
        let there = there.map_err(|error| println!("SKIPPED: {error}"));
        there.is_ok()
    }

    fn tree(daemon: &Daemon) {
        for n in 0..300 {
            write(&daemon.path(&format!("a/tree/d{}/f{n}", n % 7)), &vec![n as u8; n * 300]);
        }
        write(&daemon.path("a/tree/big"), &vec![3; BIG]);
    }

    /// Passes connections on to `to` for as long as the test runs; how many bytes went either way.
    fn counted(to: &str) -> (String, Arc<AtomicU64>) {
        let listener = TcpListener::bind("127.0.0.3:0").unwrap();
        let (at, to) = (listener.local_addr().unwrap().to_string(), to.to_string());
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&to) else { continue };
                let ways = [(&client, &server), (&server, &client)];
                for (from, to) in ways.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap())) {
                    let counter = Arc::clone(&counter);
                    std::thread::spawn(move || pass(from, to, &counter));
                }
            }
        });
        (at, count)
    }

    fn pass(mut from: TcpStream, mut to: TcpStream, counter: &AtomicU64) {
        let mut buf = [0; 64 << 10];
        while let Ok(count) = from.read(&mut buf) {
            counter.fetch_add(count as u64, Ordering::Relaxed);
            if count == 0 || to.write_all(&buf[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
    }

    #[test]
    fn trees_go_there_and_back_with_and_without_a_fabric_at_the_other_side() {
        if !has_libfabric() {
            return;
        }
        for other in [Some(PROVIDER), None] {
            let (here, _) = stager("127.0.0.1", Some(PROVIDER));
            let (mut there, at) = stager("127.0.0.2", other);
            let (at, over_tcp) = counted(&at);
            tree(&here);
            let client = here.control();
            well(&client, &TaskSpec::new(Op::Copy, resource("a://tree"), Some(remote("b://tree", &at))));
            same(&here.path("a/tree"), &there.path("b/tree"));
            there.restart();
            well(&client, &TaskSpec::new(Op::Copy, remote("b://tree", &at), Some(resource("b://back"))));
            same(&here.path("a/tree"), &here.path("b/back"));
            let over_tcp = over_tcp.load(Ordering::Relaxed);
            assert_eq!(
                over_tcp < BIG as u64 / 10,
                other.is_some(),
                "{other:?}: {over_tcp} bytes went over TCP"
            );
        }
    }

    /// The other stager is killed in the middle of the data, twice: the task waits for it and ends well.
    #[test]
    fn a_copy_survives_the_other_side_being_killed() {
        if !has_libfabric() {
            return;
        }
        let (here, _) = stager("127.0.0.1", Some(PROVIDER));
        let (mut there, at) = stager("127.0.0.2", Some(PROVIDER));
        tree(&here);
        let client = here.control();
        let copy = TaskSpec::new(Op::Copy, resource("a://tree"), Some(remote("b://tree", &at)));
        let id = client.submit(&TaskSpec { bandwidth: 40 << 20, ..copy }).unwrap();
        for _ in 0..2 {
            std::thread::sleep(std::time::Duration::from_millis(700));
            there.restart();
        }
        let ended = client.wait(&[id], false, None).unwrap().remove(0);
        assert_eq!(ended.state, TaskState::Finished, "{ended:?}");
        same(&here.path("a/tree"), &there.path("b/tree"));
    }

    #[test]
    fn a_provider_that_is_not_there_is_named_at_the_start() {
        assert!(check("fabric = \"nonsense\"").status.success(), "only a start opens it");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stager.toml");
        let config = format!("fabric = \"nonsense\"\n{}", support::listening(dir.path(), "127.0.0.1:0"));
        std::fs::write(&file, config).unwrap();
        let program = env!("CARGO_BIN_EXE_tidepool-staged");
        let mut command = Command::new(program);
        let started = command.arg("--config").arg(file).arg("--dir").arg(dir.path().join("run")).output();
        let started = started.unwrap();
        let text = String::from_utf8_lossy(&started.stderr);
        assert!(!started.status.success() && text.contains("nonsense"), "{text}");
    }
}
