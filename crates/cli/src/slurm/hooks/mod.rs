//! What Slurm's hooks do (`integrations/slurm/lua`): one short process each.
//!
//! ```text
//!   sbatch ─▶ submit ─▶ job-process │ setup ─▶ data-in │ paths ─▶ pre-run │ program │ post-run ─▶ data-out ─▶ teardown
//!             slurmctld waits        job is PENDING      waits    CONFIGURING         epilogs on nodes
//! ```
//! Every hook may be called again after a restart of slurmctld, and may be killed at any moment: what it has done is in
//! the book and at the stagers, and the next one goes on from there.

mod ahead;
mod claims;
mod discard;
mod end;
mod kept;
mod lasting;
mod lock;
mod nodes;
mod pools;
mod prepare;
mod resume;
mod start;
mod status;
mod submit;
mod sweep;
mod watch;
mod workflow;
mod world;

pub use discard::discard_here;
pub use pools::check as check_pool;
pub use sweep::{end_pool, sweep};

use super::flags::{HookArgs, HookName};
use super::ready;
use super::scontrol;
use super::site::Site;
use super::stagers::{Fleet, Ways};
use crate::exit::{Context, Failure, Kind, Result};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_batch::{Book, BookError, Job, Phase};
use tidepool_directives::Directives;
use tidepool_env::LockedFile;
use tidepool_stage_client::OnBehalf;

/// How long a teardown waits for hooks that are under way to notice it.
const NOTICE_MAX: Duration = Duration::from_secs(60);
const NOTICE_LOOK: Duration = Duration::from_millis(50);

/// Runs a hook. What it says goes to standard output, with its verdict as the last line: whether it was killed cannot be
/// told otherwise.
pub fn hook(args: &HookArgs) -> Result<ExitCode> {
    match serve(args) {
        Ok(said) => {
            println!("{said}{}hook: done", if said.is_empty() || said.ends_with('\n') { "" } else { "\n" })
        }
        Err(failure) => println!("{failure}\nhook: failed"),
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(args: &HookArgs) -> Result<String> {
    if let HookName::Ready {} = args.hook {
        let found = ready::findings(&args.site);
        return serde_json::to_string(&found).context(Kind::Other, || "what was found".into());
    }
    let site = Site::read(&args.site)?;
    match &args.hook {
        HookName::Submit { request, script } => submit::submit(&site, request, script),
        HookName::JobProcess { script } => Desk::open(site)?.job_process(script),
        HookName::Paths { job, file } => Desk::open(site)?.paths(*job, file),
        HookName::Setup { job, uid, gid } => Desk::open(site)?.setup(*job, *uid, *gid),
        HookName::DataIn { job } => Desk::open(site)?.data_in(*job),
        HookName::PreRun { job } => Desk::open(site)?.pre_run(*job),
        HookName::PostRun { job } => Desk::open(site)?.post_run(*job),
        HookName::DataOut { job } => Desk::open(site)?.data_out(*job),
        HookName::Teardown { job, hurry } => Desk::open(site)?.teardown(*job, hurry == "true"),
        HookName::Cancel { job } => scontrol::cancel_when_torn_down(*job).map(|()| String::new()),
        HookName::Ready {} => Ok(String::new()),
        HookName::Status { words } => status::status(&Desk::open(site)?, words),
    }
}

/// Where hooks work: the site's settings, and the book.
pub struct Desk {
    pub site: Site,
    pub book: Book,
}

/// A job with what it asks for.
pub struct Case {
    pub job: Job,
    pub asks: Directives,
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Reads what the submission hook has accepted.
pub fn directives(script: &[u8]) -> Result<Directives> {
    Directives::parse(script).map(|(directives, _)| directives).map_err(|problems| {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Failure::new(Kind::Usage, all.join("\n"))
    })
}

impl Desk {
    pub fn open(site: Site) -> Result<Desk> {
        let dir = &site.state_dir;
        let shown = || dir.display().to_string();
        // The book has scripts of users, and the files of their pools their secrets.
        DirBuilder::new().recursive(true).mode(0o700).create(dir).context(Kind::Other, shown)?;
        let owner = std::fs::metadata(dir).context(Kind::Other, shown)?.uid();
        let own = rustix::process::geteuid().as_raw();
        if owner != own {
            let text = format!(
                "{} belongs to user {owner}, and Slurm's hooks run as user {own} (SlurmUser); 'tidepool slurm install --check' says what to do",
                dir.display()
            );
            return Err(Failure::new(Kind::Other, text));
        }
        let path = site.book();
        let book = Book::open(&path).map_err(|error| Failure::new(Kind::Other, error.to_string()))?;
        Ok(Desk { site, book })
    }

    fn case(&self, job: u32) -> Result<Case> {
        let job = self.noted(self.book.job(job))?;
        let asks = directives(job.script.as_bytes())?;
        Ok(Case { job, asks })
    }

    /// The result of something with the book.
    fn noted<T>(&self, result: std::result::Result<T, tidepool_batch::BookError>) -> Result<T> {
        result.map_err(|error| Failure::new(Kind::Other, error.to_string()))
    }

    fn become_(&self, job: u32, phase: Phase, reason: &str) -> Result<()> {
        self.noted(self.book.become_(job, phase, reason, now()))
    }

    /// The same towards a job's start: refused when that is being taken back.
    fn advance(&self, case: &Case, phase: Phase, reason: &str) -> Result<()> {
        self.noted(self.book.advance(&case.job, phase, reason, now()))
    }

    /// An error when what a hook works for is being taken back, or over: Slurm has queued the job again, or its owner has
    /// ended it. Slurm does not always tell the hooks that it has called, so those that wait look.
    fn check_wanted(&self, case: &Case) -> Result<()> {
        match case.job.is_same_attempt(&self.noted(self.book.job(case.id()))?) {
            true => Ok(()),
            false => self.noted(Err(BookError::TakenBack { job: case.id() })),
        }
    }

    /// The job, when it is this hook's turn to work towards its start. One of before, which slurmctld has lost as by being
    /// killed, may still be at work; this one goes on from what it has done.
    fn turn(&self, job: u32) -> Result<(LockedFile, Case)> {
        let began = self.case(job)?;
        let lock = self.lock(&starting(job))?;
        self.check_wanted(&began)?;
        Ok((lock, self.case(job)?))
    }

    /// Waits until no hook works towards the job's start any more. They look for the teardown; one that does not see it in
    /// time is not waited for.
    fn last_turn(&self, job: u32) -> Result<Option<LockedFile>> {
        let path = self.lock_file(&starting(job));
        let began = Instant::now();
        loop {
            match lock::try_take(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => return other.map(Some).context(Kind::Other, || path.display().to_string()),
            }
            if began.elapsed() > NOTICE_MAX {
                self.note(job, "a hook that works towards its start does not end, and is not waited for");
                return Ok(None);
            }
            std::thread::sleep(NOTICE_LOOK);
        }
    }

    /// Says what is going on, where the job's user looks: `squeue` and `tidepool slurm jobs`.
    fn tell(&self, case: &Case, text: &str) {
        // As with notes.
        let _ = self.book.set_reason(case.id(), text);
        scontrol::comment(case.id(), &format!("tidepool: {text}"));
    }

    fn note(&self, job: u32, text: &str) {
        // What happened is told to whoever asks later; that it cannot be noted keeps nothing from happening.
        let _ = self.book.note(job, text, now());
    }

    /// Ends a job that cannot start, with the reason where its user looks. What went wrong while the job was taken back ends
    /// nothing: its next attempt may be under way.
    fn end(&self, case: &Case, failure: Failure) -> Failure {
        let (job, reason) = (case.id(), failure.to_string());
        if let Err(late) = self.book.advance(&case.job, Phase::Failed, &reason, now()) {
            self.note(job, &format!("{late} ({reason})"));
            return failure;
        }
        scontrol::comment(job, &format!("tidepool: {reason}"));
        if let Err(error) = scontrol::cancel_from_hook(job, &self.site.file) {
            self.note(job, &error.to_string());
        }
        failure
    }

    /// Keeps other hooks from changing the same thing meanwhile.
    fn lock(&self, what: &str) -> Result<LockedFile> {
        let path = self.lock_file(what);
        lock::take(&path).context(Kind::Other, || path.display().to_string())
    }

    fn lock_file(&self, what: &str) -> std::path::PathBuf {
        self.site.state_dir.join(format!("{what}.lock"))
    }

    fn fleet(&self, nodes: &[String]) -> Result<Fleet> {
        Fleet::connect(&Ways::of(&self.site)?, nodes)
    }
}

/// The lock of whoever works towards a job's start.
fn starting(job: u32) -> String {
    format!("start-{job}")
}

impl Case {
    fn id(&self) -> u32 {
        self.job.job
    }

    /// In whose name its data are moved.
    fn owner(&self) -> Result<OnBehalf> {
        let gid = self
            .job
            .gid
            .ok_or_else(|| Failure::new(Kind::Other, "Slurm has not said the job's group yet"))?;
        Ok(OnBehalf { uid: self.job.uid, gid, job: self.job.job })
    }

    /// Something is to be done on its nodes.
    fn needs_nodes(&self) -> bool {
        let asks = &self.asks;
        asks.resume.is_some()
            || asks.discard.is_some()
            || asks.end_pool.is_some()
            || !(asks.stage_in.is_empty()
                && asks.stage_out.is_empty()
                && asks.persist.is_empty()
                && asks.pools.is_empty())
    }
}
