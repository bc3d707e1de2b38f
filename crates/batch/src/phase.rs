//! How a job with directives comes and goes.
//!
//! ```text
//! submitted ─▶ checked ─▶ staging-in ─▶ ready ─▶ starting ─▶ running ─▶ staging-out ─▶ staged-out ─▶ done
//!     │           │           │           │         │                        │
//!     │           │           │           │         │                        └─▶ stage-out-failed ─▶ done
//!     └───────────┴───────────┴───────────┴─────────┴────────▶ failed, cancelled
//! ```
//! A job that the batch system queues again, as after the death of a node, is `submitted` once more.

use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Its directives are accepted.
    Submitted,
    /// What it reads has been looked at.
    Checked,
    /// Its data are on their way, before it has started, to nodes that a reservation has fixed.
    StagingIn,
    /// They are there.
    Ready,
    /// It has nodes, which are made ready: data, pool.
    Starting,
    /// Its program runs.
    Running,
    /// Its program has ended, its results are on their way.
    StagingOut,
    /// They have arrived, and its nodes are tidied up.
    StagedOut,
    /// All is where it was to be.
    Done,
    /// Results are still on its nodes: `tidepool slurm resume`.
    StageOutFailed,
    /// It did not start, or its program failed.
    Failed,
    /// Somebody has ended it.
    Cancelled,
}

/// Every phase with its word.
pub const PHASES: [(&str, Phase); 12] = [
    ("submitted", Phase::Submitted),
    ("checked", Phase::Checked),
    ("staging-in", Phase::StagingIn),
    ("ready", Phase::Ready),
    ("starting", Phase::Starting),
    ("running", Phase::Running),
    ("staging-out", Phase::StagingOut),
    ("staged-out", Phase::StagedOut),
    ("done", Phase::Done),
    ("stage-out-failed", Phase::StageOutFailed),
    ("failed", Phase::Failed),
    ("cancelled", Phase::Cancelled),
];

impl Phase {
    pub fn word(self) -> &'static str {
        PHASES.iter().find(|(_, phase)| *phase == self).map_or("", |(word, _)| word)
    }

    pub fn parse(word: &str) -> Option<Phase> {
        PHASES.iter().find(|(known, _)| *known == word).map(|(_, phase)| *phase)
    }

    /// Nothing comes after it by itself.
    pub fn is_final(self) -> bool {
        matches!(self, Phase::Done | Phase::StageOutFailed | Phase::Failed | Phase::Cancelled)
    }

    /// It has ended, and not as it was to.
    pub fn is_bad(self) -> bool {
        self.is_final() && self != Phase::Done
    }

    /// Its program may have started.
    pub fn has_run(self) -> bool {
        use Phase::*;
        matches!(self, Running | StagingOut | StagedOut | Done | StageOutFailed)
    }

    /// Whether a job may go from one phase to the other. Hooks are called again after a restart of the controller, so
    /// every phase may follow itself.
    pub fn may_become(self, next: Phase) -> bool {
        use Phase::*;
        if self == next {
            return true;
        }
        match self {
            // Only a later attempt at the stage-out changes an end.
            StageOutFailed => next == Done,
            Done | Failed | Cancelled => false,
            _ if matches!(next, Failed | Cancelled | Submitted) => true,
            StagingOut => matches!(next, StagedOut | StageOutFailed),
            _ => next > self,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back_to_phases() {
        for (word, phase) in PHASES {
            assert_eq!((phase.word(), Phase::parse(word)), (word, Some(phase)));
        }
        assert_eq!(Phase::parse("nonsense"), None);
    }

    #[test]
    fn a_job_goes_forward_or_ends_or_begins_again() {
        use Phase::*;
        let ways = [Submitted, Checked, StagingIn, Ready, Starting, Running, StagingOut, StagedOut, Done];
        for pair in ways.windows(2) {
            assert!(pair[0].may_become(pair[1]), "{pair:?}");
            assert!(pair[0] == Submitted || pair[0].may_become(Submitted), "{pair:?}");
            assert!(pair[0].may_become(Failed) && pair[0].may_become(Cancelled), "{pair:?}");
        }
        assert!(!Running.may_become(Starting) && !StagingOut.may_become(Running));
    }

    #[test]
    fn an_end_is_an_end() {
        use Phase::*;
        for (_, end) in PHASES.iter().filter(|(_, phase)| phase.is_final()) {
            for (_, next) in PHASES {
                let finished_later = *end == StageOutFailed && next == Done;
                assert_eq!(end.may_become(next), *end == next || finished_later, "{end} {next}");
            }
        }
    }
}
