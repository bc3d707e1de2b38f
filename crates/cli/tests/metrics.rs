//! What Prometheus reads: `tidepool metrics`, printed, as a file, and served.

mod common;

use common::{Sandbox, text};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// The samples of a text in the format 0.0.4, by name and labels; panics on anything that a strict reader refuses.
fn parsed(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let (mut samples, mut seen, mut family) = (BTreeMap::new(), BTreeSet::new(), String::new());
    let is_name = |name: &str| {
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || c == ':');
        first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
    };
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !words.is_empty(), "{line}");
            assert!(seen.insert(name.to_string()), "{name} is told twice");
            let of = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(["counter", "gauge", "untyped"].contains(&of), "{line}");
            assert_eq!(of == "counter", name.ends_with("_total"), "{name} is a {of}");
            family = name.into();
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("{line}"));
        assert_eq!(name, family, "samples stand with their family");
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        let mut names = BTreeSet::new();
        let mut rest = labels;
        while !rest.is_empty() {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(is_name(label) && !label.contains(':') && names.insert(label), "{line}");
            let mut escaped = false;
            let end = after.find(|c| {
                let ends = c == '"' && !escaped;
                assert!(!escaped || ['\\', '"', 'n'].contains(&c), "{line}");
                escaped = c == '\\' && !escaped;
                ends
            });
            rest = &after[end.unwrap() + 1..];
            rest = if rest.is_empty() { rest } else { rest.strip_prefix(',').unwrap() };
        }
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite(), "{line}");
        assert!(samples.insert(format!("{name}{{{labels}}}"), value).is_none(), "{line} is told twice");
    }
    samples
}

/// Loads come and go; what daemons count is always there.
fn of_daemons(samples: &BTreeMap<String, f64>) -> Vec<&String> {
    samples.keys().filter(|name| name.starts_with("tidepool_daemon_")).collect()
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn prometheus_is_told_in_three_ways() {
    let sandbox = Sandbox::new();
    let pfs = sandbox.path("p\"f\\s");
    fs::create_dir(&pfs).unwrap();
    let none = sandbox.tidepool(&["metrics"]).output().unwrap();
    assert_eq!(none.status.code(), Some(116), "{}", text(&none));
    let start = ["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload"];
    sandbox.ok(&[&start[..], &["--pfs", pfs.to_str().unwrap(), "--strategy", "baseline"]].concat());
    fs::write(sandbox.path("in"), vec![b'x'; 300_000]).unwrap();
    sandbox.ok(&["cp", "--pool", "p", sandbox.path("in").to_str().unwrap(), "pool:/f"]);
    let samples = parsed(&sandbox.ok(&["metrics"]));
    let sum = |start: &str| {
        let of = samples.iter().filter(|(name, _)| name.starts_with(start));
        of.map(|(_, value)| value).sum::<f64>()
    };
    assert_eq!(sum("tidepool_daemon_up{"), 2.0);
    assert_eq!(sum("tidepool_daemon_written_bytes_total{"), 300_000.0);
    assert!(
        sum("tidepool_daemon_tier_bytes{") >= 300_000.0 && sum("tidepool_daemon_cpu_seconds_total{") > 0.0
    );
    assert!(
        !samples.keys().any(|name| name.starts_with("tidepool_daemon_other")),
        "all have names: {samples:?}"
    );
    assert!(
        samples.keys().any(|name| name.starts_with("tidepool_pool_write_bytes_per_second{dir=\"")
            && name.contains("p\\\"f\\\\s\"")),
        "{samples:?}"
    );

    let out = sandbox.path("tidepool.prom");
    sandbox.ok(&["metrics", "--pool", "p", "--out", out.to_str().unwrap()]);
    assert_eq!(of_daemons(&parsed(&fs::read_to_string(&out).unwrap())), of_daemons(&samples));
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o644);
    let nowhere = sandbox.tidepool(&["metrics", "--out", "/proc/none/x"]).output().unwrap();
    assert!(
        nowhere.status.code() == Some(1) && text(&nowhere).contains("writing /proc/none/x"),
        "{}",
        text(&nowhere)
    );

    let mut served = sandbox.tidepool(&["metrics", "--listen", "0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // Held open: there is more to tell at the end.
    let mut told = BufReader::new(served.stderr.take().unwrap());
    told.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("tidepool: http://").unwrap().strip_suffix("/metrics").unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{line}");
    for _ in 0..2 {
        let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert_eq!(of_daemons(&parsed(body)), of_daemons(&samples));
    }
    assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(ask(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let pid = rustix::process::Pid::from_child(&served);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(served.wait().unwrap().code(), Some(130));

    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    assert_eq!(fs::read_dir(&pfs).unwrap().count(), 0);
    sandbox.assert_nothing_left("after the pool");
}
