//! Writes our table: optional columns of whole numbers and texts, plain, packed by gzip.

use super::thrift::Writer;
use super::{BYTE_ARRAY, DATA_PAGE, HEADER_KEY, INT64, MAGIC, OPTIONAL, PLAIN, RLE, pack};
use crate::columns::{NUMBERS, STATUS, TEXTS};
use crate::table::{Job, Log};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

/// Rows of a group, and of a page.
const GROUP_ROWS: usize = 1 << 20;
const PAGE_ROWS: usize = 1 << 16;
/// Texts are UTF-8.
const UTF8: i32 = 0;
const VERSION: i32 = 1;

/// Puts a job's value there, and tells whether it has one.
type Put<'a> = dyn Fn(&Job, &mut Vec<u8>) -> bool + 'a;

/// A column with what it takes to write its values.
struct Column<'a> {
    name: &'static str,
    kind: i64,
    put: Box<Put<'a>>,
}

fn columns(log: &Log) -> Vec<Column<'_>> {
    let put_text = |text: Option<&str>, to: &mut Vec<u8>| match text {
        Some(text) => {
            to.extend((text.len() as u32).to_le_bytes());
            to.extend(text.as_bytes());
            true
        }
        None => false,
    };
    let numbers = NUMBERS.iter().map(|column| Column {
        name: column.name,
        kind: INT64,
        put: Box::new(|job, to| match (column.get)(job) {
            Some(value) => {
                to.extend(value.to_le_bytes());
                true
            }
            None => false,
        }),
    });
    let status = Column {
        name: STATUS,
        kind: BYTE_ARRAY,
        put: Box::new(move |job, to| put_text(Some(job.status.name()), to)),
    };
    let texts = TEXTS.iter().filter(|text| !(text.names)(&log.names).is_empty()).map(move |column| Column {
        name: column.name,
        kind: BYTE_ARRAY,
        put: Box::new(move |job, to| {
            let name = (column.get)(job).and_then(|number| (column.names)(&log.names).get(&number));
            put_text(name.map(String::as_str), to)
        }),
    });
    numbers.chain([status]).chain(texts).collect()
}

/// What became of a column of a group.
struct Written {
    from: u64,
    packed: u64,
    unpacked: u64,
}

/// Writes our table.
pub fn write(log: &Log, mut to: impl Write) -> io::Result<()> {
    let columns = columns(log);
    let mut at = MAGIC.len() as u64;
    to.write_all(MAGIC)?;
    let mut groups: Vec<(usize, Vec<Written>)> = Vec::new();
    for jobs in log.jobs.chunks(GROUP_ROWS) {
        let mut written = Vec::new();
        for column in &columns {
            let from = at;
            let mut unpacked = 0;
            for page in jobs.chunks(PAGE_ROWS) {
                let (bytes, size) = page_of(column, page)?;
                to.write_all(&bytes)?;
                at += bytes.len() as u64;
                unpacked += size;
            }
            written.push(Written { from, packed: at - from, unpacked });
        }
        groups.push((jobs.len(), written));
    }
    let footer = footer(log, &columns, &groups);
    to.write_all(&footer)?;
    to.write_all(&(footer.len() as u32).to_le_bytes())?;
    to.write_all(MAGIC)
}

/// A page with its head, and its size before it was packed, head included.
fn page_of(column: &Column<'_>, jobs: &[Job]) -> io::Result<(Vec<u8>, u64)> {
    let (mut levels, mut values) = (Writer::default(), Vec::new());
    let mut run = (true, 0u64);
    for job in jobs {
        let there = (column.put)(job, &mut values);
        if there != run.0 {
            end_run(&mut levels, run);
            run = (there, 0);
        }
        run.1 += 1;
    }
    end_run(&mut levels, run);
    let mut bytes = (levels.bytes.len() as u32).to_le_bytes().to_vec();
    bytes.extend(levels.bytes);
    bytes.extend(values);
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(&bytes)?;
    let packed = packer.finish()?;
    let mut head = Writer::default();
    head.open();
    head.int32(1, DATA_PAGE as i32);
    head.int32(2, bytes.len() as i32);
    head.int32(3, packed.len() as i32);
    head.open_field(5);
    head.int32(1, jobs.len() as i32);
    head.int32(2, PLAIN as i32);
    head.int32(3, RLE as i32);
    head.int32(4, RLE as i32);
    head.close();
    head.close();
    let size = (head.bytes.len() + bytes.len()) as u64;
    head.bytes.extend(packed);
    Ok((head.bytes, size))
}

/// So many values that are there, or not.
fn end_run(levels: &mut Writer, (there, count): (bool, u64)) {
    if count > 0 {
        levels.varint(count << 1);
        levels.bytes.push(there.into());
    }
}

fn footer(log: &Log, columns: &[Column<'_>], groups: &[(usize, Vec<Written>)]) -> Vec<u8> {
    let mut out = Writer::default();
    out.open();
    out.int32(1, VERSION);
    out.list_of_structs(2, columns.len() + 1);
    out.open();
    out.text(4, b"jobs");
    out.int32(5, columns.len() as i32);
    out.close();
    for column in columns {
        out.open();
        out.int32(1, column.kind as i32);
        out.int32(3, OPTIONAL as i32);
        out.text(4, column.name.as_bytes());
        if column.kind == BYTE_ARRAY {
            out.int32(6, UTF8);
        }
        out.close();
    }
    out.int64(3, log.jobs.len() as i64);
    out.list_of_structs(4, groups.len());
    for (rows, written) in groups {
        out.open();
        out.list_of_structs(1, columns.len());
        for (column, place) in columns.iter().zip(written) {
            chunk(&mut out, column, *rows, place);
        }
        out.int64(2, written.iter().map(|place| place.unpacked as i64).sum());
        out.int64(3, *rows as i64);
        out.close();
    }
    out.list_of_structs(5, 1);
    out.open();
    out.text(1, HEADER_KEY.as_bytes());
    out.text(2, log.header.comments(&log.names, '#').as_bytes());
    out.close();
    out.text(6, b"tidepool");
    out.close();
    out.bytes
}

fn chunk(out: &mut Writer, column: &Column<'_>, rows: usize, place: &Written) {
    out.open();
    out.int64(2, place.from as i64);
    out.open_field(3);
    out.int32(1, column.kind as i32);
    out.list_of_ints(2, &[PLAIN as i32, RLE as i32]);
    out.list_of_texts(3, 1);
    out.text_alone(column.name.as_bytes());
    out.int32(4, pack::GZIP as i32);
    out.int64(5, rows as i64);
    out.int64(6, place.unpacked as i64);
    out.int64(7, place.packed as i64);
    out.int64(9, place.from as i64);
    out.close();
    out.close();
}
