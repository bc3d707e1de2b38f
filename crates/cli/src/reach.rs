//! Whether the nodes of a pool that has just started reach each other: daemons that listen, and that nobody can ask, are no pool.

use crate::exit::{Failure, Kind, Result};
use crate::side_by_side::each;
use tidepool_client::Client;
use tidepool_types::DaemonIndex;
use tidepool_wire::message::Request;

/// In pools of more daemons a node asks some only: with their neighbours' answers every link between two parts of a network is asked over.
const ALL_MAX: usize = 64;

/// Asks the daemons of the other nodes, from node `number`, whose daemons are `own`; an error names those that do not answer.
pub fn check(client: &Client, number: usize, host: &str, own: &[DaemonIndex]) -> Result<()> {
    let asked = to_ask(number, client.members());
    let asked: Vec<DaemonIndex> = asked.into_iter().filter(|daemon| !own.contains(daemon)).collect();
    let answers = each(asked.len(), |at| client.request(asked[at], &Request::Ping {}).err());
    let silent: Vec<String> = asked
        .iter()
        .zip(answers)
        .filter_map(|(daemon, error)| {
            let at = &client.pool().members[usize::from(*daemon)];
            error.map(|error| format!("daemon {daemon} of {} at {} ({error})", at.host, at.tcp))
        })
        .collect();
    match silent.first() {
        None => Ok(()),
        Some(first) => {
            let (of, all) = (silent.len(), asked.len());
            let text = format!(
                "{host} does not reach {of} of the {all} daemons of other nodes that it asked: {first}; let nodes connect to each other's TCP ports (a firewall?), or name the interface that they share with --nic"
            );
            Err(Failure::new(Kind::Start, text))
        }
    }
}

/// All, or those at distances 1, 2, 4 and so on.
fn to_ask(number: usize, daemons: usize) -> Vec<DaemonIndex> {
    if daemons <= ALL_MAX {
        return (0..daemons as DaemonIndex).collect();
    }
    let distances = (0..).map(|power| 1_usize << power).take_while(|distance| *distance < daemons);
    distances.map(|distance| ((number + distance) % daemons) as DaemonIndex).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tidepool_testkit::{Cluster, Options};

    #[test]
    fn a_daemon_that_nobody_reaches_is_named() {
        let cluster = Cluster::with(Options { daemons: 3, tcp_only: true, ..Options::default() });
        check(&cluster.client(), 0, "n0", &[0]).unwrap();
        let mut pool = cluster.pool_file();
        // Nobody listens there.
        pool.members[2].tcp = "127.0.0.1:1".into();
        let client = Client::new(pool);
        let failure = check(&client, 0, "n0", &[0]).unwrap_err().to_string();
        assert!(
            failure.contains("n0 does not reach 1 of the 2") && failure.contains("127.0.0.1:1"),
            "{failure}"
        );
        check(&client, 2, "n2", &[2]).unwrap();
    }

    /// Whatever way a large pool is cut in two, some node asks over the cut, from either side.
    #[test]
    fn nodes_of_large_pools_ask_all_together_everybody() {
        for daemons in [65, 100, 4096] {
            let asked: BTreeSet<DaemonIndex> =
                (0..daemons).flat_map(|number| to_ask(number, daemons)).collect();
            assert_eq!(asked.len(), daemons);
            assert!((0..daemons).all(|number| to_ask(number, daemons).len() < 14));
        }
        assert_eq!(to_ask(9, 3), [0, 1, 2]);
    }
}
