//! A stager of one's own: started beside this program, found again by its directory.

use crate::exit::{Failure, Kind};
use crate::stage::flags::{StartArgs, StopArgs};
use crate::stage::outcome::{Done, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidepool_stage_client::{
    CONTROL_SOCKET_VARIABLE, Command as Order, StageError, Stager, USER_SOCKET_VARIABLE,
};

/// How long a stager may take to answer: its journal may be long.
const START_MAX: Duration = Duration::from_secs(60);
/// How long one may take to end: workers finish the block they are at.
const STOP_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// What is shown of the log of a stager that did not start.
const LAST_LINES: usize = 5;

fn fail<T>(text: String) -> Result<T> {
    Err(Failure::new(Kind::Other, text).into())
}

fn control(dir: &Path) -> PathBuf {
    dir.join("control.socket")
}

pub fn start(args: &StartArgs) -> Result<Done> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&args.dir);
    let dir = made.and_then(|()| args.dir.canonicalize());
    let Ok(dir) = dir.as_deref() else {
        return fail(format!("{}: {}", args.dir.display(), dir.expect_err("it was looked at")));
    };
    if let Ok(stager) = Stager::connect(control(dir)) {
        return Ok(started(dir, &stager, true));
    }
    let log = dir.join("log");
    let mut child = match launch(dir, &log, args.config.as_deref()) {
        Ok(child) => child,
        Err(why) => return fail(why),
    };
    match wait_until_it_answers(&mut child, dir) {
        Ok(stager) => Ok(started(dir, &stager, false)),
        Err(why) => {
            // A stager that nobody knows of would be worse than none.
            let _ = child.kill();
            let _ = child.wait();
            fail(format!("tidepool-staged in {} {why}{}", dir.display(), last_words(&log)))
        }
    }
}

fn launch(dir: &Path, log: &Path, config: Option<&Path>) -> std::result::Result<Child, String> {
    let own = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
    let program = own.with_file_name("tidepool-staged");
    let open = || -> std::io::Result<(File, File)> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
        Ok((file.try_clone()?, file))
    };
    let (out, err) = open().map_err(|error| format!("{}: {error}", log.display()))?;
    let mut command = Command::new(&program);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    // A group of its own: Ctrl-C at the terminal is not for it.
    let spawned =
        command.arg("--dir").arg(dir).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn();
    spawned
        .map_err(|error| format!("{}: {error}; it is installed beside {}", program.display(), own.display()))
}

fn wait_until_it_answers(child: &mut Child, dir: &Path) -> std::result::Result<Stager, String> {
    let deadline = Instant::now() + START_MAX;
    loop {
        match (Stager::connect(control(dir)), child.try_wait()) {
            (Ok(stager), _) => return Ok(stager),
            (Err(_), Ok(Some(status))) => return Err(format!("ended at once ({status})")),
            (Err(error), _) if Instant::now() > deadline => {
                return Err(format!("did not answer within {} s: {error}", START_MAX.as_secs()));
            }
            (Err(_), _) => std::thread::sleep(LOOK),
        }
    }
}

/// The end of the log, for the message about a stager that did not start.
fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    if last.is_empty() {
        String::new()
    } else {
        format!("; {} ends with:\n{}", log.display(), last.join("\n"))
    }
}

fn started(dir: &Path, stager: &Stager, already: bool) -> Done {
    let what = if already { "runs already" } else { "is up" };
    let socket = control(dir);
    let text = format!(
        "the stager in {} {what}: process {} on {}\n\
         so that other commands find it (you administer it, so one socket serves for all):\n  \
         export {USER_SOCKET_VARIABLE}={socket} {CONTROL_SOCKET_VARIABLE}={socket}\n\
         its log: {}\n",
        dir.display(),
        stager.pid(),
        stager.node(),
        dir.join("log").display(),
        socket = socket.display(),
    );
    Done::new(text, started_json(dir, stager, already))
}

fn started_json(dir: &Path, stager: &Stager, already: bool) -> Value {
    json!({
        "dir": dir,
        "control_socket": control(dir),
        "user_socket": dir.join("user.socket"),
        "log": dir.join("log"),
        "pid": stager.pid(),
        "node": stager.node(),
        "already": already,
    })
}

pub fn stop(args: &StopArgs) -> Result<Done> {
    let socket = control(&args.dir);
    let stager = Stager::connect(&socket)?;
    let pid = stager.pid();
    match stager.command(Order::Shutdown) {
        Ok(()) => {}
        Err(StageError::Refused(_)) if args.now => terminate(pid)?,
        Err(error) => return Err(error.into()),
    }
    drop(stager);
    let deadline = Instant::now() + STOP_MAX;
    while runs(pid) {
        if Instant::now() > deadline {
            return fail(format!(
                "process {pid} has not ended within {} s; it may be writing to a slow device",
                STOP_MAX.as_secs()
            ));
        }
        std::thread::sleep(LOOK);
    }
    let text = format!("the stager in {} is stopped; its journal stays\n", args.dir.display());
    Ok(Done::new(text, json!({ "dir": args.dir, "pid": pid, "stopped": true })))
}

fn terminate(pid: u32) -> Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match process.map(|process| kill_process(process, Signal::TERM)) {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => fail(format!("process {pid} cannot be told to end: {error}")),
        None => fail(format!("{pid} is no process")),
    }
}

/// A process that has ended and that nobody has waited for runs no more.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
