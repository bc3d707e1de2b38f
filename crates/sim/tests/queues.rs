//! The ladder queue gives what a binary heap gives, whatever is put in and when.

use proptest::prelude::*;
use tidepool_sim::queue::{Heap, Ladder, Queue};
use tidepool_sim::{Event, Key, ProcessId, Stream, Time};

/// Both queues, told the same.
#[derive(Default)]
struct Both {
    ladder: Ladder<Event<u64>>,
    heap: Heap<Event<u64>>,
    pushed: u64,
}

impl Both {
    fn push(&mut self, time: u64, source: u32) {
        let key = Key { time: Time(time), source: ProcessId(source), sequence: self.pushed };
        let event = Event { key, to: ProcessId(0), message: self.pushed };
        self.ladder.push(event.clone());
        self.heap.push(event);
        self.pushed += 1;
    }

    /// Demands the same next event of both.
    fn pop(&mut self, end: u64) -> Option<u64> {
        assert_eq!(self.ladder.len(), self.heap.len());
        assert_eq!(self.ladder.next_time(), self.heap.next_time());
        let event = self.ladder.pop_before(Time(end));
        assert_eq!(event, self.heap.pop_before(Time(end)));
        event.map(|event| event.key.time.0)
    }

    fn empty(mut self) {
        while self.pop(u64::MAX).is_some() {}
        assert!(self.ladder.is_empty() && self.heap.is_empty());
    }
}

/// How the times of new events lie to the one that was taken last.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Uniform(u64),
    Exponential(u64),
    /// One of few times, so that most are equal.
    Ties(u64),
    /// Mostly soon, sometimes at the end of time.
    Outliers,
    /// Each a little later than all before, and each a little earlier.
    Rising,
    Falling,
    /// As after a rollback: earlier than what was taken.
    Earlier(u64),
    /// Twice as far each time: each bucket of each rung has one crowd.
    Scales,
    /// All in one tick, far away.
    Crowd,
}

const PATTERNS: [Pattern; 12] = [
    Pattern::Uniform(1_000),
    Pattern::Uniform(1 << 40),
    Pattern::Exponential(1_000_000),
    Pattern::Exponential(3),
    Pattern::Ties(1),
    Pattern::Ties(5),
    Pattern::Outliers,
    Pattern::Rising,
    Pattern::Falling,
    Pattern::Earlier(5_000),
    Pattern::Scales,
    Pattern::Crowd,
];

fn time(pattern: Pattern, random: &mut Stream, now: u64, pushed: u64) -> u64 {
    let end = Time::MAX.0;
    let time = match pattern {
        Pattern::Uniform(range) => now.saturating_add(random.below(range)),
        Pattern::Exponential(mean) => now.saturating_add(random.exponential(Time(mean)).0),
        Pattern::Ties(few) => (now / 1_000 + random.below(few)) * 1_000,
        Pattern::Outliers if random.below(20) == 0 => end - random.below(3),
        Pattern::Outliers => now.saturating_add(random.below(100)),
        Pattern::Rising => pushed,
        Pattern::Falling => (1 << 40) - pushed,
        Pattern::Earlier(range) => (now + 10).saturating_sub(random.below(range)),
        Pattern::Scales => {
            let scale = random.below(62);
            now.saturating_add(random.below(1 << scale))
        }
        Pattern::Crowd => (now / 1_000_000 + 1) * 1_000_000,
    };
    time.min(end)
}

/// `steps` of adding up to `burst` events and taking up to `burst`, with one pattern or all in turn.
fn mixed(patterns: &[Pattern], seed: u64, steps: u64, burst: u64, start: u64) {
    let (mut both, mut random, mut now) = (Both::default(), Stream::new(seed, 0), 0);
    for step in 0..start + steps {
        let pattern = patterns[(step / 64 % patterns.len() as u64) as usize];
        for _ in 0..=random.below(burst) {
            let at = time(pattern, &mut random, now, both.pushed);
            both.push(at, random.below(3) as u32);
        }
        if step < start {
            continue;
        }
        let end = if random.below(4) == 0 { now.saturating_add(random.below(2_000)) } else { u64::MAX };
        for _ in 0..=random.below(burst) {
            now = both.pop(end).unwrap_or(now);
        }
    }
    both.empty();
}

#[test]
fn adversarial_patterns_come_out_in_order() {
    for seed in 0..6 {
        for pattern in PATTERNS {
            println!("seed {seed}, {pattern:?}");
            mixed(&[pattern], seed, 300, 12, 0);
            mixed(&[pattern], seed, 100, 40, 60);
        }
    }
}

#[test]
fn patterns_that_change_come_out_in_order() {
    for seed in 0..12 {
        println!("seed {seed}");
        mixed(&PATTERNS, seed, 1_200, 16, 30);
    }
}

#[test]
fn an_emptied_queue_can_be_filled_again() {
    let mut both = Both::default();
    for round in 0..200u64 {
        for n in 0..round {
            both.push(n * n % 97 + if round % 3 == 0 { 0 } else { round * 50 }, n as u32);
        }
        while both.pop(u64::MAX).is_some() {}
    }
    both.empty();
}

#[test]
fn times_at_the_end_of_time_are_ordered() {
    let mut both = Both::default();
    for n in 0..500 {
        both.push(Time::MAX.0 - n % 7, n as u32);
        both.push(n % 5, n as u32);
    }
    both.empty();
}

proptest! {
    #[test]
    fn any_sequence_of_times_comes_out_in_order(
        batches in prop::collection::vec((prop::collection::vec(0u64..5_000, 0..150), 0usize..150), 0..20),
        shift in 0u32..48,
    ) {
        let mut both = Both::default();
        for (times, taken) in batches {
            times.iter().for_each(|time| both.push(time << shift, (time % 4) as u32));
            for _ in 0..taken {
                both.pop(u64::MAX);
            }
        }
        both.empty();
    }
}
