//! What Slurm tells of the job that this runs in, and how it writes times.

use std::process::{Command, Stdio};
use std::time::Duration;

/// The job's time limit; none outside a job, without one, and when Slurm does not say.
pub fn time_limit() -> Option<Duration> {
    let job = std::env::var("SLURM_JOB_ID").ok().filter(|id| id.bytes().all(|b| b.is_ascii_digit()))?;
    let said = Command::new("squeue")
        .args(["--noheader", "--format=%l", "--jobs", &job])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    wall_time(String::from_utf8_lossy(&said.stdout).trim())
}

/// `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS`, `DAYS-HOURS:MINUTES` or `DAYS-HOURS:MINUTES:SECONDS`, as
/// sbatch(1) reads and squeue(1) prints them; none for words such as `UNLIMITED`.
pub fn wall_time(text: &str) -> Option<Duration> {
    let number = |part: &str| {
        let digits = part.bytes().all(|b| b.is_ascii_digit());
        part.parse::<u64>().ok().filter(|_| digits)
    };
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts: Vec<u64> = rest.split(':').map(number).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = match (days, parts.as_slice()) {
        (None, [minutes]) => [0, *minutes, 0],
        (None, [minutes, seconds]) => [0, *minutes, *seconds],
        (Some(_), [hours]) => [*hours, 0, 0],
        (Some(_), [hours, minutes]) => [*hours, *minutes, 0],
        (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
        _ => return None,
    };
    let days = days.unwrap_or(0).checked_mul(86_400)?;
    let of_day = hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)?;
    Some(Duration::from_secs(days.checked_add(of_day)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_slurm_writes_them() {
        for (text, seconds) in [
            ("10", 600),
            ("10:00", 600),
            ("90:30", 5430),
            ("1:02:03", 3723),
            ("2-0", 172_800),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
            ("2-00:00:01", 172_801),
            ("0:00", 0),
        ] {
            assert_eq!(wall_time(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for none in
            ["UNLIMITED", "NOT_SET", "", "1:2:3:4", "x-1:00", "1-", "-1", "+1", "99999999999999999999:00"]
        {
            assert_eq!(wall_time(none), None, "{none}");
        }
    }
}
