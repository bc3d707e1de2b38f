//! Values of directives: numbers, times, words of a table.

use crate::near::near;
use std::time::Duration;

/// Longest time that a directive can give: 24 days, which is also Slurm's longest for staging.
pub const TIME_MAX: Duration = Duration::from_secs(24 * 86_400);
/// Longest name of a user, in bytes.
pub const USER_BYTES_MAX: usize = 256;

/// Longest time that data are kept for: ten years. What is kept for longer has no end.
pub const KEPT_MAX: Duration = Duration::from_secs(520 * 7 * 86_400);

/// Seconds of each unit, the largest first.
const UNITS: [(&str, u64); 5] = [("w", 7 * 86_400), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
/// Those without weeks, as Slurm's times have none.
const UNITS_OF_STAGING: &[(&str, u64)] = UNITS.split_at(1).1;

/// Why a value is none, and what was probably meant.
pub(crate) type Refused = (String, Option<String>);

pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err((why.into(), None))
}

/// `30s`, `10m`, `2h`, `1d`. A bare number is refused: Slurm's are minutes, others' seconds.
pub(crate) fn time(text: &str) -> Result<Duration, Refused> {
    time_of(text, UNITS_OF_STAGING, TIME_MAX, "s, m, h or d, such as 10m")
}

/// The same, and `6w`: how long data are kept.
pub(crate) fn kept_for(text: &str) -> Result<Duration, Refused> {
    time_of(text, &UNITS, KEPT_MAX, "s, m, h, d or w, such as 6w")
}

fn time_of(text: &str, units: &[(&str, u64)], max: Duration, how: &str) -> Result<Duration, Refused> {
    let advice = || (format!("'{text}' is no time; write a whole number and {how}"), None);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, seconds) = units.iter().find(|(name, _)| *name == unit).ok_or_else(advice)?;
    let number: u64 = number.parse().map_err(|_| advice())?;
    let time = Duration::from_secs(number.saturating_mul(*seconds));
    match time {
        Duration::ZERO => refuse("a time is at least 1s"),
        time if time > max => refuse(format!("'{text}' is longer than {}", shown_in(units, max))),
        time => Ok(time),
    }
}

/// What [`time`] reads.
pub(crate) fn show_time(time: Duration) -> String {
    shown_in(UNITS_OF_STAGING, time)
}

/// How long data are kept, as `expires=` says it.
pub fn show_kept_for(time: Duration) -> String {
    shown_in(&UNITS, time)
}

fn shown_in(units: &[(&str, u64)], time: Duration) -> String {
    let seconds = time.as_secs();
    let fits = units.iter().find(|(_, unit)| seconds.is_multiple_of(*unit));
    fits.map_or_else(String::new, |(name, unit)| format!("{}{name}", seconds / unit))
}

/// A number from 1 on.
pub(crate) fn count(text: &str, most: usize) -> Result<usize, Refused> {
    let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    match number.filter(|number| (1..=most).contains(number)) {
        Some(number) => Ok(number),
        None => refuse(format!("'{text}' is no number from 1 to {most}")),
    }
}

/// The number of a job.
pub(crate) fn job(text: &str) -> Result<u32, Refused> {
    count(text, u32::MAX as usize)
        .map(|number| number as u32)
        .map_err(|_| (format!("'{text}' is no number of a job"), None))
}

/// The number of a pool that outlives its jobs.
pub(crate) fn pool_number(text: &str) -> Result<u32, Refused> {
    count(text, i32::MAX as usize)
        .map(|number| number as u32)
        .map_err(|_| (format!("'{text}' is no number of a pool; 'tidepool slurm pools' tells them"), None))
}

/// The value of a word.
pub(crate) fn of_table<T: Copy>(table: &[(&str, T)], text: &str) -> Result<T, Refused> {
    let names = || table.iter().map(|(name, _)| *name);
    match table.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let why = format!("'{text}' is none of {}", names().collect::<Vec<_>>().join(", "));
            Err((why, near(text, names()).map(String::from)))
        }
    }
}

pub(crate) fn user(text: &str) -> Result<String, Refused> {
    if text.is_empty()
        || text.len() > USER_BYTES_MAX
        || text.contains(|c: char| c.is_control() || " =".contains(c))
    {
        return refuse(format!("a user's name has 1 to {USER_BYTES_MAX} bytes, no blanks and no '='"));
    }
    Ok(text.into())
}

/// A size with the largest unit that is exact.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = UNITS.iter().find(|(_, bits)| bytes != 0 && bytes.trailing_zeros() >= *bits);
    fits.map_or_else(|| bytes.to_string(), |(name, bits)| format!("{}{name}", bytes >> bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_types::parse_size;

    #[test]
    fn times_are_read_and_shown() {
        for (text, seconds, shown) in
            [("30s", 30, "30s"), ("120s", 120, "2m"), ("2h", 7200, "2h"), ("24d", 2_073_600, "24d")]
        {
            let read = time(text).unwrap();
            assert_eq!((read.as_secs(), show_time(read).as_str()), (seconds, shown));
        }
        for (bad, why) in [
            ("30", "'30' is no time"),
            ("", "is no time"),
            ("m", "is no time"),
            ("1.5h", "is no time"),
            ("-1s", "is no time"),
            ("1w", "is no time"),
            ("1h30m", "is no time"),
            ("0s", "at least 1s"),
            ("25d", "longer than 24d"),
            ("18446744073709551615d", "longer than 24d"),
            ("18446744073709551616s", "is no time"),
        ] {
            let told = time(bad).unwrap_err().0;
            assert!(told.contains(why), "{bad}: {told}");
        }
    }

    #[test]
    fn numbers_and_words_are_read() {
        assert_eq!((count("7", 9), count("0", 9).is_err(), count("10", 9).is_err()), (Ok(7), true, true));
        for bad in ["", "+1", "-1", "1.0", "x", "4294967296", "123_4"] {
            assert!(job(bad).is_err(), "{bad}");
        }
        assert_eq!(job("4294967295"), Ok(u32::MAX));
        let table = [("fuse", 1), ("preload", 2)];
        assert_eq!(of_table(&table, "fuse"), Ok(1));
        assert_eq!(
            of_table(&table, "preloaded"),
            Err(("'preloaded' is none of fuse, preload".into(), Some("preload".into())))
        );
        assert!(user("ana").is_ok() && user("DOM\\ana").is_ok() && user("a b").is_err() && user("").is_err());
    }

    #[test]
    fn sizes_are_shown_without_loss() {
        for (bytes, shown) in
            [(0, "0"), (1000, "1000"), (10 << 30, "10GiB"), (1536, "1536"), (1 << 50, "1024TiB")]
        {
            assert_eq!(show_size(bytes), shown);
            assert_eq!(parse_size(shown), Ok(bytes));
        }
    }
}
