//! Real mounts of a real pool, two per test so that what one node does the other must see.

#![forbid(unsafe_code)]

mod common;

use common::{pool, run};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Chunks of the test pool have 64 KiB, so this spans many.
const LONG: usize = 1_000_003;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

#[test]
fn what_one_mount_does_the_other_sees() {
    let Some(pool) = pool("sees") else { return };
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    let (a, b) = (a.path(), b.path());
    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("d/f"), pattern(LONG)).unwrap();
    assert_eq!(fs::read(b.join("d/f")).unwrap(), pattern(LONG));
    fs::rename(b.join("d/f"), b.join("g")).unwrap();
    assert_eq!(fs::metadata(a.join("d/f")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::hard_link(a.join("g"), a.join("h")).unwrap();
    symlink("g", a.join("s")).unwrap();
    assert_eq!(fs::metadata(b.join("s")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(b.join("h")).unwrap().ino(), fs::metadata(a.join("g")).unwrap().ino());
    File::options().write(true).open(b.join("h")).unwrap().set_len(7).unwrap();
    assert_eq!(fs::metadata(a.join("g")).unwrap().len(), 7);
    fs::set_permissions(a.join("d"), fs::Permissions::from_mode(0o2750)).unwrap();
    assert_eq!(fs::metadata(b.join("d")).unwrap().mode() & 0o7777, 0o2750);
    fs::remove_dir(b.join("d")).unwrap();
    assert!(!a.join("d").exists());
}

#[test]
fn a_file_opened_again_shows_new_data_and_a_growing_one_grows() {
    let Some(pool) = pool("reopen") else { return };
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    let (a, b) = (a.path().join("f"), b.path().join("f"));
    fs::write(&a, "one").unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"one");
    fs::write(&a, "two").unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"two");
    let mut reader = File::open(&b).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    OpenOptions::new().append(true).open(&a).unwrap().write_all(b" more").unwrap();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "two more");
}

#[test]
fn appends_of_two_nodes_never_overwrite_each_other() {
    let Some(pool) = pool("append") else { return };
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    std::thread::scope(|scope| {
        for (mount, word) in [(&a, "a"), (&b, "b"), (&a, "c"), (&b, "d")] {
            let path = mount.path().join("log");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for n in 0..50 {
                    file.write_all(format!("{word}{n:03}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = fs::read_to_string(a.path().join("log")).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!((lines.len(), text.len()), (200, 1000));
}

#[test]
fn nameless_objects_live_while_they_are_open() {
    let Some(pool) = pool("nameless") else { return };
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(a.path().join("f")).unwrap();
    file.write_all(&pattern(LONG)).unwrap();
    fs::remove_file(b.path().join("f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut again = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut again).unwrap();
    assert!(again == pattern(LONG));

    fs::create_dir(a.path().join("d")).unwrap();
    let dir = File::open(a.path().join("d")).unwrap();
    fs::remove_dir(a.path().join("d")).unwrap();
    assert_eq!(dir.metadata().unwrap().nlink(), 0);
}

#[test]
fn locks_hold_on_both_nodes_and_the_two_kinds_do_not_meet() {
    let Some(pool) = pool("locks") else { return };
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    fs::write(a.path().join("l"), "x").unwrap();
    let open = |dir: &std::path::Path| File::options().read(true).write(true).open(dir.join("l")).unwrap();
    let (one, two) = (open(a.path()), open(b.path()));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&two, FlockOperation::NonBlockingLockExclusive), Err(rustix::io::Errno::AGAIN));
    fcntl_lock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(
        fcntl_lock(&one, FlockOperation::NonBlockingLockShared),
        Err(rustix::io::Errno::AGAIN),
        "another mount holds it"
    );
    let start = Instant::now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| flock(&two, FlockOperation::LockShared).map(|()| start.elapsed()));
        std::thread::sleep(Duration::from_millis(300));
        drop(one);
        assert!(waiter.join().unwrap().unwrap() >= Duration::from_millis(300));
    });
}

/// Takes turns at adding 1 to a number: who finds it locked opens it again. The kernel tells that a file was let go when its memory, by
/// which it knows who has a lock, may be the next file's already.
fn add_in_turns(name: &str, try_lock: impl Fn(&File) -> Result<(), i32> + Sync) {
    const TURNS: u32 = 300;
    const THREADS: u32 = 4;
    let Some(pool) = pool(name) else { return };
    let mount = pool.mount("a");
    let path = mount.path().join("n");
    fs::write(&path, "0000").unwrap();
    let locked = || loop {
        let file = File::options().read(true).write(true).open(&path).unwrap();
        match try_lock(&file) {
            Ok(()) => return file,
            Err(errno) => assert_eq!(errno, libc::EAGAIN),
        }
        drop(file);
        std::thread::sleep(Duration::from_micros(500));
    };
    let turn = || {
        let file = locked();
        let mut text = [0; 4];
        file.read_exact_at(&mut text, 0).unwrap();
        let number: u32 = std::str::from_utf8(&text).unwrap().parse().unwrap();
        file.write_all_at(format!("{:04}", number + 1).as_bytes(), 0).unwrap();
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..TURNS).for_each(|_| turn()));
        }
    });
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{:04}", THREADS * TURNS));
}

#[test]
fn turns_by_flock_are_all_kept() {
    add_in_turns("flockturns", |file| {
        flock(file, FlockOperation::NonBlockingLockExclusive).map_err(rustix::io::Errno::raw_os_error)
    });
}

/// Every second process on the other mount. Who waits gets a lock in the order of arrival, whoever is killed or interrupted in
/// between; a circle is EDEADLK.
#[test]
fn locks_are_waited_for_in_order_on_both_nodes() {
    let Some(pool) = pool("order") else { return };
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    let program = pool.dir.join("turns");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/tests/c/turns.c");
    let cc =
        std::process::Command::new("cc").args(["-Wall", "-pthread", "-o"]).arg(&program).arg(source).output();
    let cc = cc.unwrap();
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    let turns = std::process::Command::new(&program).args([a.path(), b.path()]).output().unwrap();
    assert!(turns.status.success(), "{} {}", turns.status, String::from_utf8_lossy(&turns.stderr));
}

/// F_OFD_SETLK of all of a file.
fn lock_open_file(file: &File) -> Result<(), i32> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).map(drop).map_err(|errno| errno as i32)
}

#[test]
fn turns_by_locks_of_open_files_are_all_kept() {
    add_in_turns("ofdturns", lock_open_file);
}

#[test]
fn a_lock_of_an_open_file_ends_with_it_and_meets_those_of_processes() {
    let Some(pool) = pool("ofd") else { return };
    let mount = pool.mount("a");
    fs::write(mount.path().join("l"), "x").unwrap();
    let open = || File::options().read(true).write(true).open(mount.path().join("l")).unwrap();
    let (one, two, third) = (open(), open(), open());
    let again = rustix::io::Errno::AGAIN;
    lock_open_file(&one).unwrap();
    lock_open_file(&one).unwrap();
    assert_eq!(lock_open_file(&two), Err(libc::EAGAIN));
    assert_eq!(fcntl_lock(&two, FlockOperation::NonBlockingLockShared), Err(again));
    flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
    // A process's close ends its own locks only.
    drop(third);
    assert_eq!(lock_open_file(&two), Err(libc::EAGAIN));
    drop(one);
    // The kernel does not wait for the end of an open file.
    let deadline = Instant::now() + Duration::from_secs(20);
    while lock_open_file(&two).is_err() {
        assert!(Instant::now() < deadline, "it ends with its file");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fcntl_lock(open(), FlockOperation::NonBlockingLockShared), Err(again));
}

#[test]
fn whoever_gets_a_lock_sees_what_was_written_under_it() {
    let Some(pool) = pool("lockdata") else { return };
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    fs::write(a.path().join("n"), "0000").unwrap();
    let count = |dir: std::path::PathBuf| {
        let file = File::options().read(true).write(true).open(dir.join("n")).unwrap();
        for _ in 0..100 {
            fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
            let mut text = [0; 4];
            file.read_exact_at(&mut text, 0).unwrap();
            let number: u32 = std::str::from_utf8(&text).unwrap().parse().unwrap();
            file.write_all_at(format!("{:04}", number + 1).as_bytes(), 0).unwrap();
            fcntl_lock(&file, FlockOperation::Unlock).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for mount in [&a, &b] {
            let dir = mount.path().to_path_buf();
            scope.spawn(move || count(dir));
        }
    });
    assert_eq!(fs::read_to_string(b.path().join("n")).unwrap(), "0200");
}

#[test]
fn listings_are_complete_with_offsets_and_times_before_1970() {
    let Some(pool) = pool("listing") else { return };
    let a = pool.mount("a");
    let dir = a.path().join("d");
    fs::create_dir(&dir).unwrap();
    for n in 0..1500 {
        File::create(dir.join(format!("file-with-a-long-name-{n}"))).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 1500);
    let early = std::time::UNIX_EPOCH - Duration::from_millis(1750);
    let file = File::options().write(true).open(dir.join(&names[0])).unwrap();
    file.set_modified(early).unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), early);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn mounts_are_found_and_removed_by_pool() {
    let Some(pool) = pool("found") else { return };
    let a = pool.mount("with space");
    let b = pool.mount_with("ro", |options| tidepool_fuse::MountOptions { read_only: true, ..options });
    let denied = fs::write(b.path().join("f"), "").unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(libc::EROFS));
    let found = || -> Vec<PathBuf> {
        tidepool_fuse::mounts_of(pool.file.instance).iter().map(|mount| mount.path().into()).collect()
    };
    assert_eq!(found(), [b.path(), a.path()]);
    let mut info = String::new();
    File::open("/proc/self/mounts").unwrap().read_to_string(&mut info).unwrap();
    assert!(info.contains(&format!("tidepool:{} ", pool.file.instance)), "{info}");
    assert!(info.contains(" fuse.tidepool "), "{info}");
    tidepool_fuse::unmount(a.path()).unwrap();
    assert_eq!(found(), [b.path()]);
    a.wait().unwrap();
    b.unmount().unwrap();
    assert!(tidepool_fuse::mounts_below(&pool.dir).is_empty());
}

/// The kernel uses the numbers of connections again.
#[test]
fn what_ends_a_mount_leaves_another_alone_that_has_its_number_now() {
    let Some(pool) = pool("number") else { return };
    let first = pool.mount("first");
    let number = |mount: &tidepool_fuse::Mounted| fs::metadata(mount.path()).unwrap().dev();
    let was = number(&first);
    let old = tidepool_fuse::mounts_of(pool.file.instance).pop().unwrap();
    first.unmount().unwrap();
    // The lowest number that is free is used next.
    let mut others = Vec::new();
    while others.last().is_none_or(|last| number(last) != was) {
        if others.len() == 20 {
            return eprintln!("SKIPPED: the number is not used again, or others on this machine have it");
        }
        others.push(pool.mount(&format!("other{}", others.len())));
    }
    old.end().unwrap();
    others.iter().for_each(|other| assert!(fs::read_dir(other.path()).is_ok() && !other.ended()));

    let its_own = tidepool_fuse::mounts_of(pool.file.instance).swap_remove(0);
    let last = others.pop().unwrap();
    assert_eq!(its_own.path(), last.path());
    its_own.end().unwrap();
    if rustix::process::geteuid().is_root() {
        let ended = fs::read_dir(last.path()).unwrap_err();
        assert_eq!(ended.raw_os_error(), Some(libc::ENOTCONN));
    }
}

/// A file open for writing must not keep an unmount from happening, and works on.
#[test]
fn a_busy_mount_leaves_the_name_space_at_once() {
    let Some(pool) = pool("busy") else { return };
    let a = pool.mount("a");
    let point = a.path().to_path_buf();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(point.join("f")).unwrap();
    a.unmount().unwrap();
    assert!(fs::read_dir(&point).unwrap().next().is_none());
    file.write_all(b"late").unwrap();
    drop(file);
    let b = pool.mount("b");
    assert_eq!(fs::read(b.path().join("f")).unwrap(), b"late");
}

const MAPPED: &str = "
import mmap
f = open('m', 'w+b'); f.truncate(300000); m = mmap.mmap(f.fileno(), 0)
m[0:5] = b'hello'; m[200000:200003] = b'end'; m.flush(); m.close(); f.close()
a = open('m', 'ab'); a.write(b'!'); a.close()
r = open('m', 'rb'); m = mmap.mmap(r.fileno(), 0, prot=mmap.PROT_READ)
assert m[:5] == b'hello' and m[200000:200003] == b'end' and m[300000:] == b'!'
";

#[test]
fn ordinary_programs_work() {
    let Some(pool) = pool("programs") else { return };
    for direct_io in [false, true] {
        let name = format!("m{direct_io}");
        let mount = pool.mount_with(&name, |options| tidepool_fuse::MountOptions { direct_io, ..options });
        let dir = mount.path().join(format!("work{direct_io}"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(dir.join("src")).unwrap();
        fs::write(dir.join("src/data"), pattern(LONG)).unwrap();
        run(&dir, "cp", &["-a", "src", "copy"]);
        run(&dir, "tar", &["cf", "t.tar", "copy"]);
        run(&dir, "mv", &["copy", "old"]);
        run(&dir, "tar", &["xf", "t.tar"]);
        run(&dir, "diff", &["-r", "src", "copy"]);
        run(&dir, "dd", &["if=src/data", "of=direct", "bs=64k", "oflag=append", "conv=notrunc"]);
        run(&dir, "cmp", &["src/data", "direct"]);
        run(&dir, "git", &["init", "-q", "g"]);
        fs::write(dir.join("g/f"), "text").unwrap();
        let git = dir.join("g");
        run(&git, "git", &["add", "-A"]);
        run(&git, "git", &["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "one"]);
        run(&git, "git", &["fsck"]);
        for mode in ["delete", "wal"] {
            let base = format!("{mode}.db");
            run(&dir, "sqlite3", &[&base, &format!("pragma journal_mode={mode}; create table t(a);")]);
            run(&dir, "sqlite3", &[&base, "insert into t values(1),(2);"]);
            if let Some(rows) = run(&dir, "sqlite3", &[&base, "select count(*) from t;"]) {
                assert_eq!(rows.trim(), "2");
            }
        }
        run(&dir, "python3", &["-c", MAPPED]);
    }
}

/// `close` of the only descriptor ends a lock, for whoever asks next without waiting: HDF5 does so at each open. One of several descriptors
/// ends nothing, and neither does a child's.
#[test]
fn a_lock_that_is_closed_is_in_nobodys_way() {
    let Some(pool) = pool("reopen-lock") else { return };
    let mount = pool.mount("a");
    let path = mount.path().join("locked");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // I/O beside it, whose requests the kernel's word of the end has to get past.
        let busy = mount.path().join("busy");
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(&busy, pattern(LONG)).unwrap();
            }
        });
        let mut refused = 0;
        for _ in 0..1500 {
            let mut file = open();
            refused += u32::from(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err());
            file.write_all(&[1; 8192]).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(refused, 0);
    });
    let held = open();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    drop(held.try_clone().unwrap());
    for _ in 0..3 {
        assert!(flock(open(), FlockOperation::NonBlockingLockExclusive).is_err(), "it is still open");
    }
    assert!(run(mount.path(), "true", &[]).is_some());
    drop(held);
    flock(open(), FlockOperation::NonBlockingLockExclusive).unwrap();
}

/// A file handle finds its file when the kernel has forgotten all of it, and is stale when the file is gone.
#[test]
fn file_handles_outlive_what_the_kernel_knows() {
    let Some(pool) = pool("handles") else { return };
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: file_handles_outlive_what_the_kernel_knows: not root");
    }
    let (a, b) = (pool.mount("a"), pool.mount("b"));
    let script = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def handle(path):
    room = (ctypes.c_char * 136)(); room[:4] = (128).to_bytes(4, 'little'); mount = ctypes.c_int()
    assert libc.name_to_handle_at(-100, path.encode(), room, ctypes.byref(mount), 0) == 0, os.strerror(ctypes.get_errno())
    return room
def opened(room, flags=os.O_RDONLY):
    root = os.open('.', os.O_RDONLY)
    fd = libc.open_by_handle_at(root, room, flags)
    os.close(root)
    return fd if fd >= 0 else -ctypes.get_errno()
def forget():
    os.sync(); open('/proc/sys/vm/drop_caches', 'w').write('3')
os.makedirs('d/e'); open('d/e/f', 'w').write('found'); open('d/gone', 'w').write('x')
file, folder, gone = handle('d/e/f'), handle('d/e'), handle('d/gone')
os.unlink('d/gone'); forget()
fd = opened(file); assert fd >= 0 and os.read(fd, 9) == b'found', fd
os.close(fd); os.rename('d', 'moved'); forget()
fd = opened(file, os.O_RDWR); assert fd >= 0 and os.write(fd, b'F') == 1, fd
os.close(fd); forget()
fd = opened(folder); assert fd >= 0 and os.listdir(fd) == ['f'], fd
assert os.stat('..', dir_fd=fd).st_ino == os.stat('moved').st_ino
os.close(fd); assert opened(gone) == -errno.ESTALE, opened(gone)
nameless = handle('held'); os.unlink('held'); forget()
assert opened(nameless) == -errno.ESTALE, opened(nameless)
"#;
    // Without a name it lives as long as another node has it open.
    fs::write(b.path().join("held"), "h").unwrap();
    let held = fs::File::open(b.path().join("held")).unwrap();
    if run(a.path(), "python3", &["-c", script]).is_some() {
        assert_eq!(std::io::read_to_string(held).unwrap(), "h");
        assert_eq!(fs::read(b.path().join("moved/e/f")).unwrap(), b"Found");
    }
}
