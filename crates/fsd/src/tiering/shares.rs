//! What a pool may write to a tier in a second, where a strategy gives shares. Pure.

use super::loads::Load;
use tidepool_iosched::{Curves, Decision, JobId, Sharer, Tier, Verdict, View, share};

/// Others are taken to want all that they are given for so long after the beginning of a phase. Later, those that nobody holds
/// back have all they want.
const SETTLED_MS: u64 = 3_000;

/// The part of one daemon of pool `job`, in bytes/s, by the tier's curves. None where its phase writes to no tier with `curves`.
pub fn share_of(
    job: u64,
    decision: &Decision,
    view: &View,
    heard: &[Load],
    now_ms: u64,
    curves: impl Fn(Tier) -> Option<std::sync::Arc<Curves>>,
) -> Option<u64> {
    let Verdict::Go { tier, .. } = decision.phases.get(&JobId(job))? else { return None };
    let curves = curves(*tier)?;
    let there = decision.phases.iter().filter_map(|(other, verdict)| match verdict {
        Verdict::Go { tier: place, weight } if place == tier => Some((*other, *weight)),
        _ => None,
    });
    let there: Vec<(JobId, u32)> = there.collect();
    let sharers: Vec<Sharer> = there
        .iter()
        .filter_map(|(other, weight)| {
            let app = view.app(*other)?;
            let most = if other.0 == job { None } else { wants(other.0, heard, now_ms) };
            Some(Sharer { weight: *weight, processes: app.processes, pattern: app.phase?.pattern, most })
        })
        .collect();
    let own = there.iter().position(|(other, _)| other.0 == job)?;
    let daemons = 1 + heard.iter().filter(|load| load.job == job && load.phase.is_some()).count() as u64;
    Some((share(&curves, &sharers).get(own)? / daemons).max(1))
}

/// All that a pool can use, where that is known: what it has now, and a quarter more.
fn wants(job: u64, heard: &[Load], now_ms: u64) -> Option<u64> {
    let its = || heard.iter().filter(|load| load.job == job);
    let begun = its().filter_map(|load| load.phase.as_ref()).map(|phase| phase.began_ms).min()?;
    if its().any(|load| load.holding) || now_ms.saturating_sub(begun) < SETTLED_MS {
        return None;
    }
    let rate: u64 = its().map(|load| load.write_per_s).sum();
    Some(rate.saturating_add(rate / 4).max(1))
}
