//! Waiting before data are moved, where a daemon gives turns or shares of its tiers, or these are shaped.
//!
//! The daemon says for how long; it is the client that waits. So none of its threads stands still for a writer whose turn
//! has not come, and no data are sent twice.

use crate::calls::{Bulk, expect_reply};
use crate::{Client, FsError};
use std::time::{Duration, Instant};
use tidepool_types::{DaemonIndex, Ino};
use tidepool_wire::message::{Reply, Request};

/// The data that a request moves.
struct Data {
    daemon: DaemonIndex,
    ino: Ino,
    offset: u64,
    len: u64,
    write: bool,
}

impl Data {
    fn of(daemon: DaemonIndex, request: &Request, bulk: &Bulk<'_>) -> Option<Data> {
        let sent = if let Bulk::Out(data) = bulk { data.len() as u64 } else { 0 };
        let (ino, offset, len, write) = match request {
            Request::Write { ino, offset, .. } => (*ino, *offset, sent, true),
            Request::Copy { to, offset, len, .. } => (*to, *offset, u64::from(*len), true),
            Request::Read { ino, offset, len } => (*ino, *offset, u64::from(*len), false),
            _ => return None,
        };
        Some(Data { daemon, ino, offset, len, write })
    }

    /// Whether one question stands for both.
    fn goes_with(&self, other: &Data) -> bool {
        (self.daemon, self.ino, self.write) == (other.daemon, other.ino, other.write)
    }
}

impl Client {
    /// Returns when all these requests may be sent.
    pub(crate) fn wait_for_admission<'r>(
        &self,
        requests: impl IntoIterator<Item = (DaemonIndex, &'r Request, &'r Bulk<'r>)>,
    ) -> Result<(), FsError> {
        let mut wanted: Vec<Data> = Vec::new();
        for (daemon, request, bulk) in requests {
            let Some(data) = Data::of(daemon, request, bulk) else { continue };
            if !self.is_paced(daemon)? {
                continue;
            }
            match wanted.iter_mut().find(|other| other.goes_with(&data)) {
                Some(other) => {
                    other.offset = other.offset.min(data.offset);
                    other.len += data.len;
                }
                None => wanted.push(data),
            }
        }
        let mut until: Option<Instant> = None;
        for data in &wanted {
            until = until.max(Some(self.admitted_from(data)?));
        }
        if let Some(until) = until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// From when on its daemon lets the data come.
    fn admitted_from(&self, data: &Data) -> Result<Instant, FsError> {
        let Data { daemon, ino, offset, len, write } = *data;
        loop {
            let reply = self.request(daemon, &Request::Admit { ino, offset, len, write })?;
            let (wait_ns, again) =
                expect_reply!(self, daemon, reply, Reply::Admitted { wait_ns, again } => (wait_ns, again))?;
            let from = Instant::now() + Duration::from_nanos(wait_ns);
            if !again {
                return Ok(from);
            }
            std::thread::sleep(from.saturating_duration_since(Instant::now()));
        }
    }
}
