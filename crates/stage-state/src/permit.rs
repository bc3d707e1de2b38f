//! Tasks that make who may read a kept location what the location says (paper, Section III: `share` and `unshare` add and
//! remove "permission for user to access the persist location").
//!
//! A task finds out what it has to do when it starts: who the location is shared with then. So whatever was asked for last
//! is what is done last, also when an earlier task is resumed after a later one; and of one location only one task runs
//! at a time.

use crate::Millis;
use crate::record::{Record, put_submitted};
use crate::rights::{Side, check_path};
use crate::state::State;
use crate::task::{Identity, Origin, Permit, Task};
use std::collections::{BTreeMap, VecDeque};
use tidepool_wire::stager::{Op, Refusal, Resource, TaskSpec};

type Place = (String, Box<[u8]>);

/// The location that a task is about; none for tasks of other kinds.
fn place_of(spec: &TaskSpec) -> Option<Place> {
    match (&spec.src, spec.op) {
        (Resource::Path { dataspace, path, .. }, Op::Permit) => Some((dataspace.clone(), path.clone())),
        _ => None,
    }
}

/// Unended tasks by location, in the order they came. The first is in the queue, or runs; the others wait for it.
#[derive(Default)]
pub(crate) struct Lines {
    by_place: BTreeMap<Place, VecDeque<u32>>,
}

impl Lines {
    /// Whether it is the first.
    fn join(&mut self, place: Place, id: u32) -> bool {
        let line = self.by_place.entry(place).or_default();
        line.push_back(id);
        line.len() == 1
    }

    /// Who is the first now, if another one was before.
    fn leave(&mut self, place: &Place, id: u32) -> Option<u32> {
        let line = self.by_place.get_mut(place)?;
        let was_first = line.front() == Some(&id);
        line.retain(|waiting| *waiting != id);
        let first = line.front().copied();
        if first.is_none() {
            self.by_place.remove(place);
        }
        first.filter(|_| was_first)
    }

    fn of(&self, place: &Place) -> impl Iterator<Item = u32> {
        self.by_place.get(place).into_iter().flatten().copied()
    }
}

impl State {
    /// Starts a task that makes the top of a location its owner's and its readers' only and, with `user`, gives or takes
    /// what that user may read below it. One that has not begun yet does as well.
    pub(crate) fn permit(
        &mut self,
        now: Millis,
        owner: Identity,
        (dataspace, path): (&str, &[u8]),
        user: Option<u32>,
    ) -> Result<u32, Refusal> {
        let place = (dataspace.to_string(), path.into());
        let same = |task: &Task| !task.running && task.permit_for == user && task.identity == owner;
        if let Some(id) = self.permits.of(&place).find(|id| self.tasks.get(id).is_some_and(|task| same(task)))
        {
            return Ok(id);
        }
        self.check_room()?;
        let spec = TaskSpec::new(Op::Permit, Resource::local(dataspace, path), None);
        check_path(&spec.src)?;
        self.may_use(owner, dataspace, path, Side::Source)?;
        let (id, origin) = (self.free_id(), Origin { pid: 0, started: 0 });
        put_submitted(self.records(), (id, now), (owner, origin), &spec, false);
        self.note(&Record::Permit { id, user });
        self.insert(id, now, (owner, origin), spec, false);
        self.apply_permit(id, user);
        Ok(id)
    }

    pub(crate) fn apply_permit(&mut self, id: u32, user: Option<u32>) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.permit_for = user;
        }
    }

    /// What is in the queue waits if another task is at its location.
    pub(crate) fn line_up(&mut self, id: u32) {
        let Some(place) = self.tasks.get(&id).and_then(|task| place_of(&task.spec)) else { return };
        if !self.permits.join(place, id) {
            self.unqueue(id);
        }
    }

    /// A task has ended, and the next one at its location need not wait any more.
    pub(crate) fn leave_line(&mut self, id: u32, spec: &TaskSpec) {
        let Some(next) = place_of(spec).and_then(|place| self.permits.leave(&place, id)) else { return };
        if let Some(task) = self.tasks.get(&next) {
            self.queue.push(task.queued);
            self.backlog.add(&task.spec, task.queued.size);
        }
    }

    /// What a task has to do, if its location is still kept.
    pub(crate) fn permit_now(&self, task: &Task) -> Option<Permit> {
        let (dataspace, path) = place_of(&task.spec)?;
        let location = self.persisted.get(&dataspace, &path)?;
        // The owner may have become another one: then this is no business of the first.
        (location.owner == task.identity.uid)
            .then(|| Permit { readers: location.shared.clone(), user: task.permit_for })
    }
}
