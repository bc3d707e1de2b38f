//! What records do that lie in streams of either kind. Who changes, repeats or leaves out any: `remote/greeting_tests.rs`.

use super::*;
use std::os::unix::net::UnixStream;

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
    left.seal_with(a.into_stateless_transport_mode().unwrap(), (1, 0), records_left);
    right.seal_with(b.into_stateless_transport_mode().unwrap(), (0, 1), records_right);
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
