//! `norns_*`: tasks and dataspaces of applications.

use crate::convert;
use crate::door::Door;
use crate::guard::{bad_args, guard};
use crate::tasks;
use crate::types::*;
use std::ffi::c_char;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn norns_submit(task: *mut norns_iotask_t) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::submit(Door::User, task) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn norns_wait(
    task: *mut norns_iotask_t,
    timeout: *const libc::timespec,
) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::wait(Door::User, task, timeout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn norns_submit_wait(
    task: *mut norns_iotask_t,
    timeout: *const libc::timespec,
) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::submit_wait(Door::User, task, timeout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn norns_error(task: *mut norns_iotask_t, stats: *mut norns_stat_t) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::error(Door::User, task, stats) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn norns_cancel(task: *mut norns_iotask_t) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::cancel(Door::User, task) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn norns_get_dataspace_info(
    nsid: *const c_char,
    info: *mut norns_dataspace_info_t,
) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let info = unsafe { info.as_mut() }.ok_or_else(|| bad_args("there is no place for the result"))?;
        // SAFETY: the caller's promise.
        let name = unsafe { convert::string(nsid, "namespace")? };
        let all = Door::User.stager()?.dataspaces()?;
        let found = all.iter().find(|each| each.dataspace.name == name);
        *info = convert::info(found.ok_or_else(|| tasks::no_such_dataspace(&name))?)?;
        Ok(())
    })
}
