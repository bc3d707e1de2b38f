//! The arithmetic of a shaped tier: no clock, no files.
//!
//! All who use a tier are served in the order in which they ask, as by one server. Its bandwidth for a request is that of
//! the curve of the request's pattern at the number of processes that are at work when it is asked for. So n who ask alike
//! get equal parts, and all together what the curve says for n. Reads and writes are one.

use crate::shape::Shape;
use std::fmt;
use tidepool_iosched::Pattern;
use tidepool_iosched::curve::PROCESSES_MAX;

/// Who asks for nothing for so long is not at work any more, unless it is still being served.
pub const SILENT_NS: u64 = 100_000_000;
/// Sharers that are at work at once.
pub const SHARERS_MAX: usize = 1024;
/// The longest queue: an hour. What would have to wait longer was not meant for this shape.
pub const QUEUE_NS_MAX: u64 = 3_600_000_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// One who uses the tier: a daemon, or a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sharer {
    pub who: u64,
    pub processes: u32,
    /// When it asked last.
    pub asked_ns: u64,
    /// When all is served that it asked for.
    pub served_ns: u64,
}

impl Sharer {
    fn is_at_work(&self, now_ns: u64) -> bool {
        self.served_ns > now_ns || self.asked_ns.saturating_add(SILENT_NS) >= now_ns
    }
}

/// Why a request is not served; nothing is changed by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    Processes(u32),
    TooMany,
    TooFar { waits_ns: u64 },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Processes(n) => write!(f, "{n} processes; give 1 to {PROCESSES_MAX}"),
            Refused::TooMany => write!(f, "{SHARERS_MAX} processes use it already; start fewer"),
            Refused::TooFar { waits_ns } => write!(
                f,
                "the queue would be {} s long, more than {} s; move less at once, or raise the shape's bandwidth",
                waits_ns / 1_000_000_000,
                QUEUE_NS_MAX / 1_000_000_000
            ),
        }
    }
}

impl std::error::Error for Refused {}

/// What is known of a shaped tier at one moment. Times are nanoseconds of one clock of the caller's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bucket {
    /// When all is served that was asked for.
    pub(crate) free_ns: u64,
    /// Bytes that may pass at once.
    pub(crate) credit: u64,
    /// By `who`.
    pub(crate) sharers: Vec<Sharer>,
}

impl Bucket {
    /// Nobody was there for long.
    pub fn full(shape: &Shape) -> Bucket {
        Bucket { free_ns: 0, credit: shape.burst_bytes(), sharers: Vec::new() }
    }

    /// When these bytes count as moved. No bytes only tell that somebody is at work, and wait for nothing.
    pub fn admit(
        &mut self,
        shape: &Shape,
        now_ns: u64,
        (who, processes): (u64, u32),
        bytes: u64,
        pattern: Pattern,
    ) -> Result<u64, Refused> {
        if processes == 0 || processes > PROCESSES_MAX {
            return Err(Refused::Processes(processes));
        }
        let mut next = self.at_work(now_ns);
        let at = match next.binary_search_by_key(&who, |sharer| sharer.who) {
            Ok(at) => at,
            Err(_) if next.len() >= SHARERS_MAX => return Err(Refused::TooMany),
            Err(at) => {
                next.insert(at, Sharer { who, processes, asked_ns: now_ns, served_ns: now_ns });
                at
            }
        };
        next[at].processes = processes;
        next[at].asked_ns = next[at].asked_ns.max(now_ns);
        let rate = u128::from(shape.curves().of(pattern).at(sum(&next)).max(1));
        // What was left unused is there at the rate at which it is used now, so that no rate is ever exceeded by more
        // than the burst.
        let idle = u128::from(now_ns.saturating_sub(self.free_ns));
        let saved = (idle * rate / SECOND_NS).min(u128::from(shape.burst_bytes())) as u64;
        let credit = self.credit.saturating_add(saved).min(shape.burst_bytes());
        let at_once = bytes.min(credit);
        let takes = (u128::from(bytes - at_once) * SECOND_NS).div_ceil(rate);
        let begins = self.free_ns.max(now_ns);
        let until = u64::try_from(u128::from(begins) + takes).unwrap_or(u64::MAX);
        let waits_ns = until.saturating_sub(now_ns);
        if waits_ns > QUEUE_NS_MAX {
            return Err(Refused::TooFar { waits_ns });
        }
        self.sharers = next;
        if bytes == 0 {
            return Ok(now_ns);
        }
        self.sharers[at].served_ns = self.sharers[at].served_ns.max(until);
        (self.free_ns, self.credit) = (until, credit - at_once);
        Ok(until)
    }

    /// Whoever has nothing more to do is not counted any more.
    pub fn leave(&mut self, who: u64) {
        self.sharers.retain(|sharer| sharer.who != who);
    }

    /// Processes at work.
    pub fn processes(&self, now_ns: u64) -> u32 {
        sum(&self.at_work(now_ns))
    }

    fn at_work(&self, now_ns: u64) -> Vec<Sharer> {
        self.sharers.iter().filter(|sharer| sharer.is_at_work(now_ns)).copied().collect()
    }
}

fn sum(sharers: &[Sharer]) -> u32 {
    sharers.iter().fold(0, |sum, sharer| sum.saturating_add(sharer.processes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tidepool_iosched::{Curve, Curves};

    const MB: u64 = 1_000_000;
    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    fn shape(burst: u64, points: &[(u32, u64)]) -> Shape {
        Shape::new("test", burst, Curves::same(Curve::new(points).unwrap())).unwrap()
    }

    /// Each asks again when it is served; bytes that were moved by each until the end.
    fn play(shape: &Shape, sharers: &[u32], block: u64, end_ns: u64) -> Vec<u64> {
        let mut bucket = Bucket::full(shape);
        for (who, processes) in sharers.iter().enumerate() {
            bucket.admit(shape, 0, (who as u64, *processes), 0, Pattern::Sequential).unwrap();
        }
        let mut next: BTreeMap<(u64, usize), ()> = (0..sharers.len()).map(|who| ((0, who), ())).collect();
        let mut moved = vec![0; sharers.len()];
        while let Some(((now, who), ())) = next.pop_first() {
            let asks = (who as u64, sharers[who]);
            let until = bucket.admit(shape, now, asks, block, Pattern::Sequential).unwrap();
            if until <= end_ns {
                moved[who] += block;
                next.insert((until, who), ());
            }
        }
        moved
    }

    #[test]
    fn equal_sharers_get_equal_parts_of_what_the_curve_says() {
        let shape = shape(0, &[(1, 20 * MB), (8, 60 * MB), (64, 30 * MB)]);
        for (n, rate) in [(1, 20), (8, 60), (64, 30)] {
            let moved = play(&shape, &vec![1; n], MB / 10, 10 * S);
            let all: u64 = moved.iter().sum();
            let wanted = rate * MB * 10;
            assert!(all.abs_diff(wanted) <= wanted / 50, "{n}: {all} of {wanted}");
            let (least, most) = (moved.iter().min().unwrap(), moved.iter().max().unwrap());
            assert!(most - least <= MB / 10, "{n}: {least} to {most}");
        }
        let together = play(&shape, &[32, 32], MB / 10, 10 * S);
        assert!(together.iter().sum::<u64>().abs_diff(300 * MB) <= 6 * MB, "as 64: {together:?}");
    }

    #[test]
    fn a_burst_passes_at_once_and_comes_back_with_idleness() {
        let shape = shape(4 * MB, &[(1, 2 * MB)]);
        let mut bucket = Bucket::full(&shape);
        let mut ask = |now, bytes| bucket.admit(&shape, now, (1, 1), bytes, Pattern::Random).unwrap();
        assert_eq!(ask(S, 3 * MB), S, "of the burst");
        assert_eq!(ask(S, 3 * MB), 2 * S, "one of the burst's, two at the rate");
        assert_eq!(ask(2 * S, 2 * MB), 3 * S);
        assert_eq!(ask(4 * S, 2 * MB), 4 * S, "a second of idleness");
        assert_eq!(ask(4 * S, 2 * MB), 5 * S);
        assert_eq!(ask(100 * S, 6 * MB), 101 * S, "never more than the burst");
    }

    #[test]
    fn who_is_silent_is_forgotten_unless_it_is_being_served() {
        let shape = shape(0, &[(1, 10 * MB), (2, 40 * MB)]);
        let mut bucket = Bucket::full(&shape);
        assert_eq!(bucket.admit(&shape, 0, (1, 1), 10 * MB, Pattern::Strided), Ok(S));
        assert_eq!(bucket.processes(S - 1), 1, "served until then");
        assert_eq!(bucket.processes(S), 0);
        assert_eq!(bucket.admit(&shape, 2 * S, (1, 1), 0, Pattern::Strided), Ok(2 * S));
        assert_eq!(bucket.processes(2 * S + SILENT_NS), 1);
        assert_eq!(bucket.processes(2 * S + SILENT_NS + 1), 0);
        assert_eq!(bucket.admit(&shape, 2 * S, (2, 1), 40 * MB, Pattern::Strided), Ok(3 * S), "two at work");
        bucket.leave(1);
        assert_eq!(bucket.processes(2 * S), 1);
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let shape = shape(0, &[(1, 1)]);
        let mut bucket = Bucket::full(&shape);
        for who in 0..SHARERS_MAX as u64 {
            bucket.admit(&shape, 0, (who, 1), 0, Pattern::Random).unwrap();
        }
        let before = bucket.clone();
        let mut ask = |who, processes, bytes| {
            bucket.admit(&shape, 0, (who, processes), bytes, Pattern::Random).unwrap_err()
        };
        assert_eq!(ask(SHARERS_MAX as u64, 1, 0), Refused::TooMany);
        assert_eq!(ask(1, 0, 1), Refused::Processes(0));
        assert_eq!(ask(1, PROCESSES_MAX + 1, 1), Refused::Processes(PROCESSES_MAX + 1));
        assert!(matches!(ask(1, 1, u64::MAX), Refused::TooFar { .. }));
        assert_eq!(bucket, before);
    }

    /// A tick is what the fastest of the oracle's rates needs for a byte, so all is whole.
    const TICK_NS: u64 = 250_000;
    const POINTS: [(u32, u64); 6] = [(1, 1000), (2, 2000), (3, 4000), (4, 2000), (5, 1000), (6, 1000)];

    #[derive(Clone, Debug)]
    struct Ask {
        /// Ticks after the one before.
        after: u64,
        who: u64,
        processes: u32,
        bytes: u64,
    }

    /// Serves byte by byte, tick by tick, and remembers everything that ever was.
    #[derive(Default)]
    struct Slow {
        tick: u64,
        idle: u64,
        credit: u64,
        /// (request, ticks for a byte, bytes left, ticks left of the present one).
        queue: Vec<(usize, u64, u64, u64)>,
        asked: Vec<(u64, Ask)>,
        done: BTreeMap<usize, u64>,
    }

    impl Slow {
        fn pass(&mut self) {
            self.tick += 1;
            let Some((request, cost, left, of_byte)) = self.queue.first_mut() else {
                self.idle += 1;
                return;
            };
            *of_byte -= 1;
            if *of_byte == 0 {
                *left -= 1;
                *of_byte = *cost;
            }
            if *left == 0 {
                self.done.insert(*request, self.tick);
                self.queue.remove(0);
            }
        }

        fn processes(&self) -> u32 {
            let mut all: BTreeMap<u64, (u32, bool)> = BTreeMap::new();
            for (request, (at, ask)) in self.asked.iter().enumerate() {
                let served = !self.done.contains_key(&request);
                let lately = (self.tick - at) * TICK_NS <= SILENT_NS;
                let entry = all.entry(ask.who).or_insert((0, false));
                *entry = (ask.processes, entry.1 || served || lately);
            }
            all.values().filter(|(_, at_work)| *at_work).map(|(n, _)| n).sum()
        }

        fn ask(&mut self, ask: &Ask, burst: u64) {
            let request = self.asked.len();
            self.asked.push((self.tick, ask.clone()));
            let n = self.processes();
            if ask.bytes == 0 {
                self.done.insert(request, self.tick);
                return;
            }
            let rate = POINTS.iter().rev().find(|(at, _)| *at <= n).map_or(1000, |(_, rate)| *rate);
            let cost = 4000 / rate;
            self.credit = burst.min(self.credit + self.idle / cost);
            self.idle = 0;
            let at_once = self.credit.min(ask.bytes);
            self.credit -= at_once;
            match (ask.bytes - at_once, self.queue.is_empty()) {
                (0, true) => drop(self.done.insert(request, self.tick)),
                // The queue's end is its end, too.
                (0, false) => self.queue.push((request, 0, 0, 0)),
                (left, _) => self.queue.push((request, cost, left, cost)),
            }
        }

        /// Those that need no time end with the one before them.
        fn settle(&mut self) {
            while self.queue.first().is_some_and(|(_, _, left, _)| *left == 0) {
                let (request, ..) = self.queue.remove(0);
                self.done.insert(request, self.tick);
            }
        }
    }

    fn asks() -> impl Strategy<Value = Vec<Ask>> {
        let ask = (prop_oneof![0..40u64, 0..6000u64], 0..3u64, 1..3u32, prop_oneof![Just(0), 1..300u64]);
        let ask = ask.prop_map(|(after, who, processes, bytes)| Ask { after, who, processes, bytes });
        prop::collection::vec(ask, 1..40)
    }

    proptest! {
        #[test]
        fn it_is_what_a_slow_server_does(asks in asks(), burst in 0..200u64) {
            let shape = shape(burst, &POINTS);
            let mut slow = Slow { credit: burst, ..Slow::default() };
            let mut bucket = Bucket::full(&shape);
            let mut untils = Vec::new();
            for ask in &asks {
                for _ in 0..ask.after {
                    slow.pass();
                    slow.settle();
                }
                slow.ask(ask, burst);
                let now_ns = slow.tick * TICK_NS;
                let until = bucket.admit(&shape, now_ns, (ask.who, ask.processes), ask.bytes, Pattern::Sequential);
                untils.push(until.unwrap());
            }
            while !slow.queue.is_empty() {
                slow.pass();
                slow.settle();
            }
            let expected: Vec<u64> = (0..asks.len()).map(|request| slow.done[&request] * TICK_NS).collect();
            prop_assert_eq!(untils, expected);
        }

        /// Over any stretch no more passes than the best rate and the burst allow.
        #[test]
        fn no_rate_is_exceeded(asks in asks(), burst in 0..200u64) {
            let shape = shape(burst, &POINTS);
            let mut bucket = Bucket::full(&shape);
            let (mut tick, mut moved, mut last) = (0, 0, 0);
            for ask in &asks {
                tick += ask.after;
                let asks = (ask.who, ask.processes);
                let until = bucket.admit(&shape, tick * TICK_NS, asks, ask.bytes, Pattern::Random).unwrap();
                last = last.max(until);
                moved += ask.bytes;
                prop_assert!(u128::from(moved) <= u128::from(burst) + u128::from(last) * 4000 / u128::from(S));
            }
        }
    }
}
