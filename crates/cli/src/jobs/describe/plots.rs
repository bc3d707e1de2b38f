//! The pictures of a log.

use super::calendar::{DAY_S, date, first_of, shown};
use super::frame::{BLUE, BROWN, Frame, GREEN, GREY, HEIGHT, LEFT, RED, RIGHT, TOP, WIDTH};
use super::tell::{span, user_name};
use std::fmt::Write;
use tidepool_joblog::Log;
use tidepool_joblog::describe::{Description, RATIO_BINS, STEPS, Spread};

/// Dates below a picture, at the most.
const DATES_MAX: i64 = 9;
/// The longest columns of offered load end there; what is above is told in words.
const LOAD_SHOWN_MAX: f64 = 2.0;
/// How wide a letter of a label is, with some room.
const LETTER: f64 = 7.0;
pub const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// A logarithmic axis of times.
const TIMES: [(f64, &str); 9] = [
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (21_600.0, "6 h"),
    (86_400.0, "1 d"),
    (604_800.0, "7 d"),
    (2_592_000.0, "30 d"),
];

/// A file's name without its ending, and the picture.
pub fn all(log: &Log, told: &Description) -> Vec<(&'static str, String)> {
    let mut all = vec![("load", load(told)), ("submissions", submissions(told)), ("times", times(told))];
    all.push(("processors", processors(told)));
    if told.asked > 0 {
        all.push(("requests", requests(told)));
    }
    if !told.users.is_empty() {
        all.push(("users", users(log, told)));
    }
    all
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Offered and used by week.
fn load(told: &Description) -> String {
    let mut frame = Frame::new("Load by week, of what the machine has", HEIGHT);
    let most = told.weeks.iter().map(|week| week.offered.max(week.used)).fold(1.0, f64::max);
    let top = if most > LOAD_SHOWN_MAX { LOAD_SHOWN_MAX } else { (most * 5.0).ceil() / 5.0 };
    let lines = if top > 1.4 { 4 } else { 5 };
    (0..=lines)
        .map(|line| f64::from(line) / f64::from(lines) * top)
        .for_each(|at| frame.across(at / top, &percent(at)));
    let (from, to) = (told.weeks.first(), told.weeks.last());
    let (Some(from), Some(to)) = (from, to) else { return frame.done() };
    let (begin, end) = (from.from_s, to.from_s + to.seconds as i64);
    let place = |at: i64| (at - begin) as f64 / (end - begin).max(1) as f64;
    let mut staircase = Vec::new();
    for week in &told.weeks {
        let (left, right) = (place(week.from_s), place(week.from_s + week.seconds as i64));
        staircase.extend([(left, week.offered / top), (right, week.offered / top)]);
        if told.starts_known {
            let (x, width) = (frame.x(left), frame.x(right) - frame.x(left));
            let words = format!(
                "week of {}: {} jobs, {:.1} % used, {:.1} % offered",
                shown(week.from_s),
                week.jobs,
                week.used * 100.0,
                week.offered * 100.0
            );
            frame.bar(x, (width - 0.6).max(0.4), week.used / top, "#8fc1de", &words);
        }
    }
    frame.line(&staircase, BROWN);
    dates(&mut frame, begin, end);
    let mut names = vec![("processor time of the jobs submitted", BROWN)];
    if told.starts_known {
        names.insert(0, ("used", "#8fc1de"));
    }
    let beyond = format!("up to {} in a week", percent(most));
    if most > top {
        names.push((&beyond, "#ffffff"));
    }
    frame.legend(&names);
    frame.done()
}

/// Months below, or days where there are few.
fn dates(frame: &mut Frame, begin: i64, end: i64) {
    let (first, last) = (begin.div_euclid(DAY_S), end.div_euclid(DAY_S));
    let place = |days: i64| (days * DAY_S - begin) as f64 / (end - begin).max(1) as f64;
    let (year, month, _) = date(first);
    let (last_year, last_month, _) = date(last);
    let months = (last_year - year) * 12 + i64::from(last_month) - i64::from(month);
    if months < 2 {
        let step = ((last - first) / DATES_MAX + 1).max(1);
        let days = (first + 1..=last).step_by(step as usize);
        days.for_each(|day| frame.below(place(day), &shown(day * DAY_S)[5..]));
        return;
    }
    let step =
        [1, 2, 3, 6, 12, 24, 60, 120].into_iter().find(|step| months / step <= DATES_MAX).unwrap_or(240);
    for number in 1..=months {
        let of = i64::from(month) - 1 + number;
        let (year, month) = (year + of / 12, of % 12);
        // Years begin with the first month, whatever the step.
        if (year * 12 + month) % step == 0 {
            let words = if step < 12 { format!("{year}-{:02}", month + 1) } else { year.to_string() };
            frame.below(place(first_of(year, month as u32 + 1)), &words);
        }
    }
}

/// By hour and day: a field of colours, with the hours' sums above and the days' at the right.
fn submissions(told: &Description) -> String {
    const FIELD_TOP: f64 = TOP + 62.0;
    const ROW: f64 = 22.0;
    const SUMS: f64 = 96.0;
    let mut frame = Frame::new("Submissions by hour and day", FIELD_TOP + 7.0 * ROW + 44.0);
    let wide = (WIDTH - LEFT - RIGHT - SUMS) / 24.0;
    let total = told.jobs.max(1) as f64;
    let most = told.submissions.iter().flatten().copied().max().unwrap_or(1).max(1) as f64;
    let hours: Vec<u64> = (0..24).map(|hour| told.submissions.iter().map(|day| day[hour]).sum()).collect();
    let most_hour = hours.iter().copied().max().unwrap_or(1).max(1) as f64;
    for (hour, count) in hours.iter().enumerate() {
        let (x, tall) = (LEFT + wide * hour as f64, 52.0 * *count as f64 / most_hour);
        let words =
            format!("{hour}:00 to {}:00: {count} jobs, {:.1} %", hour + 1, *count as f64 / total * 100.0);
        frame.cell(x + 1.0, FIELD_TOP - 6.0 - tall, wide - 2.0, tall, ("#8fc1de", 1.0), &words);
        if hour % 3 == 0 {
            frame.text(x + wide / 2.0, FIELD_TOP + 7.0 * ROW + 16.0, "middle", &hour.to_string());
        }
    }
    let days: Vec<u64> = told.submissions.iter().map(|day| day.iter().sum()).collect();
    let most_day = days.iter().copied().max().unwrap_or(1).max(1) as f64;
    for (day, name) in DAYS.iter().enumerate() {
        let y = FIELD_TOP + ROW * day as f64;
        frame.text(LEFT - 6.0, y + 15.0, "end", name);
        for (hour, count) in told.submissions[day].iter().enumerate() {
            let words = format!("{name} {hour}:00 to {}:00: {count} jobs", hour + 1);
            let x = LEFT + wide * hour as f64;
            frame.cell(x, y, wide - 1.0, ROW - 1.0, (BLUE, 0.04 + 0.96 * *count as f64 / most), &words);
        }
        let x = LEFT + wide * 24.0 + 6.0;
        let long = (SUMS - 46.0) * days[day] as f64 / most_day;
        let share = days[day] as f64 / total;
        frame.cell(x, y + 3.0, long, ROW - 7.0, ("#8fc1de", 1.0), &format!("{name}: {} jobs", days[day]));
        frame.text(x + long + 4.0, y + 15.0, "start", &format!("{:.1} %", share * 100.0));
    }
    frame.caption(match told.zone_known {
        true => "hour of the day, local time",
        false => "hour of the day, as the log has it: it does not say how far that is from local time",
    });
    frame.done()
}

/// Distributions of run time, limit and wait.
fn times(told: &Description) -> String {
    let mut frame = Frame::new("How long jobs run, may run, and wait", HEIGHT);
    shares(&mut frame);
    let all =
        [("run time", &told.run_s, BLUE), ("limit", &told.request_s, BROWN), ("wait", &told.wait_s, GREEN)];
    let most = all.iter().filter_map(|(_, spread, _)| spread.as_ref()).map(|spread| spread.quantile(0.995));
    let most = most.fold(3600.0, f64::max);
    let end =
        TIMES.iter().map(|(seconds, _)| *seconds).find(|seconds| *seconds >= most).unwrap_or(TIMES[8].0);
    let place = |seconds: f64| seconds.max(1.0).ln() / f64::ln(end);
    for (seconds, words) in TIMES.iter().filter(|(seconds, _)| *seconds <= end) {
        frame.below(place(*seconds), words);
    }
    let mut names = Vec::new();
    for (name, spread, colour) in all {
        let Some(spread) = spread else { continue };
        let middle = format!("{name} (median {})", span(spread.quantile(0.5)));
        names.push((middle, colour));
        frame.line(&distribution(spread, place), colour);
    }
    let names: Vec<(&str, &str)> = names.iter().map(|(name, colour)| (name.as_str(), *colour)).collect();
    frame.legend(&names);
    frame.caption("jobs with at most");
    frame.done()
}

/// A staircase of a distribution's steps.
fn distribution(spread: &Spread, place: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let mut points = vec![(place(spread.steps[0]), 0.0)];
    let mut before = 0.0;
    for (step, value) in spread.steps.iter().enumerate() {
        let share = step as f64 / STEPS as f64;
        points.extend([(place(*value), before), (place(*value), share)]);
        before = share;
    }
    points.push((1.0, 1.0));
    points.dedup();
    points
}

fn shares(frame: &mut Frame) {
    [0.0, 0.25, 0.5, 0.75, 1.0].into_iter().for_each(|share| frame.across(share, &percent(share)));
}

/// Jobs and their processor time by processors.
fn processors(told: &Description) -> String {
    let mut frame = Frame::new("Jobs by processors", HEIGHT);
    let area = told.area.max(1) as f64;
    let of = |(count, sum): &(u64, u128)| (*count as f64 / told.jobs.max(1) as f64, *sum as f64 / area);
    let most = told.powers.iter().map(of).map(|(jobs, area)| jobs.max(area)).fold(0.0, f64::max);
    let top = ((most * 5.0).ceil() / 5.0).max(0.2);
    (0..=4).map(|line| top * f64::from(line) / 4.0).for_each(|at| frame.across(at / top, &percent(at)));
    let step = (WIDTH - LEFT - RIGHT) / told.powers.len().max(1) as f64;
    let wide = (step * 0.38).min(40.0);
    let name = |power: usize| match power {
        0 | 1 => (power + 1).to_string(),
        _ => format!("{}-{}", (1u64 << (power - 1)) + 1, 1u64 << power),
    };
    let longest = name(told.powers.len().saturating_sub(1)).len() as f64 * LETTER;
    for (power, part) in told.powers.iter().enumerate() {
        let middle = LEFT + step * (power as f64 + 0.5);
        let (jobs, area) = of(part);
        let name = name(power);
        let words = format!(
            "{name} processors: {:.1} % of the jobs, {:.1} % of their time",
            jobs * 100.0,
            area * 100.0
        );
        frame.bar(middle - wide, wide - 1.0, jobs / top, BLUE, &words);
        frame.bar(middle, wide - 1.0, area / top, BROWN, &words);
        let name = if step < longest { short(1 << power) } else { name };
        let y = frame.y(0.0) + 17.0;
        frame.text(middle, y, "middle", &name);
    }
    frame.legend(&[("jobs", BLUE), ("processor time", BROWN)]);
    frame.caption(if step < longest { "processors, up to" } else { "processors" });
    frame.done()
}

/// `64`, `2K`.
fn short(count: u64) -> String {
    match count {
        0..1024 => count.to_string(),
        1024..1_048_576 => format!("{}K", count >> 10),
        _ => format!("{}M", count >> 20),
    }
}

/// How much of their requests jobs used.
fn requests(told: &Description) -> String {
    let mut frame = Frame::new("Run time as a share of the limit", HEIGHT);
    let total = told.asked.max(1) as f64;
    let most = told.ratios.iter().copied().max().unwrap_or(1) as f64 / total;
    let top = ((most * 10.0).ceil() / 10.0).max(0.1);
    (0..=4).map(|line| top * f64::from(line) / 4.0).for_each(|at| {
        frame.across(at / top, &format!("{:.1} %", at * 100.0));
    });
    // A column apart for those that used all of it.
    let columns = RATIO_BINS as f64 + 2.0;
    let step = (WIDTH - LEFT - RIGHT) / columns;
    for (bin, count) in told.ratios.iter().enumerate() {
        let last = bin == RATIO_BINS;
        let x = LEFT + step * (bin as f64 + if last { 0.9 } else { 0.0 });
        let share = *count as f64 / total;
        let words = match last {
            true => format!("all of it or more: {count} jobs, {:.1} %", share * 100.0),
            false => format!("{} % to {} %: {count} jobs, {:.1} %", bin * 5, bin * 5 + 5, share * 100.0),
        };
        frame.bar(x + 1.0, step - 2.0, share / top, if last { RED } else { BLUE }, &words);
    }
    let place = |ratio: f64| ratio.min(1.0) * RATIO_BINS as f64 / columns;
    for fifth in 0..=5 {
        frame.below(place(f64::from(fifth) / 5.0), &percent(f64::from(fifth) / 5.0));
    }
    let (end, y) = (LEFT + step * (RATIO_BINS as f64 + 1.4), frame.y(0.0) + 17.0);
    frame.text(end, y, "middle", "all");
    if let Some(middle) = told.ratio.as_ref().map(|ratio| ratio.quantile(0.5)) {
        frame.mark(place(middle), GREY, &format!("median job {:.1} %", middle * 100.0), 0);
    }
    if let Some(middle) = told.ratio_median_user {
        frame.mark(place(middle), RED, &format!("median user {:.1} %", middle * 100.0), 1);
    }
    frame.caption("run time of limit");
    frame.done()
}

/// What part the largest users have.
fn users(log: &Log, told: &Description) -> String {
    let mut frame = Frame::new("Share of the largest users", HEIGHT);
    shares(&mut frame);
    let count = told.users.len();
    let place = |rank: usize| match count {
        1 => 1.0,
        _ => (rank.max(1) as f64).ln() / (count as f64).ln(),
    };
    let mut by_jobs: Vec<u64> = told.users.iter().map(|part| part.jobs).collect();
    by_jobs.sort_unstable_by_key(|jobs| std::cmp::Reverse(*jobs));
    let areas: Vec<f64> = told.users.iter().map(|part| part.area as f64).collect();
    let jobs: Vec<f64> = by_jobs.iter().map(|jobs| *jobs as f64).collect();
    for (values, colour) in [(areas, BROWN), (jobs, BLUE)] {
        let all: f64 = values.iter().sum::<f64>().max(1.0);
        let mut sum = 0.0;
        let mut points = Vec::with_capacity(count);
        for (rank, value) in values.iter().enumerate() {
            sum += value;
            points.push((place(rank + 1), sum / all));
        }
        if count == 1 {
            points.insert(0, (0.0, 1.0));
        }
        frame.line(&points, colour);
    }
    let mut ticks: Vec<usize> =
        (0..9).flat_map(|power| [1, 2, 5].map(|digit| digit * 10usize.pow(power))).collect();
    ticks.retain(|rank| *rank < count && place(*rank) < 0.95);
    ticks.push(count);
    ticks.iter().for_each(|rank| frame.below(place(*rank), &rank.to_string()));
    let mut first = String::new();
    if let Some(part) = told.users.first() {
        let share = part.area as f64 / told.area.max(1) as f64 * 100.0;
        let _ = write!(first, "processor time (the first: {}, {share:.1} %)", user_name(log, part.user));
    }
    frame.legend(&[("jobs", BLUE), (&first, BROWN)]);
    frame.caption("users, the largest first");
    frame.done()
}
