//! `tidepool slurm lint`.

use super::flags::LintArgs;
use super::refusals::{asked_by, refusals};
use super::site::Site;
use crate::exit::{Context, Kind, Result};
use crate::flags::STRATEGY;
use crate::output::table;
use serde_json::json;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use tidepool_directives::{
    At, Directives, Flush, Lifetime, Mapping, MappingText, Persist, PersistOp, PoolRequest, Problem, Reading,
    SCRIPT_BYTES_MAX, Stage, TierRequest, Workflow, show_kept_for,
};
use tidepool_types::format_size;

pub fn lint(args: &LintArgs) -> Result<ExitCode> {
    let shown = args.script.display().to_string();
    let script = read(&args.script).context(Kind::Other, || shown.clone())?;
    let site = Site::load(args.site.as_deref())?;
    let mut reading = Reading::of(&script);
    reading.problems.extend(refusals(&reading.directives, &asked_by(&script)));
    if let Some(site) = &site {
        reading.problems.extend(site.check(&reading.directives)?);
    }
    reading.problems.sort_by_key(place);
    match args.json {
        true => println!("{:#}", as_json(&shown, &reading, site.as_ref())),
        false => print!("{}", as_text(&shown, &reading, site.as_ref())),
    }
    let fits = reading.problems.is_empty();
    Ok(if fits { ExitCode::SUCCESS } else { ExitCode::from(Kind::PlanProblems.code()) })
}

/// A script's text; `-` is standard input.
pub fn read(script: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than a script may have, so that the parser tells of it.
    let most = SCRIPT_BYTES_MAX as u64 + 1;
    match script == Path::new("-") {
        true => std::io::stdin().lock().take(most).read_to_end(&mut bytes)?,
        false => std::fs::File::open(script)?.take(most).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

/// Problems or warnings as editors read them.
pub fn lines(script: &str, kind: &str, told: &[Problem]) -> String {
    let line = |problem: &Problem| {
        let (line, column) = place(problem);
        format!("{script}:{line}:{column}: {kind}: {}\n", problem.what())
    };
    told.iter().map(line).collect()
}

pub fn place(problem: &Problem) -> (usize, usize) {
    match problem.at {
        At::Line { line, column } => (line, column),
        At::Option { column, .. } => (0, column),
    }
}

fn as_json(script: &str, reading: &Reading, site: Option<&Site>) -> serde_json::Value {
    json!({
        "script": script,
        "site": site.map(|site| &site.file),
        "problems": reading.problems,
        "warnings": reading.warnings,
        "directives": reading.problems.is_empty().then_some(&reading.directives),
    })
}

fn as_text(script: &str, reading: &Reading, site: Option<&Site>) -> String {
    let mut text = lines(script, "error", &reading.problems) + &lines(script, "warning", &reading.warnings);
    if !reading.problems.is_empty() {
        return text;
    }
    let rows = rows(&reading.directives);
    if rows.is_empty() {
        return text + &format!("{script} has no directives\n");
    }
    text.push_str(&table(&rows));
    if site.is_none() {
        text.push_str(
            "Dataspaces and users were not checked: there is no site's file; --site FILE names one.\n",
        );
    }
    text
}

/// What a job asks for, in words.
fn rows(all: &Directives) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |what: &str, words: String| rows.push(vec![what.to_string(), words]);
    all.pools.iter().for_each(|pool| row("pool", pool_words(pool)));
    if all.reserve {
        row("reserve", "nodes first, so that data are there when the job starts".into());
    }
    all.stage_in.iter().for_each(|stage| row("stage in", stage_words(stage)));
    all.stage_out.iter().for_each(|stage| row("stage out", stage_words(stage)));
    for (what, time) in [("stage in", all.timeouts.stage_in), ("stage out", all.timeouts.stage_out)] {
        time.into_iter().for_each(|time| row(what, format!("for at most {} s", time.as_secs())));
    }
    all.persist.iter().for_each(|persist| row("persist", persist_words(persist)));
    if all.workflow.is_any() {
        row("workflow", workflow_words(&all.workflow));
    }
    all.resume.iter().for_each(|job| row("resume", format!("finish the stage-out of job {job}")));
    all.discard
        .iter()
        .for_each(|job| row("discard", format!("results of job {job} that are not staged out")));
    all.end_pool.iter().for_each(|pool| row("end", format!("pool {pool}, with all that is in it")));
    for buffer in &all.slurm {
        row("Slurm", format!("{} of its burst-buffer pool '{}'", buffer.capacity, buffer.pool));
    }
    rows
}

fn pool_words(pool: &PoolRequest) -> String {
    let said = |key: &str, value: Option<String>| value.map(|value| format!("{key}={value}"));
    let words = [
        Some(pool.dataspace()),
        pool.size.as_ref().map(|size| format!("of {}", format_size(size.value))),
        pool.nodes.map(|nodes| format!("on {nodes} nodes")),
        pool.lifetime.map(lifetime_words),
        said("fs", pool.fs.as_ref().map(ToString::to_string)),
        said("deploy", pool.deploy.map(|deploy| deploy.to_string())),
        said("mode", pool.mode.map(|mode| mode.to_string())),
        said("placement", pool.placement.map(|placement| placement.word().into())),
        said("chunk-size", pool.chunk_size.map(|size| format_size(size.bytes()))),
        said("stripe", pool.stripe.map(|stripe| stripe.to_string())),
        said("client", pool.client.map(|client| client.to_string())),
        said("encrypt", pool.encrypt.map(|encryption| encryption.to_string())),
        tier_words(&pool.tiers),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Shared storage that a pool uses, if any.
pub fn tier_words(tiers: &TierRequest) -> Option<String> {
    let strategy = tiers.strategy.as_deref().unwrap_or(STRATEGY);
    let words = [
        tiers.burst.as_ref().map(|dir| format!("burst buffer {dir}")),
        tiers.pfs.as_ref().map(|dir| format!("parallel file system {dir}")),
        Some(format!("strategy {strategy}")),
        (tiers.flush == Some(Flush::Idle)).then(|| "flushed only while nothing is written".into()),
        (tiers.no_local == Some(true)).then(|| "no new data on the nodes' own storage".into()),
        tiers.phase_bytes.map(|bytes| format!("{} of each process in a phase", format_size(bytes))),
        tiers.link_bandwidth.map(|bytes| format!("{}/s from each node", format_size(bytes.get()))),
    ];
    tiers.is_any().then(|| words.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn lifetime_words(lifetime: Lifetime) -> String {
    match lifetime {
        Lifetime::Job | Lifetime::Workflow => format!("until the end of the {lifetime}"),
        Lifetime::Campaign => "until you end it".into(),
    }
}

fn stage_words(stage: &Stage) -> String {
    let how = stage.mapping.as_ref().map(|mapping| format!("; {}", mapping_words(mapping)));
    format!("{} to {}{}", stage.origin, stage.destination, how.unwrap_or_default())
}

pub fn mapping_words(mapping: &MappingText) -> String {
    match mapping {
        Mapping::Replicate => "every node gets all of it".into(),
        Mapping::Scatter => "its entries go to the nodes in turn".into(),
        Mapping::ScatterByRank { before, after } => {
            format!("its entries go to the nodes by their ranks, {before}{{rank}}{after}")
        }
        Mapping::Gather => "from all nodes into one directory".into(),
        Mapping::GatherApart { name } => format!("from each node into its own directory, {name}"),
        Mapping::File(path) => format!("which entry goes to which node stands in {path}"),
    }
}

fn persist_words(persist: &Persist) -> String {
    let Persist { op, location, user, expires } = persist;
    let of = user.as_ref().map(|user| format!(", of {user}")).unwrap_or_default();
    let user = user.as_ref().map_or("", |user| user.as_str());
    match op {
        PersistOp::Store => match expires {
            None => format!("{location} stays when the job has ended{of}"),
            Some(time) => format!("{location} stays for {} when the job has ended{of}", show_kept_for(*time)),
        },
        PersistOp::Delete => format!("{location} goes{of}"),
        PersistOp::Share => format!("{user} may read {location}"),
        PersistOp::Unshare => format!("{user} may not read {location} any more"),
    }
}

fn workflow_words(workflow: &Workflow) -> String {
    let name = workflow.name.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
    let prior: Vec<String> = workflow.prior.iter().map(ToString::to_string).collect();
    let words = [
        workflow.start.then(|| format!("the first job of a new one{name}")),
        (!prior.is_empty()).then(|| format!("after job {}", prior.join(", "))),
        workflow.same_nodes.then(|| "on the same nodes".into()),
        workflow.end.then(|| "the last job".into()),
    ];
    words.into_iter().flatten().collect::<Vec<String>>().join(", ")
}
