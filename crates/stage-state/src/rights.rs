//! Who may do what.
//!
//! Administration is for the control socket; what a batch system's controller may ask, `controller.rs` says. Others submit as processes of a job, to the job's
//! dataspaces (paper, Section IV-C), or, to a stager that a user runs for himself, as that user.
//! What of a dataspace may be read or written, the file system decides: tasks run in the name of
//! who submitted them.

use crate::spaces::Spaces;
use crate::state::State;
use crate::task::{Identity, Origin, Quota};
use tidepool_types::show_bytes;
use tidepool_wire::stager::{
    Access, Code, DATASPACE_NAME_MAX, DataspaceSpec, OnBehalf, Op, RESOURCE_PATH_MAX, Refusal, Resource,
    TaskSpec,
};

/// How much a caller may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    /// What is his own.
    User,
    /// What `controller.rs` says: a batch system's part for the jobs of users, and nothing of root's.
    Controller,
    /// Everything.
    Administrator,
}

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// By the way that he came: who came over the control socket, for instance, is an administrator.
    pub rank: Rank,
    /// Its process and the ancestors of it, the process first. Empty: it is one of another node.
    pub ancestry: Vec<Origin>,
}

impl Caller {
    pub fn origin(&self) -> Origin {
        self.ancestry.first().copied().unwrap_or(Origin { pid: 0, started: 0 })
    }

    pub fn is_administrator(&self) -> bool {
        self.rank == Rank::Administrator
    }

    /// Whether a task of `who` is his to see and to change.
    pub(crate) fn sees(&self, who: Identity) -> bool {
        match self.rank {
            Rank::Administrator => true,
            Rank::Controller => !who.is_root(),
            Rank::User => who.uid == self.uid,
        }
    }
}

/// What a path is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Source,
    Target,
}

/// Who opens data here from another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Visitor {
    /// A node that is known by its key: it reaches the data of jobs that run on it, in their owners' names.
    Node(String),
    /// It reads what a registered job's owner may.
    Controller,
    /// In anybody's name: an administrator, or a stager that no key is known of.
    Anybody,
}

/// A dataspace that a peer's task may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    pub dataspace: DataspaceSpec,
    pub quotas: Vec<Quota>,
    /// The only groups that it may be opened in without asking whose they are; any when that does not matter.
    pub groups: Option<Vec<u32>>,
}

pub(crate) fn refuse<T>(code: Code, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(code, detail))
}

impl State {
    /// Administration is refused to others before anything of their request is looked at.
    pub fn demand_control(&self, caller: &Caller) -> Result<(), Refusal> {
        if caller.is_administrator() {
            return Ok(());
        }
        refuse(
            Code::NOT_PERMITTED,
            format!("user {} may not administer this stager; use its control socket", caller.uid),
        )
    }

    /// For what controllers do as well, once [`State::demand_of_controller`] has let it through.
    pub fn demand_batch(&self, caller: &Caller) -> Result<(), Refusal> {
        if caller.rank == Rank::Controller { Ok(()) } else { self.demand_control(caller) }
    }

    /// In whose name a task of this caller runs.
    pub(crate) fn identity(&self, caller: &Caller, behalf: Option<OnBehalf>) -> Result<Identity, Refusal> {
        if let Some(behalf) = behalf {
            self.demand_batch(caller)?;
            if behalf.job != 0 {
                self.demand_job(behalf.job)?;
            }
            return Ok(Identity { uid: behalf.uid, gid: behalf.gid, job: behalf.job });
        }
        let (uid, gid) = (caller.uid, caller.gid);
        match caller.rank {
            Rank::Administrator => return Ok(Identity { uid, gid, job: 0 }),
            // Its connections come as root's.
            Rank::Controller => {
                return refuse(Code::NOT_PERMITTED, "a controller asks in the name of a user");
            }
            Rank::User => {}
        }
        if let Some(job) = self.spaces.job_of(uid, &caller.ancestry) {
            return Ok(Identity { uid, gid, job });
        }
        if self.config.personal_uid == Some(uid) {
            return Ok(Identity { uid, gid, job: 0 });
        }
        let pid = caller.origin().pid;
        refuse(
            Code::NOT_PERMITTED,
            format!(
                "process {pid} of user {uid} belongs to no job that this stager knows; submit from inside a job, or have the process added to one"
            ),
        )
    }

    pub(crate) fn demand_job(&self, job: u32) -> Result<(), Refusal> {
        match self.spaces.jobs.contains_key(&job) {
            true => Ok(()),
            false => refuse(Code::NO_SUCH_JOB, format!("job {job} is not registered with this stager")),
        }
    }

    /// Whether a task may use this dataspace of this node.
    pub(crate) fn may_use(
        &self,
        who: Identity,
        dataspace: &str,
        path: &[u8],
        side: Side,
    ) -> Result<(), Refusal> {
        if !self.spaces.dataspaces.contains_key(dataspace) {
            return refuse(
                Code::NO_SUCH_DATASPACE,
                format!("there is no dataspace '{dataspace}' here{}", self.spaces.known_names()),
            );
        }
        let Some(job) = self.spaces.jobs.get(&who.job) else { return Ok(()) };
        let shared = side == Side::Source && self.persisted.readable(dataspace, path, who.uid);
        if job.quota(dataspace).is_some() || shared {
            return Ok(());
        }
        refuse(Code::NOT_PERMITTED, format!("job {} may not use dataspace '{dataspace}'", who.job))
    }

    /// What a visitor from another node, in the name of `who`, may use here.
    pub fn open_for_peer(
        &self,
        visitor: &Visitor,
        who: Identity,
        dataspace: &str,
        path: &[u8],
        side: Side,
    ) -> Result<Opened, Refusal> {
        let groups = match (visitor, who.job) {
            (Visitor::Node(node), _) => Some(self.groups_on(node, who)?),
            (Visitor::Controller, _) => Some(self.groups_for_controller(who, side)?),
            (Visitor::Anybody, 0) => None,
            (Visitor::Anybody, job) => {
                self.demand_job(job)?;
                None
            }
        };
        self.may_use(who, dataspace, path, side)?;
        let spec = self.spaces.dataspaces[dataspace].spec.clone();
        let quotas = match side {
            Side::Source => Vec::new(),
            Side::Target => self.spaces.quotas(who.job, dataspace),
        };
        Ok(Opened { dataspace: spec, quotas, groups })
    }

    /// The groups that whoever `node` speaks for is known to have in a job that runs there.
    fn groups_on(&self, node: &str, who: Identity) -> Result<Vec<u32>, Refusal> {
        let Identity { uid, job, .. } = who;
        if job == 0 {
            let text = format!(
                "node '{node}' opens data of jobs that run on it, and this is for none; an administrator's key, in 'admins', opens the rest"
            );
            return refuse(Code::NOT_PERMITTED, text);
        }
        if uid == 0 {
            let text =
                format!("node '{node}' does not act as root here; an administrator's key, in 'admins', does");
            return refuse(Code::NOT_PERMITTED, text);
        }
        self.demand_job(job)?;
        let known = &self.spaces.jobs[&job];
        if !known.spec.hosts.iter().any(|host| host == node) {
            return refuse(Code::NOT_PERMITTED, format!("job {job} does not run on node '{node}'"));
        }
        self.spaces.groups_in(known, uid).ok_or_else(|| {
            let text = format!(
                "user {uid} is not the owner of job {job}, and has no process in it; it may have to be registered with its owner"
            );
            Refusal::new(Code::NOT_PERMITTED, text)
        })
    }

    /// Everything that can be known of a task before it runs.
    pub(crate) fn check(&self, who: Identity, spec: &TaskSpec) -> Result<(), Refusal> {
        check_form(spec)?;
        for (resource, side) in [(Some(&spec.src), Side::Source), (spec.dst.as_ref(), Side::Target)] {
            let Some(Resource::Path { access, dataspace, path, .. }) = resource else { continue };
            if *access != Access::Remote {
                self.may_use(who, dataspace, path, side)?;
            }
        }
        Ok(())
    }
}

/// What can be known of a task whatever dataspaces there are.
pub(crate) fn check_form(spec: &TaskSpec) -> Result<(), Refusal> {
    check_shape(spec)?;
    for resource in [Some(&spec.src), spec.dst.as_ref()] {
        resource.map_or(Ok(()), check_path)?;
    }
    Ok(())
}

impl Spaces {
    /// For the message about an unknown one.
    fn known_names(&self) -> String {
        let names: Vec<&str> = self.dataspaces.keys().map(String::as_str).take(8).collect();
        if names.is_empty() { String::new() } else { format!("; there are {}", names.join(", ")) }
    }
}

/// Whether operation and resources fit.
fn check_shape(spec: &TaskSpec) -> Result<(), Refusal> {
    let memory = |r: &Resource| matches!(r, Resource::Memory { .. });
    let empty = |r: &Resource| matches!(r, Resource::Memory { size: 0, .. });
    match (spec.op, &spec.src, &spec.dst) {
        (Op::Permit, ..) => {
            refuse(Code::BAD_ARGS, "who may read what is changed with persist, not with a task")
        }
        (Op::Remove, src, None) if !memory(src) => match src {
            Resource::Path { path, .. } if names_nothing(path) => {
                refuse(Code::BAD_ARGS, "a task may not remove a dataspace as a whole; name an entry of it")
            }
            _ => Ok(()),
        },
        (Op::Remove, _, _) => refuse(Code::BAD_ARGS, "a removal takes one path, and no destination"),
        (_, _, None) => refuse(Code::BAD_ARGS, "a copy and a move need a destination"),
        (_, src, Some(dst)) if empty(src) || empty(dst) => {
            refuse(Code::BAD_ARGS, "a memory region of 0 bytes")
        }
        (_, src, Some(dst)) if memory(src) && memory(dst) => {
            refuse(Code::NOT_SUPPORTED, "from memory to memory: there is memcpy(3) for that")
        }
        (Op::Move, src, _) if memory(src) => refuse(Code::BAD_ARGS, "memory can be copied, not moved"),
        (Op::Move, _, Some(dst)) if memory(dst) => refuse(
            Code::NOT_SUPPORTED,
            "files cannot be moved into memory, which ends with its process; copy them",
        ),
        (_, src, Some(Resource::Path { path, .. })) if memory(src) && path.ends_with(b"/") => {
            refuse(Code::BAD_ARGS, "memory goes to a file: its path must not end in '/'")
        }
        _ => Ok(()),
    }
}

/// True for a path that stays at the root of its dataspace.
fn names_nothing(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').all(|name| matches!(name, b"" | b"."))
}

pub(crate) fn check_path(resource: &Resource) -> Result<(), Refusal> {
    let Resource::Path { access, dataspace, host, path } = resource else { return Ok(()) };
    if dataspace.is_empty() || dataspace.len() > DATASPACE_NAME_MAX {
        return refuse(Code::BAD_ARGS, format!("a dataspace's name has 1 to {DATASPACE_NAME_MAX} bytes"));
    }
    match (access, host.as_deref()) {
        (Access::Remote, None | Some("")) => {
            return refuse(Code::BAD_ARGS, "a remote path needs a host: address:port of its stager");
        }
        (Access::Local | Access::Shared, Some(_)) => {
            return refuse(Code::BAD_ARGS, "only a remote path has a host");
        }
        _ => {}
    }
    if path.len() > RESOURCE_PATH_MAX || path.contains(&0) {
        let shown = show_bytes(&path[..path.len().min(80)]);
        return refuse(
            Code::BAD_ARGS,
            format!("path '{shown}' has a zero byte or more than {RESOURCE_PATH_MAX} bytes"),
        );
    }
    Ok(())
}
