//! Logs with damage of all kinds: whatever a log has become, it is a table within its limits or an error with words, in every
//! format. `TIDEPOOL_SEED` repeats a run.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidepool_joblog::{Format, KIB_MAX, Log, Options, PROCESSORS_MAX, SECONDS_MAX, read, write};

/// Changed logs of each format.
const ROUNDS: usize = 400;
/// Words that readers have stumbled over.
const WORDS: [&str; 16] = [
    "-1",
    "NaN",
    "inf",
    "1e308",
    "18446744073709551616",
    "-9223372036854775808",
    "0x10",
    "\u{feff}",
    "\r\n",
    "\0",
    "\"",
    "|",
    ";",
    "{",
    "Unknown",
    "1e-400",
];

/// A log of ten jobs in each format, with a header and names.
fn originals() -> Vec<(Format, Vec<u8>)> {
    let mut swf =
        "; Version: 2.2\n; UnixStartTime: 843480031\n; MaxProcs: 64\n; Queue: 1 short\n".to_string();
    let mut bars =
        "JobID|User|JobName|Submit|Start|End|State|AllocCPUS|ReqMem|Timelimit|SubmitLine|NodeList\n"
            .to_string();
    let mut json = "{\"meta\": {}, \"jobs\": [".to_string();
    for n in 1..=10 {
        let _ = writeln!(swf, "{n} {} {n} 60 {n} 5 100 {n} 100 -1 1 {n} 1 -1 1 -1 -1 -1", n * 10);
        let _ = writeln!(
            bars,
            "{n}|alice|relax{n}|2025-01-01T00:00:{n:02}|2025-01-01T00:01:00|2025-01-01T00:02:00|COMPLETED|4|4G|01:00:00|sbatch x|node[1-{n}]"
        );
        let _ = write!(
            json,
            "{}{{\"job_id\": {n}, \"state\": {{\"current\": [\"COMPLETED\"]}}, \"time\": {{\"submission\": 17356896{n:02}, \"start\": 1735689660, \
             \"end\": 1735689720, \"elapsed\": 60, \"limit\": {{\"set\": true, \"infinite\": false, \"number\": 5}}}}, \"tres\": {{\"allocated\": \
             [{{\"type\": \"cpu\", \"count\": 4}}]}}, \"user\": \"bob\", \"steps\": [{{}}]}}",
            if n == 1 { "" } else { ", " }
        );
    }
    json += "]}";
    let log = read(swf.as_bytes(), &Options::default()).unwrap();
    let written = |format: Format| {
        let mut bytes = Vec::new();
        write(&log, format, &mut bytes).unwrap();
        (format, bytes)
    };
    vec![
        (Format::Swf, swf.into_bytes()),
        (Format::Sacct, bars.into_bytes()),
        (Format::SacctJson, json.into_bytes()),
        written(Format::Csv),
        written(Format::Parquet),
    ]
}

/// A few changes at random places: bytes, words, parts gone, doubled or moved, the end cut off.
fn damage(bytes: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..=bytes.len());
        let to = (at + random.usize(..40)).min(bytes.len());
        match random.u8(..7) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 => drop(bytes.splice(at..at, WORDS[random.usize(..WORDS.len())].bytes())),
            2 => drop(bytes.splice(at..to, WORDS[random.usize(..WORDS.len())].bytes())),
            3 => drop(bytes.drain(at..to)),
            4 => {
                let part = bytes[at..to].to_vec();
                let other = random.usize(..=bytes.len());
                drop(bytes.splice(other..other, part));
            }
            5 if random.u8(..4) == 0 => bytes.truncate(at),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.u8(..8),
            _ => {}
        }
    }
    bytes
}

fn check(log: &Log) {
    assert!(!log.jobs.is_empty() && log.jobs.is_sorted_by_key(|job| job.submit_s));
    for job in &log.jobs {
        assert!(job.run_s >= 1 && job.run_s <= job.request_s, "{job:?}");
        assert!((1..=PROCESSORS_MAX).contains(&job.processors), "{job:?}");
        let times = [
            Some(job.submit_s),
            Some(job.request_s),
            Some(job.ran_s()),
            job.waited_s,
            job.cpu_s,
            job.think_s,
        ];
        assert!(times.into_iter().flatten().all(|time| time <= SECONDS_MAX), "{job:?}");
        let memory = [job.used_memory_kib, job.requested_memory_kib];
        assert!(memory.into_iter().flatten().all(|kib| kib <= KIB_MAX), "{job:?}");
    }
    // What can be read can be described, and written.
    let told = tidepool_joblog::describe::describe(log, None);
    assert_eq!(told.jobs, log.jobs.len() as u64);
    assert!(told.offered.is_finite() && told.weeks.iter().all(|week| week.used.is_finite()));
    for format in [Format::Swf, Format::Csv, Format::Parquet] {
        let mut bytes = Vec::new();
        write(log, format, &mut bytes).unwrap();
        let again = read(&bytes[..], &Options { format: Some(format), ..Options::default() }).unwrap();
        assert_eq!(again.jobs.len(), log.jobs.len(), "{format:?}");
    }
}

#[test]
fn damaged_logs_are_tables_or_errors() {
    let seed = std::env::var("TIDEPOOL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TIDEPOOL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut tables, mut errors) = (0, 0);
    for (format, original) in originals() {
        check(&read(&original[..], &Options::default()).unwrap());
        for round in 0..ROUNDS {
            let mut bytes = damage(&original, &mut random);
            if random.u8(..4) == 0 {
                let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
                packer.write_all(&bytes).unwrap();
                bytes = packer.finish().unwrap();
                if random.bool() {
                    bytes = damage(&bytes, &mut random);
                }
            }
            let said = random.bool().then_some(format);
            let done = catch_unwind(AssertUnwindSafe(|| {
                match read(&bytes[..], &Options { format: said, ..Options::default() }) {
                    Ok(log) => {
                        check(&log);
                        true
                    }
                    Err(error) => {
                        assert!(error.to_string().len() > 10, "{error}");
                        false
                    }
                }
            }));
            let shown = String::from_utf8_lossy(&bytes);
            let table = done
                .unwrap_or_else(|_| panic!("TIDEPOOL_SEED={seed}: round {round} of {format:?}: {shown:?}"));
            tables += usize::from(table);
            errors += usize::from(!table);
        }
    }
    // Neither all nor nothing is refused: the changes are of a size to test both.
    assert!(tables > ROUNDS && errors > ROUNDS / 2, "TIDEPOOL_SEED={seed}: {tables} tables, {errors} errors");
}
