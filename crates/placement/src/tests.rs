use super::*;
use proptest::prelude::*;

const CHUNK: u64 = 1 << 19;

/// 99.9 % quantile of chi-square by Wilson and Hilferty; fine for the sizes used here.
fn chi_square_limit(freedom: f64) -> f64 {
    let z = 3.09;
    let t = 2.0 / (9.0 * freedom);
    freedom * (1.0 - t + z * t.sqrt()).powi(3)
}

/// How far `counts` are from `shares` of their sum.
fn chi_square(counts: &[u64], shares: &[f64]) -> f64 {
    let (all, whole) = (counts.iter().sum::<u64>() as f64, shares.iter().sum::<f64>());
    let expected = shares.iter().map(|share| all * share / whole);
    counts.iter().zip(expected).map(|(c, e)| (*c as f64 - e).powi(2) / e).sum()
}

fn placer(members: usize) -> Placer {
    Placer::new(members, &[]).unwrap()
}

fn wide(stripe: u16) -> Layout {
    Layout::wide(CHUNK, stripe).unwrap()
}

fn weighted() -> Layout {
    Layout::weighted(CHUNK).unwrap()
}

fn group(number: Option<u16>) -> Layout {
    Layout::group(CHUNK, number).unwrap()
}

/// Chunks 1 to 1000 of 200 objects, by owner.
fn count_chunks(placer: &Placer, layout: Layout) -> Vec<u64> {
    let mut counts = vec![0u64; placer.members()];
    for object in 0..200u64 {
        for index in 1..1001 {
            let home = (object % placer.members() as u64) as DaemonIndex;
            counts[usize::from(placer.chunk_owner(Ino::new(home, object + 2), layout, index))] += 1;
        }
    }
    counts
}

/// F14: chunks and entries spread evenly.
#[test]
fn spread_passes_chi_square() {
    for members in [2usize, 3, 4, 7, 16, 512] {
        let chunks = count_chunks(&placer(members), wide(0));
        let mut entries = vec![0u64; members];
        for file in 0..200_000u32 {
            let name = format!("file.mdtest.{}.{file}", file % 16);
            entries[usize::from(entry_owner(Ino::ROOT, name.as_bytes(), members))] += 1;
        }
        let limit = chi_square_limit(members as f64 - 1.0);
        let even = vec![1.0; members];
        for (what, counts) in [("chunks", chunks), ("entries", entries)] {
            assert!(
                chi_square(&counts, &even) < limit,
                "{what} over {members}: {}",
                chi_square(&counts, &even)
            );
        }
    }
}

/// L19: each daemon gets chunks in proportion to its weight, none with weight 0.
#[test]
fn l19_weighted_spread_passes_chi_square() {
    for weights in [&[1u32, 3][..], &[5, 5, 1, 1], &[1000, 1, 500, 250, 7], &[2; 64]] {
        let counts = count_chunks(&Placer::new(weights.len(), weights).unwrap(), weighted());
        let shares: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
        let limit = chi_square_limit(weights.len() as f64 - 1.0);
        assert!(chi_square(&counts, &shares) < limit, "{weights:?}: {counts:?}");
    }
    let counts = count_chunks(&Placer::new(3, &[0, 1, 0]).unwrap(), weighted());
    assert_eq!(counts, [0, 200_000, 0]);
}

#[test]
fn a_new_member_takes_its_share_only() {
    let moved = |before: &Placer, after: &Placer, layout| {
        (1..100_000u64)
            .filter(|i| before.chunk_owner(Ino(7), layout, *i) != after.chunk_owner(Ino(7), layout, *i))
            .inspect(|i| assert_eq!(usize::from(after.chunk_owner(Ino(7), layout, *i)), before.members()))
            .count()
    };
    let ninth = moved(&placer(8), &placer(9), wide(0));
    assert!((10_000..12_300).contains(&ninth), "{ninth}");
    let (before, after) = (Placer::new(2, &[3, 1]).unwrap(), Placer::new(3, &[3, 1, 4]).unwrap());
    let half = moved(&before, &after, weighted());
    assert!((49_000..51_000).contains(&half), "{half}");
}

/// Clients of different builds must agree: these values are part of the protocol.
#[test]
fn owners_are_pinned() {
    let entries: Vec<_> = ["a", "data.bin", "processor0", "a-name-longer-than-two-words"]
        .map(|n| entry_owner(Ino::ROOT, n.as_bytes(), 1000))
        .into();
    assert_eq!(entries, [926, 345, 553, 204]);
    let ino = Ino::new(3, 9);
    let owners = |placer: &Placer, layout| [0, 1, 2, u64::MAX].map(|i| placer.chunk_owner(ino, layout, i));
    assert_eq!(owners(&placer(1000), wide(0)), [3, 885, 490, 886]);
    assert_eq!(owners(&placer(1000), Layout::LOCAL), [3; 4]);
    assert_eq!(owners(&placer(1000), wide(7)), [3, 276, 549, 276]);
    let weights: Vec<u32> = (1..=1000).collect();
    assert_eq!(owners(&Placer::new(1000, &weights).unwrap(), weighted()), [3, 757, 156, 886]);
    let thirds: Vec<u16> = (0..1000).map(|d| d % 3).collect();
    let grouped = placer(1000).grouped(&thirds).unwrap();
    assert_eq!(owners(&grouped, group(None)), [3, 525, 252, 813]);
    assert_eq!(owners(&grouped, group(Some(1))), owners(&grouped, group(None)), "the home's group counts");
}

#[test]
fn wrong_weights_are_refused() {
    for (weights, error) in [
        (&[1][..], WeightError::Count { weights: 1, members: 2 }),
        (&[1001, 1], WeightError::TooLarge(1001)),
        (&[0, 0], WeightError::AllZero),
    ] {
        assert_eq!(Placer::new(2, weights), Err(error));
    }
}

#[test]
fn wrong_groups_are_refused() {
    assert_eq!(placer(2).grouped(&[0]), Err(GroupError::Count { groups: 1, members: 2 }));
    assert_eq!(placer(2).grouped(&[0, u16::MAX]), Err(GroupError::TooLarge(u16::MAX)));
    assert_eq!(placer(2).grouped(&[]), Ok(placer(2)));
}

/// A12: the chunks of a file spread evenly over the daemons of its home's group, and lie nowhere else.
#[test]
fn a12_chunks_stay_in_their_group() {
    let group_of: Vec<u16> = (0..24).map(|daemon| daemon % 3).collect();
    let placer = placer(24).grouped(&group_of).unwrap();
    for home in 0..24 {
        let mut counts = [0u64; 24];
        for index in 1..8001 {
            let owner = placer.chunk_owner(Ino::new(home, 77), group(None), index);
            assert_eq!(placer.group_of(owner), placer.group_of(home));
            counts[usize::from(owner)] += 1;
        }
        let there = counts.map(|c| (c > 0).then_some(c)).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(there.len(), 8);
        assert!(chi_square(&there, &[1.0; 8]) < chi_square_limit(7.0), "{counts:?}");
    }
}

/// A file's home lies on the group that its directory names, else on a group of its maker's node, else on any.
#[test]
fn homes_are_where_layouts_say() {
    let placer = placer(6).grouped(&[0, 0, 1, 1, 2, 2]).unwrap();
    let name = (Ino::ROOT, &b"f"[..]);
    for owner in 0..6 {
        let home = |layout, near: &[DaemonIndex]| placer.home_in_group(layout, owner, near, name);
        assert_eq!(placer.group_of(home(group(Some(2)), &[0])), Some(2));
        assert_eq!(placer.group_of(home(group(None), &[3])), Some(1));
        assert_eq!(home(group(None), &[]), owner);
        assert_eq!(home(group(Some(9)), &[0]), owner, "a group that is not there");
        let own = placer.group_of(owner);
        assert_eq!(home(group(own), &[]), owner, "where the entry lies, if that may be");
    }
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let named = (0u16..5).prop_map(|number| group(number.checked_sub(1)));
    prop_oneof![(0u16..70).prop_map(wide), Just(Layout::LOCAL), Just(weighted()), named]
}

fn any_placer() -> impl Strategy<Value = Placer> {
    let weights = proptest::collection::vec(0u32..=WEIGHT_MAX, 1..40)
        .prop_filter_map("weights of zeros", |weights| Placer::new(weights.len(), &weights).ok());
    let grouped = proptest::collection::vec(0u16..5, 1..40)
        .prop_map(|group_of| placer(group_of.len()).grouped(&group_of).unwrap());
    prop_oneof![(1usize..100).prop_map(placer), weights, grouped]
}

proptest! {
    /// The first chunk lies at home; every owner is one of the owners told, which are all different; a stripe is as wide
    /// as it says, and neighbouring chunks of it lie on different daemons.
    #[test]
    fn owners_are_those_told(
        placer in any_placer(), layout in any_layout(), home in any::<u16>(), count in 1u64..1 << 40, from in 0..u64::MAX - 200,
    ) {
        let ino = Ino::new((usize::from(home) % placer.members()) as u16, count);
        let told = placer.chunk_owners(ino, layout);
        prop_assert_eq!(told[0], ino.home());
        prop_assert_eq!(placer.chunk_owner(ino, layout, 0), ino.home());
        let mut sorted = told.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(sorted.len(), told.len());
        prop_assert!(sorted.iter().all(|d| usize::from(*d) < placer.members()));
        for index in from..from + 200 {
            prop_assert!(told.contains(&placer.chunk_owner(ino, layout, index)));
        }
        if layout.stripe() > 0 {
            let width = usize::from(layout.stripe()).min(placer.members());
            prop_assert_eq!(told.len(), width);
            let mut turn: Vec<_> = (from..from + width as u64).map(|i| placer.chunk_owner(ino, layout, i)).collect();
            turn.sort_unstable();
            turn.dedup();
            prop_assert_eq!(turn.len(), width);
        }
    }

    /// Weights of 1 place as no weights do.
    #[test]
    fn equal_weights_change_nothing(members in 1usize..50, count in 1u64..1 << 40, index in any::<u64>()) {
        let (ino, ones) = (Ino::new(0, count), Placer::new(members, &vec![1; members]).unwrap());
        prop_assert_eq!(
            ones.chunk_owner(ino, weighted(), index),
            placer(members).chunk_owner(ino, wide(0), index)
        );
    }
}
