//! How the data of files lie on the daemons: what a new pool gets, and `tidepool layout`.

use crate::access::{own_cred, stat};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{LayoutCommand, LayoutSetArgs, LayoutShowArgs, PoolShape};
use crate::{hints, instance};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use tidepool_client::{Client, Hint, Wanted, group_names, placer, possible};
use tidepool_plan::Plan;
use tidepool_types::{Attr, FileKind, Layout, Placement};

/// Daemons of a file that are named; more are counted.
const OWNERS_SHOWN: usize = 16;

/// What a pool file says of the spreading of data.
#[derive(Clone)]
pub struct Spread {
    pub layout: Layout,
    pub weights: Vec<u32>,
    pub groups: Vec<String>,
    pub hints: Vec<Hint>,
}

impl Spread {
    /// From a plan and the flags, all checked, for a pool of so many daemons.
    pub fn choose(shape: &PoolShape, plan: &Plan, daemons: usize) -> Result<Spread> {
        let (weights, groups) = (plan.weights.value.clone(), plan.groups.value.clone());
        let usage = |why: String| Failure::new(Kind::Usage, format!("--{why}"));
        let placer = placer(daemons, &weights, &groups).map_err(usage)?;
        let hints = match &shape.hints {
            Some(path) => hints::read(path)?,
            None => Vec::new(),
        };
        let layout = plan.layout().context(Kind::Usage, || "layout".into())?;
        let wanted = Wanted::from(layout);
        for wanted in hints.iter().map(|hint| &hint.wanted).chain([&wanted]) {
            possible(wanted, &placer).map_err(|why| {
                let text = format!("{why}; give --weights or --groups, one for each daemon");
                Failure::new(Kind::Usage, text)
            })?;
        }
        Ok(Spread { layout, weights, groups, hints })
    }
}

/// The data of a kept pool lie by the weights and groups it had.
pub fn as_kept<T: Clone + PartialEq + ToString>(
    flag: &str,
    said: &[T],
    kept: Option<&Vec<T>>,
) -> Result<Vec<T>> {
    match kept {
        Some(kept) if said.is_empty() || said == kept => Ok(kept.clone()),
        Some(kept) => {
            let had = kept.iter().map(T::to_string).collect::<Vec<_>>().join(",");
            let had = if had.is_empty() { "none".to_string() } else { had };
            let what = flag.trim_start_matches('-');
            let text =
                format!("{flag}: the data of this pool lie by its first {what} ({had}); leave the flag away");
            Err(Failure::new(Kind::Usage, text))
        }
        None => Ok(said.to_vec()),
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
    let group = args.group.as_deref().map(|name| group_number(&client, name)).transpose()?;
    let wanted = Wanted { group, ..args.shape.wanted() };
    if wanted == Wanted::default() && !args.as_pool {
        let text = "say what is to be set: --placement, --chunk-size, --stripe, --group or --as-pool";
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

fn group_number(client: &Client, name: &str) -> Result<u16> {
    client.pool().group_number(name).ok_or_else(|| {
        let names = group_names(&client.pool().groups).join(", ");
        let known = if names.is_empty() { "it has none".to_string() } else { format!("it has {names}") };
        Failure::new(Kind::Usage, format!("--group {name}: this pool has no such group; {known}"))
    })
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
        (FileKind::Regular, Some(layout)) => {
            format!("{layout}{}; {}", group_text(client, attr), owners_text(client, attr, layout))
        }
        (FileKind::Directory, Some(layout)) => {
            format!("files made here: {layout}{}", group_text(client, attr))
        }
        (FileKind::Directory, None) => {
            format!("files made here: as the pool says, {}", client.layout_in(attr))
        }
        _ => "no data".to_string(),
    };
    format!("{}: {what}", path.display())
}

fn group_text(client: &Client, attr: &Attr) -> String {
    group_of(client, attr, attr.layout).map(|name| format!(" ({name})")).unwrap_or_default()
}

/// The name of the group that a file's data lie on, or that a directory names for its files.
fn group_of(client: &Client, attr: &Attr, layout: Option<Layout>) -> Option<String> {
    let layout = layout.filter(|layout| layout.placement() == Placement::Group)?;
    let number = if attr.is_dir() { layout.named_group() } else { client.placer().group_of(attr.ino.home()) };
    Some((*group_names(&client.pool().groups).get(usize::from(number?))?).to_string())
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
        "group": group_of(client, attr, layout),
        "daemons": layout.filter(|_| is_file).map(|l| client.placer().chunk_owners(attr.ino, l)),
    })
    .to_string()
}
