//! Records for people and programs: JSON, YAML, CSV, tables.

use crate::db::HostRecord;
use serde_json::{Map, Value};
use std::io::{self, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One document: a list of records.
    Json,
    /// One record a line: what can be imported.
    JsonLines,
    Yaml,
    /// One value a line: host, extractor, time, place of the value, value.
    Csv,
    /// The same for people, without the time.
    Table,
}

/// Most characters of a table's cell.
const CELL_MAX: usize = 60;

/// Writes records.
pub fn write(records: &[HostRecord], format: Format, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, records)?;
            writeln!(out)
        }
        Format::JsonLines => records.iter().try_for_each(|record| {
            serde_json::to_writer(&mut *out, record)?;
            writeln!(out)
        }),
        Format::Yaml => serde_yaml_ng::to_writer(out, records).map_err(io::Error::other),
        Format::Csv => write_csv(records, out),
        Format::Table => write_table(records, out),
    }
}

/// A value that is neither a list nor an object, with its place: `disks.0.name`.
fn leaves(data: &Value) -> Vec<(String, String)> {
    fn walk(value: &Value, at: &str, leaves: &mut Vec<(String, String)>) {
        let below = |name: &str| if at.is_empty() { name.to_string() } else { format!("{at}.{name}") };
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| walk(value, &below(name), leaves))
            }
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(n, value)| walk(value, &below(&n.to_string()), leaves));
            }
            Value::Null => {}
            Value::String(text) => leaves.push((at.to_string(), text.clone())),
            other => leaves.push((at.to_string(), other.to_string())),
        }
    }
    let mut all = Vec::new();
    walk(data, "", &mut all);
    all
}

fn write_csv(records: &[HostRecord], out: &mut dyn Write) -> io::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(["host", "extractor", "taken_ms", "place", "value"])?;
    for HostRecord { host, record } in records {
        let taken = record.taken_ms.to_string();
        for (place, value) in leaves(&record.data) {
            csv.write_record([host, &record.extractor, &taken, &place, &value])?;
        }
    }
    csv.flush()
}

fn write_table(records: &[HostRecord], out: &mut dyn Write) -> io::Result<()> {
    let mut rows = vec![["HOST", "EXTRACTOR", "PLACE", "VALUE"].map(String::from)];
    for HostRecord { host, record } in records {
        let row = |(place, value): (String, String)| {
            [host.clone(), record.extractor.clone(), place, crate::system::shown(&value, CELL_MAX)]
        };
        rows.extend(leaves(&record.data).into_iter().map(row));
        let missing = record.missing.iter().map(|missing| {
            let why = crate::system::shown(&missing.why, CELL_MAX);
            [host.clone(), record.extractor.clone(), format!("(missing) {}", missing.what), why]
        });
        rows.extend(missing);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    for [host, extractor, place, value] in &rows {
        let [a, b, c] = widths;
        writeln!(out, "{host:<a$}  {extractor:<b$}  {place:<c$}  {value}")?;
    }
    Ok(())
}

/// Why something is no exported record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadImport {
    /// From 1.
    pub line: usize,
    pub why: String,
}

impl std::fmt::Display for BadImport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for BadImport {}

/// Reads what was written as JSON lines. Other fields than a record's are errors.
pub fn read(text: &str) -> Result<Vec<HostRecord>, BadImport> {
    let mut records = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |why: String| BadImport { line: at + 1, why };
        let fields: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        const KNOWN: &[&str] =
            &["host", "extractor", "version", "class", "source", "taken_ms", "data", "missing"];
        if let Some(unknown) = fields.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(bad(format!("a record has no field '{}'", crate::system::clip(unknown))));
        }
        let record = serde_json::from_value(Value::Object(fields)).map_err(|error| bad(error.to_string()))?;
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Class, Missing, Record};
    use serde_json::json;

    fn records() -> Vec<HostRecord> {
        let record = Record {
            extractor: "disks".into(),
            version: 1,
            class: Class::Static,
            source: Some("sysfs".into()),
            taken_ms: 7,
            data: json!({"disks": [{"name": "a\"b,c", "bytes": 5, "pci": null}, {"name": "x\ty", "bytes": 6}]}),
            missing: vec![Missing::new("/sys/x", "Permission denied")],
        };
        vec![HostRecord { host: "n1".into(), record }]
    }

    fn text(format: Format) -> String {
        let mut out = Vec::new();
        write(&records(), format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn documents_are_read_back_as_they_were() {
        assert_eq!(serde_json::from_str::<Vec<HostRecord>>(&text(Format::Json)).unwrap(), records());
        assert_eq!(serde_yaml_ng::from_str::<Vec<HostRecord>>(&text(Format::Yaml)).unwrap(), records());
        assert_eq!(read(&text(Format::JsonLines)).unwrap(), records());
    }

    #[test]
    fn tables_have_a_line_for_each_value() {
        let csv = text(Format::Csv);
        assert_eq!(
            csv,
            "host,extractor,taken_ms,place,value\nn1,disks,7,disks.0.bytes,5\nn1,disks,7,disks.0.name,\"a\"\"b,c\"\n\
             n1,disks,7,disks.1.bytes,6\nn1,disks,7,disks.1.name,x\ty\n"
        );
        let table = text(Format::Table);
        assert!(table.starts_with("HOST  EXTRACTOR  PLACE"), "{table}");
        assert!(table.contains("(missing) /sys/x  Permission denied") && table.contains("x?y"), "{table}");
    }

    #[test]
    fn what_is_no_record_is_named_by_its_line() {
        let good = text(Format::JsonLines);
        for (line, why) in [
            ("{}", "missing field `host`"),
            ("[]", "invalid type"),
            ("{\"hots\": 1}", "no field 'hots'"),
            ("nonsense", "expected"),
        ] {
            let error = read(&format!("{good}\n{line}\n")).unwrap_err();
            assert_eq!(error.line, 3, "{error}");
            assert!(error.why.contains(why), "{error}");
        }
    }
}
