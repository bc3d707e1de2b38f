//! What is known of jobs and workflows, for people and programs: `tidepool slurm jobs`, `tidepool slurm report`,
//! `tidepool workflow`.

use super::keeper;
use super::scontrol;
use super::site::Site;
use crate::exit::{Failure, Kind, Result};
use crate::output::{rate, table};
use crate::page::{escape, page};
use serde_json::{Value, json};
use tidepool_batch::{Book, BookError, Job, LastingPool, Phase, State};
use tidepool_types::format_size;

/// Answers a question in JSON, from the book.
pub fn answer(book: &Book, words: &[&str]) -> Result<Value> {
    let fail = |error: BookError| Failure::new(Kind::Refused, error.to_string());
    match words {
        ["jobs"] => Ok(json!(in_order(book, false).map_err(fail)?)),
        ["jobs-all"] => Ok(json!(in_order(book, true).map_err(fail)?)),
        ["job", id] => {
            let id = number(id)?;
            Ok(json!({
                "job": book.job(id).map_err(fail)?,
                "events": book.events(id).map_err(fail)?,
                "transfers": book.transfers(id).map_err(fail)?,
            }))
        }
        ["pools"] => {
            let all = book.pools().map_err(fail)?;
            all.iter().map(|found| pool(book, found)).collect::<Result<Vec<Value>>>().map(Value::from)
        }
        ["kept"] => Ok(json!(book.locations().map_err(fail)?)),
        ["workflow", id] => workflow(book, number(id)?),
        ["workflows"] => {
            let ids = book.workflows().map_err(fail)?;
            ids.into_iter().map(|id| workflow(book, id)).collect::<Result<Vec<Value>>>().map(Value::from)
        }
        _ => Err(Failure::new(
            Kind::Usage,
            "known are: jobs, jobs-all, job ID, kept, pools, workflow ID, workflows",
        )),
    }
}

/// Jobs whose results wait on nodes first, and always: nobody else does anything about them. Then the others, by number.
fn in_order(book: &Book, all: bool) -> std::result::Result<Vec<Job>, BookError> {
    let (mut jobs, others): (Vec<Job>, Vec<Job>) =
        book.jobs(true)?.into_iter().partition(|job| job.phase == Phase::StageOutFailed);
    jobs.extend(others.into_iter().filter(|job| all || !job.phase.is_final()));
    Ok(jobs)
}

/// A pool that outlives its jobs, with those that use it or will.
fn pool(book: &Book, pool: &LastingPool) -> Result<Value> {
    let fail = |error: BookError| Failure::new(Kind::Refused, error.to_string());
    let mut told = json!(pool);
    let users = book.pool_users(pool.pool).map_err(fail)?;
    told["lifetime"] = json!(if pool.workflow.is_some() { "workflow" } else { "campaign" });
    told["jobs"] = json!(users.iter().map(|user| user.job).collect::<Vec<_>>());
    told["in_use"] = json!(users.iter().any(|user| user.is_active()));
    Ok(told)
}

fn number(word: &str) -> Result<u32> {
    word.parse().map_err(|_| Failure::new(Kind::Usage, format!("'{word}' is no job's number")))
}

fn workflow(book: &Book, id: u32) -> Result<Value> {
    let fail = |error: BookError| Failure::new(Kind::Refused, error.to_string());
    // The number of any of its jobs will do.
    let id = book.job(id).ok().and_then(|job| job.workflow).unwrap_or(id);
    let found = book.workflow(id).map_err(fail)?;
    let whole = found.ok_or_else(|| Failure::new(Kind::Refused, format!("there is no workflow {id}")))?;
    let mut jobs = Vec::new();
    for step in &whole.steps {
        let job = book.job(step.job).map_err(fail)?;
        let moved = |way: &str| -> Result<u64> {
            let transfers = book.transfers(step.job).map_err(fail)?;
            Ok(transfers.iter().filter(|transfer| transfer.way == way).map(|transfer| transfer.bytes).sum())
        };
        jobs.push(json!({
            "job": step.job, "phase": step.phase, "reason": job.reason, "after": step.after, "end": step.is_end,
            "nodes": job.nodes, "bytes_in": moved("in")?, "bytes_out": moved("out")?,
        }));
    }
    let of_these = |job: u32| whole.steps.iter().any(|step| step.job == job);
    let locations: Vec<_> =
        book.locations().map_err(fail)?.into_iter().filter(|location| of_these(location.job)).collect();
    let pools = book.pools().map_err(fail)?;
    let pools: Vec<Value> = pools
        .iter()
        .filter(|pool| pool.workflow == Some(whole.id))
        .map(|found| pool(book, found))
        .collect::<Result<_>>()?;
    Ok(json!({
        "workflow": whole.id, "name": whole.name, "owner": whole.owner, "state": whole.state(), "jobs": jobs,
        "data": locations, "pools": pools,
    }))
}

/// The answer from the book, or, where only the controller has it, from the controller.
pub fn ask(site: Option<&Site>, words: &[&str]) -> Result<Value> {
    if let Some(site) = site {
        if let Some(told) = keeper::ask_as_keeper(site, words)? {
            return Ok(told);
        }
        if let Ok(book) = Book::open_read(&site.book()) {
            return answer(&book, words);
        }
    }
    let said = scontrol::bbstat(words)?;
    serde_json::from_str(said.trim()).map_err(|_| {
        let text = match said.trim() {
            "" => "the controller says nothing: is Tidepool's burst_buffer.lua installed there?".to_string(),
            text => text.to_string(),
        };
        Failure::new(Kind::Refused, text)
    })
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn names(value: &Value) -> String {
    let all: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    all.join(",")
}

pub fn jobs_table(jobs: &Value) -> String {
    let head = ["JOB", "PHASE", "WORKFLOW", "NODES", "STAGE-IN", "REASON"].map(String::from).to_vec();
    let row = |job: &Value| {
        let estimate = job["estimate_ms"].as_u64().map(tidepool_stage_client::show::duration);
        vec![
            job["job"].to_string(),
            text(job, "phase").into(),
            job["workflow"].as_u64().map(|id| id.to_string()).unwrap_or_default(),
            names(&job["nodes"]),
            estimate.unwrap_or_default(),
            text(job, "reason").into(),
        ]
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head).chain(jobs.as_array().into_iter().flatten().map(row)).collect();
    table(&rows)
}

/// A workflow as a tree: each job under the last of those that it comes after.
pub fn workflow_tree(whole: &Value) -> String {
    let name = text(whole, "name");
    let named = if name.is_empty() { String::new() } else { format!(" ({name})") };
    let mut out = format!("workflow {}{named}: {}\n", whole["workflow"], text(whole, "state"));
    let empty = Vec::new();
    let jobs = whole["jobs"].as_array().unwrap_or(&empty);
    let parent = |job: &Value| job["after"].as_array().and_then(|after| after.last()).and_then(Value::as_u64);
    let depth = |job: &Value| {
        let (mut depth, mut at) = (1, parent(job));
        while let Some(id) = at.filter(|_| depth <= jobs.len()) {
            depth += 1;
            at = jobs.iter().find(|other| other["job"] == id).and_then(parent);
        }
        depth
    };
    for job in jobs {
        let nodes = names(&job["nodes"]);
        let nodes = if nodes.is_empty() { nodes } else { format!(" on {nodes}") };
        let after: Vec<String> =
            job["after"].as_array().into_iter().flatten().map(Value::to_string).collect();
        let after = if after.is_empty() { String::new() } else { format!(", after {}", after.join(", ")) };
        let bytes = |key: &str, word: &str| match job[key].as_u64() {
            Some(bytes) if bytes > 0 => format!(", {} {word}", format_size(bytes)),
            _ => String::new(),
        };
        let reason = text(job, "reason");
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        out.push_str(&format!(
            "{}job {} {}{nodes}{after}{}{}{reason}\n",
            "  ".repeat(depth(job)),
            job["job"],
            text(job, "phase"),
            bytes("bytes_in", "in"),
            bytes("bytes_out", "out"),
        ));
    }
    for place in whole["data"].as_array().into_iter().flatten() {
        out.push_str(&format!(
            "  {} is kept on {} (job {})\n",
            text(place, "place"),
            text(place, "node"),
            place["job"]
        ));
    }
    for pool in whole["pools"].as_array().into_iter().flatten() {
        let nodes = names(&pool["nodes"]);
        let on = if nodes.is_empty() { String::new() } else { format!(" on {nodes}") };
        let end = match whole["state"] == json!(State::Failed) {
            true => format!("; 'tidepool slurm end-pool {}' removes it", pool["pool"]),
            false => String::new(),
        };
        out.push_str(&format!("  pool '{}' is {}{on}{end}\n", text(pool, "name"), text(pool, "state")));
    }
    out
}

/// Exit code of a look at a workflow: that of a failed task where it has failed.
pub fn workflow_failure(whole: &Value) -> Option<Failure> {
    (whole["state"] == json!(State::Failed))
        .then(|| Failure::new(Kind::TaskFailed, format!("workflow {} has failed", whole["workflow"])))
}

/// What the book knows of a job that is queued again is its attempt before.
fn phase_now(job: &Value) -> String {
    match job["queued_again"] == true {
        true => format!("queued again; its attempt before was {}", text(job, "phase")),
        false => text(job, "phase").to_string(),
    }
}

/// The report of one job, for people.
pub fn report_text(report: &Value) -> String {
    let job = &report["job"];
    let reason = text(job, "reason");
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let phase = phase_now(job);
    let mut out = format!("job {}: {phase}{reason}\nnodes: {}\n", job["job"], names(&job["nodes"]));
    let head =
        ["WAY", "NODE", "FROM", "TO", "STATE", "FILES", "BYTES", "RATE", "ERROR"].map(String::from).to_vec();
    let row = |transfer: &Value| {
        let number = |key: &str| transfer[key].as_u64().unwrap_or(0);
        vec![
            text(transfer, "way").into(),
            text(transfer, "node").into(),
            text(transfer, "source").into(),
            text(transfer, "destination").into(),
            text(transfer, "state").into(),
            number("files").to_string(),
            format_size(number("bytes")),
            rate(number("bytes"), number("ms") as f64 / 1000.0),
            text(transfer, "error").into(),
        ]
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head).chain(report["transfers"].as_array().into_iter().flatten().map(row)).collect();
    if rows.len() > 1 {
        out.push_str(&format!("\n{}", table(&rows)));
    }
    let first = report["events"][0]["at"].as_u64().unwrap_or(0);
    out.push('\n');
    for event in report["events"].as_array().into_iter().flatten() {
        let since = event["at"].as_u64().unwrap_or(first).saturating_sub(first);
        out.push_str(&format!("{since:>7} s  {}\n", text(event, "text")));
    }
    out
}

/// The report of one job as a page.
pub fn report_html(report: &Value) -> String {
    let job = &report["job"];
    let mut bars = String::new();
    let empty = Vec::new();
    let transfers = report["transfers"].as_array().unwrap_or(&empty);
    let most = transfers.iter().filter_map(|t| t["bytes"].as_u64()).max().unwrap_or(0).max(1);
    for transfer in transfers {
        let bytes = transfer["bytes"].as_u64().unwrap_or(0);
        let width = bytes * 100 / most;
        let class = if text(transfer, "error").is_empty() { text(transfer, "way") } else { "bad" };
        bars.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td><div class='bar {}' style='width:{}%'></div>{}</td><td>{}</td></tr>\n",
            escape(text(transfer, "way")),
            escape(text(transfer, "node")),
            escape(text(transfer, "source")),
            escape(text(transfer, "destination")),
            escape(text(transfer, "state")),
            escape(class),
            width,
            format_size(bytes),
            escape(text(transfer, "error")),
        ));
    }
    let first = report["events"][0]["at"].as_u64().unwrap_or(0);
    let mut events = String::new();
    for event in report["events"].as_array().into_iter().flatten() {
        let since = event["at"].as_u64().unwrap_or(first).saturating_sub(first);
        events.push_str(&format!("<tr><td>{since} s</td><td>{}</td></tr>\n", escape(text(event, "text"))));
    }
    let id = &job["job"];
    let body = format!(
        "<h1>Staging of job {id}: {phase}</h1>\n<p>{reason}</p>\n<p>Nodes: {nodes}</p>\n\
         <h2>Data</h2>\n<table><tr><th>way</th><th>node</th><th>from</th><th>to</th><th>state</th><th>bytes</th><th>error</th></tr>\n{bars}</table>\n\
         <h2>What happened</h2>\n<table>{events}</table>\n",
        phase = escape(&phase_now(job)),
        reason = escape(text(job, "reason")),
        nodes = escape(&names(&job["nodes"])),
    );
    page(&format!("Staging of job {id}"), STYLE, &body)
}

const STYLE: &str = ".bar{height:.6em;background:#3a7}.bar.in{background:#37a}.bar.bad{background:#b33}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_can_write_into_the_page() {
        let report = json!({"job": {"job": 4, "phase": "done", "nodes": []}, "events": [],
            "transfers": [{"way": "in", "source": "a://<script>'\"&", "bytes": 3, "error": ""}]});
        let page = report_html(&report);
        assert!(page.contains("a://&lt;script&gt;&#39;&quot;&amp;") && !page.contains("<script>"), "{page}");
    }

    #[test]
    fn trees_show_who_comes_after_whom() {
        let job = |id: u32, after: &[u32]| json!({"job": id, "phase": "done", "after": after, "nodes": ["n1"], "bytes_in": 1024, "reason": ""});
        let whole = json!({"workflow": 1, "name": "x", "state": "active", "jobs": [job(1, &[]), job(2, &[1]), job(3, &[1, 2])],
            "data": [{"place": "nvme0://a", "node": "n1", "job": 1}], "pools": [{"pool": 2, "name": "b", "state": "rest", "nodes": ["n1"]}]});
        let expected = "workflow 1 (x): active\n  job 1 done on n1, 1.0 KiB in\n    job 2 done on n1, after 1, 1.0 KiB in\n      job 3 done on n1, after 1, 2, 1.0 KiB in\n  nvme0://a is kept on n1 (job 1)\n  pool 'b' is rest on n1\n";
        assert_eq!(workflow_tree(&whole), expected);
        assert!(workflow_failure(&whole).is_none());
    }
}
