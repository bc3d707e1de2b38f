//! The bytes of messages and records, pinned, and decoders fed with garbage.

use proptest::prelude::*;
use tidepool_types::{Attr, Errno, FileKind, Ino, InstanceId, Layout, SessionId, TimeSpec, TxnId};
use tidepool_wire::fabric::RequestHead;
use tidepool_wire::frame::Header;
use tidepool_wire::message::{
    EntryPlus, FabricToken, FlushTo, Handshake, LeaseKey, LockKind, LockMode, LockRequest, NewObject, Nonce,
    PhasePattern, Reply, Request,
};
use tidepool_wire::record::{Dentry, DirPart, Hold, Inode, Mutation, Outcome};
use tidepool_wire::{Field, Reader};

fn encode(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out);
    out
}

fn attr() -> Attr {
    let time = |sec| TimeSpec { sec, nsec: 5 };
    Attr {
        ino: Ino::new(1, 2),
        mode: 0o100644,
        nlink: 1,
        uid: 3,
        gid: 4,
        size: 6,
        blocks: 7,
        rdev: 0,
        atime: time(8),
        mtime: time(9),
        ctime: time(10),
        layout: Layout::wide(4096, 0x0203).ok(),
    }
}

const ATTR_BYTES: &[u8] = b"\x02\0\0\0\0\0\x01\0\xa4\x81\0\0\x01\0\0\0\x03\0\0\0\x04\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x05\0\0\0\x09\0\0\0\0\0\0\0\x05\0\0\0\x0a\0\0\0\0\0\0\0\x05\0\0\0\x01\x0c\x03\x02";

#[test]
fn request_bytes_are_pinned() {
    let lookup = Request::Lookup { parent: Ino::ROOT, name: (*b"ab").into(), open: true };
    assert_eq!((lookup.kind(), encode(&lookup)), (2, b"\x01\0\0\0\0\0\0\0\x02\0\0\0ab\x01".to_vec()));
    let admit = Request::Admit { ino: Ino(5), offset: 6, len: 7, write: true };
    let fields: &[u8] = b"\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x01";
    assert_eq!((admit.kind(), encode(&admit)), (79, fields.to_vec()));
    let write = Request::Write { ino: Ino::new(1, 2), offset: 3, extend: false };
    assert_eq!((write.kind(), encode(&write)), (41, b"\x02\0\0\0\0\0\x01\0\x03\0\0\0\0\0\0\0\0".to_vec()));
    let list = Request::List { dir: Ino(9), after: Some((*b"x").into()), max: 7 };
    assert_eq!(encode(&list), b"\x09\0\0\0\0\0\0\0\x01\x01\0\0\0x\x07\0\0\0");
    let punch = Request::Punch { ino: Ino::new(1, 2), offset: 3, len: 4 };
    let punch_bytes = b"\x02\0\0\0\0\0\x01\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0";
    assert_eq!((punch.kind(), encode(&punch)), (50, punch_bytes.to_vec()));
    let object = NewObject {
        mode: 0o100644,
        uid: 3,
        gid: 4,
        rdev: 0,
        layout: Some(Layout::LOCAL),
        target: (*b"").into(),
    };
    let make = Request::MakeObject { object, open: true };
    let make_bytes = b"\xa4\x81\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\x02\x18\0\0\0\0\0\0\x01";
    assert_eq!((make.kind(), encode(&make)), (30, make_bytes.to_vec()));
    let set = Request::SetLayout { dir: Ino::ROOT, layout: Layout::weighted(1 << 19).ok() };
    assert_eq!((set.kind(), encode(&set)), (31, b"\x01\0\0\0\0\0\0\0\x03\x13\0\0".to_vec()));
    let follow = Request::SetLayout { dir: Ino::ROOT, layout: None };
    assert_eq!(encode(&follow), b"\x01\0\0\0\0\0\0\0\0\0\0\0");
    let fabric = Request::OpenFabric { name: (*b"ep").into(), replies: 0x0102 };
    assert_eq!((fabric.kind(), encode(&fabric)), (70, b"\x02\0\0\0ep\x02\x01\0\0\0\0\0\0".to_vec()));
    let ring = Request::Ring {};
    assert_eq!((ring.kind(), encode(&ring)), (71, Vec::new()));
    let plus = Request::ListPlus { dir: Ino(9), after: None, max: 7 };
    assert_eq!((plus.kind(), encode(&plus)), (75, b"\x09\0\0\0\0\0\0\0\0\x07\0\0\0".to_vec()));
    let attrs = Request::GetAttrs { inos: vec![Ino(9), Ino::new(1, 2)] };
    let two = b"\x02\0\0\0\x09\0\0\0\0\0\0\0\x02\0\0\0\0\0\x01\0";
    assert_eq!((attrs.kind(), encode(&attrs)), (76, two.to_vec()));
    let parts = Request::DirStats { dirs: vec![Ino(9), Ino::new(1, 2)] };
    assert_eq!((parts.kind(), encode(&parts)), (77, two.to_vec()));
    let drop = Request::Drop { inos: vec![Ino(9), Ino::new(1, 2)] };
    assert_eq!((drop.kind(), encode(&drop)), (78, two.to_vec()));
    let watch = Request::Watch {};
    assert_eq!((watch.kind(), encode(&watch)), (72, Vec::new()));
    let released = Request::Released { id: 0x0102 };
    assert_eq!((released.kind(), encode(&released)), (73, b"\x02\x01\0\0\0\0\0\0".to_vec()));
    let open = Request::OpenKept { ino: Ino::new(1, 2) };
    assert_eq!((open.kind(), encode(&open)), (74, b"\x02\0\0\0\0\0\x01\0".to_vec()));
    let take = Request::TakeBlocks { ino: Ino::new(1, 2), max: 0x0304 };
    let take_bytes = b"\x02\0\0\0\0\0\x01\0\x04\x03\0\0\0\0\0\0";
    assert_eq!((take.kind(), encode(&take)), (32, take_bytes.to_vec()));
    let keep = Request::Keep { ino: Ino::new(1, 2) };
    assert_eq!((keep.kind(), encode(&keep)), (33, b"\x02\0\0\0\0\0\x01\0".to_vec()));
    let flush = Request::Flush { to: FlushTo::Burst, bandwidth: 0x0102 };
    assert_eq!((flush.kind(), encode(&flush)), (80, b"\x02\x02\x01\0\0\0\0\0\0".to_vec()));
    for (to, byte) in [(FlushTo::Last, 1), (FlushTo::Pfs, 3)] {
        assert_eq!(encode(&Request::Flush { to, bandwidth: 0 }), [byte, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    let begin = Request::BeginPhase { bytes: Some(0x0102), pattern: Some(PhasePattern::Strided) };
    assert_eq!((begin.kind(), encode(&begin)), (81, b"\x01\x02\x01\0\0\0\0\0\0\x01\x02".to_vec()));
    for (pattern, byte) in [(PhasePattern::Sequential, 1), (PhasePattern::Random, 3)] {
        assert_eq!(encode(&Request::BeginPhase { bytes: None, pattern: Some(pattern) }), [0, 1, byte]);
    }
    let end = Request::EndPhase {};
    assert_eq!((end.kind(), encode(&end)), (82, Vec::new()));
    let each = Request::PhaseBytes { bytes: 0x0102 };
    assert_eq!((each.kind(), encode(&each)), (83, b"\x02\x01\0\0\0\0\0\0".to_vec()));
    let used = Request::Used { read: 0x0102, written: 3 };
    assert_eq!((used.kind(), encode(&used)), (84, b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0".to_vec()));
    let lock = LockRequest {
        owner: 0x0102,
        kind: LockKind::Posix,
        start: 3,
        end: u64::MAX,
        mode: LockMode::Write,
        pid: 0x0405,
    };
    let wait = Request::WaitLock { ino: Ino::new(1, 2), lock };
    let wait_bytes = b"\x02\0\0\0\0\0\x01\0\x02\x01\0\0\0\0\0\0\x01\x03\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x02\x05\x04\0\0";
    assert_eq!((wait.kind(), encode(&wait)), (85, wait_bytes.to_vec()));
    let leave = Request::LeaveQueue {};
    assert_eq!((leave.kind(), encode(&leave)), (86, Vec::new()));
    let leases = [watch, released, open, take, keep, flush, begin, end, each, used, wait, leave];
    let others = [lookup, write, list, punch, make, set, follow, fabric, ring, plus, attrs, parts, drop];
    for request in leases.into_iter().chain(others) {
        assert_eq!(Request::decode(request.kind(), &encode(&request)), Ok(request));
    }
}

#[test]
fn reply_bytes_are_pinned() {
    let bytes = |reply: &Reply| {
        let mut out = Vec::new();
        reply.encode(&mut out);
        assert_eq!(Reply::decode(reply.kind(), &out).as_ref(), Ok(reply));
        out
    };
    let failed = Reply::Failed { errno: Errno::ENOENT, detail: "no".into() };
    assert_eq!(bytes(&failed), b"\x02\0\0\0\x02\0\0\0no");
    assert_eq!(bytes(&Reply::Attributes { attr: attr() }), ATTR_BYTES);
    let fabric = Reply::Fabric { name: (*b"ep").into(), token: FabricToken([7; 32]), bodies: 3 };
    assert_eq!(bytes(&fabric), [&b"\x02\0\0\0ep"[..], &[7; 32], b"\x03\0\0\0\0\0\0\0"].concat());
    assert_eq!(fabric.kind(), 30);
    let dentry = Dentry { ino: Ino::new(1, 2), kind: FileKind::Regular, hold: None };
    let entry = EntryPlus { name: (*b"f").into(), dentry, attr: Some(attr()) };
    let plus = Reply::EntriesPlus { entries: vec![entry], more: true };
    let named: &[u8] = b"\x01\0\0\0\x01\0\0\0f\x02\0\0\0\0\0\x01\0\x08\0\x01";
    assert_eq!((plus.kind(), bytes(&plus)), (34, [named, ATTR_BYTES, b"\x01"].concat()));
    let attrs = Reply::AttributesOf { attrs: vec![attr()] };
    assert_eq!((attrs.kind(), bytes(&attrs)), (35, [b"\x01\0\0\0", ATTR_BYTES].concat()));
    let parts = Reply::Parts { parts: vec![DirPart { entries: 2, subdirs: 1, changed: None, hold: None }] };
    assert_eq!(bytes(&parts), b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0");
    assert_eq!(parts.kind(), 36);
    let admitted = Reply::Admitted { wait_ns: 258, again: true };
    assert_eq!((admitted.kind(), bytes(&admitted)), (37, b"\x02\x01\0\0\0\0\0\0\x01".to_vec()));
    let state = Reply::FlushState { above: 0x0102, moved: 3, failures: 4, detail: "no".into() };
    let fields = b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x02\0\0\0no";
    assert_eq!((state.kind(), bytes(&state)), (38, fields.to_vec()));
    assert_eq!(Reply::decode(38, fields), Ok(state));
    assert_eq!((Reply::Recalled {}.kind(), bytes(&Reply::Recalled {})), (31, Vec::new()));
    let recall = |key| bytes(&Reply::Recall { id: 5, key });
    let id = b"\x05\0\0\0\0\0\0\0";
    assert_eq!(recall(LeaseKey::Object(Ino(9))), [&id[..], b"\x01\x09\0\0\0\0\0\0\0"].concat());
    let entry = LeaseKey::Entry(Ino(9), (*b"ab").into());
    assert_eq!(recall(entry), [&id[..], b"\x02\x09\0\0\0\0\0\0\0\x02\0\0\0ab"].concat());
    assert_eq!(recall(LeaseKey::Part(Ino(9))), [&id[..], b"\x03\x09\0\0\0\0\0\0\0"].concat());
    assert_eq!(Reply::Recall { id: 5, key: LeaseKey::Part(Ino(9)) }.kind(), 32);
    let opened = Reply::Opened { attr: attr(), version: 6 };
    assert_eq!((opened.kind(), bytes(&opened)), (33, [ATTR_BYTES, b"\x06\0\0\0\0\0\0\0"].concat()));
    let held = Reply::Held { hold: hold() };
    assert_eq!(bytes(&held), HOLD_BYTES);
}

fn hold() -> Hold {
    Hold { txn: TxnId([0xab; 16]), decider: 2, since: TimeSpec { sec: 1, nsec: 2 } }
}

const HOLD_BYTES: &[u8] =
    b"\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\x02\0\x01\0\0\0\0\0\0\0\x02\0\0\0";

#[test]
fn handshake_bytes_are_pinned() {
    let hello = Handshake::Hello {
        version: 1,
        instance: InstanceId([1; 16]),
        session: SessionId([2; 16]),
        nonce: Nonce([3; 32]),
    };
    let mut out = Vec::new();
    hello.encode(&mut out);
    assert_eq!(out, [vec![1, 0], vec![1; 16], vec![2; 16], vec![3; 32]].concat());
    assert_eq!(Handshake::decode(1, &out), Ok(hello));
}

#[test]
fn mutation_bytes_are_pinned() {
    let inode = Inode {
        attr: attr(),
        parent: Ino::ROOT,
        target: Box::default(),
        xattrs: vec![((*b"n").into(), (*b"v").into())],
    };
    let with = |kind: u8, rest: &[&[u8]]| [&[kind][..], &rest.concat()].concat();
    let root: &[u8] = b"\x01\0\0\0\0\0\0\0";
    let cases: Vec<(Mutation, Vec<u8>)> = vec![
        (
            Mutation::PutInode(inode),
            with(1, &[ATTR_BYTES, root, b"\0\0\0\0\x01\0\0\0\x01\0\0\0n\x01\0\0\0v"]),
        ),
        (Mutation::DelInode(Ino::ROOT), with(2, &[root])),
        (
            Mutation::PutDentry {
                parent: Ino::ROOT,
                name: (*b"f").into(),
                dentry: Dentry { ino: Ino::ROOT, kind: FileKind::Regular, hold: Some(hold()) },
            },
            with(3, &[root, b"\x01\0\0\0f", root, b"\x08\x01", HOLD_BYTES]),
        ),
        (Mutation::DelDentry { parent: Ino::ROOT, name: (*b"f").into() }, with(4, &[root, b"\x01\0\0\0f"])),
        (
            Mutation::PutDirPart {
                dir: Ino::ROOT,
                part: DirPart { entries: 2, subdirs: 1, changed: None, hold: None },
            },
            with(5, &[root, b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0"]),
        ),
        (Mutation::DelDirPart(Ino::ROOT), with(6, &[root])),
        (
            Mutation::PutOutcome {
                txn: TxnId([1; 16]),
                outcome: Outcome { committed: true, at: TimeSpec { sec: 3, nsec: 0 }, moved: None },
            },
            with(7, &[&[1; 16], b"\x01\x03\0\0\0\0\0\0\0\0\0\0\0\0"]),
        ),
        (Mutation::DelOutcome(TxnId([1; 16])), with(8, &[&[1; 16]])),
        (Mutation::NextCount(5), with(9, &[b"\x05\0\0\0\0\0\0\0"])),
        (Mutation::PutReap(Ino::ROOT), with(10, &[root])),
        (Mutation::DelReap(Ino::ROOT), with(11, &[root])),
    ];
    for (mutation, bytes) in cases {
        let mut out = Vec::new();
        mutation.put(&mut out);
        assert_eq!(out, bytes, "{mutation:?}");
        assert_eq!(Mutation::get(&mut Reader::new(&bytes)), Ok(mutation));
    }
}

/// The specification lists exactly the messages of the code.
#[test]
fn the_specification_has_every_message() {
    let page = include_str!("../../../docs/formats/01-protocol.md");
    for (title, kinds) in
        [("## Handshake", Handshake::KINDS), ("## Requests", Request::KINDS), ("## Replies", Reply::KINDS)]
    {
        let section = page.split(title).nth(1).unwrap().split("\n## ").next().unwrap();
        let listed: Vec<(u16, &str)> = section
            .lines()
            .filter_map(|line| {
                let mut cells = line.split('|').map(str::trim);
                let number = cells.nth(1)?.parse().ok()?;
                Some((number, cells.next()?))
            })
            .collect();
        assert_eq!(listed, kinds, "{title}");
    }
}

proptest! {
    /// Garbage is refused or decoded, never a panic; what decodes encodes to the same bytes.
    #[test]
    fn garbage_never_panics(kind in 0u16..80, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(request) = Request::decode(kind, &bytes) {
            prop_assert_eq!(encode(&request), bytes.clone());
        }
        let _ = Reply::decode(kind, &bytes);
        let _ = RequestHead::decode(&bytes);
        let _ = Handshake::decode(kind, &bytes);
        let _ = Mutation::get(&mut Reader::new(&bytes));
    }

    /// What decodes as a message of a fabric has its body whole or not at all.
    #[test]
    fn fabric_messages_are_whole_or_refused(cut in 0usize..200, meta in 0u32..100, bulk in 0u32..100) {
        let header = Header { kind: 41, meta_len: meta, bulk_len: bulk, ..Header::default() };
        let head = RequestHead { token: FabricToken([1; 32]), sequence: 5, header };
        let mut message = head.encode().to_vec();
        message.resize(RequestHead::LEN + (meta + bulk) as usize, 9);
        let whole = message.len();
        message.truncate(cut.min(whole));
        match RequestHead::decode(&message) {
            Ok((same, body)) => {
                prop_assert_eq!(same, head);
                prop_assert_eq!(body.is_some(), message.len() == whole);
                prop_assert!(message.len() == whole || message.len() == RequestHead::LEN);
            }
            Err(_) => prop_assert!(message.len() != whole && message.len() != RequestHead::LEN),
        }
    }

    /// A length that promises more than there is costs no memory.
    #[test]
    fn lying_lengths_are_refused(count in 1000u32.., kind in 0u16..80) {
        let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&count.to_le_bytes());
        let _ = Request::decode(kind, &bytes);
        prop_assert!(Vec::<u8>::get(&mut Reader::new(&bytes[8..])).is_err());
    }
}
