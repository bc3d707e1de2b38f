//! Fits recover the parameters of disks that are known, and a fit to one half of what was measured on a real disk replays
//! the other half.

use flate2::read::GzDecoder;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use tidepool_devices::disk::fit::{Evidence, FitError, fit, uncertainty};
use tidepool_devices::disk::judge::{Score, baseline, replay, score};
use tidepool_devices::disk::{
    CLASSES, CacheModel, Class, Cost, Disk, DiskModel, Kind, Place, Seek, Spread, WriteBack, Zones,
};
use tidepool_devices::trace::measured::Measured;
use tidepool_devices::trace::{measured, seeks, specs};
use tidepool_devices::{Direction, Request};
use tidepool_sim::{Stream, Time};

const DISKS: [&str; 3] = ["atlas10k", "cheetah9LP", "ibm18es"];
/// The bar of the project.
const MEAN_ERROR_MAX: f64 = 0.05;
const DEMERIT_MAX: f64 = 0.20;

fn data(disk: &str, kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{disk}.{kind}"))
}

fn trace(disk: &str) -> Vec<Measured> {
    let file = File::open(data(disk, "trace.gz")).unwrap();
    measured::read(BufReader::new(GzDecoder::new(file))).unwrap()
}

/// What may be known besides the trace: nothing, or all there is.
fn evidence(disk: &str) -> [(&'static str, Evidence); 2] {
    let open = |kind| BufReader::new(File::open(data(disk, kind)).unwrap());
    let seeks = Some(seeks::read(open("seek")).unwrap());
    let specs = specs::read(open("diskspecs")).unwrap();
    [("trace", Evidence::default()), ("trace, seeks, specification", Evidence { seeks, specs })]
}

fn judged(used: &[Measured], other: &[Measured], evidence: &Evidence) -> (Score, Score) {
    let fitted = fit(used, evidence).unwrap();
    (score(&replay(&fitted.model, other, 1)), Score::of(baseline(used, other, 1)))
}

#[test]
fn a_fit_to_half_of_a_trace_replays_the_other_half() {
    for disk in DISKS {
        let trace = trace(disk);
        assert_eq!(trace.len(), 10_000);
        let (first, second) = trace.split_at(trace.len() / 2);
        for (known, evidence) in evidence(disk) {
            for (order, used, other) in
                [("first to second", first, second), ("second to first", second, first)]
            {
                let (model, without) = judged(used, other, &evidence);
                let what = format!("{disk}, {known}, {order}: {model:?}; without a model {without:?}");
                println!("{what}");
                assert!(model.mean_error().abs() <= MEAN_ERROR_MAX && model.demerit <= DEMERIT_MAX, "{what}");
                // Distributions alone do not show a mechanism: each request's own time does.
                assert!(model.per_request < 0.4 * without.per_request, "{what}");
                assert!(model.correlation > 0.85 && without.correlation < 0.4, "{what}");
            }
        }
    }
}

#[test]
fn each_tenth_of_a_trace_is_replayed_by_a_fit_to_the_others() {
    for disk in DISKS {
        let trace = trace(disk);
        let tenth = trace.len() / 10;
        let mut errors = Vec::new();
        for part in 0..10 {
            let (from, to) = (part * tenth, (part + 1) * tenth);
            let used: Vec<Measured> = trace[..from].iter().chain(&trace[to..]).copied().collect();
            let (model, _) = judged(&used, &trace[from..to], &Evidence::default());
            assert!(model.demerit <= DEMERIT_MAX, "{disk}, part {part}: {model:?}");
            errors.push(model.mean_error());
        }
        println!("{disk}: {errors:?}");
        // A thousand requests: their rotation alone makes 1 to 2 % of chance.
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        assert!(
            mean.abs() <= 0.02 && errors.iter().all(|error| error.abs() <= 2.0 * MEAN_ERROR_MAX),
            "{disk}: {errors:?}"
        );
    }
}

/// A disk with nothing but what is said here; waits are in us.
fn known(rotation_us: f64, hit_us: f64, sector_us: f64, write: Option<f64>) -> DiskModel {
    let mut costs = [const { None }; CLASSES];
    for class in Class::all() {
        let through = Cost {
            sector_us,
            media_share: 0.0,
            seek_share: 1.0,
            wait: Spread::even(hit_us, hit_us + rotation_us),
        };
        let quick = |us: f64| Cost {
            sector_us,
            media_share: 0.0,
            seek_share: 0.0,
            wait: Spread::even(us, us + 10.0),
        };
        costs[class.index()] = Some(match (class.kind, write) {
            (Kind::ReadHit, _) => quick(hit_us),
            (Kind::Write, Some(us)) => quick(us),
            _ => through,
        });
    }
    DiskModel {
        rotation_us,
        zones: Zones::even(rotation_us / 200.0),
        near_sectors: 1_024,
        seek: Seek::Formula { root_us: 3.0, linear_us: 0.0005, bend_sectors: 1e6 },
        cache: CacheModel {
            segments: 1,
            behind_sectors: 0,
            ahead_sectors: 2_000,
            track_sectors: 0,
            keep: 1.0,
            keep_after_write: 1.0,
            keep_written: 0.0,
        },
        write_back: WriteBack {
            segments: if write.is_some() { 1 } else { 0 },
            segment_sectors: 256,
            reads_wait: true,
        },
        costs,
    }
}

/// Two thirds reads; a third of the requests go on where the last one ended, a third lie near it, a third anywhere on a
/// disk of 9 GB. Gaps are exponential above a least one.
fn measure(model: &DiskModel, requests: usize, gap_us: (f64, f64), seed: u64) -> Vec<Measured> {
    let (mut disk, mut of_disk, mut random) = (Disk::default(), Stream::new(seed, 0), Stream::new(seed, 1));
    let (mut now, mut last) = (Time::ZERO, 9_000_000u64);
    let mut one = |_| {
        let near = (last + random.below(400)).saturating_sub(200);
        let sector = match random.below(3) {
            0 => last,
            1 => near,
            _ => random.below(18_000_000),
        };
        let direction = if random.chance(0.66) { Direction::Read } else { Direction::Write };
        let request = Request { direction, sector, sectors: 4 << random.below(3) };
        let service = disk.service(model, &request, now, &mut of_disk);
        let gap = Time((gap_us.0 * 1e3) as u64).plus(random.exponential(Time((gap_us.1 * 1e3) as u64)));
        (now, last) = (now.plus(service).plus(gap), request.end());
        Measured { request, service_us: service.0 as f64 / 1e3, gap_us: gap.0 as f64 / 1e3 }
    };
    (0..requests).map(&mut one).collect()
}

const GAPS: (f64, f64) = (20_000.0, 20_000.0);

fn within(name: &str, seen: f64, wanted: f64, share: f64) {
    assert!((seen - wanted).abs() <= share * wanted, "{name}: {seen} instead of {wanted}");
}

#[test]
fn a_fit_finds_the_parameters_of_a_known_disk() {
    for (seed, rotation_us, hit_us, sector_us) in
        [(1, 6_000.0, 200.0, 100.0), (2, 11_111.0, 900.0, 60.0), (3, 4_000.0, 50.0, 5.0)]
    {
        let truth = known(rotation_us, hit_us, sector_us, Some(hit_us / 2.0));
        let trace = measure(&truth, 10_000, GAPS, seed);
        let model = fit(&trace, &Evidence::default()).unwrap().model;
        within("rotation", model.rotation_us, rotation_us, 0.06);
        let cost = |model: &DiskModel, kind, place| {
            let after = tidepool_devices::disk::After::Read;
            model.cost(Class { kind, place, after }).clone()
        };
        within("sector", cost(&model, Kind::Write, Place::Far).sector_us, sector_us, 0.02);
        within("hit", cost(&model, Kind::ReadHit, Place::Near).wait.mean(), hit_us + 5.0, 0.05);
        within("write", cost(&model, Kind::Write, Place::Far).wait.mean(), hit_us / 2.0 + 5.0, 0.05);
        within("keep", model.cache.keep, 1.0, 0.03);
        assert_eq!((model.cache.track_sectors, model.cache.behind_sectors), (0, 0), "{:?}", model.cache);
        assert!(model.cache.ahead_sectors >= 200, "{:?}", model.cache);
        // Two thousand far reads, each after a wait of up to a revolution, tell the difference of two seeks to some hundredths
        // of a revolution.
        for (near, far) in [(100_000, 4_000_000), (4_000_000, 16_000_000)] {
            let span = |seek: &Seek| seek.time_us(far) - seek.time_us(near);
            let off = (span(&model.seek) - span(&truth.seek)).abs();
            assert!(off < 0.06 * rotation_us, "seek: {} {}", span(&model.seek), span(&truth.seek));
        }
    }
}

/// Where a buffer holds the track, reads before and behind are hits, as far as the track goes.
#[test]
fn a_fit_finds_the_length_of_a_track() {
    let mut truth = known(6_000.0, 200.0, 100.0, Some(100.0));
    truth.cache =
        CacheModel { behind_sectors: 5_000, ahead_sectors: 5_000, track_sectors: 300, ..truth.cache };
    let fitted = fit(&measure(&truth, 10_000, GAPS, 5), &Evidence::default()).unwrap().model;
    within("track", fitted.cache.track_sectors as f64, 300.0, 0.15);
    assert!(fitted.cache.behind_sectors > 150, "{:?}", fitted.cache);
}

/// Disks unlike those in the repository: writes that go through, no buffer, gaps in which nothing can be written out.
#[test]
fn other_kinds_of_disks_are_replayed_as_well() {
    let through = known(16_667.0, 1_500.0, 250.0, None);
    let bare = DiskModel { cache: CacheModel::NONE, ..known(8_333.0, 300.0, 20.0, None) };
    let quick = known(8_333.0, 300.0, 20.0, Some(150.0));
    for (name, truth, gaps) in [
        ("writes through", through, GAPS),
        ("no buffer", bare, GAPS),
        ("short gaps", quick, (100.0, 3_000.0)),
    ] {
        let trace = measure(&truth, 10_000, gaps, 11);
        let (used, other) = trace.split_at(5_000);
        let (model, without) = judged(used, other, &Evidence::default());
        let what = format!("{name}: {model:?}; without a model {without:?}");
        println!("{what}");
        assert!(model.mean_error().abs() <= MEAN_ERROR_MAX && model.demerit <= DEMERIT_MAX, "{what}");
    }
}

#[test]
fn intervals_hold_the_truth_and_shrink_with_more_requests() {
    let truth = known(6_000.0, 200.0, 100.0, Some(100.0));
    let trace = measure(&truth, 8_000, GAPS, 8);
    let width = |requests: usize| {
        let all = uncertainty(&trace[..requests], &Evidence::default(), 30, 1).unwrap();
        let rotation = all.into_iter().find(|interval| interval.name == "rotation-us").unwrap();
        (rotation.high - rotation.low, rotation)
    };
    let ((few, _), (many, rotation)) = (width(1_000), width(8_000));
    // Twice an interval of nine of ten, since this one has thirty repeats.
    let room = rotation.high - rotation.low;
    assert!(rotation.low - room <= 6_000.0 && 6_000.0 <= rotation.high + room, "{rotation:?}");
    assert!(many < 0.7 * few, "{many} {few}");
}

#[test]
fn traces_that_tell_nothing_are_refused_or_fitted_without_a_panic() {
    let one = |at: u64| Measured {
        request: Request { direction: Direction::Read, sector: at % 7, sectors: 1 },
        service_us: 0.0,
        gap_us: 0.0,
    };
    let few: Vec<Measured> = (0..10).map(one).collect();
    assert_eq!(fit(&few, &Evidence::default()).unwrap_err(), FitError::TooFew { requests: 10 });
    let of = |change: &dyn Fn(u64, &mut Measured)| -> Vec<Measured> {
        let changed = |at| {
            let mut measured = one(at);
            change(at, &mut measured);
            measured
        };
        (0..2_000).map(changed).collect()
    };
    let writes = of(&|_, one| one.request.direction = Direction::Write);
    let notes = fit(&writes, &Evidence::default()).unwrap().notes;
    assert!(notes.iter().any(|note| note.starts_with("fewer than 20 reads")), "{notes:?}");
    let seeks = Some(vec![(1, 0.0), (1_000_000, 1e7)]);
    let odd = [
        of(&|_, _| {}),
        of(&|at, one| one.request.sector = at * (1 << 40)),
        of(&|at, one| one.service_us = if at % 2 == 0 { 3.6e9 } else { 0.0 }),
        of(&|at, one| one.request = Request { sectors: 1 << 20, sector: (1 << 54) - at, ..one.request }),
        of(&|at, one| (one.service_us, one.gap_us) = (at as f64, 3.6e9)),
    ];
    for trace in &odd {
        for evidence in [Evidence::default(), Evidence { seeks: seeks.clone(), ..Evidence::default() }] {
            let fitted = fit(trace, &evidence).unwrap();
            let pairs = replay(&fitted.model, trace, 1);
            assert!(pairs.iter().all(|pair| pair.simulated_us.is_finite()));
            uncertainty(trace, &evidence, 2, 1).unwrap();
        }
    }
}
