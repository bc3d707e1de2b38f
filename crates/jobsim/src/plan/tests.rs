//! Both kinds of plans against arrays with a bit for each node and second.

use super::*;
use proptest::prelude::*;

const NODES: u32 = 9;
const SECONDS: usize = 3000;

#[derive(Clone, Debug)]
enum Deed {
    /// From when at the earliest, nodes, seconds.
    Place(u64, u32, u64),
    /// Which, and from when at the earliest.
    Nearer(usize, u64),
    /// Which, and the share of its time that it gives back.
    End(usize, u64),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        2 => (0u64..60, 1..=NODES, 1u64..40).prop_map(|(from, nodes, seconds)| Deed::Place(from, nodes, seconds)),
        1 => (any::<usize>(), 0u64..60).prop_map(|(which, from)| Deed::Nearer(which, from)),
        1 => (any::<usize>(), 0u64..4).prop_map(|(which, share)| Deed::End(which, share)),
    ];
    prop::collection::vec(deed, 1..40)
}

/// What everybody would write first.
struct Slow {
    free: Vec<[bool; NODES as usize]>,
    allocation: Option<Allocation>,
}

impl Slow {
    fn set(&mut self, nodes: &[u32], from: u64, until: u64, free: bool) {
        for second in from..until {
            for node in nodes {
                assert_ne!(self.free[second as usize][*node as usize], free, "node {node} at {second}");
                self.free[second as usize][*node as usize] = free;
            }
        }
    }

    /// Where numbers count, those are free that are free at the time: the least over it.
    fn fits(&self, start: u64, nodes: u32, seconds: u64) -> Option<Vec<u32>> {
        let during = &self.free[start as usize..(start + seconds) as usize];
        let free: Vec<u32> = (0..NODES).filter(|node| during.iter().all(|all| all[*node as usize])).collect();
        if self.allocation == Some(Allocation::Contiguous) {
            let run =
                (0..=NODES - nodes).find(|first| (*first..first + nodes).all(|node| free.contains(&node)))?;
            return Some((run..run + nodes).collect());
        }
        (free.len() >= nodes as usize).then(|| free[..nodes as usize].to_vec())
    }
}

fn list(nodes: &[u32]) -> NodeSet {
    let mut set = NodeSet::none(NODES);
    nodes.iter().for_each(|node| set.add(*node, node + 1));
    set
}

fn ask<L>(from_s: u64, before_s: u64, nodes: u32, seconds: u64) -> Ask<'static, L> {
    Ask { from_s, before_s, nodes, seconds, partition: 0, own: None, keep: None, only: None }
}

proptest! {
    #[test]
    fn nodes_are_those_of_a_slow_array(deeds in deeds(), contiguous: bool, keeps: bool) {
        let allocation = if contiguous { Allocation::Contiguous } else { Allocation::Lowest };
        let mut plan = Nodes::new(NODES, Vec::new(), allocation);
        let mut slow = Slow { free: vec![[true; NODES as usize]; SECONDS], allocation: Some(allocation) };
        let mut placed: Vec<(u64, u64, Vec<u32>)> = Vec::new();
        for deed in deeds {
            match deed {
                Deed::Place(from, nodes, seconds) => {
                    let (start, wanted) =
                        (from..).find_map(|at| Some((at, slow.fits(at, nodes, seconds)?))).unwrap();
                    let got = plan.first_fit(&ask(from, u64::MAX, nodes, seconds)).unwrap();
                    prop_assert_eq!((got.0, got.1.nodes().collect::<Vec<_>>()), (start, wanted.clone()));
                    plan.take(&got.1, nodes, start, start + seconds);
                    slow.set(&wanted, start, start + seconds, false);
                    placed.push((start, seconds, wanted));
                }
                Deed::Nearer(which, from) if !placed.is_empty() => {
                    let which = which % placed.len();
                    let (start, seconds, nodes) = placed[which].clone();
                    let own = list(&nodes);
                    let count = nodes.len() as u32;
                    slow.set(&nodes, start, start + seconds, true);
                    let wanted = (from..start).find_map(|at| Some((at, slow.fits(at, count, seconds)?)));
                    let wanted = wanted.map(|(at, lowest)| {
                        let still = keeps && slow.free[at as usize..(at + seconds) as usize].iter()
                            .all(|free| nodes.iter().all(|node| free[*node as usize]));
                        (at, if still { nodes.clone() } else { lowest })
                    });
                    let nearer = Ask {
                        own: Some((start, &own)),
                        keep: Some(&own).filter(|_| keeps),
                        ..ask(from, start, count, seconds)
                    };
                    let got = plan.first_fit(&nearer);
                    prop_assert_eq!(got.as_ref().map(|(at, set)| (*at, set.nodes().collect())), wanted.clone());
                    let (at, nodes) = wanted.unwrap_or((start, nodes));
                    plan.give(&own, count, start, start + seconds);
                    plan.take(&list(&nodes), count, at, at + seconds);
                    slow.set(&nodes, at, at + seconds, false);
                    placed[which] = (at, seconds, nodes);
                }
                Deed::End(which, share) if !placed.is_empty() => {
                    let which = which % placed.len();
                    let (start, seconds, nodes) = placed.swap_remove(which);
                    let end = start + seconds * share / 4;
                    plan.give(&list(&nodes), nodes.len() as u32, end, start + seconds);
                    slow.set(&nodes, end, start + seconds, true);
                    if end > start {
                        placed.push((start, end - start, nodes));
                    }
                }
                _ => {}
            }
        }
        // Steps that change nothing are gone.
        let boundaries: std::collections::BTreeSet<u64> =
            placed.iter().flat_map(|(start, seconds, _)| [*start, start + seconds]).collect();
        prop_assert!(plan.steps_len() <= boundaries.len() + 1);
    }

    /// Here the array has numbers: nodes may change while a job runs.
    #[test]
    fn counts_are_those_of_a_slow_array(deeds in deeds()) {
        let mut plan = Counts::new(NODES);
        let mut free = vec![NODES as i64; SECONDS];
        let add = |free: &mut Vec<i64>, from: u64, until: u64, nodes: i64|
            free[from as usize..until as usize].iter_mut().for_each(|n| *n += nodes);
        let fits = |free: &Vec<i64>, at: u64, nodes: u32, seconds: u64|
            free[at as usize..(at + seconds) as usize].iter().all(|n| *n >= i64::from(nodes));
        let mut placed: Vec<(u64, u64, u32)> = Vec::new();
        for deed in deeds {
            match deed {
                Deed::Place(from, nodes, seconds) => {
                    let wanted = (from..).find(|at| fits(&free, *at, nodes, seconds)).unwrap();
                    prop_assert_eq!(plan.first_fit(&ask(from, u64::MAX, nodes, seconds)), Some((wanted, ())));
                    plan.take(&(), nodes, wanted, wanted + seconds);
                    add(&mut free, wanted, wanted + seconds, -i64::from(nodes));
                    placed.push((wanted, seconds, nodes));
                }
                Deed::Nearer(which, from) if !placed.is_empty() => {
                    let which = which % placed.len();
                    let (start, seconds, nodes) = placed[which];
                    add(&mut free, start, start + seconds, i64::from(nodes));
                    let wanted = (from..start).find(|at| fits(&free, *at, nodes, seconds));
                    let nearer = Ask { own: Some((start, &())), ..ask(from, start, nodes, seconds) };
                    prop_assert_eq!(plan.first_fit(&nearer).map(|fit| fit.0), wanted);
                    let at = wanted.unwrap_or(start);
                    plan.give(&(), nodes, start, start + seconds);
                    plan.take(&(), nodes, at, at + seconds);
                    add(&mut free, at, at + seconds, -i64::from(nodes));
                    placed[which].0 = at;
                }
                Deed::End(which, share) if !placed.is_empty() => {
                    let which = which % placed.len();
                    let (start, seconds, nodes) = placed.swap_remove(which);
                    let end = start + seconds * share / 4;
                    plan.give(&(), nodes, end, start + seconds);
                    add(&mut free, end, start + seconds, i64::from(nodes));
                    if end > start {
                        placed.push((start, end - start, nodes));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Ten nodes on switches of four: the fullest that has enough, else the emptiest first.
#[test]
fn nodes_by_switch_by_hand() {
    let mut plan = Nodes::new(10, Vec::new(), Allocation::Switch(4));
    let mut busy = NodeSet::none(10);
    [0, 4, 5].into_iter().for_each(|node| busy.add(node, node + 1));
    plan.take(&busy, 3, 0, 100);
    for (nodes, wanted) in
        [(2, vec![6, 7]), (3, vec![1, 2, 3]), (4, vec![1, 2, 3, 6]), (7, vec![1, 2, 3, 6, 7, 8, 9])]
    {
        let got = plan.first_fit(&ask(0, u64::MAX, nodes, 10)).unwrap();
        assert_eq!((got.0, got.1.nodes().collect::<Vec<_>>()), (0, wanted));
    }
    assert_eq!(plan.first_fit(&ask(0, u64::MAX, 8, 10)).unwrap().0, 100);
}

/// Jobs that run may be where a block is; when they end there, it stays blocked.
#[test]
fn blocks_stay() {
    let block = Block { from_s: 10, until_s: 20, nodes: 2, set: list(&[0, 1]) };
    let mut plan = Nodes::new(NODES, Vec::new(), Allocation::Lowest);
    plan.take(&list(&[0]), 1, 0, 30);
    plan.block(&block);
    plan.give(&list(&[0]), 1, 5, 30);
    let fit =
        |plan: &Nodes, from, nodes, seconds| plan.first_fit(&ask(from, u64::MAX, nodes, seconds)).unwrap().0;
    assert_eq!((fit(&plan, 5, 9, 5), fit(&plan, 5, 9, 6), fit(&plan, 5, 7, 100)), (5, 20, 5));
    let mut plan = Counts::new(NODES);
    plan.take(&(), 8, 0, 30);
    plan.block(&block);
    plan.give(&(), 8, 15, 30);
    let fit = |from, nodes, seconds| plan.first_fit(&ask(from, u64::MAX, nodes, seconds)).unwrap().0;
    assert_eq!((fit(0, 1, 10), fit(0, 1, 11), fit(0, 7, 9), fit(0, 8, 1)), (0, 15, 15, 20));
}
