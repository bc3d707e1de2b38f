//! `tidepool jobs`: logs of jobs, run on a simulated batch scheduler, and what is to come of a queue.

mod ask;
mod cdf;
mod convert;
mod describe;
mod evaluate;
mod files;
pub mod flags;
mod nap;
mod picture;
mod prestage;
mod report;
mod simulate;
mod stacks;

use crate::exit::{Context, Failure, Kind, Result};
use flags::{JobsCommand, StageAheadArgs};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_joblog::Log;
use tidepool_jobsim::study::{Data, Rule, Staging, Tally, stage_ahead, tally};
use tidepool_jobsim::{Run, simulate};

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
        JobsCommand::Simulate(args) => simulate::dispatch(args),
        JobsCommand::Nap(args) => nap::dispatch(args),
        JobsCommand::PreStage(args) => prestage::dispatch(args),
        JobsCommand::StageAhead(args) => report::tell(args, &study(args)?),
        JobsCommand::Evaluate(args) => evaluate::run(args),
        JobsCommand::Predict(args) => ask::run(args),
        JobsCommand::Describe(args) => describe::run(args),
        JobsCommand::Convert(args) => convert::run(args),
    }
}

fn study(args: &StageAheadArgs) -> Result<Study> {
    let log = files::read(&args.log, args.jobs, args.format)?;
    let processors = args.nodes.or(log.processors).ok_or_else(|| {
        let text = format!("{}: it does not say how large the machine is; say --nodes", args.log.display());
        Failure::new(Kind::Usage, text)
    })?;
    let run = simulate(&log.jobs, processors, args.policy.policy());
    if run.outcomes.is_empty() {
        let text = format!("all {} jobs want more than {processors}; say --nodes", run.too_large);
        return Err(Failure::new(Kind::Usage, text));
    }
    let data = args.made_up.data();
    let loads = data.loads(run.outcomes.len());
    let of = |rule| {
        let stagings = stage_ahead(&run, &loads, args.look, rule);
        let tally = tally(&run, &stagings);
        (rule, stagings, tally)
    };
    let rules = Rule::ALL.map(of).into();
    Ok(Study { log, processors, run, data, rules })
}

/// Does something for each of a list, each by whoever of the threads is free; what came of it, in the order of the list. Without
/// a number there is a thread for each core.
fn on_threads<T: Sync, R: Send>(threads: Option<u32>, all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let one = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = all.get(at) else { break };
            let result = work(item);
            done.lock().expect("nobody panics with it").push((at, result));
        }
    };
    let threads = threads.map_or_else(crate::doctor::facts::cores, |threads| threads as usize);
    std::thread::scope(|scope| {
        (0..threads.clamp(1, all.len().max(1))).for_each(|_| {
            scope.spawn(one);
        });
    });
    let mut done = done.into_inner().expect("nobody panicked with it");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A small file of text.
fn page_of(path: &Path, bytes_max: u64) -> Result<String> {
    let name = || path.display().to_string();
    let file = File::open(path).context(Kind::Usage, name)?;
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text).context(Kind::Usage, name)?;
    if text.len() as u64 > bytes_max {
        return Err(Failure::new(Kind::Usage, format!("{}: more than {bytes_max} bytes", path.display())));
    }
    Ok(text)
}
