//! `squeue --json`, as Slurm 22.05 (OpenAPI 0.0.38) and later ones print it (docs/formats/33-queues.md): a number may stand by itself or as
//! `{"set": true, "infinite": false, "number": 7}`, a word by itself or as the first of a list.

use crate::rows::{Entry, PROCESSORS_MAX, Queue, SECONDS_MAX, State, Wrong, cut, is_ending, state};
use crate::text::{Ids, push};
use crate::words::{after, is_none, tasks};
use serde_json::Value;

pub fn read(text: &str) -> Result<Queue, Wrong> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| Wrong::at(error.line(), format!("it is no JSON: {error}")))?;
    let Some(jobs) = value.get("jobs").and_then(Value::as_array) else {
        return Err(Wrong::all("it has no list 'jobs': is it what 'squeue --json' prints?"));
    };
    let mut queue = Queue::default();
    for (number, job) in (1..).zip(jobs) {
        self::job(job, &mut queue).map_err(|what| Wrong::all(format!("job {number} of the list: {what}")))?;
    }
    Ok(queue)
}

/// None where there is none, or it has no end.
fn number(job: &Value, name: &str) -> Result<Option<u64>, String> {
    let wrong = || format!("'{name}' is no number");
    let whole = |value: &Value| match (value.as_u64(), value.as_f64()) {
        (Some(number), _) => Ok(Some(number)),
        (None, Some(number)) if (0.0..1e18).contains(&number) => Ok(Some(number as u64)),
        _ => Err(wrong()),
    };
    match job.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => {
            let is = |name: &str| object.get(name).and_then(Value::as_bool).unwrap_or(false);
            match object.get("number") {
                Some(value) if is("set") && !is("infinite") => whole(value),
                _ => Ok(None),
            }
        }
        Some(value) => whole(value),
    }
}

fn seconds(job: &Value, name: &str, unit: u64) -> Result<Option<u64>, String> {
    let seconds = number(job, name)?.filter(|value| *value > 0).map(|value| value.saturating_mul(unit));
    match seconds {
        Some(seconds) if seconds > SECONDS_MAX => Err(format!("'{name}' is too large")),
        seconds => Ok(seconds),
    }
}

fn count(job: &Value, name: &str) -> Result<u32, String> {
    let count = number(job, name)?.unwrap_or(1).max(1);
    u32::try_from(count)
        .ok()
        .filter(|count| *count <= PROCESSORS_MAX)
        .ok_or_else(|| format!("'{name}' is too large"))
}

/// The first word of a list, or the one that is there; empty without.
fn word<'a>(job: &'a Value, name: &str) -> &'a str {
    match job.get(name) {
        Some(Value::Array(all)) => all.first().and_then(Value::as_str).unwrap_or_default(),
        Some(value) => value.as_str().unwrap_or_default(),
        None => "",
    }
}

fn nodes(job: &Value, name: &str) -> Result<Vec<String>, String> {
    match word(job, name) {
        none if is_none(none) => Ok(Vec::new()),
        list => tidepool_batch::nodes::expand(list).map_err(|why| format!("'{name}': {why}")),
    }
}

fn job(job: &Value, queue: &mut Queue) -> Result<(), String> {
    let Some(state) = state(word(job, "job_state"))? else { return Ok(()) };
    let id = number(job, "job_id")?.ok_or("it has no 'job_id'")?;
    let reason = word(job, "state_reason").to_string();
    let begin = if state == State::Running { "start_time" } else { "eligible_time" };
    let text = |name: &str| Some(word(job, name)).filter(|word| !is_none(word)).map(str::to_string);
    let nodes_wanted = count(job, "node_count")?;
    let priority = number(job, "priority")?.unwrap_or(0) as f64;
    let held = job.get("hold").and_then(Value::as_bool).unwrap_or(false);
    let entry = Entry {
        name: word(job, "name").to_string(),
        user: word(job, "user_name").to_string(),
        group: text("group_name"),
        qos: text("qos"),
        partitions: word(job, "partition")
            .split(',')
            .filter(|name| !is_none(name))
            .map(str::to_string)
            .collect(),
        state: if held && state == State::Waiting { State::Held } else { state },
        start_s: seconds(job, begin, 1)?.filter(|_| state == State::Running || reason == "BeginTime"),
        reason,
        submit_s: seconds(job, "submit_time", 1)?,
        limit_s: seconds(job, "time_limit", 60)?,
        nodes: nodes_wanted,
        processors: count(job, "cpus")?.max(nodes_wanted),
        is_ending: is_ending(word(job, "job_state")),
        list: nodes(job, "nodes")?,
        priority,
        after: after(word(job, "dependency")),
        exclusive: ["none", "user"].contains(&word(job, "shared")) || word(job, "exclusive") == "true",
        required: nodes(job, "required_nodes")?,
        excluded: nodes(job, "excluded_nodes")?,
        features: text("features"),
        ..Entry::default()
    };
    let seen = [
        entry.submit_s,
        entry.start_s.filter(|_| state == State::Running),
        seconds(job, "last_sched_evaluation", 1)?,
    ];
    queue.now_s = seen.into_iter().flatten().chain(queue.now_s).max();
    let array = number(job, "array_job_id")?.filter(|id| *id > 0);
    let waiting = word(job, "array_task_string");
    let ids = match (array, is_none(waiting)) {
        (Some(array), false) => {
            let (all, throttle) = tasks(waiting)?;
            let most = number(job, "array_max_tasks")?.and_then(|most| u32::try_from(most).ok());
            Ids { job: array, tasks: Some((all, throttle.or(most.filter(|most| *most > 0)))), one: None }
        }
        (Some(array), true) => {
            let one = number(job, "array_task_id")?
                .map(|task| u32::try_from(task).map_err(|_| format!("task '{task}' is too large")));
            Ids { job: array, tasks: None, one: one.transpose()? }
        }
        (None, _) => Ids { job: id, tasks: None, one: None },
    };
    push(&mut queue.entries, entry, ids).map_err(|why| cut(&why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn both_generations_are_read() {
        let old = json!({ "jobs": [
            { "job_id": 1, "job_state": "RUNNING", "user_name": "a", "nodes": "n[1-2]", "node_count": 2, "cpus": 8,
              "start_time": 1000, "submit_time": 900, "time_limit": 10, "priority": 5, "shared": "none", "partition": "p",
              "dependency": "", "array_job_id": 0, "array_task_id": null, "array_task_string": "", "state_reason": "None" },
            { "job_id": 9, "job_state": "PENDING", "array_job_id": 7, "array_task_string": "2,4%1", "array_max_tasks": 1,
              "node_count": 1, "cpus": 1, "time_limit": null, "state_reason": "Resources", "start_time": 5000 },
            { "job_id": 3, "job_state": "COMPLETED" },
        ]});
        let n = |number: u64| json!({ "set": true, "infinite": false, "number": number });
        let new = json!({ "jobs": [
            { "job_id": 1, "job_state": ["RUNNING"], "user_name": "a", "nodes": "n[1-2]", "node_count": n(2), "cpus": n(8),
              "start_time": n(1000), "submit_time": n(900), "time_limit": n(10), "priority": n(5), "shared": ["none"], "partition": "p",
              "dependency": "", "array_job_id": n(0), "array_task_id": { "set": false, "infinite": false, "number": 0 },
              "array_task_string": "", "state_reason": "None" },
            { "job_id": 9, "job_state": ["PENDING"], "array_job_id": n(7), "array_task_string": "2,4%1", "array_max_tasks": n(1),
              "node_count": n(1), "cpus": n(1), "time_limit": { "set": true, "infinite": true, "number": 0 },
              "state_reason": "Resources", "start_time": n(5000) },
        ]});
        let (old, new) = (read(&old.to_string()).unwrap(), read(&new.to_string()).unwrap());
        assert_eq!(old, new);
        let ids: Vec<String> = old.entries.iter().map(|entry| entry.id.to_string()).collect();
        assert_eq!(ids, ["1", "7_2", "7_4"]);
        let (runs, waits) = (&old.entries[0], &old.entries[1]);
        assert_eq!(
            (runs.start_s, runs.limit_s, runs.exclusive, runs.list.len()),
            (Some(1000), Some(600), true, 2)
        );
        assert_eq!(
            (waits.start_s, waits.limit_s, waits.throttle, old.now_s),
            (None, None, Some(1), Some(1000))
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        let said = |text: &str| read(text).unwrap_err().to_string();
        assert!(said("{").contains("no JSON"));
        assert!(said("{}").contains("'squeue --json'"));
        assert_eq!(said(r#"{"jobs": [{"job_state": "PENDING"}]}"#), "job 1 of the list: it has no 'job_id'");
        assert_eq!(said(r#"{"jobs": [{"job_id": 1}]}"#), "job 1 of the list: '' is no state of a job");
        let deep = "[".repeat(5000);
        assert!(read(&format!("{{\"jobs\": {deep}")).is_err());
    }

    fn values() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-zA-Z0-9\\[\\],%:_-]{0,12}".prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(|n| json!({ "set": true, "number": n })),
            Just(json!(["PENDING"])),
            Just(json!({})),
        ]
    }

    proptest! {
        #[test]
        fn odd_values_are_jobs_within_limits_or_an_error(all in prop::collection::vec(values(), 16)) {
            const NAMES: [&str; 16] = ["job_id", "state_reason", "start_time", "eligible_time", "node_count", "cpus", "nodes", "priority",
                "dependency", "shared", "time_limit", "submit_time", "array_job_id", "array_task_id", "array_task_string", "array_max_tasks"];
            let mut job: serde_json::Map<String, Value> = NAMES.iter().map(|name| name.to_string()).zip(all).collect();
            job.insert("job_state".into(), "PENDING".into());
            if let Ok(queue) = read(&json!({ "jobs": [job] }).to_string()) {
                for entry in queue.entries {
                    prop_assert!(entry.nodes >= 1 && entry.processors >= entry.nodes && entry.processors <= PROCESSORS_MAX);
                    prop_assert!(entry.limit_s.unwrap_or(0) <= SECONDS_MAX && entry.submit_s.unwrap_or(0) <= SECONDS_MAX);
                }
            }
        }
    }
}
