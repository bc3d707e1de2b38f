//! The tests that `docs/consistency.md` names in brackets exist: a promise is worth the test behind it.

use crate::{Finding, files};
use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = "docs/consistency.md";

pub fn check(root: &Path) -> Vec<Finding> {
    let Ok(page) = std::fs::read_to_string(root.join(PAGE)) else {
        return vec![finding("the page of promises is missing".into())];
    };
    let known = known(&root.join("crates"));
    let unknown = named(&page).into_iter().filter(|(_, name)| !known.contains(name));
    unknown.map(|(line, name)| finding(format!("line {line}: there is no test '{name}'"))).collect()
}

fn finding(what: String) -> Finding {
    Finding { place: PAGE.into(), what }
}

/// Names in backticks within brackets, with their lines. A bracket that a link's target follows is none of these.
fn named(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(open) = rest.find('[') {
        let inside = &rest[open + 1..];
        let Some(close) = inside.find(']') else { break };
        let is_link = inside[close + 1..].starts_with('(');
        let at = page.len() - inside.len();
        let names = inside[..close].split('`').skip(1).step_by(2).filter(|_| !is_link);
        let line = page[..at].matches('\n').count() + 1;
        found.extend(names.map(|name| (line, name.to_string())));
        rest = &inside[close + 1..];
    }
    found
}

/// Files of tests, by their names, and functions that are tests.
fn known(crates: &Path) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for path in files(crates, &[".rs"]) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let tests = tests(&text);
        if !tests.is_empty() {
            known.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        known.extend(tests);
    }
    known
}

fn tests(text: &str) -> Vec<String> {
    let after_marks = text.split("#[test]").skip(1);
    let name = |rest: &str| {
        let (_, behind) = rest.split_once("fn ")?;
        let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        Some(behind[..end].to_string())
    };
    after_marks.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_brackets_are_found_with_their_lines() {
        let page = "A [`one.rs`; `two`: words] and\n[a link `x`](y)\n[`three`,\n`four`] `five` [six]";
        let found = named(page);
        let found: Vec<(usize, &str)> = found.iter().map(|(line, name)| (*line, name.as_str())).collect();
        assert_eq!(found, [(1, "one.rs"), (1, "two"), (3, "three"), (3, "four")]);
        assert_eq!(named("[`open"), []);
    }

    #[test]
    fn only_tests_count() {
        let text = "fn helper() {}\n#[test]\n/// words\n#[ignore]\nfn a_test() {}\nproptest! { #[test]\nfn b2(x in 0..1) {} }";
        assert_eq!(tests(text), ["a_test", "b2"]);
    }
}
