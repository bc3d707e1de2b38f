//! What a script's `#SBATCH` lines say: of nodes and time here; others ask for more of them ([`options`]).

use crate::plan::slurm::wall_time;
use std::time::Duration;
use tidepool_directives::{At, Problem};

const KEYWORD: &[u8] = b"#SBATCH";
/// Words that ask for no time limit.
const NO_LIMIT: [&str; 2] = ["UNLIMITED", "INFINITE"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Of a range, the fewest.
    pub nodes: Option<usize>,
    pub time: Option<Duration>,
}

/// One of the two options that are read.
#[derive(Clone, Copy)]
enum Known {
    Nodes,
    Time,
}

const OPTIONS: [(&str, &str, Known); 2] = [("--nodes", "-N", Known::Nodes), ("--time", "-t", Known::Time)];

/// As sbatch reads it: up to the first line that is neither blank nor a comment; what is said last counts.
pub fn header(script: &[u8]) -> (Header, Vec<Problem>) {
    let mut header = Header::default();
    let table = OPTIONS.map(|(long, short, known)| (long, short, Takes::Value(known)));
    let problems = options(script, &table, |known, value| header.take(known, value));
    (header, problems)
}

/// Whether an option has a value, and what it is.
#[derive(Clone, Copy)]
pub enum Takes<K> {
    Value(K),
    /// None, or one behind `=`.
    Perhaps(K),
}

/// Hands each option of a table that a script's header has, with its value, to `take`, and tells what that says is wrong. A long name
/// may stand for an option alone; its short name is empty then.
pub fn options<K: Copy>(
    script: &[u8],
    table: &[(&str, &str, Takes<K>)],
    mut take: impl FnMut(K, &str) -> Result<(), String>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(script.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii_end();
        if !line.is_empty() && !line.starts_with(b"#") {
            break;
        }
        let Some(rest) =
            line.strip_prefix(KEYWORD).filter(|rest| rest.starts_with(b" ") || rest.starts_with(b"\t"))
        else {
            continue;
        };
        let words = words(&String::from_utf8_lossy(rest));
        let mut words = words.iter().map(|(at, word)| (KEYWORD.len() + at + 1, word.as_str()));
        while let Some((column, word)) = words.next() {
            let Some((known, attached)) = option(table, word) else { continue };
            let at = At::Line { line: number, column };
            let said = match (known, attached) {
                (Takes::Value(known) | Takes::Perhaps(known), Some(value)) => take(known, value),
                (Takes::Perhaps(known), None) => take(known, ""),
                (Takes::Value(known), None) => match words.next() {
                    Some((_, value)) => take(known, value),
                    None => Err(format!("'{word}' has no value")),
                },
            };
            problems.extend(said.err().map(|why| Problem::new(&at, why)));
        }
    }
    problems
}

/// Which option a word is, with the value that it brings along.
fn option<'a, K: Copy>(
    table: &[(&str, &str, Takes<K>)],
    word: &'a str,
) -> Option<(Takes<K>, Option<&'a str>)> {
    table.iter().find_map(|(long, short, known)| {
        if word == *long || (word == *short && !short.is_empty()) {
            return Some((*known, None));
        }
        let value = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('='));
        let short = Some(short).filter(|short| !short.is_empty() && matches!(known, Takes::Value(_)));
        value.or(short.and_then(|short| word.strip_prefix(short))).map(|value| (*known, Some(value)))
    })
}

impl Header {
    fn take(&mut self, known: Known, value: &str) -> Result<(), String> {
        match known {
            Known::Nodes => {
                let fewest = fewest(value).ok_or(format!("'{value}' is no number of nodes"))?;
                self.nodes = Some(fewest);
            }
            Known::Time if NO_LIMIT.iter().any(|word| word.eq_ignore_ascii_case(value)) => self.time = None,
            Known::Time => {
                let time = wall_time(value).ok_or(format!("'{value}' is no time limit"))?;
                // So Slurm takes it.
                self.time = Some(time).filter(|time| !time.is_zero());
            }
        }
        Ok(())
    }
}

/// Of `4`, `2-4`, `2,4,8` or `2-8:2`, where `k` and `m` count in 1024s.
pub fn fewest(text: &str) -> Option<usize> {
    let (first, rest) = text.split_at(text.find(['-', ',', ':']).unwrap_or(text.len()));
    if !rest.bytes().all(|b| b.is_ascii_digit() || b"-,:kKmM".contains(&b)) || rest.ends_with(['-', ',', ':'])
    {
        return None;
    }
    let (digits, unit) = match first.as_bytes().last()? {
        b'k' | b'K' => (&first[..first.len() - 1], 1 << 10),
        b'm' | b'M' => (&first[..first.len() - 1], 1 << 20),
        _ => (first, 1usize),
    };
    let digits = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse::<usize>().ok()?.checked_mul(unit).filter(|nodes| *nodes > 0)
}

/// Words between blanks and the characters that they start after; quotation marks hold words together, `#` starts a comment.
fn words(line: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut open: Option<char> = None;
    let mut inside = false;
    for (at, c) in line.chars().enumerate() {
        match (c, open) {
            (_, Some(mark)) if c == mark => open = None,
            ('"' | '\'', None) => open = Some(c),
            (_, None) if c.is_ascii_whitespace() => {
                inside = false;
                continue;
            }
            ('#', None) if !inside => break,
            _ => {}
        }
        if !std::mem::replace(&mut inside, true) {
            words.push((at, String::new()));
        }
        let is_mark = matches!(c, '"' | '\'') && open.is_none_or(|mark| mark == c);
        if let Some((_, word)) = words.last_mut().filter(|_| !is_mark) {
            word.push(c);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(script: &str) -> (Option<usize>, Option<u64>, Vec<String>) {
        let (header, problems) = header(script.as_bytes());
        let told = problems.iter().map(ToString::to_string).collect();
        (header.nodes, header.time.map(|time| time.as_secs()), told)
    }

    #[test]
    fn both_spellings_are_read() {
        for line in [
            "-N 4 -t 10",
            "-N4 -t10",
            "--nodes=4 --time=10",
            "--nodes 4\t--time 10:00",
            "-N '4' --time=\"10\"",
        ] {
            assert_eq!(read(&format!("#!/bin/sh\n#SBATCH {line}\n")), (Some(4), Some(600), vec![]), "{line}");
        }
        for (nodes, fewest) in [("2-4", 2), ("1k", 1024), ("2,4,8", 2), ("2-8:2", 2)] {
            assert_eq!(read(&format!("#SBATCH -N {nodes}\n")).0, Some(fewest), "{nodes}");
        }
    }

    #[test]
    fn only_the_header_counts_and_in_it_the_last() {
        let script = "#!/bin/sh\n#SBATCH -N 2\n\n  \n# SBATCH -N 3\n#SBATCHED -N 5\n#SBATCH -N 4 # -N 6\n\
            #SBATCH --comment=\"-N 7\" --nodelist=n1 --time-min=5\n#SBATCH --time=1-0\nsrun x\n#SBATCH -N 8 -t 1\n";
        assert_eq!(read(script), (Some(4), Some(86_400), vec![]));
        assert_eq!(read("#SBATCH -t 5\n#SBATCH -t unlimited\n").1, None);
        assert_eq!(read("#SBATCH -t 0\n").1, None);
        assert_eq!(read("srun x\n#SBATCH -N 8\n"), (None, None, vec![]));
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let told = read("#SBATCH -n 4 --nodes=four -t soon\n#SBATCH -N\n").2;
        assert_eq!(
            told,
            [
                "line 1, column 14: 'four' is no number of nodes",
                "line 1, column 27: 'soon' is no time limit",
                "line 2, column 9: '-N' has no value",
            ]
        );
        for bad in ["0", "-4", "4-", "4x", "k", "99999999999999999999"] {
            assert!(read(&format!("#SBATCH --nodes={bad}\n")).2.len() == 1, "{bad}");
        }
    }
}
