//! Ways through switches.

use std::collections::VecDeque;

/// How traffic takes one of several ways that are equally short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Routing {
    /// Evenly over all of them (ECMP, adaptive routing).
    #[default]
    Even,
    /// All between two nodes by one, which a hash chooses (static routing).
    Hashed,
}

/// One direction of the links between two switches.
pub struct Hop {
    pub to: usize,
    /// Its place among all links.
    pub link: usize,
    /// How many links there are side by side.
    pub count: u32,
}

/// Links with the share of the traffic that goes over each.
pub type Shares = Vec<(usize, f64)>;

/// Shortest ways to one switch.
pub struct Ways<'a> {
    hops: &'a [Vec<Hop>],
    /// Links between each switch and that one.
    far: Vec<Option<u32>>,
}

impl<'a> Ways<'a> {
    /// `hops` are those from each switch.
    pub fn to(target: usize, hops: &'a [Vec<Hop>]) -> Ways<'a> {
        let mut far = vec![None; hops.len()];
        far[target] = Some(0);
        let mut queue = VecDeque::from([(target, 0)]);
        while let Some((switch, distance)) = queue.pop_front() {
            // Links go both ways: who is reached from here reaches here.
            for hop in &hops[switch] {
                if far[hop.to].is_none() {
                    far[hop.to] = Some(distance + 1);
                    queue.push_back((hop.to, distance + 1));
                }
            }
        }
        Ways { hops, far }
    }

    /// Hops that lead nearer.
    fn nearer(&self, switch: usize) -> impl Iterator<Item = &'a Hop> {
        let hops: &'a [Hop] = &self.hops[switch];
        hops.iter().filter(move |hop| {
            let (here, there) = (self.far[switch], self.far[hop.to]);
            here.zip(there).is_some_and(|(here, there)| there < here)
        })
    }

    /// Evenly over all links of the shortest ways; none where no way leads.
    pub fn evenly(&self, from: usize) -> Option<Shares> {
        let distance = self.far[from]?;
        let (mut shares, mut at) = (Shares::new(), vec![(from, 1.0)]);
        for _ in 0..distance {
            let mut next: Vec<(usize, f64)> = Vec::new();
            for (switch, share) in at {
                let all: f64 = self.nearer(switch).map(|hop| f64::from(hop.count)).sum();
                for hop in self.nearer(switch) {
                    let part = share * f64::from(hop.count) / all;
                    shares.push((hop.link, part));
                    match next.iter_mut().find(|(switch, _)| *switch == hop.to) {
                        Some((_, known)) => *known += part,
                        None => next.push((hop.to, part)),
                    }
                }
            }
            at = next;
        }
        Some(shares)
    }

    /// By one way, which `seed` chooses; none where no way leads.
    pub fn hashed(&self, from: usize, seed: u64) -> Option<Shares> {
        let distance = self.far[from]?;
        let (mut shares, mut at) = (Shares::new(), from);
        for step in 0..distance {
            let all: u64 = self.nearer(at).map(|hop| u64::from(hop.count)).sum();
            let mut pick = scramble(seed ^ (u64::from(step) << 56)) % all;
            let hop = self.nearer(at).find(|hop| match pick.checked_sub(hop.count.into()) {
                Some(left) => {
                    pick = left;
                    false
                }
                None => true,
            })?;
            shares.push((hop.link, 1.0));
            at = hop.to;
        }
        Some(shares)
    }
}

/// The finalizer of SplitMix64.
fn scramble(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Links (from, to, count); the nth has the numbers 2n and 2n + 1.
    fn net(switches: usize, links: &[(usize, usize, u32)]) -> Vec<Vec<Hop>> {
        let mut hops: Vec<Vec<Hop>> = (0..switches).map(|_| Vec::new()).collect();
        for (n, &(a, b, count)) in links.iter().enumerate() {
            hops[a].push(Hop { to: b, link: 2 * n, count });
            hops[b].push(Hop { to: a, link: 2 * n + 1, count });
        }
        hops
    }

    #[test]
    fn traffic_spreads_over_links_and_not_over_switches() {
        // Leaves 0 and 1; core 2 with three links to each, core 3 with one; a longer way by 4.
        let hops = net(5, &[(0, 2, 3), (1, 2, 3), (0, 3, 1), (1, 3, 1), (2, 4, 1), (3, 4, 1)]);
        let ways = Ways::to(1, &hops);
        assert_eq!(ways.evenly(0).unwrap(), [(0, 0.75), (4, 0.25), (3, 0.75), (7, 0.25)]);
        assert_eq!(ways.evenly(1).unwrap(), []);
        assert_eq!(ways.evenly(4).unwrap().len(), 4);
    }

    #[test]
    fn ways_that_meet_again_carry_all_together() {
        let hops = net(5, &[(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1), (3, 4, 1)]);
        assert_eq!(Ways::to(4, &hops).evenly(0).unwrap(), [(0, 0.5), (2, 0.5), (4, 0.5), (6, 0.5), (8, 1.0)]);
    }

    #[test]
    fn where_no_way_leads_there_is_none() {
        let hops = net(3, &[(0, 1, 1)]);
        assert_eq!((Ways::to(2, &hops).evenly(0), Ways::to(2, &hops).hashed(0, 1)), (None, None));
    }

    #[test]
    fn hashing_takes_one_way_and_each_as_often_as_it_has_links() {
        let hops = net(4, &[(0, 2, 3), (1, 2, 3), (0, 3, 1), (1, 3, 1)]);
        let ways = Ways::to(1, &hops);
        let wide = (0..4000).filter(|seed| {
            let way = ways.hashed(0, *seed).unwrap();
            assert!(way == [(0, 1.0), (3, 1.0)] || way == [(4, 1.0), (7, 1.0)], "{way:?}");
            way[0].0 == 0
        });
        assert!((2850..3150).contains(&wide.count()));
    }
}
