//! Copies that are interrupted go on; what cannot go on leaves nothing behind; what the service refuses is said.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{Case, Cut, SECRET};
use tidepool_object::{ObjectEnd, ObjectUrl};
use tidepool_stage::{Control, Doomed, LocalEnd, StageOptions, StageReport, What, remove, stage};

const PART: usize = 8 << 20;
const PARTS: usize = 6;

impl Case {
    fn with_large() -> Case {
        let case = Case::new();
        fs::write(case.large(), large(0)).unwrap();
        case
    }

    fn large(&self) -> std::path::PathBuf {
        self.dir.path().join("src/large")
    }

    fn text(&self, more: &str) -> String {
        self.server.text(self.dir.path(), "data", "top", SECRET) + more
    }

    fn end(&self, more: &str) -> ObjectEnd {
        open(&self.text(more))
    }

    fn end_at(&self, address: SocketAddr, more: &str) -> ObjectEnd {
        open(&self.text(more).replace(&self.server.address.to_string(), &address.to_string()))
    }

    fn up(&self, to: &ObjectEnd, options: &StageOptions, control: &Control) -> StageReport {
        stage(&LocalEnd::open(&self.dir.path().join("src")).unwrap(), to, &What::Tree, options, control)
    }

    /// Parts that were sent since the last question.
    fn sent(&self) -> usize {
        self.server.bucket.parts_sent.swap(0, Ordering::Relaxed)
    }

    /// A copy that the server takes the first `parts` parts of.
    fn interrupted(&self, parts: usize) -> StageReport {
        let faults = &self.server.bucket.faults;
        faults.last_part.store(parts, Ordering::Relaxed);
        let report = self.up(&self.end(""), &journaled(self.dir.path()), &Control::default());
        faults.last_part.store(0, Ordering::Relaxed);
        assert!(!report.complete && self.server.bucket.uploads_left() == 1, "{report:?}");
        assert_eq!(self.sent(), parts);
        report
    }

    fn is_there(&self, data: &[u8]) {
        let objects = self.server.bucket.objects();
        assert!(objects["top/t/large"].data == data);
        assert!(objects.keys().all(|key| !key.contains(".tidepool-part.")), "{:?}", objects.keys());
        assert_eq!(self.server.bucket.uploads_left(), 0);
    }
}

fn open(text: &str) -> ObjectEnd {
    ObjectEnd::open(&text.parse::<ObjectUrl>().unwrap(), b"t", true).unwrap()
}

fn journaled(dir: &Path) -> StageOptions {
    StageOptions { workers: 2, journal_dir: Some(dir.join("state")), ..StageOptions::default() }
}

/// Each part differs from the others, and from those of another seed.
fn large(seed: usize) -> Vec<u8> {
    (0..PARTS * PART).map(|n| ((n / 4099) ^ (n / PART) ^ seed) as u8).collect()
}

#[test]
fn an_interrupted_copy_sends_only_the_parts_that_the_service_does_not_have() {
    let case = Case::with_large();
    case.interrupted(4);
    let again = case.up(&case.end(""), &journaled(case.dir.path()), &Control::default());
    assert!(again.complete, "{again:?}");
    assert_eq!(case.sent(), PARTS - 4);
    case.is_there(&large(0));
    assert_eq!(case.server.bucket.objects()["top/t/large"].metadata["mode"], (0o100_644).to_string());
}

#[test]
fn a_cancelled_copy_goes_on_and_one_that_is_cleaned_leaves_nothing() {
    for clean in [false, true] {
        let case = Case::with_large();
        let options = StageOptions { clean_on_cancel: clean, ..journaled(case.dir.path()) };
        let (end, control) = (case.end(""), Control::default());
        let report = std::thread::scope(|scope| {
            let copying = scope.spawn(|| case.up(&end, &options, &control));
            let bucket = &case.server.bucket;
            while bucket.parts_sent.load(Ordering::Relaxed) < 2 && !copying.is_finished() {
                std::thread::yield_now();
            }
            // The others wait until they are cancelled.
            let late = Instant::now() + Duration::from_secs(3600);
            *bucket.faults.busy_until.lock().unwrap() = Some((late, None));
            while bucket.faults.refused.load(Ordering::Relaxed) == 0 && !copying.is_finished() {
                std::thread::yield_now();
            }
            control.cancel();
            copying.join().unwrap()
        });
        assert!(!report.complete, "{report:?}");
        let first = case.sent();
        *case.server.bucket.faults.busy_until.lock().unwrap() = None;
        assert_eq!(case.server.bucket.uploads_left(), usize::from(!clean));
        assert!(case.up(&case.end(""), &options, &Control::default()).complete);
        let second = case.sent();
        assert!(first >= 2 && second == if clean { PARTS } else { PARTS - first }, "{first} {second}");
        case.is_there(&large(0));
    }
}

#[test]
fn parts_of_another_content_are_sent_again() {
    let case = Case::with_large();
    case.interrupted(4);
    let mut data = large(0);
    data[PART + 5] ^= 1;
    fs::write(case.large(), &data).unwrap();
    assert!(case.up(&case.end(""), &journaled(case.dir.path()), &Control::default()).complete);
    assert_eq!(case.sent(), PARTS - 4 + 1);
    case.is_there(&data);
}

#[test]
fn a_file_that_became_shorter_is_as_long_as_it_is() {
    let case = Case::with_large();
    case.interrupted(5);
    let data = large(0)[..2 * PART + 17].to_vec();
    fs::write(case.large(), &data).unwrap();
    fs::set_permissions(case.large(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(case.up(&case.end(""), &journaled(case.dir.path()), &Control::default()).complete);
    assert_eq!(case.sent(), 1);
    case.is_there(&data);
    assert_eq!(case.server.bucket.objects()["top/t/large"].metadata["mode"], (0o100_600).to_string());
}

#[test]
fn whoever_may_not_see_uploads_copies_anew() {
    let case = Case::with_large();
    case.interrupted(4);
    case.server.bucket.faults.no_uploads.store(true, Ordering::Relaxed);
    assert!(case.up(&case.end(""), &journaled(case.dir.path()), &Control::default()).complete);
    assert_eq!(case.sent(), PARTS);
}

#[test]
fn answers_that_are_lost_leave_no_second_upload() {
    let case = Case::with_large();
    let faults = &case.server.bucket.faults;
    faults.lose_begin.store(2, Ordering::Relaxed);
    faults.lose_complete.store(1, Ordering::Relaxed);
    let report = case.up(&case.end(""), &journaled(case.dir.path()), &Control::default());
    assert!(report.complete, "{report:?}");
    case.is_there(&large(0));
}

#[test]
fn a_failure_without_a_journal_leaves_no_upload_or_says_which() {
    for kept in [false, true] {
        let case = Case::with_large();
        let faults = &case.server.bucket.faults;
        faults.last_part.store(3, Ordering::Relaxed);
        faults.no_abort.store(kept, Ordering::Relaxed);
        let report = case.up(&case.end(""), &StageOptions::default(), &Control::default());
        assert!(!report.complete, "{report:?}");
        assert_eq!(case.server.bucket.uploads_left(), usize::from(kept));
        let told = format!("{:?}", report.warnings);
        assert_eq!(told.contains("upload-"), kept, "{told}");
        assert!(!kept || told.contains("top/t/.tidepool-part."), "{told}");
    }
}

#[test]
fn a_tree_that_is_removed_takes_its_open_uploads_along() {
    let case = Case::with_large();
    case.interrupted(4);
    for n in 0..5 {
        case.server.bucket.begin(&format!("old-{n}"), &format!("top/t/.tidepool-part.{n}"), &[b"x"]);
    }
    case.server.bucket.begin("other", "top/u", &[b"x"]);
    let top = ObjectEnd::open(&case.text("").parse().unwrap(), b"", true).unwrap();
    let gone = || remove(&top, &Doomed::Entry(b"t".to_vec()), &StageOptions::default(), &Control::default());
    case.server.bucket.insert("top/t/", b"");
    case.server.bucket.faults.no_abort.store(true, Ordering::Relaxed);
    let refused = gone();
    assert!(!refused.complete && format!("{:?}", refused.errors).contains("old-0"), "{refused:?}");
    case.server.bucket.faults.no_abort.store(false, Ordering::Relaxed);
    assert!(gone().complete);
    assert_eq!(case.server.bucket.uploads_left(), 1, "those elsewhere stay");
}

#[test]
fn a_service_that_is_busy_for_longer_than_four_tries_is_waited_for() {
    let case = Case::with_large();
    let end = case.end("");
    let until = Instant::now() + Duration::from_secs(6);
    *case.server.bucket.faults.busy_until.lock().unwrap() = Some((until, None));
    let report = case.up(&end, &journaled(case.dir.path()), &Control::default());
    assert!(report.complete && Instant::now() >= until, "{report:?}");
    case.is_there(&large(0));
}

#[test]
fn a_service_that_says_when_to_come_back_is_not_asked_before() {
    let case = Case::new();
    fs::write(case.dir.path().join("src/x"), b"x").unwrap();
    let end = case.end("");
    let until = Instant::now() + Duration::from_secs(3);
    *case.server.bucket.faults.busy_until.lock().unwrap() = Some((until, Some(4)));
    let report = case.up(&end, &journaled(case.dir.path()), &Control::default());
    assert!(report.complete, "{report:?}");
    // Of all threads only those hear it that were asking at the time.
    let asked = case.server.bucket.faults.refused.load(Ordering::Relaxed);
    assert!((1..=2).contains(&asked), "{asked}");
}

#[test]
fn patience_has_an_end_that_the_url_names() {
    let case = Case::new();
    let late = Instant::now() + Duration::from_secs(600);
    *case.server.bucket.faults.busy_until.lock().unwrap() = Some((late, None));
    let start = Instant::now();
    let url: ObjectUrl = case.text("&patience=2").parse().unwrap();
    let error = ObjectEnd::open(&url, b"t", true).err().expect("it is busy").to_string();
    assert!(start.elapsed() < Duration::from_secs(60), "{error}");
    assert!(error.contains("SlowDown") && error.contains("patience=2"), "{error}");
}

#[test]
fn waiting_for_a_service_ends_with_a_cancel() {
    let case = Case::with_large();
    let (end, control) = (case.end("&patience=3600"), Control::default());
    let late = Instant::now() + Duration::from_secs(3600);
    *case.server.bucket.faults.busy_until.lock().unwrap() = Some((late, Some(600)));
    let report = std::thread::scope(|scope| {
        let copying = scope.spawn(|| case.up(&end, &journaled(case.dir.path()), &control));
        while case.server.bucket.faults.refused.load(Ordering::Relaxed) < 1 {
            std::thread::yield_now();
        }
        control.cancel();
        copying.join().unwrap()
    });
    assert!(!report.complete && report.cancelled, "{report:?}");
}

#[test]
fn a_connection_that_breaks_in_the_middle_of_a_part_is_made_again() {
    let case = Case::with_large();
    let cut = Cut::start(case.server.address, 5 << 20, 4);
    let up = case.up(&case.end_at(cut.address, ""), &journaled(case.dir.path()), &Control::default());
    assert!(up.complete && cut.cuts.load(Ordering::Relaxed) == 4, "{up:?}");
    case.is_there(&large(0));
    let cut = Cut::start(case.server.address, 5 << 20, 4);
    let back = case.dir.path().join("back");
    let (from, to) = (case.end_at(cut.address, ""), LocalEnd::create(&back).unwrap());
    let down = stage(&from, &to, &What::Tree, &journaled(case.dir.path()), &Control::default());
    assert!(down.complete && cut.cuts.load(Ordering::Relaxed) == 4, "{down:?}");
    assert!(fs::read(back.join("large")).unwrap() == large(0));
}

/// Each: what the service says, the error, and what to do about it.
#[test]
fn what_the_service_refuses_is_said_by_its_code() {
    let refusals = [
        ((403, "AccessDenied"), 13, "permission"),
        ((400, "EntityTooLarge"), 27, "largest object"),
        ((507, "StorageFull"), 28, "make room"),
        ((403, "QuotaExceeded"), 122, "quota"),
        ((403, "RequestTimeTooSkewed"), 13, "clock"),
        ((400, "ExpiredToken"), 13, "new token"),
        ((501, "NotImplemented"), 95, "checksum=none"),
    ];
    for (refuse, errno, advice) in refusals {
        let case = Case::new();
        fs::write(case.dir.path().join("src/x"), b"x").unwrap();
        let end = case.end("");
        *case.server.bucket.faults.refuse.lock().unwrap() = Some(refuse);
        let report = case.up(&end, &StageOptions::default(), &Control::default());
        let told = report.errors[0].to_string();
        assert!(!report.complete && told.contains(refuse.1) && told.contains(advice), "{told}");
        assert!(told.contains("bucket 'data'") && told.contains("'top/t"), "{told}");
        assert_eq!(report.errors[0].errno.map(|errno| errno.0), Some(errno), "{told}");
    }
}
