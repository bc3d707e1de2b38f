//! Mounts of `tidepool mount` when their pool is stopped, and when they are killed.

mod common;

use common::{Sandbox, doors, text};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tidepool_client::Client;
use tidepool_placement::entry_owner;
use tidepool_testkit::{Cluster, cred, eventually, thread_states};
use tidepool_types::Ino;

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

fn mount(sandbox: &Sandbox, pool: &str, name: &str) -> Child {
    let path = sandbox.path(name);
    std::fs::create_dir(&path).unwrap();
    let mut command = sandbox.tidepool(&["mount", "--pool", pool]);
    let child = command.arg(&path).spawn().unwrap();
    eventually("a mount", || is_mounted(&path) && std::fs::read_dir(&path).is_ok());
    child
}

fn assert_ends_well(mount: &mut Child) {
    let ended = mount.wait().unwrap();
    assert!(ended.success(), "a mount ended with {ended}");
}

/// One that lives, one whose process was killed, and one of another pool, which is none of its business. The command of the one
/// that lives ends by itself, and what was written through it is there when the pool starts again.
#[test]
fn stopping_a_pool_takes_its_mounts_away() {
    if !doors().contains(&"fuse") {
        return eprintln!("SKIPPED: FUSE is not usable here");
    }
    let sandbox = Sandbox::new();
    for pool in ["one", "other"] {
        sandbox.ok(&["pool", "start", "--name", pool, "--nodes", "1"]);
    }
    let mut lives = mount(&sandbox, "one", "lives");
    let mut dead = mount(&sandbox, "one", "dead");
    let mut others = mount(&sandbox, "other", "others");
    std::fs::write(sandbox.path("lives/file"), "kept").unwrap();
    let held = std::fs::File::open(sandbox.path("lives/file")).unwrap();
    dead.kill().unwrap();
    dead.wait().unwrap();
    let broken = std::fs::read_dir(sandbox.path("dead")).unwrap_err();
    assert_eq!(broken.raw_os_error(), Some(libc::ENOTCONN));

    let stopped = sandbox.tidepool(&["pool", "stop", "--pool", "one", "--keep"]).output().unwrap();
    assert!(stopped.status.success(), "{}", text(&stopped));
    assert!(!is_mounted(&sandbox.path("lives")) && !is_mounted(&sandbox.path("dead")), "{}", text(&stopped));
    assert!(is_mounted(&sandbox.path("others")));
    drop(held);
    assert_ends_well(&mut lives);

    sandbox.ok(&["pool", "start", "--name", "one", "--nodes", "1", "--keep"]);
    let mut again = mount(&sandbox, "one", "again");
    assert_eq!(std::fs::read_to_string(sandbox.path("again/file")).unwrap(), "kept");
    sandbox.ok(&["pool", "stop", "--pool", "one"]);
    assert_ends_well(&mut again);
    sandbox.ok(&["pool", "stop", "--pool", "other"]);
    assert_ends_well(&mut others);
    sandbox.assert_nothing_left("after the last pool was stopped");
}

/// A process in a mount namespace of its own, which has a copy of every mount that there is now and gets to know of no change.
struct Namespace(Child);

impl Namespace {
    fn new() -> Namespace {
        let ours = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        let mut command = Command::new("unshare");
        let child =
            command.args(["--mount", "--propagation", "private", "sleep", "infinity"]).spawn().unwrap();
        let namespace = Namespace(child);
        let is_apart = || std::fs::read_link(namespace.proc("ns/mnt")).is_ok_and(|theirs| theirs != ours);
        // It is made before its mounts are private, and the program is executed after that.
        let sleeps = || std::fs::read_to_string(namespace.proc("comm")).is_ok_and(|name| name == "sleep\n");
        eventually("a mount namespace", || is_apart() && sleeps());
        namespace
    }

    fn proc(&self, what: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{what}", self.0.id()))
    }

    /// A path as the namespace has it.
    fn inside(&self, path: &Path) -> PathBuf {
        self.proc("root").join(path.strip_prefix("/").unwrap())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As a container that was started while pools were mounted, and that goes on. One of the mounts is gone from here already, as after a
/// `pool stop` that was killed; one is of another pool.
#[test]
fn stopping_a_pool_ends_its_mounts_in_other_mount_namespaces() {
    if !doors().contains(&"fuse") || !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: FUSE is not usable here, or this user cannot make mount namespaces");
    }
    let sandbox = Sandbox::new();
    for pool in ["one", "other"] {
        sandbox.ok(&["pool", "start", "--name", pool, "--nodes", "1"]);
    }
    let mut lives = mount(&sandbox, "one", "lives");
    let mut hidden = mount(&sandbox, "one", "hidden");
    let mut others = mount(&sandbox, "other", "others");
    std::fs::write(sandbox.path("lives/file"), "secret").unwrap();
    std::fs::write(sandbox.path("others/file"), "kept").unwrap();
    let held = std::fs::File::open(sandbox.path("lives/file")).unwrap();
    let namespace = Namespace::new();
    rustix::mount::unmount(sandbox.path("hidden"), UnmountFlags::DETACH).unwrap();
    let seen_inside = |name: &str| std::fs::read_to_string(namespace.inside(&sandbox.path(name)));
    for name in ["lives/file", "hidden/file"] {
        assert_eq!(seen_inside(name).unwrap(), "secret");
    }

    sandbox.ok(&["pool", "stop", "--pool", "one"]);
    for (mount, name) in [(&mut lives, "lives"), (&mut hidden, "hidden")] {
        eventually("the end of a mount", || mount.try_wait().unwrap().is_some());
        assert_ends_well(mount);
        assert!(!is_mounted(&sandbox.path(name)));
        let copy = std::fs::read_dir(namespace.inside(&sandbox.path(name))).unwrap_err();
        assert_eq!(copy.raw_os_error(), Some(libc::ENOTCONN), "{name}: {copy}");
    }
    assert_eq!(held.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    assert_eq!(std::fs::read_to_string(sandbox.path("others/file")).unwrap(), "kept");
    assert_eq!(seen_inside("others/file").unwrap(), "kept");
    assert!(others.try_wait().unwrap().is_none());

    sandbox.ok(&["pool", "stop", "--pool", "other"]);
    assert_ends_well(&mut others);
    assert!(seen_inside("others/file").is_err());
    sandbox.assert_nothing_left("after the last pool was stopped");
}

/// Ends its connection in any case, so that a test that fails also ends.
struct TornOff(PathBuf);

impl Drop for TornOff {
    fn drop(&mut self) {
        // The command of that name would first ask the mount how it is.
        let how = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let _ = rustix::mount::unmount(&self.0, how);
    }
}

/// Until a program has waited in the mount for a while, because it needs a daemon that says nothing.
fn wait_until_stuck(program: &mut Child) {
    let (mut since, mut last) = (Instant::now(), String::new());
    eventually("a program that waits in the mount", || {
        let ended = program.try_wait().unwrap();
        assert_eq!(ended, None, "it has ended without the daemon that says nothing");
        let place = std::fs::read_to_string(format!("/proc/{}/wchan", program.id())).unwrap_or_default();
        if place != last {
            println!("the program waits in {place}");
            (since, last) = (Instant::now(), place);
        }
        last.contains("request_wait_answer") && since.elapsed() > Duration::from_millis(300)
    });
}

/// A program's request holds a directory's lock and waits for a daemon that is stopped. Another daemon has the mount make the kernel forget
/// a name there, which waits for that lock. Now the mount is killed.
#[test]
fn a_mount_ends_that_is_killed_while_the_kernel_cannot_forget() {
    if !doors().contains(&"fuse") || !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: FUSE is not usable here, or nobody could end the mount of a failed test");
    }
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(2));
    let mut pool = cluster.pool_file();
    pool.mount = sandbox.path("mount");
    pool.write(&sandbox.path("pool.json")).unwrap();
    let mut mount = {
        std::fs::create_dir(&pool.mount).unwrap();
        let mut command = sandbox.tidepool(&["mount"]);
        command.env("TIDEPOOL_POOL", sandbox.path("pool.json")).arg(&pool.mount).spawn().unwrap()
    };
    let _torn_off = TornOff(pool.mount.clone());
    eventually("a mount", || is_mounted(&pool.mount));
    let names_at = |daemon, what: &'static str| {
        let names = (0..).map(move |n| format!("{what}{n}"));
        names.filter(move |name| entry_owner(Ino::ROOT, name.as_bytes(), 2) == daemon)
    };
    let names: Vec<String> = names_at(0, "old").take(16).collect();
    names.iter().for_each(|name| std::fs::write(pool.mount.join(name), "").unwrap());
    let clients: Vec<_> = names.iter().map(|_| cluster.client()).collect();
    // The kernel has the names, and may keep them for two seconds.
    names.iter().for_each(|name| assert!(pool.mount.join(name).is_file()));

    cluster.signal(1, Signal::STOP);
    let made = names_at(1, "new").next().expect("there are many");
    let mut program = Command::new("mkdir").arg(pool.mount.join(made)).spawn().unwrap();
    wait_until_stuck(&mut program);
    let remove = |(client, name): (Client, String)| {
        std::thread::spawn(move || client.unlink(Ino::ROOT, name.as_bytes(), &cred()).map(drop))
    };
    let removers: Vec<_> = clients.into_iter().zip(names).map(remove).collect();
    eventually("a thread of the mount that waits for a directory", || {
        thread_states(mount.id()).contains(&'D')
    });

    mount.kill().unwrap();
    eventually("the end of the mount that was killed", || mount.try_wait().unwrap().is_some());
    eventually("the end of the program", || program.try_wait().unwrap().is_some());
    assert_eq!(std::fs::read_dir(&pool.mount).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    cluster.signal(1, Signal::CONT);
    removers.into_iter().for_each(|remover| remover.join().unwrap().unwrap());
}
