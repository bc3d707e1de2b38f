//! Tasks: submitting, planning, looking, waiting, ending.

use crate::exit::{Failure, Kind};
use crate::output::ProgressLine;
use crate::stage::flags::{Selection, SpecArgs, StatusArgs, SubmitArgs, WaitArgs};
use crate::stage::lines::{self, Line};
use crate::stage::outcome::{Done, Result, Trouble, failure_of, kind_of, refused};
use crate::stage::watch;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};
use tidepool_stage_client::{
    Code, FIRST_WAIT, Op, Plan, Refusal, Resource, StageError, Stager, SubmitManyError, Submitted, TaskSpec,
    TaskStatus, Verify, json, show, show_place,
};

/// How often who waits at a terminal is shown how far it is.
const LOOK: Duration = Duration::from_millis(200);
/// Refusals that are told one by one.
const SHOWN_MAX: usize = 10;

pub fn submit(stager: &Stager, args: &SubmitArgs) -> Result<Done> {
    let (numbers, tasks) = specs(&args.spec)?;
    if let ([task], true, None) = (&tasks[..], args.wait, &args.spec.from) {
        return submit_and_wait(stager, task);
    }
    // One task gets a request of its own: its refusal is the result.
    let submitted = match &tasks[..] {
        [task] if args.spec.from.is_none() && !args.held => {
            Submitted { ids: vec![stager.submit(task)?], refused: Vec::new() }
        }
        _ if args.held => stager.submit_held(tasks).map_err(tell_of_those_before)?,
        _ => stager.submit_many(tasks).map_err(tell_of_those_before)?,
    };
    let taken: Vec<u32> = submitted.ids.iter().copied().filter(|id| *id != 0).collect();
    let failure = refusals(stager, &numbers, &submitted.refused);
    let mut json = json!({ "ids": submitted.ids, "refused": refused_json(&numbers, &submitted.refused) });
    let lines = |ids: &[u32]| ids.iter().map(|id| format!("{id}\n")).collect::<String>();
    if !args.wait || taken.is_empty() {
        return Ok(Done { text: lines(&taken), json, failure });
    }
    let ended = wait_showing(stager, &taken, false, None)?;
    json["tasks"] = json!(ended.iter().map(json::task).collect::<Vec<_>>());
    let failure = failure.or_else(|| failure_of(&ended, &stager.node()));
    Ok(Done { text: show::tasks(&ended), json, failure })
}

/// One task, which costs one request when it ends soon.
fn submit_and_wait(stager: &Stager, task: &TaskSpec) -> Result<Done> {
    let status = stager.submit_and_wait_for(task, FIRST_WAIT)?;
    let ended = match status.state.is_ended() {
        true => vec![status],
        false => wait_showing(stager, &[status.id], false, None)?,
    };
    let ids: Vec<u32> = ended.iter().map(|task| task.id).collect();
    let tasks: Vec<Value> = ended.iter().map(json::task).collect();
    let json = json!({ "ids": ids, "refused": [], "tasks": tasks });
    Ok(Done { text: show::tasks(&ended), json, failure: failure_of(&ended, &stager.node()) })
}

/// Who submits many and is cut off has to know what the stager has already.
fn tell_of_those_before(error: SubmitManyError) -> Trouble {
    let ids = || error.done.ids.iter().copied().filter(|id| *id != 0);
    if let (Some(first), Some(last)) = (ids().min(), ids().max()) {
        let (count, lines) = (ids().count(), error.done.ids.len());
        eprintln!(
            "tidepool: {count} tasks, those of the first {lines} in the list, were submitted before; ids {first} to {last}"
        );
    }
    Trouble::Stage(error.error)
}

/// The refused tasks of a list: told on standard error, the first with the exit code.
fn refusals(stager: &Stager, numbers: &[usize], refusals: &[(u32, Refusal)]) -> Option<Failure> {
    let node = stager.node();
    let line = |at: u32| numbers.get(at as usize).copied().unwrap_or_default();
    for (at, refusal) in refusals.iter().take(SHOWN_MAX) {
        eprintln!("tidepool: line {}: {}", line(*at), refused(refusal, Some(&node)));
    }
    let (_, first) = refusals.first()?;
    let text = format!("{} of {} tasks were refused, as told above", refusals.len(), numbers.len());
    Some(Failure::new(kind_of(first.code), text))
}

fn refused_json(numbers: &[usize], refusals: &[(u32, Refusal)]) -> Vec<Value> {
    let one = |(at, refusal): &(u32, Refusal)| {
        let line = numbers.get(*at as usize);
        json!({ "place": at, "line": line, "error": json::refusal(refusal) })
    };
    refusals.iter().map(one).collect()
}

/// The tasks of the command line or of a list, and the lines they are from.
fn specs(args: &SpecArgs) -> Result<(Vec<usize>, Vec<TaskSpec>)> {
    let usual = |op, source, destination| TaskSpec {
        priority: args.priority,
        verify: verify(args),
        bandwidth: args.bandwidth.unwrap_or(0),
        size_hint: args.size_hint.unwrap_or(0),
        on_behalf: args.on_behalf,
        ..TaskSpec::new(op, source, destination)
    };
    let usage = |text: &str| Trouble::Own(Failure::new(Kind::Usage, text));
    let lines = match (&args.from, args.op, &args.source) {
        (Some(from), _, _) => read_list(from, &usual)?,
        (None, Some(op), Some(source)) => {
            let destination = args.destination.clone();
            match (op.op(), &destination) {
                (Op::Remove, Some(_)) => return Err(usage("a removal has no destination")),
                (Op::Copy | Op::Move, None) => {
                    return Err(usage("a destination is missing: SOURCE, then DESTINATION"));
                }
                _ => vec![Line { number: 1, task: usual(op.op(), source.clone(), destination) }],
            }
        }
        _ => return Err(usage("name an operation and its places, or a list with --from")),
    };
    Ok(lines.into_iter().map(|line| (line.number, line.task)).unzip())
}

fn verify(args: &SpecArgs) -> Verify {
    match (args.no_verify, args.verify_disk) {
        (true, _) => Verify::No,
        (false, true) => Verify::Disk,
        (false, false) => Verify::Yes,
    }
}

fn read_list(from: &Path, usual: &dyn Fn(Op, Resource, Option<Resource>) -> TaskSpec) -> Result<Vec<Line>> {
    let fail = |kind, why: &dyn std::fmt::Display| {
        Trouble::Own(Failure::new(kind, format!("{}: {why}; nothing was submitted", from.display())))
    };
    let mut input: Box<dyn BufRead> = match from == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(from).map_err(|error| fail(Kind::Other, &error))?)),
    };
    let lines = lines::read(&mut input, usual).map_err(|error| fail(Kind::Usage, &error))?;
    if lines.is_empty() {
        return Err(fail(Kind::Usage, &"has no task"));
    }
    Ok(lines)
}

pub fn plan(stager: &Stager, args: &SpecArgs) -> Result<Done> {
    let (_, tasks) = specs(args)?;
    let mut plans = Vec::with_capacity(tasks.len());
    for task in &tasks {
        plans.push((task, stager.plan(task)?));
    }
    let problems: usize = plans.iter().map(|(_, plan)| plan.problems.len()).sum();
    let failure = (problems > 0).then(|| {
        let text = format!("{problems} problem(s) speak against this at {}, as told above", stager.node());
        Failure::new(Kind::PlanProblems, text)
    });
    let json = json!({ "plans": plans.iter().map(plan_json).collect::<Vec<_>>(), "problems": problems });
    Ok(Done { text: plans.iter().map(plan_text).collect::<Vec<_>>().join("\n"), json, failure })
}

fn ends(task: &TaskSpec) -> (String, Option<String>) {
    (show_place(&task.src), task.dst.as_ref().map(show_place))
}

fn plan_text((task, plan): &(&TaskSpec, Plan)) -> String {
    let (source, destination) = ends(task);
    let arrow = destination.map(|to| format!(" -> {to}")).unwrap_or_default();
    let head = tidepool_types::show_bytes(format!("{} {source}{arrow}", show::op(task.op)).as_bytes());
    format!("{head}\n{}", show::plan(plan))
}

fn plan_json((task, plan): &(&TaskSpec, Plan)) -> Value {
    let (source, destination) = ends(task);
    let mut value = json::plan(plan);
    value["op"] = json!(show::op(task.op));
    value["source"] = json!(source);
    value["destination"] = json!(destination);
    value
}

pub fn status(stager: &Stager, args: &StatusArgs, as_json: bool) -> Result<Done> {
    let all = args.tasks.is_empty() && args.selection.job.is_none() && args.selection.state.is_none();
    if args.watch {
        let ids = match args.tasks.is_empty() {
            true => unended(stager, &args.selection)?,
            false => args.tasks.clone(),
        };
        return watch::watch(stager, &ids, as_json);
    }
    if all {
        let status = stager.daemon_status()?;
        return Ok(Done::new(show::daemon(&status), json::daemon(&status)));
    }
    if args.tasks.is_empty() {
        return list(stager, &args.selection);
    }
    let tasks = args.tasks.iter().map(|id| stager.status(*id)).collect::<std::result::Result<Vec<_>, _>>()?;
    let text = match &tasks[..] {
        [task] => show::task(task),
        tasks => watch::table(tasks),
    };
    Ok(Done::new(text, json::tasks(&tasks)))
}

fn unended(stager: &Stager, selection: &Selection) -> Result<Vec<u32>> {
    let tasks = stager.list(selection.job, selection.state)?;
    // Nobody knows when a held one goes on.
    let under_way = |task: &&TaskStatus| !task.state.is_ended() && !show::is_held(task);
    Ok(tasks.iter().filter(under_way).map(|task| task.id).collect())
}

pub fn list(stager: &Stager, selection: &Selection) -> Result<Done> {
    let tasks = stager.list(selection.job, selection.state)?;
    Ok(Done::new(watch::table(&tasks), json::tasks(&tasks)))
}

pub fn wait(stager: &Stager, args: &WaitArgs) -> Result<Done> {
    let tasks = wait_showing(stager, &args.tasks, args.any, args.timeout)?;
    let failure = failure_of(&tasks, &stager.node());
    Ok(Done { text: show::tasks(&tasks), json: json::tasks(&tasks), failure })
}

/// Waits, and at a terminal shows how far they are meanwhile.
pub fn wait_showing(
    stager: &Stager,
    ids: &[u32],
    any: bool,
    timeout: Option<Duration>,
) -> Result<Vec<TaskStatus>> {
    let mut line = ProgressLine::new();
    if !line.is_enabled() {
        return Ok(stager.wait(ids, any, timeout)?);
    }
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut seen = watch::Seen::default();
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let outcome = stager.wait(ids, any, Some(left.map_or(LOOK, |left| left.min(LOOK))));
        match outcome {
            Err(StageError::Refused(refusal))
                if refusal.code == Code::TIMEOUT && left.is_none_or(|left| !left.is_zero()) =>
            {
                line.draw(&seen.summary(&watch::statuses(stager, ids)?));
            }
            outcome => {
                line.clear();
                return Ok(outcome?);
            }
        }
    }
}

/// The same with each of several tasks; the first refusal is the failure, and keeps none of the others.
pub fn each(
    stager: &Stager,
    ids: &[u32],
    told: &str,
    ask: impl Fn(&Stager, u32) -> std::result::Result<(), StageError>,
) -> Result<Done> {
    let (mut text, mut done, mut refusals) = (String::new(), Vec::new(), Vec::new());
    for id in ids {
        match ask(stager, *id) {
            Ok(()) => {
                text.push_str(&format!("task {id} {told}\n"));
                done.push(*id);
            }
            Err(StageError::Refused(refusal)) => refusals.push((*id, refusal)),
            Err(error) => return Err(error.into()),
        }
    }
    let node = stager.node();
    let failure = match &refusals[..] {
        [] => None,
        [(_, refusal)] => Some(Failure::new(kind_of(refusal.code), refused(refusal, Some(&node)))),
        [(_, first), ..] => {
            for (_, refusal) in refusals.iter().take(SHOWN_MAX) {
                eprintln!("tidepool: {}", refused(refusal, Some(&node)));
            }
            let text = format!("{} of {} tasks were refused, as told above", refusals.len(), ids.len());
            Some(Failure::new(kind_of(first.code), text))
        }
    };
    let one = |(id, refusal): &(u32, Refusal)| json!({ "id": id, "error": json::refusal(refusal) });
    let json = json!({ "ids": done, "refused": refusals.iter().map(one).collect::<Vec<_>>() });
    Ok(Done { text, json, failure })
}
