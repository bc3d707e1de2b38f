use super::*;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Tells the test below, run again as a process of its own, what to write.
const VICTIM: &str = "TIDEPOOL_TEST_OUTFILE";
const OTHER: u32 = 31002;

fn names(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn fails(_: &mut dyn Write) -> io::Result<()> {
    Err(io::Error::other("no more"))
}

fn is_root(test: &str) -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("SKIPPED {test}: it needs root");
    }
    is
}

#[test]
fn a_file_keeps_its_permissions_and_its_content_when_writing_fails() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let half = |out: &mut dyn Write| out.write_all(&[7; 100_000]).and_then(|()| fails(out));
    assert!(write(&file, How::default(), half).is_err());
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), names(dir.path())), ("old", 1));
    let before = fs::metadata(&file).unwrap().ino();
    put(&file, "new").unwrap();
    let now = fs::metadata(&file).unwrap();
    assert_eq!((now.mode() & 0o7777, fs::read_to_string(&file).unwrap().as_str()), (0o640, "new"));
    assert!(now.ino() != before && names(dir.path()) == 1);
    let keep = How { keep_old: true, ..How::default() };
    assert_eq!(write(&file, keep, fails).unwrap_err().kind(), ErrorKind::AlreadyExists);
    write(&dir.path().join("g"), keep, |out| out.write_all(b"g")).unwrap();
    assert_eq!(names(dir.path()), 2);
}

#[test]
fn links_are_followed_also_to_what_is_not_there_and_loops_end() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    symlink("a/b", at("d")).unwrap();
    symlink("../target", at("a/b/link")).unwrap();
    for content in ["first", "second"] {
        put(&at("d/link"), content).unwrap();
        assert_eq!(fs::read_to_string(at("a/target")).unwrap(), content);
        assert!(at("a/b/link").is_symlink());
    }
    symlink("loop", at("loop")).unwrap();
    assert!(put(&at("loop"), "x").is_err());
    assert!(put(&at("a"), "x").unwrap_err().to_string().contains("directory"));
    assert!(put(&at("none/"), "x").is_err() && !at("none").exists());
}

#[test]
fn what_another_user_has_planted_is_refused() {
    if !is_root("what_another_user_has_planted_is_refused") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (open, link) = (dir.path().join("open"), dir.path().join("open/link"));
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    let target = dir.path().join("target");
    fs::write(&target, "old").unwrap();
    symlink(&target, &link).unwrap();
    put(&link, "ours").unwrap();
    lchown(&link, Some(OTHER), None).unwrap();
    let error = put(&link, "x").unwrap_err().to_string();
    assert!(error.contains("uid 31002"), "{error}");
    assert!(grow(&link).is_err());
    assert_eq!(fs::read_to_string(&target).unwrap(), "ours");
    let file = open.join("file");
    fs::write(&file, "theirs").unwrap();
    lchown(&file, Some(OTHER), None).unwrap();
    assert!(put(&file, "x").is_err());
}

/// Not a test by itself: the process that the tests below start.
#[test]
fn victim() {
    let Some(file) = std::env::var_os(VICTIM) else { return };
    let stop = |out: &mut dyn Write| {
        out.write_all(&[7; 100_000])?;
        println!("half");
        std::thread::sleep(std::time::Duration::from_secs(60));
        Ok(())
    };
    match std::env::var_os("TIDEPOOL_TEST_PUT") {
        Some(text) => put(Path::new(&file), text.as_bytes()).unwrap(),
        None => write(Path::new(&file), How::default(), stop).unwrap(),
    }
}

fn again(file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "outfile::tests::victim", "--nocapture"]).env(VICTIM, file);
    command
}

#[test]
fn a_killed_process_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "old").unwrap();
    let mut process = again(&file).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(process.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("half")));
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), names(dir.path())), ("old", 2));
}

#[test]
fn a_file_of_a_directory_that_may_not_be_written_is_written_in_place() {
    if !is_root("a_file_of_a_directory_that_may_not_be_written_is_written_in_place") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (file, program) = (dir.path().join("f"), dir.path().join("program"));
    fs::write(&file, "a long old content").unwrap();
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    lchown(&file, Some(OTHER), Some(OTHER)).unwrap();
    let before = fs::metadata(&file).unwrap().ino();
    let mut command = Command::new(&program);
    command.args(["--exact", "outfile::tests::victim"]).env(VICTIM, &file).env("TIDEPOOL_TEST_PUT", "new");
    let done = command.uid(OTHER).gid(OTHER).current_dir("/").output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(
        (fs::read_to_string(&file).unwrap().as_str(), fs::metadata(&file).unwrap().ino()),
        ("new", before)
    );
}
