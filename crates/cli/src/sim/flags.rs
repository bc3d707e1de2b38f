//! The command lines of `tidepool sim`.

use super::disk_flags::{CalibrateCommand, ValidateCommand};
use super::inputs_flags::{CONVERT, ConvertArgs, EXPERIMENT, ExperimentArgs};
use super::pfs_flags::{RUN, RunArgs, SCALE, ScaleArgs, TUNE, TuneArgs};
use super::sweep::flags::{SWEEP, SweepArgs};
use super::tiers::{TIERS, TiersArgs};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tidepool_sim::{Scheduler, THREADS_MAX, Time};

const PHOLD: &str = "\
Examples:
  tidepool sim phold                                        8192 processes for a second of virtual time
  tidepool sim phold --scheduler conservative --threads 2
  tidepool sim phold --scheduler optimistic --threads 2 --lookahead 1ns --remote 0.1
  tidepool sim phold --processes 64 --end 20ms --check-rollback    every event forward, back, forward
  tidepool sim phold --scheduler optimistic --threads 2 --force-rollbacks 7    goes back for no reason: same trace
  mpirun -n 4 tidepool sim phold --mpi --scheduler optimistic    over four ranks: same trace
  tidepool sim phold --end 100s --checkpoint phold.state --every 10s
  tidepool sim phold --end 200s --resume phold.state
Each process sends a message for each that it gets, to itself or (--remote) to any, after the lookahead plus an exponential
time. Runs with the same trace have handled the same events in the same order at each process, whatever the scheduler.
Exit codes: 1 it could not be done, 2 wrong usage, 130 stopped by Ctrl-C (what was done until then is told).";

/// Units of virtual time, in nanoseconds.
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
/// Most messages on their way at once.
pub const PENDING_MAX: u64 = 1 << 30;

#[derive(Subcommand)]
pub enum SimCommand {
    /// Measure the event kernel with the benchmark PHOLD
    #[command(after_help = PHOLD)]
    Phold(PholdArgs),
    /// Measure the simulator on the study of the paper: all clients open, read and close
    #[command(after_help = SCALE)]
    Scale(ScaleArgs),
    /// Simulate a parallel file system and what is done with it, from a file
    #[command(after_help = RUN)]
    Run(RunArgs),
    /// Search for the configuration of a parallel file system that does best
    #[command(after_help = TUNE)]
    Tune(TuneArgs),
    /// Run all configurations of some knobs, several at once or as a Slurm array
    #[command(after_help = SWEEP)]
    Sweep(SweepArgs),
    /// Turn a trace of another tool into requests for the simulator
    #[command(after_help = CONVERT)]
    Convert(ConvertArgs),
    /// Make an experiment of a trace of requests
    #[command(after_help = EXPERIMENT)]
    Experiment(ExperimentArgs),
    /// Fit a model to measurements
    #[command(subcommand)]
    Calibrate(CalibrateCommand),
    /// Compare a model with measurements that it was not fitted to
    #[command(subcommand)]
    Validate(ValidateCommand),
    /// Simulate applications on storage tiers under the strategies of pools
    #[command(after_help = TIERS)]
    Tiers(TiersArgs),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SchedulerFlag {
    /// One thread
    Sequential,
    /// Threads that handle windows as long as the lookahead
    Conservative,
    /// Threads that run ahead, and go back when a message comes too late
    Optimistic,
}

impl SchedulerFlag {
    pub fn scheduler(self) -> Scheduler {
        match self {
            SchedulerFlag::Sequential => Scheduler::Sequential,
            SchedulerFlag::Conservative => Scheduler::Conservative,
            SchedulerFlag::Optimistic => Scheduler::Optimistic,
        }
    }
}

#[derive(Args)]
pub struct PholdArgs {
    /// Logical processes
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub processes: u32,
    /// Messages that each process starts with
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub messages: u32,
    /// Bytes of a message, all written and read: 8, 16, 32, 64, 128, 256, 512 or 1024
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub message_bytes: usize,
    /// Probability that a message goes to a process drawn from all, 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.25", value_parser = share)]
    pub remote: f64,
    /// The least delay of a message
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = span)]
    pub lookahead: Time,
    /// Mean of the exponential part of a delay
    #[arg(long, value_name = "TIME", default_value = "900us", value_parser = span)]
    pub mean: Time,
    /// Virtual time to be simulated, as 20ms or 3s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    pub end: Time,
    #[arg(long, value_enum, default_value = "sequential", conflicts_with = "check_rollback")]
    pub scheduler: SchedulerFlag,
    /// Threads of the parallel schedulers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = threads)]
    pub threads: usize,
    /// One of the ranks of mpirun, which run the model together; --threads is of each of them
    #[arg(long)]
    pub mpi: bool,
    /// Of the random streams
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Optimistic: events that a thread may have handled beyond what is certain
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    pub ahead: u32,
    /// Handle every event, undo it, handle it again, and compare; one thread
    #[arg(long)]
    pub check_rollback: bool,
    /// Optimistic: set processes back at random moments for no reason, with this seed; results are the same
    #[arg(long, value_name = "SEED")]
    pub force_rollbacks: Option<u64>,
    /// Keep the state in this file, at the end and when Ctrl-C ends the run early (docs/formats/26-simulation.md)
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// With --checkpoint: also each time that so much virtual time has passed
    #[arg(long, value_name = "TIME", value_parser = span, requires = "checkpoint")]
    pub every: Option<Time>,
    /// Go on where this checkpoint was made, with the same model and any scheduler
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    number.ok_or_else(|| format!("1 to {THREADS_MAX}"))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a number from 0 to 1".to_string())
}

/// `900us`.
pub fn span(text: &str) -> Result<Time, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    let (Ok(number), Some(scale)) = (number.parse::<u64>(), scale) else {
        return Err("write a whole number and ns, us, ms or s: 900us".to_string());
    };
    let ticks = number.checked_mul(scale).filter(|ticks| *ticks <= Time::MAX.0);
    ticks.map(Time).ok_or_else(|| format!("at most {} s", Time::MAX.0 / 1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ticks) in [("1ns", 1), ("900us", 900_000), ("20ms", 20_000_000), ("3s", 3_000_000_000)] {
            assert_eq!(span(text), Ok(Time(ticks)), "{text}");
        }
        for text in ["", "5", "us", "1.5ms", "-1s", "5 s", "5h", "99999999999999999999s"] {
            assert!(span(text).unwrap_err().contains("900us"), "{text}");
        }
        assert!(span("4611686019s").unwrap_err().contains("at most 4611686018 s"));
    }
}
