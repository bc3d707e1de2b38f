//! Finding and removing mounts of pools.

use crate::error::MountError;
use crate::options::source_of;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidepool_types::InstanceId;

/// One line of `/proc/self/mountinfo`, as far as we care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `major:minor`
    pub device: String,
    pub path: PathBuf,
    pub fstype: String,
    pub source: Vec<u8>,
    /// Who made it, of a mount of FUSE.
    pub user: Option<u32>,
}

/// All mounts this process sees, in the order they were made. Empty without `/proc`.
pub(crate) fn mounts() -> Vec<MountEntry> {
    seen_by("self")
}

/// Those that another process sees; none of one that is gone, or that this user may not look at.
fn seen_by(process: &str) -> Vec<MountEntry> {
    parse(&std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default())
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mnt rw,noatime shared:1 - ext3 /dev/root rw`; there may be any number
/// of fields before the dash.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let path = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let mut after = fields.skip_while(|f| *f != b"-").skip(1);
    let fstype = String::from_utf8_lossy(&unescape(after.next()?)).into_owned();
    let source = unescape(after.next()?);
    let user = user_of(after.next().unwrap_or_default());
    Some(MountEntry { device, path, fstype, source, user })
}

/// `user_id` among a file system's options.
fn user_of(options: &[u8]) -> Option<u32> {
    let given = options.split(|b| *b == b',').find_map(|option| option.strip_prefix(b"user_id="))?;
    std::str::from_utf8(given).ok()?.parse().ok()
}

/// Decodes `\040` and the like; the kernel writes space, tab, newline and backslash so.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        match octal(rest) {
            Some(byte) => {
                out.push(byte);
                rest = &rest[4..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', digits @ ..] = text.get(..4)? else { return None };
    let value = digits.iter().try_fold(0u32, |value, digit| match digit {
        b'0'..=b'7' => Some(value * 8 + u32::from(digit - b'0')),
        _ => None,
    })?;
    u8::try_from(value).ok()
}

pub(crate) fn is_ours(entry: &MountEntry) -> bool {
    entry.fstype.starts_with("fuse") && entry.source.starts_with(b"tidepool:")
}

/// What this user has mounted of a pool, as this process or another sees it.
pub(crate) fn of_pool(pid: Option<u32>, instance: InstanceId) -> Vec<MountEntry> {
    let (source, user) = (source_of(instance), rustix::process::geteuid().as_raw());
    let mut seen = seen_by(&pid.map_or("self".into(), |pid| pid.to_string()));
    seen.retain(|entry| is_ours(entry) && entry.source == source.as_bytes() && entry.user == Some(user));
    seen
}

/// Mounts of any pool at or below a directory, last mounted first.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    select(mounts(), |entry| entry.path.starts_with(dir))
}

fn select(mounts: Vec<MountEntry>, wanted: impl Fn(&MountEntry) -> bool) -> Vec<PathBuf> {
    mounts.into_iter().rev().filter(|e| is_ours(e) && wanted(e)).map(|e| e.path).collect()
}

/// Takes a mount away from the name space at once, even while programs use it; those keep
/// what they have open. Works for a mount whose process is dead.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    let fail = |why: String| MountError::Unmount { path: path.into(), why };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => unmount_by_helper(path).map_err(fail),
        Err(rustix::io::Errno::INVAL) => Err(fail("nothing is mounted there".into())),
        Err(error) => Err(fail(error.to_string())),
    }
}

/// The mount that shows at a path.
pub(crate) fn mount_at(path: &Path) -> Option<MountEntry> {
    mounts().into_iter().rev().find(|entry| entry.path == path)
}

fn unmount_by_helper(path: &Path) -> Result<(), String> {
    let output = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("not permitted, and fusermount3 cannot be run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        90 22 0:50 / /tmp/a\\040b\\134c rw,nosuid,nodev - fuse.tidepool tidepool:00ff rw,user_id=0\n\
        91 22 0:51 / /tmp/tab\\011x rw shared:7 master:2 - fuse tidepool:11 rw\n\
        92 22 0:52 / /tmp/other rw - fuse.sshfs host:/x rw\n\
        93 22 0:53 / /data rw - xfs tidepool:evil rw\n\
        garbage\n\
        94 22\n";

    #[test]
    fn lines_parse_with_escapes_and_optional_fields() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 5);
        assert_eq!(mounts[1].path, Path::new("/tmp/a b\\c"));
        assert_eq!(mounts[1].device, "0:50");
        assert_eq!((mounts[1].user, mounts[2].user), (Some(0), None));
        assert_eq!(
            (mounts[1].fstype.as_str(), &mounts[1].source[..]),
            ("fuse.tidepool", &b"tidepool:00ff"[..])
        );
        assert_eq!(mounts[2].path, Path::new("/tmp/tab\tx"));
    }

    #[test]
    fn only_pools_are_selected_last_first() {
        let all = select(parse(TEXT), |_| true);
        assert_eq!(all, [Path::new("/tmp/tab\tx"), Path::new("/tmp/a b\\c")]);
        let below = select(parse(TEXT), |e| e.path.starts_with("/tmp/a b\\c"));
        assert_eq!(below, [Path::new("/tmp/a b\\c")]);
    }

    #[test]
    fn what_is_no_escape_stays() {
        for (from, to) in [
            (&b"a\\040"[..], &b"a "[..]),
            (b"\\04", b"\\04"),
            (b"\\", b"\\"),
            (b"\\999", b"\\999"),
            (b"\\777", b"\\777"),
            (b"\\134040", b"\\040"),
            (b"\\303\\244", "ä".as_bytes()),
        ] {
            assert_eq!(unescape(from), to);
        }
    }

    #[test]
    fn unmounting_nothing_says_so() {
        let error = unmount(Path::new("/proc/self/nothing")).unwrap_err().to_string();
        assert!(error.contains("/proc/self/nothing"), "{error}");
    }
}
