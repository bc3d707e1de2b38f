//! Dataspaces, jobs, their processes and what they have used.

use crate::placed::Placed;
use crate::task::{Origin, Quota, space_of};
use std::collections::{BTreeMap, HashMap};
use tidepool_wire::stager::{DataspaceSpec, JobReport, JobSpec, Owner, ProcessSpec, TaskSpec};

/// A dataspace.
pub(crate) struct Dataspace {
    pub spec: DataspaceSpec,
    /// For classes of the arbiter; never 0 and never used again.
    pub number: u32,
    /// Tasks that run, and copies of other stagers that are under way.
    pub running: u32,
    /// Tasks that use it and have not ended, without those that are held.
    pub unended: u64,
    /// Bytes that tasks have put there.
    pub used: u64,
    /// Where; what `used` is lowered by when it goes.
    pub placed: Placed,
}

pub(crate) struct Job {
    pub spec: JobSpec,
    pub unended: u64,
    /// By dataspace.
    pub used: BTreeMap<String, u64>,
    pub report: JobReport,
    /// Failed tasks of which nothing else is remembered.
    pub failures_forgotten: u64,
    /// Where whoever registered it has said so.
    pub owner: Option<Owner>,
}

impl Job {
    pub fn new(spec: JobSpec) -> Job {
        let report = JobReport {
            job: spec.id,
            tasks: 0,
            failed: 0,
            bytes: 0,
            files: 0,
            busy_ms: 0,
            pairs: Vec::new(),
        };
        Job { spec, unended: 0, used: BTreeMap::new(), report, failures_forgotten: 0, owner: None }
    }

    /// What it may put into a dataspace in all: none when it may not use it, 0 for no limit.
    pub fn quota(&self, dataspace: &str) -> Option<u64> {
        self.spec.limits.iter().find(|limit| limit.dataspace == dataspace).map(|limit| limit.quota)
    }
}

/// A process of a job.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub job: u32,
    pub process: ProcessSpec,
    /// When it started; 0 when nobody could tell.
    pub started: u64,
}

#[derive(Default)]
pub(crate) struct Spaces {
    pub dataspaces: BTreeMap<String, Dataspace>,
    pub jobs: BTreeMap<u32, Job>,
    pub members: HashMap<i32, Vec<Member>>,
    last_number: u32,
}

impl Spaces {
    pub fn set_dataspace(&mut self, spec: DataspaceSpec) {
        match self.dataspaces.get_mut(&spec.name) {
            Some(there) => there.spec = spec,
            None => {
                self.last_number += 1;
                let number = self.last_number;
                let (name, placed) = (spec.name.clone(), Placed::default());
                self.dataspaces
                    .insert(name, Dataspace { spec, number, running: 0, unended: 0, used: 0, placed });
            }
        }
    }

    pub fn set_job(&mut self, spec: JobSpec) {
        match self.jobs.get_mut(&spec.id) {
            Some(there) => there.spec = spec,
            None => drop(self.jobs.insert(spec.id, Job::new(spec))),
        }
    }

    /// A record of a job that is gone says nothing any more.
    pub fn set_owner(&mut self, job: u32, owner: Owner) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.owner = Some(owner);
        }
    }

    /// The groups in which this user is known to have a hand in the job: as its owner, and as whoever has a process in it where it
    /// was registered without one. None when he has none.
    pub fn groups_in(&self, job: &Job, uid: u32) -> Option<Vec<u32>> {
        if let Some(owner) = job.owner {
            return (owner.uid == uid).then(|| vec![owner.gid]);
        }
        let members = self.members.values().flatten();
        let own = members.filter(|member| member.job == job.spec.id && member.process.uid == uid);
        let groups: Vec<u32> = own.map(|member| member.process.gid).collect();
        (!groups.is_empty()).then_some(groups)
    }

    pub fn remove_job(&mut self, id: u32) {
        self.jobs.remove(&id);
        self.dataspaces.values_mut().for_each(|space| space.placed.forget_job(id));
        self.members.retain(|_, members| {
            members.retain(|m| m.job != id);
            !members.is_empty()
        });
    }

    pub fn add_member(&mut self, member: Member) {
        let members = self.members.entry(member.process.pid).or_default();
        // A number that was used again means another process.
        members.retain(|m| m.started == member.started && m.job != member.job);
        members.push(member);
    }

    /// True when it was one.
    pub fn remove_member(&mut self, job: u32, pid: i32) -> bool {
        let Some(members) = self.members.get_mut(&pid) else { return false };
        let before = members.len();
        members.retain(|m| m.job != job);
        let removed = members.len() < before;
        if members.is_empty() {
            self.members.remove(&pid);
        }
        removed
    }

    pub fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// The job of a process of `uid`, or of the nearest of its ancestors that has one.
    pub fn job_of(&self, uid: u32, ancestry: &[Origin]) -> Option<u32> {
        let of = |origin: &Origin| {
            let members = self.members.get(&origin.pid)?;
            let same = |m: &&Member| m.process.uid == uid && (m.started == origin.started || m.started == 0);
            members.iter().rfind(same).map(|m| m.job)
        };
        ancestry.iter().find_map(of)
    }

    /// The number of a dataspace, 0 for none.
    pub fn number(&self, name: Option<&str>) -> u32 {
        name.and_then(|name| self.dataspaces.get(name)).map_or(0, |space| space.number)
    }

    /// A task that uses dataspaces has begun to wait for its turn, or has ended.
    pub fn count_unended(&mut self, spec: &TaskSpec, by: i64) {
        for name in [space_of(Some(&spec.src)), space_of(spec.dst.as_ref())].into_iter().flatten() {
            if let Some(space) = self.dataspaces.get_mut(name) {
                space.unended = space.unended.saturating_add_signed(by);
            }
        }
    }

    /// Limits on what tasks of `job` put into a dataspace.
    pub fn quotas(&self, job: u32, dataspace: &str) -> Vec<Quota> {
        let whole = self.dataspaces.get(dataspace).map(|space| (0, space.spec.capacity, space.used));
        let own = self.jobs.get(&job).and_then(|j| {
            let used = j.used.get(dataspace).copied().unwrap_or(0);
            Some((job, j.quota(dataspace)?, used))
        });
        let quota = |(job, limit, used)| Quota { dataspace: dataspace.to_string(), job, limit, used };
        whole.into_iter().chain(own).filter(|(_, limit, _)| *limit > 0).map(quota).collect()
    }

    /// What is used of a dataspace: by all (as job 0), and by `job`.
    pub fn used(&self, job: u32, dataspace: &str) -> Vec<(u32, u64)> {
        let all = self.dataspaces.get(dataspace).map(|space| (0, space.used));
        let own = self.jobs.get(&job).and_then(|j| Some((job, *j.used.get(dataspace)?)));
        all.into_iter().chain(own).collect()
    }

    /// Counts bytes that a task has put at a place of a dataspace.
    pub fn put(&mut self, job: u32, (dataspace, place): (&str, &[u8]), bytes: u64) {
        self.placed(job, (dataspace, place), bytes);
        if let Some(space) = self.dataspaces.get_mut(dataspace) {
            space.used = space.used.saturating_add(bytes);
        }
        if let Some(job) = self.jobs.get_mut(&job) {
            let used = job.used.entry(dataspace.to_string()).or_default();
            *used = used.saturating_add(bytes);
        }
    }

    /// Notes where bytes lie that are counted elsewhere.
    pub fn placed(&mut self, job: u32, (dataspace, place): (&str, &[u8]), bytes: u64) {
        // What a job that is not there has put anywhere is nobody's.
        let job = if self.jobs.contains_key(&job) { job } else { 0 };
        if let Some(space) = self.dataspaces.get_mut(dataspace).filter(|_| bytes > 0) {
            space.placed.add(place, job, bytes);
        }
    }

    /// A place of a dataspace is gone with all below it: what tasks had put there is used no more, whoever has removed it.
    pub fn gone(&mut self, dataspace: &str, place: &[u8]) {
        let Some(space) = self.dataspaces.get_mut(dataspace) else { return };
        for (job, bytes) in space.placed.take(place) {
            space.used = space.used.saturating_sub(bytes);
            if let Some(used) = self.jobs.get_mut(&job).and_then(|job| job.used.get_mut(dataspace)) {
                *used = used.saturating_sub(bytes);
            }
        }
    }
}
