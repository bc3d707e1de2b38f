//! `--ordered`: who looks at the destination while results go out never sees a file without an older one that it builds on,
//! however often the mover is killed.

mod common;

use common::Sandbox;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tidepool_client::{Client, PoolFile};
use tidepool_testkit::{Rng, cred};
use tidepool_types::Ino;

/// Files, each of which builds on the one before.
const FILES: usize = 250;

/// Moments at which the mover is killed; `make test-all` sets more.
fn kills() -> usize {
    std::env::var("TIDEPOOL_KILLS").ok().and_then(|t| t.parse().ok()).unwrap_or(24)
}

/// The name of a file: the order of names is not that of time.
fn name(number: usize) -> String {
    format!("d{}/f{:03}", number % 3, number * 77 % FILES)
}

/// What a program does that publishes by rename, in a directory of the pool.
fn publish_all(sandbox: &Sandbox, pool: &str, root: &str) {
    let file = PoolFile::read(&sandbox.runtime().join(pool).join("pool.json")).unwrap();
    let client = Client::new(file);
    let mkdir = |path: &str| drop(client.mkdir(Ino::ROOT, path.as_bytes(), 0o755, &cred()).unwrap());
    mkdir(root);
    (0..3).for_each(|dir| mkdir(&format!("{root}/d{dir}")));
    for number in 0..FILES {
        let temporary = format!("{root}/d{}/new", (number + 1) % 3);
        let flags = libc::O_RDWR | libc::O_CREAT;
        let file = client.open(Ino::ROOT, temporary.as_bytes(), flags, 0o644, &cred()).unwrap();
        let file = file.inside().unwrap();
        client.write(file.ino, 0, format!("{number}\n").repeat(100).as_bytes()).unwrap();
        client.release(file.ino);
        let path = format!("{root}/{}", name(number));
        client.rename(Ino::ROOT, temporary.as_bytes(), Ino::ROOT, path.as_bytes(), 0, &cred()).unwrap();
    }
}

/// Looks all the time; notes how much is there, and what is there without something older.
#[derive(Default)]
struct Watcher {
    stop: AtomicBool,
    seen: AtomicUsize,
    looks: AtomicUsize,
}

impl Watcher {
    /// The newest first, then all that is older: what is there stays there.
    fn look(&self, root: &Path) -> Result<(), String> {
        let there = |number: &usize| root.join(name(*number)).exists();
        let newest = (0..FILES).rev().find(there);
        self.seen.store(newest.map_or(0, |newest| newest + 1), Ordering::Relaxed);
        self.looks.fetch_add(1, Ordering::Relaxed);
        match newest.and_then(|newest| (0..newest).find(|number| !there(number))) {
            Some(missing) => {
                Err(format!("number {} is there, number {missing} is not", newest.expect("one is missing")))
            }
            None => Ok(()),
        }
    }

    fn watch(&self, root: &Path) -> Result<(), String> {
        while !self.stop.load(Ordering::Relaxed) {
            self.look(root)?;
        }
        Ok(())
    }

    fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }
}

/// Runs `work` while somebody watches.
fn watched<T>(root: &Path, work: impl FnOnce(&Watcher) -> T) -> T {
    let watcher = Watcher::default();
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| watcher.watch(root));
        let done = work(&watcher);
        watcher.stop.store(true, Ordering::Relaxed);
        watching.join().unwrap().unwrap();
        done
    })
}

/// Kills the mover at a random moment before or in the midst of the names, if it does not end before.
fn kill_somewhere(mover: &mut Child, watcher: &Watcher, rng: &mut Rng) {
    let pause = Duration::from_micros(rng.below(150_000));
    let names = if rng.below(3) == 0 {
        None
    } else {
        Some(watcher.seen() + 1 + rng.below(FILES as u64 / 2) as usize)
    };
    match names {
        None => std::thread::sleep(pause),
        Some(names) => {
            while watcher.seen() < names && mover.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
    let _ = mover.kill();
    mover.wait().unwrap();
}

fn assert_whole(root: &Path) {
    for number in 0..FILES {
        let text = fs::read_to_string(root.join(name(number))).unwrap();
        assert!(text == format!("{number}\n").repeat(100), "number {number}");
    }
    let parts = (0..3).flat_map(|dir| fs::read_dir(root.join(format!("d{dir}"))).unwrap().flatten());
    assert_eq!(parts.count(), FILES);
}

#[test]
fn a_mover_that_is_killed_keeps_the_order() {
    let mut rng = Rng::from_env("a_mover_that_is_killed_keeps_the_order");
    let sandbox = Sandbox::new();
    sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload"]);
    publish_all(&sandbox, "p", "/out");
    let (mut killed, mut halves, mut looks, mut round) = (0, 0, 0, 0);
    while killed < kills() {
        round += 1;
        let root: PathBuf = sandbox.path(&format!("results{round}"));
        let to = root.display().to_string();
        let words = ["cp", "--ordered", "-T", "pool:/out", &to];
        watched(&root, |watcher| {
            for _ in 0..4 {
                let mut mover = sandbox.tidepool(&words).stdout(Stdio::null()).spawn().unwrap();
                kill_somewhere(&mut mover, watcher, &mut rng);
                watcher.look(&root).unwrap();
                halves += usize::from((1..FILES).contains(&watcher.seen()));
                killed += 1;
            }
            sandbox.ok(&words);
            looks += watcher.looks.load(Ordering::Relaxed);
        });
        assert_whole(&root);
    }
    println!(
        "{killed} kills, after {halves} of which a part of the names was there; {looks} looks at the destination"
    );
    assert!(halves > 0, "no kill came in the midst of the names");
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after the kills");
}

/// A run that is killed leaves the wish for order with its pool, and `drain` keeps to it.
#[test]
fn a_drain_keeps_the_order_of_its_run() {
    let sandbox = Sandbox::new();
    let root = sandbox.path("results");
    let out = format!("/out:{}", root.display());
    let (ready, go) = (sandbox.path("ready").display().to_string(), sandbox.path("go").display().to_string());
    let script = "touch $0; while [ ! -e $1 ]; do sleep 0.01; done";
    let run = ["run", "--nodes", "2", "--client", "preload", "--ordered", "--out", &out, "--", "sh", "-c"];
    let mut mover = sandbox.tidepool(&[&run[..], &[script, &ready, &go]].concat()).spawn().unwrap();
    tidepool_testkit::eventually("the program to run", || Path::new(&ready).exists());
    let pool = fs::read_dir(sandbox.runtime()).unwrap().flatten().next().unwrap().file_name();
    let pool = pool.into_string().unwrap();
    publish_all(&sandbox, &pool, "/out");
    watched(&root, |watcher| {
        fs::write(&go, "").unwrap();
        while watcher.seen() < FILES / 3 && mover.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        let _ = mover.kill();
        mover.wait().unwrap();
        sandbox.ok(&["drain"]);
    });
    assert_whole(&root);
    sandbox.assert_nothing_left("after the drain");
}
