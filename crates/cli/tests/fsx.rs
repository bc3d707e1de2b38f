//! F15: a long random sequence of reads, writes, truncations, maps and the like on one file, each read compared
//! with what must be there, by fsx. It runs through every door.
//!
//! `TIDEPOOL_FSX_OPS` sets how many operations there are, `TIDEPOOL_SEED` repeats a sequence.

mod common;

use common::{Sandbox, doors, run_bounded, text, tool};
use std::path::Path;
use std::time::{Duration, Instant};
use tidepool_testkit::Rng;

/// Operations when nothing else is asked for.
const OPS_DEFAULT: u64 = 20_000;
/// Operations of one process. fsx never unmaps what it has read through maps, and the kernel allows 65,530 maps.
const OPS_PER_PROCESS: u64 = 100_000;
/// Operations of the runs that must find a left out one.
const OPS_INJECTED: u64 = 1000;
/// Largest size of the file: some chunks on each daemon.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// The same for the runs on a file that a daemon keeps in a page, and their share of the operations.
const SMALL_BYTES_MAX: u64 = 4_072;
const SMALL_SHARE: u64 = 10;
/// How long an operation may take on average before the run counts as hanging, above a start of a minute.
const OP_MS_MAX: u64 = 10;

/// Weights of the operations through a door.
fn config(door: &str, bytes_max: u64) -> String {
    // Operations of no bytes are left out: fsx takes the EINVAL that posix_fallocate must give them for its absence.
    // The preload door has no room for maps that are never unmapped.
    let mapread = if door == "preload" { 0 } else { 10 };
    format!(
        "flen = {bytes_max}\n[opsize]\nmin = 1\nmax = {}\n[weights]\n\
         close_open = 1\ninvalidate = 1\nmapread = {mapread}\nmapwrite = 10\nread = 10\nwrite = 10\ntruncate = 5\n\
         fsync = 0.1\nfdatasync = 0.1\nposix_fallocate = 3\npunch_hole = 3\nsendfile = 1\nposix_fadvise = 1\n\
         copy_file_range = 1\n",
        (bytes_max / 4).max(1024)
    )
}

/// fsx on a file of the running pool.
struct Fsx<'a> {
    program: &'a Path,
    sandbox: &'a Sandbox,
    door: &'a str,
    bytes_max: u64,
}

impl Fsx<'_> {
    /// One process; what it said, when it found a difference.
    fn run(&self, seed: u64, ops: u64, extra: &[&str]) -> Result<(), String> {
        let settings = self.sandbox.path("fsx.toml");
        std::fs::write(&settings, config(self.door, self.bytes_max)).unwrap();
        let mut command = self.sandbox.tidepool(&["exec", "--client", self.door, "--"]);
        command.arg(self.program).arg("-f").arg(settings).arg("-P").arg(self.sandbox.dir.path());
        command.args(["-N", &ops.to_string(), "-S", &seed.to_string()]).args(extra).arg("file");
        if self.bytes_max == SMALL_BYTES_MAX {
            // Through shared memory it would be lent, and so moved to files, after a few writes.
            command.env("TIDEPOOL_TRANSPORT", "socket");
        }
        let max = Duration::from_secs(60) + Duration::from_millis(OP_MS_MAX * ops);
        let (status, said) = run_bounded(&mut command, &self.sandbox.path("fsx.log"), max)?;
        if status.success() && said.contains("All operations completed A-OK!") {
            return Ok(());
        }
        let last: Vec<&str> = said.lines().rev().take(40).collect();
        Err(format!("{status}\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n")))
    }
}

#[test]
fn f15_random_operations_match_through_every_door() {
    let Some(program) = tool("fsx") else { return };
    let mut rng = Rng::from_env("f15_random_operations_match_through_every_door");
    let ops: u64 =
        std::env::var("TIDEPOOL_FSX_OPS").map_or(OPS_DEFAULT, |ops| ops.parse().expect("a number"));
    println!("limits: TIDEPOOL_FSX_OPS={ops} operations, {FILE_BYTES_MAX} bytes of file");
    let rounds: Vec<(u64, u64)> = (0..ops)
        .step_by(OPS_PER_PROCESS as usize)
        .map(|done| (rng.next_u64(), (ops - done).min(OPS_PER_PROCESS)))
        .collect();
    for door in doors() {
        let sandbox = Sandbox::new();
        sandbox.ok(&["pool", "start", "--nodes", "3", "--client", door, "--chunk-size", "64KiB"]);
        let fsx = Fsx { program: &program, sandbox: &sandbox, door, bytes_max: FILE_BYTES_MAX };
        let small = Fsx { bytes_max: SMALL_BYTES_MAX, ..fsx };
        let began = Instant::now();
        for (seed, ops) in &rounds {
            for (fsx, ops) in [(&fsx, *ops), (&small, ops.div_ceil(SMALL_SHARE))] {
                let passed = fsx.run(*seed, ops, &[]);
                assert!(passed.is_ok(), "fsx -S {seed} -N {ops} through {door}: {}", passed.unwrap_err());
            }
        }
        println!("{door}: {:.1} s", began.elapsed().as_secs_f64());
        let check = sandbox.tidepool(&["check"]).output().unwrap();
        assert!(check.status.success(), "check after fsx through {door}: {}", text(&check));
        sandbox.ok(&["pool", "stop"]);
        sandbox.assert_nothing_left(door);
    }
}

/// With one change left out fsx must find a difference: otherwise it would not be looking at the pool.
#[test]
fn fsx_notices_a_change_left_out() {
    let Some(program) = tool("fsx") else { return };
    for door in doors() {
        let sandbox = Sandbox::new();
        sandbox.ok(&["pool", "start", "--nodes", "2", "--client", door]);
        let fsx = Fsx { program: &program, sandbox: &sandbox, door, bytes_max: FILE_BYTES_MAX };
        assert_eq!(fsx.run(1, OPS_INJECTED, &[]), Ok(()), "{door}");
        // Some of these operations change the file.
        let noticed = (50..70).any(|at| fsx.run(1, OPS_INJECTED, &["--inject", &at.to_string()]).is_err());
        assert!(noticed, "{door}");
        sandbox.ok(&["pool", "stop"]);
    }
}
