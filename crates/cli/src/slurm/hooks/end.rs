//! When a job's program has ended: results go out, then everything of the job goes.
//!
//! The epilogs of the nodes do the same from their side and hold the nodes until their part is over, also while slurmctld
//! is away; both may release the held tasks, once is enough.

use super::kept::Settle;
use super::nodes::{Standing, Way, abandon, end_tasks, failed, tidy, transfer};
use super::{Case, Desk};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::scontrol::{self, JobFacts};
use crate::slurm::stagers::{Fleet, Ways};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidepool_batch::{Phase, Transfer};
use tidepool_stage_client::{Code, StageError, Stager, TaskState, TaskStatus, show};
use tidepool_types::Errno;

/// Between looks at tasks: short ones end soon, long ones need no haste.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How often it is noted how far they are.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// How long the epilogs of nodes are waited for when all tasks have ended.
const EPILOG_MAX: Duration = Duration::from_secs(600);
const EPILOG_LOOK: Duration = Duration::from_millis(100);

const GIVEN_UP: &str = "results that were not out were given up (scancel --hurry)";

/// How a job's program has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Well,
    /// It failed, was ended, or is to begin anew. Nobody can want a result that it had not made.
    Early,
}

/// Its program has begun, and its results are not known to be out, nor that they cannot be.
fn is_going_out(phase: Phase) -> bool {
    matches!(phase, Phase::Running | Phase::StagingOut)
}

/// Slurm starts the job once more, or is about to: while its nodes are completing it does not say so.
fn is_queued_again(case: &Case, facts: &JobFacts) -> bool {
    facts.is_queued() || (facts.restarts > case.job.restarts && !facts.failed())
}

/// What the end of a job has come to.
enum End {
    AllOut,
    /// Some data are still on nodes, and why.
    Kept(String),
}

impl Desk {
    pub fn post_run(&self, job: u32) -> Result<String> {
        let case = self.case(job)?;
        if matches!(case.job.phase, Phase::Running | Phase::StagingOut) {
            self.become_(job, Phase::StagingOut, "")?;
        }
        if case.needs_nodes() {
            let (fleet, _) = Fleet::reach(&Ways::of(&self.site)?, &case.job.nodes);
            fleet.each(|_, stager| stager.release_job(job));
        }
        Ok(String::new())
    }

    /// Returns when the results are out, or it is clear that some are not. Then data and nodes are told, and what comes
    /// after the job does not start.
    pub fn data_out(&self, job: u32) -> Result<String> {
        let case = self.case(job)?;
        if case.job.phase.is_final() {
            return Ok(String::new());
        }
        let end = match case.needs_nodes() {
            // Whatever hinders it: what is not known to be out is still there.
            true => self.out(&case).unwrap_or_else(|failure| End::Kept(failure.to_string())),
            false => End::AllOut,
        };
        // Its owner is in a hurry: the teardown has begun, and sees to the rest.
        if !self.is_awaited(&case)? {
            return Ok(String::new());
        }
        match end {
            End::Kept(why) => {
                self.keep_pools(&case);
                self.settle_what_can_be(&case);
                let text = format!("{why}; the data are kept: 'tidepool slurm resume {job}' finishes it");
                self.advance(&case, Phase::StageOutFailed, &text)?;
                scontrol::comment(job, &format!("tidepool: stage-out failed: {text}"));
                let told = format!(
                    "tidepool: stage-out failed, the data are kept: 'tidepool slurm report {job}' says why"
                );
                scontrol::comment_in_accounts(job, &told);
                self.cancel_followers(&case)?;
                Err(Failure::new(Kind::StageOut, text))
            }
            End::AllOut => {
                self.advance(&case, Phase::StagedOut, "")?;
                self.tell_results(&case)?;
                if self.facts(job)?.is_some_and(|facts| facts.failed()) {
                    self.cancel_followers(&case)?;
                }
                Ok(String::new())
            }
        }
    }

    /// Says what came out, where accounts keep it. A result without a file was mostly written somewhere else.
    fn tell_results(&self, case: &Case) -> Result<()> {
        let rows = self.noted(self.book.transfers(case.id()))?;
        let out: Vec<&Transfer> = rows.iter().filter(|row| row.way == "out").collect();
        let job = case.id();
        let text = match empty(&out).first() {
            Some(place) => {
                self.note(
                    job,
                    &format!(
                        "warning: stage-out of {place} brought no file; did the program write it elsewhere?"
                    ),
                );
                format!("warning: a stage-out brought no file; 'tidepool slurm report {job}' says which")
            }
            None if out.is_empty() => "done".into(),
            None => {
                let sum = |of: fn(&Transfer) -> u64| out.iter().map(|row| of(row)).sum::<u64>();
                let files = sum(|row| row.files);
                let files = if files == 1 { "1 file".to_string() } else { format!("{files} files") };
                format!("staged out {files}, {} bytes", sum(|row| row.bytes))
            }
        };
        scontrol::comment_in_accounts(case.id(), &format!("tidepool: {text}"));
        Ok(())
    }

    fn out(&self, case: &Case) -> Result<End> {
        let limit = case.asks.timeouts.stage_out.unwrap_or(self.site.stage_out_timeout);
        let wanted = || self.is_awaited(case).unwrap_or(true);
        let deadline = Instant::now() + limit;
        let (standing, missing) = self.wait_for_tasks(case, &case.job.nodes, deadline, &wanted)?;
        if !wanted() {
            return Ok(End::Kept("ended in a hurry".into()));
        }
        self.record_out(case, &standing)?;
        if let Some((node, failure)) = missing.first() {
            return Ok(End::Kept(format!("node {node} does not answer ({failure})")));
        }
        let ended = if self.is_cut_short(case)? { Ended::Early } else { Ended::Well };
        if let Some(why) = self.verdict(case, &standing, limit, ended)? {
            return Ok(End::Kept(why));
        }
        if let Some(why) = self.stop_pools(case) {
            return Ok(End::Kept(why));
        }
        self.settle_kept(case, Settle::All)?;
        Ok(End::AllOut)
    }

    /// All tasks of the job, as they stand in the end, when time is over or when they are not wanted any more, and nodes that
    /// do not answer then. Stagers and nodes may start again meanwhile: each look connects anew.
    pub fn wait_for_tasks(
        &self,
        case: &Case,
        nodes: &[String],
        deadline: Instant,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(Standing, Vec<(String, Failure)>)> {
        let job = case.id();
        let ways = Ways::of(&self.site)?;
        let (mut told, mut pause) = (Instant::now(), LOOK_MIN);
        loop {
            let (fleet, mut missing) = Fleet::reach(&ways, nodes);
            // A node whose part is over does not know the job any more.
            let one = |_: &str, stager: &Stager| match stager.release_job(job) {
                Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => Ok(Vec::new()),
                other => other.and_then(|_| stager.list(Some(job), None)),
            };
            let mut standing = Standing::default();
            for (node, tasks) in fleet.each(one) {
                match tasks {
                    Ok(tasks) => standing.tasks.extend(tasks.into_iter().map(|task| (node.clone(), task))),
                    Err(error) => missing.push((node, Failure::new(Kind::NoStager, error.to_string()))),
                }
            }
            if missing.is_empty() && standing.ended() || Instant::now() > deadline || !wanted() {
                return Ok((standing, missing));
            }
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                let left = standing.tasks.iter().filter_map(|(_, task)| task.eta_ms).max();
                let left = left.map(|ms| format!(", {} left", show::duration(ms))).unwrap_or_default();
                let away = missing.first().map(|(_, why)| format!("; {why}")).unwrap_or_default();
                let _ = self.book.set_reason(job, &format!("staging out{left}{away}"));
                self.note(job, &format!("staging out{left}{away}"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    /// The held tasks' rows get what they have come to; where they went stays as the user has written it.
    pub fn record_out(&self, case: &Case, standing: &Standing) -> Result<()> {
        let held = self.noted(self.book.transfers(case.id()))?;
        let is_out = |node: &str, task: u32| {
            held.iter().any(|row| row.way == "out" && row.node == node && row.task == task)
        };
        let rows: Vec<Transfer> = standing
            .tasks
            .iter()
            .filter(|(node, task)| is_out(node, task.id))
            .map(|(node, task)| transfer(node, task, Way::Out))
            .collect();
        self.noted(self.book.put_transfers(case.id(), &rows))
    }

    /// The job's program has failed, was ended, or is to begin anew, as after a requeue.
    fn is_cut_short(&self, case: &Case) -> Result<bool> {
        Ok(self.facts(case.id())?.is_some_and(|facts| facts.failed() || is_queued_again(case, &facts)))
    }

    /// What Slurm knows of a job whose program has ended. Where it cannot be told that it was cancelled, it counts as one that
    /// ended by itself: what it was to make and has not is missed.
    fn facts(&self, job: u32) -> Result<Option<JobFacts>> {
        let Some((facts, unknown)) = scontrol::job_beneath(job, &self.site.libexec)? else { return Ok(None) };
        if let Some(why) = unknown {
            self.note(job, &format!("it is not known whether the program was cancelled: {why}"));
        }
        Ok(Some(facts))
    }

    /// Why the results are not all out; none when they are. A node that has none of what all were to bring is no trouble,
    /// as long as one has; nor is that there is none at all where the program had not come so far.
    pub fn verdict(
        &self,
        case: &Case,
        standing: &Standing,
        limit: Duration,
        ended: Ended,
    ) -> Result<Option<String>> {
        if !standing.ended() {
            return Ok(Some(format!("stage-out had not ended after {} s", limit.as_secs())));
        }
        let rows = self.noted(self.book.transfers(case.id()))?;
        let by_id: BTreeMap<(&str, u32), &TaskStatus> =
            standing.tasks.iter().map(|(node, task)| ((node.as_str(), task.id), task)).collect();
        // Copies to one destination are one stage-out.
        let mut brought: BTreeMap<&str, (usize, Option<String>)> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.way == "out") {
            let entry = brought.entry(row.source.as_str()).or_default();
            match by_id.get(&(row.node.as_str(), row.task)) {
                Some(task) if task.state == TaskState::Finished => entry.0 += 1,
                Some(task) if is_absent(task) => {
                    let text = format!("node {}: {} is not there", row.node, row.source);
                    entry.1.get_or_insert(text);
                }
                Some(task) => return Ok(Some(trouble(&row.node, task))),
                None => {
                    let text =
                        format!("node {}: its stager has lost the stage-out of {}", row.node, row.source);
                    return Ok(Some(text));
                }
            }
        }
        let absent = brought.into_values().find(|(count, _)| *count == 0).and_then(|(_, absent)| absent);
        if let (Some(absent), Ended::Early) = (&absent, ended) {
            self.note(case.id(), &format!("{absent}: the program was ended before it made it"));
            return Ok(None);
        }
        Ok(absent)
    }

    /// The last hook of all: nothing of the job is left but what has to stay.
    pub fn teardown(&self, job: u32, hurry: bool) -> Result<String> {
        // What is not in the book was refused at submission.
        let Ok(case) = self.case(job) else { return Ok(String::new()) };
        // The sweep would take it for one that was killed.
        let _lock = self.lock(&tidying(job))?;
        self.noted(self.book.begin_teardown(job, super::now()))?;
        // Slurm calls the teardown of a job that is queued again while a hook still stages it in.
        let _turn = self.last_turn(job)?;
        self.tear_down(self.case(case.id())?, hurry)?;
        if self.noted(self.book.job(job))?.phase.is_final() {
            self.noted(self.book.is_tidy(job))?;
            for lock in [tidying(job), super::starting(job)] {
                let _ = std::fs::remove_file(self.lock_file(&lock));
            }
        }
        Ok(String::new())
    }

    fn tear_down(&self, mut case: Case, hurry: bool) -> Result<()> {
        let job = case.id();
        let held = case.job.reservation.clone();
        let released = if held.is_empty() { Ok(()) } else { scontrol::release(&held) };
        let given_up = hurry && is_going_out(case.job.phase) && self.give_up_results(&case)?;
        if case.job.phase == Phase::StagingOut && !given_up {
            // The hook before this one was killed, or has left it to this one: its work is still to be done.
            let _ = self.data_out(job);
            case = self.case(job)?;
        }
        let needs = case.needs_nodes() && !self.nodes_with_something(&case)?.is_empty();
        if needs && case.job.phase.has_run() {
            wait_for_epilogs(job)?;
        }
        let mut left = match (case.job.phase.has_run(), hurry) {
            _ if !needs => Vec::new(),
            // However much of a hurry there is: only their owner gives results up.
            (true, _) if case.job.phase == Phase::StageOutFailed => self.clear_without_results(&case),
            (true, false) => self.clear(&case, tidy),
            // What it staged out already stays: it is the user's.
            (true, true) => self.stop_pools(&case).into_iter().chain(self.clear(&case, abandon)).collect(),
            (false, _) => self.take_back_everywhere(&case),
        };
        left.extend(released.err().map(|failure| failure.to_string()));
        self.finish(&case)?;
        match left.first() {
            None => Ok(()),
            Some(first) => {
                self.note(job, &format!("left behind: {}", left.join("; ")));
                Err(Failure::new(Kind::Cleanup, format!("left behind: {first}")))
            }
        }
    }

    /// Nobody has given the job's results up, nor taken the job back, since a hook began with it.
    fn is_awaited(&self, case: &Case) -> Result<bool> {
        let now = self.noted(self.book.job(case.id()))?;
        Ok(case.job.is_same_attempt(&now) && !now.phase.is_final())
    }

    /// Ends what still goes out and the job's pools, for which epilogs and their nodes wait; true when something was not out.
    fn give_up_results(&self, case: &Case) -> Result<bool> {
        let job = case.id();
        let (fleet, missing) = Fleet::reach(&Ways::of(&self.site)?, &case.job.nodes);
        let mut standing = Standing::default();
        let list = |_: &str, stager: &Stager| stager.list(Some(job), None);
        let is_out = |tasks: &[TaskStatus]| tasks.iter().all(|task| task.state == TaskState::Finished);
        if missing.is_empty() && fleet.each(list).iter().all(|(_, tasks)| tasks.as_deref().is_ok_and(is_out))
        {
            self.end_pools_early(case);
            return Ok(false);
        }
        // Before anything ends, so that the hook that waits for it does not take it for a failure.
        self.become_(job, Phase::Cancelled, GIVEN_UP)?;
        self.cancel_followers(case)?;
        let one = |_: &str, stager: &Stager| {
            end_tasks(stager, job)?;
            stager.list(Some(job), None).map_err(|error| failed(Kind::Cleanup, error))
        };
        for (node, tasks) in fleet.each(one) {
            match tasks {
                Ok(tasks) => standing.tasks.extend(tasks.into_iter().map(|task| (node.clone(), task))),
                Err(failure) => self.note(job, &format!("node {node}: {failure}")),
            }
        }
        self.record_out(case, &standing)?;
        self.end_pools_early(case);
        scontrol::comment_in_accounts(job, &format!("tidepool: {GIVEN_UP}"));
        Ok(true)
    }

    /// Epilogs wait for pools, and the job's last hook for the epilogs.
    fn end_pools_early(&self, case: &Case) {
        self.settle_what_can_be(case);
        if let Some(why) = self.stop_pools(case) {
            self.note(case.id(), &why);
        }
    }

    /// Whoever resumes the job finds its tasks on the nodes that have results; the others are cleared. It is known that not
    /// all of them may answer.
    fn clear_without_results(&self, case: &Case) -> Vec<String> {
        let rows = self.book.transfers(case.id()).unwrap_or_default();
        let has_results = |node: &str| rows.iter().any(|row| row.way == "out" && row.node == node);
        let Ok(ways) = Ways::of(&self.site) else { return Vec::new() };
        let (fleet, _) = Fleet::reach(&ways, &case.job.nodes);
        let one = |node: &str, stager: &Stager| match has_results(node) {
            true => Ok(()),
            // Its epilog has mostly done so; where the power went, nobody has.
            false => abandon(stager, case.id()),
        };
        let told = fleet.each(one);
        told.into_iter()
            .filter_map(|(node, result)| Some(format!("node {node}: {}", result.err()?)))
            .collect()
    }

    /// The phase that the job is in from now on.
    fn finish(&self, case: &Case) -> Result<()> {
        let job = case.id();
        let facts = self.facts(job)?;
        let queued = facts.as_ref().is_some_and(|facts| is_queued_again(case, facts));
        match self.noted(self.book.job(job))?.phase {
            Phase::StagedOut if !queued => {
                match facts.is_some_and(|facts| facts.failed()) {
                    true => self.become_(
                        job,
                        Phase::Failed,
                        "its program failed or was ended; what it had written is staged out",
                    )?,
                    false => self.become_(job, Phase::Done, "")?,
                }
                self.finish_workflow(case)
            }
            phase if phase.is_final() => self.finish_workflow(case),
            // Slurm has taken it back into the queue, as it does where a node has died.
            Phase::Submitted => {
                scontrol::look_again(job, &self.noted(self.book.job(job))?.reason);
                Ok(())
            }
            phase if queued => {
                let reason = format!("queued again while it was {phase}");
                self.become_(job, Phase::Submitted, &reason)?;
                scontrol::look_again(job, &reason);
                Ok(())
            }
            _ => {
                self.become_(job, Phase::Cancelled, "ended by its owner or an administrator")?;
                self.cancel_followers(case)?;
                self.finish_workflow(case)
            }
        }
    }
}

/// The lock of whoever tidies up after a job.
pub fn tidying(job: u32) -> String {
    format!("job-{job}")
}

/// Epilogs tidy up the nodes, for which the stagers have to know the job.
fn wait_for_epilogs(job: u32) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < EPILOG_MAX && scontrol::job(job)?.is_some_and(|facts| facts.state == "COMPLETING")
    {
        std::thread::sleep(EPILOG_LOOK);
    }
    Ok(())
}

/// Places of which no node has brought a file.
fn empty(out: &[&Transfer]) -> Vec<String> {
    let mut files: BTreeMap<&str, u64> = BTreeMap::new();
    for row in out {
        *files.entry(row.source.as_str()).or_default() += row.files;
    }
    files.into_iter().filter(|(_, files)| *files == 0).map(|(place, _)| place.to_string()).collect()
}

/// One stager lacks what others have.
fn is_absent(task: &TaskStatus) -> bool {
    task.state == TaskState::Failed && task.refusal.errno == Errno::ENOENT.0 && task.bytes_done == 0
}

fn trouble(node: &str, task: &TaskStatus) -> String {
    let what = match task.state {
        TaskState::Failed => show::reason(task),
        TaskState::Cancelled => "was cancelled".into(),
        _ => "has not ended".into(),
    };
    format!("node {node}: {} to {}: {what}", task.src, task.dst)
}
