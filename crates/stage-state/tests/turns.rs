//! Turns: whose tasks run for ever keep nobody from starting, and lose nothing when they give way.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tidepool_stage_state::{Budget, Caller, Config, Ended, Origin, Outcome, Rank, State};
use tidepool_wire::stager::{
    Code, DataspaceKind, DataspaceSpec, JobLimit, JobSpec, OnBehalf, Op, Policy, Refusal, Resource,
    TaskPhase, TaskSpec, TaskState,
};

const TURN: u64 = 10;
/// A turn that has become longer each time.
const LONGEST: u64 = TURN << 4;

fn state(workers: u32, extra_max: u32) -> State {
    State::new(config(workers, extra_max, Policy::FirstCome))
}

fn config(workers: u32, extra_max: u32, policy: Policy) -> Config {
    Config {
        node: "n1".into(),
        workers,
        tasks_max: 1000,
        ended_max: 100,
        policy,
        personal_uid: None,
        budget: Budget { extra_max, turn: TURN, ..Budget::default() },
    }
}

fn admin() -> Caller {
    Caller { uid: 0, gid: 0, rank: Rank::Administrator, ancestry: vec![Origin { pid: 1, started: 1 }] }
}

fn with_spaces(mut state: State, streams_max: u32) -> State {
    for (name, streams_max) in [("a://", 0), ("b://", 0), ("few://", streams_max)] {
        let (kind, mount) = (DataspaceKind::Local, "/x".to_string());
        let space = DataspaceSpec {
            name: name.into(),
            kind,
            mount,
            tracked: false,
            capacity: 0,
            streams_max,
            bandwidth: 0,
        };
        state.register_dataspace(&admin(), space).unwrap();
    }
    state
}

fn submit(state: &mut State, uid: u32, to: &str) -> u32 {
    submit_in(state, (uid, 0), to)
}

fn submit_in(state: &mut State, (uid, job): (u32, u32), to: &str) -> u32 {
    let spec = TaskSpec::new(Op::Copy, Resource::local("a://", b"x"), Some(Resource::local(to, b"y")));
    let spec = TaskSpec { on_behalf: Some(OnBehalf { uid, gid: uid, job }), ..spec };
    state.submit(1, &admin(), spec).unwrap()
}

fn start(state: &mut State) -> Vec<u32> {
    std::iter::from_fn(|| state.start_next()).map(|start| start.id).collect()
}

/// So many seconds pass; who is told to give way meanwhile.
fn pass(state: &mut State, seconds: u64) -> Vec<u32> {
    (0..seconds).flat_map(|_| state.give_way()).collect()
}

fn stopped(moved: u64) -> Ended {
    Ended { moved, bytes: moved, busy_ms: 10, ..Ended::cancelled() }
}

#[test]
fn a_task_gives_way_to_who_has_none_running() {
    let mut state = with_spaces(state(1, 1), 0);
    let (one, two) = (submit(&mut state, 100, "b://"), submit(&mut state, 101, "b://"));
    assert_eq!(start(&mut state), [one, two]);
    // Nobody waits.
    assert_eq!(pass(&mut state, 5 * TURN), []);
    submit(&mut state, 100, "b://");
    assert_eq!(pass(&mut state, 5 * TURN), [], "he has one running");
    let third = submit(&mut state, 102, "b://");
    assert_eq!(start(&mut state), []);
    let told = pass(&mut state, 3);
    assert_eq!(told.len(), 1, "one for one who waits, and once");
    assert_eq!(state.ended(2, told[0], stopped(7)), Outcome::WaitsAgain);
    let status = state.status(2, &admin(), told[0], |_| None).unwrap();
    assert_eq!((status.state, status.phase), (TaskState::Pending, TaskPhase::Queued));
    assert_eq!(start(&mut state), [third], "and not what has just given way");
    // That begins as soon as there is a place: the other user has one running.
    assert_eq!(state.ended(3, third, Ended::well(1, 1, 1, 1)), Outcome::Over);
    assert_eq!(start(&mut state), [told[0]]);
}

#[test]
fn nobody_gives_way_before_his_turn_is_over_and_turns_become_longer() {
    let mut state = with_spaces(state(1, 0), 0);
    let slow = submit(&mut state, 100, "b://");
    assert_eq!(start(&mut state), [slow]);
    let mut longest = Vec::new();
    for _ in 0..7 {
        let other = submit(&mut state, 101, "b://");
        let waited = (1..).find(|_| state.give_way() == [slow]).unwrap();
        longest.push(waited);
        assert_eq!(state.ended(2, slow, stopped(1)), Outcome::WaitsAgain);
        assert_eq!(start(&mut state), [other]);
        assert_eq!(state.ended(3, other, Ended::well(1, 1, 1, 1)), Outcome::Over);
        assert_eq!(start(&mut state), [slow]);
    }
    assert_eq!(longest, [1, 2, 4, 8, 16, 16, 16].map(|turns| turns * TURN));
}

/// A dataspace that allows few tasks is a place like the others.
#[test]
fn who_waits_for_a_dataspace_gets_his_turn_in_it() {
    let mut state = with_spaces(state(4, 4), 1);
    let (slow, beside) = (submit(&mut state, 100, "few://"), submit(&mut state, 100, "b://"));
    assert_eq!(start(&mut state), [slow, beside]);
    let other = submit(&mut state, 101, "few://");
    assert_eq!(pass(&mut state, TURN), [slow], "what is elsewhere is not in the way");
    assert_eq!(state.ended(2, slow, stopped(1)), Outcome::WaitsAgain);
    assert_eq!(start(&mut state), [other]);
}

/// Who has many running gives way before who has one.
#[test]
fn who_has_most_gives_way_first() {
    let mut state = with_spaces(state(3, 0), 0);
    let alone = submit(&mut state, 100, "b://");
    assert_eq!(start(&mut state), [alone]);
    pass(&mut state, TURN);
    let many = [submit(&mut state, 101, "b://"), submit(&mut state, 101, "b://")];
    assert_eq!(start(&mut state), many);
    submit(&mut state, 102, "b://");
    assert_eq!(pass(&mut state, 1), [alone], "the turns of the others are not over");
    assert_eq!(state.ended(1, alone, stopped(0)), Outcome::WaitsAgain);
    assert_eq!(start(&mut state).len(), 1);
    let told = pass(&mut state, TURN);
    assert!(many.contains(&told[0]), "{told:?}");
}

#[test]
fn what_ends_otherwise_meanwhile_has_ended() {
    for (cancelled, ended, state_then) in [
        (false, Ended::well(5, 1, 5, 1), TaskState::Finished),
        (false, Ended::badly(Refusal::new(Code::SYSTEM_ERROR, "")), TaskState::Failed),
        (true, stopped(5), TaskState::Cancelled),
    ] {
        let mut state = with_spaces(state(1, 0), 0);
        let slow = submit(&mut state, 100, "b://");
        start(&mut state);
        submit(&mut state, 101, "b://");
        assert_eq!(pass(&mut state, TURN), [slow]);
        if cancelled {
            state.cancel(2, &admin(), slow).unwrap();
        }
        assert_eq!(state.ended(3, slow, ended), Outcome::Over);
        assert_eq!(state.status(3, &admin(), slow, |_| None).unwrap().state, state_then);
        // Its user cancels, and nobody had told it to give way: that is an end as well.
        let mut plain = with_spaces(self::state(1, 0), 0);
        let own = submit(&mut plain, 100, "b://");
        start(&mut plain);
        assert_eq!(plain.ended(3, own, stopped(5)), Outcome::Over);
    }
}

/// Who has had little comes before a crowd that has had much, however long that has waited.
#[test]
fn who_asks_for_little_does_not_wait_behind_who_asks_for_much() {
    let mut state = with_spaces(state(1, 0), 0);
    let crowd: Vec<u32> = (200..220).collect();
    for uid in &crowd {
        submit(&mut state, *uid, "b://");
        submit(&mut state, *uid, "b://");
    }
    let mut running = start(&mut state);
    let next = |state: &mut State, running: &mut Vec<u32>| {
        let told = pass(state, 1);
        for id in &told {
            assert_eq!(state.ended(2, *id, stopped(1)), Outcome::WaitsAgain);
            running.retain(|other| other != id);
        }
        running.extend(start(state));
    };
    // Each of the crowd has his turn once.
    (0..TURN * 21).for_each(|_| next(&mut state, &mut running));
    for _ in 0..5 {
        let honest = submit(&mut state, 100, "b://");
        let waited = (0..).find(|_| {
            next(&mut state, &mut running);
            running.contains(&honest)
        });
        assert!(waited.unwrap() <= 4 * TURN, "{waited:?}, of {} turns", crowd.len());
        assert_eq!(state.ended(3, honest, Ended::well(1, 1, 1, 1)), Outcome::Over);
        running.retain(|id| *id != honest);
        running.extend(start(&mut state));
    }
}

/// What it has moved counts for its job, and is no failure; a journal and a snapshot say so too.
#[test]
fn what_has_given_way_is_in_the_journal() {
    let mut state = with_spaces(state(1, 0), 0);
    let limits = ["a://", "b://"].map(|name| JobLimit { dataspace: name.into(), quota: 1000 }).to_vec();
    let job = JobSpec { id: 5, hosts: vec!["n1".into()], limits, bandwidth: 0 };
    state.register_job(&admin(), job, None).unwrap();
    let slow = submit_in(&mut state, (100, 5), "b://");
    start(&mut state);
    submit(&mut state, 101, "b://");
    assert_eq!(pass(&mut state, TURN), [slow]);
    assert_eq!(state.ended(2, slow, stopped(400)), Outcome::WaitsAgain);
    let (mut records, mut snapshot) = (Vec::new(), Vec::new());
    state.take_records(&mut records);
    let replayed = with_config(&records);
    replayed.snapshot(&mut snapshot);
    for mut state in [state, replayed, with_config(&snapshot)] {
        let report = state.report(&admin(), 5).unwrap();
        assert_eq!((report.tasks, report.failed, report.bytes, report.busy_ms), (0, 0, 400, 10));
        let status = state.status(2, &admin(), slow, |_| None).unwrap();
        assert_eq!(status.state, TaskState::Pending);
        let mut found = None;
        while let Some(start) = state.start_next() {
            if start.id == slow {
                let of_job = start.quotas.iter().find(|quota| quota.job == 5).unwrap();
                assert_eq!((of_job.limit, of_job.used), (1000, 400));
                found = Some(start.id);
            }
            state.ended(3, start.id, Ended::well(500, 1, 100, 1));
        }
        assert_eq!(found, Some(slow));
        let report = state.report(&admin(), 5).unwrap();
        assert_eq!((report.tasks, report.failed, report.bytes), (1, 0, 500));
        let unended = submit_in(&mut state, (100, 5), "b://");
        assert!(state.unregister_job(&admin(), 5).is_err(), "task {unended} counts as unended once");
        state.cancel(4, &admin(), unended).unwrap();
        state.unregister_job(&admin(), 5).unwrap();
    }
}

fn with_config(records: &[u8]) -> State {
    let mut state = state(1, 0);
    state.replay(records).unwrap();
    state
}

/// What happens in a second, besides that.
#[derive(Clone, Debug)]
enum Act {
    /// A task that runs until it is told to stop, of one of the enemies.
    Enemy(u32, bool),
    /// One of a second, of one of the honest.
    Honest(u32, bool),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let enemy = (0u32..6, any::<bool>()).prop_map(|(user, few)| Act::Enemy(200 + user, few));
    let honest = (0u32..4, any::<bool>()).prop_map(|(user, few)| Act::Honest(100 + user, few));
    proptest::collection::vec(prop_oneof![3 => enemy, 1 => honest], 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_time: 10_000, ..ProptestConfig::default() })]

    /// However many tasks run for ever, an honest user's next task starts after as many of the longest turns as there are users at
    /// most, and no task is lost.
    #[test]
    fn who_has_none_running_starts_in_time(
        acts in acts(),
        workers in 1u32..3,
        extra_max in 0u32..3,
        policy in prop_oneof![Just(Policy::FirstCome), Just(Policy::FairByUser), Just(Policy::ShortestFirst)],
    ) {
        let mut state = with_spaces(State::new(config(workers, extra_max, policy)), 1);
        // What is unended: whose it is, and since when he has waited with none running.
        let mut unended: BTreeMap<u32, u32> = BTreeMap::new();
        let mut running: BTreeMap<u32, u32> = BTreeMap::new();
        let mut waits: BTreeMap<u32, u64> = BTreeMap::new();
        let mut acts = acts.into_iter();
        // Ten users at most, and each may be before him with one turn at each of two places.
        let bound = 20 * LONGEST;
        for second in 0u64.. {
            match acts.next() {
                Some(Act::Enemy(uid, few) | Act::Honest(uid, few)) => {
                    let id = submit(&mut state, uid, if few { "few://" } else { "b://" });
                    unended.insert(id, uid);
                }
                None if unended.values().all(|uid| *uid >= 200) => break,
                None => {}
            }
            while let Some(start) = state.start_next() {
                running.insert(start.id, start.identity.uid);
            }
            let told = state.give_way();
            for (id, uid) in running.clone() {
                if told.contains(&id) {
                    prop_assert_eq!(state.ended(second, id, stopped(1)), Outcome::WaitsAgain);
                    running.remove(&id);
                } else if uid < 200 {
                    prop_assert_eq!(state.ended(second, id, Ended::well(1, 1, 1, 1)), Outcome::Over);
                    running.remove(&id);
                    unended.remove(&id);
                }
            }
            for uid in 100..104 {
                let waiting = unended.values().any(|own| *own == uid) && !running.values().any(|own| *own == uid);
                match waiting {
                    true => { waits.entry(uid).or_insert(second); }
                    false => { waits.remove(&uid); }
                }
            }
            for (uid, since) in &waits {
                let left: Vec<u32> = unended.iter().filter(|(_, own)| *own == uid).map(|(id, _)| *id).collect();
                prop_assert!(second - since < bound * left.len() as u64, "user {uid} waits for {left:?} since {since}");
            }
            for id in unended.keys() {
                let known = state.status(second, &admin(), *id, |_| None).unwrap().state;
                let expected = if running.contains_key(id) { TaskState::Running } else { TaskState::Pending };
                prop_assert_eq!(known, expected);
            }
        }
    }
}
