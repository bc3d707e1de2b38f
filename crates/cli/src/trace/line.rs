//! Lines that strace writes with `-f -y -qq`: which call, on which paths, and whether it succeeded.
//!
//! ```text
//! 27648 openat(AT_FDCWD</tmp>, "x", O_RDWR|O_CREAT, 0666) = 3</tmp/x>
//! 27649 read(4</tmp/x>,  <unfinished ...>            27649 <... read resumed>"..", 10) = 10
//! ```
//! The text is untrusted: names in it are any program's choice. What cannot be read is counted, not guessed.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// Longest line that is looked at, and most calls that wait for their second half.
const LINE_MAX: usize = 64 << 10;
const UNFINISHED_MAX: usize = 1 << 16;

/// One system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    pub pid: u32,
    pub name: String,
    /// Everything between the parentheses.
    pub args: String,
    pub succeeded: bool,
    /// Absolute paths among the arguments and the result, cleaned of `.` and `..`.
    pub paths: Vec<PathBuf>,
    /// A descriptor in it leads to a file without a name.
    pub on_deleted: bool,
}

/// Puts lines together to calls.
pub struct Reader {
    start: PathBuf,
    cwds: HashMap<u32, PathBuf>,
    unfinished: HashMap<u32, String>,
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
        let (pid, rest) = line.split_once(' ')?;
        let (Ok(pid), rest) = (pid.parse(), rest.trim_start()) else { return self.cannot_read() };
        if line.len() > LINE_MAX {
            return self.cannot_read();
        }
        // Signals and ends of processes.
        if rest.starts_with("---") || rest.starts_with("+++") {
            return None;
        }
        if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            if self.unfinished.len() < UNFINISHED_MAX {
                self.unfinished.insert(pid, begun.trim_end().into());
            }
            return None;
        }
        if rest.starts_with("<... ") {
            let begun = self.unfinished.remove(&pid)?;
            let Some((_, end)) = rest.split_once(" resumed>") else { return self.cannot_read() };
            return self.call(pid, &(begun + end));
        }
        self.call(pid, rest)
    }

    fn cannot_read(&mut self) -> Option<Call> {
        self.unread += 1;
        None
    }

    fn call(&mut self, pid: u32, text: &str) -> Option<Call> {
        let Some((name, rest)) = text.split_once('(') else { return self.cannot_read() };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        // The result follows the last parenthesis; names in quotes before it may hold anything.
        let Some((args, result)) = rest.rsplit_once(" = ").filter(|_| name.bytes().all(is_name)) else {
            return self.cannot_read();
        };
        let Some(args) = args.trim_end().strip_suffix(')') else { return self.cannot_read() };
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
        let call = Call { pid, name: name.into(), args: args.into(), succeeded, paths, on_deleted };
        if succeeded && matches!(name, "chdir" | "fchdir") {
            self.cwds.insert(pid, call.paths.first().cloned().unwrap_or_else(|| self.start.clone()));
        }
        Some(call)
    }
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
