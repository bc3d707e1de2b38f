//! Slurm's own commands are asked, without a shell, for a bounded time and a bounded answer.

use crate::exit::{Context, Failure, Kind, Result};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidepool_queue::{cluster, rows, text};

/// How long a command may take: slurmctld may be busy.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// Of what a command says is wrong, that much is told.
const WHY_MAX: u64 = 4096;
/// Times as seconds since 1970, with the zone of the clock here.
const TIMES: &str = "%s%z";

pub fn squeue() -> Result<String> {
    ask("squeue", &["--all", "--format", text::FORMAT], ANSWER_MAX)
}

pub fn sinfo() -> Result<String> {
    ask("sinfo", &["--all", "--Node", "--format", cluster::FORMAT], ANSWER_MAX)
}

fn ask(program: &str, words: &[&str], answer_max: Duration) -> Result<String> {
    let mut child = Command::new(program)
        .args(words)
        .env("SLURM_TIME_FORMAT", TIMES)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let text = format!(
                "{program}: {error}; is this a machine of the cluster? --queue and --sinfo take files"
            );
            Failure::new(Kind::Other, text)
        })?;
    let (out, why) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(move || read(out, rows::BYTES_MAX + 1));
    let why = std::thread::spawn(move || read(why, WHY_MAX));
    let status = wait(&mut child, answer_max).context(Kind::Other, || program.into())?;
    let (out, why) = (out.join().unwrap_or_default(), why.join().unwrap_or_default());
    let Some(status) = status else {
        return Err(Failure::new(
            Kind::Other,
            format!("{program}: no answer within {} s", answer_max.as_secs()),
        ));
    };
    if !status.success() {
        let why = String::from_utf8_lossy(&why);
        let why = if why.trim().is_empty() { status.to_string() } else { crate::output::tame(why.trim()) };
        return Err(Failure::new(Kind::Other, format!("{program}: {why}")));
    }
    if out.len() as u64 > rows::BYTES_MAX {
        return Err(Failure::new(Kind::Other, format!("{program}: more than {} bytes", rows::BYTES_MAX)));
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn read(from: Option<impl Read>, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = (&mut from).take(bytes_max).read_to_end(&mut bytes);
        // Who writes more shall not wait for ever.
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    }
    bytes
}

/// None when it had not ended in time; it has been ended then.
fn wait(child: &mut Child, answer_max: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > answer_max {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_fail_hang_or_are_not_there_are_told() {
        assert_eq!(ask("printf", &["a|b"], ANSWER_MAX).unwrap(), "a|b");
        let said = |program: &str, words: &[&str]| {
            ask(program, words, Duration::from_millis(200)).unwrap_err().to_string()
        };
        assert!(said("no-such-command", &[]).contains("--queue and --sinfo take files"));
        assert_eq!(said("sleep", &["60"]), "sleep: no answer within 0 s");
        assert!(said("ls", &["/no/such/file"]).contains("/no/such/file"));
        assert!(said("false", &[]).contains("exit status: 1"));
    }
}
