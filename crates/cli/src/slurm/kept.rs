//! `tidepool slurm kept`: what `persist store` keeps on the cluster's nodes.

use super::flags::KeptArgs;
use super::{ask, print};
use crate::exit::Result;
use crate::output::table;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_stage_client::show::duration;

pub fn kept(args: &KeptArgs) -> Result<ExitCode> {
    let own = rustix::process::geteuid().as_raw();
    let all = ask(&args.site, &["kept"])?;
    let shown: Vec<Value> = by_place(&all)
        .into_iter()
        .filter(|place| args.all || place["uid"] == own)
        .map(|mut place| {
            place["owner"] = json!(super::pools::owner(&place));
            place
        })
        .collect();
    print(&json!(shown), args.json, kept_table);
    Ok(ExitCode::SUCCESS)
}

/// One entry for all nodes that keep the same place for the same job.
fn by_place(all: &Value) -> Vec<Value> {
    let mut places: BTreeMap<(String, u64), Value> = BTreeMap::new();
    for one in all.as_array().into_iter().flatten() {
        let key =
            (one["place"].as_str().unwrap_or_default().to_string(), one["job"].as_u64().unwrap_or_default());
        let place = places.entry(key).or_insert_with(|| {
            json!({"place": one["place"], "uid": one["uid"], "job": one["job"], "expires": one["expires"], "nodes": []})
        });
        if let Some(nodes) = place["nodes"].as_array_mut() {
            nodes.push(one["node"].clone());
        }
        // Nodes settle one after the other; data are there as long as one has them.
        if one["expires"].as_u64() > place["expires"].as_u64() {
            place["expires"] = one["expires"].clone();
        }
    }
    places.into_values().collect()
}

fn kept_table(all: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let head = ["PLACE", "NODES", "OWNER", "JOB", "STAYS"].map(String::from).to_vec();
    let row = |place: &Value| {
        let stays = match place["expires"].as_u64() {
            None => "until it is deleted".to_string(),
            Some(end) if end <= now => "over".into(),
            Some(end) => duration((end - now).saturating_mul(1000)),
        };
        let owner = place["owner"].as_str().unwrap_or_default();
        let shown = place["place"].as_str().unwrap_or_default();
        vec![
            shown.into(),
            super::pools::words(&place["nodes"]),
            owner.into(),
            place["job"].to_string(),
            stays,
        ]
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head).chain(all.as_array().into_iter().flatten().map(row)).collect();
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_place_are_one_row() {
        let on = |node: &str, job: u32, expires: Option<u64>| json!({"place": "nvme0://mesh", "node": node, "uid": 7, "job": job, "expires": expires});
        let all = json!([on("n1", 5, Some(60)), on("n2", 5, Some(61)), on("n3", 6, None)]);
        let places = by_place(&all);
        assert_eq!(
            places,
            [
                json!({"place": "nvme0://mesh", "uid": 7, "job": 5, "expires": 61, "nodes": ["n1", "n2"]}),
                json!({"place": "nvme0://mesh", "uid": 7, "job": 6, "expires": null, "nodes": ["n3"]}),
            ]
        );
        let text = kept_table(&json!(places));
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["nvme0://mesh", "n1,n2", "5", "over"]);
        assert_eq!(rows[2], ["nvme0://mesh", "n3", "6", "until", "it", "is", "deleted"]);
    }
}
