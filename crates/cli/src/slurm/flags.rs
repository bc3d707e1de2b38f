//! The command lines of `tidepool slurm`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

const LINT: &str = "\
Examples:
  tidepool slurm lint job.sh
  tidepool slurm lint --site slurm.toml job.sh
  tidepool slurm lint --json - < job.sh
Problems are printed as SCRIPT:LINE:COLUMN: error: ..., for editors. What the lines mean: docs/formats/21-directives.md.
Exit code: 0 without problems, also with warnings; 123 with problems.";

#[derive(Subcommand)]
pub enum SlurmCommand {
    /// Tell what a job script asks for in its #NORNS and #TIDEPOOL lines, and what is wrong with them
    #[command(after_help = LINT)]
    Lint(LintArgs),
}

#[derive(Args)]
pub struct LintArgs {
    /// The job script; - for standard input
    #[arg(value_name = "SCRIPT")]
    pub script: PathBuf,
    /// What the site has: dataspaces are checked against it, and users against those of this machine [default:
    /// /etc/tidepool/slurm.toml, when it is there]
    #[arg(long, value_name = "FILE")]
    pub site: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
