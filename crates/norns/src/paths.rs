//! Paths as the published interface means them: from the root of a namespace, and never out of it.

/// The path without `.`, `..` and superfluous slashes. `/a/../b` is `b`, as `..` is taken by the name, not by what
/// lies there; above the root is the root. A slash at the end stays: it says "into this directory".
pub fn inside(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut inside = names.join(&b'/');
    if path.ends_with(b"/") && !inside.is_empty() {
        inside.push(b'/');
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out() {
        for (path, expected) in [
            ("a/b", "a/b"),
            ("/a//b/./c", "a/b/c"),
            ("a/b/", "a/b/"),
            ("/", ""),
            ("", ""),
            ("../../etc/passwd", "etc/passwd"),
            ("/a/../../b/", "b/"),
            ("a/..", ""),
            ("a/../", ""),
            ("...", "..."),
        ] {
            assert_eq!(inside(path.as_bytes()), expected.as_bytes(), "{path}");
        }
        assert_eq!(inside(b"/\xff/../\xfe"), b"\xfe");
    }
}
