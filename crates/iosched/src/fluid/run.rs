//! The run: ask, let flow until something changes, ask again.

use super::plan::{FluidError, Testbed, Workload, check};
use super::report::{Report, Stretch};
use super::state::{Stage, State};
use crate::model::{App, Dirty, Shared, Tier, View};
use crate::strategy::{FlushVerdict, Strategy, Verdict, decide};
use std::collections::VecDeque;

/// The last moment of a run.
const END_NS: u64 = u64::MAX >> 1;
/// Changes of one run.
const EVENTS_MAX: u64 = 1_000_000;

/// Runs the applications until all their data are on the PFS.
pub fn run(testbed: &Testbed, strategy: &dyn Strategy, apps: &[Workload]) -> Result<Report, FluidError> {
    let mut apps = apps.to_vec();
    apps.sort_by_key(|app| app.job);
    check(testbed, &apps)?;
    let mut state = State::new(testbed, &apps);
    let mut news = News::default();
    let mut refused = 0;
    for _ in 0..EVENTS_MAX {
        news.note(&state);
        refused += ask(&mut state, strategy, &news);
        news.note(&state);
        if state.is_over() {
            return Ok(Report::of(&state, refused));
        }
        let changes = [state.until_change(), news.until_next(&state)];
        match changes.into_iter().flatten().min() {
            Some(ns) if ns <= u128::from(END_NS - state.now_ns) => state.advance(ns as u64),
            Some(_) => return Err(FluidError::TooLong { at_ns: state.now_ns }),
            None => return Err(FluidError::Stuck { at_ns: state.now_ns, full: full_tier(&state) }),
        }
    }
    Err(FluidError::TooManyEvents(EVENTS_MAX))
}

/// How much longer each application takes than it would alone, on the same testbed under the same strategy.
pub fn stretches(
    testbed: &Testbed,
    strategy: &dyn Strategy,
    apps: &[Workload],
) -> Result<Vec<Stretch>, FluidError> {
    let together = run(testbed, strategy, apps)?;
    let stretch = |app: &super::report::AppReport| {
        let plan = apps.iter().find(|plan| plan.job == app.job).expect("reports are of what was run");
        let alone = run(testbed, strategy, std::slice::from_ref(plan))?;
        Ok(Stretch::between(app, &alone.apps[0], plan.start_ns))
    };
    together.apps.iter().map(stretch).collect()
}

fn full_tier(state: &State) -> Option<Tier> {
    [Tier::Pfs, Tier::Burst].into_iter().find(|tier| state.is_full(*tier, 0))
}

/// What others are told, as long as it is on its way.
#[derive(Default)]
struct News {
    /// The moment and what was so then; the oldest is the newest that has arrived.
    sent: VecDeque<(u64, View)>,
    last: Option<Signature>,
}

/// What makes news: stages, placements, flushes and what could be flushed; bytes flow all the time.
type Signature = Vec<(Stage, Option<(Tier, u32)>, [(bool, Option<(Tier, u32)>); 2])>;

impl News {
    fn note(&mut self, state: &State) {
        if state.testbed.delay_ns == 0 {
            return;
        }
        let of = |app: &super::state::Running| {
            (app.stage, app.place, app.buffered.map(|buffered| (buffered.ready > 0, buffered.flush)))
        };
        let signature = state.apps.iter().map(of).collect();
        if self.last.as_ref() != Some(&signature) {
            self.sent.push_back((state.now_ns, state.told()));
            self.last = Some(signature);
        }
        let arrived = |at: u64| at + state.testbed.delay_ns <= state.now_ns;
        while self.sent.len() > 1 && arrived(self.sent[1].0) {
            self.sent.pop_front();
        }
    }

    fn arrived(&self, state: &State) -> Option<&View> {
        let (at, view) = self.sent.front()?;
        (at + state.testbed.delay_ns <= state.now_ns).then_some(view)
    }

    /// Time until other news arrive.
    fn until_next(&self, state: &State) -> Option<u128> {
        let arrivals = self.sent.iter().map(|(at, _)| at + state.testbed.delay_ns);
        arrivals.filter(|at| *at > state.now_ns).min().map(|at| u128::from(at - state.now_ns))
    }
}

/// Asks each scheduler about its own applications; gives how often a tier had to refuse a phase.
fn ask(state: &mut State, strategy: &dyn Strategy, news: &News) -> u64 {
    let truth = state.told();
    let schedulers = state.testbed.schedulers.min(state.apps.len() as u32) as usize;
    let delayed = state.testbed.delay_ns > 0;
    let shared_view = (!delayed).then(|| decide(strategy, &truth));
    let mut refused = 0;
    for own in 0..schedulers {
        let decision = match &shared_view {
            Some(decision) => decision.clone(),
            None => decide(strategy, &seen(state, &truth, news, |at| at % schedulers == own)),
        };
        for at in (own..state.apps.len()).step_by(schedulers) {
            refused += carry_out(state, at, &decision);
        }
    }
    state.set_flows();
    refused
}

/// What the scheduler of some of the applications knows.
fn seen(state: &State, truth: &View, news: &News, own: impl Fn(usize) -> bool) -> View {
    let is_own = |job| state.apps.iter().position(|app| app.plan.job == job).is_some_and(&own);
    let arrived = news.arrived(state);
    let mut apps: Vec<App> = truth.apps().iter().filter(|app| is_own(app.job)).cloned().collect();
    apps.extend(arrived.into_iter().flat_map(|old| old.apps()).filter(|app| !is_own(app.job)).cloned());
    let mut dirty: Vec<Dirty> = truth.dirty().iter().filter(|lump| is_own(lump.job)).copied().collect();
    dirty.extend(arrived.into_iter().flat_map(|old| old.dirty()).filter(|lump| !is_own(lump.job)));
    let age_ns = arrived.map(|_| state.testbed.delay_ns);
    let shared = |now: &Shared, old: Option<&Shared>| Shared { age_ns, ..old.unwrap_or(now).clone() };
    let burst = shared(truth.burst(), arrived.map(View::burst));
    let pfs = shared(truth.pfs(), arrived.map(View::pfs));
    View::new(state.now_ns, apps, burst, pfs, dirty).expect("parts of views make a view")
}

fn carry_out(state: &mut State, at: usize, decision: &crate::Decision) -> u64 {
    let job = state.apps[at].plan.job;
    let mut refused = 0;
    if state.apps[at].is_writing() {
        let wish = match decision.phases.get(&job) {
            Some(Verdict::Go { tier, weight }) => Some((*tier, *weight)),
            _ => None,
        };
        let place = wish.filter(|(tier, _)| !state.is_full(*tier, at));
        refused += u64::from(place != wish);
        // What a tier refuses, because the scheduler could not know that it is full, goes where everything ends.
        let elsewhere = wish.map(|(_, weight)| (Tier::Pfs, weight)).filter(|_| !state.is_full(Tier::Pfs, at));
        state.apps[at].place(place.or(elsewhere));
    }
    for from in [Tier::Local, Tier::Burst] {
        let flush = match decision.flushes.get(&(job, from)) {
            Some(FlushVerdict::Go { to, weight }) if !state.is_full(*to, at) => Some((*to, *weight)),
            _ => None,
        };
        state.apps[at].buffered[from as usize].flush = flush;
    }
    refused
}
