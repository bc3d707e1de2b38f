//! The published types, as `include/norns/*.h` has them; `tests/headers.rs` compares the two.
//!
//! Numbers that C calls enumerations or truth values are plain integers here: C may put anything there.

use std::ffi::{c_char, c_double, c_int, c_void};
use tidepool_norns::numbers::NULL_RESOURCE;

pub type norns_tid_t = u32;
pub type norns_flags_t = u32;
pub type norns_status_t = i32;
pub type norns_error_t = i32;
pub type norns_op_t = u32;

/// Longest mount point in a [`norns_dataspace_info_t`], with the zero byte at its end.
pub const NORNS_MOUNT_MAX: usize = 4096;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct norns_memory_region_t {
    pub b_addr: *mut c_void,
    pub b_size: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct norns_posix_path_t {
    pub p_nsid: *const c_char,
    /// NULL but for a remote path.
    pub p_host: *const c_char,
    pub p_path: *const c_char,
}

/// Without a name in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub union norns_place_t {
    pub r_buffer: norns_memory_region_t,
    pub r_posix_path: norns_posix_path_t,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct norns_resource_t {
    pub r_flags: norns_flags_t,
    pub r_place: norns_place_t,
}

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct norns_stat_t {
    pub st_status: norns_status_t,
    pub st_task_error: norns_error_t,
    pub st_sys_errno: c_int,
    pub st_pending: usize,
    pub st_total: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct norns_iotask_t {
    pub t_id: norns_tid_t,
    pub t_op: norns_op_t,
    pub t_src: norns_resource_t,
    pub t_dst: norns_resource_t,
    pub __t_status: norns_stat_t,
}

/// Ours: the paper's `get_dataspace_info` was never published.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct norns_dataspace_info_t {
    pub di_type: c_int,
    /// 0 or 1.
    pub di_track: u8,
    /// Bytes; 0 for no limit.
    pub di_capacity: u64,
    pub di_quota: u64,
    pub di_used: u64,
    pub di_mount: [c_char; NORNS_MOUNT_MAX],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct nornsctl_backend_t {
    pub b_type: c_int,
    /// 0 or 1.
    pub b_track: u8,
    pub b_mount: *const c_char,
    /// MiB.
    pub b_capacity: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct nornsctl_job_limit_t {
    pub l_nsid: *const c_char,
    /// MiB.
    pub l_quota: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct nornsctl_job_t {
    pub j_hosts: *mut *const c_char,
    pub j_nhosts: usize,
    pub j_limits: *mut *mut nornsctl_job_limit_t,
    pub j_nlimits: usize,
}

/// Ours: the paper's `proc_init` was never published.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct nornsctl_proc_t {
    pub p_pid: i32,
    pub p_uid: u32,
    pub p_gid: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct nornsctl_stat_t {
    pub st_running_tasks: usize,
    pub st_pending_tasks: usize,
    /// Seconds.
    pub st_eta: c_double,
}

/// No place: all zero.
pub const NOWHERE: norns_place_t = norns_place_t {
    r_posix_path: norns_posix_path_t {
        p_nsid: std::ptr::null(),
        p_host: std::ptr::null(),
        p_path: std::ptr::null(),
    },
};

/// No resource.
pub const NOTHING: norns_resource_t = norns_resource_t { r_flags: NULL_RESOURCE, r_place: NOWHERE };

/// All zero, as a fresh descriptor is.
pub const NO_TASK: norns_iotask_t = norns_iotask_t {
    t_id: 0,
    t_op: 0,
    t_src: norns_resource_t { r_flags: 0, r_place: NOWHERE },
    t_dst: norns_resource_t { r_flags: 0, r_place: NOWHERE },
    __t_status: norns_stat_t { st_status: 0, st_task_error: 0, st_sys_errno: 0, st_pending: 0, st_total: 0 },
};
