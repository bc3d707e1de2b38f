//! In which directory the daemons keep their data.

use crate::facts::is_below;
use crate::{Asked, Basis, Choice, Job, Place, room};
use tidepool_types::format_size;

/// Directories that everybody can write to on every Linux.
const PUBLIC: [&str; 2] = ["/tmp", "/var/tmp"];
/// Kinds of disks, the fastest first; others come behind.
const KINDS: [&str; 4] = ["nvme", "ssd", "virtual", "hdd"];

/// A directory that all nodes have.
struct Candidate {
    path: String,
    /// Bytes that the node with the least can give.
    room: u64,
    /// Bytes per second that the slowest node writes, where all were measured.
    rate: Option<f64>,
    /// The slowest kind of disk among the nodes: its place in [`KINDS`].
    kind: usize,
}

pub(crate) fn choose(place: &Place, job: &Job, asked: &Asked) -> Choice<String> {
    if let Some((path, who)) = &asked.store {
        return Choice::new(path.clone(), Basis::Asked, *who);
    }
    let usual = PUBLIC[0].to_string();
    let mut candidates = candidates(place);
    if candidates.is_empty() {
        let why = "every node has it; that a better place is there is not known of all nodes";
        return Choice::new(usual, Basis::Usual, why);
    }
    let needed = job.bytes.max(job.stage_in).unwrap_or(0) / place.nodes.len() as u64;
    if candidates.iter().any(|c| c.room >= needed) {
        candidates.retain(|c| c.room >= needed);
    }
    let measured = candidates.iter().all(|c| c.rate.is_some());
    let best = candidates.into_iter().max_by(|a, b| better(a, b, measured)).expect("there is one");
    explain(best, measured, place)
}

/// By measured speed where all are measured, else by kind; then by room; then by name, `/tmp` first.
fn better(a: &Candidate, b: &Candidate, measured: bool) -> std::cmp::Ordering {
    let unusual = |c: &Candidate| (c.path != PUBLIC[0], c.path.clone());
    let rate = |c: &Candidate| c.rate.filter(|_| measured).unwrap_or(0.0);
    (rate(a).total_cmp(&rate(b)))
        .then_with(|| b.kind.cmp(&a.kind))
        .then_with(|| a.room.cmp(&b.room))
        .then_with(|| unusual(b).cmp(&unusual(a)))
}

fn explain(best: Candidate, measured: bool, place: &Place) -> Choice<String> {
    let Candidate { path, room, rate, kind } = best;
    let each = if place.nodes.len() > 1 { " on each node" } else { "" };
    let room = format!("room for {}{each}", format_size(room));
    match rate.filter(|_| measured) {
        Some(rate) => {
            let why = format!("{room}; it was measured to write {}/s", format_size(rate as u64));
            Choice::new(path, Basis::Measured, why)
        }
        None => {
            let kind = KINDS.get(kind).map_or("disks of unknown kind".into(), |kind| format!("{kind} disks"));
            Choice::new(path, Basis::Recorded, format!("{room}, on {kind}"))
        }
    }
}

fn candidates(place: &Place) -> Vec<Candidate> {
    let mut paths: Vec<&str> = PUBLIC.to_vec();
    for node in place.nodes {
        let measured = node.facts.iter().flat_map(|facts| &facts.rates).map(|rate| rate.path.as_str());
        paths.extend(node.writable.iter().map(String::as_str).chain(measured));
    }
    paths.sort_unstable();
    paths.dedup();
    paths.into_iter().filter_map(|path| candidate(place, path)).collect()
}

/// The directory, if each node's owner may write there, to a disk of the node's own.
fn candidate(place: &Place, path: &str) -> Option<Candidate> {
    let usable = place.of_all(|node, facts| {
        let known = PUBLIC.contains(&path)
            || node.writable.iter().any(|dir| dir == path)
            || facts.rates.iter().any(|rate| rate.path == path && rate.is_open_to(place.user));
        let fs = facts.filesystem_of(path).filter(|fs| known && !fs.read_only && !fs.in_memory())?;
        let kind = fs.disk_kind.as_deref();
        let kind = KINDS.iter().position(|known| Some(*known) == kind).unwrap_or(KINDS.len());
        // A mount point that is not listed would hide behind its parent's file system.
        is_below(path, &fs.target).then(|| (kind, facts.rate_of(path).map(|rate| rate.write.median)))
    })?;
    let room = room::rooms(place, path).into_iter().collect::<Option<Vec<u64>>>()?.into_iter().min()?;
    let rates: Option<Vec<f64>> = usable.iter().map(|(_, rate)| *rate).collect();
    Some(Candidate {
        path: path.into(),
        room,
        rate: rates.and_then(|rates| rates.into_iter().min_by(f64::total_cmp)),
        kind: usable.iter().map(|(kind, _)| *kind).max()?,
    })
}
