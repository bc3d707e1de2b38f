//! What a real `sacct` wrote: Slurm 22.05.8 of Debian, on a cluster of two nodes with accounts (`test-cluster --accounting`).

use tidepool_joblog::{Job, Log, Options, Repairs, Status, read};

/// `sacct -a --parsable2 --format=...` with the columns that `tidepool jobs describe` asks for.
const BARS: &[u8] = include_bytes!("data/sacct-22.05.txt");
/// `sacct -a --parsable2 --format=ALL`, packed; directories renamed. A job's name and the line that submitted it have bars.
const ALL: &[u8] = include_bytes!("data/sacct-22.05-all.txt.gz");
/// `sacct -a --json`, packed; directories renamed.
const JSON: &[u8] = include_bytes!("data/sacct-22.05.json.gz");

fn of(bytes: &[u8]) -> Log {
    read(bytes, &Options::default()).unwrap()
}

#[test]
fn a_cluster_tells_its_jobs() {
    let log = of(BARS);
    let told: Vec<_> = log.jobs.iter().map(|job| (job.number, job.status, job.run_s, job.waited_s)).collect();
    let wanted = [
        // Two parts of one job.
        (8, Status::Failed, 1, Some(0)),
        (9, Status::Failed, 1, Some(0)),
        (11, Status::Completed, 4, Some(0)),
        // An array; its name has a bar.
        (13, Status::Completed, 2, Some(0)),
        (12, Status::Completed, 2, Some(0)),
        (14, Status::Failed, 2, Some(0)),
        (15, Status::Cancelled, 14, Some(0)),
        (18, Status::Completed, 1, Some(2)),
    ];
    assert_eq!(told, wanted);
    // Times are those of the first one that ran.
    assert_eq!(log.header.unix_start_s, Some(1_795_475_537));
    let names = |job: &Job| {
        let users = log.names.users[&job.user.unwrap()].as_str();
        (
            users,
            log.names.executables[&job.executable.unwrap()].as_str(),
            log.names.node_lists[&job.node_list.unwrap()].as_str(),
        )
    };
    assert_eq!(
        (names(&log.jobs[4]), names(&log.jobs[5])),
        (("alice", "a|b", "node1"), ("bob", "wrap", "node[1-2]"))
    );
    let fourteen = log.jobs[5];
    assert_eq!((fourteen.processors, fourteen.nodes, fourteen.request_s), (2, Some(2), 3600));
    assert_eq!(fourteen.requested_memory_kib, Some(1024));
    let repairs = log.repairs;
    assert_eq!((repairs.steps, repairs.unfinished, repairs.never_ran, repairs.unreadable), (16, 3, 7, 0));
}

#[test]
fn all_columns_say_the_same() {
    let (few, all) = (of(BARS), of(ALL));
    assert_eq!(all.jobs.len(), few.jobs.len());
    for (one, other) in all.jobs.iter().zip(&few.jobs) {
        assert_eq!(
            (one.number, one.run_s, one.processors, one.status),
            (other.number, other.run_s, other.processors, other.status)
        );
        assert_eq!((one.waited_s, one.request_s, one.nodes), (other.waited_s, other.request_s, other.nodes));
    }
}

/// JSON of this version says no user where Slurm has no associations, and names the steps in another place.
#[test]
fn json_says_the_same() {
    let (bars, json) = (of(BARS), of(JSON));
    // Parts of an array of the same second stand in another order.
    let plain = |log: &Log| -> Vec<Job> {
        let mut jobs: Vec<Job> = log.jobs.iter().map(|job| Job { user: None, ..*job }).collect();
        jobs.sort_by_key(|job| (job.submit_s, job.number));
        jobs
    };
    assert_eq!(plain(&json), plain(&bars));
    assert_eq!(
        (&json.names.executables, &json.names.node_lists),
        (&bars.names.executables, &bars.names.node_lists)
    );
    assert_eq!((json.header, json.names.users.len()), (bars.header, 0));
    let few = |repairs: Repairs| Repairs { steps: 0, odd_length: 0, ..repairs };
    assert_eq!(few(json.repairs), few(bars.repairs));
}
