//! K19: `model`, which knows patterns by their curves, against `ia`, over the paper's sweeps with mixtures of patterns, on the paper's
//! test bed with a hundredth of its bytes. Simulated, not measured.

use std::time::Duration;
use tidepool_iosched::{Strategy, View, by_name, decide};
use tidepool_sim::Options;
use tidepool_sim_tiers::read::read;
use tidepool_sim_tiers::{App, Report, Setup, run};
use tidepool_workload::{Application, Kind, Pace, Pattern};

/// A strategy without what it knows of patterns: what is left of its gain comes from elsewhere.
#[derive(Debug)]
struct Blind(&'static str);

impl Strategy for Blind {
    fn name(&self) -> &'static str {
        "blind"
    }

    fn about(&self) -> &'static str {
        "one that is told that all write in sequence"
    }

    fn phases(
        &self,
        view: &View,
    ) -> std::collections::BTreeMap<tidepool_iosched::JobId, tidepool_iosched::Verdict> {
        let mut apps = view.apps().to_vec();
        for phase in apps.iter_mut().filter_map(|app| app.phase.as_mut()) {
            phase.pattern = tidepool_iosched::Pattern::Sequential;
        }
        let view =
            View::new(view.now_ns(), apps, view.burst().clone(), view.pfs().clone(), view.dirty().to_vec())
                .unwrap();
        decide(by_name(self.0).unwrap(), &view).phases
    }

    fn flushes(
        &self,
        view: &View,
        phases: &std::collections::BTreeMap<tidepool_iosched::JobId, tidepool_iosched::Verdict>,
    ) -> std::collections::BTreeMap<
        (tidepool_iosched::JobId, tidepool_iosched::Tier),
        tidepool_iosched::FlushVerdict,
    > {
        by_name(self.0).unwrap().flushes(view, phases)
    }
}

/// Applications with these patterns; the ratio is that of the first on the PFS alone in sequence.
fn setup(patterns: &[Pattern], ratio: f64, steps: u64, nodes: u32) -> Setup {
    let bed = read(include_str!("../../../experiments/sim/ias.toml")).unwrap();
    let app = |(number, pattern): (usize, &Pattern)| {
        let mut workload =
            Application { name: format!("app-{number}"), steps, ..bed.apps[0].workload.clone() };
        workload.pace = Pace::Ratio { io: ratio, alone: Some(Duration::from_secs_f64(1.48837)) };
        let Kind::Phases(phases) = &mut workload.kind else { unreachable!("the bed has phases") };
        (phases.bytes, phases.pattern) = (10_000_000, *pattern);
        App { workload, nodes, ..bed.apps[0].clone() }
    };
    Setup {
        apps: patterns.iter().enumerate().map(app).collect(),
        chunk_bytes: 200_000,
        news_ns: 300_000,
        tell_ns: 10_000_000,
        ..bed
    }
}

fn under(strategy: &'static dyn Strategy, setup: &Setup) -> Report {
    run(setup, strategy, 1, &Options::default()).unwrap()
}

const S: Pattern = Pattern::Sequential;
const R: Pattern = Pattern::Random;

fn sweep() -> Vec<(String, Setup)> {
    let mut all = Vec::new();
    for (name, patterns) in [("ss", [S, S]), ("sr", [S, R]), ("rs", [R, S]), ("rr", [R, R])] {
        for ratio in [0.8, 0.6, 0.4, 0.2] {
            all.push((format!("{name} ratio {ratio}"), setup(&patterns, ratio, 5, 4)));
        }
        for steps in [4, 8, 16] {
            all.push((format!("{name} steps {steps}"), setup(&patterns, 0.5, steps, 4)));
        }
    }
    for count in [4, 8] {
        let patterns: Vec<Pattern> = (0..count).map(|n| if n % 2 == 1 { R } else { S }).collect();
        all.push((format!("{count} half random"), setup(&patterns, 0.5, 3, 4)));
        all.push((format!("{count} sequential"), setup(&vec![S; count], 0.5, 3, 4)));
    }
    all
}

/// How many times as long `ia` takes, in the mean and for the slowest application.
fn gain(of: &'static dyn Strategy, setup: &Setup) -> (f64, f64) {
    let (ia, of) = (under(by_name("ia").unwrap(), setup), under(of, setup));
    let ratio = |a: u64, b: u64| a as f64 / b as f64;
    (ratio(ia.io_mean_ns(), of.io_mean_ns()), ratio(ia.io_slowest_ns(), of.io_slowest_ns()))
}

/// Not with 4 and 8 applications that all write at random, of which decision 34 tells.
#[test]
fn model_beats_ia_whatever_patterns_meet() {
    for (name, setup) in sweep() {
        let (mean, slowest) = gain(by_name("model").unwrap(), &setup);
        println!("{name}: ia over model {mean:.3} {slowest:.3}");
        assert!(mean > 1.0 && slowest >= 1.0, "{name}: {mean} {slowest}");
    }
}

/// With eight applications of which half write at random a third of the time is due to what `model` knows of patterns.
#[test]
fn what_is_known_of_patterns_is_worth_something() {
    static BLIND: Blind = Blind("model");
    let patterns = [S, R, S, R, S, R, S, R];
    let setup = setup(&patterns, 0.5, 3, 4);
    let (seeing, blind) = (gain(by_name("model").unwrap(), &setup), gain(&BLIND, &setup));
    println!("ia over model {seeing:?}, over model that knows no patterns {blind:?}");
    assert!(seeing.0 > 1.2 * blind.0 && seeing.1 > blind.1);
}
