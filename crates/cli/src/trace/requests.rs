//! What a trace of requests holds, for people and programs.

use crate::output::table;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidepool_io_traces::{Op, Trace};
use tidepool_types::format_size;

/// Requests and bytes of each operation.
fn by_op(trace: &Trace) -> BTreeMap<Op, (u64, u64)> {
    let mut all = BTreeMap::new();
    for request in &trace.requests {
        let (count, bytes) = all.entry(request.op).or_insert((0u64, 0u64));
        *count += 1;
        *bytes += request.length;
    }
    all
}

/// Ranks that have a request.
fn ranks(trace: &Trace) -> usize {
    let mut seen = vec![false; trace.ranks as usize];
    trace.requests.iter().for_each(|request| seen[request.rank as usize] = true);
    seen.into_iter().filter(|seen| *seen).count()
}

pub fn value(trace: &Trace) -> Value {
    let ops = by_op(trace)
        .into_iter()
        .map(|(op, (count, bytes))| (op.name().to_string(), json!({ "requests": count, "bytes": bytes })));
    json!({
        "ranks": ranks(trace),
        "files": trace.files.len(),
        "requests": trace.requests.len(),
        "ops": ops.collect::<serde_json::Map<_, _>>(),
        "span_ns": trace.span(),
        "ignored": trace.ignored,
        "notes": trace.notes,
    })
}

pub fn text(trace: &Trace) -> String {
    let mut text = format!(
        "{} requests of {} ranks to {} files in {:.6} s\n",
        trace.requests.len(),
        ranks(trace),
        trace.files.len(),
        trace.span() as f64 / 1e9
    );
    let mut rows = vec![["operation", "requests", "data"].map(String::from).to_vec()];
    for (op, (count, bytes)) in by_op(trace) {
        let data = if op.moves_data() { format_size(bytes) } else { String::new() };
        rows.push(vec![op.name().to_string(), count.to_string(), data]);
    }
    text += &table(&rows);
    for (what, all) in [("left out", &trace.ignored), ("note", &trace.notes)] {
        all.iter().for_each(|(why, count)| text += &format!("{what}: {count} {why}\n"));
    }
    text
}
