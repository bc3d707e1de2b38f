//! Who gets in, and what whoever sits between learns and can do.

use super::super::frame::HEADER_LEN;
use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn channel(stream: UnixStream) -> Channel<Sealed<UnixStream>> {
    Channel::new(Sealed::new(stream))
}

/// Anybody is wanted who has proved himself.
fn anybody(_: &Peer, _: &Secret) -> Result<(), String> {
    Ok(())
}

fn meet(
    client: &Secret,
    server: &Secret,
    to: Option<&str>,
) -> (Result<Peer, GreetError>, Result<Peer, &'static str>) {
    let (a, b) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| {
            admit(std::slice::from_ref(server), "n1", &mut channel(b), anybody)
                .unwrap_or(Err("lost"))
                .map(|(peer, ())| peer)
        });
        let mut channel = channel(a);
        let greeted = greet(client, ("n0", &to.map(Meant::named).unwrap_or_default()), &mut channel);
        drop(channel);
        (greeted, admitted.join().unwrap())
    })
}

#[test]
fn only_who_knows_the_secret_is_admitted() {
    let (ours, other) = (Secret::random(), Secret::random());
    let (greeted, admitted) = meet(&ours, &ours, Some("n1"));
    assert_eq!((greeted.unwrap().name, admitted.unwrap().name), ("n1".into(), "n0".into()));
    let (greeted, admitted) = meet(&ours, &other, None);
    assert!(matches!(&greeted, Err(GreetError::Refused(why)) if why.contains("secret")), "{greeted:?}");
    assert_eq!(admitted, Err("it does not know the secret"));
}

#[test]
fn keys_are_those_that_were_proved() {
    let shared = Secret::random();
    let admin = shared.with_key([7; 32]);
    let (_, admitted) = meet(&admin, &shared, None);
    assert_eq!(Some(admitted.unwrap().key), admin.public_key());
    let (_, admitted) = meet(&shared, &shared, None);
    assert_ne!(Some(admitted.unwrap().key), admin.public_key());
}

/// Messages are passed on to another node than the one that was meant.
#[test]
fn who_wants_one_node_does_not_get_another() {
    let secret = Secret::random();
    let (greeted, admitted) = meet(&secret, &secret, Some("n2"));
    assert!(matches!(&greeted, Err(GreetError::Refused(why)) if why.contains("n1")), "{greeted:?}");
    assert_eq!(admitted, Err("it wants another node"));
}

/// One whole frame.
fn frame(from: &mut UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    from.read_exact(&mut bytes).unwrap();
    let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let rest = length(12) + length(16);
    bytes.resize(HEADER_LEN + rest, 0);
    from.read_exact(&mut bytes[HEADER_LEN..]).unwrap();
    bytes
}

/// What gave a job's user root on every node: he listens where root expects a stager, passes the greeting on to another one, and
/// then speaks in root's place.
#[test]
fn who_passes_a_greeting_on_can_say_nothing_after_it() {
    let secret = Secret::random();
    let ((client, mut left), (mut right, server)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    std::thread::scope(|scope| {
        let greeted = scope.spawn(|| {
            let mut channel = channel(client);
            let greeted = greet(&secret, ("n0", &Meant::anybody()), &mut channel);
            greeted.map(|_| channel)
        });
        let admitted = scope.spawn(|| {
            let mut channel = channel(server);
            admit(std::slice::from_ref(&secret), "n1", &mut channel, anybody).unwrap().unwrap();
            let said = channel.receive().map(|head| head.kind);
            (said, channel)
        });
        right.write_all(&frame(&mut left)).unwrap();
        left.write_all(&frame(&mut right)).unwrap();
        right.write_all(&frame(&mut left)).unwrap();
        // Accepted, sealed already.
        let mut sealed = [0; 2];
        right.read_exact(&mut sealed).unwrap();
        let mut record = vec![0; usize::from(u16::from_le_bytes(sealed))];
        right.read_exact(&mut record).unwrap();
        left.write_all(&[&sealed[..], &record].concat()).unwrap();
        greeted.join().unwrap().expect("the two ends have met");
        // In the client's place, as a frame of the protocol and as a record; and what was heard before, once more.
        let (a, mut b) = UnixStream::pair().unwrap();
        channel(a).send(60, 1, |_| (), &[]).unwrap();
        let mut control = Vec::new();
        b.read_to_end(&mut control).unwrap();
        right.write_all(&[&(control.len() as u16).to_le_bytes()[..], &control].concat()).unwrap();
        let error = admitted.join().unwrap().0.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    });
}

/// Two ends that have met, and what each would send for one message.
fn met() -> (Channel<Sealed<UnixStream>>, Channel<Sealed<UnixStream>>) {
    let secret = Secret::random();
    let (a, b) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut channel = channel(b);
            admit(std::slice::from_ref(&secret), "n1", &mut channel, anybody).unwrap().unwrap();
            channel
        });
        let mut client = channel(a);
        greet(&secret, ("n0", &Meant::anybody()), &mut client).unwrap();
        (client, server.join().unwrap())
    })
}

/// What `count` messages are on the wire.
fn recorded(
    client: &mut Channel<Sealed<UnixStream>>,
    server: &Channel<Sealed<UnixStream>>,
    count: u16,
) -> Vec<Vec<u8>> {
    let wire = server.get_ref().get_ref().try_clone().unwrap();
    wire.set_nonblocking(true).unwrap();
    let records = (0..count).map(|kind| {
        client.send(kind, 1, |out| out.extend_from_slice(b"fields"), &[b"bulk"]).unwrap();
        let mut bytes = vec![0; 1000];
        let len = (&wire).read(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    });
    let records = records.collect();
    wire.set_nonblocking(false).unwrap();
    records
}

/// Feeds bytes to a server in place of the client's, and says which messages it takes.
fn taken(
    client: Channel<Sealed<UnixStream>>,
    mut server: Channel<Sealed<UnixStream>>,
    bytes: &[u8],
) -> Vec<u16> {
    (&mut client.get_ref().get_ref()).write_all(bytes).unwrap();
    client.get_ref().get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    let mut kinds = Vec::new();
    while let Ok(head) = server.receive() {
        if server.bulk(&head).is_err() {
            break;
        }
        kinds.push(head.kind);
    }
    kinds
}

#[test]
fn records_are_taken_once_whole_and_in_their_order() {
    let tried = |change: &dyn Fn(Vec<Vec<u8>>) -> Vec<u8>| {
        let (mut client, server) = met();
        let records = recorded(&mut client, &server, 3);
        taken(client, server, &change(records))
    };
    assert_eq!(tried(&|all| all.concat()), [0, 1, 2]);
    assert_eq!(tried(&|all| [&all[0][..], &all[0], &all[1]].concat()), [0], "repeated");
    assert_eq!(tried(&|all| [&all[1][..], &all[0]].concat()), [], "in another order");
    assert_eq!(tried(&|all| [&all[0][..], &all[2]].concat()), [0], "one left out");
    assert_eq!(tried(&|all| all[0][..all[0].len() - 1].to_vec()), [], "cut off");
    // Of another connection between the same two.
    let (mut other, heard) = met();
    let foreign = recorded(&mut other, &heard, 1);
    assert_eq!(tried(&|_| foreign[0].clone()), []);
}

/// Else one record could be left out by putting junk in its place.
#[test]
fn after_a_record_that_is_none_nothing_is_taken() {
    let (mut client, mut server) = met();
    let records = recorded(&mut client, &server, 2);
    let mut junk = records[0].clone();
    junk[10] ^= 1;
    (&mut client.get_ref().get_ref()).write_all(&[junk, records[1].clone()].concat()).unwrap();
    assert_eq!(server.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(server.receive().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[test]
fn every_flipped_bit_of_a_record_is_found() {
    let (mut client, server) = met();
    let len = recorded(&mut client, &server, 1)[0].len();
    for bit in (0..len * 8).step_by(7) {
        let (mut client, server) = met();
        let mut bytes = recorded(&mut client, &server, 1).remove(0);
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(taken(client, server, &bytes), [], "bit {bit}");
    }
}

/// What was said is not sent back to who said it.
#[test]
fn a_record_is_for_one_direction() {
    let (mut client, mut server) = met();
    let own = recorded(&mut client, &server, 1).remove(0);
    (&mut server.get_mut().get_ref()).write_all(&own).unwrap();
    assert_eq!(client.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn nothing_of_what_is_said_is_seen_on_the_way() {
    let (mut client, server) = met();
    let bytes = recorded(&mut client, &server, 1).remove(0);
    for word in [&b"fields"[..], b"bulk", b"TPR1"] {
        assert!(!bytes.windows(word.len()).any(|window| window == word));
    }
}

#[test]
fn large_data_come_whole() {
    let (mut client, mut server) = met();
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| client.send(9, 1, |_| (), &[&data[..7], &data[7..]]).unwrap());
        let head = server.receive().unwrap();
        assert!(server.bulk(&head).unwrap() == data);
    });
}

#[test]
fn a_refusal_for_the_moment_is_none_for_ever() {
    for (reason, later) in [("1024 connections; try again later", true), ("go away", false)] {
        let (a, b) = UnixStream::pair().unwrap();
        refuse(&mut channel(b), reason).unwrap();
        let error = hear_well(&mut channel(a)).unwrap_err();
        assert_eq!(matches!(&error, GreetError::Later(told) if told == reason), later, "{error:?}");
        assert_eq!(matches!(&error, GreetError::Refused(told) if told == reason), !later, "{error:?}");
    }
}

#[test]
fn who_is_not_wanted_now_is_told_so_and_may_come_again() {
    let secret = Secret::random();
    let (a, b) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| {
            let full = |_: &Peer, _: &Secret| Err::<(), _>("full; try again later".to_string());
            admit(std::slice::from_ref(&secret), "n1", &mut channel(b), full).unwrap().map(drop)
        });
        let greeted = greet(&secret, ("n0", &Meant::anybody()), &mut channel(a));
        assert!(matches!(&greeted, Err(GreetError::Later(why)) if why.contains("full")), "{greeted:?}");
        assert_eq!(admitted.join().unwrap(), Err("it is not wanted now"));
    });
}

/// Byte by byte, a greeting used to take as long as its sender liked.
#[test]
fn a_greeting_has_a_time_for_all_of_it() {
    let (mut a, b) = UnixStream::pair().unwrap();
    let begun = Instant::now();
    let mut slow = channel(b);
    slow.get_mut().end_at(Some(begun + Duration::from_millis(300)));
    std::thread::scope(|scope| {
        let heard = scope.spawn(move || admit(&[Secret::random()], "n1", &mut slow, anybody).map(drop));
        for byte in b"TPR1\x06\0\0\0\0\0\0\0" {
            if a.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(heard.join().unwrap().is_err());
    });
}

#[test]
fn bytes_of_a_greeting_are_pinned() {
    let bytes = |message: &Greeting| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        (message.kind(), bytes)
    };
    let begin = Greeting::Begin { version: 2, noise: Box::new([9; 3]) };
    assert_eq!(bytes(&begin), (6, b"\x02\0\x03\0\0\0\x09\x09\x09".to_vec()));
    assert_eq!(bytes(&Greeting::Middle { noise: Box::new([8]) }), (7, b"\x01\0\0\0\x08".to_vec()));
    assert_eq!(bytes(&Greeting::End { noise: Box::new([8]) }), (8, b"\x01\0\0\0\x08".to_vec()));
}

proptest::proptest! {
    /// Whatever is said first, nobody gets in by it, and nothing breaks.
    #[test]
    fn garbage_does_not_get_in(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), kind in 0u16..12) {
        let (a, mut b) = UnixStream::pair().unwrap();
        let mut speaker = Channel::new(Sealed::new(a));
        speaker.send(kind, 0, |out| out.extend_from_slice(&noise), &[]).unwrap();
        b.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        speaker.get_ref().get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        let mut listener = Channel::new(Sealed::new(b.try_clone().unwrap()));
        let admitted = admit(&[Secret::random()], "n1", &mut listener, anybody);
        proptest::prop_assert!(!matches!(admitted, Ok(Ok(_))));
        let _ = b.flush();
    }
}
