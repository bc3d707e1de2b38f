//! A log told to a predictor in the order of time: at a job's submission only jobs that are over by then have taught.

use crate::{Job, Prediction, Predictor};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A job of a log, with what became of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Past {
    /// Its id is not looked at: here its place in the log is its id.
    pub job: Job,
    pub start_s: u64,
    pub run_s: f64,
}

/// At the same second a job ends before another starts, and both before a third is submitted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    Start,
}

/// What is still to happen: the soonest first.
type Events = BinaryHeap<Reverse<(u64, Event, usize)>>;

/// Predictions of all jobs, which have to be in the order of submission.
pub fn replay(log: &[Past], predictor: &mut (impl Predictor + ?Sized)) -> Vec<Prediction> {
    told(log, predictor).0
}

/// The same; then all that is still to happen does, so that in the end every job has taught.
pub fn replay_to_the_end(log: &[Past], predictor: &mut (impl Predictor + ?Sized)) -> Vec<Prediction> {
    let (predictions, mut events) = told(log, predictor);
    happen(log, &mut events, u64::MAX, predictor);
    predictions
}

fn told(log: &[Past], predictor: &mut (impl Predictor + ?Sized)) -> (Vec<Prediction>, Events) {
    let mut events = Events::new();
    let mut predictions = Vec::with_capacity(log.len());
    for (place, past) in log.iter().enumerate() {
        happen(log, &mut events, past.job.submit_s, predictor);
        predictions.push(predictor.submitted(&Job { id: place as u64, ..past.job }));
        let start = past.start_s.max(past.job.submit_s);
        events.push(Reverse((start, Event::Start, place)));
        events.push(Reverse((start.saturating_add(past.run_s.ceil() as u64), Event::End, place)));
    }
    (predictions, events)
}

/// All that happens until then.
fn happen(log: &[Past], events: &mut Events, until_s: u64, predictor: &mut (impl Predictor + ?Sized)) {
    while let Some(Reverse((at, event, of))) = events.peek().copied() {
        if at > until_s {
            break;
        }
        events.pop();
        match event {
            Event::End => predictor.ended(of as u64, log[of].run_s),
            Event::Start => predictor.started(of as u64, at),
        }
    }
}
