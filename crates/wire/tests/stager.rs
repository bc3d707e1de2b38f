//! The bytes of the stager's messages, pinned; decoders fed with garbage; and that the specification
//! names every message.

use proptest::prelude::*;
use tidepool_wire::stager::{
    BODY_MAX, Cleaning, Code, Fate, HEAD_LEN, Head, OnBehalf, Op, Refusal, Reply, Request, Resource,
    STAGER_MAGIC, TaskSpec,
};

fn request(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    request.put_frame(7, &mut out).unwrap();
    out
}

fn reply(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.put_frame(7, &mut out).unwrap();
    out
}

#[test]
fn request_bytes_are_pinned() {
    let hello = Request::Hello { magic: STAGER_MAGIC, version: 1, name: "me".into() };
    assert_eq!(request(&hello), b"\x10\0\0\0\x01\0\0\0\x07\0\0\0\0\0\0\0TPSTAGER\x01\0\x02\0\0\0me");
    let task = TaskSpec {
        priority: -1,
        bandwidth: 2,
        size_hint: 3,
        ..TaskSpec::new(
            Op::Copy,
            Resource::Memory { address: 4, size: 5 },
            Some(Resource::remote("n://", "h:1", b"p")),
        )
    };
    assert_eq!(
        request(&Request::Submit { task }),
        b"\x40\0\0\0\x0a\0\0\0\x07\0\0\0\0\0\0\0\
          \x01\
          \x01\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\
          \x01\x02\x02\x04\0\0\0n://\x01\x03\0\0\0h:1\x01\0\0\0p\
          \xff\xff\xff\xff\x01\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0"
    );
    let wait = Request::Wait { ids: vec![1, 2], any: true, timeout_ms: Some(9) };
    assert_eq!(
        request(&wait),
        b"\x16\0\0\0\x0d\0\0\0\x07\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\0\0\x01\x01\x09\0\0\0\0\0\0\0"
    );
    let task = TaskSpec::new(Op::Remove, Resource::local("n://", b"p"), None);
    assert_eq!(
        request(&Request::SubmitAndWait { task, timeout_ms: 9 }),
        b"\x30\0\0\0\x36\0\0\0\x07\0\0\0\0\0\0\0\
          \x03\
          \x02\x01\x04\0\0\0n://\0\x01\0\0\0p\
          \0\
          \0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
          \x09\0\0\0\0\0\0\0"
    );
    let unkeep = Request::Unkeep { dataspace: "n://".into(), path: (*b"p").into(), user: 9 };
    assert_eq!(
        request(&unkeep),
        b"\x11\0\0\0\x3a\0\0\0\x07\0\0\0\0\0\0\0\x04\0\0\0n://\x01\0\0\0p\x09\0\0\0"
    );
    let task = TaskSpec {
        on_behalf: Some(OnBehalf { uid: 1, gid: 2, job: 3 }),
        ..TaskSpec::new(Op::Remove, Resource::local("n://", b"p"), None)
    };
    assert_eq!(
        request(&Request::SubmitHeld { tasks: vec![task] }),
        b"\x38\0\0\0\x37\0\0\0\x07\0\0\0\0\0\0\0\x01\0\0\0\
          \x03\
          \x02\x01\x04\0\0\0n://\0\x01\0\0\0p\
          \0\
          \0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x01\0\0\0\x02\0\0\0\x03\0\0\0"
    );
    let release = Request::ReleaseJob { job: 42 };
    assert_eq!(request(&release), b"\x04\0\0\0\x38\0\0\0\x07\0\0\0\0\0\0\0\x2a\0\0\0");
    let entries = Request::Entries {
        place: Resource::local("n://", b"in"),
        on_behalf: Some(OnBehalf { uid: 1, gid: 2, job: 3 }),
        after: b"a".as_slice().into(),
        max: 9,
    };
    assert_eq!(
        request(&entries),
        b"\x27\0\0\0\x39\0\0\0\x07\0\0\0\0\0\0\0\
          \x02\x01\x04\0\0\0n://\0\x02\0\0\0in\
          \x01\x01\0\0\0\x02\0\0\0\x03\0\0\0\
          \x01\0\0\0a\x09\0\0\0"
    );
    let own = Request::CleanOwn { job: 42, after: 3 };
    assert_eq!(request(&own), b"\x08\0\0\0\x3b\0\0\0\x07\0\0\0\0\0\0\0\x2a\0\0\0\x03\0\0\0");
    let clean = Request::CleanJob { job: 42, after: 3, dry_run: true };
    assert_eq!(request(&clean), b"\x09\0\0\0\x34\0\0\0\x07\0\0\0\0\0\0\0\x2a\0\0\0\x03\0\0\0\x01");
}

#[test]
fn reply_bytes_are_pinned() {
    assert_eq!(reply(&Reply::Submitted { id: 5 }), b"\x04\0\0\0\x04\0\0\0\x07\0\0\0\0\0\0\0\x05\0\0\0");
    assert_eq!(
        reply(&Reply::Released { tasks: 5, more: true }),
        b"\x05\0\0\0\x10\0\0\0\x07\0\0\0\0\0\0\0\x05\0\0\0\x01"
    );
    let refusal = Refusal { code: Code::SYSTEM_ERROR, errno: 2, detail: "no".into() };
    assert_eq!(
        reply(&Reply::Failed { refusal }),
        b"\x0e\0\0\0\x01\0\0\0\x07\0\0\0\0\0\0\0\x37\xff\xff\xff\x02\0\0\0\x02\0\0\0no"
    );
    let place = Cleaning { task: 1, place: "n://x".into(), fate: Fate::Removed, removal: 2 };
    assert_eq!(
        reply(&Reply::Entries { names: vec![b"a".as_slice().into()], more: true }),
        b"\x0a\0\0\0\x11\0\0\0\x07\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0a\x01"
    );
    assert_eq!(
        reply(&Reply::Cleaned { places: vec![place], more: false }),
        b"\x17\0\0\0\x0f\0\0\0\x07\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x05\0\0\0n://x\x01\x02\0\0\0\0"
    );
}

#[test]
fn lengths_and_flags_are_checked_first() {
    let long = Head { len: BODY_MAX as u32 + 1, kind: 1, id: 1 }.encode();
    assert!(Head::decode(&long).is_err());
    let mut flagged = Head { len: 1, kind: 1, id: 1 }.encode();
    flagged[6] = 1;
    assert!(Head::decode(&flagged).is_err());
    let tasks = vec![TaskSpec::new(Op::Remove, Resource::local("x", &[b'y'; 4000]), None); 4000];
    let mut out = vec![1, 2, 3];
    assert!(Request::SubmitMany { tasks }.put_frame(1, &mut out).is_err());
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn the_specification_names_every_message_and_code() {
    let spec = include_str!("../../../docs/formats/11-stager.md");
    for (kind, name) in Request::KINDS.iter().chain(Reply::KINDS) {
        assert!(spec.contains(&format!("| {kind} | {name} |")), "{kind} {name}");
    }
    for (number, name, text) in Code::ALL {
        assert!(spec.contains(&format!("| {number} | NORNS_{name} | {text} |")), "{name}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(kind in 0u16..60, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::decode(kind, &bytes);
        let _ = Reply::decode(kind, &bytes);
    }

    #[test]
    fn what_is_decoded_encodes_to_the_same_bytes(kind in 0u16..60, bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(request) = Request::decode(kind, &bytes) {
            let mut out = Vec::new();
            request.put_frame(0, &mut out).unwrap();
            prop_assert_eq!(&out[HEAD_LEN..], &bytes[..]);
        }
    }
}
