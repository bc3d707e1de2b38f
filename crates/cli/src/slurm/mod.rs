//! Tidepool in Slurm: directives of job scripts, hooks, workflows (Miranda et al. 2019, Section III; ADA-FS, FORHLR
//! Section 4.2).

mod claims;
mod epilog;
pub mod flags;
mod hooks;
mod install;
mod keeper;
mod kept;
pub mod lint;
mod orders;
mod pools;
mod ready;
mod refusals;
mod resume;
mod scontrol;
mod show;
pub mod site;
mod stagers;
mod uninstall;

use crate::exit::Result;
use flags::{ReportArgs, SiteArg, SlurmCommand, WorkflowCommand};
use serde_json::{Value, json};
use site::Site;
use std::process::ExitCode;
use tidepool_batch::Phase;

pub fn dispatch(command: &SlurmCommand) -> Result<ExitCode> {
    match command {
        SlurmCommand::Lint(args) => lint::lint(args),
        SlurmCommand::Jobs(args) => {
            let jobs = ask(&args.site, &[if args.all { "jobs-all" } else { "jobs" }])?;
            print(&jobs, args.json, show::jobs_table);
            Ok(ExitCode::SUCCESS)
        }
        SlurmCommand::Report(args) => report(args),
        SlurmCommand::Resume(args) => resume::resume(args),
        SlurmCommand::Discard(args) => resume::discard(args),
        SlurmCommand::Kept(args) => kept::kept(args),
        SlurmCommand::Pools(args) => pools::pools(args),
        SlurmCommand::EndPool(args) => pools::end_pool(args),
        SlurmCommand::Sweep(args) => hooks::sweep(args),
        SlurmCommand::Install(args) => install::install(args),
        SlurmCommand::Uninstall(args) => uninstall::uninstall(args),
        SlurmCommand::Epilog(args) => epilog::epilog(args),
        SlurmCommand::Hook(args) => hooks::hook(args),
    }
}

pub fn workflow(command: &WorkflowCommand) -> Result<ExitCode> {
    match command {
        WorkflowCommand::Status(args) => {
            let whole = ask(&args.site, &["workflow", &args.id.to_string()])?;
            print(&whole, args.json, show::workflow_tree);
            show::workflow_failure(&whole).map_or(Ok(ExitCode::SUCCESS), Err)
        }
        WorkflowCommand::List(args) => {
            let all = ask(&args.site, &["workflows"])?;
            print(&all, args.json, |all| {
                all.as_array().into_iter().flatten().map(show::workflow_tree).collect()
            });
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn report(args: &ReportArgs) -> Result<ExitCode> {
    let mut told = ask(&args.site, &["job", &args.job.to_string()])?;
    let is_final = told["job"]["phase"].as_str().and_then(Phase::parse).is_some_and(Phase::is_final);
    told["job"]["queued_again"] = json!(is_final && scontrol::is_not_over(args.job) == Some(true));
    match &args.html {
        None => print(&told, args.json, show::report_text),
        Some(path) => {
            let page = show::report_html(&told);
            crate::outfile::put(path, page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn ask(site: &SiteArg, words: &[&str]) -> Result<Value> {
    // Users have no such file, and the controller answers.
    let site = if site.site.exists() { Some(Site::read(&site.site)?) } else { None };
    show::ask(site.as_ref(), words)
}

fn print(value: &Value, as_json: bool, text: impl Fn(&Value) -> String) {
    match as_json {
        true => println!("{value:#}"),
        false => print!("{}", text(value)),
    }
}
