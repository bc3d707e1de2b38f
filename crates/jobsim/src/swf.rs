//! Logs in the Standard Workload Format: 18 numbers a line, comments and a header after `;` (Feitelson's Parallel Workloads
//! Archive). Real logs have faults: each kind is repaired in one way and counted.

use std::fmt;
use std::io::{self, BufRead, Read};

/// Jobs of one log; the longest that is known of has six million.
pub const JOBS_MAX: usize = 20_000_000;
/// Bytes of a line.
pub const LINE_MAX: usize = 16 * 1024;
/// Processors of a machine.
pub const PROCESSORS_MAX: u32 = 100_000_000;
/// Seconds of a time or a limit: 2,000 years.
pub const SECONDS_MAX: u64 = 1 << 36;
/// Fields that are needed: up to the requested time.
const FIELDS_MIN: usize = 9;
/// Fields that are read: up to the partition.
const FIELDS_READ: usize = 16;

/// A job as it was submitted, and how long it then ran. Times are seconds. What the log does not say about whose and which
/// it is, is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Job {
    pub number: u64,
    pub submit_s: u64,
    /// Not above `request_s`: there it would have been ended.
    pub run_s: u64,
    /// Its time limit.
    pub request_s: u64,
    /// Those that it was given: what other simulators take, too.
    pub processors: u32,
    /// For how long it ran on beyond `request_s`, on the real machine.
    pub overran_s: u64,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub executable: Option<u32>,
    pub queue: Option<u32>,
    pub partition: Option<u32>,
    /// On the real machine, from its submission to its start.
    pub waited_s: Option<u64>,
    /// False where no time limit is said, and `request_s` is the run time: that, nobody knew at submission.
    pub asked: bool,
}

/// What was done about a log's faults, in jobs or lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repairs {
    /// Left out: not 9 numbers, or numbers that nothing can be.
    pub unreadable: u64,
    /// Left out: cancelled before it ran, or it ran for no time.
    pub never_ran: u64,
    /// Left out: neither requested nor allocated processors are said.
    pub no_processors: u64,
    /// The processors that it requested count, since those that it was given are not said.
    pub requested_for_given: u64,
    /// No time limit is said: the run time counts.
    pub no_request: u64,
    /// Ran for longer than its limit, where this one ends it.
    pub overran: u64,
    /// Submitted before the job of an earlier line: sorted.
    pub out_of_order: u64,
}

impl Repairs {
    /// Each with its words.
    pub fn list(&self) -> [(&'static str, u64); 7] {
        [
            ("lines that cannot be read, left out", self.unreadable),
            ("jobs that never ran, left out", self.never_ran),
            ("jobs without processors, left out", self.no_processors),
            ("jobs without given processors: those requested count", self.requested_for_given),
            ("jobs without a time limit: the run time counts", self.no_request),
            ("jobs that ran for longer than their limit: ended there", self.overran),
            ("jobs before their predecessors: sorted", self.out_of_order),
        ]
    }
}

/// A log in the order of submission.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    pub jobs: Vec<Job>,
    /// `MaxProcs` of the header, else `MaxNodes`.
    pub processors: Option<u32>,
    /// `MaxNodes` of the header.
    pub nodes: Option<u32>,
    pub repairs: Repairs,
}

/// Why a log could not be read.
#[derive(Debug)]
pub enum LogError {
    Read { line: u64, source: io::Error },
    LineTooLong { line: u64 },
    Compressed,
    TooManyJobs,
    NoJobs { unreadable: u64 },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Read { line, source } => write!(f, "line {line}: {source}"),
            LogError::LineTooLong { line } => {
                write!(
                    f,
                    "line {line} has more than {LINE_MAX} bytes: this is no log in the Standard Workload Format"
                )
            }
            LogError::Compressed => {
                f.write_str("it is compressed: unpack it first, as 'zcat LOG | ... -' does")
            }
            LogError::TooManyJobs => write!(f, "more than {JOBS_MAX} jobs: take a part of it"),
            LogError::NoJobs { unreadable: 0 } => f.write_str("no job in it has run"),
            LogError::NoJobs { unreadable } => write!(
                f,
                "no job in it has run, and {unreadable} lines are not 18 numbers: is it in the Standard Workload Format?"
            ),
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LogError::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Reads a log to its end, or to `jobs_max` jobs that ran.
pub fn read(mut from: impl BufRead, jobs_max: usize) -> Result<Log, LogError> {
    let (mut log, mut latest) = (Log::default(), 0);
    let (mut max_procs, mut max_nodes) = (None, None);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let got = (&mut from).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut bytes);
        let got = got.map_err(|source| LogError::Read { line, source })?;
        if got == 0 || log.jobs.len() == jobs_max {
            break;
        }
        if line == 1 && bytes.starts_with(&[0x1f, 0x8b]) {
            return Err(LogError::Compressed);
        }
        if got > LINE_MAX {
            return Err(LogError::LineTooLong { line });
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        if let Some(comment) = text.strip_prefix(';') {
            max_procs = max_procs.or(header(comment, "MaxProcs"));
            max_nodes = max_nodes.or(header(comment, "MaxNodes"));
        } else if !text.is_empty() {
            if log.jobs.len() == JOBS_MAX {
                return Err(LogError::TooManyJobs);
            }
            let Some(job) = job(text, &mut log.repairs) else { continue };
            log.repairs.out_of_order += u64::from(job.submit_s < latest);
            latest = latest.max(job.submit_s);
            log.jobs.push(job);
        }
    }
    if log.jobs.is_empty() {
        return Err(LogError::NoJobs { unreadable: log.repairs.unreadable });
    }
    log.processors = max_procs.or(max_nodes);
    log.nodes = max_nodes;
    log.jobs.sort_by_key(|job| job.submit_s);
    Ok(log)
}

/// The number at the beginning of a header's value.
fn header(comment: &str, name: &str) -> Option<u32> {
    let value = comment.trim_start().strip_prefix(name)?.trim_start().strip_prefix(':')?.trim_start();
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    value[..digits].parse().ok().filter(|count| (1..=PROCESSORS_MAX).contains(count))
}

/// A job, with what is repaired counted; none where it is left out.
fn job(line: &str, repairs: &mut Repairs) -> Option<Job> {
    let words = || line.split_ascii_whitespace();
    let fields: Option<Vec<f64>> = words().take(FIELDS_MIN).map(|field| field.parse().ok()).collect();
    let Some([number, submit, wait, run, given, _, _, processors, request]) = fields.as_deref() else {
        repairs.unreadable += 1;
        return None;
    };
    // Beyond what is needed nothing has to be there: -1, a word, or no field at all is none.
    let mut marks = [None; FIELDS_READ];
    marks.iter_mut().zip(words()).skip(FIELDS_MIN).for_each(|(mark, word)| *mark = word.parse().ok());
    let [.., user, group, executable, queue, partition] = marks;
    let sane = [*number, *submit, *run, *request].iter().all(|n| n.is_finite() && *n <= SECONDS_MAX as f64);
    let small = [*given, *processors].iter().all(|n| n.is_finite() && *n <= f64::from(PROCESSORS_MAX));
    if !sane || !small || *submit < 0.0 {
        repairs.unreadable += 1;
        return None;
    }
    // Parts of a second count as one: what ran, ran for a time.
    let (run, mut request) = (run.max(0.0).ceil() as u64, request.max(0.0).ceil() as u64);
    if run == 0 {
        repairs.never_ran += 1;
        return None;
    }
    let mut wanted = given.max(0.0) as u32;
    if wanted == 0 {
        wanted = processors.max(0.0) as u32;
        if wanted == 0 {
            repairs.no_processors += 1;
            return None;
        }
        repairs.requested_for_given += 1;
    }
    let asked = request > 0;
    if !asked {
        repairs.no_request += 1;
        request = run;
    }
    repairs.overran += u64::from(run > request);
    let overran_s = run.saturating_sub(request);
    let run_s = run.min(request);
    Some(Job {
        number: number.max(0.0) as u64,
        submit_s: *submit as u64,
        run_s,
        request_s: request,
        processors: wanted,
        overran_s,
        user,
        group,
        executable,
        queue,
        partition,
        waited_s: (0.0..=SECONDS_MAX as f64).contains(wait).then_some(*wait as u64),
        asked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Result<Log, LogError> {
        read(text.as_bytes(), usize::MAX)
    }

    #[test]
    fn a_log_as_the_archive_has_it() {
        let text = "; Version: 2.2\n;\t MaxNodes: 338 (batch partition)\n; MaxProcs: 400\n\n\
            2 50 0 10 4 552.21 -1 4 100 -1 1 1 1 -1 -1 -1 -1 -1\r\n1 10.9 -1 9.2 8 -1 -1 -1 60 -1 1 1 1 -1 -1 -1 -1 -1\n";
        let log = of(text).unwrap();
        assert_eq!(log.processors, Some(400));
        let marks = Job { user: Some(1), group: Some(1), waited_s: Some(0), asked: true, ..Job::default() };
        let first =
            Job { number: 1, submit_s: 10, run_s: 10, request_s: 60, processors: 8, waited_s: None, ..marks };
        let second = Job { number: 2, submit_s: 50, run_s: 10, request_s: 100, processors: 4, ..marks };
        assert_eq!(log.jobs, [first, second]);
        assert_eq!(log.repairs, Repairs { out_of_order: 1, ..Repairs::default() });
        assert_eq!(of("; MaxNodes: 338 (batch)\n1 0 0 1 1 1 1 1 1\n").unwrap().processors, Some(338));
        assert_eq!(read(text.as_bytes(), 1).unwrap().jobs, [second]);
    }

    #[test]
    fn whose_and_which_a_job_is_may_be_missing() {
        let marks = |line: &str| {
            let job = of(line).unwrap().jobs[0];
            (job.user, job.group, job.executable, job.queue, job.partition)
        };
        let whole = marks("1 0 0 5 1 -1 -1 1 9 -1 1 31 32 33 34 35 -1 -1");
        assert_eq!(whole, (Some(31), Some(32), Some(33), Some(34), Some(35)));
        assert_eq!(marks("1 0 0 5 1 -1 -1 1 9 -1 1 7 x -1"), (Some(7), None, None, None, None));
        let over = of("1 0 0 9 2 -1 -1 3 5").unwrap().jobs[0];
        assert_eq!((over.run_s, over.overran_s), (5, 4));
        let waited = |line: &str| of(line).unwrap().jobs[0].waited_s;
        assert_eq!((waited("1 0 70 9 2 -1 -1 3 5"), waited("1 0 -1 9 2 -1 -1 3 5")), (Some(70), None));
        assert!(over.asked && !of("1 0 0 9 2 -1 -1 3 -1").unwrap().jobs[0].asked);
    }

    #[test]
    fn each_fault_is_repaired_in_its_way_and_counted() {
        let cases = [
            (
                "1 0 0 5 -1 -1 -1 3 9",
                Some((5, 9, 3)),
                Repairs { requested_for_given: 1, ..Repairs::default() },
            ),
            ("1 0 0 5 2 -1 -1 3 -1", Some((5, 5, 2)), Repairs { no_request: 1, ..Repairs::default() }),
            ("1 0 0 9 2 -1 -1 3 5", Some((5, 5, 2)), Repairs { overran: 1, ..Repairs::default() }),
            ("1 0 0 -1 3 -1 -1 2 5", None, Repairs { never_ran: 1, ..Repairs::default() }),
            ("1 0 0 9 -1 -1 -1 0 5", None, Repairs { no_processors: 1, ..Repairs::default() }),
            ("1 0 0 9 3 -1 -1 2", None, Repairs { unreadable: 1, ..Repairs::default() }),
            ("1 x 0 9 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
            ("1 -5 0 9 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
            ("1 0 0 1e99 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
            ("1 NaN 0 9 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
            ("1 0 0 9 3 -1 -1 2e9 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
        ];
        for (line, wanted, repairs) in cases {
            // A second job, since a log without any is refused.
            let log = of(&format!("{line}\n7 0 0 1 1 -1 -1 1 1\n")).unwrap();
            let got = log.jobs.iter().find(|job| job.number == 1);
            assert_eq!(got.map(|job| (job.run_s, job.request_s, job.processors)), wanted, "{line}");
            assert_eq!(log.repairs, repairs, "{line}");
            assert!(repairs.list().iter().map(|(_, count)| count).sum::<u64>() == 1);
        }
    }

    #[test]
    fn what_is_no_log_is_refused() {
        assert!(matches!(of(""), Err(LogError::NoJobs { unreadable: 0 })));
        assert!(matches!(of("hello\nworld\n"), Err(LogError::NoJobs { unreadable: 2 })));
        assert!(matches!(read(&[0x1f, 0x8b, 8, 0][..], 9), Err(LogError::Compressed)));
        assert!(matches!(of(&"1 ".repeat(LINE_MAX)), Err(LogError::LineTooLong { line: 1 })));
        let said = of("hello\n").unwrap_err().to_string();
        assert!(said.contains("1 lines are not 18 numbers"), "{said}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_log_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes[..], usize::MAX);
        }

        /// Numbers of all kinds in all places: what comes out is within its limits, and nothing is lost uncounted.
        #[test]
        fn odd_lines_are_jobs_within_limits_or_counted(
            lines in prop::collection::vec(
                prop::collection::vec(
                    prop_oneof![
                        (-2i64..100).prop_map(|n| n.to_string()),
                        any::<i64>().prop_map(|n| n.to_string()),
                        any::<f64>().prop_map(|n| n.to_string()),
                        "[a-z;]{1,3}",
                    ],
                    1..20,
                ),
                1..20,
            )
        ) {
            let lines: Vec<String> = lines.iter().map(|line| line.join(" ")).collect();
            let data = lines.iter().filter(|line| !line.starts_with(';')).count();
            let Ok(log) = of(&lines.join("\n")) else { return Ok(()) };
            let left_out = log.repairs.unreadable + log.repairs.never_ran + log.repairs.no_processors;
            prop_assert_eq!(log.jobs.len() as u64 + left_out, data as u64);
            for job in &log.jobs {
                prop_assert!(job.run_s >= 1 && job.run_s <= job.request_s && job.request_s <= SECONDS_MAX);
                prop_assert!(job.processors >= 1 && job.processors <= PROCESSORS_MAX);
                prop_assert!(job.submit_s <= SECONDS_MAX);
            }
            prop_assert!(log.jobs.is_sorted_by_key(|job| job.submit_s));
        }
    }
}
