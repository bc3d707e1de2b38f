//! Listings with attributes: they say what asking for each object says, in a few requests.

use tidepool_client::Client;
use tidepool_fsd::Backend;
use tidepool_testkit::{Cluster, Options, cred};
use tidepool_types::{Attr, Errno, Ino};
use tidepool_wire::message::{Reply, Request};

const FILES: u64 = 1_500;
const DIRS: u64 = 30;

fn create(client: &Client, path: &str) -> Attr {
    let flags = libc::O_RDWR | libc::O_CREAT;
    client.open(Ino::ROOT, path.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap()
}

fn mkdir(client: &Client, path: &str) -> Attr {
    client.mkdir(Ino::ROOT, path.as_bytes(), 0o755, &cred()).unwrap().inside().unwrap()
}

fn requests(client: &Client) -> u64 {
    client.request_counts().iter().sum()
}

/// Each kind of object, some of them not at home where their entry is.
fn fill(client: &Client) -> Ino {
    let dir = mkdir(client, "d").ino;
    for i in 0..FILES {
        let file = create(client, &format!("d/f{i}"));
        client.write(file.ino, 0, &vec![1; (i % 100) as usize]).unwrap();
        client.release(file.ino);
        if i % 3 == 0 {
            let (from, to) = (format!("d/f{i}"), format!("d/moved{i}"));
            client.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), 0, &cred()).unwrap();
        }
    }
    for i in 0..DIRS {
        mkdir(client, &format!("d/sub{i}"));
        for j in 0..i {
            mkdir(client, &format!("d/sub{i}/{j}"));
        }
    }
    client.symlink(b"target", Ino::ROOT, b"d/link", &cred()).unwrap();
    client.link(Ino::ROOT, b"d/f1", Ino::ROOT, b"d/hard", false, &cred()).unwrap();
    dir
}

#[test]
fn attributes_come_with_a_listing() {
    let pools = [
        Options { daemons: 1, ..Options::default() },
        Options { daemons: 4, ..Options::default() },
        Options { daemons: 4, tcp_only: true, ..Options::default() },
        Options { daemons: 2, backend: Backend::Lmdb, ..Options::default() },
    ];
    for options in pools {
        let daemons = options.daemons as u64;
        let cluster = Cluster::with(options);
        let dir = fill(&cluster.client());
        let client = cluster.client();
        client.get_attr(dir).unwrap();
        let before = requests(&client);
        let plus = client.read_dir_plus(dir).unwrap();
        let asked = requests(&client) - before;
        assert_eq!(plus.len() as u64, FILES + DIRS + 2);
        // Pages of 512, one question for what is at home elsewhere, one for parts of directories.
        let pages = plus.len() as u64 / 512 + 2 * daemons;
        assert!(asked <= pages + 2 * daemons, "{asked} requests to {daemons} daemons");

        let mut listed: Vec<_> = plus.iter().map(|(entry, _)| entry.clone()).collect();
        let mut plain = client.read_dir(dir).unwrap();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        plain.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(listed, plain);
        for (entry, attr) in plus {
            assert_eq!(attr, client.get_attr(entry.ino).ok(), "{entry:?}");
            assert_eq!(attr.map(|a| a.kind()), Some(entry.kind));
        }
    }
}

/// What was acknowledged before a listing began shows in it, whoever did it.
#[test]
fn listings_are_never_older_than_their_beginning() {
    let cluster = Cluster::start(3);
    let (writer, reader) = (cluster.client(), cluster.client());
    let dir = mkdir(&writer, "d").ino;
    let files: Vec<Ino> = (0..20).map(|i| create(&writer, &format!("d/{i}")).ino).collect();
    for round in 1..100 {
        for ino in &files {
            writer.write(*ino, round, b"x").unwrap();
        }
        let plus = reader.read_dir_plus(dir).unwrap();
        assert!(plus.iter().all(|(_, attr)| attr.as_ref().is_some_and(|a| a.size == round + 1)), "{round}");
    }
}

#[test]
fn own_writes_that_no_home_knows_of_show() {
    let cluster = Cluster::with(Options { size_cache: true, ..Options::default() });
    let client = cluster.client();
    let dir = mkdir(&client, "d").ino;
    let file = create(&client, "d/f");
    let end = (0..50).fold(0, |at, _| at + client.write(file.ino, at, &vec![7; 40 << 10]).unwrap() as u64);
    assert!(!client.is_settled(), "the size cache is on");
    let plus = client.read_dir_plus(dir).unwrap();
    assert_eq!(plus[0].1.as_ref().map(|a| a.size), Some(end));
    client.write(file.ino, end, &[1]).unwrap();
    assert_eq!(client.get_attrs(&[file.ino]).unwrap()[&file.ino].size, end + 1);
}

#[test]
fn objects_that_are_gone_are_left_out() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    let kept = create(&client, "kept").ino;
    let gone = create(&client, "gone").ino;
    client.release(gone);
    client.unlink(Ino::ROOT, b"gone", &cred()).unwrap();
    let known = client.get_attrs(&[kept, gone, kept]).unwrap();
    assert_eq!(known.keys().collect::<Vec<_>>(), [&kept]);

    let many = Request::GetAttrs { inos: vec![kept; 2_001] };
    let refused = client.request(kept.home(), &many).unwrap();
    assert!(matches!(refused, Reply::Failed { errno: Errno::EINVAL, .. }), "{refused:?}");
    let many = Request::DirStats { dirs: vec![Ino::ROOT; 2_001] };
    let refused = client.request(0, &many).unwrap();
    assert!(matches!(refused, Reply::Failed { errno: Errno::EINVAL, .. }), "{refused:?}");
}
