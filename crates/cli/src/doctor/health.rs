//! `tidepool node-check`: may this node take part in a pool? For prologs of batch systems,
//! which hold the node back when this fails.

use super::{Level, Line, facts, node, store};
use crate::agent::become_user;
use crate::exit::{Failure, Kind, Result};
use crate::flags::NodeCheckArgs;
use crate::launch::default_store;
use serde_json::{Value, json};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tidepool_types::format_size;

/// How long a peer may take to answer.
const PEER_MAX: Duration = Duration::from_secs(3);

pub fn check(args: &NodeCheckArgs) -> Result<ExitCode> {
    if let Some(code) = become_user(args.as_user)? {
        return Ok(code);
    }
    let dir = args.store.clone().unwrap_or_else(default_store);
    let mut lines = vec![node::daemon()];
    lines.extend(store::examine(&dir));
    lines.extend(args.min_free.map(|wanted| free(&dir, wanted)));
    lines.extend(args.peer.iter().map(|peer| reach(peer)));
    let reasons: Vec<String> = lines
        .iter()
        .filter(|l| l.level == Level::Problem)
        .map(|l| format!("{}: {}", l.topic, l.text))
        .collect();
    if args.json {
        let all: Vec<Value> = lines.iter().map(Line::json).collect();
        println!("{}", json!({"fit": reasons.is_empty(), "lines": all}));
    }
    if reasons.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(Kind::Unfit, format!("{} is not fit: {}", facts::hostname(), reasons.join("; "))))
}

fn free(dir: &Path, wanted: u64) -> Line {
    let text = match rustix::fs::statvfs(dir) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            if free >= wanted {
                return Line::ok("free space", format_size(free));
            }
            format!("{} has {}, {} are wanted", dir.display(), format_size(free), format_size(wanted))
        }
        Err(error) => format!("{}: {error}", dir.display()),
    };
    Line::problem("free space", text, "remove what earlier jobs left, or ask for less with --min-free")
}

fn reach(peer: &str) -> Line {
    let advice = "look after the network between these nodes";
    let addresses = match peer.to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(error) => return Line::problem("peer", format!("{peer}: {error}"), advice),
    };
    let mut why = "has no address".to_string();
    for address in addresses {
        match TcpStream::connect_timeout(&address, PEER_MAX) {
            Ok(_) => return Line::ok("peer", format!("{peer} answers")),
            Err(error) => why = error.to_string(),
        }
    }
    Line::problem("peer", format!("{peer} cannot be reached: {why}"), advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_reasons_are_named() {
        let line = free(Path::new("/"), u64::MAX);
        assert_eq!((line.topic, line.level), ("free space", Level::Problem));
        assert_eq!(free(Path::new("/"), 0).level, Level::Ok);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        assert_eq!(reach(&at).level, Level::Ok);
        drop(listener);
        let line = reach(&at);
        assert!(line.level == Level::Problem && line.text.contains(&at), "{line:?}");
    }
}
