//! Connections to other stagers for workers, which must not have the secret.
//!
//! ```text
//!  worker ── first request ──▶ thread of the supervisor ══sealed══▶ the other stager
//!  worker ◀── the connection, with its keys, and the answer ──┘
//! ```
//! The supervisor proves the connection, and judges the first request on it: it opens a directory in the name of the task's user, or
//! joins what was opened so. When it is answered with a root the connection is about that directory only, and is the worker's.

use crate::execute::identity_of;
use crate::places::{Directly, PlaceError, Way};
use crate::tasks::{News, Teller};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_stage::Identity;
use tidepool_stage::remote::{Answer, Ask, Dialed, FIRST_ID};
use tidepool_stage_state::Start;
use tidepool_transport::remote::{GreetError, connect};
use tidepool_wire::stager::Resource;

/// Connections that are being made at a time: each takes a thread until it is proved.
const MAKING_MAX: usize = 256;

/// What is counted of them.
#[derive(Clone, Default)]
pub struct Making(Arc<AtomicUsize>);

struct Counted(Making);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Making {
    fn count(&self) -> Option<Counted> {
        let more = |count: usize| (count < MAKING_MAX).then_some(count + 1);
        let counted = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        counted.ok().map(|_| Counted(self.clone()))
    }
}

/// Hosts of other stagers that a task names.
pub fn hosts(start: &Start) -> impl Iterator<Item = &str> {
    [Some(&start.spec.src), start.spec.dst.as_ref()].into_iter().flatten().filter_map(|resource| {
        match resource {
            Resource::Path { host: Some(host), .. } => Some(host.as_str()),
            _ => None,
        }
    })
}

/// A connection that a worker has asked for.
pub struct Wanted {
    pub worker: u64,
    pub line: u64,
    pub host: String,
    /// What it is for.
    pub first: Ask,
    /// The task that it is for.
    pub start: Box<Start>,
    pub directly: Directly,
}

impl Wanted {
    /// Makes it, with a thread of its own. The news of it come in any case.
    pub fn make(self, making: &Making, teller: &Teller) {
        let (worker, line, telling) = (self.worker, self.line, teller.clone());
        let tell = move |made| telling.tell(News::Line { worker, line, made });
        let Some(counted) = making.count() else {
            let text = format!("{MAKING_MAX} connections are being made already; try again");
            return tell(Err(GreetError::Later(text)));
        };
        let failing = tell.clone();
        let run = move || {
            let made = self.connect();
            drop(counted);
            tell(made);
        };
        if let Err(error) = std::thread::Builder::new().name("line".into()).spawn(run) {
            failing(Err(GreetError::Lost(error)));
        }
    }

    fn connect(&self) -> Result<Dialed, GreetError> {
        let (address, way) = self.directly.find(&self.host).map_err(|error| match error {
            PlaceError::NotSupported(text) => GreetError::Refused(text),
            PlaceError::End(error) => GreetError::Refused(error.to_string()),
        })?;
        let Way::Proved { secret, own_name, meant, .. } = way else { return Err(GreetError::Unexpected) };
        let who = self.start.identity;
        let identity =
            identity_of(who.uid, who.gid).map_err(|error| GreetError::Refused(error.to_string()))?;
        if !may_ask(&self.first, &self.start, &identity) {
            return Err(GreetError::Refused("a worker asks for what its task is not about".into()));
        }
        let mut channel = connect(&address, &secret, (&own_name, &meant))?;
        channel.send(self.first.kind(), FIRST_ID, |out| self.first.encode(out), &[])?;
        let head = channel.receive()?;
        channel.bulk(&head)?;
        let answer = Answer::decode(head.kind, channel.meta())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        // Anything else is no root: on such a connection something else could be asked for.
        let is_root = matches!(answer, Answer::Root { .. }) && head.id == FIRST_ID;
        let connection = match is_root {
            true => Some(channel.into_stream().take_apart()?),
            false => None,
        };
        Ok(Dialed { answer, connection })
    }
}

/// Only directories of the task's own ends, in the name of its user. Which session is joined nobody knows who has not opened it.
fn may_ask(ask: &Ask, start: &Start, identity: &Identity) -> bool {
    match ask {
        Ask::JoinRoot { .. } => true,
        Ask::OpenRoot { root } => {
            let named = [Some(&start.spec.src), start.spec.dst.as_ref()].into_iter().flatten().any(|end| {
                matches!(end, Resource::Path { host: Some(_), dataspace, .. } if *dataspace == root.dataspace)
            });
            let job = (start.identity.job != 0).then_some(start.identity.job);
            named && (root.uid, root.gid, root.job) == (identity.uid, identity.gid, job)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_stage::remote::RootRequest;
    use tidepool_stage_state::{Identity as Who, Origin};
    use tidepool_wire::stager::{Op, TaskSpec};

    #[test]
    fn a_worker_opens_what_its_task_is_about_as_its_user_only() {
        let (src, dst) = (Resource::local("a://", b"x"), Resource::remote("b://", "n2:42000", b"y"));
        let start = Start {
            id: 1,
            spec: TaskSpec::new(Op::Copy, src, Some(dst)),
            identity: Who { uid: 7, gid: 8, job: 9 },
            origin: Origin { pid: 0, started: 0 },
            again: false,
            quotas: Vec::new(),
            made: None,
            permit: None,
        };
        let own = RootRequest {
            dataspace: "b://".into(),
            path: b"y".to_vec(),
            write: true,
            uid: 7,
            gid: 8,
            groups: vec![8],
            job: Some(9),
        };
        let identity = Identity { uid: 7, gid: 8, groups: vec![8] };
        let may = |root: RootRequest| may_ask(&Ask::OpenRoot { root }, &start, &identity);
        assert!(may(own.clone()));
        for other in [
            RootRequest { uid: 0, ..own.clone() },
            RootRequest { uid: 6, ..own.clone() },
            RootRequest { gid: 0, ..own.clone() },
            RootRequest { job: None, ..own.clone() },
            RootRequest { job: Some(1), ..own.clone() },
            // Of its own node, and of none of its ends.
            RootRequest { dataspace: "a://".into(), ..own.clone() },
            RootRequest { dataspace: "c://".into(), ..own },
        ] {
            assert!(!may(other.clone()), "{other:?}");
        }
        assert!(!may_ask(&Ask::Ping {}, &start, &identity), "nothing is open yet");
    }
}
