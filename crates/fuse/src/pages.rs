//! Which pages of files the kernel may have, and until when they are right (`docs/formats/10-leases.md`, Pages).
//!
//! The kernel has a page because it read it or wrote it through an open file whose pages it keeps (a *cached* handle). While a lease on
//! the object lasts, nobody else changes the data without a recall. So each read and write through such a handle is *covered* by a lease
//! that is asked for first; leases of open files are renewed before they end; where one cannot be had or kept, the pages are dropped.
//!
//! ```text
//!            open, granted                   recalled, renewal refused
//!  unknown ────────────────▶ known until t ────────────────────────────▶ unknown, pages dropped
//!     ▲                          │  ▲
//!     └── no room, forgotten ────┘  └── granted again with the same version
//! ```
//!
//! This is the bookkeeping alone: no clock is read and nobody is asked.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};
use tidepool_types::Ino;

/// Objects whose pages are known at the same time.
const KNOWN_MAX: usize = 1 << 16;
/// Counters of recalls that objects share by hash.
const SLOTS: usize = 4096;
/// What is left of a lease when nothing new is covered by it: a reply has to reach the kernel meanwhile.
const MARGIN: Duration = Duration::from_millis(50);
/// How often all pages are dropped because reads without a lease go on meanwhile, and how often those of the last reads.
const ROUNDS_MAX: u32 = 4;
const LAST_ROUNDS_MAX: u32 = 200;

/// Pages of one object.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Of the content they were filled from.
    version: u64,
    until: Instant,
    /// There may be some.
    filled: bool,
    /// The lease is good for nothing any more, whatever its time.
    lapsed: bool,
}

/// Pages of an object that are being dropped, while a daemon waits for it.
#[derive(Clone, Debug, Default)]
struct Dropping {
    rounds: u32,
    /// Reads that were let through meanwhile.
    through: Vec<Range>,
    /// Only these are being dropped: other reads wait.
    last: Option<Vec<Range>>,
}

impl Dropping {
    /// Whether who drops the pages may be waiting for a read, which the kernel has locked.
    fn lets_through(&self, (start, len): Range) -> bool {
        let meets = |(other, count): &Range| *other < start + len && start < *other + *count;
        self.last.as_ref().is_none_or(|ranges| ranges.iter().any(meets))
    }
}

/// Offset and length of a read.
pub type Range = (u64, u64);

/// What a read or write through a cached handle has to do first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cover {
    /// Nothing: a lease holds.
    Held,
    /// Nothing: what it fills is dropped before anybody changes it.
    Dropping,
    /// To ask for a lease. The number is for [`Pages::granted`].
    Ask(u32),
}

/// What is left to do after pages were dropped for a daemon that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum After {
    /// To answer.
    Nothing,
    /// To drop them again: there were reads meanwhile.
    Again,
    /// There are reads all the time. From now on those of other pages wait for a lease, which there is only when the daemon has its answer.
    /// Pages of the last reads are to be dropped, but none for which a read waits ([`Pages::is_awaited`]): the kernel has it locked, and
    /// empty. Then this is to be asked again.
    Last(Vec<Range>),
}

/// What came of a lease that was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granted {
    Held,
    /// It holds, but what the kernel has is of an older version and has to be dropped.
    Changed,
    /// It was recalled before it came, or there is no room.
    Gone,
}

#[derive(Debug)]
pub struct Pages {
    known: HashMap<Ino, Known>,
    /// Cached handles.
    cached: HashMap<Ino, u32>,
    dropping: HashMap<Ino, Dropping>,
    /// Reads that wait for a lease.
    waiting: HashMap<Ino, Vec<Range>>,
    /// Objects that are to be dropped soon.
    soon: HashSet<Ino>,
    /// Objects whose pages are to be dropped although nobody waits for it, and how often.
    owed: HashMap<Ino, u32>,
    recalls: Box<[u32]>,
    hash: RandomState,
}

impl Default for Pages {
    fn default() -> Pages {
        Pages {
            known: HashMap::new(),
            cached: HashMap::new(),
            dropping: HashMap::new(),
            waiting: HashMap::new(),
            soon: HashSet::new(),
            owed: HashMap::new(),
            recalls: vec![0; SLOTS].into(),
            hash: RandomState::new(),
        }
    }
}

impl Pages {
    fn slot(&self, ino: Ino) -> usize {
        self.hash.hash_one(ino) as usize % SLOTS
    }

    /// To be called before a lease is asked for.
    pub fn recalls_of(&self, ino: Ino) -> u32 {
        self.recalls[self.slot(ino)]
    }

    /// An object was opened under a lease, or without one. Whether the pages that the kernel has are still right; if not it
    /// drops them itself.
    pub fn opened(&mut self, ino: Ino, recalls: u32, lease: Option<(u64, Instant)>) -> bool {
        let lease = lease.filter(|_| self.recalls_of(ino) == recalls);
        let Some((version, until)) = lease.filter(|_| self.make_room()) else {
            self.lapse(ino);
            return false;
        };
        let before = self.known.get(&ino);
        let stay = before.is_some_and(|known| known.version == version);
        // Until the open is answered there are those from before.
        let filled = before.is_some_and(|known| known.filled);
        self.known.insert(ino, Known { version, until, filled, lapsed: false });
        stay
    }

    /// No lease covers the pages that there are. They stay known as long as they may be there: a recall is to wait for them.
    pub fn lapse(&mut self, ino: Ino) {
        if !self.cached.contains_key(&ino) {
            self.known.remove(&ino);
        } else if let Some(known) = self.known.get_mut(&ino) {
            known.lapsed = true;
        }
    }

    /// A cached handle was opened.
    pub fn opened_cached(&mut self, ino: Ino) {
        *self.cached.entry(ino).or_default() += 1;
    }

    /// A cached handle was closed.
    pub fn closed_cached(&mut self, ino: Ino) {
        if let Some(count) = self.cached.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.cached.remove(&ino);
            }
        }
    }

    /// Data were changed past the kernel's pages: true when it has to drop them now. Otherwise nobody has them open, and it does
    /// at the next open.
    pub fn changed_past(&mut self, ino: Ino) -> bool {
        if self.cached.contains_key(&ino) {
            return true;
        }
        self.known.remove(&ino);
        false
    }

    /// A read goes on that waits for a lease.
    pub fn read_on(&mut self, ino: Ino, range: Range, now: Instant) -> Cover {
        let cover = self.read(ino, range, now);
        if !matches!(cover, Cover::Ask(_)) {
            self.has_waited(ino, range);
        }
        cover
    }

    /// A read through a cached handle begins.
    pub fn read(&mut self, ino: Ino, range: Range, now: Instant) -> Cover {
        if self.covered(ino, now) {
            return Cover::Held;
        }
        if let Some(dropping) = self.dropping.get_mut(&ino).filter(|dropping| dropping.lets_through(range)) {
            dropping.through.push(range);
            return Cover::Dropping;
        }
        Cover::Ask(self.recalls_of(ino))
    }

    /// A read is going to wait for a lease.
    pub fn waits(&mut self, ino: Ino, range: Range) {
        self.waiting.entry(ino).or_default().push(range);
    }

    /// It does not any more.
    pub fn has_waited(&mut self, ino: Ino, range: Range) {
        let Some(waiting) = self.waiting.get_mut(&ino) else { return };
        if let Some(at) = waiting.iter().position(|other| *other == range) {
            waiting.swap_remove(at);
        }
        if waiting.is_empty() {
            self.waiting.remove(&ino);
        }
    }

    /// Whether a read that waits wants the byte at an offset.
    pub fn is_awaited(&self, ino: Ino, offset: u64) -> bool {
        let wants = |(start, len): &Range| (*start..start.saturating_add(*len)).contains(&offset);
        self.waiting.get(&ino).is_some_and(|waiting| waiting.iter().any(wants))
    }

    /// Data are written through a cached handle. False: the pages that the kernel makes of it have to be dropped.
    pub fn written(&mut self, ino: Ino, now: Instant) -> bool {
        self.covered(ino, now)
    }

    fn covered(&mut self, ino: Ino, now: Instant) -> bool {
        let known = self.known.get_mut(&ino).filter(|known| !known.lapsed && known.until > now + MARGIN);
        known.map(|known| known.filled = true).is_some()
    }

    /// A lease was granted for what begins now, or goes on.
    pub fn granted(&mut self, ino: Ino, recalls: u32, version: u64, until: Instant) -> Granted {
        if self.recalls_of(ino) != recalls {
            return Granted::Gone;
        }
        if !self.known.contains_key(&ino) && !self.make_room() {
            return Granted::Gone;
        }
        let before = self.known.remove(&ino);
        self.known.insert(ino, Known { version, until, filled: true, lapsed: false });
        match before {
            Some(Known { version: old, filled: true, lapsed, .. }) if lapsed || old != version => {
                Granted::Changed
            }
            _ => Granted::Held,
        }
    }

    fn make_room(&mut self) -> bool {
        if self.known.len() >= KNOWN_MAX {
            // Of files that are open through no cached handle the kernel drops the pages when they are opened again.
            let cached = &self.cached;
            self.known.retain(|ino, _| cached.contains_key(ino));
        }
        self.known.len() < KNOWN_MAX
    }

    /// A lease was recalled: whether there may be pages to drop.
    pub fn recalled(&mut self, ino: Ino) -> bool {
        let slot = self.slot(ino);
        self.recalls[slot] = self.recalls[slot].wrapping_add(1);
        self.known.remove(&ino).is_some()
    }

    /// The kernel has forgotten the object.
    pub fn forget(&mut self, ino: Ino) {
        self.known.remove(&ino);
    }

    /// Pages are going to be dropped while a daemon waits for that. Reads meanwhile cannot get a lease, and are let through.
    pub fn drop_begins(&mut self, ino: Ino) {
        self.dropping.entry(ino).or_default();
    }

    /// Pages were dropped, while a daemon waits for that.
    pub fn dropped(&mut self, ino: Ino) -> After {
        let Some(dropping) = self.dropping.get_mut(&ino) else { return After::Nothing };
        dropping.rounds += 1;
        let through = std::mem::take(&mut dropping.through);
        if !through.is_empty() && dropping.rounds < ROUNDS_MAX {
            return After::Again;
        }
        if through.is_empty() || dropping.rounds >= LAST_ROUNDS_MAX {
            self.dropping.remove(&ino);
            return After::Nothing;
        }
        dropping.last = Some(through.clone());
        After::Last(through)
    }

    /// Pages that no lease covers are to be dropped soon; false when that is under way already.
    pub fn drop_soon(&mut self, ino: Ino) -> bool {
        let is_new = self.soon.insert(ino);
        if is_new {
            self.owe(ino);
        }
        is_new
    }

    /// They are dropped now: what is filled from here on is to be dropped again.
    pub fn soon_begins(&mut self, ino: Ino) {
        self.soon.remove(&ino);
    }

    /// Pages are going to be dropped that nobody waits for.
    pub fn owe(&mut self, ino: Ino) {
        *self.owed.entry(ino).or_default() += 1;
    }

    /// They were.
    pub fn paid(&mut self, ino: Ino) {
        if let Some(count) = self.owed.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.owed.remove(&ino);
            }
        }
    }

    /// Whether the kernel may have pages that it should not have any more: who asks for a file's data to be settled waits for it to drop
    /// them.
    pub fn owes(&self, ino: Ino) -> bool {
        self.owed.contains_key(&ino)
    }

    /// Leases of open files with pages that end within `ahead`.
    pub fn ending(&self, now: Instant, ahead: Duration) -> Vec<Ino> {
        let ends = |(ino, known): (&Ino, &Known)| {
            (known.filled && !known.lapsed && known.until < now + ahead && self.cached.contains_key(ino))
                .then_some(*ino)
        };
        self.known.iter().filter_map(ends).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);
    const TERM: Duration = Duration::from_secs(2);
    const ALL: Range = (0, 8192);

    /// Pages of a file that is open and read, its lease good until `now + TERM`.
    fn read_pages(now: Instant) -> Pages {
        let mut pages = Pages::default();
        assert!(!pages.opened(INO, 0, Some((5, now + TERM))), "nothing was known before");
        pages.opened_cached(INO);
        assert_eq!(pages.read(INO, ALL, now), Cover::Held);
        pages
    }

    #[test]
    fn a_read_needs_a_lease_that_lasts() {
        let now = Instant::now();
        let mut pages = read_pages(now);
        let late = now + TERM - MARGIN;
        assert_eq!(pages.read(INO, ALL, late), Cover::Ask(0));
        assert!(!pages.written(INO, late));
        assert_eq!(pages.granted(INO, 0, 5, late + TERM), Granted::Held);
        assert_eq!(pages.read(INO, ALL, late), Cover::Held);
        assert_eq!(pages.read(Ino(8), ALL, now), Cover::Ask(0), "never opened under a lease");
    }

    #[test]
    fn pages_of_another_version_have_to_go() {
        let now = Instant::now();
        let mut pages = read_pages(now);
        assert_eq!(pages.granted(INO, 0, 6, now + TERM), Granted::Changed);
        assert_eq!(pages.granted(INO, 0, 6, now + TERM), Granted::Held);
        assert!(pages.opened(INO, 0, Some((6, now + TERM))), "the same as before");
        assert!(!pages.opened(INO, 0, Some((7, now + TERM))));
        assert!(!pages.opened(INO, 0, None), "without a lease the kernel starts anew");
        assert_eq!(pages.read(INO, ALL, now), Cover::Ask(0));
        assert_eq!(pages.granted(INO, 0, 7, now + TERM), Granted::Changed, "the kernel may not have yet");
    }

    #[test]
    fn a_recall_overtakes_the_grant_that_it_follows() {
        let now = Instant::now();
        let mut pages = read_pages(now);
        let Cover::Ask(noted) = pages.read(INO, ALL, now + TERM) else { panic!() };
        assert!(pages.recalled(INO), "there were pages");
        assert_eq!(pages.granted(INO, noted, 5, now + TERM), Granted::Gone);
        assert!(!pages.opened(INO, noted, Some((5, now + TERM))));
        assert!(!pages.recalled(INO), "there are none");
        assert_eq!(pages.granted(INO, pages.recalls_of(INO), 6, now + TERM), Granted::Held);
    }

    #[test]
    fn reads_while_a_daemon_waits_are_dropped_with_the_rest() {
        let now = Instant::now();
        let mut pages = read_pages(now);
        assert!(pages.recalled(INO));
        pages.drop_begins(INO);
        assert_eq!(pages.read(INO, ALL, now), Cover::Dropping);
        assert_eq!(pages.dropped(INO), After::Again, "for what was read meanwhile");
        assert_eq!(pages.dropped(INO), After::Nothing);
        assert_eq!(pages.read(INO, ALL, now), Cover::Ask(1));
        pages.drop_begins(INO);
        let rounds = (1..).find(|_| {
            assert_eq!(pages.read(INO, ALL, now), Cover::Dropping);
            let after = pages.dropped(INO);
            assert!(matches!(&after, After::Again) || after == After::Last(vec![ALL]));
            after != After::Again
        });
        assert_eq!(rounds, Some(ROUNDS_MAX), "who reads without end does not keep the daemon waiting");
        assert_eq!(pages.read(INO, (8192, 10), now), Cover::Ask(1), "other pages wait");
        assert_eq!(pages.read(INO, (8191, 10), now), Cover::Dropping, "somebody may wait for this one");
        assert_eq!(pages.dropped(INO), After::Last(vec![(8191, 10)]));
        assert_eq!(pages.read(INO, (0, 10), now), Cover::Ask(1));
        assert_eq!(pages.dropped(INO), After::Nothing);
        assert_eq!(pages.read(INO, ALL, now), Cover::Ask(1));
        pages.drop_begins(INO);
        assert_eq!(pages.read(INO, ALL, now), Cover::Dropping);
        let rounds = (1..).find(|_| {
            let after = pages.dropped(INO);
            pages.read(INO, ALL, now);
            after == After::Nothing
        });
        assert_eq!(rounds, Some(LAST_ROUNDS_MAX), "in the end it gets its answer");
    }

    #[test]
    fn what_a_read_waits_for_is_known_while_it_waits() {
        let mut pages = Pages::default();
        pages.waits(INO, ALL);
        pages.waits(INO, (4096, 4096));
        pages.has_waited(INO, ALL);
        assert!(pages.is_awaited(INO, 4096) && pages.is_awaited(INO, 8191));
        assert!(!pages.is_awaited(INO, 0) && !pages.is_awaited(INO, 8192) && !pages.is_awaited(Ino(8), 4096));
        pages.has_waited(INO, (4096, 4096));
        assert!(!pages.is_awaited(INO, 4096));
    }

    #[test]
    fn only_open_files_with_pages_are_renewed() {
        let now = Instant::now();
        let mut pages = read_pages(now);
        let unread = Ino(8);
        pages.opened(unread, 0, Some((1, now + TERM)));
        pages.opened_cached(unread);
        assert_eq!(pages.ending(now, TERM), []);
        let soon = TERM + Duration::from_millis(1);
        assert_eq!(pages.ending(now, soon), [INO]);
        pages.closed_cached(INO);
        assert_eq!(pages.ending(now, soon), []);
        pages.opened_cached(INO);
        pages.opened_cached(INO);
        pages.closed_cached(INO);
        assert_eq!(pages.ending(now, soon), [INO]);
    }

    /// Whatever makes a lease end: who recalls it waits for the pages that are still there.
    #[test]
    fn pages_are_waited_for_as_long_as_they_may_be_there() {
        let now = Instant::now();
        for end in [
            |pages: &mut Pages, _now| assert!(pages.changed_past(INO)),
            |pages: &mut Pages, _now| pages.lapse(INO),
            |pages: &mut Pages, _now| assert!(!pages.opened(INO, 0, None)),
            |pages: &mut Pages, now| assert!(!pages.opened(INO, 0, Some((9, now + TERM)))),
        ] {
            let mut pages = read_pages(now);
            end(&mut pages, now);
            assert!(pages.recalled(INO));
            pages = read_pages(now);
            pages.closed_cached(INO);
            assert!(!pages.changed_past(INO));
            assert!(!pages.recalled(INO), "nobody has it open");
        }
    }

    #[test]
    fn what_is_to_go_soon_is_noted_once_until_it_goes() {
        let mut pages = Pages::default();
        assert!(pages.drop_soon(INO));
        assert!(!pages.drop_soon(INO));
        pages.soon_begins(INO);
        assert!(pages.drop_soon(INO), "filled after the drop began");
        assert!(pages.owes(INO) && !pages.owes(Ino(8)));
        pages.soon_begins(INO);
        pages.paid(INO);
        assert!(pages.owes(INO), "the first has not been dropped yet, or the second");
        pages.paid(INO);
        assert!(!pages.owes(INO));
        assert!(pages.drop_soon(INO));
        pages.soon_begins(INO);
        assert!(pages.owes(INO), "until it has been dropped");
    }

    #[test]
    fn a_full_table_covers_nothing_new_while_all_are_open() {
        let now = Instant::now();
        let mut pages = Pages::default();
        for i in 0..KNOWN_MAX as u64 {
            pages.opened(Ino(i + 10), 0, Some((1, now + TERM)));
            pages.opened_cached(Ino(i + 10));
        }
        let noted = pages.recalls_of(INO);
        assert_eq!(pages.granted(INO, noted, 1, now + TERM), Granted::Gone);
        pages.closed_cached(Ino(10));
        assert_eq!(pages.granted(INO, noted, 1, now + TERM), Granted::Held);
    }
}
