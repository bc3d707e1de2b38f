//! What `tidepool slurm install --check` looks at as the user that slurmctld's hooks run as (`SlurmUser`): what he can read, what is his,
//! and what the stagers of nodes know him for. Looked at by a process of that user, so that it is as the hooks will find it.

use super::scontrol;
use super::site::Site;
use super::stagers::Ways;
use crate::agent::command_as;
use crate::exit::{Context, Failure, Kind, Result};
use nix::unistd::User;
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tidepool_directives::SiteDataspace;
use tidepool_stage_client::words::KINDS;
use tidepool_stage_client::{DataspaceKind, DataspaceSpec, OnBehalf, Resource, StageError, Stager};
use tidepool_transport::Secret;
use tidepool_types::Errno;

/// Of files and directories that are one user's.
const OTHERS_MODE: u32 = 0o077;

/// How serious it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Well,
    /// It works, and would be better otherwise.
    Warning,
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finding {
    pub what: String,
    pub level: Level,
    /// Empty when it is well.
    pub trouble: String,
    pub advice: String,
}

impl Finding {
    pub fn well(what: impl Into<String>) -> Finding {
        Finding { what: what.into(), level: Level::Well, trouble: String::new(), advice: String::new() }
    }

    pub fn bad(what: impl Into<String>, trouble: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what: what.into(), level: Level::Bad, trouble: trouble.into(), advice: advice.into() }
    }

    fn warning(what: impl Into<String>, trouble: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { level: Level::Warning, ..Finding::bad(what, trouble, advice) }
    }
}

/// The user of that name, or number, in slurm.conf.
fn user_of(name: &str) -> std::result::Result<User, String> {
    let found = match name.parse::<u32>() {
        Ok(uid) => User::from_uid(uid.into()),
        Err(_) => User::from_name(name),
    };
    found.ok().flatten().ok_or_else(|| format!("there is no user '{name}' on this machine"))
}

/// Asks a process of `name`, which is the hooks' user, what he finds. `program` is what the hooks run.
pub fn ask(name: &str, program: &Path, site: &Path) -> Vec<Finding> {
    let what = format!("slurm.conf: SlurmUser={name} (hooks run as this user, on the controller)");
    let user = match user_of(name) {
        Ok(user) => user,
        Err(why) => return vec![Finding::bad(what, why, "make the user, or name another one")],
    };
    let (own, uid) = (rustix::process::geteuid().as_raw(), user.uid.as_raw());
    if own != 0 && own != uid {
        let advice = format!("run this as root or as {name}");
        return vec![Finding::bad(what, "what is his cannot be looked at", advice)];
    }
    let asked =
        if own == uid { Ok(findings(site)) } else { ask_process((uid, user.gid.as_raw()), program, site) };
    match asked {
        Ok(found) => std::iter::once(Finding::well(what)).chain(found).collect(),
        Err(failure) => {
            let advice = "let that user run the program: it and the directories above it need mode 0755";
            vec![Finding::bad(what, failure.to_string(), advice)]
        }
    }
}

fn ask_process(user: (u32, u32), program: &Path, site: &Path) -> Result<Vec<Finding>> {
    let shown = || program.display().to_string();
    let site: PathBuf = std::path::absolute(site).context(Kind::Usage, || site.display().to_string())?;
    let mut command = command_as(program, user);
    command.args(["slurm", "hook", "--site"]).arg(site).arg("ready").stdin(Stdio::null());
    let said = command.output().context(Kind::Other, shown)?;
    let text = String::from_utf8_lossy(&said.stdout);
    let told = text.trim().strip_suffix("hook: done").and_then(|told| serde_json::from_str(told.trim()).ok());
    told.ok_or_else(|| {
        let why = format!("{}{}", text.trim(), String::from_utf8_lossy(&said.stderr).trim());
        Failure::new(Kind::Other, format!("{} says nothing: {}, {why}", shown(), said.status))
    })
}

/// What this process's user finds.
pub fn findings(file: &Path) -> Vec<Finding> {
    let what = file.display().to_string();
    let site = match Site::read(file) {
        Ok(site) => site,
        Err(failure) => {
            let advice = format!(
                "it needs mode 0644, and its directories 0755, or to belong to {}; see docs/guide/slurm-admin.md",
                own_name()
            );
            return vec![Finding::bad(what, failure.to_string(), advice)];
        }
    };
    let mut found = vec![Finding::well(what), state_dir(&site.state_dir)];
    let secret = format!("{} (the controller's secret and key)", site.secret_file.display());
    let advice = || format!("chown {} {1}; chmod 600 {1}", own_name(), site.secret_file.display());
    match Secret::read(&site.secret_file) {
        Err(why) => found.push(Finding::bad(secret, why, advice())),
        Ok(read) if read.public_key().is_none() => {
            let trouble = "has no key of its own in a second line";
            found.push(Finding::bad(secret, trouble, "see docs/guide/slurm-admin.md"));
        }
        Ok(_) => {
            found.push(Finding::well(secret));
            found.extend(stagers(&site));
        }
    }
    found
}

fn own_name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let found = User::from_uid(uid.into()).ok().flatten();
    found.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The directory of the job book: the user's, and only his, as is all in it.
fn state_dir(dir: &Path) -> Finding {
    let (shown, user) = (dir.display(), own_name());
    let what = format!("{shown} (the job book)");
    let bad = |trouble: String, advice: String| Finding::bad(what.clone(), trouble, advice);
    let meta = match fs::metadata(dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && can_be_made(dir) => {
            return Finding::well(what);
        }
        Err(error) => return bad(error.to_string(), format!("install -d -o {user} -m 700 {shown}")),
    };
    let mine = |meta: &fs::Metadata| meta.uid() == rustix::process::geteuid().as_raw();
    let own = format!("chown -R {user} {shown}");
    if !meta.is_dir() {
        return bad("is no directory".into(), "move it away".into());
    }
    if !mine(&meta) {
        return bad(format!("belongs to user {}, not to {user}", meta.uid()), own);
    }
    if meta.permissions().mode() & OTHERS_MODE != 0 {
        return bad(
            "others get into it, and it has scripts and secrets of users".into(),
            format!("chmod 700 {shown}"),
        );
    }
    let foreign = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|meta| !mine(&meta));
    match fs::read_dir(dir).map(|entries| entries.flatten().find(foreign)) {
        Err(error) => bad(error.to_string(), own),
        Ok(Some(entry)) => bad(format!("{} in it is not {user}'s", entry.file_name().to_string_lossy()), own),
        Ok(None) if access(dir, Access::WRITE_OK | Access::EXEC_OK).is_err() => bad(
            format!("{user} cannot write there"),
            format!("chmod 700 {shown}, on storage that he can write to"),
        ),
        Ok(None) => Finding::well(what),
    }
}

/// The first hook makes it.
fn can_be_made(dir: &Path) -> bool {
    let above = dir.ancestors().skip(1).find(|above| above.exists());
    above.is_some_and(|above| access(above, Access::WRITE_OK | Access::EXEC_OK).is_ok())
}

fn stagers(site: &Site) -> Vec<Finding> {
    let ways = match Ways::of(site) {
        Ok(ways) => ways,
        Err(failure) => return vec![Finding::bad("stagers", failure.to_string(), "see the finding above")],
    };
    match scontrol::live_nodes() {
        Err(failure) => vec![Finding::bad("nodes", failure.to_string(), "is slurmctld up?")],
        Ok(nodes) => nodes.iter().map(|node| stager(site, &ways, node)).collect(),
    }
}

/// What a stager takes a dataspace for is where data go; what the site's file says is where jobs look for them.
fn differs(own: &SiteDataspace, there: &DataspaceSpec) -> Option<(String, String)> {
    let name = &own.name;
    let path = |mount: &str| Path::new(mount).components().collect::<PathBuf>();
    let kind =
        |kind: DataspaceKind| KINDS.iter().find(|(_, of)| *of == kind).map_or("of no kind", |(word, _)| word);
    let advice = || "mend it there, or in the site's file".to_string();
    if there.kind != own.kind {
        return Some((
            format!("{name} is {} there, and {} here", kind(there.kind), kind(own.kind)),
            advice(),
        ));
    }
    let differs = path(&there.mount) != path(&own.mount);
    differs.then(|| (format!("{name} is at {} there, and at {} here", there.mount, own.mount), advice()))
}

/// The directory for pools, where it lies in node-local storage that the stager knows.
fn store_is_missing(stager: &Stager, site: &Site) -> Option<(String, String)> {
    site.dataspaces.iter().filter(|own| own.kind == DataspaceKind::Local).find_map(|own| {
        let below = site.pool_store.strip_prefix(&own.mount).ok()?;
        is_missing(stager, own, below, &format!("pool-store {}", site.pool_store.display()))
    })
}

/// A directory that is not there, as when nothing is mounted. Looked for as nobody, who need not get into it.
fn is_missing(stager: &Stager, own: &SiteDataspace, below: &Path, what: &str) -> Option<(String, String)> {
    const NOBODY: u32 = 65534;
    let place = Resource::local(own.name.clone(), below.as_os_str().as_encoded_bytes());
    let as_nobody = OnBehalf { uid: NOBODY, gid: NOBODY, job: 0 };
    match stager.entries_page(&place, Some(as_nobody), b"", 1) {
        Err(StageError::Refused(refusal)) if [Errno::ENOENT.0, Errno::ENOTDIR.0].contains(&refusal.errno) => {
            let path: PathBuf = Path::new(&own.mount).join(below).components().collect();
            Some((format!("{what}: {refusal}"), format!("make or mount {} there", path.display())))
        }
        _ => None,
    }
}

fn stager(site: &Site, ways: &Ways, node: &str) -> Finding {
    let what = format!("stager of {node}");
    let stager = match ways.connect(node) {
        Ok(stager) => stager,
        Err(failure) => {
            let advice = "start tidepool-staged there, with 'listen' and the same secret, and the key of this one ('tidepool stage key') in 'controllers'";
            return Finding::bad(what, failure.to_string(), advice);
        }
    };
    let there = match stager.dataspaces() {
        Ok(there) => there,
        Err(error) => return Finding::bad(what, error.to_string(), "see its log"),
    };
    let known = |name: &&String| there.iter().any(|info| info.dataspace.name == **name);
    if let Some(name) = site.dataspace_names().iter().find(|name| !known(name)) {
        return Finding::bad(what, format!("does not know {name}"), "name it in its configuration, too");
    }
    let trouble = site.dataspaces.iter().find_map(|own| {
        let known = there.iter().find(|info| info.dataspace.name == own.name)?;
        differs(own, &known.dataspace).or_else(|| match own.kind {
            DataspaceKind::Object => None,
            _ => is_missing(&stager, own, Path::new(""), &own.name),
        })
    });
    let trouble = trouble.or_else(|| store_is_missing(&stager, site));
    if let Some((trouble, advice)) = trouble {
        return Finding::bad(what, trouble, advice);
    }
    match stager.is_control() {
        false => Finding::well(what),
        true => Finding::warning(
            what,
            "the key is an administrator's: whoever takes it from the controller has all of this node's data",
            "in its configuration move it from 'admins' to 'controllers'",
        ),
    }
}
