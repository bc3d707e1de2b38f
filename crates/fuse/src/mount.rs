//! Mounting, and what is mounted.

use crate::error::MountError;
use crate::fs::TidepoolFs;
use crate::guard::Guard;
use crate::mountinfo::{self, mount_at, unmount};
use crate::ops::Core;
use crate::options::{Extras, MountOptions};
use crate::probe::{self, Device};
use fuser::{BackgroundSession, Session};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_client::Client;

/// How long unmounting waits for programs to let go of open files.
const UNMOUNT_WAIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);
/// Readahead asked of the kernel. Its own, 128 KiB, is a quarter of a chunk.
const READAHEAD_KIB: u32 = 2048;

/// How often, and after which pause, a new mount's root is looked at that this process may not read.
const ROOT_LOOKS_MAX: usize = 50;
const ROOT_PAUSE: Duration = Duration::from_millis(1);

/// A live mount. Dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    /// Somebody else made the mount and handed us its device.
    foreign: bool,
    session: Option<BackgroundSession>,
    /// Dropped last: while there is a session somebody stands by.
    guard: Option<Guard>,
}

/// Mounts a pool. The mount is live when this returns; threads of this process serve it.
pub fn mount(client: Arc<Client>, options: &MountOptions) -> Result<Mounted, MountError> {
    options.check()?;
    occupy_standard_descriptors();
    let core = Core::new(client, options).map_err(|e| MountError::Pool(e.to_string()))?;
    let core = Arc::new(core);
    let (session, path) = match options.passed_fd() {
        Some(fd) => (adopt(&core, options, fd)?, options.mountpoint.clone()),
        None => start(&core, options)?,
    };
    let fail = |e: io::Error| MountError::Session(e.to_string());
    core.start_invalidator(session.notifier()).map_err(fail)?;
    core.start_keeper(session.notifier()).map_err(fail)?;
    let session = session.spawn().map_err(fail)?;
    raise_readahead(&path);
    settle_root(&path);
    Ok(Mounted { path, foreign: options.passed_fd().is_some(), session: Some(session), guard: None })
}

/// Mounts, calls `ready` with the mount point once it is live, and serves until `stop` is
/// set or somebody unmounts.
pub fn serve_foreground(
    client: Arc<Client>,
    options: &MountOptions,
    stop: &AtomicBool,
    ready: impl FnOnce(&Path),
) -> Result<(), MountError> {
    let mounted = mount(client, options)?;
    ready(mounted.path());
    while !stop.load(Ordering::Acquire) && !mounted.ended() {
        std::thread::sleep(POLL);
    }
    if mounted.ended() { mounted.wait() } else { mounted.unmount() }
}

impl Mounted {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has a process stand by that ends the mount's connection if this one is killed and cannot end. `command` is to call
    /// [`stand_guard`](crate::stand_guard) with its standard output, and is best started by a thread that lives as long as the mount.
    /// Whether it could be: users other than root cannot end connections where the system does not show them.
    pub fn guard_by(&mut self, command: Command) -> io::Result<bool> {
        let Some(entry) = mount_at(&self.path) else { return Ok(false) };
        self.guard = Guard::start(&entry.device, command)?;
        Ok(self.guard.is_some())
    }

    /// True once somebody unmounted, or the session failed.
    pub fn ended(&self) -> bool {
        self.session.as_ref().is_none_or(|s| s.guard.is_finished())
    }

    /// Unmounts at once. Programs that still have files open keep them for as long as this
    /// process lives.
    pub fn unmount(mut self) -> Result<(), MountError> {
        let Some(session) = self.session.take() else { return Ok(()) };
        if !session.guard.is_finished() && !self.foreign {
            unmount(&self.path).or_else(|error| if self.is_listed() { Err(error) } else { Ok(()) })?;
        }
        let start = Instant::now();
        while !session.guard.is_finished() && start.elapsed() < UNMOUNT_WAIT {
            std::thread::sleep(POLL);
        }
        if session.guard.is_finished() {
            return self.end_of(session);
        }
        // Dropping it would unmount by path, where another file system may be by now.
        std::mem::forget(session);
        Ok(())
    }

    /// Serves until somebody unmounts.
    pub fn wait(mut self) -> Result<(), MountError> {
        let Some(session) = self.session.take() else { return Ok(()) };
        self.end_of(session)
    }

    /// How a session that is over has ended. While a mount is taken away the kernel says ECONNABORTED to a thread that was just getting a
    /// request, and ENODEV, the end, to the others.
    fn end_of(&self, session: BackgroundSession) -> Result<(), MountError> {
        match session.join() {
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) && !self.is_listed() => Ok(()),
            ended => ended.map_err(|error| MountError::Session(error.to_string())),
        }
    }

    fn is_listed(&self) -> bool {
        mountinfo::mounts_below(&self.path).contains(&self.path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let (path, guard) = (self.path.clone(), self.guard.take());
            let rest = Mounted { path, foreign: self.foreign, session: Some(session), guard };
            if let Err(error) = rest.unmount() {
                eprintln!("tidepool mount: {error}");
            }
        }
    }
}

/// Mounts, trying again without what this node turns out not to support.
fn start(core: &Arc<Core>, options: &MountOptions) -> Result<(Session<TidepoolFs>, PathBuf), MountError> {
    let path = options
        .mountpoint
        .canonicalize()
        .map_err(|e| MountError::Mountpoint { path: options.mountpoint.clone(), why: e.to_string() })?;
    let device = probe::device();
    let mut extras = Extras {
        subtype: true,
        auto_unmount: options.allow_other && probe::find_helper().is_some(),
        clone_fd: device == Device::Usable,
    };
    let instance = core.client.instance();
    loop {
        let config = options.config(instance, core.relaxed, extras);
        let error = match Session::new(TidepoolFs(core.clone()), &path, &config) {
            Ok(session) => return Ok((session, path)),
            Err(error) => error,
        };
        if extras.auto_unmount {
            extras.auto_unmount = false;
        } else if extras.subtype && error.to_string().contains("EINVAL") {
            extras.subtype = false;
        } else {
            return Err(MountError::of_start(&error, &path, device != Device::Missing));
        }
    }
}

/// Serves a device that is mounted already, such as one that Apptainer's `--fusemount` hands
/// over as `/dev/fd/N`.
fn adopt(core: &Arc<Core>, options: &MountOptions, fd: i32) -> Result<Session<TidepoolFs>, MountError> {
    let extras = Extras { subtype: true, auto_unmount: false, clone_fd: false };
    let config = options.config(core.client.instance(), core.relaxed, extras);
    let fail = |why: String| MountError::Mountpoint { path: options.mountpoint.clone(), why };
    let device = own_descriptor(fd).map_err(|e| fail(e.to_string()))?;
    Session::from_fd(TidepoolFs(core.clone()), device, config.acl, config).map_err(|e| fail(e.to_string()))
}

/// A duplicate of a descriptor that this process got by number.
fn own_descriptor(fd: i32) -> rustix::io::Result<OwnedFd> {
    pidfd_getfd(pidfd_open(getpid(), PidfdFlags::empty())?, fd, PidfdGetfdFlags::empty())
}

/// The FUSE crate refuses a device on descriptor 0, 1 or 2, which a closed standard stream
/// would give it.
fn occupy_standard_descriptors() {
    while let Ok(null) = File::open("/dev/null") {
        if null.as_raw_fd() > 2 {
            break;
        }
        let _ = null.into_raw_fd();
    }
}

/// Best effort: only root may, and only where /sys is writable.
fn raise_readahead(path: &Path) {
    if let Some(entry) = mount_at(path) {
        let setting = format!("/sys/class/bdi/{}/read_ahead_kb", entry.device);
        let _ = std::fs::write(setting, READAHEAD_KIB.to_string());
    }
}

/// To the kernel the root of a new mount has no permissions until its attributes have been told, and it drops an answer that
/// a recall has overtaken: where other nodes change the root meanwhile, the first program to come would be refused. So this
/// process comes first. Who is refused for good is refused a few times.
fn settle_root(path: &Path) {
    let is_refused = || File::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    for _ in 0..ROOT_LOOKS_MAX {
        if !is_refused() {
            return;
        }
        std::thread::sleep(ROOT_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn a_descriptor_is_adopted_by_number() {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(std::env::temp_dir().join(format!("tidepool-fuse-fd-{}", std::process::id())))
            .unwrap();
        let Ok(copy) = own_descriptor(file.as_raw_fd()) else {
            eprintln!("SKIPPED: pidfd_getfd is not permitted here");
            return;
        };
        file.write_all(b"x").unwrap();
        assert_eq!(File::from(copy).stream_position().unwrap(), 1);
        assert!(own_descriptor(9999).is_err());
    }
}
