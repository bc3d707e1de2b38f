//! The published protocol on the compatibility socket, byte by byte, as a program speaks it that is linked with the
//! published libraries: one connection for each request.

mod common;
#[path = "common/stager.rs"]
mod stager;

use stager::Running;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tidepool_norns::{LENGTH_LEN, Response, numbers};

fn with_norns() -> Running {
    Running::with("norns-socket = \"DIR/norns.socket\"\n")
}

/// Sends a body with its length and reads what comes back.
fn exchange(stream: &mut UnixStream, body: &[u8]) -> Vec<u8> {
    stream.write_all(&[&(body.len() as u64).to_be_bytes(), body].concat()).unwrap();
    let mut len = [0; LENGTH_LEN];
    stream.read_exact(&mut len).unwrap();
    let mut answer = vec![0; u64::from_be_bytes(len) as usize];
    stream.read_exact(&mut answer).unwrap();
    answer
}

fn ask(running: &Running, body: &[u8]) -> Vec<u8> {
    exchange(&mut UnixStream::connect(running.path("norns.socket")).unwrap(), body)
}

fn code(running: &Running, body: &[u8]) -> i32 {
    Response::read(&ask(running, body)).unwrap().code().0
}

/// A field that holds bytes.
fn field(number: u8, body: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(body.len()).unwrap()], body].concat()
}

/// A task: `op` from a path of `a://` to one of `b://`.
fn submit(op: u8, from: &[u8], to: &[u8]) -> Vec<u8> {
    let resource = |nsid: &[u8], path: &[u8]| {
        let path = [&field(1, nsid)[..], &field(3, path), b"\x20\x00"].concat();
        [b"\x08\x90\x80\x80\x01", &field(4, &path)[..]].concat()
    };
    let ends = [&field(3, &resource(b"a://", from))[..], &field(4, &resource(b"b://", to))].concat();
    [b"\x08\x01", &field(2, &[&[0x08, 0, 0x10, op], &ends[..]].concat())[..]].concat()
}

/// Asks until the task has ended; the last answer.
fn wait(running: &Running, id: u32) -> Vec<u8> {
    let id = u8::try_from(id).unwrap();
    let nothing = b"\x08\x80\x80\x80\x08";
    let task = [&[0x08, id, 0x10, 1][..], &field(3, nothing), &field(4, nothing)].concat();
    let body = [b"\x08\x02", &field(2, &task)[..]].concat();
    loop {
        let answer = ask(running, &body);
        let status = Response::read(&answer).unwrap().stats.unwrap().status.unwrap() as i32;
        if !matches!(status, numbers::EPENDING | numbers::EINPROGRESS) {
            return answer;
        }
    }
}

#[test]
fn tasks_are_submitted_and_watched() {
    let running = with_norns();
    std::fs::write(running.path("a/in"), b"12345").unwrap();
    // type 1, code 0, id 1
    assert_eq!(ask(&running, &submit(1, b"in", b"d/out")), b"\x08\x01\x10\x00\x18\x01");
    // type 2, code 0; finished (-103), 0, 0
    assert_eq!(wait(&running, 1), b"\x08\x02\x10\x00\x22\x0a\x08\x99\xff\xff\xff\x0f\x10\x00\x18\x00");
    assert_eq!(std::fs::read(running.path("b/d/out")).unwrap(), b"12345");
    // The published daemon forgets a task that has been asked about; this one does not.
    assert_eq!(wait(&running, 1), wait(&running, 1));

    let failed = ask(&running, &submit(1, b"absent", b"out"));
    assert_eq!(failed, b"\x08\x01\x10\x00\x18\x02");
    // finished with an error (-104), of the system (-201), ENOENT
    assert_eq!(
        wait(&running, 2),
        b"\x08\x02\x10\x00\x22\x0e\x08\x98\xff\xff\xff\x0f\x10\xb7\xfe\xff\xff\x0f\x18\x02"
    );
}

#[test]
fn memory_is_read_from_the_caller() {
    let running = with_norns();
    let bytes: Vec<u8> = (0..100u8).collect();
    let region = [&b"\x08"[..], &varint(bytes.as_ptr() as u64), b"\x10\x64"].concat();
    let memory = [b"\x08\x80\x80\x40", &field(3, &region)[..]].concat();
    let path = [&field(1, b"b://")[..], &field(3, b"out"), b"\x20\x00"].concat();
    let target = [b"\x08\x90\x80\x80\x01", &field(4, &path)[..]].concat();
    let task = [b"\x08\x00\x10\x01", &field(3, &memory)[..], &field(4, &target)].concat();
    assert_eq!(ask(&running, &[b"\x08\x01", &field(2, &task)[..]].concat()), b"\x08\x01\x10\x00\x18\x01");
    wait(&running, 1);
    assert_eq!(std::fs::read(running.path("b/out")).unwrap(), bytes);
}

fn varint(mut rest: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while rest > 0x7f {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// A resource of a kind of the format's table; `bytes` are the memory.
fn of_kind(kind: &str, path: &str, bytes: &[u8]) -> Vec<u8> {
    let host: &[u8] = if kind == "remote" { b"127.0.0.1:1" } else { b"" };
    let host = if host.is_empty() { Vec::new() } else { field(2, host) };
    let path = [field(1, b"b://"), host, field(3, path.as_bytes()), b"\x20\x00".to_vec()].concat();
    let region =
        [&b"\x08"[..], &varint(bytes.as_ptr() as u64), b"\x10", &varint(bytes.len() as u64)].concat();
    let (number, place) = match kind {
        "memory" => (numbers::PROCESS_MEMORY, field(3, &region)),
        "local" => (numbers::POSIX_PATH | numbers::R_LOCAL, field(4, &path)),
        "shared" => (numbers::POSIX_PATH | numbers::R_SHARED, field(4, &path)),
        "remote" => (numbers::POSIX_PATH | numbers::R_REMOTE, field(4, &path)),
        other => panic!("the format knows no resource '{other}'"),
    };
    [b"\x08".to_vec(), varint(number.into()), place].concat()
}

/// Operation, source, target, and what ours answers, of every combination in the format's table.
fn table() -> Vec<(u8, String, String, i32)> {
    let page = include_str!("../../../docs/formats/14-norns.md");
    let (_, table) = page.split_once("| operation | from |").expect("the table is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut found = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, operations, from, to, published, ours, why, _] = cells[..] else { panic!("{row}") };
        assert!(published == ours || !why.is_empty(), "a difference needs a reason: {row}");
        let words = |cell: &str| cell.split(", ").map(str::to_string).collect::<Vec<_>>();
        for operation in words(operations) {
            let number = if operation == "copy" { numbers::IOTASK_COPY } else { numbers::IOTASK_MOVE };
            for (from, to) in
                words(from).iter().flat_map(|from| words(to).into_iter().map(move |to| (from, to)))
            {
                found.push((number as u8, from.clone(), to, ours.parse().expect(row)));
            }
        }
    }
    found
}

/// What the published tests of the interface submit, and what they leave out: as the format's table says.
#[test]
fn each_combination_of_resources_is_taken_or_refused_as_the_format_says() {
    let running = with_norns();
    let (table, bytes) = (table(), [7; 100]);
    let distinct: std::collections::BTreeSet<_> = table.iter().map(|row| (row.0, &row.1, &row.2)).collect();
    assert_eq!((table.len(), distinct.len()), (32, 32), "each combination is in one row");
    for (number, (op, from, to, expected)) in table.iter().enumerate() {
        let (from_path, to_path) = (format!("from-{number}"), format!("to-{number}"));
        let ends =
            [field(3, &of_kind(from, &from_path, &bytes)), field(4, &of_kind(to, &to_path, &bytes))].concat();
        let task = [&[0x08, 0, 0x10, *op][..], &ends].concat();
        let answer = code(&running, &[b"\x08\x01", &field(2, &task)[..]].concat());
        assert_eq!(answer, *expected, "operation {op} from {from} to {to}");
    }
}

#[test]
fn memory_that_is_moved_arrives_and_stays() {
    let running = with_norns();
    let bytes: Vec<u8> = (0..100u8).collect();
    let ends = [field(3, &of_kind("memory", "", &bytes)), field(4, &of_kind("local", "out", b""))].concat();
    let task = [&[0x08, 0, 0x10, numbers::IOTASK_MOVE as u8][..], &ends].concat();
    assert_eq!(ask(&running, &[b"\x08\x01", &field(2, &task)[..]].concat()), b"\x08\x01\x10\x00\x18\x01");
    wait(&running, 1);
    assert_eq!(std::fs::read(running.path("b/out")).unwrap(), bytes);
    assert_eq!(bytes, (0..100u8).collect::<Vec<u8>>());
}

#[test]
fn administration_works_for_who_may() {
    let running = with_norns();
    std::fs::create_dir(running.path("c")).unwrap();
    let mount = running.path("c").display().to_string();
    let space = |kind: u8, capacity: u8| {
        let backend =
            [b"\x08\x84\x80\x80\x80\x01\x10\x00", &field(3, mount.as_bytes())[..], &[0x20, capacity]]
                .concat();
        [&[0x08, kind][..], &field(6, &[&field(1, b"c://")[..], &field(2, &backend)].concat())].concat()
    };
    assert_eq!(ask(&running, &space(9, 7)), b"\x08\x09\x10\x00");
    assert_eq!(code(&running, &space(9, 7)), -30);
    assert_eq!(code(&running, &space(10, 9)), 0);
    let known = running.control();
    let found = known.job_report(stager::JOB);
    assert!(found.is_ok());

    let limit = [&field(1, b"c://")[..], b"\x10\x03"].concat();
    let job = [&field(1, b"n0")[..], &field(2, &limit)].concat();
    let job = |kind: u8| [&[0x08, kind, 0x18, 7][..], &field(4, &job)].concat();
    assert_eq!((code(&running, &job(5)), code(&running, &job(4)), code(&running, &job(4))), (-11, 0, -10));
    assert_eq!(code(&running, &job(5)), 0);
    let jobs = known.jobs().unwrap();
    let registered = jobs.iter().find(|job| job.id == 7).unwrap();
    assert_eq!((registered.limits[0].dataspace.as_str(), registered.limits[0].quota), ("c://", 3 << 20));
    let process = |kind: u8| [0x08, kind, 0x18, 7, 0x2a, 6, 0x08, 0, 0x10, 0, 0x18, 1];
    assert_eq!(
        (code(&running, &process(7)), code(&running, &process(8)), code(&running, &process(8))),
        (0, 0, -21)
    );
    assert_eq!((code(&running, b"\x08\x06\x18\x07"), code(&running, b"\x08\x06\x18\x07")), (0, -11));

    let unregister = [b"\x08\x0b", &field(6, &field(1, b"c://"))[..]].concat();
    assert_eq!((code(&running, &unregister), code(&running, &unregister)), (0, -31));
}

#[test]
fn the_daemon_is_asked_and_told() {
    let mut running = with_norns();
    assert_eq!(ask(&running, b"\x08\x03"), b"\x08\x03\x10\x00");
    // type 1000, code 0; 0 running, 0 pending, 0.0 seconds
    let idle = b"\x08\xe8\x07\x10\x00\x2a\x0d\x08\x00\x10\x00\x19\0\0\0\0\0\0\0\0";
    assert_eq!(ask(&running, b"\x08\xe8\x07"), idle);
    let command = |id: u8| [0x08, 0xe9, 0x07, 0x3a, 0x03, 0x08, id, 0x07];
    assert_eq!(ask(&running, &command(0xe8)), b"\x08\xe9\x07\x10\x00");
    assert_eq!(code(&running, &command(0xe9)), 0);
    assert_eq!(code(&running, &submit(1, b"in", b"out")), -9);
    assert_eq!(code(&running, &command(0xea)), 0);
    assert_eq!(code(&running, b"\x08\xe9\x07\x3a\x02\x08\x05"), -2);
    assert_eq!(code(&running, &command(0xeb)), 0);
    assert!(running.ended());
}

#[test]
fn several_requests_fit_into_one_connection_and_nonsense_ends_it_at_most() {
    let running = with_norns();
    let mut stream = UnixStream::connect(running.path("norns.socket")).unwrap();
    for _ in 0..3 {
        assert_eq!(exchange(&mut stream, b"\x08\x03"), b"\x08\x03\x10\x00");
        // type 2000, code -3
        assert_eq!(exchange(&mut stream, b"\xff\xff"), b"\x08\xd0\x0f\x10\xfd\xff\xff\xff\x0f");
        assert_eq!(exchange(&mut stream, b"\x08\x63"), b"\x08\xd0\x0f\x10\xfd\xff\xff\xff\x0f");
    }
    stream.write_all(&[0xff; 100]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "a length of 2^64 is the end");
    assert_eq!(ask(&running, b"\x08\x03"), b"\x08\x03\x10\x00");
}
