//! Runs applications: processes, barriers between them, and what is left at the end.
//!
//! ```text
//! keeper: make ─▶ processes start ─▶ prepare ─▶ one thread for each application ─▶ keeper: verify, clear
//!                                               compute, barrier, I/O, barrier, ...
//! ```
//! All processes are started by the main thread and end with it.

use super::keeper::{self, Answer as Kept};
use super::measure::{Course, Measured};
use super::worker::{self, Answer, now};
use crate::crew::{Leash, Member, allow_pipes, watched};
use crate::exit::{Context, Failure, Kind, Result};
use crate::signals::Signals;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidepool_workload::{Application, Phase, Stage};

/// How often an application that has to wait for its start looks around.
const TICK: Duration = Duration::from_millis(20);

/// Nobody waits longer for a start.
const START_MAX: Duration = Duration::from_secs(7 * 86_400);

pub struct Settings {
    pub dir: PathBuf,
    /// Whether that is a path in a pool, which this process may not reach.
    pub in_pool: bool,
    pub applications: Vec<Application>,
    /// Of all processes that touch files.
    pub environment: Vec<(OsString, OsString)>,
    /// When to begin, since 1970; without, as soon as all are ready.
    pub start_at: Option<Duration>,
    pub busy: bool,
    pub verify: bool,
    pub keep: bool,
    pub wipe: bool,
}

pub struct Outcome {
    pub courses: Vec<Course>,
    /// With `verify`.
    pub compared: Option<Kept>,
}

/// Runs everything; files are removed unless they are to be kept, whatever happens.
pub fn run(settings: &Settings) -> Result<Outcome> {
    let signals = Signals::watch()?;
    allow_pipes()?;
    let mut keeper = Keeper::start(settings, None)?;
    // Not given up in the middle: it is short, and only the one who does it knows what it has made.
    let made = match keeper.answer("make") {
        Ok(made) => made,
        Err(failure) => {
            keeper.leave();
            return Err(failure);
        }
    };
    let result = measured(settings, &signals).and_then(|courses| {
        let compared = settings.verify.then(|| keeper.verify(&signals)).transpose()?;
        Ok(Outcome { courses, compared })
    });
    let cleared = keeper.end(settings, made, &signals);
    match (result, cleared) {
        (Err(failure), Err(left)) => {
            eprintln!("tidepool: {failure}");
            Err(left)
        }
        (result, cleared) => result.and_then(|outcome| cleared.map(|()| outcome)),
    }
}

fn measured(settings: &Settings, signals: &Signals) -> Result<Vec<Course>> {
    let mut groups = Vec::new();
    for application in &settings.applications {
        signals.check()?;
        groups.push(Group::start(application, settings)?);
    }
    let stage = Theatre::new(&groups, signals);
    let lines = || stage.progress().join("; ");
    let leashes = stage.leashes.clone();
    let courses = watched(signals, &leashes, lines, || stage.perform(&mut groups, settings))?;
    for group in &mut groups {
        group.members.iter_mut().try_for_each(Member::end)?;
    }
    Ok(courses)
}

/// When applications begin, by this machine's monotonic clock, now that all their processes are ready.
fn begin(start_at: Option<Duration>) -> Result<u64> {
    let Some(at) = start_at else { return Ok(now()) };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let refuse = |text| Err(Failure::new(Kind::Other, text));
    match at.checked_sub(since_1970) {
        Some(left) if left <= START_MAX => Ok(now() + left.as_nanos() as u64),
        Some(_) => refuse("--start-at is more than a week ahead; is it in seconds?".to_string()),
        None => {
            let late = (since_1970 - at).as_secs_f64();
            refuse(format!("all was ready {late:.3} s after --start-at: give it longer"))
        }
    }
}

/// The processes of one application.
struct Group {
    application: Application,
    members: Vec<Member>,
}

impl Group {
    fn start(application: &Application, settings: &Settings) -> Result<Group> {
        let mut group = Group { application: application.clone(), members: Vec::new() };
        for rank in 0..application.processes {
            let dir = settings.dir.join(&application.name);
            let job = worker::Job { dir, rank, application: application.clone() };
            let job = serde_json::to_string(&job).expect("a job always serializes");
            let words = ["workload", "worker", &job];
            group.members.push(Member::start("a workload process", &words, &settings.environment, true)?);
        }
        group.members.iter_mut().try_for_each(Member::is_ready)?;
        Ok(group)
    }

    /// All do one thing; it ends when the last one is done, which is the barrier.
    fn all(&mut self, command: &str) -> Result<Vec<Answer>> {
        for member in &mut self.members {
            member.tell(command)?;
        }
        let mut answers = Vec::new();
        for (rank, member) in self.members.iter_mut().enumerate() {
            let line = member.line()?;
            let answer: Answer = serde_json::from_str(&line)
                .context(Kind::Other, || format!("a workload process said '{line}'"))?;
            if !answer.error.is_empty() {
                let text =
                    format!("application '{}', process {rank}: {}", self.application.name, answer.error);
                return Err(Failure::new(Kind::Other, text));
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// All applications of a run.
struct Theatre<'a> {
    signals: &'a Signals,
    leashes: Vec<Leash>,
    /// What each application does, for people.
    lines: Mutex<Vec<String>>,
    /// The first failure; those after it are what it leads to.
    failed: Mutex<Option<Failure>>,
    is_over: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Theatre<'_> {
    fn new<'a>(groups: &[Group], signals: &'a Signals) -> Theatre<'a> {
        let leashes = groups.iter().flat_map(|group| group.members.iter().map(Member::leash)).collect();
        let lines = groups.iter().map(|group| format!("{}: preparing", group.application.name)).collect();
        Theatre {
            signals,
            leashes,
            lines: Mutex::new(lines),
            failed: Mutex::default(),
            is_over: AtomicBool::default(),
        }
    }

    fn progress(&self) -> Vec<String> {
        locked(&self.lines).clone()
    }

    fn perform(&self, groups: &mut [Group], settings: &Settings) -> Result<Vec<Course>> {
        for group in groups.iter_mut() {
            let prepare = group.application.phase(0).filter(|phase| phase.does_io);
            prepare.map_or(Ok(Vec::new()), |phase| group.all(&format!("io {}", phase.index)))?;
        }
        let start_ns = begin(settings.start_at)?;
        let courses: Vec<Option<Course>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(groups)
                .map(|(number, group)| scope.spawn(move || self.play(number, group, settings.busy, start_ns)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
                .collect()
        });
        match locked(&self.failed).take() {
            Some(failure) => Err(failure),
            None => Ok(courses.into_iter().flatten().collect()),
        }
    }

    /// One application; its failure ends the others.
    fn play(&self, number: usize, group: &mut Group, busy: bool, start_ns: u64) -> Option<Course> {
        match self.course(number, group, busy, start_ns) {
            Ok(course) => Some(course),
            Err(failure) => {
                locked(&self.failed).get_or_insert(failure);
                self.is_over.store(true, Ordering::Release);
                self.leashes.iter().for_each(Leash::kill);
                None
            }
        }
    }

    fn course(&self, number: usize, group: &mut Group, busy: bool, start_ns: u64) -> Result<Course> {
        let application = group.application.clone();
        self.wait(number, &application, start_ns)?;
        let mut phases = Vec::new();
        let mut first_io = None;
        for phase in application.phases_in_turn().filter(|phase| phase.stage != Stage::Prepare) {
            let each = application.compute(first_io);
            let measured = self.phase(number, group, &phase, (each, busy), start_ns)?;
            if application.needs_measuring() && first_io.is_none() && phase.stage == Stage::Step {
                first_io = measured.io.map(|io| Duration::from_secs_f64(io.seconds.max));
            }
            phases.push(measured);
        }
        let compute_each = application.compute(first_io).as_secs_f64();
        let derived_from = first_io.map(|time| time.as_secs_f64());
        Ok(Course { application, phases, compute_each, derived_from })
    }

    /// Until its start.
    fn wait(&self, number: usize, application: &Application, start_ns: u64) -> Result<()> {
        let begins_ns = start_ns + u64::try_from(application.start.as_nanos()).unwrap_or(u64::MAX / 2);
        loop {
            let left = Duration::from_nanos(begins_ns.saturating_sub(now()));
            if left.is_zero() {
                return Ok(());
            }
            if self.is_over.load(Ordering::Acquire) {
                return Err(Failure::new(Kind::Other, "another application has failed"));
            }
            self.signals.check()?;
            locked(&self.lines)[number] =
                format!("{}: starts in {:.0} s", application.name, left.as_secs_f64());
            std::thread::sleep(left.min(TICK));
        }
    }

    fn phase(
        &self,
        number: usize,
        group: &mut Group,
        phase: &Phase,
        (each, busy): (Duration, bool),
        start_ns: u64,
    ) -> Result<Measured> {
        let all = &group.application;
        let place = match phase.stage {
            Stage::Step => format!("{}: step {} of {}", all.name, phase.step, all.steps),
            other => format!("{}: {}", all.name, other.name()),
        };
        let mut compute = Vec::new();
        if phase.computes && !each.is_zero() {
            locked(&self.lines)[number] = format!("{place}, computing");
            let how = if busy { "busy" } else { "sleep" };
            compute = group.all(&format!("compute {} {how}", each.as_nanos()))?;
        }
        let mut io = Vec::new();
        if phase.does_io {
            locked(&self.lines)[number] = format!("{place}, I/O");
            io = group.all(&format!("io {}", phase.index))?;
        }
        Ok(Measured::of(phase, &compute, &io, start_ns))
    }
}

/// The process that makes and removes what lies in the directory.
pub struct Keeper(Member);

impl Keeper {
    /// `made` by another one, if there was one.
    fn start(settings: &Settings, made: Option<Kept>) -> Result<Keeper> {
        let job = keeper::Job {
            dir: settings.dir.clone(),
            applications: settings.applications.clone(),
            wipe: settings.wipe,
            keep: settings.keep,
            made: made.is_some(),
            made_dir: made.is_some_and(|made| made.made_dir),
        };
        Keeper::of(&job, &settings.environment)
    }

    /// For what an earlier run has kept.
    pub fn adopting(dir: PathBuf, environment: &[(OsString, OsString)]) -> Result<Keeper> {
        let applications = Vec::new();
        let job = keeper::Job { dir, applications, wipe: false, keep: true, made: false, made_dir: false };
        Keeper::of(&job, environment)
    }

    fn of(job: &keeper::Job, environment: &[(OsString, OsString)]) -> Result<Keeper> {
        let job = serde_json::to_string(job).expect("a job always serializes");
        let words = ["workload", "keeper", &job];
        let mut member = Member::start("the keeper of files", &words, environment, true)?;
        member.is_ready()?;
        Ok(Keeper(member))
    }

    /// A signal kills it.
    pub fn verify(&mut self, signals: &Signals) -> Result<Kept> {
        let leash = [self.0.leash()];
        watched(signals, &leash, || "comparing files".to_string(), || self.answer("verify"))
    }

    pub fn answer(&mut self, command: &str) -> Result<Kept> {
        self.0.tell(command)?;
        let line = self.0.line()?;
        let kept: Kept =
            serde_json::from_str(&line).context(Kind::Other, || format!("the keeper said '{line}'"))?;
        if kept.error.is_empty() { Ok(kept) } else { Err(Failure::new(Kind::Other, kept.error)) }
    }

    /// Removes what is there, unless it is to be kept. A second signal does not stop that.
    fn end(mut self, settings: &Settings, made: Kept, signals: &Signals) -> Result<()> {
        let left = |failure: Failure| failure.of_kind(Kind::Cleanup);
        if !settings.keep {
            if signals.seen().is_some() {
                // This one may have been killed.
                self = Keeper::start(settings, Some(made)).map_err(left)?;
            }
            self.answer("clear").map_err(left)?;
        }
        self.leave();
        Ok(())
    }

    pub fn leave(mut self) {
        // It has nothing to do any more, and one that was killed has nothing to say.
        let _ = self.0.tell("end").and_then(|()| self.0.end());
    }
}
