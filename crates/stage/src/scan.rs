//! Counting a source without copying it: for dry runs, and ahead of a copy for its progress.

use crate::end::{At, Cursor, DirRef, End, EndResult, Item};
use crate::job::{bump, is_leftover};
use crate::options::What;
use crate::progress::{Control, Counters};
use crate::report::{Failure, Findings, StageError, StageReport};
use std::time::Instant;
use tidepool_types::FileKind;
use tidepool_types::show_bytes;

#[derive(Default)]
struct Counts {
    files: u64,
    dirs: u64,
    links: u64,
    specials: u64,
    bytes: u64,
}

impl Counts {
    /// Entries that progress counts.
    fn entries(&self) -> u64 {
        self.files + self.links + self.specials
    }
}

/// Walks the source depth first, with one page per level in memory.
struct Scanner<'a> {
    src: &'a dyn End,
    counts: Counts,
    findings: Findings,
    /// Shows the counts as they rise.
    counters: Option<&'a Counters>,
    stack: Vec<Step>,
}

enum Step {
    Enter(DirRef, Vec<u8>),
    List(DirRef, Cursor),
}

impl Scanner<'_> {
    fn fail(&self, name: &[u8], error: crate::EndError) {
        self.findings.error(StageError::new(show_bytes(name), &Failure::source(error)));
    }

    fn start(&mut self, what: &What) {
        let root = self.src.root();
        match what {
            What::Tree => {
                self.counts.dirs += 1;
                self.stack.push(Step::List(root, Cursor::Start));
            }
            What::Entry { from, .. } => {
                let item = Item { name: from.clone(), kind: None, size: None };
                self.item(&root, item);
            }
        }
    }

    fn item(&mut self, dir: &DirRef, item: Item) {
        let (mut kind, mut size) = (item.kind, item.size);
        if kind.is_none() || (kind == Some(FileKind::Regular) && size.is_none()) {
            match self.src.stat(At::Name(dir, &item.name)) {
                Ok(meta) => (kind, size) = (Some(meta.kind), Some(meta.size)),
                Err(error) => return self.fail(&item.name, error),
            }
        }
        match kind {
            Some(FileKind::Directory) => return self.stack.push(Step::Enter(dir.clone(), item.name)),
            Some(FileKind::Regular) => {
                self.counts.files += 1;
                self.counts.bytes += size.unwrap_or(0);
            }
            Some(FileKind::Symlink) => self.counts.links += 1,
            _ => self.counts.specials += 1,
        }
        if let Some(counters) = self.counters {
            bump(&counters.files_seen, 1);
            bump(&counters.bytes_seen, if kind == Some(FileKind::Regular) { size.unwrap_or(0) } else { 0 });
        }
    }

    fn step(&mut self, step: Step) {
        let (dir, cursor) = match step {
            Step::List(dir, cursor) => (dir, cursor),
            Step::Enter(parent, name) => match self.src.open_dir(&parent, &name) {
                Err(error) => return self.fail(&name, error),
                Ok(dir) => {
                    self.counts.dirs += 1;
                    (dir, Cursor::Start)
                }
            },
        };
        match self.page(&dir, &cursor) {
            Ok(()) => {}
            Err(error) => self.fail(b".", error),
        }
    }

    fn page(&mut self, dir: &DirRef, cursor: &Cursor) -> EndResult<()> {
        let (mut items, next) = self.src.list(dir, cursor)?;
        items.retain(|item| !is_leftover(&item.name));
        self.stack.extend(next.map(|cursor| Step::List(dir.clone(), cursor)));
        for item in items {
            self.item(dir, item);
        }
        Ok(())
    }

    /// False when stopped.
    fn run(&mut self, what: &What, stop: impl Fn() -> bool) -> bool {
        self.start(what);
        while let Some(step) = self.stack.pop() {
            if stop() {
                return false;
            }
            self.step(step);
        }
        true
    }
}

fn scanner<'a>(src: &'a dyn End, counters: Option<&'a Counters>) -> Scanner<'a> {
    Scanner { src, counts: Counts::default(), findings: Findings::default(), counters, stack: Vec::new() }
}

/// Counts what a copy would copy. Each name of a hard-linked file counts.
pub(crate) fn dry_run(src: &dyn End, what: &What, control: &Control) -> StageReport {
    let start = Instant::now();
    let mut scanner = scanner(src, Some(&control.inner));
    scanner.run(what, || control.is_cancelled());
    let counts = scanner.counts;
    let mut report = StageReport {
        files: counts.files,
        dirs: counts.dirs,
        links: counts.links,
        specials: counts.specials,
        bytes_total: counts.bytes,
        seconds_index: start.elapsed().as_secs_f64(),
        ..StageReport::default()
    };
    scanner.findings.into_report(&mut report);
    report
}

/// Tells the progress of a running copy how much there will be; the bytes. None when it ended before. Errors are the copy's to
/// report.
pub(crate) fn count_ahead(
    src: &dyn End,
    what: &What,
    control: &Control,
    done: impl Fn() -> bool,
) -> Option<u64> {
    let mut scanner = scanner(src, None);
    scanner.run(what, || control.is_cancelled() || done()).then(|| {
        control.inner.set_ahead(scanner.counts.entries(), scanner.counts.bytes);
        scanner.counts.bytes
    })
}
