//! Fault-injected runs of one door: how many, from which seed, what became of them.

pub mod bounded;
pub mod copies;
pub mod inject;
pub mod place;
pub mod planted;
pub mod pools;
pub mod power;
pub mod runs;
pub mod tasks;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_testkit::Rng;

/// Runs that are under way at a time.
const WORKERS: u64 = 3;
/// More of them say nothing new.
const WRONG_MAX: usize = 8;

/// What ought not to be.
pub struct Wrong(pub String);

pub type Judged<T> = Result<T, Wrong>;

/// Wrong unless it holds.
pub fn holds(is_so: bool, what: impl FnOnce() -> String) -> Judged<()> {
    if is_so { Ok(()) } else { Err(Wrong(what())) }
}

/// One run: its choices, and what was chosen.
pub struct Case {
    pub seed: u64,
    pub rng: Rng,
    plan: Vec<String>,
}

impl Case {
    pub fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Seeds that are neighbours begin alike.
        (0..8).for_each(|_| _ = rng.next_u64());
        Case { seed, rng, plan: Vec::new() }
    }

    pub fn plan(&mut self, what: impl Display) {
        self.plan.push(what.to_string());
    }

    /// One of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.below(all.len() as u64) as usize]
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }
}

/// What became of a run that is right.
#[derive(Debug)]
pub struct Ended {
    pub fault: String,
    /// It did happen to what was under way.
    pub struck: bool,
    /// The command said success all the same.
    pub success: bool,
}

/// How many runs a door has.
pub struct Door {
    pub name: &'static str,
    /// Without `TIDEPOOL_FAULT_RUNS`.
    pub runs_default: u64,
    /// How many of them are worth one of another door's.
    pub times: u64,
    /// Percent of all runs in which the fault has to have struck.
    pub struck_min: u64,
}

#[derive(Default)]
struct Tally {
    kinds: BTreeMap<String, [u64; 3]>,
    wrong: Vec<String>,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

impl Door {
    fn seeds(&self) -> std::ops::Range<u64> {
        match number("TIDEPOOL_FAULT_SEED") {
            Some(seed) => seed..seed + 1,
            None => {
                let runs = number("TIDEPOOL_FAULT_RUNS").map_or(self.runs_default, |runs| runs * self.times);
                let start = number("TIDEPOOL_SEED").unwrap_or(1);
                start..start + runs
            }
        }
    }

    /// Makes all its runs, each worker in a place of its own.
    ///
    /// # Panics
    /// When one is wrong, and when too few have met their fault.
    pub fn open<P>(
        &self,
        place: impl Fn() -> P + Sync,
        one: impl Fn(&mut P, &mut Case) -> Judged<Ended> + Sync,
    ) {
        if !inject::is_possible() {
            return;
        }
        let seeds = self.seeds();
        let (next, tally) = (AtomicU64::new(seeds.start), Mutex::new(Tally::default()));
        let work = || {
            let mut there = place();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end || tally.lock().unwrap().wrong.len() >= WRONG_MAX {
                    return;
                }
                let mut case = Case::new(seed);
                let ended = catch_unwind(AssertUnwindSafe(|| one(&mut there, &mut case)));
                let ended =
                    ended.unwrap_or_else(|_| Err(Wrong("the test itself panicked, see above".into())));
                let is_wrong = ended.is_err();
                tally.lock().unwrap().note(self, &case, ended);
                if is_wrong {
                    // Nothing is believed of it any more.
                    there = place();
                }
            }
        };
        std::thread::scope(|scope| {
            (0..WORKERS.min(seeds.end - seeds.start)).for_each(|_| drop(scope.spawn(work)))
        });
        tally.into_inner().unwrap().judge(self, seeds.end - seeds.start);
    }
}

impl Tally {
    fn note(&mut self, door: &Door, case: &Case, ended: Judged<Ended>) {
        match ended {
            Ok(Ended { fault, struck, success }) => {
                let counts = self.kinds.entry(fault).or_default();
                counts[0] += 1;
                counts[1] += u64::from(struck);
                counts[2] += u64::from(struck && success);
            }
            Err(Wrong(what)) => {
                let (name, seed) = (door.name, case.seed);
                let told =
                    format!("TIDEPOOL_FAULT_SEED={seed} replays this ({name})\n{:#?}\n{what}", case.plan);
                println!("WRONG: {told}");
                self.wrong.push(told);
            }
        }
    }

    fn judge(&self, door: &Door, runs: u64) {
        for (fault, [all, struck, success]) in &self.kinds {
            println!("{all:6} {struck:6} struck {success:6} all the same a success: {fault}");
        }
        let sum = |which: usize| self.kinds.values().map(|counts| counts[which]).sum::<u64>();
        let (ended, struck, wrong) = (sum(0), sum(1), self.wrong.len());
        let name = door.name;
        println!(
            "{name}: {ended} fault-injected runs of {runs}, the fault struck in {struck}, {wrong} wrong"
        );
        assert!(wrong == 0, "{}", self.wrong.join("\n"));
        let enough = struck * 100 >= runs * door.struck_min || runs == 1;
        assert!(enough, "only {struck} of {runs} runs met their fault: too few to prove anything");
    }
}
