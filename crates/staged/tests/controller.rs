//! The key of a batch system's controller: what its hooks need for the jobs of users, and nothing else. The enemy has stolen that key, with
//! the secret, and speaks the protocol well. He wants to be root, to have what is no user's, or to keep others from staging.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use support::{Daemon, admin_secret, copy, resource, well, write};
use tempfile::TempDir;
use tidepool_stage::remote::{RemoteEnd, RemoteOptions, RootRequest};
use tidepool_stage_client::{
    Code, Command, DataspaceKind, DataspaceSpec, JobLimit, JobSpec, OnBehalf, Op, Owner, PersistOp, Policy,
    ProcessSpec, Secret, StageError, Stager, TaskSpec, TaskState,
};
use tidepool_testkit::{copy_program, put_program};
use tidepool_transport::hex;
use tidepool_transport::remote::{Door, DoorError, open_door};
use tidepool_wire::stager::{
    HEAD_LEN, Head, Refusal, Reply, Request, Resource, STAGER_MAGIC, STAGER_VERSION,
};

/// With a group of its own, as the name service of every machine has it.
const DAEMON: u32 = 1;
const ALICE: u32 = 31_001;
const BOB: u32 = 31_002;
const JOB: u32 = 7;
/// Of root, and registered without an owner.
const ROOTS_JOB: u32 = 8;
const NOBODYS_JOB: u32 = 9;
const UNKNOWN_JOB: u32 = 10;
const NO_ID: u32 = u32::MAX;

/// The secret, with the key of this number: 8 is the controller's, 1 and 2 are nodes'.
fn key(number: u8) -> Secret {
    Secret::from_hex(&"5a".repeat(32)).unwrap().with_key([number; 32])
}

fn public(number: u8) -> String {
    hex(&key(number).public_key().unwrap())
}

/// A stager whose log is in a file, and where it listens.
struct Scene {
    daemon: Daemon,
    at: String,
    log: PathBuf,
    _dir: TempDir,
}

const AGENT: &str = "#!/bin/sh\necho \"$(id -u) $(id -g) $(id -G)\"\ncat\n";

impl Scene {
    /// None, loudly, without root, whose stager acts for others.
    fn new(config: &str) -> Option<Scene> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root, whose stager acts for others");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (staged, log) = (dir.path().join("tidepool-staged"), dir.path().join("log"));
        copy_program(env!("CARGO_BIN_EXE_tidepool-staged").as_ref(), &staged);
        put_program(&dir.path().join("tidepool"), AGENT);
        let at = tidepool_testkit::free_address().to_string();
        let words = ["sh", "-c", &format!("exec \"$0\" \"$@\" 2>>{}", log.display())];
        let prefix: Vec<String> = words.iter().map(ToString::to_string).collect();
        let peers = format!(
            "node = \"n1\"\ncontrollers = [\"{}\"]\nagents = true\npeers = [\"n1={at} {}\", \"n2=127.0.0.1:9 {}\"]\n{config}",
            public(8),
            public(1),
            public(2)
        );
        let config = |dir: &Path| {
            let lines = support::listening(dir, &at);
            let mut secret = fs::OpenOptions::new().append(true).open(dir.join("secret")).unwrap();
            secret.write_all(format!("\n{}\n", hex(&[1; 32])).as_bytes()).unwrap();
            lines + &peers
        };
        let daemon = Daemon::of(&staged, config, &prefix);
        let scene = Scene { daemon, at, log, _dir: dir };
        scene.fill();
        Some(scene)
    }

    /// A file of each user that nobody else reads, a directory that is root's, and three jobs.
    fn fill(&self) {
        for (user, id, mode) in [("alice", ALICE, 0o600), ("bob", BOB, 0o600), ("root", 0, 0o640)] {
            let file = self.daemon.path(&format!("a/{user}"));
            write(&file, user.as_bytes());
            chown(&file, Some(id), Some(id)).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let admin = self.daemon.control();
        admin.register_job_of(&job(JOB), Owner { uid: ALICE, gid: ALICE }).unwrap();
        admin.register_job_of(&job(ROOTS_JOB), Owner { uid: 0, gid: 0 }).unwrap();
        admin.register_job(&job(NOBODYS_JOB)).unwrap();
    }

    fn controller(&self) -> Stager {
        Stager::connect_at(&self.at, &key(8)).unwrap()
    }

    fn raw(&self) -> Raw {
        let mut raw = Raw(open_door(&self.at, &key(8), &Door::Control {}).unwrap());
        let hello = Request::Hello { magic: STAGER_MAGIC, version: STAGER_VERSION, name: "enemy".into() };
        // It administers nothing, and is told so.
        assert!(matches!(raw.ask(&hello), Reply::Welcome { control: false, .. }));
        raw
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

/// The protocol by hand, so that nothing holds the enemy back on his side.
struct Raw(UnixStream);

impl Raw {
    fn ask(&mut self, request: &Request) -> Reply {
        let mut frame = Vec::new();
        request.put_frame(7, &mut frame).unwrap();
        self.0.write_all(&frame).unwrap();
        let mut head = [0; HEAD_LEN];
        self.0.read_exact(&mut head).unwrap();
        let head = Head::decode(&head).unwrap();
        let mut body = vec![0; head.len as usize];
        self.0.read_exact(&mut body).unwrap();
        Reply::decode(head.kind, &body).unwrap()
    }

    fn refusal(&mut self, request: &Request) -> Option<Refusal> {
        match self.ask(request) {
            Reply::Failed { refusal } => Some(refusal),
            Reply::SubmittedMany { refused, .. } => refused.into_iter().next().map(|(_, refusal)| refusal),
            _ => None,
        }
    }

    /// It is not permitted, and the stager says why.
    fn is_refused(&mut self, request: &Request, words: &str) {
        let refusal = self.refusal(request).unwrap_or_else(|| panic!("{request:?} was done"));
        let is_right = [Code::NOT_PERMITTED, Code::BAD_ARGS].contains(&refusal.code);
        assert!(is_right && refusal.detail.contains(words), "{request:?}: {refusal}");
    }
}

fn job(id: u32) -> JobSpec {
    let limit = |name: &str| JobLimit { dataspace: name.into(), quota: 0 };
    let limits = vec![limit("a://"), limit("b://"), limit(&format!("pool-{id}://"))];
    JobSpec { id, hosts: vec!["n1".into(), "n2".into()], limits, bandwidth: 0 }
}

fn behalf(uid: u32, gid: u32, job: u32) -> Option<OnBehalf> {
    Some(OnBehalf { uid, gid, job })
}

fn task(on_behalf: Option<OnBehalf>) -> TaskSpec {
    TaskSpec { on_behalf, ..copy("a://alice", "b://copy") }
}

fn space(name: &str, kind: DataspaceKind, mount: &str) -> DataspaceSpec {
    DataspaceSpec { kind, ..support::local(name, mount.as_ref()) }
}

fn pool(id: u32) -> DataspaceSpec {
    space(&format!("pool-{id}://"), DataspaceKind::Pool, "/tmp/tidepool-31001/job/pool.json")
}

fn place(text: &str) -> (String, Box<[u8]>) {
    let Resource::Path { dataspace, path, .. } = resource(text) else { unreachable!() };
    (dataspace, path)
}

fn persist(op: PersistOp, text: &str, user: u32) -> Request {
    let (dataspace, path) = place(text);
    Request::Persist { op, dataspace, path, user, expires: 0 }
}

/// One of each request, as an honest controller would say it. The last one that a hook asks of a job is the last here.
fn samples() -> Vec<Request> {
    let own = behalf(ALICE, ALICE, JOB);
    let (dataspace, path) = place("a://alice");
    let process = ProcessSpec { pid: std::process::id() as i32, uid: ALICE, gid: ALICE };
    vec![
        Request::Hello { magic: STAGER_MAGIC, version: STAGER_VERSION, name: "again".into() },
        Request::Ping {},
        Request::Submit { task: task(own) },
        Request::SubmitMany { tasks: vec![task(own)] },
        Request::Status { id: 1 },
        Request::Wait { ids: vec![1], any: false, timeout_ms: Some(10_000) },
        Request::Cancel { id: 1 },
        Request::Resume { id: 1 },
        Request::List { job: Some(JOB), only: None, after: 0, max: 10 },
        Request::Plan { task: task(own) },
        Request::DaemonStatus {},
        Request::Dataspaces {},
        Request::Forget { id: 1 },
        Request::JobReport { job: JOB },
        persist(PersistOp::Store, "a://kept", ALICE),
        Request::Persisted {},
        Request::RegisterDataspace { dataspace: pool(JOB) },
        Request::UpdateDataspace { dataspace: pool(JOB) },
        Request::UnregisterDataspace { name: pool(JOB).name },
        Request::RegisterJob { job: job(UNKNOWN_JOB) },
        Request::UpdateJob { job: job(JOB) },
        Request::AddProcess { job: JOB, process },
        Request::RemoveProcess { job: JOB, process },
        Request::Command { command: Command::Shutdown },
        Request::Jobs {},
        Request::Leftovers { dataspace: "a://".into(), max: 10 },
        Request::SetPolicy { policy: Policy::FairByUser },
        Request::SubmitAndWait { task: task(own), timeout_ms: 10 },
        Request::SubmitHeld { tasks: vec![task(own)] },
        Request::ReleaseJob { job: JOB },
        Request::Entries { place: resource("b://"), on_behalf: own, after: Box::default(), max: 10 },
        Request::Unkeep { dataspace, path, user: ALICE },
        Request::CleanOwn { job: JOB, after: 0 },
        Request::RegisterJobOf { job: job(11), owner: Owner { uid: BOB, gid: BOB } },
        Request::CleanJob { job: 11, after: 0, dry_run: false },
        Request::UnregisterJob { job: 11 },
    ]
}

/// What the hooks of Slurm ask. A new request has to be put here before this compiles.
fn is_for_controllers(request: &Request) -> bool {
    match request {
        Request::Hello { .. }
        | Request::Ping {}
        | Request::Submit { .. }
        | Request::SubmitMany { .. }
        | Request::Status { .. }
        | Request::Wait { .. }
        | Request::Cancel { .. }
        | Request::Resume { .. }
        | Request::List { .. }
        | Request::Plan { .. }
        | Request::Dataspaces {}
        | Request::JobReport { .. }
        | Request::Persist { .. }
        | Request::Persisted {}
        | Request::RegisterDataspace { .. }
        | Request::UnregisterDataspace { .. }
        | Request::UnregisterJob { .. }
        | Request::CleanJob { .. }
        | Request::CleanOwn { .. }
        | Request::SubmitHeld { .. }
        | Request::ReleaseJob { .. }
        | Request::Entries { .. }
        | Request::Unkeep { .. }
        | Request::RegisterJobOf { .. } => true,
        Request::DaemonStatus {}
        | Request::Forget { .. }
        | Request::UpdateDataspace { .. }
        | Request::RegisterJob { .. }
        | Request::UpdateJob { .. }
        | Request::AddProcess { .. }
        | Request::RemoveProcess { .. }
        | Request::Command { .. }
        | Request::Jobs {}
        | Request::Leftovers { .. }
        | Request::SetPolicy { .. }
        | Request::SubmitAndWait { .. } => false,
    }
}

#[test]
fn every_request_is_either_for_controllers_or_refused() {
    let Some(scene) = Scene::new("") else { return };
    let mut raw = scene.raw();
    let samples = samples();
    let mut asked: Vec<u16> = samples.iter().map(Request::kind).collect();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, Request::KINDS.iter().map(|(number, _)| *number).collect::<Vec<_>>(), "one of each");
    for request in &samples {
        if !is_for_controllers(request) {
            raw.is_refused(request, "is for administrators");
            continue;
        }
        // That it may be asked, not that it makes sense just then.
        if let Some(refusal) = raw.refusal(request) {
            assert_ne!(refusal.code, Code::NOT_PERMITTED, "{request:?}: {refusal}");
        }
    }
    for command in [Command::Pause, Command::Resume, Command::Ping] {
        raw.is_refused(&Request::Command { command }, "is for administrators");
    }
    // Nothing of what was refused has been done.
    let status = scene.daemon.control().daemon_status().unwrap();
    assert!(!status.paused && status.policy == Policy::FirstCome);
    let jobs: Vec<u32> = scene.daemon.control().jobs().unwrap().iter().map(|job| job.id).collect();
    assert_eq!(jobs, [JOB, ROOTS_JOB, NOBODYS_JOB]);
}

/// What hooks do for a job, from its registration to its end, needs no more than this.
#[test]
fn a_controller_carries_a_job_through() {
    let Some(scene) = Scene::new("") else { return };
    let controller = scene.controller();
    assert!(!controller.is_control());
    let (id, owner) = (20, Owner { uid: ALICE, gid: ALICE });
    controller.register_job_of(&job(id), owner).unwrap();
    let own = |from: &str, to: &str| TaskSpec { on_behalf: behalf(ALICE, ALICE, id), ..copy(from, to) };
    assert_eq!(
        controller
            .plan(&TaskSpec { on_behalf: behalf(ALICE, ALICE, 0), ..copy("a://alice", "b://in") })
            .unwrap()
            .bytes,
        5
    );
    assert_eq!(well(&controller, &own("a://alice", "b://in")).uid, ALICE);
    controller.register_dataspace(&pool(id)).unwrap();
    let kept = controller.persist(PersistOp::Store, "b://", b"in", ALICE, 0).unwrap().unwrap();
    assert_eq!(controller.wait(&[kept], false, None).unwrap()[0].state, TaskState::Finished);
    // Of root's it hears nothing.
    let roots = scene.daemon.control().persist(PersistOp::Store, "b://", b"roots", 0, 0).unwrap();
    assert!(roots.is_some());
    let listed: Vec<u32> = controller.persisted().unwrap().iter().map(|kept| kept.owner).collect();
    assert_eq!(listed, [ALICE]);
    controller.unkeep("b://", b"in", ALICE).unwrap();
    let held = controller.submit_held(vec![own("b://in", "a://out")]).unwrap().ids;
    controller.release_job(id).unwrap();
    assert_eq!(controller.wait(&held, false, None).unwrap()[0].state, TaskState::Finished);
    assert_eq!(fs::read(scene.daemon.path("a/out")).unwrap(), b"alice");
    assert_eq!(controller.list(Some(id), None).unwrap().len(), 2);
    controller.unregister_dataspace(&pool(id).name).unwrap();
    assert_eq!(controller.clean_job(id, true).unwrap().len(), 2);
    controller.unregister_job(id).unwrap();
    let log = scene.log();
    let (line, key) = (format!("RegisterJobOf job {id} of user {ALICE}: done"), public(8));
    assert!(log.contains(&format!("audit: controller of another node: {line}")), "{log}");
    assert!(log.contains(&format!("controller {key}")), "{log}");
}

#[test]
fn a_controller_never_acts_as_root() {
    let Some(scene) = Scene::new("") else { return };
    let mut raw = scene.raw();
    for (uid, gid) in [(0, 0), (0, ALICE), (ALICE, 0), (NO_ID, ALICE), (ALICE, NO_ID)] {
        for id in [0, JOB, ROOTS_JOB, NOBODYS_JOB] {
            let on_behalf = behalf(uid, gid, id);
            for request in [
                Request::Submit { task: task(on_behalf) },
                Request::SubmitMany { tasks: vec![task(behalf(ALICE, ALICE, JOB)), task(on_behalf)] },
                Request::Plan { task: task(on_behalf) },
                Request::SubmitHeld { tasks: vec![task(on_behalf)] },
                Request::Entries { place: resource("a://"), on_behalf, after: Box::default(), max: 9 },
            ] {
                raw.is_refused(&request, if [uid, gid].contains(&0) { "as root" } else { "no number" });
            }
        }
        let owner = Owner { uid, gid };
        raw.is_refused(&Request::RegisterJobOf { job: job(UNKNOWN_JOB), owner }, "");
    }
    for user in [0, NO_ID] {
        let (dataspace, path) = place("a://root");
        raw.is_refused(&Request::Unkeep { dataspace, path, user }, "");
        for op in [PersistOp::Store, PersistOp::Share, PersistOp::Unshare] {
            raw.is_refused(&persist(op, "a://root", user), "");
        }
    }
    // Nor as nobody in particular, which would be root's stager itself.
    raw.is_refused(&Request::Submit { task: task(None) }, "names none");
    raw.is_refused(&Request::SubmitHeld { tasks: vec![task(None)] }, "names none");
    raw.is_refused(&Request::Plan { task: task(None) }, "names none");
    let looks = Request::Entries { place: resource("a://"), on_behalf: None, after: Box::default(), max: 9 };
    raw.is_refused(&looks, "names none");
    assert!(!scene.daemon.path("b/copy").exists());
    assert!(scene.daemon.control().list(None, None).unwrap().is_empty());
    let log = scene.log();
    assert!(log.contains("audit: controller of another node: Submit: refused: "), "{log}");
}

/// For a job, nobody but its owner: who takes a key must not mix one user's job with another's rights.
#[test]
fn a_job_is_its_owners() {
    let Some(scene) = Scene::new("") else { return };
    let mut raw = scene.raw();
    for (uid, gid, id) in
        [(BOB, BOB, JOB), (ALICE, BOB, JOB), (ALICE, ALICE, ROOTS_JOB), (ALICE, ALICE, NOBODYS_JOB)]
    {
        raw.is_refused(&Request::Submit { task: task(behalf(uid, gid, id)) }, "not the owner");
    }
    let unknown = raw.refusal(&Request::Submit { task: task(behalf(ALICE, ALICE, UNKNOWN_JOB)) }).unwrap();
    assert_eq!(unknown.code, Code::NO_SUCH_JOB);
    // Jobs of root's, and those that somebody else has registered without saying whose they are, stay as they are.
    for (id, words) in [(ROOTS_JOB, "as root"), (NOBODYS_JOB, "without an owner")] {
        raw.is_refused(&Request::UnregisterJob { job: id }, words);
        raw.is_refused(&Request::ReleaseJob { job: id }, words);
        raw.is_refused(&Request::CleanJob { job: id, after: 0, dry_run: false }, words);
        raw.is_refused(&Request::CleanJob { job: id, after: 0, dry_run: true }, words);
        raw.is_refused(&Request::CleanOwn { job: id, after: 0 }, words);
        raw.is_refused(&Request::JobReport { job: id }, words);
    }
    assert_eq!(scene.daemon.control().jobs().unwrap().len(), 3);
}

#[test]
fn tasks_of_root_are_neither_seen_nor_touched() {
    let Some(scene) = Scene::new("") else { return };
    let admin = scene.daemon.control();
    let ended = well(&admin, &copy("a://root", "b://of-root")).id;
    let in_a_job = TaskSpec { on_behalf: behalf(0, 0, JOB), ..copy("a://root", "b://again") };
    let held = admin.submit_held(vec![in_a_job]).unwrap().ids[0];
    let roots_group = TaskSpec { on_behalf: behalf(ALICE, 0, 0), ..copy("a://root", "b://group") };
    let group = well(&admin, &roots_group).id;
    let mut raw = scene.raw();
    for id in [ended, held, group] {
        for request in [
            Request::Status { id },
            Request::Wait { ids: vec![id], any: false, timeout_ms: Some(0) },
            Request::Cancel { id },
            Request::Resume { id },
        ] {
            assert_eq!(raw.refusal(&request).map(|r| r.code), Some(Code::NO_SUCH_TASK), "{request:?}");
        }
    }
    for job in [None, Some(JOB)] {
        let list = raw.ask(&Request::List { job, only: None, after: 0, max: 100 });
        assert!(matches!(&list, Reply::Tasks { tasks, .. } if tasks.is_empty()), "{list:?}");
    }
    // Root's part of a user's job is not set off with the rest, nor cleaned up after, and keeps nobody from his.
    let made = TaskSpec { on_behalf: behalf(0, 0, JOB), ..copy("a://root", "b://made") };
    well(&admin, &made);
    let controller = scene.controller();
    let own = controller.submit_held(vec![task(behalf(ALICE, ALICE, JOB))]).unwrap().ids;
    assert_eq!(controller.release_job(JOB).unwrap(), 1);
    assert_eq!(controller.wait(&own, false, None).unwrap()[0].state, TaskState::Finished);
    let cleaned = controller.clean_job(JOB, false).unwrap();
    assert!(cleaned.len() == 1 && cleaned[0].place.ends_with("copy"), "{cleaned:?}");
    assert_eq!(admin.status(held).unwrap().state, TaskState::Pending);
    assert!(!scene.daemon.path("b/again").exists());
    assert!(scene.daemon.path("b/of-root").exists() && scene.daemon.path("b/made").exists());
    // What root keeps stays kept.
    let kept = admin.persist(PersistOp::Store, "a://", b"root", 0, 0).unwrap().unwrap();
    admin.wait(&[kept], false, None).unwrap();
    for op in [PersistOp::Delete, PersistOp::Share, PersistOp::Unshare] {
        let refusal = raw.refusal(&persist(op, "a://root", ALICE)).expect("it is root's");
        assert_eq!(refusal.code, Code::NO_SUCH_RESOURCE, "{op:?}");
    }
    let (dataspace, path) = place("a://root");
    raw.is_refused(&Request::Unkeep { dataspace, path, user: ALICE }, "kept for user 0");
    assert!(scene.daemon.path("a/root").exists());
}

#[test]
fn dataspaces_are_the_sites_but_for_pools_of_jobs() {
    let Some(scene) = Scene::new("") else { return };
    let mut raw = scene.raw();
    let named = |name: &str| space(name, DataspaceKind::Pool, "/x");
    for (what, dataspace) in [
        ("a directory", space("pool-7://", DataspaceKind::Local, "/")),
        ("a shared one", space("pool-7://", DataspaceKind::Shared, "/")),
        ("a bucket", space("pool-7://", DataspaceKind::Object, "s3://x")),
        ("a name of the site's", named("scratch://")),
        ("no limit for it", named("other-7://")),
        ("of root's job", pool(ROOTS_JOB)),
        ("of nobody's job", pool(NOBODYS_JOB)),
        ("of no job", pool(UNKNOWN_JOB)),
        ("tracked", DataspaceSpec { tracked: true, ..pool(JOB) }),
    ] {
        let refusal = raw.refusal(&Request::RegisterDataspace { dataspace }).expect(what);
        assert_eq!(refusal.code, Code::NOT_PERMITTED, "{what}: {refusal}");
    }
    // Where it leads is for its users' workers to find out: root's process tells nobody what there is.
    for mount in ["/no/such/place", "/etc/shadow"] {
        let dataspace = DataspaceSpec { mount: mount.into(), ..pool(JOB) };
        assert!(raw.refusal(&Request::RegisterDataspace { dataspace }).is_none(), "{mount}");
        assert!(raw.refusal(&Request::UnregisterDataspace { name: pool(JOB).name }).is_none());
    }
    let admin = scene.daemon.control();
    admin.register_dataspace(&support::local("local-7://", &scene.daemon.path("a"))).unwrap();
    for name in ["a://", "b://", "local-7://"] {
        raw.is_refused(&Request::UnregisterDataspace { name: name.into() }, "pools of jobs only");
    }
    let names: Vec<String> =
        admin.dataspaces().unwrap().into_iter().map(|info| info.dataspace.name).collect();
    assert_eq!(names, ["a://", "b://", "local-7://"]);
}

/// It has for a user what that user may have, and no more.
#[test]
fn limits_of_users_are_the_controllers() {
    let Some(scene) = Scene::new("user-tasks-max = 2\n") else { return };
    let mut raw = scene.raw();
    let own = task(behalf(ALICE, ALICE, JOB));
    for (wish, words) in [
        (TaskSpec { priority: 1, ..own.clone() }, "priority 1 is not for user 31001"),
        (TaskSpec { priority: i32::MAX, ..own.clone() }, "is not for user 31001"),
        (TaskSpec { priority: -1001, ..own.clone() }, "is not for user 31001"),
        (TaskSpec { bandwidth: 1, ..own.clone() }, "hold a worker for too long"),
    ] {
        raw.is_refused(&Request::Submit { task: wish.clone() }, words);
        raw.is_refused(&Request::SubmitMany { tasks: vec![wish.clone()] }, words);
        raw.is_refused(&Request::SubmitHeld { tasks: vec![wish] }, words);
    }
    let held = |count| Request::SubmitHeld { tasks: vec![own.clone(); count] };
    assert!(raw.refusal(&held(2)).is_none());
    let refusal = raw.refusal(&held(1)).expect("a third one");
    assert!(refusal.code == Code::TOO_MANY_TASKS && refusal.detail.contains("user-tasks-max"), "{refusal}");
    // Another user's keep nobody from his own.
    let bobs = task(behalf(BOB, BOB, 0));
    assert!(raw.refusal(&Request::Submit { task: TaskSpec { src: resource("a://bob"), ..bobs } }).is_none());
}

fn open(scene: &Scene, secret: Secret, root: RootRequest) -> Result<RemoteEnd, String> {
    let options = RemoteOptions::new(&scene.at, secret, root);
    RemoteEnd::open(options).map_err(|error| error.to_string())
}

/// Hooks read mapping files so, as the job's owner.
#[test]
fn a_controller_reads_for_the_owner_of_a_job_and_writes_nothing() {
    let Some(scene) = Scene::new("") else { return };
    let root = |uid: u32, gid: u32, job: Option<u32>, write: bool| RootRequest {
        dataspace: "a://".into(),
        path: Vec::new(),
        write,
        uid,
        gid,
        groups: vec![gid],
        job,
    };
    assert!(open(&scene, key(8), root(ALICE, ALICE, Some(JOB), false)).is_ok());
    for (what, root, words) in [
        ("to write", root(ALICE, ALICE, Some(JOB), true), "nothing for writing"),
        ("root", root(0, 0, Some(JOB), false), "as root"),
        ("root's group", root(ALICE, 0, Some(JOB), false), "as root"),
        ("another user", root(BOB, BOB, Some(JOB), false), "not the owner"),
        ("without a job", root(ALICE, ALICE, None, false), "job 0"),
        ("root's job", root(0, 0, Some(ROOTS_JOB), false), "as root"),
        ("nobody's job", root(ALICE, ALICE, Some(NOBODYS_JOB), false), "not the owner"),
        ("no job", root(ALICE, ALICE, Some(UNKNOWN_JOB), false), "not registered"),
    ] {
        let error = open(&scene, key(8), root).err().expect(what);
        assert!(error.contains(words), "{what}: {error}");
    }
    assert!(scene.log().contains(&format!("refused: controller {} opens", public(8))));
}

fn agent(
    scene: &Scene,
    secret: &Secret,
    (uid, gid): (u32, u32),
    groups: &[u32],
) -> Result<String, DoorError> {
    let door = Door::Agent { uid, gid, groups: groups.to_vec(), job: JOB, node: 0 };
    let mut stream = open_door(&scene.at, secret, &door)?;
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    Ok(said.trim().to_string())
}

#[test]
fn agents_have_the_groups_that_their_users_have() {
    let Some(scene) = Scene::new("") else { return };
    let own = (DAEMON, DAEMON);
    assert_eq!(agent(&scene, &key(8), own, &[DAEMON]).unwrap(), "1 1 1");
    for (what, user, groups) in [
        ("root", (0, 0), vec![]),
        ("root with a user's group", (0, DAEMON), vec![DAEMON]),
        ("root's group", (DAEMON, 0), vec![]),
        ("root's group besides", own, vec![DAEMON, 0]),
        // 6 is disk on most machines: as good as root's.
        ("the disks' group", own, vec![DAEMON, 6]),
        ("the disks' group as his own", (DAEMON, 6), vec![]),
        ("a user whom the node does not know", (ALICE, ALICE), vec![ALICE]),
    ] {
        let error = agent(&scene, &key(8), user, &groups).expect_err(what);
        assert!(matches!(error, DoorError::Shut(_)), "{what}: {error}");
    }
    // An administrator is believed.
    assert_eq!(agent(&scene, &admin_secret(), (ALICE, ALICE), &[ALICE, 6]).unwrap(), "31001 31001 31001 6");
}

/// A node's key, nobody's, and the secret alone open neither door.
#[test]
fn what_a_controller_may_nobody_else_may() {
    let Some(scene) = Scene::new("") else { return };
    let alone = Secret::from_hex(&"5a".repeat(32)).unwrap();
    for secret in [key(2), key(9), alone] {
        assert!(open_door(&scene.at, &secret, &Door::Control {}).is_err());
        assert!(agent(&scene, &secret, (DAEMON, DAEMON), &[DAEMON]).is_err());
    }
    assert!(scene.log().contains("is neither administrator nor controller"));
    // Users of this machine have a socket of their own, on which a key counts for nothing.
    let user = Stager::connect(scene.daemon.user_socket()).unwrap();
    assert!(!user.is_control());
    let refused = user.register_job_of(&job(UNKNOWN_JOB), Owner { uid: ALICE, gid: ALICE }).unwrap_err();
    assert!(
        matches!(&refused, StageError::Refused(refusal) if refusal.code == Code::NOT_PERMITTED),
        "{refused}"
    );
    // An administrator's key still opens everything.
    let admin = Stager::connect_at(&scene.at, &admin_secret()).unwrap();
    assert!(admin.is_control() && admin.command(Command::Ping).is_ok());
    assert_eq!(well(&admin, &TaskSpec { op: Op::Copy, ..copy("a://root", "b://root") }).uid, 0);
}

/// A flood of what is refused fills no disk.
#[test]
fn refusals_are_told_and_counted() {
    let Some(scene) = Scene::new("") else { return };
    let mut raw = scene.raw();
    for _ in 0..200 {
        raw.is_refused(&Request::Command { command: Command::Shutdown }, "is for administrators");
    }
    let log = scene.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("controller of another node: Command Shutdown: refused"))
        .count();
    assert!((1..=20).contains(&lines), "{lines}\n{log}");
}
