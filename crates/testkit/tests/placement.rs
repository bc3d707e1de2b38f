//! Placement by choice: where the data of files lie, counted at real daemons.

use rustix::process::Signal;
use tidepool_client::{Client, Hint, Wanted};
use tidepool_testkit::{Cluster, Options, Rng, cred, eventually};
use tidepool_types::{Attr, Errno, FileKind, Ino, Layout, Placement, SetAttr};
use tidepool_wire::message::{Reply, Request};

const DAEMONS: usize = 4;
const CHUNK: u64 = 64 << 10;
const BLOCK: u64 = 4096;

fn wide(chunk_size: u64, stripe: u16) -> Layout {
    Layout::wide(chunk_size, stripe).unwrap()
}

fn create(client: &Client, path: &str) -> Attr {
    let flags = libc::O_RDWR | libc::O_CREAT;
    client.open(Ino::ROOT, path.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap()
}

fn mkdir(client: &Client, path: &str) -> Attr {
    client.mkdir(Ino::ROOT, path.as_bytes(), 0o755, &cred()).unwrap().inside().unwrap()
}

fn stat(client: &Client, path: &str) -> Attr {
    client.stat(Ino::ROOT, path.as_bytes(), true, &cred()).unwrap().inside().unwrap()
}

fn set_layout(client: &Client, dir: Ino, layout: Layout) {
    assert_eq!(client.set_layout(dir, Some(layout), &cred()).unwrap().layout, Some(layout));
}

/// Blocks of an object that each daemon has stored, as the daemons count them.
fn stored(client: &Client, ino: Ino) -> Vec<u64> {
    let at = |daemon| {
        let mut after = None;
        let mut blocks = 0;
        loop {
            let reply = client.request(daemon, &Request::Scrub { after, max: 64 }).unwrap();
            let Reply::Scrubbed { objects, more } = reply else { panic!("{reply:?}") };
            blocks += objects.iter().filter(|o| o.ino == ino).map(|o| o.blocks).sum::<u64>();
            after = objects.last().map(|o| o.ino);
            if !more {
                return blocks;
            }
        }
    };
    (0..DAEMONS as u16).map(at).collect()
}

/// Fills a file of so many chunks; the blocks that each daemon then has.
fn fill(client: &Client, file: &Attr, chunks: u64) -> Vec<u64> {
    let len = chunks * CHUNK;
    assert_eq!(client.write(file.ino, 0, &vec![7; len as usize]).unwrap() as u64, len);
    let stored = stored(client, file.ino);
    assert_eq!(stored.iter().sum::<u64>(), len / BLOCK);
    stored
}

#[test]
fn wide_striped_weighted_and_local_files_lie_as_they_say() {
    let weights = vec![6, 3, 1, 0];
    let cluster = Cluster::with(Options { daemons: DAEMONS, weights: weights.clone(), ..Options::default() });
    let client = cluster.client();
    let in_chunks = |blocks: Vec<u64>| blocks.iter().map(|b| b / (CHUNK / BLOCK)).collect::<Vec<_>>();

    let file = create(&client, "wide");
    assert_eq!(file.layout, Some(wide(CHUNK, 0)));
    let counts = in_chunks(fill(&client, &file, 200));
    assert!(counts.iter().all(|c| (30..=70).contains(c)), "50 each: {counts:?}");

    let dir = mkdir(&client, "striped");
    set_layout(&client, dir.ino, wide(CHUNK, 2));
    let file = create(&client, "striped/f");
    let mut counts = in_chunks(fill(&client, &file, 200));
    assert_eq!(counts[usize::from(file.ino.home())], 100, "the first chunk lies at home: {counts:?}");
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 100, 100]);

    let dir = mkdir(&client, "weighted");
    set_layout(&client, dir.ino, Layout::weighted(CHUNK).unwrap());
    let file = create(&client, "weighted/f");
    let mut counts = in_chunks(fill(&client, &file, 401));
    counts[usize::from(file.ino.home())] -= 1;
    for (count, weight) in counts.iter().zip(&weights) {
        let share = f64::from(*weight) / 10.0;
        let four_sigma = 4.0 * (400.0 * share * (1.0 - share)).sqrt();
        let off = (*count as f64 - 400.0 * share).abs();
        assert!(off <= four_sigma, "of 400 chunks by {weights:?}: {counts:?}");
    }

    let dir = mkdir(&client, "local");
    set_layout(&client, dir.ino, Layout::LOCAL);
    let file = create(&client, "local/f");
    let counts = fill(&client, &file, 300);
    assert_eq!(counts[usize::from(file.ino.home())], 300 * CHUNK / BLOCK);
}

/// A file made with "local" lies on its maker's node, whoever owns its name; all that its maker does with its data
/// stays on the node.
#[test]
fn local_files_are_used_without_other_nodes() {
    let cluster = Cluster::with(Options {
        daemons: DAEMONS,
        tcp_too: true,
        layout: Layout::LOCAL,
        ..Options::default()
    });
    let other = cluster.client_on(3);
    for node in 0..3 {
        let client = cluster.client_on(node);
        for i in 0..8 {
            let path = format!("f-{node}-{i}");
            let file = create(&client, &path);
            assert_eq!((usize::from(file.ino.home()), file.layout), (node, Some(Layout::LOCAL)), "{path}");
            let before = client.request_counts();
            let data = vec![i as u8 + 1; 3 << 20];
            assert_eq!(client.write(file.ino, 5, &data).unwrap(), data.len());
            let mut back = vec![0; data.len()];
            assert_eq!(client.read(file.ino, 5, &mut back).unwrap(), data.len());
            assert!(back == data);
            client.append(file.ino, &data[..100]).unwrap();
            client.fsync(file.ino).unwrap();
            client.get_attr(file.ino).unwrap();
            let after = client.request_counts();
            let asked = |daemon: usize| after[daemon] - before[daemon];
            assert!(asked(node) >= 4, "write, append twice, fsync: {after:?}");
            assert!((0..DAEMONS).all(|d| d == node || asked(d) == 0), "{before:?} {after:?}");

            let seen = stat(&other, &path);
            assert_eq!((seen.ino, seen.size), (file.ino, 5 + data.len() as u64 + 100));
            assert_eq!(other.read(file.ino, 5, &mut back).unwrap(), data.len());
            assert!(back == data);
            client.unlink(Ino::ROOT, path.as_bytes(), &cred()).unwrap();
            client.release(file.ino);
        }
    }
    assert_eq!(other.read_dir(Ino::ROOT).unwrap(), []);
}

/// Making local files keeps the rules of open(2), also when two make the same name.
#[test]
fn local_files_are_made_once() {
    let cluster = Cluster::with(Options {
        daemons: DAEMONS,
        tcp_too: true,
        layout: Layout::LOCAL,
        ..Options::default()
    });
    let clients: Vec<Client> = (0..DAEMONS).map(|node| cluster.client_on(node)).collect();
    let open = |client: &Client, path: &str, flags| {
        let opened = client.open(Ino::ROOT, path.as_bytes(), flags, 0o644, &cred());
        opened.map_err(|e| e.errno()).map(|walk| walk.inside().unwrap())
    };
    for round in 0..20 {
        let path = format!("f{round}");
        let made: Vec<Result<Attr, Errno>> = std::thread::scope(|scope| {
            let (open, path) = (&open, &path);
            let one =
                |client| scope.spawn(move || open(client, path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL));
            let threads: Vec<_> = clients.iter().map(one).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let won: Vec<&Attr> = made.iter().filter_map(|m| m.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "{made:?}");
        assert!(made.iter().all(|m| m.as_ref().err().is_none_or(|e| *e == Errno::EEXIST)), "{made:?}");
        for client in &clients {
            let opened = open(client, &path, libc::O_RDWR | libc::O_CREAT).unwrap();
            assert_eq!(opened.ino, won[0].ino);
        }
    }
    // Objects of those who lost are gone again.
    let root = clients[0].read_dir(Ino::ROOT).unwrap();
    let mut objects = 0;
    for daemon in 0..DAEMONS as u16 {
        match clients[0].request(daemon, &Request::Status {}).unwrap() {
            Reply::Report { status } => objects += status.space.objects,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((root.len(), objects), (20, 21), "20 files and the root");
}

/// Without a daemon on its node a client makes a wide file.
#[test]
fn local_without_a_daemon_here_is_wide() {
    let cluster =
        Cluster::with(Options { daemons: 2, tcp_only: true, layout: Layout::LOCAL, ..Options::default() });
    let mut pool = cluster.pool_file();
    pool.members.iter_mut().for_each(|member| member.boot_id = "another node".into());
    let client = Client::new(pool);
    assert_eq!(create(&client, "f").layout, Some(Layout::default()));
}

/// A12: all chunks of a file lie on the daemons of one group, counted where they are stored: the maker's, or the one that
/// the directory names. The names of files spread over all daemons as ever.
#[test]
fn a12_chunks_stay_on_their_groups_daemons() {
    let groups = ["leaf1", "leaf1", "leaf2", "leaf2"].map(String::from).to_vec();
    let layout = Layout::group(CHUNK, None).unwrap();
    let cluster =
        Cluster::with(Options { daemons: DAEMONS, tcp_too: true, layout, groups, ..Options::default() });
    let mut homes = [0; DAEMONS];
    for node in 0..DAEMONS {
        let client = cluster.client_on(node);
        for number in 0..8 {
            let file = create(&client, &format!("from{node}.{number}"));
            let counts = fill(&client, &file, 60);
            let own = if node < 2 { 0..2 } else { 2..4 };
            assert!((0..DAEMONS).all(|d| (counts[d] > 0) == own.contains(&d)), "node {node}: {counts:?}");
            homes[usize::from(file.ino.home())] += 1;
        }
    }
    assert!(homes.iter().all(|count| *count > 0), "first chunks spread within groups: {homes:?}");
    let client = cluster.client_on(0);
    let dir = mkdir(&client, "named");
    set_layout(&client, dir.ino, Layout::group(CHUNK, Some(1)).unwrap());
    let file = create(&client, "named/f");
    let counts = fill(&client, &file, 60);
    assert!(counts[0] == 0 && counts[1] == 0 && counts[2] > 0 && counts[3] > 0, "{counts:?}");
    let mut back = vec![0; 60 * CHUNK as usize];
    assert_eq!(cluster.client_on(3).read(file.ino, 0, &mut back).unwrap(), back.len());
    assert!(back.iter().all(|b| *b == 7));
    let none = client.set_layout(dir.ino, Some(Layout::group(CHUNK, Some(2)).unwrap()), &cred()).unwrap_err();
    assert!(none.to_string().contains("no group 2"), "{none}");
}

#[test]
fn directories_hand_their_layout_down() {
    let cluster = Cluster::with(Options { daemons: DAEMONS, ..Options::default() });
    let (client, other) = (cluster.client(), cluster.client());
    let dir = mkdir(&client, "d");
    assert_eq!(dir.layout, None, "as the pool says");
    assert_eq!(stat(&other, "d/.").layout, None);
    let before = create(&client, "d/before");
    let layout = wide(1 << 20, 3);
    set_layout(&client, dir.ino, layout);
    // Another client that knew the directory already makes the next file in it.
    assert_eq!(create(&other, "d/f").layout, Some(layout));
    assert_eq!(mkdir(&other, "d/sub").layout, Some(layout));
    assert_eq!(create(&client, "d/sub/f").layout, Some(layout));
    assert_eq!(stat(&other, "d/before").layout, before.layout, "files keep theirs");
    client.symlink(b"f", Ino::ROOT, b"d/link", &cred()).unwrap();
    let link = client.lookup(dir.ino, b"link").unwrap();
    assert_eq!((link.kind(), link.layout), (FileKind::Symlink, None));

    // A rename into another directory changes nothing, and the data are where they were.
    let file = stat(&client, "d/f");
    client.write(file.ino, 0, &vec![9; 3 << 20]).unwrap();
    client.rename(Ino::ROOT, b"d/f", Ino::ROOT, b"g", 0, &cred()).unwrap();
    let moved = stat(&other, "g");
    assert_eq!((moved.ino, moved.layout), (file.ino, Some(layout)));
    let mut back = vec![0; 3 << 20];
    assert_eq!(cluster.client().read(moved.ino, 0, &mut back).unwrap(), back.len());
    assert!(back.iter().all(|b| *b == 9));

    assert_eq!(client.set_layout(dir.ino, None, &cred()).unwrap().layout, None);
    assert_eq!(create(&other, "d/after").layout, Some(wide(CHUNK, 0)));
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let file = create(&client, "f");
    let set = |ino, layout, cred: &_| client.set_layout(ino, Some(layout), cred).unwrap_err();
    assert_eq!(set(file.ino, Layout::LOCAL, &cred()).errno(), Errno::ENOTDIR);
    let weighted = set(Ino::ROOT, Layout::weighted(CHUNK).unwrap(), &cred());
    assert!(weighted.to_string().contains("--weights"), "{weighted}");
    let group = set(Ino::ROOT, Layout::group(CHUNK, None).unwrap(), &cred());
    assert!(group.to_string().contains("--groups"), "{group}");
    let stranger = tidepool_client::Cred { uid: 4242, gid: 4242, groups: Vec::new(), umask: 0 };
    assert_eq!(set(Ino::ROOT, Layout::LOCAL, &stranger).errno(), Errno::EPERM);
}

#[test]
fn f32_hints_choose_by_name() {
    let hint = |pattern, wanted| Hint::new(pattern, wanted).unwrap();
    let placed = |placement| Wanted { placement: Some(placement), ..Wanted::default() };
    let hints = vec![
        hint("big.*", Wanted { chunk_size: Some(1 << 20), ..Wanted::default() }),
        hint("*.big", Wanted { chunk_size: Some(2 << 20), stripe: Some(2), ..Wanted::default() }),
        hint("proc*/", placed(Placement::Local)),
    ];
    let cluster = Cluster::with(Options { daemons: DAEMONS, hints, ..Options::default() });
    let client = cluster.client();
    let layout = |path: &str| create(&client, path).layout.unwrap();
    assert_eq!(layout("other"), wide(CHUNK, 0));
    assert_eq!(layout("a.big"), wide(2 << 20, 2));
    assert_eq!(layout("big.big"), wide(1 << 20, 0), "the first hint that matches counts");
    assert_eq!(layout("proc1"), wide(CHUNK, 0), "the pattern is for directories");
    assert_eq!(mkdir(&client, "proc2").layout, Some(Layout::LOCAL));
    assert_eq!(layout("proc2/f"), Layout::LOCAL);
    assert_eq!(layout("proc2/a.big"), wide(2 << 20, 2), "a stripe asks for wide");
}

/// Random operations on files of all layouts, beside byte vectors, whichever of two clients does them.
#[test]
fn a15_mixed_layouts_match_byte_vectors() {
    let mut rng = Rng::from_env("a15_mixed_layouts_match_byte_vectors");
    let cluster = Cluster::with(Options {
        daemons: DAEMONS,
        weights: vec![1, 0, 5, 2],
        groups: ["a", "b", "a", "b"].map(String::from).to_vec(),
        ..Options::default()
    });
    let clients = [cluster.client(), cluster.client()];
    let layouts = [
        wide(4096, 0),
        wide(8192, 3),
        wide(1 << 20, 2),
        Layout::LOCAL,
        Layout::weighted(16 << 10).unwrap(),
        wide(16 << 20, 0),
        Layout::group(8192, None).unwrap(),
        Layout::group(4096, Some(1)).unwrap(),
    ];
    let mut files: Vec<(Ino, Vec<u8>)> = Vec::new();
    for (i, layout) in layouts.into_iter().enumerate() {
        let dir = mkdir(&clients[0], &format!("d{i}"));
        set_layout(&clients[0], dir.ino, layout);
        files.push((create(&clients[1], &format!("d{i}/f")).ino, Vec::new()));
    }
    for _ in 0..1200 {
        let client = &clients[rng.below(2) as usize];
        let (ino, oracle) = &mut files[rng.below(layouts.len() as u64) as usize];
        let (offset, len) = (rng.below(300_000) as usize, rng.below(60_000) as usize + 1);
        match rng.below(8) {
            0..=3 => {
                let data = rng.bytes(len);
                assert_eq!(client.write(*ino, offset as u64, &data).unwrap(), len);
                oracle.resize(oracle.len().max(offset + len), 0);
                oracle[offset..offset + len].copy_from_slice(&data);
            }
            4 => {
                let size = SetAttr { size: Some(offset as u64), ..SetAttr::default() };
                client.set_attr(*ino, &size, &cred()).unwrap();
                oracle.resize(offset, 0);
            }
            5 => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                client.allocate(*ino, mode, offset as u64, len as u64).unwrap();
                let end = (offset + len).min(oracle.len());
                oracle[offset.min(end)..end].fill(0);
            }
            6 => {
                let data = rng.bytes(len % 9000);
                assert_eq!(client.append(*ino, &data).unwrap(), (oracle.len() as u64, data.len()));
                oracle.extend_from_slice(&data);
            }
            _ => {
                let mut buf = vec![0xaa; len];
                let count = client.read(*ino, offset as u64, &mut buf).unwrap();
                let end = (offset + len).min(oracle.len());
                assert!(buf[..count] == oracle[offset.min(end)..end]);
                if let Some(hole) = oracle[offset.min(end)..].iter().position(|b| *b != 0) {
                    let data = client.next_data(*ino, offset as u64).unwrap();
                    assert!(data.is_some_and(|at| at <= (offset + hole) as u64));
                }
            }
        }
    }
    for (ino, oracle) in &files {
        let attr = clients[0].get_attr(*ino).unwrap();
        assert_eq!(
            (attr.size, attr.stored_blocks()),
            (oracle.len() as u64, stored(&clients[0], *ino).iter().sum())
        );
        clients[0].fsync(*ino).unwrap();
    }
    for i in 0..files.len() {
        clients[1].unlink(Ino::ROOT, format!("d{i}/f").as_bytes(), &cred()).unwrap();
    }
    clients.iter().for_each(|client| files.iter().for_each(|(ino, _)| client.release(*ino)));
    tidepool_testkit::eventually("all data to go", || {
        files.iter().all(|(ino, _)| stored(&clients[0], *ino).iter().sum::<u64>() == 0)
    });
}

/// Chunks of removed files at other daemons go by a request for many of them, and not before these can be reached.
#[test]
fn chunks_of_removed_files_are_dropped_together() {
    const FILES: usize = 200;
    let cluster = Cluster::start(2);
    let client = cluster.client();
    set_layout(&client, Ino::ROOT, wide(CHUNK, 0));
    let mut names = Vec::new();
    for number in 0.. {
        let name = format!("f{number}");
        let file = create(&client, &name);
        // Its name and its record are at daemon 0, of its chunks some at daemon 1.
        if file.ino.home() == 0 {
            client.write(file.ino, 0, &[7; 6 * CHUNK as usize]).unwrap();
            names.push(name);
        }
        client.release(file.ino);
        if names.len() == FILES {
            break;
        }
    }
    let used = || {
        let Ok(Reply::Space { stat }) = client.request(1, &Request::StatFs {}) else { panic!("no space") };
        stat.used
    };
    let requests = || {
        let Ok(Reply::Report { status }) = client.request(1, &Request::Status {}) else {
            panic!("no report")
        };
        status.counters.iter().find(|(name, _)| name == "requests").unwrap().1
    };
    assert!(used() > 0);
    let before = requests();
    cluster.signal(1, Signal::STOP);
    for name in &names {
        client.unlink(Ino::ROOT, name.as_bytes(), &cred()).unwrap();
    }
    cluster.signal(1, Signal::CONT);
    let mut asked = 0;
    eventually("the chunks are dropped", || {
        asked += 1;
        used() == 0
    });
    let dropping = requests() - before - asked;
    assert!(dropping < FILES as u64 / 4, "{dropping} requests for {FILES} files");
}
