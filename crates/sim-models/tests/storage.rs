//! Devices with known figures are found again from runs of them, and the simulator says what runs that it has not seen come to.

use tidepool_sim::{Stream, Time};
use tidepool_sim_models::Span;
use tidepool_sim_models::device::{Cost, MeasuredSpec};
use tidepool_sim_models::storage::{
    Config, Drawn, Run, StorageFile, described, fit, halves, judge, medians, noise, predict, score, trial,
    uncertainty,
};

const SIZES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const CLIENTS: [u32; 5] = [1, 2, 4, 8, 16];

fn us(n: u64) -> Span {
    Span::Fixed(Time(n * 1_000))
}

/// Reads of either order alike, writes not. An operation of a random write takes longer than a lane's share of its setup: otherwise
/// nothing would show it.
fn device(lanes: u32, joined: bool, drawn: bool) -> MeasuredSpec {
    let span = |n| if drawn { Span::Exponential(Time(n * 1_000)) } else { us(n) };
    let read = Cost {
        operation: span(12),
        batch: Span::NONE,
        rate: 2_000_000_000,
        crowding: Time::ZERO,
        setup: us(80),
        lane_rate: 900_000_000,
    };
    let written = Cost {
        operation: span(8),
        batch: Span::NONE,
        rate: 500_000_000,
        crowding: Time::ZERO,
        setup: us(40),
        lane_rate: 1_500_000_000,
    };
    let jumps = Cost { operation: span(90), rate: 400_000_000, setup: us(300), ..written };
    MeasuredSpec { lanes, joined, costs: [read, read, written, jumps], open: Span::NONE, flush: Span::NONE }
}

/// The longest wait of a write is 39 ms, for which it pays with a third of its bytes' time.
fn crowded(spec: MeasuredSpec) -> MeasuredSpec {
    MeasuredSpec { costs: spec.costs.map(|cost| Cost { crowding: Time(120_000_000), ..cost }), ..spec }
}

/// A file of a device that was never fitted.
fn file(spec: &MeasuredSpec) -> StorageFile {
    let device = tidepool_sim_models::experiment::measured::write("storage", spec, [true; 4]);
    let around = "[network]\nlatency = \"1ns\"\nheader = 0\neager = \"1GiB\"\n[server]\nrequest = \"0ns\"\nmetadata = \"0ns\"\nbus = \"1ns\"\n[[servers]]\nname = \"storage\"\ndevice = \"storage\"\n[layout]\nstripe = \"1GiB\"\n[calibration]\nsource = \"known\"\n";
    StorageFile::read(&format!("{around}{device}")).unwrap()
}

fn configs() -> Vec<Config> {
    let mut all = Vec::new();
    for is_write in [false, true] {
        for is_random in [false, true] {
            for bytes in SIZES {
                all.extend(CLIENTS.map(|clients| Config { is_write, is_random, bytes, clients }));
            }
        }
    }
    all
}

/// Every configuration `repeats` times, each off by up to `noise`.
fn measured(spec: &MeasuredSpec, repeats: usize, noise: f64) -> Vec<Run> {
    let (file, mut stream) = (file(spec), Stream::new(7, 7));
    let mut runs = Vec::new();
    for config in configs() {
        let rate = predict(&file, &config, 3).unwrap();
        runs.extend(
            (0..repeats).map(|_| Run { config, rate: rate * (1.0 + noise * (2.0 * stream.unit() - 1.0)) }),
        );
    }
    runs
}

#[test]
fn a_device_with_known_figures_is_found_from_half_of_its_runs() {
    for (lanes, joined, drawn) in [(4, false, false), (32, true, false), (4, false, true)] {
        let spec = device(lanes, joined, drawn);
        let spec = if joined { crowded(spec) } else { spec };
        let runs = measured(&spec, 1, 0.0);
        let seen = trial(&runs, 1).unwrap();
        let most = if drawn { 0.04 } else { 0.02 };
        println!("{lanes} lanes, drawn {drawn}: {:?}", seen.score);
        assert!(seen.score.mean_error < most, "{lanes} lanes, drawn {drawn}: {:?}", seen.score);
        let fitted = fit(&runs).unwrap();
        println!("{:?}", fitted.structure);
        assert_eq!(fitted.structure.apart, [false, true]);
        // Of 32 lanes never more than 8 are busy: operations come 12 us after each other, and stay 90.
        let found = fitted.structure.stages.lanes;
        assert!(if lanes == 4 { found == 4 } else { found >= 8 }, "{found} lanes");
        assert_eq!((fitted.structure.stages.joined, fitted.structure.stages.crowded), (joined, joined));
        assert_eq!(fitted.structure.stages.drawn != Drawn::Nothing, drawn);
        let value = |name: &str| fitted.scalars().into_iter().find(|(n, _)| n == name).unwrap().1;
        // What limits small requests, and what limits large ones, is what every run with many clients shows.
        let limits = [
            ("random-write.operation", 90_000.0),
            ("random-write.rate", 4e8),
            ("sequential-write.rate", 5e8),
        ];
        for (name, wanted) in limits {
            assert!((value(name) / wanted - 1.0).abs() < 0.15, "{name}: {} for {wanted}", value(name));
        }
    }
}

#[test]
fn noise_is_told_and_intervals_have_their_runs() {
    let spec = device(4, false, false);
    let runs = measured(&spec, 3, 0.1);
    let floor = noise(&runs).unwrap();
    assert!((0.03..0.09).contains(&floor), "{floor}");
    let (used, others) = halves(&runs, 5);
    assert_eq!((medians(&used).len(), medians(&others).len()), (50, 50));
    let fitted = fit(&used).unwrap();
    let intervals = uncertainty(&fitted, &used, 8, 1);
    let file = described(&fitted, &intervals, &used, "half".into(), 1);
    assert_eq!(StorageFile::read(file.text()).unwrap(), file);
    let seen = score(&judge(&file, &others, 1).unwrap(), 1);
    println!("{seen:?}, {:?}", fitted.structure);
    assert!(seen.mean_error < 0.08 && seen.median_error < 0.06, "{seen:?}");
    assert!(seen.median_error_90.0 <= seen.median_error && seen.median_error <= seen.median_error_90.1);
    assert!(seen.within > 0.75, "{seen:?}");
    let inside = |name: &str, wanted: f64| {
        let interval = intervals.iter().find(|interval| interval.name == name).unwrap();
        assert!(
            interval.low <= interval.high && interval.low < 1.2 * wanted && interval.high > 0.8 * wanted,
            "{interval:?}"
        );
    };
    inside("random-write.rate", 4e8);
    inside("sequential-read.rate", 2e9);
}

#[test]
fn what_is_fitted_is_what_the_kernel_simulates() {
    let spec = device(4, false, true);
    let fitted = fit(&measured(&spec, 1, 0.0)).unwrap();
    let file = described(&fitted, &[], &[], "known".into(), 1);
    for config in configs() {
        let (closed, simulated) = (fitted.rate(&config), predict(&file, &config, 9).unwrap());
        assert!(
            (closed / simulated - 1.0).abs() < 0.07,
            "{config}: {closed} without the kernel, {simulated} with it"
        );
    }
}

#[test]
fn too_few_runs_are_no_fit() {
    let config = Config { is_write: true, is_random: true, bytes: 4096, clients: 1 };
    assert!(fit(&[]).unwrap_err().to_string().contains("no runs"));
    let told = fit(&[Run { config, rate: 5.0 }; 50]).unwrap_err().to_string();
    assert!(told.contains("1 sizes and numbers of clients of writes"), "{told}");
}
