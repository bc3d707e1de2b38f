//! Behind every promise of `docs/consistency.md` stand tests, named in brackets, and they exist: a promise is worth the test
//! behind it. What only takes away from a promise begins with the mark [`LIMIT`].

use crate::{Finding, files};
use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = "docs/consistency.md";
const LIMIT: &str = "*Limit:*";

pub fn check(root: &Path) -> Vec<Finding> {
    let Ok(page) = std::fs::read_to_string(root.join(PAGE)) else {
        return vec![finding("the page of promises is missing".into())];
    };
    let known = known(&root.join("crates"));
    let unknown = named(&page).into_iter().filter(|(_, name)| !known.contains(name));
    let unknown = unknown.map(|(line, name)| finding(format!("line {line}: there is no test '{name}'")));
    let bare = bare(&page).into_iter().map(|(line, begin)| {
        finding(format!("line {line}: no test is named behind '{begin}…'; name one, or begin with '{LIMIT}'"))
    });
    unknown.chain(bare).collect()
}

/// Items, rows and paragraphs below the first section that name no test and are no limits, with their first lines.
fn bare(page: &str) -> Vec<(usize, String)> {
    let first = page.lines().position(|line| line.starts_with("## ")).unwrap_or(0);
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in page.lines().enumerate().skip(first) {
        let begins = line.starts_with("- ") || line.starts_with("| ");
        let nothing = line.is_empty() || line.starts_with('#') || line.starts_with("|---");
        match blocks.last_mut() {
            _ if nothing => {
                // A row above a rule is the head of a table.
                if line.starts_with("|---") {
                    blocks.pop();
                }
            }
            Some((_, block)) if goes_on && !begins => block.push_str(&format!("\n{line}")),
            _ => blocks.push((number + 1, line.to_string())),
        }
        goes_on = !nothing;
    }
    blocks.retain(|(_, block)| !block.trim_start_matches("- ").starts_with(LIMIT) && named(block).is_empty());
    blocks.into_iter().map(|(line, block)| (line, block.chars().take(40).collect())).collect()
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

    #[test]
    fn promises_without_a_test_are_found_and_limits_are_none() {
        let page = "# Page\nIntroduction.\n\n## One\n- kept\n  [`a_test`]\n- broken\n  over lines\n- *Limit:* less\n\nA paragraph.\n\n\
                    | head | x |\n|---|---|\n| row [`t`] | x |\n| bare | [a link `x`](y) |\n";
        let found = bare(page);
        let found: Vec<(usize, &str)> = found.iter().map(|(line, begin)| (*line, begin.as_str())).collect();
        let expected =
            [(7, "- broken\n  over lines"), (11, "A paragraph."), (16, "| bare | [a link `x`](y) |")];
        assert_eq!(found, expected);
    }
}
