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

/// The longest time in an experiment: so many of them can be added up.
const TIME_MAX: u64 = 1_000_000 * 1_000_000_000;
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// `5ms`: whole numbers, as sizes are.
pub fn parse_time(text: &str) -> Result<Time, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    let (Ok(number), Some(scale)) = (number.parse::<u64>(), scale) else {
        return Err(format!("'{text}' is no time; write a whole number and ns, us, ms or s: 900us"));
    };
    let ticks = number.checked_mul(scale).filter(|ticks| *ticks <= TIME_MAX);
    ticks.map(Time).ok_or_else(|| format!("'{text}' is too long; at most 1000000s"))
}

/// `5ms`, `exponential 5ms`, `uniform 2ms 9ms`.
pub fn parse_span(text: &str) -> Result<Span, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        [time] => parse_time(time).map(Span::Fixed),
        ["exponential", mean] => parse_time(mean).map(Span::Exponential),
        ["uniform", from, to] => {
            let (from, to) = (parse_time(from)?, parse_time(to)?);
            if from <= to {
                Ok(Span::Uniform(from, to))
            } else {
                Err(format!("'{text}' ends before it begins"))
            }
        }
        _ => Err(format!("'{text}' is no time; write 5ms, 'exponential 5ms' or 'uniform 2ms 9ms'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_may_be_drawn() {
        let ms = |n: u64| Time(n * 1_000_000);
        assert_eq!(parse_span("5ms"), Ok(Span::Fixed(ms(5))));
        assert_eq!(parse_span("exponential 5ms"), Ok(Span::Exponential(ms(5))));
        assert_eq!(parse_span("uniform 2ms 9ms"), Ok(Span::Uniform(ms(2), ms(9))));
        for wrong in [
            "",
            "5",
            "-5ms",
            "1.5ms",
            "5 ms",
            "normal 5ms",
            "uniform 9ms 2ms",
            "1000001s",
            "99999999999999999999s",
        ] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_have_their_means() {
        for span in [Span::Exponential(Time(5_000_000)), Span::Uniform(Time(1_000_000), Time(9_000_000))] {
            let mut random = Stream::new(3, 3);
            let mean = (0..100_000).map(|_| span.draw(&mut random) as f64).sum::<f64>() / 1e5;
            assert!((mean / span.mean() - 1.0).abs() < 0.02, "{span}: {mean}");
        }
    }
}
