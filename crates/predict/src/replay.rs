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

/// Predictions of all jobs, which have to be in the order of submission.
pub fn replay(log: &[Past], predictor: &mut (impl Predictor + ?Sized)) -> Vec<Prediction> {
    let mut events: BinaryHeap<Reverse<(u64, Event, usize)>> = BinaryHeap::new();
    let mut predictions = Vec::with_capacity(log.len());
    for (place, past) in log.iter().enumerate() {
        while let Some(Reverse((at, event, of))) = events.peek().copied() {
            if at > past.job.submit_s {
                break;
            }
            events.pop();
            match event {
                Event::End => predictor.ended(of as u64, log[of].run_s),
                Event::Start => predictor.started(of as u64, at),
            }
        }
        predictions.push(predictor.submitted(&Job { id: place as u64, ..past.job }));
        let start = past.start_s.max(past.job.submit_s);
        events.push(Reverse((start, Event::Start, place)));
        events.push(Reverse((start.saturating_add(past.run_s.ceil() as u64), Event::End, place)));
    }
    predictions
}
