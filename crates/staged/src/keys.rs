//! What a proved key lets its holder ask for: the one place that says which nodes and administrators there are.

use crate::config::{Config, Peer};
use tidepool_transport::hex;
use tidepool_transport::remote::Meant;

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
