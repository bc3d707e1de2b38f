//! `tidepool slurm epilog`: on a node, when a job's program has ended. As long as it runs, Slurm gives the node to
//! nobody else.
//!
//! It needs no controller: the stage-out was handed to the node's stager before the job started. What failed to go out
//! stays, for `tidepool slurm resume`.

use super::flags::EpilogArgs;
use crate::exit::{Context, Failure, Kind, Result};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tidepool_stage_client::{Code, Op, StageError, Stager, TaskState, TaskStatus, control_socket, show};
use tidepool_types::Errno;

const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// Entries of one dataspace that are counted.
const LEFT_MAX: u32 = 1000;
/// Removals that are waited for with one request.
const WAITED_AT_ONCE: usize = 1000;
/// How long removals may take.
const REMOVE_MAX: Duration = Duration::from_secs(600);

pub fn epilog(args: &EpilogArgs) -> Result<ExitCode> {
    let fail = |error: StageError| Failure::new(Kind::NoStager, error.to_string());
    let stager = Stager::connect(control_socket()).map_err(fail)?;
    let deadline = Instant::now() + args.limit;
    match stager.release_job(args.job) {
        Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => {
            return Ok(ExitCode::SUCCESS);
        }
        other => other.map(drop).map_err(fail)?,
    }
    let tasks = match wait(&stager, args.job, deadline) {
        Ok(tasks) => tasks,
        Err(error) => {
            mark(args, KEPT)?;
            return Err(fail(error));
        }
    };
    wait_for_pool(args, deadline)?;
    if let Some(task) = tasks.iter().find(|task| !is_well(task)) {
        let text = format!(
            "task {}: {} to {}: {}; its data stay here",
            task.id,
            task.src,
            task.dst,
            show::reason(task)
        );
        mark(args, KEPT)?;
        return Err(Failure::new(Kind::StageOut, text));
    }
    if let Err(failure) = clean(&stager, args) {
        mark(args, KEPT)?;
        return Err(failure);
    }
    mark(args, OVER)?;
    tell_rest(&stager, args)?;
    Ok(ExitCode::SUCCESS)
}

/// A node may have nothing of what all nodes were to bring. What could not be removed is no loss.
fn is_well(task: &TaskStatus) -> bool {
    let removed = task.op == Op::Remove && task.state.is_ended();
    let absent =
        task.state == TaskState::Failed && task.refusal.errno == Errno::ENOENT.0 && task.bytes_done == 0;
    task.state == TaskState::Finished || task.state == TaskState::Cancelled || absent || removed
}

fn wait(stager: &Stager, job: u32, deadline: Instant) -> std::result::Result<Vec<TaskStatus>, StageError> {
    let mut pause = LOOK_MIN;
    loop {
        let tasks = stager.list(Some(job), None)?;
        if tasks.iter().all(|task| task.state.is_ended()) || Instant::now() > deadline {
            return Ok(tasks);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_MAX);
    }
}

/// The controller ends the job's pools when their data are out on all nodes. A process of the user looks: root reads nothing
/// that he, or somebody in his name, has written.
fn wait_for_pool(args: &EpilogArgs, deadline: Instant) -> Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let own = std::env::current_exe().context(Kind::Cleanup, || "finding this program".into())?;
    let (uid, gid) = args.user;
    let mut look = Command::new(own);
    look.args(["node-clean", "--job", &args.job.to_string(), "--as", &format!("{uid}:{gid}")]);
    look.args(["--wait", &format!("{:.3}s", left.as_secs_f64())]);
    if let Some(runtime) = &args.runtime {
        look.env("TIDEPOOL_RUNTIME", runtime);
    }
    let status = look.stdin(Stdio::null()).status().context(Kind::Cleanup, || "node-clean".into())?;
    if !status.success() {
        eprintln!("tidepool: the pools of job {} are not waited for any more: {status}", args.job);
    }
    Ok(())
}

/// What the file of a job in the stager's jobs-dir says when its program has ended here.
const OVER: &str = "over";
/// Its results are still here.
const KEPT: &str = "kept";

/// Notes how the job has ended on this node.
fn mark(args: &EpilogArgs, how: &str) -> Result<()> {
    let path = args.jobs_dir.join(args.job.to_string());
    // Not made anew where the stager has forgotten the job meanwhile: nobody would remove it.
    let written = match File::options().write(true).truncate(true).open(&path) {
        Ok(mut mark) => mark.write_all(how.as_bytes()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    written.context(Kind::Cleanup, || path.display().to_string())
}

/// Removes what the stager knows to be this job's: what its copies have made here. What programs have written elsewhere may be
/// another job's, or another user's: nobody knows, so it stays.
fn clean(stager: &Stager, args: &EpilogArgs) -> Result<()> {
    let fail = |error: StageError| Failure::new(Kind::Cleanup, error.to_string());
    let places = stager.clean_own(args.job).map_err(fail)?;
    let removals: Vec<u32> = places.iter().map(|place| place.removal).filter(|id| *id != 0).collect();
    let started = Instant::now();
    for ids in removals.chunks(WAITED_AT_ONCE) {
        let time = REMOVE_MAX.saturating_sub(started.elapsed());
        let ended = stager.wait(ids, false, Some(time)).map_err(fail)?;
        if let Some(task) = ended.iter().find(|task| task.state != TaskState::Finished) {
            let text = format!("{} could not be removed: {}", task.src, show::reason(task));
            return Err(Failure::new(Kind::Cleanup, text));
        }
    }
    Ok(())
}

/// Says what stays in tracked dataspaces, by number: somebody has to look at it some day.
fn tell_rest(stager: &Stager, args: &EpilogArgs) -> Result<()> {
    let fail = |error: StageError| Failure::new(Kind::Cleanup, error.to_string());
    for space in stager.dataspaces().map_err(fail)?.iter().map(|info| &info.dataspace).filter(|s| s.tracked) {
        let (left, more) = stager.leftovers(&space.name, LEFT_MAX).map_err(fail)?;
        let own = left.iter().filter(|entry| entry.uid == args.user.0).count();
        if own > 0 {
            let or_more = if more { " or more" } else { "" };
            println!(
                "{}: {own}{or_more} entries of user {} stay that no copy of job {} is known to have made; list them with 'tidepool stage dataspace leftovers {}'",
                space.name, args.user.0, args.job, space.name
            );
        }
    }
    Ok(())
}
