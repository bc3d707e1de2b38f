//! Copies between nodes whose large data go over libfabric. `tcp;ofi_rxm` is real; only the cable is missing.

#![cfg(feature = "libfabric")]

mod support;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::remote::{Damage, Flipper, Plain, options, secret};
use support::{Place, memory_dir, noise};
use tidepool_stage::remote::{EndServer, Fabric, RemoteEnd, RemoteOptions};
use tidepool_stage::{Control, End, LocalEnd, StageOptions, StageReport, What, stage};

const PROVIDER: &str = "tcp;ofi_rxm";

/// An endpoint as each of two nodes has one; none, said loudly, where libfabric is not installed.
fn fabric() -> Option<Fabric> {
    match Fabric::open(PROVIDER, Some("127.0.0.1")) {
        Ok(fabric) => Some(fabric),
        Err(error) => {
            println!("SKIPPED: {error}");
            assert!(error.contains("libfabric.so"), "{error}");
            None
        }
    }
}

fn serve(base: &Path, fabric: Option<Fabric>) -> EndServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    EndServer::start_with(listener, secret(), Arc::new(Plain(base.into())), fabric, "").unwrap()
}

fn open(address: SocketAddr, path: &str, write: bool, fabric: &Fabric) -> RemoteEnd {
    let fabric = Some(fabric.clone());
    RemoteEnd::open(RemoteOptions { fabric, ..options(address, path, write) }).unwrap()
}

fn copy(src: &dyn End, dst: &dyn End, options: &StageOptions) -> StageReport {
    stage(src, dst, &What::Tree, options, &Control::default())
}

fn fill(place: &Place) -> u64 {
    fs::write(place.src().join("large"), noise(40_000_000, 3)).unwrap();
    for i in 0..200 {
        fs::write(place.src().join(format!("f{i}")), noise(i * 700, i as u64)).unwrap();
    }
    fs::read_dir(place.src()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// Copies the tree to the node behind the proxy, or back from there.
fn copy_through(proxy: &Flipper, place: &Place, here: &Fabric, back: bool) -> StageReport {
    if back {
        let dst = LocalEnd::create(&place.dst()).unwrap();
        return copy(&open(proxy.address, "src", false, here), &dst, &StageOptions::default());
    }
    let src = LocalEnd::open(&place.src()).unwrap();
    copy(&src, &open(proxy.address, "dst", true, here), &StageOptions::default())
}

#[test]
fn the_torture_tree_survives_there_and_back() {
    let (Some(here), Some(there)) = (fabric(), fabric()) else { return };
    let place = Place::with_torture(memory_dir());
    let server = serve(place.dir.path(), Some(there));
    let report = copy(
        &LocalEnd::open(&place.src()).unwrap(),
        &open(server.address(), "dst", true, &here),
        &place.options(),
    );
    assert!(report.complete, "{report:#?}");
    place.assert_same();
    fs::remove_dir_all(place.dst()).unwrap();
    let report = copy(
        &open(server.address(), "src", false, &here),
        &LocalEnd::create(&place.dst()).unwrap(),
        &StageOptions::default(),
    );
    assert!(report.complete, "{report:#?}");
    place.assert_same();
}

/// Bytes on the connections are counted: nearly all data go the other way.
#[test]
fn large_data_do_not_go_over_the_connection() {
    let (Some(here), Some(there)) = (fabric(), fabric()) else { return };
    for back in [false, true] {
        let place = Place::new(memory_dir());
        let bytes = fill(&place);
        let server = serve(place.dir.path(), Some(there.clone()));
        let proxy = Flipper::start(server.address(), u64::MAX);
        let before = (here.moved(), there.moved());
        let report = copy_through(&proxy, &place, &here, back);
        assert!(report.complete, "{report:#?}");
        place.assert_same();
        let passed = proxy.passed.load(Ordering::Relaxed);
        assert!(passed < bytes / 20, "back {back}: {passed} of {bytes} bytes went over TCP");
        for (fabric, before) in [(&here, before.0), (&there, before.1)] {
            let moved = fabric.moved() - before;
            assert!(moved > bytes * 9 / 10 && moved < bytes * 11 / 10, "back {back}: {moved} of {bytes}");
        }
    }
}

#[test]
fn a_node_without_the_fabric_is_reached_over_tcp() {
    let (Some(here), Some(other)) = (fabric(), Fabric::open("shm", None).ok()) else { return };
    for theirs in [None, Some(other)] {
        let place = Place::new(memory_dir());
        fill(&place);
        let server = serve(place.dir.path(), theirs);
        let report = copy(
            &LocalEnd::open(&place.src()).unwrap(),
            &open(server.address(), "dst", true, &here),
            &StageOptions::default(),
        );
        assert!(report.complete, "{report:#?}");
        place.assert_same();
        assert_eq!(here.moved(), 0);
        // And a client that has none asks for none.
        let plain = RemoteEnd::open(options(server.address(), "dst", false)).unwrap();
        let back = LocalEnd::create(&place.dir.path().join("back")).unwrap();
        assert!(copy(&plain, &back, &StageOptions::default()).complete);
    }
}

/// The connections break in the middle of data; what is lost is sent again, over the fabric again.
#[test]
fn broken_connections_cost_no_data() {
    let (Some(here), Some(there)) = (fabric(), fabric()) else { return };
    for back in [false, true] {
        let place = Place::new(memory_dir());
        let bytes = fill(&place);
        let server = serve(place.dir.path(), Some(there.clone()));
        let proxy = Flipper::with(server.address(), Damage { flip: u64::MAX, cut: 9_000 });
        let report = copy_through(&proxy, &place, &here, back);
        place.assert_no_partial_file();
        assert!(report.complete, "back {back}: {report:#?}");
        place.assert_same();
        assert!(here.moved() > bytes / 2, "back {back}");
    }
}

/// A peer that goes while data are on their way is an error soon, not a wait for messages that never come.
#[test]
fn a_server_that_stops_is_noticed_at_once() {
    let (Some(here), Some(there)) = (fabric(), fabric()) else { return };
    let place = Place::new(memory_dir());
    fs::write(place.src().join("large"), vec![1; 400 << 20]).unwrap();
    let mut server = serve(place.dir.path(), Some(there));
    let options = RemoteOptions {
        patience: Duration::from_millis(300),
        fabric: Some(here.clone()),
        ..options(server.address(), "dst", true)
    };
    let remote = RemoteEnd::open(options).unwrap();
    let src = LocalEnd::open(&place.src()).unwrap();
    let report = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&src, &remote, &StageOptions::default()));
        while here.moved() < 20 << 20 && !copying.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        server.stop();
        copying.join().unwrap()
    });
    assert!(!report.complete && report.error_count > 0, "{report:#?}");
    place.assert_no_partial_file();
}
