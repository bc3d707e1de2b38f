//! Our table in Apache Parquet: flat columns, as data frames write them. What is read of it and how it is written:
//! `docs/formats/32-job-logs.md`; why not by a crate: `docs/decisions/0039-job-logs.md`.

mod pack;
mod thrift;
mod write;

pub use pack::PAGE_BYTES_MAX;
pub use write::write;

use crate::columns::{Builder, Cell, NUMBERS, Row, STATUS, TEXTS, missing};
use crate::table::Log;
use crate::{Format, LogError};
use std::io::{BufRead, Read};
use std::rc::Rc;
use thrift::Value;

pub(crate) const MAGIC: &[u8] = b"PAR1";
/// Bytes of a file: its end is read first, so it is in memory as a whole.
pub const FILE_BYTES_MAX: u64 = 4 << 30;
/// Rows of a group; one group is in memory at a time.
pub const GROUP_ROWS_MAX: usize = 1 << 22;
/// Rows that room is made for before they are there.
const ROOM: usize = 1 << 16;
/// Where the log's header stands among the keys and values of a file, in lines with `#`.
const HEADER_KEY: &str = "tidepool.header";

// Of Parquet's own description, `parquet.thrift`.
const INT32: i64 = 1;
const INT64: i64 = 2;
const FLOAT: i64 = 4;
const DOUBLE: i64 = 5;
const BYTE_ARRAY: i64 = 6;
const OPTIONAL: i64 = 1;
const REPEATED: i64 = 2;
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;
const DATA_PAGE: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;
const DATA_PAGE_V2: i64 = 3;

const BROKEN: &str = "it is cut off or damaged";

/// Reads our table.
pub fn read(from: impl BufRead, jobs_max: usize) -> Result<Log, LogError> {
    let mut file = Vec::new();
    let got = from.take(FILE_BYTES_MAX + 1).read_to_end(&mut file);
    got.map_err(|source| LogError::Read { line: 0, source })?;
    if file.len() as u64 > FILE_BYTES_MAX {
        return Err(LogError::Parquet(format!("more than {FILE_BYTES_MAX} bytes: write it as CSV")));
    }
    let footer = footer(&file).ok_or_else(|| LogError::Parquet(BROKEN.into()))?;
    let columns = columns(&footer);
    let missing = missing(|name| columns.iter().any(|column| column.name == name));
    if !missing.is_empty() {
        return Err(LogError::NoColumns { line: 0, format: Format::Parquet, missing });
    }
    let mut builder = Builder::new();
    for pair in footer.list(5) {
        if pair.bytes(1) == Some(HEADER_KEY.as_bytes()) {
            let lines = String::from_utf8_lossy(pair.bytes(2).unwrap_or(b""));
            lines
                .lines()
                .filter_map(|line| line.strip_prefix('#'))
                .for_each(|line| builder.header_line(line));
        }
    }
    for group in footer.list(4) {
        if builder.log.jobs.len() >= jobs_max {
            break;
        }
        rows(&file, group, &columns, &mut builder, jobs_max)?;
    }
    builder.finish(Format::Parquet)
}

/// What a file tells about itself, at its end.
fn footer(file: &[u8]) -> Option<Value<'_>> {
    let (rest, magic) = file.split_last_chunk::<4>()?;
    let (rest, length) = rest.split_last_chunk::<4>()?;
    if magic != MAGIC || !rest.starts_with(MAGIC) {
        return None;
    }
    let from = rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
    thrift::read(&rest[from..]).map(|(value, _)| value)
}

/// A column that is not within another one.
struct Column<'a> {
    name: &'a str,
    kind: i64,
    repetition: i64,
}

fn columns<'a>(footer: &Value<'a>) -> Vec<Column<'a>> {
    let schema = footer.list(2);
    let children = |at: usize| schema.get(at).and_then(|one| one.int(5)).unwrap_or(0).max(0) as u64;
    let (mut columns, mut at) = (Vec::new(), 1);
    while let Some(element) = schema.get(at) {
        let mut within = children(at);
        if within == 0
            && let (Some(name), Some(kind)) = (element.bytes(4), element.int(1))
            && let Ok(name) = std::str::from_utf8(name)
        {
            columns.push(Column { name, kind, repetition: element.int(3).unwrap_or(0) });
        }
        at += 1;
        while within > 0 && at < schema.len() {
            within = within - 1 + children(at).min(schema.len() as u64);
            at += 1;
        }
    }
    columns
}

/// Adds the rows of a group.
fn rows(
    file: &[u8],
    group: &Value<'_>,
    columns: &[Column<'_>],
    builder: &mut Builder,
    jobs_max: usize,
) -> Result<(), LogError> {
    let count = group.int(3).and_then(|rows| usize::try_from(rows).ok()).unwrap_or(0);
    if count > GROUP_ROWS_MAX {
        let text = format!("a row group of {count} rows; write it with at most {GROUP_ROWS_MAX} in each");
        return Err(LogError::Parquet(text));
    }
    let find = |name: &str| columns.iter().find(|column| column.name == name);
    let chunk = |column: &Column<'_>| -> Result<Chunk<'_>, LogError> {
        let wrong = |what: &str| LogError::Parquet(format!("column '{}': {what}", column.name));
        Chunk::of(file, group, column, count).map_err(|what| wrong(&what))
    };
    let read_numbers = |name: &str| -> Result<Vec<Option<Cell>>, LogError> {
        let Some(column) = find(name) else { return Ok(Vec::new()) };
        let wrong = |what: String| LogError::Parquet(format!("column '{name}': {what}"));
        let kind = column.kind;
        if ![INT32, INT64, FLOAT, DOUBLE].contains(&kind) {
            return Err(wrong("its values are no numbers".into()));
        }
        chunk(column)?.values(|bytes, at| number(kind, bytes, at)).map_err(wrong)
    };
    let read_texts = |name: &str| -> Result<Vec<Option<Rc<str>>>, LogError> {
        let Some(column) = find(name) else { return Ok(Vec::new()) };
        let wrong = |what: String| LogError::Parquet(format!("column '{name}': {what}"));
        if column.kind != BYTE_ARRAY {
            return Err(wrong("its values are no texts".into()));
        }
        chunk(column)?.values(text).map_err(wrong)
    };
    let numbers: Result<Vec<_>, _> = NUMBERS.iter().map(|column| read_numbers(column.name)).collect();
    let texts: Result<Vec<_>, _> = TEXTS.iter().map(|column| read_texts(column.name)).collect();
    let (numbers, texts, statuses) = (numbers?, texts?, read_texts(STATUS)?);
    let shown = |values: &'_ [Option<Rc<str>>], at: usize| values.get(at).cloned().flatten();
    for at in 0..count {
        if builder.log.jobs.len() >= jobs_max {
            break;
        }
        let mut row = Row::empty();
        for (cell, values) in row.numbers.iter_mut().zip(&numbers) {
            *cell = values.get(at).copied().flatten().unwrap_or(Cell::None);
        }
        let status = shown(&statuses, at);
        let names: Vec<Option<Rc<str>>> = texts.iter().map(|values| shown(values, at)).collect();
        let mut texts = [""; TEXTS.len()];
        texts.iter_mut().zip(&names).for_each(|(text, name)| *text = name.as_deref().unwrap_or(""));
        builder.add(&Row { numbers: row.numbers, status: status.as_deref().unwrap_or(""), texts })?;
    }
    Ok(())
}

fn number(kind: i64, bytes: &[u8], at: &mut usize) -> Option<Cell> {
    let rest = bytes.get(*at..)?;
    let whole = |value: i64| u64::try_from(value).map_or(Cell::Number(value as f64), Cell::Whole);
    let (cell, size) = match kind {
        INT32 => (whole(i32::from_le_bytes(*rest.first_chunk()?).into()), 4),
        INT64 => (whole(i64::from_le_bytes(*rest.first_chunk()?)), 8),
        FLOAT => (Cell::Number(f32::from_le_bytes(*rest.first_chunk()?).into()), 4),
        _ => (Cell::Number(f64::from_le_bytes(*rest.first_chunk()?)), 8),
    };
    *at += size;
    Some(cell)
}

fn text(bytes: &[u8], at: &mut usize) -> Option<Rc<str>> {
    let length = u32::from_le_bytes(*bytes.get(*at..)?.first_chunk()?) as usize;
    let from = at.checked_add(4)?;
    let end = from.checked_add(length)?;
    let text = String::from_utf8_lossy(bytes.get(from..end)?).into();
    *at = end;
    Some(text)
}

/// A column of a group.
struct Chunk<'a> {
    file: &'a [u8],
    /// Where its pages begin.
    from: usize,
    codec: i64,
    rows: usize,
    optional: bool,
}

impl<'a> Chunk<'a> {
    fn of(file: &'a [u8], group: &Value<'_>, column: &Column<'_>, rows: usize) -> Result<Chunk<'a>, String> {
        if column.repetition == REPEATED {
            return Err("it has lists".into());
        }
        let is = |meta: &&Value<'_>| match meta.list(3) {
            [Value::Bytes(name)] => *name == column.name.as_bytes(),
            _ => false,
        };
        let meta = group.list(1).iter().filter_map(|chunk| chunk.field(3)).find(is).ok_or(BROKEN)?;
        let codec = meta.int(4).unwrap_or(0);
        if let Some((_, name)) = pack::OTHERS.iter().find(|other| other.0 == codec) {
            return Err(format!(
                "packed by {name}, which cannot be read; write it with compression 'zstd', 'snappy', 'gzip' or none"
            ));
        }
        let data = meta.int(9).ok_or(BROKEN)?;
        let from = meta.int(11).filter(|at| (1..data).contains(at)).unwrap_or(data);
        let from = usize::try_from(from).map_err(|_| BROKEN)?;
        Ok(Chunk { file, from, codec, rows, optional: column.repetition == OPTIONAL })
    }

    /// All of it; `plain` takes a value from where it stands.
    fn values<T: Clone>(
        &self,
        plain: impl Fn(&[u8], &mut usize) -> Option<T>,
    ) -> Result<Vec<Option<T>>, String> {
        let mut values = Vec::with_capacity(self.rows.min(ROOM));
        let mut dictionary = Vec::new();
        let mut at = self.from;
        while values.len() < self.rows {
            let (head, took) = self.file.get(at..).and_then(thrift::read).ok_or(BROKEN)?;
            at += took;
            let size = |id: i16| head.int(id).and_then(|size| usize::try_from(size).ok()).ok_or(BROKEN);
            let end = at.checked_add(size(3)?).ok_or(BROKEN)?;
            let packed = self.file.get(at..end).ok_or(BROKEN)?;
            at = end;
            match head.int(1) {
                Some(DATA_PAGE) => {
                    let about = head.field(5).ok_or(BROKEN)?;
                    let bytes = pack::unpack(self.codec, packed, size(2)?).ok_or(BROKEN)?;
                    let (levels, data) = match self.optional {
                        true => split(&bytes).ok_or(BROKEN)?,
                        false => (&bytes[..0], &bytes[..]),
                    };
                    self.page(about, 2, levels, data, &dictionary, &plain, &mut values)?;
                }
                Some(DATA_PAGE_V2) => {
                    let about = head.field(8).ok_or(BROKEN)?;
                    let length = |id: i16| about.int(id).and_then(|length| usize::try_from(length).ok());
                    let (repetitions, levels) = (length(6).ok_or(BROKEN)?, length(5).ok_or(BROKEN)?);
                    let before = repetitions.checked_add(levels).ok_or(BROKEN)?;
                    let (ahead, data) = packed.split_at_checked(before).ok_or(BROKEN)?;
                    let size = size(2)?.checked_sub(before).ok_or(BROKEN)?;
                    let codec = if about.int(7) == Some(0) { pack::PLAIN } else { self.codec };
                    let bytes = pack::unpack(codec, data, size).ok_or(BROKEN)?;
                    self.page(about, 4, &ahead[repetitions..], &bytes, &dictionary, &plain, &mut values)?;
                }
                Some(DICTIONARY_PAGE) => {
                    let bytes = pack::unpack(self.codec, packed, size(2)?).ok_or(BROKEN)?;
                    let count = head.field(7).and_then(|about| about.int(1)).ok_or(BROKEN)?;
                    if count > GROUP_ROWS_MAX as i64 {
                        return Err(format!("a dictionary of {count} values, above {GROUP_ROWS_MAX}"));
                    }
                    let mut place = 0;
                    let all: Option<Vec<T>> = (0..count).map(|_| plain(&bytes, &mut place)).collect();
                    dictionary = all.ok_or(BROKEN)?;
                }
                _ => {}
            }
        }
        Ok(values)
    }

    /// Adds the values of a page; its encoding is the field `encoding` of what is told about it.
    #[allow(clippy::too_many_arguments)] // A page is told by that many things.
    fn page<T: Clone>(
        &self,
        about: &Value<'_>,
        encoding: i16,
        levels: &[u8],
        data: &[u8],
        dictionary: &[T],
        plain: &impl Fn(&[u8], &mut usize) -> Option<T>,
        values: &mut Vec<Option<T>>,
    ) -> Result<(), String> {
        let count = about.int(1).and_then(|count| usize::try_from(count).ok()).ok_or(BROKEN)?;
        if count > self.rows - values.len() {
            return Err("more values than rows".into());
        }
        let mut there = vec![true; count];
        let mut full = count;
        if self.optional {
            let mut at = 0;
            full = 0;
            pack::hybrid(levels, 1, count, |level| {
                there[at] = level == 1;
                full += usize::from(level == 1);
                at += 1;
                Some(())
            })
            .ok_or(BROKEN)?;
        }
        let mut found: Vec<T> = Vec::with_capacity(full.min(ROOM));
        match about.int(encoding) {
            _ if full == 0 => {}
            Some(PLAIN) => {
                let mut at = 0;
                for _ in 0..full {
                    found.push(plain(data, &mut at).ok_or(BROKEN)?);
                }
            }
            Some(PLAIN_DICTIONARY | RLE_DICTIONARY) => {
                let (width, packed) = data.split_first().ok_or(BROKEN)?;
                pack::hybrid(packed, u32::from(*width), full, |at| {
                    found.push(dictionary.get(at as usize)?.clone());
                    Some(())
                })
                .ok_or(BROKEN)?;
            }
            other => {
                let number = other.unwrap_or(-1);
                return Err(format!("encoding {number} cannot be read; write it plain or with a dictionary"));
            }
        }
        let mut found = found.into_iter();
        values.extend(there.into_iter().map(|there| if there { found.next() } else { None }));
        Ok(())
    }
}

/// Levels with their length, and what follows.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}
