//! A workflow of three phases on real input (Miranda et al. 2019, Table V, in small): OpenFOAM's mesh is cut into pieces on one
//! node, three nodes solve, one node puts the pieces together, and only the result goes to the shared file system. The scripts
//! are those of `examples/openfoam/slurm`.

mod common;

use common::cluster::{ALICE, Cluster};
use common::opens::Opens;
use common::text;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/openfoam").join(name)
}

/// All files below a directory, by their names in it.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![dir.to_path_buf()];
    while let Some(at) = next.pop() {
        for entry in fs::read_dir(at).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => next.push(entry.path()),
                false => found.push(entry.path().strip_prefix(dir).unwrap().to_path_buf()),
            }
        }
    }
    found.sort();
    found
}

/// Writes the case for three ranks.
fn write_case(cluster: &Cluster, name: &str) {
    let dir = cluster.pfs("alice").join(name);
    let program = "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from case import write_case; \
                   write_case(Path(sys.argv[2]), cells=24, steps=12, writes=4, ranks=3)";
    let done =
        Command::new("python3").args(["-B", "-c", program]).arg(example("")).arg(&dir).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let mut all = vec![PathBuf::new()];
    all.extend(files(&dir));
    for file in all {
        let mut at = dir.join(&file);
        while at.starts_with(&dir) {
            chown(&at, Some(ALICE), Some(ALICE)).unwrap();
            at.pop();
        }
    }
}

/// A19, H16, J9 in small: the result is that of the same programs on the shared file system, byte by byte, which the phases
/// between input and result do not touch.
#[test]
fn a19_h16_openfoam_in_three_phases() {
    let tools = ["blockMesh", "decomposePar", "icoFoam", "reconstructPar", "mpirun"];
    let missing: Vec<&str> =
        tools.into_iter().filter(|tool| !Path::new("/usr/bin").join(tool).exists()).collect();
    if !missing.is_empty() {
        println!("SKIPPED: {} missing; run 'scripts/install-packages demo' first", missing.join(", "));
        return;
    }
    let Some(cluster) = Cluster::start(4) else { return };
    write_case(&cluster, "case");
    write_case(&cluster, "plain");
    let watched = |name: &str| {
        let top = cluster.pfs("alice").join(name);
        let mut dirs = vec![top.clone()];
        dirs.extend(files(&top).iter().filter_map(|file| Some(top.join(file.parent()?))));
        dirs.sort();
        dirs.dedup();
        Opens::watch(&dirs.iter().map(PathBuf::as_path).collect::<Vec<_>>())
    };
    let (staged, direct) = (watched("case"), watched("plain"));
    let script = |name: &str| {
        fs::read_to_string(example("slurm").join(name)).unwrap().replacen("#!/bin/bash\n", "", 1)
    };
    let first = cluster.sbatch(&[], &script("decompose.sh"));
    let second = cluster.sbatch(&[&format!("--workflow-prior-dependency={first}")], &script("solve.sh"));
    let third = cluster.sbatch(&[&format!("--workflow-prior-dependency={second}")], &script("post.sh"));
    for job in [first, second, third] {
        assert_eq!(
            cluster.wait(job).state(),
            "COMPLETED",
            "{}\n{}",
            cluster.log("alice", job),
            cluster.overview()
        );
    }
    // The same programs, all on the shared file system.
    let plain = cluster.pfs("alice/plain").display().to_string();
    let body = format!(
        "set -e; export WM_PROJECT_DIR=/usr/share/openfoam; cd {plain}; blockMesh >log.b; decomposePar >log.d; \
         mpirun -np 3 --map-by ppr:1:node --bind-to none icoFoam -parallel >log.i; reconstructPar >log.r\n"
    );
    let job = cluster.sbatch(&["-N3", "--ntasks-per-node=1"], &body);
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.log("alice", job));
    let (staged, direct) = (staged.count(), direct.count());
    println!("opens of input files on the shared file system: {staged} with the workflow, {direct} without");
    assert!(staged < direct / 2, "{staged} and {direct}");
    let (result, plain) = (cluster.pfs("alice/result"), cluster.pfs("alice/plain"));
    let names = files(&result);
    assert!(names.len() > 10, "{names:?}");
    for name in &names {
        assert_eq!(
            fs::read(result.join(name)).unwrap(),
            fs::read(plain.join(name)).unwrap(),
            "{}",
            name.display()
        );
    }
    let moved = |job: u32, way: &str, shared: bool| {
        let report = cluster.report(&format!("job {job}"));
        let rows = report["transfers"].as_array().cloned().unwrap_or_default();
        let touches = |row: &serde_json::Value| {
            let places = [row["source"].as_str(), row["destination"].as_str()];
            places.iter().flatten().any(|place| place.contains("lustre://"))
        };
        let chosen = rows.iter().filter(|row| row["way"] == way && touches(row) == shared);
        chosen.filter_map(|row| row["bytes"].as_u64()).sum::<u64>()
    };
    for (job, name) in [(first, "decompose"), (second, "solve"), (third, "post")] {
        println!(
            "{name}: {} bytes from and {} to the shared file system, {} from node to node",
            moved(job, "in", true),
            moved(job, "out", true),
            moved(job, "in", false)
        );
    }
    let solver = (moved(second, "in", true), moved(second, "out", true));
    assert_eq!(solver, (0, 0), "the solver's phase does not touch the shared file system");
    assert!(moved(second, "in", false) > 0 && moved(third, "out", true) > 0);
    let told = cluster.by("alice", &[&cluster.tidepool(), "workflow", "status", &first.to_string()]);
    println!("{}", String::from_utf8_lossy(&told.stdout));
    assert!(String::from_utf8_lossy(&told.stdout).contains("(openfoam): completed"), "{}", text(&told));
    cluster.assert_nothing_left("after the workflow");
}
