//! The published bytes, pinned; what each request means; and garbage.

use proptest::prelude::*;
use tidepool_norns::numbers::*;
use tidepool_norns::{BODY_MAX, Kind, LENGTH_LEN, MemoryRegion, Request, Resource, Response, body_len};
use tidepool_wire::stager::{
    self, Code, Command, DataspaceKind, DataspaceSpec, JobLimit, JobSpec, Op, Policy, ProcessSpec, Refusal,
    Reply, StagerStatus, TaskPhase, TaskSpec, TaskState, TaskStatus,
};

fn native(body: &[u8]) -> Result<stager::Request, Refusal> {
    Request::read(body)?.to_native()
}

#[track_caller]
fn code(body: &[u8]) -> Code {
    native(body).unwrap_err().code
}

/// A message inside another: its tag with type 2, its length, its bytes.
fn field(number: u8, body: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, body.len() as u8], body].concat()
}

/// Copies 4 KiB of memory at 0x1000 to `path/out` in `tmp0://`, as Google's library writes it.
const SUBMIT: &[u8] = b"\x08\x01\x12\x30\x08\x00\x10\x01\x1a\x0c\x08\x80\x80\x40\x1a\x06\x08\x80\x20\x10\x80\x20\x22\x1c\x08\x90\x80\x80\x01\x22\x15\x0a\x07tmp0://\x1a\x08path/out\x20\x00";

#[test]
fn a_submission_means_what_it_says() {
    let expected = TaskSpec::new(
        Op::Copy,
        stager::Resource::Memory { address: 0x1000, size: 4096 },
        Some(stager::Resource::local("tmp0://", b"path/out")),
    );
    assert_eq!(native(SUBMIT), Ok(stager::Request::Submit { task: expected }));
    let framed = [&52u64.to_be_bytes(), SUBMIT].concat();
    assert_eq!(Request::read(SUBMIT).unwrap().frame(), framed);
    assert_eq!(&framed[..LENGTH_LEN], b"\0\0\0\0\0\0\0\x34");
}

#[test]
fn paths_keep_their_places() {
    let path = |flags: &[u8], fields: &[u8]| [&[0x08], flags, &field(4, fields)[..]].concat();
    let local = path(b"\x90\x80\x80\x01", b"\x0a\x04a://\x1a\x03in\xff\x20\x00");
    let remote = path(b"\xa0\x80\x80\x01", b"\x0a\x04b://\x12\x08n1:42000\x1a\x03out\x20\x01");
    let shared = path(b"\xc0\x80\x80\x01", b"\x0a\x04b://\x1a\x04/out\x20\x00");
    let bare = path(b"\x80\x80\x80\x01", b"\x0a\x04b://\x1a\x03out\x20\x00");
    let submit = |op: u8, src: &[u8], dst: &[u8]| {
        let task = [&[0x08, 0, 0x10, op], &field(3, src)[..], &field(4, dst)].concat();
        native(&[&[0x08, 1], &field(2, &task)[..]].concat())
    };
    let spec = |op, src, dst| Ok(stager::Request::Submit { task: TaskSpec::new(op, src, dst) });
    let (from, to) = (stager::Resource::local("a://", b"in\xff"), stager::Resource::local("b://", b"out"));
    let away = stager::Resource::remote("b://", "n1:42000", b"out");
    assert_eq!(submit(2, &local, &remote), spec(Op::Move, from.clone(), Some(away)));
    assert_eq!(submit(1, &local, &bare), spec(Op::Copy, from.clone(), Some(to)));
    let null = b"\x08\x80\x80\x80\x08";
    assert_eq!(submit(3, &local, null), spec(Op::Remove, from, None));
    let Ok(stager::Request::Submit { task }) = submit(1, &local, &shared) else { panic!() };
    let Some(stager::Resource::Path { access, path: at, .. }) = task.dst else { panic!() };
    assert_eq!((access, &*at), (stager::Access::Shared, &b"out"[..]));

    let hostless = path(b"\xa0\x80\x80\x01", b"\x0a\x04b://\x1a\x03out\x20\x01");
    let hosted = path(b"\x90\x80\x80\x01", b"\x0a\x04b://\x12\x01n\x1a\x03out\x20\x01");
    for (op, src, dst) in [
        (1, &local[..], &hostless[..]),
        (1, &hosted, &local),
        (1, &local, null),
        (1, null, &local),
        (9, &local, &bare),
    ] {
        assert_eq!(submit(op, src, dst).unwrap_err().code, Code::BAD_ARGS);
    }
    assert_eq!(submit(1, &local, b"\x08\x01").unwrap_err().code, Code::BAD_ARGS);
    assert_eq!(submit(1, &local, b"").unwrap_err().code, Code::BAD_REQUEST);
    // Submitted before: it has an id.
    let task = [b"\x08\x05\x10\x01", &field(3, &local)[..], &field(4, &bare)].concat();
    assert_eq!(code(&[&[0x08, 1], &field(2, &task)[..]].concat()), Code::BAD_ARGS);
}

#[test]
fn administration_means_what_it_says() {
    let job = |kind: u8| {
        [&[0x08, kind], &b"\x18\x2a\x22\x11\x0a\x02n0\x12\x0b\x0a\x07nvme://\x10\x08"[..]].concat()
    };
    let limits = vec![JobLimit { dataspace: "nvme://".into(), quota: 8 << 20 }];
    let spec = JobSpec { id: 42, hosts: vec!["n0".into()], limits, bandwidth: 0 };
    assert_eq!(native(&job(4)), Ok(stager::Request::RegisterJob { job: spec.clone() }));
    assert_eq!(native(&job(5)), Ok(stager::Request::UpdateJob { job: spec }));
    assert_eq!(native(b"\x08\x06\x18\x2a"), Ok(stager::Request::UnregisterJob { job: 42 }));

    let process = ProcessSpec { pid: 300, uid: 7, gid: 8 };
    let add = b"\x08\x07\x18\x2a\x2a\x07\x08\x07\x10\x08\x18\xac\x02";
    assert_eq!(native(add), Ok(stager::Request::AddProcess { job: 42, process }));
    let remove = [b"\x08\x08", &add[2..]].concat();
    assert_eq!(native(&remove), Ok(stager::Request::RemoveProcess { job: 42, process }));
    // pid -1
    let minus = b"\x08\x07\x18\x2a\x2a\x0f\x08\x07\x10\x08\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    assert!(matches!(native(minus), Ok(stager::Request::AddProcess { process, .. }) if process.pid == -1));
    let uid = b"\x08\x07\x18\x2a\x2a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x08\x18\x01";
    assert_eq!(code(uid), Code::BAD_ARGS);

    for (id, command) in
        [(0xe8, Command::Ping), (0xe9, Command::Pause), (0xea, Command::Resume), (0xeb, Command::Shutdown)]
    {
        let body = [0x08, 0xe9, 0x07, 0x3a, 0x03, 0x08, id, 0x07];
        assert_eq!(native(&body), Ok(stager::Request::Command { command }));
    }
    assert_eq!(code(b"\x08\xe9\x07\x3a\x02\x08\x05"), Code::BAD_ARGS);
    assert_eq!(native(b"\x08\xe8\x07"), Ok(stager::Request::DaemonStatus {}));
    assert_eq!(native(b"\x08\x03"), Ok(stager::Request::Ping {}));
    assert_eq!(
        native(b"\x08\x0b\x32\x06\x0a\x04a://"),
        Ok(stager::Request::UnregisterDataspace { name: "a://".into() })
    );
    let status = b"\x08\x02\x12\x0a\x08\x07\x10\x00\x1a\x02\x08\x00\x22\x00";
    assert_eq!(native(status), Ok(stager::Request::Status { id: 7 }));
}

#[test]
fn namespaces_of_every_type() {
    // nsid, {type, track, mount, capacity}
    let register = |kind: u8, number: u8, capacity: &[u8]| {
        let backend =
            [&[0x08, number | 0x80, 0x80, 0x80, 0x80, 0x01][..], b"\x10\x01\x1a\x04/mnt\x20", capacity]
                .concat();
        native(&[&[0x08, kind], &field(6, &[b"\x0a\x04a://", &field(2, &backend)[..]].concat())[..]].concat())
    };
    let spec = |kind, capacity| DataspaceSpec {
        name: "a://".into(),
        kind,
        mount: "/mnt".into(),
        tracked: true,
        capacity,
        streams_max: 0,
        bandwidth: 0,
    };
    let local = spec(DataspaceKind::Local, 2 << 20);
    assert_eq!(register(9, 4, b"\x02"), Ok(stager::Request::RegisterDataspace { dataspace: local.clone() }));
    assert_eq!(register(10, 1, b"\x02"), Ok(stager::Request::UpdateDataspace { dataspace: local }));
    // 3 GiB-of-MiB: a uint32_t that is negative in the published field.
    let large = spec(DataspaceKind::Shared, 0xc000_0000u64 << 20);
    let negative = b"\x80\x80\x80\x80\xfc\xff\xff\xff\xff\x01";
    assert_eq!(register(9, 2, negative), Ok(stager::Request::RegisterDataspace { dataspace: large }));
    assert_eq!(register(9, 3, b"\x02").unwrap_err().code, Code::NOT_SUPPORTED);
    assert_eq!(register(9, 5, b"\x02").unwrap_err().code, Code::BAD_ARGS);
    assert_eq!(register(9, 4, b"\x00").unwrap_err().code, Code::BAD_ARGS);
}

fn status(state: TaskState, code: Code, errno: i32) -> Reply {
    let status = TaskStatus {
        id: 7,
        op: Op::Copy,
        state,
        phase: TaskPhase::Ended,
        refusal: Refusal { code, errno, detail: String::new() },
        job: 0,
        uid: 0,
        src: String::new(),
        dst: String::new(),
        bytes_done: 0,
        bytes_total: 0,
        files_done: 0,
        files_total: 0,
        total_known: true,
        rate: 0,
        eta_ms: None,
        age_ms: 0,
        percent: None,
    };
    Reply::Task { status }
}

#[test]
fn answers_have_the_published_bytes() {
    let body = |kind, reply: &Reply| Response::answer(kind, reply).frame().split_off(LENGTH_LEN);
    assert_eq!(body(Kind::IotaskSubmit, &Reply::Submitted { id: 300 }), b"\x08\x01\x10\x00\x18\xac\x02");
    assert_eq!(body(Kind::CtlCommand, &Reply::Done {}), b"\x08\xe9\x07\x10\x00");
    // What the published library asks for in a refusal as well.
    let refused = |kind, code| body(kind, &Reply::Failed { refusal: Refusal::new(code, "no") });
    let no_stats = b"\x22\x0a\x08\x9c\xff\xff\xff\x0f\x10\x00\x18\x00";
    let no_task = [&b"\x08\x02\x10\xd7\xff\xff\xff\x0f"[..], no_stats].concat();
    assert_eq!(refused(Kind::IotaskStatus, Code::NO_SUCH_TASK), no_task);
    assert_eq!(refused(Kind::IotaskSubmit, Code::PAUSED), b"\x08\x01\x10\xf7\xff\xff\xff\x0f\x18\x00");
    assert!(Response::read(&refused(Kind::GlobalStatus, Code::INTERNAL)).unwrap().gstats.is_some());
    let failed = body(Kind::IotaskStatus, &status(TaskState::Failed, Code::SYSTEM_ERROR, 28));
    assert_eq!(failed, b"\x08\x02\x10\x00\x22\x0e\x08\x98\xff\xff\xff\x0f\x10\xb7\xfe\xff\xff\x0f\x18\x1c");
    let running = body(Kind::IotaskStatus, &status(TaskState::Running, Code::SUCCESS, 0));
    assert_eq!(running, b"\x08\x02\x10\x00\x22\x0a\x08\x9a\xff\xff\xff\x0f\x10\x00\x18\x00");
    let unread = Response::refuse(None, &Refusal::new(Code::BAD_REQUEST, "")).frame();
    assert_eq!(unread, b"\0\0\0\0\0\0\0\x09\x08\xd0\x0f\x10\xfd\xff\xff\xff\x0f");
    assert_eq!(Response::read(&unread[LENGTH_LEN..]).unwrap().code(), Code::BAD_REQUEST);
}

#[test]
fn states_are_the_published_ones() {
    let stats = |state, code| {
        let stats = Response::answer(Kind::IotaskStatus, &status(state, code, 0)).stats.unwrap();
        (stats.status.unwrap() as i32, stats.task_error.unwrap() as i32)
    };
    assert_eq!(stats(TaskState::Pending, Code::SUCCESS), (EPENDING, 0));
    assert_eq!(stats(TaskState::Finished, Code::SUCCESS), (EFINISHED, 0));
    assert_eq!(stats(TaskState::Failed, Code::NOT_PERMITTED), (EFINISHEDWERROR, -50));
    assert_eq!(stats(TaskState::Cancelled, Code::CANCELLED), (EFINISHEDWERROR, -44));
}

#[test]
fn the_whole_daemon_in_three_numbers() {
    let daemon = |running, eta_ms| {
        let status = StagerStatus {
            node: "n".into(),
            pending: 1 << 40,
            running,
            ended: 0,
            eta_ms,
            bytes_done: 0,
            rate: 0,
            paused: false,
            policy: Policy::FirstCome,
            workers: 1,
            counters: Vec::new(),
        };
        Response::answer(Kind::GlobalStatus, &Reply::Daemon { status }).gstats.unwrap()
    };
    let some = daemon(2, Some(1500));
    assert_eq!((some.running_tasks, some.pending_tasks, some.eta), (Some(2), Some(u32::MAX), Some(1.5)));
    assert!(daemon(2, None).eta.unwrap().is_nan());
}

#[test]
fn what_cannot_be_read_is_a_bad_request() {
    assert_eq!(code(b""), Code::BAD_REQUEST);
    assert_eq!(code(b"\x08\x63"), Code::BAD_REQUEST);
    assert_eq!(code(b"\x08\x01"), Code::BAD_REQUEST);
    assert_eq!(code(b"\x08\x01\x12\x02\x08\x00"), Code::BAD_REQUEST);
    assert_eq!(code(b"\xff\xff"), Code::BAD_REQUEST);
    assert_eq!(body_len((BODY_MAX as u64).to_be_bytes()), Ok(BODY_MAX));
    assert!(body_len((BODY_MAX as u64 + 1).to_be_bytes()).is_err());
    assert!(body_len([0xff; 8]).is_err());
}

#[test]
fn sizes_are_not_cut() {
    let region = MemoryRegion { address: Some(1), size: u32::try_from(1u64 << 32).ok() };
    let resource = Resource { r#type: Some(PROCESS_MEMORY), buffer: Some(region), path: None };
    assert_eq!(resource.buffer.unwrap().size, None, "4 GiB cannot be said");
}

proptest! {
    #[test]
    fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = native(&body);
        let _ = Response::read(&body);
    }

    /// Near misses of a real request reach further than garbage does.
    #[test]
    fn no_changed_request_panics(place in 0..SUBMIT.len(), byte in any::<u8>(), len in 0..SUBMIT.len()) {
        let mut body = SUBMIT.to_vec();
        body[place] = byte;
        body.truncate(len);
        let _ = native(&body);
    }

    #[test]
    fn what_is_read_is_written_again(body in proptest::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(request) = Request::read(&body) {
            let frame = request.frame();
            prop_assert_eq!(body_len(frame[..LENGTH_LEN].try_into().unwrap()), Ok(frame.len() - LENGTH_LEN));
            prop_assert_eq!(Request::read(&frame[LENGTH_LEN..]), Ok(request));
        }
    }
}
