//! Who gets in, and what whoever sits between learns and can do.

use super::*;

const INSTANCE: InstanceId = InstanceId([7; 16]);
const SESSION: SessionId = SessionId([3; 16]);

fn terms(secret: &Secret, encryption: Encryption) -> Terms<'_> {
    Terms { secret, instance: INSTANCE, encryption }
}

/// Both halves, as far as they get: the member that was wanted, and the session that came.
fn meet(client: &Terms<'_>, daemon: &Terms<'_>) -> Option<(DaemonIndex, Option<SessionId>)> {
    let (asking, begin) = Asking::begin(client, 5).unwrap();
    let (asked, member, middle) = Asked::answer(daemon, &begin)?;
    let end = asking.end(&middle, SESSION).unwrap();
    Some((member, end.and_then(|(_, end)| asked.admit(&end)).map(|(_, session)| session)))
}

#[test]
fn only_who_knows_the_secret_and_means_the_same_is_answered() {
    let (ours, other) = (Secret::random(), Secret::random());
    let full = terms(&ours, Encryption::Full);
    assert_eq!(meet(&full, &full), Some((5, Some(SESSION))));
    let off = terms(&ours, Encryption::Off);
    assert_eq!(meet(&off, &off), Some((5, Some(SESSION))));
    assert_eq!(meet(&terms(&other, Encryption::Full), &full), None);
    let elsewhere = Terms { instance: InstanceId([8; 16]), ..full };
    assert_eq!(meet(&elsewhere, &full), None, "the secret of one pool opens no other one");
    // Who sits between cannot talk both sides into going on without encryption.
    assert_eq!(meet(&off, &full), None);
    assert_eq!(meet(&full, &off), None);
}

#[test]
fn a_begin_that_is_repeated_leads_nowhere() {
    let secret = Secret::random();
    let terms = terms(&secret, Encryption::Off);
    let (asking, begin) = Asking::begin(&terms, 5).unwrap();
    let (_, _, middle) = Asked::answer(&terms, &begin).unwrap();
    let (_, end) = asking.end(&middle, SESSION).unwrap().unwrap();
    // The same words, said again to the same daemon: its own part is a new one each time.
    let (again, _, middle_again) = Asked::answer(&terms, &begin).unwrap();
    assert_ne!(middle, middle_again);
    assert!(again.admit(&end).is_none());
}

#[test]
fn an_answer_of_somebody_else_is_none() {
    let (ours, other) = (Secret::random(), Secret::random());
    let (asking, begin) = Asking::begin(&terms(&ours, Encryption::Full), 5).unwrap();
    let (_, other_begin) = Asking::begin(&terms(&other, Encryption::Full), 5).unwrap();
    let (_, _, middle) = Asked::answer(&terms(&other, Encryption::Full), &other_begin).unwrap();
    assert!(asking.end(&middle, SESSION).unwrap().is_none());
    // Its own words, sent back.
    let (asking, _) = Asking::begin(&terms(&ours, Encryption::Full), 5).unwrap();
    assert!(asking.end(&begin, SESSION).unwrap().is_none());
}

#[test]
fn a_flipped_bit_in_any_byte_of_the_greeting_is_found() {
    let secret = Secret::random();
    let terms = terms(&secret, Encryption::Full);
    for which in 0..3 {
        let lengths = [32 + 2 + 16, 32 + 16, 16 + 16];
        for byte in 0..lengths[which] {
            let bit = 8 * byte + byte % 8;
            let flip = |message: &mut [u8], at| {
                if at == which {
                    message[bit / 8] ^= 1 << (bit % 8);
                }
            };
            let (asking, mut begin) = Asking::begin(&terms, 5).unwrap();
            assert_eq!(begin.len(), lengths[0]);
            flip(&mut begin, 0);
            let Some((asked, _, mut middle)) = Asked::answer(&terms, &begin) else { continue };
            assert_eq!(middle.len(), lengths[1]);
            flip(&mut middle, 1);
            let Some((_, mut end)) = asking.end(&middle, SESSION).unwrap() else { continue };
            assert_eq!(end.len(), lengths[2]);
            flip(&mut end, 2);
            assert!(asked.admit(&end).is_none(), "message {which}, bit {bit}");
        }
    }
}

#[test]
fn garbage_is_no_greeting() {
    let secret = Secret::random();
    let terms = terms(&secret, Encryption::Full);
    for len in [0, 1, 31, 32, 47, 50, 64, 65, 4096, 70_000] {
        let garbage = vec![0x5a; len];
        assert!(Asked::answer(&terms, &garbage).is_none(), "{len}");
        let (asking, begin) = Asking::begin(&terms, 5).unwrap();
        assert!(asking.end(&garbage, SESSION).unwrap().is_none(), "{len}");
        assert!(Asked::answer(&terms, &begin).unwrap().0.admit(&garbage).is_none(), "{len}");
    }
}

/// With both sides' keys of a moment known, every byte is: any program that speaks Noise can be a client.
#[test]
fn bytes_are_pinned() {
    let secret = Secret::from_hex(&"5a".repeat(32)).unwrap();
    let terms = terms(&secret, Encryption::Full);
    let fixed = |starts: bool| {
        let prologue = b"tidepool-pool1\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x01";
        assert_eq!(terms.prologue(), prologue);
        let pattern = "Noise_NNpsk0_25519_AESGCM_BLAKE2s".parse().unwrap();
        let builder = Builder::new(pattern).psk(0, &[0x5a; 32]).unwrap().prologue(prologue).unwrap();
        let key = [if starts { 1 } else { 2 }; 32];
        let builder = builder.fixed_ephemeral_key_for_testing_only(&key);
        if starts { builder.build_initiator().unwrap() } else { builder.build_responder().unwrap() }
    };
    let mut buffer = [0; NOISE_MAX];
    let mut client = fixed(true);
    let len = client.write_message(&5u16.to_le_bytes(), &mut buffer).unwrap();
    let begin = buffer[..len].to_vec();
    assert_eq!(hex(&begin), BEGIN);
    let (_, member, _) = Asked::answer(&terms, &begin).unwrap();
    assert_eq!(member, 5);
    let mut daemon = fixed(false);
    daemon.read_message(&begin, &mut buffer).unwrap();
    let len = daemon.write_message(&[], &mut buffer).unwrap();
    let middle = buffer[..len].to_vec();
    assert_eq!(hex(&middle), MIDDLE);
    let (greeted, end) = Asking(client).end(&middle, SESSION).unwrap().unwrap();
    assert_eq!((hex(&end).as_str(), greeted.next), (END, (1, 0)));
    let daemon = Asked(Keys::of(daemon).unwrap());
    let (greeted, session) = daemon.admit(&end).unwrap();
    assert_eq!((session, greeted.next), (SESSION, (0, 1)));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// As another implementation of Noise has computed them.
const BEGIN: &str = "a4e09292b651c278b9772c569f5fa9bb13d906b46ab68c9df9dc2b4409f8a209\
    d21965329d9579457e49ddc436af810bf454";
const MIDDLE: &str = "ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d59\
    9c23216dc155f0ba62d46df89f928c78";
const END: &str = "e2d65ae83e9c3bfbf0d4aa6d9e6680d60dea94d2cb8828afdf78d3e3a22864d0";
