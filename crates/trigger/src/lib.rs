//! When staging ahead of a job has to begin (INVENTORY H11; Miranda et al. 2019, Section III: "The scheduler uses calculations
//! of average data transfer times and data sizes to decide when to trigger such movements prior to a job starting").
//!
//! Averages are late half of the time, for two reasons: transfers take longer than their average, and jobs start before
//! their planned time, since others end before their limits. So the trigger asks of each past staging how early it
//! *would have had to* begin, both reasons at once, and begins as early as most of them needed:
//!
//! ```text
//! pad(x)     = x + 30 s                                        a least margin; keeps ratios of short stagings small
//! takes_j(E) = pad(took_j) * pad(E) / pad(estimate_j)          how long E would have taken in experience j
//! left_j(h)  = least time to the planned start that had been seen of job j until h before its real start
//! need_j(E)  = left_j(takes_j(E))                              the smallest lead with which E would have been in time
//! Q(E)       = conformal quantile of need_j(E) over the j that waited at least takes_j(E)
//! lead(E)    = max(pad(E), Q(e) for all e <= E)
//! begin      when planned start - now <= lead(estimate)
//! ```
//! The conformal quantile of n needs at a late share `a` is the `ceil((n + 1) (1 - a))`-th smallest: if the next job is like
//! the past n, it is late with probability `a` at most, whatever the distributions are (Vovk et al. 2005). Jobs change with
//! time, so `a` follows what happened (adaptive conformal inference; Gibbs and Candes 2021): it falls after a late
//! job and rises a little after one in time, so that in the long run [`LATE_SHARE`] of the jobs are late. Where `a` is so small
//! that no need bounds the next one, the largest counts; where it has fallen to 0 and below, twice the largest. Where
//! experience is too little for all that, [`PRIOR`] holds.
//!
//! No I/O and no clock: the daemon's hooks and the simulator of `tidepool jobs stage-ahead` call the same function.

#![forbid(unsafe_code)]

mod experience;
mod quantile;

pub use experience::{Experience, Look};
pub use quantile::rank;

use std::collections::VecDeque;

/// Stagings that are remembered.
pub const EXPERIENCES_MAX: usize = 256;
/// Looks at the plan that are remembered of each.
pub const LOOKS_MAX: usize = 64;
/// Milliseconds that every staging begins before it has to.
pub const MARGIN_MS: u64 = 30_000;
/// Share of jobs that may be late: below a tenth, so that a bad day does not pass it (INVENTORY H11: < 10 %).
pub const LATE_SHARE: f64 = 0.08;
/// The lead without experience, in times of what staging should take. If the time that is really left is anything between
/// none and what the plan says, all equally likely, it is less than a tenth of that for one job in ten.
pub const PRIOR: u64 = 10;
/// Fewer experiences than this say nothing.
const EXPERIENCES_MIN: usize = 10;
/// How far one late job moves the share that is aimed at.
const STEP: f64 = 0.005;
/// Bounds of the share that is aimed at. Below 0 there is room for what is owed after bad days.
const SHARE_MIN: f64 = -0.05;
const SHARE_MAX: f64 = 0.5;
/// Padded estimates at which the quantile is taken: the margin times powers of the square root of two, up to a year.
const STEPS_MAX: usize = 40;

/// What past stagings have taught.
#[derive(Clone, Debug)]
pub struct Trigger {
    past: VecDeque<Experience>,
    /// Of late jobs, that is aimed at now.
    share: f64,
    /// `Q` with its maximum so far, at the steps that somebody has asked for since the last experience.
    leads: Vec<u64>,
}

impl Default for Trigger {
    fn default() -> Trigger {
        Trigger { past: VecDeque::new(), share: LATE_SHARE, leads: Vec::new() }
    }
}

impl Trigger {
    /// Of experiences in the order in which they came to an end.
    pub fn of(past: impl IntoIterator<Item = Experience>) -> Trigger {
        let mut trigger = Trigger::default();
        past.into_iter().for_each(|experience| trigger.learn(experience));
        trigger
    }

    /// How many experiences count.
    pub fn experiences(&self) -> usize {
        self.past.len()
    }

    /// A staging has come to an end and its job has started. One that could not have been in time whenever it had begun says
    /// nothing on when to begin.
    pub fn learn(&mut self, experience: Experience) {
        if !experience.was_possible() {
            return;
        }
        let late = if experience.was_late() { 1.0 } else { 0.0 };
        self.share = (self.share + STEP * (LATE_SHARE - late)).clamp(SHARE_MIN, SHARE_MAX);
        if self.past.len() == EXPERIENCES_MAX {
            self.past.pop_front();
        }
        self.past.push_back(experience);
        self.leads.clear();
    }

    /// Milliseconds before the planned start at which staging has to begin. Without an estimate all stagings take as
    /// long as the past ones did.
    pub fn lead_ms(&mut self, estimate_ms: Option<u64>) -> u64 {
        let Some(estimate) = estimate_ms else { return self.quantile(None, MARGIN_MS) };
        let padded = estimate.saturating_add(MARGIN_MS);
        let (step, beyond) = step_below(padded);
        self.take_up_to(step + 1);
        let (low, high) = (self.leads[step], self.leads[step + 1]);
        // Between two steps in a straight line; beyond the last one as much more as staging takes longer.
        let width = u128::from(step_ms(step + 1) - step_ms(step));
        let more = u128::from(high - low) * u128::from(beyond) / width;
        let lead = if step + 1 == STEPS_MAX {
            low.saturating_add(beyond)
        } else {
            low.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
        };
        lead.max(padded)
    }

    /// Milliseconds until staging has to begin; none when that is now.
    pub fn early_ms(&mut self, now_ms: u64, planned_start_ms: u64, estimate_ms: Option<u64>) -> Option<u64> {
        let left = planned_start_ms.saturating_sub(now_ms);
        left.checked_sub(self.lead_ms(estimate_ms)).filter(|early| *early > 0)
    }

    fn take_up_to(&mut self, last: usize) {
        for step in self.leads.len()..=last {
            let padded = step_ms(step);
            let before = step.checked_sub(1).map_or(0, |before| self.leads[before]);
            let lead = self.quantile(Some(padded), padded).max(before).max(padded);
            self.leads.push(lead);
        }
    }

    /// `Q`; where it is not bounded the largest need there was, or [`PRIOR`] times `usual`.
    fn quantile(&self, padded: Option<u64>, usual: u64) -> u64 {
        let mut needs: Vec<u64> =
            self.past.iter().filter_map(|experience| experience.need_ms(padded)).collect();
        let rank = rank(needs.len(), self.share).filter(|_| needs.len() >= EXPERIENCES_MIN);
        if let Some(rank) = rank {
            return *needs.select_nth_unstable(rank).1;
        }
        let most = needs.into_iter().max().unwrap_or(0).max(usual.saturating_mul(PRIOR));
        if self.share > 0.0 { most } else { most.saturating_mul(2) }
    }
}

/// The padded estimate at a step.
fn step_ms(step: usize) -> u64 {
    let whole = MARGIN_MS << (step / 2);
    if step.is_multiple_of(2) { whole } else { whole + whole * 2 / 5 }
}

/// The last step not above a padded estimate that has one above it, and how far beyond it that is.
fn step_below(padded: u64) -> (usize, u64) {
    let step = (1..STEPS_MAX).find(|step| step_ms(*step) > padded).unwrap_or(STEPS_MAX) - 1;
    (step, padded.saturating_sub(step_ms(step)))
}

#[cfg(test)]
mod tests;
