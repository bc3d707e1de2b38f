//! `tidepool sim --mpi`, in builds with MPI and without.

mod common;

use common::{Sandbox, text};

#[test]
#[cfg(not(feature = "mpi"))]
fn without_mpi_it_is_a_clear_error() {
    let sandbox = Sandbox::new();
    let refused = sandbox.tidepool(&["sim", "phold", "--mpi", "--end", "1ms"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(
        text(&refused).contains("cargo build --release -p tidepool-cli --features mpi"),
        "{}",
        text(&refused)
    );
}

#[cfg(feature = "mpi")]
mod ranks {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use serde_json::Value;
    use std::process::{Child, Command, Output, Stdio};
    use std::time::{Duration, Instant};

    /// Longest time that ranks may take to end.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn mpirun(sandbox: &Sandbox, ranks: usize, line: &str) -> Command {
        let tidepool = sandbox.tidepool(&[]);
        let mut command = Command::new("mpirun.openmpi");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]);
        command.arg(tidepool.get_program()).arg("sim").args(line.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(sandbox: &Sandbox, ranks: usize, line: &str) -> Output {
        mpirun(sandbox, ranks, line).output().expect("mpirun is there")
    }

    fn json(output: &Output, what: &str) -> Value {
        assert!(output.status.success(), "{what}: {}", text(output));
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{what}: {error}: {}", text(output)))
    }

    #[test]
    fn ranks_come_to_the_same_as_one_thread() {
        let sandbox = Sandbox::new();
        let model = "phold --processes 300 --end 20ms --lookahead 5us --seed 5 --json";
        let arguments: Vec<&str> = ["sim"].into_iter().chain(model.split_whitespace()).collect();
        let expected = json(&sandbox.tidepool(&arguments).output().unwrap(), "alone");
        for (ranks, how) in [
            (1, "--scheduler sequential"),
            (1, "--scheduler conservative"),
            (2, "--scheduler conservative"),
            (2, "--scheduler conservative --threads 2"),
            (1, "--scheduler optimistic"),
            (2, "--scheduler optimistic"),
            (2, "--scheduler optimistic --threads 2"),
            (2, "--scheduler optimistic --force-rollbacks 3"),
            (3, "--scheduler optimistic --ahead 1"),
        ] {
            // Rank 0 alone prints: two would be no JSON.
            let seen = json(&run(&sandbox, ranks, &format!("{model} --mpi {how}")), how);
            for what in ["events", "reached_ns", "complete", "trace"] {
                assert_eq!(seen["result"][what], expected["result"][what], "{ranks} ranks, {how}: {what}");
            }
            assert_eq!(seen["ranks"], ranks, "{how}");
            if how.contains("force") {
                assert!(seen["result"]["undone"].as_u64().unwrap() > 500, "{seen}");
            }
        }
    }

    #[test]
    fn the_papers_study_comes_to_the_same_over_ranks() {
        let sandbox = Sandbox::new();
        let model = "scale --clients 60 --servers 17 --reads 3 --json";
        let arguments: Vec<&str> = ["sim"].into_iter().chain(model.split_whitespace()).collect();
        let expected = json(&sandbox.tidepool(&arguments).output().unwrap(), "alone");
        for how in
            ["--scheduler conservative", "--scheduler optimistic", "--scheduler optimistic --threads 2"]
        {
            let seen = json(&run(&sandbox, 2, &format!("{model} --mpi {how}")), how);
            for what in ["events", "complete", "trace", "requests", "bytes_read", "virtual_ns"] {
                assert_eq!(seen["result"][what], expected["result"][what], "{how}: {what}");
            }
            assert_eq!(seen["result"]["ranks"], 2, "{how}");
        }
    }

    /// An experiment with caches, failures and records; every file that rank 0 writes is that of one process.
    #[test]
    fn an_experiment_comes_to_the_same_over_ranks() {
        let sandbox = Sandbox::new();
        let system = "[server.cache]\nsize = \"256KiB\"\n[[failure]]\nserver = 1\nat = \"2ms\"\nrepair = \"9ms\"\n\
            [[device]]\nname = \"d\"\nkind = \"hdd\"\nrandom = \"uniform 1ms 3ms\"\nscheduler = \"elevator\"\nbusy-power = \"8W\"\n\
            [[servers]]\nname = \"s\"\ncount = 5\ndevice = \"d\"\n\
            [[workload]]\nname = \"w\"\nkind = \"ior\"\nranks = 6\nblock = \"512KiB\"\ntransfer = \"128KiB\"\norder = \"random\"\nbarrier = true\nfsync = true\n";
        let experiment = sandbox.path("x.toml");
        std::fs::write(&experiment, system).unwrap();
        let line = |name: &str| {
            let [csv, pieces] = ["csv", "pieces"].map(|kind| sandbox.path(&format!("{name}.{kind}")));
            format!(
                "run {} --json --csv {} --sub-requests {}",
                experiment.display(),
                csv.display(),
                pieces.display()
            )
        };
        let alone = format!("sim {}", line("alone"));
        let arguments: Vec<&str> = alone.split_whitespace().collect();
        let expected = json(&sandbox.tidepool(&arguments).output().unwrap(), "alone");
        for (ranks, how) in [
            (1, "--scheduler sequential"),
            (2, "--scheduler conservative"),
            (2, "--scheduler optimistic --threads 2"),
            (3, "--scheduler optimistic"),
        ] {
            let seen = json(&run(&sandbox, ranks, &format!("{} --mpi {how}", line("ranks"))), how);
            assert_eq!(seen["result"], expected["result"], "{ranks} ranks, {how}");
            assert_eq!(
                (&seen["run"]["trace"], &seen["run"]["ranks"]),
                (&expected["run"]["trace"], &ranks.into())
            );
            for kind in ["csv", "pieces"] {
                let [ours, theirs] = ["ranks", "alone"]
                    .map(|name| std::fs::read_to_string(sandbox.path(&format!("{name}.{kind}"))).unwrap());
                assert!(ours == theirs && ours.lines().count() > 24, "{ranks} ranks, {how}: {kind}");
            }
        }
    }

    /// Applications on tiers: every strategy, with all that is told of it.
    #[test]
    fn tiers_come_to_the_same_over_ranks() {
        let sandbox = Sandbox::new();
        let file = sandbox.path("tiers.toml");
        let text = "[burst]\ncapacity = \"100GB\"\nservers = 2\nsequential = [[1, \"200MB\"], [8, \"400MB\"]]\n\
            [pfs]\ncapacity = \"900GB\"\nservers = 3\nsequential = [[1, \"100MB\"]]\n[transfers]\nchunk = \"1MB\"\n\
            [[application]]\nname = \"app\"\nkind = \"phases\"\ncopies = 3\nprocesses = 4\nbytes = \"25MB\"\nsteps = 2\ncompute-seconds = 1\n";
        std::fs::write(&file, text).unwrap();
        let line = format!("tiers {} --json --seed 3", file.display());
        let alone = format!("sim {line}");
        let arguments: Vec<&str> = alone.split_whitespace().collect();
        let expected = json(&sandbox.tidepool(&arguments).output().unwrap(), "alone");
        assert!(expected["strategies"].as_array().unwrap().len() >= 4, "{expected}");
        for (ranks, how) in [
            (1, "--scheduler sequential"),
            (2, "--scheduler conservative"),
            (2, "--scheduler optimistic"),
            (2, "--scheduler optimistic --threads 2 --force-rollbacks 3"),
        ] {
            let seen = json(&run(&sandbox, ranks, &format!("{line} --mpi {how}")), how);
            assert_eq!(seen["strategies"], expected["strategies"], "{ranks} ranks, {how}");
        }
        let refused = run(&sandbox, 2, &format!("{line} --mpi"));
        assert_eq!(refused.status.code(), Some(2), "{}", self::text(&refused));
    }

    /// An experiment that was kept by one process goes on over ranks, and the other way round; checkpoints are the same bytes.
    #[test]
    fn an_experiment_goes_on_over_ranks() {
        let sandbox = Sandbox::new();
        let system = "[server.cache]\nsize = \"256KiB\"\n\
            [[device]]\nname = \"d\"\nkind = \"hdd\"\nrandom = \"uniform 1ms 3ms\"\nscheduler = \"elevator\"\n\
            [[servers]]\nname = \"s\"\ncount = 5\ndevice = \"d\"\n\
            [[workload]]\nname = \"w\"\nkind = \"ior\"\nranks = 6\nblock = \"512KiB\"\ntransfer = \"128KiB\"\nbarrier = true\nfsync = true\n";
        let experiment = sandbox.path("x.toml");
        std::fs::write(&experiment, system).unwrap();
        let file = |name: &str| sandbox.path(name).display().to_string();
        let line = |name: &str, more: &str| {
            let csv = file(&format!("{name}.csv"));
            format!("run {} --json --csv {csv} {more}", experiment.display())
        };
        let alone = |line: String| {
            let line = format!("sim {line}");
            let arguments: Vec<&str> = line.split_whitespace().collect();
            json(&sandbox.tidepool(&arguments).output().unwrap(), &line)
        };
        let expected = alone(line("whole", ""));
        let keep = |name: &str| format!("--every 5ms --checkpoint {}", file(name));
        let ours = alone(line("ours", &keep("ours")));
        let over = format!("--mpi --scheduler optimistic {}", keep("theirs"));
        let theirs = json(&run(&sandbox, 2, &line("theirs", &over)), "over ranks");
        let resume = format!("--mpi --scheduler conservative --threads 2 --resume {}", file("ours"));
        let resumed = json(&run(&sandbox, 2, &line("ours", &resume)), "resumed");
        for seen in [ours, theirs, resumed] {
            assert_eq!(seen["result"], expected["result"]);
            assert_eq!(seen["run"]["trace"], expected["run"]["trace"]);
        }
        let read = |name: &str| std::fs::read(sandbox.path(name)).unwrap();
        assert!(read("ours") == read("theirs"), "checkpoints differ");
        assert!(read("ours.csv") == read("whole.csv") && read("theirs.csv") == read("whole.csv"));
    }

    #[test]
    fn ranks_go_on_from_a_checkpoint_and_make_one() {
        let sandbox = Sandbox::new();
        let model = "phold --processes 90 --seed 3 --json";
        let (ours, theirs) = (sandbox.path("ours"), sandbox.path("theirs"));
        let part = |file: &std::path::Path| format!("--end 9ms --every 4ms --checkpoint {}", file.display());
        let line = format!("sim {model} {}", part(&ours));
        let arguments: Vec<&str> = line.split_whitespace().collect();
        json(&sandbox.tidepool(&arguments).output().unwrap(), "alone");
        json(
            &run(&sandbox, 2, &format!("{model} --mpi --scheduler optimistic {}", part(&theirs))),
            "over ranks",
        );
        assert!(std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap(), "checkpoints differ");
        let resume = format!("{model} --mpi --scheduler conservative --end 15ms --resume {}", ours.display());
        let seen = json(&run(&sandbox, 2, &resume), "resumed");
        let whole = format!("sim {model} --end 15ms");
        let arguments: Vec<&str> = whole.split_whitespace().collect();
        let expected = json(&sandbox.tidepool(&arguments).output().unwrap(), "whole");
        assert_eq!(seen["result"]["trace"], expected["result"]["trace"]);
    }

    #[test]
    fn what_ranks_cannot_do_is_told_once() {
        let sandbox = Sandbox::new();
        let refused = run(&sandbox, 2, "phold --mpi --end 1ms");
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert_eq!(
            text(&refused).matches("--scheduler conservative or optimistic").count(),
            1,
            "{}",
            text(&refused)
        );
        let refused = run(&sandbox, 2, "phold --mpi --end 1ms --scheduler optimistic --resume not-there");
        assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
        assert!(text(&refused).contains("not-there"), "{}", text(&refused));
    }

    /// Ranks that mpirun has started: its children.
    fn ranks_of(mpirun: &Child) -> Vec<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", mpirun.id());
        let children = std::fs::read_to_string(path).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// An endless run whose ranks are at work.
    fn endless(sandbox: &Sandbox, scheduler: &str) -> (Child, Vec<Pid>) {
        let line = format!("phold --mpi --processes 50 --end 100000s --scheduler {scheduler}");
        let mut child = mpirun(sandbox, 2, &line).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            let ranks = ranks_of(&child);
            // Half a second of processor time each: far behind the start.
            let busy = |pid: &Pid| {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                    .unwrap_or_default();
                let ticks =
                    stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(12)?.parse::<u64>().ok());
                ticks.unwrap_or(0) > 50
            };
            if ranks.len() == 2 && ranks.iter().all(busy) {
                return (child, ranks);
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("no ranks at work");
    }

    fn ends(mut child: Child, ranks: &[Pid]) -> std::process::ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "mpirun does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        // mpirun kills them, and does not wait until they are gone.
        let there = |rank: &Pid| std::path::Path::new(&format!("/proc/{}", rank.as_raw_nonzero())).exists();
        while ranks.iter().any(there) {
            assert!(Instant::now() < deadline, "a rank is left");
            std::thread::sleep(Duration::from_millis(20));
        }
        status
    }

    #[test]
    fn a_killed_rank_ends_the_other() {
        let sandbox = Sandbox::new();
        for (scheduler, killed) in [("conservative", 0), ("optimistic", 1)] {
            let (child, ranks) = endless(&sandbox, scheduler);
            kill_process(ranks[killed], Signal::KILL).unwrap();
            let status = ends(child, &ranks);
            assert!(!status.success(), "{scheduler}: {status}");
        }
    }

    #[test]
    fn ctrl_c_on_mpirun_ends_all() {
        let sandbox = Sandbox::new();
        let (child, ranks) = endless(&sandbox, "optimistic");
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
        let status = ends(child, &ranks);
        assert!(!status.success(), "{status}");
    }
}
