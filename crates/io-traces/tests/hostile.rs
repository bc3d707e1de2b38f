//! What is wrong with a trace is told with its line; nothing makes a reader panic, or take memory without bound.

use proptest::prelude::*;
use tidepool_io_traces::{Format, LINE_MAX, Options, Trace, detect, read};

/// A good trace of each format.
const GOOD: [(Format, &str); 7] = [
    (
        Format::Iosig,
        "# rank order time op file offset length\n0 0 0.5 open f 0 0\n0 1 0.75 write f 0 4096\n1 0 0.5 MPI_File_read_at f 8 100\n",
    ),
    (
        Format::Strace,
        "7 1700000000.000001 openat(AT_FDCWD</d>, \"x\", O_RDWR|O_CREAT, 0666) = 3</d/x>\n\
         7 1700000000.000100 write(3</d/x>, \"\"..., 4096) = 4096 <0.000010>\n\
         7 1700000000.000200 close(3</d/x>) = 0\n",
    ),
    (
        Format::Blkparse,
        "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n  8,0    3        2     0.000001829   697  Q   R 223490 + 8 [kjournald]\n",
    ),
    (Format::Mqsim, "0 0 1024 8 1\n1000 0 2048 16 0\n"),
    (
        Format::Msr,
        "128166372003061629,hm,1,Read,1416192,32768,1331\n128166372003061999,hm,1,Write,1416192,512,1331\n",
    ),
    (
        Format::DarshanDxt,
        "# DXT, file_id: 1, file_name: /d/x\n# DXT, rank: 0, hostname: n\n X_POSIX 0 write 0 0 262144 0.0029 0.0032\n X_POSIX 0 read 0 0 4096 0.0129 0.0132\n",
    ),
    (
        Format::Tidepool,
        "tidepool-io 1 p h 7 - b 1000 1700000000000000000\nfile 2 /x\nopen 2 2000 5\nwrite 2 3000 5 0 4096\nend\n",
    ),
];

fn of(format: Format, text: &[u8]) -> Result<Trace, String> {
    read(format, text, &Options::default()).map_err(|error| error.to_string())
}

/// Text and what its error begins with and holds.
type Case = (&'static str, &'static str, &'static str);

fn each(format: Format, cases: &[Case]) {
    assert!(cases.len() >= 10, "{format}: {} cases", cases.len());
    for (text, line, why) in cases {
        let told = of(format, text.as_bytes()).expect_err(text);
        assert!(told.starts_with(line) && told.contains(why), "{format}: {text:?}: {told}");
        assert!(told.len() < 400, "{format}: {told}");
    }
}

#[test]
fn good_traces_are_read() {
    for (format, text) in GOOD {
        assert_eq!(detect(text.as_bytes()), Some(format));
        let trace = of(format, text.as_bytes()).unwrap();
        let bytes: u64 = trace.requests.iter().map(|request| request.length).sum();
        assert!(
            bytes >= 4096 && trace.requests[0].at == 0 && trace.ignored.is_empty(),
            "{format}: {trace:?}"
        );
    }
}

#[test]
fn iosig_hostile() {
    each(
        Format::Iosig,
        &[
            ("", "it has no request", ""),
            (
                "0 0 0.5 open f 0 0\n0 1 0.75 wri",
                "line 2: ",
                "'RANK ORDER TIME OP FILE OFFSET LENGTH' is expected",
            ),
            ("0 0 0.5 open f 0 0 0", "line 1: ", "is expected"),
            (
                "0 0 5 open f 0 0\n\n0 1 4 close f 0 0",
                "line 3: ",
                "order 1 is earlier than order 0 of line 1",
            ),
            ("0 7 5 open f 0 0\n0 7 5 close f 0 0", "line 2: ", "order 7 twice: also in line 1"),
            ("-1 0 5 open f 0 0", "line 1: ", "rank '-1': 0 to 999999"),
            ("1000000 0 5 open f 0 0", "line 1: ", "rank '1000000'"),
            ("0 99999999999999999999 5 open f 0 0", "line 1: ", "order '99999999999999999999'"),
            ("0 0 -0.5 open f 0 0", "line 1: ", "time '-0.5': seconds from 0"),
            ("0 0 1e300 open f 0 0", "line 1: ", "time '1e300'"),
            ("0 0 0.5 opne f 0 0", "line 1: ", "operation 'opne'"),
            ("0 0 0.5 read f 18446744073709551615 1", "line 1: ", "offset '18446744073709551615'"),
            ("0 0 0.5 read f 0 99999999999999", "line 1: ", "length '99999999999999'"),
            ("0 0 0.5 read f 1152921504606846976 1", "line 1: ", "at most 1152921504606846976"),
            ("0 0 0 read f 0 1\n0 1 2000000 read f 0 1", "line 2: ", "at most 1000000 s"),
            ("\u{0}\u{1}\u{2}", "line 1: ", "no text"),
        ],
    );
}

#[test]
fn strace_hostile() {
    each(
        Format::Strace,
        &[
            ("", "it has no request", ""),
            ("7 write(3</d/x>, \"\", 10) = 10", "line 1: ", "no time stamp; run 'strace -f -ttt -y"),
            ("7 0.000012 write(3</d/x>, \"\", 10) = 10", "line 1: ", "strace -r"),
            (
                "7 1700000000.5 write(3</d/x>, \"\", 10) = 10\n7 1600000000.5 write(3</d/x>, \"\", 10) = 10",
                "line 2: ",
                "process 7 goes back in time",
            ),
            ("7 1700000000.5 pwrite64(3</d/x>, \"\", 10, -5) = 10", "line 1: ", "no offset"),
            (
                "7 1700000000.5 pwrite64(3</d/x>, \"\", 10, 99999999999999999999) = 10",
                "line 1: ",
                "no offset",
            ),
            (
                "7 1700000000.5 pread64(3</d/x>, \"\", 10, 1152921504606846976) = 10",
                "line 1: ",
                "at most 1152921504606846976",
            ),
            (
                "7 1700000000.5 read(3</d/x>, \"\", 10) = 9223372036854775807",
                "line 1: ",
                "a read of 9223372036854775807 bytes",
            ),
            ("7 1700000000.5 write(3</d/x>, \"\", 10", "line 1: ", "this is no call; it has no request"),
            (
                "7 1700000000.5 write(3, \"\", 10) = 10",
                "it has no request that counts",
                "whose opening was not seen",
            ),
            ("7 1700000000.5 write(3</usr/x>, \"\", 10) = 10", "it has no request", ""),
            (
                "7 1700000000.5 read(3</d/x>, \"\", 10) = -1 EIO (Input/output error)",
                "it has no request that counts",
                "1 calls that failed",
            ),
            ("4294967296 1700000000.5 read(3</d/x>, \"\", 10) = 5", "line 1: ", "no call"),
            ("hello\nworld\n", "line 1: ", "this is no call"),
            ("\u{0}\u{1}\u{2}", "line 1: ", "no text"),
        ],
    );
    // A cut result is a number as well: it is read, and told as a note.
    let cut = of(Format::Strace, b"7 1700000000.5 write(3</d/x>, \"\", 10) = 1").unwrap();
    assert_eq!(cut.notes["last line without an end: it may be cut"], 1);
}

#[test]
fn blkparse_hostile() {
    each(
        Format::Blkparse,
        &[
            ("", "it has no request", ""),
            ("8,0 3 1 0.0 697 Q", "line 1: ", "'MAJ,MIN CPU SEQUENCE SECONDS PID ACTION RWBS"),
            ("8,0 3 1 0.0 697 Q W 2234", "line 1: ", "is the line cut?"),
            ("80 3 1 0.0 697 Q W 223490 + 8", "line 1: ", "device '80': two numbers"),
            ("8,-1 3 1 0.0 697 Q W 223490 + 8", "line 1: ", "device '8,-1'"),
            ("8,0 3 1 -0.5 697 Q W 223490 + 8", "line 1: ", "time '-0.5'"),
            ("8,0 3 1 0.5s 697 Q W 223490 + 8", "line 1: ", "time '0.5s'"),
            ("8,0 3 1 0.0 -7 Q W 223490 + 8", "line 1: ", "process '-7'"),
            ("8,0 3 1 0.0 697 Q W 99999999999999999999 + 8", "line 1: ", "sector '9999"),
            ("8,0 3 1 0.0 697 Q W 1 + 99999999999999999999", "line 1: ", "sectors '9999"),
            ("8,0 3 1 0.0 697 Q W 2251799813685248 + 8", "line 1: ", "up to byte"),
            ("8,0 x 1 0.0 697 Q W 1 + 8", "line 1: ", "processor 'x'"),
            ("8,0 3 1 0.0 697 G W 1 + 8", "it has no request that counts", "1 events G"),
            ("8,0 3 1 0.0 697 Q D 1 + 8", "it has no request that counts", "1 discards"),
            ("8,0 3 1 0.0 697 Q R 1 + 8\n8,0 3 1 5000000.0 697 Q R 1 + 8", "line 2: ", "at most 1000000 s"),
            ("\u{0}\u{1}\u{2}", "line 1: ", "no text"),
        ],
    );
}

#[test]
fn mqsim_hostile() {
    each(
        Format::Mqsim,
        &[
            ("", "it has no request", ""),
            ("0 0 1024 8", "line 1: ", "'ARRIVAL_NS DEVICE LBA SECTORS TYPE' is expected"),
            ("0 0 1024 8 1 5", "line 1: ", "is expected"),
            ("0 0 1024 8 2", "line 1: ", "type '2': 0 (write) or 1 (read)"),
            ("-5 0 1024 8 1", "line 1: ", "arrival '-5'"),
            ("99999999999999999999 0 1024 8 1", "line 1: ", "arrival '9999"),
            ("0 -1 1024 8 1", "line 1: ", "device '-1'"),
            ("0 0 99999999999999999999 8 1", "line 1: ", "block address '9999"),
            ("0 0 1024 0 1", "line 1: ", "sectors '0': 1 to"),
            ("0 0 1024 99999999999 1", "line 1: ", "sectors '99999999999'"),
            ("0 0 2251799813685248 8 1", "line 1: ", "up to byte"),
            ("0 0 0 8 1\n4000000000000000000 0 0 8 1", "line 2: ", "at most 1000000 s"),
            ("0 0 1024 8 1\n\u{1}\u{2}", "line 2: ", "is expected"),
        ],
    );
}

#[test]
fn msr_hostile() {
    each(
        Format::Msr,
        &[
            ("", "it has no request", ""),
            ("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n", "it has no request", ""),
            (
                "128166372003061629,hm,1,Read,14161",
                "line 1: ",
                "'Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime'",
            ),
            ("1,hm,1,Read,0,512,5,6", "line 1: ", "is expected"),
            ("-1,hm,1,Read,0,512,5", "line 1: ", "time stamp '-1'"),
            ("999999999999999999999,hm,1,Read,0,512,5", "line 1: ", "time stamp '9999"),
            ("1,hm,x,Read,0,512,5", "line 1: ", "disk 'x'"),
            ("1,,1,Read,0,512,5", "line 1: ", "host ''"),
            ("1,hm,1,Trim,0,512,5", "line 1: ", "type 'Trim': Read or Write"),
            ("1,hm,1,Read,-8,512,5", "line 1: ", "offset '-8'"),
            ("1,hm,1,Read,0,99999999999999,5", "line 1: ", "size '99999999999999'"),
            ("1,hm,1,Read,0,512,-5", "line 1: ", "response time '-5'"),
            ("1,hm,1,Read,1152921504606846976,512,5", "line 1: ", "up to byte"),
            ("1,hm,1,Read,0,0,5", "it has no request that counts", "no bytes"),
            ("1,hm,1,Read,0,512,5\n128166372003061629,hm,1,Read,0,512,5", "line 2: ", "at most 1000000 s"),
        ],
    );
}

#[test]
fn darshan_dxt_hostile() {
    each(
        Format::DarshanDxt,
        &[
            ("", "it has no request", ""),
            ("X_POSIX 0 write 0 0 4096 0.1 0.2", "line 1: ", "the beginning is missing"),
            ("# DXT, file_id: 1\n", "line 1: ", "it names no file"),
            (
                "# DXT, file_id: 1, file_name: /x\nX_POSIX 0 write 0 0 40",
                "line 2: ",
                "'MODULE RANK WT/RD SEGMENT",
            ),
            ("# DXT, file_id: 1, file_name: /x\nX_STDIO 0 write 0 0 40 0 1", "line 2: ", "module 'X_STDIO'"),
            ("# DXT, file_id: 1, file_name: /x\nX_POSIX -1 write 0 0 40 0 1", "line 2: ", "rank '-1'"),
            (
                "# DXT, file_id: 1, file_name: /x\nX_POSIX 0 open 0 0 40 0 1",
                "line 2: ",
                "'open': read or write",
            ),
            ("# DXT, file_id: 1, file_name: /x\nX_POSIX 0 read -3 0 40 0 1", "line 2: ", "segment '-3'"),
            (
                "# DXT, file_id: 1, file_name: /x\nX_POSIX 0 read 0 99999999999999999999 40 0 1",
                "line 2: ",
                "offset '9999",
            ),
            (
                "# DXT, file_id: 1, file_name: /x\nX_POSIX 0 read 0 0 99999999999999 0 1",
                "line 2: ",
                "length '9999",
            ),
            ("# DXT, file_id: 1, file_name: /x\nX_POSIX 0 read 0 0 40 -0.1 1", "line 2: ", "start '-0.1'"),
            ("# DXT, file_id: 1, file_name: /x\nX_POSIX 0 read 0 0 40 nan 1", "line 2: ", "start 'nan'"),
            ("# DXT, file_id: 1, file_name: /x\nX_POSIX 0 read 0 0 40 0.1 inf", "line 2: ", "end 'inf'"),
            (
                "# DXT, file_id: 1, file_name: <STDOUT>\nX_POSIX 0 write 0 0 40 0.1 1",
                "it has no request that counts",
                "files of the system",
            ),
            ("# DXT, file_id: 1, file_name: /x\n\u{0}", "line 2: ", "no text"),
            ("# DXT, file_id: 1, file_name: /x\nX_MPIIO 0 read 0 -2 40 0.1 1.0", "line 2: ", "offset '-2'"),
            ("# DXT, file_id: 1, file_name: /x\nX_MPIIO 0 read 0 -40 0.1 1.0", "line 2: ", "length '-40'"),
            ("# DXT, file_id: 1, file_name: /x\nX_MPIIO 0 read 0 40 0.1", "line 2: ", "is expected"),
            (
                "# DXT, file_id: 1, file_name: /x\nX_MPIIO 0 read 0 -1 40 0.1 1.0\nX_MPIIO 0 read 0 40 0.1 1.0",
                "it has no request that counts",
                "told as -1",
            ),
        ],
    );
}

#[test]
fn recorded_hostile() {
    each(
        Format::Tidepool,
        &[
            ("", "it has no request", ""),
            ("open 2 0 0\n", "line 1: ", "'tidepool-io 1 ...' is expected first"),
            ("tidepool-io 1 p h 7\n", "line 1: ", "POOL HOST PROCESS RANK BOOT"),
            ("tidepool-io 2 p h 7 - b 0 0\n", "line 1: ", "version '2'"),
            ("tidepool-io 1 p h -7 - b 0 0\n", "line 1: ", "process '-7'"),
            ("tidepool-io 1 p h 7 1000000 b 0 0\n", "line 1: ", "rank '1000000'"),
            ("tidepool-io 1 p h 7 - b 99999999999999999999 0\n", "line 1: ", "monotonic time '9999"),
            ("tidepool-io 1 p h 7 - b 0 0\nopen 2 5\n", "line 2: ", "is expected"),
            ("tidepool-io 1 p h 7 - b 0 0\nwrite 2 5 5 0\n", "line 2: ", "is expected"),
            ("tidepool-io 1 p h 7 - b 0 0\nwrite 2 -5 5 0 1\n", "line 2: ", "begin '-5'"),
            ("tidepool-io 1 p h 7 - b 9 0\nwrite 2 5 5 0 1\n", "line 2: ", "before 1970"),
            ("tidepool-io 1 p h 7 - b 0 0\nwrite 2 5 5 99999999999999999999 1\n", "line 2: ", "offset '9999"),
            ("tidepool-io 1 p h 7 - b 0 0\nwrite 2 5 5 0 99999999999999\n", "line 2: ", "length '9999"),
            ("tidepool-io 1 p h 7 - b 0 0\nrename 2 5 5\n", "line 2: ", "is expected"),
            ("tidepool-io 1 p h 7 - b 0 0\nwrite 2 5 5 0 10", "it has no request", ""),
            (
                "tidepool-io 1 p h 7 - b 0 0\nwrite 2 5 5 0 1\nwrite 2 5000000000000000000 5 0 1\n",
                "line 3: ",
                "at most 1000000 s",
            ),
            ("tidepool-io 1 p h 7 - b 0 0\n\u{0}\n", "line 2: ", "no text"),
        ],
    );
}

/// Gives the same line again and again, without holding it more than once.
struct Endless {
    line: &'static [u8],
    at: usize,
    left: u64,
}

impl std::io::Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let part = &self.line[self.at..];
        let n = part.len().min(buf.len());
        buf[..n].copy_from_slice(&part[..n]);
        self.at += n;
        if self.at == self.line.len() {
            (self.at, self.left) = (0, self.left - 1);
        }
        Ok(n)
    }
}

#[test]
fn memory_is_bounded_by_constants() {
    for (format, _) in GOOD {
        // A line without end.
        let endless = Endless { line: b"xxxxxxxxxxxxxxxx", at: 0, left: u64::MAX };
        let told =
            read(format, std::io::BufReader::new(endless), &Options::default()).unwrap_err().to_string();
        assert_eq!(told, format!("line 1: more than {LINE_MAX} bytes: this is no such trace"), "{format}");
    }
    // A request longer than the simulator takes is cut; one that claims a terabyte is not taken for memory.
    let trace = of(Format::Iosig, b"0 0 0 write f 0 1099511627776\n").unwrap();
    assert_eq!((trace.requests.len(), trace.requests[1023].offset), (1024, 1023 << 30));
    // Names of files, each another one.
    let mut many = String::new();
    for n in 0..1_100 {
        many += &format!("{n} 0 0 write {n}{} 0 1\n", "y".repeat(60_000));
    }
    let told = of(Format::Iosig, many.as_bytes()).unwrap_err();
    assert!(
        told.starts_with("line 5") && told.contains("names of files take more than 67108864 bytes"),
        "{told}"
    );
    // Forks of a process with many descriptors.
    let mut forks = String::new();
    for fd in 3..3_000 {
        forks += &format!("1 1700000000.5 openat(AT_FDCWD, \"/d/{fd}\", O_RDONLY) = {fd}\n");
    }
    for child in 2..1_000 {
        forks += &format!("1 1700000000.5 fork() = {child}\n");
    }
    let told = of(Format::Strace, forks.as_bytes()).unwrap_err();
    assert!(
        told.starts_with("line 3") && told.contains("more than 1048576 descriptors open at once"),
        "{told}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Random bytes, and good lines with a few bytes changed, cut or doubled: an error or a trace, never a panic.
    #[test]
    fn nothing_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        twice in any::<bool>(),
    ) {
        for (format, good) in GOOD {
            let _ = of(format, &bytes);
            let mut text = good.as_bytes().to_vec();
            for (at, byte) in &changes {
                let at = at.index(text.len());
                // Digits are the likeliest to be taken for numbers.
                text[at] = if byte % 2 == 0 { b'0' + byte % 10 } else { *byte };
            }
            text.truncate(cut.index(text.len()) + 1);
            let text = if twice { [&text[..], &text].concat() } else { text };
            if let Ok(trace) = of(format, &text) {
                let mut out = Vec::new();
                trace.write(&mut out).unwrap();
                let fits = trace.requests.iter().all(|r| r.rank < trace.ranks && (r.file as usize) < trace.files.len());
                prop_assert!(fits);
                let ordered = trace.requests.windows(2).all(|pair| pair[0].at <= pair[1].at);
                prop_assert!(ordered);
            }
            let _ = detect(&text);
            let _ = detect(&bytes);
        }
    }
}
