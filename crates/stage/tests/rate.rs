//! Rates, measured on demand: `cargo test --release -p tidepool-stage --test rate -- --ignored --nocapture`.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use support::{Place, memory_dir, noise};
use tidepool_stage::StageOptions;

fn timed(what: &str, act: impl FnOnce()) {
    let start = Instant::now();
    act();
    println!("{what:34} {:8.3} s", start.elapsed().as_secs_f64());
}

fn run(program: &str, args: &[&str], src: &Path, dst: &Path) {
    let source = format!("{}/.", src.display());
    assert!(Command::new(program).args(args).arg(source).arg(dst).status().unwrap().success());
}

#[test]
#[ignore = "a measurement"]
fn small_files() {
    let place = Place::new(memory_dir());
    for dir in 0..200 {
        let dir = place.src().join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..100 {
            fs::write(dir.join(format!("f{file}")), noise(4096, file)).unwrap();
        }
    }
    let other = place.dir.path().join("other");
    let fresh = || {
        for dir in [place.dst(), other.clone()] {
            if dir.exists() {
                fs::remove_dir_all(&dir).unwrap();
            }
        }
    };
    for round in 0..3 {
        println!("round {round}, 20000 files of 4096 bytes");
        fresh();
        timed("cp -a", || run("cp", &["-a"], &place.src(), &other));
        fresh();
        timed("rsync -a", || run("rsync", &["-a"], &place.src(), &other));
        for (name, options) in [
            ("stage, default, journal", StageOptions { workers: 0, ..place.options() }),
            ("stage, default", StageOptions::default()),
            ("stage, verify off", StageOptions { verify: false, ..StageOptions::default() }),
            ("stage, 1 worker", StageOptions { workers: 1, ..StageOptions::default() }),
        ] {
            fresh();
            timed(name, || assert!(place.copy(&options).complete));
        }
        timed("stage, rerun, compares contents", || {
            assert_eq!(place.copy(&StageOptions::default()).bytes_copied, 0)
        });
        timed("rsync -a, rerun", || run("rsync", &["-a"], &place.src(), &place.dst()));
    }
}

#[test]
#[ignore = "a measurement"]
fn one_large_file() {
    let place = Place::new(memory_dir());
    fs::write(place.src().join("f"), noise(2 << 30, 1)).unwrap();
    timed("cp -a, 2 GiB", || run("cp", &["-a"], &place.src(), &place.dir.path().join("other")));
    fs::remove_dir_all(place.dir.path().join("other")).unwrap();
    timed("stage, 2 GiB", || assert!(place.copy(&StageOptions::default()).complete));
    fs::remove_dir_all(place.dst()).unwrap();
    let quick = StageOptions { verify: false, ..StageOptions::default() };
    timed("stage, 2 GiB, verify off", || assert!(place.copy(&quick).complete));
}
