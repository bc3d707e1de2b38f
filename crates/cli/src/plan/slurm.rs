//! What Slurm tells of the job that this runs in.

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
    duration(String::from_utf8_lossy(&said.stdout).trim())
}

/// `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS` or `DAYS-HOURS:MINUTES:SECONDS`, as squeue(1) prints them; none for words
/// such as `UNLIMITED`.
fn duration(text: &str) -> Option<Duration> {
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let parts: Vec<u64> = rest.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let of_day = parts.iter().try_fold(0u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    let days = days.parse::<u64>().ok()?.checked_mul(86_400)?;
    Some(Duration::from_secs(days.checked_add(of_day)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_squeue_prints_them() {
        for (text, seconds) in [("10:00", 600), ("1:02:03", 3723), ("2-00:00:01", 172_801), ("0:00", 0)] {
            assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for none in ["UNLIMITED", "NOT_SET", "", "10", "1:2:3:4", "x-1:00", "99999999999999999999:00"] {
            assert_eq!(duration(none), None, "{none}");
        }
    }
}
