//! Files and directories through the client library, over real daemons of each kind.

use std::cell::RefCell;
use tidepool_client::{Client, Cred};
use tidepool_fsd::Backend;
use tidepool_testkit::{Cluster, Options, Rng, cred, eventually, stored_blocks};
use tidepool_types::{Attr, Errno, FileKind, Ino, Layout, SetAttr, TimeSpec};
use tidepool_wire::message::{Reply, Request};

const RDWR_CREAT: i32 = libc::O_RDWR | libc::O_CREAT;

fn create(client: &Client, path: &str) -> Attr {
    client.open(Ino::ROOT, path.as_bytes(), RDWR_CREAT, 0o644, &cred()).unwrap().inside().unwrap()
}

fn stat(client: &Client, path: &str) -> Result<Attr, Errno> {
    let found = client.stat(Ino::ROOT, path.as_bytes(), false, &cred());
    found.map_err(|e| e.errno()).and_then(|w| w.inside().map_err(|e| e.errno()))
}

fn mkdir(client: &Client, path: &str) {
    client.mkdir(Ino::ROOT, path.as_bytes(), 0o755, &cred()).unwrap();
}

fn rename(client: &Client, from: &str, to: &str) -> Result<(), Errno> {
    let moved = client.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), 0, &cred());
    moved.map(|_| ()).map_err(|e| e.errno())
}

fn names(client: &Client, path: &str) -> Vec<String> {
    let dir = stat(client, path).unwrap().ino;
    let mut names: Vec<String> =
        client.read_dir(dir).unwrap().into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect();
    names.sort();
    names
}

/// Runs a test on pools that differ in everything a client should not notice.
fn on_all_pools(test: impl Fn(&Cluster)) {
    let mut pools = vec![
        ("one daemon", Options { daemons: 1, ..Options::default() }),
        ("three daemons", Options::default()),
        ("TCP", Options { tcp_only: true, ..Options::default() }),
        ("LMDB", Options { backend: Backend::Lmdb, daemons: 2, ..Options::default() }),
    ];
    if cfg!(feature = "libfabric") {
        pools.push((
            "fabric",
            Options {
                tcp_only: true,
                fabric: "tcp;ofi_rxm".into(),
                encryption: tidepool_types::Encryption::Off,
                ..Options::default()
            },
        ));
    }
    for (name, options) in pools {
        println!("pool: {name}");
        test(&Cluster::with(options));
    }
}

/// F2: what one client makes another finds at once, with its content.
#[test]
fn f2_one_name_space() {
    on_all_pools(|cluster| {
        let (a, b) = (cluster.client(), cluster.client());
        mkdir(&a, "dir");
        for i in 0..50 {
            let file = create(&a, &format!("dir/f{i}"));
            a.write(file.ino, 0, format!("content {i}").as_bytes()).unwrap();
            let seen = stat(&b, &format!("dir/f{i}")).unwrap();
            assert_eq!((seen.ino, seen.size), (file.ino, format!("content {i}").len() as u64));
            let mut buf = [0; 64];
            let count = b.read(seen.ino, 0, &mut buf).unwrap();
            assert_eq!(&buf[..count], format!("content {i}").as_bytes());
        }
        assert_eq!(names(&b, "dir").len(), 50);
        assert_eq!(stat(&b, "dir").unwrap().nlink, 2);
    });
}

/// Operations of the comparison with a byte vector, on each pool.
const ORACLE_STEPS: u64 = 600;

/// F15: random reads, writes, truncations, appends and holes agree with a byte vector, whichever of two clients
/// does them.
#[test]
fn f15_random_io_matches_a_byte_vector() {
    let rng = RefCell::new(Rng::from_env("f15_random_io_matches_a_byte_vector"));
    on_all_pools(|cluster| {
        let mut rng = rng.borrow_mut();
        let clients = [cluster.client(), cluster.client()];
        let ino = create(&clients[0], "f").ino;
        let mut oracle: Vec<u8> = Vec::new();
        for step in 0..ORACLE_STEPS {
            let client = &clients[rng.below(2) as usize];
            let offset = rng.below(400_000) as usize;
            let len = rng.below(if step % 7 == 0 { 200_000 } else { 6_000 }) as usize;
            match rng.below(13) {
                0..=4 => {
                    let data = rng.bytes(len);
                    assert_eq!(client.write(ino, offset as u64, &data).unwrap(), len);
                    if len > 0 && oracle.len() < offset + len {
                        oracle.resize(offset + len, 0);
                    }
                    if len > 0 {
                        oracle[offset..offset + len].copy_from_slice(&data);
                    }
                }
                5 => {
                    let size = SetAttr { size: Some(offset as u64), ..SetAttr::default() };
                    assert_eq!(client.set_attr(ino, &size, &cred()).unwrap().size, offset as u64);
                    oracle.resize(offset, 0);
                }
                6 => {
                    let data = rng.bytes(len % 3000);
                    assert_eq!(client.append(ino, &data).unwrap(), (oracle.len() as u64, data.len()));
                    oracle.extend_from_slice(&data);
                }
                7 => {
                    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    client.allocate(ino, mode, offset as u64, len as u64 + 1).unwrap();
                    let end = (offset + len + 1).min(oracle.len());
                    oracle[offset.min(end)..end].fill(0);
                }
                8 => {
                    client.allocate(ino, libc::FALLOC_FL_ZERO_RANGE, offset as u64, len as u64 + 1).unwrap();
                    let end = offset + len + 1;
                    oracle.resize(oracle.len().max(end), 0);
                    oracle[offset..end].fill(0);
                }
                9 => {
                    client.allocate(ino, 0, offset as u64, len as u64 + 1).unwrap();
                    oracle.resize(oracle.len().max(offset + len + 1), 0);
                }
                _ => {
                    let mut buf = vec![0xaa; len];
                    let count = client.read(ino, offset as u64, &mut buf).unwrap();
                    let expected = oracle.get(offset..(offset + len).min(oracle.len())).unwrap_or(&[]);
                    assert_eq!(count, expected.len(), "step {step} at {offset}+{len}");
                    assert!(buf[..count] == *expected, "step {step} at {offset}+{len}");
                }
            }
            assert_eq!(client.get_attr(ino).unwrap().size, oracle.len() as u64, "step {step}");
        }
        assert_eq!(clients[0].get_attr(ino).unwrap().stored_blocks(), stored_blocks(&clients[0], ino));
    });
}

/// `cp -a` asks for the bits of its source, counts on getting none of them, and does not take them away from what is below.
#[test]
fn directories_are_made_without_set_id_bits() {
    on_all_pools(|cluster| {
        let client = cluster.client();
        let made = |path: &str, mode: u32| {
            let made = client.mkdir(Ino::ROOT, path.as_bytes(), mode, &cred()).unwrap();
            made.inside().unwrap().mode & 0o7777
        };
        assert_eq!((made("above", 0o2700), made("sticky", 0o7755)), (0o700, 0o1755));
        assert_eq!(made("above/below", 0o700), 0o700);
        let set = SetAttr { mode: Some(0o2775), ..SetAttr::default() };
        client.set_attr(stat(&client, "above").unwrap().ino, &set, &cred()).unwrap();
        assert_eq!(made("above/handed", 0o700), 0o2700, "a directory hands its own bit down");
    });
}

/// Who copies results in the order in which they were published goes by this: the time of a rename, to the nanosecond.
#[test]
fn a_rename_sets_the_time_of_change() {
    on_all_pools(|cluster| {
        let client = cluster.client();
        let names: Vec<String> = (0..20).map(|n| format!("f{}", n * 7 % 20)).collect();
        for name in names.iter().rev() {
            create(&client, &format!("{name}.new"));
        }
        names.iter().for_each(|name| rename(&client, &format!("{name}.new"), name).unwrap());
        let times: Vec<_> = names.iter().map(|name| stat(&client, name).unwrap().ctime).collect();
        assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
    });
}

/// F9: rename replaces, moves directories, refuses cycles, and never moves data.
#[test]
fn f9_rename() {
    on_all_pools(|cluster| {
        let client = cluster.client();
        for dir in ["a", "a/b", "c"] {
            mkdir(&client, dir);
        }
        let file = create(&client, "a/b/f");
        client.write(file.ino, 0, b"data").unwrap();
        rename(&client, "a/b/f", "c/g").unwrap();
        assert_eq!(stat(&client, "a/b/f"), Err(Errno::ENOENT));
        assert_eq!(stat(&client, "c/g").unwrap().ino, file.ino, "the object keeps its id");

        let other = create(&client, "c/h");
        rename(&client, "c/g", "c/h").unwrap();
        assert_eq!(stat(&client, "c/h").unwrap().ino, file.ino);
        assert_eq!(names(&client, "c"), ["h"]);
        client.release(other.ino);

        assert_eq!(rename(&client, "a", "a/b/a"), Err(Errno::EINVAL), "a directory cannot go below itself");
        assert_eq!(rename(&client, "c/h", "a"), Err(Errno::EISDIR));
        assert_eq!(rename(&client, "a", "c/h"), Err(Errno::ENOTDIR));
        assert_eq!(rename(&client, "a", "c"), Err(Errno::ENOTEMPTY));
        assert_eq!(rename(&client, "nothing", "x"), Err(Errno::ENOENT));
        rename(&client, "c/h", "c/h").unwrap();

        rename(&client, "a/b", "c/b").unwrap();
        assert_eq!(
            client.parent_of(stat(&client, "c/b").unwrap().ino).unwrap(),
            stat(&client, "c").unwrap().ino
        );
        mkdir(&client, "empty");
        rename(&client, "c", "empty").unwrap();
        assert_eq!(names(&client, ""), ["a", "empty"]);
        assert_eq!(stat(&client, "empty/h").unwrap().ino, file.ino);
        assert_eq!((stat(&client, "").unwrap().nlink, stat(&client, "empty").unwrap().nlink), (4, 3));
    });
}

/// A second client that has cached a directory's place sees its move at once.
#[test]
fn moved_directories_are_not_found_where_they_were() {
    on_all_pools(|cluster| {
        let (a, b) = (cluster.client(), cluster.client());
        mkdir(&a, "d");
        for i in 0..20 {
            create(&a, &format!("d/f{i}"));
            stat(&b, &format!("d/f{i}")).unwrap();
        }
        rename(&a, "d", "e").unwrap();
        for i in 0..20 {
            assert_eq!(stat(&b, &format!("d/f{i}")), Err(Errno::ENOENT));
            stat(&b, &format!("e/f{i}")).unwrap();
        }
        mkdir(&a, "d");
        create(&b, "d/new");
        assert_eq!(names(&a, "d"), ["new"]);
    });
}

#[test]
fn rmdir_wants_an_empty_directory() {
    on_all_pools(|cluster| {
        let (a, b) = (cluster.client(), cluster.client());
        mkdir(&a, "d");
        create(&a, "d/f");
        let rmdir = |c: &Client, p: &str| {
            c.rmdir(Ino::ROOT, p.as_bytes(), &cred()).map(|_| ()).map_err(|e| e.errno())
        };
        assert_eq!(rmdir(&b, "d"), Err(Errno::ENOTEMPTY));
        assert_eq!(rmdir(&b, "d/f"), Err(Errno::ENOTDIR));
        a.unlink(Ino::ROOT, b"d/f", &cred()).unwrap();
        let gone = stat(&b, "d").unwrap().ino;
        rmdir(&b, "d").unwrap();
        let late = a.open(Ino::ROOT, b"d/g", RDWR_CREAT, 0o644, &cred());
        assert_eq!(late.unwrap_err().errno(), Errno::ENOENT);
        let late = a.open(gone, b"g", RDWR_CREAT, 0o644, &cred());
        assert_eq!(late.unwrap_err().errno(), Errno::ENOENT, "nothing can be made in a removed directory");
    });
}

/// An unlinked file lives as long as somebody has it open, then its space comes back on
/// all daemons.
#[test]
fn unlinked_files_live_until_they_are_closed() {
    on_all_pools(|cluster| {
        let (a, b) = (cluster.client(), cluster.client());
        let ino = create(&a, "f").ino;
        let data = vec![7u8; 1_000_000];
        a.write(ino, 0, &data).unwrap();
        b.unlink(Ino::ROOT, b"f", &cred()).unwrap();
        let mut buf = vec![0; data.len()];
        assert_eq!(a.read(ino, 0, &mut buf).unwrap(), data.len());
        assert!(buf == data);
        assert_eq!(a.get_attr(ino).unwrap().nlink, 0);
        a.release(ino);
        eventually("the object to go", || a.get_attr(ino).is_err());
        eventually("its space to come back", || {
            (0..a.members() as u16).all(|daemon| match a.request(daemon, &Request::StatFs {}).unwrap() {
                Reply::Space { stat } => stat.used == 0,
                other => panic!("{other:?}"),
            })
        });
    });
}

/// What one client makes, moves and removes in a directory shows at once in its link count and times to another.
#[test]
fn directories_tell_what_others_change_in_them() {
    on_all_pools(|cluster| {
        let (a, b) = (cluster.client(), cluster.client());
        mkdir(&a, "dir");
        let looked = |links: u32, since: Attr| {
            let now = stat(&b, "dir").unwrap();
            assert_eq!(now.nlink, links);
            assert!(now.mtime > since.mtime && now.ctime >= now.mtime, "{now:?} after {since:?}");
            now
        };
        let mut seen = stat(&b, "dir").unwrap();
        for i in 0..8 {
            mkdir(&a, &format!("dir/d{i}"));
            seen = looked(3 + i, seen);
            create(&a, &format!("dir/f{i}"));
            seen = looked(3 + i, seen);
        }
        rename(&a, "dir/f0", "dir/f9").unwrap();
        seen = looked(10, seen);
        a.unlink(Ino::ROOT, b"dir/f9", &cred()).unwrap();
        seen = looked(10, seen);
        a.rmdir(Ino::ROOT, b"dir/d0", &cred()).unwrap();
        looked(9, seen);
    });
}

#[test]
fn links_count_and_share() {
    on_all_pools(|cluster| {
        let client = cluster.client();
        let ino = create(&client, "f").ino;
        for i in 0..10 {
            let to = format!("l{i}");
            client.link(Ino::ROOT, b"f", Ino::ROOT, to.as_bytes(), false, &cred()).unwrap();
            let again = client.link(Ino::ROOT, b"f", Ino::ROOT, to.as_bytes(), false, &cred());
            assert_eq!(again.unwrap_err().errno(), Errno::EEXIST);
        }
        client.write(ino, 0, b"shared").unwrap();
        assert_eq!((stat(&client, "l9").unwrap().nlink, stat(&client, "l9").unwrap().size), (11, 6));
        for i in 0..10 {
            client.unlink(Ino::ROOT, format!("l{i}").as_bytes(), &cred()).unwrap();
        }
        assert_eq!(stat(&client, "f").unwrap().nlink, 1);
        client.symlink(b"f", Ino::ROOT, b"s", &cred()).unwrap();
        assert_eq!(stat(&client, "s").unwrap().kind(), FileKind::Symlink);
        assert_eq!(client.stat(Ino::ROOT, b"s", true, &cred()).unwrap().inside().unwrap().ino, ino);
        client.symlink(b"loop", Ino::ROOT, b"loop", &cred()).unwrap();
        let error = client.stat(Ino::ROOT, b"loop", true, &cred()).unwrap_err();
        assert_eq!(error.errno(), Errno::ELOOP);
    });
}

/// F7: writers to disjoint ranges, also within one block, never damage each other.
#[test]
fn f7_disjoint_writers_do_not_interfere() {
    let cluster = Cluster::start(3);
    let ino = create(&cluster.client(), "shared").ino;
    const WRITERS: usize = 4;
    const PIECE: usize = 1000;
    const ROUNDS: usize = 100;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let client = cluster.client();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let offset = (round * WRITERS + writer) * PIECE;
                    client.write(ino, offset as u64, &[writer as u8 + 1; PIECE]).unwrap();
                }
            });
        }
    });
    let client = cluster.client();
    let mut all = vec![0; WRITERS * PIECE * ROUNDS + 1];
    assert_eq!(client.read(ino, 0, &mut all).unwrap(), WRITERS * PIECE * ROUNDS);
    for (i, piece) in all[..WRITERS * PIECE * ROUNDS].chunks(PIECE).enumerate() {
        assert!(piece.iter().all(|b| *b == (i % WRITERS) as u8 + 1), "piece {i}");
    }
}

/// Appends of many clients neither overlap nor leave gaps.
#[test]
fn appends_line_up() {
    let cluster = Cluster::start(2);
    let ino = create(&cluster.client(), "log").ino;
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let client = cluster.client();
            scope.spawn(move || {
                for _ in 0..200 {
                    client.append(ino, &[b'a' + writer; 37]).unwrap();
                }
            });
        }
    });
    let client = cluster.client();
    let mut all = vec![0; 4 * 200 * 37 + 1];
    assert_eq!(client.read(ino, 0, &mut all).unwrap(), 4 * 200 * 37);
    let mut counts = [0; 4];
    for line in all[..4 * 200 * 37].chunks(37) {
        assert!(line.iter().all(|b| *b == line[0]));
        counts[usize::from(line[0] - b'a')] += 1;
    }
    assert_eq!(counts, [200; 4]);
}

/// F13: each operation asks the owners only.
#[test]
fn f13_operations_ask_owners_only() {
    let cluster = Cluster::start(4);
    let client = cluster.client();
    mkdir(&client, "d");
    // The first word with each daemon tells its directory epoch and empties the cache.
    for daemon in 0..4 {
        client.request(daemon, &Request::Ping {}).unwrap();
    }
    create(&client, "d/warm");
    for i in 0..40 {
        let name = format!("f{i}");
        let path = format!("d/{name}");
        let dir = stat(&client, "d").unwrap().ino;
        let owner = usize::from(tidepool_placement::entry_owner(dir, name.as_bytes(), 4));
        let mut expected = client.request_counts();
        let known = client.known_answers();
        let attr = create(&client, &path);
        stat(&client, &path).unwrap();
        // Once there is a lane, what create did stands on the owner's board.
        let known = client.known_answers() - known;
        assert!(known <= 1);
        client.write(attr.ino, 0, &[1; 100]).unwrap();
        client.read(attr.ino, 0, &mut [0; 100]).unwrap();
        client.release(attr.ino);
        client.unlink(Ino::ROOT, path.as_bytes(), &cred()).unwrap();
        expected[owner] += 6 - known;
        assert_eq!(client.request_counts(), expected, "one request each, all to the owner");
    }
}

/// F10: permissions count by default, and not in a relaxed pool.
#[test]
fn f10_permissions_are_a_switch() {
    for (mode, allowed) in
        [(tidepool_client::PoolMode::Posix, false), (tidepool_client::PoolMode::Relaxed, true)]
    {
        let cluster = Cluster::with(Options { mode, ..Options::default() });
        let client = cluster.client();
        let file = create(&client, "secret");
        let closed = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        client.set_attr(file.ino, &closed, &cred()).unwrap();
        let stranger = tidepool_client::Cred { uid: 12345, gid: 12345, groups: vec![], umask: 0 };
        let opened = client.open(Ino::ROOT, b"secret", libc::O_RDONLY, 0, &stranger);
        assert_eq!(opened.is_ok(), allowed);
        let made = client.mkdir(Ino::ROOT, b"sub", 0o777, &stranger);
        assert_eq!(made.is_ok(), allowed);
    }
}

/// As utimensat(2) has it: who may write may have an object look changed now; other times are the owner's to give, whoever writes.
#[test]
fn times_are_the_owners_and_now_is_every_writers() {
    on_all_pools(|cluster| {
        let client = cluster.client();
        let ino = create(&client, "f").ino;
        let old = TimeSpec { sec: 1_000_000_000, nsec: 123_456_789 };
        let set = |atime, mtime, cred: &Cred| {
            client.set_attr(ino, &SetAttr { atime, mtime, ..SetAttr::default() }, cred).map_err(|e| e.errno())
        };
        let chmod = |mode| {
            let mode = SetAttr { mode: Some(mode), ..SetAttr::default() };
            client.set_attr(ino, &mode, &cred()).unwrap();
        };
        let now = Some(TimeSpec::NOW);
        let stranger = Cred { uid: 12345, gid: 12345, groups: vec![], umask: 0 };
        for (mode, touches) in [(0o666, Ok(())), (0o644, Err(Errno::EACCES))] {
            chmod(mode);
            assert_eq!(set(now, now, &stranger).map(drop), touches, "{mode:o}");
            for (atime, mtime) in
                [(Some(old), Some(old)), (now, Some(old)), (Some(old), None), (now, None), (None, now)]
            {
                let refused = set(atime, mtime, &stranger).map(drop);
                assert_eq!(refused, Err(Errno::EPERM), "{mode:o} {atime:?} {mtime:?}");
            }
        }
        let attr = set(now, Some(old), &cred()).unwrap();
        assert!(attr.mtime == old && attr.atime.nsec < 1_000_000_000 && attr.atime > old, "{attr:?}");
    });
}

#[test]
fn extended_attributes_and_times() {
    on_all_pools(|cluster| {
        let client = cluster.client();
        let ino = create(&client, "f").ino;
        client.set_xattr(ino, b"user.b", b"2", 0).unwrap();
        client.set_xattr(ino, b"user.a", b"1", 0).unwrap();
        assert_eq!(client.list_xattr(ino).unwrap(), [b"user.a".to_vec(), b"user.b".to_vec()]);
        assert_eq!(client.get_xattr(ino, b"user.b").unwrap(), b"2");
        assert_eq!(
            client.set_xattr(ino, b"user.a", b"x", libc::XATTR_CREATE).unwrap_err().errno(),
            Errno::EEXIST
        );
        client.remove_xattr(ino, b"user.a").unwrap();
        assert_eq!(client.get_xattr(ino, b"user.a").unwrap_err().errno(), Errno::ENODATA);

        mkdir(&client, "d");
        create(&client, "d/x");
        let old = tidepool_types::TimeSpec { sec: 1_000_000_000, nsec: 123_456_789 };
        let times = SetAttr { mtime: Some(old), atime: Some(old), ..SetAttr::default() };
        let dir = stat(&client, "d").unwrap().ino;
        client.set_attr(dir, &times, &cred()).unwrap();
        assert_eq!(stat(&client, "d").unwrap().mtime, old, "a directory's set time survives earlier changes");
        create(&client, "d/y");
        assert!(stat(&client, "d").unwrap().mtime > old, "and yields to later ones");
    });
}

#[test]
fn holes_are_found() {
    let cluster = Cluster::start(3);
    let client = cluster.client();
    let ino = create(&client, "sparse").ino;
    let gib = 1u64 << 30;
    client.write(ino, 10 * gib - 4096, &[1; 4096]).unwrap();
    client.write(ino, gib, &[2; 100_000]).unwrap();
    let attr = client.get_attr(ino).unwrap();
    assert_eq!((attr.size, attr.blocks), (10 * gib, 1 + 25));
    assert_eq!(client.next_data(ino, 0).unwrap(), Some(gib));
    assert_eq!(client.next_hole(ino, gib).unwrap(), gib + 102_400);
    assert_eq!(client.next_data(ino, gib + 102_400).unwrap(), Some(10 * gib - 4096));
    assert_eq!(client.next_hole(ino, 10 * gib - 4096).unwrap(), 10 * gib);
    assert_eq!(client.next_data(ino, 10 * gib).unwrap_err().errno(), Errno::ENXIO);
}

/// Opening by O_PATH takes no handle, and so gives none back.
#[test]
fn path_only_opens_leave_handles_alone() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let ino = create(&client, "f").ino;
    client.open(Ino::ROOT, b"f", libc::O_PATH, 0, &cred()).unwrap();
    client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(client.get_attr(ino).unwrap().nlink, 0, "the real handle still keeps the object");
}

/// A client that dies in the middle of a rename leaves it done or undone, never half: the
/// next one to come by finishes or undoes it.
#[test]
fn a_dead_clients_rename_is_finished_or_undone() {
    use tidepool_placement::entry_owner;
    use tidepool_types::TxnId;
    for commits in [false, true] {
        let cluster = Cluster::start(3);
        let client = cluster.client();
        for dir in ["from", "to", "from/d"] {
            mkdir(&client, dir);
        }
        let (from, to) = (stat(&client, "from").unwrap().ino, stat(&client, "to").unwrap().ino);
        let dir = stat(&client, "from/d").unwrap().ino;
        create(&client, "from/d/f");
        // The dead client's requests, up to the point where it dies.
        let txn = TxnId([7; 16]);
        let (source, decider) = (entry_owner(from, b"d", 3), entry_owner(to, b"e", 3));
        let name: Box<[u8]> = (*b"d").into();
        let held = client.request(source, &Request::Prepare { txn, decider, parent: from, name }).unwrap();
        assert!(matches!(held, Reply::Entry { .. }), "{held:?}");
        let commit = Request::CommitRename {
            txn,
            parent: to,
            name: (*b"e").into(),
            ino: dir,
            kind: FileKind::Directory,
            no_replace: false,
            replaces: None,
        };
        if commits {
            assert_eq!(client.request(decider, &commit).unwrap(), Reply::Replaced { ino: None, kind: None });
        }
        let visitor = cluster.client();
        let (here, there) = (stat(&visitor, "from/d"), stat(&visitor, "to/e"));
        assert_eq!((here.is_ok(), there.is_ok()), (!commits, commits));
        assert_eq!(visitor.parent_of(dir).unwrap(), if commits { to } else { from });
        let place = if commits { "to/e/f" } else { "from/d/f" };
        stat(&visitor, place).unwrap();
        if !commits {
            // Should the client turn out to be only slow, it is too late for it.
            let late = client.request(decider, &commit).unwrap();
            assert!(matches!(late, Reply::Failed { errno: Errno::ECANCELED, .. }), "{late:?}");
        }
    }
}

/// Daemons that share a file system do not multiply its space.
#[test]
fn shared_storage_counts_once() {
    let cluster = Cluster::start(3);
    let client = cluster.client();
    let stat = client.stat_fs().unwrap();
    let Reply::Space { stat: one } = client.request(1, &Request::StatFs {}).unwrap() else { panic!("space") };
    assert_eq!(stat.blocks * stat.block_size, one.total);
}

/// F9: a pool in compatibility mode refuses rename and links with an I/O error, as GekkoFS.
#[test]
fn f9_compat_mode_has_no_rename_and_no_links() {
    let mode = tidepool_client::PoolMode::Compat;
    let cluster = Cluster::with(Options { mode, ..Options::default() });
    let client = cluster.client();
    create(&client, "f");
    assert_eq!(rename(&client, "f", "g"), Err(Errno::EIO));
    let linked = client.link(Ino::ROOT, b"f", Ino::ROOT, b"l", false, &cred());
    assert_eq!(linked.unwrap_err().errno(), Errno::EIO);
    let linked = client.symlink(b"f", Ino::ROOT, b"s", &cred());
    assert!(linked.unwrap_err().to_string().contains("--mode compat"));
    assert_eq!((names(&client, ""), stat(&client, "f").unwrap().nlink), (vec!["f".to_string()], 1));
}

/// copy_file_range: random ranges between files, sparse ones too, match byte vectors, and the daemons move the data.
#[test]
fn copies_within_the_pool_match_byte_vectors() {
    let mut rng = Rng::from_env("copies_within_the_pool_match_byte_vectors");
    for daemons in [1, 3] {
        let cluster = Cluster::with(Options {
            daemons,
            layout: Layout::wide(64 << 10, 0).unwrap(),
            ..Options::default()
        });
        let (client, other) = (cluster.client(), cluster.client());
        let inos = ["a", "b"].map(|name| create(&client, name).ino);
        for ino in inos {
            other.reopen(ino).unwrap();
        }
        let mut models: [Vec<u8>; 2] = Default::default();
        for round in 0..60 {
            let (n, at, len) =
                (rng.below(2) as usize, rng.below(600_000) as usize, rng.below(90_000) as usize + 1);
            let data = rng.bytes(len);
            client.write(inos[n], at as u64, &data).unwrap();
            put(&mut models[n], at, &data);
            let (from, to) = (rng.below(2) as usize, rng.below(2) as usize);
            let (at, offset, len) = (rng.below(700_000), rng.below(700_000), rng.below(400_000) + 1);
            let real = len.min((models[from].len() as u64).saturating_sub(at));
            let overlap = from == to && real > 0 && at < offset + real && offset < at + real;
            let copied = other.copy_range(inos[from], at, inos[to], offset, len);
            if overlap {
                assert_eq!(copied.unwrap_err().errno(), Errno::EINVAL);
                continue;
            }
            assert_eq!(copied.unwrap() as u64, real, "round {round}");
            if real > 0 {
                let data = models[from][at as usize..(at + real) as usize].to_vec();
                put(&mut models[to], offset as usize, &data);
            }
            for (ino, model) in inos.iter().zip(&models) {
                let mut got = vec![7; model.len() + 1];
                assert_eq!(client.read(*ino, 0, &mut got).unwrap(), model.len());
                assert!(got[..model.len()] == *model, "{daemons} daemons, round {round}");
            }
        }
        assert_eq!(
            other.bytes_uncopied() + other.bytes_written_direct(),
            0,
            "nothing went through the client"
        );
        let sent = other.request_counts().iter().sum::<u64>();
        assert!(sent < 60 * 40, "{sent} requests, each of which may copy 64 KiB");
    }
}

fn put(model: &mut Vec<u8>, at: usize, data: &[u8]) {
    model.resize(model.len().max(at + data.len()), 0);
    model[at..at + data.len()].copy_from_slice(data);
}

/// Replies that do not fit a lane come over the socket, in the order of their requests although several workers
/// of the daemon serve the lane.
#[test]
fn replies_too_large_for_a_lane_keep_their_order() {
    const CHUNK: usize = 1 << 20;
    let layout = Layout::wide(CHUNK as u64, 0).unwrap();
    let cluster = Cluster::with(Options { daemons: 1, layout, ..Options::default() });
    let writer = cluster.client();
    let data: Vec<u8> = (0..8).flat_map(|chunk| vec![chunk as u8 + 1; CHUNK]).collect();
    let files: Vec<Ino> = (0..8).map(|i| create(&writer, &format!("f{i}")).ino).collect();
    for ino in &files {
        assert_eq!(writer.write(*ino, 0, &data).unwrap(), data.len());
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut buf = vec![0; data.len()];
                for _ in 0..6 {
                    // A new client reads each file through the daemon a few times before it reads the daemon's own files.
                    let client = cluster.client();
                    (0..20).for_each(|_| drop(client.request(0, &Request::Ping {}).unwrap()));
                    for ino in &files {
                        buf.fill(0);
                        // Requests that nobody waits for may still be in the lane when the reads get there.
                        (0..3).for_each(|_| client.release(*ino));
                        assert_eq!(client.read(*ino, 0, &mut buf).unwrap(), data.len());
                        assert!(buf == data);
                    }
                }
            });
        }
    });
}
