//! Serving other stagers in the name of the worker's user: connections that the supervisor has greeted and judged.

use super::child::{Desk, invalid};
use super::message::{FromWorker, Opening};
use crate::limits::Named;
use crate::places::LazyFabric;
use crate::start::lock;
use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use tidepool_stage::remote::{Greeted, Serving, Session};
use tidepool_stage::{Charge, EndError, EndResult, LocalEnd};
use tidepool_types::{Errno, SessionId};

/// Bytes of a connection's thread for its calls: memory that is the user's is his limit's.
const STACK_BYTES: usize = 512 << 10;

/// What is asked for by a connection.
pub struct Asked {
    pub visit: u64,
    pub session: SessionId,
    /// None for who joins.
    pub opening: Option<(Opening, OwnedFd)>,
}

/// The visits of this worker.
pub struct Visits {
    desk: Arc<Desk>,
    fabric: Arc<LazyFabric>,
    verify_disk: bool,
    sessions: Arc<Mutex<HashMap<u64, Weak<Session>>>>,
}

impl Visits {
    pub fn new(desk: Arc<Desk>, fabric: Arc<LazyFabric>, verify_disk: bool) -> Visits {
        Visits { desk, fabric, verify_disk, sessions: Arc::default() }
    }

    /// Takes what comes with a connection.
    pub fn asked(
        (visit, session): (u64, SessionId),
        opening: Option<Opening>,
        fds: Vec<OwnedFd>,
    ) -> io::Result<(TcpStream, Asked)> {
        let mut fds = fds.into_iter();
        let stream = fds.next().ok_or_else(|| invalid("a connection without its socket"))?;
        let opening = match opening {
            Some(opening) => {
                Some((opening, fds.next().ok_or_else(|| invalid("a dataspace without its root"))?))
            }
            None => None,
        };
        Ok((stream.into(), Asked { visit, session, opening }))
    }

    /// Serves a connection, with a thread of its own.
    pub fn serve(&self, connection: u64, greeted: Greeted, asked: Asked) {
        let (desk, sessions, verify_disk) =
            (Arc::clone(&self.desk), Arc::clone(&self.sessions), self.verify_disk);
        let fabric = Arc::clone(&self.fabric);
        let left = Left { desk: Arc::clone(&desk), connection };
        let run = move || {
            let visit = asked.visit;
            let session = enter(&desk, &sessions, asked, verify_disk);
            // How it ends both sides see.
            let _ = greeted.serve(session, fabric.get());
            lock(&sessions).retain(|known, session| *known != visit || session.strong_count() > 0);
            drop(left);
        };
        let thread = std::thread::Builder::new().name("visit".into()).stack_size(STACK_BYTES);
        // Without a thread the connection is dropped, and its end is told.
        let _ = thread.spawn(run);
    }
}

/// Tells the end of a connection, also when its thread panics.
struct Left {
    desk: Arc<Desk>,
    connection: u64,
}

impl Drop for Left {
    fn drop(&mut self) {
        self.desk.tell(&FromWorker::Left { connection: self.connection });
    }
}

/// Opens a root, or finds the session that is joined.
fn enter(
    desk: &Arc<Desk>,
    sessions: &Mutex<HashMap<u64, Weak<Session>>>,
    asked: Asked,
    verify_disk: bool,
) -> EndResult<Arc<Session>> {
    let Asked { visit, session, opening } = asked;
    let Some((Opening { path, write, charged }, root)) = opening else {
        let known = lock(sessions).get(&visit).and_then(Weak::upgrade);
        return known.ok_or_else(|| EndError::new("open dataspace", Errno::ESTALE));
    };
    let end = LocalEnd::open_beneath(&root, &path)?;
    let end = if verify_disk { end.verified_from_disk() } else { end };
    let charge = Putting { desk: Arc::clone(desk), visit, counts: charged, named: Mutex::default() };
    let serving =
        Serving { end: Box::new(end), charge: Some(Arc::new(charge)), write, is_over: Arc::default() };
    let session = Arc::new(Session::open(session, serving)?);
    lock(sessions).insert(visit, Arc::downgrade(&session));
    Ok(session)
}

/// What is put by who visits: the supervisor counts it, and keeps its limits.
struct Putting {
    desk: Arc<Desk>,
    visit: u64,
    counts: bool,
    named: Mutex<Named>,
}

impl Charge for Putting {
    fn charge(&self, bytes: u64) -> EndResult<()> {
        let visit = self.visit;
        if !self.counts {
            self.desk.tell(&FromWorker::Puts { call: 0, visit, bytes });
            return Ok(());
        }
        let wait = self.desk.charge(|call| FromWorker::Puts { call, visit, bytes })?;
        std::thread::sleep(wait);
        Ok(())
    }

    fn named(&self, in_root: Option<&[u8]>) {
        // Most files change nothing of what is known.
        if lock(&self.named).add(in_root) {
            let name = in_root.map(Into::into);
            self.desk.tell(&FromWorker::Names { visit: self.visit, name });
        }
    }

    fn counts(&self) -> bool {
        self.counts
    }
}
