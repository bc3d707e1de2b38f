//! What published requests ask of the stager, and what its replies are in published terms.

use crate::numbers::*;
use crate::paths::inside;
use crate::{
    Backend, GlobalStats, Job, Kind, Limit, Namespace, Process, Request, Resource, Response, ResponseKind,
    Task, TaskStats,
};
use tidepool_wire::stager::{
    self, Access, Code, Command, DataspaceKind, DataspaceSpec, JobLimit, JobSpec, Op, ProcessSpec, Refusal,
    Reply, StagerStatus, TaskSpec, TaskState, TaskStatus,
};

type Result<T> = std::result::Result<T, Refusal>;

impl Request {
    /// What is asked, when that can be told.
    pub fn kind(&self) -> Option<Kind> {
        Kind::try_from(self.r#type?).ok()
    }

    /// The same request to the stager.
    pub fn to_native(&self) -> Result<stager::Request> {
        let kind = self.kind().ok_or_else(|| incomplete("type"))?;
        Ok(match kind {
            Kind::IotaskSubmit => stager::Request::Submit { task: task(need(&self.task, "task")?)? },
            Kind::IotaskStatus => {
                stager::Request::Status { id: *need(&need(&self.task, "task")?.taskid, "taskid")? }
            }
            Kind::Ping => stager::Request::Ping {},
            Kind::JobRegister => stager::Request::RegisterJob { job: self.job_spec()? },
            Kind::JobUpdate => stager::Request::UpdateJob { job: self.job_spec()? },
            Kind::JobUnregister => stager::Request::UnregisterJob { job: self.job_number()? },
            Kind::ProcessAdd => stager::Request::AddProcess {
                job: self.job_number()?,
                process: process(need(&self.process, "process")?)?,
            },
            Kind::ProcessRemove => stager::Request::RemoveProcess {
                job: self.job_number()?,
                process: process(need(&self.process, "process")?)?,
            },
            Kind::NamespaceRegister => {
                stager::Request::RegisterDataspace { dataspace: dataspace(self.namespace()?)? }
            }
            Kind::NamespaceUpdate => {
                stager::Request::UpdateDataspace { dataspace: dataspace(self.namespace()?)? }
            }
            Kind::NamespaceUnregister => {
                stager::Request::UnregisterDataspace { name: need(&self.namespace()?.nsid, "nsid")?.clone() }
            }
            Kind::GlobalStatus => stager::Request::DaemonStatus {},
            Kind::CtlCommand => {
                let id = *need(&need(&self.command, "command")?.id, "command id")?;
                stager::Request::Command { command: command(id)? }
            }
        })
    }

    fn job_number(&self) -> Result<u32> {
        need(&self.jobid, "jobid").copied()
    }

    fn namespace(&self) -> Result<&Namespace> {
        need(&self.nspace, "nspace")
    }

    fn job_spec(&self) -> Result<JobSpec> {
        let Job { hosts, limits } = need(&self.job, "job")?;
        let limits = limits.iter().map(limit).collect::<Result<_>>()?;
        Ok(JobSpec { id: self.job_number()?, hosts: hosts.clone(), limits, bandwidth: 0 })
    }
}

fn incomplete(field: &str) -> Refusal {
    Refusal::new(Code::BAD_REQUEST, format!("the request has no valid {field}"))
}

fn need<'a, T>(field: &'a Option<T>, name: &str) -> Result<&'a T> {
    field.as_ref().ok_or_else(|| incomplete(name))
}

fn bad_args(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::BAD_ARGS, detail)
}

fn task(task: &Task) -> Result<TaskSpec> {
    // The published library sends 0; ids are the stager's to give.
    if *need(&task.taskid, "taskid")? != 0 {
        return Err(bad_args("the task has an id already: it has been submitted before"));
    }
    let number = *need(&task.optype, "optype")?;
    let src = resource(need(&task.source, "source")?)?;
    let src = src.ok_or_else(|| bad_args("a task needs a source"))?;
    let op = operation(number, &src)?;
    let dst = resource(need(&task.destination, "destination")?)?;
    match (op, &dst) {
        (Op::Remove, _) => Ok(TaskSpec::new(op, src, None)),
        (_, None) => Err(bad_args("the task needs a destination")),
        (_, Some(_)) => Ok(TaskSpec::new(op, src, dst)),
    }
}

/// What a published operation on a source is to the stager. Memory that is moved is copied and stays, as with NORNS.
pub fn operation(number: u32, src: &stager::Resource) -> Result<Op> {
    match number {
        IOTASK_COPY => Ok(Op::Copy),
        IOTASK_MOVE if matches!(src, stager::Resource::Memory { .. }) => Ok(Op::Copy),
        IOTASK_MOVE => Ok(Op::Move),
        IOTASK_REMOVE => Ok(Op::Remove),
        other => Err(bad_args(format!("unknown operation {other}"))),
    }
}

/// None for the null resource.
fn resource(from: &Resource) -> Result<Option<stager::Resource>> {
    let flags = *need(&from.r#type, "resource type")?;
    if flags == NULL_RESOURCE {
        return Ok(None);
    }
    if flags == PROCESS_MEMORY {
        let region = need(&from.buffer, "buffer")?;
        let (address, size) = (*need(&region.address, "address")?, *need(&region.size, "size")?);
        return Ok(Some(stager::Resource::Memory { address, size: size.into() }));
    }
    let access = match flags ^ POSIX_PATH {
        // Without an access type: as the paper's listing has it, a path on this node.
        R_LOCAL | 0 => Access::Local,
        R_REMOTE => Access::Remote,
        R_SHARED => Access::Shared,
        _ => return Err(bad_args(format!("unknown resource type {flags:#x}"))),
    };
    let path = need(&from.path, "path")?;
    let host = path.hostname.clone();
    if host.is_some() != (access == Access::Remote) {
        return Err(bad_args("a remote path needs a host, and no other may have one"));
    }
    let dataspace = need(&path.nsid, "nsid")?.clone();
    let path = inside(need(&path.datapath, "datapath")?).into();
    Ok(Some(stager::Resource::Path { access, dataspace, host, path }))
}

/// The field is signed, what it says is not.
fn mebibytes(field: i32) -> u64 {
    u64::from(field as u32) * MIB
}

fn limit(limit: &Limit) -> Result<JobLimit> {
    let quota = mebibytes(*need(&limit.quota, "quota")?);
    Ok(JobLimit { dataspace: need(&limit.nsid, "nsid")?.clone(), quota })
}

fn process(process: &Process) -> Result<ProcessSpec> {
    fn fits<T: TryFrom<i64>>(field: &Option<i64>, name: &str) -> Result<T> {
        let value = *need(field, name)?;
        T::try_from(value).map_err(|_| bad_args(format!("{value} is no {name}")))
    }
    Ok(ProcessSpec {
        pid: fits(&process.pid, "pid")?,
        uid: fits(&process.uid, "uid")?,
        gid: fits(&process.gid, "gid")?,
    })
}

fn dataspace(nspace: &Namespace) -> Result<DataspaceSpec> {
    let Backend { r#type, track, mount, capacity } = need(&nspace.backend, "backend")?;
    let kind = kind_of_backend(*need(r#type, "backend type")? as u32)?;
    let capacity = mebibytes(*need(capacity, "capacity")?);
    let (name, mount) = (need(&nspace.nsid, "nsid")?.clone(), need(mount, "mount")?.clone());
    if name.is_empty() || mount.is_empty() || capacity == 0 {
        return Err(bad_args("a namespace needs a name, a mount point and a capacity in MiB"));
    }
    let tracked = *need(track, "track")?;
    Ok(DataspaceSpec { name, kind, mount, tracked, capacity, streams_max: 0, bandwidth: 0 })
}

/// What a published backend type is to the stager.
pub fn kind_of_backend(number: u32) -> Result<DataspaceKind> {
    match number {
        BACKEND_NVML | BACKEND_POSIX_FILESYSTEM => Ok(DataspaceKind::Local),
        BACKEND_LUSTRE => Ok(DataspaceKind::Shared),
        BACKEND_ECHOFS => Err(Refusal::new(
            Code::NOT_SUPPORTED,
            "echofs is not supported: nor was it by NORNS; register its mount point as a POSIX file system",
        )),
        other => Err(bad_args(format!("unknown backend type {other:#x}"))),
    }
}

fn command(id: u32) -> Result<Command> {
    match id {
        CMD_PING => Ok(Command::Ping),
        CMD_PAUSE_LISTEN => Ok(Command::Pause),
        CMD_RESUME_LISTEN => Ok(Command::Resume),
        CMD_SHUTDOWN => Ok(Command::Shutdown),
        other => Err(bad_args(format!("unknown command {other}"))),
    }
}

impl Response {
    /// The stager's reply to a request of this kind.
    pub fn answer(kind: Kind, reply: &Reply) -> Response {
        let mut response = Response::of(Some(kind), Code::SUCCESS);
        match reply {
            Reply::Failed { refusal } => return Response::refuse(Some(kind), refusal),
            Reply::Submitted { id } => response.taskid = Some(*id),
            Reply::Task { status } => response.stats = Some(task_stats(status)),
            Reply::Daemon { status } => response.gstats = Some(global_stats(status)),
            // Of what a tracked namespace still holds nothing can be said here.
            Reply::Done {} | Reply::Leftovers { .. } => {}
            _ => response.error_code = Some(wire_code(Code::INTERNAL)),
        }
        response
    }

    /// A refusal, of a request whose kind is known or not.
    pub fn refuse(kind: Option<Kind>, refusal: &Refusal) -> Response {
        let readable = kind.filter(|_| refusal.code != Code::BAD_REQUEST);
        let mut response = Response::of(readable, refusal.code);
        // The published library looks for these before the code, and says "cannot receive" without them.
        match readable {
            Some(Kind::IotaskSubmit) => response.taskid = Some(0),
            Some(Kind::IotaskStatus) => response.stats = Some(no_stats()),
            Some(Kind::GlobalStatus) => response.gstats = Some(no_global_stats()),
            _ => {}
        }
        response
    }

    fn of(kind: Option<Kind>, code: Code) -> Response {
        let number = kind.map_or(ResponseKind::BadRequest as i32, |kind| kind as i32);
        Response { r#type: Some(number), error_code: Some(wire_code(code)), ..Response::default() }
    }

    /// The code a client sees.
    pub fn code(&self) -> Code {
        Code(self.error_code.unwrap_or(Code::INTERNAL.0 as u32) as i32)
    }
}

fn wire_code(code: Code) -> u32 {
    code.0 as u32
}

/// The published state of a task. A cancelled one has ended with an error, which says so.
pub fn state_number(state: TaskState) -> i32 {
    match state {
        TaskState::Pending => EPENDING,
        TaskState::Running => EINPROGRESS,
        TaskState::Finished => EFINISHED,
        TaskState::Failed | TaskState::Cancelled => EFINISHEDWERROR,
    }
}

/// Why a task has ended so, as a code.
pub fn task_error(status: &TaskStatus) -> Code {
    match status.state {
        TaskState::Pending | TaskState::Running | TaskState::Finished => Code::SUCCESS,
        TaskState::Cancelled => Code::CANCELLED,
        TaskState::Failed => status.refusal.code,
    }
}

fn task_stats(status: &TaskStatus) -> TaskStats {
    TaskStats {
        status: Some(state_number(status.state) as u32),
        task_error: Some(wire_code(task_error(status))),
        sys_errnum: Some(status.refusal.errno as u32),
    }
}

fn no_stats() -> TaskStats {
    TaskStats { status: Some(EUNDEFINED as u32), task_error: Some(0), sys_errnum: Some(0) }
}

fn no_global_stats() -> GlobalStats {
    GlobalStats { running_tasks: Some(0), pending_tasks: Some(0), eta: Some(f64::NAN) }
}

/// Seconds until nothing is left: 0 for an idle stager, NAN when it cannot be told.
pub fn eta_seconds(status: &StagerStatus) -> f64 {
    match status.eta_ms {
        Some(ms) => ms as f64 / 1000.0,
        None if status.running == 0 && status.pending == 0 => 0.0,
        None => f64::NAN,
    }
}

fn global_stats(status: &StagerStatus) -> GlobalStats {
    let count = |number: u64| Some(u32::try_from(number).unwrap_or(u32::MAX));
    GlobalStats {
        running_tasks: count(status.running),
        pending_tasks: count(status.pending),
        eta: Some(eta_seconds(status)),
    }
}
