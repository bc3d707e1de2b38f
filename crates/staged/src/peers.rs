//! What stagers of other nodes ask of this one, and how this one asks them.

use crate::agents::{AgentOf, Agents};
use crate::audit::Limiter;
use crate::doors::Bridges;
use crate::execute::{ProcessUser, has_group};
use crate::keys::{Role, Trusted};
use crate::limits::Limits;
use crate::places::{open_mount, reach_mount};
use crate::start::lock;
use crate::tasks::{News, Teller};
use crate::worker::{Key, Opening};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use tidepool_stage::remote::{Handed, Host, OpenedRoot, RootRequest, Roots, ServedBy, Serving};
use tidepool_stage::{Charge, EndError, EndResult, LocalEnd};
use tidepool_stage_state::{Rank, Visitor};
use tidepool_transport::hex;
use tidepool_transport::remote::{Door, Guest, Peer};
use tidepool_types::Errno;
use tidepool_wire::stager::{Code, DataspaceKind, DataspaceSpec, Refusal};

/// What the event loop allows a peer.
pub struct Granted {
    pub dataspace: DataspaceSpec,
    pub limits: Arc<Limits>,
    /// What the state knows the dataspace by.
    pub number: u32,
    /// As [`Opened`](tidepool_stage_state::Opened) has them.
    pub groups: Option<Vec<u32>>,
    /// Set when the job is no longer what it was.
    pub is_over: Arc<AtomicBool>,
}

/// A peer's request, waiting for the event loop.
pub struct Wanted {
    pub request: RootRequest,
    pub visitor: Visitor,
    pub answer: Sender<Result<Granted, Refusal>>,
}

/// A connection of a visit, for its worker.
pub struct Arrived {
    pub visit: u64,
    /// Of the connection that opens the root.
    pub opening: Option<First>,
    pub handed: Box<Handed>,
    pub is_over: Arc<AtomicBool>,
    /// It comes back with the reason why it is not served.
    pub answer: Sender<Result<(), (Box<Handed>, EndError)>>,
}

/// What opens a visit.
pub struct First {
    pub key: Key,
    pub job: u32,
    pub limits: Arc<Limits>,
    pub opening: Opening,
    /// The dataspace's.
    pub root: OwnedFd,
}

/// Gives the connections of a visit to the event loop, which gives them to a worker.
struct ByWorker {
    teller: Teller,
    visit: u64,
    first: Mutex<Option<First>>,
    is_over: Arc<AtomicBool>,
}

impl Host for ByWorker {
    fn take(&self, handed: Handed) -> Result<(), (Box<Handed>, EndError)> {
        let (answer, answered) = channel();
        let (visit, opening, is_over) = (self.visit, lock(&self.first).take(), Arc::clone(&self.is_over));
        let arrived = Arrived { visit, opening, handed: Box::new(handed), is_over, answer };
        self.teller.tell(News::Arrived(Box::new(arrived)));
        // Where the stager is ending nobody has the connection any more.
        answered.recv().unwrap_or(Ok(()))
    }
}

/// Asks the event loop about each root that a peer wants.
pub struct PeerRoots {
    teller: Teller,
    /// Workers serve them, in whose names they are opened.
    by_workers: bool,
    visits: AtomicU64,
    /// What peers put here and have verified is read back from disks.
    verify_disk: bool,
    bridges: Bridges,
    agents: Agents,
    /// Who may administer this stager from other nodes, and which nodes there are.
    trusted: Trusted,
    refusals: Mutex<Limiter>,
}

impl PeerRoots {
    pub fn new(
        teller: Teller,
        (verify_disk, by_workers): (bool, bool),
        (bridges, agents): (Bridges, Agents),
        trusted: Trusted,
    ) -> PeerRoots {
        let (visits, refusals) = (AtomicU64::new(0), Mutex::default());
        PeerRoots { teller, by_workers, visits, verify_disk, bridges, agents, trusted, refusals }
    }

    fn role(&self, peer: &Peer) -> Result<Role, String> {
        self.trusted.now().keys.role(&peer.key)
    }

    fn tell_refused(&self, text: &str) {
        lock(&self.refusals).tell(&format!("refused: {text}"));
    }

    fn ask(&self, peer: &Peer, request: &RootRequest) -> EndResult<Granted> {
        let (answer, answered) = channel();
        let refused = |errno, detail| EndError { errno, operation: "open dataspace", detail: Some(detail) };
        let visitor = match self.role(peer).map_err(|why| refused(Errno::EACCES, why))? {
            Role::Node(name) => Visitor::Node(name),
            Role::Controller => Visitor::Controller,
            Role::Administrator | Role::Stager => Visitor::Anybody,
        };
        self.teller.tell(News::Peer(Wanted { request: request.clone(), visitor, answer }));
        match answered.recv() {
            Ok(Ok(granted)) => Ok(granted),
            Ok(Err(refusal)) => Err(refused(errno_of(refusal.code), refusal.to_string())),
            Err(_) => Err(refused(Errno::ECONNREFUSED, "the stager is ending".into())),
        }
    }
}

impl PeerRoots {
    /// By the worker of the user in whose name it is opened.
    fn by_worker(&self, want: &RootRequest, granted: Granted) -> EndResult<ServedBy> {
        let root = reach_mount(&granted.dataspace.mount)?;
        let Granted { limits, is_over, .. } = granted;
        let opening = Opening { path: want.path.clone().into(), write: want.write, charged: limits.counts() };
        let key = Key { uid: want.uid, gid: want.gid };
        let first = First { key, job: want.job.unwrap_or(0), limits, opening, root };
        let visit = self.visits.fetch_add(1, Ordering::Relaxed);
        let (teller, first) = (self.teller.clone(), Mutex::new(Some(first)));
        Ok(ServedBy::Other(Box::new(ByWorker { teller, visit, first, is_over })))
    }

    /// By threads of this process, which is that user's own.
    fn by_threads(&self, want: &RootRequest, granted: Granted) -> EndResult<ServedBy> {
        let root = open_mount(&granted.dataspace.mount)?;
        let own = ProcessUser::ask()?;
        own.must_be(&own.identity_of(want.uid, want.gid)?)?;
        let end = LocalEnd::open_beneath(&root, &want.path)?;
        let end = if self.verify_disk { end.verified_from_disk() } else { end };
        let charge = Some(granted.limits as Arc<dyn Charge>);
        let serving = Serving { end: Box::new(end), charge, write: want.write, is_over: granted.is_over };
        Ok(ServedBy::Threads(serving))
    }
}

/// What a refusal is to the engine of the peer.
fn errno_of(code: Code) -> Errno {
    match code {
        Code::NO_SUCH_DATASPACE | Code::NO_SUCH_RESOURCE => Errno::ENOENT,
        Code::NOT_PERMITTED | Code::NO_SUCH_JOB => Errno::EACCES,
        _ => Errno::EPERM,
    }
}

/// Tells the event loop when a peer has gone, and what it has put here.
struct Visit {
    teller: Teller,
    number: u32,
    dataspace: String,
    /// The directory it was put into.
    place: Vec<u8>,
    job: u32,
    limits: Arc<Limits>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let bytes = self.limits.taken();
        if bytes > 0 {
            let (dataspace, place) = (std::mem::take(&mut self.dataspace), self.limits.place(&self.place));
            self.teller.tell(News::Received { task: 0, job: self.job, dataspace, place, bytes });
        }
        self.teller.tell(News::PeerLeft(self.number));
    }
}

impl Roots for PeerRoots {
    fn welcome(&self, peer: &Peer) -> Result<String, String> {
        let known = self.role(peer).map(|role| format!("{role:?}"));
        known.inspect_err(|why| self.tell_refused(&format!("who calls itself '{}': {why}", peer.name)))
    }

    fn open(&self, peer: &Peer, want: &RootRequest) -> EndResult<OpenedRoot> {
        let granted = self.ask(peer, want).inspect_err(|error| {
            let who = match self.role(peer) {
                Ok(Role::Node(name)) => format!("node '{name}'"),
                Ok(Role::Administrator) => format!("administrator {}", hex(&peer.key)),
                Ok(Role::Controller) => format!("controller {}", hex(&peer.key)),
                Ok(Role::Stager) | Err(_) => format!("who calls itself '{}'", peer.name),
            };
            let (uid, space) = (want.uid, &want.dataspace);
            self.tell_refused(&format!("{who} opens {space:?} for user {uid}: {error}"));
        })?;
        let visit = Visit {
            teller: self.teller.clone(),
            number: granted.number,
            dataspace: granted.dataspace.name.clone(),
            place: want.path.clone(),
            job: want.job.unwrap_or(0),
            limits: Arc::clone(&granted.limits),
        };
        if !matches!(granted.dataspace.kind, DataspaceKind::Local | DataspaceKind::Shared) {
            let detail = "only directories are served to other nodes".to_string();
            return Err(EndError {
                errno: Errno::EOPNOTSUPP,
                operation: "open dataspace",
                detail: Some(detail),
            });
        }
        if let Some(known) = &granted.groups
            && !known.contains(&want.gid)
            && !has_group(want.uid, want.gid)
        {
            let detail = format!("user {} is not in group {}", want.uid, want.gid);
            return Err(EndError { errno: Errno::EACCES, operation: "open dataspace", detail: Some(detail) });
        }
        let is_over = Arc::clone(&granted.is_over);
        // Without keys of their own stagers take a new one for each connection.
        let for_key = granted.groups.is_some().then_some(peer.key);
        let by =
            if self.by_workers { self.by_worker(want, granted)? } else { self.by_threads(want, granted)? };
        Ok(OpenedRoot { by, guard: Box::new(visit), for_key, is_over })
    }

    fn refused(&self, from: SocketAddr, why: &str) {
        self.tell_refused(&format!("{from}: {why}"));
    }

    fn enter(&self, door: Door, guest: Guest) -> io::Result<()> {
        let (from, name, key) = (guest.address(), &guest.peer().name, hex(&guest.peer().key));
        let (who, rank) = match self.role(guest.peer()) {
            Ok(Role::Administrator) => ("administrator", Rank::Administrator),
            Ok(Role::Controller) => ("controller", Rank::Controller),
            Ok(Role::Node(_) | Role::Stager) | Err(_) => {
                self.tell_refused(&format!(
                    "{from} ('{name}', key {key}) asks for {door:?}, and is neither administrator nor controller"
                ));
                return guest.turn_away(
                    "only administrators and controllers may ask for this from other nodes: the key in the second line of your secret-file has to be in 'admins' or 'controllers' of the stager's configuration ('tidepool stage key' prints it)",
                );
            }
        };
        let of = match door {
            Door::Control {} => {
                eprintln!("tidepool-staged: {who} {key} ({name:?}, {from}): {door:?}");
                return self.bridges.carry(guest, rank);
            }
            Door::Agent { uid, gid, ref groups, job, node } => {
                (AgentOf { uid, gid, groups: groups.clone(), node }, job)
            }
        };
        if rank == Rank::Controller
            && let Err(why) = of.0.check_groups(has_group)
        {
            self.tell_refused(&format!("{who} {key} ({name:?}, {from}) asks for {door:?}: {why}"));
            return guest.turn_away(&why);
        }
        eprintln!("tidepool-staged: {who} {key} ({name:?}, {from}): {door:?}");
        self.agents.serve(&of.0, of.1, guest)
    }
}
