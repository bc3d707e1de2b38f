//! How the data of files lie on the daemons: what a new pool gets, and `tidepool layout`.

use crate::access::{own_cred, stat};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{LayoutCommand, LayoutSetArgs, LayoutShowArgs, PoolShape};
use crate::launch::Kept;
use crate::{hints, instance};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use tidepool_client::{Client, Hint, Wanted};
use tidepool_placement::Placer;
use tidepool_types::{Attr, FileKind, Layout, Placement};

/// Daemons of a file that are named; more are counted.
const OWNERS_SHOWN: usize = 16;

/// What a pool file says of the spreading of data.
pub struct Spread {
    pub layout: Layout,
    pub weights: Vec<u32>,
    pub hints: Vec<Hint>,
}

impl Spread {
    /// From the flags, all checked, for a pool of so many daemons.
    pub fn choose(shape: &PoolShape, daemons: usize, kept: Option<&Kept>) -> Result<Spread> {
        let weights = weights(shape, kept)?;
        let placer = Placer::new(daemons, &weights).context(Kind::Usage, || "--weights".into())?;
        let hints = match &shape.hints {
            Some(path) => hints::read(path)?,
            None => Vec::new(),
        };
        let mut wanted = shape.layout.wanted();
        if wanted.placement.is_none() && wanted.stripe.is_none() && placer.is_weighted() {
            wanted.placement = Some(Placement::Weighted);
        }
        let layout = wanted.on(Layout::default()).context(Kind::Usage, || "layout".into())?;
        let says_weighted = |wanted: &Wanted| wanted.placement == Some(Placement::Weighted);
        if !placer.is_weighted() && hints.iter().map(|h| &h.wanted).chain([&wanted]).any(says_weighted) {
            let text = "placement 'weighted' needs --weights, one number for each daemon";
            return Err(Failure::new(Kind::Usage, text));
        }
        Ok(Spread { layout, weights, hints })
    }
}

/// The data of a kept pool lie by the weights it had.
fn weights(shape: &PoolShape, kept: Option<&Kept>) -> Result<Vec<u32>> {
    match kept {
        Some(kept) if shape.weights.is_empty() || shape.weights == kept.weights => Ok(kept.weights.clone()),
        Some(kept) => {
            let had = kept.weights.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let had = if had.is_empty() { "none".to_string() } else { had };
            let text = format!(
                "--weights: the data of this pool lie by its first weights ({had}); leave the flag away"
            );
            Err(Failure::new(Kind::Usage, text))
        }
        None => Ok(shape.weights.clone()),
    }
}

pub fn dispatch(command: &LayoutCommand) -> Result<ExitCode> {
    match command {
        LayoutCommand::Set(args) => set(args),
        LayoutCommand::Show(args) => show(args),
    }
}

fn set(args: &LayoutSetArgs) -> Result<ExitCode> {
    let client = instance::find(&args.choice)?.client()?;
    let wanted = args.shape.wanted();
    if wanted == Wanted::default() && !args.as_pool {
        let text = "say what is to be set: --placement, --chunk-size, --stripe or --as-pool";
        return Err(Failure::new(Kind::Usage, text));
    }
    for path in &args.paths {
        let attr = stat(&client, path, true)?;
        let layout = match args.as_pool {
            true => None,
            false => {
                let base = client.layout_in(&attr);
                Some(wanted.on(base).context(Kind::Usage, || path.display().to_string())?)
            }
        };
        client
            .set_layout(attr.ino, layout, &own_cred())
            .context(Kind::Other, || path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &LayoutShowArgs) -> Result<ExitCode> {
    let client = instance::find(&args.choice)?.client()?;
    for path in &args.paths {
        let attr = stat(&client, path, true)?;
        let line = if args.json { json_line(&client, path, &attr) } else { text_line(&client, path, &attr) };
        println!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

fn text_line(client: &Client, path: &Path, attr: &Attr) -> String {
    let what = match (attr.kind(), attr.layout) {
        (FileKind::Regular, Some(layout)) => format!("{layout}; {}", owners_text(client, attr, layout)),
        (FileKind::Directory, Some(layout)) => format!("files made here: {layout}"),
        (FileKind::Directory, None) => {
            format!("files made here: as the pool says, {}", client.layout_in(attr))
        }
        _ => "no data".to_string(),
    };
    format!("{}: {what}", path.display())
}

fn owners_text(client: &Client, attr: &Attr, layout: Layout) -> String {
    let owners = client.placer().chunk_owners(attr.ino, layout);
    let named: Vec<String> = owners.iter().take(OWNERS_SHOWN).map(u16::to_string).collect();
    let more = owners.len() - named.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("daemons {}{rest}", named.join(" "))
}

fn json_line(client: &Client, path: &Path, attr: &Attr) -> String {
    let is_file = attr.kind() == FileKind::Regular;
    let layout = if attr.is_dir() { Some(client.layout_in(attr)) } else { attr.layout };
    json!({
        "path": path, "kind": format!("{:?}", attr.kind()), "as_pool": attr.is_dir() && attr.layout.is_none(),
        "placement": layout.map(|l| l.placement().word()),
        "chunk_size": layout.filter(|l| l.placement() != Placement::Local).map(Layout::chunk_size),
        "stripe": layout.map(Layout::stripe),
        "daemons": layout.filter(|_| is_file).map(|l| client.placer().chunk_owners(attr.ino, l)),
    })
    .to_string()
}
