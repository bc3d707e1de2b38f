//! `tidepool stage`: staging tasks and the administration of a node's stager.

mod admin;
pub mod flags;
mod lines;
mod map;
mod outcome;
mod own;
mod ready;
mod tasks;
mod watch;
mod whereabouts;

use crate::exit::{self, Failure, Kind};
use flags::{DataspaceCommand, JobCommand, PersistCommand, StageArgs, StageCommand};
use outcome::{Done, Result};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use tidepool_stage_client::{Command, Secret, Stager, StagerAt, control_socket, user_socket};

pub fn dispatch(args: &StageArgs) -> exit::Result<ExitCode> {
    let (node, outcome) = match &args.command {
        StageCommand::Start(start) => (None, demand_here(args).and_then(|()| own::start(start))),
        StageCommand::Stop(stop) => (None, demand_here(args).and_then(|()| own::stop(stop))),
        StageCommand::Key { file } => (None, key(file)),
        _ => match connect(args) {
            Ok(stager) => (Some(stager.node()), carry_out(&stager, args)),
            Err(trouble) => (None, Err(trouble)),
        },
    };
    match outcome {
        Ok(done) if args.json => {
            println!("{}", done.json);
            done.failure.map_or(Ok(ExitCode::SUCCESS), Err)
        }
        Ok(done) => {
            print!("{}", done.text);
            done.failure.map_or(Ok(ExitCode::SUCCESS), Err)
        }
        Err(trouble) => {
            if args.json {
                println!("{}", trouble.json(node.as_deref()));
            }
            Err(trouble.failure(node.as_deref()))
        }
    }
}

fn connect(args: &StageArgs) -> Result<Stager> {
    let at = match (&args.at, &args.socket) {
        (Some(address), _) => StagerAt::Address(address.clone()),
        (None, Some(socket)) => StagerAt::Socket(socket.clone()),
        (None, None) if args.control || needs_control(&args.command) => control_socket().into(),
        (None, None) => user_socket().into(),
    };
    connect_to(&at, args.secret_file.as_deref())
}

/// Connects to a stager of this node, or, with the stagers' secret, to one of another.
fn connect_to(at: &StagerAt, secret_file: Option<&Path>) -> Result<Stager> {
    match (at, secret_file) {
        (StagerAt::Socket(socket), _) => Ok(Stager::connect(socket)?),
        (StagerAt::Address(address), Some(file)) => Ok(Stager::connect_at(address, &read_secret(file)?)?),
        (StagerAt::Address(address), None) => {
            let text =
                format!("{address} is another node's stager: give the stagers' secret with --secret-file");
            Err(Failure::new(Kind::Usage, text).into())
        }
    }
}

/// The stagers' secret.
pub fn read_secret(file: &Path) -> exit::Result<Secret> {
    let fail = |why| Failure::new(Kind::Usage, format!("--secret-file {}: {why}", file.display()));
    Secret::read(file).map_err(fail)
}

/// What an administrator is known by.
fn key(file: &Path) -> Result<Done> {
    let key = read_secret(file)?.public_key().ok_or_else(|| {
        let text = format!(
            "{} has no key: a second line of 64 hexadecimal digits, as 'openssl rand -hex 32' prints them",
            file.display()
        );
        Failure::new(Kind::Usage, text)
    })?;
    let key = tidepool_transport::hex(&key);
    Ok(Done::new(format!("{key}\n"), json!({ "public_key": key })))
}

/// Stagers of one's own are started and stopped where they are.
fn demand_here(args: &StageArgs) -> Result<()> {
    match &args.at {
        None => Ok(()),
        Some(_) => {
            Err(Failure::new(Kind::Usage, "--at: a stager is started and stopped on its own node").into())
        }
    }
}

/// What is for administrators only.
fn needs_control(command: &StageCommand) -> bool {
    match command {
        StageCommand::Submit(args) => args.spec.on_behalf.is_some(),
        StageCommand::Plan(spec) => spec.on_behalf.is_some(),
        StageCommand::Map(args) => args.on_behalf.is_some(),
        StageCommand::Dataspace(command) => !matches!(command, DataspaceCommand::List),
        StageCommand::Job(command) => !matches!(command, JobCommand::Report { .. } | JobCommand::Retry(_)),
        StageCommand::Persist(command) => {
            matches!(command, PersistCommand::Store { owner: Some(_), .. })
        }
        StageCommand::Policy { .. }
        | StageCommand::Pause
        | StageCommand::Unpause
        | StageCommand::Shutdown => true,
        StageCommand::Status(_)
        | StageCommand::List(_)
        | StageCommand::Wait(_)
        | StageCommand::Cancel(_)
        | StageCommand::Resume(_)
        | StageCommand::Forget(_)
        | StageCommand::Where(_)
        | StageCommand::Env
        | StageCommand::Key { .. }
        | StageCommand::Start(_)
        | StageCommand::Stop(_) => false,
    }
}

fn carry_out(stager: &Stager, args: &StageArgs) -> Result<Done> {
    match &args.command {
        StageCommand::Submit(args) => tasks::submit(stager, args),
        StageCommand::Plan(spec) => tasks::plan(stager, spec),
        StageCommand::Status(status) => tasks::status(stager, status, args.json),
        StageCommand::List(selection) => tasks::list(stager, selection),
        StageCommand::Wait(args) => tasks::wait(stager, args),
        StageCommand::Cancel(ids) => tasks::each(stager, &ids.tasks, "is told to end", Stager::cancel),
        StageCommand::Resume(ids) => tasks::each(stager, &ids.tasks, "goes on", Stager::resume),
        StageCommand::Forget(ids) => tasks::each(stager, &ids.tasks, "is forgotten", Stager::forget),
        StageCommand::Map(map) => map::map(stager, map, args.secret_file.as_deref()),
        StageCommand::Where(args) => whereabouts::find(stager, args),
        StageCommand::Env => map::env(stager),
        StageCommand::Dataspace(command) => admin::dataspace(stager, command),
        StageCommand::Job(command) => admin::job(stager, command, args.secret_file.as_deref()),
        StageCommand::Persist(command) => admin::persist(stager, command),
        StageCommand::Policy { policy } => admin::policy(stager, *policy),
        StageCommand::Pause => admin::command(stager, Command::Pause, "takes no new tasks"),
        StageCommand::Unpause => admin::command(stager, Command::Resume, "takes new tasks"),
        StageCommand::Shutdown => admin::command(stager, Command::Shutdown, "ends"),
        StageCommand::Key { file } => key(file),
        StageCommand::Start(args) => own::start(args),
        StageCommand::Stop(args) => own::stop(args),
    }
}
