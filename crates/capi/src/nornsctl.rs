//! `nornsctl_*`: administration, on the control socket.

use crate::convert;
use crate::door::Door;
use crate::guard::{Result, bad_args, guard};
use crate::tasks;
use crate::types::*;
use std::ffi::{c_char, c_void};
use tidepool_norns::eta_seconds;
use tidepool_norns::numbers::*;
use tidepool_stage_client::{Command, DataspaceSpec, JobSpec, ProcessSpec, Stager};

fn stager() -> Result<&'static Stager> {
    Door::Control.stager()
}

#[unsafe(no_mangle)]
pub extern "C" fn nornsctl_send_command(command: u32, args: *mut c_void) -> norns_error_t {
    guard(|| {
        if !args.is_null() {
            return Err(bad_args("no command has arguments"));
        }
        let command = match command {
            CMD_PING => Command::Ping,
            CMD_PAUSE_LISTEN => Command::Pause,
            CMD_RESUME_LISTEN => Command::Resume,
            CMD_SHUTDOWN => Command::Shutdown,
            other => return Err(bad_args(&format!("unknown command {other}"))),
        };
        stager()?.command(command)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_status(stats: *mut nornsctl_stat_t) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let stats = unsafe { stats.as_mut() }.ok_or_else(|| bad_args("there is no place for the result"))?;
        let status = stager()?.daemon_status()?;
        *stats = nornsctl_stat_t {
            st_running_tasks: status.running as usize,
            st_pending_tasks: status.pending as usize,
            st_eta: eta_seconds(&status),
        };
        Ok(())
    })
}

/// # Safety
/// NULL, or valid with everything it points to.
unsafe fn job_spec(id: u32, job: *const nornsctl_job_t) -> Result<JobSpec> {
    // SAFETY: the caller's promise.
    let job = unsafe { job.as_ref() }.ok_or_else(|| bad_args("the job is NULL"))?;
    // SAFETY: the caller's promise.
    unsafe { convert::job(id, job) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_register_job(jobid: u32, job: *mut nornsctl_job_t) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let job = unsafe { job_spec(jobid, job)? };
        stager()?.register_job(&job)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_update_job(jobid: u32, job: *mut nornsctl_job_t) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let job = unsafe { job_spec(jobid, job)? };
        stager()?.update_job(&job)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nornsctl_unregister_job(jobid: u32) -> norns_error_t {
    guard(|| stager()?.unregister_job(jobid).map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn nornsctl_add_process(jobid: u32, uid: u32, gid: u32, pid: i32) -> norns_error_t {
    guard(|| stager()?.add_process(jobid, ProcessSpec { pid, uid, gid }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nornsctl_remove_process(jobid: u32, uid: u32, gid: u32, pid: i32) -> norns_error_t {
    guard(|| stager()?.remove_process(jobid, ProcessSpec { pid, uid, gid }))
}

/// # Safety
/// NULL, or valid.
unsafe fn process_spec(process: *const nornsctl_proc_t) -> Result<ProcessSpec> {
    // SAFETY: the caller's promise.
    let process = unsafe { process.as_ref() }.ok_or_else(|| bad_args("the process is NULL"))?;
    Ok(ProcessSpec { pid: process.p_pid, uid: process.p_uid, gid: process.p_gid })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_add_proc(jobid: u32, process: *const nornsctl_proc_t) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let process = unsafe { process_spec(process)? };
        stager()?.add_process(jobid, process)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_remove_proc(jobid: u32, process: *const nornsctl_proc_t) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let process = unsafe { process_spec(process)? };
        stager()?.remove_process(jobid, process)
    })
}

/// # Safety
/// NULL, or valid with everything they point to.
unsafe fn dataspace(nsid: *const c_char, backend: *const nornsctl_backend_t) -> Result<DataspaceSpec> {
    // SAFETY: the caller's promise.
    let backend = unsafe { backend.as_ref() }.ok_or_else(|| bad_args("the backend is NULL"))?;
    // SAFETY: the caller's promise.
    unsafe { convert::dataspace(nsid, backend) }
}

/// # Safety
/// As for [`dataspace`].
unsafe fn register(nsid: *const c_char, backend: *const nornsctl_backend_t) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let spec = unsafe { dataspace(nsid, backend)? };
        stager()?.register_dataspace(&spec)
    })
}

/// # Safety
/// As for [`dataspace`].
unsafe fn update(nsid: *const c_char, backend: *const nornsctl_backend_t) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let spec = unsafe { dataspace(nsid, backend)? };
        stager()?.update_dataspace(&spec)
    })
}

/// # Safety
/// NULL, or a valid string.
unsafe fn unregister(nsid: *const c_char) -> norns_error_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { convert::string(nsid, "namespace")? };
        stager()?.unregister_dataspace(&name)
    })
}

/// The same function under the published name and the paper's.
macro_rules! both_names {
    ($inner:ident($($arg:ident: $type:ty),*) => $published:ident, $paper:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $published($($arg: $type),*) -> norns_error_t {
            // SAFETY: the caller's promise.
            unsafe { $inner($($arg),*) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $paper($($arg: $type),*) -> norns_error_t {
            // SAFETY: the caller's promise.
            unsafe { $inner($($arg),*) }
        }
    };
}
both_names!(register(nsid: *const c_char, backend: *mut nornsctl_backend_t) => nornsctl_register_namespace, nornsctl_register_dataspace);
both_names!(update(nsid: *const c_char, backend: *mut nornsctl_backend_t) => nornsctl_update_namespace, nornsctl_update_dataspace);
both_names!(unregister(nsid: *const c_char) => nornsctl_unregister_namespace, nornsctl_unregister_dataspace);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_submit(task: *mut norns_iotask_t) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::submit(Door::Control, task) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_wait(
    task: *mut norns_iotask_t,
    timeout: *const libc::timespec,
) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::wait(Door::Control, task, timeout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_submit_wait(
    task: *mut norns_iotask_t,
    timeout: *const libc::timespec,
) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::submit_wait(Door::Control, task, timeout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_error(
    task: *mut norns_iotask_t,
    stats: *mut norns_stat_t,
) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::error(Door::Control, task, stats) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_cancel(task: *mut norns_iotask_t) -> norns_error_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe { tasks::cancel(Door::Control, task) })
}
