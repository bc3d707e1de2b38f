//! Work nobody waits for: chunks of removed objects, time-outs, compaction. And ends of files, which somebody asks for again and again.

use crate::clearing::clear;
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
        clear(service, &mut peers);
        tick(service);
        nudge();
        service.chunks().bury();
        reap(service, &mut peers);
    }
}

fn tick(service: &Service) {
    let now = service.now();
    let mut state = service.state();
    // The store's own error is kept for `status`; there is nobody to tell here.
    let _ = state.tick(now);
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
pub struct Peers {
    identity: Identity,
    local: LocalNode,
    links: HashMap<DaemonIndex, Box<dyn Link>>,
    pause: HashMap<DaemonIndex, u32>,
}

impl Peers {
    fn new(service: &Service) -> Peers {
        let session = SessionId(random_bytes());
        let secret = service.secret().clone();
        Peers {
            identity: Identity { instance: service.instance(), session, secret },
            local: LocalNode::detect().without_fabric(),
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

    /// Asks all of them at once for how many blocks they have left of something, and adds that up.
    pub fn blocks_left<'m>(
        &mut self,
        members: impl Iterator<Item = &'m Member>,
        request: &Request,
    ) -> Result<u64, String> {
        let members: Vec<&Member> = members.collect();
        let sent: Vec<bool> = members.iter().map(|member| self.sent(member, request)).collect();
        let (mut left, mut failure) = (0, None);
        for (member, sent) in members.into_iter().zip(sent) {
            let reply = if sent { self.link(member).and_then(receive) } else { None };
            match reply {
                Some(Reply::Written { blocks, .. }) => left += u64::try_from(blocks).unwrap_or_default(),
                Some(Reply::Failed { detail, .. }) => {
                    failure = Some(format!("node {}: {detail}", member.host))
                }
                other => {
                    self.links.remove(&member.index);
                    let why = if other.is_some() { "sent something else" } else { "cannot be reached" };
                    failure = Some(format!("node {}: {why}", member.host));
                }
            }
        }
        failure.map_or(Ok(left), |why| {
            Err(format!(
                "{why}; it may keep what a writer that died has left of the file, which must not show"
            ))
        })
    }

    /// On a connection that is good, or a new one.
    fn sent(&mut self, member: &Member, request: &Request) -> bool {
        if self.links.get(&member.index).is_some_and(|link| link.is_stale()) {
            self.links.remove(&member.index);
        }
        self.link(member).is_some_and(|link| send(link, request))
    }
}

fn send(link: &mut dyn Link, request: &Request) -> bool {
    let mut meta = Vec::new();
    request.encode(&mut meta);
    let header = Header { kind: request.kind(), meta_len: meta.len() as u32, ..Header::default() };
    link.send(&header, &meta, &[]).is_ok()
}

fn receive(link: &mut dyn Link) -> Option<Reply> {
    let received = link.receive(&mut []).ok()?;
    Reply::decode(received.header.kind, received.meta).ok()
}

fn drop_objects(link: &mut dyn Link, objects: &[Ino]) -> bool {
    send(link, &Request::Drop { inos: objects.to_vec() }) && receive(link) == Some(Reply::Done {})
}
