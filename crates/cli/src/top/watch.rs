//! What happened to one pool on its tiers while a program ran, for the report of a run: a look each second, of which only
//! sums and the worst are kept.

use super::place::{Look, Observer, Place};
use super::show;
use crate::output::duration;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_fsd::loads::{Load, PhaseLoad};
use tidepool_iosched::blame::{Blame, Judged};
use tidepool_iosched::{JobId, Tier};
use tidepool_types::format_size;

/// Between two looks: loads are told as often.
const EVERY: Duration = Duration::from_secs(1);
/// Daemons see within this time that a program has ended its phase, and tell it at once.
const ENDS: Duration = Duration::from_millis(250);
/// Where a phase goes on, they tell of it once a second.
const TOLD: Duration = Duration::from_millis(1_250);
/// Times of phases are told by clocks that are compared anew each time.
const SAME_MS: u64 = 20;
/// Slowdowns that are less are none.
const SLOWDOWN_MIN: f64 = 1.05;

/// Looks on until it is asked what it saw.
pub struct Watcher {
    stop: Sender<()>,
    thread: JoinHandle<Seen>,
}

impl Watcher {
    pub fn start(place: Place, job: JobId) -> Watcher {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut observer = Observer::new(place);
            let mut seen = Seen::new(job);
            loop {
                seen.look(observer.look().ok().as_ref());
                match stopped.recv_timeout(EVERY) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => break,
                }
            }
            seen.last_looks(&mut observer);
            seen
        });
        Watcher { stop, thread }
    }

    /// None when the one who looked on has failed.
    pub fn stop(self) -> Option<Seen> {
        drop(self.stop);
        self.thread.join().ok()
    }
}

/// What was seen. Its size depends on the number of the pool's daemons only.
#[derive(Debug)]
pub struct Seen {
    job: JobId,
    daemons: BTreeMap<u16, Daemon>,
    /// Times that it was looked, and that in vain.
    looks: u64,
    failed: u64,
    worst: Option<Worst>,
}

/// The worst slowdown of the pool.
#[derive(Clone, PartialEq, Debug)]
struct Worst {
    tier: Tier,
    slowdown: f64,
    at_ms: u64,
    judged: Judged,
    /// Who and what it was, in words, and as names of pools.
    because: String,
    names: Vec<String>,
}

/// Of one daemon, by where it wrote; none while it waited for its turn, or where nobody saw it.
#[derive(Default, Debug)]
struct Daemon {
    spent: BTreeMap<Option<Tier>, Spent>,
    /// What was counted of the phase that goes on, if one does.
    open: Option<Open>,
    /// What ended before was counted.
    ended_ms: u64,
    held_first_ms: u64,
    held_ms: u64,
    at_ms: u64,
    flushed_bytes: u64,
    /// Where it was seen writing last.
    last: Option<Tier>,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Spent {
    bytes: u64,
    ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    began_ms: u64,
    bytes: u64,
    until_ms: u64,
    tier: Option<Tier>,
}

impl Seen {
    fn new(job: JobId) -> Seen {
        Seen { job, daemons: BTreeMap::new(), looks: 0, failed: 0, worst: None }
    }

    fn look(&mut self, look: Option<&Look>) {
        self.looks += 1;
        let Some(look) = look else {
            self.failed += 1;
            return;
        };
        for load in look.loads.iter().filter(|load| load.job == self.job.0) {
            match self.daemons.get_mut(&load.index) {
                Some(daemon) => daemon.look(load),
                None => {
                    self.daemons.insert(load.index, Daemon::first(load));
                }
            }
        }
        for (tier, tally) in &look.scene.tiers {
            let Some(judged) = tally.all.iter().find(|one| one.mover.job == self.job) else { continue };
            let worst = self.worst.as_ref().map_or(SLOWDOWN_MIN, |worst| worst.slowdown);
            let Some(slowdown) = judged.slowdown.filter(|slowdown| *slowdown > worst) else { continue };
            let name = |blame: &Blame| look.scene.pool(blame.job).name.clone();
            self.worst = Some(Worst {
                tier: *tier,
                slowdown,
                at_ms: look.at_ms,
                because: show::because(&look.scene, judged),
                names: judged.blame.iter().map(name).collect(),
                judged: judged.clone(),
            });
        }
    }

    /// Until what was written at the end is told.
    fn last_looks(&mut self, observer: &mut Observer) {
        let began = Instant::now();
        loop {
            std::thread::sleep(ENDS);
            let look = observer.look().ok();
            self.look(look.as_ref());
            let own = |load: &&Load| load.job == self.job.0 && load.phase.is_some();
            let goes_on = look.is_some_and(|look| look.loads.iter().any(|load| own(&load)));
            if !goes_on || began.elapsed() >= TOLD {
                return;
            }
        }
    }

    /// Bytes of all daemons; the time of the one that took longest.
    fn spent(&self) -> BTreeMap<Option<Tier>, Spent> {
        let mut all: BTreeMap<Option<Tier>, Spent> = BTreeMap::new();
        for (tier, spent) in self.daemons.values().flat_map(|daemon| &daemon.spent) {
            let sum = all.entry(*tier).or_default();
            sum.bytes = sum.bytes.saturating_add(spent.bytes);
            sum.ms = sum.ms.max(spent.ms);
        }
        all
    }

    fn sum(&self, part: fn(&Daemon) -> u64) -> u64 {
        self.daemons.values().map(part).fold(0, u64::saturating_add)
    }

    fn held_back_ms(&self) -> u64 {
        self.sum(|daemon| daemon.held_ms.saturating_sub(daemon.held_first_ms))
    }

    /// For people; empty when nothing was written.
    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        for (tier, Spent { bytes, ms }) in self.spent() {
            let time = duration(ms as f64 / 1000.0);
            match tier {
                Some(tier) => parts.push(format!("{} to {} in {time}", format_size(bytes), tier.name())),
                None if bytes > 0 => {
                    parts.push(format!("{} to a tier that was not seen, in {time}", format_size(bytes)))
                }
                None => parts.push(format!("{time} of waiting for turns")),
            }
        }
        if self.held_back_ms() > 0 {
            parts.push(format!("clients held back for {}", duration(self.held_back_ms() as f64 / 1000.0)));
        }
        if let Some(Worst { tier, slowdown, because, .. }) = &self.worst {
            parts.push(format!("slowed down {slowdown:.1} times on {} at worst, by {because}", tier.name()));
        }
        parts.join("; ")
    }

    pub fn json(&self) -> Value {
        let of = |(tier, Spent { bytes, ms }): (Option<Tier>, Spent)| json!({"tier": tier.map(Tier::name), "bytes": bytes, "seconds": ms as f64 / 1000.0});
        let tiers: Vec<Value> = self.spent().into_iter().map(of).collect();
        json!({
            "looks": self.looks, "failed_looks": self.failed, "written": tiers,
            "held_back_seconds": self.held_back_ms() as f64 / 1000.0,
            "flushed_bytes": self.sum(|daemon| daemon.flushed_bytes),
            "worst": self.worst.as_ref().map(Worst::json),
        })
    }
}

impl Worst {
    fn json(&self) -> Value {
        let blamed = self.judged.blame.iter().zip(&self.names).map(|(blame, name)| {
            json!({"pool": name, "job": show::job(blame.job), "write": blame.write, "flush": blame.flush})
        });
        json!({
            "tier": self.tier.name(), "slowdown": self.slowdown, "at_ms": self.at_ms,
            "held_back": self.judged.held_back, "blame": blamed.collect::<Vec<_>>(),
        })
    }
}

impl Daemon {
    /// What was before is not the program's.
    fn first(load: &Load) -> Daemon {
        Daemon {
            ended_ms: load.past.last().map_or(0, |past| past.ended_ms),
            open: load.phase.as_ref().map(|phase| Open::of(phase, load.at_ms)),
            held_first_ms: load.held_back_ms,
            held_ms: load.held_back_ms,
            at_ms: load.at_ms,
            last: load.phase.as_ref().and_then(tier_of),
            ..Daemon::default()
        }
    }

    fn look(&mut self, load: &Load) {
        let passed = load.at_ms.saturating_sub(self.at_ms);
        self.flushed_bytes += load.flush_per_s.saturating_mul(passed) / 1000;
        (self.at_ms, self.held_ms) = (load.at_ms, load.held_back_ms);
        for past in &load.past {
            if past.ended_ms <= self.ended_ms.saturating_add(SAME_MS) {
                continue;
            }
            self.ended_ms = past.ended_ms;
            let open = self.open.filter(|open| open.began_ms.abs_diff(past.began_ms) <= SAME_MS);
            let Open { bytes, until_ms, tier, .. } = open.unwrap_or(Open::none(past.began_ms));
            // Between two looks it went where the one before went, or the next one goes.
            let tier = tier.or(self.last).or(load.phase.as_ref().and_then(tier_of));
            self.add(tier, past.bytes.saturating_sub(bytes), past.ended_ms.saturating_sub(until_ms));
        }
        if let Some(phase) = &load.phase {
            let open = self.open.filter(|open| open.began_ms.abs_diff(phase.began_ms) <= SAME_MS);
            let Open { bytes, until_ms, .. } = open.unwrap_or(Open::none(phase.began_ms));
            let new = phase.bytes.saturating_sub(bytes);
            self.add(tier_of(phase), new, load.at_ms.saturating_sub(until_ms));
            self.open = Some(Open::of(phase, load.at_ms));
            self.last = tier_of(phase).or(self.last);
        }
    }

    fn add(&mut self, tier: Option<Tier>, bytes: u64, ms: u64) {
        let spent = self.spent.entry(tier).or_default();
        spent.bytes = spent.bytes.saturating_add(bytes);
        spent.ms = spent.ms.saturating_add(ms);
    }
}

impl Open {
    fn of(phase: &PhaseLoad, until_ms: u64) -> Open {
        Open { began_ms: phase.began_ms, bytes: phase.bytes, until_ms, tier: tier_of(phase) }
    }

    /// Of a phase that was not seen before.
    fn none(began_ms: u64) -> Open {
        Open { began_ms, bytes: 0, until_ms: began_ms, tier: None }
    }
}

fn tier_of(phase: &PhaseLoad) -> Option<Tier> {
    phase.tier.map(Tier::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_fsd::loads::{PastLoad, PatternWord, TierWord};

    fn load(at_ms: u64, phase: Option<(u64, u64, Option<TierWord>)>, past: &[(u64, u64, u64)]) -> Load {
        let pattern = PatternWord::Sequential;
        let phase =
            phase.map(|(began_ms, bytes, tier)| PhaseLoad { began_ms, bytes, expected: None, tier, pattern });
        let past = past.iter().map(|(began_ms, ended_ms, bytes)| PastLoad {
            began_ms: *began_ms,
            ended_ms: *ended_ms,
            bytes: *bytes,
        });
        Load { at_ms, phase, past: past.collect(), held_back_ms: at_ms / 10, ..Load::new(1, 0) }
    }

    fn spent(loads: &[Load]) -> Vec<(Option<Tier>, u64, u64)> {
        let mut daemon = Daemon::first(&loads[0]);
        loads[1..].iter().for_each(|load| daemon.look(load));
        daemon.spent.into_iter().map(|(tier, spent)| (tier, spent.bytes, spent.ms)).collect()
    }

    const BURST: Option<TierWord> = Some(TierWord::Burst);

    #[test]
    fn bytes_count_once_and_where_they_went() {
        let loads = [
            // What was before, and half of what goes on, is not the program's.
            load(2_000, Some((1_500, 50, BURST)), &[(0, 1_000, 70)]),
            load(3_000, Some((1_500, 150, BURST)), &[(0, 1_000, 70)]),
            load(4_000, Some((1_501, 200, Some(TierWord::Pfs))), &[(0, 1_000, 70)]),
            // It has ended by then, one more was between the looks, and another one waits.
            load(6_000, Some((5_500, 0, None)), &[(0, 1_001, 70), (1_499, 4_500, 210), (5_000, 5_200, 9)]),
            load(6_000, Some((5_500, 0, None)), &[(0, 1_001, 70), (1_499, 4_500, 210), (5_000, 5_200, 9)]),
        ];
        let pfs = (Some(Tier::Pfs), 50 + 10 + 9, 1_000 + 500 + 200);
        assert_eq!(spent(&loads), [(None, 0, 500), (Some(Tier::Burst), 100, 1_000), pfs]);
    }

    #[test]
    fn what_nobody_saw_is_told_as_that() {
        let seen = spent(&[load(1_000, None, &[]), load(2_000, None, &[(1_100, 1_400, 30)])]);
        assert_eq!(seen, [(None, 30, 300)]);
    }

    #[test]
    fn a_report_has_sums_and_words() {
        let mut seen = Seen::new(JobId(1));
        let mut daemon = Daemon::first(&load(1_000, None, &[]));
        daemon.look(&load(3_000, Some((2_000, 3 << 20, BURST)), &[]));
        seen.daemons.insert(0, daemon);
        assert_eq!(seen.words(), "3.0 MiB to burst in 1.0 s; clients held back for 0.2 s");
        let told = seen.json();
        assert_eq!(told["written"], json!([{"tier": "burst", "bytes": 3 << 20, "seconds": 1.0}]));
        assert_eq!((&told["held_back_seconds"], &told["worst"]), (&json!(0.2), &Value::Null));
    }
}
