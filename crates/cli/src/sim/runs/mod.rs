//! Measured runs from files: of fio, of `tidepool bench io`, or as they are.

mod bench;
mod fio;
mod plain;

use super::storage_flags::SideFlag;
pub use fio::RunsError;
use serde_json::{Map, Value};
use tidepool_sim_models::storage::Run;

/// Most bytes of a file of measurements.
pub const TEXT_MAX: u64 = 64 << 20;
/// Most runs of one file.
const RUNS_MAX: usize = 100_000;

/// Beginnings of JSON that are tried in a text.
const TRIED_MAX: usize = 100;
const TWICE: &str =
    "it has two tables of fio: of several runs, or of --status-interval; give each in a file of its own";

/// The table of a text. Around the one of fio there may be words: it writes messages before it, and with
/// `--output-format=normal,json` its text for people behind it.
fn document(text: &str) -> Result<Map<String, Value>, RunsError> {
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut of_fio, mut other, mut failed) = (None, None, None);
    for _ in 0..TRIED_MAX {
        let Some(begin) = beginning(rest) else { break };
        rest = &rest[begin..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Map<String, Value>>();
        match values.next() {
            Some(Ok(table)) => {
                rest = &rest[values.byte_offset()..];
                if !table.contains_key("jobs") {
                    other = other.or(Some((table, rest)));
                } else if of_fio.replace(table).is_some() {
                    return Err(fio::fail(TWICE));
                }
            }
            Some(Err(error)) => (failed, rest) = (failed.or(Some(error)), &rest[1..]),
            None => break,
        }
    }
    match (of_fio, other, failed) {
        (Some(table), ..) => Ok(table),
        (None, Some((table, behind)), _) if behind.trim().is_empty() => Ok(table),
        (None, Some(_), _) => Err(fio::fail("something follows its table")),
        (None, None, Some(error)) => Err(fio::fail(error.to_string())),
        (None, None, None) => {
            Err(fio::fail("it is no JSON of fio (--output-format=json) or of 'tidepool bench io'"))
        }
    }
}

/// Where a line begins with a table.
fn beginning(text: &str) -> Option<usize> {
    if text.starts_with('{') { Some(0) } else { text.find("\n{").map(|at| at + 1) }
}

/// Runs from a file of fio, or a raw file of `tidepool bench io`.
pub fn read_runs(text: &str, side: SideFlag) -> Result<Vec<Run>, RunsError> {
    let all = document(text)?;
    let runs = match ["jobs", "samples", "runs"].into_iter().find(|key| all.contains_key(*key)) {
        Some("jobs") => fio::read(&all)?,
        Some("samples") => bench::read(&all, side)?,
        Some(_) => plain::read(&all)?,
        None => {
            let what = "it has none of 'jobs' (fio), 'samples' ('tidepool bench io') and 'runs'";
            return Err(fio::fail(what));
        }
    };
    if runs.is_empty() { Err(fio::fail("there are no runs in it")) } else { Ok(runs) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_sim_models::storage::Config;

    /// Shortened from a file of fio 3.33.
    const FIO: &str = r#"fio: a message
{
  "fio version" : "fio-3.33",
  "global options" : { "direct" : "1", "ioengine" : "psync" },
  "jobs" : [
    { "jobname" : "a", "groupid" : 0, "error" : 0, "job options" : { "rw" : "randread", "bs" : "4k", "numjobs" : "2" },
      "read" : { "iops" : 100.5, "total_ios" : 100 }, "write" : { "iops" : 0.0, "total_ios" : 0 } },
    { "jobname" : "a", "groupid" : 0, "error" : 0, "job options" : { "rw" : "randread", "bs" : "4k", "numjobs" : "2" },
      "read" : { "iops" : 99.5, "total_ios" : 100 }, "write" : { "iops" : 0.0, "total_ios" : 0 } },
    { "jobname" : "b", "groupid" : 1, "error" : 0,
      "job options" : { "rw" : "write", "bs" : "1M", "ioengine" : "libaio", "iodepth" : "8" },
      "read" : { "iops" : 0.0 }, "write" : { "iops" : 7.0 } }
  ]
}"#;

    #[test]
    fn files_of_fio_are_read() {
        let seen = read_runs(FIO, SideFlag::Native).unwrap();
        let config = |is_write, is_random, bytes, clients| Config { is_write, is_random, bytes, clients };
        let wanted = [
            Run { config: config(false, true, 4096, 2), rate: 200.0 },
            Run { config: config(true, false, 1 << 20, 8), rate: 7.0 },
        ];
        assert_eq!(seen, wanted);
    }

    /// fio's `--output-format=normal,json` has its text for people behind the table, some wrappers have more.
    #[test]
    fn words_around_the_table_of_fio_do_not_matter() {
        let alone = read_runs(FIO, SideFlag::Native).unwrap();
        let table = &FIO[FIO.find("\n{").unwrap() + 1..];
        let normal = "a: (groupid=0, jobs=2): err= 0: pid=7: Fri Nov 27 07:00:00 2026\n  read: IOPS=200, BW=800KiB/s\n    \
                      clat percentiles (usec): | 1.00th=[  40], \u{b5}s\n\nDisk stats (read/write):\n  vda: ios=1/2, util=3.00%\n";
        let terse = "3;fio-3.33;a;0;0;0;0\n";
        for (before, behind) in [
            ("", normal),
            ("", terse),
            (normal, ""),
            (normal, normal),
            ("\u{feff}", "\n\u{b5}"),
            ("a: (g=0): rw=randread\r\n...\nfio-3.33\n{ not of fio }\n", "{\"with\": \"me\"}\n"),
            ("+ fio --output-format=normal,json a.fio\n{\"a\": 1}\n", "\n{ cut"),
        ] {
            let text = format!("{before}{table}\n{behind}");
            assert_eq!(read_runs(&text, SideFlag::Native).unwrap(), alone, "{before}...{behind}");
        }
        let twice = format!("{table}\n{normal}\n{table}");
        assert!(read_runs(&twice, SideFlag::Native).unwrap_err().to_string().contains("two tables"));
        // Only fio writes for people as well.
        let plain = r#"{"runs":[{"write":true,"random":false,"bytes":512,"clients":3,"per_second":1.5}]}"#;
        let told = read_runs(&format!("{plain}\nmore"), SideFlag::Native).unwrap_err().to_string();
        assert!(told.contains("something follows"), "{told}");
        assert!(read_runs(&"{".repeat(1 << 20), SideFlag::Native).is_err());
    }

    #[test]
    fn raw_files_of_tidepool_bench_are_read() {
        let sample = |side: &str, phase: &str| {
            format!(
                r#"{{"case":"file per process, random, 8.0 KiB","side":"{side}","measured":{{"phase":"{phase}","bytes":8192000,"operations":1000,"seconds":2.0,"synced_seconds":4.0}}}}"#
            )
        };
        let samples =
            [sample("pool", "write"), sample("pool", "prepare"), sample("native", "read")].join(",");
        let text = format!(r#"{{"bench":"io","procs":3,"samples":[{samples}]}}"#);
        let config = |is_write| Config { is_write, is_random: true, bytes: 8192, clients: 3 };
        assert_eq!(read_runs(&text, SideFlag::Pool).unwrap(), [Run { config: config(true), rate: 250.0 }]);
        assert_eq!(read_runs(&text, SideFlag::Native).unwrap(), [Run { config: config(false), rate: 500.0 }]);
        assert!(read_runs(&text.replace("\"io\"", "\"md\""), SideFlag::Pool).is_err());
    }

    #[test]
    fn runs_can_be_told_as_they_are() {
        let text = r#"{"with":"me","runs":[{"write":true,"random":false,"bytes":512,"clients":3,"per_second":1.5}]}"#;
        let config = Config { is_write: true, is_random: false, bytes: 512, clients: 3 };
        assert_eq!(read_runs(text, SideFlag::Pool).unwrap(), [Run { config, rate: 1.5 }]);
        let cases = [
            ("\"bytes\"", "\"bites\"", "did you mean 'bytes'"),
            ("512", "0", "'bytes' is no whole number"),
            ("1.5", "1e999", "number out of range"),
            ("1.5", "0", "'per_second' is no number above 0"),
            ("false", "1", "'random' is neither"),
            ("[{", "{\"a\":{", "'runs' is no list"),
        ];
        for (part, instead, why) in cases {
            let mut changed = text.replacen(part, instead, 1);
            if instead.contains("\"a\"") {
                changed = changed.replace("]}", "}}");
            }
            let told = read_runs(&changed, SideFlag::Pool).expect_err(instead).to_string();
            assert!(told.contains(why), "{instead}: {told}");
        }
    }

    #[test]
    fn hostile_measurements_are_refused_with_a_reason() {
        let cases = [
            ("\"direct\" : \"1\"", "\"direct\" : \"0\"", "job 'a': it was not measured with direct=1"),
            ("\"randread\"", "\"randrw\"", "rw=randrw is none of"),
            ("\"4k\"", "\"4q\"", "bs=4q is no size"),
            ("\"4k\"", "\"99999999999999999999k\"", "is no size"),
            ("\"4k\"", "\"0\"", "is no size"),
            ("\"2\"", "\"-2\"", "numjobs=-2 is no number"),
            ("\"2\"", "\"99999999\"", "is not 1 to"),
            ("\"8\"", "\"18446744073709551615\"", "is not 1 to"),
            ("100.5", "0.0", "no requests per second"),
            ("100.5", "\"many\"", "no requests per second"),
            ("100.5", "-3", "no requests per second"),
            ("\"error\" : 0, \"job options\"", "\"error\" : 5, \"job options\"", "ended with error 5"),
            ("\"jobs\" : [", "\"jobs\" : 3, \"other\" : [", "'jobs' is no list"),
            ("\"jobs\"", "\"sobs\"", "none of 'jobs'"),
        ];
        for (part, instead, why) in cases {
            assert!(FIO.contains(part), "{part}");
            let told =
                read_runs(&FIO.replacen(part, instead, 1), SideFlag::Native).expect_err(instead).to_string();
            assert!(told.contains(why), "{instead}: {told}");
        }
        for text in [
            "",
            "x",
            "{",
            "[]",
            "{}",
            "\u{0}\n{\"jobs\":[]}",
            &"[".repeat(10_000),
            &format!("{{{}", "\"a\":{".repeat(10_000)),
        ] {
            assert!(read_runs(text, SideFlag::Native).is_err(), "{text:.20}");
        }
        // Cut off, and with bytes changed: an error or runs, never a panic.
        for at in 0..FIO.len() {
            let _ = read_runs(&FIO[..at], SideFlag::Native);
            let mut bytes = FIO.as_bytes().to_vec();
            bytes[at] = b"0\"}],-"[at % 6];
            let _ = read_runs(std::str::from_utf8(&bytes).unwrap(), SideFlag::Native);
        }
    }
}
