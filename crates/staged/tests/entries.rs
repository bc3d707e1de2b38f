//! Names in directories, as the stager tells them.

mod support;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use support::{Daemon, copy, remote, resource, well, write};
use tidepool_stage_client::{Code, DataspaceKind, DataspaceSpec, OnBehalf, Resource, Stager};
use tidepool_testkit::Cluster;

fn names(stager: &Stager, place: &str) -> Vec<String> {
    let names = stager.entries(&resource(place), None).unwrap();
    names.into_iter().map(|name| String::from_utf8(name.into_vec()).unwrap()).collect()
}

fn refused(stager: &Stager, place: &Resource, behalf: Option<OnBehalf>) -> (Code, i32) {
    match stager.entries(place, behalf).unwrap_err() {
        tidepool_stage_client::StageError::Refused(refusal) => (refusal.code, refusal.errno),
        other => panic!("{other}"),
    }
}

#[test]
fn names_come_in_order_from_directories_and_pools() {
    let cluster = Cluster::start(2);
    let daemon = Daemon::start();
    let stager = daemon.control();
    for name in ["b", "a", "dir/x", "dir/y", ".hidden", "aa"] {
        write(&daemon.path(&format!("a/in/{name}")), b"x");
    }
    let all = [".hidden", "a", "aa", "b", "dir"];
    assert_eq!(names(&stager, "a://in"), all);
    assert_eq!(
        (names(&stager, "a://"), names(&stager, "a://in/dir/")),
        (vec!["in".into()], vec!["x".to_string(), "y".into()])
    );
    assert!(names(&stager, "b://").is_empty());
    let file = daemon.path("pool.json");
    cluster.pool_file().write(&file).unwrap();
    let mount = file.display().to_string();
    let pool = DataspaceSpec { kind: DataspaceKind::Pool, mount, ..support::local("pool://", "".as_ref()) };
    stager.register_dataspace(&pool).unwrap();
    well(&stager, &copy("a://in", "pool://deep/in"));
    assert_eq!(names(&stager, "pool://deep/in"), all);
    assert_eq!(names(&stager, "pool://"), ["deep"]);
    // Any bytes may be a name.
    std::fs::write(daemon.path("b").join(std::ffi::OsStr::from_bytes(b"\xff\n")), b"").unwrap();
    assert_eq!(stager.entries(&resource("b://"), None).unwrap(), [Box::from(&b"\xff\n"[..])]);
}

#[test]
fn a_large_directory_comes_in_pages() {
    let daemon = Daemon::start();
    let stager = daemon.control();
    let expected: Vec<String> = (0..3000).map(|n| format!("{n:05}")).collect();
    for name in &expected {
        write(&daemon.path(&format!("a/{name}")), b"");
    }
    let (mut all, mut after, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let (names, more) = stager.entries_page(&resource("a://"), None, &after, 700).unwrap();
        pages += 1;
        after = names.last().unwrap().to_vec();
        all.extend(names.into_iter().map(|name| String::from_utf8(name.into_vec()).unwrap()));
        if !more {
            break;
        }
    }
    assert_eq!((all.len(), pages), (3000, 5));
    assert_eq!(all, expected);
    assert_eq!(names(&stager, "a://"), expected);
}

#[test]
fn what_cannot_be_listed_is_told() {
    let daemon = Daemon::start();
    let stager = daemon.control();
    write(&daemon.path("a/file"), b"x");
    write(&daemon.path("secret/x"), b"x");
    std::os::unix::fs::symlink(daemon.path("secret"), daemon.path("a/out")).unwrap();
    let of = |text: &str| refused(&stager, &resource(text), None);
    assert_eq!(of("a://file"), (Code::SYSTEM_ERROR, 20));
    assert_eq!(of("a://nothing"), (Code::SYSTEM_ERROR, 2));
    assert_eq!(of("a://out").0, Code::SYSTEM_ERROR);
    assert_eq!(of("a://../secret").0, Code::SYSTEM_ERROR);
    assert_eq!(of("none://").0, Code::NO_SUCH_DATASPACE);
    assert_eq!(refused(&stager, &remote("a://", "n1:1"), None).0, Code::BAD_ARGS);
    let memory = Resource::Memory { address: 1, size: 1 };
    assert_eq!(refused(&stager, &memory, None).0, Code::BAD_ARGS);
    let user = Stager::connect(daemon.user_socket()).unwrap();
    let behalf = Some(OnBehalf { uid: 7, gid: 7, job: 0 });
    assert_eq!(refused(&user, &resource("a://"), behalf).0, Code::NOT_PERMITTED);
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to look in the name of others");
        return;
    }
    // As the file system lets the user.
    write(&daemon.path("a/own/x"), b"x");
    std::fs::set_permissions(daemon.path("a/own"), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(names(&stager, "a://own"), ["x"]);
    assert_eq!(refused(&stager, &resource("a://own"), behalf), (Code::SYSTEM_ERROR, 13));
    std::os::unix::fs::chown(daemon.path("a/own"), Some(7), Some(7)).unwrap();
    assert_eq!(stager.entries(&resource("a://own"), behalf).unwrap().len(), 1);
}
