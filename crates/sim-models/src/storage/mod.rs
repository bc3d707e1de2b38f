//! A storage device known by measurements (INVENTORY L16, L21): runs of a closed system, a device fitted to them, and what the
//! simulator says of runs that the fit has not seen.

mod closed;
mod file;
mod fit;
mod judge;
mod run;

pub use closed::{Drawn, Stages};
pub use file::{StorageFile, TEXT_MAX as FILE_MAX};
pub use fit::{FitError, Fitted, Interval, REPEATS_MAX, Structure, fit, left_out, uncertainty};
pub use judge::{
    CONFIDENCE, JudgeError, Judged, Score, Trial, described, halves, judge, predict, score, trial,
};
pub use run::{BYTES_MAX, CLIENTS_MAX, Config, Run, medians, noise};
