//! The same through a server that others have written: moto, a program in Python, if it is installed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};
use tidepool_object::{ObjectEnd, ObjectUrl};
use tidepool_stage::{
    CompareOptions, Control, End, LocalEnd, StageOptions, StageReport, What, compare, stage,
};

/// Times the server is asked whether it is there.
const TRIES_MAX: usize = 600;

/// A Python that has it: that of `scripts/install-tools`, or the system's.
fn python() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/moto/bin/python3");
    let has_it = |python: &PathBuf| {
        let asked =
            Command::new(python).args(["-c", "import moto.server, flask"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    [tools, "python3".into()].into_iter().find(has_it)
}

struct Moto {
    child: Child,
    port: u16,
}

impl Moto {
    /// None where it is not installed.
    fn start() -> Option<Moto> {
        let Some(python) = python() else {
            println!("SKIPPED: needs the Python package moto[server]; run 'scripts/install-tools'");
            return None;
        };
        let port = tidepool_testkit::free_address().port();
        let child = Command::new(python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let moto = Moto { child, port };
        assert!(moto.make_bucket().contains("200"), "the server makes no bucket");
        Some(moto)
    }

    fn make_bucket(&self) -> String {
        for _ in 0..TRIES_MAX {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
                let request =
                    "PUT /data HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                return answer.lines().next().unwrap_or_default().to_string();
            }
            thread::sleep(Duration::from_millis(100));
        }
        panic!("the server does not come up");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn copy(src: &dyn End, dst: &dyn End) -> StageReport {
    stage(src, dst, &What::Tree, &StageOptions::default(), &Control::default())
}

#[test]
fn a_tree_goes_there_and_back() {
    let Some(moto) = Moto::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (src, back, keys) = (dir.path().join("src"), dir.path().join("back"), dir.path().join("keys"));
    fs::write(&keys, "[default]\naws_access_key_id = id\naws_secret_access_key = secret\n").unwrap();
    fs::create_dir_all(src.join("a/b")).unwrap();
    fs::create_dir(src.join("none")).unwrap();
    for name in ["a/b/small", " blanks ", "50%41+&?#=;", "\u{e9}\u{1f30a}", "..dots"] {
        fs::write(src.join(name), name).unwrap();
    }
    fs::write(src.join("large"), (0..20 << 20).map(|n| (n / 4099) as u8).collect::<Vec<u8>>()).unwrap();
    std::os::unix::fs::symlink("b/small", src.join("a/link")).unwrap();
    let url: ObjectUrl =
        format!("s3://data/top?endpoint=http://127.0.0.1:{}&credentials={}", moto.port, keys.display())
            .parse()
            .unwrap();
    let local = LocalEnd::open(&src).unwrap();
    let up = copy(&local, &ObjectEnd::open(&url, b"t", true).unwrap());
    assert!(up.complete && up.warnings.is_empty(), "{up:?}");
    let again = copy(&local, &ObjectEnd::open(&url, b"t", false).unwrap());
    assert!(again.complete && again.bytes_copied == 0, "{again:?}");
    let down = copy(&ObjectEnd::open(&url, b"t", false).unwrap(), &LocalEnd::create(&back).unwrap());
    assert!(down.complete, "{down:?}");
    let how = CompareOptions { owners: true, holes_slack: None, ignore_sockets: false };
    let differences = compare(&local, &LocalEnd::open(&back).unwrap(), how).unwrap();
    assert!(differences.is_empty(), "{differences:#?}");
    let missing = ObjectUrl { bucket: "other".into(), ..url };
    assert!(ObjectEnd::open(&missing, b"", true).is_err());
}
