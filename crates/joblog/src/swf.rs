//! The Standard Workload Format: 18 numbers a line, comments and a header after `;` (Feitelson's Parallel Workloads Archive).

use crate::header::Reader;
use crate::lines::Lines;
use crate::repairs::Repairs;
use crate::table::{JOBS_MAX, Job, KIB_MAX, Log, NUMBER_MAX, PROCESSORS_MAX, SECONDS_MAX, Status};
use crate::{Format, LogError, finish};
use std::io::{self, BufRead, Write};

/// Fields of a line.
const FIELDS: usize = 18;

/// Reads a log to its end, or to `jobs_max` jobs that ran.
pub fn read(from: impl BufRead, jobs_max: usize) -> Result<Log, LogError> {
    let (mut log, mut header) = (Log::default(), Reader::default());
    let mut lines = Lines::new(from, Format::Swf);
    while log.jobs.len() < jobs_max
        && let Some(line) = lines.next()?
    {
        let text = line.trim().trim_start_matches('\u{feff}');
        if let Some(comment) = text.strip_prefix(';') {
            header.line(comment, &mut log.repairs);
        } else if !text.is_empty() {
            if log.jobs.len() == JOBS_MAX {
                return Err(LogError::TooManyJobs);
            }
            log.jobs.extend(job(text, &mut log.repairs));
        }
    }
    log.repairs.not_utf8 = lines.not_utf8;
    (log.header, log.names) = (header.header, header.names);
    finish(log, Format::Swf)
}

/// A job, with what is repaired counted; none where it is left out.
fn job(line: &str, repairs: &mut Repairs) -> Option<Job> {
    let mut fields = [None; FIELDS];
    let mut count = 0;
    for word in line.split_ascii_whitespace() {
        if let Some(field) = fields.get_mut(count) {
            *field = word.parse::<f64>().ok();
        }
        count += 1;
    }
    let [number, submit, wait, run, given, cpu, used, processors, request, ..] = fields;
    // Up to the requested time all are needed.
    let needed = [number, submit, wait, run, given, cpu, used, processors, request];
    let needed: Option<Vec<f64>> = needed.into_iter().collect();
    let Some([number, submit, wait, run, given, cpu, used, processors, request]) = needed.as_deref() else {
        repairs.unreadable += 1;
        return None;
    };
    let sane = [*submit, *run, *request].iter().all(|n| n.is_finite() && *n <= SECONDS_MAX as f64);
    let sane = sane && number.is_finite() && *number <= NUMBER_MAX as f64;
    let small = [*given, *processors].iter().all(|n| n.is_finite() && *n <= f64::from(PROCESSORS_MAX));
    if !sane || !small || *submit < 0.0 {
        repairs.unreadable += 1;
        return None;
    }
    repairs.odd_length += u64::from(count != FIELDS);
    // Beyond what is needed nothing has to be there: -1, a word, or no field at all is none.
    let mark =
        |field: usize| fields[field].filter(|n| n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(n));
    let mark = |field: usize| mark(field).map(|n| n as u32);
    let whole = |n: f64, most: u64| (0.0..=most as f64).contains(&n).then(|| n.ceil() as u64);
    let status = match mark(10) {
        Some(0) => Status::Failed,
        Some(1) => Status::Completed,
        // Parts of a job that was interrupted; the whole has a line of its own (the standard on status 2 to 4).
        Some(2..=4) => {
            repairs.parts += 1;
            return None;
        }
        Some(5) => Status::Cancelled,
        _ => Status::Unknown,
    };
    let job = Job {
        number: number.max(0.0) as u64,
        submit_s: *submit as u64,
        // Parts of a second count as one: what ran, ran for a time.
        run_s: run.max(0.0).ceil() as u64,
        request_s: request.max(0.0).ceil() as u64,
        processors: given.max(0.0) as u32,
        requested_processors: Some(processors.max(0.0) as u32).filter(|count| *count > 0),
        waited_s: (0.0..=SECONDS_MAX as f64).contains(wait).then_some(*wait as u64),
        cpu_s: whole(*cpu, SECONDS_MAX),
        used_memory_kib: whole(*used, KIB_MAX),
        requested_memory_kib: fields[9].and_then(|n| whole(n, KIB_MAX)),
        status,
        user: mark(11),
        group: mark(12),
        executable: mark(13),
        queue: mark(14),
        partition: mark(15),
        preceding: fields[16].and_then(|n| whole(n, NUMBER_MAX)),
        think_s: fields[17].and_then(|n| whole(n, SECONDS_MAX)),
        ..Job::default()
    };
    job.settle(repairs)
}

/// Writes a log. Names other than those of queues and partitions, accounts and nodes have no place in it.
pub fn write(log: &Log, mut to: impl Write) -> io::Result<()> {
    to.write_all(log.header.comments(&log.names, ';').as_bytes())?;
    for job in &log.jobs {
        let status = match job.status {
            Status::Unknown => -1,
            Status::Completed => 1,
            Status::Cancelled => 5,
            Status::Failed | Status::Timeout | Status::NodeFail | Status::OutOfMemory | Status::Preempted => {
                0
            }
        };
        writeln!(
            to,
            "{} {} {} {} {} {} {} {} {} {} {status} {} {} {} {} {} {} {}",
            job.number,
            job.submit_s,
            or_none(job.waited_s),
            job.ran_s(),
            job.processors,
            or_none(job.cpu_s),
            or_none(job.used_memory_kib),
            or_none(job.requested_processors),
            or_none(job.asked.then_some(job.request_s)),
            or_none(job.requested_memory_kib),
            or_none(job.user),
            or_none(job.group),
            or_none(job.executable),
            or_none(job.queue),
            or_none(job.partition),
            or_none(job.preceding),
            or_none(job.think_s),
        )?;
    }
    Ok(())
}

fn or_none<T: Into<u64>>(value: Option<T>) -> i64 {
    value.map_or(-1, |value| value.into() as i64)
}
