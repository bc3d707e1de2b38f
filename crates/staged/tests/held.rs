//! Held tasks with the real program: over kills, and with who waits for them.

mod support;

use support::{Daemon, copy, local, write};
use tidepool_stage_client::{
    Code, JobLimit, JobSpec, OnBehalf, StageError, Stager, TaskPhase, TaskSpec, TaskState,
};

fn job(id: u32, spaces: &[&str]) -> JobSpec {
    let limit = |name: &&str| JobLimit { dataspace: name.to_string(), quota: 0 };
    JobSpec { id, hosts: vec!["n0".into()], limits: spaces.iter().map(limit).collect(), bandwidth: 0 }
}

fn of_job(from: &str, to: &str) -> TaskSpec {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    TaskSpec { on_behalf: Some(OnBehalf { uid, gid, job: 42 }), ..copy(from, to) }
}

fn held(stager: &Stager, tasks: Vec<TaskSpec>) -> Vec<u32> {
    let submitted = stager.submit_held(tasks).unwrap();
    assert!(submitted.refused.is_empty(), "{submitted:?}");
    submitted.ids
}

/// What a job leaves is copied out when it is released, from a dataspace that comes with the job; kills change nothing.
#[test]
fn a_release_starts_what_was_held_over_kills() {
    let mut daemon = Daemon::start();
    let stager = daemon.control();
    stager.register_job(&job(42, &["a://", "b://", "pool://"])).unwrap();
    let ids = held(&stager, vec![of_job("pool://out", "b://out"), of_job("b://out", "a://again")]);
    daemon.restart();
    let phases = |stager: &Stager| ids.iter().map(|id| stager.status(*id).unwrap().phase).collect::<Vec<_>>();
    assert_eq!(phases(&stager), [TaskPhase::Held, TaskPhase::Held]);
    write(&daemon.path("later/out/x"), b"result");
    stager.register_dataspace(&local("pool://", &daemon.path("later"))).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| stager.wait(&ids, false, None).unwrap());
        assert_eq!(stager.release_job(42).unwrap(), 2);
        daemon.restart();
        let ended = waits.join().unwrap();
        assert!(ended.iter().all(|task| task.state.is_ended()), "{ended:?}");
        assert_eq!(ended[0].state, TaskState::Finished, "{ended:?}");
    });
    assert_eq!(std::fs::read(daemon.path("b/out/x")).unwrap(), b"result");
    assert_eq!(stager.release_job(42).unwrap(), 0);
}

#[test]
fn who_waits_is_told_of_what_fails_at_its_release() {
    let daemon = Daemon::start();
    let stager = daemon.control();
    stager.register_job(&job(42, &["a://", "b://"])).unwrap();
    let ids = held(&stager, vec![of_job("nowhere://x", "b://x")]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| stager.wait(&ids, false, None).unwrap());
        // It is waited for before it is released.
        while stager.daemon_status().unwrap().counters.iter().any(|(name, n)| name == "held" && *n != 1) {
            std::thread::yield_now();
        }
        assert_eq!(stager.release_job(42).unwrap(), 1);
        let ended = waits.join().unwrap().remove(0);
        assert_eq!((ended.state, ended.refusal.code), (TaskState::Failed, Code::NO_SUCH_DATASPACE));
        assert!(ended.refusal.detail.contains("nowhere://"), "{ended:?}");
    });
}

#[test]
fn what_is_held_is_for_administrators_and_for_one_job() {
    let daemon = Daemon::start();
    let stager = daemon.control();
    stager.register_job(&job(42, &["a://"])).unwrap();
    let refused = |stager: &Stager, tasks| match stager.submit_held(tasks) {
        Err(error) => match error.error {
            StageError::Refused(refusal) => refusal.code,
            other => panic!("{other}"),
        },
        Ok(submitted) => panic!("{submitted:?}"),
    };
    let user = Stager::connect(daemon.user_socket()).unwrap();
    assert_eq!(refused(&user, vec![of_job("a://x", "a://y")]), Code::NOT_PERMITTED);
    assert_eq!(user.release_job(42).unwrap_err().code(), Code::NOT_PERMITTED);
    let mixed = vec![of_job("a://x", "a://y"), copy("a://x", "a://y")];
    assert_eq!(refused(&stager, mixed), Code::BAD_ARGS);
    assert_eq!(stager.release_job(7).unwrap_err().code(), Code::NO_SUCH_JOB);
    // Others of a batch are taken.
    let bad = TaskSpec { dst: None, ..of_job("a://x", "a://y") };
    let submitted = stager.submit_held(vec![bad, of_job("a://x", "a://y")]).unwrap();
    assert_eq!((submitted.ids[0], submitted.refused[0].1.code), (0, Code::BAD_ARGS));
    assert_eq!(stager.unregister_job(42).unwrap_err().code(), Code::JOB_BUSY);
    stager.cancel(submitted.ids[1]).unwrap();
    stager.unregister_job(42).unwrap();
}
