//! Descriptors of C as the stager's types.

use crate::guard::{Result, bad_args};
use crate::types::*;
use std::ffi::{CStr, c_char};
use std::time::Duration;
use tidepool_norns::numbers::*;
use tidepool_norns::{inside, kind_of_backend, operation, state_number, task_error};
use tidepool_stage_client::{
    Access, DataspaceInfo, DataspaceKind, DataspaceSpec, JobLimit, JobSpec, Op, Resource, StageError,
    TaskSpec, TaskStatus,
};

/// # Safety
/// NULL, or a string that ends with a zero byte and lives through the call.
unsafe fn bytes<'a>(from: *const c_char, what: &str) -> Result<&'a [u8]> {
    if from.is_null() {
        return Err(bad_args(&format!("the {what} is NULL")));
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    Ok(unsafe { CStr::from_ptr(from) }.to_bytes())
}

/// # Safety
/// As for [`bytes`].
pub unsafe fn string(from: *const c_char, what: &str) -> Result<String> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(from, what)? };
    let text = std::str::from_utf8(bytes).map_err(|_| bad_args(&format!("the {what} is not UTF-8 text")))?;
    if text.is_empty() {
        return Err(bad_args(&format!("the {what} is empty")));
    }
    Ok(text.to_string())
}

/// # Safety
/// What the flags say is in the union is there, and its strings are valid.
unsafe fn resource(from: &norns_resource_t) -> Result<Option<Resource>> {
    if from.r_flags == NULL_RESOURCE {
        return Ok(None);
    }
    if from.r_flags == PROCESS_MEMORY {
        // SAFETY: both members of the union are plain pointers and numbers; any bytes are valid.
        let region = unsafe { from.r_place.r_buffer };
        if region.b_addr.is_null() || region.b_size == 0 {
            return Err(bad_args("a memory region needs an address and a size"));
        }
        return Ok(Some(Resource::Memory { address: region.b_addr as u64, size: region.b_size as u64 }));
    }
    let access = match from.r_flags ^ POSIX_PATH {
        // Without an access type: as the paper's listing has it, a path on this node.
        R_LOCAL | 0 => Access::Local,
        R_REMOTE => Access::Remote,
        R_SHARED => Access::Shared,
        _ => return Err(bad_args(&format!("unknown resource type {:#x}", from.r_flags))),
    };
    // SAFETY: as above.
    let path = unsafe { from.r_place.r_posix_path };
    if path.p_host.is_null() == (access == Access::Remote) {
        return Err(bad_args("a remote path needs a host, and no other may have one"));
    }
    let host = match access {
        // SAFETY: the caller's promise.
        Access::Remote => Some(unsafe { string(path.p_host, "host")? }),
        _ => None,
    };
    // SAFETY: the caller's promise.
    let (dataspace, path) = unsafe { (string(path.p_nsid, "namespace")?, bytes(path.p_path, "path")?) };
    Ok(Some(Resource::Path { access, dataspace, host, path: inside(path).into() }))
}

/// # Safety
/// As for [`resource`], of both ends.
pub unsafe fn task(from: &norns_iotask_t) -> Result<TaskSpec> {
    // SAFETY: the caller's promise.
    let src = unsafe { resource(&from.t_src)? }.ok_or_else(|| bad_args("a task needs a source"))?;
    let op = operation(from.t_op, &src).map_err(StageError::Refused)?;
    if op == Op::Remove {
        return Ok(TaskSpec::new(op, src, None));
    }
    // SAFETY: the caller's promise.
    let dst = unsafe { resource(&from.t_dst)? }.ok_or_else(|| bad_args("the task needs a destination"))?;
    if let (Resource::Memory { .. }, Resource::Path { path, .. }) = (&src, &dst)
        && (path.is_empty() || path.ends_with(b"/"))
    {
        return Err(bad_args("memory cannot be copied to a directory: name a file"));
    }
    Ok(TaskSpec::new(op, src, Some(dst)))
}

/// The status as C has it.
pub fn stat(status: &TaskStatus) -> norns_stat_t {
    norns_stat_t {
        st_status: state_number(status.state),
        st_task_error: task_error(status).0,
        st_sys_errno: status.refusal.errno,
        st_pending: status.bytes_total.saturating_sub(status.bytes_done) as usize,
        st_total: status.bytes_total as usize,
    }
}

/// None for NULL: for ever.
pub fn timeout(from: Option<&libc::timespec>) -> Result<Option<Duration>> {
    let Some(from) = from else { return Ok(None) };
    let parts = (u64::try_from(from.tv_sec), u32::try_from(from.tv_nsec));
    let (Ok(seconds), Ok(nanoseconds @ 0..1_000_000_000)) = parts else {
        return Err(bad_args("the timeout is negative, or has a second or more of nanoseconds"));
    };
    Ok(Some(Duration::new(seconds, nanoseconds)))
}

/// # Safety
/// The strings are valid.
pub unsafe fn dataspace(nsid: *const c_char, from: &nornsctl_backend_t) -> Result<DataspaceSpec> {
    // SAFETY: the caller's promise.
    let (name, mount) = unsafe { (string(nsid, "namespace")?, string(from.b_mount, "mount point")?) };
    if from.b_capacity == 0 {
        return Err(bad_args("a namespace needs a capacity, in MiB"));
    }
    let kind = kind_of_backend(from.b_type as u32).map_err(StageError::Refused)?;
    let (tracked, capacity) = (from.b_track != 0, u64::from(from.b_capacity) * MIB);
    Ok(DataspaceSpec { name, kind, mount, tracked, capacity, streams_max: 0, bandwidth: 0 })
}

/// # Safety
/// Both lists are as long as their counts say, and their strings are valid.
pub unsafe fn job(id: u32, from: &nornsctl_job_t) -> Result<JobSpec> {
    if from.j_hosts.is_null() || from.j_nhosts == 0 || from.j_limits.is_null() || from.j_nlimits == 0 {
        return Err(bad_args("a job needs hosts and limits"));
    }
    // SAFETY: not NULL, and as long as the caller says.
    let (hosts, limits) = unsafe {
        (
            std::slice::from_raw_parts(from.j_hosts, from.j_nhosts),
            std::slice::from_raw_parts(from.j_limits, from.j_nlimits),
        )
    };
    // SAFETY: the caller's promise.
    let hosts = hosts.iter().map(|host| unsafe { string(*host, "host") }).collect::<Result<_>>()?;
    // SAFETY: the caller's promise.
    let limits = limits.iter().map(|each| unsafe { limit(*each) }).collect::<Result<_>>()?;
    Ok(JobSpec { id, hosts, limits, bandwidth: 0 })
}

/// # Safety
/// NULL, or valid with its string.
unsafe fn limit(from: *const nornsctl_job_limit_t) -> Result<JobLimit> {
    // SAFETY: the caller's promise.
    let from = unsafe { from.as_ref() }.ok_or_else(|| bad_args("a limit is NULL"))?;
    // SAFETY: the caller's promise.
    let dataspace = unsafe { string(from.l_nsid, "limit's namespace")? };
    Ok(JobLimit { dataspace, quota: u64::from(from.l_quota) * MIB })
}

/// The published type nearest to it; pools and object stores are ours and count as POSIX.
fn backend_of_kind(kind: DataspaceKind) -> u32 {
    match kind {
        DataspaceKind::Shared => BACKEND_LUSTRE,
        DataspaceKind::Local | DataspaceKind::Pool | DataspaceKind::Object => BACKEND_POSIX_FILESYSTEM,
    }
}

pub fn info(from: &DataspaceInfo) -> Result<norns_dataspace_info_t> {
    let mut mount = [0; NORNS_MOUNT_MAX];
    // One byte stays zero.
    let room = mount[..NORNS_MOUNT_MAX - 1].get_mut(..from.dataspace.mount.len());
    let room = room.ok_or_else(|| bad_args("the mount point is longer than NORNS_MOUNT_MAX"))?;
    for (to, byte) in room.iter_mut().zip(from.dataspace.mount.bytes()) {
        *to = byte as c_char;
    }
    Ok(norns_dataspace_info_t {
        di_type: backend_of_kind(from.dataspace.kind) as i32,
        di_track: from.dataspace.tracked.into(),
        di_capacity: from.dataspace.capacity,
        di_quota: from.quota,
        di_used: from.used,
        di_mount: mount,
    })
}
