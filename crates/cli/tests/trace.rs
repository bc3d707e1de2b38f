//! F33: what `tidepool trace posix` says a program needs, and that its table of what doors give is true.

mod common;

use common::{Sandbox, doors, text};
use std::path::Path;
use std::process::Command;

const TIDEPOOL: &str = env!("CARGO_BIN_EXE_tidepool");

/// For each feature a program that needs it, in Python, and whether FUSE and preload give it.
const PROGRAMS: &[(&str, &str, bool, bool)] = &[
    ("data", "open('f','w').write('x'); assert open('f').read()=='x'", true, true),
    (
        "append",
        "open('f','a').write('x'); open('f','a').write('y'); assert open('f').read()=='xy'",
        true,
        true,
    ),
    (
        "truncate",
        "f=open('f','w+'); f.write('xyz'); f.flush(); f.truncate(1); assert os.stat('f').st_size==1",
        true,
        true,
    ),
    (
        "shared-write",
        "f=os.open('f',os.O_CREAT|os.O_RDWR)\nif os.fork()==0: os.pwrite(f,b'c',1); os._exit(0)\nos.wait(); os.pwrite(f,b'p',0); assert open('f').read()=='pc'",
        true,
        true,
    ),
    ("rename", "open('f','w'); os.rename('f','g'); os.stat('g')", true, true),
    ("hard-link", "open('f','w'); os.link('f','g'); assert os.stat('g').st_nlink==2", true, true),
    ("symlink", "os.symlink('f','g'); assert os.readlink('g')=='f'", true, true),
    (
        "unlinked-open",
        "f=open('f','w+'); os.unlink('f'); f.write('x'); f.flush(); f.seek(0); assert f.read()=='x'",
        true,
        true,
    ),
    ("tmpfile", "os.open('.',os.O_TMPFILE|os.O_RDWR)", false, false),
    ("list", "open('f','w'); assert os.listdir('.')==['f']", true, true),
    (
        "permissions",
        "open('f','w'); os.chmod('f',0o600); assert os.stat('f').st_mode&0o777==0o600",
        true,
        true,
    ),
    ("times", "open('f','w'); os.utime('f',(1,2)); assert os.stat('f').st_mtime==2", true, true),
    (
        "xattr",
        "open('f','w'); os.setxattr('f','user.a',b'1'); assert os.getxattr('f','user.a')==b'1'",
        true,
        true,
    ),
    ("posix-lock", "f=open('f','w'); fcntl.lockf(f,fcntl.LOCK_EX)", true, true),
    ("flock", "f=open('f','w'); fcntl.flock(f,fcntl.LOCK_EX)", true, true),
    (
        "ofd-lock",
        "f=open('f','w'); fcntl.fcntl(f,fcntl.F_OFD_SETLK,struct.pack('hhqqi',fcntl.F_WRLCK,0,0,0,0))",
        true,
        true,
    ),
    (
        "mmap-shared",
        "f=open('f','w+b'); f.write(b'x'*4096); f.flush(); m=mmap.mmap(f.fileno(),4096); m[0]=65; m.flush(); m.close(); assert open('f','rb').read(1)==b'A'",
        true,
        true,
    ),
    (
        "mmap",
        "open('f','wb').write(b'x'*4096); f=open('f','rb'); assert mmap.mmap(f.fileno(),4096,access=mmap.ACCESS_READ)[:1]==b'x'",
        true,
        true,
    ),
    (
        "allocate",
        "f=open('f','w'); os.posix_fallocate(f.fileno(),0,5000); assert os.stat('f').st_size==5000",
        true,
        true,
    ),
    (
        "punch",
        "open('f','wb').write(b'x'*8192); f=open('f','r+b'); assert ctypes.CDLL(None).fallocate(f.fileno(),3,ctypes.c_long(0),ctypes.c_long(4096))==0; assert f.read(1)==b'\\0'",
        true,
        true,
    ),
    ("fsync", "f=open('f','w'); os.fsync(f.fileno())", true, true),
    (
        "seek-hole",
        "f=open('f','w'); f.truncate(8192); assert os.lseek(f.fileno(),0,os.SEEK_HOLE)==0",
        true,
        true,
    ),
    (
        "copy-range",
        "open('f','w').write('xyz'); a=open('f'); b=open('g','w'); assert os.copy_file_range(a.fileno(),b.fileno(),3)==3",
        true,
        true,
    ),
    ("direct", "os.close(os.open('f',os.O_CREAT|os.O_RDWR|os.O_DIRECT))", true, true),
    ("special", "os.mkfifo('f'); os.open('f',os.O_RDWR)", true, false),
    (
        "watch",
        "w=ctypes.CDLL(None,use_errno=True); i=w.inotify_init(); assert w.inotify_add_watch(i,b'.',0x100)>0",
        true,
        false,
    ),
];

const IMPORTS: &str = "import os,fcntl,mmap,struct,ctypes\n";

fn has_strace() -> bool {
    let found = Command::new("strace").arg("-V").output().is_ok_and(|o| o.status.success());
    if !found {
        println!("SKIPPED: needs strace; run 'scripts/install-packages test' first");
    }
    found
}

fn trace(dir: &Path, args: &[&str]) -> serde_json::Value {
    let mut command = Command::new(TIDEPOOL);
    let done = command.current_dir(dir).args(["trace", "posix", "--json"]).args(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", text(&done));
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn f33_each_feature_is_seen() {
    if !has_strace() {
        return;
    }
    for (feature, program, ..) in PROGRAMS {
        let dir = tempfile::tempdir().unwrap();
        let report = trace(dir.path(), &["--", "python3", "-c", &format!("{IMPORTS}{program}")]);
        let seen: Vec<&str> =
            report["features"].as_array().unwrap().iter().map(|f| f["id"].as_str().unwrap()).collect();
        assert!(seen.contains(feature), "{feature}: {seen:?}");
        assert_eq!(report["unread_lines"], 0, "{feature}");
    }
}

/// The same programs on a pool: they work where the table says so, and nowhere else.
#[test]
fn f33_the_table_is_true() {
    for door in doors() {
        for (feature, program, fuse, preload) in PROGRAMS {
            let sandbox = Sandbox::new();
            let program = format!("{IMPORTS}{program}");
            let args = ["run", "--client", door, "--nodes", "1", "--", "python3", "-c", &program];
            let done = sandbox.tidepool(&args).output().unwrap();
            let works = done.status.success();
            assert_eq!(
                works,
                if door == "fuse" { *fuse } else { *preload },
                "{feature} by {door}: {}",
                text(&done)
            );
        }
    }
}

#[test]
fn f33_advice_follows_from_what_is_used() {
    if !has_strace() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plain = trace(dir.path(), &["--", "sh", "-c", "echo x > f; cat f"]);
    assert!(plain["advice"].as_str().unwrap().contains("--client preload"), "{plain}");
    let fifo = trace(dir.path(), &["--", "mkfifo", "p"]);
    assert!(fifo["advice"].as_str().unwrap().contains("--client fuse"), "{fifo}");
    let kept = dir.path().join("kept");
    let kept = kept.to_str().unwrap();
    let first = trace(dir.path(), &["--keep", kept, "--", "mv", "f", "g"]);
    assert_eq!(trace(dir.path(), &["--read", kept])["features"], first["features"]);
    let compat = first["verdicts"].as_array().unwrap().iter().find(|v| v["way"] == "--mode compat").unwrap();
    assert_eq!(compat["fits"], false, "{compat}");
    let failing =
        Command::new(TIDEPOOL).args(["trace", "posix", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(failing.status.code(), Some(7), "the program's own exit code");
}
