//! The state machine against a slow oracle: random requests, with restarts in between.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::time::Duration;
use tidepool_env::MemDisk;
use tidepool_fs_state::{Context, ORPHAN_GRACE, State, StateConfig};
use tidepool_store::MemLogStore;
use tidepool_types::{Errno, FileKind, Ino, Layout, SessionId, TimeSpec};
use tidepool_wire::message::{NewObject, Reply, Request};

const SESSION: SessionId = SessionId([1; 16]);

#[derive(Clone, Debug)]
enum Step {
    Create {
        dir: usize,
        name: u8,
        excl: bool,
        open: bool,
    },
    Mkdir {
        dir: usize,
        name: u8,
    },
    Link {
        file: usize,
        dir: usize,
        name: u8,
    },
    Unlink {
        dir: usize,
        name: u8,
    },
    Extend {
        file: usize,
        end: u64,
    },
    Close {
        file: usize,
    },
    EndSession,
    /// The process is killed and started again on its log.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (dir, name, file) = (0usize..4, 0u8..6, 0usize..8);
    prop_oneof![
        4 => (dir.clone(), name.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(dir, name, excl, open)| Step::Create { dir, name, excl, open }),
        1 => (dir.clone(), name.clone()).prop_map(|(dir, name)| Step::Mkdir { dir, name }),
        2 => (file.clone(), dir.clone(), name.clone()).prop_map(|(file, dir, name)| Step::Link { file, dir, name }),
        3 => (dir, name).prop_map(|(dir, name)| Step::Unlink { dir, name }),
        2 => (file.clone(), 0u64..1000).prop_map(|(file, end)| Step::Extend { file, end }),
        1 => file.prop_map(|file| Step::Close { file }),
        1 => Just(Step::EndSession),
        1 => Just(Step::Restart),
    ]
}

/// What the tables should hold.
#[derive(Default)]
struct Oracle {
    entries: BTreeMap<(Ino, u8), (Ino, FileKind)>,
    /// Link count, size, open handles.
    files: BTreeMap<Ino, (u32, u64, u64)>,
    dirs: Vec<Ino>,
}

struct Bench {
    disk: MemDisk,
    state: State<MemLogStore<MemDisk>>,
    now: i64,
}

impl Bench {
    fn new() -> Bench {
        let disk = MemDisk::new();
        Bench { state: open(&disk, 0), disk, now: 0 }
    }

    fn ask(&mut self, request: &Request) -> Reply {
        self.now += 1;
        let ctx = Context {
            now: TimeSpec { sec: self.now, nsec: 0 },
            session: SESSION,
            epoch: 0,
            keep: false,
            monotonic: Duration::from_secs(self.now as u64),
        };
        self.state.apply(&ctx, request)
    }

    fn end_session(&mut self) {
        self.state.session_ended(SESSION, Duration::from_secs(self.now as u64));
        self.now += ORPHAN_GRACE.as_secs() as i64 + 1;
        self.state.tick(Duration::from_secs(self.now as u64)).unwrap();
    }
}

fn open(disk: &MemDisk, now: i64) -> State<MemLogStore<MemDisk>> {
    let store = MemLogStore::open(disk.clone()).unwrap();
    let config = StateConfig { me: 0, uid: 1, gid: 1, epoch: 1, objects_max: 0 };
    State::open(store, &config, TimeSpec { sec: now, nsec: 0 }, Duration::from_secs(now as u64)).unwrap()
}

fn object(kind: FileKind) -> NewObject {
    NewObject {
        mode: kind.mode_bits() | 0o644,
        uid: 1,
        gid: 1,
        rdev: 0,
        layout: (kind == FileKind::Regular).then(Layout::default),
        target: Box::default(),
    }
}

fn name_of(name: u8) -> Box<[u8]> {
    vec![b'a' + name].into()
}

fn failed(reply: &Reply) -> Option<Errno> {
    if let Reply::Failed { errno, .. } = reply { Some(*errno) } else { None }
}

fn perform(bench: &mut Bench, oracle: &mut Oracle, step: &Step) {
    let dir_of = |oracle: &Oracle, i: usize| oracle.dirs[i % oracle.dirs.len()];
    let file_of = |oracle: &Oracle, i: usize| oracle.files.keys().nth(i % oracle.files.len().max(1)).copied();
    match step {
        Step::Create { dir, name, excl, open } => {
            let parent = dir_of(oracle, *dir);
            let request = Request::Create {
                parent,
                name: name_of(*name),
                object: object(FileKind::Regular),
                excl: *excl,
                open: *open,
            };
            let reply = bench.ask(&request);
            match (oracle.entries.get(&(parent, *name)).copied(), *excl) {
                (Some(_), true) => assert_eq!(failed(&reply), Some(Errno::EEXIST)),
                (Some((ino, kind)), false) => {
                    assert!(matches!(reply, Reply::Entry { ino: i, created: false, .. } if i == ino));
                    if *open && kind == FileKind::Regular {
                        oracle.files.get_mut(&ino).unwrap().2 += 1;
                    }
                }
                (None, _) => {
                    let Reply::Entry { ino, created: true, .. } = reply else { panic!("{reply:?}") };
                    assert!(!oracle.files.contains_key(&ino), "an id is given out once");
                    oracle.entries.insert((parent, *name), (ino, FileKind::Regular));
                    oracle.files.insert(ino, (1, 0, u64::from(*open)));
                }
            }
        }
        Step::Mkdir { dir, name } => {
            let parent = dir_of(oracle, *dir);
            let object = NewObject { mode: 0o040_755, ..object(FileKind::Directory) };
            let request = Request::Create { parent, name: name_of(*name), object, excl: true, open: false };
            let reply = bench.ask(&request);
            match oracle.entries.entry((parent, *name)) {
                Slot::Occupied(_) => assert_eq!(failed(&reply), Some(Errno::EEXIST)),
                Slot::Vacant(slot) => {
                    let Reply::Entry { ino, .. } = reply else { panic!("{reply:?}") };
                    slot.insert((ino, FileKind::Directory));
                    oracle.dirs.push(ino);
                }
            }
        }
        Step::Link { file, dir, name } => {
            let (Some(ino), parent) = (file_of(oracle, *file), dir_of(oracle, *dir)) else { return };
            if oracle.files[&ino].0 == 0 {
                assert_eq!(failed(&bench.ask(&Request::Nlink { ino, delta: 1 })), Some(Errno::ENOENT));
                return;
            }
            bench.ask(&Request::Nlink { ino, delta: 1 });
            let kind = FileKind::Regular;
            let reply = bench.ask(&Request::PutDentry { parent, name: name_of(*name), ino, kind });
            match oracle.entries.entry((parent, *name)) {
                Slot::Occupied(_) => {
                    assert_eq!(failed(&reply), Some(Errno::EEXIST));
                    bench.ask(&Request::Nlink { ino, delta: -1 });
                }
                Slot::Vacant(slot) => {
                    assert_eq!(reply, Reply::Done {});
                    slot.insert((ino, kind));
                    oracle.files.get_mut(&ino).unwrap().0 += 1;
                }
            }
        }
        Step::Unlink { dir, name } => {
            let parent = dir_of(oracle, *dir);
            let reply = bench.ask(&Request::Unlink { parent, name: name_of(*name) });
            match oracle.entries.get(&(parent, *name)).copied() {
                None => assert_eq!(failed(&reply), Some(Errno::ENOENT)),
                Some((_, FileKind::Directory)) => assert_eq!(failed(&reply), Some(Errno::EISDIR)),
                Some((ino, _)) => {
                    assert!(matches!(reply, Reply::Unlinked { attr: Some(_), .. }), "{reply:?}");
                    oracle.entries.remove(&(parent, *name));
                    let file = oracle.files.get_mut(&ino).unwrap();
                    file.0 -= 1;
                    if file.0 == 0 && file.2 == 0 {
                        oracle.files.remove(&ino);
                    }
                }
            }
        }
        Step::Extend { file, end } => {
            let Some(ino) = file_of(oracle, *file) else { return };
            bench.ask(&Request::Extend { ino, end: *end, blocks: 0 });
            let size = &mut oracle.files.get_mut(&ino).unwrap().1;
            *size = (*size).max(*end);
        }
        Step::Close { file } => {
            let Some(ino) = file_of(oracle, *file) else { return };
            bench.ask(&Request::Close { ino });
            let handles = &mut oracle.files.get_mut(&ino).unwrap().2;
            *handles = handles.saturating_sub(1);
        }
        Step::EndSession => {
            bench.end_session();
            oracle.files.values_mut().for_each(|file| file.2 = 0);
            oracle.files.retain(|_, file| file.0 > 0);
        }
        Step::Restart => {
            // All handles are forgotten; nameless objects go after a while.
            bench.state = open(&bench.disk, bench.now);
            bench.now += 60;
            bench.state.tick(Duration::from_secs(bench.now as u64)).unwrap();
            oracle.files.values_mut().for_each(|file| file.2 = 0);
            oracle.files.retain(|_, file| file.0 > 0);
        }
    }
}

fn compare(bench: &mut Bench, oracle: &Oracle) {
    for dir in &oracle.dirs {
        let Reply::Entries { entries, more: false } =
            bench.ask(&Request::List { dir: *dir, after: None, max: 1000 })
        else {
            panic!("a listing fits one page")
        };
        let listed: Vec<(u8, Ino)> = entries.iter().map(|(n, d)| (n[0] - b'a', d.ino)).collect();
        let expected: Vec<(u8, Ino)> = oracle
            .entries
            .iter()
            .filter(|((parent, _), _)| parent == dir)
            .map(|((_, name), (ino, _))| (*name, *ino))
            .collect();
        assert_eq!(listed, expected);
        let Reply::Part { part } = bench.ask(&Request::DirStat { dir: *dir }) else { panic!("a part") };
        let subdirs = entries.iter().filter(|(_, d)| d.kind == FileKind::Directory).count();
        assert_eq!((part.entries, part.subdirs), (entries.len() as u64, subdirs as u64));
    }
    for (ino, (nlink, size, _)) in &oracle.files {
        let Reply::Attributes { attr } = bench.ask(&Request::GetAttr { ino: *ino }) else {
            panic!("{ino} is missing")
        };
        assert_eq!((attr.nlink, attr.size), (*nlink, *size), "{ino}");
    }
    assert_eq!(bench.state.inode_count(), (oracle.files.len() + oracle.dirs.len()) as u64);
    let open: u64 = oracle.files.values().map(|file| file.2).sum();
    assert_eq!(bench.state.handle_count(), open);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_state_machine_matches_the_oracle(steps in proptest::collection::vec(step(), 1..80)) {
        let mut bench = Bench::new();
        let mut oracle = Oracle { dirs: vec![Ino::ROOT], ..Oracle::default() };
        for step in &steps {
            perform(&mut bench, &mut oracle, step);
            compare(&mut bench, &oracle);
        }
    }
}
