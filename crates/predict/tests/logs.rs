//! What holds for every predictor on any log: nothing of the future is known, numbers are sane, and the same log gives the
//! same predictions. And what the default is for: users who repeat themselves are known after a few jobs, quantiles hold.

use proptest::prelude::*;
use tidepool_predict::catalog::{ALL, Entry};
use tidepool_predict::judge::{Judged, Measures};
use tidepool_predict::replay::{Past, replay, replay_to_the_end};
use tidepool_predict::{Job, LEVELS, Prediction};

/// One of a few users, processors and requests, so that templates meet; some marks are not known.
fn past() -> impl Strategy<Value = Past> {
    let marks = (0u32..4, 0u32..3, prop::option::of(0u32..3), 1u32..4, prop::option::of(1u64..5));
    (marks, 0u64..400, 0u64..2000, 1u64..3000).prop_map(|(marks, gap, wait, run)| {
        let (user, group, executable, processors, request) = marks;
        let user = (user > 0).then_some(user);
        let request_s = request.map(|request| request * 600);
        let job = Job {
            submit_s: gap,
            request_s,
            processors,
            user,
            group: Some(group),
            executable,
            ..Job::default()
        };
        Past { job, start_s: wait, run_s: run as f64 }
    })
}

/// Gaps and waits become times.
fn log() -> impl Strategy<Value = Vec<Past>> {
    prop::collection::vec(past(), 2..120).prop_map(|mut log| {
        let mut now = 1_000_000;
        for past in &mut log {
            now += past.job.submit_s;
            past.job.submit_s = now;
            past.start_s += now;
        }
        log
    })
}

fn predictions(entry: &Entry, log: &[Past]) -> Vec<Prediction> {
    replay(log, &mut *entry.make())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The proof against leaks: all that lies beyond a moment is changed: run times of jobs that have not ended by then, starts
    /// of those that still wait, and all later jobs. What was said up to then stays what it was.
    #[test]
    fn another_future_changes_nothing_that_was_said_before(log in log(), cut in any::<prop::sample::Index>(), seed in 1u64..1000) {
        let cut = cut.index(log.len());
        let now = log[cut].job.submit_s;
        let mut other = log.clone();
        for (place, past) in other.iter_mut().enumerate() {
            let odd = 1 + seed * (place as u64 + 7) % 5000;
            if place > cut {
                let job = Job { submit_s: now + odd, user: Some(odd as u32 % 3), processors: 2, ..past.job };
                *past = Past { job, start_s: now + 2 * odd, run_s: 77.0 };
            } else if past.start_s > now {
                *past = Past { start_s: now + odd, run_s: odd as f64 / 2.0 + 1.0, ..*past };
            } else if past.start_s as f64 + past.run_s > now as f64 {
                past.run_s = (now - past.start_s + odd) as f64;
            }
        }
        other[cut + 1..].sort_by_key(|past| past.job.submit_s);
        for entry in ALL {
            let (first, second) = (predictions(entry, &log), predictions(entry, &other));
            prop_assert_eq!(&first[..=cut], &second[..=cut], "{}", entry.name);
        }
    }

    #[test]
    fn predictions_are_sane_and_the_same_each_time(log in log()) {
        for entry in ALL {
            let all = predictions(entry, &log);
            prop_assert_eq!(&all, &predictions(entry, &log), "{}", entry.name);
            for (past, said) in log.iter().zip(all) {
                let numbers = [said.run_s, said.within_s[0], said.within_s[1]];
                prop_assert!(numbers.iter().all(|n| n.is_finite() && *n >= 0.0), "{}: {said:?}", entry.name);
                let most = past.job.request_s.map_or(f64::MAX, |request| request as f64);
                prop_assert!(said.run_s <= most, "{}: {said:?} of {most}", entry.name);
            }
        }
    }

    /// A job that is submitted when all others are over hears the same from one that was told them to the end, from a copy of
    /// it, and in a replay of all. What the copy learns stays with it.
    #[test]
    fn told_to_the_end_and_copied_is_what_a_longer_log_says(log in log()) {
        let over = log.iter().map(|past| past.start_s + past.run_s as u64).max().unwrap_or(0);
        let first = log[0].job;
        let last = Past { job: Job { submit_s: over, ..first }, start_s: over, run_s: 1.0 };
        let longer: Vec<Past> = log.iter().copied().chain([last]).collect();
        for entry in ALL {
            let mut told = entry.make_copied();
            prop_assert_eq!(replay_to_the_end(&log, &mut *told), predictions(entry, &log));
            let mut copy = told.copied();
            let asked = Job { id: log.len() as u64, ..last.job };
            let wanted = predictions(entry, &longer)[log.len()];
            prop_assert_eq!(copy.submitted(&asked), wanted, "{}", entry.name);
            copy.ended(asked.id, 1.0);
            prop_assert_eq!(told.submitted(&asked), wanted, "{}", entry.name);
        }
    }

    /// Any calls in any order: ends of jobs that never were, of the same job twice, starts after ends.
    #[test]
    fn calls_in_any_order_are_survived(log in log(), calls in prop::collection::vec((0u8..4, 0u64..8, 0u64..9999), 0..200)) {
        for entry in ALL {
            let mut predictor = entry.make();
            for (call, id, seconds) in &calls {
                match call {
                    0 => {
                        let said = predictor.submitted(&Job { id: *id, ..log[*id as usize % log.len()].job });
                        prop_assert!(said.run_s.is_finite(), "{}", entry.name);
                    }
                    1 => predictor.started(*id, 1_000_000 + seconds),
                    2 => predictor.ended(*id, *seconds as f64),
                    _ => predictor.cancelled(*id),
                }
            }
        }
    }
}

/// A number from 0 to below 1 (Knuth's multiplier; the high bits).
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / (1u64 << 31) as f64
}

/// Users who run two kinds of jobs, told apart by their processors, with a scatter that grows fivefold after half of the log.
fn two_kinds(jobs: usize) -> Vec<Past> {
    let (mut state, mut now) = (9, 0);
    let mut past = |place: usize| {
        now += (random(&mut state) * 600.0) as u64;
        let (user, big) = ((random(&mut state) * 8.0) as u32, random(&mut state) < 0.4);
        let scatter = if place < jobs / 2 { 0.1 } else { 0.5 };
        let typical = f64::from(user + 1) * if big { 9000.0 } else { 300.0 };
        let run_s = (typical * (1.0 + scatter * (random(&mut state) - 0.5))).ceil();
        let processors = if big { 64 } else { 1 };
        let (user, request_s) = (Some(user), Some(86_400 * 2));
        let job = Job { submit_s: now, request_s, processors, user, ..Job::default() };
        Past { job, start_s: now, run_s }
    };
    (0..jobs).map(&mut past).collect()
}

fn measures(name: &str, log: &[Past], from: usize) -> Measures {
    let said = predictions(Entry::named(name).expect("it is in the catalog"), log);
    let judged = |(past, prediction): (&Past, &Prediction)| Judged {
        user: past.job.user,
        run_s: past.run_s,
        prediction: *prediction,
    };
    Measures::of(&log.iter().zip(&said).map(judged).skip(from).collect::<Vec<_>>())
}

#[test]
fn the_default_learns_who_runs_what_and_its_quantiles_follow_a_change() {
    let log = two_kinds(6000);
    let [default, last, request] = ["default", "last", "request"].map(|name| measures(name, &log, 1000));
    let typical = |measures: &Measures| measures.at_user_s(0.5).unwrap();
    // A half of the runs are within a quarter of the scatter: nobody can do better than that.
    let best = measures("same", &log, 1000);
    assert!(typical(&default) < 1.3 * typical(&best), "{default:?} {best:?}");
    assert!(typical(&default) < 0.2 * typical(&last) && typical(&default) < 0.01 * typical(&request));
    for (level, wanted) in LEVELS.into_iter().enumerate() {
        let covered = default.covered[level];
        assert!((covered - wanted).abs() < 0.02, "{covered}");
        for share in default.covered_tenths[level] {
            assert!((share - wanted).abs() < 0.05 + 2.0 * (0.1f64 * 0.9 / 500.0).sqrt(), "{share}");
        }
    }
}
