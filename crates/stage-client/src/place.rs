//! Paths in dataspaces as people write them: `nvme0://in/mesh`, and `n1:42000/nvme0://in/mesh` at the stager that
//! listens at `n1:42000`.

use std::fmt;
use tidepool_wire::stager::Resource;

const MARK: &[u8] = b"://";

/// Why a text names no place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaceError {
    text: String,
    why: &'static str,
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is no place: {}; write DATASPACE://PATH, or HOST:PORT/DATASPACE://PATH for one at another stager",
            self.text, self.why
        )
    }
}

impl std::error::Error for PlaceError {}

/// The path that a text names. A dataspace's name ends with `://` and has no other slash.
pub fn parse_place(text: &[u8]) -> Result<Resource, PlaceError> {
    let fail = |why| Err(PlaceError { text: String::from_utf8_lossy(text).into_owned(), why });
    let Some(mark) = text.windows(MARK.len()).position(|window| window == MARK) else {
        return fail("it has no '://'");
    };
    let (name, path) = text.split_at(mark + MARK.len());
    let Ok(name) = std::str::from_utf8(name) else { return fail("the dataspace's name is no UTF-8 text") };
    let before = &name[..mark];
    let (host, dataspace) = match before.rfind('/') {
        None => (None, name),
        Some(slash) => (Some(&before[..slash]), &name[slash + 1..]),
    };
    if dataspace.len() == MARK.len() {
        return fail("the dataspace has no name");
    }
    match host {
        None => Ok(Resource::local(dataspace, path)),
        Some(host) if is_address(host) => Ok(Resource::remote(dataspace, host, path)),
        Some(_) => fail("what is before the dataspace is no HOST:PORT"),
    }
}

/// The variable that a dataspace's directory is in for jobs: `NVME0` for `nvme0://` (Section IV-A of the
/// paper). What no variable can have in its name becomes `_`.
pub fn env_name(dataspace: &str) -> String {
    let name = dataspace.strip_suffix("://").unwrap_or(dataspace);
    let mut variable: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    if variable.is_empty() || variable.starts_with(|c: char| c.is_ascii_digit()) {
        variable.insert(0, '_');
    }
    variable
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// The text that [`parse_place`] reads; for memory, words for people.
pub fn show_place(place: &Resource) -> String {
    match place {
        Resource::Memory { address, size } => format!("{size} bytes of memory at {address:#x}"),
        Resource::Path { dataspace, host, path, .. } => {
            let host = host.as_ref().map(|host| format!("{host}/")).unwrap_or_default();
            format!("{host}{dataspace}{}", String::from_utf8_lossy(path))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dataspaces_have_variables() {
        let names = ["nvme0://", "pmdk0://", "lustre://", "my-space.2://", "7://"].map(env_name);
        assert_eq!(names, ["NVME0", "PMDK0", "LUSTRE", "MY_SPACE_2", "_7"]);
    }

    #[test]
    fn places_are_read_and_shown() {
        let local = Resource::local("nvme0://", b"in/mesh");
        assert_eq!(parse_place(b"nvme0://in/mesh"), Ok(local));
        assert_eq!(parse_place(b"nvme0://"), Ok(Resource::local("nvme0://", b"")));
        assert_eq!(parse_place(b"a://b://c\xff"), Ok(Resource::local("a://", b"b://c\xff")));
        let remote = Resource::remote("nvme0://", "n1:42000", b"out");
        assert_eq!(parse_place(b"n1:42000/nvme0://out"), Ok(remote));
        let v6 = Resource::remote("a://", "[::1]:42000", b"/x");
        assert_eq!(parse_place(b"[::1]:42000/a:///x"), Ok(v6));
        for text in ["nvme0://in", "n1:42000/nvme0://out", "a://"] {
            assert_eq!(show_place(&parse_place(text.as_bytes()).unwrap()), text);
        }
        for wrong in
            [&b"in/mesh"[..], b"", b"://x", b"n1/a://x", b"n1:70000/a://x", b"n1:1/://x", b"\xff://x"]
        {
            assert!(parse_place(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
