//! Recorded blocks are what is stored, whoever truncates, punches and writes at the same time.

use proptest::prelude::*;
use tidepool_client::Client;
use tidepool_testkit::{Cluster, Rng, cred, stored_blocks};
use tidepool_types::{Attr, BLOCK_SIZE, Ino, SetAttr};
use tidepool_wire::message::{Reply, Request};

const DAEMONS: u16 = 3;
const CLIENTS: usize = 3;

fn open(client: &Client, path: &str, more: i32) -> Attr {
    let flags = libc::O_RDWR | libc::O_CREAT | more;
    client.open(Ino::ROOT, path.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap()
}

fn truncate(client: &Client, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    client.set_attr(ino, &set, &cred()).unwrap();
}

/// What is recorded is what is stored, and after a truncation to nothing both are nothing.
#[track_caller]
fn assert_counted(client: &Client, path: &str) {
    let ino = open(client, path, 0).ino;
    let attr = client.get_attr(ino).unwrap();
    assert_eq!(attr.blocks, stored_blocks(client, ino) as i64, "recorded, stored; size {}", attr.size);
    truncate(client, ino, 0);
    // What another had cut off before the size shrank stays behind the end until it is cut off again.
    truncate(client, ino, 1 << 40);
    truncate(client, ino, 0);
    assert_eq!(
        (client.get_attr(ino).unwrap().blocks, stored_blocks(client, ino)),
        (0, 0),
        "after truncation to 0"
    );
}

fn together(cluster: &Cluster, work: impl Fn(usize, &Client) + Sync) {
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (client, work) = (cluster.client(), &work);
            scope.spawn(move || work(n, &client));
        }
    });
}

/// Ranks that all open the same output file with O_TRUNC and write to it.
#[test]
fn several_that_open_one_file_truncating_it() {
    let cluster = Cluster::start(usize::from(DAEMONS));
    together(&cluster, |n, client| {
        for _ in 0..150 {
            let file = open(client, "f", libc::O_TRUNC);
            client.write(file.ino, 0, &[n as u8; 2 * BLOCK_SIZE as usize]).unwrap();
            client.release(file.ino);
        }
    });
    assert_counted(&cluster.client(), "f");
}

/// The same over chunks of all daemons, cut in the middle as well, with writers beside.
#[test]
fn truncations_at_all_sizes_beside_writers() {
    let seed = Rng::from_env("truncations_at_all_sizes_beside_writers").next_u64();
    let cluster = Cluster::start(usize::from(DAEMONS));
    let chunk = open(&cluster.client(), "wide", 0).layout.unwrap().chunk_size();
    together(&cluster, |n, client| {
        let mut rng = Rng::new(seed ^ n as u64);
        let file = open(client, "wide", 0);
        for _ in 0..120 {
            match rng.below(3) {
                0 => truncate(client, file.ino, rng.below(4 * chunk)),
                1 => truncate(client, file.ino, 0),
                _ => {
                    client.write(file.ino, rng.below(4 * chunk), &[n as u8 + 1; 9_000]).unwrap();
                }
            }
        }
        client.release(file.ino);
    });
    assert_counted(&cluster.client(), "wide");
}

/// Holes made in the same ranges at the same time, between writes.
#[test]
fn holes_punched_by_several() {
    let seed = Rng::from_env("holes_punched_by_several").next_u64();
    let cluster = Cluster::start(usize::from(DAEMONS));
    let chunk = open(&cluster.client(), "holes", 0).layout.unwrap().chunk_size();
    together(&cluster, |n, client| {
        let mut rng = Rng::new(seed ^ n as u64);
        let file = open(client, "holes", 0);
        for _ in 0..120 {
            let (at, len) = (rng.below(3 * chunk), 1 + rng.below(2 * chunk));
            match rng.below(2) {
                0 => client
                    .allocate(file.ino, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, at, len)
                    .unwrap(),
                _ => {
                    client.write(file.ino, at, &[n as u8 + 1; 30_000]).unwrap();
                }
            }
        }
        client.release(file.ino);
    });
    assert_counted(&cluster.client(), "holes");
}

/// One is killed between taking the blocks off and dropping the data: fewer are recorded than stored, never more, and
/// the next truncation sets it right.
#[test]
fn a_truncation_that_is_cut_short() {
    let cluster = Cluster::start(usize::from(DAEMONS));
    let client = cluster.client();
    let file = open(&client, "f", 0);
    client.write(file.ino, 0, &[1; 2 * BLOCK_SIZE as usize]).unwrap();
    let take = Request::TakeBlocks { ino: file.ino, max: u64::MAX };
    for taken in [2, 0] {
        let reply = client.request(file.ino.home(), &take).unwrap();
        assert_eq!(reply, Reply::Written { blocks: taken, attr: None });
    }
    assert_eq!((client.get_attr(file.ino).unwrap().blocks, stored_blocks(&client, file.ino)), (0, 2));
    client.write(file.ino, 2 * u64::from(BLOCK_SIZE), &[1; BLOCK_SIZE as usize]).unwrap();
    assert_eq!(client.get_attr(file.ino).unwrap().stored_blocks(), 1);
    truncate(&client, file.ino, 1);
    let attr = client.get_attr(file.ino).unwrap();
    assert!(attr.blocks <= 1 && stored_blocks(&client, file.ino) == 1, "{attr:?}");
}

/// A count that was damaged by an older release neither hinders a truncation nor shows as more than there can be.
#[test]
fn a_damaged_count_hinders_nobody() {
    let cluster = Cluster::start(usize::from(DAEMONS));
    let client = cluster.client();
    for damage in [i64::MAX, i64::MIN, -1] {
        let file = open(&client, "f", libc::O_TRUNC);
        let set = SetAttr::default();
        client.request(file.ino.home(), &Request::SetAttr { ino: file.ino, set, blocks: damage }).unwrap();
        client.write(file.ino, 0, &[1; 100]).unwrap();
        let attr = client.get_attr(file.ino).unwrap();
        assert!(attr.blocks_512() == attr.stored_blocks().saturating_mul(8), "{attr:?}");
        truncate(&client, file.ino, 0);
        assert_eq!(client.get_attr(file.ino).unwrap().size, 0);
        client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
        client.release(file.ino);
    }
}

/// What truncaters and writers of one file do, each step as one request, in the order of a list: first all that a step
/// needs, then the telling. The model stores blocks at once.
#[derive(Clone, Debug)]
enum Step {
    Write { who: usize, blocks: i64 },
    Take { who: usize },
    Drop { who: usize },
    Tell { who: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..CLIENTS;
    let step = prop_oneof![
        (who(), 1i64..5).prop_map(|(who, blocks)| Step::Write { who, blocks }),
        who().prop_map(|who| Step::Take { who }),
        who().prop_map(|who| Step::Drop { who }),
        who().prop_map(|who| Step::Tell { who }),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// In whatever order clients take, drop, store and tell: when all have told, the record is right. (Against real records.)
    #[test]
    fn any_order_of_telling(steps in steps()) {
        let cluster = Cluster::start(1);
        let client = cluster.client();
        let ino = open(&client, "f", 0).ino;
        let (mut stored, mut untold) = (0i64, [0i64; CLIENTS]);
        let tell = |blocks| client.request(ino.home(), &Request::Extend { ino, end: 0, blocks }).unwrap();
        for step in steps {
            match step {
                Step::Write { who, blocks } => {
                    stored += blocks;
                    untold[who] += blocks;
                }
                Step::Take { who } => {
                    match client.request(ino.home(), &Request::TakeBlocks { ino, max: u64::MAX }).unwrap() {
                        Reply::Written { blocks, .. } => untold[who] += blocks,
                        other => panic!("{other:?}"),
                    }
                }
                Step::Drop { who } => {
                    untold[who] -= stored;
                    stored = 0;
                }
                Step::Tell { who } => {
                    tell(std::mem::take(&mut untold[who]));
                }
            }
        }
        untold.into_iter().for_each(|blocks| drop(tell(blocks)));
        prop_assert_eq!(client.get_attr(ino).unwrap().blocks, stored);
    }
}
