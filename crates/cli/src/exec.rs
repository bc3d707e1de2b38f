//! Running programs on a pool: their environment and their end.

use crate::exit::{Failure, Kind, Result};
use crate::flags::{Door, ExecArgs};
use crate::instance::{self, Instance};
use crate::launch::tool_path;
use crate::signals::Signals;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// File name of the preload library, beside the command.
pub const PRELOAD_LIBRARY: &str = "libtidepool_preload.so";
/// How often a running program and signals are looked at.
const POLL: Duration = Duration::from_millis(10);
/// Longest list of nodes in a variable; Linux takes no string beyond 128 KiB.
const NODES_BYTES_MAX: usize = 64 << 10;
/// Seconds between SIGTERM and SIGKILL under `exec`.
const KILL_GRACE_S: u64 = 10;

/// `tidepool exec`.
pub fn exec(args: &ExecArgs) -> Result<ExitCode> {
    let instance = instance::find(&args.choice)?;
    let signals = Signals::watch()?;
    let preload = uses_preload(&instance, args.client)?;
    let child = spawn(&instance, preload, &args.program)?;
    let status = wait(child, &signals, KILL_GRACE_S)?;
    Ok(ExitCode::from(exit_byte(status)))
}

/// Whether programs of this pool run with the preload library: as asked, or, with `auto`,
/// when the pool is not mounted.
pub fn uses_preload(instance: &Instance, door: Door) -> Result<bool> {
    let mounted = is_mounted(instance);
    match door {
        Door::Preload => Ok(true),
        Door::Fuse if !mounted => {
            let text = format!(
                "pool '{}' is not mounted on this node; start it with --client fuse, or run 'tidepool mount'",
                instance.name
            );
            Err(Failure::new(Kind::NoPool, text))
        }
        Door::Fuse => Ok(false),
        Door::Auto => Ok(!mounted),
    }
}

/// True when the pool's path is a mount of it.
pub fn is_mounted(instance: &Instance) -> bool {
    tidepool_fuse::mounts_below(&instance.dir).contains(&instance.mount_path())
}

/// Variables that programs on the pool get.
pub fn environment(instance: &Instance, preload: bool) -> Result<Vec<(OsString, OsString)>> {
    let mount = instance.mount_path();
    let mut variables: Vec<(OsString, OsString)> =
        vec![("TIDEPOOL_DIR".into(), mount.into()), ("TIDEPOOL_POOL".into(), instance.pool_file().into())];
    variables.extend(node_variables(instance));
    if preload {
        let library = preload_library()?;
        let mut list = OsString::from(library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
            list.push(":");
            list.push(others);
        }
        variables.push(("LD_PRELOAD".into(), list));
    }
    Ok(variables)
}

/// Variables that tell programs which nodes are for them.
pub fn node_variables(instance: &Instance) -> Vec<(OsString, OsString)> {
    let nodes = instance.compute_nodes();
    let list = nodes.join(",");
    let mut variables = Vec::new();
    if !nodes.is_empty() {
        variables.push(("TIDEPOOL_HOSTFILE".into(), instance.hostfile().into()));
    }
    if !nodes.is_empty() && list.len() <= NODES_BYTES_MAX {
        variables.push(("TIDEPOOL_NODES".into(), list.into()));
    }
    variables
}

fn preload_library() -> Result<PathBuf> {
    let path = tool_path(PRELOAD_LIBRARY)?;
    if path.to_string_lossy().contains(|c: char| c == ':' || c.is_whitespace()) {
        let text = format!(
            "{}: the dynamic linker divides LD_PRELOAD at blanks and colons; install tidepool elsewhere, or use --client fuse",
            path.display()
        );
        return Err(Failure::new(Kind::Start, text));
    }
    Ok(path)
}

/// The program as the user meant it: `./solver` is the one where the command was typed, if
/// there is one, although the program will start in the pool.
fn locate(program: &OsStr) -> OsString {
    let path = Path::new(program);
    let here = path.components().count() > 1 && path.is_relative() && path.exists();
    match std::path::absolute(path) {
        Ok(absolute) if here => absolute.into(),
        _ => program.into(),
    }
}

/// Starts a program in the pool's directory.
pub fn spawn(instance: &Instance, preload: bool, program: &[OsString]) -> Result<Child> {
    spawn_in(&instance.mount_path(), environment(instance, preload)?, program)
}

/// Starts a program in a directory with more variables than ours.
pub fn spawn_in(dir: &Path, variables: Vec<(OsString, OsString)>, program: &[OsString]) -> Result<Child> {
    let mut command = Command::new(locate(&program[0]));
    command.args(&program[1..]).envs(variables).current_dir(dir);
    command.spawn().map_err(|error| {
        let name = Path::new(&program[0]).display().to_string();
        match error.kind() {
            ErrorKind::NotFound => Failure::new(Kind::NotFound, format!("{name}: program not found")),
            _ => Failure::new(Kind::NotExecutable, format!("{name}: {error}")),
        }
    })
}

/// Waits for a program; hands a signal on as SIGTERM, and kills after the grace.
pub fn wait(mut child: Child, signals: &Signals, kill_grace_s: u64) -> Result<ExitStatus> {
    let mut told: Option<Instant> = None;
    loop {
        let ended = child.try_wait().map_err(|e| Failure::new(Kind::Other, format!("waiting: {e}")))?;
        if let Some(status) = ended {
            return Ok(status);
        }
        match told {
            None if signals.seen().is_some() => {
                crate::launch::terminate(child.id());
                told = Some(Instant::now());
            }
            Some(at) if at.elapsed() > Duration::from_secs(kill_grace_s) => {
                // It may have ended just now; then there is nothing to kill.
                let _ = child.kill();
            }
            _ => {}
        }
        std::thread::sleep(POLL);
    }
}

/// The exit code a shell would show: the program's, or 128 plus its signal.
pub fn exit_byte(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => 1,
    }
}
