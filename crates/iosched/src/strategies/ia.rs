//! `ia`, interference-aware: Algorithm 1 of S3 §III-C3 and what its text adds.
//!
//! - N is the number of running applications, those that compute included. `users < N/2` is read with the real number N/2
//!   (`2 * users < N`), so each shared tier takes up to N/2 rounded up: for N = 1 one, for N = 3 two. Rounding down would send
//!   a lone application to node-local memory for ever.
//! - With that reading the two shared tiers hold N applications together, and node-local memory is reached only when a tier
//!   has no room, or users that are not among the N. A full tier counts as busy; who has no room locally goes to the shared
//!   tier with fewer users. So everybody writes somewhere, and nobody waits while there is room anywhere.
//! - A phase stays where it is, but for two changes. When nobody uses the burst buffer, the oldest phase on another tier
//!   goes on there: one, because then the buffer is not idle any more. And where more use a tier than the rule lets in, the youngest
//!   are placed anew: schedulers that decide at the same moment do not know of each other, and would stay in each other's way.
//! - Data on the burst buffer are flushed while no application uses the PFS. Data in node-local memory go to the burst buffer
//!   when that is idle, else to the PFS when that is. What fills a tier to three quarters is flushed in any case.
//!
//! Late information: users cannot be counted, but N is still known, so the N/2 rule is kept by rank: the first half of the
//! running applications, by job, has the burst buffer, the others the PFS; nobody is redirected; flushes go on with the least
//! weight. Missing information on the burst buffer: it is not used.

use crate::model::{App, Dirty, Tier, View};
use crate::rules::{
    FLUSH_WEIGHT, Flushes, Phases, When, by_rank, first_with_room, flush_one, has_room, is_load_known,
    unmanaged, users,
};
use crate::strategy::{FlushVerdict, Strategy, Verdict};

#[derive(Debug)]
pub struct InterferenceAware;

/// Where the next request goes with `running` applications, of which `burst` and `pfs` use the shared tiers.
pub fn algorithm_1(running: u32, burst: u32, pfs: u32) -> Tier {
    let is_free = |users: u32| 2 * u64::from(users) < u64::from(running);
    if is_free(burst) {
        Tier::Burst
    } else if is_free(pfs) {
        Tier::Pfs
    } else {
        Tier::Local
    }
}

impl Strategy for InterferenceAware {
    fn name(&self) -> &'static str {
        "ia"
    }

    fn about(&self) -> &'static str {
        "at most half of the applications on the burst buffer, half on the parallel file system"
    }

    fn phases(&self, view: &View) -> Phases {
        if !is_load_known(view) {
            return by_rank(view);
        }
        let mut verdicts = stay(view);
        redirect(view, &mut verdicts);
        for (app, _) in view.active() {
            if !verdicts.contains_key(&app.job) {
                let verdict = start(view, app, &verdicts);
                verdicts.insert(app.job, verdict);
            }
        }
        verdicts
    }

    fn flushes(&self, view: &View, phases: &Phases) -> Flushes {
        let mut burst_idle = is_load_known(view) && users(view, phases, Tier::Burst) == 0;
        let mut verdict = |lump: &Dirty| {
            let up = lump.tier == Tier::Local && burst_idle && view.burst().free_bytes > lump.bytes;
            if up {
                burst_idle = false;
                return FlushVerdict::Go { to: Tier::Burst, weight: FLUSH_WEIGHT };
            }
            flush_one(view, phases, lump, When::TargetIdle)
        };
        view.dirty().iter().map(|lump| ((lump.job, lump.tier), verdict(lump))).collect()
    }
}

/// Those that write and can go on. Of too many on one tier the oldest.
fn stay(view: &View) -> Phases {
    let running = view.apps().len() as u64;
    let mut verdicts = Phases::new();
    for (app, phase) in view.active() {
        let Some(tier) = phase.tier.filter(|tier| has_room(view, app, *tier)) else { continue };
        let before = u64::from(users(view, &verdicts, tier));
        if tier == Tier::Local || before == 0 || 2 * before < running {
            verdicts.insert(app.job, Verdict::Go { tier, weight: unmanaged(app) });
        }
    }
    verdicts
}

/// The oldest phase elsewhere goes to the burst buffer if nobody uses that.
fn redirect(view: &View, verdicts: &mut Phases) {
    if users(view, verdicts, Tier::Burst) > 0 {
        return;
    }
    let elsewhere = |app: &App| matches!(verdicts.get(&app.job), Some(Verdict::Go { .. }));
    let oldest =
        view.active().into_iter().find(|(app, _)| elsewhere(app) && has_room(view, app, Tier::Burst));
    if let Some((app, _)) = oldest {
        verdicts.insert(app.job, Verdict::Go { tier: Tier::Burst, weight: unmanaged(app) });
    }
}

fn start(view: &View, app: &App, verdicts: &Phases) -> Verdict {
    let running = view.apps().len() as u32;
    let busy = |tier| if has_room(view, app, tier) { users(view, verdicts, tier) } else { u32::MAX };
    let (burst, pfs) = (busy(Tier::Burst), busy(Tier::Pfs));
    let shared = if burst <= pfs { [Tier::Burst, Tier::Pfs] } else { [Tier::Pfs, Tier::Burst] };
    let wishes = [algorithm_1(running, burst, pfs), shared[0], shared[1]];
    first_with_room(view, app, &wishes, unmanaged(app))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{JobId, Local};
    use crate::testing::*;

    /// Two daemons have let their phases in at the same moment, before they heard of each other.
    #[test]
    fn of_too_many_on_a_tier_the_youngest_go_elsewhere() {
        let (burst, pfs) = (Some(Tier::Burst), Some(Tier::Pfs));
        let together = |begins: &[u64], tier| {
            let apps = begins.iter().zip(1..).map(|(begin, job)| writing(job, 8, *begin, tier)).collect();
            sent(&InterferenceAware, &view(9, apps))
        };
        assert_eq!(together(&[5, 3], burst), [pfs, burst]);
        assert_eq!(together(&[3, 3], burst), [burst, pfs], "at the same moment the lower job is first");
        assert_eq!(together(&[3, 4], pfs), [burst, pfs], "nobody is at the burst buffer");
        assert_eq!(together(&[1, 2, 3, 4], burst), [burst, burst, pfs, pfs]);
        assert_eq!(together(&[1, 2, 3], burst), [burst, burst, pfs]);
        assert_eq!(together(&[1], burst), [burst]);
    }

    /// K8, written out by hand from the paper's lines 5 to 14: up to how many users each N lets one more in.
    #[test]
    fn algorithm_1_over_all_counts_of_users() {
        let most = [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3), (8, 3), (9, 4)];
        for (running, last) in most {
            for burst in 0..=running {
                for pfs in 0..=running {
                    let expected = if burst <= last {
                        Tier::Burst
                    } else if pfs <= last {
                        Tier::Pfs
                    } else {
                        Tier::Local
                    };
                    assert_eq!(algorithm_1(running, burst, pfs), expected, "N {running}: {burst} and {pfs}");
                }
            }
        }
    }

    /// All N at once: half of them, rounded up, on the burst buffer, the rest on the PFS, nobody waits.
    #[test]
    fn all_applications_at_once_are_split_in_halves() {
        for running in 1..=9 {
            let all = view(0, (0..running).map(|job| writing(job, 32, 0, None)).collect());
            let sent = sent(&InterferenceAware, &all);
            let on_burst = running.div_ceil(2) as usize;
            assert!(sent[..on_burst].iter().all(|tier| *tier == Some(Tier::Burst)), "{sent:?}");
            assert!(sent[on_burst..].iter().all(|tier| *tier == Some(Tier::Pfs)), "{sent:?}");
        }
    }

    #[test]
    fn users_that_are_not_listed_send_it_to_node_local_memory() {
        let local = Some(Local { capacity_bytes: 100 * GB, free_bytes: 100 * GB, bytes_per_s: GB });
        let crowded = |app| {
            let foreign = |users, shared| crate::Shared { foreign_users: users, ..shared };
            view_on(0, vec![app], foreign(3, tier(4, 4)), foreign(2, tier(4, 4)), vec![])
        };
        let one = writing(1, 32, 0, None);
        let with_local = App { local, ..one.clone() };
        assert_eq!(sent(&InterferenceAware, &crowded(with_local)), [Some(Tier::Local)]);
        assert_eq!(sent(&InterferenceAware, &crowded(one)), [Some(Tier::Pfs)], "the one with fewer users");
    }

    #[test]
    fn a_full_tier_is_busy() {
        let full = |apps| view_on(0, apps, shared(GB, 0), tier(4, 4), vec![]);
        let two = vec![writing(1, 32, 0, Some(Tier::Burst)), writing(2, 32, 0, None)];
        assert_eq!(sent(&InterferenceAware, &full(two)), [Some(Tier::Pfs); 2]);
        let nowhere = view_on(0, vec![writing(1, 1, 0, None)], shared(GB, 0), shared(GB, 0), vec![]);
        assert_eq!(sent(&InterferenceAware, &nowhere), [None], "it waits for room");
    }

    /// K11: the rest of one phase, the oldest, goes to the burst buffer when that is idle.
    #[test]
    fn the_rest_of_a_phase_goes_to_the_idle_burst_buffer() {
        let on_pfs = |job, begin| writing(job, 32, begin, Some(Tier::Pfs));
        let while_used = view(9, vec![writing(1, 32, 0, Some(Tier::Burst)), on_pfs(2, 2), on_pfs(3, 1)]);
        assert_eq!(
            sent(&InterferenceAware, &while_used),
            [Some(Tier::Burst), Some(Tier::Pfs), Some(Tier::Pfs)]
        );
        let idle = view(9, vec![app(1, 32), on_pfs(2, 2), on_pfs(3, 1)]);
        assert_eq!(sent(&InterferenceAware, &idle), [Some(Tier::Pfs), Some(Tier::Burst)]);
        let local = view(9, vec![writing(1, 32, 0, Some(Tier::Local))].into_iter().map(with_local).collect());
        assert_eq!(sent(&InterferenceAware, &local), [Some(Tier::Burst)]);
    }

    fn with_local(app: App) -> App {
        let local = Some(Local { capacity_bytes: 100 * GB, free_bytes: 90 * GB, bytes_per_s: GB });
        App { local, ..app }
    }

    #[test]
    fn flushes_wait_for_an_idle_target_or_a_filling_source() {
        let lump = |tier| Dirty { job: JobId(9), tier, bytes: GB, since_ns: 0 };
        let flushes = |writer: Option<Tier>, free, tier_of_lump| {
            let apps = vec![with_local(app(9, 1)), writing(1, 32, 0, writer)];
            let state =
                view_on(0, apps, shared(100 * GB, free), shared(100 * GB, GB), vec![lump(tier_of_lump)]);
            flushed(&InterferenceAware, &state)[0]
        };
        let (burst, pfs) = (Some(Tier::Burst), Some(Tier::Pfs));
        assert_eq!(flushes(burst, 90 * GB, Tier::Burst), pfs, "nobody uses the PFS");
        assert_eq!(flushes(burst, 90 * GB, Tier::Local), pfs);
        let both_used = |free, tier_of_lump| {
            let apps = vec![with_local(app(9, 1)), writing(1, 32, 0, burst), writing(2, 32, 0, pfs)];
            let state =
                view_on(0, apps, shared(100 * GB, free), shared(100 * GB, GB), vec![lump(tier_of_lump)]);
            flushed(&InterferenceAware, &state)[0]
        };
        assert_eq!(both_used(25 * GB, Tier::Burst), None);
        assert_eq!(both_used(25 * GB - 1, Tier::Burst), pfs, "it is three quarters full");
        assert_eq!(both_used(25 * GB, Tier::Local), None);
        let quiet = view_on(0, vec![with_local(app(9, 1))], tier(4, 4), tier(4, 4), vec![lump(Tier::Local)]);
        assert_eq!(flushed(&InterferenceAware, &quiet), [burst], "both are idle: the nearer one");
    }

    #[test]
    fn with_late_news_half_of_the_applications_have_the_burst_buffer_by_rank() {
        let all = view(0, (1..=5).map(|job| writing(job, 32, 0, None)).collect());
        let (burst, pfs) = (Some(Tier::Burst), Some(Tier::Pfs));
        assert_eq!(sent(&InterferenceAware, &aged(&all, Some(6 * S))), [burst, burst, burst, pfs, pfs]);
        assert_eq!(sent(&InterferenceAware, &aged(&all, None)), [pfs; 5]);
        let moved = view(0, vec![writing(1, 32, 0, pfs)]);
        assert_eq!(sent(&InterferenceAware, &moved), [burst]);
        assert_eq!(sent(&InterferenceAware, &aged(&moved, Some(6 * S))), [pfs], "nobody is redirected");
    }
}
