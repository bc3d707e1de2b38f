//! A system that goes on from a checkpoint is the system that was never stopped, and bytes that are no checkpoint are refused.

mod common;

use common::{application, even, fast_network, fixed, idle_server, random_system, station, writes};
use tidepool_sim::checkpoint::{LoadError, Reader, checksum};
use tidepool_sim::{Emitted, Options, Scheduler, Simulation, Stream, Time};
use tidepool_sim_models::observe::Observer;
use tidepool_sim_models::workload::Program;
use tidepool_sim_models::{Class, Pfs, Record, Results, State, load};

/// All that is written out, too.
fn system(seed: u64) -> Pfs {
    let mut pfs = random_system(seed);
    (pfs.keep_requests, pfs.keep_steps, pfs.keep_pieces, pfs.keep_work) = (true, true, true, true);
    pfs
}

/// What a run gives on: its records, and what is seen of them.
struct Seen {
    records: Vec<(Time, Record)>,
    observer: Observer,
}

impl Seen {
    fn new(pfs: &Pfs) -> Seen {
        Seen { records: Vec::new(), observer: Observer::new(pfs) }
    }

    fn take(&mut self, emitted: Emitted<Record>) {
        self.observer.take(&emitted);
        self.records.push((emitted.at.time, emitted.record));
    }

    fn observed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.observer.save(&mut bytes);
        bytes
    }
}

fn run_to(simulation: &mut Simulation<Pfs>, until: Time, options: &Options<'_>, seen: &mut Seen) {
    simulation.run_with(until, options, |emitted| seen.take(emitted)).unwrap();
}

fn ways(seed: u64) -> Vec<Options<'static>> {
    let mut ways = vec![Options::default()];
    for threads in [1, 2] {
        ways.push(Options { scheduler: Scheduler::Conservative, threads, ..Options::default() });
        let forced_rollbacks = Some(seed);
        let scheduler = Scheduler::Optimistic;
        ways.push(Options { scheduler, threads, forced_rollbacks, ..Options::default() });
    }
    ways
}

/// Stops at three points, each time under another scheduler, keeps all in bytes, and goes on from them.
#[test]
fn going_on_is_as_never_stopping() {
    let mut stopped = 0;
    for seed in 0..40 {
        println!("seed {seed}");
        let mut whole = Simulation::new(system(seed), seed).unwrap();
        let mut expected = Seen::new(whole.model());
        run_to(&mut whole, Time::MAX, &Options::default(), &mut expected);
        let end = Results::of(&whole, Default::default()).quiet.0;
        let states: Vec<State> = whole.states().cloned().collect();
        let ways = ways(seed);
        let mut random = Stream::new(seed, 1);
        let mut at_first: Option<Vec<u8>> = None;
        let points = [random.below(end.max(1)), random.below(end.max(1)), random.below(end.max(1))];
        for first in 0..ways.len() {
            let (mut simulation, mut until) = (Simulation::new(system(seed), seed).unwrap(), 0);
            let mut seen = Seen::new(simulation.model());
            for (number, point) in points.iter().enumerate() {
                until = point.max(&until) + 1;
                run_to(&mut simulation, Time(until), &ways[(first + number) % ways.len()], &mut seen);
                let bytes = simulation.save("it").unwrap();
                if number == 0 {
                    // The same bytes, whoever came there.
                    assert!(
                        *at_first.get_or_insert_with(|| bytes.clone()) == bytes,
                        "seed {seed}, way {first}"
                    );
                }
                stopped += simulation.pending();
                simulation = load(system(seed), "it", &bytes).unwrap();
                let observed = seen.observed();
                let mut from = Reader::new(&observed);
                seen.observer = Observer::load(simulation.model(), &mut from).unwrap();
                assert!(from.is_empty() && seen.observed() == observed, "seed {seed}");
            }
            run_to(&mut simulation, Time::MAX, &ways[first], &mut seen);
            let name = format!("seed {seed}, way {first}");
            assert_eq!((simulation.trace(), simulation.events()), (whole.trace(), whole.events()), "{name}");
            assert!(simulation.states().eq(&states), "{name}");
            assert!(seen.records == expected.records, "{name}");
            assert!(seen.observed() == expected.observed(), "{name}");
        }
    }
    assert!(stopped > 3_000, "{stopped} messages on their way: stopped where nothing happens");
}

fn small() -> Pfs {
    let classes = vec![Class::new("s", 1, station(1, fixed(1_000)))];
    let program = Program::Ior(writes(1, 1));
    let mut pfs =
        Pfs::new(fast_network(100), idle_server(10), classes, even(65_536, 1), vec![application(program)])
            .unwrap();
    pfs.keep_requests = true;
    pfs
}

/// Head, text, server, device and client, the message that the device is done, checksum.
#[rustfmt::skip]
const GOLDEN: [&str; 80] = [
    "545053494d554c00", // magic
    "01000000", // version
    "05000000", // about
    "f401000000000000", // time
    "0300000000000000", // events
    "0300000000000000", // processes
    "0100000000000000", // messages
    "736d616c6c", // about
    "c1bdb866ccabb574", // server: position
    "7b1bb1f3a094a1ee", // step
    "0100000000000000", // sent
    "1eeb9013fe31c7d7", // trace
    "01", // a server
    "00000000", // number
    "0000000000000000", // link out
    "6500000000000000", // link in
    "0000000000000000", // requests
    "01000000", // inside
    "01000000", // most inside
    "0000000000000000", // busy
    "0100000000000000", // threads
    "6500000000000000", // free
    "00", // no buffer
    "00", // no cache
    "fec88e33fd0553a6", // device: position
    "a7cb023a5fcbbd60", // step
    "0100000000000000", // sent
    "a90953a86055bb57", // trace
    "02", // a device
    "00000000", // number
    "04", // a station
    "0100000000000000", // lanes
    "5704000000000000", // free
    "0100000000000000", // requests
    "0000000000000000", // bytes read
    "0000010000000000", // bytes written
    "e803000000000000", // busy
    "5704000000000000", // busy until
    "e803000000000000", // time
    "5704000000000000", // last
    "00", // no queue
    "3d1e6e29d821af9a", // client: position
    "c567af32531b9974", // step
    "0200000000000000", // sent
    "e1537f6c13565124", // trace
    "00", // a client
    "00000000", // application
    "00000000", // rank
    "01000000", // next
    "00", // pausing
    "00000000", // arrived
    "0100000000000000", // link out
    "0000000000000000", // link in
    "0000000000000000", // requests
    "0000000000000000", // failed
    "0000000000000000", // bytes read
    "0000000000000000", // bytes written
    "0000000000000000", // waited
    "0000000000000000", // last
    "0100000000000000", // under way
    "00000000", // number
    "01000000", // answers left
    "0100000000000000", // begin
    "0100000000000000", // end
    "6104000000000000", // arrival
    "01000000", // source
    "00000000", // receiver
    "0000000000000000", // sequence
    "0a", // complete
    "02", // write
    "00000000", // file
    "00000000", // request
    "0000000000000000", // offset
    "0000000000000000", // local
    "00000100", // length
    "02000000", // sender
    "00000000", // server
    "0100000000000000", // start
    "6500000000000000", // end
    "9cb4ffc7", // CRC32C
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_are_those_of_the_format() {
    let mut simulation = Simulation::new(small(), 7).unwrap();
    simulation.run(Time(500), &Options::default()).unwrap();
    let bytes = simulation.save("small").unwrap();
    assert_eq!(hex(&bytes), GOLDEN.concat());
    let loaded = load(small(), "small", &bytes).unwrap();
    assert!(loaded.save("small").unwrap() == bytes);
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - 4);
    let sum = checksum(0, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// What the events of a state do that somebody made up is not asked for, but that nothing panics on the way.
fn live(seed: u64, bytes: &[u8]) -> bool {
    let Ok(mut simulation) = load(system(seed), "it", bytes) else { return false };
    let until = simulation.now().plus(Time(20_000_000));
    let stop = |_: tidepool_sim::Progress| std::ops::ControlFlow::Break(());
    let options = Options { progress: Some(&stop), ..Options::default() };
    // An error is as good as an end.
    let _ = simulation.run(until, &options);
    true
}

/// Changed numbers with a checksum that fits: refused, or a state that can be gone on from without a panic.
#[test]
fn forged_states_are_refused_or_harmless() {
    let (mut refused, mut lived) = (0, 0);
    for seed in 0..40 {
        let mut simulation = Simulation::new(system(seed), seed).unwrap();
        simulation.run(Time(3_000_000), &Options::default()).unwrap();
        let bytes = simulation.save("it").unwrap();
        let mut random = Stream::new(seed, 99);
        for round in 0..60 {
            let mut forged = bytes.clone();
            let at = 50 + random.below(forged.len() as u64 - 60) as usize;
            let value = [0, 1, u64::MAX, random.bits(), random.below(1 << 20)][random.below(5) as usize];
            let width = [1, 4, 8][random.below(3) as usize].min(forged.len() - 4 - at);
            forged[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            println!("seed {seed}, round {round}: {width} bytes at {at} are {value:x}");
            match live(seed, &resealed(forged)) {
                true => lived += 1,
                false => refused += 1,
            }
        }
    }
    println!("{refused} refused, {lived} harmless");
    assert!(refused > 200 && lived > 200, "{refused} refused, {lived} harmless");
}

#[test]
fn cut_and_damaged_states_are_refused() {
    let mut simulation = Simulation::new(system(3), 3).unwrap();
    simulation.run(Time(3_000_000), &Options::default()).unwrap();
    let bytes = simulation.save("it").unwrap();
    let is_refused = |bytes: &[u8]| load(system(3), "it", bytes).is_err();
    for at in (0..bytes.len()).step_by(7) {
        assert!(is_refused(&bytes[..at]), "cut at {at}");
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(is_refused(&flipped), "damaged at {at}");
        // Cut, and sealed again.
        if at > 60 {
            assert!(is_refused(&resealed(bytes[..at].to_vec())), "ends at {at}");
        }
    }
    let other = load(system(3), "another", &bytes);
    assert!(matches!(other, Err(LoadError::OtherModel(theirs)) if theirs == "it"));
}

/// What was seen: each cut and each forged number is refused, or can be gone on from.
#[test]
fn forged_observers_are_refused_or_harmless() {
    let mut simulation = Simulation::new(system(5), 5).unwrap();
    let mut seen = Seen::new(simulation.model());
    run_to(&mut simulation, Time(3_000_000), &Options::default(), &mut seen);
    let (bytes, pfs) = (seen.observed(), system(5));
    let mut records = Vec::new();
    simulation.run_with(Time::MAX, &Options::default(), |emitted| records.push(emitted)).unwrap();
    let mut random = Stream::new(5, 5);
    let mut refused = 0;
    for round in 0..2_000 {
        let mut forged = bytes.clone();
        let at = random.below(forged.len() as u64) as usize;
        if round % 3 == 0 {
            forged.truncate(at);
            assert!(Observer::load(&pfs, &mut Reader::new(&forged)).is_err(), "cut at {at}");
            continue;
        }
        let value = [0, u64::MAX, random.bits()][random.below(3) as usize];
        let width = [1, 8][random.below(2) as usize].min(forged.len() - at);
        forged[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        println!("round {round}: {width} bytes at {at} are {value:x}");
        match Observer::load(&pfs, &mut Reader::new(&forged)) {
            Ok(mut observer) => {
                records.iter().for_each(|emitted| observer.take(emitted));
                observer.by_op().iter().for_each(|(_, requests)| {
                    requests.latencies.quantile(0.99);
                });
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "{refused} refused");
}
