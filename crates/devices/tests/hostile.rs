//! Files that are damaged, cut off, or no measurements at all: errors with the line, never a panic, and no more memory than
//! the limits allow. Seeds of failures are printed by proptest.

use proptest::prelude::*;
use std::io::{self, BufRead, BufReader, Read};
use tidepool_devices::trace::{LINE_MAX, TraceError, measured, mqsim, seeks, specs};
use tidepool_sim::Time;

fn refused<T: std::fmt::Debug>(read: Result<T, TraceError>, said: &str) {
    let error = read.expect_err(said).to_string();
    assert!(error.contains(said), "'{error}' should tell '{said}'");
}

#[test]
fn measured_requests() {
    let of = |text: &str| measured::read(text.as_bytes());
    let good = "W Hit    4583176   4    663.00000  45422.00000\r\n\nR Miss 0 1 0 0\n";
    let read = of(good).unwrap();
    assert_eq!(
        (read.len(), read[0].request.sector, read[0].service_us, read[0].gap_us),
        (2, 4_583_176, 663.0, 45_422.0)
    );
    for word in ["Doub", "Trip"] {
        assert_eq!(
            of(&format!("W {word} 564347 2 14095.37 13876.27\n")).unwrap()[0].request.sectors,
            2,
            "{word}"
        );
    }
    let line = "R Hit 1 4 10 20\n";
    for (text, said) in [
        ("R Hit 1 4 10", "line 2: 'R Hit 1 4 10'"),
        ("R Hit 1 4 10 20 30", "line 2: 'R Hit 1 4 10 20 30'"),
        ("r Hit 1 4 10 20", "line 2: direction 'r': R or W"),
        ("R Maybe 1 4 10 20", "line 2: cache 'Maybe': Hit, Miss, Doub, Trip"),
        ("R Hit -1 4 10 20", "line 2: block address '-1': 0 to"),
        ("R Hit 99999999999999999999999 4 10 20", "line 2: block address"),
        ("R Hit 1 0 10 20", "line 2: sectors '0': 1 to"),
        ("R Hit 1 4000000000 10 20", "line 2: sectors '4000000000'"),
        ("R Hit 1 4 -10 20", "line 2: service time '-10': 0 to"),
        ("R Hit 1 4 1e99 20", "line 2: service time '1e99'"),
        ("R Hit 1 4 10 NaN", "line 2: gap 'NaN'"),
        ("R Hit 1 4 10 -0.5", "line 2: gap '-0.5'"),
        ("R Hit 1 4 10 2\0", "line 2: gap '2\\u{0}'"),
    ] {
        refused(of(&format!("{line}{text}\n{line}")), said);
    }
    refused(of(""), "there are no requests in it");
    refused(of(&"R ".repeat(LINE_MAX)), "line 1 has more than");
    refused(measured::read(&[0x1f, 0x8b, 8, 0, 10][..]), "line 1: it is compressed");
    refused(measured::read(&[b'R', 0xff, 0xfe, b'\n'][..]), "line 1: it is no text");
}

#[test]
fn seek_times() {
    let of = |text: &str| seeks::read(text.as_bytes());
    assert_eq!(of("Seek distances measured: 2\n1,\t1.24500\n5, 2\n").unwrap(), [(1, 1_245.0), (5, 2_000.0)]);
    assert_eq!(of("3, 1.5").unwrap(), [(3, 1_500.0)]);
    for (text, said) in [
        ("Seek distances measured: 3\n1, 1\n2, 2\n", "line 1: 3 distances are announced and 2 follow"),
        ("Seek distances measured: x\n1, 1\n", "line 1: distances 'x'"),
        ("Seek distances measured: 99999999999\n", "line 1: distances"),
        ("1, 1\n1, 2\n", "line 2: 1 cylinders after 1: distances rise"),
        ("5, 1\n2, 2\n", "line 2: 2 cylinders after 5"),
        ("0, 1\n", "line 1: cylinders '0': 1 to"),
        ("-3, 1\n", "line 1: cylinders '-3'"),
        ("1, -1\n", "line 1: milliseconds '-1': 0 to"),
        ("1, inf\n", "line 1: milliseconds 'inf'"),
        ("1 2\n", "line 1: '1 2': 'CYLINDERS, MILLISECONDS' is expected"),
        ("1, 2, 3\n", "line 1: milliseconds '2, 3'"),
        ("\0\0\0\n", "line 1:"),
        ("", "there are no seek times in it"),
        ("Seek distances measured: 2\n", "there are no seek times in it"),
    ] {
        refused(of(text), said);
    }
}

#[test]
fn specifications() {
    let of = |text: &str| specs::read(text.as_bytes());
    let good = of("disk X {\n  Model = source x.model,\n  Avg sectors per cylinder = 1786,\n Segment size (in blks) = 374\n}").unwrap();
    assert_eq!(
        (good.sectors_per_cylinder, good.segment_sectors, good.segments),
        (Some(1_786), Some(374), None)
    );
    for (text, said) in [
        ("", "there are no keys of a disk's specification"),
        ("hello\n", "there are no keys"),
        ("Avg sectors per cylinder = 0,", "line 1: sectors per cylinder '0': 1 to"),
        ("Avg sectors per cylinder = -5,", "line 1: sectors per cylinder '-5'"),
        ("Avg sectors per cylinder = 1.5,", "line 1: sectors per cylinder '1.5'"),
        ("Avg sectors per cylinder = ,", "line 1: sectors per cylinder ''"),
        ("\nNumber of buffer segments = 99999999999", "line 2: segments '99999999999'"),
        ("Number of buffer segments = many", "line 1: segments 'many'"),
        ("Segment size (in blks) = 1e9,", "line 1: sectors of a segment '1e9'"),
        (
            "Segment size (in blks) = 5\nSegment size (in blks) = 5",
            "line 2: 'Segment size (in blks)' for the second time",
        ),
        ("Segment size (in blks) = 5\0", "line 1: sectors of a segment '5\\u{0}'"),
    ] {
        refused(of(text), said);
    }
    refused(of(&"x\n".repeat(20_000)), "more than 10000 lines");
    refused(of(&"=".repeat(LINE_MAX + 1)), "line 1 has more than");
}

#[test]
fn arrivals() {
    let of = |text: &str| mqsim::read(text.as_bytes());
    let read = of("20 4 264719034 16 0\n10 3 5 8 1\n").unwrap();
    assert_eq!((read[0].at, read[0].device, read[1].request.sector), (Time(10), 3, 264_719_034));
    let line = "1 0 0 8 1\n";
    for (text, said) in [
        ("1 0 0 8", "line 2: '1 0 0 8': 'ARRIVAL_NS DEVICE LBA SECTORS TYPE' is expected"),
        ("1 0 0 8 1 1", "line 2: '1 0 0 8 1 1'"),
        ("-1 0 0 8 1", "line 2: arrival '-1': 0 to"),
        ("99999999999999999999 0 0 8 1", "line 2: arrival"),
        ("9223372036854775807 0 0 8 1", "line 2: arrival"),
        ("1.5 0 0 8 1", "line 2: arrival '1.5'"),
        ("1 -1 0 8 1", "line 2: device '-1'"),
        ("1 0 18446744073709551615 8 1", "line 2: block address"),
        ("1 0 0 0 1", "line 2: sectors '0'"),
        ("1 0 0 8 2", "line 2: type '2': 0 (write) or 1 (read)"),
        ("1 0 0 8 read", "line 2: type 'read'"),
        ("1 0 0 8\0 1", "line 2: sectors '8\\u{0}'"),
    ] {
        refused(of(&format!("{line}{text}\n")), said);
    }
    refused(of("\n\n"), "there are no requests in it");
    refused(of(&"1 ".repeat(LINE_MAX)), "line 1 has more than");
}

/// A file without end and without line ends is refused as soon as the first line is too long.
#[test]
fn endless_lines_take_no_memory() {
    struct Counted(u64);
    impl Read for Counted {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            bytes.fill(b'7');
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
    }
    let mut endless = BufReader::new(Counted(0));
    refused(measured::read(&mut endless), "line 1 has more than");
    refused(seeks::read(&mut endless), "line 1 has more than");
    refused(specs::read(&mut endless), "line 1 has more than");
    refused(mqsim::read(&mut endless), "line 1 has more than");
    assert!(endless.get_ref().0 < 1 << 20, "{} bytes were read", endless.get_ref().0);
}

/// What an archive that is cut off does: an error of the reader's, with the line.
#[test]
fn errors_of_reading_are_told_with_the_line() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "corrupt deflate stream"))
        }
    }
    let cut = BufReader::new("R Hit 1 4 10 20\n".as_bytes().chain(Broken));
    refused(measured::read(cut), "line 2: corrupt deflate stream");
}

fn field() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("R".to_string()),
        Just("W".to_string()),
        Just("Hit".to_string()),
        (-2i64..100).prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        "[a-z,=\\x00]{1,3}",
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = measured::read(&bytes[..]);
        let _ = seeks::read(&bytes[..]);
        let _ = specs::read(&bytes[..]);
        let _ = mqsim::read(&bytes[..]);
    }

    /// Numbers of all kinds in all places: what is read is within its limits.
    #[test]
    fn odd_lines_are_within_limits_or_refused(
        lines in prop::collection::vec(prop::collection::vec(field(), 1..8), 1..8),
        separator in prop_oneof![Just(" "), Just(", ")],
    ) {
        let text: Vec<String> = lines.iter().map(|line| line.join(separator)).collect();
        let text = text.join("\n");
        if let Ok(all) = measured::read(text.as_bytes()) {
            for one in all {
                prop_assert!(one.request.sectors > 0 && one.service_us >= 0.0 && one.gap_us >= 0.0);
            }
        }
        if let Ok(all) = mqsim::read(text.as_bytes()) {
            prop_assert!(all.is_sorted_by_key(|one| one.at));
            prop_assert!(all.iter().all(|one| one.at <= Time::MAX && one.request.sectors > 0));
        }
        if let Ok(all) = seeks::read(text.as_bytes()) {
            prop_assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
        let _ = BufRead::lines(text.as_bytes()).count() + usize::from(specs::read(text.as_bytes()).is_ok());
    }
}
