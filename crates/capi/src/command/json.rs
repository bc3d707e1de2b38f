//! Results for programs in the words of NORNS; the rest is `tidepool_stage_client::json`.

use crate::exit::Failure;
use crate::show;
use serde_json::{Value, json};
use tidepool_stage_client::json::code_name;
use tidepool_stage_client::{DataspaceInfo, JobSpec, Leftover};

pub fn failure(failure: &Failure) -> Value {
    let code = failure.code();
    json!({ "error": { "code": code.0, "name": code_name(code), "detail": failure.to_string() } })
}

pub fn dataspaces(all: &[DataspaceInfo]) -> Value {
    let one = |info: &DataspaceInfo| {
        json!({
            "nsid": info.dataspace.name,
            "type": show::kind(info.dataspace.kind),
            "mount": info.dataspace.mount,
            "tracked": info.dataspace.tracked,
            "capacity": info.dataspace.capacity,
            "streams_max": info.dataspace.streams_max,
            "bandwidth": info.dataspace.bandwidth,
            "quota": info.quota,
            "used": info.used,
        })
    };
    json!({ "namespaces": all.iter().map(one).collect::<Vec<_>>() })
}

pub fn leftovers(entries: &[Leftover], more: bool) -> Value {
    let one = |entry: &Leftover| {
        json!({
            "nsid": entry.dataspace,
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
        let limits: Vec<Value> =
            job.limits.iter().map(|l| json!({ "nsid": l.dataspace, "quota": l.quota })).collect();
        json!({ "job": job.id, "hosts": job.hosts, "limits": limits, "bandwidth": job.bandwidth })
    };
    json!({ "jobs": jobs.iter().map(one).collect::<Vec<_>>() })
}
