//! The stagers of a job's nodes, spoken to side by side.

use super::site::Site;
use crate::exit::{Context, Failure, Kind, Result};
use std::collections::BTreeMap;
use tidepool_stage::EndResult;
use tidepool_stage::remote::{RemoteEnd, RemoteOptions, RootRequest};
use tidepool_stage_client::Stager;
use tidepool_transport::Secret;

/// Nodes spoken to at a time.
const AT_ONCE_MAX: usize = 64;

/// How the stager of a node is reached.
pub struct Ways {
    port: u16,
    secret: Secret,
}

impl Ways {
    pub fn of(site: &Site) -> Result<Ways> {
        let secret = Secret::read(&site.secret_file)
            .context(Kind::Usage, || site.secret_file.display().to_string())?;
        Ok(Ways { port: site.stager_port, secret })
    }

    pub fn address(&self, node: &str) -> String {
        format!("{node}:{}", self.port)
    }

    /// The node whose stager is reached so.
    pub fn node<'a>(&self, address: &'a str) -> Option<&'a str> {
        address.strip_suffix(&format!(":{}", self.port))
    }

    /// A directory of the node's.
    pub fn open(&self, node: &str, root: RootRequest) -> EndResult<RemoteEnd> {
        let mut options = RemoteOptions::new(&self.address(node), self.secret.clone(), root);
        options.streams = 1;
        RemoteEnd::open(options)
    }

    pub fn connect(&self, node: &str) -> Result<Stager> {
        Stager::connect_at(&self.address(node), &self.secret)
            .map_err(|error| Failure::new(Kind::NoStager, format!("node {node}: {error}")))
    }
}

/// Connections to the stagers of some nodes.
pub struct Fleet {
    stagers: BTreeMap<String, Stager>,
    /// The nodes in the job's order.
    names: Vec<String>,
    addresses: BTreeMap<String, String>,
}

impl Fleet {
    /// To all of them, or why not.
    pub fn connect(ways: &Ways, nodes: &[String]) -> Result<Fleet> {
        let (fleet, missing) = Fleet::reach(ways, nodes);
        match missing.into_iter().next() {
            None => Ok(fleet),
            Some((_, why)) => Err(why),
        }
    }

    /// To those that answer, and why the others do not.
    pub fn reach(ways: &Ways, nodes: &[String]) -> (Fleet, Vec<(String, Failure)>) {
        let mut fleet = Fleet { stagers: BTreeMap::new(), names: Vec::new(), addresses: BTreeMap::new() };
        let mut missing = Vec::new();
        for (node, connected) in side_by_side(nodes, |node| ways.connect(node)) {
            match connected {
                Ok(stager) => {
                    fleet.addresses.insert(node.clone(), ways.address(&node));
                    fleet.names.push(node.clone());
                    fleet.stagers.insert(node, stager);
                }
                Err(why) => missing.push((node, why)),
            }
        }
        (fleet, missing)
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn get(&self, node: &str) -> Option<&Stager> {
        self.stagers.get(node)
    }

    /// The first node's, which does what is to be done once.
    pub fn head(&self) -> Option<(&str, &Stager)> {
        let name = self.names.first()?;
        Some((name, &self.stagers[name]))
    }

    /// Asks each stager, side by side; the answers in the order of the nodes.
    pub fn each<T: Send>(&self, ask: impl Fn(&str, &Stager) -> T + Sync) -> Vec<(String, T)> {
        side_by_side(&self.names, |node| ask(node, &self.stagers[node]))
    }

    /// The same for what may fail: the first failure, with its node's name, is that of all.
    pub fn all<T: Send>(&self, ask: impl Fn(&str, &Stager) -> Result<T> + Sync) -> Result<Vec<(String, T)>> {
        let one = |(node, answer): (String, Result<T>)| match answer {
            Ok(answer) => Ok((node, answer)),
            Err(failure) => Err(Failure::new(failure.kind, format!("node {node}: {failure}"))),
        };
        self.each(ask).into_iter().map(one).collect()
    }
}

fn side_by_side<T: Send>(nodes: &[String], act: impl Fn(&str) -> T + Sync) -> Vec<(String, T)> {
    let mut all = Vec::with_capacity(nodes.len());
    for some in nodes.chunks(AT_ONCE_MAX) {
        let act = &act;
        let done = std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|node| scope.spawn(move || act(node))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<T>>()
        });
        all.extend(some.iter().cloned().zip(done));
    }
    all
}
