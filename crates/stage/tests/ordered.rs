//! Ordered copies: whenever they are cut short, what is at the destination is the oldest part of the source, and nothing newer.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::fault::{Fault, FaultEnd};
use support::{Place, is_part, memory_dir, noise, sparse};
use tidepool_stage::{Control, LocalEnd, StageOptions, StageReport, What, stage};

/// Longer than the tick of the kernel's coarse clock, by which file systems tell times.
const TICK: Duration = Duration::from_millis(11);

fn ordered(place: &Place) -> StageOptions {
    StageOptions { ordered: true, ..place.options() }
}

/// Makes something under a temporary name and renames it, as programs publish.
fn publish(root: &Path, name: &str, make: impl FnOnce(&Path)) {
    std::thread::sleep(TICK);
    let (path, temporary) = (root.join(name), root.join(".new"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    make(&temporary);
    fs::rename(temporary, path).unwrap();
}

/// Files of all kinds whose order in time is not that of their names; oldest first, those of one group are equally old.
fn history(root: &Path) -> Vec<Vec<String>> {
    let mut groups = Vec::new();
    for n in 0..12u64 {
        let name = format!("{}/{}", ["b", "a", "c"][n as usize % 3], (n * 7 + 5) % 12);
        publish(root, &name, |path| fs::write(path, noise(3000 * n as usize, n)).unwrap());
        groups.push(vec![name]);
    }
    publish(root, "a/large", |path| sparse(path, 17 << 20, &[0, 9 << 20]));
    publish(root, "0first", |path| symlink("a/large", path).unwrap());
    publish(root, "z/one", |path| fs::write(path, noise(9000, 3)).unwrap());
    std::thread::sleep(TICK);
    fs::hard_link(root.join("z/one"), root.join("c/two")).unwrap();
    publish(root, "a/0last", |path| fs::write(path, b"needs all others").unwrap());
    let rest = [vec!["a/large"], vec!["0first"], vec!["z/one", "c/two"], vec!["a/0last"]];
    groups.extend(rest.into_iter().map(|group| group.into_iter().map(String::from).collect()));
    groups
}

/// How many groups are there; or the first that is there without an older one.
fn prefix(dst: &Path, groups: &[Vec<String>]) -> Result<usize, String> {
    let there = |name: &String| dst.join(name).symlink_metadata().is_ok();
    let whole = groups.iter().take_while(|group| group.iter().all(there)).count();
    match groups.iter().skip(whole + 1).flatten().find(|name| there(name)) {
        Some(name) => Err(format!("{name} is there without {:?}", groups[whole])),
        None => Ok(whole),
    }
}

#[test]
fn an_ordered_copy_is_the_same_copy() {
    for workers in [1, 3] {
        for dir in [memory_dir(), tempfile::tempdir().unwrap()] {
            let place = Place::with_torture(dir);
            let options = StageOptions { workers, ..ordered(&place) };
            let report = place.copy(&options);
            assert!(report.complete, "{report:#?}");
            place.assert_same();
            assert_eq!((place.journals(), place.parts_left().len()), (0, 0));
            let again = place.copy(&options);
            assert!(again.complete && again.bytes_copied == 0, "{again:#?}");
            place.assert_same();
        }
    }
}

#[test]
fn one_file_can_be_ordered_too() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("f"), b"data").unwrap();
    let (src, dst) = place.ends();
    let what = What::Entry { from: b"f".into(), to: b"g".into() };
    let report = stage(&src, &dst, &what, &ordered(&place), &Control::default());
    assert!(report.complete, "{report:#?}");
    assert_eq!(fs::read(place.dst().join("g")).unwrap(), b"data");
}

/// Dies at the `at`th call to the destination, is run again, and is whole then. How many groups were there in between,
/// or what was wrong with them; none when it was done before.
fn dies_and_goes_on(
    source: &Path,
    options: &StageOptions,
    groups: &[Vec<String>],
    at: u64,
) -> Option<Result<usize, String>> {
    let dir = memory_dir();
    let options = StageOptions { journal_dir: Some(dir.path().join("state")), ..options.clone() };
    let dst = dir.path().join("dst");
    let copy = |fault: Fault| -> (StageReport, u64) {
        let end = FaultEnd::new(LocalEnd::create(&dst).unwrap(), fault, at);
        let src = LocalEnd::open(source).unwrap();
        (stage(&src, &end, &What::Tree, &options, &Control::default()), end.calls())
    };
    let (report, calls) = copy(Fault::Dead);
    if report.complete {
        assert!(calls <= at);
        return None;
    }
    let found = prefix(&dst, groups);
    let (report, _) = copy(Fault::None);
    assert!(report.complete, "after call {at}: {report:#?}");
    assert_eq!(prefix(&dst, groups), Ok(groups.len()));
    for name in groups.iter().flatten() {
        let same = |path: PathBuf| fs::read(path).unwrap();
        assert!(same(source.join(name)) == same(dst.join(name)), "after call {at}: {name}");
    }
    assert_eq!(dst.join("z/one").metadata().unwrap().ino(), dst.join("c/two").metadata().unwrap().ino());
    let left = fs::read_dir(dst.join("a")).unwrap().flatten().filter(|entry| is_part(&entry.path())).count();
    assert_eq!(left, 0, "after call {at}");
    Some(found)
}

/// Cut short at every call to the destination there is, an ordered copy never shows something newer without what is older, and
/// goes on. One that is not ordered does.
#[test]
fn nothing_newer_is_there_without_what_is_older() {
    let place = Place::new(memory_dir());
    let groups = history(&place.src());
    let usual = StageOptions { workers: 2, ..StageOptions::default() };
    let (mut halves, mut calls) = (0, 0);
    for at in 0.. {
        let options = StageOptions { ordered: true, ..usual.clone() };
        match dies_and_goes_on(&place.src(), &options, &groups, at) {
            None => break,
            Some(Ok(count)) => halves += usize::from(count > 0 && count < groups.len()),
            Some(Err(wrong)) => panic!("after call {at}: {wrong}"),
        }
        calls = at;
    }
    println!("{calls} calls, after {halves} of which a part of the names was there");
    assert!(halves > groups.len() / 2, "{halves}");
    let mut found = (0..calls).filter_map(|at| dies_and_goes_on(&place.src(), &usual, &groups, at));
    assert!(found.any(|found| found.is_err()), "without the order this test finds nothing");
}

/// What was copied before a kill is not copied again, though none of it had its name.
#[test]
fn what_is_held_is_found_again() {
    let place = Place::new(memory_dir());
    let source = place.src();
    for n in 0..20u64 {
        fs::write(source.join(format!("f{n}")), noise(100_000, n)).unwrap();
    }
    sparse(&source.join("large"), 40 << 20, &[0, 20 << 20]);
    // One worker makes the same calls in each run.
    let options = StageOptions { workers: 1, ..ordered(&place) };
    let copy = |at: u64| {
        let end = FaultEnd::new(LocalEnd::create(&place.dst()).unwrap(), Fault::Dead, at);
        let src = LocalEnd::open(&source).unwrap();
        let report = stage(&src, &end, &What::Tree, &options, &Control::default());
        (report, end.calls())
    };
    let names =
        || fs::read_dir(place.dst()).unwrap().flatten().filter(|entry| !is_part(&entry.path())).count();
    let calls = copy(u64::MAX).1;
    // As late as it can be without any name being there.
    let start_anew = || {
        fs::remove_dir_all(place.dst()).unwrap();
        let _ = fs::remove_dir_all(options.journal_dir.as_ref().unwrap());
    };
    let at = (0..calls).rev().find(|at| {
        start_anew();
        assert!(!copy(*at).0.complete);
        names() == 0
    });
    assert_eq!(place.parts_left().len(), 21, "all are whole after call {at:?}");
    let (report, _) = copy(u64::MAX);
    assert!(report.complete, "{report:#?}");
    assert_eq!(report.bytes_copied, 0, "{report:#?}");
    assert!(report.bytes_skipped > 2_000_000, "{report:#?}");
    place.assert_same();
    // What is not the same any more is copied.
    start_anew();
    assert!(!copy(at.unwrap()).0.complete);
    let part = place.parts_left().into_iter().find(|part| part.metadata().unwrap().len() == 100_000).unwrap();
    let mut bytes = fs::read(&part).unwrap();
    bytes[50_000] ^= 1;
    let times = part.metadata().unwrap();
    fs::write(&part, bytes).unwrap();
    support::set_times(&part, times.mtime(), times.mtime_nsec());
    let (report, _) = copy(u64::MAX);
    assert!(report.complete && report.bytes_copied == 100_000, "{report:#?}");
    place.assert_same();
}

/// A source that does not keep still gets no names at all: nobody could say what belongs together.
#[test]
fn a_source_that_changes_gets_no_names() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("f"), b"data").unwrap();
    let src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Restless, 0);
    let dst = LocalEnd::create(&place.dst()).unwrap();
    let report = stage(&src, &dst, &What::Tree, &ordered(&place), &Control::default());
    assert!(!report.complete && report.error_count > 0, "{report:#?}");
    assert!(!place.dst().join("f").exists());
}

/// One that cannot be copied keeps all others from their names: they may build on it.
#[test]
fn one_that_fails_keeps_all_from_their_names() {
    let place = Place::new(memory_dir());
    fs::create_dir(place.src().join("d")).unwrap();
    for name in ["d/old", "new", "locked"] {
        std::thread::sleep(TICK);
        fs::write(place.src().join(name), name).unwrap();
    }
    let src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Unreadable("locked".len()), 0);
    let dst = LocalEnd::create(&place.dst()).unwrap();
    let report = stage(&src, &dst, &What::Tree, &ordered(&place), &Control::default());
    assert!(!report.complete);
    let said: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|said| said.contains("nothing more gets its name")), "{said:?}");
    assert!(!place.dst().join("d/old").exists() && !place.dst().join("new").exists());
    let report = place.copy(&ordered(&place));
    assert!(report.complete, "{report:#?}");
    place.assert_same();
    assert_eq!(place.parts_left().len(), 0);
}
