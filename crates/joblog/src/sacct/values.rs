//! Words of `sacct`.

use crate::table::{KIB_MAX, PROCESSORS_MAX, SECONDS_MAX, Status};

const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 60 * MINUTE_S;
const DAY_S: u64 = 24 * HOUR_S;

/// What memory is said for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    Job(u64),
    Processor(u64),
    Node(u64),
}

/// `[days-]hours:minutes:seconds`, `minutes:seconds`, with parts of seconds or without.
pub fn duration(word: &str) -> Option<u64> {
    let (days, clock) = match word.split_once('-') {
        Some((days, clock)) => (whole(days)?, clock),
        None => (0, word),
    };
    let (clock, _) = clock.split_once('.').unwrap_or((clock, ""));
    let parts: Option<Vec<u64>> = clock.split(':').map(whole).collect();
    let (hours, minutes, seconds) = match parts?[..] {
        [hours, minutes, seconds] => (hours, minutes, seconds),
        [minutes, seconds] => (0, minutes, seconds),
        _ => return None,
    };
    let seconds = days
        .checked_mul(DAY_S)?
        .checked_add(hours.checked_mul(HOUR_S)?)?
        .checked_add(minutes.checked_mul(MINUTE_S)?.checked_add(seconds)?)?;
    (seconds <= SECONDS_MAX).then_some(seconds)
}

fn whole(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// `2026-11-23T22:26:09` as seconds since 1970 in the same place, or such seconds themselves (SLURM_TIME_FORMAT=%s). `Unknown` and
/// `None` are none.
pub fn time(word: &str) -> Option<u64> {
    if let Some(seconds) = whole(word) {
        return (1..=SECONDS_MAX).contains(&seconds).then_some(seconds);
    }
    let (date, clock) = word.split_once(['T', ' '])?;
    let parts: Option<Vec<u64>> = date.split('-').map(whole).collect();
    let [year, month, day] = parts?[..] else { return None };
    let good = (1970..=3000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let seconds = duration(clock).filter(|seconds| *seconds <= DAY_S)?;
    if !good || clock.split(':').count() != 3 {
        return None;
    }
    Some(days_since_1970(year, month, day) * DAY_S + seconds)
}

/// Years begin in March, so that the day of a leap year is their last one.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // Those from March of the year 0 to 1970.
    days - 719_468
}

/// A limit in seconds; none for those without.
pub fn limit(word: &str) -> Option<u64> {
    duration(word).filter(|seconds| *seconds > 0)
}

/// In minutes.
pub fn limit_raw(word: &str) -> Option<u64> {
    let minutes = whole(word)?;
    (1..=SECONDS_MAX / MINUTE_S).contains(&minutes).then(|| minutes * MINUTE_S)
}

/// `12`, `1.5K`.
pub fn count(word: &str) -> Option<u32> {
    let count = scaled(word, 1)?;
    (1..=u64::from(PROCESSORS_MAX)).contains(&count).then_some(count as u32)
}

/// A number with a power of 1024, as a multiple of `unit`.
fn scaled(word: &str, unit: u64) -> Option<u64> {
    let (digits, times) = match word.as_bytes().last()? {
        b'K' => (&word[..word.len() - 1], 1u64 << 10),
        b'M' => (&word[..word.len() - 1], 1 << 20),
        b'G' => (&word[..word.len() - 1], 1 << 30),
        b'T' => (&word[..word.len() - 1], 1 << 40),
        b'P' => (&word[..word.len() - 1], 1 << 50),
        _ => (word, unit),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let number = digits.parse::<f64>().ok()? * times as f64;
    (number <= (KIB_MAX as f64) * 1024.0).then_some(number as u64)
}

/// In KiB: `4000Mc` for each processor, `4Gn` for each node (before Slurm 21.08), `4G` for the job; without a unit it is MiB.
pub fn memory(word: &str) -> Option<Memory> {
    let (size, of): (&str, fn(u64) -> Memory) = match word.as_bytes().last()? {
        b'c' => (&word[..word.len() - 1], Memory::Processor),
        b'n' => (&word[..word.len() - 1], Memory::Node),
        _ => (word, Memory::Job),
    };
    let bytes = scaled(size, 1 << 20)?;
    (bytes > 0).then(|| of(bytes.div_ceil(1024)))
}

/// One of `billing=4,cpu=4,mem=8G,node=1`.
pub fn resource<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    list.split(',').filter_map(|one| one.split_once('=')).find(|(of, _)| *of == name).map(|(_, value)| value)
}

/// `CANCELLED by 1000`; or shortened to `CANCELLED+`.
fn state_word(state: &str) -> &str {
    state.split_ascii_whitespace().next().unwrap_or("").trim_end_matches('+')
}

/// Whether it is one of Slurm's.
pub fn state_is_known(state: &str) -> bool {
    status(state) != Some(Status::Unknown)
}

/// What `sacct` says about how a job ended; none if it has not.
pub fn status(state: &str) -> Option<Status> {
    match state_word(state) {
        "PENDING" | "RUNNING" | "SUSPENDED" | "COMPLETING" | "CONFIGURING" | "STAGE_OUT" | "STOPPED"
        | "REQUEUED" | "RESIZING" | "REQUEUE_HOLD" | "SPECIAL_EXIT" | "SIGNALING" | "RESV_DEL_HOLD" => None,
        "COMPLETED" => Some(Status::Completed),
        "CANCELLED" | "REVOKED" => Some(Status::Cancelled),
        "TIMEOUT" | "DEADLINE" => Some(Status::Timeout),
        "NODE_FAIL" | "BOOT_FAIL" => Some(Status::NodeFail),
        "OUT_OF_MEMORY" | "OUT_OF_ME" => Some(Status::OutOfMemory),
        "PREEMPTED" => Some(Status::Preempted),
        "FAILED" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => Some(Status::Failed),
        _ => Some(Status::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_limits() {
        assert_eq!(duration("1-02:03:04"), Some(93_784));
        assert_eq!((duration("00:00:10"), duration("02:03.456")), (Some(10), Some(123)));
        for bad in [
            "",
            "x",
            "1-",
            "-1:00:00",
            "1:2:3:4",
            "5",
            "99999999999999999999-00:00:00",
            "+1:00:00",
            "9999999999-00:00:00",
        ] {
            assert_eq!(duration(bad), None, "{bad}");
        }
        assert_eq!((limit("UNLIMITED"), limit("Partition_Limit"), limit("")), (None, None, None));
        assert_eq!((limit_raw("90"), limit_raw("4294967295000"), limit_raw("0")), (Some(5400), None, None));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        // `date -u -d ... +%s`.
        assert_eq!(time("2026-11-23T22:26:09"), Some(1_795_472_769));
        assert_eq!(time("2000-02-29T00:00:00"), Some(951_782_400));
        assert_eq!((time("1970-01-01 00:00:01"), time("1640995200")), (Some(1), Some(1_640_995_200)));
        for bad in [
            "Unknown",
            "None",
            "",
            "0",
            "2026-13-01T00:00:00",
            "2026-01-01",
            "1960-01-01T00:00:00",
            "2026-01-01T5:00",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn memory_is_for_whom_it_says() {
        assert_eq!(memory("4000Mc"), Some(Memory::Processor(4_096_000)));
        assert_eq!(memory("4Gn"), Some(Memory::Node(4 << 20)));
        assert_eq!(
            (memory("1.5G"), memory("500")),
            (Some(Memory::Job(1_572_864)), Some(Memory::Job(512_000)))
        );
        for bad in ["", "0", "c", "-4G", "NaN", "4Zc", "infM"] {
            assert_eq!(memory(bad), None, "{bad}");
        }
        assert_eq!(resource("billing=4,cpu=40,mem=8G,node=1", "cpu"), Some("40"));
        assert_eq!((count("1.5K"), count("0"), count("1e3")), (Some(1536), None, None));
    }
}
