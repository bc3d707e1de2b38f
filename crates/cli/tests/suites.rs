//! The driver of other people's test suites (`scripts/suites`): what judges their results, and reads what they say.

mod common;

use std::path::Path;
use std::process::Command;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/suites")
}

#[test]
fn results_are_judged_as_they_should_be() {
    let output =
        Command::new("python3").arg("-B").args(["-m", "unittest", "discover"]).arg(folder()).output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", common::text(&output)),
        Err(error) => println!("SKIPPED: python3: {error}"),
    }
}

#[test]
fn every_suite_is_listed_with_its_doors_and_exclusions() {
    let output = match Command::new("python3").arg(folder().join("run")).arg("--list").output() {
        Ok(output) => output,
        Err(error) => return println!("SKIPPED: python3: {error}"),
    };
    let said = common::text(&output);
    assert!(output.status.success(), "{said}");
    for suite in ["stress-ng", "pjdfstest", "ltp", "postgresql", "xfstests", "hdf5"] {
        assert!(said.contains(&format!("\n{suite}: ")), "{suite}: {said}");
    }
}
