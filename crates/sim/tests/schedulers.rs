//! All schedulers come to the same end, event for event, on any model.

mod common;

use common::{State, Unpleasant, hard_lives};
use std::ops::ControlFlow;
use tidepool_sim::phold::Phold;
use tidepool_sim::{
    Error, FaultKind, Model, Options, ProcessId, Progress, Report, Scheduler, Simulation, Stream, Time, Turn,
};

/// What must be equal.
#[derive(Clone, PartialEq, Debug)]
struct Outcome<S> {
    events: u64,
    pending: usize,
    trace: u64,
    states: Vec<S>,
}

fn outcome<M: Model>(simulation: &Simulation<M>) -> Outcome<M::State> {
    Outcome {
        events: simulation.events(),
        pending: simulation.pending(),
        trace: simulation.trace(),
        states: simulation.states().cloned().collect(),
    }
}

fn run<M: Model>(model: M, seed: u64, ends: &[u64], options: &Options<'_>) -> (Outcome<M::State>, Report) {
    let mut simulation = Simulation::new(model, seed).unwrap();
    let mut last = Report::default();
    for end in ends {
        last = simulation.run(Time(*end), options).unwrap();
        assert_eq!(last.reached, Time(*end));
    }
    (outcome(&simulation), last)
}

#[test]
fn all_schedulers_agree_on_unpleasant_models() {
    let (mut events, mut undone) = (0, 0);
    for seed in 0..60 {
        let model = Unpleasant::of(seed);
        println!("seed {seed}: {model:?}");
        let end = [40, 3_000, 200_000, 1 << 40][(seed % 4) as usize];
        let reference = Options { scheduler: Scheduler::Reference, ..Options::default() };
        let (expected, _) = run(model.clone(), seed, &[end], &reference);
        events += expected.events;
        for (name, options) in hard_lives(seed) {
            let (seen, report) = run(model.clone(), seed, &[end], &options);
            assert_eq!(seen, expected, "seed {seed}, {name}");
            let bound = options.ahead_max as u64 + expected.events.min(options.ahead_max as u64).max(200);
            assert!(report.ahead <= bound, "seed {seed}, {name}: {report:?}");
            if options.scheduler == Scheduler::Optimistic {
                undone += report.undone;
            }
        }
    }
    println!("{events} events, {undone} undone");
    assert!(events > 20_000 && undone > 20_000, "{events} events, {undone} undone: the models are too tame");
}

#[test]
fn a_run_in_parts_under_changing_schedulers_is_the_same_run() {
    for seed in 100..130 {
        let model = Unpleasant::of(seed);
        let (expected, _) = run(model.clone(), seed, &[9_000], &Options::default());
        let mut simulation = Simulation::new(model, seed).unwrap();
        for (part, (name, options)) in hard_lives(seed).into_iter().enumerate() {
            println!("seed {seed}, part {part}: {name}");
            simulation.run(Time((part as u64 * 600).min(9_000)), &options).unwrap();
        }
        simulation.run(Time(9_000), &Options::default()).unwrap();
        assert_eq!(outcome(&simulation), expected, "seed {seed}");
    }
}

fn phold(lookahead: u64, remote: f64) -> Phold<8> {
    Phold { processes: 64, messages: 3, remote, lookahead: Time(lookahead), mean: Time(1_000) }
}

#[test]
fn phold_is_the_same_under_all_schedulers_and_rolls_back_for_real() {
    let (expected, _) = run(phold(1, 0.5), 7, &[60_000], &Options::default());
    // One message each 1001 ticks and process: the law of the model, not of the kernel.
    let mean = expected.events as f64 / (64.0 * 3.0 * 60_000.0 / 1_001.0);
    assert!((0.97..1.03).contains(&mean), "{mean}");
    for (name, options) in hard_lives(7) {
        let (seen, report) = run(phold(1, 0.5), 7, &[60_000], &options);
        assert_eq!(seen, expected, "{name}");
        assert!(report.efficiency() > 0.05, "{name}: {report:?}");
        if options.scheduler == Scheduler::Optimistic && options.threads > 1 && options.ahead_max > 1_000 {
            assert!(report.rollbacks > 0 && report.anti_messages > 0, "{name}: {report:?}");
        }
    }
}

#[test]
fn seeds_make_different_runs() {
    let trace = |seed| run(phold(10, 0.25), seed, &[5_000], &Options::default()).0.trace;
    assert_ne!(trace(1), trace(2));
    assert_eq!(trace(1), trace(1));
}

/// What runs have come to since the first release: a change of this number changes everybody's results.
#[test]
fn results_do_not_change_between_releases() {
    let (seen, _) = run(phold(100, 0.25), 1, &[10_000], &Options::default());
    assert_eq!((seen.events, seen.trace), (1_663, 17_017_472_588_244_673_593));
}

#[test]
fn memory_stays_within_the_limit() {
    for threads in [1, 2] {
        let options =
            Options { scheduler: Scheduler::Optimistic, threads, ahead_max: 50, ..Options::default() };
        let (_, report) = run(phold(1, 0.1), 3, &[100_000], &options);
        // Events at the GVT itself come on top; here few are at the same time.
        assert!(report.ahead <= 50 + 8, "{report:?}");
        assert!(report.events > 10_000);
    }
}

#[test]
fn progress_tells_of_the_run_and_ends_it() {
    use std::sync::atomic::{AtomicU64, Ordering};
    for scheduler in [Scheduler::Sequential, Scheduler::Conservative, Scheduler::Optimistic] {
        let calls = AtomicU64::new(0);
        let tell = |progress: Progress| {
            assert!(progress.now < Time(100_000_000) && progress.until == Time(100_000_000), "{progress:?}");
            match calls.fetch_add(1, Ordering::SeqCst) {
                2 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        };
        let mut simulation = Simulation::new(phold(300, 0.25), 5).unwrap();
        let options = Options { scheduler, threads: 2, progress: Some(&tell), ..Options::default() };
        let report = simulation.run(Time(100_000_000), &options).unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 3, "{scheduler:?}");
        assert!(report.reached < Time(100_000_000) && report.events < 400_000, "{scheduler:?}: {report:?}");
        // Where it ended is a point like any other.
        let (expected, _) = run(phold(300, 0.25), 5, &[report.reached.0], &Options::default());
        assert_eq!(outcome(&simulation), expected, "{scheduler:?}");
    }
}

/// Breaks a rule, late and on several processes.
struct Wrong {
    how: u8,
}

impl Model for Wrong {
    type State = u64;
    type Message = ();
    type Undo = ();
    type Record = u64;

    fn processes(&self) -> u32 {
        40
    }

    fn lookahead(&self) -> Time {
        Time(5)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> u64 {
        turn.send(turn.me(), Time(1), ());
        0
    }

    fn handle(&self, state: &mut u64, (): &(), turn: &mut Turn<'_, Self>) {
        turn.keep(|| ());
        *state += 1;
        turn.emit(*state);
        let other = ProcessId(turn.random().below(40) as u32);
        turn.send(other, Time(5 + turn.now().0 % 3), ());
        if *state == 30 {
            match self.how {
                0 => turn.send(ProcessId(40), Time(9), ()),
                1 => turn.send(ProcessId((turn.me().0 + 1) % 40), Time(4), ()),
                2 => turn.send(turn.me(), Time(0), ()),
                3 => turn.send(turn.me(), Time::MAX, ()),
                _ => turn.fail("the tank is empty"),
            }
        }
    }

    fn undo(&self, state: &mut u64, (): ()) {
        *state -= 1;
    }
}

#[test]
fn all_schedulers_name_the_same_first_fault() {
    for how in 0..5 {
        let ends = |options: &Options<'_>| {
            let mut simulation = Simulation::new(Wrong { how }, 11).unwrap();
            let error = simulation.run(Time(1 << 30), options).unwrap_err();
            assert_eq!(simulation.run(Time(1 << 31), options), Err(Error::Broken));
            error
        };
        let expected = ends(&Options { scheduler: Scheduler::Reference, ..Options::default() });
        println!("{expected}");
        let Error::Fault(fault) = &expected else { panic!("{expected}") };
        match (how, &fault.kind) {
            (0, FaultKind::NoSuchProcess { .. }) | (1 | 2, FaultKind::TooSoon { .. }) => {}
            (3, FaultKind::TooLate { .. }) | (4, FaultKind::Model(_)) => {}
            other => panic!("{other:?}"),
        }
        for (name, options) in hard_lives(3) {
            assert_eq!(ends(&options), expected, "{name}");
        }
    }
}

/// Undoes wrongly from some event on.
struct Forgetful {
    random: bool,
}

impl Model for Forgetful {
    type State = (u64, u64);
    type Message = u64;
    type Undo = u64;
    type Record = u64;

    fn processes(&self) -> u32 {
        2
    }

    fn lookahead(&self) -> Time {
        Time(1)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> (u64, u64) {
        turn.send(turn.me(), Time(1), 0);
        (0, 0)
    }

    fn handle(&self, state: &mut (u64, u64), message: &u64, turn: &mut Turn<'_, Self>) {
        if !(self.random && *message == 20) {
            let was = state.0;
            turn.keep(|| was);
        }
        state.0 += message;
        if !self.random && *message == 10 {
            state.1 += 1;
        }
        turn.send(turn.me(), Time(3), message + 1);
    }

    fn undo(&self, state: &mut (u64, u64), change: u64) {
        state.0 = change;
    }
}

#[test]
fn the_rollback_check_finds_what_is_not_undone() {
    for (random, time) in [(false, 31), (true, 61)] {
        let mut simulation = Simulation::new(Forgetful { random }, 0).unwrap();
        let options = Options { scheduler: Scheduler::RollbackCheck, ..Options::default() };
        let error = simulation.run(Time(1_000), &options).unwrap_err();
        let Error::NotReversible { at, process, .. } = &error else { panic!("{error}") };
        assert_eq!((at.time, *process), (Time(time), ProcessId(0)), "{error}");
    }
}

#[test]
fn what_has_no_sense_is_refused() {
    let refused = |model: Phold<1>| match Simulation::new(model, 0) {
        Err(Error::Invalid(why)) => why,
        _ => panic!("it was accepted"),
    };
    let good = Phold { processes: 2, messages: 1, remote: 0.0, lookahead: Time(1), mean: Time(1) };
    assert!(refused(Phold { processes: 0, ..good.clone() }).contains("1 to"));
    assert!(refused(Phold { lookahead: Time(0), ..good.clone() }).contains("lookahead"));
    let mut simulation = Simulation::new(good, 0).unwrap();
    for options in
        [Options { threads: 0, ..Options::default() }, Options { ahead_max: 0, ..Options::default() }]
    {
        assert!(matches!(simulation.run(Time(5), &options), Err(Error::Invalid(_))));
    }
    assert!(matches!(simulation.run(Time(u64::MAX), &Options::default()), Err(Error::Invalid(_))));
    // Nothing was lost by that.
    assert_eq!(simulation.run(Time(50), &Options::default()).unwrap().reached, Time(50));
}

struct Panics;

impl Model for Panics {
    type State = ();
    type Message = ();
    type Undo = ();
    type Record = ();

    fn processes(&self) -> u32 {
        8
    }

    fn lookahead(&self) -> Time {
        Time(1)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) {
        turn.send(turn.me(), Time(1), ());
    }

    fn handle(&self, (): &mut (), (): &(), turn: &mut Turn<'_, Self>) {
        if turn.me() == ProcessId(5) && turn.now() > Time(50) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        turn.send(turn.me(), Time(1), ());
    }

    fn undo(&self, (): &mut (), (): ()) {}
}

#[test]
fn a_models_panic_ends_the_run_and_not_in_a_hang() {
    for scheduler in [Scheduler::Conservative, Scheduler::Optimistic] {
        let mut simulation = Simulation::new(Panics, 0).unwrap();
        let options = Options { scheduler, threads: 3, ..Options::default() };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            simulation.run(Time(1_000_000_000), &options).map(drop)
        }));
        assert_eq!(*ended.unwrap_err().downcast_ref::<&str>().unwrap(), "on purpose");
    }
}

/// A stream is a process's own: another process's draws do not move it.
#[test]
fn streams_do_not_depend_on_other_processes() {
    let first = |processes| {
        let model = Phold::<1> {
            processes,
            ..Phold { processes: 1, messages: 1, remote: 0.0, lookahead: Time(1), mean: Time(90) }
        };
        run(model, 4, &[10_000], &Options::default()).0.states[0].clone()
    };
    assert_eq!(first(1), first(50));
    let mut stream = Stream::new(4, 0);
    assert!(stream.exponential(Time(90)) < Time(90 * 40));
}

#[test]
fn default_states_are_those_at_the_start() {
    let simulation = Simulation::new(Unpleasant::of(3), 3).unwrap();
    assert_eq!((simulation.now(), simulation.events()), (Time(0), 0));
    assert!(simulation.states().all(|state: &State| state.table.len() == 5 && state.total == 0));
}
