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

#[cfg(test)]
mod tests {
    use super::super::loads::{PatternWord, PhaseLoad, TierWord};
    use super::super::view::{Found, Known, Measured};
    use super::*;
    use std::sync::Arc;
    use tidepool_iosched::{Curve, by_name, decide};
    use tidepool_store::Usage;

    const NOW_MS: u64 = 100_000;

    /// A pool that writes since `began_ms`; nobody is over its part.
    fn load(job: u64, index: u16, began_ms: u64) -> Load {
        let (tier, pattern) = (Some(TierWord::Burst), PatternWord::Sequential);
        let phase = Some(PhaseLoad { began_ms, bytes: 0, expected: None, tier, pattern });
        Load { at_ms: NOW_MS, processes: 4, phase, ..Load::new(job, index) }
    }

    /// What pool 7 has beside others, of a tier of 1,000 bytes/s.
    fn share_beside(heard: &[Load]) -> Option<u64> {
        let flat = || Curve::flat(1_000).unwrap();
        let curves = Arc::new(Curves { sequential: flat(), strided: flat(), random: flat() });
        let measured = Measured { burst: Some(Arc::clone(&curves)), pfs: Some(curves) };
        let found = [Tier::Local, Tier::Burst, Tier::Pfs].map(|tier| {
            let usage = Usage { blocks: 0, free: 1 << 30, total: 1 << 30 };
            Found { tier, usage }
        });
        let known = Known {
            now_ns: NOW_MS * 1_000_000,
            now_ms: NOW_MS,
            told: &Load { processes: 4, ..Load::new(7, 9) },
            found: &found,
            heard,
            curves: &measured,
            no_local: true,
            said: (None, None),
        };
        let view = known.view(true).unwrap();
        let decision = decide(by_name("fair").unwrap(), &view);
        share_of(7, &decision, &view, heard, NOW_MS, |tier| measured.of(tier))
    }

    #[test]
    fn pools_have_equal_parts() {
        assert_eq!(share_beside(&[]), Some(1_000));
        let now = |job| load(job, 0, NOW_MS);
        assert_eq!(share_beside(&[now(1)]), Some(500));
        assert_eq!(share_beside(&[now(1), now(2), now(3)]), Some(250));
        let quiet = Load { phase: None, ..load(2, 0, NOW_MS) };
        assert_eq!(share_beside(&[now(1), quiet]), Some(500));
    }

    /// Its daemons divide the pool's part.
    #[test]
    fn daemons_of_a_pool_divide_its_part() {
        assert_eq!(share_beside(&[load(7, 1, NOW_MS)]), Some(500));
        assert_eq!(share_beside(&[load(7, 1, NOW_MS), load(1, 0, NOW_MS), load(1, 1, NOW_MS)]), Some(250));
    }

    /// One that has written 200 bytes/s for some seconds, without being held back, gets a quarter more and not half.
    #[test]
    fn what_others_do_not_use_is_used() {
        let slow = |holding, began_ms| Load { write_per_s: 200, holding, ..load(1, 0, began_ms) };
        assert_eq!(share_beside(&[slow(false, NOW_MS - SETTLED_MS)]), Some(750));
        assert_eq!(share_beside(&[slow(true, NOW_MS - SETTLED_MS)]), Some(500), "it is held back");
        assert_eq!(share_beside(&[slow(false, NOW_MS - SETTLED_MS + 1)]), Some(500), "it has just begun");
    }
}
