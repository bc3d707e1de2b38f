//! Rules for source files: length, the fence around unsafe code, calls that are not ours to make.

use crate::{Finding, files, relative};
use std::path::Path;

const LINES_MAX: usize = 1_500;

/// Crates that may contain unsafe code; STYLE says why each does.
const UNSAFE_CRATES: &[&str] = &["capi", "preload"];
/// The files outside them: a function that `heed` declares unsafe, mapping shared memory, Python's buffers, hwloc's
/// functions.
const UNSAFE_FILES: &[&str] = &[
    "crates/store/src/meta/lmdb.rs",
    "crates/shm/src/segment.rs",
    "crates/fabric/src/sys.rs",
    "crates/py/src/buffer.rs",
    "crates/sysmap/src/hwloc.rs",
];

/// Crates without clocks and files.
const PURE: &[&str] = &[
    "crates/devices/",
    "crates/fs-state/",
    "crates/io-traces/",
    "crates/iosched/",
    "crates/jobsim/",
    "crates/placement/",
    "crates/predict/",
    "crates/queue/",
    "crates/trigger/",
    "crates/sim/",
    "crates/sim-models/",
    "crates/sim-tiers/",
    "crates/wire/",
    "crates/types/",
    "crates/workload/",
];

/// Text that must not appear, where, and why.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("todo!(", &["crates/", "xtask/"], "a missing feature is an error message that says so"),
    ("unimplemented!(", &["crates/", "xtask/"], "a missing feature is an error message that says so"),
    ("#[ignore", &["crates/"], "a test that cannot run says so loudly instead"),
    ("Instant::now(", PURE, "time is handed in"),
    ("SystemTime::now(", PURE, "time is handed in"),
    ("std::fs::", PURE, "this crate does no I/O"),
    ("remove_dir_all", &["crates/"], "trees are removed by crates/removal"),
    ("to_ne_bytes", &["crates/wire/", "crates/store/"], "formats are little-endian"),
    ("\"sh\", \"-c\"", &["crates/"], "nothing runs a shell on user text"),
    ("Command::new(\"sh\")", &["crates/"], "nothing runs a shell on user text"),
];

pub fn check(root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in files(root, &[".rs", ".py", ".c", ".h", ".lua", ".sh"]) {
        let place = relative(root, &path);
        let Ok(text) = std::fs::read_to_string(&path) else {
            findings.push(Finding { place, what: "is not UTF-8".into() });
            continue;
        };
        let lines = text.lines().count();
        if lines > LINES_MAX {
            findings
                .push(Finding { place: place.clone(), what: format!("{lines} lines; at most {LINES_MAX}") });
        }
        if place.ends_with(".rs") && !place.starts_with("xtask/") {
            findings.extend(rust(&place, &text));
            findings.extend(says(root, &place, &text));
        }
    }
    findings
}

fn rust(place: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_test = place.contains("/tests/") || place.ends_with("tests.rs");
    for (needle, folders, why) in FORBIDDEN {
        if folders.iter().any(|f| place.starts_with(f)) && !is_test && code_contains(text, needle) {
            findings.push(Finding { place: place.into(), what: format!("has '{needle}': {why}") });
        }
    }
    let fenced = UNSAFE_CRATES.iter().any(|c| place.starts_with(&format!("crates/{c}/")))
        || UNSAFE_FILES.contains(&place);
    if !fenced && code_contains(text, "unsafe ") && !is_test {
        findings.push(Finding { place: place.into(), what: "unsafe code outside the fence".into() });
    }
    let is_root = place.ends_with("src/lib.rs") || place.ends_with("src/main.rs");
    if is_root && !fenced && !text.contains("(unsafe_code)") {
        findings.push(Finding { place: place.into(), what: "does not forbid unsafe code".into() });
    }
    findings
}

/// Crates whose words are for who tests, or for one simulation: what they say may end them.
const TALKERS: &[&str] = &["crates/testkit/", "crates/sim-mpi/"];

/// Programs that cannot write their log do not end because of that.
fn says(root: &Path, place: &str, text: &str) -> Option<Finding> {
    let is_test = place.contains("/tests/") || place.ends_with("tests.rs");
    if is_test || TALKERS.iter().any(|talker| place.starts_with(talker)) || !code_contains(text, "eprintln!(")
    {
        return None;
    }
    let roots = ["main.rs", "lib.rs"].map(|name| Path::new(place).with_file_name(name));
    let (source, _) = place.split_once("/src/")?;
    let crate_root = if roots.iter().any(|own| own == Path::new(place)) {
        root.join(place)
    } else {
        let own = root.join(source).join("src/lib.rs");
        if own.is_file() { own } else { own.with_file_name("main.rs") }
    };
    let taken = std::fs::read_to_string(crate_root).is_ok_and(|text| text.contains("macro_use(eprintln)"));
    (!taken).then(|| Finding {
        place: place.into(),
        what: "says something with the standard library's eprintln!, which panics on a full disk; take that of tidepool-types".into(),
    })
}

/// True when a line that is no comment, before the test module, holds the text.
fn code_contains(text: &str, needle: &str) -> bool {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .any(|line| !line.trim_start().starts_with("//") && line.contains(needle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_fires() {
        for (needle, folders, _) in FORBIDDEN {
            let place = format!("{}src/x.rs", folders[0]).replace("crates/src", "crates/cli/src");
            assert!(!rust(&place, &format!("fn f() {{ {needle} }}\n")).is_empty(), "{needle}");
            assert!(rust(&place, &format!("// {needle}\n")).is_empty(), "{needle} in a comment");
        }
        assert_eq!(rust("crates/cli/src/x.rs", "unsafe { f() }\n").len(), 1);
        assert_eq!(rust("crates/preload/src/x.rs", "unsafe { f() }\n").len(), 0);
        assert_eq!(rust("crates/cli/src/main.rs", "fn main() {}\n").len(), 1);
        let nowhere = Path::new("/nonexistent");
        assert!(says(nowhere, "crates/cli/src/run/mod.rs", "eprintln!(\"a\");\n").is_some());
        assert!(says(nowhere, "crates/cli/tests/run.rs", "eprintln!(\"a\");\n").is_none());
        assert!(says(nowhere, "crates/cli/src/run/mod.rs", "println!(\"a\");\n").is_none());
    }
}
