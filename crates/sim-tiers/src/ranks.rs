//! A setup run by several ranks: messages as bytes, and what the processes of all ranks have come to.
//!
//! States stay where their processes are; at the end ranks tell each other what a report needs of them.

use crate::message::{Access, FlowId, Message, Request, Told};
use crate::model::{State, Tiers};
use crate::plan::Setup;
use crate::report::{AppShare, Report, ServerShare, Shares};
use crate::run::{RunError, finished, simulation};
use std::sync::Arc;
use tidepool_iosched::{PastPhase, Pattern, Phase, Strategy, Tier};
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::{Error, Options, Over, Time, saved};

saved!(struct FlowId { app, flush });
saved!(enum Access { 0 => Write, 1 => Read });
saved!(struct AppShare {
    number, done, io_ns, end_ns, acked, flushed_ns, waited_ns, moves, refused, decisions, late, local_busy_ns, flushed_in,
    flushed_out,
});
saved!(struct ServerShare { number, busy_ns });
saved!(struct Shares { apps, servers });

const PATTERNS: [Pattern; 3] = [Pattern::Sequential, Pattern::Strided, Pattern::Random];

/// One of some values, as its number among them.
fn one_of<T: Copy>(all: &[T], from: &mut Reader<'_>) -> Result<T, LoadError> {
    let number = u8::load(from)?;
    all.get(usize::from(number)).copied().ok_or(LoadError::Damaged("a tier or pattern that there is not"))
}

impl Saved for Request {
    fn save(&self, out: &mut Vec<u8>) {
        let Request { flow, slot, part, access, bytes, pattern } = *self;
        flow.save(out);
        slot.save(out);
        part.save(out);
        access.save(out);
        bytes.save(out);
        (pattern as u8).save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Request, LoadError> {
        let (flow, slot, part) = Saved::load(from)?;
        let (access, bytes) = Saved::load(from)?;
        Ok(Request { flow, slot, part, access, bytes, pattern: one_of(&PATTERNS, from)? })
    }
}

fn save_phase(phase: &Phase, out: &mut Vec<u8>) {
    let Phase { begin_ns, written_bytes, expected_bytes, pattern, tier } = *phase;
    [begin_ns, written_bytes].save(out);
    expected_bytes.save(out);
    (pattern as u8).save(out);
    tier.map(|tier| tier as u8).save(out);
}

fn load_phase(from: &mut Reader<'_>) -> Result<Phase, LoadError> {
    let [begin_ns, written_bytes] = Saved::load(from)?;
    let (expected_bytes, pattern) = (Saved::load(from)?, one_of(&PATTERNS, from)?);
    let tier = if bool::load(from)? { Some(one_of(&Tier::ALL, from)?) } else { None };
    Ok(Phase { begin_ns, written_bytes, expected_bytes, pattern, tier })
}

impl Saved for Told {
    fn save(&self, out: &mut Vec<u8>) {
        let Told { at_ns, running, phase, past } = self;
        at_ns.save(out);
        running.save(out);
        phase.is_some().save(out);
        phase.iter().for_each(|phase| save_phase(phase, out));
        (past.len() as u64).save(out);
        for PastPhase { begin_ns, end_ns, bytes } in past.iter() {
            [*begin_ns, *end_ns, *bytes].save(out);
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Told, LoadError> {
        let (at_ns, running, is_in_one) = Saved::load(from)?;
        let phase = if is_in_one { Some(load_phase(from)?) } else { None };
        let past: Vec<[u64; 3]> = Saved::load(from)?;
        let past = past.into_iter().map(|[begin_ns, end_ns, bytes]| PastPhase { begin_ns, end_ns, bytes });
        Ok(Told { at_ns, running, phase, past: Arc::new(past.collect()) })
    }
}

impl Saved for Message {
    fn save(&self, out: &mut Vec<u8>) {
        match self {
            Message::Start => 0u8.save(out),
            Message::Computed => 1u8.save(out),
            Message::Tick => 2u8.save(out),
            Message::Local { slot } => (3u8, *slot).save(out),
            Message::News { from, told } => {
                (4u8, *from).save(out);
                told.save(out);
            }
            Message::Part { slot, part, served, server, free } => {
                (5u8, *slot, *part).save(out);
                (*served, *server, *free).save(out);
            }
            Message::Room { server, free } => (6u8, *server, *free).save(out),
            Message::Open { flow, processes, weight } => {
                (7u8, *flow).save(out);
                [*processes, *weight].save(out);
            }
            Message::Close { flow } => (8u8, *flow).save(out),
            Message::Ask(request) => (9u8, *request).save(out),
            Message::Free { app, bytes } => (10u8, *app, *bytes).save(out),
            Message::Served => 11u8.save(out),
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Message, LoadError> {
        Ok(match u8::load(from)? {
            0 => Message::Start,
            1 => Message::Computed,
            2 => Message::Tick,
            3 => Message::Local { slot: Saved::load(from)? },
            4 => Message::News { from: Saved::load(from)?, told: Arc::new(Saved::load(from)?) },
            5 => {
                let ((slot, part), (served, server, free)) = (Saved::load(from)?, Saved::load(from)?);
                Message::Part { slot, part, served, server, free }
            }
            6 => Message::Room { server: Saved::load(from)?, free: Saved::load(from)? },
            7 => {
                let (flow, [processes, weight]) = Saved::load(from)?;
                Message::Open { flow, processes, weight }
            }
            8 => Message::Close { flow: Saved::load(from)? },
            9 => Message::Ask(Saved::load(from)?),
            10 => Message::Free { app: Saved::load(from)?, bytes: Saved::load(from)? },
            11 => Message::Served,
            _ => return Err(LoadError::Damaged("a message of no known kind")),
        })
    }
}

/// As [`run`](crate::run), by all ranks together; all get the same report, or the same [`RunError`]. `over.about` has to tell all
/// that decides what the model does.
pub fn run_over(
    setup: &Setup,
    strategy: &'static dyn Strategy,
    seed: u64,
    options: &Options<'_>,
    over: &mut Over<'_>,
) -> Result<Report, RunError> {
    let mut simulation = simulation(setup, strategy, seed)?;
    let (_, own) = simulation.run_over_once(Time::MAX, options, over, None)?;
    if simulation.pending() > 0 {
        return Err(RunError::Stopped);
    }
    let states: Vec<(usize, &State)> =
        simulation.states().enumerate().skip(own.start).take(own.len()).collect();
    let shares = together(Shares::of(states.into_iter()), simulation.model(), over)?;
    finished(setup, &shares)?;
    Ok(Report::of(simulation.model(), shares, (simulation.events(), simulation.trace())))
}

/// What the processes of all ranks have come to, by their numbers.
fn together(mine: Shares, model: &Tiers, over: &mut Over<'_>) -> Result<Shares, Error> {
    let (rank, ranks) = (over.link.rank(), over.link.ranks());
    let mut bytes = Vec::new();
    mine.save(&mut bytes);
    let mut into = vec![Vec::new(); ranks];
    let told = over.link.exchange(&vec![&bytes[..]; ranks], &mut into);
    told.map_err(|error| Error::Ranks(format!("ranks cannot reach each other: {error}")))?;
    into[rank] = bytes;
    let mut all = Shares { apps: Vec::new(), servers: Vec::new() };
    for (rank, bytes) in into.iter().enumerate() {
        let wrong = |error: LoadError| Error::Ranks(format!("the results that rank {rank} sent: {error}"));
        let mut from = Reader::new(bytes);
        let share = Shares::load(&mut from).map_err(wrong)?;
        if !from.is_empty() {
            return Err(wrong(LoadError::Damaged("something follows their end")));
        }
        all.apps.extend(share.apps);
        all.servers.extend(share.servers);
    }
    // Ranks have processes by rising numbers.
    match all.is_of(model) {
        true => Ok(all),
        false => Err(Error::Ranks("results of the ranks are not of each process once".into())),
    }
}
