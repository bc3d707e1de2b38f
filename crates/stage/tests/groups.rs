//! Groups of files: kept by root, and by who is in them.

mod support;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::Arc;
use support::fault::{Fault, FaultEnd};
use support::{Place, memory_dir, noise};
use tidepool_client::Cred;
use tidepool_stage::{Control, End, Identity, Lone, PoolEnd, StageOptions, StageReport, What, stage};
use tidepool_testkit::{ActAs, Cluster};

/// Whoever copies, a group of his besides his own one, and one that he is not in.
const USER: u32 = 31_411;
const TEAM: u32 = 31_500;
const OTHERS: u32 = 31_600;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: needs root, who acts as users");
    }
    root
}

/// Names, groups and modes in a directory.
fn groups(dir: &Path) -> Vec<(String, u32, u32)> {
    let of = |entry: fs::DirEntry| {
        let meta = fs::symlink_metadata(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), meta.gid(), meta.mode() & 0o7777)
    };
    let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| of(entry.unwrap())).collect();
    all.sort();
    all
}

/// One of each kind and size that goes another way, of each group.
fn tree(dir: &Path) {
    for (name, gid) in [("own", USER), ("team", TEAM), ("others", OTHERS)] {
        fs::write(dir.join(name), noise(300, 1)).unwrap();
        fs::write(dir.join(format!("{name}-large")), vec![7; 17 << 20]).unwrap();
        fs::write(dir.join(format!("{name}-set")), b"x").unwrap();
        fs::create_dir(dir.join(format!("{name}-dir"))).unwrap();
        symlink("x", dir.join(format!("{name}-link"))).unwrap();
        for end in ["", "-large", "-set", "-dir", "-link"] {
            std::os::unix::fs::lchown(dir.join(format!("{name}{end}")), Some(USER), Some(gid)).unwrap();
        }
        fs::set_permissions(dir.join(format!("{name}-set")), fs::Permissions::from_mode(0o2750)).unwrap();
    }
}

/// What a member of `TEAM` has to get.
fn expected() -> Vec<(String, u32, u32)> {
    let mut all = Vec::new();
    for (name, gid) in [("own", USER), ("team", TEAM), ("others", USER)] {
        let set = if name == "others" { 0o750 } else { 0o2750 };
        for (end, mode) in [("", 0o644), ("-large", 0o644), ("-set", set), ("-dir", 0o755), ("-link", 0o777)]
        {
            all.push((format!("{name}{end}"), gid, mode));
        }
    }
    all.sort();
    all
}

/// A place whose source and destination are the user's. The destination hands its own group on if that is asked for.
fn place(hands_on: bool) -> Place {
    let place = Place::new(memory_dir());
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    tree(&place.src());
    fs::create_dir(place.dst()).unwrap();
    chown(place.src(), Some(USER), Some(USER)).unwrap();
    chown(place.dst(), Some(USER), Some(if hands_on { OTHERS } else { USER })).unwrap();
    let mode = if hands_on { 0o2755 } else { 0o755 };
    fs::set_permissions(place.dst(), fs::Permissions::from_mode(mode)).unwrap();
    fs::set_permissions(place.src(), fs::Permissions::from_mode(mode)).unwrap();
    place
}

fn copy(src: &dyn End, dst: &dyn End) -> StageReport {
    stage(src, dst, &What::Tree, &StageOptions { workers: 2, ..StageOptions::default() }, &Control::default())
}

#[test]
fn a_member_keeps_the_group_of_files() {
    if !is_root() {
        return;
    }
    for from_disk in [false, true] {
        let place = place(false);
        let acting = ActAs::member(USER, &[TEAM]);
        let (src, dst) = place.ends();
        let report = copy(&src, &if from_disk { dst.verified_from_disk() } else { dst });
        drop(acting);
        assert!(report.complete && report.warning_count == 0, "{report:#?}");
        assert_eq!(groups(&place.dst()), expected());
    }
}

/// As `cp -a` and rsync have it: what a directory hands on is not the file's group.
#[test]
fn a_directory_that_hands_its_group_on_does_not_change_the_files() {
    if !is_root() {
        return;
    }
    let place = place(true);
    let acting = ActAs::member(USER, &[TEAM]);
    let (src, dst) = place.ends();
    let report = copy(&src, &dst);
    drop(acting);
    assert!(report.complete, "{report:#?}");
    let got = groups(&place.dst());
    let groups_of = |name: &str| got.iter().find(|found| found.0 == name).map(|found| found.1);
    assert_eq!(
        (groups_of("own"), groups_of("team"), groups_of("team-large")),
        (Some(USER), Some(TEAM), Some(TEAM))
    );
    assert_eq!(groups_of("others"), Some(OTHERS), "who is not in it cannot take it away either");
}

#[test]
fn a_second_copy_brings_the_group_up_to_date() {
    if !is_root() {
        return;
    }
    let place = place(false);
    let acting = ActAs::user(USER);
    let (src, dst) = place.ends();
    assert!(copy(&src, &dst).complete);
    drop((acting, src, dst));
    assert!(groups(&place.dst()).iter().all(|found| found.1 == USER), "he is in no other one");
    let acting = ActAs::member(USER, &[TEAM]);
    let (src, dst) = place.ends();
    let report = copy(&src, &dst);
    drop(acting);
    assert!(report.complete && report.bytes_copied == 0, "{report:#?}");
    let team = groups(&place.dst()).into_iter().filter(|found| found.0.starts_with("team"));
    assert!(
        team.clone().count() == 5 && team.clone().all(|found| found.1 == TEAM),
        "{:?}",
        team.collect::<Vec<_>>()
    );
}

#[test]
fn a_pool_keeps_the_group() {
    if !is_root() {
        return;
    }
    let (place, cluster) = (place(false), Cluster::start(2));
    let client = Arc::new(cluster.client());
    let root = Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0o022 };
    let top = PoolEnd::at_path(client.clone(), b"/", root, true).unwrap();
    let open_to_all = tidepool_stage::SetMeta { mode: Some(0o777), ..Default::default() };
    top.set_meta(tidepool_stage::At::Dir(&top.root()), &open_to_all).unwrap();
    let cred = Cred { uid: USER, gid: USER, groups: vec![TEAM], umask: 0o022 };
    let pool = PoolEnd::at_path(client, b"/in", cred, true).unwrap();
    // Only what the pool has to decide: its daemons are root's, and the copy that is looked at is root's, too.
    let (src, dst) = place.ends();
    let (there, back) = (copy(&src, &pool), copy(&pool, &dst));
    assert!(there.complete && back.complete, "{there:#?} {back:#?}");
    assert_eq!(groups(&place.dst()), expected());
}

#[test]
fn a_small_file_that_goes_alone_keeps_its_group() {
    if !is_root() {
        return;
    }
    let place = place(false);
    for (name, gid) in [("team", TEAM), ("own", USER), ("others", USER)] {
        let acting = ActAs::member(USER, &[TEAM]);
        let dir = |path: &Path| -> Arc<OwnedFd> { Arc::new(File::open(path).unwrap().into()) };
        let (from, to, user) = (dir(&place.src()), dir(&place.dst()), Identity::of_thread().unwrap());
        let lone = Lone::read((&from, name.as_bytes()), (&to, b""), &user);
        let report = lone.map(|lone| lone.put(&StageOptions::default(), &Control::default()));
        drop(acting);
        let Some(Some(report)) = report else {
            println!("SKIPPED: needs a file system in memory at /dev/shm, and Linux 6.10");
            return;
        };
        assert!(report.complete && report.warning_count == 0, "{report:#?}");
        assert_eq!(fs::metadata(place.dst().join(name)).unwrap().gid(), gid, "{name}");
    }
}

/// The group that a file says is his, and is refused: told, and its members get no rights by it.
#[test]
fn a_refused_group_is_a_warning_and_takes_its_bit_away() {
    if !is_root() {
        return;
    }
    let place = place(false);
    let acting = ActAs::user(USER);
    let (src, dst) = place.ends();
    let report = copy(&src, &FaultEnd::new(dst, Fault::Boasts, 0));
    drop(acting);
    assert!(report.complete, "{report:#?}");
    assert!(report.warnings.iter().any(|warning| {
        warning.path == "team-set" && warning.text.contains("attribute group 31500 is not copied")
    }));
    let set = groups(&place.dst()).into_iter().find(|found| found.0 == "team-set").unwrap();
    assert_eq!((set.1, set.2), (USER, 0o750));
}
