//! What an application is. The papers: S0 is Soysal and Streit, "Ad-hoc file systems at extreme scales" (ForHLR II);
//! S3 is "IAS: interference-aware scheduling". Where they give no number the comment says that it is ours.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bytes of a transfer. Ours.
const TRANSFER: u64 = 1 << 20;
/// What is computed at each step where no paper says it. Ours.
const COMPUTE: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    /// Of its directory.
    pub name: String,
    /// After the first application.
    pub start: Duration,
    pub processes: u32,
    /// Time steps.
    pub steps: u64,
    /// A step that is a multiple of this does I/O.
    pub every: u64,
    /// Bytes of one read or write; the last one of a file may be shorter.
    pub transfer: u64,
    /// Whether data are synced before a file is closed. Not said by any paper; programs of these kinds do not.
    pub fsync: bool,
    /// Of random orders, and of the data.
    pub seed: u64,
    pub pace: Pace,
    pub kind: Kind,
}

/// How long each step computes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Pace {
    Compute(Duration),
    /// So long that I/O is this share of the time.
    Ratio {
        io: f64,
        /// How long the I/O of one step takes without others; measured without.
        alone: Option<Duration>,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Kind {
    Phases(Phases),
    Wrf(Wrf),
    Sph(Sph),
    OpenFoam(OpenFoam),
    Nastja(Nastja),
}

/// K17, the synthetic benchmark of S3 §IV-B: compute and write in turn.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phases {
    /// Of each process and step.
    pub bytes: u64,
    pub pattern: Pattern,
    pub layout: Layout,
    /// Transfers from one to the next with the pattern `strided` in files of their own. Ours.
    pub stride: u64,
}

/// K16, WRF as S3 §IV-C tells of it: read input, compute, periodically write checkpoints, write the result; "it uses all
/// processes to simultaneously perform the I/O". It gives no sizes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wrf {
    /// Of each process.
    pub input_bytes: u64,
    /// Of each process and checkpoint.
    pub checkpoint_bytes: u64,
    /// Of each process.
    pub output_bytes: u64,
    pub layout: Layout,
}

/// E1 and E2, super_sph as S0 §5.1 tells of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sph {
    /// Of each process and written step.
    pub bytes: u64,
    pub mode: SphMode,
    /// Processes that gather, in turn a step each.
    pub gatherers: u32,
}

/// E3, OpenFOAM as S0 §5.2 tells of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenFoam {
    /// Of each process and written step.
    pub files: u32,
    pub file_bytes: u64,
}

/// E5, NAStJA as S0 §5.3 tells of it: a file for each block and written step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nastja {
    /// Of each process's block.
    pub block_bytes: u64,
}

/// How a process goes through its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Pattern {
    Sequential,
    /// In a shared file: transfers of the processes in turn. In files of their own: every so manyth, then those after
    /// them, and so on.
    Strided,
    /// Of a process's own part, in a random order.
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Layout {
    /// A file for each process.
    PerProcess,
    /// One file for all, in which each process has its part.
    Shared,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SphMode {
    /// "A file per process and required data-gathering as post-processing".
    Gather,
    /// "Writing directly to time steps using MPI-IO".
    Direct,
}

impl Application {
    /// S3 §IV-B1: 32 processes, 1 GB of each in each I/O phase, 5 repeats. The ratio is the middle of its sweep from 0.8
    /// to 0.2; that processes have files of their own, in which they write from the start, is ours.
    pub fn phases() -> Application {
        let kind = Phases {
            bytes: 1_000_000_000,
            pattern: Pattern::Sequential,
            layout: Layout::PerProcess,
            stride: 8,
        };
        let pace = Pace::Ratio { io: 0.5, alone: None };
        Application { processes: 32, steps: 5, pace, ..Application::of("phases", Kind::Phases(kind)) }
    }

    /// 32 processes are one node of S3 §IV-B3. All else is ours.
    pub fn wrf() -> Application {
        let kind = Wrf {
            input_bytes: 16_000_000,
            checkpoint_bytes: 64_000_000,
            output_bytes: 64_000_000,
            layout: Layout::Shared,
        };
        Application { processes: 32, steps: 20, every: 5, ..Application::of("wrf", Kind::Wrf(kind)) }
    }

    /// S0 §5.1: 256 nodes, which have 20 cores (§5.3), and up to 10⁹ particles on 15,000 cores, which is 66,667 on
    /// each. 64 bytes for each particle, the steps and one process that gathers are ours.
    pub fn sph() -> Application {
        let kind = Sph { bytes: 66_667 * 64, mode: SphMode::Gather, gatherers: 1 };
        Application { processes: 256 * 20, steps: 10, ..Application::of("sph", Kind::Sph(kind)) }
    }

    /// S0 §5.2: 240 nodes, 4,800 processes, 95 files of each with about 0.2 MB. (Its 25 MB of each process would be
    /// 0.26 MB a file.) The steps and transfers are ours.
    pub fn openfoam() -> Application {
        let kind = OpenFoam { files: 95, file_bytes: 200_000 };
        let all = Application::of("openfoam", Kind::OpenFoam(kind));
        Application { processes: 4800, steps: 20, every: 10, transfer: 64 << 10, ..all }
    }

    /// S0 §5.3: 4,800 processes, one block of 1 MB each, every 20th of 100,000 steps. That a block is written at once
    /// and that a step takes 10 ms is ours.
    pub fn nastja() -> Application {
        let all = Application::of("nastja", Kind::Nastja(Nastja { block_bytes: 1_000_000 }));
        let pace = Pace::Compute(Duration::from_millis(10));
        Application { processes: 4800, steps: 100_000, every: 20, transfer: 1_000_000, pace, ..all }
    }

    fn of(name: &str, kind: Kind) -> Application {
        Application {
            name: name.into(),
            start: Duration::ZERO,
            processes: 1,
            steps: 1,
            every: 1,
            transfer: TRANSFER,
            fsync: false,
            seed: 1,
            pace: Pace::Compute(COMPUTE),
            kind,
        }
    }

    /// How long each step computes. `measured` is what the I/O of the first step with any took; none before it is
    /// known, when a pace that needs it computes nothing.
    pub fn compute(&self, measured: Option<Duration>) -> Duration {
        match self.pace {
            Pace::Compute(each) => each,
            Pace::Ratio { io, alone } => {
                let io_time = alone.or(measured).unwrap_or_default();
                // Over the steps from one with I/O to the next.
                io_time.mul_f64((1.0 - io) / io) / u32::try_from(self.every.max(1)).unwrap_or(u32::MAX)
            }
        }
    }

    /// Whether the time that a step computes has to be measured.
    pub fn needs_measuring(&self) -> bool {
        matches!(self.pace, Pace::Ratio { alone: None, .. })
    }

    /// Steps that do I/O.
    pub fn written_steps(&self) -> u64 {
        self.steps / self.every.max(1)
    }
}

impl Kind {
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Phases(_) => "phases",
            Kind::Wrf(_) => "wrf",
            Kind::Sph(_) => "sph",
            Kind::OpenFoam(_) => "openfoam",
            Kind::Nastja(_) => "nastja",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_makes_compute_time_of_io_time() {
        let mut all = Application::phases();
        let seconds = Duration::from_secs;
        for (io, wanted) in [(0.8, 2), (0.5, 8), (0.2, 32)] {
            all.pace = Pace::Ratio { io, alone: None };
            let each = all.compute(Some(seconds(8))).as_secs_f64();
            assert!((each - f64::from(wanted)).abs() < 1e-6, "{io}: {each}");
            assert_eq!(all.compute(None), Duration::ZERO);
        }
        all.pace = Pace::Ratio { io: 0.5, alone: Some(seconds(3)) };
        assert_eq!((all.compute(None), all.compute(Some(seconds(9)))), (seconds(3), seconds(3)));
        all.every = 3;
        assert_eq!(all.compute(None), seconds(1));
    }

    #[test]
    fn applications_survive_their_json() {
        for all in [Application::phases(), Application::wrf(), Application::sph(), Application::nastja()] {
            let text = serde_json::to_string(&all).unwrap();
            assert_eq!(serde_json::from_str::<Application>(&text).unwrap(), all);
        }
    }
}
