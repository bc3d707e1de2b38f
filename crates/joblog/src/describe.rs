//! What is in a log: how much, by whom, when, and how good the requests are.

use crate::table::{Job, Log, Status};
use std::collections::HashMap;

/// Weeks that are told one by one: a hundred years. What is later counts for the last.
pub const WEEKS_MAX: usize = 5218;
/// Steps of a distribution, from its least value to its largest.
pub const STEPS: usize = 200;
const HOUR_S: i64 = 3600;
const DAY_S: i64 = 24 * HOUR_S;
const WEEK_S: u64 = 7 * 24 * 3600;
/// The first of January 1970 was a Thursday; weeks here begin on Mondays.
const FIRST_DAY: i64 = 3;
/// Shares of a request, of which the last is all of it.
pub const RATIO_BINS: usize = 20;
/// Powers of two up to the largest number of processors.
pub const POWERS: usize = 28;

/// How many processors the machine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capacity {
    /// The caller says so.
    Said(u32),
    /// The log's header says so.
    Header(u32),
    /// Nobody says so: the most that jobs had at a time, or one job where no starts are known.
    Peak(u32),
}

impl Capacity {
    pub fn processors(self) -> u32 {
        match self {
            Capacity::Said(count) | Capacity::Header(count) | Capacity::Peak(count) => count,
        }
    }
}

/// A distribution.
#[derive(Clone, PartialEq, Debug)]
pub struct Spread {
    pub count: u64,
    pub mean: f64,
    /// Those of 0 %, 0.5 %, ... 100 %: each the least value that so many are not above.
    pub steps: Vec<f64>,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Spread> {
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        let step = |step: usize| values[((values.len() * step).div_ceil(STEPS)).saturating_sub(1).min(last)];
        Some(Spread {
            count: values.len() as u64,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            steps: (0..=STEPS).map(step).collect(),
        })
    }

    /// The least value that this share of all is not above.
    pub fn quantile(&self, share: f64) -> f64 {
        self.steps[(share.clamp(0.0, 1.0) * STEPS as f64).round() as usize]
    }
}

/// Seven days from the log's first Monday, or a part of them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Week {
    /// Its first second within the log, since 1970 in local time; with the first job's for the first.
    pub from_s: i64,
    pub seconds: u64,
    pub jobs: u64,
    /// Processor time of the jobs that were submitted in it, of what the machine has.
    pub offered: f64,
    /// Processor time that was used in it, of what the machine has; by jobs whose start is known.
    pub used: f64,
}

/// Somebody's part of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub user: u32,
    pub jobs: u64,
    /// Processor seconds.
    pub area: u128,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Description {
    pub jobs: u64,
    pub groups: u64,
    pub accounts: u64,
    pub queues: u64,
    pub partitions: u64,
    pub executables: u64,
    /// Those with the largest areas first.
    pub users: Vec<Part>,
    /// Jobs, and their area, in the order of [`Status::ALL`].
    pub statuses: Vec<(Status, u64, u128)>,
    /// Local time since 1970: of the first submission, the last one, and the last end that is known.
    pub first_s: i64,
    pub last_s: i64,
    pub end_s: Option<i64>,
    pub capacity: Capacity,
    pub area: u128,
    /// Processor time of all jobs, of what the machine has between the first submission and the last.
    pub offered: f64,
    /// Whether any start is known.
    pub starts_known: bool,
    pub weeks: Vec<Week>,
    /// Submissions by day, from Monday on, and hour: in local time where the log says what that is, else as its times say.
    pub submissions: [[u64; 24]; 7],
    pub zone_known: bool,
    pub run_s: Option<Spread>,
    pub request_s: Option<Spread>,
    pub wait_s: Option<Spread>,
    pub processors: Option<Spread>,
    /// Processor hours.
    pub area_h: Option<Spread>,
    /// Run time of request, where there is one.
    pub ratio: Option<Spread>,
    /// Jobs by processors: one, two, up to four, up to eight...; with their area.
    pub powers: Vec<(u64, u128)>,
    /// Jobs by the share of their request that they ran for, the last for all of it.
    pub ratios: [u64; RATIO_BINS + 1],
    /// Jobs that used up their limit, and all that had one.
    pub at_limit: u64,
    pub asked: u64,
    /// The median share of the request that a user's jobs ran for: of the user in the middle.
    pub ratio_median_user: Option<f64>,
    /// Requested processor time of that used, over all jobs with a limit.
    pub asked_of_used: Option<f64>,
}

/// Describes a log that has jobs. `processors`: of the machine, where the caller knows better than the log.
pub fn describe(log: &Log, processors: Option<u32>) -> Description {
    let capacity = match (processors, log.processors) {
        (Some(count), _) => Capacity::Said(count.max(1)),
        (None, Some(count)) => Capacity::Header(count.max(1)),
        (None, None) => Capacity::Peak(peak(&log.jobs)),
    };
    let jobs = || log.jobs.iter();
    let asked = || jobs().filter(|job| job.asked);
    let local = log.header.unix_start_s.unwrap_or(0) as i64 + log.header.local_offset_s().unwrap_or(0);
    let at = |seconds: u64| local + seconds as i64;
    let first_s = jobs().map(|job| job.submit_s).min().unwrap_or(0);
    let last_s = jobs().map(|job| job.submit_s).max().unwrap_or(0);
    let area: u128 = jobs().map(Job::area).sum();
    let has = (last_s - first_s).max(1) as f64 * f64::from(capacity.processors());
    let ratio = |job: &Job| job.ran_s() as f64 / job.request_s.max(1) as f64;
    let requested: u128 = asked().map(|job| u128::from(job.request_s) * u128::from(job.processors)).sum();
    let used: u128 = asked().map(Job::area).sum();
    let mut ratios = [0; RATIO_BINS + 1];
    asked().for_each(|job| ratios[((ratio(job) * RATIO_BINS as f64) as usize).min(RATIO_BINS)] += 1);
    let mut powers = vec![(0, 0); POWERS];
    for job in jobs() {
        let power = job.processors.max(1).next_power_of_two().trailing_zeros() as usize;
        let (count, sum) = &mut powers[power.min(POWERS - 1)];
        *count += 1;
        *sum += job.area();
    }
    powers.truncate(powers.iter().rposition(|(count, _)| *count > 0).map_or(0, |last| last + 1));
    Description {
        jobs: log.jobs.len() as u64,
        groups: distinct(jobs().map(|job| job.group)),
        accounts: distinct(jobs().map(|job| job.account)),
        queues: distinct(jobs().map(|job| job.queue)),
        partitions: distinct(jobs().map(|job| job.partition)),
        executables: distinct(jobs().map(|job| job.executable)),
        users: users(&log.jobs),
        statuses: Status::ALL
            .map(|status| {
                let of = || jobs().filter(|job| job.status == status);
                (status, of().count() as u64, of().map(Job::area).sum())
            })
            .into(),
        first_s: at(first_s),
        last_s: at(last_s),
        end_s: jobs().filter_map(Job::end_s).max().map(at),
        capacity,
        area,
        offered: area as f64 / has,
        starts_known: jobs().any(|job| job.waited_s.is_some()),
        weeks: weeks(&log.jobs, local, (first_s, last_s), capacity.processors()),
        submissions: submissions(&log.jobs, local),
        zone_known: log.header.local_offset_s().is_some(),
        run_s: Spread::of(jobs().map(|job| job.ran_s() as f64).collect()),
        request_s: Spread::of(asked().map(|job| job.request_s as f64).collect()),
        wait_s: Spread::of(jobs().filter_map(|job| job.waited_s).map(|wait| wait as f64).collect()),
        processors: Spread::of(jobs().map(|job| f64::from(job.processors)).collect()),
        area_h: Spread::of(jobs().map(|job| job.area() as f64 / HOUR_S as f64).collect()),
        ratio: Spread::of(asked().map(ratio).collect()),
        powers,
        ratios,
        at_limit: asked().filter(|job| job.reached_limit()).count() as u64,
        asked: asked().count() as u64,
        ratio_median_user: median_user(&log.jobs, ratio),
        asked_of_used: (used > 0).then(|| requested as f64 / used as f64),
    }
}

fn distinct(values: impl Iterator<Item = Option<u32>>) -> u64 {
    let mut values: Vec<u32> = values.flatten().collect();
    values.sort_unstable();
    values.dedup();
    values.len() as u64
}

fn users(jobs: &[Job]) -> Vec<Part> {
    let mut parts: HashMap<u32, Part> = HashMap::new();
    for job in jobs {
        let Some(user) = job.user else { continue };
        let part = parts.entry(user).or_insert(Part { user, jobs: 0, area: 0 });
        part.jobs += 1;
        part.area += job.area();
    }
    let mut parts: Vec<Part> = parts.into_values().collect();
    parts.sort_by_key(|part| (std::cmp::Reverse(part.area), part.user));
    parts
}

/// The least value that half of them are not above.
fn median(values: &mut [f64]) -> f64 {
    let at = values.len().div_ceil(2).saturating_sub(1);
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

fn median_user(jobs: &[Job], ratio: impl Fn(&Job) -> f64) -> Option<f64> {
    let mut of: HashMap<u32, Vec<f64>> = HashMap::new();
    for job in jobs.iter().filter(|job| job.asked) {
        of.entry(job.user?).or_default().push(ratio(job));
    }
    let mut medians: Vec<f64> = of.into_values().map(|mut ratios| median(&mut ratios)).collect();
    (!medians.is_empty()).then(|| median(&mut medians))
}

/// The most processors that jobs had at a time.
fn peak(jobs: &[Job]) -> u32 {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for job in jobs {
        let (Some(start), Some(end)) = (job.start_s(), job.end_s()) else { continue };
        changes.extend([(start, i64::from(job.processors)), (end, -i64::from(job.processors))]);
    }
    // Those that end at a second make room for those that start then.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    let one = jobs.iter().map(|job| job.processors).max().unwrap_or(1);
    u32::try_from(most).unwrap_or(u32::MAX).max(one).max(1)
}

fn submissions(jobs: &[Job], local: i64) -> [[u64; 24]; 7] {
    let mut counts = [[0; 24]; 7];
    for job in jobs {
        let at = local + job.submit_s as i64;
        let (day, hour) = ((at.div_euclid(DAY_S) + FIRST_DAY).rem_euclid(7), at.rem_euclid(DAY_S) / HOUR_S);
        counts[day as usize][hour as usize] += 1;
    }
    counts
}

/// From the first submission to the last.
fn weeks(jobs: &[Job], local: i64, (first_s, last_s): (u64, u64), processors: u32) -> Vec<Week> {
    let first = local + first_s as i64;
    let day = first.div_euclid(DAY_S) + FIRST_DAY;
    let monday = first - day.rem_euclid(7) * DAY_S - first.rem_euclid(DAY_S);
    let of = |at: i64| ((at - monday).max(0) as u64 / WEEK_S) as usize;
    let count = (of(local + last_s as i64) + 1).min(WEEKS_MAX);
    let (begin, end) = (first, local + last_s as i64 + 1);
    let mut weeks: Vec<Week> = (0..count)
        .map(|number| {
            let from_s = (monday + (number as u64 * WEEK_S) as i64).max(begin);
            let next = if number + 1 == count { end } else { monday + ((number as u64 + 1) * WEEK_S) as i64 };
            Week { from_s, seconds: (next - from_s).max(1) as u64, ..Week::default() }
        })
        .collect();
    // Processor seconds; whole weeks of long jobs as changes from one week to the next.
    let mut used = vec![0.0; count];
    let mut change = vec![0.0; count + 1];
    for job in jobs {
        let at = of(local + job.submit_s as i64).min(count - 1);
        weeks[at].jobs += 1;
        weeks[at].offered += job.area() as f64;
        let (Some(start), Some(over)) = (job.start_s(), job.end_s()) else { continue };
        let (start, over) = (local + start as i64, (local + over as i64).min(end));
        if start >= over {
            continue;
        }
        let (from, to) = (of(start).min(count - 1), of(over - 1).min(count - 1));
        let busy = f64::from(job.processors);
        if from == to {
            used[from] += busy * (over - start) as f64;
        } else {
            used[from] += busy * (weeks[from + 1].from_s - start) as f64;
            used[to] += busy * (over - weeks[to].from_s) as f64;
            change[from + 1] += busy;
            change[to] -= busy;
        }
    }
    let mut whole = 0.0;
    for (number, week) in weeks.iter_mut().enumerate() {
        whole += change[number];
        let has = week.seconds as f64 * f64::from(processors);
        week.offered /= has;
        week.used = (used[number] + whole * week.seconds as f64) / has;
    }
    weeks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;
    use proptest::prelude::*;

    const DAY: u64 = 86_400;

    fn job(submit_s: u64, wait: u64, run_s: u64, processors: u32) -> Job {
        Job {
            submit_s,
            waited_s: Some(wait),
            run_s,
            request_s: run_s,
            asked: true,
            processors,
            ..Job::default()
        }
    }

    fn log(jobs: Vec<Job>) -> Log {
        // A Wednesday: the 7th of January 1970, at 00:00.
        let header = Header { unix_start_s: Some(6 * DAY), ..Header::default() };
        Log { header, jobs, processors: Some(10), ..Log::default() }
    }

    #[test]
    fn weeks_begin_on_mondays() {
        // Submitted on Wednesday; runs from Saturday over a whole week to the Tuesday after it.
        let long = job(0, 3 * DAY, 10 * DAY, 5);
        let late = job(13 * DAY, 0, 100, 1);
        let told = describe(&log(vec![long, late]), None);
        let days: Vec<u64> = told.weeks.iter().map(|week| week.seconds).collect();
        assert_eq!(days, [5 * DAY, 7 * DAY, DAY + 1]);
        let used: Vec<f64> = told.weeks.iter().map(|week| week.used * week.seconds as f64 * 10.0).collect();
        let wanted = [2 * DAY * 5, 7 * DAY * 5, DAY * 5 + 1];
        assert!(
            used.iter().zip(wanted).all(|(used, wanted)| (used - wanted as f64).abs() < 1e-3),
            "{used:?}"
        );
        assert_eq!(told.weeks.iter().map(|week| week.jobs).collect::<Vec<_>>(), [1, 0, 1]);
        // Ten days of half the machine, submitted in a week of five.
        assert!((told.weeks[0].offered - 1.0).abs() < 1e-12, "{:?}", told.weeks[0]);
        assert_eq!((told.submissions[2][0], told.submissions[1][0]), (1, 1));
        assert_eq!((told.first_s, told.end_s), (6 * DAY as i64, Some(19 * DAY as i64 + 100)));
    }

    #[test]
    fn users_requests_and_limits() {
        let of = |user: u32, run_s: u64, request_s: u64| Job {
            user: Some(user),
            run_s,
            request_s,
            processors: 3,
            ..job(user.into(), 0, 1, 1)
        };
        let jobs = vec![of(1, 10, 100), of(1, 30, 100), of(1, 20, 100), of(2, 100, 100), of(3, 50, 100)];
        let told = describe(&log(jobs), Some(12));
        assert_eq!(told.capacity, Capacity::Said(12));
        assert_eq!((told.asked, told.at_limit, told.ratio_median_user), (5, 1, Some(0.5)));
        assert_eq!(told.users.iter().map(|part| part.user).collect::<Vec<_>>(), [2, 1, 3]);
        assert!((told.asked_of_used.unwrap() - 500.0 / 210.0).abs() < 1e-12);
        assert_eq!((told.ratios[20], told.ratios[2], told.ratios[10]), (1, 1, 1));
        assert_eq!(told.powers, [(0, 0), (0, 0), (5, 630)]);
        let run = told.run_s.unwrap();
        assert_eq!(
            (run.quantile(0.0), run.quantile(0.5), run.quantile(1.0), run.mean),
            (10.0, 30.0, 100.0, 42.0)
        );
        assert_eq!((run.quantile(0.2), run.quantile(0.205)), (10.0, 20.0));
    }

    #[test]
    fn without_a_header_the_peak_is_the_machine() {
        let jobs = vec![job(0, 0, 100, 4), job(50, 0, 100, 3), job(90, 10, 10, 4)];
        let told = describe(&Log { processors: None, ..log(jobs) }, None);
        assert_eq!(told.capacity, Capacity::Peak(7));
        let unknown = Job { waited_s: None, ..job(0, 0, 5, 9) };
        let told = describe(&Log { processors: None, ..log(vec![unknown, unknown]) }, None);
        assert_eq!((told.capacity, told.starts_known), (Capacity::Peak(9), false));
    }

    proptest! {
        /// All that ran before the last submission is in some week, whatever the times.
        #[test]
        fn nothing_used_is_lost(
            spec in prop::collection::vec((0u64..100 * DAY, 0u64..9 * DAY, 1u64..60 * DAY, 1u32..9), 1..30),
            zone in -50_000i32..50_000,
        ) {
            let mut log = log(spec.iter().map(|(submit, wait, run, processors)| job(*submit, *wait, *run, *processors)).collect());
            log.header.time_zone_s = Some(zone);
            let told = describe(&log, None);
            let last = log.jobs.iter().map(|job| job.submit_s).max().unwrap() + 1;
            let busy = |job: &Job| {
                let (start, end) = (job.start_s().unwrap(), job.end_s().unwrap().min(last));
                end.saturating_sub(start) * u64::from(job.processors)
            };
            let wanted: u64 = log.jobs.iter().map(busy).sum();
            let used: f64 = told.weeks.iter().map(|week| week.used * week.seconds as f64 * 10.0).sum();
            prop_assert!((used - wanted as f64).abs() <= 1e-9 * wanted as f64 + 1e-3, "{used} {wanted}");
            prop_assert_eq!(told.submissions.iter().flatten().sum::<u64>(), told.jobs);
            prop_assert_eq!(told.weeks.iter().map(|week| week.jobs).sum::<u64>(), told.jobs);
            prop_assert_eq!(told.ratios.iter().sum::<u64>(), told.asked);
        }
    }
}
