//! Faults at every call: never "complete" with wrong content, never a partial file under a
//! final name, and a rerun ends the copy without doing finished work again.

mod support;

use std::fs;
use support::fault::{Fault, FaultEnd};
use support::{Place, memory_dir, noise, sparse};
use tidepool_stage::{Control, LocalEnd, StageOptions, StageReport, What, stage};
use tidepool_types::Errno;

/// Smaller than the torture tree, so that every call can be made to fail.
fn small_tree() -> Place {
    let place = Place::new(memory_dir());
    let src = place.src();
    fs::create_dir(src.join("d")).unwrap();
    fs::write(src.join("one"), noise(5000, 1)).unwrap();
    fs::write(src.join("d/two"), noise(20_000, 2)).unwrap();
    fs::hard_link(src.join("one"), src.join("d/linked")).unwrap();
    std::os::unix::fs::symlink("two", src.join("d/link")).unwrap();
    fs::write(src.join("empty"), b"").unwrap();
    // Three ranges with data, one without.
    sparse(&src.join("large"), 32 << 20, &[0, 12 << 20, 24 << 20]);
    place
}

fn options(place: &Place) -> StageOptions {
    StageOptions { workers: 1, ..place.options() }
}

fn copy_with(place: &Place, side: Side, fault: Fault, at: u64) -> (StageReport, u64) {
    let (src, dst) = place.ends();
    let (source, target) = match side {
        Side::Source => (fault, Fault::None),
        Side::Target => (Fault::None, fault),
    };
    let (src, dst) = (FaultEnd::new(src, source, at), FaultEnd::new(dst, target, at));
    let report = stage(&src, &dst, &What::Tree, &options(place), &Control::default());
    (report, if side == Side::Source { src.calls() } else { dst.calls() })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Source,
    Target,
}

/// A fault at every call in turn, then a rerun without one.
fn fail_everywhere(side: Side, fault: Fault) {
    let (_, calls) = copy_with(&small_tree(), side, Fault::None, 0);
    assert!(calls > 40, "{calls}");
    let mut incomplete = 0;
    for at in 0..calls {
        let place = small_tree();
        let case = format!("{side:?} {fault:?} at call {at} of {calls}");
        let (first, _) = copy_with(&place, side, fault, at);
        if first.complete {
            place.assert_same();
        } else {
            incomplete += 1;
            assert!(first.error_count > 0, "{case}: silent");
            assert!(first.errors.iter().all(|e| !e.cause.is_empty() && !e.next_step.is_empty()));
        }
        place.assert_no_partial_file();
        let finished = place.finished_bytes();
        let second = place.copy(&options(&place));
        assert!(second.complete, "{case}: {second:#?}");
        place.assert_same();
        assert!(place.parts_left().is_empty(), "{case}: {:?}", place.parts_left());
        assert_eq!(place.journals(), 0);
        // All data, rounded up to pages, less what was under its final name already.
        let all = 8192 + 20_480 + 3 * 4096;
        assert!(
            second.bytes_copied <= all - finished,
            "{case}: {} of {all} - {finished}",
            second.bytes_copied
        );
    }
    println!("{calls} fault-injected copies, {side:?} {fault:?}: {incomplete} were not complete at once");
    assert!(incomplete > 20, "only {incomplete} of {calls} faults had an effect");
}

#[test]
fn a_source_error_at_any_call() {
    fail_everywhere(Side::Source, Fault::Once);
}

#[test]
fn a_destination_error_at_any_call() {
    fail_everywhere(Side::Target, Fault::Once);
}

#[test]
fn a_full_destination_from_any_call_on() {
    fail_everywhere(Side::Target, Fault::NoSpace);
}

#[test]
fn a_source_lost_at_any_call() {
    fail_everywhere(Side::Source, Fault::Dead);
}

#[test]
fn killed_at_any_call() {
    fail_everywhere(Side::Target, Fault::Dead);
}

#[test]
fn short_writes_are_continued() {
    let place = small_tree();
    assert!(copy_with(&place, Side::Target, Fault::ShortWrites, 0).0.complete);
    place.assert_same();
}

#[test]
fn a_flipped_bit_is_found_and_mended() {
    for write in 0..5 {
        let place = small_tree();
        let (report, _) = copy_with(&place, Side::Target, Fault::FlipOnce, write);
        assert!(report.complete, "{report:#?}");
        place.assert_same();
    }
}

/// The same where files are read back after the sync, range by range for the large one.
#[test]
fn a_flipped_bit_is_found_and_mended_after_the_sync() {
    for write in 0..5 {
        let place = small_tree();
        let (src, dst) = place.ends();
        let dst = FaultEnd::new(dst.verified_from_disk(), Fault::FlipOnce, write);
        let report = stage(&src, &dst, &What::Tree, &options(&place), &Control::default());
        assert!(report.complete, "{report:#?}");
        place.assert_same();
    }
}

#[test]
fn storage_that_always_lies_gets_no_file_under_its_name() {
    let place = small_tree();
    let (report, _) = copy_with(&place, Side::Target, Fault::FlipAlways, 0);
    assert!(!report.complete);
    assert!(report.errors.iter().any(|e| e.cause.contains("other bytes")), "{report:#?}");
    place.assert_no_partial_file();
    assert!(!place.dst().join("large").exists() && !place.dst().join("one").exists());
}

#[test]
fn a_source_that_never_rests_is_an_error() {
    let place = small_tree();
    let (report, _) = copy_with(&place, Side::Source, Fault::Restless, 0);
    assert!(!report.complete);
    for error in &report.errors {
        assert!(error.cause.contains("changes while being copied"), "{error}");
    }
    assert!(!place.dst().join("one").exists() && !place.dst().join("large").exists());
    assert!(place.parts_left().is_empty());
}

#[test]
fn an_unreadable_directory_costs_its_subtree_only() {
    let place = small_tree();
    let (report, _) = copy_with(&place, Side::Source, Fault::Unreadable(1), 0);
    assert_eq!(report.error_count, 1, "{report:#?}");
    let error = &report.errors[0];
    assert_eq!((error.path.as_str(), error.errno), ("d", Some(Errno::EACCES)));
    assert!(error.next_step.contains("readable"));
    assert!(place.dst().join("one").exists() && place.dst().join("large").exists());
    assert!(!place.dst().join("d").exists());
}

#[test]
fn errors_name_path_node_operation_cause_and_next_step() {
    let place = small_tree();
    let (src, dst) = place.ends();
    let dst = FaultEnd::new(dst, Fault::NoSpace, 0);
    let report = stage(&src, &dst, &What::Tree, &options(&place), &Control::default());
    let error = report.errors.iter().find(|e| e.path == "one" || e.path == "d/linked").unwrap();
    assert_eq!(error.node.as_deref(), Some("n7"));
    assert_eq!((error.operation, error.errno), ("create", Some(Errno::ENOSPC)));
    let text = error.to_string();
    for word in ["destination", "no space left", "n7", "free space", "run again"] {
        assert!(text.contains(word), "{text}");
    }
}

/// A removed or unreadable source file must never cost the copy that exists.
#[test]
fn errors_at_the_source_remove_nothing_at_the_destination() {
    let place = small_tree();
    assert!(place.copy(&options(&place)).complete);
    fs::remove_file(place.src().join("one")).unwrap();
    fs::remove_file(place.src().join("d/linked")).unwrap();
    let src = LocalEnd::open(&place.src()).unwrap();
    let dst = LocalEnd::open(&place.dst()).unwrap();
    for at in 0..30 {
        let src = FaultEnd::new(LocalEnd::open(&place.src()).unwrap(), Fault::Dead, at);
        stage(&src, &dst, &What::Tree, &options(&place), &Control::default());
        assert_eq!(fs::read(place.dst().join("one")).unwrap(), noise(5000, 1));
        assert_eq!(fs::read(place.dst().join("d/two")).unwrap(), noise(20_000, 2));
    }
    drop(src);
}

#[test]
fn too_many_errors_are_counted_not_kept() {
    let place = Place::new(memory_dir());
    for i in 0..400 {
        fs::write(place.src().join(format!("f{i:03}")), b"x").unwrap();
    }
    let (report, _) = copy_with(&place, Side::Source, Fault::Unreadable(4), 0);
    assert_eq!((report.error_count, report.errors.len()), (400, tidepool_stage::ERRORS_KEPT_MAX));
}
