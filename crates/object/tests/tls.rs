//! A service that nobody vouches for is not talked to.

use std::process::{Command, Stdio};
use tidepool_object::{ObjectEnd, ObjectUrl};

#[test]
fn an_unknown_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"])
        .args(["-keyout", "key", "-out", "certificate"])
        .current_dir(dir.path())
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return println!("SKIPPED: needs the program openssl");
    }
    let port = tidepool_testkit::free_address().port();
    let mut server = Command::new("openssl")
        .args(["s_server", "-accept", &port.to_string(), "-cert", "certificate", "-key", "key", "-www"])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::yield_now();
    }
    let url: ObjectUrl =
        format!("s3://data?endpoint=https://localhost:{port}&anonymous=yes").parse().unwrap();
    let opened = ObjectEnd::open(&url, b"", true);
    server.kill().unwrap();
    server.wait().unwrap();
    let error = opened.err().expect("it cannot be opened").to_string();
    assert!(error.contains("certificate"), "{error}");
}
