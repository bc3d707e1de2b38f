//! The table of leases against a slow oracle that remembers every grant for ever.

#![forbid(unsafe_code)]

use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tidepool_fs_state::{Leases, Recall};
use tidepool_types::{FileKind, Ino, SessionId};
use tidepool_wire::message::{LEASE_TERM_MS, LeaseKey};
use tidepool_wire::record::{Dentry, Mutation};

const TERM: Duration = Duration::from_millis(LEASE_TERM_MS);

fn session(n: u8) -> SessionId {
    SessionId([n; 16])
}

#[derive(Clone, Debug)]
enum Step {
    Watch(u8),
    Unwatch(u8),
    GrantEntry(u8, u8),
    GrantAbsence(u8, u8),
    GrantPart(u8, u8),
    Version(u8, u8),
    Data(u8, u8),
    ChangeEntry(u8, u8),
    ChangeObject(u8, u8),
    Release(usize),
    BeginWrite(u8, u8),
    Lend(u8, u8),
    Back(u8),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0u8..3;
    let key = || 1u8..4;
    proptest::collection::vec(
        prop_oneof![
            2 => who().prop_map(Step::Watch),
            1 => who().prop_map(Step::Unwatch),
            3 => (who(), key()).prop_map(|(w, k)| Step::GrantEntry(w, k)),
            3 => (who(), key()).prop_map(|(w, k)| Step::GrantAbsence(w, k)),
            1 => (who(), key()).prop_map(|(w, k)| Step::GrantPart(w, k)),
            4 => (who(), key()).prop_map(|(w, k)| Step::Version(w, k)),
            4 => (who(), key()).prop_map(|(w, k)| Step::Data(w, k)),
            4 => (who(), key()).prop_map(|(w, k)| Step::ChangeEntry(w, k)),
            4 => (who(), key()).prop_map(|(w, k)| Step::ChangeObject(w, k)),
            6 => any::<usize>().prop_map(Step::Release),
            1 => (who(), key()).prop_map(|(w, k)| Step::BeginWrite(w, k)),
            1 => (who(), key()).prop_map(|(w, k)| Step::Lend(w, k)),
            1 => key().prop_map(Step::Back),
            3 => (0u64..1500).prop_map(Step::Wait),
        ],
        0..120,
    )
}

/// Everything that was ever granted and not given back, and what each session was told.
#[derive(Default)]
struct Oracle {
    now: Duration,
    watching: HashSet<u8>,
    /// Until when a session surely keeps a key.
    kept: HashMap<(LeaseKey, u8), Duration>,
    open: Vec<Recall>,
    /// Changes of an object by others since a session was told a version, if any.
    told: HashMap<(u8, u8), (u64, bool)>,
    lent: HashMap<u8, HashSet<u8>>,
}

impl Oracle {
    fn others_keep(&self, key: &LeaseKey, who: u8) -> bool {
        self.kept.iter().any(|((k, w), until)| k == key && *w != who && *until > self.now)
    }

    fn grant(&mut self, key: LeaseKey, who: u8) {
        self.kept.insert((key, who), self.now + TERM);
    }
}

fn entry(k: u8) -> LeaseKey {
    LeaseKey::Entry(Ino::ROOT, [k].into())
}

fn put_entry(k: u8) -> Mutation {
    let dentry = Dentry { ino: Ino(99), kind: FileKind::Regular, hold: None };
    Mutation::PutDentry { parent: Ino::ROOT, name: [k].into(), dentry }
}

proptest! {
    #[test]
    fn nothing_changes_that_somebody_else_keeps(steps in steps()) {
        let mut leases = Leases::new(1000);
        let mut oracle = Oracle::default();
        let mut numbers = HashSet::new();
        for step in steps {
            match step {
                Step::Watch(w) => {
                    leases.watch(session(w));
                    oracle.watching.insert(w);
                }
                Step::Unwatch(w) => {
                    leases.unwatch(session(w));
                    oracle.watching.remove(&w);
                }
                Step::GrantEntry(w, k) | Step::GrantAbsence(w, k) | Step::GrantPart(w, k) => {
                    leases.acting(session(w), oracle.now);
                    let (key, granted) = match step {
                        Step::GrantEntry(..) => (entry(k), leases.grant_entry(Ino::ROOT, &[k], session(w))),
                        Step::GrantAbsence(..) => (entry(k), leases.grant_absence(Ino::ROOT, &[k], session(w))),
                        _ => (LeaseKey::Part(Ino(k.into())), leases.grant_part(Ino(k.into()), session(w))),
                    };
                    if granted {
                        prop_assert!(oracle.watching.contains(&w), "granted to who cannot be recalled");
                        oracle.grant(key, w);
                    }
                }
                Step::Version(w, k) | Step::Data(w, k) => {
                    leases.acting(session(w), oracle.now);
                    let version = match step {
                        Step::Version(..) => leases.grant_version(Ino(k.into()), session(w)),
                        _ => leases.grant_data(Ino(k.into()), session(w)).unwrap_or(0),
                    };
                    if version == 0 {
                        continue;
                    }
                    prop_assert!(oracle.watching.contains(&w));
                    let lent = oracle.lent.get(&k).is_none_or(|by| by.iter().all(|b| *b == w));
                    prop_assert!(lent, "granted although another session writes it itself");
                    if let Some((before, changed)) = oracle.told.insert((w, k), (version, false)) {
                        prop_assert!(!changed || version != before, "an old version came again");
                    }
                    oracle.grant(LeaseKey::Object(Ino(k.into())), w);
                }
                Step::ChangeEntry(w, k) | Step::ChangeObject(w, k) => {
                    leases.acting(session(w), oracle.now);
                    let is_entry = matches!(step, Step::ChangeEntry(..));
                    let (key, batch) = match is_entry {
                        true => (entry(k), [put_entry(k)]),
                        false => (LeaseKey::Object(Ino(k.into())), [Mutation::DelInode(Ino(k.into()))]),
                    };
                    let free = leases.change(&batch);
                    prop_assert!(!free || !oracle.others_keep(&key, w), "changed what {key:?} promised");
                    if free {
                        leases.changed(&batch);
                        oracle.kept.retain(|(kept, who), _| *kept != key || *who == w);
                        if is_entry && oracle.watching.contains(&w) {
                            oracle.grant(key, w);
                        } else if !is_entry {
                            oracle.told.iter_mut().filter(|((who, at), _)| *at == k && *who != w).for_each(|(_, t)| t.1 = true);
                        }
                    }
                }
                Step::BeginWrite(w, k) => {
                    leases.acting(session(w), oracle.now);
                    let key = LeaseKey::Object(Ino(k.into()));
                    if leases.begin_write(key_ino(k)) {
                        prop_assert!(!oracle.others_keep(&key, w));
                        prop_assert_eq!(leases.grant_version(key_ino(k), session(w)), 0, "granted during a write");
                        prop_assert_eq!(leases.grant_data(key_ino(k), session(w)).unwrap_or(0), 0);
                        leases.end_write(key_ino(k));
                    }
                }
                Step::Lend(w, k) => {
                    leases.acting(session(w), oracle.now);
                    let key = LeaseKey::Object(key_ino(k));
                    if leases.lend(key_ino(k)) {
                        prop_assert!(!oracle.others_keep(&key, w));
                        oracle.lent.entry(k).or_default().insert(w);
                        oracle.kept.retain(|(kept, who), _| *kept != key || *who == w);
                        oracle.told.iter_mut().filter(|((who, at), _)| *at == k && *who != w).for_each(|(_, t)| t.1 = true);
                    }
                }
                Step::Back(k) => {
                    leases.lending_is_over(key_ino(k));
                    oracle.lent.remove(&k);
                }
                Step::Release(which) => {
                    if !oracle.open.is_empty() {
                        let recall = oracle.open.swap_remove(which % oracle.open.len());
                        leases.released(recall.session, recall.id);
                        // It may be about a grant that is over, and another one have come since.
                        let who = recall.session.0[0];
                        if !numbers.contains(&(recall.id, true)) {
                            oracle.kept.remove(&(recall.key, who));
                        }
                    }
                }
                Step::Wait(ms) => oracle.now += Duration::from_millis(ms),
            }
            for recall in leases.take_recalls() {
                prop_assert!(numbers.insert((recall.id, false)), "two recalls with one number");
                oracle.open.push(recall);
            }
        }
    }
}

const INO: Ino = Ino(5);
const MS: Duration = Duration::from_millis(1);

/// Two sessions that watch; the second keeps data of an object.
fn kept() -> Leases {
    let mut leases = Leases::new(1000);
    leases.watch(session(1));
    leases.watch(session(2));
    leases.acting(session(2), MS);
    assert!(leases.grant_data(INO, session(2)).is_some_and(|version| version != 0));
    leases
}

fn release_all(leases: &mut Leases) {
    for recall in leases.take_recalls() {
        leases.released(recall.session, recall.id);
    }
}

/// A change that met a lease comes before who wants the lease again, but not for ever.
#[test]
fn a_refused_change_has_its_turn() {
    let mut leases = kept();
    leases.acting(session(1), 2 * MS);
    assert!(!leases.begin_write(INO));
    release_all(&mut leases);
    leases.acting(session(2), 3 * MS);
    assert_eq!(leases.grant_data(INO, session(2)), None, "the change is still to come");
    leases.acting(session(1), 4 * MS);
    assert!(leases.begin_write(INO));
    leases.end_write(INO);
    assert!(leases.change(&[Mutation::DelInode(INO)]));
    leases.changed(&[Mutation::DelInode(INO)]);
    leases.acting(session(2), 5 * MS);
    assert!(leases.grant_data(INO, session(2)).is_some_and(|version| version != 0), "at once after it");
    // One that never comes again.
    leases.acting(session(1), 6 * MS);
    assert!(!leases.begin_write(INO));
    release_all(&mut leases);
    leases.acting(session(2), 100 * MS);
    assert!(leases.grant_data(INO, session(2)).is_some_and(|version| version != 0));
}

/// Writes one after the other, several at a time, do not keep a reader from a lease.
#[test]
fn who_waits_for_writes_has_the_next_turn() {
    let mut leases = kept();
    leases.acting(session(2), 2 * MS);
    assert!(leases.begin_write(INO), "its own lease is not in its way");
    leases.acting(session(1), 2 * MS);
    assert_eq!(leases.grant_data(INO, session(1)), None, "it is being written");
    leases.acting(session(2), 3 * MS);
    assert!(!leases.begin_write(INO), "somebody waits");
    leases.end_write(INO);
    leases.acting(session(1), 4 * MS);
    assert!(leases.grant_data(INO, session(1)).is_some_and(|version| version != 0));
    leases.acting(session(2), 5 * MS);
    assert!(!leases.begin_write(INO), "recalled first");
    release_all(&mut leases);
    assert!(leases.begin_write(INO));
    leases.acting(session(1), 5 * MS);
    assert_eq!(leases.grant_data(INO, session(1)), None);
    leases.acting(session(2), 60 * MS);
    assert!(leases.begin_write(INO), "who waited is gone");
}

/// A loan that was refused is no change that comes again.
#[test]
fn a_refused_loan_is_in_nobodys_way() {
    let mut leases = kept();
    leases.acting(session(1), 2 * MS);
    assert!(!leases.lend(INO));
    release_all(&mut leases);
    leases.acting(session(2), 3 * MS);
    assert!(leases.grant_data(INO, session(2)).is_some_and(|version| version != 0));
    leases.unwatch(session(2));
    assert_eq!(leases.grant_data(INO, session(2)), Some(0), "nobody could recall it");
}

fn key_ino(k: u8) -> Ino {
    Ino(k.into())
}
