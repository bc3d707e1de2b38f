//! Max-min fair rates by progressive filling.

/// Links that fill up within this of each other do so at a time: their figures differ by rounding only.
const TOGETHER: f64 = 1e-9;

/// The links a flow uses, each once, with the share of the flow's rate that goes over it; more than 0.
pub type Uses = Vec<(usize, f64)>;

/// Rates that are fair.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// Of each flow. One that uses no link has no bound.
    pub rates: Vec<f64>,
    /// The link that each flow cannot go beyond.
    pub limits: Vec<Option<usize>>,
}

/// Raises all flows together. Flows that use a link which is full stay where they are, the others go on.
///
/// Then no flow can be raised without lowering one that is not larger: on the link that stopped it no flow is larger.
pub fn max_min(capacities: &[f64], flows: &[Uses]) -> Rates {
    let mut filling = Filling::new(capacities, flows);
    while let Some((rate, full)) = filling.next_full() {
        full.into_iter().for_each(|link| filling.stop(link, rate));
    }
    Rates { rates: filling.rates, limits: filling.limits }
}

struct Filling<'a> {
    flows: &'a [Uses],
    /// Flows that use each link.
    users: Vec<Vec<usize>>,
    /// What is left of each link beside the flows that have stopped.
    left: Vec<f64>,
    /// What flows that go on take of each link, for a rate of 1.
    takes: Vec<f64>,
    /// How many of those there are: the sum above ends a little beside 0.
    going: Vec<usize>,
    rates: Vec<f64>,
    limits: Vec<Option<usize>>,
    reached: f64,
}

impl<'a> Filling<'a> {
    fn new(capacities: &[f64], flows: &'a [Uses]) -> Filling<'a> {
        let mut users = vec![Vec::new(); capacities.len()];
        let mut takes = vec![0.0; capacities.len()];
        for (flow, uses) in flows.iter().enumerate() {
            for &(link, share) in uses {
                users[link].push(flow);
                takes[link] += share;
            }
        }
        Filling {
            flows,
            going: users.iter().map(Vec::len).collect(),
            users,
            left: capacities.to_vec(),
            takes,
            rates: vec![f64::INFINITY; flows.len()],
            limits: vec![None; flows.len()],
            reached: 0.0,
        }
    }

    /// The rate at which the next links are full, and those; none when all flows have stopped.
    fn next_full(&mut self) -> Option<(f64, Vec<usize>)> {
        let full_at = |link: usize| (self.left[link] / self.takes[link]).max(self.reached);
        let going = || (0..self.going.len()).filter(|link| self.going[*link] > 0);
        let rate = going().map(full_at).reduce(f64::min)?;
        let full = going().filter(|link| full_at(*link) <= rate * (1.0 + TOGETHER)).collect();
        self.reached = rate;
        Some((rate, full))
    }

    fn stop(&mut self, full: usize, rate: f64) {
        for flow in std::mem::take(&mut self.users[full]) {
            if self.limits[flow].is_some() {
                continue;
            }
            (self.rates[flow], self.limits[flow]) = (rate, Some(full));
            for &(link, share) in &self.flows[flow] {
                self.left[link] -= rate * share;
                self.takes[link] -= share;
                self.going[link] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Figures of these tests are this exact.
    const CLOSE: f64 = 1e-6;

    fn rates(capacities: &[f64], flows: &[&[(usize, f64)]]) -> Vec<f64> {
        max_min(capacities, &flows.iter().map(|uses| uses.to_vec()).collect::<Vec<_>>()).rates
    }

    #[test]
    fn small_cases_are_as_computed_by_hand() {
        // Two share a link of 10; one of them goes over a link of 4, too, and leaves 6.
        assert_eq!(rates(&[10.0, 4.0], &[&[(0, 1.0), (1, 1.0)], &[(0, 1.0)]]), [4.0, 6.0]);
        // The textbook's line: one flow over both links of 1, one over each.
        assert_eq!(rates(&[1.0, 1.0], &[&[(0, 1.0), (1, 1.0)], &[(0, 1.0)], &[(1, 1.0)]]), [0.5, 0.5, 0.5]);
        assert_eq!(rates(&[1.0, 2.0], &[&[(0, 1.0), (1, 1.0)], &[(0, 1.0)], &[(1, 1.0)]]), [0.5, 0.5, 1.5]);
        // A quarter of a flow over a link of 1, beside a flow that is all there: 0.25 r + r = 1.
        assert_eq!(rates(&[1.0], &[&[(0, 0.25)], &[(0, 1.0)]]), [0.8, 0.8]);
        assert_eq!(rates(&[], &[&[]]), [f64::INFINITY]);
        assert_eq!(rates(&[0.0], &[&[(0, 1.0)]]), [0.0]);
        assert_eq!(rates(&[1.0], &[]), [0.0; 0]);
    }

    #[test]
    fn the_link_that_stops_a_flow_is_told() {
        let found = max_min(&[10.0, 4.0], &[vec![(0, 1.0), (1, 1.0)], vec![(0, 1.0)], vec![]]);
        assert_eq!(found.limits, [Some(1), Some(0), None]);
    }

    fn load(link: usize, flows: &[Uses], rates: &[f64]) -> f64 {
        let on = flows
            .iter()
            .zip(rates)
            .flat_map(|(uses, rate)| uses.iter().map(move |(at, share)| (*at, share * rate)));
        on.filter(|(at, _)| *at == link).map(|(_, load)| load).sum()
    }

    fn fits(capacities: &[f64], flows: &[Uses], rates: &[f64]) -> bool {
        (0..capacities.len()).all(|link| load(link, flows, rates) <= capacities[link] * (1.0 + CLOSE))
    }

    /// The same, slowly: by halving, how far all that go on can be raised together; then who of them cannot go on.
    fn slowly(capacities: &[f64], flows: &[Uses]) -> Vec<f64> {
        let within = |rates: &[f64]| (0..capacities.len()).all(|l| load(l, flows, rates) <= capacities[l]);
        let (mut rates, mut going) = (vec![0.0; flows.len()], vec![true; flows.len()]);
        while going.iter().any(|going| *going) {
            let at = |rate: f64| -> Vec<f64> {
                rates.iter().zip(&going).map(|(old, going)| if *going { rate } else { *old }).collect()
            };
            let (mut low, mut high) = (0.0, 1e6);
            for _ in 0..120 {
                let middle = (low + high) / 2.0;
                if within(&at(middle)) { low = middle } else { high = middle }
            }
            rates = at(low);
            for flow in 0..flows.len() {
                let mut more = rates.clone();
                more[flow] = more[flow] * (1.0 + CLOSE) + CLOSE;
                going[flow] = going[flow] && within(&more);
            }
        }
        rates
    }

    fn cases() -> impl Strategy<Value = (Vec<f64>, Vec<Uses>)> {
        let links = prop::collection::vec((1u32..40).prop_map(f64::from), 1..7);
        let flow =
            prop::collection::btree_map(0usize..6, (1u32..9).prop_map(|share| f64::from(share) / 8.0), 1..6);
        (links, prop::collection::vec(flow, 1..9)).prop_map(|(links, flows)| {
            let known = links.len();
            let uses = |flow: std::collections::BTreeMap<usize, f64>| -> Uses {
                let uses: Uses = flow.into_iter().filter(|(link, _)| *link < known).collect();
                if uses.is_empty() { vec![(0, 1.0)] } else { uses }
            };
            let flows = flows.into_iter().map(uses).collect();
            (links, flows)
        })
    }

    proptest! {
        #[test]
        fn no_link_is_over_full_and_no_flow_can_be_raised((capacities, flows) in cases()) {
            let found = max_min(&capacities, &flows);
            prop_assert!(fits(&capacities, &flows, &found.rates), "{:?}", found);
            for (flow, limit) in found.limits.iter().enumerate() {
                let link = limit.expect("each flow uses a link");
                let full = load(link, &flows, &found.rates) >= capacities[link] * (1.0 - CLOSE);
                let on_it = flows.iter().zip(&found.rates).filter(|(uses, _)| uses.iter().any(|(at, _)| *at == link));
                let largest = on_it.map(|(_, rate)| *rate).fold(0.0, f64::max);
                prop_assert!(full && found.rates[flow] >= largest * (1.0 - CLOSE), "flow {} of {:?}", flow, found);
            }
        }

        #[test]
        fn a_slow_search_finds_the_same((capacities, flows) in cases()) {
            let (fast, slow) = (max_min(&capacities, &flows).rates, slowly(&capacities, &flows));
            for (one, other) in fast.iter().zip(&slow) {
                prop_assert!((one - other).abs() <= one * 1e-4 + 1e-4, "{:?} {:?}", fast, slow);
            }
        }
    }
}
