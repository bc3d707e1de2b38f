//! A test that is killed leaves no daemons behind: this program runs itself, kills that, and looks.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tidepool_testkit::Leash;

const ROLE: &str = "TIDEPOOL_LEASH_TEST";

fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// What is killed: it has a process on a leash, one that is nobody's child any more, and tells its number.
#[test]
fn holder() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let out = Command::new("sh").args(["-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]).output().unwrap();
    let pid = String::from_utf8(out.stdout).unwrap().trim().to_string();
    let _leash = Leash::on(pid.parse().unwrap());
    println!("\nPID {pid}");
    std::thread::sleep(std::time::Duration::from_secs(1000));
}

#[test]
fn who_is_killed_takes_what_is_on_a_leash_along() {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let pid = lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("PID ")?.to_string()));
    let pid = pid.expect("it tells the number");
    assert!(runs(&pid));
    holder.kill().unwrap();
    holder.wait().unwrap();
    while runs(&pid) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_leash_that_is_dropped_kills_nobody() {
    let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
    drop(Leash::on(sleeper.id()));
    assert!(runs(&sleeper.id().to_string()));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}
