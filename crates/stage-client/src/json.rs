//! Results for programs. Sizes are bytes, times milliseconds; a name that is no UTF-8 text is shown as near as that can be.

use crate::show;
use serde_json::{Value, json};
use tidepool_wire::stager::{
    Code, DataspaceInfo, JobLimit, JobReport, JobSpec, Leftover, Persisted, Plan, Refusal, StagerStatus,
    TaskStatus,
};

/// `NORNS_ENOSUCHTASK`.
pub fn code_name(code: Code) -> Option<String> {
    let found = Code::ALL.iter().find(|(number, _, _)| *number == code.0);
    found.map(|(_, name, _)| format!("NORNS_{name}"))
}

pub fn refusal(refusal: &Refusal) -> Value {
    json!({
        "code": refusal.code.0,
        "name": code_name(refusal.code),
        "errno": refusal.errno,
        "detail": refusal.to_string(),
    })
}

pub fn daemon(status: &StagerStatus) -> Value {
    let counters: serde_json::Map<String, Value> =
        status.counters.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
    json!({
        "node": status.node,
        "pending": status.pending,
        "running": status.running,
        "ended": status.ended,
        "eta_ms": status.eta_ms,
        "bytes_done": status.bytes_done,
        "rate": status.rate,
        "paused": status.paused,
        "policy": show::policy(status.policy),
        "workers": status.workers,
        "counters": counters,
    })
}

pub fn task(status: &TaskStatus) -> Value {
    let error = (status.refusal.code != Code::SUCCESS).then(|| refusal(&status.refusal));
    json!({
        "id": status.id,
        "op": show::op(status.op),
        "state": show::state(status.state),
        "phase": show::phase(status.phase),
        "error": error,
        "job": status.job,
        "uid": status.uid,
        "source": status.src,
        "destination": status.dst,
        "bytes_done": status.bytes_done,
        "bytes_total": status.bytes_total,
        "files_done": status.files_done,
        "files_total": status.files_total,
        "total_known": status.total_known,
        "percent": show::percent(status),
        "rate": status.rate,
        "eta_ms": status.eta_ms,
        "age_ms": status.age_ms,
    })
}

pub fn tasks(all: &[TaskStatus]) -> Value {
    json!({ "tasks": all.iter().map(task).collect::<Vec<_>>() })
}

pub fn dataspaces(all: &[DataspaceInfo]) -> Value {
    let one = |info: &DataspaceInfo| {
        json!({
            "name": info.dataspace.name,
            "kind": show::kind(info.dataspace.kind),
            "mount": info.dataspace.mount,
            "tracked": info.dataspace.tracked,
            "capacity": info.dataspace.capacity,
            "streams_max": info.dataspace.streams_max,
            "bandwidth": info.dataspace.bandwidth,
            "quota": info.quota,
            "used": info.used,
        })
    };
    json!({ "dataspaces": all.iter().map(one).collect::<Vec<_>>() })
}

pub fn leftovers(entries: &[Leftover], more: bool) -> Value {
    let one = |entry: &Leftover| {
        json!({
            "dataspace": entry.dataspace,
            "path": String::from_utf8_lossy(&entry.path),
            "directory": entry.directory,
            "size": entry.size,
            "uid": entry.uid,
        })
    };
    json!({ "leftovers": entries.iter().map(one).collect::<Vec<_>>(), "more": more })
}

pub fn jobs(jobs: &[JobSpec]) -> Value {
    let one = |job: &JobSpec| {
        let limit = |limit: &JobLimit| json!({ "dataspace": limit.dataspace, "quota": limit.quota });
        let limits: Vec<Value> = job.limits.iter().map(limit).collect();
        json!({ "job": job.id, "hosts": job.hosts, "limits": limits, "bandwidth": job.bandwidth })
    };
    json!({ "jobs": jobs.iter().map(one).collect::<Vec<_>>() })
}

/// `expires` in seconds since 1970; null for never.
pub fn persisted(all: &[Persisted]) -> Value {
    let one = |location: &Persisted| {
        json!({
            "dataspace": location.dataspace,
            "path": String::from_utf8_lossy(&location.path),
            "owner": location.owner,
            "shared": location.shared,
            "expires": (location.expires != 0).then_some(location.expires),
        })
    };
    json!({ "locations": all.iter().map(one).collect::<Vec<_>>() })
}

pub fn report(report: &JobReport) -> Value {
    let pairs: Vec<Value> = report
        .pairs
        .iter()
        .map(|pair| {
            json!({ "from": pair.from, "to": pair.to, "bytes": pair.bytes, "files": pair.files, "busy_ms": pair.busy_ms })
        })
        .collect();
    json!({
        "job": report.job,
        "tasks": report.tasks,
        "failed": report.failed,
        "bytes": report.bytes,
        "files": report.files,
        "busy_ms": report.busy_ms,
        "pairs": pairs,
    })
}

pub fn plan(plan: &Plan) -> Value {
    json!({
        "files": plan.files,
        "dirs": plan.dirs,
        "bytes": plan.bytes,
        "free": plan.free,
        "quota_left": plan.quota_left,
        "estimate_ms": plan.estimate_ms,
        "problems": plan.problems,
    })
}
