//! Servers of remote ends, and what sits between.

use super::fault::{Fault, FaultEnd};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidepool_stage::remote::{EndServer, OpenedRoot, RemoteEnd, RemoteOptions, RootRequest, Roots};
use tidepool_stage::{EndError, EndResult, LocalEnd};
use tidepool_transport::Secret;
use tidepool_transport::remote::Peer;
use tidepool_types::Errno;

pub fn secret() -> Secret {
    Secret::from_hex(&"5a".repeat(32)).unwrap()
}

/// Serves the directories below one, a fault wrapped around each.
pub struct Dirs {
    pub base: PathBuf,
    pub fault: Fault,
    pub at: u64,
}

impl Roots for Dirs {
    fn open(&self, _peer: &Peer, want: &RootRequest) -> EndResult<OpenedRoot> {
        if want.dataspace != "test" {
            return Err(EndError::new("open dataspace", Errno::ENOENT));
        }
        let path = self.base.join(std::str::from_utf8(&want.path).unwrap());
        let end = if want.write { LocalEnd::create(&path)? } else { LocalEnd::open(&path)? };
        let end = FaultEnd::new(end, self.fault, self.at);
        Ok(OpenedRoot::of(end, want.write))
    }
}

/// Like [`Dirs`] without anything around the local end, so that its own operations are used.
pub struct Plain(pub PathBuf);

impl Roots for Plain {
    fn open(&self, _peer: &Peer, want: &RootRequest) -> EndResult<OpenedRoot> {
        let path = self.0.join(std::str::from_utf8(&want.path).unwrap());
        let end = if want.write { LocalEnd::create(&path)? } else { LocalEnd::open(&path)? };
        Ok(OpenedRoot::of(end, want.write))
    }
}

pub fn serve(base: &Path) -> EndServer {
    serve_roots(Arc::new(Plain(base.into())))
}

pub fn serve_roots(roots: Arc<dyn Roots>) -> EndServer {
    EndServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), secret(), roots).unwrap()
}

pub fn options(address: SocketAddr, path: &str, write: bool) -> RemoteOptions {
    let root = RootRequest { dataspace: "test".into(), path: path.into(), write, ..RootRequest::default() };
    let mut options = RemoteOptions::new(&address.to_string(), secret(), root);
    options.node = "n7".into();
    options.patience = Duration::from_secs(20);
    options
}

pub fn open(address: SocketAddr, path: &str, write: bool) -> RemoteEnd {
    RemoteEnd::open(options(address, path, write)).unwrap()
}

/// What a [`Flipper`] does to what passes.
#[derive(Clone, Copy, Debug)]
pub struct Damage {
    /// Bytes between two flipped bits.
    pub flip: u64,
    /// Bytes between two cut connections.
    pub cut: u64,
}

/// Passes bytes on in both directions, and damages them.
pub struct Flipper {
    pub address: SocketAddr,
    pub flips: Arc<AtomicU64>,
    /// Bytes in both directions.
    pub passed: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Flipper {
    pub fn start(server: SocketAddr, flip: u64) -> Flipper {
        Flipper::with(server, Damage { flip, cut: u64::MAX })
    }

    pub fn with(server: SocketAddr, damage: Damage) -> Flipper {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (flips, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let passed = Arc::new(AtomicU64::new(0));
        let (count, stopping, counted) = (flips.clone(), stop.clone(), passed.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(server) = TcpStream::connect(server) else { continue };
                for (from, to) in
                    [(&client, &server), (&server, &client)].map(|(a, b)| (a.try_clone(), b.try_clone()))
                {
                    let (count, passed) = (count.clone(), counted.clone());
                    std::thread::spawn(move || pass(from.unwrap(), to.unwrap(), damage, &passed, &count));
                }
            }
        });
        Flipper { address, flips, passed, stop }
    }
}

impl Drop for Flipper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, damage: Damage, passed: &AtomicU64, flips: &AtomicU64) {
    let mut buf = [0; 16 << 10];
    while let Ok(count) = from.read(&mut buf) {
        if count == 0 {
            break;
        }
        let before = passed.fetch_add(count as u64, Ordering::Relaxed);
        let crosses = |step: u64| before / step != (before + count as u64) / step;
        if crosses(damage.cut) {
            break;
        }
        if crosses(damage.flip) {
            let at = (before as usize).wrapping_mul(31) % count;
            buf[at] ^= 1 << (before % 8);
            flips.fetch_add(1, Ordering::Relaxed);
        }
        if to.write_all(&buf[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
