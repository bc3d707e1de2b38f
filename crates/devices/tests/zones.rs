//! Disks unlike those in the repository, which turn step by step (`mechanical`): a fit finds their zones where the requests
//! show them, and replays what it has not seen.

mod mechanical;

use mechanical::{Mechanics, Work};
use tidepool_devices::disk::DiskModel;
use tidepool_devices::disk::fit::{Evidence, Fitted, fit, uncertainty};
use tidepool_devices::disk::judge::{Score, baseline, replay, score};
use tidepool_devices::trace::measured::Measured;

/// The bar of the project.
const MEAN_ERROR_MAX: f64 = 0.05;
const DEMERIT_MAX: f64 = 0.20;

/// 7,200 turns a minute, 0.5 TB, 190 to 95 MB/s, a cache of 16 MB.
fn sata() -> Mechanics {
    Mechanics {
        revolution_us: 8_333.3,
        zones: vec![(40_000, 3_200), (40_000, 2_700), (40_000, 2_100), (40_000, 1_600)],
        heads: 4,
        settle_us: 800.0,
        root_us: 40.0,
        switch_us: 800.0,
        overhead_us: 120.0,
        bus_sector_us: 1.8,
        read_ahead: 4_096,
        write_cache: 32_768,
    }
}

fn without_zones() -> Mechanics {
    Mechanics { zones: vec![(160_000, 2_400)], ..sata() }
}

/// Reads of 128 KiB to 1 MiB anywhere.
const LARGE_READS: Work = Work {
    requests: 6_000,
    reads: 1.0,
    goes_on: 0.0,
    near: 0.0,
    sectors: &[256, 512, 1_024, 2_048],
    gap_us: (500.0, 2_000.0),
};

fn replayed(name: &str, trace: &[Measured]) -> (Fitted, Score) {
    let (used, other) = trace.split_at(trace.len() / 2);
    let fitted = fit(used, &Evidence::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (model, without) = (score(&replay(&fitted.model, other, 1)), Score::of(baseline(used, other, 1)));
    println!(
        "{name}: {model:?}\n  without a model {without:?}\n  {:?}\n  {:?}",
        fitted.model.zones, fitted.notes
    );
    (fitted, model)
}

fn holds(name: &str, score: &Score) {
    assert!(score.mean_error().abs() <= MEAN_ERROR_MAX && score.demerit <= DEMERIT_MAX, "{name}: {score:?}");
}

/// How far the times of sectors are off, over all of the disk.
fn off(model: &DiskModel, truth: &Mechanics) -> f64 {
    let (sectors, zones) = (truth.sectors(), truth.truth());
    let one = |part: u64| {
        let sector = sectors / 200 * part + sectors / 400;
        let is = zones.iter().rev().find(|(first, _)| *first <= sector).unwrap().1;
        (model.zones.time_us(sector, sector + 1) / is - 1.0).abs()
    };
    (0..200).map(one).sum::<f64>() / 200.0
}

#[test]
fn zones_are_found_where_large_reads_show_them() {
    let truth = sata();
    for seed in [1, 2] {
        let (fitted, score) = replayed("large reads", &truth.measure(&LARGE_READS, seed));
        holds("large reads", &score);
        assert!((3..=5).contains(&fitted.model.zones.all().len()), "{:?}", fitted.model.zones);
        assert!(
            off(&fitted.model, &truth) < 0.05,
            "{}: {:?}",
            off(&fitted.model, &truth),
            fitted.model.zones
        );
        // A wait of up to a revolution that nobody can foresee.
        assert!(score.correlation > 0.75, "{score:?}");
    }
}

#[test]
fn disks_without_zones_get_none() {
    for seed in 1..=8 {
        let fitted = fit(&without_zones().measure(&LARGE_READS, seed), &Evidence::default()).unwrap();
        assert_eq!(fitted.model.zones.all().len(), 1, "seed {seed}: {:?}", fitted.model.zones);
        assert!(
            fitted.notes.iter().any(|note| note.starts_with("zones: one is taken")),
            "{:?}",
            fitted.notes
        );
        assert!(off(&fitted.model, &without_zones()) < 0.05, "{:?}", fitted.model.zones);
    }
}

#[test]
fn other_disks_and_other_requests_are_replayed() {
    let sata = sata();
    let mixed = Work {
        reads: 0.6,
        goes_on: 0.3,
        near: 0.2,
        sectors: &[8, 16, 64, 256, 1_024],
        gap_us: (1_000.0, 15_000.0),
        ..LARGE_READS
    };
    let small = Work { sectors: &[8], gap_us: (0.0, 100.0), reads: 1.0, ..mixed.clone() };
    let few = Work { requests: 1_200, ..mixed.clone() };
    let busy = Work { gap_us: (0.0, 0.0), ..mixed.clone() };
    let streams = Work { goes_on: 0.9, near: 0.0, reads: 1.0, gap_us: (0.0, 1_000.0), ..mixed.clone() };
    let no_gaps = Work { gap_us: (0.0, 0.0), sectors: &[256], ..streams.clone() };
    let through = Mechanics { write_cache: 0, ..sata.clone() };
    let bare = Mechanics { read_ahead: 0, ..through.clone() };
    let mut all = Vec::new();
    for (name, disk, work) in [
        ("mixed", &sata, &mixed),
        ("small reads, no gaps", &sata, &small),
        ("few", &sata, &few),
        ("busy", &sata, &busy),
        ("streams", &sata, &streams),
        ("streams without gaps", &sata, &no_gaps),
        ("through", &through, &mixed),
        ("bare", &bare, &mixed),
        ("writes", &sata, &Work { reads: 0.0, ..mixed.clone() }),
        ("writes through", &through, &Work { reads: 0.0, ..mixed.clone() }),
        ("one length", &sata, &Work { sectors: &[1_024], ..LARGE_READS }),
    ] {
        let (_, score) = replayed(name, &disk.measure(work, 3));
        all.push((name, score));
    }
    all.iter().for_each(|(name, score)| holds(name, score));
}

#[test]
fn intervals_of_zones_hold_the_truth() {
    let truth = Mechanics { zones: vec![(80_000, 3_000), (80_000, 1_800)], ..sata() };
    let trace = truth.measure(&LARGE_READS, 4);
    let all = uncertainty(&trace, &Evidence::default(), 20, 1).unwrap();
    let known = [("zone.0.sector-us", truth.truth()[0].1), ("zone.1.sector-us", truth.truth()[1].1)];
    for (name, wanted) in known {
        let found = all.iter().find(|interval| interval.name == name).unwrap();
        let room = found.high - found.low;
        assert!(found.low - room <= wanted && wanted <= found.high + room, "{name} {wanted}: {found:?}");
        assert!(room < 0.1 * wanted, "{found:?}");
    }
    let border = all.iter().find(|interval| interval.name == "zone.1.first-sector").unwrap();
    let wanted = truth.truth()[1].0 as f64;
    let part = truth.sectors() as f64 / 64.0;
    assert!(border.low - part <= wanted && wanted <= border.high + part, "{border:?} {wanted}");
}
