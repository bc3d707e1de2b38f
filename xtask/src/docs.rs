//! Commands in the documentation exist: every `tidepool WORD` in a code block is a command
//! of the flag table, and every `make TARGET` a target of the Makefile.

use crate::{Finding, files, relative};
use std::collections::BTreeSet;
use std::path::Path;

pub fn check(root: &Path) -> Vec<Finding> {
    let commands =
        commands(&std::fs::read_to_string(root.join("crates/cli/src/flags.rs")).unwrap_or_default());
    let targets = targets(&std::fs::read_to_string(root.join("Makefile")).unwrap_or_default());
    let mut findings = Vec::new();
    for path in files(root, &[".md"]) {
        let place = relative(root, &path);
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (number, line) in code_lines(&text) {
            for (program, known) in [("tidepool", &commands), ("make", &targets)] {
                if let Some(word) = word_after(line, program)
                    && !known.contains(word)
                {
                    let what = format!("line {number}: there is no '{program} {word}'");
                    findings.push(Finding { place: place.clone(), what });
                }
            }
        }
    }
    findings
}

/// Lines of fenced code blocks, with their numbers.
fn code_lines(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// The word after a program's name at the start of a command, when it is no option.
fn word_after<'a>(line: &'a str, program: &str) -> Option<&'a str> {
    let command = line.trim_start().trim_start_matches("$ ");
    let rest = command.strip_prefix(program)?.strip_prefix(' ')?;
    let word = rest.split_whitespace().next()?;
    word.chars().all(|c| c.is_ascii_lowercase() || c == '-').then_some(word).filter(|w| !w.starts_with('-'))
}

/// Variants of `enum Command`, as words of the command line.
fn commands(flags: &str) -> BTreeSet<String> {
    let Some(start) = flags.find("pub enum Command {") else { return BTreeSet::new() };
    let body = &flags[start..];
    let body = &body[..body.find("\n}").unwrap_or(body.len())];
    body.lines()
        .map(str::trim)
        .filter(|l| l.starts_with(|c: char| c.is_ascii_uppercase()))
        .filter_map(|l| l.split(['(', ' ', ',']).next())
        .map(kebab)
        .collect()
}

/// `NodeCheck` as clap writes it: `node-check`.
fn kebab(variant: &str) -> String {
    let mut word = String::new();
    for letter in variant.chars() {
        if letter.is_ascii_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.push(letter.to_ascii_lowercase());
    }
    word
}

fn targets(makefile: &str) -> BTreeSet<String> {
    makefile
        .lines()
        .filter(|l| l.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|l| l.split_once(':').map(|(name, _)| name.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_commands_are_found() {
        let text =
            "tidepool nonsense outside a block\n```\n$ tidepool run -- x\ntidepool --help\nmake test\n```\n";
        let words: Vec<_> = code_lines(text)
            .iter()
            .filter_map(|(_, l)| word_after(l, "tidepool").or_else(|| word_after(l, "make")))
            .collect();
        assert_eq!(words, ["run", "test"]);
    }

    #[test]
    fn the_flag_table_is_read() {
        let flags = "pub enum Command {\n    /// Run it\n    Run(RunArgs),\n    Pool(PoolCommand),\n}\nenum X { Y(Z) }\n";
        assert_eq!(commands(flags).into_iter().collect::<Vec<_>>(), ["pool", "run"]);
    }
}
