//! Where stagers listen.

use rustix::net::sockopt::socket_peercred;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tidepool_rundir::{Dir, Places, Trust, UNWRITABLE, Want, is_socket_of};

/// Names the user socket.
pub const USER_SOCKET_VARIABLE: &str = "TIDEPOOL_STAGER_SOCKET";
/// Names the control socket.
pub const CONTROL_SOCKET_VARIABLE: &str = "TIDEPOOL_STAGER_CONTROL";
/// Where the node's own stager listens.
const SYSTEM_DIR: &str = "/run/tidepool/stager";

/// The socket for tasks: `TIDEPOOL_STAGER_SOCKET`, else `user.socket` of a stager that the user has started, in
/// `$XDG_RUNTIME_DIR/tidepool/stager` or a directory of the user's below `/tmp`, where there is one, else
/// `/run/tidepool/stager/user.socket`.
pub fn user_socket() -> PathBuf {
    locate(|name| std::env::var_os(name), &Places::own(), USER_SOCKET_VARIABLE, "user.socket")
}

/// The socket for administration: as [`user_socket`], with `TIDEPOOL_STAGER_CONTROL` and `control.socket`.
pub fn control_socket() -> PathBuf {
    locate(|name| std::env::var_os(name), &Places::own(), CONTROL_SOCKET_VARIABLE, "control.socket")
}

fn locate(env: impl Fn(&str) -> Option<OsString>, places: &Places, variable: &str, file: &str) -> PathBuf {
    if let Some(path) = env(variable).filter(|path| !path.is_empty()) {
        return path.into();
    }
    // Every login session has such a directory; only a stager that a user started himself has its socket there. One that
    // somebody else has made is none of his.
    let want = Want { forbidden: UNWRITABLE, ..Want::private(places.uid) };
    let own = places
        .stagers()
        .into_iter()
        .find(|place| Dir::open(place, &want).is_ok_and(|dir| is_socket_of(&dir, file.as_ref())));
    own.unwrap_or_else(|| SYSTEM_DIR.into()).join(file)
}

/// Connects to a stager of this node. Whoever listens is asked nothing before the kernel has said that he is the caller or
/// root: the name may have been taken by anybody.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let trust = Trust::own();
    let path = std::path::absolute(path)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let owner = std::fs::metadata(dir)?.uid();
    if !trust.trusts(owner) {
        return Err(io::Error::other(format!(
            "{} belongs to uid {owner}, who is neither you nor root, so nothing is asked there",
            dir.display()
        )));
    }
    let stream = UnixStream::connect(&path)?;
    let peer = socket_peercred(&stream)?.uid.as_raw();
    if !trust.trusts(peer) {
        return Err(io::Error::other(format!(
            "who listens there runs as uid {peer}, who is neither you nor root, so nothing is asked"
        )));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    const BOB: u32 = 31002;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Nothing is anywhere but in this directory.
    fn places(dir: &Path) -> Places {
        Places {
            named: None,
            session: Some(dir.join("session")),
            in_job: false,
            temporary: dir.join("tmp"),
            sessions: dir.join("sessions"),
            logind: dir.join("logind"),
            linger: dir.join("linger"),
            uid: own(),
        }
    }

    fn found(pairs: &[(&str, &str)], places: &Places) -> PathBuf {
        let env = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        locate(env, places, USER_SOCKET_VARIABLE, "user.socket")
    }

    fn private(path: &Path) -> PathBuf {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
        path.into()
    }

    #[test]
    fn the_nearest_socket_is_taken() {
        let dir = TempDir::new().unwrap();
        let (places, system) = (places(dir.path()), Path::new("/run/tidepool/stager/user.socket"));
        let session = private(&dir.path().join("session/tidepool/stager"));
        assert_eq!(found(&[], &places), system);
        let shared = private(&dir.path().join(format!("tmp/tidepool-{}-3/.stager", own())));
        fs::write(session.join("user.socket"), "no socket").unwrap();
        let _one = UnixListener::bind(shared.join("user.socket")).unwrap();
        assert_eq!(found(&[], &places), shared.join("user.socket"));
        fs::remove_file(session.join("user.socket")).unwrap();
        let _other = UnixListener::bind(session.join("user.socket")).unwrap();
        assert_eq!(found(&[], &places), session.join("user.socket"));
        assert_eq!(found(&[(USER_SOCKET_VARIABLE, "/s")], &places), Path::new("/s"));
        assert_eq!(found(&[(USER_SOCKET_VARIABLE, "")], &places), session.join("user.socket"));
    }

    /// Bob has made the user's directory first, and listens in it.
    #[test]
    fn a_squatted_socket_is_not_found_and_not_asked() {
        if own() != 0 {
            eprintln!(
                "SKIPPED: a_squatted_socket_is_not_found_and_not_asked needs root, to make files of another user"
            );
            return;
        }
        let dir = TempDir::new().unwrap();
        let (places, system) = (places(dir.path()), Path::new("/run/tidepool/stager/user.socket"));
        for place in ["session/tidepool/stager", "tmp/tidepool-0/.stager", "tmp/tidepool-0-1/.stager"] {
            let taken = private(&dir.path().join(place));
            let listener = UnixListener::bind(taken.join("user.socket")).unwrap();
            listener.set_nonblocking(true).unwrap();
            assert_eq!(found(&[], &places), taken.join("user.socket"), "its owner would find it");
            chown(&taken, Some(BOB), Some(BOB)).unwrap();
            assert_eq!(found(&[], &places), system, "{place}");
            let error = connect(&taken.join("user.socket")).unwrap_err().to_string();
            assert!(error.contains("uid 31002"), "{error}");
            assert!(listener.accept().is_err(), "it was connected to");
        }
        // A directory of one's own, in which others may put sockets.
        let open = private(&dir.path().join("session/tidepool/stager"));
        chown(&open, Some(0), Some(0)).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(found(&[], &places), system);
    }
}
