//! Checkpoints: byte for byte as format 26 says, and a run that goes on is the run that was never stopped.

#[allow(dead_code)]
mod common;

use common::{Message, State, Unpleasant};
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::phold::Phold;
use tidepool_sim::{Model, Options, Scheduler, Simulation, Time};

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

impl Saved for Message {
    fn save(&self, out: &mut Vec<u8>) {
        match self {
            Message::Number(number) => {
                0u8.save(out);
                number.save(out);
            }
            Message::Text(text) => {
                1u8.save(out);
                text.as_bytes().to_vec().save(out);
            }
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Message, LoadError> {
        let damaged = |_| LoadError::Damaged("a text is not UTF-8");
        match u8::load(from)? {
            0 => Ok(Message::Number(from.u64()?)),
            _ => String::from_utf8(Vec::load(from)?).map(Message::Text).map_err(damaged),
        }
    }
}

fn small() -> Phold<1> {
    Phold { processes: 2, messages: 1, remote: 0.5, lookahead: Time(10), mean: Time(100) }
}

/// Head, text, two processes, two messages, checksum.
#[rustfmt::skip]
const GOLDEN: [&str; 31] = [
    "545053494d554c00", // magic
    "01000000", // version
    "05000000", // about
    "e803000000000000", // time
    "1100000000000000", // events
    "0200000000000000", // processes
    "0200000000000000", // messages
    "736d616c6c", // about
    "927fefb7cdfdcc14", // position
    "7b1bb1f3a094a1ee", // step
    "0f00000000000000", // sent
    "9217ff106d38bbc3", // trace
    "0e00000000000000", // count
    "d8e157ff2b061601", // digest
    "84bdaa77b5f7bc6d", // position
    "a7cb023a5fcbbd60", // step
    "0400000000000000", // sent
    "796dbc2bf47634e4", // trace
    "0300000000000000", // count
    "93de23030c000000", // digest
    "1f04000000000000", // arrival
    "00000000", // source
    "00000000", // receiver
    "0d00000000000000", // sequence
    "4613c2d3a0810e00", // word
    "f904000000000000", // arrival
    "00000000", // source
    "01000000", // receiver
    "0e00000000000000", // sequence
    "d8e157ff2b061601", // word
    "24564c34", // CRC32C
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_are_those_of_the_format() {
    let mut simulation = Simulation::new(small(), 7).unwrap();
    simulation.run(Time(1_000), &Options::default()).unwrap();
    let bytes = simulation.save("small").unwrap();
    assert_eq!(hex(&bytes), GOLDEN.concat());
    let loaded = Simulation::load(small(), "small", &bytes).unwrap();
    assert_eq!((loaded.now(), loaded.events()), (Time(1_000), simulation.events()));
    assert_eq!(loaded.trace(), simulation.trace());
    assert_eq!(loaded.save("small").unwrap(), bytes);
}

fn schedulers(seed: u64) -> [Options<'static>; 3] {
    let of =
        |scheduler| Options { scheduler, threads: 2, forced_rollbacks: Some(seed), ..Options::default() };
    [of(Scheduler::Sequential), of(Scheduler::Conservative), of(Scheduler::Optimistic)]
}

#[test]
fn going_on_is_as_never_stopping_under_any_scheduler() {
    for seed in 0..30 {
        println!("seed {seed}");
        let model = Unpleasant::of(seed);
        let mut whole = Simulation::new(model.clone(), seed).unwrap();
        whole.run(Time(5_000), &Options::default()).unwrap();
        let mut kept: Option<Vec<u8>> = None;
        for options in schedulers(seed) {
            let mut first = Simulation::new(model.clone(), seed).unwrap();
            first.run(Time(700), &options).unwrap();
            let bytes = first.save("it").unwrap();
            // Also the same bytes, whoever came there.
            assert_eq!(*kept.get_or_insert_with(|| bytes.clone()), bytes);
            for options in schedulers(seed) {
                let mut then = Simulation::load(model.clone(), "it", &bytes).unwrap();
                then.run(Time(5_000), &options).unwrap();
                assert_eq!((then.trace(), then.events()), (whole.trace(), whole.events()));
                assert!(then.states().eq(whole.states()));
            }
        }
    }
}

fn refused<M: Model<State: Saved, Message: Saved>>(model: M, about: &str, bytes: &[u8]) -> LoadError {
    match Simulation::load(model, about, bytes) {
        Err(error) => error,
        Ok(_) => panic!("it was accepted"),
    }
}

#[test]
fn damage_is_found_wherever_it_is() {
    let mut simulation = Simulation::new(small(), 7).unwrap();
    simulation.run(Time(1_000), &Options::default()).unwrap();
    let bytes = simulation.save("small").unwrap();
    for at in 0..bytes.len() {
        refused(small(), "small", &bytes[..at]);
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        refused(small(), "small", &flipped);
    }
    assert!(matches!(refused(small(), "other", &bytes), LoadError::OtherModel(theirs) if theirs == "small"));
    let larger = Phold { processes: 3, ..small() };
    assert!(matches!(refused(larger, "small", &bytes), LoadError::Damaged(_)));
}

/// Wrong in what it says, with a checksum that fits: nothing is believed, and no memory taken for what is not there.
#[test]
fn hostile_checkpoints_are_refused() {
    let mut simulation = Simulation::new(small(), 7).unwrap();
    simulation.run(Time(1_000), &Options::default()).unwrap();
    let bytes = simulation.save("small").unwrap();
    let (about, messages) = (48 + "small".len(), 48 + "small".len() + 2 * 48);
    for (what, at, value) in [
        ("length of the text", 12, u64::MAX),
        ("time", 16, u64::MAX),
        ("processes", 32, u64::MAX),
        ("messages", 40, u64::MAX),
        ("fewer messages", 40, 1),
        ("text", about - 5, 0),
        ("a message before the checkpoint", messages, 3),
        ("after the end of time", messages, u64::MAX),
        ("sender and receiver", messages + 8, u64::MAX),
        ("out of order", messages, 1 << 50),
    ] {
        let mut hostile = bytes[..bytes.len() - 4].to_vec();
        hostile[at..at + 8].copy_from_slice(&value.to_le_bytes());
        hostile.extend(tidepool_blocks::crc::append(0, &hostile).to_le_bytes());
        println!("{what}: {}", refused(small(), "small", &hostile));
    }
}
