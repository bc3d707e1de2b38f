//! Which lines of a script are directives, and their words.
//!
//! Slurm's rules, so that nothing means something to it and something else to us: directives stand above the first line that
//! is neither empty nor starts with `#`, and a directive that ends with `\` goes on in the next line, behind its keyword.

use crate::near::near;
use crate::parse::{DIRECTIVES, Reader, is_key};
use crate::told::{At, Problem};
use crate::words::words;
use std::collections::BTreeMap;

/// Largest script. Slurm takes 4 MiB unless its administrator wants more.
pub const SCRIPT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a directive, with all the lines that it is written in: two paths of full length in which every byte is written as
/// `\xHH`, with room for the rest.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Words of a directive.
pub const WORDS_MAX: usize = 2000;
/// Directives of one script.
pub const DIRECTIVES_MAX: usize = 1000;
/// Comments that are looked at, in case they were meant to be directives.
const COMMENTS_MAX: usize = 10_000;
/// Words that end here-documents, of one script. Behind more of them directives are found in the documents as well.
const HERE_DOCUMENTS_MAX: usize = 1000;

/// What directives start with, behind `#`. All say the same.
pub const KEYWORDS: [&str; 2] = ["NORNS", "TIDEPOOL"];

/// A word and where it starts.
#[derive(Clone, Debug)]
pub(crate) struct Spoken {
    pub text: Vec<u8>,
    /// A part of it stands in quotation marks.
    pub quoted: bool,
    pub at: At,
}

/// A directive, out of one or more lines.
#[derive(Debug)]
pub(crate) struct Line {
    pub keyword: &'static str,
    pub at: At,
    pub words: Vec<Spoken>,
    /// Behind the last word.
    pub end: At,
    bytes: usize,
    /// Something was wrong with its words, and is told.
    bad: bool,
}

impl Line {
    pub fn new(keyword: &'static str, at: At, words: Vec<Spoken>, end: At) -> Line {
        Line { keyword, at, words, end, bytes: 0, bad: false }
    }

    fn and(mut self, next: Line) -> Line {
        self.words.extend(next.words);
        Line {
            words: self.words,
            bytes: self.bytes + next.bytes,
            bad: self.bad || next.bad,
            at: self.at,
            ..next
        }
    }
}

struct Script<'a> {
    /// Gets each directive, and what is wrong with others.
    reader: &'a mut Reader,
    directives: usize,
    comments: usize,
    /// A directive that goes on, and where its `\` is.
    open: Option<(Line, At)>,
}

/// Hands the directives of a script to the reader.
pub(crate) fn read(script: &[u8], reader: &mut Reader) {
    let mut all = Script { reader, directives: 0, comments: 0, open: None };
    if script.len() > SCRIPT_BYTES_MAX {
        let text = format!("a script has at most {SCRIPT_BYTES_MAX} bytes");
        return all.reader.fail(Problem::new(&At::Line { line: 1, column: 1 }, text));
    }
    let mut lines =
        (1..).zip(script.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)));
    while let Some((number, line)) = lines.next() {
        if line.first().is_some_and(|first| *first != b'#') {
            all.end_of_header(number, line);
            all.late(std::iter::once((number, line)).chain(lines), number, line.trim_ascii().is_empty());
            break;
        }
        if is_separator(line) {
            all.end_open();
            all.other_components(number, lines);
            break;
        }
        all.header_line(number, line);
    }
    all.end_open();
    all.carriage_return(script);
}

/// True where the part of another component of a heterogeneous job begins.
pub(crate) fn is_separator(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"#SBATCH") else { return false };
    let mut words = rest.split(|b| b" \t".contains(b)).filter(|word| !word.is_empty());
    // Without a blank before it the first word is none.
    rest.first().is_some_and(|b| b" \t".contains(b))
        && words.next().is_some_and(|word| {
            [&b"hetjob"[..], b"packjob"].iter().any(|name| word.eq_ignore_ascii_case(name))
        })
}

/// The keyword of a line that is a directive, and where the rest of the line starts.
fn directive(line: &[u8]) -> Option<(&'static str, usize)> {
    let text = line.strip_prefix(b"#")?;
    let keyword = KEYWORDS.into_iter().find(|keyword| {
        let rest = text.strip_prefix(keyword.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|next| b" \t\\".contains(next)))
    })?;
    Some((keyword, 1 + keyword.len()))
}

impl Script<'_> {
    fn header_line(&mut self, number: usize, line: &[u8]) {
        match directive(line) {
            Some((keyword, rest)) => self.directive(number, line, keyword, rest),
            None => {
                self.end_open();
                self.near_miss(number, line);
            }
        }
    }

    fn directive(&mut self, number: usize, line: &[u8], keyword: &'static str, rest: usize) {
        let text = line.strip_suffix(b"\\").unwrap_or(line);
        let part = self.part(number, text, keyword, rest);
        let mut whole = match self.open.take_if(|(open, _)| open.keyword == keyword) {
            Some((open, _)) => open.and(part),
            None => {
                self.end_open();
                part
            }
        };
        for (is, most, what) in
            [(whole.bytes, LINE_BYTES_MAX, "bytes"), (whole.words.len(), WORDS_MAX, "words")]
        {
            if is > most && !std::mem::replace(&mut whole.bad, true) {
                self.reader.fail(Problem::new(&whole.at, format!("a directive has at most {most} {what}")));
            }
        }
        if whole.bad {
            whole.words.clear();
        }
        if text.len() < line.len() {
            let joint = At::Line { line: number, column: columns(line, line.len() - 1) };
            self.open = Some((whole, joint));
        } else {
            self.close(whole);
        }
    }

    /// The words of one line of the script.
    fn part(&mut self, number: usize, text: &[u8], keyword: &'static str, rest: usize) -> Line {
        let at = |column| At::Line { line: number, column };
        let mut part = Line {
            keyword,
            at: at(1),
            words: Vec::new(),
            end: at(columns(text, text.trim_ascii_end().len())),
            bytes: text.len(),
            bad: true,
        };
        if text.len() > LINE_BYTES_MAX {
            return Line { bad: false, ..part };
        }
        let trimmed = text.trim_ascii_end();
        if trimmed.len() < text.len() && trimmed.ends_with(b"\\") {
            let what = "this '\\' joins nothing: blanks follow it; remove them";
            self.reader.fail(Problem::new(&at(columns(text, trimmed.len() - 1)), what));
            return part;
        }
        if let Err(error) = std::str::from_utf8(text) {
            let place = at(columns(text, error.valid_up_to()));
            self.reader.fail(Problem::new(&place, "here is something that is no UTF-8 text"));
            return part;
        }
        match words(&text[rest..]) {
            Err((offset, what)) => {
                self.reader.fail(Problem::new(&at(columns(text, rest + offset)), what));
                part
            }
            Ok(found) => {
                let mut column = Columns::new(text);
                part.words = found
                    .into_iter()
                    .map(|word| Spoken {
                        at: at(column.of(rest + word.at)),
                        text: word.text,
                        quoted: word.quoted,
                    })
                    .collect();
                part.bad = false;
                part
            }
        }
    }

    fn close(&mut self, line: Line) {
        if line.bad {
            return;
        }
        self.directives += 1;
        match self.directives {
            ..=DIRECTIVES_MAX => self.reader.line(&line),
            n if n == DIRECTIVES_MAX + 1 => {
                let text = format!("a script has at most {DIRECTIVES_MAX} directives");
                self.reader.fail(Problem::new(&line.at, text));
            }
            _ => {}
        }
    }

    /// Whatever comes now, no directive goes on in it.
    fn end_open(&mut self) {
        let Some((line, joint)) = self.open.take() else { return };
        let text =
            format!("the next line has to start with '#{}' as well, because of this '\\'", line.keyword);
        self.reader.fail(Problem::new(&joint, text));
    }

    fn end_of_header(&mut self, number: usize, line: &[u8]) {
        self.end_open();
        let text = line.trim_ascii_start();
        if let Some((keyword, _)) = directive(text) {
            let at = At::Line { line: number, column: columns(line, line.len() - text.len()) };
            let what = format!("'#{keyword}' is read in the first column only: blanks stand before it");
            self.reader.warnings.add(Problem::new(&at, what));
        }
    }

    /// Slurm hands the parts of other components over without asking the hook that checks them.
    fn other_components<'a>(&mut self, first: usize, lines: impl Iterator<Item = (usize, &'a [u8])>) {
        for (number, line) in lines.take_while(|(_, line)| line.first().is_none_or(|b| *b == b'#')) {
            if let Some((keyword, _)) = directive(line) {
                let what = format!(
                    "this '#{keyword}' stands below '#SBATCH hetjob' in line {first}: only the first component of a job may have directives; move it up"
                );
                self.reader.fail(Problem::new(&At::Line { line: number, column: 1 }, what));
            }
        }
    }

    /// A comment that was probably meant to be a directive.
    fn near_miss(&mut self, number: usize, line: &[u8]) {
        let Some(comment) = line.strip_prefix(b"#") else { return };
        self.comments += 1;
        if self.comments > COMMENTS_MAX || self.reader.warnings.is_full() {
            return;
        }
        let Ok(comment) = std::str::from_utf8(comment) else { return };
        let mut words = comment.split_whitespace();
        let first = words.next().unwrap_or_default();
        let attached = comment.starts_with(first);
        let second = words.next();
        let meant = KEYWORDS.into_iter().find_map(|keyword| meant(keyword, first, second, attached));
        let Some(meant) = meant else { return };
        let at = At::Line { line: number, column: 1 };
        let what = format!("this is a comment, not a directive: '#{}'", cut(comment));
        self.reader.warnings.add(Problem::new(&at, what).meant(Some(meant)));
    }

    /// Directives in the `body`, which starts with the line `first`, except in here-documents, which are other scripts.
    fn late<'a>(
        &mut self,
        body: impl Iterator<Item = (usize, &'a [u8])> + Clone,
        first: usize,
        is_blank: bool,
    ) {
        if !body.clone().any(|(_, line)| directive(line).is_some()) {
            return;
        }
        let opened = body.clone().filter_map(|(_, line)| here_document(line));
        let mut ends: BTreeMap<&[u8], usize> =
            opened.take(HERE_DOCUMENTS_MAX).map(|word| (word, 0)).collect();
        for (number, line) in body.clone() {
            if let Some(end) = ends.get_mut(line.trim_ascii_start()) {
                *end = number;
            }
        }
        let kind =
            if is_blank { "which has blanks and so is not empty" } else { "the first that is no comment" };
        let mut document = None;
        for (number, line) in body {
            match document {
                Some(word) if line.trim_ascii_start() == word => document = None,
                Some(_) => {}
                None => {
                    if let Some((keyword, _)) = directive(line) {
                        let what = format!(
                            "this '#{keyword}' would be ignored: Slurm reads directives above line {first} only, {kind}; move it up"
                        );
                        self.reader.fail(Problem::new(&At::Line { line: number, column: 1 }, what));
                    }
                    document =
                        here_document(line).filter(|word| ends.get(word).is_some_and(|end| *end > number));
                }
            }
        }
    }

    fn carriage_return(&mut self, script: &[u8]) {
        let Some(offset) = script.windows(2).position(|pair| pair == b"\r\n") else { return };
        let before = &script[..offset];
        let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let at = At::Line { line, column: columns(&before[start..], offset - start) };
        let what = "this line ends with a carriage return, and sbatch refuses scripts with such lines; dos2unix converts it";
        self.reader.fail(Problem::new(&at, what));
    }
}

/// The column of an offset in a line, in characters. What is no text counts as it is shown, as U+FFFD.
pub(crate) fn columns(line: &[u8], offset: usize) -> usize {
    String::from_utf8_lossy(&line[..offset]).chars().count() + 1
}

/// The same for offsets that grow, so that all of them together take one pass.
pub(crate) struct Columns<'a> {
    text: &'a [u8],
    offset: usize,
    column: usize,
}

impl<'a> Columns<'a> {
    pub fn new(text: &'a [u8]) -> Columns<'a> {
        Columns { text, offset: 0, column: 1 }
    }

    pub fn of(&mut self, offset: usize) -> usize {
        self.column += columns(&self.text[self.offset..], offset - self.offset) - 1;
        self.offset = offset;
        self.column
    }
}

/// Enough of a text to know it by.
fn cut(text: &str) -> String {
    const SHOWN_MAX: usize = 40;
    let start: String = text.chars().take(SHOWN_MAX).collect();
    if start.len() < text.len() { start + "..." } else { start }
}

/// What a comment was meant to be, if it looks like a directive: `#norns ...`, `# NORNS stage_in`, `#NORN pool`,
/// `#NORNSstage_in`. People also write sentences about Norns and pools.
fn meant(keyword: &str, first: &str, second: Option<&str>, attached: bool) -> Option<String> {
    let upper = first.to_ascii_uppercase();
    let is_same = upper == keyword;
    let rest = upper.strip_prefix(keyword).map(|_| &first[keyword.len()..]);
    let is_near = upper.len() <= keyword.len() + 1 && strsim::damerau_levenshtein(&upper, keyword) == 1;
    if rest.is_none() && !is_near {
        return None;
    }
    let is_directive = |word: &str| match word.split_once('=') {
        Some((key, _)) => is_key(key),
        None => near(word, DIRECTIVES).is_some(),
    };
    let is_no_english = |word: &str| word.contains(['_', '-', '=']);
    let then = second.filter(|word| is_directive(word));
    let then = then.filter(|word| attached || first == keyword || is_no_english(word));
    let with = |word: Option<&str>| match word {
        None => format!("#{keyword}"),
        Some(word) => format!("#{keyword} {word}"),
    };
    if is_same {
        return (attached || then.is_some()).then(|| with(then));
    }
    if is_near && then.is_some() {
        return Some(with(then));
    }
    // Without a blank between them.
    let rest = rest?.trim_start_matches([':', '-', '_', '.']);
    (!rest.is_empty() && is_directive(rest)).then(|| with(Some(rest)))
}

/// The word that ends the here-document that a line of a shell starts.
fn here_document(line: &[u8]) -> Option<&[u8]> {
    let start = line.windows(2).position(|two| two == b"<<")?;
    let rest = &line[start + 2..];
    let rest = rest.strip_prefix(b"-").unwrap_or(rest).trim_ascii_start();
    let rest =
        rest.strip_prefix(b"'").or(rest.strip_prefix(b"\"")).or(rest.strip_prefix(b"\\")).unwrap_or(rest);
    let length = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let word = &rest[..length];
    word.first().is_some_and(|first| !first.is_ascii_digit()).then_some(word)
}
