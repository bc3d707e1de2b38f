//! Wall clocks that jump: nothing that is needed is forgotten for a time that has not passed.

use std::time::Duration;
use tidepool_env::MemDisk;
use tidepool_fs_state::{Context, ORPHAN_GRACE, ORPHAN_GRACE_RESTART, OUTCOME_KEEP_MS, State, StateConfig};
use tidepool_store::MemLogStore;
use tidepool_types::{FileKind, Ino, Layout, SessionId, TimeSpec, TxnId};
use tidepool_wire::message::{NewObject, Reply, Request};

const SESSION: SessionId = SessionId([7; 16]);
const TODAY: i64 = 1_800_000_000;
const TEN_YEARS: i64 = 315_360_000;

/// A daemon whose wall clock says what it is told to.
struct Bench {
    state: State<MemLogStore<MemDisk>>,
    wall: i64,
    passed: Duration,
}

fn open(disk: &MemDisk, wall: i64, passed: Duration) -> Bench {
    let store = MemLogStore::open(disk.clone()).unwrap();
    let config = StateConfig { me: 0, uid: 1, gid: 1, epoch: 1, objects_max: 0 };
    let state = State::open(store, &config, TimeSpec { sec: wall, nsec: 0 }, passed).unwrap();
    Bench { state, wall, passed }
}

impl Bench {
    fn ask(&mut self, request: &Request) -> Reply {
        let now = TimeSpec { sec: self.wall, nsec: 0 };
        let ctx = Context { now, session: SESSION, epoch: 0, keep: false, monotonic: self.passed };
        self.state.apply(&ctx, request)
    }

    fn pass(&mut self, time: Duration) {
        self.passed += time;
        self.wall += time.as_secs() as i64;
        self.state.tick(self.passed).unwrap();
    }

    fn file(&mut self, name: &[u8]) -> Ino {
        let object = NewObject {
            mode: FileKind::Regular.mode_bits() | 0o644,
            uid: 1,
            gid: 1,
            rdev: 0,
            layout: Some(Layout::default()),
            target: Box::default(),
        };
        let request =
            Request::Create { parent: Ino::ROOT, name: name.into(), object, excl: true, open: true };
        let Reply::Entry { ino, .. } = self.ask(&request) else { panic!("it can be made") };
        ino
    }

    fn is_there(&mut self, ino: Ino) -> bool {
        matches!(self.ask(&Request::GetAttr { ino }), Reply::Attributes { .. })
    }
}

/// What a rename has decided is known for as long as somebody may ask, also to a daemon that starts again when the clock is ten years off.
#[test]
fn a_jump_forgets_no_decision() {
    for jump in [TEN_YEARS, -TEN_YEARS, 0] {
        let disk = MemDisk::new();
        let mut bench = open(&disk, TODAY, Duration::from_secs(100));
        let ino = bench.file(b"a");
        let txn = TxnId([3; 16]);
        let rename = Request::CommitRename {
            txn,
            parent: Ino::ROOT,
            name: b"b".as_slice().into(),
            ino,
            kind: FileKind::Regular,
            no_replace: false,
            replaces: None,
        };
        assert!(matches!(bench.ask(&rename), Reply::Replaced { .. }));
        let decided = |bench: &mut Bench| match bench.ask(&Request::Resolve { txn }) {
            Reply::Decided { committed, .. } => committed,
            other => panic!("{other:?}"),
        };
        bench.wall += jump;
        bench.pass(Duration::from_secs(1));
        assert!(decided(&mut bench), "{jump}");
        // Another daemon, by another clock.
        drop(bench);
        let mut bench = open(&disk, TODAY + jump, Duration::from_secs(5));
        bench.pass(Duration::from_secs(1));
        assert!(decided(&mut bench), "{jump} and a restart");
        bench.pass(Duration::from_millis(OUTCOME_KEEP_MS - 2000));
        assert!(decided(&mut bench));
        // And it is forgotten when the time has passed.
        bench.pass(Duration::from_millis(4000));
        assert!(!decided(&mut bench), "{jump}: nobody asks that late");
    }
}

/// A nameless file of a program stays until the program has had its time to come back.
#[test]
fn a_jump_ends_no_open_file() {
    let disk = MemDisk::new();
    let mut bench = open(&disk, TODAY, Duration::from_secs(100));
    let ino = bench.file(b"open");
    bench.ask(&Request::Unlink { parent: Ino::ROOT, name: b"open".as_slice().into() });
    bench.ask(&Request::Nlink { ino, delta: -1 });
    drop(bench);
    let mut bench = open(&disk, TODAY, Duration::from_secs(5));
    bench.wall += TEN_YEARS;
    bench.pass(ORPHAN_GRACE_RESTART - Duration::from_secs(1));
    assert!(bench.is_there(ino));
    bench.ask(&Request::Open { ino });
    bench.pass(ORPHAN_GRACE_RESTART);
    assert!(bench.is_there(ino), "it is open again");
    bench.ask(&Request::Close { ino });
    bench.wall -= 2 * TEN_YEARS;
    bench.pass(ORPHAN_GRACE + Duration::from_secs(1));
    assert!(!bench.is_there(ino), "a clock that is set back keeps nothing for ever");
}
