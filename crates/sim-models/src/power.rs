//! What servers and devices draw (S1 §V names power as what is to come): so much when they are idle, so much when they have
//! something to do, nothing while the server is down.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// Milliwatts of a server or device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Power {
    pub idle: u64,
    pub busy: u64,
}

/// Of a server without its device, and of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PowerSpec {
    pub server: Power,
    pub device: Power,
}

/// Picojoules: a milliwatt for a nanosecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Energy(pub u128);

impl Energy {
    pub fn joules(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

impl Add for Energy {
    type Output = Energy;

    fn add(self, other: Energy) -> Energy {
        Energy(self.0 + other.0)
    }
}

impl Sum for Energy {
    fn sum<I: Iterator<Item = Energy>>(all: I) -> Energy {
        all.fold(Energy::default(), Energy::add)
    }
}

impl fmt::Display for Energy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} J", self.joules())
    }
}

impl Power {
    /// In so many ns, during so many of which one of its `parts` is busy; what is busy draws more in equal shares.
    pub fn energy(self, on: u64, busy: u64, parts: u32) -> Energy {
        let (on, busy, parts) = (u128::from(on), u128::from(busy), u128::from(parts.max(1)));
        let busy = busy.min(on * parts);
        let (idle, full) = (u128::from(self.idle), u128::from(self.busy));
        // (on * parts - busy) idle and busy at full, divided by the parts at the end: whole numbers all the way.
        Energy(((on * parts - busy) * idle + busy * full) / parts)
    }
}

/// The most that something may draw, mW.
const POWER_MAX: u64 = 1_000_000_000;

/// `350W`, `4500mW`.
pub fn parse_power(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "W" => 1_000,
        "mW" => 1,
        _ => 0,
    };
    let Some(number) = number.parse::<u64>().ok().filter(|_| scale > 0) else {
        return Err(format!("'{text}' is no power; write a whole number and W or mW: 4500mW"));
    };
    let power = number.checked_mul(scale).filter(|power| *power <= POWER_MAX);
    power.ok_or_else(|| format!("'{text}' is too much; at most 1000000W"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_power_times_time() {
        let power = Power { idle: 2_000, busy: 10_000 };
        let second = 1_000_000_000;
        assert_eq!(power.energy(second, 0, 1).joules(), 2.0);
        assert_eq!(power.energy(second, second / 4, 1).joules(), 4.0);
        // One of four threads all the time.
        assert_eq!(power.energy(second, second, 4).joules(), 4.0);
        assert_eq!(power.energy(second, 9 * second, 4).joules(), 10.0);
        assert_eq!(
            [power.energy(1, 1, 1), power.energy(1, 0, 1)].into_iter().sum::<Energy>(),
            Energy(12_000)
        );
    }

    #[test]
    fn powers_have_units() {
        assert_eq!((parse_power("350W"), parse_power("4500mW")), (Ok(350_000), Ok(4_500)));
        for wrong in ["", "5", "5kW", "-5W", "1.5W", "99999999W", "99999999999999999999W"] {
            assert!(parse_power(wrong).is_err(), "{wrong}");
        }
    }
}
