//! An object on several tiers is to its users what it would be on one, at every moment and after every crash.

use super::*;
use proptest::prelude::*;
use tidepool_env::{DiskFile, FaultyDisk, ForgetfulDisk, MemDisk, OpenMode};

const INO: Ino = Ino(0x0003_0000_0000_0142);
const BLOCK: u64 = BLOCK_SIZE as u64;
const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn open<D: Disk>(disks: &[D]) -> Tiers<D> {
    Tiers::open(disks.iter().map(|disk| ChunkStore::open(disk.clone()).unwrap()).collect()).unwrap()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 251) as u8 ^ seed | 1).collect()
}

fn read_all<D: Disk>(tiers: &Tiers<D>, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    tiers.read(ino, 0, 8 << 20, &mut out).unwrap();
    out
}

/// Without zeros at the end: how far holes reach there, no store says.
fn trimmed(mut data: Vec<u8>) -> Vec<u8> {
    let len = data.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    data.truncate(len);
    data
}

/// Every unit is on one tier.
fn assert_whole<D: Disk>(tiers: &Tiers<D>, ino: Ino) {
    for unit in 0..8 {
        let on: Vec<usize> = (0..tiers.count())
            .filter(|tier| !tiers.stored(*tier, ino, unit * UNIT, UNIT).unwrap().is_empty())
            .collect();
        assert!(on.len() <= 1, "unit {unit} is on tiers {on:?}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write { at: u64, len: usize, seed: u8, to: usize },
    Trim { size: u64 },
    Punch { at: u64, len: u64 },
    Move { unit: u64, count: u64, from: usize, to: usize },
    Drop,
    Reopen,
}

const SPAN: u64 = 3 * UNIT + 5000;

fn op() -> impl Strategy<Value = Op> {
    let tier = 0..TIERS_MAX;
    prop_oneof![
        6 => (0..SPAN, prop_oneof![1..200usize, 3000..20_000usize, 400_000..700_000usize], any::<u8>(), tier.clone())
            .prop_map(|(at, len, seed, to)| Op::Write { at, len, seed, to }),
        1 => (0..SPAN).prop_map(|size| Op::Trim { size }),
        1 => (0..SPAN, 1..SPAN).prop_map(|(at, len)| Op::Punch { at, len }),
        4 => (0..4u64, 1..4u64, tier.clone(), tier).prop_map(|(unit, count, from, to)| Op::Move { unit, count, from, to }),
        1 => Just(Op::Drop),
        1 => Just(Op::Reopen),
    ]
}

/// What the operation makes of plain bytes.
fn expect(data: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write { at, len, seed, .. } => {
            let (at, end) = (*at as usize, *at as usize + len);
            data.resize(data.len().max(end), 0);
            data[at..end].copy_from_slice(&pattern(*len, *seed));
        }
        Op::Trim { size } => data.truncate(*size as usize),
        Op::Punch { at, len } => {
            let end = ((at + len) as usize).min(data.len());
            data[(*at as usize).min(end)..end].fill(0);
        }
        Op::Drop => data.clear(),
        Op::Move { .. } | Op::Reopen => {}
    }
}

fn act<D: Disk>(tiers: &Tiers<D>, op: &Op) -> Result<(), StoreError> {
    match op {
        Op::Write { at, len, seed, to } => tiers.write(INO, *at, &pattern(*len, *seed), *to).map(drop),
        Op::Trim { size } => tiers.trim(INO, *size).map(drop),
        Op::Punch { at, len } => tiers.punch(INO, *at, *len).map(drop),
        Op::Move { from, to, .. } if from == to => Ok(()),
        Op::Move { unit, count, from, to } => tiers.move_units(INO, *unit, *count, *from, *to).map(drop),
        Op::Drop => tiers.drop_object(INO).map(drop),
        Op::Reopen => Ok(()),
    }
}

/// A tier drops the block in which a punch ends if its data end there too, while the object goes on in another tier
/// (format 3 §7). Then the block has only zeros, and one store, which knew more data behind it, may drop it as well.
fn drop_where_a_tier_ends<D: Disk>(tiers: &Tiers<D>, one: &Tiers<D>, data: &[u8], end: u64) {
    let block = end / BLOCK * BLOCK;
    let stored =
        |store: &Tiers<D>| store.extents(INO, block, 1).unwrap().first().is_some_and(|(at, _)| *at == block);
    if stored(one) && !stored(tiers) {
        let from = data.len().min(block as usize);
        assert!(data[from..].iter().take(BLOCK as usize).all(|byte| *byte == 0), "dropped at {block}");
        one.punch(INO, block, BLOCK).unwrap();
    }
}

fn assert_as_one(ops: &[Op]) {
    let disks = [MemDisk::new(), MemDisk::new(), MemDisk::new()];
    let one = Tiers::single(ChunkStore::open(MemDisk::new()).unwrap());
    let mut tiers = open(&disks);
    let mut data = Vec::new();
    for op in ops {
        if matches!(op, Op::Reopen) {
            tiers = open(&disks);
        }
        act(&tiers, op).unwrap();
        if !matches!(op, Op::Move { .. }) {
            act(&one, op).unwrap();
        }
        expect(&mut data, op);
        if let Op::Punch { at, len } = op {
            drop_where_a_tier_ends(&tiers, &one, &data, at + len);
        }
        assert!(trimmed(read_all(&tiers, INO)) == trimmed(data.clone()), "after {:?}", op);
        assert_eq!(tiers.blocks(INO).unwrap(), one.blocks(INO).unwrap(), "after {:?}", op);
        assert_eq!(tiers.stored_blocks(), one.stored_blocks());
        assert_eq!(
            tiers.missing_blocks(INO, 1000, 600_000).unwrap(),
            one.missing_blocks(INO, 1000, 600_000).unwrap()
        );
        let there = tiers.objects(None, 10).unwrap();
        assert!(there.len() <= 1 && (there == [INO] || one.blocks(INO).unwrap() == 0), "after {:?}", op);
        assert_whole(&tiers, INO);
    }
    let ends =
        |tiers: &Tiers<MemDisk>| tiers.extents(INO, 0, 4096).unwrap().iter().map(|(_, len)| len).sum::<u64>();
    assert_eq!(ends(&tiers), ends(&one));
    assert_eq!(tiers.scrub(INO).unwrap(), []);
}

#[test]
fn a_tier_may_end_in_the_block_where_a_punch_ends() {
    let ops = [
        Op::Write { at: UNIT, len: 1, seed: 0, to: 1 },
        Op::Write { at: 53_065, len: 184, seed: 0, to: 0 },
        Op::Punch { at: 44_967, len: 8282 },
    ];
    assert_as_one(&ops);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn tiers_are_as_one_store(ops in prop::collection::vec(op(), 1..25)) {
        assert_as_one(&ops);
    }

    /// The power fails: what was synced is there, wherever it has moved since.
    #[test]
    fn what_was_synced_survives_a_power_failure(ops in prop::collection::vec(op(), 1..12), synced in 0..12usize) {
        let disks = [ForgetfulDisk::new(), ForgetfulDisk::new(), ForgetfulDisk::new()];
        let tiers = open(&disks);
        let (before, after) = ops.split_at(synced.min(ops.len()));
        let mut data = Vec::new();
        for op in before {
            act(&tiers, op).unwrap();
            expect(&mut data, op);
        }
        tiers.sync(INO).unwrap();
        for op in after.iter().filter(|op| matches!(op, Op::Move { .. })) {
            act(&tiers, op).unwrap();
        }
        disks.iter().for_each(ForgetfulDisk::crash);
        let tiers = open(&disks);
        prop_assert!(trimmed(read_all(&tiers, INO)) == trimmed(data));
        assert_whole(&tiers, INO);
    }
}

/// What is written to a unit after it has moved, and synced, is not undone by what its old tier still had.
#[test]
fn a_synced_write_after_a_move_survives_a_power_failure() {
    let disks = [ForgetfulDisk::new(), ForgetfulDisk::new()];
    let tiers = open(&disks);
    tiers.write(INO, 0, &pattern(3 * BLOCK as usize, 1), 0).unwrap();
    tiers.sync(INO).unwrap();
    tiers.move_units(INO, 0, 1, 0, 1).unwrap();
    tiers.write(INO, BLOCK, &pattern(BLOCK as usize, 9), 0).unwrap();
    tiers.sync(INO).unwrap();
    disks.iter().for_each(ForgetfulDisk::crash);
    let mut expected = pattern(3 * BLOCK as usize, 1);
    expected[BLOCK as usize..2 * BLOCK as usize].copy_from_slice(&pattern(BLOCK as usize, 9));
    assert!(read_all(&open(&disks), INO) == expected);
}

/// The process dies at each call of a move, on either side: nothing is lost, and the unit is whole again afterwards.
#[test]
fn a_move_may_end_anywhere() {
    for side in 0..2 {
        for at in 0.. {
            let disks = [FaultyDisk::new(MemDisk::new()), FaultyDisk::new(MemDisk::new())];
            let tiers = open(&disks);
            let data = pattern(UNIT as usize + 70_000, 3);
            tiers.write(INO, 0, &data, 0).unwrap();
            // A hole, so that a move has several ranges.
            tiers.punch(INO, 8 * BLOCK, 4 * BLOCK).unwrap();
            let mut expected = data;
            expected[8 * BLOCK as usize..12 * BLOCK as usize].fill(0);
            disks[side].set_fault(Some(tidepool_env::Fault::from(at, EIO)));
            let moved = tiers.move_units(INO, 0, 2, 0, 1);
            let calls = disks[side].calls();
            drop(tiers);
            let left: Vec<MemDisk> = disks.iter().map(|disk| disk.inner().clone()).collect();
            let tiers = open(&left);
            assert!(read_all(&tiers, INO) == expected, "side {side}, call {at}");
            assert_whole(&tiers, INO);
            assert_eq!(tiers.scrub(INO).unwrap(), []);
            // It goes on where it was.
            tiers.move_units(INO, 0, 2, 0, 1).unwrap();
            assert!(read_all(&tiers, INO) == expected);
            assert_eq!(tiers.own().blocks(INO).unwrap(), 0);
            if calls <= at {
                moved.unwrap();
                break;
            }
        }
    }
}

/// The process dies at each call of a first write, which leaves blocks that are begun and hold nothing: a move takes all that
/// counts as stored, or a flush would wait for it for ever.
#[test]
fn a_first_write_may_end_anywhere() {
    let mut hollow = 0;
    for at in 0.. {
        let disks = [FaultyDisk::new(MemDisk::new()), FaultyDisk::new(MemDisk::new())];
        let tiers = open(&disks);
        let data = pattern(UNIT as usize + 70_000, 3);
        disks[0].set_fault(Some(tidepool_env::Fault::from(at, EIO)));
        let written = tiers.write(INO, 0, &data, 0);
        let calls = disks[0].calls();
        drop(tiers);
        let left: Vec<MemDisk> = disks.iter().map(|disk| disk.inner().clone()).collect();
        let tiers = open(&left);
        hollow += usize::from(
            tiers.own().stored_blocks() > 0 && tiers.stored(0, INO, 0, 2 * UNIT).unwrap().is_empty(),
        );
        let found = read_all(&tiers, INO);
        tiers.move_units(INO, 0, 2, 0, 1).unwrap();
        assert_eq!(
            (tiers.own().stored_blocks(), tiers.own().objects(None, 1).unwrap()),
            (0, vec![]),
            "call {at}"
        );
        assert!(trimmed(read_all(&tiers, INO)) == trimmed(found), "call {at}");
        assert_eq!(tiers.scrub(INO).unwrap(), []);
        if calls <= at {
            written.unwrap();
            break;
        }
    }
    assert!(hollow > 0, "no write ended between checksums and data");
}

/// A damaged block whose first write was cut short is not taken for one that holds nothing: a move tells of it, and leaves it there.
#[test]
fn a_damaged_block_is_not_given_up() {
    let disk = FaultyDisk::new(MemDisk::new());
    let hollow = (0..).find_map(|at| {
        let tiers = open(&[disk.clone(), FaultyDisk::new(MemDisk::new())]);
        tiers.drop_object(INO).unwrap();
        disk.set_fault(Some(tidepool_env::Fault::from(at, EIO)));
        let written = tiers.write(INO, 0, &pattern(90_000, 5), 0);
        disk.set_fault(None);
        assert!(written.is_err(), "no write ended between checksums and data");
        let found = [disk.inner().deep_copy(), MemDisk::new()];
        let left = open(&found);
        (left.own().stored_blocks() > 0 && left.stored(0, INO, 0, UNIT).unwrap().is_empty()).then_some(found)
    });
    let disks = hollow.expect("one was");
    disks[0].open("data/42/0003000000000142", OpenMode::Existing).unwrap().write_at(&[7; 9], 5000).unwrap();
    let tiers = open(&disks);
    assert_eq!(tiers.move_units(INO, 0, 1, 0, 1).unwrap_err().kind, StoreErrorKind::Corrupt);
    assert!(tiers.own().stored_blocks() > 0);
    assert_eq!(tiers.scrub(INO).unwrap().len(), 1);
}

/// A lower tier that fails for good: what lies above is read and written as before.
#[test]
fn a_move_that_fails_changes_nothing_for_readers() {
    let disks = [FaultyDisk::new(MemDisk::new()), FaultyDisk::new(MemDisk::new())];
    let tiers = open(&disks);
    let data = pattern(90_000, 5);
    tiers.write(INO, 0, &data, 0).unwrap();
    disks[1].set_fault(Some(tidepool_env::Fault::from(2, ENOSPC)));
    assert_eq!(tiers.move_units(INO, 0, 1, 0, 1).unwrap_err().kind, StoreErrorKind::NoSpace);
    assert!(read_all(&tiers, INO) == data);
    // Written meanwhile: the copy below is old.
    tiers.write(INO, 5000, b"newer", 1).unwrap();
    assert_eq!(tiers.move_units(INO, 0, 1, 0, 1).unwrap_err().kind, StoreErrorKind::NoSpace);
    disks[1].set_fault(None);
    tiers.move_units(INO, 0, 1, 0, 1).unwrap();
    let mut expected = data;
    expected[5000..5005].copy_from_slice(b"newer");
    assert!(read_all(&tiers, INO) == expected);
    assert_whole(&tiers, INO);
}

/// What a failed move has left below is never taken for what counts, whatever moves next.
#[test]
fn leftovers_of_a_move_are_not_moved_on() {
    let disks =
        [FaultyDisk::new(MemDisk::new()), FaultyDisk::new(MemDisk::new()), FaultyDisk::new(MemDisk::new())];
    let fail_at = (0..).find(|at| {
        let tiers = open(&disks);
        tiers.drop_object(INO).unwrap();
        let mut data = pattern(UNIT as usize + 90_000, 5);
        tiers.write(INO, 0, &data, 0).unwrap();
        disks[1].set_fault(Some(tidepool_env::Fault::from(*at, EIO)));
        let moved = tiers.move_units(INO, 0, 2, 0, 1);
        if moved.is_ok() {
            disks[1].set_fault(None);
        }
        // Written meanwhile: what lies below is old now.
        tiers.write(INO, 5000, b"newer", 1).unwrap();
        data[5000..5005].copy_from_slice(b"newer");
        disks[1].set_fault(None);
        for (from, to) in [(1, 0), (1, 2), (0, 2), (1, 2), (2, 1), (1, 0)] {
            tiers.move_units(INO, 0, 2, from, to).unwrap();
            assert!(read_all(&tiers, INO) == data, "fault at {at}, after {from} to {to}");
        }
        assert_whole(&tiers, INO);
        moved.is_ok()
    });
    assert!(fail_at.is_some_and(|calls| calls > 5));
}

/// A full tier is no error while a lower one has room.
#[test]
fn what_finds_no_room_goes_below() {
    let disks = [MemDisk::with_capacity(300_000), MemDisk::with_capacity(300_000), MemDisk::new()];
    let tiers = open(&disks);
    let data = pattern(2 << 20, 7);
    for (n, part) in data.chunks(100_000).enumerate() {
        tiers.write(INO, n as u64 * 100_000, part, 0).unwrap();
    }
    assert!(read_all(&tiers, INO) == data);
    assert_whole(&tiers, INO);
    assert!(tiers.tier(2).stored_blocks() > 0);
    let full = [MemDisk::with_capacity(300_000), MemDisk::with_capacity(300_000)];
    let error = open(&full).write(INO, 0, &data, 0).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NoSpace);
}

/// Readers, writers and a mover on one object at once.
#[test]
fn an_object_is_used_while_it_moves() {
    let tiers = open(&[MemDisk::new(), MemDisk::new(), MemDisk::new()]);
    let units = 6;
    let data = pattern((units * UNIT) as usize, 1);
    tiers.write(INO, 0, &data, 0).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..60u64 {
                let (from, to) = [(0, 1), (1, 2), (2, 0)][(round / units) as usize % 3];
                tiers.move_units(INO, round % units, 1, from, to).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            // The same bytes again: whatever a reader finds, it is these.
            for n in (0..units * 4).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                let at = (n * UNIT / 4) as usize;
                tiers.write(INO, at as u64, &data[at..at + 10_000], (n % 3) as usize).unwrap();
            }
        });
        scope.spawn(|| {
            // Every second one lies on two units.
            let mut buf = vec![0; UNIT as usize];
            for n in (0..units * 2 - 1).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                let at = (n * UNIT / 2) as usize;
                assert_eq!(tiers.read_into(INO, at as u64, &mut buf).unwrap(), buf.len());
                assert!(buf == data[at..at + buf.len()], "at {at}");
            }
        });
    });
    assert!(read_all(&tiers, INO) == data);
    assert_whole(&tiers, INO);
}
