//! What a disk's mechanism does to requests: seeks, the buffer, the track, writes that wait for room.

use proptest::prelude::*;
use tidepool_devices::disk::{
    CLASSES, CacheModel, Class, Cost, Disk, DiskModel, Kind, Place, Seek, Spread, WriteBack, Zone, Zones,
};
use tidepool_devices::trace::{SECTOR_MAX, SECTORS_MAX};
use tidepool_devices::{Direction, Request};
use tidepool_sim::{Stream, Time};

/// Hits take 100 us, misses 1,000 and the seek, writes 50; a sector takes 10. Nothing is drawn.
fn model() -> DiskModel {
    let mut costs = [const { None }; CLASSES];
    for class in Class::all() {
        let (us, seek_share) = match class.kind {
            Kind::ReadHit => (100.0, 0.0),
            Kind::ReadMiss => (1_000.0, 1.0),
            Kind::Write => (50.0, 0.0),
        };
        costs[class.index()] =
            Some(Cost { sector_us: 10.0, media_share: 0.0, seek_share, wait: Spread::even(us, us) });
    }
    DiskModel {
        rotation_us: 6_000.0,
        zones: Zones::even(20.0),
        near_sectors: 1_000,
        seek: Seek::Formula { root_us: 2.0, linear_us: 0.0, bend_sectors: 1e9 },
        cache: CacheModel {
            segments: 2,
            behind_sectors: 50,
            ahead_sectors: 200,
            track_sectors: 0,
            keep: 1.0,
            keep_after_write: 1.0,
            keep_written: 1.0,
        },
        write_back: WriteBack { segments: 2, segment_sectors: 100, reads_wait: true },
        costs,
    }
}

const IDLE_US: u64 = 1_000_000;

/// Serves requests with a time before each, and tells kind and time in us.
fn serve(model: &DiskModel, requests: &[(u64, Direction, u64, u32)]) -> Vec<(Kind, u64)> {
    let (mut disk, mut random, mut now) = (Disk::default(), Stream::new(1, 1), Time::ZERO);
    let mut one = |&(gap_us, direction, sector, sectors): &(u64, Direction, u64, u32)| {
        now = now.plus(Time(gap_us * 1_000));
        let served = disk.serve(model, &Request { direction, sector, sectors }, now, &mut random);
        now = now.plus(served.time);
        (served.class.kind, served.time.0 / 1_000)
    };
    requests.iter().map(&mut one).collect()
}

use Direction::{Read, Write};

#[test]
fn reads_cost_seek_or_buffer() {
    let seen = serve(
        &model(),
        &[
            (0, Read, 1_000_000, 10),
            (IDLE_US, Read, 1_000_010, 10),
            (IDLE_US, Read, 1_000_219, 1),
            (IDLE_US, Read, 1_000_421, 10),
            (IDLE_US, Read, 1_000_400, 10),
            (IDLE_US, Read, 2_000_410, 10),
            (IDLE_US, Read, 1_000_400, 10),
            (IDLE_US, Read, 9_000_000, 10),
            (IDLE_US, Read, 8_000_000, 10),
            (IDLE_US, Read, 1_000_400, 10),
        ],
    );
    let (hit, miss) = (Kind::ReadHit, Kind::ReadMiss);
    let root = |sectors: u64| (2.0 * (sectors as f64).sqrt()) as u64;
    assert_eq!(seen[0], (miss, 1_100));
    assert_eq!(seen[1..3], [(hit, 200), (hit, 110)]);
    // Beyond what was read ahead, then from before what was read.
    assert_eq!(seen[3..5], [(miss, 1_100), (hit, 200)]);
    assert_eq!(seen[5], (miss, 1_100 + root(1_000_000)));
    // Two segments: what was read one far request ago is there, what was read two ago is not.
    assert_eq!((seen[6], seen[9].0), ((hit, 200), miss));
}

#[test]
fn what_is_read_ahead_comes_in_as_the_platter_turns() {
    // 100 sectors behind the last one take 2,000 us, of which 500 have passed.
    let seen = serve(&model(), &[(0, Read, 0, 10), (500, Read, 100, 10), (IDLE_US, Read, 200, 10)]);
    assert_eq!(seen[1], (Kind::ReadHit, 1_500));
    assert_eq!(seen[2], (Kind::ReadHit, 200));
}

#[test]
fn writes_forget_what_was_read_and_can_be_read() {
    let seen = serve(
        &model(),
        &[(0, Read, 0, 10), (IDLE_US, Write, 20, 10), (IDLE_US, Read, 22, 5), (IDLE_US, Read, 60, 10)],
    );
    assert_eq!(seen[2].0, Kind::ReadHit, "it was just written");
    assert_eq!(seen[3].0, Kind::ReadHit, "it is read ahead from what was just read");
    let forgetful = CacheModel { keep_after_write: 0.0, keep_written: 0.0, ..model().cache };
    let seen = serve(
        &DiskModel { cache: forgetful, ..model() },
        &[
            (0, Read, 0, 10),
            (IDLE_US, Write, 500, 10),
            (IDLE_US, Read, 20, 5),
            (IDLE_US, Write, 700, 1),
            (IDLE_US, Read, 700, 1),
        ],
    );
    assert_eq!((seen[2].0, seen[4].0), (Kind::ReadMiss, Kind::ReadMiss));
}

#[test]
fn writes_wait_for_room_once_the_buffer_is_full() {
    let far = |n: u64| (0, Write, n * 10_000_000, 10);
    let seen = serve(&model(), &[far(1), far(2), far(3), far(4)]);
    assert_eq!(seen[..2], [(Kind::Write, 150), (Kind::Write, 150)]);
    // Each is written out in a seek, a wait and its sectors; the third waits for the first.
    let out = 2.0 * 1e7f64.sqrt() + 1_000.0 + 10.0 * 20.0;
    // The first one of a disk seeks nowhere. The third has come 150 us after it was in the buffer, and takes 150 itself.
    assert_eq!(seen[2].1, 1_200 - 150 + 150, "{seen:?}");
    // The fourth waits for the second, which the disk turned to when it was done with the first.
    assert!((seen[3].1 as f64 - out).abs() <= 1.0, "{seen:?} {out}");
    // One after the other on the platter, they go in one run.
    let run = |n: u64| (0, Write, n * 10, 10);
    assert!(serve(&model(), &(0..8).map(run).collect::<Vec<_>>()).iter().all(|seen| seen.1 == 150));
    // And all are fast where there is time in between.
    let rare = |n: u64| (IDLE_US, Write, n * 10_000_000, 10);
    assert!(serve(&model(), &(0..8).map(rare).collect::<Vec<_>>()).iter().all(|seen| seen.1 == 150));
    // A read that needs the arm waits for the write that it is at.
    let read = |gap| serve(&model(), &[(0, Write, 0, 10), (gap, Read, 50_000_000, 10)])[1].1;
    assert!(read(0) > read(IDLE_US) + 900, "{} {}", read(0), read(IDLE_US));
}

#[test]
fn what_is_kept_ends_with_the_track() {
    let cache =
        CacheModel { behind_sectors: 9_999, ahead_sectors: 9_999, track_sectors: 100, ..model().cache };
    let model = DiskModel { cache, ..model() };
    // Of a sector in the middle of nowhere, exactly its track is kept, wherever that begins.
    let hits: Vec<u64> = (0..300)
        .filter(|at| {
            let seen = serve(&model, &[(0, Read, 10_150, 1), (IDLE_US, Read, 10_000 + at, 1)]);
            seen[1].0 == Kind::ReadHit
        })
        .collect();
    assert_eq!(hits.len(), 100, "{hits:?}");
    assert!(hits.contains(&150) && hits.windows(2).all(|pair| pair[1] == pair[0] + 1), "{hits:?}");
}

#[test]
fn a_class_without_a_cost_has_that_of_the_one_most_like_it() {
    let mut model = model();
    let known = Class { kind: Kind::ReadMiss, place: Place::Far, after: tidepool_devices::disk::After::Read };
    let cost = model.cost(known).clone();
    model.costs = [const { None }; CLASSES];
    model.costs[known.index()] = Some(cost);
    assert_eq!(
        serve(&model, &[(0, Write, 5, 10), (0, Write, 15, 10)]),
        [(Kind::Write, 1_100), (Kind::Write, 1_100)]
    );
}

fn any_model() -> impl Strategy<Value = DiskModel> {
    let size = prop_oneof![0..500u64, 0..SECTOR_MAX];
    let cache = (0..80usize, size.clone(), size.clone(), size, 0.0..=1.0f64);
    let waits = prop::collection::vec(-1e6..1e10f64, 1..5);
    (cache, waits, 0.0..1e10f64, 0.0..1e3f64, 0..80usize, any::<bool>()).prop_map(
        |(
            (segments, behind_sectors, ahead_sectors, track_sectors, keep),
            mut waits,
            media,
            share,
            writes,
            reads_wait,
        )| {
            waits.sort_by(f64::total_cmp);
            let cache = CacheModel {
                segments,
                behind_sectors,
                ahead_sectors,
                track_sectors,
                keep,
                keep_after_write: keep,
                keep_written: keep,
            };
            let wait = Spread::new(waits).unwrap();
            let inner = Zone { first_sector: 1 + behind_sectors, sector_us: 2.0 * media };
            let zones = Zones::new(vec![Zone { first_sector: 0, sector_us: media }, inner]).unwrap();
            let mut costs = [const { None }; CLASSES];
            costs[7] = Some(Cost { sector_us: media, media_share: share, seek_share: share, wait });
            let write_back = WriteBack { segments: writes, segment_sectors: behind_sectors, reads_wait };
            DiskModel { zones, cache, costs, write_back, ..model() }
        },
    )
}

proptest! {
    /// Any model and any requests: no panic, no time out of range, the same again from the same state, and a state that
    /// does not grow.
    #[test]
    fn service_is_bounded_and_depends_on_nothing_else(
        model in any_model(),
        requests in prop::collection::vec(
            (any::<bool>(), prop_oneof![0..1_000u64, 0..SECTOR_MAX], 0..SECTORS_MAX, 0..Time::MAX.0 / 64),
            1..64,
        ),
    ) {
        let (mut disk, mut random, mut now) = (Disk::default(), Stream::new(3, 3), Time::ZERO);
        for (is_read, sector, sectors, gap) in requests {
            let direction = if is_read { Read } else { Write };
            let request = Request { direction, sector, sectors };
            let (mut other, mut same) = (disk.clone(), random);
            let time = disk.service(&model, &request, now, &mut random);
            prop_assert!(time >= Time(1_000) && time <= Time::MAX);
            prop_assert_eq!(other.service(&model, &request, now, &mut same), time);
            prop_assert_eq!((&other, same), (&disk, random));
            now = now.plus(time).plus(Time(gap)).min(Time::MAX);
        }
        // 64 segments and 64 runs of writes at most, as text.
        let said = format!("{disk:?}");
        prop_assert!(said.len() < 64 * 400);
    }
}
