//! The published numbers (norns_types.h, norns_error.h); the C headers have the same, and a test compares.
//!
//! Result codes are `tidepool_wire::stager::Code`.

/// Resource: memory of the calling process.
pub const PROCESS_MEMORY: u32 = 0x010_0000;
/// Resource: a path in a dataspace.
pub const POSIX_PATH: u32 = 0x020_0000;
/// Resource: none; what removing has for a destination.
pub const NULL_RESOURCE: u32 = 0x100_0000;
/// A path on this node; or-ed with [`POSIX_PATH`] like the next two.
pub const R_LOCAL: u32 = 0x10;
pub const R_REMOTE: u32 = 0x20;
pub const R_SHARED: u32 = 0x40;

pub const IOTASK_COPY: u32 = 1;
pub const IOTASK_MOVE: u32 = 2;
pub const IOTASK_REMOVE: u32 = 3;

pub const BACKEND_NVML: u32 = 0x1000_0001;
pub const BACKEND_LUSTRE: u32 = 0x1000_0002;
pub const BACKEND_ECHOFS: u32 = 0x1000_0003;
pub const BACKEND_POSIX_FILESYSTEM: u32 = 0x1000_0004;

pub const CMD_PING: u32 = 1000;
pub const CMD_PAUSE_LISTEN: u32 = 1001;
pub const CMD_RESUME_LISTEN: u32 = 1002;
pub const CMD_SHUTDOWN: u32 = 1003;

/// States of a task.
pub const EUNDEFINED: i32 = -100;
pub const EPENDING: i32 = -101;
pub const EINPROGRESS: i32 = -102;
pub const EFINISHED: i32 = -103;
pub const EFINISHEDWERROR: i32 = -104;

/// Code 512 has the text "Unknown error".
pub const ERRMAX: i32 = 512;

/// Capacities and quotas are counted in these.
pub const MIB: u64 = 1 << 20;
