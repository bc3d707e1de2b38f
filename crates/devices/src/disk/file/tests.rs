use super::*;
use proptest::prelude::*;

/// One of each kind of value.
pub(super) fn example() -> DiskFile {
    let mut costs = [const { None }; CLASSES];
    let wait = Spread::even(500.0, 6_500.5);
    costs[9] = Some(Cost { sector_us: 102.5, media_share: 0.5, seek_share: 1.0, wait });
    let inner = Zone { first_sector: 5_000_000, sector_us: 30.25 };
    let zones = Zones::new(vec![Zone { first_sector: 0, sector_us: 20.5 }, inner]).unwrap();
    let model = DiskModel {
        rotation_us: 6_000.0,
        zones,
        near_sectors: 1_786,
        seek: Seek::Points { sectors_per_cylinder: 1_786.0, points: vec![(1.0, 1_245.0), (2.0, 1_300.0)] },
        cache: CacheModel { segments: 3, ahead_sectors: 300, keep: 0.95, ..CacheModel::NONE },
        write_back: WriteBack { segments: 1, segment_sectors: 374, reads_wait: true },
        costs,
    };
    let uncertainty = vec![Interval { name: "cache.keep".into(), low: 0.9, high: 1.0 }];
    DiskFile { model, source: "a \"trace\"".into(), notes: vec!["one".into()], uncertainty }
}

#[test]
fn what_is_written_is_read_again() {
    let file = example();
    assert_eq!(DiskFile::read(&file.write()), Ok(file.clone()));
    let seek = Seek::Formula { root_us: 2.5, linear_us: 0.0, bend_sectors: 1e6 };
    let formula = DiskFile { model: DiskModel { seek, ..file.model.clone() }, ..file };
    assert_eq!(DiskFile::read(&formula.write()), Ok(formula));
}

/// Each change of a good file, and what is said of it.
#[test]
fn hostile_files_are_refused_with_the_key_and_what_it_should_be() {
    let good = example().write();
    let cases = [
        ("version = 2", "version = 3", "version: 1 and 2 are what this program reads"),
        ("version = 2", "version = 1", "disk.media-sector-us: is missing"),
        ("[0, 20.5]", "[1, 20.5]", "disk.zones: pairs of a first sector"),
        ("[0, 20.5]", "[0, -20.5]", "disk.zones: pairs of a first sector"),
        ("[5000000, 30.25]", "[0, 30.25]", "disk.zones: pairs of a first sector"),
        ("[5000000, 30.25]", "[0.5, 30.25]", "disk.zones: pairs of a first sector"),
        ("[5000000, 30.25]", "[5000000]", "disk.zones: at most 64 pairs of numbers"),
        ("media-share = 0.5", "media-share = -1", "media-share: a number from 0 to 10"),
        ("kind = \"disk\"", "kind = \"tape\"", "kind: 'disk' is expected"),
        ("keep = 0.95", "kep = 0.95", "cache.kep: there is no such key; did you mean 'keep'?"),
        ("keep = 0.95", "keep = 1.5", "cache.keep: a number from 0 to 1"),
        ("keep = 0.95", "keep = nan", "cache.keep: a number from 0 to 1"),
        ("rotation-us = 6000.0", "rotation-us = -1.0", "disk.rotation-us: a number from 0 to"),
        ("rotation-us = 6000.0", "rotation-us = inf", "disk.rotation-us: a number from 0 to"),
        ("near-sectors = 1786", "near-sectors = 1e300", "disk.near-sectors: a whole number from 0 to"),
        ("near-sectors = 1786", "near-sectors = 9223372036854775807", "disk.near-sectors: a whole number"),
        ("near-sectors = 1786", "", "disk.near-sectors: is missing"),
        ("reads-wait = true", "reads-wait = \"yes\"", "write-back.reads-wait: true or false"),
        ("[class.read-miss-", "[class.red-miss-", "did you mean 'read-miss-"),
        ("500.0, 6500.5", "6500.5, 500.0", "wait-us: 1 to 1001 rising numbers"),
        ("500.0, 6500.5", "", "wait-us: 1 to 1001 rising numbers"),
        ("[0.9, 1.0]", "[1.0, 0.9]", "cache.keep: two numbers, the smaller one first"),
        ("[1.0, 1245.0]", "[0.0, 1245.0]", "seek.points: pairs of cylinders"),
        ("[1.0, 1245.0]", "[1.0]", "seek.points: at most"),
        ("[cache]", "[cache", "TOML parse error"),
    ];
    for (from, to, said) in cases {
        let flat = flat(&good);
        assert!(flat.contains(from), "{from} in {flat}");
        let error = DiskFile::read(&flat.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(said), "{from} -> {to}: {error}");
    }
    assert!(DiskFile::read("").unwrap_err().0.len() >= 8);
    assert!(DiskFile::read("\0\0\0").is_err());
}

/// As programs before zones wrote it, byte for byte; and how it is written today.
#[test]
fn files_of_the_first_version_are_read() {
    const OLD: &str = r#"kind = "disk"
notes = ["one"]
source = 'a "trace"'
version = 1

[cache]
ahead-sectors = 300
behind-sectors = 0
keep = 0.95
keep-after-write = 0.0
keep-written = 0.0
segments = 3
track-sectors = 0

[class.read-miss-near-after-write]
sector-us = 102.5
seek-share = 1.0
wait-us = [500.0, 6500.5]

[disk]
media-sector-us = 20.5
near-sectors = 1786
rotation-us = 6000.0

[seek]
points = [[1.0, 1245.0], [2.0, 1300.0]]
sectors-per-cylinder = 1786.0

[uncertainty]
"cache.keep" = [0.9, 1.0]

[write-back]
reads-wait = true
segment-sectors = 374
segments = 1
"#;
    let mut expected = example();
    expected.model.zones = Zones::even(20.5);
    expected.model.costs[9].as_mut().unwrap().media_share = 0.0;
    assert_eq!(DiskFile::read(OLD), Ok(expected.clone()));
    // Today's: the version, the zones and the share are what differs.
    let new = OLD
        .replace("version = 1", "version = 2")
        .replace("media-sector-us = 20.5\n", "")
        .replace("rotation-us = 6000.0\n", "rotation-us = 6000.0\nzones = [[0, 20.5]]\n")
        .replace(
            "[class.read-miss-near-after-write]\n",
            "[class.read-miss-near-after-write]\nmedia-share = 0.0\n",
        );
    assert_eq!(DiskFile::read(&new), Ok(expected.clone()));
    assert_eq!(flat(&expected.write()), new);
    let zoned =
        new.replace("[[0, 20.5]]", "[[0, 20.5], [5000000, 30.25]]").replace("share = 0.0", "share = 0.5");
    assert_eq!(flat(&example().write()), zoned);
    // What is new has no place in what is old.
    let mixed = OLD.replace("rotation-us = 6000.0\n", "rotation-us = 6000.0\nzones = [[0, 20.5]]\n");
    assert!(DiskFile::read(&mixed).unwrap_err().to_string().contains("disk.zones: there is no such key"));
}

/// The writer may break lists over several lines.
fn flat(text: &str) -> String {
    text.replace("[\n    ", "[").replace(",\n    ", ", ").replace(",\n]", "]")
}

proptest! {
    #[test]
    fn any_text_is_a_model_or_an_error(text in ".{0,300}") {
        prop_assert!(DiskFile::read(&text).is_err());
    }

    /// A byte of a good file is changed, or its end is cut off: a model or an error, and what is read can be written.
    #[test]
    fn damaged_files_are_models_or_errors(at in 0..4_000usize, byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = example().write().into_bytes();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        if let Ok(file) = DiskFile::read(&String::from_utf8_lossy(&bytes)) {
            prop_assert_eq!(DiskFile::read(&file.write()), Ok(file));
        }
    }
}
