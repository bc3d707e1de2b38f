//! What mounts may keep of what they were told, and who has to be asked to forget it before it changes
//! (`docs/formats/10-leases.md`).
//!
//! ```text
//!          grant                    change by another                released, or its time is over
//!  nobody ───────▶ kept until t ─────────────────────▶ recalled, ─────────────────────────────────▶ nobody, and none is
//!    ▲                │  ▲                             nothing is granted                            granted for a while
//!    │                └──┘ grant, change by its only holder                                            │
//!    └─────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A change that meets holders is refused, not delayed: its sender asks again. So nothing waits here, and a holder that is dead or
//! stopped is in the way until its time is over.

use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tidepool_types::{Ino, SessionId};
use tidepool_wire::message::{LEASE_TERM_MS, LeaseKey, VERSION_MADE};
use tidepool_wire::record::Mutation;

/// Keys known at the same time; nothing more is granted meanwhile.
const KEYS_MAX: usize = 1 << 16;
/// How long a full table is not looked through again for what can go.
const SWEEP_PAUSE: Duration = Duration::from_millis(250);
/// Unanswered recalls above which those are looked for whose mounts are gone.
const UNANSWERED_MAX: usize = 4096;
/// Mounts that keep the same thing.
const HOLDERS_MAX: usize = 64;
/// How much longer than a mount we believe in what it keeps: the clock of its kernel ticks in some milliseconds.
const TERM: Duration = Duration::from_millis(LEASE_TERM_MS + 100);
/// How long nothing is granted of what was kept and changed: it will change again.
const CONTESTED: Duration = Duration::from_millis(250);
/// For how long one that was refused has the next turn: a change that met a lease, or who wants to keep data that are being written.
/// Who is killed while it waits is in the way for as long.
const TURN: Duration = Duration::from_millis(50);
/// Those who wait for writes to end, above which they are looked through for who does not any more.
const WANTED_MAX: usize = 1024;
/// The question for a missing name from which on its absence is kept. Programs look whether a name is there before they make it, on many
/// nodes at once, and would wait for each other.
const ABSENCE_AFTER: u8 = 4;

/// What of a reply may be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    pub entry: bool,
    pub attr: bool,
}

/// What a session is to forget, and to say so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recall {
    pub session: SessionId,
    pub id: u64,
    pub key: LeaseKey,
}

#[derive(Debug)]
struct Holder {
    session: SessionId,
    until: Duration,
    recalled: Option<u64>,
}

/// One key. Holders stay after their time: they know the version.
#[derive(Debug, Default)]
struct Lease {
    version: u64,
    holders: Vec<Holder>,
    contested_until: Duration,
    /// A change was refused, and comes again.
    change_until: Duration,
    asked: u8,
}

/// All leases of a daemon.
#[derive(Debug)]
pub struct Leases {
    keys: HashMap<LeaseKey, Lease>,
    /// Sessions that can be recalled.
    watching: HashSet<SessionId>,
    /// Objects that processes change without us: nobody else keeps anything of them. With several borrowers nobody does.
    lent: HashMap<Ino, Option<SessionId>>,
    /// Objects whose data are being written right now.
    writing: HashMap<Ino, u32>,
    /// Who waits for the writes to end: others begin none meanwhile.
    wanted: HashMap<Ino, (SessionId, Duration)>,
    /// To be sent.
    recalls: Vec<Recall>,
    /// Sent and not answered.
    unanswered: HashMap<u64, LeaseKey>,
    counter: u64,
    acting: Option<SessionId>,
    now: Duration,
    quiet_until: Duration,
    swept: Duration,
}

impl Leases {
    /// Versions and recalls are numbered from `first` on, which has to differ between runs of a daemon.
    pub fn new(first: u64) -> Leases {
        Leases {
            keys: HashMap::new(),
            watching: HashSet::new(),
            lent: HashMap::new(),
            writing: HashMap::new(),
            wanted: HashMap::new(),
            recalls: Vec::new(),
            unanswered: HashMap::new(),
            counter: first.max(VERSION_MADE),
            acting: None,
            now: Duration::ZERO,
            quiet_until: Duration::ZERO,
            swept: Duration::ZERO,
        }
    }

    /// Changes nothing for a term: what an earlier daemon has granted is not known.
    pub fn stay_quiet(&mut self, now: Duration) {
        self.quiet_until = now + TERM;
    }

    /// Who asks, and when.
    pub fn acting(&mut self, session: SessionId, now: Duration) {
        self.acting = Some(session);
        self.now = self.now.max(now);
    }

    pub fn watch(&mut self, session: SessionId) {
        self.watching.insert(session);
    }

    /// What the session keeps it keeps until its time is over: its kernel may still answer.
    pub fn unwatch(&mut self, session: SessionId) {
        self.watching.remove(&session);
    }

    pub fn is_watching(&self, session: SessionId) -> bool {
        self.watching.contains(&session)
    }

    /// What is to be sent.
    pub fn take_recalls(&mut self) -> Vec<Recall> {
        std::mem::take(&mut self.recalls)
    }

    /// False when there are no leases at all, so that nothing has to be asked about any.
    pub fn matter(&self) -> bool {
        !self.keys.is_empty() || self.now < self.quiet_until
    }

    /// Whether the acting session may carry a batch out. If not, those who keep what it changes have been recalled.
    pub fn change(&mut self, batch: &[Mutation]) -> bool {
        if !self.matter() {
            return true;
        }
        let mut free = self.now >= self.quiet_until;
        for change in batch {
            if let Some(key) = key_of(change) {
                free &= self.may_change(&key);
                free &= !self.is_kept_by_maker(change) || self.make_room(&key);
            }
        }
        free
    }

    /// A kernel gives the name that a rename makes what remains of the old one's time.
    fn is_kept_by_maker(&self, change: &Mutation) -> bool {
        let makes = matches!(change, Mutation::PutDentry { dentry, .. } if dentry.hold.is_none());
        makes && self.acting.is_some_and(|session| self.watching.contains(&session))
    }

    fn may_change(&mut self, key: &LeaseKey) -> bool {
        let Some(lease) = self.keys.get_mut(key) else { return true };
        let (now, acting) = (self.now, self.acting);
        let mut free = true;
        for holder in lease.holders.iter_mut().filter(|h| Some(h.session) != acting && h.until > now) {
            free = false;
            if holder.recalled.is_none() {
                self.counter += 1;
                holder.recalled = Some(self.counter);
                self.recalls.push(Recall { session: holder.session, id: self.counter, key: key.clone() });
                self.unanswered.insert(self.counter, key.clone());
            }
        }
        if !free {
            lease.contested_until = now + CONTESTED;
            lease.change_until = now + TURN;
            self.forget_lost();
        }
        free
    }

    /// Recalls that nobody will answer any more.
    fn forget_lost(&mut self) {
        if self.unanswered.len() > UNANSWERED_MAX {
            let keys = &self.keys;
            let open =
                |id: &u64, l: &Lease| l.holders.iter().any(|h| h.recalled == Some(*id) && h.until > self.now);
            self.unanswered.retain(|id, key| keys.get(key).is_some_and(|lease| open(id, lease)));
        }
    }

    /// A batch was carried out.
    pub fn changed(&mut self, batch: &[Mutation]) {
        for change in batch {
            if let Some(key) = key_of(change) {
                self.key_changed(&key);
            }
            if self.is_kept_by_maker(change)
                && let Some((key, session)) = key_of(change).zip(self.acting)
            {
                self.hold(&key, session);
            }
        }
    }

    fn key_changed(&mut self, key: &LeaseKey) {
        let Some(lease) = self.keys.get_mut(key) else { return };
        let before = lease.holders.len();
        let acting = self.acting;
        lease.holders.retain(|h| Some(h.session) == acting);
        lease.asked = 0;
        lease.change_until = Duration::ZERO;
        if lease.holders.len() < before {
            self.counter += 1;
            lease.version = self.counter;
        }
        if lease.holders.is_empty() && lease.contested_until <= self.now {
            self.keys.remove(key);
        }
    }

    /// Something may have changed and nobody waits: whoever keeps it is told.
    pub fn disturb(&mut self, ino: Ino, by: SessionId) {
        self.acting = Some(by);
        let key = LeaseKey::Object(ino);
        self.may_change(&key);
        self.counter += 1;
        if let Some(lease) = self.keys.get_mut(&key) {
            lease.version = self.counter;
            lease.change_until = Duration::ZERO;
        }
    }

    /// Data of an object are about to be written. False as in [`Leases::change`]; else until [`Leases::end_write`] nothing of it is granted.
    pub fn begin_write(&mut self, ino: Ino) -> bool {
        let free = self.now >= self.quiet_until
            && !self.is_wanted_by_another(ino)
            && self.may_change(&LeaseKey::Object(ino));
        if free {
            *self.writing.entry(ino).or_default() += 1;
        }
        free
    }

    fn is_wanted_by_another(&mut self, ino: Ino) -> bool {
        let Some((session, until)) = self.wanted.get(&ino) else { return false };
        if *until <= self.now {
            self.wanted.remove(&ino);
            return false;
        }
        Some(*session) != self.acting
    }

    pub fn end_write(&mut self, ino: Ino) {
        if let Some(count) = self.writing.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.writing.remove(&ino);
            }
        }
    }

    /// The acting session is about to get an object's files, to write to them. False as in [`Leases::change`].
    pub fn lend(&mut self, ino: Ino) -> bool {
        let free = self.now >= self.quiet_until && self.may_change(&LeaseKey::Object(ino));
        if free {
            self.key_changed(&LeaseKey::Object(ino));
            let acting = self.acting;
            self.lent.entry(ino).and_modify(|by| *by = by.filter(|s| Some(*s) == acting)).or_insert(acting);
        } else if let Some(lease) = self.keys.get_mut(&LeaseKey::Object(ino)) {
            // Who is refused writes by requests.
            lease.change_until = Duration::ZERO;
        }
        free
    }

    pub fn lending_is_over(&mut self, ino: Ino) {
        self.lent.remove(&ino);
    }

    /// A recall has been carried out.
    pub fn released(&mut self, session: SessionId, id: u64) {
        let theirs = |h: &Holder| h.session == session && h.recalled == Some(id);
        let lease = self.unanswered.remove(&id).and_then(|key| self.keys.get_mut(&key));
        // It still knows the version.
        for holder in lease.into_iter().flat_map(|lease| &mut lease.holders).filter(|h| theirs(h)) {
            (holder.until, holder.recalled) = (Duration::ZERO, None);
        }
    }

    pub fn grant_entry(&mut self, dir: Ino, name: &[u8], session: SessionId) -> bool {
        let key = LeaseKey::Entry(dir, name.into());
        self.may_grant(&key, session) && self.hold(&key, session)
    }

    /// Like [`Leases::grant_entry`], for a name that is not there.
    pub fn grant_absence(&mut self, dir: Ino, name: &[u8], session: SessionId) -> bool {
        let key = LeaseKey::Entry(dir, name.into());
        if !self.may_grant(&key, session) || !self.make_room(&key) {
            return false;
        }
        let lease = self.keys.entry(key.clone()).or_default();
        lease.asked = lease.asked.saturating_add(1);
        lease.asked >= ABSENCE_AFTER && self.hold(&key, session)
    }

    pub fn grant_part(&mut self, dir: Ino, session: SessionId) -> bool {
        let key = LeaseKey::Part(dir);
        self.may_grant(&key, session) && self.hold(&key, session)
    }

    /// `made`: the asker has made it right now.
    pub fn grant_object(&mut self, ino: Ino, session: SessionId, made: bool) -> bool {
        let key = LeaseKey::Object(ino);
        let free = !self.writing.contains_key(&ino)
            && self.lent.get(&ino).is_none_or(|by| *by == Some(session))
            && self.may_grant(&key, session)
            && self.hold(&key, session);
        if free
            && made
            && let Some(lease) = self.keys.get_mut(&key)
        {
            lease.version = VERSION_MADE;
        }
        free
    }

    /// The version of an object's content; 0 when its data must not be kept.
    pub fn grant_version(&mut self, ino: Ino, session: SessionId) -> u64 {
        if !self.grant_object(ino, session, false) {
            return 0;
        }
        self.keys.get(&LeaseKey::Object(ino)).map_or(0, |lease| lease.version)
    }

    /// The version of an object's content, for who has its data in use and goes on to keep them; 0 when they must not be kept.
    /// `None`: not right now. A change that was refused comes first, and after a write that is going on it is the asker's turn, so that
    /// neither keeps the other from it. That it was changed a moment ago is no reason to refuse.
    pub fn grant_data(&mut self, ino: Ino, session: SessionId) -> Option<u64> {
        if !self.watching.contains(&session) {
            return Some(0);
        }
        let key = LeaseKey::Object(ino);
        if self.is_about_to_change(&key) || self.lent.get(&ino).is_some_and(|by| *by != Some(session)) {
            return None;
        }
        if self.writing.contains_key(&ino) {
            self.want(ino, session);
            return None;
        }
        if self.wanted.get(&ino).is_some_and(|(who, _)| *who == session) {
            self.wanted.remove(&ino);
        }
        let live = |h: &&Holder| h.until > self.now && h.session != session;
        let holders = self.keys.get(&key).map_or(0, |lease| lease.holders.iter().filter(live).count());
        if holders >= HOLDERS_MAX || !self.hold(&key, session) {
            return Some(0);
        }
        self.keys.get(&key).map(|lease| lease.version)
    }

    fn is_about_to_change(&self, key: &LeaseKey) -> bool {
        let Some(lease) = self.keys.get(key) else { return false };
        lease.change_until > self.now
            || lease.holders.iter().any(|h| h.until > self.now && h.recalled.is_some())
    }

    fn want(&mut self, ino: Ino, session: SessionId) {
        let now = self.now;
        if self.wanted.len() >= WANTED_MAX {
            self.wanted.retain(|_, (_, until)| *until > now);
        }
        // The first one keeps its turn. With very many nobody gets one.
        if self.wanted.get(&ino).is_none_or(|(_, until)| *until <= now) && self.wanted.len() < WANTED_MAX {
            self.wanted.insert(ino, (session, now + TURN));
        }
    }

    fn may_grant(&self, key: &LeaseKey, session: SessionId) -> bool {
        if !self.watching.contains(&session) {
            return false;
        }
        let Some(lease) = self.keys.get(key) else { return true };
        let live = |h: &&Holder| h.until > self.now;
        let room = lease.holders.iter().filter(live).filter(|h| h.session != session).count() < HOLDERS_MAX;
        let recalled = lease.holders.iter().filter(live).any(|h| h.recalled.is_some());
        room && !recalled && lease.contested_until <= self.now
    }

    /// Has `session` keep it from now on; false when there are too many keys.
    fn hold(&mut self, key: &LeaseKey, session: SessionId) -> bool {
        if !self.make_room(key) {
            return false;
        }
        let until = self.now + TERM;
        let lease = self.keys.entry(key.clone()).or_default();
        if lease.version == 0 {
            self.counter += 1;
            lease.version = self.counter;
        }
        let holder = Holder { session, until, recalled: None };
        if let Some(old) = lease.holders.iter_mut().find(|h| h.session == session) {
            *old = holder;
            return true;
        }
        if lease.holders.len() >= HOLDERS_MAX {
            // Who is forgotten must not find the version he knows again.
            lease.holders.retain(|h| h.until > self.now);
            self.counter += 1;
            lease.version = self.counter;
        }
        lease.holders.push(holder);
        true
    }

    fn make_room(&mut self, key: &LeaseKey) -> bool {
        if self.keys.len() < KEYS_MAX || self.keys.contains_key(key) {
            return true;
        }
        if self.now >= self.swept + SWEEP_PAUSE {
            self.swept = self.now;
            let now = self.now;
            self.keys.retain(|_, l| l.contested_until > now || l.holders.iter().any(|h| h.until > now));
        }
        self.keys.len() < KEYS_MAX
    }

    /// Keys known, for `status`.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// What a change makes untrue.
fn key_of(change: &Mutation) -> Option<LeaseKey> {
    match change {
        Mutation::PutInode(inode) => Some(LeaseKey::Object(inode.attr.ino)),
        Mutation::DelInode(ino) => Some(LeaseKey::Object(*ino)),
        Mutation::PutDentry { parent, name, .. } | Mutation::DelDentry { parent, name } => {
            Some(LeaseKey::Entry(*parent, name.clone()))
        }
        Mutation::PutDirPart { dir, .. } | Mutation::DelDirPart(dir) => Some(LeaseKey::Part(*dir)),
        Mutation::PutOutcome { .. }
        | Mutation::DelOutcome(_)
        | Mutation::NextCount(_)
        | Mutation::PutReap(_)
        | Mutation::DelReap(_) => None,
    }
}
