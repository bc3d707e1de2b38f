//! Checks go through all records, page by page, while programs make and remove some.

use std::collections::BTreeSet;
use std::time::Duration;
use tidepool_env::MemDisk;
use tidepool_fs_state::{Context, State, StateConfig};
use tidepool_store::MemLogStore;
use tidepool_types::{FileKind, Ino, Layout, SessionId, TimeSpec};
use tidepool_wire::message::{NewObject, Reply, Request};
use tidepool_wire::record::{Inode, Mutation};

const ME: u16 = 3;
const NOW: TimeSpec = TimeSpec { sec: 1_800_000_000, nsec: 0 };

struct Bench(State<MemLogStore<MemDisk>>);

impl Bench {
    /// With a record of another daemon's, below ours and above.
    fn new() -> Bench {
        use tidepool_fs_state::{MetaStore, MetaView};
        let mut store = MemLogStore::open(MemDisk::new()).unwrap();
        let mut other = open(MemLogStore::open(MemDisk::new()).unwrap(), 0);
        let Reply::Object { inode } = other.ask(&Request::GetInode { ino: Ino::ROOT }) else { panic!() };
        for home in [1, 9] {
            let mut astray: Inode = inode.clone();
            astray.attr.ino = Ino::new(home, 77);
            store.commit(&[Mutation::PutInode(astray)]).unwrap();
        }
        assert_eq!(store.inode_count(), 2);
        open(store, ME)
    }

    fn ask(&mut self, request: &Request) -> Reply {
        let ctx = Context {
            now: NOW,
            session: SessionId([7; 16]),
            epoch: 0,
            keep: false,
            monotonic: Duration::from_secs(1),
        };
        self.0.apply(&ctx, request)
    }

    fn make(&mut self) -> Ino {
        let object = NewObject {
            mode: FileKind::Regular.mode_bits() | 0o644,
            uid: 1,
            gid: 1,
            rdev: 0,
            layout: Some(Layout::default()),
            target: Box::default(),
        };
        match self.ask(&Request::MakeObject { object, open: true }) {
            Reply::Attributes { attr } => attr.ino,
            other => panic!("{other:?}"),
        }
    }

    fn page(&mut self, after: Option<Ino>) -> (Vec<Ino>, bool) {
        match self.ask(&Request::ScanInodes { after, max: 2_000 }) {
            Reply::Inodes { inodes, more } => (inodes.iter().map(|inode| inode.attr.ino).collect(), more),
            other => panic!("{other:?}"),
        }
    }
}

fn open(store: MemLogStore<MemDisk>, me: u16) -> Bench {
    let config = StateConfig { me, uid: 1, gid: 1, epoch: 1, objects_max: 0 };
    Bench(State::open(store, &config, NOW, Duration::ZERO).unwrap())
}

/// As the check does. Who makes a thousand objects for each page is not followed for ever.
#[test]
fn a_scan_ends_however_fast_objects_are_made() {
    let mut bench = Bench::new();
    let there: BTreeSet<Ino> =
        (0..3_000).map(|_| bench.make()).chain([Ino::new(1, 77), Ino::new(9, 77)]).collect();
    let (mut seen, mut after, mut pages) = (BTreeSet::new(), None, 0);
    loop {
        let (page, more) = bench.page(after);
        pages += 1;
        assert!(pages < 20, "the scan follows what is made");
        assert!(page.is_sorted() && page.iter().all(|ino| seen.insert(*ino)), "each once, in order");
        after = page.last().copied();
        (0..1_000).for_each(|_| _ = bench.make());
        if !more || after.is_none() {
            break;
        }
    }
    assert!(there.is_subset(&seen), "what was there is seen, also what is here by mistake");
    assert!(seen.len() <= there.len() + 1_000, "{}", seen.len());
    // The next one sees all.
    let (mut count, mut after) = (0, None);
    loop {
        let (page, more) = bench.page(after);
        (count, after) = (count + page.len(), page.last().copied());
        if !more || after.is_none() {
            break;
        }
    }
    assert_eq!(count, there.len() + pages * 1_000);
}
