//! For each user, at each job, the simple predictor whose last errors are smallest.

use crate::bounded::Bounded;
use crate::conformal::user;
use crate::simple::{Alike, Last, Statistic};
use crate::{Job, PENDING_MAX, Point, USERS_MAX};
use std::collections::VecDeque;

/// Errors of a user that are compared.
pub const WINDOW: usize = 15;
const EXPERTS: usize = 9;

type Said = [f64; EXPERTS];

/// The experts' errors for a user's last jobs.
type Errors = VecDeque<Said>;

#[derive(Clone, Debug)]
pub struct Expert {
    user: [Last; 3],
    ratio: [Last; 2],
    alike: [Last; 3],
    errors: Bounded<u64, Errors>,
    said: Bounded<u64, Said>,
}

impl Default for Expert {
    fn default() -> Expert {
        let user = |count, statistic| Last::new(count, statistic, Alike::User);
        let alike = |count, statistic| Last::new(count, statistic, Alike::UserProcessorsRequest);
        Expert {
            user: [Last::run(), Last::two(), user(10, Statistic::Median)],
            ratio: [Last::alea(), Last::mean_ratio()],
            alike: [alike(10, Statistic::Median), alike(3, Statistic::Mean), alike(1, Statistic::Mean)],
            errors: Bounded::new(USERS_MAX),
            said: Bounded::new(PENDING_MAX),
        }
    }
}

/// Asked before there are errors: the median of alike jobs.
const FIRST: usize = 6;

impl Expert {
    /// Where an expert has too little of a past, a broader one answers for it. None says more than the request.
    fn ask(&mut self, job: &Job) -> Said {
        let request = job.unknown_s();
        let [run, two, ten] = self.user.each_mut().map(|expert| expert.of(job));
        let [largest, mean] = self.ratio.each_mut().map(|expert| expert.of(job).unwrap_or(request));
        let [alike, three, newest] = self.alike.each_mut().map(|expert| expert.of(job));
        let (run, ten) = (run.unwrap_or(request), ten.unwrap_or(request));
        let alike = alike.unwrap_or(ten);
        let (three, newest) = (three.unwrap_or(ten), newest.unwrap_or(run));
        let all = [request, run, two.unwrap_or(request), ten, largest, mean, alike, three, newest];
        all.map(|said| job.request_s.map_or(said, |request| said.min(request as f64)))
    }

    fn best(&self, errors: Option<&Errors>) -> usize {
        let Some(errors) = errors else { return FIRST };
        let sums: [f64; EXPERTS] =
            std::array::from_fn(|expert| errors.iter().map(|error| error[expert]).sum());
        (0..EXPERTS).min_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(FIRST)
    }
}

impl Point for Expert {
    fn predict(&mut self, job: &Job) -> f64 {
        let said = self.ask(job);
        self.said.insert(job.id, said);
        said[self.best(self.errors.peek(user(job)))]
    }

    fn learn(&mut self, job: &Job, predicted_s: f64, run_s: f64) {
        let experts = self.user.iter_mut().chain(&mut self.ratio).chain(&mut self.alike);
        experts.for_each(|expert| expert.learn(job, predicted_s, run_s));
        let Some(said) = self.said.remove(job.id) else { return };
        let errors = self.errors.entry(user(job), VecDeque::new);
        errors.push_front(said.map(|said| (said - run_s).abs()));
        errors.truncate(WINDOW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expert_that_has_been_right_is_asked() {
        let mut expert = Expert::default();
        // The run time is always a tenth of the request, and requests change: only the ratios are right.
        let job = |id: u64| Job {
            id,
            user: Some(1),
            processors: 1,
            request_s: Some(1000 + id * 7919 % 5000),
            ..Job::default()
        };
        let mut last = 0.0;
        for id in 0..40 {
            let (job, real) = (job(id), job(id).unknown_s() / 10.0);
            last = expert.predict(&job) - real;
            expert.learn(&job, 0.0, real);
        }
        assert!(last.abs() < 1e-9, "{last}");
    }
}
