//! What a study came to: for people, as JSON, as CSV, and as a page.

use super::flags::StageAheadArgs;
use super::{Study, picture};
use crate::bench::report::identity;
use crate::exit::Result;
use crate::output::{duration, table};
use crate::page::{escape, page};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use tidepool_jobsim::study::{Rule, Tally};
use tidepool_types::format_size;

const CSV_HEAD: &str = "rule,job,processors,bytes,submit_seconds,start_seconds,estimate_seconds,took_seconds,\
began_seconds,possible,late\n";

/// Shows and writes what is asked for.
pub fn tell(args: &StageAheadArgs, study: &Study) -> Result<ExitCode> {
    let write = |path: &Option<std::path::PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => crate::outfile::put(path, text()),
        None => Ok(()),
    };
    write(&args.csv, &|| csv(study))?;
    write(&args.html, &|| html(args, study))?;
    match args.json {
        true => println!("{}", value(args, study)),
        false => print!("{}", text(args, study)),
    }
    Ok(ExitCode::SUCCESS)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// What the rule is, in words.
fn words(rule: Rule) -> &'static str {
    match rule {
        Rule::Learned => "trigger",
        Rule::Mean => "mean + 30 s",
        Rule::AtOnce => "at submission",
    }
}

fn rows(study: &Study) -> Vec<Vec<String>> {
    let head = [
        "BEGINS BY",
        "LATE OF POSSIBLE",
        "WORST TENTH",
        "LATE OF ALL",
        "DELAY (MEDIAN)",
        "LIES THERE (MEDIAN)",
        "LIES THERE, OF TIME USED",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (rule, _, tally) in &study.rules {
        let lies = tally.lay_processor_hours / tally.used_processor_hours.max(f64::MIN_POSITIVE);
        rows.push(vec![
            words(*rule).into(),
            percent(tally.late_share()),
            percent(tally.worst_tenth()),
            percent(tally.late_share_of_all()),
            duration(tally.delay_median_s),
            duration(tally.lay_median_s),
            format!("{lies:.3}"),
        ]);
    }
    rows
}

/// What was done, line by line.
fn lines(args: &StageAheadArgs, study: &Study) -> Vec<String> {
    let Study { run, data, .. } = study;
    let first = &study.rules[0].2;
    let mut lines = vec![
        format!(
            "{}: {} jobs on {}, {} backfilling: mean wait {}, {} of the machine used",
            args.log.display(),
            first.jobs,
            study.processors,
            args.policy.name(),
            duration(run.mean_wait_s()),
            percent(run.utilisation(study.processors))
        )
        .replace("fcfs backfilling", "first come first served"),
        format!(
            "made up (seed {}): sizes of {} x e^({} normal), rates of {}/s x e^({} normal); a look every {} s",
            data.seed,
            format_size(args.made_up.bytes),
            data.bytes_scatter,
            format_size(args.made_up.rate),
            data.rate_scatter,
            args.look
        ),
        format!(
            "{} jobs ({}) waited for at least as long as their staging took: the others cannot be in time",
            first.possible,
            percent(first.possible as f64 / first.jobs.max(1) as f64)
        ),
    ];
    let repairs = study.log.repairs.list();
    let too_large = ("jobs larger than the machine, left out", run.too_large);
    let repaired = repairs.into_iter().chain([too_large]).filter(|(_, count)| *count > 0);
    lines.extend(repaired.map(|(what, count)| format!("log: {count} {what}")));
    lines
}

fn text(args: &StageAheadArgs, study: &Study) -> String {
    format!("{}\n\n{}", lines(args, study).join("\n"), table(&rows(study)))
}

fn tally_value((rule, _, tally): &(Rule, Vec<tidepool_jobsim::study::Staging>, Tally)) -> Value {
    json!({
        "rule": rule.name(),
        "late": tally.late,
        "late_share": tally.late_share(),
        "late_share_of_tenths": tally.tenths,
        "late_of_all": tally.late_of_all,
        "late_share_of_all": tally.late_share_of_all(),
        "delay_median_seconds": tally.delay_median_s,
        "lay_median_seconds": tally.lay_median_s,
        "lay_processor_hours": tally.lay_processor_hours,
    })
}

fn value(args: &StageAheadArgs, study: &Study) -> Value {
    let Study { run, data, .. } = study;
    let first = &study.rules[0].2;
    let mut all = identity("jobs-stage-ahead");
    let repairs = study.log.repairs.list().into_iter().filter(|(_, count)| *count > 0);
    all["log"] = json!({
        "path": args.log,
        "processors": study.processors,
        "too_large": run.too_large,
        "repairs": repairs.map(|(what, count)| json!({ "what": what, "count": count })).collect::<Vec<_>>(),
    });
    all["scheduler"] = json!({
        "policy": args.policy.name(),
        "mean_wait_seconds": run.mean_wait_s(),
        "utilisation": run.utilisation(study.processors),
    });
    all["data"] = json!({
        "seed": data.seed,
        "bytes_median": args.made_up.bytes,
        "bytes_scatter": data.bytes_scatter,
        "rate_median": args.made_up.rate,
        "rate_scatter": data.rate_scatter,
        "look_seconds": args.look,
    });
    all["jobs"] = json!(first.jobs);
    all["possible"] = json!(first.possible);
    all["used_processor_hours"] = json!(first.used_processor_hours);
    all["rules"] = study.rules.iter().map(tally_value).collect();
    all
}

fn csv(study: &Study) -> String {
    let mut out = CSV_HEAD.to_string();
    let seconds = |ms: u64| ms as f64 / 1000.0;
    for (rule, stagings, _) in &study.rules {
        for one in stagings {
            let estimate = one.estimate_ms.map(|ms| seconds(ms).to_string()).unwrap_or_default();
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{estimate},{},{},{},{}",
                rule.name(),
                one.number,
                one.processors,
                one.bytes,
                seconds(one.submit_ms),
                seconds(one.start_ms),
                seconds(one.took_ms),
                seconds(one.began_ms),
                one.is_possible(),
                one.is_late()
            );
        }
    }
    out
}

fn html(args: &StageAheadArgs, study: &Study) -> String {
    let row = |(number, cells): (usize, &Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let all: String = rows(study).iter().enumerate().map(row).collect();
    let lines: String = lines(args, study).iter().map(|line| format!("<p>{}</p>\n", escape(line))).collect();
    let series: Vec<(&str, [f64; 10])> =
        study.rules.iter().map(|(rule, _, tally)| (words(*rule), tally.tenths)).collect();
    let title = "Stagings that were late, of those that could be in time";
    let picture = picture::shares(&series, title);
    page(
        title,
        "svg{max-width:100%;height:auto}",
        &format!("<h1>{title}</h1>\n{lines}{picture}<table>{all}</table>\n"),
    )
}
