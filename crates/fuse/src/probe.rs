//! What of FUSE works on this node.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const DEVICE: &str = "/dev/fuse";
/// Number of the capability to mount, in the masks of `/proc/self/status`.
const CAP_SYS_ADMIN: u32 = 21;
const SET_UID: u32 = 0o4000;

/// State of `/dev/fuse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    Usable,
    Missing,
    /// It is there but cannot be opened; why.
    Denied(String),
}

/// What works here; [`fmt::Display`] says it in lines for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseSupport {
    pub device: Device,
    /// This process may mount by itself.
    pub privileged: bool,
    /// The helper that mounts for users, when it is installed.
    pub fusermount3: Option<PathBuf>,
    /// The helper has the rights it needs.
    pub helper_works: bool,
    /// `unshare --user --map-root-user --mount` works here.
    pub user_namespace: bool,
    /// `/etc/fuse.conf` lets users mount with `allow_other`.
    pub user_allow_other: bool,
}

impl FuseSupport {
    /// True when a mount by this process should work.
    pub fn usable(&self) -> bool {
        self.device == Device::Usable && (self.privileged || self.helper_works)
    }

    /// True when a mount inside a user and mount name space should work.
    pub fn usable_in_namespace(&self) -> bool {
        self.device == Device::Usable && self.user_namespace
    }

    /// What to do when nothing works.
    pub fn advice(&self) -> Option<&'static str> {
        if self.usable() || self.usable_in_namespace() {
            return None;
        }
        Some(match self.device {
            Device::Missing => "load the module fuse or pass /dev/fuse into the container",
            Device::Denied(_) => "give /dev/fuse mode 0666",
            Device::Usable => "install fuse3, or allow user name spaces (sysctl user.max_user_namespaces)",
        })
    }
}

impl fmt::Display for FuseSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = |b: bool| if b { "yes" } else { "no" };
        match &self.device {
            Device::Usable => writeln!(f, "/dev/fuse: usable")?,
            Device::Missing => writeln!(f, "/dev/fuse: missing")?,
            Device::Denied(why) => writeln!(f, "/dev/fuse: cannot be opened ({why})")?,
        }
        writeln!(f, "may mount itself: {}", yes(self.privileged))?;
        match &self.fusermount3 {
            Some(path) if self.helper_works => writeln!(f, "fusermount3: {}", path.display())?,
            Some(path) => writeln!(f, "fusermount3: {} lacks the set-user-ID bit of root", path.display())?,
            None => writeln!(f, "fusermount3: not installed")?,
        }
        writeln!(f, "allow_other for users: {}", yes(self.user_allow_other))?;
        write!(f, "user and mount name space: {}", yes(self.user_namespace))?;
        match self.advice() {
            Some(advice) => {
                write!(f, "\nFUSE does not work here: {advice}; '--client preload' needs no mount")
            }
            None => Ok(()),
        }
    }
}

/// Looks at this node. Runs `unshare` once; mounts nothing.
pub fn probe() -> FuseSupport {
    let fusermount3 = find_helper();
    let privileged = has_capability(&read("/proc/self/status"), CAP_SYS_ADMIN);
    FuseSupport {
        device: device(),
        privileged,
        helper_works: fusermount3.as_deref().is_some_and(|path| privileged || is_setuid_root(path)),
        fusermount3,
        user_namespace: unshare_works(),
        user_allow_other: allows_other(&read("/etc/fuse.conf")),
    }
}

pub(crate) fn device() -> Device {
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Device::Usable,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Device::Missing,
        Err(error) => Device::Denied(error.to_string()),
    }
}

/// `fusermount3` on the search path, or where it usually is.
pub(crate) fn find_helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join("fusermount3")).find(|p| p.is_file())
}

fn is_setuid_root(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.uid() == 0 && m.mode() & SET_UID != 0)
}

fn unshare_works() -> bool {
    Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn has_capability(status: &str, number: u32) -> bool {
    let mask = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_some_and(|mask| mask >> number & 1 == 1)
}

fn allows_other(conf: &str) -> bool {
    conf.lines().any(|l| l.trim() == "user_allow_other")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> FuseSupport {
        FuseSupport {
            device: Device::Usable,
            privileged: false,
            fusermount3: None,
            helper_works: false,
            user_namespace: false,
            user_allow_other: false,
        }
    }

    #[test]
    fn capabilities_and_configuration_parse() {
        assert!(has_capability("Name:\tx\nCapEff:\t000001ffffffffff\n", CAP_SYS_ADMIN));
        assert!(!has_capability("CapEff:\t0000000000000000\n", CAP_SYS_ADMIN));
        assert!(!has_capability("", CAP_SYS_ADMIN));
        assert!(allows_other("# c\n user_allow_other \n"));
        assert!(!allows_other("#user_allow_other\n"));
    }

    #[test]
    fn any_one_way_is_enough_and_none_gets_advice() {
        assert!(nothing().advice().unwrap().contains("fuse3"));
        assert!(FuseSupport { privileged: true, ..nothing() }.usable());
        assert!(FuseSupport { user_namespace: true, ..nothing() }.usable_in_namespace());
        let missing = FuseSupport { device: Device::Missing, privileged: true, ..nothing() };
        assert!(!missing.usable());
        assert!(missing.to_string().contains("load the module"));
    }

    #[test]
    fn this_node_can_be_probed() {
        assert!(probe().to_string().contains("/dev/fuse"));
    }
}
