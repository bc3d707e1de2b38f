//! Work nobody waits for: chunks of removed objects, time-outs, compaction.

use crate::serve::Service;
use std::collections::HashMap;
use std::time::Duration;
use tidepool_transport::{Identity, Link, LocalNode, connect, random_bytes};
use tidepool_types::{DaemonIndex, Ino, SessionId};
use tidepool_wire::frame::Header;
use tidepool_wire::message::{Member, Reply, Request};

/// How often time-outs are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Objects reaped in one round.
const REAP_MAX: usize = 1024;
/// How long a peer that could not be reached is left alone.
const PEER_PAUSE_TICKS: u32 = 8;

/// Runs until the service stops. `nudge` is called at every tick.
pub fn run(service: &Service, nudge: impl Fn()) {
    let mut peers = Peers::new(service);
    while !service.stopping() {
        service.wait_for_work(TICK);
        service.look_after_stores();
        tick(service);
        nudge();
        service.chunks().bury();
        reap(service, &mut peers);
    }
}

fn tick(service: &Service) {
    let now = service.monotonic();
    let mut state = service.state();
    // The store's own error is kept for `status`; there is nobody to tell here.
    let _ = state.tick(now);
    service.tell_waiters(&mut state.locks);
    let dropped = state.take_dropped();
    let _ = state.compact();
    drop(state);
    service.drop_chunks(&dropped);
}

/// Has all peers drop the chunks of removed objects; what fails is tried again later, also
/// after a restart, because the list is in the metadata store.
fn reap(service: &Service, peers: &mut Peers) {
    // What was removed since the start is gone from here, unless that failed.
    let undropped = service.take_undropped();
    if !reap_all(service, peers, undropped) && undropped {
        service.note_undropped();
    }
}

/// True when nothing is left to do.
fn reap_all(service: &Service, peers: &mut Peers, undropped: bool) -> bool {
    loop {
        let objects = service.state().reaps(REAP_MAX);
        if objects.is_empty() || service.stopping() {
            return true;
        }
        let members = service.members();
        if members.is_empty() {
            return false;
        }
        if undropped {
            service.drop_chunks(&objects);
        }
        let others = members.iter().filter(|m| m.index != service.index());
        // Every peer is asked, also after one has failed.
        let failed = others.filter(|m| !peers.drop_on(m, &objects)).count();
        if failed > 0 || service.state().reaped(&objects).is_err() {
            return false;
        }
    }
}

/// Connections to the other daemons.
struct Peers {
    identity: Identity,
    local: LocalNode,
    links: HashMap<DaemonIndex, Box<dyn Link>>,
    pause: HashMap<DaemonIndex, u32>,
}

impl Peers {
    fn new(service: &Service) -> Peers {
        let session = SessionId(random_bytes());
        Peers {
            identity: service.identity(session),
            local: LocalNode { answer: crate::PEER_ANSWER_MAX, ..LocalNode::detect().without_fabric() },
            links: HashMap::new(),
            pause: HashMap::new(),
        }
    }

    /// Drops objects on one peer; false when it has to be tried again.
    fn drop_on(&mut self, member: &Member, objects: &[Ino]) -> bool {
        if let Some(ticks) = self.pause.get_mut(&member.index) {
            *ticks -= 1;
            if *ticks > 0 {
                return false;
            }
            self.pause.remove(&member.index);
        }
        let dropped = self.link(member).is_some_and(|link| drop_objects(link, objects));
        if !dropped {
            self.links.remove(&member.index);
            self.pause.insert(member.index, PEER_PAUSE_TICKS);
        }
        dropped
    }

    fn link(&mut self, member: &Member) -> Option<&mut dyn Link> {
        if !self.links.contains_key(&member.index) {
            let connected = connect(member, &self.local, &self.identity, |fd| fd).ok()?;
            self.links.insert(member.index, connected.link);
        }
        self.links.get_mut(&member.index).map(|link| &mut **link as &mut dyn Link)
    }
}

fn drop_objects(link: &mut dyn Link, objects: &[Ino]) -> bool {
    let request = Request::Drop { inos: objects.to_vec() };
    let mut meta = Vec::new();
    request.encode(&mut meta);
    let header = Header { kind: request.kind(), meta_len: meta.len() as u32, ..Header::default() };
    if link.send(&header, &meta, &[]).is_err() {
        return false;
    }
    let Ok(received) = link.receive(&mut []) else { return false };
    matches!(Reply::decode(received.header.kind, received.meta), Ok(Reply::Done {}))
}
