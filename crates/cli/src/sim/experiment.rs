//! `tidepool sim experiment`: a system around a trace, ready for `sim run` and `sim tune`.

use super::files::keep;
use super::inputs_flags::{ExperimentArgs, StampsFlag};
use super::run::{read, text_of};
use crate::bench::report::identity;
use crate::exit::{Context, Failure, Kind, Result};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidepool_sim_models::experiment::{Experiment, TEXT_MAX};
use tidepool_sim_models::workload::Program;
use tidepool_types::CHUNK_SIZE_DEFAULT;

pub fn experiment(args: &ExperimentArgs) -> Result<ExitCode> {
    let system = match &args.system {
        Some(file) => system_of(file)?,
        None => assumed(args.servers),
    };
    let stamps = match args.stamps {
        StampsFlag::Recorded => "recorded",
        StampsFlag::Ignored => "ignored",
    };
    let mut load = toml::Table::new();
    for (key, value) in
        [("name", "recorded"), ("kind", "trace"), ("path", &beside(args)?), ("stamps", stamps)]
    {
        load.insert(key.into(), value.into());
    }
    let load = toml::to_string(&load).expect("text always serializes");
    let text = format!("{system}\n[[workload]]\n{load}");
    let (made, ranks, requests) = checked(args, &text)?;
    keep(&args.out, |out| out.write_all(text.as_bytes()))?;
    let servers: u32 = made.servers.iter().map(|servers| servers.class.count).sum();
    if args.json {
        let mut all = identity("sim-experiment");
        all["experiment"] = json!({
            "file": args.out, "ranks": ranks, "requests": requests, "servers": servers, "assumed": args.system.is_none(),
        });
        println!("{all}");
    } else {
        let out = args.out.display();
        println!("{out}: {requests} requests of {ranks} ranks on {servers} servers");
        if args.system.is_none() {
            println!("network, servers and devices are assumed: put what you have measured in their place");
        }
        println!("next: tidepool sim run {out}");
        println!("      tidepool sim tune {out} --vary stripe-size=64KiB,256KiB,1MiB,4MiB");
    }
    Ok(ExitCode::SUCCESS)
}

/// The trace as the experiment's file names it: beside it, or from the root.
fn beside(args: &ExperimentArgs) -> Result<String> {
    let whole = args.trace.canonicalize().context(Kind::Usage, || args.trace.display().to_string())?;
    let dir = args.out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.canonicalize().context(Kind::Usage, || args.out.display().to_string())?;
    let path = whole.strip_prefix(&dir).map_or(whole.clone(), PathBuf::from);
    path.to_str().map(String::from).ok_or_else(|| {
        Failure::new(
            Kind::Usage,
            format!("{}: its name is no UTF-8, as text files of experiments are", whole.display()),
        )
    })
}

/// Reads what will be written, with the trace, as `sim run` does; ranks and requests.
fn checked(args: &ExperimentArgs, text: &str) -> Result<(Experiment, usize, usize)> {
    let dir = args.out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let draft = tempfile::Builder::new().suffix(".toml").tempfile_in(dir);
    let draft = draft.context(Kind::Other, || dir.display().to_string())?;
    std::fs::write(draft.path(), text).context(Kind::Other, || args.out.display().to_string())?;
    let made = read(draft.path()).map_err(|error| {
        Failure::new(
            error.kind,
            error.to_string().replace(&*draft.path().to_string_lossy(), &args.out.to_string_lossy()),
        )
    })?;
    let Some(Program::Listed(all)) = made.applications.first().map(|all| &all.program) else {
        return Err(Failure::new(Kind::Other, "the experiment has no trace"));
    };
    let ranks = all.ranks.iter().filter(|rank| !rank.is_empty()).count();
    let requests = all.ranks.iter().map(Vec::len).sum();
    Ok((made, ranks, requests))
}

/// All of an experiment's file but its workloads.
fn system_of(file: &Path) -> Result<String> {
    let what = || file.display().to_string();
    let text = text_of(file, TEXT_MAX as u64).context(Kind::Usage, what)?;
    let mut table: toml::Table = text.parse().context(Kind::Usage, what)?;
    table.remove("workload");
    let system = toml::to_string(&table).context(Kind::Usage, what)?;
    Ok(format!("# The system of {}, with the workload below.\n{system}", what().replace('\n', " ")))
}

fn assumed(servers: u32) -> String {
    format!(
        "\
# The workload at the end was recorded. The system is ASSUMED: servers with a flash device and a link of 10 Gbit/s each.
# Put what you have measured in its place; keys: docs/formats/28-experiments.md.
seed = 1

[network]
latency = \"50us\"
client-bandwidth = \"1250MB\"

[server]
threads = 4
request = \"20us\"
metadata = \"50us\"

[[device]]
name = \"flash\"
kind = \"ssd\"
channels = 8
packages = 2
dies = 2
read = \"60us\"
program = \"400us\"
channel-rate = \"400MB\"
flush = \"500us\"

[[servers]]
name = \"daemon\"
count = {servers}
device = \"flash\"
bandwidth = \"1250MB\"

# A pool cuts files into chunks as this cuts them into stripes.
[layout]
stripe = {CHUNK_SIZE_DEFAULT}
"
    )
}
