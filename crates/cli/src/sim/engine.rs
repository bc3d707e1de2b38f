//! Runs a storage model under the scheduler that was asked for, and measures that.

use super::group::{Cost, Group};
use super::kept::Keeper;
use super::outputs::Outputs;
use super::pfs_flags::EngineArgs;
use super::phold::{RANKS, cpu_seconds, memory_peak, rate};
use crate::exit::{Context, Failure, Kind, Result};
use crate::output::{ProgressLine, duration};
use crate::signals::Signals;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tidepool_sim::{Emitted, Options, Progress, Report, Scheduler, Simulation, Time};
use tidepool_sim_models::{Pfs, Record, Results, run_over_with, run_with};
use tidepool_types::format_size;

/// What a run came to, and what it took.
pub struct Outcome {
    pub simulation: Simulation<Pfs>,
    pub results: Results,
    /// Events of this run; those of the simulation since time 0 are in the results' report.
    pub handled: u64,
    pub wall_seconds: f64,
    pub cpu_seconds: f64,
    pub memory_peak_bytes: u64,
}

impl Outcome {
    /// Of this run.
    fn efficiency(&self) -> f64 {
        Report { events: self.handled, ..self.results.report }.efficiency()
    }
}

/// How far a run is, and whether it has to end.
#[derive(Default)]
pub struct Watch {
    /// Requests of all clients; 0: not known.
    pub requests: u64,
    /// Events of the whole run, in place of requests; 0: not known.
    pub events: u64,
    pub done: AtomicU64,
    /// Events before this part of the run.
    pub before: AtomicU64,
    /// What is written cannot be written: there is no sense in going on.
    pub broken: AtomicBool,
}

impl Watch {
    /// Tells how far it is, and whether to go on.
    fn look(
        &self,
        progress: &Progress,
        began: Instant,
        signals: &Signals,
        line: Option<&Mutex<ProgressLine>>,
    ) -> ControlFlow<()> {
        if let Some(Ok(mut line)) = line.map(Mutex::lock) {
            line.draw(&self.told(progress, began.elapsed().as_secs_f64()));
        }
        match signals.seen().is_some() || self.broken.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// For people: how far, and how long it will go on if requests go on taking as long.
    fn told(&self, progress: &Progress, elapsed: f64) -> String {
        let events = self.before.load(Ordering::Relaxed) + progress.events;
        let at = format!("{events} events, at {}", progress.now);
        let (done, all) = match self.events {
            0 => (self.done.load(Ordering::Relaxed), self.requests),
            events => (progress.events, events),
        };
        if done == 0 || all == 0 {
            return at;
        }
        let share = (done as f64 / all as f64).min(1.0);
        let left = duration(elapsed * (1.0 - share) / share);
        format!("{:.1} %, {at}, {left} left", share * 100.0)
    }
}

fn clear(line: &Mutex<ProgressLine>) {
    if let Ok(mut line) = line.lock() {
        line.clear();
    }
}

impl EngineArgs {
    fn options<'a>(&self, tell: &'a (dyn Fn(Progress) -> ControlFlow<()> + Sync)) -> Options<'a> {
        Options {
            scheduler: self.scheduler(),
            threads: self.threads,
            progress: Some(tell),
            ..Options::default()
        }
    }

    fn scheduler(&self) -> Scheduler {
        if self.check_rollback { Scheduler::RollbackCheck } else { self.scheduler.scheduler() }
    }

    fn name(&self) -> &'static str {
        match self.scheduler() {
            Scheduler::Sequential => "sequential",
            Scheduler::Reference => "reference",
            Scheduler::RollbackCheck => "rollback check",
            Scheduler::Conservative => "conservative",
            Scheduler::Optimistic => "optimistic",
        }
    }

    pub fn check(&self) -> Result<()> {
        let refuse = |text: &str| Err(Failure::new(Kind::Usage, text.to_string()));
        match (self.threads, self.scheduler()) {
            (2.., Scheduler::RollbackCheck) => refuse("--check-rollback takes one thread"),
            (2.., Scheduler::Sequential) => {
                refuse("--threads needs --scheduler conservative or optimistic; sequential is one thread")
            }
            _ => Ok(()),
        }
    }

    /// As [`EngineArgs::run_with`], by all ranks of a group: the first one's sink gets the records. `about` tells all that decides
    /// what the model does.
    pub fn run_over(
        &self,
        (pfs, about): (Pfs, &str),
        seed: u64,
        (signals, watch): (&Signals, &Watch),
        group: &mut Group,
        sink: impl FnMut(Emitted<Record>) + Send,
    ) -> Result<Outcome> {
        self.check_ranks(group)?;
        let (cpu, began, first) = (cpu_seconds()?, Instant::now(), group.is_first());
        let line = Mutex::new(ProgressLine::new());
        let tell = |progress: Progress| watch.look(&progress, began, signals, first.then_some(&line));
        let options = self.options(&tell);
        let ran = group.together(about, |over| run_over_with(pfs, seed, &options, over, sink))?;
        clear(&line);
        let (wall_seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
        let Cost { cpu_seconds, memory_peak_bytes } =
            group.cost(Cost { cpu_seconds, memory_peak_bytes: memory_peak()? })?;
        let (simulation, results) = ran;
        let handled = results.report.events;
        Ok(Outcome { simulation, results, handled, wall_seconds, cpu_seconds, memory_peak_bytes })
    }

    /// A simulation that is kept on its way, or was before: from where it is to the end, or until a signal or the watch ends it,
    /// in parts of `every`, behind each of which it is kept. By one process, or all ranks.
    pub fn run_kept(
        &self,
        mut simulation: Simulation<Pfs>,
        every: Option<Time>,
        (signals, watch): (&Signals, &Watch),
        group: &mut Group,
        (outputs, keeper): (&mut Outputs, &Keeper<'_>),
    ) -> Result<Outcome> {
        self.check_ranks(group)?;
        let (cpu, began, first) = (cpu_seconds()?, Instant::now(), group.is_first());
        let line = Mutex::new(ProgressLine::new());
        let tell = |progress: Progress| watch.look(&progress, began, signals, first.then_some(&line));
        let (options, about) = (self.options(&tell), keeper.about.to_string());
        let mut report = Report::default();
        loop {
            watch.before.store(simulation.events(), Ordering::Relaxed);
            // From the next event on: nothing is kept twice because nothing happens.
            let next = simulation.messages().map(|event| event.key.time).min();
            let until = every.zip(next).map_or(Time::MAX, |(every, next)| next.plus(every).min(Time::MAX));
            let sink = |emitted: Emitted<_>| outputs.take(&emitted, watch);
            report.then(&group.simulate_with(&mut simulation, until, &options, &about, sink)?);
            if first {
                keeper.keep(&simulation, outputs)?;
            }
            let stopped = signals.seen().is_some() || watch.broken.load(Ordering::Relaxed);
            if simulation.pending() == 0 || group.any(stopped)? {
                break;
            }
        }
        clear(&line);
        let (wall_seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
        let Cost { cpu_seconds, memory_peak_bytes } =
            group.cost(Cost { cpu_seconds, memory_peak_bytes: memory_peak()? })?;
        let handled = report.events;
        let results = Results::of(&simulation, Report { events: simulation.events(), ..report });
        Ok(Outcome { simulation, results, handled, wall_seconds, cpu_seconds, memory_peak_bytes })
    }

    fn check_ranks(&self, group: &mut Group) -> Result<()> {
        let parallel = matches!(self.scheduler(), Scheduler::Conservative | Scheduler::Optimistic);
        match group.ranks() > 1 && !parallel {
            true => group.same(Err(Failure::new(Kind::Usage, RANKS.to_string()))),
            false => Ok(()),
        }
    }

    /// To the end, or until a signal or the watch ends it, with records.
    pub fn run_with(
        &self,
        pfs: Pfs,
        seed: u64,
        signals: &Signals,
        watch: &Watch,
        sink: impl FnMut(Emitted<Record>) + Send,
    ) -> Result<Outcome> {
        let (cpu, began) = (cpu_seconds()?, Instant::now());
        let line = Mutex::new(ProgressLine::new());
        let tell = |progress: Progress| watch.look(&progress, began, signals, Some(&line));
        let options = self.options(&tell);
        let ran = run_with(pfs, seed, &options, sink);
        let (simulation, results) = ran.context(Kind::Other, || "sim".to_string())?;
        clear(&line);
        let (wall_seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
        let (handled, memory_peak_bytes) = (results.report.events, memory_peak()?);
        Ok(Outcome { simulation, results, handled, wall_seconds, cpu_seconds, memory_peak_bytes })
    }

    /// What the run took.
    pub fn value(&self, outcome: &Outcome) -> Value {
        let report = &outcome.results.report;
        json!({
            "scheduler": self.name(),
            "threads": self.threads,
            "processes": outcome.simulation.model().roles().len(),
            "events": report.events,
            "complete": outcome.simulation.pending() == 0,
            "wall_seconds": outcome.wall_seconds,
            "cpu_seconds": outcome.cpu_seconds,
            "events_per_cpu_second": rate(outcome.handled, outcome.cpu_seconds),
            "events_per_second": rate(outcome.handled, outcome.wall_seconds),
            "undone": report.undone,
            "rollbacks": report.rollbacks,
            "efficiency": outcome.efficiency(),
            "rounds": report.rounds,
            "memory_peak_bytes": outcome.memory_peak_bytes,
            "trace": format!("{:016x}", outcome.results.trace),
        })
    }

    pub fn text(&self, outcome: &Outcome) -> String {
        let report = &outcome.results.report;
        let million =
            |rate: Option<f64>| rate.map_or("?".to_string(), |rate| format!("{:.2} million", rate / 1e6));
        let mut text = format!(
            "{}, {} thread(s): {} processes, {} events in {:.3} s, {:.3} s of processor time\n",
            self.name(),
            self.threads,
            outcome.simulation.model().roles().len(),
            report.events,
            outcome.wall_seconds,
            outcome.cpu_seconds
        );
        text += &format!(
            "{} events per CPU-second, {} per second; memory at most {}; trace {:016x}\n",
            million(rate(outcome.handled, outcome.cpu_seconds)),
            million(rate(outcome.handled, outcome.wall_seconds)),
            format_size(outcome.memory_peak_bytes),
            outcome.results.trace
        );
        if report.undone > 0 {
            text += &match self.check_rollback {
                true => format!("{} events undone and handled again: no difference\n", report.undone),
                false => format!("efficiency {:.2} %\n", outcome.efficiency() * 100.0),
            };
        }
        if outcome.simulation.pending() > 0 {
            text += "ended early\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_how_long_a_run_will_go_on() {
        let watch = Watch { requests: 200, done: AtomicU64::new(50), ..Watch::default() };
        let progress = Progress { now: Time(5_000_000), until: Time::MAX, events: 999 };
        assert_eq!(watch.told(&progress, 4.0), "25.0 %, 999 events, at 5 ms, 12.0 s left");
        let scale = Watch { events: 1_998, ..Watch::default() };
        assert_eq!(scale.told(&progress, 4.0), "50.0 %, 999 events, at 5 ms, 4.0 s left");
        assert_eq!(Watch::default().told(&progress, 4.0), "999 events, at 5 ms");
    }
}
