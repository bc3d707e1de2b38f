//! The whole: which process is what, and the model for the kernel.

use crate::buffer::BufferSpec;
use crate::client::{self, Client};
use crate::device::{self, Context, Device, DeviceSpec, Io};
use crate::kept::are_small;
use crate::message::{Kind, Message, Op, Step};
use crate::network::{Network, per_byte};
use crate::node::{self, Node, Nodes, NodesSpec};
use crate::outages::{Outage, OutageError, Outages};
use crate::power::PowerSpec;
use crate::queue::{self, DEPTH_MAX, Queue, QueueSpec};
use crate::results::{PieceResult, Place, Record, Work};
use crate::server::{self, Server, ServerSpec};
use crate::striping::{Layout, Piece};
use crate::topology::{self, Switch, Topology, Wires};
use crate::workload::Program;
use std::{fmt, iter};
use tidepool_sim::{Model, ProcessId, Stream, Time, Turn, saved};

/// Most processes of a model.
pub const PROCESSES_MAX: u64 = 100_000_000;

/// Most threads of servers and parts of devices that work at once, all together: each has a time of its own.
pub const PARTS_MAX: u64 = 1 << 27;

/// Servers of the same kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Class {
    pub name: String,
    pub count: u32,
    pub device: DeviceSpec,
    /// Of a server's link each way, bytes/s; 0: unlimited.
    pub bandwidth: u64,
    /// With [`Layout::Buffered`], of the servers in front.
    pub buffer: Option<BufferSpec>,
    /// How requests wait for the device; without, it has all of them at once and takes them as they come.
    pub queue: Option<QueueSpec>,
    pub power: PowerSpec,
}

impl Class {
    /// With a device, and nothing else that could be there.
    pub fn new(name: impl Into<String>, count: u32, device: DeviceSpec) -> Class {
        Class {
            name: name.into(),
            count,
            device,
            bandwidth: 0,
            buffer: None,
            queue: None,
            power: PowerSpec::default(),
        }
    }
}

/// A program and its name.
#[derive(Clone, PartialEq, Debug)]
pub struct Application {
    pub name: String,
    pub start: Time,
    pub program: Program,
}

/// What a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Application and rank.
    Client(u32, u32),
    /// Number; its device is the next process.
    Server(u32),
    Device(u32),
    /// Of a network that has any.
    Switch(u32),
    /// Of ranks that share one: its number.
    Node(u32),
}

/// A parallel file system and who uses it.
pub struct Pfs {
    pub network: Network,
    pub server: ServerSpec,
    pub classes: Vec<Class>,
    pub layout: Layout,
    pub applications: Vec<Application>,
    /// With [`Layout::Pool`]: between a rank and the server on its node, without any link; at least a tick. None: as all
    /// others.
    pub near: Option<Time>,
    /// After which clients give a request up; never without.
    pub timeout: Option<Time>,
    pub(crate) outages: Outages,
    pub(crate) wires: Option<Wires>,
    pub(crate) nodes: Option<Box<Nodes>>,
    /// Clients write out each request that is done.
    pub keep_requests: bool,
    /// Everybody writes out each step, for golden traces and timelines.
    pub keep_steps: bool,
    /// Who has asked writes out each sub-request that was answered.
    pub keep_pieces: bool,
    /// Servers and devices write out what they have to do.
    pub keep_work: bool,
    roles: Vec<Role>,
    /// Process of each server.
    servers: Vec<u32>,
    /// Of each client, by application and rank, and which is the first of each application.
    clients: Vec<u32>,
    first_client: Vec<u32>,
    /// Class of each server.
    class_of: Vec<u16>,
    client_per_byte: f64,
    class_per_byte: Vec<f64>,
}

/// Why there is no such system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PfsError {
    NoServers,
    NoClients,
    TooMany {
        processes: u64,
    },
    /// Threads and parts of devices.
    TooManyParts {
        parts: u64,
    },
    /// A latency of 0.
    Instant(&'static str),
    Threads,
    NoSuchServer(u32),
    /// A server in front without a buffer.
    NoBuffer(String),
    /// Stripes in front and behind differ.
    Stripes,
    Outages(OutageError),
    /// A timeout of 0.
    Timeout,
    /// Of servers' caches, which figure.
    Cache(String),
    /// Of a device, which figure.
    Device(String, String),
    /// Of compute nodes, what is wrong.
    Nodes(String),
}

impl fmt::Display for PfsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PfsError::NoServers => f.write_str("there is no server"),
            PfsError::NoClients => f.write_str("there is no client"),
            PfsError::TooMany { processes } => {
                write!(
                    f,
                    "{processes} processes (clients, servers and their devices); at most {PROCESSES_MAX}"
                )
            }
            PfsError::TooManyParts { parts } => {
                write!(f, "servers have {parts} threads and parts of devices in all; at most {PARTS_MAX}")
            }
            PfsError::Instant(what) => write!(f, "{what} is 0; at least 1ns"),
            PfsError::Threads => f.write_str("a server has no thread; at least 1"),
            PfsError::NoSuchServer(number) => {
                write!(f, "the layout names server {number}, which is not there")
            }
            PfsError::NoBuffer(class) => {
                write!(f, "servers '{class}' are to hold data, and have no capacity for it")
            }
            PfsError::Stripes => f.write_str("servers in front and behind have stripes of different sizes"),
            PfsError::Outages(error) => error.fmt(f),
            PfsError::Timeout => f.write_str("clients give up at once: the timeout is at least 1ns"),
            PfsError::Cache(what) => write!(f, "the cache of servers: {what}"),
            PfsError::Nodes(what) => write!(f, "compute nodes: {what}"),
            PfsError::Device(class, what) => write!(f, "the device of servers '{class}': {what}"),
        }
    }
}

impl std::error::Error for PfsError {}

impl Pfs {
    pub fn new(
        network: Network,
        server: ServerSpec,
        classes: Vec<Class>,
        mut layout: Layout,
        applications: Vec<Application>,
    ) -> Result<Pfs, PfsError> {
        let count: u64 = classes.iter().map(|class| u64::from(class.count)).sum();
        let clients: u64 = applications.iter().map(|all| u64::from(all.program.ranks())).sum();
        let processes = clients + 2 * count;
        if count == 0 {
            return Err(PfsError::NoServers);
        }
        if clients == 0 {
            return Err(PfsError::NoClients);
        }
        if processes > PROCESSES_MAX {
            return Err(PfsError::TooMany { processes });
        }
        if network.latency == Time::ZERO {
            return Err(PfsError::Instant("the network's latency"));
        }
        if server.bus == Time::ZERO {
            return Err(PfsError::Instant("the way between server and device"));
        }
        if server.threads == 0 {
            return Err(PfsError::Threads);
        }
        if let Some(cache) = &server.cache {
            cache.check().map_err(PfsError::Cache)?;
        }
        for class in &classes {
            let wrong = |what| PfsError::Device(class.name.clone(), what);
            class.device.check().map_err(wrong)?;
            if class.queue.is_some_and(|queue| !(1..=DEPTH_MAX).contains(&queue.depth)) {
                return Err(wrong(format!("it takes 1 to {DEPTH_MAX} requests at once")));
            }
        }
        let threads = u64::from(server.threads);
        let parts_of = |class: &Class| u64::from(class.count) * (threads + class.device.parts());
        let parts = classes.iter().map(parts_of).sum();
        if parts > PARTS_MAX {
            return Err(PfsError::TooManyParts { parts });
        }
        if let Some(wrong) = layout.all_servers().into_iter().find(|server| u64::from(*server) >= count) {
            return Err(PfsError::NoSuchServer(wrong));
        }
        let class_of: Vec<u16> =
            (0..).zip(&classes).flat_map(|(at, class)| vec![at; class.count as usize]).collect();
        if let Layout::Buffered { buffer, store } = &layout {
            if buffer.stripe() != store.stripe() {
                return Err(PfsError::Stripes);
            }
            let mut in_front =
                buffer.servers().map(|server| &classes[usize::from(class_of[server as usize])]);
            if let Some(class) = in_front.find(|class| class.buffer.is_none()) {
                return Err(PfsError::NoBuffer(class.name.clone()));
            }
        }
        if let Layout::Pool(pool) = &mut layout {
            pool.learn(&applications, None);
        }
        let ranks = (0..).zip(&applications).flat_map(|(application, all): (u32, _)| {
            (0..all.program.ranks()).map(move |rank| Role::Client(application, rank))
        });
        let (roles, servers) = places(clients, count, ranks);
        let clients = clients_of(&roles);
        let running = |sum: &mut u32, all: &Application| {
            *sum += all.program.ranks();
            Some(*sum - all.program.ranks())
        };
        let first_client = applications.iter().scan(0, running).collect();
        Ok(Pfs {
            client_per_byte: per_byte(network.client_bandwidth),
            class_per_byte: classes.iter().map(|class| per_byte(class.bandwidth)).collect(),
            network,
            server,
            classes,
            layout,
            applications,
            near: None,
            timeout: None,
            outages: Outages::default(),
            wires: None,
            nodes: None,
            keep_requests: false,
            keep_steps: false,
            keep_pieces: false,
            keep_work: false,
            roles,
            servers,
            clients,
            first_client,
            class_of,
        })
    }

    /// Whether its processes write out anything.
    pub(crate) fn writes(&self) -> bool {
        self.keep_requests || self.keep_steps || self.keep_pieces || self.keep_work
    }

    /// How long a server is down before a time, in ticks.
    pub fn down(&self, server: u32, until: u64) -> u64 {
        self.outages.down(server, until)
    }

    /// The same, with servers that are down at times.
    pub fn with_outages(self, all: Vec<Outage>) -> Result<Pfs, PfsError> {
        let outages = Outages::new(self.servers(), all).map_err(PfsError::Outages)?;
        Ok(Pfs { outages, ..self })
    }

    /// The same, with ranks that share nodes. A topology comes behind them.
    pub fn with_nodes(mut self, spec: NodesSpec) -> Result<Pfs, PfsError> {
        if self.wires.is_some() {
            return Err(PfsError::Nodes("they have to be there before the topology".into()));
        }
        spec.check(&self.applications).map_err(PfsError::Nodes)?;
        if let Layout::Pool(pool) = &mut self.layout {
            pool.learn(&self.applications, Some(&spec));
        }
        let (mut nodes, ranks) = Nodes::new(spec, &self.applications);
        let (servers, count) = (self.servers.len() as u64, ranks.len() as u64);
        if count + 2 * servers > PROCESSES_MAX {
            return Err(PfsError::TooMany { processes: count + 2 * servers });
        }
        (self.roles, self.servers) = places(count, servers, ranks.into_iter());
        self.clients = clients_of(&self.roles);
        nodes.find(&self.roles);
        self.nodes = Some(Box::new(nodes));
        Ok(self)
    }

    /// The same, with switches in between: [`Wires::new`]. The network's latency is that of each link then.
    pub fn with_topology(mut self, topology: Topology, together: bool) -> Result<Pfs, PfsError> {
        let (processes, switches) = (self.roles.len() as u32, topology.switches());
        if u64::from(processes) + u64::from(switches) > PROCESSES_MAX {
            return Err(PfsError::TooMany { processes: u64::from(processes) + u64::from(switches) });
        }
        let own = |class: &Class| (class.bandwidth > 0).then(|| per_byte(class.bandwidth));
        let servers =
            (0..self.servers()).map(|server| (self.servers[server as usize], own(self.class(server))));
        let own = (self.network.client_bandwidth > 0).then_some(self.client_per_byte);
        // Ranks have no links of their own where they share nodes, and messages all the same.
        let mut ranks: Vec<(u32, u32)> = self.clients.iter().copied().zip(0..).collect();
        if let Some(nodes) = &self.nodes {
            for (process, place) in &mut ranks {
                if let Role::Client(application, rank) = self.roles[*process as usize] {
                    *place = nodes.spec.node(application, rank);
                }
            }
            ranks.extend(nodes.processes().map(|(number, process)| (process, number)));
        }
        self.wires =
            Some(Wires::new(topology, together, processes, &servers.collect::<Vec<_>>(), (&ranks, own)));
        self.roles.extend((0..switches).map(Role::Switch));
        Ok(self)
    }

    /// Sends a message whose first byte leaves in so many ticks, and its last one at `tail`.
    #[inline]
    pub(crate) fn carry(
        &self,
        to: u32,
        wait: u64,
        tail: u64,
        mut message: Message,
        turn: &mut Turn<'_, Pfs>,
    ) {
        message.end = tail.saturating_add(self.network.latency.0);
        let next = self.wires.as_ref().map_or(to, |wires| wires.switch_of(turn.me().0));
        turn.send(ProcessId(next), Time(wait).plus(self.network.latency), message);
    }

    /// Something about a request that nobody waits for any more.
    pub(crate) fn is_late(&self, what: &str, turn: &mut Turn<'_, Pfs>) {
        if self.timeout.is_none() {
            turn.fail(what);
        }
    }

    /// What each process is, by number.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// How many servers there are.
    pub fn servers(&self) -> u32 {
        self.servers.len() as u32
    }

    pub fn class_of(&self, server: u32) -> usize {
        self.class_of[server as usize].into()
    }

    pub(crate) fn server_process(&self, server: u32) -> u32 {
        self.servers[server as usize]
    }

    pub(crate) fn client_process(&self, application: u32, rank: u32) -> u32 {
        self.clients[(self.first_client[application as usize] + rank) as usize]
    }

    /// The node of a rank and how long a call to it takes, where ranks have such.
    #[inline]
    pub(crate) fn node_of(&self, application: u32, rank: u32) -> Option<(u32, Time)> {
        self.nodes.as_ref().map(|nodes| (nodes.process(application, rank), nodes.spec.call))
    }

    /// The same, by the rank's process.
    pub(crate) fn door_of(&self, process: u32) -> Option<(u32, Time)> {
        match self.roles.get(process as usize) {
            Some(Role::Client(application, rank)) => self.node_of(*application, *rank),
            _ => None,
        }
    }

    /// Application and rank of a process; what nodes do for their caches is of the first one.
    pub(crate) fn rank_of(&self, process: u32) -> (u32, u32) {
        match self.roles.get(process as usize) {
            Some(Role::Client(application, rank)) => (*application, *rank),
            _ => (0, 0),
        }
    }

    /// Whether a rank reads and writes past its node's cache.
    pub(crate) fn is_direct(&self, process: u32) -> bool {
        let of = |nodes: &Nodes| nodes.spec.applications[self.rank_of(process).0 as usize].direct;
        self.nodes.as_deref().is_some_and(of)
    }

    /// What servers do of a request of a rank, in the order in which they are asked.
    #[inline]
    pub(crate) fn pieces(
        &self,
        (op, file, offset, length): (Op, u32, u64, u64),
        (application, rank): (u32, u32),
        mut each: impl FnMut(Piece),
    ) {
        let whole = |server| Piece { server, offset: 0, local: 0, length: 0 };
        match op {
            Op::Read | Op::Write => self.layout.split(file, offset, length, each),
            Op::Create | Op::Unlink => {
                // The file's server, and the one that has its directory.
                let home = self.metadata_server(file);
                let directory = self.directory_server(application, rank).filter(|server| *server != home);
                iter::once(home).chain(directory).for_each(|server| each(whole(server)));
            }
            Op::Open | Op::Close | Op::Stat => each(whole(self.metadata_server(file))),
            Op::Fsync => self.layout.servers(file).into_iter().for_each(|server| each(whole(server))),
            // No server knows of it.
            Op::Barrier => {}
        }
    }

    /// How long it is from a client to a server on the same node, or back.
    #[inline]
    pub(crate) fn near_of(&self, client: u32, server: u32) -> Option<Time> {
        let near = self.near?;
        let role = |process: u32| self.roles.get(process as usize);
        match (&self.layout, role(client), role(server)) {
            (Layout::Pool(pool), Some(Role::Node(node)), Some(Role::Server(number))) => {
                (pool.node_of(*node) == *number).then_some(near)
            }
            (Layout::Pool(pool), Some(Role::Client(application, rank)), Some(Role::Server(number))) => {
                let client = self.first_client[*application as usize] + rank;
                (pool.node_of(client) == *number).then_some(near)
            }
            _ => None,
        }
    }

    /// Of a server's link, ns of a byte.
    #[inline]
    pub(crate) fn server_per_byte(&self, server: u32) -> f64 {
        match &self.wires {
            None => self.class_per_byte[self.class_of(server)],
            Some(wires) => wires.per_byte(self.servers[server as usize]),
        }
    }

    /// Of a rank's or a node's link, by its process.
    #[inline]
    pub(crate) fn client_per_byte(&self, process: u32) -> f64 {
        self.wires.as_ref().map_or(self.client_per_byte, |wires| wires.per_byte(process))
    }

    pub(crate) fn is_server(&self, process: u32) -> bool {
        matches!(self.roles.get(process as usize), Some(Role::Server(_)))
    }

    /// What a server holds for others.
    #[inline]
    pub(crate) fn buffer_of(&self, server: u32) -> Option<BufferSpec> {
        match self.layout {
            Layout::Buffered { .. } => self.classes[self.class_of(server)].buffer,
            _ => None,
        }
    }

    /// Who knows of a file.
    pub(crate) fn metadata_server(&self, file: u32) -> u32 {
        match &self.layout {
            Layout::Pool(pool) => pool.home(file),
            _ => file % self.servers(),
        }
    }

    /// Who has the directory in which a rank makes files, where there is such a one: pools spread the entries of directories.
    pub(crate) fn directory_server(&self, application: u32, rank: u32) -> Option<u32> {
        if matches!(self.layout, Layout::Pool(_)) {
            return None;
        }
        let number = self.applications[application as usize].program.directory(rank)?;
        Some(self.metadata_server(number))
    }

    /// Writes an answered sub-request out, if that is wanted.
    #[inline]
    pub(crate) fn keep_piece(&self, message: &Message, end: u64, redirected: bool, turn: &mut Turn<'_, Pfs>) {
        if self.keep_pieces {
            let Message { op, file, request, offset, length, sender, receiver, start, .. } = *message;
            let piece =
                PieceResult { op, file, request, offset, length, sender, receiver, start, end, redirected };
            turn.emit(Record::Piece(piece));
        }
    }

    /// Writes out what somebody has to do, if that is wanted: when it came, when it begins, and when it will be done.
    #[inline]
    pub(crate) fn keep_work(
        &self,
        server: u32,
        place: Place,
        message: &Message,
        (came, begin, until): (u64, u64, u64),
        turn: &mut Turn<'_, Pfs>,
    ) {
        if self.keep_work {
            let Message { op, file, offset, length, .. } = *message;
            turn.emit(Record::Work(Work { place, server, op, file, offset, length, came, begin, until }));
        }
    }

    fn class(&self, server: u32) -> &Class {
        &self.classes[self.class_of(server)]
    }
}

/// Servers lie between their clients (ranks, and nodes where there are any), each with its device behind it, so that threads,
/// which have consecutive processes each, have both.
fn places(clients: u64, servers: u64, mut ranks: impl Iterator<Item = Role>) -> (Vec<Role>, Vec<u32>) {
    let mut roles = Vec::with_capacity((clients + 2 * servers) as usize);
    let mut at = Vec::with_capacity(servers as usize);
    for server in 0..servers {
        at.push(roles.len() as u32);
        roles.extend([Role::Server(server as u32), Role::Device(server as u32)]);
        let mine = clients * (server + 1) / servers - clients * server / servers;
        roles.extend(ranks.by_ref().take(mine as usize));
    }
    (roles, at)
}

/// Processes of all ranks, in their order.
fn clients_of(roles: &[Role]) -> Vec<u32> {
    let is_client = |(_, role): &(u32, &Role)| matches!(role, Role::Client(..));
    (0..).zip(roles).filter(is_client).map(|(process, _)| process).collect()
}

/// What a process has come to.
#[derive(Clone, PartialEq, Debug)]
pub enum State {
    Client(Client),
    Server(Server),
    Device(Disk),
    Switch(Switch),
    Node(Node),
}

/// A device, and what it did.
#[derive(Clone, PartialEq, Debug)]
pub struct Disk {
    /// The server's number.
    pub number: u32,
    pub device: Device,
    pub numbers: DiskNumbers,
    /// Who waits, where somebody says who goes next.
    pub queue: Option<Box<Queue>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskNumbers {
    pub requests: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Time with anything to do, and until when on the device's own clock.
    pub busy: u64,
    pub busy_until: u64,
    /// From coming to done, of all requests.
    pub time: u64,
    /// When all that it was asked for so far is done.
    pub last: u64,
}

saved!(struct DiskNumbers { requests, bytes_read, bytes_written, busy, busy_until, time, last });
saved!(struct Disk { number, device, numbers, queue });
saved!(enum State { 0 => Client(client), 1 => Server(server), 2 => Device(disk), 3 => Switch(switch), 4 => Node(node) });

pub enum Undo {
    Client(client::Change),
    Server(server::Change),
    Disk(DiskNumbers),
    Device(device::Change),
    Queue(queue::Change),
    Switch(topology::Change),
    Node(node::Change),
}

impl Message {
    /// To oneself, about no server.
    pub(crate) fn blank(kind: Kind, op: Op, request: u32, turn: &Turn<'_, Pfs>) -> Message {
        let (me, now) = (turn.me().0, turn.now().0);
        Message {
            kind,
            op,
            file: 0,
            request,
            offset: 0,
            local: 0,
            length: 0,
            sender: me,
            receiver: me,
            start: now,
            end: now,
        }
    }
}

struct OfTurn<'a, 'b>(&'a mut Turn<'b, Pfs>);

impl Context for OfTurn<'_, '_> {
    fn random(&mut self) -> &mut Stream {
        self.0.random()
    }

    fn keep(&mut self, change: impl FnOnce() -> device::Change) {
        self.0.keep(|| Undo::Device(change()));
    }
}

impl Disk {
    /// Whether this device can have come to it by now, as far as going on from it needs it: [`kept`](crate::kept).
    pub(crate) fn fits(&self, pfs: &Pfs, number: u32, now: u64) -> bool {
        let DiskNumbers { requests, bytes_read, bytes_written, busy, busy_until, time, last } = self.numbers;
        let queue = match (&pfs.class(number).queue, &self.queue) {
            (Some(spec), Some(queue)) => queue.fits(spec, now, &|message| pfs.knows(message)),
            (None, None) => true,
            _ => false,
        };
        self.number == number
            && are_small(&[requests, bytes_read, bytes_written, busy, busy_until, time, last])
            && pfs.class(number).device.fits(&self.device)
            && queue
    }

    fn handle(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let was = self.numbers;
        turn.keep(|| Undo::Disk(was));
        let io = Io { op: message.op, file: message.file, at: message.local, length: message.length };
        let (class, now) = (pfs.class(self.number), turn.now().0);
        let (Some(spec), Some(queue)) = (&class.queue, &mut self.queue) else {
            let times = self.serve(pfs, &io, turn);
            return self.done(pfs, message, now, times, turn);
        };
        if pfs.keep_work && message.kind != Kind::Idle {
            turn.emit(Record::Waits(self.number));
        }
        let mut keep = |change| turn.keep(|| Undo::Queue(change));
        match message.kind {
            Kind::Idle => queue.idle(&mut keep),
            _ => queue.add(message.clone(), class.device.address(&io), now, &mut keep),
        }
        self.take_next(pfs, spec, turn);
    }

    /// The device gets what it can take.
    fn take_next(&mut self, pfs: &Pfs, spec: &QueueSpec, turn: &mut Turn<'_, Pfs>) {
        let now = turn.now().0;
        let next = |disk: &mut Disk, turn: &mut Turn<'_, Pfs>| {
            let mut keep = |change| turn.keep(|| Undo::Queue(change));
            disk.queue.as_mut()?.next(spec, now, &mut keep)
        };
        while let Some(all) = next(self, turn) {
            let bytes = all.iter().map(|waiting| waiting.message.length).sum();
            let Some(first) = all.first() else { return };
            let (mut begin, done) = self.serve(pfs, &Io { length: bytes, ..first.io() }, turn);
            for waiting in &all {
                self.done(pfs, &waiting.message, waiting.came, (begin, done), turn);
                // It is at work for all of them once.
                begin = done;
            }
            let idle = Message { kind: Kind::Idle, ..first.message.clone() };
            match (done > now, &mut self.queue) {
                (true, _) => turn.send(turn.me(), Time(done - now), idle),
                // The numbers were kept when somebody came.
                (false, Some(queue)) => queue.idle(&mut |_| {}),
                (false, None) => {}
            }
        }
    }

    /// From when on what the device gets now keeps it at work that would have nothing to do otherwise, and when it is done.
    fn serve(&mut self, pfs: &Pfs, io: &Io, turn: &mut Turn<'_, Pfs>) -> (u64, u64) {
        let now = turn.now().0;
        // The device's own clock.
        let clock = pfs.outages.clock(self.number, now);
        let device = &pfs.class(self.number).device;
        let Some(done) = device.service(&mut self.device, io, clock, &mut OfTurn(turn)) else {
            turn.fail("a device's state is of another kind than its figures");
            return (now, now);
        };
        let numbers = &mut self.numbers;
        let begin = numbers.busy_until.max(clock).min(done);
        numbers.busy += done - begin;
        numbers.busy_until = numbers.busy_until.max(done);
        let [begin, done] = [begin, done].map(|time| pfs.outages.when(self.number, time).max(now));
        numbers.last = numbers.last.max(done);
        (begin, done)
    }

    /// What came at a time is done at another.
    fn done(
        &mut self,
        pfs: &Pfs,
        message: &Message,
        came: u64,
        (begin, done): (u64, u64),
        turn: &mut Turn<'_, Pfs>,
    ) {
        let now = turn.now().0;
        let numbers = &mut self.numbers;
        numbers.requests += 1;
        numbers.time += done - came;
        match message.op {
            Op::Read => numbers.bytes_read += u64::from(message.length),
            Op::Write => numbers.bytes_written += u64::from(message.length),
            _ => {}
        }
        pfs.keep_work(self.number, Place::Device, message, (came, begin, done), turn);
        let after = Time(done - now).plus(pfs.server.bus);
        turn.send(ProcessId(turn.me().0 - 1), after, Message { kind: Kind::Complete, ..message.clone() });
    }
}

impl Model for Pfs {
    type State = State;
    type Message = Message;
    type Undo = Undo;
    type Record = Record;

    fn processes(&self) -> u32 {
        self.roles.len() as u32
    }

    fn lookahead(&self) -> Time {
        let least = self.network.latency.min(self.server.bus);
        let least = self.near.map_or(least, |near| least.min(near));
        self.nodes.as_ref().map_or(least, |nodes| least.min(nodes.spec.call))
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> State {
        match self.roles[turn.me().0 as usize] {
            Role::Client(application, rank) => {
                let start = self.applications[application as usize].start;
                let wake = Message::blank(Kind::Start, Op::Open, 0, turn);
                turn.send(turn.me(), start.max(Time(1)), wake);
                State::Client(Client::new(application, rank))
            }
            Role::Server(number) => {
                State::Server(Server::new(number, &self.server, self.buffer_of(number).is_some()))
            }
            Role::Switch(number) => {
                let links = self.wires.as_ref().map_or(0, |wires| wires.links_of(number));
                State::Switch(Switch::new(number, links))
            }
            Role::Node(number) => State::Node(Node::new(number, self.nodes.as_ref().map(|all| &all.spec))),
            Role::Device(number) => State::Device(Disk {
                number,
                device: self.class(number).device.start(),
                numbers: DiskNumbers::default(),
                queue: self.class(number).queue.map(|_| Box::default()),
            }),
        }
    }

    #[inline]
    fn handle(&self, state: &mut State, message: &Message, turn: &mut Turn<'_, Self>) {
        if self.keep_steps {
            let Message { kind, op, offset, length, .. } = *message;
            turn.emit(Record::Step(Step { kind, op, offset, length }));
        }
        match state {
            State::Client(client) => client.handle(self, message, turn),
            State::Server(server) => server.handle(self, message, turn),
            State::Device(disk) => disk.handle(self, message, turn),
            State::Switch(switch) => switch.handle(self, message, turn),
            State::Node(node) => node.handle(self, message, turn),
        }
    }

    fn undo(&self, state: &mut State, change: Undo) {
        match (state, change) {
            (State::Client(client), Undo::Client(change)) => client.undo(change),
            (State::Server(server), Undo::Server(change)) => server.undo(change),
            (State::Switch(switch), Undo::Switch(change)) => switch.undo(change),
            (State::Node(node), Undo::Node(change)) => node.undo(change),
            (State::Device(disk), Undo::Disk(was)) => disk.numbers = was,
            (State::Device(disk), Undo::Device(change)) => disk.device.undo(change),
            (State::Device(disk), Undo::Queue(change)) => {
                if let Some(queue) = &mut disk.queue {
                    queue.undo(change);
                }
            }
            // Changes are of the process that made them.
            _ => {}
        }
    }

    fn digest(&self, message: &Message) -> u64 {
        let what = u64::from(message.file) << 32 ^ u64::from(message.length) << 8 ^ message.kind as u64;
        what ^ message.offset.rotate_left(17)
    }
}
