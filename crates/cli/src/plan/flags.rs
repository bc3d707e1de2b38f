//! What a job says of itself, and the command line of `tidepool plan`.

use crate::flags::{PoolShape, size};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tidepool_plan::{Access, Pattern, Sharing};
use tidepool_stage_client::words::parse_duration;
use tidepool_types::parse_size;

pub const PLAN: &str = "\
Examples:
  tidepool plan --expect-size 200GB --walltime 2h                 this machine
  tidepool plan --hosts n1,n2,n3,n4 --db resources.db --pattern own,sequential --stage-in ./data
  tidepool plan --expect-size 2TB --json                          inside a Slurm allocation: its nodes
  tidepool plan job.sh                                            what a job script would do
  tidepool plan job.sh --hosts n1,n2,n3,n4 --db resources.db      the same on these nodes
Nothing is started. `tidepool run` and `tidepool pool start` choose the same by themselves; each flag
named in the table asks for something else; with a script, --nodes is the job's number of nodes.
Exit code 123: the data do not fit, or something else speaks against the script.";

/// What a job says of its I/O.
#[derive(Args, Clone, Debug, Default)]
pub struct JobFlags {
    /// Most bytes that the job will have in the pool at a time: more than there is room for is refused before the start
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub expect_size: Option<u64>,
    /// How programs use files, in words with commas: own or shared (files), sequential or random (both get the same: no
    /// size of chunks was measured to be better for one of them), and the size of one read or write, as own,random,8KiB
    #[arg(long, value_name = "WORDS", value_parser = pattern)]
    pub pattern: Option<Pattern>,
    /// The job's time limit, to be told what share of it starting and staging take [default for 'plan': that of the Slurm
    /// job]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub walltime: Option<Duration>,
    /// Nodes that the programs need: the others keep data only
    #[arg(long, value_name = "N", conflicts_with = "deploy")]
    pub program_nodes: Option<usize>,
}

#[derive(Args)]
pub struct PlanArgs {
    /// A job script: what its directives and its #SBATCH lines for nodes and time say is planned, and told step by step
    pub script: Option<PathBuf>,
    /// The site's dataspaces, for a script [default: /etc/tidepool/slurm.toml, if it is there]
    #[arg(long, value_name = "FILE", requires = "script")]
    pub site: Option<PathBuf>,
    #[command(flatten)]
    pub shape: PoolShape,
    /// What is staged in: bytes, or a file or tree whose bytes are counted
    #[arg(long, value_name = "SIZE|PATH")]
    pub stage_in: Option<Amount>,
    /// What is staged out
    #[arg(long, value_name = "SIZE|PATH")]
    pub stage_out: Option<Amount>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Bytes, or something that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    Of(PathBuf),
}

impl std::str::FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Amount, String> {
        match parse_size(text) {
            Ok(bytes) => Ok(Amount::Bytes(bytes)),
            Err(_) if text.starts_with(['/', '.', '~']) || PathBuf::from(text).exists() => {
                Ok(Amount::Of(text.into()))
            }
            Err(error) => Err(format!("{error}; and there is no file of this name")),
        }
    }
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let mut pattern = Pattern::default();
    for word in text.split(',').map(str::trim) {
        let twice = match word {
            "own" => pattern.sharing.replace(Sharing::Own).is_some(),
            "shared" => pattern.sharing.replace(Sharing::Shared).is_some(),
            "sequential" => pattern.access.replace(Access::Sequential).is_some(),
            "random" => pattern.access.replace(Access::Random).is_some(),
            _ => {
                let bytes = parse_size(word).map_err(|_| {
                    format!("'{word}': write own or shared, sequential or random, or the size of a transfer")
                })?;
                pattern.transfer.replace(bytes).is_some()
            }
        };
        if twice {
            return Err(format!("'{word}' and another word contradict each other"));
        }
    }
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read() {
        let told = pattern("own, random,8KiB").unwrap();
        assert_eq!(told.sharing, Some(Sharing::Own));
        assert_eq!((told.access, told.transfer), (Some(Access::Random), Some(8192)));
        assert_eq!(pattern("shared").unwrap().access, None);
        for (bad, words) in [
            ("", "write own or shared"),
            ("owned", "write own or shared"),
            ("own,shared", "contradict"),
            ("1MiB,2MiB", "contradict"),
        ] {
            let said = pattern(bad).unwrap_err();
            assert!(said.contains(words), "{bad}: {said}");
        }
    }

    #[test]
    fn amounts_are_sizes_or_paths() {
        assert_eq!("2GB".parse(), Ok(Amount::Bytes(2_000_000_000)));
        assert_eq!("./x".parse(), Ok(Amount::Of("./x".into())));
        let said = "2 lots".parse::<Amount>().unwrap_err();
        assert!(said.contains("no file of this name"), "{said}");
    }
}
