//! Checks of the source tree that the compiler does not do: `cargo xtask tidy`.

#![forbid(unsafe_code)]

mod deps;
mod docs;
mod promises;
mod source;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One thing that is wrong, and where.
pub struct Finding {
    pub place: String,
    pub what: String,
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy(),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let root = root();
    let mut findings = deps::check(&root);
    findings.extend(source::check(&root));
    findings.extend(docs::check(&root));
    findings.extend(promises::check(&root));
    for finding in &findings {
        eprintln!("{}: {}", finding.place, finding.what);
    }
    if findings.is_empty() {
        println!("tidy: no findings");
        ExitCode::SUCCESS
    } else {
        eprintln!("tidy: {} finding(s)", findings.len());
        ExitCode::FAILURE
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// All files below `dir` with one of these endings, except build output and hidden folders.
pub fn files(dir: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return found };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                found.extend(files(&path, endings));
            }
        } else if endings.iter().any(|e| name.ends_with(e)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The path as seen from the workspace.
pub fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}
