//! Options of the command that submits a job, as the directives that they stand for.

use crate::near::near;
use crate::parse::Reader;
use crate::rules;
use crate::script::{Columns, KEYWORDS, LINE_BYTES_MAX, Line, Spoken, columns, is_separator};
use crate::told::{At, Problem};
use crate::words::words;

/// `--tidepool=...` is the pool; the others are called as their directives.
pub const OPTIONS: [&str; 5] =
    ["tidepool", "workflow-start", "workflow-prior-dependency", "workflow-end", "workflow-same-nodes"];

/// What [`with_lines`] writes above the lines.
const HEADING: &str = "# What the options of the command that submitted this job say:";

/// The lines of a script that options stand for: names with or without `--`, and values, which are empty where none is given.
/// What the options miss may stand in the script: [`Directives::parse`](crate::Directives::parse) looks at both together.
pub fn lines_of_options(options: &[(&str, &str)]) -> Result<Vec<String>, Vec<Problem>> {
    let mut reader = Reader::default();
    for (option, value) in options {
        match line(option.strip_prefix("--").unwrap_or(option), value) {
            Ok(line) => reader.line(&line),
            Err(problem) => reader.fail(problem),
        }
    }
    reader.incomplete = true;
    rules::check(&mut reader);
    let reading = reader.end();
    match reading.problems.is_empty() {
        true => Ok(reading.directives.to_lines()),
        false => Err(reading.problems),
    }
}

fn line(option: &str, value: &str) -> Result<Line, Problem> {
    let at = |column| At::Option { option: option.into(), column };
    let Some(known) = OPTIONS.into_iter().find(|known| *known == option) else {
        let meant = near(option, OPTIONS).map(|meant| format!("--{meant}"));
        return Err(Problem::new(&at(1), format!("unknown option '--{option}'")).meant(meant));
    };
    if value.len() > LINE_BYTES_MAX {
        return Err(Problem::new(&at(1), format!("a value has at most {LINE_BYTES_MAX} bytes")));
    }
    let column = |offset| columns(value.as_bytes(), offset);
    if let Some(offset) = value.find(|c: char| c.is_control() && c != '\t') {
        let text = "a value has no line feeds or other control characters";
        return Err(Problem::new(&at(column(offset)), text));
    }
    let found = words(value.as_bytes()).map_err(|(offset, what)| Problem::new(&at(column(offset)), what))?;
    let name = if known == "tidepool" { "pool" } else { known };
    let directive = Spoken { text: name.into(), quoted: false, at: at(1) };
    let mut in_turn = Columns::new(value.as_bytes());
    let words = found.into_iter().map(|word| Spoken {
        at: at(in_turn.of(word.at)),
        text: word.text,
        quoted: word.quoted,
    });
    let words = std::iter::once(directive).chain(words).collect();
    Ok(Line::new(KEYWORDS[1], at(1), words, at(column(value.trim_end().len()))))
}

/// The script with more directives, at the end of its header, or of the part of its first component: what stands in it
/// already keeps its line.
pub fn with_lines(script: &[u8], lines: &[String]) -> Vec<u8> {
    if lines.is_empty() {
        return script.to_vec();
    }
    let is_header = |line: &&[u8]| {
        (line.starts_with(b"#") || [&b"\n"[..], b"\r\n"].contains(line))
            && !is_separator(line.trim_ascii_end())
    };
    let header = script.split_inclusive(|b| *b == b'\n').take_while(is_header).map(<[u8]>::len).sum();
    let (header, body) = script.split_at(header);
    let mut whole = header.to_vec();
    if !header.is_empty() && !header.ends_with(b"\n") {
        whole.push(b'\n');
    }
    for line in std::iter::once(HEADING).chain(lines.iter().map(String::as_str)) {
        whole.extend_from_slice(line.as_bytes());
        whole.push(b'\n');
    }
    whole.extend_from_slice(body);
    whole
}
