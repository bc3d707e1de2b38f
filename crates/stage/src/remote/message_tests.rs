//! Bytes of messages, and what becomes of bytes that are none.

use super::*;
use proptest::prelude::*;
use tidepool_transport::remote::{Door, Greeting};
use tidepool_types::{Errno, TimeSpec};

fn meta() -> Meta {
    let time = |sec| TimeSpec { sec, nsec: 5 };
    Meta {
        dev: 1,
        ino: 2,
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 3,
        gid: 4,
        size: 5,
        stored: 512,
        rdev: 0,
        atime: time(6),
        mtime: time(7),
        ctime: time(8),
    }
}

fn error() -> EndError {
    EndError { errno: Errno::ENOSPC, operation: "write", detail: Some("node n1: full".into()) }
}

fn asks() -> Vec<Ask> {
    let name: Bytes = (*b"n").into();
    let set = SetMeta { owner: Some((1, 2)), mode: Some(0o600), times: None };
    let clothes = Clothes { set, xattrs: vec![(b"user.a".to_vec(), b"v".to_vec())] };
    let root = RootRequest {
        dataspace: "d".into(),
        path: b"p".to_vec(),
        write: true,
        groups: vec![7],
        job: Some(9),
        ..RootRequest::default()
    };
    let limits = PackLimits { files: 1, file_bytes: 2, bytes: 3 };
    let key = Some((1, 2));
    vec![
        Ask::OpenRoot { root },
        Ask::JoinRoot { session: SessionId([8; 16]) },
        Ask::Ping {},
        Ask::Close { dirs: vec![1], files: vec![2, 3] },
        Ask::EnterDir { dir: 1, name: name.clone(), list: true },
        Ask::MakeOrEnterDir { dir: 1, name: name.clone() },
        Ask::FinishDir { dir: 1, clothes: Some(clothes.clone()) },
        Ask::List { dir: 1, from: Place::Cookie(9) },
        Ask::List { dir: 1, from: Place::Kept(9) },
        Ask::Stat { at: Spot::File(4) },
        Ask::Look { at: Spot::Dir(4) },
        Ask::ReadLink { dir: 1, name: name.clone() },
        Ask::Dress { at: Spot::Name(4, name.clone()), clothes: clothes.clone() },
        Ask::OpenFile { dir: 1, name: name.clone(), how: OpenHow::Create },
        Ask::Read { file: 1, offset: 2, len: 3 },
        Ask::Write { file: 1, offset: 2 },
        Ask::NextData { file: 1, offset: 2 },
        Ask::NextHole { file: 1, offset: 2, limit: 3 },
        Ask::Truncate { file: 1, size: 2 },
        Ask::Sync { files: vec![1] },
        Ask::SyncDir { dir: 1 },
        Ask::SyncAll {},
        Ask::Checksum { file: 1, start: 2, end: 3, dense: true },
        Ask::MakeDir { dir: 1, name: name.clone() },
        Ask::MakeSymlink { dir: 1, name: name.clone(), target: name.clone() },
        Ask::MakeNode { dir: 1, name: name.clone(), kind: FileKind::Fifo, rdev: 2 },
        Ask::MakeLink { old_dir: 1, old: name.clone(), dir: 2, name: name.clone() },
        Ask::Unlink { dir: 1, name: name.clone() },
        Ask::RemoveDir { dir: 1, name: name.clone() },
        Ask::IsMount { dir: 1 },
        Ask::OpenFabric { provider: "p".into(), name: name.clone(), tag: 4 },
        Ask::StatFiles { names: vec![(1, name.clone())] },
        Ask::GetFiles { names: vec![(1, name.clone())], limits },
        Ask::PutFiles {
            files: vec![PutHead { dir: 1, name: name.clone(), len: 2, crc: 3, clothes }],
            verify: true,
        },
        Ask::NameFiles { files: vec![NamingHead { dir: 1, from: name.clone(), to: name, key }] },
    ]
}

fn answers() -> Vec<Answer> {
    let xattrs = || Told(Ok(vec![(b"user.a".to_vec(), b"v".to_vec())]));
    let item = Item { name: b"i".to_vec(), kind: Some(FileKind::Regular), size: Some(3) };
    let info = RootInfo {
        session: SessionId([8; 16]),
        boot: (*b"b").into(),
        describe: "d".into(),
        identity: (*b"i").into(),
        rights: Rights { root: true, uid: 0, gid: 0 },
        reads_touch_atime: true,
        meta: meta(),
    };
    let written = Written { intact: true, key: Some((1, 2)), refused: vec![(b"user.a".to_vec(), error())] };
    let got = GotHead { meta: meta(), content: Some((4, xattrs())) };
    vec![
        Answer::Failed { error: error() },
        Answer::Done {},
        Answer::Root { info },
        Answer::Dir {
            dir: 1,
            meta: meta(),
            fresh: true,
            first: Some((vec![item.clone()], Some(Place::Start))),
        },
        Answer::Listed { items: vec![item], next: None },
        Answer::Attributes { meta: meta() },
        Answer::Looked { meta: meta(), xattrs: Told(Err(error())) },
        Answer::Target { target: (*b"t").into() },
        Answer::Dressed { refused: vec![(b"user.a".to_vec(), error())] },
        Answer::File { file: 1, meta: meta() },
        Answer::Data { offset: 1 },
        Answer::Count { count: 1 },
        Answer::Offset { at: Some(1) },
        Answer::Sum { crc: None },
        Answer::Results { results: vec![Told(Ok(Nothing)), Told(Err(error()))] },
        Answer::Made { key: (1, 2) },
        Answer::Stats { results: vec![Told(Ok(meta()))] },
        Answer::Gots { results: vec![Told(Ok(got)), Told(Err(error()))] },
        Answer::Puts { results: vec![Told(Ok(written))] },
        Answer::Fabric { name: (*b"n").into(), tag: 4 },
    ]
}

fn bytes_of(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes);
    bytes
}

#[test]
fn every_message_survives_and_every_cut_is_noticed() {
    let mut kinds: Vec<u16> = Vec::new();
    for ask in asks() {
        let bytes = bytes_of(|out| ask.encode(out));
        assert_eq!(Ask::decode(ask.kind(), &bytes), Ok(ask.clone()));
        (0..bytes.len()).for_each(|cut| assert!(Ask::decode(ask.kind(), &bytes[..cut]).is_err(), "{ask:?}"));
        kinds.push(ask.kind());
    }
    kinds.dedup();
    assert_eq!(kinds, Ask::KINDS.iter().map(|(kind, _)| *kind).collect::<Vec<_>>());
    for answer in answers() {
        let bytes = bytes_of(|out| answer.encode(out));
        assert_eq!(Answer::decode(answer.kind(), &bytes), Ok(answer.clone()));
        let whole = |cut: usize| Answer::decode(answer.kind(), &bytes[..cut]).is_ok();
        (0..bytes.len()).for_each(|cut| assert!(!whole(cut), "{answer:?}"));
    }
    assert_eq!(answers().iter().map(Answer::kind).collect::<Vec<_>>(), (100..=119).collect::<Vec<_>>());
}

#[test]
fn bytes_are_pinned() {
    let name: Bytes = (*b"ab").into();
    let ask = Ask::EnterDir { dir: 0x0102, name: name.clone(), list: true };
    assert_eq!((ask.kind(), bytes_of(|out| ask.encode(out))), (20, b"\x02\x01\0\0\x02\0\0\0ab\x01".to_vec()));
    let ask = Ask::List { dir: 3, from: Place::Cookie(5) };
    assert_eq!(
        (ask.kind(), bytes_of(|out| ask.encode(out))),
        (23, b"\x03\0\0\0\x01\x05\0\0\0\0\0\0\0".to_vec())
    );
    let ask = Ask::Stat { at: Spot::Name(3, name.clone()) };
    assert_eq!((ask.kind(), bytes_of(|out| ask.encode(out))), (24, b"\x02\x03\0\0\0\x02\0\0\0ab".to_vec()));
    let set = SetMeta { owner: Some((1, 2)), mode: None, times: None };
    let clothes = Clothes { set, xattrs: vec![(b"k".to_vec(), b"v".to_vec())] };
    let head = PutHead { dir: 3, name, len: 4, crc: 5, clothes };
    let ask = Ask::PutFiles { files: vec![head], verify: true };
    let expected = b"\x01\0\0\0\x03\0\0\0\x02\0\0\0ab\x04\0\0\0\x05\0\0\0\x01\x01\0\0\0\x02\0\0\0\0\0\x01\0\0\0\x01\0\0\0k\x01\0\0\0v\x01";
    assert_eq!((ask.kind(), bytes_of(|out| ask.encode(out))), (52, expected.to_vec()));
    let ask = Ask::OpenFabric { provider: "p".into(), name: (*b"ab").into(), tag: 5 };
    assert_eq!(
        (ask.kind(), bytes_of(|out| ask.encode(out))),
        (47, b"\x01\0\0\0p\x02\0\0\0ab\x05\0\0\0\0\0\0\0".to_vec())
    );
    let answer = Answer::Fabric { name: (*b"ab").into(), tag: 5 };
    assert_eq!(
        (answer.kind(), bytes_of(|out| answer.encode(out))),
        (119, b"\x02\0\0\0ab\x05\0\0\0\0\0\0\0".to_vec())
    );
    let answer = Answer::Failed { error: EndError { errno: Errno(28), operation: "write", detail: None } };
    assert_eq!(
        (answer.kind(), bytes_of(|out| answer.encode(out))),
        (100, b"\x1c\0\0\0\x05\0\0\0write\0".to_vec())
    );
    let answer = Answer::Results { results: vec![Told(Ok(Nothing))] };
    assert_eq!((answer.kind(), bytes_of(|out| answer.encode(out))), (114, b"\x01\0\0\0\x01".to_vec()));
}

#[test]
fn the_specification_lists_every_message() {
    let text = include_str!("../../../../docs/formats/13-remote-ends.md");
    for (number, name) in Greeting::KINDS.iter().chain(Ask::KINDS).chain(Door::KINDS).chain(Answer::KINDS) {
        assert!(text.contains(&format!("| {number} | {name} |")), "{number} {name}");
    }
}

#[test]
fn operations_that_nobody_knows_are_called_something() {
    let strange = EndError { errno: Errno::EIO, operation: "juggle", detail: None };
    let bytes = bytes_of(|out| Answer::Failed { error: strange.clone() }.encode(out));
    let Ok(Answer::Failed { error }) = Answer::decode(100, &bytes) else { panic!() };
    assert_eq!((error.operation, error.errno), ("work at the other node", Errno::EIO));
}

proptest! {
    /// Whatever comes, decoding ends with a message or an error; what it takes for a message
    /// has these bytes and no others.
    #[test]
    fn any_bytes_decode_or_fail(kind in 0u16..130, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(ask) = Ask::decode(kind, &bytes) {
            prop_assert_eq!(bytes_of(|out| ask.encode(out)), bytes.clone());
        }
        if let Ok(answer) = Answer::decode(kind, &bytes) {
            let again = bytes_of(|out| answer.encode(out));
            prop_assert_eq!(Answer::decode(kind, &again), Ok(answer));
        }
        let _ = (Greeting::decode(kind, &bytes), Door::decode(kind, &bytes));
    }

    /// One changed byte of a good message is an error or another message, never a panic.
    #[test]
    fn changed_bytes_decode_or_fail(pick in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let asks = asks();
        let ask = pick.get(&asks);
        let mut bytes = bytes_of(|out| ask.encode(out));
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = Ask::decode(ask.kind(), &bytes);
        let answers = answers();
        let answer = pick.get(&answers);
        let mut bytes = bytes_of(|out| answer.encode(out));
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = Answer::decode(answer.kind(), &bytes);
    }
}
