//! Where stagers listen.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names the user socket.
pub const USER_SOCKET_VARIABLE: &str = "TIDEPOOL_STAGER_SOCKET";
/// Names the control socket.
pub const CONTROL_SOCKET_VARIABLE: &str = "TIDEPOOL_STAGER_CONTROL";
/// Where the node's own stager listens.
const SYSTEM_DIR: &str = "/run/tidepool/stager";

/// The socket for tasks: `TIDEPOOL_STAGER_SOCKET`, else `$XDG_RUNTIME_DIR/tidepool/stager/user.socket` where
/// there is one, else `/run/tidepool/stager/user.socket`.
pub fn user_socket() -> PathBuf {
    locate(|name| std::env::var_os(name), Path::exists, USER_SOCKET_VARIABLE, "user.socket")
}

/// The socket for administration: as [`user_socket`], with `TIDEPOOL_STAGER_CONTROL` and `control.socket`.
pub fn control_socket() -> PathBuf {
    locate(|name| std::env::var_os(name), Path::exists, CONTROL_SOCKET_VARIABLE, "control.socket")
}

fn locate(
    env: impl Fn(&str) -> Option<OsString>,
    exists: impl Fn(&Path) -> bool,
    variable: &str,
    file: &str,
) -> PathBuf {
    if let Some(path) = env(variable).filter(|path| !path.is_empty()) {
        return path.into();
    }
    // Every login session has this directory; only a stager that a user started himself has its socket there.
    let own = env("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("tidepool/stager").join(file));
    own.filter(|path| path.is_absolute() && exists(path)).unwrap_or_else(|| Path::new(SYSTEM_DIR).join(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pairs: &[(&str, &str)], there: &str) -> PathBuf {
        let env = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        locate(env, |path| path == Path::new(there), USER_SOCKET_VARIABLE, "user.socket")
    }

    #[test]
    fn the_nearest_socket_is_taken() {
        let (system, own) =
            (Path::new("/run/tidepool/stager/user.socket"), "/run/user/7/tidepool/stager/user.socket");
        let session = ("XDG_RUNTIME_DIR", "/run/user/7");
        assert_eq!(found(&[], ""), system);
        assert_eq!(found(&[session], ""), system);
        assert_eq!(found(&[session], own), Path::new(own));
        assert_eq!(found(&[session, (USER_SOCKET_VARIABLE, "/s")], own), Path::new("/s"));
        assert_eq!(found(&[(USER_SOCKET_VARIABLE, "")], ""), system);
    }
}
