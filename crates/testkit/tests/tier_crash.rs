//! Crash matrix of pools on several tiers: a daemon, a daemon in the midst of a flush, or a client process is killed with
//! `kill -9` at random moments, while data lie on the nodes' own storage, on the burst buffer and on the parallel file system.
//!
//! It proves: after each restart every acknowledged byte reads back, wherever it lies and wherever it was being moved; and in
//! the end all of them are flushed to the parallel file system, and are right there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tidepool_client::Client;
use tidepool_fsd::{FlushConfig, TierConfig};
use tidepool_testkit::{Cluster, Options, Rng, cred, pattern, write_all};
use tidepool_types::{Errno, Ino};
use tidepool_wire::message::{DaemonStatus, FlushTo, Reply, Request};

const DAEMONS: usize = 3;
const WRITERS: usize = 3;
/// As the writer has them.
const REGIONS: u64 = 128;
const REGION: u64 = 48 << 10;
const BASE: u64 = REGIONS * REGION;
/// Kills of one pool: what lay on the nodes' own storage before it had tiers is flushed in the course of it.
const KILLS_OF_POOL: usize = 12;
/// Looks at how much a daemon has flushed, before it is killed all the same.
const LOOKS_MAX: usize = 100;

/// Moments at which something is killed; `make test-all` sets more.
fn kills() -> usize {
    std::env::var("TIDEPOOL_KILLS").ok().and_then(|t| t.parse().ok()).unwrap_or(2 * KILLS_OF_POOL)
}

/// Generation, and how many words a file has.
type Version = (u64, u64);

/// What writers were told of files and of parts of files.
#[derive(Default)]
struct Promises {
    /// The last version that was acknowledged, and the one that was begun since.
    files: BTreeMap<String, (Option<Version>, Option<Version>)>,
    /// By file and region; the generations.
    regions: BTreeMap<(String, u64), (u64, Option<u64>)>,
    acknowledged: u64,
}

impl Promises {
    /// A line of a writer.
    fn hear(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "failed" {
            return Err(line.into());
        }
        let [verb, kind, name, generation, number] = words.as_slice() else { return Ok(()) };
        let parsed = |text: &str| text.parse::<u64>().ok();
        // A line is one write to a pipe, which is whole or not there.
        let (Some(generation), Some(number)) = (parsed(generation), parsed(number)) else { return Ok(()) };
        match (*verb, *kind) {
            ("begin", "file") => {
                self.files.entry(name.to_string()).or_default().1 = Some((generation, number));
            }
            ("done", "file") => {
                self.files.insert(name.to_string(), (Some((generation, number)), None));
                self.acknowledged += 8 * number;
            }
            ("begin", "region") => {
                self.regions.entry((name.to_string(), number)).or_default().1 = Some(generation);
            }
            ("done", "region") => {
                self.regions.insert((name.to_string(), number), (generation, None));
                self.acknowledged += REGION;
            }
            _ => {}
        }
        Ok(())
    }
}

/// A pool, and its shared storage.
struct Pool {
    cluster: Cluster,
    storage: TempDir,
    promises: Promises,
    generation: u64,
}

/// What was killed, and what there was then.
#[derive(Default, Debug)]
struct Story {
    daemons: usize,
    flushers: usize,
    clients: usize,
    /// Kills at which there were data on all three tiers.
    on_all_tiers: usize,
    flushed: u64,
    acknowledged: u64,
    in_the_end: u64,
}

impl Story {
    fn kills(&self) -> usize {
        self.daemons + self.flushers + self.clients
    }
}

fn open(client: &Client, name: &str, flags: i32) -> Option<Ino> {
    match client.open(Ino::ROOT, name.as_bytes(), flags, 0o644, &cred()) {
        Ok(found) => Some(found.inside().unwrap().ino),
        Err(error) if error.errno() == Errno::ENOENT => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

fn read(client: &Client, name: &str, len: u64) -> Option<Vec<u8>> {
    let ino = open(client, name, libc::O_RDONLY)?;
    let (mut data, mut done) = (vec![0; len as usize], 0);
    while done < data.len() {
        match client.read(ino, done as u64, &mut data[done..]).unwrap_or_else(|e| panic!("{name}: {e}")) {
            0 => break,
            count => done += count,
        }
    }
    client.release(ino);
    data.truncate(done);
    Some(data)
}

/// What lies where, by generation: for who has to find out what was lost.
fn runs(data: &[u8]) -> String {
    let mut runs: Vec<(u64, usize, usize)> = Vec::new();
    for (number, word) in data.chunks(8).enumerate() {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        let generation = u64::from_le_bytes(bytes) >> 32;
        match runs.last_mut() {
            Some((last, _, end)) if *last == generation => *end = number + 1,
            _ => runs.push((generation, number, number + 1)),
        }
    }
    let run = |(generation, first, end): &(u64, usize, usize)| {
        format!("{generation} in bytes {} to {}", first * 8, end * 8)
    };
    format!("{} bytes: {}", data.len(), runs.iter().take(20).map(run).collect::<Vec<_>>().join(", "))
}

fn status(client: &Client, daemon: usize) -> DaemonStatus {
    match client.request(daemon as u16, &Request::Status {}).unwrap() {
        Reply::Report { status } => status,
        other => panic!("{other:?}"),
    }
}

fn counter(status: &DaemonStatus, name: &str) -> u64 {
    status.counters.iter().find(|(counter, _)| counter == name).expect("it counts that").1
}

fn tier(client: &Client, name: &str) -> u64 {
    (0..DAEMONS).map(|daemon| counter(&status(client, daemon), &format!("tier_{name}_bytes"))).sum()
}

impl Pool {
    /// With data on the nodes' own storage, from before it had tiers.
    fn new(rng: &mut Rng) -> Pool {
        let storage = TempDir::new().unwrap();
        for name in ["burst", "pfs"] {
            std::fs::create_dir(storage.path().join(name)).unwrap();
        }
        let cluster = Cluster::with(Options { daemons: DAEMONS, ..Options::default() });
        let client = cluster.client();
        for writer in 0..WRITERS {
            let ino = open(&client, &format!("base{writer}"), libc::O_RDWR | libc::O_CREAT).unwrap();
            write_all(&client, ino, 0, &pattern(0, 0, (BASE / 8) as usize));
            client.fsync(ino).unwrap();
            client.release(ino);
        }
        drop(client);
        let mut pool = Pool { cluster, storage, promises: Promises::default(), generation: 1 };
        let tiers = pool.tiers(rng);
        pool.cluster.give_tiers(tiers);
        pool
    }

    /// Another strategy each time. Mostly slow flushes, so that data stay on all tiers.
    fn tiers(&self, rng: &mut Rng) -> TierConfig {
        let dir = |name: &str| Some(self.storage.path().join(name));
        let strategy = ["hp", "ia", "hp", "baseline"][rng.below(4) as usize];
        let flush_bandwidth = (256 << 10) << rng.below(3);
        TierConfig {
            burst: dir("burst"),
            pfs: dir("pfs"),
            strategy: strategy.into(),
            flush_bandwidth,
            flush: FlushConfig::default(),
            ..TierConfig::default()
        }
    }

    fn pool_file(&self) -> PathBuf {
        let path = self.cluster.dir().join("pool.json");
        self.cluster.pool_file().write(&path).unwrap();
        path
    }

    fn start_writers(&mut self, rng: &mut Rng) -> Vec<Child> {
        let pool = self.pool_file();
        let start = |writer: usize| {
            let numbers = [writer as u64, self.generation, rng.next_u64()];
            Command::new(env!("CARGO_BIN_EXE_tidepool-test-writer"))
                .arg(&pool)
                .args(numbers.map(|number| number.to_string()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let writers = (0..WRITERS).map(start).collect();
        // More than a writer gets to.
        self.generation += 100_000;
        writers
    }

    /// Kills something while writers are at work, starts again what is needed, and looks at every acknowledged byte.
    fn round(&mut self, rng: &mut Rng, story: &mut Story) {
        let mut writers = self.start_writers(rng);
        let client = self.cluster.client();
        let (kind, victim) = (rng.below(3), rng.below(DAEMONS as u64) as usize);
        std::thread::sleep(Duration::from_micros(rng.below(120_000)));
        let tiers = ["local", "burst", "pfs"];
        story.on_all_tiers += usize::from(tiers.iter().all(|name| tier(&client, name) > 0));
        let flushes = kind == 1 && self.wait_for_flush(&client, victim, rng);
        match (kind, flushes) {
            (2, _) => {
                writers[victim % WRITERS].kill().unwrap();
                story.clients += 1;
            }
            _ => {
                self.cluster.kill(victim);
                story.flushers += usize::from(flushes);
                story.daemons += usize::from(!flushes);
            }
        }
        drop(client);
        self.hear(writers, kind != 2);
        if kind != 2 {
            let tiers = self.tiers(rng);
            self.cluster.set_tiers(tiers);
            self.cluster.restart(victim);
        }
        let client = self.cluster.client();
        self.check(&client);
        story.flushed +=
            (0..DAEMONS).map(|daemon| counter(&status(&client, daemon), "flushed_bytes")).sum::<u64>();
    }

    /// Until a daemon has just moved something; true when it has. Some are told to.
    fn wait_for_flush(&self, client: &Client, victim: usize, rng: &mut Rng) -> bool {
        if rng.below(3) == 0 {
            let order = Request::Flush { to: FlushTo::Last, bandwidth: 2 << 20 };
            client.request(victim as u16, &order).unwrap();
        }
        let flushed = || counter(&status(client, victim), "flushed_bytes");
        let (before, pause) = (flushed(), Duration::from_micros(rng.below(5_000)));
        let grows = (0..LOOKS_MAX).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            flushed() > before
        });
        std::thread::sleep(pause);
        grows
    }

    /// What the writers have said, when they have ended. When a daemon was killed they end by themselves.
    fn hear(&mut self, mut writers: Vec<Child>, daemon_died: bool) {
        if !daemon_died {
            writers.iter_mut().for_each(|writer| writer.kill().unwrap());
        }
        for mut writer in writers {
            let said = BufReader::new(writer.stdout.take().unwrap());
            let mut failed = None;
            for line in said.lines() {
                failed = self.promises.hear(&line.unwrap()).err().or(failed);
            }
            assert!(daemon_died || failed.is_none(), "a writer failed while all daemons lived: {failed:?}");
            assert!(!daemon_died || failed.is_some(), "a writer was told nothing of a dead daemon");
            writer.wait().unwrap();
        }
    }

    /// Every acknowledged byte is there; what was begun is there or not.
    fn check(&mut self, client: &Client) {
        for (name, (done, begun)) in &mut self.promises.files {
            let longest = [*done, *begun].into_iter().flatten().map(|(_, words)| words).max().unwrap_or(0);
            let found = read(client, name, longest * 8 + 8);
            let fits = |version: &Version| found.as_ref() == Some(&pattern(version.0, 0, version.1 as usize));
            let version = [*begun, *done].into_iter().flatten().find(fits);
            let nothing = found.is_none() && done.is_none();
            let told = || found.as_deref().map_or_else(|| "missing".to_string(), runs);
            assert!(version.is_some() || nothing, "{name} is neither {done:?} nor {begun:?}, but {}", told());
            (*done, *begun) = (version, None);
        }
        for writer in 0..WRITERS {
            self.check_base(client, &format!("base{writer}"));
        }
    }

    /// Of a region that was being written each word is old or new; it is written anew then.
    fn check_base(&mut self, client: &Client, name: &str) {
        let found = read(client, name, BASE).unwrap();
        assert_eq!(found.len() as u64, BASE, "{name} is not whole");
        for region in 0..REGIONS {
            let Some(found) = found.chunks(REGION as usize).nth(region as usize) else {
                panic!("it is whole")
            };
            let key = (name.to_string(), region);
            let (done, begun) = self.promises.regions.get(&key).copied().unwrap_or_default();
            let first = region * REGION / 8;
            let expected = pattern(done, first, found.len() / 8);
            let Some(begun) = begun else {
                assert!(found == expected, "{name}, region {region} is not as in {done}");
                continue;
            };
            let new = pattern(begun, first, found.len() / 8);
            for ((word, old), new) in found.chunks(8).zip(expected.chunks(8)).zip(new.chunks(8)) {
                assert!(word == old || word == new, "{name}, region {region} is neither {done} nor {begun}");
            }
            let ino = open(client, name, libc::O_RDWR).unwrap();
            write_all(client, ino, first * 8, &new);
            client.fsync(ino).unwrap();
            client.release(ino);
            self.promises.regions.insert(key, (begun, None));
        }
    }

    /// All that was ever acknowledged lies on the parallel file system alone, and is right there.
    fn end(mut self, story: &mut Story) {
        let pool = self.pool_file();
        let flush = ["pool", "flush", "--wait", "--bandwidth", "1GiB", "--to", "pfs"];
        tidepool(&pool, &flush);
        let client = self.cluster.client();
        assert_eq!((tier(&client, "local"), tier(&client, "burst")), (0, 0));
        self.check(&client);
        assert_eq!((tier(&client, "local"), tier(&client, "burst")), (0, 0));
        story.in_the_end += tier(&client, "pfs");
        story.acknowledged += self.promises.acknowledged + WRITERS as u64 * BASE;
        if story.kills() >= kills() {
            tidepool(&pool, &["check"]);
        }
    }
}

fn tidepool(pool: &Path, words: &[&str]) {
    let mut command = Command::new(tidepool_testkit::program("tidepool"));
    let said = command.args(words).env("TIDEPOOL_POOL", pool).output().unwrap();
    let text = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(said.status.success(), "{words:?}: {text}");
}

#[test]
fn acknowledged_data_survive_on_all_tiers_and_reach_the_last() {
    let mut rng = Rng::from_env("acknowledged_data_survive_on_all_tiers_and_reach_the_last");
    let mut story = Story::default();
    while story.kills() < kills() {
        let mut pool = Pool::new(&mut rng);
        for _ in 0..KILLS_OF_POOL.min(kills() - story.kills()) {
            pool.round(&mut rng, &mut story);
        }
        pool.end(&mut story);
    }
    println!("{story:?}");
    assert!(story.flushed > 0, "nothing was ever flushed");
    let of_each = [story.daemons, story.flushers, story.clients];
    assert!(of_each.into_iter().all(|count| count > 0), "{story:?}");
    assert!(story.on_all_tiers > story.kills() / 2, "{story:?}");
}
