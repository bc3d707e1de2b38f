//! `tidepool topology draw`.

use super::flags::DrawArgs;
use crate::access::stat;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolChoice;
use crate::instance::{self, Instance};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tidepool_client::Client;
use tidepool_sysmap::draw::{Mark, Marks, svg};
use tidepool_types::{DaemonIndex, FileKind, Layout, format_size};

/// Chunks of a file that are looked up: 8 TiB of those that are usual.
const CHUNKS_MAX: u64 = 1 << 24;

pub fn draw(args: &DrawArgs) -> Result<ExitCode> {
    let topology = super::need(&args.network)?;
    let marks = marks(args)?;
    let picture = svg(&topology, &marks);
    match args.output == Path::new("-") {
        true => std::io::stdout().lock().write_all(picture.as_bytes()).context(Kind::Other, || "-".into())?,
        false => crate::outfile::put(&args.output, picture)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn marks(args: &DrawArgs) -> Result<Marks> {
    if args.pool.is_none() && args.path.is_none() {
        return Ok(Marks { title: "network".into(), ..Marks::default() });
    }
    let instance = instance::find(&PoolChoice { pool: args.pool.clone() })?;
    let client = instance.client()?;
    let mut marks = of_pool(&instance, &client);
    if let Some(path) = &args.path {
        let chunks = chunks(&client, path)?;
        for daemon in 0..client.members() as DaemonIndex {
            let here = chunks.by_daemon.get(&daemon).copied().unwrap_or(0);
            let mark = marks.nodes.entry(client.host(daemon).into()).or_default();
            mark.chunks = Some(mark.chunks.unwrap_or(0) + here);
        }
        marks.notes.push(chunks.note(path));
    }
    Ok(marks)
}

/// The nodes that have daemons of a pool.
fn of_pool(instance: &Instance, client: &Client) -> Marks {
    let mut nodes: BTreeMap<String, Mark> = BTreeMap::new();
    for daemon in 0..client.members() as DaemonIndex {
        let mark = nodes.entry(client.host(daemon).into()).or_default();
        mark.daemons += 1;
    }
    let (daemons, count) = (client.members(), nodes.len());
    let note =
        format!("Filled: nodes with daemons of pool '{}' ({daemons} daemons, {count} nodes).", instance.name);
    Marks { title: format!("pool '{}'", instance.name), nodes, notes: vec![note] }
}

/// Where a file's chunks lie.
struct Chunks {
    size: u64,
    layout: Layout,
    counted: u64,
    all: u64,
    by_daemon: BTreeMap<DaemonIndex, u64>,
}

impl Chunks {
    fn note(&self, path: &Path) -> String {
        let Chunks { size, layout, counted, all, .. } = self;
        let some = if counted < all { format!("the first {counted} of ") } else { String::new() };
        format!("Numbers: {some}{all} chunks of {} ({}; {layout}).", path.display(), format_size(*size))
    }
}

fn chunks(client: &Client, path: &Path) -> Result<Chunks> {
    let attr = stat(client, path, true)?;
    let (FileKind::Regular, Some(layout)) = (attr.kind(), attr.layout) else {
        return Err(Failure::new(
            Kind::Other,
            format!("{}: it is no file, and has no chunks", path.display()),
        ));
    };
    let all = attr.size.div_ceil(layout.chunk_size());
    let counted = all.min(CHUNKS_MAX);
    let mut by_daemon = BTreeMap::new();
    for chunk in 0..counted {
        *by_daemon.entry(client.placer().chunk_owner(attr.ino, layout, chunk)).or_default() += 1;
    }
    Ok(Chunks { size: attr.size, layout, counted, all, by_daemon })
}
