//! The two sockets and the connections behind them.

use crate::config;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use tidepool_stage_client::{StageError, Stager, control_socket, user_socket};

/// Which socket a function uses: `norns_*` the one for tasks, `nornsctl_*` the one for administration.
#[derive(Clone, Copy)]
pub enum Door {
    User,
    Control,
}

/// A connection and whose it is.
struct Session {
    owner: Owner,
    stager: Stager,
}

/// A forked child must not share its parent's connection, and the stager knows a connection by the
/// rights it was made with.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    pid: u32,
    uid: u32,
    gid: u32,
}

impl Owner {
    fn now() -> Owner {
        // SAFETY: these read numbers of the process and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Owner { pid: std::process::id(), uid, gid }
    }
}

/// What is put here is never freed: another thread may be using it. A process changes its owner a few times at most.
static USER: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());
static CONTROL: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());

impl Door {
    /// The stager behind the door; connects when that has not been done. There is no lock: a
    /// fork in the middle could leave it taken for ever in the child.
    pub fn stager(self) -> Result<&'static Stager, StageError> {
        let place = match self {
            Door::User => &USER,
            Door::Control => &CONTROL,
        };
        let owner = Owner::now();
        let current = place.load(Ordering::Acquire);
        // SAFETY: null, or a session leaked below, which lives for ever.
        match unsafe { current.as_ref() } {
            Some(session) if session.owner == owner => Ok(&session.stager),
            _ => self.connect(place, current, owner),
        }
    }

    fn connect(
        self,
        place: &'static AtomicPtr<Session>,
        old: *mut Session,
        owner: Owner,
    ) -> Result<&'static Stager, StageError> {
        let session = Box::new(Session { owner, stager: Stager::connect(self.socket()?)? });
        let new = Box::into_raw(session);
        // SAFETY: made just now; freed only by the branch below that no one else has seen it in.
        let own = unsafe { &*new };
        match place.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(&own.stager),
            Err(_) => {
                // Another thread was faster.
                // SAFETY: `new` was not published, and `own` is not used after this.
                drop(unsafe { Box::from_raw(new) });
                self.stager()
            }
        }
    }

    fn socket(self) -> Result<PathBuf, StageError> {
        let (key, default) = match self {
            Door::User => ("global_socket", user_socket as fn() -> PathBuf),
            Door::Control => ("control_socket", control_socket as fn() -> PathBuf),
        };
        let Some(file) = std::env::var_os(config::CONFIG_VARIABLE).filter(|file| !file.is_empty()) else {
            return Ok(default());
        };
        let text = std::fs::read_to_string(&file).map_err(|error| {
            let source = io::Error::other(format!("{} names it: {error}", config::CONFIG_VARIABLE));
            StageError::Connect { at: PathBuf::from(file).into(), source }
        })?;
        Ok(config::value(&text, key).unwrap_or_else(default))
    }
}
