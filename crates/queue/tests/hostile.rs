//! Whatever stands in a queue and in a list of nodes: it is refused with a message that can be printed, or all that is told of it is
//! possible.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tidepool_jobsim::engine::Policy;
use tidepool_queue::scene::{self, Rules, Set};
use tidepool_queue::teach::until_limits;
use tidepool_queue::{Cluster, Queue, State, cluster};

const HEAD: &str = "JOBID|USER|PARTITION|STATE|REASON|SUBMIT_TIME|START_TIME|TIME|TIME_LIMIT|NODES|CPUS|NODELIST|PRIORITY|DEPENDENCY|\
OVER_SUBSCRIBE|REQ_NODES|EXC_NODES|FEATURES|NAME";
/// Of each column words that Slurm prints, and others. The first ones are right.
const WORDS: [&[&str]; 19] = [
    &["1", "2", "3", "4", "5_[1-3%2]", "5_9", "6_[0-2]", "7+1", "1", "", "-1", "99999999999999999999"],
    &["a", "b", "", "\u{1b}[31m"],
    &["p", "p,q", "q", "", "none"],
    &["RUNNING", "PENDING", "PENDING", "PENDING", "COMPLETING", "SUSPENDED", "COMPLETED", "PD", "running"],
    &["None", "Priority", "Resources", "Dependency", "BeginTime", "JobHeldUser", "Licenses", ""],
    &["1000", "2000", "N/A", "9999999999", "0", "68719476736", "soon"],
    &["1000", "N/A", "9999999999", "0", "68719476736", "-5"],
    &["1:00", "0:00", "9-23:00:00", "INVALID", ""],
    &["10:00", "1-00:00:00", "UNLIMITED", "0:00", "1", "68719476736", "700000000-00:00:00", "x"],
    &["1", "2", "3", "100000", "0", "2-4", "4294967296"],
    &["1", "4", "8", "12", "100000000", "0", "-4"],
    &["n1", "n[1-2]", "n3", "", "gone[1-2]", "n1,n1", "n[", "n[2-1]", "n[1-99999999]"],
    &["1", "0.5", "-3", "4294967295", "1e308", "NaN", "inf", ""],
    &[
        "(null)",
        "afterok:1",
        "afterany:5_*",
        "aftercorr:5",
        "singleton",
        "afterok:1(failed)",
        "afterok:1?afterok:2",
        "::,(",
    ],
    &["OK", "NO", "USER", "?"],
    &["", "n1", "n[1-3]", "gone1"],
    &["", "n2", "n[1-3]"],
    &["(null)", "ib", "ib&ssd", "[a|b]", "ib*2"],
    &["x", "y|z", "\u{0}\u{202e}"],
];
const NODE_HEAD: &str = "NODELIST|PARTITION|STATE|CPUS|AVAIL_FEATURES|OVERSUBSCRIBE";
const NODE_WORDS: [&[&str]; 6] = [
    &["n1", "n2", "n3", "n[1-3]", "n[", "", "n[1-99999999]"],
    &["p*", "p", "q", "", "*"],
    &["idle", "mixed", "allocated", "down", "idle*", "drained", "", "what"],
    &["4", "8", "1", "65536", "4+", "0", "many"],
    &["(null)", "ib", "ib,ssd", ",,"],
    &["NO", "EXCLUSIVE", "FORCE:4", ""],
];

/// Lines of words; the first half of those of each column three times as often.
fn lines(words: &'static [&'static [&'static str]], most: usize) -> impl Strategy<Value = String> {
    let field = |words: &'static [&'static str]| {
        let right = words.len().div_ceil(2);
        prop_oneof![7 => (0..right).boxed(), 1 => (0..words.len()).boxed()].prop_map(move |at| words[at])
    };
    let line =
        words.iter().map(|words| field(words)).collect::<Vec<_>>().prop_map(|fields| fields.join("|") + "\n");
    prop::collection::vec(line, 0..most).prop_map(|lines| lines.concat())
}

fn rules(queue: &Queue, policy: Policy) -> Rules {
    Rules { now_s: queue.now_s.unwrap_or(5000), policy, tiers: BTreeMap::new(), blocks: Vec::new() }
}

/// What is told of all jobs, if all run until their limits.
fn check(queue: &Queue, cluster: &Cluster, rules: &Rules) -> Result<Set, TestCaseError> {
    let set = scene::set(&queue.entries, cluster, rules, &[]);
    let all: Vec<usize> = (0..set.places.len()).collect();
    let told: BTreeSet<usize> = set.places.iter().chain(set.untold.keys()).copied().collect();
    // Each job of the queue is told of, or it is said why not.
    prop_assert_eq!(
        (told.len(), set.places.len() + set.untold.len()),
        (queue.entries.len(), queue.entries.len())
    );
    for (task, slot) in set.scene.replay(&until_limits(&set.scene), &all).into_iter().enumerate() {
        let entry = &queue.entries[set.places[task]];
        let Some(slot) = slot else { continue };
        let nodes = set.nodes(&slot.list);
        prop_assert!(slot.end_s > slot.start_s && slot.end_s > rules.now_s, "{:?} {:?}", entry, slot);
        if entry.state != State::Running {
            prop_assert!(slot.start_s >= rules.now_s, "{:?} {:?}", entry, slot);
            prop_assert!(nodes.iter().all(|place| cluster.is_up[*place]), "{:?} {:?}", entry, nodes);
            prop_assert!(nodes.len() >= entry.nodes as usize || set.is_shared, "{:?} {:?}", entry, nodes);
            let excluded = |place: &usize| entry.excluded.contains(&cluster.names[*place]);
            prop_assert!(!nodes.iter().any(excluded), "{:?} {:?}", entry, nodes);
        }
    }
    Ok(set)
}

proptest! {
    #[test]
    fn all_that_is_told_is_possible(
        jobs in lines(&WORDS, 12), nodes in lines(&NODE_WORDS, 6), policy in 0usize..3, whole: bool,
    ) {
        let policy = [Policy::Fcfs, Policy::Easy, Policy::Conservative][policy];
        let queue = tidepool_queue::read(&format!("{HEAD}\n{jobs}"));
        let nodes = if whole { "n[1-3]|p*|idle|8|ib|NO\nn[1-2]|q|idle|8|ib|NO\n".to_string() } else { nodes };
        let cluster = cluster::read(&format!("{NODE_HEAD}\n{nodes}"));
        for wrong in [queue.as_ref().err(), cluster.as_ref().err()].into_iter().flatten() {
            let said = wrong.to_string();
            prop_assert!(!said.is_empty() && said.len() < 600 && !said.chars().any(char::is_control), "{said:?}");
        }
        if let (Ok(queue), Ok(cluster)) = (queue, cluster) {
            check(&queue, &cluster, &rules(&queue, policy))?;
        }
    }
}

/// Arrays and chains as large as a queue may be take no more than moments to understand: nothing grows with the square of their size.
#[test]
fn large_arrays_and_chains_are_understood_in_time() {
    let head = "JOBID|USER|STATE|REASON|TIME_LIMIT|NODES|SUBMIT_TIME|DEPENDENCY|NAME\n";
    let begun = Instant::now();
    let throttled = "1_[1-40000%7]|a|PENDING|None|5:00|1|1000|(null)|x\n".to_string();
    let same = "2_[1-30000]|a|PENDING|Dependency|5:00|1|1000|aftercorr:1|y\n";
    let all = "3_[1-20000]|a|PENDING|Dependency|5:00|1|1000|afterok:1|z\n";
    let alone = "4_[1-9000]|b|PENDING|Dependency|5:00|1|1000|singleton|w\n";
    let queue = tidepool_queue::read(&[head, &throttled, same, all, alone].concat()).unwrap();
    let cluster = cluster::read("NODELIST|PARTITION|STATE\nn[1-4]|p|idle\n").unwrap();
    let set = scene::set(&queue.entries, &cluster, &rules(&queue, Policy::Fcfs), &[]);
    assert_eq!((set.places.len(), set.scene.after.len()), (99_000, 99_000));
    let waited = |job: u64, task: u32| {
        let at = set.places.iter().position(|place| {
            let id = queue.entries[*place].id;
            (id.job, id.task) == (job, Some(task))
        });
        let ends = set.scene.after[at.unwrap()].iter();
        ends.map(|end| set.places.get(*end).map(|place| queue.entries[*place].id.to_string()))
            .collect::<Vec<_>>()
    };
    assert_eq!(waited(1, 7), []);
    assert_eq!(waited(1, 40_000), [Some("1_39993".to_string())]);
    assert_eq!(waited(2, 30_000), [Some("1_30000".to_string())]);
    // 40,000 ends each for 20,000 jobs are more than are followed: of those beyond it is never said when they start.
    assert_eq!((waited(3, 1).len(), waited(3, 20_000)), (40_000, vec![None]));
    let ends: usize = set.scene.after.iter().map(Vec::len).sum();
    assert!(ends <= scene::ENDS_MAX + set.places.len(), "{ends}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
