//! What Slurm tells of the job that this runs in.

use std::process::{Command, Stdio};
use std::time::Duration;

pub use tidepool_queue::wall_time;

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
