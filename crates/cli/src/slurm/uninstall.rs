//! `tidepool slurm uninstall`: takes away what `install` has put beside Slurm's configuration, once Slurm does not use it and
//! no job needs it any more.

use super::ask;
use super::flags::{SiteArg, UninstallArgs};
use super::install::{BUILT, InstalledAt, files, is_foreign, read_conf, setting_of, settings};
use crate::exit::{Context, Failure, Kind, Result};
use serde_json::json;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is to be done, all of it known before any of it is.
struct Plan {
    remove: Vec<PathBuf>,
    /// Files of the names of ours that are somebody else's, or have lines of others.
    stays: Vec<String>,
}

pub fn uninstall(args: &UninstallArgs) -> Result<ExitCode> {
    let plan = plan(&args.places);
    if !args.dry_run {
        let in_use = in_use(&args.places)?;
        if !in_use.is_empty() {
            let text = format!(
                "Slurm still uses it; take out of slurm.conf, and have slurmctld and the slurmds started again:\n  {}",
                in_use.join("\n  ")
            );
            return Err(Failure::new(Kind::Refused, text));
        }
        no_job_needs_it(args)?;
    }
    for path in &plan.remove {
        if !args.dry_run {
            fs::remove_file(path).context(Kind::Other, || path.display().to_string())?;
        }
        if !args.json {
            println!("{} {}", if args.dry_run { "would remove" } else { "removed" }, path.display());
        }
    }
    if !args.dry_run {
        // Whatever else is in it is somebody's.
        let _ = fs::remove_dir(&args.places.libexec);
    }
    if args.json {
        println!("{}", json!({"removed": plan.remove, "stays": plan.stays, "dry_run": args.dry_run}));
        return Ok(ExitCode::SUCCESS);
    }
    plan.stays.iter().for_each(|what| println!("stays: {what}"));
    println!(
        "stays: {} and the job book that it names ('state-dir'); keys; the nodes' stagers",
        args.places.site.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn plan(places: &InstalledAt) -> Plan {
    let mut plan = Plan { remove: Vec::new(), stays: Vec::new() };
    for path in files(places) {
        match is_file(&path) {
            true if is_foreign(&path) => plan.stays.push(format!("{} is not Tidepool's", path.display())),
            true => plan.remove.push(path),
            false => {}
        }
    }
    plan.remove.extend(BUILT.iter().map(|name| places.libexec.join(name)).filter(|path| is_file(path)));
    let plugstack = places.conf_dir.join("plugstack.conf");
    let text = fs::read_to_string(&plugstack).unwrap_or_default();
    let (ours, others): (Vec<&str>, Vec<&str>) = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .partition(|line| !line.trim_start().starts_with('#') && line.contains("spank_tidepool.so"));
    match (ours.first(), others.is_empty()) {
        (None, _) => {}
        (Some(_), true) => plan.remove.push(plugstack),
        (Some(line), false) => {
            plan.stays.push(format!("a line in {}, which you take out: {line}", plugstack.display()));
        }
    }
    plan
}

/// No link: what it leads to may be anything.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file())
}

/// Lines of slurm.conf by which Slurm would miss what is removed.
fn in_use(places: &InstalledAt) -> Result<Vec<String>> {
    let conf = match read_conf(&places.conf_dir) {
        Ok(conf) => conf,
        // Slurm is gone already.
        Err(_) if !places.conf_dir.join("slurm.conf").exists() => return Ok(Vec::new()),
        Err(why) => return Err(Failure::new(Kind::Other, why)),
    };
    let uses = |key: &str| match key {
        // A script of the site's own with that name is none of ours.
        "BurstBufferType" => !is_foreign(&places.conf_dir.join("burst_buffer.lua")),
        "JobSubmitPlugins" => !is_foreign(&places.conf_dir.join("job_submit.lua")),
        "Prolog" | "Epilog" => true,
        // Harmless without us.
        _ => false,
    };
    let named = settings(places).into_iter().filter(|setting| uses(setting.key)).filter_map(|setting| {
        let there = setting_of(&conf, &setting.key.to_lowercase())?;
        setting.is_in(there).then(|| format!("{}={there}", setting.key))
    });
    Ok(named.collect())
}

/// Jobs whose data are on nodes would be stranded.
fn no_job_needs_it(args: &UninstallArgs) -> Result<()> {
    match fs::metadata(&args.places.site) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.context(Kind::Other, || args.places.site.display().to_string())?,
    };
    let jobs = ask(&SiteArg { site: args.places.site.clone() }, &["jobs"])?;
    let open: Vec<String> = jobs
        .as_array()
        .into_iter()
        .flatten()
        .map(|job| format!("{} ({})", job["job"], job["phase"].as_str().unwrap_or_default()))
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    let text = format!(
        "jobs that still have something on nodes: {}; wait for them, or end them with scancel and 'tidepool slurm discard'",
        open.join(", ")
    );
    Err(Failure::new(Kind::Refused, text))
}
