//! `tidepool workload`: I/O of the kind programs make, done by real processes and measured.
//! Guide: `docs/guide/workload.md`. What is done is data: crate `tidepool-workload`.

pub mod flags;
mod keeper;
mod measure;
mod picture;
mod report;
mod run;
mod show;
pub(crate) mod worker;

use crate::crew::PROCESSES_HERE_MAX;
use crate::exec;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{Door, PoolChoice};
use crate::instance;
use crate::signals::Signals;
use flags::{KeptArgs, PoolPath, RunArgs, Shape, ShowArgs, WorkloadCommand};
use run::{Keeper, Settings};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use tidepool_types::format_size;
use tidepool_workload::{Application, FILE_BYTES_MAX, Problem, read_file, read_one};

pub fn dispatch(command: &WorkloadCommand) -> Result<ExitCode> {
    match command {
        WorkloadCommand::Run(args) => run(args),
        WorkloadCommand::Show(args) => show(args),
        WorkloadCommand::Verify(args) => verify(args),
        WorkloadCommand::Clear(args) => clear(args),
        WorkloadCommand::Worker(args) => worker::run(args),
        WorkloadCommand::Keeper(args) => keeper::run(args),
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let applications = applications(args.file.as_deref(), args.kind.as_deref(), &args.shape)?;
    print!("{}", show::show(&applications, args.json));
    Ok(ExitCode::SUCCESS)
}

fn run(args: &RunArgs) -> Result<ExitCode> {
    let (kind, dir) = match (&args.places[..], &args.file) {
        ([kind, dir], None) => (Some(kind.to_string_lossy()), dir),
        ([dir], Some(_)) => (None, dir),
        (_, None) => {
            return Err(usage("write KIND and DIR, or --file FILE and DIR; 'tidepool workload run --help'"));
        }
        (_, Some(_)) => return Err(usage("with --file there is only DIR: the kinds are in the file")),
    };
    let applications = applications(args.file.as_deref(), kind.as_deref(), &args.shape)?;
    if args.dry_run {
        print!("{}", show::show(&applications, args.json));
        return Ok(ExitCode::SUCCESS);
    }
    let processes: u64 = applications.iter().map(|all| u64::from(all.processes)).sum();
    if processes > PROCESSES_HERE_MAX {
        let text = format!(
            "{processes} processes are more than the {PROCESSES_HERE_MAX} of one machine; set fewer processes"
        );
        return Err(usage(&text));
    }
    let (dir, environment) = place(dir, &args.reached)?;
    let in_pool = args.reached.pool.is_some() || std::env::var_os("TIDEPOOL_POOL").is_some();
    if !in_pool {
        has_room(&dir, &applications)?;
    }
    let settings = Settings {
        dir,
        in_pool,
        applications,
        environment,
        start_at: args.start_at,
        busy: args.busy,
        verify: args.verify,
        keep: args.keep,
        wipe: args.wipe,
    };
    let outcome = run::run(&settings)?;
    report::tell(args, &settings, &outcome)
}

fn verify(args: &KeptArgs) -> Result<ExitCode> {
    let signals = Signals::watch()?;
    let (mut keeper, _) = kept(args)?;
    let compared = keeper.verify(&signals)?;
    keeper.leave();
    report::tell_compared(&compared, args.json)
}

fn clear(args: &KeptArgs) -> Result<ExitCode> {
    let (mut keeper, names) = kept(args)?;
    keeper.answer("clear").map_err(|failure| failure.of_kind(Kind::Cleanup))?;
    keeper.leave();
    match args.json {
        true => println!("{}", serde_json::json!({ "cleared": names })),
        false => println!("cleared: {}", names.join(", ")),
    }
    Ok(ExitCode::SUCCESS)
}

/// A keeper of what is in a directory, and whose it is.
fn kept(args: &KeptArgs) -> Result<(Keeper, Vec<String>)> {
    let (dir, environment) = place(&args.dir, &args.reached)?;
    let mut keeper = Keeper::adopting(dir, &environment)?;
    let adopted = keeper.answer("adopt")?.adopted;
    Ok((keeper, adopted))
}

fn usage(text: &str) -> Failure {
    Failure::new(Kind::Usage, text)
}

fn applications(file: Option<&Path>, kind: Option<&str>, shape: &Shape) -> Result<Vec<Application>> {
    let Some(file) = file else {
        let table = shape.table(kind.unwrap_or_default());
        return read_one(&table).map(|one| vec![one]).map_err(|problems| wrong(&problems, "workload"));
    };
    let place = || file.display().to_string();
    let bytes = std::fs::metadata(file).context(Kind::Usage, place)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(usage(&format!("{}: larger than {FILE_BYTES_MAX} bytes", place())));
    }
    let text = std::fs::read_to_string(file).context(Kind::Usage, place)?;
    read_file(&text).map_err(|problems| wrong(&problems, &place()))
}

/// All that is wrong, each in a line.
fn wrong(problems: &[Problem], place: &str) -> Failure {
    let lines: Vec<String> = problems.iter().map(|problem| format!("{place}: {problem}")).collect();
    usage(&lines.join("\ntidepool: "))
}

/// Where the files are to be, and what processes need to get there.
fn place(dir: &Path, reached: &PoolPath) -> Result<(PathBuf, Vec<(OsString, OsString)>)> {
    let Some(pool) = &reached.pool else {
        let dir = std::path::absolute(dir).context(Kind::Usage, || dir.display().to_string())?;
        is_reached(&dir)?;
        return Ok((dir, Vec::new()));
    };
    let instance = instance::find(&PoolChoice { pool: Some(pool.clone()) })?;
    let preload = exec::uses_preload(&instance, reached.client.unwrap_or(Door::Auto))?;
    let inside: PathBuf = dir.components().filter(|part| *part != Component::RootDir).collect();
    if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(usage(&format!("{}: with --pool DIR is a path in the pool, as /w", dir.display())));
    }
    Ok((instance.mount_path().join(inside), exec::environment(&instance, preload)?))
}

/// A pool's path where it is not mounted leads to a directory on this node's disk, which is not what is meant.
fn is_reached(dir: &Path) -> Result<()> {
    let of = instance::list().into_iter().find(|instance| dir.starts_with(instance.mount_path()));
    let Some(instance) = of.filter(|instance| !exec::is_mounted(instance)) else { return Ok(()) };
    if std::env::var_os("TIDEPOOL_POOL").is_some() {
        return Ok(());
    }
    let text = format!(
        "{} is in pool '{}', which is not mounted here; write --pool {} and the path in the pool",
        dir.display(),
        instance.name,
        instance.name
    );
    Err(usage(&text))
}

/// What is written has room, as far as the file system tells.
fn has_room(dir: &Path, applications: &[Application]) -> Result<()> {
    let needed: u64 =
        applications.iter().fold(0, |sum, all| sum.saturating_add(all.tally_of_all().bytes_written));
    let there = [Some(dir), dir.parent()].into_iter().flatten().find(|path| path.is_dir());
    let Some(there) = there else {
        let text =
            format!("{}: neither it nor the directory above it is there; make that first", dir.display());
        return Err(Failure::new(Kind::Other, text));
    };
    let stat = rustix::fs::statvfs(there).context(Kind::Other, || there.display().to_string())?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if needed > free {
        let text = format!(
            "{}: {} are to be written, and {} are free; set fewer processes, steps or bytes ('tidepool workload show' tells what \
             they come to)",
            there.display(),
            format_size(needed),
            format_size(free)
        );
        return Err(Failure::new(Kind::Other, text));
    }
    Ok(())
}
