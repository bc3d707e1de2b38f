//! `tidepool stage map`: how data is laid out over nodes, as a list of tasks; and `env`: dataspaces as
//! variables for shells (Miranda et al. 2019, Sections III and IV-A).

use super::connect_to;
use super::flags::{MapArgs, NodeFlag};
use super::outcome::{Done, Result, Trouble};
use crate::exit::{Failure, Kind};
use serde_json::json;
use std::path::Path;
use tidepool_directives::show_word;
use tidepool_stage_client::{
    DataspaceKind, Mapping, MappingNode, Name, Resource, Stager, StagerAt, TaskSpec, env_name, show_place,
};

/// Bytes of a mapping file.
const FILE_BYTES_MAX: u64 = 256 << 20;

pub fn map(stager: &Stager, args: &MapArgs, secret_file: Option<&Path>) -> Result<Done> {
    let usage = |error: &dyn std::fmt::Display| Failure::new(Kind::Usage, error.to_string());
    let mapping = Mapping::parse(&args.mapping, read).map_err(|e| usage(&e))?;
    let entries = match mapping.needs_entries() {
        true => entries(stager, args, secret_file)?,
        false => Vec::new(),
    };
    let nodes: Vec<MappingNode> = args.node.iter().map(node).collect();
    let tasks = mapping.tasks(&args.source, &args.destination, &nodes, &entries).map_err(|e| usage(&e))?;
    let text: String = tasks.iter().map(line).collect();
    let list: Vec<_> = tasks
        .iter()
        .map(|task| json!({ "src": show_place(&task.src), "dst": task.dst.as_ref().map(show_place) }))
        .collect();
    Ok(Done::new(text, json!({ "tasks": list })))
}

fn node(flag: &NodeFlag) -> MappingNode {
    MappingNode { name: flag.name.clone(), address: flag.address.clone() }
}

fn read(path: &str) -> std::result::Result<String, String> {
    let meta = std::fs::metadata(path).map_err(|e| format!("{path}: {e}"))?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(format!("{path} has more than {FILE_BYTES_MAX} bytes"));
    }
    std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

/// Names in the source directory, as the stager that it is at sees them.
fn entries(stager: &Stager, args: &MapArgs, secret_file: Option<&Path>) -> Result<Vec<String>> {
    let usage = |why: String| Trouble::Own(Failure::new(Kind::Usage, why));
    let names = match &args.source {
        Resource::Path { dataspace, host: Some(host), path, .. } => {
            if secret_file.is_none() {
                let place = show_place(&args.source);
                let why = format!(
                    "the names in {place} are asked at {host}: give the stagers' secret with --secret-file"
                );
                return Err(usage(why));
            }
            let there = connect_to(&StagerAt::Address(host.clone()), secret_file)?;
            there.entries(&Resource::local(dataspace, path), args.on_behalf)?
        }
        here => stager.entries(here, args.on_behalf)?,
    };
    let text = |name: Name| {
        String::from_utf8(name.into_vec()).map_err(|error| {
            let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
            usage(format!("'{name}' is no UTF-8 text; use file:PATH"))
        })
    };
    names.into_iter().map(text).collect()
}

/// A task as a line of a task list (format 15).
fn line(task: &TaskSpec) -> String {
    let dst = task.dst.as_ref().map(|dst| show_word(show_place(dst).as_bytes())).unwrap_or_default();
    format!("copy {} {dst}\n", show_word(show_place(&task.src).as_bytes()))
}

/// `NVME0=/mnt/nvme0` for each directory that the caller may use.
pub fn env(stager: &Stager) -> Result<Done> {
    let spaces = stager.dataspaces()?;
    let directories = spaces
        .iter()
        .map(|info| &info.dataspace)
        .filter(|spec| matches!(spec.kind, DataspaceKind::Local | DataspaceKind::Shared));
    let variables: Vec<(String, String)> =
        directories.map(|spec| (env_name(&spec.name), spec.mount.clone())).collect();
    let text =
        variables.iter().map(|(name, mount)| format!("export {name}='{}'\n", mount.replace('\'', "'\\''")));
    let map: serde_json::Map<_, _> =
        variables.iter().map(|(name, mount)| (name.clone(), json!(mount))).collect();
    Ok(Done::new(text.collect(), json!(map)))
}
