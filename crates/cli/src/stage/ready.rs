//! Whether the data of a job are there before it starts, cleaning up when they are not, and another try when a task of
//! it failed (Miranda et al. 2019, Section III): what prologs and epilogs of batch systems run.

use super::flags::{ReadyArgs, RetryArgs};
use super::outcome::{Done, Result, failure_of};
use crate::exit::{Failure, Kind};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tidepool_stage_client::{
    Cleaning, Code, Fate, Op, StageError, Stager, StagerAt, TaskSpec, TaskState, TaskStatus, json as shapes,
    parse_place, show,
};

/// How often it is looked whether a task has failed: the others are not waited for then.
const LOOK: Duration = Duration::from_millis(500);
/// How long tasks that are told to end may take for that, and removals for theirs.
const CLEAN_MAX: Duration = Duration::from_secs(600);

/// Where tasks of a job are.
struct Site<'a> {
    stager: &'a Stager,
    node: String,
}

/// The stager of the command line, and those of `--stager`.
fn sites<'a>(first: &'a Stager, others: &'a [Stager]) -> Vec<Site<'a>> {
    std::iter::once(first).chain(others).map(|stager| Site { stager, node: stager.node() }).collect()
}

fn connect(stagers: &[StagerAt], secret_file: Option<&Path>) -> Result<Vec<Stager>> {
    stagers.iter().map(|at| super::connect_to(at, secret_file)).collect()
}

impl Site<'_> {
    /// What puts something somewhere for the job. What is held is for later.
    fn tasks(&self, job: u32, only: Option<TaskState>) -> Result<Vec<TaskStatus>> {
        let mut tasks = self.stager.list(Some(job), only)?;
        tasks.retain(|task| task.op != Op::Remove && !show::is_held(task));
        Ok(tasks)
    }

    fn unended(&self, job: u32) -> Result<Vec<u32>> {
        let mut unended = self.tasks(job, Some(TaskState::Pending))?;
        // Second: a task that starts in between is there twice, one that ended nowhere.
        unended.extend(self.tasks(job, Some(TaskState::Running))?);
        let mut ids: Vec<u32> = unended.iter().map(|task| task.id).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Ends when all have ended, one has failed, or it is late; false when it is late.
    fn wait(&self, job: u32, until: Option<Instant>) -> Result<bool> {
        loop {
            let unended = self.unended(job)?;
            let failed = |state| self.stager.list_page(Some(job), Some(state), 0, 1);
            if unended.is_empty()
                || !failed(TaskState::Failed)?.0.is_empty()
                || !failed(TaskState::Cancelled)?.0.is_empty()
            {
                return Ok(true);
            }
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            if !ends_within(self.stager, &unended, left.min(LOOK))? && left.is_zero() {
                return Ok(false);
            }
        }
    }
}

fn ends_within(stager: &Stager, ids: &[u32], time: Duration) -> Result<bool> {
    match stager.wait(ids, false, Some(time)) {
        Err(StageError::Refused(refusal)) if refusal.code == Code::TIMEOUT => Ok(false),
        other => Ok(other.map(|_| true)?),
    }
}

pub fn ready(first: &Stager, args: &ReadyArgs, secret_file: Option<&Path>) -> Result<Done> {
    let others = connect(&args.stagers, secret_file)?;
    let sites = sites(first, &others);
    for site in &sites {
        // A job that nobody knows has no data that could be there.
        site.stager.job_report(args.job)?;
    }
    let until = args.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut in_time = true;
    if !args.dry_run {
        for site in &sites {
            in_time &= site.wait(args.job, until)?;
        }
    }
    let mut told = Told::default();
    for site in &sites {
        told.look(site, args)?;
    }
    let verdict = told.verdict(in_time);
    if !args.clean || (verdict.is_none() && !args.dry_run) {
        return Ok(told.done(args.job, verdict));
    }
    for site in &sites {
        clean(site, args, &mut told)?;
    }
    let verdict = if args.dry_run { None } else { told.left().or(verdict) };
    Ok(told.done(args.job, verdict))
}

/// What was found.
#[derive(Default)]
struct Told {
    text: String,
    sites: Vec<Value>,
    cleaned: Vec<Value>,
    failed: Vec<String>,
    cancelled: Vec<String>,
    missing: Vec<String>,
    /// What a cleaning has left.
    left: Vec<String>,
}

impl Told {
    fn look(&mut self, site: &Site<'_>, args: &ReadyArgs) -> Result<()> {
        let tasks = site.tasks(args.job, None)?;
        let count = |state| tasks.iter().filter(|task| task.state == state).count();
        let (finished, ended) =
            (count(TaskState::Finished), tasks.iter().filter(|task| task.state.is_ended()).count());
        self.text.push_str(&format!("{}: {finished} of {} tasks finished\n", site.node, tasks.len()));
        for task in &tasks {
            let say = || format!("task {} at {}: {}", task.id, site.node, show::reason(task));
            match task.state {
                TaskState::Failed => self.failed.push(say()),
                TaskState::Cancelled => self.cancelled.push(say()),
                _ => {}
            }
        }
        let missing = if args.no_look { Vec::new() } else { missing(site, args.job, &tasks)? };
        self.sites.push(json!({
            "node": site.node,
            "tasks": tasks.len(),
            "finished": finished,
            "unended": tasks.len() - ended,
            "failed": tasks.iter().filter(|t| t.state == TaskState::Failed).map(shapes::task).collect::<Vec<_>>(),
            "cancelled": count(TaskState::Cancelled),
            "missing": missing,
            "bytes": tasks.iter().map(|task| task.bytes_done).sum::<u64>(),
        }));
        self.missing.extend(missing);
        Ok(())
    }

    /// Why the job must not start; none when all is there.
    fn verdict(&self, in_time: bool) -> Option<Failure> {
        let of = |kind, what: &str, reasons: &[String]| {
            let more = match reasons.len() {
                0 | 1 => String::new(),
                count => format!(" (the first of {count})"),
            };
            Some(Failure::new(kind, format!("{what}{more}: {}", reasons[0])))
        };
        match self {
            _ if !self.failed.is_empty() => of(Kind::TaskFailed, "staging failed", &self.failed),
            _ if !self.missing.is_empty() => of(Kind::TaskFailed, "staged data are gone", &self.missing),
            _ if !self.cancelled.is_empty() => {
                of(Kind::TaskCancelled, "staging was cancelled", &self.cancelled)
            }
            _ if !in_time => {
                let text = "staging had not ended in time";
                Some(Failure::new(Kind::TaskTimeout, text))
            }
            _ => None,
        }
    }

    fn left(&self) -> Option<Failure> {
        let first = self.left.first()?;
        let reasons = [&self.failed, &self.missing, &self.cancelled].into_iter().flatten();
        let why = reasons.map(String::as_str).next().unwrap_or("staging had not ended in time");
        let text = format!("{why}; {} place(s) could not be cleaned: {first}", self.left.len());
        Some(Failure::new(Kind::Cleanup, text))
    }

    fn done(self, job: u32, failure: Option<Failure>) -> Done {
        let state = failure.as_ref().map_or("ready", |failure| match failure.kind {
            Kind::TaskTimeout => "timeout",
            Kind::TaskCancelled => "cancelled",
            Kind::Cleanup => "left",
            _ => "failed",
        });
        let json = json!({
            "job": job,
            "state": state,
            "reason": failure.as_ref().map(ToString::to_string),
            "exit": failure.as_ref().map_or(0, Failure::code),
            "stagers": self.sites,
            "cleaned": self.cleaned,
        });
        Done { text: self.text, json, failure }
    }
}

/// What finished tasks have put somewhere, and what is not there any more, or not all of it.
fn missing(site: &Site<'_>, job: u32, tasks: &[TaskStatus]) -> Result<Vec<String>> {
    let places: HashMap<u32, String> = match site.stager.clean_job(job, true) {
        Ok(places) => places.into_iter().map(|place| (place.task, place.place)).collect(),
        // Only administrators are told where exactly.
        Err(StageError::Refused(refusal)) if refusal.code == Code::NOT_PERMITTED => HashMap::new(),
        Err(error) => return Err(error.into()),
    };
    let all = site.stager.list(Some(job), Some(TaskState::Finished))?;
    let mut missing = Vec::new();
    for task in tasks.iter().filter(|task| task.state == TaskState::Finished) {
        let place = places.get(&task.id).unwrap_or(&task.dst);
        let gone_on = all
            .iter()
            .any(|other| other.id > task.id && other.op != Op::Copy && overlap(place, other.src.as_str()));
        if let Some(why) = if gone_on { None } else { lacks(site, place, task)? } {
            missing.push(format!("{place}: {why} (task {} at {})", task.id, site.node));
        }
    }
    Ok(missing)
}

/// One of two places as shown is the other one, or lies under it.
fn overlap(one: &str, other: &str) -> bool {
    let under = |path: &str, dir: &str| {
        let dir = dir.trim_end_matches('/');
        path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    under(one, other) || under(other, one)
}

/// What a place lacks of what a task has put there.
fn lacks(site: &Site<'_>, place: &str, task: &TaskStatus) -> Result<Option<String>> {
    // A name that is not shown as it is cannot be looked for, nor can memory.
    let Ok(resource) = parse_place(place.as_bytes())
        .map_err(drop)
        .and_then(|resource| if place.contains('\\') { Err(()) } else { Ok(resource) })
    else {
        return Ok(None);
    };
    match site.stager.plan(&TaskSpec::new(Op::Copy, resource.clone(), Some(resource))) {
        Ok(there) if there.files < task.files_done || there.bytes < task.bytes_done => Ok(Some(format!(
            "{} of {} files and {} of {} bytes are there",
            there.files, task.files_done, there.bytes, task.bytes_done
        ))),
        Ok(_) => Ok(None),
        Err(StageError::Refused(refusal)) => Ok(Some(refusal.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Ends what is under way, and removes what was staged.
fn clean(site: &Site<'_>, args: &ReadyArgs, told: &mut Told) -> Result<()> {
    if !args.dry_run {
        let unended = site.unended(args.job)?;
        for id in &unended {
            match site.stager.cancel(*id) {
                // It has ended meanwhile.
                Err(StageError::Refused(refusal)) if refusal.code == Code::TASK_STATE => {}
                other => other?,
            }
        }
        if !unended.is_empty() && !ends_within(site.stager, &unended, CLEAN_MAX)? {
            told.left.push(format!("tasks at {} do not end", site.node));
            return Ok(());
        }
    }
    let places = site.stager.clean_job(args.job, args.dry_run)?;
    let removals: Vec<u32> = places.iter().map(|place| place.removal).filter(|id| *id != 0).collect();
    if !removals.is_empty() && !args.dry_run {
        ends_within(site.stager, &removals, CLEAN_MAX)?;
    }
    for place in &places {
        told.clean(site, place, args.dry_run)?;
    }
    Ok(())
}

impl Told {
    fn clean(&mut self, site: &Site<'_>, place: &Cleaning, dry_run: bool) -> Result<()> {
        let removal = match (place.removal, dry_run) {
            (0, _) | (_, true) => None,
            (id, false) => Some(site.stager.status(id)?),
        };
        let (what, stays) = match (place.fate, &removal) {
            (Fate::Nothing, _) => ("nothing was made", false),
            (Fate::Removed, None) => ("would be removed", false),
            (Fate::Removed, Some(task)) if task.state == TaskState::Finished => ("removed", false),
            (Fate::Removed, Some(_)) => ("not removed", true),
            (Fate::WasThere, _) => ("was there before the copy: stays", true),
            (Fate::OnlyCopy, _) => ("was moved, nothing else may hold it: stays", true),
            (Fate::Kept, _) => ("is kept: stays", false),
        };
        let why = removal.as_ref().filter(|_| stays).map(show::reason).unwrap_or_default();
        let line = format!("{}: {what}{}{why}", place.place, if why.is_empty() { "" } else { ": " });
        self.text.push_str(&format!("{}: {line}\n", site.node));
        self.cleaned.push(json!({
            "node": site.node, "task": place.task, "place": place.place, "what": what,
            "removal": (place.removal != 0).then_some(place.removal), "stays": stays,
        }));
        if stays {
            self.left.push(line);
        }
        Ok(())
    }
}

pub fn retry(first: &Stager, args: &RetryArgs, secret_file: Option<&Path>) -> Result<Done> {
    let others = connect(&args.stagers, secret_file)?;
    let (mut text, mut resumed, mut ended) = (String::new(), Vec::new(), Vec::new());
    let mut failure = None;
    for site in sites(first, &others) {
        let ids = resume(&site, args)?;
        text.push_str(&format!("{}: {} task(s) of job {} go on\n", site.node, ids.len(), args.job));
        resumed.push(json!({ "node": site.node, "ids": ids }));
        if args.wait && !ids.is_empty() {
            let tasks = site.stager.wait(&ids, false, None)?;
            text.push_str(&show::tasks(&tasks));
            failure = failure.or_else(|| failure_of(&tasks, &site.node));
            ended.extend(tasks.iter().map(shapes::task));
        }
    }
    Ok(Done { text, json: json!({ "job": args.job, "resumed": resumed, "tasks": ended }), failure })
}

fn resume(site: &Site<'_>, args: &RetryArgs) -> Result<Vec<u32>> {
    let mut tasks = site.stager.list(Some(args.job), Some(TaskState::Failed))?;
    if args.cancelled {
        tasks.extend(site.stager.list(Some(args.job), Some(TaskState::Cancelled))?);
    }
    let mut ids = Vec::with_capacity(tasks.len());
    for task in tasks {
        match site.stager.resume(task.id) {
            // Somebody else was faster.
            Err(StageError::Refused(refusal)) if refusal.code == Code::TASK_STATE => {}
            other => {
                other?;
                ids.push(task.id);
            }
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_and_what_lies_under_it_overlap() {
        assert!(overlap("a://in/x", "a://in") && overlap("a://in/", "a://in/x") && overlap("a://x", "a://x"));
        assert!(!overlap("a://in", "a://inner") && !overlap("n1:1/a://in", "a://in"));
        assert!(overlap("a://", "a://in"));
    }
}
