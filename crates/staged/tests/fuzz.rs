//! A stager among those who mean harm: the greeting, data and administration after the proof, the NORNS socket, and the pipe of a worker, fed for
//! `TIDEPOOL_FUZZ_SECONDS` (60 without). It goes on, takes no more memory than it may, does honest tasks meanwhile, and what is another
//! user's or outside of dataspaces stays as it is.

mod support;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Daemon, admin_secret, resource, well, write};
use tidepool_stage::remote::{Ask, RootRequest};
use tidepool_stage_client::{JobLimit, JobSpec, OnBehalf, Op, Owner, Secret, TaskSpec};
use tidepool_testkit::{Rng, copy_program, put_program};
use tidepool_transport::remote::{Channel, Meant, Sealed, connect, greet};
use tidepool_transport::{Stream, hex};

const ALICE: u32 = 31_001;
const BOB: u32 = 31_002;
const JOB: u32 = 7;
/// Memory that root's stager may have while it is besieged, in KiB.
const RSS_KIB_MAX: u64 = 200_000;
/// How many attack at a time.
const ENEMIES: usize = 3;
const PEACE: Duration = Duration::from_secs(2);
/// Number of the message Ping.
const PING: u16 = 18;
/// Administration that ends the stager or what it works on: an administrator may.
const COMMAND: u16 = 48;

fn until() -> Instant {
    let seconds = std::env::var("TIDEPOOL_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Instant::now() + Duration::from_secs(seconds.unwrap_or(60))
}

fn of_node(number: u8) -> Secret {
    Secret::from_hex(&"5a".repeat(32)).unwrap().with_key([number; 32])
}

/// A stager with a job of Alice's on this node and on n2, the enemy.
struct Siege {
    daemon: Daemon,
    at: String,
    norns: PathBuf,
    /// What the stager says.
    log: tempfile::NamedTempFile,
    before: BTreeMap<PathBuf, String>,
}

/// All below a directory, as far as it must not change.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut ahead = vec![dir.to_path_buf()];
    while let Some(path) = ahead.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = match meta.is_dir() {
            true => {
                ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            false => fs::read(&path).unwrap(),
        };
        all.insert(path, format!("{:o} {} {} {content:?}", meta.mode(), meta.uid(), meta.gid()));
    }
    all
}

impl Siege {
    fn new() -> Option<Siege> {
        Siege::of("exec \"$@\"")
    }

    /// `exec` is the shell's command that becomes the stager, whose words are its arguments.
    fn of(exec: &str) -> Option<Siege> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root, whose stager acts for others");
            return None;
        }
        let at = tidepool_testkit::free_address().to_string();
        let key = |number| hex(&of_node(number).public_key().unwrap());
        let norns = tempfile::tempdir().unwrap().keep().join("norns.socket");
        fs::set_permissions(norns.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        let more = format!(
            "node = \"n1\"\nnorns-socket = \"{}\"\npeers = [\"n1={at} {}\", \"n2=127.0.0.1:9 {}\"]\n",
            norns.display(),
            key(1),
            key(2)
        );
        let log = tempfile::NamedTempFile::new().unwrap();
        let exec = format!("{exec} 2>>{}", log.path().display());
        let prefix = ["sh", "-c", &exec, "sh"].map(String::from);
        let daemon = Daemon::keyed_by(&prefix, &at, 1, &more);
        write(&daemon.path("outside/file"), b"outside of all dataspaces");
        write(&daemon.path("a/bobs/file"), b"bob's");
        for name in ["a/bobs", "a/bobs/file"] {
            chown(daemon.path(name), Some(BOB), Some(BOB)).unwrap();
        }
        fs::set_permissions(daemon.path("a/bobs"), fs::Permissions::from_mode(0o700)).unwrap();
        write(&daemon.path("a/alices/x"), b"alice's");
        chown(daemon.path("a/alices"), Some(ALICE), Some(ALICE)).unwrap();
        // Nobody removes or renames what is another's.
        fs::set_permissions(daemon.path("a"), fs::Permissions::from_mode(0o1777)).unwrap();
        let limits = ["a://", "b://"].map(|name| JobLimit { dataspace: name.into(), quota: 0 }).to_vec();
        let spec = JobSpec { id: JOB, hosts: vec!["n1".into(), "n2".into()], limits, bandwidth: 0 };
        daemon.control().register_job_of(&spec, Owner { uid: ALICE, gid: ALICE }).unwrap();
        let before = Siege::kept(&daemon);
        Some(Siege { daemon, at, norns, log, before })
    }

    /// What no enemy may change.
    fn kept(daemon: &Daemon) -> BTreeMap<PathBuf, String> {
        ["outside", "a/bobs"].iter().flat_map(|name| snapshot(&daemon.path(name))).collect()
    }

    /// Runs enemies until time is over, and an honest job beside them. How many tasks of that end in a second, in peace and then,
    /// is printed; it is a measurement when nothing else runs.
    fn withstand(&self, what: &str, attack: impl Fn(&mut Rng) + Send + Sync) {
        let mut seeds = Rng::from_env(what);
        let peace = Instant::now() + PEACE;
        let in_peace = self.honest_tasks(|| Instant::now() < peace) as f64 / PEACE.as_secs_f64();
        let (began, end) = (Instant::now(), until());
        let (attacks, honest) = std::thread::scope(|scope| {
            let enemies: Vec<_> = (0..ENEMIES)
                .map(|_| {
                    let mut random = Rng::new(seeds.next_u64());
                    let (attack, mut count) = (&attack, 0u64);
                    scope.spawn(move || {
                        compute_elsewhere();
                        while Instant::now() < end {
                            attack(&mut random);
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            let honest = self.honest_tasks(|| enemies.iter().any(|enemy| !enemy.is_finished()));
            (enemies.into_iter().map(|enemy| enemy.join().unwrap()).sum::<u64>(), honest)
        });
        let (rss, under) = (self.rss_kib(), honest as f64 / began.elapsed().as_secs_f64());
        println!(
            "{what}: {attacks} attacks; {under:.0} honest tasks/s, {in_peace:.0} in peace, ratio {:.2}; {rss} KiB",
            under / in_peace
        );
        assert!(attacks > 10 && honest > 10, "{what}: {attacks} attacks, {honest} honest tasks");
        assert!(rss < RSS_KIB_MAX, "{what}: the stager has {rss} KiB");
        assert_eq!(Siege::kept(&self.daemon), self.before, "{what}");
        let log = fs::read_to_string(self.log.path()).unwrap();
        let panicked = log.find("panicked").map(|at| log[at..].chars().take(1000).collect::<String>());
        assert_eq!(panicked, None, "{what}");
    }

    fn honest_tasks(&self, go_on: impl Fn() -> bool) -> u64 {
        let stager = self.daemon.control();
        let mut count = 0;
        while go_on() {
            self.honest(&stager);
            count += 1;
        }
        count
    }

    /// A copy of Alice's, whole.
    fn honest(&self, stager: &tidepool_stage_client::Stager) {
        let spec = TaskSpec {
            on_behalf: Some(OnBehalf { uid: ALICE, gid: ALICE, job: JOB }),
            ..TaskSpec::new(Op::Copy, resource("b://honest"), Some(resource("b://copy")))
        };
        let id = well(stager, &spec).id;
        assert_eq!(fs::read(self.daemon.path("b/copy")).unwrap(), b"honest");
        stager.forget(id).unwrap();
    }

    fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// Enemies are on machines of their own, mostly: what they compute here takes no more than the others leave. What they cost the stager
/// counts in full.
fn compute_elsewhere() {
    rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19).unwrap();
}

/// Changes some of the bytes, leaves some out, puts some in.
fn mutate(bytes: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => {
                let more = random.below(40) as usize;
                let more = random.bytes(more);
                bytes.splice(at..at, more);
            }
            2 if at + 4 <= bytes.len() => {
                // Where a length may be.
                let large = [u32::MAX, 0x7fff_ffff, 1 << 22, 0, 1][random.below(5) as usize];
                bytes[at..at + 4].copy_from_slice(&large.to_le_bytes());
            }
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
}

/// A connection on which what is written is changed now and then, and which ends in the middle.
struct Mangled {
    inner: TcpStream,
    random: Rng,
    one_in: u64,
}

impl Read for Mangled {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.inner.read(into)
    }
}

impl Write for Mangled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = bytes.to_vec();
        if self.random.below(self.one_in) == 0 {
            mutate(&mut sent, &mut self.random);
        }
        self.inner.write_all(&sent)?;
        match self.random.below(40) {
            0 => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Mangled {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Stream for Mangled {
    fn timeout(&self, timeout: Duration) -> io::Result<()> {
        self.inner.set_read_timeout(Some(timeout))
    }
}

#[test]
fn greetings_that_are_not_as_they_should_be() {
    let Some(siege) = Siege::new() else { return };
    write(&siege.daemon.path("b/honest"), b"honest");
    siege.withstand("greetings", |random| {
        let Ok(inner) = TcpStream::connect(&siege.at) else { return };
        inner.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let secret = match random.below(3) {
            0 => Secret::random(),
            1 => of_node(2),
            _ => of_node(9),
        };
        let mangled = Mangled { inner, random: Rng::new(random.next_u64()), one_in: 1 + random.below(3) };
        let mut channel = Channel::new(Sealed::new(mangled));
        let _ = greet(&secret, ("n2", &Meant::named("n1")), &mut channel);
    });
}

/// The fields of a message, by its specification (format 13): `d` a number of a directory or file, `n` a name, `t` any bytes, `b` a
/// bool, `o` an offset, `l` a length, `u` an id, `h` a small number, `D`, `G` lists of numbers, `s` a spot, `c` clothes, `p` a place;
/// `?` before a field makes it optional, `*` a list of all that follow up to `;`.
const ASKS: &[(u16, &str)] = &[
    (16, "ttbuuG?u"),
    (17, "oo"),
    (18, ""),
    (19, "DD"),
    (20, "dnb"),
    (21, "dn"),
    (22, "d?c"),
    (23, "dp"),
    (24, "s"),
    (25, "s"),
    (26, "dn"),
    (27, "sc"),
    (30, "dnh"),
    (31, "dol"),
    (32, "do"),
    (33, "do"),
    (34, "doo"),
    (35, "do"),
    (36, "D"),
    (37, "d"),
    (38, ""),
    (39, "doob"),
    (40, "dn"),
    (41, "dnt"),
    (42, "dnho"),
    (43, "dndn"),
    (44, "dn"),
    (45, "dn"),
    (46, "d"),
    (47, "tto"),
    (50, "*dn;"),
    (51, "*dn;ooo"),
    (52, "*dnluc;b"),
    (53, "*dnn?oo;"),
];

const NAMES: &[&[u8]] = &[
    b"alices",
    b"bobs",
    b"x",
    b"y",
    b"z",
    b"..",
    b".",
    b"",
    b"a/b",
    b"/",
    b"l",
    b"m",
    b"\xff\xfe",
    b"../../etc/passwd",
];
const TARGETS: &[&[u8]] =
    &[b"/", b"..", b"../outside", b"../outside/file", b"bobs", b"/proc/self/root", b"l", b"a://", b"b://"];

struct Fields<'a> {
    out: Vec<u8>,
    random: &'a mut Rng,
}

impl Fields<'_> {
    fn u32(&mut self, value: u32) {
        self.out.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.out.extend(bytes);
    }

    fn one_of(&mut self, all: &[&[u8]]) {
        let at = self.random.below(all.len() as u64) as usize;
        match self.random.below(20) {
            0 => self.bytes(&[b'n'; 300]),
            _ => self.bytes(all[at]),
        }
    }

    fn all(&mut self, shape: &str) {
        let mut left = shape;
        while let Some(field) = left.chars().next() {
            left = &left[1..];
            match field {
                '*' => {
                    let (each, rest) = left.split_once(';').expect("a list has an end");
                    let count = self.random.below(5);
                    self.u32(count as u32);
                    (0..count).for_each(|_| self.all(each));
                    left = rest;
                }
                '?' => {
                    let there = self.random.below(2);
                    self.out.push(there as u8);
                    if there == 0 {
                        left = &left[1..];
                    }
                }
                field => self.one(field),
            }
        }
    }

    fn one(&mut self, field: char) {
        match field {
            'd' => {
                let number = [0, 0, 1, 2, 3, 4, u32::MAX][self.random.below(7) as usize];
                self.u32(number);
            }
            'n' => self.one_of(NAMES),
            't' => self.one_of(TARGETS),
            'b' => self.out.push(self.random.below(2) as u8),
            'h' => self.out.push(self.random.below(8) as u8),
            'l' => {
                let length = [0, 1, 4096, 8 << 20, u32::MAX][self.random.below(5) as usize];
                self.u32(length);
            }
            'u' => {
                let id = [0, ALICE, BOB, JOB, u32::MAX][self.random.below(5) as usize];
                self.u32(id);
            }
            'o' => {
                let offset = [0, 1, 4096, 1 << 40, i64::MAX as u64, u64::MAX][self.random.below(6) as usize];
                self.out.extend(offset.to_le_bytes());
            }
            'D' | 'G' => {
                let count = self.random.below(4);
                self.u32(count as u32);
                (0..count).for_each(|_| self.one('d'));
            }
            's' => match self.random.below(3) {
                kind @ (0 | 1) => {
                    self.out.push(kind as u8);
                    self.one('d');
                }
                _ => {
                    self.out.push(2);
                    self.all("dn");
                }
            },
            'c' => {
                self.all("?uu");
                self.all("?l");
                // No times, and a list of attributes.
                self.out.push(0);
                self.all("*tt;");
            }
            'p' => match self.random.below(3) {
                0 => self.out.push(0),
                1 => {
                    self.out.push(1);
                    self.one('o');
                }
                _ => {
                    self.out.push(2);
                    self.one('d');
                }
            },
            other => unreachable!("no such field: {other}"),
        }
    }
}

/// A message that its specification allows, or nearly one.
fn ask(random: &mut Rng) -> (u16, Vec<u8>, Vec<u8>) {
    let (mut kind, shape) = ASKS[random.below(ASKS.len() as u64) as usize];
    let mut fields = Fields { out: Vec::new(), random };
    fields.all(shape);
    let mut out = fields.out;
    if random.below(4) == 0 {
        mutate(&mut out, random);
    }
    if random.below(50) == 0 {
        kind = random.next_u64() as u16;
    }
    let bulk = match kind {
        32 | 52 => random.below(9000),
        _ => random.below(20).saturating_sub(18) * 100,
    };
    (kind, out, random.bytes(bulk as usize))
}

/// The first message of a good session of Alice's.
fn open_root(write: bool) -> Vec<u8> {
    let mut root = Vec::new();
    root.extend([&4u32.to_le_bytes()[..], b"a://", &0u32.to_le_bytes(), &[write as u8]].concat());
    root.extend([ALICE.to_le_bytes(), ALICE.to_le_bytes(), 1u32.to_le_bytes(), ALICE.to_le_bytes()].concat());
    root.extend([&[1u8][..], &JOB.to_le_bytes()].concat());
    root
}

/// Sends some requests and hears the answers; false when the connection is over.
fn exchange(channel: &mut Channel<Sealed<TcpStream>>, random: &mut Rng) -> bool {
    for _ in 0..=random.below(16) {
        let (kind, meta, bulk) = ask(random);
        if channel.send(kind, 1, |out| out.extend(&meta), &[&bulk]).is_err() {
            return false;
        }
    }
    if channel.send(PING, 2, |_| (), &[]).is_err() {
        return false;
    }
    while let Ok(head) = channel.receive() {
        if channel.bulk(&head).is_err() {
            return false;
        }
        if head.id == 2 {
            return true;
        }
    }
    false
}

#[test]
fn a_node_that_is_known_and_speaks_badly() {
    let Some(siege) = Siege::new() else { return };
    write(&siege.daemon.path("b/honest"), b"honest");
    let sessions = AtomicU64::new(0);
    siege.withstand("data", |random| {
        let Ok(mut channel) = connect(&siege.at, &of_node(2), ("n2", &Meant::named("n1"))) else { return };
        channel.get_ref().get_ref().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let root = open_root(random.below(4) > 0);
        // Whoever is slow, on a machine that is busy, is sent away.
        let Ok(head) = channel.send(16, 1, |out| out.extend(&root), &[]).and_then(|()| channel.receive())
        else {
            return;
        };
        channel.bulk(&head).unwrap();
        assert_eq!(head.kind, 102, "a good request is answered with a root");
        sessions.fetch_add(1, Ordering::Relaxed);
        for _ in 0..random.below(40) {
            if !exchange(&mut channel, random) {
                break;
            }
        }
    });
    assert!(sessions.into_inner() > 10);
}

#[test]
fn an_administrator_whose_program_is_broken() {
    let Some(siege) = Siege::new() else { return };
    write(&siege.daemon.path("b/honest"), b"honest");
    siege.withstand("administration", |random| {
        let Ok(stream) = tidepool_transport::remote::open_door(
            &siege.at,
            &admin_secret(),
            &tidepool_transport::remote::Door::Control {},
        ) else {
            return;
        };
        let mut stream = stream;
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let body = [&b"TPSTAGER"[..], &1u16.to_le_bytes(), &4u32.to_le_bytes(), b"fuzz"].concat();
        let mut bytes = frame(1, &body);
        for _ in 0..random.below(20) {
            // What is registered stays so, for the honest; what ends the stager is not tried.
            let kind = random.below(64) as u16;
            if (40..=COMMAND).contains(&kind) || matches!(kind, 51 | 52 | 56 | 58..=60) {
                continue;
            }
            let length = random.below(200) as usize;
            bytes.extend(frame(kind, &random.bytes(length)));
        }
        if random.below(3) == 0 {
            mutate(&mut bytes, random);
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    });
}

fn frame(kind: u16, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], &kind.to_le_bytes(), &[0; 10], body].concat()
}

/// A submission as the published library writes it, to be changed.
const SUBMIT: &[u8] = b"\x08\x01\x12\x30\x08\x00\x10\x01\x1a\x0c\x08\x80\x80\x40\x1a\x06\x08\x80\x20\x10\x80\x20\x22\x1c\x08\x90\x80\x80\x01\x22\x15\x0a\x07tmp0://\x1a\x08path/out\x20\x00";

#[test]
fn programs_on_the_norns_socket() {
    let Some(siege) = Siege::new() else { return };
    write(&siege.daemon.path("b/honest"), b"honest");
    siege.withstand("norns", |random| {
        become_bob();
        let Ok(mut stream) = UnixStream::connect(&siege.norns) else { return };
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        for _ in 0..random.below(6) {
            let mut body = match random.below(3) {
                0 => {
                    let length = random.below(100) as usize;
                    random.bytes(length)
                }
                _ => SUBMIT.to_vec(),
            };
            mutate(&mut body, random);
            let length = match random.below(6) {
                0 => random.next_u64(),
                _ => body.len() as u64,
            };
            let _ = stream.write_all(&[&length.to_be_bytes()[..], &body].concat());
        }
        let _ = stream.read_to_end(&mut Vec::new());
    });
}

/// The enemy has taken his worker over, whatever kept him from it: what it says is all that he has then.
#[test]
fn a_worker_that_has_been_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let there = |name: &str| dir.path().join(name);
    for name in ["real", "stager"] {
        copy_program(env!("CARGO_BIN_EXE_tidepool-staged").as_ref(), &there(name));
    }
    fs::write(there("enemy"), BOB.to_string()).unwrap();
    let Some(siege) = Siege::of(&format!("shift; exec {} \"$@\"", there("stager").display())) else { return };
    // A stager starts its workers from where it was started itself.
    put_program(&there("mad"), include_str!("mad_worker.py"));
    fs::rename(there("mad"), there("stager")).unwrap();
    write(&siege.daemon.path("b/honest"), b"honest");
    write(&siege.daemon.path("a/bobs/x"), b"x");
    let before = Siege::kept(&siege.daemon);
    let siege = Siege { before, ..siege };
    siege.withstand("a worker's pipe", |random| {
        let stager = siege.daemon.control();
        let behalf = Some(OnBehalf { uid: BOB, gid: BOB, job: 0 });
        let to = format!("b://bobs{}", random.below(1000));
        let spec = TaskSpec {
            on_behalf: behalf,
            ..TaskSpec::new(Op::Copy, resource("a://bobs/x"), Some(resource(&to)))
        };
        let id = stager.submit(&spec).unwrap();
        if random.below(4) == 0 {
            let _ = stager.plan(&spec);
        }
        if random.below(4) == 0 {
            visit(&siege.at, random);
        }
        let _ = stager.wait(&[id], false, Some(Duration::from_millis(random.below(200))));
        let _ = stager.cancel(id);
        let _ = stager.forget(id);
    });
    let harm = fs::read_to_string(there("harm")).unwrap_or_default();
    assert_eq!(harm, "", "what was given to a worker whose it is not");
    let log = fs::read_to_string(siege.log.path()).unwrap();
    assert!(log.contains(&format!("the worker of user {BOB} speaks of task")), "it has lied: {log}");
    for name in fs::read_dir(siege.daemon.path("b")).unwrap() {
        let name = name.unwrap().file_name().into_string().unwrap();
        assert!(["honest", "copy"].contains(&name.as_str()), "{name} was made by nobody's right");
    }
}

/// Another stager opens what is Bob's: his worker gets its connections.
fn visit(at: &str, random: &mut Rng) {
    let root = RootRequest {
        dataspace: "a://".into(),
        path: b"bobs".to_vec(),
        write: random.below(2) == 0,
        uid: BOB,
        gid: BOB,
        groups: vec![BOB],
        job: None,
    };
    let Ok(mut channel) = connect(at, &admin_secret(), ("", &Meant::anybody())) else { return };
    channel.get_ref().get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let ask = Ask::OpenRoot { root };
    if channel.send(ask.kind(), 1, |out| ask.encode(out), &[]).is_ok() {
        // Whatever it is told, it is no answer of the stager's own.
        let _ = channel.receive();
    }
}

/// This thread is Bob from here on: an ordinary user without a job.
fn become_bob() {
    if rustix::process::geteuid().as_raw() == BOB {
        return;
    }
    let (uid, gid) = (Uid::from_raw(BOB), Gid::from_raw(BOB));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
}
