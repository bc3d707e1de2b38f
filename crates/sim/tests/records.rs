//! What models write out: the same calls under every scheduler, in the order of events, of events that count, and few of them
//! held back.

mod common;

use common::{Unpleasant, hard_lives};
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_sim::{
    Emitted, Error, FaultKind, Model, Options, ProcessId, Scheduler, Simulation, Stream, Time, Turn,
};

/// All calls of the sink, run after run.
fn rows<M: Model>(model: M, seed: u64, ends: &[u64], options: &Options<'_>) -> Vec<Emitted<M::Record>> {
    let (mut rows, mut simulation) = (Vec::new(), Simulation::new(model, seed).unwrap());
    for end in ends {
        simulation.run_with(Time(*end), options, |row| rows.push(row)).unwrap();
    }
    rows
}

#[test]
fn all_schedulers_write_the_same() {
    let reference = Options { scheduler: Scheduler::Reference, ..Options::default() };
    let mut count = 0;
    for seed in 0..60 {
        let model = Unpleasant::of(seed);
        println!("seed {seed}: {model:?}");
        let end = [40, 3_000, 200_000, 1 << 40][(seed % 4) as usize];
        let expected = rows(model.clone(), seed, &[end], &reference);
        assert!(expected.windows(2).all(|two| two[0].at <= two[1].at));
        count += expected.len();
        for (name, options) in hard_lives(seed) {
            assert_eq!(rows(model.clone(), seed, &[end], &options), expected, "seed {seed}, {name}");
            let parts = [end / 5, end / 5 + 1, end / 2, end];
            assert_eq!(
                rows(model.clone(), seed, &parts, &options),
                expected,
                "seed {seed}, {name}, in parts"
            );
        }
    }
    println!("{count} records");
    assert!(count > 10_000, "{count} records: the models are too tame");
}

/// Processes that all fail some time, at times drawn at random, and write a row at every event.
struct Failing {
    processes: u32,
}

impl Model for Failing {
    type State = u64;
    type Message = ();
    type Undo = ();
    type Record = u64;

    fn processes(&self) -> u32 {
        self.processes
    }

    fn lookahead(&self) -> Time {
        Time(40)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> u64 {
        turn.send(turn.me(), Time(1), ());
        0
    }

    fn handle(&self, state: &mut u64, (): &(), turn: &mut Turn<'_, Self>) {
        turn.keep(|| ());
        *state += 1;
        turn.emit(*state);
        let after = Time(1 + turn.random().below(60));
        turn.send(turn.me(), after, ());
        if *state > 50 && turn.random().chance(0.01) {
            turn.fail("enough");
        }
    }

    fn undo(&self, state: &mut u64, (): ()) {
        *state -= 1;
    }
}

#[test]
fn what_was_before_the_first_fault_is_written_and_nothing_else() {
    for seed in 0..20 {
        let told = |options: &Options<'_>| {
            let (mut rows, mut simulation) =
                (Vec::new(), Simulation::new(Failing { processes: 7 }, seed).unwrap());
            let error = simulation.run_with(Time(1 << 30), options, |row| rows.push(row)).unwrap_err();
            (rows, error)
        };
        let (rows, error) = told(&Options { scheduler: Scheduler::Reference, ..Options::default() });
        let Error::Fault(fault) = &error else { panic!("{error}") };
        assert!(rows.len() > 200 && rows.iter().all(|row| row.at < fault.at));
        for (name, options) in hard_lives(seed) {
            assert_eq!(told(&options), (rows.clone(), error.clone()), "seed {seed}, {name}");
        }
    }
}

/// Each process handles an event per tick and writes a row for it; messages to others take very long. It counts what was
/// written: allowed here because nothing is undone.
struct Talkative<'a> {
    written: &'a AtomicU64,
}

impl Model for Talkative<'_> {
    type State = ();
    type Message = ();
    type Undo = ();
    type Record = u64;

    fn processes(&self) -> u32 {
        8
    }

    fn lookahead(&self) -> Time {
        Time(1_000_000)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) {
        turn.send(turn.me(), Time(1), ());
    }

    fn handle(&self, (): &mut (), (): &(), turn: &mut Turn<'_, Self>) {
        turn.emit(self.written.fetch_add(1, Ordering::Relaxed));
        turn.send(turn.me(), Time(1 + u64::from(turn.me().0 % 3)), ());
    }

    fn undo(&self, (): &mut (), (): ()) {}
}

#[test]
fn few_records_are_held_back() {
    // Of each thread: what is being given on, what it has posted since, what it has collected since that; and what one
    // moment has.
    let conservative = |threads: u64| threads * (3 * (1 << 14) + 16);
    for (scheduler, threads, most) in [
        (Scheduler::Sequential, 1, 1),
        (Scheduler::Conservative, 1, conservative(1)),
        (Scheduler::Conservative, 2, conservative(2)),
        (Scheduler::Optimistic, 1, 2 * 500 + 16),
    ] {
        let (written, mut taken, mut held) = (AtomicU64::new(0), 0, 0);
        let mut simulation = Simulation::new(Talkative { written: &written }, 1).unwrap();
        let options = Options { scheduler, threads, ahead_max: 500, ..Options::default() };
        let count = |_| {
            held = held.max(written.load(Ordering::Relaxed) - taken);
            taken += 1;
        };
        let report = simulation.run_with(Time(40_000), &options, count).unwrap();
        assert!(report.events > 200_000);
        assert_eq!(taken, written.load(Ordering::Relaxed), "{scheduler:?}, {threads} threads");
        println!("{scheduler:?}, {threads} threads: {held} of {taken} held back at most");
        assert!(held <= most, "{scheduler:?}, {threads} threads: {held} held back; at most {most}");
    }
}

/// Emits at the start, or another record when an event is handled again.
struct Wrong {
    at_start: bool,
    calls: AtomicU64,
}

impl Model for Wrong {
    type State = ();
    type Message = ();
    type Undo = ();
    type Record = u64;

    fn processes(&self) -> u32 {
        1
    }

    fn lookahead(&self) -> Time {
        Time(1)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) {
        if self.at_start {
            turn.emit(0);
        }
        turn.send(turn.me(), Time(1), ());
    }

    fn handle(&self, (): &mut (), (): &(), turn: &mut Turn<'_, Self>) {
        turn.emit(self.calls.fetch_add(1, Ordering::Relaxed));
    }

    fn undo(&self, (): &mut (), (): ()) {}
}

#[test]
fn wrong_records_are_refused() {
    let wrong = |at_start| Wrong { at_start, calls: AtomicU64::new(0) };
    match Simulation::new(wrong(true), 0) {
        Err(Error::Fault(fault)) => {
            assert!(matches!(&fault.kind, FaultKind::Model(why) if why.contains("a record at the start")));
        }
        _ => panic!("it was accepted"),
    }
    let options = Options { scheduler: Scheduler::RollbackCheck, ..Options::default() };
    let error = Simulation::new(wrong(false), 0).unwrap().run(Time(9), &options).unwrap_err();
    let Error::NotReversible { process: ProcessId(0), what, .. } = error else { panic!("{error}") };
    assert_eq!(what, "handling the event again emitted other records");
}

/// A sink that panics ends the run.
#[test]
fn a_panic_of_the_sink_ends_the_run() {
    for (name, options) in hard_lives(1) {
        let mut simulation = Simulation::new(Failing { processes: 5 }, Stream::new(1, 1).bits()).unwrap();
        let mut run = || {
            let sink = |_| std::panic::resume_unwind(Box::new("on purpose"));
            simulation.run_with(Time(1 << 30), &options, sink).map(drop)
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut run));
        assert_eq!(*ended.unwrap_err().downcast_ref::<&str>().unwrap(), "on purpose", "{name}");
    }
}
