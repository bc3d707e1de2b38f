//! The script of a Slurm array that runs the points of a sweep.

use super::flags::SweepArgs;
use crate::exit::{Context, Failure, Kind, Result};
use std::path::{Path, PathBuf};

/// A script whose task N runs the points N, N + tasks, N + 2 tasks ... Each is skipped if it was done before, so an array that was
/// ended early is submitted again as it is.
pub fn script(args: &SweepArgs, points: u64) -> Result<String> {
    let tasks = points.min(args.tasks.into());
    let program = std::env::current_exe().context(Kind::Other, || "this program's path".to_string())?;
    let mut line =
        vec![quoted(text(&program)?), "sim".into(), "sweep".into(), quoted(text(&whole(&args.file)?)?)];
    for vary in &args.vary {
        line.extend(["--vary".to_string(), quoted(vary)]);
    }
    line.extend(["--seeds".to_string(), args.seeds.to_string()]);
    if let Some(seed) = args.seed {
        line.extend(["--seed".to_string(), seed.to_string()]);
    }
    line.extend(["--out".to_string(), quoted(text(&whole(&args.out)?)?)]);
    let line = line.join(" ");
    Ok(format!(
        "#!/bin/sh\n\
         #SBATCH --job-name=tidepool-sweep\n\
         #SBATCH --array=0-{}\n\
         #SBATCH --ntasks=1\n\
         #SBATCH --cpus-per-task=1\n\
         # {points} points; afterwards:\n\
         # {line} --collect\n\
         set -eu\n\
         point=$SLURM_ARRAY_TASK_ID\n\
         while [ \"$point\" -lt {points} ]; do\n\
         \x20   {line} --point \"$point\"\n\
         \x20   point=$((point + {tasks}))\n\
         done\n",
        tasks.saturating_sub(1)
    ))
}

/// From wherever the script is run.
fn whole(path: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(path).context(Kind::Other, || path.display().to_string())
}

fn text(path: &Path) -> Result<&str> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| {
        Failure::new(
            Kind::Usage,
            format!("{}: no path for a script: not in UTF-8, or with control characters", path.display()),
        )
    })
}

/// One word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        assert_eq!(quoted("a b$(c)"), "'a b$(c)'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
