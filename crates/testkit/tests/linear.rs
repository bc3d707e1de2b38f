//! F4: operations on one file are linearizable.
//!
//! Several clients work on one name at random; each operation is noted with the times of
//! its call and return. Then a search looks for an order that fits both the times and what
//! a single file could have answered (Wing and Gong, with Lowe's memory of states seen).
//!
//! In some histories a daemon is killed and started again. An operation that failed then may have happened, at any
//! time from its call on, or not.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidepool_client::{Client, FsError};
use tidepool_testkit::{Cluster, Options, Rng, cred};
use tidepool_types::{Errno, Ino, SetAttr};

const NAME: &[u8] = b"contended";
const OTHER: &[u8] = b"other";

/// What a client asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// O_CREAT | O_EXCL
    Create,
    Remove,
    Stat,
    /// By name: open, write one value over the first 8 bytes.
    Write(u64),
    Read,
    Truncate,
    /// Rename the other name over this one, and make the other anew first.
    Replace(u64),
}

/// What it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Value(u64),
    Size(u64),
    Failed(Errno),
}

/// `returned` of an operation whose outcome nobody knows.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Event {
    called: u64,
    returned: u64,
    op: Op,
    answer: Answer,
}

/// The file as a sequential program would see it: absent, or 0 or 8 bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Absent,
    Empty,
    Holds(u64),
}

/// The state after an operation that got this answer; `None` when it cannot have.
fn step(state: State, op: Op, answer: Answer) -> Option<State> {
    use Answer as A;
    use State as S;
    match (op, state, answer) {
        (Op::Create, S::Absent, A::Done) => Some(S::Empty),
        (Op::Create, S::Empty | S::Holds(_), A::Failed(Errno::EEXIST)) => Some(state),
        (Op::Remove, S::Empty | S::Holds(_), A::Done) => Some(S::Absent),
        (Op::Replace(value), _, A::Done) => Some(S::Holds(value)),
        (Op::Stat, S::Empty, A::Size(0)) | (Op::Stat, S::Holds(_), A::Size(8)) => Some(state),
        (Op::Write(value), S::Empty | S::Holds(_), A::Done) => Some(S::Holds(value)),
        (Op::Read, S::Empty, A::Size(0)) => Some(state),
        (Op::Read, S::Holds(held), A::Value(value)) if held == value => Some(state),
        (Op::Truncate, S::Empty | S::Holds(_), A::Done) => Some(S::Empty),
        (
            Op::Remove | Op::Stat | Op::Write(_) | Op::Read | Op::Truncate,
            S::Absent,
            A::Failed(Errno::ENOENT),
        ) => Some(state),
        _ => None,
    }
}

/// The states after an operation whose outcome nobody knows, if it happened.
fn step_unsure(state: State, op: Op) -> Vec<State> {
    use State as S;
    match (op, state) {
        (Op::Create, S::Absent) => vec![S::Empty],
        (Op::Remove, S::Empty | S::Holds(_)) => vec![S::Absent],
        (Op::Write(value), S::Empty | S::Holds(_)) => vec![S::Holds(value)],
        // The data go first, the size last (docs/consistency.md).
        (Op::Truncate, S::Holds(_)) => vec![S::Empty, S::Holds(0)],
        _ => vec![],
    }
}

/// True when some order of the events, each within its times, explains all answers.
fn linearizable(events: &[Event]) -> bool {
    let mut seen = HashSet::new();
    search(events, 0, State::Absent, &mut seen)
}

fn search(events: &[Event], done: u128, state: State, seen: &mut HashSet<(u128, State)>) -> bool {
    let open = |i: &usize| done & (1 << i) == 0;
    let Some(first_return) =
        (0..events.len()).filter(open).map(|i| events[i].returned).filter(|at| *at != NEVER).min()
    else {
        return true;
    };
    if !seen.insert((done, state)) {
        return false;
    }
    (0..events.len()).filter(open).filter(|i| events[*i].called < first_return + 1).any(|i| {
        let event = &events[i];
        let next = match event.returned {
            NEVER => step_unsure(state, event.op),
            _ => step(state, event.op, event.answer).into_iter().collect(),
        };
        next.into_iter().any(|next| search(events, done | 1 << i, next, seen))
    })
}

fn perform(client: &Client, op: Op) -> Answer {
    let result = match op {
        Op::Create => open(client, NAME, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR)
            .map(|ino| client.release(ino))
            .map(|()| Answer::Done),
        Op::Remove => client.unlink(Ino::ROOT, NAME, &cred()).map(|_| Answer::Done),
        Op::Stat => client
            .stat(Ino::ROOT, NAME, true, &cred())
            .and_then(|w| w.inside())
            .map(|attr| Answer::Size(attr.size)),
        Op::Truncate => {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            client.set_attr_at(Ino::ROOT, NAME, true, &empty, &cred()).map(|_| Answer::Done)
        }
        Op::Write(_) | Op::Read | Op::Replace(_) => return Answer::Failed(Errno::ENOSYS),
    };
    result.unwrap_or_else(|error| Answer::Failed(error.errno()))
}

fn open(client: &Client, name: &[u8], flags: i32) -> Result<Ino, FsError> {
    Ok(client.open(Ino::ROOT, name, flags, 0o644, &cred())?.inside()?.ino)
}

/// Names: create, remove and stat of one name by four clients.
#[test]
fn f4_operations_on_one_name_are_linearizable() {
    let ops = [Op::Create, Op::Remove, Op::Stat, Op::Stat, Op::Truncate];
    histories("names", |rng| ops[rng.below(ops.len() as u64) as usize], perform);
}

/// Data: whole-value writes, reads and truncations of one object that stays.
#[test]
fn f4_operations_on_one_objects_data_are_linearizable() {
    let next = AtomicU64::new(1);
    histories("data", choose_data(&next), act_on_data);
}

fn act_on_data(client: &Client, op: Op) -> Answer {
    let ino = match open(client, NAME, libc::O_RDWR) {
        Ok(ino) => ino,
        Err(error) => return Answer::Failed(error.errno()),
    };
    let answer = data_op(client, ino, op);
    client.release(ino);
    answer
}

fn data_op(client: &Client, ino: Ino, op: Op) -> Answer {
    let mut buf = [0; 8];
    let answer = match op {
        Op::Write(value) => client.write(ino, 0, &value.to_le_bytes()).map(|_| Answer::Done),
        Op::Read => client.read(ino, 0, &mut buf).map(|count| match count {
            8 => Answer::Value(u64::from_le_bytes(buf)),
            count => Answer::Size(count as u64),
        }),
        _ => client.get_attr(ino).map(|attr| Answer::Size(attr.size)),
    };
    answer.unwrap_or_else(|error| Answer::Failed(error.errno()))
}

/// Rename over a name is one step: readers see the old or the new object, whole.
#[test]
fn f4_rename_over_a_name_is_one_step() {
    let next = AtomicU64::new(1);
    let turn = Mutex::new(());
    let choose = |rng: &mut Rng| match rng.below(3) {
        0 => Op::Replace(next.fetch_add(1, Ordering::Relaxed)),
        _ => Op::Read,
    };
    let act = |client: &Client, op: Op| {
        let result = match op {
            Op::Replace(value) => {
                // The source's name is shared, so its makers take turns; its readers do not.
                let _turn = turn.lock().unwrap();
                open(client, OTHER, libc::O_CREAT | libc::O_RDWR).and_then(|ino| {
                    client.write(ino, 0, &value.to_le_bytes())?;
                    client.release(ino);
                    client.rename(Ino::ROOT, OTHER, Ino::ROOT, NAME, 0, &cred())?;
                    Ok(Answer::Done)
                })
            }
            _ => open(client, NAME, libc::O_RDONLY).and_then(|ino| {
                let mut buf = [0; 8];
                let count = client.read(ino, 0, &mut buf)?;
                client.release(ino);
                Ok(if count == 8 {
                    Answer::Value(u64::from_le_bytes(buf))
                } else {
                    Answer::Size(count as u64)
                })
            }),
        };
        result.unwrap_or_else(|error| Answer::Failed(error.errno()))
    };
    histories("rename", choose, act);
}

/// Who acts in a history: a client, or a program on a mount, whose kernel keeps names, attributes and pages.
enum Actor {
    Client(Box<Client>),
    Mount(std::path::PathBuf),
}

/// Names, attributes and data through mounts and clients at the same time.
#[test]
fn f4_mounts_and_clients_see_one_order() {
    let support = tidepool_fuse::probe();
    if !support.usable() {
        eprintln!("SKIPPED: f4_mounts_and_clients_see_one_order: FUSE is not usable here\n{support}");
        return;
    }
    let next = AtomicU64::new(1);
    let names = |rng: &mut Rng| match rng.below(5) {
        0 => Op::Create,
        1 => Op::Remove,
        2 => Op::Truncate,
        _ => Op::Stat,
    };
    let on_name = |actor: &Actor, op| match actor {
        Actor::Client(client) => perform(client, op),
        Actor::Mount(path) => on_mount(path, op),
    };
    mount_histories("mounts: names", false, names, on_name);
    let on_data = |actor: &Actor, op| match actor {
        Actor::Client(client) => act_on_data(client, op),
        Actor::Mount(path) => on_mount(path, op),
    };
    mount_histories("mounts: data", true, choose_data(&next), on_data);
}

fn on_mount(root: &std::path::Path, op: Op) -> Answer {
    use std::io::Error;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileExt;
    let path = root.join(std::ffi::OsStr::from_bytes(NAME));
    let writable = || std::fs::File::options().write(true).open(&path);
    let result: Result<Answer, Error> = match op {
        Op::Create => std::fs::File::create_new(&path).map(|_| Answer::Done),
        Op::Remove => std::fs::remove_file(&path).map(|()| Answer::Done),
        Op::Stat => std::fs::metadata(&path).map(|meta| Answer::Size(meta.len())),
        Op::Truncate => writable().and_then(|file| file.set_len(0)).map(|()| Answer::Done),
        Op::Write(value) => {
            writable().and_then(|file| file.write_all_at(&value.to_le_bytes(), 0)).map(|()| Answer::Done)
        }
        Op::Read => std::fs::read(&path).map(|data| match data.first_chunk::<8>() {
            Some(bytes) => Answer::Value(u64::from_le_bytes(*bytes)),
            None => Answer::Size(data.len() as u64),
        }),
        Op::Replace(_) => return Answer::Failed(Errno::ENOSYS),
    };
    // A name that leads elsewhere between two questions of the kernel, twice in a row. What makes a name asks none.
    let elsewhere = |errno: &i32| *errno == libc::ESTALE && op != Op::Create;
    let errno = |error: Error| error.raw_os_error().filter(|e| !elsewhere(e)).unwrap_or(libc::ENOENT);
    result.unwrap_or_else(|error| Answer::Failed(Errno(errno(error))))
}

fn mount_histories(
    what: &str,
    made: bool,
    choose: impl Fn(&mut Rng) -> Op + Sync,
    act: impl Fn(&Actor, Op) -> Answer + Sync,
) {
    let plan = Plan { what, rounds: rounds(40), made, borrowed: false, crashes: false };
    let mut rng = Rng::from_env(what);
    for daemons in [1, 3] {
        let mut cluster = Cluster::with(Options { daemons, ..Options::default() });
        let janitor = cluster.client();
        let mounts: Vec<_> = ["a", "b"].map(|name| mount(&cluster, name)).into();
        let mut actors: Vec<Actor> = mounts.iter().map(|m| Actor::Mount(m.path().to_path_buf())).collect();
        actors.extend((0..2).map(|_| Actor::Client(Box::new(cluster.client()))));
        for round in 0..plan.rounds.div_ceil(2) {
            // What is contested is not kept for a while; then the histories begin with kernels that keep all of it.
            let begin = |_| {
                std::thread::sleep(Duration::from_millis(300));
                for mount in &mounts {
                    for _ in 0..6 {
                        on_mount(mount.path(), Op::Stat);
                        on_mount(mount.path(), Op::Read);
                    }
                }
            };
            let events = history(&plan, &mut cluster, (&janitor, &begin), &actors, &mut rng, &choose, &act);
            assert!(
                linearizable(&events),
                "{what}, {daemons} daemons, round {round}: no order fits\n{events:#?}"
            );
        }
    }
}

fn mount(cluster: &Cluster, name: &str) -> tidepool_fuse::Mounted {
    let point = cluster.dir().join(name);
    std::fs::create_dir(&point).unwrap();
    let options = tidepool_fuse::MountOptions::new(point);
    tidepool_fuse::mount(std::sync::Arc::new(cluster.client()), &options).unwrap()
}

/// What kind of histories to make.
struct Plan<'a> {
    what: &'a str,
    rounds: usize,
    /// The object is made first and stays.
    made: bool,
    /// Every client has it open and its files borrowed.
    borrowed: bool,
    /// A daemon is killed and started again in each history.
    crashes: bool,
}

/// Histories per test; `make test-all` sets more.
fn rounds(ordinary: usize) -> usize {
    std::env::var("TIDEPOOL_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(ordinary)
}

fn histories(what: &str, choose: impl Fn(&mut Rng) -> Op + Sync, act: impl Fn(&Client, Op) -> Answer + Sync) {
    let plan = Plan { what, rounds: rounds(80), made: what == "data", borrowed: false, crashes: false };
    find_violation(&plan, choose, act).unwrap();
}

/// Runs many short histories on pools of one and three daemons and checks each.
fn find_violation(
    plan: &Plan<'_>,
    choose: impl Fn(&mut Rng) -> Op + Sync,
    act: impl Fn(&Client, Op) -> Answer + Sync,
) -> Result<(), String> {
    const CLIENTS: usize = 4;
    let mut rng = Rng::from_env(plan.what);
    for daemons in [1, 3] {
        let mut cluster = Cluster::with(Options { daemons, ..Options::default() });
        let clients: Vec<Client> = (0..CLIENTS).map(|_| cluster.client()).collect();
        for round in 0..plan.rounds.div_ceil(2) {
            let begin = |ino: Option<Ino>| ino.iter().for_each(|ino| borrow(&clients, *ino));
            let events =
                history(plan, &mut cluster, (&clients[0], &begin), &clients, &mut rng, &choose, &act);
            if !linearizable(&events) {
                let what = plan.what;
                return Err(format!("{what}, {daemons} daemons, round {round}: no order fits\n{events:#?}"));
            }
        }
    }
    Ok(())
}

/// One history of `actors`; `janitor` prepares it.
fn history<A: Sync>(
    plan: &Plan<'_>,
    cluster: &mut Cluster,
    (janitor, begin): (&Client, &dyn Fn(Option<Ino>)),
    clients: &[A],
    rng: &mut Rng,
    choose: &(impl Fn(&mut Rng) -> Op + Sync),
    act: &(impl Fn(&A, Op) -> Answer + Sync),
) -> Vec<Event> {
    const OPS: usize = 12;
    let _ = janitor.unlink(Ino::ROOT, NAME, &cred());
    let _ = janitor.unlink(Ino::ROOT, OTHER, &cred());
    let mut events = Vec::new();
    if plan.made {
        // Values are written over each other; the object itself stays.
        let ino = open(janitor, NAME, libc::O_CREAT | libc::O_RDWR).unwrap();
        events.push(Event { called: 0, returned: 0, op: Op::Create, answer: Answer::Done });
        if plan.borrowed {
            begin(Some(ino));
            events.push(Event { called: 1, returned: 1, op: Op::Write(FIRST), answer: Answer::Done });
        } else {
            janitor.release(ino);
            begin(None);
        }
    } else {
        begin(None);
    }
    let clock = AtomicU64::new(2);
    let noted = Mutex::new(events);
    let plans: Vec<Vec<Op>> = clients.iter().map(|_| (0..OPS).map(|_| choose(rng)).collect()).collect();
    let (victim, when) = (rng.below(cluster.members() as u64) as usize, 1 + rng.below(60));
    std::thread::scope(|scope| {
        for (client, ops) in clients.iter().zip(&plans) {
            let (clock, noted) = (&clock, &noted);
            scope.spawn(move || {
                for op in ops {
                    let called = clock.fetch_add(1, Ordering::SeqCst);
                    let answer = act(client, *op);
                    let returned = clock.fetch_add(1, Ordering::SeqCst);
                    let unsure = plan.crashes && answer == Answer::Failed(Errno::EIO);
                    let returned = if unsure { NEVER } else { returned };
                    // What only looks and got no answer tells nothing.
                    if !unsure || !matches!(op, Op::Read | Op::Stat) {
                        noted.lock().unwrap().push(Event { called, returned, op: *op, answer });
                    }
                    if plan.crashes {
                        // Or most would be over before the daemon is back. The more outcomes nobody knows, the
                        // longer the search.
                        std::thread::sleep(Duration::from_millis(if unsure { 40 } else { 1 }));
                    }
                }
            });
        }
        if plan.crashes {
            while clock.load(Ordering::SeqCst) < when {
                std::thread::yield_now();
            }
            cluster.kill(victim);
            cluster.restart(victim);
        }
    });
    let mut events = noted.into_inner().unwrap();
    events.sort_by_key(|e| e.called);
    events
}

/// What a file holds that clients have borrowed.
const FIRST: u64 = 1 << 60;

/// Writes until every client writes to the daemon's files itself.
fn borrow(clients: &[Client], ino: Ino) {
    for client in clients {
        client.reopen(ino).unwrap();
        for _ in 0..16 {
            client.write(ino, 0, &FIRST.to_le_bytes()).unwrap();
        }
    }
    let before: u64 = clients.iter().map(Client::bytes_written_direct).sum();
    clients.iter().for_each(|client| _ = client.write(ino, 0, &FIRST.to_le_bytes()).unwrap());
    assert!(clients.iter().map(Client::bytes_written_direct).sum::<u64>() > before);
}

fn choose_data(next: &AtomicU64) -> impl Fn(&mut Rng) -> Op + Sync {
    |rng: &mut Rng| match rng.below(5) {
        0 | 1 => Op::Write(next.fetch_add(1, Ordering::Relaxed)),
        2 => Op::Stat,
        _ => Op::Read,
    }
}

/// The same with daemons killed in the middle.
#[test]
fn f4_histories_with_crashes_are_linearizable() {
    let ops = [Op::Create, Op::Remove, Op::Stat, Op::Stat, Op::Truncate];
    let choose = |rng: &mut Rng| ops[rng.below(ops.len() as u64) as usize];
    let plan =
        Plan { what: "names, crashes", rounds: rounds(40), made: false, borrowed: false, crashes: true };
    find_violation(&plan, choose, perform).unwrap();
    let next = AtomicU64::new(1);
    let plan = Plan { what: "data, crashes", rounds: rounds(40), made: true, borrowed: false, crashes: true };
    find_violation(&plan, choose_data(&next), act_on_data).unwrap();
}

/// The same beside the daemons: clients that share a loan, read the files themselves, and lose both to a crash.
#[test]
fn f4_direct_writes_are_linearizable() {
    for crashes in [false, true] {
        let next = AtomicU64::new(1);
        let act = |client: &Client, op: Op| {
            let attr = match client.stat(Ino::ROOT, NAME, true, &cred()).and_then(|found| found.inside()) {
                Ok(attr) => attr,
                Err(error) => return Answer::Failed(error.errno()),
            };
            data_op(client, attr.ino, op)
        };
        let what = if crashes { "borrowed, crashes" } else { "borrowed" };
        let plan = Plan { what, rounds: rounds(40), made: true, borrowed: true, crashes };
        find_violation(&plan, choose_data(&next), act).unwrap();
    }
}

/// A client that answers some reads from memory, as a careless cache would, is found out.
#[test]
fn a_planted_bug_is_caught() {
    let (next, last, turn) = (AtomicU64::new(1), AtomicU64::new(0), AtomicU64::new(0));
    let act = |client: &Client, op: Op| {
        let remembered = last.load(Ordering::Relaxed);
        if op == Op::Read && remembered != 0 && turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
            return Answer::Value(remembered);
        }
        let answer = act_on_data(client, op);
        if let Answer::Value(value) = answer {
            last.store(value, Ordering::Relaxed);
        }
        answer
    };
    let plan = Plan { what: "planted", rounds: 200, made: true, borrowed: false, crashes: false };
    assert!(find_violation(&plan, choose_data(&next), act).is_err());
}

/// The checker itself: it must refuse what no single file could answer.
#[test]
fn the_checker_refuses_impossible_histories() {
    let event = |called, returned, op, answer| Event { called, returned, op, answer };
    let stale_read = [
        event(0, 1, Op::Create, Answer::Done),
        event(2, 3, Op::Write(1), Answer::Done),
        event(4, 5, Op::Write(2), Answer::Done),
        event(6, 7, Op::Read, Answer::Value(1)),
    ];
    assert!(!linearizable(&stale_read));
    let overlapping = [stale_read[0], stale_read[1], event(4, 8, Op::Write(2), Answer::Done), stale_read[3]];
    assert!(linearizable(&overlapping));
    let twice = [event(0, 1, Op::Create, Answer::Done), event(2, 3, Op::Create, Answer::Done)];
    assert!(!linearizable(&twice));
}
