//! `tidepool jobs`: logs of jobs, run on a simulated batch scheduler.

mod cdf;
mod evaluate;
pub mod flags;
mod picture;
mod report;

use crate::exit::{Context, Failure, Kind, Result};
use flags::{JobsCommand, StageAheadArgs};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use tidepool_jobsim::study::{Data, Rule, Staging, Tally, stage_ahead, tally};
use tidepool_jobsim::{Log, Run, simulate, swf};

/// What the study came to.
struct Study {
    log: Log,
    processors: u32,
    run: Run,
    data: Data,
    /// In the order of [`Rule::ALL`].
    rules: Vec<(Rule, Vec<Staging>, Tally)>,
}

pub fn dispatch(command: &JobsCommand) -> Result<ExitCode> {
    match command {
        JobsCommand::StageAhead(args) => report::tell(args, &study(args)?),
        JobsCommand::Evaluate(args) => evaluate::run(args),
    }
}

fn study(args: &StageAheadArgs) -> Result<Study> {
    let log = read(&args.log, args.jobs)?;
    let processors = args.nodes.or(log.processors).ok_or_else(|| {
        let text = format!("{}: it does not say how large the machine is; say --nodes", args.log.display());
        Failure::new(Kind::Usage, text)
    })?;
    let run = simulate(&log.jobs, processors, args.policy.policy());
    if run.outcomes.is_empty() {
        let text = format!("all {} jobs want more than {processors}; say --nodes", run.too_large);
        return Err(Failure::new(Kind::Usage, text));
    }
    let data = Data {
        seed: args.seed,
        bytes: args.bytes as f64,
        bytes_scatter: args.bytes_scatter,
        rate: args.rate.max(1) as f64,
        rate_scatter: args.rate_scatter,
    };
    let loads = data.loads(run.outcomes.len());
    let of = |rule| {
        let stagings = stage_ahead(&run, &loads, args.look, rule);
        let tally = tally(&run, &stagings);
        (rule, stagings, tally)
    };
    let rules = Rule::ALL.map(of).into();
    Ok(Study { log, processors, run, data, rules })
}

fn read(path: &Path, jobs: Option<u64>) -> Result<Log> {
    let jobs = jobs.and_then(|jobs| usize::try_from(jobs).ok()).unwrap_or(usize::MAX);
    if path.as_os_str() == "-" {
        return swf::read(std::io::stdin().lock(), jobs).context(Kind::Other, || "standard input".into());
    }
    let file = File::open(path).context(Kind::Other, || path.display().to_string())?;
    swf::read(BufReader::new(file), jobs).context(Kind::Other, || path.display().to_string())
}
