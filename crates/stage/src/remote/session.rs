//! A session: a root that a client has opened, with what is open below it. `serve.rs` answers what is asked in it, on whichever thread,
//! and in whichever process, the connection is.

use super::fabric::Fabric;
use super::message::{Answer, ROOT, RootInfo};
use super::table::Table;
use crate::end::{At, End, EndResult};
use crate::limit::Charge;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tidepool_transport::Seals;
use tidepool_transport::remote::{Channel, Sealed};
use tidepool_types::SessionId;

/// An end as it is served.
pub struct Serving {
    pub end: Box<dyn End>,
    /// Limits on what is put there.
    pub charge: Option<Arc<dyn Charge>>,
    /// Something may be changed.
    pub write: bool,
    /// Set when what allowed it is gone: each connection ends with its next request.
    pub is_over: Arc<AtomicBool>,
}

/// One root opened by a client, for all of its connections.
pub struct Session {
    pub(super) serving: Serving,
    pub(super) table: Table,
    info: RootInfo,
}

impl Session {
    pub fn open(id: SessionId, serving: Serving) -> EndResult<Session> {
        let end = &*serving.end;
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let info = RootInfo {
            session: id,
            boot: boot.trim_ascii_end().into(),
            describe: end.describe(),
            identity: end.identity().into(),
            rights: end.rights(),
            reads_touch_atime: end.reads_touch_atime(),
            meta: end.stat(At::Dir(&end.root()))?,
        };
        let table = Table::new(end.root());
        debug_assert!(table.dir(ROOT).is_ok());
        Ok(Session { serving, table, info })
    }

    /// What opening or joining it is answered with.
    pub(super) fn welcome(&self) -> Answer {
        Answer::Root { info: self.info.clone() }
    }
}

/// A connection that was greeted, and whose first request was judged, by another process.
pub struct Greeted(Channel<Sealed<TcpStream>>, u32);

impl Greeted {
    /// `request`: the number of the request that is to be answered.
    pub fn new(stream: TcpStream, seals: Seals, request: u32) -> Greeted {
        let mut channel = Channel::new(Sealed::put_together(stream, seals));
        channel.trust();
        Greeted(channel, request)
    }

    /// Serves it to its end, with the root that it has asked for, or tells the client why there is none. Large data go by `fabric` from
    /// and to clients that have it, too.
    pub fn serve(mut self, session: EndResult<Arc<Session>>, fabric: Option<&Fabric>) -> io::Result<()> {
        let answer = match &session {
            Ok(session) => session.welcome(),
            Err(error) => Answer::Failed { error: error.clone() },
        };
        self.0.send(answer.kind(), self.1, |out| answer.encode(out), &[])?;
        let Ok(session) = session else { return Ok(()) };
        self.0.read_ahead();
        session.serve(&mut self.0, fabric)
    }
}
