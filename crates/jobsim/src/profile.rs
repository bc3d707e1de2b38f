//! How many processors are free when, as far as is planned: steps in the order of time.

/// From a time on, until the next step, so many are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    at: u64,
    free: u32,
}

/// The last step lasts for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    steps: Vec<Step>,
}

impl Profile {
    /// All of a machine is free from `now` on.
    pub fn new(now: u64, processors: u32) -> Profile {
        Profile { steps: vec![Step { at: now, free: processors }] }
    }

    /// Of jobs that run: until when at the latest, in the order of time, and on how many processors.
    pub fn of(now: u64, processors: u32, ends: impl Iterator<Item = (u64, u32)>) -> Profile {
        let mut steps = vec![Step { at: now, free: processors }];
        let mut used = 0;
        for (end, count) in ends {
            used += count;
            match steps.last_mut() {
                Some(last) if last.at == end => last.free += count,
                _ => steps.push(Step { at: end, free: count }),
            }
        }
        // So far each step after the first has what becomes free at it.
        steps[0].free -= used;
        for at in 1..steps.len() {
            steps[at].free += steps[at - 1].free;
        }
        Profile { steps }
    }

    /// The first time from `from` on at which so many are free for so long. Where even the last step has too few, no time has
    /// enough, and it is `u64::MAX`.
    pub fn first_fit(&self, from: u64, processors: u32, seconds: u64) -> u64 {
        let mut at = self.steps.partition_point(|step| step.at <= from).saturating_sub(1);
        while at < self.steps.len() {
            let start = self.steps[at].at.max(from);
            let end = start.saturating_add(seconds);
            let mut during = self.steps[at..].iter().take_while(|step| step.at < end);
            match during.position(|step| step.free < processors) {
                None => return start,
                Some(full) => at += full + 1,
            }
        }
        u64::MAX
    }

    /// Takes processors from `from` on for a time; they are free then.
    pub fn take(&mut self, from: u64, processors: u32, seconds: u64) {
        let first = self.split(from);
        let last = self.split(from.saturating_add(seconds));
        self.steps[first..last].iter_mut().for_each(|step| step.free -= processors);
    }

    /// Drops what is over.
    pub fn forget_before(&mut self, now: u64) {
        let over = self.steps.partition_point(|step| step.at <= now).saturating_sub(1);
        self.steps.drain(..over);
        self.steps[0].at = self.steps[0].at.max(now);
    }

    /// The step that begins at `at`, made where there is none.
    fn split(&mut self, at: u64) -> usize {
        let next = self.steps.partition_point(|step| step.at < at);
        if self.steps.get(next).is_none_or(|step| step.at != at) {
            let free = self.steps[next - 1].free;
            self.steps.insert(next, Step { at, free });
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn jobs_that_run_become_free_at_their_ends() {
        let profile = Profile::of(10, 8, [(20, 1), (20, 2), (30, 3)].into_iter());
        let fits =
            [(2, 1, 10), (2, 1000, 10), (3, 1, 20), (5, 1, 20), (6, 1, 30), (8, 1000, 30), (9, 1, u64::MAX)];
        for (processors, seconds, at) in fits {
            assert_eq!(profile.first_fit(0, processors, seconds), at, "{processors} for {seconds} s");
        }
        assert_eq!(profile.first_fit(25, 5, 1), 25);
    }

    proptest! {
        /// Against an array with a number for each second.
        #[test]
        fn placing_is_that_of_a_slow_array(jobs in prop::collection::vec((0u64..50, 1u32..8, 1u64..30), 1..30)) {
            let mut profile = Profile::new(0, 8);
            let mut free = vec![8u32; 2000];
            for (number, (from, processors, seconds)) in jobs.into_iter().enumerate() {
                let fits = |start: u64| free[start as usize..(start + seconds) as usize].iter().all(|n| *n >= processors);
                let slow = (from..).find(|start| fits(*start)).unwrap();
                prop_assert_eq!(profile.first_fit(from, processors, seconds), slow);
                profile.take(slow, processors, seconds);
                free[slow as usize..(slow + seconds) as usize].iter_mut().for_each(|n| *n -= processors);
                if number == 10 {
                    profile.forget_before(20);
                    free[..20].fill(0);
                }
            }
        }
    }
}
