//! Hints of I/O phases: what programs say of them is told to others, and an end that is said is one (INVENTORY K2).

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidepool_client::{Client, PhaseHint, PhasePattern};
use tidepool_fsd::loads::{Load, Loads, PAST_MAX, PatternWord};
use tidepool_testkit::{Cluster, Storage, create_file, eventually, pool_on, write_all};
use tidepool_types::{Errno, Ino, PHASE_BYTES_MAX};
use tidepool_wire::message::{Reply, Request};

const ATTRIBUTE: &[u8] = b"user.tidepool.phase";

/// What both daemons of a pool have told.
fn loads(storage: &Storage) -> Vec<Load> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    Loads::all(&storage.dir("pfs"), now_ms).unwrap()
}

/// What the daemons say of the present phase: one that nothing came to has none.
fn told(storage: &Storage) -> Vec<(Option<u64>, PatternWord)> {
    let phases = loads(storage).into_iter().filter_map(|load| load.phase);
    phases.map(|phase| (phase.expected, phase.pattern)).collect()
}

/// Writes a little, again and again, until the daemons' news are so.
fn write_until(
    storage: &Storage,
    client: &Client,
    ino: Ino,
    is_so: impl Fn(&[(Option<u64>, PatternWord)]) -> bool,
) {
    let mut at = 0;
    eventually("news of a phase", || {
        write_all(client, ino, at, &[7; 5000]);
        at += 5000;
        is_so(&told(storage))
    });
}

fn pool() -> (Storage, Cluster) {
    let storage = Storage::new();
    let cluster = pool_on(storage.tiers("ia"));
    (storage, cluster)
}

#[test]
fn what_is_said_of_a_phase_is_told() {
    let (storage, cluster) = pool();
    let client = cluster.client();
    let ino = create_file(&client, "f");
    write_until(&storage, &client, ino, |told| told.contains(&(None, PatternWord::Sequential)));
    client.set_xattr(ino, ATTRIBUTE, b"begin bytes=3GB pattern=random", 0).unwrap();
    let said = (Some(3_000_000_000), PatternWord::Random);
    write_until(&storage, &client, ino, |told| told == [said, said] || told == [said]);
    // It is no attribute of the file, and any directory will do.
    assert_eq!(client.list_xattr(ino).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(client.get_xattr(ino, ATTRIBUTE).unwrap_err().errno(), Errno::ENODATA);
    client.set_xattr(Ino::ROOT, ATTRIBUTE, b"end", 0).unwrap();
    // The next phase is not that one.
    write_until(&storage, &client, ino, |told| told == [(None, PatternWord::Sequential)]);
    client.hint_phase(PhaseHint::Begin { bytes: None, pattern: Some(PhasePattern::Strided) }).unwrap();
    write_until(&storage, &client, ino, |told| told.contains(&(None, PatternWord::Strided)));
}

#[test]
fn misspelt_hints_are_refused_and_not_kept() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let ino = create_file(&client, "f");
    let error = client.set_xattr(ino, b"user.tidepool.phrase", b"end", 0).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(
        error.to_string().contains("user.tidepool.phrase")
            && error.to_string().contains("user.tidepool.phase")
    );
    // Users' own names are theirs.
    client.set_xattr(ino, b"user.tidepools", b"1", 0).unwrap();
    assert_eq!(client.list_xattr(ino).unwrap(), [b"user.tidepools".to_vec()]);
}

/// Writes are much closer to each other than the pause that ends a phase, and each is a phase of its own. The file stays open.
#[test]
fn an_end_that_is_said_ends_the_phase_at_once() {
    let (storage, cluster) = pool();
    let client = cluster.client();
    let ino = create_file(&client, "f");
    let mut rounds = 0;
    eventually("as many phases as ends", || {
        client.hint_phase(PhaseHint::Begin { bytes: Some(5000), pattern: None }).unwrap();
        write_all(&client, ino, rounds * 5000, &[7; 5000]);
        client.hint_phase(PhaseHint::End).unwrap();
        rounds += 1;
        std::thread::sleep(Duration::from_millis(30));
        loads(&storage).iter().any(|load| load.past.len() == PAST_MAX)
    });
    let all = loads(&storage);
    let writer = all.iter().find(|load| load.past.len() == PAST_MAX).unwrap();
    assert!(writer.past.iter().any(|past| past.bytes == 5000), "{writer:?}");
}

/// What each process says of itself counts as often as processes write.
#[test]
fn processes_say_what_each_of_them_writes() {
    let (storage, cluster) = pool();
    let clients: Vec<Client> = (0..3).map(|_| cluster.client().with_phase_bytes(b"1MB").unwrap()).collect();
    let files: Vec<Ino> = (0..3).map(|n| create_file(&clients[n], &format!("f{n}"))).collect();
    let mut at = 0;
    eventually("news of a phase of three", || {
        for (client, ino) in clients.iter().zip(&files) {
            write_all(client, *ino, at, &[7; 5000]);
        }
        at += 5000;
        told(&storage).contains(&(Some(3_000_000), PatternWord::Sequential))
    });
    // A child after a fork says it again.
    let client = clients[0].reborn();
    let ino = create_file(&client, "g");
    eventually("news of a phase of the child's", || {
        write_all(&client, ino, at, &[7; 5000]);
        at += 5000;
        told(&storage).iter().any(|(expected, _)| *expected == Some(1_000_000))
    });
    let error = cluster.client().with_phase_bytes(b"much").err().expect("it is no size");
    assert!(error.to_string().contains("TIDEPOOL_PHASE_BYTES: 'much' is not a size"), "{error}");
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let (storage, cluster) = pool();
    let client = cluster.client();
    let ino = create_file(&client, "f");
    for text in [&b"start"[..], b"begin bytes=0", b"begin bytes=\xff", b""] {
        let error = client.set_xattr(ino, ATTRIBUTE, text, 0).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(error.detail().unwrap().contains("write 'begin'"), "{error}");
    }
    // From a client that does not look at it.
    for bytes in [0, PHASE_BYTES_MAX + 1, u64::MAX] {
        for request in
            [Request::BeginPhase { bytes: Some(bytes), pattern: None }, Request::PhaseBytes { bytes }]
        {
            let reply = client.request(0, &request).unwrap();
            assert!(matches!(reply, Reply::Failed { errno: Errno::EINVAL, .. }), "{reply:?}");
        }
    }
    write_until(&storage, &client, ino, |told| told.contains(&(None, PatternWord::Sequential)));
    // Where there is one tier only, nobody needs hints, and nobody is refused for them.
    let plain = Cluster::start(2);
    plain.client().hint_phase(PhaseHint::Begin { bytes: Some(1), pattern: None }).unwrap();
    plain.client().hint_phase(PhaseHint::End).unwrap();
}
