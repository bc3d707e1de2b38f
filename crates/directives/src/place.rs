//! Paths in dataspaces as people write them: `nvme0://in/mesh`, and `n1:42000/nvme0://in/mesh` at the stager that
//! listens at `n1:42000`.

use serde::{Serialize, Serializer};
use std::fmt;
use tidepool_types::show_bytes;
use tidepool_wire::stager::{DATASPACE_NAME_MAX, RESOURCE_PATH_MAX, Resource};

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

/// A place as job scripts name it. What a path is in, and where the job's own pools are, is settled later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// `nvme0://in/mesh`: the name is `nvme0://`.
    Dataspace { name: String, path: Vec<u8> },
    /// `/scratch/u/in`: in whatever dataspace is mounted over it.
    Path(Vec<u8>),
}

/// Why a word of a script is no place, and which place it was probably meant to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoPlace {
    pub why: String,
    pub meant: Option<String>,
}

impl Place {
    pub fn parse(word: &[u8]) -> Result<Place, NoPlace> {
        let place = match word.windows(MARK.len()).position(|window| window == MARK) {
            _ if word.starts_with(b"/") => Place::Path(word.to_vec()),
            Some(mark) => in_dataspace(word, mark)?,
            None => return Err(neither(word)),
        };
        let bytes = place.bytes();
        if bytes.len() > RESOURCE_PATH_MAX {
            return refuse(format!("a path has at most {RESOURCE_PATH_MAX} bytes"));
        }
        if bytes.split(|b| *b == b'/').any(|name| name == b"..") {
            return refuse(format!("'{place}' has '..' in it; write where it leads"));
        }
        Ok(place)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Place::Dataspace { path, .. } | Place::Path(path) => path,
        }
    }

    /// The name of the dataspace that it is in, if it says so.
    pub fn dataspace(&self) -> Option<&str> {
        match self {
            Place::Dataspace { name, .. } => Some(name),
            Place::Path(_) => None,
        }
    }

    /// Names on the way to it, without what leads nowhere.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes().split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."))
    }

    /// True for two ways to write the same place.
    pub fn is_same(&self, other: &Place) -> bool {
        self.dataspace() == other.dataspace() && self.names().eq(other.names())
    }

    /// What [`parse`](Place::parse) reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.dataspace().unwrap_or_default().as_bytes(), self.bytes()].concat()
    }
}

/// For people.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_bytes(&self.to_bytes()))
    }
}

/// Bytes that are no text become U+FFFD, as in all JSON of tidepool.
impl Serialize for Place {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

fn refuse(why: impl Into<String>) -> Result<Place, NoPlace> {
    Err(NoPlace { why: why.into(), meant: None })
}

fn in_dataspace(word: &[u8], mark: usize) -> Result<Place, NoPlace> {
    let (name, path) = word.split_at(mark + MARK.len());
    let shown = show_bytes(name);
    if mark == 0 {
        return refuse(format!("the dataspace has no name in '{}'", show_bytes(word)));
    }
    if let Some(slash) = name[..mark].iter().rposition(|b| *b == b'/') {
        let why = format!("'{}' is at another stager; scripts name dataspaces only", show_bytes(word));
        let meant = Place::parse(&word[slash + 1..]).ok().map(|place| place.to_string());
        return Err(NoPlace { why, meant });
    }
    let Ok(text) = std::str::from_utf8(name) else {
        return refuse(format!("the dataspace's name '{shown}' is no UTF-8 text"));
    };
    if name.len() > DATASPACE_NAME_MAX || text.contains(char::is_control) {
        let rule = format!("1 to {DATASPACE_NAME_MAX} bytes and no control characters");
        return refuse(format!("a dataspace's name has {rule}"));
    }
    Ok(Place::Dataspace { name: text.into(), path: path.to_vec() })
}

/// A word that is neither in a dataspace nor a path.
fn neither(word: &[u8]) -> NoPlace {
    let shown = show_bytes(word);
    let Ok(text) = std::str::from_utf8(word) else {
        return NoPlace { why: format!("'{shown}' is no place: {HOW}"), meant: None };
    };
    if let Some(rest) = text.strip_prefix('$') {
        // The stager's variables are made of the dataspaces' names: NVME0 of nvme0://.
        let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
        let name = name.trim_start_matches('{').trim_end_matches('}').to_ascii_lowercase();
        let meant = is_word(&name).then(|| format!("{name}://{path}"));
        return NoPlace { why: format!("'{shown}' is no place: no variable is expanded here"), meant };
    }
    // `lustre:/in` and `lustre:in`, as other staging systems write it.
    let meant = text.split_once(':').filter(|(name, _)| is_word(name));
    let meant = meant.map(|(name, path)| format!("{name}://{}", path.trim_start_matches('/')));
    NoPlace { why: format!("'{shown}' is no place: {HOW}"), meant }
}

const HOW: &str = "write DATASPACE://PATH, or a path that starts with '/'";

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
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
    fn scripts_name_dataspaces_and_paths() {
        let dataspace = |name: &str, path: &[u8]| Place::Dataspace { name: name.into(), path: path.into() };
        assert_eq!(Place::parse(b"nvme0://in/mesh"), Ok(dataspace("nvme0://", b"in/mesh")));
        assert_eq!(Place::parse(b"pool://"), Ok(dataspace("pool://", b"")));
        assert_eq!(Place::parse(b"/scratch/a://b"), Ok(Place::Path(b"/scratch/a://b".to_vec())));
        let same = |a: &[u8], b: &[u8]| Place::parse(a).unwrap().is_same(&Place::parse(b).unwrap());
        assert!(same(b"a://x/y", b"a:///x/./y/") && same(b"/x", b"//x/"));
        assert!(!same(b"a://x", b"b://x") && !same(b"a://x", b"/x") && !same(b"a://x", b"a://y"));
    }

    #[test]
    fn what_is_no_place_is_told_with_what_was_meant() {
        let long = [b"a://", vec![b'x'; RESOURCE_PATH_MAX + 1].as_slice()].concat();
        let name = [vec![b'n'; DATASPACE_NAME_MAX], b"://".to_vec()].concat();
        let cases: &[(&[u8], &str, Option<&str>)] = &[
            (b"in/mesh", "'in/mesh' is no place: write DATASPACE", None),
            (b"", "'' is no place", None),
            (b"lustre:/in", "'lustre:/in' is no place", Some("lustre://in")),
            (b"lustre:in", "'lustre:in' is no place", Some("lustre://in")),
            (b"$NVME0/in", "no variable is expanded", Some("nvme0://in")),
            (b"${LUSTRE}", "no variable is expanded", Some("lustre://")),
            (b"$(pwd)/in", "no variable is expanded", None),
            (b"~/in", "'~/in' is no place", None),
            (b"://x", "has no name", None),
            (b"n1:42000/nvme0://in", "is at another stager", Some("nvme0://in")),
            (b"\xff://x", "no UTF-8", None),
            (b"a\nb://x", "no control characters", None),
            (&name, "1 to 255 bytes", None),
            (&long, "at most 4096 bytes", None),
            (b"a://x/../y", "'a://x/../y' has '..' in it", None),
            (b"/..", "has '..' in it", None),
        ];
        for (word, why, meant) in cases {
            let told = Place::parse(word).expect_err(why);
            assert!(told.why.contains(why), "{told:?}");
            assert_eq!(told.meant.as_deref(), *meant, "{why}");
        }
        assert!(Place::parse(b"a://..x/y..").is_ok());
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
