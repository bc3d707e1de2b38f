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
                Step::Version(w, k) => {
                    leases.acting(session(w), oracle.now);
                    let version = leases.grant_version(Ino(k.into()), session(w));
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

fn key_ino(k: u8) -> Ino {
    Ino(k.into())
}
