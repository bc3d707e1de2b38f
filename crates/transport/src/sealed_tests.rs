//! What records do that lie in streams of either kind. Who changes, repeats or leaves out any: `remote/greeting_tests.rs`.

use super::*;
use proptest::prelude::*;
use std::os::unix::net::UnixStream;
use tidepool_wire::{Field, Reader};

/// Two ends of one connection whose keys are renewed every so many records.
fn pair(records_per_key: u64) -> (Sealed<UnixStream>, Sealed<UnixStream>) {
    pair_with(records_per_key, records_per_key)
}

fn pair_with(records_left: u64, records_right: u64) -> (Sealed<UnixStream>, Sealed<UnixStream>) {
    let pattern = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";
    let builder = || snow::Builder::new(pattern.parse().unwrap()).psk(0, &[1; 32]).unwrap();
    let (mut a, mut b) = (builder().build_initiator().unwrap(), builder().build_responder().unwrap());
    let (mut message, mut nothing) = ([0; 128], [0; 128]);
    let len = a.write_message(&[], &mut message).unwrap();
    b.read_message(&message[..len], &mut nothing).unwrap();
    let len = b.write_message(&[], &mut message).unwrap();
    a.read_message(&message[..len], &mut nothing).unwrap();
    let (left, right) = UnixStream::pair().unwrap();
    let (mut left, mut right) = (Sealed::new(left), Sealed::new(right));
    left.seal_with(Keys::of(a).unwrap(), (1, 0), records_left);
    right.seal_with(Keys::of(b).unwrap(), (0, 1), records_right);
    (left, right)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn keys_are_renewed_on_both_sides_after_the_same_record() {
    let (mut left, mut right) = pair(3);
    for round in 0..20u8 {
        left.write_all(&[round; 9]).unwrap();
        right.write_all(&[round; 5]).unwrap();
        let (mut there, mut back) = ([0; 9], [0; 5]);
        right.read_exact(&mut there).unwrap();
        left.read_exact(&mut back).unwrap();
        assert_eq!((there, back), ([round; 9], [round; 5]));
    }
}

/// Otherwise nobody would notice that they are not renewed at all.
#[test]
fn who_renews_at_another_record_is_not_understood() {
    let (mut left, mut right) = pair_with(3, 4);
    let mut data = [0; 4];
    // Numbers 1 and 2 there: the client's End had 0.
    for _ in 1..3 {
        left.write_all(b"data").unwrap();
        right.read_exact(&mut data).unwrap();
    }
    left.write_all(b"data").unwrap();
    assert_eq!(right.read_exact(&mut data).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn all_lengths_around_a_record_come_whole() {
    for len in [1, RECORD_MAX - 1, RECORD_MAX, RECORD_MAX + 1, 5 * RECORD_MAX + 3] {
        for first in [0, 1, 40] {
            let (mut left, mut right) = pair(2);
            let (head, data) = (pattern(first), pattern(len));
            let (mut got_head, mut got) = (vec![0; first], vec![0; len]);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut parts = [IoSlice::new(&head), IoSlice::new(&data)];
                    crate::write_all_slices(&mut left, &mut parts).unwrap();
                });
                right.read_exact(&mut got_head).unwrap();
                // Into less room than a record has, and into more.
                let cut = len.min(100);
                right.read_exact(&mut got[..cut]).unwrap();
                right.read_exact(&mut got[cut..]).unwrap();
            });
            assert!(got == data && got_head == head, "{first} and {len}");
            assert!(!right.has_unread());
        }
    }
}

/// A daemon's side: neither end waits, and whatever is not taken goes later, once, and in order.
#[test]
fn nothing_is_lost_where_neither_end_waits() {
    let (mut left, mut right) = pair(5);
    left.stream.set_nonblocking(true).unwrap();
    right.stream.set_nonblocking(true).unwrap();
    let data = pattern(9 << 20);
    let (mut offered, mut got) = (0, Vec::new());
    let (mut refusals, mut turns) = (0, 0);
    while got.len() < data.len() {
        turns += 1;
        assert!(turns < 1_000_000, "{offered} offered, {} come", got.len());
        if offered < data.len() {
            match left.offer(&data[offered..]) {
                Ok(count) => offered += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    refusals += 1;
                }
            }
        } else {
            left.push().unwrap();
        }
        let mut room = vec![0; if turns % 3 == 0 { 70_000 } else { 900 }];
        while let Ok(count) = right.read(&mut room) {
            got.extend_from_slice(&room[..count]);
            if count < room.len() && right.is_dry() {
                break;
            }
        }
    }
    assert!(got == data);
    assert!(refusals > 0, "the socket took everything at once: nothing was tried");
    assert!(left.push().unwrap() && !right.has_unread());
    assert_eq!(right.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn records_that_wait_make_a_connection_stale() {
    let (mut left, mut right) = pair(9);
    left.write_all(b"first").unwrap();
    left.write_all(b"second").unwrap();
    let mut first = [0; 5];
    right.read_exact(&mut first).unwrap();
    assert!(right.has_unread(), "nobody asked for the second one");
}

#[test]
fn after_a_failure_to_send_nothing_more_is_sent() {
    let (mut left, right) = pair(9);
    drop(right);
    let big = pattern(4 << 20);
    assert!(left.write_all(&big).is_err());
    assert_eq!(left.write_all(b"more").unwrap_err().kind(), ErrorKind::ConnectionAborted);
}

/// As another process gets it.
fn handed_over(end: Sealed<UnixStream>, records_per_key: u64) -> Sealed<UnixStream> {
    let (stream, seals) = end.take_apart().unwrap();
    let mut bytes = Vec::new();
    seals.put(&mut bytes);
    let mut from = Reader::new(&bytes);
    let got = Seals::get(&mut from).unwrap();
    from.finish().unwrap();
    assert_eq!(got, seals);
    let mut end = Sealed::put_together(stream, got);
    if let Some((sealer, opener)) = &mut end.seal {
        (sealer.way.records_per_key, opener.way.records_per_key) = (records_per_key, records_per_key);
    }
    end
}

#[derive(Clone, Debug)]
enum Step {
    /// One side says so many bytes.
    Say(bool, usize),
    /// One side reads at most so many.
    Hear(bool, usize),
    HandOver(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<bool>(), 1usize..9000).prop_map(|(side, len)| Step::Say(side, len)),
        4 => (any::<bool>(), 1usize..9000).prop_map(|(side, len)| Step::Hear(side, len)),
        2 => any::<bool>().prop_map(Step::HandOver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whenever either side is handed over, whatever has been read of what has come, and whichever keys are used: nothing is lost,
    /// repeated, or in another order.
    #[test]
    fn who_goes_on_with_a_connection_goes_on_where_it_was(
        steps in proptest::collection::vec(step(), 1..60),
        records_per_key in 1u64..6,
    ) {
        let (left, right) = pair(records_per_key);
        let mut ends = [Some(left), Some(right)];
        let (mut said, mut heard) = ([0usize; 2], [0usize; 2]);
        let data = pattern(60 * 9000);
        for step in steps {
            match step {
                Step::Say(side, len) => {
                    let at = usize::from(side);
                    // No more than the socket takes while nobody reads.
                    if said[at] - heard[1 - at] < 60_000 {
                        ends[at].as_mut().unwrap().write_all(&data[said[at]..said[at] + len]).unwrap();
                        said[at] += len;
                    }
                }
                Step::Hear(side, len) => {
                    let at = usize::from(side);
                    if heard[at] < said[1 - at] {
                        let mut room = vec![0; len];
                        let count = ends[at].as_mut().unwrap().read(&mut room).unwrap();
                        prop_assert!(count > 0);
                        prop_assert_eq!(&room[..count], &data[heard[at]..heard[at] + count]);
                        heard[at] += count;
                    }
                }
                Step::HandOver(side) => {
                    let at = usize::from(side);
                    ends[at] = ends[at].take().map(|end| handed_over(end, records_per_key));
                }
            }
        }
        for at in [0, 1] {
            let mut rest = vec![0; said[1 - at] - heard[at]];
            ends[at].as_mut().unwrap().read_exact(&mut rest).unwrap();
            prop_assert_eq!(&rest[..], &data[heard[at]..said[1 - at]]);
            prop_assert!(!ends[at].as_ref().unwrap().has_unread());
        }
    }
}

/// Its keys would open what is under way, but nobody could say where it is.
#[test]
fn a_broken_connection_is_not_handed_over() {
    let (mut left, right) = pair(9);
    drop(right);
    assert!(left.write_all(&pattern(4 << 20)).is_err());
    assert!(left.take_apart().is_err());
    assert!(Sealed::new(UnixStream::pair().unwrap().0).take_apart().is_err());
}

#[test]
fn what_is_handed_over_has_the_bytes_of_the_specification_and_prints_no_keys() {
    let half = |key, next| Half { key: [key; 32], next };
    let seals = Seals {
        outgoing: half(1, 2),
        incoming: half(3, 4),
        plain: b"ab".as_slice().into(),
        input: b"c".as_slice().into(),
        ended: false,
    };
    let mut bytes = Vec::new();
    seals.put(&mut bytes);
    let expected =
        [&[1; 32][..], b"\x02\0\0\0\0\0\0\0", &[3; 32], b"\x04\0\0\0\0\0\0\0", b"\x02\0\0\0ab\x01\0\0\0c\0"];
    assert_eq!(bytes, expected.concat());
    assert!(!format!("{seals:?}").contains("1, 1"), "{seals:?}");
}
