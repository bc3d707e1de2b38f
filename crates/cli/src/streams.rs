//! The ways to the agents of a pool: lines of JSON in both directions.

use crate::agent::{self, Report};
use crate::exit::{Context, Failure, Kind, Result};
use crate::relay::Teller;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use tidepool_types::show_bytes;

/// How long all agents may take for one step.
const STEP_MAX: Duration = Duration::from_secs(60);
/// Longest report. Agents may be of another user than who listens to them.
const REPORT_BYTES_MAX: u64 = 1 << 20;
/// Reports of one stream that wait to be read.
const REPORTS_WAITING_MAX: usize = 64;

/// The way to the agent of one node, or, through it or through srun, to those of many.
struct Stream {
    /// Who is at the other end, for people.
    name: String,
    nodes: usize,
    teller: Teller,
    lines: Receiver<String>,
    /// Where its standard error goes, if that is here.
    log: Option<PathBuf>,
}

/// Those to all agents.
#[derive(Default)]
pub struct Streams(Vec<Stream>);

impl Streams {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The way to `nodes` agents behind `name`. Their input ends when this is cleared.
    pub fn add(
        &mut self,
        (name, nodes): (String, usize),
        input: impl Write + Send + 'static,
        output: impl Read + Send + 'static,
        log: Option<PathBuf>,
    ) {
        self.0.push(Stream { name, nodes, teller: Teller::new(input), lines: read_lines(output), log });
    }

    /// Tells something to the agents from stream `first` on; one report of every node. Any
    /// error among them is the result.
    pub fn ask(&self, first: usize, message: &impl serde::Serialize) -> Result<Vec<Report>> {
        let line = serde_json::to_string(message).expect("messages always serialize");
        let streams = &self.0[first..];
        streams.iter().for_each(|stream| stream.teller.tell(&line));
        let deadline = Instant::now() + STEP_MAX;
        let mut reports = Vec::new();
        for stream in streams {
            for _ in 0..stream.nodes {
                let report = stream.report(deadline)?;
                if !report.error.is_empty() {
                    let text = format!("node {}: {}", report.host, report.error);
                    let kind = if report.taken { Kind::Taken } else { Kind::Start };
                    return Err(Failure::new(kind, show_bytes(text.as_bytes())));
                }
                reports.push(report);
            }
        }
        reports.sort_by_key(|r| r.node);
        Ok(reports)
    }

    /// Speaks to nobody any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The same, and waits until the agents have ended; how many have not in time.
    pub fn end(&mut self, limit: Duration) -> usize {
        let deadline = Instant::now() + limit;
        let lines: Vec<Receiver<String>> = self.0.drain(..).map(|stream| stream.lines).collect();
        let is_left = |lines: &Receiver<String>| {
            while Instant::now() < deadline {
                match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(_) => {}
                    Err(RecvTimeoutError::Disconnected) => return false,
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            true
        };
        lines.iter().filter(|lines| is_left(lines)).count()
    }
}

impl Stream {
    fn report(&self, deadline: Instant) -> Result<Report> {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = self.lines.recv_timeout(left).map_err(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => "did not answer in time",
                RecvTimeoutError::Disconnected => "ended before the pool was up",
            };
            let said = self.log.as_deref().map(agent::last_words).unwrap_or_default();
            Failure::new(Kind::Start, format!("{} {why}{said}", self.name))
        })?;
        let said = || format!("{} said '{}'", self.name, show_bytes(line.as_bytes()));
        serde_json::from_str(&line).context(Kind::Start, said)
    }
}

/// Lines until the output ends, or one is longer than any report.
fn read_lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = sync_channel(REPORTS_WAITING_MAX);
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = String::new();
            match output.by_ref().take(REPORT_BYTES_MAX).read_line(&mut line) {
                Ok(1..) if line.ends_with('\n') => {}
                _ => return,
            }
            line.pop();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_output_takes_more_than_its_share() {
        let heard = |output: Vec<u8>| read_lines(std::io::Cursor::new(output)).iter().collect::<Vec<_>>();
        assert_eq!(heard(b"a\nb\nc".to_vec()), ["a", "b"]);
        let long = [b"a\n".to_vec(), vec![b'x'; REPORT_BYTES_MAX as usize + 1], b"\nb\n".to_vec()].concat();
        assert_eq!(heard(long), ["a"]);
    }

    #[test]
    fn who_never_stops_talking_is_not_waited_for() {
        let mut streams = Streams::default();
        streams.add(("one".into(), 1), std::io::sink(), std::io::repeat(b'\n'), None);
        assert_eq!(streams.end(Duration::from_millis(50)), 1);
        streams.add(("one".into(), 1), std::io::sink(), std::io::empty(), None);
        assert_eq!(streams.end(Duration::from_secs(60)), 0);
    }
}
