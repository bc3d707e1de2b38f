//! Printing for people: phases, progress, tables.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tidepool_types::format_size;

/// How often a progress line is redrawn.
const REDRAW: Duration = Duration::from_millis(200);

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

/// `3.2 s`, `4 min 05 s`.
pub fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".to_string(), "bb".into()], vec!["ccc".into(), "d".into()]];
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }

    #[test]
    fn long_durations_show_minutes() {
        assert_eq!((duration(3.21), duration(245.0)), ("3.2 s".into(), "4 min 05 s".into()));
    }
}
