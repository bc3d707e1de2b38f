//! What is submitted later: nobody knows it, but so much is submitted as was in other weeks. Stretches of the past, from the same hour of
//! the week on, are drawn as a whole: campaigns, nights and weekends stay what they are.

use tidepool_jobsim::engine::Task;
use tidepool_jobsim::forecast::{Scene, Slot};
use tidepool_jobsim::random::Random;

pub const WEEK_S: u64 = 7 * 86_400;
/// Of the past so many weeks count: machines and users change.
pub const WEEKS_MAX: u64 = 26;
/// Later than that nobody is drawn.
pub const AHEAD_MAX_S: u64 = 4 * WEEK_S;
/// At least so far ahead others are drawn.
const AHEAD_MIN_S: u64 = 6 * 3600;
/// In a draw; of those beyond, none.
pub const JOBS_MAX: usize = 20_000;

/// A submission of the past, as far as it counts here.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Submission {
    pub submit_s: u64,
    pub run_s: u64,
    pub limit_s: Option<u64>,
    pub processors: u32,
    /// None, or one that the cluster does not have, is the whole of it.
    pub partition: Option<String>,
}

/// Until when others have to be drawn: twice as far as the plan goes.
pub fn until_s(scene: &Scene, planned: &[Option<Slot>]) -> u64 {
    let last_s = planned.iter().flatten().map(|slot| slot.start_s).max().unwrap_or(scene.now_s);
    last_s.saturating_add(last_s.saturating_sub(scene.now_s)).saturating_add(AHEAD_MIN_S)
}

/// The submissions of a stretch of the past, as if it began now; those until `until_s`. `past` is in the order of time. None where the
/// past is too short.
pub fn draw(past: &[Task], now_s: u64, until_s: u64, seed: u64, number: u64) -> Vec<Task> {
    let (Some(first), Some(last)) = (past.first(), past.last()) else { return Vec::new() };
    let ahead_s = until_s.saturating_sub(now_s).min(AHEAD_MAX_S);
    // Weeks back, so that the stretch is all within the past.
    let known_s = last.job.submit_s.min(now_s);
    let least = (now_s + ahead_s - known_s).div_ceil(WEEK_S).max(1);
    let most = now_s.saturating_sub(first.job.submit_s) / WEEK_S;
    if most < least {
        return Vec::new();
    }
    let weeks = least + Random::of(seed, number).below((most - least + 1).min(WEEKS_MAX));
    let shift_s = weeks * WEEK_S;
    let begin = past.partition_point(|task| task.job.submit_s + shift_s <= now_s);
    let moved = |task: &Task| {
        let mut task = *task;
        task.job.submit_s += shift_s;
        task
    };
    past[begin..]
        .iter()
        .map(moved)
        .take_while(|task| task.job.submit_s <= now_s + ahead_s)
        .take(JOBS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_joblog::Job;

    fn task(number: u64, submit_s: u64) -> Task {
        Task { job: Job { number, submit_s, ..Job::default() }, nodes: 1, partition: 0, rank: i64::MAX }
    }

    /// A job each hour for ten weeks: of any draw those of the same hours of the week come, at their distances.
    #[test]
    fn stretches_begin_at_the_same_hour_of_the_week() {
        let past: Vec<Task> = (0..10 * 168).map(|hour| task(hour, hour * 3600 + 60)).collect();
        let now_s = 10 * WEEK_S + 5 * 3600;
        let mut begins = std::collections::BTreeSet::new();
        for number in 0..60 {
            let drawn = draw(&past, now_s, now_s + 36_000, 1, number);
            let times: Vec<u64> = drawn.iter().map(|task| task.job.submit_s - now_s).collect();
            assert_eq!(times, (0..10).map(|hour| hour * 3600 + 60).collect::<Vec<_>>());
            assert_eq!(drawn[0].job.number % 168, 5);
            begins.insert(drawn[0].job.number / 168);
        }
        assert_eq!(begins, (0..10).collect());
    }

    #[test]
    fn nothing_is_drawn_of_too_short_a_past_and_bounds_hold() {
        let past: Vec<Task> = (0..50_000).map(|second| task(second, second)).collect();
        assert_eq!(draw(&past, 50_000, 60_000, 1, 1), []);
        assert_eq!(draw(&[], 50_000, 60_000, 1, 1), []);
        let now_s = WEEK_S + 10;
        assert_eq!(draw(&past, now_s, now_s, 1, 1), []);
        let drawn = draw(&past, now_s, now_s + 40_000, 1, 1);
        assert_eq!((drawn.len(), drawn[0].job.submit_s), (JOBS_MAX, now_s + 1));
        // Of a log that ended long ago the same hours of its weeks count.
        let now_s = 500 * WEEK_S;
        let drawn = draw(&past, now_s, now_s + 1000, 1, 1);
        assert_eq!((drawn.len(), drawn[0].job.number), (1000, 1));
    }
}
