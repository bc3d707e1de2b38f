//! The command line of `tidepool slurm` and `tidepool workflow`: one definition for parser, help and man pages.

use super::site::{LIBEXEC, SITE_FILE};
use crate::flags::user;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use tidepool_stage_client::words::parse_duration;

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
    /// Show jobs with directives: what they are at, where, and why
    #[command(after_help = "Examples:\n  tidepool slurm jobs\n  tidepool slurm jobs --all --json")]
    Jobs(JobsArgs),
    /// Tell what staging a job has moved, how long it took, and what went wrong
    #[command(after_help = "\
Examples:
  tidepool slurm report 42
  tidepool slurm report 42 --html report.html")]
    Report(ReportArgs),
    /// Finish the stage-out of a job whose results are still on its nodes
    #[command(after_help = "\
Submits a job that runs on the same nodes and does nothing else.
Exit codes: 0 submitted, with --wait finished; 112 --wait: it has failed again; 120 nothing of the job waits to be staged out.
Examples:
  tidepool slurm resume 42
  tidepool slurm resume 42 --wait")]
    Resume(ResumeArgs),
    /// Remove what a job could not stage out and still has on its nodes
    #[command(after_help = "\
Submits a job that runs on the same nodes and does nothing else; root on the controller does it at once.
Exit codes: 0 submitted, with --wait removed; 113 something could not be removed; 120 nothing of the job waits to be staged out.
Examples:
  tidepool slurm discard 42 --dry-run
  tidepool slurm discard 42 --wait")]
    Discard(DiscardArgs),
    /// List what `persist store` keeps on the nodes of the cluster: where it is, of which job, and how long it stays
    #[command(after_help = "\
Lists your own. STAYS counts by the clock of this machine; a node may keep a place a little longer. What somebody has kept by
'tidepool stage persist store' on a node only 'tidepool stage persist list' there tells.
Examples:
  tidepool slurm kept
  tidepool slurm kept --all --json")]
    Kept(KeptArgs),
    /// List pools that outlive their jobs: where they are, who uses them, how much is in them
    #[command(after_help = "\
STATE: new, no job has made it yet; starting; up, jobs use it; rest, its data are on its nodes and nothing runs; lost, data of it
are not there any more; ending, it is being removed. USED is what was in it when it was last put to rest.
Examples:
  tidepool slurm pools
  tidepool slurm pools --json")]
    Pools(PoolsArgs),
    /// Remove a pool that outlives its jobs, with all data in it
    #[command(after_help = "\
Submits a small job that does it, on any node; root on the controller does it at once. Refused while a job uses the pool;
one that waits for it is ended with the reason.
Exit codes: 0 submitted, with --wait removed; 113 --wait: something of it is left, and is tried again; 120 there is no such pool, or it
is not yours.
Examples:
  tidepool slurm end-pool scratch --wait
  tidepool slurm end-pool 3 --dry-run")]
    EndPool(EndPoolArgs),
    /// Tidy up after jobs that Slurm does not know any more, and go on with those that it has lost track of; its hooks do it by themselves
    #[command(after_help = "\
Looks at jobs that have not changed for a minute. Their staged data and pools are removed, results that were on their way out stay.
Of pools that outlive their jobs it removes those that no job has used for longer than the site allows (campaign-idle-max), and goes on
with removals that nodes kept from ending.
Examples:
  tidepool slurm sweep --dry-run
  tidepool slurm sweep --json")]
    Sweep(SweepArgs),
    /// Put Tidepool's parts beside Slurm's configuration, or check what is there
    #[command(after_help = "\
Exit codes: 0 done, or all is well; 115 --check has found something; 120 a file there is not Tidepool's.
Examples:
  tidepool slurm install --dry-run
  tidepool slurm install --spank /usr/local/libexec/tidepool/spank_tidepool.so
  tidepool slurm install --check")]
    Install(InstallArgs),
    /// Take Tidepool's parts away from beside Slurm's configuration
    #[command(after_help = "\
Removes what 'install' and the Makefile of the plug-ins have put there, when slurm.conf does not name it any more and no job has
something on its nodes. Files of others stay, as do the site's configuration, the job book, keys and the nodes' stagers.
Exit codes: 0 done; 120 Slurm or a job still uses it.
Examples:
  tidepool slurm uninstall --dry-run
  tidepool slurm uninstall --conf-dir /etc/slurm")]
    Uninstall(UninstallArgs),
    /// What the epilog of a node does for a job with directives; not for people
    #[command(hide = true)]
    Epilog(EpilogArgs),
    /// What Slurm's hooks call; not for people
    #[command(hide = true)]
    Hook(HookArgs),
}

#[derive(Args)]
pub struct SiteArg {
    /// The site's configuration
    #[arg(long, value_name = "FILE", default_value = SITE_FILE)]
    pub site: PathBuf,
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

#[derive(Args)]
pub struct JobsArgs {
    /// Also those that have ended
    #[arg(long)]
    pub all: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}

#[derive(Args)]
pub struct ReportArgs {
    pub job: u32,
    #[arg(long, conflicts_with = "html")]
    pub json: bool,
    /// Write the report as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub site: SiteArg,
}

#[derive(Args)]
pub struct DiscardArgs {
    #[command(flatten)]
    pub errand: ResumeArgs,
    /// Give up what is on nodes that do not answer; root only
    #[arg(long)]
    pub lost: bool,
}

#[derive(Args)]
pub struct ResumeArgs {
    pub job: u32,
    /// Wait until it has ended
    #[arg(long)]
    pub wait: bool,
    /// Say what would be submitted
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}

#[derive(Args)]
pub struct KeptArgs {
    /// Those of other users as well
    #[arg(long)]
    pub all: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}

#[derive(Args)]
pub struct PoolsArgs {
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}

#[derive(Args)]
pub struct EndPoolArgs {
    /// Its number, or, if you have one of that name only, its name
    pub pool: String,
    /// Wait until it is removed
    #[arg(long)]
    pub wait: bool,
    /// Say what would be submitted
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}

#[derive(Args)]
pub struct SweepArgs {
    /// Say which jobs and pools they are
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}

/// Where Tidepool's parts beside Slurm are.
#[derive(Args)]
pub struct InstalledAt {
    /// Directory of slurm.conf
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm")]
    pub conf_dir: PathBuf,
    /// Where prolog and epilog go, and the parts in C are built into
    #[arg(long, value_name = "DIR", default_value = LIBEXEC)]
    pub libexec: PathBuf,
    /// The site's configuration
    #[arg(long, value_name = "FILE", default_value = SITE_FILE)]
    pub site: PathBuf,
}

#[derive(Args)]
pub struct UninstallArgs {
    #[command(flatten)]
    pub places: InstalledAt,
    /// Say what would be removed
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct InstallArgs {
    #[command(flatten)]
    pub places: InstalledAt,
    /// The command that hooks run [default: this one]
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
    /// The SPANK plug-in, built by 'make -C integrations/slurm/plugins'
    #[arg(long, value_name = "FILE")]
    pub spank: Option<PathBuf>,
    /// 'jobs-dir' of the nodes' stagers
    #[arg(long, value_name = "DIR", default_value = "/run/tidepool/jobs")]
    pub jobs_dir: PathBuf,
    /// Check what is installed, the settings of slurm.conf, and the nodes' stagers
    #[arg(long)]
    pub check: bool,
    /// Print the lines that slurm.conf needs
    #[arg(long, conflicts_with = "check")]
    pub print: bool,
    /// Say what would be written
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct EpilogArgs {
    #[arg(long)]
    pub job: u32,
    #[arg(long, value_name = "UID:GID", value_parser = user)]
    pub user: (u32, u32),
    /// 'jobs-dir' of the node's stager
    #[arg(long, value_name = "DIR", default_value = "/run/tidepool/jobs")]
    pub jobs_dir: PathBuf,
    /// How long the node is held at most
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "4h")]
    pub limit: Duration,
    /// Directory of the user's pools [default: $TIDEPOOL_RUNTIME, or where pools are without it]
    #[arg(long, value_name = "DIR")]
    pub runtime: Option<PathBuf>,
}

#[derive(Args)]
pub struct HookArgs {
    #[arg(long, value_name = "FILE", default_value = SITE_FILE)]
    pub site: PathBuf,
    #[command(subcommand)]
    pub hook: HookName,
}

#[derive(Subcommand)]
pub enum HookName {
    Submit {
        request: PathBuf,
        script: PathBuf,
    },
    JobProcess {
        script: PathBuf,
    },
    Paths {
        job: u32,
        file: PathBuf,
    },
    Setup {
        job: u32,
        uid: u32,
        gid: u32,
    },
    DataIn {
        job: u32,
    },
    PreRun {
        job: u32,
    },
    PostRun {
        job: u32,
    },
    DataOut {
        job: u32,
    },
    Teardown {
        job: u32,
        hurry: String,
    },
    Status {
        words: Vec<String>,
    },
    /// What `install --check` asks, as the hooks' user.
    Ready {},
    /// Cancels a job when Slurm has done with its hooks.
    Cancel {
        job: u32,
    },
}

#[derive(Subcommand)]
pub enum WorkflowCommand {
    /// Show a workflow: its jobs as a tree, what they are at, and where data are kept
    #[command(after_help = "\
ID is the number of the workflow's first job, or of any of its jobs.
Exit codes: 0; 117 the workflow has failed; 120 there is none.
Examples:
  tidepool workflow status 42
  tidepool workflow status 42 --json")]
    Status(WorkflowArgs),
    /// List workflows
    #[command(after_help = "Example:\n  tidepool workflow list")]
    List(WorkflowListArgs),
}

#[derive(Args)]
pub struct WorkflowArgs {
    pub id: u32,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}

#[derive(Args)]
pub struct WorkflowListArgs {
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub site: SiteArg,
}
