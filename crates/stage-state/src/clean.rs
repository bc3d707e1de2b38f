//! Cleaning up after a job: what its copies have put where there was nothing before is removed (paper,
//! Section III: when a timeout is reached or data is missing, "clean up all data already staged to nodes").
//!
//! A copy of a job notes what it is about to make before it makes it, so what was there before is never taken for
//! staged data: not after a kill either.

use crate::Millis;
use crate::persist::plain;
use crate::record::Record;
use crate::rights::{Caller, refuse};
use crate::state::State;
use crate::task::{Made, Origin, Start, Task, show_resource};
use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use tidepool_wire::stager::{
    CLEANED_AT_ONCE_MAX, Cleaning, Code, Fate, Op, Refusal, Resource, TaskSpec, TaskState,
};

/// Whether `path` is `dir` or lies under it. Both are plain.
fn is_under(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| dir.is_empty() || rest.is_empty() || rest[0] == b'/')
}

/// A dataspace, and the stager it is at.
type Where = (String, Option<String>);

fn end_of(task: &Task) -> Option<Where> {
    match &task.spec.dst {
        Some(Resource::Path { dataspace, host, .. }) => Some((dataspace.clone(), host.clone())),
        _ => None,
    }
}

/// What is known of the tasks of one job.
#[derive(Default)]
struct Known {
    made: HashSet<(Where, Box<[u8]>)>,
    /// By the copies that they clean up after.
    removals: HashMap<u32, u32>,
}

impl Known {
    /// Whether a copy has made this path, or a directory that it lies in.
    fn has_made(&self, task: &Task, place: &[u8]) -> bool {
        let Some(end) = end_of(task) else { return false };
        let slashes = place.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        let mut ends = slashes.chain([place.len()]);
        ends.any(|at| self.made.contains(&(end.clone(), place[..at].into())))
    }
}

/// The copy that a removal has cleaned up after.
fn cleaned_by(task: &Task) -> Option<u32> {
    let of = task.made.as_deref().map(|made| made.of).filter(|of| *of != 0);
    of.filter(|_| task.state() == TaskState::Finished)
}

impl State {
    /// A running copy of a job is going to make this, unless that is known already: then an earlier run of the task
    /// has looked, and may have made some of it.
    pub fn makes(&mut self, id: u32, place: &[u8], top: &[u8]) {
        let Some(task) = self.tasks.get_mut(&id).filter(|task| task.made.is_none()) else { return };
        let made = Made { place: plain(place), top: plain(top), of: 0, spared: Vec::new() };
        task.made = Some(Box::new(made.clone()));
        self.note_made(id, made);
    }

    fn note_made(&mut self, id: u32, made: Made) {
        self.note(&Record::Makes { id, place: made.place, top: made.top, of: made.of });
    }

    /// Starts the removal of what copies of a job have made, those after task `after`; what becomes of each, and
    /// whether there are more. With `dry_run` nothing is started.
    pub fn clean_job(
        &mut self,
        now: Millis,
        caller: &Caller,
        (job, after): (u32, u32),
        dry_run: bool,
    ) -> Result<(Vec<Cleaning>, bool), Refusal> {
        self.demand_batch(caller)?;
        self.demand_job(job)?;
        let busy = self.copies_of(job, 0).filter(|(_, task)| task.ended.is_none()).count();
        if busy > 0 && !dry_run {
            let text =
                format!("{busy} tasks of job {job} have not ended; cancel them and wait for their ends");
            return refuse(Code::JOB_BUSY, text);
        }
        let seen = self.copies_of(job, after).filter(|(_, task)| caller.sees(task.identity));
        let mut ids: Vec<u32> = seen.map(|(id, _)| id).take(CLEANED_AT_ONCE_MAX + 1).collect();
        let more = ids.len() > CLEANED_AT_ONCE_MAX;
        ids.truncate(CLEANED_AT_ONCE_MAX);
        let known = self.known_of(job);
        let mut places = Vec::with_capacity(ids.len());
        for id in ids {
            let fate = self.fate(id, &known);
            let removal = match (fate, known.removals.get(&id)) {
                (Fate::Removed, Some(removal)) => *removal,
                (Fate::Removed, None) if !dry_run => self.remove_made(now, id)?,
                _ => 0,
            };
            if removal != 0 && !dry_run {
                self.again_if_it_failed(caller, removal)?;
            }
            places.push(Cleaning { task: id, place: self.made_at(id), fate, removal });
        }
        Ok((places, more))
    }

    /// What the copies of a job have made, and what removes it already.
    fn known_of(&self, job: u32) -> Known {
        let mut known = Known::default();
        for (id, task) in self.tasks.iter().filter(|(_, task)| task.identity.job == job) {
            let Some(made) = task.made.as_deref() else { continue };
            if made.of != 0 {
                known.removals.insert(made.of, *id);
            } else if task.spec.op == Op::Copy
                && !made.top.is_empty()
                && let Some(end) = end_of(task)
            {
                known.made.insert((end, made.place.clone()));
            }
        }
        known
    }

    /// Starts the removal of what copies of a job have made in tracked dataspaces of this node, those after task `after`, with
    /// the directories that they made; what becomes of each, and whether there are more. What was put elsewhere are results.
    pub fn clean_own(
        &mut self,
        now: Millis,
        caller: &Caller,
        (job, after): (u32, u32),
    ) -> Result<(Vec<Cleaning>, bool), Refusal> {
        self.demand_batch(caller)?;
        self.check_job_release(caller, job)?;
        self.check_remembered(job)?;
        let mut ids: Vec<u32> = self
            .copies_of(job, after)
            .filter(|(_, task)| self.is_of_this_node(task) && caller.sees(task.identity))
            .map(|(id, _)| id)
            .take(CLEANED_AT_ONCE_MAX + 1)
            .collect();
        let more = ids.len() > CLEANED_AT_ONCE_MAX;
        ids.truncate(CLEANED_AT_ONCE_MAX);
        let known = self.known_of(job);
        let mut places = Vec::with_capacity(ids.len());
        for id in ids {
            let fate = self.fate_of_own(id, &known);
            let removal = match (fate, known.removals.get(&id)) {
                (Fate::Removed, Some(removal)) => {
                    self.again_if_it_failed(caller, *removal)?;
                    *removal
                }
                (Fate::Removed, None) => self.remove_top(now, id)?,
                _ => 0,
            };
            places.push(Cleaning { task: id, place: self.made_at(id), fate, removal });
        }
        Ok((places, more))
    }

    /// Nobody knows what a task was about that has failed and been forgotten: its data may be the only ones.
    fn check_remembered(&self, job: u32) -> Result<(), Refusal> {
        match self.forgotten_failures(job) {
            0 => Ok(()),
            count => {
                let text = format!("{count} failed tasks of job {job} are not remembered any more");
                refuse(Code::TASK_STATE, text)
            }
        }
    }

    /// Whether a task puts something into a tracked dataspace of this node.
    fn is_of_this_node(&self, task: &Task) -> bool {
        let Some(Resource::Path { dataspace, host: None, .. }) = &task.spec.dst else { return false };
        self.spaces.dataspaces.get(dataspace).is_some_and(|space| space.spec.tracked)
    }

    fn fate_of_own(&self, id: u32, known: &Known) -> Fate {
        let task = &self.tasks[&id];
        let (fate, Some(made)) = (self.fate(id, known), task.made.as_deref()) else {
            return self.fate(id, known);
        };
        let (Some((space, _)), true) = (end_of(task), matches!(fate, Fate::Removed | Fate::Kept)) else {
            return fate;
        };
        // What lies in it and is kept is spared.
        if self.is_persisted(&space, &made.top) { Fate::Kept } else { Fate::Removed }
    }

    /// Paths below what a removal takes away that others still count on: kept ones, and what tasks of other jobs are about.
    pub(crate) fn spared_by(&self, start: &Start, made: &Made) -> Vec<Box<[u8]>> {
        let Resource::Path { dataspace, host: None, .. } = &start.spec.src else { return Vec::new() };
        if made.of == 0 {
            return Vec::new();
        }
        let kept = self.persisted.iter().filter(|l| l.dataspace == *dataspace).map(|l| l.path.clone());
        let cleaned: HashSet<u32> = self.tasks.values().filter_map(|task| cleaned_by(task)).collect();
        let others = self
            .tasks
            .iter()
            .filter(|(id, task)| task.identity.job != start.identity.job && !cleaned.contains(id));
        let used = others.flat_map(|(_, task)| self.in_use(task, dataspace));
        let mut spared: Vec<Box<[u8]>> = kept
            .chain(used)
            .filter_map(|path| match is_under(&made.place, &path) {
                true => Some(made.place.clone()),
                false => is_under(&path, &made.place).then_some(path),
            })
            .collect();
        spared.sort_unstable();
        spared.dedup();
        spared
    }

    /// What a task of a job that is going on has put into a dataspace of this node, or is to put there or to take from there.
    fn in_use(&self, task: &Task, space: &str) -> Vec<Box<[u8]>> {
        let job = task.identity.job;
        let ended = task.ended.as_deref().map(|(_, ended)| ended.state);
        let is_over = job == 0 || !self.spaces.jobs.contains_key(&job);
        if task.spec.op == Op::Remove || (ended.is_some() && is_over) {
            return Vec::new();
        }
        let path = |resource: &Resource| match resource {
            Resource::Path { dataspace, host: None, path, .. } if dataspace == space => Some(plain(path)),
            _ => None,
        };
        let from = Some(&task.spec.src).filter(|_| ended != Some(TaskState::Finished)).and_then(path);
        let to = task.spec.dst.as_ref().and_then(path);
        let made = to.as_ref().and(task.made.as_deref()).map(|made| made.place.clone());
        from.into_iter().chain(to).chain(made).collect()
    }

    fn remove_top(&mut self, now: Millis, id: u32) -> Result<u32, Refusal> {
        let Some(made) = self.tasks[&id].made.as_deref() else { return Ok(0) };
        let all = Made { place: made.top.clone(), ..made.clone() };
        self.remove_this(now, id, all)
    }

    fn again_if_it_failed(&mut self, caller: &Caller, removal: u32) -> Result<(), Refusal> {
        match self.tasks.get(&removal).map(|task| task.state()) {
            Some(TaskState::Failed | TaskState::Cancelled) => self.resume(caller, removal),
            _ => Ok(()),
        }
    }

    /// Tasks of a job that put something somewhere, and have not been cleaned up after. Held ones have made nothing, and
    /// wait for something else.
    fn copies_of(&self, job: u32, after: u32) -> impl Iterator<Item = (u32, &Task)> {
        let of_job = move |task: &Task| {
            task.identity.job == job && matches!(task.spec.op, Op::Copy | Op::Move) && !task.held
        };
        let later = self.tasks.range((Bound::Excluded(after), Bound::Unbounded));
        later.filter(move |(_, task)| of_job(task)).map(|(id, task)| (*id, &**task))
    }

    fn fate(&self, id: u32, known: &Known) -> Fate {
        let task = &self.tasks[&id];
        let Some(made) = &task.made else {
            // What had moved something without a note is from a stager that made none.
            let moved = task.ended.as_ref().is_some_and(|ended| ended.1.moved > 0);
            return if moved { Fate::WasThere } else { Fate::Nothing };
        };
        match task.spec.op {
            // What was there already is no loss when another copy of the job had made it: that is cleaned up after, too.
            _ if made.top.is_empty() && known.has_made(task, &made.place) => Fate::Nothing,
            _ if made.top.is_empty() => Fate::WasThere,
            Op::Move => Fate::OnlyCopy,
            _ if self.holds_kept(task, &made.place) => Fate::Kept,
            _ => Fate::Removed,
        }
    }

    fn holds_kept(&self, task: &Task, place: &[u8]) -> bool {
        let Some(Resource::Path { dataspace, host: None, .. }) = &task.spec.dst else { return false };
        let below = |path: &[u8]| is_under(path, place);
        self.is_persisted(dataspace, place)
            || self.persisted.iter().any(|l| l.dataspace == *dataspace && below(&l.path))
    }

    /// What a copy has made, as a resource.
    fn made_resource(&self, id: u32) -> Option<Resource> {
        let made = self.tasks.get(&id)?.made.as_ref()?;
        self.resource_at(id, made)
    }

    fn resource_at(&self, id: u32, made: &Made) -> Option<Resource> {
        let task = self.tasks.get(&id)?;
        match task.spec.dst.clone()? {
            Resource::Path { access, dataspace, host, .. } => {
                Some(Resource::Path { access, dataspace, host, path: made.place.clone() })
            }
            Resource::Memory { .. } => None,
        }
    }

    fn made_at(&self, id: u32) -> String {
        let made = self.made_resource(id).or_else(|| self.tasks[&id].spec.dst.clone());
        made.as_ref().map(show_resource).unwrap_or_default()
    }

    fn remove_made(&mut self, now: Millis, id: u32) -> Result<u32, Refusal> {
        let made = self.tasks[&id].made.as_deref().cloned();
        made.map_or(Ok(0), |made| self.remove_this(now, id, made))
    }

    fn remove_this(&mut self, now: Millis, id: u32, made: Made) -> Result<u32, Refusal> {
        let identity = self.tasks[&id].identity;
        let Some(resource) = self.resource_at(id, &made) else { return Ok(0) };
        // Space is wanted back before others fill it.
        let spec = TaskSpec { priority: i32::MAX, ..TaskSpec::new(Op::Remove, resource, None) };
        let removal = self.submit_as(now, identity, Origin { pid: 0, started: 0 }, spec)?;
        let made = Made { of: id, ..made };
        if let Some(task) = self.tasks.get_mut(&removal) {
            task.made = Some(Box::new(made.clone()));
        }
        self.note_made(removal, made);
        Ok(removal)
    }
}
