use super::*;
use proptest::prelude::*;

const PATH: PathHash = PathHash(*b"0123456789abcdef");

fn time(sec: i64) -> TimeSpec {
    TimeSpec { sec, nsec: 7 }
}

fn sample() -> [Record; 5] {
    let version = Version { size: 0x0102, mtime: time(3), ctime: time(-1), ino: 9 };
    [
        Record::File { path: PATH, size: 0x0102, mtime: time(3), crc: 0xdead_beef },
        Record::Begin { path: PATH, version },
        Record::Range { path: PATH, index: 5, crc: 0x0102_0304 },
        Record::Held { path: PATH, version, crc: 0x0102_0304 },
        Record::Removing,
    ]
}

#[test]
fn records_have_the_bytes_of_the_specification() {
    let file = [
        &[1, 40][..],
        b"0123456789abcdef",
        &[0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0],
        &[0xef, 0xbe, 0xad, 0xde],
    ];
    let begin = [
        &[2, 56][..],
        b"0123456789abcdef",
        &[0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0],
    ];
    let range = [&[3, 28][..], b"0123456789abcdef", &[5, 0, 0, 0, 0, 0, 0, 0], &[4, 3, 2, 1]];
    let held = [&[4, 60][..], &begin.concat()[2..], &[4, 3, 2, 1]];
    let removing = vec![5, 0];
    let bodies = [file.concat(), begin.concat(), range.concat(), held.concat(), removing];
    for (record, body) in sample().iter().zip(bodies) {
        let crc = crc32c::crc32c(&body).to_le_bytes();
        let bytes = [&body[..], &crc].concat();
        assert_eq!(record.encode(), bytes);
        assert_eq!(Record::decode(&bytes), Some((*record, bytes.len())));
    }
}

#[test]
fn the_header_has_the_bytes_of_the_specification() {
    let header = Header { token: *b"TOKEN678", job: *b"jobjobjobjobjob!" };
    let mut bytes = b"TPSTAGE\0\x01\0\0\0\0\0\0\0TOKEN678jobjobjobjobjob!".to_vec();
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(header.encode()[..], bytes[..]);
    assert_eq!(Header::decode(&bytes), Some(header));
    bytes[20] ^= 1;
    assert_eq!(Header::decode(&bytes), None);
}

#[test]
fn a_torn_tail_is_cut_and_the_rest_counts() {
    let whole: Vec<u8> = sample()[..3].iter().flat_map(Record::encode).collect();
    let last = sample()[2].encode().len();
    for cut in 1..last {
        let (past, len) = Past::replay(&whole[..whole.len() - cut]);
        assert_eq!(len, whole.len() - last);
        assert!(past.has_file(PATH, 0x0102, time(3)));
        assert_eq!(past.large(PATH).unwrap().ranges.len(), 0);
    }
}

#[test]
fn a_new_start_voids_the_ranges_before_it() {
    let [_, begin, range, ..] = sample();
    let bytes: Vec<u8> = [begin, range, begin].iter().flat_map(Record::encode).collect();
    assert!(Past::replay(&bytes).0.large(PATH).unwrap().ranges.is_empty());
}

#[test]
fn what_is_finished_is_held_no_more() {
    let [file, _, _, held, _] = sample();
    let replay = |records: &[Record]| {
        Past::replay(&records.iter().flat_map(Record::encode).collect::<Vec<_>>()).0.held(PATH).copied()
    };
    let Record::Held { version, crc, .. } = held else { panic!("the last one is") };
    assert_eq!(replay(&[file, held]), Some(PastHeld { version, crc }));
    assert_eq!(replay(&[held, file]), None);
}

#[test]
fn one_process_at_a_time_and_a_damaged_journal_starts_anew() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(dir.path(), [1; 16]).unwrap();
    first.append(&sample()[..1]).unwrap();
    assert!(matches!(Journal::open(dir.path(), [1; 16]), Err(JournalError::Busy(_))));
    let token = first.token;
    let path = first.path.clone();
    drop(first);
    let again = Journal::open(dir.path(), [1; 16]).unwrap();
    assert!(again.resumed && again.token == token && again.past.len() == 1);
    drop(again);
    std::fs::write(&path, b"rubbish").unwrap();
    let anew = Journal::open(dir.path(), [1; 16]).unwrap();
    assert!(!anew.resumed && anew.past.is_empty());
    anew.remove().unwrap();
    assert!(!path.exists());
}

/// Opened anew, as after a kill: a descriptor that is shared would read on where the last one ended.
fn lent(path: &std::path::Path) -> std::fs::File {
    std::fs::OpenOptions::new().read(true).append(true).create(true).open(path).unwrap()
}

#[test]
fn a_lent_file_is_used_again_by_the_same_copy_and_anew_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7.journal");
    let file = lent(&path);
    let first = Journal::of_file(&file, [1; 16], Some([9; 8])).unwrap();
    assert!(!first.resumed && first.token == [9; 8]);
    first.append(&sample()[..1]).unwrap();
    assert!(matches!(Journal::of_file(&lent(&path), [1; 16], None), Err(JournalError::Busy(_))));
    drop((first, file));
    let again = Journal::of_file(&lent(&path), [1; 16], Some([3; 8])).unwrap();
    assert!(again.resumed && again.token == [9; 8] && again.past.len() == 1);
    drop(again);
    let other = Journal::of_file(&lent(&path), [2; 16], Some([3; 8])).unwrap();
    assert!(!other.resumed && other.past.is_empty() && other.token == [3; 8]);
    other.append(&sample()[..1]).unwrap();
    other.remove().unwrap();
    drop(other);
    // Who lent it may have more to do, and removes it then: until that it says what was done.
    let kept = Journal::of_file(&lent(&path), [2; 16], None).unwrap();
    assert!(kept.resumed && kept.token == [3; 8] && kept.past.len() == 1);
}

/// What a hostile file would have a resumed copy read into memory.
#[test]
fn a_journal_is_bounded_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7.journal");
    let journal = Journal::of_file(&lent(&path), [1; 16], None).unwrap();
    lock(journal.file.as_ref().unwrap()).bytes = JOURNAL_BYTES_MAX - 10;
    journal.append(&sample()).unwrap();
    drop(journal);
    let len = std::fs::metadata(&path).unwrap().len();
    assert_eq!(len, HEADER_BYTES as u64, "it is full");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let journal = Journal::of_file(&lent(&path), [1; 16], None).unwrap();
    assert!(journal.past.is_empty() && journal.resumed);
}

proptest! {
    #[test]
    fn garbage_never_panics_and_is_never_longer_than_it_is(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Header::decode(&bytes);
        let (_, len) = Past::replay(&bytes);
        prop_assert!(len <= bytes.len());
    }

    #[test]
    fn damage_in_a_record_ends_the_replay_there(at in 0usize..46, bit in 0u8..8) {
        let mut bytes: Vec<u8> = sample().iter().flat_map(Record::encode).collect();
        bytes[at] ^= 1 << bit;
        let (past, len) = Past::replay(&bytes);
        prop_assert_eq!(len, 0);
        prop_assert!(past.is_empty());
    }
}

/// A child that another thread starts has the journal's file, too, until its exec: that must not keep out who does the same
/// copy next.
#[test]
fn a_copy_done_again_at_once_is_not_kept_out_by_what_other_threads_start() {
    let dir = tempfile::tempdir().unwrap();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::process::Command::new("true").status().unwrap();
            }
        });
        let opened = (0..3000).try_for_each(|_| Journal::open(dir.path(), [1; 16]).map(drop));
        ended.store(true, Ordering::Relaxed);
        opened.unwrap();
    });
}
