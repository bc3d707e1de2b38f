//! The model as the event kernel sees it.

use crate::app::{AppState, AppUndo};
use crate::message::Message;
use crate::plan::{IoPhase, Setup};
use crate::server::{Server, ServerUndo};
use tidepool_iosched::{Strategy, Tier};
use tidepool_sim::{Model, ProcessId, Time, Turn};

/// A setup under a strategy.
pub struct Tiers {
    pub(crate) setup: Setup,
    pub(crate) strategy: &'static dyn Strategy,
    /// Of each application: its I/O phases, and steps that compute after the last.
    pub(crate) phases: Vec<(Vec<IoPhase>, u64)>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum State {
    App(Box<AppState>),
    Server(Server),
}

pub enum Undo {
    App(AppUndo),
    Server(ServerUndo),
}

impl Tiers {
    pub(crate) fn new(setup: Setup, strategy: &'static dyn Strategy) -> Tiers {
        let phases = setup.apps.iter().map(|app| app.io_phases()).collect();
        Tiers { setup, strategy, phases }
    }

    /// The first server of a shared tier, and how many there are.
    pub(crate) fn servers(&self, tier: Tier) -> (u32, u32) {
        let apps = self.setup.apps.len() as u32;
        match tier {
            Tier::Burst => (apps, self.setup.burst.servers),
            _ => (apps + self.setup.burst.servers, self.setup.pfs.servers),
        }
    }
}

impl Model for Tiers {
    type State = State;
    type Message = Message;
    type Record = std::convert::Infallible;
    type Undo = Undo;

    fn processes(&self) -> u32 {
        self.setup.apps.len() as u32 + self.setup.burst.servers + self.setup.pfs.servers
    }

    fn lookahead(&self) -> Time {
        Time(self.setup.latency_ns)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> State {
        let (me, apps) = (turn.me(), self.setup.apps.len() as u32);
        if me.0 < apps {
            return State::App(Box::new(AppState::start(self, turn)));
        }
        let tier = if me.0 < apps + self.setup.burst.servers { Tier::Burst } else { Tier::Pfs };
        State::Server(Server::new(tier, apps as usize))
    }

    fn handle(&self, state: &mut State, message: &Message, turn: &mut Turn<'_, Self>) {
        match state {
            State::App(app) => app.handle(self, message, turn),
            State::Server(server) => server.handle(self, message, turn),
        }
    }

    fn undo(&self, state: &mut State, change: Undo) {
        match (state, change) {
            (State::App(app), Undo::App(change)) => app.undo(change),
            (State::Server(server), Undo::Server(change)) => server.undo(change),
            _ => (),
        }
    }

    fn digest(&self, message: &Message) -> u64 {
        message.digest()
    }
}

impl State {
    pub(crate) fn app(&self) -> Option<&AppState> {
        match self {
            State::App(app) => Some(app),
            State::Server(_) => None,
        }
    }

    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            State::Server(server) => Some(server),
            State::App(_) => None,
        }
    }
}

/// Which of two halves of `ProcessId` space; for messages to servers.
pub(crate) fn server(first: u32, count: u32, at: u32) -> ProcessId {
    ProcessId(first + at % count.max(1))
}
