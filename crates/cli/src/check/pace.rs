//! How a check gives way to programs. Pure: it is told the time and what was seen, and says how long to pause.
//!
//! ```text
//! unknown ──a second look──▶ quiet ──others were there──▶ used ──nobody for 2 s──▶ quiet
//! ```
//! A daemon that is quiet is asked without a pause. Beside others, pauses are as long as the work, times the daemons of the node: so
//! all that a check has a node do is less than what keeps one core busy half of the time for one daemon, and one core for many. When a
//! node is slow because others use it, steps last longer, and so do pauses.

use std::time::Duration;

/// How often it is asked what programs do at a daemon.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// For so long programs are given way to after they were seen.
const USED_FOR: Duration = Duration::from_secs(2);
/// Less work is no reason for a pause yet: a sleep lasts longer than asked for by some hundredths of a millisecond.
const WORK_MIN: Duration = Duration::from_micros(300);
/// A daemon that has hung for minutes is not left alone for as long.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Of a whole pool: who uses one daemon will use the others.
pub struct Pace {
    daemons: Vec<Daemon>,
    used: Option<Duration>,
}

#[derive(Clone, Default)]
struct Daemon {
    /// Daemons on its node.
    beside: u32,
    looked: Option<Duration>,
    /// What programs had done there by then.
    others: Option<u64>,
    is_known: bool,
    /// Work since the last pause.
    work: Duration,
}

impl Pace {
    /// `beside`: for each daemon, how many there are on its node.
    pub fn new(beside: impl IntoIterator<Item = u32>) -> Pace {
        let daemons = beside.into_iter().map(|beside| Daemon { beside, ..Daemon::default() }).collect();
        Pace { daemons, used: None }
    }

    /// Whether it is time to ask a daemon what others do there.
    pub fn wants_look(&mut self, daemon: usize, now: Duration) -> bool {
        let daemon = &mut self.daemons[daemon];
        let due = daemon.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK_EVERY);
        if due {
            daemon.looked = Some(now);
        }
        due
    }

    /// What others have done at a daemon since it was started; any change means that somebody is there.
    pub fn look(&mut self, daemon: usize, others: u64, now: Duration) {
        let daemon = &mut self.daemons[daemon];
        match daemon.others.replace(others) {
            None => {}
            Some(before) => {
                daemon.is_known = true;
                if before != others {
                    self.used = Some(now);
                }
            }
        }
    }

    /// How long to pause after so much more work at a daemon.
    pub fn pause(&mut self, daemon: usize, took: Duration, now: Duration) -> Duration {
        let used = self.used.is_some_and(|used| now.saturating_sub(used) < USED_FOR);
        let daemon = &mut self.daemons[daemon];
        daemon.work += took;
        if daemon.is_known && !used {
            daemon.work = Duration::ZERO;
        }
        if daemon.work < WORK_MIN {
            return Duration::ZERO;
        }
        (std::mem::take(&mut daemon.work) * daemon.beside.max(1)).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A check of steps of some length beside programs that do something at certain times: how much of each second was work.
    struct Day {
        pace: Pace,
        now: Duration,
        others: u64,
        worked: Duration,
    }

    impl Day {
        fn new(daemons: u32) -> Day {
            let pace = Pace::new((0..daemons).map(|_| daemons));
            Day { pace, now: Duration::ZERO, others: 7, worked: Duration::ZERO }
        }

        /// The part of the time in which a daemon works for the check.
        fn share(&mut self, lasts: Duration, step: Duration, in_use: bool) -> f64 {
            let (began, before) = (self.now, self.worked);
            while self.now < began + lasts {
                if self.pace.wants_look(0, self.now) {
                    self.others += u64::from(in_use);
                    self.pace.look(0, self.others, self.now);
                }
                self.now += step;
                self.worked += step;
                self.now += self.pace.pause(0, step, self.now);
            }
            (self.worked - before).as_secs_f64() / (self.now - began).as_secs_f64()
        }
    }

    #[test]
    fn beside_programs_a_check_leaves_them_the_node() {
        for (daemons, share) in [(1, 0.5), (4, 0.2), (16, 1.0 / 17.0)] {
            for step in [MS / 20, MS, 30 * MS] {
                let mut day = Day::new(daemons);
                let all = day.share(Duration::from_secs(20), step, true);
                assert!((all - share).abs() < share / 10.0, "{daemons} daemons, {step:?}: {all}");
            }
        }
    }

    #[test]
    fn where_nobody_is_there_are_no_pauses() {
        let mut day = Day::new(4);
        let first = day.share(LOOK_EVERY, MS, false);
        assert!(first < 0.3, "before it is known, somebody may be there: {first}");
        assert!(day.share(Duration::from_secs(5), MS, false) > 0.99);
        assert!(day.share(Duration::from_secs(5), MS, true) < 0.3, "who comes is seen at the next look");
        day.share(USED_FOR + LOOK_EVERY, MS, false);
        assert!(day.share(Duration::from_secs(5), MS, false) > 0.99, "and who has gone is forgotten");
    }

    /// Others slow a step down ten times: the check takes no larger part for that, and steps of the same work become rarer.
    #[test]
    fn a_slow_daemon_is_asked_less_often() {
        let mut day = Day::new(1);
        let lasts = Duration::from_secs(10);
        day.share(lasts, MS, true);
        assert!(day.share(lasts, 10 * MS, true) < 0.55);
        assert_eq!(day.pace.pause(0, Duration::from_secs(3600), day.now), PAUSE_MAX);
    }

    #[test]
    fn somebody_at_one_daemon_is_somebody_at_all() {
        let mut pace = Pace::new([1, 1]);
        for (daemon, others) in [(0, 1), (1, 1), (0, 1), (1, 2)] {
            pace.look(daemon, others, 10 * MS);
        }
        assert_eq!(pace.pause(0, 5 * MS, 20 * MS), 5 * MS);
        assert_eq!(pace.pause(0, 5 * MS, 20 * MS + USED_FOR), Duration::ZERO);
        assert_eq!(pace.pause(0, 5 * MS, 10 * MS), 5 * MS, "work without pauses is not made up for");
    }
}
