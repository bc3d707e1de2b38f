//! Whether the data have room, said before the job and not in it (WANTS 18).

use crate::spread::Layouted;
use crate::{Asked, Job, Node, Place};
use tidepool_types::{Placement, format_size};

/// Share of what is free that a pool counts on: file systems get slow when they are full, and others write there, too.
const USABLE: f64 = 0.9;

/// What the pool can hold, laid out as planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Room {
    /// Bytes that the job needs, if it said so.
    pub needed: Option<u64>,
    /// Bytes that fit; none when it is not known of every node.
    pub available: Option<u64>,
    /// What is full first: a node, or the quota.
    pub tightest: Option<String>,
}

/// Bytes that each node can give, if known.
pub(crate) fn rooms(place: &Place, store: &str) -> Vec<Option<u64>> {
    place.nodes.iter().map(|node| usable(node, store)).collect()
}

pub(crate) fn usable(node: &Node, dir: &str) -> Option<u64> {
    let free = node.facts.as_ref()?.filesystem_of(dir)?.available_bytes;
    Some((free as f64 * USABLE) as u64)
}

impl Room {
    pub(crate) fn of(
        place: &Place,
        rooms: &[Option<u64>],
        spread: &Layouted,
        job: &Job,
        asked: &Asked,
    ) -> Room {
        let needed = job.bytes.max(job.stage_in).filter(|bytes| *bytes > 0);
        let shares = shares(place, spread);
        let fits = |(at, room): (usize, &Option<u64>)| {
            // A node with no share of the data sets no limit.
            let bytes =
                room.map(|room| if shares[at] > 0.0 { room as f64 / shares[at] } else { f64::INFINITY });
            Some((bytes?, place.nodes[at].name.clone()))
        };
        let known: Option<Vec<(f64, String)>> = rooms.iter().enumerate().map(fits).collect();
        let by_nodes = known.and_then(|all| all.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)));
        let by_quota = asked.quota.filter(|quota| *quota > 0).map(|quota| (quota as f64, "the quota".into()));
        let least = match (by_nodes, by_quota) {
            (Some(nodes), Some(quota)) => Some(if quota.0 < nodes.0 { quota } else { nodes }),
            (nodes, quota) => nodes.or(quota),
        };
        let (available, tightest) =
            least.map_or((None, None), |(bytes, who)| (Some(bytes as u64), Some(who)));
        Room { needed, available, tightest }
    }

    /// None when it is not known.
    pub fn fits(&self) -> Option<bool> {
        Some(self.needed? <= self.available?)
    }

    /// Why the data do not fit, and what to do, if that is known.
    pub fn warning(&self) -> Option<String> {
        match (self.needed, self.available) {
            (Some(needed), Some(available)) if needed > available => Some(format!(
                "{} do not fit: there is room for {} ({} is full first); take more nodes, another --store, or less data",
                format_size(needed),
                format_size(available),
                self.tightest.as_deref().unwrap_or("a node"),
            )),
            _ => None,
        }
    }
}

/// The share of all data that each node gets. With "local" and "group" it is that of even writers.
fn shares(place: &Place, spread: &Layouted) -> Vec<f64> {
    let each = place.daemons_each;
    let weights = &spread.weights.value;
    let weight = |daemon: usize| f64::from(weights.get(daemon).copied().unwrap_or(1));
    let total: f64 = (0..place.daemons()).map(weight).sum();
    let weighted = spread.placement.value == Placement::Weighted && total > 0.0;
    let of_node = |node: usize| match weighted {
        true => (node * each..(node + 1) * each).map(weight).sum::<f64>() / total,
        false => 1.0 / place.nodes.len() as f64,
    };
    (0..place.nodes.len()).map(of_node).collect()
}
