//! Figure 7 of S1 from the experiment that is in `experiments/hpis3/`: its factors, found by the tuner itself.

use tidepool_sim::Options;
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::run;
use tidepool_sim_models::tune::{Goal, Score, Vary, best, search, turned};

const TEXT: &str = include_str!("../../../experiments/hpis3/fig7.toml");

fn experiment() -> Experiment {
    Experiment::read(TEXT, &|_| Err("there is no trace".into())).unwrap()
}

fn score(experiment: &Experiment) -> Option<Score> {
    let mut system = experiment.system().ok()?;
    system.keep_requests = true;
    let (_, results) = run(system, experiment.seed, &Options::default()).unwrap();
    assert_eq!(results.bytes_written, 16 * (32 << 20));
    let response = results.waited as f64 / results.requests as f64;
    Some(Score { throughput: results.throughput(), response, price: experiment.price() })
}

/// MB/s with so many servers of each kind.
fn of_servers(hdd: u64, ssd: u64) -> f64 {
    let experiment = experiment();
    let space = ["count.hdd=0..4", "count.ssd=0..4"].map(|text| Vary::parse(text, &experiment).unwrap());
    score(&turned(&experiment, &space, &[hdd, ssd])).unwrap().throughput / 1e6
}

#[test]
fn untuned_and_tuned_are_as_in_the_paper() {
    let (original, hdd, ssd) = (of_servers(4, 4), of_servers(4, 0), of_servers(0, 4));
    let experiment = experiment();
    let space = [Vary::parse("weight.ssd=1..8", &experiment).unwrap()];
    let trials = search(&experiment, &space, Goal::Throughput, 100, score);
    assert_eq!(trials.len(), 8);
    let best = best(&trials, Goal::Throughput).unwrap();
    let tuned = best.score.unwrap().throughput / 1e6;
    println!(
        "MB/s: original {original:.1}, 4 HDD {hdd:.1}, 4 SSD {ssd:.1}, tuned {tuned:.1} (weight {})",
        best.values[0]
    );
    let percent = |a: f64, b: f64| (a / b - 1.0) * 100.0;
    let (added, gained) = (percent(original, hdd), percent(tuned, original));
    println!("four SSD servers added: {added:+.1} %; tuned: {gained:+.1} %; of 4 SSD: {:.2}", tuned / ssd);
    assert!((5.0..25.0).contains(&added), "the paper has about 15 %");
    assert!((120.0..160.0).contains(&gained), "the paper has 140 %");
    // The paper has nearly as much as 4 SSD. More is left only by what the hard disks can add: untuned, they do half of all.
    assert!((0.9 * ssd..=ssd + original / 2.0).contains(&tuned), "{tuned} {ssd} {original}");
    assert!(best.values[0] > 1, "the SSD servers get more");
}

/// The larger the space, the fewer of it are tried; what is found is nearly as good.
#[test]
fn a_search_without_trying_all_finds_nearly_the_best() {
    let experiment = experiment();
    let space = ["weight.ssd=1..8", "weight.hdd=1..3", "stripe-size=8KiB,16KiB"]
        .map(|text| Vary::parse(text, &experiment).unwrap());
    let all = search(&experiment, &space, Goal::Throughput, 48, score);
    let some = search(&experiment, &space, Goal::Throughput, 30, score);
    assert_eq!((all.len(), some.len() <= 30), (48, true));
    let throughput = |trials| best(trials, Goal::Throughput).unwrap().score.unwrap().throughput;
    println!("{} of {}: {:.3}", some.len(), all.len(), throughput(&some) / throughput(&all));
    assert!(throughput(&some) > 0.95 * throughput(&all));
}
