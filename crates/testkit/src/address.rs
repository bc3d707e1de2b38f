//! Addresses for servers that are started later, or again.

use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// The first port that is tried.
const FIRST: u16 = 20_000;

/// An address of this machine where nobody listens. The kernel gives its port to no connection, not even while a server that had it is
/// being started again: it lies below those that connections get. And no other test gets it for as long as this process lives.
pub fn free_address() -> SocketAddr {
    static KEPT: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768);
    assert!(FIRST < end, "connections get ports from {end} on, and none below is left for tests");
    for port in FIRST..end {
        // A name that goes with the process, in the same network as the port.
        let name = UnixAddr::from_abstract_name(format!("tidepool-test-port-{port}"));
        let Ok(mark) = UnixListener::bind_addr(&name.expect("the name is short")) else { continue };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            kept.push(mark);
            return address;
        }
    }
    panic!("no port of {FIRST} to {end} is free");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nobody_gets_the_same_port() {
        let get = || (0..50).map(|_| free_address()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(get)).collect();
        let all: Vec<SocketAddr> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 200);
        let connection = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(all.iter().all(|address| address.port() < connection.port()));
    }
}
