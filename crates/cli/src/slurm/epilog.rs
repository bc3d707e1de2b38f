//! `tidepool slurm epilog`: on a node, when a job's program has ended. As long as it runs, Slurm gives the node to
//! nobody else.
//!
//! It needs no controller: the stage-out was handed to the node's stager before the job started. What failed to go out
//! stays, for `tidepool slurm resume`.

use super::flags::EpilogArgs;
use crate::exit::{Context, Failure, Kind, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tidepool_stage_client::{
    Code, OnBehalf, Op, Resource, StageError, Stager, TaskSpec, TaskState, TaskStatus, control_socket, show,
};
use tidepool_types::Errno;

const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// Entries of one dataspace that are removed at a time.
const LEFT_MAX: u32 = 1000;
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
    let tasks = wait(&stager, args.job, deadline).map_err(fail)?;
    wait_for_pool(args, deadline)?;
    if let Some(task) = tasks.iter().find(|task| !is_well(task)) {
        let text = format!(
            "task {}: {} to {}: {}; its data stay here",
            task.id,
            task.src,
            task.dst,
            show::reason(task)
        );
        is_last(args, KEPT).context(Kind::Cleanup, || args.jobs_dir.display().to_string())?;
        return Err(Failure::new(Kind::StageOut, text));
    }
    clean(&stager, args)?;
    Ok(ExitCode::SUCCESS)
}

/// A node may have nothing of what all nodes were to bring.
fn is_well(task: &TaskStatus) -> bool {
    let absent =
        task.state == TaskState::Failed && task.refusal.errno == Errno::ENOENT.0 && task.bytes_done == 0;
    task.state == TaskState::Finished || task.state == TaskState::Cancelled || absent
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

/// What the file of a job in the stager's jobs-dir says when its program has ended here: another job may then tidy up after
/// it, unless its results are still here.
const OVER: &str = "over";
const KEPT: &str = "kept";

/// Notes how the job has ended on this node; true when no other job here is going on or has left its results.
fn is_last(args: &EpilogArgs, how: &str) -> std::io::Result<bool> {
    let directory = File::open(&args.jobs_dir)?;
    directory.lock()?;
    let own = args.job.to_string();
    // Not made anew where the stager has forgotten the job meanwhile: nobody would remove it.
    match File::options().write(true).truncate(true).open(args.jobs_dir.join(&own)) {
        Ok(mut mark) => mark.write_all(how.as_bytes())?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    for entry in std::fs::read_dir(&args.jobs_dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_job = name != own && name.parse::<u32>().is_ok();
        // One that is taken away meanwhile is over.
        let is_over = || std::fs::read_to_string(entry.path()).map_or(true, |how| how == OVER);
        if is_job && !is_over() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what the user has left in tracked dataspaces, when no other job uses this node: the stager knows which job put
/// what, but not what programs have written. The last of several jobs tidies up after all.
fn clean(stager: &Stager, args: &EpilogArgs) -> Result<()> {
    let fail = |error: StageError| Failure::new(Kind::Cleanup, error.to_string());
    let last = is_last(args, OVER).context(Kind::Cleanup, || args.jobs_dir.display().to_string())?;
    if !last {
        return Ok(());
    }
    // For no job: the registration may end meanwhile.
    let owner = OnBehalf { uid: args.user.0, gid: args.user.1, job: 0 };
    let spaces = stager.dataspaces().map_err(fail)?;
    let kept = stager.persisted().map_err(fail)?;
    for space in spaces.iter().map(|info| &info.dataspace).filter(|space| space.tracked) {
        let kept: Vec<&[u8]> =
            kept.iter().filter(|kept| kept.dataspace == space.name).map(|kept| &*kept.path).collect();
        let mut before = BTreeSet::new();
        loop {
            let (left, more) = stager.leftovers(&space.name, LEFT_MAX).map_err(fail)?;
            let own = left.iter().filter(|entry| entry.uid == args.user.0);
            let places: BTreeSet<Vec<u8>> = own.map(|entry| whole(&entry.path, &kept)).collect();
            // Nothing of the user's, or what cannot be removed: other users' files in his directories.
            if places.is_empty() || places == before {
                break;
            }
            remove(stager, owner, &space.name, &places)?;
            // Without kept places whole trees go at once.
            if !more && kept.is_empty() {
                break;
            }
            before = places;
        }
    }
    Ok(())
}

/// The largest thing that an entry is part of and that holds nothing kept: mostly its first directory.
fn whole(path: &[u8], kept: &[&[u8]]) -> Vec<u8> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
    let holds_kept = |place: &[u8]| {
        kept.iter().any(|kept| {
            let kept: Vec<&[u8]> = kept.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
            kept.join(&b'/').starts_with(&[place, b"/"].concat()) || kept.join(&b'/') == place
        })
    };
    let upto = |count: usize| parts[..count].join(&b'/');
    (1..parts.len()).map(upto).find(|place| !holds_kept(place)).unwrap_or_else(|| parts.join(&b'/'))
}

fn remove(stager: &Stager, owner: OnBehalf, dataspace: &str, places: &BTreeSet<Vec<u8>>) -> Result<()> {
    let fail = |error: StageError| Failure::new(Kind::Cleanup, error.to_string());
    let task = |path: &Vec<u8>| TaskSpec {
        on_behalf: Some(owner),
        ..TaskSpec::new(Op::Remove, Resource::local(dataspace, path), None)
    };
    let done = stager
        .submit_many(places.iter().map(task).collect())
        .map_err(|error| Failure::new(Kind::Cleanup, error.to_string()))?;
    let ids: Vec<u32> = done.ids.into_iter().filter(|id| *id != 0).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ended = stager.wait(&ids, false, Some(REMOVE_MAX)).map_err(fail)?;
    if let Some(task) = ended.iter().find(|task| task.state != TaskState::Finished && !is_well(task)) {
        let text = format!("{} could not be removed: {}", task.src, show::reason(task));
        return Err(Failure::new(Kind::Cleanup, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_trees_go_unless_they_hold_what_is_kept() {
        let whole = |path: &str, kept: &[&str]| {
            let kept: Vec<&[u8]> = kept.iter().map(|kept| kept.as_bytes()).collect();
            String::from_utf8(whole(path.as_bytes(), &kept)).unwrap()
        };
        assert_eq!(whole("a/b/c", &[]), "a");
        assert_eq!(whole("a/b/c", &["x/y"]), "a");
        assert_eq!(whole("a/b/c", &["a/k"]), "a/b");
        assert_eq!(whole("a/b/c", &["a/b/k"]), "a/b/c");
        assert_eq!(whole("f", &["g"]), "f");
        assert_eq!(whole("ab/c", &["a/k"]), "ab");
    }
}
