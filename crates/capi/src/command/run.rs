//! What each command does.

use crate::exit::{Failure, Result, TASK_FAILED};
use crate::flags::{
    Cli, Command, JobArgs, JobCommand, ListArgs, NamespaceArgs, NamespaceCommand, ProcessArgs,
    ProcessCommand, SpecArgs, SubmitArgs, TaskCommand, WaitArgs,
};
use crate::{json as norns_json, show as norns_show};
use clap::CommandFactory;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::Path;
use tidepool_stage_client::{
    self as stage, DataspaceSpec, JobSpec, OnBehalf, Op, ProcessSpec, StageError, Stager, TaskSpec,
    TaskState, TaskStatus, Verify, json, show,
};

/// What is printed, both ways, and the exit code.
pub struct Done {
    pub text: String,
    pub json: Value,
    pub exit: u8,
}

impl Done {
    fn new(text: String, json: Value) -> Done {
        Done { text, json, exit: 0 }
    }

    fn quiet() -> Done {
        Done::new(String::new(), json!({ "done": true }))
    }
}

pub fn run(cli: &Cli) -> Result<Done> {
    if let Command::Man { dir } = &cli.command {
        return write_manual(dir);
    }
    let stager = connect(cli)?;
    match &cli.command {
        Command::Man { dir } => write_manual(dir),
        Command::Ping => {
            stager.ping()?;
            let text = format!("{} answers\n", stager.node());
            Ok(Done::new(
                text,
                json!({ "node": stager.node(), "pid": stager.pid(), "control": stager.is_control() }),
            ))
        }
        Command::Status => {
            let status = stager.daemon_status()?;
            Ok(Done::new(show::daemon(&status), json::daemon(&status)))
        }
        Command::Pause => command(&stager, stage::Command::Pause),
        Command::Resume => command(&stager, stage::Command::Resume),
        Command::Shutdown => command(&stager, stage::Command::Shutdown),
        Command::Policy { policy } => quiet(stager.set_policy(policy.policy())),
        Command::Namespace(command) => namespace(&stager, command),
        Command::Job(command) => job(&stager, command),
        Command::Process(command) => process(&stager, command),
        Command::Task(command) => task(&stager, command),
    }
}

fn write_manual(dir: &Path) -> Result<Done> {
    let written = tidepool_man::write_pages(Cli::command(), dir);
    let count = written.map_err(|error| Failure::Other(format!("{}: {error}", dir.display())))?;
    Ok(Done::new(format!("{count} pages in {}\n", dir.display()), json!({ "pages": count })))
}

fn quiet(result: std::result::Result<(), StageError>) -> Result<Done> {
    result?;
    Ok(Done::quiet())
}

fn command(stager: &Stager, command: stage::Command) -> Result<Done> {
    quiet(stager.command(command))
}

/// The control socket; where it is closed to the caller, the user socket for what users may do.
fn connect(cli: &Cli) -> Result<Stager> {
    if let Some(socket) = &cli.socket {
        return Ok(Stager::connect(socket)?);
    }
    match Stager::connect(stage::control_socket()) {
        Err(StageError::Connect { source, .. })
            if matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound)
                && is_for_users(&cli.command) =>
        {
            Ok(Stager::connect(stage::user_socket())?)
        }
        result => Ok(result?),
    }
}

fn is_for_users(command: &Command) -> bool {
    match command {
        Command::Ping | Command::Status | Command::Task(_) => true,
        Command::Namespace(command) => matches!(command, NamespaceCommand::List),
        Command::Job(command) => matches!(command, JobCommand::Report { .. }),
        Command::Pause
        | Command::Resume
        | Command::Shutdown
        | Command::Policy { .. }
        | Command::Process(_)
        | Command::Man { .. } => false,
    }
}

fn namespace(stager: &Stager, command: &NamespaceCommand) -> Result<Done> {
    match command {
        NamespaceCommand::Register(args) => quiet(stager.register_dataspace(&dataspace(args))),
        NamespaceCommand::Update(args) => quiet(stager.update_dataspace(&dataspace(args))),
        NamespaceCommand::Unregister { nsid } => quiet(stager.unregister_dataspace(nsid)),
        NamespaceCommand::List => {
            let all = stager.dataspaces()?;
            Ok(Done::new(norns_show::dataspaces(&all), norns_json::dataspaces(&all)))
        }
        NamespaceCommand::Leftovers { nsid, max } => {
            let (entries, more) = stager.leftovers(nsid, *max)?;
            Ok(Done::new(show::leftovers(&entries, more), norns_json::leftovers(&entries, more)))
        }
    }
}

fn dataspace(args: &NamespaceArgs) -> DataspaceSpec {
    DataspaceSpec {
        name: args.nsid.clone(),
        kind: args.r#type.kind(),
        mount: args.mount.clone(),
        tracked: args.track,
        capacity: args.capacity.unwrap_or(0),
        streams_max: args.streams.unwrap_or(0),
        bandwidth: args.bandwidth.unwrap_or(0),
    }
}

fn job(stager: &Stager, command: &JobCommand) -> Result<Done> {
    match command {
        JobCommand::Register(args) => quiet(stager.register_job(&job_spec(args))),
        JobCommand::Update(args) => quiet(stager.update_job(&job_spec(args))),
        JobCommand::Unregister { job } => {
            let (entries, more) = stager.unregister_job(*job)?;
            Ok(Done::new(show::leftovers(&entries, more), norns_json::leftovers(&entries, more)))
        }
        JobCommand::List => {
            let jobs = stager.jobs()?;
            Ok(Done::new(show::jobs(&jobs), norns_json::jobs(&jobs)))
        }
        JobCommand::Report { job } => {
            let report = stager.job_report(*job)?;
            Ok(Done::new(show::report(&report), json::report(&report)))
        }
    }
}

fn job_spec(args: &JobArgs) -> JobSpec {
    JobSpec {
        id: args.job,
        hosts: args.hosts.clone(),
        limits: args.limits.clone(),
        bandwidth: args.bandwidth.unwrap_or(0),
    }
}

fn process(stager: &Stager, command: &ProcessCommand) -> Result<Done> {
    match command {
        ProcessCommand::Add(args) => quiet(stager.add_process(args.job, process_spec(args)?)),
        ProcessCommand::Remove(args) => quiet(stager.remove_process(args.job, process_spec(args)?)),
    }
}

fn process_spec(args: &ProcessArgs) -> Result<ProcessSpec> {
    tidepool_stage_client::words::process_spec(args.pid, args.uid, args.gid).map_err(Failure::Other)
}

fn task(stager: &Stager, command: &TaskCommand) -> Result<Done> {
    match command {
        TaskCommand::Submit(args) => submit(stager, args),
        TaskCommand::Plan(args) => {
            let plan = stager.plan(&task_spec(args)?)?;
            Ok(Done::new(show::plan(&plan), json::plan(&plan)))
        }
        TaskCommand::Status { task } => {
            let status = stager.status(*task)?;
            Ok(Done::new(show::task(&status), json::task(&status)))
        }
        TaskCommand::Wait(args) => wait(stager, args),
        TaskCommand::Cancel { task } => quiet(stager.cancel(*task)),
        TaskCommand::Resume { task } => quiet(stager.resume(*task)),
        TaskCommand::Forget { task } => quiet(stager.forget(*task)),
        TaskCommand::List(args) => list(stager, args),
    }
}

fn submit(stager: &Stager, args: &SubmitArgs) -> Result<Done> {
    let task = task_spec(&args.spec)?;
    if !args.wait {
        let id = stager.submit(&task)?;
        return Ok(Done::new(format!("{id}\n"), json!({ "id": id })));
    }
    let tasks = [stager.submit_and_wait(&task)?];
    Ok(Done { exit: exit_of(&tasks), text: show::tasks(&tasks), json: json::tasks(&tasks) })
}

fn task_spec(args: &SpecArgs) -> Result<TaskSpec> {
    let (op, dst) = (args.op.op(), args.destination.clone());
    match (op, &dst) {
        (Op::Remove, Some(_)) => return Err(Failure::Usage("a removal has no destination".into())),
        (Op::Copy | Op::Move, None) => return Err(Failure::Usage("a destination is missing".into())),
        _ => {}
    }
    let mut task = TaskSpec::new(op, args.source.clone(), dst);
    task.priority = args.priority;
    task.verify = match (args.no_verify, args.verify_disk) {
        (true, _) => Verify::No,
        (false, true) => Verify::Disk,
        (false, false) => Verify::Yes,
    };
    task.bandwidth = args.bandwidth.unwrap_or(0);
    task.on_behalf = args.owner.map(|(uid, gid)| OnBehalf { uid, gid, job: args.job.unwrap_or(0) });
    Ok(task)
}

fn wait(stager: &Stager, args: &WaitArgs) -> Result<Done> {
    let tasks = stager.wait(&args.tasks, args.any, args.timeout)?;
    Ok(Done { exit: exit_of(&tasks), text: show::tasks(&tasks), json: json::tasks(&tasks) })
}

/// With `--any` some may not have ended: those are no failures.
fn exit_of(tasks: &[TaskStatus]) -> u8 {
    let failed = |task: &TaskStatus| matches!(task.state, TaskState::Failed | TaskState::Cancelled);
    if tasks.iter().any(failed) { TASK_FAILED } else { 0 }
}

fn list(stager: &Stager, args: &ListArgs) -> Result<Done> {
    let tasks = stager.list(args.job, args.state.map(|state| state.state()))?;
    Ok(Done::new(show::tasks(&tasks), json::tasks(&tasks)))
}
