//! A pool as a dataspace: real daemons, no mount.

mod support;

use support::{Daemon, copy, done, well, write};
use tidepool_stage_client::{DataspaceKind, DataspaceSpec, Op, Stager, TaskSpec, TaskState};
use tidepool_testkit::Cluster;

/// A pool, and a stager that has it as the dataspace `pool://`.
fn with_pool() -> (Cluster, Daemon, Stager) {
    let cluster = Cluster::start(2);
    let daemon = Daemon::start();
    let stager = daemon.control();
    let file = daemon.path("pool.json");
    cluster.pool_file().write(&file).unwrap();
    let mount = file.display().to_string();
    let pool = DataspaceSpec { kind: DataspaceKind::Pool, mount, ..support::local("pool://", "".as_ref()) };
    stager.register_dataspace(&pool).unwrap();
    (cluster, daemon, stager)
}

#[test]
fn trees_go_into_a_pool_and_out_again() {
    let (_cluster, daemon, stager) = with_pool();
    write(&daemon.path("a/tree/deep/file"), &vec![5; 3 << 20]);
    write(&daemon.path("a/tree/small"), b"small");
    let status = well(&stager, &copy("a://tree", "pool://in/tree"));
    assert_eq!((status.files_done, status.bytes_done), (2, (3 << 20) + 5));
    well(&stager, &copy("pool://in/tree", "b://out"));
    assert!(std::fs::read(daemon.path("b/out/deep/file")).unwrap() == vec![5; 3 << 20]);
    well(&stager, &copy("pool://in/tree/small", "b://small"));
    assert_eq!(std::fs::read(daemon.path("b/small")).unwrap(), b"small");
    well(
        &stager,
        &TaskSpec::new(
            Op::Move,
            support::resource("pool://in/tree"),
            Some(support::resource("pool://moved")),
        ),
    );
    well(&stager, &TaskSpec::new(Op::Remove, support::resource("pool://moved"), None));
    let status = done(&stager, &copy("pool://moved", "b://again"));
    assert_eq!((status.state, status.refusal.errno), (TaskState::Failed, 2), "{status:?}");
}

/// As Slurm's stage-out has it: the pool is gone afterwards.
#[test]
fn what_links_lead_to_elsewhere_in_the_pool_comes_along() {
    let (cluster, daemon, stager) = with_pool();
    write(&daemon.path("a/work/r"), b"result");
    write(&daemon.path("a/out/f"), b"own");
    let by_pool = |path: &str| cluster.pool_file().mount.join(path);
    std::os::unix::fs::symlink("../work/r", daemon.path("a/out/rel")).unwrap();
    std::os::unix::fs::symlink(by_pool("work/r"), daemon.path("a/out/abs")).unwrap();
    std::os::unix::fs::symlink(by_pool("out/f"), daemon.path("a/out/in")).unwrap();
    std::os::unix::fs::symlink("../work", daemon.path("a/out/dir")).unwrap();
    write(&daemon.path("a/out/.tidepool-part.0123456789abcdef.0123456789abcdef"), b"of a copy");
    well(&stager, &copy("a://", "pool://"));
    let status = well(&stager, &copy("pool://out", "b://res"));
    assert_eq!((status.files_done, status.bytes_done), (5, 21), "{status:?}");
    for name in ["rel", "abs", "dir/r"] {
        assert_eq!(std::fs::read(daemon.path("b/res").join(name)).unwrap(), b"result", "{name}");
        assert!(daemon.path("b/res").join(name).symlink_metadata().unwrap().is_file(), "{name}");
    }
    assert_eq!(std::fs::read_link(daemon.path("b/res/in")).unwrap().to_str(), Some("f"));
    assert!(!daemon.path("b/res/.tidepool-part.0123456789abcdef.0123456789abcdef").exists());
    let status = done(&stager, &TaskSpec { op: Op::Move, ..copy("pool://out", "b://moved") });
    assert!(
        status.state == TaskState::Failed && status.refusal.detail.contains("copy it instead"),
        "{status:?}"
    );
}
