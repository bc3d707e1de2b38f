//! A measured device with so many clients, each with one request under way, as the event kernel would have it: the recursion of
//! [`crate::device::MeasuredSpec`] without the kernel, so that a fit can go through it ten thousand times. A test holds the two
//! together.

use super::run::Config;

/// How many figures a class has.
pub const COUNT: usize = 6;
/// Figures of a class: nanoseconds of an operation, of a byte, of the setup, of a byte in a lane, of a batch, and of the wait
/// after which bytes take twice as long.
pub type Figures = [f64; COUNT];

/// Draws of each stage, one after the other: as many as a run of random times needs to show its mean rate.
const DRAWS: usize = 512;
/// Requests of each client when nothing is drawn: the start is left out, then it repeats itself.
const ROUNDS: usize = 12;

/// Which times are drawn from exponential distributions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drawn {
    Nothing,
    /// Of the operations, which go through one at a time.
    Operation,
    /// Also of the setup.
    Both,
}

impl Drawn {
    pub const ALL: [Drawn; 3] = [Drawn::Nothing, Drawn::Operation, Drawn::Both];
}

/// How the stages are: see [`crate::device::MeasuredSpec`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stages {
    pub lanes: u32,
    pub joined: bool,
    /// Whether a batch costs anything.
    pub batched: bool,
    /// Whether bytes take longer when more wait.
    pub crowded: bool,
    pub drawn: Drawn,
}

/// Exponential draws with mean 1, each part of the distribution as often as it should be, in a fixed order.
pub struct Draws([Vec<f64>; 2]);

impl Draws {
    pub fn new() -> Draws {
        let of = |seed: u64| {
            let at = |n: u64| {
                let place = crate::workload::permuted(n, DRAWS as u64, seed);
                -tidepool_sim::ln(1.0 - (place as f64 + 0.5) / DRAWS as f64)
            };
            let mut all: Vec<f64> = (0..DRAWS as u64).map(at).collect();
            let mean = all.iter().sum::<f64>() / DRAWS as f64;
            all.iter_mut().for_each(|draw| *draw /= mean);
            all
        };
        Draws([of(1), of(2)])
    }
}

fn first(times: &[f64]) -> usize {
    let mut least = 0;
    for (at, time) in times.iter().enumerate() {
        if *time < times[least] {
            least = at;
        }
    }
    least
}

/// Requests/s.
pub fn rate(figures: &Figures, stages: Stages, draws: &Draws, config: &Config) -> f64 {
    let Stages { lanes, joined, batched, crowded, drawn } = stages;
    let clients = config.clients as usize;
    let bytes = f64::from(config.bytes);
    let [operation, byte, setup, lane_byte, batch, crowding] = *figures;
    let mut ready = vec![0.0; clients];
    let mut lane = vec![0.0; (lanes as usize).min(clients)];
    let (mut operations, mut moved, mut begun) = (0.0f64, 0.0f64, 0.0f64);
    let count = match drawn {
        Drawn::Nothing => ROUNDS * clients.max(lane.len()),
        _ => DRAWS.max(ROUNDS * clients),
    };
    let mut ends = Vec::with_capacity(count);
    for n in 0..count {
        let draw = |stage: usize| draws.0[stage][n % DRAWS];
        let [o, s] = match drawn {
            Drawn::Nothing => [1.0, 1.0],
            Drawn::Operation => [draw(0), 1.0],
            Drawn::Both => [draw(0), draw(1)],
        };
        let client = first(&ready);
        let alone = batched && ready[client] >= begun;
        let begins = operations.max(ready[client]);
        if alone {
            begun = begins;
        }
        operations = begins + operation * o + if alone { batch } else { 0.0 };
        let from = if joined { operations } else { operations.max(moved) };
        let longer = if crowded { ((from - ready[client]) / crowding).min(1.0) } else { 0.0 };
        moved = from + byte * bytes * (1.0 + longer);
        if joined {
            operations = moved;
        }
        let own = first(&lane);
        lane[own] = lane[own].max(moved) + setup * s + lane_byte * bytes;
        ready[client] = lane[own];
        ends.push(lane[own]);
    }
    ends.sort_by(f64::total_cmp);
    let (begin, end) = (count / 4, count - clients.min(count / 4));
    (end - 1 - begin) as f64 * 1e9 / (ends[end - 1] - ends[begin]).max(f64::MIN_POSITIVE)
}
