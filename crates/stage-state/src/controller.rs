//! What the controller of a batch system may ask: its part for the jobs of users, and nothing else. Whoever has taken its key gets
//! no more than that (`docs/decisions/0046-controller.md`).
//!
//! [`State::demand_of_controller`] is the table, by request. What it lets through is served as an administrator's, where
//! [`State::demand_batch`] says so; everything else still demands an administrator.

use crate::rights::{Caller, Rank, Side, refuse};
use crate::spaces::Job;
use crate::state::State;
use crate::task::Identity;
use tidepool_wire::stager::{
    Code, DataspaceKind, DataspaceSpec, OnBehalf, Owner, PersistOp, Refusal, Request,
};

/// What the kernel and name services take for "nobody" or "as it is".
const NO_ID: u32 = u32::MAX;

impl State {
    /// Refuses a caller that is a controller what is not for controllers, before anything of it is looked at.
    pub fn check_rank(&self, caller: &Caller, request: &Request) -> Result<(), Refusal> {
        match caller.rank {
            Rank::Controller => self.demand_of_controller(request),
            Rank::User | Rank::Administrator => Ok(()),
        }
    }

    /// The table. There is no "all others": who adds a request says here whether a controller's hooks need it.
    pub fn demand_of_controller(&self, request: &Request) -> Result<(), Refusal> {
        match request {
            Request::Hello { .. } | Request::Ping {} | Request::Dataspaces {} => Ok(()),
            // Tasks, in the name of a user who is named.
            Request::Submit { task } | Request::Plan { task } => self.demand_user_of(task.on_behalf),
            Request::SubmitMany { tasks } | Request::SubmitHeld { tasks } => {
                tasks.iter().try_for_each(|task| self.demand_user_of(task.on_behalf))
            }
            Request::Entries { on_behalf, .. } => self.demand_user_of(*on_behalf),
            // Of the tasks that it sees, which are users' (`Caller::sees`).
            Request::Status { .. }
            | Request::Wait { .. }
            | Request::Cancel { .. }
            | Request::Resume { .. }
            | Request::List { .. } => Ok(()),
            // Of users' kept locations: whose time is over.
            Request::Persisted {} => Ok(()),
            Request::RegisterJobOf { owner, .. } => demand_owner(*owner),
            Request::UnregisterJob { job }
            | Request::ReleaseJob { job }
            | Request::CleanJob { job, .. }
            | Request::CleanOwn { job, .. }
            | Request::JobReport { job } => self.demand_users_job(*job),
            // What is not stored anew is its owner's, whom `State::owned` looks at.
            Request::Persist { op: PersistOp::Delete, .. } => Ok(()),
            Request::Persist { user, .. } | Request::Unkeep { user, .. } => demand_user(*user, *user),
            Request::RegisterDataspace { dataspace } => self.demand_pool_of_job(dataspace),
            Request::UnregisterDataspace { name } => self.demand_is_pool_of_job(name),
            // Administration, and what no hook asks.
            Request::UpdateDataspace { .. }
            | Request::RegisterJob { .. }
            | Request::UpdateJob { .. }
            | Request::AddProcess { .. }
            | Request::RemoveProcess { .. }
            | Request::Command { .. }
            | Request::Jobs {}
            | Request::Leftovers { .. }
            | Request::SetPolicy { .. }
            | Request::SubmitAndWait { .. }
            | Request::Forget { .. }
            | Request::DaemonStatus {} => {
                let name = request.name();
                let text = format!(
                    "{name} is for administrators: this key is a controller's ('controllers' in the stager's configuration)"
                );
                refuse(Code::NOT_PERMITTED, text)
            }
        }
    }

    /// For a job, its owner as he was registered; without one, any user.
    fn demand_user_of(&self, behalf: Option<OnBehalf>) -> Result<(), Refusal> {
        let Some(OnBehalf { uid, gid, job }) = behalf else {
            return refuse(
                Code::NOT_PERMITTED,
                "a controller asks in the name of a user; this request names none",
            );
        };
        demand_user(uid, gid)?;
        // Of one that is not registered the act itself says so.
        match self.spaces.jobs.get(&job) {
            Some(known) if known.owner != Some(Owner { uid, gid }) => {
                let text = format!("user {uid} with group {gid} is not the owner of job {job}");
                refuse(Code::NOT_PERMITTED, text)
            }
            _ => Ok(()),
        }
    }

    /// Tasks of root's in a user's job are not seen, so neither released nor cleaned up after.
    fn demand_users_job(&self, id: u32) -> Result<(), Refusal> {
        self.spaces.jobs.get(&id).map_or(Ok(()), |job| self.owner_of(id, job).map(drop))
    }

    fn owner_of(&self, id: u32, job: &Job) -> Result<Owner, Refusal> {
        let Some(owner) = job.owner else {
            let text = format!(
                "job {id} was registered without an owner, by an administrator, and is for administrators"
            );
            return refuse(Code::NOT_PERMITTED, text);
        };
        demand_owner(owner).map(|()| owner)
    }

    /// A new dataspace is the pool of a job that is registered and has a limit for it. Other storage is the site's to name.
    fn demand_pool_of_job(&self, dataspace: &DataspaceSpec) -> Result<(), Refusal> {
        let job = job_of_pool(&dataspace.name)
            .filter(|_| dataspace.kind == DataspaceKind::Pool && !dataspace.tracked);
        let known = job.and_then(|id| Some((id, self.spaces.jobs.get(&id)?)));
        match known.filter(|(_, job)| job.quota(&dataspace.name).is_some()) {
            Some((id, job)) => self.owner_of(id, job).map(drop),
            None => refuse(Code::NOT_PERMITTED, not_a_pool(&dataspace.name)),
        }
    }

    /// The job may be forgotten already.
    fn demand_is_pool_of_job(&self, name: &str) -> Result<(), Refusal> {
        match self.spaces.dataspaces.get(name) {
            Some(there) if there.spec.kind != DataspaceKind::Pool || job_of_pool(name).is_none() => {
                refuse(Code::NOT_PERMITTED, not_a_pool(name))
            }
            _ => Ok(()),
        }
    }

    /// The groups in which a controller reads for the owner of a job.
    pub(crate) fn groups_for_controller(&self, who: Identity, side: Side) -> Result<Vec<u32>, Refusal> {
        if side == Side::Target {
            return refuse(Code::NOT_PERMITTED, "a controller opens nothing for writing: tasks write");
        }
        let Identity { uid, gid, job } = who;
        self.demand_job(job)?;
        self.demand_user_of(Some(OnBehalf { uid, gid, job }))?;
        Ok(vec![gid])
    }
}

fn not_a_pool(name: &str) -> String {
    format!(
        "a controller registers pools of jobs only, as NAME-JOB:// for a registered job with a limit for it; not '{name}'"
    )
}

fn demand_owner(owner: Owner) -> Result<(), Refusal> {
    demand_user(owner.uid, owner.gid)
}

fn demand_user(uid: u32, gid: u32) -> Result<(), Refusal> {
    if uid == 0 || gid == 0 {
        let text = format!(
            "a controller does not act as root: user {uid}, group {gid}; an administrator's key, in 'admins', does"
        );
        return refuse(Code::NOT_PERMITTED, text);
    }
    match [uid, gid].contains(&NO_ID) {
        true => refuse(Code::BAD_ARGS, format!("{NO_ID} is no number of a user or group")),
        false => Ok(()),
    }
}

/// The job in the name of its pool's dataspace, `NAME-JOB://`.
fn job_of_pool(name: &str) -> Option<u32> {
    let (pool, job) = name.strip_suffix("://")?.rsplit_once('-')?;
    let number: u32 = job.parse().ok()?;
    (!pool.is_empty() && number != 0 && number.to_string() == job).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_jobs_are_known_by_their_names() {
        assert_eq!(job_of_pool("pool-7://"), Some(7));
        assert_eq!(job_of_pool("my-pool-42://"), Some(42));
        for other in [
            "nvme0://",
            "-7://",
            "pool-07://",
            "pool-0://",
            "pool-x://",
            "pool-7",
            "pool-+7://",
            "pool--1x://",
        ] {
            assert_eq!(job_of_pool(other), None, "{other}");
        }
    }

    #[test]
    fn root_is_nobody_that_a_controller_acts_for() {
        for (uid, gid) in [(0, 0), (0, 7), (7, 0), (NO_ID, 7), (7, NO_ID)] {
            assert!(demand_user(uid, gid).is_err(), "{uid}:{gid}");
        }
        assert!(demand_user(7, 7).is_ok());
    }
}
