//! Locations that outlive their jobs: `persist store|delete|share|unshare` (paper, Listing 1),
//! with owners and times of expiry.

use crate::Millis;
use crate::budget::TASK_BYTES;
use crate::record::Record;
use crate::rights::{Caller, Rank, Side, refuse};
use crate::state::State;
use crate::task::{Identity, Origin};
use std::collections::BTreeMap;
use tidepool_types::{Aging, Errno, show_bytes};
use tidepool_wire::stager::{Code, DataspaceKind, Op, PersistOp, Persisted, Refusal, Resource, TaskSpec};

/// Users a location may be shared with.
const SHARED_MAX: usize = 1024;

/// Locations that a user may keep.
const LOCATIONS_MAX: usize = 10_000;

/// How often it is written down how far the clock has come that locations age by.
const CLOCK_NOTED_EVERY: Millis = 60_000;
/// So far ahead a wall clock has to be to be worth a word.
const DOUBT_MIN: Millis = 600_000;

/// A wall clock that is ahead, and what would be removed if it were believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// Milliseconds.
    pub ahead: Millis,
    pub locations: usize,
    /// Milliseconds that pass before the first of them is removed.
    pub first: Millis,
}

fn is_over(clock: &Aging, location: &Persisted) -> bool {
    location.expires != 0 && clock.is_over(location.expires.saturating_mul(1000))
}

/// A path without empty and `.` components. `..` stays, and nothing is under a location that has it.
pub(crate) fn plain(path: &[u8]) -> Box<[u8]> {
    let names: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    names.join(&b'/').into()
}

fn climbs(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(|name| name == b"..")
}

#[derive(Default)]
pub(crate) struct Locations {
    by_path: BTreeMap<(String, Box<[u8]>), Persisted>,
}

impl Locations {
    pub fn put(&mut self, location: Persisted) {
        self.by_path.insert((location.dataspace.clone(), location.path.clone()), location);
    }

    pub fn remove(&mut self, dataspace: &str, path: &[u8]) -> Option<Persisted> {
        self.by_path.remove(&(dataspace.to_string(), path.into()))
    }

    pub fn get(&self, dataspace: &str, path: &[u8]) -> Option<&Persisted> {
        self.by_path.get(&(dataspace.to_string(), path.into()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Persisted> {
        self.by_path.values()
    }

    /// The location that a path is or lies under.
    pub fn over(&self, dataspace: &str, path: &[u8]) -> Option<&Persisted> {
        if climbs(path) {
            return None;
        }
        let path = plain(path);
        let mut end = path.len();
        loop {
            if let Some(found) = self.get(dataspace, &path[..end]) {
                return Some(found);
            }
            end = path[..end].iter().rposition(|b| *b == b'/')?;
        }
    }

    pub fn readable(&self, dataspace: &str, path: &[u8], uid: u32) -> bool {
        self.over(dataspace, path).is_some_and(|l| l.owner == uid || l.shared.contains(&uid))
    }
}

/// The user whose files these are, with his own groups.
fn of_owner(owner: u32) -> Identity {
    Identity { uid: owner, gid: Identity::OWN_GROUP, job: 0 }
}

/// The same; an administrator does not lend him his groups.
fn in_name_of(owner: u32, caller: &Caller) -> Identity {
    if owner == caller.uid { Identity { gid: caller.gid, ..of_owner(owner) } } else { of_owner(owner) }
}

impl State {
    /// Carries out a `persist` request: the number of the task that does to the files what it says.
    pub fn persist(
        &mut self,
        now: Millis,
        caller: &Caller,
        op: PersistOp,
        location: (&str, &[u8]),
        (user, expires): (u32, u64),
    ) -> Result<u32, Refusal> {
        let (dataspace, path) = (location.0, plain(location.1));
        if path.is_empty() || climbs(&path) {
            return refuse(Code::BAD_ARGS, "a location is a path below its dataspace, without '..'");
        }
        match op {
            PersistOp::Store => {
                let mut location = self.to_store(caller, dataspace, path, (user, expires))?;
                self.check_share(caller, location.owner, TASK_BYTES)?;
                if expires != 0 {
                    location.expires = self.end_meant(now, expires);
                }
                self.settle_readers(now, caller, location, None)
            }
            PersistOp::Delete => {
                let owner = self.owned(caller, dataspace, &path)?.owner;
                self.delete_location(now, dataspace, &path, in_name_of(owner, caller))
            }
            PersistOp::Share | PersistOp::Unshare => {
                let mut location = self.owned(caller, dataspace, &path)?.clone();
                self.check_share(caller, location.owner, TASK_BYTES)?;
                location.shared.retain(|uid| *uid != user);
                if op == PersistOp::Share {
                    if location.shared.len() >= SHARED_MAX {
                        return refuse(
                            Code::BAD_ARGS,
                            format!("a location has at most {SHARED_MAX} readers"),
                        );
                    }
                    location.shared.push(user);
                }
                self.settle_readers(now, caller, location, Some(user))
            }
        }
    }

    /// The location is as it says from now on, for the stager at once and for the file system when the task has ended.
    fn settle_readers(
        &mut self,
        now: Millis,
        caller: &Caller,
        location: Persisted,
        user: Option<u32>,
    ) -> Result<u32, Refusal> {
        let owner = in_name_of(location.owner, caller);
        let task = self.permit(now, owner, (&location.dataspace, &location.path), user)?;
        self.put_location(location);
        Ok(task)
    }

    fn put_location(&mut self, location: Persisted) {
        self.note(&Record::Persisted { location: location.clone() });
        self.persisted.put(location);
    }

    /// The location that `store` makes, or changes.
    fn to_store(
        &self,
        caller: &Caller,
        dataspace: &str,
        path: Box<[u8]>,
        (user, expires): (u32, u64),
    ) -> Result<Persisted, Refusal> {
        let who = match caller.rank {
            Rank::Controller => Identity { uid: user, gid: Identity::OWN_GROUP, job: 0 },
            Rank::User | Rank::Administrator => self.identity(caller, None)?,
        };
        self.may_use(who, dataspace, &path, Side::Target)?;
        if self.demand_dataspace(dataspace)?.spec.kind != DataspaceKind::Local {
            return refuse(
                Code::NOT_SUPPORTED,
                format!("dataspace '{dataspace}' is not storage of this node; only that is persisted"),
            );
        }
        // Schedulers store in the name of users.
        let owner = if caller.is_administrator() && user != 0 { user } else { who.uid };
        if let Some(there) = self.persisted.get(dataspace, &path).filter(|there| there.owner != owner) {
            let text = format!("'{}' is persisted already, for user {}", show_bytes(&path), there.owner);
            return refuse(Code::RESOURCE_EXISTS, text);
        }
        let own = || self.persisted.iter().filter(|l| l.owner == who.uid).count();
        if !caller.is_administrator()
            && self.persisted.get(dataspace, &path).is_none()
            && own() >= LOCATIONS_MAX
        {
            return refuse(Code::BAD_ARGS, format!("a user keeps at most {LOCATIONS_MAX} locations"));
        }
        let shared = self.persisted.get(dataspace, &path).map(|l| l.shared.clone()).unwrap_or_default();
        Ok(Persisted { dataspace: dataspace.to_string(), path, owner, shared, expires })
    }

    fn owned(&self, caller: &Caller, dataspace: &str, path: &[u8]) -> Result<&Persisted, Refusal> {
        let changes = |l: &Persisted| caller.sees(of_owner(l.owner));
        let found = self.persisted.get(dataspace, path);
        let found = found.filter(|l| changes(l) || l.shared.contains(&caller.uid));
        match found {
            None => refuse(
                Code::NO_SUCH_RESOURCE,
                format!("'{}' in '{dataspace}' is not persisted", show_bytes(path)),
            ),
            Some(l) if changes(l) => Ok(l),
            Some(l) => refuse(
                Code::NOT_PERMITTED,
                format!("'{}' belongs to user {}; only he may change that", show_bytes(path), l.owner),
            ),
        }
    }

    fn delete_location(
        &mut self,
        now: Millis,
        dataspace: &str,
        path: &[u8],
        owner: Identity,
    ) -> Result<u32, Refusal> {
        let spec = TaskSpec::new(Op::Remove, Resource::local(dataspace, path), None);
        let task = self.submit_as(now, owner, Origin { pid: 0, started: 0 }, spec)?;
        self.drop_mark(dataspace, path);
        Ok(task)
    }

    fn drop_mark(&mut self, dataspace: &str, path: &[u8]) {
        self.note(&Record::PersistedGone { dataspace: dataspace.to_string(), path: path.into() });
        self.persisted.remove(dataspace, path);
    }

    /// A location of `user`'s is not kept any more; what lies there stays.
    pub fn unkeep(&mut self, caller: &Caller, location: (&str, &[u8]), user: u32) -> Result<(), Refusal> {
        self.demand_batch(caller)?;
        let (dataspace, path) = (location.0, plain(location.1));
        match self.persisted.get(dataspace, &path) {
            None => Ok(()),
            Some(there) if there.owner == user => {
                self.drop_mark(dataspace, &path);
                Ok(())
            }
            Some(there) => {
                let text =
                    format!("'{}' is kept for user {}, not for user {user}", show_bytes(&path), there.owner);
                refuse(Code::NOT_PERMITTED, text)
            }
        }
    }

    /// The clock that locations age by, as it is when somebody reads the wall clock and no time has passed.
    fn clock_at(&mut self, wall: Millis) -> Aging {
        let mut clock = self.clock.unwrap_or(Aging::new(wall));
        clock.look(0, wall);
        clock
    }

    /// The second until which a location is meant to stay.
    fn end_meant(&mut self, wall: Millis, expires: u64) -> u64 {
        let clock = self.clock_at(wall);
        if self.clock.is_none() {
            self.note(&Record::Clock { at: clock.at() });
        }
        self.clock = Some(clock);
        clock.meant(expires.saturating_mul(1000)).div_ceil(1000)
    }

    /// After `passed` milliseconds, in which this machine may have slept, the wall clock is at `wall`: starts the removal of locations whose
    /// time is over; how many.
    pub fn expire(&mut self, passed: Millis, wall: Millis) -> usize {
        if !self.persisted.iter().any(|l| l.expires != 0) {
            self.clock = None;
            return 0;
        }
        let mut clock = self.clock.unwrap_or(Aging::new(wall));
        clock.look(passed, wall);
        self.clock = Some(clock);
        self.clock_unnoted = self.clock_unnoted.saturating_add(passed);
        if self.clock_unnoted >= CLOCK_NOTED_EVERY {
            self.clock_unnoted = 0;
            self.note(&Record::Clock { at: clock.at() });
        }
        let expired: Vec<Persisted> = self.persisted.iter().filter(|l| is_over(&clock, l)).cloned().collect();
        expired
            .iter()
            // What cannot be removed now (a pause) is tried again at the next look.
            .filter(|l| {
                let owner = of_owner(l.owner);
                self.delete_location(wall, &l.dataspace, &l.path, owner).is_ok()
            })
            .count()
    }

    /// What the wall clock says of kept locations and the time that has passed does not.
    pub fn doubt(&self) -> Option<Doubt> {
        let clock = self.clock.filter(|clock| clock.lag() >= DOUBT_MIN)?;
        let believed = Aging::new(clock.at().saturating_add(clock.lag()));
        let doubtful = self.persisted.iter().filter(|l| is_over(&believed, l) && !is_over(&clock, l));
        let ends: Vec<Millis> = doubtful.map(|l| l.expires.saturating_mul(1000)).collect();
        let first = clock.left(*ends.iter().min()?);
        Some(Doubt { ahead: clock.lag(), locations: ends.len(), first })
    }

    /// Locations the caller owns or may read; all of them for administrators.
    pub fn persisted(&self, caller: &Caller) -> Vec<Persisted> {
        let visible = |l: &&Persisted| caller.sees(of_owner(l.owner)) || l.shared.contains(&caller.uid);
        self.persisted.iter().filter(visible).cloned().collect()
    }

    /// What a reader of a shared location is told when the permissions of its files keep him out all the same: they have
    /// come to be, or were changed, after it was shared.
    pub(crate) fn advice_on_sharing(
        &self,
        who: Identity,
        spec: &TaskSpec,
        refusal: &Refusal,
    ) -> Option<String> {
        let Resource::Path { dataspace, host: None, path, .. } = &spec.src else { return None };
        let kept_out = [Errno::EACCES.0, Errno::EPERM.0].contains(&refusal.errno);
        let location = self.persisted.over(dataspace, path).filter(|_| kept_out)?;
        let (uid, owner, path) = (who.uid, location.owner, show_bytes(&location.path));
        (owner != uid && location.shared.contains(&uid)).then(|| {
            format!(
                "; user {owner} shares '{dataspace}{path}' with user {uid}, but the permissions of this entry keep him out: when user {owner} shares it again, they are set anew ('tidepool stage persist share {dataspace}{path} {uid}')"
            )
        })
    }

    /// Whether a path is or lies under a location, so that it may stay when its job ends.
    pub fn is_persisted(&self, dataspace: &str, path: &[u8]) -> bool {
        self.persisted.over(dataspace, path).is_some()
    }
}
