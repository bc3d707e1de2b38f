//! Simulated copies: at every moment after the middle, the time left is told with less than a quarter of error.

use super::*;

/// A file, or a part of a large one: bytes, and whether a file ends with it.
#[derive(Clone, Copy)]
struct Part {
    bytes: f64,
    files: f64,
}

struct Link {
    /// Seconds per byte and per file.
    byte: f64,
    file: f64,
    read_back: f64,
    /// From this share of the work on, bytes cost so much more.
    slower_at: f64,
    slower: f64,
}

const LINK: Link = Link { byte: 1e-8, file: 2e-4, read_back: 5e-10, slower_at: 2.0, slower: 1.0 };

/// What was done at which times: every part is copied, then verified.
fn run(parts: &[Part], link: &Link) -> Vec<(f64, Done)> {
    let total: f64 = parts.iter().map(|p| p.bytes).sum();
    let (mut at, mut done) = (0.0, Done::default());
    let mut times = vec![(at, done)];
    for part in parts {
        // In blocks, as the engine does.
        let blocks = (part.bytes / (2 << 20) as f64).ceil().max(1.0) as usize;
        for _ in 0..blocks {
            let slow = if done.copied >= link.slower_at * total { link.slower } else { 1.0 };
            at += part.bytes / blocks as f64 * link.byte * slow;
            done.copied += part.bytes / blocks as f64;
            times.push((at, done));
        }
        for _ in 0..blocks {
            at += part.bytes / blocks as f64 * link.read_back;
            done.verified += part.bytes / blocks as f64;
            times.push((at, done));
        }
        at += part.files * link.file;
        done.files += part.files;
        times.push((at, done));
    }
    times
}

/// The largest error, as a share, of the time left told after `from` of the whole time.
fn worst(parts: &[Part], link: &Link, from: f64) -> f64 {
    let times = run(parts, link);
    let (end, all) = *times.last().expect("there is a start");
    let mut pace = Pace::default();
    let mut worst = 0.0f64;
    for (at, done) in times {
        pace.tell(at, done);
        // Of the last moments nobody wants to know, and any error is a large share of them.
        if at > from * end && at < 0.8 * end {
            let left = Done {
                copied: all.copied - done.copied,
                verified: all.verified - done.verified,
                files: all.files - done.files,
            };
            let told = pace.left(&left).expect("half of it is done");
            worst = worst.max((told - (end - at)).abs() / (end - at));
        }
    }
    worst
}

fn small(count: usize) -> Vec<Part> {
    vec![Part { bytes: 4096.0, files: 1.0 }; count]
}

fn large(bytes: f64) -> Vec<Part> {
    vec![Part { bytes, files: 1.0 }]
}

#[test]
fn large_small_and_mixed_trees_are_foreseen_from_the_middle_on() {
    assert!(worst(&large(4e9), &LINK, 0.5) < 0.25, "{}", worst(&large(4e9), &LINK, 0.5));
    assert!(worst(&small(100_000), &LINK, 0.5) < 0.25);
    // Small files first, then large ones, and the other way round, and by turns.
    let mut up = small(50_000);
    (0..10).for_each(|_| up.extend(large(1e8)));
    let down: Vec<Part> = up.iter().rev().copied().collect();
    let turns: Vec<Part> = (0..10).flat_map(|_| small(5000).into_iter().chain(large(1e8))).collect();
    for (name, tree) in [("up", up), ("down", down), ("turns", turns)] {
        let error = worst(&tree, &LINK, 0.55);
        assert!(error < 0.25, "{name}: {error}");
    }
}

#[test]
fn a_link_that_becomes_half_as_fast_is_noticed() {
    let slower = Link { slower_at: 0.5, slower: 2.0, ..LINK };
    for tree in [large(4e9), vec![Part { bytes: 4e6, files: 1.0 }; 1000]] {
        // The middle of the bytes is a third of the time: soon after it the new rate is known.
        let error = worst(&tree, &slower, 0.5);
        assert!(error < 0.25, "{error}");
    }
}

#[test]
fn nothing_done_is_nothing_told_and_the_past_stays_small() {
    let mut pace = Pace::default();
    assert_eq!(pace.left(&Done { copied: 1.0, ..Done::default() }), None);
    for n in 0..1_000_000u32 {
        pace.tell(f64::from(n) * 0.01, Done { copied: f64::from(n), ..Done::default() });
    }
    assert!(pace.pieces.len() < PIECES_MAX);
    assert!((pace.rate() - 100.0).abs() < 1.0, "{}", pace.rate());
}
