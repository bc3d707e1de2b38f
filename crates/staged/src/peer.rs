//! Who is at the other end of a local socket.

use rustix::net::sockopt::socket_peercred;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use tidepool_stage_state::{Caller, Origin, Rank};

/// Ancestors looked at.
const ANCESTORS_MAX: usize = 64;

/// Bytes of a stat file; the longest has about 400.
const STAT_BYTES: usize = 1024;

/// The caller behind a connection, without ancestors. One that comes through this process is one of another node
/// (`doors.rs`): no process here is its own.
pub fn caller(stream: &UnixStream, rank: Rank) -> io::Result<Caller> {
    let peer = socket_peercred(stream)?;
    let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
    let pid = peer.pid.as_raw_nonzero().get();
    let here = (pid != std::process::id() as i32).then(|| Origin { pid, started: started(pid) });
    Ok(Caller { uid, gid, rank, ancestry: here.into_iter().collect() })
}

/// Adds a caller's ancestors, by whom processes of jobs are found: those of now. A process that has taken a caller's number
/// since it connected has none to lend.
pub fn add_ancestors(caller: &mut Caller) {
    let Some(own) = caller.ancestry.first().copied() else { return };
    let found = ancestry(own.pid);
    if found.first() == Some(&own) {
        caller.ancestry = found;
    }
}

fn ancestry(pid: i32) -> Vec<Origin> {
    let mut found = Vec::new();
    let mut next = pid;
    while next > 0 && found.len() < ANCESTORS_MAX {
        let Some((parent, started)) = parent_and_start(next) else { break };
        found.push(Origin { pid: next, started });
        next = parent;
    }
    if found.is_empty() {
        // Without /proc, at least its own number.
        found.push(Origin { pid, started: 0 });
    }
    found
}

/// When a process started, in the kernel's ticks since boot; 0 when it cannot be told.
pub fn started(pid: i32) -> u64 {
    parent_and_start(pid).map_or(0, |(_, started)| started)
}

fn parent_and_start(pid: i32) -> Option<(i32, u64)> {
    let mut stat = [0; STAT_BYTES];
    // The kernel gives all of it at once.
    let len = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
    parse_stat(&stat[..len])
}

/// Fields 4 and 22 of proc(5)'s stat. The name before them may hold anything, brackets too.
fn parse_stat(stat: &[u8]) -> Option<(i32, u64)> {
    let close = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(&stat[close + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    Some((parent, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_pretend_to_be_more() {
        let stat = b"77 (a) S 1 (b) c) R 42 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 4711 23";
        assert_eq!(parse_stat(stat), Some((42, 4711)));
        assert_eq!(parse_stat(b"77 (a"), None);
    }

    #[test]
    fn ancestors_are_those_of_the_process_that_connected() {
        let (pid, started) = (std::process::id() as i32, started(std::process::id() as i32));
        let with = |started| {
            let ancestry = vec![Origin { pid, started }];
            let mut caller = Caller { uid: 0, gid: 0, rank: Rank::User, ancestry };
            add_ancestors(&mut caller);
            caller.ancestry.len()
        };
        assert!(with(started) > 1);
        assert_eq!(with(started + 1), 1, "another process has this number now");
    }

    #[test]
    fn ones_own_ancestors_are_found() {
        let own = ancestry(std::process::id() as i32);
        assert_eq!(own[0].pid as u32, std::process::id());
        assert!(own.len() > 1 && own[0].started > 0, "{own:?}");
    }
}
