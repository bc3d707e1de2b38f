//! The published messages (protobuf2, package `norns.rpc`).
//!
//! Fields that are `required` there are optional here, because this library would take a default for one
//! that is missing; `convert.rs` asks for them. On the wire there is no difference. Texts are
//! bytes where they are paths: the published library checks no encoding.

use prost::{Enumeration, Message};

/// What a request asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Kind {
    IotaskSubmit = 1,
    IotaskStatus = 2,
    Ping = 3,
    JobRegister = 4,
    JobUpdate = 5,
    JobUnregister = 6,
    ProcessAdd = 7,
    ProcessRemove = 8,
    NamespaceRegister = 9,
    NamespaceUpdate = 10,
    NamespaceUnregister = 11,
    GlobalStatus = 1000,
    CtlCommand = 1001,
}

/// What a response answers: the same numbers, and one for requests that could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ResponseKind {
    IotaskSubmit = 1,
    IotaskStatus = 2,
    Ping = 3,
    JobRegister = 4,
    JobUpdate = 5,
    JobUnregister = 6,
    ProcessAdd = 7,
    ProcessRemove = 8,
    NamespaceRegister = 9,
    NamespaceUpdate = 10,
    NamespaceUnregister = 11,
    GlobalStatus = 1000,
    CtlCommand = 1001,
    BadRequest = 2000,
}

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(enumeration = "Kind", optional, tag = "1")]
    pub r#type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub task: Option<Task>,
    #[prost(uint32, optional, tag = "3")]
    pub jobid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub job: Option<Job>,
    #[prost(message, optional, tag = "5")]
    pub process: Option<Process>,
    #[prost(message, optional, tag = "6")]
    pub nspace: Option<Namespace>,
    #[prost(message, optional, tag = "7")]
    pub command: Option<CtlCommand>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Task {
    #[prost(uint32, optional, tag = "1")]
    pub taskid: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub optype: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub source: Option<Resource>,
    #[prost(message, optional, tag = "4")]
    pub destination: Option<Resource>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// Flags of `numbers`.
    #[prost(uint32, optional, tag = "1")]
    pub r#type: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub buffer: Option<MemoryRegion>,
    #[prost(message, optional, tag = "4")]
    pub path: Option<PosixPath>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct MemoryRegion {
    #[prost(uint64, optional, tag = "1")]
    pub address: Option<u64>,
    /// 32 bits: nothing of 4 GiB or more can be said here.
    #[prost(uint32, optional, tag = "2")]
    pub size: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PosixPath {
    #[prost(string, optional, tag = "1")]
    pub nsid: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub hostname: Option<String>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub datapath: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    pub is_directory: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Job {
    #[prost(string, repeated, tag = "1")]
    pub hosts: Vec<String>,
    #[prost(message, repeated, tag = "2")]
    pub limits: Vec<Limit>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Limit {
    #[prost(string, optional, tag = "1")]
    pub nsid: Option<String>,
    /// MiB; the interface's `uint32_t` in a signed field.
    #[prost(int32, optional, tag = "2")]
    pub quota: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Process {
    #[prost(int64, optional, tag = "1")]
    pub uid: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    pub gid: Option<i64>,
    #[prost(int64, optional, tag = "3")]
    pub pid: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Namespace {
    #[prost(string, optional, tag = "1")]
    pub nsid: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub backend: Option<Backend>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Backend {
    #[prost(int32, optional, tag = "1")]
    pub r#type: Option<i32>,
    #[prost(bool, optional, tag = "2")]
    pub track: Option<bool>,
    #[prost(string, optional, tag = "3")]
    pub mount: Option<String>,
    /// MiB; the interface's `uint32_t` in a signed field.
    #[prost(int32, optional, tag = "4")]
    pub capacity: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct CtlCommand {
    #[prost(uint32, optional, tag = "1")]
    pub id: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Response {
    #[prost(enumeration = "ResponseKind", optional, tag = "1")]
    pub r#type: Option<i32>,
    /// The negative code's two's complement.
    #[prost(uint32, optional, tag = "2")]
    pub error_code: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub taskid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub stats: Option<TaskStats>,
    #[prost(message, optional, tag = "5")]
    pub gstats: Option<GlobalStats>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct TaskStats {
    #[prost(uint32, optional, tag = "1")]
    pub status: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub task_error: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub sys_errnum: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct GlobalStats {
    #[prost(uint32, optional, tag = "1")]
    pub running_tasks: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub pending_tasks: Option<u32>,
    /// Seconds.
    #[prost(double, optional, tag = "3")]
    pub eta: Option<f64>,
}
