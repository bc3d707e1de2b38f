//! A day of hostility in little time: a thousand users who fill queues, kill and stop their workers, hold connections, ask for what
//! takes for ever, and tell what is not theirs to stop, beside one who only wants his copies. None of his is lost, also over the
//! stager's own death, and the supervisor stays small. All enemies come as themselves, to the users' socket, each with a job.
//!
//! `TIDEPOOL_SOAK_SECONDS` says how long (20, with 80 of them; 1200, with all, in `make test-all`).

mod support;

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Daemon, children, copy, listening, write};
use tidepool_stage_client::{JobLimit, JobSpec, OnBehalf, ProcessSpec, Stager, TaskSpec, TaskState};
use tidepool_testkit::{ActAs, Rng};

const HONEST: u32 = 31_001;
/// The enemies, from the first one on.
const FIRST: u32 = 40_000;
const USERS_MAX: u64 = 1000;
/// So many of them ask for something at a time; in the end all have.
const AT_ONCE: u64 = 40;
/// Connections that an enemy holds without saying who he is.
const HELD_MAX: usize = 300;
/// Limits that make queues and places scarce, and the seconds before a task gives way.
const CONFIG: &str = "user-tasks-max = 50\nuser-extra-max = 8\nuser-turn = 1\n";
/// Memory that the supervisor may take, whatever happens, in KiB: 16 MiB at its start, a KiB for each of 50,000 tasks, and as much for the
/// records of those that have ended.
const RSS_KIB_MAX: u64 = 160 << 10;
/// How often the stager itself is killed in all that.
const DEATHS: u32 = 3;
/// How often it is started until it begins.
const STARTS: u32 = 4;
/// How long an honest task may take over all that.
const TASK_MAX: Duration = Duration::from_secs(300);

/// How many enemies there are: each has time for some harm.
fn users() -> u64 {
    (4 * seconds()).clamp(2 * AT_ONCE, USERS_MAX)
}

fn seconds() -> u64 {
    std::env::var("TIDEPOOL_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// What is counted, for people and against tests that try nothing.
#[derive(Default)]
struct Tally {
    submitted: AtomicU64,
    refused: AtomicU64,
    gave_way: AtomicU64,
    killed: AtomicU64,
    stopped: AtomicU64,
    held: AtomicU64,
    honest: AtomicU64,
    rss_max: AtomicU64,
    workers_max: AtomicU64,
}

struct Scene {
    control: std::path::PathBuf,
    user: std::path::PathBuf,
    address: String,
    /// The honest one asks for no more.
    rest: AtomicBool,
    over: AtomicBool,
    pid: AtomicU64,
    began: Instant,
    tally: Tally,
}

impl Scene {
    /// One of the enemies of this moment.
    fn enemy(&self, random: &mut Rng) -> u32 {
        let part = self.began.elapsed().as_secs_f64() / seconds() as f64;
        let first = (part.min(1.0) * (users() - AT_ONCE) as f64) as u32;
        FIRST + first + random.below(AT_ONCE) as u32
    }

    fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits for a stager that is being started again.
    fn stager(&self) -> Option<Stager> {
        self.connected(|| Stager::connect(&self.control).ok())
    }

    /// The same for an enemy, as himself.
    fn stager_of(&self, uid: u32) -> Option<Stager> {
        self.connected(|| {
            let _as_user = ActAs::user(uid);
            Stager::connect(&self.user).ok()
        })
    }

    fn connected(&self, connect: impl Fn() -> Option<Stager>) -> Option<Stager> {
        while !self.over() {
            if let Some(stager) = connect() {
                return Some(stager);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }
}

fn on_behalf(uid: u32, spec: TaskSpec) -> TaskSpec {
    TaskSpec { on_behalf: Some(OnBehalf { uid, gid: uid, job: 0 }), ..spec }
}

/// What enemies have prepared: data, and what is no data.
fn prepare(dir: &Path) {
    for name in ["in", "out"] {
        write(&dir.join(format!("a/{name}/x")), b"x");
        fs::set_permissions(dir.join(format!("a/{name}")), fs::Permissions::from_mode(0o1777)).unwrap();
    }
    write(&dir.join("a/in/big"), &vec![7; 8 << 20]);
    write(&dir.join("a/in/honest"), b"honest");
    let fifo = dir.join("a/in/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.join("a/in/zero")).unwrap();
    let mut deep = dir.join("a/in/deep");
    for _ in 0..200 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    chown(dir.join("a/in/honest"), Some(HONEST), Some(HONEST)).unwrap();
}

/// Each enemy has a job that may use both dataspaces, and this process counts as his.
fn register_enemies(stager: &Stager) {
    let limits = ["a://", "b://"].map(|name| JobLimit { dataspace: name.into(), quota: 0 }).to_vec();
    for uid in FIRST..FIRST + users() as u32 {
        let job = JobSpec { id: uid, hosts: vec!["here".into()], limits: limits.clone(), bandwidth: 0 };
        stager.register_job(&job).unwrap();
        let pid = std::process::id() as i32;
        stager.add_process(uid, ProcessSpec { pid, uid, gid: uid }).unwrap();
    }
}

/// What an enemy asks for.
fn ask(uid: u32, random: &mut Rng) -> TaskSpec {
    let from = ["a://in/big", "a://in/fifo", "a://in/zero", "a://in/deep", "a://in", "a://nothing"];
    let from = from[random.below(from.len() as u64) as usize];
    let to = format!("b://{uid}/{}", random.below(8));
    let spec = copy(from, &to);
    // What is slower than `bandwidth-min`, or comes before others, is refused.
    let bandwidth = [0, 1, 64 << 10, 64 << 10, 1 << 20, u64::MAX][random.below(6) as usize];
    let priority = [0, 0, -5, 255][random.below(4) as usize];
    TaskSpec { bandwidth, priority, ..spec }
}

fn fill_queues(scene: &Scene, mut random: Rng) {
    let mut last = 1;
    loop {
        let uid = scene.enemy(&mut random);
        let Some(stager) = scene.stager_of(uid) else { return };
        for _ in 0..20 {
            match stager.submit(&ask(uid, &mut random)) {
                Ok(id) => {
                    last = id;
                    scene.tally.submitted.fetch_add(1, Ordering::Relaxed)
                }
                Err(_) => scene.tally.refused.fetch_add(1, Ordering::Relaxed),
            };
        }
        // Of his own now and then; of others, the honest one's too, in vain.
        for _ in 0..4 {
            let id = last.saturating_sub(random.below(50) as u32);
            let _ = match random.below(3) {
                0 => stager.cancel(id),
                1 => stager.forget(id),
                _ => stager.resume(id),
            };
        }
    }
}

/// Workers are their users' to kill, and to stop. Only some do: the others hold their places for as long as they are let.
fn kill_workers(scene: &Scene, mut random: Rng) {
    while !scene.over() {
        let pid = scene.pid.load(Ordering::Relaxed) as u32;
        let all = if Path::new(&format!("/proc/{pid}/task")).exists() { enemies_of(pid) } else { Vec::new() };
        scene.tally.workers_max.fetch_max(all.len() as u64, Ordering::Relaxed);
        for worker in all {
            let (signal, count) = match random.below(12) {
                0..=3 => (rustix::process::Signal::KILL, &scene.tally.killed),
                4 => (rustix::process::Signal::STOP, &scene.tally.stopped),
                _ => continue,
            };
            let known = rustix::process::Pid::from_raw(worker as i32);
            if known.is_some_and(|known| rustix::process::kill_process(known, signal).is_ok()) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Workers of enemies among the children of a process that may end meanwhile.
fn enemies_of(pid: u32) -> Vec<u32> {
    let all = std::panic::catch_unwind(|| children(pid)).unwrap_or_default();
    let enemy = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
        uid.is_some_and(|uid: u32| (FIRST..FIRST + users() as u32).contains(&uid) && uid.is_multiple_of(2))
    };
    all.into_iter().filter(enemy).collect()
}

/// Connections that say little or nothing, over TCP and at the users' socket.
fn hold_connections(scene: &Scene, mut random: Rng) {
    let mut held: VecDeque<Box<dyn Write>> = VecDeque::new();
    while !scene.over() {
        let len = random.below(40) as usize;
        let connected: Option<Box<dyn Write>> = match random.below(2) {
            0 => TcpStream::connect(&scene.address).ok().map(|stream| Box::new(stream) as Box<dyn Write>),
            _ => UnixStream::connect(&scene.user).ok().map(|stream| Box::new(stream) as Box<dyn Write>),
        };
        if let Some(mut stream) = connected {
            let _ = stream.write_all(&random.bytes(len));
            held.push_back(stream);
            scene.tally.held.fetch_add(1, Ordering::Relaxed);
        }
        if held.len() > HELD_MAX {
            held.pop_front();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each copy is waited for, over whatever happens to the stager, and is there, whole. Nobody else's tasks keep it for ever.
fn be_honest(scene: &Scene, dir: &Path) -> Duration {
    let mut longest = Duration::ZERO;
    let mut number = 0;
    while !scene.rest.load(Ordering::Relaxed) {
        number += 1;
        let name = format!("honest-{number}");
        let began = Instant::now();
        let id = loop {
            let Some(stager) = scene.stager() else { return longest };
            // A stager that was killed before it answered may have taken the task; it is then there twice, which harms nobody.
            if let Ok(id) = stager.submit(&on_behalf(HONEST, copy("a://in/honest", &format!("b://{name}")))) {
                break id;
            }
        };
        loop {
            let stager = loop {
                match Stager::connect(&scene.control) {
                    Ok(stager) => break stager,
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
                if scene.over() {
                    return longest;
                }
                assert!(began.elapsed() < TASK_MAX, "the stager does not come back");
            };
            let Ok(ended) = stager.wait(&[id], false, Some(Duration::from_secs(90))) else {
                // It was killed while we waited. What it does not know is the only thing that would be lost.
                assert!(began.elapsed() < TASK_MAX, "task {id} does not end");
                continue;
            };
            assert_eq!(ended[0].state, TaskState::Finished, "an honest task: {:?}", ended[0]);
            let _ = stager.forget(id);
            break;
        }
        assert_eq!(fs::read(dir.join("b").join(&name)).unwrap(), b"honest");
        fs::remove_file(dir.join("b").join(&name)).unwrap();
        longest = longest.max(began.elapsed());
        scene.tally.honest.fetch_add(1, Ordering::Relaxed);
    }
    longest
}

fn rss_kib(pid: u64) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn watch(scene: &Scene) {
    let mut before = 0;
    while !scene.over() {
        // It counts from its start.
        let counters = Stager::connect(&scene.control).and_then(|stager| stager.daemon_status());
        let gave_way = counters.ok().and_then(|status| {
            status.counters.iter().find(|(name, _)| name == "gave-way").map(|(_, count)| *count)
        });
        if let Some(count) = gave_way {
            let more = if count < before { count } else { count - before };
            scene.tally.gave_way.fetch_add(more, Ordering::Relaxed);
            before = count;
        }
        if let Some(rss) = rss_kib(scene.pid.load(Ordering::Relaxed)) {
            scene.tally.rss_max.fetch_max(rss, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// As a service manager does. A stager does not begin while a process of the one before still has a lock: a child that has not become
/// a worker yet has it for a moment, and one that waits for a disk for as long as that takes.
fn start_again(daemon: &mut Daemon) {
    for _ in 0..STARTS {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| daemon.launch())).is_ok() {
            return;
        }
    }
    panic!("the stager did not start in {STARTS} tries");
}

#[test]
fn a_thousand_users_take_nothing_from_one() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, whose stager acts for others");
        return;
    }
    let mut seeds = Rng::from_env("a_thousand_users_take_nothing_from_one");
    let address = tidepool_testkit::free_address().to_string();
    let mut daemon = Daemon::made(|dir| format!("{CONFIG}{}", listening(dir, &address)), &[]);
    prepare(daemon.dir.path());
    register_enemies(&daemon.control());
    let scene = Scene {
        control: daemon.control_socket(),
        user: daemon.user_socket(),
        address,
        rest: AtomicBool::new(false),
        over: AtomicBool::new(false),
        pid: AtomicU64::new(daemon.pid().into()),
        began: Instant::now(),
        tally: Tally::default(),
    };
    let dir = daemon.dir.path().to_path_buf();
    let length = Duration::from_secs(seconds());
    let longest = std::thread::scope(|scope| {
        let mut seed = || Rng::new(seeds.next_u64());
        let honest = scope.spawn(|| be_honest(&scene, &dir));
        let enemies = [
            scope.spawn({
                let random = seed();
                let scene = &scene;
                move || fill_queues(scene, random)
            }),
            scope.spawn({
                let random = seed();
                let scene = &scene;
                move || fill_queues(scene, random)
            }),
            scope.spawn({
                let random = seed();
                let scene = &scene;
                move || kill_workers(scene, random)
            }),
            scope.spawn({
                let random = seed();
                let scene = &scene;
                move || hold_connections(scene, random)
            }),
        ];
        let memory = scope.spawn(|| watch(&scene));
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..DEATHS {
                std::thread::sleep(length / (DEATHS + 1));
                daemon.kill();
                start_again(&mut daemon);
                scene.pid.store(daemon.pid().into(), Ordering::Relaxed);
            }
            std::thread::sleep(length / (DEATHS + 1));
        }));
        // His last task has to end while the others go on.
        scene.rest.store(true, Ordering::Relaxed);
        // Without a stager there is nothing to wait for.
        scene.over.store(died.is_err(), Ordering::Relaxed);
        let honest = honest.join();
        scene.over.store(true, Ordering::Relaxed);
        enemies.into_iter().for_each(|enemy| enemy.join().unwrap());
        memory.join().unwrap();
        died.unwrap_or_else(|why| std::panic::resume_unwind(why));
        honest.unwrap_or_else(|why| std::panic::resume_unwind(why))
    });
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let t = &scene.tally;
    println!(
        "{} s: {} tasks taken, {} refused, {} gave way, {} workers killed, {} stopped, {} at once, {} connections; {} honest tasks, {longest:?} at most; {} KiB at most",
        seconds(),
        of(&t.submitted),
        of(&t.refused),
        of(&t.gave_way),
        of(&t.killed),
        of(&t.stopped),
        of(&t.workers_max),
        of(&t.held),
        of(&t.honest),
        of(&t.rss_max)
    );
    assert!(of(&t.submitted) > 1000 && of(&t.killed) > 10 && of(&t.held) > 1000, "not much was tried");
    assert!(of(&t.refused) > 200, "budgets held nobody");
    assert!(of(&t.gave_way) > 0, "no place was ever scarce");
    assert!(of(&t.honest) > 5, "{} honest tasks", of(&t.honest));
    assert!(of(&t.rss_max) < RSS_KIB_MAX, "the supervisor had {} KiB", of(&t.rss_max));
}
