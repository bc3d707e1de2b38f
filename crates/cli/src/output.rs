//! Printing for people: phases, progress, tables.

use rustix::termios::tcgetwinsize;
use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};
use tidepool_types::format_size;

/// How often a progress line is redrawn.
const REDRAW: Duration = Duration::from_millis(200);

/// Of a terminal that does not tell its size.
const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// A line on standard error that is redrawn in place; nothing when that is no terminal.
pub struct ProgressLine {
    enabled: bool,
    drawn: Option<Instant>,
}

impl ProgressLine {
    pub fn new() -> ProgressLine {
        ProgressLine { enabled: std::io::stderr().is_terminal(), drawn: None }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub fn draw(&mut self, text: &str) {
        if !self.enabled || self.drawn.is_some_and(|at| at.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }

    pub fn clear(&mut self) {
        if self.enabled && self.drawn.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// `12.3 MiB/s`, or nothing for no time.
pub fn rate(bytes: u64, seconds: f64) -> String {
    if seconds <= 0.0 { String::new() } else { format!("{}/s", format_size((bytes as f64 / seconds) as u64)) }
}

/// Seconds until what is left is done as well, if it goes on as it did; none before there is something to judge by.
pub fn time_left(done: u64, left: u64, seconds: f64) -> Option<f64> {
    (done > 0 && seconds > 0.0).then(|| left as f64 * seconds / done as f64)
}

/// `3.2 s`, `4 min 05 s`.
pub fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        // The sum of no times is -0.0.
        return format!("{:.1} s", seconds + 0.0);
    }
    let whole = seconds.round() as u64;
    format!("{} min {:02} s", whole / 60, whole % 60)
}

/// Prints rows with columns as wide as their longest cell; the first row is the head.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}", w = *w)).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A part of a terminal on standard output that is drawn again and again.
#[derive(Default)]
pub struct Screen {
    lines: usize,
}

impl Screen {
    /// In place of what was drawn before.
    pub fn draw(&mut self, text: &str) {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (columns, rows) = size.map_or((COLUMNS, ROWS), |size| (size.ws_col.into(), size.ws_row.into()));
        let text = fit(text, columns, rows);
        let up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
        self.lines = text.lines().count();
        // Who closed the terminal has seen enough; what is watched goes on all the same.
        let _ = write!(stdout(), "{up}\x1b[J{text}").and_then(|()| stdout().flush());
    }
}

/// Lines that neither wrap nor scroll: those cannot be drawn over.
pub fn fit(text: &str, columns: usize, rows: usize) -> String {
    let cut = |line: &str| line.chars().take(columns.saturating_sub(1)).collect::<String>() + "\n";
    let most = rows.saturating_sub(2).max(1);
    let mut shown: String = text.lines().take(most).map(cut).collect();
    let hidden = text.lines().count().saturating_sub(most);
    if hidden > 0 {
        shown.push_str(&cut(&format!("... and {hidden} more")));
    }
    shown
}

/// What another user has named, so that it cannot drive a terminal.
pub fn tame(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".to_string(), "bb".into()], vec!["ccc".into(), "d".into()]];
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }

    #[test]
    fn the_time_left_follows_from_what_was_done() {
        assert_eq!(time_left(200, 100, 12.0), Some(6.0));
        assert_eq!((time_left(0, 100, 12.0), time_left(5, 100, 0.0)), (None, None));
    }

    #[test]
    fn long_durations_show_minutes() {
        assert_eq!((duration(3.21), duration(245.0)), ("3.2 s".into(), "4 min 05 s".into()));
        assert_eq!(duration([0.0; 0].iter().sum()), "0.0 s");
    }
}
