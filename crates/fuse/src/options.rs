//! What a mount can be asked to do.

use crate::error::MountError;
use fuser::{MountOption, SessionACL};
use std::path::PathBuf;
use std::time::Duration;
use tidepool_types::InstanceId;

/// File system type in `/proc/mounts`: `fuse.tidepool`.
pub(crate) const SUBTYPE: &str = "tidepool";
/// Threads that serve requests when nothing else is asked for.
const THREADS_DEFAULT: usize = 4;
/// Most threads that serve requests. Each may touch up to 16 MiB of request buffer.
const THREADS_MAX: usize = 64;
/// Longest cache time, in milliseconds: an hour.
const CACHE_TTL_MS_MAX: u64 = 3_600_000;

/// How to mount a pool. Start from [`MountOptions::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// An existing directory, or `/dev/fd/N` for a FUSE device that somebody else mounted.
    pub mountpoint: PathBuf,
    /// Threads that serve requests.
    pub threads: usize,
    /// Let users other than the one who mounts in.
    pub allow_other: bool,
    pub read_only: bool,
    /// How long the kernel may use attributes and names without asking again; 0 asks always.
    pub cache_ttl_ms: u64,
    /// Let the kernel keep names, attributes and pages that the daemons promise to call back. A `cache_ttl_ms` above 0 does without.
    pub leases: bool,
    /// Bypass the page cache: reads see other nodes' writes at once, without reopening.
    pub direct_io: bool,
    /// Leave permissions unchecked. Implied by a pool in relaxed mode.
    pub relaxed: bool,
}

impl MountOptions {
    pub fn new(mountpoint: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            mountpoint: mountpoint.into(),
            threads: THREADS_DEFAULT,
            allow_other: false,
            read_only: false,
            cache_ttl_ms: 0,
            leases: true,
            direct_io: false,
            relaxed: false,
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.cache_ttl_ms)
    }

    /// The descriptor number of a mount point given as `/dev/fd/N`.
    pub(crate) fn passed_fd(&self) -> Option<i32> {
        self.mountpoint.to_str()?.strip_prefix("/dev/fd/")?.parse().ok().filter(|fd| *fd >= 0)
    }

    /// Checks what can be checked without mounting.
    pub(crate) fn check(&self) -> Result<(), MountError> {
        let fail = |why: String| Err(MountError::Option(why));
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return fail(format!("threads must be 1 to {THREADS_MAX}, not {}", self.threads));
        }
        if self.cache_ttl_ms > CACHE_TTL_MS_MAX {
            return fail(format!(
                "cache_ttl_ms must be at most {CACHE_TTL_MS_MAX}, not {}",
                self.cache_ttl_ms
            ));
        }
        if self.passed_fd().is_some() {
            return Ok(());
        }
        let point = &self.mountpoint;
        match std::fs::metadata(point) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(MountError::Mountpoint { path: point.clone(), why: "is not a directory".into() }),
            Err(error) => Err(MountError::of_mountpoint(point, &error)),
        }
    }

    /// The session's configuration. `extras` are the parts that may have to go when a kernel
    /// or helper refuses them.
    pub(crate) fn config(&self, instance: InstanceId, relaxed: bool, extras: Extras) -> fuser::Config {
        let mut config = fuser::Config::default();
        let options = &mut config.mount_options;
        options.push(MountOption::FSName(source_of(instance)));
        if extras.subtype {
            // As a kernel option: the crate hands `Subtype` to fusermount3 only, and a mount
            // by mount(2) would show as plain `fuse`.
            options.push(MountOption::CUSTOM(format!("subtype={SUBTYPE}")));
        }
        options.push(if self.read_only { MountOption::RO } else { MountOption::RW });
        if !relaxed {
            options.push(MountOption::DefaultPermissions);
        }
        if extras.auto_unmount {
            options.push(MountOption::AutoUnmount);
        }
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.threads);
        config.clone_fd = extras.clone_fd;
        config
    }
}

/// Parts of a configuration that not every node supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extras {
    /// Kernels before 5.4 do not know the option.
    pub subtype: bool,
    /// fusermount3 unmounts when this process is killed; it demands `allow_other`.
    pub auto_unmount: bool,
    /// A device descriptor per thread, for which `/dev/fuse` must be openable.
    pub clone_fd: bool,
}

/// The source that `/proc/mounts` shows for mounts of a pool.
pub(crate) fn source_of(instance: InstanceId) -> String {
    format!("tidepool:{instance}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        let good = MountOptions::new("/");
        assert!(good.check().is_ok());
        for (options, word) in [
            (MountOptions { threads: 0, ..good.clone() }, "threads"),
            (MountOptions { threads: 999, ..good.clone() }, "999"),
            (MountOptions { cache_ttl_ms: u64::MAX, ..good.clone() }, "cache_ttl_ms"),
            (MountOptions::new("/nonexistent-mountpoint"), "/nonexistent-mountpoint"),
            (MountOptions::new("/etc/passwd"), "not a directory"),
        ] {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_passed_device_is_recognised() {
        assert_eq!(MountOptions::new("/dev/fd/7").passed_fd(), Some(7));
        for path in ["/dev/fd/", "/dev/fd/-1", "/dev/fd/7/x", "/dev/fdx", "/mnt"] {
            assert_eq!(MountOptions::new(path).passed_fd(), None, "{path}");
        }
    }

    #[test]
    fn relaxed_mounts_leave_permissions_to_nobody() {
        let all = Extras { subtype: true, auto_unmount: false, clone_fd: true };
        let id = InstanceId([7; 16]);
        let options = MountOptions { read_only: true, ..MountOptions::new("/") };
        let strict = options.config(id, false, all).mount_options;
        assert!(strict.contains(&MountOption::DefaultPermissions));
        assert!(strict.contains(&MountOption::RO));
        assert!(strict.contains(&MountOption::FSName(format!("tidepool:{id}"))));
        let relaxed = options.config(id, true, Extras { subtype: false, ..all }).mount_options;
        assert!(!relaxed.contains(&MountOption::DefaultPermissions));
        assert!(!relaxed.contains(&MountOption::CUSTOM("subtype=tidepool".into())));
    }
}
