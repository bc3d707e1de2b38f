//! Dependencies between our crates point downwards only, as ARCHITECTURE.md draws them.

use crate::Finding;
use std::collections::BTreeMap;
use std::path::Path;

/// The floors of the house, top first. A crate may use crates of lower floors only.
const FLOORS: &[&[&str]] = &[
    &["capi", "cli", "py", "testkit"],
    &["staged"],
    &["object"],
    &["fuse", "preload", "queue", "stage", "fsd", "sim-models"],
    &[
        "batch",
        "client",
        "devices",
        "jobsim",
        "shape",
        "sim-mpi",
        "sim-tiers",
        "stage-client",
        "store",
        "sysmap",
    ],
    &["transport", "fs-state", "norns", "sim", "stage-state", "directives"],
    &[
        "blocks",
        "env",
        "fabric",
        "io-traces",
        "iosched",
        "joblog",
        "placement",
        "plan",
        "predict",
        "shm",
        "trigger",
        "wire",
        "workload",
    ],
    &["removal"],
    &["man", "rundir", "types"],
];

/// Crates that must stay free of I/O, and the external crates they may use.
const PURE: &[(&str, &[&str])] = &[
    ("types", &["libc"]),
    ("wire", &[]),
    ("placement", &[]),
    ("io-traces", &[]),
    ("iosched", &["strsim"]),
    // Packed logs and JSON come as streams.
    ("joblog", &["flate2", "lz4_flex", "ruzstd", "serde", "serde_json", "snap"]),
    ("plan", &["serde", "serde_json"]),
    ("trigger", &[]),
    ("predict", &[]),
    ("jobsim", &["strsim", "toml"]),
    ("queue", &["serde_json"]),
    ("sim", &[]),
    ("sim-models", &["strsim", "toml"]),
    ("devices", &["strsim", "toml"]),
    ("sim-tiers", &["strsim", "toml"]),
    ("blocks", &["crc-fast"]),
    ("fs-state", &[]),
    ("stage-state", &["crc32c", "rustc-hash"]),
    ("directives", &["serde", "strsim"]),
    ("norns", &["prost"]),
    ("workload", &["serde", "strsim", "toml"]),
];

pub fn check(root: &Path) -> Vec<Finding> {
    let floor: BTreeMap<&str, usize> =
        FLOORS.iter().enumerate().flat_map(|(n, floor)| floor.iter().map(move |c| (*c, n))).collect();
    let mut findings = Vec::new();
    let Ok(crates) = std::fs::read_dir(root.join("crates")) else { return findings };
    for entry in crates.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let place = format!("crates/{name}/Cargo.toml");
        let Ok(text) = std::fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        let Some(own) = floor.get(name.as_str()) else {
            findings.push(Finding { place, what: "crate has no floor in xtask/src/deps.rs".into() });
            continue;
        };
        for used in dependencies(&text) {
            let what = match used.strip_prefix("tidepool-") {
                Some(ours) if floor.get(ours).is_none_or(|f| f <= own) => {
                    format!("{name} must not use {ours}, which is not below it")
                }
                None if PURE.iter().any(|(p, allowed)| *p == name && !allowed.contains(&used.as_str())) => {
                    format!("{name} does no I/O and must not use {used}")
                }
                _ => continue,
            };
            findings.push(Finding { place: place.clone(), what });
        }
    }
    findings
}

/// Names under `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && let Some((name, _)) = line.split_once('=') {
            let name = name.trim().split('.').next().unwrap_or_default();
            if !name.starts_with('#') {
                names.push(name.to_string());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_dependencies_are_read() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\n# a = 1\nlibc = \"0.2\"\ntidepool-types.workspace = true\n[dev-dependencies]\nb = \"1\"\n";
        assert_eq!(dependencies(manifest), ["libc", "tidepool-types"]);
    }
}
