//! `sacct`'s outputs: columns in any order, steps, arrays, what Slurm's versions write, and what is none of it.

use proptest::prelude::*;
use std::io::Write as _;
use tidepool_joblog::sacct::json::VALUE_BYTES_MAX;
use tidepool_joblog::{Format, Job, Log, LogError, Options, Repairs, Status, read};

fn of(text: &str) -> Result<Log, LogError> {
    read(text.as_bytes(), &Options::default())
}

fn forced(text: &[u8], format: Format) -> Result<Log, LogError> {
    read(text, &Options { format: Some(format), ..Options::default() })
}

const HEAD: &str = "JobID|JobIDRaw|User|Group|Account|Partition|QOS|JobName|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|ReqCPUS|AllocCPUS|ReqMem|TotalCPU|NNodes|NodeList\n";

/// A job in those columns; 1,735,689,600 is the first second of 2025.
fn line(id: &str, raw: &str, state: &str) -> String {
    format!(
        "{id}|{raw}|alice|users|physics|batch|normal|relax|2025-01-01T00:00:00|2025-01-01T00:01:00|2025-01-01T00:02:40|100|5|{state}|8|16|8G|02:40.500|2|node[1-2]\n"
    )
}

#[test]
fn a_job_with_all_that_sacct_says() {
    let log = of(&(HEAD.to_string() + &line("7", "7", "COMPLETED"))).unwrap();
    let job = Job {
        number: 7,
        submit_s: 0,
        waited_s: Some(60),
        run_s: 100,
        request_s: 300,
        asked: true,
        processors: 16,
        requested_processors: Some(8),
        requested_memory_kib: Some(1 << 20),
        cpu_s: Some(10),
        status: Status::Completed,
        user: Some(1),
        group: Some(1),
        account: Some(1),
        executable: Some(1),
        queue: Some(1),
        partition: Some(1),
        nodes: Some(2),
        node_list: Some(1),
        ..Job::default()
    };
    assert_eq!(log.jobs, [job]);
    assert_eq!((log.header.unix_start_s, log.processors), (Some(1_735_689_600), None));
    let names = &log.names;
    let shown = [&names.users, &names.accounts, &names.executables, &names.queues, &names.node_lists];
    assert_eq!(shown.map(|names| names[&1].as_str()), ["alice", "physics", "relax", "normal", "node[1-2]"]);
    assert_eq!(log.repairs, Repairs::default());
}

#[test]
fn steps_arrays_and_parts_of_jobs() {
    let rows = [
        line("12_3", "15", "COMPLETED"),
        line("15.batch", "15.batch", "COMPLETED"),
        line("15.0", "15.0", "COMPLETED"),
        line("12_[4-9%2]", "12", "PENDING"),
        line("20+0", "20", "CANCELLED by 1000"),
        line("20+1", "21", "TIMEOUT"),
        line("22", "22", "RUNNING"),
        line("23", "23", "OUT_OF_ME+"),
        line("24", "24", "NODE_FAIL"),
        line("25", "25", "PREEMPTED"),
        line("26", "26", "FAILED"),
    ];
    let log = of(&(HEAD.to_string() + &rows.concat())).unwrap();
    let told: Vec<(u64, &str)> = log.jobs.iter().map(|job| (job.number, job.status.name())).collect();
    let wanted = [
        (15, "completed"),
        (20, "cancelled"),
        (21, "timeout"),
        (23, "out-of-memory"),
        (24, "node-fail"),
        (25, "preempted"),
        (26, "failed"),
    ];
    assert_eq!(told, wanted);
    assert_eq!(log.repairs, Repairs { steps: 2, unfinished: 2, ..Repairs::default() });
    assert!(log.jobs[2].reached_limit() && !log.jobs[0].reached_limit());
    // Without the raw number an array's is that of the whole.
    let head = "JobID|Submit|Elapsed|NCPUS|State\n";
    let log = of(&format!("{head}12_3|2025-01-01T00:00:00|1-00:00:01|4|COMPLETED\n")).unwrap();
    assert_eq!((log.jobs[0].number, log.jobs[0].run_s, log.jobs[0].waited_s), (12, 86_401, None));
}

#[test]
fn columns_stand_in_any_order_and_form() {
    // `--parsable` has a bar at the end.
    let bars = "State|AllocCPUS|End|Start|Submit|JobID|Timelimit|\n\
        COMPLETED|4|2025-01-01T00:10:00|2025-01-01T00:00:10|2025-01-01T00:00:00|5|1-02:00:00|\n";
    let log = of(bars).unwrap();
    let job = log.jobs[0];
    assert_eq!((job.run_s, job.request_s, job.processors, job.waited_s), (590, 93_600, 4, Some(10)));
    assert_eq!(log.repairs, Repairs::default());
    // Times as numbers (SLURM_TIME_FORMAT=%s), another separator, resources as lists, no limit.
    let commas = "JobIDRaw;Submit;Start;ElapsedRaw;ReqTRES;AllocTRES;Timelimit\n\
        5;1735689600;1735689605;7;cpu=2,mem=4G,node=1;billing=4,cpu=4,node=1;UNLIMITED\n\
        6;1735689601;1735689605;7;cpu=2;;Partition_Limit\n";
    let log = of(commas).unwrap();
    let jobs: Vec<_> =
        log.jobs.iter().map(|job| (job.processors, job.asked, job.requested_memory_kib)).collect();
    assert_eq!(jobs, [(4, false, Some(2 << 20)), (2, false, None)]);
    assert_eq!(log.repairs, Repairs { no_request: 2, requested_for_given: 1, ..Repairs::default() });
    // Month by month, one file behind the other.
    let months = format!("{HEAD}{}{HEAD}{}", line("1", "1", "COMPLETED"), line("2", "2", "COMPLETED"));
    assert_eq!(of(&months).unwrap().jobs.len(), 2);
    // A bar in a job's name.
    let named = format!("{HEAD}{}", line("1", "1", "COMPLETED").replace("relax", "a|b|c"));
    let log = of(&named).unwrap();
    assert_eq!((log.jobs[0].run_s, log.jobs[0].nodes, log.repairs.odd_length), (100, Some(2), 1));
    let memory = |word: &str| {
        let text = HEAD.to_string() + &line("1", "1", "COMPLETED").replace("|8G|", &format!("|{word}|"));
        of(&text).unwrap().jobs[0].requested_memory_kib
    };
    // Before Slurm 21.08: for each processor, and for each node.
    assert_eq!([memory("500Mc"), memory("8Gn"), memory("?")], [Some(512_000), Some(1 << 20), None]);
}

#[test]
fn faults_are_repaired_and_counted() {
    let good = line("1", "1", "COMPLETED");
    let cases = [
        (good.replace("2025-01-01T00:00:00", "Unknown"), Repairs { unreadable: 1, ..Repairs::default() }),
        (
            good.replace("2025-01-01T00:00:00", "2025-01-01T00:01:30"),
            Repairs { early_start: 1, ..Repairs::default() },
        ),
        (good.replace("|100|", "|0|"), Repairs { never_ran: 1, ..Repairs::default() }),
        (
            good.replace("|100|", "|-5|").replace("00:02:40|", "Unknown|"),
            Repairs { never_ran: 1, ..Repairs::default() },
        ),
        (good.replace("|8|16|", "|0|0|"), Repairs { no_processors: 1, ..Repairs::default() }),
        (good.replace("|5|", "|1|"), Repairs { overran: 1, ..Repairs::default() }),
        (good.replace("1|1|", "x|x|"), Repairs { unreadable: 1, ..Repairs::default() }),
        ("1|1|alice\n".into(), Repairs { unreadable: 1, odd_length: 1, ..Repairs::default() }),
        (good.replace("|16|", "|99999999999|"), Repairs { requested_for_given: 1, ..Repairs::default() }),
        (
            good.replace("|16|", "|NaN|").replace("|100|", "|99999999999999999999|"),
            Repairs { requested_for_given: 1, ..Repairs::default() },
        ),
    ];
    for (text, repairs) in cases {
        let later = line("9", "9", "COMPLETED").replace("2025-01-01", "2025-01-02");
        let log = of(&format!("{HEAD}{text}{later}")).unwrap();
        assert_eq!(log.repairs, repairs, "{text}");
    }
    let text = HEAD.to_string() + &line("1", "1", "COMPLETED");
    let (before, after) = text.split_once("relax").unwrap();
    let log =
        read(&[before.as_bytes(), b"caf\xe9", after.as_bytes()].concat()[..], &Options::default()).unwrap();
    assert_eq!((log.repairs.not_utf8, log.names.executables[&1].as_str()), (1, "caf\u{fffd}"));
}

#[test]
fn what_cannot_be_used_says_what_is_needed() {
    let said = |text: &str| of(text).unwrap_err().to_string();
    let missing = said("JobID|JobName|State\n1|a|COMPLETED\n");
    for part in ["line 1", "(Submit)", "ElapsedRaw", "AllocCPUS", "--format=JobID"] {
        assert!(missing.contains(part), "{missing}");
    }
    let people = "JobID           JobName  Partition\n------------ ---------- ----------\n1  a  b\n";
    assert!(said(people).contains("--parsable2"));
    assert!(said(&format!("{HEAD}{}", line("1", "1", "RUNNING"))).contains("1 left out"));
    assert!(forced(b"1|2|3\n", Format::Sacct).unwrap_err().to_string().contains("line 1: no column says"));
    let long = format!("{HEAD}{}", line("1", "1", "COMPLETED").replace("relax", &"x".repeat(100_000)));
    assert!(matches!(of(&long), Err(LogError::LineTooLong { line: 2, format: Format::Sacct })));
}

/// As Slurm 21.08 has it, 22.05 and 24.11: numbers become objects, and the state a list.
#[test]
fn json_of_all_versions() {
    let old = r#"{"meta": {"Slurm": {"version": {"major": 21}}}, "errors": [], "jobs": [{
        "account": "physics", "allocation_nodes": 2, "association": {"user": "alice"}, "group": "users", "job_id": 7, "name": "relax",
        "nodes": "node[1-2]", "partition": "batch", "qos": "normal", "required": {"CPUs": 8, "memory": 1024},
        "state": {"current": "COMPLETED", "reason": "None"},
        "steps": [{"state": "COMPLETED", "deep": [[{}]]}, {"state": "COMPLETED"}],
        "time": {"elapsed": 100, "eligible": 1735689600, "end": 1735689760, "start": 1735689660, "submission": 1735689600,
                 "limit": 5, "total": {"seconds": 160, "microseconds": 5}},
        "tres": {"allocated": [{"type": "cpu", "name": null, "id": 1, "count": 16}, {"type": "node", "count": 2}],
                 "requested": [{"type": "cpu", "count": 8}, {"type": "mem", "count": 8192}]},
        "user": "alice"}]}"#;
    let new = old
        .replace("\"current\": \"COMPLETED\"", "\"current\": [\"COMPLETED\"]")
        .replace("\"limit\": 5", "\"limit\": {\"set\": true, \"infinite\": false, \"number\": 5}")
        .replace(
            "\"CPUs\": 8, \"memory\": 1024",
            "\"CPUs\": 8, \"memory_per_node\": {\"set\": false, \"infinite\": false, \"number\": 0}",
        );
    let (old, new) = (of(old).unwrap(), of(&new).unwrap());
    assert_eq!(old, new);
    let steps = Repairs { steps: 2, ..Repairs::default() };
    assert_eq!(old.repairs, steps);
    // The same job as the other output has it.
    let bars = of(&(HEAD.to_string() + &line("7", "7", "COMPLETED"))).unwrap();
    assert_eq!(old, Log { repairs: steps, ..bars });
    let endless = r#"[{"job_id": {"set": true, "number": 7}, "state": {"current": ["TIMEOUT"]},
        "time": {"elapsed": 100, "start": 1735689660, "submission": 1735689600, "limit": {"set": true, "infinite": true, "number": 0}},
        "tres": {"allocated": [{"type": "cpu", "count": 16}]}},
        {"job_id": 8, "state": {"current": "PENDING"}, "time": {}, "tres": {}},
        {"job_id": 9, "state": {"current": "CANCELLED"}, "time": {"elapsed": 0, "start": 0, "end": 5, "submission": 1735689600}, "tres": {}}]"#;
    let log = of(endless).unwrap();
    assert_eq!((log.jobs[0].asked, log.jobs[0].status), (false, Status::Timeout));
    assert_eq!(log.repairs, Repairs { no_request: 1, unfinished: 1, never_ran: 1, ..Repairs::default() });
}

#[test]
fn hostile_json_is_refused() {
    let job = r#"{"job_id": 7, "state": {"current": "COMPLETED"}, "time": {"elapsed": 9, "start": 60, "submission": 50, "limit": 5}, "tres": {"allocated": [{"type": "cpu", "count": 16}]}}"#;
    assert!(of(&format!("{{\"jobs\": [{job}]}}")).is_ok());
    let json = |text: &str| matches!(of(text), Err(LogError::Json { .. }));
    assert!(json(&format!("{{\"jobs\": [{job}")));
    assert!(json(&format!("{{\"jobs\": [{job}]}} and more")));
    assert!(json("{\"jobs\": 5}"));
    assert!(json("{\"jobs\": [5]}"));
    assert!(json("{\"jobs\": [{\"steps\": {}}]}"));
    assert!(json(&format!("{{\"jobs\": [{{\"time\": {}}}]}}", "[".repeat(100_000))));
    assert!(json("{\"jobs\": [{\"job_id\": 1e999}]}"));
    assert!(json("{'jobs': []}"));
    assert!(matches!(of("{\"jobs\": []}"), Err(LogError::NoJobs { .. })));
    assert!(matches!(of("{}"), Err(LogError::NoJobs { .. })));
    let numbers = job.replace("\"count\": 16", "\"count\": -16").replace("\"limit\": 5", "\"limit\": 1e30");
    assert!(matches!(of(&format!("[{numbers}]")), Err(LogError::NoJobs { left_out: 1, .. })));
    let said = of("{\"jobs\":\n[{\"job_id\": x}]}").unwrap_err().to_string();
    assert!(said.contains("line 2"), "{said}");
    let bytes = "x".repeat(VALUE_BYTES_MAX as usize + 100_000);
    let large = format!("{{\"jobs\": [{{\"name\": \"{bytes}\"}}]}}");
    assert!(matches!(of(&large), Err(LogError::JobTooLarge { .. })));
    // Many jobs and many steps are no large job.
    let steps =
        vec!["{\"state\": \"COMPLETED\", \"filler\": \"0123456789012345678901234567890123456789\"}"; 300_000];
    let many =
        format!("[{}]", job.replace("\"job_id\"", &format!("\"steps\": [{}], \"job_id\"", steps.join(","))));
    assert!(many.len() as u64 > VALUE_BYTES_MAX);
    assert_eq!(of(&many).unwrap().repairs.steps, 300_000);
}

#[test]
fn packed_logs_are_unpacked() {
    let text = HEAD.to_string() + &line("7", "7", "COMPLETED");
    let pack = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let packed = pack(text.as_bytes());
    let open = |bytes: &[u8]| read(bytes, &Options::default());
    assert_eq!(open(&packed).unwrap(), of(&text).unwrap());
    // In parts, as logs that are packed day by day.
    let parts = [pack(HEAD.as_bytes()), pack(line("7", "7", "COMPLETED").as_bytes())].concat();
    assert_eq!(open(&parts).unwrap(), of(&text).unwrap());
    assert!(matches!(open(&pack(&packed)), Err(LogError::PackedTwice)));
    assert!(matches!(open(&packed[..packed.len() / 2]), Err(LogError::Read { .. })));
    assert!(matches!(open(&[0xfd, b'7', b'z', b'X', b'Z', 0, 1]), Err(LogError::Packed { by: "xz", .. })));
    // A bomb: a line of 100 MB in 100 KB.
    let bomb = pack(&vec![b' '; 100_000_000]);
    assert!(matches!(open(&bomb), Err(LogError::LineTooLong { line: 1, .. })));
}

proptest! {
    /// Words of all kinds in all columns: jobs or counts, never a panic.
    #[test]
    fn odd_rows_are_jobs_or_counted(
        rows in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    Just("2025-01-01T00:00:00".to_string()),
                    Just("COMPLETED".to_string()),
                    (0u32..100).prop_map(|n| n.to_string()),
                    any::<i64>().prop_map(|n| n.to_string()),
                    any::<f64>().prop_map(|n| n.to_string()),
                    "[0-9:TK-]{0,12}",
                    "\\PC{0,6}",
                ],
                0..24,
            ),
            1..12,
        )
    ) {
        let rows: Vec<String> = rows.iter().map(|row| row.join("|").replace(['\n', '\r'], " ")).collect();
        let count = rows.iter().filter(|row| !row.trim().is_empty()).count() as u64;
        let text = format!("{HEAD}{}", rows.join("\n"));
        let Ok(log) = of(&text) else { return Ok(()) };
        prop_assert_eq!(log.jobs.len() as u64 + log.repairs.left_out(), count);
        prop_assert!(log.jobs.iter().all(|job| job.run_s >= 1 && job.run_s <= job.request_s && job.processors >= 1));
    }

    #[test]
    fn any_document_is_a_log_or_an_error(text in "[\\[\\]{}:,\"a-z0-9 ]{0,200}", cut in 0usize..400) {
        let _ = forced(text.as_bytes(), Format::SacctJson);
        let whole = r#"{"jobs": [{"job_id": 7, "state": {"current": "COMPLETED"}, "steps": [1], "time": {"elapsed": 9, "start": 60, "submission": 50, "limit": 5}, "tres": {"allocated": [{"type": "cpu", "count": 16}]}}]}"#;
        let part = &whole.as_bytes()[..cut.min(whole.len())];
        prop_assert_eq!(forced(part, Format::SacctJson).is_ok(), part.len() == whole.len());
    }
}
