//! `tidepool topology flow`.

use super::flags::{FlowArgs, PoolsFlag, RoutingFlag};
use crate::exit::{Context, Failure, Kind, Result};
use crate::output::table;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use tidepool_sysmap::flow::{self, Bottleneck, FlowError, Outcome, Pools, Range, Routing, Scenario};
use tidepool_sysmap::hostlist;

pub fn flow(args: &FlowArgs) -> Result<ExitCode> {
    let scenario = scenario(args)?;
    let topology = super::need(&args.network)?;
    let outcome = flow::run(&topology, &scenario).map_err(failed)?;
    if args.json {
        let text = serde_json::to_string_pretty(&outcome).context(Kind::Other, || "the outcome".into())?;
        println!("{text}");
    } else if args.csv {
        print!("{}", as_csv(args, &outcome));
    } else {
        print!("{}", as_text(&outcome));
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(error: FlowError) -> Failure {
    Failure::new(Kind::Other, error.to_string())
}

fn scenario(args: &FlowArgs) -> Result<Scenario> {
    let list = |flag: &str, list: &Option<String>| match list {
        Some(list) => hostlist::expand(list).context(Kind::Usage, || flag.into()),
        None => Ok(Vec::new()),
    };
    let pools = match args.pools {
        PoolsFlag::None => Pools::None,
        PoolsFlag::Leaf => Pools::Leaf,
    };
    let routing = match args.routing {
        RoutingFlag::Even => Routing::Even,
        RoutingFlag::Hashed => Routing::Hashed,
    };
    Ok(Scenario {
        nodes: list("--nodes", &args.nodes)?,
        writers: list("--writers", &args.writers)?,
        off: list("--off", &args.off)?,
        pools,
        stripe: args.stripe.map(NonZeroUsize::get),
        device_write: args.device_write as f64,
        gigabits_per_second: args.gigabits_per_second,
        routing,
    })
}

/// Bytes a second as links and devices are sold: by powers of ten.
fn rate(bytes: f64) -> String {
    let units = [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")];
    let fitting = units.into_iter().find(|(unit, _)| bytes >= *unit);
    fitting.map_or_else(|| format!("{bytes:.0} B/s"), |(unit, name)| format!("{:.1} {name}", bytes / unit))
}

fn range(range: Range) -> String {
    format!("{} to {}", rate(range.min), rate(range.max))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn as_text(outcome: &Outcome) -> String {
    let of = |what: &Bottleneck| outcome.held_back.get(what).copied().unwrap_or(0);
    let mut text = format!(
        "{}: {} writers, {} nodes keep data\ntotal       {} ({} of what the devices take)\n\
         a writer    {}\na node      {}\nbottleneck  {} (holds {} of {} writers back)\n\n",
        outcome.label,
        outcome.writers,
        outcome.nodes,
        rate(outcome.total),
        percent(outcome.of_devices),
        range(outcome.written),
        range(outcome.kept),
        outcome.bottleneck.word(),
        of(&outcome.bottleneck),
        outcome.writers,
    );
    let head = ["LINKS", "COUNT", "CAPACITY", "USED", "UTILISATION", "FULLEST"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(outcome.classes.iter().map(|class| {
        vec![
            class.class.word().into(),
            class.links.to_string(),
            rate(class.capacity),
            rate(class.used),
            percent(class.utilisation),
            percent(class.utilisation_max),
        ]
    }));
    text.push_str(&table(&rows));
    text
}

/// The same columns for every scenario: classes of links that a network does not have are 0.
fn as_csv(args: &FlowArgs, outcome: &Outcome) -> String {
    let quoted =
        |list: &Option<String>| format!("\"{}\"", list.as_deref().unwrap_or("").replace('"', "\"\""));
    let mut cells = vec![
        ("label", format!("\"{}\"", outcome.label)),
        ("nodes", outcome.nodes.to_string()),
        ("writers", outcome.writers.to_string()),
        ("off", quoted(&args.off)),
        ("pools", if args.pools == PoolsFlag::Leaf { "leaf" } else { "none" }.into()),
        ("stripe", args.stripe.map_or_else(String::new, |stripe| stripe.to_string())),
        ("device_write_bytes_per_second", args.device_write.to_string()),
        ("total_bytes_per_second", format!("{:.0}", outcome.total)),
        ("of_devices", format!("{:.4}", outcome.of_devices)),
        ("written_min_bytes_per_second", format!("{:.0}", outcome.written.min)),
        ("written_max_bytes_per_second", format!("{:.0}", outcome.written.max)),
        ("kept_min_bytes_per_second", format!("{:.0}", outcome.kept.min)),
        ("kept_max_bytes_per_second", format!("{:.0}", outcome.kept.max)),
        ("bottleneck", outcome.bottleneck.word().into()),
    ];
    for class in flow::CLASSES {
        let found = outcome.classes.iter().find(|found| found.class == class);
        let name = match class {
            flow::Class::Device => "device_utilisation",
            flow::Class::NodeUp => "node_up_utilisation",
            flow::Class::NodeDown => "node_down_utilisation",
            flow::Class::CoreUp => "core_up_utilisation",
            flow::Class::CoreDown => "core_down_utilisation",
        };
        cells.push((name, format!("{:.4}", found.map_or(0.0, |found| found.utilisation))));
    }
    let line = |cells: Vec<&str>| cells.join(",") + "\n";
    let (names, values) = cells.iter().map(|(name, value)| (*name, value.as_str())).unzip();
    line(names) + &line(values)
}
