//! Predictors by templates: jobs that agree in some marks are alike.
//!
//! Gibbons (1997) takes the first of six templates that has data: the user's runs of an executable on so many
//! nodes, the user's runs of the executable by a line over the nodes, and so on to all jobs. Downey (1997) takes no marks but
//! the queue: run times of a queue are uniform in their logarithm, and the median of that distribution is the answer. Both
//! were made for jobs that may run already; at submission none has, so that their ages play no part here.

use crate::bounded::Bounded;
use crate::regression::Line;
use crate::simple::{Alike, Last, Statistic, median};
use crate::{Job, Point, USERS_MAX};
use std::collections::VecDeque;

/// Templates of Gibbons that are remembered, at least.
const TEMPLATES_MAX: usize = 1 << 16;
/// Runs of a queue that Downey's distribution is made of.
const QUEUE_RUNS_MAX: usize = 1024;
/// Ends after which it is made again.
const REFIT: usize = 64;
/// With fewer runs there is no distribution.
const FIT_MIN: usize = 10;

/// The median of the last ten runs with the same user, processors and request, else of the user's last ten.
#[derive(Clone, Debug)]
pub struct Same {
    alike: Last,
    user: Last,
}

impl Default for Same {
    fn default() -> Same {
        Same {
            alike: Last::new(10, Statistic::Median, Alike::UserProcessorsRequest),
            user: Last::new(10, Statistic::Median, Alike::User),
        }
    }
}

impl Point for Same {
    fn predict(&mut self, job: &Job) -> f64 {
        self.alike.of(job).or_else(|| self.user.of(job)).unwrap_or(job.unknown_s())
    }

    fn learn(&mut self, job: &Job, predicted_s: f64, run_s: f64) {
        self.alike.learn(job, predicted_s, run_s);
        self.user.learn(job, predicted_s, run_s);
    }
}

/// Which marks a template of Gibbons looks at.
#[derive(Clone, Copy)]
struct Marks {
    user: bool,
    executable: bool,
    processors: bool,
}

/// In the order of trial. Those with processors answer with a mean, the others with a line over them.
const GIBBONS: [Marks; 6] = [
    Marks { user: true, executable: true, processors: true },
    Marks { user: true, executable: true, processors: false },
    Marks { user: false, executable: true, processors: true },
    Marks { user: false, executable: true, processors: false },
    Marks { user: false, executable: false, processors: true },
    Marks { user: false, executable: false, processors: false },
];

type GibbonsKey = [u64; 4];

/// The number of a template and what the job has for its marks. Where a log has no executables, their queue stands for them.
fn key(number: usize, job: &Job) -> GibbonsKey {
    let marks = GIBBONS[number];
    let said = |wanted: bool, mark: Option<u32>| if wanted { mark.map_or(u64::MAX, u64::from) } else { 0 };
    // Gibbons counts nodes in powers of two.
    let processors = if marks.processors { u64::from(job.processors.max(1).ilog2()) } else { 0 };
    let executable = job.executable.or(job.queue);
    [number as u64, said(marks.user, job.user), said(marks.executable, executable), processors]
}

/// Gibbons' templates.
#[derive(Clone, Debug)]
pub struct Gibbons {
    lines: Bounded<GibbonsKey, Line<2>>,
}

impl Default for Gibbons {
    fn default() -> Gibbons {
        Gibbons { lines: Bounded::new(TEMPLATES_MAX) }
    }
}

fn over_processors(job: &Job) -> [f64; 2] {
    [1.0, f64::from(job.processors)]
}

impl Point for Gibbons {
    fn predict(&mut self, job: &Job) -> f64 {
        for (number, marks) in GIBBONS.iter().enumerate() {
            let Some(line) = self.lines.get_mut(key(number, job)) else { continue };
            let answer = if marks.processors { line.mean() } else { line.at(over_processors(job)) };
            if let Some(answer) = answer.filter(|answer| *answer > 0.0) {
                return answer;
            }
        }
        job.unknown_s()
    }

    fn learn(&mut self, job: &Job, _: f64, run_s: f64) {
        for number in 0..GIBBONS.len() {
            self.lines.entry(key(number, job), Line::default).learn(over_processors(job), run_s);
        }
    }
}

/// Runs of a queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    runs: VecDeque<f64>,
    since_fit: usize,
    median_s: Option<f64>,
}

impl Queue {
    fn learn(&mut self, run_s: f64) {
        self.runs.push_back(run_s);
        if self.runs.len() > QUEUE_RUNS_MAX {
            self.runs.pop_front();
        }
        self.since_fit += 1;
        if self.runs.len() >= FIT_MIN && (self.since_fit >= REFIT || self.median_s.is_none()) {
            self.since_fit = 0;
            self.median_s = log_uniform_median(self.runs.iter().copied().collect());
        }
    }
}

/// Where the line through (ln run, share of runs that are not longer) is at a half. Of equal runs, theirs.
fn log_uniform_median(mut runs: Vec<f64>) -> Option<f64> {
    let middle = median(&mut runs)?;
    let count = runs.len() as f64;
    let mut line: Line<2> = Line::default();
    for (place, run) in runs.iter().enumerate() {
        line.learn([1.0, run.max(1.0).ln()], (place as f64 + 0.5) / count);
    }
    let (none, one) = (line.at([1.0, 0.0])?, line.at([1.0, 1.0])?);
    let answer = ((0.5 - none) / (one - none)).exp();
    // A line says nothing far beyond its points.
    Some(if answer.is_finite() { answer.clamp(runs[0], runs[runs.len() - 1]) } else { middle })
}

/// Downey's log-uniform distribution of each queue.
#[derive(Clone, Debug)]
pub struct Downey {
    queues: Bounded<u64, Queue>,
}

impl Default for Downey {
    fn default() -> Downey {
        Downey { queues: Bounded::new(USERS_MAX) }
    }
}

fn queue(job: &Job) -> u64 {
    job.queue.map_or(u64::MAX, u64::from)
}

impl Point for Downey {
    fn predict(&mut self, job: &Job) -> f64 {
        let known = self.queues.get_mut(queue(job)).and_then(|queue| queue.median_s);
        known.unwrap_or(job.unknown_s())
    }

    fn learn(&mut self, job: &Job, _: f64, run_s: f64) {
        self.queues.entry(queue(job), Queue::default).learn(run_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(user: u32, executable: u32, processors: u32) -> Job {
        let (user, executable) = (Some(user), Some(executable));
        Job { user, executable, processors, request_s: Some(9999), ..Job::default() }
    }

    #[test]
    fn gibbons_takes_the_first_template_with_data() {
        let mut gibbons = Gibbons::default();
        assert_eq!(gibbons.predict(&job(1, 1, 4)), 9999.0);
        gibbons.learn(&job(1, 1, 4), 0.0, 100.0);
        gibbons.learn(&job(1, 1, 5), 0.0, 200.0);
        gibbons.learn(&job(1, 1, 16), 0.0, 900.0);
        // 4 and 5 are of one power of two: their mean. 8 is of none that was seen: by the line.
        assert_eq!(gibbons.predict(&job(1, 1, 6)), 150.0);
        let line = gibbons.predict(&job(1, 1, 8));
        assert!(line > 200.0 && line < 600.0, "{line}");
        // Another user of the executable, then another executable.
        assert_eq!(gibbons.predict(&job(2, 1, 17)), 900.0);
        assert_eq!(gibbons.predict(&job(2, 7, 20)), 900.0);
    }

    #[test]
    fn downey_finds_the_median_of_a_log_uniform_distribution() {
        let mut downey = Downey::default();
        // Uniform in the logarithm from e^2 to e^8: its median is e^5.
        for n in 0..1024 {
            let share = f64::from(n * 389 % 1024) / 1024.0;
            downey.learn(&job(1, 1, 1), 0.0, (2.0 + 6.0 * share).exp());
        }
        let got = downey.predict(&job(9, 9, 9)).ln();
        assert!((got - 5.0).abs() < 0.05, "{got}");
        let mut same = Downey::default();
        (0..20).for_each(|_| same.learn(&job(1, 1, 1), 0.0, 60.0));
        assert_eq!(same.predict(&job(1, 1, 1)), 60.0);
    }
}
