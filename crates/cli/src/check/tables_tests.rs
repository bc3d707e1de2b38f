use super::*;
use tidepool_placement::entry_owner;
use tidepool_types::{Attr, TxnId};

const DIR: Ino = Ino(10);
const FILE: Ino = Ino(11);

fn chunks() -> Layout {
    Layout::wide(8192, 0).unwrap()
}

fn placer(members: usize) -> Placer {
    Placer::new(members, &[]).unwrap()
}

fn inode(ino: Ino, kind: FileKind, nlink: u32, parent: Ino) -> Inode {
    let time = TimeSpec::default();
    let attr = Attr {
        ino,
        mode: kind.mode_bits() | 0o755,
        nlink,
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        layout: (kind == FileKind::Regular).then(chunks),
    };
    Inode { attr, parent, target: Box::default(), xattrs: Vec::new() }
}

fn entry(ino: Ino, kind: FileKind) -> Dentry {
    Dentry { ino, kind, hold: None }
}

fn hold() -> Option<Hold> {
    Some(Hold { txn: TxnId([7; 16]), decider: 0, since: TimeSpec::default() })
}

/// Root, `/d` and `/d/f` on one daemon, without the entries.
fn records() -> Tables {
    let mut tables = Tables::new(placer(1));
    tables.add_inode(0, &inode(Ino::ROOT, FileKind::Directory, 2, Ino::ROOT));
    tables.add_inode(0, &inode(DIR, FileKind::Directory, 2, Ino::ROOT));
    tables.add_inode(0, &inode(FILE, FileKind::Regular, 1, Ino::ROOT));
    tables
}

fn sound() -> Tables {
    let mut tables = records();
    tables.add_entry(0, Ino::ROOT, b"d", &entry(DIR, FileKind::Directory));
    tables.add_entry(0, DIR, b"f", &entry(FILE, FileKind::Regular));
    tables
}

fn part(dir: Ino, told: (u64, u64), listed: (u64, u64)) -> Part {
    let told = DirPart { entries: told.0, subdirs: told.1, ..DirPart::default() };
    Part { daemon: 0, dir, told, entries: listed.0, subdirs: listed.1 }
}

#[track_caller]
fn assert_finds(tables: &Tables, wanted: &[What]) {
    let found: Vec<What> = tables.findings().iter().map(|f| f.subject.what).collect();
    assert_eq!(found, wanted, "{:?}", tables.findings());
}

#[test]
fn a_sound_pool_has_no_findings() {
    let mut tables = sound();
    tables.add_part(part(DIR, (1, 0), (1, 0)));
    tables.objects.get_mut(&FILE).unwrap().size = 5000;
    tables.objects.get_mut(&FILE).unwrap().blocks = 2;
    tables.add_stored(0, FILE, 2, &[]);
    tables.add_ranges(0, FILE, &[(0, 8192)]);
    assert_finds(&tables, &[]);
}

#[test]
fn no_root() {
    let mut tables = Tables::new(placer(1));
    assert_finds(&tables, &[What::NoRoot]);
    tables.add_inode(0, &inode(Ino::ROOT, FileKind::Directory, 2, DIR));
    assert_finds(&tables, &[What::NoRoot]);
}

#[test]
fn an_entry_without_object_is_named_by_its_path() {
    let mut tables = sound();
    tables.add_entry(0, DIR, b"gone", &entry(Ino(99), FileKind::Regular));
    assert_finds(&tables, &[What::DanglingEntry]);
    assert_eq!(tables.path_of(&tables.findings()[0].subject).as_deref(), Some("/d/gone"));
}

#[test]
fn an_entry_of_another_kind() {
    let mut tables = records();
    tables.add_entry(0, Ino::ROOT, b"d", &entry(DIR, FileKind::Directory));
    tables.add_entry(0, DIR, b"f", &entry(FILE, FileKind::Symlink));
    assert_finds(&tables, &[What::WrongKind, What::TooFewNames]);
}

#[test]
fn entries_and_records_on_the_wrong_daemon() {
    let mut tables = Tables::new(placer(2));
    tables.add_inode(0, &inode(Ino::ROOT, FileKind::Directory, 2, Ino::ROOT));
    tables.add_inode(1, &inode(FILE, FileKind::Regular, 1, Ino::ROOT));
    let wrong = 1 - entry_owner(Ino::ROOT, b"f", 2);
    tables.add_entry(wrong, Ino::ROOT, b"f", &entry(FILE, FileKind::Regular));
    let mut found: Vec<What> = tables.findings().iter().map(|f| f.subject.what).collect();
    found.sort();
    assert_eq!(found, [What::MisplacedEntry, What::MisplacedObject]);
}

#[test]
fn link_counts() {
    let mut tables = sound();
    tables.add_entry(0, DIR, b"g", &entry(FILE, FileKind::Regular));
    assert_finds(&tables, &[What::TooManyNames]);
    tables.objects.get_mut(&FILE).unwrap().nlink = 3;
    assert_finds(&tables, &[What::TooFewNames]);
    tables.objects.get_mut(&FILE).unwrap().nlink = 2;
    assert_finds(&tables, &[]);
}

#[test]
fn an_open_file_without_name_is_no_finding() {
    let mut tables = records();
    tables.add_entry(0, Ino::ROOT, b"d", &entry(DIR, FileKind::Directory));
    tables.objects.get_mut(&FILE).unwrap().nlink = 0;
    assert_finds(&tables, &[]);
}

#[test]
fn a_rename_under_way_is_a_hold_and_nothing_else() {
    let mut tables = sound();
    let held = Dentry { hold: hold(), ..entry(FILE, FileKind::Regular) };
    tables.add_entry(0, Ino::ROOT, b"old", &held);
    let held_dir = Dentry { hold: hold(), ..entry(DIR, FileKind::Directory) };
    tables.add_entry(0, Ino::ROOT, b"old-dir", &held_dir);
    assert_finds(&tables, &[What::LeftHold, What::LeftHold]);
}

#[test]
fn a_directory_without_name() {
    let mut tables = records();
    assert_finds(&tables, &[What::TooFewNames, What::EmptyUnreachable]);
    tables.add_entry(0, DIR, b"f", &entry(FILE, FileKind::Regular));
    assert_finds(&tables, &[What::Unreachable]);
    assert_eq!(tables.path_of(&tables.findings()[0].subject), None);
}

#[test]
fn a_directory_with_two_names_or_the_wrong_parent() {
    let mut tables = sound();
    tables.add_entry(0, Ino::ROOT, b"e", &entry(DIR, FileKind::Directory));
    assert_finds(&tables, &[What::SeveralNames]);

    let mut tables = sound();
    tables.objects.get_mut(&DIR).unwrap().parent = FILE;
    assert_finds(&tables, &[What::WrongParent]);
}

#[test]
fn an_entry_that_names_the_root() {
    let mut tables = sound();
    tables.add_entry(0, DIR, b"up", &entry(Ino::ROOT, FileKind::Directory));
    assert_finds(&tables, &[What::SeveralNames]);
}

#[test]
fn a_cycle_is_found_once_and_names_all_its_directories() {
    let mut tables = sound();
    for (ino, parent) in [(20, 22), (21, 20), (22, 21), (23, 22)] {
        tables.add_inode(0, &inode(Ino(ino), FileKind::Directory, 2, Ino(parent)));
    }
    for (ino, parent) in [(20, 22), (21, 20), (22, 21), (23, 22)] {
        let name = ino.to_string();
        tables.add_entry(0, Ino(parent), name.as_bytes(), &entry(Ino(ino), FileKind::Directory));
    }
    assert_finds(&tables, &[What::Cycle]);
    let mut involved = tables.findings()[0].involved.clone();
    involved.sort();
    assert_eq!(involved, [Ino(20), Ino(21), Ino(22)]);
    assert_eq!(tables.dir_path(Ino(23)), None, "paths into a cycle end");
}

#[test]
fn parts() {
    let mut tables = sound();
    tables.add_part(part(DIR, (2, 0), (1, 0)));
    assert_finds(&tables, &[What::WrongCounts]);

    let mut tables = sound();
    tables.add_part(part(Ino(50), (0, 0), (0, 0)));
    assert_finds(&tables, &[What::LeftPart]);
    tables.add_part(part(Ino(51), (3, 1), (3, 1)));
    assert_finds(&tables, &[What::UnknownDirectory, What::LeftPart]);

    let mut tables = sound();
    let mut held = part(DIR, (1, 0), (1, 0));
    held.told.hold = hold();
    tables.add_part(held);
    assert_finds(&tables, &[What::LeftHold]);
}

#[test]
fn stored_data() {
    let mut tables = sound();
    tables.add_stored(0, FILE, 3, &[4096, 8192]);
    tables.add_ranges(0, FILE, &[(0, 12_288)]);
    tables.add_stored(0, Ino(77), 5, &[]);
    assert_finds(&tables, &[What::BadChecksum, What::UnknownObject, What::BeyondEnd, What::BlocksUnrecorded]);
    assert!(tables.findings()[0].detail.contains("offset 4096"));
}

/// Data that is gone reads as zeros, which nobody else would notice.
#[test]
fn lost_data_is_damage() {
    let mut tables = sound();
    tables.objects.get_mut(&FILE).unwrap().blocks = 2;
    tables.add_stored(0, FILE, 1, &[]);
    assert_finds(&tables, &[What::BlocksMissing]);
}

#[test]
fn a_last_block_that_is_not_full_is_not_beyond_the_end() {
    let mut tables = sound();
    let file = tables.objects.get_mut(&FILE).unwrap();
    (file.size, file.blocks) = (4097, 2);
    tables.add_stored(0, FILE, 2, &[]);
    tables.add_ranges(0, FILE, &[(0, 8192)]);
    assert_finds(&tables, &[]);
}

#[test]
fn chunks_on_the_wrong_daemon() {
    let mut tables = Tables::new(placer(2));
    tables.add_inode(0, &inode(Ino::ROOT, FileKind::Directory, 2, Ino::ROOT));
    tables.add_inode(0, &inode(FILE, FileKind::Regular, 1, Ino::ROOT));
    let owner = entry_owner(Ino::ROOT, b"f", 2);
    tables.add_entry(owner, Ino::ROOT, b"f", &entry(FILE, FileKind::Regular));
    tables.objects.get_mut(&FILE).unwrap().size = 1 << 20;
    let far = (1..).find(|index| placer(2).chunk_owner(FILE, chunks(), *index) == 1).unwrap();
    tables.add_ranges(1, FILE, &[(far * 8192, 4096)]);
    assert_finds(&tables, &[]);
    tables.add_ranges(1, FILE, &[(100, 1)]);
    assert_finds(&tables, &[What::ChunkAstray]);
}

/// Each file is judged by its own layout.
#[test]
fn chunks_of_a_local_file_away_from_home() {
    let mut tables = Tables::new(placer(2));
    tables.add_inode(0, &inode(Ino::ROOT, FileKind::Directory, 2, Ino::ROOT));
    let mut file = inode(FILE, FileKind::Regular, 1, Ino::ROOT);
    file.attr.layout = Some(Layout::LOCAL);
    tables.add_inode(0, &file);
    let owner = entry_owner(Ino::ROOT, b"f", 2);
    tables.add_entry(owner, Ino::ROOT, b"f", &entry(FILE, FileKind::Regular));
    tables.objects.get_mut(&FILE).unwrap().size = 1 << 30;
    tables.add_ranges(0, FILE, &[(0, 1 << 30)]);
    assert_finds(&tables, &[]);
    tables.add_ranges(1, FILE, &[(512 << 20, 4096)]);
    assert_finds(&tables, &[What::ChunkAstray]);
}

#[test]
fn what_could_not_be_verified() {
    let mut tables = sound();
    tables.add_unverified(0, FILE, "input/output error".into());
    assert_finds(&tables, &[What::Unverified]);
}
