//! What a kernel keeps by leases is never old: what a client changes programs on a mount see as soon as the change is acknowledged, and the
//! other way round, although the mount's kernel answers from what it has (docs/consistency.md, Doors).

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidepool_client::Client;
use tidepool_fuse::{MountOptions, Mounted};
use tidepool_testkit::{Cluster, Options, cred, eventually, program};
use tidepool_types::{Ino, SetAttr};
use tidepool_wire::message::LEASE_TERM_MS;

const TERM: Duration = Duration::from_millis(LEASE_TERM_MS);
/// Longer than a change may be held up by a mount that lives.
const SOON: Duration = Duration::from_millis(1_000);

fn can_mount(test: &str) -> bool {
    let support = tidepool_fuse::probe();
    if !support.usable() {
        eprintln!("SKIPPED: {test}: FUSE is not usable here\n{support}");
    }
    support.usable()
}

fn mount(cluster: &Cluster, name: &str) -> Mounted {
    let point = cluster.dir().join(name);
    fs::create_dir(&point).unwrap();
    let mounted = tidepool_fuse::mount(cluster.client().into(), &MountOptions::new(point)).unwrap();
    wait_for_leases(cluster, mounted.path());
    mounted
}

fn requests(cluster: &Cluster) -> u64 {
    let client = cluster.client();
    (0..cluster.members() as u16)
        .map(|daemon| match client.request(daemon, &tidepool_wire::message::Request::Status {}).unwrap() {
            tidepool_wire::message::Reply::Report { status } => {
                status.counters.iter().find(|(name, _)| name == "requests").unwrap().1
            }
            other => panic!("{other:?}"),
        })
        .sum()
}

/// Returns when the mount answers from what its kernel keeps, without a daemon.
fn wait_for_leases(cluster: &Cluster, mount: &Path) {
    eventually("a mount's leases", || {
        fs::metadata(mount).unwrap();
        let before = requests(cluster);
        for _ in 0..50 {
            fs::metadata(mount).unwrap();
        }
        requests(cluster) - before < 50
    });
}

fn quick<T>(what: &str, change: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = change();
    assert!(start.elapsed() < SOON, "{what} took {:?}: nobody answered the recall", start.elapsed());
    done
}

/// A second way to the same pool.
#[derive(Clone, Copy)]
struct Other<'c> {
    client: &'c Client,
}

impl Other<'_> {
    fn ino(&self, name: &str) -> Ino {
        self.client.stat(Ino::ROOT, name.as_bytes(), false, &cred()).unwrap().inside().unwrap().ino
    }

    fn write(&self, name: &str, offset: u64, data: &[u8]) {
        let ino = self.open(name, libc::O_CREAT | libc::O_RDWR);
        assert_eq!(self.client.write(ino, offset, data).unwrap(), data.len());
        self.client.release(ino);
    }

    fn open(&self, name: &str, flags: i32) -> Ino {
        let opened = self.client.open(Ino::ROOT, name.as_bytes(), flags, 0o644, &cred());
        opened.unwrap().inside().unwrap().ino
    }

    fn set(&self, name: &str, set: &SetAttr) {
        self.client.set_attr(self.ino(name), set, &cred()).unwrap();
    }

    fn remove(&self, name: &str) {
        self.client.unlink(Ino::ROOT, name.as_bytes(), &cred()).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        self.client.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), 0, &cred()).unwrap();
    }

    fn mkdir(&self, name: &str) {
        self.client.mkdir(Ino::ROOT, name.as_bytes(), 0o755, &cred()).unwrap();
    }

    fn rmdir(&self, name: &str) {
        self.client.rmdir(Ino::ROOT, name.as_bytes(), &cred()).unwrap();
    }
}

fn absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Looks until the kernel answers from what it keeps.
fn look(path: &Path) {
    for _ in 0..6 {
        let _ = fs::symlink_metadata(path);
    }
}

fn pools() -> impl Iterator<Item = Cluster> {
    [1, 3].into_iter().map(|daemons| Cluster::with(Options { daemons, ..Options::default() }))
}

#[test]
fn a_kernel_answers_from_what_it_keeps() {
    if !can_mount("a_kernel_answers_from_what_it_keeps") {
        return;
    }
    for cluster in pools() {
        let mount = mount(&cluster, "m");
        let path = mount.path().join("f");
        fs::write(&path, vec![7; 100_000]).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 100_000);
        look(&path);
        let before = requests(&cluster);
        for _ in 0..100 {
            assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
        }
        let looked = requests(&cluster);
        assert!(looked - before < 20, "{} requests for 100 looks", looked - before);
        for _ in 0..20 {
            assert_eq!(fs::read(&path).unwrap(), vec![7; 100_000]);
        }
        // Opening and closing, at the file's home; no data.
        let read = requests(&cluster) - looked;
        assert!(read < 20 * 4, "{read} requests for reading 20 times");
    }
}

#[test]
fn names_are_never_old() {
    if !can_mount("names_are_never_old") {
        return;
    }
    for cluster in pools() {
        let (client, mount) = (cluster.client(), mount(&cluster, "m"));
        let other = Other { client: &client };
        let at = |name: &str| mount.path().join(name);
        for n in 0..40 {
            let name = |what: &str| format!("{what}{n}");
            let (f, g, d) = (name("f"), name("g"), name("d"));
            look(&at(&f));
            quick("making", || other.write(&f, 0, b"one"));
            assert_eq!(fs::read(at(&f)).unwrap(), b"one");
            look(&at(&f));
            look(&at(&g));
            quick("renaming", || other.rename(&f, &g));
            assert!(absent(&at(&f)));
            assert_eq!(fs::read(at(&g)).unwrap(), b"one");
            other.write(&f, 0, b"second");
            look(&at(&f));
            look(&at(&g));
            quick("renaming over", || other.rename(&f, &g));
            assert_eq!(fs::metadata(at(&g)).unwrap().len(), 6);
            assert!(absent(&at(&f)));
            look(&at(&g));
            quick("removing", || other.remove(&g));
            assert!(absent(&at(&g)));
            look(&at(&d));
            quick("making a directory", || other.mkdir(&d));
            assert!(fs::metadata(at(&d)).unwrap().is_dir());
            look(&at(&d));
            quick("removing a directory", || other.rmdir(&d));
            assert!(absent(&at(&d)));
        }
    }
}

#[test]
fn attributes_are_never_old() {
    if !can_mount("attributes_are_never_old") {
        return;
    }
    for cluster in pools() {
        let (client, mount) = (cluster.client(), mount(&cluster, "m"));
        let other = Other { client: &client };
        for n in 0..25 {
            let f = format!("f{n}");
            let path = mount.path().join(&f);
            fs::write(&path, b"0123456789").unwrap();
            look(&path);
            quick("chmod", || other.set(&f, &SetAttr { mode: Some(0o600), ..SetAttr::default() }));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
            look(&path);
            quick("truncate", || other.set(&f, &SetAttr { size: Some(3), ..SetAttr::default() }));
            assert_eq!(fs::metadata(&path).unwrap().len(), 3);
            assert_eq!(fs::read(&path).unwrap(), b"012");
            look(&path);
            quick("growing", || other.write(&f, 200_000, b"end"));
            assert_eq!(fs::metadata(&path).unwrap().len(), 200_003);
            look(&path);
            let link = format!("l{n}");
            quick("link", || {
                client.link(Ino::ROOT, f.as_bytes(), Ino::ROOT, link.as_bytes(), false, &cred()).unwrap();
            });
            assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
            look(&path);
            quick("unlink", || other.remove(&link));
            assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
        }
    }
}

#[test]
fn directories_are_never_old() {
    if !can_mount("directories_are_never_old") {
        return;
    }
    for cluster in pools() {
        let (client, mount) = (cluster.client(), mount(&cluster, "m"));
        let other = Other { client: &client };
        for n in 0..25 {
            let d = format!("d{n}");
            let path = mount.path().join(&d);
            fs::create_dir(&path).unwrap();
            look(&path);
            let before = fs::metadata(&path).unwrap().mtime_nsec();
            quick("making in it", || other.mkdir(&format!("{d}/sub")));
            let meta = fs::metadata(&path).unwrap();
            assert_eq!(meta.nlink(), 3, "{d}");
            assert_ne!(meta.mtime_nsec(), before);
            look(&path);
            quick("chmod", || other.set(&d, &SetAttr { mode: Some(0o700), ..SetAttr::default() }));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
            look(&path);
            quick("removing in it", || other.rmdir(&format!("{d}/sub")));
            assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
            // The mount's own changes the kernel sees for itself.
            fs::create_dir(path.join("own")).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().nlink(), 3);
        }
    }
}

#[test]
fn pages_are_dropped_when_somebody_else_writes() {
    if !can_mount("pages_are_dropped_when_somebody_else_writes") {
        return;
    }
    for cluster in pools() {
        let (client, mount) = (cluster.client(), mount(&cluster, "m"));
        let other = Other { client: &client };
        for n in 0..25 {
            let f = format!("f{n}");
            let path = mount.path().join(&f);
            // Three chunks, so that in the larger pool some lie elsewhere.
            fs::write(&path, vec![1; 150_000]).unwrap();
            let file = File::open(&path).unwrap();
            let byte = |at: u64| {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                byte[0]
            };
            assert_eq!([byte(5), byte(70_000), byte(140_000)], [1; 3]);
            quick("writing", || other.write(&f, 70_000, &[2]));
            assert_eq!([byte(5), byte(70_000), byte(140_000)], [1, 2, 1], "an open file, {f}");
            drop(fs::read(&path).unwrap());
            let (source, target) = (other.ino(&f), other.ino(&f));
            quick("copying", || client.copy_range(source, 70_000, target, 5, 1).unwrap());
            assert_eq!(fs::read(&path).unwrap()[5], 2);
            // Written by the mount, changed by the other one, opened again.
            fs::write(&path, vec![3; 150_000]).unwrap();
            quick("writing", || other.write(&f, 140_000, &[4]));
            assert_eq!(fs::read(&path).unwrap()[140_000], 4);
        }
    }
}

/// After its term a change recalls nothing; the next open tells.
#[test]
fn old_pages_do_not_outlive_a_term() {
    if !can_mount("old_pages_do_not_outlive_a_term") {
        return;
    }
    for cluster in pools() {
        let (client, mount, second) = (cluster.client(), mount(&cluster, "m"), mount(&cluster, "second"));
        let other = Other { client: &client };
        let path = |n: u32| mount.path().join(format!("f{n}"));
        for n in 0..20 {
            fs::write(path(n), vec![1; 100_000]).unwrap();
            assert_eq!(fs::read(path(n)).unwrap(), vec![1; 100_000]);
            assert_eq!(fs::read(second.path().join(format!("f{n}"))).unwrap().len(), 100_000);
        }
        std::thread::sleep(TERM + Duration::from_millis(200));
        for n in 0..20 {
            let name = format!("f{n}");
            match n % 3 {
                0 => other.write(&name, 90_000, &[2]),
                // It goes on knowing the file.
                1 => File::options()
                    .write(true)
                    .open(second.path().join(name))
                    .unwrap()
                    .write_all_at(&[2], 90_000)
                    .unwrap(),
                _ => {}
            }
        }
        for n in 0..20 {
            let expected = if n % 3 == 2 { 1 } else { 2 };
            assert_eq!(fs::read(path(n)).unwrap()[90_000], expected, "f{n}");
        }
    }
}

#[test]
fn what_a_borrower_writes_is_seen() {
    if !can_mount("what_a_borrower_writes_is_seen") {
        return;
    }
    let cluster = Cluster::with(Options { daemons: 1, ..Options::default() });
    let (client, mount) = (cluster.client(), mount(&cluster, "m"));
    let other = Other { client: &client };
    let path = mount.path().join("f");
    other.write("f", 0, &[0; 4096]);
    let ino = other.open("f", libc::O_RDWR);
    for n in 1..200u64 {
        quick("writing", || client.write(ino, 4096 * n, &n.to_le_bytes()).unwrap());
        let len = 4096 * n + 8;
        assert_eq!(fs::metadata(&path).unwrap().len(), len);
        if n.is_multiple_of(16) {
            assert_eq!(fs::read(&path).unwrap()[len as usize - 8..], n.to_le_bytes());
        }
    }
    client.release(ino);
    assert!(client.bytes_written_direct() > 0, "nothing was borrowed");
}

#[test]
fn two_mounts_see_each_other() {
    if !can_mount("two_mounts_see_each_other") {
        return;
    }
    for cluster in pools() {
        let (a, b) = (mount(&cluster, "a"), mount(&cluster, "b"));
        for n in 0..25 {
            let (mine, theirs) = (a.path().join(format!("f{n}")), b.path().join(format!("f{n}")));
            look(&theirs);
            quick("making", || fs::write(&mine, b"one").unwrap());
            assert_eq!(fs::read(&theirs).unwrap(), b"one");
            look(&mine);
            quick("writing", || fs::write(&theirs, b"three").unwrap());
            assert_eq!(fs::metadata(&mine).unwrap().len(), 5);
            assert_eq!(fs::read(&mine).unwrap(), b"three");
            look(&theirs);
            quick("chmod", || fs::set_permissions(&mine, fs::Permissions::from_mode(0o640)).unwrap());
            assert_eq!(fs::metadata(&theirs).unwrap().mode() & 0o7777, 0o640);
            look(&mine);
            quick("removing", || fs::remove_file(&theirs).unwrap());
            assert!(absent(&mine));
        }
    }
}

/// A mount by a process of its own, which can be stopped and killed.
struct Foreign {
    process: Child,
    point: PathBuf,
}

impl Foreign {
    fn start(cluster: &Cluster) -> Foreign {
        let (base, point) = (cluster.dir().join("run"), cluster.dir().join("foreign"));
        fs::create_dir_all(base.join("pool")).unwrap();
        fs::create_dir_all(&point).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(base.join("pool/pool.json"), cluster.pool_file().to_json()).unwrap();
        let mut command = Command::new(program("tidepool"));
        command.arg("mount").args(["--pool", "pool"]).arg(&point).env("TIDEPOOL_RUNTIME", &base);
        let process = command.stderr(Stdio::null()).spawn().unwrap();
        eventually("a mount", || tidepool_fuse::mounts_below(&point).contains(&point));
        wait_for_leases(cluster, &point);
        Foreign { process, point }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = tidepool_fuse::unmount(&self.point);
    }
}

/// A mount that does not answer holds a change up until what its kernel keeps is over, and not longer; meanwhile its kernel
/// answers with what was.
#[test]
fn a_stopped_or_killed_mount_holds_a_change_up_for_a_term() {
    if !can_mount("a_stopped_or_killed_mount_holds_a_change_up_for_a_term") {
        return;
    }
    let cluster = Cluster::with(Options { daemons: 1, ..Options::default() });
    let client = cluster.client();
    let other = Other { client: &client };
    other.write("f", 0, b"one");
    for signal in [rustix::process::Signal::STOP, rustix::process::Signal::KILL] {
        let foreign = Foreign::start(&cluster);
        let path = foreign.point.join("f");
        let old = fs::metadata(&path).unwrap().mode() & 0o777;
        look(&path);
        match signal {
            rustix::process::Signal::STOP => tidepool_testkit::stop(foreign.process.id()),
            signal => foreign.signal(signal),
        }
        // What the kernel does not keep any more it asks the mount, and waits. A kernel without its process may also refuse.
        let answers = std::thread::spawn(move || {
            let stats = std::iter::repeat_with(|| fs::metadata(&path)).take_while(Result::is_ok);
            stats.flatten().all(|meta| meta.mode() & 0o777 == old)
        });
        let start = Instant::now();
        let new = if old == 0o600 { 0o644 } else { 0o600 };
        other.set("f", &SetAttr { mode: Some(new), ..SetAttr::default() });
        let took = start.elapsed();
        drop(foreign);
        assert!(answers.join().unwrap(), "{signal:?}: the kernel has what its mount was not told");
        assert!(took < TERM + SOON, "{signal:?}: the change took {took:?}");
    }
}

/// What a daemon granted before it was killed the next one does not know; nothing changes until it is over.
#[test]
fn a_daemon_that_starts_again_waits_for_what_the_last_one_granted() {
    if !can_mount("a_daemon_that_starts_again_waits_for_what_the_last_one_granted") {
        return;
    }
    let mut cluster = Cluster::with(Options { daemons: 1, ..Options::default() });
    let mount = mount(&cluster, "m");
    let path = mount.path().join("f");
    fs::write(&path, b"one").unwrap();
    look(&path);
    cluster.kill(0);
    cluster.restart(0);
    let client = cluster.client();
    let other = Other { client: &client };
    other.set("f", &SetAttr { mode: Some(0o600), ..SetAttr::default() });
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    wait_for_leases(&cluster, mount.path());
    look(&path);
    quick("chmod", || other.set("f", &SetAttr { mode: Some(0o644), ..SetAttr::default() }));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
}
