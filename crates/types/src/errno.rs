//! Error numbers, as POSIX programs see them.

use std::fmt;

/// An `errno` value; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident $text:literal),* $(,)?) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno(libc::$name);)*

            /// Symbolic name, such as `ENOENT`; empty for one this table does not hold.
            pub fn name(self) -> &'static str {
                match self.0 { $(libc::$name => stringify!($name),)* _ => "" }
            }

            /// Plain words for people.
            pub fn text(self) -> &'static str {
                match self.0 { $(libc::$name => $text,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    EPERM "operation not permitted", ENOENT "no such file or directory", ESRCH "no such process", EINTR "interrupted",
    EIO "input/output error", ENXIO "no such device or address", EBADF "bad file descriptor",
    EAGAIN "try again", ENOMEM "out of memory", EACCES "permission denied", EFAULT "bad address",
    EBUSY "busy", EEXIST "file exists", EXDEV "crosses file systems", ENODEV "no such device",
    ENOTDIR "not a directory", EISDIR "is a directory", EINVAL "invalid argument",
    ENFILE "too many open files in system", EMFILE "too many open files", ENOTTY "not a terminal",
    ETXTBSY "text file busy", EFBIG "file too large", ENOSPC "no space left on device",
    ESPIPE "illegal seek", EROFS "read-only file system", EMLINK "too many links",
    EPIPE "broken pipe", ERANGE "result too large", EDEADLK "deadlock avoided",
    ENAMETOOLONG "file name too long", ENOLCK "no locks available", ENOSYS "function not implemented",
    ENOTEMPTY "directory not empty", ELOOP "too many symbolic links", ENODATA "no such attribute",
    ETIME "timer expired", EPROTO "protocol error", EBADMSG "bad message", EOVERFLOW "value too large",
    EOPNOTSUPP "operation not supported", ECONNREFUSED "connection refused", ECONNRESET "connection reset",
    ETIMEDOUT "timed out", EHOSTDOWN "host is down", EHOSTUNREACH "no route to host",
    ENOTCONN "not connected", ESTALE "stale handle", EDQUOT "quota exceeded", ECANCELED "cancelled",
    E2BIG "argument list too long", ENOEXEC "not an executable",
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.text(), self.name(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "" => write!(f, "errno {}", self.0),
            name => f.write_str(name),
        }
    }
}

impl std::error::Error for Errno {}

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno::from(&error)
    }
}
