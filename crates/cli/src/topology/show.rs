//! `tidepool topology show`.

use super::flags::ShowArgs;
use crate::exit::Result;
use crate::output::table;
use serde_json::{Value, json};
use std::process::ExitCode;
use tidepool_sysmap::Topology;
use tidepool_sysmap::hostlist;
use tidepool_sysmap::topology::Leaf;

pub fn show(args: &ShowArgs) -> Result<ExitCode> {
    let topology = super::need(&args.network)?;
    match args.json {
        true => println!("{:#}", as_json(&topology)),
        false => print!("{}", as_text(&topology)),
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(topology: &Topology) -> Value {
    let leaf = |leaf: &Leaf| {
        json!({
            "name": leaf.name, "island": leaf.island + 1, "hosts": leaf.hosts,
            "host_gigabits_per_second": topology.host_gigabits(&leaf.name),
            "uplink_gigabits_per_second": topology.uplink_gigabits(&leaf.name),
            "oversubscription": topology.oversubscription(&leaf.name),
        })
    };
    json!({
        "leaves": topology.leaves().iter().map(leaf).collect::<Vec<_>>(),
        "islands": topology.islands(),
        "racks": topology.racks(),
        "switches": topology.switches(),
        "ports": topology.ports(),
        "links": topology.links(),
    })
}

fn as_text(topology: &Topology) -> String {
    let mut blocks = vec![leaves(topology), links(topology)];
    if !topology.racks().is_empty() {
        blocks.push(racks(topology));
    }
    blocks.join("\n")
}

fn head(names: &[&str]) -> Vec<Vec<String>> {
    vec![names.iter().map(|name| name.to_string()).collect()]
}

/// A figure, or that it is not known.
fn or_unknown(figure: Option<f64>) -> String {
    figure.map_or_else(|| "?".into(), |figure| format!("{}", (figure * 100.0).round() / 100.0))
}

fn leaves(topology: &Topology) -> String {
    let mut rows =
        head(&["LEAF", "ISLAND", "HOSTS", "HOST GBIT/S", "UPLINK GBIT/S", "OVERSUBSCRIPTION", "NAMES"]);
    for Leaf { name, hosts, island } in topology.leaves() {
        rows.push(vec![
            name.clone(),
            (island + 1).to_string(),
            hosts.len().to_string(),
            or_unknown(topology.host_gigabits(name)),
            or_unknown(topology.uplink_gigabits(name)),
            or_unknown(topology.oversubscription(name)),
            hostlist::compress(hosts),
        ]);
    }
    table(&rows)
}

fn links(topology: &Topology) -> String {
    let mut rows = head(&["SWITCH", "SWITCH", "LINKS", "GBIT/S OF EACH"]);
    rows.extend(topology.links().iter().map(|link| {
        vec![link.a.clone(), link.b.clone(), link.count.to_string(), or_unknown(link.gigabits_per_second)]
    }));
    table(&rows)
}

fn racks(topology: &Topology) -> String {
    let mut rows = head(&["RACK", "HOSTS"]);
    rows.extend(topology.racks().iter().map(|rack| vec![rack.name.clone(), hostlist::compress(&rack.hosts)]));
    table(&rows)
}
