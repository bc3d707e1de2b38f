//! Our table as CSV (RFC 4180): a line that names the columns, `#` lines before it with the header.

use crate::columns::{Builder, Cell, NUMBERS, Row, STATUS, TEXTS, missing};
use crate::lines::Lines;
use crate::table::Log;
use crate::{Format, LogError};
use std::borrow::Cow;
use std::io::{self, BufRead, Write};

const COMMENT: char = '#';

/// Whether a line names our columns.
pub(crate) fn is_head(line: &str) -> bool {
    let names = split(line.trim());
    missing(|name| names.iter().any(|column| column == name)).is_empty()
}

/// The fields of a line.
fn split(line: &str) -> Vec<Cow<'_, str>> {
    if !line.contains('"') {
        return line.split(',').map(Cow::Borrowed).collect();
    }
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(one) = chars.next() {
        match one {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(Cow::Owned(std::mem::take(&mut field))),
            other => field.push(other),
        }
    }
    fields.push(Cow::Owned(field));
    fields
}

/// What a column is.
enum Place {
    Number(usize),
    Text(usize),
    Status,
    /// Somebody else's.
    Other,
}

fn place(name: &str) -> Place {
    let number = NUMBERS.iter().position(|column| column.name == name).map(Place::Number);
    let text = || TEXTS.iter().position(|column| column.name == name).map(Place::Text);
    number.or_else(text).unwrap_or(if name == STATUS { Place::Status } else { Place::Other })
}

fn cell(word: &str) -> Cell {
    let word = word.trim();
    match word {
        "" | "NA" | "None" | "null" => Cell::None,
        _ => word.parse().map(Cell::Whole).or_else(|_| word.parse().map(Cell::Number)).unwrap_or(Cell::Wrong),
    }
}

/// Reads our table.
pub fn read(from: impl BufRead, jobs_max: usize) -> Result<Log, LogError> {
    let mut builder = Builder::new();
    let mut lines = Lines::new(from, Format::Csv);
    let mut columns: Option<Vec<Place>> = None;
    while builder.log.jobs.len() < jobs_max {
        let number = lines.line + 1;
        let Some(line) = lines.next()? else { break };
        let line = line.trim_start_matches('\u{feff}');
        if line.trim().is_empty() {
            continue;
        }
        let Some(places) = &columns else {
            if let Some(comment) = line.strip_prefix(COMMENT) {
                builder.header_line(comment);
                continue;
            }
            let names: Vec<String> = split(line).iter().map(|name| name.trim().to_string()).collect();
            let missing = missing(|name| names.iter().any(|column| column == name));
            if !missing.is_empty() {
                return Err(LogError::NoColumns { line: number, format: Format::Csv, missing });
            }
            columns = Some(names.iter().map(|name| place(name)).collect());
            continue;
        };
        let fields = split(line);
        builder.log.repairs.odd_length += u64::from(fields.len() != places.len());
        let mut row = Row::empty();
        for (place, field) in places.iter().zip(&fields) {
            match place {
                Place::Number(at) => row.numbers[*at] = cell(field),
                Place::Text(at) => row.texts[*at] = field,
                Place::Status => row.status = field,
                Place::Other => {}
            }
        }
        builder.add(&row)?;
    }
    builder.log.repairs.not_utf8 = lines.not_utf8;
    builder.finish(Format::Csv)
}

/// Writes our table. Columns of names are there if any has a name.
pub fn write(log: &Log, mut to: impl Write) -> io::Result<()> {
    to.write_all(log.header.comments(&log.names, COMMENT).as_bytes())?;
    let texts: Vec<_> = TEXTS.iter().filter(|text| !(text.names)(&log.names).is_empty()).collect();
    let names = NUMBERS.iter().map(|column| column.name).chain([STATUS]);
    let names: Vec<&str> = names.chain(texts.iter().map(|text| text.name)).collect();
    writeln!(to, "{}", names.join(","))?;
    for job in &log.jobs {
        for column in &NUMBERS {
            match (column.get)(job) {
                Some(value) => write!(to, "{value},")?,
                None => to.write_all(b",")?,
            }
        }
        to.write_all(job.status.name().as_bytes())?;
        for text in &texts {
            let name = (text.get)(job).and_then(|number| (text.names)(&log.names).get(&number));
            write!(to, ",{}", name.map_or(Cow::Borrowed(""), |name| quoted(name)))?;
        }
        to.write_all(b"\n")?;
    }
    Ok(())
}

/// Lines end where jobs do: a name has none.
fn quoted(name: &str) -> Cow<'_, str> {
    if !name.contains([',', '"', '\n', '\r', COMMENT]) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("\"{}\"", name.replace('"', "\"\"").replace(['\n', '\r'], " ")))
}
