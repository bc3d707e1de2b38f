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

use crate::exit;
use flags::{DataspaceCommand, JobCommand, PersistCommand, StageArgs, StageCommand};
use outcome::{Done, Result};
use std::process::ExitCode;
use tidepool_stage_client::{Command, Stager, control_socket, user_socket};

pub fn dispatch(args: &StageArgs) -> exit::Result<ExitCode> {
    let (node, outcome) = match &args.command {
        StageCommand::Start(start) => (None, own::start(start)),
        StageCommand::Stop(stop) => (None, own::stop(stop)),
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
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None if args.control || needs_control(&args.command) => control_socket(),
        None => user_socket(),
    };
    Ok(Stager::connect(socket)?)
}

/// What is for administrators only.
fn needs_control(command: &StageCommand) -> bool {
    match command {
        StageCommand::Submit(args) => args.spec.on_behalf.is_some(),
        StageCommand::Plan(spec) => spec.on_behalf.is_some(),
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
        | StageCommand::Map(_)
        | StageCommand::Where(_)
        | StageCommand::Env
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
        StageCommand::Map(args) => map::map(stager, args),
        StageCommand::Where(args) => whereabouts::find(stager, args),
        StageCommand::Env => map::env(stager),
        StageCommand::Dataspace(command) => admin::dataspace(stager, command),
        StageCommand::Job(command) => admin::job(stager, command),
        StageCommand::Persist(command) => admin::persist(stager, command),
        StageCommand::Policy { policy } => admin::policy(stager, *policy),
        StageCommand::Pause => admin::command(stager, Command::Pause, "takes no new tasks"),
        StageCommand::Unpause => admin::command(stager, Command::Resume, "takes new tasks"),
        StageCommand::Shutdown => admin::command(stager, Command::Shutdown, "ends"),
        StageCommand::Start(args) => own::start(args),
        StageCommand::Stop(args) => own::stop(args),
    }
}
