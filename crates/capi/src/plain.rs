//! Functions that only fill descriptors.

use crate::text;
use crate::types::*;
use std::ffi::{c_char, c_int, c_void};
use tidepool_norns::numbers::*;

#[unsafe(no_mangle)]
pub extern "C" fn NORNS_MEMORY_REGION(addr: *mut c_void, size: usize) -> norns_resource_t {
    let r_buffer = norns_memory_region_t { b_addr: addr, b_size: size };
    norns_resource_t { r_flags: PROCESS_MEMORY, r_place: norns_place_t { r_buffer } }
}

fn path(access: u32, nsid: *const c_char, host: *const c_char, path: *const c_char) -> norns_resource_t {
    let r_posix_path = norns_posix_path_t { p_nsid: nsid, p_host: host, p_path: path };
    norns_resource_t { r_flags: POSIX_PATH | access, r_place: norns_place_t { r_posix_path } }
}

#[unsafe(no_mangle)]
pub extern "C" fn NORNS_LOCAL_PATH(nsid: *const c_char, local: *const c_char) -> norns_resource_t {
    path(R_LOCAL, nsid, std::ptr::null(), local)
}

#[unsafe(no_mangle)]
pub extern "C" fn NORNS_REMOTE_PATH(
    nsid: *const c_char,
    host: *const c_char,
    remote: *const c_char,
) -> norns_resource_t {
    path(R_REMOTE, nsid, host, remote)
}

#[unsafe(no_mangle)]
pub extern "C" fn NORNS_SHARED_PATH(nsid: *const c_char, shared: *const c_char) -> norns_resource_t {
    path(R_SHARED, nsid, std::ptr::null(), shared)
}

/// # Safety
/// The pointers are NULL or valid.
unsafe fn iotask_init(
    task: *mut norns_iotask_t,
    op: norns_op_t,
    src: *const norns_resource_t,
    dst: *const norns_resource_t,
) {
    // SAFETY: the caller's promise, for all three.
    let (task, src, dst) = unsafe { (task.as_mut(), src.as_ref(), dst.as_ref()) };
    let Some(task) = task else { return };
    *task = match src {
        Some(src) => {
            norns_iotask_t { t_op: op, t_src: *src, t_dst: dst.copied().unwrap_or(NOTHING), ..NO_TASK }
        }
        None => NO_TASK,
    };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn norns_iotask_init(
    task: *mut norns_iotask_t,
    op: norns_op_t,
    src: *mut norns_resource_t,
    dst: *mut norns_resource_t,
) {
    // SAFETY: the caller's promise.
    unsafe { iotask_init(task, op, src, dst) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_iotask_init(
    task: *mut norns_iotask_t,
    op: norns_op_t,
    src: *mut norns_resource_t,
    dst: *mut norns_resource_t,
) {
    // SAFETY: the caller's promise.
    unsafe { iotask_init(task, op, src, dst) }
}

#[unsafe(no_mangle)]
pub extern "C" fn norns_strerror(errnum: norns_error_t) -> *mut c_char {
    text::strerror(errnum)
}

#[unsafe(no_mangle)]
pub extern "C" fn nornsctl_strerror(errnum: norns_error_t) -> *mut c_char {
    text::strerror(errnum)
}

#[unsafe(no_mangle)]
pub extern "C" fn NORNSCTL_BACKEND(
    flags: u32,
    track: bool,
    mount: *const c_char,
    capacity: u32,
) -> nornsctl_backend_t {
    nornsctl_backend_t { b_type: flags as c_int, b_track: track.into(), b_mount: mount, b_capacity: capacity }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_backend_init(
    backend: *mut nornsctl_backend_t,
    flags: u32,
    track: bool,
    mount: *const c_char,
    capacity: u32,
) {
    // SAFETY: the caller's promise.
    if let Some(backend) = unsafe { backend.as_mut() } {
        *backend = NORNSCTL_BACKEND(flags, track, mount, capacity);
    }
}

/// Without a name nothing of the limit is kept.
#[unsafe(no_mangle)]
pub extern "C" fn NORNSCTL_JOB_LIMIT(nsid: *const c_char, quota: u32) -> nornsctl_job_limit_t {
    nornsctl_job_limit_t { l_nsid: nsid, l_quota: if nsid.is_null() { 0 } else { quota } }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_job_limit_init(
    limit: *mut nornsctl_job_limit_t,
    nsid: *const c_char,
    quota: u32,
) {
    // SAFETY: the caller's promise.
    if let Some(limit) = unsafe { limit.as_mut() } {
        *limit = NORNSCTL_JOB_LIMIT(nsid, quota);
    }
}

/// Incomplete, all of it is zero.
#[unsafe(no_mangle)]
pub extern "C" fn NORNSCTL_JOB(
    hosts: *mut *const c_char,
    nhosts: usize,
    limits: *mut *mut nornsctl_job_limit_t,
    nlimits: usize,
) -> nornsctl_job_t {
    if hosts.is_null() || nhosts == 0 || limits.is_null() || nlimits == 0 {
        let (hosts, limits) = (std::ptr::null_mut(), std::ptr::null_mut());
        return nornsctl_job_t { j_hosts: hosts, j_nhosts: 0, j_limits: limits, j_nlimits: 0 };
    }
    nornsctl_job_t { j_hosts: hosts, j_nhosts: nhosts, j_limits: limits, j_nlimits: nlimits }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_job_init(
    job: *mut nornsctl_job_t,
    hosts: *mut *const c_char,
    nhosts: usize,
    limits: *mut *mut nornsctl_job_limit_t,
    nlimits: usize,
) {
    // SAFETY: the caller's promise.
    if let Some(job) = unsafe { job.as_mut() } {
        *job = NORNSCTL_JOB(hosts, nhosts, limits, nlimits);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nornsctl_proc_init(process: *mut nornsctl_proc_t, pid: i32, uid: u32, gid: u32) {
    // SAFETY: the caller's promise.
    if let Some(process) = unsafe { process.as_mut() } {
        *process = nornsctl_proc_t { p_pid: pid, p_uid: uid, p_gid: gid };
    }
}
