//! What both interfaces do with tasks.

use crate::convert;
use crate::door::Door;
use crate::guard::{Result, bad_args};
use crate::types::*;
use tidepool_norns::numbers::{EFINISHED, EFINISHEDWERROR};
use tidepool_stage_client::{Code, StageError, TaskStatus};

/// # Safety
/// NULL, or valid for the call with everything it points to.
pub unsafe fn submit(door: Door, task: *mut norns_iotask_t) -> Result<()> {
    // SAFETY: the caller's promise.
    let task = unsafe { task.as_mut() }.ok_or_else(|| bad_args("the task is NULL"))?;
    if task.t_id != 0 {
        return Err(bad_args("the task has an id already: it has been submitted before"));
    }
    // SAFETY: the caller's promise.
    let spec = unsafe { convert::task(task)? };
    task.t_id = door.stager()?.submit(&spec)?;
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
    let timeout = convert::timeout(timeout)?;
    let stager = door.stager()?;
    let status = match stager.wait(&[task.t_id], false, timeout) {
        Ok(mut statuses) => match statuses.pop() {
            Some(status) => status,
            None => stager.status(task.t_id)?,
        },
        // It may have ended while the answer was on its way.
        Err(late) if late.code() == Code::TIMEOUT => ended(stager.status(task.t_id)?).ok_or(late)?,
        Err(error) => return Err(error),
    };
    task.__t_status = convert::stat(&status);
    Ok(())
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
