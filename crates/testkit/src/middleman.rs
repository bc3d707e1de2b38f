//! Who sits in the network between clients and a daemon, and listens, changes, or cuts.

use crate::Cluster;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tidepool_client::Client;

/// What one direction of all connections has carried, and what is done to it.
pub struct Way {
    pub seen: Mutex<Vec<u8>>,
    /// The next data that pass get one bit wrong.
    pub flip: AtomicBool,
    /// How often data still pass, as they arrive; then their connection is cut before they do.
    pub passes: AtomicI64,
}

impl Default for Way {
    fn default() -> Way {
        Way { seen: Mutex::default(), flip: AtomicBool::default(), passes: AtomicI64::new(i64::MAX) }
    }
}

/// Sits between clients and a daemon.
pub struct Middleman {
    pub address: SocketAddr,
    pub there: Arc<Way>,
    pub back: Arc<Way>,
    /// To the daemon, of the connections so far.
    pub daemons: Arc<Mutex<Vec<TcpStream>>>,
}

impl Middleman {
    /// Before the daemon at an address of TCP.
    pub fn before(daemon: &str) -> Middleman {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let man = Middleman { address, there: Arc::default(), back: Arc::default(), daemons: Arc::default() };
        let (there, back) = (Arc::clone(&man.there), Arc::clone(&man.back));
        let (daemon, daemons) = (daemon.to_string(), Arc::clone(&man.daemons));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // It may be gone at a test's end.
                let Ok(daemon) = TcpStream::connect(&daemon) else { continue };
                daemons.lock().unwrap().push(daemon.try_clone().unwrap());
                pass(client.try_clone().unwrap(), daemon.try_clone().unwrap(), &there);
                pass(daemon, client, &back);
            }
        });
        man
    }

    /// A client that goes this way to the pool's only daemon.
    pub fn client(&self, cluster: &Cluster) -> Client {
        let mut pool = cluster.pool_file();
        pool.members[0].tcp = self.address.to_string();
        Client::new(pool)
    }

    pub fn has_seen(&self, text: &[u8]) -> bool {
        [&self.there, &self.back].iter().any(|way| {
            let seen = way.seen.lock().unwrap();
            seen.windows(text.len()).any(|window| window == text)
        })
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, way: &Arc<Way>) {
    let way = Arc::clone(way);
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let data = &mut buffer[..count];
            way.seen.lock().unwrap().extend_from_slice(data);
            if way.flip.swap(false, Ordering::SeqCst) {
                data[count - 1] ^= 1;
            }
            if way.passes.fetch_sub(1, Ordering::SeqCst) <= 0 || to.write_all(data).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
