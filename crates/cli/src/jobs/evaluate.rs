//! `tidepool jobs evaluate`: how well each predictor would have said how long a log's jobs ran.

use super::cdf;
use super::flags::EvaluateArgs;
use crate::bench::report::identity;
use crate::exit::{Failure, Kind, Result};
use crate::output::table;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tidepool_joblog::Log;
use tidepool_predict::catalog::{ALL, Entry};
use tidepool_predict::judge::{JOBS_OF_USER_MIN, Judged, Measures};
use tidepool_predict::replay::{Past, replay};
use tidepool_predict::{Job, LEVELS, Prediction};

const CSV_HEAD: &str = "predictor,user_rank,medae_seconds\n";
/// Predictors that are drawn: the papers' three (S0 Figure 5) and the best simple one beside the default.
const DRAWN: &[&str] = &["default", "expert", "linear", "request"];

/// What a predictor came to.
struct Row {
    entry: &'static Entry,
    measures: Measures,
    cost_us: f64,
}

struct Evaluation {
    log: Log,
    /// The first of the judged jobs.
    from: usize,
    rows: Vec<Row>,
}

pub fn run(args: &EvaluateArgs) -> Result<ExitCode> {
    let entries = chosen(&args.predictors)?;
    let log = super::files::read(&args.log, args.jobs, args.format)?;
    let past: Vec<Past> = log.jobs.iter().map(past).collect();
    let from = (past.len() as f64 * args.warm_up) as usize;
    let rows = entries.into_iter().map(|entry| row(entry, &past, from)).collect();
    let evaluation = Evaluation { log, from, rows };
    tell(args, &evaluation)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Entry>> {
    if names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    let find = |name: &String| {
        Entry::named(name).ok_or_else(|| {
            let known: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
            Failure::new(Kind::Usage, format!("'{name}' is no predictor; there are {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

/// With what was known at submission, and the run time as the log has it: jobs that outlived their limit are errors, too.
pub fn past(job: &tidepool_joblog::Job) -> Past {
    let known = Job {
        id: job.number,
        submit_s: job.submit_s,
        request_s: job.asked.then_some(job.request_s),
        // Those that it was given are not known yet; where the log says nothing else they stand for them.
        processors: job.requested_processors.unwrap_or(job.processors),
        user: job.user,
        group: job.group,
        executable: job.executable,
        queue: job.queue,
        partition: job.partition,
    };
    let run_s = (job.run_s + job.overran_s) as f64;
    Past { job: known, start_s: job.submit_s.saturating_add(job.waited_s.unwrap_or(0)), run_s }
}

fn row(entry: &'static Entry, past: &[Past], from: usize) -> Row {
    let begun = Instant::now();
    let predictions = replay(past, &mut *entry.make());
    let cost_us = begun.elapsed().as_secs_f64() * 1e6 / past.len().max(1) as f64;
    let judged = |(past, prediction): (&Past, &Prediction)| Judged {
        user: past.job.user,
        run_s: past.run_s,
        prediction: *prediction,
    };
    let judged: Vec<Judged> = past.iter().zip(&predictions).skip(from).map(judged).collect();
    Row { entry, measures: Measures::of(&judged), cost_us }
}

fn tell(args: &EvaluateArgs, evaluation: &Evaluation) -> Result<ExitCode> {
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => crate::outfile::put(path, text()),
        None => Ok(()),
    };
    write(&args.csv, &|| csv(evaluation))?;
    write(&args.svg, &|| picture(args, evaluation))?;
    match args.json {
        true => println!("{}", value(args, evaluation)),
        false => print!("{}", text(args, evaluation)),
    }
    Ok(ExitCode::SUCCESS)
}

fn minutes(seconds: Option<f64>) -> String {
    seconds.map_or("-".into(), |seconds| format!("{:.2}", seconds / 60.0))
}

fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

fn text(args: &EvaluateArgs, evaluation: &Evaluation) -> String {
    let Evaluation { log, from, rows } = evaluation;
    let users = rows.first().map_or(0, |row| row.measures.of_users_s.len());
    let mut out = format!(
        "{}: {} jobs warm up, {} are judged; {users} users with at least {JOBS_OF_USER_MIN} of them\n",
        args.log.display(),
        from,
        log.jobs.len() - from,
    );
    for (what, count) in log.repairs.list().into_iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(out, "log: {count} {what}");
    }
    let head = [
        "PREDICTOR",
        "MEDAE (MEDIAN USER)",
        "MEDAE (P75 USER)",
        "MEAN ERROR",
        "TOO SHORT %",
        "90 % COVERS %",
        "WORST TENTH",
        "95 % COVERS %",
        "WORST TENTH",
        "US/JOB",
    ];
    let mut lines = vec![head.map(String::from).to_vec()];
    for Row { entry, measures, cost_us } in rows {
        let worst = |level: usize| {
            let far = |share: &f64| (share - LEVELS[level]).abs();
            let tenths = measures.covered_tenths[level].iter();
            percent(tenths.copied().max_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(0.0))
        };
        lines.push(vec![
            entry.name.into(),
            minutes(measures.at_user_s(0.5)),
            minutes(measures.at_user_s(0.75)),
            minutes(Some(measures.mean_s)),
            percent(measures.under),
            percent(measures.covered[0]),
            worst(0),
            percent(measures.covered[1]),
            worst(1),
            format!("{cost_us:.1}"),
        ]);
    }
    out + "errors in minutes\n\n" + &table(&lines)
}

fn row_value(Row { entry, measures, cost_us }: &Row) -> Value {
    json!({
        "predictor": entry.name,
        "medae_median_user_seconds": measures.at_user_s(0.5),
        "medae_p75_user_seconds": measures.at_user_s(0.75),
        "medae_of_users_seconds": measures.of_users_s,
        "mean_absolute_error_seconds": measures.mean_s,
        "under_share": measures.under,
        "pinball_seconds": { "50": measures.pinball_s[0], "90": measures.pinball_s[1], "95": measures.pinball_s[2] },
        "coverage": { "90": measures.covered[0], "95": measures.covered[1] },
        "coverage_of_tenths": { "90": measures.covered_tenths[0], "95": measures.covered_tenths[1] },
        "cost_us_per_job": cost_us,
    })
}

fn value(args: &EvaluateArgs, evaluation: &Evaluation) -> Value {
    let Evaluation { log, from, rows } = evaluation;
    let mut all = identity("jobs-evaluate");
    let repairs = log.repairs.list().into_iter().filter(|(_, count)| *count > 0);
    all["log"] = json!({
        "path": args.log,
        "repairs": repairs.map(|(what, count)| json!({ "what": what, "count": count })).collect::<Vec<_>>(),
    });
    all["split"] = json!("temporal");
    all["warm_up_jobs"] = json!(from);
    all["judged_jobs"] = json!(log.jobs.len() - from);
    all["judged_jobs_of_a_user_min"] = json!(JOBS_OF_USER_MIN);
    all["predictors"] = rows.iter().map(row_value).collect();
    all
}

/// Figure 5 of S0 as numbers: the users' errors, each predictor's in ascending order.
fn csv(evaluation: &Evaluation) -> String {
    let mut out = CSV_HEAD.to_string();
    for Row { entry, measures, .. } in &evaluation.rows {
        for (rank, error) in measures.of_users_s.iter().enumerate() {
            let _ = writeln!(out, "{},{},{error}", entry.name, rank + 1);
        }
    }
    out
}

fn picture(args: &EvaluateArgs, evaluation: &Evaluation) -> String {
    let all: Vec<(&str, &[f64])> = evaluation
        .rows
        .iter()
        .filter(|row| DRAWN.contains(&row.entry.name) || evaluation.rows.len() <= DRAWN.len())
        .map(|row| (row.entry.name, row.measures.of_users_s.as_slice()))
        .collect();
    cdf::draw(&all, &format!("Median absolute error of users, {}", args.log.display()))
}
