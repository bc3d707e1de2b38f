//! A bucket as a dataspace.

mod support;

#[path = "../../object/tests/support/mod.rs"]
mod bucket;

use bucket::Server;
use std::sync::atomic::Ordering;
use support::{Daemon, copy, done, resource, well, write};
use tidepool_stage_client::{DataspaceKind, DataspaceSpec, OnBehalf, Op, TaskSpec, TaskState};

fn space(url: String) -> DataspaceSpec {
    DataspaceSpec { kind: DataspaceKind::Object, mount: url, ..support::local("s3://", "".as_ref()) }
}

#[test]
fn trees_and_files_go_into_a_bucket_and_out_again() {
    let (server, daemon) = (Server::start(), Daemon::start());
    let stager = daemon.control();
    let text = server.text(daemon.dir.path(), "data", "top", bucket::SECRET);
    stager.register_dataspace(&space(text)).unwrap();
    write(&daemon.path("a/tree/deep/file"), &vec![5; 20 << 20]);
    write(&daemon.path("a/tree/small"), b"small");
    let status = well(&stager, &copy("a://tree", "s3://in/tree"));
    assert_eq!((status.files_done, status.bytes_done), (2, (20 << 20) + 5));
    assert_eq!(server.bucket.objects()["top/in/tree/small"].data, b"small");
    well(&stager, &copy("s3://in/tree", "b://out"));
    assert!(std::fs::read(daemon.path("b/out/deep/file")).unwrap() == vec![5; 20 << 20]);
    well(&stager, &copy("s3://in/tree/small", "b://small"));
    assert_eq!(std::fs::read(daemon.path("b/small")).unwrap(), b"small");
    well(&stager, &TaskSpec::new(Op::Move, resource("s3://in/tree"), Some(resource("s3://moved"))));
    well(&stager, &TaskSpec::new(Op::Remove, resource("s3://moved"), None));
    let left = server.bucket.objects();
    assert!(left.is_empty(), "{:?}", left.keys());
    let status = done(&stager, &copy("s3://moved", "b://again"));
    assert_eq!((status.state, status.refusal.errno), (TaskState::Failed, 2), "{status:?}");
}

/// Whose keys they are decides, not who the stager is.
#[test]
fn keys_are_read_in_the_name_of_the_tasks_user() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("SKIPPED: needs root, to have another user's tasks");
    }
    const NOBODY: u32 = 65534;
    let (server, daemon) = (Server::start(), Daemon::start());
    let stager = daemon.control();
    let text = server.text(daemon.dir.path(), "data", "top", bucket::SECRET);
    let keys = daemon.path(&format!("keys-{}", bucket::SECRET));
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    stager.register_dataspace(&space(text.clone())).unwrap();
    let (own, _) = text.split_once("&credentials").unwrap();
    stager.register_dataspace(&DataspaceSpec { name: "env://".into(), ..space(own.into()) }).unwrap();
    write(&daemon.path("a/x"), b"x");
    let nobody = |to| {
        let on_behalf = Some(OnBehalf { uid: NOBODY, gid: NOBODY, job: 0 });
        done(&stager, &TaskSpec { on_behalf, ..copy("a://x", to) })
    };
    let refused = nobody("s3://x");
    assert_eq!((refused.state, refused.refusal.errno), (TaskState::Failed, 13), "{refused:?}");
    chown(&keys, Some(NOBODY), Some(NOBODY)).unwrap();
    assert_eq!(nobody("s3://x").state, TaskState::Finished);
    assert_eq!(server.bucket.objects()["top/x"].data, b"x");
    let lent = nobody("env://x");
    // The worker of a user has nothing of the stager's environment.
    assert_eq!((lent.state, lent.refusal.errno), (TaskState::Failed, 13), "{lent:?}");
    assert!(lent.refusal.detail.contains("give credentials=FILE"), "{lent:?}");
}

#[test]
fn a_wrong_url_is_told_at_registration_and_wrong_keys_by_the_first_task() {
    let (server, daemon) = (Server::start(), Daemon::start());
    let stager = daemon.control();
    let refused = stager.register_dataspace(&space("s3://data?endpont=x".into())).unwrap_err();
    assert!(refused.to_string().contains("did you mean 'endpoint'"), "{refused}");
    let text = server.text(daemon.dir.path(), "data", "top", "wrong");
    stager.register_dataspace(&space(text)).unwrap();
    write(&daemon.path("a/x"), b"x");
    let status = done(&stager, &copy("a://x", "s3://x"));
    assert_eq!((status.state, status.refusal.errno), (TaskState::Failed, 13), "{status:?}");
}

/// A task whose stager is killed with a large file on its way sends the parts that have not arrived, and leaves no upload.
#[test]
fn a_killed_stager_goes_on_with_the_parts_that_have_arrived() {
    const PARTS: usize = 12;
    let (server, mut daemon) = (Server::start(), Daemon::start());
    let text = server.text(daemon.dir.path(), "data", "top", bucket::SECRET);
    daemon.control().register_dataspace(&space(text)).unwrap();
    let data: Vec<u8> = (0..PARTS * (8 << 20)).map(|n| ((n / 4099) ^ (n >> 23)) as u8).collect();
    write(&daemon.path("a/large"), &data);
    // Parts beyond the fifth wait until the stager has been killed.
    let (sent, faults) = (&server.bucket.parts_sent, &server.bucket.faults);
    faults.busy_part.store(5, Ordering::Relaxed);
    let id = daemon.control().submit(&copy("a://large", "s3://large")).unwrap();
    while sent.load(Ordering::Relaxed) < 5 {
        std::thread::yield_now();
    }
    daemon.kill();
    faults.busy_part.store(0, Ordering::Relaxed);
    assert_eq!((sent.swap(0, Ordering::Relaxed), server.bucket.uploads_left()), (5, 1));
    daemon.launch();
    let status = daemon.control().wait(&[id], false, None).unwrap().remove(0);
    assert_eq!(status.state, TaskState::Finished, "{status:?}");
    assert_eq!((sent.load(Ordering::Relaxed), server.bucket.uploads_left()), (PARTS - 5, 0));
    assert!(server.bucket.objects()["top/large"].data == data);
}
