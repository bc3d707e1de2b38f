//! The time left that real copies tell: watched while they run, compared with when they ended.
//!
//! Copies are kept slow by a bandwidth limit, so that what else the machine does matters little; and
//! the error allowed is that of the acceptance line (a quarter), from the middle of the time to four fifths of it.

mod support;

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use support::{Place, memory_dir, noise};
use tidepool_stage::{Bucket, Charge, Charged, Control, EndResult, StageOptions, What, stage};

/// Lets so many bytes through per second, and after the middle half as many.
struct Narrowing {
    total: u64,
    taken: Mutex<u64>,
    first: Bucket,
    then: Bucket,
}

impl Charge for Narrowing {
    fn charge(&self, bytes: u64) -> EndResult<()> {
        let mut taken = self.taken.lock().unwrap();
        *taken += bytes;
        let bucket = if *taken * 2 < self.total { &self.first } else { &self.then };
        let wait = bucket.take(bytes, Instant::now());
        drop(taken);
        std::thread::sleep(wait);
        Ok(())
    }
}

/// Copies, and returns the error of the time left that was told between half and four fifths of the
/// time: the middle one, because a machine that does other things makes single ones large.
fn watch(name: &str, place: &Place, options: &StageOptions) -> f64 {
    let (src, dst) = place.ends();
    let control = Control::default();
    let started = Instant::now();
    let (told, ended) = std::thread::scope(|scope| {
        let copy = scope.spawn(|| {
            let report = stage(&src, &dst, &What::Tree, options, &control);
            assert!(report.complete, "{:?}", report.errors);
            started.elapsed().as_secs_f64()
        });
        let mut told = Vec::new();
        while !copy.is_finished() {
            if let Some(eta) = control.progress().eta {
                told.push((started.elapsed().as_secs_f64(), eta.as_secs_f64()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        (told, copy.join().unwrap())
    });
    let mut errors: Vec<f64> = told
        .into_iter()
        .filter(|(at, _)| *at > 0.5 * ended && *at < 0.8 * ended)
        .map(|(at, eta)| (eta - (ended - at)).abs() / (ended - at))
        .collect();
    assert!(!errors.is_empty(), "nobody was told anything in {ended} s");
    errors.sort_by(f64::total_cmp);
    let (middle, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    println!("{name}: error of the time left {:.0} %, at worst {:.0} %", middle * 100.0, worst * 100.0);
    middle
}

fn options(bytes_per_second: u64) -> StageOptions {
    StageOptions { bandwidth: Some(bytes_per_second), count_ahead: true, ..StageOptions::default() }
}

#[test]
fn one_large_file_many_small_ones_and_a_mixture() {
    let large = Place::new(memory_dir());
    std::fs::write(large.src().join("large"), noise(48 << 20, 1)).unwrap();
    let small = Place::new(memory_dir());
    for file in 0..2000 {
        std::fs::write(small.src().join(format!("f{file}")), noise(4096, file)).unwrap();
    }
    let mixed = Place::new(memory_dir());
    for file in 0..300 {
        let len = (file * 7919) % (256 << 10);
        std::fs::write(mixed.src().join(format!("f{file}")), noise(len as usize, file)).unwrap();
    }
    std::fs::write(mixed.src().join("large"), noise(20 << 20, 2)).unwrap();
    for (name, place, rate) in
        [("large", large, 16 << 20), ("small", small, 3 << 20), ("mixed", mixed, 20 << 20)]
    {
        let error = watch(name, &place, &options(rate));
        assert!(error < 0.25, "{name}: {error}");
    }
}

#[test]
fn the_bandwidth_halves_in_the_middle() {
    let place = Place::new(memory_dir());
    for file in 0..40 {
        std::fs::write(place.src().join(format!("f{file}")), noise(1 << 20, file)).unwrap();
    }
    let narrowing = Narrowing {
        total: 40 << 20,
        taken: Mutex::new(0),
        first: Bucket::new(20 << 20, Instant::now()),
        then: Bucket::new(10 << 20, Instant::now()),
    };
    let options = StageOptions {
        charge: Some(Charged(Arc::new(narrowing))),
        count_ahead: true,
        ..StageOptions::default()
    };
    let error = watch("halving", &place, &options);
    assert!(error < 0.25, "{error}");
}
