//! What Slurm's `sacct` tells: `--parsable2` and `--parsable` here, `--json` in [`json`].

mod bars;
pub mod json;
mod values;

use crate::lines::Lines;
use crate::names::Interned;
use crate::table::{JOBS_MAX, Job, KIB_MAX, Log, NUMBER_MAX, Names};
use crate::{Format, LogError, finish};
use std::io::BufRead;
use values::Memory;

/// What stands between columns: as `--parsable` has it, and others that people choose.
const SEPARATORS: [char; 4] = ['|', '\t', ';', ','];

/// The columns that are read, in small letters. Of two that say the same the first counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Column {
    JobId,
    JobIdRaw,
    Submit,
    Start,
    End,
    Elapsed,
    ElapsedRaw,
    Limit,
    LimitRaw,
    State,
    GivenCpus,
    RequestedCpus,
    GivenResources,
    RequestedResources,
    RequestedMemory,
    Nodes,
    NodeList,
    User,
    Uid,
    Group,
    Gid,
    Account,
    Partition,
    Qos,
    JobName,
    CpuTime,
}

const COLUMNS: [(&str, Column); 29] = [
    ("jobid", Column::JobId),
    ("jobidraw", Column::JobIdRaw),
    ("submit", Column::Submit),
    ("start", Column::Start),
    ("end", Column::End),
    ("elapsed", Column::Elapsed),
    ("elapsedraw", Column::ElapsedRaw),
    ("timelimit", Column::Limit),
    ("timelimitraw", Column::LimitRaw),
    ("state", Column::State),
    ("alloccpus", Column::GivenCpus),
    ("ncpus", Column::GivenCpus),
    ("reqcpus", Column::RequestedCpus),
    ("alloctres", Column::GivenResources),
    ("reqtres", Column::RequestedResources),
    ("reqmem", Column::RequestedMemory),
    ("nnodes", Column::Nodes),
    ("allocnodes", Column::Nodes),
    ("nodelist", Column::NodeList),
    ("user", Column::User),
    ("uid", Column::Uid),
    ("group", Column::Group),
    ("gid", Column::Gid),
    ("account", Column::Account),
    ("partition", Column::Partition),
    ("qos", Column::Qos),
    ("qosname", Column::Qos),
    ("jobname", Column::JobName),
    ("totalcpu", Column::CpuTime),
];

/// What separates the columns of a line that names them.
pub(crate) fn separator(line: &str) -> Option<char> {
    let is_id = |name: &str| matches!(name.trim(), "JobID" | "JobIDRaw");
    SEPARATORS.into_iter().find(|separator| line.contains(*separator) && line.split(*separator).any(is_id))
}

/// A job as either kind of output has it. Times are seconds since 1970.
#[derive(Default)]
struct Record<'a> {
    number: Option<u64>,
    state: &'a str,
    submit_s: Option<u64>,
    start_s: Option<u64>,
    end_s: Option<u64>,
    elapsed_s: Option<u64>,
    limit_s: Option<u64>,
    given: Option<u32>,
    requested: Option<u32>,
    nodes: Option<u32>,
    memory: Option<Memory>,
    cpu_s: Option<u64>,
    user: &'a str,
    group: &'a str,
    account: &'a str,
    partition: &'a str,
    queue: &'a str,
    name: &'a str,
    node_list: &'a str,
}

/// Collects records.
#[derive(Default)]
struct Table {
    log: Log,
    users: Interned,
    groups: Interned,
    executables: Interned,
    queues: Interned,
    partitions: Interned,
    accounts: Interned,
    node_lists: Interned,
}

impl Table {
    fn add(&mut self, record: &Record<'_>) -> Result<(), LogError> {
        if self.log.jobs.len() == JOBS_MAX {
            return Err(LogError::TooManyJobs);
        }
        let repairs = &mut self.log.repairs;
        let Some(status) = values::status(record.state) else {
            repairs.unfinished += 1;
            return Ok(());
        };
        let number = record.number.filter(|number| *number <= NUMBER_MAX);
        let (Some(number), Some(submit_s)) = (number, record.submit_s) else {
            repairs.unreadable += 1;
            return Ok(());
        };
        let between = record.end_s.zip(record.start_s).map(|(end, start)| end.saturating_sub(start));
        let waited_s = record.start_s.and_then(|start| start.checked_sub(submit_s));
        let processors = record.given.or(record.requested).unwrap_or(0);
        let each = |total: u64, of: u32| total.div_ceil(u64::from(of.max(1)));
        let requested_memory_kib = record.memory.map(|memory| match memory {
            Memory::Processor(kib) => kib,
            Memory::Job(kib) => each(kib, record.requested.unwrap_or(processors)),
            Memory::Node(kib) => each(kib.saturating_mul(record.nodes.unwrap_or(1).into()), processors),
        });
        let requested_memory_kib = requested_memory_kib.filter(|kib| *kib <= KIB_MAX);
        let job = Job {
            number,
            submit_s,
            run_s: record.elapsed_s.or(between).unwrap_or(0),
            request_s: record.limit_s.unwrap_or(0),
            processors: record.given.unwrap_or(0),
            requested_processors: record.requested,
            waited_s,
            status,
            requested_memory_kib,
            cpu_s: record.cpu_s.map(|total| each(total, processors)),
            nodes: record.nodes,
            ..Job::default()
        };
        let Some(job) = job.settle(repairs) else { return Ok(()) };
        repairs.early_start += u64::from(record.start_s.is_some() && waited_s.is_none());
        let none = ["None assigned", "(null)", "None"];
        self.log.jobs.push(Job {
            user: self.users.number(record.user),
            group: self.groups.number(record.group),
            executable: self.executables.number(record.name),
            queue: self.queues.number(record.queue),
            partition: self.partitions.number(record.partition),
            account: self.accounts.number(record.account),
            node_list: match none.contains(&record.node_list) {
                true => None,
                false => self.node_lists.number(record.node_list),
            },
            ..job
        });
        Ok(())
    }

    /// Times become those since the first submission.
    fn finish(mut self, format: Format) -> Result<Log, LogError> {
        let first = self.log.jobs.iter().map(|job| job.submit_s).min().unwrap_or(0);
        self.log.jobs.iter_mut().for_each(|job| job.submit_s -= first);
        self.log.header.unix_start_s = Some(first);
        self.log.names = Names {
            users: self.users.named(),
            groups: self.groups.named(),
            executables: self.executables.named(),
            queues: self.queues.named(),
            partitions: self.partitions.named(),
            accounts: self.accounts.named(),
            node_lists: self.node_lists.named(),
        };
        finish(self.log, format)
    }
}

/// Where each column stands.
struct Columns {
    separator: char,
    count: usize,
    /// Those that may have separators in them, in ascending order.
    free: Vec<usize>,
    at: Vec<(Column, usize)>,
}

impl Columns {
    fn of(line: &str, number: u64) -> Result<Columns, LogError> {
        let separator = separator(line).unwrap_or(SEPARATORS[0]);
        let (mut at, mut free): (Vec<(Column, usize)>, _) = (Vec::new(), Vec::new());
        let mut count = 0;
        for (place, name) in line.split(separator).enumerate() {
            count = place + 1;
            let name = name.trim().to_ascii_lowercase();
            free.extend(bars::is_free(&name).then_some(place));
            let known = COLUMNS.iter().find(|(known, _)| *known == name).map(|(_, column)| *column);
            at.extend(
                known.filter(|known| at.iter().all(|(other, _)| other != known)).map(|known| (known, place)),
            );
        }
        let columns = Columns { separator, count, free, at };
        let missing = columns.missing();
        if missing.is_empty() {
            Ok(columns)
        } else {
            Err(LogError::NoColumns { line: number, format: Format::Sacct, missing })
        }
    }

    fn has(&self, columns: &[Column]) -> bool {
        self.at.iter().any(|(column, _)| columns.contains(column))
    }

    fn missing(&self) -> Vec<&'static str> {
        use Column::{
            Elapsed, ElapsedRaw, End, GivenCpus, GivenResources, JobId, JobIdRaw, RequestedCpus,
            RequestedResources, Start, Submit,
        };
        let run = self.has(&[Elapsed, ElapsedRaw]) || (self.has(&[Start]) && self.has(&[End]));
        let cpus = self.has(&[GivenCpus, RequestedCpus, GivenResources, RequestedResources]);
        let needed = [
            (self.has(&[JobId, JobIdRaw]), "which job it is (JobID)"),
            (self.has(&[Submit]), "when it was submitted (Submit)"),
            (run, "how long it ran (ElapsedRaw, Elapsed, or Start and End)"),
            (cpus, "how many processors it had (AllocCPUS, NCPUS, AllocTRES, ReqCPUS)"),
        ];
        needed.into_iter().filter(|(there, _)| !there).map(|(_, words)| words).collect()
    }
}

/// The fields of a line, by column.
struct Row<'a> {
    columns: &'a Columns,
    line: &'a str,
    fields: &'a [&'a str],
    /// Separators in each of the columns that may have some.
    shares: &'a [usize],
}

impl<'a> Row<'a> {
    fn get(&self, column: Column) -> &'a str {
        let at = self.columns.at.iter().find(|(of, _)| *of == column).map(|(_, at)| *at);
        let Some(at) = at else { return "" };
        let shares = || self.columns.free.iter().zip(self.shares);
        let shift: usize = shares().filter(|(free, _)| **free < at).map(|(_, share)| share).sum();
        let own = shares().find(|(free, _)| **free == at).map_or(0, |(_, share)| *share);
        let Some(fields) = self.fields.get(at + shift..=at + shift + own) else { return "" };
        let Some((first, more)) = fields.split_first() else { return "" };
        // Fields are parts of the line, one separator from each other.
        let from = first.as_ptr() as usize - self.line.as_ptr() as usize;
        let size = first.len()
            + more.iter().map(|field| self.columns.separator.len_utf8() + field.len()).sum::<usize>();
        self.line[from..from + size].trim()
    }

    /// The first of them that says something.
    fn either(&self, one: Column, other: Column) -> &'a str {
        match self.get(one) {
            "" => self.get(other),
            word => word,
        }
    }

    fn record(&self) -> Record<'a> {
        use values::{count, duration, limit, limit_raw, memory, resource, time};
        let number = |word: &str| {
            let digits = word.bytes().take_while(u8::is_ascii_digit).count();
            word[..digits].parse().ok()
        };
        let resources = |column: Column, name: &str| resource(self.get(column), name);
        let given = count(self.get(Column::GivenCpus));
        let requested = count(self.get(Column::RequestedCpus));
        let asked = memory(self.get(Column::RequestedMemory));
        let plain = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?;
        Record {
            number: number(self.either(Column::JobIdRaw, Column::JobId)),
            state: self.get(Column::State),
            submit_s: time(self.get(Column::Submit)),
            start_s: time(self.get(Column::Start)),
            end_s: time(self.get(Column::End)),
            elapsed_s: plain(self.get(Column::ElapsedRaw))
                .filter(|seconds| *seconds <= crate::SECONDS_MAX)
                .or_else(|| duration(self.get(Column::Elapsed))),
            limit_s: limit_raw(self.get(Column::LimitRaw)).or_else(|| limit(self.get(Column::Limit))),
            given: given.or_else(|| resources(Column::GivenResources, "cpu").and_then(count)),
            requested: requested.or_else(|| resources(Column::RequestedResources, "cpu").and_then(count)),
            nodes: count(self.get(Column::Nodes))
                .or_else(|| resources(Column::GivenResources, "node").and_then(count)),
            memory: asked.or_else(|| resources(Column::RequestedResources, "mem").and_then(memory)),
            cpu_s: duration(self.get(Column::CpuTime)),
            user: self.either(Column::User, Column::Uid),
            group: self.either(Column::Group, Column::Gid),
            account: self.get(Column::Account),
            partition: self.get(Column::Partition),
            queue: self.get(Column::Qos),
            name: self.get(Column::JobName),
            node_list: self.get(Column::NodeList),
        }
    }
}

/// Reads what `sacct --parsable2` wrote, also several files one behind the other.
pub fn read(from: impl BufRead, jobs_max: usize) -> Result<Log, LogError> {
    let (mut table, mut columns) = (Table::default(), None);
    let mut lines = Lines::new(from, Format::Sacct);
    while table.log.jobs.len() < jobs_max {
        let number = lines.line + 1;
        let Some(line) = lines.next()? else { break };
        let line = line.trim_start_matches('\u{feff}');
        if line.trim().is_empty() {
            continue;
        }
        let columns = match &columns {
            Some(known) if !is_head(line, known) => known,
            _ => {
                columns = Some(Columns::of(line, number)?);
                continue;
            }
        };
        let fields: Vec<&str> = line.split(columns.separator).collect();
        let shares = bars::shares(columns, &fields);
        let row = Row { columns, line, fields: &fields, shares: &shares };
        if row.either(Column::JobId, Column::JobIdRaw).contains('.') {
            table.log.repairs.steps += 1;
            continue;
        }
        table.log.repairs.odd_length += u64::from(fields.len() != columns.count);
        table.add(&row.record())?;
    }
    table.log.repairs.not_utf8 = lines.not_utf8;
    table.finish(Format::Sacct)
}

/// Names of columns once more.
fn is_head(line: &str, columns: &Columns) -> bool {
    line.split(columns.separator).any(|field| matches!(field, "JobID" | "JobIDRaw"))
        && line.contains("Submit")
}
