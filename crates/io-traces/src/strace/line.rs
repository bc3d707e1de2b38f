//! Lines that strace writes with `-f -y -qq`, with or without `-t`, `-tt`, `-ttt` and `-T`: which call, when, on which paths,
//! and whether it succeeded.
//!
//! ```text
//! 27648 openat(AT_FDCWD</tmp>, "x", O_RDWR|O_CREAT, 0666) = 3</tmp/x>
//! 27649 read(4</tmp/x>,  <unfinished ...>            27649 <... read resumed>"..", 10) = 10
//! [pid 27648] 1700000000.000125 close(3</tmp/x>) = 0 <0.000005>
//! ```
//! The text is untrusted: names in it are any program's choice. What cannot be read is counted, not guessed.

use crate::LINE_MAX;
use crate::text::decimal_seconds;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// Most calls that wait for their second half.
const UNFINISHED_MAX: usize = 1 << 16;

/// One system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// 0 where lines name none.
    pub pid: u32,
    pub at: Option<Stamp>,
    pub name: String,
    /// Everything between the parentheses.
    pub args: String,
    pub succeeded: bool,
    /// What it returned, if that is a number.
    pub result: Option<i64>,
    /// Absolute paths among the arguments and the result, cleaned of `.` and `..`.
    pub paths: Vec<PathBuf>,
    /// A descriptor in it leads to a file without a name.
    pub on_deleted: bool,
}

/// When a call began, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamp {
    /// Since 1970 (`-ttt`), or since the line before (`-r`).
    Seconds(u64),
    /// Since midnight (`-t`, `-tt`).
    Clock(u64),
}

/// A call's first half, and when it began.
type Begun = (String, Option<Stamp>);

/// Puts lines together to calls.
pub struct Reader {
    start: PathBuf,
    cwds: HashMap<u32, PathBuf>,
    unfinished: HashMap<u32, Begun>,
    /// Lines that could not be read.
    pub unread: u64,
}

impl Reader {
    /// `start`: working directory of the first process.
    pub fn new(start: &Path) -> Reader {
        Reader { start: start.into(), cwds: HashMap::new(), unfinished: HashMap::new(), unread: 0 }
    }

    /// The call that a line completes, if it does.
    pub fn line(&mut self, line: &str) -> Option<Call> {
        let line = line.trim_end();
        if line.len() > LINE_MAX {
            return self.cannot_read();
        }
        let Some((pid, at, rest)) = head(line) else { return self.cannot_read() };
        // Signals and ends of processes.
        if rest.starts_with("---") || rest.starts_with("+++") {
            return None;
        }
        if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            if self.unfinished.len() < UNFINISHED_MAX {
                self.unfinished.insert(pid, (begun.trim_end().into(), at));
            }
            return None;
        }
        if rest.starts_with("<... ") {
            let (begun, at) = self.unfinished.remove(&pid)?;
            let Some((_, end)) = rest.split_once(" resumed>") else { return self.cannot_read() };
            return self.call((pid, at), &(begun + end));
        }
        self.call((pid, at), rest)
    }

    /// First halves of calls whose second half was not seen yet, with their processes.
    pub fn unfinished(&self) -> impl Iterator<Item = (u32, &str)> {
        self.unfinished.iter().map(|(pid, (text, _))| (*pid, text.as_str()))
    }

    fn cannot_read(&mut self) -> Option<Call> {
        self.unread += 1;
        None
    }

    fn call(&mut self, (pid, at): (u32, Option<Stamp>), text: &str) -> Option<Call> {
        let Some((name, rest)) = text.split_once('(') else { return self.cannot_read() };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        // The result follows the last parenthesis; names in quotes before it may hold anything.
        let Some((args, result)) = rest.rsplit_once(" = ").filter(|_| name.bytes().all(is_name)) else {
            return self.cannot_read();
        };
        let Some(args) = args.trim_end().strip_suffix(')') else { return self.cannot_read() };
        let result = without_span(result.trim());
        let succeeded = !result.starts_with('-') && !result.starts_with('?');
        let items = items(args);
        if let Some(Item::Descriptor { path, cwd: true, .. }) = items.first() {
            self.cwds.insert(pid, path.clone());
        }
        let cwd = self.cwds.get(&pid).unwrap_or(&self.start).clone();
        let mut paths = Vec::new();
        let mut base = cwd;
        let mut on_deleted = false;
        for item in items.into_iter().chain(self::items(result)) {
            match item {
                Item::Descriptor { path, deleted, .. } => {
                    on_deleted |= deleted;
                    base.clone_from(&path);
                    paths.push(path);
                }
                Item::Text(text) if !text.is_empty() => paths.push(clean(&base.join(text))),
                Item::Text(_) => {}
            }
        }
        let result = leading_number(result);
        let (name, args) = (name.to_string(), args.to_string());
        let call = Call { pid, at, name, args, succeeded, result, paths, on_deleted };
        if succeeded && matches!(call.name.as_str(), "chdir" | "fchdir") {
            self.cwds.insert(pid, call.paths.first().cloned().unwrap_or_else(|| self.start.clone()));
        }
        Some(call)
    }
}

/// A line's process (0 without one), its time stamp if it has one, and the call.
pub fn head(line: &str) -> Option<(u32, Option<Stamp>, &str)> {
    let (pid, rest) = match line.trim_start().strip_prefix("[pid") {
        Some(rest) => {
            let (pid, rest) = rest.split_once(']')?;
            (pid.trim().parse().ok()?, rest.trim_start())
        }
        None => {
            let line = line.trim_start();
            match line.split_once(' ') {
                Some((word, rest)) if word.bytes().all(|byte| byte.is_ascii_digit()) => {
                    (word.parse().ok()?, rest.trim_start())
                }
                _ => (0, line),
            }
        }
    };
    if let Some((word, rest)) = rest.split_once(' ')
        && let Some(stamp) = stamp(word)
    {
        return Some((pid, Some(stamp), rest.trim_start()));
    }
    Some((pid, None, rest))
}

/// `1700000000.000125`, `12:34:56` or `12:34:56.000125`.
fn stamp(word: &str) -> Option<Stamp> {
    let mut parts = word.splitn(3, ':');
    let (first, second, third) = (parts.next()?, parts.next(), parts.next());
    match (second, third) {
        (None, None) if first.contains('.') => decimal_seconds(first).map(Stamp::Seconds),
        (Some(minutes), Some(seconds)) => {
            let below = |text: &str, most: u64| text.parse::<u64>().ok().filter(|number| *number <= most);
            let whole = below(first, 23)? * 3600 + below(minutes, 59)? * 60;
            let seconds = decimal_seconds(seconds).filter(|ns| *ns < 61_000_000_000)?;
            Some(Stamp::Clock(whole * 1_000_000_000 + seconds))
        }
        _ => None,
    }
}

/// A result without the time that the call took (`-T`).
fn without_span(result: &str) -> &str {
    let Some((before, span)) = result.rsplit_once(" <") else { return result };
    let is_span = span.strip_suffix('>').is_some_and(|span| decimal_seconds(span).is_some());
    if is_span { before.trim_end() } else { result }
}

/// `-1 ENOENT ...` and `3</tmp/x>` begin with a number.
pub fn leading_number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text).bytes().take_while(u8::is_ascii_digit).count();
    text[..digits + usize::from(text.starts_with('-'))].parse().ok()
}

enum Item {
    /// `3</path>` or `AT_FDCWD</path>`.
    Descriptor { path: PathBuf, deleted: bool, cwd: bool },
    /// A string in quotes.
    Text(String),
}

/// Descriptors and strings of an argument list, in order.
fn items(text: &str) -> Vec<Item> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['"', '<']) {
        let (before, from) = rest.split_at(at);
        if let Some(quoted) = from.strip_prefix('"') {
            let (text, after) = unquote(quoted);
            found.push(Item::Text(text));
            rest = after;
            continue;
        }
        let Some(end) = from.find('>') else { break };
        let (inside, after) = (&from[1..end], &from[end + 1..]);
        let cwd = before.ends_with("AT_FDCWD");
        if inside.starts_with('/') && (cwd || before.ends_with(|c: char| c.is_ascii_digit())) {
            let deleted = after.starts_with("(deleted)");
            found.push(Item::Descriptor { path: clean(Path::new(inside)), deleted, cwd });
        }
        rest = after;
    }
    found
}

/// The text up to the closing quote, with its escapes undone as far as they matter for names, and what follows.
fn unquote(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (out, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, 't')) => out.push('\t'),
                Some((_, other)) => out.push(other),
                None => break,
            },
            c => out.push(c),
        }
    }
    (out, "")
}

/// Without `.`, `..` and doubled slashes, by the words alone.
fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::Normal(name) => out.push(name),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(lines: &[&str]) -> Vec<Call> {
        let mut reader = Reader::new(Path::new("/start"));
        lines.iter().filter_map(|line| reader.line(line)).collect()
    }

    fn paths(call: &Call) -> Vec<&str> {
        call.paths.iter().map(|p| p.to_str().unwrap()).collect()
    }

    #[test]
    fn calls_name_their_paths() {
        let calls = read(&[
            r#"7 openat(AT_FDCWD</w>, "x", O_RDWR|O_CREAT, 0666) = 3</w/x>"#,
            r#"7 rename("a/../b", "/c") = -1 ENOENT (No such file or directory)"#,
            r#"8 unlink("d") = 0"#,
            r#"8 chdir("sub") = 0"#,
            r#"8 unlink("e") = 0"#,
            r#"7 fsync(3</w/x>(deleted)) = 0"#,
            r#"7 linkat(5</p>, "in\"side", 6</q>, "y", 0) = 0"#,
            "7 --- SIGCHLD {si_signo=SIGCHLD} ---",
            "7 +++ exited with 0 +++",
        ]);
        assert_eq!(calls.len(), 7);
        assert_eq!((paths(&calls[0]), calls[0].succeeded), (vec!["/w", "/w/x", "/w/x"], true));
        assert_eq!((paths(&calls[1]), calls[1].succeeded), (vec!["/w/b", "/c"], false));
        assert_eq!(paths(&calls[2]), ["/start/d"]);
        assert_eq!(paths(&calls[4]), ["/start/sub/e"]);
        assert!(calls[5].on_deleted);
        assert_eq!(paths(&calls[6]), ["/p", "/p/in\"side", "/q", "/q/y"]);
        assert_eq!(calls[6].args, r#"5</p>, "in\"side", 6</q>, "y", 0"#);
    }

    #[test]
    fn halves_are_put_together() {
        let calls = read(&[
            "7 fcntl(3</w/x>, F_SETLKW, {l_type=F_WRLCK} <unfinished ...>",
            r#"8 write(4</w/y>, "a = b)", 6) = 6"#,
            "7 <... fcntl resumed>) = 0",
        ]);
        assert_eq!(calls.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["write", "fcntl"]);
        assert!(calls[1].args.contains("F_WRLCK"));
    }

    #[test]
    fn time_stamps_of_all_kinds_are_read() {
        let calls = read(&[
            "7 1700000000.000125 close(3</w/x>) = 0 <0.000005>",
            "[pid    7] 12:34:56.5 read(3</w/x>, \"\", 10) = 0",
            "00:00:01 close(3</w/x>)            = -1 EBADF (Bad file descriptor) <0.1>",
            "close(3) = 0",
            "7 1700000001.5 read(3</w/x>,  <unfinished ...>",
            "7 1700000002.5 <... read resumed>\"\", 10) = 4 <1.000000>",
        ]);
        let at: Vec<_> = calls.iter().map(|call| (call.pid, call.at, call.result)).collect();
        assert_eq!(
            at,
            [
                (7, Some(Stamp::Seconds(1_700_000_000_000_125_000)), Some(0)),
                (7, Some(Stamp::Clock(45_296_500_000_000)), Some(0)),
                (0, Some(Stamp::Clock(1_000_000_000)), Some(-1)),
                (0, None, Some(0)),
                (7, Some(Stamp::Seconds(1_700_000_001_500_000_000)), Some(4)),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_survived(lines in prop::collection::vec(".{0,80}", 0..20)) {
            let mut reader = Reader::new(Path::new("/"));
            for line in &lines {
                reader.line(line);
                reader.line(&format!("1 open({line}"));
                reader.line(&format!("1 open({line}) = 3<{line}>"));
            }
        }
    }
}
