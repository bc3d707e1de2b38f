//! `tidepool jobs predict`: when the jobs of a queue will start, where, and when they will end.
//!
//! | file | what |
//! |---|---|
//! | `commands.rs` | squeue and sinfo |
//! | `script.rs` | a job script as a job that waits |
//! | `judge.rs` | how often what would have been told held, along a log |
//! | `answer.rs` | what is told: for people, as JSON, as CSV |

mod answer;
mod commands;
pub mod flags;
mod judge;
mod script;

use super::evaluate::past;
use super::on_threads;
use crate::exit::{Context, Failure, Kind, Result};
use flags::PredictArgs;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_joblog::Log;
use tidepool_jobsim::forecast::{Forecast, Slot};
use tidepool_jobsim::machine::{self, Machine, NODES_MAX};
use tidepool_predict::replay::Past;
use tidepool_queue::calibrate::Widening;
use tidepool_queue::later::{self, Submission};
use tidepool_queue::rows::BYTES_MAX;
use tidepool_queue::scene::{self, Rules};
use tidepool_queue::teach::{ALIKE, Names, Teacher, until_limits};
use tidepool_queue::words::moment;
use tidepool_queue::{Cluster, Entry, Queue, State, Wrong, cluster};

/// A job, and what is thought of it.
struct Told {
    entry: Entry,
    /// With the likeliest run times; without a log with the limits.
    planned: Option<Slot>,
    /// Of the draws, where there are any.
    forecast: Option<Forecast>,
    /// Names of the planned nodes.
    nodes: String,
    /// Why no start can be told.
    untold: Option<String>,
}

/// All that is told.
struct Answer {
    now_s: u64,
    zone_s: Option<i64>,
    jobs: Vec<Told>,
    running: usize,
    waiting: usize,
    nodes: usize,
    nodes_up: usize,
    is_shared: bool,
    /// Jobs that taught, and jobs of the queue whose users the log knows.
    taught: Option<(usize, usize)>,
    draws: u32,
    /// Jobs of the past whose ranges were compared with what came, and how wide they had to be.
    calibration: Option<(Widening, usize)>,
    /// What is not known.
    unknown: Vec<String>,
}

impl Answer {
    /// Ranges of jobs that wait; when a running one ends is the predictor's to say.
    fn calibrate(&mut self, calibration: Option<(Widening, usize)>) {
        if let Some((widening, _)) = &calibration {
            let waiting = self.jobs.iter_mut().filter(|told| told.entry.state != State::Running);
            for forecast in waiting.filter_map(|told| told.forecast.as_mut()) {
                *forecast = widening.apply(forecast, self.now_s);
            }
        }
        self.calibration = calibration;
    }
}

pub fn run(args: &PredictArgs) -> Result<ExitCode> {
    if let (Some(moments), Some(history)) = (args.judge, &args.history) {
        return judge::run(args, history, moments);
    }
    let machine = args.machine.as_deref().map(super::simulate::machine_of).transpose()?;
    let mut queue = queue(args)?;
    let mut unknown = Vec::new();
    let now_s = now(args, &queue, &mut unknown)?;
    let cluster = nodes(args, machine.as_ref(), &queue)?;
    let asked = asked(args, &mut queue, &cluster, now_s, &mut unknown)?;
    let history = args.history.as_deref().map(history).transpose()?;
    let rules = rules(args, machine.as_ref(), &cluster, now_s)?;
    let calibration = match (args.calibrate, &args.history, &history) {
        (Some(count), Some(path), Some(history)) => {
            let most = cluster.processors.iter().copied().max().unwrap_or(1);
            Some(judge::calibration(args, path, &history.log, count, (cluster.names.len() as u32, most))?)
        }
        _ => None,
    };
    let mut answer = answer(args, &queue, &cluster, &rules, &asked, history.as_ref(), unknown);
    answer.calibrate(calibration);
    answer::tell(args, &answer)
}

fn text_of(path: &Path) -> Result<String> {
    let name = || if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    let read = |from: &mut dyn Read, bytes: &mut Vec<u8>| from.take(BYTES_MAX + 1).read_to_end(bytes);
    if path.as_os_str() == "-" {
        read(&mut std::io::stdin().lock(), &mut bytes).context(Kind::Other, name)?;
    } else {
        let mut file = File::open(path).context(Kind::Other, name)?;
        read(&mut file, &mut bytes).context(Kind::Other, name)?;
    }
    if bytes.len() as u64 > BYTES_MAX {
        return Err(Failure::new(Kind::Usage, format!("{}: more than {BYTES_MAX} bytes", name())));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The kind of failure is that of who wrote it: a user's file, or a command. `like` prints what can be read.
fn named(path: Option<&PathBuf>, command: &str, like: String) -> impl Fn(Wrong) -> Failure {
    let (kind, name) = match path {
        Some(path) => (Kind::Usage, path.display().to_string()),
        None => (Kind::Other, command.to_string()),
    };
    move |wrong| {
        let said = wrong.to_string();
        let more = match said.contains("printed by") {
            true => String::new(),
            false => format!("; what is read is printed by: {like} (docs/formats/33-queues.md)"),
        };
        Failure::new(kind, format!("{name}: {said}{more}"))
    }
}

fn queue(args: &PredictArgs) -> Result<Queue> {
    let text = match &args.queue {
        Some(path) => text_of(path)?,
        None => commands::squeue()?,
    };
    tidepool_queue::read(&text).map_err(named(
        args.queue.as_ref(),
        "squeue",
        format!("squeue --all -o \"{}\"", tidepool_queue::text::FORMAT),
    ))
}

/// The moment of the queue.
fn now(args: &PredictArgs, queue: &Queue, unknown: &mut Vec<String>) -> Result<u64> {
    if let Some(text) = &args.now {
        let told = moment(text).map_err(|why| Failure::new(Kind::Usage, format!("--now: {why}")))?;
        return told
            .map(|(seconds, _)| seconds)
            .ok_or_else(|| Failure::new(Kind::Usage, "--now has no time"));
    }
    if args.queue.is_none() {
        return Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
    }
    let now_s = queue.now_s.ok_or_else(|| {
        Failure::new(Kind::Usage, "nothing in the queue says when it was written: say --now TIME")
    })?;
    if !queue.is_now_sure {
        unknown.push("when the queue was written: the latest time in it is taken; --now says it".into());
    }
    Ok(now_s)
}

fn nodes(args: &PredictArgs, machine: Option<&Machine>, queue: &Queue) -> Result<Cluster> {
    let counted = machine.filter(|machine| machine.nodes > 0 && args.sinfo.is_none());
    if let Some(machine) = counted {
        let mut cluster = Cluster::alike(machine.nodes, machine.processors_per_node, &queue.entries)
            .map_err(|wrong| Failure::new(Kind::Usage, wrong.to_string()))?;
        for partition in &machine.partitions {
            let places = places(&partition.nodes, machine.nodes as usize);
            cluster.partitions.insert(partition.name.clone(), places);
        }
        return Ok(cluster);
    }
    let text = match (&args.sinfo, &args.queue) {
        (Some(path), _) => text_of(path)?,
        (None, None) => commands::sinfo()?,
        (None, Some(_)) => {
            let text = "which nodes there are is not known: --sinfo FILE has what sinfo says, or --machine FILE has 'nodes'";
            return Err(Failure::new(Kind::Usage, text));
        }
    };
    cluster::read(&text).map_err(named(
        args.sinfo.as_ref(),
        "sinfo",
        format!("sinfo --all -N -o \"{}\"", cluster::FORMAT),
    ))
}

fn places(ranges: &Option<Vec<(u32, u32)>>, nodes: usize) -> BTreeSet<usize> {
    match ranges {
        Some(ranges) => ranges
            .iter()
            .flat_map(|(first, end)| *first as usize..*end as usize)
            .filter(|at| *at < nodes)
            .collect(),
        None => (0..nodes).collect(),
    }
}

/// What the machine's file says of priorities and maintenance; its times count from now.
fn rules(args: &PredictArgs, machine: Option<&Machine>, cluster: &Cluster, now_s: u64) -> Result<Rules> {
    let count = cluster.names.len();
    if count > NODES_MAX as usize {
        return Err(Failure::new(Kind::Usage, format!("more than {NODES_MAX} nodes")));
    }
    let mut rules = Rules { now_s, policy: args.policy.policy(), tiers: BTreeMap::new(), blocks: Vec::new() };
    let Some(machine) = machine else { return Ok(rules) };
    let beyond =
        |ranges: &Option<Vec<(u32, u32)>>| ranges.iter().flatten().any(|(_, end)| *end as usize > count);
    let windows = machine.windows.iter().map(|window| (&window.name, &window.nodes));
    let parts = machine.partitions.iter().map(|part| (&part.name, &part.nodes));
    if let Some((name, _)) = windows.chain(parts).find(|(_, nodes)| beyond(nodes)) {
        return Err(Failure::new(
            Kind::Usage,
            format!("'{name}' has nodes beyond the {count} that there are"),
        ));
    }
    rules.tiers = machine.partitions.iter().map(|part| (part.name.clone(), part.priority)).collect();
    let jobs_end = BLOCKS_AHEAD_S;
    for window in &machine.windows {
        let mut from = window.from_s;
        loop {
            if rules.blocks.len() == machine::BLOCKS_MAX {
                let text =
                    format!("'{}' comes more than {} times within a year", window.name, machine::BLOCKS_MAX);
                return Err(Failure::new(Kind::Usage, text));
            }
            let begin = now_s.saturating_add(from);
            rules.blocks.push((begin, begin.saturating_add(window.seconds), places(&window.nodes, count)));
            let Some(every) = window.every_s else { break };
            from = from.saturating_add(every.max(1));
            if from > jobs_end {
                break;
            }
        }
    }
    Ok(rules)
}

/// Repeated blocks are known for that long. Seconds.
const BLOCKS_AHEAD_S: u64 = 365 * 86_400;

/// Places in the queue of those that are asked for. A script's jobs are added to it.
fn asked(
    args: &PredictArgs,
    queue: &mut Queue,
    cluster: &Cluster,
    now_s: u64,
    unknown: &mut Vec<String>,
) -> Result<Vec<usize>> {
    let mut asked = Vec::new();
    for word in &args.jobs {
        let id = tidepool_queue::words::id(word)
            .ok_or_else(|| Failure::new(Kind::Usage, format!("'{word}' is no job: say 4711 or 4711_3")))?;
        let before = asked.len();
        let fits = |entry: &Entry| entry.id == id || (id.task.is_none() && entry.id.job == id.job);
        asked.extend((0..queue.entries.len()).filter(|place| fits(&queue.entries[*place])));
        if asked.len() == before {
            return Err(Failure::new(Kind::Usage, format!("job {id} is not in the queue")));
        }
    }
    if let Some(path) = &args.script {
        let script = script::load(path, cluster, now_s)?;
        if !script.unknown.is_empty() {
            unknown.push(format!("whether the script's job waits for {}", script.unknown.join(", ")));
        }
        let lowest = queue.entries.iter().map(|entry| entry.priority).fold(0.0, f64::min);
        if args.priority.is_none() {
            unknown.push(
                "the priority of the script's job: it is put behind all others; --priority says it".into(),
            );
        }
        let user = args.user.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_default();
        let priority = args.priority.unwrap_or(lowest - 1.0);
        asked.extend(queue.entries.len()..queue.entries.len() + script.entries.len());
        queue.entries.extend(script.entries.into_iter().map(|entry| Entry {
            user: user.clone(),
            priority,
            ..entry
        }));
    }
    if asked.is_empty() {
        asked.extend(0..queue.entries.len());
    }
    Ok(asked)
}

/// Jobs of the past, as they were known.
struct History {
    past: Vec<Past>,
    /// The same as submissions, of which some may come again.
    submissions: Vec<Submission>,
    names: Names,
    log: Log,
}

/// Times of a log count from its own zero, which it may tell.
fn history(path: &Path) -> Result<History> {
    let log = super::files::read(path, None, None)?;
    let zero_s = log.header.unix_start_s.unwrap_or(0);
    let of = |job: &tidepool_joblog::Job| {
        let mut past = past(job);
        past.job.submit_s = past.job.submit_s.saturating_add(zero_s);
        past.start_s = past.start_s.saturating_add(zero_s);
        past
    };
    let ran = || log.jobs.iter().filter(|job| job.run_s > 0);
    let partitions: BTreeMap<u32, &String> =
        log.names.partitions.iter().map(|(number, name)| (*number, name)).collect();
    let submission = |job: &tidepool_joblog::Job| Submission {
        submit_s: job.submit_s.saturating_add(zero_s),
        run_s: job.run_s,
        limit_s: job.asked.then_some(job.request_s),
        processors: job.processors,
        partition: job.partition.and_then(|number| partitions.get(&number).map(|name| name.to_string())),
    };
    let (past, submissions) = (ran().map(of).collect(), ran().map(submission).collect());
    Ok(History { past, submissions, names: Names::of(&log.names), log })
}

fn answer(
    args: &PredictArgs,
    queue: &Queue,
    cluster: &Cluster,
    rules: &Rules,
    asked: &[usize],
    history: Option<&History>,
    mut unknown: Vec<String>,
) -> Answer {
    let set = scene::set(&queue.entries, cluster, rules, history.map_or(&[], |log| &log.submissions));
    let teacher = history.map(|log| Teacher::new(&log.past, &log.names, &queue.entries, rules.now_s));
    let task_of: BTreeMap<usize, usize> =
        set.places.iter().enumerate().map(|(task, place)| (*place, task)).collect();
    let tasks: Vec<usize> = asked.iter().filter_map(|place| task_of.get(place).copied()).collect();
    let likely =
        teacher.as_ref().map_or_else(|| until_limits(&set.scene), |teacher| teacher.likely_s(&set.places));
    let planned = set.scene.replay(&likely, &tasks);
    let numbers: Vec<u64> = (0..if teacher.is_some() { args.draws.into() } else { 0 }).collect();
    let users = numbered(&queue.entries);
    let until_s = later::until_s(&set.scene, &planned);
    let later = |number: u64| later::draw(&set.past, rules.now_s, until_s, args.seed, number);
    let draws = on_threads(args.threads, &numbers, |number| {
        let drawn =
            teacher.as_ref().map(|teacher| teacher.draw(&set.places, &users, ALIKE, args.seed, *number));
        set.scene.replay_among(&drawn.unwrap_or_default(), &tasks, &later(*number))
    });
    let are_later_drawn = numbers.first().is_some_and(|number| !later(*number).is_empty());
    let told = |place: &usize| {
        let entry = queue.entries[*place].clone();
        let at = task_of.get(place).and_then(|task| tasks.iter().position(|other| other == task));
        let planned = at.and_then(|at| planned[at].clone());
        let forecast = at.zip(planned.as_ref()).and_then(|(at, planned)| {
            let own: Vec<Option<Slot>> = draws.iter().map(|slots| slots[at].clone()).collect();
            Forecast::of(planned, &own)
        });
        let nodes =
            planned.as_ref().map(|slot| cluster.fold(set.nodes(&slot.list).into_iter())).unwrap_or_default();
        let never = || "waits for jobs of which no start can be told".to_string();
        let untold = set.untold.get(place).cloned().or_else(|| planned.is_none().then(never));
        Told { entry, planned, forecast, nodes, untold }
    };
    let jobs: Vec<Told> = asked.iter().map(told).collect();
    let running = queue.entries.iter().filter(|entry| entry.state == State::Running).count();
    if are_later_drawn {
        unknown.push("jobs that will be submitted: such as in past weeks are drawn, behind all that wait; one with a higher priority goes ahead".into());
    } else {
        unknown.push("jobs that will be submitted: they are not there; one with a higher priority goes ahead of others".into());
    }
    tell_unknown(&mut unknown, args, &set.untold, rules, teacher.is_some());
    Answer {
        now_s: rules.now_s,
        zone_s: queue.zone_s,
        jobs,
        running,
        waiting: queue.entries.len() - running,
        nodes: cluster.names.len(),
        nodes_up: cluster.is_up.iter().filter(|is_up| **is_up).count(),
        is_shared: set.is_shared,
        taught: teacher.map(|teacher| (teacher.taught, teacher.known)),
        draws: numbers.len() as u32,
        calibration: None,
        unknown,
    }
}

/// A number for the user of each job.
fn numbered(entries: &[Entry]) -> Vec<u64> {
    let mut known: BTreeMap<&str, u64> = BTreeMap::new();
    let mut number = |entry| -> u64 {
        let next = known.len() as u64;
        *known.entry(entry).or_insert(next)
    };
    entries.iter().map(|entry| number(entry.user.as_str())).collect()
}

fn tell_unknown(
    unknown: &mut Vec<String>,
    args: &PredictArgs,
    untold: &BTreeMap<usize, String>,
    rules: &Rules,
    is_taught: bool,
) {
    unknown.push("how priorities change while jobs wait (age, fair share)".into());
    if !untold.is_empty() {
        unknown.push(format!("when {} held or otherwise hindered jobs come in between", untold.len()));
    }
    if rules.blocks.is_empty() {
        unknown.push(
            "reservations and maintenance: --machine FILE says when parts of the machine are away".into(),
        );
    }
    if !is_taught {
        unknown.push("how long jobs run: without --history all are taken to run until their limits".into());
    }
    if args.policy != super::flags::SchedulerFlag::Conservative {
        unknown
            .push("which nodes wait for jobs behind the first: they have no plan under this policy".into());
    }
}
