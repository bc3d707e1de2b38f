//! The printer itself: a recording of the kernel's, written here field by field as `blktrace` keeps it, is printed by the
//! real `blkparse` and read. What is read are the requests that were written, whatever else the recording tells.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tidepool_io_traces::{Format, Op, Options, Trace, detect, read};

/// Of linux/blktrace_api.h: what was done, and what kind of request it was done to.
const MAGIC: u32 = 0x6561_7407;
const QUEUE: u32 = 1;
const BACK_MERGE: u32 = 2;
const GET: u32 = 4;
const REQUEUE: u32 = 6;
const ISSUE: u32 = 7;
const COMPLETE: u32 = 8;
const PLUG: u32 = 9;
const UNPLUG: u32 = 10;
const INSERT: u32 = 12;
const SPLIT: u32 = 13;
const REMAP: u32 = 15;
const READ: u32 = 1 << 16;
const WRITE: u32 = 1 << 17;
const FLUSH: u32 = 1 << 18;
const SYNC: u32 = 1 << 19;
const OF_QUEUE: u32 = 1 << 20;
const OF_ISSUE: u32 = 1 << 22;
const OF_COMPLETE: u32 = 1 << 23;
const PASS_THROUGH: u32 = 1 << 25;
const NOTIFY: u32 = 1 << 26;
const AHEAD: u32 = 1 << 27;
const META: u32 = 1 << 28;
const DISCARD: u32 = 1 << 29;
const FUA: u32 = 1 << 31;
const NOTIFY_PROCESS: u32 = NOTIFY;
const NOTIFY_MESSAGE: u32 = 2 | NOTIFY;
const DEVICE: u32 = 259 << 20 | 3;

/// One processor's recording.
#[derive(Default)]
struct Recording {
    bytes: Vec<u8>,
    sequence: u32,
}

#[derive(Clone, Copy)]
struct Event<'a> {
    ns: u64,
    action: u32,
    sector: u64,
    length: u32,
    process: u32,
    error: u16,
    more: &'a [u8],
}

const NOTHING: Event = Event { ns: 0, action: 0, sector: 0, length: 0, process: 0, error: 0, more: &[] };

impl Recording {
    /// A `struct blk_io_trace`.
    fn put(&mut self, processor: u32, event: Event) {
        self.sequence += 1;
        self.bytes.extend(MAGIC.to_le_bytes());
        self.bytes.extend(self.sequence.to_le_bytes());
        self.bytes.extend(event.ns.to_le_bytes());
        self.bytes.extend(event.sector.to_le_bytes());
        for number in [event.length, event.action, event.process, DEVICE, processor] {
            self.bytes.extend(number.to_le_bytes());
        }
        self.bytes.extend(event.error.to_le_bytes());
        self.bytes.extend((event.more.len() as u16).to_le_bytes());
        self.bytes.extend(event.more);
    }

    fn name(&mut self, process: u32, name: &str) {
        let mut more = name.as_bytes().to_vec();
        more.resize(16, 0);
        self.put(0, Event { action: NOTIFY_PROCESS, process, more: &more, ..NOTHING });
    }
}

/// Prints the recordings of some processors; None without the program.
fn printed(name: &str, recordings: &[Recording]) -> Option<String> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("blkparse-{name}"));
    fs::create_dir_all(&dir).unwrap();
    for (processor, recording) in recordings.iter().enumerate() {
        fs::write(dir.join(format!("disk.blktrace.{processor}")), &recording.bytes).unwrap();
    }
    let Ok(done) = Command::new("blkparse").args(["-i", "disk", "-D"]).arg(&dir).output() else {
        println!("SKIPPED: blkparse is not installed; run 'scripts/install-packages test' first");
        return None;
    };
    fs::remove_dir_all(&dir).unwrap();
    assert!(done.status.success(), "{done:?}");
    Some(String::from_utf8(done.stdout).unwrap())
}

fn of(text: &str) -> Trace {
    assert_eq!(detect(text.as_bytes()), Some(Format::Blkparse), "{text}");
    read(Format::Blkparse, text.as_bytes(), &Options::default())
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn requests(trace: &Trace) -> Vec<(Op, u64, u64)> {
    trace.requests.iter().map(|one| (one.op, one.offset, one.length)).collect()
}

/// All that happens to requests on their way, and what is no request, among two that are to be found.
#[test]
fn what_blkparse_prints_of_every_kind_is_read() {
    let mut one = Recording::default();
    one.name(700, "a b [c] + 5");
    one.name(701, "writer");
    let mut ns = 5_000_000_000;
    let mut put = |action, sector, length, process, more: &[u8]| {
        ns += 1_000;
        one.put(0, Event { ns, action, sector, length, process, error: 0, more });
    };
    put(NOTIFY_MESSAGE, 0, 0, 701, b"hello R 5 + 8 message");
    put(QUEUE | WRITE | OF_QUEUE | SYNC, 2_048, 4_096, 701, &[]);
    put(PLUG | OF_QUEUE, 0, 0, 701, &[]);
    put(GET | WRITE | OF_QUEUE, 2_048, 4_096, 701, &[]);
    put(BACK_MERGE | WRITE | OF_QUEUE, 2_056, 4_096, 701, &[]);
    put(UNPLUG | OF_QUEUE, 0, 0, 701, &[0, 0, 0, 0, 0, 0, 0, 3]);
    put(INSERT | WRITE | OF_QUEUE, 2_048, 8_192, 701, &[]);
    put(SPLIT | WRITE, 2_048, 8_192, 701, &[0, 0, 0, 0, 0, 0, 8, 4]);
    put(REMAP | WRITE, 2_048, 8_192, 701, &[0x10, 0x30, 0, 3, 0x10, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
    put(ISSUE | WRITE | OF_ISSUE, 2_048, 8_192, 701, &[]);
    put(REQUEUE | WRITE, 2_048, 8_192, 0, &[]);
    put(COMPLETE | WRITE | OF_COMPLETE, 2_048, 8_192, 0, &[]);
    // Commands to the device itself, with bytes and no sectors; and a flush, whose end is one of no sectors, too.
    put(QUEUE | READ | OF_QUEUE | PASS_THROUGH, 0, 512, 701, &[0x12, 0, 0, 0, 0x24, 0]);
    put(ISSUE | READ | OF_ISSUE | PASS_THROUGH, 0, 36, 701, &[0x12, 0, 0, 0, 0x24, 0]);
    put(COMPLETE | READ | OF_COMPLETE | PASS_THROUGH, 0, 36, 0, &[0x12, 0, 0, 0, 0x24, 0]);
    put(QUEUE | WRITE | OF_QUEUE | FLUSH | SYNC, 0, 0, 701, &[]);
    put(ISSUE | WRITE | OF_ISSUE, 0, 0, 701, &[]);
    put(COMPLETE | WRITE | OF_COMPLETE, 0, 0, 0, &[]);
    put(QUEUE | READ | OF_QUEUE, 0, 0, 701, &[]);
    put(QUEUE | FLUSH | OF_QUEUE, 0, 0, 700, &[]);
    put(QUEUE | WRITE | OF_QUEUE | DISCARD | SYNC, 0, 1 << 30, 701, &[]);
    put(QUEUE | READ | OF_QUEUE | META | AHEAD | SYNC, 1 << 40, 1 << 20, 700, &[]);
    put(QUEUE | WRITE | OF_QUEUE | FLUSH | FUA | SYNC, 64, 512, 702, &[]);
    let Some(text) = printed("kinds", &[one]) else { return };
    let trace = of(&text);
    let expected = [
        (Op::Write, 2_048 * 512, 4_096),
        (Op::Fsync, 0, 0),
        (Op::Fsync, 0, 0),
        (Op::Read, 512 << 40, 1 << 20),
        (Op::Write, 64 * 512, 512),
    ];
    assert_eq!(requests(&trace), expected, "{text}");
    assert_eq!(trace.ignored["discards"], 1, "{:?}", trace.ignored);
    // A line that was cut is none of these.
    let (before, _) = text.split_once(" + 8 [writer]").unwrap();
    let cut = format!("{before}\n");
    let error = read(Format::Blkparse, cut.as_bytes(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("is the line cut?"), "{error}");
}

/// Many requests of many processes on several processors: all are read, in their order, each with its process.
#[test]
fn requests_of_many_processors_are_read_in_their_order() {
    let mut seed: u64 = 42;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut recordings: Vec<Recording> = (0..3).map(|_| Recording::default()).collect();
    let mut expected = Vec::new();
    for at in 0..2_000u64 {
        let (ns, processor) = (1_000_000_000 + at * 1_500, draw(3));
        let (sector, sectors, process) = (draw(1 << 33), 1 + draw(2_048), 100 + draw(20) as u32);
        let (kind, op) = if draw(2) == 0 { (READ, Op::Read) } else { (WRITE | SYNC, Op::Write) };
        let length = (sectors * 512) as u32;
        let of = |action, ns| Event { ns, action: action | kind, sector, length, process, ..NOTHING };
        let recording = &mut recordings[processor as usize];
        recording.put(processor as u32, of(QUEUE | OF_QUEUE, ns));
        recording.put(processor as u32, of(ISSUE | OF_ISSUE, ns + 500));
        recording.put(processor as u32, of(COMPLETE | OF_COMPLETE, ns + 1_000));
        expected.push((op, sector * 512, u64::from(length), at * 1_500, process));
    }
    let Some(text) = printed("many", &recordings) else { return };
    let trace = of(&text);
    let seen: Vec<_> = trace.requests.iter().map(|one| (one.op, one.offset, one.length, one.at)).collect();
    let wanted: Vec<_> = expected.iter().map(|one| (one.0, one.1, one.2, one.3)).collect();
    assert_eq!(seen, wanted);
    let mut ranks = BTreeMap::new();
    for (one, (.., process)) in trace.requests.iter().zip(&expected) {
        assert_eq!(*ranks.entry(*process).or_insert(one.rank), one.rank);
    }
    assert_eq!(ranks.values().collect::<std::collections::BTreeSet<_>>().len(), 20);
}
