//! Questions answered by a look at the daemon's board instead of by the daemon.

use tidepool_client::{Client, Walk};
use tidepool_testkit::{Cluster, Options, Rng, cred};
use tidepool_types::{Errno, Ino, SetAttr};

fn stat(client: &Client, path: &[u8]) -> Option<(Ino, u64, u32)> {
    match client.stat(Ino::ROOT, path, false, &cred()) {
        Ok(Walk::Found(attr)) => Some((attr.ino, attr.size, attr.mode & 0o777)),
        Ok(Walk::Escape(path)) => panic!("{path:?} leads outside"),
        Err(error) if error.errno() == Errno::ENOENT => None,
        Err(error) => panic!("{error}"),
    }
}

fn create(client: &Client, path: &[u8]) -> Ino {
    let flags = libc::O_RDWR | libc::O_CREAT;
    let attr = client.open(Ino::ROOT, path, flags, 0o644, &cred()).unwrap().inside().unwrap();
    client.release(attr.ino);
    attr.ino
}

/// Makes the client use its lanes, which bring the boards.
fn warm(client: &Client) {
    for n in 0..40 * client.members() {
        stat(client, format!("/nothing{n}").as_bytes());
    }
}

#[test]
fn repeated_questions_reach_no_daemon() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    warm(&client);
    create(&client, b"/f");
    let asked = client.request_counts()[0];
    for _ in 0..100 {
        assert!(stat(&client, b"/f").is_some());
    }
    assert_eq!(client.request_counts()[0], asked, "not even the first: the answer to create said it");
    assert_eq!(stat(&client, b"/none"), None);
    let asked = client.request_counts()[0];
    for _ in 0..100 {
        assert_eq!(stat(&client, b"/none"), None);
    }
    assert_eq!(client.request_counts()[0], asked, "what is not there is known, too");
    assert!(client.known_answers() >= 200);
}

/// One client changes names and objects in every way; what the other believes is right after each.
#[test]
fn changes_by_others_show_at_once() {
    let mut rng = Rng::from_env("changes_by_others_show_at_once");
    for daemons in [1, 3] {
        let cluster = Cluster::with(Options { daemons, ..Options::default() });
        let (changer, watcher) = (cluster.client(), cluster.client());
        warm(&watcher);
        for dir in [&b"/a"[..], b"/b"] {
            changer.mkdir(Ino::ROOT, dir, 0o755, &cred()).unwrap();
        }
        let paths: Vec<Vec<u8>> =
            (0..12).map(|n| format!("/{}/f{}", ["a", "b"][n % 2], n / 2).into_bytes()).collect();
        for _ in 0..1500 {
            let (one, two) = (&paths[rng.below(12) as usize], &paths[rng.below(12) as usize]);
            let ino = stat(&changer, one).map(|(ino, ..)| ino);
            match (rng.below(7), ino) {
                (0 | 1, _) => drop(create(&changer, one)),
                (2, Some(_)) => drop(changer.unlink(Ino::ROOT, one, &cred()).unwrap()),
                (3, Some(_)) => drop(changer.rename(Ino::ROOT, one, Ino::ROOT, two, 0, &cred()).unwrap()),
                (4, Some(ino)) => drop(changer.write(ino, rng.below(9000), b"more").unwrap()),
                (5, Some(ino)) => {
                    let set = SetAttr { mode: Some(0o600 + rng.below(8) as u32), ..SetAttr::default() };
                    changer.set_attr(ino, &set, &cred()).unwrap();
                }
                (6, _) if rng.below(10) == 0 => {
                    // What was known under the old names must be forgotten.
                    for (from, to) in [(b"/a", b"/c"), (b"/b", b"/a"), (b"/c", b"/b")] {
                        changer.rename(Ino::ROOT, from, Ino::ROOT, to, 0, &cred()).unwrap();
                    }
                }
                _ => {}
            }
            // A client that remembers nothing says what is right.
            let fresh = cluster.client();
            for path in [one, two] {
                assert_eq!(
                    stat(&watcher, path),
                    stat(&fresh, path),
                    "{daemons} daemons, {}",
                    String::from_utf8_lossy(path)
                );
            }
        }
        assert!(watcher.known_answers() > 100, "{}", watcher.known_answers());
    }
}

/// Link count and times of a directory are put together from all boards.
#[test]
fn directories_show_changes_by_others_at_once() {
    let cluster = Cluster::with(Options { daemons: 3, ..Options::default() });
    let (changer, watcher) = (cluster.client(), cluster.client());
    warm(&watcher);
    changer.mkdir(Ino::ROOT, b"/d", 0o755, &cred()).unwrap();
    let look = |client: &Client| client.stat(Ino::ROOT, b"/d", true, &cred()).unwrap().inside().unwrap();
    for n in 0..60u32 {
        let path = format!("/d/{}", n % 20).into_bytes();
        match n / 20 {
            0 => drop(changer.mkdir(Ino::ROOT, &path, 0o755, &cred()).unwrap()),
            1 => drop(changer.rmdir(Ino::ROOT, &path, &cred()).unwrap()),
            _ => drop(create(&changer, &path)),
        }
        assert_eq!(look(&watcher), look(&cluster.client()), "after change {n}");
    }
    let asked = watcher.request_counts();
    let attr = look(&watcher);
    assert_eq!((attr.nlink, watcher.request_counts()), (2, asked), "all of it stands on boards");
}

/// What was known before a daemon was killed and came back is asked anew.
#[test]
fn a_restarted_daemon_is_asked_again() {
    let mut cluster = Cluster::with(Options { daemons: 1, ..Options::default() });
    let client = cluster.client();
    warm(&client);
    create(&client, b"/f");
    assert!(stat(&client, b"/f").is_some());
    cluster.kill(0);
    cluster.restart(0);
    cluster.client().unlink(Ino::ROOT, b"/f", &cred()).unwrap();
    assert_eq!(stat(&client, b"/f"), None);
}
