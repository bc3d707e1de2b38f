//! What one user may have of a stager. Administrators, and whoever runs the stager for himself, may have all of it.

use crate::rights::{Caller, Rank, refuse};
use crate::state::State;
use crate::task::Identity;
use std::collections::BTreeMap;
use tidepool_wire::stager::{Code, Refusal, Resource, TaskSpec};

/// Bytes of memory that a task takes besides its texts; what a permit takes.
pub(crate) const TASK_BYTES: u64 = 512;

/// A user has at most this part of the tasks that a stager takes.
const USER_SHARE: usize = 2;

/// Limits for each user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tasks that have not ended.
    pub tasks_max: u64,
    /// Bytes of memory that these take.
    pub bytes_max: u64,
    /// Priorities that users may ask for.
    pub priorities: (i32, i32),
    /// Bytes per second: what a task may be slowed down to by whoever submits it.
    pub bandwidth_min: u64,
    /// Users who may have one task running although all workers are taken.
    pub extra_max: u32,
    /// Seconds that a task runs before it gives way to users who have none running and find no place; at least 1.
    pub turn: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            tasks_max: 100_000,
            bytes_max: 128 << 20,
            priorities: (-1000, 0),
            bandwidth_min: 64 << 10,
            extra_max: 64,
            turn: 30,
        }
    }
}

/// What users have at the moment.
#[derive(Default)]
pub(crate) struct Usage {
    unended: BTreeMap<u32, Own>,
    running: BTreeMap<u32, u32>,
    /// Running tasks beyond the workers.
    pub extra: u32,
    /// Seconds that tasks of each user have run lately, added up.
    pub served: BTreeMap<u32, u64>,
    /// Times that tasks have given way since the stager was started.
    pub gave_way: u64,
}

#[derive(Clone, Copy, Default)]
struct Own {
    tasks: u64,
    bytes: u64,
}

fn bytes_of(spec: &TaskSpec) -> u64 {
    let of = |resource: &Resource| match resource {
        Resource::Memory { .. } => 0,
        Resource::Path { dataspace, host, path, .. } => {
            dataspace.len() + host.as_ref().map_or(0, String::len) + path.len()
        }
    };
    TASK_BYTES + (of(&spec.src) + spec.dst.as_ref().map_or(0, of)) as u64
}

impl Usage {
    pub fn unended(&mut self, who: Identity, spec: &TaskSpec, more: bool) {
        let own = self.unended.entry(who.uid).or_default();
        let bytes = bytes_of(spec);
        if more {
            own.tasks += 1;
            own.bytes += bytes;
        } else {
            own.tasks = own.tasks.saturating_sub(1);
            own.bytes = own.bytes.saturating_sub(bytes);
        }
        if own.tasks == 0 {
            self.unended.remove(&who.uid);
        }
    }

    pub fn running(&mut self, uid: u32, by: i32) {
        let own = self.running.entry(uid).or_default();
        *own = own.saturating_add_signed(by);
        if *own == 0 {
            self.running.remove(&uid);
        }
    }

    pub fn running_of(&self, uid: u32) -> u32 {
        self.running.get(&uid).copied().unwrap_or(0)
    }

    /// Whole turns of so many seconds that a user has had lately; none while he has a task running.
    pub fn rank(&self, uid: u32, turn: u64) -> Option<u64> {
        let served = self.served.get(&uid).copied().unwrap_or(0);
        (!self.has_running(uid)).then_some(served / turn)
    }

    pub fn has_running(&self, uid: u32) -> bool {
        self.running_of(uid) > 0
    }
}

impl State {
    fn is_free(&self, caller: &Caller) -> bool {
        match caller.rank {
            Rank::Administrator => true,
            // Though its connections come as root's: it has for users what they may have themselves.
            Rank::Controller => false,
            Rank::User => caller.uid == 0 || self.config.personal_uid == Some(caller.uid),
        }
    }

    /// Whether user `uid`, for whom the caller asks, may have one more task, as it is.
    pub(crate) fn check_budget(&self, caller: &Caller, uid: u32, spec: &TaskSpec) -> Result<(), Refusal> {
        self.check_share(caller, uid, bytes_of(spec))?;
        if self.is_free(caller) { Ok(()) } else { self.check_wishes(uid, spec) }
    }

    /// Whether that user may have one more task of so many bytes.
    pub(crate) fn check_share(&self, caller: &Caller, uid: u32, bytes: u64) -> Result<(), Refusal> {
        if self.is_free(caller) {
            return Ok(());
        }
        let budget = &self.config.budget;
        let own = self.usage.unended.get(&uid).copied().unwrap_or_default();
        // However few the stager takes, there is room for others, and for administrators.
        let most = budget.tasks_max.min((self.config.tasks_max / USER_SHARE).max(1) as u64);
        if own.tasks >= most {
            let text = format!(
                "{} tasks of user {uid} have not ended, the most a user may have; wait for some of them, or ask for a higher user-tasks-max in the stager's configuration",
                own.tasks
            );
            return refuse(Code::TOO_MANY_TASKS, text);
        }
        if own.bytes.saturating_add(bytes) > budget.bytes_max {
            let text = format!(
                "the tasks of user {uid} that have not ended take {} bytes of the stager's memory, and {} is the most they may; wait for some of them, or ask for a higher user-queue-max in the stager's configuration",
                own.bytes, budget.bytes_max
            );
            return refuse(Code::TOO_MANY_TASKS, text);
        }
        Ok(())
    }

    fn check_wishes(&self, uid: u32, spec: &TaskSpec) -> Result<(), Refusal> {
        let Budget { priorities: (least, most), bandwidth_min, .. } = self.config.budget;
        if !(least..=most).contains(&spec.priority) {
            let text = format!(
                "priority {} is not for user {uid}: users may ask for {least} to {most}; user-priority-min and user-priority-max in the stager's configuration say so",
                spec.priority
            );
            return refuse(Code::NOT_PERMITTED, text);
        }
        if spec.bandwidth > 0 && spec.bandwidth < bandwidth_min {
            let text = format!(
                "{} bytes per second would hold a worker for too long: {bandwidth_min} is the least; bandwidth-min in the stager's configuration says so",
                spec.bandwidth
            );
            return refuse(Code::BAD_ARGS, text);
        }
        Ok(())
    }

    /// What a caller has, and what he may have, for status.
    pub fn usage(&self, caller: &Caller) -> Vec<(String, u64)> {
        let own = self.usage.unended.get(&caller.uid).copied().unwrap_or_default();
        let mut counters = vec![
            ("own-tasks".into(), own.tasks),
            ("own-queue-bytes".into(), own.bytes),
            ("extra-running".into(), self.usage.extra.into()),
            ("gave-way".into(), self.usage.gave_way),
        ];
        if !self.is_free(caller) {
            counters.push(("own-tasks-max".into(), self.config.budget.tasks_max));
            counters.push(("own-queue-bytes-max".into(), self.config.budget.bytes_max));
        }
        counters
    }
}
