//! What a store keeps back, and what it takes for growing.

use super::*;
use crate::meta::room::{self, KeptBack, SPARE_MIN};
use crate::meta::tables::Tables;
use proptest::prelude::*;
use std::io;
use std::sync::Mutex;
use tidepool_env::DiskFile;
use tidepool_wire::Field;

fn encoded(mutation: &Mutation) -> u64 {
    let mut bytes = Vec::new();
    mutation.put(&mut bytes);
    bytes.len() as u64
}

proptest! {
    /// What is counted while the tables change is what there is, and a snapshot of it has room.
    #[test]
    fn the_length_of_a_snapshot_is_known(steps in prop::collection::vec(super::oracle::mutation(), 0..200)) {
        let mut tables = Tables::default();
        for mutation in steps {
            tables.apply(mutation);
            prop_assert_eq!(tables.len(), tables.mutations().map(|m| room::of(&m)).sum::<u64>());
            prop_assert!(tables.len() >= tables.mutations().map(|m| encoded(&m)).sum::<u64>());
        }
    }
}

/// Of each kind the longest, with nothing left out.
#[test]
fn no_mutation_is_longer_than_what_is_counted() {
    let hold = Some(Hold { txn: TxnId([7; 16]), decider: 3, since: time(9) });
    let txn = TxnId([7; 16]);
    let mut inode = inode(1, u64::MAX);
    inode.target = vec![b't'; 4000].into();
    inode.xattrs = (0..50).map(|n| (vec![b'n'; n].into(), vec![b'v'; 10 * n].into())).collect();
    let name: Box<[u8]> = vec![b'n'; 255].into();
    let part = DirPart { entries: 1, subdirs: 1, changed: Some(time(4)), hold };
    let outcome = Outcome { committed: true, at: time(7), moved: Some((Ino(1), Ino(2))) };
    let dentry = Dentry { ino: Ino(1), kind: FileKind::Regular, hold };
    let all = [
        Mutation::PutInode(inode),
        Mutation::DelInode(Ino(1)),
        Mutation::PutDentry { parent: Ino(1), name: name.clone(), dentry },
        Mutation::DelDentry { parent: Ino(1), name },
        Mutation::PutDirPart { dir: Ino(1), part },
        Mutation::DelDirPart(Ino(1)),
        Mutation::PutOutcome { txn, outcome },
        Mutation::DelOutcome(txn),
        Mutation::NextCount(u64::MAX),
        Mutation::PutReap(Ino(1)),
        Mutation::DelReap(Ino(1)),
    ];
    for mutation in all {
        assert!(encoded(&mutation) <= room::of(&mutation), "{mutation:?}: {} bytes", encoded(&mutation));
    }
}

#[test]
fn what_removes_or_changes_does_not_grow() {
    for open in [memlog_opener(), lmdb_opener()] {
        let mut store = open();
        let name = |name: &[u8]| Mutation::DelDentry { parent: Ino(1), name: name.into() };
        store.commit(&[Mutation::PutInode(inode(5, 1)), put_dentry(1, b"name", 5)]).unwrap();
        let grows = |batch: &[Mutation]| room::grows(&store, batch);
        let mut linked = inode(5, 1);
        linked.attr.nlink = 2;
        linked.attr.size = u64::MAX;
        let mut more = inode(5, 1);
        more.xattrs.push((b"user.b".as_slice().into(), b"c".as_slice().into()));
        assert!(!grows(&[name(b"name"), Mutation::DelInode(Ino(5)), Mutation::PutReap(Ino(5))]));
        assert!(!grows(&[Mutation::PutInode(linked)]));
        assert!(!grows(&[put_dentry(1, b"name", 6)]), "it is held, or leads elsewhere");
        assert!(!grows(&[name(b"name"), put_dentry(2, b"eman", 5)]), "it is renamed");
        assert!(!grows(&[put_outcome(1, true), Mutation::DelReap(Ino(5))]));
        assert!(grows(&[put_dentry(1, b"other", 5)]));
        assert!(grows(&[name(b"name"), put_dentry(2, b"longer", 5)]));
        assert!(grows(&[Mutation::PutInode(inode(6, 1))]));
        assert!(grows(&[Mutation::PutInode(more)]));
        assert!(grows(&[name(b"nobody"), put_dentry(1, b"nobody2", 6)]), "what is not there gives nothing");
    }
}

/// A file on a disk with so many blocks left.
struct Small(Mutex<u64>);

impl DiskFile for Small {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        unreachable!("nothing is read")
    }
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        unreachable!("nothing is written")
    }
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn next_data(&self, _: u64) -> io::Result<Option<u64>> {
        Ok(None)
    }
    fn allocate(&self, _: u64, len: u64) -> io::Result<bool> {
        let mut left = self.0.lock().unwrap();
        *left = left.checked_sub(len).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
        Ok(true)
    }
}

/// Not all that is wanted: then what there is, lest others take it.
#[test]
fn a_disk_without_room_gives_what_it_has() {
    let wanted = 10 * SPARE_MIN;
    for left in [0, 1000, 100_000, SPARE_MIN, wanted - 1, wanted, 3 * wanted] {
        let (disk, mut kept) = (Small(Mutex::new(left)), KeptBack::default());
        let reached = kept.reach(&disk, (500, 500 + wanted), || *disk.0.lock().unwrap());
        assert_eq!(reached.is_ok(), left >= wanted, "{left}");
        assert!(kept.left(500) + (128 << 10) >= left.min(wanted), "{left}: {}", kept.left(500));
        if let Err(error) = reached {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            // Somebody makes room.
            *disk.0.lock().unwrap() += wanted;
            kept.reach(&disk, (500, 500 + wanted), || *disk.0.lock().unwrap()).unwrap();
        }
        assert!(kept.left(500) >= wanted && kept.release() && kept.left(500) == 0);
    }
}
