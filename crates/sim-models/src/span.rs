//! Lengths of time that may be drawn.

use std::fmt;
use tidepool_sim::{Stream, Time};

/// How long something takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Span {
    Fixed(Time),
    /// With this mean.
    Exponential(Time),
    /// From, and up to.
    Uniform(Time, Time),
}

impl Span {
    pub const NONE: Span = Span::Fixed(Time::ZERO);

    /// Ticks. A fixed span draws nothing.
    #[inline]
    pub fn draw(self, random: &mut Stream) -> u64 {
        match self {
            Span::Fixed(time) => time.0,
            Span::Exponential(mean) => random.exponential(mean).0,
            Span::Uniform(from, to) => from.0 + random.below(to.0.saturating_sub(from.0).saturating_add(1)),
        }
    }

    /// Ticks in the mean.
    pub fn mean(self) -> f64 {
        match self {
            Span::Fixed(time) | Span::Exponential(time) => time.0 as f64,
            Span::Uniform(from, to) => (from.0 as f64 + to.0 as f64) / 2.0,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Fixed(time) => write!(f, "{time}"),
            Span::Exponential(mean) => write!(f, "exponential {mean}"),
            Span::Uniform(from, to) => write!(f, "uniform {from} to {to}"),
        }
    }
}
