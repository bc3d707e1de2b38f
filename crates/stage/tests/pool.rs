//! Copies to and from pools of real daemons.

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use support::{Place, memory_dir, noise, torture};
use tidepool_client::Client;
use tidepool_stage::{
    CompareOptions, Control, End, LocalEnd, PoolEnd, StageOptions, StageReport, What, compare, stage,
};
use tidepool_testkit::{Cluster, cred};

fn pool_dir(client: &Arc<Client>, path: &[u8]) -> PoolEnd {
    PoolEnd::at_path(client.clone(), path, cred(), true).unwrap()
}

fn copy(src: &dyn End, dst: &dyn End, state: &Path) -> StageReport {
    let journal_dir = Some(state.to_path_buf());
    let options = StageOptions { workers: 4, journal_dir, ..StageOptions::default() };
    stage(src, dst, &What::Tree, &options, &Control::default())
}

fn assert_same(a: &dyn End, b: &dyn End) {
    let options = CompareOptions { owners: true, holes_slack: Some(128 << 10), ignore_sockets: true };
    let differences = compare(a, b, options).unwrap();
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn the_torture_tree_survives_local_pool_pool_local() {
    let place = Place::with_torture(tempfile::tempdir().unwrap());
    fs::write(place.src().join("dense"), noise(40 << 20, 8)).unwrap();
    let state = place.dir.path().join("state");
    let cluster = Cluster::start(3);
    let client = Arc::new(cluster.client());
    let (src, dst) = place.ends();
    let (first, second) = (pool_dir(&client, b"/in/tree"), pool_dir(&client, b"/copy"));
    for (from, to) in [(&src as &dyn End, &first as &dyn End), (&first, &second), (&second, &dst)] {
        let report = copy(from, to, &state);
        assert!(report.complete, "{} to {}: {report:#?}", from.describe(), to.describe());
        assert_eq!(report.warning_count, 0, "{:?}", report.warnings);
        assert_same(&src, to);
        let written = report.bytes_copied;
        assert!(written < (40 << 20) + (1 << 20), "holes were written: {written}");
        let again = copy(from, to, &state);
        assert!(again.complete && again.bytes_copied == 0, "{again:#?}");
    }
    assert!(client.open_objects().is_empty(), "files were left open");
    assert_eq!(place.journals(), 0);
}

/// Proves that a daemon killed in the middle of a copy gives an error that names its node,
/// and that after its restart a rerun ends the copy.
#[test]
fn a_daemon_killed_in_the_middle_is_named_and_the_copy_goes_on_later() {
    let place = Place::new(memory_dir());
    torture(&place.src());
    fs::write(place.src().join("dense"), noise(64 << 20, 8)).unwrap();
    let state = place.dir.path().join("state");
    let mut cluster = Cluster::start(3);
    let client = Arc::new(cluster.client());
    let src = LocalEnd::open(&place.src()).unwrap();
    let dst = pool_dir(&client, b"/in");
    let options = StageOptions {
        workers: 2,
        journal_dir: Some(state.clone()),
        bandwidth: Some(64 << 20),
        ..StageOptions::default()
    };
    let control = Control::default();
    let report = std::thread::scope(|scope| {
        let copy = scope.spawn(|| stage(&src, &dst, &What::Tree, &options, &control));
        while control.progress().rate == 0.0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        cluster.kill(1);
        copy.join().unwrap()
    });
    assert!(!report.complete && report.error_count > 0);
    assert!(report.errors.iter().any(|e| e.to_string().contains("node1")), "{report:#?}");
    cluster.restart(1);
    let client = Arc::new(cluster.client());
    let dst = pool_dir(&client, b"/in");
    let report = copy(&src, &dst, &state);
    assert!(report.complete, "{report:#?}");
    assert_same(&src, &dst);
}
