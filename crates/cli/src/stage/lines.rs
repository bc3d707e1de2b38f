//! Task lists: one task a line, `docs/formats/15-task-lists.md`.

use std::fmt;
use std::io::{self, BufRead, Read};
use tidepool_directives::{Word, Wrong, words};
use tidepool_stage_client::{Op, Resource, TaskSpec, Verify, parse_place};
use tidepool_types::parse_size;

/// Two paths of full length in which every byte is written as `\xHH`, with room for the rest.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Tasks of one list: as many as a stager holds unless it is told otherwise.
pub const TASKS_MAX: usize = 2_000_000;

/// What is wrong, and where. Columns count bytes, from 1.
#[derive(Debug)]
pub struct LineError {
    pub line: usize,
    pub column: usize,
    pub what: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

/// A task, and the line it is from.
#[derive(Debug)]
pub struct Line {
    pub number: usize,
    pub task: TaskSpec,
}

/// Why a list cannot be used: nothing of it is submitted.
#[derive(Debug)]
pub enum ListError {
    Read(io::Error),
    Line(LineError),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListError::Read(error) => write!(f, "cannot be read: {error}"),
            ListError::Line(error) => error.fmt(f),
        }
    }
}

/// All tasks of a list; `usual` makes a task with the options of the command line.
pub fn read(
    from: &mut dyn BufRead,
    usual: &dyn Fn(Op, Resource, Option<Resource>) -> TaskSpec,
) -> Result<Vec<Line>, ListError> {
    let mut all = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let read = from.take(most).read_until(b'\n', &mut line).map_err(ListError::Read)?;
        if read == 0 {
            break;
        }
        let fail =
            |(column, what): Wrong| ListError::Line(LineError { line: number, column: column + 1, what });
        if line.len() > LINE_BYTES_MAX {
            return Err(fail((LINE_BYTES_MAX, format!("a line has at most {LINE_BYTES_MAX} bytes"))));
        }
        let Some(task) = parse(&line, usual).map_err(fail)? else { continue };
        if all.len() == TASKS_MAX {
            return Err(fail((0, format!("a list has at most {TASKS_MAX} tasks; split it"))));
        }
        all.push(Line { number, task });
    }
    Ok(all)
}

fn parse(
    line: &[u8],
    usual: &dyn Fn(Op, Resource, Option<Resource>) -> TaskSpec,
) -> Result<Option<TaskSpec>, Wrong> {
    let mut words = words(line)?.into_iter().peekable();
    let Some(first) = words.next() else { return Ok(None) };
    let op = match first.text.as_slice() {
        b"copy" => Op::Copy,
        b"move" => Op::Move,
        b"remove" => Op::Remove,
        other => {
            let other = String::from_utf8_lossy(other);
            return Err((first.at, format!("'{other}' is none of copy, move, remove")));
        }
    };
    let end = line.trim_ascii_end().len();
    let mut place = |what: &str| {
        let word =
            words.next_if(|word| !is_option(word)).ok_or_else(|| (end, format!("{what} is missing")))?;
        parse_place(&word.text).map_err(|error| (word.at, error.to_string()))
    };
    let source = place("the source")?;
    let destination = if op == Op::Remove { None } else { Some(place("the destination")?) };
    let mut task = usual(op, source, destination);
    for word in words {
        option(&mut task, &word).map_err(|what| (word.at, what))?;
    }
    Ok(Some(task))
}

fn is_option(word: &Word) -> bool {
    let name = word.text.split(|b| *b == b'=').next().unwrap_or_default();
    !word.quoted && name.len() < word.text.len() && name.iter().all(u8::is_ascii_lowercase)
}

fn option(task: &mut TaskSpec, word: &Word) -> Result<(), String> {
    let text = String::from_utf8_lossy(&word.text);
    let (name, value) = text.split_once('=').unwrap_or((&text, ""));
    let size = || parse_size(value).map_err(|error| error.to_string());
    match name {
        "priority" => task.priority = value.parse().map_err(|_| format!("'{value}' is no priority"))?,
        "bandwidth" => task.bandwidth = size()?,
        "size" => task.size_hint = size()?,
        "verify" => task.verify = parse_verify(value)?,
        _ => {
            return Err(format!(
                "'{text}' is none of priority=N, bandwidth=SIZE, size=SIZE, verify=yes|no|disk"
            ));
        }
    }
    Ok(())
}

fn parse_verify(value: &str) -> Result<Verify, String> {
    match value {
        "yes" => Ok(Verify::Yes),
        "no" => Ok(Verify::No),
        "disk" => Ok(Verify::Disk),
        _ => Err(format!("'{value}' is none of yes, no, disk")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidepool_directives::show_word;

    fn list(text: &[u8]) -> Result<Vec<Line>, String> {
        read(&mut &text[..], &TaskSpec::new).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_is_read() {
        let text = b"# what comes in\ncopy a://in b://in\n\n  move a://x  n1:42000/b://y priority=-5 verify=no # why\n\
            remove \"a://with blank\\n\\x41\\\"\\\\\" size=4KiB bandwidth=1MiB\r\ncopy a://no b://newline verify=disk";
        let tasks = list(text).unwrap();
        assert_eq!(tasks.iter().map(|line| line.number).collect::<Vec<_>>(), [2, 4, 5, 6]);
        assert_eq!(tasks[0].task.dst, Some(Resource::local("b://", b"in")));
        assert_eq!(tasks[1].task.dst, Some(Resource::remote("b://", "n1:42000", b"y")));
        assert_eq!((tasks[1].task.priority, tasks[1].task.verify), (-5, Verify::No));
        assert_eq!(tasks[2].task.src, Resource::local("a://", b"with blank\nA\"\\"));
        assert_eq!(tasks[3].task.verify, Verify::Disk);
        assert_eq!((tasks[2].task.size_hint, tasks[2].task.bandwidth), (4096, 1 << 20));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let long = [b"copy a://", vec![b'x'; LINE_BYTES_MAX].as_slice()].concat();
        let cases: &[(&[u8], &str)] = &[
            (b"\nlink a://x b://y", "line 2, column 1: 'link' is none of copy, move, remove"),
            (b"copy a://x", "line 1, column 11: the destination is missing"),
            (b"copy a://x priority=1", "line 1, column 22: the destination is missing"),
            (b"copy here b://y", "line 1, column 6: 'here' is no place"),
            (b"copy a://x b://y fast=1", "line 1, column 18: 'fast=1' is none of"),
            (b"copy a://x b://y verify=maybe", "line 1, column 18: 'maybe' is none"),
            (b"remove a://x b://y", "line 1, column 14: 'b://y' is none of"),
            (b"remove \"a://x", "line 1, column 8: this quotation does not end"),
            (b"remove \"a://\\q\"", "line 1, column 13: after a backslash"),
            (b"remove \"a://\\x00\"", "line 1, column 13: after a backslash"),
            (b"remove a://\0", "line 1, column 12: a word has no zero"),
            (&long, "line 1, column 65537: a line has at most 65536 bytes"),
        ];
        for (text, expected) in cases {
            let error = list(text).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_path_can_be_written(path in proptest::collection::vec(1u8..=255, 0..200)) {
            let place = [b"a://", path.as_slice()].concat();
            let line = [b"remove ", show_word(&place).as_bytes()].concat();
            let read = list(&line).unwrap();
            prop_assert_eq!(&read[0].task.src, &Resource::local("a://", &path));
        }

        #[test]
        fn any_bytes_are_a_list_or_an_error_with_a_place(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Err(error) = list(&bytes) {
                prop_assert!(error.starts_with("line "), "{}", error);
            }
        }

        #[test]
        fn nearly_right_lines_are_no_panic(
            text in "(copy|move|remove)( \"?a://[a\\\\x\"= #]{0,6}\"?){0,3}( [a-z]{0,9}=[0-9a-z]{0,4}){0,3}",
        ) {
            let _ = list(text.as_bytes());
        }
    }
}
