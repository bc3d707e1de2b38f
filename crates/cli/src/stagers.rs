//! Starting a user's pool on nodes that this machine is none of, through their stagers: what a batch system's controller does.
//! Nothing of the pool is on this machine, neither meanwhile nor afterwards; the user stops it on any of its nodes.

use crate::agent::Go;
use crate::exit::{Failure, Kind, Result};
use crate::flags::{Door as Entrance, PoolShape, ThroughFlags};
use crate::instance::Instance;
use crate::launch::{ABANDON_MAX, agree, make_plan};
use crate::place::{NodeAt, Place};
use crate::plan::{Setup, Staged};
use crate::side_by_side::each;
use crate::stage::read_secret;
use crate::streams::Streams;
use nix::unistd::{Gid, Uid, getgrouplist};
use std::collections::HashSet;
use std::ffi::CString;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use tidepool_client::PoolFile;
use tidepool_transport::remote::{Door, open_door};
use tidepool_transport::{Secret, random_bytes};
use tidepool_types::InstanceId;

/// Whose pool.
#[derive(Clone, Debug)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Where, whose, and for which job.
pub struct Through {
    pub nodes: Vec<NodeAt>,
    /// The stagers' secret.
    pub secret: Secret,
    pub user: User,
    /// Its number in the batch system; 0 for none.
    pub job: u32,
}

/// A pool that runs, without anybody here.
pub struct Started {
    /// The paths are those of its nodes.
    pub instance: Instance,
    pub pool: PoolFile,
    pub mounted: bool,
}

impl User {
    /// With the groups that the name service of this machine knows.
    pub fn known_here(uid: u32, gid: u32) -> Result<User> {
        let fail = |error: nix::Error| Failure::new(Kind::Start, format!("groups of user {uid}: {error}"));
        let entry = nix::unistd::User::from_uid(Uid::from_raw(uid)).map_err(fail)?;
        let name = entry.and_then(|entry| CString::new(entry.name).ok());
        let groups = match name {
            Some(name) => getgrouplist(&name, Gid::from_raw(gid)).map_err(fail)?,
            None => vec![Gid::from_raw(gid)],
        };
        Ok(User { uid, gid, groups: groups.into_iter().map(Gid::as_raw).collect() })
    }
}

impl Through {
    /// What flags say.
    pub fn asked(flags: &ThroughFlags) -> Result<Option<Through>> {
        let (Some(file), Some((uid, gid))) = (&flags.secret_file, flags.as_user) else { return Ok(None) };
        let (secret, user) = (read_secret(file)?, User::known_here(uid, gid)?);
        Ok(Some(Through { nodes: flags.stagers.clone(), secret, user, job: flags.job }))
    }

    /// What the pool will be like. `shape` is checked, and files that it names are read here, with the rights of this process.
    pub fn choose(&self, shape: &PoolShape, staged: Staged) -> Result<Setup> {
        let usage = |text: &str| Err(Failure::new(Kind::Usage, text));
        if shape.hosts.is_some() || shape.nodes.is_some() || shape.local {
            return usage("--stagers names the nodes; --hosts, --nodes and --local are for other pools");
        }
        let mut names = HashSet::new();
        if let Some(twice) = self.nodes.iter().find(|node| !names.insert(&node.name)) {
            return usage(&format!("--stagers: '{}' is named twice", twice.name));
        }
        Setup::choose_at(Place::Stagers(self.nodes.clone()), self.user.uid, shape, staged, None)
    }

    /// Starts the pool and returns when every daemon answers. With `kept`, one whose data are still on these nodes.
    pub fn start(
        &self,
        shape: &PoolShape,
        setup: &Setup,
        name: &str,
        kept: Option<(InstanceId, Secret)>,
    ) -> Result<Started> {
        let instance = Instance::elsewhere(name, self.user.uid)?;
        let keep = kept.is_some();
        let (id, secret) = kept.unwrap_or_else(|| (InstanceId(random_bytes()), Secret::random()));
        let plan = make_plan(shape, setup, &instance, (id, &secret), keep);
        let mut streams = self.connect()?;
        let agreed = agree(&streams, shape, setup, &plan, (id, secret), |reports| match shape.door() {
            Entrance::Preload => false,
            Entrance::Fuse => true,
            // Of this machine's nothing follows for the nodes'.
            Entrance::Auto => reports.iter().all(|report| report.fuse),
        });
        match agreed {
            Ok((pool, go)) => {
                let Go { mount: mounted, .. } = go;
                Ok(Started { instance, pool, mounted })
            }
            Err(failure) => {
                // Agents clean their nodes when their input ends.
                streams.end(ABANDON_MAX);
                Err(failure)
            }
        }
    }

    /// An agent on each node.
    fn connect(&self) -> Result<Streams> {
        let connected = each(self.nodes.len(), |number| self.agent(number));
        let mut streams = Streams::default();
        let mut failed = None;
        for (node, connected) in self.nodes.iter().zip(connected) {
            match connected {
                Ok((input, output)) => streams.add((format!("node {}", node.name), 1), input, output, None),
                Err(error) => {
                    let text = format!("node {}: its stager at {}: {error}", node.name, node.address);
                    failed.get_or_insert(Failure::new(Kind::Start, text));
                }
            }
        }
        match failed {
            None => Ok(streams),
            Some(failure) => {
                streams.end(ABANDON_MAX);
                Err(failure)
            }
        }
    }

    fn agent(&self, number: usize) -> io::Result<(Input, TcpStream)> {
        let User { uid, gid, groups } = self.user.clone();
        let door = Door::Agent { uid, gid, groups, job: self.job, node: number as u32 };
        let output = open_door(&self.nodes[number].address, &self.secret, &door)?;
        Ok((Input(output.try_clone()?), output))
    }
}

/// An agent's input, which ends with it. Its output does not.
struct Input(TcpStream);

impl Write for Input {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // An agent that has ended has no input.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}
