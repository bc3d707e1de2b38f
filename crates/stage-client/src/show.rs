//! Results for people: what the commands `tidepool stage` and `nornsctl` print.

use crate::words::{KINDS, POLICIES, STATES, word};
use tidepool_types::{format_size, show_bytes};
use tidepool_wire::stager::{
    Code, DataspaceInfo, DataspaceKind, JobLimit, JobReport, JobSpec, Leftover, Op, PairReport, Persisted,
    Plan, Policy, StagerStatus, TaskPhase, TaskState, TaskStatus,
};

/// A name with control characters must not drive the reader's terminal.
fn harmless(text: &str) -> String {
    show_bytes(text.as_bytes())
}

/// Rows with columns as wide as their longest cell; the first row is the head.
pub fn table<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) -> String {
    let head = head.map(str::to_string);
    let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(|cell| harmless(&cell))).collect();
    let mut widths = [0; N];
    for row in std::iter::once(&head).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    std::iter::once(&head).chain(&rows).map(line).collect()
}

/// Names and values below each other.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        format!("{name:<width$}  {}", harmless(value)).trim_end().to_string() + "\n"
    };
    rows.iter().filter(|(_, value)| !value.is_empty()).map(line).collect()
}

pub fn limit(bytes: u64) -> String {
    if bytes == 0 { "-".into() } else { format_size(bytes) }
}

pub fn per_second(bytes: u64) -> String {
    if bytes == 0 { "-".into() } else { format!("{}/s", format_size(bytes)) }
}

pub fn duration(ms: u64) -> String {
    match ms / 1000 {
        0..60 => format!("{:.1} s", ms as f64 / 1000.0),
        seconds @ 60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

pub fn state(state: TaskState) -> &'static str {
    word(&STATES, state)
}

/// The state, but of a pending task that is held just that.
pub fn standing(status: &TaskStatus) -> &'static str {
    if is_held(status) { phase(TaskPhase::Held) } else { state(status.state) }
}

/// It waits for the release of its job.
pub fn is_held(status: &TaskStatus) -> bool {
    status.phase == TaskPhase::Held
}

pub fn policy(policy: Policy) -> &'static str {
    word(&POLICIES, policy)
}

pub fn kind(kind: DataspaceKind) -> &'static str {
    word(&KINDS, kind)
}

pub fn op(op: Op) -> &'static str {
    match op {
        Op::Copy => "copy",
        Op::Move => "move",
        Op::Remove => "remove",
        Op::Permit => "permit",
    }
}

pub fn phase(phase: TaskPhase) -> &'static str {
    match phase {
        TaskPhase::Queued => "queued",
        TaskPhase::Walking => "walking",
        TaskPhase::Copying => "copying",
        TaskPhase::Finishing => "finishing",
        TaskPhase::Removing => "removing",
        TaskPhase::Ended => "ended",
        TaskPhase::Held => "held",
    }
}

/// As the stager says while the task runs, so that it moves while bytes are copied as well as while they are verified; else of
/// the bytes, or of the files where there are no bytes. None until all are known; 100 for what has finished only.
pub fn percent(status: &TaskStatus) -> Option<u8> {
    let of = |done: u64, total: u64| (u128::from(done) * 100 / u128::from(total)).min(99) as u8;
    match status {
        TaskStatus { state: TaskState::Finished, .. } => Some(100),
        TaskStatus { percent: Some(percent), .. } => Some((*percent).min(99)),
        TaskStatus { total_known: false, .. } => None,
        TaskStatus { bytes_total: 1.., .. } => Some(of(status.bytes_done, status.bytes_total)),
        TaskStatus { files_total: 1.., .. } => Some(of(status.files_done, status.files_total)),
        _ => None,
    }
}

pub fn daemon(status: &StagerStatus) -> String {
    pairs(&[
        ("node", status.node.clone()),
        ("new tasks", if status.paused { "refused (paused)" } else { "accepted" }.into()),
        ("pending", status.pending.to_string()),
        ("running", format!("{} (at most {})", status.running, status.workers)),
        ("ended", status.ended.to_string()),
        ("moved", format!("{} of what runs", format_size(status.bytes_done))),
        ("rate", per_second(status.rate)),
        ("time left", status.eta_ms.map_or("unknown".into(), duration)),
        ("order", policy(status.policy).into()),
    ])
}

/// `mount` of pools and object stores included.
pub fn dataspaces(all: &[DataspaceInfo]) -> String {
    let row = |info: &DataspaceInfo| {
        let space = &info.dataspace;
        let tracked = if space.tracked { "yes" } else { "no" }.to_string();
        let (name, kind, mount) = (space.name.clone(), kind(space.kind).to_string(), space.mount.clone());
        let (capacity, rate) = (limit(space.capacity), per_second(space.bandwidth));
        [name, kind, mount, tracked, capacity, rate, limit(info.quota), format_size(info.used)]
    };
    let head = ["DATASPACE", "KIND", "MOUNT", "TRACKED", "CAPACITY", "BANDWIDTH", "QUOTA", "USED"];
    table(head, all.iter().map(row).collect())
}

/// `today` in seconds since 1970.
pub fn persisted(all: &[Persisted], today: u64) -> String {
    let row = |location: &Persisted| {
        let place = format!("{}{}", location.dataspace, show_bytes(&location.path));
        let readers: Vec<String> = location.shared.iter().map(u32::to_string).collect();
        let expires = match location.expires {
            0 => "never".into(),
            at if at <= today => "now".into(),
            at => format!("in {}", duration((at - today) * 1000)),
        };
        [place, location.owner.to_string(), readers.join(","), expires]
    };
    table(["LOCATION", "OWNER", "SHARED WITH", "EXPIRES"], all.iter().map(row).collect())
}

pub fn leftovers(entries: &[Leftover], more: bool) -> String {
    let line = |entry: &Leftover| {
        let (path, slash) = (show_bytes(&entry.path), if entry.directory { "/" } else { "" });
        format!("{}{path}{slash}  {}\n", entry.dataspace, format_size(entry.size))
    };
    let mut text: String = entries.iter().map(line).collect();
    if more {
        text.push_str("... and more\n");
    }
    text
}

pub fn jobs(jobs: &[JobSpec]) -> String {
    let row = |job: &JobSpec| {
        let limit_of = |l: &JobLimit| match l.quota {
            0 => l.dataspace.clone(),
            quota => format!("{}={}", l.dataspace, format_size(quota)),
        };
        let limits: Vec<String> = job.limits.iter().map(limit_of).collect();
        [job.id.to_string(), job.hosts.join(","), limits.join(" "), per_second(job.bandwidth)]
    };
    table(["JOB", "HOSTS", "LIMITS", "BANDWIDTH"], jobs.iter().map(row).collect())
}

pub fn report(report: &JobReport) -> String {
    let mut text = pairs(&[
        ("job", report.job.to_string()),
        ("tasks", format!("{} ended, {} of them failed", report.tasks, report.failed)),
        ("moved", format!("{} in {} files", format_size(report.bytes), report.files)),
        ("busy", duration(report.busy_ms)),
    ]);
    let row = |pair: &PairReport| {
        let ends = [pair.from.clone(), pair.to.clone()];
        let [from, to] = ends;
        [from, to, format_size(pair.bytes), pair.files.to_string(), duration(pair.busy_ms)]
    };
    if !report.pairs.is_empty() {
        let rows = report.pairs.iter().map(row).collect();
        text.push_str(&table(["FROM", "TO", "BYTES", "FILES", "BUSY"], rows));
    }
    text
}

/// The reason of a failure in one line.
pub fn reason(status: &TaskStatus) -> String {
    if status.refusal.code == Code::SUCCESS { String::new() } else { status.refusal.to_string() }
}

pub fn moved(status: &TaskStatus) -> String {
    let least = if status.total_known { "" } else { "at least " };
    format!("{} of {least}{}", format_size(status.bytes_done), format_size(status.bytes_total))
}

pub fn task(status: &TaskStatus) -> String {
    let files = format!("{} of {}", status.files_done, status.files_total);
    let running = status.state == TaskState::Running;
    pairs(&[
        ("task", status.id.to_string()),
        ("state", state(status.state).into()),
        ("operation", op(status.op).into()),
        ("source", status.src.clone()),
        ("destination", status.dst.clone()),
        ("phase", if running || is_held(status) { phase(status.phase).into() } else { String::new() }),
        ("bytes", moved(status)),
        ("files", files),
        ("rate", if running { per_second(status.rate) } else { String::new() }),
        ("time left", status.eta_ms.filter(|_| running).map(duration).unwrap_or_default()),
        ("age", duration(status.age_ms)),
        ("job", if status.job == 0 { String::new() } else { status.job.to_string() }),
        ("user", status.uid.to_string()),
        ("error", reason(status)),
    ])
}

pub fn tasks(all: &[TaskStatus]) -> String {
    let row = |status: &TaskStatus| {
        let (id, state, op) =
            (status.id.to_string(), standing(status).to_string(), op(status.op).to_string());
        [id, state, op, status.src.clone(), status.dst.clone(), moved(status), reason(status)]
    };
    let head = ["TASK", "STATE", "OPERATION", "SOURCE", "DESTINATION", "BYTES", "ERROR"];
    table(head, all.iter().map(row).collect())
}

pub fn plan(plan: &Plan) -> String {
    let mut text = pairs(&[
        ("files", plan.files.to_string()),
        ("directories", plan.dirs.to_string()),
        ("bytes", format_size(plan.bytes)),
        ("free there", plan.free.map_or("unknown".into(), format_size)),
        ("quota left", plan.quota_left.map_or("no limit".into(), format_size)),
        ("will take", plan.estimate_ms.map_or("unknown".into(), duration)),
    ]);
    for problem in &plan.problems {
        text.push_str(&format!("problem: {problem}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_pairs_line_up() {
        let rows = vec![["ccc".to_string(), "d".into()]];
        assert_eq!(table(["a", "bb"], rows), "a    bb\nccc  d\n");
        assert_eq!(table(["a"], vec![["\x1b[2J".to_string()]]), "a\n\\u{1b}[2J\n");
        let some = [("a", "1".to_string()), ("bbb", "2".into()), ("none", String::new())];
        assert_eq!(pairs(&some), "a     1\nbbb   2\n");
        assert_eq!((duration(1500), duration(125_000)), ("1.5 s".into(), "2 min 05 s".into()));
        assert_eq!((duration(7_260_000), duration(176_400_000)), ("2 h 01 min".into(), "2 d 01 h".into()));
    }
}
