//! Whose the job book is: the user's that slurmctld and its hooks run as (`SlurmUser`). Root may do with it what he likes, and does it as
//! that user: files that root made there would keep hooks out, and what another user can put there is nothing for root to open.

use super::site::Site;
use crate::agent::{become_user, command_as};
use crate::exit::{Context, Failure, Kind, Result};
use nix::unistd::User;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{ExitCode, Stdio};

/// Of a user whom the name service does not know.
const NOGROUP: u32 = 65_534;

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this user works with the book itself: root, and whose it is. Others ask slurmctld.
pub fn keeps_book(site: &Path) -> Result<bool> {
    if !site.exists() {
        return Ok(false);
    }
    let site = Site::read(site)?;
    Ok(own() == 0 || std::fs::metadata(&site.state_dir).is_ok_and(|dir| dir.uid() == own()))
}

/// The other user whose the book is, for root.
fn other(site: &Site) -> Option<(u32, u32)> {
    let uid = std::fs::metadata(&site.state_dir).ok()?.uid();
    // The directory's group may be root's.
    let gid = || User::from_uid(uid.into()).ok().flatten().map_or(NOGROUP, |user| user.gid.as_raw());
    (own() == 0 && uid != 0).then(|| (uid, gid()))
}

/// Runs this command once more as him, if root does it and the book is another user's; its exit code.
pub fn as_keeper(file: &Path) -> Result<Option<ExitCode>> {
    let site = Site::read(file)?;
    if !site.state_dir.exists() {
        // Root would make it, and it would be his.
        let text = format!("there is no job book in {} yet", site.state_dir.display());
        return Err(Failure::new(Kind::Refused, text));
    }
    let keeper = other(&site);
    if let (Some((uid, _)), false) = (keeper, file.is_absolute()) {
        let text = format!(
            "--site is '{}'; write a path from '/' on: user {uid}, whose the job book is, begins there",
            file.display()
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    become_user(keeper)
}

/// What a process of his says to a question; none where no other process is needed.
pub fn ask_as_keeper(site: &Site, words: &[&str]) -> Result<Option<Value>> {
    let Some(keeper) = other(site) else { return Ok(None) };
    let program = std::env::current_exe().context(Kind::Other, || "finding this program".into())?;
    let file = std::path::absolute(&site.file).context(Kind::Other, || site.file.display().to_string())?;
    let mut command = command_as(&program, keeper);
    command.args(["slurm", "hook", "--site"]).arg(file).arg("status").args(words).stdin(Stdio::null());
    let said = command.output().context(Kind::Other, || format!("asking as user {}", keeper.0))?;
    let text = String::from_utf8_lossy(&said.stdout).trim().to_string();
    match text.strip_suffix("hook: done").map(|told| serde_json::from_str(told.trim())) {
        Some(Ok(value)) => Ok(Some(value)),
        _ => Err(Failure::new(Kind::Refused, text.trim_end_matches("hook: failed").trim().to_string())),
    }
}
