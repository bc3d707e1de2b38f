//! `tidepool jobs nap`: when nodes are known, over estimates and schedulers (S0 Figure 6; S2 Figure 6; INVENTORY C).

use super::flags::NapArgs;
use super::simulate::{Ground, early, ground, measures_value, rule};
use super::stacks;
use crate::bench::report::identity;
use crate::exit::Result;
use crate::output::{duration, table};
use crate::page::{escape, page};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use tidepool_jobsim::engine::{Policy, Setup};
use tidepool_jobsim::estimate::{self, Estimate};
use tidepool_jobsim::machine;
use tidepool_jobsim::measure::{Classes, Measures, measure};
use tidepool_jobsim::plan::Block;

const CSV_HEAD: &str = "policy,estimate,lambda,jobs,instant,below_1s,1s_to_10min,above_10min,instant_share,below_1s_share,1s_to_10min_share,\
above_10min_share,mean_wait_seconds,median_wait_seconds,mean_bounded_slowdown,utilisation,outlived_predictions\n";

/// A run of the study.
struct Point {
    policy: Policy,
    estimate: Estimate,
    measures: Measures,
}

impl Point {
    fn classes(&self) -> Classes {
        self.measures.classes.expect("nodes are told from each other")
    }
}

pub fn dispatch(args: &NapArgs) -> Result<ExitCode> {
    let ground = ground(&args.machine, true)?;
    let points = points(args, &ground, &ground.blocks()?);
    let write = |path: &Option<std::path::PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => crate::outfile::put(path, text()),
        None => Ok(()),
    };
    write(&args.csv, &|| csv(&points))?;
    write(&args.svg, &|| picture(args, &points))?;
    write(&args.html, &|| html(args, &ground, &points))?;
    match args.json {
        true => println!("{}", value(args, &ground, &points)),
        false => print!("{}\n\n{}", lines(args, &ground).join("\n"), table(&rows(&points))),
    }
    Ok(ExitCode::SUCCESS)
}

/// All runs, in the order of schedulers, then of estimates.
fn points(args: &NapArgs, ground: &Ground, blocks: &[(u64, Block)]) -> Vec<Point> {
    let policies: Vec<Policy> = args.policies.iter().map(|flag| flag.policy()).collect();
    let estimates = args.estimates();
    let all: Vec<(Policy, Estimate)> =
        policies.iter().flat_map(|policy| estimates.iter().map(|estimate| (*policy, *estimate))).collect();
    super::on_threads(args.threads, &all, |(policy, estimate)| {
        point(args, ground, blocks, *policy, *estimate)
    })
}

fn point(
    args: &NapArgs,
    ground: &Ground,
    blocks: &[(u64, Block)],
    policy: Policy,
    estimate: Estimate,
) -> Point {
    let setup = Setup {
        early: early(args.early, policy, true),
        keeps_nodes: !args.change_nodes,
        keeps_lists: false,
        blocks: blocks.to_vec(),
        ..Setup::new(policy)
    };
    let jobs = machine::jobs(&ground.load.tasks);
    let mut predictor = estimate::predictor(&estimate, &jobs);
    let fates = ground.machine.run(&ground.load, &setup, ground.allocation, &mut *predictor);
    Point { policy, estimate, measures: measure(&ground.load.tasks, &fates, ground.machine.nodes) }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn rows(points: &[Point]) -> Vec<Vec<String>> {
    let mut head = vec!["SCHEDULER".to_string(), "PLANNED BY".into()];
    head.extend(Classes::NAMES.map(str::to_uppercase));
    head.extend(["MEAN WAIT", "SLOWDOWN", "USED"].map(String::from));
    let row = |point: &Point| {
        let mut row = vec![point.policy.name().to_string(), point.estimate.to_string()];
        row.extend(point.classes().shares().map(percent));
        row.push(duration(point.measures.wait_mean_s));
        row.push(format!("{:.2}", point.measures.slowdown_mean));
        row.push(percent(point.measures.utilisation));
        row
    };
    std::iter::once(head).chain(points.iter().map(row)).collect()
}

fn lines(args: &NapArgs, ground: &Ground) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {} jobs on {} nodes; when the nodes of each were known, before its start",
        args.machine.log.display(),
        ground.load.tasks.len(),
        ground.machine.nodes
    )];
    for flag in &args.policies {
        let policy = flag.policy();
        lines.push(format!(
            "{}: after an early end {}",
            policy.name(),
            rule(early(args.early, policy, true), policy)
        ));
    }
    lines.extend(ground.repairs().iter().map(|(what, count)| format!("log: {count} {what}")));
    lines
}

fn lambda(estimate: Estimate) -> Option<f64> {
    match estimate {
        Estimate::Lambda(lambda) => Some(lambda),
        Estimate::Request => Some(1.0),
        _ => None,
    }
}

fn csv(points: &[Point]) -> String {
    let mut out = CSV_HEAD.to_string();
    for point in points {
        let (classes, measures) = (point.classes(), &point.measures);
        let counts = classes.counts().map(|count| count.to_string()).join(",");
        let shares = classes.shares().map(|share| share.to_string()).join(",");
        let _ = writeln!(
            out,
            "{},{},{},{},{counts},{shares},{},{},{},{},{}",
            point.policy.name(),
            point.estimate,
            lambda(point.estimate).map(|lambda| lambda.to_string()).unwrap_or_default(),
            measures.jobs,
            measures.wait_mean_s,
            measures.wait_median_s,
            measures.slowdown_mean,
            measures.utilisation,
            measures.outlived
        );
    }
    out
}

fn value(args: &NapArgs, ground: &Ground, points: &[Point]) -> Value {
    let mut all = identity("jobs-nap");
    all["log"] = ground.value(&args.machine);
    let point = |point: &Point| {
        json!({
            "policy": point.policy.name(),
            "after_an_early_end": rule(early(args.early, point.policy, true), point.policy),
            "estimate": point.estimate.to_string(),
            "lambda": lambda(point.estimate),
            "result": measures_value(&point.measures),
        })
    };
    all["points"] = points.iter().map(point).collect();
    all
}

/// Stacked bars, a group for each scheduler, as in the papers.
fn picture(args: &NapArgs, points: &[Point]) -> String {
    let groups: Vec<stacks::Group> = args
        .policies
        .iter()
        .map(|flag| stacks::Group {
            name: flag.policy().name(),
            bars: points
                .iter()
                .filter(|point| point.policy == flag.policy())
                .map(|point| stacks::Bar {
                    name: lambda(point.estimate)
                        .map_or_else(|| point.estimate.to_string(), |lambda| lambda.to_string()),
                    shares: point.classes().shares(),
                    below: [
                        format!("{:.2} h", point.measures.wait_mean_s / 3600.0),
                        percent(point.measures.utilisation),
                    ],
                })
                .collect(),
        })
        .collect();
    let log = args.machine.log.file_name().unwrap_or_default().to_string_lossy();
    stacks::draw(&groups, &Classes::NAMES, &format!("When the nodes of the jobs of {log} were known"))
}

fn html(args: &NapArgs, ground: &Ground, points: &[Point]) -> String {
    let row = |(number, cells): (usize, &Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let all: String = rows(points).iter().enumerate().map(row).collect();
    let lines: String = lines(args, ground).iter().map(|line| format!("<p>{}</p>\n", escape(line))).collect();
    let title = "When nodes are known";
    let body = format!("<h1>{title}</h1>\n{lines}{}<table>{all}</table>\n", picture(args, points));
    page(title, "svg{max-width:100%;height:auto}body{max-width:90em}", &body)
}
