//! The commands that start agents on other nodes: ssh and srun.

use crate::exit::{Failure, Kind, Result};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

/// Seconds to wait for a host that does not answer.
const CONNECT_S: &str = "ConnectTimeout=20";

/// Variables by which a job's script sets defaults for its own srun calls. The agents' step
/// must not take them over: it has one task on each node, whatever the job's tasks look like.
const SRUN_DEFAULTS: [&str; 19] = [
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_HINT",
    "SLURM_LABELIO",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_MULTI_PROG",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NPROCS",
    "SLURM_RELATIVE",
    "SLURM_STDERRMODE",
    "SLURM_STDOUTMODE",
    "SLURM_TASKS_PER_NODE",
];

/// One agent on each of the first `nodes` nodes of the allocation, all with the same input.
pub fn srun(nodes: usize, agent: &Path) -> Command {
    let mut command = Command::new("srun");
    SRUN_DEFAULTS.iter().for_each(|name| {
        command.env_remove(name);
    });
    // Nothing that the job's own steps need is held, and no agent's end ends the others.
    command.args(["--overlap", "--mpi=none", "--input=all", "--cpu-bind=none", "--chdir=/"]);
    command.args(["--kill-on-bad-exit=0", "--wait=0", "--relative=0", "--job-name=tidepool"]);
    command.args(["--ntasks-per-node=1".into(), format!("--nodes={nodes}"), format!("--ntasks={nodes}")]);
    command.arg(agent).arg("node");
    command
}

/// The words of `$TIDEPOOL_SSH`, which names another program than ssh, with words of its own.
pub fn ssh_words() -> Result<Vec<String>> {
    match std::env::var("TIDEPOOL_SSH") {
        Ok(words) => Ok(words.split_ascii_whitespace().map(str::to_string).collect()),
        Err(std::env::VarError::NotPresent) => Ok(Vec::new()),
        Err(error) => Err(Failure::new(Kind::Usage, format!("TIDEPOOL_SSH: {error}"))),
    }
}

/// The agent of one host; `words` as of [`ssh_words`].
pub fn ssh(words: &[String], host: &str, agent: &Path, node: usize) -> Command {
    let program = words.first().map_or("ssh", String::as_str);
    let mut command = Command::new(program);
    command.args(words.iter().skip(1));
    if Path::new(program).file_name().is_some_and(|name| name == "ssh") {
        // Nobody is there to type a password, and no terminal is to hang up.
        command.args(["-o", "BatchMode=yes", "-o", CONNECT_S, "-T"]);
    }
    command.arg(host).arg(quote(agent)).args(["node", "--node", &node.to_string()]);
    command
}

/// Quotes a path for the shell that ssh runs on the other side.
fn quote(path: &Path) -> OsString {
    let mut quoted = b"'".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            other => quoted.push(*other),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_quotes() {
        assert_eq!(quote(Path::new("/a'b c")), r"'/a'\''b c'");
    }

    #[test]
    fn another_program_gets_no_options_of_ssh() {
        let words = ["/x/rsh".to_string(), "-F".into(), "/a;b".into()];
        let command = ssh(&words, "h", Path::new("/t"), 3);
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(
            (command.get_program(), args.join(" ".as_ref())),
            ("/x/rsh".as_ref(), "-F /a;b h '/t' node --node 3".into())
        );
        assert!(ssh(&[], "h", Path::new("/t"), 3).get_args().any(|a| a == "BatchMode=yes"));
    }
}
