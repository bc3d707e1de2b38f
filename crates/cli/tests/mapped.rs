//! Mapped memory of the preload library, where it cannot be written back, and where others write.

mod common;

use common::{Sandbox, doors};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tidepool_testkit::Cluster;
use tidepool_types::Ino;

/// Does one thing with a mapping of the file for each line it gets, and says what came of it.
const PROGRAM: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
maps = []
for line in sys.stdin:
    said = "done"
    try:
        match line.strip():
            case "map": maps.append(mmap.mmap(fd, 0))
            case "map to read": maps.append(mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ))
            case "change": maps[-1][:5] = b"mine!"
            case "sync": maps[-1].flush()
            case "show": said = maps[-1][:5].decode()
            case "unmap": maps.pop().close()
    except OSError as error:
        said = f"error {error.errno}"
    print(said, flush=True)
"#;

struct Program {
    child: Child,
    tell: Option<ChildStdin>,
    says: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(sandbox: &Sandbox, cluster: &Cluster) -> Program {
        let mut pool = cluster.pool_file();
        pool.mount = sandbox.path("pool");
        let file = sandbox.path("pool.json");
        pool.write(&file).unwrap();
        let library =
            std::path::Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("libtidepool_preload.so");
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(pool.mount.join("f"))
            .env("LD_PRELOAD", library)
            .env("TIDEPOOL_DIR", &pool.mount)
            .env("TIDEPOOL_POOL", file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let (tell, said) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        Program { child, tell, says: BufReader::new(said).lines() }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.tell.as_ref().expect("it has not ended"), "{line}").unwrap();
        self.says.next().expect("it answers").unwrap()
    }

    fn does(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| assert_eq!(self.ask(line), "done", "{line}"));
    }

    fn ends(mut self) {
        self.tell = None;
        assert!(self.child.wait().unwrap().success());
    }
}

/// The first bytes of the file, written and read by another client.
struct Other<'a>(&'a Cluster, Ino);

impl Other<'_> {
    fn writes(&self, bytes: &[u8]) {
        self.0.client().write(self.1, 0, bytes).unwrap();
    }

    fn reads(&self) -> [u8; 5] {
        let mut bytes = [0; 5];
        self.0.client().read(self.1, 0, &mut bytes).unwrap();
        bytes
    }
}

fn make_file(cluster: &Cluster) -> Ino {
    let client = cluster.client();
    let file = tidepool_testkit::create_file(&client, "f");
    client.write(file, 0, &[b'.'; 10_000]).unwrap();
    file
}

/// What could not be written back is gone with its mapping. It is not shown by the next one, nor written over what others write since,
/// when the program ends.
#[test]
fn what_cannot_be_written_back_does_not_return() {
    if !doors().contains(&"preload") {
        return;
    }
    let (sandbox, mut cluster) = (Sandbox::new(), Cluster::start(1));
    let file = make_file(&cluster);
    let mut program = Program::start(&sandbox, &cluster);
    program.does(&["map", "change"]);
    cluster.kill(0);
    assert_eq!(program.ask("sync"), format!("error {}", libc::EIO));
    program.does(&["unmap"]);
    cluster.restart(0);
    let other = Other(&cluster, file);
    other.writes(b"other");
    program.does(&["map to read"]);
    assert_eq!(program.ask("show"), "other");
    program.ends();
    assert_eq!(&other.reads(), b"other");
}

/// A mapping is what the file is when it is made, also beside an older one; what the program has changed in that stays.
#[test]
fn a_second_mapping_shows_what_others_have_written() {
    if !doors().contains(&"preload") {
        return;
    }
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    let other = Other(&cluster, make_file(&cluster));
    let mut program = Program::start(&sandbox, &cluster);
    program.does(&["map to read"]);
    assert_eq!(program.ask("show"), ".....");
    other.writes(b"other");
    program.does(&["map to read"]);
    assert_eq!(program.ask("show"), "other");
    program.does(&["unmap", "unmap", "map", "change"]);
    other.writes(b"again");
    program.does(&["map to read"]);
    assert_eq!(program.ask("show"), "mine!");
    program.does(&["unmap", "sync"]);
    assert_eq!(&other.reads(), b"mine!");
    program.ends();
}
