//! Connections of other nodes that want something else than a directory: to ask as on the control socket, from afar.

use crate::tasks::{News, Teller};
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tidepool_stage_state::Rank;
use tidepool_transport::remote::Guest;

/// How long replies may take to leave when the stager ends.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Connections that lead to the event loop. They come to it like those of this node, so nothing of the protocol is known here.
#[derive(Clone)]
pub struct Bridges {
    teller: Teller,
    open: Arc<Open>,
}

#[derive(Default)]
struct Open {
    count: Mutex<usize>,
    fewer: Condvar,
}

/// One of them.
struct Counted(Arc<Open>);

impl Counted {
    fn new(open: &Arc<Open>) -> Counted {
        *open.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Counted(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.fewer.notify_all();
    }
}

impl Bridges {
    pub fn new(teller: &Teller) -> Bridges {
        Bridges { teller: teller.clone(), open: Arc::default() }
    }

    /// Carries bytes both ways until either side ends. What is asked for is served for somebody of this rank.
    pub fn carry(&self, guest: Guest, rank: Rank) -> io::Result<()> {
        let counted = Counted::new(&self.open);
        let (own, stream) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => return guest.turn_away(&format!("the stager cannot reach itself: {error}")),
        };
        let peer = guest.let_in()?;
        self.teller.tell(News::Guest { stream, rank });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // How it ends is seen by both sides.
                let _ = io::copy(&mut &peer, &mut &own);
                let _ = own.shutdown(Shutdown::Write);
            });
            let _ = io::copy(&mut &own, &mut &peer);
            // What was said before goes out first: the other side closes when it has heard the end.
            let _ = peer.shutdown(Shutdown::Write);
            let _ = peer.set_read_timeout(Some(LEAVE_MAX));
            let _ = own.shutdown(Shutdown::Both);
        });
        drop(counted);
        Ok(())
    }

    /// Waits until what the event loop has said has been handed on. It has closed its side of all connections.
    pub fn let_leave(&self) {
        let count = self.open.count.lock().unwrap_or_else(PoisonError::into_inner);
        // Who does not take its replies does without.
        let _ = self.open.fewer.wait_timeout_while(count, LEAVE_MAX, |count| *count > 0);
    }
}
