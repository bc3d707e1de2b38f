//! One staging that was, and how early it would have had to begin.

use crate::{LOOKS_MAX, MARGIN_MS};

/// A job's planned start as it stood at a time; both in milliseconds of any one clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    pub at_ms: u64,
    pub planned_ms: u64,
}

/// What is remembered of a staging ahead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Experience {
    estimate_ms: Option<u64>,
    took_ms: u64,
    late: bool,
    /// In the order of time.
    pub(crate) seen: Vec<Seen>,
}

/// A look, as seen from the real start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// How long before the real start it was.
    pub(crate) before_ms: u64,
    /// How long the plan said it was.
    left_ms: u64,
    /// The least that was left at any time until then.
    least_ms: u64,
}

impl Experience {
    /// Of a staging that began at `began_ms`, whose job could start at `start_ms`, data or not. `looks` are in the order of
    /// time; those after the start say nothing. Only the first counts while a plan stands.
    pub fn new(
        estimate_ms: Option<u64>,
        (began_ms, took_ms, start_ms): (u64, u64, u64),
        looks: impl IntoIterator<Item = Look>,
    ) -> Experience {
        let late = began_ms.saturating_add(took_ms) > start_ms;
        let mut seen: Vec<Seen> = Vec::new();
        let mut planned = None;
        for look in looks {
            let Some(before_ms) = start_ms.checked_sub(look.at_ms) else { break };
            if planned == Some(look.planned_ms) {
                continue;
            }
            // Until this look the plan before it stood.
            let least_ms = seen.last().map_or(u64::MAX, |last| last.least_until(before_ms));
            planned = Some(look.planned_ms);
            seen.push(Seen { before_ms, left_ms: look.planned_ms.saturating_sub(look.at_ms), least_ms });
            if seen.len() > LOOKS_MAX {
                thin(&mut seen);
            }
        }
        Experience { estimate_ms, took_ms, late, seen }
    }

    /// The data were not there when the job could start.
    pub fn was_late(&self) -> bool {
        self.late
    }

    /// It would have been in time if it had begun at the first look.
    pub fn was_possible(&self) -> bool {
        self.seen.first().is_some_and(|first| first.before_ms >= self.took_ms)
    }

    /// The smallest lead that would have been in time for a staging of this padded estimate; for one like this without.
    /// None when none would.
    pub(crate) fn need_ms(&self, padded: Option<u64>) -> Option<u64> {
        let took = self.took_ms.saturating_add(MARGIN_MS);
        let takes = match (padded, self.estimate_ms) {
            (Some(padded), Some(own)) => {
                let own = u128::from(own.saturating_add(MARGIN_MS));
                // Rounded up: what is a little too short is late.
                u64::try_from((u128::from(took) * u128::from(padded)).div_ceil(own)).unwrap_or(u64::MAX)
            }
            _ => took,
        };
        self.least_left(takes)
    }

    /// The least that was left at any time until `before_ms` before the start; none when nobody had looked then.
    fn least_left(&self, before_ms: u64) -> Option<u64> {
        let looked = self.seen.partition_point(|seen| seen.before_ms >= before_ms);
        looked.checked_sub(1).map(|last| self.seen[last].least_until(before_ms))
    }
}

impl Seen {
    /// The least that was left until `before_ms` before the start, when no look was later than this one.
    fn least_until(&self, before_ms: u64) -> u64 {
        self.least_ms.min(self.left_ms.saturating_sub(self.before_ms - before_ms))
    }
}

/// Leaves out every second look, but for the first and the last: the plan before it is then taken to have stood longer.
fn thin(seen: &mut Vec<Seen>) {
    let last = seen.len() - 1;
    let mut number = 0;
    seen.retain(|_| {
        number += 1;
        (number - 1) % 2 == 0 || number - 1 == last
    });
    // What was seen in the looks that are gone counts no more, so that what is left agrees with itself.
    for at in 1..seen.len() {
        seen[at].least_ms = seen[at - 1].least_until(seen[at].before_ms);
    }
}
