//! Files that say they have more or fewer bytes than they have: the copy has all of them, or is not complete.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use support::fault::{Fault, FaultEnd};
use support::remote::{open, serve};
use support::{Place, memory_dir, noise, set_times};
use tidepool_stage::{Control, End, LocalEnd, StageOptions, StageReport, What, move_tree, stage};
use tidepool_types::Errno;

/// Bytes of files, and what they say.
const REAL: [usize; 5] = [0, 1, 700, 100_001, 20 << 20];
const SAID: [u64; 5] = [0, 1, 4096, 1 << 20, 40 << 20];

fn data(len: usize) -> Vec<u8> {
    if len < 1 << 20 { noise(len, 3) } else { vec![3; len] }
}

fn entry(name: &str) -> What {
    What::Entry { from: name.into(), to: b"copy".to_vec() }
}

fn copy(src: &dyn End, name: &str, dst: &dyn End, options: &StageOptions) -> StageReport {
    stage(src, dst, &entry(name), options, &Control::default())
}

/// Copies one file of this node's own to the place's destination; what arrived.
fn arrived(place: &Place, dir: &str, name: &str) -> Vec<u8> {
    let (src, dst) = (LocalEnd::open(Path::new(dir)).unwrap(), LocalEnd::create(&place.dst()).unwrap());
    let report = copy(&src, name, &dst, &place.options());
    assert!(report.complete, "{dir}/{name}: {report:#?}");
    let copy = fs::read(place.dst().join("copy")).unwrap();
    assert_eq!((report.files, report.bytes_total), (1, copy.len() as u64), "{dir}/{name}");
    copy
}

#[test]
fn files_of_proc_are_read_to_their_end() {
    for name in ["version", "filesystems", "kallsyms"] {
        let place = Place::new(memory_dir());
        let copy = arrived(&place, "/proc", name);
        assert!(!copy.is_empty() && copy == fs::read(format!("/proc/{name}")).unwrap(), "{name}");
        assert!(place.parts_left().is_empty() && place.journals() == 0);
        // Once more, over what is there.
        assert_eq!(arrived(&place, "/proc", name).len(), copy.len());
    }
}

#[test]
fn files_of_sysfs_are_as_long_as_they_are() {
    let place = Place::new(memory_dir());
    let copy = arrived(&place, "/sys/devices/system/cpu", "online");
    assert_eq!(copy, fs::read("/sys/devices/system/cpu/online").unwrap());
    assert!(copy.ends_with(b"\n"), "{copy:?}");
}

/// Every length with everything that it may say, in each way that the engine copies.
#[test]
fn whatever_files_say_all_of_them_arrives() {
    for said in SAID {
        let place = Place::new(memory_dir());
        let one_by_one = StageOptions { workers: 1, verify: false, ..StageOptions::default() };
        let ordered = StageOptions { ordered: true, ..place.options() };
        REAL.iter().for_each(|len| fs::write(place.src().join(len.to_string()), data(*len)).unwrap());
        for options in [place.options(), one_by_one, ordered] {
            let src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Says, said);
            let dst = LocalEnd::create(&place.dst()).unwrap();
            let report = stage(&src, &dst, &What::Tree, &options, &Control::default());
            assert!(report.complete, "{said}: {report:#?}");
            assert_eq!(report.bytes_total, REAL.iter().sum::<usize>() as u64, "{said}");
            for len in REAL {
                assert!(
                    fs::read(place.dst().join(len.to_string())).unwrap() == data(len),
                    "{len}, says {said}"
                );
            }
            assert!(place.parts_left().is_empty() && place.journals() == 0);
            fs::remove_dir_all(place.dst()).unwrap();
        }
    }
}

/// As an earlier copy that believed the size left it: an empty file with the source's time.
#[test]
fn an_empty_copy_of_before_is_not_taken_for_the_file() {
    for trust_mtime in [false, true] {
        let place = Place::new(memory_dir());
        fs::write(place.src().join("f"), b"content").unwrap();
        fs::create_dir(place.dst()).unwrap();
        File::create(place.dst().join("copy")).unwrap();
        [place.src().join("f"), place.dst().join("copy")]
            .iter()
            .for_each(|path| set_times(path, 1_000_000_000, 7));
        let src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Says, 0);
        let dst = LocalEnd::open(&place.dst()).unwrap();
        let report = copy(&src, "f", &dst, &StageOptions { trust_mtime, ..place.options() });
        assert!(report.complete, "{report:#?}");
        assert_eq!(fs::read(place.dst().join("copy")).unwrap(), b"content");
    }
}

/// What is stored and ends before it says may have lost the rest.
#[test]
fn a_kept_file_that_ends_early_is_an_error_that_says_so() {
    for (len, said) in [(0, 1), (700, 4096), (100, 40 << 20), (20 << 20, (20 << 20) + 1)] {
        let place = Place::new(memory_dir());
        fs::write(place.src().join("f"), data(len)).unwrap();
        let src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Keeps, said);
        let dst = LocalEnd::create(&place.dst()).unwrap();
        let report = copy(&src, "f", &dst, &place.options());
        assert!(!report.complete && report.files == 0, "{report:#?}");
        let error = &report.errors[0];
        assert_eq!((error.path.as_str(), error.errno), ("f", Some(Errno::EIO)), "{error}");
        assert!(error.cause.contains(&format!("says that it has {said} bytes, and ends before")), "{error}");
        assert_eq!(fs::read_dir(place.dst()).unwrap().count(), 0);
    }
}

/// At each call of the source in turn somebody appends to the file, or cuts it.
#[test]
fn a_file_that_changes_its_length_meanwhile_arrives_whole_or_not_at_all() {
    for (len, grows) in [(700, true), (700, false), (100_001, true), (20 << 20, true), (20 << 20, false)] {
        let mut changed = 0;
        for at in 0..20 {
            let place = Place::new(memory_dir());
            let path = place.src().join("f");
            fs::write(&path, data(len)).unwrap();
            let mut src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Overtaken, at);
            let of = path.clone();
            src.meanwhile = Box::new(move || match grows {
                true => OpenOptions::new().append(true).open(&of).unwrap().write_all(b"more").unwrap(),
                false => OpenOptions::new().write(true).open(&of).unwrap().set_len(len as u64 / 2).unwrap(),
            });
            let dst = LocalEnd::create(&place.dst()).unwrap();
            let options = StageOptions { workers: 1, ..place.options() };
            let report = copy(&src, "f", &dst, &options);
            let now = fs::read(&path).unwrap();
            changed += usize::from(now.len() != len);
            if now.len() == len {
                break;
            }
            assert!(report.complete, "it changes once, and is tried again: {report:#?}");
            let copied = fs::read(place.dst().join("copy")).unwrap();
            // After the last look nobody can know.
            let before = data(len);
            assert!(copied == now || copied == before, "call {at}: {} bytes of {}", copied.len(), now.len());
        }
        assert!(changed > 4, "{len}: only {changed} calls");
    }
}

#[test]
fn another_node_has_them_read_to_their_end_as_well() {
    let place = Place::new(memory_dir());
    let server = serve(place.dir.path());
    // From there, and to there.
    let (proc, dst) = (open(server.address(), "/proc", false), LocalEnd::create(&place.dst()).unwrap());
    for name in ["version", "kallsyms"] {
        let report = copy(&proc, name, &dst, &place.options());
        assert!(report.complete, "{name}: {report:#?}");
        assert!(
            fs::read(place.dst().join("copy")).unwrap() == fs::read(format!("/proc/{name}")).unwrap(),
            "{name}"
        );
        let there = open(server.address(), name, true);
        assert!(copy(&LocalEnd::open(Path::new("/proc")).unwrap(), name, &there, &place.options()).complete);
        let copied = fs::read(place.dir.path().join(name).join("copy")).unwrap();
        assert!(copied == fs::read(format!("/proc/{name}")).unwrap(), "{name}");
    }
    let sysfs = open(server.address(), "/sys/devices/system/cpu", false);
    assert!(copy(&sysfs, "online", &dst, &place.options()).complete);
    assert_eq!(
        fs::read(place.dst().join("copy")).unwrap(),
        fs::read("/sys/devices/system/cpu/online").unwrap()
    );
}

#[test]
fn a_move_takes_all_of_a_file_before_it_is_removed() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("f"), noise(5000, 1)).unwrap();
    let mut src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Says, 0);
    src.removes = true;
    // Elsewhere, so that it is no rename.
    let server = serve(place.dir.path());
    let dst = open(server.address(), "dst", true);
    let report = move_tree(&src, &dst, &entry("f"), &StageOptions::default(), &Control::default());
    assert!(report.complete && !report.renamed, "{report:#?}");
    assert!(fs::read(place.dst().join("copy")).unwrap() == noise(5000, 1));
    assert!(!place.src().join("f").exists());
}

/// A small file goes without the engine only where its size is right: one that something is mounted on may be anything.
#[test]
fn sizes_are_believed_of_file_systems_that_keep_them() {
    let (memory, proc) = (memory_dir(), LocalEnd::open(Path::new("/proc")).unwrap());
    fs::write(memory.path().join("f"), b"x").unwrap();
    let end = LocalEnd::open(memory.path()).unwrap();
    let (ours, theirs) = (stat(&end, "f"), stat(&proc, "version"));
    assert_eq!(end.knows_sizes(&ours), memory.path().starts_with("/dev/shm"));
    assert!(!end.knows_sizes(&theirs) && !proc.knows_sizes(&theirs) && !proc.knows_sizes(&ours));
}

fn stat(end: &LocalEnd, name: &str) -> tidepool_stage::Meta {
    end.stat(tidepool_stage::At::Name(&end.root(), name.as_bytes())).unwrap()
}

#[test]
fn the_destinations_that_do_not_know_a_size_ahead_get_all_of_it() {
    let (place, cluster) = (Place::new(memory_dir()), tidepool_testkit::Cluster::start(2));
    let client = Arc::new(cluster.client());
    let pool = tidepool_stage::PoolEnd::at_path(client, b"/in", tidepool_testkit::cred(), true).unwrap();
    let proc = LocalEnd::open(Path::new("/proc")).unwrap();
    for name in ["version", "kallsyms"] {
        assert!(copy(&proc, name, &pool, &place.options()).complete);
        let back = copy(&pool, "copy", &LocalEnd::create(&place.dst()).unwrap(), &place.options());
        assert!(back.complete, "{back:#?}");
        assert!(
            fs::read(place.dst().join("copy")).unwrap() == fs::read(format!("/proc/{name}")).unwrap(),
            "{name}"
        );
    }
}
