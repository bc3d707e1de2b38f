//! The torture tree, in and out of a pool again: nothing may differ.

mod common;

use common::{Sandbox, doors, text};
use std::path::Path;
use std::process::Command;
use tidepool_stage::{CompareOptions, LocalEnd, compare};

/// Makes the tree. Python, because it can step down directories one by one and write any
/// bytes as names.
const MAKE: &str = r#"
import os, sys
root = os.fsencode(sys.argv[1]); depth = int(sys.argv[2]); many = int(sys.argv[3])
os.makedirs(root); os.chdir(root)
with open('sparse', 'wb') as f:
    f.seek(5 << 30); f.write(b'in the middle'); f.truncate(10 << 30)
open('empty', 'w').close()
for name in [b'new\nline', b'tab\t', b'not-utf8-\xff\xfe', b'-rf', b' ', b'*', b'a' * 255, b"quote'\"", b'back\\slash', b'.hidden', b'..x']:
    with open(name, 'wb') as f: f.write(name)
os.link('empty', 'hard-a'); os.mkdir('d'); os.link(b'-rf', b'd/hard-b')
os.symlink('nowhere', 'dangling'); os.symlink('/etc/hostname', 'absolute'); os.symlink('d', 'to-dir'); os.symlink(b'\xff', 'odd-target')
os.mkfifo('fifo')
with open('big', 'wb') as f: f.write(os.urandom(1 << 20) * 40)
os.mkdir('many')
for i in range(many):
    with open(f'many/{i}', 'w') as f: f.write(str(i))
for name, mode in [('suid', 0o4755), ('sgid', 0o2755), ('none', 0o000), ('ro', 0o444)]:
    open(name, 'w').close(); os.chmod(name, mode)
os.mkdir('sticky'); os.chmod('sticky', 0o1777); os.mkdir('closed'); os.chmod('closed', 0o500)
for i, name in enumerate(['empty', 'big', 'd', 'many']):
    try: os.setxattr(name, 'user.number', str(i).encode()); os.setxattr(name, 'user.bin', b'\0\1\xff')
    except OSError as e: print('SKIPPED: extended attributes:', e)
os.utime('big', ns=(1234567890123456789, 987654321987654321)); os.utime('d', ns=(1, 2))
os.mkdir('deep'); os.chdir('deep')
for i in range(depth):
    os.mkdir(b'n' * 200); os.chdir(b'n' * 200)
with open('bottom', 'w') as f: f.write('reached')
"#;

#[test]
fn the_torture_tree_survives() {
    let full = std::env::var("TIDEPOOL_TORTURE").is_ok_and(|v| v == "full");
    // 1 MiB of path is 5217 levels of 201 bytes.
    let many = if full { 100_000 } else { 2_000 };
    let sandbox = Sandbox::new();
    let source = sandbox.path("source");
    let made = Command::new("python3")
        .args(["-c", MAKE])
        .arg(&source)
        .args(["5217", &many.to_string()])
        .output()
        .expect("python3 runs");
    print!("{}", String::from_utf8_lossy(&made.stdout));
    assert!(made.status.success(), "{}", text(&made));
    let door = doors()[0];
    let target = sandbox.path("target");
    let input = format!("{}:/tree", source.display());
    let output = format!("/tree:{}", target.display());
    let args =
        ["run", "--nodes", "3", "--client", door, "--in", &input, "--out", &output, "--json", "--", "true"];
    let done = sandbox.tidepool(&args).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    println!("{}", String::from_utf8_lossy(&done.stderr));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(target.join("sparse")).unwrap());
    assert!(blocks * 512 < 1 << 20, "the sparse file takes {blocks} blocks");
    compare_all(&source, &target);
    compare_by_rsync(&source, &target);
    remove(&[&source, &target]);
    sandbox.assert_nothing_left("after the torture tree");
}

/// Our own comparison, which also goes down the deep path.
fn compare_all(source: &Path, target: &Path) {
    let (a, b) = (LocalEnd::open(source).unwrap(), LocalEnd::open(target).unwrap());
    let differences = compare(&a, &b, CompareOptions { owners: true, ..CompareOptions::default() }).unwrap();
    assert!(differences.is_empty(), "{differences:?}");
}

/// rsync's opinion of all but the deep path, which is longer than rsync can name.
fn compare_by_rsync(source: &Path, target: &Path) {
    let said = Command::new("rsync")
        .args(["-nacHAX", "--delete", "--itemize-changes", "--exclude=/deep/"])
        .arg(format!("{}/", source.display()))
        .arg(format!("{}/", target.display()))
        .output();
    let Ok(said) = said else {
        println!("SKIPPED: rsync is not installed, so only our own comparison was made");
        return;
    };
    assert!(said.status.success(), "{}", text(&said));
    assert!(said.stdout.is_empty(), "rsync would change:\n{}", String::from_utf8_lossy(&said.stdout));
}

/// `rm`, because the deep path is too long for removal by whole paths.
fn remove(paths: &[&Path]) {
    let done = Command::new("rm").arg("-rf").args(paths).status().unwrap();
    assert!(done.success());
}
