//! What a stager promises, on the state machine alone; and that a replayed journal, or a snapshot
//! of it, says the same as the state that wrote it.

use proptest::prelude::*;
use tidepool_stage_state::{
    Budget, Caller, Cancelled, Config, Ended, FAILURES_MAX, Identity, Origin, Permit, Rank, Release, Side,
    Start, State, Visitor, check_one_job,
};
use tidepool_wire::stager::{
    Code, Command, DataspaceKind, DataspaceSpec, Fate, JobLimit, JobSpec, OnBehalf, Op, PersistOp, Policy,
    ProcessSpec, RELEASED_AT_ONCE_MAX, Refusal, Resource, TaskPhase, TaskSpec, TaskState,
};

fn config() -> Config {
    Config {
        node: "n1".into(),
        workers: 2,
        tasks_max: 1000,
        ended_max: 100,
        policy: Policy::FirstCome,
        personal_uid: None,
        budget: Budget::default(),
    }
}

fn admin() -> Caller {
    Caller { uid: 0, gid: 0, rank: Rank::Administrator, ancestry: vec![Origin { pid: 1, started: 1 }] }
}

fn user(uid: u32, pid: i32) -> Caller {
    Caller { uid, gid: uid, rank: Rank::User, ancestry: vec![Origin { pid, started: 7 }] }
}

fn space(name: &str) -> DataspaceSpec {
    DataspaceSpec {
        name: name.into(),
        kind: DataspaceKind::Local,
        mount: "/x".into(),
        tracked: false,
        capacity: 0,
        streams_max: 0,
        bandwidth: 0,
    }
}

fn job(id: u32, spaces: &[(&str, u64)]) -> JobSpec {
    let limit = |(name, quota): &(&str, u64)| JobLimit { dataspace: (*name).into(), quota: *quota };
    JobSpec { id, hosts: vec!["n1".into()], limits: spaces.iter().map(limit).collect(), bandwidth: 0 }
}

fn copy(from: &str, to: &str) -> TaskSpec {
    TaskSpec::new(Op::Copy, Resource::local(from, b"a"), Some(Resource::local(to, b"b")))
}

/// Dataspaces a:// and b://, job 5 of user 100 with process 50 that may use them, job 6 of 101 with a:// only.
fn state() -> State {
    let mut state = State::new(config());
    for name in ["a://", "b://", "c://"] {
        state.register_dataspace(&admin(), space(name)).unwrap();
    }
    state.register_job(&admin(), job(5, &[("a://", 0), ("b://", 1000), ("later://", 0)]), None).unwrap();
    state.register_job(&admin(), job(6, &[("a://", 0)]), None).unwrap();
    state.add_process(&admin(), 5, ProcessSpec { pid: 50, uid: 100, gid: 100 }, 7).unwrap();
    state.add_process(&admin(), 6, ProcessSpec { pid: 60, uid: 101, gid: 101 }, 7).unwrap();
    state
}

/// The state that a journal of what has happened, and then a snapshot of it, say.
fn again(state: &mut State) -> State {
    again_with(state, config())
}

fn again_with(state: &mut State, config: Config) -> State {
    let (mut records, mut snapshot) = (Vec::new(), Vec::new());
    state.take_records(&mut records);
    let mut replayed = State::new(config.clone());
    replayed.replay(&records).unwrap();
    replayed.snapshot(&mut snapshot);
    let mut restarted = State::new(config);
    restarted.replay(&snapshot).unwrap();
    restarted
}

fn code<T: std::fmt::Debug>(result: Result<T, Refusal>) -> Code {
    result.expect_err("it should be refused").code
}

#[test]
fn processes_of_no_job_and_dataspaces_of_other_jobs_are_refused() {
    let mut state = state();
    assert_eq!(code(state.submit(1, &user(100, 51), copy("a://", "b://"))), Code::NOT_PERMITTED);
    assert_eq!(code(state.submit(1, &user(101, 50), copy("a://", "b://"))), Code::NOT_PERMITTED);
    assert_eq!(code(state.submit(1, &user(101, 60), copy("a://", "b://"))), Code::NOT_PERMITTED);
    assert_eq!(code(state.submit(1, &user(100, 50), copy("a://", "c://"))), Code::NOT_PERMITTED);
    assert_eq!(code(state.submit(1, &user(100, 50), copy("z://", "a://"))), Code::NO_SUCH_DATASPACE);
    assert!(state.submit(1, &user(100, 50), copy("a://", "b://")).is_ok());
    // A process number that was used again is another process.
    let mut reused = user(100, 50);
    reused.ancestry[0].started = 8;
    assert_eq!(code(state.submit(1, &reused, copy("a://", "b://"))), Code::NOT_PERMITTED);
    // Children of a job's process are of the job.
    let mut child = user(100, 70);
    child.ancestry.push(Origin { pid: 50, started: 7 });
    assert!(state.submit(1, &child, copy("a://", "b://")).is_ok());
}

#[test]
fn administration_is_for_the_control_socket() {
    let mut state = state();
    let user = user(0, 50);
    assert_eq!(code(state.register_dataspace(&user, space("x"))), Code::NOT_PERMITTED);
    assert_eq!(code(state.update_dataspace(&user, space("a://"))), Code::NOT_PERMITTED);
    assert_eq!(code(state.unregister_dataspace(&user, "a://")), Code::NOT_PERMITTED);
    assert_eq!(code(state.register_job(&user, job(9, &[]), None)), Code::NOT_PERMITTED);
    assert_eq!(code(state.update_job(&user, job(5, &[]))), Code::NOT_PERMITTED);
    assert_eq!(code(state.unregister_job(&user, 5)), Code::NOT_PERMITTED);
    let process = ProcessSpec { pid: 9, uid: 0, gid: 0 };
    assert_eq!(code(state.add_process(&user, 5, process, 0)), Code::NOT_PERMITTED);
    assert_eq!(code(state.remove_process(&user, 5, process)), Code::NOT_PERMITTED);
    assert_eq!(code(state.command(&user, Command::Shutdown)), Code::NOT_PERMITTED);
    assert_eq!(code(state.set_policy(&user, Policy::FairByJob)), Code::NOT_PERMITTED);
    let mut behalf = copy("a://", "b://");
    behalf.on_behalf = Some(OnBehalf { uid: 0, gid: 0, job: 5 });
    assert_eq!(code(state.submit(1, &user, behalf)), Code::NOT_PERMITTED);
    assert!(state.command(&user, Command::Ping).is_ok());
}

#[test]
fn who_asks_is_told_of_the_dataspaces_he_may_use() {
    let state = state();
    let names = |caller: &Caller| -> Vec<String> {
        state.dataspaces(caller).unwrap().into_iter().map(|info| info.dataspace.name).collect()
    };
    assert_eq!(names(&user(100, 50)), ["a://", "b://"]);
    assert_eq!(names(&user(101, 60)), ["a://"]);
    assert_eq!(names(&admin()), ["a://", "b://", "c://"]);
    assert_eq!(code(state.dataspaces(&user(102, 70))), Code::NOT_PERMITTED);
}

#[test]
fn shapes_that_make_no_sense_are_bad_arguments() {
    let mut state = state();
    let a = Resource::local("a://", b"x");
    let memory = Resource::Memory { address: 4096, size: 10 };
    let nothing = Resource::Memory { address: 4096, size: 0 };
    let bad = [
        (Op::Copy, a.clone(), None),
        (Op::Remove, a.clone(), Some(a.clone())),
        (Op::Remove, memory.clone(), None),
        (Op::Remove, Resource::local("a://", b"./"), None),
        (Op::Copy, nothing.clone(), Some(a.clone())),
        (Op::Copy, a.clone(), Some(nothing)),
        (Op::Move, memory.clone(), Some(a.clone())),
        (Op::Copy, memory.clone(), Some(Resource::local("a://", b"dir/"))),
        (Op::Copy, Resource::local("a://", b"a\0b"), Some(a.clone())),
        (Op::Copy, Resource::local("", b"a"), Some(a.clone())),
        (Op::Copy, Resource::remote("a://", "", b"a"), Some(a.clone())),
        (Op::Copy, Resource::local("a://", &[b'x'; 5000]), Some(a.clone())),
    ];
    for (op, src, dst) in bad {
        let spec = TaskSpec::new(op, src, dst);
        assert_eq!(code(state.submit(1, &user(100, 50), spec.clone())), Code::BAD_ARGS, "{spec:?}");
    }
    for (op, src) in [(Op::Copy, memory.clone()), (Op::Move, a)] {
        let spec = TaskSpec::new(op, src, Some(memory.clone()));
        assert_eq!(code(state.submit(1, &user(100, 50), spec.clone())), Code::NOT_SUPPORTED, "{spec:?}");
    }
}

#[test]
fn a_task_lives_from_submission_to_its_end_and_again() {
    let mut state = state();
    let me = user(100, 50);
    let id = state.submit(1, &me, copy("a://", "b://")).unwrap();
    let status = |state: &State| state.status(5, &me, id, |_| None).unwrap();
    assert_eq!(status(&state).state, TaskState::Pending);
    let start = state.start_next().unwrap();
    assert_eq!((start.id, start.identity), (id, Identity { uid: 100, gid: 100, job: 5 }));
    assert_eq!((start.quotas.len(), start.quotas[0].limit), (1, 1000));
    assert_eq!(status(&state).state, TaskState::Running);
    assert_eq!(code(state.unregister_job(&admin(), 5)), Code::JOB_BUSY);
    assert_eq!(code(state.unregister_dataspace(&admin(), "b://")), Code::DATASPACE_BUSY);
    state.ended(9, id, Ended::badly(Refusal::new(Code::SYSTEM_ERROR, "disk full")));
    assert_eq!(status(&state).refusal.detail, "disk full");
    state.resume(&me, id).unwrap();
    assert!(state.start_next().is_some());
    state.ended(20, id, Ended::well(600, 2, 600, 10));
    assert_eq!((status(&state).state, status(&state).bytes_done), (TaskState::Finished, 600));
    // Asked as often as one likes, also by others of the user.
    assert_eq!(status(&state).state, TaskState::Finished);
    assert_eq!(code(state.resume(&me, id)), Code::TASK_STATE);
    assert_eq!(code(state.cancel(30, &me, id)), Code::TASK_STATE);
    assert_eq!(code(state.status(5, &user(101, 60), id, |_| None)), Code::NO_SUCH_TASK);
    let report = state.report(&me, 5).unwrap();
    assert_eq!((report.bytes, report.tasks, report.failed), (600, 2, 1));
    assert_eq!(state.dataspaces(&me).unwrap()[1].used, 600);
    assert!(state.unregister_job(&admin(), 5).is_ok());
}

fn removal(space: &str, path: &[u8]) -> TaskSpec {
    TaskSpec::new(Op::Remove, Resource::local(space, path), None)
}

/// Runs a task of job 5 to a good end.
fn well(state: &mut State, spec: TaskSpec, bytes: u64, moved: u64) {
    let id = state.submit(1, &user(100, 50), spec).unwrap();
    assert_eq!(state.start_next().map(|start| start.id), Some(id));
    state.ended(2, id, Ended::well(bytes, 1, moved, 1));
}

/// What is used of b://: by all, and by job 5.
fn used(state: &State) -> (u64, u64) {
    let of = |caller: &Caller| state.dataspaces(caller).unwrap()[1].used;
    (of(&admin()), of(&user(100, 50)))
}

#[test]
fn only_what_tasks_have_put_somewhere_is_given_back_when_it_goes() {
    let mut state = state();
    let to = |path: &[u8]| TaskSpec { dst: Some(Resource::local("b://", path)), ..copy("a://", "b://") };
    well(&mut state, to(b"in"), 600, 600);
    well(&mut state, to(b"dir/"), 20, 20);
    well(&mut state, to(b""), 3, 3);
    state.received(5, ("b://", b"from/peer"), 100);
    state.received(0, ("b://", b"others"), 1);
    assert_eq!(used(&state), (724, 723));
    // Put there by somebody else: it was never counted, however much it is.
    well(&mut state, removal("b://", b"output"), 10_000, 0);
    let moved =
        |from: &[u8]| TaskSpec { op: Op::Move, src: Resource::local("b://", from), ..copy("b://", "a://") };
    well(&mut state, moved(b"free"), 10_000, 10_000);
    // A part of what a task has put there, and what somebody may have put beside it, cannot be told apart.
    well(&mut state, removal("b://", b"in/x"), 600, 0);
    assert_eq!(used(&state), (724, 723));
    let mut state = again(&mut state);
    assert_eq!(used(&state), (724, 723));
    well(&mut state, removal("b://", b"/from/"), 100, 0);
    assert_eq!(used(&state), (624, 623));
    well(&mut state, moved(b"in"), 600, 600);
    assert_eq!(used(&state), (24, 23));
    // Of the name its source has, in a directory and in the root.
    well(&mut state, removal("b://", b"dir/a"), 20, 0);
    well(&mut state, removal("b://", b"a"), 3, 0);
    assert_eq!(used(&state), (1, 0));
    well(&mut state, removal("b://", b"in"), 600, 0);
    well(&mut state, removal("b://", b"others"), 1, 0);
    assert_eq!(used(&state), (0, 0), "once, and whoever removes it");
}

#[test]
fn what_an_ended_job_has_put_somewhere_is_no_other_jobs() {
    let mut state = state();
    state.received(5, ("b://", b"old"), 100);
    state.unregister_job(&admin(), 5).unwrap();
    state.register_job(&admin(), job(5, &[("a://", 0), ("b://", 1000)]), None).unwrap();
    state.add_process(&admin(), 5, ProcessSpec { pid: 50, uid: 100, gid: 100 }, 7).unwrap();
    let mut state = again(&mut state);
    state.received(5, ("b://", b"new"), 10);
    well(&mut state, removal("b://", b"old"), 100, 0);
    assert_eq!(used(&state), (10, 10));
}

#[test]
fn memory_is_copied_again_for_its_own_process_only() {
    let mut state = state();
    let me = user(100, 50);
    let spec = TaskSpec::new(
        Op::Copy,
        Resource::Memory { address: 4096, size: 10 },
        Some(Resource::local("b://", b"x")),
    );
    let id = state.submit(1, &me, spec).unwrap();
    state.start_next().unwrap();
    state.ended(2, id, Ended::cancelled());
    let mut child = user(100, 51);
    child.ancestry.push(Origin { pid: 50, started: 7 });
    assert_eq!(code(state.resume(&child, id)), Code::NOT_PERMITTED);
    assert_eq!(code(state.resume(&admin(), id)), Code::NOT_PERMITTED);
    assert!(state.resume(&me, id).is_ok());
}

#[test]
fn pending_tasks_are_cancelled_at_once_and_running_ones_through_their_worker() {
    let mut state = state();
    let me = user(100, 50);
    let [first, second] = [0; 2].map(|_| state.submit(1, &me, copy("a://", "b://")).unwrap());
    state.start_next().unwrap();
    assert_eq!(state.cancel(2, &me, second), Ok(Cancelled::AtOnce));
    assert_eq!(state.cancel(2, &me, first), Ok(Cancelled::Tell));
    assert_eq!(code(state.cancel(2, &user(101, 60), first)), Code::NO_SUCH_TASK);
    state.ended(3, first, Ended::cancelled());
    for id in [first, second] {
        assert_eq!(state.status(4, &me, id, |_| None).unwrap().state, TaskState::Cancelled);
    }
    assert!(state.is_idle() && state.command(&admin(), Command::Shutdown).is_ok());
}

#[test]
fn a_task_that_was_told_to_end_does_not_run_again_after_a_restart() {
    let mut first = state();
    let me = user(100, 50);
    let [told, other] = [0; 2].map(|_| first.submit(1, &me, copy("a://", "b://")).unwrap());
    first.start_next().unwrap();
    first.start_next().unwrap();
    assert_eq!(first.cancel(2, &me, told), Ok(Cancelled::Tell));
    let mut journal = Vec::new();
    first.take_records(&mut journal);
    // Killed here, and once more right after the restart.
    for _ in 0..2 {
        let mut again = State::new(config());
        again.replay(&journal).unwrap();
        journal.clear();
        again.snapshot(&mut journal);
        again.end_cancelled(3);
        again.take_records(&mut journal);
        assert_eq!(again.status(4, &me, told, |_| None).unwrap().state, TaskState::Cancelled);
        assert_eq!(again.start_next().map(|start| start.id), Some(other));
        assert_eq!(again.start_next(), None);
        assert_eq!(again.report(&me, 5).unwrap().tasks, 1);
    }
}

#[test]
fn one_user_does_not_take_all_the_room() {
    let mut state = state();
    let mut taken = 0;
    let refusal = loop {
        match state.submit(1, &user(100, 50), copy("a://", "b://")) {
            Ok(_) => taken += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((taken, refusal.code), (500, Code::TOO_MANY_TASKS));
    assert!(refusal.detail.contains("user 100"), "{refusal}");
    let mut own = copy("a://", "a://");
    own.dst = Some(Resource::local("a://", b"c"));
    assert!(state.submit(1, &user(101, 60), own).is_ok());
    assert!(state.submit(1, &admin(), copy("a://", "b://")).is_ok());
    let mut state = again(&mut state);
    assert_eq!(code(state.submit(1, &user(100, 50), copy("a://", "b://"))), Code::TOO_MANY_TASKS);
    state.cancel(1, &admin(), 1).unwrap();
    assert!(state.submit(1, &user(100, 50), copy("a://", "b://")).is_ok());
}

#[test]
fn one_users_long_names_do_not_take_all_the_memory() {
    let budget = Budget { bytes_max: 100_000, ..Budget::default() };
    let mut state = again_with(&mut state(), Config { budget, ..config() });
    let long = || {
        let mut spec = copy("a://", "b://");
        spec.src = Resource::local("a://", &[b'x'; 4000]);
        spec
    };
    let mut taken = 0;
    let refusal = loop {
        match state.submit(1, &user(100, 50), long()) {
            Ok(_) => taken += 1,
            Err(refusal) => break refusal,
        }
    };
    assert!((20..=25).contains(&taken), "{taken} of 4.5 kB each");
    assert!(refusal.detail.contains("user-queue-max"), "{refusal}");
    state.cancel(1, &user(100, 50), 1).unwrap();
    assert!(state.submit(1, &user(100, 50), long()).is_ok(), "what has ended takes nothing of it");
    assert!(state.submit(1, &admin(), long()).is_ok());
    // Failed and cancelled ones are no way around it.
    state.cancel(1, &user(100, 50), 2).unwrap();
    assert!(state.submit(1, &user(100, 50), long()).is_ok());
    assert_eq!(code(state.resume(&user(100, 50), 2)), Code::TOO_MANY_TASKS);
}

#[test]
fn priorities_and_slowness_are_for_administrators_to_give() {
    let mut state = state();
    let with = |priority, bandwidth| TaskSpec { priority, bandwidth, ..copy("a://", "b://") };
    assert_eq!(code(state.submit(1, &user(100, 50), with(1, 0))), Code::NOT_PERMITTED);
    assert_eq!(code(state.submit(1, &user(100, 50), with(i32::MAX, 0))), Code::NOT_PERMITTED);
    assert_eq!(code(state.submit(1, &user(100, 50), with(0, 1))), Code::BAD_ARGS);
    assert!(state.submit(1, &user(100, 50), with(-5, 1 << 20)).is_ok());
    assert!(state.submit(1, &admin(), with(i32::MAX, 1)).is_ok());
}

/// Four tasks of one byte per second used to keep a node from everybody.
#[test]
fn whoever_has_nothing_running_may_start_one_although_all_workers_are_taken() {
    for policy in [Policy::FirstCome, Policy::ShortestFirst, Policy::FairByJob, Policy::FairByUser] {
        let mut state = state();
        state.set_policy(&admin(), policy).unwrap();
        let hogs: Vec<u32> =
            (0..10).map(|_| state.submit(1, &user(100, 50), copy("a://", "b://")).unwrap()).collect();
        let mut started = Vec::new();
        started.extend(std::iter::from_fn(|| state.start_next().map(|start| start.id)));
        assert_eq!(started, hogs[..2], "as many as there are workers");
        let mut own = copy("a://", "a://");
        own.dst = Some(Resource::local("a://", b"c"));
        let victims = [(); 2].map(|()| state.submit(1, &user(101, 60), own.clone()).unwrap());
        assert_eq!(state.start_next().map(|start| start.id), Some(victims[0]));
        assert_eq!(state.start_next().map(|start| start.id), None, "one at a time beyond the workers");
        state.ended(2, victims[0], Ended::well(1, 1, 1, 1));
        assert_eq!(state.start_next().map(|start| start.id), Some(victims[1]));
        state.ended(2, hogs[0], Ended::well(1, 1, 1, 1));
        assert_eq!(state.start_next().map(|start| start.id), None, "two run, and there are two workers");
    }
}

#[test]
fn who_cannot_read_what_is_shared_is_told_what_its_owner_has_to_do() {
    let mut state = state();
    state.persist(1, &admin(), PersistOp::Store, ("b://", b"mesh"), (100, 0)).unwrap();
    state.persist(1, &admin(), PersistOp::Share, ("b://", b"mesh"), (101, 0)).unwrap();
    end_all(&mut state);
    let mut read = copy("b://", "a://");
    read.src = Resource::local("b://", b"mesh/x");
    let id = state.submit(1, &user(101, 60), read).unwrap();
    state.start_next().unwrap();
    let refusal = Refusal { code: Code::SYSTEM_ERROR, errno: 13, detail: "no".into() };
    state.ended(2, id, Ended::badly(refusal));
    let status = state.status(3, &admin(), id, |_| None).unwrap();
    let expected = "tidepool stage persist share b://mesh 101";
    assert!(status.refusal.detail.contains(expected), "{}", status.refusal.detail);
}

/// Runs a task of job 5 whose destination is noted; its number.
fn makes(state: &mut State, spec: TaskSpec, top: &[u8]) -> u32 {
    let id = state.submit(1, &user(100, 50), spec).unwrap();
    let start = state.start_next().expect("there is a worker");
    assert_eq!((start.id, &start.made), (id, &None));
    state.makes(id, b"b", top);
    state.ended(2, id, Ended::well(9, 1, 9, 1));
    id
}

#[test]
fn cleaning_up_removes_what_copies_have_made_and_is_done_once() {
    let mut state = state();
    let made = makes(&mut state, copy("a://", "b://"), b"b");
    let there = makes(&mut state, copy("a://", "a://"), b"");
    let moved = makes(&mut state, TaskSpec { op: Op::Move, ..copy("a://", "b://") }, b"b");
    let waiting = state.submit(1, &user(100, 50), copy("a://", "b://")).unwrap();
    assert_eq!(code(state.clean_job(3, &user(100, 50), (5, 0), true)), Code::NOT_PERMITTED);
    assert_eq!(code(state.clean_job(3, &admin(), (7, 0), true)), Code::NO_SUCH_JOB);
    assert_eq!(code(state.clean_job(3, &admin(), (5, 0), false)), Code::JOB_BUSY);
    state.cancel(3, &admin(), waiting).unwrap();
    // As a restart would know it.
    let mut state = again(&mut state);
    let told = |state: &mut State, dry_run| {
        let (places, more) = state.clean_job(4, &admin(), (5, 0), dry_run).unwrap();
        assert!(!more);
        places.iter().map(|place| (place.task, place.fate, place.removal)).collect::<Vec<_>>()
    };
    let stays = [(there, Fate::WasThere, 0), (moved, Fate::OnlyCopy, 0), (waiting, Fate::Nothing, 0)];
    assert_eq!(told(&mut state, true), [&[(made, Fate::Removed, 0)], &stays[..]].concat());
    let removal = waiting + 1;
    let expected = [&[(made, Fate::Removed, removal)], &stays[..]].concat();
    assert_eq!(told(&mut state, false), expected);
    let start = state.start_next().unwrap();
    assert_eq!((start.id, start.identity.uid, start.spec.op), (removal, 100, Op::Remove));
    assert_eq!(start.spec.src, Resource::local("b://", b"b"));
    assert_eq!(start.made.map(|made| (made.top, made.of)), Some(((*b"b").into(), made)));
    // It is not started twice, but again when it has failed.
    state.ended(5, removal, Ended::badly(Refusal::new(Code::SYSTEM_ERROR, "no")));
    assert_eq!(told(&mut state, true), expected);
    assert!(state.start_next().is_none());
    assert_eq!(told(&mut state, false), expected);
    assert_eq!(state.start_next().map(|start| start.id), Some(removal));
}

#[test]
fn a_dataspace_takes_no_more_tasks_than_it_may() {
    let mut state = state();
    state.update_dataspace(&admin(), DataspaceSpec { streams_max: 1, ..space("b://") }).unwrap();
    let me = user(100, 50);
    let first = state.submit(1, &me, copy("a://", "b://")).unwrap();
    state.submit(1, &me, copy("a://", "b://")).unwrap();
    let third = state.submit(1, &me, copy("a://", "a://")).unwrap();
    assert_eq!(state.start_next().map(|s| s.id), Some(first));
    assert_eq!(state.start_next().map(|s| s.id), Some(third));
    assert_eq!(state.start_next(), None);
}

#[test]
fn copies_of_other_stagers_count_among_those_of_a_dataspace() {
    let mut state = state();
    state.update_dataspace(&admin(), DataspaceSpec { streams_max: 2, ..space("b://") }).unwrap();
    let [first, second] = [0; 2].map(|_| state.submit(1, &user(100, 50), copy("a://", "b://")).unwrap());
    let visits = [0; 2].map(|_| state.peer_came("b://"));
    assert_eq!((state.start_next(), state.peer_came("nowhere://")), (None, 0));
    state.peer_left(visits[0]);
    assert_eq!(state.start_next().map(|s| s.id), Some(first));
    assert_eq!(state.start_next(), None);
    // They are never kept waiting, but those of a dataspace that is gone do not count for the next one of its name.
    let third = state.peer_came("b://");
    for id in [first, second] {
        state.cancel(2, &admin(), id).unwrap();
    }
    state.ended(2, first, Ended::cancelled());
    state.unregister_dataspace(&admin(), "b://").unwrap();
    state.register_dataspace(&admin(), DataspaceSpec { streams_max: 1, ..space("b://") }).unwrap();
    let last = state.submit(3, &user(100, 50), copy("a://", "b://")).unwrap();
    assert_eq!(state.start_next().map(|s| s.id), Some(last));
    state.submit(3, &user(100, 50), copy("a://", "b://")).unwrap();
    state.peer_left(third);
    assert_eq!(state.start_next(), None);
}

#[test]
fn a_paused_stager_takes_nothing_and_a_full_one_says_so() {
    let mut state = State::new(Config { tasks_max: 1, personal_uid: Some(100), ..config() });
    state.register_dataspace(&admin(), space("a://")).unwrap();
    state.command(&admin(), Command::Pause).unwrap();
    assert_eq!(code(state.submit(1, &user(100, 1), copy("a://", "a://"))), Code::PAUSED);
    state.command(&admin(), Command::Resume).unwrap();
    assert!(state.submit(1, &user(100, 1), copy("a://", "a://")).is_ok());
    assert_eq!(code(state.submit(1, &user(100, 1), copy("a://", "a://"))), Code::TOO_MANY_TASKS);
    assert_eq!(code(state.command(&admin(), Command::Shutdown)), Code::TASKS_PENDING);
}

/// Runs all that there is to run; what it was.
fn end_all(state: &mut State) -> Vec<Start> {
    let mut all = Vec::new();
    while let Some(start) = state.start_next() {
        state.ended(1, start.id, Ended::well(0, 1, 0, 1));
        all.push(start);
    }
    all
}

#[test]
fn what_is_persisted_can_be_shared_and_taken_back() {
    let mut state = state();
    let (me, other) = (user(100, 50), user(101, 60));
    let persist = |state: &mut State, who: &Caller, op, user| {
        state.persist(1, who, op, ("b://", b"/out//run1"), (user, 0))
    };
    assert_eq!(code(persist(&mut state, &me, PersistOp::Delete, 0)), Code::NO_SUCH_RESOURCE);
    assert_eq!(code(persist(&mut state, &other, PersistOp::Store, 0)), Code::NOT_PERMITTED);
    persist(&mut state, &me, PersistOp::Store, 0).unwrap();
    let of = |uid| Identity { uid, gid: uid, job: 6 };
    let read =
        |state: &State| state.open_for_peer(&Visitor::Anybody, of(101), "b://", b"out/run1/x", Side::Source);
    assert_eq!(code(read(&state)), Code::NOT_PERMITTED);
    persist(&mut state, &me, PersistOp::Share, 101).unwrap();
    assert!(read(&state).is_ok());
    assert_eq!(
        code(state.open_for_peer(&Visitor::Anybody, of(101), "b://", b"out/run1/../x", Side::Source)),
        Code::NOT_PERMITTED
    );
    assert_eq!(
        code(state.open_for_peer(&Visitor::Anybody, of(101), "b://", b"out/run1/x", Side::Target)),
        Code::NOT_PERMITTED
    );
    assert_eq!(code(persist(&mut state, &other, PersistOp::Delete, 0)), Code::NOT_PERMITTED);
    persist(&mut state, &me, PersistOp::Unshare, 101).unwrap();
    assert_eq!(code(read(&state)), Code::NOT_PERMITTED);
    end_all(&mut state);
    let removal = persist(&mut state, &me, PersistOp::Delete, 0).unwrap();
    assert_eq!(state.start_next().map(|s| s.id), Some(removal));
    assert!(state.persisted(&admin()).is_empty());
}

fn permits(start: &Start) -> (u32, &[u32], Option<u32>) {
    let Permit { readers, user } = start.permit.as_ref().expect("the location is kept");
    assert_eq!((start.spec.op, start.identity.uid), (Op::Permit, 100));
    (start.id, readers, *user)
}

/// What is done to files is what was asked for last, one task after the other.
#[test]
fn h8_readers_change_in_the_order_that_was_asked_for() {
    let mut state = state();
    let me = user(100, 50);
    let persist =
        |state: &mut State, op, user| state.persist(1, &me, op, ("b://", b"mesh"), (user, 0)).unwrap();
    let stored = persist(&mut state, PersistOp::Store, 0);
    assert_eq!(persist(&mut state, PersistOp::Store, 0), stored, "it has not begun yet");
    let start = state.start_next().unwrap();
    assert_eq!(permits(&start), (stored, &[][..], None));
    // While one is at it the next ones wait, though there is a worker more.
    let (shared, other) =
        (persist(&mut state, PersistOp::Share, 101), persist(&mut state, PersistOp::Share, 102));
    assert_eq!(state.start_next(), None);
    // And what another location needs does not wait for them.
    let far = state.persist(1, &me, PersistOp::Store, ("b://", b"far"), (0, 0)).unwrap();
    assert_eq!(state.start_next().map(|start| start.id), Some(far));
    state.ended(1, far, Ended::well(0, 1, 0, 1));
    state.ended(1, stored, Ended::well(0, 1, 0, 1));
    let start = state.start_next().unwrap();
    assert_eq!(permits(&start), (shared, &[101, 102][..], Some(101)));
    let gone = persist(&mut state, PersistOp::Unshare, 101);
    assert!(gone != shared, "that runs already");
    let mut restarted = again(&mut state);
    for state in [&mut state, &mut restarted] {
        if state.running().is_empty() {
            // It begins again, and finds what is wanted now.
            let start = state.start_next().unwrap();
            assert_eq!(permits(&start), (shared, &[102][..], Some(101)));
        }
        assert_eq!(state.start_next(), None);
        state.ended(1, shared, Ended::cancelled());
        let all = end_all(state);
        let all: Vec<_> = all.iter().map(permits).collect();
        assert_eq!(all, [(other, &[102][..], Some(102)), (gone, &[102][..], Some(101))]);
        // The older task, resumed, does not bring back what was taken since.
        state.resume(&me, shared).unwrap();
        assert_eq!(permits(&state.start_next().unwrap()), (shared, &[102][..], Some(101)));
        assert_eq!(
            code(state.submit(1, &me, TaskSpec { op: Op::Permit, ..copy("a://", "b://") })),
            Code::BAD_ARGS
        );
    }
}

#[test]
fn what_is_kept_again_keeps_its_readers_and_its_owner() {
    let mut state = state();
    let store =
        |state: &mut State, user| state.persist(1, &admin(), PersistOp::Store, ("b://", b"x"), (user, 0));
    store(&mut state, 100).unwrap();
    state.persist(1, &admin(), PersistOp::Share, ("b://", b"x"), (101, 0)).unwrap();
    store(&mut state, 100).unwrap();
    assert_eq!(code(store(&mut state, 101)), Code::RESOURCE_EXISTS);
    assert_eq!(state.persisted(&admin())[0].shared, [101]);
    // Its data stay, and tasks that have not begun have nothing to do any more.
    assert_eq!(code(state.unkeep(&user(100, 50), ("b://", b"x"), 100)), Code::NOT_PERMITTED);
    assert_eq!(code(state.unkeep(&admin(), ("b://", b"x"), 101)), Code::NOT_PERMITTED);
    for _ in 0..2 {
        state.unkeep(&admin(), ("b://", b"/x/"), 100).unwrap();
    }
    assert!(again(&mut state).persisted(&admin()).is_empty());
    assert!(end_all(&mut state).iter().all(|start| start.spec.op == Op::Permit && start.permit.is_none()));
}

#[test]
fn locations_expire() {
    let mut state = state();
    state.persist(1, &user(100, 50), PersistOp::Store, ("b://", b"x"), (0, 10)).unwrap();
    end_all(&mut state);
    let expired = [(9_000, 9_999), (1, 10_000), (1, 10_001)].map(|(passed, now)| state.expire(passed, now));
    assert_eq!(expired, [0, 1, 0]);
    assert_eq!(state.start_next().unwrap().identity.uid, 100);
}

const HOUR: u64 = 3_600_000;
const WEEK: u64 = 7 * 24 * HOUR;
/// Some moment, in milliseconds since 1970.
const NOW: u64 = 20_000 * 24 * HOUR;

/// A location of user 100 that is to stay until so long after the wall clock's `now`.
fn keep(state: &mut State, path: &[u8], now: u64, span: u64) -> u64 {
    let end = (now + span) / 1000;
    state.persist(now, &user(100, 50), PersistOp::Store, ("b://", path), (0, end)).unwrap();
    end_all(state);
    state.persisted(&admin()).iter().find(|l| *l.path == *path).unwrap().expires * 1000
}

/// A clock that is set ten years ahead deletes nothing that was to stay for six weeks, and it is said; not over restarts either, however many.
#[test]
fn a_clock_that_jumps_ahead_deletes_nothing_for_days() {
    let mut state = state();
    assert_eq!(keep(&mut state, b"x", NOW, 6 * WEEK), NOW + 6 * WEEK);
    keep(&mut state, b"short", NOW, 2 * HOUR);
    assert_eq!((state.expire(1000, NOW + 1000), state.doubt()), (0, None));
    let jumped = NOW + 520 * WEEK;
    for second in 0..100 {
        assert_eq!(state.expire(1000, jumped + second * 1000), 0);
        if second % 10 == 0 {
            state = restarted(&state);
        }
    }
    let doubt = state.doubt().expect("it is said");
    assert_eq!((doubt.locations, doubt.ahead / WEEK), (2, 519));
    assert!((HOUR / 30..HOUR / 12).contains(&doubt.first), "{doubt:?}");
    // After a day what was to stay for hours has gone, and the rest has not.
    assert_eq!(state.expire(24 * HOUR, jumped + 24 * HOUR), 1);
    assert_eq!(state.doubt().unwrap().locations, 1);
    // Set right again, all is as it was meant.
    let right = NOW + 25 * HOUR;
    assert_eq!((state.expire(1000, right), state.doubt()), (0, None));
    assert_eq!(state.expire(6 * WEEK, NOW + 6 * WEEK - 1), 0);
    assert_eq!(state.expire(2, NOW + 6 * WEEK + 1), 1);
}

/// A stager that looks away for long, or a machine that sleeps, takes its time as well, and gets there.
#[test]
fn a_stager_that_was_away_catches_up() {
    let mut state = state();
    keep(&mut state, b"x", NOW, WEEK);
    let mut later = restarted(&state);
    let back = NOW + 3 * WEEK;
    let hours = (0..100).find(|hour| later.expire(HOUR, back + hour * HOUR) == 1).unwrap();
    assert_eq!(hours, 6, "a 24th of a week");
}

/// A clock that is behind ends nothing, and what is kept meanwhile stays as long as was said.
#[test]
fn a_clock_that_is_set_back_ends_nothing() {
    let mut state = state();
    keep(&mut state, b"old", NOW, HOUR);
    assert_eq!(state.expire(1000, 5000), 0);
    let end = keep(&mut state, b"new", 6000, WEEK);
    assert!((NOW + WEEK..NOW + WEEK + HOUR).contains(&end), "{end}");
    // Right again, after a restart as well.
    let mut state = restarted(&state);
    assert_eq!(state.expire(10_000, NOW + 10_000), 0);
    assert_eq!(state.expire(HOUR, NOW + HOUR + 10_000), 1, "the old one");
    assert_eq!(state.expire(WEEK, end - 1), 0);
    assert_eq!(state.expire(1000, end + 1000), 1);
}

/// In the name of job 5.
fn of_job(from: &str, to: &str) -> TaskSpec {
    TaskSpec { on_behalf: Some(OnBehalf { uid: 100, gid: 100, job: 5 }), ..copy(from, to) }
}

fn hold(state: &mut State, spec: TaskSpec) -> u32 {
    state.submit_held(1, &admin(), spec).unwrap()
}

fn phase(state: &State, id: u32) -> (TaskState, TaskPhase) {
    let status = state.status(1, &admin(), id, |_| None).unwrap();
    (status.state, status.phase)
}

#[test]
fn held_tasks_start_when_their_job_is_released() {
    let mut state = state();
    // Neither is there yet: the pool, and the job's right to use it.
    let held = [of_job("a://", "b://"), of_job("pool://", "a://"), of_job("a://", "b://")]
        .map(|spec| hold(&mut state, spec));
    let other = state.submit(1, &user(100, 50), copy("a://", "b://")).unwrap();
    assert_eq!(phase(&state, held[0]), (TaskState::Pending, TaskPhase::Held));
    assert_eq!((state.held(), state.daemon_status(|_| None).pending), (3, 4));
    assert_eq!(state.start_next().map(|start| start.id), Some(other));
    assert_eq!(state.start_next(), None);
    state.ended(2, other, Ended::well(0, 0, 0, 0));
    let mut state = again(&mut state);
    assert_eq!((state.held(), state.start_next()), (3, None));
    state.register_dataspace(&admin(), space("pool://")).unwrap();
    state.update_job(&admin(), job(5, &[("a://", 0), ("b://", 0), ("pool://", 0)])).unwrap();
    let release = state.release_job(3, &admin(), 5).unwrap();
    assert_eq!(release, Release { tasks: 3, more: false, failed: Vec::new() });
    assert_eq!(phase(&state, held[0]), (TaskState::Pending, TaskPhase::Queued));
    assert_eq!(
        state.unregister_dataspace(&admin(), "pool://").map_err(|r| r.code),
        Err(Code::DATASPACE_BUSY)
    );
    for id in held {
        assert_eq!(state.start_next().map(|start| start.id), Some(id));
        state.ended(4, id, Ended::well(0, 0, 0, 0));
    }
    state.unregister_dataspace(&admin(), "pool://").unwrap();
    assert_eq!(state.release_job(3, &admin(), 5).map(|release| release.tasks), Ok(0));
}

#[test]
fn a_release_fails_what_cannot_run_and_says_why() {
    let mut state = state();
    let missing = hold(&mut state, of_job("a://", "gone://"));
    let foreign = hold(&mut state, of_job("a://", "c://"));
    let good = hold(&mut state, of_job("a://", "b://"));
    let release = state.release_job(3, &admin(), 5).unwrap();
    assert_eq!((release.tasks, release.failed), (3, vec![missing, foreign]));
    for (id, code, words) in
        [(missing, Code::NO_SUCH_DATASPACE, "gone://"), (foreign, Code::NOT_PERMITTED, "c://")]
    {
        let status = state.status(1, &admin(), id, |_| None).unwrap();
        assert_eq!((status.state, status.refusal.code), (TaskState::Failed, code));
        assert!(status.refusal.detail.contains(words), "{status:?}");
    }
    let mut state = again(&mut state);
    assert_eq!(state.start_next().map(|start| start.id), Some(good));
    assert_eq!(state.start_next(), None);
    state.ended(4, good, Ended::well(0, 0, 0, 0));
    // Counted as ended, whatever they were.
    assert_eq!(state.report(&admin(), 5).unwrap().failed, 2);
    state.unregister_job(&admin(), 5).unwrap();
    for name in ["a://", "b://", "c://"] {
        state.unregister_dataspace(&admin(), name).unwrap();
    }
}

#[test]
fn what_is_held_is_cancelled_and_resumed_as_such() {
    let mut state = state();
    let id = hold(&mut state, of_job("a://", "b://"));
    let mine = user(100, 50);
    assert_eq!(state.cancel(2, &mine, id), Ok(Cancelled::AtOnce));
    assert_eq!((phase(&state, id).0, state.held()), (TaskState::Cancelled, 0));
    state.resume(&mine, id).unwrap();
    let mut state = again(&mut state);
    assert_eq!((phase(&state, id).1, state.held(), state.start_next()), (TaskPhase::Held, 1, None));
    // Cancelled when its job is released, it starts at once when it is resumed.
    state.cancel(2, &mine, id).unwrap();
    state.release_job(3, &admin(), 5).unwrap();
    assert_eq!(phase(&state, id).0, TaskState::Cancelled);
    state.resume(&mine, id).unwrap();
    assert_eq!(state.start_next().map(|start| start.id), Some(id));
}

#[test]
fn jobs_and_stagers_do_not_end_while_something_is_held() {
    let mut state = state();
    let id = hold(&mut state, of_job("a://", "b://"));
    let refusal = state.unregister_job(&admin(), 5).unwrap_err();
    assert!(refusal.code == Code::JOB_BUSY && refusal.detail.contains("1 are held"), "{refusal}");
    let refusal = state.command(&admin(), Command::Shutdown).unwrap_err();
    assert!(refusal.code == Code::TASKS_PENDING && refusal.detail.contains("1 are held"), "{refusal}");
    assert!(!state.is_idle());
    // Its dataspace may go, and cleaning up after the job does not wait for it.
    state.unregister_dataspace(&admin(), "b://").unwrap();
    assert_eq!(state.clean_job(2, &admin(), (5, 0), false).unwrap(), (Vec::new(), false));
    state.cancel(2, &admin(), id).unwrap();
    assert!(state.command(&admin(), Command::Shutdown).is_ok());
    state.unregister_job(&admin(), 5).unwrap();
}

#[test]
fn only_administrators_hold_and_what_makes_no_sense_is_refused_at_once() {
    let mut state = state();
    let mine = user(100, 50);
    assert_eq!(code(state.submit_held(1, &mine, of_job("a://", "b://"))), Code::NOT_PERMITTED);
    assert_eq!(code(state.release_job(1, &mine, 5)), Code::NOT_PERMITTED);
    assert_eq!(code(state.release_job(1, &admin(), 9)), Code::NO_SUCH_JOB);
    let none = copy("a://", "b://");
    let no_job = TaskSpec { on_behalf: Some(OnBehalf { uid: 1, gid: 1, job: 0 }), ..none.clone() };
    let no_destination = TaskSpec { dst: None, ..of_job("a://", "b://") };
    let whole = TaskSpec { op: Op::Remove, src: Resource::local("a://", b"/"), ..no_destination.clone() };
    let memory = TaskSpec { src: Resource::Memory { address: 1, size: 1 }, ..of_job("a://", "b://") };
    for spec in [none.clone(), no_job, no_destination, whole, memory] {
        assert_eq!(code(state.submit_held(1, &admin(), spec.clone())), Code::BAD_ARGS, "{spec:?}");
    }
    let unknown = TaskSpec { on_behalf: Some(OnBehalf { uid: 1, gid: 1, job: 9 }), ..none };
    assert_eq!(code(state.submit_held(1, &admin(), unknown.clone())), Code::NO_SUCH_JOB);
    assert_eq!(code(check_one_job(&[of_job("a://", "b://"), unknown])), Code::BAD_ARGS);
    assert!(check_one_job(&[of_job("a://", "b://"), of_job("b://", "a://")]).is_ok());
    state.command(&admin(), Command::Pause).unwrap();
    assert_eq!(code(state.submit_held(1, &admin(), of_job("a://", "b://"))), Code::PAUSED);
    assert_eq!(state.held(), 0);
}

#[test]
fn many_are_released_in_portions_and_in_order() {
    let mut state = State::new(Config { tasks_max: 100_000, workers: 1, ..config() });
    state.register_dataspace(&admin(), space("a://")).unwrap();
    state.register_dataspace(&admin(), space("b://")).unwrap();
    state.register_job(&admin(), job(5, &[("a://", 0), ("b://", 0)]), None).unwrap();
    let ids: Vec<u32> =
        (0..RELEASED_AT_ONCE_MAX + 7).map(|_| hold(&mut state, of_job("a://", "b://"))).collect();
    let first = state.release_job(1, &admin(), 5).unwrap();
    assert_eq!((first.tasks as usize, first.more), (RELEASED_AT_ONCE_MAX, true));
    assert_eq!(state.held(), 7);
    let rest = state.release_job(1, &admin(), 5).unwrap();
    assert_eq!((rest.tasks, rest.more), (7, false));
    for id in ids {
        assert_eq!(state.start_next().map(|start| start.id), Some(id));
        state.ended(4, id, Ended::well(0, 0, 0, 0));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit(u8),
    Hold(u8),
    Release,
    /// A dataspace comes or goes.
    Later(bool),
    Start,
    End(bool, u16),
    Cancel(u8),
    Resume(u8),
    Forget(u8),
    Pause(bool),
    Persist(u8),
    Receive(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Submit),
        3 => any::<u8>().prop_map(Step::Hold),
        1 => Just(Step::Release),
        1 => any::<bool>().prop_map(Step::Later),
        3 => Just(Step::Start),
        3 => any::<(bool, u16)>().prop_map(|(well, bytes)| Step::End(well, bytes)),
        1 => any::<u8>().prop_map(Step::Cancel),
        1 => any::<u8>().prop_map(Step::Resume),
        1 => any::<u8>().prop_map(Step::Forget),
        1 => any::<bool>().prop_map(Step::Pause),
        1 => any::<u8>().prop_map(Step::Persist),
        1 => any::<u8>().prop_map(Step::Receive),
    ]
}

fn walk(state: &mut State, steps: &[Step]) {
    let me = user(100, 50);
    for (at, step) in steps.iter().enumerate() {
        let now = at as u64;
        // Refusals are results like others here.
        match step {
            Step::Submit(kind) => {
                let op = [Op::Copy, Op::Move, Op::Remove][usize::from(*kind) % 3];
                let spec = match op {
                    Op::Remove => removal("b://", [&b"b"[..], b"x", b"b/c"][usize::from(*kind / 3) % 3]),
                    op => TaskSpec { op, priority: i32::from(*kind % 5), ..copy("a://", "b://") },
                };
                drop(state.submit(now, &me, spec));
            }
            Step::Hold(kind) => {
                let to = ["b://", "later://"][usize::from(*kind) % 2];
                drop(state.submit_held(now, &admin(), of_job("a://", to)));
            }
            Step::Release => drop(state.release_job(now, &admin(), 5)),
            Step::Later(true) => drop(state.register_dataspace(&admin(), space("later://"))),
            Step::Later(false) => drop(state.unregister_dataspace(&admin(), "later://")),
            Step::Start => drop(state.start_next()),
            Step::Receive(bytes) => state.received(5, ("b://", b"x"), u64::from(*bytes)),
            Step::End(well, bytes) => {
                if let Some(id) = state.running().into_iter().min() {
                    let bytes = u64::from(*bytes);
                    let end = if *well { Ended::well(bytes, 1, bytes, 5) } else { Ended::cancelled() };
                    state.ended(now, id, end);
                }
            }
            Step::Cancel(id) => drop(state.cancel(now, &me, (*id % 16).into())),
            Step::Resume(id) => drop(state.resume(&me, (*id % 16).into())),
            Step::Forget(id) => drop(state.forget(&me, (*id % 16).into())),
            Step::Pause(on) => {
                drop(state.command(&admin(), if *on { Command::Pause } else { Command::Resume }));
            }
            Step::Persist(n) => {
                use PersistOp::{Delete, Share, Store, Unshare};
                match [Some(Store), Some(Share), Some(Unshare), Some(Delete), None][usize::from(*n) % 5] {
                    Some(op) => {
                        drop(state.persist(now, &me, op, ("b://", b"p"), (101 + u32::from(n % 2), 0)))
                    }
                    None => drop(state.unkeep(&admin(), ("b://", b"p"), 100)),
                }
            }
        }
    }
}

/// All that can be seen of a state, with what runs counted as pending, as after a restart.
fn seen(state: &State) -> String {
    let (tasks, _) = state.list(1_000_000, &admin(), (None, None), (0, usize::MAX), |_| None);
    let tasks: Vec<String> =
        tasks.into_iter().map(|t| format!("{t:?}\n").replace("Running", "Pending")).collect();
    let reports = [5, 6].map(|job| state.report(&admin(), job));
    let spaces = state.dataspaces(&admin());
    let me = state.dataspaces(&user(100, 50));
    format!("{tasks:?} {reports:?} {spaces:?} {me:?} {:?} {}", state.persisted(&admin()), state.held())
}

proptest! {
    #[test]
    fn a_replayed_journal_and_a_snapshot_of_it_say_the_same(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut first = state();
        let mut journal = Vec::new();
        walk(&mut first, &steps);
        first.take_records(&mut journal);
        let mut second = State::new(config());
        second.replay(&journal).unwrap();
        prop_assert_eq!(seen(&first), seen(&second));
        let mut snapshot = Vec::new();
        second.snapshot(&mut snapshot);
        let mut third = State::new(config());
        third.replay(&snapshot).unwrap();
        prop_assert_eq!(seen(&second), seen(&third));
        // And both go on alike: what was pending starts in the same order.
        let order = |state: &mut State| {
            let mut ids = Vec::new();
            while let Some(start) = state.start_next() {
                ids.push((start.id, start.again));
                state.ended(0, start.id, Ended::cancelled());
            }
            ids
        };
        prop_assert_eq!(order(&mut second), order(&mut third));
        for state in [&mut second, &mut third] {
            drop(state.command(&admin(), Command::Resume));
            let id = state.submit(0, &admin(), removal("b://", b"b")).unwrap();
            prop_assert_eq!(state.start_next().map(|start| start.id), Some(id));
            state.ended(0, id, Ended::well(1, 1, 0, 0));
        }
        prop_assert_eq!(seen(&second), seen(&third), "the same is given back");
        for state in [&mut second, &mut third] {
            state.release_job(0, &admin(), 5).unwrap();
        }
        prop_assert_eq!(order(&mut second), order(&mut third));
        prop_assert_eq!(seen(&second), seen(&third), "the same is released");
        // Nothing is counted twice or not at all: nobody uses anything any more.
        prop_assert!(second.is_idle());
        second.unregister_job(&admin(), 5).unwrap();
        for name in second.dataspace_names() {
            second.unregister_dataspace(&admin(), &name).unwrap();
        }
    }

    #[test]
    fn no_bytes_make_replay_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        drop(State::new(config()).replay(&bytes));
    }
}

fn restarted(state: &State) -> State {
    let mut snapshot = Vec::new();
    state.snapshot(&mut snapshot);
    let mut restarted = State::new(config());
    restarted.replay(&snapshot).unwrap();
    restarted
}

/// Jobs with more tasks than are remembered used to lose their failures, and with them what told that data are missing.
#[test]
fn failures_of_registered_jobs_are_not_forgotten_for_their_age() {
    let mut state = state();
    let run = |state: &mut State, bad: bool| {
        let id = state.submit(1, &user(100, 50), copy("a://", "b://")).unwrap();
        state.start_next().unwrap();
        let refusal = Refusal::new(Code::SYSTEM_ERROR, "no");
        state.ended(2, id, if bad { Ended::badly(refusal) } else { Ended::well(1, 1, 1, 1) });
        id
    };
    let failed = run(&mut state, true);
    let well = run(&mut state, false);
    for _ in 0..300 {
        run(&mut state, false);
    }
    let mut state = restarted(&state);
    assert!(state.status(3, &admin(), failed, |_| None).is_ok());
    assert_eq!(code(state.status(3, &admin(), well, |_| None)), Code::NO_SUCH_TASK);
    assert_eq!(state.forgotten_failures(5), 0);
    for _ in 0..FAILURES_MAX {
        run(&mut state, true);
    }
    let mut state = restarted(&state);
    assert_eq!(code(state.status(3, &admin(), failed, |_| None)), Code::NO_SUCH_TASK);
    assert_eq!(state.forgotten_failures(5), 1);
    assert_eq!(code(state.clean_own(3, &admin(), (5, 0))), Code::TASK_STATE);
    // Without the job they age as all others.
    state.unregister_job(&admin(), 5).unwrap();
    let state = restarted(&state);
    assert_eq!(state.daemon_status(|_| None).ended, 100);
}

proptest! {
    /// Proves that what is left of a journal without any of its frames is a journal: it replays, and says the same as before.
    #[test]
    fn what_is_salvaged_of_a_journal_replays(
        turns in prop::collection::vec(prop::collection::vec(step(), 0..6), 1..30),
        lost in any::<u64>(),
    ) {
        let mut first = state();
        let mut frames: Vec<Vec<u8>> = vec![Vec::new()];
        first.take_records(&mut frames[0]);
        for steps in &turns {
            walk(&mut first, steps);
            let mut frame = Vec::new();
            first.take_records(&mut frame);
            frames.push(frame);
        }
        let mut salvaged = State::new(config());
        let (mut kept, mut bytes) = (Vec::new(), 0);
        for (number, frame) in frames.iter().enumerate() {
            match lost >> (number % 64) & 1 {
                0 => drop(salvaged.salvage(frame, &mut kept)),
                _ => bytes += frame.len() as u64,
            }
        }
        let before = salvaged.task_count();
        kept.extend(salvaged.leap(bytes));
        let mut second = State::new(config());
        second.replay(&kept).unwrap();
        prop_assert_eq!(second.task_count(), before);
        prop_assert_eq!(seen(&salvaged), seen(&second));
        // A new task has a number that no lost one had.
        let submit = |state: &mut State| state.submit(9, &user(100, 50), copy("a://", "b://"));
        if let (Ok(after), Ok(next)) = (submit(&mut second), submit(&mut first)) {
            prop_assert!(after >= next, "{after} may have been given out: {next} was next");
        }
    }
}
