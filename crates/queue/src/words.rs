//! Times, limits, dependencies and array tasks as Slurm writes them.

use crate::rows::{Id, JOBS_MAX, SECONDS_MAX, cut};
use std::time::Duration;

/// Those that stand for no value.
const NONE: [&str; 7] = ["", "N/A", "n/a", "(null)", "Unknown", "None", "NONE"];

/// Whether Slurm writes that where there is nothing.
pub fn is_none(word: &str) -> bool {
    NONE.contains(&word)
}

/// `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS`, `DAYS-HOURS:MINUTES` or `DAYS-HOURS:MINUTES:SECONDS`, as
/// sbatch(1) reads and squeue(1) prints them; none for words such as `UNLIMITED`.
pub fn wall_time(text: &str) -> Option<Duration> {
    let number = |part: &str| {
        let digits = part.bytes().all(|b| b.is_ascii_digit());
        part.parse::<u64>().ok().filter(|_| digits)
    };
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts: Vec<u64> = rest.split(':').map(number).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = match (days, parts.as_slice()) {
        (None, [minutes]) => [0, *minutes, 0],
        (None, [minutes, seconds]) => [0, *minutes, *seconds],
        (Some(_), [hours]) => [*hours, 0, 0],
        (Some(_), [hours, minutes]) => [*hours, *minutes, 0],
        (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
        _ => return None,
    };
    let days = days.unwrap_or(0).checked_mul(86_400)?;
    let of_day = hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)?;
    Some(Duration::from_secs(days.checked_add(of_day)?))
}

/// A limit; none for one without an end.
pub fn limit(text: &str) -> Result<Option<u64>, String> {
    if is_none(text) || ["UNLIMITED", "INFINITE", "NOT_SET", "Partition_Limit"].contains(&text) {
        return Ok(None);
    }
    let seconds = wall_time(text).map(|time| time.as_secs()).filter(|seconds| *seconds <= SECONDS_MAX);
    seconds.map(Some).ok_or_else(|| format!("'{}' is no time limit", cut(text)))
}

/// A moment: `2026-11-23T22:30:29` on a clock without a zone, or seconds since 1970, perhaps with a zone as `date +%s%z` writes it:
/// then that comes too, in seconds ahead of UTC.
pub fn moment(text: &str) -> Result<Option<(u64, Option<i64>)>, String> {
    if is_none(text) {
        return Ok(None);
    }
    let wrong = || format!("'{}' is no time", cut(text));
    if !text.is_ascii() {
        return Err(wrong());
    }
    let seconds = if text.contains('T') {
        (since_1970(text).ok_or_else(wrong)?, None)
    } else {
        let (digits, zone) = text.split_at(text.find(['+', '-']).unwrap_or(text.len()));
        let zone = if zone.is_empty() { None } else { Some(zone_of(zone).ok_or_else(wrong)?) };
        let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let seconds = digits.parse::<u64>().ok().filter(|_| all_digits).ok_or_else(wrong)?;
        (seconds, zone)
    };
    Some(seconds).filter(|(seconds, _)| *seconds <= SECONDS_MAX).map(Some).ok_or_else(wrong)
}

/// `+0130` in seconds.
fn zone_of(text: &str) -> Option<i64> {
    let (sign, digits) = text.split_at(1);
    let number: i64 =
        digits.parse().ok().filter(|_| digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()))?;
    let seconds = number / 100 * 3600 + number % 100 * 60;
    Some(if sign == "-" { -seconds } else { seconds })
}

fn since_1970(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let numbers = |text: &str, mark: char| -> Option<Vec<u64>> {
        let number = |part: &str| {
            part.parse().ok().filter(|_| part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit()))
        };
        text.split(mark).map(number).collect()
    };
    let ([year, month, day], [hour, minute, second]) = (&numbers(date, '-')?[..], &numbers(time, ':')?[..])
    else {
        return None;
    };
    let fits = (1970..=4000).contains(year) && (1..=12).contains(month) && (1..=31).contains(day);
    if !fits || *hour > 23 || *minute > 59 || *second > 60 {
        return None;
    }
    Some(days_since_1970(*year, *month, *day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Of the Gregorian calendar; years begin with March, so that leap days are at their ends.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year / 4 - year / 100 + year / 400;
    year * 365 + leaps + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Year, month, day, hour, minute, second of a moment.
pub fn civil(seconds: u64) -> [u64; 6] {
    let (day, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400, month);
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    [year, month, day, of_day / 3600, of_day / 60 % 60, of_day % 60]
}

/// For whose end a job waits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct After {
    pub ends: Vec<Ends>,
    /// Something else that it waits for, in Slurm's words: nobody can tell when that is.
    pub strange: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// A job, or all tasks of an array.
    Of(Id),
    /// Of an array, the task with the number that the waiting task has in its own.
    SameTask(u64),
    /// All jobs of the user with the same name that were submitted before.
    Namesakes,
}

/// `afterok:2(unfulfilled),afterany:5_7:9,singleton`.
pub fn after(text: &str) -> After {
    let mut after = After::default();
    if is_none(text) {
        return after;
    }
    let strange = |word: &str| Some(format!("dependency '{}'", cut(word)));
    // Any one of several may do.
    if text.contains('?') {
        return After { strange: strange(text), ..after };
    }
    for word in text.split(',') {
        let (word, told) = word.split_once('(').unwrap_or((word, ""));
        if told.starts_with("fulfilled") {
            continue;
        }
        let (kind, jobs) = word.split_once(':').unwrap_or((word, ""));
        let mut ids = jobs.split(':').map(|job| id(job.trim_end_matches("_*")));
        let known = match kind {
            "singleton" if jobs.is_empty() => {
                after.ends.push(Ends::Namesakes);
                true
            }
            "afterok" | "afterany" => ids.all(|id| {
                id.is_some_and(|id| {
                    after.ends.push(Ends::Of(id));
                    true
                })
            }),
            "aftercorr" => ids.all(|id| {
                id.is_some_and(|id| {
                    after.ends.push(Ends::SameTask(id.job));
                    true
                })
            }),
            _ => false,
        };
        if !known || told.starts_with("failed") {
            after.strange = strange(word);
        }
    }
    after
}

/// `5` or `5_7`.
pub fn id(text: &str) -> Option<Id> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (job, task) = text.split_once('_').map_or((text, None), |(job, task)| (job, Some(task)));
    // Parts of a heterogeneous job, `5+1`, are jobs.
    let job = job.split_once('+').map_or(job, |(job, _)| job);
    let task = match task {
        Some(task) => Some(task.parse().ok().filter(|_| digits(task))?),
        None => None,
    };
    Some(Id { job: job.parse().ok().filter(|_| digits(job))?, task })
}

/// Tasks of an array that wait together: `7,9-13:2%2`, and how many of them may run at once. What stands behind `...`, which squeue
/// leaves out, is not there.
pub fn tasks(text: &str) -> Result<(Vec<u32>, Option<u32>), String> {
    let wrong = || format!("'{}' are no tasks of an array", cut(text));
    let (list, throttle) = text.split_once('%').map_or((text, None), |(list, most)| (list, Some(most)));
    let throttle = throttle.map(|most| most.parse::<u32>().map_err(|_| wrong())).transpose()?;
    let mut tasks = Vec::new();
    for range in list.trim_end_matches("...").split(',').filter(|range| !range.is_empty()) {
        let (range, step) = range.split_once(':').unwrap_or((range, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (first, last, step) = (number(first)?, number(last)?, number(step)?.max(1));
        if last < first || tasks.len() + ((last - first) / step) as usize >= JOBS_MAX {
            return Err(format!("{}, or more than {JOBS_MAX}", wrong()));
        }
        tasks.extend((first..=last).step_by(step as usize));
    }
    Ok((tasks, throttle.filter(|most| *most > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_as_slurm_writes_them() {
        for (text, seconds) in [
            ("10", 600),
            ("10:00", 600),
            ("90:30", 5430),
            ("1:02:03", 3723),
            ("2-0", 172_800),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
            ("2-00:00:01", 172_801),
            ("0:00", 0),
        ] {
            assert_eq!(wall_time(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for none in
            ["UNLIMITED", "NOT_SET", "", "1:2:3:4", "x-1:00", "1-", "-1", "+1", "99999999999999999999:00"]
        {
            assert_eq!(wall_time(none), None, "{none}");
        }
        assert_eq!((limit("UNLIMITED"), limit("1:00:00")), (Ok(None), Ok(Some(3600))));
        assert!(limit("soon").is_err());
    }

    #[test]
    fn moments_by_hand() {
        assert_eq!(moment("2026-11-23T22:30:29"), Ok(Some((1_795_473_029, None))));
        assert_eq!(moment("1795473029"), Ok(Some((1_795_473_029, None))));
        assert_eq!(moment("1795473029+0130"), Ok(Some((1_795_473_029, Some(5400)))));
        assert_eq!(moment("1795473029-0500"), Ok(Some((1_795_473_029, Some(-18_000)))));
        assert_eq!(moment("2000-02-29T00:00:00"), Ok(Some((951_782_400, None))));
        assert_eq!(moment("N/A"), Ok(None));
        for bad in
            ["now", "2026-13-01T00:00:00", "2026-11-23", "12+x", "99999999999", "2026-11-23T22:30", "+0100"]
        {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dependencies_and_tasks_by_hand() {
        let of = |job, task| Ends::Of(Id { job, task });
        let got = after("afterok:2(unfulfilled),afterany:5_7:9,aftercorr:4_*(unfulfilled),singleton");
        assert_eq!(got.ends, [of(2, None), of(5, Some(7)), of(9, None), Ends::SameTask(4), Ends::Namesakes]);
        assert_eq!(
            (got.strange, after("(null)"), after("afterok:7(fulfilled)")),
            (None, After::default(), After::default())
        );
        for strange in [
            "after:3+5(unfulfilled)",
            "afterok:1?afterok:2",
            "afternotok:9",
            "afterok:x",
            "afterok:3(failed)",
        ] {
            assert!(after(strange).strange.is_some(), "{strange}");
        }
        assert_eq!(tasks("7,9%2"), Ok((vec![7, 9], Some(2))));
        assert_eq!(tasks("1-7:3,20-21"), Ok((vec![1, 4, 7, 20, 21], None)));
        assert_eq!(tasks("1-3,..."), Ok((vec![1, 2, 3], None)));
        assert!(tasks("3-1").is_err() && tasks("0-4000000000").is_err() && tasks("a").is_err());
        assert_eq!(id("12+3"), Some(Id { job: 12, task: None }));
        assert_eq!((id("5_x"), id(""), id("_1")), (None, None, None));
    }

    proptest! {
        #[test]
        fn moments_are_read_as_they_are_written(seconds in 0u64..60_000_000_000) {
            let [year, month, day, hour, minute, second] = civil(seconds);
            let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
            prop_assert_eq!(moment(&text), Ok(Some((seconds, None))));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}", like in "[a-z0-9_:,+%()?*.-]{0,30}") {
            for text in [text, like] {
                let _ = (moment(&text), limit(&text), after(&text), id(&text), tasks(&text), wall_time(&text));
            }
        }
    }
}
