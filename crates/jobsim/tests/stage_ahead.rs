//! INVENTORY H11 in small: staging ahead of the jobs of a made-up log.

use tidepool_jobsim::random::Random;
use tidepool_jobsim::study::{Data, Load, Rule, Staging, Tally, stage_ahead, tally};
use tidepool_jobsim::{Job, Policy, Run, simulate};

const NODES: u32 = 64;
const JOBS: u64 = 3000;
const LOOK_S: u64 = 30;

/// A busy machine whose users ask for up to ten times as long as they need.
fn log(seed: u64) -> Vec<Job> {
    let mut random = Random::of(seed, 0);
    let mut now = 0;
    let job = |number| {
        now += (-470.0 * (1.0 - random.share()).ln()) as u64;
        let run_s = random.lognormal(600.0, 1.3).clamp(1.0, 86_400.0) as u64;
        let request_s = (run_s as f64 * (1.0 + 9.0 * random.share())) as u64;
        Job {
            number,
            submit_s: now,
            run_s,
            request_s: request_s.next_multiple_of(900),
            processors: 1 << random.below(7),
            ..Job::default()
        }
    };
    (0..JOBS).map(job).collect()
}

fn share(run: &Run, loads: &[Load], rule: Rule) -> Tally {
    tally(run, &stage_ahead(run, loads, LOOK_S, rule))
}

/// Few are late by the trigger, however much rates scatter; the mean and a margin is late for most, which shows that the
/// log is hard; and the trigger leaves data there for less long than staging at submission.
#[test]
fn h11_less_than_a_tenth_is_late() {
    for (seed, scatter) in [(1, 0.2), (2, 0.5), (3, 1.0)] {
        let run = simulate(&log(seed), NODES, Policy::Conservative);
        let data = Data { seed, bytes: 50e9, rate_scatter: scatter, ..Data::default() };
        let loads = data.loads(run.outcomes.len());
        let [learned, mean, at_once] = Rule::ALL.map(|rule| share(&run, &loads, rule));
        println!(
            "seed {seed}, scatter {scatter}: of {} possible, late {:.3}, by the mean {:.3}; lies there {:.0} h, at once {:.0} h",
            learned.possible,
            learned.late_share(),
            mean.late_share(),
            learned.lay_processor_hours,
            at_once.lay_processor_hours
        );
        assert!(learned.possible > 500, "the log is too easy");
        assert!(learned.late_share() < 0.1, "{} of {} late", learned.late, learned.possible);
        assert!(mean.late_share() > 0.2, "{} of {} late by the mean", mean.late, mean.possible);
        assert_eq!(at_once.late, 0);
        assert_eq!(at_once.late_of_all, at_once.jobs - at_once.possible);
        assert!(learned.lay_processor_hours < 0.8 * at_once.lay_processor_hours);
    }
}

/// What happens from some moment on changes nothing of what was decided before: other run times, other jobs, and
/// transfers that take longer.
#[test]
fn nothing_is_known_before_it_happens() {
    let jobs = log(4);
    let run = simulate(&jobs, NODES, Policy::Conservative);
    let data = Data { seed: 4, bytes: 50e9, ..Data::default() };
    let loads = data.loads(run.outcomes.len());
    let stagings = stage_ahead(&run, &loads, LOOK_S, Rule::Learned);
    for tenth in [2, 5, 8] {
        let now_s = jobs[jobs.len() * tenth / 10].submit_s;
        let now_ms = now_s * 1000;
        let other_job = |(job, outcome): (&Job, &tidepool_jobsim::scheduler::Outcome)| {
            let running_then = outcome.end_s() > now_s;
            let run_s = if running_then { job.request_s } else { job.run_s };
            let processors = if job.submit_s > now_s { NODES / 2 } else { job.processors };
            Job { run_s, processors, ..*job }
        };
        let other_jobs: Vec<Job> = jobs.iter().zip(&run.outcomes).map(other_job).collect();
        let slower = |(load, staging): (&Load, &Staging)| {
            let took_ms = if staging.end_ms() > now_ms { load.took_ms * 3 } else { load.took_ms };
            Load { took_ms, ..*load }
        };
        let other_loads: Vec<Load> = loads.iter().zip(&stagings).map(slower).collect();
        let other = simulate(&other_jobs, NODES, Policy::Conservative);
        let other = stage_ahead(&other, &other_loads, LOOK_S, Rule::Learned);
        let began = |all: &[Staging]| -> Vec<(u64, u64)> {
            let before = all.iter().filter(|staging| staging.began_ms < now_ms);
            before.map(|staging| (staging.number, staging.began_ms)).collect()
        };
        assert!(began(&stagings).len() >= jobs.len() * (tenth - 1) / 10);
        assert_eq!(began(&stagings), began(&other), "until {now_s} s");
        assert_ne!(stagings, other, "the other future is none");
    }
}

#[test]
fn the_same_seed_is_the_same_study() {
    let run = simulate(&log(5), NODES, Policy::Fcfs);
    let of = |seed| {
        let loads = Data { seed, ..Data::default() }.loads(run.outcomes.len());
        stage_ahead(&run, &loads, LOOK_S, Rule::Learned)
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}
