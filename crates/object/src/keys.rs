//! Names as parts of keys.

use crate::KEY_BYTES_MAX;
use tidepool_stage::{EndError, EndResult};
use tidepool_types::Errno;

/// What speaks against a name as part of a key.
///
/// Control characters cannot be carried by the listings of S3, which are XML, and `.` and `..`
/// do not survive the way of an URL.
pub(crate) fn check_name(name: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(name).map_err(|_| "keys of objects are UTF-8")?;
    match text {
        "" => return Err("it is empty"),
        "." | ".." => return Err("'.' and '..' mean other places"),
        _ => {}
    }
    let unfit = |c: char| c.is_control() || matches!(c, '/' | '\u{fffe}' | '\u{ffff}');
    if text.chars().any(unfit) {
        return Err("listings of object stores cannot carry control characters");
    }
    Ok(text)
}

/// Key of a name in a directory, which is empty or ends in '/'.
pub(crate) fn join(operation: &'static str, dir: &str, name: &[u8]) -> EndResult<String> {
    let refuse = |errno, why: &str| EndError {
        errno,
        operation,
        detail: Some(format!("'{}' cannot be a key: {why}", tidepool_stage::show_bytes(name))),
    };
    let name = check_name(name).map_err(|why| refuse(Errno::EINVAL, why))?;
    // Room for the '/' of a directory.
    if dir.len() + name.len() >= KEY_BYTES_MAX {
        return Err(refuse(Errno::ENAMETOOLONG, "keys have at most 1024 bytes"));
    }
    Ok(format!("{dir}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_keys_and_impossible_ones_are_refused() {
        for name in [" a b ", "%41", "..x", ".hidden", "-rf", "\u{e9}\u{1f30a}", "a+b&c?d#e", "\\"] {
            assert_eq!(join("x", "d/", name.as_bytes()).unwrap(), format!("d/{name}"));
        }
        for name in [&b""[..], b".", b"..", b"a/b", b"a\nb", b"\xff", b"\0", "\u{fffe}".as_bytes()] {
            assert_eq!(join("x", "d/", name).unwrap_err().errno, Errno::EINVAL);
        }
        let long = "x".repeat(1020);
        assert_eq!(join("x", "dir/", long.as_bytes()).unwrap_err().errno, Errno::ENAMETOOLONG);
        assert!(join("x", "d/", long.as_bytes()).is_ok());
    }
}
