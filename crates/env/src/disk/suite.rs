//! What every disk must do, and what the faulty ones must do wrong.

use super::*;

fn every_disk_behaves<D: Disk>(disk: &D) {
    files_read_what_was_written(disk);
    names_come_and_go(disk);
    lengths_and_holes(disk);
    punches(disk);
    paths_stay_inside(disk);
    let space = disk.space().unwrap();
    assert!(space.total > 0 && space.free <= space.total);
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn files_read_what_was_written<D: Disk>(disk: &D) {
    let file = disk.open("plain", OpenMode::CreateNew).unwrap();
    file.write_at(b"hello world", 4090).unwrap();
    assert_eq!(file.len().unwrap(), 4101);
    let mut buf = [9; 20];
    assert_eq!(file.read_at(&mut buf, 4088).unwrap(), 13);
    assert_eq!(&buf[..13], b"\0\0hello world");
    assert_eq!(file.read_at(&mut buf, 5000).unwrap(), 0);

    let mut out = b"start".to_vec();
    assert_eq!(file.read_append(&mut out, 5, 4090).unwrap(), 5);
    assert_eq!(file.read_append(&mut out, 100, 4096).unwrap(), 5);
    assert_eq!(out, b"starthelloworld");
    let mut roomy = Vec::with_capacity(1 << 20);
    assert_eq!(file.read_append(&mut roomy, 5, 4090).unwrap(), 5);
    assert_eq!(roomy, b"hello");

    let again = disk.open("plain", OpenMode::Existing).unwrap();
    again.write_at(b"J", 4090).unwrap();
    file.read_at(&mut buf[..5], 4090).unwrap();
    assert_eq!(&buf[..5], b"Jello");
    file.sync().unwrap();
    assert_eq!(errno(disk.open("plain", OpenMode::CreateNew)), Some(libc::EEXIST));
}

fn names_come_and_go<D: Disk>(disk: &D) {
    assert_eq!(errno(disk.open("missing", OpenMode::Existing)), Some(libc::ENOENT));
    assert_eq!(errno(disk.open("no/dir", OpenMode::Create)), Some(libc::ENOENT));
    assert_eq!(errno(disk.remove("missing")), Some(libc::ENOENT));
    assert_eq!(errno(disk.list("missing")), Some(libc::ENOENT));
    disk.create_dir_all("a/b").unwrap();
    disk.create_dir_all("a/b").unwrap();
    let open = disk.open("a/b/one", OpenMode::Create).unwrap();
    open.write_at(b"1", 0).unwrap();
    disk.open("a/two", OpenMode::Create).unwrap();
    disk.rename("a/b/one", "a/two").unwrap();
    assert_eq!(disk.open("a/two", OpenMode::Existing).unwrap().len().unwrap(), 1);
    let names = |dir| disk.list(dir).unwrap().into_iter().map(|e| (e.name, e.is_dir)).collect::<Vec<_>>();
    assert_eq!(names("a"), [("b".to_string(), true), ("two".to_string(), false)]);
    assert_eq!(names("a/b"), []);
    disk.sync_dir("a").unwrap();
    disk.sync_dir(".").unwrap();
    disk.remove("a/two").unwrap();
    assert_eq!(open.len().unwrap(), 1, "open files outlive their names");
}

fn lengths_and_holes<D: Disk>(disk: &D) {
    const MIB: u64 = 1 << 20;
    let file = disk.open("sparse", OpenMode::Create).unwrap();
    assert_eq!(file.next_data(0).unwrap(), None);
    file.write_at(&[7; 100], 8 * MIB).unwrap();
    let at = file.next_data(0).unwrap().unwrap();
    assert!(at <= 8 * MIB);
    assert_eq!(file.next_data(8 * MIB + 50).unwrap(), Some(8 * MIB + 50));
    assert_eq!(file.next_data(8 * MIB + 100).unwrap(), None);
    file.set_len(8 * MIB + 50).unwrap();
    file.set_len(8 * MIB + 60).unwrap();
    let mut buf = [1; 60];
    assert_eq!(file.read_at(&mut buf, 8 * MIB).unwrap(), 60);
    assert_eq!((buf[49], buf[50], buf[59]), (7, 0, 0));
}

fn punches<D: Disk>(disk: &D) {
    const PAGE: u64 = 4096;
    let file = disk.open("punched", OpenMode::Create).unwrap();
    file.write_at(&[7; 4 * PAGE as usize], 0).unwrap();
    file.punch(PAGE - 10, 2 * PAGE).unwrap();
    file.punch(4 * PAGE - 5, 1 << 40).unwrap();
    file.punch(1 << 50, 1).unwrap();
    assert_eq!(file.len().unwrap(), 4 * PAGE, "the length stays");
    let mut content = Vec::new();
    file.read_append(&mut content, 4 * PAGE as usize, 0).unwrap();
    let zeros: Vec<usize> = (0..content.len()).filter(|at| content[*at] == 0).collect();
    let end = 4 * PAGE as usize;
    let expected: Vec<usize> = (PAGE as usize - 10..3 * PAGE as usize - 10).chain(end - 5..end).collect();
    assert_eq!(zeros, expected);
    file.punch(0, 4 * PAGE).unwrap();
    assert_eq!(file.next_data(0).unwrap(), None, "the room is given back");
    assert_eq!(file.len().unwrap(), 4 * PAGE);
}

fn paths_stay_inside<D: Disk>(disk: &D) {
    for path in ["../x", "/etc/x", "a/../../x"] {
        assert_eq!(errno(disk.open(path, OpenMode::Create)), Some(libc::EINVAL), "{path}");
    }
}

#[test]
fn real_disk_behaves() {
    let dir = tempfile::tempdir().unwrap();
    every_disk_behaves(&RealDisk::new(dir.path()).unwrap());
    assert!(RealDisk::new(dir.path().join("plain")).is_err());
}

/// What a file system gets that cannot punch: the same zeros, and no more than its file is long.
#[test]
fn zeros_stand_in_for_holes() {
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk::new(dir.path()).unwrap().open("f", OpenMode::Create).unwrap();
    file.write_at(&[7; 200_000], 0).unwrap();
    file.write_at(&[7; 10], 1 << 30).unwrap();
    file.write_zeros(100, 1 << 40).unwrap();
    assert_eq!(file.len().unwrap(), (1 << 30) + 10);
    let mut content = vec![1; 200_100];
    file.read_at(&mut content, 0).unwrap();
    assert_eq!(content.iter().filter(|byte| **byte == 7).count(), 100);
    let mut far = [1; 10];
    file.read_at(&mut far, 1 << 30).unwrap();
    assert_eq!(far, [0; 10]);
}

#[test]
fn memory_disks_behave() {
    every_disk_behaves(&MemDisk::new());
    every_disk_behaves(&MemDisk::with_capacity(1 << 20));
    every_disk_behaves(&ForgetfulDisk::new());
    every_disk_behaves(&FaultyDisk::new(MemDisk::new()));
}

#[test]
fn a_small_memory_disk_fills_up() {
    let disk = MemDisk::with_capacity(8192);
    let file = disk.open("f", OpenMode::Create).unwrap();
    file.write_at(&[1; 8192], 0).unwrap();
    assert_eq!(errno(file.write_at(b"x", 8192)), Some(libc::ENOSPC));
    file.write_at(b"overwriting needs no room", 100).unwrap();
    assert_eq!(disk.space().unwrap().free, 0);
    file.set_len(4096).unwrap();
    assert_eq!(disk.space().unwrap().free, 4096);
}

#[test]
fn a_deep_copy_goes_its_own_way() {
    let disk = MemDisk::new();
    let file = disk.open("f", OpenMode::Create).unwrap();
    file.write_at(b"old", 0).unwrap();
    let copy = disk.deep_copy();
    file.write_at(b"new", 0).unwrap();
    let mut buf = [0; 3];
    copy.open("f", OpenMode::Existing).unwrap().read_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"old");
}

#[test]
fn faults_start_and_end_where_told() {
    let disk = FaultyDisk::new(MemDisk::new());
    let file = disk.open("f", OpenMode::Create).unwrap();
    disk.set_fault(Some(Fault { at: 1, calls: 2, errno: libc::EIO, tear: Tear::Nothing }));
    file.write_at(b"a", 0).unwrap();
    assert_eq!(errno(file.write_at(b"b", 0)), Some(libc::EIO));
    assert_eq!(errno(disk.remove("f")), Some(libc::EIO));
    file.sync().unwrap();
    assert_eq!(disk.calls(), 4);
    disk.set_fault(Some(Fault::from(0, libc::ENOSPC)));
    for result in [
        disk.create_dir_all("d"),
        disk.rename("f", "g"),
        disk.sync_dir("."),
        file.set_len(0),
        file.punch(0, 1),
        file.sync(),
        disk.open("new", OpenMode::Create).map(drop),
    ] {
        assert_eq!(errno(result), Some(libc::ENOSPC));
    }
    disk.open("f", OpenMode::Existing).unwrap();
    assert_eq!(file.len().unwrap(), 1);
}

#[test]
fn torn_writes_leave_what_was_asked_for() {
    let disk = FaultyDisk::new(MemDisk::new());
    for (tear, len, offset, left) in [
        (Tear::Nothing, 8192, 0, 0),
        (Tear::Pages, 8192, 0, 4096),
        (Tear::Pages, 4096, 0, 0),
        (Tear::Pages, 8192, 100, 4096),
        (Tear::Bytes, 8192, 100, 4196),
        (Tear::All, 100, 0, 100),
    ] {
        let file = disk.open("f", OpenMode::Create).unwrap();
        file.set_len(0).unwrap();
        disk.set_fault(Some(Fault::from(0, libc::EIO).tearing(tear)));
        assert_eq!(errno(file.write_at(&vec![1; len], offset)), Some(libc::EIO));
        assert_eq!(file.len().unwrap(), left, "{tear:?} {len} {offset}");
        disk.set_fault(None);
    }
}

#[test]
fn a_crash_forgets_unsynced_content_and_names() {
    let disk = ForgetfulDisk::new();
    disk.create_dir_all("d").unwrap();
    disk.sync_dir(".").unwrap();
    let kept = disk.open("d/kept", OpenMode::Create).unwrap();
    kept.write_at(b"synced", 0).unwrap();
    kept.sync().unwrap();
    disk.sync_dir("d").unwrap();
    kept.write_at(b"SYNCED and more", 0).unwrap();
    let nameless = disk.open("d/nameless", OpenMode::Create).unwrap();
    nameless.sync().unwrap();
    disk.crash();
    kept.write_at(b"from the grave", 0).unwrap();
    assert_eq!(disk.list("d").unwrap().len(), 1);
    let file = disk.open("d/kept", OpenMode::Existing).unwrap();
    let mut buf = [0; 20];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 6);
    assert_eq!(&buf[..6], b"synced");
}

#[test]
fn a_crash_may_keep_names_without_content() {
    let disk = ForgetfulDisk::new();
    disk.open("old", OpenMode::Create).unwrap().write_at(b"x", 0).unwrap();
    disk.rename("old", "new").unwrap();
    disk.crash_keeping_names();
    assert_eq!(disk.open("new", OpenMode::Existing).unwrap().len().unwrap(), 0);
    disk.crash();
    assert_eq!(disk.list(".").unwrap().len(), 1);
}
