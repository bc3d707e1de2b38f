//! The Standard Workload Format: what archives have, each fault and its repair, and what is no log.

use proptest::prelude::*;
use tidepool_joblog::{
    Job, LINE_MAX, Log, LogError, Options, PROCESSORS_MAX, Repairs, SECONDS_MAX, Status, read, swf,
};

fn of(text: &str) -> Result<Log, LogError> {
    swf::read(text.as_bytes(), usize::MAX)
}

#[test]
fn a_log_as_the_archive_has_it() {
    let text = "; Version: 2.2\n;\t MaxNodes: 338 (batch partition)\n; MaxProcs: 400\n\n\
        2 50 0 10 4 552.21 -1 4 100 -1 1 1 1 -1 -1 -1 -1 -1\r\n1 10.9 -1 9.2 8 -1 -1 -1 60 -1 1 1 1 -1 -1 -1 -1 -1\n";
    let log = of(text).unwrap();
    assert_eq!((log.processors, log.nodes), (Some(400), Some(338)));
    let marks = Job {
        user: Some(1),
        group: Some(1),
        waited_s: Some(0),
        asked: true,
        status: Status::Completed,
        ..Job::default()
    };
    let first =
        Job { number: 1, submit_s: 10, run_s: 10, request_s: 60, processors: 8, waited_s: None, ..marks };
    let second = Job {
        number: 2,
        submit_s: 50,
        run_s: 10,
        request_s: 100,
        processors: 4,
        requested_processors: Some(4),
        cpu_s: Some(553),
        ..marks
    };
    assert_eq!(log.jobs, [first, second]);
    assert_eq!(log.repairs, Repairs { out_of_order: 1, ..Repairs::default() });
    assert_eq!(of("; MaxNodes: 338 (batch)\n1 0 0 1 1 1 1 1 1\n").unwrap().processors, Some(338));
    assert_eq!(swf::read(text.as_bytes(), 1).unwrap().jobs, [second]);
}

/// Field by field, in the order of the standard.
#[test]
fn all_eighteen_fields() {
    let log = of("11 12 13 14 15 16 17 18 19 20 0 21 22 23 24 25 26 27\n").unwrap();
    let job = Job {
        number: 11,
        submit_s: 12,
        waited_s: Some(13),
        run_s: 14,
        processors: 15,
        cpu_s: Some(16),
        used_memory_kib: Some(17),
        requested_processors: Some(18),
        request_s: 19,
        asked: true,
        requested_memory_kib: Some(20),
        status: Status::Failed,
        user: Some(21),
        group: Some(22),
        executable: Some(23),
        queue: Some(24),
        partition: Some(25),
        preceding: Some(26),
        think_s: Some(27),
        ..Job::default()
    };
    assert_eq!(log.jobs, [job]);
    assert_eq!((job.start_s(), job.end_s(), job.area()), (Some(25), Some(39), 15 * 14));
    assert_eq!(log.repairs, Repairs::default());
}

#[test]
fn whose_and_which_a_job_is_may_be_missing() {
    let marks = |line: &str| {
        let job = of(line).unwrap().jobs[0];
        (job.user, job.group, job.executable, job.queue, job.partition)
    };
    let whole = marks("1 0 0 5 1 -1 -1 1 9 -1 1 31 32 33 34 35 -1 -1");
    assert_eq!(whole, (Some(31), Some(32), Some(33), Some(34), Some(35)));
    assert_eq!(marks("1 0 0 5 1 -1 -1 1 9 -1 1 7 x -1"), (Some(7), None, None, None, None));
    let over = of("1 0 0 9 2 -1 -1 3 5").unwrap().jobs[0];
    assert_eq!((over.run_s, over.overran_s, over.ran_s()), (5, 4, 9));
    let waited = |line: &str| of(line).unwrap().jobs[0].waited_s;
    assert_eq!((waited("1 0 70 9 2 -1 -1 3 5"), waited("1 0 -1 9 2 -1 -1 3 5")), (Some(70), None));
    assert!(over.asked && !of("1 0 0 9 2 -1 -1 3 -1").unwrap().jobs[0].asked);
    assert!(over.reached_limit() && !of("1 0 0 9 2 -1 -1 3 -1").unwrap().jobs[0].reached_limit());
}

#[test]
fn each_fault_is_repaired_in_its_way_and_counted() {
    let rest = "-1 1 1 1 1 1 1 -1 -1";
    let cases = [
        ("1 0 0 5 -1 -1 -1 3 9", Some((5, 9, 3)), Repairs { requested_for_given: 1, ..Repairs::default() }),
        ("1 0 0 5 2 -1 -1 3 -1", Some((5, 5, 2)), Repairs { no_request: 1, ..Repairs::default() }),
        ("1 0 0 9 2 -1 -1 3 5", Some((5, 5, 2)), Repairs { overran: 1, ..Repairs::default() }),
        ("1 0 0 -1 3 -1 -1 2 5", None, Repairs { never_ran: 1, ..Repairs::default() }),
        ("1 0 0 9 -1 -1 -1 0 5", None, Repairs { no_processors: 1, ..Repairs::default() }),
        ("1 x 0 9 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
        ("1 -5 0 9 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
        ("1 0 0 1e99 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
        ("1 NaN 0 9 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
        ("1 0 0 inf 3 -1 -1 2 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
        ("1 0 0 9 3 -1 -1 2e9 5", None, Repairs { unreadable: 1, ..Repairs::default() }),
        ("7 0 0 9 3 -1 -1 2 9", Some((9, 9, 3)), Repairs { repeated: 1, ..Repairs::default() }),
    ];
    for (line, wanted, repairs) in cases {
        // A second job, since a log without any is refused.
        let log = of(&format!("{line} {rest}\n7 0 0 1 1 -1 -1 1 1 {rest}\n")).unwrap();
        let got = log.jobs.iter().find(|job| job.number == 1 || job.run_s == 9);
        assert_eq!(got.map(|job| (job.run_s, job.request_s, job.processors)), wanted, "{line}");
        assert_eq!(log.repairs, repairs, "{line}");
        assert!(repairs.list().iter().map(|(_, count)| count).sum::<u64>() == 1);
    }
    let whole = format!("7 0 0 1 1 -1 -1 1 1 {rest}\n");
    let lines = [
        ("1 0 0 9 3 -1 -1 2", Repairs { unreadable: 1, ..Repairs::default() }),
        ("1 0 0 9 3 -1 -1 2 9", Repairs { odd_length: 1, ..Repairs::default() }),
        ("1 0 0 9 3 -1 -1 2 9 -1 1 1 1 1 1 1 -1 -1 5 5", Repairs { odd_length: 1, ..Repairs::default() }),
        ("1 0 0 9 3 -1 -1 2 9 -1 3 1 1 1 1 1 -1 -1", Repairs { parts: 1, ..Repairs::default() }),
        ("; MaxProcs: all", Repairs { header_unreadable: 1, ..Repairs::default() }),
        ("; Weather: fine", Repairs { header_unknown: 1, ..Repairs::default() }),
    ];
    for (line, repairs) in lines {
        assert_eq!(of(&format!("{line}\n{whole}")).unwrap().repairs, repairs, "{line}");
    }
    let latin = [b"; Note: Malinovsk\xfd\n", whole.as_bytes()].concat();
    let log = swf::read(&latin[..], usize::MAX).unwrap();
    assert_eq!((log.repairs.not_utf8, log.header.notes[0].as_str()), (1, "Malinovsk\u{fffd}"));
}

#[test]
fn what_is_no_log_is_refused() {
    assert!(matches!(of(""), Err(LogError::NoJobs { left_out: 0, .. })));
    assert!(matches!(of("hello\nworld\n"), Err(LogError::NoJobs { unreadable: 2, .. })));
    assert!(matches!(of(&"1 ".repeat(LINE_MAX)), Err(LogError::LineTooLong { line: 1, .. })));
    assert!(matches!(of("\u{0}\u{0}\n-1 -1\n;"), Err(LogError::NoJobs { unreadable: 2, .. })));
    let said = of("hello\n").unwrap_err().to_string();
    assert!(said.contains("1 lines are not 18 numbers"), "{said}");
    let said = of("1 0 0 -1 3 -1 -1 2 5\n").unwrap_err().to_string();
    assert!(said.contains("1 left out"), "{said}");
}

/// What is written is read again as the same table, but for what SWF has no place for.
#[test]
fn logs_are_written_as_they_are_read() {
    let text = "; Version: 2.2\n; MaxProcs: 400\n; Queue: 24 q\n11 12 13 14 15 16 17 18 19 20 0 21 22 23 24 25 26 27\n\
        12 13 -1 99 15 -1 -1 -1 19 -1 -1 -1 -1 -1 -1 -1 -1 -1\n13 14 0 5 1 -1 -1 1 -1 -1 5 1 1 1 1 1 -1 -1\n";
    let log = of(text).unwrap();
    let mut out = Vec::new();
    swf::write(&log, &mut out).unwrap();
    assert_eq!(String::from_utf8(out.clone()).unwrap(), text);
    assert_eq!(swf::read(&out[..], usize::MAX).unwrap(), log);
}

proptest! {
    #[test]
    fn any_bytes_are_a_log_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = swf::read(&bytes[..], usize::MAX);
        let _ = read(&bytes[..], &Options::default());
    }

    /// Numbers of all kinds in all places: what comes out is within its limits, and nothing is lost uncounted.
    #[test]
    fn odd_lines_are_jobs_within_limits_or_counted(
        lines in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    (-2i64..100).prop_map(|n| n.to_string()),
                    any::<i64>().prop_map(|n| n.to_string()),
                    any::<f64>().prop_map(|n| n.to_string()),
                    "[a-z;]{1,3}",
                ],
                1..20,
            ),
            1..20,
        )
    ) {
        let lines: Vec<String> = lines.iter().map(|line| line.join(" ")).collect();
        let data = lines.iter().filter(|line| !line.starts_with(';')).count();
        let Ok(log) = of(&lines.join("\n")) else { return Ok(()) };
        prop_assert_eq!(log.jobs.len() as u64 + log.repairs.left_out(), data as u64);
        for job in &log.jobs {
            prop_assert!(job.run_s >= 1 && job.run_s <= job.request_s && job.request_s <= SECONDS_MAX);
            prop_assert!(job.processors >= 1 && job.processors <= PROCESSORS_MAX);
            prop_assert!(job.submit_s <= SECONDS_MAX);
        }
        prop_assert!(log.jobs.is_sorted_by_key(|job| job.submit_s));
        let mut out = Vec::new();
        swf::write(&log, &mut out).unwrap();
        let again = swf::read(&out[..], usize::MAX).unwrap();
        prop_assert_eq!(again.jobs, log.jobs);
    }
}
