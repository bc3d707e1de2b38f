//! A model that is as unpleasant as a seed makes it: ties, hot spots, crowds, processes that fall silent, states of several
//! parts that are undone in different ways.

#[allow(dead_code, reason = "not every test has ranks")]
pub mod ranks;

use std::collections::VecDeque;
use tidepool_sim::{Model, Options, ProcessId, Scheduler, Stream, Time, Turn};

#[derive(Clone, Debug)]
pub struct Unpleasant {
    pub processes: u32,
    pub lookahead: u64,
    /// Delays are multiples of this, so that many are equal.
    pub grain: u64,
    pub delay_most: u64,
    /// Of 100: messages to process 0, to oneself; the others go anywhere.
    pub hot: u64,
    pub own: u64,
    /// Of 100 messages, how many are answered with two, how many with none. Crowds die out at `most_sent`.
    pub two: u64,
    pub none: u64,
    /// A process sends no more than this many.
    pub most_sent: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    pub total: u64,
    pub sent: u64,
    pub queue: VecDeque<u64>,
    pub table: Vec<u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    Number(u64),
    Text(String),
}

pub enum Undo {
    /// Old value.
    Total(u64),
    Sent,
    Pushed,
    /// What was taken from the front.
    Popped(u64),
    /// Where, and what was there.
    Table(usize, u64),
}

const TABLE: usize = 5;

impl Unpleasant {
    pub fn of(seed: u64) -> Unpleasant {
        let mut random = Stream::new(seed, 1 << 40);
        let mut among = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        Unpleasant {
            processes: among(&[1, 2, 3, 5, 17, 64]) as u32,
            lookahead: among(&[1, 1, 2, 50, 1_000]),
            grain: among(&[1, 1, 10, 1_000]),
            delay_most: among(&[1, 3, 100, 5_000]),
            hot: among(&[0, 0, 30, 90]),
            own: among(&[0, 10, 50, 90, 100]),
            two: among(&[0, 20, 40]),
            none: among(&[0, 10, 40]),
            most_sent: among(&[20, 60, 200]),
        }
    }

    fn post(&self, state: &mut State, turn: &mut Turn<'_, Self>, seed: u64) {
        if state.sent >= self.most_sent {
            return;
        }
        turn.keep(|| Undo::Sent);
        state.sent += 1;
        let draw = turn.random().below(100);
        let to = match draw {
            _ if draw < self.hot => ProcessId(0),
            _ if draw < self.hot + self.own => turn.me(),
            _ => ProcessId(turn.random().below(self.processes.into()) as u32),
        };
        let extra = turn.random().below(self.delay_most) * self.grain;
        let least = if to == turn.me() { 1 } else { self.lookahead };
        let number = seed ^ turn.random().bits();
        let message = match number % 3 {
            0 => Message::Text(number.to_string()),
            _ => Message::Number(number),
        };
        turn.send(to, Time(least + extra), message);
    }
}

impl Model for Unpleasant {
    type State = State;
    type Message = Message;
    type Undo = Undo;
    /// Total and place: not for every event, for some several.
    type Record = [u64; 2];

    fn processes(&self) -> u32 {
        self.processes
    }

    fn lookahead(&self) -> Time {
        Time(self.lookahead)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> State {
        let mut state = State { table: vec![0; TABLE], ..State::default() };
        for number in 0..turn.random().below(4) {
            self.post(&mut state, turn, number);
        }
        state
    }

    fn handle(&self, state: &mut State, message: &Message, turn: &mut Turn<'_, Self>) {
        let number = match message {
            Message::Number(number) => *number,
            Message::Text(text) => text.len() as u64,
        };
        let total = state.total;
        turn.keep(|| Undo::Total(total));
        state.total = state.total.wrapping_mul(31).wrapping_add(number ^ turn.now().0);
        if number % 4 == 0 && !state.queue.is_empty() {
            let front = state.queue.pop_front().expect("it is not empty");
            turn.keep(|| Undo::Popped(front));
        } else {
            turn.keep(|| Undo::Pushed);
            state.queue.push_back(number);
        }
        let at = turn.random().below(TABLE as u64) as usize;
        let was = state.table[at];
        turn.keep(|| Undo::Table(at, was));
        state.table[at] = was.wrapping_add(state.total);
        (0..number % 3).for_each(|_| turn.emit([state.total, at as u64]));
        let draw = turn.random().below(100);
        if draw < self.two {
            self.post(state, turn, 2);
        }
        if draw < 100 - self.none {
            self.post(state, turn, 1);
        }
    }

    fn undo(&self, state: &mut State, change: Undo) {
        match change {
            Undo::Total(total) => state.total = total,
            Undo::Sent => state.sent -= 1,
            Undo::Pushed => drop(state.queue.pop_back()),
            Undo::Popped(front) => state.queue.push_front(front),
            Undo::Table(at, was) => state.table[at] = was,
        }
    }

    fn digest(&self, message: &Message) -> u64 {
        match message {
            Message::Number(number) => *number,
            Message::Text(text) => text.parse().unwrap_or(0),
        }
    }
}

/// Every scheduler with what makes its life hard.
pub fn hard_lives(seed: u64) -> Vec<(String, Options<'static>)> {
    let mut lives = vec![
        ("sequential".to_string(), Options::default()),
        ("check".to_string(), Options { scheduler: Scheduler::RollbackCheck, ..Options::default() }),
    ];
    for threads in [1, 2, 3] {
        let options = Options { threads, scheduler: Scheduler::Conservative, ..Options::default() };
        lives.push((format!("conservative {threads}"), options));
        for (ahead_max, forced_rollbacks) in
            [(1 << 16, None), (1, None), (7, Some(seed)), (1 << 16, Some(seed))]
        {
            let scheduler = Scheduler::Optimistic;
            let options = Options { threads, scheduler, ahead_max, forced_rollbacks, ..Options::default() };
            lives.push((format!("optimistic {threads}, ahead {ahead_max}, {forced_rollbacks:?}"), options));
        }
    }
    lives
}
