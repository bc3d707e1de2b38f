//! Our own table as CSV and Parquet: what is written is read again, and hostile files are refused.

use proptest::prelude::*;
use tidepool_joblog::{
    Format, Header, Job, Log, LogError, Names, Options, Status, csv, parquet, read, write,
};

fn of(bytes: &[u8]) -> Result<Log, LogError> {
    read(bytes, &Options::default())
}

fn forced(bytes: &[u8], format: Format) -> Result<Log, LogError> {
    read(bytes, &Options { format: Some(format), ..Options::default() })
}

fn written(log: &Log, format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(log, format, &mut bytes).unwrap();
    bytes
}

/// Two jobs, one of which says all and the other next to nothing.
fn small() -> Log {
    let whole = Job {
        number: 11,
        submit_s: 12,
        waited_s: Some(13),
        run_s: 14,
        request_s: 19,
        asked: true,
        processors: 15,
        requested_processors: Some(18),
        nodes: Some(2),
        cpu_s: Some(16),
        used_memory_kib: Some(17),
        requested_memory_kib: Some(20),
        status: Status::OutOfMemory,
        user: Some(21),
        group: Some(22),
        account: Some(1),
        executable: Some(23),
        queue: Some(24),
        partition: Some(25),
        preceding: Some(26),
        think_s: Some(27),
        node_list: Some(1),
        overran_s: 0,
    };
    let bare = Job { number: 12, submit_s: 13, run_s: 5, request_s: 5, processors: 1, ..Job::default() };
    let name = |number: u32, name: &str| [(number, name.to_string())].into();
    let names = Names {
        users: name(21, "alice"),
        executables: name(23, "a \"b\", #c"),
        accounts: name(1, "physics"),
        node_lists: name(1, "node[1-2,4]"),
        queues: name(24, "normal"),
        ..Names::default()
    };
    let header = Header { unix_start_s: Some(1_735_689_600), max_procs: Some(64), ..Header::default() };
    Log { header, jobs: vec![whole, bare], processors: Some(64), names, ..Log::default() }
}

const CSV: &str = "\
# UnixStartTime: 1735689600
# MaxProcs: 64
# Queue: 24 normal
job,submit_seconds,wait_seconds,run_seconds,request_seconds,processors,requested_processors,nodes,cpu_seconds,used_memory_kib,\
requested_memory_kib,user,group,account,executable,queue,partition,preceding_job,think_seconds,status,user_name,account_name,\
executable_name,queue_name,node_list
11,12,13,14,19,15,18,2,16,17,20,21,22,1,23,24,25,26,27,out-of-memory,alice,physics,\"a \"\"b\"\", #c\",normal,\"node[1-2,4]\"
12,13,,5,,1,,,,,,,,,,,,,,unknown,,,,,
";

#[test]
fn csv_is_these_lines() {
    let log = small();
    assert_eq!(String::from_utf8(written(&log, Format::Csv)).unwrap(), CSV);
    let again = of(CSV.as_bytes()).unwrap();
    assert_eq!((&again.jobs, &again.names, &again.header), (&log.jobs, &log.names, &log.header));
    assert_eq!((again.processors, again.repairs.no_request), (Some(64), 1));
}

#[test]
fn parquet_holds_the_same() {
    let log = small();
    let bytes = written(&log, Format::Parquet);
    assert_eq!((&bytes[..4], &bytes[bytes.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
    // The first page's head: a data page of 2 values, plain, with levels in runs.
    assert_eq!(bytes[4..6], [0x15, 0]);
    let again = of(&bytes).unwrap();
    assert_eq!((&again.jobs, &again.names, &again.header), (&log.jobs, &log.names, &log.header));
    assert_eq!(again.processors, Some(64));
}

/// A file of pyarrow's (21.0.0, `write_table` of a frame of pandas): Snappy, dictionaries, numbers with a point where some are
/// missing, and a column that we do not know.
#[test]
fn a_table_of_pyarrow() {
    let log = of(include_bytes!("data/pyarrow.parquet")).unwrap();
    let told: Vec<_> =
        log.jobs.iter().map(|job| (job.submit_s, job.run_s, job.processors, job.waited_s)).collect();
    assert_eq!(told, [(0, 60, 4, Some(5)), (10, 70, 8, None), (20, 80, 4, Some(0))]);
    assert_eq!(log.jobs.iter().map(|job| job.user).collect::<Vec<_>>(), [Some(1), Some(2), Some(1)]);
    assert_eq!(log.names.users[&2], "bob");
    assert_eq!(log.jobs[2].status, Status::Completed);
    // Pages of the second version, unpacked by gzip.
    let second = of(include_bytes!("data/pyarrow-v2.parquet")).unwrap();
    assert_eq!(second.jobs, log.jobs);
    let third = of(include_bytes!("data/pyarrow-zstd.parquet")).unwrap();
    assert_eq!(third.jobs, log.jobs);
}

/// A file of polars (2.1.0, `write_parquet` as it comes): Zstandard, unsigned and short numbers, categories, a column of nulls
/// and one of lists that we do not know.
#[test]
fn a_table_of_polars() {
    let log = of(include_bytes!("data/polars.parquet")).unwrap();
    assert_eq!(log.jobs.len(), 60);
    for (at, job) in (0u64..).zip(&log.jobs) {
        assert_eq!((job.number, job.submit_s, job.processors), (at + 1, at * 7, 1 << (at % 8)));
        // 60.5 seconds and more: what took part of a second took one.
        assert_eq!((job.ran_s(), job.nodes), (61 + at, None));
        assert_eq!(job.waited_s, (at % 3 != 0).then_some(at));
        assert_eq!((job.asked, job.request_s), (at % 2 == 1, if at % 2 == 1 { 3600 } else { 61 + at }));
        assert_eq!(log.names.users[&job.user.unwrap()], ["alice", "bob", "çelik"][at as usize % 3]);
        let name = job.executable.map(|executable| log.names.executables[&executable].clone());
        assert_eq!(name, (at % 4 != 0).then(|| format!("run{}", at % 5)));
        assert_eq!(job.status, if at % 2 == 1 { Status::Completed } else { Status::Timeout });
    }
}

#[test]
fn tables_of_others_need_few_columns() {
    let log = of(b"submit_seconds,processors,run_seconds,colour\n10,4,5.5,red\n0,NaN,3,blue\n-1,2,3,x\n5,2,y,z\n6,1,2\n").unwrap();
    let told: Vec<_> =
        log.jobs.iter().map(|job| (job.number, job.submit_s, job.run_s, job.processors)).collect();
    assert_eq!(told, [(5, 6, 2, 1), (1, 10, 6, 4)]);
    let repairs = log.repairs;
    assert_eq!(
        (repairs.no_processors, repairs.unreadable, repairs.odd_length, repairs.out_of_order),
        (1, 2, 1, 1)
    );
    let said = forced(b"submit_seconds,colour\n", Format::Csv).unwrap_err().to_string();
    assert!(said.contains("line 1: no column says") && said.contains("run_seconds"), "{said}");
}

#[test]
fn hostile_csv_is_refused_or_counted() {
    let head = "job,submit_seconds,run_seconds,processors\n";
    let unreadable = |row: &str| {
        let log = of(format!("{head}{row}\n1,0,1,1\n").as_bytes()).unwrap();
        (log.repairs.left_out(), log.jobs.len())
    };
    for row in [
        "1,-5,1,1",
        "1,0,-7,1",
        "1,1e30,1,1",
        "1,0,inf,1",
        "1,0,99999999999999999999999,1",
        "1,NaN,1,1",
        "1,0,0,1",
        "1,0,1,0",
        "1,0,1,4294967296",
        "1,0,1,x",
        "\"1,0,1,1",
        "1",
        ",,,",
    ] {
        assert_eq!(unreadable(row), (1, 1), "{row}");
    }
    let long = format!("{head}1,0,1,{}\n", "1".repeat(100_000));
    assert!(matches!(of(long.as_bytes()), Err(LogError::LineTooLong { line: 2, format: Format::Csv })));
}

#[test]
fn hostile_parquet_is_refused() {
    let good = written(&small(), Format::Parquet);
    let broken = |bytes: &[u8]| assert!(forced(bytes, Format::Parquet).is_err());
    broken(b"");
    broken(b"PAR1");
    broken(b"PAR1PAR1");
    broken(b"PAR1\xff\xff\xff\xffPAR1");
    broken(b"PAR1\0\0\0\0PAR1");
    broken(b"not parquet at all");
    broken(&good[..good.len() / 2]);
    broken(&good[..good.len() - 1]);
    broken(&good[4..]);
    broken(&[&good[..4], &good[good.len() / 2..]].concat());
    let said = of(&good[..good.len() - 9]).unwrap_err().to_string();
    assert!(said.contains("cut off or damaged"), "{said}");
}

/// Every byte of a file changed in turn: a log or an error.
#[test]
fn damaged_parquet_is_a_log_or_an_error() {
    let good = written(&small(), Format::Parquet);
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] = [0, 0x7f, 0xff, good[at] ^ 1][at % 4];
        if let Ok(log) = forced(&bytes, Format::Parquet) {
            assert!(log.jobs.len() <= 2, "byte {at}");
        }
    }
}

fn option(most: u64) -> impl Strategy<Value = Option<u64>> {
    prop::option::of(0..=most)
}

fn jobs() -> impl Strategy<Value = Job> {
    let numbers =
        (0u64..1000, 0u64..1 << 36, option(1 << 36), 1u64..1 << 20, 0u64..1 << 20, 1u32..100_000_000);
    let rest = (
        option(1 << 50),
        prop::option::of(1u32..9),
        prop::option::of(0u32..4),
        prop::option::of(0u32..4),
        0usize..8,
    );
    (numbers, rest).prop_map(
        |((number, submit_s, waited_s, ran, request, processors), (memory, asked, user, list, status))| {
            let asked_for = request > 0;
            let request_s = if asked_for { request } else { ran };
            Job {
                number,
                submit_s,
                waited_s,
                run_s: ran.min(request_s),
                overran_s: ran.saturating_sub(request_s),
                request_s,
                asked: asked_for,
                processors,
                used_memory_kib: memory,
                requested_processors: asked,
                user,
                node_list: list.map(|list| list + 1),
                status: Status::ALL[status],
                ..Job::default()
            }
        },
    )
}

proptest! {
    #[test]
    fn both_are_read_as_they_were_written(
        mut jobs in prop::collection::vec(jobs(), 1..60),
        names in prop::collection::vec("\\PC{1,8}", 4),
        fast in any::<bool>(),
    ) {
        jobs.sort_by_key(|job| job.submit_s);
        let name = |number: u32| (number, format!("x{}", names[number as usize % 4]));
        let names = Names {
            users: (0..4).map(name).collect(),
            node_lists: jobs.iter().filter_map(|job| job.node_list).map(name).collect(),
            ..Names::default()
        };
        let log = Log { jobs, names, ..Log::default() };
        let format = if fast { Format::Csv } else { Format::Parquet };
        let again = of(&written(&log, format)).unwrap();
        // Lists of nodes are numbered anew.
        let lists = |log: &Log| -> Vec<Option<String>> {
            log.jobs.iter().map(|job| job.node_list.map(|list| log.names.node_lists[&list].clone())).collect()
        };
        prop_assert_eq!(lists(&again), lists(&log));
        let plain = |log: &Log| log.jobs.iter().map(|job| Job { node_list: None, ..*job }).collect::<Vec<_>>();
        prop_assert_eq!(plain(&again), plain(&log));
        let used = |log: &Log| log.jobs.iter().filter_map(|job| job.user).map(|user| log.names.users[&user].clone()).collect::<Vec<_>>();
        prop_assert_eq!(used(&again), used(&log));
    }

    #[test]
    fn any_bytes_are_a_table_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = csv::read(&bytes[..], usize::MAX);
        let _ = parquet::read(&bytes[..], usize::MAX);
        let framed = [b"PAR1", &bytes[..], &(bytes.len() as u32).to_le_bytes(), b"PAR1"].concat();
        let _ = parquet::read(&framed[..], usize::MAX);
    }
}
