//! What a measurement came to: for people, as JSON, as CSV, and as a page.

use super::flags::MeasureArgs;
use super::measure::{Plan, shaped_seconds, written};
use super::picture;
use crate::bench::report::{identity, machine};
use crate::exit::Result;
use crate::output::{duration, table};
use crate::page::{escape, page};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidepool_shape::{Measured, Point, label};
use tidepool_types::format_size;

const CSV_HEAD: &str = "storage,direction,direct,pattern,processes,repeat,bytes_per_second\n";

/// Shows and writes what is asked for.
pub fn tell(args: &MeasureArgs, dir: &Path, measured: &Measured) -> Result<ExitCode> {
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => crate::outfile::put(path, text()),
        None => Ok(()),
    };
    write(&args.csv, &|| csv(measured))?;
    write(&args.html, &|| html(dir, measured))?;
    if args.json {
        let mut all = identity("tiers");
        all["machine"] = machine(dir);
        all["curves"] = value(dir, measured);
        println!("{all}");
    } else {
        print!("{}", text(dir, measured));
    }
    Ok(ExitCode::SUCCESS)
}

/// What was measured: never only a name.
fn storage(measured: &Measured) -> String {
    measured.shaped.as_deref().map_or_else(|| "real storage".into(), label)
}

fn how(measured: &Measured) -> &'static str {
    match (measured.direct, measured.direction.as_str()) {
        (true, _) => "past the kernel's cache",
        (false, "read") => "through the kernel's cache, emptied before",
        (false, _) => "through the kernel's cache, synced within the time",
    }
}

fn headline(dir: &Path, measured: &Measured) -> String {
    format!(
        "{}: {}; {}, {} of each process in blocks of {}, {}",
        dir.display(),
        storage(measured),
        measured.direction,
        format_size(measured.bytes),
        format_size(measured.block),
        how(measured)
    )
}

fn rows(measured: &Measured) -> Vec<Vec<String>> {
    let patterns = measured.patterns().into_iter().filter(|(_, points)| !points.is_empty());
    let patterns: Vec<(&str, &[Point])> = patterns.collect();
    let head = patterns.iter().map(|(name, _)| name.to_uppercase());
    let mut rows = vec![std::iter::once("PROCESSES".to_string()).chain(head).collect::<Vec<_>>()];
    let mut counts: Vec<u32> =
        patterns.iter().flat_map(|(_, points)| points.iter().map(|point| point.processes)).collect();
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        let cell = |points: &[Point]| {
            let point = points.iter().find(|point| point.processes == count);
            point.map_or_else(String::new, |point| format!("{}/s", format_size(point.bytes_per_s)))
        };
        let cells = patterns.iter().map(|(_, points)| cell(points));
        rows.push(std::iter::once(count.to_string()).chain(cells).collect());
    }
    rows
}

pub fn text(dir: &Path, measured: &Measured) -> String {
    format!("{}\n{}", headline(dir, measured), table(&rows(measured)))
}

pub fn value(dir: &Path, measured: &Measured) -> Value {
    let mut value = json!(measured);
    value["dir"] = json!(dir);
    value["storage"] = json!(storage(measured));
    value
}

fn csv(measured: &Measured) -> String {
    let mut out = CSV_HEAD.to_string();
    // It has a comma, and nothing that has to be escaped.
    let storage = format!("\"{}\"", storage(measured));
    for (pattern, points) in measured.patterns() {
        for point in points {
            for (repeat, rate) in (1..).zip(&point.repeats) {
                let _ = writeln!(
                    out,
                    "{storage},{},{},{pattern},{},{repeat},{rate}",
                    measured.direction, measured.direct, point.processes
                );
            }
        }
    }
    out
}

fn html(dir: &Path, measured: &Measured) -> String {
    let row = |(number, cells): (usize, &Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let all: String = rows(measured).iter().enumerate().map(row).collect();
    let (head, storage) = (escape(&headline(dir, measured)), escape(&storage(measured)));
    let title = format!("Bandwidth against processes: {storage}");
    let picture = picture::curves(measured, &title);
    let body = format!(
        "<h1>{title}</h1>\n<p>{head}; measured by {} on {}</p>\n{picture}<table>{all}</table>\n",
        escape(&measured.with),
        escape(&measured.host)
    );
    page("Bandwidth against processes", "svg{max-width:100%;height:auto}", &body)
}

pub fn dry_value(args: &MeasureArgs, plan: &Plan) -> Value {
    let most = plan.processes.last().copied().unwrap_or(0);
    json!({
        "dir": plan.dir,
        "storage": args.shape.as_ref().map_or_else(|| "real storage".into(), |shape| label(shape.name())),
        "processes": plan.processes,
        "patterns": plan.patterns.iter().map(|pattern| pattern.name()).collect::<Vec<_>>(),
        "repeats": args.repeats,
        "bytes_written": written(args, plan),
        "bytes_at_once": u64::from(most).saturating_mul(args.bytes),
        "shaped_seconds": shaped_seconds(args, plan),
    })
}

pub fn dry(args: &MeasureArgs, plan: &Plan) -> String {
    let list = |all: Vec<String>| all.join(", ");
    let storage = args.shape.as_ref().map_or_else(|| "real storage".into(), |shape| label(shape.name()));
    let most = plan.processes.last().copied().unwrap_or(0);
    let mut text = format!(
        "would measure {}: {storage}\n{} processes, {}, {} time(s) each\n{} are written in all{}, {} at once at most\n",
        plan.dir.display(),
        list(plan.processes.iter().map(u32::to_string).collect()),
        list(plan.patterns.iter().map(|pattern| pattern.name().to_string()).collect()),
        args.repeats,
        format_size(written(args, plan)),
        if args.reads() { " and read" } else { "" },
        format_size(u64::from(most).saturating_mul(args.bytes))
    );
    if let Some(seconds) = shaped_seconds(args, plan) {
        let _ = writeln!(text, "the shape makes that about {}", duration(seconds));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(shaped: Option<&str>) -> Measured {
        Measured {
            shaped: shaped.map(String::from),
            bytes: 8192,
            block: 4096,
            sequential: vec![Point::of(1, &[2048, 1024]).unwrap(), Point::of(8, &[4096]).unwrap()],
            random: vec![Point::of(8, &[1024]).unwrap()],
            ..Measured::new("tidepool 0.1.0", "n1", 1000)
        }
    }

    #[test]
    fn every_output_says_what_is_shaped() {
        let (dir, shaped) = (Path::new("/t"), measured(Some("hdd")));
        let label = "shaped: hdd, not real storage";
        for said in [text(dir, &shaped), value(dir, &shaped).to_string(), html(dir, &shaped)] {
            assert!(said.contains(label), "{said}");
        }
        assert_eq!(csv(&shaped).matches(label).count(), 4, "in every line");
        assert!(picture::curves(&shaped, label).contains(label));
        assert!(text(dir, &measured(None)).starts_with("/t: real storage; write, 8.0 KiB of each process"));
    }

    #[test]
    fn the_table_has_a_row_for_each_number() {
        let all = text(Path::new("/t"), &measured(None));
        let table: Vec<&str> = all.lines().skip(1).collect();
        let expected =
            ["PROCESSES  SEQUENTIAL  RANDOM", "1          1.5 KiB/s", "8          4.0 KiB/s   1.0 KiB/s"];
        assert_eq!(table, expected);
    }

    #[test]
    fn lines_for_each_repeat() {
        assert_eq!(
            csv(&measured(None)).lines().nth(2),
            Some("\"real storage\",write,true,sequential,1,2,1024")
        );
    }
}
