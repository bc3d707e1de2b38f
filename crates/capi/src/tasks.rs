//! What both interfaces do with tasks.

use crate::convert;
use crate::door::Door;
use crate::guard::{Result, bad_args};
use crate::types::*;
use std::time::Duration;
use tidepool_norns::numbers::{EFINISHED, EFINISHEDWERROR};
use tidepool_stage_client::{Code, FIRST_WAIT, StageError, TaskSpec, TaskStatus};

/// # Safety
/// NULL, or valid for the call with everything it points to.
pub unsafe fn submit(door: Door, task: *mut norns_iotask_t) -> Result<()> {
    // SAFETY: the caller's promise.
    let (task, spec) = unsafe { fresh(task)? };
    task.t_id = door.stager()?.submit(&spec)?;
    Ok(())
}

/// A task that can be submitted.
///
/// # Safety
/// As for [`submit`].
unsafe fn fresh<'a>(task: *mut norns_iotask_t) -> Result<(&'a mut norns_iotask_t, TaskSpec)> {
    // SAFETY: the caller's promise.
    let task = unsafe { task.as_mut() }.ok_or_else(|| bad_args("the task is NULL"))?;
    if task.t_id != 0 {
        return Err(bad_args("the task has an id already: it has been submitted before"));
    }
    // SAFETY: the caller's promise.
    let spec = unsafe { convert::task(task)? };
    Ok((task, spec))
}

/// Submits and waits: one request for what ends soon.
///
/// # Safety
/// Both are NULL or valid for the call, the task with everything it points to.
pub unsafe fn submit_wait(
    door: Door,
    task: *mut norns_iotask_t,
    timeout: *const libc::timespec,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let timeout = convert::timeout(unsafe { timeout.as_ref() })?;
    // SAFETY: the caller's promise.
    let (task, spec) = unsafe { fresh(task)? };
    let first = timeout.map_or(FIRST_WAIT, |timeout| timeout.min(FIRST_WAIT));
    let status = door.stager()?.submit_and_wait_for(&spec, first)?;
    task.t_id = status.id;
    let status = match ended(status) {
        Some(status) => status,
        None => wait_for(door, task.t_id, timeout.map(|timeout| timeout - first))?,
    };
    task.__t_status = convert::stat(&status);
    Ok(())
}

fn submitted(task: Option<&mut norns_iotask_t>) -> Result<&mut norns_iotask_t> {
    let task = task.ok_or_else(|| bad_args("the task is NULL"))?;
    if task.t_id == 0 {
        return Err(bad_args("the task has not been submitted"));
    }
    Ok(task)
}

/// Waits for the stager's word, not by asking again and again.
///
/// # Safety
/// Both are NULL or valid for the call.
pub unsafe fn wait(door: Door, task: *mut norns_iotask_t, timeout: *const libc::timespec) -> Result<()> {
    // SAFETY: the caller's promise.
    let (task, timeout) = unsafe { (task.as_mut(), timeout.as_ref()) };
    let task = submitted(task)?;
    let status = wait_for(door, task.t_id, convert::timeout(timeout)?)?;
    task.__t_status = convert::stat(&status);
    Ok(())
}

fn wait_for(door: Door, id: u32, timeout: Option<Duration>) -> Result<TaskStatus> {
    let stager = door.stager()?;
    match stager.wait(&[id], false, timeout) {
        Ok(mut statuses) => statuses.pop().map_or_else(|| stager.status(id), Ok),
        // It may have ended while the answer was on its way.
        Err(late) if late.code() == Code::TIMEOUT => ended(stager.status(id)?).ok_or(late),
        Err(error) => Err(error),
    }
}

fn ended(status: TaskStatus) -> Option<TaskStatus> {
    status.state.is_ended().then_some(status)
}

/// # Safety
/// Both are NULL or valid for the call.
pub unsafe fn error(door: Door, task: *mut norns_iotask_t, stats: *mut norns_stat_t) -> Result<()> {
    // SAFETY: the caller's promise.
    let (task, stats) = unsafe { (task.as_mut(), stats.as_mut()) };
    let stats = stats.ok_or_else(|| bad_args("there is no place for the result"))?;
    let task = submitted(task)?;
    *stats = match task.__t_status {
        seen if is_end(&seen) => seen,
        _ => convert::stat(&door.stager()?.status(task.t_id)?),
    };
    Ok(())
}

/// A wait has seen the end and kept it.
fn is_end(stat: &norns_stat_t) -> bool {
    matches!(stat.st_status, EFINISHED | EFINISHEDWERROR)
}

/// # Safety
/// NULL, or valid for the call.
pub unsafe fn cancel(door: Door, task: *mut norns_iotask_t) -> Result<()> {
    // SAFETY: the caller's promise.
    let task = submitted(unsafe { task.as_mut() })?;
    door.stager()?.cancel(task.t_id)
}

/// The refusal of a name that no dataspace of the caller has.
pub fn no_such_dataspace(name: &str) -> StageError {
    let detail = format!("{name} is no dataspace that this process may use");
    StageError::Refused(tidepool_stage_client::Refusal::new(Code::NO_SUCH_DATASPACE, detail))
}
