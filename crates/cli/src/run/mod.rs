//! `tidepool run`: the whole life of a pool around one program, or of what a job script asks for around the script.
//!
//! ```text
//! start ─▶ stage in ─▶ program ─▶ stage out ─▶ stop
//!   └────────┴────────────┴──── a signal or failure skips to: stage out (once the program
//!                               has run), then stop; nothing is left behind
//! ```
//! A run that is killed outright leaves its pool, so that no result is lost: `tidepool
//! drain` finishes the stage-out and stops the pool.

mod dry;
mod job;
mod limit;
mod made;
mod own;
mod script;
mod story;

pub use job::{Spread, Way};

use crate::backend::{self, FileSystem};
use crate::copy;
use crate::exec;
use crate::exit::{Failure, Kind, Result, first};
use crate::flags::RunArgs;
use crate::instance::{OutRecord, RunPhase};
use crate::plan::Staged as Known;
use crate::signals::Signals;
use crate::staging::{self, Summary};
use crate::top::watch::Watcher;
use job::{Copy, Here, Job, Program, Route, Script};
use limit::Limit;
use made::Made;
use own::OwnDir;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;
use story::{Staged, Story, Watch};
use tidepool_directives::env_name;

pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let job = match &args.job {
        Some(script) => script::job(script, args)?,
        None => Job::of_flags(args)?,
    };
    if args.dry_run {
        return dry::tell(&job, args.json);
    }
    let signals = Signals::watch()?;
    let mut story = Story::default();
    if let Program::Script(script) = &job.program {
        story.script = Some((script.shown.clone(), script.warnings.clone()));
    }
    let result = live(&job, args.kill_grace, &signals, &mut story);
    if args.json {
        println!("{}", story.json(&result));
    }
    result.map(|()| ExitCode::from(story.program_code.unwrap_or(0)))
}

fn live(job: &Job, kill_grace: u64, signals: &Signals, story: &mut Story) -> Result<()> {
    let own = match &job.program {
        Program::Script(script) => Some(OwnDir::make(&script.shown, job.passing())?),
        Program::Words(_) => None,
    };
    let mut stand = Stand { job, signals, pools: Vec::new(), made: Made::default(), own };
    let worked = stand.start(story).and_then(|()| stand.work(kill_grace, story));
    stand.end(worked, story)
}

/// What a run has while it lasts.
struct Stand<'a> {
    job: &'a Job,
    signals: &'a Signals,
    pools: Vec<Box<dyn FileSystem>>,
    made: Made,
    /// Of a job script.
    own: Option<OwnDir>,
}

impl Stand<'_> {
    fn start(&mut self, story: &mut Story) -> Result<()> {
        for (number, wish) in self.job.pools.iter().enumerate() {
            let outs = self.job.outs_of(number);
            // What is known without looking at the data: whether there are any.
            let nothing = |any: bool| (!any).then_some(0);
            let known =
                Known { stage_in: nothing(self.job.fills(number)), stage_out: nothing(!outs.is_empty()) };
            let watch = Watch::start(None);
            let fs = backend::start(&wish.fs, &wish.shape, known)?;
            let shaped = wish.shape.shaped();
            let what =
                shaped.iter().fold(fs.describe(), |what, (tier, label)| format!("{what}; {tier} is {label}"));
            story.shaped.extend(shaped);
            story.note("start", watch.stop(None), &what);
            let noted = fs.note_run((RunPhase::StageIn, None), &outs);
            self.pools.push(fs);
            noted?;
            self.signals.check()?;
        }
        Ok(())
    }

    fn work(&mut self, kill_grace: u64, story: &mut Story) -> Result<()> {
        self.stage_in(story)?;
        self.note(RunPhase::Program, None)?;
        // Of several pools none is the one that limits.
        let watch = Watch::start(self.only_pool());
        let name = |fs: &dyn FileSystem| fs.instance().name.clone();
        let watched = self.pools.iter().filter_map(|fs| Some((name(fs.as_ref()), fs.watch()?)));
        let watched: Vec<(String, Watcher)> = watched.collect();
        let child = self.spawn()?;
        let status = exec::wait(child, self.signals, kill_grace)?;
        story.program_code = Some(exec::exit_byte(status));
        story.note("program", watch.stop(self.only_pool()), &status.to_string());
        watched.into_iter().for_each(|(pool, watcher)| story.note_tiers(pool, watcher));
        // A signal ended the program; its output is wanted all the same. A second one ends that, too.
        let stopped_by = self.signals.seen();
        self.signals.reset();
        // Results are worth more than what is known of them.
        let noted = self.note(RunPhase::StageOut, story.program_code);
        first(self.stage_out(story), noted)?;
        self.note(RunPhase::Done, story.program_code)?;
        match stopped_by {
            Some(number) => Err(Failure::new(Kind::Signal(number), format!("stopped by signal {number}"))),
            None => Ok(()),
        }
    }

    /// For `drain`.
    fn note(&self, phase: RunPhase, program: Option<u8>) -> Result<()> {
        let noted = |number: usize| {
            let outs = self.job.outs_of(number);
            self.pools[number].note_run((phase, program), &outs)
        };
        (0..self.pools.len()).map(noted).fold(Ok(()), first)
    }

    fn only_pool(&self) -> Option<&dyn FileSystem> {
        match self.pools.as_slice() {
            [only] => Some(only.as_ref()),
            _ => None,
        }
    }

    fn stage_in(&mut self, story: &mut Story) -> Result<()> {
        let (job, signals) = (self.job, self.signals);
        let limit = Limit::start(job.stage_in_limit, signals);
        for (number, copy) in job.stage_in.iter().enumerate() {
            let copied = self.copy(copy, Way::In, number, story);
            signals.check()?;
            copied.map(drop).map_err(|failure| over(&limit, Way::In).unwrap_or(failure))?;
        }
        Ok(())
    }

    /// One that fails does not keep the others from being tried.
    fn stage_out(&mut self, story: &mut Story) -> Result<()> {
        let (job, signals) = (self.job, self.signals);
        let limit = Limit::start(job.stage_out_limit, signals);
        let mut worked = Ok(());
        for (number, copy) in job.stage_out.iter().enumerate() {
            if self.was_not_made(copy, story)? {
                eprintln!("tidepool: {} is not there: the program failed before it made it", copy.from);
                continue;
            }
            let copied = self.copy(copy, Way::Out, number, story);
            let Err(failure) = copied.and_then(|summary| self.has_something(copy, &summary)) else {
                continue;
            };
            if let Route::Here(here) = &copy.route {
                here.tell_how_to_go_on();
            }
            match &worked {
                Ok(()) => worked = Err(over(&limit, Way::Out).unwrap_or(failure)),
                Err(_) => eprintln!("tidepool: {failure}"),
            }
            if signals.seen().is_some() || limit.exceeded().is_some() {
                break;
            }
        }
        worked
    }

    /// An output that was asked for and has no file was mostly written somewhere else.
    fn has_something(&self, copy: &Copy, summary: &Summary) -> Result<()> {
        if summary.files > 0 || summary.links > 0 || summary.bytes_skipped > 0 {
            return Ok(());
        }
        let text = format!("{} is empty: no file was brought to {}", copy.from, copy.to);
        if self.job.require {
            let text = format!("{text}, and --require wants one; did the program write it elsewhere?");
            return Err(Failure::new(Kind::StageOut, text));
        }
        eprintln!("tidepool: warning: {text}; did the program write it elsewhere?");
        Ok(())
    }

    /// Nobody can want a result of a program that failed before it had one. Of one that did well it is an error that there is none.
    fn was_not_made(&self, copy: &Copy, story: &Story) -> Result<bool> {
        if story.program_code == Some(0) {
            return Ok(false);
        }
        Ok(match &copy.route {
            Route::OutOf { pool, from, .. } => !self.pools[*pool].has(from)?,
            Route::Here(here) => here.from.symlink_metadata().is_err(),
            Route::Into { .. } => false,
        })
    }

    fn copy(&mut self, copy: &Copy, way: Way, number: usize, story: &mut Story) -> Result<Summary> {
        let pool = match &copy.route {
            Route::Into { pool, .. } | Route::OutOf { pool, .. } => Some(*pool),
            Route::Here(_) => None,
        };
        let watch = Watch::start(pool.map(|pool| self.pools[pool].as_ref()));
        let summary = match &copy.route {
            Route::Into { pool, from, to } => {
                let fs = &self.pools[*pool];
                let journal = fs.instance().dir.join(format!("in-{number}.journal"));
                fs.stage_in(from, to, &journal, self.signals)?
            }
            Route::OutOf { pool, from, to } => {
                let fs = &self.pools[*pool];
                let (source, destination) = (from.clone(), to.clone());
                let out = OutRecord { source, destination, ordered: self.job.ordered };
                // By this number `drain` knows it.
                let before = &self.job.stage_out[..number];
                let of_pool =
                    |copy: &&Copy| matches!(&copy.route, Route::OutOf { pool: other, .. } if other == pool);
                let number = before.iter().filter(of_pool).count();
                let journal = fs.instance().dir.join(format!("out-{number}.journal"));
                fs.stage_out(&out, &journal, self.signals)?
            }
            Route::Here(here) => self.copy_here(here, way, number)?,
        };
        let spent = watch.stop(pool.map(|pool| self.pools[pool].as_ref()));
        let staged = Staged { summary: summary.clone(), from: copy.from.clone(), to: copy.to.clone() };
        story.note_copy(way.phase(), spent, staged, &copy.label);
        Ok(summary)
    }

    fn copy_here(&mut self, here: &Here, way: Way, number: usize) -> Result<Summary> {
        let fail = |why: String| Failure::new(way.failed(), why);
        let mut all = Summary { complete: true, ..Summary::default() };
        for (from, to) in here.spread.pairs(&here.from, &here.to).map_err(fail)? {
            let to = exact(&from, to);
            if from == to {
                // Kept by an earlier run.
                let there = staging::measure_local(&from).map_err(|failure| failure.of_kind(way.failed()))?;
                all.add(&there);
                continue;
            }
            let summary = match (way, &self.own) {
                (Way::In, Some(own)) => {
                    if here.passing {
                        self.made.note(&from, &to)?;
                    }
                    let journal = own.path.join(format!("in-{number}"));
                    staging::stage_in_at(&from, &to, &staging::USUAL, &journal, self.signals)?
                }
                // Where `tidepool cp` looks for it, which goes on with a copy that has failed.
                _ => {
                    let journals = copy::journals().map_err(|failure| failure.of_kind(way.failed()))?;
                    let names = [&from, &to].map(|path| path.display().to_string());
                    let journal = journals.join(staging::journal_name(&names[0], &names[1]));
                    let shape = staging::results(self.job.ordered);
                    let copied = staging::stage_out_at(None, (&from, &to), &shape, &journal, self.signals)?;
                    copy::remove_journals(&journals);
                    copied
                }
            };
            all.add(&summary);
        }
        Ok(all)
    }

    fn spawn(&self) -> Result<Child> {
        match &self.job.program {
            Program::Words(words) => self.pools[0].spawn(words),
            Program::Script(script) => self.spawn_script(script),
        }
    }

    fn spawn_script(&self, script: &Script) -> Result<Child> {
        let own = self.own.as_ref().ok_or_else(|| Failure::new(Kind::Other, "the run has no directory"))?;
        let copy = own.put_script(Path::new(&script.shown), &script.text)?;
        let here = std::env::current_dir()
            .map_err(|error| Failure::new(Kind::Other, format!("the directory this runs in: {error}")))?;
        let mut words = script.interpreter.clone();
        words.push(copy.into());
        words.extend(script.args.iter().cloned());
        exec::spawn_in(&here, self.environment(script)?, &words)
            .map_err(|failure| Failure::new(failure.kind, format!("{}: {failure}", script.shown)))
    }

    /// Where the script finds its dataspaces and pools: as its job's environment in Slurm tells it.
    fn environment(&self, script: &Script) -> Result<Vec<(OsString, OsString)>> {
        let mut variables = script.variables.clone();
        let several = self.pools.len() > 1;
        for (fs, wish) in self.pools.iter().zip(&self.job.pools) {
            let name = wish.dataspace.as_deref().map(env_name).unwrap_or_default();
            for (variable, value) in fs.environment()? {
                let own = ["DIR", "POOL"].into_iter().find(|end| variable == *format!("TIDEPOOL_{end}"));
                if let Some(end) = own {
                    variables.push((format!("TIDEPOOL_{name}_{end}").into(), value.clone()));
                }
                if own.is_none() || !several {
                    variables.push((variable, value));
                }
            }
        }
        Ok(variables)
    }

    /// Takes everything away, unless results could not be staged out: they are only there.
    fn end(self, worked: Result<()>, story: &mut Story) -> Result<()> {
        let keeps = matches!(&worked, Err(failure) if failure.kind == Kind::StageOut);
        let mut ended = Ok(());
        if !self.pools.is_empty() {
            let watch = Watch::start(None);
            for fs in self.pools {
                let stopped = if keeps { fs.leave() } else { fs.stop() };
                ended = first(ended, stopped);
            }
            story.note("stop", watch.stop(None), "");
        }
        if keeps {
            self.job.passing().iter().for_each(|place| eprintln!("tidepool: {} stays", place.display()));
            return first(worked, ended);
        }
        // Nothing is known to be right with what a program has not used.
        let delete: &[PathBuf] = if story.program_code.is_some() { &self.job.delete } else { &[] };
        if !self.made.is_empty() || !delete.is_empty() {
            let watch = Watch::start(None);
            let cleaned = self.made.remove(&self.job.keep);
            let deleted = delete.iter().map(|place| made::remove_but(place, &[])).fold(Ok(()), first);
            story.note("clean", watch.stop(None), "this node's own storage");
            ended = first(ended, first(cleaned, deleted));
        }
        // Why it failed is the more important, but what is left behind is told as well.
        first(worked, ended)
    }
}

fn over(limit: &Limit<'_>, way: Way) -> Option<Failure> {
    let time: Duration = limit.exceeded()?;
    let text = format!("{} had not ended after {} s, the script's timeout", way.phase(), time.as_secs());
    Some(Failure::new(way.failed(), text))
}

/// The name that a copy gets: a file's own one in a directory that is there.
fn exact(from: &Path, to: PathBuf) -> PathBuf {
    match from.file_name() {
        Some(name) if to.is_dir() && !from.is_dir() => to.join(name),
        _ => to,
    }
}

impl Here {
    fn tell_how_to_go_on(&self) {
        if !self.from.exists() {
            return;
        }
        let tree = if self.from.is_dir() { "-T " } else { "" };
        let (from, to) = (self.from.display(), self.to.display());
        match self.spread {
            Spread::Lines(_) => eprintln!("tidepool: the results stay in {from}"),
            _ => eprintln!(
                "tidepool: the results stay in {from}; 'tidepool cp {tree}{from} {to}' goes on with the copy"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_that_takes_too_long_is_told() {
        let signals = Signals::default();
        let limit = Limit::start(Some(Duration::ZERO), &signals);
        while limit.exceeded().is_none() {
            std::thread::yield_now();
        }
        for (way, kind) in [(Way::In, Kind::StageIn), (Way::Out, Kind::StageOut)] {
            let failure = over(&limit, way).unwrap();
            assert_eq!(failure.kind, kind);
            assert!(failure.to_string().contains("the script's timeout"), "{failure}");
        }
        assert!(over(&Limit::start(None, &signals), Way::In).is_none());
    }

    #[test]
    fn files_keep_their_names_in_directories() {
        let dir = tempfile::TempDir::new().unwrap();
        let (file, there, new) = (dir.path().join("f"), dir.path().join("d"), dir.path().join("new"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(&there).unwrap();
        assert_eq!(exact(&file, there.clone()), there.join("f"));
        assert_eq!(exact(&file, new.clone()), new);
        assert_eq!(exact(&there, there.clone()), there);
    }
}
