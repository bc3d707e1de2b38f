//! Runs over ranks come to the same as one thread does: end, records, first fault. And they end when one of them cannot go on.

#[allow(dead_code)]
mod common;

use common::ranks::{Local, links, on_ranks};
use common::{Message, State, Unpleasant};
use proptest::prelude::*;
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::phold::Phold;
use tidepool_sim::{
    Emitted, Error, Model, Options, Over, ProcessId, Report, Scheduler, Simulation, Stream, Time, Turn,
};

impl Saved for Message {
    fn save(&self, out: &mut Vec<u8>) {
        match self {
            Message::Number(number) => {
                out.push(0);
                number.save(out);
            }
            Message::Text(text) => {
                out.push(1);
                text.save(out);
            }
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Message, LoadError> {
        match u8::load(from)? {
            0 => Ok(Message::Number(from.u64()?)),
            1 => Ok(Message::Text(String::load(from)?)),
            _ => Err(LoadError::Damaged("neither number nor text")),
        }
    }
}

impl Saved for State {
    fn save(&self, out: &mut Vec<u8>) {
        [self.total, self.sent].save(out);
        self.queue.save(out);
        self.table.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<State, LoadError> {
        let [total, sent] = <[u64; 2]>::load(from)?;
        Ok(State { total, sent, queue: Saved::load(from)?, table: Saved::load(from)? })
    }
}

/// The whole of a simulation's end, and the records it gave.
type End<M> = (Vec<u8>, u64, Vec<Emitted<<M as Model>::Record>>);

fn alone<M: Model<State: Saved, Message: Saved>>(model: M, seed: u64, ends: &[u64]) -> End<M> {
    let (mut simulation, mut rows) = (Simulation::new(model, seed).unwrap(), Vec::new());
    for end in ends {
        let options = Options { scheduler: Scheduler::Reference, ..Options::default() };
        simulation.run_with(Time(*end), &options, |row| rows.push(row)).unwrap();
    }
    (simulation.save("").unwrap(), simulation.trace(), rows)
}

fn over<M>(
    link: &mut Local,
    model: M,
    seed: u64,
    ends: &[u64],
    options: &Options<'_>,
) -> Result<(End<M>, Report), Error>
where
    M: Model<State: Saved, Message: Saved, Record: Saved>,
{
    let (mut simulation, mut rows, mut total) =
        (Simulation::new(model, seed)?, Vec::new(), Report::default());
    for end in ends {
        let mut over = Over { link, about: "a test" };
        total.then(&simulation.run_over_with(Time(*end), options, &mut over, |row| rows.push(row))?);
    }
    Ok(((simulation.save("")?, simulation.trace(), rows), total))
}

/// Both schedulers, with what makes their lives hard.
fn lives(seed: u64) -> Vec<Options<'static>> {
    let mut lives = Vec::new();
    for threads in [1, 2] {
        lives.push(Options { scheduler: Scheduler::Conservative, threads, ..Options::default() });
        for (ahead_max, forced_rollbacks) in [(1 << 16, None), (7, Some(seed))] {
            let scheduler = Scheduler::Optimistic;
            lives.push(Options { scheduler, threads, ahead_max, forced_rollbacks, ..Options::default() });
        }
    }
    lives
}

fn told(options: &Options<'_>) -> String {
    format!("{:?}, {} threads, {:?}", options.scheduler, options.threads, options.forced_rollbacks)
}

#[test]
fn runs_over_ranks_come_to_the_same() {
    let (mut events, mut undone, mut records) = (0, 0, 0);
    for seed in 0..16 {
        let model = Unpleasant::of(seed);
        println!("seed {seed}: {model:?}");
        let end = [40, 3_000, 200_000, 1 << 40][(seed % 4) as usize];
        let expected = alone(model.clone(), seed, &[end]);
        for ranks in [1, 2, 3] {
            for options in lives(seed) {
                let what = format!("seed {seed}, {ranks} ranks, {}", told(&options));
                let parts = [end / 3, end];
                let all = on_ranks(links(ranks), |link| over(link, model.clone(), seed, &parts, &options));
                for (rank, ended) in all.into_iter().enumerate() {
                    let ((bytes, trace, rows), report) = ended.unwrap().unwrap();
                    assert!((bytes, trace) == (expected.0.clone(), expected.1), "{what}: rank {rank}");
                    // Rank 0 alone writes.
                    assert_eq!(rows, if rank == 0 { expected.2.clone() } else { Vec::new() }, "{what}");
                    (events, undone) = (events + report.events, undone + report.undone);
                    records += rows.len();
                }
            }
        }
    }
    println!("{events} events, {undone} undone, {records} records");
    assert!(events > 20_000 && undone > 5_000 && records > 5_000, "{events}, {undone}, {records}: too tame");
}

#[test]
fn phold_over_ranks_goes_back_for_real() {
    let model =
        || Phold::<2> { processes: 64, messages: 3, remote: 0.5, lookahead: Time(1), mean: Time(1_000) };
    let mut expected = Simulation::new(model(), 7).unwrap();
    expected.run(Time(30_000), &Options::default()).unwrap();
    let options = Options { scheduler: Scheduler::Optimistic, ..Options::default() };
    for ended in on_ranks(links(2), |link| {
        let mut simulation = Simulation::new(model(), 7).unwrap();
        let report = simulation.run_over(Time(30_000), &options, &mut Over { link, about: "phold" }).unwrap();
        (simulation.trace(), simulation.events(), report)
    }) {
        let (trace, events, report) = ended.unwrap();
        assert_eq!((trace, events), (expected.trace(), expected.events()));
        assert!(report.rollbacks > 0 && report.anti_messages > 0, "{report:?}");
    }
}

/// Fails on several processes at about the same time; writes a row at each event.
struct Fails {
    panics: bool,
}

impl Model for Fails {
    type State = u64;
    type Message = u64;
    type Undo = ();
    type Record = u64;

    fn processes(&self) -> u32 {
        40
    }

    fn lookahead(&self) -> Time {
        Time(5)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> u64 {
        turn.send(turn.me(), Time(1), 0);
        0
    }

    fn handle(&self, state: &mut u64, _: &u64, turn: &mut Turn<'_, Self>) {
        turn.keep(|| ());
        *state += 1;
        turn.emit(*state);
        let other = ProcessId(turn.random().below(40) as u32);
        turn.send(other, Time(5 + turn.now().0 % 3), *state);
        if *state == 30 && self.panics {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        if *state == 30 {
            turn.fail(format!("the tank of process {} is empty", turn.me().0));
        }
    }

    fn undo(&self, state: &mut u64, (): ()) {
        *state -= 1;
    }
}

#[test]
fn all_ranks_name_the_same_first_fault() {
    let run = |options: &Options<'_>, link: Option<&mut Local>| {
        let (mut rows, mut simulation) = (Vec::new(), Simulation::new(Fails { panics: false }, 11).unwrap());
        let ended = match link {
            None => simulation.run_with(Time(1 << 30), options, |row| rows.push(row)),
            Some(link) => {
                let mut over = Over { link, about: "fails" };
                simulation.run_over_with(Time(1 << 30), options, &mut over, |row| rows.push(row))
            }
        };
        (ended.unwrap_err(), rows)
    };
    let expected = run(&Options { scheduler: Scheduler::Reference, ..Options::default() }, None);
    assert!(matches!(expected.0, Error::Fault(_)) && expected.1.len() > 100);
    for ranks in [2, 3] {
        for options in lives(5) {
            let all = on_ranks(links(ranks), |link| run(&options, Some(link)));
            for (rank, ended) in all.into_iter().enumerate() {
                let (error, rows) = ended.unwrap();
                assert_eq!(error, expected.0, "{ranks} ranks, {}", told(&options));
                assert_eq!(
                    rows,
                    if rank == 0 { expected.1.clone() } else { Vec::new() },
                    "{}",
                    told(&options)
                );
            }
        }
    }
}

#[test]
fn when_one_rank_panics_the_others_end_with_an_error() {
    for options in lives(1) {
        let all = on_ranks(links(3), |link| {
            let mut simulation = Simulation::new(Fails { panics: true }, 11).unwrap();
            simulation.run_over(Time(1 << 30), &options, &mut Over { link, about: "panics" })
        });
        let (panicked, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_err);
        assert!(!panicked.is_empty(), "{}", told(&options));
        for ended in ended {
            let error = ended.unwrap().unwrap_err();
            assert!(matches!(error, Error::Ranks(_)) && error.to_string().contains("is gone"), "{error}");
        }
    }
}

#[test]
fn ranks_that_differ_find_out() {
    let same = || (2, 100, 1, 50_000, "phold".to_string());
    let differ = |change: fn(&mut (u64, u64, usize, u64, String)), expected: &str| {
        for ended in on_ranks(links(2), |link| {
            let (mut seed, mut lookahead, mut threads, mut until, mut about) = same();
            if tidepool_sim::Link::rank(link) == 1 {
                let mut all = same();
                change(&mut all);
                (seed, lookahead, threads, until, about) = all;
            }
            let model = Phold::<1> {
                processes: 9,
                messages: 2,
                remote: 0.5,
                lookahead: Time(lookahead),
                mean: Time(900),
            };
            let scheduler = Scheduler::Conservative;
            let options = Options { scheduler, threads, ..Options::default() };
            let mut simulation = Simulation::new(model, seed).unwrap();
            simulation.run_over(Time(until), &options, &mut Over { link, about: &about })
        }) {
            let error = ended.unwrap().unwrap_err().to_string();
            assert!(error.contains("runs something else") && error.contains(expected), "{error}");
        }
    };
    differ(|all| all.0 = 3, "seed");
    differ(|all| all.1 = 101, "lookahead: 10");
    differ(|all| all.2 = 2, "threads: ");
    differ(|all| all.3 = 60_000, "until: ");
    differ(|all| all.4 = "tidepool".into(), "tidepool");
}

#[test]
fn one_thread_alone_cannot_be_several_ranks() {
    for ended in on_ranks(links(2), |link| over(link, Unpleasant::of(1), 1, &[50], &Options::default())) {
        let error = ended.unwrap().unwrap_err().to_string();
        assert!(error.contains("conservative or the optimistic"), "{error}");
    }
    // One is nothing but a run.
    let all = on_ranks(links(1), |link| over(link, Unpleasant::of(1), 1, &[50], &Options::default()));
    assert!(all.into_iter().all(|ended| ended.unwrap().unwrap().0.1 == alone(Unpleasant::of(1), 1, &[50]).1));
}

/// Both ranks' ends when what rank 1 gives in one call is changed. A call that never comes changes nothing.
fn tampered(
    seed: u64,
    options: &Options<'_>,
    call: u64,
    change: impl Fn(&mut Vec<u8>) + Send + Copy + 'static,
) -> bool {
    let mut all = links(2);
    all[1].tamper = Box::new(move |number, bytes| {
        if number == call {
            change(bytes);
        }
    });
    let ends = on_ranks(all, |link| over(link, Unpleasant::of(seed), seed, &[3_000], options).map(drop));
    let mut failed = false;
    for end in ends {
        // No rank panics, whatever it is sent.
        if let Err(error) = end.unwrap() {
            assert!(matches!(error, Error::Ranks(_)), "{error}");
            failed = true;
        }
    }
    failed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bytes_that_are_nothing_end_a_run_with_an_error(
        seed in 0u64..12, call in 1u64..8, len in 0usize..200, of in any::<u64>(), optimistic in any::<bool>(),
        head in any::<bool>(),
    ) {
        let scheduler = if optimistic { Scheduler::Optimistic } else { Scheduler::Conservative };
        let options = Options { scheduler, ..Options::default() };
        // With the first bytes of what should have come, so that what follows is looked at.
        let failed = tampered(seed, &options, call, move |bytes| {
            let mut random = Stream::new(of, 0);
            bytes.truncate(if head { 9 + 33 } else { 0 });
            bytes.extend((0..len).map(|_| random.bits() as u8));
        });
        prop_assert!(failed || call > 3);
    }

    #[test]
    fn bytes_that_end_early_end_a_run_with_an_error(seed in 0u64..12, call in 1u64..12, cut in any::<u64>()) {
        let options = Options { scheduler: Scheduler::Optimistic, ..Options::default() };
        tampered(seed, &options, call, move |bytes| bytes.truncate((cut % bytes.len().max(1) as u64) as usize));
    }

    #[test]
    fn a_changed_bit_ends_no_rank_with_a_panic(seed in 0u64..12, call in 1u64..12, at in any::<u64>()) {
        let options = Options { scheduler: Scheduler::Conservative, ..Options::default() };
        tampered(seed, &options, call, move |bytes| {
            let at = at % (bytes.len() as u64 * 8).max(1);
            if let Some(byte) = bytes.get_mut((at / 8) as usize) {
                *byte ^= 1 << (at % 8);
            }
        });
    }
}
