//! What a run came to.

use super::worker::Answer;
use serde::Serialize;
use std::time::Duration;
use tidepool_workload::{Application, Phase};

/// Of the processes of an application, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Times {
    pub min: f64,
    pub mean: f64,
    pub max: f64,
}

/// A part of a phase: all compute, or all do I/O.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Span {
    /// Since the start of the run, of the first process to begin and the last to end.
    pub began: f64,
    pub ended: f64,
    /// Of each process; of I/O without the making of data.
    pub seconds: Times,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    pub stage: tidepool_workload::Stage,
    pub step: u64,
    pub compute: Option<Span>,
    pub io: Option<Span>,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub operations: u64,
}

/// One application.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Course {
    #[serde(skip)]
    pub application: Application,
    pub phases: Vec<Measured>,
    /// What each step computes: as told, or by the measured I/O.
    pub compute_each: f64,
    /// The I/O that it was derived from, when it was measured.
    pub derived_from: Option<f64>,
}

impl Times {
    fn of(all: impl ExactSizeIterator<Item = Duration> + Clone) -> Times {
        let seconds = all.clone().map(|time| time.as_secs_f64());
        let sum: f64 = seconds.clone().sum();
        Times {
            min: seconds.clone().fold(f64::INFINITY, f64::min),
            mean: sum / (all.len().max(1) as f64),
            max: seconds.fold(0.0, f64::max),
        }
    }
}

impl Span {
    /// Of all processes' answers, which are at least one; `start_ns` is when the run started.
    pub fn of(answers: &[Answer], start_ns: u64) -> Span {
        let since = |ns: Option<u64>| ns.unwrap_or(start_ns).saturating_sub(start_ns) as f64 / 1e9;
        Span {
            began: since(answers.iter().map(|a| a.began_ns).min()),
            ended: since(answers.iter().map(|a| a.ended_ns).max()),
            seconds: Times::of(answers.iter().map(Answer::calls)),
        }
    }
}

impl Measured {
    pub fn of(phase: &Phase, compute: &[Answer], io: &[Answer], start_ns: u64) -> Measured {
        let span = |answers: &[Answer]| (!answers.is_empty()).then(|| Span::of(answers, start_ns));
        Measured {
            stage: phase.stage,
            step: phase.step,
            compute: span(compute),
            io: span(io),
            bytes_written: io.iter().map(|a| a.bytes_written).sum(),
            bytes_read: io.iter().map(|a| a.bytes_read).sum(),
            operations: io.iter().map(|a| a.operations).sum(),
        }
    }

    pub fn began(&self) -> f64 {
        self.compute.or(self.io).map_or(0.0, |span| span.began)
    }

    pub fn ended(&self) -> f64 {
        self.io.or(self.compute).map_or(0.0, |span| span.ended)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes_written + self.bytes_read
    }

    /// Bytes a second, by the slowest process.
    pub fn bandwidth(&self) -> Option<f64> {
        let slowest = self.io?.seconds.max;
        (slowest > 0.0).then(|| self.bytes() as f64 / slowest)
    }
}

/// Sums over the phases of an application.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Totals {
    /// Of the slowest process of each phase: what the application waits for.
    pub io_seconds: f64,
    pub compute_seconds: f64,
    /// From its first phase to its last.
    pub wall_seconds: f64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub operations: u64,
}

impl Course {
    pub fn totals(&self) -> Totals {
        let slowest = |span: Option<Span>| span.map_or(0.0, |span| span.seconds.max);
        let mut totals = Totals::default();
        for phase in &self.phases {
            totals.io_seconds += slowest(phase.io);
            totals.compute_seconds += slowest(phase.compute);
            totals.bytes_written += phase.bytes_written;
            totals.bytes_read += phase.bytes_read;
            totals.operations += phase.operations;
        }
        let began = self.phases.first().map_or(0.0, Measured::began);
        totals.wall_seconds = self.phases.last().map_or(0.0, Measured::ended) - began;
        totals
    }
}

impl Totals {
    /// Of the time that it took.
    pub fn io_share(&self) -> f64 {
        if self.wall_seconds > 0.0 { self.io_seconds / self.wall_seconds } else { 0.0 }
    }

    pub fn bandwidth(&self) -> Option<f64> {
        (self.io_seconds > 0.0).then(|| (self.bytes_written + self.bytes_read) as f64 / self.io_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(began: u64, ended: u64, own: u64) -> Answer {
        let ns = |tenths: u64| tenths * 100_000_000;
        Answer {
            began_ns: ns(began),
            ended_ns: ns(ended),
            own_ns: ns(own),
            bytes_written: 100,
            operations: 3,
            ..Answer::default()
        }
    }

    #[test]
    fn the_slowest_counts_and_data_in_the_making_do_not() {
        let phase = Application::phases().phase(1).unwrap();
        let compute = [answer(10, 20, 0), answer(10, 30, 0)];
        let io = [answer(31, 41, 2), answer(32, 62, 10)];
        let measured = Measured::of(&phase, &compute, &io, 1_000_000_000);
        let span = measured.io.unwrap();
        assert!((span.began - 2.1).abs() < 1e-9 && (span.ended - 5.2).abs() < 1e-9, "{span:?}");
        let Times { min, mean, max } = span.seconds;
        assert!(
            (min - 0.8).abs() < 1e-9 && (mean - 1.4).abs() < 1e-9 && (max - 2.0).abs() < 1e-9,
            "{span:?}"
        );
        assert_eq!(
            (measured.bytes_written, measured.operations, measured.bandwidth()),
            (200, 6, Some(100.0))
        );
        let later = Measured { compute: None, ..measured.clone() };
        let course = Course {
            application: Application::phases(),
            phases: vec![measured, later],
            compute_each: 2.0,
            derived_from: None,
        };
        let totals = course.totals();
        assert_eq!((totals.io_seconds, totals.compute_seconds, totals.bytes_written), (4.0, 2.0, 400));
        assert!((totals.wall_seconds - 5.2).abs() < 1e-9, "{totals:?}");
    }
}
