//! Dataspaces, jobs, kept locations, and the stager as a whole.

use crate::exit::{Failure, Kind};
use crate::flags::PoolChoice;
use crate::instance;
use crate::stage::flags::{
    DataspaceArgs, DataspaceCommand, JobArgs, JobCommand, PersistCommand, ProcessArgs, ReleaseArgs,
};
use crate::stage::outcome::{Done, Result, Trouble, failure_of};
use crate::stage::{ready, tasks};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidepool_stage_client::words::process_spec;
use tidepool_stage_client::{
    Command, DataspaceKind, DataspaceSpec, JobSpec, Leftover, PersistOp, Policy, ProcessSpec, Resource,
    Stager, TaskState, json, show, show_place,
};

pub fn dataspace(stager: &Stager, command: &DataspaceCommand) -> Result<Done> {
    match command {
        DataspaceCommand::List => {
            let all = stager.dataspaces()?;
            Ok(Done::new(show::dataspaces(&all), json::dataspaces(&all)))
        }
        DataspaceCommand::Register(args) => {
            stager.register_dataspace(&dataspace_spec(args)?)?;
            Ok(Done::told(format!("dataspace {} is registered", args.name)))
        }
        DataspaceCommand::Update(args) => {
            stager.update_dataspace(&dataspace_spec(args)?)?;
            Ok(Done::told(format!("dataspace {} is changed", args.name)))
        }
        DataspaceCommand::Unregister { name } => {
            stager.unregister_dataspace(name)?;
            Ok(Done::told(format!("dataspace {name} is forgotten; what lies in it stays")))
        }
        DataspaceCommand::Leftovers { name, max } => {
            let (entries, more) = stager.leftovers(name, *max)?;
            Ok(leftovers(&entries, more))
        }
    }
}

fn dataspace_spec(args: &DataspaceArgs) -> Result<DataspaceSpec> {
    Ok(DataspaceSpec {
        name: args.name.clone(),
        kind: if args.pool.is_some() { DataspaceKind::Pool } else { args.kind },
        mount: mount(args)?,
        tracked: args.track,
        capacity: args.capacity.unwrap_or(0),
        streams_max: args.streams.unwrap_or(0),
        bandwidth: args.bandwidth.unwrap_or(0),
    })
}

/// As the stager finds it: its own directory is another one than the caller's.
fn mount(args: &DataspaceArgs) -> Result<String> {
    let given = args.mount.clone().unwrap_or_default();
    if args.kind == DataspaceKind::Object {
        return Ok(given);
    }
    let path = match &args.pool {
        Some(_) => instance::find(&PoolChoice { pool: args.pool.clone() })?.pool_file(),
        None => given.into(),
    };
    let fail = |why: &str| Failure::new(Kind::Usage, format!("--mount '{}': {why}", path.display()));
    let whole = std::path::absolute(&path).map_err(|error| fail(&error.to_string()))?;
    Ok(whole.to_str().ok_or_else(|| fail("is no UTF-8 text"))?.to_string())
}

fn leftovers(entries: &[Leftover], more: bool) -> Done {
    let text = match entries {
        [] => "nothing is left\n".into(),
        entries => show::leftovers(entries, more),
    };
    Done::new(text, json::leftovers(entries, more))
}

pub fn job(stager: &Stager, command: &JobCommand, secret_file: Option<&Path>) -> Result<Done> {
    match command {
        JobCommand::Register(args) => {
            let (spec, id) = (job_spec(&args.job), args.job.job);
            match args.owner {
                Some(owner) => stager.register_job_of(&spec, owner)?,
                None => stager.register_job(&spec)?,
            }
            Ok(Done::told(format!("job {id} is registered")))
        }
        JobCommand::Update(args) => {
            stager.update_job(&job_spec(args))?;
            Ok(Done::told(format!("job {} is changed", args.job)))
        }
        JobCommand::Unregister { job } => {
            let (entries, more) = stager.unregister_job(*job)?;
            Ok(leftovers(&entries, more))
        }
        JobCommand::List => {
            let jobs = stager.jobs()?;
            Ok(Done::new(show::jobs(&jobs), json::jobs(&jobs)))
        }
        JobCommand::Report { job } => {
            let report = stager.job_report(*job)?;
            Ok(Done::new(show::report(&report), json::report(&report)))
        }
        // Several stagers may have tasks of a job.
        JobCommand::Ready(args) => ready::ready(stager, args, secret_file),
        JobCommand::Release(args) => release(stager, args),
        JobCommand::Retry(args) => ready::retry(stager, args, secret_file),
        JobCommand::AddProcess(args) => {
            stager.add_process(args.job, process(args)?)?;
            Ok(Done::told(format!("process {} and its children belong to job {}", args.pid, args.job)))
        }
        JobCommand::RemoveProcess(args) => {
            stager.remove_process(args.job, process(args)?)?;
            Ok(Done::told(format!("process {} belongs to job {} no more", args.pid, args.job)))
        }
    }
}

fn release(stager: &Stager, args: &ReleaseArgs) -> Result<Done> {
    let job = args.job;
    // Before, because some may fail at once.
    let mut held = if args.wait { stager.list(Some(job), Some(TaskState::Pending))? } else { Vec::new() };
    held.retain(show::is_held);
    let count = stager.release_job(job)?;
    let text = format!("{count} held task(s) of job {job} may start\n");
    if held.is_empty() {
        return Ok(Done::new(text, json!({ "job": job, "released": count, "tasks": [] })));
    }
    let ids: Vec<u32> = held.iter().map(|task| task.id).collect();
    let ended = stager.wait(&ids, false, None)?;
    let tasks: Vec<_> = ended.iter().map(json::task).collect();
    let failure = failure_of(&ended, &stager.node());
    let json = json!({ "job": job, "released": count, "tasks": tasks });
    Ok(Done { text: text + &show::tasks(&ended), json, failure })
}

fn job_spec(args: &JobArgs) -> JobSpec {
    JobSpec {
        id: args.job,
        hosts: args.hosts.clone(),
        limits: args.limits.clone(),
        bandwidth: args.bandwidth.unwrap_or(0),
    }
}

fn process(args: &ProcessArgs) -> Result<ProcessSpec> {
    let found = process_spec(args.pid, args.uid, args.gid);
    found.map_err(|why| Trouble::Own(Failure::new(Kind::Other, why)))
}

pub fn persist(stager: &Stager, command: &PersistCommand) -> Result<Done> {
    let ask = |op, location: &Resource, user, expires| -> Result<(String, Option<u32>)> {
        let (dataspace, path) = here(location)?;
        Ok((show_place(location), stager.persist(op, dataspace, path, user, expires)?))
    };
    match command {
        PersistCommand::Store { location, expires, owner } => {
            let until = expires.map_or(Ok(0), from_now)?;
            let (place, id) = ask(PersistOp::Store, location, owner.unwrap_or(0), until)?;
            settled(stager, id, format!("{place} is kept"))
        }
        PersistCommand::Delete { location } => {
            let (_, id) = ask(PersistOp::Delete, location, 0, 0)?;
            let text = id.map(|id| format!("{id}\n")).unwrap_or_default();
            Ok(Done::new(text, json!({ "id": id })))
        }
        PersistCommand::Share { location, uid } => {
            let (place, id) = ask(PersistOp::Share, location, *uid, 0)?;
            settled(stager, id, format!("user {uid} may read {place}"))
        }
        PersistCommand::Unshare { location, uid } => {
            let (place, id) = ask(PersistOp::Unshare, location, *uid, 0)?;
            settled(stager, id, format!("user {uid} may read {place} no more"))
        }
        PersistCommand::List => {
            let all = stager.persisted()?;
            Ok(Done::new(show::persisted(&all, now().as_secs()), json::persisted(&all)))
        }
    }
}

/// Says so when what is to be done to the files is done. Stagers of before give no task for it.
fn settled(stager: &Stager, task: Option<u32>, text: String) -> Result<Done> {
    let Some(id) = task else { return Ok(Done::told(text)) };
    let tasks = tasks::wait_showing(stager, &[id], false, None)?;
    match failure_of(&tasks, &stager.node()) {
        None => Ok(Done { json: json!({ "done": true, "id": id }), ..Done::told(text) }),
        failure => Ok(Done { text: String::new(), json: json::tasks(&tasks), failure }),
    }
}

/// A location is one of the stager that is asked.
fn here(location: &Resource) -> Result<(&str, &[u8])> {
    match location {
        Resource::Path { dataspace, host: None, path, .. } => Ok((dataspace, path)),
        other => {
            let text = format!(
                "{} is at another stager; ask that one, with --at or with --socket on its node",
                show_place(other)
            );
            Err(Trouble::Own(Failure::new(Kind::Usage, text)))
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// In seconds since 1970; 0, which means never, is not what somebody means who names a time.
fn from_now(time: Duration) -> Result<u64> {
    let too_long = || Trouble::Own(Failure::new(Kind::Usage, "--expires is too far away"));
    Ok(now().checked_add(time).ok_or_else(too_long)?.as_secs().max(1))
}

pub fn policy(stager: &Stager, policy: Policy) -> Result<Done> {
    stager.set_policy(policy)?;
    Ok(Done::told(format!("pending tasks of {} start in order {}", stager.node(), show::policy(policy))))
}

pub fn command(stager: &Stager, command: Command, what: &str) -> Result<Done> {
    stager.command(command)?;
    Ok(Done::told(format!("the stager of {} {what}", stager.node())))
}
