//! Lines of the log about who administers, and those that others can cause: a flood of them must not fill a disk.

use std::time::{Duration, Instant};
use tidepool_stage_state::{Caller, Rank};
use tidepool_wire::stager::{Command, Request};

/// What is written of a request that changes what others may do, or acts for others. None for one that only looks.
pub fn act(request: &Request) -> Option<String> {
    let about = match request {
        Request::RegisterDataspace { dataspace } | Request::UpdateDataspace { dataspace } => {
            format!("{:?} at {:?}", dataspace.name, dataspace.mount)
        }
        Request::UnregisterDataspace { name } => format!("{name:?}"),
        Request::RegisterJobOf { job, owner } => format!("job {} of user {}", job.id, owner.uid),
        Request::RegisterJob { job } | Request::UpdateJob { job } => format!("job {}", job.id),
        Request::AddProcess { job, process } | Request::RemoveProcess { job, process } => {
            format!("job {job}, process {} of user {}", process.pid, process.uid)
        }
        Request::UnregisterJob { job } | Request::ReleaseJob { job } | Request::CleanOwn { job, .. } => {
            format!("job {job}")
        }
        Request::CleanJob { job, dry_run: false, .. } => format!("job {job}"),
        Request::SubmitHeld { tasks } => format!("{} tasks", tasks.len()),
        Request::SetPolicy { policy } => format!("{policy:?}"),
        Request::Unkeep { dataspace, user, .. } => format!("{dataspace:?} of user {user}"),
        Request::Command { command } if *command != Command::Ping => format!("{command:?}"),
        _ => return None,
    };
    Some(format!("{} {about}", request.name()))
}

/// Who did it, and what came of it.
pub fn line(caller: &Caller, act: &str, outcome: &str) -> String {
    let who = match caller.rank {
        Rank::Controller => "controller".to_string(),
        Rank::User | Rank::Administrator => format!("user {}", caller.uid),
    };
    let afar = if caller.ancestry.is_empty() { " of another node" } else { "" };
    format!("audit: {who}{afar}: {act}: {outcome}")
}

/// Lines in one [`EVERY`].
const LINES_MAX: u32 = 20;
const EVERY: Duration = Duration::from_secs(60);
/// Characters of one.
const LINE_MAX: usize = 1000;

/// What others have a hand in makes no line of its own, and hides none: names, for instance, may have any characters.
fn one_line(text: &str) -> String {
    let plain = |c: char| match c.is_control() {
        true => c.escape_default().collect::<String>(),
        false => c.to_string(),
    };
    text.chars().take(LINE_MAX).map(plain).collect()
}

/// Lets some lines of a kind through, and says how many it did not.
#[derive(Default)]
pub struct Limiter {
    /// When lines were last counted anew, and how many were written since.
    since: Option<Instant>,
    written: u32,
    silent: u64,
}

impl Limiter {
    /// The line to be written, if one is.
    pub fn line(&mut self, now: Instant, text: &str) -> Option<String> {
        let text = one_line(text);
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= EVERY) {
            let silent = self.silent;
            *self = Limiter { since: Some(now), written: 1, silent: 0 };
            return Some(match silent {
                0 => text,
                silent => format!("{text} (and {silent} more like this before, unwritten)"),
            });
        }
        if self.written >= LINES_MAX {
            self.silent += 1;
            return None;
        }
        self.written += 1;
        Some(text)
    }

    /// Writes the line to the log, or counts it.
    pub fn tell(&mut self, text: &str) {
        if let Some(line) = self.line(Instant::now(), text) {
            eprintln!("tidepool-staged: {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_are_told_apart_from_looks() {
        let act = |request| act(&request);
        assert_eq!(act(Request::ReleaseJob { job: 7 }).as_deref(), Some("ReleaseJob job 7"));
        assert_eq!(act(Request::Command { command: Command::Pause }).as_deref(), Some("Command Pause"));
        let named = act(Request::UnregisterDataspace { name: "a\nb".into() });
        assert_eq!(named.as_deref(), Some("UnregisterDataspace \"a\\nb\""), "no line of its own");
        assert_eq!(act(Request::Jobs {}), None);
        assert_eq!(act(Request::Command { command: Command::Ping }), None);
        assert_eq!(act(Request::CleanJob { job: 1, after: 0, dry_run: true }), None);
    }

    #[test]
    fn a_name_writes_no_line_of_its_own() {
        let mut limiter = Limiter::default();
        let text =
            format!("refused: who calls itself 'n\nstager: audit: user 0\x1b[2K': {}", "x".repeat(5000));
        let line = limiter.line(Instant::now(), &text).unwrap();
        assert!(line.contains("'n\\nstager") && !line.chars().any(char::is_control), "{line}");
        assert!(line.len() < 1100);
    }

    #[test]
    fn a_flood_is_counted_and_told_later() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let written = (0..1000).filter_map(|_| limiter.line(start, "no")).count();
        assert_eq!(written, LINES_MAX as usize);
        let later = limiter.line(start + EVERY, "no").unwrap();
        assert!(later.contains(&format!("{} more", 1000 - LINES_MAX)), "{later}");
        assert_eq!(limiter.line(start + EVERY, "no").as_deref(), Some("no"));
    }
}
