//! What each format's lines mean, as the requests that come of them.

use tidepool_io_traces::recorded::{self, Header, put_end, put_file, put_request};
use tidepool_io_traces::{Format, Op, Options, Trace, read};

fn of(format: Format, text: &str, options: &Options) -> Trace {
    read(format, text.as_bytes(), options).unwrap_or_else(|error| panic!("{format}: {error}"))
}

/// As written, without the first line.
fn written(trace: &Trace) -> Vec<String> {
    let mut out = Vec::new();
    trace.write(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    assert_eq!(first, "# rank time op file offset length");
    rest.lines().map(String::from).collect()
}

fn lines(format: Format, text: &str) -> Vec<String> {
    written(&of(format, text, &Options::default()))
}

#[test]
fn iosig_keeps_the_order_of_each_rank() {
    let text = "\
# rank order time op file offset length
1 12 100.5   MPI_File_write_at_all out 4096 4096   # lines need no order
1 11 100.25  MPI_File_open         out 0    0
0 1  100.25  open                  a%20b 0  0
0 2  100.25  read                  a%20b 0  1073741825
0 3  100.75  lseek                 a%20b 5  0
0 4  101     close                 a%20b 7  9
";
    let trace = of(Format::Iosig, text, &Options::default());
    assert_eq!(
        written(&trace),
        [
            "0 0.000000000 open a%20b 0 0",
            "0 0.000000000 read a%20b 0 1073741824",
            "0 0.000000000 read a%20b 1073741824 1",
            "1 0.000000000 open out 0 0",
            "1 0.250000000 write out 4096 4096",
            "0 0.750000000 close a%20b 0 0",
        ]
    );
    assert_eq!(trace.ignored.iter().map(|(why, n)| (why.as_str(), *n)).collect::<Vec<_>>(), [("lseek", 1)]);
}

#[test]
fn blkparse_prefers_what_was_queued() {
    let text = "\
  8,0    1        1     0.000000000   697  Q  WS 2048 + 8 [writer]
  8,0    1        2     0.000001000   697  G  WS 2048 + 8 [writer]
  8,0    1        3     0.000002000     0  D  WS 2048 + 8 [swapper/0]
  8,0    0        1     0.001000000     9  C  WS 2048 + 8 [0]
  8,16   0        2     0.002000000   698  Q   R 16 + 1 [reader]
  8,0    0        3     0.003000000   697  Q FWS [writer]
  8,0    0        4     0.003500000   697  Q   D 0 + 4096 [fstrim]
CPU0 (8,0):
 Reads Queued:           1,        0KiB  Writes Queued:           1,        4KiB
";
    assert_eq!(
        lines(Format::Blkparse, text),
        [
            "0 0.000000000 write device8,0 1048576 4096",
            "1 0.002000000 read device8,16 8192 512",
            "0 0.003000000 fsync device8,0 0 0",
        ]
    );
    let issued: String =
        text.lines().filter(|line| !line.contains("  Q ")).map(|line| format!("{line}\n")).collect();
    assert_eq!(lines(Format::Blkparse, &issued), ["0 0.000000000 write device8,0 1048576 4096"]);
}

#[test]
fn requests_of_devices_are_dealt_to_lanes() {
    let two = Options { lanes: 2, ..Options::default() };
    let trace = of(Format::Mqsim, "100 0 8 8 1\n400 0 16 8 0\n300 1 0 1 1\n200 0 0 1 1\n", &two);
    assert_eq!(
        written(&trace),
        [
            "0 0.000000000 read device0 4096 4096",
            "0 0.000000100 read device0 0 512",
            "2 0.000000200 read device1 0 512",
            "1 0.000000300 write device0 8192 4096",
        ]
    );
    assert_eq!(trace.notes["lines put in the order of time"], 2);
    let text = "\
Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime
128166372003061629,hm,1,Read,1416192,32768,1331
128166372003061639,hm,1,write,0,512,1331
128166372003061649,hm,0,Write,512,512,1331
";
    assert_eq!(
        lines(Format::Msr, text),
        [
            "0 0.000000000 read hm.1 1416192 32768",
            "1 0.000001000 write hm.1 0 512",
            "2 0.000002000 write hm.0 512 512",
        ]
    );
}

#[test]
fn darshan_counts_the_lowest_level() {
    let head = "# darshan log version: 3.41\n\n# DXT, file_id: 9, file_name: /scratch/a b\n# DXT, rank: 1, hostname: n\n\
                # Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)\n";
    let mpiio = " X_MPIIO       1  write        0               0         8192    0.5000      0.6000\n";
    let posix = " X_POSIX       1  write        0               0         4096    0.5100      0.5500  [  3]\n \
                 X_POSIX       0   read        1            4096         4096    0.7500      0.8000\n";
    let stdout = "# DXT, file_id: 10, file_name: <STDOUT>\n X_POSIX 0 write 0 0 10 -0.0000 0.2\n";
    let trace = of(Format::DarshanDxt, &format!("{head}{mpiio}{posix}{stdout}"), &Options::default());
    let expected =
        ["1 0.000000000 write /scratch/a%20b 0 4096", "0 0.240000000 read /scratch/a%20b 4096 4096"];
    assert_eq!(written(&trace), expected);
    assert_eq!(trace.ignored["requests told again at another level"], 1);
    assert_eq!(trace.ignored["requests to files of the system, or not asked for"], 1);
    assert_eq!(
        lines(Format::DarshanDxt, &format!("{head}{mpiio}")),
        ["1 0.000000000 write /scratch/a%20b 0 8192"]
    );
}

/// As Open MPI has it, with storage targets or threads behind, and as releases before 3.2.1 print MPI-IO.
#[test]
fn requests_that_do_not_say_where_they_went_are_left_out_and_counted() {
    let head = "# DXT, file_id: 9, file_name: /out\n# DXT, rank: 0, hostname: n\n";
    let posix = " X_POSIX       0  write        0               0         4096    0.5100      0.5500";
    let minus = " X_MPIIO       0  write        0              -1         4096    0.5000      0.5600";
    let bare = " X_MPIIO       0  write        0         4096    0.5000      0.5600";
    let other = " X_MPIIO       1   read        1            8192         4096    0.9000      0.9100";
    let expected = ["0 0.000000000 write /out 0 4096"];
    for more in ["", "  100", "  [  3]", "  [  3] [  4]  77"] {
        for (without, why) in [(minus, "told as -1"), (bare, "no such column")] {
            let text = format!("{head}{without}{more}\n{posix}{more}\n{without}{more}\n");
            let trace = of(Format::DarshanDxt, &text, &Options::default());
            assert_eq!(written(&trace), expected, "{text}");
            let (told, count) = trace.ignored.iter().next().unwrap();
            assert!(told.contains(why) && *count == 2, "{told}: {count}");
            // Where there are none of POSIX, those of MPI-IO that say where they went.
            let text = format!("{head}{without}{more}\n{other}{more}\n");
            assert_eq!(lines(Format::DarshanDxt, &text), ["1 0.000000000 read /out 8192 4096"], "{text}");
        }
    }
    // A POSIX call is no better.
    let text = format!("{head}{}\n{posix}\n", posix.replace("  0         4096", " -1         4096"));
    assert_eq!(lines(Format::DarshanDxt, &text), expected);
}

/// Times are left out: each line is a second behind the one before.
fn strace(calls: &[&str]) -> Vec<String> {
    let text: String = calls
        .iter()
        .enumerate()
        .map(|(n, call)| {
            let (pid, call) = call.split_once(' ').unwrap();
            format!("{pid} {}.000000 {call}\n", 1_700_000_000 + n)
        })
        .collect();
    let shorter = |line: &String| {
        let words: Vec<&str> = line.split(' ').collect();
        [&words[..1], &words[2..]].concat().join(" ")
    };
    lines(Format::Strace, &text).iter().map(shorter).collect()
}

#[test]
fn copies_of_a_descriptor_share_its_offset() {
    let seen = strace(&[
        r#"7 openat(AT_FDCWD, "/d/x", O_RDWR) = 3"#,
        r#"7 dup(3) = 5"#,
        r#"7 dup2(5, 9) = 9"#,
        r#"7 fcntl(3, F_DUPFD_CLOEXEC, 20) = 20"#,
        r#"7 read(3, "", 10) = 10"#,
        r#"7 read(5, "", 10) = 10"#,
        r#"7 close(3) = 0"#,
        r#"7 read(20, "", 10) = 4"#,
        r#"7 close(5) = 0"#,
        r#"7 close(9) = 0"#,
        r#"7 close(20) = 0"#,
        r#"7 read(20, "", 10) = 4"#,
    ]);
    assert_eq!(
        seen,
        ["0 open /d/x 0 0", "0 read /d/x 0 10", "0 read /d/x 10 10", "0 read /d/x 20 4", "0 close /d/x 0 0"]
    );
}

#[test]
fn children_and_threads_inherit() {
    let seen = strace(&[
        r#"7 openat(AT_FDCWD, "/d/x", O_RDWR|O_CLOEXEC) = 3"#,
        r#"7 openat(AT_FDCWD, "/d/y", O_RDWR) = 4"#,
        // The child runs before its parent's fork is told.
        "7 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD <unfinished ...>",
        r#"8 write(4, "", 10) = 10"#,
        "7 <... clone resumed>) = 8",
        r#"7 write(4, "", 5) = 5"#,
        // A thread has the same table: what it opens and closes is open and closed for all.
        "7 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, stack=0x1}, 88) = 9",
        r#"9 openat(AT_FDCWD, "/d/z", O_WRONLY) = 5"#,
        "9 close(4) = 0",
        r#"7 write(5, "", 3) = 3"#,
        r#"7 write(4, "", 3) = 3"#,
        // Its end closes nothing.
        "9 exit(0) = ?",
        r#"7 write(5, "", 2) = 2"#,
        // exec closes what is marked.
        r#"8 execve("/p", ["p"], 0x1 /* 2 vars */) = 0"#,
        r#"8 write(3, "", 9) = 9"#,
        r#"8 write(4, "", 9) = 9"#,
        "8 close(4) = 0",
    ]);
    assert_eq!(
        seen,
        [
            "0 open /d/x 0 0",
            "0 open /d/y 0 0",
            "1 write /d/y 0 10",
            "0 write /d/y 10 5",
            "2 open /d/z 0 0",
            "0 write /d/z 0 3",
            "0 write /d/z 3 2",
            "1 write /d/y 15 9",
            "1 close /d/y 0 0",
        ]
    );
}

#[test]
fn offsets_follow_seeks_appends_and_copies() {
    let seen = strace(&[
        r#"7 open("/d/x", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3"#,
        r#"7 write(3, "", 100) = 100"#,
        "7 lseek(3, 1000, SEEK_SET) = 1000",
        r#"7 writev(3, [{iov_base="", iov_len=3}, {iov_base="", iov_len=4}], 2) = 7"#,
        r#"7 pwrite64(3, "", 5, 50) = 5"#,
        r#"7 pwritev2(3, [{iov_base="", iov_len=3}], 1, -1, 0) = 3"#,
        r#"7 openat(AT_FDCWD, "/d/x", O_WRONLY|O_APPEND) = 4"#,
        r#"7 write(4, "", 2) = 2"#,
        r#"7 ftruncate(4</d/x>, 10) = 0"#,
        r#"7 write(4, "", 2) = 2"#,
        r#"7 openat(AT_FDCWD, "/d/y", O_RDWR) = 5"#,
        "7 copy_file_range(5, NULL, 4, NULL, 100, 0) = 30",
        r#"7 read(5, "", 1) = 1"#,
        "7 sendfile(4, 5, NULL, 8) = 8",
        r#"7 read(5, "", 1) = -1 EIO (Input/output error)"#,
        "7 fdatasync(5) = 0",
    ]);
    assert_eq!(
        seen[1..],
        [
            "0 write /d/x 0 100",
            "0 write /d/x 1000 7",
            "0 write /d/x 50 5",
            "0 write /d/x 1007 3",
            "0 open /d/x 0 0",
            "0 write /d/x 1010 2",
            "0 write /d/x 10 2",
            "0 open /d/y 0 0",
            "0 read /d/y 0 30",
            "0 write /d/x 12 30",
            "0 read /d/y 30 1",
            "0 read /d/y 31 8",
            "0 write /d/x 42 8",
            "0 fsync /d/y 0 0",
        ]
    );
}

#[test]
fn clock_times_go_on_behind_midnight() {
    let text = "7 23:59:59.500000 write(3</d/x>, \"\", 1) = 1\n7 00:00:01 write(3</d/x>, \"\", 1) = 1\n";
    let trace = of(Format::Strace, text, &Options::default());
    assert_eq!(trace.span(), 1_500_000_000);
    assert_eq!(trace.notes["requests at offsets that were not seen: counted from 0"], 2);
    let other = Options { under: vec!["/e".into(), "/d/x/".into()], ..Options::default() };
    assert_eq!(of(Format::Strace, text, &other).requests.len(), 2);
}

#[test]
fn recordings_are_written_and_read_byte_for_byte() {
    let mut out = Vec::new();
    let header = Header {
        pool: "9662f9131929ae2b2835786e839b9158",
        host: "node1",
        process: 4804,
        rank: Some(0),
        boot: "38228063-92ed-4622-87c0-6e19f31bb346",
        monotonic: 25_802_775_033_557,
        real: 1_795_440_965_506_404_679,
    };
    header.put(&mut out);
    put_file(&mut out, 2, b"/out/big");
    put_request(&mut out, Op::Open, 2, (25_802_759_153_841, 814_018), (0, 0));
    put_request(&mut out, Op::Write, 2, (25_802_760_196_098, 1_252_560), (0, 65_536));
    put_request(&mut out, Op::Read, 2, (25_802_760_396_098, 90_000), (0, 65_536));
    put_request(&mut out, Op::Fsync, 2, (25_802_762_425_808, 12_264_469), (0, 0));
    put_request(&mut out, Op::Close, 2, (25_802_774_751_378, 76_353), (0, 0));
    put_end(&mut out);
    let spec = include_str!("../../../docs/formats/30-recorded-io.md");
    let example = spec.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), example);
    assert_eq!(
        lines(Format::Tidepool, example),
        [
            "0 0.000000000 open /out/big 0 0",
            "0 0.001042257 write /out/big 0 65536",
            "0 0.001242257 read /out/big 0 65536",
            "0 0.003271967 fsync /out/big 0 0",
            "0 0.015597537 close /out/big 0 0",
        ]
    );
}

#[test]
fn recordings_of_many_processes_have_one_clock_and_one_set_of_names() {
    // Node a's second process was started when real time had been set back by an hour; node b has a clock of its own.
    let a0 = "tidepool-io 1 p a 10 1 boot-a 1000 5000000000000\nfile 2 /x\nopen 2 2000 1\nwrite 2 3000 1 0 8\nend\n";
    let a1 = "tidepool-io 1 p a 11 - boot-a 4000 1400000000000\nwrite 2 2500 1 8 8\nfile 3 /x\nopen 3 5000 1\nend\n";
    let b = "tidepool-io 1 p b 10 0 boot-b 7000 5000000000500\nread 2 7000 1 0 8\n";
    let trace = of(Format::Tidepool, &format!("{a0}{a1}{b}"), &Options::default());
    assert_eq!(
        written(&trace),
        [
            // What the second node read is 500 ns behind the first one's beginning, 500 before its first request.
            "0 0.000000000 read /x 0 8",
            "1 0.000000500 open /x 0 0",
            "2 0.000001000 write /x 8 8",
            "1 0.000001500 write /x 0 8",
            "2 0.000003500 open /x~2 0 0",
        ]
    );
    assert_eq!(trace.notes["recordings without an end: what the process did last is missing"], 1);
    // Several files, in any order of processes, are one trace.
    let mut all = recorded::Recordings::default();
    [a0, b, a1].iter().for_each(|text| all.add(text.as_bytes()).unwrap());
    assert_eq!(written(&all.end().unwrap()), written(&trace));
}
