//! What a process costs: a million of them have to fit into 8 GiB. Alone in its program, because it reads the most memory that
//! the program ever used.

use tidepool_sim::phold::Phold;
use tidepool_sim::{Options, Scheduler, Simulation, Time};

const PROCESSES: u32 = 200_000;
/// 64 bytes are the process's, with its message 150; the queue, the past and the room that vectors keep are the rest.
const BYTES_MAX: u64 = 600;

fn most_used() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn processes_cost_little() {
    let before = most_used();
    for (scheduler, threads) in
        [(Scheduler::Sequential, 1), (Scheduler::Conservative, 2), (Scheduler::Optimistic, 2)]
    {
        let (lookahead, mean) = (Time(100_000), Time(900_000));
        let model = Phold::<8> { processes: PROCESSES, messages: 1, remote: 0.25, lookahead, mean };
        let mut simulation = Simulation::new(model, 1).unwrap();
        let options = Options { scheduler, threads, ..Options::default() };
        let report = simulation.run(Time(1_000_000), &options).unwrap();
        assert!(report.events > u64::from(PROCESSES) / 2);
        let each = (most_used() - before) / u64::from(PROCESSES);
        println!("{scheduler:?}: at most {each} bytes for each process until here");
        assert!(
            each > 100,
            "{scheduler:?}: {each} bytes hold no process and its message: this measures nothing"
        );
        assert!(each < BYTES_MAX, "{scheduler:?}: {each} bytes for each process");
    }
}
