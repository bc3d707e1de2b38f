//! The client against peers that follow a script: what real stagers do seldom or never.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tidepool_stage_client::{
    Code, FIRST_WAIT, Op, Refusal, Resource, StageError, Stager, TaskPhase, TaskSpec, TaskState, TaskStatus,
};
use tidepool_wire::stager::{
    HEAD_LEN, Head, Reply, Request, STAGER_MAGIC, STAGER_VERSION, TASKS_AT_ONCE_MAX,
};

/// One side of a connection, as the script sees it.
struct Peer(UnixStream);

impl Peer {
    fn next(&mut self) -> (u64, Request) {
        let mut head = [0; HEAD_LEN];
        self.0.read_exact(&mut head).unwrap();
        let head = Head::decode(&head).unwrap();
        let mut body = vec![0; head.len as usize];
        self.0.read_exact(&mut body).unwrap();
        (head.id, Request::decode(head.kind, &body).unwrap())
    }

    fn say(&mut self, id: u64, reply: &Reply) {
        let mut frame = Vec::new();
        reply.put_frame(id, &mut frame).unwrap();
        self.0.write_all(&frame).unwrap();
    }

    fn greet(&mut self) {
        self.greet_with(STAGER_VERSION);
    }

    fn greet_with(&mut self, version: u16) {
        let (id, hello) = self.next();
        let Request::Hello { magic: STAGER_MAGIC, version: STAGER_VERSION, .. } = hello else {
            panic!("{hello:?}")
        };
        self.say(id, &Reply::Welcome { version, node: "n0".into(), pid: 1, uid: 0, control: true });
    }

    fn answer(&mut self, reply: &Reply) -> Request {
        let (id, request) = self.next();
        self.say(id, reply);
        request
    }
}

/// A listening peer. `script` gets the connections one after the other.
struct Scripted {
    dir: TempDir,
    running: JoinHandle<()>,
}

impl Scripted {
    fn new(script: impl FnOnce(&mut dyn FnMut() -> Peer) + Send + 'static) -> Scripted {
        let dir = TempDir::new().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let running = std::thread::spawn(move || script(&mut || Peer(listener.accept().unwrap().0)));
        Scripted { dir, running }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn connect(&self) -> Stager {
        Stager::connect(self.path()).unwrap()
    }

    fn finish(self) {
        self.running.join().unwrap();
    }
}

fn task(path: &[u8]) -> TaskSpec {
    TaskSpec::new(Op::Copy, Resource::local("a://", path), Some(Resource::local("b://", b"out")))
}

fn status(id: u32) -> TaskStatus {
    TaskStatus {
        id,
        op: Op::Copy,
        state: TaskState::Finished,
        phase: TaskPhase::Ended,
        refusal: Refusal::new(Code::SUCCESS, ""),
        job: 0,
        uid: 0,
        src: "a://in".into(),
        dst: "b://out".into(),
        bytes_done: 5,
        bytes_total: 5,
        files_done: 1,
        files_total: 1,
        total_known: true,
        rate: 0,
        eta_ms: None,
        age_ms: 1,
        percent: None,
    }
}

fn done(id: u32) -> Reply {
    Reply::Tasks { tasks: vec![status(id)], more: false }
}

#[test]
fn requests_are_answered_in_turn() {
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        let asked = peer.answer(&Reply::Submitted { id: 7 });
        assert_eq!(asked, Request::Submit { task: task(b"in") });
        assert_eq!(peer.answer(&Reply::Task { status: status(7) }), Request::Status { id: 7 });
        let refusal = Refusal::new(Code::NO_SUCH_TASK, "no task 8");
        assert_eq!(peer.answer(&Reply::Failed { refusal }), Request::Cancel { id: 8 });
    });
    let stager = peer.connect();
    assert_eq!((stager.node(), stager.pid(), stager.is_control()), ("n0".into(), 1, true));
    assert_eq!(stager.submit(&task(b"in")).unwrap(), 7);
    assert_eq!(stager.status(7).unwrap(), status(7));
    let error = stager.cancel(8).unwrap_err();
    assert_eq!(
        (error.code(), error.may_be_done(), error.to_string()),
        (Code::NO_SUCH_TASK, false, "no task 8".into())
    );
    peer.finish();
}

#[test]
fn a_long_wait_holds_nobody_up() {
    let (arrived, has_arrived) = std::sync::mpsc::channel();
    let peer = Scripted::new(move |accept| {
        let mut peer = accept();
        peer.greet();
        let (waits, wait) = peer.next();
        assert_eq!(wait, Request::Wait { ids: vec![1], any: false, timeout_ms: None });
        arrived.send(()).unwrap();
        // The thread that waits reads now; it has to hand each of these on.
        for id in 2..100 {
            peer.answer(&Reply::Submitted { id });
        }
        peer.say(waits, &done(1));
        // And this one comes after the reader has left.
        peer.answer(&Reply::Submitted { id: 100 });
    });
    let stager = peer.connect();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stager.wait(&[1], false, None).unwrap());
        has_arrived.recv().unwrap();
        for id in 2..101 {
            assert_eq!(stager.submit(&task(b"in")).unwrap(), id);
        }
        assert_eq!(waiting.join().unwrap(), [status(1)]);
    });
    peer.finish();
}

#[test]
fn replies_find_their_threads_in_any_order() {
    const THREADS: u32 = 8;
    const ROUNDS: u32 = 200;
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        for _ in 0..ROUNDS {
            let asked: Vec<_> = (0..THREADS).map(|_| peer.next()).collect();
            for (number, request) in asked.into_iter().rev() {
                let Request::Status { id } = request else { panic!("{request:?}") };
                peer.say(number, &Reply::Task { status: status(id) });
            }
        }
    });
    let stager = peer.connect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let stager = &stager;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let id = thread * ROUNDS + round;
                    assert_eq!(stager.status(id).unwrap().id, id);
                }
            });
        }
    });
    peer.finish();
}

#[test]
fn another_version_and_other_programs_are_told_apart() {
    let other = Scripted::new(|accept| accept().greet_with(STAGER_VERSION + 1));
    let error = Stager::connect(other.path()).err().unwrap();
    assert!(matches!(error, StageError::Version { theirs, .. } if theirs == STAGER_VERSION + 1), "{error}");
    other.finish();

    let talker = Scripted::new(|accept| {
        let mut peer = accept();
        peer.next();
        peer.0.write_all(b"220 mail.example.org ESMTP\r\n").unwrap();
    });
    let error = Stager::connect(talker.path()).err().unwrap();
    assert!(matches!(error, StageError::Protocol { .. }), "{error}");
    talker.finish();

    let silent = Scripted::new(|accept| drop(accept()));
    let error = Stager::connect(silent.path()).err().unwrap();
    assert!(matches!(error, StageError::Lost { sent: false, .. }), "{error}");
    silent.finish();

    let nobody = TempDir::new().unwrap();
    let error = Stager::connect(nobody.path().join("s")).err().unwrap();
    assert!(
        matches!(error, StageError::Connect { .. }) && error.to_string().contains("tidepool-staged"),
        "{error}"
    );
    assert_eq!(error.code(), Code::CONNECTION_FAILED);
}

#[test]
fn a_reply_nobody_asked_for_ends_the_connection() {
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        let (id, _) = peer.next();
        peer.say(id + 99, &Reply::Done {});
    });
    let error = peer.connect().ping().unwrap_err();
    assert!(matches!(error, StageError::Protocol { .. }), "{error}");
    peer.finish();
}

#[test]
fn the_wrong_kind_of_reply_is_an_error() {
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        peer.answer(&Reply::Jobs { jobs: Vec::new() });
    });
    let error = peer.connect().submit(&task(b"in")).unwrap_err();
    assert!(matches!(error, StageError::Protocol { .. }) && error.may_be_done(), "{error}");
    peer.finish();
}

#[test]
fn a_submission_that_left_is_never_repeated() {
    let peer = Scripted::new(|accept| {
        let mut first = accept();
        first.greet();
        first.next();
        drop(first);
        let mut second = accept();
        second.greet();
        // The next thing asked is the ping: the submission did not come again.
        assert_eq!(second.answer(&Reply::Done {}), Request::Ping {});
    });
    let stager = peer.connect();
    let error = stager.submit(&task(b"in")).unwrap_err();
    assert!(matches!(error, StageError::Lost { sent: true, .. }) && error.may_be_done(), "{error}");
    stager.ping().unwrap();
    peer.finish();
}

#[test]
fn a_question_is_repeated_on_a_new_connection() {
    let peer = Scripted::new(|accept| {
        let mut first = accept();
        first.greet();
        first.next();
        drop(first);
        let mut second = accept();
        second.greet();
        assert_eq!(second.answer(&Reply::Task { status: status(3) }), Request::Status { id: 3 });
        // And it is repeated once only.
        second.next();
        drop(second);
        let mut third = accept();
        third.greet();
        third.next();
    });
    let stager = peer.connect();
    assert_eq!(stager.status(3).unwrap(), status(3));
    let error = stager.status(4).unwrap_err();
    assert!(matches!(error, StageError::Lost { sent: true, .. }), "{error}");
    peer.finish();
}

#[test]
fn a_submission_after_a_restart_finds_the_new_stager() {
    let (gone, is_gone) = std::sync::mpsc::channel();
    let peer = Scripted::new(move |accept| {
        let mut first = accept();
        first.greet();
        drop(first);
        gone.send(()).unwrap();
        let mut second = accept();
        second.greet();
        assert_eq!(second.answer(&Reply::Submitted { id: 1 }), Request::Submit { task: task(b"in") });
    });
    let stager = peer.connect();
    is_gone.recv().unwrap();
    assert_eq!(stager.submit(&task(b"in")).unwrap(), 1);
    peer.finish();
}

#[test]
fn all_waiting_threads_are_told_of_a_lost_stager() {
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        for _ in 0..4 {
            peer.next();
        }
    });
    let stager = peer.connect();
    let submit = || stager.submit(&task(b"in")).unwrap_err();
    let errors: Vec<StageError> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(submit)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors.iter().all(|e| matches!(e, StageError::Lost { sent: true, .. })), "{errors:?}");
    peer.finish();
}

/// Answers submissions of many tasks until there have been `all`; returns how many each had.
fn take_tasks(peer: &mut Peer, all: usize, refuse: usize) -> Vec<usize> {
    let (mut sizes, mut taken) = (Vec::new(), 0);
    while taken < all {
        let (number, request) = peer.next();
        let Request::SubmitMany { tasks } = request else { panic!("{request:?}") };
        let ids: Vec<u32> =
            (taken..taken + tasks.len()).map(|n| if n == refuse { 0 } else { n as u32 + 1 }).collect();
        let inside = (taken..taken + tasks.len()).contains(&refuse);
        let refusal = || ((refuse - taken) as u32, Refusal::new(Code::NO_SUCH_DATASPACE, "no"));
        let refused = inside.then(refusal).into_iter().collect();
        peer.say(number, &Reply::SubmittedMany { ids, refused });
        sizes.push(tasks.len());
        taken += tasks.len();
    }
    sizes
}

#[test]
fn many_tasks_are_split_by_count_and_by_length() {
    let count = TASKS_AT_ONCE_MAX + 100;
    let peer = Scripted::new(move |accept| {
        let mut peer = accept();
        peer.greet();
        assert_eq!(take_tasks(&mut peer, count, TASKS_AT_ONCE_MAX + 5), [TASKS_AT_ONCE_MAX, 100]);
        // 5,000 paths of 4 KiB are 20 MiB, a message at most 8.
        let sizes = take_tasks(&mut peer, 5_000, usize::MAX);
        assert!(sizes.len() == 4 && sizes.iter().sum::<usize>() == 5_000, "{sizes:?}");
    });
    let stager = peer.connect();
    let submitted = stager.submit_many(vec![task(b"in"); count]).unwrap();
    let refused = TASKS_AT_ONCE_MAX + 5;
    assert!(submitted.ids.iter().enumerate().all(|(n, &id)| (id == 0) == (n == refused)));
    assert_eq!(submitted.refused, [(refused as u32, Refusal::new(Code::NO_SUCH_DATASPACE, "no"))]);
    let long = stager.submit_many(vec![task(&[b'x'; 4096]); 5_000]).unwrap();
    assert!(long.ids.iter().copied().eq(1..=5_000));
    let error = stager.submit_many(vec![task(&vec![b'x'; 9 << 20])]).unwrap_err();
    assert!(matches!(error.error, StageError::TooLong { .. }), "{error}");
    peer.finish();
}

#[test]
fn what_was_submitted_before_an_error_is_told() {
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        take_tasks(&mut peer, TASKS_AT_ONCE_MAX, usize::MAX);
        peer.next();
    });
    let error = peer.connect().submit_many(vec![task(b"in"); TASKS_AT_ONCE_MAX + 1]).unwrap_err();
    assert_eq!(error.done.ids.len(), TASKS_AT_ONCE_MAX);
    assert!(error.error.may_be_done(), "{error}");
    peer.finish();
}

#[test]
fn timeouts_are_rounded_up_and_told() {
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        let asked = peer.answer(&Reply::Failed { refusal: Refusal::new(Code::TIMEOUT, "") });
        let Request::Wait { timeout_ms: Some(1), .. } = asked else { panic!("{asked:?}") };
    });
    let error = peer.connect().wait(&[1], true, Some(Duration::from_nanos(1_000_000))).unwrap_err();
    assert_eq!(error.code(), Code::TIMEOUT);
    peer.finish();
}

#[test]
fn what_does_not_end_soon_is_waited_for_by_its_number() {
    let peer = Scripted::new(|accept| {
        let mut first = accept();
        first.greet();
        let timeout_ms = FIRST_WAIT.as_millis() as u64;
        let both = |path| Request::SubmitAndWait { task: task(path), timeout_ms };
        assert_eq!(first.answer(&done(7)), both(b"short"));
        let running = TaskStatus { state: TaskState::Running, ..status(8) };
        assert_eq!(first.answer(&Reply::Tasks { tasks: vec![running], more: false }), both(b"long"));
        first.next();
        drop(first);
        let mut second = accept();
        second.greet();
        let wait = Request::Wait { ids: vec![8], any: false, timeout_ms: None };
        assert_eq!(second.answer(&done(8)), wait, "again after the restart");
        second.next();
    });
    let stager = peer.connect();
    assert_eq!(stager.submit_and_wait(&task(b"short")).unwrap(), status(7));
    assert_eq!(stager.submit_and_wait(&task(b"long")).unwrap(), status(8));
    // What left without an answer is not submitted twice.
    assert!(stager.submit_and_wait(&task(b"x")).unwrap_err().may_be_done());
    peer.finish();
}

#[test]
fn lists_are_read_to_their_end() {
    let peer = Scripted::new(|accept| {
        let mut peer = accept();
        peer.greet();
        let page =
            |ids: &[u32], more| Reply::Tasks { tasks: ids.iter().map(|&id| status(id)).collect(), more };
        let ask = |after| Request::List { job: Some(4), only: None, after, max: TASKS_AT_ONCE_MAX as u32 };
        assert_eq!(peer.answer(&page(&[1, 2], true)), ask(0));
        assert_eq!(peer.answer(&page(&[5], false)), ask(2));
    });
    let ids: Vec<u32> = peer.connect().list(Some(4), None).unwrap().iter().map(|task| task.id).collect();
    assert_eq!(ids, [1, 2, 5]);
    peer.finish();
}

#[test]
fn garbage_after_the_greeting_is_an_error_and_nothing_worse() {
    for seed in 0..200u64 {
        let peer = Scripted::new(move |accept| {
            let mut peer = accept();
            peer.greet();
            peer.next();
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            // A plausible head half of the time, so that bodies are decoded as well.
            let mut bytes: Vec<u8> = (0..next() % 400).map(|_| next() as u8).collect();
            if seed % 2 == 0 {
                let head = Head { len: bytes.len() as u32, kind: (next() % 16) as u16, id: 2 };
                bytes.splice(0..0, head.encode());
            }
            let _ = peer.0.write_all(&bytes);
        });
        // Submitting is not repeated, so that one connection is all the script needs. An accident
        // that is a valid reply is none.
        let _ = peer.connect().submit(&task(b"in"));
        peer.finish();
    }
}
