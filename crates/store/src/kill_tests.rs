//! Real deaths: the test starts itself again as a child process that changes a store on a real
//! file system and tells what was acknowledged; the parent ends it with `kill -9` at some
//! moment and looks at what is left.

use crate::{ChunkStore, LmdbOptions, LmdbStore, MemLogStore};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidepool_env::RealDisk;
use tidepool_fs_state::{MetaStore, MetaView};
use tidepool_types::{BLOCK_SIZE, Ino};
use tidepool_wire::record::Mutation;

const DIR_VARIABLE: &str = "TIDEPOOL_TEST_KILL_DIR";
const BLOCK: usize = BLOCK_SIZE as usize;
const BLOCKS: u64 = 64;

/// The directory to work in, when this process is the child.
fn child_dir() -> Option<String> {
    std::env::var(DIR_VARIABLE).ok()
}

fn acknowledge(number: u64) {
    let mut out = std::io::stderr().lock();
    writeln!(out, "ACK {number}").and_then(|()| out.flush()).expect("the parent listens");
}

/// Starts `test` as a child in `dir`, kills it after `acks` acknowledgements, returns the last.
fn run_and_kill(test: &str, dir: &Path, acks: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(DIR_VARIABLE, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let last = last_ack(&mut child, acks);
    child.wait().unwrap();
    last.unwrap_or_else(|| panic!("the child of {test} acknowledged nothing"))
}

fn last_ack(child: &mut Child, acks: usize) -> Option<u64> {
    let mut last = None;
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    for (count, line) in lines.map_while(Result::ok).enumerate() {
        if let Some(number) = line.strip_prefix("ACK ").and_then(|text| text.parse().ok()) {
            last = Some(number);
        }
        if count == acks {
            child.kill().unwrap();
            // Goes on to read what was acknowledged before the signal arrived.
        }
    }
    last
}

/// Proves that a metadata store whose process is killed holds every acknowledged commit, and
/// nothing but whole commits.
fn meta_survives(test: &str, open: impl Fn(&Path) -> Box<dyn MetaStore>) {
    if let Some(dir) = child_dir() {
        let mut store = open(dir.as_ref());
        for number in store.next_count().. {
            let name = number.to_le_bytes();
            let dentry = tidepool_wire::record::Dentry {
                ino: Ino(number),
                kind: tidepool_types::FileKind::Regular,
                hold: None,
            };
            let entry = Mutation::PutDentry { parent: Ino(1), name: name.as_slice().into(), dentry };
            store.commit(&[entry, Mutation::NextCount(number + 1)]).unwrap();
            acknowledge(number + 1);
            if number % 97 == 0 {
                store.compact().unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    for acks in [1, 50, 400, 1000] {
        let acknowledged = run_and_kill(test, dir.path(), acks);
        let store = open(dir.path());
        assert!(store.next_count() >= acknowledged);
        assert_eq!(store.list(Ino(1), None, usize::MAX).len() as u64, store.next_count() - 1);
    }
}

#[test]
fn memlog_survives_kill() {
    meta_survives("kill_tests::memlog_survives_kill", |dir| {
        let mut store = MemLogStore::open(RealDisk::new(dir).unwrap()).unwrap();
        store.set_compact_log_min(0);
        Box::new(store)
    });
}

#[test]
fn lmdb_survives_kill() {
    meta_survives("kill_tests::lmdb_survives_kill", |dir| {
        let options = LmdbOptions { map_bytes: 1 << 28, power_safe: false };
        Box::new(LmdbStore::open(dir, options).unwrap())
    });
}

/// Round `round` fills the object with this byte.
fn fill(round: u64) -> u8 {
    (round % 255) as u8 + 1
}

/// Proves that a process killed while it overwrites a large range leaves every block valid:
/// each holds the last acknowledged round or a later one.
#[test]
fn small_objects_survive_kill() {
    const OBJECTS: u64 = 8;
    if let Some(dir) = child_dir() {
        let store = ChunkStore::open(RealDisk::new(dir).unwrap()).unwrap();
        for round in 0.. {
            let ino = Ino(round % OBJECTS + 1);
            // They grow, move to files, and start anew.
            match round / OBJECTS % 5 {
                4 => {
                    store.drop_object(ino).unwrap();
                }
                step => {
                    let len = if step == 3 { 3 * BLOCK } else { 700 * (step as usize + 1) };
                    store.write(ino, 0, &vec![step as u8 + 1; len]).unwrap();
                }
            }
            acknowledge(round);
        }
    }
    for acks in [1, 30, 77, 200, 500, 1501] {
        let dir = tempfile::tempdir().unwrap();
        let round = run_and_kill("kill_tests::small_objects_survive_kill", dir.path(), acks);
        let store = ChunkStore::open(RealDisk::new(dir.path()).unwrap()).unwrap();
        let mut blocks = 0;
        for object in 0..OBJECTS {
            let ino = Ino(object + 1);
            assert_eq!(store.scrub(ino).unwrap(), []);
            let mut data = Vec::new();
            store.read(ino, 0, usize::MAX, &mut data).unwrap();
            // Rounds of this object that were acknowledged, and the one that may have been under way.
            let done = (round + OBJECTS - object) / OBJECTS;
            let lens = [done, done + 1].map(|rounds| match rounds {
                0 => 0,
                _ => [700, 1400, 2100, 3 * BLOCK, 0][(rounds - 1) as usize % 5],
            });
            // A write of several blocks may be cut short behind any of them.
            let cut = done % 5 == 3;
            assert!(cut || lens.contains(&data.len()), "{object} after round {round}: {} bytes", data.len());
            assert!(data.chunks(BLOCK).all(|block| block.iter().all(|byte| *byte == block[0])), "torn");
            blocks += data.len().div_ceil(BLOCK) as u64;
        }
        assert_eq!(store.usage().unwrap().blocks, blocks);
    }
}

#[test]
fn chunks_survive_kill() {
    if let Some(dir) = child_dir() {
        let store = ChunkStore::open(RealDisk::new(dir).unwrap()).unwrap();
        let mut first = Vec::new();
        store.read(Ino(5), 0, 1, &mut first).unwrap();
        for round in first.first().map_or(1, |byte| u64::from(*byte)).. {
            store.write(Ino(5), 0, &vec![fill(round); BLOCKS as usize * BLOCK]).unwrap();
            acknowledge(round);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    for acks in [1, 30, 77, 200, 500] {
        let round = run_and_kill("kill_tests::chunks_survive_kill", dir.path(), acks);
        let store = ChunkStore::open(RealDisk::new(dir.path()).unwrap()).unwrap();
        assert_eq!(store.scrub(Ino(5)).unwrap(), []);
        let mut data = Vec::new();
        store.read(Ino(5), 0, usize::MAX, &mut data).unwrap();
        assert_eq!(data.len() as u64, BLOCKS * u64::from(BLOCK_SIZE));
        for block in data.chunks(BLOCK) {
            assert!([fill(round), fill(round + 1), fill(round + 2)].contains(&block[0]));
            assert!(block.iter().all(|byte| *byte == block[0]), "a block is torn");
        }
    }
}
