//! Why a pool could not be mounted, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A mount or unmount that failed.
#[derive(Debug)]
pub enum MountError {
    /// An option is wrong.
    Option(String),
    Mountpoint {
        path: PathBuf,
        why: String,
    },
    /// The pool does not answer.
    Pool(String),
    /// There is no `/dev/fuse`.
    NoDevice,
    /// `/dev/fuse` exists but may not be opened.
    DeviceDenied(String),
    /// This user may not mount, and there is no `fusermount3` to do it.
    NoHelper,
    /// `fusermount3` forbids `allow_other`.
    OthersForbidden,
    /// `fusermount3` refused; its words.
    HelperFailed(String),
    /// The kernel refused.
    Refused(String),
    /// The session ended with an error.
    Session(String),
    /// Unmounting failed.
    Unmount {
        path: PathBuf,
        why: String,
    },
    /// A mount goes on in another mount namespace, that of the process `pid`, and this user cannot end its connection.
    Stays {
        path: PathBuf,
        pid: u32,
        /// `0:N`; N is the connection's number.
        device: String,
    },
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Option(why) => write!(f, "{why}"),
            MountError::Mountpoint { path, why } => {
                write!(f, "cannot mount on {}: {why}", path.display())
            }
            MountError::Pool(why) => write!(f, "the pool does not answer: {why}"),
            MountError::NoDevice => f.write_str(
                "/dev/fuse does not exist; load the module ('modprobe fuse' as root), pass the device \
                 into the container (--device /dev/fuse), or use '--client preload', which needs no mount",
            ),
            MountError::DeviceDenied(why) => write!(
                f,
                "/dev/fuse cannot be opened: {why}; ask for mode 0666 on it (the udev default), or use \
                 '--client preload', which needs no mount"
            ),
            MountError::NoHelper => f.write_str(
                "this user may not mount and fusermount3 was not found; install it (package fuse3), run \
                 inside 'unshare --user --map-root-user --mount', or use '--client preload'",
            ),
            MountError::OthersForbidden => f.write_str(
                "fusermount3 forbids allow_other; add the line 'user_allow_other' to /etc/fuse.conf, or \
                 mount without allow_other",
            ),
            MountError::HelperFailed(why) => write!(
                f,
                "fusermount3 failed: {why}; it needs the set-user-ID bit of root and a user that exists; or run \
                 inside 'unshare --user --map-root-user --mount', or use '--client preload'"
            ),
            MountError::Refused(why) => write!(f, "the kernel refused the mount: {why}"),
            MountError::Session(why) => write!(f, "the FUSE session failed: {why}"),
            MountError::Unmount { path, why } => {
                write!(f, "cannot unmount {}: {why}; try 'umount -l {}'", path.display(), path.display())
            }
            MountError::Stays { path, pid, device } => write!(
                f,
                "the mount at {} stays in the mount namespace of process {pid} until that ends: this user cannot end \
                 connections of FUSE here; root can with 'echo 1 > /sys/fs/fuse/connections/{}/abort'",
                path.display(),
                device.trim_start_matches("0:")
            ),
        }
    }
}

impl std::error::Error for MountError {}

impl MountError {
    /// What an error of the session's start means. The crate tells most only as text.
    pub(crate) fn of_start(error: &io::Error, mountpoint: &Path, device_exists: bool) -> MountError {
        let text = error.to_string();
        let words = text.trim().trim_end_matches('.').to_string();
        match error.kind() {
            io::ErrorKind::NotFound if !device_exists => MountError::NoDevice,
            // The directory was checked before, so the helper is what was not found.
            io::ErrorKind::NotFound => MountError::NoHelper,
            io::ErrorKind::PermissionDenied if text.contains("user_allow_other") => {
                MountError::OthersForbidden
            }
            io::ErrorKind::PermissionDenied => MountError::DeviceDenied(words),
            _ if text.contains("user_allow_other") => MountError::OthersForbidden,
            _ if text.contains("fusermount") => MountError::HelperFailed(words),
            _ if text.contains("ENODEV") => MountError::NoDevice,
            _ if error.raw_os_error() == Some(libc::ENOTCONN) => MountError::of_mountpoint(mountpoint, error),
            _ => MountError::Refused(words),
        }
    }

    /// Why a directory cannot be mounted on.
    pub(crate) fn of_mountpoint(path: &Path, error: &io::Error) -> MountError {
        let why = if error.raw_os_error() == Some(libc::ENOTCONN) {
            format!("a dead mount is in the way; run 'umount -l {}'", path.display())
        } else {
            format!("{error}; give an existing directory")
        };
        MountError::Mountpoint { path: path.into(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_apart_and_advised_on() {
        let at = Path::new("/mnt");
        let of = |error: io::Error, device| MountError::of_start(&error, at, device).to_string();
        let code = io::Error::from_raw_os_error;
        assert!(of(code(libc::ENOENT), false).contains("modprobe fuse"));
        assert!(of(code(libc::ENOENT), true).contains("package fuse3"));
        assert!(of(code(libc::EACCES), true).contains("0666"));
        let helper =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        assert!(of(io::Error::other(helper), true).contains("/etc/fuse.conf"));
        assert!(of(io::Error::other("fusermount3: mount failed: EPERM"), true).contains("set-user-ID"));
        assert!(of(code(libc::ENOTCONN), true).contains("dead mount"));
    }
}
