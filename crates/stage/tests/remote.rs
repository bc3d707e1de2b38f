//! Copies to, from and between other nodes: everything that goes right locally goes right
//! over connections, and what goes wrong is told, never hidden.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::fault::Fault;
use support::remote::{Damage, Dirs, Flipper, Plain, open, options, secret, serve, serve_roots};
use support::{Place, memory_dir, noise};
use tidepool_stage::remote::{
    Answer, Ask, CONNECTIONS_MAX, EndServer, RemoteEnd, RemoteOptions, RootRequest,
};
use tidepool_stage::{At, Control, End, LocalEnd, StageOptions, StageReport, What, move_tree, stage};
use tidepool_transport::Secret;
use tidepool_transport::remote::{Meant, connect};
use tidepool_types::Errno;

fn copy(src: &dyn End, dst: &dyn End, options: &StageOptions) -> StageReport {
    stage(src, dst, &What::Tree, options, &Control::default())
}

fn local_src(place: &Place) -> LocalEnd {
    LocalEnd::open(&place.src()).unwrap()
}

#[test]
fn the_torture_tree_survives_local_to_remote() {
    let place = Place::with_torture(memory_dir());
    let server = serve(place.dir.path());
    let report = copy(&local_src(&place), &open(server.address(), "dst", true), &place.options());
    assert!(report.complete, "{report:#?}");
    place.assert_same();
    assert!(place.parts_left().is_empty());
}

#[test]
fn the_torture_tree_survives_remote_to_local() {
    let place = Place::with_torture(memory_dir());
    let server = serve(place.dir.path());
    let dst = LocalEnd::create(&place.dst()).unwrap();
    let report = copy(&open(server.address(), "src", false), &dst, &place.options());
    assert!(report.complete, "{report:#?}");
    place.assert_same();
}

#[test]
fn the_torture_tree_survives_remote_to_remote() {
    let place = Place::with_torture(memory_dir());
    let (one, two) = (serve(place.dir.path()), serve(place.dir.path()));
    let (src, dst) = (open(one.address(), "src", false), open(two.address(), "dst", true));
    let report = copy(&src, &dst, &place.options());
    assert!(report.complete, "{report:#?}");
    place.assert_same();
    let again = copy(&src, &dst, &place.options());
    assert!(again.complete && again.bytes_copied == 0, "{again:#?}");
}

#[test]
fn a_tree_is_moved_from_and_to_another_node() {
    let place = Place::with_torture(memory_dir());
    let server = serve(place.dir.path());
    let options = StageOptions { journal_dir: None, ..place.options() };
    let there = move_tree(
        &local_src(&place),
        &open(server.address(), "there", true),
        &What::Tree,
        &options,
        &Control::default(),
    );
    assert!(there.complete && !there.renamed, "{there:#?}");
    assert_eq!(fs::read_dir(place.src()).unwrap().count(), 0);
    let back = move_tree(
        &open(server.address(), "there", true),
        &local_src(&place),
        &What::Tree,
        &options,
        &Control::default(),
    );
    assert!(back.complete, "{back:#?}");
    assert_eq!(fs::read_dir(place.dir.path().join("there")).unwrap().count(), 0);
    assert_eq!(fs::read(place.src().join("a/b/page")).unwrap(), noise(4096, 1));
}

/// One stream, one worker, one connection beside it: nothing waits for itself.
#[test]
fn a_single_stream_is_enough() {
    let place = Place::with_torture(memory_dir());
    let server = serve(place.dir.path());
    let mut one = options(server.address(), "dst", true);
    one.streams = 1;
    let workers = StageOptions { workers: 8, ..place.options() };
    assert!(copy(&local_src(&place), &RemoteEnd::open(one).unwrap(), &workers).complete);
    place.assert_same();
    // Both ends are the same one.
    let mut one = options(server.address(), "", true);
    one.streams = 1;
    let both = RemoteEnd::open(one).unwrap();
    let what = What::Entry { from: b"src".to_vec(), to: b"third".to_vec() };
    let report = stage(
        &both,
        &both,
        &what,
        &StageOptions { workers: 8, ..StageOptions::default() },
        &Control::default(),
    );
    assert!(report.complete, "{report:#?}");
}

#[test]
fn many_files_and_large_ones_go_both_ways() {
    let place = Place::new(memory_dir());
    for dir in 0..20 {
        fs::create_dir(place.src().join(format!("d{dir}"))).unwrap();
        for file in 0..100 {
            let path = place.src().join(format!("d{dir}/f{file}"));
            fs::write(path, noise(file * 97, dir * 1000 + file as u64)).unwrap();
        }
    }
    fs::write(place.src().join("large"), noise(50_000_003, 1)).unwrap();
    fs::write(place.src().join("middle"), noise(3_000_001, 2)).unwrap();
    let server = serve(place.dir.path());
    let report = copy(&local_src(&place), &open(server.address(), "dst", true), &StageOptions::default());
    assert!(report.complete, "{report:#?}");
    assert_eq!(report.files, 2002);
    place.assert_same();
    fs::remove_dir_all(place.dst()).unwrap();
    let dst = LocalEnd::create(&place.dst()).unwrap();
    assert!(copy(&open(server.address(), "src", false), &dst, &StageOptions::default()).complete);
    place.assert_same();
}

/// The data is read back at the other node, not sent back.
/// A pack of all files is ten times as long as any connection lives.
#[test]
fn small_files_come_through_connections_that_do_not_last() {
    let damage = Damage { flip: u64::MAX, cut: 20_000 };
    for back in [false, true] {
        let place = Place::new(memory_dir());
        for i in 0..250u64 {
            fs::write(place.src().join(format!("f{i}")), noise(700, i)).unwrap();
        }
        let server = serve(place.dir.path());
        let proxy = Flipper::with(server.address(), damage);
        let report = if back {
            let dst = LocalEnd::create(&place.dst()).unwrap();
            copy(&open(proxy.address, "src", false), &dst, &StageOptions::default())
        } else {
            copy(&local_src(&place), &open(proxy.address, "dst", true), &StageOptions::default())
        };
        assert!(report.complete, "back {back}: {report:#?}");
        place.assert_same();
        assert!(proxy.passed.load(Ordering::Relaxed) > 250 * 700, "the data went another way");
    }
}

#[test]
fn verification_moves_no_data() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("large"), noise(64 << 20, 1)).unwrap();
    for i in 0..200 {
        fs::write(place.src().join(format!("f{i}")), noise(20_000, i)).unwrap();
    }
    let server = serve(place.dir.path());
    // Never flips, only counts.
    let proxy = Flipper::start(server.address(), u64::MAX);
    let report = copy(&local_src(&place), &open(proxy.address, "dst", true), &StageOptions::default());
    assert!(report.complete, "{report:#?}");
    place.assert_same();
    let (data, moved) = (report.bytes_copied, proxy.passed.load(Ordering::Relaxed));
    assert!(moved < data + data / 20, "{moved} bytes for {data}");
}

#[test]
fn flipped_bits_on_the_way_are_found() {
    for (every, back) in [(3 << 20, false), (3 << 20, true), (300_001, false), (300_001, true)] {
        let place = Place::new(memory_dir());
        fs::write(place.src().join("large"), noise(30_000_000, 1)).unwrap();
        for i in 0..300 {
            fs::write(place.src().join(format!("f{i}")), noise(i * 7, i as u64)).unwrap();
        }
        let server = serve(place.dir.path());
        let proxy = Flipper::start(server.address(), every);
        let brief = |path, write| {
            // Where every piece is damaged there is no use in waiting.
            let patience = if every > 1 << 20 { Duration::from_secs(20) } else { Duration::from_secs(1) };
            RemoteEnd::open(RemoteOptions { patience, ..options(proxy.address, path, write) })
        };
        let report = if back {
            let dst = LocalEnd::create(&place.dst()).unwrap();
            brief("src", false)
                .map(|src| copy(&src, &dst, &StageOptions { workers: 3, ..StageOptions::default() }))
        } else {
            brief("dst", true).map(|dst| {
                copy(&local_src(&place), &dst, &StageOptions { workers: 3, ..StageOptions::default() })
            })
        };
        let report = report.unwrap();
        assert!(proxy.flips.load(Ordering::Relaxed) > 5);
        place.assert_no_partial_file();
        if report.complete {
            place.assert_same();
        }
        if every > 1 << 20 {
            assert!(report.complete, "rare damage is mended: {report:#?}");
        }
    }
}

#[test]
fn a_full_disk_is_named_with_its_node() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("one"), noise(5000, 1)).unwrap();
    let roots = Dirs { base: place.dir.path().into(), fault: Fault::NoSpace, at: 0 };
    let server = serve_roots(Arc::new(roots));
    let mut named = options(server.address(), "dst", true);
    named.node = "n9".into();
    let report = copy(&local_src(&place), &RemoteEnd::open(named).unwrap(), &StageOptions::default());
    let error = &report.errors[0];
    // The injected error names a node of its own, as a pool's daemon would be.
    assert_eq!((error.node.as_deref(), error.errno), (Some("n7"), Some(Errno::ENOSPC)), "{error}");
    assert!(error.to_string().contains("free space"), "{error}");
}

/// Faults at many calls of the end behind the server: what holds locally holds remotely.
fn faults_behind_the_server(fault: Fault) {
    let mut incomplete = 0;
    for at in (0..200).step_by(3) {
        let place = Place::new(memory_dir());
        fs::create_dir(place.src().join("d")).unwrap();
        fs::write(place.src().join("one"), noise(5000, 1)).unwrap();
        fs::write(place.src().join("d/two"), noise(20_000, 2)).unwrap();
        fs::hard_link(place.src().join("one"), place.src().join("d/linked")).unwrap();
        std::os::unix::fs::symlink("two", place.src().join("d/link")).unwrap();
        support::sparse(&place.src().join("large"), 32 << 20, &[0, 12 << 20, 24 << 20]);
        let roots = Dirs { base: place.dir.path().into(), fault, at };
        let server = serve_roots(Arc::new(roots));
        let Ok(dst) = RemoteEnd::open(options(server.address(), "dst", true)) else { continue };
        let report = copy(&local_src(&place), &dst, &StageOptions { workers: 2, ..place.options() });
        place.assert_no_partial_file();
        if report.complete {
            place.assert_same();
        } else {
            incomplete += 1;
            assert!(report.error_count > 0);
        }
        let server = serve(place.dir.path());
        let second = copy(&local_src(&place), &open(server.address(), "dst", true), &place.options());
        // The journal of a copy is found by the end's identity, which is the same.
        assert!(second.complete, "{fault:?} at {at}: {second:#?}");
        place.assert_same();
        assert!(place.parts_left().is_empty(), "{fault:?} at {at}");
    }
    assert!(incomplete > 5 || matches!(fault, Fault::FlipOnce | Fault::ShortWrites), "{incomplete}");
}

#[test]
fn an_error_behind_the_server() {
    faults_behind_the_server(Fault::Once);
}

#[test]
fn a_full_disk_behind_the_server() {
    faults_behind_the_server(Fault::NoSpace);
}

#[test]
fn a_wrong_bit_behind_the_server() {
    faults_behind_the_server(Fault::FlipOnce);
}

#[test]
fn short_writes_behind_the_server() {
    faults_behind_the_server(Fault::ShortWrites);
}

/// One run of [`random_faults_give_no_wrong_success`]: something wrong at the end, something
/// wrong on the way, in some direction.
fn random_run(seed: u64) -> bool {
    let word = |n: u64| {
        let bytes = noise(8, seed.wrapping_mul(1000) + n);
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    let kinds = [
        Fault::None,
        Fault::Once,
        Fault::Dead,
        Fault::NoSpace,
        Fault::ShortWrites,
        Fault::FlipOnce,
        Fault::Restless,
    ];
    let fault = kinds[word(1) as usize % kinds.len()];
    let (at, to_remote) = (word(2) % 150, word(3) % 2 == 0);
    let far = |n: u64| if word(n) % 2 == 0 { u64::MAX } else { 200_000 + word(n + 1) % 4_000_000 };
    let damage = Damage { flip: far(4), cut: far(6) };
    let case = format!("seed {seed}: {fault:?} at {at}, to remote {to_remote}, {damage:?}");
    let place = Place::new(memory_dir());
    fs::create_dir(place.src().join("d")).unwrap();
    for i in 0..40 {
        let name = format!("{}f{i}", if i % 2 == 0 { "" } else { "d/" });
        fs::write(place.src().join(name), noise((word(100 + i) % 9000) as usize, i)).unwrap();
    }
    fs::hard_link(place.src().join("f0"), place.src().join("d/linked")).unwrap();
    std::os::unix::fs::symlink("f1", place.src().join("d/link")).unwrap();
    fs::write(place.src().join("large"), noise(1_000_000, seed).repeat(18)).unwrap();
    let server = serve_roots(Arc::new(Dirs { base: place.dir.path().into(), fault, at }));
    let proxy = Flipper::with(server.address(), damage);
    let run = |address, patience| {
        let path = if to_remote { "dst" } else { "src" };
        let remote = RemoteEnd::open(RemoteOptions { patience, ..options(address, path, to_remote) })?;
        let staging = StageOptions { workers: 3, ..place.options() };
        Ok::<_, tidepool_stage::EndError>(if to_remote {
            copy(&local_src(&place), &remote, &staging)
        } else {
            copy(&remote, &LocalEnd::create(&place.dst())?, &staging)
        })
    };
    let first = run(proxy.address, Duration::from_millis(200));
    place.assert_no_partial_file();
    let complete = first.as_ref().is_ok_and(|report| report.complete);
    match first {
        Ok(report) if report.complete => place.assert_same(),
        Ok(report) => assert!(report.error_count > 0, "{case}: silent"),
        Err(error) => assert!(error.node().is_some() || fault != Fault::None, "{case}: {error}"),
    }
    let server = serve(place.dir.path());
    let second = run(server.address(), Duration::from_secs(20)).unwrap();
    assert!(second.complete, "{case}: {second:#?}");
    place.assert_same();
    assert!(place.parts_left().is_empty(), "{case}: {:?}", place.parts_left());
    complete
}

/// `TIDEPOOL_FAULT_RUNS` sets how many, `TIDEPOOL_SEED` where they start.
#[test]
fn random_faults_give_no_wrong_success() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (runs, start) = (number("TIDEPOOL_FAULT_RUNS").unwrap_or(12), number("TIDEPOOL_SEED").unwrap_or(1));
    let complete = (start..start + runs)
        .filter(|seed| {
            println!("TIDEPOOL_SEED={seed} TIDEPOOL_FAULT_RUNS=1");
            random_run(*seed)
        })
        .count();
    println!("{runs} random fault runs, {complete} of them complete at once");
}

#[test]
fn who_does_not_know_the_secret_gets_nothing() {
    let place = Place::new(memory_dir());
    let server = serve(place.dir.path());
    let mut wrong = options(server.address(), "src", false);
    wrong.reach = Secret::random().into();
    let error = RemoteEnd::open(wrong).err().unwrap();
    assert_eq!((error.errno, error.node()), (Errno::EACCES, Some("n7")), "{error}");
}

#[test]
fn what_the_resolver_refuses_is_refused() {
    let place = Place::new(memory_dir());
    let roots = Dirs { base: place.dir.path().into(), fault: Fault::None, at: 0 };
    let server = serve_roots(Arc::new(roots));
    let mut other = options(server.address(), "src", false);
    other.root.dataspace = "other".into();
    let error = RemoteEnd::open(other).err().unwrap();
    assert_eq!((error.errno, error.operation), (Errno::ENOENT, "open dataspace"), "{error}");
}

#[test]
fn a_root_opened_for_reading_is_not_written() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("f"), b"x").unwrap();
    let server = serve(place.dir.path());
    let end = open(server.address(), "src", false);
    let root = end.root();
    assert_eq!(end.create(&root, b"g").err().unwrap().errno, Errno::EROFS);
    assert_eq!(end.unlink(&root, b"f").err().unwrap().errno, Errno::EROFS);
    assert_eq!(end.open_write(&root, b"f").err().unwrap().errno, Errno::EROFS);
    assert!(end.open_read(&root, b"f").is_ok());
}

#[test]
fn names_cannot_lead_out() {
    let place = Place::new(memory_dir());
    fs::write(place.dir.path().join("outside"), b"x").unwrap();
    let server = serve(place.dir.path());
    let end = open(server.address(), "src", true);
    let root = end.root();
    for name in [&b".."[..], b".", b"", b"../outside", b"a/b", b"a\0b"] {
        assert_eq!(end.stat(At::Name(&root, name)).err().unwrap().errno, Errno::EINVAL);
        assert_eq!(end.open_read(&root, name).err().unwrap().errno, Errno::EINVAL);
        assert_eq!(end.open_dir(&root, name).err().unwrap().errno, Errno::EINVAL);
    }
}

/// Both sides of all connections are in this process, twice each.
fn allow_files(count: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < count) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..now }).unwrap();
    }
}

#[test]
fn connections_above_the_limit_are_refused_and_files_are_given_back() {
    allow_files(4 * CONNECTIONS_MAX as u64 + 1000);
    let place = Place::new(memory_dir());
    let server = serve(place.dir.path());
    let ends: Vec<_> = (0..CONNECTIONS_MAX).map(|_| open(server.address(), "src", false)).collect();
    let mut more = options(server.address(), "src", false);
    more.patience = Duration::from_millis(50);
    let error = RemoteEnd::open(more).err().unwrap();
    assert!(error.to_string().contains("try again later"), "{error}");
    drop(ends);
    // The threads notice one by one.
    open(server.address(), "src", false);
}

#[test]
fn whole_buffers_are_written_and_read() {
    let place = Place::new(memory_dir());
    let server = serve(place.dir.path());
    let end = open(server.address(), "dst", true);
    let data = noise(20_000_001, 5);
    end.write_file(&end.root(), b"memory", &data, 0o640).unwrap();
    assert!(fs::read(place.dst().join("memory")).unwrap() == data);
    assert_eq!(fs::metadata(place.dst().join("memory")).unwrap().permissions().mode() & 0o777, 0o640);
    let mut back = vec![0; 30_000_000];
    let count = end.read_file(&end.root(), b"memory", 1, &mut back).unwrap();
    assert!(back[..count] == data[1..]);
    end.write_file(&end.root(), b"memory", b"", 0o600).unwrap();
    assert_eq!(fs::metadata(place.dst().join("memory")).unwrap().size(), 0);
}

#[test]
fn a_node_that_stays_away_is_an_error_that_names_it() {
    let place = Place::new(memory_dir());
    for i in 0..2000 {
        fs::write(place.src().join(format!("f{i}")), b"x").unwrap();
    }
    let mut server = serve(place.dir.path());
    let mut brief = options(server.address(), "dst", true);
    brief.patience = Duration::from_millis(200);
    let dst = RemoteEnd::open(brief).unwrap();
    server.stop();
    let report = copy(&local_src(&place), &dst, &StageOptions::default());
    assert!(!report.complete);
    let error = &report.errors[0];
    assert_eq!(error.node.as_deref(), Some("n7"), "{error}");
    assert!(error.to_string().contains("for 0.2 s"), "{error}");
}

/// A node that is there and never answers must not hold up who gives up on it.
#[test]
fn an_abandoned_end_waits_for_nobody() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place::new(memory_dir());
    let mut server = serve(place.dir.path());
    let end = open(server.address(), "src", false);
    server.stop();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| end.ping());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!asking.is_finished());
        end.abandon();
        assert_eq!(asking.join().unwrap().unwrap_err().errno, Errno::ECANCELED);
        assert_eq!(end.ping().unwrap_err().errno, Errno::ECANCELED);
    });
    let mut brief = options(silent.local_addr().unwrap(), "src", false);
    brief.patience = Duration::from_millis(10);
    assert_eq!(RemoteEnd::open(brief).err().unwrap().node(), Some("n7"));
}

/// Nor whoever waits for it to greet, or for the network to say that it is there.
#[test]
fn an_end_is_abandoned_while_it_opens() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Addresses for documentation, which nobody answers for (RFC 5737).
    let nowhere = "192.0.2.1:9".parse().unwrap();
    for address in [silent.local_addr().unwrap(), nowhere] {
        let (tell, told) = std::sync::mpsc::channel();
        let opening = std::thread::spawn(move || {
            RemoteEnd::open_noting(options(address, "src", false), |handle| tell.send(handle).unwrap())
        });
        let handle = told.recv().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        handle.abandon();
        let abandoned = std::time::Instant::now();
        let error = opening.join().unwrap().err().unwrap();
        let took = abandoned.elapsed();
        assert_eq!(error.errno, Errno::ECANCELED, "{error}");
        // Without being abandoned it tries for 20 s.
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

/// Serves until it is killed; see [`a_killed_and_restarted_server_costs_nothing`].
#[test]
#[ignore = "started by another test"]
fn child_serves() {
    let Ok(base) = std::env::var("TIDEPOOL_TEST_SERVE") else { return };
    let address = std::env::var("TIDEPOOL_TEST_ADDRESS").unwrap();
    let listener = loop {
        // The address of the killed one may linger.
        match std::net::TcpListener::bind(&address) {
            Ok(listener) => break listener,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let _server = EndServer::start(listener, secret(), Arc::new(Plain(base.into()))).unwrap();
    loop {
        std::thread::park();
    }
}

fn spawn_server(base: &std::path::Path, address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child_serves", "--exact", "--ignored"])
        .env("TIDEPOOL_TEST_SERVE", base)
        .env("TIDEPOOL_TEST_ADDRESS", address)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A server process killed again and again while a copy runs: the copy goes on, and what it
/// calls complete is complete.
fn kill_and_restart(to_remote: bool) {
    let place = Place::with_torture(memory_dir());
    for dir in 0..30 {
        fs::create_dir(place.src().join(format!("d{dir}"))).unwrap();
        for file in 0..60 {
            let path = place.src().join(format!("d{dir}/f{file}"));
            fs::write(path, noise(file * 211, dir * 100 + file as u64)).unwrap();
        }
    }
    fs::write(place.src().join("large"), noise(200_000_003, 9)).unwrap();
    let address = tidepool_testkit::free_address().to_string();
    let mut server = spawn_server(place.dir.path(), &address);
    let path = if to_remote { "dst" } else { "src" };
    let remote = RemoteEnd::open(options(address.parse().unwrap(), path, to_remote)).unwrap();
    let local = if to_remote { local_src(&place) } else { LocalEnd::create(&place.dst()).unwrap() };
    // Slow enough to be hit several times.
    let options = StageOptions { bandwidth: Some(60_000_000), ..place.options() };
    let (report, kills) = std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            if to_remote { copy(&local, &remote, &options) } else { copy(&remote, &local, &options) }
        });
        let mut kills = 0;
        while !copying.is_finished() {
            std::thread::sleep(Duration::from_millis(400));
            server.kill().unwrap();
            server.wait().unwrap();
            server = spawn_server(place.dir.path(), &address);
            kills += 1;
        }
        (copying.join().unwrap(), kills)
    });
    assert!(kills > 2, "the copy was over after {kills} kills");
    place.assert_no_partial_file();
    if !report.complete {
        assert!(report.error_count > 0);
        let options = StageOptions { bandwidth: None, ..options };
        let second =
            if to_remote { copy(&local, &remote, &options) } else { copy(&remote, &local, &options) };
        assert!(second.complete, "{second:#?}");
        assert!(second.bytes_copied < 200_000_000, "nothing was resumed: {}", second.bytes_copied);
    }
    println!("{kills} kills, complete at once: {}, errors {:?}", report.complete, report.errors);
    place.assert_same();
    assert!(place.parts_left().is_empty(), "{:?}", place.parts_left());
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_killed_and_restarted_target_costs_nothing() {
    kill_and_restart(true);
}

#[test]
fn a_killed_and_restarted_source_costs_nothing() {
    kill_and_restart(false);
}

/// Numbers at which arithmetic goes wrong.
const EXTREMES: [u64; 7] = [0, 1, 4096, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX];

/// Where a file has no such place the peer is told so; nothing overflows, and the session goes on.
#[test]
fn places_that_no_file_has_are_refused_and_nothing_else_happens() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("x"), noise(10_000, 1)).unwrap();
    let server = serve(place.dir.path());
    let root = RootRequest {
        dataspace: "test".into(),
        path: b"src".to_vec(),
        write: true,
        ..RootRequest::default()
    };
    let mut channel = connect(&server.address().to_string(), &secret(), ("", &Meant::anybody())).unwrap();
    let mut ask = |kind: u16, fields: &[u8], bulk: &[u8]| {
        channel.send(kind, 1, |out| out.extend_from_slice(fields), &[bulk]).unwrap();
        let head = channel.receive().expect("each request is answered");
        channel.bulk(&head).unwrap();
        Answer::decode(head.kind, channel.meta()).unwrap()
    };
    let mut fields = Vec::new();
    let open = Ask::OpenRoot { root };
    open.encode(&mut fields);
    assert!(matches!(ask(open.kind(), &fields, &[]), Answer::Root { .. }));
    // OpenFile: the root's x, to write.
    let Answer::File { file, .. } = ask(30, b"\0\0\0\0\x01\0\0\0x\x01", &[]) else { panic!("it is there") };
    let file = file.to_le_bytes();
    let mut refused = 0;
    for one in EXTREMES {
        for two in EXTREMES {
            let (a, b) = (one.to_le_bytes(), two.to_le_bytes());
            for (kind, fields, bulk) in [
                (31, [&file[..], &a, &b[..4]].concat(), &b""[..]),
                (32, [&file[..], &a].concat(), b"data"),
                (33, [&file[..], &a].concat(), b""),
                (34, [&file[..], &a, &b].concat(), b""),
                (35, [&file[..], &a].concat(), b""),
                (39, [&file[..], &a, &b, b"\0"].concat(), b""),
                (39, [&file[..], &a, &b, b"\x01"].concat(), b""),
            ] {
                // No file is made as large as a file system allows.
                if matches!(kind, 32 | 35) && (4097..=i64::MAX as u64).contains(&one) {
                    continue;
                }
                let answer = ask(kind, &fields, bulk);
                refused += usize::from(matches!(answer, Answer::Failed { .. }));
                let beyond = one > i64::MAX as u64 || matches!(kind, 34 | 39) && one > two;
                assert!(!beyond || matches!(answer, Answer::Failed { .. }), "{kind} {one} {two}: {answer:?}");
            }
        }
    }
    assert!(refused > 100, "{refused} were refused");
    assert_eq!(server.connections(), 1);
}
