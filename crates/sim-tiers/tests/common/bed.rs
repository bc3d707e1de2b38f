//! The paper's test bed (K18), with other applications and other numbers, and `ia` beside other strategies on it.

use super::strategy;
use std::sync::Arc;
use std::time::Duration;
use tidepool_iosched::{Curve, Curves};
use tidepool_sim::{Options, Stream};
use tidepool_sim_tiers::read::read;
use tidepool_sim_tiers::{App, Report, Setup, run};
use tidepool_workload::{Application, Kind, Pace, Pattern};

/// What is changed of the bed. Times and bytes are those of the paper times `scale`.
#[derive(Clone, PartialEq, Debug)]
pub struct Bed {
    pub apps: Vec<One>,
    /// Part of I/O of an application of the paper's on the PFS alone, in sequence.
    pub ratio: f64,
    pub steps: u64,
    pub jitter: f64,
    pub scale: f64,
    /// Chunks of a process in one phase of 1 GB.
    pub chunks: u64,
    /// Of the curves, in percent.
    pub burst_percent: u64,
    pub pfs_percent: u64,
    /// Of the PFS's curve for random writes, beside the others.
    pub random_percent: u64,
    /// The same for strided ones.
    pub strided_percent: u64,
    /// In percent of the paper's; none: as much as you like.
    pub link_percent: Option<u64>,
    pub links_known: bool,
    pub hints: bool,
    /// How often schedulers are asked in any case, in seconds.
    pub tell_s: u64,
    pub seed: u64,
}

/// One application.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct One {
    pub pattern: Pattern,
    pub processes: u32,
    pub nodes: u32,
    /// Of each process, in percent of the paper's 1 GB.
    pub percent: u64,
}

pub const PAPER: One = One { pattern: Pattern::Sequential, processes: 32, nodes: 4, percent: 100 };

/// So many of the paper's, of which some write at random; which ones is drawn.
pub fn mixed(count: usize, random: usize, seed: u64) -> Vec<One> {
    let mut apps: Vec<One> = (0..count)
        .map(|n| One { pattern: if n < random { Pattern::Random } else { Pattern::Sequential }, ..PAPER })
        .collect();
    let stream = &mut Stream::new(seed, 1);
    for at in (1..count).rev() {
        apps.swap(at, stream.below(at as u64 + 1) as usize);
    }
    apps
}

impl Bed {
    /// A hundredth of the paper's bytes, in chunks of which a phase has 50 for each process.
    pub fn of(apps: Vec<One>) -> Bed {
        Bed {
            apps,
            ratio: 0.5,
            steps: 3,
            jitter: 0.0,
            scale: 0.01,
            chunks: 50,
            burst_percent: 100,
            pfs_percent: 100,
            random_percent: 100,
            strided_percent: 100,
            link_percent: Some(100),
            links_known: false,
            hints: false,
            tell_s: 1,
            seed: 1,
        }
    }

    pub fn setup(&self) -> Setup {
        let bed = read(include_str!("../../../../experiments/sim/ias.toml")).unwrap();
        let ns = |ns: u64| (ns as f64 * self.scale) as u64;
        let mut pfs = scaled(&bed.pfs.curves, self.pfs_percent);
        pfs.random = percent(&pfs.random, self.random_percent);
        pfs.strided = percent(&pfs.strided, self.strided_percent);
        let mut setup = Setup {
            apps: self.apps.iter().enumerate().map(|(at, one)| self.app(&bed.apps[0], at, one)).collect(),
            chunk_bytes: (1e9 * self.scale) as u64 / self.chunks,
            news_ns: ns(bed.news_ns).max(bed.latency_ns),
            tell_ns: ns(self.tell_s * 1_000_000_000),
            link_bytes_per_s: self.link_percent.map(|percent| bed.link_bytes_per_s.unwrap() * percent / 100),
            links_known: self.links_known,
            hints: self.hints,
            ..bed
        };
        setup.burst.curves = Arc::new(scaled(&setup.burst.curves, self.burst_percent));
        setup.pfs.curves = Arc::new(pfs);
        setup.pfs.capacity_bytes = setup.pfs.capacity_bytes.saturating_mul(10);
        setup
    }

    fn app(&self, paper: &App, at: usize, one: &One) -> App {
        let mut workload = Application {
            name: format!("app-{at}"),
            steps: self.steps,
            processes: one.processes,
            ..paper.workload.clone()
        };
        workload.pace =
            Pace::Ratio { io: self.ratio, alone: Some(Duration::from_secs_f64(148.837 * self.scale)) };
        let Kind::Phases(phases) = &mut workload.kind else { unreachable!("the bed has phases") };
        phases.bytes = (1e7 * self.scale) as u64 * one.percent;
        phases.pattern = one.pattern;
        App { workload, nodes: one.nodes, jitter: self.jitter, ..paper.clone() }
    }

    pub fn under(&self, name: &str) -> Report {
        let report = run(&self.setup(), strategy(name), self.seed, &Options::default());
        report.unwrap_or_else(|error| panic!("{name}: {error}: {self:?}"))
    }

    /// How many times as long `ia` takes, in the mean of all phases and for the slowest application.
    pub fn gain(&self, strategy: &str) -> (f64, f64) {
        let (ia, of) = (self.under("ia"), self.under(strategy));
        let ratio = |a: u64, b: u64| a as f64 / b as f64;
        (ratio(ia.io_mean_ns(), of.io_mean_ns()), ratio(ia.io_slowest_ns(), of.io_slowest_ns()))
    }
}

/// Machines that have little in common with the paper's, and 2 to 8 applications of all patterns.
pub fn drawn(seed: u64) -> Bed {
    let random = &mut Stream::new(seed, 0);
    let among = |random: &mut Stream, values: &[u64]| values[random.below(values.len() as u64) as usize];
    let (count, equal) = (2 + random.below(7), random.chance(0.5));
    let (at_random, strided) = (random.unit(), random.unit());
    let app = |random: &mut Stream| One {
        pattern: match (random.chance(at_random), random.chance(strided)) {
            (true, _) => Pattern::Random,
            (_, true) => Pattern::Strided,
            _ => Pattern::Sequential,
        },
        processes: if equal { 32 } else { among(random, &[4, 8, 16, 32]) as u32 },
        percent: if equal { 100 } else { among(random, &[20, 50, 100, 200]) },
        ..PAPER
    };
    let apps = (0..count).map(|_| app(random)).collect();
    Bed {
        ratio: among(random, &[2, 5, 8]) as f64 / 10.0,
        steps: among(random, &[1, 3]),
        jitter: among(random, &[0, 1, 3]) as f64 / 10.0,
        scale: [0.01, 1.0][random.below(2) as usize],
        chunks: 20,
        burst_percent: among(random, &[50, 100, 200]),
        pfs_percent: among(random, &[50, 100, 200]),
        random_percent: among(random, &[50, 100, 300]),
        strided_percent: among(random, &[30, 60, 100]),
        link_percent: if random.chance(0.5) { None } else { Some(100) },
        links_known: true,
        hints: random.chance(0.5),
        // What was told 10 s ago is late, on the full scale.
        tell_s: among(random, &[4, 10]),
        seed,
        ..Bed::of(apps)
    }
}

fn percent(curve: &Curve, percent: u64) -> Curve {
    let points: Vec<(u32, u64)> =
        curve.points().iter().map(|(n, rate)| (*n, (rate * percent / 100).max(1))).collect();
    Curve::new(&points).unwrap()
}

fn scaled(curves: &Curves, by: u64) -> Curves {
    Curves {
        sequential: percent(&curves.sequential, by),
        strided: percent(&curves.strided, by),
        random: percent(&curves.random, by),
    }
}
