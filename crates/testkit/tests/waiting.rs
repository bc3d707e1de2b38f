//! Waiting for locks at daemons that die and at clients that do.

use rustix::event::{PollFd, PollFlags, poll};
use tidepool_client::{Client, LockKind, LockMode, LockOwner, LockPlace, LockRange, LockWish, Queued};
use tidepool_testkit::{Cluster, cred, eventually};
use tidepool_types::{Errno, Ino};

fn file(client: &Client) -> Ino {
    let flags = libc::O_RDWR | libc::O_CREAT;
    client.open(Ino::ROOT, b"locked", flags, 0o644, &cred()).unwrap().inside().unwrap().ino
}

fn wish(ino: Ino) -> LockWish {
    let (owner, kind, range) = (LockOwner(1), LockKind::Posix, LockRange::ALL);
    LockWish { ino, owner, kind, range, mode: LockMode::Write, pid: 1 }
}

fn take(client: &Client, ino: Ino, mode: LockMode) -> Result<(), Errno> {
    let wish = wish(ino);
    let set = client.lock(ino, wish.owner, wish.kind, wish.range, mode, 1);
    set.map_err(|error| error.errno())
}

/// What comes next; waits for it.
fn next(place: &mut LockPlace) -> Queued {
    let mut socket = [PollFd::from_borrowed_fd(place.socket(), PollFlags::IN)];
    poll(&mut socket, None).unwrap();
    place.look().unwrap()
}

#[test]
fn a_daemon_that_dies_leaves_nobody_waiting() {
    let mut cluster = Cluster::start(1);
    let (one, two) = (cluster.client(), cluster.client());
    let ino = file(&one);
    take(&one, ino, LockMode::Write).unwrap();
    assert_eq!(take(&two, ino, LockMode::Write), Err(Errno::EAGAIN));
    let mut place = two.queue_for_lock(&wish(ino)).unwrap();
    assert_eq!(place.look().unwrap(), Queued::Waits);
    cluster.kill(0);
    assert_eq!(next(&mut place), Queued::Lost);
    assert!(two.queue_for_lock(&wish(ino)).is_err());
    cluster.restart(0);
    // Locks are lost with their daemon.
    let mut again = two.queue_for_lock(&wish(ino)).unwrap();
    assert_eq!(next(&mut again), Queued::Turn);
    take(&two, ino, LockMode::Write).unwrap();
}

#[test]
fn who_leaves_the_queue_keeps_nobody_waiting() {
    let cluster = Cluster::start(1);
    let clients: Vec<Client> = (0..5).map(|_| cluster.client()).collect();
    let ino = file(&clients[0]);
    take(&clients[0], ino, LockMode::Write).unwrap();
    let queue = |client: &Client| {
        let mut place = client.queue_for_lock(&wish(ino)).unwrap();
        assert_eq!(place.look().unwrap(), Queued::Waits);
        place
    };
    let mut places: Vec<LockPlace> = clients[1..].iter().map(queue).collect();
    let last = places.pop().unwrap();
    let (mut third, second, first) = (places.pop().unwrap(), places.pop().unwrap(), places.pop().unwrap());
    first.leave();
    drop(second);
    last.leave();
    take(&clients[0], ino, LockMode::Unlock).unwrap();
    assert_eq!(next(&mut third), Queued::Turn);
    assert_eq!(take(&clients[0], ino, LockMode::Write), Err(Errno::EAGAIN), "it is the third one's turn");
    take(&clients[3], ino, LockMode::Write).unwrap();
    take(&clients[3], ino, LockMode::Unlock).unwrap();
    take(&clients[0], ino, LockMode::Write).unwrap();
}

/// A thread may be gone whose place is still there.
#[test]
fn a_turn_that_nobody_comes_for_is_over_after_a_while() {
    let cluster = Cluster::start(1);
    let (one, two) = (cluster.client(), cluster.client());
    let ino = file(&one);
    let mut place = two.queue_for_lock(&wish(ino)).unwrap();
    assert_eq!(next(&mut place), Queued::Turn);
    assert_eq!(take(&one, ino, LockMode::Write), Err(Errno::EAGAIN));
    eventually("the turn is over", || take(&one, ino, LockMode::Write).is_ok());
    assert_eq!(take(&two, ino, LockMode::Write), Err(Errno::EAGAIN));
}
