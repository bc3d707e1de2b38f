//! Progress of tasks as it happens: redrawn on a terminal, a line for each change elsewhere.

use crate::output::Screen;
use crate::stage::outcome::{Done, Result, failure_of};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{IsTerminal, stdout};
use std::time::Duration;
use tidepool_stage_client::{Code, StageError, Stager, TaskState, TaskStatus, json, show};
use tidepool_types::format_size;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// Percentages as they were shown: they never fall, also when a stager that was killed counts anew.
#[derive(Default)]
pub struct Seen {
    highest: HashMap<u32, u8>,
    /// What was last told of a task, in the view that tells changes.
    told: HashMap<u32, (TaskState, Option<u8>)>,
}

impl Seen {
    fn percent(&mut self, task: &TaskStatus) -> Option<u8> {
        let now = show::percent(task);
        let highest = self.highest.entry(task.id).or_default();
        *highest = (*highest).max(now.unwrap_or(0));
        let known = now.is_some() || *highest > 0;
        known.then_some(*highest)
    }

    /// True when it is not as it was told last.
    fn is_news(&mut self, task: &TaskStatus, percent: Option<u8>) -> bool {
        let now = (task.state, percent);
        self.told.insert(task.id, now) != Some(now)
    }

    /// One line for several tasks.
    pub fn summary(&mut self, tasks: &[TaskStatus]) -> String {
        if let [task] = tasks {
            let percent = self.percent(task);
            return line(task, percent);
        }
        let ended = tasks.iter().filter(|task| task.state.is_ended()).count();
        let (bytes, rate) =
            tasks.iter().fold((0, 0), |(b, r), task| (b + task.bytes_done, r + rate_of(task)));
        format!("{ended} of {} tasks ended, {}, {}/s", tasks.len(), format_size(bytes), format_size(rate))
    }
}

fn rate_of(task: &TaskStatus) -> u64 {
    if task.state == TaskState::Running { task.rate } else { 0 }
}

pub fn statuses(stager: &Stager, ids: &[u32]) -> std::result::Result<Vec<TaskStatus>, StageError> {
    ids.iter().map(|id| stager.status(*id)).collect()
}

/// Shows the tasks until all have ended.
pub fn watch(stager: &Stager, ids: &[u32], as_json: bool) -> Result<Done> {
    let mut seen = Seen::default();
    let mut screen = (!as_json && stdout().is_terminal()).then(Screen::default);
    let mut tasks = statuses(stager, ids)?;
    loop {
        match &mut screen {
            Some(screen) => screen.draw(&rows(&tasks, &mut seen)),
            None => tell_changes(&tasks, &mut seen, as_json),
        }
        if tasks.iter().all(|task| task.state.is_ended()) {
            let failure = failure_of(&tasks, &stager.node());
            let text = if ids.is_empty() { "no task is under way\n".into() } else { String::new() };
            return Ok(Done { text, json: json!({ "ended": tasks.len() }), failure });
        }
        let unended: Vec<u32> =
            tasks.iter().filter(|task| !task.state.is_ended()).map(|task| task.id).collect();
        match stager.wait(&unended, false, Some(LOOK)) {
            Err(StageError::Refused(refusal)) if refusal.code == Code::TIMEOUT => {}
            other => drop(other?),
        }
        // What has ended once is not asked about again, however many those are.
        for task in tasks.iter_mut().filter(|task| !task.state.is_ended()) {
            *task = stager.status(task.id)?;
        }
    }
}

fn tell_changes(tasks: &[TaskStatus], seen: &mut Seen, as_json: bool) {
    for task in tasks {
        let percent = seen.percent(task);
        if !seen.is_news(task, percent) {
            continue;
        }
        match as_json {
            true => println!("{}", with_percent(task, percent)),
            false => println!("{}", line(task, percent)),
        }
    }
}

fn with_percent(task: &TaskStatus, percent: Option<u8>) -> Value {
    let mut value = json::task(task);
    value["percent"] = json!(percent);
    value
}

/// How a task is, in one line.
fn line(task: &TaskStatus, percent: Option<u8>) -> String {
    let how = match task.state {
        TaskState::Running => show::phase(task.phase),
        _ => show::standing(task),
    };
    let mut text = format!("task {}: {how}", task.id);
    if let Some(percent) = percent {
        text.push_str(&format!(" {percent} %"));
    }
    text.push_str(&format!(", {}, {} files", show::moved(task), task.files_done));
    if task.state == TaskState::Running {
        text.push_str(&format!(", {}", show::per_second(task.rate)));
        text.push_str(&task.eta_ms.map(|ms| format!(", {} left", show::duration(ms))).unwrap_or_default());
    }
    if task.state.is_ended() {
        text.push_str(&format!(", {}", show::duration(task.age_ms)));
    }
    tidepool_types::show_bytes(text.as_bytes())
}

/// Several tasks, with how far they are.
pub fn table(tasks: &[TaskStatus]) -> String {
    rows(tasks, &mut Seen::default())
}

fn rows(tasks: &[TaskStatus], seen: &mut Seen) -> String {
    let row = |task: &TaskStatus| {
        let running = task.state == TaskState::Running;
        let percent = seen.percent(task).map(|percent| format!("{percent} %")).unwrap_or_default();
        let rate = if running { show::per_second(task.rate) } else { String::new() };
        let left = task.eta_ms.filter(|_| running).map(show::duration).unwrap_or_default();
        let arrow = if task.dst.is_empty() { "" } else { " -> " };
        let what = format!("{} {}{arrow}{}", show::op(task.op), task.src, task.dst);
        let (id, state) = (task.id.to_string(), show::standing(task).to_string());
        [id, state, percent, show::moved(task), rate, left, what, show::reason(task)]
    };
    let head = ["TASK", "STATE", "DONE", "BYTES", "RATE", "LEFT", "WHAT", "ERROR"];
    show::table(head, tasks.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fit;
    use tidepool_stage_client::{Op, Refusal, TaskPhase};

    fn task(done: u64, total: u64, total_known: bool) -> TaskStatus {
        TaskStatus {
            id: 7,
            op: Op::Copy,
            state: TaskState::Running,
            phase: TaskPhase::Copying,
            refusal: Refusal::new(Code::SUCCESS, ""),
            job: 0,
            uid: 0,
            src: "a://x".into(),
            dst: "b://x\x1b[2J".into(),
            bytes_done: done,
            bytes_total: total,
            files_done: 0,
            files_total: 1,
            total_known,
            rate: 0,
            eta_ms: None,
            age_ms: 0,
            percent: None,
        }
    }

    #[test]
    fn percentages_never_fall_and_are_100_at_the_end_only() {
        let mut seen = Seen::default();
        assert_eq!(seen.percent(&task(5, 10, false)), None);
        assert_eq!(seen.percent(&task(60, 100, true)), Some(60));
        assert_eq!(seen.percent(&task(10, 100, true)), Some(60), "counted anew after a kill");
        assert_eq!(seen.percent(&task(10, 100, false)), Some(60));
        // As the stager tells it: nothing is verified yet, and much is copied.
        assert_eq!(seen.percent(&TaskStatus { percent: Some(70), ..task(0, 100, true) }), Some(70));
        assert_eq!(seen.percent(&task(100, 100, true)), Some(99));
        let ended = TaskStatus { state: TaskState::Finished, ..task(100, 100, true) };
        assert_eq!(seen.percent(&ended), Some(100));
    }

    #[test]
    fn only_changes_are_told() {
        let mut seen = Seen::default();
        assert!(seen.is_news(&task(1, 2, true), Some(50)));
        assert!(!seen.is_news(&task(1, 2, true), Some(50)));
        assert!(seen.is_news(&task(1, 2, true), Some(51)));
    }

    #[test]
    fn what_is_drawn_fits_the_terminal_and_does_not_drive_it() {
        let text = table(&[task(1, 2, true), task(1, 2, true), task(1, 2, true)]);
        assert!(!text.contains('\x1b'), "{text}");
        let drawn = fit(&text, 20, 5);
        assert_eq!(drawn.lines().count(), 4, "{drawn}");
        assert!(drawn.lines().all(|line| line.chars().count() < 20), "{drawn}");
        assert!(drawn.ends_with("... and 1 more\n"), "{drawn}");
    }
}
