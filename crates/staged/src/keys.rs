//! What a proved key lets its holder ask for: the one place that says which nodes and administrators there are.

use crate::config::{Config, Peer};
use std::sync::{Arc, PoisonError, RwLock};
use tidepool_transport::remote::Meant;
use tidepool_transport::{Secret, hex};

type Key = [u8; 32];

/// What somebody at another node may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Everything.
    Administrator,
    /// What a batch system's hooks need for the jobs of users.
    Controller,
    /// Opens data of jobs that run on this node, in their owners' names.
    Node(String),
    /// Opens data in anybody's name: no node is known by its key here, and he knows the secret.
    Stager,
}

/// The keys that a configuration lists.
#[derive(Clone, Default)]
pub struct Keys {
    admins: Vec<Key>,
    controllers: Vec<Key>,
    nodes: Vec<(Key, String)>,
}

impl Keys {
    pub fn of(config: &Config) -> Keys {
        let node = |peer: &Peer| peer.key.map(|key| (key, peer.name.clone()));
        Keys {
            admins: config.admins.clone(),
            controllers: config.controllers.clone(),
            nodes: config.peers.iter().filter_map(node).collect(),
        }
    }

    /// Who has proved this key; what he says that he is called counts for nothing.
    pub fn role(&self, key: &Key) -> Result<Role, String> {
        if self.admins.contains(key) {
            return Ok(Role::Administrator);
        }
        if self.controllers.contains(key) {
            return Ok(Role::Controller);
        }
        match self.nodes.iter().find(|(known, _)| known == key) {
            Some((_, name)) => Ok(Role::Node(name.clone())),
            None if self.nodes.is_empty() => Ok(Role::Stager),
            None => Err(format!(
                "key {} is no node's that this stager knows: 'peers' in its configuration has to list it ('tidepool stage key' prints it)",
                hex(key)
            )),
        }
    }
}

/// What proves this stager to others, and others to it. It is read anew while the stager runs.
#[derive(Clone, Default)]
pub struct Trust {
    /// This stager's own, which counts as proof of others as well.
    pub secret: Option<Secret>,
    /// Counts as proof of others, while secrets are exchanged.
    pub accepted: Option<Secret>,
    /// Those that tasks may go to; all when there is none.
    pub peers: Vec<Peer>,
    pub keys: Keys,
}

impl Trust {
    pub fn of(config: &Config) -> Trust {
        let (secret, accepted) = (config.secret.clone(), config.accepted.clone());
        Trust { secret, accepted, peers: config.peers.clone(), keys: Keys::of(config) }
    }

    /// What others may prove. Whichever it is, this stager proves its own key.
    pub fn secrets(&self) -> Vec<Secret> {
        let own = self.secret.iter().cloned();
        own.chain(self.accepted.iter().map(|other| self.with_own_key(other))).collect()
    }

    fn with_own_key(&self, other: &Secret) -> Secret {
        self.secret.as_ref().map_or_else(|| other.clone(), |own| other.with_key_of(own))
    }

    /// For people.
    pub fn summary(&self) -> String {
        let Keys { admins, controllers, nodes } = &self.keys;
        let counts = [
            (self.secrets().len(), "secrets"),
            (self.peers.len(), "peers"),
            (nodes.len(), "keys of nodes"),
            (admins.len(), "administrators"),
            (controllers.len(), "controllers"),
        ];
        counts.map(|(count, what)| format!("{count} {what}")).join(", ")
    }
}

/// The trust of now, for everybody who needs it.
#[derive(Clone, Default)]
pub struct Trusted(Arc<RwLock<Arc<Trust>>>);

impl Trusted {
    pub fn of(config: &Config) -> Trusted {
        Trusted(Arc::new(RwLock::new(Arc::new(Trust::of(config)))))
    }

    pub fn now(&self) -> Arc<Trust> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace(&self, trust: Trust) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }
}

/// Who has to be there where a task names this host: all entries of one node, which has several while its key is exchanged. None
/// when no entry has the host.
pub fn meant(peers: &[Peer], host: &str) -> Option<(String, Meant)> {
    let known = peers.iter().find(|peer| peer.address == host || peer.name == host)?;
    let same = peers.iter().filter(|peer| peer.name == known.name);
    let keys = same.filter_map(|peer| peer.key).collect();
    Some((known.address.clone(), Meant { name: known.name.clone(), keys }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, address: &str, key: Option<u8>) -> Peer {
        Peer { name: name.into(), address: address.into(), key: key.map(|key| [key; 32]) }
    }

    #[test]
    fn a_key_is_what_it_is_listed_as() {
        let keys =
            Keys { admins: vec![[1; 32]], controllers: vec![[4; 32]], nodes: vec![([2; 32], "n2".into())] };
        assert_eq!(keys.role(&[4; 32]), Ok(Role::Controller));
        assert_eq!(keys.role(&[1; 32]), Ok(Role::Administrator));
        assert_eq!(keys.role(&[2; 32]), Ok(Role::Node("n2".into())));
        assert!(keys.role(&[3; 32]).unwrap_err().contains("0303"));
        let without = Keys { nodes: Vec::new(), ..keys };
        assert_eq!(without.role(&[3; 32]), Ok(Role::Stager));
        assert_eq!(without.role(&[1; 32]), Ok(Role::Administrator));
        assert_eq!(without.role(&[4; 32]), Ok(Role::Controller), "no more than without the other keys");
    }

    #[test]
    fn a_node_may_have_an_old_key_and_a_new_one() {
        let peers = [
            peer("n1", "a:1", Some(1)),
            peer("n2", "b:1", Some(2)),
            peer("n2", "b:1", Some(3)),
            peer("n3", "c:1", None),
        ];
        let (address, who) = meant(&peers, "n2").unwrap();
        assert_eq!((&*address, who.keys), ("b:1", vec![[2; 32], [3; 32]]));
        assert_eq!(meant(&peers, "b:1").unwrap().1.name, "n2");
        assert_eq!(meant(&peers, "c:1").unwrap().1.keys.len(), 0);
        assert!(meant(&peers, "d:1").is_none());
    }
}
